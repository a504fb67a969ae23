"""Which ranks are present, among processes that claim to be ranks."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytagi_ddp import process_tree
from pytagi_ddp.distributed.engine import rendezvous
from pytagi_ddp.distributed.engine.errors import CollectiveTimeoutError, RankLeftError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")

NAMED = "printf '%s' '{}' > /proc/self/comm; echo; {}"  # a shell that takes a name, says so, and goes on


@pytest.fixture
def start():
    """Starts a shell that has named itself, and ends all of them."""
    with contextlib.ExitStack() as ends:

        def start(name, then="read end"):
            shell = ends.enter_context(
                subprocess.Popen(["sh", "-c", NAMED.format(name, then)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            ends.callback(shell.kill)
            shell.stdout.readline()
            return shell

        yield start


@pytest.fixture
def proxy(monkeypatch):
    """This process, as the parent of ranks; processes that other tests have started and left count for none."""
    me = Path(f"/proc/{os.getpid()}")
    before = set(process_tree.children(me))
    monkeypatch.setattr(rendezvous, "ancestor", lambda names: me)
    monkeypatch.setattr(
        rendezvous,
        "children",
        lambda process: [child for child in process_tree.children(process) if child not in before],
    )
    return me


def ranks(proxy):
    return sorted(rendezvous._ranks_below(proxy))


def test_ranks_are_found_below_shells_and_not_in_other_jobs(start, proxy):
    inner = NAMED.format("pytagi_ddp 2", "read end").replace("'", "'\\''")
    start("pytagi_ddp 0")
    start("bash", f"sh -c '{inner}'; true").stdout.readline()
    start("hydra_pmi_proxy", f"sh -c '{inner.replace('2', '3')}'; true").stdout.readline()  # a rank has called mpirun
    start("pytagi_ddp")
    start("pytagi_ddp x")
    assert ranks(proxy) == [0, 2]


def test_a_rank_that_has_ended_is_not_here(start, proxy):
    rank = start("pytagi_ddp 1")
    assert ranks(proxy) == [1]
    rank.kill()
    os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
    assert ranks(proxy) == []


def test_a_process_elsewhere_is_no_rank(start):
    start("pytagi_ddp 1")  # a child of this process, and so none of the next one's
    other = start("other")
    assert ranks(Path(f"/proc/{other.pid}")) == []


def test_a_rank_is_visible_during_the_body_only(start, proxy):
    start("pytagi_ddp 1")
    before = rendezvous.OWN_NAME.read_text()
    with rendezvous.node_barrier(0, 2, 10.0):
        assert rendezvous.OWN_NAME.read_text() == "pytagi_ddp 0\n"
    assert rendezvous.OWN_NAME.read_text() == before


@pytest.mark.parametrize(("children", "error"), [(0, RankLeftError), (4, CollectiveTimeoutError)])
def test_ranks_that_do_not_come(start, proxy, monkeypatch, children, error):
    monkeypatch.setattr(rendezvous, "ARRIVAL_SECONDS", 0.05)
    for _ in range(children):
        start("late")
    begin = time.monotonic()
    with pytest.raises(error, match=r"local rank 1, 2, 3 of 4"), rendezvous.node_barrier(0, 4, 0.5):
        raise AssertionError("nobody was there")
    assert time.monotonic() - begin < 5


def test_children_of_other_tests_are_not_ranks(start, request, monkeypatch):
    for _ in range(4):
        start("left by another test")
    request.getfixturevalue("proxy")
    monkeypatch.setattr(rendezvous, "ARRIVAL_SECONDS", 0.05)
    with pytest.raises(RankLeftError), rendezvous.node_barrier(0, 4, 0.5):
        raise AssertionError("nobody was there")


def test_without_names_there_is_no_meeting(proxy, monkeypatch, tmp_path):
    monkeypatch.setattr(rendezvous, "OWN_NAME", tmp_path / "absent" / "comm")
    with rendezvous.node_barrier(0, 2, 10.0):
        pass
