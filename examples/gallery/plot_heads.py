"""
Three heads for digits, and how far to trust them
=================================================

Which head to choose for a classifier. The same network learns digits with three ways to observe a label: hierarchical
softmax, `Remax` and `ClosedFormSoftmax`. Each gives class probabilities. Are they calibrated, and do they say which
answers to refuse?

The digits are drawn, so that there is nothing to download. With MNIST: ``python -m examples.gallery.plot_heads --data
DIR``; ``--quick`` is a short trial.
"""

# %%
# The data: 2,000 digits to learn from, and as many to test with.

from functools import partial

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from examples.classifier import HierarchicalHead, RemaxHead
from examples.digits import load_digits, parser
from pytagi_ddp import metric, plot
from pytagi_ddp.nn import ClosedFormSoftmax, Linear, MixtureReLU, Remax, Sequential

args = parser("three heads for digits").parse_args()
x, label, x_new, label_new = load_digits(args)
mean, std = x.mean(), x.std()

# %%
# A hierarchical softmax has 11 outputs for 10 classes: the nodes of a binary tree, whose leaves are the classes. A
# label is observed as +1 or -1 at the 4 nodes on its path. The other two heads have an output for each class, which is
# observed as 1 or 0. ``sigma_v`` is the standard deviation of such an observation. It says how far labels are trusted.
# ``examples/classifier.py`` has both ways to observe.
#
# The last layer below the other two heads gets a narrow prior, 0.03 times the usual standard deviations: with the usual
# one the closed-form softmax overflows, as its moments are exponentials of variances.

narrow = partial(Linear, 100, 10, gain_weight=0.03, gain_bias=0.03)
HEADS = {
    "hierarchical softmax": (lambda: [Linear(100, 11)], HierarchicalHead(10, sigma_v=0.3)),
    "Remax": (lambda: [narrow(), Remax()], RemaxHead(10, sigma_v=0.05)),
    "closed-form softmax": (lambda: [narrow(), ClosedFormSoftmax()], RemaxHead(10, sigma_v=0.05)),
}

# %%
# In the tree, the probability of going one way at a node with output N(m, s) is Φ(m / sqrt(1/9 + s)): a large variance
# draws it towards 1/2. In the other two heads, the means of the outputs are the probabilities. Those of `Remax` sum to
# 1; those of `ClosedFormSoftmax` do not always, so they are divided by their sum.


def learnt_probabilities(layers, head):
    """Class probabilities (n, 10) of the test images, after three passes over the training data."""
    pytagi_ddp.manual_seed(0)
    net = Sequential(Linear(28 * 28, 100), MixtureReLU(), Linear(100, 100), MixtureReLU(), *layers())
    net.fit((x - mean) / std, label, head, epochs=3, batch_size=16, seed=1, evidence=None)
    p = np.clip(head.prediction(*net.predict((x_new - mean) / std)).probabilities, 1e-9, None)
    return p / p.sum(1, keepdims=True)


figure, (examples, diagram, curve) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
examples.imshow(np.block([[x_new[5 * r + c] for c in range(5)] for r in range(5)]), cmap="gray")
examples.set(title="what is classified", xticks=[], yticks=[])
for name, (layers, head) in HEADS.items():
    p = learnt_probabilities(layers, head)
    wrong = p.argmax(1) != label_new
    plot.reliability(diagram, p, label_new, label=name)
    plot.rejection(curve, metric.entropy(p), wrong, name)
    surest = metric.entropy(p) <= np.median(metric.entropy(p))
    print(
        f"{name}: error {wrong.mean():.2%}, of the surest half {wrong[surest].mean():.2%}; "
        f"calibration error (ECE) {metric.calibration_error(p, label_new):.3f}"
    )
diagram.legend(loc="lower right", fontsize="small")
plt.show()

# %%
# In the middle picture, a point on the diagonal means that of answers given with a probability of 80 %, about 80 % are
# right; larger dots stand for more answers. After so few images the hierarchical softmax is above the diagonal: it is
# less sure than it could be, as the doubts of all decisions on a path multiply. The other two are near the diagonal.
# All three know which answers to refuse: the surest half has almost no errors. With all of MNIST (``--data DIR``):
#
# ====================  ======  ===================  =====
# MNIST                 error   of the surest half   ECE
# ====================  ======  ===================  =====
# hierarchical softmax  2.57 %  0.02 %               0.010
# `Remax`               2.43 %  0.15 %               0.009
# `ClosedFormSoftmax`   2.55 %  0.00 %               0.007
# ====================  ======  ===================  =====
#
# Errors of one seed do not tell the heads apart. What does is how sensitive they are to their settings. With a standard
# deviation of 0.1 for a label and the usual prior, `ClosedFormSoftmax` ends with a ``FloatingPointError`` on MNIST, and
# the error of `Remax` on the drawn digits rises between some epochs. The hierarchical softmax learnt with both standard
# deviations that were tried, 0.1 and 0.3.
#
# All of this is about images like those that were learnt. The page *Images of another kind* shows others.
