"""Processes above and below this one, as real ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytagi_ddp.process_tree import ancestor, children, is_alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")

BELOW = """
import os, subprocess, sys
depth = int(sys.argv[1])
if depth:
    open("/proc/self/comm", "w").write("launcher.hydra" if depth > 1 else "sh")
    print(os.getpid(), flush=True)
    subprocess.run([sys.executable, "-c", sys.argv[2], str(depth - 1), sys.argv[2]], check=True)
else:
    from pytagi_ddp.process_tree import ancestor
    print(ancestor(["launcher"]))
"""


def test_the_nearest_ancestor_of_a_name():
    command = [sys.executable, "-c", BELOW, "3", BELOW]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert lines[3] == f"/proc/{lines[1]}"  # not the outer one, and not the shell in between
    assert ancestor(["launcher"]) is None


def test_children_until_they_are_waited_for():
    me = Path(f"/proc/{os.getpid()}")
    child = subprocess.Popen(["sleep", "60"])
    process = me.parent / str(child.pid)
    assert process in children(me) and is_alive(process)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process in children(me) and not is_alive(process)
    child.wait()
    assert process not in children(me) and not is_alive(process)
    with pytest.raises(OSError, match=process.name):
        children(process)


def test_names_of_programs_may_be_bytes_of_any_encoding():
    """The kernel cuts a name after 15 bytes: here inside a letter."""
    program = (
        'open("/proc/self/comm", "wb").write("обучение сети".encode())\n'
        "import os\n"
        "from pytagi_ddp.process_tree import Path, ancestor, is_alive\n"
        'print(is_alive(Path("/proc/self")), ancestor(["launcher"]))'
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True None\n"
