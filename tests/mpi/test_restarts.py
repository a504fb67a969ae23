"""Jobs that `pytagi_ddp.launch` starts again when they die, and batch scripts that it writes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import pytest

from tests.conftest import weekly
from tests.mpi.programs import restarted
from tests.mpi.random_restarts import LIMIT, VICTIMS, WAYS, draw, run, start, undisturbed
from tests.mpi.run import MpiJob, mpirun_command

# The first went wrong once: without Hydra's proxy, nothing ends the ranks.
SAMPLE = (22, pytest.param(36, marks=weekly))


def supervised(program, *options: str, ranks: int = 2) -> MpiJob:
    return MpiJob(program, ranks, launcher=[sys.executable, "-m", "pytagi_ddp.launch", "-np", str(ranks), *options])


@pytest.mark.mpi
@pytest.mark.parametrize("seed", SAMPLE)
def test_a_job_that_is_killed_ends_as_if_it_had_not_been(seed, hydra):
    wrong, story = run(draw(seed))
    assert not wrong, story


@pytest.mark.mpi
def test_an_error_that_comes_again_ends_the_job(tmp_path, hydra):
    result = start("ddp", 2, [], str(tmp_path), "--max-restarts", "5", "--pause", "0.05", fail_at=5).finish(LIMIT)
    assert result.returncode == 1
    assert [line for line in result.stdout.splitlines() if line.startswith("from")] == ["from 0", "from 3"]
    said = [line for line in result.stderr.splitlines() if line.startswith("[launch] ")]
    assert len(said) == 2 and "It does not start again: the same error has come twice" in said[1]
    where = "after 5 steps, in epoch 1" if sys.version_info >= (3, 11) else ""
    assert "ValueError: the fault of this program" in said[0] and where in said[0] and "Restart 1 of 5" in said[0]


@pytest.mark.mpi
@pytest.mark.parametrize(("name", "code"), [("SIGUSR1", 0), ("SIGTERM", 15), ("SIGKILL", -signal.SIGKILL)])
def test_signals_end_the_job_and_not_only_the_launcher(name, code, hydra):
    job = supervised(restarted.wait, "--max-restarts", "3")
    job.wait_ready()
    os.kill(job.process.pid, getattr(signal, name))
    result = job.finish()
    assert result.returncode == code, result.stderr
    assert "[launch]" not in result.stderr


REMOTE_SHELL = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
[ "$host" = 127.0.0.2 ] && [ -e {down} ] && exit 255
exec sh -c "exec $*"
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("least", "enough"), [(2, True), (3, False)])
def test_a_node_that_is_lost_is_left_out(least, enough, tmp_path, hydra):
    shell, down = tmp_path / "shell", tmp_path / "down"
    shell.write_text(REMOTE_SHELL.format(down=down))
    shell.chmod(0o700)
    remote = ("-launcher", "ssh", "-launcher-exec", str(shell), "-hosts", "127.0.0.1:2,127.0.0.2:2")
    options = (*remote, "--max-restarts", "2", "--min-ranks", str(least), "--pause", "0.05")
    result = supervised(partial(restarted.lose_a_node, down=str(down)), *options, ranks=4).finish()
    ranks = [line for line in result.stdout.splitlines() if line.startswith("ranks ")]
    assert (result.returncode == 0, ranks) == (enough, ["ranks 2"] * 2 * enough), result.stderr
    assert "[launch] 127.0.0.2 does not answer" in result.stderr
    assert (
        "follows in 0.05 s on 2 ranks" if enough else "not start again: fewer than 3 ranks are left"
    ) in result.stderr


SRUN = """#!/bin/sh
for word; do case $word in
    --output=*) log=${word#--output=};;
    -*) ;;
    *) break;;
esac; shift; done
for name in $(env | grep -o '^SLURM_[A-Z_]*'); do unset "$name"; done
exec MPIRUN -np 2 sh -c 'log=$1; shift; exec "$@" >> "${log%%%t*}$PMI_RANK${log##*%t}"' sh "$log" "$@"
"""


@pytest.mark.mpi
def test_a_batch_script_stops_goes_into_the_queue_and_resumes(tmp_path, hydra):
    """With an srun that starts the ranks by mpirun, and a queue that is a file."""
    program = ["-m", "tests.mpi.rank", "tests.mpi.programs.restarted:train"]
    arguments = json.dumps({"folder": str(tmp_path / "run"), "way": "ddp", "deaths": [], "on_signal": True})
    launch = [sys.executable, "-m", "pytagi_ddp.launch", "--write-slurm", "job.sh", "-N", "2", *program, arguments]
    path = os.environ["PATH"]
    env = os.environ | {"PYTHONPATH": os.getcwd(), "PATH": f"{tmp_path}:{path}", "SLURM_JOB_ID": "7"}
    env |= {"SLURM_SUBMIT_DIR": str(tmp_path), "PYTAGI_DDP_NUM_THREADS": "1"}
    subprocess.run(launch, check=True, cwd=tmp_path, env=env, timeout=60)
    for name, text in {
        "srun": SRUN.replace("MPIRUN", mpirun_command()[0]),
        "scontrol": "#!/bin/sh\necho $* >> queue",
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    log = tmp_path / "logs" / "rank-7-0.log"
    codes = []
    for _ in range(2):
        job = subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, env=env)
        while not codes and not (log.exists() and "saved 3" in log.read_text()):
            assert job.poll() is None
            time.sleep(0.02)
        if not codes:
            job.send_signal(signal.SIGUSR1)
        codes.append(job.wait(60))
    assert codes == [0, 0]
    assert (tmp_path / "queue").read_text() == "requeue 7\n"
    lines = log.read_text().splitlines()
    starts = [line for line in lines if line.startswith("from ")]
    assert starts[0] == "from 0" and int(starts[1].split()[1]) >= 3 and len(starts) == 2
    assert "--open-mode=append" in (tmp_path / "job.sh").read_text()
    assert lines[-1] == undisturbed("ddp", 2)[0][0]


def test_cases_follow_from_their_number_and_cover_every_way():
    cases = [draw(seed) for seed in range(200)]
    assert cases == [draw(seed) for seed in range(200)]
    assert min(Counter(case.way for case in cases).values()) >= 20 and {case.way for case in cases} == set(WAYS)
    deaths = [death for case in cases for death in case.deaths]
    assert {death[1] for death in deaths} == set(VICTIMS)
    assert min(Counter(death[2] for death in deaths).values()) >= 40
