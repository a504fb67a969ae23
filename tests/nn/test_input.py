"""What a network accepts as input, and the errors that name what is wrong."""

import datetime
import re
from decimal import Decimal

import numpy as np
import pytest
from scipy import sparse

from pytagi_ddp import nn
from pytagi_ddp.validate import flat_float32
from tests.nn.networks import randomise

X = np.random.default_rng(0).integers(-8, 8, (3, 4)).astype(np.float32)  # exact in every type below
VAR = np.abs(X) / 4 + 0.25


@pytest.fixture
def net() -> nn.Sequential:
    return randomise(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)))


FORMS = {
    "float64": lambda a: a.astype(np.float64),
    "float16": lambda a: a.astype(np.float16),
    "big-endian": lambda a: a.astype(">f4"),
    "flat": lambda a: a.reshape(-1),
    "more dimensions": lambda a: a.reshape(3, 1, 2, 2),
    "Fortran order": np.asfortranarray,
    "every second column": lambda a: np.repeat(a, 2, 1)[:, ::2],
    "backwards in memory": lambda a: a[::-1].copy()[::-1],
    "transposed memory": lambda a: a.T.copy().T,
    "read-only": lambda a: np.frombuffer(a.tobytes(), np.float32).reshape(a.shape),
    "list": lambda a: a.tolist(),
    "masked array": np.ma.masked_array,
    "memory map": lambda a: np.asarray(memoryview(a)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_any_type_stride_and_shape(net, form):
    expected = net(X, VAR)
    for mu_x, var_x in ((form(X), VAR), (X, form(VAR)), (form(X), form(VAR))):
        for got, want in zip(net(mu_x, var_x), expected, strict=True):
            np.testing.assert_array_equal(got, want)
            assert (got.dtype, got.shape) == (np.float32, (6,))


def conv() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 2, 3, in_width=8, in_height=8))


def lstm() -> nn.Sequential:
    return nn.Sequential(nn.LSTM(2, 3, 5))


def test_one_sample_without_a_batch_axis():
    for net, shape in ((conv(), (3, 8, 8)), (lstm(), (5, 2))):
        with pytest.raises(ValueError, match=r"of one sample: add a batch axis, x\[None\]"):
            net.predict(np.ones(shape))


MISSHAPEN = {
    "samples in columns": (lambda: nn.Sequential(nn.Linear(4, 2)), (4, 6)),
    "other features": (lambda: nn.Sequential(nn.Linear(4, 2)), (8, 3)),
    "features of one input": (lambda: nn.Sequential(nn.Linear(1, 2)), (8, 3)),
    "channels last": (conv, (2, 8, 8, 3)),
    "channels of one": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, in_width=8, in_height=8)), (2, 8, 8, 3)),
    "time in front": (lstm, (5, 7, 2)),
    "features before time": (lstm, (7, 2, 5)),
    "other features and times": (lambda: nn.Sequential(nn.LSTM(1, 3, 8)), (7, 4, 2)),
}


@pytest.mark.parametrize(("make", "shape"), MISSHAPEN.values(), ids=MISSHAPEN)
def test_tables_of_another_shape_are_not_cut_into_samples(make, shape):
    net, x = make(), np.ones(shape)
    flat = x.reshape(-1)
    for _ in range(4):  # as walked, recorded, and replayed
        net(flat, flat)
        for given in ((x,), (flat, x)):
            with pytest.raises(ValueError, match=rf"_x has the shape {re.escape(str(shape))}, and a sample is"):
                net(*given)
    with pytest.raises(ValueError, match="x has the shape"):
        net.predict(x)
    deltas = net.input_delta_z_buffer
    with pytest.raises(ValueError, match=r"mu_obs has the shape .* the first dimension counts samples"):
        nn.OutputUpdater("cpu").update(net.output_z_buffer, np.ones((1, net.output_z_buffer.size)), 1.0, deltas)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(lstm, (2, 3, 5, 2)), (conv, (2, 3, 64)), (lambda: nn.Sequential(nn.Linear(2, 1)), (3, 5, 2))],
)
def test_all_dimensions_before_those_of_a_sample_count_samples(make, shape):
    net, x = make(), np.random.default_rng(0).normal(size=shape)
    np.testing.assert_array_equal(net(x), net(x.ravel()))


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint8, bool])
def test_integers_and_booleans(net, kind):
    x = np.abs(X).astype(kind)
    np.testing.assert_array_equal(net(x)[0], net(x.astype(np.float32))[0])


def test_keywords(net):
    expected = net(X, VAR)
    for got in (net(mu_x=X, var_x=VAR), net.forward(var_x=VAR, mu_x=X), net.forward(X, VAR)):
        np.testing.assert_array_equal(got[0], expected[0])


def test_zero_variance_is_no_variance(net):
    for got, want in zip(net(X, np.zeros_like(X)), net(X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_results_are_the_callers(net):
    """Fresh arrays: the next forward pass leaves them alone, and writing to them harms nothing."""
    first = net(X)
    kept = [np.array(a) for a in first]
    second = net(2 * X)
    for got, want in zip(first, kept, strict=True):
        np.testing.assert_array_equal(got, want)
    second[0][:] = np.nan
    assert np.isfinite(net.get_outputs()[0]).all()


def test_a_changed_input_does_not_reach_the_backward_pass(net):
    """The first layer needs its input again; it keeps a copy."""
    deltas = []
    for spoil in (False, True):
        x = X.copy()
        net(x)
        if spoil:
            x[:] = 1e6
        net.set_delta_z(np.ones(6), -np.ones(6))
        net.backward()
        deltas.append(np.array(net.layers[0].delta_mu_w))
    np.testing.assert_array_equal(*deltas)


@pytest.mark.parametrize(
    ("mu_x", "var_x", "message"),
    [
        (np.zeros(7), None, "mu_x holds 7 values, not a whole number of samples of 4 inputs"),
        (np.zeros((0, 3)), None, r"mu_x has the shape \(0, 3\), and a sample is 4"),
        (X, np.zeros(8), "var_x must hold 12 values, got 8"),
        (X, 0.1, "var_x must hold 12 values, got 1"),
        ([1, 2, np.nan, np.inf], None, "mu_x: 2 of 4 values are NaN or infinite"),
        ([1, 2, 3, 1e300], None, "mu_x: 1 of 4 values are NaN or infinite"),
        (np.zeros(4), [1, np.nan, 1, 1], "var_x: 1 of 4 values are NaN or infinite"),
        (np.zeros(4), [1, np.inf, 1, 1], "var_x: 1 of 4 values are NaN or infinite"),
        (np.zeros(4), [1, -0.5, 1, 1], "var_x holds variances and must not be negative, the smallest is -0.5"),
    ],
)
def test_bad_values(net, mu_x, var_x, message):
    with pytest.raises(ValueError, match=message):
        net(mu_x, var_x)
    net.eval()
    with pytest.raises(ValueError, match=message.replace("mu_x", "(mu_x|x)")):
        net.predict(mu_x, var_x=var_x) if np.size(mu_x) else net(mu_x)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        *((None, "got NoneType"), (np.array(None), "got NoneType"), ({"x": 1}, "got dict"), ("text", "got dtype <U4")),
        *((X.astype(complex), "got dtype complex128"), (X.astype(str).astype(object), "got dtype object")),
        *(([None], "got dtype object"), ([[1, 2], [3]], "inhomogeneous")),
        (sparse.csr_array(X), r"got csr_array: give it dense \(\.toarray\(\)\), in batches"),
    ],
)
def test_what_holds_no_numbers(net, wrong, words):
    with pytest.raises((TypeError, ValueError), match=rf"(mu_x must hold real numbers, )?{words}"):
        net(wrong)


def test_a_refused_input_leaves_the_last_forward_pass(net):
    net(X)
    with pytest.raises(ValueError, match="7 values"):
        net(np.zeros(7))
    net.set_delta_z(np.ones(6), -np.ones(6))
    net.backward()
    assert np.abs(net.layers[0].delta_mu_w).max() > 0


def test_images_may_come_flat_or_shaped():
    net = randomise(nn.Sequential(nn.Conv2d(3, 2, 2, in_width=4, in_height=3)))
    x = np.random.default_rng(1).normal(size=(5, 3, 3, 4))
    np.testing.assert_array_equal(net(x)[0], net(x.reshape(-1))[0])
    with pytest.raises(ValueError, match="mu_x holds 35 values, not a whole number of samples of 36 inputs"):
        net(np.zeros(35))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 7, 8), r"336 values, .* 192 inputs: it has the shape \(2, 3, 7, 8\), expected \(samples, 3, 8, 8\)$"),
        ((2, 3, 16, 8), "and a sample is 3x8x8: these have to be its last dimensions$"),
        ((2, 3, 4, 16), "and a sample is 3x8x8: these have to be its last dimensions$"),
        ((2, 8, 8, 3), "last dimensions; transpose it, or pass what is in another shape flat$"),
    ],
)
def test_images_of_another_size_are_named_with_the_expected_one(shape, message):
    with pytest.raises(ValueError, match=message):
        conv()(np.zeros(shape))


# -- predict ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 1000])
def test_predict_by_batches_equals_one_forward_pass(batch_size):
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm2d(3), nn.Linear(3, 2))
    x = np.random.default_rng(2).normal(size=(7, 4))
    var = np.full((7, 4), 0.3)
    net(x)
    mu, s = net.predict(x, batch_size, var)
    assert mu.shape == s.shape == (7, 2)
    assert net.training
    net.eval()
    for got, want in zip((mu, s), net(x, var), strict=True):
        np.testing.assert_allclose(got.reshape(-1), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layers", [[nn.ClosedFormSoftmax], [nn.EvenExp], [lambda: nn.Linear(2, 2)] * 9])
def test_predictions_that_overflow_are_an_error(layers):
    """Walked, recorded and replayed."""
    net = nn.Sequential(nn.Linear(4, 2), *(layer() for layer in layers))
    x = np.full((3, 4), 1.0)
    x[1] = 1e19
    for _ in range(4):
        with pytest.raises(FloatingPointError, match=r"predictions of 1 of 3 samples are not finite: .* Standardise"):
            net.predict(x)
        net.predict(x[:1])


def test_predict_shapes_and_errors(net):
    assert net.predict(np.zeros((0, 4)))[0].shape == (0, 2)
    assert net.predict(np.zeros(4))[1].shape == (1, 2)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        net.predict(X, 0)
    with pytest.raises(TypeError, match="got ndarray; variances of inputs go by their name, var_x"):
        net.predict(np.ones((1, X.shape[1])), np.full((1, 1), 2.0))  # of which a batch size could be made
    np.testing.assert_array_equal(net.predict(X, np.int64(2)), net.predict(X, 2))
    with pytest.raises(ValueError, match="x holds 6 values, not a whole number of samples of 4 inputs"):
        net.predict(np.zeros(6))
    with pytest.raises(ValueError, match="var_x must hold 12 values, got 4"):
        net.predict(X, var_x=np.zeros(4))
    assert net.training  # also after an error


class OnlyDLPack:
    """An array of which nothing is known but the DLPack protocol."""

    def __init__(self, values, device=(1, 0)):
        self._values, self._device = np.asarray(values), device

    def __dlpack__(self, **options):
        if self._device != (1, 0):
            raise BufferError("unsupported device")
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._device


class OnGpu(OnlyDLPack):
    """What CuPy's arrays say."""

    def __array__(self, *args, **options):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


class Column:
    """A column of pandas with missing values, or a table: as an array it holds objects."""

    def __init__(self, values, dtypes=None):
        self._values, self.dtype = values, np.dtype(float)  # of a nullable type, whose kind is "f" too
        if dtypes:
            self.columns, self.dtypes = list(dtypes), list(dtypes.values())

    def __array__(self, *args, **options):
        return np.array(self._values, object)

    def to_numpy(self, dtype, na_value):
        return np.array([na_value if value is None else dtype(value) for value in self._values])


def test_arrays_of_dlpack_are_read_in_place(net):
    expected = net(X, VAR)
    np.testing.assert_array_equal(net(OnlyDLPack(X), OnlyDLPack(VAR)), expected)
    np.testing.assert_array_equal(net.predict(OnlyDLPack(X))[0].reshape(-1), net(X)[0])
    assert all(np.shares_memory(flat_float32(given, "x"), X) for given in (X, OnlyDLPack(X)))


def test_observations_of_dlpack(net):
    deltas = []
    for form in (np.asarray, OnlyDLPack):
        net(X)
        y, index = form(X[:, :2]), form(np.tile([1, 2], 3))
        nn.OutputUpdater("cpu").update(net.output_z_buffer, y, form(VAR[:, :2]), net.input_delta_z_buffer)
        deltas.append(np.array(net.input_delta_z_buffer.delta_mu))
        nn.OutputUpdater("cpu").update_using_indices(
            net.output_z_buffer, y, form(VAR[:, :2]), index, net.input_delta_z_buffer
        )
        deltas.append(np.array(net.input_delta_z_buffer.delta_mu))
    for other in deltas[1:]:
        np.testing.assert_array_equal(other, deltas[0])


def test_an_array_on_a_gpu_says_what_to_do(net):
    for form in (OnlyDLPack, OnGpu):
        with pytest.raises(TypeError, match=r"mu_x lies in another device's memory; bring it to the host first .*get"):
            net(form(X, device=(2, 0)))


def test_missing_values_of_nullable_columns_are_nan(net):
    values = [1.0, None, 3.0, 4.0]
    with pytest.raises(ValueError, match="mu_x: 1 of 4 values are NaN"):
        net(Column(values))
    net.missing_inputs = "standard normal"
    np.testing.assert_array_equal(net(Column(values)), net([1.0, np.nan, 3.0, 4.0]))


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_masked_values_are_nan(net, kind):
    values = np.ma.array([1, 2, 3, 4], dtype=kind, mask=[False, True, False, False])
    with pytest.raises(ValueError, match="mu_x: 1 of 4 values are NaN"):
        net(values)
    net.missing_inputs = "standard normal"
    np.testing.assert_array_equal(net(values), net([1.0, np.nan, 3.0, 4.0]))
    np.testing.assert_array_equal(net(np.ma.array([1, 2, 3, 4], dtype=kind)), net([1.0, 2.0, 3.0, 4.0]))


def test_columns_without_numbers_are_named(net):
    kinds = {"age": np.dtype(float), "city": np.dtype(object)}
    with pytest.raises(TypeError, match=r"mu_x must hold real numbers, .*: 'city' \(object\); encode them"):
        net(Column([[1.0, "Rome"], [3.0, 4.0]], kinds))


def test_any_iterable_of_batches_gives_statistics():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm2d(5))
    generator = ([OnlyDLPack(x), "labels"] for x in np.split(np.arange(24, dtype=np.float32), 2))
    with pytest.raises(TypeError, match="len"):
        net.update_bn([7])
    net.update_bn((batch[0]._values.reshape(3, 4), batch[1]) for batch in generator)
    fresh = np.array(net.layers[1].running_mean)
    net.update_bn(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    np.testing.assert_array_equal(net.layers[1].running_mean, fresh)


REAL = {
    "torch": lambda library, a: library.tensor(a, requires_grad=True),
    "pandas": lambda library, a: library.DataFrame(a).convert_dtypes(),
    "jax.numpy": lambda library, a: library.asarray(a),
    "polars": lambda library, a: library.DataFrame(a),
}


@pytest.mark.parametrize("name", REAL)
def test_other_libraries_themselves(net, name):
    library = pytest.importorskip(name, reason=f"{name} is not installed")
    for got, want in zip(net(REAL[name](library, X), REAL[name](library, VAR)), net(X, VAR), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_columns_of_real_tables_are_named(net, name):
    library = pytest.importorskip(name, reason=f"{name} is not installed")
    with pytest.raises(TypeError, match=r"these columns do not: 'city' \(\w+\); encode them"):
        net(library.DataFrame({"city": ["Rome"], "age": [7.0]}))


def test_dates_and_decimal_numbers_of_polars(net):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    dates = polars.DataFrame({"a": [1.0], "when": [datetime.date(2020, 1, 1)], "b": [True], "c": [2]})
    with pytest.raises(TypeError, match=r"these columns do not: 'when' \(Date\); encode them"):
        net(dates)
    exact = polars.DataFrame({"a": [Decimal("1.5")], "b": [True], "c": [2], "d": [0.25]})
    np.testing.assert_array_equal(net(exact), net([1.5, 1, 2, 0.25]))


@pytest.mark.parametrize("layers", [[nn.LSTM(8, 4), nn.Linear(4, 1)], [nn.MultiheadAttention(8, 2), nn.Linear(8, 1)]])
def test_sequences_for_layers_of_one_time_step(layers):
    """seq_len was forgotten: steps would be samples that know nothing of each other."""
    one = nn.Sequential(*layers)
    for _ in range(4):  # as walked, recorded, and replayed
        one(np.ones((20, 8)))
        with pytest.raises(ValueError, match=r"shape \(4, 5, 8\), and this network takes one time step at a time"):
            one(np.ones((4, 5, 8)))
    with pytest.raises(ValueError, match="one time step at a time"):
        one.predict(np.ones((4, 5, 8)))
    assert one.predict(np.ones((20, 1, 8)))[0].shape[0] == 20
    nn.Sequential(nn.LSTM(8, 4, seq_len=5, last_timestep=True), nn.Linear(4, 1))(np.ones((2, 2, 5, 8)))
    nn.Sequential(nn.Embedding(9, 8, 5), nn.MultiheadAttention(8, 2), nn.Linear(8, 1))(np.ones((2, 2, 5)))
