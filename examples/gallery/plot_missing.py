"""
Observations that are missing
=============================

How to learn from tables with gaps, and how much better that is than to drop rows or fill gaps. Here each row has four
targets, and each of them is missing with some probability. A missing target is given as NaN: its output learns nothing
from this row, and the other three learn as usual.
"""

# %%
# The targets are four functions of one x, each observed with a noise of standard deviation 0.1.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import plot
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Linear, MixtureReLU, Sequential

ROWS, NOISE = 200, 0.1


def curves(x):
    """The four true values (n, 4) at x."""
    return np.stack([np.sin(2 * x), np.sin(2 * x) + 0.5 * x, np.cos(2 * x) * x, np.sin(2 * x) ** 2], 1)


def learn(x, y, seed=0):
    """A network that has learnt from the rows (x, y); y may hold NaN."""
    pytagi_ddp.manual_seed(seed)
    net = Sequential(Linear(1, 60), MixtureReLU(), Linear(60, 60), MixtureReLU(), Linear(60, 4))
    net.fit(x, y, Gaussian(NOISE), epochs=20, batch_size=4, seed=seed, evidence=None)
    return net


# %%
# Gaps need nothing else than NaN. (Masked arrays work as well. If all rows have the same *number*
# of observed outputs, `update_using_indices` takes these and their indices, and computes less.) Three ways to prepare a
# table are compared:

places = np.linspace(-2, 2, 201)
truth = curves(places)
WAYS = {
    "gaps are NaN": lambda x, y: (x, y),
    "rows with gaps dropped": lambda x, y: (x[~np.isnan(y).any(1)], y[~np.isnan(y).any(1)]),
    "gaps filled with the mean": lambda x, y: (x, np.where(np.isnan(y), np.nanmean(y, 0), y)),
}


def table(share, seed):
    """x, and targets of which a share is missing."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, ROWS)
    y = curves(x) + rng.normal(0, NOISE, (ROWS, 4))
    y[rng.random(y.shape) < share] = np.nan
    return x, y


shares = [0, 0.2, 0.4, 0.6]
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
for way, prepare in WAYS.items():
    errors = np.empty((len(shares), 3))
    for k, share in enumerate(shares):
        for seed in range(3):
            mu, var = learn(*prepare(*table(share, seed)), seed).predict(places)
            errors[k, seed] = np.sqrt(np.mean((mu - truth) ** 2))
            if share == 0.6 and seed == 0:
                inside = np.mean(np.abs(mu - truth) < 2 * np.sqrt(var))
                print(f"{way}, 60 % missing: {inside:.0%} of the truth within 2 std")
    plot.band(right, shares, errors.mean(1), errors.var(1), way, deviations=1)
    print(f"{way}: root mean square error {', '.join(f'{e:.3f}' for e in errors.mean(1))}")
right.set(xlabel="share of targets missing", ylabel="error of the mean (3 seeds)", ylim=(0, None))
right.legend(fontsize="small")

x, y = table(0.6, seed=0)
for axes, way in ((left, "gaps are NaN"), (middle, "rows with gaps dropped")):
    rows, targets = WAYS[way](x, y)
    mu, var = learn(rows, targets).predict(places)
    plot.band(axes, places, mu[:, 1], var[:, 1], "mean, 2 std")
    axes.plot(places, truth[:, 1], "--", color="gray", label="truth")
    axes.plot(rows, targets[:, 1], ".", color="black", markersize=3, label="observed")
    axes.set(xlabel="x", ylabel="second target", ylim=(-3, 3), title=f"{way}, 60 % missing")
left.legend(fontsize="small", loc="upper left")
plt.show()

# %%
# With 20 % missing in each column, 41 % of the rows are complete; with 60 % missing, one in 39. A network that learns
# only from these has large errors, but says so by wide error bars. Gaps filled with means are worse in another way: the
# network believes them like measurements, and its error bars become narrow around a wrong curve.
#
# NaN works well because gaps occur at random. If just the *large* values are missing, nothing in the data says so, and
# error bars are too narrow there:

x, y = table(0, seed=0)
y[y > 0.5] = np.nan
mu, var = learn(x, y).predict(places)
inside = np.abs(mu - truth) < 2 * np.sqrt(var)
print(f"missing where y > 0.5: {inside[truth > 0.5].mean():.0%} of the truth above 0.5 within 2 std, ", end="")
print(f"{inside[truth < 0.5].mean():.0%} of that below")
