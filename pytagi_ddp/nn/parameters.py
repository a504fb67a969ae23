"""The parameters of one layer: named views into flat rows of means, variances and batch sums."""

from functools import partial

import numpy as np

from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.tensors import Array, Tensor
from pytagi_ddp.nn.validate import check_finite, check_variances


class Parameters:
    """Weights and biases of a layer, as views into rows that may belong to the whole network.

    Args:
        rows: (mu, var, g, h), flat arrays of one length: weights, then biases.
        weight_shape: shape of the weights; biases are flat.
        array: the array functions of the device that holds the rows; None: of the host.

    Attributes:
        w, b: the weights and the biases; None where there are no biases.
        no_deltas: g and h are zeros that nothing has been written to.
    """

    no_deltas = False

    def __init__(self, rows: tuple[Array, Array, Array, Array], weight_shape: tuple[int, ...], array=None):
        self.rows = rows
        self._array = array or get_kernels("cpu").array
        self.weight_shape = weight_shape
        self.num_weights = int(np.prod(weight_shape))
        self.num_biases = rows[0].size - self.num_weights
        n = self.num_weights
        self.w = Tensor(*(row[:n].reshape(weight_shape) for row in rows))
        self.b = Tensor(*(row[n:] for row in rows)) if self.num_biases else None

    @classmethod
    def from_prior(
        cls,
        prior: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        weight_shape: tuple[int, ...],
    ) -> "Parameters":
        """Host arrays of their own from (mu_w, var_w, mu_b, var_b); deltas are zero."""
        mu_w, var_w, mu_b, var_b = prior
        mu, var = (np.concatenate([w, b]) if b.size else w for w, b in ((mu_w, mu_b), (var_w, var_b)))
        zeros = partial(np.zeros, mu.size, np.float32)  # memory that no page is fetched for before it is written to
        drawn = cls((mu, var, zeros(), zeros()), weight_shape)
        drawn.no_deltas = True
        return drawn

    def __len__(self) -> int:
        return self.rows[0].size

    def detached(self) -> "Parameters":
        """A copy on the host that shares no memory with the network."""
        return Parameters(tuple(map(self._array.to_host, self.rows)), self.weight_shape)

    def __getstate__(self):
        return (self.rows, self.weight_shape)

    def __setstate__(self, state):
        self.__init__(*state)

    def _part(self, field: str) -> slice:
        return slice(0, self.num_weights) if field.endswith("_w") else slice(self.num_weights, None)

    def view(self, field: str) -> Array:
        """`mu_w`, `var_b`, ... where it lives."""
        return self.rows[0 if field.startswith("mu") else 1][self._part(field)]

    def read(self, field: str) -> Array:
        """`mu_w`, `var_b`, ...: a view (from a GPU: a copy). `delta_mu_w`, ...: s g or s^2 h, a read-only array."""
        visible = self._array.visible
        if not field.startswith("delta"):
            return visible(self.view(field))
        _, var, g, h = self.rows
        part = self._part(field)
        s = visible(var[part])
        delta = s * visible(g[part]) if field.startswith("delta_mu") else s * s * visible(h[part])
        delta.flags.writeable = False  # a change could not reach the sums: assign to the attribute instead
        return delta

    def write(self, field: str, values) -> None:
        """Assigns means, variances or (scaled) deltas.

        Raises:
            ValueError: wrong number of values, a mean or variance that is not finite, or a negative variance.
        """
        mu, var, g, h = self.rows
        part = self._part(field)
        values = np.asarray(values, np.float32).reshape(-1)
        if values.size != mu[part].size:
            raise ValueError(f"{field} has {mu[part].size} values, got {values.size}")
        if not field.startswith("delta"):
            check_finite(values, field)
        if field.startswith("var"):
            check_variances(values, field)
        if field.startswith("delta"):
            self.no_deltas = False
            s = self._array.visible(var[part])
            known = s > 0  # a parameter without variance cannot change
            sums, factor = (g, s) if field.startswith("delta_mu") else (h, s * s)
            self._array.copy(np.divide(values, factor, where=known, out=np.zeros_like(s)), sums[part])
        else:
            self._array.copy(values, self.view(field))
