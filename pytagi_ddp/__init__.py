"""Bayesian neural networks by Tractable Approximate Gaussian Inference (TAGI), trained data-parallel over MPI."""

from importlib.metadata import PackageNotFoundError, version

from pytagi_ddp import cuda, metric, nn
from pytagi_ddp.metric import HRCSoftmaxMetric
from pytagi_ddp.nn.hierarchical_softmax import HRCSoftmax
from pytagi_ddp.nn.init import manual_seed
from pytagi_ddp.tagi_utils import Normalizer, Utils, exponential_scheduler

try:
    __version__ = version("pytagi-ddp")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

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
