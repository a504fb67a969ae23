"""Estimators on tables, compared with trees: `python -m benchmarks.quality tables`.

Regression on the UCI sets with their standard splits: RMSE, mean log-likelihood, how many observations intervals of
50, 90 and 95 % hold, and seconds of a fit, also beside published figures; classes in five folds: log loss and error.
Further sets are drawn, in which few columns tell something. All models learn the same samples in one program. The
defaults of `TAGIRegressor`, the same for all sets, were chosen on splits 0 to 4; all are reported. Each fit that is
done is a line of JSON: a run that ends early continues where it was.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.quality.done import Runs, loaded, of, parser_of, with_error
from benchmarks.quality.published import compared
from benchmarks.report import table
from pytagi_ddp.data import load_uci
from pytagi_ddp.data.uci import UCI_SETS

OURS = "TAGI"
FOLDS = 5
CLASSES = ("iris", "wine", "breast_cancer", "digits")  # of scikit-learn
# UCI sets whose targets are cut into three classes of about one size.
CUT = ("yacht", "bostonHousing", "energy", "concrete", "wine-quality-red", "kin8nm")
# Sets that are drawn: samples to learn from, columns.
FEW_COLUMNS = {
    "regression": {"friedman-300": (300, 30), "friedman-1000": (1000, 30), "linear-250": (250, 200)},
    "classes": {"clusters-600": (600, 60), "clusters-1000": (1000, 20)},
}
TESTED = 2000  # samples of a drawn set to test on
REPEATED = ("wine-quality-red", "power-plant", "concrete", "protein-tertiary-structure")  # sets with duplicate samples
COVERAGES = {"coverage": 0.9, "coverage_50": 0.5, "coverage_95": 0.95}
# Our estimators with one part changed, or all. A variant is only for those that have its parameters.
VARIANTS: dict[str, dict[str, Any]] = {
    OURS: {},
    "TAGI, no bins": {"n_bins": 0},
    "TAGI, 24 bins": {"n_bins": 24},
    "TAGI, one hidden layer": {"hidden_layer_sizes": (50,)},
    "TAGI, nothing forgotten": {"forget": 1.0},
    "TAGI, same noise everywhere": {"heteroscedastic": False},
    "TAGI, Gaussian": {"student_t": False},
    "TAGI, noise from learnt samples": {"n_folds": 1, "n_seeds": 20},
    "TAGI, five networks": {"n_seeds": 1},
    "TAGI, one network": {"n_folds": 1, "n_seeds": 1},
    "TAGI, 25 minutes": {"max_time": 1500.0},
    "TAGI, sigma_v": {"sigma_v": 0.5},
}
Samples = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # to learn from, and to test on


def variants_of(estimator: type, **common: Any) -> dict[str, Callable[[], Any]]:
    """The variants that the estimator has parameters for."""
    known = estimator().get_params().keys()
    return {
        name: partial(estimator, **common, **options) for name, options in VARIANTS.items() if options.keys() <= known
    }


def regressors(k: int, jobs: int | None) -> dict[str, Callable[[], Any]]:
    from sklearn import ensemble

    from pytagi_ddp.estimators import TAGIRegressor  # here, as --help shall not wait for it

    ours = variants_of(TAGIRegressor, random_state=k, n_jobs=jobs)
    del ours["TAGI, sigma_v"]  # which is another method of a classifier
    others: dict[str, Callable[[], Any]] = {
        "HistGradientBoosting": lambda: ensemble.HistGradientBoostingRegressor(
            max_iter=500, learning_rate=0.05, random_state=k
        ),
        "RandomForest": lambda: ensemble.RandomForestRegressor(200, random_state=k, n_jobs=jobs),
        "ExtraTrees": lambda: ensemble.ExtraTreesRegressor(200, random_state=k, n_jobs=jobs),
    }
    if importlib.util.find_spec("ngboost"):
        from ngboost import NGBRegressor

        others["NGBoost"] = lambda: NGBRegressor(verbose=False, random_state=k)
    return ours | others


def classifiers(k: int, jobs: int | None) -> dict[str, Callable[[], Any]]:
    from sklearn import ensemble
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from pytagi_ddp.estimators import TAGIClassifier

    return variants_of(TAGIClassifier, random_state=k, n_jobs=jobs) | {
        "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "MLP": lambda: make_pipeline(StandardScaler(), MLPClassifier(max_iter=500, random_state=k)),
        "RandomForest": lambda: ensemble.RandomForestClassifier(200, random_state=k, n_jobs=jobs),
        "HistGradientBoosting": lambda: ensemble.HistGradientBoostingClassifier(random_state=k),
    }


def regression(model: Any, samples: Samples) -> dict[str, Any]:
    """Figures of a fitted regressor on samples to test on, and on those of them whose inputs are new."""
    x, _, x_test, y_test = samples
    new, errors = are_new(x, x_test), (model.predict(x_test) - y_test) ** 2
    found: dict[str, Any] = {"rmse": float(np.sqrt(errors.mean())), "rmse_new": float(np.sqrt(errors[new].mean()))}
    if hasattr(model, "log_likelihood"):
        intervals = {key: model.predict_interval(x_test, share) for key, share in COVERAGES.items()}
        logs = model.log_likelihood(x_test, y_test)
    elif hasattr(model, "pred_dist"):  # NGBoost
        distribution = model.pred_dist(x_test)
        intervals = {key: distribution.dist.interval(share) for key, share in COVERAGES.items()}
        logs = distribution.logpdf(y_test)
    else:
        return found
    inside = {key: (low <= y_test) & (y_test <= high) for key, (low, high) in intervals.items()}
    for key, values in {"log_likelihood": logs, **inside}.items():
        found |= {key: float(np.mean(values)), f"{key}_new": float(np.mean(values[new]))}
    return found


def are_new(x: np.ndarray, x_test: np.ndarray) -> np.ndarray:
    """Which rows of x_test are not among those of x."""
    seen = set(map(bytes, np.ascontiguousarray(x)))
    return np.array([bytes(row) not in seen for row in np.ascontiguousarray(x_test)])


def classes(model: Any, samples: Samples) -> dict[str, Any]:
    """Figures of a fitted classifier on samples to test on, and on those of them whose inputs are new."""
    x, _, x_test, y_test = samples
    p = model.predict_proba(x_test)
    losses = -np.log(np.maximum(p[np.arange(len(p)), np.searchsorted(model.classes_, y_test)], 1e-12))
    wrong = model.classes_[p.argmax(1)] != y_test
    new = float(losses[are_new(x, x_test)].mean())
    return {"log_loss": float(losses.mean()), "log_loss_new": new, "error": float(wrong.mean())}


def drawn(name: str, seed: int) -> Samples:
    """A set in which few columns have an effect.

    "friedman": five uniform columns, with noise of variance 1; Friedman (1991), "Multivariate adaptive regression
    splines". "linear": 3, 2 and -2 times three columns N(0, 1), with noise of variance 1. "clusters": those of Guyon
    (2003) for two classes in five columns; 1 % of the labels are random.
    """
    from sklearn import datasets

    n, columns = (FEW_COLUMNS["regression"] | FEW_COLUMNS["classes"])[name]
    rng = np.random.default_rng(seed)
    if name.startswith("friedman"):
        x, y = datasets.make_friedman1(n + TESTED, columns, noise=1.0, random_state=seed)
    elif name.startswith("linear"):
        x = rng.normal(size=(n + TESTED, columns))
        y = x[:, :3] @ [3, 2, -2] + rng.normal(size=n + TESTED)
    else:
        x, y = datasets.make_classification(n + TESTED, columns, n_informative=5, n_redundant=0, random_state=seed)
    return x[:n], y[:n], x[n:], y[n:]


def splits_of(task: str, name: str, folder: str | None) -> Iterator[Samples]:
    """The splits of a set, in their order."""
    if name in FEW_COLUMNS[task]:
        yield from (drawn(name, seed) for seed in range(FOLDS))
        return
    if task == "regression":
        data = loaded(load_uci, name, folder)
        yield from map(data.split, range(len(data.test)))
        return
    from sklearn import datasets
    from sklearn.model_selection import StratifiedKFold

    if name in CLASSES:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    else:
        data = loaded(load_uci, name, folder)
        x, y = data.x, np.searchsorted(np.quantile(data.y, [1 / 3, 2 / 3]), data.y)
    for a, b in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(x, y):
        yield x[a], y[a], x[b], y[b]


def measure(task: str, model: Any, samples: Samples) -> dict[str, Any]:
    start, used = time.perf_counter(), time.process_time()
    model.fit(*samples[:2])
    seconds = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - used}
    return seconds | (regression if task == "regression" else classes)(model, samples)


NEW = "without test samples whose inputs also occur in the training data"
COLUMNS = {
    "regression": {
        "rmse": "RMSE",
        "log_likelihood": "mean log-likelihood",
        "coverage": "share in 90 %",
        "coverage_50": "share in 50 %",
        "coverage_95": "share in 95 %",
        "rmse_new": f"RMSE {NEW}",
        "log_likelihood_new": f"mean log-likelihood {NEW}",
        "coverage_new": f"share in 90 % {NEW}",
    },
    "classes": {"log_loss": "log loss", "log_loss_new": f"log loss {NEW}", "error": "error"},
}


EFFECTS = {  # the figures that tables of our variants show
    "rmse": "RMSE",
    "log_likelihood": "mean log-likelihood",
    "log_loss": "log loss",
    "coverage": "share in 90 %",
    "cpu_seconds": "seconds",
}


def shown(key: str, name: str, values: list[float]) -> str:
    if not values:
        return "-"
    if key == "cpu_seconds":
        return f"{statistics.median(values):.1f}"
    return with_error(values, 4 if "naval" in name else 3)


def report(done: list[dict[str, Any]]) -> str:
    """Tables of what is done, on the splits that all models of a table have for a set; our variants have their own."""
    parts = []
    for task, columns in COLUMNS.items():
        ones = of(done, task=task)
        found = list(dict.fromkeys(one["model"] for one in ones))
        names = list(dict.fromkeys(one["set"] for one in ones))
        models = [model for model in found if model == OURS or model not in VARIANTS]
        for key, title in (columns | {"cpu_seconds": "seconds of processors, a fit (median)"}).items():
            having = [model for model in models if any(key in one for one in of(ones, model=model))]
            rows = []
            for name in [name for name in names if not key.endswith("_new") or name in REPEATED]:
                if splits := shared(ones, name, models):
                    cells = ([one[key] for one in runs_of(ones, name, model, splits) if key in one] for model in having)
                    rows.append([name, str(len(splits)), *(shown(key, name, values) for values in cells)])
            parts += [f"{task}: {title}\n\n" + table(("set", "splits", *having), rows)] if having and rows else []
        if len(variants := [model for model in found if model in VARIANTS]) > 1:
            keys = [key for key in EFFECTS if key in columns or key == "cpu_seconds"]
            varied = [name for name in names if sum(bool(of(ones, set=name, model=model)) for model in variants) > 1]
            rows = [effects(ones, name, variants, keys) for name in varied]
            header = f"{task}, one part changed: {' / '.join(EFFECTS[key] for key in keys)}"
            parts.append(f"{header}\n\n" + table(("set", "splits", *variants), rows))
    return "\n\n".join([*parts, *compared(of(done, task="regression", model=OURS))])


def shared(ones: list[dict[str, Any]], name: str, models: list[str]) -> list[int]:
    """The splits of a set that all models have which have any."""
    found = [{one["split"] for one in of(ones, model=model, set=name)} for model in models]
    return sorted(set.intersection(*filter(None, found))) if any(found) else []


def runs_of(ones: list[dict[str, Any]], name: str, model: str, splits: list[int]) -> list[dict[str, Any]]:
    return [one for one in of(ones, model=model, set=name) if one["split"] in splits]


def effects(ones: list[dict[str, Any]], name: str, variants: list[str], keys: list[str]) -> list[str]:
    """The row of a set, with the means of several figures in a cell."""
    splits = shared(ones, name, variants)
    row = [name, str(len(splits))]
    digits = {"coverage": 2, "cpu_seconds": 1}
    for runs in (runs_of(ones, name, variant, splits) for variant in variants):
        means = [statistics.fmean(one[key] for one in runs) for key in keys if runs]
        row.append(" / ".join(f"{mean:.{digits.get(key, 3)}f}" for key, mean in zip(keys, means, strict=False)) or "-")
    return row


def main(argv: list[str] | None = None) -> None:
    parser = parser_of("quality tables", __doc__)
    parser.add_argument("--data-dir", help="a folder to look for the UCI sets first, and to download into")
    parser.add_argument("--task", choices=list(COLUMNS), action="append", help="may be repeated; both, if left out")
    parser.add_argument("--set", action="append", help="may be repeated; all of the task, if left out")
    parser.add_argument("--splits", type=int, nargs="+", metavar="K", help="which ones, from 0 on; default: all")
    parser.add_argument("--model", action="append", help="may be repeated; all but our variants, if left out")
    parser.add_argument("--jobs", type=int, help="networks or trees trained at a time")
    args = parser.parse_args(argv)
    done = Runs(args.results)
    for task in [] if args.report else args.task or COLUMNS:
        make = regressors if task == "regression" else classifiers
        asked = args.model or [name for name in make(0, None) if name == OURS or name not in VARIANTS]
        known = [*(UCI_SETS if task == "regression" else (*CLASSES, *CUT)), *FEW_COLUMNS[task]]
        for name in [name for name in args.set or known if name in known]:
            for (k, samples), model in itertools.product(enumerate(splits_of(task, name, args.data_dir)), asked):
                one = {"task": task, "model": model, "set": name, "split": k}
                made = make(k, args.jobs).get(model)
                if made is None or (args.splits and k not in args.splits) or of(done, **one):
                    continue
                one |= measure(task, made(), samples)
                figures = [f"{key} {one[key]:.4f}" for key in COLUMNS[task] if key in one]
                done.add(one, f"{task} {name} {k} {model}: {', '.join(figures)}")
    print("\n" + report(done))
