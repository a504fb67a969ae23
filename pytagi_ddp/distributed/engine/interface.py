"""The interface of all communicators, which every engine implements."""

from __future__ import annotations

import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from pytagi_ddp.distributed.engine import debug
from pytagi_ddp.distributed.engine.arguments import check_buffer, check_exchange, check_op, check_reducible, check_sent
from pytagi_ddp.distributed.engine.base import CommunicatorBase
from pytagi_ddp.distributed.engine.error_propagation import errors_of_all_ranks
from pytagi_ddp.distributed.engine.handle import Handle, Work


class Communicator(CommunicatorBase, ABC):
    """The ranks of a job, and the collectives between them.

    Every rank must call the same collectives in the same order, from one thread at a time.

    Attributes:
        backend: name of the engine, as given to `create_communicator`.
        rank: index of this process in the job, 0 to ``world_size - 1``.
        world_size: number of processes.
        local_rank: index of this process among those of its node.
        local_world_size: number of processes on this node.
        debug: whether ranks compare each collective before they run it (`CollectiveMismatchError`), and check that the
            results of reductions, except `start_reduce_scatter`, are finite (`NonFiniteError`, on every rank). It is
            set by ``PYTAGI_DDP_DEBUG``, and must be the same on every rank.
        reduce_calls: number of all-reduces and reduce-scatters that were started so far.
        reduce_bytes: size of their buffers, in bytes.
        reduce_seconds: time spent in them and in handles, with waiting for other ranks (NCCL: until they are queued).
        waited_seconds: time spent waiting in any collective or message, also of groups (NCCL: as `reduce_seconds`).
        gather_bytes: size of the buffers that all-gathers have filled, in bytes.
        sent_bytes: size of the arrays sent to single ranks, and of the blocks of all-to-alls for others, in bytes.
    """

    _compared = 0  # collectives so far, in debug mode

    @property
    def waited_seconds(self) -> float:
        return self.reduce_seconds

    def all_reduce(self, buffer: np.ndarray, op: str = "sum") -> None:
        """Combines ``buffer`` over all ranks, in place; every rank gets the same bits.

        Args:
            buffer: writable, C-contiguous float32, float64 or int64 array of the same size on every rank, in host
                memory or on a GPU.
            op: "sum", "mean" (the sum, divided by `world_size` on every rank; floats only), "max", "min" or "prod".
                NaN on any rank gives NaN, except for "max" and "min" on a GPU.

        Raises:
            TypeError: not such an array.
            ValueError: not contiguous, or read-only; an unknown op.
            RankLeftError: a rank has left the job.
            CollectiveTimeoutError: a rank did not arrive in time.
        """
        check_reducible("all_reduce", buffer, op)
        self._prepare("all_reduce", buffer, reduces=True, op=op)
        start = time.perf_counter()
        self._engine_of(buffer)._all_reduce(buffer, op).wait()
        self.reduce_seconds += time.perf_counter() - start
        if self.debug:
            debug.check_finite(f"all_reduce of {buffer.nbytes / 1e6:.3g} MB", buffer)

    def start_all_reduce(self, buffer: np.ndarray, op: str = "sum", name: str = "start_all_reduce") -> Handle:
        """Starts `all_reduce`; the result is in ``buffer`` when the handle is done. Do not use ``buffer`` before.

        Args:
            buffer, op: as in `all_reduce`. Any number may be in flight, and other collectives may be called meanwhile.
            name: its name in error messages.

        Returns:
            A handle to `wait` for; one that is dropped is an error, see `Handle`.

        Raises:
            TypeError, ValueError: as `all_reduce`. RuntimeError: an earlier handle was dropped.
        """
        check_reducible(name, buffer, op)
        self._prepare("all_reduce", buffer, reduces=True, op=op)
        start = time.perf_counter()
        work = self._engine_of(buffer)._all_reduce(buffer, op)
        self.reduce_seconds += time.perf_counter() - start
        return Handle(self, f"{name} of {buffer.nbytes / 1e6:.3g} MB", buffer, work, reduction=True)

    def _prepare(self, name: str, *arrays: np.ndarray, reduces: bool = False, **details: Any) -> None:
        """Raises an error if this rank cannot run a collective, or (in debug mode) if other ranks run another one.

        Counts it if it `reduces` the first array.
        """
        if self._closed or self._dropped is not None:
            self._check_usable(name)
        if self.debug:
            self._compared += 1
            everyone = self._engine_of()._all_gather_object(debug.fingerprint(name, arrays, details), "debug")
            debug.compare(self._compared, everyone)
        if reduces:
            self.reduce_calls += 1
            self.reduce_bytes += arrays[0].nbytes

    def _engine_of(self, *arrays: np.ndarray) -> Communicator:
        """The communicator whose engine transfers these arrays; without arrays, that for objects."""
        return self

    def reduce_scatter(self, send: np.ndarray, receive: np.ndarray, op: str = "sum") -> None:
        """Combines ``send`` over all ranks, and leaves one block of the result on each: block r on rank r.

        For arrays on the host, every engine adds in the same order, by a binary tree of neighbouring ranks.
        `all_reduce` gives the same bits with two ranks, for short float32 arrays within a node, and if MPI adds by the
        same tree, as MPICH does. Between nodes, sums of more than 1 MB may add the ranks of each node first
        (``PYTAGI_DDP_ALL_REDUCE``). NCCL adds in another order.

        Args:
            send: C-contiguous float32, float64 or int64 array of `world_size` equal blocks, of the same size on every
                rank, in host memory or on a GPU.
            receive: writable array of the size of a block, of the same dtype, in the same memory. It may be this rank's
                own block of ``send``; the other blocks do not change.
            op: as `all_reduce`.

        Raises:
            TypeError: other arrays.
            ValueError: sizes that do not match, overlapping memory except for the own block, or an unknown op.
            RankLeftError, CollectiveTimeoutError: as `all_reduce`.
        """
        self.start_reduce_scatter(send, receive, op, "reduce_scatter").wait()
        if self.debug:
            with errors_of_all_ranks(self):
                debug.check_finite(f"reduce_scatter of {send.nbytes / 1e6:.3g} MB, on rank {self.rank}", receive)

    def start_reduce_scatter(
        self, send: np.ndarray, receive: np.ndarray, op: str = "sum", name: str = "start_reduce_scatter"
    ) -> Handle:
        """Starts `reduce_scatter`, see `start_all_reduce`; do not use either array before it is done."""
        check_exchange(name, send, receive, self.world_size, 1, own=self.rank)
        check_op(name, send, op)
        self._prepare("reduce_scatter", send, receive, reduces=True, op=op)
        start = time.perf_counter()
        work = self._engine_of(send)._reduce_scatter(send, receive, op)
        self.reduce_seconds += time.perf_counter() - start
        what = f"{name} of {send.nbytes / 1e6:.3g} MB"
        return Handle(self, what, receive, work, reduction=True, source=send, everywhere=False)

    def reduce(self, buffer: np.ndarray, op: str = "sum", root: int = 0) -> None:
        """Combines ``buffer`` over all ranks into that of rank ``root``; the buffers of the others do not change.

        Args:
            buffer, op: as `all_reduce`.
            root: rank that gets the result.

        Raises:
            TypeError, ValueError, RankLeftError, CollectiveTimeoutError: as `all_reduce`, or a root that is not a rank.
        """
        check_reducible("reduce", buffer, op)
        self._check_root("reduce", root)
        self._prepare("reduce", buffer, op=op, root=root)
        self._engine_of(buffer)._reduce(buffer, op, root)
        if self.debug:
            with errors_of_all_ranks(self):
                if self.rank == root:
                    debug.check_finite(f"reduce, on rank {root}", buffer)

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """Replaces ``buffer`` on every rank by that of rank ``root``.

        Args:
            buffer: writable, C-contiguous array of any fixed-size dtype, of the same size on every rank.
            root: rank that sends.

        Raises:
            TypeError, ValueError, RankLeftError, CollectiveTimeoutError: as `all_reduce`, or a root that is not a rank.
        """
        self.start_broadcast(buffer, root, "broadcast").wait()

    def start_broadcast(self, buffer: np.ndarray, root: int = 0, name: str = "start_broadcast") -> Handle:
        """Starts `broadcast`, see `start_all_reduce`."""
        check_buffer(name, buffer)
        self._check_root(name, root)
        self._prepare("broadcast", buffer, root=root)
        work = self._engine_of(buffer)._broadcast(buffer, root)
        return Handle(self, f"{name} of {buffer.nbytes / 1e6:.3g} MB", buffer, work)

    def all_gather(self, send: np.ndarray, receive: np.ndarray) -> None:
        """Puts the ``send`` of every rank into ``receive``, in the order of the ranks, on every rank.

        Args:
            send: C-contiguous array of any fixed-size dtype, of the same size on every rank, in host memory or on a
                GPU.
            receive: writable array of `world_size` times the size, of the same dtype, in the same memory. ``send`` may
                be this rank's own block of it.

        Raises:
            TypeError: other arrays.
            ValueError: sizes that do not match, or overlapping memory except for the own block.
            RankLeftError, CollectiveTimeoutError: as `all_reduce`.
        """
        self.start_all_gather(send, receive, "all_gather").wait()

    def start_all_gather(self, send: np.ndarray, receive: np.ndarray, name: str = "start_all_gather") -> Handle:
        """Starts `all_gather`, see `start_all_reduce`; do not use either array before it is done."""
        check_exchange(name, send, receive, 1, self.world_size, own=self.rank)
        self._prepare("all_gather", send, receive)
        self.gather_bytes += receive.nbytes
        work = self._engine_of(send)._all_gather(send, receive)
        return Handle(self, f"{name} of {receive.nbytes / 1e6:.3g} MB", receive, work, source=send)

    def all_to_all(self, send: np.ndarray, receive: np.ndarray) -> None:
        """Block r of ``send`` goes to rank r; block r of ``receive`` comes from rank r.

        Args:
            send: C-contiguous array of `world_size` equal blocks, of any fixed-size dtype, in host memory.
            receive: writable array of the same size and dtype.

        Raises:
            TypeError, ValueError, RankLeftError, CollectiveTimeoutError: as `all_gather`. Arrays on a GPU raise
                TypeError.
        """
        check_exchange("all_to_all", send, receive, self.world_size, self.world_size)
        self._prepare("all_to_all", send, receive)
        self.sent_bytes += send.nbytes // self.world_size * (self.world_size - 1)
        self._engine_of(send)._all_to_all(send, receive)

    def send(self, array: np.ndarray, peer: int) -> None:
        """Sends ``array`` to one other rank, which calls `receive`; returns when ``array`` may change.

        Messages from one rank to another arrive in the order in which they were started. They are independent of
        collectives and of messages to other ranks, except with NCCL, which runs all operations in order. `send` may
        wait for the receiver, so two ranks that both `send` before they receive wait forever: use `start_send`.

        Args:
            array: C-contiguous array of any fixed-size dtype, in host memory or on a GPU.
            peer: the other rank.

        Raises:
            TypeError, ValueError: not such an array; a peer that is not another rank.
            RankLeftError: the other rank has left the job.
            CollectiveTimeoutError: it did not arrive in time.
            CollectiveMismatchError: it receives another number of bytes, or (``PYTAGI_DDP_DEBUG``) another dtype or
                shape. The receiving rank always raises this error; the sending rank may not.
        """
        self.start_send(array, peer, "send").wait()

    def start_send(self, array: np.ndarray, peer: int, name: str = "start_send") -> Handle:
        """Starts `send`; ``array`` must not change until the handle is done. Any number may be in flight."""
        check_sent(name, array)
        self._check_peer(name, peer)
        self.sent_bytes += array.nbytes
        work = self._engine_of(array)._send(array, peer)
        return Handle(self, f"{name} of {array.nbytes / 1e6:.3g} MB to rank {peer}", array, work)

    def receive(self, array: np.ndarray, peer: int) -> None:
        """Fills ``array`` with the array of another rank, which calls `send` with one of the same size.

        Args:
            array: writable, C-contiguous array of any fixed-size dtype, in host memory or on a GPU.
            peer: the other rank.

        Raises:
            TypeError, ValueError, RankLeftError, CollectiveTimeoutError, CollectiveMismatchError: as `send`.
        """
        self.start_receive(array, peer, "receive").wait()

    def start_receive(self, array: np.ndarray, peer: int, name: str = "start_receive") -> Handle:
        """Starts `receive`; do not use ``array`` until the handle is done. Any number may be in flight."""
        check_buffer(name, array)
        self._check_peer(name, peer)
        work = self._engine_of(array)._receive(array, peer)
        return Handle(self, f"{name} of {array.nbytes / 1e6:.3g} MB from rank {peer}", array, work)

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """Divides the ranks into groups, each with a communicator of its own; collective.

            rows = comm.split(comm.rank // 4)  # ranks 0 to 3, 4 to 7, ...

        The ranks of a group must call the collectives of the group in the same order, independent of other groups.
        Handles of several groups may be in flight: waiting for one advances the others, too. `close` of one
        communicator leaves the others open, and frees its resources in MPI: MPICH supports about 200 groups at a time.

        Args:
            color: ranks with the same color form a group; None: this rank is in none.
            key: ranks of a group are numbered in the order of their keys, and those with equal keys in the order of
                their ranks here; None: the rank here.

        Returns:
            The communicator of the group, of the same engine and with the same time-out; None without a color.

        Raises:
            TypeError: a color or key that is not an integer. RuntimeError: MPI has no room for another group.
            RankLeftError, CollectiveTimeoutError: as `all_reduce`.
        """
        color, key = (None if number is None else operator.index(number) for number in (color, key))
        self._prepare("split")
        return self._split(color, key)

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        """Returns rank ``root``'s ``obj`` (anything that pickles) on every rank; the others' argument is ignored."""
        self._check_root("broadcast_object", root)
        self._prepare("broadcast_object", root=root)
        return self._engine_of()._broadcast_object(obj, root)

    def all_gather_object(self, obj: Any, name: str = "all_gather_object") -> list:
        """Returns the ``obj`` of every rank, in the order of the ranks, on every rank.

        Args:
            obj: anything that pickles.
            name: the call in error messages, the same on every rank.

        Raises:
            CollectiveMismatchError: another rank has given another name; raised on every rank.
        """
        self._prepare("all_gather_object")
        everyone = self._engine_of()._all_gather_object((name, obj))
        debug.compare_names([theirs for theirs, _ in everyone])
        return [theirs for _, theirs in everyone]

    def barrier(self, timeout: float | None = None) -> None:
        """Returns when every rank has called it.

        Args:
            timeout: seconds to wait; None: the communicator's.
        """
        if timeout is not None and not timeout > 0:
            raise ValueError(f"barrier: timeout must be a number of seconds above 0, got {timeout}")
        self._prepare("barrier")
        self._engine_of()._barrier(timeout)

    def at_end(self, call: Callable[[], None]) -> None:
        """Calls a method that waits for handles before the program ends, unless its object was deleted."""

    def in_background(self) -> AbstractContextManager:
        """A context in which handles progress while the body computes, if the engine supports it.

        The body must not call collectives.
        """
        return nullcontext()

    # The operations of an engine. The last four are not for arrays on a GPU: an engine for GPUs leaves them out.

    @abstractmethod
    def _all_reduce(self, buffer: np.ndarray, op: str) -> Work: ...

    @abstractmethod
    def _reduce(self, buffer: np.ndarray, op: str, root: int) -> None: ...

    @abstractmethod
    def _broadcast(self, buffer: np.ndarray, root: int) -> Work: ...

    @abstractmethod
    def _reduce_scatter(self, send: np.ndarray, receive: np.ndarray, op: str) -> Work: ...

    @abstractmethod
    def _all_gather(self, send: np.ndarray, receive: np.ndarray) -> Work: ...

    @abstractmethod
    def _send(self, array: np.ndarray, peer: int) -> Work: ...

    @abstractmethod
    def _receive(self, array: np.ndarray, peer: int) -> Work: ...

    @abstractmethod
    def _split(self, color: int | None, key: int | None) -> Communicator | None: ...

    def _all_to_all(self, send: np.ndarray, receive: np.ndarray) -> None:
        raise NotImplementedError

    def _broadcast_object(self, obj: Any, root: int) -> Any:
        raise NotImplementedError

    def _all_gather_object(self, obj: Any, channel: str = "gather") -> list:
        raise NotImplementedError

    def _barrier(self, timeout: float | None) -> None:
        raise NotImplementedError
