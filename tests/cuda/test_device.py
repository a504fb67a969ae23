"""What the library says about GPUs where there is none, and what it refuses to do."""

import copy
import pickle

import numpy as np
import pytest

from pytagi_ddp import cuda, nn
from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.cuda.arrival import Arrival

needs_no_gpu = pytest.mark.skipif(cuda.is_available(), reason="this machine has a GPU")


@needs_no_gpu
def test_nothing_is_promised_without_a_gpu():
    assert cuda.why_not()
    assert not cuda.is_available() and not cuda.is_nccl_available()
    assert cuda.get_device_count() == 0 and cuda.get_current_device() == -1
    assert not cuda.is_device_available(0) and not cuda.set_device(0)
    for ask in (cuda.get_device_properties, cuda.get_device_memory, cuda.get_device_uuid):
        with pytest.raises(RuntimeError, match="no GPU 0: ") as error:
            ask(0)
        assert cuda.why_not() in str(error.value)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    assert "cupy-cuda13x[ctk], numba-cuda[cu13]" in cuda.why_not()
    assert "pip install 'pytagi-ddp[cuda]'" in cuda.why_not()
    assert not cuda.is_available()


def test_options_are_off():
    assert cuda.allow_tf32 is False and cuda.use_graphs is False


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "", None, 0])
def test_unknown_devices(name):
    with pytest.raises(ValueError, match="unknown device"):
        get_kernels(name)


@needs_no_gpu
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_network_stays_where_it_is_if_it_cannot_move(name):
    net = nn.Sequential(nn.Linear(2, 1))
    before = net.state_dict()
    with pytest.raises(RuntimeError, match="cannot be used: ") as error:
        net.to_device(name)
    assert cuda.why_not() in str(error.value)
    assert net.device == "cpu" and net.state_dict() == before
    with pytest.raises(RuntimeError, match="cannot be used"):
        nn.OutputUpdater(name)


def test_the_processor_is_always_there():
    assert get_kernels("cpu") is get_kernels("cpu")
    net = nn.Sequential(nn.Linear(2, 1))
    arena = net.arena
    net.to_device("cpu")
    assert net.arena is arena


def test_an_arrival_is_used_like_the_array_it_becomes():
    waits = []
    arrival = Arrival(np.arange(6, dtype=np.float32), lambda: waits.append(1))
    assert not waits
    assert arrival.shape == (6,) and waits == [1]
    assert isinstance(np.asarray(arrival), np.ndarray) and np.asarray(arrival, float).dtype == float
    assert isinstance(arrival + 1, np.ndarray) and (2 * arrival)[3] == 6 and len(arrival) == 6
    assert arrival.reshape(2, 3).sum() == 15 and np.concatenate([arrival, arrival]).size == 12
    assert np.mean(arrival) == 2.5 and list(arrival)[-1] == 5
    out = Arrival(np.zeros(6, np.float32), None)
    np.add(arrival, 1, out=out)
    out[0] = 9
    np.testing.assert_array_equal(out, [9, 2, 3, 4, 5, 6])
    for twin in (copy.deepcopy(arrival), pickle.loads(pickle.dumps(arrival))):
        np.testing.assert_array_equal(twin, arrival)
    assert waits == [1]
