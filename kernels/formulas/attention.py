"""Attention of Gaussian units: Remax over a row of scores with its whole Jacobian, and rotary positions.

The shares A_l = M_l/T of rectified scores M_l in their total T are those of `formulas.softmax.remax_mean`, all taken as
log-normal. With k = s_l/(m_T m_l) = e^Cov(ln M_l, ln T) - 1 the logarithms cancel, which leaves products:

    A_l = m_l^2 (1 + s_T/m_T^2)/(m_T m_l + s_l), normalised to sum 1
    dA_i/dz_l = D_l (i = l) + A_i c_l       D_l = A_l Phi_l m_T/(m_T m_l + s_l)       c_l = -m_l Phi_l/(m_T m_l + s_l)

as cov(A_i, M_l) cov(M_l, z_l)/(s_l s_z). A row does not change when all its scores are scaled, so without the second
part, which is what the activation `Remax` passes on, the deltas of scores point elsewhere.
"""

import numpy as np

from pytagi_ddp.kernels.formulas.bounds import at_least
from pytagi_ddp.kernels.formulas.formula import formula

ONE, TWO, FLOOR = np.float32(1), np.float32(2), np.float32(1e-6)


@formula
def share_mean(m, s, total, total_var):
    """A of a rectified score (m, s) in the total, not yet normalised."""
    return at_least(m * m * (ONE + total_var / (total * total)) / (total * m + s), FLOOR)


@formula
def share_moments(a, m, s, cdf, total, total_var):
    """(variance, D, c) of the normalised share a; cdf: Phi of the score."""
    p, q, k = s / (m * m), total_var / (total * total), s / (total * m)
    slope = cdf / (total * m + s)
    spread = (p + q + p * q - TWO * k - k * k) / ((ONE + k) * (ONE + k))
    return spread * a * a, a * slope * total, -m * slope


@formula
def score_deltas(a, d, c, dm, ds, sum_mu, sum_var):
    """(dm, ds) of a score from those of its share a; sum_mu, sum_var: of a dm and of a^2 ds over the row."""
    own = d + a * c
    return d * dm + c * sum_mu, own * own * ds + c * c * (sum_var - a * a * ds)


@formula
def rotated(a, b, var_a, var_b, cosine, sine):
    """A pair of units turned by an angle, and its variances."""
    cc, ss = cosine * cosine, sine * sine
    return a * cosine - b * sine, a * sine + b * cosine, var_a * cc + var_b * ss, var_a * ss + var_b * cc
