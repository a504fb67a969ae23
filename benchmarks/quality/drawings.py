"""A few hundred images of a folder: `python -m benchmarks.quality drawings`.

Draws 60 JPEG files of each of five shapes, of any colour, size, place and direction, with noise, 80 others of each for
the test, and 50 of each of three other shapes. Trains the network of docs/guide/images.md on them, and the same one in
PyTorch, if it is installed, with AdamW and cross-entropy. The table has test errors, negative log-likelihoods, and the
AUROC by which entropy and `FeatureDensity` separate the other shapes from the test images. One thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import table
from pytagi_ddp import manual_seed, metric
from pytagi_ddp.data import FolderLoader, ImageFolder
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.nn import AvgPool2d, BatchNorm2d, Conv2d, FeatureDensity, Linear, MixtureReLU, Sequential
from pytagi_ddp.training import Trainer

SIZE, PIXELS, BATCH = 32, 64, 16  # edges of an image, as the network's input and in its file; images of a step
WIDTHS, GAIN, LEAST_AREA = (16, 32, 64, 64), 0.3, 0.5
KNOWN = ("circles", "squares", "triangles", "stars", "crosses")
OTHERS = ("rings", "moons", "arrows")
PARTS = {"train": (KNOWN, 60), "test": (KNOWN, 80), "others": (OTHERS, 50)}
ARROW = [(1, 0), (0.2, 0.7), (0.2, 0.25), (-1, 0.25), (-1, -0.25), (0.2, -0.25), (0.2, -0.7)]
QUARTER_OF_CROSS = [(0.33, 1), (0.33, 0.33), (1, 0.33)]


def corners(shape: str) -> np.ndarray:
    """The corners of a shape of radius 1."""
    if shape == "arrows":
        return np.array(ARROW)
    if shape == "crosses":
        turn = np.array([[0, -1], [1, 0]])
        return np.concatenate([QUARTER_OF_CROSS @ np.linalg.matrix_power(turn, k) for k in range(4)])
    number = {"squares": 4, "triangles": 3, "stars": 10}[shape]
    angles = 2 * np.pi * np.arange(number) / number
    radii = np.where(np.arange(number) % 2, 0.42, 1.0) if shape == "stars" else 1.0
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], 1)


def drawing(shape: str, rng: np.random.Generator) -> Any:
    """An image of Pillow: a bright shape on a dark ground."""
    from PIL import Image, ImageDraw

    ground, colour = (tuple(map(int, rng.integers(*ends, 3))) for ends in ((0, 80), (120, 256)))
    image = Image.new("RGB", (PIXELS, PIXELS), ground)
    pen, radius, angle = ImageDraw.Draw(image), rng.uniform(12, 26), rng.uniform(0, 2 * math.pi)
    middle, towards = rng.uniform(radius, PIXELS - radius, 2), np.array([math.cos(angle), math.sin(angle)])

    def disc(place: np.ndarray, radius: float, colour: tuple[int, ...]) -> None:
        pen.ellipse([*(place - radius), *(place + radius)], fill=colour)

    if shape in ("circles", "rings", "moons"):
        disc(middle, radius, colour)
        if shape == "rings":
            disc(middle, 0.6 * radius, ground)
        if shape == "moons":
            disc(middle + 0.6 * radius * towards, 0.85 * radius, ground)
    else:
        turned = corners(shape) @ np.array([towards, [-towards[1], towards[0]]])
        pen.polygon([tuple(place) for place in middle + radius * turned], fill=colour)
    noisy = np.asarray(image) + rng.normal(0, 12, (PIXELS, PIXELS, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def draw_all(folder: Path) -> dict[str, ImageFolder]:
    rng = np.random.default_rng(0)
    for part, (shapes, count) in PARTS.items():
        for shape in shapes:
            (folder / part / shape).mkdir(parents=True)
            for k in range(count):
                drawing(shape, rng).save(folder / part / shape / f"{k}.jpg")
    return {part: ImageFolder.find(folder / part) for part in PARTS}


def all_of(images: ImageFolder) -> tuple[np.ndarray, np.ndarray]:
    batches = list(FolderLoader(images, 50, size=SIZE, evaluation=True))
    return np.concatenate([x for x, _ in batches]), np.concatenate([labels for _, labels in batches])


def network() -> Sequential:
    gains: dict[str, Any] = {"gain_weight": GAIN, "gain_bias": GAIN}
    sizes: dict[str, Any] = {"in_width": SIZE, "in_height": SIZE}
    layers: list[Any] = []
    for before, width in zip((3, *WIDTHS), WIDTHS, strict=False):
        layers += [Conv2d(before, width, 3, padding=1, bias=False, **gains, **sizes), MixtureReLU()]
        layers += [BatchNorm2d(width, through_statistics=True), AvgPool2d(2, 2)]
        sizes = {}
    return Sequential(*layers, Linear(WIDTHS[-1] * (SIZE // 16) ** 2, len(KNOWN), **gains))


def ours(images: dict[str, ImageFolder], seed: int, epochs: int, count: float) -> dict[str, Any]:
    """Class probabilities of the parts, and distances by `FeatureDensity`."""
    manual_seed(seed)
    net = network()
    net.set_threads(1)
    evidence = {"count": count, "prior_factor": 100}
    trainer = Trainer(net, Categorical(len(KNOWN)), epochs=epochs, evidence=evidence, average_last=0.5)
    trainer.fit(FolderLoader(images["train"], BATCH, size=SIZE, least_area=LEAST_AREA, seed=seed))
    density = FeatureDensity(net).fit(FolderLoader(images["train"], 50, size=SIZE, evaluation=True))
    x = {part: all_of(images[part])[0] for part in ("test", "others")}
    found = {part: trainer.predict(each).probabilities for part, each in x.items()}
    return found | {"distances": [density.distance(each) for each in x.values()]}


def in_torch(images: dict[str, ImageFolder], seed: int, epochs: int, rate: float) -> dict[str, Any]:
    """As `ours`, without distances; the rate decreases to 0."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    layers: list[Any] = []
    for before, width in zip((3, *WIDTHS), WIDTHS, strict=False):
        layers += [
            nn.Conv2d(before, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.AvgPool2d(2),
        ]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(WIDTHS[-1] * (SIZE // 16) ** 2, len(KNOWN)))
    loader = FolderLoader(images["train"], BATCH, size=SIZE, least_area=LEAST_AREA, seed=seed)
    optimiser = torch.optim.AdamW(net.parameters(), rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, epochs * len(loader))

    def images_of(x: np.ndarray) -> Any:
        return torch.from_numpy(np.array(x).reshape(-1, 3, SIZE, SIZE))

    for _ in range(epochs):
        for x, labels in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(images_of(x)), torch.from_numpy(np.array(labels)).long()).backward()
            optimiser.step()
            schedule.step()
    net.eval()
    with torch.no_grad():
        parts = {part: net(images_of(all_of(images[part])[0])) for part in ("test", "others")}
    return {part: torch.softmax(outputs, 1).numpy() for part, outputs in parts.items()}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.quality drawings", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=float, nargs="+", default=[20_000.0], help="how often a sample counts")
    parser.add_argument("--rate", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2], help="of AdamW")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args(argv)
    methods: list[tuple[str, Any, float]] = [(f"TAGI, count {count:g}", ours, count) for count in args.count]
    if importlib.util.find_spec("torch"):
        methods += [(f"PyTorch, rate {rate:g}", in_torch, rate) for rate in args.rate]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        images = draw_all(Path(folder))
        labels = all_of(images["test"])[1]
        for name, train, setting in methods:
            for seed in args.seed:
                start = time.perf_counter()
                found = train(images, seed, args.epochs, setting)
                p = found["test"]
                right = p[np.arange(len(p)), labels]
                scores = [metric.auroc(metric.entropy(p), metric.entropy(found["others"]))]
                scores += [metric.auroc(*found["distances"])] if "distances" in found else []
                figures = [f"{(p.argmax(1) != labels).mean():.1%}", f"{-np.log(np.maximum(right, 1e-7)).mean():.3f}"]
                figures += [f"{score:.3f}" for score in scores] + ["-"] * (2 - len(scores))
                rows.append([name, str(seed), *figures, f"{time.perf_counter() - start:.0f}"])
                print(*rows[-1], sep="  ", flush=True)
    header = ("method", "seed", "test error", "NLL", "other shapes by entropy", "by density", "s")
    print("\n" + table(header, rows))


if __name__ == "__main__":
    main()
