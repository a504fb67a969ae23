import hashlib
import socket
import threading
import time
from contextlib import suppress

import pytest

from pytagi_ddp.data.download import DownloadError, download_file
from pytagi_ddp.files import atomic_file
from tests.data.file_server import file_server

pytestmark = pytest.mark.usefixtures("empty_machine")

CONTENT = bytes(range(256)) * 4096  # 1 MiB: several pieces
MD5 = hashlib.md5(CONTENT).hexdigest()
LIMIT = len(CONTENT)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_fetches_a_file_and_makes_its_folder(tmp_path, capfd):
    path = tmp_path / "new" / "file.bin"
    with file_server({"file.bin": CONTENT}) as url:
        download_file(url + "file.bin", path, MD5, LIMIT, progress=False)
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["file.bin"]
    assert capfd.readouterr() == ("", "")


def test_progress_goes_to_standard_error(tmp_path, capfd):
    with file_server({"file.bin": CONTENT}) as url:
        download_file(url + "file.bin", tmp_path / "file.bin", MD5, LIMIT)
    out, err = capfd.readouterr()
    assert out == ""
    assert "file.bin: 100%" in err


def test_another_checksum_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with (
        file_server({"file.bin": CONTENT}) as url,
        pytest.raises(DownloadError, match=f"1048576 bytes with md5 {MD5}, expected md5 {'0' * 32}"),
    ):
        download_file(url + "file.bin", path, "0" * 32, LIMIT, progress=False)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.bin"]


def test_a_connection_that_breaks_off_leaves_nothing(tmp_path):
    with (
        file_server({"file.bin": CONTENT}, broken_off=True) as url,
        pytest.raises(DownloadError, match="broke off after 524288 of 1048576 bytes"),
    ):
        download_file(url + "file.bin", tmp_path / "file.bin", MD5, LIMIT, progress=False)
    assert names(tmp_path) == []


@pytest.mark.parametrize("told", [True, False])
def test_what_is_too_long_is_not_fetched(tmp_path, told):
    """Whether or not the server says beforehand how much it sends."""
    with (
        file_server({"file.bin": CONTENT}, length=told) as url,
        pytest.raises(DownloadError, match=f"file.bin: {LIMIT if told else '[0-9]+'} bytes or more, and the published"),
    ):
        download_file(url + "file.bin", tmp_path / "file.bin", MD5, (1 << 19) + 1, progress=False)
    assert names(tmp_path) == []


def test_a_missing_file_and_a_missing_server_are_told(tmp_path):
    with file_server({}) as url, pytest.raises(DownloadError, match="404"):
        download_file(url + "file.bin", tmp_path / "file.bin", MD5, LIMIT, progress=False)
    with pytest.raises(DownloadError, match="refused"):
        download_file(url + "file.bin", tmp_path / "file.bin", MD5, LIMIT, progress=False)


def test_where_nothing_comes_no_folder_is_made(tmp_path):
    with file_server({}) as url, pytest.raises(DownloadError):
        download_file(url + "file.bin", tmp_path / "new" / "file.bin", MD5, LIMIT, progress=False)
    assert names(tmp_path) == []


def test_a_silent_server_is_given_up(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file.bin"
        start = time.monotonic()
        with pytest.raises(DownloadError, match="timed out"):
            download_file(url, tmp_path / "file.bin", MD5, LIMIT, progress=False, timeout=0.2)
        assert time.monotonic() - start < 2
    assert names(tmp_path) == []


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(tmp_path):
    """Each comes within the time-out."""

    def serve():
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while True:
                connection.sendall(b"1")
                time.sleep(0.02)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        start = time.monotonic()
        with pytest.raises(DownloadError, match=r"file.bin: too slow: \d+ bytes in [0-9] s; try again later"):
            url = f"http://127.0.0.1:{server.getsockname()[1]}/file.bin"
            download_file(url, tmp_path / "file.bin", MD5, LIMIT, progress=False, timeout=0.05)
        assert time.monotonic() - start < 5
        thread.join(5)
    assert not thread.is_alive()
    assert names(tmp_path) == []


@pytest.mark.parametrize("interruption", [OSError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_file(tmp_path, interruption):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with pytest.raises(interruption), atomic_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        raise interruption
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.bin"]
