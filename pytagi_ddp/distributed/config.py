"""How the ranks of a data-parallel job find each other and communicate."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, ClassVar

from pytagi_ddp.distributed.backends import get_distributed_backend, is_initialized
from pytagi_ddp.distributed.bounded_merge import BoundedMerge
from pytagi_ddp.distributed.buckets import Buckets
from pytagi_ddp.distributed.communicator import Communicator, Ranks, as_communicator, create_communicator
from pytagi_ddp.distributed.compression import HalfPrecision
from pytagi_ddp.distributed.engine.errors import LaunchError
from pytagi_ddp.distributed.engine.placement import choose_device
from pytagi_ddp.distributed.exchange import EveryStep, Exchange, Options
from pytagi_ddp.distributed.merge import PosteriorMerge
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.validate import as_bools
from pytagi_ddp.warn import warn

# Options of a `DDPConfig` that may differ between ranks, because they are for connecting, not for the exchange.
OF_A_RANK = ("device_ids", "backend", "rank", "world_size", "timeout", "cuda_aware_mpi")


@dataclass
class DDPConfig:
    """Options for the connection and communication of ranks.

    Attributes:
        device_ids: GPU of each rank of a node, by local rank; None: the GPUs of the node in turn. Unused on the CPU.
        backend: "auto" (MPI if a launcher started several ranks, "threads" in a rank of `run_threads`, otherwise
            serial), "mpi", "nccl", "threads" or "serial". If NCCL cannot start on every rank, a network on the CPU uses
            "auto" instead, with a warning: so programs written for pytagi, whose default is "nccl", also run without a
            GPU.
        rank, world_size: compared with those of the launcher; None: not compared.
        timeout: seconds that a rank may wait for the others; None: $PYTAGI_DDP_TIMEOUT, or 300.
        cuda_aware_mpi: whether "mpi" passes GPU memory to the MPI library directly, instead of copying through pinned
            host memory. The library must be built for that; otherwise it crashes.
        wire_dtype: "float32", or "float16" or "bfloat16" to send half the bytes (networks on the CPU), see
            `pytagi_ddp.distributed.compression.HalfPrecisionSum`.
        buckets: number of parts of the deltas, which are reduced while `backward` computes earlier layers; 1: one
            all-reduce in `step`. More than one saves time over a slow interconnect between nodes; within a node it
            costs time. `backward` is then collective. If a rank may have no batch, call other collectives only after
            `step`.
        offload_params: whether an `FSDPSequential` on a GPU with `reshard_after_forward` keeps its shards in host
            memory, and makes its steps there. The GPU then has 16 bytes for each parameter of the largest group, and a
            step copies 20 P/R bytes between GPU and host.
        strategies: the exchange strategies that options select. A subclass can add options and strategies.

    Raises:
        TypeError: a boolean option is neither True nor False; `device_ids` is not a list.
        AttributeError: assigning an option that does not exist.
    """

    device_ids: Sequence[int] | None = None
    backend: str = "auto"
    rank: int | None = None
    world_size: int | None = None
    timeout: float | None = None
    cuda_aware_mpi: bool = False
    wire_dtype: str = "float32"
    buckets: int = 1
    offload_params: bool = False
    strategies: ClassVar[tuple[type[Exchange], ...]] = (PosteriorMerge, BoundedMerge, Buckets, HalfPrecision)

    def __setattr__(self, name: str, value: Any) -> None:
        options = [field.name for field in fields(self)]
        if name not in options:
            raise AttributeError(f"a DDPConfig has no option {name!r}: {', '.join(options)}")
        if isinstance(getattr(type(self), name, None), bool):
            (value,) = as_bools("DDPConfig", **{name: value})
        if name == "device_ids" and isinstance(value, str | Integral):
            raise TypeError(f"device_ids of a DDPConfig is a list, with the GPU of each rank of a node, got {value!r}")
        super().__setattr__(name, value)

    def connect(self, device: str = "cpu") -> Communicator:
        """The communicator of `initialize`, if it was called and matches these options; otherwise a new one.

        Args:
            device: the device of the network. On the CPU, "auto" is used if NCCL does not start.

        Raises:
            ValueError, LaunchError: as in `create_communicator`.
        """
        if is_initialized(self.backend):
            known = get_distributed_backend(self.backend)
            limit = self.timeout is None or self.timeout == known.timeout
            if limit and not self.cuda_aware_mpi and self.device_ids is None:
                return self.accept(known)
        try:
            return create_communicator(
                self.backend, self.rank, self.world_size, self.timeout, self.device_ids, self.cuda_aware_mpi
            )
        except LaunchError as error:
            if self.backend != "nccl" or device != "cpu":
                raise
            communicator = create_communicator("auto", self.rank, self.world_size, self.timeout)
            if communicator.rank == 0:
                warn(f"ranks communicate by {communicator.backend!r} instead of NCCL: {error}")
            return communicator

    def accept(self, communicator: Ranks) -> Communicator:
        """`communicator`, or one for the ranks of a communicator of mpi4py, after a comparison with these options.

        Raises:
            TypeError, LaunchError: as in `as_communicator`.
            ValueError: it has another rank or world size, another backend, or another time-out.
        """
        communicator = as_communicator(communicator, self.timeout)
        asked: dict[str, Any] = {"rank": self.rank, "world_size": self.world_size}
        asked["backend"] = None if self.backend == "auto" else self.backend
        asked["timeout"] = None if communicator.timeout is None else self.timeout
        for name, value in asked.items():
            actual = getattr(communicator, name)
            if value is not None and value != actual:
                raise ValueError(
                    f"DDPConfig asks for {name}={value!r}, the communicator has {actual!r}: leave {name} out of the "
                    "DDPConfig, or pass another communicator"
                )
        return communicator

    def place(self, model: Sequential, communicator: Communicator) -> None:
        """Moves a network that is on a GPU, or that uses NCCL, to the GPU of its rank.

        Without NCCL and `device_ids`, a network on a GPU does not move if its rank is the only one on the node.
        """
        ours_to_choose = self.device_ids is not None or communicator.local_world_size > 1
        if communicator.backend == "nccl" or (model.device != "cpu" and ours_to_choose):
            model.to_device(f"cuda:{choose_device(communicator.local_rank, self.device_ids)}")

    def check(self, device: str, every: int, sync_batch_norm: bool, merges: bool = False) -> None:
        """Compares these options with each other and with those of a `DDPSequential`.

        Raises:
            TypeError: not a whole number. ValueError: out of range, or they exclude each other.
        """
        merge = "precision_weighted" if merges else None
        choose_strategy(Options(self, device, every=every, merge=merge, sync_batch_norm=sync_batch_norm))


def options_of_all_ranks(config: DDPConfig) -> dict[str, Any]:
    """The options that must be equal on every rank: those of the exchange."""
    names = (field.name for field in fields(config))
    return {name: getattr(config, name) for name in names if name not in OF_A_RANK}


def strategies_asked_for(options: Options) -> list[type[Exchange]]:
    """The strategies that options select; raises the errors of `Exchange.is_asked_for`."""
    return [strategy for strategy in options.config.strategies if strategy.is_asked_for(options)]


def choose_strategy(options: Options) -> type[Exchange]:
    """The strategy that the options select, by default `EveryStep`; ValueError if they exclude each other."""
    asked = strategies_asked_for(options)
    if options.config.offload_params:
        raise ValueError("offload_params is for an FSDPSequential: a replica lies whole where it computes")
    if len(asked) > 1:
        names = " and ".join(strategy.option for strategy in asked)
        raise ValueError(f"only one of these can be chosen, leave the others out: {names}")
    return asked[0] if asked else EveryStep
