"""
What the weights have learnt
============================

How to see which layers have learnt, and which weights the network can do without. Each weight has a mean and a standard
deviation. They are compared before and after training, and the ratio of both, the signal to noise, says which weights
to remove.
"""

# %%
# A classifier of the handwritten digits of scikit-learn, 1,797 images of 8 x 8 pixels. A copy of the untrained network
# is kept for comparison.

import copy

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import pytagi_ddp
from pytagi_ddp import plot
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.nn import Linear, MixtureReLU, Sequential

x, label = load_digits(return_X_y=True)
x, x_new, label, label_new = train_test_split((x - x.mean()) / x.std(), label, test_size=500, random_state=0)

pytagi_ddp.manual_seed(0)
net = Sequential(Linear(64, 100), MixtureReLU(), Linear(100, 100), MixtureReLU(), Linear(100, 10))
before = copy.deepcopy(net)
rng = np.random.default_rng(0)
net.fit(x, label, Categorical(10), epochs=20, batch_size=16)

# %%
# `net.inspect` says for each layer which share of its units is uncertain or dead, what the signal to noise (SNR) of its
# weights is, ``|mean| / std``, and how much of the prior's variance is left.

found = net.inspect(x_new[:100])
print(found)

figure, (graph, table) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", width_ratios=(1, 1.5))
plot.network(graph, net)
plot.inspection(table, found)
plt.show()

# %%
# Before training, means are random and all standard deviations of a layer are equal. Afterwards the last layer has
# learnt the most. The evidence of a label is shared out among the weights of the others.

figure, axes = plt.subplots(2, 3, figsize=(13, 7), layout="constrained")
PANELS = {"mu_w": "means", "std_w": "std", "snr_w": "|mean| / std"}
for column, (what, title) in zip(axes.T, PANELS.items(), strict=True):
    for panel, network, when in zip(column, (before, net), ("before", "after"), strict=True):
        plot.parameters(panel, network, what).set_title(f"{title} of weights, {when}")
        if what == "std_w":
            panel.set(yscale="log", ylim=(0.01, 1e4))
    column[0].sharex(column[1])
plt.show()

# %%
# How much is learnt about a weight depends on the inputs that it has multiplied. In the picture on the left, pixels
# differ by how much their brightness says.
#
# Which weights can the network do without? Three scores are compared. By each, the weights with the smallest scores in
# their layer are set to 0, mean and variance.


def error_without(share, score_of):
    """Test error of a copy in which this share of each layer's weights is 0."""
    pruned = copy.deepcopy(net)
    for _, layer in pruned.named_leaves():
        if layer.num_weights:
            scores = score_of(layer)
            gone = scores <= np.quantile(scores, share)
            layer.mu_w[gone], layer.var_w[gone] = 0, 0
    return np.mean(pruned.predict(x_new)[0].argmax(1) != label_new)


SCORES = {
    "smallest |mean| / std": lambda layer: np.abs(layer.mu_w) / np.sqrt(layer.var_w),
    "smallest |mean|": lambda layer: np.abs(layer.mu_w),
    "any": lambda layer: rng.random(layer.mu_w.shape),
}
figure, (pixels, curve) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
of_pixels = np.sqrt(net.layers[0].var_w.reshape(100, 8, 8)).mean(0)
figure.colorbar(pixels.imshow(of_pixels, cmap="magma"), ax=pixels, shrink=0.8)
pixels.set(title="std of the weights of each pixel", xticks=[], yticks=[])
shares = np.array([0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9])
for name, score_of in SCORES.items():
    errors = [error_without(share, score_of) for share in shares]
    curve.plot(shares, errors, marker="o", label=name)
    print(f"{name} removed: {', '.join(f'{s:.0%} {e:.1%}' for s, e in zip(shares, errors, strict=True))}")
curve.set(title="without a share of the weights", xlabel="share removed", ylabel="test error", ylim=(0, None))
curve.legend(fontsize="small")
plt.show()

# %%
# Most weights can go: without the 70 % with the smallest ratios, or the smallest means, the error is the same. Of any
# weights, 20 % are too many. A small ratio is no proof that a weight is not needed: weights are judged one by one, and
# several that matter little may matter together.
