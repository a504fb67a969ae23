/* The transforms of winograd.h in one dimension, one for each of the matrices B^T, A^T, A, G and G^T.
 *
 * All callers pass `form` as a constant. At the points p and -p, even powers of a polynomial have the same value and
 * odd powers the opposite one; so both values follow from one `even` and one `odd` sum, those of +-B with _b. */
#define tagi_plus_minus TAGI_NAME(tagi_plus_minus)
#define tagi_see_points TAGI_NAME(tagi_see_points)
#define tagi_make_points TAGI_NAME(tagi_make_points)
#define tagi_see_delta_points TAGI_NAME(tagi_see_delta_points)
#define tagi_see_kernel_points TAGI_NAME(tagi_see_kernel_points)
#define tagi_make_kernel_points TAGI_NAME(tagi_make_kernel_points)
#define tagi_see_pixels TAGI_NAME(tagi_see_pixels)
#define tagi_make_pixels TAGI_NAME(tagi_make_pixels)
#define tagi_see_deltas TAGI_NAME(tagi_see_deltas)
#define tagi_see_kernel TAGI_NAME(tagi_see_kernel)
#define tagi_make_kernel TAGI_NAME(tagi_make_kernel)

/* t = the values at A, -A, B and -B. */
TAGI_INLINE void tagi_plus_minus(tagi_vector even, tagi_vector odd, tagi_vector even_b, tagi_vector odd_b,
                                 tagi_vector *t) {
    t[0] = even + odd;
    t[1] = even - odd;
    t[2] = even_b + odd_b;
    t[3] = even_b - odd_b;
}

/* The five transforms of F(4, 2). Those of F(4, 3) also have the point 0, as the first one. */
TAGI_INLINE void tagi_see_points(const tagi_vector *d, tagi_vector *t) {
    tagi_vector even = d[3] - TAGI_B * TAGI_B * d[1], odd = TAGI_A * (d[2] - TAGI_B * TAGI_B * d[0]);
    tagi_vector even_b = d[3] - TAGI_A * TAGI_A * d[1], odd_b = TAGI_B * (d[2] - TAGI_A * TAGI_A * d[0]);
    tagi_plus_minus(even, odd, even_b, odd_b, t);
    t[4] = TAGI_A * TAGI_A * TAGI_B * TAGI_B * d[0] - (TAGI_A * TAGI_A + TAGI_B * TAGI_B) * d[2] + d[4];
}

TAGI_INLINE void tagi_make_points(const tagi_vector *m, tagi_vector *y) {
    tagi_vector even = m[0] + m[1], odd = m[0] - m[1], even_b = m[2] + m[3], odd_b = m[2] - m[3];
    y[0] = even + even_b;
    y[1] = TAGI_A * odd + TAGI_B * odd_b;
    y[2] = TAGI_A * TAGI_A * even + TAGI_B * TAGI_B * even_b;
    y[3] = TAGI_A * TAGI_A * TAGI_A * odd + TAGI_B * TAGI_B * TAGI_B * odd_b + m[4];
}

TAGI_INLINE void tagi_see_delta_points(const tagi_vector *e, tagi_vector *t) {
    tagi_vector even = e[0] + TAGI_A * TAGI_A * e[2], odd = TAGI_A * e[1] + TAGI_A * TAGI_A * TAGI_A * e[3];
    tagi_vector even_b = e[0] + TAGI_B * TAGI_B * e[2], odd_b = TAGI_B * e[1] + TAGI_B * TAGI_B * TAGI_B * e[3];
    tagi_plus_minus(even, odd, even_b, odd_b, t);
    t[4] = e[3];
}

TAGI_INLINE void tagi_see_kernel_points(tagi_vector g, tagi_vector next, tagi_vector *t) {
    tagi_vector even = TAGI_A * TAGI_A * TAGI_NA * next, odd = TAGI_A * TAGI_NA * g,
                even_b = TAGI_B * TAGI_B * TAGI_NB * next, odd_b = TAGI_B * TAGI_NB * g;
    tagi_plus_minus(even, odd, even_b, odd_b, t);
    t[4] = next;
}

TAGI_INLINE void tagi_make_kernel_points(const tagi_vector *m, tagi_vector *g, tagi_vector *next) {
    *g = TAGI_A * TAGI_NA * (m[0] - m[1]) + TAGI_B * TAGI_NB * (m[2] - m[3]);
    *next = TAGI_A * TAGI_A * TAGI_NA * (m[0] + m[1]) + TAGI_B * TAGI_B * TAGI_NB * (m[2] + m[3]) + m[4];
}

/* t = B^T d. With stride 2, t begins with the pixels of the taps 0 and 2. */
TAGI_INLINE void tagi_see_pixels(int form, int adjoint, const tagi_vector *d, tagi_vector *t) {
    if (form == TAGI_F2) {
        t[0] = d[0] - d[2];
        t[1] = d[1] + d[2];
        t[2] = d[2] - d[1];
        t[3] = d[1] - d[3];
    } else if (!tagi_strided(form)) {
        t[0] = TAGI_A * TAGI_A * TAGI_B * TAGI_B * d[0] - (TAGI_A * TAGI_A + TAGI_B * TAGI_B) * d[2] + d[4];
        tagi_see_points(d + 1, t + 1);
    } else if (adjoint) {
        tagi_see_points(form == TAGI_ODD_3 ? d + 1 : d, t);
        if (form == TAGI_STRIDED_4)
            tagi_see_points(d + 1, t + 5);
        else
            TAGI_UNROLLED for (int k = 0; k < 4; k++) t[5 + k] = d[1 + k];
    } else {
        tagi_vector first[5], second[5];
        TAGI_UNROLLED for (int k = 0; k < 5; k++) {
            first[k] = d[2 * k];
            if (2 * k + 1 < tagi_window_of(form, 0)) second[k] = d[2 * k + 1];
        }
        tagi_see_points(first, t);
        if (form == TAGI_STRIDED_4)
            tagi_see_points(second, t + 5);
        else
            TAGI_UNROLLED for (int k = 0; k < 4; k++) t[5 + k] = second[k];
    }
}

/* y = A^T m */
TAGI_INLINE void tagi_make_pixels(int form, int adjoint, const tagi_vector *m, tagi_vector *y) {
    if (form == TAGI_F2) {
        y[0] = m[0] + m[1] + m[2];
        y[1] = m[1] - m[2] - m[3];
    } else if (form == TAGI_F4) {
        tagi_make_points(m + 1, y);
        y[0] += m[0];
    } else if (form == TAGI_F2_5) {
        y[0] = m[0] + (m[1] + m[2]) + (m[3] + m[4]);
        y[1] = TAGI_A * (m[1] - m[2]) + TAGI_B * (m[3] - m[4]) + m[5];
    } else {
        tagi_vector first[4], second[4];
        tagi_make_points(m, first);
        if (form == TAGI_STRIDED_4)
            tagi_make_points(m + 5, second);
        else
            TAGI_UNROLLED for (int k = 0; k < 4; k++) second[k] = m[5 + k];
        TAGI_UNROLLED for (int k = 0; k < 4; k++) {
            if (adjoint) {
                y[2 * k + (form == TAGI_ODD_3)] = first[k];
                y[2 * k + (form != TAGI_ODD_3)] = second[k];
            } else
                y[k] = first[k] + second[k];
        }
    }
}

/* t = A e */
TAGI_INLINE void tagi_see_deltas(int form, const tagi_vector *e, tagi_vector *t) {
    if (form == TAGI_F2) {
        t[0] = e[0];
        t[1] = e[0] + e[1];
        t[2] = e[0] - e[1];
        t[3] = -e[1];
    } else if (form == TAGI_F4) {
        t[0] = e[0];
        tagi_see_delta_points(e, t + 1);
    } else if (form == TAGI_F2_5) {
        t[0] = e[0];
        t[1] = e[0] + TAGI_A * e[1];
        t[2] = e[0] - TAGI_A * e[1];
        t[3] = e[0] + TAGI_B * e[1];
        t[4] = e[0] - TAGI_B * e[1];
        t[5] = e[1];
    } else {
        tagi_see_delta_points(e, t);
        if (form == TAGI_STRIDED_4)
            tagi_see_delta_points(e, t + 5);
        else
            TAGI_UNROLLED for (int k = 0; k < 4; k++) t[5 + k] = e[k];
    }
}

/* t = G g */
TAGI_INLINE void tagi_see_kernel(int form, const tagi_vector *g, tagi_vector *t) {
    if (form == TAGI_F2) {
        t[0] = g[0];
        t[1] = 0.5f * (g[0] + g[1] + g[2]);
        t[2] = 0.5f * (g[0] - g[1] + g[2]);
        t[3] = g[2];
    } else if (form == TAGI_F4) {
        tagi_vector even = TAGI_NA * (g[0] + TAGI_A * TAGI_A * g[2]), odd = TAGI_A * TAGI_NA * g[1];
        tagi_vector even_b = TAGI_NB * (g[0] + TAGI_B * TAGI_B * g[2]), odd_b = TAGI_B * TAGI_NB * g[1];
        t[0] = TAGI_N0 * g[0];
        tagi_plus_minus(even, odd, even_b, odd_b, t + 1);
        t[5] = g[2];
    } else if (form == TAGI_F2_5) {
        tagi_vector even = TAGI_NA * (g[0] + TAGI_A * TAGI_A * (g[2] + TAGI_A * TAGI_A * g[4])),
                    odd = TAGI_A * TAGI_NA * (g[1] + TAGI_A * TAGI_A * g[3]);
        tagi_vector even_b = TAGI_NB * (g[0] + TAGI_B * TAGI_B * (g[2] + TAGI_B * TAGI_B * g[4])),
                    odd_b = TAGI_B * TAGI_NB * (g[1] + TAGI_B * TAGI_B * g[3]);
        t[0] = TAGI_N0 * g[0];
        tagi_plus_minus(even, odd, even_b, odd_b, t + 1);
        t[5] = g[4];
    } else {
        tagi_see_kernel_points(g[0], g[2], t);
        if (form == TAGI_STRIDED_4)
            tagi_see_kernel_points(g[1], g[3], t + 5);
        else
            t[5] = g[1];
    }
}

/* g = G^T m */
TAGI_INLINE void tagi_make_kernel(int form, const tagi_vector *m, tagi_vector *g) {
    if (form == TAGI_F2) {
        tagi_vector b = 0.5f * m[1], c = 0.5f * m[2];
        g[0] = m[0] + b + c;
        g[1] = b - c;
        g[2] = b + c + m[3];
    } else if (form == TAGI_F4) {
        tagi_vector even = TAGI_NA * (m[1] + m[2]), odd = TAGI_NA * (m[1] - m[2]);
        tagi_vector even_b = TAGI_NB * (m[3] + m[4]), odd_b = TAGI_NB * (m[3] - m[4]);
        g[0] = TAGI_N0 * m[0] + even + even_b;
        g[1] = TAGI_A * odd + TAGI_B * odd_b;
        g[2] = TAGI_A * TAGI_A * even + TAGI_B * TAGI_B * even_b + m[5];
    } else if (form == TAGI_F2_5) {
        tagi_vector even = TAGI_NA * (m[1] + m[2]), odd = TAGI_A * TAGI_NA * (m[1] - m[2]);
        tagi_vector even_b = TAGI_NB * (m[3] + m[4]), odd_b = TAGI_B * TAGI_NB * (m[3] - m[4]);
        g[0] = TAGI_N0 * m[0] + even + even_b;
        g[1] = odd + odd_b;
        g[2] = TAGI_A * TAGI_A * even + TAGI_B * TAGI_B * even_b;
        g[3] = TAGI_A * TAGI_A * odd + TAGI_B * TAGI_B * odd_b;
        g[4] = TAGI_A * TAGI_A * TAGI_A * TAGI_A * even + TAGI_B * TAGI_B * TAGI_B * TAGI_B * even_b + m[5];
    } else {
        tagi_make_kernel_points(m, g, g + 2);
        if (form == TAGI_STRIDED_4)
            tagi_make_kernel_points(m + 5, g + 1, g + 3);
        else
            g[1] = m[5];
    }
}
