"""`python -m benchmarks.quality SUBJECT ...`; `--help` behind a subject says what it takes."""

from __future__ import annotations

import sys
from importlib import import_module

SUBJECTS = {
    "uci": "nine regression sets on their standard splits, beside published figures",
    "calibration": "class probabilities and doubt on MNIST and CIFAR-10, beside PyTorch",
    "series": "forecasting programs of pytagi and Canari, beside pytagi",
    "batches": "test error of classifiers against the images of a global step, and what helps large ones",
}


def main(argv: list[str]) -> None:
    if not argv or argv[0] not in SUBJECTS:
        listing = "".join(f"\n  {name:12}{what}" for name, what in SUBJECTS.items())
        raise SystemExit(f"usage: python -m benchmarks.quality SUBJECT ...{listing}")
    import_module(f"benchmarks.quality.{argv[0]}").main(argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
