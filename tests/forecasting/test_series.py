"""Series and covariates from arrays, tables and mappings."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp.forecasting.series import read

pd = pytest.importorskip("pandas", reason="pandas is not installed")
INDEX = pd.date_range("2020-01-01", periods=6, freq="MS")


def test_columns_and_tables():
    flat = read(pd.Series(range(6), INDEX, name="a"), "y")
    assert flat.flat and flat.names == ["a"] and flat.values.shape == (6, 1) and flat.times.months == 1
    table = read(pd.DataFrame({"a": [1, None], "b": [3, 4]}), "y")
    assert not table.flat and table.names == ["a", "b"] and table.times.values.tolist() == [0, 1]
    np.testing.assert_array_equal(table.values, [[1, 3], [np.nan, 4]])
    assert read([[1], [2], [3]], "y").flat is False and read([1, 2, 3], "y").names == [0]
    polars = pytest.importorskip("polars", reason="polars is not installed")
    given = polars.DataFrame({"time": INDEX.values, "a": [1.0, None, 3, 4, 5, 6]})
    found = read(given["a"], "y", given["time"])
    assert found.names == ["a"] and np.isnan(found.values[1, 0]) and found.times.months == 1
    assert read(given[["a"]], "y").names == ["a"]


def test_series_of_a_mapping_end_together():
    found = read({"long": np.arange(4), "short": [7.0, 8]}, "y")
    np.testing.assert_array_equal(found.values, [[0, np.nan], [1, np.nan], [2, 7], [3, 8]])
    column = pd.Series(range(6), INDEX)
    found = read({"late": column[4:], "all": column}, "y")
    np.testing.assert_array_equal(found.values[:, 0], [np.nan] * 4 + [4, 5])
    assert found.times.months == 1 and found.names == ["late", "all"]
    for other in (column[:4], column[4:].to_numpy(), column[4:].reset_index(drop=True)):
        with pytest.raises(ValueError, match=r"y\['short'\] and y\['long'\] must end at the same time step.*to_numpy"):
            read({"short": other, "long": column}, "y")
    numbers = column.reset_index(drop=True)
    assert read({"late": numbers[4:], "all": numbers}, "y").times.values.tolist() == list(range(6))
    assert read({"array": [1, 2], "late": numbers[3:], "all": numbers}, "y").times.values.tolist() == list(range(6))
    assert read({"late": numbers[4:], "array": np.arange(3)}, "y").times is None
    with pytest.raises(ValueError, match=r"y\['short'\] and y\['long'\] must end at the same time step"):
        read({"short": numbers[:4], "long": numbers, "array": np.arange(9)}, "y")


def test_an_index_of_dates_or_text_brings_times():
    for index in (INDEX.astype(str), pd.Index(INDEX.date), pd.Index(list(INDEX), dtype=object)):
        assert index.dtype.kind == "O"
        for data in (pd.Series(range(6), index), pd.DataFrame({"a": range(6)}, index), {"a": pd.Series(1, index)}):
            np.testing.assert_array_equal(read(data, "y").times.values, INDEX.values.astype("M8[us]"))
        with pytest.raises(ValueError, match=r"the index of y must increase, but 2020-06-01T.* sort them first"):
            read(pd.Series(range(6), index[::-1]), "y")
    for index in (INDEX.month, pd.Index([5, 7], dtype="Int64")):
        assert read(pd.Series(1.0, index), "y").times.values.tolist() == list(index)
    assert read(pd.Series(range(6), list("abcdef")), "y", INDEX).times.months == 1
    both = pd.MultiIndex.from_product([["north", "south"], INDEX[:3]], names=["store", "month"])
    assert read(pd.Series(range(6), both).unstack("store"), "y").names == ["north", "south"]


def test_arrays_of_xarray_bring_their_times():
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    for data in (
        xarray.DataArray(np.zeros(6), {"time": INDEX}, "time", "a"),
        xarray.DataArray(np.zeros((6, 2)), {"index": INDEX, "place": ["b", "c"]}, ("index", "place")),
        xarray.Dataset({"a": ("time", np.zeros(6))}, {"time": INDEX}),
    ):
        assert read(data, "y").times.months == 1
    assert read(xarray.DataArray(np.zeros(6)), "y").times is None


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], ValueError, "y holds no value"),
        (np.zeros((3, 0)), ValueError, "y holds no value"),
        ({}, ValueError, "y has no series"),
        ({"a": 1.0}, ValueError, r"y\['a'\] must have one dimension, got the shape \(\)"),
        (np.zeros((2, 2, 2)), ValueError, r"y must have the shape .* got \(2, 2, 2\)"),
        ([1, np.inf], ValueError, "y is infinite at step 1 of 0: mark what is missing by NaN"),
        (
            pd.DataFrame({"day": INDEX, "a": 1.0}),
            TypeError,
            r"'day' .*leave them out.* y.set_index\('ds'\)\['y'\], .* times=",
        ),
        (
            pd.DataFrame({"unique_id": "a", "ds": INDEX, "y": 1}),
            TypeError,
            r"y.pivot\(index='ds', columns='unique_id', ",
        ),
        (["a"], TypeError, "y must hold real numbers"),
        (
            pd.Series(1, INDEX.strftime("%d/%m/%Y")),
            ValueError,
            "index of y, Index from .* pd.to_datetime",
        ),
        (pd.Series(1, INDEX.strftime("%Y%m%d")), ValueError, "holds no dates .*years 1000 to 9999.* pd.to_datetime"),
        (pd.Series(1, list("ab")), ValueError, r"index of y, .* from 'a', .* y.reset_index\(drop=True\)"),
        (pd.Series(1, [1959.0, 1960.0]), ValueError, r"from 1959.0, holds no .*float64; .*astype\(int\), .*unit='s'"),
        (pd.Series(1, INDEX - INDEX[0]), ValueError, "TimedeltaIndex .* holds no dates"),
        (
            pd.Series(1, pd.MultiIndex.from_product([["a"], INDEX], names=["store", "month"])),
            ValueError,
            r"levels \['store', 'month'\], .* \(y.unstack\(level\)\), or pass times=",
        ),
        ([pd.Series([1, 2]), pd.Series([3, 4])], TypeError, "y is a list of columns: give a mapping from their names"),
    ],
)
def test_others_are_refused(data, error, message):
    with pytest.raises(error, match=message):
        read(data, "y")


@pytest.mark.parametrize(
    ("index", "place"),
    [
        ([3, 2, 1], "3 before 2"),
        ([1, 2, 4, 5], "2 before 4"),
        ([1, 1, 2], "1 twice"),
        ([10, 20, 25], "20 before 25"),
    ],
)
def test_numbers_of_steps_with_gaps_are_refused(index, place):
    with pytest.raises(ValueError, match=rf"the index of y holds {place}, .* y\.reset_index\(drop=True\)"):
        read(pd.Series(np.zeros(len(index)), index), "y")
    with pytest.raises(ValueError, match=rf"the index of y holds {place}"):
        read({"a": pd.Series(np.zeros(len(index)), index)}, "y")
    for regular in ([1925, 1926, 1927], [0, 5, 10]):
        assert read(pd.Series(np.zeros(3), regular), "y").times.values.tolist() == regular
