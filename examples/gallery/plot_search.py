"""
A minimum in few evaluations
============================

Bayesian optimisation: each evaluation of a function is costly, so the next place is chosen by a network that knows what
it does not know. The function is Branin's on the unit square, which has three minima of 0.398. Its values span orders
of magnitude, so the network learns logarithms of them.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Linear, ReLU, Sequential


def branin(places):
    x, y = 15 * places[:, 0] - 5, 15 * places[:, 1]
    valley = y - 5.1 / (4 * np.pi**2) * x**2 + 5 / np.pi * x - 6
    return valley**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x) + 10


# %%
# A network of ReLUs is a patchwork of straight pieces. With sines and cosines of the coordinates as further inputs it
# learns smooth functions from few points. Each sample counts eight times (``evidence``), however many epochs are run.
#
# The next place is where the function may be smallest: where its mean minus two standard deviations is. This is a place
# where the mean is low, or little is known. Candidates are random places, and places near the best ones. Each place is
# chosen by a new network, so that an error of one network does not repeat itself.


def inputs(places):
    waves = [wave(np.pi * k * places) for k in (1, 2, 3) for wave in (np.sin, np.cos)]
    return np.hstack([2 * places - 1, *waves])


rng = np.random.default_rng(1)
places = rng.random((10, 2))
while len(places) < 40:
    logs = np.log(branin(places))
    pytagi_ddp.manual_seed(len(places))
    net = Sequential(Linear(14, 50), ReLU(), Linear(50, 50), ReLU(), Linear(50, 1))
    y = (logs - logs.mean()) / logs.std()
    net.fit(inputs(places), y, Gaussian(0.05), epochs=100, batch_size=8, evidence={"count": 8})
    best = places[rng.choice(np.argsort(logs)[:5], 1000)]
    near = best + rng.normal(size=best.shape) * rng.choice([0.02, 0.1, 0.2], (1000, 1))
    candidates = np.vstack([rng.random((1000, 2)), np.clip(near, 0, 1)])
    mu, var = net.predict(inputs(candidates))
    places = np.vstack([places, candidates[np.argmin(mu - 2 * np.sqrt(var))]])

found = np.minimum.accumulate(branin(places)) - 0.397887
random = branin(rng.random((200 * 40, 2))).reshape(200, 40)
chance = np.minimum.accumulate(random, 1).mean(0) - 0.397887
print(f"{found[-1]:.3f} above the minimum; random places {chance[-1]:.3f}")

side = np.linspace(0, 1, 80)
square = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.contourf(side, side, np.log(branin(square)).reshape(80, 80), 20, cmap="Greys")
left.plot(*places[:10].T, "o", label="first ten, at random")
left.plot(*places[10:].T, "o", label="chosen by the network")
right.semilogy(chance, label="random places, mean of 200 runs")
right.semilogy(found, label="chosen by the network")
right.set(xlabel="evaluations", ylabel="best value so far, above the minimum")
for axes in (left, right):
    axes.legend(fontsize="small")
plt.show()

# %%
# With seeds 1 to 5 the search ends at most 0.12 above the minimum. With seed 0 it ends 1.5 above it: its first ten
# places mislead all later networks. So begin again from other places, if evaluations are left.
