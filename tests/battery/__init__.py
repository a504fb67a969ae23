"""A battery of checks that every layer has to pass: right numbers, copies, files, recorded passes and so on.

Each check takes an `Example`, a small network that contains the layer, and asserts what has to hold for every layer.
`test_layers.py` runs all checks for all layers of `pytagi_ddp.nn`, in the networks of `layers.py`. To check a layer of
your own:

    from tests.battery import check_layer
    check_layer(lambda: nn.Sequential(nn.Linear(4, 6), MyLayer(), nn.Linear(6, 3)))

For that, write its formulas a second time, in float64 and as simple as possible: in `LAYERS` of
`tests/nn/reference.py`, or, for an activation, in `FORMULAS` of `tests/nn/reference_activation.py`. The docstrings
there say what such a function takes and returns.
"""

from collections.abc import Callable

from pytagi_ddp import nn
from tests.battery import keeping, numerics, passes  # noqa: F401 - they register their checks
from tests.battery.example import CHECKS, Example


def check_layer(make_network: Callable[[], nn.Sequential], **tolerances: float) -> dict[str, str]:
    """Runs every check on the CPU. For GPUs there is `tests.battery.device.device_twin`.

    Args:
        make_network: makes a new network of a few units, with the layer in a usual place.
        tolerances: `tolerance` and `rounding` of the `Example`; larger ones for formulas in which numbers cancel.

    Returns:
        The names of checks that do not apply to this network, each with the reason.

    Raises:
        AssertionError: the layer fails a check. The traceback names it, and its docstring says what it demands.
    """
    example = Example(make_network, **tolerances)
    return {check.__name__: why for check in CHECKS if (why := check(example))}
