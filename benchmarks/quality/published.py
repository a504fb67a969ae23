"""Figures of others on the nine UCI sets: (RMSE, mean log-likelihood), each a mean over the splits with its error.

All are networks with one hidden layer of 50 ReLU (100 for the protein set), on 20 splits of 90 and 10 % (5 for the
protein set). `published` divides standard deviations over splits by the root of their number: standard errors, but for
the rounding of what was printed.
"""

from __future__ import annotations

from typing import Any

from benchmarks.quality.done import of, with_error
from benchmarks.report import table
from pytagi_ddp.data.uci import UCI_SETS

SOURCES = {
    "PBP": "Hernandez-Lobato & Adams (2015), ICML; as in table 1 of Lakshminarayanan et al.",
    "MC dropout": "Gal & Ghahramani (2016), ICML; readme of github.com/yaringal/DropoutUncertaintyExps, 'original'",
    "MC dropout, 10 x epochs": "the same table, 'updated'",
    "deep ensembles": "Lakshminarayanan, Pritzel & Blundell (2017), NeurIPS, table 1; its networks predict the noise",
    "TAGI": "benchmarks/README.md of github.com/lhnguyen102/cuTAGI; sigma_v by grid search, early stopping, own splits",
    "TAGI-V": "the same table; noise by AGVI, gains by grid search",
}
# Mean and error of the RMSE, mean and error of the log-likelihood, of the sets in alphabetical order.
PRINTED = {
    "PBP": """
        3.01 0.18 -2.57 0.09 | 5.67 0.09 -3.16 0.02 | 1.80 0.05 -2.04 0.02 | 0.10 0.00 0.90 0.01 | 0.01 0.00 3.73 0.01 |
        4.12 0.03 -2.84 0.01 | 4.73 0.01 -2.97 0.00 | 0.64 0.01 -0.97 0.01 | 1.02 0.05 -1.63 0.02""",
    "MC dropout": """
        2.97 0.85 -2.46 0.25 | 5.23 0.53 -3.04 0.09 | 1.66 0.19 -1.99 0.09 | 0.10 0.00 0.95 0.03 | 0.01 0.00 3.80 0.05 |
        4.02 0.18 -2.80 0.05 | 4.36 0.04 -2.89 0.01 | 0.62 0.04 -0.93 0.06 | 1.11 0.38 -1.55 0.12""",
    "MC dropout, 10 x epochs": """
        2.80 0.84 -2.39 0.20 | 4.81 0.64 -2.94 0.10 | 1.09 0.21 -1.72 0.07 | 0.09 0.00 0.97 0.02 | 0.00 0.00 3.92 0.03 |
        4.00 0.17 -2.79 0.04 | 4.27 0.05 -2.87 0.01 | 0.61 0.04 -0.92 0.06 | 0.72 0.25 -1.38 0.06""",
    "deep ensembles": """
        3.28 1.00 -2.41 0.25 | 6.03 0.58 -3.06 0.18 | 2.09 0.29 -1.38 0.22 | 0.09 0.00 1.20 0.02 | 0.00 0.00 5.63 0.05 |
        4.11 0.17 -2.79 0.04 | 4.71 0.06 -2.83 0.02 | 0.64 0.04 -0.94 0.12 | 1.58 0.48 -1.18 0.21""",
    "TAGI": """
        3.146 0.910 -2.578 0.327 | 5.865 0.518 -3.204 0.109 | 1.317 0.221 -1.808 0.284 | 0.095 0.004 0.893 0.060 |
        0.007 0.000 3.540 0.037 | 4.129 0.153 -2.879 0.054 | 4.615 0.024 -2.954 0.006 | 0.639 0.035 -0.975 0.066 |
        1.037 0.280 -1.597 0.115""",
    "TAGI-V": """
        3.120 0.881 -2.541 0.277 | 6.048 0.532 -3.208 0.126 | 1.882 0.296 -1.851 0.218 | 0.101 0.004 0.883 0.037 |
        0.006 0.000 3.748 0.075 | 4.148 0.147 -2.841 0.035 | 4.644 0.023 -2.924 0.010 | 0.639 0.036 -0.972 0.063 |
        1.797 0.626 -1.643 0.567""",
}
ERRORS_PRINTED = ("PBP",)  # standard errors; the others print standard deviations


def published(method: str, name: str, splits: int) -> tuple[float, float, float, float]:
    """(RMSE, its standard error, mean log-likelihood, its standard error) of a method on a set."""
    figures = [float(number) for number in PRINTED[method].split("|")[sorted(UCI_SETS).index(name)].split()]
    root = 1 if method in ERRORS_PRINTED else splits**0.5
    return figures[0], figures[1] / root, figures[2], figures[3] / root


def compared(ours: list[dict[str, Any]]) -> list[str]:
    """Tables of the runs of `TAGIRegressor` beside the published figures, and their sources; nothing of no runs."""
    names = [name for name in UCI_SETS if of(ours, set=name)]
    parts = []
    for k, (key, title) in enumerate({"rmse": "RMSE", "log_likelihood": "mean log-likelihood"}.items()):
        rows = []
        for name in names:
            figures = [published(method, name, UCI_SETS[name].splits)[2 * k : 2 * k + 2] for method in PRINTED]
            others = [f"{mean:.2f} ± {error:.2f}" for mean, error in figures]
            rows.append([name, with_error([one[key] for one in of(ours, set=name)]), *others])
        parts.append(f"{title}, compared with published results\n\n" + table(("set", "TAGIRegressor", *PRINTED), rows))
    return [*parts, "\n".join(f"* {method}: {source}" for method, source in SOURCES.items())] if names else []
