"""
Active learning: which sample to measure next
=============================================

How to let a network choose what to measure next, and when that is worse than chance. The variance of a prediction says
how little the network knows about a candidate. Whether it pays to measure those with the largest variances depends on
the candidates, as two cases show.

A function of two inputs is to be known everywhere in a square. There are two sets of a thousand candidates: most of one
lie in the middle of the square and few at its edges; the other one is spread evenly.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Linear, MixtureReLU, Sequential

side = np.linspace(-1.5, 1.5, 31)
square = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
CANDIDATES = {
    "crowded": lambda rng: np.clip(rng.normal(0, 0.5, (1000, 2)), -1.5, 1.5),
    "even": lambda rng: rng.uniform(-1.5, 1.5, (1000, 2)),
}


def truth(x):
    return np.sin(3 * x[:, 0]) * np.exp(-0.5 * x[:, 1]) + x[:, 1] ** 2 / 2


# %%
# Each round trains a new network on all that has been measured so far, and then measures five more candidates: those
# with the largest variances, or any. Left and middle: candidates (grey) and what was measured. Right: the error after
# each round, as a mean over three seeds with a band of one standard deviation.


def explore(candidates, by_variance, seed):
    """Errors in the square with 10, 15, ..., 40 measurements, all candidates, and those that were measured."""
    rng = np.random.default_rng(seed)
    x = candidates(rng)
    y = truth(x) + rng.normal(0, 0.1, len(x))
    errors, chosen = [], np.arange(10)
    while True:
        pytagi_ddp.manual_seed(seed)
        net = Sequential(Linear(2, 50), MixtureReLU(), Linear(50, 50), MixtureReLU(), Linear(50, 1))
        net.fit(x[chosen], y[chosen], Gaussian(0.1), epochs=30, batch_size=4, seed=seed, evidence=None)
        errors.append(metric.rmse(net.predict(square)[0], truth(square)))
        if len(chosen) == 40:
            return errors, x, x[chosen]
        score = net.predict(x)[1][:, 0] if by_variance else rng.random(len(x))
        score[chosen] = -1  # so that these are not chosen again
        chosen = np.append(chosen, np.argsort(score)[-5:])


figure, axes = plt.subplots(2, 3, figsize=(12, 7.5), layout="constrained", width_ratios=(1, 1, 1.6))
for (*panels, right), (kind, candidates) in zip(axes, CANDIDATES.items(), strict=True):
    for panel, way in zip(panels, ("largest variance", "random"), strict=True):
        runs = [explore(candidates, way != "random", seed) for seed in range(3)]
        errors = np.array([run[0] for run in runs])
        plot.band(right, np.arange(10, 45, 5), errors.mean(0), errors.var(0), way, deviations=1)
        print(f"{kind}, {way}: error {errors[:, -1].mean():.2f} with 40 measurements")
        _, x, measured = runs[0]
        panel.plot(*x.T, ".", color="0.85", markersize=3)
        panel.plot(*measured.T, ".", color=right.lines[-1].get_color())
        panel.set(aspect="equal", title=f"{kind}: {way}", xticks=[], yticks=[])
    right.set(xlabel="measurements", ylabel="error in the square", ylim=(0, None))
    right.legend(fontsize="small")
plt.show()

# %%
# Where candidates are crowded, chance measures the middle again and again, and the largest variances lead to the edges,
# about which little is known: the error is smaller. Where candidates are spread evenly, the same choice is much *worse*
# than chance. The variances of such a network grow with the distance from the origin, more than with that from the
# data. So mostly edges are measured. Compare with chance, on your own data, before you rely on variances.
