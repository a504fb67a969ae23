"""
Four heads for digits, and how far to trust them
================================================

Which head to choose for a classifier. The same network learns handwritten digits with four ways to observe a label.
Each gives class probabilities. Are they calibrated, and do they say which answers to refuse?
"""

# %%
# The data: 1,797 digits of 8 x 8 pixels, which come with scikit-learn. 500 of them are for the test.

from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.likelihoods import Categorical, Gaussian, HierarchicalCategorical
from pytagi_ddp.nn import ClosedFormSoftmax, Linear, MixtureReLU, Remax, Sequential

x, label = load_digits(return_X_y=True)
x, x_new, label, label_new = train_test_split((x - x.mean()) / x.std(), label, test_size=500, random_state=0)

# %%
# `Categorical` observes a label through the softmax of ten outputs. `HierarchicalCategorical` makes it a path of binary
# decisions: its 11 outputs are the nodes of a tree, whose leaves are the classes. The other two heads are layers whose
# outputs are probabilities already. Each is observed as 1 or 0, with a standard deviation that says how far labels are
# trusted.
#
# The last layer below these two gets a narrow prior, 0.03 times the usual standard deviations: with the usual one the
# closed-form softmax overflows, as its moments are exponentials of variances.

narrow = partial(Linear, 100, 10, gain_weight=0.03, gain_bias=0.03)
HEADS = {
    "Categorical": (lambda: [Linear(100, 10)], Categorical(10)),
    "HierarchicalCategorical": (lambda: [Linear(100, 11)], HierarchicalCategorical(10)),
    "Remax": (lambda: [narrow(), Remax()], Gaussian(0.1)),
    "ClosedFormSoftmax": (lambda: [narrow(), ClosedFormSoftmax()], Gaussian(0.05)),
}


def learnt_probabilities(layers, likelihood):
    """Class probabilities (n, 10) of the test images, after 20 passes over the training data."""
    pytagi_ddp.manual_seed(0)
    net = Sequential(Linear(64, 100), MixtureReLU(), Linear(100, 100), MixtureReLU(), *layers())
    numbers = isinstance(likelihood, Gaussian)
    y, evidence = np.eye(10)[label] if numbers else label, {"count": 8}  # how often a label counts
    net.fit(x, y, likelihood, epochs=20, batch_size=16, evidence=evidence)
    prediction = likelihood.prediction(*net.predict(x_new))
    p = np.clip(prediction.mean, 1e-9, None) if numbers else prediction.probabilities
    return p / p.sum(1, keepdims=True)


figure, (digits, diagram, curve) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
digits.imshow(np.block([[x_new[5 * r + c].reshape(8, 8) for c in range(5)] for r in range(5)]), cmap="gray")
digits.set(title="what is classified", xticks=[], yticks=[])
for name, (layers, likelihood) in HEADS.items():
    p = learnt_probabilities(layers, likelihood)
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
# right; larger dots stand for more answers. After so few images the first two heads are above the diagonal: they are
# less sure than they could be. The other two are nearer to it. All four know which answers to refuse: the surest half
# has almost no errors.
#
# Errors of one seed do not tell the heads apart. What does is how sensitive they are to their settings. The first two
# have none. With a standard deviation of 0.2 for a label instead of 0.05, `ClosedFormSoftmax` ends with an error of
# 12 %. So begin with `Categorical`, which is also the default of `net.fit`.
#
# All of this is about images like those that were learnt. The page *Images of another kind* shows others.
