"""Data-parallel training on one rank: its device, empty steps, merges. Several: `test_gpu.py`, `ptx/test_nccl.py`."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.distributed.communicator import create_communicator
from pytagi_ddp.distributed.ddp import DDPConfig, DDPSequential
from pytagi_ddp.distributed.exchange import exchange_deltas
from pytagi_ddp.distributed.functional import all_reduce_deltas
from tests.cuda.on_device.test_networks import assert_equal_states


def test_one_rank_stop_request_and_empty_steps():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm2d(3))
    net.to_device("cuda")
    ddp = DDPSequential(net, DDPConfig(backend="serial", device_ids=[0]))
    assert ddp.get_device_with_index() == "cuda:0" and not ddp.stop_requested
    ddp.step()
    before = ddp.state_dict()
    ddp(np.ones((2, 2)) * [[1], [2]])
    net.set_delta_z(np.arange(6), -np.ones(6))
    ddp.backward()
    ddp.request_stop()
    ddp.step()
    assert ddp.stop_requested
    after = ddp.state_dict()
    assert all(not np.array_equal(after[key][0], before[key][0]) for key in before)
    ddp.step()  # no samples since
    assert ddp.state_dict() == after


@pytest.mark.parametrize(
    ("options", "buckets"),
    [({"every": 3}, 1), ({"every": 3, "max_wait": 1}, 1), ({"sync_batch_norm": True}, 1), ({}, 2)],
)
def test_a_network_that_is_moved_between_steps(options, buckets):
    manual_seed(5)
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm2d(3), nn.Linear(3, 1))
    reference = copy.deepcopy(net)
    both = [DDPSequential(one, DDPConfig(backend="serial", buckets=buckets), **options) for one in (net, reference)]
    for step in range(3):
        for ddp in both:
            ddp(np.random.default_rng(step).normal(size=(4, 2)))
            ddp.model.set_delta_z(np.arange(4), -np.ones(4))
            ddp.backward()
            ddp.step()
        if step == 0:
            net.to_device("cuda")
    assert both[0].steps_since_merge == 0
    assert_equal_states(net, reference, 2e-5)


@pytest.mark.parametrize("every", [1, 2])
def test_parameters_that_are_none_are_not_merged(every):
    """The step before the merge is refused on the device alone, which the rank has to ask."""
    net = nn.Sequential(nn.Linear(2, 3))
    net.to_device("cuda")
    ddp = DDPSequential(net, DDPConfig(backend="serial"), every=every, merge="mean")
    theta = net.kernels.array.to_host(net.arena.theta)
    theta[0, 2] = np.nan
    net.kernels.array.copy(theta, net.arena.theta)
    for step in range(1, every + 1):
        ddp(np.ones((2, 2)))
        net.set_delta_z(np.arange(6), -np.ones(6))
        ddp.backward()
        if step < every:
            ddp.step()
        else:
            with pytest.raises(FloatingPointError, match="merge refused: rank 0 has"):
                ddp.step()
    np.testing.assert_array_equal(net.kernels.array.to_host(net.arena.theta), theta)


def test_deltas_that_a_program_reduces_itself():
    """Their number of samples was asked for as if it were on the device: an AttributeError."""
    manual_seed(5)
    net = nn.Sequential(nn.Linear(2, 3))
    reference = copy.deepcopy(net)
    net.to_device("cuda")
    for model in (net, reference):
        model(np.ones((2, 2)) * [[1], [2]])
        model.set_delta_z(np.arange(6), -np.ones(6))
        model.backward()
        assert all_reduce_deltas(create_communicator("serial"), model) == 2
        model.step()
    assert_equal_states(net, reference, 2e-5)


def test_a_schedule_that_other_ranks_do_not_have():
    net = nn.Sequential(nn.Linear(2, 3))
    net.to_device("cuda")
    nn.EvidenceSchedule(net, steps_per_epoch=1, epochs=3)
    others = SimpleNamespace(world_size=2, rank=0, all_reduce=lambda buffer: None)
    with pytest.raises(ValueError, match="is new on 1 of 2 ranks, also on rank 0"):
        exchange_deltas(others, net, average=False)
