"""
A minimum in few evaluations
============================

Bayesian optimisation: each evaluation of a function is costly, so the next place is chosen by a network that knows what
it does not know. The function is Branin's, which has three minima of 0.398; 40 evaluations are allowed.
"""

# %%
# The function, on the unit square. Its values span three orders of magnitude, so the network learns their logarithms.

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import ndtr

import pytagi_ddp
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Linear, ReLU, Sequential


def branin(places):
    x, y = 15 * places[:, 0] - 5, 15 * places[:, 1]
    valley = y - 5.1 / (4 * np.pi**2) * x**2 + 5 / np.pi * x - 6
    return valley**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x) + 10


# %%
# A network of ReLUs is a patchwork of straight pieces. With sines and cosines of the coordinates as further inputs it
# learns smooth functions from few points. Four networks from different seeds are an ensemble: its variance is that of
# the networks, and that between them. Each sample counts eight times (``evidence``), however many epochs are run.

ENSEMBLE, NOISE = 4, 0.05


def inputs(places):
    waves = [wave(np.pi * k * places) for k in (1, 2, 3) for wave in (np.sin, np.cos)]
    return np.concatenate([2 * places - 1, *waves], 1)


def learn(places, values, seed):
    networks = []
    for k in range(ENSEMBLE):
        pytagi_ddp.manual_seed(ENSEMBLE * seed + k)
        net = Sequential(Linear(14, 50), ReLU(), Linear(50, 50), ReLU(), Linear(50, 1))
        net.fit(inputs(places), values, Gaussian(NOISE), epochs=100, batch_size=8, seed=k, evidence={"count": 8})
        networks.append(net)
    return networks


def predict(networks, places):
    moments = [net.predict(inputs(places)) for net in networks]
    mu, var = np.array(moments)[..., 0].transpose(1, 0, 2)
    return mu.mean(0), np.sqrt(mu.var(0) + var.mean(0))


# %%
# The next place is where the *expected improvement* is largest: how much smaller than the best value so far an
# observation is expected to be, where it is smaller. It is large where the mean is low, and where little is known.
# Candidates are random places, and places near the best ones.


def expected_improvement(mean, std, best):
    z = (best - mean) / std
    return std * (z * ndtr(z) + np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))


def search(seed, first=10, evaluations=40):
    rng = np.random.default_rng(seed)
    places = rng.random((first, 2))
    while len(places) < evaluations:
        logs = np.log(branin(places))
        targets = (logs - logs.mean()) / logs.std()
        networks = learn(places, targets, seed=len(places))
        good = places[np.argsort(logs)[:5]][rng.integers(5, size=1000)]
        near = good + rng.normal(size=(1000, 2)) * rng.choice([0.02, 0.1, 0.2], (1000, 1))
        candidates = np.concatenate([rng.random((1000, 2)), np.clip(near, 0, 1)])
        mean, std = predict(networks, candidates)
        improvement = expected_improvement(mean, std, targets.min())
        places = np.concatenate([places, candidates[[improvement.argmax()]]])
    return places, networks


places, networks = search(seed=0)
values = branin(places)

# %%
# The evaluations, over the function, and the best value so far, compared with random places.

grid = np.stack(np.meshgrid(np.linspace(0, 1, 80), np.linspace(0, 1, 80)), -1)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.contourf(*grid.transpose(2, 0, 1), np.log(branin(grid.reshape(-1, 2))).reshape(80, 80), 20, cmap="Greys")
left.plot(*places[:10].T, "o", color="C0", label="first ten, at random")
left.plot(*places[10:].T, "o", color="C1", label="chosen by the network")
left.legend(loc="upper right", fontsize="small")
by_chance = [np.minimum.accumulate(branin(np.random.default_rng(k).random((40, 2)))) for k in range(200)]
right.semilogy(np.minimum.accumulate(values) - 0.397, color="C1", label="chosen by the network")
right.semilogy(np.mean(by_chance, 0) - 0.397, color="C0", label="random places, mean of 200 runs")
right.set(xlabel="evaluations", ylabel="best value so far, above the minimum")
right.legend(fontsize="small")
plt.show()

print(f"best value {values.min():.3f} (the minimum is 0.398); random places {np.mean(by_chance, 0)[-1]:.3f}")

# %%
# Over five seeds the best value was 0.09 above the minimum on average after 40 evaluations, and that of random places
# 1.3. Without the sines and cosines an earlier form of this program ended at 1.4: no better than chance.
