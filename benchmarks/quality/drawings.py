"""A few hundred images of a folder: `python -m benchmarks.quality drawings`.

Writes 60 JPEG files of each of the first five classes of the library's synthetic shapes, 80 others of each for the
test, and 80 of each of the other five classes, which are foreign. The network of docs/guide/images.md learns from the
folder, and so does the same network in PyTorch, if it is installed, for the same processor time. The table has the
scores of `benchmarks.quality.calibration`, and the AUROC of `FeatureDensity`. One thread, half a minute a training.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.quality.calibration import Predict, score, torch_classifier
from benchmarks.report import table
from benchmarks.workloads import Head, let_deltas_through
from pytagi_ddp import manual_seed, metric, nn
from pytagi_ddp.data import FolderLoader, ImageFolder, synthetic_images
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.training import Trainer

SIZE, BATCH, KNOWN = 32, 16, 5  # edge of an image; images of a step; classes that are learnt
TRAINED, TESTED = 60, 80  # images of a class
Folders = dict[str, ImageFolder]


def network(layers: Any, head: Head) -> Any:
    gains, before = {"gain_weight": 0.3, "gain_bias": 0.3}, 3
    body: list[Any] = []
    for width in (16, 32, 64, 64):
        size = {} if body else {"in_width": SIZE, "in_height": SIZE}
        convolution = layers.Conv2d(before, width, 3, padding=1, bias=False, **gains, **size)
        body += [convolution, layers.MixtureReLU(), layers.BatchNorm2d(width), layers.AvgPool2d(2, 2)]
        before = width
    return layers.Sequential(*body, *head(before * (SIZE // 16) ** 2))


def write(folder: Path) -> Folders:
    """The folders "train", "test" and "foreign"."""
    from PIL import Image

    sets = synthetic_images(10 * TRAINED, 10 * TESTED)
    for part, images in zip(("train", "test"), sets, strict=True):
        for k, (pixels, label) in enumerate(zip(images.images, images.labels, strict=True)):
            if label < KNOWN or part == "test":
                place = folder / (part if label < KNOWN else "foreign") / images.classes[label]
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.transpose(1, 2, 0)).save(place / f"{k}.jpg")
    return {part: ImageFolder.find(folder / part) for part in ("train", "test", "foreign")}


def shown(images: ImageFolder) -> FolderLoader:
    return FolderLoader(images, 50, size=SIZE, evaluation=True)


def learnt(images: ImageFolder, seed: int) -> FolderLoader:
    return FolderLoader(images, BATCH, size=SIZE, least_area=0.5, seed=seed)


def scores(predict: Predict, folders: Folders) -> dict[str, Any]:
    return score(predict, shown(folders["test"]), {"foreign": shown(folders["foreign"])})


def ours(folders: Folders, seed: int, epochs: int, count: float) -> dict[str, Any]:
    manual_seed(seed)
    net = network(nn, lambda inputs: [nn.Linear(inputs, KNOWN, gain_weight=0.3, gain_bias=0.3)])
    let_deltas_through(net)
    evidence = {"count": count, "prior_factor": 100}
    trainer = Trainer(net, Categorical(KNOWN), epochs=epochs, evidence=evidence, average_last=0.5)
    trainer.fit(learnt(folders["train"], seed))
    density = nn.FeatureDensity(net).fit(shown(folders["train"]))
    distances = [[d for x, _ in shown(folders[part]) for d in density.distance(x)] for part in ("test", "foreign")]
    found = scores(lambda x: (trainer.predict(x).probabilities, None), folders)
    return found | {"density": metric.auroc(*distances)}


def in_torch(folders: Folders, seed: int, seconds: float, rate: float) -> dict[str, Any]:
    classifier = torch_classifier()(network, (3, SIZE, SIZE), 0.0, seed, rate=rate)
    classifier.train(learnt(folders["train"], seed), seconds)
    return scores(lambda x: (classifier.probabilities(x, 1)[0], None), folders)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.quality drawings", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=float, nargs="+", default=[20_000.0], help="how often a sample counts")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args(argv)
    set_threads(1)
    rates = [1e-3, 3e-3, 1e-2] if importlib.util.find_spec("torch") else []
    rows, seconds = [], 0.0

    def note(method: str, seed: int, found: dict[str, Any], used: float) -> None:
        figures = [f"{found['error']:.1%}", *(f"{found[key]:.3f}" for key in ("nll", "ece"))]
        figures += [f"{found['auroc']['foreign'][0]:.3f}", f"{found['density']:.3f}" if "density" in found else "-"]
        rows.append([method, str(seed), *figures, f"{used:.0f}"])
        print(*rows[-1], sep="  ", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        folders = write(Path(folder))
        for seed in args.seed:
            for count in args.count:
                start = time.process_time()
                found = ours(folders, seed, args.epochs, count)
                seconds = time.process_time() - start
                note(f"TAGI, count {count:g}", seed, found, seconds)
            for rate in rates:
                note(f"PyTorch, rate {rate:g}", seed, in_torch(folders, seed, seconds, rate), seconds)
    header = ("method", "seed", "test error", "NLL", "ECE", "foreign by entropy", "by density", "s")
    print("\n" + table(header, sorted(rows)))
