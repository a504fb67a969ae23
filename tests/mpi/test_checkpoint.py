"""Checkpoints on real ranks: stopped anywhere and taken up again, a run ends with the same bits."""

import hashlib
import json
import os
import re
import signal
import subprocess
import time

import pytest

from pytagi_ddp.checkpoint import CheckpointManager
from tests.mpi.run import mpirun

pytestmark = pytest.mark.mpi

# 26 images in global batches of 6: 5 steps an epoch, the last one of 2 images (of 3 ranks, one has none).
TRAIN = """
import time, hashlib
import numpy as np
import pytagi_ddp
from pytagi_ddp import nn
from pytagi_ddp.checkpoint import CheckpointManager, StopOnSignal, TrainingPosition
from pytagi_ddp.data import BatchLoader, ImageDataset, random_crop_flip
from tests.mpi.ddp_networks import backpropagate

EPOCHS, GLOBAL = 4, 6
folder, stop_after, signals = os.environ["FOLDER"], int(os.environ["STOP_AFTER"]), os.environ["SIGNALS"] == "1"
rng = np.random.default_rng(0)
data = ImageDataset(rng.integers(0, 256, (26, 2, 6, 6), np.uint8), rng.integers(0, 4, 26), tuple("abcd"), "test")
pytagi_ddp.manual_seed(3)
net = nn.DDPSequential(nn.Sequential(
    nn.Conv2d(2, 3, 3, padding=1, in_width=6, in_height=6), nn.MixtureReLU(), nn.BatchNorm2d(3),
    nn.ResNetBlock(nn.LayerBlock(nn.Conv2d(3, 3, 3, padding=1), nn.MixtureReLU(), nn.BatchNorm2d(3))),
    nn.Linear(108, 4),
), average=False)
settings = {"global batch": GLOBAL}
checkpoints = CheckpointManager(folder, keep_last=2)
loader = BatchLoader(data, GLOBAL // net.world_size, net.rank, net.world_size, seed=5, transform=random_crop_flip)
found = checkpoints.load(net, settings=settings)
position = found.position if found else TrainingPosition(seed=5)
step, stopped = position.step, False
with StopOnSignal(net) as stop, loader:
    for epoch in range(position.epoch, EPOCHS):
        loader.set_epoch(epoch, position.batch if epoch == position.epoch else 0)
        for x, labels in loader:
            if len(labels):
                backpropagate(net, x, np.eye(4, dtype=np.float32)[labels])
            net.step()
            step += 1
            if signals and step > 1:
                ready(net.rank)
                time.sleep(0.02)
            if net.stop_requested or step == stop_after:
                checkpoints.save(net, TrainingPosition.of(loader, step), settings)
                stopped = True
                break
        if stopped:
            break
arena = net.model.arena
bits = hashlib.sha256(arena.theta.tobytes() + arena.statistics.tobytes()).hexdigest()
os.write(1, f"{net.rank} {step} {stop.received and stop.received.name} {bits}\\n".encode())  # in one piece
"""
STEPS = 4 * 5


@pytest.fixture
def environment(tmp_path):
    def make(stop_after=0, signals=False):
        return {"FOLDER": str(tmp_path), "STOP_AFTER": str(stop_after), "SIGNALS": str(int(signals))}

    return make


def ended(result):
    """The number of steps and the parameters at the end, the same on all ranks."""
    assert (result.returncode, result.stderr) == (0, "")
    words = [line.split() for line in result.stdout.splitlines()]
    assert len({(step, bits) for _, step, _, bits in words}) == 1
    return int(words[0][1]), words[0][3], {int(rank): name for rank, _, name, _ in words}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Parameters and statistics after a run without a stop, by the number of ranks."""
    found = {}

    def run(np):
        if np not in found:
            env = {"FOLDER": str(tmp_path_factory.mktemp("whole")), "STOP_AFTER": "0", "SIGNALS": "0"}
            step, found[np], _ = ended(mpirun(TRAIN, np, env=env, timeout=60))
            assert step == STEPS
        return found[np]

    return run


@pytest.mark.parametrize("np", [1, 2, 3])
def test_stopped_within_an_epoch_at_its_end_and_again(np, environment, straight, tmp_path):
    for stop_after in (2, 5, 14):  # batches 2 of 5, 5 of 5, and 4 of 5 of the third epoch
        step, _, _ = ended(mpirun(TRAIN, np, env=environment(stop_after)))
        assert step == stop_after
    assert ended(mpirun(TRAIN, np, env=environment()))[:2] == (STEPS, straight(np))
    entries = json.loads((tmp_path / "manifest.json").read_text())["checkpoints"]
    assert [(entry["epoch"], entry["batch"], entry["step"]) for entry in entries] == [(0, 5, 5), (2, 4, 14)]


@pytest.mark.parametrize(
    ("name", "to", "np"),
    [
        ("SIGTERM", "mpirun", 2),
        ("SIGTERM", "rank", 1),
        ("SIGTERM", "rank", 3),
        ("SIGTERM", "mpirun and rank", 2),
        ("SIGUSR1", "mpirun", 3),
        ("SIGUSR1", "rank", 2),
    ],
)
def test_stopped_by_a_signal(name, to, np, environment, straight, mpi_job, hydra):
    job = mpi_job(TRAIN, np, env=environment(signals=True))
    ranks = job.wait_ready()
    if "mpirun" in to:
        job.process.send_signal(getattr(signal, name))
    if "rank" in to:
        os.kill(ranks[-1], getattr(signal, name))
    step, _, received = ended(job.finish(20))
    assert 2 <= step < STEPS
    assert received == {rank: name if "mpirun" in to or rank == np - 1 else "None" for rank in range(np)}
    assert ended(mpirun(TRAIN, np, env=environment()))[:2] == (STEPS, straight(np))


def test_mpirun_waits_for_the_checkpoint(mpi_job, hydra, tmp_path):
    """However long it takes: SIGTERM is forwarded, and no SIGKILL follows."""
    program = """
        import time
        from pytagi_ddp.checkpoint import StopOnSignal
        from pytagi_ddp.nn import DDPSequential, Linear, Sequential
        net = DDPSequential(Sequential(Linear(2, 2)))
        with StopOnSignal(net):
            ready(net.rank)
            while not net.stop_requested: net.step()
            time.sleep(4)
            print("written")
    """
    job = mpi_job(program)
    job.wait_ready()
    for _ in range(2):
        job.process.send_signal(signal.SIGTERM)
        time.sleep(1)
    result = job.finish(20)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("written") == 2
    assert result.seconds > 4


def test_another_number_of_ranks_sees_the_same_samples_and_says_that_it_differs(environment, straight):
    ended(mpirun(TRAIN, 2, env=environment(7)))
    result = mpirun(TRAIN, 3, env=environment())
    assert result.returncode == 0
    assert result.stderr.count("another course") == 1, "only rank 0 warns"
    assert "the number of ranks was 2 and is 3" in result.stderr
    (bits,) = {line.split()[-1] for line in result.stdout.splitlines()}
    assert len({bits, straight(2), straight(3)}) == 3


LOAD = """
import sys
from pytagi_ddp.checkpoint import CheckpointManager
from pytagi_ddp.nn import DDPSequential, Linear, Sequential
net = DDPSequential(Sequential(Linear(2, 2)))
net.model.arena.theta[:] = net.rank
checkpoints = CheckpointManager(sys.argv[1] if net.rank == 0 else "/nonexistent")
"""


def run_load(tmp_path, rest, np=3):
    script = tmp_path / "program.py"
    script.write_text(LOAD + rest)
    return mpirun([str(script), str(tmp_path / "checkpoints")], np)


def test_only_rank_0_needs_the_folder(tmp_path):
    rest = """
from pytagi_ddp.checkpoint import TrainingPosition
assert checkpoints.load(net) is None
path = checkpoints.save(net, TrainingPosition(step=4))
assert (path is None) == (net.rank > 0)
net.model.arena.theta[:] = 9
found = checkpoints.load(net)
assert (found.position.step, found.world_size) == (4, 3)
assert set(net.model.arena.theta.ravel().tolist()) == {0.0}
"""
    result = run_load(tmp_path, rest)
    assert (result.returncode, result.stderr) == (0, "")


def test_an_error_of_loading_is_raised_on_all_ranks(tmp_path):
    rest = """
try:
    checkpoints.load(net, "none.safetensors")
except FileNotFoundError as error:
    sys.stdout.write(f"{error}\\n")
net.barrier()
"""
    result = run_load(tmp_path, rest)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "[Errno 2] No such file or directory: 'none.safetensors'\n" * 3


FAIL = """
from pytagi_ddp.checkpoint import TrainingPosition
import numpy as np, resource
checkpoints = CheckpointManager(sys.argv[1])
checkpoints.save(net, TrainingPosition(step=1))
{}
big = DDPSequential(Sequential(Linear(300, 300)))
for step in (2, 3):
    checkpoints.save(big, TrainingPosition(step=step))
    big.step()
print("reached the end")
"""


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))", "[Errno 27] File too large: '"),
        ("sys.argv[1] += '/manifest.json'; checkpoints = CheckpointManager(sys.argv[1])", "Not a directory: '"),
    ],
)
def test_a_checkpoint_that_cannot_be_written_ends_the_job(tmp_path, fault, message):
    result = run_load(tmp_path, FAIL.format(fault))
    check_failed(result, message, tmp_path / "checkpoints")


def check_failed(result, message, folder):
    """One error, that of rank 0, with the path; the checkpoint before is whole, and nothing else is there."""
    assert result.returncode == 1
    assert result.seconds < 10
    assert result.stderr.count("[rank 0/3] Traceback") == result.stderr.count("[rank ") == 1
    (error,) = re.findall(r"^\w+Error: .*", result.stderr, re.MULTILINE)
    assert f"{message}{folder}/" in error
    assert "reached the end" not in result.stdout
    newest = CheckpointManager(folder).latest()
    assert newest.name.startswith("step-0000000001-")
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", newest.name]


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_full_or_read_only_disk_ends_the_job(tmp_path, fault):
    disk = tmp_path / "checkpoints"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "pytagi-ddp-test", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("may not mount a file system (needs root)")
    try:
        remount = f"net.barrier(); net.rank or os.system('mount -o remount,ro {disk}')"
        rest = "import os\n" + FAIL.format("" if fault == "full" else remount)
        message = {"full": "[Errno 28] No space left on device: '", "read-only": "[Errno 30] Read-only file system: '"}
        check_failed(run_load(tmp_path, rest), message[fault], disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("np", [1, 2])
def test_a_kill_while_writing_leaves_the_checkpoint_before(np, mpi_job, tmp_path):
    program = f"""
        from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
        from pytagi_ddp.nn import DDPSequential, Linear, Sequential
        net = DDPSequential(Sequential(Linear(600, 400)))
        checkpoints = CheckpointManager({str(tmp_path)!r}, keep_last=1)
        for step in range(1, 100_000):
            net.model.arena.theta[:] = step
            checkpoints.save(net, TrainingPosition(step=step))
            net.step()
            if step == 3: ready(net.rank)
    """
    for delay in (0.0, 0.004, 0.009):
        job = mpi_job(program, np)
        time.sleep(delay) or os.kill(job.wait_ready()[0], signal.SIGKILL)
        assert job.finish(20).returncode != 0
        path = CheckpointManager(tmp_path).latest()
        assert int(path.name[5:15]) >= 3
        assert hashlib.sha256(path.read_bytes()).hexdigest()[:8] == path.name[16:24]
    # Killed at most twice before its first checkpoint took everything away, and once since.
    assert len(list(tmp_path.glob(".*.tmp"))) <= 1
