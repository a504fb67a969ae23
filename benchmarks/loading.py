"""Section "loading": the data loader alone, on synthetic images of CIFAR-10's shape."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.options import Options
from benchmarks.peak import SgemmPeak
from benchmarks.report import Spread, table
from pytagi_ddp.data import BatchLoader, ImageDataset, random_crop_flip

IMAGES, BATCH = 10_000, 128


def run(options: Options, peak: SgemmPeak) -> dict:
    """Images per second without and with augmentation, made in the loop or ahead by a thread; nothing else runs."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (IMAGES, 3, 32, 32), np.uint8)
    data = ImageDataset(images, rng.integers(0, 10, IMAGES), tuple("0123456789"), "random images")
    found, rows = [], []
    for augment in (False, True):
        for prefetch in (0, 2):
            transform = random_crop_flip if augment else None
            loader = BatchLoader(data, BATCH, transform=transform, mean=0.5, std=0.25, prefetch=prefetch)
            rates = []
            for _ in range(options.repeat):
                start = time.perf_counter()
                count = sum(len(x) for x, _ in loader)
                rates.append(count / (time.perf_counter() - start))
            rate = Spread.of(rates)
            found.append({"augment": augment, "prefetch": prefetch} | rate._asdict())
            name = "crop and flip" if augment else "as they are"
            quartiles = f"{rate.low:,.0f} to {rate.high:,.0f}"
            rows.append([name, "a thread ahead" if prefetch else "in the loop", f"{rate.median:,.0f}", quartiles])
    print(table(("32 x 32 images", "loaded", "images/s", "quartiles"), rows), flush=True)
    return {"batch": BATCH, "rows": found}
