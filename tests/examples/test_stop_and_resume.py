"""The CIFAR-10 job, stopped and taken up again: it ends as if nothing had happened.

Here it is its options, its log and its words; tests/training/test_checkpoints.py tests what is resumed, and
tests/mpi/test_checkpoint.py signals. Ranks are threads that train a small network, and processes for a signal.
"""

import json
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
from tests.examples.jobs import SECONDS, in_threads, read_log, start
from tests.mpi.run import mpirun_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks through /proc"),
]
# 45 images in global batches of 16: 3 steps an epoch, the last one of 13 images; the second one begins by forgetting.
SETTINGS = ["--limit-train", 45, "--limit-test", 20, "--augment", "--forget", 4, "--batch-size", 8]
SETTINGS += ["--average-last", 0.7]  # over the last two


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
    log = train(folder, *SETTINGS, "--checkpoint-dir", folder)
    return log, newest(folder)


def check_same_end(whole, folder, log):
    """Parameters, running statistics and averages equal to the last bit, and so the errors."""
    assert newest(folder) == whole[1] and {"beside/mean", "beside/var"} <= whole[1][1].keys()
    for name in ("epoch", "test_error", "sigma_v"):
        assert log[-1][name] == whole[0][-1][name]


def test_resumed_after_an_epoch(whole, tmp_path):
    job = [*SETTINGS, "--checkpoint-dir", tmp_path, "--resume"]
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


def test_resumed_within_an_epoch(whole, tmp_path):
    """The second one, which has forgotten already, and averages."""
    job = [*SETTINGS, "--checkpoint-dir", tmp_path]
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


@pytest.mark.mpi
def test_a_signal_writes_a_checkpoint_and_ends_well(tmp_path):
    if "HYDRA" not in mpirun_version(mpirun_command()[0]):
        pytest.skip("other launchers end a job on a signal in ways of their own")
    job = ["--limit-train", 400, "--limit-test", 8, "--batch-size", 2, "--augment", "--checkpoint-dir", tmp_path / "c"]
    running = start("--log-dir", tmp_path, *job, "--checkpoint-on-signal", "--checkpoint-every", 1, np=2)
    wait_for(lambda: (tmp_path / "c" / "manifest.json").exists(), running)
    running.process.send_signal(signal.SIGTERM)
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


def wait_for(condition, job) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline and job.process.poll() is None
        time.sleep(0.02)
