"""Two nodes, each a network namespace: they train as one host does, and a node that is cut off ends the job."""

import shutil
import sys
import time
from contextlib import contextmanager
from functools import cache, partial

import pytest

from benchmarks.nodes import Nodes
from tests.conftest import weekly
from tests.mpi.programs import nodes as programs
from tests.mpi.run import MpiJob, mpirun

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

SOON = 5.0
EXACT = {"sync_batch_norm": True}


@cache
def on_one_host(np, **options):
    """What ranks say without nodes."""
    return mpirun(partial(programs.train, options=options), np, timeout=60)


@contextmanager
def made(count):
    try:
        with Nodes(count) as nodes:
            yield nodes
    except PermissionError as error:
        pytest.skip(f"needs the right to make network namespaces: {error}")


@pytest.fixture
def nodes(hydra):
    with made(2) as nodes:
        yield nodes


def left_on(nodes) -> list[int]:
    """Returns the processes that stay on the nodes: one that just ends has lost its memory before its namespace."""
    deadline = time.monotonic() + 2.0
    while (left := nodes.processes()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.mark.parametrize(("np", "options"), [pytest.param(2, {}, marks=weekly), (4, EXACT)])
def test_two_nodes_train_as_one_host_does(nodes, np, options):
    program = partial(programs.train, options=options)
    before = nodes.sent_bytes()
    apart = MpiJob(program, np, launcher=[*nodes.mpirun(np), sys.executable]).finish(60)
    together = on_one_host(np, **options)
    assert (apart.returncode, apart.stderr) == (together.returncode, together.stderr) == (0, "")
    lines, one_host = (sorted(line.split() for line in job.stdout.splitlines()) for job in (apart, together))
    assert len(lines) == len(one_host) == np
    half = np // 2
    for rank, line in enumerate(lines):
        local_rank, node = rank % half, nodes.names[rank // half]
        assert line[:5] == [str(rank), str(np), str(local_rank), str(half), node]
    assert nodes.sent_bytes() - before > 20_000  # it went over the network, not through memory
    assert {line[5] for line in lines} == {one_host[0][5]}  # the same parameters, to the last bit


def test_sums_of_uneven_nodes_and_groups(hydra):
    with made(3) as nodes:
        job = MpiJob(programs.add_across, 5, launcher=[*nodes.mpirun([3, 1, 1]), sys.executable]).finish(60)
    assert (job.returncode, job.stderr) == (0, "")
    lines = sorted(line.split() for line in job.stdout.splitlines())
    assert [line[:2] for line in lines] == [[str(rank), "nodes"] for rank in range(5)]  # MPI adds in another order
    assert all(line[3:] == [] and int(line[2]) > 30 for line in lines)


@weekly
def test_another_way_of_adding_is_refused(nodes):
    launcher = [*nodes.mpirun(2), sys.executable]
    refused = MpiJob(programs.time_a_megabyte, env={"PYTAGI_DDP_ALL_REDUCE": "ring"}, launcher=launcher).finish(60)
    assert refused.returncode != 0
    assert "PYTAGI_DDP_ALL_REDUCE is 'ring' on rank 0: set it to 'mpi' or 'nodes' on all ranks" in refused.stderr


def test_ranks_of_torchrun_meet_over_the_network(nodes):
    program = partial(programs.train, options=EXACT)
    launcher = [sys.executable, "-m", "tests.mpi.torchrun", "2", "2", sys.executable]
    env = {"MASTER_ADDR": nodes.addresses[0]}
    jobs = [MpiJob(program, 4, env | {"NODE": str(k)}, [*nodes.enter(k), *launcher]) for k in range(2)]
    ended = [job.finish(60) for job in jobs]
    assert [(job.returncode, job.stderr) for job in ended] == [(0, ""), (0, "")]
    lines = sorted(line.split() for job in ended for line in job.stdout.splitlines())
    places = [[str(rank), "4", str(rank % 2), "2", nodes.names[rank // 2]] for rank in range(4)]
    assert [line[:5] for line in lines] == places
    assert {line[5] for line in lines} == {on_one_host(4, **EXACT).stdout.split()[5]}


@pytest.mark.parametrize("np", [pytest.param(2, marks=weekly), 4])
def test_a_node_that_is_cut_off_ends_the_job_on_both_sides(nodes, np, tmp_path):
    program = partial(programs.train_until_cut, folder=str(tmp_path))
    job = MpiJob(program, np, launcher=[*nodes.mpirun(np), sys.executable])
    try:
        job.wait_ready(60)
        nodes.cut()
        start = time.monotonic()
        result = job.finish(20)  # also fails if a process is left
        assert time.monotonic() - start < 1.0 + SOON
        assert result.returncode != 0
        assert left_on(nodes) == []
        for first in (0, np // 2):  # one rank, at least, of either node
            said = "".join((tmp_path / str(rank)).read_text() for rank in range(first, first + np // 2))
            assert "has waited 1.0 s in all_reduce #" in said
    finally:
        job.close()


@weekly
@pytest.mark.skipif(shutil.which("tc") is None, reason="tc is not installed (Debian: iproute2), or not in PATH")
def test_the_recipe_limits_the_cable_and_gives_the_exit_code(nodes):
    nodes.close()
    recipe = [sys.executable, "-m", "benchmarks.nodes", "--mbit", "80", "-np", "2", "--"]
    limited = MpiJob(programs.time_a_megabyte, launcher=[*recipe, sys.executable]).finish(60)
    assert (limited.returncode, limited.stderr) == (0, "")
    assert 0.08 < float(limited.stdout) < 1.0  # 1 MB in each direction at 80 Mbit/s: 0.1 s
    assert MpiJob(programs.leave, launcher=[*recipe, sys.executable]).finish(60).returncode == 3


def test_the_nodes_are_gone_afterwards(nodes):
    names = list(nodes.names)
    job = MpiJob(programs.sleep, launcher=[*nodes.mpirun(2), sys.executable])
    nodes.close()
    assert job.process.wait(10) != 0
    job.close()
    with Nodes() as again:  # the names are free
        assert again.names == names
        assert again.processes() == []
