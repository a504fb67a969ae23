"""
Gaps, filled from both sides
============================

How to fill gaps in a recorded series. A *filter* estimates each value from what was observed until then; a *smoother*
also uses what was observed later, and so fills a gap from both sides.
"""

# %%
# The data are a noisy season with gaps. The network has no input: it keeps the season in its memory, and learns it
# while it goes through the series 25 times. Each observation corrects what it has predicted; that is the filter.
# `SLSTM` and `SLinear` record what the smoother needs. ``examples/smoothing.py`` has the loop through the series, with
# the usual training step.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from examples.series import PERIOD, make_series, score
from examples.smoothing import hide, observe, run_filter
from pytagi_ddp import plot
from pytagi_ddp.nn import SLSTM, Sequential, SLinear

series = make_series(8 * PERIOD, noise=0.2, seed=0)
hidden = hide(len(series.y), length=4, seed=0)
y = np.where(hidden, np.float32(np.nan), series.y)

pytagi_ddp.manual_seed(0)
net = Sequential(SLSTM(1, 30), SLinear(30, 1))
for k in range(25):
    sigma_v = max(series.noise, 0.9**k)  # large at first, so that early observations do not decide
    mu, var = run_filter(net, y, sigma_v)
    smoothed = net.smoother()

# %%
# `smoother` goes back from the last memory to the first and corrects each by what came after it, in closed form. The
# next pass through the series begins with the corrected first memory. Here are filter and smoother of the last pass.

found = {"filter": observe(mu, var, y, sigma_v), "smoother": smoothed}

t = np.arange(len(y))
part = slice(-4 * PERIOD, None)
figure, panels = plt.subplots(2, 1, figsize=(9, 6), sharex=True, sharey=True, layout="constrained")
for k, (axes, (name, (mu, var))) in enumerate(zip(panels, found.items(), strict=True)):
    axes.fill_between(t[part], 0, 1, hidden[part], color="0.93", step="mid", transform=axes.get_xaxis_transform())
    axes.plot(t[part], series.signal[part], "--", color="0.3", linewidth=1, label="signal")
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
        print(f"{place}, {name}: {score(mu[there], var[there], series.signal[there])}")
