"""Columns and tables of pandas, polars and PyArrow, of every kind, wherever arrays are taken."""

import datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from pytagi_ddp import metric, nn
from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.data import BatchLoader, ImageDataset
from pytagi_ddp.distributed import DistributedDataContainer, SerialCommunicator
from pytagi_ddp.tagi_utils import Normalizer, Utils

pd = pytest.importorskip("pandas", reason="pandas is not installed")
pl = pytest.importorskip("polars", reason="polars is not installed")
pa = pytest.importorskip("pyarrow", reason="PyArrow is not installed")

DAY = datetime.date(2020, 1, 1)


def series(values, dtype=None):
    """A column that is shuffled: its labels count backwards."""
    return pd.Series(values, index=range(len(values))[::-1], dtype=dtype, name="a")


# Columns that hold 1, 0, 1, 0.
WHOLE = {
    "pandas float32": lambda: series(np.float32([1, 0, 1, 0])),
    "pandas float64": lambda: series([1.0, 0, 1, 0]),
    "pandas int": lambda: series([1, 0, 1, 0]),
    "pandas bool": lambda: series([True, False, True, False]),
    "pandas nullable float": lambda: series([1.0, 0, 1, 0], "Float64"),
    "pandas nullable int": lambda: series([1, 0, 1, 0], "Int64"),
    "pandas nullable bool": lambda: series([True, False, True, False], "boolean"),
    "pandas array": lambda: pd.array([1, 0, 1, 0], dtype="Int64"),
    "pandas category of int": lambda: series([1, 0, 1, 0]).astype("category"),
    "pandas category of bool": lambda: series([True, False, True, False], "category"),
    "pandas categorical": lambda: pd.Categorical([1, 0, 1, 0]),
    "pandas Arrow double": lambda: series([1.0, 0, 1, 0], "double[pyarrow]"),
    "pandas Arrow int": lambda: series([1, 0, 1, 0], "int64[pyarrow]"),
    "pandas Arrow bool": lambda: series([True, False, True, False], "bool[pyarrow]"),
    "pandas Arrow decimal": lambda: series(list(map(Decimal, "1010")), pd.ArrowDtype(pa.decimal128(5, 2))),
    "pandas objects": lambda: series([1, 0.0, Decimal(1), np.bool_(False)], object),
    "pandas index": lambda: pd.Index([1, 0, 1, 0]),
    "pandas sparse": lambda: series([1.0, 0, 1, 0], "Sparse[float]"),
    "polars float": lambda: pl.Series("a", [1.0, 0, 1, 0]),
    "polars int": lambda: pl.Series("a", [1, 0, 1, 0], dtype=pl.Int16),
    "polars bool": lambda: pl.Series("a", [True, False, True, False]),
    "polars decimal": lambda: pl.Series("a", list(map(Decimal, "1010"))),
    "PyArrow": lambda: pa.chunked_array([[1, 0], [1, 0]]),
    "objects of NumPy": lambda: np.array([1, False, 1.0, 0], object),
}
# Columns that hold 1, a missing value, 1, 0.
MISSING = {
    "pandas nullable float": lambda: series([1.0, None, 1, 0], "Float64"),
    "pandas nullable int": lambda: series([1, None, 1, 0], "Int64"),
    "pandas nullable bool": lambda: series([True, None, True, False], "boolean"),
    "pandas array": lambda: pd.array([1.0, None, 1, 0], dtype="Float64"),
    "pandas category": lambda: series([1, None, 1, 0], "category"),
    "pandas category of a nullable type": lambda: series([1, None, 1, 0], "Int64").astype("category"),
    "pandas Arrow int": lambda: series([1, None, 1, 0], "int64[pyarrow]"),
    "pandas Arrow bool": lambda: series([True, None, True, False], "bool[pyarrow]"),
    "pandas objects": lambda: series([1, pd.NA, True, 0.0], object),
    "polars float": lambda: pl.Series("a", [1.0, None, 1, 0]),
    "polars int": lambda: pl.Series("a", [1, None, 1, 0]),
    "polars bool": lambda: pl.Series("a", [True, None, True, False]),
    "polars decimal": lambda: pl.Series("a", [Decimal(1), None, Decimal(1), Decimal(0)]),
    "PyArrow": lambda: pa.array([True, None, True, False]),
    "list": lambda: [1, None, 1, 0],
    "masked": lambda: np.ma.array([1, 0, 1, 0], mask=[0, 1, 0, 0]),
}
# Columns that are not numbers, and what the message calls them.
OTHERS = {
    "pandas str": (lambda: series(["1", "0", "1", "0"]), r"'a' \((str|object)\)"),
    "pandas category of str": (lambda: series(["1", "0", "1", "0"], "category"), r"'a' \(category of (str|object)\)"),
    "pandas objects": (lambda: series([1, "0", 1, 0], object), r"'a' \(object\)"),
    "pandas dates": (lambda: series(pd.date_range("2020", periods=4)), r"'a' \(datetime64"),
    "pandas zoned dates": (lambda: series(pd.date_range("2020", periods=4, tz="UTC")), r"'a' \(datetime64.*UTC"),
    "pandas category of dates": (
        lambda: series(pd.date_range("2020", periods=4)).astype("category"),
        r"'a' \(category of datetime64",
    ),
    "pandas times": (lambda: series(pd.to_timedelta([1, 2, 3, 4])), r"'a' \(timedelta64"),
    "pandas periods": (lambda: series(pd.period_range("2020", periods=4, freq="D")), r"'a' \(period"),
    "pandas complex": (lambda: series([1j] * 4), r"'a' \(complex128\)"),
    "pandas Arrow dates": (lambda: series([DAY, None] * 2, pd.ArrowDtype(pa.date32())), r"'a' \(date32"),
    "pandas Arrow text": (lambda: series(["1", None] * 2, pd.ArrowDtype(pa.string())), r"'a' \(string"),
    "pandas index of dates": (lambda: pd.date_range("2020", periods=4), "a column of datetime64"),
    "polars text": (lambda: pl.Series("a", ["1"] * 4), r"'a' \(String\)"),
    "polars dates": (lambda: pl.Series("a", [DAY] * 4), r"'a' \(Date\)"),
    "polars times": (lambda: pl.Series("a", [datetime.timedelta(1)] * 4), r"'a' \(Duration\)"),
    "polars categories": (lambda: pl.Series("a", ["1"] * 4, dtype=pl.Categorical), r"'a' \(Categorical\)"),
    "polars structs": (lambda: pl.Series("a", [{"x": 1, "y": 2}] * 4), r"'a' \(Struct\)"),
    "PyArrow dates": (lambda: pa.array([DAY] * 4), "a column of date32"),
    "PyArrow text": (lambda: pa.array(["1"] * 4), "a column of string"),
    "dates of NumPy": (lambda: np.array([DAY] * 4, "M8[D]"), "dtype datetime64"),
    "text of NumPy": (lambda: np.array(["1", "0", "1", "0"]), "dtype <U1"),
    "list of dates": (lambda: [DAY] * 4, r"dtype object \(date\)"),
}


def table_of(column):
    """The column beside another one, as a table of its library, where it has one."""
    if isinstance(column, pl.Series):
        return pl.DataFrame({"a": column, "b": [0.25] * 4})
    if isinstance(column, (pa.Array, pa.ChunkedArray)):
        return pa.table({"a": column, "b": pa.array([0.25] * 4)})
    if type(column).__module__.startswith("pandas"):
        labels = getattr(column, "index", [4, 3, 2, 1])
        return pd.DataFrame(
            {"a": np.array(column) if isinstance(column, pd.Index) else column, "b": 0.25}, index=labels
        )
    return None


def network(inputs=1):
    net = nn.Sequential(nn.Linear(inputs, 1))
    layer = net.layers[0]
    layer.mu_w, layer.var_w = np.full(inputs, 0.5), np.full(inputs, 0.25)
    layer.mu_b, layer.var_b = np.array([0.5]), np.array([0.25])
    return net


def input_(a):
    net = network()
    net.missing_inputs = "standard normal"
    return np.stack(net(a))


def prediction(a):
    net = network()
    net.missing_inputs = "standard normal"
    return np.stack(net.predict(a, 3))


def input_variance(a):
    return np.stack(network()(np.ones(4), a))


def observed(update):
    net = network()
    net(np.ones(4))
    update(nn.OutputUpdater("cpu"), net.output_z_buffer, net.input_delta_z_buffer)
    return np.stack(
        [np.array(part) for part in (net.input_delta_z_buffer.delta_mu, net.input_delta_z_buffer.delta_var)]
    )


def observation(a):
    return observed(lambda updater, states, deltas: updater.update(states, a, 0.1, deltas))


def observation_variance(a):
    return observed(lambda updater, states, deltas: updater.update(states, np.ones(4), a, deltas))


def observation_of_some(a):
    ones = [1, 1, 1, 1]
    return observed(lambda updater, states, deltas: updater.update_using_indices(states, a, 0.1, ones, deltas))


def deltas(a):
    net = network()
    net(np.ones(4))
    net.set_delta_z(a, a)
    return np.array(net.input_delta_z_buffer.delta_mu)


def means(a):
    layer = nn.Sequential(nn.Linear(4, 1)).layers[0]
    layer.mu_w = a
    return np.array(layer.mu_w)


def windows(a):
    return np.stack(Utils().create_rolling_window(a, [0], 1, 1, 1, 1))


def scaled(a):
    found = Normalizer.compute_mean_std(a)
    low_high = Normalizer.compute_max_min(a)
    there = Normalizer.standardize(a, *found), Normalizer().max_min_norm(a, *low_high)
    assert all(type(part) is np.ndarray for part in there)
    return np.concatenate(there)


def errors(a):
    return metric.mse(a, np.arange(4)), metric.rmse(np.arange(4), a), metric.log_likelihood(np.arange(4), a, 0.5)


def image_labels(a):
    data = ImageDataset(np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1), a, ("x", "y"), "data")
    return np.concatenate([labels for _, labels in BatchLoader(data, 2, seed=1)])


TAKE_MISSING = {f.__name__: f for f in (input_, prediction, observation, observation_of_some, windows, scaled, errors)}
NUMBERS = {
    **TAKE_MISSING,
    "input variance": input_variance,
    "deltas": deltas,
    "means of parameters": means,
    "auroc": lambda a: metric.auroc(a, [0.5, 2, 3]),
    "moments of classes": lambda a: metric.HRCSoftmaxMetric(2).get_predicted_labels(a, a),
    "class probabilities": lambda a: nn.hierarchical_softmax.class_probabilities(
        a, a, Utils().get_hierarchical_softmax(2)
    ),
    "labels": lambda a: Utils().label_to_obs(a, 2)[0],
    "one-hot labels": lambda a: Utils().label_to_one_hot(a, 2),
}
ALL = {
    **NUMBERS,
    "observation variance": lambda a: observation_variance(a),
    "classification error": lambda a: metric.classification_error(a, [1, 0, 0, 0]),
}


@pytest.mark.parametrize("entry", ALL)
def test_columns_of_every_kind(entry):
    expected = ALL[entry](np.array([1.0, 0, 1, 0]))
    for kind, column in WHOLE.items():
        np.testing.assert_allclose(ALL[entry](column()), expected, rtol=1e-9, err_msg=kind)  # of float32, too


@pytest.mark.parametrize("entry", TAKE_MISSING)
def test_what_is_missing_is_nan(entry):
    expected = TAKE_MISSING[entry](np.array([1, np.nan, 1, 0]))
    for kind, column in MISSING.items():
        if entry == "scaled" and kind in ("list", "masked"):
            continue  # arithmetic of their own
        np.testing.assert_array_equal(TAKE_MISSING[entry](column()), expected, err_msg=kind)


@pytest.mark.parametrize("entry", NUMBERS)
def test_what_is_no_number_is_refused(entry):
    for kind, (column, named) in OTHERS.items():
        if entry == "scaled" and not kind.startswith(("pandas", "polars", "PyArrow")):
            continue  # arithmetic of their own
        with pytest.raises(TypeError, match=f"must hold real numbers, .*{named}.*; encode"):
            pytest.fail(f"{kind}: {NUMBERS[entry](column())}")


def test_tables_of_every_kind():
    net = network(2)
    net.missing_inputs = "standard normal"
    for columns, a in (WHOLE, [1, 0, 1, 0]), (MISSING, [1, np.nan, 1, 0]):
        expected = np.column_stack([a, [0.25] * 4])
        for kind, column in columns.items():
            table = table_of(column())
            if table is not None:
                np.testing.assert_array_equal(to_numpy(table, "x"), expected, err_msg=kind)
                np.testing.assert_array_equal(net(table), net(expected), err_msg=kind)
    for kind, (column, _) in OTHERS.items():
        table = table_of(column())
        if table is not None:
            with pytest.raises(TypeError, match=r"'a'.*; encode"):
                pytest.fail(f"{kind}: {net(table)}")


def test_labels_of_images():
    expected = image_labels(np.array([1, 0, 1, 0]))
    whole = [kind for kind in WHOLE if not any(word in kind for word in ("float", "double", "dec", "obj", "sparse"))]
    assert len(whole) > 8
    for kind in whole:
        np.testing.assert_array_equal(image_labels(WHOLE[kind]()), expected, err_msg=kind)
    with pytest.raises(TypeError, match="labels must be integers, got float64"):
        image_labels(pd.array([1, None, 1, 0], dtype="Int64"))


def test_several_columns_and_names_that_repeat():
    columns = r"('a' \(str\), )?'c' \(datetime64"  # what is an object of pandas 2 comes last
    with pytest.raises(TypeError, match=rf"x must .*: {columns}.*encode them, or leave"):
        to_numpy(pd.DataFrame({"a": ["x"], "b": [1.0], "c": [pd.Timestamp("2020")]}), "x")
    with pytest.raises(TypeError, match=r"not: 'a' \((str|object)\);"):
        to_numpy(pd.DataFrame([[1, "x"]], columns=["a", "a"]), "x")
    with pytest.raises(TypeError, match=r"got Timestamp"):
        to_numpy(pd.Timestamp("2020"), "x")
    assert to_numpy(pd.DataFrame({"a": []}), "x").shape == (0, 1)
    assert to_numpy(pa.table({}), "x").shape == (0, 0)
    many = pd.DataFrame({"a": pd.array([None, None], dtype="boolean"), "b": pd.Categorical([2, 1])})
    np.testing.assert_array_equal(to_numpy(many, "x"), [[np.nan, 2], [np.nan, 1]])


def test_names_of_classes_may_be_text():
    truth, said = ["x", "y", "x", "y"], np.array(["x", "y", "y", "y"])
    columns = [series(truth), series(truth, "category"), pl.Series(truth), pl.Series(truth, dtype=pl.Categorical)]
    for column in [*columns, pa.array(truth), truth]:
        assert metric.classification_error(said, column) == 0.25
        with pytest.raises(TypeError, match="are never equal"):
            metric.classification_error([1, 2, 3, 4], column)
    with pytest.raises(TypeError, match="label must hold real numbers"):
        metric.classification_error(said, series(pd.date_range("2020", periods=4)))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shares_of_tables_count_by_position(ranks):
    table = pd.DataFrame({"a": [1.0, 2, 3, 4, 5], "b": [0.0] * 5}, index=[3, 0, 4, 1, 2])
    for data in table["a"], table, pl.Series([1.0, 2, 3, 4, 5]), pl.DataFrame(table):
        shares = []
        for rank in range(ranks):
            communicator = SerialCommunicator()
            communicator.rank, communicator.world_size = rank, ranks
            shares.append(DistributedDataContainer(communicator, data))
        items = [to_numpy(item, "item").flat[0] for one in shares for item in one]
        np.testing.assert_array_equal(items, [1, 2, 3, 4, 5])
        parts = np.concatenate([to_numpy(one[:], "part") for one in shares])
        np.testing.assert_array_equal(parts, to_numpy(data, "data"))
        assert to_numpy(shares[-1][-1], "item").flat[0] == 5
        with pytest.raises(IndexError):
            shares[0][5]


@pytest.mark.parametrize(
    "values",
    [[10**400], [1.5, 10**400], [Fraction(10**400)], [[True, -(10**400)]]],
    ids=["alone", "with floats", "fraction", "with bools"],
)
def test_a_number_beyond_float64_is_named(values):
    with pytest.raises(ValueError, match="x has a number that is too large"):
        to_numpy(values, "x")
