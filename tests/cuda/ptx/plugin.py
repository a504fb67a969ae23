"""A plugin of pytest with which tests of GPUs run on the machine of this folder. See `README.md`.

A problem that the machine finds in a launch makes the test fail in which the launch happens. Tests of kernels and of
networks run in two of the `WAYS`: orders of threads, and alignments of arrays. Once a week more tests run in more ways.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ALL_TESTS
from tests.cuda.kept import letters
from tests.cuda.ptx.machine import BACKWARDS, FORWARDS, SHUFFLED, machine
from tests.cuda.ptx.stand_in import stand_in

WAYS = {"shuffled": SHUFFLED, "unaligned": BACKWARDS, "forwards": FORWARDS}  # the order of threads in each
SECOND = {"test_kernels.py": "unaligned", "test_products.py": "unaligned", "test_networks.py": "forwards"}
KERNELS = {"test_kernels.py", "test_products.py"}  # where an argument that is NaN counts as not written
ONCE_A_WEEK = {"test_kernels.py": "forwards", "test_products.py": "forwards", "test_battery.py": "forwards"}


def pytest_addoption(parser):
    parser.getgroup("ptx").addoption("--ptx-report", type=Path, help="where to write, as JSON, which kernels ran")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():
    """Before any conftest asks for a GPU: without one, that of `tests/cuda/on_device` leaves its tests out."""
    stand_in()


def pytest_generate_tests(metafunc):
    name = Path(metafunc.module.__file__).name
    more = (SECOND, ONCE_A_WEEK) if ALL_TESTS else (SECOND,)
    chosen = ["shuffled", *(ways[name] for ways in more if name in ways)]
    metafunc.parametrize("way", chosen, indirect=True)


@pytest.fixture(autouse=True)
def way(request, monkeypatch):
    """One way to run: the order of threads, and whether arrays begin at multiples of 16 bytes."""
    import cupy

    from pytagi_ddp.kernels.cuda.runtime.array import Arrays

    machine.order = WAYS[request.param]
    if request.param == "unaligned":
        monkeypatch.setattr(Arrays, "place", _place_unaligned)
    monkeypatch.setattr(cupy, "nan_is_unwritten", request.path.name in KERNELS)
    before = len(machine.problems)
    yield
    cupy.cuda.get_current_stream().synchronize()
    assert not machine.problems[before:], "\n".join(map(str, machine.problems[before:]))


def _place_unaligned(device, source, into=None):
    placed = device.empty(source.size + 1, source.dtype)[1:].reshape(source.shape)
    device.copy(source, placed)
    return placed


def pytest_sessionfinish(session):
    """Writes the report: launches of each kernel in each way, and what its launches did together."""
    if path := session.config.getoption("--ptx-report"):
        ways = {order: way for way, order in WAYS.items()}
        ran = [[kernel, ways[order], times] for (kernel, order), times in machine.launches.items()]
        work = {
            kernel: sum((made.work for made in programs), Counter()) for kernel, programs in machine.programs.items()
        }
        idle = {
            kernel: places
            for kernel, programs in machine.programs.items()
            if (places := [[line, len(made.kernel.lines)] for made in programs for line in made.idle_barriers])
        }
        path.write_text(json.dumps({"launches": ran, "work": work, "variants": _loaded(), "idle": idle}))


def _loaded() -> dict[str, list[str]]:
    """Of each kernel the variants that were asked for: with (p) or without (a) its optional arguments."""
    from pytagi_ddp.kernels.cuda.runtime.compile import REGISTRY

    return {name: sorted({letters(variant) for _, variant in kernel._loaded}) for name, kernel in REGISTRY.items()}
