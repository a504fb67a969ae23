"""
A minimum in few evaluations
============================

Bayesian optimisation: each evaluation of a function is costly, so the next place is chosen by a network that knows what
it does not know. Two functions are searched on the unit cube: Branin's of two variables, which has three minima of
0.398, and Hartmann's of six, which has one of -3.322 and other local minima. Their values span orders of magnitude, so
the network learns logarithms of them.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Linear, ReLU, Sequential

WIDTHS = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
CENTRES = [
    [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
    [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
    [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
    [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
]


def branin(places):
    x, y = 15 * places[:, 0] - 5, 15 * places[:, 1]
    valley = y - 5.1 / (4 * np.pi**2) * x**2 + 5 / np.pi * x - 6
    return valley**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x) + 10


def hartmann(places):
    return -np.exp(-(WIDTHS * (places[:, None] - CENTRES) ** 2).sum(2)) @ [1, 1.2, 3, 3.2]


# %%
# A network of ReLUs is a patchwork of straight pieces. With sines and cosines of the coordinates as further inputs it
# learns smooth functions from few points. By ``evidence=None`` each epoch counts the samples again: with the default, a
# schedule, a network of this size would learn little from so few samples, and ``fit`` would warn.
#
# The next place is where the function may be smallest: where its mean minus two standard deviations is. This is a place
# where the mean is low, or little is known. Candidates are random places, and places near the best ones. Each place is
# chosen by a new network, so that an error of one network does not repeat itself.


def inputs(places):
    waves = [wave(np.pi * k * places) for k in (1, 2, 3) for wave in (np.sin, np.cos)]
    return np.hstack([2 * places - 1, *waves])


def search(function, logarithm, dimensions, evaluations, rng):
    places = rng.random((10, dimensions))
    while len(places) < evaluations:
        logs = logarithm(function(places))
        pytagi_ddp.manual_seed(len(places))
        net = Sequential(Linear(7 * dimensions, 50), ReLU(), Linear(50, 50), ReLU(), Linear(50, 1))
        y = (logs - logs.mean()) / logs.std()
        net.fit(inputs(places), y, Gaussian(0.05), epochs=100, batch_size=8, evidence=None)
        best = places[rng.choice(np.argsort(logs)[:5], 1000)]
        near = best + rng.normal(size=best.shape) * rng.choice([0.02, 0.1, 0.2], (1000, 1))
        candidates = np.vstack([rng.random(best.shape), np.clip(near, 0, 1)])
        mu, var = net.predict(inputs(candidates))
        places = np.vstack([places, candidates[np.argmin(mu - 2 * np.sqrt(var))]])
    return places


side = np.linspace(0, 1, 80)
square = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
figure, (left, *right) = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
left.contourf(side, side, np.log(branin(square)).reshape(80, 80), 20, cmap="Greys")
JOBS = (branin, np.log, 2, 40, 0.397887), (hartmann, lambda values: -np.log(-values), 6, 50, -3.32237)
for axes, (function, logarithm, dimensions, evaluations, minimum) in zip(right, JOBS, strict=True):
    rng = np.random.default_rng(1)
    places = search(function, logarithm, dimensions, evaluations, rng)
    found = np.minimum.accumulate(function(places)) - minimum
    random = function(rng.random((200 * evaluations, dimensions))).reshape(200, evaluations)
    chance = np.minimum.accumulate(random, 1).mean(0) - minimum
    print(f"{function.__name__}: {found[-1]:.3f} above the minimum; random places {chance[-1]:.3f}")
    axes.semilogy(chance, label="random places, mean of 200 runs")
    axes.semilogy(found, label="chosen by the network")
    axes.set(title=function.__name__, xlabel="evaluations", ylabel="best value so far, above the minimum")
    if dimensions == 2:
        left.plot(*places[:10].T, "o", label="first ten, at random")
        left.plot(*places[10:].T, "o", label="chosen by the network")
for axes in (left, *right):
    axes.legend(fontsize="small")
plt.show()

# %%
# The search ends at a minimum of Branin's function, and near that of Hartmann's. Begin again from other places, if
# evaluations are left: the first ten decide where the others are chosen.
