"""`python -m benchmarks.quality SUBJECT ...`; `--help` after a subject shows its options."""

from __future__ import annotations

import sys
from importlib import import_module

SUBJECTS = {
    "tables": "regression and classes on tables, compared with scikit-learn, NGBoost and published figures",
    "drawings": "a few hundred images of a folder, compared with PyTorch",
    "counts": "how often a sample should count where noise is known: are error bars right?",
    "calibration": "class probabilities and uncertainty on MNIST and CIFAR-10, compared with PyTorch",
    "forecasts": "Forecaster on six series, compared with exponential smoothing, ARIMA, autoregression and boosting",
    "pretrained": "a start from a network of PyTorch, by its variances, compared with one from scratch",
    "series": "forecasting programs of pytagi and Canari, compared with pytagi",
    "batches": "test error of classifiers against the images of a global step, and what helps large ones",
}


def main(argv: list[str]) -> None:
    listing = "".join(f"\n  {name:12}{what}" for name, what in SUBJECTS.items())
    usage = f"usage: python -m benchmarks.quality SUBJECT ...{listing}"
    if argv and argv[0] in ("-h", "--help"):
        print(usage)
        return
    if not argv or argv[0] not in SUBJECTS:
        raise SystemExit(usage)
    import_module(f"benchmarks.quality.{argv[0]}").main(argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
