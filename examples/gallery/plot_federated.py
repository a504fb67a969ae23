"""
Ranks whose data differ
=======================

Three ranks learn one function, each from samples of its own third of the inputs, which it shows nobody. What they
exchange is their posteriors, every 20 steps, or the deltas of every step. The ranks are threads of this program; with
``python -m pytagi_ddp.launch -np 3`` they would be processes, on machines of their own if you like.
"""

# %%
# A rank by itself fits its own third. Far from its samples it is wrong by more than its error bars say.

import matplotlib.pyplot as plt

from examples.federated import RANKS, paint, parse_arguments, samples_of, train_alone, train_together

args = parse_arguments(["--epochs", "10"])
found = {f"rank {k} alone": train_alone(samples_of(k, args.samples, args.seed), args) for k in range(RANKS)}

# %%
# Together: `DDPSequential` averages the deltas of each step over the ranks. With ``every=20`` and
# ``merge="precision_weighted"`` each rank takes 20 steps of its own, and then all posteriors become one, in which the
# evidence of each rank counts once, and the prior once.

found["average of every step"] = train_together(args, {"average": True})
found["precision_weighted, every 20"] = train_together(args, {"every": 20, "merge": "precision_weighted"})

figure = plt.figure(figsize=(12, 3.8), layout="constrained")
paint(figure, found, args)
plt.show()

# %%
# The average takes each observation for a third of one, and stays unsure; the merged posterior has all the evidence,
# for a twentieth of the messages.

for name, way in found.items():
    print(f"{name:30} RMSE {way.rmse:5.3f}, log-likelihood {way.log_likelihood:6.2f}")
