"""The CIFAR-10 job, stopped and taken up again: it ends as if nothing had happened.

Where the ranks are not the point, they are threads that train a small network (`tests/mpi/test_checkpoint.py` takes up
trainings of processes), and processes elsewhere.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from examples import ddp_cifar_resnet
from examples.options import parse_arguments
from examples.rank_training import run_settings
from pytagi_ddp import nn
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.data import synthetic_images
from pytagi_ddp.distributed.engine.launcher import mpirun_version
from pytagi_ddp.nn import Linear, Sequential
from tests.conftest import weekly
from tests.examples.jobs import SECONDS, exit_codes, in_threads, read_log, start
from tests.mpi.run import mpirun_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks through /proc"),
]
mpi = pytest.mark.mpi
# 45 images in global batches of 16: 3 steps an epoch, the last one of 13 images; the second one begins by forgetting.
SETTINGS = ["--limit-train", 45, "--limit-test", 20, "--augment", "--forget", 4]
AVERAGED = [*SETTINGS, "--average-last", 0.7]  # over the last two


def small(gain_w, gain_b, is_remax, checkpoint_blocks, through_statistics, outputs):
    """In place of the ResNet: with statistics."""
    convolution = nn.Conv2d(3, 4, 4, stride=4, in_width=32, in_height=32)
    return nn.Sequential(convolution, nn.BatchNorm2d(4), nn.MixtureReLU(), nn.Linear(256, outputs))


@pytest.fixture(scope="module", autouse=True)
def small_network():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ddp_cifar_resnet.MODELS, "resnet8", small)
        yield


def train(folder, *arguments) -> list[dict]:
    """Runs the job on two ranks that are threads; returns the records of its log in `folder`."""
    in_threads("--log-dir", folder, *arguments)
    return read_log(folder)


def newest(folder: Path) -> tuple[dict, dict[str, bytes]]:
    """Entry and values of the last checkpoint."""
    entry = json.loads((folder / "manifest.json").read_text())["checkpoints"][-1]
    return entry, {name: array.tobytes() for name, array in load_file(folder / entry["file"]).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two epochs on two ranks without a stop: the log, and the last checkpoint."""
    folder = tmp_path_factory.mktemp("whole")
    log = train(folder, *AVERAGED, "--batch-size", 8, "--checkpoint-dir", folder)
    return log, newest(folder)


def check_same_end(whole, folder, log):
    """Parameters, running statistics and averages equal to the last bit, and so the errors."""
    assert newest(folder) == whole[1] and {"beside/mean", "beside/var"} <= whole[1][1].keys()
    for name in ("epoch", "test_error", "sigma_v"):
        assert log[-1][name] == whole[0][-1][name]


def test_resumed_after_an_epoch(whole, tmp_path):
    job = [*AVERAGED, "--batch-size", 8, "--checkpoint-dir", tmp_path, "--resume"]
    train(tmp_path, *job, "--epochs", 1)  # there is no checkpoint: it begins
    log = train(tmp_path, *job)
    assert [(record["event"], record.get("epoch")) for record in log] == [
        ("start", None),
        ("epoch", 1),
        ("start", None),
        ("epoch", 2),
    ]
    check_same_end(whole, tmp_path, log)
    assert log[-1]["train_error"] == whole[0][-1]["train_error"]


def test_resumed_from_shards(whole, tmp_path):
    """One epoch with parameters in shards, the next one with replicas: as two with replicas."""
    job = ["--batch-size", 8, "--checkpoint-dir", tmp_path]
    train(tmp_path, *SETTINGS, *job, "--epochs", 1, "--parallel", "fsdp")
    assert len(list(tmp_path.glob("step-*/rank-*-of-2.safetensors"))) == 2
    log = train(tmp_path, *AVERAGED, *job, "--resume")
    check_same_end(whole, tmp_path, log)


def test_evidence_is_weighted_as_without_a_stop(tmp_path):
    """A run that resumes within an epoch has the schedule of its checkpoint."""
    job = ["--limit-train", 45, "--limit-test", 20, "--batch-size", 8, "--checkpoint-dir", tmp_path]
    train(tmp_path, *job, "--checkpoint-every", 1, "--keep-last", 5)
    end, files = newest(tmp_path), {int(path.name[5:15]): path for path in tmp_path.glob("step-*")}
    train(tmp_path, *job, "--resume", files[4])
    assert newest(tmp_path) == end


def test_resumed_within_an_epoch(whole, tmp_path):
    """The second one, which has forgotten already, and averages."""
    job = [*AVERAGED, "--batch-size", 8, "--checkpoint-dir", tmp_path]
    train(tmp_path, *job, "--checkpoint-every", 1, "--keep-last", 5)
    files = {int(path.name[5:15]): path for path in tmp_path.glob("step-*")}
    assert sorted(files) == [2, 3, 4, 5, 6]
    log = train(tmp_path, *job, "--resume", files[5])
    check_same_end(whole, tmp_path, log)
    net, average = (small(0.1, 0.1, False, False, False, 11) for _ in range(2))
    entry, values = newest(tmp_path)
    net.load(tmp_path / entry["file"])
    average.load(tmp_path / "average.safetensors")
    theta = average.arena.theta
    assert (theta[0].tobytes(), theta[1].tobytes()) == (values["beside/mean"], values["beside/var"])
    assert net.state_dict() != average.state_dict()


@mpi
@pytest.mark.parametrize(
    ("number", "to_rank"),
    [
        (signal.SIGTERM, None),
        pytest.param(signal.SIGTERM, 1, marks=weekly),
        pytest.param(signal.SIGUSR1, None, marks=weekly),
        pytest.param(signal.SIGUSR1, 0, marks=weekly),
    ],
)
def test_a_signal_writes_a_checkpoint_and_ends_well(tmp_path, number, to_rank):
    if "HYDRA" not in mpirun_version(mpirun_command()[0]):
        pytest.skip("other launchers end a job on a signal in ways of their own")
    job = ["--limit-train", 400, "--limit-test", 8, "--batch-size", 2, "--augment", "--checkpoint-dir", tmp_path / "c"]
    running = start("--log-dir", tmp_path, *job, "--checkpoint-on-signal", "--checkpoint-every", 1, np=2)
    wait_for(lambda: (tmp_path / "c" / "manifest.json").exists(), running)
    os.kill(running.process.pid if to_rank is None else rank_ids(running)[to_rank], number)
    result = running.finish(SECONDS)
    assert (result.returncode, result.stderr) == (0, "")
    lines = [line for line in result.stdout.splitlines() if "resume" in line]
    place = re.fullmatch(
        r"stopped by a signal after batch (\d+)/100 of epoch 1/2; the same command with --resume continues from there",
        *lines,
    )
    entry, _ = newest(tmp_path / "c")
    assert (entry["epoch"], entry["batch"], entry["step"]) == (0, int(place[1]), int(place[1]))
    assert 1 <= entry["step"] < 100
    stop = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert (stop["event"], stop["step"]) == ("stop", entry["step"])


def test_another_number_of_ranks(whole, tmp_path):
    job = [*SETTINGS, "--keep-last", 9, "--checkpoint-dir", tmp_path]
    train(tmp_path, *job, "--batch-size", 8, "--checkpoint-every", 2, "--epochs", 1)
    (path,) = tmp_path.glob("step-0000000002-*")
    with pytest.warns(UserWarning, match="number of ranks was 2 and is 1") as caught:
        in_threads("--log-dir", tmp_path, *job, "--batch-size", 16, "--resume", path, np=1)
    assert "another course" in str(caught.pop(UserWarning).message) and not caught.list
    entry, values = newest(tmp_path)
    assert (entry["epoch"], entry["step"], entry["world_size"]) == (2, 6, 1)
    assert values != whole[1][1]

    job += ["--batch-size", 4, "--resume", path]
    with pytest.raises(SystemExit, match=r"with other settings: global batch was 16 and is 4 \("):
        in_threads("--log-dir", tmp_path, *job, np=1)
    with pytest.warns(UserWarning, match="another course"):
        in_threads("--log-dir", tmp_path, *job, "--allow-changes", np=1)
    assert newest(tmp_path)[0]["step"] == 2 + 4 + 12, "32 of 45 images are 8 of 12 batches"


def test_a_checkpoint_that_cannot_be_written_ends_the_job(tmp_path):
    job = ["--log-dir", tmp_path, *SETTINGS, "--batch-size", 8, "--checkpoint-dir", "/proc/none"]  # nobody makes it
    what = "FileNotFoundError: [Errno 2] No such file or directory: '/proc/none'"
    codes = exit_codes(ddp_cifar_resnet.main, *job)
    assert codes == [f"error: the callback Checkpoints failed in fit_begin: {what}", 1]


def test_a_pipeline_takes_other_steps_than_replicas_and_shards(tmp_path):
    data = synthetic_images(10, 10)[0]

    def settings(way):
        return run_settings(parse_arguments(["--parallel", way, "--batch-size", "8"]), data)

    net = Sequential(Linear(1, 1))
    manager = CheckpointManager(tmp_path)
    manager.save(net, TrainingPosition(), settings("ddp"))
    assert manager.load(net, settings=settings("fsdp"))
    with pytest.raises(ValueError, match="parallel was not given and is 'pipeline'"):
        manager.load(net, settings=settings("pipeline"))
    manager.save(net, TrainingPosition(step=1), settings("pipeline"))
    with pytest.raises(ValueError, match="parallel was 'pipeline' and is not given"):
        manager.load(net, settings=settings("ddp"))


def rank_ids(job) -> dict[int, int]:
    """Process ids by rank."""
    found = {}
    for pid in job._living():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        found |= {int(v[9:]): pid for v in variables if v.startswith(b"PMI_RANK=")}
    return found


def wait_for(condition, job) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline and job.process.poll() is None
        time.sleep(0.02)
