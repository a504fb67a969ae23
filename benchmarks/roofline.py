"""A prediction of the time of a training step on a GPU that need not be there: the roofline over counted work.

    python -m benchmarks.gpu_launches --predict h200 [--workload resnet18-b128] [--tf32] [--json FILE]

The work is what `benchmarks.step_counts` counts. A launch takes as long as the resource that it needs longest, at
its full rate (see `CARDS`, `resources`), and no less than `SHORTEST`; launches follow each other. It is a bound, not an
estimate: a kernel that reaches 80 % of it is a good one. What is assumed is in `ASSUMPTIONS`.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SHORTEST = 2e-6  # seconds from the start to the end of an empty kernel
GAP, GAP_IN_GRAPH = 0.9e-6, 0.5e-6  # between two kernels of a stream, of a graph; from memory of NVIDIA's articles
HOST = 5e-6  # for the call of one launch, replayed
SHARED_RATE = 128  # bytes per clock of a multiprocessor, for the first cache and shared memory together
MMA = 64  # operations of a thread in one mma.m16n8k8: 2 * 16 * 8 * 8 of a warp
ASSUMPTIONS = (
    "a resource runs at its published rate, at the boost clock, from the first to the last block of a launch",
    "rates: see the sources in CARDS, some of which are memory only, as are the gaps between launches",
    "a launch with fewer blocks than multiprocessors has their share of what these do (ffma, mma, shared)",
    "dram: nothing stays in a cache between two launches; within one every word is moved once",
    "l2: the first cache serves a block's second access to a word",
    "shared: every access of every thread is moved, of the first cache and of shared memory",
    "other arithmetic than multiply-adds, latency, and transfers from and to the host take no time",
    f"a launch takes {SHORTEST * 1e6:g} us, and {GAP * 1e6:g} us before the next ({GAP_IN_GRAPH * 1e6:g} us in graphs)",
    f"the host takes {HOST * 1e6:g} us for a launch without graphs",
)


class Card(NamedTuple):
    """Published figures of a card.

    Attributes:
        name: as the driver reports it, without the maker.
        multiprocessors, clock: Hz, boost.
        ffma: multiply-adds per clock of a multiprocessor.
        mma: dense TF32 operations per second, 0 without.
        dram, l2: bytes per second.
        source: of the figures; those "not looked up" are from memory, and to be checked before they are cited.
    """

    name: str
    multiprocessors: int
    clock: float
    ffma: int
    mma: float
    dram: float
    l2: float
    source: str


_AS_A100 = 5120  # bytes per clock of the second cache, where nobody has published them
CARDS = {
    "h200": Card("H200", 132, 1.98e9, 128, 494e12, 4.8e12, _AS_A100 * 1.98e9, "as the H100; memory, L2 not looked up"),
    "h100": Card("H100", 132, 1.98e9, 128, 494e12, 3.35e12, _AS_A100 * 1.98e9, "data sheet of H100 SXM; L2 as A100's"),
    "a100": Card("A100", 108, 1.41e9, 64, 156e12, 2.039e12, 5120 * 1.41e9, "80 GB SXM; not looked up"),
    "4090": Card("RTX 4090", 128, 2.52e9, 128, 82.6e12, 1.008e12, 5e12, "data sheet; TF32 and L2 not looked up"),
    "t4": Card("T4", 40, 1.59e9, 64, 0.0, 0.32e12, 1.27e12, "not looked up"),
}


def card_of(device: str) -> str | None:
    """The key of `CARDS` for a name of the driver ("NVIDIA H100 80GB HBM3"), or None."""
    words = device.replace("-", " ")
    return next((key for key, card in CARDS.items() if f" {card.name} " in f" {words} "), None)


def resources(launch: dict, card: Card) -> dict[str, float]:
    """Seconds that one launch needs of each resource."""
    blocks = math.prod(launch["grid"])
    clocks = card.clock * min(card.multiprocessors, blocks)
    busy = min(1.0, blocks / card.multiprocessors)
    return {
        "ffma": launch["ffma"] / (card.ffma * clocks),
        "mma": launch["mma"] * MMA / (card.mma * busy) if launch["mma"] else 0.0,
        "dram": (launch["read"] + launch["written"]) / card.dram,
        "l2": (launch["block_load"] + launch["block_store"]) / card.l2,
        "shared": (launch["load"] + launch["store"] + launch["shared"]) / (SHARED_RATE * clocks),
        "launch": SHORTEST,
    }


def counted(workload: str = "resnet18-b128", tf32: bool = False) -> dict:
    """What `benchmarks.step_counts.count` gives, from a process of its own: there CuPy has a stand-in.

    Raises:
        RuntimeError: counting failed; its message says why.
    """
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "counts.json"
        command = [sys.executable, "-m", "benchmarks.step_counts", workload, "--json", str(output)]
        done = subprocess.run(command + ["--tf32"] * tf32, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{workload} could not be counted:\n{done.stderr.strip()}")
        return json.loads(output.read_text())


def predict(card: str, workload: str = "resnet18-b128", tf32: bool = False, counts: dict | None = None) -> dict:
    """The bound for a step of a workload on a card; plain data, which can be written as JSON.

    Args:
        card: a key of `CARDS`.
        workload: a name of `benchmarks.workloads`; the number after -b is the batch.
        tf32: products on tensor cores.
        counts: what `counted` gave, for several cards.

    Returns: {"prediction": True, "card", "source", "assumptions", "workload", "tf32", "launches", "copies",
        "kernels": {name: {"launches", "seconds", "bound", "resources": {name: seconds}}}, "step": {"seconds",
        "seconds_with_graphs", "resources"}}; seconds of kernels are without gaps.

    Raises:
        ValueError: the card is not known, or has no TF32.
        RuntimeError: see `counted`.
    """
    if card not in CARDS:
        raise ValueError(f"no figures of a card {card!r}: {', '.join(CARDS)}")
    figures = CARDS[card]
    counts = counts or counted(workload, tf32)
    if counts["tf32"] and not figures.mma:
        raise ValueError(f"{figures.name} has no TF32")
    kernels: dict[str, dict] = {}
    for one in [*counts["launches"], *map(_as_launch, counts["copies"])]:
        times, needed = one["times"], resources(one, figures)
        row = kernels.setdefault(one["kernel"], {"launches": 0, "seconds": 0.0, "resources": Counter()})
        row["launches"] += times
        row["seconds"] += times * max(needed.values())
        row["resources"].update({name: times * seconds for name, seconds in needed.items()})
    step: Counter[str] = Counter()
    for row in kernels.values():
        row["bound"] = max(row["resources"], key=row["resources"].get)
        step.update(row["resources"])
    launches, total = (sum(row[name] for row in kernels.values()) for name in ("launches", "seconds"))
    copies = sum(one["times"] for one in counts["copies"])
    return {
        "prediction": True,
        "card": figures.name,
        "source": figures.source,
        "assumptions": list(ASSUMPTIONS),
        "workload": counts["workload"],
        "tf32": counts["tf32"],
        "launches": launches - copies,
        "copies": copies,
        "kernels": kernels,
        "step": {
            "seconds": max(total + launches * GAP, launches * HOST),
            "seconds_with_graphs": total + launches * GAP_IN_GRAPH,
            "resources": step,
        },
    }


def _as_launch(copy: dict) -> dict:
    """A copy on the device moves bytes, and nothing else."""
    nothing = dict.fromkeys(("ffma", "mma", "block_load", "block_store", "load", "store", "shared"), 0)
    return copy | nothing | {"kernel": f"({copy['what']} on the device)", "grid": [1 << 20]}


def show(predicted: dict) -> None:
    """Prints a prediction."""
    step, what = predicted["step"], "TF32" if predicted["tf32"] else "float32"
    print(f"PREDICTION, not a measurement: {predicted['workload']}, {what}, on {predicted['card']}")
    print(f"figures: {predicted['source']}")
    names = list(step["resources"])
    print(f"{'kernel':34}{'launches':>9}{'ms':>10}  {'bound by':9}" + "".join(f"{name + ' ms':>11}" for name in names))
    for kernel, row in sorted(predicted["kernels"].items(), key=lambda item: -item[1]["seconds"]):
        line = f"{kernel:34}{row['launches']:9}{row['seconds'] * 1e3:10.3f}  {row['bound']:9}"
        print(line + "".join(f"{row['resources'][name] * 1e3:11.3f}" for name in names))
    line = f"{'sum of resources':34}{predicted['launches'] + predicted['copies']:9}{'':21}"
    print(line + "".join(f"{step['resources'][name] * 1e3:11.3f}" for name in names))
    print(f"step: {step['seconds'] * 1e3:.2f} ms, with CUDA graphs {step['seconds_with_graphs'] * 1e3:.2f} ms")
    print("It is assumed that:", *predicted["assumptions"], sep="\n* ")
