"""
Many ranks, in one program
==========================

Several processes, called *ranks*, train one network together. Usually ``mpirun`` starts a program once for each rank.
Here ``run_threads`` starts ranks that are threads of this program, as in a notebook. A program for ``mpirun`` is the
same, and gives the same bits. For speed, start processes.
"""

import matplotlib.pyplot as plt
import numpy as np

import pytagi_ddp
from pytagi_ddp.distributed import initialize, run_threads
from pytagi_ddp.nn import DDPSequential, Linear, OutputUpdater, ReLU, Sequential

# %%
# Each rank runs the same function. `initialize` returns its communicator: here a `ThreadCommunicator`, under mpirun one
# of MPI. ``run_threads`` returns the results of all ranks.


def introduce():
    comm = initialize()
    number = np.array([10.0 * comm.rank], np.float32)
    comm.all_reduce(number)  # in place: the sum over ranks
    return f"{type(comm).__name__}: rank {comm.rank} of {comm.world_size}, the sum is {number[0]:.0f}"


print("\n".join(run_threads(introduce, 4)))

# %%
# `DDPSequential` keeps a replica (a whole copy) of the network on each rank. Each rank takes its share of a batch.
# ``step`` adds the deltas of all ranks by one all-reduce, and applies the sum. With ``average=False`` this is the step
# of one process with the whole batch.

rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, 480)
y = x**3 + rng.normal(0, 0.1, x.size)
places = np.linspace(-1.5, 1.5, 101)


def train(epochs=20, batch=24, **options):
    pytagi_ddp.manual_seed(0)
    net = DDPSequential(Sequential(Linear(1, 50), ReLU(), Linear(50, 1)), **options)
    updater = OutputUpdater(net.model.device)
    order = np.random.default_rng(1)  # the same order on every rank
    errors = []
    for _ in range(epochs):
        for rows in np.array_split(order.permutation(x.size), x.size // batch):
            mine = rows[net.rank :: net.world_size]
            net(x[mine])
            updater.update(net.output_z_buffer, y[mine], 0.1**2, net.input_delta_z_buffer)
            net.backward()
            net.step()
        mu, _ = net.predict(x)
        errors.append(np.sqrt(np.mean((mu[:, 0] - x**3) ** 2)))
    return errors, net.predict(places), net.model.state_dict()


(alone,) = run_threads(lambda: train(average=False), 1)
three = run_threads(lambda: train(average=False), 3)
pairs = [(three[0][2][name], other[2][name]) for other in three[1:] for name in other[2]]
same = all(np.array_equal(a, b) for first, second in pairs for a, b in zip(first, second, strict=True))
print("the three replicas are equal to the last bit:", same)
print("largest difference from one process, by rounding:", np.abs(three[0][1][0] - alone[1][0]).max())

# %%
# The default is the average of deltas, as in pytagi. With three ranks it counts each observation as a third of one.
# With ``every=10``, each rank takes ten steps alone, and then all posteriors are merged into one, which sends a tenth
# of the bytes. All samples of a batch have the same prior, so the steps of large batches are too large: the error of
# the sum ends above that of the other two. The average takes smaller steps, and keeps larger variances.

runs = {
    "one process": alone,
    "3 ranks, sum": three[0],
    "3 ranks, average": run_threads(train, 3)[0],
    "3 ranks, every 10 steps": run_threads(lambda: train(every=10), 3)[0],
}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for k, (name, (errors, (_, var), _)) in enumerate(runs.items()):
    left.plot(errors, "--" if k == 1 else "-", color=f"C{k}", label=name)
    right.plot(places, np.sqrt(var[:, 0]), "--" if k == 1 else "-", color=f"C{k}", label=name)
left.set(xlabel="epoch", ylabel="RMSE of the function", ylim=(0, None))
right.set(xlabel="x", ylabel="standard deviation of the function", ylim=(0, None))
left.legend(fontsize="small")
plt.show()

# %%
# If a rank fails, the others do not wait forever: they get a `RankLeftError`, and ``run_threads`` raises the error of
# the rank that failed.


def fails():
    comm = initialize()
    if comm.rank == 1:
        raise ValueError("rank 1 has no data")
    comm.barrier()  # raises RankLeftError here


try:
    run_threads(fails, 3)
except ValueError as error:
    print("raised:", error)
