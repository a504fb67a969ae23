"""Tables of pandas, polars and PyArrow as samples, and columns of categories."""

import pickle
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp.estimators import TAGIClassifier, TAGIRegressor
from pytagi_ddp.estimators.encoding import Categories

both = pytest.mark.parametrize("kind", [TAGIRegressor, TAGIClassifier])
QUICK = {"n_folds": 1, "n_seeds": 1, "epochs": 2, "random_state": 0, "hidden_layer_sizes": 4}


def tables(x):
    """The same samples, of which some are missing, as other libraries have them."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = pandas.DataFrame(x, columns=["a", "b"], index=np.arange(len(x))[::-1])
    yield table
    yield table.convert_dtypes()
    yield table.convert_dtypes(dtype_backend="pyarrow")
    yield table.assign(b=table["b"].astype(object).where(table["b"].notna(), None))
    yield table.assign(b=table["b"].astype("Float64").astype(object))
    yield polars.DataFrame({name: polars.Series(x[:, k]).fill_nan(None) for k, name in enumerate("ab")})


@both
def test_tables_are_samples_by_position(kind):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    x = np.random.default_rng(0).integers(0, 4, (24, 2)).astype(float)
    y = (x[:, 0] > x[:, 1]).astype(int)
    x[3, 1] = np.nan
    expected = kind(**QUICK).fit(x, y).predict(x)
    targets = [
        pandas.Series(y, index=np.arange(24)[::-1]),
        pandas.Series(y).astype("Int64"),
        pandas.Series(y).astype("category"),
        pandas.Series(y).astype("int64[pyarrow]"),
        polars.Series(y),
        pandas.DataFrame({"y": y})["y"].astype(object),
    ]
    for table, target in zip(tables(x), targets, strict=True):
        estimator = kind(**QUICK).fit(table, target)
        assert estimator.feature_names_in_.tolist() == ["a", "b"]
        np.testing.assert_array_equal(estimator.predict(table), expected)
        assert estimator.score(table, target) == estimator.score(table, y)
        assert estimator.score(table, target, target) == estimator.score(table, y, y)
        first = kind(**QUICK)
        np.testing.assert_array_equal(
            first.partial_fit(table, target).predict(table), kind(**QUICK).partial_fit(x, y).predict(x)
        )
    for other in (table.rename({"a": "other"}), table.select("b", "a"), table.to_arrow().select(["b", "a"])):
        with pytest.raises(ValueError, match="feature names"):
            estimator.predict(other)


@both
def test_columns_without_numbers_are_refused(kind):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    x, y = np.random.default_rng(0).normal(size=(24, 2)), np.arange(24) % 2
    table, dates = pandas.DataFrame(x, columns=["a", "b"]), pandas.date_range("2020", periods=24)
    fitted = kind(**QUICK).fit(table, y)
    of_polars = polars.DataFrame(x, schema=["a", "b"])
    for other in (
        table.assign(b=dates),
        table.assign(b=table["b"].astype(str)),
        table.assign(b=table["b"].astype(str).astype("category")),
        of_polars.with_columns(b=polars.lit("1")),
        of_polars.with_columns(b=polars.lit(dates[0].date())),
        of_polars.with_columns(b=polars.struct("a", "b")),
    ):
        plain = kind(**QUICK, categorical_features=None)
        for call in (lambda: fitted.predict(other), lambda: plain.fit(other, y)):  # noqa: B023
            with pytest.raises(TypeError, match=r"X must hold real numbers, .* 'b' \(.*; encode"):
                call()
    with pytest.raises(TypeError, match=r"'b' \(Struct\); encode"):
        kind(**QUICK).fit(of_polars.with_columns(b=polars.struct("a", "b")), y)
    for call in (lambda: kind(**QUICK).fit(of_polars.lazy(), y), lambda: fitted.predict(of_polars.lazy())):
        with pytest.raises(TypeError, match=r"X is a LazyFrame, which has no values yet: give X\.collect\(\)"):
            call()
    for other in (np.array(dates)[:, None], x.astype(str)):
        with pytest.raises(TypeError, match=r"X must hold real numbers, got dtype .*; encode"):
            kind(**QUICK).fit(other, y)
    with pytest.raises(TypeError, match=r"y must hold real numbers, .*; encode"):
        kind(**QUICK).fit(x, pandas.Series(dates))


def test_classes_of_columns_may_be_text_and_targets_may_not():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    x, y = np.random.default_rng(0).normal(size=(24, 2)), np.array(["x", "y"] * 12)
    expected = TAGIClassifier(**QUICK).fit(x, y).predict(x)
    for target in (pandas.Series(y), pandas.Series(y).astype("category"), polars.Series(y)):
        estimator = TAGIClassifier(**QUICK).fit(x, target)
        np.testing.assert_array_equal(estimator.predict(x), expected)
        assert TAGIClassifier(**QUICK).partial_fit(x, target, pandas.Series(["y", "x"])).classes_.tolist() == ["x", "y"]
        with pytest.raises(TypeError, match=r"y must hold real numbers, .*; encode"):
            TAGIRegressor(**QUICK).fit(x, target)
        with pytest.raises(TypeError, match=r"y must hold real numbers, .*; encode"):
            TAGIRegressor(**QUICK).fit(x, x[:, 0]).log_likelihood(x, target)


def categories(n=240):
    """A table whose target depends on a text, a category and a number, some of them missing."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    kind, size, number = rng.choice(["oak", "elm", "fir"], n), rng.integers(0, 3, n), rng.normal(size=n)
    y = 2.0 * (kind == "elm") - (size == 1) + 0.3 * number + 0.1 * rng.normal(size=n)
    kind[::20] = "-"
    text = pandas.Series(kind).where(kind != "-", None)
    return pandas.DataFrame({"kind": text, "number": number, "size": pandas.Series(size).astype("category")}), y


@both
@pytest.mark.parametrize("train", ["fit", "partial_fit"])
def test_categories_of_a_table_are_inputs_of_their_own(kind, train):
    table, y = categories()
    y = y if kind is TAGIRegressor else np.where(y > 0, "large", "small")
    model = getattr(kind((20,), n_folds=2, n_seeds=1, epochs=20, random_state=0), train)(table, y)
    assert model.n_features_in_ == 3 and model.feature_names_in_.tolist() == ["kind", "number", "size"]
    assert len(model._x_mean) == 1 + 3 + 1 + 3  # missing kinds have an input, too
    assert model.score(table, y) > (0.8 if train == "fit" else 0.5)
    new = table[:4].assign(kind=[None, np.nan, None, np.nan])
    np.testing.assert_array_equal(model.predict(new), model.predict(new.assign(kind=[None] * 4)))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(table), model.predict(table))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table.rename(columns={"kind": "tree"}))


def test_the_same_categories_from_any_table():
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    table, y = categories(60)
    expected = TAGIRegressor(**QUICK).fit(table, y).predict(table)
    text = table.astype({"kind": object, "size": object}).where(table.notna(), None)
    of_polars = polars.DataFrame(
        {
            "kind": text["kind"].tolist(),
            "number": text["number"].to_numpy(float),
            "size": polars.Series([str(value) for value in text["size"]], dtype=polars.Categorical),
        }
    )
    tables = [
        (of_polars, "from_dtype"),
        (of_polars.with_columns(kind=polars.col("kind").cast(polars.Enum(["oak", "elm", "fir"]))), "from_dtype"),
        (of_polars.to_arrow(), "from_dtype"),
        (text, ["size", "kind"]),
        (text, [True, False, True]),
        (text.to_numpy(), [0, -1]),
    ]
    for some, asked in tables:
        found = TAGIRegressor(**QUICK, categorical_features=asked).fit(some, y).predict(some)
        np.testing.assert_array_equal(found, expected)
    for wrong in ("kind", 3, ["weight"], [7], [True, False]):
        with pytest.raises(ValueError, match="categorical_features"):
            TAGIRegressor(**QUICK, categorical_features=wrong).fit(table, y)


def test_categories_of_another_type_are_found():
    pandas = pytest.importorskip("pandas")
    codes = np.arange(24) % 3 + 1
    text = pandas.DataFrame({"zip": codes.astype(str)})
    model = TAGIRegressor(**QUICK).fit(text, codes)
    with pytest.warns(
        UserWarning, match=r"1 of 1 values of column 'zip' of X .*: 1 \(number\); learnt were '1', '2', '3' \(str"
    ):
        model.predict(text[:1].astype(int))
    with pytest.warns(UserWarning, match=r"24 of 24 values of column 'zip' of X .*: '1\.0', '2\.0', '3\.0' \(str\)"):
        model.predict(text + ".0")
    with pytest.warns(UserWarning, match=r"4 of 5 values of column 'zip' of X .*: '7', '8', '9' \(str\); learnt"):
        model.predict(text[:6].assign(zip=[*"17897", None]))
    numbers = TAGIRegressor(**QUICK, categorical_features=[0]).fit(codes[:, None], codes)
    with pytest.warns(
        UserWarning, match=r"1 of 1 values of column 0 of X .*: '1' \(str\); learnt were 1, 2, 3 \(number\)"
    ):
        numbers.predict(codes.astype(str)[:1, None])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(text[:2].assign(zip=["7", None]))  # one that is new
        model.predict(text[:6].assign(zip=["7", "8", "9", *"123"]))
        numbers.predict(codes.astype(float)[:, None])
        numbers.predict([[7.5]])


def test_categories_may_be_of_any_type():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    codes, days = np.arange(24) % 3, pandas.date_range("2020", periods=3)
    expected = TAGIRegressor(**QUICK, categorical_features=[0]).fit(codes[:, None], codes).predict(codes[:, None])
    columns = [
        pandas.Series(pandas.cut(codes, 3)),
        *(
            pandas.Series(some[codes]).astype("category")
            for some in (days, days.tz_localize("UTC"), days.to_period("D"), days - days[0])
        ),
        pandas.Series(days.date[codes]).astype("category"),
        polars.Series(days.date[codes].tolist()),
    ]
    for column in columns:
        table = (
            polars.DataFrame({"q": column}) if isinstance(column, polars.Series) else pandas.DataFrame({"q": column})
        )
        model = TAGIRegressor(**QUICK, categorical_features=[0]).fit(table, codes)
        found = pickle.loads(pickle.dumps(model)).predict(table)
        np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=1e-4)
    with pytest.raises(TypeError, match=r"column 'q' of X must hold labels, such as text, got a list in row 0"):
        model.fit(pandas.DataFrame({"q": [[1], [2]] * 12}), codes)


@pytest.mark.parametrize("sample", [{"a": 1.0, "b": "u"}, [{"a": 1.0, "b": "u"}], [[1.0, "u"], [2.0]], None])
def test_samples_without_rows_and_columns_are_refused(sample):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": np.arange(40.0), "b": ["u", "v"] * 20})
    fitted = TAGIRegressor(**QUICK).fit(table, table["a"])
    for X in (sample, table.iloc[0]):
        with pytest.raises(
            ValueError, match=r"X must have rows and columns, .* such as pandas.DataFrame\(\[record\]\)"
        ):
            fitted.predict(X)


def test_lists_of_rows_may_hold_categories():
    rows = [["red" if k % 2 else "blue", k / 40] for k in range(40)]
    y = [float(k % 2) for k in range(40)]
    options = {"n_folds": 2, "n_seeds": 1, "epochs": 40, "random_state": 0, "categorical_features": [0]}
    model = TAGIRegressor((8,), **options).fit(rows, y)
    red, blue = model.predict([["red", 0.5], ["blue", 0.5]])
    assert red > blue + 0.5


def test_rare_categories_have_one_input_together():
    pandas = pytest.importorskip("pandas")
    names = pandas.DataFrame({"name": [f"n{k}" for k in range(300)] + ["n0"] * 20, "x": np.arange(320.0)})
    with pytest.warns(UserWarning, match="column 'name' of X holds text, and 299 of 320 values occur only once"):
        model = TAGIRegressor(**QUICK).fit(names, np.arange(320.0))
    assert len(model._x_mean) == 1 + 254 + 1


def test_too_many_categories_are_named():
    codes = np.arange(1200) % 600
    x = np.c_[codes, np.where(codes < 240, codes, codes % 12)]
    message = r"column 0 of X has 600 categories, and 58% of the values are none of the 254 .*: encode it by TargetEnc"
    with pytest.warns(UserWarning, match=message) as warned:
        TAGIRegressor(**QUICK, categorical_features=[0, 1]).fit(x, codes)
    assert len(warned) == 1


def encoded(values, new):
    """The inputs of new values, given the first ones."""
    of = lambda column: np.array(column, object)[:, None]  # noqa: E731
    return Categories.of(of(values), [0]).split(of(new))[1].tolist()


def test_values_that_were_not_learnt_are_unknown():
    unknown, first = [np.nan] * 2, ["a", "b"] * 50
    for few in (0, 1, 4):  # too few missing values to learn them
        np.testing.assert_equal(encoded([*first, *[None] * few], ["b", "c", None]), [[0, 1], unknown, unknown])
    found = encoded([*first, *[None] * 6], ["b", "c", None])
    np.testing.assert_equal(found, [[0, 1, 0], [np.nan] * 3, [0, 0, 1]])
    assert len(encoded(first * 50 + [None] * 99, ["a"])[0]) == 2
    assert len(encoded(first * 50 + [None] * 100, ["a"])[0]) == 3
    names = [k for k in range(254) for _ in range(2)] + list(range(1000, 1050))
    rare, missing, new, common = np.array(encoded(names, [1049, None, -1, 3]))
    assert rare[254] == 1 and rare.sum() == 1 and common[254] == 0 and common.sum() == 1
    assert np.isnan(missing).all() and np.isnan(new).all()


@both
@pytest.mark.parametrize("train", ["fit", "partial_fit"])
def test_categories_of_samples_without_weight_are_unknown(kind, train):
    x = [*np.arange(30) % 3, *range(100, 140), *range(100, 140)]
    y, weights = np.arange(110) % 2, np.repeat([1.0, 0.0], [30, 80])
    some, every = (kind(**QUICK, categorical_features=[0]) for _ in range(2))
    getattr(some, train)(np.array(x[:30])[:, None], y[:30])
    with warnings.catch_warnings():  # most values are of no known category, but do not count
        warnings.simplefilter("error")
        getattr(every, train)(np.array(x)[:, None], y, sample_weight=weights)
    assert some._categories == every._categories
    np.testing.assert_array_equal(some.predict([[1], [100]]), every.predict([[1], [100]]))


def test_a_missing_value_does_not_make_unknown_categories_known():
    rng = np.random.default_rng(0)
    effect, names = rng.normal(size=20), np.repeat(np.arange(20), 20)
    table = np.array([f"s{k}" for k in names], object)[:, None]
    table[7] = None
    model = TAGIRegressor((20,), n_folds=2, n_seeds=1, epochs=20, n_bins=0, random_state=0, categorical_features=[0])
    model.fit(table, effect[names] + 0.1 * rng.normal(size=400))
    known, new, missing = model.predict([["s1"], ["new"], [None]], return_std=True)[1]
    assert known < 0.3 and new > 0.6 and missing > 0.6


def test_numbers_that_are_equal_in_float32_are_named():
    site, number = np.random.default_rng(0).integers(1, 4, (2, 60))
    x = np.column_stack([number, site * 10**10 + number])
    message = r"columns \[1\] of X .* such as 1\d{10}.0 and 1\d{10}.0: name columns of identifiers"
    with pytest.warns(UserWarning, match=message):
        TAGIRegressor(**QUICK).fit(x, site)
    x[:, 1] += np.linspace(0, 1000, 60).astype(int)  # measurements, which are rounded
    TAGIRegressor(**QUICK).fit(x, site)


def test_a_number_that_means_missing_is_named():
    x = np.random.default_rng(0).normal(size=(200, 2))
    x[::10, 1] = 999999999
    with pytest.warns(UserWarning, match=r"columns \[1\] of X .* write NaN for a code such as 999999999 that means"):
        TAGIRegressor(**QUICK).fit(x, x[:, 0])
    x[::10, 1] = 999
    TAGIRegressor(**QUICK).fit(x, x[:, 0])


def test_columns_are_named_as_in_the_table():
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    table, y = pandas.DataFrame({"c": ["x", "y"] * 20, "k": 1.0, "a": np.arange(40.0)}), np.arange(40.0)
    for some in (table, pyarrow.table(table)):
        with pytest.warns(UserWarning, match=r"columns \['k'\] of X are constant"):
            TAGIRegressor(**QUICK).partial_fit(some, y)
    with pytest.warns(UserWarning, match=r"columns \['k'\] of X hold no number"):
        TAGIRegressor(**QUICK).fit(table.assign(k=np.nan), y)
    table.loc[3, "a"] = np.inf
    for some, name in ((table, "'a'"), (pyarrow.table(table), "'a'"), (table.to_numpy(), "2")):
        with pytest.raises(ValueError, match=f"row 3, column {name}: leave out"):
            TAGIRegressor(**QUICK, categorical_features=[0]).fit(some, y)
    rows = table.astype(object).to_numpy()
    rows[3, 2] = "?"
    with pytest.raises((ValueError, TypeError), match="row 3, column 2"):
        TAGIRegressor(**QUICK, categorical_features=[0]).fit(rows, y)


def test_numbers_and_dates_read_as_text_are_named():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    a = np.random.default_rng(0).normal(size=60)
    table = pd.DataFrame({"b": a, "a": a.round(6).astype(str)})
    table.loc[3, "a"] = "?"
    options = {"n_folds": 2, "n_seeds": 1, "epochs": 1, "n_bins": 0, "random_state": 0}
    with pytest.warns(UserWarning, match=r"column 'a' of X holds text, and 59 of 60 .* are numbers \(not '\?' \(str\)"):
        TAGIRegressor(**options).fit(table, a)
    for mixed in ([*a[:-1], "<0.01"], [str(number).replace(".", ",") for number in a[:-1]] + ["<0,01"]):
        with pytest.warns(UserWarning, match=r"column 'a' of X holds text, and 59 of 60 .* are numbers \(not '<0"):
            TAGIRegressor(**options).fit(table.assign(a=mixed), a)
    days = pd.Series(pd.date_range("2024-01-01", periods=60))
    whole = pd.Series(np.arange(60) * 400 + 1)
    for texts, kind, how in (
        (whole.map("{:,}".format), "60 of 60 .* numbers", r"to_numeric\(column.str.replace\(',', ''\).*'\.'\).* if"),
        ((whole * 999).map("{:,}".format), "numbers", r"replace\(',', ''\), errors='coerce'\), or name it"),
        ((whole / 8).map("{:,.2f}".format), "60 of 60 .* are numbers", r"to_numeric\(column.str.replace\(',', ''\)"),
        (pd.Series(a).map("{:.3f}".format).str.replace(".", ","), "are numbers", r"column.str.replace\(',', '\.'\)"),
        (
            days.dt.strftime("%Y-%m-%d %H:%M"),
            "60 of 60 .* are dates",
            r"pd.to_datetime\(column, errors='coerce'\) - first",
        ),
        (
            days.dt.strftime("%d.%m.%Y").mask(days.dt.day == 7, "unknown"),
            r"are dates \(not 'unknown'",
            "column, dayfirst=True",
        ),
    ):
        with pytest.warns(UserWarning, match=f"column 'a' of X holds text, and .*{kind}.*{how}"):
            TAGIRegressor(**options).fit(table.assign(a=texts), a)
    TAGIRegressor(**options).fit(table.astype({"a": "category"}), a)  # no warning
    for asked in (["a"], np.array([False, True])):
        TAGIRegressor(**options, categorical_features=asked).fit(table, a)
    TAGIRegressor(**options).fit(table.assign(a=np.arange(60) % 7).astype({"a": str}), a)


@both
def test_labelled_arrays_are_arrays(kind):
    """xarray's have some of the methods of columns."""

    class DataArray:
        def __init__(self, values):
            self.values, self.shape, self.dtype, self.name = values, values.shape, values.dtype, None

        def __array__(self, dtype=None, copy=None):
            return np.asarray(self.values, dtype)

        def to_numpy(self):
            return self.values

        def to_series(self):
            raise AssertionError

    x = np.random.default_rng(0).integers(0, 4, (24, 2)).astype(float)
    y = (x[:, 0] > x[:, 1]).astype(int)
    expected = kind(**QUICK).fit(x, y).predict(x)
    model = kind(**QUICK).fit(DataArray(x), DataArray(y))
    np.testing.assert_array_equal(model.predict(DataArray(x)), expected)


def test_intervals_where_categories_are_missing():
    """The target varies by 1 between cities, and by 0.3 in one. Networks of the noise alone: 80 % of missing inside."""
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    rng = np.random.default_rng(0)
    n, learnt = 6000, slice(800)
    city, x = rng.integers(30, size=n), rng.normal(size=n)
    y = rng.normal(size=30)[city] + x + 0.3 * rng.normal(size=n)
    missing = rng.random(n) < 0.1
    names = pd.Series(city).map("c{}".format).mask(missing)
    table = pd.DataFrame({"x": x, "city": names, "street": names + "s"})
    options = {"n_folds": 3, "n_seeds": 1, "epochs": 30, "n_bins": 0, "random_state": 0}
    model = TAGIRegressor((30,), **options).fit(table[learnt], y[learnt])
    low, high = model.predict_interval(table[800:])
    inside, missing = ((low <= y[800:]) & (y[800:] <= high)), missing[800:]
    assert 0.85 < inside[missing].mean() < 0.95 and 0.85 < inside[~missing].mean() < 0.95


def test_the_noise_of_missing_categories_does_not_depend_on_the_order_of_columns():
    """The noise is 3 where c is missing, else 1; d is missing mostly with c."""
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    rng = np.random.default_rng(0)
    n = 600
    without_c = rng.random(n) < 0.1
    without_d = np.where(without_c, rng.random(n) < 0.7, rng.random(n) < 0.03)
    c, d = (pd.Series(rng.choice(["u", "v"], n)).mask(gaps) for gaps in (without_c, without_d))
    y = np.where(without_c, 3, 1) * rng.normal(size=n)
    options = {"n_folds": 2, "n_seeds": 1, "epochs": 20, "n_bins": 0, "heteroscedastic": False, "random_state": 0}
    scales = []
    for names in (["c", "d"], ["d", "c"]):
        table = pd.DataFrame({"c": c, "d": d})[names]
        std = TAGIRegressor((10,), **options).fit(table, y).predict(table, return_std=True)[1]
        scales.append([std[without_c & ~without_d].mean(), std[~without_c & without_d].mean()])
    assert scales[0][0] > 2.3 and scales[0][1] < 2
    np.testing.assert_allclose(*scales, rtol=0.15)


@both
@pytest.mark.parametrize("apart", [False, True])
def test_an_unknown_category_is_predicted_as_the_known_ones(kind, apart):
    """The category has no effect. `apart`: each fold has categories of its own, which its networks have not learnt."""
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    rng = np.random.default_rng(0)
    n, x = 600, rng.normal(size=1200)
    site = pd.Series(rng.integers(8, size=2 * n)).map("s{}".format)
    table = pd.DataFrame({"site": site.where(np.arange(2 * n) < n, "new"), "x": x})
    table.loc[n : 3 * n // 2, "site"] = "s1"
    options = {"n_folds": 2, "n_seeds": 1, "epochs": 15, "n_bins": 0, "random_state": 0}
    rare, y = rng.random(2 * n) < 1 / (1 + np.exp(3 - x)), x + 0.3 * rng.normal(size=2 * n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = kind(20, **options).fit(
            table[:n], (rare if kind is TAGIClassifier else y)[:n], groups=site[:n] if apart else None
        )
        if kind is TAGIClassifier:
            assert model.temperature_ < 2
            known, new = (model.predict_proba(table[rows])[:, 1].mean() for rows in (slice(n, 900), slice(901, None)))
            assert abs(known - rare[n:].mean()) < 0.05 and abs(new - rare[n:].mean()) < 0.05
        else:
            std = model.predict(table, return_std=True)[1]
            assert std[n:].max() < 0.45 and 0.85 < model.predict_distribution(table).coverage(y, 0.9) < 0.97


@both
def test_categories_that_arrive_later_are_learnt(kind):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pd.DataFrame({"a": pd.Categorical(list("xy") * 30 + list("zz") * 10), "b": np.arange(80.0)})
    model = kind(**QUICK | {"n_folds": 2}).fit(table, np.arange(80) % 2, groups=np.repeat([0, 1, 2, 3], 20))
    before = [column.counts.sum() for (column,) in model._learnt]
    model.partial_fit(table[60:], np.arange(20) % 2)
    assert [column.counts.sum() for (column,) in model._learnt] == [count + 20 for count in before]
    assert all(column.counts[2] for (column,) in model._learnt)
    single = pd.DataFrame({"a": ["x"] * 20, "b": np.arange(20.0)})
    assert np.isfinite(kind(**QUICK).fit(single, np.arange(20) % 2).predict(single[:1].assign(a=["y"]))).all()
