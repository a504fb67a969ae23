"""Where a DDPSequential gets its communicator from, and what it refuses beside."""

from functools import partial

import pytest

from pytagi_ddp.distributed import all_reduce_deltas, barrier, initialize, rank, run_threads
from pytagi_ddp.distributed.communicator import SerialCommunicator
from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential, Linear, PipelineSequential, Sequential


def network() -> Sequential:
    return Sequential(Linear(2, 3))


def test_it_is_passed_in():
    communicator = SerialCommunicator()
    assert DDPSequential(network(), communicator=communicator).communicator is communicator


@pytest.mark.parametrize("given", [3, object(), ["mpi"]])
def test_what_is_none_is_named(given):
    message = f"what initialize.. or create_communicator.. returns, or an mpi4py.MPI.Comm; got {type(given).__name__}"
    for use in (lambda: DDPSequential(network(), communicator=given), lambda: rank(given), lambda: barrier(given)):
        with pytest.raises(TypeError, match=message):
            use()


def test_that_of_initialize_is_used():
    communicator = initialize("serial")
    try:
        assert DDPSequential(network(), DDPConfig(backend="serial")).communicator is communicator
        other = DDPSequential(network(), DDPConfig(backend="serial", device_ids=[0])).communicator
        assert other is not communicator  # it was not made for what this one asks for
    finally:
        communicator.close()
    assert DDPSequential(network(), DDPConfig(backend="serial")).communicator is not communicator


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, "DDPConfig asks for rank=1, the communicator has 0"),
        ({"world_size": 2}, "DDPConfig asks for world_size=2, the communicator has 1"),
        ({"backend": "mpi"}, "DDPConfig asks for backend='mpi', the communicator has 'serial'"),
    ],
)
def test_one_that_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DDPSequential(network(), DDPConfig(**options), communicator=SerialCommunicator())


@pytest.mark.parametrize(
    ("takes", "flag"),
    [
        (DDPSequential, "average"),
        (DDPSequential, "sync_batch_norm"),
        (FSDPSequential, "average"),
        (FSDPSequential, "sync_batch_norm"),
        (FSDPSequential, "reshard_after_forward"),
        (PipelineSequential, "recompute"),
        (partial(all_reduce_deltas, SerialCommunicator()), "average"),
    ],
)
def test_what_is_neither_yes_nor_no_is_named(takes, flag):
    with pytest.raises(TypeError, match=f": {flag} must be True or False, got 'sum'"):
        takes(network(), **{flag: "sum"})


def test_another_time_out_than_that_of_the_communicator_is_refused():
    def on_ranks():
        communicator = initialize()
        DDPSequential(network(), DDPConfig(timeout=communicator.timeout), communicator=communicator)
        with pytest.raises(ValueError, match="DDPConfig asks for timeout=5, the communicator has"):
            DDPSequential(network(), DDPConfig(timeout=5), communicator=communicator)

    run_threads(on_ranks, 2)


def test_misspelt_options_of_a_config():
    config = DDPConfig()
    with pytest.raises(AttributeError, match="no option 'bucket': device_ids"):
        config.bucket = 2  # type: ignore[attr-defined]
    config.buckets = 2


@pytest.mark.parametrize("name", ["cuda_aware_mpi", "offload_params"])
def test_options_that_say_yes_or_no(name):
    with pytest.raises(TypeError, match=f"DDPConfig: {name} must be True or False, got 'no'"):
        DDPConfig(**{name: "no"})
    assert getattr(DDPConfig(**{name: 0}), name) is False


@pytest.mark.parametrize("ids", [2, "0"])
def test_device_ids_are_a_list(ids):
    with pytest.raises(
        TypeError, match="device_ids of a DDPConfig is a list, with the GPU of each rank of a node, got"
    ):
        DDPConfig(device_ids=ids)
