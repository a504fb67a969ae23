"""
Classes, and where the network is unsure of them
================================================

How to learn classes, and three pictures that show how far to trust the probabilities: where in the plane the network is
unsure (entropy), whether its probabilities agree with how often it is right (reliability), and how many errors are left
if it may refuse the points that it doubts (rejection).

The data: each class is one of the three arms of a spiral.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.nn import Linear, MixtureReLU, Sequential


def spiral(rng, n):
    """n points of each of three arms, and their classes."""
    label = np.repeat(np.arange(3), n)
    radius = rng.uniform(0.1, 1, label.size)
    angle = 3 * radius + 2 * np.pi / 3 * label + rng.normal(0, 0.45, label.size)
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1), label


rng = np.random.default_rng(0)
x, label = spiral(rng, 200)
x_new, label_new = spiral(rng, 1000)

# %%
# The network has an output for each class, and `Categorical` observes a label through a softmax of them. Its
# ``predict`` turns means and variances of the outputs into class probabilities.

pytagi_ddp.manual_seed(0)
net = Sequential(Linear(2, 64), MixtureReLU(), Linear(64, 64), MixtureReLU(), Linear(64, 3))
likelihood = Categorical(3)
net.fit(x, label, likelihood, epochs=40, batch_size=15)

side = np.linspace(-1.6, 1.6, 161)
plane = np.stack(np.meshgrid(side, side), -1)
entropy = metric.entropy(likelihood.predict(net, plane.reshape(-1, 2)).probabilities)
p = likelihood.predict(net, x_new).probabilities
wrong, doubt = p.argmax(1) != label_new, 1 - p.max(1)

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
shades = left.pcolormesh(side, side, entropy.reshape(161, 161), cmap="magma", vmin=0, vmax=np.log(3))
left.scatter(*x.T, 3, [f"C{k}" for k in label])
left.set(aspect="equal", title="entropy of the prediction")
figure.colorbar(shades, ax=left, shrink=0.8)
plot.reliability(middle, p, label_new)
plot.rejection(right, doubt, wrong)
plt.show()

print(f"errors: {wrong.mean():.1%} of all, {wrong[doubt <= np.median(doubt)].mean():.1%} of the surest half")

# %%
# The network is unsure at the borders between the classes, which it continues to where there are no data. Elsewhere it
# is sure of a class, however far from the data: entropy does not tell which inputs are unlike them (see *Images of
# another kind*). The reliability is above the diagonal: the network is right more often than its probabilities say.
