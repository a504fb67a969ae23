"""
Ranks whose data differ
=======================

How ranks learn one function together without showing each other a sample (federated learning), and what they should
exchange for that. Each of three ranks has samples of one third of the inputs. They exchange either the deltas of every
step or, every 20 steps, their posteriors. The ranks are threads of this program; with ``python -m pytagi_ddp.launch -np
3`` they would be processes, on machines of their own if you like.
"""

# %%
# Alone, a rank fits its own third. Far from its samples it is wrong by more than its error bars say.

import matplotlib.pyplot as plt

from examples.federated import RANKS, paint, parse_arguments, samples_of, train_alone, train_together

args = parse_arguments(["--epochs", "10"])
found = {f"rank {k} alone": train_alone(samples_of(k, args.samples, args.seed), args) for k in range(RANKS)}

# %%
# Together, there are two ways. By default, `DDPSequential` averages the deltas of each step over the ranks. With
# ``every=20`` and ``merge="precision_weighted"``, each rank takes 20 steps of its own, and then all posteriors are
# merged into one, in which the evidence of each rank counts once, and the prior once.

found["average of every step"] = train_together(args, {"average": True})
found["precision_weighted, every 20"] = train_together(args, {"every": 20, "merge": "precision_weighted"})

figure = plt.figure(figsize=(12, 3.8), layout="constrained")
paint(figure, found, args)
plt.show()

# %%
# The average counts each observation as a third of one, so that the network learns less and stays unsure. The merged
# posterior has all the evidence, and takes a twentieth of the messages. The log-likelihood is that of one observation.

for name, way in found.items():
    print(f"{name:30} RMSE {way.rmse:5.3f}, log-likelihood {way.log_likelihood:6.2f}")
