"""Every layer of `pytagi_ddp.nn` on a device as on the CPU; the other checks of the battery run on the CPU."""

import pytest

from tests.battery.device import device_twin
from tests.battery.test_layers import ALL


@pytest.mark.parametrize("name", ALL)
def test_device_twin(name):
    device_twin(ALL[name])
