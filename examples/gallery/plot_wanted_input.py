"""
Which input gives this output?
==============================

How to ask a trained network the other way round: for an input that gives a wanted output. A network learns where the
hand of an arm is, given the angles of its two joints. Then it infers angles that bring the hand to a given place: that
place is observed as the output, weights stay as they are, and the deltas at the input give the angles a posterior.
Source: Nguyen & Goulet (2022), "Analytically tractable hidden-states inference in Bayesian neural networks", JMLR 23.
"""

# %%
# Forward: the network learns from pairs of angles and the place of the hand, which is measured with a standard
# deviation of 0.02.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp.nn import Linear, OutputUpdater, Sequential, Tanh


def joints(angles):
    """(n, 3, 2) places of shoulder, elbow and hand: the parts of the arm are 1 and 0.8 long."""
    along = np.cumsum(angles, 1)
    parts = np.stack([np.cos(along), np.sin(along)], 2) * [[1], [0.8]]
    return np.concatenate([np.zeros((len(parts), 1, 2)), parts.cumsum(1)], 1)


rng = np.random.default_rng(0)
angles = rng.uniform(-2.5, 2.5, (3000, 2))
hand = joints(angles)[:, 2] + rng.normal(0, 0.02, (3000, 2))

pytagi_ddp.manual_seed(0)
net = Sequential(Linear(2, 64), Tanh(), Linear(64, 64), Tanh(), Linear(64, 2))
updater = OutputUpdater(net.device)

for epoch in range(10):
    sigma_v = max(0.02, 0.3 * 0.7**epoch)  # large at first, so that early samples do not decide
    for batch in np.array_split(rng.permutation(3000), 300):
        net(angles[batch])
        updater.update(net.output_z_buffer, hand[batch], sigma_v**2, net.input_delta_z_buffer)
        net.backward()
        net.step()

# %%
# Back: an input N(m, s) has the posterior N(m + s dm, s + s² ds), with the deltas dm and ds that `backward` leaves at
# the input. That treats the network as linear around m, and it is not. So the wanted place is observed 2,000 times with
# 2,000 times its variance: that is as much evidence, but in small steps, each from where the last one ended. As
# ``step`` is not called, the weights stay as they are.

net.input_state_update = True


def infer(mu, wanted, std=1.0, sigma_v=0.05, steps=2000):
    """Posterior of angles N(mu, std^2), given that the hand is at `wanted`; all means on the way, and variances."""
    mu, var = np.array(mu, np.float32), np.full((len(mu), 2), std**2, np.float32)
    way = [mu]
    for _ in range(steps):
        net(mu, var)
        updater.update(net.output_z_buffer, wanted, steps * sigma_v**2, net.input_delta_z_buffer)
        net.backward()
        delta_mu, delta_var = (deltas.reshape(mu.shape) for deltas in net.get_input_states())
        mu, var = mu + var * delta_mu, var + var**2 * delta_var
        way.append(mu)
    return np.stack(way), var


cases = {
    "elbow to the right": ([0.3, 0.8], [0.6, 1.2]),
    "elbow to the left": ([2.0, -0.5], [0.6, 1.2]),
    "out of reach": ([-0.5, 1.5], [2.0, 1.0]),
}
prior, wanted = (np.array(values) for values in zip(*cases.values(), strict=True))
way, var = infer(prior, wanted)
found = way[-1]

# %%
# The first two cases have the same place and different priors: the arm can reach it in two ways, and finds the one
# nearer to the prior. The third place is out of reach: the arm stretches towards it.

figure, panels = plt.subplots(1, 3, figsize=(11, 4), sharex=True, sharey=True, layout="constrained")
for k, (axes, name) in enumerate(zip(panels, cases, strict=True)):
    for step in (10, 30, 100):
        axes.plot(*joints(way[step, [k]])[0].T, color="0.75", linewidth=1.5)
    axes.plot(*joints(way[0, [k]])[0].T, "o-", color="0.55", label="prior")
    axes.plot(*joints(found[[k]])[0].T, "o-", color="C0", linewidth=3, label="found")
    axes.plot(*joints(way[:, k])[:, 2].T, ":", color="C0")
    axes.plot(*wanted[k], "x", color="C3", markersize=10, markeredgewidth=3, label="wanted")
    axes.add_patch(plt.Circle((0, 0), 1.8, fill=False, color="0.8", linestyle="--"))
    axes.set(title=name, aspect="equal", xlim=(-1.2, 2.2), ylim=(-0.7, 2.1))
panels[0].legend(loc="upper left", fontsize="small")
plt.show()

# %%
# By how much the hand misses the wanted place, by how much the network predicts that it does, and the angles. A
# predicted miss that is large beside its standard deviation says that no such input was found.

mu, var_out = net.predict(found)
for k, name in enumerate(cases):
    miss, said = np.linalg.norm(joints(found)[k, 2] - wanted[k]), np.linalg.norm(mu[k] - wanted[k])
    text = " and ".join(f"{m:.2f} +- {s:.2f}" for m, s in zip(found[k], np.sqrt(var[k]), strict=True))
    print(f"{name}: misses by {miss:.3f}, predicted {said:.3f} (+- {np.sqrt(var_out[k].max()):.3f}); angles {text}")

# %%
# The standard deviations of the angles are too large: computed on a fine grid, those of the first case are 0.05 and
# 0.09 (of the posterior around the solution that was found). The variance of one angle makes the place of the hand
# uncertain, and so acts as noise on the inference of the other one, in every step anew.
