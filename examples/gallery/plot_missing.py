"""
Observations that are missing
=============================

How to learn from tables with gaps, and how much better that is than to drop rows or fill gaps. Each row has four
targets, functions of one x, and any of them may be missing. A missing target is given as NaN: its output learns nothing
from this row, and the other three learn as usual.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Linear, MixtureReLU, Sequential


def curves(x):
    """The four true values (n, 4) at x."""
    return np.stack([np.sin(2 * x), np.sin(2 * x) + 0.5 * x, np.cos(2 * x) * x, np.sin(2 * x) ** 2], 1)


rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, 200)
y = curves(x) + rng.normal(0, 0.1, (200, 4))
order = rng.random(y.shape)  # those with the smallest numbers will be missing

# %%
# Three ways to prepare a table are compared. The first one needs no work. The pictures are those of 60 % missing.

WAYS = {
    "gaps are NaN": lambda x, y: (x, y),
    "rows with gaps dropped": lambda x, y: (x[~np.isnan(y).any(1)], y[~np.isnan(y).any(1)]),
    "gaps filled with the mean": lambda x, y: (x, np.where(np.isnan(y), np.nanmean(y, 0), y)),
}
places = np.linspace(-2, 2, 201)
truth = curves(places)
shares = [0, 0.2, 0.4, 0.6]
figure, (*panels, right) = plt.subplots(1, 4, figsize=(15, 3.8), layout="constrained")
for panel, (way, prepare) in zip(panels, WAYS.items(), strict=True):
    errors = []
    for share in shares:
        rows, targets = prepare(x, np.where(order < share, np.nan, y))
        pytagi_ddp.manual_seed(0)
        net = Sequential(Linear(1, 60), MixtureReLU(), Linear(60, 60), MixtureReLU(), Linear(60, 4))
        net.fit(rows, targets, Gaussian(0.1), epochs=20, batch_size=4, evidence=None)
        mu, var = net.predict(places)
        errors.append(metric.rmse(mu, truth))
    inside = np.mean(np.abs(mu - truth) < 2 * np.sqrt(var))
    print(f"{way}: RMSE {', '.join(f'{error:.3f}' for error in errors)}; {inside:.0%} of the truth within 2 std")
    right.plot(shares, errors, "o-", label=way)
    plot.band(panel, places, mu[:, 1], var[:, 1], "mean, 2 std")
    panel.plot(places, truth[:, 1], "--", color="gray", label="truth")
    panel.plot(rows, targets[:, 1], ".", color="black", markersize=3, label="observed")
    panel.set(xlabel="x", ylim=(-3, 3), title=way)
panels[0].set(ylabel="second target")
panels[0].legend(fontsize="small", loc="upper left")
right.set(xlabel="share of targets missing", ylabel="RMSE of the mean", ylim=(0, None))
right.legend(fontsize="small")
plt.show()

# %%
# With 60 % missing in each column, one row in 39 is complete. A network that learns only from these has large errors,
# but says so by wide error bars. Gaps filled with means are worse in another way: the network believes them like
# measurements, and its error bars become narrow around a wrong curve. Gaps have to occur at random.
