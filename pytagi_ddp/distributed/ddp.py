"""Data-parallel training: every rank a replica, one all-reduce per step."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.distributed.buckets import Buckets
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.compare import compare_networks
from pytagi_ddp.distributed.config import DDPConfig
from pytagi_ddp.distributed.engine.placement import choose_device
from pytagi_ddp.distributed.exchange import EveryStep, Exchange, pool_statistics
from pytagi_ddp.distributed.merge import MERGES, PosteriorMerge
from pytagi_ddp.distributed.replica import Replica
from pytagi_ddp.distributed.sync_batch_norm import SyncBatchNorm
from pytagi_ddp.distributed.wire import HalfPrecisionSum
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.data_struct import BaseHiddenStates
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.update_bn import StatisticsChange, take_statistics


class DDPSequential(Replica):
    """A `Sequential` trained on R ranks, each with its own share of every batch.

    Construction broadcasts rank 0's parameters and running statistics. `step` adds the batch sums of all ranks with
    one all-reduce over one contiguous buffer, then every rank takes the same capped step: parameters stay equal to
    the last bit. `forward`, `backward`, `predict`, `state_dict`, `save` and `load` are local: no rank waits for
    another there. `update_bn` is collective; a deep network with BatchNorm2d needs it before it is evaluated or saved,
    as its running statistics lag behind the steps (see there).

    With n_r samples on rank r since the last step, n their sum, and R_a the ranks that have any:

        average=False:  the step of one process that saw all n samples (sum of deltas, cap factor c(n)).
        average=True:   sum / R_a, cap factor c(ceil(n / R_a)): as pytagi, the default.

    The average throws evidence away: on a linear model (20 weights, 4 ranks x 4 samples, 100 steps) its posterior
    variances came out 4.8 times the exact ones. The sum, like any large TAGI batch, can overshoot: there its variances
    were right, but its means 18 standard deviations off, and those of the average 2.5 (`benchmarks.aggregation`). On
    MNIST (4 ranks x 16 samples, one epoch) sum and average reached 4.9 and 4.2 % error with sigma_v = 0.1, and 4.1 and
    6.3 % with sigma_v = 1 (`benchmarks.merging`).

    A network on a GPU goes to the GPU of its rank (that of a single rank stays), and any network does with
    `backend="nccl"`. There no step waits for the GPU; `stop_requested` does, when it is read.

    BatchNorm2d normalises by each rank's own batch; its running statistics come from all ranks, in the same
    all-reduce, so that they are equal everywhere too. With `sync_batch_norm`, it normalises by the batches of all
    ranks: R ranks are then one process with the global batch for every network. That takes a small all-reduce for
    every BatchNorm2d in each forward pass in training mode, which so becomes collective, and one more in each step,
    which waits for a GPU. Ranks may run different numbers of passes in a step.

    With `every=k`, ranks meet less often: each takes k steps with its own deltas (no averaging), then `merge` gives all
    ranks one posterior, see `pytagi_ddp.distributed.merge.PosteriorMerge`. In between, replicas differ.

    Ctrl-C is answered at the end of a call in which ranks meet, or where it waits for other ranks, which ends the job:
    so no rank is left in the middle of a step, and a single process (in a notebook, say) goes on with the next forward.

    A network belongs to the last DDPSequential that was made of it. Copy or pickle `model`: that gives a network of its
    own, which meets no ranks.

    Args:
        model: the network, of the same layers on every rank.
        config: how to communicate; None: `DDPConfig()`.
        average: aggregation of the deltas, see above.
        sync_batch_norm: batch statistics over all ranks, see above.
        every: steps between two exchanges.
        merge: what `every` above 1 makes of the ranks' posteriors, "precision_weighted" or "mean".
        communicator: of the ranks that train the network; None: that of `pytagi_ddp.distributed.initialize`, if it has
            been called for this backend and `config` asks for nothing else, or a new one.

    Attributes:
        model: the wrapped network. config, average: as given. communicator: rank, world_size, all_reduce, ...
        stop_requested: whether a rank had called `request_stop` before the last exchange.
        steps_since_merge: steps that only this rank knows of; 0 unless `every` is above 1.

    Raises:
        ValueError: another architecture or other options on some rank; the message names the first difference. Options
            that are out of range, or exclude each other. TypeError: no `Sequential`, or no `DDPConfig`.
    """

    def __init__(
        self,
        model: Sequential,
        config: DDPConfig | None = None,
        average: bool = True,
        *,
        sync_batch_norm: bool = False,
        every: int = 1,
        merge: str = "precision_weighted",
        communicator: Communicator | None = None,
    ):
        c = DDPConfig() if config is None else config
        if not isinstance(model, Sequential) or not isinstance(c, DDPConfig):
            given = f"{type(model).__name__} and {type(c).__name__}"
            raise TypeError(f"DDPSequential takes a Sequential and a DDPConfig, got {given}")
        if merge not in MERGES:
            raise ValueError(f"merge must be one of {', '.join(map(repr, MERGES))}, got {merge!r}")
        c.check(model.device, every, sync_batch_norm)
        self.model, self.config, self.average, self.every = model, c, average, every
        self.communicator = c.connect(model.device) if communicator is None else c.accept(communicator)
        ours_to_choose = c.device_ids is not None or self.communicator.local_world_size > 1
        if self.communicator.backend == "nccl" or (model.device != "cpu" and ours_to_choose):
            model.to_device(f"cuda:{choose_device(self.communicator.local_rank, c.device_ids)}")
        self._stop = False
        self._in_no_sync = False
        options = {"average": average, "sync_batch_norm": sync_batch_norm, "every": every, "merge": merge}
        compare_networks(self.communicator, model, options | {"wire_dtype": c.wire_dtype, "buckets": c.buckets})
        self._exchange = self._make_exchange(sync_batch_norm, merge)
        model.trainer = self
        self.synchronize()

    def _make_exchange(self, sync_batch_norm: bool, merge: str) -> Exchange:
        model, communicator, c = self.model, self.communicator, self.config
        pool_statistics(model, self.every == 1 and not sync_batch_norm)
        if self.every > 1:
            return PosteriorMerge(communicator, model, merge, self.every)
        sync = SyncBatchNorm(communicator, model) if sync_batch_norm else None
        if c.buckets > 1:
            return Buckets(communicator, model, self.average, sync, c.buckets)
        if c.wire_dtype == "float32":
            return EveryStep(communicator, model, self.average, sync=sync)
        half = HalfPrecisionSum(communicator, c.wire_dtype)
        return EveryStep(communicator, model, self.average, lambda: half.reduce_deltas(model.arena), sync)

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def world_size(self) -> int:
        return self.communicator.world_size

    def synchronize(self) -> None:
        """Gives every rank the parameters and running statistics of rank 0. Collective: all ranks must call it."""
        arena = self.model.arena
        self.communicator.broadcast(arena.theta)
        self.communicator.broadcast(arena.statistics)
        self.parameters_changed()

    def parameters_changed(self) -> None:
        """To be called on every rank when all have been given other parameters, past the methods of this class."""
        self._exchange.parameters_changed()

    # -- training ---------------------------------------------------------------------------------------------

    def forward(
        self, mu_x: ArrayLike | BaseHiddenStates, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.forward` on this rank's share of the batch."""
        self._exchange.before_forward()
        with self._exchange.around_forward():
            return self.model.forward(mu_x, var_x)

    __call__ = forward

    def backward(self) -> None:
        """`Sequential.backward` on this rank; communicates nothing, unless there are `buckets`."""
        self._exchange.backward(last=not self._in_no_sync)

    def step(self) -> None:
        """Adds the deltas of all ranks (one all-reduce) and applies them; collective.

        A rank that saw no sample since the last step contributes zeros. No samples anywhere: no step. With `every=k`,
        a step of this rank alone, and with each k-th one `merge`.

        Raises:
            RuntimeError: inside `no_sync`, or another DDPSequential was made of the network.
            FloatingPointError: a delta that is not finite (on every rank alike, but with `every=k`); its parameter was
                not changed. On a GPU it comes with the next step, see `Sequential.step`.
            ReplicaMismatchError: with ``PYTAGI_DDP_DEBUG=1``, parameters that differ between ranks.
        """
        self._check("step")
        with held_back():
            self._exchange.step(self._stop)

    def _check(self, name: str) -> None:
        if self._in_no_sync:
            raise RuntimeError(f"{name}() inside no_sync(): leave it first; a step exchanges what it has accumulated")
        if self.model.trainer is not self:
            raise RuntimeError(f"{name}() of a DDPSequential whose network was given to another one since: use that")

    def merge(self) -> None:
        """Merges the posteriors of all ranks now; collective. Call it before rank 0 saves or evaluates between merges.

        Deltas that no step has applied are applied first.

        Raises:
            RuntimeError: `every` is 1, so that there is nothing to merge. Else as `step`.
        """
        self._check("merge")
        with held_back():
            self._exchange.merge(self._stop)

    @property
    def steps_since_merge(self) -> int:
        return self._exchange.steps

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """`Sequential.accumulate`, after whose micro-batches one step exchanges the deltas of all of them.

        with net.no_sync():
            for x, y in micro_batches[:-1]:
                learn(x, y)  # forward, output update, backward
        learn(*micro_batches[-1])
        net.step()
        """
        before, self._in_no_sync = self._in_no_sync, True
        try:
            with self.model.accumulate():
                yield
        finally:
            self._in_no_sync = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """For ranks with different numbers of batches: a rank that comes to the end steps along, with zeros.

        It returns, on all ranks together, when none has seen a sample since the last exchange. So everything learnt is
        that of all samples seen. All ranks have to use it, and each call of `step` inside needs at least one sample.

            with net.join():
                for x, y in batches:  # any number of them on each rank
                    learn(x, y)
                    net.step()
        """
        yield
        while True:
            self._check("join")
            with held_back():
                self._exchange.meet(self._stop)
            pooled = self._exchange.pooled
            if pooled is None or not pooled[0] > 0:
                return

    def update_bn(self, loader: Iterable[Any], num_batches: int | None = None) -> list[StatisticsChange]:
        """Sets the running statistics of every BatchNorm2d to the exact ones of the batches of all ranks; collective.

        Call it on every rank before evaluation, or before rank 0 saves: see `nn.update_bn`. It takes one all-reduce,
        and with `sync_batch_norm` those of the forward passes.

        Args:
            loader: this rank's batches of training data, inputs or (inputs, ...); ranks may have different numbers.
            num_batches: how many of them to use; None: all.

        Raises:
            RuntimeError: replicas differ, as no `merge` came since the last step; or, with `buckets`, deltas wait for a
                step that has begun to exchange them. Else as `nn.update_bn`.
        """
        self._check("update_bn")
        self._exchange.before_statistics()

        def add_over_ranks(sums: np.ndarray) -> None:
            self._exchange.after_statistics()
            self.communicator.all_reduce(sums)

        changes = take_statistics(self.model, loader, num_batches, add_over_ranks)
        self.parameters_changed()
        return changes

    @property
    def stop_requested(self) -> bool:
        pooled = self._exchange.pooled
        return pooled is not None and bool(pooled[2] > 0)

    def request_stop(self) -> None:
        """Asks all ranks to stop: `stop_requested` becomes True on every rank with the same step."""
        self._stop = True

    def barrier(self) -> None:
        """Waits until every rank has come here."""
        self.communicator.barrier()

    # -- files, both local ----------------------------------------------------------------------------------------

    def save(self, filename: str | Path) -> None:
        """`Sequential.save` on rank 0; the other ranks return at once."""
        if self.rank == 0:
            self.model.save(filename)

    def load(self, filename: str | Path) -> None:
        """`Sequential.load`; every rank reads the file."""
        self.model.load(filename)
        self.parameters_changed()

    def load_state_dict(self, state_dict: dict) -> None:
        """`Sequential.load_state_dict`, with the same values on every rank."""
        self.model.load_state_dict(state_dict)
        self.parameters_changed()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a DDPSequential belongs to the ranks of its job: copy or pickle its `model` instead")
