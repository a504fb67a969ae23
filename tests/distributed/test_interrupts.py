"""Ctrl-C at any moment leaves a network in a state from which the next forward pass goes on."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
from llvmlite.binding.executionengine import ExecutionEngine
from numba.core.compiler_lock import global_compiler_lock

import pytagi_ddp
from pytagi_ddp import manual_seed, nn
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.distributed import (
    DataParallel,
    DDPConfig,
    DDPSequential,
    FSDPSequential,
    PipelineSequential,
    run_threads,
)
from pytagi_ddp.interrupts import answer, held_back
from pytagi_ddp.kernels.cpu.runtime import compile, entries
from pytagi_ddp.kernels.cpu.runtime.compile import inner

HOME = str(Path(pytagi_ddp.__file__).parent)
X = np.random.default_rng(0).normal(size=(4, 6, 3)).astype(np.float32)
Y = np.tanh(X[..., :2])


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_is_answered_at_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt), held_back():
        interrupt()
        done.append(1)
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_is_answered_at_once_and_so_is_one_that_waits():
    for again in (interrupt, answer):
        done = []
        with pytest.raises(KeyboardInterrupt), held_back():
            interrupt()
            again()
            done.append(1)
        assert not done
        answer()  # nothing is left


@pytest.mark.parametrize("came_before", [None, False, True])
def test_what_always_holds_back_goes_to_its_end(came_before):
    """However often it comes, also inside of another block, in which one may have come already (None: no block)."""
    done = []
    with pytest.raises(KeyboardInterrupt), nullcontext() if came_before is None else held_back():
        if came_before:
            interrupt()
        with held_back(always=True):
            for _ in range(3):
                interrupt()
            done.append("inner")
        done.append("outer")
        interrupt()  # the second one of the outer block
        done.append("too far")
    assert done == (["inner", "outer"] if came_before is False else ["inner"])
    answer()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_after_an_answered_one_is_answered_too():
    """A handler need not raise, and a block may wait for long."""
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    with held_back(always=True):
        for count in (1, 2, 3):
            interrupt()
            answer()
            assert len(seen) == count
        interrupt()
    assert len(seen) == 4
    answer()
    assert len(seen) == 4


def _fill(values):
    for i in range(values.size):
        values[i] = i


@pytest.mark.parametrize("times", [1, 2])
def test_no_interrupt_cuts_the_compiler_short(times, monkeypatch):
    """LLVM would free a module twice, if an exception came before its Python side knows that it was given away."""

    def add_module(self, module):
        add(self, module)
        for _ in range(times):
            interrupt()

    add = ExecutionEngine.add_module
    monkeypatch.setattr(ExecutionEngine, "add_module", add_module)
    compiled, values = inner(_fill), np.zeros(3, np.float32)
    with pytest.raises(KeyboardInterrupt):
        compiled(values)
    assert len(compiled.signatures) == 1
    monkeypatch.undo()
    compiled(values)
    np.testing.assert_array_equal(values, [0, 1, 2])


@pytest.mark.parametrize("place", [1, 2])
def test_an_interrupt_leaves_no_lock_of_the_compiler_taken(place, monkeypatch):
    """Other threads would wait for it for ever. It is taken for the address of a loop, and to make an entry."""
    compiled, values, taken = inner(lambda values: None), np.zeros(3, np.float32), []

    class Lock:
        def __enter__(self):
            taken.append(True)
            if len(taken) == place:
                interrupt()

        def __exit__(self, *exc_info):
            taken[-1] = False

    compiled(values)
    monkeypatch.setattr(entries, "global_compiler_lock", Lock())
    monkeypatch.setattr(entries, "_entries", {})
    with pytest.raises(KeyboardInterrupt):
        entries.entry_of(compiled, (), (values,))
    assert taken == [False] * place


def test_an_interrupt_just_after_the_compiler_was_locked_leaves_it_unlocked(tmp_path, monkeypatch):
    """The lock that a loop takes to be compiled once."""
    monkeypatch.setattr(compile, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(_fill, "__module__", compile.__name__)  # only loops of kernels have such locks

    def profile(frame, event, function):
        if event == "c_return" and frame.f_code is type(global_compiler_lock).acquire.__code__:
            sys.setprofile(None)
            interrupt()

    values = np.zeros(3, np.float32)
    compiled = compile.loop("n")(_fill)
    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled(values)
    finally:
        sys.setprofile(None)
    assert not global_compiler_lock.is_locked()
    compiled(values)
    np.testing.assert_array_equal(values, [0, 1, 2])


IMPORTED_LATE = """
import signal, sys
from contextlib import suppress
from pytagi_ddp import nn

class Finder:
    def find_spec(self, name, path, target=None):
        if name in ("numba.core.types", "pytagi_ddp.kernels.cpu.layers.linear"):
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
for _ in range(3):
    with suppress(KeyboardInterrupt):
        nn.Linear(1, 2)
print(nn.Sequential(nn.Linear(1, 2)).predict([0.5])[0].shape)
"""


def test_no_interrupt_cuts_an_import_short():
    """Numba is imported late, and a part of it could not be imported again."""
    command = (sys.executable, "-c", IMPORTED_LATE)
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout == "(1, 2)\n", run.stderr


def test_a_handler_of_the_users_own_is_asked_later():
    asked = []
    signal.signal(signal.SIGINT, lambda *_: asked.append(1))
    with held_back():
        with held_back():
            interrupt()
            assert not asked
        interrupt()
    assert asked == [1, 1]
    with held_back():
        interrupt()
        with held_back():
            pass
        assert len(asked) == 2
    assert len(asked) == 3
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held_back():
        interrupt()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_forked_in_a_block_answers_at_once():
    """Such as a worker that a loader of `update_bn` starts: it would never come to the end of the block."""
    with suppress(KeyboardInterrupt), held_back():
        interrupt()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                answer()  # what the parent was sent is the parent's
                status = 2
                interrupt()
            except KeyboardInterrupt:
                os._exit(status)
            os._exit(3)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 2


def test_other_threads_are_left_alone():
    seen = []

    def work() -> None:
        with held_back():
            seen.append(signal.getsignal(signal.SIGINT))
            answer()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def interrupted_at(line: int, call: Callable[[], object]) -> bool:
    """Calls with an interrupt at that line of this package's code; whether there were so many lines."""
    lines = -1

    def trace(frame, event, _):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        if event == "line":
            lines += 1
            if lines == line:
                interrupt()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            call()
    finally:
        sys.settrace(before)
    return lines >= line


class Training:
    """A network, its step, and micro-batches or not."""

    def __init__(self, wrap: Callable, micro: bool, batch_norm: bool):
        manual_seed(1)
        norm = [nn.BatchNorm2d(5)] if batch_norm else []
        self.model = nn.Sequential(nn.Linear(3, 5), *norm, nn.Tanh(), nn.Linear(5, 2))
        self.net = wrap(self.model)
        self.updater = nn.OutputUpdater("cpu")
        self.micro = micro

    def calls(self, k: int) -> list[Callable]:
        """The calls of a step with batch k; with micro-batches, the first three learn half of it."""
        halves = np.array_split(np.arange(6), 2 if self.micro else 1)
        return [call for rows in halves for call in self._learn(X[k][rows], Y[k][rows])] + [self.net.step]

    def _learn(self, x, y) -> list[Callable]:
        net, var_y = self.net, np.full(y.shape, 0.1, np.float32)
        update = self.updater.update
        return [
            lambda: net.forward(x),
            lambda: update(net.output_z_buffer, y, var_y, net.input_delta_z_buffer),
            net.backward,
        ]

    def accumulate(self):
        if not self.micro:
            return nullcontext()
        return self.net.no_sync() if isinstance(self.net, DDPSequential) else self.net.accumulate()

    def step(self, k: int, interrupted: int = -1, line: int = 0) -> bool:
        """A step with batch k; call number `interrupted` is interrupted, if it has so many lines, and ends it all."""
        calls = self.calls(k)
        inside = 3 if self.micro else 0

        def run(number: int) -> None:
            if number != interrupted:
                calls[number]()
            elif interrupted_at(line, calls[number]):
                raise KeyboardInterrupt

        try:
            with self.accumulate():
                for number in range(inside):
                    run(number)
            for number in range(inside, len(calls)):
                run(number)
        except KeyboardInterrupt:
            return True
        return False

    def parameters(self) -> bytes:
        return self.model.arena.theta.tobytes()


WAYS = {
    "Sequential": lambda net: net,
    "DDPSequential": lambda net: DDPSequential(net, DDPConfig(backend="serial")),
    "buckets": lambda net: DDPSequential(net, DDPConfig(backend="serial", buckets=3)),
    "merges": lambda net: DDPSequential(net, DDPConfig(backend="serial"), every=2),
    "synchronised statistics": lambda net: DDPSequential(net, DDPConfig(backend="serial"), sync_batch_norm=True),
}


@pytest.mark.parametrize(("way", "micro"), [*((way, False) for way in WAYS), ("Sequential", True), ("buckets", True)])
@pytest.mark.slow
def test_training_goes_on_after_an_interrupt_anywhere(way, micro):
    """As if the batch had been learnt, or had not been there; never a part of a pass, and never an error.

    Micro-batches that wait for others, or for a step, which do not come any more, are learnt with the next batch.
    """
    batch_norm = way == "synchronised statistics"

    def trained(*batches) -> bytes:
        training = Training(WAYS[way], micro, batch_norm)
        for k in batches:
            training.step(k)
        return training.parameters()

    outcomes = [trained(0, 1, 2, 3), trained(0, 2, 3)]
    for waiting in (3, 6) if micro else ():
        training = Training(WAYS[way], micro, batch_norm)
        training.step(0)
        with training.accumulate():
            for call in training.calls(1)[:waiting]:
                call()
        training.step(2)
        training.step(3)
        outcomes.append(training.parameters())
    for number in (0, 2, 3, 5, 6) if micro else (0, 2, 3):
        line = 0
        while True:
            training = Training(WAYS[way], micro, batch_norm)
            training.step(0)
            reached = training.step(1, number, line)
            training.step(2)
            training.step(3)
            if batch_norm:  # an interrupted pass may have moved its statistics
                assert np.isfinite(training.model.arena.theta).all()
            else:
                assert training.parameters() in outcomes, (number, line)
            if not reached:
                break
            line += 1 + line // 4


SINGLE = {
    **WAYS,
    "shards": lambda net: FSDPSequential(net, DDPConfig(backend="serial")),
    "whole parameters": lambda net: FSDPSequential(net, DDPConfig(backend="serial"), reshard_after_forward=False),
    "replicas": lambda net: DataParallel(net, ["cpu"] * 2),
}


@pytest.mark.parametrize("batch_norm", [False, True], ids=["", "batch norm"])
@pytest.mark.parametrize("way", SINGLE)
def test_training_goes_on_after_an_exception_between_any_two_calls(way, batch_norm):
    """As if the batch had not been there, but for the statistics that its forward pass has moved."""
    if batch_norm and way == "replicas":
        batch_norm = False

    def trained(*batches, left_out=None, calls=0):
        training = Training(SINGLE[way], False, batch_norm)
        for k in batches:
            training.step(k)
        with suppress(KeyError):
            for call in training.calls(left_out)[:calls] if calls else ():
                call()
            raise KeyError
        for k in (2, 3):
            training.step(k)
        x = X[0]
        found = training.net.predict(x)
        if hasattr(training.net, "close"):
            training.net.close()
        return found

    expected = trained(0)
    for calls in (1, 2, 3):
        found = trained(0, left_out=1, calls=calls)
        if batch_norm:
            assert all(np.isfinite(moments).all() for moments in found)
        else:
            assert all(map(np.array_equal, found, expected)), f"after {calls} calls"


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_ranks_that_are_threads_may_end_between_any_two_calls(calls):
    ways = {
        "ddp": DDPSequential,
        "buckets": lambda net: DDPSequential(net, DDPConfig(buckets=2)),
        "merges": lambda net: DDPSequential(net, every=2),
        "shards": FSDPSequential,
    }

    def program():
        trainings = [Training(way, False, False) for way in ways.values()]
        for training in trainings:
            for call in training.calls(1)[:calls]:
                call()
        return trainings[0].net.rank, trainings  # alive until the end

    assert [rank for rank, _ in run_threads(program, 2)] == [0, 1]


def test_deltas_that_were_cut_short_are_not_applied():
    """A layer that raised in the middle of a backward pass: a step applied what the layers behind it had written."""
    training = Training(WAYS["Sequential"], False, False)
    training.step(0)
    before = training.parameters()
    forward, update, backward, step = training.calls(1)
    first = training.model.layers[0]
    forward()
    update()
    with training.model.add_hook(before=lambda leaf, _: 1 / 0 if leaf is first else 0), suppress(ZeroDivisionError):
        backward()
    with pytest.raises(RuntimeError, match="cut short"):
        step()
    assert training.parameters() == before
    for call in (forward, update, backward, step):
        call()
    assert training.parameters() != before


def test_an_accumulation_that_was_left_by_an_exception_is_forgotten():
    model = Training(WAYS["Sequential"], True, False)
    with suppress(KeyError), model.model.accumulate():
        for call in model.calls(0)[:3]:
            call()
        raise KeyError
    with pytest.raises(RuntimeError, match="cut short"):
        model.model.step()
    assert not model.model.passes.accumulating
    model.step(1)
    other = Training(WAYS["Sequential"], True, False)
    other.step(1)
    assert model.parameters() == other.parameters()


def test_exchanged_deltas_that_no_step_applied_come_first():
    """Whatever kept the step from coming: the other ranks have made it."""
    training = Training(WAYS["DDPSequential"], False, False)
    training.step(0)
    step, training.model.passes.step = training.model.passes.step, lambda: 1 / 0
    with suppress(ZeroDivisionError):
        training.step(1)
    training.model.passes.step = step
    with pytest.raises(RuntimeError, match=r"call step\(\) first"):
        training.model.backward()
    training.step(2)
    reference = Training(WAYS["DDPSequential"], False, False)
    for k in range(3):
        reference.step(k)
    assert training.parameters() == reference.parameters()


def collectives_of(communicator) -> list[str]:
    """The names of those that it begins from now on."""
    begun: list[str] = []
    prepare = communicator._prepare
    communicator._prepare = lambda name, *rest, **details: (begun.append(name), prepare(name, *rest, **details))
    return begun


def fsdp(model) -> FSDPSequential:
    return FSDPSequential(model, DDPConfig(backend="serial"), min_num_params=20)


def pipeline(model) -> PipelineSequential:
    return PipelineSequential(model, DDPConfig(backend="serial"), n_microbatches=2)


def in_unshard(net, path) -> None:
    with net.unshard():
        pass


TOGETHER: dict[str, Callable] = {
    "predict": lambda net, path: net.predict(X[0]),
    "state_dict": lambda net, path: net.state_dict(),
    "save": lambda net, path: net.save(path / "new"),
    "load": lambda net, path: net.load(path / "saved"),
    "update_bn": lambda net, path: net.update_bn([X[0], X[1]]),
    "forget_evidence": lambda net, path: net.forget_evidence(2),
    "synchronize": lambda net, path: net.synchronize(),
    "smoother": lambda net, path: net.smoother(),
    "unshard": in_unshard,
    "manager saves": lambda net, path: CheckpointManager(path / "run").save(net, TrainingPosition(step=1)),
    "manager gathers": lambda net, path: CheckpointManager(path / "one").save(net, TrainingPosition(step=1), {}, True),
    "manager loads": lambda net, path: CheckpointManager(path / "begun").load(net),
}
WRAPPERS = {
    "FSDPSequential": (fsdp, [name for name in TOGETHER if name != "synchronize"]),
    "PipelineSequential": (pipeline, [name for name in TOGETHER if name not in ("smoother", "unshard", "synchronize")]),
    "DDPSequential": (WAYS["DDPSequential"], ["update_bn", "forget_evidence", "synchronize", "manager loads"]),
}


@pytest.mark.parametrize(("kind", "call"), [(kind, call) for kind, (_, calls) in WRAPPERS.items() for call in calls])
@pytest.mark.slow
def test_what_ranks_do_together_is_done_to_its_end_or_not_at_all(kind, call, tmp_path):
    """With other ranks, they would be out of step: an interrupt anywhere leaves no collective out."""

    def made():
        manual_seed(1)
        layers = (
            [nn.SLSTM(3, 4, False, 1), nn.SLinear(4, 2)]
            if call == "smoother"
            else [nn.Linear(3, 5), nn.BatchNorm2d(5), nn.Tanh(), nn.Linear(5, 2)]
        )
        net = WRAPPERS[kind][0](nn.Sequential(*layers))
        if call == "smoother":
            for x, y in zip(X[0], Y[0], strict=True):
                net(x)
                nn.OutputUpdater("cpu").update(net.output_z_buffer, y, np.ones(2), net.input_delta_z_buffer)
                net.backward()
                net.step()
        return net

    first = made()
    first.save(tmp_path / "saved")
    CheckpointManager(tmp_path / "begun").save(first, TrainingPosition(step=1))
    whole = collectives_of(first.communicator)
    TOGETHER[call](first, tmp_path)
    line = 0
    while True:
        net = made()
        begun = collectives_of(net.communicator)
        reached = interrupted_at(line, lambda net=net: TOGETHER[call](net, tmp_path))
        assert begun in ([], whole), line
        if begun:
            assert net.model.training, line
        if not reached:
            break
        line += 1 + line // 4
    assert whole


def test_a_mode_that_was_only_wanted_for_a_while_does_not_stay(monkeypatch):
    """Where an interrupt, or an error, came between the change and its block."""
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm2d(5))
    change = net._set_training

    def change_and_interrupt(training: bool) -> None:
        change(training)
        if not training:
            interrupt()

    monkeypatch.setattr(net, "_set_training", change_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        net.predict(np.zeros((300, 3)), batch_size=2)
    assert net.training and all(layer.training for layer in net.layers)
