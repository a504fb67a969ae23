"""
Gaps, filled from both sides
============================

How to fill gaps in a recorded series. A *filter* estimates each value from what was observed until then; a *smoother*
also uses what was observed later, and so fills a gap from both sides. The data are a season of 24 steps with noise, and
a gap of 4 steps in each half of a season.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import SLSTM, Sequential, SLinear

season, seasons, passes, seed = 24, 8, 25, 0
t = np.arange(season * seasons)
angle = 2 * np.pi * t / season
signal = np.sin(angle) + 0.4 * np.cos(2 * angle) + 0.3 * np.sin(angle / 11)
half = signal[: len(t) // 2]
signal, noise = (signal - half.mean()) / half.std(), 0.2 / half.std()
y = signal + np.random.default_rng(seed).normal(0, noise, len(t))
rng, hidden = np.random.default_rng(seed), np.zeros(len(t), bool)
for start in range(season, len(t) - 11, 12):
    first = start + rng.integers(9)
    hidden[first : first + 4] = True
y[hidden] = np.nan

# %%
# The network keeps the season in its memory, and learns it while it goes through the series 25 times. Its input is
# unknown noise, as in a Kalman filter. Each observation corrects what it has predicted; that is the filter. `SLSTM` and
# `SLinear` record what ``smoother`` needs: it goes back from the last memory to the first and corrects each by what
# came after it. The next pass through the series begins with the corrected first memory.

pytagi_ddp.manual_seed(seed)
net = Sequential(SLSTM(1, 30), SLinear(30, 1))
mu, var = np.empty((2, len(t)))
for k in range(passes):
    likelihood = Gaussian(max(noise, 0.9**k))  # large at first, so that early observations do not decide
    for step in range(len(t)):
        m, s = net([0.0], [1.0])
        mu[step], var[step] = m[0], s[0]
        likelihood.observe(net, y[step])
        net.backward()
        net.step()
    smoothed = net.smoother()

# %%
# Filter, with the observation of each step, and smoother of the last pass, compared with the signal. Gaps are grey.

gain = np.where(hidden, 0, var / (var + likelihood.sigma**2))
found = {"filter": (mu + gain * (np.nan_to_num(y) - mu), (1 - gain) * var), "smoother": smoothed}

part = slice(-4 * season, None)
figure, panels = plt.subplots(2, 1, figsize=(9, 6), sharex=True, sharey=True, layout="constrained")
for axes, (name, (mu, var)) in zip(panels, found.items(), strict=True):
    axes.fill_between(t[part], -4, 2.5, hidden[part], color="0.93", step="mid")
    axes.plot(t[part], signal[part], "--", color="0.3", linewidth=1, label="signal")
    axes.plot(t[part], y[part], ".", color="0.2", markersize=4, label="observed")
    plot.band(axes, t[part], mu[part], var[part], f"{name}, two standard deviations")
    axes.set(xlabel="time step", ylabel="value", ylim=(-4, 2.5))
    axes.legend(loc="lower left", ncols=3, fontsize="small")
    for place, there in (("in gaps", hidden), ("observed", ~hidden)):
        rmse = metric.rmse(mu[there], signal[there])
        likely = metric.log_likelihood(mu[there], signal[there], np.sqrt(var[there]))
        inside = np.mean(np.abs(mu - signal)[there] < 1.645 * np.sqrt(var[there]))
        print(f"{name}, {place}: RMSE {rmse:.3f}, log-likelihood {likely:.2f}, 90 % intervals hold {inside:.0%}")
plt.show()

# %%
# The smoother is nearer to the signal; it bridges the gaps, where the filter jumps at the next observation. Its
# variances are too large: its 90 % intervals hold all of the signal.
