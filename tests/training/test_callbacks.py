"""Callbacks: when and where they are called, what becomes of their errors, and early stopping."""

import inspect
import os
import signal
import sys
import warnings
from functools import partial

import numpy as np
import pytest

from pytagi_ddp.data import ArrayLoader
from pytagi_ddp.distributed import CollectiveMismatchError, ReplicaMismatchError, all_reduce_metrics, run_threads
from pytagi_ddp.likelihoods import Categorical, Gaussian, StudentT
from pytagi_ddp.nn import DDPSequential, Linear, ReLU, Sequential
from pytagi_ddp.training import Callback, CallbackError, Checkpoints, EarlyStopping, Trainer
from tests.mpi.programs import training
from tests.mpi.run import MpiJob, mpirun
from tests.training.data import LABELS, TEST, WAYS, StopAt, X, Y, network, on_ranks, shares, state_of


class Seen(Callback):
    """Takes down the moments."""

    def __init__(self, on_all_ranks):
        self.on_all_ranks, self.moments = on_all_ranks, []

    def fit_begin(self, trainer):
        self.moments.append("fit begins")
        trainer.stack.callback(self.moments.append, "closed")

    def epoch_begin(self, trainer):
        self.moments.append(("begin", trainer.epoch, trainer.batch))

    def batch_end(self, trainer):
        self.moments.append((trainer.epoch, trainer.batch, trainer.step))

    def evaluation_begin(self, trainer):
        self.moments.append(("evaluate", trainer.results["epoch"], "val_nll" in trainer.results))

    def epoch_end(self, trainer):
        self.moments.append(("end", trainer.epoch, "val_nll" in trainer.results, len(trainer.history)))

    def fit_end(self, trainer):
        self.moments.append(("fit ends", trainer.stopped, len(trainer.history)))


EXPECTED = [
    "fit begins",
    *[("begin", 0, 0), (0, 1, 1), (0, 2, 2), ("evaluate", 1, False), ("end", 1, True, 1)],
    *[("begin", 1, 0), (1, 1, 3), (1, 2, 4), ("evaluate", 2, False), ("end", 2, True, 2)],
    *[("fit ends", False, 2), "closed"],
]


def test_moments_and_the_ranks_that_see_them():
    def train():
        everywhere, first = Seen(True), Seen(False)
        net = DDPSequential(network(), average=False)
        Trainer(net, epochs=2, batch_size=16, callbacks=[first, everywhere]).fit((X, LABELS), TEST)
        return first.moments, everywhere.moments

    assert run_threads(train, 2) == [(EXPECTED, EXPECTED), ([], EXPECTED)]


class Fails(Callback):
    def __init__(self, moment, on_rank=0):
        self.on_all_ranks, self._on_rank = on_rank > 0, on_rank
        setattr(type(self), moment, self._fail)

    def _fail(self, trainer):
        if trainer.ranks.rank == self._on_rank:
            raise ZeroDivisionError("in the log")


@pytest.mark.parametrize("moment", ["fit_begin", "epoch_begin", "evaluation_begin", "epoch_end", "fit_end"])
@pytest.mark.parametrize("on_rank", [0, 1])
def test_an_error_of_a_callback_is_raised_on_all_ranks_and_names_it(moment, on_rank):
    def train():
        own = type("Fails", (Fails,), {})(moment, on_rank)
        net = DDPSequential(network(), average=False)
        with pytest.raises(CallbackError) as caught:
            Trainer(net, epochs=1, callbacks=[own, Seen(True)]).fit((X, LABELS))
        net.barrier()  # the ranks are in step
        return str(caught.value), caught.value.moment, isinstance(caught.value.__cause__, ZeroDivisionError)

    line = inspect.getsourcelines(Fails._fail)[1] + 2
    text = f"the callback Fails failed in {moment}: ZeroDivisionError: in the log"
    text += f" (rank {on_rank}, {__file__}, line {line})"
    assert run_threads(train, 2) == [(text, moment, rank == on_rank) for rank in range(2)]


def test_all_ranks_get_what_a_callback_of_rank_0_changes():
    class Noise(Callback):
        def epoch_end(self, trainer):
            trainer.likelihood = Gaussian(0.5 + trainer.epoch)
            trainer.results["noise"] = trainer.likelihood.sigma

    class Sees(Callback):
        on_all_ranks = True

        def epoch_end(self, trainer):
            seen.append((trainer.likelihood.sigma, trainer.results["noise"]))

    seen = []

    def train():
        net = DDPSequential(Sequential(Linear(2, 4), ReLU(), Linear(4, 1)), average=False)
        trainer = Trainer(net, Gaussian(1.0), epochs=2, callbacks=[Noise(), Sees()])
        history = trainer.fit((X, X[:, 0]))
        return [one["noise"] for one in history], float(trainer.likelihood.sigma)

    assert run_threads(train, 2) == [([1.5, 2.5], 2.5)] * 2
    assert sorted(seen) == [(1.5, 1.5)] * 2 + [(2.5, 2.5)] * 2


@pytest.mark.parametrize(
    ("differ", "name"),
    [
        (lambda rank: {"epochs": 1 + rank}, "epochs"),
        (lambda rank: {"batch_size": 4 + rank}, "batch_size of the data"),
        (lambda rank: {"evidence": [{}, None][rank]}, "evidence"),
        (lambda rank: {"callbacks": [Seen(True)] * (1 - rank)}, "callbacks"),
        (lambda rank: {"data": (X[rank:], X[rank:, 0])}, "num_samples of the data"),
        (lambda rank: {"data": (X + rank, X[:, 0])}, "the checksum of the first and last sample"),
        (lambda rank: {"data": (X, X[:, 0] + rank)}, "the checksum of the first and last sample"),
        (lambda rank: {"data": (X, X[:, 0], *[np.ones(len(X))] * rank)}, "weight of the data is given"),
        (lambda rank: {"data": (X, X[:, 0], np.full(len(X), 1 + rank))}, "the checksum of the first and last sample"),
        (lambda rank: {"validation": [None, (X, X[:, 0])][rank]}, "validation is given"),
        (lambda rank: {"validation": (X[rank * 30 :][:30], X[:30, 0])}, "the checksum .* of the validation data"),
        (lambda rank: {"likelihood": Gaussian(0.3 + rank)}, r"likelihood is 'Gaussian\(sigma=0.3"),
        (lambda rank: {"likelihood": [Gaussian(), StudentT()][rank]}, "likelihood is 'Gaussian"),
    ],
)
def test_ranks_with_other_arrays_or_options_are_refused(differ, name):
    def train():
        net = DDPSequential(Sequential(Linear(2, 4), ReLU(), Linear(4, 1)), average=False)
        options = {"epochs": 1, "likelihood": Gaussian(1.0), "data": (X, X[:, 0]), "validation": None}
        options |= differ(net.rank)
        data, validation = options.pop("data"), options.pop("validation")
        with pytest.raises(ValueError, match=rf"ranks 0 and 1 call fit with different arguments: {name}.* on rank 1"):
            Trainer(net, **options).fit(data, validation)
        return True

    assert run_threads(train, 2) == [True, True]


def test_ranks_with_other_arrays_are_refused_in_evaluate():
    def evaluate():
        net = DDPSequential(network(1), average=False)
        with pytest.raises(ValueError, match="call evaluate with different arguments: the checksum of the first and"):
            Trainer(net, Gaussian()).evaluate((X[net.rank :][:30], Y[:30]))
        return True

    assert run_threads(evaluate, 2) == [True, True]


@pytest.mark.parametrize("for_validation", [False, True])
def test_a_loader_for_another_rank_is_refused_on_all(for_validation):
    """Its rank is 0 if it is left out."""

    def train():
        net = DDPSequential(network(1), average=False)
        wrong = ArrayLoader(X, Y, 8, world_size=2, evaluation=for_validation)
        data = ((X, Y), wrong) if for_validation else (wrong,)
        with pytest.raises(
            ValueError, match=r"for rank 0 of 2, and this is rank 1 of 2: make it with rank=1 and world"
        ):
            Trainer(net, Gaussian(), epochs=1).fit(*data)
        net.barrier()
        return True

    assert run_threads(train, 2) == [True, True]


class Freezes(Callback):
    def epoch_begin(self, trainer):
        if trainer.epoch == 1:
            trainer.network[0].freeze()


class Assigns(Callback):
    def batch_end(self, trainer):
        if trainer.batch == 3:
            trainer.network[2].var_b *= np.float32(0.5)


@pytest.mark.parametrize(
    ("way", "callback", "name"),
    [
        ("ddp", Freezes, "the list of frozen layers is"),
        ("ddp", Assigns, "the checksum of Linear.2/mu_b is"),
        ("fsdp", Freezes, "the list of frozen layers is"),
    ],
)
def test_a_network_that_one_rank_changes_is_refused(way, callback, name):
    def train(net):
        trainer = Trainer(net, Gaussian(), epochs=2, callbacks=[callback()])
        with pytest.raises(ReplicaMismatchError, match=rf"ranks 0 and 1 have .* {name} .* needs on_all_ranks = True"):
            trainer.fit((X, Y))
        return trainer.epoch

    assert on_ranks(way, 2, train, 1) == [1, 1]
    callback.on_all_ranks = True
    try:
        on_ranks(way, 2, lambda net: net.fit(X, Y, Gaussian(), epochs=2, callbacks=[callback()]), 1)
    finally:
        callback.on_all_ranks = False


def test_a_network_that_one_rank_has_loaded_is_refused():
    def train():
        net = DDPSequential(network(1), average=False)
        net.fit(X, Y, Gaussian(), epochs=1)
        if net.rank == 0:
            net.load_state_dict(network(1).state_dict())
        with pytest.raises(ReplicaMismatchError, match=r"the checksum of Linear.0/mu_w is .*load\(\), freeze\(\) and"):
            net.fit(X, Y, Gaussian(), epochs=1, evidence=None)
        net.synchronize()
        return net.fit(X, Y, Gaussian(), epochs=1, evidence=None)[-1]["epoch"]

    assert run_threads(train, 2) == [1, 1]


@pytest.mark.parametrize("call", ["evaluate", "refresh_statistics"])
def test_a_collective_call_on_rank_0_only_is_refused_at_once(call):
    class Evaluates(Callback):
        def epoch_end(self, trainer):
            trainer.evaluate(TEST) if call == "evaluate" else trainer.refresh_statistics()

    def train(net):
        own = Evaluates()
        with pytest.raises(
            CallbackError, match=f"{call} is collective, and the callback Evaluates runs on rank 0 only"
        ):
            net.fit(X, LABELS, epochs=2, callbacks=[own])
        own.on_all_ranks = True
        return len(net.fit(X, LABELS, epochs=2, callbacks=[own]))

    assert on_ranks("ddp", 2, train) == [2, 2]


def test_one_rank_in_fit_and_another_in_another_call():
    def train():
        net = DDPSequential(network(1))
        if net.rank == 0:
            net.fit(X, Y, Gaussian())
        else:
            all_reduce_metrics(net.communicator, {"rmse": 1.0})

    with pytest.raises(
        CollectiveMismatchError, match=r"rank 0 in fit, rank 1 in all_reduce_metrics\. Every rank has to"
    ):
        run_threads(train, 2)


def test_only_rank_0_warns_about_the_data():
    def train():
        DDPSequential(network(1)).fit(1000 * X, Y, Gaussian(), epochs=1)

    with pytest.warns(UserWarning, match="numbers in x are about 100 or more") as found:
        run_threads(train, 3)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("data", "known", "message"),
    [
        ((1000 * X, Y), False, "numbers in x are about 100 or more"),
        ((X, Y), True, "evidence=None"),
        ((X, Y, np.full(61, 1e-3)), False, "weight sums to"),
        ((X, np.nan * Y), False, "no observation in this epoch"),
        ((X[:8], np.where(np.arange(8) % 2, 1.0, -1.0)), False, "the network has learnt nothing"),
    ],
)
def test_a_warning_that_is_an_error_is_raised_on_all_ranks(data, known, message):
    def train():
        net = network(1)
        if known:
            net.fit(X, Y, Gaussian(0.1), epochs=1, evidence=None)
        net = DDPSequential(net)
        with pytest.raises(UserWarning, match=message):
            net.fit(data, likelihood=Gaussian(0.1), epochs=20 if len(data[0]) == 8 else 2, batch_size=4)
        return net.communicator.all_gather_object(net.rank)

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert run_threads(train, 2) == [[0, 1]] * 2


def test_an_error_within_an_epoch_names_the_callback():
    own = type("Fails", (Fails,), {})("batch_end")
    with pytest.raises(CallbackError, match="the callback Fails failed in batch_end: ZeroDivisionError: in the log"):
        network().fit(X, LABELS, callbacks=[own])


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("moment", ["epoch_end", "batch_end"])
def test_an_error_ends_a_job_of_real_ranks(moment):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    result = mpirun(partial(training.fails, moment=moment), 2, 60)
    assert result.returncode == 1
    assert f"the callback Fails failed in {moment}: OSError: the disk is full" in result.stderr


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks through /proc")
def test_a_signal_to_one_rank_stops_all_behind_the_same_step(tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    job = MpiJob(partial(training.until_a_signal, folder=str(tmp_path)), 2)
    os.kill(job.wait_ready(60)[1], signal.SIGUSR1)
    result = job.finish(60)
    assert (result.returncode, result.stderr) == (0, "")
    stopped, epoch, batch, step = (tmp_path / "position").read_text().split()
    (path,) = tmp_path.glob(f"step-{int(step):010}-*")
    assert stopped == "True" and int(step) == 8 * int(epoch) + int(batch)
    network().load(path)


def test_a_signal_stops_one_process():
    class Signals(Callback):
        def batch_end(self, trainer):
            if trainer.step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

        def fit_begin(self, trainer):
            trainer.stop_on_signal()

    former, seen = signal.getsignal(signal.SIGTERM), Seen(True)
    network().fit(X, LABELS, epochs=2, batch_size=6, callbacks=[Signals(), seen])
    assert seen.moments[-3:] == [(0, 3, 3), ("fit ends", True, 0), "closed"]
    assert signal.getsignal(signal.SIGTERM) == former


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_has_no_more_batches_stops_with_the_others(rank, tmp_path):
    """Rank 1 has two batches, rank 0 five: at the stop, both are behind the fourth step."""

    def train():
        net = DDPSequential(network(), average=False)
        asks = StopAt(3 if rank == 0 else 2, rank)
        own = [(X[:6], LABELS[:6])] * (5 if net.rank == 0 else 2)
        trainer = Trainer(net, Categorical(3), epochs=2, callbacks=[asks, Checkpoints(tmp_path / str(rank))])
        trainer.fit(own)
        return trainer.stopped, trainer.epoch, trainer.batch, trainer.step

    steps = 4 if rank == 0 else 3
    assert run_threads(train, 2) == [(True, 0, steps, steps)] * 2
    assert len(list((tmp_path / str(rank)).glob(f"step-{steps:010}-*"))) == 1


@pytest.mark.parametrize("wrap", [*WAYS.values(), lambda model: DDPSequential(model, every=4)])
def test_a_request_to_stop_ends_one_training(wrap):
    def train():
        net = wrap(network())
        trainers = [
            Trainer(net, Categorical(3), epochs=2, batch_size=6, callbacks=[StopAt(step, 0)]) for step in (1, None)
        ]
        for trainer in trainers:
            trainer.fit((X, LABELS))
        return [trainer.stopped for trainer in trainers], trainer.step == 2 * len(trainer._train), net.stop_requested

    assert run_threads(train, 2) == [([True, False], True, False)] * 2


def test_any_rank_may_end_the_training_after_an_epoch():
    class Stops(Callback):
        on_all_ranks = True

        def batch_end(self, trainer):
            if trainer.ranks.rank == 1 and trainer.step == 3:
                trainer.stop()

    def train():
        return len(Trainer(DDPSequential(network()), epochs=9, batch_size=16, callbacks=[Stops()]).fit((X, LABELS)))

    assert run_threads(train, 2) == [2, 2]


class Values(Callback):
    """Gives the epochs these values of a metric, and keeps what they end with."""

    on_all_ranks = True

    def __init__(self, values):
        self._values, self.states = values, []

    def epoch_end(self, trainer):
        trainer.results["metric"] = self._values[trainer.epoch - 1]
        self.states.append(state_of(trainer.net))


@pytest.mark.parametrize(("way", "ranks"), [("one", 1), ("ddp", 2), ("fsdp", 2), ("pipeline", 2), ("parallel", 2)])
def test_early_stopping_restores_the_best_epoch(way, ranks):
    def train(net):
        values, stopping = Values([0.5, 0.3, 0.4, 0.35, 0.1]), EarlyStopping(2, "metric")
        batch_size = 12 // shares(net)
        trainer = Trainer(net, epochs=5, batch_size=batch_size, callbacks=[values, stopping])
        assert len(trainer.fit((X, LABELS))) == 4
        assert (stopping.best, stopping.best_epoch) == (0.3, 2)
        return state_of(net) == values.states[1] != values.states[3]

    assert on_ranks(way, ranks, train) == [True] * (1 if way == "parallel" else ranks)


@pytest.mark.parametrize(
    ("options", "values", "epochs", "best"),
    [
        ({}, [0.5, 0.4, 0.4, 0.3], 4, 4),
        ({"largest": True}, [0.5, 0.4, 0.6, 0.5, 0.5, 0.9], 5, 3),
        ({"least": 0.2}, [0.5, 0.4, 0.35, 0.1], 3, 1),
        ({}, [np.nan, 0.4, np.nan, np.nan, 0.1], 4, 2),
        ({"restore": True}, [np.nan] * 4, 2, 0),
    ],
)
@pytest.mark.filterwarnings("ignore:EarlyStopping. 'metric' is NaN")
def test_what_counts_as_better(options, values, epochs, best):
    net, stopping = network(), EarlyStopping(2, "metric", **{"restore": False, **options})
    given = Values(values)
    assert len(net.fit(X, LABELS, epochs=len(values), callbacks=[given, stopping])) == epochs
    assert stopping.best_epoch == best and state_of(net) == given.states[-1]


def test_early_stopping_watches_the_validation():
    stopping = EarlyStopping()
    history = network().fit(X, LABELS, epochs=2, validation=TEST, callbacks=[stopping])
    assert stopping.best == min(results["val_nll"] for results in history)
    history = network().fit(X, LABELS, epochs=2, callbacks=[stopping])
    assert stopping.best == min(results["train_nll"] for results in history)
    with pytest.raises(CallbackError, match="there is no metric 'loss'; there are 'epoch', 'train_nll'"):
        network().fit(X, LABELS, epochs=1, callbacks=[EarlyStopping(metric="loss")])
    with pytest.raises(ValueError, match="patience must be at least 1, got 0"):
        EarlyStopping(0)


class Widens(Callback):
    def __init__(self, in_place):
        self._in_place = in_place

    def epoch_end(self, trainer):
        if self._in_place:
            trainer.likelihood.sigma *= 2
        else:
            trainer.likelihood = Gaussian(2 * trainer.likelihood.sigma)


@pytest.mark.parametrize("in_place", [True, False])
def test_early_stopping_restores_the_likelihood(in_place):
    stopping, values = EarlyStopping(2, "metric"), Values([0.5, 0.3, 0.4, 0.5])
    callbacks = [values, Widens(in_place), stopping]
    trainer = Trainer(network(1), Gaussian(0.1), epochs=4, batch_size=6, callbacks=callbacks)
    history = trainer.fit((X, Y), (X, Y))
    assert trainer.likelihood.sigma == 0.2
    assert trainer.evaluate((X, Y))["nll"] == history[1]["val_nll"] != history[0]["val_nll"]


def test_early_stopping_warns_where_nothing_is_scored():
    with pytest.warns(UserWarning, match="'val_nll' is NaN in epoch 1"):
        network(1).fit(X, Y, Gaussian(0.1), epochs=1, validation=(X, np.nan * Y), callbacks=[EarlyStopping()])


def test_the_average_is_what_is_restored():
    net, stopping = network(norm=True), EarlyStopping(1, "metric")
    trainer = Trainer(net, Categorical(3), epochs=3, average_last=0.5, callbacks=[Values([0.1, 0.2, 0.3]), stopping])
    history = trainer.fit((X, LABELS), TEST)
    assert len(history) == 2 and trainer.evaluate(TEST)["nll"] == history[0]["val_nll"] != history[1]["val_nll"]
