"""Fully sharded data parallelism: every rank has a part of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.distributed.communicator import Ranks
from pytagi_ddp.distributed.config import DDPConfig, strategies_asked_for
from pytagi_ddp.distributed.engine.error_propagation import errors_of_all_ranks
from pytagi_ddp.distributed.exchange import Options
from pytagi_ddp.distributed.gathering import Gathering
from pytagi_ddp.distributed.sharded import ShardedNetwork
from pytagi_ddp.distributed.sharded_arena import ShardedArena
from pytagi_ddp.distributed.trained_on_ranks import TrainedOnRanks
from pytagi_ddp.distributed.wrapper import collective
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.core.alone import alone
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.nn.files.architecture import architecture, sizes
from pytagi_ddp.nn.files.persistence import check_path, to_bytes
from pytagi_ddp.nn.files.state_dicts import StateDict, Values, check, put
from pytagi_ddp.nn.run.rebuild import change_storage
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.validate import as_bools, as_integers


class FSDPSequential(ShardedNetwork, TrainedOnRanks):
    """A `Sequential` trained on R ranks, each with a shard of the parameters: fully sharded data parallelism.

    The training loop and the results are those of `DDPSequential`; they have the same bits if the all-reduce adds in
    the order of `Communicator.reduce_scatter`.

    Mean, variance and both batch sums of every parameter, 16 bytes, are divided into R shards. Layers are divided into
    groups of at most `min_num_params` parameters (or one larger layer). The means and variances of a group are gathered
    before its forward pass, and its means before its backward pass. Then its batch sums are added over ranks, and each
    rank keeps those of its shard. Each rank makes the step on its shards. With P parameters, and G in the largest
    group, a rank has, and sends in a step:

        reshard_after_forward       bytes of memory         bytes sent
        True (ZeRO-3)               16 P/R + 16 G           20 P (R-1)/R
        False (ZeRO-2)              8 P + 8 P/R + 8 G       16 P (R-1)/R
        DDPSequential               16 P                    16 P (R-1)/R

    and the memory of activations (`checkpoint_blocks` reduces it; a block that is run again gathers once more). For a
    network on a GPU, `DDPConfig.offload_params` keeps the shards, and makes the step, on the host.

    With `reshard_after_forward=False`, parameters are whole on every rank, and are gathered once after each step.
    Forward passes in evaluation mode, `predict`, `state_dict` and `save` are then local, as with `DDPSequential`. With
    True, every pass is collective, and so are `predict`, `state_dict` and `save`; parameters can only be read inside
    `unshard`, otherwise `ParametersNotHereError` is raised. `load` and `load_state_dict` are collective in both cases.
    Ranks may run different numbers of passes: a rank in `step` takes part in the passes of others.

    The constructor gives all ranks the parameters and statistics of rank 0, and drops pending deltas. A network made
    inside `nn.deferred_init` is drawn layer by layer, so that no rank ever has all of it.

    Args:
        model, config, average, sync_batch_norm, communicator: as in `DDPSequential`.
        reshard_after_forward: see above.
        min_num_params: the largest number of parameters in a group, unless a single layer has more.

    Attributes:
        model, config, average, communicator, stop_requested: as in `DDPSequential`.
        nbytes: memory of parameters, batch sums and statistics on this rank's device.

    Raises:
        ValueError: another architecture or other options on some rank; a config with buckets or another `wire_dtype`; a
            network that is already in shards; a negative `min_num_params`. TypeError: not a `Sequential`, or not a
            `DDPConfig`; a `min_num_params` that is not an integer.

    Source: Rajbhandari et al. (2020), arXiv:1910.02054 (ZeRO); Zhao et al. (2023), arXiv:2304.11277 (FSDP).
    """

    reshard_after_forward: bool
    _settled = (*TrainedOnRanks._settled, "reshard_after_forward", "min_num_params", "sync_batch_norm")
    _exchange: Gathering

    def __init__(
        self,
        model: Sequential,
        config: DDPConfig | None = None,
        average: bool = True,
        *,
        reshard_after_forward: bool = True,
        min_num_params: int = 1_000_000,
        sync_batch_norm: bool = False,
        communicator: Ranks | None = None,
    ):
        super().__init__(model, DDPConfig() if config is None else config, average)
        reshard_after_forward, sync_batch_norm = as_bools(
            "FSDPSequential", reshard_after_forward=reshard_after_forward, sync_batch_norm=sync_batch_norm
        )
        as_integers("FSDPSequential", 0, min_num_params=min_num_params)
        given = Options(self.config, model.device, self.average, sync_batch_norm=sync_batch_norm)
        if asked := strategies_asked_for(given):
            names = " and ".join(strategy.option for strategy in asked)
            raise ValueError(f"FSDPSequential exchanges deltas group by group, in float32: leave out {names}")
        self.reshard_after_forward, offloaded = reshard_after_forward, self.config.offload_params
        self._connect(
            communicator,
            {
                "reshard_after_forward": reshard_after_forward,
                "min_num_params": min_num_params,
                "sync_batch_norm": sync_batch_norm,
            },
        )
        if offloaded and (model.device == "cpu" or not reshard_after_forward):
            raise ValueError(
                "offload_params takes shards from a GPU to the host: it needs a network on a GPU, and "
                f"reshard_after_forward=True; got one on {model.device}, and {reshard_after_forward}"
            )
        make = partial(
            ShardedArena,
            communicator=self.communicator,
            min_num_params=min_num_params,
            whole=not reshard_after_forward,
            offloaded=offloaded,
        )
        change_storage(model, make)
        self._exchange = Gathering(self.communicator, model, given)
        model.trainer = self
        self._made = True

    @property
    def nbytes(self) -> int:
        return self.model.arena.nbytes

    @property
    def _all_are_here(self) -> bool:
        """Whether this rank has all parameters now."""
        return not self.reshard_after_forward or self._exchange.unsharded

    def _begin(self, name: str, in_no_sync: bool = False) -> None:
        super()._begin(name, in_no_sync)
        if self._exchange.unsharded:
            raise RuntimeError(f"{name}() inside unshard(): leave it first, on every rank")

    @contextmanager
    def unshard(self) -> Iterator[None]:
        """Inside the block every rank has all parameters; collective. PyTorch's FSDP calls it `summon_full_params`.

            with net.unshard():
                print(net.model.layers[0].mu_w)
                net.predict(x)  # local

        Assignments inside are kept; every rank has to make the same ones. Training inside is not possible.
        """
        self._begin("unshard")
        with self._exchange.unshard():
            yield

    def predict(
        self, x: ArrayLike, batch_size: int = 256, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.predict` on this rank's samples; with `reshard_after_forward` collective, except in `unshard`.

        A rank that has no samples to predict takes part in its next `step` or `predict`.
        """
        with nullcontext() if self._all_are_here else held_back():
            return super().predict(x, batch_size, var_x)

    def smoother(self) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.smoother` of this rank's series; collective if `predict` is."""
        if self._all_are_here:
            return super().smoother()
        with held_back(), self.unshard():
            return super().smoother()

    # -- all parameters ---------------------------------------------------------------------------------------

    def state_dict(self, full: bool = True) -> StateDict:
        """Parameters and running statistics.

        Args:
            full: True: those of the whole network. With `reshard_after_forward` this is collective, and ranks other
                than 0 get an empty dictionary. False: the slices of this rank (see `slices`); this is local. A key is
                then a tensor and a range of its values: `"Linear.2/mu_w@16:32"`.
        """
        if not full:
            named = ((f"{part.name}@{part.start}:{part.stop}", part.array) for part in self.slices())
            return StateDict((name, (self.to_host(array),)) for name, array in named)
        if self._all_are_here:
            return super().state_dict()
        with held_back(), self._reading("state_dict"):
            return super().state_dict() if self.rank == 0 else StateDict()

    @contextmanager
    def _reading(self, kind: str) -> Iterator[None]:
        """Inside the block, rank 0 can read all parameters; collective, and errors are raised on all ranks."""
        if not self._all_are_here:
            self._exchange.synchronize(kind)
        reading = nullcontext() if self._all_are_here else self._exchange.arena.reading()
        with errors_of_all_ranks(self.communicator), reading:
            yield

    @collective
    def to_bytes(self, extra: dict[str, str] | None = None) -> bytes:
        """The whole network as one file, on rank 0 (nothing elsewhere); collective.

        Args:
            extra: further metadata.

        Raises:
            ValueError: values that are NaN or infinite; raised on every rank, as is any other error.
        """
        with self._reading("save"):
            return to_bytes(self.model, extra) if self.rank == 0 else b""

    @collective
    def save(self, filename: str | bytes | Path) -> None:
        """`Sequential.save` of the whole network on rank 0; with `reshard_after_forward` collective, except in
        `unshard`.

        Raises:
            ValueError, OSError: as `Sequential.save`; on every rank if it is collective.
        """
        if not self._all_are_here:
            super().save(filename)
        elif self.rank == 0:
            self.model.save(filename)

    def load(self, filename: str | bytes | Path) -> None:
        """`Sequential.load`; every rank reads the file, keeps its slices and drops its deltas.

        It is collective, except inside `unshard`. If one rank cannot load the file, no rank does. Ranks that have run
        fewer passes first take part in those of others.
        """
        self._load(partial(check_path, self.model, filename))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """`Sequential.load_state_dict`, with the same values on every rank; collective like `load`."""
        self._load(partial(check, self.model, state_dict))

    @alone
    def _load(self, checked: Callable[[], Values]) -> None:
        if self._exchange.unsharded:
            put(self.model, checked())
            self.parameters_changed()
            return
        with held_back():
            self._exchange.synchronize("load")  # no rank reads parameters that are about to change
            with errors_of_all_ranks(self.communicator):
                values = checked()
            try:
                with self._exchange.arena.writing():
                    put(self.model, values)
            finally:  # also after an error, because gathered parameters were overwritten
                self.parameters_changed()

    def slices(self) -> list[TensorSpec]:
        """The parts of tensors on this rank, and their memory.

        Each has a `name` ("Linear.2/mu_w"), the range `start` to `stop` of the values in `array`, and the `size` of the
        whole tensor.

        The N parameters of a group form one row: weights and biases of its first layer, then of its second, ... Rank r
        has the values [r n, (r + 1) n) of that row, n = 16 ceil(N / 16 R), of means and variances: at most one part of
        each tensor. Running statistics are whole on every rank; rank 0 saves them.
        """
        arena = self._exchange.arena
        self._exchange.keep_changes()
        found = []
        for spec in arena.tensors:
            if spec.kind == "running":
                found.append(spec.having(array=arena.values(spec), saved=self.rank == 0))
            elif spec.kind == "learned":
                group = arena.group_of[arena.leaves[spec.leaf]]
                begin, end = (group.start + place for place in group.own(self.rank))
                if part := spec.clipped(begin, end):
                    row = arena.sections[group].own_theta[spec.variance]
                    found.append(part.having(array=row[part.begin - begin : part.end - begin]))
        return found

    @property
    def architecture(self) -> str:
        return architecture(self.model)

    @property
    def sizes(self) -> str:
        return sizes(self.model)

    def take(self, values: list[tuple[TensorSpec, np.ndarray]]) -> None:
        """Sets new values of slices; collective.

        Raises:
            RuntimeError: inside `unshard`, whose end would restore the old values.
        """
        if self._exchange.unsharded:
            raise RuntimeError("new values of slices inside unshard(): leave it first, on every rank")
        self._exchange.synchronize("load")
        self.model.drop_deltas()
        for part, new in values:
            on_host = isinstance(part.array, np.ndarray)
            (self._exchange.arena.keeper if on_host else self.model.kernels).array.copy(new, part.array)
        self._exchange.arena.share()
        self.parameters_changed()
