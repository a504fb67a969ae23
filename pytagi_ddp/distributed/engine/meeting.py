"""Connects ranks that a launcher without MPI has started, such as torchrun, by a PMI server that rank 0 starts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from pytagi_ddp.distributed.engine import pmi_server
from pytagi_ddp.distributed.engine.errors import CollectiveTimeoutError, LaunchError, RankLeftError
from pytagi_ddp.distributed.engine.launcher import Launch

# The launcher may use MASTER_PORT, and other jobs the ports next to it.
PORT_STEP, PORT_TRIES = 1000, 8
ANSWER_SECONDS = 5.0  # limit for the answer of a server of this job
RETRY_SECONDS = 0.05
LONGEST_LINE = 200  # bytes of an answer; a stranger may send more


@contextlib.contextmanager
def meeting(launch: Launch, timeout: float) -> Iterator[None]:
    """Waits until all ranks have connected. While the body starts MPI, MPICH has a connection to the server.

    From then on, the operating system kills this process (SIGKILL) if another rank ends without leaving MPI. After
    `timeout` seconds, ranks that have not arrived are named in a CollectiveTimeoutError.
    """
    assert launch.meeting is not None
    host, port = launch.meeting
    job = os.environ.get("TORCHELASTIC_RUN_ID", "job") + "-" + os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    job = "".join(job.split()).encode("ascii", "backslashreplace").decode()  # the name may be bytes of any encoding
    hello = f"{job} {launch.world_size} {launch.rank}\n"
    ports = [1024 + (port + k * PORT_STEP - 1024) % (65536 - 1024) for k in range(1, PORT_TRIES + 1)]
    deadline = time.monotonic() + timeout
    if launch.rank == 0:
        _serve(ports, hello, timeout)
    lifeline, address = _connect(host, ports, hello, deadline)
    word, _, rank = _line(lifeline, deadline + ANSWER_SECONDS).partition(" ")
    if word == "left":
        raise RankLeftError(
            f"rank {rank} of {launch.world_size} ended before MPI was started; look above for its error"
        )
    if word != "go":
        raise CollectiveTimeoutError(
            f"rank {rank or '?'} of {launch.world_size} has not started MPI in time: it is stalled, or never starts it"
        )
    _die_with(lifeline)
    connection = socket.create_connection(address)
    connection.sendall(f"pmi {hello}".encode())
    variables = {"PMI_FD": connection.detach(), "PMI_RANK": launch.rank, "PMI_SIZE": launch.world_size}
    os.environ.update((name, str(value)) for name, value in variables.items())
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _serve(ports: list[int], hello: str, timeout: float) -> None:
    """Starts the server on the first port that is free."""
    job, size, _ = hello.split()
    for port in ports:
        try:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            listener = socket.create_server(("", port), family=family, backlog=2 * int(size), dualstack_ipv6=both)
            break
        except OSError as error:
            problem = error
    else:
        raise LaunchError(
            f"the ranks cannot meet: none of the ports {ports} is free ({problem}). Choose another MASTER_PORT"
        )
    command = [sys.executable, "-S", "-E", pmi_server.__file__, str(listener.fileno()), size, job, str(timeout)]
    with listener:
        subprocess.Popen(
            command,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )


def _connect(host: str, ports: list[int], hello: str, deadline: float) -> tuple[socket.socket, tuple[str, int]]:
    """A connection to the server of this job, and its address."""
    problem: object = "no answer"
    while time.monotonic() < deadline:
        for port in ports:
            try:
                lifeline = socket.create_connection((host, port), ANSWER_SECONDS)
                lifeline.sendall(f"life {hello}".encode())
                if _line(lifeline, time.monotonic() + ANSWER_SECONDS) == "welcome":
                    return lifeline, (host, port)
                lifeline.close()
            except OSError as error:
                problem = error
            except UnicodeError as error:
                raise LaunchError(f"MASTER_ADDR={host!r} is not a name of a host: {error}") from None
        time.sleep(RETRY_SECONDS)
    raise LaunchError(
        f"rank 0 does not answer at {host} (MASTER_ADDR), ports {ports} ({problem}): look there for its error, let "
        "these ports through, or start the job with python -m pytagi_ddp.launch"
    )


def _line(connection: socket.socket, deadline: float) -> str:
    """The next line of the server; only a part of it if it is longer, the connection ends, or after the deadline."""
    line = b""
    with contextlib.suppress(OSError):
        while not line.endswith(b"\n") and len(line) < LONGEST_LINE:
            connection.settimeout(min(max(deadline - time.monotonic(), RETRY_SECONDS), 1e9))
            if not (byte := connection.recv(1)):
                break
            line += byte
    return line.decode(errors="replace").rstrip("\n")


def _die_with(lifeline: socket.socket) -> None:
    """Makes the operating system kill this process when the server writes or ends, also while MPI waits."""
    own = lifeline.detach()  # because MPICH uses its connection after Python has closed its sockets
    os.register_at_fork(after_in_child=lambda: os.close(own))  # or it would stay open in a child process
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([own], [], [], 0)[0]:  # it has written before that
        raise RankLeftError("another rank ended while MPI was starting; look above for its error")
