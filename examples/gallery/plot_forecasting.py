"""
Three days ahead, and how sure
==============================

How to forecast many steps with an LSTM, with intervals that hold. The series is a season with weather on top. Weather
cannot be foretold for long: the uncertainty of the forecast grows during the first steps, and then stays as it is.
"""

# %%
# The season repeats every 24 steps, a day. Of the weather, nine tenths are left at the next step. So the next value can
# be foretold well, and those of the following days only roughly. The network sees 24 values and the time of day, and
# predicts the next value and the variance of its noise; ``examples/forecasting.py`` has the network and how it learns.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from examples.forecasting import AHEAD, ORIGINS, PERIOD, WINDOW, forecast, inputs, make_network, predict, train
from examples.series import make_series, score
from pytagi_ddp import plot

steps = 1000
y = make_series(steps, seed=0, weather=0.15).y
origins = steps - AHEAD - PERIOD * np.arange(ORIGINS)  # where forecasts begin; nothing after the first one is learnt

pytagi_ddp.manual_seed(0)
net = make_network()
train(net, y[: origins.min()], epochs=4, batch_size=16, seed=0)

# %%
# One step ahead takes one forward pass. For more steps, *paths* are drawn: a path draws its next value from the
# prediction, takes it as an input, and goes on from there. So the error of one step shifts the steps that follow, as it
# does in reality. If means and variances were fed back as inputs instead, bands would be too narrow, as the network
# takes its inputs as independent of each other.

mu, var = forecast(net, y, origins, paths=25, seed=0)
begin = origins[0]
t = np.arange(steps)
ahead = t[begin:]
windows = np.lib.stride_tricks.sliding_window_view(y, WINDOW)[begin - WINDOW : -1]
next_mu, next_var = predict(net, inputs(windows, ahead - WINDOW))

figure, (upper, lower) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
pictures = (upper, "forecast of 72 steps", mu[0], var[0]), (lower, "one step ahead, 72 times", next_mu, next_var)
for axes, name, mean, variance in pictures:
    axes.plot(t[begin - 2 * AHEAD :], y[begin - 2 * AHEAD :], ".", color="0.4", markersize=4, label="observed")
    plot.band(axes, ahead, mean, variance, f"{name}, two standard deviations", "C0")
    axes.axvline(begin - 0.5, color="0.7", linestyle="--")
    axes.set(ylabel="value", ylim=(-4, 4.5))
    axes.legend(loc="upper left", ncols=2, fontsize="small")
lower.set(xlabel="time step")
plt.show()

# %%
# Ten forecasts, from ten origins: the standard deviation that they state, their error, and how many observations their
# 90 % intervals hold.

truth = y[origins[:, None] + np.arange(AHEAD)]
for name, part in (("first 4", slice(4)), ("steps 5 to 24", slice(4, 24)), ("steps 25 to 72", slice(24, None))):
    found = score(mu[:, part], var[:, part], truth[:, part])
    print(f"{name}: standard deviation {np.sqrt(var[:, part].mean()):.2f}, {found}")
print(f"all: {score(mu, var, truth)}")
