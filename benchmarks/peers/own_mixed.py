"""This library, with bfloat16 products of variances."""

from typing import ClassVar

from benchmarks.peers import own

versions = own.versions


class Step(own.Step):
    settings: ClassVar = {"precision": "mixed"}
