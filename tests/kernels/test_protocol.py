"""The CPU and CUDA have exactly the kernels that `kernels.protocol` declares, with the same arguments."""

import importlib
import inspect
import sys
from functools import partial
from importlib.util import find_spec
from typing import get_type_hints

import pytest

from pytagi_ddp.kernels import protocol

MODULES = get_type_hints(protocol.Kernels)
ARRAYS = {"cpu": None, "cuda": "Arrays"}  # the class with the functions of `array`; None: they are in the module
BESIDE = {("cpu", "linear"): {"why_not_mixed"}}  # what else a module offers


def functions(owner) -> dict:
    """Public functions that are written in `owner`, a module or class, or made there of those of another layer."""
    home = owner.__name__ if inspect.ismodule(owner) else owner.__module__

    def is_here(f) -> bool:
        made = isinstance(f, partial) and ".layers." in f.func.__module__
        return made or (inspect.isfunction(f) and f.__module__ == home)

    return {name: f for name, f in vars(owner).items() if not name.startswith("_") and is_here(f)}


def arguments(function) -> list[tuple]:
    """(name, kind, default) of every argument but self and keyword-only options."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters if p.name != "self" and p.kind != p.KEYWORD_ONLY]


def signatures(owner) -> dict[str, list[tuple]]:
    return {name: arguments(function) for name, function in functions(owner).items()}


@pytest.fixture(params=["cpu", "cuda"])
def device(request) -> str:
    if request.param == "cuda" and find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed")
    return request.param


def module_of(device: str, name: str):
    return getattr(importlib.import_module(f"pytagi_ddp.kernels.{device}"), name)


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"array", "graph"}))
def test_kernels_are_those_declared(device, name):
    actual = signatures(module_of(device, name))
    for extra in BESIDE.get((device, name), ()):
        actual.pop(extra, None)
    assert actual == signatures(MODULES[name])


def test_arrays(device):
    module = module_of(device, "array")
    owner = getattr(module, ARRAYS[device]) if ARRAYS[device] else module
    expected = signatures(protocol.ArrayFunctions)
    actual = {name: arguments(getattr(owner, name)) for name in expected}
    assert actual == expected
    assert isinstance(owner.asynchronous, bool)


def test_graphs(device):
    graphs = module_of(device, "graph").Graphs
    assert signatures(graphs) == signatures(protocol.Graphs)
    if sys.version_info >= (3, 11):  # Python 3.10 replaces that of a protocol
        assert arguments(graphs.__init__) == arguments(protocol.Graphs.__init__)


def test_modules_are_those_declared(device):
    package = importlib.import_module(f"pytagi_ddp.kernels.{device}")
    assert set(package.__all__) - {"threads"} == MODULES.keys()


def test_the_comparison_sees_a_difference():
    def swapped(x, delta, bias, weights, in_delta, accumulate): ...

    def renamed(x, delta, weights, bias, deltas, accumulate): ...

    expected = arguments(protocol.Linear.backward)
    assert arguments(swapped) != expected and arguments(renamed) != expected
