"""Strategies of exchange: one class each, which the options of a DDPSequential choose, and the way of a step to it."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import pytagi_ddp
from pytagi_ddp.distributed import (
    DDPConfig,
    DDPSequential,
    FSDPSequential,
    PipelineSequential,
    initialize,
    run_threads,
)
from pytagi_ddp.distributed.exchange import EveryStep, Options
from pytagi_ddp.nn import Linear, OutputUpdater, ReLU, Sequential
from tests.learning import backpropagate

HOME = str(Path(pytagi_ddp.__file__).parent)


def network() -> Sequential:
    return Sequential(Linear(3, 8), ReLU(), Linear(8, 1))


def learn(net, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    backpropagate(net, rng.normal(size=(4, 3)), rng.normal(size=4), 0.1)


def serial(**options) -> DDPConfig:
    return DDPConfig(backend="serial", **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_wait": "1"}, TypeError, "max_wait must be a number, got '1'"),
        ({"max_wait": -1}, ValueError, r"max_wait must be in \[0, inf\), got -1"),
        ({"max_wait": float("nan")}, ValueError, "max_wait must be in .*, got nan"),
        ({"max_wait": 1, "merge": "mean"}, ValueError, "max_wait needs merge=\"precision_weighted\".*got merge='mean'"),
        ({"max_wait": 1, "sync_batch_norm": True}, ValueError, "got merge=None, sync_batch_norm=True"),
    ],
)
def test_a_bounded_wait_that_cannot_be(options, error, message):
    with pytest.raises(error, match=message):
        DDPSequential(network(), serial(), every=2, **options)


class Counting(EveryStep):
    """A strategy in one class: it adds deltas in every step, and counts its steps."""

    option = "counting"

    @classmethod
    def is_asked_for(cls, options: Options) -> bool:
        return options.config.counting

    def step(self, stop: bool, now: bool = False) -> None:
        self.steps += 1
        super().step(stop, now)


@dataclass
class WithCounting(DDPConfig):
    """And the option that asks for it."""

    counting: bool = False
    strategies = (Counting, *DDPConfig.strategies)


def test_a_strategy_of_a_program_is_a_class_and_its_option():
    options = WithCounting(backend="serial", counting=True)
    net = DDPSequential(network(), options)
    learn(net)
    net.step()
    assert net.steps_since_merge == 1
    assert type(DDPSequential(network(), WithCounting(backend="serial"))._exchange) is EveryStep
    with pytest.raises(ValueError, match="in float32: leave out counting"):
        FSDPSequential(network(), options)
    options.buckets = 2
    with pytest.raises(ValueError, match="leave the others out: counting and buckets > 1"):
        DDPSequential(network(), options)
    with pytest.raises(ValueError, match="leave the others out: counting and buckets > 1"):
        options.check("cpu", 1, False)
    with pytest.raises(TypeError, match="counting"):
        options.counting = "yes"
    with pytest.raises(AttributeError, match=r"has no option 'count': .*, counting"):
        options.count = True
    with pytest.raises(AttributeError, match="has no option 'counting'"):
        serial().counting = True


def test_ranks_need_the_same_options_of_a_program():
    def on_rank(options):
        def start():
            comm = initialize()
            DDPSequential(network(), options(comm.rank), communicator=comm)

        run_threads(start, 2)

    with pytest.raises(ValueError, match="counting is False on rank 0 and True on rank 1"):
        on_rank(lambda rank: WithCounting(counting=rank == 1))
    with pytest.raises(ValueError, match="class of options is 'DDPConfig' on rank 0 and 'WithCounting' on rank 1"):
        on_rank(lambda rank: WithCounting() if rank else DDPConfig())
    on_rank(lambda rank: WithCounting(counting=True, rank=rank))  # what belongs to a rank may differ


def test_a_step_is_fifteen_calls_from_the_engine():
    """Each of them is in the way of every small step; there were 24."""
    net = DDPSequential(network(), serial())
    for seed in range(3):
        learn(net, seed)
        net.step()
    learn(net)
    calls: list[str] = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        net.step()
    finally:
        sys.setprofile(None)
    assert calls.index("_all_reduce") + 1 <= 15, calls


@pytest.mark.parametrize("kind", [DDPSequential, FSDPSequential, PipelineSequential])
def test_an_interrupted_step_ends_before_the_next_call(kind):
    """Whichever call comes next: all ranks have exchanged the deltas, and the others have made the step."""
    nets = [kind(network(), serial()) for _ in range(2)]
    state = nets[0].state_dict()
    for net in nets:
        net.load_state_dict(state)
        if kind is PipelineSequential:
            x = np.ones((4, 3))
            net.forward_backward(x, lambda s, rows, d: OutputUpdater("cpu").update(s, np.ones(len(s.mu_a)), 0.1, d))
        else:
            learn(net)
    interrupted, whole = nets
    whole.step()
    step, interrupted.model.passes.step = interrupted.model.passes.step, lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        interrupted.step()
    interrupted.model.passes.step = step
    interrupted.update_bn([np.ones((4, 3))])
    assert interrupted.state_dict() == whole.state_dict() != state


def test_what_a_wrapper_hands_to_the_network_is_documented_and_has_its_arguments():
    for name in ("predict", "smoother", "get_lstm_states", "set_lstm_states"):
        method = getattr(DDPSequential, name)
        assert method.__doc__.startswith(f"`Sequential.{name}` ") and method.__wrapped__ is getattr(Sequential, name)
    net = DDPSequential(network(), serial())
    x = np.ones((5, 3))
    np.testing.assert_array_equal(net.predict(x, batch_size=2), net.model.predict(x, batch_size=2))
