"""
What the weights have learnt
============================

How to see which layers have learnt, and which weights the network can do without. Each weight has a mean and a standard
deviation. Their ratio, the signal to noise, says which weights to remove.

A classifier learns handwritten digits. `net.inspect` says for each layer which share of its units is uncertain or dead,
what the signal to noise (SNR) of its weights is, ``|mean| / std``, and how much of the prior's variance is left.
"""

import copy

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.nn import Linear, MixtureReLU, Sequential

x, label = load_digits(return_X_y=True)
x, x_new, label, label_new = train_test_split((x - x.mean()) / x.std(), label, test_size=500, random_state=0)

pytagi_ddp.manual_seed(0)
net = Sequential(Linear(64, 100), MixtureReLU(), Linear(100, 100), MixtureReLU(), Linear(100, 10))
before = copy.deepcopy(net)
net.fit(x, label, Categorical(10), epochs=20, batch_size=16)
print(net.inspect(x_new[:100]))

# %%
# Which weights can the network do without? Three scores are compared. By each, the weights with the smallest scores in
# their layer are set to 0, mean and variance.

rng = np.random.default_rng(0)
SCORES = {
    "smallest |mean| / std": lambda layer: np.abs(layer.mu_w) / np.sqrt(layer.var_w),
    "smallest |mean|": lambda layer: np.abs(layer.mu_w),
    "any": lambda layer: rng.random(layer.mu_w.shape),
}


def error_without(share, score_of):
    """Test error of a copy in which this share of each layer's weights is 0."""
    pruned = copy.deepcopy(net)
    for layer in pruned.layers:
        if layer.num_weights:
            scores = score_of(layer)
            gone = scores < np.quantile(scores, share)
            layer.mu_w[gone], layer.var_w[gone] = 0, 0
    return metric.classification_error(pruned.predict(x_new)[0].argmax(1), label_new)


shares = np.array([0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9])
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
plot.parameters(left, before, "snr_w").set(title="signal to noise, before training", xlim=(-5, 2))
plot.parameters(middle, net, "snr_w").set(title="signal to noise, after training", xlim=(-5, 2))
for name, score_of in SCORES.items():
    errors = [error_without(share, score_of) for share in shares]
    right.plot(shares, errors, marker="o", label=name)
    print(f"{name} removed: {', '.join(f'{s:.0%} {e:.1%}' for s, e in zip(shares, errors, strict=True))}")
right.set(title="without a share of the weights", xlabel="share removed", ylabel="test error", ylim=(0, None))
right.legend()
plt.show()

# %%
# The last layer has learnt the most. Most weights can go: without the 70 % with the smallest ratios, or the smallest
# means, the error is about the same. Of any weights, 20 % are too many. A small ratio is no proof that a weight is not
# needed: weights are judged one by one, and several that matter little may matter together.
