"""
Four heads for digits, and how far to trust them
================================================

Which head to choose for a classifier. The same network learns handwritten digits with four ways to observe a label.
Each gives class probabilities. Are they calibrated, and do they say which answers to refuse? The data are 1,797 digits
of 8 x 8 pixels, 500 of them for the test.
"""

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
# trusted. The layer below them gets a narrow prior: with the usual one, `ClosedFormSoftmax` overflows.
# `Remax` forgets evidence: by the step of the others it makes many errors with some seeds.

narrow = partial(Linear, 100, 10, gain_weight=0.03, gain_bias=0.03)
one_hot = np.eye(10)[label]
HEADS: dict = {
    "Categorical": (lambda: [Linear(100, 10)], Categorical(10), label),
    "HierarchicalCategorical": (lambda: [Linear(100, 11)], HierarchicalCategorical(10), label),
    "Remax": (lambda: [narrow(), Remax()], Gaussian(0.1), one_hot),
    "ClosedFormSoftmax": (lambda: [narrow(), ClosedFormSoftmax()], Gaussian(0.05), one_hot),
}

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for name, (head, likelihood, y) in HEADS.items():
    pytagi_ddp.manual_seed(0)
    options: dict = {"evidence": None, "forget": 4} if name == "Remax" else {"evidence": {"count": 8}}
    net = Sequential(Linear(64, 100), MixtureReLU(), Linear(100, 100), MixtureReLU(), *head())
    net.fit(x, y, likelihood, epochs=20, batch_size=16, **options)
    prediction = likelihood.predict(net, x_new)
    p = prediction.probabilities if y is label else np.clip(prediction.mean, 1e-9, None)
    p /= p.sum(1, keepdims=True)  # means of 0 and 1 need not sum to 1
    wrong, doubt = p.argmax(1) != label_new, metric.entropy(p)
    surest = doubt <= np.median(doubt)
    plot.reliability(left, p, label_new, label=name)
    plot.rejection(right, doubt, wrong, name)
    errors = f"error {wrong.mean():.2%}, of the surest half {wrong[surest].mean():.2%}"
    print(f"{name}: {errors}; calibration error (ECE) {metric.calibration_error(p, label_new):.3f}")
left.legend(fontsize="small")
plt.show()

# %%
# On the left, a point on the diagonal means that of answers given with a probability of 80 %, about 80 % are right;
# larger dots stand for more answers. The first two heads are mostly above the diagonal: they are less sure than they
# could be. All four know which answers to refuse: the surest half has almost no errors. `Remax` depends most on the
# seed: with seeds 0 to 5 it has 3.4 to 5.8 % errors. The first two have no settings. So begin with `Categorical`, the
# default of `net.fit`.
