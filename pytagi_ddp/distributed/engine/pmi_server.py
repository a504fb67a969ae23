"""Connects ranks that no launcher of MPI has started: a server of PMI-1, the protocol of MPICH.

Rank 0 starts it as a separate process, because `MPI_Init` holds Python's lock. Each rank has two connections. MPICH
uses one to exchange addresses while MPI starts. The other, the lifeline, is closed when the rank ends. If a rank ends
before it has left MPI, the server writes to all lifelines, and the operating system kills their ranks (`meeting.py`).
The server ends with the last rank.

This file does not import the library, so that it starts fast.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import sys

REPLIES = {
    "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0",
    "get_appnum": "cmd=appnum appnum=0 rc=0",
    "get_my_kvsname": "cmd=my_kvsname kvsname={job} rc=0",
    "get_universe_size": "cmd=universe_size size={size} rc=0",
    "put": "cmd=put_result rc=0 msg=success",
    "finalize": "cmd=finalize_ack rc=0",
}
MOST_NAMED = 10  # ranks in a message


class Server:
    """The server of a job of `size` ranks, which wait `timeout` seconds for each other to connect.

    The name `job` differs from those of other jobs on the same machine.
    """

    def __init__(self, size: int, job: str, timeout: float):
        self.size, self.job, self.timeout = size, job, timeout
        self.lifelines: dict[int, asyncio.StreamWriter] = {}
        self.values: dict[str, str] = {}
        self.in_barrier: list[asyncio.StreamWriter] = []
        self.left: set[int] = set()  # ranks that have finalised MPI
        self.gone: set[int] = set()  # ranks whose process has also ended

    async def run(self, listener: socket.socket) -> None:
        """Serves until the job has ended."""
        await asyncio.start_server(self.serve, sock=listener)
        await asyncio.sleep(self.timeout)
        if len(self.lifelines) < self.size:
            missing = (str(rank) for rank in range(self.size) if rank not in self.lifelines)
            named, more = ",".join(itertools.islice(missing, MOST_NAMED)), ",..." if any(missing) else ""
            self.end(f"late {named}{more}")
        await asyncio.Event().wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection; its first line says "life" or "pmi", the job, its size, and the rank."""
        try:
            kind, job, size, rank = (await reader.readline()).decode().split()
            if (job, int(size)) != (self.job, self.size) or (kind == "life") == (int(rank) in self.lifelines):
                raise ValueError("another job")
            if not 0 <= int(rank) < self.size:
                raise ValueError("no such rank")
        except (ValueError, OSError):
            writer.close()
            return
        await (self.live if kind == "life" else self.exchange)(int(rank), reader, writer)

    async def live(self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves the lifeline of a rank."""
        self.lifelines[rank] = writer
        writer.write(b"welcome\n")
        if len(self.lifelines) == self.size:
            for other in self.lifelines.values():
                other.write(b"go\n")
        with contextlib.suppress(OSError):
            await reader.read()
        self.gone.add(rank)
        if len(self.lifelines) < self.size:
            self.end(f"left {rank}")
        if rank not in self.left:
            print(f"rank {rank} of {self.size} has ended without leaving the job, which ends", file=sys.stderr)
            self.end("end")
        if len(self.gone) == self.size:
            os._exit(0)

    async def exchange(self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the commands of MPICH on a rank, each a line such as ``cmd=get kvsname=job key=name``."""
        try:
            while line := (await reader.readline()).decode().rstrip("\n"):
                words = dict(word.partition("=")[::2] for word in line.split(" "))
                command, key = words.get("cmd", ""), words.get("key", "")
                reply = REPLIES.get(command, "cmd=unknown rc=-1").format(job=self.job, size=self.size)
                if command == "put":
                    self.values[key] = line.partition(" value=")[2]
                elif command == "get":
                    found = key in self.values
                    reply = f"cmd=get_result rc={0 if found else -1} value={self.values.get(key, 'unknown')}"
                elif command == "finalize":
                    self.left.add(rank)
                elif command == "abort":
                    self.end("end")
                elif command == "barrier_in":
                    self.in_barrier.append(writer)
                    if len(self.in_barrier) == self.size:
                        for other in self.in_barrier:
                            other.write(b"cmd=barrier_out rc=0\n")
                        self.in_barrier.clear()
                    continue
                writer.write(f"{reply}\n".encode())
        except (ValueError, OSError):
            pass  # the lifeline tells whether the rank has ended

    def end(self, word: str) -> None:
        """Sends all ranks the reason why the job ends, and ends."""
        for writer in self.lifelines.values():
            writer.write(f"{word}\n".encode())
        os._exit(1)


if __name__ == "__main__":
    descriptor, size, job, timeout = sys.argv[1:]
    asyncio.run(Server(int(size), job, float(timeout)).run(socket.socket(fileno=int(descriptor))))
