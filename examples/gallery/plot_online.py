"""
One sample at a time
====================

How a network learns a series while it runs, without storing it: each value is predicted, observed, learnt and then
dropped. In the middle of the series the season changes, and near its end the observations of a day are missing.
"""

# %%
# The series: a day of 24 steps with an overtone and a slow wave, standardised, and noise with a standard deviation of
# 0.1.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.nn import LSTM, Linear, OutputUpdater, Sequential

n, day, sigma_v = 4800, 24, 0.3
t = np.arange(n)
angle = 2 * np.pi * t / day
before = np.sin(angle) + 0.4 * np.cos(2 * angle) + 0.3 * np.sin(angle / 11)
signal = np.where(t < n // 2, before, 0.5 * np.cos(angle) - 0.8 * np.sin(2 * angle))
observed = ((signal + np.random.default_rng(0).normal(0, 0.1, n) - before.mean()) / before.std()).astype(np.float32)
gap = slice(n - 4 * day, n - 3 * day)
y = observed.copy()
y[gap] = np.nan

# %%
# An LSTM of one time step carries its memory from sample to sample. The input of a step is the value before. If that is
# missing, its prediction takes its place, with its variance. A sample takes about 70 microseconds.

pytagi_ddp.manual_seed(0)
net = Sequential(LSTM(1, 40), LSTM(40, 40), Linear(40, 1))
updater = OutputUpdater(net.device)
mu, var = np.zeros((2, n), np.float32)
x, var_x = np.zeros(1, np.float32), np.ones(1, np.float32)  # of what is before the first value nothing is known
for k in range(n):
    m, s = net(x, var_x)
    mu[k], var[k] = m[0], s[0]
    updater.update(net.output_z_buffer, y[k : k + 1], sigma_v**2, net.input_delta_z_buffer)
    net.backward()
    net.step()
    x[0], var_x[0] = (mu[k], var[k]) if np.isnan(y[k]) else (y[k], 0)
var += np.float32(sigma_v**2)  # of an observation, not only of the signal

# %%
# From top to bottom: the error of each day while the network learns; the days around the change; the days around the
# gap.

figure, (learning, change, end) = plt.subplots(3, 1, figsize=(9, 8), layout="constrained")
error = np.sqrt(np.mean(((mu - observed) ** 2).reshape(-1, day), 1))
learning.plot(t[::day] / day, error, label="one step ahead")
learning.axvline(n / 2 / day, color="0.7", linestyle="--", label="another season")
learning.set(xlabel="day", ylabel="RMSE of a day", ylim=(0, None))
learning.legend(loc="upper center", fontsize="small")
for axes, part in ((change, slice(n // 2 - 3 * day, n // 2 + 4 * day)), (end, slice(n - 7 * day, n))):
    axes.plot(t[part] / day, y[part], ".", color="0.4", markersize=3, label="observed")
    plot.band(axes, t[part] / day, mu[part], var[part], "predicted before, two standard deviations", "C0")
    axes.set(xlabel="day", ylabel="value", ylim=(-4, 2.5))
    axes.legend(loc="lower left", ncols=2, fontsize="small")
change.axvline(n / 2 / day, color="0.7", linestyle="--")
end.plot(t[gap] / day, observed[gap], "x", color="C3", markersize=3, label="missing")
end.legend(loc="lower left", ncols=3, fontsize="small")
plt.show()

# %%
# The network needs 25 days to learn the first season. It follows the other one from the first day on, and after about
# ten days its error is as small as before. In the gap it is too sure: a prediction that is fed back as an input is
# taken as evidence, and nothing corrects the network when it gets out of step.

parts = {
    "first tenth": slice(n // 10),
    "before the change": slice(2 * n // 5, n // 2),
    "first three days after it": slice(n // 2, n // 2 + 3 * day),
    "last tenth": slice(9 * n // 10, n),
    "missing": gap,
}
for name, part in parts.items():
    inside = np.abs(observed - mu)[part] < 1.645 * np.sqrt(var[part])
    print(f"{name}: RMSE {metric.rmse(mu[part], observed[part]):.3f}, 90 % intervals hold {inside.mean():.0%}")
