"""What a rank starts or forks works by itself, whatever becomes of it, and the job goes on."""

import json

import pytest

from tests.mpi.programs import child_process
from tests.mpi.run import mpirun

pytestmark = pytest.mark.mpi


def test_forked_processes_leave_the_job_alone():
    result = mpirun(child_process.forks, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, 2 * "reached the end\n", "")
    found = json.loads(result.results)
    pid, rank = found["rank"]
    assert found["codes"] == {"end": 7, "fail": 1, "speak": 7, "_exit": 5, "pool": [1, 2]}
    for text in found["told"].values():
        assert f"this process was forked from rank {rank}, and is not a rank itself" in text
    assert found["told"]["blocking"].startswith(f"all_reduce on rank {rank}: ")
    assert found["initialized"] is False
    assert found["place"][:3] == ["serial", 0, 1]
    assert (
        found["place"][3]
        == f"this process is not a rank and works by itself: process {pid} is, which has started this one"
    )


def test_programs_that_a_rank_starts_work_by_themselves(hydra):
    result = mpirun(child_process.programs, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, 2 * "reached the end\n", "")
    found = json.loads(result.results)
    parent = f"process {found.pop('rank')} is, which has started this one"
    assert found.pop("mpirun") == ["mpi 0 2", "mpi 1 2"]
    assert set(found) == {"subprocess", "os.popen", "spawn", "its own socket"}
    for way, (place, refused) in found.items():
        why = place[3].partition("this process is not a rank and works by itself: ")[2]
        assert "is not the connection to the launcher here" in why if way == "its own socket" else why == parent
        assert place[:3] == ["serial", 0, 1]
        assert f"not a rank of the job that its environment tells of: {why}. Use backend 'auto' or 'serial'" in refused
