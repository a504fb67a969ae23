"""
Ranks whose data differ
=======================

How ranks learn one function together without showing each other a sample (federated learning), and what they should
exchange for that. Each of three ranks has samples of one third of the inputs. They exchange either the deltas of every
step or, every 20 steps, their posteriors. The ranks are threads of this program; they may be processes on any machines.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.distributed import initialize, run_threads
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import DDPSequential, Linear, MixtureReLU, Sequential

rng = np.random.default_rng(0)
x = rng.uniform([-3, -1, 1], [-1, 1, 3], (400, 3)).T  # a row for each rank
y = np.sin(2 * x) + 0.3 * x + rng.normal(0, 0.1, x.shape)
x_new = np.linspace(-3, 3, 241)
truth = np.sin(2 * x_new) + 0.3 * x_new

# %%
# `DDPSequential` averages the deltas of each step over the ranks. With ``every=20`` and ``merge="precision_weighted"``,
# each rank takes 20 steps of its own, and then all posteriors are merged into one, in which the evidence of each rank
# counts once, and the prior once. A rank gives ``fit`` batches of its own samples alone.


def learn(rank, options=None):
    """Means and variances at `x_new`: of this rank alone, or of all ranks together, with options for their exchange."""
    pytagi_ddp.manual_seed(0)
    net = Sequential(Linear(1, 64), MixtureReLU(), Linear(64, 64), MixtureReLU(), Linear(64, 1))
    batches = list(zip(x[rank].reshape(100, 4), y[rank].reshape(100, 4), strict=True))
    trained = net if options is None else DDPSequential(net, **options)
    trained.fit(batches, likelihood=Gaussian(0.1), epochs=10, evidence=None)
    return [moments[:, 0] for moments in net.predict(x_new)]


def together(**options):
    return run_threads(lambda: learn(initialize().rank, options), 3)[0]  # all ranks end with the same network


ways = {
    "each rank alone": [learn(rank) for rank in range(3)],
    "average of every step": [together()],
    "precision_weighted, every 20": [together(every=20, merge="precision_weighted")],
}

figure, panels = plt.subplots(1, 3, figsize=(12, 3.8), sharex=True, sharey=True, layout="constrained")
for panel, (name, found) in zip(panels, ways.items(), strict=True):
    panel.plot(x.T, y.T, ".", color="0.6", markersize=2)
    panel.plot(x_new, truth, "--", color="0.3", linewidth=1)
    for mu, var in found:
        plot.band(panel, x_new, mu, var)
        print(f"{name}: RMSE {metric.rmse(mu, truth):.3f}, standard deviation {np.sqrt(var.mean()):.3f}")
    panel.set(title=name, ylim=(-3, 3), xlabel="x")
plt.show()

# %%
# Alone, a rank is wrong by more than its error bars say, far from its samples. The average counts each observation as a
# third of one, so that the network learns less and stays unsure. The merged posterior has all the evidence, and takes a
# twentieth of the messages.
