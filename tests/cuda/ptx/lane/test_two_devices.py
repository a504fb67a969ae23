"""Several GPUs in one process: each network computes where it is."""

import copy

import cupy
import numpy as np
import pytest

from pytagi_ddp import cuda, nn
from pytagi_ddp.selfcheck.examples import NETWORKS, WAYS, network, state_of


@pytest.fixture(autouse=True)
def two_devices(monkeypatch):
    monkeypatch.setattr(cupy.cuda, "devices", 2)
    assert cuda.get_device_count() == 2
    yield
    assert cuda.get_current_device() == 0


def step(net: nn.Sequential, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((4, net.in_shape.size))
    net(x)
    net.set_delta_z(np.linspace(-1, 1, 4 * net.out_shape.size), -np.ones(4 * net.out_shape.size))
    net.backward()
    net.step()


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", ["residual blocks", "long sums"])  # the second one takes scratch memory
def test_networks_side_by_side(how, name, monkeypatch):
    replay, graphs = WAYS[how]
    monkeypatch.setattr(cuda, "replay_launches", replay)
    monkeypatch.setattr(cuda, "use_graphs", graphs)
    first = network(NETWORKS[name][0])
    second = copy.deepcopy(first)
    first.to_device("cuda:0")
    second.to_device("cuda:1")
    for seed in range(4):
        step(first, seed)
        step(second, seed)
    assert first.arena.theta.data.device_id == 0 and second.arena.theta.data.device_id == 1
    states = state_of(first), state_of(second)
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[0])
    first.to_device("cuda:1")
    step(first, 9)
    step(second, 9)
    assert first.state_dict() == second.state_dict()


def test_one_network_feeds_another_on_the_other_device():
    first, last = network(lambda: [nn.Linear(3, 5), nn.ReLU()]), network(lambda: [nn.Linear(5, 2)])
    x = np.ones((4, 3))
    first(x)
    expected = last(first.output_z_buffer)
    first.to_device("cuda:0")
    last.to_device("cuda:1")
    first(x)
    for actual, want in zip(last(first.output_z_buffer), expected, strict=True):
        np.testing.assert_allclose(actual, want, 1e-5)


def test_the_current_device_is_what_cuda_means():
    assert cuda.set_device(1) and cuda.get_current_device() == 1
    net = network(lambda: [nn.Linear(3, 5)])
    net.to_device("cuda")
    assert net.device == "cuda:1"
    assert cuda.set_device(0) and not cuda.set_device(2)
    step(net, 0)
