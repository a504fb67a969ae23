"""Files that are either whole or not there."""

import contextlib
import os
import uuid
from pathlib import Path


def atomic_write(path: str | Path, data: bytes) -> None:
    """Writes `data` to a temporary file beside `path`, syncs it to disk and renames it.

    A process that dies on the way leaves the previous file as it was. Missing folders are made.

    Raises:
        OSError: no space, no permission, ...; names `path`. The previous file is as it was.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    _sync_folder(path.parent)


def remove_temporary_files(folder: str | Path, name: str) -> None:
    """Deletes what `atomic_write` has left in `folder` where it was killed; `name` is a file's, or a pattern.

    Nobody may be writing such a file now.
    """
    for path in Path(folder).glob(f".{name}.{'[0-9a-f]' * 32}.tmp"):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable, where the system lets folders be synced."""
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
