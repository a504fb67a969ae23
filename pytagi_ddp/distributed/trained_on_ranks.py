"""The base of the wrappers for training on many ranks."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.distributed.communicator import Ranks
from pytagi_ddp.distributed.compare import compare_arguments, compare_networks
from pytagi_ddp.distributed.config import DDPConfig, options_of_all_ranks
from pytagi_ddp.distributed.exchange import Exchange
from pytagi_ddp.distributed.wrapper import Wrapper, attribute_of, collective, of_network
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.core.data_struct import BaseHiddenStates
from pytagi_ddp.nn.core.forgetting import check_factor
from pytagi_ddp.nn.core.step import At
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.tools.update_bn import StatisticsChange, take_statistics, unfrozen_norms
from pytagi_ddp.validate import as_bools


class TrainedOnRanks(Wrapper):
    """A `Sequential` trained on R ranks, each with its own share of every batch, by the strategy `_exchange`.

    Arguments and attributes are those of `DDPSequential`.
    """

    _exchange: Exchange
    _one_thread: Any  # the network's
    _settled: tuple[str, ...] = ("model", "config", "average", "communicator")

    output_z_buffer = attribute_of("model", "output_z_buffer")
    input_delta_z_buffer = attribute_of("model", "input_delta_z_buffer")
    predict = of_network(Sequential.predict, "on this rank")
    output_to_host = of_network(Sequential.output_to_host, "of this rank")
    get_lstm_states = of_network(Sequential.get_lstm_states, "of this rank: each has its own memory")
    set_lstm_states = of_network(Sequential.set_lstm_states, "of this rank: each has its own memory")
    reset_lstm_states = of_network(Sequential.reset_lstm_states, "of this rank")
    smoother = of_network(
        Sequential.smoother, "of the time steps that this rank has seen, with the weights that all ranks share"
    )
    get_outputs_smoother = of_network(Sequential.get_outputs_smoother, "of this rank")

    def __init__(self, model: Sequential, config: DDPConfig, average: bool):
        if not isinstance(model, Sequential) or not isinstance(config, DDPConfig):
            given = f"{type(model).__name__} and {type(config).__name__}"
            raise TypeError(f"{type(self).__name__} takes a Sequential and a DDPConfig, got {given}")
        (average,) = as_bools(type(self).__name__, average=average)
        if model.arena.in_shards:
            raise ValueError(
                f"{type(self).__name__} of a network that lies in shards, those of an FSDPSequential: make a new "
                "network, and load its state_dict()"
            )
        self.model, self.config, self.average = model, config, average
        self._one_thread = model.passes.one_thread
        self._stop = False
        self._in_no_sync = False

    def get_device_with_index(self) -> str:
        """The device of this rank's network, such as "cpu"."""
        return self.model.device

    @property
    def title(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    def _connect(self, communicator: Ranks | None, options: Mapping[str, Any]) -> None:
        """Finds the other ranks, moves the network to the GPU of this rank, and compares networks and `options`."""
        c, model = self.config, self.model
        self.communicator = c.connect(model.device) if communicator is None else c.accept(communicator)
        c.place(model, self.communicator)
        ours = {"class": type(self).__name__, "class of options": type(c).__name__, "average": self.average}
        compare_networks(self.communicator, model, {**ours, **options_of_all_ranks(c), **options})

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def world_size(self) -> int:
        return self.communicator.world_size

    def parameters_changed(self) -> None:
        """To be called on every rank after all got new parameters without a method of this class."""
        self._exchange.parameters_changed()
        self.model.parameters_changed()

    @property
    def steps_since_merge(self) -> int:
        """Local steps of this rank since the last merge; 0 if ranks do not merge posteriors."""
        return self._exchange.steps

    def deltas_dropped(self) -> None:
        """Called by the network before the deltas of this rank are dropped."""
        self._exchange.deltas_dropped()

    # -- training ---------------------------------------------------------------------------------------------

    def forward(
        self, mu_x: ArrayLike | BaseHiddenStates, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.forward` on this rank's share of the batch."""
        if self.model.passes.at is At.REDUCED:
            self._exchange.finish_step()
        with self._exchange.forward():
            return self.model.forward(mu_x, var_x)

    __call__ = forward

    def backward(self) -> None:
        """`Sequential.backward` on this rank; it communicates only if there are `buckets`."""
        self._exchange.backward(last=not self._in_no_sync)

    @collective
    def step(self) -> None:
        """Adds the deltas of all ranks (one all-reduce) and applies them; collective.

        A rank without samples since the last step contributes zeros. Without samples on any rank, nothing changes. If
        ranks merge posteriors (`every=k`, `merge=...`), it is a local step, and each k-th step also merges.

        Raises:
            RuntimeError: inside `no_sync`; another wrapper now has the network; or `backward` was left out.
            FloatingPointError: a delta is not finite (raised on every rank, unless ranks merge); the parameters of a
                rank that raises it have not changed. On a GPU the next step raises it, see `Sequential.step`.
            ReplicaMismatchError: with ``PYTAGI_DDP_DEBUG=1``, parameters differ between ranks.
        """
        self._begin("step")
        self.model.passes.refuse_unread(self.input_delta_z_buffer)
        self._exchange.step(self._stop)

    def _begin(self, name: str, in_no_sync: bool = False) -> None:
        """Called first in each collective method; ends a step that was interrupted after its exchange."""
        if self._in_no_sync and not in_no_sync:
            raise RuntimeError(f"{name}() inside no_sync(): leave it first, then step() exchanges what was accumulated")
        if self.model.trainer is not self:
            raise RuntimeError(
                f"{name}() of a {type(self).__name__} whose network now belongs to another one: use that one"
            )
        if self.model.passes.at is At.REDUCED:
            self._exchange.finish_step()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """`Sequential.accumulate`. The next step exchanges the sum of the deltas of all micro-batches.

            with net.no_sync():
                for x, y in micro_batches[:-1]:
                    learn(x, y)  # forward, output update, backward
            learn(*micro_batches[-1])
            net.step()

        If an exception leaves the block, the accumulated deltas are dropped.
        """
        before, self._in_no_sync = self._in_no_sync, True
        try:
            with self.model.accumulate():
                yield
        finally:
            self._in_no_sync = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """For ranks with different numbers of batches: a rank without further batches takes part in steps with zeros.

        The block ends on all ranks at the same step, when no rank has had a sample since the last exchange. All ranks
        have to use it, and each call of `step` inside needs at least one sample. If the network has an
        `EvidenceSchedule`, it is the same on all ranks: `steps_per_epoch` is the largest number of steps of a rank.

            with net.join():
                for x, y in batches:  # any number of them on each rank
                    learn(x, y)
                    net.step()

        Raises:
            ValueError: ranks have different schedules.
        """
        if getattr(self, "every", 1) == 1:  # ranks that merge posteriors do not wait for each other here
            schedule = self.model.schedule
            settings = None if schedule is None else schedule.state_dict() | {"steps": None}
            compare_arguments(self.communicator, "join", {"the EvidenceSchedule": settings})
        yield
        self.model.passes.refuse_unread(self.input_delta_z_buffer)
        while True:
            self._begin("join")
            with held_back():
                self._exchange.step(self._stop, now=True)
            pooled = self._exchange.pooled
            if pooled is None or not pooled[0] > 0:
                break
        self._exchange.joined()

    @collective
    def update_bn(self, loader: Iterable[Any], num_batches: int | None = None) -> list[StatisticsChange]:
        """Sets the running statistics of every BatchNorm2d to the exact ones of the batches of all ranks; collective.

        Call it on every rank before evaluation, or before rank 0 saves: see `nn.update_bn`. Ranks compare which norms
        are frozen, and add their sums in one all-reduce; forward passes communicate as in training.

        Args:
            loader: this rank's batches of training data, inputs or (inputs, ...); ranks may have different numbers.
            num_batches: how many of them to use; None: all.

        Raises:
            RuntimeError: replicas differ, because there was no `merge` since the last step; or, with `buckets`, deltas
                are being exchanged. Other errors are those of `nn.update_bn`.
            ValueError: ranks have different frozen BatchNorm2d; raised on every rank.
        """
        self._begin("update_bn")
        self._exchange.barrier("update_bn")
        self._compare_norms(unfrozen_norms(self.model))

        def add_over_ranks(sums: np.ndarray) -> None:
            self._exchange.barrier("update_bn")
            self.communicator.all_reduce(sums)

        changes = take_statistics(self.model, loader, num_batches, add_over_ranks)
        self.parameters_changed()
        return changes

    def _compare_norms(self, unfrozen: list) -> None:
        """Raises ValueError on every rank if the ranks would update different BatchNorm2d. Collective."""
        compare_arguments(self.communicator, "update_bn()", {"the list of unfrozen BatchNorm2d": unfrozen})

    @collective
    def forget_evidence(self, factor: float) -> None:
        """`Sequential.forget_evidence` on all ranks; collective.

        Args:
            factor: the same on every rank.

        Raises:
            ValueError, TypeError: as `Sequential.forget_evidence`, or different factors; raised on every rank.
            RuntimeError: deltas wait for a step on some rank, or there was no `merge` since the last step; raised on
                every rank.
        """
        self._begin("forget_evidence")
        self._exchange.barrier("forget_evidence")
        waits = self.model.passes.waiting > 0 or self.steps_since_merge > 0
        compare_arguments(self.communicator, "forget_evidence()", {"factor": repr(factor)})
        number = check_factor(factor)
        everyone = self.communicator.all_gather_object(waits, "forget_evidence()")
        if ranks := [rank for rank, does in enumerate(everyone) if does]:
            raise RuntimeError(
                f"forget_evidence() while rank {ranks[0]} has deltas or steps that the other ranks do not have: call "
                "step() first, and with every=k merge(), on every rank"
            )
        self.model.arena.forget_evidence(number)
        self.parameters_changed()

    @property
    def stop_requested(self) -> bool:
        pooled = self._exchange.pooled
        return pooled is not None and bool(pooled[2] > 0)

    def request_stop(self) -> None:
        """Requests a stop: with the next exchange, `stop_requested` becomes True on every rank."""
        self._stop = True

    def withdraw_stop(self) -> None:
        """Withdraws earlier requests: `stop_requested` is False until there is another one. To be called on every rank.

        `Trainer.fit` does it at its beginning.
        """
        self._stop, self._exchange.pooled = False, None

    def load(self, filename: str | bytes | Path) -> None:
        """`Sequential.load`; every rank reads the file, and drops its pending deltas.

        With `sync_batch_norm`, call `barrier` first if some rank may have had no batch: it takes part in the passes of
        the others only in its next collective call.
        """
        self.model.load(filename)
        self.parameters_changed()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """`Sequential.load_state_dict`, with the same values on every rank; see `load`."""
        self.model.load_state_dict(state_dict)
        self.parameters_changed()

    @collective
    def barrier(self) -> None:
        """Waits until every rank has called it. A rank that waits takes part in the passes of others.

        Call it before `load` or other collectives of the program if ranks may have run different numbers of collective
        passes: with `sync_batch_norm`, or in shards.
        """
        self._exchange.barrier("barrier")
        self.communicator.barrier()
