"""What all tests share: priors drawn from one seed, the marker of tests that need a GPU, what may run side by side."""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from pytagi_ddp import manual_seed
from pytagi_ddp.distributed import is_initialized


def pytest_configure(config):
    """`pytest -m gpu` runs the tests that need a GPU and nothing else."""
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")


# What others cover for the most part, and what takes long, is tested once a week (.github/workflows/faults.yml), and
# before a release.
ALL_TESTS = os.environ.get("PYTAGI_DDP_ALL_TESTS") == "1"
weekly = pytest.mark.skipif(not ALL_TESTS, reason="tested once a week, with PYTAGI_DDP_ALL_TESTS=1")
COMPILE_KERNELS = {"tests/cuda/test_compile.py", "tests/cuda/ptx/test_lane.py"}


@cache
def starts_ranks(path: Path) -> bool:
    """Whether a file has tests that start MPI ranks."""
    return re.search(r"mark\.mpi\b|tests\.mpi\.shared import", path.read_text()) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile`: two processes at most run what starts ranks.

    Ranks take every core, and their tests have limits of time. And one process compiles CUDA kernels, once for both
    tests that use them.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # here, because pytest-xdist is not always in use

    class RanksInOneProcess(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            if file in COMPILE_KERNELS:
                return "kernels"
            if not starts_ranks(config.rootpath / file):
                return file
            return "ranks of examples" if file.startswith("tests/examples/") else "ranks"

    config.option.loadscopereorder = False
    return RanksInOneProcess(config, log)


def pytest_collection_modifyitems(config, items):
    """In a process of pytest-xdist, what takes longest begins first, and the rest fills up the other processes.

    Real ranks come after the same programs on threads: where loops are yet to be compiled, ranks wait at full load.
    """

    def rank(item):
        compiles = item.path.relative_to(config.rootpath).as_posix() in COMPILE_KERNELS
        real_ranks, slow = (item.get_closest_marker(name) is not None for name in ("mpi", "slow"))
        return not compiles, not starts_ranks(item.path), real_ranks, not slow

    if hasattr(config, "workerinput"):
        items.sort(key=rank)


@pytest.fixture(autouse=True)
def seeded():
    """A network amplifies rounding as its prior happens to be; a bound that holds for one prior shall hold again."""
    manual_seed(0)


@pytest.fixture(autouse=True)
def closes_communicators():
    """A test that leaves a communicator open fails itself, and not the one that finds it open later."""
    before = is_initialized()
    yield
    assert is_initialized() == before, "get_distributed_backend(...).close() is missing at the end of this test"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "pytagi-ddp-test", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("may not mount a file system (needs root)")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="session")
def processes() -> int:
    """How many processes a test may start to be done sooner: one where pytest itself runs in two."""
    return 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
