"""Checkpoints of a network that is spread over ranks: its files, whatever way it is spread."""

import json
import os
import shutil
import threading
import warnings

import numpy as np
import pytest

from pytagi_ddp import manual_seed
from pytagi_ddp.checkpoint import CheckpointManager, DamagedCheckpointError, TrainingPosition, sharded
from pytagi_ddp.checkpoint.manifest import MAX_BYTES, checksum
from pytagi_ddp.checkpoint.shards import PART, index_bytes, parse_index
from pytagi_ddp.distributed import DataParallel, initialize, run_threads
from pytagi_ddp.distributed.gathering import VOTES
from pytagi_ddp.distributed.sharded import ShardedNetwork
from pytagi_ddp.nn import (
    BatchNorm2d,
    DDPConfig,
    DDPSequential,
    FSDPSequential,
    Linear,
    PipelineSequential,
    ReLU,
    Sequential,
)
from pytagi_ddp.nn.files.architecture import architecture, sizes
from pytagi_ddp.nn.files.persistence import to_bytes
from pytagi_ddp.nn.files.state_dicts import held

pytestmark = pytest.mark.filterwarnings("ignore:training on from")


def network(seed, hidden=5):
    manual_seed(seed)
    net = Sequential(Linear(3, hidden), ReLU(), BatchNorm2d(hidden), Linear(hidden, 2))
    net.arena.statistics[:] = np.arange(1, 1 + net.arena.statistics.size) + seed
    return net


class Spread(ShardedNetwork):
    """Each rank vouches for one part of every tensor; some parts are empty."""

    def __init__(self, model):
        self.model, self.communicator = model, initialize()

    def slices(self):
        rank, ranks = self.communicator.rank, self.communicator.world_size
        parts = []
        for tensor in held(self.model):
            start, stop = tensor.size * rank // ranks, tensor.size * (rank + 1) // ranks
            parts.append(tensor.clipped(tensor.offset + start, tensor.offset + stop))
        return parts

    @property
    def architecture(self):
        return architecture(self.model)

    @property
    def sizes(self):
        return sizes(self.model)

    def to_bytes(self, extra=None):
        return to_bytes(self.model, extra) if self.communicator.rank == 0 else b""

    def take(self, values):
        for part, new in values:
            part.array[:] = new


def save(folder, ranks, *steps, keep_last=2, change=None):
    """Saves networks of these seeds as those steps; `change` of rank and network comes before each."""

    def program():
        for step in steps:
            spread = Spread(network(step))
            if change is not None:
                change(spread.communicator.rank, spread.model)
            path = CheckpointManager(folder, keep_last).save(spread, TrainingPosition(step=step), {"size": 5})
        return path

    return run_threads(program, ranks)


def load(folder, ranks, hidden=5, **arguments):
    """The whole network as `ranks` ranks have read it, each its part; and what they were told of the checkpoint."""

    def program():
        spread = Spread(network(99, hidden))
        found = CheckpointManager(folder).load(spread, **arguments)
        return found, [(part.name, part.start, np.array(part.array)) for part in spread.slices()]

    results = run_threads(program, ranks)
    assert all(found == results[0][0] for found, _ in results)
    whole = {}
    for _, parts in results:
        for name, start, values in parts:
            assert start == sum(map(len, whole.setdefault(name, [])))
            whole[name].append(values)
    return results[0][0], {name: np.concatenate(values) for name, values in whole.items()}


@pytest.mark.parametrize("fall_back", [False, True])
def test_a_job_trains_on_while_the_newest_is_read(tmp_path, monkeypatch, fall_back):
    """What it deletes after the list was read is not damaged: there are newer ones, which are taken."""
    save(tmp_path, 2, 1, keep_last=1)
    read = sharded.verify

    def train_on(path, shard):
        with lock:
            if path.exists() and path.name.startswith("step-0000000001"):
                save(tmp_path, 1, 2, keep_last=1)
        return read(path, shard)

    lock = threading.Lock()
    monkeypatch.setattr(sharded, "verify", train_on)
    found, values = load(tmp_path, 2, fall_back=fall_back)
    assert found.position.step == 2
    assert_equal(values, tensors(network(2)))


def tensors(net):
    return {tensor.name: np.array(tensor.array) for tensor in held(net)}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("wrote", [1, 2, 3, 4])
def test_any_number_of_ranks_reads_what_any_other_wrote(wrote, tmp_path):
    path, *others = save(tmp_path, wrote, 7)
    assert all(other == path for other in others)
    assert sorted(file.name for file in path.iterdir()) == [
        *(f"rank-{rank}-of-{wrote}.safetensors" for rank in range(wrote)),
        "shards.json",
    ]
    for ranks in (1, 2, 3, 5):
        for place in (None, path, tmp_path):
            found, values = load(tmp_path, ranks, path=place, settings={"size": 5})
            assert_equal(values, tensors(network(7)))
            assert (found.path, found.position.step, found.world_size) == (path, 7, wrote)


def test_one_process_and_replicas_read_it_too(tmp_path):
    path = save(tmp_path, 3, 7)[0]
    manager = CheckpointManager(tmp_path)
    assert manager.latest() == path
    net = network(1)
    assert manager.load(net).path == path
    assert net.state_dict() == network(7).state_dict()

    def replica():
        ddp = DDPSequential(network(2), DDPConfig(backend="threads"))
        manager.load(ddp)
        return ddp.state_dict()

    assert run_threads(replica, 2) == [network(7).state_dict()] * 2


def test_a_file_of_a_whole_network_is_read_in_parts(tmp_path):
    manager = CheckpointManager(tmp_path)
    path = manager.save(network(4), TrainingPosition(step=4))
    for place in (None, path):
        assert_equal(load(tmp_path, 3, path=place)[1], tensors(network(4)))
    assert load(tmp_path / "none", 2)[0] is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no checkpoint in this folder"):
        load(tmp_path, 2, path=tmp_path / "empty")


def test_old_ones_go_and_what_is_not_ours_stays(tmp_path):
    save(tmp_path, 2, 1, 2)
    (first,) = tmp_path.glob("step-0000000001-*")
    (first / "notes.txt").write_text("mine")
    with pytest.warns(UserWarning, match="is not removed"):
        save(tmp_path, 2, 3)
    assert [file.name for file in first.iterdir()] == ["notes.txt"]
    listed = json.loads((tmp_path / "manifest.json").read_text())["checkpoints"]
    assert [entry["step"] for entry in listed] == [2, 3]


def test_a_folder_that_becomes_a_link_while_it_is_removed_is_not_followed(tmp_path, monkeypatch):
    folder, home = tmp_path / "step-0000000001-00000000", tmp_path / "home"
    for place in (folder, home):
        place.mkdir()
        (place / ".profile").write_text("")
    (tmp_path / "link").symlink_to(home)

    names_in = os.listdir

    def exchanging(place):
        names = names_in(place)
        if not folder.is_symlink():
            folder.rename(tmp_path / "away")
            folder.symlink_to(home)
        return names

    monkeypatch.setattr(os, "listdir", exchanging)
    for place in (folder, tmp_path / "link"):
        with pytest.warns(UserWarning, match=rf"{place} is not removed"):
            sharded.remove_folder(place)
    assert (home / ".profile").exists()


def test_old_ones_that_somebody_removed_or_filled_are_no_error(tmp_path):
    """Of the two that go with the third and fourth, one is not there, and one has a folder that looks like ours."""
    save(tmp_path, 2, 1, 2)
    first, second = sorted(tmp_path.glob("step-*"))
    shutil.rmtree(first)
    save(tmp_path, 2, 3)  # silently: warnings are errors
    (second / ".snapshot").mkdir()
    with pytest.warns(UserWarning, match=rf"{second} is not removed"):
        path = save(tmp_path, 2, 4)[0]
    assert CheckpointManager(tmp_path).latest() == path
    assert [file.name for file in second.iterdir()] == [".snapshot"]


def test_the_same_content_again_is_the_same_folder(tmp_path):
    path, again = save(tmp_path, 2, 1)[0], save(tmp_path, 2, 1)[0]
    assert path == again
    spoil(path / "rank-1-of-2.safetensors")
    assert save(tmp_path, 2, 1)[0] == path
    assert_equal(load(tmp_path, 2)[1], tensors(network(1)))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["manifest.json", path.name]


def test_what_a_killed_run_left_is_removed(tmp_path):
    path = save(tmp_path, 2, 1)[0]
    hidden = tmp_path / f".step-0000000002-new.{'a' * 32}.tmp"
    shutil.copytree(path, hidden)
    (hidden / "shards.json").unlink()
    assert CheckpointManager(tmp_path).latest() == path
    save(tmp_path, 2, 3)
    assert not hidden.exists()


def spoil(file):
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)


@pytest.mark.parametrize("fault", ["bit", "short", "missing", "a folder", "no index", "index"])
def test_a_damaged_shard_is_named_and_the_one_before_is_taken(fault, tmp_path):
    path = save(tmp_path, 3, 1, 2)[0]
    file = path / ("shards.json" if "index" in fault else "rank-1-of-3.safetensors")
    if fault in ("bit", "index"):
        spoil(file)
    elif fault == "short":
        file.write_bytes(file.read_bytes()[:-4])
    else:
        file.unlink()
        if fault == "a folder":
            file.mkdir()
    for read in (lambda **how: load(tmp_path, 2, **how), lambda **how: CheckpointManager(tmp_path).latest(**how)):
        what = path.name if fault == "no index" else f"{path}.*{file.stem}"
        with pytest.raises(DamagedCheckpointError, match=f"{what}.*the one before is .*step-0000000001"):
            read()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, values = load(tmp_path, 2, fall_back=True)
    assert {warning.filename for warning in caught if path.name in str(warning.message)} == {__file__}
    assert found.position.step == 1
    assert_equal(values, tensors(network(1)))
    for shard in tmp_path.rglob("rank-0-*"):
        spoil(shard)
    with (
        pytest.raises(DamagedCheckpointError, match="none before it"),
        pytest.warns(UserWarning, match="going back to"),
    ):
        load(tmp_path, 2, fall_back=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_values_that_nobody_could_load_are_not_saved(bad, tmp_path):
    path = save(tmp_path, 3, 1)[0]

    def change(rank, model):
        model.arena.theta[1, 9] = bad  # a variance of the first weights, which rank 1 vouches for

    with pytest.raises(ValueError, match=r"Linear\.0/var_w@5:10"):
        save(tmp_path, 3, 2, change=change)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["manifest.json", path.name]


def saves_its_part(kind, folder):
    model = network(1)
    net = kind(model, DDPConfig(backend="threads"))
    CheckpointManager(folder).save(model, TrainingPosition())
    return net.rank


@pytest.mark.parametrize("kind", [FSDPSequential, PipelineSequential])
def test_a_part_of_a_network_is_no_checkpoint(kind, tmp_path):
    with pytest.raises(RuntimeError, match=f"part of a network that one rank holds: save the {kind.__name__}, on ev"):
        run_threads(saves_its_part, 2, kind, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_wrapper_of_another_kind_is_named(tmp_path):
    net, manager = DataParallel(network(1), ["cpu"]), CheckpointManager(tmp_path)
    for call in (lambda: manager.save(net, TrainingPosition()), lambda: manager.load(net)):
        with pytest.raises(TypeError, match="or PipelineSequential, not of a DataParallel: give its model"):
            call()
    net.close()


def test_another_network_or_other_settings_are_refused(tmp_path):
    save(tmp_path, 2, 1)
    with pytest.raises(ValueError, match=r"has another architecture: .*is 5 there and 6 here"):
        load(tmp_path, 2, hidden=6)
    with pytest.raises(ValueError, match="size was 5 and is 4"):
        load(tmp_path, 2, settings={"size": 4})
    with pytest.warns(UserWarning, match="size was 5 and is 4"):
        load(tmp_path, 2, settings={"size": 4}, allow_changes=True)


def refused(place, error, words):
    """On the ranks of a job, and in one process; `place` is a folder of checkpoints or one of them."""
    for read in (lambda: load(place, 2, path=place), lambda: CheckpointManager(place).load(network(1), place)):
        with pytest.raises(error, match=words):
            read()


@pytest.mark.parametrize("fault", ["a path", "no integer", "twice", "left out", "none", "format", "parts", "header"])
def test_an_index_that_makes_no_sense(fault, tmp_path):
    path = save(tmp_path, 3, 1)[0]
    index = path / "shards.json"
    content = json.loads(index.read_text())
    first = content["shards"][0]
    if fault == "a path":
        first["file"] = "../rank-0-of-3.safetensors"
    elif fault == "no integer":
        first["bytes"] = "12"
    elif fault == "twice":
        content["shards"].append(first)
    elif fault == "left out":
        content["shards"].pop(1)
    elif fault == "none":
        content["shards"] = []
    elif fault in ("parts", "header"):  # of another rank; or of more bytes than there are
        data = (path / first["file"]).read_bytes() if fault == "parts" else (1 << 30).to_bytes(8, "little") + b"{}"
        (path / content["shards"][1]["file"]).write_bytes(data)
        content["shards"][1] |= {"bytes": len(data), "sha256": checksum(data)}
    else:
        content["format"] = "pytagi_ddp shards 2"
    index.write_text(json.dumps(content))
    copied = tmp_path / "elsewhere" / "copied"  # which no manifest lists
    shutil.copytree(path, copied)
    words = {
        "twice": "4 shards must be those of all ranks, each once, and are rank-0-of-3.safetensors, rank-1",
        "left out": "2 shards must be those of all ranks",
        "none": "0 shards must be",
        "parts": "there twice|are missing",
        "header": "its header has 1073741824 bytes, more than 8388608",
    }.get(fault, "shards.json is damaged|copied is damaged")
    refused(copied, DamagedCheckpointError, words)


@pytest.mark.parametrize("text", ["[1, 2]", "[1, 2", "Linear.0: Linear(3,5)"])
def test_an_architecture_that_makes_no_sense(text, tmp_path):
    path = save(tmp_path, 2, 1)[0]
    content = json.loads((path / "shards.json").read_text())
    content["metadata"]["architecture"] = text
    shutil.copytree(path, copied := tmp_path / "copied")
    (copied / "shards.json").write_text(json.dumps(content))
    refused(copied, ValueError, "copied is corrupt: its architecture cannot be read")


def test_an_index_is_not_read_that_is_longer_than_one_is(tmp_path):
    """Even if a manifest, which may come from elsewhere too, agrees with it."""
    path = save(tmp_path, 2, 1)[0]
    with open(path / "shards.json", "ab") as file:
        file.write(b" " * MAX_BYTES)
    manifest = tmp_path / "manifest.json"
    content = json.loads(manifest.read_text())
    data = (path / "shards.json").read_bytes()
    content["checkpoints"][0] |= {"bytes": len(data), "sha256": checksum(data)}
    manifest.write_text(json.dumps(content))
    refused(tmp_path, DamagedCheckpointError, f"shards.json with {len(data)} bytes")
    with pytest.raises(DamagedCheckpointError, match=f"shards.json with {len(data)} bytes"):
        load(tmp_path, 2)  # the newest one


def test_an_index_is_read_as_it_was_written(tmp_path):
    path = save(tmp_path, 2, 1)[0]
    data = (path / "shards.json").read_bytes()
    assert index_bytes(*parse_index(path, data)) == data
    assert PART.fullmatch("Conv2d.main.3.0/mu_w@10:200").groups() == ("Conv2d.main.3.0/mu_w", "10", "200")


def no_json(rank, tmp_path, gather):
    """Settings that rank 1 alone cannot write, with one that does; whether the ranks are in step then."""
    spread = Spread(network(1))
    spread.communicator.timeout = 5
    manager = CheckpointManager(tmp_path)
    with pytest.raises(TypeError, match="settings may hold"):
        manager.save(spread, TrainingPosition(), {"size": object() if spread.communicator.rank == rank else 5}, gather)
    return manager.save(spread, TrainingPosition(), {"size": 5}, gather).name


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_settings_that_one_rank_cannot_write_are_everybodys_error(rank, gather, tmp_path):
    names = run_threads(no_json, 2, rank, tmp_path, gather)
    assert names[0] == names[1] and [path.name for path in tmp_path.glob("step-*")] == names[:1]


KINDS = {
    "FSDP": lambda: FSDPSequential(network(1), min_num_params=10),
    "whole FSDP": lambda: FSDPSequential(network(1), min_num_params=10, reshard_after_forward=False),
    "pipeline": lambda: PipelineSequential(network(1)),
}


def out_of_memory(kind, call, tmp_path, monkeypatch):
    """A rank that has no memory amid what it does with the others."""
    net = KINDS[kind]()
    net.communicator.timeout = 5
    manager = CheckpointManager(tmp_path)
    calls = {
        "save": lambda: net.save(tmp_path / "net"),
        "gather": lambda: manager.save(net, TrainingPosition(), gather=True),
        "manager": lambda: manager.save(net, TrainingPosition()),
        "state_dict": net.state_dict,
    }
    array = net.model.kernels.array
    to_host = array.to_host

    def without_room(values):
        if threading.current_thread().name == "rank 0" and values.size != VOTES:
            raise MemoryError("no room on rank 0")
        return to_host(values)

    net.communicator.barrier()
    with monkeypatch.context() as patch:
        if net.communicator.rank == 0:
            patch.setattr(array, "to_host", without_room)
        net.communicator.barrier()
        with pytest.raises(MemoryError, match="no room on rank 0"):
            calls[call]()
        net.communicator.barrier()
    net.communicator.barrier()
    calls[call]()
    return net.communicator.all_gather_object(net.rank)


@pytest.mark.parametrize(
    ("kind", "call"),
    [(kind, call) for kind in ("FSDP", "pipeline") for call in ("save", "gather", "manager", "state_dict")]
    + [("whole FSDP", "gather"), ("whole FSDP", "manager")],
)
def test_memory_that_one_rank_has_not_is_everybodys_error(kind, call, tmp_path, monkeypatch):
    assert run_threads(out_of_memory, 2, kind, call, tmp_path, monkeypatch) == [[0, 1]] * 2
