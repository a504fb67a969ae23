"""What all tests share: priors drawn from one seed, and the marker of tests that need a GPU."""

import pytest

from pytagi_ddp import manual_seed


def pytest_configure(config):
    """`pytest -m gpu` runs the tests that need a GPU and nothing else."""
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")


@pytest.fixture(autouse=True)
def seeded():
    """A network amplifies rounding as its prior happens to be; a bound that holds for one prior shall hold again."""
    manual_seed(0)
