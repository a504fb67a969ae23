"""Checks of the numbers that a pass computes: they are right, and do not depend on how samples form batches."""

import copy
from contextlib import ExitStack
from unittest import mock

import numpy as np

from pytagi_ddp import nn
from pytagi_ddp.kernels.cpu.layers import elementwise, pooling
from pytagi_ddp.kernels.cpu.products import _blas
from pytagi_ddp.kernels.cpu.runtime import compile as loops
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads
from tests.battery.example import Example, check, rows, snapshot, train
from tests.learning import backpropagate
from tests.nn import golden, reference, reference_activation
from tests.nn.networks import (
    DELTAS,
    assert_matches_reference,
    assert_same,
    leaves,
    pass_through,
    random_batch,
    repeated_passes,
)

TIED = "statistics of the batch tie its samples together"


def oracles(kind: type) -> list[str]:
    """Names of what says which numbers of a layer are right: a float64 reference, or recorded results of pytagi."""
    found = []
    if kind in reference.LAYERS or issubclass(kind, nn.LayerBlock):
        found.append(f"reference.{reference.LAYERS.get(kind, reference.chain).__name__}")
    elif kind.__name__ in reference_activation.FORMULAS:
        found.append(f"reference_activation.{reference_activation.FORMULAS[kind.__name__].__name__}")
    return found + golden.with_layer(kind.__name__)


def one_pass(net: nn.Sequential, *batch) -> dict[str, np.ndarray]:
    """The results of `pass_through`, after what a network carries from earlier passes (LSTM memory) was reset."""
    net.reset_lstm_states()
    return pass_through(net, *batch)


@check
def equals_float64(example: Example) -> str | None:
    """Outputs, Jacobians and deltas of one pass equal those of the float64 reference."""
    for layer in leaves(example.network()):
        kind = type(layer)
        found = oracles(kind)
        assert found, (
            f"nothing says which numbers of {kind.__name__} are right: add its formulas to reference.LAYERS (an "
            "activation: to reference_activation.FORMULAS) in tests/nn, or recorded results to tests/golden"
        )
        if not found[0].startswith("reference"):
            return f"{kind.__name__} has no float64 reference; covered by {', '.join(found)}"
    for with_variance in (True, False):
        assert_matches_reference(example.network(), tolerance=example.tolerance, with_variance=with_variance)
    return None


@check
def shards_add_up(example: Example) -> str | None:
    """The deltas of the parts of a batch add up to those of the whole batch; `DDPSequential` relies on this."""
    net = example.network()
    if net.arena.running:
        return TIED
    batch = random_batch(net, 9)
    whole = one_pass(example.network(), *batch)
    with net.accumulate():
        passes = [one_pass(net, *rows(batch, part)) for part in (slice(0, 4), slice(4, 5))]
    passes.append(one_pass(net, *rows(batch, slice(5, 9))))
    assert net.passes.waiting == 9, f"{net.passes.waiting} of 9 samples wait for the step"
    for name, expected in whole.items():
        parts = [one[name] for one in passes]
        joined = parts[-1] if name.startswith(DELTAS) else np.concatenate(parts)
        assert_same({name: joined}, {name: expected}, example.rounding)
    return None


@check
def samples_are_predicted_one_by_one(example: Example) -> str | None:
    """In evaluation mode, the prediction of a sample does not depend on the other samples of its batch."""
    net = train(example.network(), 4, 3)
    if net.arena.carried.size:
        return "what is carried from one batch to the next makes a sample depend on those before it"
    x, var_x, *_ = random_batch(net, 7)
    whole, parts, single = (
        dict(zip(("mean", "variance"), net.predict(x, size, var_x), strict=True)) for size in (7, 3, 1)
    )
    assert_same(parts, whole, example.rounding)
    assert_same(single, whole, example.rounding)
    return None


@check
def order_does_not_matter(example: Example) -> None:
    """If the samples of a batch are permuted, outputs are too, and deltas of parameters stay the same."""
    net = example.network()
    batch = random_batch(net, 8)
    order = np.random.default_rng(2).permutation(8)
    plain, permuted = one_pass(net, *batch), one_pass(net, *rows(batch, order))
    for name, expected in plain.items():
        if not name.startswith(DELTAS):
            expected = expected.reshape(8, -1)[order]
        assert_same({name: permuted[name]}, {name: expected}, example.rounding)


@check
def nothing_is_left_of_other_batches(example: Example) -> None:
    """A pass has the bits of a new network, whatever batches came before (of any size, with or without variances)."""
    net = example.network()
    new = copy.deepcopy(net)
    smallest = 2 if net.arena.running else 1
    for size, with_variance in ((2, True), (7, False), (3, True), (40, True), (smallest, False), (9, True), (2, False)):
        batch = random_batch(net, size, seed=size, with_variance=with_variance)
        assert_same(one_pass(net, *batch), one_pass(copy.deepcopy(new), *batch), 0)


@check
def no_variance_is_zero_variance(example: Example) -> str | None:
    """An input without variances gives the same as one with variances of 0, and other variances are not ignored."""
    net = example.network()
    if isinstance(leaves(net)[0], nn.Embedding):
        return "categories have no variance"
    x, var_x, *deltas = random_batch(net, 4)
    known = one_pass(net, x, None, *deltas)
    assert_same(one_pass(net, x, np.zeros_like(x), *deltas), known, example.rounding)
    uncertain = one_pass(net, x, var_x, *deltas)
    assert not np.array_equal(uncertain["output variance"], known["output variance"]), "input variances are ignored"
    return None


@check
def missing_observations_teach_nothing(example: Example) -> str | None:
    """NaN is not an observation: a sample with nothing else gets no deltas, and a batch of them changes nothing."""
    net = example.network()
    if any(getattr(leaf, "through_statistics", False) for leaf in net.arena.leaves):
        return "a sample changes the statistics of the batch, and so has deltas by the observations of the others"
    net.input_state_update = True
    x, var_x, y, _ = random_batch(net, 4)

    def learn(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Deltas of the input, (2, samples, inputs), and of all parameters."""
        net.reset_lstm_states()
        backpropagate(net, x, y, 0.3, var_x=var_x)
        return np.reshape(net.get_input_states(), (2, 4, -1)), net.arena.delta.copy()

    everything = learn(y)[0]
    y[1] = np.nan
    some = learn(y)[0]
    assert not some[:, 1].any(), "a sample without observations has deltas at the input"
    assert np.array_equal(some[:, [0, 2, 3]], everything[:, [0, 2, 3]]), "one sample's observations change another's"
    before = snapshot(net)["theta"]
    assert not learn(np.full_like(y, np.nan))[1].any(), "no observations, and deltas of parameters"
    net.step()
    assert np.array_equal(net.arena.theta, before), "a step without observations changes parameters"
    return None


def assert_same_on_threads(example: Example, batch: int, threads: tuple[int, ...]) -> None:
    """Passes and a step on so many threads give what one thread gives, but for rounding."""
    numbers = random_batch(example.network(), batch)
    before = get_threads()
    try:
        set_threads(1)
        expected = repeated_passes(example.network(), *numbers)
        for count in threads:
            set_threads(count)
            assert_same(repeated_passes(example.network(), *numbers), expected, 2 * example.rounding)
    finally:
        set_threads(before)


@check
def threads_do_not_change_products(example: Example) -> None:
    """Matrix products are the same on more threads than there are rows or columns; see the next check for a few."""
    try:
        _blas.set_serial(0)  # otherwise only products of large matrices would use several threads
        assert_same_on_threads(example, 7, (16,))
    finally:
        _blas.set_serial()


@check
def threads_do_not_change_numbers(example: Example) -> None:
    """All loops together give on several threads what they give on one, but for rounding."""
    modules = loops, elementwise, pooling
    with ExitStack() as small:  # otherwise only loops over thousands of samples would use several threads
        small.callback(_blas.set_serial)
        _blas.set_serial(0)
        for module in modules:
            small.enter_context(mock.patch.object(module, "PARALLEL_MIN", 100))
        assert_same_on_threads(example, 150, (2, 3))
