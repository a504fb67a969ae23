"""The mode of a network: training, or evaluation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytagi_ddp.nn.alone import alone
from pytagi_ddp.nn.network_parameters import NetworkParameters

if TYPE_CHECKING:
    from typing_extensions import Self


class NetworkModes(NetworkParameters):
    """The part of `Sequential` that switches between training and evaluation."""

    _passes: Any  # the network's `Passes`
    _training = True
    _of_one_mode = True  # False: some layer may be in the other mode

    @abstractmethod
    def forget_graphs(self) -> None:
        """Drops recorded passes."""

    def train(self, mode: bool = True) -> Self:
        """Training mode: batch statistics come from the batch, and `backward` may follow a forward pass.

        Args:
            mode: False: evaluation mode, as by `eval`.

        Returns:
            The network.
        """
        if not mode:
            return self.eval()
        self._set_training(True)
        return self

    @alone
    def eval(self) -> Self:
        """Evaluation mode: running statistics, and no change of state by a forward pass.

        Returns:
            The network.

        Raises:
            FloatingPointError: on a GPU, if the last `step` met deltas that are not finite.
        """
        self.arena.check()
        self._set_training(False)
        return self

    @property
    def training(self) -> bool:
        """Whether the network is in training mode; assigning it calls `train` or `eval`."""
        return self._training

    @training.setter
    def training(self, value: bool) -> None:
        self.train() if value else self.eval()

    @alone
    def _set_training(self, training: bool) -> None:
        layers = [layer for _, layer in self.named_layers()]
        if any(layer.training != self.training for layer in layers):  # recorded passes have these layers frozen
            self.has_layers_of_other_modes()
        self._training, self._of_one_mode = training, True
        for layer in layers:
            layer._training = layer._way_back = training

    @alone
    def has_layers_of_other_modes(self) -> None:
        """Notes that the mode of a single layer was set; no backward pass can follow an earlier forward pass then."""
        self._of_one_mode = False
        self._passes.end_ways_back()
        self.forget_graphs()

    @contextmanager
    def in_mode(self, training: bool) -> Iterator[None]:
        """Training or evaluation mode inside the block; restores the earlier mode, and that of frozen layers."""
        before, frozen = self.training, [layer for _, layer in self.named_layers() if layer.training != self.training]
        try:
            self.train() if training else self.eval()
            yield
        finally:
            self._set_training(before)
            for layer in frozen:
                layer._training = not before
            if frozen:
                self.has_layers_of_other_modes()
