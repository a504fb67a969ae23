"""Multi-head attention of TAGI in float64 NumPy: see `reference`. Heads are (batch, heads, time steps, units)."""

import math

import numpy as np

from tests.nn import reference_activation


def remax(m, s, seen):
    """Remax over the last axis, of what is `seen`: mean, variance, and (D, c) of dA_i/dz_l = D_l (i = l) + A_i c_l."""
    m_r, s_r, cdf = reference_activation.mixture_relu(m, s)
    total, var_total = (np.where(seen, a, 0).sum(-1, keepdims=True) for a in (m_r, s_r))
    log_var, log_var_total = np.log1p(s_r / m_r**2), np.log1p(var_total / total**2)
    cov = np.log1p(s_r / (total * m_r))
    log_spread = log_var + log_var_total - 2 * cov
    log_mean = np.log(m_r) - log_var / 2 - np.log(total) + log_var_total / 2
    a = np.where(seen, np.maximum(1e-6, np.exp(log_mean + log_spread / 2)), 0)
    a /= a.sum(-1, keepdims=True)
    own = a * m_r * np.exp(-cov) * np.expm1(log_var) * cdf / s_r
    common = np.where(seen, m_r * np.expm1(-cov) * cdf / s_r, 0)
    return a, np.expm1(log_spread) * a**2, own, common


def product(how, m, s, w, v):
    """Moments of sums of products of independent factors; `how`: the indices, as of einsum."""
    both = [np.einsum(how, a, b) for a, b in ((m, w), (s, v), (s, w**2), (m**2, v))]
    return both[0], both[1] + both[2] + both[3]


def rotate(m, s, theta, sign=1):
    steps, size = m.shape[-2:]
    angle = np.arange(steps)[:, None] * theta ** (-2.0 * np.arange(size // 2) / size)
    c, n = np.cos(angle), sign * np.sin(angle)
    out = np.empty((2, *m.shape))
    a, b = slice(0, None, 2), slice(1, None, 2)
    out[0][..., a], out[0][..., b] = m[..., a] * c - m[..., b] * n, m[..., a] * n + m[..., b] * c
    out[1][..., a] = s[..., a] * c**2 + s[..., b] * n**2
    out[1][..., b] = s[..., a] * n**2 + s[..., b] * c**2
    return out


def attention(layer, m, s, affine):
    """affine: that of `reference`."""
    E, H, G, D = layer.embed_dim, layer.num_heads, layer.num_kv_heads, layer.embed_dim // layer.num_heads
    batch, rows = len(m), (H + 2 * G) * D
    values = [np.asarray(getattr(layer, name), np.float64) for name in ("mu_w", "var_w", "mu_b", "var_b")]

    def linear(first, last, m, s):
        w, s_w = (a[first * E : last * E].reshape(-1, E) for a in values[:2])
        b, s_b = (a[first:last] for a in values[2:])
        return affine(first, m, s, w, s_w, b, s_b)

    def split(x):
        heads = x.reshape(batch, -1, H + 2 * G, D).transpose(0, 2, 1, 3)
        return heads[:, :H], *(np.repeat(part, H // G, 1) for part in (heads[:, H : H + G], heads[:, H + G :]))

    def join(q, k, v):
        k, v = (a.reshape(batch, G, H // G, *a.shape[2:]).sum(2) for a in (k, v))
        return np.concatenate([q, k, v], 1).transpose(0, 2, 1, 3).reshape(batch, -1, rows)

    projected, var_projected, first_back = linear(0, rows, m.reshape(batch, -1, E), s.reshape(batch, -1, E))
    (q, k, v), (sq, sk, sv) = split(projected), split(var_projected)
    if layer.use_rope:
        (q, sq), (k, sk) = rotate(q, sq, layer.rope_theta), rotate(k, sk, layer.rope_theta)
    scores, var_scores = product("bhtd,bhld->bhtl", q, sq, k, sk)
    steps = q.shape[2]
    seen = np.tril(np.ones((steps, steps), bool)) if layer.causal else np.ones((steps, steps), bool)
    a, s_a, own, common = remax(scores / math.sqrt(D), var_scores / D, seen)
    out_m, out_s = product("bhtl,bhld->bhtd", a, np.where(seen, s_a, 0), v, sv)
    out_m, out_s = (x.transpose(0, 2, 1, 3).reshape(batch, steps, E) for x in (out_m, out_s))
    if layer.out_proj:
        out_m, out_s, last_back = linear(rows, rows + E, out_m, out_s)

    def back(dm, ds, sums):
        parts: dict = {}
        dm, ds = dm.reshape(batch, steps, E), ds.reshape(batch, steps, E)
        if layer.out_proj:
            dm, ds = last_back(dm, ds, parts)
        dm, ds = (x.reshape(batch, steps, H, D).transpose(0, 2, 1, 3) for x in (dm, ds))
        through = lambda how, w, d, e: (np.einsum(how, w, d), np.einsum(how, w**2, e))  # noqa: E731
        dv, dsv = through("bhtl,bhtd->bhld", a, dm, ds)
        g, h = through("bhld,bhtd->bhtl", v, dm, ds)
        squares = a**2 * h
        dz = own * g + common * (a * g).sum(-1, keepdims=True)
        dsz = (own + a * common) ** 2 * h + common**2 * (squares.sum(-1, keepdims=True) - squares)
        dq, dsq = through("bhld,bhtl->bhtd", k / math.sqrt(D), dz, dsz)
        dk, dsk = through("bhtd,bhtl->bhld", q / math.sqrt(D), dz, dsz)
        if layer.use_rope:
            (dq, dsq), (dk, dsk) = (rotate(*pair, layer.rope_theta, -1) for pair in ((dq, dsq), (dk, dsk)))
        into = first_back(join(dq, dk, dv), join(dsq, dsk, dsv), parts)
        order = [parts[key] for key in sorted(parts)]
        sums[layer] = tuple(np.concatenate([np.ravel(part[i]) for part in order]) for i in range(4))
        return tuple(x.reshape(m.shape) for x in into)

    return out_m.reshape(batch, -1), out_s.reshape(batch, -1), back
