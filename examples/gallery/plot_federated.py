"""
Ranks whose data differ
=======================

How ranks learn one function together without showing each other a sample (federated learning), and what they should
exchange for that. Each of three ranks has samples of one third of the inputs. They exchange either the deltas of every
step or, every 20 steps, their posteriors. The ranks are threads of this program; with ``python -m pytagi_ddp.launch -np
3`` they would be processes, on machines of their own if you like.
"""

# %%
# The data and the network. Alone, a rank fits its own third. Far from its samples it is wrong by more than its error
# bars say.

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp import metric, plot
from pytagi_ddp.distributed import initialize, run_threads
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import DDPSequential, Linear, MixtureReLU, Sequential
from pytagi_ddp.training import Trainer

RANKS, samples, epochs, seed = 3, 400, 10, 0
noise = Gaussian(0.1)
x_new = np.linspace(-3, 3, 241)


def truth(x):
    return np.sin(2 * x) + 0.3 * x


def samples_of(k):
    """Noisy observations of a rank's third of the inputs."""
    rng = np.random.default_rng([seed, k])
    x = rng.uniform(2 * k - 3, 2 * k - 1, samples)
    return x, truth(x) + rng.normal(0, noise.sigma, samples)


def learn(x, y, wrap=lambda net: net):
    """Means and variances at `x_new` after training."""
    pytagi_ddp.manual_seed(seed)
    net = Sequential(Linear(1, 64), MixtureReLU(), Linear(64, 64), MixtureReLU(), Linear(64, 1))
    batches = np.array_split(np.random.default_rng(seed).permutation(len(x)), len(x) // 4)
    Trainer(wrap(net), noise, epochs=epochs, evidence=None).fit([(x[rows], y[rows]) for rows in batches])
    return [moments[:, 0] for moments in net.predict(x_new)]


data = [samples_of(k) for k in range(RANKS)]
found = {f"rank {k} alone": learn(*data[k]) for k in range(RANKS)}

# %%
# Together, there are two ways. By default, `DDPSequential` averages the deltas of each step over the ranks. With
# ``every=20`` and ``merge="precision_weighted"``, each rank takes 20 steps of its own, and then all posteriors are
# merged into one, in which the evidence of each rank counts once, and the prior once. Each rank gives the `Trainer`
# batches of its own samples alone.

WAYS = {"average of every step": {}, "precision_weighted, every 20": {"every": 20, "merge": "precision_weighted"}}
for name, options in WAYS.items():

    def program(options=options):
        x, y = data[initialize().rank]
        return learn(x, y, lambda net: DDPSequential(net, **options))

    found[name] = run_threads(program, RANKS)[0]  # all ranks end with the same network

figure, panels = plt.subplots(1, 3, figsize=(12, 3.8), sharex=True, sharey=True, layout="constrained")
alone = [name for name in found if name not in WAYS]
for axes, title, names in zip(panels, ["each rank alone", *WAYS], [alone, *([name] for name in WAYS)], strict=True):
    for k, (x, y) in enumerate(data):
        axes.plot(x, y, ".", color=f"C{k}", markersize=2, alpha=0.4)
    axes.plot(x_new, truth(x_new), "--", color="0.4", linewidth=1, label="truth")
    for k, name in enumerate(names):
        mu, var = found[name]
        plot.band(axes, x_new, mu, var, name, f"C{k}" if len(names) > 1 else "C3")
    axes.set(title=title, ylim=(-3, 3), xlabel="x")
panels[0].legend(loc="upper left", fontsize="small")
plt.show()

# %%
# The average counts each observation as a third of one, so that the network learns less and stays unsure. The merged
# posterior has all the evidence, and takes a twentieth of the messages. The log-likelihood is that of one observation.

y_new = truth(x_new) + np.random.default_rng(seed).normal(0, noise.sigma, x_new.shape)
for name, (mu, var) in found.items():
    likely = noise.prediction(mu[:, None], var[:, None]).log_prob(y_new[:, None]).mean()
    print(f"{name:30} RMSE {metric.rmse(mu, truth(x_new)):5.3f}, log-likelihood {likely:6.2f}")
