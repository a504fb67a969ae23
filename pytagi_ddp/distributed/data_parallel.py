"""Data-parallel training in one process, with a replica on each device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, tee
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp import cuda
from pytagi_ddp.distributed.config import DDPConfig
from pytagi_ddp.distributed.ddp import DDPSequential
from pytagi_ddp.distributed.exchange import pool_statistics
from pytagi_ddp.distributed.thread_pool import ThreadPool
from pytagi_ddp.distributed.wrapper import Wrapper
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.core.state import State
from pytagi_ddp.nn.run.network_input import moments_of_samples
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.tools.update_bn import StatisticsChange, batches_of
from pytagi_ddp.validate import as_bools

if TYPE_CHECKING:
    from typing_extensions import Self


class DataParallel(Wrapper):
    """A `Sequential` with a replica on each device of this process, used like one network.

        net = DataParallel(model, ["cuda:0", "cuda:1"])
        updater = OutputUpdater(net.device)
        mu, var = net(x)  # the batch is divided among the devices; results come back in its order
        updater.update(net.output_z_buffer, y, var_y, net.input_delta_z_buffer)
        net.backward()
        net.step()

    A batch is divided into one part for each device, in order; parts differ by at most one sample. The deltas of all
    devices are added, and all take the same step, with the bits of `DDPSequential` on as many ranks with these parts.
    `average` means the same as there. BatchNorm2d normalises by the part of a device, or (`sync_batch_norm`) by the
    whole batch. Each device has a thread. Until `close`, these share the threads of the CPU kernels (`set_threads`).

    `DDPSequential` is nearly always the better choice. The threads share Python's interpreter lock, so that small
    networks do not run faster. On a CPU, one network with all threads of the kernels (`set_threads`) does the same. All
    inputs, outputs and deltas go through host memory. This class is for a program or a notebook that cannot be started
    by a launcher.

    Args:
        model: the network; replica 0.
        device_ids: GPUs as numbers or names such as "cuda:1", or "cpu", each also several times; None: all GPUs.
        sync_batch_norm: whether batch statistics are those of all devices. Each device then needs a sample of every
            batch.

    Attributes:
        model: replica 0; the others are equal to it after each step. The next call copies changes by `net.model.load`,
            `PosteriorAverage`, `freeze` or a new `schedule` to the other replicas. After an assignment to a layer, call
            `synchronize`.
        devices: those of the replicas.
        device: "cpu", the device of the output and its deltas.
        output_z_buffer: moments of the last output, of the whole batch.
        input_delta_z_buffer: deltas at the output, where `backward` starts.

    Raises:
        ValueError: no device, or one that does not exist. TypeError: not a `Sequential`; devices that are not a list;
            an option that is neither True nor False.
    """

    device = "cpu"
    _not_copied = "has threads of its own"
    _remedy = "assign it to the network before a DataParallel is made of it"
    _settled = ("model", "device_ids", "devices", "average", "sync_batch_norm")

    def __init__(
        self,
        model: Sequential,
        device_ids: Sequence[int | str] | None = None,
        average: bool = True,
        *,
        sync_batch_norm: bool = False,
    ):
        if not isinstance(model, Sequential):
            raise TypeError(f"DataParallel takes a Sequential, got {type(model).__name__}")
        average, sync_batch_norm = as_bools("DataParallel", average=average, sync_batch_norm=sync_batch_norm)
        if isinstance(device_ids, str | int):
            raise TypeError(f'DataParallel takes a list of devices, as ["cpu"] * 2 or [0, 1], got {device_ids!r}')
        ids = range(cuda.get_device_count()) if device_ids is None else device_ids
        self.devices = [name if isinstance(name, str) else f"cuda:{name}" for name in ids]
        if not self.devices:
            raise ValueError('DataParallel: there is no GPU; for the CPU, say how many replicas: ["cpu"] * 2')
        model.materialize()
        replicas = [model, *(copy.deepcopy(model) for _ in self.devices[1:])]
        for replica, device in zip(replicas, self.devices, strict=True):
            replica.to_device(device)
        self._pool = ThreadPool(len(self.devices))
        self._ranks = self._pool.run(
            _trained, [(replica, self.devices, average, sync_batch_norm) for replica in replicas]
        )
        self._rows: list[slice] = []  # of each device in the last batch
        self._reduces_in_forward = sync_batch_norm and bool(model.arena.running)
        self.output_z_buffer = BaseHiddenStates()
        self.output_z_buffer.arrange(model.out_shape)
        self.input_delta_z_buffer = BaseDeltaStates()
        self.model = model
        self._made = True

    def forward(self, mu_x: ArrayLike, var_x: ArrayLike | None = None) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.forward` of the whole batch. It takes arrays only, not the buffer of another network.

        Raises:
            ValueError: as `Sequential.forward`; fewer samples than devices with `sync_batch_norm`, in training mode.
        """
        self._rows = []
        mu, var, parts = self._divide(mu_x, var_x)
        if self._reduces_in_forward and self.model.training:
            if 0 < len(mu) < len(self.devices):
                raise ValueError(
                    f"with sync_batch_norm each of {len(self.devices)} devices needs a sample, the batch has {len(mu)}"
                )
            self.model.passes.check_input(mu, var)  # here, because other devices would wait for one with an error
        states = self._on_devices(_forward, [(mu[rows], None if var is None else var[rows]) for rows in parts])
        self._rows = parts
        whole = State(*(None if parts[0] is None else np.concatenate(parts) for parts in zip(*states, strict=True)))
        self.output_z_buffer.hold(whole, self.device)
        self.input_delta_z_buffer.set_size(whole.mu.size, len(whole.mu))
        self.input_delta_z_buffer.outdated = True
        return whole.mu.reshape(-1).copy(), self.output_z_buffer.var_a.copy()

    __call__ = forward

    def backward(self) -> None:
        """`Sequential.backward` of the whole batch.

        Raises:
            RuntimeError, ValueError: as `Sequential.backward`. RuntimeError: inside `net.model.accumulate`.
        """
        if not self._rows:
            raise RuntimeError("backward() needs a forward pass in training mode before it (see train())")
        if self.model.passes.accumulating and len(self._ranks) > 1:
            raise RuntimeError("accumulate() does not work with the replicas of a DataParallel: use larger batches")
        deltas = self.input_delta_z_buffer
        deltas.check(self._rows[-1].stop, self.model.out_shape.size)
        deltas.move(self.device)
        mu, var = deltas.arrays
        self._on_devices(_backward, [(mu[rows], var[rows]) for rows in self._rows])
        for net in self._ranks[len(self._rows) :]:  # these have no sample, and deltas of the last batch
            net.model.passes.drop()

    def step(self) -> None:
        """Adds the deltas of all devices and applies them on each, see `DDPSequential.step`.

        Raises:
            RuntimeError, FloatingPointError: as `Sequential.step`.
        """
        self.model.passes.refuse_unread(self.input_delta_z_buffer)
        self._everywhere(DDPSequential.step)

    def forget_evidence(self, factor: float) -> None:
        """`Sequential.forget_evidence` on every device."""
        self._everywhere(DDPSequential.forget_evidence, factor)

    def update_bn(self, loader: Iterable[Any], num_batches: int | None = None) -> list[StatisticsChange]:
        """`DDPSequential.update_bn`: every batch of the loader is divided among the devices, as in training.

        Raises:
            ValueError, FloatingPointError: as `nn.update_bn`; errors of the loader.
        """

        def checked(batch: Any) -> tuple[np.ndarray, np.ndarray | None, list[slice]]:
            divided = self._divide(batch[0] if isinstance(batch, tuple | list) else batch, None)
            self.model.passes.check_input(divided[0])  # as in `forward`
            return divided

        divided = map(checked, batches_of(loader))
        batches, lock = tee(_with_error(divided), len(self._ranks)), Lock()
        parts = [_parts(mine, rank, lock) for rank, mine in enumerate(batches)]
        arguments = [(net, mine, num_batches) for net, mine in zip(self._ranks, parts, strict=True)]
        return self._run(DDPSequential.update_bn, arguments)[0]

    def train(self, mode: bool = True) -> Self:
        """Training mode, see `Sequential.train`."""
        self._everywhere(DDPSequential.train, mode)
        return self

    def predict(
        self, x: ArrayLike, batch_size: int = 256, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.predict`. Each device has a part of the samples, and predicts `batch_size` of them at a time."""
        mu, var, parts = self._divide(x, var_x)
        arguments = [(mu[rows], batch_size, None if var is None else var[rows]) for rows in parts]
        moments = self._on_devices(DDPSequential.predict, arguments)
        means, variances = zip(*moments, strict=True)
        return np.concatenate(means), np.concatenate(variances)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """`Sequential.load_state_dict` on every device."""
        self._everywhere(DDPSequential.load_state_dict, state_dict)

    def load(self, filename: str | bytes | Path) -> None:
        """`Sequential.load` on every device."""
        self._everywhere(DDPSequential.load, filename)

    def synchronize(self) -> None:
        """Copies the parameters and running statistics of replica 0 to all replicas, as after `layer.mu_w = ...`."""
        self._pool.run(_copy_parameters, [(net,) for net in self._ranks])

    def close(self) -> None:
        """Ends the threads; `model` can then be used as any other network."""
        self._pool.close()
        if self.model.trainer is self._ranks[0]:
            self.model.trainer = None
            pool_statistics(self.model, False)

    def _divide(self, mu_x: ArrayLike, var_x: ArrayLike | None) -> tuple[np.ndarray, np.ndarray | None, list[slice]]:
        """(means, variances, slices of rows for the devices that have samples), with one row for each sample.

        If there is no sample, the first device gets an empty slice.
        """
        mu, var = moments_of_samples(mu_x, var_x, "mu_x", self.model.in_shape)
        n, devices = len(mu), len(self.devices)
        ends = np.cumsum([0, *(n // devices + (rank < n % devices) for rank in range(devices))]).tolist()
        parts = [slice(a, b) for a, b in pairwise(ends) if a < b]
        return mu, var, parts or [slice(0, 0)]

    def _on_devices(self, function: Callable[..., Any], arguments: list[tuple]) -> list:
        """Calls `function(replica, *arguments)` on the devices that have samples; returns the results."""
        calls = [(net, *given) for net, given in zip(self._ranks, arguments, strict=False)]
        return self._run(function, calls)

    def _everywhere(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._run(function, [(net, *arguments) for net in self._ranks])

    def _run(self, function: Callable[..., Any], arguments: Sequence[tuple]) -> list:
        """Calls a function on the first devices, after changes of replica 0 were copied to all replicas."""
        first, *others = self._ranks
        if others and first.loads > others[0].loads:
            self.synchronize()
        for net in others:
            for norm, own in zip(first.model.arena.running, net.model.arena.running, strict=True):
                if own.training != norm.training:
                    own.training = norm.training
            for leaf, own in zip(first.model.arena.leaves, net.model.arena.leaves, strict=True):
                if own.frozen != leaf.frozen:
                    own.freeze() if leaf.frozen else own.unfreeze()
            _follow_schedule(first.model, net.model)
        return self._pool.run(function, arguments)


class DataParallelReplica(DDPSequential):
    """A replica. `loads` is how often its parameters were replaced since replicas were last made equal."""

    loads = 0
    title = "DataParallel"

    def parameters_changed(self) -> None:
        super().parameters_changed()
        self.loads += 1

    def deltas_dropped(self) -> None:
        super().deltas_dropped()
        self.loads += 1


def _copy_parameters(net: DataParallelReplica) -> None:
    """Copies the parameters of replica 0 to a replica."""
    if net.rank:
        net.model.drop_deltas()
    net.synchronize()
    net.loads = 0


def _follow_schedule(first: Sequential, own: Sequential) -> None:
    """Copies the schedule of replica 0, with its steps, to the network of a replica."""
    if first.schedule is None or own.schedule is None:
        if first.schedule is not own.schedule:
            own.schedule = copy.copy(first.schedule)
    elif (state := first.schedule.state_dict()) != own.schedule.state_dict():
        own.schedule.load_state_dict(state)


def _trained(replica: Sequential, devices: list[str], average: bool, sync_batch_norm: bool) -> DataParallelReplica:
    """Wraps the network of a rank, without moving it."""
    indices = [int(device.partition(":")[2] or 0) for device in devices]
    config = DDPConfig(backend="threads", device_ids=indices)
    return DataParallelReplica(replica, config, average, sync_batch_norm=sync_batch_norm)


def _forward(net: DDPSequential, mu: np.ndarray, var: np.ndarray | None) -> State:
    net.forward(mu, var)
    return net.output_z_buffer.on("cpu")


def _backward(net: DDPSequential, delta_mu: np.ndarray, delta_var: np.ndarray) -> None:
    net.model.set_delta_z(delta_mu, delta_var)
    net.backward()


def _with_error(batches: Iterator[tuple]) -> Iterator[tuple | Exception]:
    """The batches, followed by the exception that ended them if there is one, so that all ranks raise it."""
    try:
        yield from batches
    except Exception as error:
        yield error


def _parts(batches: Iterator[tuple | Exception], rank: int, lock: Lock) -> Iterator[np.ndarray]:
    """The samples of a rank in batches that `DataParallel._divide` has divided; ranks share the iterator."""
    while True:
        with lock:  # the first rank reads the batch
            batch = next(batches, None)
        if batch is None:
            return
        if isinstance(batch, Exception):
            raise batch
        mu, _, parts = batch
        yield mu[parts[rank]] if rank < len(parts) else mu[:0]
