/* The transforms of winograd.h in one dimension, one for each of the matrices B^T, A^T, A, G and G^T.
 *
 * All callers give `form` as a constant. At the points p and -p of a polynomial, its even powers contribute the same
 * and its odd powers the opposite; so both values are made of one `even` and one `odd` sum, those of +-B with _b. */
#define plus_minus NAME(plus_minus)
#define see_points NAME(see_points)
#define make_points NAME(make_points)
#define see_delta_points NAME(see_delta_points)
#define see_kernel_points NAME(see_kernel_points)
#define make_kernel_points NAME(make_kernel_points)
#define see_pixels NAME(see_pixels)
#define make_pixels NAME(make_pixels)
#define see_deltas NAME(see_deltas)
#define see_kernel NAME(see_kernel)
#define make_kernel NAME(make_kernel)

/* t = the values at A, -A, B and -B. */
INLINE void plus_minus(vector even, vector odd, vector even_b, vector odd_b, vector *t) {
    t[0] = even + odd;
    t[1] = even - odd;
    t[2] = even_b + odd_b;
    t[3] = even_b - odd_b;
}

/* The five transforms of F(4, 2). Those of F(4, 3) are the same, with the point 0 in front. */
INLINE void see_points(const vector *d, vector *t) {
    vector even = d[3] - B * B * d[1], odd = A * (d[2] - B * B * d[0]);
    vector even_b = d[3] - A * A * d[1], odd_b = B * (d[2] - A * A * d[0]);
    plus_minus(even, odd, even_b, odd_b, t);
    t[4] = A * A * B * B * d[0] - (A * A + B * B) * d[2] + d[4];
}

INLINE void make_points(const vector *m, vector *y) {
    vector even = m[0] + m[1], odd = m[0] - m[1], even_b = m[2] + m[3], odd_b = m[2] - m[3];
    y[0] = even + even_b;
    y[1] = A * odd + B * odd_b;
    y[2] = A * A * even + B * B * even_b;
    y[3] = A * A * A * odd + B * B * B * odd_b + m[4];
}

INLINE void see_delta_points(const vector *e, vector *t) {
    vector even = e[0] + A * A * e[2], odd = A * e[1] + A * A * A * e[3];
    vector even_b = e[0] + B * B * e[2], odd_b = B * e[1] + B * B * B * e[3];
    plus_minus(even, odd, even_b, odd_b, t);
    t[4] = e[3];
}

INLINE void see_kernel_points(vector g, vector next, vector *t) {
    vector even = A * A * NA * next, odd = A * NA * g, even_b = B * B * NB * next, odd_b = B * NB * g;
    plus_minus(even, odd, even_b, odd_b, t);
    t[4] = next;
}

INLINE void make_kernel_points(const vector *m, vector *g, vector *next) {
    *g = A * NA * (m[0] - m[1]) + B * NB * (m[2] - m[3]);
    *next = A * A * NA * (m[0] + m[1]) + B * B * NB * (m[2] + m[3]) + m[4];
}

/* t = B^T d. With stride 2, t begins with the pixels that the taps 0 and 2 meet. */
INLINE void see_pixels(int form, int adjoint, const vector *d, vector *t) {
    if (form == F2) {
        t[0] = d[0] - d[2];
        t[1] = d[1] + d[2];
        t[2] = d[2] - d[1];
        t[3] = d[1] - d[3];
    } else if (!strided(form)) {
        t[0] = A * A * B * B * d[0] - (A * A + B * B) * d[2] + d[4];
        see_points(d + 1, t + 1);
    } else if (adjoint) {
        see_points(form == ODD_3 ? d + 1 : d, t);
        if (form == STRIDED_4)
            see_points(d + 1, t + 5);
        else
            UNROLLED for (int k = 0; k < 4; k++) t[5 + k] = d[1 + k];
    } else {
        vector first[5], second[5];
        UNROLLED for (int k = 0; k < 5; k++) {
            first[k] = d[2 * k];
            if (2 * k + 1 < window_of(form, 0)) second[k] = d[2 * k + 1];
        }
        see_points(first, t);
        if (form == STRIDED_4)
            see_points(second, t + 5);
        else
            UNROLLED for (int k = 0; k < 4; k++) t[5 + k] = second[k];
    }
}

/* y = A^T m */
INLINE void make_pixels(int form, int adjoint, const vector *m, vector *y) {
    if (form == F2) {
        y[0] = m[0] + m[1] + m[2];
        y[1] = m[1] - m[2] - m[3];
    } else if (form == F4) {
        make_points(m + 1, y);
        y[0] += m[0];
    } else if (form == F2_5) {
        y[0] = m[0] + (m[1] + m[2]) + (m[3] + m[4]);
        y[1] = A * (m[1] - m[2]) + B * (m[3] - m[4]) + m[5];
    } else {
        vector first[4], second[4];
        make_points(m, first);
        if (form == STRIDED_4)
            make_points(m + 5, second);
        else
            UNROLLED for (int k = 0; k < 4; k++) second[k] = m[5 + k];
        UNROLLED for (int k = 0; k < 4; k++) {
            if (adjoint) {
                y[2 * k + (form == ODD_3)] = first[k];
                y[2 * k + (form != ODD_3)] = second[k];
            } else
                y[k] = first[k] + second[k];
        }
    }
}

/* t = A e */
INLINE void see_deltas(int form, const vector *e, vector *t) {
    if (form == F2) {
        t[0] = e[0];
        t[1] = e[0] + e[1];
        t[2] = e[0] - e[1];
        t[3] = -e[1];
    } else if (form == F4) {
        t[0] = e[0];
        see_delta_points(e, t + 1);
    } else if (form == F2_5) {
        t[0] = e[0];
        t[1] = e[0] + A * e[1];
        t[2] = e[0] - A * e[1];
        t[3] = e[0] + B * e[1];
        t[4] = e[0] - B * e[1];
        t[5] = e[1];
    } else {
        see_delta_points(e, t);
        if (form == STRIDED_4)
            see_delta_points(e, t + 5);
        else
            UNROLLED for (int k = 0; k < 4; k++) t[5 + k] = e[k];
    }
}

/* t = G g */
INLINE void see_kernel(int form, const vector *g, vector *t) {
    if (form == F2) {
        t[0] = g[0];
        t[1] = 0.5f * (g[0] + g[1] + g[2]);
        t[2] = 0.5f * (g[0] - g[1] + g[2]);
        t[3] = g[2];
    } else if (form == F4) {
        vector even = NA * (g[0] + A * A * g[2]), odd = A * NA * g[1];
        vector even_b = NB * (g[0] + B * B * g[2]), odd_b = B * NB * g[1];
        t[0] = N0 * g[0];
        plus_minus(even, odd, even_b, odd_b, t + 1);
        t[5] = g[2];
    } else if (form == F2_5) {
        vector even = NA * (g[0] + A * A * (g[2] + A * A * g[4])), odd = A * NA * (g[1] + A * A * g[3]);
        vector even_b = NB * (g[0] + B * B * (g[2] + B * B * g[4])), odd_b = B * NB * (g[1] + B * B * g[3]);
        t[0] = N0 * g[0];
        plus_minus(even, odd, even_b, odd_b, t + 1);
        t[5] = g[4];
    } else {
        see_kernel_points(g[0], g[2], t);
        if (form == STRIDED_4)
            see_kernel_points(g[1], g[3], t + 5);
        else
            t[5] = g[1];
    }
}

/* g = G^T m */
INLINE void make_kernel(int form, const vector *m, vector *g) {
    if (form == F2) {
        vector b = 0.5f * m[1], c = 0.5f * m[2];
        g[0] = m[0] + b + c;
        g[1] = b - c;
        g[2] = b + c + m[3];
    } else if (form == F4) {
        vector even = NA * (m[1] + m[2]), odd = NA * (m[1] - m[2]);
        vector even_b = NB * (m[3] + m[4]), odd_b = NB * (m[3] - m[4]);
        g[0] = N0 * m[0] + even + even_b;
        g[1] = A * odd + B * odd_b;
        g[2] = A * A * even + B * B * even_b + m[5];
    } else if (form == F2_5) {
        vector even = NA * (m[1] + m[2]), odd = A * NA * (m[1] - m[2]);
        vector even_b = NB * (m[3] + m[4]), odd_b = B * NB * (m[3] - m[4]);
        g[0] = N0 * m[0] + even + even_b;
        g[1] = odd + odd_b;
        g[2] = A * A * even + B * B * even_b;
        g[3] = A * A * odd + B * B * odd_b;
        g[4] = A * A * A * A * even + B * B * B * B * even_b + m[5];
    } else {
        make_kernel_points(m, g, g + 2);
        if (form == STRIDED_4)
            make_kernel_points(m + 5, g + 1, g + 3);
        else
            g[1] = m[5];
    }
}
