"""Frozen layers on several ranks, for each way to train on them."""

from functools import partial

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.distributed import DataParallel, create_communicator, run_threads
from pytagi_ddp.nn import DDPSequential, FSDPSequential, OutputUpdater, PipelineSequential

X, Y = np.random.default_rng(0).normal(size=(2, 12, 4)).astype(np.float32)
CONFIG = nn.DDPConfig(backend="threads")
WAYS = {
    "DDPSequential": partial(DDPSequential, config=CONFIG),
    "buckets": partial(DDPSequential, config=nn.DDPConfig(backend="threads", buckets=2)),
    "mean": partial(DDPSequential, config=CONFIG, every=2, merge="mean"),
    "damped_product": partial(DDPSequential, config=CONFIG, every=2, merge="damped_product"),
    "precision_weighted": partial(DDPSequential, config=CONFIG, every=2, merge="precision_weighted"),
    "FSDPSequential": partial(FSDPSequential, config=CONFIG, min_num_params=30),
    "whole": partial(FSDPSequential, config=CONFIG, min_num_params=30, reshard_after_forward=False),
    "PipelineSequential": partial(PipelineSequential, config=CONFIG, schedule="GPipe", n_microbatches=2),
}


def network() -> nn.Sequential:
    manual_seed(4)
    return nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 4))


def learn(net, rows=slice(None), steps=4):
    for _ in range(steps):
        net(X[rows])
        if net.output_z_buffer.size:
            OutputUpdater("cpu").update(net.output_z_buffer, Y[rows], 0.5, net.input_delta_z_buffer)
        net.backward()
        net.step()


def freezing(way, later):
    model = network()
    layers = model.layers[2:3]
    if not later:
        layers[0].freeze()
    net = WAYS[way](model)
    rows = slice(None) if way == "PipelineSequential" else slice(net.rank, None, net.world_size)
    values = [net.state_dict()]
    if later:
        learn(net, rows)
        layers[0].freeze()
        values = [net.state_dict()]
    learn(net, rows)
    values.append(net.state_dict())
    net.forget_evidence(2)
    learn(net, rows)
    values.append(net.state_dict())
    layers[0].unfreeze()
    learn(net, rows)
    values.append(net.state_dict())
    return values


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_frozen_layer_stays_on_every_rank(way, later, ranks):
    for before, *frozen, unfrozen in [values for values in run_threads(freezing, ranks, way, later) if values[0]]:
        for after in frozen:
            same = {key: all(map(np.array_equal, before[key], after[key])) for key in before}
            assert {key: yes for key, yes in same.items() if "Linear" in key} == {
                "Linear.0": False,
                "Linear.2": True,
                "Linear.4": False,
            }
        assert not all(map(np.array_equal, before["Linear.2"], unfrozen["Linear.2"]))


def frozen_on_one(way):
    model = network()
    if create_communicator("threads").rank == 1:
        model.layers[2].freeze()
    WAYS[way](model)


@pytest.mark.parametrize("way", ["DDPSequential", "FSDPSequential", "PipelineSequential"])
def test_ranks_that_freeze_different_layers(way):
    with pytest.raises(ValueError, match=r"the list of frozen layers is \[\] on rank 0 and \['Linear.2'\] on rank 1"):
        run_threads(frozen_on_one, 2, way)


def test_replicas_of_one_process_follow():
    model = network()
    net = DataParallel(model, ["cpu"] * 2)
    learn(net)
    model.layers[2].freeze()
    before = net.state_dict()
    learn(net)
    after = net.state_dict()
    assert all(map(np.array_equal, before["Linear.2"], after["Linear.2"]))
    assert not np.array_equal(before["Linear.0"][0], after["Linear.0"][0])
    model.layers[2].unfreeze()
    learn(net)
    assert not all(map(np.array_equal, before["Linear.2"], net.state_dict()["Linear.2"]))
    net(X)
    OutputUpdater("cpu").update(net.output_z_buffer, Y, 0.5, net.input_delta_z_buffer)
    with pytest.raises(RuntimeError, match=r"step\(\) while the deltas .* call backward\(\) first"):
        net.step()
    with pytest.raises(RuntimeError, match=r"step\(\) of a network in a DataParallel: call that one's"):
        model.step()
    net.close()
    model.step()
