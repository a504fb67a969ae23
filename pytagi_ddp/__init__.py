"""Bayesian neural networks by Tractable Approximate Gaussian Inference (TAGI), trained data-parallel over MPI."""

from importlib import import_module
from typing import TYPE_CHECKING

from pytagi_ddp import _version, cuda, metric, moved, nn
from pytagi_ddp.metric import HRCSoftmaxMetric
from pytagi_ddp.nn.core import fitting
from pytagi_ddp.nn.core.init import manual_seed
from pytagi_ddp.nn.hierarchical_softmax import HRCSoftmax
from pytagi_ddp.tagi_utils import Normalizer, Utils, exponential_scheduler

__all__ = [
    "HRCSoftmax",
    "HRCSoftmaxMetric",
    "Normalizer",
    "Utils",
    "cuda",
    "exponential_scheduler",
    "manual_seed",
    "metric",
    "nn",
]

moved.install()
fitting.find_loop = lambda: import_module(f"{__name__}.training.trainer").fit

if TYPE_CHECKING:
    from pytagi_ddp import (  # noqa: F401
        checkpoint,
        data,
        distributed,
        estimators,
        forecasting,
        likelihoods,
        models,
        onnx,
        plot,
        training,
    )

    __version__: str
else:
    _LATER = ["checkpoint", "data", "distributed", "estimators", "forecasting", "likelihoods", "models", "onnx"]
    _LATER += ["plot", "training"]

    def __dir__():
        return [*__all__, *_LATER, "__version__", "arrays", "tagi_utils"]

    def __getattr__(name):
        """Packages that are imported at their first use, and `__version__`, which is set in pyproject.toml."""
        if name in _LATER:
            return import_module(f"{__name__}.{name}")
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, _version.version())
