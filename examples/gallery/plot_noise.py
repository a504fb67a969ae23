"""
Noise that the network learns
=============================

How a network learns the noise of observations where it is not known, or differs from place to place: a second output
predicts its variance, by approximate Gaussian variance inference (AGVI). The two kinds of uncertainty stay apart: the
uncertainty about the function, which more data would remove, and the noise, which stays.
"""

# %%
# The data: the standard deviation of the noise grows from 0.05 on the left to 0.6 on the right.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import plot
from pytagi_ddp.likelihoods import HeteroscedasticGaussian
from pytagi_ddp.nn import EvenExp, Linear, MixtureReLU, Sequential


def noise(x):
    """The true standard deviation of an observation at x."""
    return 0.05 + 0.275 * (x + 1)


rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, 2000)
y = x**3 + rng.normal(0, noise(x))

# %%
# The network has a pair of outputs for each target: the mean, and a number whose exponential (`EvenExp`) is the
# variance of the noise. `HeteroscedasticGaussian` takes observations without a variance. Steps are those of plain TAGI.

pytagi_ddp.manual_seed(1)
net = Sequential(Linear(1, 64), MixtureReLU(), Linear(64, 2, gain_weight=0.1, gain_bias=0.1), EvenExp())
net.fit(x, y, HeteroscedasticGaussian(), epochs=10, batch_size=4, evidence=None)

# %%
# ``mu[:, 0]`` and ``var[:, 0]`` are mean and variance of the function, and ``mu[:, 1]`` is the expected variance of the
# noise.

places = np.linspace(-1, 1, 201)
mu, var = net.predict(places)
mean, known, noisy = mu[:, 0], var[:, 0], mu[:, 1]

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(x, y, ".", color="black", markersize=1.5, alpha=0.5)
plot.band(left, places, mean, known + noisy, "mean, and 2 std of an observation")
left.plot(places, places**3, "--", color="gray", label="truth")
left.set(xlabel="x", ylabel="y")
left.legend(fontsize="small")
right.plot(places, np.sqrt(noisy), label="noise, learnt")
right.plot(places, noise(places), "--", color="gray", label="noise, true")
right.plot(places, np.sqrt(known), label="the function's own")
right.plot(places, np.abs(mean - places**3), ":", color="C1", label="its error")
right.set(xlabel="x", ylabel="standard deviation", ylim=(0, None))
right.legend(fontsize="small")
plt.show()

# %%
# No number of observations removes the noise (blue). The uncertainty about the curve itself (orange) is less than a
# tenth of it after 2,000 observations, and about as large as the error of the mean (dotted).
#
# How many of 2,000 new observations are in the intervals that should hold 90 % of them: in all, on the left, where
# there is little noise, and on the right, where there is much.

x_new = rng.uniform(-1, 1, 2000)
y_new = x_new**3 + rng.normal(0, noise(x_new))
mu, var = net.predict(x_new)
inside = np.abs(y_new - mu[:, 0]) < 1.645 * np.sqrt(var[:, 0] + mu[:, 1])
print(f"{inside.mean():.1%} of all, {inside[x_new < 0].mean():.1%} left, {inside[x_new > 0].mean():.1%} right")
mu, var = net.predict(places)
print(f"{np.mean(np.abs(mu[:, 0] - places**3) < 2 * np.sqrt(var[:, 0])):.0%} of the curve within 2 of its own std")

# %%
# The learnt noise is reliable, and the variance of the function less so. With 40 epochs instead of 10, in batches of
# 10, intervals of observations are as good, but only 68 % of the curve is within 2 standard deviations, as each epoch
# counts the same data again. With `ReLU` in place of `MixtureReLU`, it is 31 to 49 % (three seeds), and hardly more
# with 10 epochs.
