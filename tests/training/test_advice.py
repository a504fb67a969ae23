"""Warnings about data and networks with which a training goes well by its numbers, but learns badly."""

import contextlib
import warnings

import numpy as np
import pytest

import pytagi_ddp
from pytagi_ddp import nn
from pytagi_ddp.likelihoods import Bernoulli, Categorical, Censored, Gaussian, Poisson
from pytagi_ddp.training import Callback, Trainer
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


def test_few_samples_and_a_network_with_a_schedule_need_no_other_scales():
    x = X.copy()
    x[:, 1] += 50
    assert advice(network(1), x[:20], Y[:20], Gaussian(0.1)) == []
    assert len(advice(net := network(1), x, Y, Gaussian(0.1))) == 1
    assert [message for message in advice(net, x, Y, Gaussian(0.1)) if "column" in message] == []


def test_a_constant_a_yes_or_no_and_one_sign_are_not_warned_about():
    rare = (np.arange(len(X)) > 0).astype(float)
    white = -0.8 + 0.01 * X[:, 1]  # a pixel
    for column in (rare, 100 * rare - 1, np.full(len(X), 7.0), np.abs(X[:, 0]), np.arange(len(X)) / len(X), white):
        assert advice(network(1), np.stack([X[:, 0], column], 1), Y, Gaussian(0.1)) == []


class Loader:
    """Batches that can be read again, as those of a DataLoader."""

    def __init__(self, *batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


PIXELS = np.random.default_rng(0).integers(0, 4096, (16, 1, 6, 6)).astype(np.uint16)
OF_PIXELS = np.arange(16) % 2


def convolution() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3, in_width=6, in_height=6, padding=1), nn.ReLU(), nn.Linear(72, 2))


@pytest.mark.parametrize("kind", [list, lambda batches: Loader(*batches), iter])
def test_large_numbers_in_batches_are_warned_about(kind):
    def batches(scale):
        return kind([(PIXELS[k : k + 4] * np.float32(scale), OF_PIXELS[k : k + 4]) for k in range(0, 16, 4)])

    schedule = {"steps_per_epoch": 4}
    (message,) = advice(convolution(), batches(1), None, Categorical(2), evidence=schedule)
    assert message.startswith("numbers in x are about 100 or more")
    assert advice(convolution(), batches(1 / 2048), None, Categorical(2), evidence=schedule) == []
    numbers = [(X[:4], 500 * Y[:4]), (X[4:8], Y[4:8])]
    (message,) = advice(network(1), kind(numbers), None, Gaussian(0.1), batch_size=4, evidence={"steps_per_epoch": 2})
    assert message.startswith("numbers in y are about 100 or more")


def test_large_numbers_to_evaluate_are_warned_about():
    scaled, raw = (PIXELS / 2048, OF_PIXELS), (PIXELS, OF_PIXELS)
    for data in (raw, [raw], Loader(raw)):
        (message,) = advice(convolution(), *scaled, Categorical(2), validation=data)
        assert message.startswith("numbers in x to evaluate are about 100 or more")
    assert advice(convolution(), *scaled, Categorical(2), validation=[scaled]) == []


def test_small_batches_of_standardised_numbers_are_not_warned_about():
    image = np.zeros((1, 1, 6, 6)) + 0.001  # dark
    for x in (np.zeros_like(image), image):
        assert advice(convolution(), [(x, [0]), (x, [1])], None, Categorical(2)) == []
    table = np.zeros((1, 200))
    table[0, 0] = 150
    assert advice(nn.Sequential(nn.Linear(200, 2)), [(table, [0])], None, Categorical(2)) == []
    ids = [(np.array([[300], [400]]), [0, 1])]
    assert advice(nn.Sequential(nn.Embedding(500, 3), nn.Linear(3, 2)), ids, None, Categorical(2)) == []


def test_large_numbers_before_a_block_are_warned_about():
    blocks = (
        lambda layer: nn.LayerBlock(layer, nn.ReLU()),
        lambda layer: nn.Parallel([layer, nn.ReLU()], nn.Conv2d(1, 2, 1, in_width=6, in_height=6)),
        lambda layer: nn.Parallel(None, layer, merge="concat"),
    )
    for block in blocks:
        outputs = 3 if block is blocks[2] else 2
        net = nn.Sequential(block(nn.Conv2d(1, 2, 3, in_width=6, in_height=6, padding=1)), nn.Linear(36 * outputs, 2))
        (message,) = advice(net, PIXELS, OF_PIXELS, Categorical(2))
        assert message.startswith("numbers in x are about 100 or more")
    mixed = nn.Parallel(nn.Linear(2, 3), nn.Embedding(500, 3), split=[2, 1], merge="concat")
    x = np.column_stack([X[:60], np.arange(440, 500)])
    assert advice(nn.Sequential(mixed, nn.Linear(6, 1)), x, Y[:60], Gaussian(0.1)) == []


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


def sine(samples, epochs, activation=nn.ReLU, **options):
    """The warnings of a training of two hidden layers on this many samples of a sine; may be interrupted."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, samples)
    pytagi_ddp.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 50), activation(), nn.Linear(50, 50), activation(), nn.Linear(50, 1))
    with warnings.catch_warnings(record=True) as found, contextlib.suppress(KeyboardInterrupt):
        warnings.simplefilter("always")
        net.fit(x, np.sin(2 * x) + rng.normal(0, 0.1, samples), Gaussian(0.1), epochs=epochs, **options)
    return [str(warning.message) for warning in found]


@pytest.mark.parametrize("activation", [nn.ReLU, nn.MixtureReLU])
def test_a_network_that_learns_nothing_from_few_samples_is_reported(activation):
    (message,) = sine(20, 60, activation)
    assert message.startswith("the network has learnt nothing: its train_nll is ")
    assert "20 samples are few for 2701 parameters: give evidence=None" in message
    assert sine(20, 60, activation, evidence=None) == []
    assert sine(200, 20, activation) == []


class Ends(Callback):
    def __init__(self, epoch, interrupted):
        self._epoch, self._interrupted = epoch, interrupted

    def epoch_end(self, trainer):
        if trainer.epoch == self._epoch:
            if self._interrupted:
                raise KeyboardInterrupt
            trainer.stop()


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize(("epoch", "warned"), [(4, False), (20, True), (21, False)])
def test_a_training_that_ends_in_its_warm_up_is_reported(epoch, interrupted, warned):
    messages = sine(30, 100, callbacks=[Ends(epoch, interrupted)])
    expected = f"the training has ended after {epoch} of 100 epochs, in the warm-up of its EvidenceSchedule"
    assert [message.startswith(expected) for message in messages] == [True] * warned


def smoothed(**options):
    """A network of convolutions that learns a smoothed image, its error, and the warnings of the training."""
    pytagi_ddp.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1, 8, 8)).astype(np.float32)
    y = (x + np.roll(x, 1, 2) + np.roll(x, 1, 3)) / 2 + rng.normal(0, 0.1, x.shape)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, in_width=8, in_height=8), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)
    )
    trainer = Trainer(net, Gaussian(0.1), epochs=4, **options)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trainer.fit((x[:50], y[:50]))
    return trainer.global_batch, trainer.evaluate((x[50:], y[50:]))["rmse"], [str(one.message) for one in found]


def test_a_step_has_at_least_two_images_if_pixels_are_observed():
    batch, error, messages = smoothed()
    assert batch == 2 and error < 0.5 and messages == []
    batch, worse, (message,) = smoothed(batch_size=1)
    assert batch == 1 and worse > 1.2 * error
    assert message.startswith("a step learns 1 sample, in which each pixel is an observation")


def test_classes_of_pixels_are_learnt_from_more_than_one_image():
    net = nn.Sequential(nn.Conv2d(1, 2, 1, in_width=4, in_height=4), nn.Pixels())
    images, labels = X[:32].reshape(4, 1, 4, 4), np.zeros((4, 4, 4), int)
    (message,) = advice(net, images, labels, Categorical(2), batch_size=1)
    assert message.startswith("a step learns 1 sample, in which each pixel is an observation")
    assert advice(net, images, labels, Categorical(2), batch_size=2) == []
