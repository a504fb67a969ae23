"""A GPU without enough memory: the error says how much is needed, and the network goes on with what fits."""

import copy
import gc

import cupy
import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.kernels.cuda.runtime import workspace
from pytagi_ddp.models import resnet8_cifar10
from pytagi_ddp.nn.run import memory
from pytagi_ddp.selfcheck.examples import NETWORKS, network
from tests.cuda.ptx.machine import machine
from tests.nn.networks import assert_same, pass_through, random_batch


def used() -> int:
    """Bytes on the device, but for scratch memory of products."""
    cupy.cuda.get_current_stream().synchronize()  # here, what is queued keeps memory
    gc.collect()
    scratch = sum(held.nbytes for held in vars(workspace._workspaces).values())
    return cupy.get_default_memory_pool().used_bytes() - scratch


def occupied() -> int:
    cupy.cuda.get_current_stream().synchronize()
    gc.collect()
    return cupy.get_default_memory_pool().used_bytes()


def step(net: nn.Sequential, batch: int) -> None:
    net(np.ones((batch, net.in_shape.size)))
    size = batch * net.out_shape.size
    net.set_delta_z(np.linspace(-1, 1, size), -np.ones(size))
    net.backward()
    net.step()


def estimate(net: nn.Sequential, batch: int) -> int:
    state = memory.State(np.empty((batch, net.in_shape.size), np.float32), None)
    return memory.pass_bytes(net._chain, net.kernels, state, True)


@pytest.mark.parametrize(("batch", "recompute"), [(1, True), (4, False)])
def test_a_pass_takes_what_was_estimated(batch, recompute):
    """Beside the input, and the deltas at the output."""
    net = resnet8_cifar10(0.1, 0.1, checkpoint_blocks=recompute)
    net.to_device("cuda")
    expected = estimate(net, batch)
    before = used()
    step(net, batch)
    ends = 4 * batch * (net.in_shape.size + 2 * net.out_shape.size)
    assert 0.99 * expected < used() - before - ends < 1.01 * expected


def test_a_batch_that_does_not_fit_is_refused_before_the_first_kernel(monkeypatch):
    host = network(NETWORKS["residual blocks"][0])
    net = copy.deepcopy(host)
    net.to_device("cuda")
    batch = random_batch(host, 5)
    free = (estimate(net, 20) + estimate(net, 30)) // 2
    monkeypatch.setattr(cupy.cuda, "MEMORY", occupied() + free)
    launched = sum(machine.launches.values())
    with pytest.raises(MemoryError, match=r"a pass of a batch of 100 needs about 0\.\d\d GiB .* at most about 2\d, "):
        net(np.ones((100, net.in_shape.size)))
    assert sum(machine.launches.values()) == launched
    assert_same(pass_through(net, *batch), pass_through(host, *batch), 1e-4)
    with pytest.raises(MemoryError, match="batch of 100"):
        net.predict(np.ones((100, net.in_shape.size)))
    net.predict(np.ones((100, net.in_shape.size)), batch_size=5)


def test_not_even_one_sample(monkeypatch):
    net = network(NETWORKS["residual blocks"][0])
    net.to_device("cuda")
    monkeypatch.setattr(cupy.cuda, "MEMORY", occupied() + 2000)
    with pytest.raises(MemoryError, match="not even one sample fits: use a smaller network"):
        net(np.ones((2, net.in_shape.size)))


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_after_an_error_of_cupy_smaller_batches_go_on(part, monkeypatch):
    host = network(NETWORKS["residual blocks"][0])
    net = copy.deepcopy(host)
    net.to_device("cuda")
    step(net, 3)
    step(host, 3)
    monkeypatch.setattr(memory, "pass_bytes", lambda *arguments: 0)
    monkeypatch.setattr("pytagi_ddp.nn.run.passes.pass_bytes", lambda *arguments: 0)
    x, empty, left = np.ones((40, net.in_shape.size)), cupy.empty, [5]

    def short(*arguments, **options):
        left[0] -= 1
        if not left[0]:
            raise cupy.cuda.memory.OutOfMemoryError("Out of memory allocating 512 bytes")
        return empty(*arguments, **options)

    if part == "backward":
        net(x)
        net.set_delta_z(np.ones(120), -np.ones(120))
        left[0] = 1
    before = used()
    monkeypatch.setattr(cupy, "empty", short)
    message = rf"allocating 512 bytes, in {part}\. Parameters are as they were, and memory for passes is free again"
    with pytest.raises(MemoryError, match=message) as caught:
        net.backward() if part == "backward" else net(x)
    del caught
    if part == "backward":
        assert used() < before / 2
        with pytest.raises(RuntimeError, match="needs a forward pass"):
            net.backward()
    batch = random_batch(host, 4)
    assert_same(pass_through(net, *batch), pass_through(host, *batch), 1e-4)


def test_a_network_that_does_not_fit_stays_where_it_is(monkeypatch):
    net = network(NETWORKS["residual blocks"][0])
    before = net.state_dict()
    monkeypatch.setattr(cupy.cuda, "MEMORY", occupied() + net.arena.nbytes - 1)
    with pytest.raises(MemoryError, match=r"parameters and their deltas need 0\.00 GiB on cuda:0"):
        net.to_device("cuda")
    monkeypatch.setattr(cupy.cuda, "MEMORY", occupied() + net.arena.nbytes + 1)  # and nothing for the segments
    with pytest.raises(MemoryError, match="Out of memory"):
        net.to_device("cuda")
    assert net.device == "cpu" and net.state_dict() == before
    step(net, 2)
