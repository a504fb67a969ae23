"""Attention of Gaussian units: the Jacobian of Remax over a row of scores, and rotary positions.

The shares A_l = M_l/T of rectified scores M_l in their total T are those of `formulas.softmax.remax_mean`. Deltas are
propagated by their whole Jacobian, with s_l the variance of M_l and m_T the mean of T:

    dA_i/dz_l = D_l (i = l) + A_i c_l       D_l = A_l Phi_l m_T/(m_T m_l + s_l)       c_l = -m_l Phi_l/(m_T m_l + s_l)

as cov(A_i, M_l) cov(M_l, z_l)/(s_l s_z). Scaling all scores of a row does not change its shares. The diagonal alone,
which the activation `Remax` uses, ignores this, and would give other deltas.
"""

from pytagi_ddp.kernels.formulas.formula import formula


@formula
def share_slopes(a, m, s, cdf, total):
    """(D, c) of the normalised share a of a rectified score (m, s); cdf: Phi of the score."""
    slope = cdf / (total * m + s)
    return a * slope * total, -m * slope


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
