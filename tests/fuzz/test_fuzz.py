"""Every reader, with damaged files: a fixed number of them here, as many as one likes with `make fuzz`."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("resource", reason="this system has no limit of memory")
from tests.conftest import ALL_TESTS
from tests.fuzz import __main__ as command
from tests.fuzz.cases import Reader, limited_memory
from tests.fuzz.formats import FORMATS
from tests.fuzz.kept import KEPT

CASES = 500 if ALL_TESTS else 100  # of each format, in a process that may crash


@pytest.mark.parametrize("number", range(len(KEPT)))
def test_what_once_broke_something(number, tmp_path):
    name, file, content = KEPT[number]
    reader = Reader(name, tmp_path)
    with limited_memory(reader.memory_limit()):
        reader.check(file, content)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_files(tmp_path):
    program = [sys.executable, "-m", "tests.fuzz", "--here", "--cases", str(CASES), "--keep", str(tmp_path / "kept")]
    environment = os.environ | {"PYTAGI_DDP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(program, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f": {CASES} files, ") == len(FORMATS)
    assert not (tmp_path / "kept").exists()


def test_a_process_that_ends_by_a_signal_is_an_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=-signal.SIGSEGV))
    args = SimpleNamespace(cases=3, seconds=1.0, seed=0, keep=tmp_path)
    assert command.in_a_process("idx", args) == 1
    assert capsys.readouterr().out == (f"idx: ended by SIGSEGV (SIGPROF: more than 5.0 s); the file is in {tmp_path}\n")
