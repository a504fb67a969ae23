"""Dense layer for `Sequential.smoother`."""

from pytagi_ddp.nn.layers.linear import Linear


class SLinear(Linear):
    """`Linear` after an `SLSTM`: `Sequential.smoother` computes its outputs with the present weights of this layer.

    Arguments and errors are those of `Linear`.

    Source: cuTAGI.
    """
