"""What all tests share: priors drawn from one seed, the marker of tests that need a GPU, what may run side by side."""

import os

import pytest

from pytagi_ddp import manual_seed


def pytest_configure(config):
    """`pytest -m gpu` runs the tests that need a GPU and nothing else."""
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """With `--dist loadgroup`: one process runs all that starts ranks, which take every core and limits of time.

    They and the slow ones come first, so that the others fill up what is left; those of a file share its fixtures.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        group = "mpi" if item.get_closest_marker("mpi") else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: (not item.get_closest_marker("mpi"), not item.get_closest_marker("slow")))


@pytest.fixture(autouse=True)
def seeded():
    """A network amplifies rounding as its prior happens to be; a bound that holds for one prior shall hold again."""
    manual_seed(0)


@pytest.fixture(scope="session")
def processes() -> int:
    """How many processes a test may start to be done sooner: one where pytest itself runs in two."""
    return 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
