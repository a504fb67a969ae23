"""Starts processes with the variables of PyTorch's torchrun: ``python -m tests.mpi.torchrun NODES RANKS PROGRAM...``.

It has two nodes on one machine if NODES is 2, and starts RANKS processes on each. Unlike torchrun it kills none of
them, so that a test sees how they end by themselves. With the variable NODE it starts those of this node alone. The
exit code is the first that is not 0, as of a shell, or 0.
"""

import os
import subprocess
import sys


def variables(node: int, nodes: int, local_rank: int, local_size: int) -> dict[str, str]:
    """What torchrun of PyTorch 2.13 sets in a process."""
    rank, size = node * local_size + local_rank, nodes * local_size
    numbers = {
        "LOCAL_RANK": local_rank,
        "RANK": rank,
        "GROUP_RANK": node,
        "ROLE_RANK": rank,
        "LOCAL_WORLD_SIZE": local_size,
        "WORLD_SIZE": size,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_WORLD_SIZE": size,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    defaults = {
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    given = {name: os.environ[name] for name in defaults if name in os.environ}
    return {name: str(number) for name, number in numbers.items()} | defaults | given


def main(nodes: int, local_size: int, program: list[str]) -> int:
    started = [
        subprocess.Popen(program, env=os.environ | variables(node, nodes, local_rank, local_size))
        for node in ([int(os.environ["NODE"])] if "NODE" in os.environ else range(nodes))
        for local_rank in range(local_size)
    ]
    code = next(filter(None, [process.wait() for process in started]), 0)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
