"""Dense layer whose outputs can be smoothed afterwards."""

from pytagi_ddp.nn.linear import Linear


class SLinear(Linear):
    """`Linear` after an `SLSTM`: makes the outputs of `Sequential.smoother`, by its weights of that moment.

    Arguments and errors are those of `Linear`.

    Source: cuTAGI.
    """

    name = "SLinear"
