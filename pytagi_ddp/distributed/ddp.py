"""Data-parallel training: every rank a replica, one all-reduce per step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from pytagi_ddp.distributed.buckets import Buckets
from pytagi_ddp.distributed.communicator import Communicator, create_communicator
from pytagi_ddp.distributed.compare import compare_networks, compare_parameters
from pytagi_ddp.distributed.config import DDPConfig
from pytagi_ddp.distributed.exchange import exchange_deltas, pool_statistics
from pytagi_ddp.distributed.merge import PosteriorMerge
from pytagi_ddp.distributed.placement import choose_device
from pytagi_ddp.distributed.sync_batch_norm import SyncBatchNorm
from pytagi_ddp.distributed.wire import HalfPrecisionSum
from pytagi_ddp.nn.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.persistence import StateDict
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.state import Array


class DDPSequential:
    """A `Sequential` trained on R ranks, each with its own share of every batch.

    Construction broadcasts rank 0's parameters and running statistics. `step` adds the batch sums of all ranks with
    one all-reduce over one contiguous buffer, then every rank takes the same capped step: parameters stay equal to
    the last bit. `forward`, `backward`, `predict`, `state_dict`, `save` and `load` are local: no rank waits for
    another there.

    With n_r samples on rank r since the last step, n their sum, and R_a the ranks that have any:

        average=False:  the step of one process that saw all n samples (sum of deltas, cap factor c(n)).
        average=True:   sum / R_a, cap factor c(ceil(n / R_a)): as pytagi, the default.

    The average throws evidence away: on a linear model (20 weights, 4 ranks x 4 samples) its posterior variance came
    out 4.6 times the exact one, with means within 0.3 standard deviations of the exact ones. The sum, like any large
    TAGI batch, can overshoot: half the exact variance there, and means far off. On MNIST (4 ranks x 16 samples, one
    epoch) sum and average reached 4.9 and 4.2 % error with sigma_v = 0.1, and 4.1 and 6.3 % with sigma_v = 1.

    A network on a GPU goes to the GPU of its rank (that of a single rank stays), and any network does with
    `backend="nccl"`. There no step waits for the GPU; `stop_requested` does, when it is read.

    BatchNorm2d normalises by each rank's own batch; its running statistics come from all ranks, in the same
    all-reduce, so that they are equal everywhere too. With `sync_batch_norm`, it normalises by the batches of all
    ranks: R ranks are then one process with the global batch for every network. That takes a small all-reduce for
    every BatchNorm2d in each forward pass in training mode, which so becomes collective.

    With `every=k`, ranks meet less often: each takes k steps with its own deltas (no averaging), then `merge` gives all
    ranks one posterior, see `pytagi_ddp.distributed.merge.PosteriorMerge`. In between, replicas differ.

    Args:
        model: the network, of the same layers on every rank.
        config: how to communicate; None: `DDPConfig()`.
        average: aggregation of the deltas, see above.
        sync_batch_norm: batch statistics over all ranks, see above.
        every: steps between two exchanges.
        merge: what `every` above 1 makes of the ranks' posteriors, "precision_weighted" or "mean".

    Attributes:
        model: the wrapped network. config, average: as given. communicator: rank, world_size, all_reduce, ...
        stop_requested: whether a rank had called `request_stop` before the last exchange.
        steps_since_merge: steps that only this rank knows of; 0 unless `every` is above 1.

    Raises:
        ValueError: another architecture or other options on some rank; the message names the first difference. Options
            that are out of range, or exclude each other.
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
    ):
        self.model = model
        self.config = config or DDPConfig()
        self.average = average
        self.every = every
        c = self.config
        c.check(model.device, every, sync_batch_norm)
        self.communicator: Communicator = create_communicator(
            c.backend, c.rank, c.world_size, c.timeout, c.device_ids, c.cuda_aware_mpi
        )
        ours_to_choose = c.device_ids is not None or self.communicator.local_world_size > 1
        if self.communicator.backend == "nccl" or (model.device != "cpu" and ours_to_choose):
            model.to_device(f"cuda:{choose_device(self.communicator.local_rank, c.device_ids)}")
        self._pooled: Array | None = None  # the header of the last reduced buffer
        self._stop = False
        self._in_no_sync = False
        options = {"average": average, "sync_batch_norm": sync_batch_norm, "every": every, "merge": merge}
        compare_networks(self.communicator, model, options | {"wire_dtype": c.wire_dtype, "buckets": c.buckets})
        self.synchronize()
        self._sync_norm = SyncBatchNorm(self.communicator, model) if sync_batch_norm else None
        self._merge = PosteriorMerge(model, merge) if every > 1 else None
        if self._merge is None and self._sync_norm is None:
            pool_statistics(model)
        self._reduce: Callable[[], None] | None = None
        self._buckets = Buckets(self.communicator, model.arena, model.layers, c.buckets) if c.buckets > 1 else None
        if self._buckets is not None:
            self._reduce = self._buckets.finish
        elif c.wire_dtype != "float32":
            self._reduce = partial(HalfPrecisionSum(self.communicator, c.wire_dtype).reduce_deltas, model.arena)
        model._meets_ranks = sync_batch_norm or c.buckets > 1

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

    # -- training ---------------------------------------------------------------------------------------------

    def forward(self, mu_x, var_x=None) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.forward` on this rank's share of the batch."""
        if self._merge is not None:
            self._merge.begin()
        return self.model.forward(mu_x, var_x)

    __call__ = forward

    def backward(self) -> None:
        """`Sequential.backward` on this rank; communicates nothing, unless there are `buckets`."""
        overlap = self._buckets is not None and not self._in_no_sync
        self.model._passed = self._buckets.passed if overlap else None
        self.model.backward()

    def step(self) -> None:
        """Adds the deltas of all ranks (one all-reduce) and applies them; collective.

        A rank that saw no sample since the last step contributes zeros. No samples anywhere: no step. With `every=k`,
        a step of this rank alone, and with each k-th one `merge`.

        Raises:
            RuntimeError: inside `no_sync`.
            FloatingPointError: a delta that is not finite (on every rank alike); its parameter was not changed. On a
                GPU it comes with the next step, see `Sequential.step`.
            ReplicaMismatchError: with ``PYTAGI_DDP_DEBUG=1``, parameters that differ between ranks.
        """
        if self._in_no_sync:
            raise RuntimeError("step() inside no_sync(): leave it first; the step exchanges what was accumulated in it")
        if self._merge is not None:
            self._merge.local_step()
            if self._merge.steps == self.every:
                self.merge()
            return
        if self._sync_norm is not None:
            self._sync_norm.catch_up()
        self._pooled = exchange_deltas(self.communicator, self.model, self.average, self._stop, self._reduce)
        self.model.step()
        if self.communicator.debug:
            compare_parameters(self.communicator, self.model)

    def merge(self) -> None:
        """Merges the posteriors of all ranks now; collective. Call it before rank 0 saves or evaluates between merges.

        Raises:
            RuntimeError: `every` is 1, so that there is nothing to merge.
        """
        if self._merge is None:
            raise RuntimeError("merge() is for DDPSequential(..., every=k) with k above 1; here step() exchanges all")
        self._pooled = self._merge.merge(self.communicator, self._stop)
        if self.communicator.debug:
            compare_parameters(self.communicator, self.model)

    @property
    def steps_since_merge(self) -> int:
        return 0 if self._merge is None else self._merge.steps

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulates: deltas of the `backward` calls inside, and of those up to the next `step`, add up.

        They are sums over samples, and the parameters do not change in between: so the step is that of one large batch,
        but for BatchNorm2d, which sees each micro-batch by itself.

            with net.no_sync():
                for x, y in micro_batches[:-1]:
                    learn(x, y)  # forward, output update, backward
            learn(*micro_batches[-1])
            net.step()
        """
        before, self._in_no_sync = self._in_no_sync, True
        self.model._accumulate = True
        try:
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
            if self._merge is None:
                self.step()
            else:
                self.merge()
            if not self._pooled[0] > 0:
                return

    @property
    def stop_requested(self) -> bool:
        return self._pooled is not None and bool(self._pooled[2] > 0)

    def request_stop(self) -> None:
        """Asks all ranks to stop: `stop_requested` becomes True on every rank with the same step."""
        self._stop = True

    def train(self) -> None:
        self.model.train()

    def eval(self) -> None:
        self.model.eval()

    def barrier(self) -> None:
        """Waits until every rank has come here."""
        self.communicator.barrier()

    # -- results and files, all local -------------------------------------------------------------------------

    def predict(self, x, batch_size: int = 256, var_x=None) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.predict` on this rank."""
        return self.model.predict(x, batch_size, var_x)

    def get_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        return self.model.get_outputs()

    def output_to_host(self) -> None:
        self.model.output_to_host()

    def get_device_with_index(self) -> str:
        """The device of this rank's replica, such as "cpu"."""
        return self.model.device

    def state_dict(self) -> StateDict:
        """Parameters and running statistics, equal on every rank after a step."""
        return self.model.state_dict()

    def save(self, filename: str | Path) -> None:
        """`Sequential.save` on rank 0; the other ranks return at once."""
        if self.rank == 0:
            self.model.save(filename)

    def load(self, filename: str | Path) -> None:
        """`Sequential.load`; every rank reads the file."""
        self.model.load(filename)

    @property
    def output_z_buffer(self) -> BaseHiddenStates:
        return self.model.output_z_buffer

    @output_z_buffer.setter
    def output_z_buffer(self, states: BaseHiddenStates) -> None:
        self.model.output_z_buffer = states

    @property
    def input_delta_z_buffer(self) -> BaseDeltaStates:
        return self.model.input_delta_z_buffer

    @input_delta_z_buffer.setter
    def input_delta_z_buffer(self, deltas: BaseDeltaStates) -> None:
        self.model.input_delta_z_buffer = deltas
