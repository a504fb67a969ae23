"""Communication between ranks: `create_communicator` and what its collectives raise; data-parallel training.

`DDPConfig` and `DDPSequential` are loaded when asked for (`pytagi_ddp.nn` has them too).
"""

from pytagi_ddp.distributed.communicator import Communicator, SerialCommunicator, create_communicator
from pytagi_ddp.distributed.errors import CollectiveTimeoutError, LaunchError, RankLeftError

__all__ = [
    "CollectiveTimeoutError",
    "Communicator",
    "DDPConfig",
    "DDPSequential",
    "LaunchError",
    "RankLeftError",
    "SerialCommunicator",
    "create_communicator",
]


def __getattr__(name: str):
    if name in ("DDPConfig", "DDPSequential"):
        from pytagi_ddp.distributed import ddp

        return getattr(ddp, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
