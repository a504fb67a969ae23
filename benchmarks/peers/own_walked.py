"""This library, whose steps walk through the layers instead of being replayed."""

from benchmarks.peers import own
from pytagi_ddp.kernels.cpu.runtime import graph

versions = own.versions
graph.use_graphs = False
Step = own.Step
