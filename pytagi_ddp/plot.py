"""Plots: each function draws on the matplotlib Axes that it is given, and returns them.

    figure = plot.figure((6, 4))
    plot.band(figure.add_subplot(), x, mu, var, "two standard deviations")
    figure.savefig("band.png")

They need matplotlib (`pip install 'pytagi-ddp[plot]'`), which is only imported when it is used.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.metric import calibration_error, reliability_bins
from pytagi_ddp.nn.tools.inspection import signal_to_noise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pytagi_ddp.distributed.pipeline.schedule import Timeline
    from pytagi_ddp.nn.core.layer import BaseLayer
    from pytagi_ddp.nn.sequential import Sequential
    from pytagi_ddp.nn.tools.inspection import Inspection

__all__ = [
    "band",
    "figure",
    "forecast",
    "inspection",
    "learning_curves",
    "network",
    "parameters",
    "read_epochs",
    "rejection",
    "reliability",
    "timelines",
]

LEAST_KEPT = 0.02  # share of answers below which a rejection curve ends
LEAST_DOT, LARGEST_DOT = 10, 150  # areas in points^2: of every bin, and what is added for a bin with all answers
MAX_LINE = 1 << 16  # bytes; longer lines of a log are not read
ERRORS = ("train_error", "test_error")
MOMENTS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "mu": lambda mu, var: mu,
    "var": lambda mu, var: var,
    "std": lambda mu, var: np.sqrt(var),
    "snr": signal_to_noise,
}
SHARES = ("uncertain", "dead", "saturated", "var_ratio", "capped")  # columns of `inspection`


def figure(size: tuple[float, float] = (6, 4)) -> Figure:
    """An empty figure of this size in inches; it needs no window system, and does not use pyplot's global state.

    A notebook shows it where it is the last value of a cell.

    Raises:
        ImportError: matplotlib is not installed; says how to install it.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("pictures need matplotlib, which is not installed: pip install 'pytagi-ddp[plot]'")
    from pytagi_ddp.notebook_figure import NotebookFigure  # here: a program without pictures shall not wait for it

    return NotebookFigure(figsize=size, layout="constrained")


def band(
    ax: Axes,
    x: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    label: str | None = None,
    color: str | None = None,
    deviations: float = 2,
) -> Axes:
    """The means of predictions as a line, and mean +- deviations x sqrt(var) as a band around it.

    Args:
        x: places, in any order. mean, var: as many means and variances (not standard deviations). Add the variance of
            the noise if the band should contain observations.
        label: of the line. color: of line and band; None: the next color of the cycle.

    Raises:
        ValueError: not as many values, or a negative variance.
    """
    place, mu, variance = (to_numpy(a, name).ravel() for a, name in ((x, "x"), (mean, "mean"), (var, "var")))
    if not place.size == mu.size == variance.size or variance.min(initial=0) < 0:
        raise ValueError(
            f"band needs as many places, means and variances, none of them negative: got {place.size}, {mu.size} and "
            f"{variance.size} from {variance.min(initial=0):g}"
        )
    order = np.argsort(place, kind="stable")
    place, mu, std = place[order], mu[order], deviations * np.sqrt(variance[order])
    (line,) = ax.plot(place, mu, color=color, label=label)
    ax.fill_between(place, mu - std, mu + std, color=line.get_color(), alpha=0.25, linewidth=0)
    return ax


def forecast(
    ax: Axes,
    x: ArrayLike,
    mean: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    truth: ArrayLike | None = None,
    past: tuple[ArrayLike, ArrayLike] | None = None,
    label: str = "interval",
) -> Axes:
    """A forecast as a line in a band, after the observations before it and, if known, with the true values.

    Args:
        x: times or numbers of n steps ahead. mean, low, high: n values: the line, and the ends of the band.
        truth: n observations at x. past: (times or numbers, as many observations) of the steps before x.
        label: of the band.

    Raises:
        ValueError: not as many values as steps.
    """
    sizes = [np.size(values) for values in (x, mean, low, high, x if truth is None else truth)]
    if len(set(sizes)) > 1:
        raise ValueError(f"forecast needs as many steps, means, ends of the band and observations, got {sizes}")
    steps, middle, bottom, top = map(np.asarray, (x, mean, low, high))
    if past is not None:
        ax.plot(np.asarray(past[0]), np.asarray(past[1]), ".-", color="0.4", markersize=3, linewidth=0.8, label="past")
    (line,) = ax.plot(steps, middle, label="forecast")
    ax.fill_between(steps, bottom, top, color=line.get_color(), alpha=0.25, linewidth=0, label=label)
    if truth is not None:
        ax.plot(steps, np.asarray(truth), ".", color="0.1", markersize=4, label="observed")
    return ax


def reliability(
    ax: Axes, probabilities: ArrayLike, labels: ArrayLike, bins: int = 10, label: str | None = None
) -> Axes:
    """Reliability diagram of a classifier: the share of right answers against the confidence in them.

    The points are those of `metric.reliability_bins`, larger for bins with more answers; a calibrated classifier is
    on the diagonal. The legend has the `metric.calibration_error`.

    Args:
        probabilities: (n, classes), or (n, 1) of the class 1. labels: n class numbers. bins: of [0, 1].

    Raises:
        ValueError: sizes that do not fit, no sample, or values that are not probabilities.
    """
    p, truth = to_numpy(probabilities, "probabilities"), to_numpy(labels, "labels", text=True)
    confidence, accuracy, count = reliability_bins(p, truth, bins)
    error = calibration_error(p, truth, bins)
    ax.plot([0, 1], [0, 1], "--", color="0.7", linewidth=1)
    (line,) = ax.plot(confidence, accuracy, label=f"{label + ': ' if label else ''}calibration error {error:.3f}")
    areas = LEAST_DOT + LARGEST_DOT * count / truth.size
    ax.scatter(confidence, accuracy, areas, color=line.get_color(), clip_on=False, zorder=2)
    ax.set(xlabel="confidence", ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1))
    ax.legend(loc="lower right")
    return ax


def rejection(ax: Axes, uncertainty: ArrayLike, wrong: ArrayLike, label: str | None = None) -> Axes:
    """Rejection curve: the error of the answers that are kept, against the share that is refused as most uncertain.

    The curve falls if the uncertainty distinguishes wrong answers from right ones; a useless uncertainty gives a flat
    curve. Answers of the same uncertainty all count with their mean error. The end, where less than 2 % of the answers
    are kept, is not drawn, because an error of a few answers is not reliable.

    Args:
        uncertainty: n numbers, such as entropies, variances, or 1 - confidence; larger is less certain.
        wrong: for each of the n answers, whether it is wrong (or any other loss, whose mean is drawn).

    Raises:
        ValueError: sizes that differ, or no answer.
    """
    doubt, loss = to_numpy(uncertainty, "uncertainty").ravel(), to_numpy(wrong, "wrong").ravel().astype(np.float64)
    n = doubt.size
    if n == 0 or n != loss.size:
        raise ValueError(f"rejection needs as many uncertainties as answers, got {n} and {loss.size}")
    kept = np.arange(1, n + 1)
    _, group, sizes = np.unique(doubt, return_inverse=True, return_counts=True)
    error = np.cumsum(np.repeat(np.bincount(group, loss) / sizes, sizes)) / kept
    shown = kept >= n * LEAST_KEPT
    ax.plot(1 - kept[shown] / n, error[shown], label=label)
    ax.set(xlabel="share refused", ylabel="error of the rest", xlim=(0, 1))
    ax.autoscale(axis="y")  # to the curves that were here before, too
    ax.set_ylim(bottom=0)
    if label:
        ax.legend()
    return ax


def learning_curves(ax: Axes, log: str | Path, names: Sequence[str] | None = None) -> Axes:
    """Curves over the epochs of a `log.jsonl`, as `pytagi_ddp.training.Log` writes it; errors are shares from 0 to 1.

    Args:
        log: the file. If an epoch occurs twice, the later record is used.
        names: what to draw of each epoch; None: the errors in the training and outside of it, of numbers their RMSE.

    Raises:
        OSError: the file cannot be read. ValueError: it has no epoch with these.
    """
    from matplotlib.ticker import MaxNLocator, PercentFormatter  # here, because matplotlib is an extra

    names = _names_in(Path(log)) if names is None else names
    epochs = {record["epoch"]: record for record in read_epochs(Path(log), names)}
    if not epochs:
        raise ValueError(f"{log} has no epoch with {', '.join(names)}")
    numbers = sorted(epochs)
    for name in names:
        ax.plot(numbers, [epochs[n][name] for n in numbers], marker="o", label=name.replace("_", " "))
    ax.set(xlabel="epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if all("error" in name for name in names):
        ax.set(ylabel="error", ylim=(0, 1))
        ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.grid(alpha=0.3)
    ax.legend()
    return ax


def _names_in(log: Path) -> Sequence[str]:
    """What the epochs of a log have, and is drawn by default."""
    record = deque(read_epochs(log, ()), 1)
    kinds = ([f"{part}_{kind}" for part in ("train", "val", "test")] for kind in ("error", "rmse", "nll"))
    found = ([name for name in names if record and name in record[0]] for names in kinds)
    return next(filter(None, found), ERRORS)


def read_epochs(path: Path, names: Sequence[str] = ERRORS) -> Iterator[dict]:
    """The records of finished epochs in a log of JSON lines, those that have a number under each of `names`.

    Lines that are incomplete, damaged, or of another kind are skipped.
    """
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE):
            try:
                record = json.loads(line)
                numbers = [record[name] for name in ("epoch", *names)] if record["event"] == "epoch" else [None]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if type(numbers[0]) is int and all(isinstance(number, int | float) for number in numbers):
                yield record


def parameters(ax: Axes, net: Sequential, what: str = "mu_w", bins: int = 60) -> Axes:
    """Histograms (densities) of the parameters of each layer, from the first (dark) to the last (bright).

    Args:
        net: the network. what: "mu", "var", "std" (standard deviations) or "snr" (signal to noise, |mu|/std), of
            weights or biases: "mu_w", "snr_b". Logarithms are drawn, except for means; infinite ratios are left out.
        bins: the largest number of bins of each histogram; there are less for few parameters.

    Raises:
        ValueError: another `what`, or a network without such parameters.
    """
    moment, _, part = what.partition("_")
    if moment not in MOMENTS or part not in ("w", "b"):
        raise ValueError(f"parameters draws {', '.join(MOMENTS)} with _w or _b after it, such as mu_w: got {what!r}")
    leaves = {key: (getattr(leaf, f"mu_{part}"), getattr(leaf, f"var_{part}")) for key, leaf in net.named_leaves()}
    found = {key: MOMENTS[moment](*map(np.asarray, pair)) for key, pair in leaves.items()}
    found = {key: finite for key, values in found.items() if (finite := values[np.isfinite(values)]).size}
    if not found:
        raise ValueError(f"the network has no {what}")
    from matplotlib import colormaps  # here, because matplotlib is an extra

    logarithm = moment != "mu"
    if logarithm:
        found = {key: np.log10(np.maximum(values, np.finfo(np.float32).tiny)) for key, values in found.items()}
    for k, (key, values) in enumerate(found.items()):
        low, high = float(values.min()), float(values.max())
        width = max(high - low, 0.02 * max(abs(low), 1))  # where all are equal, as in a prior
        middle = (low + high) / 2
        color = colormaps["viridis"](0.9 * k / max(len(found) - 1, 1))
        limits = middle - width / 2, middle + width / 2
        number = min(bins, 1 + 2 * math.isqrt(values.size))
        ax.hist(values, number, range=limits, density=True, histtype="step", color=color, label=key)
    ax.set(xlabel=f"{'log10 ' if logarithm else ''}{what}", ylabel="density")
    ax.legend(fontsize="small", ncols=1 + (len(found) - 1) // 12)
    return ax


def inspection(ax: Axes, found: Inspection) -> Axes:
    """The result of `net.inspect(x)` as a table in colours: shares, and the ratio of variances, by layer."""
    table = np.array([[getattr(row, name) for name in SHARES] for row in found.rows])
    ax.imshow(np.clip(table, 0, 1), cmap="viridis", vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        if math.isfinite(value):
            color = "black" if value > 0.6 else "white"
            ax.text(column, row, f"{value:.2f}", ha="center", va="center", color=color, fontsize="small")
    ax.set_xticks(range(len(SHARES)), [name.replace("var_ratio", "var / prior") for name in SHARES])
    ax.set_yticks(range(len(found.rows)), [row.key for row in found.rows])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def timelines(ax: Axes, stages: Sequence[Timeline]) -> Axes:
    """What each stage of a pipeline did when: a bar for each pass, with the number of its micro-batch.

    Args:
        ax: to draw on. stages: the result of `PipelineSequential.timelines`.
    """
    begin = min(span.start for stage in stages for span in stage)
    colors, labels = {"F": "tab:blue", "B": "tab:orange"}, {"F": "forward", "B": "backward"}
    for number, stage in enumerate(stages):
        for (kind, micro_batch), start, stop in stage:
            left, width = 1e3 * (start - begin), 1e3 * (stop - start)
            ax.barh(number, width, left=left, color=colors[kind], edgecolor="white", label=labels.pop(kind, None))
            ax.text(left + width / 2, number, str(micro_batch), ha="center", va="center", color="white")
    ax.set(xlabel="ms", yticks=range(len(stages)), yticklabels=[f"stage {number}" for number in range(len(stages))])
    ax.invert_yaxis()
    ax.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    return ax


def network(ax: Axes, net: Sequential) -> Axes:
    """The network as a graph from top to bottom: a box for each layer, with the shape of its output.

    A block of branches is drawn with the branches from left to right (of a residual block, the main one and the
    shortcut), and what joins them.
    """
    drawing = _Graph(ax)
    end = drawing.box(0, 0, "input", str(net.in_shape), "0.92")
    for layer in net.layers:
        end = drawing.place(layer, *end)
    left, right = drawing.reach
    ax.set(xlim=(left - 0.2, right + 0.2), ylim=(drawing.lowest - 0.3, 0.8))
    ax.set_axis_off()
    return ax


class _Graph:
    """Boxes and arrows between them; an end is the point (x, y) below a box."""

    COLORS: Mapping[str, str] = {"with parameters": "#cfe3f7", "without": "#f3ead7"}
    HALF, HEIGHT, GAP = 1.0, 0.5, 0.4

    def __init__(self, ax: Axes):
        self._ax = ax
        self.reach = [-self.HALF, self.HALF]
        self.lowest = 0.0

    def box(self, x: float, y: float, name: str, shape: str, color: str) -> tuple[float, float]:
        """A box with its middle at (x, y)."""
        from matplotlib.patches import FancyBboxPatch  # here, because matplotlib is an extra

        size = (x - self.HALF + 0.05, y - self.HEIGHT / 2), 2 * self.HALF - 0.1, self.HEIGHT
        self._ax.add_patch(
            FancyBboxPatch(*size, boxstyle="round,pad=0,rounding_size=0.1", facecolor=color, edgecolor="0.4")
        )
        self._ax.text(x, y, f"{name}   {shape}", ha="center", va="center", fontsize="small")
        self.reach = [min(self.reach[0], x - self.HALF), max(self.reach[1], x + self.HALF)]
        self.lowest = min(self.lowest, y - self.HEIGHT / 2)
        return x, y - self.HEIGHT / 2

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self._ax.plot(*zip(start, end, strict=True), color="0.4", linewidth=1)

    def arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self._ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "0.4", "shrinkA": 0, "shrinkB": 0})

    def place(self, layer: Any, x: float, y: float) -> tuple[float, float]:
        """Draws a layer below (x, y), with an arrow from there; returns where it ends."""
        if hasattr(layer, "branches"):
            return self._fork(layer.branches, "+" if layer.merge == "sum" else "concat", x, y)
        if hasattr(layer, "layers"):
            for inner in layer.layers:
                x, y = self.place(inner, x, y)
            return x, y
        self.arrow((x, y), (x, y - self.GAP))
        kind = "without" if layer.parameters is None else "with parameters"
        return self.box(x, y - self.GAP - self.HEIGHT / 2, layer.name, str(layer.out_shape), self.COLORS[kind])

    def _fork(self, branches: Sequence[BaseLayer | None], merge: str, x: float, y: float) -> tuple[float, float]:
        """All branches of a block, from left to right, and what joins them."""
        sides = [x + 2.2 * self.HALF * (k - (len(branches) - 1) / 2) for k in range(len(branches))]
        below = y - self.GAP
        for side in sides:
            self.line((x, y), (side, below))
        ends = [
            (side, below) if branch is None else self.place(branch, side, below)
            for side, branch in zip(sides, branches, strict=True)
        ]
        meeting = min(end[1] for end in ends)
        for side, end in ends:
            self.line((side, end), (side, meeting))
            self.arrow((side, meeting), (x, meeting - self.GAP))
        middle = meeting - self.GAP - 0.1
        self._ax.text(
            x, middle, merge, ha="center", va="center", bbox={"boxstyle": "circle", "fc": "white", "ec": "0.4"}
        )
        self.lowest = min(self.lowest, middle)
        return x, middle - 0.1
