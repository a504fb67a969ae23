"""Importing the package is quick because it loads little."""

import subprocess
import sys


def test_import_waits_for_neither_numba_nor_scipy():
    code = "import sys, pytagi_ddp; print(sorted({'numba', 'scipy', 'matplotlib', 'tqdm'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
