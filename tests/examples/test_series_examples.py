"""The examples of time series, images and tokens that make their own data, on small settings."""

import importlib.util

import numpy as np
import pytest

from examples import autoencoder, forecasting, smoothing, transformer
from examples.series import make_series, observe_one_by_one, score
from pytagi_ddp import manual_seed, nn

pytestmark = pytest.mark.slow


@pytest.fixture
def picture(tmp_path):
    """A name for a picture, which the example has to have drawn where matplotlib is there."""
    path = tmp_path / "picture.png"
    yield str(path)
    if importlib.util.find_spec("matplotlib"):
        assert path.read_bytes()[1:4] == b"PNG"


def test_series_are_standardised_and_change():
    series, same = make_series(480), make_series(480, seed=1)
    assert abs(series.signal[:240].mean()) < 1e-5 and abs(series.signal[:240].std() - 1) < 1e-5
    np.testing.assert_array_equal(series.signal, same.signal)
    assert abs(np.std(series.y - series.signal) / series.noise - 1) < 0.1
    assert np.abs(make_series(480, change_at=300).signal - series.signal)[300:].mean() > 0.3


def test_scores_are_those_of_the_normal_distribution():
    y = np.array([0.0, np.nan, 3.0])
    found = score(np.zeros(3), np.full(3, 4.0), y)
    assert found.rmse == pytest.approx(np.sqrt(4.5)) and found.coverage == 1
    assert found.log_likelihood == pytest.approx(np.mean(-0.5 * np.log(8 * np.pi) - np.array([0, 9]) / 8))


def test_weather_is_correlated_over_time():
    weather, calm = make_series(4800, noise=0, weather=0.2).signal, make_series(4800, noise=0, weather=1e-9).signal
    x = weather - np.polyval(np.polyfit(calm, weather, 1), calm)  # both are standardised
    assert np.corrcoef(x[1:], x[:-1])[0, 1] == pytest.approx(0.9, abs=0.03)


def test_forecasting_learns_and_knows_how_uncertain_it_is(picture, capsys):
    direct = ["--direct"] if importlib.util.find_spec("sklearn") else []
    found = forecasting.main(
        ["--steps", "700", "--epochs", "3", "--moments", "--paths", "20", "--plot", picture, *direct]
    )
    lines = capsys.readouterr().out.splitlines()
    errors = [float(line.split()[-1]) for line in lines if line.startswith("epoch")]
    assert len(errors) == 3 and errors[2] < 0.7 * errors[0]
    assert found.rmse < 1 and found.coverage > 0.8
    assert any(line.startswith("with variances that are fed back: RMSE") for line in lines)
    at_once = [float(line.split()[5].rstrip(",")) for line in lines if line.startswith("all steps at once: RMSE")]
    assert len(at_once) == len(direct) and all(rmse < 1 for rmse in at_once)
    with pytest.raises(SystemExit):
        forecasting.main(["--steps", "312"])


def test_the_smoother_is_nearer_to_the_signal_than_the_filter(picture, capsys):
    scores = smoothing.main(["--seasons", "8", "--passes", "25", "--plot", picture])
    for before, after in scores.values():
        assert after.rmse < 0.97 * before.rmse and after.log_likelihood > -2
    assert smoothing.hide(480, 4, 0).sum() == 38 * 4 and not smoothing.hide(480, 4, 0)[:24].any()
    assert "straight lines" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        smoothing.main(["--gap", "12"])


def test_a_network_learns_a_series_while_it_runs():
    """`examples/gallery/plot_online.py` shows it; the season changes in the middle, and at the end a day is missing."""
    manual_seed(0)
    y = make_series(1500, seed=0, change_at=750).y
    y[1404:1428] = np.nan
    mu, var = observe_one_by_one(nn.Sequential(nn.LSTM(1, 40), nn.LSTM(40, 40), nn.Linear(40, 1)), y, 0.3)
    errors = [score(mu[part], var[part], y[part]).rmse for part in (slice(150), slice(600, 750), slice(750, 900))]
    assert errors[1] < 0.7 * errors[0] and errors[2] > errors[1] and np.isfinite([mu, var]).all()


def test_the_autoencoder_draws_images_again(picture):
    images = autoencoder.make_images(100, 1)
    error = autoencoder.main(["--images", "600", "--epochs", "3", "--plot", picture])
    assert error < 0.85 * images.std()


def test_images_that_are_made_up():
    manual_seed(0)
    images, kinds = autoencoder.make_shapes(400, 0)
    np.testing.assert_array_equal(autoencoder.make_images(400, 0), images)
    area, width = ([np.mean(x[kinds == k]) for k in range(3)] for x in (images, images.max(2)))
    assert area[0] < 0.9 * area[1] and width[2] > 1.1 * width[1]  # disc and square, cross and square
    encoder, decoder = autoencoder.make_networks(4)  # of a prior: what has learnt a little draws all images alike
    ends, _ = decoder.predict(encoder.predict(images[:2])[0])
    way, way_var = autoencoder.between(encoder, decoder, images[:2], 5)
    assert way.shape == way_var.shape == (5, 1, 16, 16)
    far = np.abs(ends[1] - ends[0]).max()
    assert np.abs(way[[0, 4]] - ends).max() < 1e-4 * far and np.abs(way[2] - ends).max() > 0.1 * far
    first, again = (autoencoder.generate(encoder, decoder, images, 3, seed=1) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert np.ptp(first[0], axis=0).max() > 0.1 * far
    assert list(autoencoder.train(encoder, decoder, images[:32], epochs=2)) == [1, 2]


def test_the_transformer_repeats_tokens_that_it_saw_and_doubts_those_that_it_did_not(picture):
    x, labels = transformer.make_sequences(5, 6, 4, np.random.default_rng(0))
    np.testing.assert_array_equal(labels[:, transformer.LAG :], x[:, : -transformer.LAG])
    accuracy, surest = transformer.main(["--batches", "200", "--plot", picture])
    assert accuracy > 0.98 and surest < 0.6
