"""
One sample at a time
====================

A forecast that learns while it runs: each value is predicted, seen, learnt, and forgotten. In the middle the season
changes, and later a day of observations is missing.
"""

# %%
# An LSTM of one time step carries its memory from sample to sample; nothing is stored but the network. Where an
# observation is missing, the prediction takes its place as the next input, with its variance. The loop is that of
# ``observe_one_by_one`` in ``examples/series.py``: about 70 microseconds for a sample.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from examples.online_forecasting import make_network
from examples.series import PERIOD, make_series, observe_one_by_one, score
from pytagi_ddp import plot

n, sigma_v = 4800, 0.3
series = make_series(n, seed=0, change_at=n // 2)
y = series.y.copy()
gap = slice(n - 4 * PERIOD, n - 3 * PERIOD)
y[gap] = np.nan

pytagi_ddp.manual_seed(0)
net = make_network()
mu, var = observe_one_by_one(net, y, sigma_v)
var += np.float32(sigma_v**2)  # of an observation, not only of the signal

# %%
# The error of a day, while the network learns; then the days around the change; then those around the gap.

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
# The network needs 25 days for the first season, and goes over to the other one within hours, with some days until its
# error is the old one. In the gap it is too sure: a prediction that is fed back counts as evidence of its own, and
# nothing corrects it when it gets out of step.

parts = {
    "first tenth": slice(n // 10),
    "before the change": slice(2 * n // 5, n // 2),
    "first three days after it": slice(n // 2, n // 2 + 3 * PERIOD),
    "last tenth": slice(9 * n // 10, n),
    "missing": gap,
}
for name, part in parts.items():
    print(f"{name}: {score(mu[part], var[part], series.y[part])}")
