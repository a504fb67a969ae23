"""Numbers of the rules by which posteriors are merged, without Numba, which takes long to import."""

MEAN, PRECISION_WEIGHTED, DAMPED_PRODUCT = RULES = range(3)
