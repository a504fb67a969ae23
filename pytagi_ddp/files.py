"""Atomic writing of files, and careful reading of files that somebody else may have made."""

import contextlib
import errno
import fcntl
import os
import stat
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
MAX_NAME = 255  # bytes of a name, in nearly every file system
_NOFOLLOW = os.O_NOFOLLOW | os.O_NONBLOCK  # nor is a pipe waited for
MARK = 32  # characters that tell temporary files of one name apart


def as_path(path: AnyPath) -> Path:
    """The path, of text, bytes or an object."""
    return Path(os.fsdecode(path))


def file_size(path: AnyPath, descriptor: int | None = None) -> int:
    """The size of a regular file in bytes; with a `descriptor`, of the open file.

    Raises:
        OSError: no such file, or a pipe, device or folder, which a read might wait for or never end; names it.
    """
    status = os.stat(path if descriptor is None else descriptor)
    if not stat.S_ISREG(status.st_mode):
        kind = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(kind, f"{os.strerror(kind)}: not a regular file", os.fsdecode(path))
    return status.st_size


def read_file(path: AnyPath, limit: int | None = None) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: as in `file_size`. ValueError: the file has more than `limit` bytes; nothing is read then.
    """
    file_size(path)  # because a device must not be opened
    with open(path, "rb", opener=_not_waiting) as file:
        size = file_size(path, file.fileno())  # of this file, which may be another one
        if limit is not None and size > limit:
            raise ValueError(f"{as_path(path)} has {size} bytes, more than the {limit} that such a file may have")
        return file.read(size)


def _not_waiting(path: str, flags: int) -> int:
    """Opens a file for reading, without a wait for writers of a pipe, but for a server that has a lease of the file."""
    while True:
        try:
            return os.open(path, flags | os.O_NONBLOCK)
        except BlockingIOError:  # a file server is about to give its lease back, or Linux takes it away after 45 s
            time.sleep(0.01)  # an `open` that waits for this would wait for a pipe, too


def check_private(path: AnyPath, status: os.stat_result | None = None) -> None:
    """Raises an error for a file or folder that another user may have made, or may change.

    Args:
        path: of a file or folder. status: of the open file; None: of the present file or folder at `path`.

    Raises:
        PermissionError: it is a link, belongs to another user than this one or root, or a group or all may write to it.
        OSError: nothing is there.
    """
    status = os.lstat(path) if status is None else status
    problem = ""
    if stat.S_ISLNK(status.st_mode):
        problem = "is a link"
    elif status.st_uid not in (os.geteuid(), 0):
        problem = f"belongs to user {status.st_uid}"
    elif status.st_mode & 0o022:
        problem = f"may be written by other users (mode {stat.S_IMODE(status.st_mode):o})"
    if problem:
        raise PermissionError(errno.EPERM, f"not used, as it {problem}", os.fsdecode(path))


def read_private(path: AnyPath) -> bytes:
    """The content of a regular file that passes `check_private`.

    Raises:
        OSError: as there, and as `file_size`.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NOFOLLOW)) as file:
        check_private(path, os.fstat(file.fileno()))
        file_size(path, file.fileno())
        return file.read()


def check_replaceable(path: str | Path) -> None:
    """Raises OSError if `path` must not be replaced by a file: a folder, device, pipe or socket, or a link to one."""
    try:
        mode = os.stat(path).st_mode
    except OSError:  # nothing is there, or a link that leads nowhere
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        problem = f"{os.strerror(errno.EINVAL)}: a device, pipe or socket is not replaced by a file, give another name"
        raise OSError(errno.EINVAL, problem, str(path))


@contextlib.contextmanager
def atomic_file(path: AnyPath, private: bool = False) -> Iterator[BinaryIO]:
    """A file to write, which appears as `path` once the block has ended without an error.

    It is written next to `path`, synced to disk and renamed. If the process dies before that, the previous file does
    not change. Missing folders are made. The permissions of the previous file are kept if it belongs to this user. A
    link is replaced and not followed, because in a folder that others can write, it may point to any file of this user.
    A folder, device, pipe or socket is never replaced. Only its user can access a `private` file (mode 0600), and a
    folder that is made for it.

    Raises:
        OSError: `path` is a folder, device, pipe or socket; no space, no permission, ...; names `path`. The
            previous file does not change.
    """
    path = as_path(path)
    if not path.name:  # of "", "." and "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    check_replaceable(path)
    mode = 0o600 if private else _own_mode(path)
    temporary = _temporary_path(path)
    try:
        path.parent.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        while (new := _locked(_created(temporary, mode))) is None:
            temporary = _temporary_path(path)
        with new as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)  # also the bits that the process's umask has removed
            yield file
            file.flush()
            os.fsync(file.fileno())
            check_replaceable(path)  # again, as writing may have taken long
            os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    _sync_folder(path.parent)


def _created(path: Path, mode: int | None) -> BinaryIO:
    made_with = 0o666 if mode is None else mode  # from the start, so that nobody else can read it meanwhile
    return open(path, "xb", opener=partial(os.open, mode=made_with))


def _locked(file: BinaryIO) -> BinaryIO | None:
    """A new temporary file, locked until it has its name, so that no other process removes it; None if one just did."""
    if lock(file.fileno()) and os.fstat(file.fileno()).st_nlink:
        return file
    file.close()
    return None


def _temporary_path(path: Path) -> Path:
    return path.with_name(_temporary_name(path.name, uuid.uuid4().hex))


def _temporary_name(name: str, mark: str) -> str:
    """The name of a temporary file for the file `name`, of which the end is left out where there is no room for it."""
    room = MAX_NAME - len("..") - MARK - len(".tmp")
    if len(os.fsencode(name)) > room:
        name = os.fsencode(name)[:room].decode(errors="ignore")
    return f".{name}.{mark}.tmp"


def _own_mode(path: Path) -> int | None:
    """Permissions of a regular file that belongs to this user; None for anything else."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return status.st_mode & 0o777 if own else None


def atomic_write(path: AnyPath, data: bytes, private: bool = False) -> None:
    """Writes `data` to a file by `atomic_file`."""
    with atomic_file(path, private) as file:
        file.write(data)


def remove_temporary_files(folder: str | Path, name: str) -> None:
    """Deletes temporary files that a killed `atomic_file` has left in `folder`; `name`: of the file, or a pattern.

    Without locks in the file system, no process may write such a file at the same time.
    """
    for path in Path(folder).glob(_temporary_name(name, "[0-9a-f]" * MARK)):
        if path.is_symlink() or not path.is_file():
            continue
        with contextlib.suppress(OSError), _open_to_lock(path) as file:  # gone, or of another user
            if lock(file.fileno()):
                path.unlink()


def _open_to_lock(path: Path) -> BinaryIO:
    try:
        return open(path, "r+b")  # NFS locks only files that are open for writing
    except PermissionError:  # a file that replaces a read-only one is read-only, too
        return open(path, "rb")


def lock(descriptor: int) -> bool:
    """Locks an open file or folder; False if another process has locked it, True where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable, on systems that can sync folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
