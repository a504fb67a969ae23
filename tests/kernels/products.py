"""Dense layers, convolutions and transposed ones: random operands, calls of their kernels, and the sums in float64.

A case is (batch, inputs, outputs) of a dense layer, which is a convolution of images of one pixel; or (batch, height,
width, channels, outputs, kernel, stride, zeros at top/left, zeros at bottom/right) of a convolution. A transposed one
goes from the outputs of a case to its inputs.
"""

from functools import cache

import numpy as np

from pytagi_ddp.kernels.cpu.layers import conv2d, convtranspose2d, linear
from pytagi_ddp.kernels.tensors import Delta, State, Tensor

KERNELS = {"linear": linear, "conv2d": conv2d, "convtranspose2d": convtranspose2d}


def whole(case: tuple) -> tuple:
    return case if len(case) == 9 else (case[0], 1, 1, *case[1:], 1, 1, 0, 0)


def window(case: tuple) -> tuple:
    """The arguments of a kernel behind its arrays."""
    return case[6:8] if len(case) == 9 else ()


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def operands(kind: str, case: tuple, draw=normal) -> dict[str, np.ndarray]:
    """All that a forward and a backward call read; deltas of the variance are negative as they are in training."""
    batch, height, width, channels, outputs, k, stride, before, after = whole(case)
    sides = [(n + before + after - k) // stride + 1 for n in (height, width)]
    image, out, weights = (batch, height, width, channels), (batch, *sides, outputs), (outputs, channels, k, k)
    if kind == "linear":
        image, out, weights = image[::3], out[::3], weights[:2]
    elif kind == "convtranspose2d":
        image, out = out, image
    shapes = {"mu": image, "var": image, "jcb": image, "w": weights, "s": weights, "b": out[-1:], "sb": out[-1:]}
    rng = np.random.default_rng(0)
    a = {name: draw(rng, *shape) for name, shape in (shapes | {"dm": out, "ds": out}).items()}
    return a | {name: a[name] ** 2 for name in ("var", "s", "sb")} | {"ds": -(a["ds"] ** 2)}


def forward(kernels, case, a, var=True, bias=True) -> np.ndarray:
    """(2, ...): means and variances of the outputs."""
    out = np.full((2, *a["dm"].shape), np.nan, np.float32)
    x, weights = State(a["mu"], a["var"] if var else None), Tensor(a["w"], a["s"])
    kernels.forward(x, weights, Tensor(a["b"], a["sb"]) if bias else None, State(*out), *window(case))
    return out


def backward(kernels, case, a, jcb=True, state=True, bias=True, accumulate=False, start=np.nan) -> list[np.ndarray]:
    """Deltas of inputs, and sums of weights and biases, onto `start`; (2, ...) each."""
    into, sums, bias_sums = (np.full((2, *a[name].shape), start, np.float32) for name in ("mu", "w", "b"))
    x, weights = State(a["mu"], a["var"], a["jcb"] if jcb else None), Tensor(a["w"], a["s"], *sums)
    biases = Tensor(a["b"], a["sb"], *bias_sums) if bias else None
    deltas = Delta(a["dm"], a["ds"]), weights, biases, Delta(*into) if state else None
    kernels.backward(x, *deltas, *window(case), accumulate)
    return [into, sums, bias_sums]


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * max(np.abs(expected).max(), 1e-30))


def taps(case, out_shape):
    """For each kernel element (r, q): the slice of the padded image that it multiplies."""
    k, stride = case[5:7]
    for r, q in np.ndindex(k, k):
        rows = slice(r, r + stride * (out_shape[1] - 1) + 1, stride)
        yield r, q, (slice(None), rows, slice(q, q + stride * (out_shape[2] - 1) + 1, stride))


def pad(case, x):
    return np.pad(x.astype(np.float64), ((0, 0), case[7:], case[7:], (0, 0)))


def convolve(case, x, w, out_shape):
    x, out = pad(case, x), np.zeros(out_shape)
    for r, q, seen in taps(case, out_shape):
        out += np.einsum("byxc,oc->byxo", x[seen], w[:, :, r, q].astype(np.float64), optimize=True)
    return out


def adjoint(case, d, w, in_shape):
    x = pad(case, np.zeros(in_shape))
    for r, q, seen in taps(case, d.shape):
        x[seen] += np.einsum("byxo,oc->byxc", d.astype(np.float64), w[:, :, r, q].astype(np.float64), optimize=True)
    return x[:, case[7] : case[7] + in_shape[1], case[7] : case[7] + in_shape[2]]


def weight_sums(case, x, d, w_shape):
    x, g = pad(case, x), np.zeros(w_shape)
    for r, q, seen in taps(case, d.shape):
        g[:, :, r, q] = np.einsum("byxo,byxc->oc", d.astype(np.float64), x[seen], optimize=True)
    return g


@cache
def expected(kind: str, case: tuple) -> dict[str, np.ndarray]:
    """Of `operands(kind, case)`, by name and in their shapes.

    `out_mu`: means without bias; `of_var`, `of_mu`: what variances and means of inputs add to variances of outputs;
    `in_mu`, `in_var`: deltas of inputs without Jacobian; `w_mu`, `w_var`, `b_mu`, `b_var`: sums of weights and biases.
    """
    given, case, backwards = operands(kind, case), whole(case), kind == "convtranspose2d"
    a = {name: x.astype(np.float64) for name, x in given.items()}
    for name in ("mu", "var", "dm", "ds") if kind == "linear" else ():
        a[name] = a[name][:, None, None]
    w, s = (a[name].reshape(*a[name].shape[:2], case[5], case[5]) for name in ("w", "s"))
    ahead, back = (adjoint, convolve) if backwards else (convolve, adjoint)
    sums = {
        name: weight_sums(case, *((d, x) if backwards else (x, d)), w.shape)
        for name, x, d in (("w_mu", a["mu"], a["dm"]), ("w_var", a["mu"] ** 2, a["ds"]))
    }
    found = sums | {
        "out_mu": ahead(case, a["mu"], w, a["dm"].shape),
        "of_var": ahead(case, a["var"], w**2 + s, a["dm"].shape),
        "of_mu": ahead(case, a["mu"] ** 2, s, a["dm"].shape),
        "in_mu": back(case, a["dm"], w, a["mu"].shape),
        "in_var": back(case, a["ds"], w**2, a["mu"].shape),
        "b_mu": a["dm"].sum((0, 1, 2)),
        "b_var": a["ds"].sum((0, 1, 2)),
    }
    like = {"w": "w", "b": "b", "i": "mu", "o": "dm"}
    return {name: array.reshape(given[like[name[0]]].shape) for name, array in found.items()}
