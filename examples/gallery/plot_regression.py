"""
Error bars that grow where there are no data
============================================

The first example: how a network learns a curve, and what its error bars say, and do not say. A network with one hidden
layer learns from noisy points between -3 and 3, with a gap between them. Nobody tells it where it may be trusted: the
variance of its output says so.
"""

# %%
# The data: 197 points of a sine, with a noise of standard deviation 0.1, and none between 0 and 1.5.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import plot
from pytagi_ddp.nn import Linear, OutputUpdater, ReLU, Sequential

rng = np.random.default_rng(0)
sigma_v = 0.1
x = rng.uniform(-3, 3, 260)
x = x[(x < 0) | (x > 1.5)][:200]
y = np.sin(x) + rng.normal(0, sigma_v, x.size)

# %%
# The network, and how it learns. Each training step has four lines: forward, the observations with their variance,
# backward, step. There is no learning rate. Small batches keep each step exact enough; the page *What TAGI is* explains
# why.

pytagi_ddp.manual_seed(0)
net = Sequential(Linear(1, 100), ReLU(), Linear(100, 1))
updater = OutputUpdater(net.device)

for _epoch in range(40):
    for batch in np.array_split(rng.permutation(x.size), 20):
        net(x[batch])
        updater.update(net.output_z_buffer, y[batch], sigma_v**2, net.input_delta_z_buffer)
        net.backward()
        net.step()

# %%
# ``var`` is the variance of the function, which more data would make smaller. An observation has the noise on top.

places = np.linspace(-6, 6, 301)
mu, var = (moments[:, 0] for moments in net.predict(places))

figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
plot.band(axes, places, mu, var + sigma_v**2, color="C0")
plot.band(axes, places, mu, var, "mean; 2 std of the function (dark), and of an observation", "C0")
axes.plot(places, np.sin(places), "--", color="gray", label="truth")
axes.plot(x, y, ".", color="black", markersize=3, label="data")
axes.set(xlabel="x", ylabel="y", ylim=(-4, 4))
axes.legend(loc="lower left", fontsize="small", ncols=2)
plt.show()

# %%
# The standard deviation of the function among the data, in the gap, and far away from both:

for place in (-1.5, 0.75, 6.0):
    _, at_place = net.predict([place])
    print(f"x = {place:5.2f}: +- {np.sqrt(at_place[0, 0]):.3f}")

# %%
# And how much of the true curve is within two standard deviations:

covered = np.abs(mu - np.sin(places)) < 2 * np.sqrt(var)
for name, where in {
    "where the data are": (np.abs(places) < 3) & ((places < 0) | (places > 1.5)),
    "in the gap": (places > 0) & (places < 1.5),
    "outside": np.abs(places) > 3,
}.items():
    print(f"{name}: {covered[where].mean():.0%}")

# %%
# What the band says, and what it does not say. Outside of the data it grows, with each of the five seeds that were
# tried. But its width is not to be taken literally: among the data it is too wide at x = 2, and too narrow at x = -2,
# as each of the 40 epochs counts the same data again. Whether the *gap* shows differs from seed to seed: with
# ``manual_seed(2)`` the band is as narrow in the gap as beside it, and holds 43 % of the truth. That is because weights
# are taken as independent: what the data leave open in the gap is how weights depend on each other.
#
# A `ReLU` is on or off by the sign of its mean, so the band has a step where a unit switches. `MixtureReLU` in its
# place gives a smooth band, which is far too narrow outside of the data here: +- 0.33 at x = 6, where the mean is off
# by 2.8.
