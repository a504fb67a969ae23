"""How long a fitted regressor takes to predict, in one process and as a graph in onnxruntime.

    python -m benchmarks.serving                     # 20 networks with one hidden layer of 50
    python -m benchmarks.serving --hidden 50 50 --features 100 --rows 1 1000

Prints the median and the 95th percentile of the times of a call, in milliseconds, and the size of the pickle.
"""

from __future__ import annotations

import argparse
import importlib.util
import pickle
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.worker import times_of
from pytagi_ddp import onnx
from pytagi_ddp.estimators import TAGIRegressor


def fitted(features: int, hidden: Sequence[int]) -> TAGIRegressor:
    """A regressor of twenty networks. What it has learnt does not matter to its speed."""
    random = np.random.default_rng(0)
    x = random.normal(size=(500, features))
    y = np.sin(x[:, 0]) + random.normal(size=500)
    return TAGIRegressor(tuple(hidden), epochs=2, n_seeds=4, random_state=0).fit(x, y)


def timed(call: Callable[[], Any], repeat: int) -> tuple[float, float]:
    """(median, 95th percentile) of the seconds of a call, after a first one."""
    call()
    times = times_of(call, 0.0, repeat)
    return float(np.median(times)), float(np.percentile(times, 95))


def session_of(model: TAGIRegressor) -> Any:
    """The regressor in onnxruntime; None if it or onnx is not installed."""
    if not all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))):
        return None
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.export(model, path)
        return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


def report(features: int, hidden: Sequence[int], rows: Sequence[int], repeat: int) -> str:
    model = fitted(features, hidden)
    session = session_of(model)
    x = np.random.default_rng(1).normal(size=(max(rows), features))
    size = len(pickle.dumps(model)) / 1024
    lines = [f"{len(model.networks_)} networks of {list(hidden)} units, {features} features; pickle {size:.0f} KiB"]
    lines += ["", f"{'':>22}" + "".join(f"{n:>8} rows" for n in rows)]
    calls: dict[str, Callable[[Any], Any]] = {"predict(x)": model.predict}
    calls["predict(x, True)"] = lambda some: model.predict(some, return_std=True)
    if session is not None:
        calls["onnxruntime"] = lambda some: session.run(None, {"X": some})
    for name, call in calls.items():
        times = [timed(partial(call, x[:n]), repeat) for n in rows]
        lines.append(f"{name:>22}" + "".join(f"{1e3 * middle:>6.2f}/{1e3 * late:<6.2f}" for middle, late in times))
    return "\n".join([*lines, "", "median/95th percentile in ms"])


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.serving", description=__doc__.partition("\n")[0])
    parser.add_argument("--features", type=int, default=10)
    parser.add_argument("--hidden", type=int, nargs="+", default=[50])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--repeat", type=int, default=200)
    args = parser.parse_args()
    print(report(args.features, args.hidden, args.rows, args.repeat))


if __name__ == "__main__":
    main()
