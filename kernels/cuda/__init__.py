"""CUDA kernels: the files, functions and argument order of `kernels.cpu`, over CuPy arrays (NumPy in the simulator).

Importing this package touches neither numba.cuda nor CuPy; a module is imported when it is first asked for.
"""

from importlib import import_module

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
]


def __getattr__(name: str):
    if name in __all__:
        room = "runtime" if name in ("array", "graph") else "layers"
        return import_module(f"{__name__}.{room}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
