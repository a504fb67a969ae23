"""Fetch a file over HTTP: complete and with the right checksum, or not at all."""

from __future__ import annotations

import hashlib
import http.client
import urllib.request
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from pytagi_ddp.files import atomic_file

_CHUNK = 1 << 18


class DownloadError(OSError):
    """A file could not be fetched, or what came is not the file that was published."""


class _Progress(tqdm):
    monitor_interval = 0  # tqdm would otherwise start a thread that outlives the bar


def download_file(
    url: str, path: Path, md5: str | None, max_bytes: int, progress: bool = True, timeout: float = 10.0
) -> None:
    """Write the content of `url` to `path`.

    Args:
        url: Address.
        path: File to make or to replace; its folder is made where missing.
        md5: Checksum in hexadecimal digits; None: whoever reads the file has another one of what it holds.
        max_bytes: What the file has at most; of a server that sends more no more is read.
        progress: Show a progress bar on standard error.
        timeout: Seconds to wait for the connection, and for each piece of data.

    Raises:
        DownloadError: No connection, a connection that broke off, too many bytes, or a checksum that differs. `path`
            is then as it was before.
        OSError: The file cannot be written.
    """
    digest = hashlib.md5(usedforsecurity=False)
    chunks = _read(url, path.name, max_bytes, progress, timeout)
    first = next(chunks, b"")  # a folder is made for what comes, and not where nobody answers
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
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            received = 0
            _check_size(total or 0, max_bytes)
            with _Progress(total=total, unit="B", unit_scale=True, desc=name, disable=not progress) as bar:
                while chunk := response.read(_CHUNK):
                    received += len(chunk)
                    _check_size(received, max_bytes)
                    bar.update(len(chunk))
                    yield chunk
            if total is not None and received < total:
                raise ConnectionError(f"the connection broke off after {received} of {total} bytes")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(f"{url}: {error}") from error


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ValueError(f"{size} bytes or more, and the published file has {max_bytes} at most")
