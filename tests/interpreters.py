"""The Pythons of this machine, and what is tried with one of them.

It gets an environment of its own, and the library is installed there from a copy of the files under version control,
compiled without optimisation. Then it imports the library, takes one training step, runs `python -m pytagi_ddp.doctor`
and `tests/nn/test_golden.py`.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.clean_tree import ROOT, hasty, source_tree

GOLDEN = "tests/nn/test_golden.py"
NEEDS = ("pytest>=8.0", "pytest-timeout>=2.3")  # what tests/nn/test_golden.py needs beside the library
STEP = """
import numpy as np
import pytagi_ddp
from pytagi_ddp.nn import Conv2d, Linear, OutputUpdater, ReLU, Sequential
pytagi_ddp.manual_seed(1)  # one prior in four has a ReLU that lets nothing through
net = Sequential(Conv2d(1, 2, 3, in_width=6, in_height=6), ReLU(), Linear(32, 1))
before = net.state_dict()["Linear.2"][0].copy()
net(np.ones(36))
OutputUpdater(net.device).update(net.output_z_buffer, [1.0], [1.0], net.input_delta_z_buffer)
net.backward()
net.step()
assert np.any(net.state_dict()["Linear.2"][0] != before)
print(pytagi_ddp.__file__)
"""


def supported() -> list[str]:
    """The Python versions that pyproject.toml names, oldest first."""
    named = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    return [f"3.{minor}" for minor in sorted(map(int, named))]


def interpreter(version: str) -> str | None:
    """The path of a Python of this version, on the search path or among those of pyenv; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for candidate in (shutil.which(f"python{version}"), *sorted(pyenv.glob(f"versions/{version}.*/bin/python3"))):
        if candidate is None:
            continue
        command = [str(candidate), "-c", "import ensurepip, sys, venv; print(sys.executable)"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        headers = ["-c", "import os, sysconfig; print(os.path.exists(sysconfig.get_path('include') + '/Python.h'))"]
        if asked.returncode == 0:
            path = asked.stdout.strip()
            if subprocess.run([path, *headers], capture_output=True, text=True, check=False).stdout.strip() == "True":
                return path
    return None


def newest() -> str | None:
    """The newest Python of this machine, if it is newer than this one."""
    later = [version for version in supported() if int(version[2:]) > sys.version_info.minor]
    return next(filter(None, map(interpreter, reversed(later))), None)


def check(python: str, folder: Path, wheel: Path | None = None) -> None:
    """Installs the library for an interpreter, in `folder`, and runs the checks.

    Args:
        python: the interpreter.
        folder: an empty one.
        wheel: one to install, where no compiler and no other program of this machine is found; else the sources are.

    Raises:
        RuntimeError: one of them failed; the message has the end of its output.
    """
    sources, away = source_tree(folder / "tree"), folder / "away"
    away.mkdir()
    (away / "tests").symlink_to(sources / "tests")
    shutil.copy2(sources / "pyproject.toml", away)
    executable = str(folder / "env" / "bin" / "python")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    clean |= {"PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    named = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    compiler = shutil.which(named[0])
    haste = {"CC": hasty(shlex.join([compiler, *named[1:]]), folder)} if compiler else {}
    if wheel is not None:
        clean["PATH"] = str(folder / "env" / "bin")
    pip = [sys.executable, "-m", "pip", "--python", executable, "install", "--quiet"]  # a copy of it takes seconds
    commands: list[tuple[list[str], dict[str, str]]] = [
        ([python, "-m", "venv", "--without-pip", str(folder / "env")], {}),
        ([*pip, f"{wheel or sources}[mpi]", *NEEDS], haste),
        ([executable, "-c", STEP], {}),
        ([executable, "-m", "pytagi_ddp.doctor"], {}),
        ([executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", GOLDEN], {}),
    ]
    for command, extra in commands:
        done = subprocess.run(command, cwd=away, env=clean | extra, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)[:200]} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
