"""The wait of OpenMP's threads: short unless the user has set it, and nothing of it is left in the environment."""

import os
import subprocess
import sys

import pytest

from pytagi_ddp.kernels.cpu import waiting

pytestmark = pytest.mark.slow  # starts processes of its own

PROGRAM = """
import os, ctypes
{before}
from pytagi_ddp.kernels.cpu import threads, waiting
print(waiting.describe())
print(os.environ.get("GOMP_SPINCOUNT"))
"""
LOADED_BEFORE = 'ctypes.CDLL("libgomp.so.1")'


def run(before: str = "", **environment: str) -> list[str]:
    known = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    program = PROGRAM.format(before=before)
    result = subprocess.run(
        [sys.executable, "-c", program], env=known | environment, capture_output=True, text=True, check=True
    )
    return result.stdout.splitlines()


def test_it_is_short():
    description, left = run()
    assert description == f"short, {waiting.SPINS} spins (GOMP_SPINCOUNT)" and left == "None"


@pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP")
def test_openmp_has_heard_of_it():
    program = "from pytagi_ddp.kernels.cpu import linear"
    known = {name: value for name, value in os.environ.items() if name not in waiting.VARIABLES}
    environment = known | {"OMP_DISPLAY_ENV": "VERBOSE"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert f"GOMP_SPINCOUNT = '{waiting.SPINS}'" in result.stderr


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "passive")])
def test_the_user_decides(name, value):
    assert run(**{name: value}) == [f"as {name}={value} says", value if name == "GOMP_SPINCOUNT" else "None"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_another_library_was_first():
    description, left = run(LOADED_BEFORE)
    assert "another library" in description and "GOMP_SPINCOUNT" in description and left == "None"
