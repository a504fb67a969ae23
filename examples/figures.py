"""Pictures of the examples, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytagi_ddp import plot
from pytagi_ddp.files import check_replaceable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(path: str | None, paint: Callable[[Figure], None], size: tuple[float, float] = (9, 3.5)) -> Path | None:
    """Saves the matplotlib figure that `paint` draws on; None without a path, or where matplotlib is missing."""
    if path is None:
        return None
    try:
        figure = plot.figure(size)
    except ImportError as error:
        print(f"no picture: {error}")
        return None
    paint(figure)
    check_replaceable(path)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")
    return Path(path)
