"""Reading images against learning from them: `python -m benchmarks.images`.

Makes JPEG files of about 400 x 350 pixels, and measures how many images per second `FolderLoader` gives, with no, one
and two worker processes, from the files and from decoded copies; and how many ResNet18 for ImageNet learns from.
Medians of --repeat rounds, each of all ways in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.merging import learn
from benchmarks.report import Spread, table
from pytagi_ddp import Utils, manual_seed
from pytagi_ddp.data import FolderLoader, ImageFolder
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads
from pytagi_ddp.models import resnet18_imagenet
from pytagi_ddp.nn import Sequential

CLASSES = 4


def write_images(folder: Path, count: int) -> None:
    """JPEG files of ImageNet's usual sizes: smooth patches with noise, so that they are as long as photographs."""
    from PIL import Image  # here, because it is optional

    rng = np.random.default_rng(0)
    for k in range(count):
        width, height = int(rng.integers(350, 450)), int(rng.integers(300, 400))
        patches = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).resize((width, height))
        pixels = np.asarray(patches) + rng.integers(-12, 13, (height, width, 3))
        path = folder / f"class {k % CLASSES}" / f"{k}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=85)


def reading_rate(loader: FolderLoader, epoch: int) -> float:
    """Images per second of an epoch, after its first batch."""
    loader.set_epoch(epoch)
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    count = sum(len(x) for x, _ in batches)
    return count / (time.perf_counter() - start)


def learning_rate(net: Sequential, batch: int) -> float:
    """Images per second of one training step, of images that are there."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, 3 * 224 * 224)).astype(np.float32)
    labels = rng.integers(0, 1000, batch)
    start = time.perf_counter()
    learn(net, x, labels, 0.1, 1000)
    net.step()
    return batch / (time.perf_counter() - start)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("images", description=__doc__.partition(":")[0])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2, help="of the network (2)")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args(argv)
    with TemporaryDirectory() as folder:
        write_images(Path(folder, "images"), 1024)
        files = ImageFolder.find(Path(folder, "images"))
        sizes = [Path(files.source(k).path).stat().st_size for k in range(len(files))]
        print(f"{len(files)} files of {np.mean(sizes) / 1e3:.0f} KB")
        copies = files.cached(Path(folder, "copies"))
        rates: dict[tuple[str, str], list[float]] = {}
        set_threads(args.threads)
        manual_seed(0)
        net = resnet18_imagenet(0.1, 0.1, Utils().get_hierarchical_softmax(1000).len)
        learning_rate(net, args.batch_size)  # compiles, and makes buffers
        for epoch in range(args.repeat):
            for workers in range(3):
                for name, dataset in (("JPEG files", files), ("copies", copies)):
                    with FolderLoader(dataset, args.batch_size, workers=workers) as loader:
                        rates.setdefault((name, f"{workers or 'no'} workers"), []).append(reading_rate(loader, epoch))
            rates.setdefault(("ResNet18 learns", f"{args.threads} threads"), []).append(
                learning_rate(net, args.batch_size)
            )
    spreads = {names: Spread.of(values) for names, values in rates.items()}
    rows = [[*names, f"{r.median:,.1f}", f"{r.low:,.1f} to {r.high:,.1f}"] for names, r in spreads.items()]
    print(table(("images from", "with", "images/s", "quartiles"), rows), flush=True)


if __name__ == "__main__":
    main()
