"""Multi-head attention."""

import math
from typing import Any

import numpy as np

from pytagi_ddp.kernels.tensors import ALL, CAUSAL_FACTOR, CAUSAL_RESULT, Heads, Tensor
from pytagi_ddp.nn.core.init import gaussian_prior
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.parameters import Parameters
from pytagi_ddp.nn.core.pytagi_view import either_order
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.setting import Fixed, Switch
from pytagi_ddp.nn.core.state import Array, Delta, Shape, State, by_step
from pytagi_ddp.validate import as_bools, as_integers, as_numbers


class MultiheadAttention(BaseLayer):
    """Multi-head attention: each output is a mean of the values of (earlier) steps, weighted by keys and queries.

        q, k, v = linear maps of the input, for H heads of D = embed_dim / H units each (k and v: num_kv_heads)
        A[t, l] = q[t] k[l] / sqrt(D)         S = Remax of A over l (causal: l <= t)         o[t] = sum_l S[t, l] v[l]

    and, with `out_proj`, one more linear map of the heads side by side. Products have the moments of independent
    factors. Remax propagates deltas by its whole Jacobian. Deltas of the parameters are those of `Linear`, summed over
    batch and time steps; the cap of a step (`Sequential.step`) counts samples. (pytagi mixes time steps between q, k
    and v, does not divide the scores, and uses the wrong arrays for deltas.)

    Args:
        embed_dim: features of a time step, in and out; a multiple of num_heads.
        num_heads: H.
        num_kv_heads: heads of keys and values, each for H / num_kv_heads heads of queries; None: H.
        gain_weight, gain_bias, init_method: of the prior, as in `Linear`, for q, k, v and `out_proj` each.
        seq_len: time steps of the input. Needed if this is the first layer, or if all layers before it process each
            time step alone; otherwise the previous layer determines them.
        causal: whether a step sees only itself and earlier ones.
        use_rope: whether q and k are rotated by angles that grow with the time step t (rotary positions): pairs
            (2d, 2d + 1) by t rope_theta^(-2d/D). Needs an even D. Without it, the result does not depend on the order
            of the steps.
        rope_theta: as above.
        out_proj: False leaves the last map out; then the parameters have pytagi's shapes.

    pytagi's arguments may be given in either order: as here, or with `seq_len` before `bias`.

    Raises:
        ValueError: sizes that do not divide each other, unknown `init_method`, or (in a network) an input of other
            features or time steps. TypeError: sizes that are not integers.

    Source: Vaswani et al. (2017), arXiv:1706.03762; Su et al. (2021), arXiv:2104.09864; Ainslie et al. (2023),
    arXiv:2305.13245; moments as in cuTAGI.
    """

    replayable = True
    needs_variances = False
    causal = Switch()
    embed_dim, num_heads, num_kv_heads, head_dim = Fixed(), Fixed(), Fixed(), Fixed()
    bias, seq_len, use_rope, rope_theta, out_proj = Fixed(), Fixed(), Fixed(), Fixed(), Fixed()
    parameters: Parameters

    @either_order(3, "seq_len", "bias", "gain_weight", "gain_bias", "init_method")
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        bias: bool | int = True,  # an int is seq_len
        gain_weight: float = 1.0,
        gain_bias: float = 1.0,
        init_method: str = "Xavier",
        *,
        seq_len: int = 1,
        causal: bool = True,
        use_rope: bool = True,
        rope_theta: float = 10000.0,
        out_proj: bool = True,
    ):
        super().__init__()
        groups = num_heads if num_kv_heads is None else num_kv_heads
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "num_kv_heads": groups, "seq_len": seq_len}
        embed_dim, num_heads, groups, seq_len = as_integers(self.name, 1, **sizes)
        if embed_dim % num_heads or num_heads % groups:
            raise ValueError(
                "MultiheadAttention needs embed_dim a multiple of num_heads, and that a multiple of num_kv_heads, got "
                f"{embed_dim}, {num_heads}, {groups}"
            )
        if use_rope and (embed_dim // num_heads) % 2:
            raise ValueError(
                f"use_rope rotates pairs of units, and a head has an odd number of them, {embed_dim // num_heads}: "
                "choose embed_dim and num_heads so that it is even, or use_rope=False"
            )
        as_numbers(self.name, "(0, inf]", rope_theta=rope_theta)
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, groups
        self.seq_len, self.rope_theta = seq_len, float(rope_theta)
        self.causal = causal
        self.bias, self.use_rope, self.out_proj = as_bools(self.name, bias=bias, use_rope=use_rope, out_proj=out_proj)
        self.gain_weight, self.gain_bias, self.init_method = gain_weight, gain_bias, init_method
        self.head_dim = self.embed_dim // self.num_heads
        self.init_weight_bias()

    @property
    def _projected(self) -> int:
        """Units of q, k and v together."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    def init_weight_bias(self) -> None:
        """Draws the parameters again from the prior."""
        keys = self.num_kv_heads * self.head_dim
        outputs = [self.embed_dim, keys, keys] + [self.embed_dim] * self.out_proj
        gains = self.gain_weight, self.gain_bias, self.init_method
        draws = [gaussian_prior(self.embed_dim * n, n * self.bias, self.embed_dim, n, *gains) for n in outputs]
        mu_w, var_w, mu_b, var_b = (np.concatenate(parts) for parts in zip(*draws, strict=True))
        self._set_prior((mu_w, var_w, mu_b, var_b), mu_w.shape)

    def default_input_shape(self) -> Shape:
        return Shape.of_sequence(self.seq_len, self.embed_dim)

    def input_shape(self, shape: Shape) -> Shape:
        steps = shape.size // self.embed_dim
        if shape.size % self.embed_dim or shape.image or shape.features not in (self.embed_dim, shape.size):
            raise ValueError(
                f"MultiheadAttention of {self.embed_dim} features after a layer that gives {shape}: it needs sequences "
                "with that number of features"
            )
        if self.seq_len not in (1, steps):
            raise ValueError(
                f"MultiheadAttention with seq_len={self.seq_len} after a layer that gives {steps} time steps: give "
                "both the same number; that of an Embedding is input_size"
            )
        return Shape.of_sequence(steps, self.embed_dim)

    def _rotations(self, saved: Saved) -> Array:
        """Cosines and sines of the rotations, (time steps, head_dim)."""

        def table() -> np.ndarray:
            half = np.arange(self.head_dim // 2)
            turns = np.arange(self.in_shape.steps)[:, None] * self.rope_theta ** (-2 * half / self.head_dim)
            return np.concatenate([np.cos(turns), np.sin(turns)], 1).astype(np.float32)

        return saved.constant("angles", table)

    def _maps(self) -> list[tuple[Tensor, Tensor | None]]:
        """(weights, biases) of the map to q, k, v, and of `out_proj`."""
        weights, bias, E = self.parameters.w, self.parameters.b, self.embed_dim
        maps, row = [], 0
        for rows in (self._projected, E)[: 1 + self.out_proj]:
            part = slice(row, row + rows)
            w = Tensor(*(None if a is None else a[part.start * E : part.stop * E].reshape(rows, E) for a in weights))
            maps.append((w, bias and Tensor(*(None if a is None else a[part] for a in bias))))
            row += rows
        return maps

    def _heads(self, units: State | Delta, first: int, width: int, share: int = 1) -> Heads:
        """Heads side by side in units of `width` for each time step, from the head `first` on."""
        size = self.head_dim
        return Heads(units, first * size, self.in_shape.steps * width, size, width, share)

    def _square(self, units: State | Delta, transposed: bool = False) -> Heads:
        """Matrices of (time steps, time steps), one after the other."""
        steps = self.in_shape.steps
        return Heads(units, 0, self.num_heads * steps**2, steps**2, steps, 1, transposed)

    def _qkv(self, units: State | Delta) -> tuple[Heads, Heads, Heads]:
        share, width = self.num_heads // self.num_kv_heads, self._projected
        starts = (0, 1), (self.num_heads, share), (self.num_heads + self.num_kv_heads, share)
        q, k, v = (self._heads(units, first, width, shared) for first, shared in starts)
        return q, k, v

    def _pair(self, saved: Saved, name: str, rows: int, size: int) -> State:
        return State(saved.buffer(f"{name} mu", rows, size), saved.buffer(f"{name} var", rows, size))

    def forward(self, state: State, saved: Saved) -> State:
        batch, steps = state.batch, self.in_shape.steps
        attention, linear, D, H = self.kernels.attention, self.kernels.linear, self.head_dim, self.num_heads
        maps, out = self._maps(), saved.output(batch)
        projected = self._pair(saved, "qkv", batch * steps, self._projected)
        shares = self._pair(saved, "shares", batch * H * steps, steps)
        slopes = Delta(*self._pair(saved, "slopes", batch * H * steps, steps)[:2])
        means = self._pair(saved, "heads", batch * steps, self.embed_dim) if self.out_proj else by_step(out, steps)
        saved.input, saved.projected, saved.shares, saved.slopes, saved.means = state, projected, shares, slopes, means

        linear.forward(by_step(state, steps), *maps[0], projected)
        if self.use_rope:
            attention.rotate(projected, self._rotations(saved), H + self.num_kv_heads, False)
        q, k, v = self._qkv(projected)
        sizes = batch, H, steps
        result, factor = (CAUSAL_RESULT, CAUSAL_FACTOR) if self.causal else (ALL, ALL)
        attention.multiply(q, k._replace(transposed=True), self._square(shares), *sizes, D, steps, result)
        attention.remax(shares, slopes, 1 / math.sqrt(D), self.causal)
        heads = self._heads(means, 0, self.embed_dim)
        attention.multiply(self._square(shares), v, heads, *sizes, steps, D, factor)
        if self.out_proj:
            linear.forward(means, *maps[1], by_step(out, steps))
        return out

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        batch, steps, accumulate = saved.input.batch, self.in_shape.steps, saved.accumulate
        attention, linear, D, H = self.kernels.attention, self.kernels.linear, self.head_dim, self.num_heads
        projected, shares, slopes, means = saved.projected, saved.shares, saved.slopes, saved.means
        maps = self._maps()
        into = saved.pool.take(batch, self.in_shape.size) if saved.needs_input else None
        of_heads = by_step(delta, steps)
        if self.out_proj:
            inner = Delta(*self._pair(saved, "heads delta", batch * steps, self.embed_dim)[:2])
            linear.backward(means, of_heads, *maps[1], inner, accumulate)
            of_heads = inner
        of_projected = Delta(*self._pair(saved, "qkv delta", batch * steps, self._projected)[:2])
        of_shares = Delta(*self._pair(saved, "shares delta", batch * H * steps, steps)[:2])

        d, sizes = self._heads(of_heads, 0, self.embed_dim), (batch, H, steps)
        result, factor = (CAUSAL_RESULT, CAUSAL_FACTOR) if self.causal else (ALL, ALL)
        q, k, v = self._qkv(State(projected.mu, None))
        of_q, of_k, of_v = self._qkv(of_projected)
        certain = State(shares.mu, None)
        attention.multiply(self._square(certain, True), d, of_v, *sizes, steps, D, factor)
        attention.multiply(d, v._replace(transposed=True), self._square(of_shares), *sizes, D, steps, result)
        attention.remax_backward(of_shares, shares.mu, slopes, 1 / math.sqrt(D), self.causal)
        attention.multiply(self._square(of_shares), k, of_q, *sizes, steps, D, factor)
        attention.multiply(self._square(of_shares, True), q, of_k, *sizes, steps, D, factor)
        if self.use_rope:
            attention.rotate(of_projected, self._rotations(saved), H + self.num_kv_heads, True)
        target = into and by_step(into, steps)
        linear.backward(by_step(saved.input, steps), of_projected, *maps[0], target, accumulate)
        saved.pool.give(delta)
        return into

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments; in a network `seq_len` is the number of time steps of the input there."""
        return {
            "embed_dim": self.embed_dim,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "bias": self.bias,
            "seq_len": self.in_shape.steps if self.in_shape.size else self.seq_len,
            "causal": self.causal,
            "use_rope": self.use_rope,
            "rope_theta": self.rope_theta,
            "out_proj": self.out_proj,
        }

    def get_layer_info(self) -> str:
        return f"SelfAttention(heads={self.num_heads}, kv_heads={self.num_kv_heads}, emb_size={self.embed_dim})"
