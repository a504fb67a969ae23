"""Published forecasting programs with this library and with pytagi: `python -m benchmarks.quality series`.

pytagi's example (`examples/time_series_forecasting.py` of github.com/lhnguyen102/cuTAGI) and that of Canari
(`examples/toy_forecast.py` of github.com/Bayes-Works/canari, for pycanari 0.2.5), the same program and the same metric
for both libraries. Their series are formulas, so nothing is downloaded. Each run that is done is a line of JSON. A run
uses one library, `--library`: start it again, in an environment that has the other one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.quality.done import Runs, of, parser_of, with_error
from benchmarks.report import table

OWN = "pytagi_ddp"
LIBRARIES = (OWN, "pytagi")
DAY, LEARNT = 24, 172  # hours; Canari's program learns so many, the other 44 are its validation set
Scores = dict[str, float]
DIGITS = {"mse": 5, "log_likelihood": 2}  # in the table


def daily_sine() -> tuple[np.ndarray, np.ndarray]:
    """pytagi's series: the 924 values of data/toy_time_series/x_train_sin_data.csv and the 232 of x_test_sin_data.csv.

    One a day, with a period of 365.24 days, from 0 to 10 and without noise.
    """
    y = 5 + 5 * np.sin(2 * np.pi * (np.arange(924 + 232) + 0.24) / 365.24)
    return y[:924], y[924:]


def hourly_sine() -> np.ndarray:
    """Canari's series: the 216 values of data/toy_time_series/sine.csv, and the line that the program adds."""
    k = np.arange(216)
    return np.round(-np.sin(2 * np.pi * k / DAY), 2) + np.linspace(0, 2, len(k))


def one_by_one(library: str, seed: int, epochs: int = 10, smallest: float = 0.3) -> Scores:
    """pytagi's program: each value from the one before, and from what two LSTMs remember, on from epoch to epoch.

    smallest: lower bound of the standard deviation of an observation, after standardisation.
    """
    lib, nn, metric = (import_module(f"{library}{name}") for name in ("", ".nn", ".metric"))
    lib.manual_seed(seed)
    train, test = daily_sine()
    mean, std = train.mean(), train.std()
    x, x_test = (((y - mean) / std).astype(np.float32).reshape(-1, 1) for y in (train, test))
    net = nn.Sequential(nn.LSTM(1, 8, 1), nn.LSTM(8, 8, 1), nn.Linear(8, 1))
    net.set_threads(1)
    net.input_state_update = True
    updater, sigma_v = nn.OutputUpdater(net.device), 1.0
    for epoch in range(epochs):
        sigma_v = lib.exponential_scheduler(sigma_v, smallest, 0.99, epoch)
        var_y = np.full(1, sigma_v**2, np.float32)
        for before, now in pairwise(x):
            net(before)
            updater.update(net.output_z_buffer, now, var_y, net.input_delta_z_buffer)
            net.backward()
            net.step()
    mu, var = np.concatenate([np.reshape(net(before), (2, 1)) for before in x_test[:-1]], 1)
    return scores(metric, mean + std * mu, std * np.sqrt(var + sigma_v**2), test[1:])


def by_windows(library: str, seed: int, epochs: int = 10) -> Scores:
    """A network of the same size that reads `DAY` values for each prediction; its noise goes from 1 to 0.01.

    Deltas go back through the window, which pytagi 0.2.1 does not do: of this library only.
    """
    lib, nn, metric = (import_module(f"{library}{name}") for name in ("", ".nn", ".metric"))
    lib.manual_seed(seed)
    train, test = daily_sine()
    mean, std = train.mean(), train.std()
    y = ((np.concatenate([train, test]) - mean) / std).astype(np.float32)
    x, y, learnt = np.lib.stride_tricks.sliding_window_view(y[:-1], DAY), y[DAY:], len(train) - DAY
    net = nn.Sequential(nn.LSTM(1, 8, seq_len=DAY), nn.LSTM(8, 8, last_timestep=True, seq_len=DAY), nn.Linear(8, 1))
    net.set_threads(1)
    updater, generator = nn.OutputUpdater(net.device), np.random.default_rng(seed)
    for epoch in range(epochs):
        sigma_v = 0.01 ** (epoch / max(epochs - 1, 1))
        for k in generator.permutation(learnt):
            net(x[k])
            updater.update(net.output_z_buffer, y[k : k + 1], sigma_v**2, net.input_delta_z_buffer)
            net.backward()
            net.step()
    mu, var = (moments.reshape(-1) for moments in net.predict(x[learnt + 1 :]))
    return scores(metric, mean + std * mu, std * np.sqrt(var + sigma_v**2), test[1:])


def with_canari(library: str, seed: int, epochs: int = 50) -> Scores:
    """Canari's program: a local trend, an LSTM with a smoother and white noise; forecasts of 44 hours.

    The epoch with the smallest error of the forecasts counts, as there.
    """
    pandas = import_module("pandas")
    if library == OWN:
        import_module("pytagi_ddp.as_pytagi")  # from here on `import pytagi` gives this library
    canari, component = import_module("canari"), import_module("canari.component")
    metric, normalizer = import_module(f"{library}.metric"), import_module(library).Normalizer
    y = hourly_sine()
    data = canari.DataProcess(
        data=pandas.DataFrame({"values": y}, pandas.date_range("2000-01-03", periods=len(y), freq="h")),
        train_split=0.8,
        validation_split=0.2,
        output_col=[0],
    )
    train, validation, *_ = data.get_splits()
    network = component.LstmNetwork(
        look_back_len=19,
        num_features=1,
        infer_len=3 * DAY,
        num_layer=1,
        num_hidden_unit=50,
        device="cpu",
        manual_seed=seed,
    )
    model = canari.Model(component.LocalTrend(), network, component.WhiteNoise(std_error=0.0032322250444898116))
    model.auto_initialize_baseline_states(train["y"][:DAY])
    mean, std = data.scale_const_mean[[0]], data.scale_const_std[[0]]
    best: Scores = {}
    for epoch in range(epochs):
        mu, sigma, _ = model.lstm_train(train_data=train, validation_data=validation)
        now = scores(
            metric, normalizer.unstandardize(mu, mean, std), normalizer.unstandardize_std(sigma, std), y[LEARNT:]
        )
        model.early_stopping(evaluate_metric=now["mse"], current_epoch=epoch, max_epoch=epochs)
        if epoch == model.optimal_epoch:
            best = now | {"epoch": epoch}
        if model.stop_training:
            break
    return best


def scores(metric: Any, mu: np.ndarray, sigma: np.ndarray, y: np.ndarray) -> Scores:
    """MSE and mean log-likelihood of observations y given N(mu, sigma^2), by the library's own functions."""
    return {"mse": float(metric.mse(mu, y)), "log_likelihood": float(metric.log_likelihood(mu, y, sigma))}


JOBS: dict[str, Callable[[str, int], Scores]] = {
    "pytagi's": one_by_one,
    "pytagi's, 50 epochs, noise to 0.1": partial(one_by_one, epochs=50, smallest=0.1),
    "windows of 24 values, noise to 0.01": by_windows,
    "Canari's": with_canari,
}
ROWS = [(job, library) for job in JOBS for library in LIBRARIES if library == OWN or JOBS[job] is not by_windows]


def persistence() -> Scores:
    """Of pytagi's series: N(the value before, the mean square of a day's change in what is learnt)."""
    train, test = daily_sine()
    error, var = np.diff(test), np.mean(np.diff(train) ** 2)
    density = -0.5 * (np.log(2 * np.pi * var) + error**2 / var)
    return {"mse": float(np.mean(error**2)), "log_likelihood": float(density.mean())}


def report(done: list[dict[str, Any]]) -> str:
    """Means over seeds with their standard errors; which rows have no runs."""
    none = persistence()
    rows = [["the value before", "-", "-", *(with_error([none[key]], digits) for key, digits in DIGITS.items()), "-"]]
    for job, library in ROWS:
        if ones := of(done, job=job, library=library):
            means = [with_error([one[key] for one in ones], digits) for key, digits in DIGITS.items()]
            seconds = statistics.median(one["cpu_seconds"] for one in ones)
            rows.append([job, library, str(len(ones)), *means, f"{seconds:.2f}"])
    absent = [f"{job} with {library}" for job, library in ROWS if not of(done, job=job, library=library)]
    left_out = f"\n\nLeft out, as there are no runs: {'; '.join(absent)}." if absent else ""
    return table(("program", "library", "seeds", "MSE", "log-likelihood", "s"), rows) + left_out


def main(argv: list[str] | None = None) -> None:
    parser = parser_of("quality series", __doc__)
    parser.add_argument("--library", choices=LIBRARIES, default=OWN, help="what the programs import (this library)")
    parser.add_argument("--job", action="append", choices=JOBS, help="may be repeated; all, if left out")
    parser.add_argument("--seed", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    args = parser.parse_args(argv)
    done = Runs(args.results)
    for job, library in [] if args.report else ROWS:
        if library != args.library or job not in (args.job or JOBS):
            continue
        for seed in args.seed:
            one = {"job": job, "library": library, "seed": seed}
            if of(done, **one):
                continue
            start = time.process_time()
            try:
                found = JOBS[job](library, seed)
            except ImportError as error:
                print(f"{job}, {library}: left out: {error}")
                break
            text = f"MSE {found['mse']:.4f}, log-likelihood {found['log_likelihood']:.2f}"
            one |= {"cpu_seconds": time.process_time() - start} | found
            done.add(one, f"{job}, {library}, seed {seed}: {text}")
    print("\n" + report(done))
