"""Forecast while learning, one sample at a time: `python -m examples.online_forecasting --plot online.png`.

The LSTM has a window of one value and remembers what came before. At each time step it predicts the next value, sees
it, and learns from it: nothing is seen twice, and nothing is stored but the network. In the middle the season changes
and the network has to learn the new one; later observations are missing, and predictions take their place as inputs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

import pytagi_ddp
from examples.figures import draw
from examples.option_types import at_least, natural, picture, positive_float
from examples.series import PERIOD, make_series, observe_one_by_one, score
from pytagi_ddp import plot
from pytagi_ddp.nn import LSTM, Linear, Sequential

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def make_network(units: int = 40) -> Sequential:
    """The value now to the next one."""
    return Sequential(LSTM(1, units), LSTM(units, units), Linear(units, 1))


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Runs through a series and returns the root mean square errors of its parts."""
    parser = argparse.ArgumentParser("online_forecasting", description=__doc__.partition(":")[0])
    parser.add_argument("--steps", type=at_least(8 * PERIOD), default=4800, help="time steps of the series (4800)")
    parser.add_argument(
        "--sigma-v", type=positive_float, default=0.3, help="standard deviation of an observation (0.3)"
    )
    parser.add_argument("--seed", type=natural, default=0, help="of everything that is drawn (0)")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="draw the predictions")
    args = parser.parse_args(argv)
    pytagi_ddp.manual_seed(args.seed)
    n = args.steps
    series = make_series(n, seed=args.seed, change_at=n // 2)
    y = series.y.copy()
    gap = slice(n - 4 * PERIOD, n - 3 * PERIOD)
    y[gap] = np.nan
    net = make_network()
    mu, var = observe_one_by_one(net, y, args.sigma_v)
    var += np.float32(args.sigma_v**2)  # of an observation, not only of the signal
    parts = {
        "first tenth": slice(0, n // 10),
        "before the change": slice(2 * n // 5, n // 2),
        "after it": slice(n // 2, n // 2 + n // 10),
        "at the end": slice(9 * n // 10, n),
        "where observations are missing": gap,
    }
    scores = {name: score(mu[part], var[part], series.y[part]) for name, part in parts.items()}
    for name, found in scores.items():
        print(f"{name}: {found}")

    def paint(figure: Figure) -> None:
        for k, part in enumerate((slice(n // 2 - 3 * PERIOD, n // 2 + 4 * PERIOD), slice(n - 7 * PERIOD, n))):
            axes = figure.add_subplot(2, 1, k + 1, xlabel="time step", ylabel="value")
            t = np.arange(n)[part]
            axes.plot(t, y[part], ".", color="0.4", markersize=3, label="observed")
            plot.band(axes, t, mu[part], var[part], "predicted before, two standard deviations", "C0")
            axes.legend(loc="lower left", framealpha=0.9)

    draw(args.plot, paint, (9, 6))
    return [found.rmse for found in scores.values()]


if __name__ == "__main__":
    main()
