"""Checkpoints: what comes back, what is kept, and what a damaged file or a full disk does."""

import copy
import errno
import fcntl
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import pytagi_ddp
from pytagi_ddp import files
from pytagi_ddp.checkpoint import CheckpointManager, DamagedCheckpointError, TrainingPosition, manifest
from pytagi_ddp.checkpoint.content import describe, metadata
from pytagi_ddp.data import BatchLoader, ImageDataset
from pytagi_ddp.distributed import run_threads
from pytagi_ddp.nn import (
    LSTM,
    BatchNorm2d,
    DDPConfig,
    DDPSequential,
    EvidenceSchedule,
    FSDPSequential,
    Linear,
    PosteriorAverage,
    ReLU,
    Sequential,
)
from pytagi_ddp.nn.files.persistence import to_bytes
from tests import learning

SETTINGS = {"global batch": 16, "data": "digits", "sizes": (3, 4)}
POSITION = TrainingPosition(epoch=2, batch=3, step=43, seed=7)


def network(hidden=3, value=None, **options):
    net = Sequential(Linear(2, hidden), ReLU(), BatchNorm2d(hidden, **options), Linear(hidden, 1))
    if value is not None:
        net.arena.theta[:] = value
        net.arena.statistics[:] = value
    return net


def at(step):
    return TrainingPosition(step=step)


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture
def manager(tmp_path):
    return CheckpointManager(tmp_path / "new" / "folder", keep_last=2)


@pytest.fixture
def two(manager):
    """A folder with two checkpoints, of values 1 and 2."""
    return manager, *(manager.save(network(value=k), at(k), SETTINGS) for k in (1, 2))


@pytest.mark.parametrize("keep_last", [1, 3])
def test_an_interruption_after_the_manifest_keeps_what_it_lists(tmp_path, monkeypatch, keep_last):
    manager = CheckpointManager(tmp_path, keep_last=keep_last)
    manager.save(network(value=1), at(1))
    sync, calls = files._sync_folder, []

    def interrupted(folder):
        calls.append(folder)
        if len(calls) == 2:  # of the manifest
            raise KeyboardInterrupt
        sync(folder)

    monkeypatch.setattr(files, "_sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        manager.save(network(value=2), at(2))
    assert manager.load(network()).position == at(2)


def test_everything_comes_back(manager):
    pytagi_ddp.manual_seed(1)
    net = network()
    net.arena.statistics[:] = np.arange(net.arena.statistics.size)
    path = manager.save(net, POSITION, SETTINGS)
    assert path == manager.latest()
    for place in (None, path, str(path.parent)):
        other = network()
        found = manager.load(other, place, SETTINGS)
        assert other.state_dict() == net.state_dict()
        assert (found.path, found.position, found.world_size) == (path, POSITION, 1)
        assert found.settings == SETTINGS | {"sizes": [3, 4]}
        assert found.version == pytagi_ddp.__version__
    assert names(path.parent) == ["manifest.json", path.name]


def test_the_memory_of_recurrent_layers_comes_back(manager):
    """A series that is learnt sample by sample goes on as if it had not been stopped; ranks of a job have their own."""

    def learn(net):
        learning.learn(net, [[0.3, -0.2]], [[1.0]], 0.1)
        return net

    net, other = (learn(Sequential(LSTM(2, 3), Linear(3, 1))) for _ in range(2))
    manager.save(net, POSITION)
    manager.load(other)
    assert other.state_dict(carried=True) == net.state_dict(carried=True)
    assert learn(other).state_dict(carried=True) == learn(net).state_dict(carried=True)

    def on_ranks():
        ddp = DDPSequential(Sequential(LSTM(2, 3), Linear(3, 1)))
        manager.load(ddp)
        return ddp.model.arena.carried.any()

    with pytest.warns(UserWarning, match="the number of ranks was 1 and is 2"):
        assert run_threads(on_ranks, 2) == [False, False]


def learn(net, *seeds):
    """Steps whose evidence has the weight that the schedule says."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        weight = getattr(net, "model", net).schedule.weight
        learning.learn(net, rng.normal(size=(4, 2)), rng.normal(size=4), 0.3 / weight)
    return net


def test_a_schedule_goes_on_in_the_middle_of_an_epoch(manager):
    """The bits of the run that was not stopped, whether the schedule is made before, or comes with the checkpoint."""
    net = network()
    EvidenceSchedule(net, steps_per_epoch=3, epochs=4)
    learn(net, *range(5))
    found = manager.load(copy.deepcopy(net), manager.save(net, POSITION))
    assert found.schedule == net.schedule.state_dict() and found.schedule["steps"] == 5
    made, given = network(value=1), network(value=1)
    EvidenceSchedule(made, steps_per_epoch=3, epochs=4)
    for other in (made, given):
        manager.load(other)
        assert other.schedule.state_dict() == found.schedule
        learn(other, *range(5, 12))
    learn(net, *range(5, 12))
    assert net.state_dict() == made.state_dict() == given.state_dict()


def test_a_schedule_that_is_there_keeps_its_settings(manager):
    net = network()
    EvidenceSchedule(net, steps_per_epoch=3, epochs=4)
    manager.save(learn(net, 1, 2), POSITION)
    longer = network()
    schedule = EvidenceSchedule(longer, steps_per_epoch=3, epochs=9, count=2)
    with pytest.warns(UserWarning, match=r"have taken: count of its schedule was 8.0 and is 2.0$"):
        manager.load(longer)
    assert (schedule.steps, schedule.epochs, schedule.count) == (2, 9, 2)


def test_a_checkpoint_without_a_schedule_changes_none(manager):
    found = manager.load(network(), manager.save(network(), POSITION))
    assert found.schedule is None
    net = network()
    schedule = EvidenceSchedule(net, steps_per_epoch=3, epochs=4)
    learn(net, 1, 2)
    manager.load(net)
    assert net.schedule is schedule and schedule.steps == 2


@pytest.mark.parametrize(
    "text", ["[]", "{}", "3", '{"steps_per_epoch": 3, "epochs": 2, "count": 1e999, "first": 1, "last": 0, "steps": 2}']
)
def test_a_damaged_schedule_is_a_damaged_checkpoint(manager, text):
    extra = metadata(POSITION, 1, {}) | {"schedule": text}
    with pytest.raises(DamagedCheckpointError, match="is damaged: its metadata are invalid"):
        describe(Path("file"), extra)


@pytest.mark.parametrize("kind", [DDPSequential, FSDPSequential])
def test_a_schedule_of_ranks_goes_on(manager, kind):
    def run(stop):
        pytagi_ddp.manual_seed(1)
        ddp = kind(network(), DDPConfig(backend="threads"), average=False)
        rank = ddp.communicator.rank
        EvidenceSchedule(ddp, steps_per_epoch=3, epochs=4)
        learn(ddp, *range(10 * rank, 10 * rank + (5 if stop else 9)))
        if stop:
            manager.save(ddp, POSITION)
            ddp = kind(network(value=1), DDPConfig(backend="threads"), average=False)
            manager.load(ddp)
            learn(ddp, *range(10 * rank + 5, 10 * rank + 9))
        return ddp.state_dict(), ddp.model.schedule.state_dict()

    stopped, straight = (run_threads(run, 2, stop) for stop in (True, False))
    assert stopped == straight
    assert straight[0][1]["steps"] == straight[1][1]["steps"] == 9


def averaged(net, n=2):
    average = PosteriorAverage(net)
    for k in range(n):
        net.arena.theta[:] = k + 1
        average.update()
    return average


def test_an_average_comes_back(manager):
    net, other = network(), network()
    average, again = averaged(net, 3), averaged(other)
    path = manager.save(net, POSITION, average=average)
    manager.load(other, average=again)
    assert (again.n_averaged, other.state_dict()) == (3, net.state_dict())
    np.testing.assert_array_equal(again.theta, average.theta)
    for load in (manager.load, lambda net: net.load(path)):
        other = network()
        load(other)
        assert other.state_dict() == net.state_dict(), "who asks for no average gets none"
    same = manager.save(net, POSITION)
    assert manager.save(net, POSITION, average=PosteriorAverage(net)) == same, "an average of nothing is none"
    manager.load(net, average=average)
    assert average.n_averaged == 0, "none comes back where there is none"


def test_an_average_on_ranks(manager):
    def on_ranks():
        ddp = DDPSequential(network(), DDPConfig())
        average = averaged(ddp.model, 3)
        manager.save(ddp, POSITION, average=average)
        expected, average = average.theta.copy(), averaged(ddp.model, 1 - ddp.rank)
        manager.load(ddp, average=average)
        return average.n_averaged, np.array_equal(average.theta, expected), ddp.model.arena.theta[0, 0]

    assert run_threads(on_ranks, 2) == [(3, True, 3.0)] * 2


def test_an_average_in_place_is_not_what_a_checkpoint_is_of(manager):
    net = network()
    average = averaged(net)
    for use in (partial(manager.save, net, POSITION), partial(manager.load, net)):
        with average.average_parameters(), pytest.raises(RuntimeError, match="outside of average_parameters"):
            use(average=average)


def test_the_network_of_a_job_is_saved_as_the_job_is(manager):
    """By rank 0, and as that of so many ranks; what is loaded knows of them too."""

    def on_ranks():
        ddp = DDPSequential(network(value=3), DDPConfig())
        saved = [manager.save(ddp.model, at(step)) for step in range(5)]
        ddp.barrier()
        found = manager.load(ddp.model)
        return [path is not None for path in saved], found.world_size, found.position.step

    assert run_threads(on_ranks, 2) == [([True] * 5, 2, 4), ([False] * 5, 2, 4)]


def test_an_average_of_another_network_or_none(manager):
    net = network()
    manager.save(net, POSITION, average=averaged(net))
    for model in (network(), DDPSequential(network(), DDPConfig(backend="serial"))):
        for use in (lambda m, a: manager.save(m, POSITION, average=a), lambda m, a: manager.load(m, average=a)):
            with pytest.raises(ValueError, match="the average belongs to another network than the checkpoint"):
                use(model, averaged(net))
    entries = {"n_averaged": "2"}
    arrays = {"mean": np.ones(net.num_parameters, np.float32), "var": np.ones(net.num_parameters, np.float32)}
    before = net.state_dict()
    for change in ({"n_averaged": "-2"}, {"n_averaged": "0"}, {"n_averaged": "2.5"}, "mean", "var", "negative"):
        wrong = dict(arrays)
        if change == "negative":
            wrong["var"] = -wrong["var"]
        elif isinstance(change, str):
            wrong[change] = wrong[change][1:]
        extra = metadata(POSITION, 1, None) | entries | (change if isinstance(change, dict) else {})
        path = manager.folder / "other.safetensors"
        path.write_bytes(to_bytes(network(value=9), extra, beside=wrong))
        with pytest.raises(DamagedCheckpointError, match=r"other.safetensors is damaged: its average does not fit its"):
            manager.load(net, path, average=PosteriorAverage(net))
        assert net.state_dict() == before
        manager.load(network(), path)


def test_an_average_that_could_not_be_loaded_is_not_saved(manager):
    net = network()
    good, average = manager.save(net, at(1)), averaged(net)
    average.theta[0, 1] = np.nan
    with pytest.raises(
        ValueError, match=r"no checkpoint is saved, .*: the average has means or variances that are not"
    ):
        manager.save(net, at(2), average=average)
    assert manager.latest() == good


def test_a_damaged_average_is_a_damaged_checkpoint(manager, monkeypatch):
    net = network(value=1)
    manager.save(net, at(1), average=averaged(net))
    monkeypatch.setattr("pytagi_ddp.checkpoint.manager.average_entries", lambda average: ({}, {"n_averaged": "2"}))
    second = manager.save(net, at(2))
    average = PosteriorAverage(net)
    with pytest.raises(DamagedCheckpointError, match=f"{second} is damaged: its average .*; the one before is "):
        manager.load(net, average=average)
    with pytest.warns(UserWarning, match=f"{second} .*; going back to "):
        assert manager.load(net, fall_back=True, average=average).position == at(1)
    assert average.n_averaged > 0


def test_the_wrapped_network_is_the_same_to_it(manager):
    net = network(value=5)
    ddp = DDPSequential(net, DDPConfig(backend="serial"))
    path = manager.save(ddp, POSITION)
    net.arena.theta[:] = 0
    assert manager.load(ddp).path == path
    assert set(net.arena.theta.ravel().tolist()) == {5.0}


def test_the_last_ones_are_kept(manager):
    paths = [manager.save(network(value=k), at(k)) for k in range(1, 5)]
    assert names(manager.folder) == ["manifest.json", *(path.name for path in paths[2:])]
    listed = json.loads((manager.folder / "manifest.json").read_text())["checkpoints"]
    assert [(entry["step"], entry["file"]) for entry in listed] == [(3, paths[2].name), (4, paths[3].name)]
    everything = CheckpointManager(manager.folder, keep_last=None)
    for k in range(5, 9):
        everything.save(network(value=k), at(k))
    assert len(names(manager.folder)) == 7


def test_the_newest_is_the_one_written_last(two):
    """Going on from an older checkpoint comes to steps that have been taken before, maybe otherwise."""
    manager, first, second = two
    again = manager.save(network(value=3), at(1))
    assert again != first
    assert manager.latest() == again
    assert manager.save(network(value=2), at(2), SETTINGS) == second, "the same content has the same name"
    assert manager.latest() == second
    assert len(names(manager.folder)) == 3


def test_nothing_there(manager, tmp_path):
    assert manager.latest() is None
    assert manager.load(network()) is None
    for place in (tmp_path, tmp_path / "none.safetensors"):
        with pytest.raises(FileNotFoundError, match=re.escape(str(place))):
            manager.load(network(), place)


def test_settings_are_numbers_of_numpy_too_and_nothing_else(manager):
    settings = {"batch": np.int64(16), "sigma_v": np.float32(0.5), "augment": np.True_}
    manager.save(network(), POSITION, settings)
    for same in (settings, {"batch": 16, "sigma_v": 0.5, "augment": True}):
        assert manager.load(network(), settings=same).settings == {"batch": 16, "sigma_v": 0.5, "augment": True}
    with pytest.raises(TypeError, match=r"settings may hold .* as JSON: got array\(\[1, 2\]\), a ndarray"):
        manager.save(network(), POSITION, {"sizes": np.array([1, 2])})


def test_other_settings(two):
    manager, _, path = two
    net = network()
    before = net.state_dict()
    changed = {"global batch": 32, "data": "digits", "sizes": [3, 4], "sigma_v": 0.1}
    message = (
        f"{path} was written with other settings: global batch was 16 and is 32, sigma_v was not given and is 0.1 "
        "(with allow_changes"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        manager.load(net, settings=changed)
    assert net.state_dict() == before
    with pytest.warns(UserWarning, match="may take another course .*: global batch was 16 and is 32, sigma_v was not "):
        manager.load(net, settings=changed, allow_changes=True)
    assert net.arena.theta[0, 0] == 2


def test_another_architecture(two):
    for other, words in (
        (network(hidden=4), r"output_size of Linear\.0 is 3 there and 4 here"),
        (network(eps=1e-3), r"eps of BatchNorm2d\.2 is 1e-05 there and 0\.001 here"),
    ):
        before = other.state_dict()
        with pytest.raises(ValueError, match=f"another architecture: {words}"):
            two[0].load(other)
        assert other.state_dict() == before


def test_a_file_is_opened_once(two, monkeypatch):
    """What was verified is what is taken, whatever happens to the file meanwhile."""
    manager, _, path = two
    open_file, data = os.open, path.read_bytes()

    def open_and_delete(file, *arguments, **options):
        descriptor = open_file(file, *arguments, **options)
        if file in (path, str(path)):
            path.unlink()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_delete)
    for place in (None, path):
        path.write_bytes(data)
        assert manager.load(network(), place).position == at(2)
        assert not path.exists()


@pytest.mark.parametrize("fall_back", [False, True])
def test_a_job_trains_on_while_the_newest_is_read(two, monkeypatch, fall_back):
    """What it deletes after the list was read is not damaged: there are newer ones, which are taken."""
    manager = two[0]
    for load in (lambda: manager.latest(fall_back), lambda: manager.load(network(), fall_back=fall_back).path):
        for before in (True, False):  # the size of the file was looked at
            newest = manifest.read_manifest(manager.folder)[-1]
            old, step = manager.folder / newest.file, newest.step
            read = manifest.check_size if before else manifest.read_file

            def train_on(path, *args, read=read, old=old, step=step):
                if path == old:
                    monkeypatch.undo()
                    for k in (1, 2):
                        manager.save(network(value=step + k), at(step + k), SETTINGS)
                return read(path, *args)

            monkeypatch.setattr(manifest, read.__name__, train_on)
            found = load()
            assert not old.exists()
            assert found == manager.folder / manifest.read_manifest(manager.folder)[-1].file


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(cut, "bytes"), (flip, "its sha256 is"), (Path.unlink, "is missing, though manifest.json lists it")],
)
def test_a_damaged_checkpoint_is_named(two, damage, message):
    manager, first, second = two
    damage(second)
    with pytest.raises(DamagedCheckpointError, match=f"{second} .*{message}.*the one before is {first}"):
        manager.latest()
    with pytest.raises(DamagedCheckpointError, match=str(second)):
        manager.load(network())
    with pytest.warns(UserWarning, match=f"{second} .*{message}.*going back to {first}"):
        assert manager.latest(fall_back=True) == first
    net = network()
    with pytest.warns(UserWarning, match=f"{second} ") as caught:
        assert manager.load(net, fall_back=True).position == at(1)
    assert caught[0].filename == __file__  # of the line that loads, not of one inside the library
    assert net.arena.theta[0, 0] == 1
    if damage is not Path.unlink:
        with pytest.raises(DamagedCheckpointError, match=str(second)):
            manager.load(network(), second)
    damage(first)
    with pytest.warns(UserWarning), pytest.raises(DamagedCheckpointError, match=f"{first} .*none before it"):
        manager.latest(fall_back=True)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_truncated_without_a_manifest(two, tmp_path, size):
    path = tmp_path / "copy.safetensors"
    path.write_bytes(two[2].read_bytes()[:size])
    with pytest.raises(DamagedCheckpointError, match=f"{path} is truncated or "):
        two[0].load(network(), path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "x", "checkpoints": []}'])
def test_a_damaged_manifest(two, text):
    manager, _, path = two
    manifest = manager.folder / "manifest.json"
    manifest.write_text(text)
    for action in (manager.latest, lambda: manager.save(network(), at(3)), lambda: manager.load(network(), path)):
        with pytest.raises(DamagedCheckpointError, match=f"{manifest} is damaged"):
            action()
    manifest.unlink()
    assert manager.load(network(), path).position == at(2)
    new = manager.save(network(), at(3))
    assert manager.latest() == new
    assert path.exists()


def test_a_network_without_a_position(tmp_path):
    network().save(tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"net.safetensors is not a checkpoint: it has no position"):
        CheckpointManager(tmp_path).load(network(), tmp_path / "net.safetensors")


def test_leftovers_of_killed_runs_go_with_the_next_save(two):
    manager = two[0]
    stray = [f".step-0000000003-0123abcd.safetensors.{'0a' * 16}.tmp", f".manifest.json.{'f' * 32}.tmp"]
    others = ["notes.txt", ".notes.txt.tmp", f".other.{'0' * 32}.tmp", "step-1.safetensors"]
    for name in stray + others:
        (manager.folder / name).write_text("")
    kept = manager.folder / f".step-0000000003-new.{'0' * 32}.tmp"  # what somebody has put a file into
    kept.mkdir()
    (kept / "note.txt").write_text("")
    with pytest.warns(UserWarning, match="is not removed"):
        path = manager.save(network(), at(3))
    assert names(manager.folder) == sorted([*others, "manifest.json", two[2].name, path.name, kept.name])


def test_a_whole_checkpoint_that_a_kill_has_left_off_the_list_stays_until_it_is_written_again(two):
    manager, _, second = two
    listed = (manager.folder / "manifest.json").read_bytes()
    path = manager.save(network(value=3), at(3))
    (manager.folder / "manifest.json").write_bytes(listed)
    assert manager.latest() == second
    another = manager.save(network(value=4), at(4))
    assert manager.load(network(), path).position == at(3)  # as a copy that somebody has put there
    assert names(manager.folder) == ["manifest.json", *(p.name for p in (second, path, another))]
    assert manager.save(network(value=3), at(3)) == path == manager.latest()
    assert names(manager.folder) == ["manifest.json", *(p.name for p in (path, another))]


@contextmanager
def small_files():
    """Writing past 2 kB fails as on a full disk, but with EFBIG; the report of the tests may be such a file."""
    former, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
        signal.signal(signal.SIGXFSZ, handler)


def test_no_space(two):
    manager, first, second = two
    message = rf"\[Errno {errno.EFBIG}\] .*: '{manager.folder}/step-0000000003-\w+.safe"
    with small_files(), pytest.raises(OSError, match=message):
        manager.save(network(hidden=400), at(3))
    assert manager.latest() == second
    assert names(manager.folder) == ["manifest.json", first.name, second.name]


def test_a_full_disk(small_disk):
    manager = CheckpointManager(small_disk, keep_last=1)
    first = manager.save(network(value=1), at(1))
    with pytest.raises(OSError, match=r"No space left on device: .*step-0000000002") as caught:
        manager.save(network(hidden=4000), at(2))
    assert caught.value.errno == errno.ENOSPC
    assert (manager.latest(), names(small_disk)) == (first, ["manifest.json", first.name])
    assert manager.load(network()).position == at(1)
    # Room for the checkpoint, but not for the manifest.
    size = first.stat().st_size
    (small_disk / "ballast").write_bytes(bytes(4096 * (14 - -(-size // 4096))))
    with pytest.raises(OSError, match=r"No space left on device: .*manifest.json"):
        manager.save(network(value=2), at(2))
    assert names(small_disk) == ["ballast", "manifest.json", first.name]
    (small_disk / "ballast").unlink()
    assert manager.latest() == first
    manager.save(network(value=2), at(2))
    assert first.name not in names(small_disk)


def test_a_read_only_file_system(small_disk):
    manager = CheckpointManager(small_disk)
    first = manager.save(network(value=1), at(1))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match=rf"Read-only file system: '{small_disk}/step-0000000002-\w+.safetensors'"):
        manager.save(network(value=2), at(2))
    assert manager.latest() == first


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=f"{tmp_path}/file"):
        CheckpointManager(tmp_path / "file").save(network(), at(1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(two):
    manager, _, second = two
    manager.folder.chmod(0o500)
    with pytest.raises(PermissionError, match=f"{manager.folder}/step-0000000003"):
        manager.save(network(), at(3))
    manager.folder.chmod(0o700)
    assert manager.latest() == second


def test_ranks_that_trained_apart_must_merge_first(manager):
    ddp = DDPSequential(network(), DDPConfig(backend="serial"), every=2)
    ddp.step()
    for net in (ddp, ddp.model):
        with pytest.raises(RuntimeError, match=r"1 steps apart, .* call merge\(\) on every rank"):
            manager.save(net, POSITION)
    assert not manager.folder.exists()
    ddp.step()
    assert manager.save(ddp, POSITION).exists()


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="keep_last must be at least 1, got 0"):
        CheckpointManager(tmp_path, keep_last=0)
    with pytest.raises(ValueError, match="batch must be at least 0, got -1"):
        TrainingPosition(batch=-1)
    for wrong in (1.0, True, "1", np.zeros(2, int)):
        with pytest.raises(TypeError, match="epoch must be an integer, got"):
            TrainingPosition(wrong)


def test_a_position_counted_by_numpy(manager):
    path = manager.save(network(), TrainingPosition(*np.arange(4)))
    assert manager.load(network(), path).position == TrainingPosition(0, 1, 2, 3)


def test_position_of_a_loader():
    data = ImageDataset(np.zeros((7, 1, 2, 2), np.uint8), np.zeros(7, np.int64), ["zero"], "test")
    with BatchLoader(data, 2, seed=5) as loader:
        loader.set_epoch(3, 1)
        next(iter(loader))
        assert TrainingPosition.of(loader, 14) == TrainingPosition(epoch=3, batch=2, step=14, seed=5, samples=4)


@pytest.mark.parametrize("state", [None, [], {"epoch": 1, "batch": 2}])
def test_other_iterables_do_not_say_where_they_are(state):
    loader = iter(()) if state is None else SimpleNamespace(state_dict=lambda: state)
    with pytest.raises(
        TypeError, match=rf"{type(loader).__name__} does not say .* TrainingPosition\(epoch, batch, step"
    ):
        TrainingPosition.of(loader, 1)


def test_importing_it_starts_nothing():
    code = "import sys, pytagi_ddp.checkpoint; print({'mpi4py.MPI', 'cupy', 'matplotlib'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


TOGETHER = """
import sys
from pytagi_ddp import manual_seed, nn
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition

manual_seed(int(sys.argv[2]))
net, manager = nn.Sequential(nn.Linear(3, 2)), CheckpointManager(sys.argv[1], keep_last=3)
print("ready", flush=True)
sys.stdin.readline()
for step in range(40):
    net.layers[0].mu_b = [step, int(sys.argv[2])]
    try:
        manager.save(net, TrainingPosition(step=step))
    except FileNotFoundError:  # the other job takes its temporary file for that of a job that was killed
        pass
"""


@pytest.mark.slow
def test_two_jobs_that_save_into_one_folder_leave_nothing_unlisted(tmp_path):
    """Each listed its own checkpoints, and those of the other stayed for ever: up to 570 files."""
    command = [sys.executable, "-c", TOGETHER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    jobs = [subprocess.Popen([*command, str(seed)], **pipes) for seed in (1, 2)]
    for job in jobs:
        assert job.stdout.readline() == "ready\n"
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.close()
    assert [job.wait(60) for job in jobs] == [0, 0]
    for job in jobs:
        job.stdout.close()
    listed = {entry.file for entry in manifest.read_manifest(tmp_path)}
    assert len(listed) == 3
    assert {path.name for path in tmp_path.iterdir()} == listed | {"manifest.json"}


def test_a_lock_that_somebody_holds_delays_a_checkpoint_by_a_second_at_most(tmp_path):
    net = Sequential(Linear(3, 2))
    manager = CheckpointManager(tmp_path)
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    begin = time.monotonic()
    assert manager.save(net, TrainingPosition(step=1)).exists()
    assert 1 <= time.monotonic() - begin < 3
    os.close(holder)
