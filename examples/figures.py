"""Pictures of the examples, where matplotlib is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def draw(path: str | None, paint: Callable[[Any], None], size: tuple[float, float] = (9, 3.5)) -> Path | None:
    """Saves the matplotlib figure that `paint` draws on; None without a path, or where matplotlib is missing."""
    if path is None:
        return None
    if importlib.util.find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed (pip install 'pytagi-ddp[plot]')")
        return None
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state

    figure = Figure(figsize=size, layout="constrained")
    paint(figure)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")
    return Path(path)


def band(axes: Any, t: np.ndarray, mu: np.ndarray, var: np.ndarray, label: str, color: str) -> None:
    """The mean of predictions over time, and the interval of two standard deviations around it."""
    std = np.sqrt(var)
    axes.plot(t, mu, color=color, label=label)
    axes.fill_between(t, mu - 2 * std, mu + 2 * std, color=color, alpha=0.25, linewidth=0)
