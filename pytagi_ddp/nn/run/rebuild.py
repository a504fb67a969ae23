"""Changes of a network's layers, of the memory of its parameters, and of its device."""

from collections.abc import Callable
from typing import Any

from pytagi_ddp import cuda
from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.nn.core.data_struct import BaseHiddenStates
from pytagi_ddp.nn.core.network import Network
from pytagi_ddp.nn.core.step import Step
from pytagi_ddp.nn.layers.chain import Chain
from pytagi_ddp.nn.layers.recompute import is_block
from pytagi_ddp.nn.run.memory import gigabytes


def keep_layers(net: Network, start: int, stop: int) -> None:
    """Reduces a network to its layers `start` to `stop` (exclusive); the other layers are released.

    Parameters, statistics and keys (`Linear.7`) of the layers do not change. The input has the shape and order of
    memory of the output of layer `start` - 1, so that the `output_z_buffer` of the previous part can be passed, and the
    deltas returned. Pending deltas are dropped.

    Raises:
        ValueError: no layer, or layers that are not there.
    """
    whole, recomputes = net.layers, net.checkpoint_blocks
    if not 0 <= start < stop <= len(whole):
        raise ValueError(f"layers {start} to {stop} (exclusive) are not part of a network of {len(whole)} layers")
    with net.passes.one_thread:
        shape = whole[start - 1].out_shape if start else net.in_shape
        net.arena.check()
        for layer in (*whole[:start], *whole[stop:]):
            layer._release(net)
        net._chain = Chain(whole[start:stop], "Sequential")
        public_order = False if stop == len(whole) else None
        net.in_shape = shape
        net.out_shape = net._chain.build(shape, channels_last=public_order)
        net._chain.recompute_blocks(recomputes and any(map(is_block, net.layers)))
        net._first_layer += start
        net.output_z_buffer = BaseHiddenStates()
        net.output_z_buffer.arrange(net.out_shape)
        _attach_anew(net)


def change_storage(net: Network, make_arena: Callable[..., Any]) -> None:
    """Moves parameters and state to another arena, and drops pending deltas; for networks trained in shards.

    Args:
        make_arena: a function of the leaves, by their keys, and the kernels. It returns the new arena with their
            parameters.
    """
    with net.passes.one_thread:
        net._make_arena = make_arena
        _attach_anew(net)


def _attach_anew(net: Network) -> None:
    for leaf in net._chain.leaves():
        leaf._keep_state()
    net.passes.continue_as(Step())
    net._attach()


def move(net: Network, device: str) -> None:
    """`Sequential.to_device`."""
    kernels = get_kernels(device, net._precision)
    if kernels is net.kernels:
        return
    free = kernels.array.free_bytes()
    if free is not None and net.arena.nbytes > free:
        raise MemoryError(
            f"{net.arena.num_parameters} parameters and their deltas need {gigabytes(net.arena.nbytes)} on "
            f"{cuda.device_name(device)}, and {gigabytes(free)} are free there"
        )
    tail, before = net.kernels.array.to_host(net.arena.tail), net._device
    net.arena.check()
    try:
        _attach_to_device(net, cuda.device_name(device))
    except MemoryError:
        _attach_to_device(net, before)
        raise
    finally:
        net.kernels.array.copy(tail, net.arena.tail)


def _attach_to_device(net: Network, device: str) -> None:
    net.arena.detach()
    net._device = device
    net._attach()
