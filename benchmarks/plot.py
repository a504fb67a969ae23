"""The picture of the suite's results: a roofline, and bars of the peers' times."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers import OWN, PEERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(results: dict, path: Path) -> Path | None:
    """Writes a PNG of the section "training"; None where there is nothing to draw, or the `plot` extra is missing."""
    rows = [row for row in results.get("training", {}).get("rows", ()) if row["rounds"]]
    if not rows or find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state

    figure = Figure(figsize=(12, 5), layout="constrained")
    roofline, bars = figure.subplots(1, 2)
    _roofline(roofline, rows, results["peak"])
    _bars(bars, rows)
    machine = results["machine"]
    figure.suptitle(f"{machine['cpu']}, {results['options']['threads']} threads")
    figure.savefig(path, dpi=120)
    return path


def _roofline(axes: Axes, rows: list[dict], peak: dict) -> None:
    """Rate over operations per byte of minimal traffic, under the machine's two limits."""
    top, speed = peak["flops"] / 1e9, peak["copy_bytes_per_second"] / 1e9
    own = [row for row in rows if row["library"] == OWN]
    intensity = [row["floor_flops"] / row["traffic"] for row in own]
    ends = [min(*intensity, top / speed) / 2, max(*intensity, top / speed) * 2]
    axes.loglog([ends[0], top / speed, ends[1]], [ends[0] * speed, top, top], color="black", label="this machine")
    for row, x in zip(own, intensity, strict=True):
        axes.loglog(x, row["rate"] / 1e9, "o", label=row["workload"])
    axes.set_xlabel("operations of the products per byte kept (written and read once)")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"Roofline: sgemm {top:.0f} GFLOP/s, copies {speed:.1f} GB/s")
    axes.legend(fontsize="small")


def _bars(axes: Axes, rows: list[dict]) -> None:
    """Times of a step over this library's, by workload; the dashed line is this library."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    others = [name for name in PEERS if name != OWN and any(row["library"] == name for row in rows)]
    height = 0.8 / max(1, len(others))
    for k, name in enumerate(others):
        found = [(workloads.index(r["workload"]), r["ratio"]) for r in rows if r["library"] == name and "ratio" in r]
        bars = axes.barh([y + (k - (len(others) - 1) / 2) * height for y, _ in found], [x for _, x in found], height)
        axes.bar_label(bars, [f"{x:.2g}" if x < 10 else f"{x:.0f}" for _, x in found], fontsize="small", padding=2)
        bars.set_label(name)
    axes.axvline(1, color="black", linestyle="--", label=OWN)
    axes.set_xscale("log")
    axes.set_yticks(range(len(workloads)), workloads)
    axes.invert_yaxis()
    axes.set_title("Time of a training step / this library's")
    axes.legend(fontsize="small")
