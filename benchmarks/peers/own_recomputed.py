"""This library, running blocks again in the backward pass instead of keeping what is in them."""

from typing import ClassVar

from benchmarks.peers import own

versions = own.versions


class Step(own.Step):
    settings: ClassVar = {"checkpoint_blocks": True}
