"""What the tests of networks share: random parameters, one training step, and the comparison with the reference."""

from contextlib import nullcontext

import numpy as np

from pytagi_ddp import nn
from tests.nn import reference

FIELDS = ("mu_w", "var_w", "mu_b", "var_b")
DELTAS = tuple(f"delta_{field}" for field in FIELDS)


def leaves(net: nn.Sequential) -> list[nn.BaseLayer]:
    return [leaf for _, leaf in net.named_leaves()]


def learned(net: nn.Sequential) -> list[nn.BaseLayer]:
    return [leaf for leaf in leaves(net) if leaf.num_weights]


def randomise(net: nn.Sequential, seed: int = 0) -> nn.Sequential:
    """Means around the prior's and unequal variances, so that no formula is met at a special point."""
    rng = np.random.default_rng(seed)
    for leaf in learned(net):
        for kind in ("w", "b"):
            mu, var = getattr(leaf, f"mu_{kind}"), getattr(leaf, f"var_{kind}")
            mu[...] += 0.3 * rng.standard_normal(mu.size)
            var[...] = rng.uniform(0.02, 0.2, var.size)
    return net


def random_inputs(net: nn.Sequential, batch: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers, or the categories of an embedding."""
    shape = (batch, net.in_shape.size)
    if isinstance(first := leaves(net)[0], nn.Embedding):
        return rng.integers(min(0, first.padding_idx), first.num_embeddings, shape).astype(np.float32)
    return rng.normal(size=shape).astype(np.float32)


def random_batch(net: nn.Sequential, batch: int, seed: int = 1, with_variance: bool = True):
    """(x, var_x, delta_mu, delta_var): inputs, and deltas at the output as an observation would make them."""
    rng = np.random.default_rng(seed)
    x = random_inputs(net, batch, rng)
    var_x = rng.uniform(0.05, 0.5, x.shape).astype(np.float32) if with_variance else None
    delta_mu = rng.normal(size=(batch, net.out_shape.size)).astype(np.float32)
    delta_var = -rng.uniform(0.1, 1, delta_mu.shape).astype(np.float32)
    return x, var_x, delta_mu, delta_var


def pass_through(net: nn.Sequential, x, var_x, delta_mu, delta_var) -> dict[str, np.ndarray]:
    """One forward and backward pass; every number that it makes, by name."""
    net.input_state_update = True
    mu, var = net(x, var_x)
    net.set_delta_z(delta_mu, delta_var)
    net.backward()
    result = {"output mean": mu, "output variance": var, "output Jacobian": np.array(net.output_z_buffer.jcb)}
    result["input delta mean"], result["input delta variance"] = net.get_input_states()
    for k, leaf in enumerate(learned(net)):
        result |= {f"{name} of layer {k} {leaf!r}": np.array(getattr(leaf, name)) for name in DELTAS}
    return result


def repeated_passes(net: nn.Sequential, *batch) -> dict[str, np.ndarray]:
    """Every number that `pass_through` makes of a batch, of parts of it that are accumulated, and the step after them.

    Each pass is made three times: walked through, recorded and replayed. Asserts that the bits are the same each time.
    """
    size = len(batch[0])
    results: dict[str, np.ndarray] = {}
    for what, parts in (("one batch", [(0, size)]), ("accumulated", [(0, size), (0, size), (size // 2, size)])):
        for time in range(3):
            net.reset_lstm_states()
            net.passes.forget()
            with net.accumulate() if len(parts) > 1 else nullcontext():
                for start, stop in parts:
                    found = pass_through(net, *(None if array is None else array[start:stop] for array in batch))
            for name, array in found.items():
                first = results.setdefault(f"{what}: {name}", array.copy())
                assert np.array_equal(array, first, equal_nan=True), f"{what}: {name} differs in pass {time + 1}"
    net.step()
    return results | {name: getattr(net.arena, name).copy() for name in ("theta", "statistics", "carried")}


def assert_same(actual: dict, expected: dict, tolerance: float) -> None:
    """Every array within `tolerance` of the largest magnitude of the expected one.

    The sum for the bias of a single unit may cancel out. It has the rounding errors of its terms, of which the sums for
    the weights are made, too: their largest counts as well.
    """
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        got = np.asarray(actual[name]).reshape(-1)
        want = np.asarray(want).reshape(-1)
        assert got.shape == want.shape, name
        if want.size:
            weights = expected.get(name.replace("_b of layer", "_w of layer"), want) if want.size == 1 else want
            scale = max(np.abs(want).max(), np.abs(weights).max(initial=0))
            error = np.abs(got - want).max()
            assert error <= tolerance * scale, f"{name}: error {error:.3g}, {error / scale:.2g} of the largest"


def expected_pass(net: nn.Sequential, x, var_x, delta_mu, delta_var) -> dict[str, np.ndarray]:
    """`pass_through` by the float64 reference, from the parameters that `net` has."""
    m = np.asarray(x, np.float64)
    s = np.zeros_like(m) if var_x is None else np.asarray(var_x, np.float64)
    layers, last = _cut_last_activations(net.layers)
    out_m, out_s, back = reference.chain(layers, m, s)
    jcb = np.ones_like(out_m)
    for layer in last:
        # The output update applies these Jacobians, so the backward pass starts before them.
        shape = out_m.shape
        probe = np.ones(shape)
        out_m, out_s, activation_back = reference.activation(layer, out_m, out_s)
        jcb = jcb * activation_back(probe, probe, {})[0]
    sums: dict = {}
    input_mu, input_var = back(*(np.asarray(d, np.float64).reshape(len(m), -1) for d in (delta_mu, delta_var)), sums)
    result = {"output mean": out_m, "output variance": out_s, "output Jacobian": jcb}
    result |= {"input delta mean": input_mu, "input delta variance": input_var}
    for k, leaf in enumerate(learned(net)):
        for name, value in zip(("mu_w", "var_w", "mu_b", "var_b"), sums[leaf], strict=True):
            result[f"delta_{name} of layer {k} {leaf!r}"] = value
    return result


def _cut_last_activations(layers: list) -> tuple[list, list]:
    """Splits activations off the end, those at the end of a block included."""
    flat: list = []
    for layer in layers:
        flat += _written_out(layer)
    end = len(flat)
    while end and type(flat[end - 1]) not in reference.LAYERS:
        end -= 1
    return flat[:end], flat[end:]


def _written_out(layer: nn.BaseLayer) -> list[nn.BaseLayer]:
    if isinstance(layer, nn.LayerBlock):
        return [leaf for inner in layer.layers for leaf in _written_out(inner)]
    return [layer]


def assert_matches_reference(net: nn.Sequential, batch: int = 5, seed: int = 1, tolerance: float = 2e-5, **options):
    """One pass of `net` with random parameters, inputs and deltas equals the float64 reference."""
    arguments = random_batch(randomise(net, seed), batch, seed, **options)
    expected = expected_pass(net, *arguments)
    assert_same(pass_through(net, *arguments), expected, tolerance)
