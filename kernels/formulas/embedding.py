"""The row of a category in a table."""

import numpy as np

from pytagi_ddp.kernels.formulas.formula import formula

ZERO = np.float32(0)
NONE = np.int32(-1)


@formula
def row_of(category, rows, padding):
    """The row of a category; -1 if it has none, or is the padding. Fractions are truncated."""
    row = np.int32(category) if ZERO <= category < np.float32(rows) else NONE
    return NONE if row == padding else row
