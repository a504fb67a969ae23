"""Loads of a network whose ranks each hold a part: if one rank cannot load, no rank does."""

import copy
import json

import numpy as np
import pytest

from pytagi_ddp import manual_seed
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.checkpoint.content import metadata
from pytagi_ddp.distributed import FSDPSequential, PipelineSequential, run_threads
from pytagi_ddp.nn import BatchNorm2d, DDPConfig, DDPSequential, Linear, OutputUpdater, ReLU, Sequential
from pytagi_ddp.nn.files import file_format
from tests.headers import with_header
from tests.nn.test_persistence import GOLDEN, make


def network(seed):
    manual_seed(seed)
    return Sequential(Linear(4, 6), ReLU(), BatchNorm2d(6), Linear(6, 2))


def loads(kind, file):
    """Of a file that only rank 0 sees, or a state dict with NaN in the last layer."""
    net, state = kind(network(1)), network(2).state_dict()
    before = net.communicator.broadcast_object(net.state_dict())
    state["Linear.3"] = [np.full_like(a, np.nan) for a in state["Linear.3"]]
    with pytest.raises(FileNotFoundError if file else ValueError):
        net.load(file / str(net.rank)) if file else net.load_state_dict(state)
    after = net.communicator.broadcast_object(net.state_dict())
    net.load_state_dict(network(2).state_dict())  # and the ranks are in step
    taken = net.communicator.broadcast_object(net.state_dict())
    return [before == after == network(1).state_dict(), taken == network(2).state_dict()]


@pytest.mark.parametrize("kind", [FSDPSequential, PipelineSequential])
@pytest.mark.parametrize("what", ["file", "state"])
def test_all_ranks_load_or_none(kind, what, tmp_path):
    network(2).save(tmp_path / "0")
    assert run_threads(loads, 2, kind, tmp_path if what == "file" else None) == [[True, True]] * 2


def trains_on(reshard):
    net = FSDPSequential(network(1), reshard_after_forward=reshard)
    x, y = np.ones((3, 4), np.float32), np.zeros(6, np.float32)
    wrong = network(2).state_dict()
    wrong["Linear.3"] = [np.full_like(a, np.nan) for a in wrong["Linear.3"]]
    mu, _ = net(x)
    OutputUpdater(net.model.device).update(net.output_z_buffer, y, np.ones_like(y), net.input_delta_z_buffer)
    with pytest.raises(ValueError, match=r"Linear\.3"):
        net.load_state_dict(wrong)
    net.backward()
    net.step()
    learned = net.communicator.broadcast_object(net.state_dict())
    return [bool(np.isfinite(mu).all()), learned != network(1).state_dict()]


@pytest.mark.parametrize("reshard", [True, False])
def test_training_goes_on_after_a_load_that_is_refused(reshard):
    """Between forward and backward, too: nothing has changed."""
    assert run_threads(trains_on, 2, reshard) == [[True, True]] * 2


def refuses(kind, file):
    net = kind(network(1))
    with pytest.raises(ValueError, match=r"0: the network has no place for BatchNorm2d\.9\.running/mean"):
        net.load(file)
    return net.rank


@pytest.mark.parametrize("kind", [FSDPSequential, PipelineSequential])
def test_a_tensor_of_no_layer_is_refused(kind, tmp_path):
    """Though all that a network needs is there: statistics may be missing."""
    network(2).save(tmp_path / "0")
    name = "BatchNorm2d.{}.running/mean"
    data = with_header((tmp_path / "0").read_bytes(), lambda h: h.update({name.format(9): h.pop(name.format(2))}))
    (tmp_path / "0").write_bytes(data)
    assert run_threads(refuses, 2, kind, tmp_path / "0") == [0, 1]


def loads_a_stage_of_another(file):
    """The network of a pipeline that was given to another wrapper since, which drops its deltas."""
    net = PipelineSequential(network(1))
    DDPSequential(net.model, DDPConfig(backend="serial"))
    with pytest.raises(FileNotFoundError):
        net.load(file / str(net.rank))
    net.load(file / "0")
    return net.rank


def test_the_ranks_agree_on_stages_that_another_wrapper_has(tmp_path):
    network(2).save(tmp_path / "0")
    assert run_threads(loads_a_stage_of_another, 2, tmp_path) == [0, 1]


def loads_old(kind, network, checkpoint):
    """A file of an earlier format, as it is and as a checkpoint."""
    whole, found = network(), []
    whole.load(checkpoint)
    for load in (
        lambda net: net.load(checkpoint),
        lambda net: CheckpointManager(checkpoint.parent).load(net, checkpoint),
    ):
        net = kind(network())
        load(net)
        state = net.communicator.broadcast_object(net.state_dict())
        other = kind(Sequential(*copy.deepcopy(network().layers[:-1]), Linear(32, 4)))
        with pytest.raises(ValueError, match=r"has another architecture: .* Linear.4"):
            load(other)
        found.append(state == whole.state_dict())
    return found


@pytest.mark.parametrize("kind", [FSDPSequential, PipelineSequential])
@pytest.mark.parametrize("version", [1, 2])
def test_files_of_earlier_formats(kind, version, tmp_path):
    old = GOLDEN / "pytagi_ddp_files" / f"format_{version}.safetensors"
    header, values = file_format.split(old.read_bytes())
    header["__metadata__"] |= metadata(TrainingPosition(), 2, None)  # which their checksums leave out
    text = json.dumps(header).encode()
    (tmp_path / "old").write_bytes(len(text).to_bytes(8, "little") + text + values)
    assert run_threads(loads_old, 2, kind, make, tmp_path / "old") == [[True, True]] * 2
