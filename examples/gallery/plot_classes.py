"""
Classes, and where the network does not know them
=================================================

How to learn classes, and three pictures that show how far to trust the probabilities: where in the plane the network is
unsure (entropy), whether its probabilities agree with how often it is right (reliability), and how many errors are left
if it may refuse the points that it doubts (rejection).
"""

# %%
# The data: each class is one of the three arms of a spiral.

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

# %%
# The network has an output for each class, and `Categorical` observes a label through a softmax of them.

pytagi_ddp.manual_seed(0)
net = Sequential(Linear(2, 64), MixtureReLU(), Linear(64, 64), MixtureReLU(), Linear(64, 3))
likelihood = Categorical(3)
net.fit(x, label, likelihood, epochs=40, batch_size=15)

# %%
# The likelihood turns means and variances of the outputs into class probabilities. Entropy is drawn as a share of ln 3,
# its largest value.


def probabilities(points):
    """Class probabilities (points, 3)."""
    return likelihood.prediction(*net.predict(points)).probabilities


side = np.linspace(-1.6, 1.6, 161)
grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
p = probabilities(grid)
entropy = metric.entropy(p) / np.log(3)

x_new, label_new = spiral(rng, 1000)
p_new = probabilities(x_new)
right = p_new.argmax(1) == label_new
doubt = 1 - p_new.max(1)

figure, (plane, diagram, curve) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
shades = plane.pcolormesh(side, side, entropy.reshape(161, 161), cmap="magma", vmin=0, vmax=1, shading="nearest")
for k in range(3):
    plane.plot(*x[label == k].T, ".", markersize=3, label=f"class {k}")
plane.set(aspect="equal", title="entropy of the prediction")
figure.colorbar(shades, ax=plane, shrink=0.8, label="share of ln 3")
plot.reliability(diagram, p_new, label_new)
plot.rejection(curve, doubt, ~right)
plt.show()

# %%
# The share of errors among all new points, and among the half that the network is surest of:

surest = doubt <= np.median(doubt)
print(f"{np.mean(~right):.1%} of all, {np.mean(~right[surest]):.1%} of the surest half")
