"""What networks offer besides training and prediction: their parameters, files and layers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.files import atomic_write
from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.nn import csv_files, persistence, pytagi_format, state_dicts
from pytagi_ddp.nn.alone import alone
from pytagi_ddp.nn.arena import ParameterArena
from pytagi_ddp.nn.attributes import KnownAttributes
from pytagi_ddp.nn.inspection import Inspection, inspect
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.profile import Profile, profile
from pytagi_ddp.nn.recompute import is_block
from pytagi_ddp.nn.table import columns

if TYPE_CHECKING:
    from pytagi_ddp.nn.sequential import Sequential


class NetworkParameters(KnownAttributes, ABC):
    """Access to the parameters of a network: the part of `Sequential` that neither trains nor predicts.

    Attributes:
        arena: the memory of the parameters. kernels: those of the network's device.
    """

    arena: ParameterArena
    kernels: Kernels
    first_layer = 0  # the number of the first layer, counted in the whole network if this is a part of one
    _one_thread: Any

    @property
    @abstractmethod
    def layers(self) -> tuple[BaseLayer, ...]:
        """The layers as given."""

    def named_layers(self) -> Iterator[tuple[str, BaseLayer]]:
        """(state-dict key, layer) for every layer in forward order, a block before what is in it."""
        for index, layer in enumerate(self.layers, self.first_layer):
            yield from layer.named_layers(str(index))

    def named_leaves(self) -> Iterator[tuple[str, BaseLayer]]:
        """The layers of `named_layers` that compute: those inside blocks, but not the blocks."""
        return ((key, layer) for key, layer in self.named_layers() if not is_block(layer))

    @property
    def num_parameters(self) -> int:
        """Number of parameter means (there are as many variances)."""
        return self.arena.num_parameters

    @alone
    def parameters(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """(mu_w, var_w, mu_b, var_b) of every layer with parameters, in forward order; flat copies, empty if none."""
        host, learned = self.kernels.array.to_host, (leaf for leaf in self.arena.leaves if leaf.num_weights)
        return [(host(leaf.mu_w), host(leaf.var_w), host(leaf.mu_b), host(leaf.var_b)) for leaf in learned]

    @alone
    def state_dict(self, carried: bool = False) -> state_dicts.StateDict:
        """Parameters and running statistics by layer, see `state_dicts.StateDict`; copies on the host.

        Args:
            carried: whether to include what recurrent layers carry from call to call.

        Raises:
            FloatingPointError: on a GPU, if the last `step` met deltas that are not finite.
        """
        self.arena.check()
        return state_dicts.state_dict(self, carried)

    @alone
    def reset_state(self) -> None:
        """Sets what layers carry from call to call (the memory of recurrent layers) to the values of a new network."""
        for leaf in self.arena.leaves:
            for tensor in leaf.state_tensors():
                if tensor.kind == "carried":
                    initial = np.full(tensor.size, tensor.initial, np.float32)
                    self.kernels.array.copy(initial, leaf.state[tensor.name])

    @abstractmethod
    def drop_deltas(self) -> None:
        """Forgets the deltas that wait for a step."""

    @alone
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the values of `state_dict`, from this library or from pytagi (CPU or CUDA).

        Deltas that wait for a step are dropped, as they belong to the earlier parameters. Every method that loads
        does so.

        Raises:
            KeyError: layers are missing, or keys have no layer here. ValueError: sizes differ, or values are not finite
                or no variances. The message names all of them, and the network is as it was.
            RuntimeError: deltas are on their way to other ranks, with `DDPConfig(buckets=...)`: call step() first.
        """
        state_dicts.load_state_dict(self, state_dict)

    def params_from(self, other: "NetworkParameters") -> None:
        """Takes parameters and running statistics of a network with the same layers."""
        self.load_state_dict(other.state_dict())

    @alone
    def save(self, filename: str | Path, carried: bool = False) -> None:
        """Writes parameters, running statistics and architecture as safetensors; never leaves half a file.

        A file that is replaced keeps its permissions; a link is replaced by the file.

        Args:
            carried: whether to include what recurrent layers carry from call to call; `load` then restores it.

        Raises:
            ValueError: values that are NaN or infinite, which `load` would refuse; names them.
        """
        atomic_write(filename, persistence.to_bytes(self, carried=carried))

    @alone
    def load(self, filename: str | Path) -> None:
        """Reads a file of `save`, or a binary file of pytagi's `save`; drops deltas as `load_state_dict` does.

        Raises:
            ValueError: another architecture, or a truncated, changed or foreign file; names it, and the network is as
                it was. OSError: no such file, or no regular one.
        """
        persistence.load(self, filename)

    @alone
    def save_pytagi(self, filename: str | Path) -> None:
        """Writes the binary file that pytagi's `load` reads into the same network; never leaves half a file.

        Raises:
            ValueError: values that are NaN or infinite.
        """
        atomic_write(filename, pytagi_format.format_bytes(self))

    @alone
    def save_csv(self, filename: str | Path) -> None:
        """Writes four text files, `<filename>_1_mw.csv`, `_2_Sw.csv`, `_3_mb.csv`, `_4_Sb.csv`: a value per line.

        As in pytagi, they hold parameters only: after `load_csv` take the statistics of BatchNorm2d anew (`update_bn`).
        """
        csv_files.save_csv(self, filename)

    @alone
    def load_csv(self, filename: str | Path) -> None:
        """Reads the four files of `save_csv`."""
        csv_files.load_csv(self, filename)

    @alone
    def get_neg_var_w_counter(self) -> dict[str, int]:
        """Weights whose variance fell to 0 or below in the last step (and became 1e-5), by layer; equal layers add."""
        counts: dict[str, int] = {}
        negative = self.arena.negative_variances()
        for layer in self.layers:
            info = layer.get_layer_info()
            counts[info] = counts.get(info, 0) + sum(negative[id(leaf)] for leaf in layer.leaves())
        return counts

    @alone
    def get_norm_mean_var(self) -> dict[str, tuple[list, list, list, list]]:
        """Running means, running variances, batch means and variances of the BatchNorm2d, by layer of the network.

        A key is `<info of the layer>_<its number>`; each list has one array per BatchNorm2d in the layer, more than one
        in a block.
        """
        result = {}
        for index, layer in enumerate(self.layers, self.first_layer):
            found = (leaf.normalisation_moments() for leaf in layer.leaves())
            rows = [moments for moments in found if moments is not None]
            if rows:
                by_kind = zip(*rows, strict=True)
                a, b, c, d = ([self.kernels.array.to_host(moments) for moments in kind] for kind in by_kind)
                result[f"{layer.get_layer_info()}_{index}"] = (a, b, c, d)
        return result

    def get_layer_stack_info(self) -> str:
        """One line per layer: its name and sizes."""
        return "".join(f"{layer.get_layer_info()}\n" for layer in self.layers)

    def summary(self) -> str:
        """A table of all computing layers: key, output shape, parameters, and which layers are frozen."""
        rows = [("layer", "output", "parameters", "")]
        for key, leaf in self.named_leaves():
            parameters = f"{leaf.num_weights + leaf.num_biases:,}"
            rows.append((key, str(leaf.out_shape), parameters, "frozen" if leaf.frozen else ""))
        rows.append(("total", "", f"{self.num_parameters:,}", ""))
        if not any(mark for *_, mark in rows):
            return columns([row[:3] for row in rows], "<>>")
        return columns(rows, "<>><")

    @alone
    def inspect(self, x: ArrayLike, var_x: ArrayLike | None = None) -> Inspection:
        """What each layer has learnt, and the state of its units on a batch: `print(net.inspect(x))`.

        By layer: the share of outputs that are uncertain (sqrt(s) > |m|), dead and saturated; the signal to noise
        |mu|/sqrt(var) of the weights; the mean variance of the parameters over the prior's; and the share of parameters
        whose delta the cap cuts, once there has been a backward pass. `LayerInspection` defines each of them.

        The batch goes through a copy of the network, in evaluation mode: nothing of the network changes, and memory for
        a second one is needed meanwhile.

        Args:
            x, var_x: a batch of inputs, as for `forward`.

        Returns:
            An `Inspection`, whose `rows` hold the numbers; `pytagi_ddp.plot.inspection` draws it.

        Raises:
            ValueError: sizes that do not fit, or values that are not finite.
        """
        return inspect(cast("Sequential", self), x, var_x)

    def profile(self, x: ArrayLike, y: ArrayLike | None = None, repeat: int = 3) -> Profile:
        """Time and memory of a training step by layer: `print(net.profile(x))`.

        The steps are those of a copy of the network, in training mode: parameters, statistics, deltas and outputs stay
        as they are, and memory for a second network of this batch size is needed meanwhile. On a GPU every layer is
        waited for, so that the sum is more than the time of a step in which layers overlap.

        Args:
            x: a batch of inputs, as for `forward`.
            y: its observations; without them 0 is observed. Times hardly depend on it.
            repeat: steps after one that warms up; times are medians over them.

        Returns:
            A `Profile`, whose `rows` hold key, layer, forward_ms, backward_ms, memory (bytes) and share.

        Raises:
            ValueError: sizes that do not fit, values that are not finite, or repeat < 1.
        """
        return profile(cast("Sequential", self), x, y, repeat)
