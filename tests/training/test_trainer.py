"""One loop for all ways of training: it gives what a loop by hand on one process gives."""

import copy
import importlib.util
from dataclasses import replace

import numpy as np
import pytest

import pytagi_ddp
from pytagi_ddp import nn
from pytagi_ddp.data import ArrayLoader, BatchLoader, random_crop_flip, synthetic_images
from pytagi_ddp.data.array_loader import each_part
from pytagi_ddp.distributed import run_threads
from pytagi_ddp.likelihoods import (
    Bernoulli,
    Categorical,
    Censored,
    Gamma,
    Gaussian,
    HierarchicalCategorical,
    Joint,
    LogNormal,
    NegativeBinomial,
    Ordinal,
    Poisson,
)
from pytagi_ddp.nn import DDPSequential, EvidenceSchedule, FSDPSequential
from pytagi_ddp.training import CallbackError, Checkpoints, Progress, Trainer
from tests.training.data import (
    LABELS,
    TEST,
    WAYS,
    WEIGHT,
    X,
    Y,
    advice,
    network,
    on_ranks,
    shares,
    state_of,
    without_times,
)

EPOCHS = 3


def loop(
    net, x, y, likelihood, batch_size=6, epochs=EPOCHS, evidence=None, forget=1.0, average=None, seed=0, weight=None
):
    """The training by hand, as the pages show it."""
    loader = ArrayLoader(x, y, batch_size, seed=seed, weight=weight)
    if evidence is not None:
        nn.EvidenceSchedule(net, len(loader), epochs, **evidence)
    for epoch in range(epochs):
        if forget > 1 and 0 < epoch < 0.7 * epochs:
            net.forget_evidence(forget)
        if average is not None:
            average.reset()
        loader.set_epoch(epoch)
        for k, (a, b, *weights) in enumerate(loader, 1):
            net(a)
            likelihood.observe(net, b, (1.0 if net.schedule is None else net.schedule.weight) * np.prod(weights, 0))
            net.backward()
            net.step()
            if average is not None and k > len(loader) - round(len(loader) / 2):
                average.update()


@pytest.mark.parametrize("weight", [(), (WEIGHT,)])
@pytest.mark.parametrize(
    ("way", "ranks"),
    [("ddp", 1), ("ddp", 2), ("ddp", 3), ("fsdp", 2), ("fsdp", 3), ("pipeline", 2), ("parallel", 2)],
)
def test_every_way_gives_the_history_of_one_process(way, ranks, weight):
    """61 samples in steps of 12: in the last one there is one, and ranks without samples step along."""
    test = (*TEST, *(some[:19] for some in weight))

    def train(net):
        trainer = Trainer(net, epochs=EPOCHS, batch_size=12 // shares(net))
        history = trainer.fit((X, LABELS, *weight), test)
        return history, trainer.evaluate(test), trainer.predict(TEST[0]).probabilities

    ((one, scores, p),) = on_ranks("one", 1, train)
    assert list(without_times(one)[0]) == ["epoch", "train_nll", "train_error", "val_nll", "val_error"]
    assert one[-1]["val_error"] < 0.3 and one[-1]["train_nll"] < one[0]["train_nll"]
    for history, theirs, probabilities in on_ranks(way, ranks, train):
        for ours, expected in zip(without_times(history), without_times(one), strict=True):
            assert ours == pytest.approx(expected, rel=2e-3)
        assert theirs == pytest.approx(scores, rel=2e-3)
        np.testing.assert_allclose(probabilities, p, atol=2e-3)


def test_results_are_equal_on_all_ranks():
    histories = run_threads(lambda: Trainer(WAYS["ddp"](network()), epochs=2).fit((X, LABELS), TEST), 3)
    assert histories[0] == histories[1] == histories[2]


def test_an_epoch_with_a_schedule_is_that_of_a_loop_by_hand():
    expected, net = network(), network()
    loop(expected, X, LABELS, Categorical(3), evidence={"count": 4.0, "prior_factor": 10.0})
    evidence = {"count": 4.0, "prior_factor": 10.0}
    Trainer(net, epochs=EPOCHS, batch_size=6, evidence=evidence).fit((X, LABELS))
    assert state_of(net) == state_of(expected)
    assert net.schedule.steps == EPOCHS * 11


def test_weights_multiply_evidence_and_metrics():
    expected, net, from_batches = network(), network(), network()
    loop(expected, X, LABELS, Categorical(3), evidence={}, weight=WEIGHT)
    test = *TEST, WEIGHT[:19]
    history = net.fit(X, LABELS, epochs=EPOCHS, batch_size=6, weight=WEIGHT, validation=test)
    assert state_of(net) == state_of(expected)
    prediction = Categorical(3).predict(net, TEST[0])
    nll = np.average(-prediction.log_prob(TEST[1]), weights=WEIGHT[:19])
    assert history[-1]["val_nll"] == pytest.approx(nll, rel=1e-6)
    wrong = prediction.probabilities.argmax(1) != TEST[1]
    assert history[-1]["val_error"] == pytest.approx(np.average(wrong, weights=WEIGHT[:19]))
    batches = ArrayLoader(X, LABELS, 6, weight=list(WEIGHT))
    from_batches.fit(batches, epochs=EPOCHS, validation=[test])
    assert state_of(from_batches) == state_of(net)
    trainer = Trainer(net, Categorical(3))
    assert trainer.evaluate([(*TEST, None)]) == trainer.evaluate([TEST])  # without weights: each counts once


def test_sums_of_weights_have_the_precision_of_float64():
    trainer, exact = Trainer(network(1), Gaussian(0.1)), np.full(61, 6e4)
    assert trainer.evaluate((X, Y, exact.astype(np.float16))) == trainer.evaluate((X, Y, exact))


@pytest.mark.parametrize(("scale", "many"), [(1e-3, "few"), (1e3, "many")])
def test_weights_without_a_mean_of_about_1(scale, many):
    with pytest.warns(UserWarning, match=rf"weight sums to .* so {many} observations: .* w / w.mean\(\)"):
        network().fit(X, LABELS, epochs=1, weight=scale * WEIGHT)
    with pytest.warns(UserWarning, match=f"so {many} observations"):
        network().fit([(X, LABELS, scale * WEIGHT)], likelihood=Categorical(3), epochs=1)


def test_known_noise_of_each_number():
    noise = np.where(np.arange(len(X)) % 2, 1e-4, 1.0)  # as weights, some would count 10^4 times as much
    y = np.where(noise < 1, Y, Y + 2)
    net, one = network(1), network(1)
    history = net.fit(X, (y, noise), Gaussian(), EPOCHS, batch_size=6, validation=(X, (y, noise)))
    loop(one, X, (y, noise), Gaussian(), evidence={"count": 4.0})
    assert state_of(net) == state_of(one)
    m, s = (part[:, 0] for part in net.predict(X))
    nll = 0.5 * (np.log(2 * np.pi * (s + noise)) + (y - m) ** 2 / (s + noise))
    assert history[-1]["val_nll"] == pytest.approx(nll.mean(), rel=1e-5)
    assert history[-1]["val_rmse"] == pytest.approx(np.sqrt(np.mean((y - m) ** 2)), rel=1e-5)
    with pytest.raises(ValueError, match=r"observes y, or a tuple \(y, var\), and got a tuple of 3"):
        net.fit(X, (y, noise, noise), Gaussian())
    missing = np.where(np.arange(len(X)) % 5, 1, np.nan)
    assert np.isfinite(net.fit(X, (y * missing, noise * missing), Gaussian(), 1)[-1]["train_nll"])
    batches = ArrayLoader(X, ((y, noise), LABELS), 6)  # as a part of several
    parts = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))
    both = Joint(Gaussian(), Categorical(3))
    assert np.isfinite(parts.fit(batches, likelihood=both)[-1]["train_nll"])
    numbers = Joint(Gaussian(0.5), Gaussian(1.0))
    fitted = numbers.fitted_to(np.zeros((61, 2)), np.full((61, 2), 1e-6), ((y, noise), np.tile([2.0, -2.0], 31)[:61]))
    assert [part["sigma"] for part in fitted.state_dict()["parts"]] == pytest.approx([0.5, 2.0], rel=1e-3)


def test_a_weight_of_0_leaves_a_sample_out_also_of_several_outputs():
    y = np.stack([Y, -Y], 1)
    absurd = np.where(np.arange(len(X))[:, None] % 3, y, 50.0)
    weight = np.arange(len(X)) % 3 > 0
    expected, net = network(2), network(2)
    loop(expected, X, np.where(weight[:, None], y, np.nan), Gaussian(0.1), evidence={"count": 4.0})
    history = net.fit(X, absurd, Gaussian(0.1), EPOCHS, batch_size=6, weight=weight)
    assert state_of(net) == state_of(expected)
    assert history[-1]["train_rmse"] < 1


def test_a_weight_may_have_the_shape_of_one_output():
    expected, net = network(1), network(1)
    expected.fit(X, Y, Gaussian(0.5), EPOCHS, batch_size=6, weight=WEIGHT)
    net.fit(X, Y[:, None], Gaussian(0.5), EPOCHS, batch_size=6, weight=WEIGHT[:, None])
    assert state_of(net) == state_of(expected)


def test_each_observation_of_a_sample_may_have_a_weight():
    y, weight = np.stack([Y, -Y], 1), np.random.default_rng(0).integers(0, 3, (len(X), 2))
    expected, net = network(2), network(2)
    loop(expected, X, np.where(weight > 0, y, np.nan), Gaussian(0.5), evidence={"count": 4.0}, weight=weight)
    metrics = {"first": lambda prediction, y: np.abs(prediction.mean - y)[:, 0]}
    trainer = Trainer(net, Gaussian(0.5), epochs=EPOCHS, batch_size=6, evidence={"count": 4.0}, metrics=metrics)
    trainer.fit((X, y, weight))
    assert state_of(net) == state_of(expected)
    deviation = np.abs(net.predict(X)[0] - y)
    found = trainer.evaluate((X, y, weight))
    assert found["rmse"] == pytest.approx(np.sqrt(np.average(deviation**2, weights=weight)))
    assert found["first"] == pytest.approx(np.average(deviation[:, 0], weights=weight.sum(1)))
    with pytest.raises(ValueError, match="weight must be one number, or one for each of 6 samples or 12 observations"):
        network(2).fit(X, y, Gaussian(0.5), 1, batch_size=6, weight=np.ones((len(X), 3)))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.ones(3), r"(?m)one number for each of 61 samples, got the shape \(3,\); for class weights w give w\[y\]$"),
        (np.ones(60), r"(?m)one number for each of 61 samples, got the shape \(60,\)$"),
        (2.0, r"got the shape \(\)"),
        (np.full(61, -1.0), "finite numbers of at least 0, got -1.0 in row 0"),
        (np.full(61, np.nan), "finite numbers of at least 0"),
    ],
)
def test_weights_that_cannot_be(weight, message):
    with pytest.raises(ValueError, match=message):
        network().fit(X, LABELS, weight=weight)
    with pytest.raises(ValueError, match=message):
        network().fit([(X, LABELS, weight)], likelihood=Categorical(3))


def test_weights_beside_batches_are_refused():
    with pytest.raises(ValueError, match=r"weight needs arrays x and y; batches .* may be \(x, y, weight\)"):
        network().fit([(X, LABELS)], likelihood=Categorical(3), weight=WEIGHT)


def test_plain_tagi_with_forgetting_is_that_of_a_loop_by_hand():
    expected, net = network(1), network(1)
    loop(expected, X, Y, Gaussian(0.1), epochs=4, forget=2.0, seed=5)
    Trainer(net, Gaussian(0.1), epochs=4, batch_size=6, evidence=None, forget=2.0, seed=5).fit((X, Y))
    assert net.schedule is None and state_of(net) == state_of(expected)


def test_the_network_ends_with_the_average_that_was_evaluated():
    expected, net = network(norm=True), network(norm=True)
    average = nn.PosteriorAverage(expected)
    loop(expected, X, LABELS, Categorical(3), average=average, evidence={})
    trainer = Trainer(net, Categorical(3), epochs=EPOCHS, batch_size=6, average_last=0.5, evidence={"count": 8.0})
    history = trainer.fit((X, LABELS), TEST)
    loader = ArrayLoader(X, LABELS, 6)
    loader.set_epoch(EPOCHS - 1)
    with average.average_parameters():
        expected.update_bn(loader, 40)
        assert state_of(net) == state_of(expected)
        nll = -Categorical(3).predict(expected, TEST[0]).log_prob(TEST[1]).mean()
    assert history[-1]["val_nll"] == pytest.approx(nll, rel=1e-6)
    assert trainer.evaluate(TEST)["nll"] == history[-1]["val_nll"]


def test_statistics_are_those_of_the_parameters():
    net = network(norm=True)
    history = Trainer(net, Categorical(3), epochs=2, batch_size=6).fit((X, LABELS))
    assert {"bn_seconds", "bn_mean_shift", "bn_var_ratio"} <= history[0].keys()
    before = state_of(net)
    loader = ArrayLoader(X, LABELS, 6)
    loader.set_epoch(1)
    net.update_bn(loader, 40)
    assert state_of(net) == before
    other = network(norm=True)
    history = Trainer(other, Categorical(3), epochs=2, batch_size=6, bn_batches=0).fit((X, LABELS))
    assert "bn_seconds" not in history[0] and state_of(other) != before


@pytest.mark.parametrize("name", ["nll", "rmse"])
def test_a_metric_replaces_none_of_the_library(name):
    with pytest.raises(ValueError, match=f"metrics has '{name}', which is computed anyway"):
        network(1).fit(X, Y, Gaussian(0.1), metrics={name: lambda prediction, y: y})


@pytest.mark.parametrize("ways", [lambda net: net, WAYS["ddp"]])
def test_statistics_of_a_norm_that_is_frozen_in_both_ways_stay(ways):
    for freeze, stay in ((True, True), (False, False)):
        net = network(norm=True)
        before = net[1].running_mean.copy()
        if freeze:
            net[1].freeze()
        net[1].training = False
        Trainer(ways(net), Categorical(3), epochs=2, batch_size=6).fit((X, LABELS))
        assert net[1].training != stay and np.array_equal(net[1].running_mean, before) == stay


def test_metrics_are_means_over_the_samples():
    net = network(1)

    def far(prediction, y):
        return np.abs(prediction.mean[:, 0] - y) > 0.3

    trainer = Trainer(net, Gaussian(0.1), epochs=2, metrics={"far": far})
    history = trainer.fit((X, Y))
    assert {"train_nll", "train_rmse", "train_far"} <= history[0].keys()
    prediction = trainer.predict(X)
    y = Y.copy()
    y[3] = np.nan  # missing: it does not count
    found, known = trainer.evaluate((X, y)), np.isfinite(y)
    assert found["nll"] == pytest.approx(-prediction.log_prob(y)[known].mean(), rel=1e-6, abs=1e-6)
    assert found["rmse"] == pytest.approx(np.sqrt(((prediction.mean[:, 0] - y)[known] ** 2).mean()), rel=1e-6)
    assert found["far"] == pytest.approx(far(prediction, y).mean())
    outer = Trainer(net, Gaussian(0.1), epochs=1, metrics={"mae": lambda prediction, y: np.abs(prediction.mean - y)})
    with pytest.raises(
        ValueError,
        match=r"returned the shape \(61, 61\) .* outputs .* have the shape \(61, 1\), and y has \(61,\)",
    ):
        outer.fit((X, Y))


def test_net_fit_is_the_short_way():
    expected, net = network(), network()
    history = Trainer(expected, epochs=2, batch_size=6, seed=3).fit((X, LABELS), TEST)
    assert without_times(net.fit(X, LABELS, epochs=2, batch_size=6, seed=3, validation=TEST)) == without_times(history)
    assert state_of(net) == state_of(expected)
    wrapped = DDPSequential(network(), average=False)
    wrapped.fit(ArrayLoader(X, LABELS, 6, seed=3), likelihood=Categorical(3), epochs=2)
    assert state_of(wrapped) == state_of(expected)


def test_short_descriptions():
    trainer = Trainer(network(1), Gaussian(0.1), epochs=1)
    assert repr(trainer) == "Trainer(Sequential, Gaussian(sigma=0.1), 1 epochs, 0 done)"
    assert repr(trainer.predict(X)) == "GaussianPrediction of shape (61, 1)"
    parts = Joint(Categorical(2), Gaussian()).predict(network(), X)
    assert repr(parts) == "JointPrediction([ClassPrediction of shape (61,), GaussianPrediction of shape (61, 1)])"
    assert repr(nn.OutputUpdater("cpu")) == "OutputUpdater('cpu')"


def test_a_second_fit_goes_on_with_the_schedule():
    net = network()
    net.fit(X, LABELS, epochs=2, batch_size=6)
    net.fit(X, LABELS, epochs=3, batch_size=6)
    assert (net.schedule.epochs, net.schedule.steps) == (5, 5 * 11)
    net.fit(X, LABELS, epochs=1, batch_size=6, evidence=None)
    assert net.schedule is None
    own = nn.EvidenceSchedule(net, 11, 4, count=3.0)
    net.fit(X, LABELS, epochs=4, batch_size=6)
    assert net.schedule is own and (own.epochs, own.steps, own.count) == (4, 44, 3.0)


def test_batches_of_a_loader_are_those_of_the_ranks():
    images, test = synthetic_images(40, 20)

    def train(ranks):
        def run():
            net = DDPSequential(nn.Sequential(nn.Linear(3072, 4), nn.ReLU(), nn.Linear(4, 10)), average=False)
            loader = BatchLoader(images, 12 // ranks, net.rank, ranks)
            return Trainer(net, epochs=1).fit(loader, BatchLoader(test, 8, net.rank, ranks, evaluation=True))

        return run_threads(run, ranks)[0]

    for ours, one in zip(without_times(train(3)), without_times(train(1)), strict=True):
        assert ours == pytest.approx(one, rel=1e-3)
    net = network()
    with pytest.raises(ValueError, match=r"is for rank 1 of 3, and this is rank 0 of 1: make it with rank=0 and world"):
        net.fit(BatchLoader(images, 4, 1, 3), likelihood=Categorical(3))


def test_loaders_for_training_are_not_for_evaluation():
    images, test = synthetic_images(40, 20)
    trainer = Trainer(nn.Sequential(nn.Linear(3072, 10)), epochs=1)
    for options, what in (({"drop_last": True}, "leaves samples out"), ({"transform": random_crop_flip}, "at random")):
        with pytest.warns(UserWarning, match=f"BatchLoader for evaluation .*{what}, .*: make it with evaluation=True"):
            trainer.fit(BatchLoader(images, 8), BatchLoader(test, 8, **options))
    trainer.evaluate(BatchLoader(test, 8))


def cut(x, y, size=6):
    return [(x[k : k + size], y[k : k + size]) for k in range(0, len(x), size)]


class Loader:
    """As a `DataLoader` of PyTorch: without a position, and its sampler is told the epoch."""

    class Sampler:
        epoch = -1

        def set_epoch(self, epoch):
            self.epoch = epoch

    def __init__(self):
        self.sampler, self.epochs = self.Sampler(), []

    def __len__(self):
        return 11

    def __iter__(self):
        self.epochs.append(self.sampler.epoch)
        return iter([[list(map(list, x)), list(map(int, y))] for x, y in cut(X, LABELS)])


def test_any_iterable_of_batches():
    expected, net = network(), network()
    history = expected.fit(cut(X, LABELS), likelihood=Categorical(3), epochs=2)
    loader = Loader()
    assert without_times(net.fit(loader, likelihood=Categorical(3), epochs=2)) == without_times(history)
    assert loader.epochs == [0, 1] and state_of(net) == state_of(expected)

    def endless():
        yield from cut(X, LABELS)

    with pytest.raises(ValueError, match=r'no length.* give evidence={"steps_per_epoch": '):
        network().fit(endless(), likelihood=Categorical(3), epochs=1)
    one = network()
    one.fit(endless(), likelihood=Categorical(3), epochs=1, evidence={"steps_per_epoch": 11})
    assert one.schedule.steps == 11


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_loader_of_pytorch():
    import torch

    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(LABELS))
    expected, net = network(), network()
    expected.fit(cut(X, LABELS), likelihood=Categorical(3), epochs=2)
    net.fit(torch.utils.data.DataLoader(data, 6), likelihood=Categorical(3), epochs=2)
    assert state_of(net) == state_of(expected)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("batch_size", [2, 6])
def test_a_loader_of_pytorch_makes_lists_of_tuples(batch_size):
    import torch

    noise = np.where(np.arange(len(X)) % 2, 0.01, 1.0)
    for y, likelihood, outputs in (
        ((Y, noise), Gaussian(), 1),
        ((Y, Y + 1), Censored(0.1), 1),
        ((LABELS, (Y, noise)), Joint(Categorical(3), Gaussian()), 4),
    ):
        samples = [(X[k], each_part(lambda part, k=k: part[k], y)) for k in range(len(X))]
        expected, net = network(outputs), network(outputs)
        net.fit(torch.utils.data.DataLoader(samples, batch_size), likelihood=likelihood, epochs=2)
        batches = [
            (X[k : k + batch_size], each_part(lambda part, k=k: part[k : k + batch_size], y))
            for k in range(0, len(X), batch_size)
        ]
        expected.fit(batches, likelihood=likelihood, epochs=2)
        assert state_of(net) == state_of(expected)


@pytest.mark.parametrize(("seed", "found"), [(None, 5), (-1, 5), (True, 5), (print, 5), (np.int64(7), 7)])
def test_a_seed_of_an_iterable_counts_if_it_is_one(seed, found):
    class Batches(list):
        def __init__(self):
            super().__init__(cut(X, LABELS))
            self.seed = seed

    trainer = Trainer(network(), Categorical(3), epochs=1, seed=5)
    trainer.fit(Batches())
    assert trainer.position.seed == trainer.options["seed"] == found


@pytest.mark.parametrize("way", [DDPSequential, FSDPSequential])
def test_ranks_may_have_different_numbers_of_batches(way):
    """Rank 0 has seven batches, rank 1 three: no sample is lost, and both end alike."""

    def train():
        net = way(network(), average=False)
        own = cut(X, LABELS)[:7] if net.rank == 0 else cut(X, LABELS)[7:10]
        trainer = Trainer(net, Categorical(3), epochs=2)
        history = trainer.fit(own, cut(*TEST)[net.rank :: 2])
        assert net.model.schedule.steps == trainer.step == 2 * 7
        return without_times(history)

    first, second = run_threads(train, 2)
    assert first == second
    assert first[0]["train_error"] * 60 == pytest.approx(round(first[0]["train_error"] * 60)), "each counts once"


@pytest.mark.parametrize("way", [DDPSequential, FSDPSequential])
def test_a_loader_for_evaluation_may_be_learnt_from(way):
    """Of 61 samples rank 0 has two batches and rank 1 three: both take three steps, and end alike."""

    def train():
        net = way(network(), average=False)
        loader = ArrayLoader(X, LABELS, 15, net.rank, 2, evaluation=True)
        trainer = Trainer(net, Categorical(3), epochs=2)
        history = trainer.fit(loader)
        assert net.model.schedule.steps == trainer.step == 2 * 3
        return len(loader), without_times(history), b"" if way is FSDPSequential else state_of(net)

    (batches, *first), (more, *second) = run_threads(train, 2)
    assert (batches, more) == (2, 3) and first == second


@pytest.mark.parametrize("way", [DDPSequential, FSDPSequential])
def test_batches_without_samples_are_left_out(way):
    def train():
        net = way(network(), average=False)
        batches = cut(X, LABELS)[4 * net.rank : 4 * net.rank + 4]
        empty = X[:0], LABELS[:0]
        Trainer(net, Categorical(3), epochs=1).fit([*batches[:2], empty, *batches[2:]] if net.rank == 0 else batches)
        return net.model.schedule.steps

    assert run_threads(train, 2) == [4, 4]


def test_what_needs_ranks_in_step_says_so():
    def train(make, **options):
        net = make(network())
        return Trainer(net, Categorical(3), **options).fit(cut(X, LABELS))

    with pytest.raises(ValueError, match="average_last on several ranks needs arrays or a BatchLoader"):
        run_threads(lambda: train(DDPSequential, average_last=0.5), 2)
    every = {"callbacks": [Checkpoints("none", every=2)]}
    with pytest.raises(CallbackError, match="every=2 needs arrays or a BatchLoader: a FSDPSequential is saved by all"):
        run_threads(lambda: train(FSDPSequential, **every), 2)


@pytest.mark.parametrize("options", [{}, {"max_wait": 0.0}])
def test_ranks_that_merge_posteriors_end_alike(options):
    def train():
        net = DDPSequential(network(), every=4, **options)
        history = Trainer(net, epochs=2, batch_size=3).fit((X, LABELS), TEST)
        return without_times(history), state_of(net)

    first, second = run_threads(train, 2)
    assert first == second and first[0][-1]["val_error"] < 0.5


def test_tables_and_several_observations():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    expected, net = network(), network()
    expected.fit(X, LABELS, epochs=1)
    table = pandas.DataFrame(X, index=range(100, 161))
    net.fit(table, pandas.Series(LABELS, index=table.index), epochs=1)
    assert state_of(net) == state_of(expected)
    both = Joint(Categorical(3), Gaussian(0.1))
    history = network(4).fit(X, (LABELS, Y), both, epochs=4, batch_size=6)
    parts = {"train_nll_0", "train_error_0", "train_nll_1", "train_rmse_1"}
    assert without_times(history)[1].keys() == {"epoch", "train_nll"} | parts
    assert history[-1]["train_nll"] < history[0]["train_nll"]
    net, missing = network(4), np.where(np.arange(len(Y)) % 3, Y, np.nan)
    trainer = Trainer(net, both, epochs=1)
    trainer.fit((X, (LABELS, Y)))
    found, (kinds, numbers) = trainer.evaluate((X, (LABELS, missing))), both.predict(net, X).parts
    assert found["error_0"] == pytest.approx(np.mean(kinds.probabilities.argmax(1) != LABELS))
    assert found["rmse_1"] == pytest.approx(np.sqrt(np.nanmean((numbers.mean[:, 0] - missing) ** 2)), rel=1e-5)
    assert found["nll_1"] == pytest.approx(-np.nanmean(numbers.log_prob(missing)), rel=1e-5)
    assert np.isnan(trainer.evaluate((X, (None, Y)))["error_0"])
    one, same = network(4), network(4)
    one.fit(X, (None, Y), both, epochs=1)
    same.fit(X, (np.full(len(X), -1), Y), both, epochs=1)
    assert state_of(one) == state_of(same), "a part that is not observed"


def test_shares_are_learnt():
    shares, net = 1 / (1 + np.exp(-Y)), network(1)
    found = net.fit(X, shares, Bernoulli(), epochs=4, batch_size=6, validation=(X, shares))[-1]
    p = Bernoulli().predict(net, X).probabilities[:, 0]
    assert found["val_nll"] == pytest.approx(-(shares * np.log(p) + (1 - shares) * np.log(1 - p)).mean(), rel=1e-5)
    assert found["val_error"] == pytest.approx(((p > 0.5) != (shares > 0.5)).mean())


def test_limits_of_observations_are_learnt_and_have_no_rmse():
    limits = np.where(Y > 0, -np.inf, Y), Y
    joint, both = Joint(Censored(0.5), Gaussian(0.5)), (limits, Y)
    for likelihood, y in ((Censored(0.5), limits), (Censored(0.5, upper=0), Y), (joint, both)):
        net = network(likelihood.outputs or 1)
        history = net.fit(X, y, likelihood, epochs=4, batch_size=6, validation=(X, y))
        assert history[-1]["val_nll"] < history[0]["val_nll"] and "val_rmse" not in history[0]
        expected = -likelihood.predict(net, X).log_prob(y).mean()
        assert history[-1]["val_nll"] == pytest.approx(expected, rel=1e-5)


def test_a_likelihood_is_chosen_where_only_one_can_be_meant():
    for net, y, kind in ((network(), LABELS, Categorical), (network(1), LABELS > 0, Bernoulli)):
        trainer = Trainer(net, epochs=1)
        trainer.fit((X, y))
        assert isinstance(trainer.likelihood, kind)


@pytest.mark.parametrize(
    ("outputs", "y"), [(1, Y), (1, LABELS), (4, LABELS), (3, LABELS.astype(float)), (3, LABELS + 2)]
)
def test_else_the_message_says_which_to_give(outputs, y):
    with pytest.raises(ValueError, match=rf"which likelihood is meant\? y is {y.dtype} .* {outputs} outputs.*Gaussian"):
        network(outputs).fit(X, y)
    with pytest.raises(ValueError, match="y holds the classes 1 to 3, and classes count from 0: give y - 1"):
        network().fit(X, LABELS + 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda net: net.fit([(X, LABELS)], Categorical(3)), TypeError, r"for batches .* likelihood=Categorical\("),
        (lambda net: net.fit((X, X), LABELS), TypeError, r"one input: join its arrays by np\.column_stack"),
        (lambda net: net.fit(X[:, 0], LABELS), ValueError, r"x has the shape \(61,\), and .* \(samples, 2\)"),
        (lambda net: net.fit(np.where(X[40] == X, np.nan, X), LABELS), ValueError, "first in row 40, column 0; if NaN"),
        (lambda net: net.fit([], likelihood=Categorical(3)), ValueError, "the training data hold no batch"),
        (lambda net: nn.Sequential.load("a file"), TypeError, r"load is called on a network, as net\.load\(...\)"),
    ],
)
def test_natural_mistakes(call, error, message):
    with pytest.raises(error, match=message):
        call(network())


@pytest.mark.parametrize("wrap", [lambda net: net, nn.DDPSequential, nn.FSDPSequential])
@pytest.mark.parametrize("size", [1, 4])
def test_a_memory_goes_through_the_validation_data(wrap, size):
    """As through the training data, from where it was at their end; afterwards it is there again."""
    x = np.random.default_rng(0).normal(size=(33, 1)).astype(np.float32)
    batches = [(x[k : k + size], np.roll(x, 1)[k : k + size]) for k in range(0, 33, size)]
    pytagi_ddp.manual_seed(0)
    norm = [nn.BatchNorm2d(4)] if size > 1 else []  # has another result in training
    net = wrap(nn.Sequential(nn.LSTM(1, 4), *norm, nn.Linear(4, 1)))
    trainer = Trainer(net, Gaussian(0.3), epochs=2)
    history = trainer.fit(batches[:5], batches[5:])
    memory = net.get_lstm_states()[0]
    network = copy.deepcopy(trainer.network) if wrap is not nn.FSDPSequential else trainer.network
    network.eval()
    errors = np.concatenate([network(a)[0] - b[:, 0] for a, b in batches[5:]])
    rmse = np.sqrt(np.mean(np.square(errors)))
    np.testing.assert_allclose([history[-1]["val_rmse"]], rmse, rtol=1e-5)
    if network is not trainer.network:
        assert trainer.network.training and trainer.evaluate(batches[5:])["rmse"] == history[-1]["val_rmse"]
        np.testing.assert_array_equal(net.get_lstm_states()[0], memory)


@pytest.mark.parametrize("epochs", [1, 2, 4])
def test_few_epochs_of_a_linear_model_count_no_evidence_several_times(epochs):
    """A step of one sample that counts fourfold would make variances 0, and leave weights where they are."""
    rng, weights = np.random.default_rng(0), np.arange(1, 7) / 6
    x = rng.normal(size=(60, 6))
    y = x @ weights + 0.05 * rng.normal(size=60)
    pytagi_ddp.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 1))
    net.fit(x, y, Gaussian(0.05), epochs)
    assert np.abs((net[0].mu_w.ravel() - weights) / np.sqrt(net[0].var_w.ravel())).max() < 4


def test_sequences_of_a_network_that_takes_another_number_of_steps():
    x = np.zeros((5, 12), np.float32)
    with pytest.raises(ValueError, match=r"12\), and this network takes one time step .* \(seq_len\)"):
        nn.Sequential(nn.LSTM(1, 4), nn.Linear(4, 1)).fit(x, x[:, 0], Gaussian())
    with pytest.raises(ValueError, match=r"36 values \(36 time steps .* the last step alone give the others NaN, or"):
        nn.Sequential(nn.LSTM(1, 4, seq_len=12), nn.Linear(4, 1)).fit(x, x[:, 0], Gaussian())
    one_of_each = r"each of 60 time steps, got 5 in the shape \(5,\); for the last step alone give the others -1, or"
    with pytest.raises(ValueError, match=one_of_each):
        nn.Sequential(nn.LSTM(1, 4, seq_len=12), nn.Linear(4, 2)).fit(x, x[:, 0].astype(int), Categorical(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"average_last": 1.5}, r"average_last must be in \[0, 1\], got 1.5"),
        ({"forget": 2.0}, "needs evidence=None"),
        ({"likelihood": 0.1}, r"likelihood is one of pytagi_ddp.likelihoods, as Gaussian\(0.1\); got 0.1"),
        ({"likelihood": Gaussian}, r"likelihood is one of pytagi_ddp.likelihoods, as Gaussian\(0.1\); got <class"),
        ({"callbacks": ["log"]}, "callbacks are instances of Callback in a list, got 'log'"),
        ({"callbacks": Progress()}, "callbacks are instances of Callback in a list, got <.*Progress"),
        ({"metrics": ["mae"]}, r"metrics is a dict of functions \(prediction, y\) by their names; got \['mae'\]"),
        ({"metrics": {5: abs}}, "names of metrics are strings, got 5"),
        ({"evidence": 3}, "evidence is None or a dict of count, first, last, .*; got 3"),
        ({"evidence": {"counts": 3}}, "evidence has no option 'counts'; did you mean count?"),
        ({"likelyhood": Gaussian()}, "fit has no option 'likelyhood'; did you mean likelihood?"),
        ({"lr": 0.1}, "fit has no option 'lr'; there are likelihood, epochs, batch_size, .*, validation"),
        ({"evidence": {"count": -1}}, r"count must be in \[0, inf\), got -1"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        network().fit(X, LABELS, **options)


def test_data_and_networks_that_cannot_be():
    with pytest.raises(TypeError, match=r"Trainer takes a network first, .* got int"):
        Trainer(3)
    with pytest.raises(TypeError, match=r"got ImageDataset: make a BatchLoader of it"):
        network().fit(synthetic_images(10, 10)[0])
    for data, what in (([X, LABELS], "ndarray"), ([(X, LABELS, Y, Y)], "tuple of 4"), ([{"x": X}], "dict of 1")):
        with pytest.raises(TypeError, match=rf"\(x, y\) or \(x, y, weight\), got a {what}; data are a tuple \(x, y\)"):
            Trainer(network(), Categorical(3), epochs=1).fit(data)
    for pairs in (list(zip(X[:, 0], Y, strict=True)), list(zip(X, Y, strict=True)), [(0.5, 1.0)]):
        with pytest.raises(TypeError, match=r"got one sample \(x, y\): give all as arrays, as fit\(x, y\)"):
            network(1).fit(pairs, likelihood=Gaussian())
    with pytest.raises(ValueError, match="x holds no samples"):
        network(1).fit([], [], Gaussian())
    with pytest.raises(ValueError, match="x has 61 samples, and y has 60"):
        network().fit(X, LABELS[:60])
    with pytest.raises(ValueError, match=r"is the number 0.04: repeat it for all samples, as by np.full\(61, 0.04\)"):
        network(1).fit(X, (Y, 0.04), Gaussian())
    with pytest.raises(ValueError, match="y has 2: observations of several kinds are a tuple of arrays"):
        network().fit(X, [LABELS, LABELS], likelihood=Joint(Categorical(2), Gaussian()))
    with pytest.raises(ValueError, match=r"inhomogeneous .*: observations of several kinds are a tuple of arrays"):
        network().fit(X, [LABELS, np.stack([Y, Y], 1)], likelihood=Joint(Categorical(2), Gaussian()))
    with pytest.raises(ValueError, match=r"61 exposures for 1 samples.* net.fit have one likelihood for all batches"):
        network(1).fit(X, LABELS, likelihood=Poisson(np.ones(61)))
    with pytest.warns(UserWarning, match="no observation in this epoch"):
        network(1).fit(X, np.nan * Y, likelihood=Gaussian(), epochs=1)
    with pytest.raises(ValueError, match=r"y must be a tuple or list with one entry .*fit\(x, \(labels, numbers\)\)"):
        network().fit(X, LABELS, likelihood=Joint(Categorical(2), Gaussian()))
    with pytest.raises(ValueError, match="average_last needs all parameters on each rank, and a FSDPSequential"):
        run_threads(lambda: Trainer(FSDPSequential(network()), average_last=0.5), 2)
    with pytest.raises(TypeError, match=r"data are a tuple \(x, y\) or \(x, y, weight\) of arrays, .*; got ndarray"):
        network().fit(X, likelihood=Categorical(3))
    with pytest.raises(ValueError, match="a generator can be read once, and there are 2 epochs"):
        network().fit((batch for batch in cut(X, LABELS)), likelihood=Categorical(3), epochs=2)
    with pytest.raises(ValueError, match=r"can be read once, and statistics .* need it again \(not with bn_b"):
        network(norm=True).fit((batch for batch in cut(X, LABELS)), likelihood=Categorical(3), epochs=1)
    images, test = synthetic_images(40, 20)
    renamed = BatchLoader(replace(test, classes=("x", *test.classes[1:])), 20, evaluation=True)
    with pytest.raises(ValueError, match=r"class 0 is '.*' in the training data, and 'x' in the validation data: make"):
        network().fit(BatchLoader(images, 4), likelihood=Categorical(3), validation=renamed)
    own = Trainer(network(), Categorical(3), epochs=2)
    with pytest.raises(ValueError, match="a list_iterator can be read once"):
        own.fit((X, LABELS), iter(cut(*TEST)))
    with pytest.raises(ValueError, match="evaluate needs a likelihood"):
        Trainer(network()).evaluate(TEST)


def test_a_generator_is_read_once():
    options = {"epochs": 1, "likelihood": Categorical(3), "evidence": None}
    for norm, batches in ((False, 40), (True, 0)):
        train, validation = ((batch for batch in cut(*data)) for data in ((X, LABELS), TEST))
        history = network(norm=norm).fit(train, bn_batches=batches, validation=validation, **options)
        assert history[0]["val_nll"] > 0


def test_the_schedule_of_a_stream_stays():
    net, (x, y) = network(1), (X, Y)
    schedule = EvidenceSchedule(net)
    twin = network(1)
    for _ in range(2):
        net.fit(x, y, Gaussian(0.5), epochs=1, batch_size=6)
        twin.fit(x, y, Gaussian(0.5), epochs=1, batch_size=6, evidence=None)
    assert net.schedule is schedule and state_of(net) == state_of(twin)
    net.fit(x, y, Gaussian(0.5), epochs=2, evidence={"count": 1})
    assert net.schedule.epochs == 2


def test_a_network_that_knows_something_is_warned_about():
    net = network(1)
    other = network(1)
    other.load_state_dict({key: (mu, 0.01 * var, *rest) for key, (mu, var, *rest) in net.state_dict().items()})
    with pytest.warns(UserWarning, match=r"the network knows more than its prior.*Pass evidence=None"):
        other.fit(X, Y, Gaussian(0.5), epochs=2)
    other.fit(X, Y, Gaussian(0.5), epochs=2)  # the schedule knows of the first: no warning
    net.fit(X, Y, Gaussian(0.5), epochs=2)
    for setting in ({"var_w": np.full(16, 9.0)}, {"mu_w": np.full(16, 20.0)}):  # a prior of one's own
        own = nn.Sequential(nn.Linear(X.shape[1], 16 // X.shape[1]), nn.Linear(16 // X.shape[1], 1))
        for name, values in setting.items():
            setattr(own[0], name, values)
        with pytest.warns(UserWarning, match="has a prior of its own"):
            own.fit(X, Y, Gaussian(0.5), epochs=2)
    copied = network(1)
    copied.params_from(net)
    copied.fit(X, Y, Gaussian(0.5), epochs=2, evidence=None)
    for layer in copied.layers[:-1]:
        layer.freeze()
    copied[-1].init_weight_bias()
    copied.fit(X, Y, Gaussian(0.5), epochs=2)  # frozen layers are not pulled: no warning
    twin = copy.deepcopy(copied)
    for one in (copied, twin):
        for layer in one.layers[:-1]:
            layer.unfreeze()
    with pytest.warns(UserWarning, match=r"a layer that was frozen knows more than its prior.*Pass evidence=None"):
        copied.fit(X, Y, Gaussian(0.5), epochs=1)
    copied.fit(X, Y, Gaussian(0.5), epochs=1)
    twin.fit(X, Y, Gaussian(0.5), epochs=1, evidence=None)
    for change in (net[0].freeze, net[0].unfreeze):  # it knows the same data
        change()
        net.fit(X, Y, Gaussian(0.5), epochs=2)


def test_few_further_data_are_warned_about():
    """Each sample of a stream counted as a whole epoch, which replaced what was learnt before."""
    learnt = network(1)
    learnt.fit(X, Y, Gaussian(0.5), epochs=2)
    loaded = network(1)
    loaded.params_from(learnt)
    assert advice(loaded, X[:1], Y[:1], Gaussian(0.5)) == []  # a first epoch pulls nothing
    for net in (learnt, loaded):
        (message,) = advice(net, X[:1], Y[:1], Gaussian(0.5))
        assert "is replaced in a few epochs" in message and "evidence=None" in message


def test_a_small_network_learns_numbers_from_small_batches():
    """A linear regression, whose weights are those of least squares; a step of 32 samples would move them too far."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = x @ np.float32([0.5, -1, 0.3]) + rng.normal(0, 0.5, 200).astype(np.float32)
    exact = np.linalg.lstsq(np.c_[x, np.ones(200)], y, rcond=None)[0][:3]
    net = nn.Sequential(nn.Linear(3, 1))
    net.fit(x, y, Gaussian(0.5))
    np.testing.assert_allclose(net[0].mu_w, exact, atol=0.03)
    with pytest.warns(UserWarning, match="a step learns 32 samples, which is too many for a network with 4 parameters"):
        nn.Sequential(nn.Linear(3, 1)).fit(x, y, Gaussian(0.5), epochs=1, batch_size=32)
    nn.Sequential(nn.Linear(3, 1)).fit(x[:2], y[:2], Gaussian(0.5), epochs=1, batch_size=32)  # 2 are not too many
    for outputs, labels, likelihood, size in (
        (1, y, Gaussian(0.5), 4),
        (3, rng.integers(0, 3, 200), Categorical(3), 32),
    ):
        wide = nn.Sequential(nn.Linear(3, 30), nn.ReLU(), nn.Linear(30, outputs))  # 151 parameters with one output
        trainer = Trainer(wide, likelihood, epochs=1)
        trainer.fit((x, labels))
        assert trainer.global_batch == size
        wide[0].freeze()  # 31 parameters learn, or 93
        trainer.fit((x, labels))
        assert trainer.global_batch == (1 if outputs == 1 else size)


def bad(values, value):
    """`values` with a bad one in the middle."""
    values = np.array(values, float)
    values.reshape(len(values), -1)[len(values) // 2, 0] = value
    return values


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y", "value"),
    [
        (Categorical(3), 3, LABELS, 255),
        (HierarchicalCategorical(3), HierarchicalCategorical(3).outputs, LABELS, 3),
        (Bernoulli(), 1, LABELS > 1, 2),
        (Bernoulli("probit"), 1, LABELS > 1, 0.5),
        (Ordinal(3), 1, LABELS, 3),
        (Poisson(), 1, LABELS, -1),
        (NegativeBinomial(2.0), 1, LABELS, 0.5),
        (LogNormal(0.1), 1, LABELS + 1, 0),
        (Gamma(2.0), 1, LABELS + 1, -1),
        (Joint(Gaussian(0.1), Categorical(2)), 3, LABELS > 1, 2),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("in_validation", [False, True])
def test_observations_out_of_range_are_refused_before_the_first_step(likelihood, outputs, y, value, in_validation):
    net = network(outputs)
    before = state_of(net)
    data = [(X, y), (X, bad(y, value))][:: 1 if in_validation else -1]
    if isinstance(likelihood, Joint):
        data = [(x, (Y, labels)) for x, labels in data]
    trainer = Trainer(net, likelihood, epochs=1, batch_size=4)
    with pytest.raises(ValueError, match="^validation: " if in_validation else "^(?!validation)"):
        trainer.fit(*data)
    assert trainer.step == 0 and net.schedule is None and state_of(net) == before


def test_observations_out_of_range_of_several_ranks_are_refused():
    def train(net):
        with pytest.raises(ValueError, match="classes from 0 to 2"):
            Trainer(net, Categorical(3), epochs=1).fit((X, bad(LABELS, 3)))
        return net

    for way in WAYS:
        assert len(on_ranks(way, 2, train)) == 2
