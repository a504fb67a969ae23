"""Processes that start together compile each loop once, and none of them waits for a process that has ended."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numba
import pytest

from pytagi_ddp.kernels.cpu.runtime.shared_cache import SUFFIX, FileLock, share
from tests.conftest import weekly
from tests.kernels.all_loops import loops

pytestmark = pytest.mark.slow  # starts processes of its own

# Runs two loops and prints how many of them this process compiled. With an argument it stays in its first compilation.
PROGRAM = """
import sys, time
from pathlib import Path
import numba.core.event as event
import numpy as np
from pytagi_ddp.kernels.cpu.layers import elementwise
from pytagi_ddp.kernels.tensors import Delta

class Count(event.Listener):
    compiled = 0
    def on_start(self, started):
        if started.data["dispatcher"].py_func.__module__ == elementwise.__name__:
            self.compiled += 1
            if sys.argv[1:]:
                Path(sys.argv[1]).touch()
                time.sleep(600)
    def on_end(self, ended):
        pass

count = Count()
event.register("numba:compile", count)
a, b, c = (np.full(4, value, np.float32) for value in (1, 2, 3))
elementwise.add(a, b, a)
elementwise.apply_jacobian(Delta(a, b), c)
elementwise.multiply(b, c)
elementwise.copy_columns(b[None], 0, a[None], 2, 2)
assert (*a, b[0]) == (9, 9, 54, 54, 54), (a, b)
print(count.compiled)
"""
LOOPS = 4
# Prints the bits of a loop that calls others.
LSTM = """
import numpy as np
from pytagi_ddp import manual_seed, nn

manual_seed(7)
net = nn.Sequential(nn.LSTM(6, 9, seq_len=4))
mu, var = net(np.random.default_rng(0).normal(size=(5, 24)))
print(mu.tobytes().hex(), var.tobytes().hex())
"""


def twice(x):
    return x + x


def start(cache: Path, *arguments: str, program: str = PROGRAM) -> subprocess.Popen:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTAGI_DDP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def compiled(*processes: subprocess.Popen) -> list[int]:
    found = []
    for process in processes:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        found.append(int(out))
    return found


@pytest.mark.slow
def test_each_loop_is_compiled_once_by_three_processes(tmp_path):
    assert sum(compiled(*(start(tmp_path) for _ in range(3)))) == LOOPS
    assert compiled(start(tmp_path)) == [0]


@weekly
@pytest.mark.slow
def test_a_process_that_compiles_has_the_bits_of_one_that_loads(tmp_path):
    one, other = (start(tmp_path, program=LSTM).communicate(timeout=120)[0] for _ in range(2))
    assert one == other != ""


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_compiles_holds_nobody_up(tmp_path):
    mark = tmp_path / "compiling"
    first = start(tmp_path, str(mark))
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    others = [start(tmp_path) for _ in range(2)]
    time.sleep(2)
    assert [other.poll() for other in others] == [None, None], "they did not wait for the first process"
    first.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert sum(compiled(*others)) == LOOPS
    assert time.monotonic() - killed < 30
    first.communicate()


def test_the_place_is_the_folder_and_not_one_of_the_user(tmp_path, monkeypatch):
    """Numba reads places from variables; they are for functions of the program."""
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "NoSuchLocator", raising=False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "elsewhere")
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        dispatcher = numba.njit(twice)
        share(dispatcher, tmp_path / "cache")
        (tmp_path / "cache").mkdir(exist_ok=True)
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert dispatcher(4) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "cache"]
    assert [path.suffix for path in sorted((tmp_path / "cache").iterdir())] == [SUFFIX, ".lock"]
    assert dispatcher.stats.cache_hits and not dispatcher.stats.cache_misses


def test_no_two_loops_have_one_name():
    """One would load the code of the other."""
    names = [(loop.__module__, loop.__qualname__) for _, loop in loops()]
    assert len(set(names)) == len(names) > 50


def test_each_signature_each_processor_and_each_python_has_a_file(tmp_path, monkeypatch):
    dispatcher = numba.njit(twice)
    share(dispatcher, tmp_path)
    assert dispatcher(4) == 8 and dispatcher(0.5) == 1
    codegen = type(dispatcher.targetctx.codegen())
    for count, (owner, name, value) in enumerate(
        (
            (codegen, "magic_tuple", lambda self: ("another processor",)),
            (numba, "__version__", "another"),
            (sys, "version_info", (3, 99)),
            (sys, "abiflags", "another"),
            (numba.config, "BOUNDSCHECK", 1),
        ),
        start=3,
    ):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value)
            other = numba.njit(twice)
            share(other, tmp_path)
            assert other(4) == 8 and not other.stats.cache_hits, name
        assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == count, name


def test_a_full_disk_costs_the_cache_and_nothing_else(tmp_path):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n" + PROGRAM
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTAGI_DDP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", limited], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (f"{LOOPS}\n", 0), done.stderr


@pytest.mark.slow
def test_damaged_files_are_made_again(tmp_path):
    """Whatever is damaged of compiled code: neither an error nor other numbers."""
    assert compiled(start(tmp_path)) == [LOOPS]
    files = sorted(path for path in tmp_path.rglob(f"*{SUFFIX}") if "elementwise" in path.name)
    damages = (
        lambda data: data[: len(data) // 2],
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: b"",
        lambda data: b"nonsense" * 99,
    )
    for path, damage in zip(files, damages, strict=True):
        path.write_bytes(damage(path.read_bytes()))
    assert compiled(start(tmp_path)) == [LOOPS]
    assert compiled(start(tmp_path)) == [0]


def test_a_lock_that_another_has_is_waited_for_and_then_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(FileLock, "patience", 0.2)
    mine, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert other.acquire()
    begin = time.monotonic()
    assert not mine.acquire()
    assert 0.2 <= time.monotonic() - begin < 5
    assert FileLock.patience == 0  # the next one is not waited for
    mine.release()
    other.release()
    assert mine.acquire()
    mine.release()


def test_a_signal_ends_the_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(FileLock, "patience", 20)

    def stop(*_):
        raise KeyboardInterrupt

    mine, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert other.acquire()
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            mine.acquire()
    finally:
        signal.signal(signal.SIGALRM, before)
        mine.release()
    other.release()


def test_a_child_that_has_the_file_open_does_not_keep_the_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(FileLock, "patience", 0)
    mine, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert mine.acquire()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[mine._file])
    try:
        mine.release()
        assert other.acquire()
        other.release()
    finally:
        child.kill()
        child.wait()


def test_without_a_lock_work_goes_on_at_once(tmp_path, monkeypatch):
    lock = FileLock(tmp_path / "no such folder" / "lock")
    assert not lock.acquire()
    lock.release()

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = FileLock(tmp_path / "lock")
    begin = time.monotonic()
    assert not lock.acquire()
    assert time.monotonic() - begin < 5
    lock.release()
