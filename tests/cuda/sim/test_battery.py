"""Every layer of `pytagi_ddp.nn` on a device as on the CPU; the other checks of the battery run on the CPU."""

import pytest

from pytagi_ddp import cuda, nn
from tests.battery.device import device_twin
from tests.battery.test_layers import ALL
from tests.conftest import ALL_TESTS
from tests.nn.networks import leaves


def takes_long(name: str) -> bool:
    """In the simulator a convolution takes seconds; and kernels of activations see units, of an image or not."""
    convolutions = sum(isinstance(leaf, nn.Conv2d | nn.ConvTranspose2d) for leaf in leaves(ALL[name].make()))
    return cuda.is_simulated() and (convolutions > 1 or name.endswith("on an image"))


# Without a card, compiled kernels do the same for whole networks (tests/cuda/ptx).
@pytest.mark.skipif(cuda.is_simulated() and not ALL_TESTS, reason="simulated once a week, with PYTAGI_DDP_ALL_TESTS=1")
@pytest.mark.parametrize("name", [name for name in ALL if not takes_long(name)])
def test_device_twin(name):
    device_twin(ALL[name])
