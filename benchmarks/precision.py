"""What `precision="mixed"` does to what is learnt: `python -m benchmarks.precision --mnist DIR`, or `--cifar DIR`.

Test error and negative log-likelihood of networks that are trained in float32 and in mixed precision, from the same
seed on the same batches. What it saves in time: `python -m benchmarks --section training --peer "pytagi_ddp mixed"`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytagi_ddp
from benchmarks.merging import evaluate, learn
from benchmarks.report import table
from benchmarks.workloads import mlp, mnist_cnn
from pytagi_ddp import nn
from pytagi_ddp.data import BatchLoader, ImageDataset, load_cifar10, load_mnist
from pytagi_ddp.kernels import PRECISIONS
from pytagi_ddp.kernels.cpu.threads import set_threads
from pytagi_ddp.models import resnet8_cifar10, resnet18_cifar10

NETWORKS: dict[str, dict[str, Callable[[], nn.Sequential]]] = {
    "mnist": {"MLP 784-128-128": lambda: mlp(nn, 784, 128, 128, 11), "CNN": lambda: mnist_cnn(nn)},
    "cifar": {"ResNet8": lambda: resnet8_cifar10(0.1, 0.1), "ResNet18": lambda: resnet18_cifar10(0.1, 0.1)},
}


def trained(
    make: Callable[[], nn.Sequential],
    precision: str,
    data: ImageDataset,
    batch: int,
    epochs: int,
    seed: int,
    sigma_v: float,
) -> nn.Sequential:
    """A network with priors and batches of `seed`, trained on labels with the standard deviation `sigma_v`."""
    pytagi_ddp.manual_seed(seed)
    net = make()
    net.precision = precision
    loader = BatchLoader(data, batch, seed=seed, mean=data.mean(), std=data.std())
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for x, labels in loader:
            learn(net, x, labels, sigma_v)
            net.step()
    nn.update_bn(loader, net, 40)
    return net


def compare(kind: str, sets: tuple[ImageDataset, ImageDataset], args: argparse.Namespace) -> None:
    rows, limits = [], (args.limit, args.limit_test)
    data, test = (images.subset(limit or len(images)) for images, limit in zip(sets, limits, strict=True))
    x, labels = next(iter(BatchLoader(test, len(test), evaluation=True, mean=data.mean(), std=data.std())))
    for name, make in NETWORKS[kind].items():
        if args.network not in name:
            continue
        for seed in range(args.seeds):
            settings = (data, args.batch, args.epochs, seed, args.sigma_v)
            results = [evaluate(trained(make, precision, *settings), x, labels) for precision in PRECISIONS]
            errors, nlls = zip(*results, strict=True)
            rows.append([name, f"{seed}", *(f"{error:.2%}" for error in errors), *(f"{nll:.4f}" for nll in nlls)])
            print(*rows[-1], flush=True)
    images = f"{len(data)} training images, {args.epochs} epochs, batch {args.batch}, sigma_v {args.sigma_v}"
    print(f"{kind}: {images}, tested on {len(test)}; NLL in nats")
    print(table(("network", "seed", "error float32", "error mixed", "NLL float32", "NLL mixed"), rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser("precision", description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, help="default: usable cores / ranks on this node")
    sets = parser.add_mutually_exclusive_group(required=True)
    sets.add_argument("--mnist", metavar="DIR", help="folder of the data set")
    sets.add_argument("--cifar", metavar="DIR", help="folder of the data set")
    parser.add_argument("--network", default="", help="only networks whose name contains this")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N training images")
    parser.add_argument("--limit-test", type=int, metavar="N", help="only the first N test images")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sigma-v", type=float, default=0.3, help="standard deviation of a label (0.3)")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if args.threads:
        set_threads(args.threads)
    if args.mnist:
        compare("mnist", load_mnist(args.mnist), args)
    else:
        compare("cifar", load_cifar10(args.cifar), args)


if __name__ == "__main__":
    main()
