"""Dense layer whose outputs can be smoothed afterwards."""

from pytagi_ddp.nn.layers.linear import Linear


class SLinear(Linear):
    """`Linear` after an `SLSTM`: `Sequential.smoother` makes its outputs with this layer and its present weights.

    Arguments and errors are those of `Linear`.

    Source: cuTAGI.
    """
