"""Networks whose parameters are drawn later, layer by layer into shards: they equal those that are drawn at once."""

import copy
import tracemalloc

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.distributed import create_communicator, run_threads
from pytagi_ddp.nn import DDPSequential, FSDPSequential, deferred_init
from pytagi_ddp.nn.core.init import get_state
from pytagi_ddp.nn.core.parameters import ParametersNotHereError
from tests.learning import learn
from tests.mpi.ddp_networks import WITHOUT_BATCH_NORM, batch, with_batch_norm


def mixed():
    """Whose layers are drawn in another order than they stand in."""
    last = nn.Linear(108, 4)
    first = nn.Conv2d(2, 3, 3, padding=1, in_width=6, in_height=6)
    return nn.Sequential(first, nn.ReLU(), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(108, 108), last)


NETWORKS = {"mixed": mixed, "blocks": lambda: with_batch_norm(2)} | {
    name: WITHOUT_BATCH_NORM[name] for name in ("Embedding", "MultiheadAttention", "LSTM", "RMSNorm", "ConvTranspose2d")
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_seed_keeps_its_meaning(name):
    manual_seed(5)
    expected = NETWORKS[name]()
    after = get_state()
    manual_seed(5)
    with deferred_init():
        net = NETWORKS[name]()
        assert net.num_parameters == expected.num_parameters
    assert repr(net) == repr(expected)
    net.materialize()
    assert net.state_dict() == expected.state_dict()
    assert np.array_equal(get_state()["state"]["key"], after["state"]["key"])
    net.materialize()  # drawn: nothing to do
    x, y = batch(net, 4, 1)
    for each in (net, expected):
        learn(each, x, y)
    assert net.state_dict() == expected.state_dict()


def test_layers_alone_are_drawn_by_the_network_that_they_come_into():
    manual_seed(5)
    expected = mixed()
    manual_seed(5)
    with deferred_init():
        last = nn.Linear(108, 4)
    first = nn.Conv2d(2, 3, 3, padding=1, in_width=6, in_height=6)
    with deferred_init():
        rest = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(108, 108)
    net = nn.Sequential(first, nn.ReLU(), *rest, last)
    assert net.state_dict() == expected.state_dict()


def test_what_needs_parameters_says_what_to_do():
    drawn = nn.Linear(2, 2)
    with deferred_init():
        net = mixed()
        with pytest.raises(RuntimeError, match="inside deferred_init"):
            drawn.init_weight_bias()
    x, _ = batch(net, 3, 0)
    calls = [net.state_dict, net.step, lambda: net(x), lambda: net.layers[-1].mu_w, lambda: copy.deepcopy(net)]
    for call in (*calls, lambda: net.arena.theta):
        with pytest.raises(ParametersNotHereError, match=r"drawn|no parameters yet"):
            call()


def many_layers():
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))


def into_shards(reshard):
    communicator = create_communicator("threads", timeout=20)
    manual_seed(communicator.rank)
    with deferred_init():
        net = FSDPSequential(
            many_layers(), communicator=communicator, min_num_params=70_000, reshard_after_forward=reshard
        )
    return net, net.state_dict()


@pytest.mark.parametrize("reshard", [True, False])
def test_no_rank_holds_more_than_its_shards(reshard):
    ranks = 4
    manual_seed(0)
    whole = many_layers()
    expected = whole.state_dict()
    tracemalloc.start()
    try:
        results = run_threads(into_shards, ranks, reshard)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert results[0][1] == expected
    P, U = whole.num_parameters, 256 * 257
    each = (16 * P / ranks if reshard else 8 * P + 8 * P / ranks) + 16 * U
    results = [net.nbytes for net, _ in results]
    assert max(results) < 1.01 * each
    full = 8 * P if reshard else 8 * P * ranks  # of the state dicts, on rank 0 or on all
    assert peak < ranks * (each + 16 * U) + full + 1e6  # a layer that is being drawn has 16 bytes for each parameter


def test_a_replica_is_drawn_whole():
    manual_seed(3)
    expected = mixed()
    manual_seed(3)
    with deferred_init():
        net = mixed()
    assert DDPSequential(net).state_dict() == expected.state_dict()
