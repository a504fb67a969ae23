"""What `precision="mixed"` saves and costs: `python -m benchmarks.precision`.

Without data sets: time of whole training steps on random numbers, float32 and mixed in turns. With `--mnist` or
`--cifar` (folders that hold them): test error and negative log-likelihood of networks that are trained both ways from
the same seed on the same batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import pytagi_ddp
from benchmarks.report import Spread, duration, table
from benchmarks.training_step import Workload
from benchmarks.workloads import SPECS, mlp, mnist_cnn
from pytagi_ddp import Utils, nn
from pytagi_ddp.data import BatchLoader, ImageDataset, load_cifar10, load_mnist
from pytagi_ddp.kernels import PRECISIONS
from pytagi_ddp.kernels.cpu.threads import get_threads, set_threads
from pytagi_ddp.models import resnet8_cifar10, resnet18_cifar10

WORKLOADS = ("mlp-4096-b256", "mnist-cnn-b128", "conv64-b32", "resnet18-b16")
CLASSES = 10
NETWORKS: dict[str, dict[str, Callable[[], nn.Sequential]]] = {
    "mnist": {"MLP 784-128-128": lambda: mlp(nn, 784, 128, 128, 11), "CNN": lambda: mnist_cnn(nn)},
    "cifar": {"ResNet8": lambda: resnet8_cifar10(0.1, 0.1), "ResNet18": lambda: resnet18_cifar10(0.1, 0.1)},
}


def step_times(name: str, repeat: int) -> dict[str, list[float]]:
    """Seconds of `repeat` steps by precision, taken in turns after one step each that warms up."""
    workloads = {precision: Workload(name) for precision in PRECISIONS}
    times: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    for precision, workload in workloads.items():
        workload.net.precision = precision
        workload.step()
    for _ in range(repeat):
        for precision, workload in workloads.items():
            start = time.perf_counter()
            workload.step()
            times[precision].append(time.perf_counter() - start)
    return times


def compare_times(names: list[str], repeat: int) -> None:
    rows = []
    for name in names:
        single, mixed = step_times(name, repeat).values()
        ratio = Spread.of([one / other for one, other in zip(single, mixed, strict=True)])
        best = f"{duration(min(single))}, {duration(min(mixed))}"
        medians = f"{duration(statistics.median(single))}, {duration(statistics.median(mixed))}"
        rows.append([name, medians, best, f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"])
    print(f"float32, mixed: time of a training step on {get_threads()} threads")
    print(table(("workload", "medians", "best", "ratio by round"), rows), flush=True)


def train(net: nn.Sequential, data: ImageDataset, batch: int, epochs: int, seed: int, sigma_v: float) -> nn.Sequential:
    """Trains `net` on labels with the standard deviation `sigma_v`; returns it."""
    updater, utils = nn.OutputUpdater(net.device), Utils()
    loader = BatchLoader(data, batch, seed=seed, mean=data.mean(), std=data.std())
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for x, labels in loader:
            net(x)
            obs, index, _ = utils.label_to_obs(labels, CLASSES)
            var_obs = np.full_like(obs, sigma_v**2)
            updater.update_using_indices(net.output_z_buffer, obs, var_obs, index, net.input_delta_z_buffer)
            net.backward()
            net.step()
    return net


def evaluate(net: nn.Sequential, data: ImageDataset, statistics_of: ImageDataset) -> tuple[float, float]:
    """(test error, negative log-likelihood of a label in nats)."""
    utils, wrong, nll = Utils(), 0, 0.0
    tree = utils.get_hierarchical_softmax(CLASSES)
    net.eval()
    for x, labels in BatchLoader(data, 256, evaluation=True, mean=statistics_of.mean(), std=statistics_of.std()):
        predicted, probabilities = utils.get_labels(*net(x), tree, CLASSES, len(labels))
        wrong += np.count_nonzero(predicted != labels)
        likelihood = probabilities.reshape(-1, CLASSES)[np.arange(len(labels)), labels]
        nll -= np.log(np.maximum(likelihood, 1e-7)).sum()
    return wrong / len(data), nll / len(data)


def compare_accuracy(kind: str, sets: tuple[ImageDataset, ImageDataset], args: argparse.Namespace) -> None:
    rows, limits = [], (args.limit, args.limit_test)
    train_set, test_set = (data.subset(limit or len(data)) for data, limit in zip(sets, limits, strict=True))
    for name, make in NETWORKS[kind].items():
        if args.network not in name:
            continue
        for seed in range(args.seeds):
            results = []
            for precision in PRECISIONS:
                pytagi_ddp.manual_seed(seed)
                net = make()
                net.precision = precision
                train(net, train_set, args.batch, args.epochs, seed, args.sigma_v)
                results.append(evaluate(net, test_set, train_set))
            (error, nll), (mixed_error, mixed_nll) = results
            rows.append([name, f"seed {seed}", f"{error:.2%}", f"{mixed_error:.2%}", f"{nll:.4f}", f"{mixed_nll:.4f}"])
            print(" ".join(rows[-1]), flush=True)
    images = f"{len(train_set)} training images, {args.epochs} epochs, batch {args.batch}, sigma_v {args.sigma_v}"
    print(f"{kind}: {images}, tested on {len(test_set)}; NLL in nats")
    print(table(("network", "run", "error float32", "error mixed", "NLL float32", "NLL mixed"), rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser("precision", description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, help="default: usable cores / ranks on this node")
    parser.add_argument("--workload", nargs="+", choices=SPECS, default=WORKLOADS)
    parser.add_argument("--repeat", type=int, default=15, help="steps of each precision")
    parser.add_argument("--mnist", metavar="FOLDER", help="train on MNIST instead")
    parser.add_argument("--cifar", metavar="FOLDER", help="train on CIFAR-10 instead")
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
        compare_accuracy("mnist", load_mnist(args.mnist), args)
    if args.cifar:
        compare_accuracy("cifar", load_cifar10(args.cifar), args)
    if not args.mnist and not args.cifar:
        compare_times(args.workload, args.repeat)


if __name__ == "__main__":
    main()
