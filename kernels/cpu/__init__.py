"""CPU kernels: BLAS products driven from Cython, everything else Numba loops over the formulas."""

from pytagi_ddp.kernels.cpu import (
    activation,
    array,
    batch_norm,
    conv2d,
    convtranspose2d,
    elementwise,
    embedding,
    graph,
    layer_norm,
    linear,
    merge,
    output_update,
    pooling,
    softmax,
    step,
    threads,
)

__all__ = [
    "activation",
    "array",
    "batch_norm",
    "conv2d",
    "convtranspose2d",
    "elementwise",
    "embedding",
    "graph",
    "layer_norm",
    "linear",
    "merge",
    "output_update",
    "pooling",
    "softmax",
    "step",
    "threads",
]
