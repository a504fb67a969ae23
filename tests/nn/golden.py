"""Recorded cases of pytagi: networks, inputs and every number that a training step makes."""

import json
from functools import cache
from pathlib import Path

import numpy as np

from pytagi_ddp import nn

FOLDER = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))
FIELDS = ("mu_w", "var_w", "mu_b", "var_b")


def load(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)


@cache
def _specs() -> dict[str, str]:
    return {name: str(load(name)["spec"]) for name in NAMES}


def with_layer(kind: str) -> list[str]:
    """The recorded cases with a layer of this kind."""
    return [f"golden/{name}.npz" for name, spec in _specs().items() if f'"{kind}"' in spec]


def make_layer(kind: str, arguments: dict) -> nn.BaseLayer:
    if kind == "ResNetBlock":
        main = nn.LayerBlock(*(make_layer(*spec) for spec in arguments["main"]))
        short = arguments.get("shortcut")
        return nn.ResNetBlock(main, nn.LayerBlock(*(make_layer(*spec) for spec in short)) if short else None)
    return getattr(nn, kind)(**arguments)


def make_network(case: dict) -> nn.Sequential:
    """Where pytagi 0.2.1 recorded an LSTM of more than one time step, it is not recurrent, and says nothing of it."""
    specs = json.loads(str(case["spec"]))
    for kind, arguments in specs:
        if kind == "LSTM" and arguments["seq_len"] > 1 and "last_timestep" not in arguments:
            arguments["recurrent"] = False
    return nn.Sequential(*(make_layer(*spec) for spec in specs))


def parameters(case: dict, prefix: str) -> dict[str, tuple]:
    """The state dict recorded under `prefix`."""
    keys = sorted({key.split("/")[-2] for key in case if key.startswith(prefix + "/")})
    return {key: tuple(case[f"{prefix}/{key}/{field}"] for field in FIELDS) for key in keys}


def update_output(net, case: dict, step: int) -> None:
    """Feeds the observations of a recorded step to the output layer."""
    y, mode = case[f"{step}/y"], str(case["mode"])
    states, deltas = net.output_z_buffer, net.input_delta_z_buffer
    updater = nn.OutputUpdater(net.device)
    variance = np.full(y.size, case["sigma_v"] ** 2, np.float32)
    if mode == "update":
        updater.update(states, y, variance, deltas)
    elif mode == "indices":
        updater.update_using_indices(states, y, variance, case[f"{step}/idx"], deltas)
    else:
        updater.update_heteros(states, y, deltas)
