"""Data-parallel training: a replica on every rank, and one all-reduce per step."""

from pathlib import Path

from pytagi_ddp.distributed.communicator import Ranks
from pytagi_ddp.distributed.config import DDPConfig, choose_strategy
from pytagi_ddp.distributed.exchange import Options
from pytagi_ddp.distributed.trained_on_ranks import TrainedOnRanks
from pytagi_ddp.distributed.wrapper import collective
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.validate import as_bools


class DDPSequential(TrainedOnRanks):
    """A `Sequential` trained on R ranks, each with its own share of every batch.

    The constructor broadcasts the parameters and running statistics of rank 0. `step` adds the batch sums of all ranks
    with one all-reduce; then every rank takes the same capped step, so that parameters have the same bits on all ranks.
    `forward`, `backward`, `predict`, `state_dict`, `save` and `load` are local: no rank waits for another. `update_bn`
    is collective. Call it before a deep network with BatchNorm2d is evaluated or saved, because its running statistics
    are those of earlier steps.

    With n_r samples on rank r since the last step, n their sum, and R_a the ranks that have any:

        average=False:  the step of one process that saw all n samples (sum of deltas, cap factor c(n)).
        average=True:   sum / R_a, cap factor c(ceil(n / R_a)): as pytagi, the default.

    The average discards evidence: its variances are too large. The sum can overshoot, as any large batch in TAGI. Above
    about 64 samples in all, merge posteriors instead (`every`, `merge="damped_product"`; docs/communication.md).

    A network on a GPU moves to the GPU of its rank, unless its rank is the only one of the node; with `backend="nccl"`
    any network does. On a GPU, a step does not wait for its result, but reading `stop_requested` does.

    BatchNorm2d normalises by each rank's own batch. Its running statistics come from all ranks, in the same all-reduce,
    so that they are equal on all ranks. With `sync_batch_norm` it normalises by the batches of all ranks; then R ranks
    give the results of one process with the global batch. This takes a small all-reduce for every BatchNorm2d in each
    forward pass in training mode, which is then collective, and one more in each step, which waits for a GPU. Ranks may
    run different numbers of passes in a step.

    With `every=k`, ranks communicate less often: each takes k steps with its own deltas, then all posteriors are merged
    into one, see `pytagi_ddp.distributed.merge.PosteriorMerge`. In between, replicas differ. With `max_wait`, a rank
    does not wait longer for a late one: it continues, and its new evidence joins the next merge, see
    `pytagi_ddp.distributed.bounded_merge.BoundedMerge`. Call `merge` before the network is used.

    During a collective call (also `update_bn`), Ctrl-C takes effect at the end of the call; while the call waits for
    other ranks, it ends the job. A second Ctrl-C takes effect at once.

    `model.step()` raises an error, because it would be a step of this rank only. If replicas differ, for example after
    an assignment on one rank, `synchronize` makes them equal; `step` detects this only with ``PYTAGI_DDP_DEBUG=1``.

    A network belongs to the last DDPSequential that wraps it. A copy or pickle of `model` is independent of the ranks.

    Args:
        model: the network, of the same layers on every rank.
        config: options of the communication; None: `DDPConfig()`.
        average: aggregation of the deltas, see above; it has no effect if ranks merge posteriors.
        sync_batch_norm: whether batch statistics are taken over all ranks, see above.
        every: steps between two exchanges.
        merge: how the posteriors of the ranks are merged after `every` steps, "precision_weighted", "damped_product" or
            "mean". None: with `every=1` ranks add deltas instead of merging; with more, "precision_weighted".
        max_wait: seconds that a rank waits in a merge for the others, see above; None: without limit. A request to stop
            takes effect in `merge` and at the end of `join`.
        communicator: that of the ranks that train the network, also one of mpi4py (`MPI.COMM_WORLD`, or a result of its
            Split; the first use of the library is collective over all ranks of the job: call
            `pytagi_ddp.distributed.initialize` on each). None: that of `initialize`, if it was called for this backend
            and matches `config`, otherwise a new one.

    Attributes:
        model: the wrapped network. config, average: as given. communicator: rank, world_size, all_reduce, ...
        stop_requested: whether a rank had called `request_stop` before the last exchange.

    Raises:
        ValueError: another architecture or other options on some rank; the message names the first difference. Options
            that are out of range, or exclude each other. TypeError: not a `Sequential`, or not a `DDPConfig`;
            options that are not numbers.
    """

    _settled = (*TrainedOnRanks._settled, "sync_batch_norm", "every", "merge", "max_wait")

    def __init__(
        self,
        model: Sequential,
        config: DDPConfig | None = None,
        average: bool = True,
        *,
        sync_batch_norm: bool = False,
        every: int = 1,
        merge: str | None = None,
        max_wait: float | None = None,
        communicator: Ranks | None = None,
    ):
        super().__init__(model, DDPConfig() if config is None else config, average)
        (sync_batch_norm,) = as_bools("DDPSequential", sync_batch_norm=sync_batch_norm)
        model.materialize()
        self.every = every
        self.max_wait = max_wait
        given = Options(self.config, model.device, self.average, every, merge, sync_batch_norm, max_wait)
        strategy = choose_strategy(given)
        if strategy.merges and merge is None:
            merge = "precision_weighted"  # for the comparison between ranks
        options = {"sync_batch_norm": sync_batch_norm, "every": every, "merge": merge, "max_wait": max_wait}
        self._connect(communicator, options)
        self._exchange = strategy(self.communicator, model, given)
        model.trainer = self
        self.synchronize()
        self._made = True

    @collective
    def synchronize(self) -> None:
        """Gives every rank the parameters and running statistics of rank 0. Collective: all ranks must call it."""
        arena = self.model.arena
        self.communicator.broadcast(arena.theta)
        self.communicator.broadcast(arena.statistics)
        self.parameters_changed()

    @collective
    def merge(self) -> None:
        """Merges the posteriors of all ranks now; collective. Call it before rank 0 saves or evaluates between merges.

        Deltas that no step has applied are applied first.

        Raises:
            RuntimeError: ranks add deltas instead of merging. Other errors are those of `step`.
        """
        self._begin("merge")
        if not self._exchange.merges:
            raise RuntimeError(
                "merge() is for DDPSequential(..., every=k, merge=...); here step() adds the deltas of all"
            )
        self._exchange.step(self._stop, now=True)

    def save(self, filename: str | bytes | Path) -> None:
        """`Sequential.save` on rank 0; the other ranks return at once."""
        if self.rank == 0:
            super().save(filename)
