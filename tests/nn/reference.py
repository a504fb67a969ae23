"""TAGI in float64 NumPy, as a textbook writes it: the oracle of the tests, slow and without any trick.

Every layer is a function (layer, m, s) -> (m, s, back): means and variances in, means and variances out, and
`back(dm, ds, sums)`, which takes deltas of the output to deltas of the input and notes the scaled deltas of the layer's
parameters in `sums[layer]`. Images are (batch, channels, height, width). Activations apply their own Jacobian in
`back`, so the chain rule is plain to see.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import ndtr

from pytagi_ddp import nn
from pytagi_ddp.nn.core.state import Shape
from tests.nn import reference_activation, reference_attention


def _float64(layer, *shape):
    mu_w, var_w, mu_b, var_b = (np.asarray(getattr(layer, f), np.float64) for f in ("mu_w", "var_w", "mu_b", "var_b"))
    return mu_w.reshape(shape), var_w.reshape(shape), mu_b, var_b


def _affine(layer, taps, taps_s, w, s_w, b, s_b):
    """z = W x + b for rows of inputs `taps` (..., n_in): moments, and the deltas of parameters and inputs."""
    bias, var_bias = (b, s_b) if len(b) else (0.0, 0.0)
    m = taps @ w.T + bias
    s = taps_s @ (w**2 + s_w).T + taps**2 @ s_w.T + var_bias

    def back(dm, ds, sums):
        d, e, x = dm.reshape(-1, len(w)), ds.reshape(-1, len(w)), taps.reshape(-1, w.shape[1])
        of_bias = (s_b * d.sum(0), s_b**2 * e.sum(0)) if len(b) else (b, b)
        sums[layer] = (s_w * (d.T @ x), s_w**2 * (e.T @ x**2), *of_bias)
        return dm @ w, ds @ w**2

    return m, s, back


def linear(layer, m, s):
    def rows(layer, m, s):
        return _affine(layer, m, s, *_float64(layer, *layer.parameters.weight_shape))

    return _of_steps(rows, layer, m, s)


def pixels(layer, m, s):
    """(batch, channels, height, width) as (batch, pixels, channels)."""

    def back(dm, ds, sums):
        return dm.swapaxes(1, 2).reshape(m.shape), ds.swapaxes(1, 2).reshape(m.shape)

    return *(a.reshape(*m.shape[:2], -1).swapaxes(1, 2) for a in (m, s)), back


def _patches(images, window, fill=0.0):
    """(batch, channels, y, x, k, k) views of the padded images."""
    p, k = window.padding, window.kernel_size
    before, after = (p, p) if window.padding_type in (1, 3) else (0, p if window.padding_type == 2 else 0)
    padded = np.pad(images, ((0, 0), (0, 0), (before, after), (before, after)), constant_values=fill)
    return sliding_window_view(padded, (k, k), (2, 3))[:, :, :: window.stride, :: window.stride]


def _scatter(patches, window, shape):
    """The adjoint of `_patches`: every tap added to the pixel that it was read from."""
    p, k, t = window.padding, window.kernel_size, window.stride
    before = p if window.padding_type in (1, 3) else 0
    out = np.zeros((*shape[:2], shape[2] + 2 * p, shape[3] + 2 * p))
    height, width = patches.shape[2:4]
    for r in range(k):
        for q in range(k):
            out[:, :, r : r + t * height : t, q : q + t * width : t] += patches[..., r, q]
    return out[:, :, before : before + shape[2], before : before + shape[3]]


def conv2d(layer, m, s):
    k = layer.window.kernel_size
    to_rows = (0, 2, 3, 1, 4, 5)
    taps, taps_s = (_patches(a, layer.window).transpose(to_rows) for a in (m, s))
    shape = taps.shape
    flat = (*shape[:3], -1)
    out_m, out_s, affine_back = _affine(
        layer, taps.reshape(flat), taps_s.reshape(flat), *_float64(layer, layer.out_channels, layer.in_channels * k * k)
    )

    def back(dm, ds, sums):
        moved = affine_back(dm.transpose(0, 2, 3, 1), ds.transpose(0, 2, 3, 1), sums)
        return tuple(_scatter(d.reshape(shape).transpose(0, 3, 1, 2, 4, 5), layer.window, m.shape) for d in moved)

    return out_m.transpose(0, 3, 1, 2), out_s.transpose(0, 3, 1, 2), back


def convtranspose2d(layer, m, s):
    """Written out tap by tap: what input pixel (y, x) adds to output pixels."""
    w, s_w, b, s_b = _float64(layer, *layer.parameters.weight_shape)
    t, before = layer.window.stride, layer.window.before
    shape = (len(m), layer.out_channels, layer.out_height, layer.out_width)
    places = np.meshgrid(*(np.arange(n) for n in m.shape[2:]), indexing="ij")
    taps = []
    for r, q in np.ndindex(w.shape[2:]):
        y, x = t * places[0] + r - before, t * places[1] + q - before
        inside = (y >= 0) & (y < shape[2]) & (x >= 0) & (x < shape[3])
        taps.append((r, q, *(place[inside] for place in (*places, y, x))))

    def moment(a, kernel, start):
        out = np.zeros(shape) + (start[:, None, None] if len(b) else 0.0)
        for r, q, rows, columns, y, x in taps:
            out[:, :, y, x] += np.einsum("bcn,co->bon", a[:, :, rows, columns], kernel[:, :, r, q])
        return out

    def back(dm, ds, sums):
        result = np.zeros((2, *m.shape))
        g, h = np.zeros((2, *w.shape))
        for r, q, rows, columns, y, x in taps:
            d, e, a = dm[:, :, y, x], ds[:, :, y, x], m[:, :, rows, columns]
            result[0][:, :, rows, columns] += np.einsum("bon,co->bcn", d, w[:, :, r, q])
            result[1][:, :, rows, columns] += np.einsum("bon,co->bcn", e, w[:, :, r, q] ** 2)
            g[:, :, r, q] = np.einsum("bcn,bon->co", a, d)
            h[:, :, r, q] = np.einsum("bcn,bon->co", a**2, e)
        of_bias = (s_b * dm.sum((0, 2, 3)), s_b**2 * ds.sum((0, 2, 3))) if len(b) else (b, b)
        sums[layer] = ((s_w * g).ravel(), (s_w**2 * h).ravel(), *of_bias)
        return tuple(result)

    return moment(m, w, b), moment(s, w**2 + s_w, s_b) + moment(m**2, s_w, 0 * s_b), back


def average_pool(layer, m, s):
    window, n = layer.window, layer.window.kernel_size**2
    ones = np.ones((window.kernel_size, window.kernel_size))

    def back(dm, ds, sums):
        spread = (d[..., None, None] * ones for d in (dm / n, ds / n**2))
        return tuple(_scatter(d, window, m.shape) for d in spread)

    return _patches(m, window).mean((4, 5)), _patches(s, window).sum((4, 5)) / n**2, back


def max_pool(layer, m, s):
    window = layer.window
    patches, patches_s = _patches(m, window, -np.inf), _patches(s, window)
    flat = (*patches.shape[:4], -1)
    winner = patches.reshape(flat).argmax(-1)[..., None]

    def back(dm, ds, sums):
        result = []
        for d in (dm, ds):
            to_winner = np.zeros((*flat[:4], window.kernel_size**2))
            np.put_along_axis(to_winner, winner, d[..., None], -1)
            result.append(_scatter(to_winner.reshape(patches.shape), window, m.shape))
        return tuple(result)

    chosen = (np.take_along_axis(p.reshape(flat), winner, -1)[..., 0] for p in (patches, patches_s))
    return *chosen, back


def _normalise(layer, m, s, over, features):
    """Normalises over the axes `over`; the affine map has one weight per entry of axis `features`."""
    count = np.prod([m.shape[axis] for axis in over])
    mean = m.mean(over, keepdims=True)
    var = (((m - mean) ** 2).sum(over, keepdims=True) + s.sum(over, keepdims=True)) / (count - 1)
    r = 1 / np.sqrt(var + layer.eps)
    t = r * (m - mean)
    shape = [-1 if axis == features else 1 for axis in range(m.ndim)]
    w, s_w, b, s_b = _float64(layer, *shape)
    bias, var_bias = (b.reshape(shape), s_b.reshape(shape)) if len(b) else (0.0, 0.0)
    rest = tuple(axis for axis in range(m.ndim) if axis != features)

    def back(dm, ds, sums):
        weights = (s_w.ravel() * (t * dm).sum(rest), s_w.ravel() ** 2 * (t**2 * ds).sum(rest))
        biases = (s_b * dm.sum(rest), s_b**2 * ds.sum(rest)) if len(b) else (b, b)
        sums[layer] = (*weights, *biases)
        moved = dm
        if getattr(layer, "through_statistics", False):
            moved = dm - dm.mean(over, keepdims=True) - t * (t * dm).sum(over, keepdims=True) / (count - 1)
        return r * w * moved, (r * w) ** 2 * ds

    return t * w + bias, r**2 * s * (w**2 + s_w) + s_w * t**2 + var_bias, back


def batch_norm(layer, m, s):
    if m.ndim == 4 and m.shape[1] == layer.num_features:
        return _normalise(layer, m, s, (0, 2, 3), 1)
    return _flat(_normalise, layer, m, s, (0,), 1)


def layer_norm(layer, m, s):
    if len(layer.normalized_shape) == 3:
        return _normalise(layer, m, s, (1, 2, 3), 1)
    return _of_steps(lambda layer, m, s: _normalise(layer, m, s, (1,), 1), layer, m, s)


def attention(layer, m, s):
    return reference_attention.attention(layer, m, s, _affine)


def embedding(layer, m, s):
    table, var_table, b, _ = _float64(layer, *layer.parameters.weight_shape)
    row = m.astype(int)
    known = ((row >= 0) & (row != layer.padding_idx))[..., None]

    def back(dm, ds, sums):
        g, h = np.zeros((2, *table.shape))
        for total, d in ((g, dm), (h, ds)):
            np.add.at(total, row, known * d.reshape(*row.shape, -1))
        sums[layer] = ((var_table * g).ravel(), (var_table**2 * h).ravel(), b, b)
        return np.zeros_like(m), np.zeros_like(m)

    return known * table[row], known * var_table[row], back


def _clipped(m, s, low, high):
    """Mean and variance of a Gaussian that is clipped to low and high, one of which may be infinite; P(not clipped)."""
    sd = np.maximum(np.sqrt(s), 1e-18)
    a, b = (low - m) / sd, (high - m) / sd
    below, above, inside = ndtr(a), ndtr(-b), ndtr(b) - ndtr(a)
    pdf_a, pdf_b = (np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) for x in (a, b))
    low, high = (np.where(np.isfinite(end), end, 0) for end in (low, high))  # what is infinite has no mass
    mean = low * below + high * above + m * inside + sd * (pdf_a - pdf_b)
    square = low**2 * below + high**2 * above + (m**2 + s) * inside + sd * ((m + low) * pdf_a - (m + high) * pdf_b)
    return mean, np.maximum(square - mean**2, 0), inside


def encoding(layer, m, s):
    bins = [1 if edges is None else len(edges) - 1 for edges in layer.edges]
    source = np.repeat(np.arange(len(bins)), bins)
    whole = [edges or [0, 1] for edges in layer.edges]
    e0, e1 = (np.concatenate([edges[k : len(edges) - 1 + k] for edges in whole]) for k in (0, 1))
    low = np.concatenate([[-np.inf] + [0] * (count - 1) for count in bins])
    high = np.concatenate([[1] * (count - 1) + [np.inf] for count in bins])
    given = layer.ends or [None] * len(bins)
    bottom, top = np.concatenate([some or [(0, 1)] * count for some, count in zip(given, bins, strict=True)]).T
    rise, width = top - bottom, e1 - e0
    u, var, inside = _clipped((m[:, source] - e0) / width, s[:, source] / width**2, low, high)
    j = inside * rise / width
    values = [(k, value) for k, some in enumerate(layer.values or []) for value in some or []]
    near = [np.abs(m[:, k] - value) <= 1e-6 * max(abs(value), 1) for k, value in values]
    hits = [layer.height * (is_near & (s[:, k] == 0)) for is_near, (k, _) in zip(near, values, strict=True)]
    marks = np.array(hits).reshape(len(values), len(m)).T

    def back(dm, ds, sums):
        into = np.zeros((2, *m.shape))
        for total, d in zip(into, (j * dm[:, : len(source)], j**2 * ds[:, : len(source)]), strict=True):
            np.add.at(total, (slice(None), source), d)
        return tuple(into)

    mean, var = (np.concatenate(parts, 1) for parts in ((bottom + rise * u, marks), (rise**2 * var, 0 * marks)))
    return mean, var, back


def rms_norm(layer, m, s):
    r = 1 / np.sqrt((m**2 + s).mean(-1, keepdims=True) + layer.eps)
    w, s_w, b, _ = _float64(layer, -1)

    def back(dm, ds, sums):
        t = (r * m).reshape(-1, len(w))
        d, e = dm.reshape(-1, len(w)), ds.reshape(-1, len(w))
        sums[layer] = (s_w * (t * d).sum(0), s_w**2 * (t**2 * e).sum(0), b, b)
        return r * w * dm, (r * w) ** 2 * ds

    return r * m * w, r**2 * (s * (w**2 + s_w) + s_w * m**2), back


def _of_steps(function, layer, m, s):
    """`function` on rows of units: samples, or (where the layer takes them so) each of their time steps."""
    flat, flat_s = (a.reshape(len(m) * layer.steps, -1) for a in (m, s))
    out_m, out_s, step_back = function(layer, flat, flat_s)

    def back(dm, ds, sums):
        return tuple(d.reshape(m.shape) for d in step_back(dm.reshape(out_m.shape), ds.reshape(out_m.shape), sums))

    return out_m.reshape(len(m), -1), out_s.reshape(len(m), -1), back


def _flat(function, layer, m, s, *rest):
    """`function` on samples taken as flat rows of units."""
    rows = (len(m), -1)
    out_m, out_s, flat_back = function(layer, m.reshape(rows), s.reshape(rows), *rest)

    def back(dm, ds, sums):
        return tuple(d.reshape(m.shape) for d in flat_back(dm.reshape(out_m.shape), ds.reshape(out_m.shape), sums))

    return out_m, out_s, back


def lstm(layer, m, s):
    n_in, n, batch = layer.input_size, layer.output_size, len(m)
    steps = layer.seq_len if layer.recurrent else 1
    w, s_w, b, s_b = _float64(layer, 4, n, n_in + n)
    bias, var_bias = (b.reshape(4, 1, n), s_b.reshape(4, 1, n)) if len(b) else (0.0, 0.0)
    x_m, x_s = (a.reshape(-1, steps, n_in).swapaxes(0, 1) for a in (m, s))
    h_m = h_s = c_m = c_s = np.zeros((x_m.shape[1], n))
    kept, out = [], []
    for t in range(steps):
        a_m, a_s = np.hstack([x_m[t], h_m]), np.hstack([x_s[t], h_s])
        z_m = a_m @ w.transpose(0, 2, 1) + bias
        z_s = a_s @ (w**2 + s_w).transpose(0, 2, 1) + a_m**2 @ s_w.transpose(0, 2, 1) + var_bias
        (f, i, _, o), c = 1 / (1 + np.exp(-z_m)), np.tanh(z_m[2])
        j_f, j_i, j_c, j_o = f * (1 - f), i * (1 - i), 1 - c**2, o * (1 - o)
        j_f, j_i, j_o = (np.sqrt(np.minimum(j**2, j / z_s[gate])) for gate, j in ((0, j_f), (1, j_i), (3, j_o)))
        s_f, s_i, s_c, s_o = np.array([j_f, j_i, j_c, j_o]) ** 2 * z_s
        fo, io, co = (a_s[:, :n_in] @ (w[gate] * w[3])[:, :n_in].T for gate in range(3))
        cov = j_i * j_c * (a_s @ (w[1] * w[2]).T)
        slopes = [j_f * c_m, j_i * c, j_c * i]
        new_m = f * c_m + i * c + cov
        new_s = c_s * f**2 + c_s * s_f + s_f * c_m**2
        c_m, c_s = new_m, new_s + s_c * i**2 + s_i * s_c + s_i * c**2 + cov**2 + 2 * cov * i * c
        tau = np.tanh(c_m)
        j_tau = np.sqrt(np.minimum((1 - tau**2) ** 2, (1 - tau**2) / c_s))
        cov = j_tau * j_o * (fo * slopes[0] + io * slopes[1] + co * slopes[2])
        h_m = o * tau + cov
        s_tau = j_tau**2 * c_s
        h_s = s_tau * o**2 + s_tau * s_o + s_o * tau**2 + cov**2 + 2 * cov * o * tau
        kept.append((a_m, [*slopes, 0 * o], [k * j_tau * o for k in slopes] + [j_o * tau], j_tau * o, f))
        out.append((h_m, h_s))

    def back(dm, ds, sums):
        d_m, d_s = (d.reshape(x_m.shape[1], -1, n).swapaxes(0, 1) for d in (dm, ds))
        later = np.zeros((4, *h_m.shape))  # from the next step: to h and to C
        total, in_m, in_s = [np.zeros(a.shape) for a in (w, w, b, b)], [], []
        for t in range(steps)[::-1]:
            a, to_c, to_h, h_c, f = kept[t]
            dh_m, dh_s, dc_m, dc_s = later
            if len(d_m) == steps or t == steps - 1:
                dh_m, dh_s = dh_m + d_m[t - steps], dh_s + d_s[t - steps]
            for gate in range(4):
                g = to_h[gate] * dh_m + to_c[gate] * dc_m
                h = to_h[gate] ** 2 * dh_s + to_c[gate] ** 2 * dc_s
                total[0][gate] += g.T @ a
                total[1][gate] += h.T @ a**2
                if len(b):
                    total[2].reshape(4, n)[gate] += g.sum(0)
                    total[3].reshape(4, n)[gate] += h.sum(0)
            paths = [sum(k[gate][:, :, None] * w[gate] for gate in range(4)) for k in (to_h, to_c)]
            step_m = sum(np.einsum("bjz,bj->bz", path, d) for path, d in zip(paths, (dh_m, dc_m), strict=True))
            step_s = sum(np.einsum("bjz,bj->bz", path**2, d) for path, d in zip(paths, (dh_s, dc_s), strict=True))
            in_m.insert(0, step_m[:, :n_in])
            in_s.insert(0, step_s[:, :n_in])
            through = f if layer.cell_path else 0
            later = [
                step_m[:, n_in:],
                step_s[:, n_in:],
                through * (h_c * dh_m + dc_m),
                through**2 * (h_c**2 * dh_s + dc_s),
            ]
        g_w, h_w, g_b, h_b = total
        sums[layer] = (s_w * g_w, s_w**2 * h_w, s_b * g_b, s_b**2 * h_b)
        return tuple(np.array(d).swapaxes(0, 1).reshape(m.shape) for d in (in_m, in_s))

    shown = out[-1:] if layer.last_timestep else out
    return *(np.stack(a, 1).reshape(batch, -1) for a in zip(*shown, strict=True)), back


def activation(layer, m, s):
    flat = (len(m) * layer.in_shape.steps, -1)
    settings = [getattr(layer, name) for name in layer.formula_settings]
    out_m, out_s, j = reference_activation.moments(type(layer).__name__, m.reshape(flat), s.reshape(flat), *settings)
    j = j.reshape(m.shape)
    return out_m.reshape(m.shape), out_s.reshape(m.shape), lambda dm, ds, sums: (j * dm, j**2 * ds)


def residual(layer, m, s):
    main_m, main_s, main_back = chain(layer.main_block.layers, m, s)
    if layer.shortcut is None:
        short_m, short_s, short_back = m, s, lambda dm, ds, sums: (dm, ds)
    else:
        short_m, short_s, short_back = chain([layer.shortcut], m, s)

    def back(dm, ds, sums):
        branches = zip(main_back(dm, ds, sums), short_back(dm, ds, sums), strict=True)
        return tuple(a.reshape(m.shape) + b.reshape(m.shape) for a, b in branches)

    shape = max(main_m.shape, short_m.shape, key=len)  # a dense branch gives the image flat
    return main_m.reshape(shape) + short_m.reshape(shape), main_s.reshape(shape) + short_s.reshape(shape), back


def _columns(shape, units):
    """(samples, channels, pixels) or (samples, features, time steps): parts are side by side along the middle axis."""
    if shape.image:
        return units.reshape(len(units), -1, shape.height * shape.width)
    return units.reshape(len(units), shape.steps, -1).swapaxes(1, 2)


def _units(shape, columns):
    """The inverse of `_columns`, flat."""
    return (columns if shape.image else columns.swapaxes(1, 2)).reshape(len(columns), -1)


def parallel(layer, m, s):
    n, whole, out = len(layer.branches), layer.in_shape, layer.out_shape
    if layer.split and sum(layer.split) != (whole.channels or whole.features):
        whole = Shape(whole.size)

    def apart(shape, ends, units):
        return [_units(shape, part) for part in np.split(_columns(shape, units), ends, 1)]

    def together(shape, parts):
        return _units(shape, np.concatenate([_columns(shape, part) for part in parts], 1))

    ends_in = np.cumsum(layer.split)[:-1] if layer.split else None
    inputs = zip(
        *(apart(whole, ends_in, a) if layer.split else [a.reshape(len(a), -1)] * n for a in (m, s)), strict=True
    )
    outputs = [
        (*x, lambda dm, ds, sums: (dm, ds)) if branch is None else chain([branch], *x)
        for branch, x in zip(layer.branches, inputs, strict=True)
    ]
    moments = [[output[k].reshape(len(m), -1) for output in outputs] for k in (0, 1)]
    concat = layer.merge == "concat"
    ends_out = np.cumsum([_columns(out, mean).shape[1] for mean in moments[0]])[:-1] if concat else None

    def back(dm, ds, sums):
        given = zip(*(apart(out, ends_out, d) if concat else [d] * n for d in (dm, ds)), strict=True)
        moved = [
            output[2](*(d.reshape(output[0].shape) for d in deltas), sums)
            for output, deltas in zip(outputs, given, strict=True)
        ]
        parts = [[deltas[k].reshape(len(m), -1) for deltas in moved] for k in (0, 1)]
        return tuple((together(whole, part) if layer.split else sum(part)).reshape(m.shape) for part in parts)

    return *(together(out, parts) if concat else sum(parts) for parts in moments), back


LAYERS = {
    nn.Linear: linear,
    nn.Conv2d: conv2d,
    nn.ConvTranspose2d: convtranspose2d,
    nn.AvgPool2d: average_pool,
    nn.MaxPool2d: max_pool,
    nn.Pixels: pixels,
    nn.BatchNorm2d: batch_norm,
    nn.Embedding: embedding,
    nn.PiecewiseLinearEncoding: lambda layer, m, s: _of_steps(encoding, layer, m, s),
    nn.LayerNorm: layer_norm,
    nn.MultiheadAttention: attention,
    nn.RMSNorm: lambda layer, m, s: _of_steps(rms_norm, layer, m, s),
    nn.LSTM: lstm,
    nn.SLSTM: lstm,
    nn.SLinear: linear,
    nn.ResNetBlock: residual,
    nn.Parallel: parallel,
}


def chain(layers, m, s):
    """Layers one after the other; an image is what a convolution or pooling asks for."""
    backs = []
    for layer in layers:
        if isinstance(layer, nn.LayerBlock):
            m, s, back = chain(layer.layers, m, s)
        else:
            image = layer.in_shape.image
            if image is not None:
                m, s = m.reshape(-1, *image), s.reshape(-1, *image)
            m, s, back = LAYERS.get(type(layer), activation)(layer, m, s)
        backs.append((back, m.shape))

    def chain_back(dm, ds, sums):
        for back, shape in reversed(backs):
            dm, ds = back(dm.reshape(shape), ds.reshape(shape), sums)
        return dm, ds

    return m, s, chain_back
