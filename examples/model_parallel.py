"""Model parallelism by hand: a network in two parts on two ranks, states sent on, deltas sent back.

    mpirun -np 2 python -m examples.model_parallel

`PipelineSequential` does the same with any number of parts, and with micro-batches, so that ranks need not wait.
"""

import argparse
import sys

import numpy as np

import pytagi_ddp
from pytagi_ddp.distributed import initialize
from pytagi_ddp.nn import BaseHiddenStates, Linear, OutputUpdater, ReLU, Sequential

BATCH, WIDTH, STEPS = 32, 64, 200
NOISE = 0.1  # standard deviation of an observation


def main() -> float:
    """Learns a sine; returns the root mean square error of the last predictions, on both ranks."""
    ranks = initialize()
    if ranks.world_size != 2:
        problem = f"error: two ranks are needed, and there are {ranks.world_size}: use mpirun -np 2"
        sys.exit(problem if ranks.rank == 0 else 1)
    first, other = ranks.rank == 0, 1 - ranks.rank
    pytagi_ddp.manual_seed(ranks.rank)
    # Cut before an activation: after one, its Jacobian would have to be sent, too.
    layers = [Linear(1, WIDTH)] if first else [ReLU(), Linear(WIDTH, WIDTH), ReLU(), Linear(WIDTH, 1)]
    net = Sequential(*layers)
    net.input_state_update = not first  # so that `backward` gives the deltas of its input
    updater, generator = OutputUpdater(net.device), np.random.default_rng(0)
    states, message, error = BaseHiddenStates(), np.empty((2, BATCH * WIDTH), np.float32), np.zeros(1)
    for _ in range(STEPS):
        x = generator.uniform(-1, 1, (BATCH, 1))  # the same on both ranks
        y = np.sin(3 * x).reshape(-1)
        observed = y + generator.normal(0, NOISE, BATCH)
        if first:
            message[:] = net(x)
            ranks.send(message, other)
            ranks.receive(message, other)
            net.set_delta_z(*message)
            net.backward()
        else:
            ranks.receive(message, other)
            states.set_input_x(message[0], message[1], BATCH)
            mu, _ = net(states)
            error[0] = np.sqrt(np.mean((mu - y) ** 2))
            updater.update(net.output_z_buffer, observed, np.full(BATCH, NOISE**2), net.input_delta_z_buffer)
            net.backward()
            message[:] = net.get_input_states()
            ranks.send(message, other)
        net.step()
    ranks.broadcast(error, root=1)
    if first:
        print(f"error {error[0]:.3f}")
    return float(error[0])


if __name__ == "__main__":
    description = (__doc__ or "").partition("\n")[0]
    argparse.ArgumentParser("model_parallel", description=description).parse_args()  # --help alone
    main()
