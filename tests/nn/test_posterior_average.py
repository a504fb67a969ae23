"""The average of posteriors: its moments, what it leaves as it was, and what it refuses."""

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.distributed.run_threads import run_threads
from pytagi_ddp.nn.run.rebuild import change_storage
from tests.battery.example import observe, train
from tests.learning import backpropagate


def network(seed: int = 3) -> nn.Sequential:
    manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm2d(5), nn.ReLU(), nn.Linear(5, 2))


def trained(net: nn.Sequential, average: nn.PosteriorAverage, steps: int) -> np.ndarray:
    """The posteriors that the average was given, (steps, 2, P), in float64."""
    posteriors = []
    for step in range(steps):
        train(net, 6, seed=step)
        average.update()
        posteriors.append(net.arena.theta.astype(np.float64))
    return np.array(posteriors)


def mixture(posteriors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Means and variances of a mixture of Gaussians."""
    w = weights[:, None]
    means, variances = posteriors.swapaxes(0, 1)
    mean = (w * means).sum(0)
    return np.array([mean, (w * (variances + (means - mean) ** 2)).sum(0)])


@pytest.mark.parametrize("decay", [None, 0, 0.6])
def test_moments_are_those_of_the_mixture(decay):
    net = network()
    average = nn.PosteriorAverage(net, decay)
    n = 7
    posteriors = trained(net, average, n)
    weights = np.zeros(n)
    for k in range(n):
        w = 1 / (k + 1) if decay is None else max(1 / (k + 1), 1 - decay)
        weights *= 1 - w
        weights[k] = w
    if decay is None:
        np.testing.assert_allclose(weights, 1 / n)
    expected = mixture(posteriors, weights)
    assert average.n_averaged == n
    with average.average_parameters():
        np.testing.assert_allclose(net.arena.theta, expected, 1e-5, 1e-7)
    state = average.state_dict()
    np.testing.assert_allclose([state["mean"], state["var"]], expected, 1e-5, 1e-7)


def test_everything_is_as_before_outside():
    net, other = network(), network()
    average = nn.PosteriorAverage(net)
    x = np.random.default_rng(1).standard_normal((9, 4), np.float32)
    for k in range(4):
        for each in (net, other):
            train(each, 6, seed=k)
        average.update()
        if k == 2:
            before = net.predict(x)
            with pytest.raises(ZeroDivisionError), average.average_parameters():
                net.update_bn([x])
                inside = net.predict(x)
                raise ZeroDivisionError
            assert np.abs(inside[0] - before[0]).max() > 1e-4
            np.testing.assert_array_equal(net.predict(x), before)
    np.testing.assert_array_equal(net.arena.theta, other.arena.theta)
    np.testing.assert_array_equal(net.arena.statistics, other.arena.statistics)


def test_it_goes_on_from_a_state():
    net = network()
    one, other = nn.PosteriorAverage(net, 0.8), nn.PosteriorAverage(net, 0.8)
    other.load_state_dict(other.state_dict())
    assert other.n_averaged == 0
    trained(net, one, 3)
    other.load_state_dict(one.state_dict())
    train(net, 6, seed=9)
    one.update()
    other.update()
    assert one.state_dict().keys() == other.state_dict().keys()
    for value, same in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        np.testing.assert_array_equal(value, same)
    one.reset()
    one.update()
    np.testing.assert_array_equal([one.state_dict()["mean"], one.state_dict()["var"]], net.arena.theta)


def test_refusals():
    net = network()
    average = nn.PosteriorAverage(net)
    with pytest.raises(RuntimeError, match="before update"), average.average_parameters():
        pass
    average.update()
    with average.average_parameters():
        with pytest.raises(RuntimeError, match="no posterior"):
            average.update()
        with pytest.raises(RuntimeError, match="inside another"), average.average_parameters():
            pass
    observe(net, 6)
    with pytest.raises(RuntimeError, match="call step"), average.average_parameters():
        pass
    for decay in (-0.1, 1, np.nan, "0.9"):
        with pytest.raises((TypeError, ValueError), match="decay"):
            nn.PosteriorAverage(net, decay)
    with pytest.raises(TypeError, match="its model"):
        nn.PosteriorAverage(nn.DDPSequential(network(), nn.DDPConfig(backend="serial")))
    with pytest.raises(ValueError, match="shards"):
        nn.PosteriorAverage(nn.FSDPSequential(network(), nn.DDPConfig(backend="serial")).model)
    state = average.state_dict()
    short = {"mean": state["mean"][1:], "var": state["var"][1:]}
    for change, words in (
        (short, "46 means and 46 variances for a network of 47"),
        ({"var": state["var"][1:]}, "47 means and 46 variances"),
        ({"var": -state["var"]}, "negative"),
        ({"mean": state["mean"] * np.nan}, "finite"),
        ({"n_averaged": -1}, "of -1 posteriors"),
    ):
        with pytest.raises(ValueError, match=words):
            average.load_state_dict(state | change)


def learn(ddp: nn.DDPSequential, seed: int, step: bool = True) -> None:
    rng = np.random.default_rng([seed, ddp.rank])
    backpropagate(ddp, rng.standard_normal((6, 4), np.float32), rng.standard_normal(12, np.float32), 0.3)
    if step:
        ddp.step()


INSIDE = {
    "a pass": lambda ddp: ddp(np.full((6, 4), 50, np.float32)),
    "deltas": lambda ddp: learn(ddp, 3, step=False),
    "a step": lambda ddp: learn(ddp, 3),
    "other parameters": lambda ddp: ddp.model.load_state_dict(network(seed=7).state_dict()),
    "another memory": lambda ddp: change_storage(ddp.model, type(ddp.model.arena)),  # as on another device
}


@pytest.mark.parametrize("what", INSIDE)
def test_what_is_done_inside_is_undone(what):
    ddps = [nn.DDPSequential(network(), nn.DDPConfig(backend="serial")) for _ in range(2)]
    for ddp in ddps:
        average = nn.PosteriorAverage(ddp.model)
        learn(ddp, 1)
        average.update()
        learn(ddp, 2)
        if ddp is ddps[0]:
            with average.average_parameters():
                INSIDE[what](ddp)
        learn(ddp, 4)
    one, other = (ddp.model.arena for ddp in ddps)
    np.testing.assert_array_equal(one.theta, other.theta)
    np.testing.assert_array_equal(one.statistics, other.statistics)


def test_it_goes_through_a_file_of_arrays(tmp_path):
    net = network()
    average = nn.PosteriorAverage(net, 0.5)
    trained(net, average, 3)
    np.savez(tmp_path / "average.npz", **average.state_dict())
    other = nn.PosteriorAverage(net, 0.5)
    other.load_state_dict(np.load(tmp_path / "average.npz"))
    assert other.n_averaged == 3
    np.testing.assert_array_equal(other.theta, average.theta)


def learn_on_ranks() -> list:
    """The average and the parameters of a rank, and how often the average was refused between merges."""
    ddp = nn.DDPSequential(network(), average=False, every=2)
    average, refused = nn.PosteriorAverage(ddp.model), 0
    for k in range(4):
        learn(ddp, k)
        if k % 2:
            average.update()
            with average.average_parameters():
                ddp.predict(np.ones((2, 4)))
        elif average.n_averaged:
            with pytest.raises(RuntimeError, match="merge"), average.average_parameters():
                pass
            with pytest.raises(RuntimeError, match="merge"):
                average.update()
            refused += 1
    return [average.state_dict()["mean"], ddp.model.arena.theta.copy(), refused]


def test_ranks_have_the_same_average():
    results = run_threads(learn_on_ranks, 2)
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)
    assert results[0][2] == 1
