"""Checkpoints: what comes back, and what is refused with which words."""

import re

import pytest

import pytagi_ddp
from examples.checkpoint import load_checkpoint, save_checkpoint
from pytagi_ddp.nn import Linear, ReLU, Sequential

RUN = {"ranks": 2, "batch size": 16, "seed": 0}


def network(hidden=3):
    return Sequential(Linear(2, hidden), ReLU(), Linear(hidden, 1))


@pytest.fixture
def saved(tmp_path):
    pytagi_ddp.manual_seed(1)
    model = network()
    return model, save_checkpoint(tmp_path / "new folder", model, 3, RUN, {"epochs": 5})


def test_everything_comes_back(saved):
    model, path = saved
    for place in (path, path.parent):
        other = network()
        assert load_checkpoint(place, other, RUN) == 3
        assert other.state_dict() == model.state_dict()
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"


def test_another_run(saved):
    _, path = saved
    message = f"{path} belongs to another run: ranks was 2 and is 3, seed was 0 and is 7 (--allow-changes"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_checkpoint(path, network(), RUN | {"ranks": 3, "seed": 7})
    assert load_checkpoint(path, network(), RUN | {"ranks": 3}, allow_changes=True) == 3


def test_another_architecture(saved):
    _, path = saved
    with pytest.raises(ValueError, match=r"another architecture: layer 0 is .*Linear\(2,3\).* there and .*\(2,4\)"):
        load_checkpoint(path, network(hidden=4), RUN)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_truncated(saved, size):
    _, path = saved
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="is truncated or no file of this library"):
        load_checkpoint(path, network(), RUN)


def test_a_network_without_a_position(tmp_path):
    network().save(tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match="holds a network, but no place in a training run"):
        load_checkpoint(tmp_path / "net.safetensors", network(), RUN)
