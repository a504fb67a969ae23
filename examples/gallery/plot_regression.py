"""
Error bars that grow where there are no data
============================================

The first example: how a network learns a curve, and what its error bars say. A network with one hidden layer learns
from 197 points of a sine between -3 and 3, with a gap between 0 and 1.5, and a noise of standard deviation 0.1. The
variance of its output says where it may be trusted.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import plot
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Linear, ReLU, Sequential

rng = np.random.default_rng(0)
x = rng.uniform(-3, 3, 260)
x = x[(x < 0) | (x > 1.5)]
y = np.sin(x) + rng.normal(0, 0.1, x.size)

# %%
# A training step has four lines: forward, the observations, backward, step. (``net.fit`` runs such a loop.)

pytagi_ddp.manual_seed(0)
net = Sequential(Linear(1, 100), ReLU(), Linear(100, 1))
likelihood = Gaussian(0.1)

for _epoch in range(40):
    for batch in np.array_split(rng.permutation(x.size), 20):
        net(x[batch])
        likelihood.observe(net, y[batch])
        net.backward()
        net.step()

# %%
# ``var`` is the variance of the function, which more data would make smaller. An observation has the noise on top.

places = np.linspace(-6, 6, 301)
mu, var = (moments[:, 0] for moments in net.predict(places))

figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
plot.band(axes, places, mu, var + 0.1**2, color="C0")
plot.band(axes, places, mu, var, "mean; 2 std of the function (dark), and of an observation", "C0")
axes.plot(places, np.sin(places), "--", color="gray", label="truth")
axes.plot(x, y, ".", color="black", markersize=3, label="data")
axes.set(xlabel="x", ylabel="y", ylim=(-4, 4))
axes.legend(loc="lower left", fontsize="small", ncols=2)
plt.show()

# %%
# The standard deviation of the function (median), and how much of the true curve is within two of them:

covered = np.abs(mu - np.sin(places)) < 2 * np.sqrt(var)
in_gap, outside = (places > 0) & (places < 1.5), np.abs(places) > 3
for name, there in {"among the data": ~in_gap & ~outside, "in the gap": in_gap, "outside": outside}.items():
    print(f"{name}: standard deviation {np.sqrt(np.median(var[there])):.3f}, {covered[there].mean():.0%} within two")

# %%
# Outside of the data the band grows. Its width is not to be taken literally: among the data it holds less of the curve
# than the 95 % that two standard deviations should, as each of the 40 epochs counts the same data again. Whether the
# *gap* shows differs from seed to seed (try ``manual_seed(2)``), as weights are taken as independent. A `ReLU` is on or
# off by the sign of its mean, so the band has a step where a unit switches. `MixtureReLU` in its place gives a smooth
# band, which is far too narrow outside of the data here.
