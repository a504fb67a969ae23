"""What every layer has to do, as checks of small networks that have it in them.

The layers of `pytagi_ddp.nn` go through them in `test_layers.py`, in the networks of `layers.py`. A layer of your own:

    from tests.battery import check_layer
    check_layer(lambda: nn.Sequential(nn.Linear(4, 6), MyLayer(), nn.Linear(6, 3)))

Its formulas stand once more in float64 for that, in `reference.LAYERS` of `tests/nn` (an activation's in `FORMULAS` of
`reference_activation`): see there what such a function takes and returns.
"""

from collections.abc import Callable

from pytagi_ddp import nn
from tests.battery import keeping, numerics, passes  # noqa: F401 - they register their checks
from tests.battery.example import CHECKS, Example


def check_layer(make_network: Callable[[], nn.Sequential], **tolerances: float) -> dict[str, str]:
    """Runs every check on the CPU; `tests.battery.device.device_twin` is the one for GPUs and their simulator.

    Args:
        make_network: makes a new network of a few units, which has the layer where it belongs.
        tolerances: `tolerance` and `rounding` of an `Example`, for formulas that cancel in float32.

    Returns:
        The checks that do not apply, and why.

    Raises:
        AssertionError: what the layer does wrong. The traceback names the check, whose docstring says what it demands.
    """
    example = Example(make_network, **tolerances)
    return {check.__name__: why for check in CHECKS if (why := check(example))}
