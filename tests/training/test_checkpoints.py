"""A training that is stopped and goes on ends with the bits of one that was never stopped."""

import json
import os
import signal
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.data import ArrayLoader, BatchLoader, synthetic_images
from pytagi_ddp.distributed import run_threads
from pytagi_ddp.likelihoods import Categorical, Gaussian, Joint, Laplace, StudentT
from pytagi_ddp.nn import DDPSequential, FSDPSequential, Linear, Sequential
from pytagi_ddp.nn.files import file_format
from pytagi_ddp.training import Callback, CallbackError, Checkpoints, EarlyStopping, Log, Trainer
from tests.training.data import LABELS, TEST, WAYS, StopAt, X, network, on_ranks, shares, state_of, without_times

ALL = {"evidence": {"count": 8.0}, "epochs": 3, "batch_size": 12, "average_last": 0.5}  # 6 steps an epoch


def files(folder) -> dict[int, Path]:
    return {int(path.name[5:15]): path for path in Path(folder).glob("step-*")}


def one(folder, checkpoints=(), **options):
    """History and network of a training on one process, with statistics of BatchNorm2d and averages."""
    net = network(norm=True)
    callbacks = [Checkpoints(folder, **dict(checkpoints))]
    trainer = Trainer(net, Categorical(3), callbacks=callbacks, **{**ALL, **options})
    return without_times(trainer.fit((X, LABELS), TEST)), state_of(net), trainer


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_cannot_be_made_ends_the_training_at_its_beginning(resume):
    def train():
        net = network()
        before = state_of(net)
        ways = DDPSequential(net)
        with pytest.raises(CallbackError, match=r"Checkpoints failed in fit_begin.*/proc/none"):  # nobody makes it
            checkpoints = Checkpoints("/proc/none", resume=resume)
            Trainer(ways, Categorical(3), callbacks=[checkpoints], **ALL).fit((X, LABELS))
        assert state_of(net) == before

    run_threads(train, 2)


def test_resumed_after_an_epoch_and_within_one(tmp_path):
    history, state, _ = one(tmp_path / "a", {"every": 2, "keep": None})
    assert sorted(files(tmp_path / "a")) == [2, 4, 6, 8, 10, 12, 14, 16, 18]
    for step in (4, 6, 12, 16):
        resumed, end, trainer = one(tmp_path / f"{step}", {"resume": files(tmp_path / "a")[step]})
        assert end == state and trainer.step == 18
        assert resumed[-1]["val_nll"] == history[-1]["val_nll"] and resumed[-1]["epoch"] == 3
        for now, before in zip(resumed, history[step // 6 :], strict=True):
            assert now == pytest.approx(before, rel=1e-12), "metrics are those of the whole epoch"
    assert files(tmp_path / "4")[18].read_bytes() == files(tmp_path / "a")[18].read_bytes()
    averaged = network(norm=True)
    averaged.load(tmp_path / "a" / "average.safetensors")
    assert state_of(averaged) == state, "the network ends with the average"


@pytest.mark.parametrize("step", [5, 6, 12])
def test_resumed_after_the_last_and_smaller_batch_of_an_epoch(tmp_path, step):
    """The step of the schedule was counted again, as 61 samples are no whole number of batches of 12."""

    def train(*more):
        net = network()
        callbacks = [Checkpoints(tmp_path, on_signal=True, resume=True), *more]
        trainer = Trainer(net, Categorical(3), epochs=3, batch_size=12, callbacks=callbacks)
        trainer.fit((X, LABELS))
        return trainer.stopped, trainer.step, net.schedule.steps, state_of(net)

    expected = network()
    expected.fit(X, LABELS, Categorical(3), epochs=3, batch_size=12)
    assert train(StopAt(step))[:3] == (True, step, step)
    assert train() == (False, 18, 18, state_of(expected))


class Fits(Callback):
    """Sets the noise, as one that is fitted to held-out data, and a metric whose best epoch is the second."""

    def epoch_end(self, trainer):
        trainer.results["metric"] = [0.5, 0.3, 0.4, 0.35, 0.1, 0.4][trainer.epoch - 1]
        trainer.likelihood = Gaussian(0.25 + trainer.epoch / 16)


def stopping_early(net, folder=None, patience=3, epochs=6, resume=True, after=None, **options):
    """What a training gives that is ended by a metric: of it, what is restored, and the epochs."""
    stopping = EarlyStopping(patience, "metric", **options)
    callbacks = [Fits(), stopping, Checkpoints(folder, resume=resume)]
    callbacks += [] if after is None else [StopAt(after)]
    plain = {"epochs": epochs, "evidence": None}  # a schedule has other rates for other numbers of epochs
    trainer = Trainer(net, Gaussian(1.0), batch_size=12 // shares(net), callbacks=callbacks, **plain)
    trainer.fit((X, X[:, 0]), (X, X[:, 0]))
    found = trainer.epoch, trainer.likelihood.sigma, stopping.best_epoch, trainer.evaluate((X, X[:, 0]))["nll"]
    return *found, state_of(net), trainer.results.get("val_nll")


@pytest.mark.parametrize(("way", "ranks"), [("one", 1), ("ddp", 2), ("fsdp", 2), ("pipeline", 2), ("parallel", 2)])
@pytest.mark.filterwarnings("ignore:EarlyStopping has ended this training after 4 epochs, of which 2 is best")
def test_early_stopping_goes_on_where_it_was(tmp_path, way, ranks):
    """To the bit, also if a signal has stopped a run; at the end it is what it was, as often as it is started."""

    def train(folder, **options):
        return on_ranks(way, ranks, lambda net: stopping_early(net, folder, 2, **options), outputs=1)

    unbroken = on_ranks(way, ranks, lambda net: stopping_early(net, None, 2, resume=False), outputs=1)
    assert unbroken[0][:3] == (4, 0.3125, 2)  # the noise with which epoch 2 was evaluated
    train(tmp_path, epochs=1)
    train(tmp_path, epochs=3)
    assert train(tmp_path) == unbroken
    for _ in range(2):
        again = train(tmp_path)
        assert [run[:-1] for run in again] == [run[:-1] for run in unbroken]
        assert again[0][-1] == again[0][3]  # of the network that is restored
    stopped = train(tmp_path / "b", after=14)
    assert stopped[0][:3] == (2, 0.375, 2)
    assert train(tmp_path / "b") == unbroken


def test_the_best_epoch_in_another_folder(tmp_path):
    unbroken = stopping_early(network(1), resume=False)
    stopping_early(network(1), tmp_path / "a", epochs=3)
    stopping_early(network(1), tmp_path / "b", epochs=4, resume=tmp_path / "a")
    assert stopping_early(network(1), tmp_path / "b")[1:] == unbroken[1:]


@pytest.mark.parametrize("whole", [False, True])
def test_a_best_epoch_that_another_folder_cannot_take_ends_the_training_on_all_ranks(tmp_path, whole):
    """`whole`: rank 0 saves the network alone."""

    def train(folder, resume):
        net = FSDPSequential(network(1), average=False, reshard_after_forward=not whole)
        callbacks = [EarlyStopping(), Checkpoints(folder, resume=resume)]
        try:
            net.fit(X, X[:, 0], Gaussian(1.0), epochs=2 if resume else 1, callbacks=callbacks)
        except CallbackError as error:
            return str(error), net.communicator.all_gather_object(net.rank)

    run_threads(lambda: train(tmp_path / "a", False), 2)
    (tmp_path / "b" / "best.safetensors").mkdir(parents=True)
    results = run_threads(lambda: train(tmp_path / "b", tmp_path / "a"), 2)
    assert [ranks for _, ranks in results] == [[0, 1]] * 2
    assert all("EarlyStopping failed in fit_begin: IsADirectoryError" in error for error, _ in results)


def test_temporary_files_of_killed_jobs_are_removed(tmp_path):
    for name in ("best", "average"):
        (tmp_path / f".{name}.safetensors.{'0f' * 16}.tmp").write_text("")
    callbacks = [EarlyStopping(), Checkpoints(tmp_path)]
    network().fit(X, LABELS, epochs=1, average_last=0.5, callbacks=callbacks)
    assert not [*tmp_path.glob(".*.tmp")]


@pytest.mark.parametrize("lost", [lambda path: path.unlink(), lambda path: path.write_bytes(b"of another run")])
def test_a_best_network_that_is_lost_is_warned_about(tmp_path, lost):
    stopping_early(network(1), tmp_path, epochs=3)
    lost(tmp_path / "best.safetensors")
    with pytest.warns(UserWarning, match=r"best.safetensors is not the network of epoch 2, which can no longer be"):
        epochs, sigma, best, *_ = stopping_early(network(1), tmp_path, epochs=4)
    assert (epochs, sigma, best) == (4, 0.5, 2)  # nothing is restored


def test_what_was_not_kept_is_not_restored(tmp_path):
    stopping_early(network(1), tmp_path, epochs=3, restore=False)
    with pytest.warns(UserWarning, match="is not the network of epoch 2"):
        assert stopping_early(network(1), tmp_path, epochs=4)[:3] == (4, 0.5, 2)


def test_early_stopping_of_another_metric_begins_anew(tmp_path):
    stopping_early(network(1), tmp_path, epochs=2)
    callbacks = [Fits(), EarlyStopping(5, "val_nll"), Checkpoints(tmp_path, resume=True)]
    with pytest.warns(UserWarning, match="does not know this metric of the epochs before the checkpoint"):
        options = {"batch_size": 12, "validation": (X, X[:, 0]), "callbacks": callbacks, "evidence": None}
        network(1).fit(X, X[:, 0], Gaussian(1.0), 3, **options)
    assert callbacks[1].best_epoch == 3


@pytest.mark.parametrize("on_all_ranks", [True, False])
def test_what_callbacks_keep_is_that_of_each(tmp_path, on_all_ranks):
    class Counts(Callback):
        def __init__(self, number):
            self.number = number

        def fit_begin(self, trainer):
            self.number += 0.5

        def state_dict(self):
            return {"number": self.number}

        def load_state_dict(self, state_dict, folder):
            assert folder == tmp_path
            self.number = state_dict["number"]

    Counts.on_all_ranks = on_all_ranks

    def train(epochs):
        callbacks = [Counts(1), Counts(2), Checkpoints(tmp_path, resume=True)]
        Trainer(WAYS["ddp"](network()), epochs=epochs, callbacks=callbacks).fit((X, LABELS))
        return [callback.number for callback in callbacks[:2]]

    run_threads(lambda: train(1), 2)
    assert run_threads(lambda: train(2), 2) == [[2, 3], [2, 3] if on_all_ranks else [1, 2]]


@pytest.mark.parametrize(("way", "every"), [("ddp", None), ("fsdp", None), ("fsdp", 1)])
def test_a_callback_that_cannot_be_kept_ends_the_training_on_all_ranks(tmp_path, way, every):
    class Fails(Callback):
        def state_dict(self):
            raise ValueError("cannot be kept")

    def train(net):
        with pytest.raises(CallbackError, match=r"Checkpoints failed in \w+_end: ValueError: cannot be kept"):
            checkpoints = Checkpoints(tmp_path, every=every)
            Trainer(net, epochs=1, batch_size=6, callbacks=[Fails(), checkpoints]).fit((X, LABELS))
        return net.communicator.all_gather_object(net.rank)

    assert on_ranks(way, 2, train) == [[0, 1]] * 2


@pytest.mark.filterwarnings("ignore:EarlyStopping. 'train_none' is NaN")
def test_early_stopping_says_that_it_begins_anew(tmp_path):
    none = {"none": lambda prediction, y: np.full(len(y), np.nan)}

    def train(epochs, *stopping):
        callbacks = [*stopping, Checkpoints(tmp_path, resume=True)]
        return network().fit(X, LABELS, epochs=epochs, callbacks=callbacks, metrics=none)

    train(1)
    with pytest.warns(UserWarning, match="EarlyStopping does not know this metric of the epochs before the checkpoint"):
        train(2, EarlyStopping())
    with pytest.warns(UserWarning, match="EarlyStopping does not know this metric of the epochs before the checkpoint"):
        assert len(train(9, EarlyStopping(2, "train_none"))) == 2


def test_a_resumed_training_has_the_likelihood_and_the_schedule_that_it_began_with(tmp_path):
    def train(likelihood, epochs, allow_changes=False, **options):
        callbacks = [Checkpoints(tmp_path, resume=True, allow_changes=allow_changes)]
        trainer = Trainer(network(1), likelihood, epochs=epochs, callbacks=callbacks, **options)
        trainer.fit((X, X[:, 0]))
        return trainer.likelihood

    train(Gaussian(0.25), 1)
    with pytest.raises(CallbackError, match=r"began with the likelihood .*'sigma': 0.25}, and now .*0.5} is given"):
        train(Gaussian(0.5), 2)
    with pytest.raises(CallbackError, match="of a training with an EvidenceSchedule, and this one"):
        train(Gaussian(0.25), 2, evidence=None)
    plain = network(1)
    plain.fit(X, X[:, 0], Gaussian(0.5), epochs=1, evidence=None, callbacks=[Checkpoints(tmp_path / "plain")])
    with pytest.raises(CallbackError, match="of a training without an EvidenceSchedule, and this one is with one"):
        network(1).fit(X, X[:, 0], Gaussian(0.5), callbacks=[Checkpoints(tmp_path / "plain", resume=True)])
    with pytest.warns(UserWarning, match=r"0.5} is given, and used"):
        assert train(Gaussian(0.5), 2, allow_changes=True).sigma == 0.5
    assert train(Gaussian(0.5), 3).sigma == 0.5


def test_no_checkpoints_between_merges(tmp_path):
    def train():
        net = DDPSequential(network(), every=3)
        with pytest.raises(
            CallbackError, match=r"every=6 is not for DDPSequential\(every=3\), whose ranks are alike only"
        ):
            Trainer(net, Categorical(3), callbacks=[Checkpoints(tmp_path, every=6)]).fit((X, LABELS))
        return True

    assert run_threads(train, 2) == [True, True]


@pytest.mark.parametrize("way", ["ddp", "fsdp", "pipeline"])
def test_ranks_resume_within_an_epoch(tmp_path, way):
    def train(**options):
        net = WAYS[way](network())
        checkpoints = Checkpoints(tmp_path, every=2, keep=None, **options)
        history = Trainer(net, epochs=2, batch_size=8, callbacks=[checkpoints]).fit((X, LABELS), TEST)
        return without_times(history)[-1], state_of(net)

    whole = run_threads(train, 2)
    path = files(tmp_path)[6]
    for (last, state), (expected, unchanged) in zip(run_threads(lambda: train(resume=path), 2), whole, strict=True):
        assert state == unchanged and last == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("stop", [2, 4, 5, 9])
def test_ranks_with_different_numbers_of_batches_resume(tmp_path, every, stop):
    """Rank 1 has two batches, and rank 0 five; they add deltas, or merge posteriors."""

    def train(folder, step=None, resume=False):
        net = DDPSequential(network(), average=False, every=every)
        batches = [(X[k : k + 6], LABELS[k : k + 6]) for k in range(0, 30, 6)]
        callbacks = [StopAt(step, rank=0), Checkpoints(folder, resume=resume)]
        trainer = Trainer(net, Categorical(3), epochs=2, callbacks=callbacks)
        history = trainer.fit(batches if net.rank == 0 else batches[:2])
        if trainer.stopped:
            return True, trainer.epoch, trainer.batch
        return state_of(net), without_times(history), trainer.step, trainer.network.schedule.steps

    whole = run_threads(lambda: train(tmp_path / "whole"), 2)
    assert [one[2:] for one in whole] == [(10, 10)] * 2
    stopped = run_threads(lambda: train(tmp_path / "cut", stop), 2)
    assert [len(one) for one in stopped] == [3, 3]
    resumed = run_threads(lambda: train(tmp_path / "cut", resume=True), 2)
    for (state, history, *steps), (expected, results, *rest) in zip(resumed, whole, strict=True):
        assert steps == rest and state == expected
        assert history[-1] == pytest.approx(results[-1], rel=1e-12)
        assert len(history) == 1 or history[0] == pytest.approx(results[0], rel=1e-12)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_metric_that_fails_on_one_rank_costs_no_checkpoint(tmp_path, ranks):
    def train():
        net = DDPSequential(network(), average=False)
        fails = [net.rank == ranks - 1]

        def once(prediction, y):
            if fails and fails.pop():
                raise ZeroDivisionError("in a metric")
            return np.zeros(len(y))

        callbacks = [Checkpoints(tmp_path, every=2, keep=None)]
        trainer = Trainer(net, Categorical(3), epochs=1, batch_size=8, callbacks=callbacks, metrics={"own": once})
        return trainer.fit((X, LABELS))[0]["train_own"]

    with pytest.warns(UserWarning, match="a checkpoint without metrics.*ZeroDivisionError: in a metric"):
        assert run_threads(train, ranks) == [0.0] * ranks
    assert 2 in files(tmp_path)


def test_steps_do_not_go_back_if_an_iterable_has_become_shorter(tmp_path):
    batches = [(X[k : k + 6], LABELS[k : k + 6]) for k in range(0, 30, 6)]

    def train(batches, *callbacks):
        net = DDPSequential(network(), average=False)
        trainer = Trainer(net, Categorical(3), epochs=2, callbacks=[*callbacks, Checkpoints(tmp_path, resume=True)])
        trainer.fit(batches)
        return trainer.step

    for ranks in (1, 2):
        stopped = run_threads(lambda: train(batches, StopAt(4)), ranks)
        assert stopped[0] > 2
        with pytest.warns(UserWarning, match="steps_per_epoch of its schedule was 5 and is 2"):
            assert run_threads(lambda: train(batches[:2]), ranks) == [stopped[0] + 2] * ranks
        for path in tmp_path.iterdir():
            path.unlink()


def test_an_iterable_goes_on_behind_the_batches_that_are_done(tmp_path):
    batches = [(X[k : k + 7], LABELS[k : k + 7]) for k in range(0, 61, 7)]

    def train(resume=False):
        net = network()
        checkpoints = Checkpoints(tmp_path, every=4, keep=None, resume=resume)
        Trainer(net, Categorical(3), epochs=2, callbacks=[checkpoints]).fit(batches)
        return state_of(net)

    whole = train()
    assert train(files(tmp_path)[12]) == whole


class Kill(Callback):
    """Sends a signal to this process behind a step."""

    def __init__(self, step):
        self._step = step

    def batch_end(self, trainer):
        if trainer.step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("wrap", "after"), [(lambda net: net, 0), (DDPSequential, 1)])
def test_a_signal_writes_a_checkpoint_and_the_same_program_goes_on(tmp_path, wrap, after):
    """Ranks hear of it in their next exchange."""

    def train(folder, *more):
        net = wrap(network())
        callbacks = [Log(folder), *more, Checkpoints(folder, on_signal=True, resume=True)]
        trainer = Trainer(net, Categorical(3), epochs=2, batch_size=6, callbacks=callbacks)
        trainer.fit((X, LABELS))
        return trainer.stopped, trainer.step, state_of(net)

    whole = train(tmp_path / "a")
    assert train(tmp_path / "b", Kill(15 - after))[:2] == (True, 15)
    entry = json.loads((tmp_path / "b" / "manifest.json").read_text())["checkpoints"][-1]
    assert (entry["epoch"], entry["batch"], entry["step"]) == (1, 4, 15)
    assert train(tmp_path / "b") == whole == (False, 22, whole[2])
    events = [json.loads(line) for line in (tmp_path / "b" / "log.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "epoch", "stop", "start", "epoch"]
    assert (events[2]["epoch"], events[2]["batch"], events[2]["step"]) == (1, 4, 15)


def test_another_global_batch_goes_on_so_that_no_sample_is_left_out(tmp_path):
    one(tmp_path / "a", {"every": 5, "keep": None}, average_last=0.0)
    path = files(tmp_path / "a")[5]  # 60 samples
    with pytest.raises(
        CallbackError, match=r"the callback Checkpoints failed in fit_begin: .* global batch was 12 and is"
    ):
        one(tmp_path / "b", {"resume": path}, batch_size=16, average_last=0.0)
    with pytest.warns(UserWarning, match="global batch was 12 and is 16"):
        trainer = one(tmp_path / "c", {"resume": path, "allow_changes": True}, batch_size=16, average_last=0.0)[2]
    assert trainer.step == 5 + 1 + 8, "60 of 61 samples are 3 of 4 batches"


def part(folder, way, ranks, batch_size, stop, **options):
    """Goes on with a training up to a step, or to its end: (position, samples that were seen, schedule)."""

    def train():
        net, seen = WAYS[way](network(1)) if way in WAYS else network(1), []
        trainer = Trainer(
            net,
            Gaussian(0.5),
            epochs=2,
            batch_size=batch_size,
            metrics={"seen": lambda prediction, y: seen.append(y.ravel().astype(int)) or np.zeros(len(y))},
            callbacks=[StopAt(stop), Checkpoints(folder, resume=True, allow_changes=True)],
            **options,
        )
        trainer.fit((X, np.arange(len(X), dtype=np.float32)[:, None]))
        trainer._sums.means()  # of a stopped epoch nobody has asked before
        return (
            trainer.position,
            np.concatenate([[], *seen]).astype(int).tolist(),
            trainer.network.schedule,
            state_of(net),
        )

    return run_threads(train, ranks)


def test_other_ranks_batches_and_ways_in_the_middle_of_an_epoch_see_every_sample_once(tmp_path):
    seen = []
    for way, ranks, batch_size, stop, samples in (
        ("ddp", 3, 4, 1, 24),
        ("fsdp", 2, 5, 3, 24 + 20),
        ("pipeline", 2, 4, 5, 24 + 20 + 8),  # one share of the data
        ("one", 1, 3, 14, 15),  # 3 steps end the epoch; 5 of the next one
        ("ddp", 2, 8, 0, 0),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = part(tmp_path, way, ranks, batch_size, stop)
        assert {result[0].samples for result in results} == {samples}
        assert bool(seen) == any("another course" in str(warning.message) for warning in caught)
        seen += [sample for result in results for sample in result[1]]
        position, _, schedule, _ = results[0]
        share = position.epoch + position.samples / len(X)
        assert abs(schedule.steps - share * schedule.steps_per_epoch) < 1.6, "the last batch of an epoch is a small one"
    assert sorted(seen[: len(X)]) == sorted(seen[len(X) :]) == list(range(len(X)))


def test_a_checkpoint_that_counts_batches_goes_on_with_another_batch_size(tmp_path):
    """As version 0.2 has written them."""
    results = part(tmp_path, "one", 1, 12, 3)
    (path,) = tmp_path.glob("step-*")
    contents = file_format.read(path.read_bytes(), str(path))
    position = json.loads(contents.metadata["position"])
    assert position.pop("samples") == 36
    meta = {key: value for key, value in contents.metadata.items() if key not in ("format", "crc32")}
    path.write_bytes(file_format.packed(contents.tensors, meta | {"position": json.dumps(position)}))
    (tmp_path / "manifest.json").unlink()
    assert CheckpointManager(tmp_path).load(network(1), path).position == TrainingPosition(0, 3, 3, 0)
    with pytest.warns(UserWarning, match="global batch was 12 and is 10"):
        checkpoints = Checkpoints(None, resume=path, allow_changes=True)
        trainer = Trainer(network(1), Gaussian(0.5), epochs=1, batch_size=10, callbacks=[checkpoints])
        trainer.fit((X, np.zeros((len(X), 1))))
    assert trainer.step == 3 + 3, "25 samples were left"
    assert len(results[0][1]) == 36


@pytest.mark.parametrize(
    ("key", "forged", "message"),
    [
        ("extra", {"callbacks": 5}, "has no metrics, or no state of callbacks"),
        ("extra", {"metrics": 5}, "has no metrics, or no state of callbacks"),
        ("extra", {"metrics": {"nll": [1.0, 2.0, 3.0]}}, "has no metrics, or no state of callbacks"),
        ("extra", {"metrics": {"nll": [float("nan"), 2.0]}}, "sums of metrics that are NaN"),
        ("extra", {"metrics": {"nll": [1.0, -2.0]}}, "sums of metrics that are NaN, or of negative weights"),
        ("extra", {"callbacks": [1]}, "no state of callbacks, that can be read"),
        ("extra", {"callbacks": [["EarlyStopping", 5]]}, "no state of callbacks, that can be read"),
        (
            "extra",
            {"callbacks": [["EarlyStopping", {"best": 1}]]},
            "no state of callbacks, that can be read: .*best_epoch",
        ),
        (
            "extra",
            {"callbacks": [["EarlyStopping", {"best": 10**400}]]},
            "no state of callbacks, that can be read: Overflow",
        ),
        ("schedule", {"steps": 10**400}, "steps must be at most 9007199254740992"),
        ("schedule", {"steps_per_epoch": 10**400}, "steps_per_epoch must be at most 9007199254740992"),
        ("position", {"step": 10**30}, "step must be at most 9007199254740992"),
    ],
)
def test_a_forged_checkpoint_is_named(tmp_path, key, forged, message):
    """These were errors without the name of the file, or, for the step, of the first checkpoint after it."""

    def trainer(epochs, **options):
        callbacks = [EarlyStopping(), Checkpoints(tmp_path, **options)]
        return Trainer(network(1), Gaussian(0.5), epochs=epochs, callbacks=callbacks)

    data = X, np.zeros((len(X), 1))
    trainer(1).fit(data, data)
    (path,) = tmp_path.glob("step-*")
    contents = file_format.read(path.read_bytes(), str(path))
    meta = {name: value for name, value in contents.metadata.items() if name not in ("format", "crc32")}
    meta[key] = json.dumps(json.loads(meta[key]) | forged)
    path.write_bytes(file_format.packed(contents.tensors, meta))
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(CallbackError, match=rf"{path} .*{message}"):
        trainer(2, resume=path).fit(data, data)


def test_a_network_that_was_trained_before_resumes_alike(tmp_path):
    """Its schedule plans the epochs of the training that it takes up, and no others."""
    _, state, trainer = one(tmp_path / "a", {"every": 4, "keep": None})
    trainer.callbacks = [Checkpoints(tmp_path / "b", resume=files(tmp_path / "a")[4])]
    trainer.fit((X, LABELS), TEST)
    assert trainer.network.schedule.epochs == 3 and state_of(trainer.net) == state


def test_settings_are_compared(tmp_path):
    one(tmp_path, {"settings": {"sigma": 0.1}})
    with pytest.raises(CallbackError, match=r"sigma was 0.1 and is 0.2"):
        one(tmp_path, {"settings": {"sigma": 0.2}, "resume": True}, epochs=4)
    other = tmp_path / "other"
    one(other)
    with pytest.raises(CallbackError, match="seed was 0 and is 1"):
        one(other, {"resume": True}, epochs=4, seed=1)


def test_classes_are_compared(tmp_path):
    images = synthetic_images(40, 10)[0]

    def train(data, epochs, **options):
        net = Sequential(Linear(3072, 10))
        Trainer(net, epochs=epochs, callbacks=[Checkpoints(tmp_path, **options)]).fit(data)

    train(BatchLoader(images, 20), 1)
    renamed = BatchLoader(replace(images, classes=("x", *images.classes[1:])), 20)
    with pytest.raises(CallbackError, match=f"class 0 was '{images.classes[0]}' and is 'x'"):
        train(renamed, 2, resume=True)
    train(BatchLoader(images, 20), 2, resume=True)
    with pytest.warns(UserWarning, match="and is 'x'"):
        train(renamed, 3, resume=True, allow_changes=True)
    arrays = np.float32(images.images.reshape(40, -1) / 255), images.labels  # whose names are unknown
    train(ArrayLoader(*arrays, 20), 4, resume=True)
    train(renamed, 5, resume=True)  # as from a checkpoint of an earlier version


def test_a_new_training_leaves_the_checkpoints_of_another_alone(tmp_path):
    one(tmp_path / "a")
    kept = files(tmp_path / "a")
    with pytest.raises(CallbackError, match=f"{tmp_path}/a has checkpoints of another training.*with resume"):
        one(tmp_path / "a")
    assert files(tmp_path / "a") == kept
    with pytest.raises(CallbackError, match="was written after 3 epochs: to go on, ask for more than 3 epochs"):
        one(tmp_path / "a", {"resume": tmp_path / "a"})
    assert len(one(tmp_path / "a", {"resume": True}, epochs=4)[0]) == 1
    one(tmp_path / "b", {"resume": True})  # from the start, as there is nothing
    with pytest.raises(CallbackError, match=f"{tmp_path}/b has checkpoints of another training"):
        one(tmp_path / "b", {"resume": tmp_path / "a"}, epochs=9)
    with pytest.raises(CallbackError, match=r"FileNotFoundError: .*nothing"):
        one(tmp_path / "c", {"resume": tmp_path / "nothing"})
    assert CheckpointManager(tmp_path / "c").latest() is None


@pytest.mark.parametrize("average_last", [0.0, 0.5])
def test_a_training_that_is_done_stays_as_it_is(tmp_path, average_last):
    """As in a job that died, and was started again, after its last checkpoint."""
    first, state, _ = one(tmp_path, average_last=average_last)
    with pytest.warns(UserWarning, match="was written after 3 epochs: to go on, ask for more than 3 epochs"):
        history, again, trainer = one(tmp_path, {"resume": True}, average_last=average_last)
    assert (again, trainer.step) == (state, 18)
    assert history == [{name: value for name, value in first[-1].items() if name == "epoch" or name[:4] == "val_"}]


class FitNoise(Callback):
    """Estimates the noise after each epoch, as the page on regression does."""

    on_all_ranks = True

    def epoch_end(self, trainer):
        trainer.likelihood = trainer.likelihood.fitted(trainer.net, X, trainer.Y)


@pytest.mark.parametrize("likelihood", [Gaussian(), Joint((Gaussian(), 2), StudentT())])
def test_noise_that_a_callback_has_fitted_is_resumed(tmp_path, likelihood):
    numbers = np.random.default_rng(0).normal(size=(len(X), 3))
    y = numbers if isinstance(likelihood, Gaussian) else (numbers[:, :2], numbers[:, 2:])

    def train(epochs, **options):
        net = network()
        trainer = Trainer(net, likelihood, epochs=epochs, callbacks=[Checkpoints(tmp_path, **options), FitNoise()])
        trainer.Y = y
        trainer.fit((X, y))
        return state_of(net), trainer.likelihood.state_dict()

    whole = train(4, keep=None)
    assert whole[1] != likelihood.state_dict()
    path = files(tmp_path)[min(files(tmp_path)) * 2]
    assert train(4, resume=path) == whole
    with pytest.raises(CallbackError, match=r"step-\S* was written with another likelihood: .* not of a Laplace\("):
        Trainer(network(), Laplace(), epochs=9, callbacks=[Checkpoints(None, resume=path)]).fit((X, numbers))


def test_half_a_line_in_the_log_and_curves_that_cannot_be_drawn_cost_no_epoch(tmp_path):
    def train(epochs, resume=False):
        callbacks = [Log(tmp_path), Checkpoints(tmp_path, resume=resume)]
        network().fit(X, LABELS, epochs=epochs, callbacks=callbacks)

    train(1)
    log, curves = tmp_path / "log.jsonl", tmp_path / "curves.png"
    log.write_bytes(log.read_bytes()[:-9])
    curves.unlink(missing_ok=True)
    curves.mkdir()
    train(2, resume=True)
    assert 4 in files(tmp_path)
    assert [json.loads(line).get("epoch") for line in log.read_text().splitlines()[-2:]] == [None, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": None, "every": 3}, "need the folder"),
        ({"folder": "x", "every": 0}, "every must be at least 1, got 0"),
        ({"folder": "x", "keep": 0}, "keep_last must be at least 1"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        Checkpoints(**options)
