"""The program that each of two ranks runs to check NCCL: `mpirun -np 2 python -m pytagi_ddp.selfcheck.two_ranks`.

Rank 0 prints the largest difference between the parameters of the ranks, and from those of one process.
"""

import copy

import numpy as np

from pytagi_ddp import nn
from pytagi_ddp.distributed.ddp import DDPConfig, DDPSequential
from pytagi_ddp.selfcheck.examples import network, state_of


def largest_error(backend: str = "nccl") -> tuple[int, float]:
    """(rank of this process, largest difference, relative to the largest number of an array: equal on both ranks)."""
    net = network(lambda: [nn.Linear(6, 40), nn.MixtureReLU(), nn.Linear(40, 3)])
    alone, rng = copy.deepcopy(net), np.random.default_rng(0)
    ddp = DDPSequential(net, DDPConfig(backend=backend, timeout=30), average=False)
    rows = slice(8 * ddp.rank, 8 * ddp.rank + 8)
    for _ in range(3):
        x, y = rng.standard_normal((16, 6)), rng.standard_normal((16, 3))
        for model, part in ((ddp, rows), (alone, slice(None))):
            model(x[part])
            noise, updater = np.full(y[part].shape, 0.3), nn.OutputUpdater("cpu")
            updater.update(model.output_z_buffer, y[part], noise, model.input_delta_z_buffer)
            model.backward()
            model.step()
    states, error = ddp.communicator.all_gather_object(state_of(net)), 0.0
    for name, want in state_of(alone).items():
        for state in states:
            error = max(error, float(np.abs(state[name] - want).max() / np.abs(want).max()))
            if not np.array_equal(state[name], states[0][name]):
                error = np.inf
    ddp.communicator.close()
    return ddp.rank, error


def main(backend: str = "nccl") -> None:
    rank, error = largest_error(backend)
    if rank == 0:
        print(error)


if __name__ == "__main__":
    main()
