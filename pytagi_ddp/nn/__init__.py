"""Layers, networks and output updates, with pytagi's names and arguments."""

from difflib import get_close_matches
from typing import TYPE_CHECKING

from pytagi_ddp.nn.convert.posterior_average import PosteriorAverage
from pytagi_ddp.nn.convert.torch_modules import from_torch
from pytagi_ddp.nn.convert.torch_state import load_torch_state_dict, to_torch_state_dict
from pytagi_ddp.nn.core.attributes import TORCH
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.core.deferred import deferred_init
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.state import Delta, Shape, State
from pytagi_ddp.nn.core.step import Change
from pytagi_ddp.nn.hierarchical_softmax import HRCSoftmax
from pytagi_ddp.nn.layers.activation import (
    ELU,
    Activation,
    ClosedFormSoftmax,
    EvenExp,
    LeakyReLU,
    MixtureReLU,
    MixtureSigmoid,
    MixtureTanh,
    ReLU,
    Remax,
    Sigmoid,
    Softmax,
    Softplus,
    Tanh,
)
from pytagi_ddp.nn.layers.attention import MultiheadAttention
from pytagi_ddp.nn.layers.batch_norm import BatchNorm2d
from pytagi_ddp.nn.layers.conv2d import Conv2d
from pytagi_ddp.nn.layers.convtranspose2d import ConvTranspose2d
from pytagi_ddp.nn.layers.embedding import Embedding
from pytagi_ddp.nn.layers.encoding import PiecewiseLinearEncoding
from pytagi_ddp.nn.layers.layer_block import LayerBlock
from pytagi_ddp.nn.layers.layer_norm import LayerNorm
from pytagi_ddp.nn.layers.linear import Linear
from pytagi_ddp.nn.layers.lstm import LSTM, TLSTM
from pytagi_ddp.nn.layers.parallel import Parallel
from pytagi_ddp.nn.layers.pixels import Pixels
from pytagi_ddp.nn.layers.pooling import AvgPool2d, MaxPool2d
from pytagi_ddp.nn.layers.resnet_block import ResNetBlock
from pytagi_ddp.nn.layers.rmsnorm import RMSNorm
from pytagi_ddp.nn.layers.slinear import SLinear
from pytagi_ddp.nn.layers.slstm import SLSTM
from pytagi_ddp.nn.run.evidence import EvidenceSchedule
from pytagi_ddp.nn.run.output_updater import OutputUpdater
from pytagi_ddp.nn.run.passes import Passes
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.tools.features import FeatureDensity
from pytagi_ddp.nn.tools.update_bn import update_bn

__all__ = [
    "ELU",
    "LSTM",
    "SLSTM",
    "TLSTM",
    "Activation",
    "AvgPool2d",
    "BaseDeltaStates",
    "BaseHiddenStates",
    "BaseLayer",
    "BatchNorm2d",
    "Change",
    "ClosedFormSoftmax",
    "Conv2d",
    "ConvTranspose2d",
    "DDPConfig",
    "DDPSequential",
    "Delta",
    "Embedding",
    "EvenExp",
    "EvidenceSchedule",
    "FSDPSequential",
    "FeatureDensity",
    "HRCSoftmax",
    "LayerBlock",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "MixtureReLU",
    "MixtureSigmoid",
    "MixtureTanh",
    "MultiheadAttention",
    "OutputUpdater",
    "Parallel",
    "Passes",
    "PiecewiseLinearEncoding",
    "PipelineSequential",
    "Pixels",
    "PosteriorAverage",
    "RMSNorm",
    "ReLU",
    "Remax",
    "ResNetBlock",
    "SLinear",
    "Saved",
    "Sequential",
    "Shape",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "State",
    "Tanh",
    "balance_by_size",
    "balance_by_time",
    "deferred_init",
    "from_torch",
    "load_torch_state_dict",
    "to_torch_state_dict",
    "update_bn",
]

if TYPE_CHECKING:
    from pytagi_ddp.distributed import (
        DDPConfig,
        DDPSequential,
        FSDPSequential,
        PipelineSequential,
        balance_by_size,
        balance_by_time,
    )
else:  # hidden from type checkers: by it, every name would exist

    def __dir__():
        return __all__

    def __getattr__(name):
        """Imports wrappers for many ranks at their first use, so that `import pytagi_ddp` stays fast."""
        if name in __all__:  # and not here yet
            from pytagi_ddp import distributed

            return getattr(distributed, name)
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        names = {own.lower(): own for own in __all__}
        lower = name.lower()
        near = [names[own] for own in ([lower] if lower in names else get_close_matches(lower, names, 3, 0.6))]
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(__all__)}"
        hint = TORCH.get(name, hint)
        raise AttributeError(f"{__name__} has no {name!r}; {hint}")
