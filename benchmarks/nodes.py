"""Several "nodes" on one machine: `python -m benchmarks.nodes --mbit 1000 -np 2 -- python -m benchmarks.parallel`.

Runs a command on ranks that are spread over network namespaces with an address, a host name and a /dev/shm of their
own. A virtual cable joins each to a switch, which has a namespace of its own. To MPI they are machines: ranks on
different ones talk through TCP. ``--mbit`` limits each cable in each direction; without it, it is as fast as the kernel
copies. Everything else, the cores above all, is shared: a run shows what the network costs, not what more machines
bring. Needs root, ``ip`` and ``unshare``; ``tc`` for a limit; MPICH's mpirun.

The exit code is mpirun's. The namespaces go with the last process in them; those that a killed run has left are removed
by the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pytagi_ddp.distributed.engine.launcher import MPICH, find_mpirun

PREFIX = "tagi-node-"
ADDRESS = "10.213.77."  # of node 1, 2, ...: with its number
DEVICE = "cable"  # in each node
SWITCH = "switch"
LINK_SECONDS = 10
ENTER = 'hostname "$0" && mount -t tmpfs none /dev/shm && exec "$@"'

# What mpirun calls instead of ssh: options, the host, and a command line for its shell. As with ssh, that command goes
# on when mpirun ends this script.
REMOTE_SHELL = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
node={prefix}${{1##*.}}; shift
setsid {enter} sh -c "exec $*" &
wait $!
"""


class Nodes:
    """Namespaces and the switch between them; a context manager that removes them, and what still runs there.

    Args:
        count: number of nodes.
        mbit: limit in each direction, in 10^6 bits per second; None: none.

    Attributes:
        names: the host names, which are the names of the namespaces. addresses: of the nodes.

    Raises:
        PermissionError: this process may not make namespaces, or a tool is missing; gives the reason.
        ValueError: the kernel cannot limit like that.
    """

    def __init__(self, count: int = 2, mbit: float | None = None):
        self.mbit = mbit
        prefix = f"{PREFIX}{os.getpid()}-"
        self.names = [f"{prefix}{number}" for number in range(1, count + 1)]
        self.addresses = [f"{ADDRESS}{number}" for number in range(1, count + 1)]
        self._prefix, self._switch = prefix, f"{prefix}{SWITCH}"
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX)

    def __enter__(self) -> Nodes:
        try:
            remove_leftovers()
            for name in (self._switch, *self.names):
                _run("ip", "netns", "add", name)
            _run("ip", "-n", self._switch, "link", "add", SWITCH, "up", "type", "bridge")
            for name, address in zip(self.names, self.addresses, strict=True):
                port = f"to-{address.rpartition('.')[2]}"
                cable = ["add", DEVICE, "netns", name, "type", "veth", "peer", "name", port, "netns", self._switch]
                _run("ip", "link", *cable)
                _run("ip", "-n", self._switch, "link", "set", port, "up", "master", SWITCH)
                _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
                for device in (DEVICE, "lo"):
                    _run("ip", "-n", name, "link", "set", device, "up")
                self._limit(name, DEVICE)
                self._limit(self._switch, port)
            self._wait_for_link()
            self._shell = Path(self._folder.name, "remote-shell")
            enter = " ".join("$node" if word == "$node" else f"'{word}'" for word in self._enter("$node"))
            self._shell.write_text(REMOTE_SHELL.format(prefix=self._prefix, enter=enter))
            self._shell.chmod(0o700)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def mpirun(self, ranks: int | Sequence[int]) -> list[str]:
        """Returns the command that starts a program (to be appended).

        Args:
            ranks: of each node; or in all, equally many on each node, and fewer on the last ones if that cannot be.
        """
        if isinstance(ranks, int):
            ranks = [len(part) for part in np.array_split(np.arange(ranks), len(self.names))]
        places = ",".join(f"{address}:{n}" for address, n in zip(self.addresses, ranks, strict=True) if n)
        hosts = ["-hosts", places, "-np", str(sum(ranks))]
        launcher = ["-launcher", "ssh", "-launcher-exec", str(self._shell), "-iface", DEVICE]
        return [*self._enter(self.names[0]), str(find_mpirun(MPICH)), *launcher, *hosts]

    def enter(self, node: int) -> list[str]:
        """Returns the command that runs a program (to be appended) on a node: 0, 1, ..."""
        return self._enter(self.names[node])

    def cut(self) -> None:
        """Cuts the nodes off from each other: packets are lost, and neither node gets an error."""
        nobody = ["lladdr", "02:00:00:00:00:99", "nud", "permanent"]
        for name, own in zip(self.names, self.addresses, strict=True):
            for other in self.addresses:
                if other != own:
                    _run("ip", "-n", name, "neighbour", "replace", other, "dev", DEVICE, *nobody)

    def sent_bytes(self) -> int:
        """Returns what the first node has sent to others so far."""
        show = _run("ip", "netns", "exec", self.names[0], "cat", f"/sys/class/net/{DEVICE}/statistics/tx_bytes")
        return int(show)

    def processes(self) -> list[int]:
        """Returns the ids of the processes that run on the nodes."""
        return [int(pid) for name in self.names for pid in _run("ip", "netns", "pids", name).split()]

    def close(self) -> None:
        """Kills what still runs on the nodes and removes them; does nothing when they are gone."""
        for name in (*self.names, self._switch):
            _remove(name)
        self._folder.cleanup()

    def _enter(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", name, "unshare", "--uts", "--ipc", "--mount", "sh", "-c", ENTER, name]

    def _wait_for_link(self) -> None:
        """The kernel takes up to a second to call the link up; until then UCX sees no network."""
        deadline = time.monotonic() + LINK_SECONDS
        for name in self.names:
            while "state UP" not in _run("ip", "-n", name, "link", "show", DEVICE):
                if time.monotonic() > deadline:
                    raise PermissionError(f"the link of {name} is not up after {LINK_SECONDS} s")
                time.sleep(0.02)

    def _limit(self, name: str, device: str) -> None:
        """Limits what a device of a namespace sends."""
        if self.mbit is None:
            return
        burst = max(131_072, int(self.mbit * 1e6 / 8 / 1000))  # 1 ms, and no less than the largest packet
        discipline = ["tbf", "rate", f"{self.mbit}mbit", "burst", str(burst), "limit", "64mb"]
        try:
            _run("tc", "-n", name, "qdisc", "add", "dev", device, "root", *discipline)
        except PermissionError as error:
            raise ValueError(f"this kernel cannot do {' '.join(discipline)}: {error}") from None


def remove_leftovers() -> None:
    """Removes the nodes of processes that have ended."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        owner = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and not Path("/proc", owner).exists():
            _remove(name)


def _remove(name: str) -> None:
    with contextlib.suppress(PermissionError):  # there is no such node
        for pid in _run("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _run("ip", "netns", "delete", name)


def _run(*command: str) -> str:
    if shutil.which(command[0]) is None:
        raise PermissionError(f"{command[0]} is not installed")
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise PermissionError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__.partition("\n")[0])
    parser.add_argument("--mbit", type=float, help="limit in each direction, 10^6 bits per second")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("-np", type=int, default=2, help="ranks, equally many on each node")
    parser.add_argument("command", nargs="+", help="after --: the program and its arguments")
    options = parser.parse_args(arguments)
    try:
        with Nodes(options.nodes, options.mbit) as nodes:
            return subprocess.run([*nodes.mpirun(options.np), *options.command]).returncode
    except (PermissionError, ValueError) as error:
        return parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    sys.exit(main())
