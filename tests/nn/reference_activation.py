"""Moments after each activation in float64, straight from the definitions: (m, s) -> (mean, variance, Jacobian)."""

import numpy as np
from scipy.special import expit, log_softmax, ndtr

FLOOR = 1e-6
FAR = 14  # standard deviations, beyond which nothing counts
NODES, WEIGHTS = np.polynomial.legendre.leggauss(100)


def phi(x):
    return np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)


def relu(m, s):
    on = m > 0
    return np.where(on, m, 0), np.where(on, s, 0), on * 1.0


def leaky_relu(m, s, negative_slope=0.1):
    j = np.where(m > 0, 1, negative_slope)
    return j * m, j**2 * s, j


def elu(m, s, alpha=1.0):
    below = np.minimum(m, 0)
    j = np.where(m > 0, 1, alpha * np.exp(below))
    return np.where(m > 0, m, alpha * np.expm1(below)), j**2 * s, j


def sigmoid(m, s):
    j = expit(m) * expit(-m)
    return expit(m), j**2 * s, j


def tanh(m, s):
    j = 4 * expit(2 * m) * expit(-2 * m)
    return np.tanh(m), j**2 * s, j


def softplus(m, s):
    j = expit(m)
    return np.logaddexp(0, m), j**2 * s, j


def rectified(m, s):
    """Exact mean, variance and Phi(m/sd) of max(0, z), without the floors.

    With a = m/sd and g = phi(a) - |a| Phi(-|a|) >= 0, the mean is max(m, 0) + sd g; the variance is written so that
    nothing large cancels.
    """
    sd = np.maximum(np.sqrt(s), 1e-18)  # without variance: the limit
    a = m / sd
    q = ndtr(-np.abs(a))
    g = phi(a) - np.abs(a) * q
    above = 1 + (a * a - 1) * q - a * phi(a) - g * g
    below = (a * a + 1) * q + a * phi(a) - g * g
    return np.maximum(m, 0) + sd * g, s * np.where(a > 0, above, below), ndtr(a)


def mixture_relu(m, s):
    mean, var, cdf = rectified(m, s)
    return np.maximum(FLOOR, mean), np.maximum(FLOOR, var), cdf


def clipped(m, s):
    """Exact mean and variance of z clipped to [-1, 1], and the probability that it is inside.

    What is inside is integrated, so that no large numbers cancel: where its density is not next to 0.
    """
    sd = np.sqrt(s)
    low, high = np.clip(m - FAR * sd, -1, 1), np.clip(m + FAR * sd, -1, 1)
    half = (high - low)[..., None] / 2
    z = low[..., None] + half * (1 + NODES)
    p = half * WEIGHTS * phi((z - m[..., None]) / sd[..., None]) / sd[..., None]
    below, above = ndtr((-1 - m) / sd), ndtr((m - 1) / sd)
    mean = above - below + (z * p).sum(-1)
    inside = ((z - mean[..., None]) ** 2 * p).sum(-1)
    return mean, (1 + mean) ** 2 * below + (1 - mean) ** 2 * above + inside, p.sum(-1)


def mixture_tanh(m, s):
    mean, var, j = clipped(m, s)
    return mean, np.maximum(FLOOR, var), j


def mixture_sigmoid(m, s):
    mean, var, j = clipped(m, s)
    return (mean + 1) / 2, np.maximum(FLOOR, var / 4), j / 2


def exponential(m, s):
    mean = np.exp(m + s / 2)
    return mean, mean**2 * np.expm1(s), mean


def even_exp(m, s):
    odd = np.arange(m.size).reshape(m.shape) % 2 == 1
    e = exponential(m, s)
    return np.where(odd, e[0], m), np.where(odd, e[1], s), np.where(odd, e[2], 1)


def softmax(m, s):
    a = np.exp(log_softmax(m, axis=1))
    j = a * (1 - a)
    top = np.take_along_axis(s, m.argmax(1)[:, None], 1)
    return a, j**2 * (s + top), j


def log_moments(m, s):
    v = np.log1p(s / m**2)
    return np.log(m) - v / 2, v


def remax(m, s):
    r, r_s, cdf = mixture_relu(m, s)
    total, total_s = r.sum(1, keepdims=True), r_s.sum(1, keepdims=True)
    (ln_r, ln_r_s), (ln_t, ln_t_s) = log_moments(r, r_s), log_moments(total, total_s)
    k = np.log1p(r_s / (total * r))
    e_s = ln_r_s + ln_t_s - 2 * k
    a = np.maximum(FLOOR, np.exp(ln_r - ln_t + e_s / 2))
    a = a / a.sum(1, keepdims=True)
    var = np.expm1(e_s) * a**2
    cov = np.expm1(ln_r_s - k) * a * r
    return a, var, np.minimum(np.sqrt(var) * np.sqrt(s), cov / np.maximum(cdf, 1e-300)) / s


def closed_form_softmax(m, s):
    e, v, _ = exponential(m, s)
    total = e.sum(1, keepdims=True)
    ln_t, ln_t_s = log_moments(total, v.sum(1, keepdims=True))
    k = np.log1p(v / (total * e))
    ln_s = s + ln_t_s - 2 * k
    a = np.exp(m - ln_t + ln_s / 2)
    return a, np.expm1(ln_s) * a**2, a * (s - k) / s


FORMULAS = {
    "ReLU": relu,
    "LeakyReLU": leaky_relu,
    "ELU": elu,
    "Sigmoid": sigmoid,
    "Tanh": tanh,
    "Softplus": softplus,
    "MixtureReLU": mixture_relu,
    "MixtureTanh": mixture_tanh,
    "MixtureSigmoid": mixture_sigmoid,
    "EvenExp": even_exp,
    "Softmax": softmax,
    "Remax": remax,
    "ClosedFormSoftmax": closed_form_softmax,
}

CANCELLING = {"MixtureSigmoid", "MixtureTanh", "ClosedFormSoftmax"}  # small differences of large float32 numbers


def moments(name, m, s, *parameters):
    """(mean, variance, Jacobian) of the activation called `name`; m, s: (batch, units)."""
    return FORMULAS[name](m, s, *parameters)
