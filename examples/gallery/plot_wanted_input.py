"""
Which input gives this output?
==============================

How to ask a trained network the other way round: for an input that gives a wanted output. A network learns where the
hand of an arm is, given the angles of its two joints. Then it infers angles that bring the hand to a given place.
Source: Nguyen & Goulet (2022), "Analytically tractable hidden-states inference in Bayesian neural networks", JMLR 23.

Forward: the network learns from angles and places of the hand, which are measured with a standard deviation of 0.05.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Linear, Sequential, Tanh


def joints(angles):
    """(n, 3, 2) places of shoulder, elbow and hand: the parts of the arm are 1 and 0.8 long."""
    along = np.cumsum(angles, 1)
    parts = np.stack([np.cos(along), np.sin(along)], 2) * [[1], [0.8]]
    return np.pad(parts.cumsum(1), ((0, 0), (1, 0), (0, 0)))


rng = np.random.default_rng(0)
angles = rng.uniform(-2.5, 2.5, (3000, 2))
hand = joints(angles)[:, 2] + rng.normal(0, 0.05, (3000, 2))

pytagi_ddp.manual_seed(0)
net = Sequential(Linear(2, 64), Tanh(), Linear(64, 64), Tanh(), Linear(64, 2))
net.fit(angles, hand, Gaussian(0.05), epochs=20, batch_size=10, evidence=None)

# %%
# Back: an input N(m, s) has the posterior N(m + s dm, s + s² ds), with the deltas dm and ds that `backward` leaves at
# the input. That treats the network as linear around m. So the wanted place is observed 2,000 times with 2,000 times
# its variance: that is as much evidence, in small steps. As ``step`` is not called, the weights stay as they are.
#
# The first two cases have the same place and different priors: the arm can reach it in two ways, and finds the one
# nearer to the prior. The third place is out of reach: the arm stretches towards it.

cases = "elbow to the right", "elbow to the left", "out of reach"
prior = np.array([[0.3, 0.8], [2.0, -0.5], [-0.5, 1.5]])
wanted = np.array([[0.6, 1.2], [0.6, 1.2], [2.0, 1.0]])
mu, var = prior, np.ones_like(prior)
weak = Gaussian(0.05 * np.sqrt(2000))
net.input_state_update = True
for _step in range(2000):
    net(mu, var)
    weak.observe(net, wanted)
    net.backward()
    delta_mu, delta_var = (deltas.reshape(mu.shape) for deltas in net.get_input_states())
    mu, var = mu + var * delta_mu, var + var**2 * delta_var

figure, panels = plt.subplots(1, 3, figsize=(11, 4), sharex=True, sharey=True, layout="constrained")
for axes, name, before, after, place in zip(panels, cases, joints(prior), joints(mu), wanted, strict=True):
    axes.plot(*before.T, "o-", color="0.55", label="prior")
    axes.plot(*after.T, "o-", linewidth=3, label="found")
    axes.plot(*place, "x", color="C3", markersize=10, markeredgewidth=3, label="wanted")
    axes.add_patch(plt.Circle((0, 0), 1.8, fill=False, color="0.8", linestyle="--"))
    axes.set(title=name, aspect="equal", xlim=(-1.2, 2.2), ylim=(-0.7, 2.1))
panels[0].legend(loc="upper left", fontsize="small")
plt.show()

mu_out, var_out = net.predict(mu)
misses, predicted = (np.linalg.norm(places - wanted, axis=1) for places in (joints(mu)[:, 2], mu_out))
for name, *numbers in zip(cases, misses, predicted, np.sqrt(var_out.max(1)), strict=True):
    print("{}: misses by {:.3f}, predicted {:.3f} (+- {:.3f})".format(name, *numbers))

# %%
# A predicted miss that is many times its standard deviation says that no such input was found.
