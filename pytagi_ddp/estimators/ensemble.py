"""The base of regressor and classifier: parameters, standardised inputs, folds, seeds, and parallel training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from pytagi_ddp.arrays import is_table, to_numpy
from pytagi_ddp.bars import Bar
from pytagi_ddp.estimators.choice import MORE_SEEDS, SEEDS, Choice, Chosen, Loss
from pytagi_ddp.estimators.encoding import OFTEN, Categories, CategoryInputs, encoding_of, indexable
from pytagi_ddp.estimators.folds import alike, assign_folds, joined, learnt_by
from pytagi_ddp.estimators.inputs import checked_groups, codes, dense, explained, header_of, sample_weights
from pytagi_ddp.estimators.members import Training, default_epochs
from pytagi_ddp.estimators.repeated import groups_of
from pytagi_ddp.nn import Sequential
from pytagi_ddp.tagi_utils import Normalizer
from pytagi_ddp.validate import as_integers, as_numbers
from pytagi_ddp.warn import warn

LARGEST_SEED = 2**31 - 1
FARTHEST = 1e15  # largest distance from the mean, in standard deviations: sums of squares fit float32
TINY = 1e-150  # columns of smaller numbers are scaled up before squaring, because their squares would be 0
CHECKED = 10_000  # rows in which values are looked for that are equal in float32
FAR = 20  # as for y, but of columns: networks with bins are hardly affected by numbers that are less far
EQUAL, NEARLY_ALL = 0.01, 0.9  # parts of the different values of a column that are suspicious if they are lost so
MOST_EPOCHS = 100
# Hidden layers to choose from if none are given, with their largest number of epochs. In many epochs, networks learn
# the noise of small tables, and few of them (FEW) are better.
CANDIDATES = [((50,), MOST_EPOCHS), ((50, 50), MOST_EPOCHS)]
FEW = (50, 50), 5


class EnsembleEstimator(BaseEstimator):
    """An ensemble of `n_folds` x `n_seeds` networks; those of a fold have not seen its samples."""

    # Defaults for estimators that earlier versions pickled: ignored columns, categories, and parameters.
    _empty: Any = slice(0)
    _categories = Categories()
    _learnt: Sequence[Sequence[CategoryInputs]] = ((),)  # categories that networks have learnt: of all, or of each fold
    categorical_features: Any = None
    n_bins: int | None = 0
    max_time: float | None = None
    known_rows: bool = True

    def _trainings(self, samples: int, outputs: int) -> list[Training]:
        """The trainings to choose from; raises TypeError or ValueError if a parameter is invalid."""
        given = self.hidden_layer_sizes
        candidates = CANDIDATES if self.epochs else [*CANDIDATES, FEW]
        if given is not None:
            candidates = [(tuple(given) if isinstance(given, Iterable) else (given,), MOST_EPOCHS)]
        owner, hidden = type(self).__name__, candidates[0][0]
        as_integers(owner, 1, **{f"hidden_layer_sizes[{k}]": units for k, units in enumerate(hidden)})
        batch_size, _ = as_integers(owner, 1, batch_size=self.batch_size, n_folds=self.n_folds)
        if self.n_seeds is not None:
            as_integers(owner, 1, n_seeds=self.n_seeds)
        epochs = None if self.epochs is None else as_integers(owner, 1, epochs=self.epochs)[0]
        if not hidden and not isinstance(given, tuple | list):
            raise ValueError(f"{owner}: hidden_layer_sizes must be numbers of units, got {given!r}")
        if self.n_bins is not None:
            as_integers(owner, 0, n_bins=self.n_bins)
        if self.max_time is not None:
            as_numbers(owner, "(0, inf)", max_time=self.max_time)
        (forget,) = as_numbers(owner, "[1, inf)", forget=self.forget)
        (until,) = as_numbers(owner, "[0, 1]", forget_until=self.forget_until)
        options = batch_size, outputs, forget, until
        return [Training(hidden, epochs or default_epochs(samples, most), *options) for hidden, most in candidates]

    def _train(
        self,
        learn: Callable[..., Sequential],
        trainings: list[Training],
        samples: tuple,
        fold: np.ndarray,
        loss: Loss,
        seeds: Callable[[int], list[int]],
        count: int | None,
    ) -> Chosen:
        """The networks of each fold, trained on the samples of all others.

        Args:
            learn: called with a training, samples and a seed.
            trainings: one, or those to choose from: [*CANDIDATES], or [*CANDIDATES, FEW].
            samples: arrays with one row per sample, inputs first. fold: number of each sample's fold.
            seeds: returns the given number of seeds.
            loss: returns the loss of each sample of the first folds, by the networks of each that have not seen it.
            count: networks for each fold, or None, see `Choice`.

        One network for each fold (of large tables, for some folds) decides which training is the best: first the layers
        are chosen, then the bins and the scales of the inputs, then the width and the epochs, and then whether linear
        functions, or sums of functions of single columns, are better. Networks of a fold are replaced by those of other
        trainings while their mean gets better.
        """
        rows = [learnt_by(fold, k) for k in range(int(fold.max()) + 1)]
        trainings = self._encoded(trainings, samples[0])

        def train(places: list[tuple[Training, int]]) -> list[Sequential]:
            tasks = (  # made one at a time, because each has a copy of its samples
                (training, *(array[rows[k]] for array in samples), seed)
                for (training, k), seed in zip(places, seeds(len(places)), strict=True)
            )
            return self._run(learn, tasks)

        choice = Choice(train, samples[0], fold, loss, count, self.max_time)
        if len(rows) == 1:
            return choice.chosen(trainings[0])
        for training in trainings:
            choice.consider(training)
        if self.n_bins is None:
            best = choice.best()
            choice.encode(best if best == trainings[-1] else trainings[: len(CANDIDATES)][-1])
            choice.scale()
        choice.grow(units=self.hidden_layer_sizes is None, epochs=self.epochs is None)
        best = choice.best()
        if self.hidden_layer_sizes is None:
            kinds, epochs = (trainings[0], choice.best_encoded()), trainings[0].epochs
            linear = [replace(kind, hidden=(), epochs=epochs, scaled_by=best.scaled_by) for kind in kinds if kind]
            best = choice.simplest(linear)
        return choice.mixed(best)

    def _encoded(self, trainings: list[Training], x: np.ndarray) -> list[Training]:
        """The trainings with bins of the columns of x, if their number is given."""
        encoding = encoding_of(x, self.n_bins, scaled=True) if self.n_bins else None
        return [replace(training, encoding=encoding) for training in trainings]

    def _untrained(self, training: Training, x: np.ndarray) -> list[Sequential]:
        """Networks for `partial_fit`; x: the samples of the first call."""
        if len(x) < 2:
            raise ValueError(
                f"the first partial_fit determines the scales of inputs and targets for good, and has {len(x)} sample: "
                "give it at least 2, better a hundred"
            )
        if len(constant := np.flatnonzero((x == x[:1]).all(0) & ~self._empty)):
            warn(
                f"columns {self._sources(constant)} of X are constant among the samples of the first partial_fit, by "
                "which they are scaled: later values keep their unit, which has to be about 1",
            )
        (training,), inputs = self._encoded([training], x), x.shape[1]
        return [training.network(inputs, seed) for seed in self._seeds()(self.n_folds * (self.n_seeds or SEEDS))]

    def _standardise_by(self, X: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Computes means and standard deviations of the columns; networks of an earlier scaling are dropped."""
        self.__dict__.pop("networks_", None)
        self._empty = ~np.isfinite(X).any(0)
        if self._empty.any():
            columns = self._sources(np.flatnonzero(self._empty))
            warn(
                f"columns {columns} of X hold no number: they are left out, and their "
                "values in predictions and in partial_fit too, as nothing is known of them",
            )
        some = np.where(self._empty, 0.0, X) if self._empty.any() else X
        self._x_mean, self._x_std = moments_of("X", some, weights)
        checked = np.sort(X[:: len(X) // CHECKED + 1], 0)
        checked[:, self._warn_of_equal(checked)] = np.nan
        for k, value, _ in codes(checked, FAR):
            warn(
                f"column {self._sources(np.array([k]))[0]!r} of X has {value:.6g} more than once, and all other "
                "numbers are far from it: write NaN if it is a code for missing values"
            )

    def _warn_of_equal(self, X: np.ndarray) -> np.ndarray:
        """Warns of columns with values that are equal after standardisation in float32, and returns them; X has sorted
        columns.

        Only of columns in which a value occurs `OFTEN` times on average, or nearly all values are equal: a measurement
        may be rounded.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            differ = np.diff(X, axis=0) > 0
            equal = differ & (np.diff(((X - self._x_mean) / self._x_std).astype(np.float32), axis=0) == 0)
        different = differ.sum(0) + 1
        least = np.where(OFTEN * different <= len(X), EQUAL, NEARLY_ALL)
        if len(columns := np.flatnonzero(equal.sum(0) > least * different)):
            k = columns[0]
            row = np.flatnonzero(equal[:, k])[0]
            warn(
                f"columns {self._sources(columns)} of X have different values that networks cannot tell apart, because "
                f"they are equal in float32 after standardisation, such as {X[row, k]} and {X[row + 1, k]}: name "
                "columns of identifiers in categorical_features, write NaN for a code such as 999999999 that means "
                "missing, or split a number that has several parts"
            )
        return columns

    def _leave_out_constant(self, x: np.ndarray) -> None:
        """Ignores columns that are constant in these samples: the effect of other values is unknown.

        They become 0 in x, as in predictions.

        Warns:
            UserWarning: some of them have gaps, which may tell something.
        """
        constant = (np.nanmax(x, 0) == np.nanmin(x, 0)) & ~self._empty
        if len(gaps := np.flatnonzero(constant & np.isnan(x).any(0))):
            warn(
                f"columns {self._sources(gaps)} of X hold one number and NaN, and are left out: networks cannot learn "
                "from the fact that a value is missing. If it tells something, write another number instead of NaN"
            )
        self._empty = self._empty | constant
        x[:, self._empty] = 0

    def _categories_of(self, x: np.ndarray) -> list[CategoryInputs]:
        """The categories of these samples, for each column that tells some apart."""
        found = []
        for inputs in self._categories.inputs():
            ones = np.eye(inputs.stop - inputs.start)
            values = ((ones - self._x_mean[inputs]) / self._x_std[inputs]).astype(np.float32)
            values[:, self._empty[inputs]] = 0
            if len(counts := np.count_nonzero(x[:, inputs] > 0, 0)) and counts.any():
                found.append(CategoryInputs(inputs, values, counts))
        return found

    def _learn_categories(self, x: np.ndarray) -> None:
        """Adds the categories of further samples to those that networks have learnt."""
        self._learnt = [[replace(some, counts=some.counts + some.count(x)) for some in each] for each in self._learnt]

    def _folds(self, x: np.ndarray, groups: Any, weights: Any, seed: int) -> np.ndarray:
        """The fold of each sample x; groups: as in `fit`, with the weights of all samples, of which some may be 0.

        Raises:
            ValueError: groups that are not one label for each sample, or the same for all.
        """
        together, n_folds = groups_of(x), int(self.n_folds)
        if groups is not None:
            numbers = checked_groups(groups)
            kept = sample_weights(weights, len(numbers), learnt=False) > 0
            if np.count_nonzero(kept) != len(x):
                raise ValueError(f"groups must hold one label for each sample of X, got {len(numbers)} labels")
            together = joined(together, numbers[kept])
            n_folds = min(n_folds, len(np.unique(together)))
            if n_folds < min(self.n_folds, 2):
                raise ValueError("groups: all samples are of one group, and none is left for predictions: give others")
        elif n_folds > 1 and (found := alike(x)):
            warn(
                f"columns {self._sources(np.array(found))} of X have values that repeat together, as those of a person "
                "or place do: for predictions of others, give fit(..., groups=...), without which they may be far off"
            )
        return assign_folds(together, n_folds, seed)

    def _standardised(self, X: Any) -> np.ndarray:
        """Standardised float32 inputs for the networks, from anything that scikit-learn accepts as samples."""
        check_is_fitted(self, "networks_")
        return self._scaled(self._numbers(X, reset=False))

    def _numbers(self, X: Any, reset: bool, weights: Any = None) -> np.ndarray:
        """float64 samples; with `reset`, they determine number and names of the features, and the known categories.

        Categories of samples with the weight 0 are not known.

        Raises:
            TypeError: columns that do not hold numbers. ValueError: as `check_array`.
        """
        X = dense(X)
        if reset:
            self._categories = Categories.of(X, self.categorical_features, weights)
        check_header = partial(validate_data, self, header_of(X), "no_validation", reset=reset, skip_check_array=True)
        if self._categories.known:
            X = indexable(X)
            check_header()
            numbers, categories = self._categories.split(X, weights)
            parts = [categories] if numbers is None else [self._checked(numbers), categories]
            return np.concatenate(parts, 1, dtype=np.float64)
        checked = self._checked(X)
        check_header()
        return checked

    def _checked(self, X: Any) -> np.ndarray:
        with explained(X, "X", self._categories.numbers or None):
            checked: np.ndarray = check_array(
                unwrapped(X, "X"), input_name="X", dtype=np.float64, ensure_all_finite="allow-nan", estimator=self
            )
        return checked

    def _sources(self, inputs: np.ndarray) -> list[Any]:
        """The names, or else the numbers, of the columns that these inputs come from."""
        names = list(getattr(self, "feature_names_in_", range(self.n_features_in_)))
        return [names[k] for k in np.unique(self._categories.sources(len(self._empty))[inputs])]

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            x = X - self._x_mean
            x /= self._x_std
            x = x.astype(np.float32)
        x[:, self._empty] = 0  # the weights of these columns still have their prior
        if (far := np.abs(x) > FARTHEST).any():
            row, k = np.argwhere(far)[0]
            (name,) = self._sources(np.array([k]))
            raise ValueError(
                f"X has {X[row, k]} in row {row}, column {name!r}, which is more than "
                f"{FARTHEST:.0e} standard deviations away from the samples that were learnt: correct it, leave out its "
                "row, or write NaN, which is a missing value"
            )
        return x

    def _seeds(self) -> Callable[[int], list[int]]:
        """A function that draws the given number of seeds from `random_state`."""
        random = check_random_state(self.random_state)
        return lambda count: random.randint(LARGEST_SEED, size=count).tolist()

    def _run(self, function: Callable[..., Any], tasks: Iterable[tuple]) -> list:
        """Calls `function` with each tuple of arguments, `n_jobs` at a time, with a progress bar."""
        from pytagi_ddp.kernels.cpu.runtime.threads import on_one_thread  # here, so that imports load no kernels

        networks = self.n_folds * (self.n_seeds or MORE_SEEDS)
        jobs = min(effective_n_jobs(self.n_jobs), networks)  # joblib starts all, also for fewer tasks
        parallel = Parallel(n_jobs=jobs, verbose=max(self.verbose - 1, 0), return_as="generator")
        done = parallel(delayed(on_one_thread)(function, *task) for task in tasks)
        return on_one_thread(list, Bar(done, unit=" networks", disable=not self.verbose))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


@contextmanager
def unchanged_unless_done(estimator: BaseEstimator) -> Iterator[None]:
    """Restores the attributes of the estimator if the block raises an error."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).update(before)  # first, as other threads may be predicting
        for name in vars(estimator).keys() - before.keys():
            delattr(estimator, name)
        raise


def moments_of(name: str, values: np.ndarray, weights: np.ndarray | None = None) -> tuple[Any, Any]:
    """Means and standard deviations of the columns, or of a flat array; the deviation of a constant column is 1.

    Args:
        weights: how often each row counts; None: once.

    Raises:
        ValueError: numbers so large that their squares overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        factor = np.where(np.nanmax(np.abs(values), 0) < TINY, 2.0**900, 1.0)
        if weights is None or np.ptp(weights) == 0:
            mean, std = Normalizer.compute_mean_std(values * factor if np.any(factor != 1) else values)
        else:
            shares = np.where(np.isnan(values), 0.0, weights.reshape(-1, *[1] * (values.ndim - 1)))
            shares /= shares.sum(0)
            mean = np.nansum(shares * values * factor, 0)
            std = np.sqrt(np.nansum(shares * (values * factor - mean) ** 2, 0))
        mean, std = mean / factor, std / factor
    if not np.isfinite(std).all():
        raise ValueError(f"{name} has numbers of a size of {np.nanmax(np.abs(values)):.0e}, whose squares overflow")
    least, most = np.nanmin(values, 0), np.nanmax(values, 0)
    constant = least == most  # their computed mean and deviation have rounding errors
    return np.where(constant, least, mean)[()], np.where(constant | (std <= 1e-14 * np.abs(mean)), 1.0, std)[()]


def scales_of(y: np.ndarray, weights: np.ndarray | None = None) -> tuple[Any, Any]:
    """As `moments_of`, but the deviation of a constant target is at most its size.

    Networks predict a constant target to about 1 % of this deviation.
    """
    mean, std = moments_of("y", y, weights)
    constant = (np.ptp(y, 0) == 0) & (mean != 0)
    return mean, np.where(constant, np.clip(np.abs(mean), TINY, 1.0), std)[()]


def unwrapped(values: Any, name: str, text: bool = False) -> Any:
    """Converts columns, tables, masked arrays, dates and (unless `text` is allowed) text by `to_numpy`.

    scikit-learn would use masked values, and would treat dates and digits as numbers. All else is returned unchanged.
    """
    kind = getattr(getattr(values, "dtype", None), "kind", None) or "O"
    foreign = is_table(values) or np.ma.isMaskedArray(values) or kind in ("mM" if text else "mMUST")
    return to_numpy(values, name, text) if foreign else values
