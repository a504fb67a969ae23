"""
Paths into the future, by an LSTM
=================================

How a recurrent network forecasts many steps. It learns to predict the next value, and how uncertain that is. A forecast
is made of *paths*: each draws its next value from the prediction, and continues from it.
"""

# %%
# The series is a season of 24 steps, a day, with weather on top, of which nine tenths are left at the next step.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import plot
from pytagi_ddp.likelihoods import HeteroscedasticGaussian
from pytagi_ddp.nn import LSTM, EvenExp, Linear, Sequential

DAY, AHEAD, DAYS = 24, 72, 80
rng, hour = np.random.default_rng(0), np.arange(DAYS * DAY)
angle = 2 * np.pi * hour / DAY
weather = np.zeros(hour.size)
for t in hour[1:]:
    weather[t] = 0.9 * weather[t - 1] + rng.normal(0, 0.15)
y = np.sin(angle) + 0.4 * np.cos(2 * angle) + weather + rng.normal(0, 0.1, hour.size)

# %%
# An input is a window of 24 values, with the time of day of the step after each. ``last_timestep=True`` in the last
# LSTM keeps the output behind the whole window. `EvenExp` makes the second output a variance, that of the noise.


def inputs(values, first):
    """(samples, DAY, 3): windows (samples, DAY) that begin at hours `first`, and the time of day after each value."""
    angle = 2 * np.pi / DAY * (first[:, None] + np.arange(1, DAY + 1))
    return np.stack([values, np.sin(angle), np.cos(angle)], 2).astype(np.float32)


known = y[:-AHEAD]
windows = np.lib.stride_tricks.sliding_window_view(known[:-1], DAY)

pytagi_ddp.manual_seed(0)
net = Sequential(
    LSTM(3, 30, seq_len=DAY),
    LSTM(30, 30, last_timestep=True, seq_len=DAY),
    Linear(30, 2, gain_weight=0.1, gain_bias=0.1),
    EvenExp(),
)
noise = HeteroscedasticGaussian()
net.fit(inputs(windows, np.arange(len(windows))), known[DAY:], noise, epochs=10, batch_size=16, evidence=None)

# %%
# Two hundred paths of three days. A step of all paths is one call of the network, with one sample for each path.

PATHS = 200
paths = np.tile(known[-DAY:], (PATHS, 1))
for t in range(len(known), len(y)):
    x = inputs(paths[:, -DAY:], np.full(PATHS, t - DAY))
    drawn = noise.prediction(*net.predict(x)).sample(1, seed=t)[0]
    paths = np.concatenate([paths, drawn.reshape(PATHS, 1)], 1)
paths = paths[:, DAY:]

# %%
# What if the mean and the variance of each prediction were the next input instead? The network takes inputs as
# independent of each other. Their errors are not: those of a window would average out.

mu, var = known[-DAY:], np.zeros(DAY)
for t in range(len(known), len(y)):
    x = inputs(mu[None, -DAY:], np.array([t - DAY]))
    var_x = np.zeros_like(x)
    var_x[0, :, 0] = var[-DAY:]
    prediction = noise.prediction(*net.predict(x, var_x=var_x))
    mu, var = np.append(mu, prediction.mean), np.append(var, prediction.variance)

figure, panels = plt.subplots(2, 1, figsize=(9, 6), sharex=True, sharey=True, layout="constrained")
past, ahead, truth = hour[-2 * AHEAD : -AHEAD], hour[-AHEAD:], y[-AHEAD:]
ways = {"paths": (paths.mean(0), paths.std(0)), "moments fed back": (mu[DAY:], np.sqrt(var[DAY:]))}
for axes, (name, (mean, std)) in zip(panels, ways.items(), strict=True):
    low, high = mean - 1.645 * std, mean + 1.645 * std
    plot.forecast(axes, ahead, mean, low, high, truth=truth, past=(past, y[past]), label="90 % interval")
    inside = np.mean((low < truth) & (truth < high))
    print(f"{name}: RMSE {np.sqrt(np.mean((mean - truth) ** 2)):.2f}, intervals hold {inside:.0%}")
    axes.set(ylabel="value", title=name)
panels[0].legend(loc="upper left", ncols=4, fontsize="small")
panels[1].set(xlabel="hour")
plt.show()

# %%
# ``python -m benchmarks.quality paths`` of the repository measures this: over six series and ten forecasts of each, 90
# % intervals hold 88 % of the observations by paths, and 63 % by moments that are fed back. A `Forecaster`, which
# learns all steps at once, without an LSTM, holds 91 %, with smaller errors.
