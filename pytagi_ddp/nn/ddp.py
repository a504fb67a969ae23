"""pytagi's place of `DDPConfig` and `DDPSequential`."""

from pytagi_ddp.distributed import DDPConfig, DDPSequential

__all__ = ["DDPConfig", "DDPSequential"]
