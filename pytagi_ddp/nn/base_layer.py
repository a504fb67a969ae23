"""pytagi's place of `BaseLayer`."""

from pytagi_ddp.nn.core.layer import BaseLayer

__all__ = ["BaseLayer"]
