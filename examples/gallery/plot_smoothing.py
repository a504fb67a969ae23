"""
Gaps, filled from both sides
============================

How to fill gaps in a recorded series. A *filter* estimates each value from what was observed until then; a *smoother*
also uses what was observed later, and so fills a gap from both sides.
"""

# %%
# The data are a season of 24 steps, standardised, with noise and gaps.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.nn import SLSTM, OutputUpdater, Sequential, SLinear

season, seasons, passes, seed = 24, 8, 25, 0
t = np.arange(season * seasons)
angle = 2 * np.pi * t / season
signal = np.sin(angle) + 0.4 * np.cos(2 * angle) + 0.3 * np.sin(angle / 11)
mean, std = signal[: len(t) // 2].mean(), signal[: len(t) // 2].std()
signal = ((signal - mean) / std).astype(np.float32)
noise = 0.2 / std
y = (signal + np.random.default_rng(seed).normal(0, noise, len(t))).astype(np.float32)
rng, hidden = np.random.default_rng(seed), np.zeros(len(t), bool)
for start in range(season, len(t) - 11, 12):  # a gap of 4 steps in each half of a season
    first = start + rng.integers(9)
    hidden[first : first + 4] = True
y[hidden] = np.nan

# %%
# The network has no input: it keeps the season in its memory, and learns it while it goes through the series 25 times.
# At each step unknown noise enters it, as into the state of a Kalman filter. Each observation corrects what it has
# predicted; that is the filter. `SLSTM` and `SLinear` record what the smoother needs. `smoother` goes back from the
# last memory to the first and corrects each by what came after it, in closed form. The next pass through the series
# begins with the corrected first memory.

pytagi_ddp.manual_seed(seed)
net = Sequential(SLSTM(1, 30), SLinear(30, 1))
updater = OutputUpdater(net.device)
mu, var = np.empty((2, len(t)), np.float32)
no_input, of_variance_1 = np.zeros(1, np.float32), np.ones(1, np.float32)
for k in range(passes):
    sigma_v = max(noise, 0.9**k)  # large at first, so that early observations do not decide
    for step in range(len(t)):
        mu[step : step + 1], var[step : step + 1] = net(no_input, of_variance_1)
        updater.update(net.output_z_buffer, y[step : step + 1], sigma_v**2, net.input_delta_z_buffer)
        net.backward()
        net.step()
    smoothed = net.smoother()

# %%
# Here are filter, with the observation of each step, and smoother of the last pass.

gain = np.where(hidden, 0, var / (var + sigma_v**2))
found = {"filter": (mu + gain * (np.nan_to_num(y) - mu), (1 - gain) * var), "smoother": smoothed}

part = slice(-4 * season, None)
figure, panels = plt.subplots(2, 1, figsize=(9, 6), sharex=True, sharey=True, layout="constrained")
for k, (axes, (name, (mu, var))) in enumerate(zip(panels, found.items(), strict=True)):
    axes.fill_between(t[part], 0, 1, hidden[part], color="0.93", step="mid", transform=axes.get_xaxis_transform())
    axes.plot(t[part], signal[part], "--", color="0.3", linewidth=1, label="signal")
    axes.plot(t[part], y[part], ".", color="0.2", markersize=4, label="observed")
    plot.band(axes, t[part], mu[part], var[part], f"{name}, two standard deviations", f"C{k}")
    axes.set(ylabel="value", ylim=(-4, 2.5))
    axes.legend(loc="lower left", ncols=3, fontsize="small")
panels[1].set(xlabel="time step")
plt.show()

# %%
# How well both agree with the signal without noise, in the gaps (grey) and where it was observed. The smoother is
# nearer to it; it bridges the gaps, where the filter jumps at the next observation. Its variances are too large: its 90
# % intervals hold nearly all of the signal.

for place, there in (("in gaps", hidden), ("observed", ~hidden)):
    for name, (mu, var) in found.items():
        inside = np.mean(np.abs(mu - signal)[there] < 1.645 * np.sqrt(var[there]))
        likely = metric.log_likelihood(mu[there], signal[there], np.sqrt(var[there]))
        rmse = metric.rmse(mu[there], signal[there])
        print(f"{place}, {name}: RMSE {rmse:.3f}, log-likelihood {likely:.2f}, 90 % intervals hold {inside:.0%}")
