"""What compression of the deltas does to what is learnt: `mpirun -np 2 python -m benchmarks.compression`.

One epoch of MNIST with a 784-128-128-11 network, for each `DDPConfig(wire_dtype=...)`, several standard deviations of a
label and seeds: test error, negative log-likelihood per test image, and how far means and variances of the parameters
end from those of float32, in standard deviations and relatively (medians).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import pytagi_ddp
from benchmarks.merging import CLASSES, evaluate, learn, load
from benchmarks.workloads import mlp
from pytagi_ddp import nn
from pytagi_ddp.data import BatchLoader
from pytagi_ddp.distributed.compression import DTYPES
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("compression", description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="where MNIST is ($PYTAGI_DATA, ./data/mnist)")
    parser.add_argument("--sigma-v", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--batch-size", type=int, default=32, help="of a rank")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args(argv)
    set_threads(1)
    data = load(args.data_dir)
    for sigma_v in args.sigma_v:
        for seed in range(args.seeds):
            exact = None
            for dtype in DTYPES:
                pytagi_ddp.manual_seed(seed)
                model = mlp(nn, 784, 128, 128, CLASSES + 1)
                net = nn.DDPSequential(model, nn.DDPConfig(wire_dtype=dtype), average=False)
                for x, labels in BatchLoader(
                    data.train, args.batch_size, net.rank, net.world_size, seed=seed, mean=data.mean, std=data.std
                ):
                    if len(labels):
                        learn(net, x, labels, sigma_v)
                    net.step()
                if net.rank:
                    continue
                error, nll = evaluate(net, data.x_test, data.labels_test)
                mu, var = net.model.arena.theta.astype(np.float64)
                if exact is None:
                    exact = mu, var
                moved = np.median(np.abs(mu - exact[0]) / np.sqrt(exact[1]))
                changed = np.median(np.abs(var / exact[1] - 1))
                print(
                    f"sigma_v {sigma_v:<4} seed {seed} {dtype:<9} error {error:.2%}, NLL {nll:.3f}; from float32: "
                    f"means {moved:.1e} standard deviations, variances {changed:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
