"""
One sample at a time
====================

How a network learns a series while it runs, without storing it: each value is predicted, observed, learnt and then
dropped. In the middle of the series the season changes, and near its end the observations of a day are missing.
"""

# %%
# An LSTM of one time step carries its memory from sample to sample. The input of a step is the value before. If that is
# missing, its prediction takes its place, with its variance. ``observe_one_by_one`` in ``examples/series.py`` has the
# loop, which takes about 70 microseconds for a sample.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from examples.series import PERIOD, make_series, observe_one_by_one, score
from pytagi_ddp import plot
from pytagi_ddp.nn import LSTM, Linear, Sequential

n, sigma_v = 4800, 0.3
series = make_series(n, seed=0, change_at=n // 2)
y = series.y.copy()
gap = slice(n - 4 * PERIOD, n - 3 * PERIOD)
y[gap] = np.nan

pytagi_ddp.manual_seed(0)
net = Sequential(LSTM(1, 40), LSTM(40, 40), Linear(40, 1))
mu, var = observe_one_by_one(net, y, sigma_v)
var += np.float32(sigma_v**2)  # of an observation, not only of the signal

# %%
# From top to bottom: the error of each day while the network learns; the days around the change; the days around the
# gap.

t = np.arange(n)
figure, (learning, change, end) = plt.subplots(3, 1, figsize=(9, 8), layout="constrained")
error = np.sqrt(np.nanmean(((mu - series.y) ** 2).reshape(-1, PERIOD), 1))
learning.plot(t[::PERIOD] / PERIOD, error, label="one step ahead")
learning.axvline(n / 2 / PERIOD, color="0.7", linestyle="--", label="another season")
learning.set(xlabel="day", ylabel="RMSE of a day", ylim=(0, None))
learning.legend(loc="upper center", fontsize="small")
for axes, part in ((change, slice(n // 2 - 3 * PERIOD, n // 2 + 4 * PERIOD)), (end, slice(n - 7 * PERIOD, n))):
    axes.plot(t[part] / PERIOD, y[part], ".", color="0.4", markersize=3, label="observed")
    plot.band(axes, t[part] / PERIOD, mu[part], var[part], "predicted before, two standard deviations", "C0")
    axes.set(xlabel="day", ylabel="value", ylim=(-4, 2.5))
    axes.legend(loc="lower left", ncols=2, fontsize="small")
change.axvline(n / 2 / PERIOD, color="0.7", linestyle="--")
end.plot(t[gap] / PERIOD, series.y[gap], "x", color="C3", markersize=3, label="missing")
end.legend(loc="lower left", ncols=3, fontsize="small")
plt.show()

# %%
# The network needs 25 days to learn the first season. It follows the other one from the first day on, and after about
# ten days its error is as small as before. In the gap it is too sure: a prediction that is fed back as an input is
# taken as evidence, and nothing corrects the network when it gets out of step.

parts = {
    "first tenth": slice(n // 10),
    "before the change": slice(2 * n // 5, n // 2),
    "first three days after it": slice(n // 2, n // 2 + 3 * PERIOD),
    "last tenth": slice(9 * n // 10, n),
    "missing": gap,
}
for name, part in parts.items():
    print(f"{name}: {score(mu[part], var[part], series.y[part])}")
