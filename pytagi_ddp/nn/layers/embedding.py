"""Categories as vectors."""

import numpy as np

from pytagi_ddp.nn.core.init import LARGEST_GAIN, normal
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.parameters import Parameters
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.setting import Fixed
from pytagi_ddp.nn.core.state import Delta, Shape, State, by_step
from pytagi_ddp.validate import as_integers, as_numbers

LARGEST = 2**24  # categories: float32 has all integers up to here


class Embedding(BaseLayer):
    """A table with a Gaussian vector for each category: the inputs are categories 0, 1, ..., the outputs their rows.

        m_z = m[c], s_z = s[c]          dm[c] = s[c] sum dm_z          ds[c] = s[c]^2 sum ds_z

    summed over the occurrences of category c; only rows of categories that occur change. (pytagi multiplies ds by s[c]
    once, and on CPUs sums over all steps.) The output is a sequence, (input_size, embedding_dim) per sample: a `Linear`
    with embedding_dim inputs processes each position alone, one with input_size x embedding_dim inputs all of them.

    It must be the first layer of a network. Variances of inputs are ignored, and deltas of inputs are 0. Every step and
    every all-reduce includes the whole table; docs/embedding.md has the cost of a large one.

    Args:
        num_embeddings: categories, at most 2^24.
        embedding_dim: features of each.
        input_size: categories per sample; 0: one, or one at every time step, if a layer with `seq_len` follows.
        scale: prior standard deviation of the entries, and spread of their means.
        padding_idx: an input, a category or -1 (the default), for empty positions: its outputs have mean and variance
            0, and its row does not learn.

    Raises:
        ValueError: sizes below 1, a scale that is not positive and finite, a padding_idx out of range, or an input that
            is not a category. TypeError: sizes or a padding_idx that are not integers.

    Source: cuTAGI.
    """

    _setting_names = ("num_embeddings", "embedding_dim", "input_size", "padding_idx")
    replayable = True
    parameters: Parameters
    num_embeddings, embedding_dim, padding_idx = Fixed(), Fixed(), Fixed()

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        input_size: int = 0,
        scale: float = 1.0,
        padding_idx: int = -1,
    ):
        super().__init__()
        (num_embeddings,) = as_integers(self.name, 1, LARGEST, num_embeddings=num_embeddings)
        (embedding_dim,) = as_integers(self.name, 1, embedding_dim=embedding_dim)
        (input_size,) = as_integers(self.name, 0, input_size=input_size)
        (padding_idx,) = as_integers(self.name, -1, num_embeddings - 1, padding_idx=padding_idx)
        as_numbers(self.name, f"(0, {LARGEST_GAIN:g}]", scale=scale)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.scale, self.padding_idx = scale, padding_idx
        self.in_shape = Shape(input_size)
        self.init_weight_bias()

    def init_weight_bias(self) -> None:
        """Draws the parameters again from the prior: means N(0, scale^2), variances scale^2."""
        mu = normal(self.num_embeddings * self.embedding_dim, self.scale)
        nothing = np.zeros(0, np.float32)
        prior = mu, np.full_like(mu, self.scale**2), nothing, nothing
        self._set_prior(prior, (self.num_embeddings, self.embedding_dim))

    def default_input_shape(self) -> Shape:
        return self.in_shape if self.in_shape.size else Shape(1)

    def features_by_step(self, features: int) -> int | None:
        return self.embedding_dim if features == 1 and not self.in_shape.size else None

    def input_shape(self, shape: Shape) -> Shape:
        if self.in_shape.size and shape != self.in_shape:
            raise ValueError(f"Embedding of {self.in_shape} categories cannot take an input of {shape}")
        return shape

    def infer_output(self, shape: Shape) -> Shape:
        return Shape.of_sequence(shape.size, self.embedding_dim)

    def check_input(self, values: np.ndarray) -> None:
        """Raises ValueError if a value is neither a category nor the padding; NaN is neither."""
        allowed = (values >= 0) & (values < self.num_embeddings) & (values == np.floor(values))
        wrong = values[~(allowed | (values == self.padding_idx))]
        if wrong.size:
            raise ValueError(
                f"Embedding takes categories from 0 to {self.num_embeddings - 1}, or {self.padding_idx}: {wrong.size} "
                f"of {values.size} inputs are none, the first of them {wrong[0]}"
            )

    def forward(self, state: State, saved: Saved) -> State:
        out = saved.output(state.batch)
        saved.input = state
        rows = by_step(out, self.in_shape.size)
        self.kernels.embedding.forward(state.mu.reshape(-1), self.parameters.w, self.padding_idx, rows)
        return out

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        w, array, pool = self.parameters.w, self.kernels.array, saved.pool
        if not saved.accumulate:
            array.clear(w.delta_mu_sum)
            array.clear(w.delta_var_sum)
        categories, rows = saved.input.mu.reshape(-1), by_step(delta, self.in_shape.size)
        self.kernels.embedding.backward(categories, rows, w, self.padding_idx)
        pool.give(delta)
        if not saved.needs_input:
            return None
        into = pool.take(saved.input.batch, self.in_shape.size)
        array.clear(into.mu)
        array.clear(into.var)
        return into

    def get_layer_info(self) -> str:
        return f"Embedding({self.num_embeddings}->{self.embedding_dim})"
