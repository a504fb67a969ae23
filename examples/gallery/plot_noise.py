"""
Noise that the network learns
=============================

Where the noise of observations is not known, or differs from place to place, a second output predicts its variance:
approximate Gaussian variance inference (AGVI). The two kinds of uncertainty stay apart: what more data could remove,
and what they cannot.
"""

# %%
# The noise grows from left to right, from a standard deviation of 0.05 to one of 0.6.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import plot
from pytagi_ddp.nn import EvenExp, Linear, MixtureReLU, OutputUpdater, Sequential


def noise(x):
    """The true standard deviation of an observation at x."""
    return 0.05 + 0.275 * (x + 1)


rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, 2000)
y = x**3 + rng.normal(0, noise(x))

# %%
# Two outputs for each target, in pairs: the mean, and a number whose exponential (`EvenExp`) is the variance of the
# noise. `update_heteros` takes observations without a variance.

pytagi_ddp.manual_seed(1)
net = Sequential(Linear(1, 64), MixtureReLU(), Linear(64, 2, gain_weight=0.1, gain_bias=0.1), EvenExp())
updater = OutputUpdater(net.device)

for _epoch in range(10):
    for batch in np.array_split(rng.permutation(x.size), 500):
        net(x[batch])
        updater.update_heteros(net.output_z_buffer, y[batch], net.input_delta_z_buffer)
        net.backward()
        net.step()

# %%
# ``mu[:, 0]`` and ``var[:, 0]`` are the moments of the function, ``mu[:, 1]`` is the expected variance of the noise.

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
# The noise (blue) is what no number of observations removes. What the network does not know of the curve itself
# (orange) is a tenth of it after 2,000 of them, and about as large as its error (dots).
#
# How many of 2,000 new observations fall into the intervals that should hold 90 % of them, where there is little noise
# and where there is much:

x_new = rng.uniform(-1, 1, 2000)
y_new = x_new**3 + rng.normal(0, noise(x_new))
mu, var = net.predict(x_new)
inside = np.abs(y_new - mu[:, 0]) < 1.645 * np.sqrt(var[:, 0] + mu[:, 1])
print(f"{inside.mean():.1%} of all, {inside[x_new < 0].mean():.1%} left, {inside[x_new > 0].mean():.1%} right")
mu, var = net.predict(places)
print(f"{np.mean(np.abs(mu[:, 0] - places**3) < 2 * np.sqrt(var[:, 0])):.0%} of the curve within 2 of its own std")

# %%
# The noise is the robust part. The function's own variance is not: with 40 passes instead of 10, in batches of 10, and
# `ReLU`, the same data give an interval of an observation that is as good, and hold a quarter to a half of the curve
# within 2 std, as each pass counts the data once more.
