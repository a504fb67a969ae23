"""
Paths into the future, by an LSTM
=================================

How a recurrent network finds anomalies, and forecasts many steps. It learns to predict the next value, and how
uncertain that is. A forecast is made of *paths*: each draws its next value from the prediction, and continues from it.
(A `Forecaster` needs fewer lines: see *Three days ahead, and how sure*.)

The series is a season of 24 steps, a day, with weather on top, of which nine tenths are left at the next step.
"""

import matplotlib.pyplot as plt
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.likelihoods import HeteroscedasticGaussian
from pytagi_ddp.nn import LSTM, EvenExp, Linear, Sequential

DAY, AHEAD, DAYS, PATHS = 24, 72, 80, 200
rng, hour = np.random.default_rng(0), np.arange(DAYS * DAY)
angle = 2 * np.pi * hour / DAY
weather = np.zeros(hour.size)
for t in hour[1:]:
    weather[t] = 0.9 * weather[t - 1] + rng.normal(0, 0.15)
y = np.sin(angle) + 0.4 * np.cos(2 * angle) + weather + rng.normal(0, 0.1, hour.size)
known, truth = y[:-AHEAD], y[-AHEAD:]

# %%
# An input is a window of 24 values, with the time of day of the step after each. ``last_timestep=True`` in the last
# LSTM keeps the output behind the whole window. `EvenExp` makes the second output a variance, that of the noise.


def inputs(values, hours):
    """(samples, DAY, 3): windows of values, and the times of day of the hours after each value."""
    angle = 2 * np.pi * hours / DAY
    return np.stack([values, np.sin(angle), np.cos(angle)], 2)


windows, hours = (sliding_window_view(values, DAY) for values in (known[:-1], hour[1 : known.size]))
pytagi_ddp.manual_seed(0)
net = Sequential(
    LSTM(3, 30, seq_len=DAY),
    LSTM(30, 30, last_timestep=True, seq_len=DAY),
    Linear(30, 2, gain_weight=0.1, gain_bias=0.1),
    EvenExp(),
)
likelihood = HeteroscedasticGaussian()
net.fit(inputs(windows, hours), known[DAY:], likelihood, epochs=10, batch_size=16, evidence=None)

# %%
# One step ahead, the prediction says how unusual a value is. Here three values of the last days are too high. They are
# found, and so is the first value after them, which the network predicts from the high ones.

odd = y.copy()
odd[-50:-47] += 3
windows, hours = (sliding_window_view(values, DAY) for values in (odd[-AHEAD - DAY : -1], hour[-AHEAD - DAY + 1 :]))
following = likelihood.predict(net, inputs(windows, hours))
distance = np.abs(odd[-AHEAD:] - following.mean[:, 0]) / following.std[:, 0]
print("three odd values from hour", hour[-50], "on; beyond 3.5 standard deviations:", hour[-AHEAD:][distance > 3.5])

# %%
# A step of all paths is one call of the network. It would not do to feed back the mean and the variance of each
# prediction instead: the network would average out errors of a window as if they were independent of each other.

paths = np.tile(known[-DAY:], (PATHS, 1))
for t in hour[-AHEAD:]:
    x = inputs(paths[:, -DAY:], np.tile(hour[t - DAY + 1 : t + 1], (PATHS, 1)))
    paths = np.hstack([paths, likelihood.predict(net, x).sample(1, seed=t)[0]])
paths = paths[:, DAY:]

mean, (low, high) = paths.mean(0), np.quantile(paths, [0.05, 0.95], axis=0)
print(f"RMSE {metric.rmse(mean, truth):.2f}, 90 % intervals hold {np.mean((low < truth) & (truth < high)):.0%}")

figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
past = hour[-3 * AHEAD : -AHEAD], known[-2 * AHEAD :]
plot.forecast(axes, hour[-AHEAD:], mean, low, high, truth=truth, past=past, label="90 % interval")
axes.plot(hour[-AHEAD:], paths[:3].T, linewidth=0.6)
axes.set(xlabel="hour", ylabel="value", title="forecast, and three of its paths")
axes.legend(loc="upper left", ncols=4, fontsize="small")
plt.show()
