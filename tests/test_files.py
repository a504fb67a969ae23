"""Files are whole or not there, whatever happens while they are written."""

import errno
import fcntl
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pytagi_ddp import files
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.checkpoint.manifest import MANIFEST
from pytagi_ddp.data.download import download_file
from pytagi_ddp.data.image_shard import write_shard
from pytagi_ddp.files import atomic_file, atomic_write, check_private, read_private, remove_temporary_files
from pytagi_ddp.nn import Linear, Sequential
from pytagi_ddp.training.log import LOG_NAME, Log

# Saves networks whose parameters are all of one value, 0, 1, 2, ..., and says so after each.
WRITER = """
import sys
from pytagi_ddp.nn import Linear, Sequential
net = Sequential(Linear(600, 400))
for k in range(100_000):
    net.arena.theta[:] = k
    net.save(sys.argv[1])
    print(k, flush=True)
"""


def test_writes_and_replaces(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    atomic_write(path, b"first")
    atomic_write(str(path), b"second")
    assert path.read_bytes() == b"second"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_permissions_are_those_of_any_new_file(tmp_path):
    old = os.umask(0o027)
    try:
        atomic_write(tmp_path / "file", b"")
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_permissions_of_a_file_stay_when_it_is_replaced(tmp_path, mode):
    path = tmp_path / "file"
    path.write_bytes(b"first")
    path.chmod(mode)
    with atomic_file(path) as file:
        assert os.fstat(file.fileno()).st_mode & 0o777 == mode
        file.write(b"second")
    assert path.stat().st_mode & 0o777 == mode


def test_a_folder_that_is_made_for_a_private_file_is_private_whatever_the_umask(tmp_path):
    """A cache that is removed while processes run is made again, and what others may write to is not used."""
    before = os.umask(0o002)
    try:
        atomic_write(tmp_path / "cache" / "code", b"code", private=True)
    finally:
        os.umask(before)
    check_private(tmp_path / "cache")
    assert read_private(tmp_path / "cache" / "code") == b"code"


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"first")
    link.symlink_to(target)
    atomic_write(link, b"second")
    assert (target.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"first", b"second", False)


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)  # in the present folder, as such a path has to be short


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(240, 77))  # a number for local use: no device has it
    except PermissionError:
        pytest.skip("only root makes devices")


SPECIAL = {"fifo": make_fifo, "socket": make_socket, "device": make_device, "folder": os.mkdir}


def net():
    return Sequential(Linear(1, 1))


def fetch(folder):
    (folder / "source").write_bytes(b"data")
    download_file((folder / "source").as_uri(), folder / "file", None, 4, progress=False)


# Everything that writes a file, in a folder, and the name of that file.
WRITERS = {
    "atomic_write": (lambda folder: atomic_write(folder / "file", b"data"), "file"),
    "save": (lambda folder: net().save(folder / "file"), "file"),
    "save_pytagi": (lambda folder: net().save_pytagi(folder / "file"), "file"),
    "save_csv": (lambda folder: net().save_csv(folder / "file"), "file_1_mw.csv"),
    "manifest": (lambda folder: CheckpointManager(folder).save(net(), TrainingPosition()), MANIFEST),
    "download": (fetch, "file"),
    "images": (lambda folder: write_shard(folder / "file", [np.zeros((1, 1, 3), np.uint8)], ""), "file"),
    "log": (lambda folder: Log(folder).begin(), LOG_NAME),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_not_a_regular_file_is_never_replaced(kind, writer, linked, tmp_path, monkeypatch):
    write, name = WRITERS[writer]
    monkeypatch.chdir(tmp_path)
    path, thing = tmp_path / name, tmp_path / ("thing" if linked else name)
    SPECIAL[kind](thing)
    if linked:
        path.symlink_to(thing)
    before = thing.lstat()
    with pytest.raises(OSError, match=name):
        write(tmp_path)
    after = thing.lstat()
    assert (after.st_mode, after.st_ino, after.st_rdev) == (before.st_mode, before.st_ino, before.st_rdev)
    assert path.is_symlink() == linked


def test_what_comes_while_a_file_is_written_is_not_replaced_either(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(OSError, match="a device, pipe or socket is not replaced by a file"), atomic_file(path):
        os.mkfifo(path)
    assert path.is_fifo()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_link_that_leads_nowhere_is_replaced(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "none")
    atomic_write(link, b"data")
    assert (link.is_symlink(), link.read_bytes()) == (False, b"data")


def test_an_error_leaves_the_previous_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    atomic_write(path, b"first")
    with pytest.raises(TypeError):
        atomic_write(path, "text, not bytes")
    assert path.read_bytes() == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_in_the_way(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        atomic_write(tmp_path / "file", b"data")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_path_without_a_name(path):
    with pytest.raises(IsADirectoryError, match=rf"'{re.escape(str(Path(path)))}'$"):
        atomic_write(path, b"data")


def test_errors_name_the_file(tmp_path):
    (tmp_path / "file").mkdir()
    (tmp_path / "other").write_text("")
    for path in (tmp_path / "file", tmp_path / "other" / "file", Path("/dev/full/file")):
        with pytest.raises(OSError, match=rf"^\[Errno \d+\] [\w ]+: '{path}'$|: '{path.parent}'$"):
            atomic_write(path, b"data")


@pytest.mark.parametrize("other", ["longer", "pipe"])
def test_a_file_that_is_exchanged_after_its_check_is_checked_again(tmp_path, monkeypatch, other):
    """The pipe was waited for, and the longer file was read whole."""
    path, size_of = tmp_path / "file", files.file_size
    path.write_bytes(b"short")

    def exchanging(*arguments):
        size = size_of(*arguments)
        if len(arguments) == 1:
            path.unlink()
            path.write_bytes(b"x" * 11) if other == "longer" else os.mkfifo(path)
        return size

    monkeypatch.setattr(files, "file_size", exchanging)
    error, message = (ValueError, "has 11 bytes, more than the 10") if other == "longer" else (OSError, "not a regular")
    with pytest.raises(error, match=message):
        files.read_file(path, 10)


def test_a_pipe_in_place_of_a_file_with_a_lease_is_not_waited_for(tmp_path, monkeypatch):
    path, opens = tmp_path / "file", os.open
    path.write_bytes(b"data")

    def exchanging(name, flags):
        if path.is_fifo():
            return opens(name, flags) if flags & os.O_NONBLOCK else pytest.fail("waits for the pipe")
        path.unlink()
        os.mkfifo(path)
        raise BlockingIOError(errno.EWOULDBLOCK, "lease", name)

    monkeypatch.setattr(os, "open", exchanging)
    with pytest.raises(OSError, match="not a regular file"):
        files.read_file(path)


@pytest.mark.skipif(sys.platform != "linux", reason="leases of Linux")
def test_a_file_that_a_server_has_a_lease_of_is_waited_for(tmp_path):
    """It was an error: servers of NFS and SMB hold leases of files that their clients write."""
    path = tmp_path / "file"
    path.write_bytes(b"data")
    with path.open("r+b") as server:
        try:
            fcntl.fcntl(server, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"no leases here: {error}")

        def give_back(number, frame):
            fcntl.fcntl(server, fcntl.F_SETLEASE, fcntl.F_UNLCK)

        before = signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            signal.signal(signal.SIGALRM, give_back)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            begin = time.monotonic()
            assert files.read_file(path) == b"data" and time.monotonic() - begin > 0.05
        finally:
            signal.signal(signal.SIGIO, before)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_what_another_process_writes_is_no_leftover(tmp_path):
    """Two jobs that saved in one folder removed each other's files, with errors that named no reason."""
    with atomic_file(tmp_path / "file") as file:
        file.write(b"data")
        remove_temporary_files(tmp_path, "*")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"data")]


def test_what_another_process_writes_is_no_leftover_on_nfs(tmp_path, monkeypatch):
    """Where files that are open for reading cannot be locked, those of other jobs were removed."""
    flock = fcntl.flock

    def of_nfs(descriptor, operation):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    with atomic_file(tmp_path / "file") as file:
        file.write(b"data")
        remove_temporary_files(tmp_path, "*")
    assert (tmp_path / "file").read_bytes() == b"data"


@pytest.mark.parametrize("removed", [False, True])
def test_another_process_that_is_first_to_lock_a_new_file_may_remove_it(tmp_path, monkeypatch, removed):
    """It is written again. `removed`: the other process has removed it before this one tries to lock it."""
    flock, others = files.lock, []

    def late(descriptor):
        if not others:
            (leftover,) = tmp_path.iterdir()
            others.append(os.open(leftover, os.O_RDWR))
            assert flock(others[0])
            leftover.unlink()
            if removed:
                os.close(others[0])
        return flock(descriptor)

    monkeypatch.setattr(files, "lock", late)
    atomic_write(tmp_path / "file", b"data")
    if not removed:
        os.close(others[0])
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"data")]


def test_leftovers_that_are_read_only_are_removed(tmp_path, monkeypatch):
    leftover = tmp_path / f".a.{'0f' * 16}.tmp"
    leftover.write_text("")

    def of_a_user(path, mode):  # root may write to any file
        if mode != "rb":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open(path, mode)

    monkeypatch.setattr(files, "open", of_a_user, raising=False)
    remove_temporary_files(tmp_path, "a")
    assert not [*tmp_path.iterdir()]


def test_leftovers_are_removed(tmp_path):
    mine, others = f".a.txt.{'0f' * 16}.tmp", [f".b.{'0f' * 16}.tmp", ".a.txt.tmp", "a.txt", f".a.txt.{'x' * 32}.tmp"]
    for name in (mine, *others):
        (tmp_path / name).write_text("")
    remove_temporary_files(tmp_path, "a*")
    remove_temporary_files(tmp_path / "none", "a*")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("name", ["x" * 217, "x" * 218, "x" * 255, "\u00e9" * 127, "x" + "\u00e9" * 127, "\u20ac" * 85])
def test_names_as_long_as_the_system_takes(tmp_path, name):
    path = tmp_path / name
    with atomic_file(path) as file:
        file.write(b"data")
        (temporary,) = (other.name for other in tmp_path.iterdir())
    assert path.read_bytes() == b"data"
    assert [other.name for other in tmp_path.iterdir()] == [name]
    assert re.fullmatch(r"\..{50,}\.[0-9a-f]{32}\.tmp", temporary)
    (tmp_path / temporary).write_bytes(b"of a process that was killed")
    remove_temporary_files(tmp_path, name)
    assert [other.name for other in tmp_path.iterdir()] == [name]


def test_a_longer_name_is_an_error_that_names_it(tmp_path):
    with pytest.raises(OSError, match=f"{'x' * 256}'$"):
        atomic_write(tmp_path / ("x" * 256), b"data")
    assert not [*tmp_path.iterdir()]


def test_paths_of_bytes(tmp_path):
    net = Sequential(Linear(2, 1))
    path = os.fsencode(tmp_path / "net")
    for save, load in ((net.save, net.load), (net.save_pytagi, net.load), (net.save_csv, net.load_csv)):
        values = net.layers[0].mu_w.copy()
        save(path)
        net.layers[0].mu_w = np.zeros(2)
        load(path)
        np.testing.assert_array_equal(net.layers[0].mu_w, values)
    suffixes = ["", "_1_mw.csv", "_2_Sw.csv", "_3_mb.csv", "_4_Sb.csv"]
    assert sorted(other.name for other in tmp_path.iterdir()) == [f"net{suffix}" for suffix in suffixes]
    for load, name in ((net.load, "nothing"), (net.load_csv, "nothing_1_mw.csv")):
        with pytest.raises(FileNotFoundError, match=f"'{tmp_path / name}'$"):
            load(os.fsencode(tmp_path / "nothing"))
    CheckpointManager(os.fsencode(tmp_path / "checkpoints")).save(net, TrainingPosition(epoch=1))
    restored = CheckpointManager(tmp_path / "checkpoints").latest()
    assert restored is not None


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_kill_while_saving_loses_at_most_the_newest_file(tmp_path):
    """kill -9 at different moments of a save: the file is there, whole, the newest or the one before it."""
    path = tmp_path / "net.safetensors"
    net = Sequential(Linear(600, 400))
    for attempt in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        )
        assert process.stdout is not None
        saved = -1
        while saved < 2:
            saved = int(process.stdout.readline())
        time.sleep(0.002 * attempt)
        process.kill()
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        assert process.returncode == -signal.SIGKILL
        saved = int(rest[-1]) if rest else saved
        net.load(path)
        values = set(net.arena.theta.ravel().tolist())
        assert values in ({float(saved)}, {float(saved + 1)})
