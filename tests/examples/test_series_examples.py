"""The examples of time series and tokens that make their own data, on small settings."""

import importlib.util

import numpy as np
import pytest

from examples import forecasting, transformer
from examples.forecasting import make_series, score

pytestmark = pytest.mark.slow


@pytest.fixture
def picture(tmp_path):
    """A name for a picture, which the example has to have drawn where matplotlib is there."""
    path = tmp_path / "picture.png"
    yield str(path)
    if importlib.util.find_spec("matplotlib"):
        assert path.read_bytes()[1:4] == b"PNG"


def test_series_are_standardised():
    series, same = make_series(480), make_series(480, seed=1)
    assert abs(series.signal[:240].mean()) < 1e-5 and abs(series.signal[:240].std() - 1) < 1e-5
    np.testing.assert_array_equal(series.signal, same.signal)
    assert abs(np.std(series.y - series.signal) / series.noise - 1) < 0.1


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


def test_the_transformer_repeats_tokens_that_it_saw_and_doubts_those_that_it_did_not(picture):
    x, labels = transformer.make_sequences(5, 6, 4, np.random.default_rng(0))
    np.testing.assert_array_equal(labels[:, transformer.LAG :], x[:, : -transformer.LAG])
    accuracy, surest = transformer.main(["--batches", "200", "--plot", picture])
    assert accuracy > 0.98 and surest < 0.6
