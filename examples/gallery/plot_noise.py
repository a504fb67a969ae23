"""
Noise that the network learns
=============================

How a network learns the noise of observations where it is not known, or differs from place to place: a second output
predicts its variance, by approximate Gaussian variance inference (AGVI). The two kinds of uncertainty stay apart: the
uncertainty about the function, which more data would remove, and the noise, which stays.

The data: the standard deviation of the noise grows from 0.05 on the left to 0.6 on the right.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import plot
from pytagi_ddp.likelihoods import HeteroscedasticGaussian
from pytagi_ddp.nn import EvenExp, Linear, MixtureReLU, Sequential

rng = np.random.default_rng(0)
x, x_new = rng.uniform(-1, 1, (2, 2000))
y, y_new = (places**3 + rng.normal(0, 0.05 + 0.275 * (places + 1)) for places in (x, x_new))

# %%
# The network has a pair of outputs for each target: the mean, and a number whose exponential (`EvenExp`) is the
# variance of the noise. By ``evidence=None`` each epoch counts the samples as new ones, which suits a training of few
# epochs. After many, the standard deviation of the function would be too small: the default, a schedule, prevents that.

pytagi_ddp.manual_seed(1)
net = Sequential(Linear(1, 64), MixtureReLU(), Linear(64, 2, gain_weight=0.1, gain_bias=0.1), EvenExp())
likelihood = HeteroscedasticGaussian()
net.fit(x, y, likelihood, epochs=10, batch_size=4, evidence=None)

places = np.linspace(-1, 1, 201)
mu, var = net.predict(places)
mean, known, noisy = mu[:, 0], var[:, 0], mu[:, 1]  # of the function: mean, variance; the variance of the noise

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(x, y, ".", color="black", markersize=1.5, alpha=0.5)
plot.band(left, places, mean, known + noisy, "mean, and 2 std of an observation")
left.plot(places, places**3, "--", color="gray", label="truth")
left.set(xlabel="x", ylabel="y")
right.plot(places, np.sqrt(noisy), label="noise, learnt")
right.plot(places, 0.05 + 0.275 * (places + 1), "--", color="gray", label="noise, true")
right.plot(places, np.sqrt(known), label="the function's own")
right.plot(places, np.abs(mean - places**3), ":", color="C1", label="its error")
right.set(xlabel="x", ylabel="standard deviation", ylim=(0, None))
for axes in (left, right):
    axes.legend(fontsize="small")
plt.show()

# %%
# No number of observations removes the noise (blue). The uncertainty about the curve itself (orange) is much smaller
# after 2,000 observations, and about as large as the error of the mean (dotted).
#
# How many new observations are in the intervals that should hold 90 % of them: in all, on the left, where there is
# little noise, and on the right, where there is much.

low, high = (ends[:, 0] for ends in likelihood.predict(net, x_new).interval(0.9))
inside = (low < y_new) & (y_new < high)
print(f"{inside.mean():.1%} of all, {inside[x_new < 0].mean():.1%} left, {inside[x_new > 0].mean():.1%} right")
print(f"{np.mean(np.abs(mean - places**3) < 2 * np.sqrt(known)):.0%} of the curve within 2 of its own std")
