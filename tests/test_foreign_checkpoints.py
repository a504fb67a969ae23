"""Checkpoint folders that somebody else has made, and networks that had gone wrong before they were saved."""

import json
import os

import numpy as np
import pytest

from pytagi_ddp.checkpoint import CheckpointManager, DamagedCheckpointError, TrainingPosition
from pytagi_ddp.checkpoint.manifest import MAX_BYTES
from pytagi_ddp.nn import BatchNorm2d, Linear, Sequential
from pytagi_ddp.nn.files import persistence, state_dicts
from pytagi_ddp.nn.files.file_format import MAX_HEADER
from tests.headers import with_header

ENTRY = {
    "file": "step-0000000001-0123abcd.safetensors",
    "bytes": 1,
    "sha256": "0" * 64,
    "epoch": 0,
    "batch": 0,
    "step": 1,
    "world_size": 1,
}


def network(value=None):
    net = Sequential(Linear(2, 3), BatchNorm2d(3), Linear(3, 1))
    if value is not None:
        net.arena.theta[:] = value
    return net


@pytest.fixture
def manager(tmp_path):
    (tmp_path / "folder").mkdir()
    return CheckpointManager(tmp_path / "folder", keep_last=1)


def write_manifest(manager, checkpoints):
    content = {"format": "pytagi_ddp checkpoints 1", "checkpoints": checkpoints}
    (manager.folder / "manifest.json").write_text(json.dumps(content))


def assert_damaged(manager, message):
    """Every use of the manifest is refused, by an error that names it."""
    for use in (manager.latest, lambda: manager.load(network()), lambda: manager.save(network(), TrainingPosition())):
        with pytest.raises(DamagedCheckpointError, match=f"manifest.json is damaged: .*{message}"):
            use()


PATHS = ["../victim", "/{folder}/victim", "../victim/../victim", "victim", "step-0000000001-0123abcd.safetensors/../x"]


@pytest.mark.parametrize("name", [*PATHS, "step-1-0123abcd.safetensors", "step-0000000001-0123abcd.safetensors\n", ""])
def test_a_manifest_names_checkpoints_and_no_other_file(manager, tmp_path, name):
    """What it lists is deleted when newer ones push it out."""
    victims = [tmp_path / "victim", manager.folder / "victim"]
    for victim in victims:
        victim.write_text("precious")
    write_manifest(manager, [ENTRY | {"file": name.format(folder=tmp_path)}])
    assert_damaged(manager, "is not a name of a checkpoint")
    assert [victim.read_text() for victim in victims] == ["precious", "precious"]


def test_a_link_in_place_of_a_checkpoint_is_deleted_and_not_what_it_leads_to(manager, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (manager.folder / ENTRY["file"]).symlink_to(victim)
    write_manifest(manager, [ENTRY])
    manager.save(network(), TrainingPosition())
    assert victim.read_text() == "precious"
    assert not (manager.folder / ENTRY["file"]).is_symlink()


@pytest.mark.parametrize(
    ("checkpoints", "message"),
    [
        ([ENTRY | {"file": 1}], "string"),
        ([ENTRY | {"bytes": "1"}], f"bytes of {ENTRY['file']} must be an integer, got '1'"),
        ([ENTRY | {"step": True}], f"step of {ENTRY['file']} must be an integer, got True"),
        ({"file": 1}, ""),
        ([1], ""),
        (None, ""),
    ],
)
def test_entries_of_wrong_types(manager, checkpoints, message):
    write_manifest(manager, checkpoints)
    assert_damaged(manager, message)


def test_a_manifest_nested_too_deeply(manager):
    (manager.folder / "manifest.json").write_text("[" * 100_000)
    assert_damaged(manager, "[rR]ecursion")


def test_a_manifest_too_large_is_not_read(manager):
    with (manager.folder / "manifest.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert_damaged(manager, f"has {MAX_BYTES + 1} bytes")


@pytest.mark.timeout(20)
def test_a_pipe_is_not_waited_for(manager, tmp_path):
    pipe, net = tmp_path / "net_1_mw.csv", network()
    os.mkfifo(pipe)
    for read in (lambda: net.load(pipe), lambda: manager.load(net, pipe), lambda: net.load_csv(tmp_path / "net")):
        with pytest.raises(OSError, match=f"not a regular file: '{pipe}'"):
            read()
    os.mkfifo(manager.folder / "manifest.json")
    with pytest.raises(OSError, match=r"not a regular file: .*manifest\.json"):
        manager.latest()


@pytest.fixture
def saved(manager):
    path = manager.save(network(1), TrainingPosition(3, 5, 20, 7), {"sigma_v": 0.5})
    (manager.folder / "manifest.json").unlink()
    return path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (rb"\"epoch\": 3", rb"\"epoch\": 7"),
        (rb"\"seed\": 7", rb"\"seed\": 9"),
        (rb"\"sigma_v\": 0.5", rb"\"sigma_v\": 0.1"),
        (rb"running/mean", rb"running/meen"),
    ],
)
def test_a_changed_header_is_noticed_without_a_manifest(manager, saved, old, new):
    data = saved.read_bytes()
    assert data.count(old) == 1
    saved.write_bytes(data.replace(old, new))
    with pytest.raises(DamagedCheckpointError, match=f"{saved} is truncated or corrupt: it has checksum"):
        manager.load(network(), saved)


def test_swapped_names_are_noticed(manager, saved):
    data = saved.read_bytes()
    names = rb'"BatchNorm2d.1.running/mean"', rb'"BatchNorm2d.1.running/var"'
    swapped = names[0].join(part.replace(names[0], names[1]) for part in data.split(names[1]))
    assert len(swapped) == len(data) and swapped != data
    saved.write_bytes(swapped)
    net = network()
    before = net.state_dict()
    for load in (net.load, lambda path: manager.load(net, path)):
        with pytest.raises(ValueError, match=f"{saved} is truncated or corrupt"):
            load(saved)
    assert net.state_dict() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position", '{"epoch": [], "batch": 0, "step": 0, "seed": 0}'),
        ("position", '{"epoch": -1, "batch": 0, "step": 0, "seed": 0}'),
        ("position", '{"epoch": true, "batch": 0, "step": 0, "seed": 0}'),
        ("position", '{"epocH": 3, "batch": 0, "step": 0, "seed": 0}'),
        ("position", '{"epoch": 3}'),
        ("position", "[]"),
        ("position", "x"),
        ("position", "[" * 100_000),
        ("world_size", '"2"'),
        ("settings", "[]"),
        ("version", "null"),
        ("architecture", "[" * 100_000),
    ],
)
def test_what_a_checkpoint_says_makes_no_sense(manager, saved, key, value):
    """Its checksum is right: somebody has written it so."""
    saved.write_bytes(with_header(saved.read_bytes(), lambda header: header["__metadata__"].update({key: value})))
    net = network()
    before = net.state_dict()
    with pytest.raises(ValueError, match=str(saved)):
        manager.load(net, saved)
    assert net.state_dict() == before


def test_a_header_without_metadata_or_with_too_much(manager, saved, tmp_path):
    data = saved.read_bytes()
    saved.write_bytes(with_header(data, lambda header: header.pop("__metadata__")))
    with pytest.raises(DamagedCheckpointError, match=f"{saved} has format None"):
        manager.load(network(), saved)
    saved.write_bytes(saved.read_bytes()[:8] + b'{"__metadata__":null,' + saved.read_bytes()[9:])
    for length in (len(b'"__metadata__":null,') + int.from_bytes(saved.read_bytes()[:8], "little"), MAX_HEADER + 1):
        saved.write_bytes(length.to_bytes(8, "little") + saved.read_bytes()[8:])
        with pytest.raises(DamagedCheckpointError, match=f"{saved} (has format None|is truncated)"):
            manager.load(network(), saved)
    with pytest.raises(ValueError, match=rf"header of \d+ bytes is not saved, because at most {MAX_HEADER} are read"):
        manager.save(network(), TrainingPosition(), {"notes": "x" * MAX_HEADER})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_network_that_is_not_finite_is_not_saved(manager, tmp_path, value):
    """It could not be loaded, and in a folder of checkpoints it would push out good ones."""
    good = manager.save(network(1), TrainingPosition(step=1))
    net = network(2)
    net.layers[0].mu_w[1] = value
    message = r"the network is not saved, .* Linear\.0 mu_w: 1 of 6 values are NaN or infinite"
    saves = (lambda: manager.save(net, TrainingPosition(step=2)), lambda: net.save(tmp_path / "net"))
    for save in (*saves, lambda: net.save_csv(tmp_path / "net"), lambda: net.save_pytagi(tmp_path / "net")):
        with pytest.raises(ValueError, match=message):
            save()
    assert manager.latest() == good
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_falling_back_skips_networks_that_are_not_finite(manager, monkeypatch):
    """Earlier versions saved them."""
    manager.keep_last = 3
    paths = []
    with monkeypatch.context() as patch:
        patch.setattr(persistence, "savable", state_dicts.collect)
        for step, value in enumerate((1, np.nan, np.inf), 1):
            paths.append(manager.save(network(value), TrainingPosition(step=step)))
    with pytest.raises(DamagedCheckpointError, match=f"{paths[2]}: .*infinite; the one before is {paths[1]}"):
        manager.latest()
    net = network()
    with pytest.raises(DamagedCheckpointError, match=f"{paths[2]}: "):
        manager.load(net, paths[2])
    with pytest.warns(UserWarning) as warned:
        assert manager.load(net, fall_back=True).position.step == 1
    for number, warning in zip((2, 1), warned, strict=True):
        assert f"{paths[number]}: " in str(warning.message)
        assert str(warning.message).endswith(f"infinite; going back to {paths[number - 1]}")
    assert net.arena.theta[0, 0] == 1
