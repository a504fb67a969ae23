"""
One sample at a time
====================

How a network learns a series while it runs, without storing it: each value is predicted, observed, learnt and then
dropped. In the middle of the series the season changes, and near its end the observations of a day are missing.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import LSTM, Linear, Sequential

day = 24
t = np.arange(200 * day)
angle = 2 * np.pi * t / day
before = np.sin(angle) + 0.4 * np.cos(2 * angle) + 0.3 * np.sin(angle / 11)
signal = np.where(t < 100 * day, before, 0.5 * np.cos(angle) - 0.8 * np.sin(2 * angle))
observed = (signal + np.random.default_rng(0).normal(0, 0.1, t.size)) / before.std()
y = observed.copy()
y[196 * day : 197 * day] = np.nan

# %%
# An LSTM of one time step carries its memory from sample to sample. The input of a step is the value before. If that is
# missing, its prediction takes its place, with its variance.

pytagi_ddp.manual_seed(0)
net = Sequential(LSTM(1, 40), LSTM(40, 40), Linear(40, 1))
likelihood = Gaussian(0.3)  # more than the noise of 0.13, since the network errs, too
mu, var = np.zeros((2, t.size))
x, var_x = [0.0], [1.0]  # of what is before the first value nothing is known
for k in t:
    m, s = net(x, var_x)
    mu[k], var[k] = m[0], s[0]
    likelihood.observe(net, y[k])
    net.backward()
    net.step()
    x, var_x = ([mu[k]], [var[k]]) if np.isnan(y[k]) else ([y[k]], [0.0])
var += 0.3**2  # of an observation, not only of the signal

# %%
# From top to bottom: the error of each day; the days around the change; the days around the gap.

figure, (learning, *panels) = plt.subplots(3, 1, figsize=(9, 8), layout="constrained")
learning.plot(t[::day] / day, np.sqrt(np.mean(((mu - observed) ** 2).reshape(-1, day), 1)))
learning.set(xlabel="day", ylabel="RMSE of a day", ylim=(0, None))
for axes, part in zip(panels, (slice(97 * day, 104 * day), slice(193 * day, 200 * day)), strict=True):
    axes.plot(t[part] / day, observed[part], ".", color="C3", markersize=3, label="missing")
    axes.plot(t[part] / day, y[part], ".", color="0.4", markersize=4, label="observed")
    plot.band(axes, t[part] / day, mu[part], var[part], "predicted before, two standard deviations", "C0")
    axes.set(xlabel="day", ylabel="value", ylim=(-4, 2.5))
panels[1].legend(loc="lower left", ncols=3, fontsize="small")
for axes in (learning, panels[0]):
    axes.axvline(100, color="0.7", linestyle="--")
plt.show()

parts = ("first 20 days", 0, 20), ("20 days before the change", 80, 100), ("3 days after it", 100, 103)
for name, first, last in (*parts, ("missing day", 196, 197)):
    part = slice(first * day, last * day)
    inside = np.abs(observed - mu)[part] < 1.645 * np.sqrt(var[part])
    print(f"{name}: RMSE {metric.rmse(mu[part], observed[part]):.3f}, 90 % intervals hold {inside.mean():.0%}")

# %%
# The network needs 25 days to learn the first season. It follows the other one from the first day on. In the gap it is
# too sure: a prediction that is fed back as an input is taken as evidence, and nothing corrects the network when it
# gets out of step.
