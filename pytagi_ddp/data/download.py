"""Download of a file over HTTP, complete and with the correct checksum, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import socket
import threading
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
    received = 0
    watch = _Watch(PATIENCE * timeout)
    try:
        with watch, watch.opener().open(url, timeout=timeout) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            _check_size(total or 0, max_bytes)
            with Bar(total=total, unit="B", unit_scale=True, desc=name, disable=not progress) as bar:
                while chunk := response.read1(_CHUNK):
                    received += len(chunk)
                    watch.received = received
                    _check_size(received, max_bytes)
                    bar.update(len(chunk))
                    yield chunk
            if watch.problem:  # otherwise a connection that ends in the headers looks complete
                raise ConnectionError
            if total is not None and received < total:
                raise ConnectionError(f"the connection broke off after {received} of {total} bytes")
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise DownloadError(f"{url}: {watch.problem or error}") from error


class _Watch:
    """Closes connections that are too slow, also if single bytes arrive in time.

    Args:
        patience: seconds after which the speed is checked.

    Attributes:
        received: bytes so far. problem: the reason for closing the connections, or empty.
    """

    def __init__(self, patience: float):
        self.received, self.problem = 0, ""
        self._patience, self._begin, self._ended = patience, time.monotonic(), threading.Event()
        self._sockets: list[socket.socket] = []

    def opener(self) -> urllib.request.OpenerDirector:
        """An opener whose connections this object watches."""
        sockets = self._sockets

        class Plain(http.client.HTTPConnection):
            def connect(self) -> None:
                super().connect()
                sockets.append(self.sock)

        class Secure(http.client.HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                sockets.append(self.sock)

        class ByPlain(urllib.request.HTTPHandler):
            def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(Plain, request)

        class BySecure(urllib.request.HTTPSHandler):
            def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(Secure, request)

        return urllib.request.build_opener(ByPlain, BySecure)

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="download", daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self._patience)):
            seconds = time.monotonic() - self._begin
            if seconds > self._patience + self.received / SLOWEST:
                self.problem = f"too slow: {self.received} bytes in {seconds:.0f} s; try again later"
                for connection in self._sockets:
                    with contextlib.suppress(OSError):
                        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # also for TLS, which a thread reads
                return


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ValueError(f"{size} bytes or more, and the published file has {max_bytes} at most")
