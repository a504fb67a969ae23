"""CPU kernels: BLAS products driven from Cython, everything else Numba loops over the formulas."""

from pytagi_ddp.kernels.cpu.layers import (
    activation,
    attention,
    batch_norm,
    conv2d,
    convtranspose2d,
    elementwise,
    embedding,
    layer_norm,
    likelihood,
    linear,
    merge,
    output_update,
    pooling,
    recurrent,
    softmax,
    step,
)
from pytagi_ddp.kernels.cpu.runtime import array, graph, threads

__all__ = [
    "activation",
    "array",
    "attention",
    "batch_norm",
    "conv2d",
    "convtranspose2d",
    "elementwise",
    "embedding",
    "graph",
    "layer_norm",
    "likelihood",
    "linear",
    "merge",
    "output_update",
    "pooling",
    "recurrent",
    "softmax",
    "step",
    "threads",
]
