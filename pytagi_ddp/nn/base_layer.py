"""pytagi's place of `BaseLayer`."""

from pytagi_ddp.nn.layer import BaseLayer

__all__ = ["BaseLayer"]
