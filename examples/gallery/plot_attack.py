"""
An attack, and who notices it
=============================

How an image can be changed until the network sees another class, and whether the network's uncertainty reveals the
attack (it does not). The attack is inference: the network is told that it has
observed the wrong class, and says which image would explain that. Source: Nguyen & Goulet (2022), "Analytically
tractable hidden-states inference in Bayesian neural networks", JMLR 23.
"""

# %%
# A classifier of the handwritten digits of scikit-learn, 1,797 images of 8 x 8 pixels.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import pytagi_ddp
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.metric import entropy
from pytagi_ddp.nn import Linear, MixtureReLU, Sequential

x, label = load_digits(return_X_y=True)
x, new, label, truth = train_test_split((x / 16).astype(np.float32), label, test_size=500, random_state=0)
likelihood = Categorical(10)
pytagi_ddp.manual_seed(0)
net = Sequential(Linear(64, 64), MixtureReLU(), Linear(64, 64), MixtureReLU(), Linear(64, 10))
net.fit(x, label, likelihood, epochs=20, batch_size=16)


def classify(x):
    """Class probabilities (n, 10), and standard deviations of the outputs (n)."""
    mu, var = net.predict(x)
    return likelihood.prediction(mu, var).probabilities, np.sqrt(var.mean(1))


right = classify(new)[0].argmax(1) == truth
new, truth = new[right], truth[right]
print(f"{right.mean():.1%} of new images are right")

# %%
# The attack: the prior of each pixel is N(m, 0.3²), where m is its value in the image, from 0 to 1. We claim to have
# observed the next class five times. The mean of the posterior then is an image of that class, and not far from m. A
# *crude* attack takes one step, which treats the network as linear. A *careful* one takes 20 steps with a 20th of the
# evidence each. For comparison, random *noise* changes the images by as much as the careful attack.

net.input_state_update = True


def attack(x, wanted, steps, std=0.3):
    """The posterior means of the pixels, given that the classes are the wanted ones."""
    mu, var = x, np.full_like(x, std**2)
    for _ in range(steps):
        net(mu, var)
        likelihood.observe(net, wanted, weight=5 / steps)
        net.backward()
        delta_mu, delta_var = (deltas.reshape(x.shape) for deltas in net.get_input_states())
        mu, var = mu + var * delta_mu, var + var**2 * delta_var
    return mu


wanted = (truth + 1) % 10
careful, crude = attack(new, wanted, steps=20), attack(new, wanted, steps=1)
direction = np.random.default_rng(0).normal(size=new.shape)
length = np.linalg.norm(careful - new, axis=1, keepdims=True)
noise = (new + length * direction / np.linalg.norm(direction, axis=1, keepdims=True)).astype(np.float32)

picked = np.array([np.flatnonzero(truth == digit)[0] for digit in range(10)])
gray, signed = {"cmap": "gray", "vmin": 0, "vmax": 1}, {"cmap": "RdBu_r", "vmin": -0.5, "vmax": 0.5}
rows = ("image", new, gray), ("change", careful - new, signed), ("attacked", careful, gray)
figure, grid = plt.subplots(3, 10, figsize=(12, 4.4), layout="constrained", subplot_kw={"xticks": [], "yticks": []})
for axes, (name, x, colours) in zip(grid, rows, strict=True):
    p = classify(x[picked])[0]
    for k, panel in enumerate(axes):
        shown = panel.imshow(x[picked[k]].reshape(8, 8), **colours)
        if colours is gray:
            panel.set_title(f"{p[k].argmax()}: {p[k].max():.0%}", fontsize="medium")
    axes[0].set_ylabel(name)
    figure.colorbar(shown, ax=list(axes), pad=0.01)
plt.show()

# %%
# Does the network notice? Two detectors are tried: they refuse images whose outputs have a large standard deviation, or
# whose class probabilities have a large entropy.


def doubt(x):
    """Standard deviation of the outputs, and entropy of the class probabilities."""
    p, std = classify(x)
    return {"std": std, "entropy": entropy(p)}


def detected(before, after):
    """How often a changed image is doubted more than an unchanged one: the area under the ROC curve. 50 % is chance."""
    return np.mean(after[:, None] > before)


clean = doubt(new)
for name, x in (("noise", noise), ("careful", careful), ("crude", crude)):
    turned = classify(x)[0].argmax(1) == wanted
    change = np.linalg.norm(x - new, axis=1).mean() / np.linalg.norm(new, axis=1).mean()
    found = ", ".join(f"{measure} {detected(clean[measure], value):.0%}" for measure, value in doubt(x).items())
    print(f"{name}: changed by {change:.0%}, {turned.mean():.1%} are the wanted class; detected by {found}")

# %%
# The careful attack turns all images, and noise of the same size almost none. Neither measure protects against it. The
# standard deviation is even smaller than before (37 %): to the network, the attacked images are more familiar. It is
# larger after the crude attack, whose single long step leaves the region of the data. The entropy is a little larger
# after the careful one (64 %), and smaller after the crude one, which goes far beyond the border between two classes.
