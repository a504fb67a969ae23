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
    assert not table.flat and table.names == ["a", "b"] and table.times is None
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
    for other in (column[:4], column[4:].to_numpy()):
        with pytest.raises(ValueError, match=r"y\['short'\] and y\['long'\] must end at the same time step"):
            read({"short": other, "long": column}, "y")


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], ValueError, "y holds no value"),
        (np.zeros((3, 0)), ValueError, "y holds no value"),
        ({}, ValueError, "y has no series"),
        ({"a": 1.0}, ValueError, r"y\['a'\] must have one dimension, got the shape \(\)"),
        (np.zeros((2, 2, 2)), ValueError, r"y must have the shape .* got \(2, 2, 2\)"),
        ([1, np.inf], ValueError, "y is infinite at step 1 of 0: mark what is missing by NaN"),
        (pd.DataFrame({"day": INDEX, "a": 1.0}), TypeError, "'day' .*leave them out"),
        (["a"], TypeError, "y must hold real numbers"),
    ],
)
def test_others_are_refused(data, error, message):
    with pytest.raises(error, match=message):
        read(data, "y")
