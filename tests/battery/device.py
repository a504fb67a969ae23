"""The check of a layer on a GPU: `tests/cuda/on_device` runs it."""

import copy

import numpy as np

from tests.battery.example import Example, train
from tests.nn.networks import assert_same, pass_through, random_batch


def device_twin(example: Example) -> None:
    """A pass, two steps and a prediction on the device equal those on the CPU, and a move back keeps all parameters."""
    host = example.network()
    device = copy.deepcopy(host)
    device.to_device("cuda")
    batch = random_batch(host, 3)
    assert_same(pass_through(device, *batch), pass_through(host, *batch), example.tolerance)
    train(host, 3, 3)
    train(device, 3, 3)
    host.forget_evidence(1.5)
    device.forget_evidence(1.5)
    on_device = device.state_dict(carried=True)
    states = [
        {f"{key} {k}": array for key, arrays in state.items() for k, array in enumerate(arrays)}
        for state in (on_device, host.state_dict(carried=True))
    ]
    assert_same(*states, 2.5 * example.tolerance)
    assert device.get_neg_var_w_counter() == host.get_neg_var_w_counter(), "weights whose variance fell below 0"
    predictions = [dict(zip(("mean", "variance"), net.predict(batch[0], 2), strict=True)) for net in (device, host)]
    assert_same(*predictions, 10 * example.tolerance)
    device.to_device("cpu")
    assert device.state_dict(carried=True) == on_device, "not all comes back from the device"
    train(device, 3)
    assert np.isfinite(device.arena.theta).all()
