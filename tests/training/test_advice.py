"""Warnings about data and networks with which a training goes well by its numbers, but learns badly."""

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.likelihoods import Bernoulli, Categorical, Censored, Gaussian, Poisson
from tests.training.data import LABELS, X, Y, advice, network


def test_a_drawn_network_is_refused():
    (function,) = network(1).sample()
    with pytest.raises(ValueError, match=r"variance 0, as those of a draw of net.sample\(\)"):
        function.fit(X, Y, Gaussian(0.5), epochs=1)


def test_labels_of_which_one_means_missing_are_warned_about():
    signs = np.where(X[:, 0] > 0, 1, -1)
    (message,) = advice(network(2), X, signs, Categorical(2))
    assert r"for labels -1 and 1 give (y + 1) // 2" in message
    assert advice(network(2), X, (signs + 1) // 2, Categorical(2)) == []
    (message,) = advice(network(), X, LABELS - 1, Categorical(3))
    assert "the class 2 does not occur: if -1 is a class here, give y + 1" in message
    assert advice(network(), X, np.where(X[:, 0] > 1.5, -1, LABELS), Categorical(3)) == []


def test_a_memory_of_earlier_samples_in_random_order_is_warned_about():
    for size in (1, 4):
        net = nn.Sequential(nn.LSTM(X.shape[1], 4), nn.Linear(4, 1))
        messages = advice(net, X[:20], Y[:20], Gaussian(0.1), batch_size=size)
        said = ["random order, and layers of this network remember the samples" in message for message in messages]
        assert said == [True] * (size == 1)


@pytest.mark.parametrize(("in_x", "in_y", "named"), [(200, 1, "x"), (1, 200, "y"), (200, 300, "x and y"), (10, 10, "")])
def test_large_numbers_are_warned_about(in_x, in_y, named):
    found = advice(network(1), in_x * X, in_y * Y, Gaussian(0.1 * in_y))
    assert [message.split(" are ")[0] for message in found] == ([f"numbers in {named}"] if named else [])


@pytest.mark.parametrize(("in_x", "in_y", "named"), [(1e-4, 1, ["x"]), (1, 1e-4, ["y"]), (1e-9, 1e3, ["y", "x"])])
def test_small_numbers_are_warned_about(in_x, in_y, named):
    found = advice(network(1), in_x * X, in_y * Y, Gaussian(0.1 * in_y))
    assert [message.split(" are ")[0] for message in found] == [f"numbers in {name}" for name in named]


def test_a_small_column_and_zeros_are_not_warned_about():
    x = X.copy()
    x[:, 0] *= 1e-6
    assert advice(network(1), x, np.zeros_like(Y), Gaussian(0.1)) == []


@pytest.mark.parametrize(("scale", "mean", "other"), [(15, 50, 1.0), (0.1, 0.5, 0.0), (1, -4, 1.0)])
def test_numbers_that_are_not_around_0_are_warned_about(scale, mean, other):
    x = other * X
    x[:, 1] = scale * (X[:, 1] - X[:, 1].mean()) / X[:, 1].std() + mean
    (message,) = advice(network(1), x, Y, Gaussian(0.1))
    assert message.startswith(f"column 1 of x is about {mean}, give or take {scale}")


def test_a_constant_a_yes_or_no_and_one_sign_are_not_warned_about():
    rare = (np.arange(len(X)) > 0).astype(float)
    white = -0.8 + 0.01 * X[:, 1]  # a pixel
    for column in (rare, 100 * rare - 1, np.full(len(X), 7.0), np.abs(X[:, 0]), np.arange(len(X)) / len(X), white):
        assert advice(network(1), np.stack([X[:, 0], column], 1), Y, Gaussian(0.1)) == []


def test_large_numbers_that_are_no_scale_are_not():
    assert advice(nn.Sequential(nn.Embedding(500, 3), nn.Linear(3, 1)), np.arange(440, 500), Y[:60], Gaussian()) == []
    assert advice(network(1), X, 1000 * np.abs(Y).round(), Poisson()) == []


def test_large_counts_need_an_exposure():
    counts = np.full(len(X), 5000)
    (message,) = advice(network(1), X, counts, Poisson())
    assert message.endswith("give Poisson exposure=5000, or error bars will be too small")
    assert advice(network(1), X, counts, Poisson(2500)) == []
    (message,) = advice(network(1), X, counts * np.nan, Poisson())
    assert message.startswith("there was no observation in this epoch")


def test_limits_without_a_limit_are_warned_about():
    (message,) = advice(network(1), X, Y, Censored(0.1))
    assert message.startswith("Censored without limits")
    assert advice(network(1), X, Y, Censored(0.1, lower=0)) == []


def test_a_link_before_a_likelihood_that_has_it_is_warned_about():
    for last, outputs, likelihood in ((nn.Remax(), 3, Categorical(3)), (nn.Sigmoid(), 1, Bernoulli())):
        (message,) = advice(nn.Sequential(nn.Linear(2, outputs), last), X, LABELS > 0, likelihood)
        assert f"takes linear outputs: leave out {type(last).__name__}" in message
