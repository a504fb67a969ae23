"""Regression on nine UCI sets with their standard splits: `python -m benchmarks.quality uci`.

RMSE, mean log-likelihood, and how many observations intervals of 50, 90 and 95 % hold, beside published figures. The
recipe (`TAGIRegressor`, the same for all sets) was chosen on splits 0 to 4; all are reported. Each split that is done
is a line of JSON: a run that ends early continues where it was.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import numpy as np

from benchmarks.quality.done import Runs, loaded, of, parser_of, with_error
from benchmarks.quality.published import PRINTED, SOURCES, published
from benchmarks.report import table
from pytagi_ddp.data import RegressionSplits, load_uci
from pytagi_ddp.data.uci import UCI_SETS

COVERAGES = (0.5, 0.9, 0.95)
WIDER = {"protein-tertiary-structure": (100,)}  # the hidden layer of what was published; else it has 50 units
VARIANTS: dict[str, dict[str, Any]] = {
    "recipe": {},
    "one hidden layer": {"hidden_layer_sizes": "published"},
    "nothing forgotten": {"forget": 1.0},
    "noise from learnt samples": {"n_folds": 1, "n_seeds": 20},
    "same noise everywhere": {"heteroscedastic": False},
    "Gaussian": {"student_t": False},
    "five networks": {"n_seeds": 1},
    "one network": {"n_folds": 1, "n_seeds": 1},
    "plain": {"n_folds": 1, "n_seeds": 1, "forget": 1.0, "heteroscedastic": False, "student_t": False},
}


def measure(data: RegressionSplits, split: int, variant: str, jobs: int | None, **settings: Any) -> dict[str, Any]:
    """Fits one split; `settings` go before those of the variant."""
    from pytagi_ddp.estimators import TAGIRegressor  # here, as --help shall not wait for it

    x, y, x_test, y_test = data.split(split)
    start, used = time.perf_counter(), time.process_time()
    options = VARIANTS[variant] | settings
    if options.get("hidden_layer_sizes") == "published":
        options["hidden_layer_sizes"] = WIDER.get(data.name, (50,))
    regressor = TAGIRegressor(n_jobs=jobs, random_state=split, **options).fit(x, y)
    done = {"variant": variant, "set": data.name, "split": split}
    done |= {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - used}
    mean = regressor.predict(x_test)
    intervals = [regressor.predict_interval(x_test, coverage) for coverage in COVERAGES]
    return done | {
        "rmse": float(np.sqrt(np.mean((mean - y_test) ** 2))),
        "log_likelihood": float(np.mean(regressor.log_likelihood(x_test, y_test))),
        "coverage": [float(np.mean((low <= y_test) & (y_test <= high))) for low, high in intervals],
        "degrees_of_freedom": regressor.degrees_of_freedom_,
    }


def report(done: list[dict[str, Any]]) -> str:
    """Tables of what is done."""
    parts = []
    sets = [name for name in UCI_SETS if of(done, variant="recipe", set=name)]
    header = ("set", "splits", "RMSE", "log-likelihood", "in 50 %", "in 90 %", "in 95 %", "s a fit")
    rows = []
    for name in sets:
        ones = of(done, variant="recipe", set=name)
        inside = [with_error([one["coverage"][k] for one in ones]) for k in range(len(COVERAGES))]
        moments = [with_error([one[key] for one in ones], 4 if "naval" in name else 3) for key in KEYS]
        seconds = statistics.median(one["cpu_seconds"] for one in ones)
        rows.append([name, str(len(ones)), *moments, *inside, f"{seconds:.1f}"])
    parts.append("TAGIRegressor; seconds of one core\n\n" + table(header, rows))
    for k, (key, title) in enumerate(zip(KEYS, ("RMSE", "Mean log-likelihood"), strict=True)):
        rows = []
        for name in sets:
            figures = [published(method, name, UCI_SETS[name].splits)[2 * k : 2 * k + 2] for method in PRINTED]
            others = [f"{mean:.{2}f} ± {error:.2f}" for mean, error in figures]
            rows.append([name, with_error([one[key] for one in of(done, variant="recipe", set=name)]), *others])
        parts.append(f"{title}, compared with published results\n\n" + table(("set", "TAGIRegressor", *PRINTED), rows))
    parts.append("\n".join(f"* {method}: {source}" for method, source in SOURCES.items()))
    variants = [name for name in VARIANTS if any(one["variant"] == name for one in done)]
    if len(variants) > 1:
        parts.append(
            "RMSE / mean log-likelihood / share in 90 %, on the splits that every variant has\n\n"
            + ablation(done, variants, sets)
        )
    return "\n\n".join(parts)


KEYS = ("rmse", "log_likelihood")


def ablation(done: list[dict[str, Any]], variants: list[str], sets: list[str]) -> str:
    rows = []
    for name in sets:
        found = {variant: {one["split"]: one for one in of(done, variant=variant, set=name)} for variant in variants}
        if shared := sorted(set.intersection(*(set(splits) for splits in found.values()))):
            rows.append([name, str(len(shared))])
            for splits in found.values():
                rmse, density = (statistics.fmean(splits[k][key] for k in shared) for key in KEYS)
                inside = statistics.fmean(splits[k]["coverage"][1] for k in shared)
                rows[-1].append(f"{rmse:.3f} / {density:.3f} / {inside:.2f}")
    return table(("set", "splits", *variants), rows)


def main(argv: list[str] | None = None) -> None:
    parser = parser_of("quality uci", __doc__)
    parser.add_argument("--data-dir", help="a folder to look for the sets first, and to download into")
    parser.add_argument("--set", action="append", choices=list(UCI_SETS), help="may be repeated; all, if left out")
    parser.add_argument("--splits", type=int, nargs="+", metavar="K", help="which ones, from 0 on; default: all")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="may be repeated; the recipe")
    parser.add_argument("--jobs", type=int, help="networks trained at a time")
    parser.add_argument("--quick", action="store_true", help="two epochs of two networks, to see that it runs")
    args = parser.parse_args(argv)
    quick = {"epochs": 2, "n_folds": 2, "n_seeds": 1} if args.quick else {}
    done = Runs(args.results, args.quick)
    for name in [] if args.report else args.set or UCI_SETS:
        data = loaded(load_uci, name, args.data_dir)
        for variant, split in itertools.product(args.variant or ["recipe"], args.splits or range(len(data.test))):
            if split < len(data.test) and not of(done, variant=variant, set=name, split=split):
                one = measure(data, split, variant, args.jobs, **quick) | {"quick": args.quick}
                rmse, density = (one[key] for key in KEYS)
                done.add(one, f"{variant} {name} {split}: RMSE {rmse:.4f}, log-likelihood {density:.3f}")
    print("\n" + report(done))
