"""`python -m benchmarks.quality SUBJECT ...`; `--help` behind a subject says what it takes."""

from __future__ import annotations

import sys
from importlib import import_module

SUBJECTS = {
    "calibration": "class probabilities and doubt on MNIST and CIFAR-10, beside PyTorch",
    "uci": "nine regression sets on their standard splits, beside published figures",
}


def main(argv: list[str]) -> None:
    if not argv or argv[0] not in SUBJECTS:
        listing = "".join(f"\n  {name:12}{what}" for name, what in SUBJECTS.items())
        raise SystemExit(f"usage: python -m benchmarks.quality SUBJECT ...{listing}")
    import_module(f"benchmarks.quality.{argv[0]}").main(argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
