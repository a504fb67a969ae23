"""Normalisation of a Gaussian unit with an uncertain affine map; the statistics are constants.

z = r (a - mean) w + b, with a ~ N(m, s), w ~ N(w_mu, w_var), b ~ N(b_mu, b_var), r = 1/sqrt(var + eps).
"""

from pytagi_ddp.kernels.formulas.formula import formula


@formula
def normalized_moments(m, s, mean, r, w_mu, w_var, b_mu, b_var):
    """(mean, variance) of z."""
    t = r * (m - mean)
    return t * w_mu + b_mu, r * r * s * (w_mu * w_mu + w_var) + w_var * t * t + b_var
