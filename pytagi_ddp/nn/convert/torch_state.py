"""Converts PyTorch's parameters to means of a network, and means of a network to PyTorch's parameters.

PyTorch itself is not needed: a state dictionary maps names to arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.prior import prior_variances
from pytagi_ddp.nn.layers.batch_norm import BatchNorm2d
from pytagi_ddp.nn.layers.layer_norm import LayerNorm
from pytagi_ddp.nn.layers.norm import RowNorm
from pytagi_ddp.nn.sequential import Sequential

FIELDS_OF_TORCH = ("weight", "bias", "running_mean", "running_var")
WRAPPER = "module."
HEAD = (
    "; for another last layer, load into a network that has the one of the dictionary, and replace it: "
    "Sequential(*copy.deepcopy(net.layers)[:-1], Linear(inputs, outputs))"
)
RESNET_PARTS = {"conv": (0, 0), "bn": (0, 1), "layer": (1, 0), "downsample": (1, 0), "fc": (2, 0)}


def load_torch_state_dict(
    net: Sequential,
    state_dict: Mapping[str, Any],
    variance: float | str = "prior",
    names: Sequence[str] | None = None,
) -> None:
    """Loads a PyTorch state dictionary as the means of a network's parameters and as its running statistics.

    Layers are matched in forward order: the n-th layer with parameters gets the n-th module of the dictionary (in a
    residual block, the main branch comes first). Shapes must be equal. A module with a running mean must match a
    `BatchNorm2d`.

    Args:
        net: the network, such as `models.resnet18_imagenet()` for a ResNet18 of torchvision.
        state_dict: arrays or tensors by name, "<module>.weight" and "<module>.bias". "module." in front of all names is
            left out, and so is `num_batches_tracked`.
        variance: as in `from_torch`; "prior" means the variances of a new network.
        names: the modules in forward order; others are left out. None: all modules, in the order of the dictionary, in
            which they were defined; or in the forward order of a ResNet, if the names are those of torchvision's
            ResNets (conv1, layer1.0.bn2, ...).

    Raises:
        KeyError, ValueError, TypeError: names or shapes that do not match, with the names on both sides; the network
            stays as it was.
    """
    if variance != "prior" and not (not isinstance(variance, str) and 0 <= variance < math.inf):
        raise ValueError(f'variance must be "prior" or a number that is not negative, got {variance!r}')
    given = _modules(state_dict)
    order = _in_order(given) if names is None else list(names)
    if missing := [name for name in order if name not in given]:
        raise KeyError(f"the state dictionary has no module {', '.join(missing)}; it has {', '.join(given)}")
    learned = [(key, leaf) for key, leaf in net.named_leaves() if leaf.parameters is not None]
    if len(order) != len(learned) or len(set(order)) != len(order):
        raise ValueError(
            f"the network has {len(learned)} layers with parameters ({_ends([key for key, _ in learned])}), the state "
            f"dictionary {len(order)} modules ({_ends(order)})"
        )
    values = net.state_dict()
    for (key, leaf), name in zip(learned, order, strict=True):
        is_head = name == order[-1] and not isinstance(leaf, BatchNorm2d)
        weight, bias = _means(key, leaf, name, given[name], HEAD if is_head else "")
        if variance == "prior":
            var_w, var_b = prior_variances(leaf)
        else:
            var_w, var_b = (np.full(a.size, variance, np.float32) for a in (weight, bias))
        values[key] = (weight, var_w, bias, var_b)
        if isinstance(leaf, BatchNorm2d):
            empty = np.zeros(0, np.float32)
            values[f"{key}.running"] = (given[name]["running_mean"], given[name]["running_var"], empty, empty)
    net.load_state_dict(values)


def to_torch_state_dict(net: Sequential, like: Any = None) -> dict[str, np.ndarray]:
    """The means of a network's parameters, and its running statistics, as a PyTorch state dictionary of NumPy arrays.

    The means alone make a PyTorch network that predicts without uncertainty:

        values = {name: torch.from_numpy(array) for name, array in to_torch_state_dict(net, module).items()}
        module.load_state_dict(values)

    Args:
        net: the network.
        like: a module or a state dictionary with the same layers, whose names are used, in the order of
            `load_torch_state_dict`. None: the names of a `torch.Sequential` of the same layers, such as "0.weight" for
            layer 0.

    Raises:
        ValueError: `like` has other modules.
    """
    learned = [(key, leaf) for key, leaf in net.named_leaves() if leaf.parameters is not None]
    given = like if like is None or isinstance(like, Mapping) else like.state_dict()
    modules = None if given is None else _modules(given)
    names = [key.partition(".")[2] for key, _ in learned] if modules is None else _in_order(modules)
    if len(names) != len(learned):
        raise ValueError(f"the network has {len(learned)} layers with parameters, `like` has {len(names)} modules")
    wrapper = WRAPPER if given is not None and _wrapped(given) else ""
    values, state = {}, net.state_dict()
    for (key, leaf), name in zip(learned, names, strict=True):
        assert leaf.parameters is not None
        weight, _, bias, _ = state[key]
        fields = {"weight": (weight / np.float32(_weight_factor(leaf))).reshape(leaf.parameters.weight_shape)}
        if leaf.num_biases:
            fields["bias"] = bias
        if isinstance(leaf, BatchNorm2d):
            fields["running_mean"], fields["running_var"] = state[f"{key}.running"][:2]
        if modules is not None and fields.keys() != modules[name].keys():
            raise ValueError(f"{key} has {', '.join(fields)}, and {name} {', '.join(modules[name])}")
        for field, mean in fields.items():
            own = f"{wrapper}{name}.{field}" if name else f"{wrapper}{field}"
            values[own] = mean if modules is None else mean.reshape(modules[name][field].shape)
    return values


def _modules(state_dict: Mapping[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """Module -> its arrays by field."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"a PyTorch state dictionary maps names to arrays, got {type(state_dict).__name__}")
    if strange := [name for name in state_dict if not isinstance(name, str)]:
        raise TypeError(f"the names of a PyTorch state dictionary are texts, got {strange[0]!r:.50}")
    wrapped = _wrapped(state_dict)
    modules: dict[str, dict[str, np.ndarray]] = {}
    for name, values in state_dict.items():
        module, _, field = (name[len(WRAPPER) :] if wrapped else name).rpartition(".")
        if field == "num_batches_tracked":
            continue
        if field not in FIELDS_OF_TORCH:
            raise ValueError(f"{name}: only {', '.join(FIELDS_OF_TORCH)} of a module have a place here")
        modules.setdefault(module, {})[field] = to_numpy(values, name)
    return modules


def _wrapped(state_dict: Mapping[str, Any]) -> bool:
    """Whether a module is wrapped by DataParallel."""
    return all(name.startswith(WRAPPER) for name in state_dict)


def _in_order(modules: Mapping[str, Any]) -> list[str]:
    """The modules in forward order."""
    if "conv1" in modules and "layer1.0.conv1" in modules:
        return sorted(modules, key=_place_in_resnet)
    names = list(modules)
    for first, second in pairwise(names):
        (head, here), (other, there) = (name.rpartition(".")[::2] for name in (first, second))
        if head == other and here.isdecimal() and there.isdecimal() and int(here) > int(there):
            raise ValueError(
                f"{second} follows {first} in the state dictionary, which is not the order of a forward pass "
                "(a file may have sorted its names): give names=[...]"
            )
    return names


def _place_in_resnet(name: str) -> list[int]:
    """The sort key of a module of torchvision's ResNets: conv1, bn1, layer1.0.conv1, ..., layer1.0.downsample.0, fc."""
    place = []
    for part in name.split("."):
        kind = part.rstrip("0123456789")
        group, second = RESNET_PARTS.get(kind, (3 if kind else 0, 0))
        place += [group, int(part[len(kind) :] or 0), second]
    return place


def _means(
    key: str, leaf: BaseLayer, name: str, given: dict[str, np.ndarray], remedy: str
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and biases of a module, flat, for a leaf.

    Raises:
        ValueError: other fields, or other shapes; says the remedy.
    """
    assert leaf.parameters is not None
    expected = {"weight": leaf.parameters.weight_shape, "bias": (leaf.num_biases,)}
    if not leaf.num_biases:
        del expected["bias"]
    if isinstance(leaf, BatchNorm2d):
        expected |= dict.fromkeys(("running_mean", "running_var"), (leaf.num_features,))
    if isinstance(leaf, RowNorm):  # one weight for each unit, of any shape
        given = {field: values.reshape(-1) for field, values in given.items()}
    found = {field: values.shape for field, values in given.items()}
    if found != expected:
        raise ValueError(f"{name} has {_listed(found)}, and {key} needs {_listed(expected)}{remedy}")
    weight, bias = given["weight"].reshape(-1), given.get("bias", np.zeros(0, np.float32))
    return (weight * _weight_factor(leaf)).astype(np.float32), bias


def _weight_factor(leaf: BaseLayer) -> float:
    """Weight here over weight in PyTorch: the variance of a LayerNorm divides by n - 1 here, and by n in PyTorch."""
    if isinstance(leaf, LayerNorm):
        n = math.prod(leaf.normalized_shape)
        return math.sqrt(n / (n - 1))
    return 1.0


def _listed(shapes: Mapping[str, tuple]) -> str:
    return ", ".join(f"{field} {'x'.join(map(str, shape))}" for field, shape in sorted(shapes.items()))


def _ends(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 7 else f"{', '.join(names[:3])}, ..., {', '.join(names[-3:])}"
