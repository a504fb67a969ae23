"""
Active learning: which sample to measure next
=============================================

How to let a network choose what to measure next, and when that is worse than chance. Measurements are dear, and there
are a thousand candidates. The variance of a prediction says how little the network knows about a candidate. Whether it
pays to measure those with the largest variances depends on the candidates, as two cases show.

``--quick`` runs with one seed and three rounds.
"""

# %%
# A function of two inputs is to be known everywhere in a square. There are two sets of candidates: in one, most of them
# lie in the middle of the square and few at its edges; the other one is spread evenly.

import argparse

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import plot
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Linear, MixtureReLU, Sequential

options = argparse.ArgumentParser(description="active learning")
options.add_argument("--quick", action="store_true")
seeds, rounds = (range(1), 3) if options.parse_args().quick else (range(3), 7)

FIRST, MORE, NOISE = 10, 5, 0.1
side = np.linspace(-1.5, 1.5, 31)
square = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)


def truth(x):
    """The function (n) at places (n, 2)."""
    return np.sin(3 * x[:, 0]) * np.exp(-0.5 * x[:, 1]) + x[:, 1] ** 2 / 2


CANDIDATES = {
    "crowded": lambda rng: np.clip(rng.normal(0, 0.5, (1000, 2)), -1.5, 1.5),
    "even": lambda rng: rng.uniform(-1.5, 1.5, (1000, 2)),
}

# %%
# Each round trains a new network on all that has been measured so far, and then measures five more candidates.


def learn(x, y, seed):
    """A network that has learnt from these measurements alone."""
    pytagi_ddp.manual_seed(seed)
    net = Sequential(Linear(2, 50), MixtureReLU(), Linear(50, 50), MixtureReLU(), Linear(50, 1))
    net.fit(x, y, Gaussian(NOISE), epochs=30, batch_size=4, seed=seed, evidence=None)
    return net


def most_uncertain(var, rng):
    """The five candidates with the largest variances."""
    return np.argsort(-var)[:MORE]


def most_uncertain_of_ten(var, rng):
    """Draws five groups of ten at random, and takes the one with the largest variance of each."""
    groups = rng.permutation(np.flatnonzero(var >= 0))[: 10 * MORE].reshape(MORE, 10)
    return groups[np.arange(MORE), var[groups].argmax(1)]


def random(var, rng):
    """Five at random."""
    return rng.permutation(np.flatnonzero(var >= 0))[:MORE]


def explore(candidates, choose, seed):
    """Errors in the square after each round, and the places that were measured."""
    rng = np.random.default_rng(seed)
    x = candidates(rng)
    y = truth(x) + rng.normal(0, NOISE, len(x))
    known = rng.permutation(len(x))[:FIRST]
    errors = []
    for _round in range(rounds):
        net = learn(x[known], y[known], seed)
        errors.append(np.sqrt(np.mean((net.predict(square)[0][:, 0] - truth(square)) ** 2)))
        var = net.predict(x)[1][:, 0]
        var[known] = -1  # so that these are not chosen again
        measured, known = x[known], np.concatenate([known, choose(var, rng)])
    return errors, x, measured


# %%
# The three ways to choose, with each set of candidates. Left and middle: candidates (grey) and what was measured.
# Right: the error after each round, as a mean over seeds with a band of one standard deviation.

figure, axes = plt.subplots(2, 3, figsize=(12, 7.5), layout="constrained", width_ratios=(1, 1, 1.6))
numbers = FIRST + MORE * np.arange(rounds)
for (left, middle, right), (kind, candidates) in zip(axes, CANDIDATES.items(), strict=True):
    for way, shown in ((most_uncertain, left), (most_uncertain_of_ten, None), (random, middle)):
        name = way.__name__.replace("_", " ")
        errors, x, measured = zip(*(explore(candidates, way, seed) for seed in seeds), strict=True)
        plot.band(right, numbers, np.mean(errors, 0), np.var(errors, 0), name, deviations=1)
        print(f"{kind}, {name}: error {np.mean(errors, 0)[-1]:.2f} with {numbers[-1]} measurements")
        if shown:
            shown.plot(*x[0].T, ".", color="0.85", markersize=3)
            shown.plot(*measured[0].T, ".", color=right.lines[-1].get_color())
            shown.set(aspect="equal", title=f"{kind}: {name}", xticks=[], yticks=[])
    right.set(xlabel="measurements", ylabel="error in the square", ylim=(0, None))
    right.legend(fontsize="small")
plt.show()

# %%
# Where candidates are crowded, chance measures the middle again and again, and the largest variances lead to the edges,
# about which little is known: the error is half as large.
#
# Where candidates are spread evenly, the same choice is much *worse* than chance. The variances of such a network grow
# with the distance from the origin, more than with the distance from the data. So they are largest in the corners and
# stay larger there than in the middle, which is never measured although the error is there. Besides, the five
# candidates with the largest variances are often neighbours, which tell nearly the same. The largest variance of ten
# drawn at random is a compromise. So compare with chance, on your own data, before you rely on variances.
