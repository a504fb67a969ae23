"""Statistics of the parameters and units of each layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.nn.core.hooks import watched
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.network import Network
from pytagi_ddp.nn.core.prior import prior_moments, prior_variances
from pytagi_ddp.nn.core.state import Shape, State
from pytagi_ddp.nn.core.stepping import cap_factor
from pytagi_ddp.nn.core.table import columns

DEAD = 1e-3  # a unit is dead up to this share of the layer's largest |mean|
CLEARLY = 0.99  # factor on variances that are smaller for another reason than rounding
UNLIKELY, FEW = 8.0, 30.0  # standard deviations of a mean of squares, and what is added for few of them
SATURATED = 0.01  # an output is saturated up to this |Jacobian|
SNR_QUANTILES = (0.1, 0.5, 0.9)
HEADER = ("layer", "", "uncertain", "dead", "saturated", "SNR 10 %", "median", "90 %", "var/prior", "capped")


@dataclass(frozen=True)
class LayerInspection:
    """One row of an `Inspection`; numbers that a layer does not have are NaN.

    Attributes:
        key: the layer's key in `state_dict`, such as "Conv2d.0".
        layer: name and sizes.
        uncertain: share of outputs (of all samples) with sqrt(s) > |m|, whose sign is thus uncertain.
        dead: share of units (of an image: channels) of an activation whose means are all near 0, |m| <= 0.001 of the
            largest of the layer, for every sample and pixel.
        saturated: share of outputs of an activation with Jacobian |J| <= 0.01, which propagate (almost) no deltas. In a
            ReLU these are the outputs that are off.
        snr: signal to noise of the weights, |mu|/sqrt(var): quantiles at 10 %, 50 % and 90 %.
        var_ratio: mean variance of the parameters over that of the prior (`prior_variances`): 1 before training.
        capped: share of parameters whose delta the cap cuts, |s g| or s^2 |h| > sqrt(s)/c, for the batch sums g, h of
            the last backward pass and c of `Sequential.step`. After the step, s is the variance after it.
        frozen: whether steps do not change the parameters (`BaseLayer.freeze`); shown after the name.
    """

    key: str
    layer: str
    uncertain: float = math.nan
    dead: float = math.nan
    saturated: float = math.nan
    snr: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    var_ratio: float = math.nan
    capped: float = math.nan
    frozen: bool = False


@dataclass(frozen=True, repr=False)
class Inspection:
    """A `LayerInspection` for each computing layer in forward order; printed as a table.

    Attributes:
        rows: one for each layer. batch: number of samples.
    """

    rows: tuple[LayerInspection, ...]
    batch: int

    def __repr__(self) -> str:
        def text(value: float, form: str) -> str:
            return "" if math.isnan(value) else format(value, form)

        cells: list[tuple[str, ...]] = [HEADER]
        for row in self.rows:
            shares = (text(value, ".1%") for value in (row.uncertain, row.dead, row.saturated))
            ratios = (text(value, ".3g") for value in (*row.snr, row.var_ratio))
            name = row.layer + (" frozen" if row.frozen else "")
            cells.append((row.key, name, *shares, *ratios, text(row.capped, ".1%")))
        return columns(cells, "<<>>>>>>>>")


def inspect(net: Network, x: ArrayLike, var_x: ArrayLike | None = None) -> Inspection:
    """`Sequential.inspect`."""
    units: dict[str, dict[str, Any]] = {}
    twin = copy.deepcopy(net)
    twin.eval()
    twin.checkpoint_blocks = False
    keys = {leaf: key for key, leaf in twin.named_leaves()}

    def see(leaf: BaseLayer, state: State, out: State) -> None:
        units[keys[leaf]] = _shares(leaf, out, twin.kernels.array.to_host)

    with watched(twin, list(keys), see):
        twin.forward(x, var_x)
    scale, samples, caps = _step_of(net)
    rows = []
    for key, leaf in net.named_leaves():
        of_parameters: dict[str, Any] = {"frozen": leaf.frozen}
        if leaf.parameters is not None:
            of_parameters["var_ratio"] = _var_ratio(leaf)
            if leaf.num_weights:
                of_parameters["snr"] = _snr(leaf)
            if samples > 0:
                of_parameters["capped"] = _capped(leaf, scale, caps * cap_factor(round(samples) * leaf.steps))
        rows.append(
            LayerInspection(key, leaf.get_layer_info(), **units.get(key, {}), **of_parameters)
        )  # x may be empty
    return Inspection(tuple(rows), twin.output_z_buffer.block_size)


def _shares(leaf: BaseLayer, out: State, to_host: Callable) -> dict[str, float]:
    """The shares of uncertain, dead and saturated units of a layer's output."""
    m = to_host(out.mu)
    s = np.zeros_like(m) if out.var is None else to_host(out.var)
    found = {"uncertain": float(np.mean(np.sqrt(np.maximum(s, 0)) > np.abs(m)))}
    if out.jcb is not None:
        largest = np.abs(_by_unit(m, leaf.out_shape)).max(0)
        found["dead"] = float(np.mean(largest <= DEAD * largest.max()))
        found["saturated"] = float(np.mean(np.abs(to_host(out.jcb)) <= SATURATED))
    return found


def _by_unit(m: np.ndarray, shape: Shape) -> np.ndarray:
    """(values, units), or (values, channels) of an image, or (values, features) of a sequence."""
    if shape.image is None:
        return m.reshape(-1, shape.features)
    if shape.channels_last:
        return m.reshape(-1, shape.channels)
    return np.moveaxis(m.reshape(len(m), shape.channels, -1), 1, 2).reshape(-1, shape.channels)


def signal_to_noise(mu: np.ndarray, var: np.ndarray) -> np.ndarray:
    """|mu| / sqrt(var) of parameters; infinite where the variance is 0."""
    mu, std = np.abs(mu), np.sqrt(var)
    return np.divide(mu, std, where=std > 0, out=np.full_like(mu, np.inf))


def _snr(leaf: BaseLayer) -> tuple[float, ...]:
    ratios = signal_to_noise(leaf.mu_w, leaf.var_w)
    return tuple(map(float, np.quantile(ratios, SNR_QUANTILES, method="lower")))


def _var_ratio(leaf: BaseLayer) -> float:
    now, prior = (
        sum(float(np.sum(values, dtype=np.float64)) for values in pair)
        for pair in ((leaf.var_w, leaf.var_b), prior_variances(leaf))
    )
    return now / prior if prior else math.nan


def has_learnt(leaves: Iterable[BaseLayer]) -> bool:
    """Whether parameters are not those of a new network: learnt, loaded from another library, or a prior of their own.

    Frozen ones do not count, because a schedule does not pull them.

    Variances differ from those of the prior, or the mean squares of weights are not those of drawn means.
    """
    for leaf in leaves:
        if leaf.parameters and not leaf.frozen:
            _, var_w, _, var_b = prior = prior_moments(leaf)
            for now, new in ((leaf.var_w, var_w), (leaf.var_b, var_b)):
                if np.any((now > 0) & ((now < CLEARLY * new) | (CLEARLY * now > new))):
                    return True
            gain = getattr(leaf, "gain_weight", None)
            if isinstance(gain, float | int) and gain > 0 and var_w.size and np.all(var_w > 0) and not prior[0].any():
                n, ratio = var_w.size, float(np.mean(np.square(leaf.mu_w, dtype=np.float64) * gain**2 / var_w))
                if not 1 - UNLIKELY * math.sqrt(2 / n) <= ratio <= 1 + UNLIKELY * math.sqrt(2 / n) + FEW / n:
                    return True
    return False


def pulls_knowledge(leaves: Sequence[BaseLayer], new: bool) -> bool:
    """Whether a new schedule, or one that goes on, pulls layers that know other data.

    Those that were frozen when the schedule was made do not know its data, once they are unfrozen.
    """
    found = has_learnt(leaf for leaf in leaves if new or leaf._unpulled)
    for leaf in leaves:
        leaf._unpulled = leaf.frozen and (new or leaf._unpulled)
    return found


def _step_of(net: Network) -> tuple[float, float, float]:
    """(scale, samples, caps) of the next step, or of the last one; 0 samples if there are no batch sums."""
    if not net.arena.keeps_sums:
        return 1.0, 0.0, 1.0
    if net.passes.waiting:
        return 1.0, net.passes.waiting, 1.0
    scale, samples, caps, _ = net.kernels.array.to_host(net.arena.step_memory[0]).tolist()
    return scale, samples if net.passes.average is None and net.passes.samples is not None else 0.0, caps


def _capped(leaf: BaseLayer, scale: float, cap: float) -> float:
    cut = 0
    for part in ("w", "b"):
        dm, ds = (scale * np.abs(getattr(leaf, f"delta_{moment}_{part}")) for moment in ("mu", "var"))
        bar = np.sqrt(getattr(leaf, f"var_{part}")) / np.float32(cap)
        cut += int(np.count_nonzero(np.maximum(dm, ds) > bar))
    return cut / (leaf.num_weights + leaf.num_biases)
