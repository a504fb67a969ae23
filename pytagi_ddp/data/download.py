"""Download of a file over HTTP, complete and with the correct checksum, or not at all."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from pytagi_ddp.bars import Bar
from pytagi_ddp.files import atomic_file

_CHUNK = 1 << 18
SLOWEST = 16 << 10  # smallest average number of bytes per second
PATIENCE = 6  # times the time-out, after which SLOWEST applies


class DownloadError(OSError):
    """A file could not be downloaded, or is not the published file."""


def download_file(
    url: str, path: Path, md5: str | None, max_bytes: int, progress: bool = True, timeout: float = 10.0
) -> None:
    """Writes the content of `url` to `path`, in a folder that is made if it is missing.

    Args:
        md5: checksum in hexadecimal digits; None: not compared.
        max_bytes: largest size of the file; more is not read.
        timeout: seconds to wait for the connection, and for each piece of data. After 6 times as long, less than 16 KiB
            per second is too slow.

    Raises:
        DownloadError: No connection, a broken or slow one, too many bytes, or another checksum. `path` does not change
            then.
        OSError: The file cannot be written.
    """
    digest = hashlib.md5(usedforsecurity=False)
    chunks = _read(url, path.name, max_bytes, progress, timeout)
    first = next(chunks, b"")  # before the folder is made, so that none is made without an answer
    with atomic_file(path) as file:
        for chunk in chain((first,), chunks):
            digest.update(chunk)
            file.write(chunk)
        if md5 not in (None, digest.hexdigest()):
            raise DownloadError(
                f"{url}: {file.tell()} bytes with md5 {digest.hexdigest()}, expected md5 {md5}; try again later"
            )


def _read(url: str, name: str, max_bytes: int, progress: bool, timeout: float) -> Iterator[bytes]:
    """Pieces of the content; every failure of the network becomes a DownloadError."""
    received, start = 0, time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            _check_size(total or 0, max_bytes)
            with Bar(total=total, unit="B", unit_scale=True, desc=name, disable=not progress) as bar:
                while chunk := response.read1(_CHUNK):
                    received += len(chunk)
                    _check_size(received, max_bytes)
                    seconds = time.monotonic() - start
                    if seconds > PATIENCE * timeout + received / SLOWEST:
                        raise ConnectionError(f"too slow: {received} bytes in {seconds:.0f} s; try again later")
                    bar.update(len(chunk))
                    yield chunk
            if total is not None and received < total:
                raise ConnectionError(f"the connection broke off after {received} of {total} bytes")
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise DownloadError(f"{url}: {error}") from error


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ValueError(f"{size} bytes or more, and the published file has {max_bytes} at most")
