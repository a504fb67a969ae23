"""The meeting of ranks that torchrun has started: strangers, and variables that make no sense."""

import socket
import subprocess
import sys
import time

import pytest

from pytagi_ddp.distributed.engine import pmi_server
from pytagi_ddp.distributed.engine.errors import LaunchError
from pytagi_ddp.distributed.engine.launcher import Launch

if sys.platform != "linux":
    pytest.skip("ranks meet on Linux", allow_module_level=True)

from pytagi_ddp.distributed.engine import meeting


@pytest.fixture
def serve():
    """Starts a server of ranks, and returns a function that sends a text, and returns the first line of the answer."""
    opened = []

    def start(size, timeout=20.0):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            command = [sys.executable, pmi_server.__file__, listener.fileno(), size, "job-0", timeout]
            opened.append(subprocess.Popen([str(word) for word in command], pass_fds=[listener.fileno()]))
            address = listener.getsockname()

        def ask(text, lines=1):
            connection = socket.create_connection(address)
            connection.settimeout(10)
            opened.append(connection)
            connection.sendall(text.encode())
            with connection.makefile() as answer:
                return [answer.readline() for _ in range(lines)]

        return ask

    yield start
    for process in opened:
        if isinstance(process, socket.socket):
            process.close()
        else:
            process.kill()
            process.wait()


@pytest.mark.parametrize("rank", [-1, 2, 10**20])
def test_a_rank_that_does_not_exist_does_not_join(serve, rank):
    """The others began without a rank of theirs."""
    ask = serve(2)
    assert ask("life job-0 2 0\n") == ["welcome\n"]
    assert ask(f"life job-0 2 {rank}\n") == [""]
    assert ask("life job-0 2 1\n", 2) == ["welcome\n", "go\n"]


def test_commands_that_do_not_exist_are_no_templates(serve):
    """The answer was their text, in which the server put its numbers in as many columns as they wanted."""
    ask = serve(2)
    ask("life job-0 2 0\n")
    for command in ("{size:>500}", "{nothing}"):
        assert ask(f"pmi job-0 2 0\ncmd={command}\n") == ["cmd=unknown rc=-1\n"]


def test_a_job_of_too_many_ranks_ends_without_naming_them_all(serve):
    """With the names of 999999999 ranks, the server took the memory of the node."""
    ask = serve(999_999_999, timeout=1.0)
    assert ask("life job-0 999999999 3\n", 2) == ["welcome\n", "late 0,1,2,4,5,6,7,8,9,10,...\n"]


def test_a_stranger_who_never_ends_his_line_is_not_read_on():
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"x" * 1000)
        assert len(meeting._line(here, time.monotonic() + 60)) < 1000


@pytest.mark.parametrize("limit", [1e12, float("inf")])
def test_a_limit_longer_than_the_system_can_wait(limit):
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"go\n")
        assert meeting._line(here, time.monotonic() + limit) == "go"


def test_a_name_of_the_job_in_no_encoding(monkeypatch):
    """It was an error about MASTER_ADDR, or none that names a variable."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", b"a \xff".decode("utf-8", "surrogateescape"))
    monkeypatch.setattr(meeting, "_serve", lambda ports, hello, timeout: seen.append(hello))
    monkeypatch.setattr(meeting, "_connect", lambda host, ports, hello, deadline: seen.append(hello) or 1 / 0)
    seen = []
    launch = Launch("torchrun", 0, 2, 0, 2, (), "", meeting=("127.0.0.1", 29500))
    with pytest.raises(ZeroDivisionError), meeting.meeting(launch, 1.0):
        pass
    assert seen == ["a\\udcff-0 2 0\n"] * 2


def test_a_host_without_a_possible_name():
    with pytest.raises(LaunchError, match=r"MASTER_ADDR='x{70}.é' is not a name of a host"):
        meeting._connect("x" * 70 + ".é", [30500], "job-0 2 0\n", float("inf"))
