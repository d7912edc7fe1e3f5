/* kernels_softmax.h - the softmax of a split, for one instruction set: max, e^(QK - max), their
 * sum. The contract, and the order of the sum, are in kernels.h.
 *
 * Included by kernels_attend.h, or by who has QK and PV of its own, and wants
 *   VEC, LANES, V_ZERO, V_LOAD, V_STORE    as kernels_f32.h does
 *   V_SET(x)
 *   V_FUSED(a, b, c)   a b + c, rounded once
 *   V_MAX(a, b)        a > b ? a : b, but a NaN in b stays
 *   V_HALF(v)          each value rounded to f16, as f32
 *   V_ADDEND(c, x)     optional: V_SET(c) for a sum with a product of x */

enum { ATTEND_CHUNKS = 16 / LANES }; /* vectors of the sixteen chains of a sum */

typedef uint32_t attend_bits __attribute__((vector_size(4 * LANES)));

#ifndef V_ADDEND
#define V_ADDEND(c, x) V_SET(c)
#endif

/* e^x for x <= 0 to about 1e-7 of itself, or for f16 to 6e-6, where half a last bit is 2.4e-4; NaN
 * for NaN: 2^n times a polynomial in what is left of the exponent. Below -87 the value there.
 * Adding 1.5 * 2^23 rounds to an integer, n, which then is in the low bits; ln 2 is subtracted in
 * two parts, for f16 at once. is_half is a constant where this is inlined. */
F32_INLINE VEC attend_exp(VEC x, bool is_half) {
    x = V_MAX(V_SET(-87.0f), x);
    VEC shifted = V_FUSED(x, V_SET(1.44269504f), V_ADDEND(12582912.0f, x));
    VEC n = shifted - V_SET(12582912.0f), r, p;
    if (is_half) {
        r = V_FUSED(n, V_SET(-0.693147181f), x);
        p = V_FUSED(V_SET(4.1277673e-2f), r, V_ADDEND(1.6753532e-1f, r));
        p = V_FUSED(p, r, V_ADDEND(5.000512e-1f, r));
    } else {
        r = V_FUSED(n, V_SET(-0.693359375f), x);
        r = V_FUSED(n, V_SET(2.12194440e-4f), r);
        p = V_FUSED(V_SET(1.9875691500e-4f), r, V_ADDEND(1.3981999507e-3f, r));
        p = V_FUSED(p, r, V_ADDEND(8.3334519073e-3f, r));
        p = V_FUSED(p, r, V_ADDEND(4.1665795894e-2f, r));
        p = V_FUSED(p, r, V_ADDEND(1.6666665459e-1f, r));
        p = V_FUSED(p, r, V_ADDEND(5.0000001201e-1f, r));
    }
    p = V_FUSED(p, r * r, r) + V_SET(1.0f);
    return p * (VEC)(((attend_bits)shifted << 23) + 0x3F800000u);
}

/* The largest of n values, a multiple of 16. */
F32_INLINE float attend_max(const float *qk, uint32_t n) {
    VEC best[ATTEND_CHUNKS];
    float lanes[LANES];
    UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++) best[c] = V_LOAD(qk + c * LANES);
    for (uint32_t p = 16; p < n; p += 16)
        UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++) best[c] =
            V_MAX(V_LOAD(qk + p + c * LANES), best[c]);
    UNROLL for (int half = ATTEND_CHUNKS / 2; half > 0; half /= 2)
        UNROLL for (int c = 0; c < half; c++) best[c] = V_MAX(best[c + half], best[c]);
    V_STORE(lanes, best[0]);
    UNROLL for (int half = LANES / 2; half > 0; half /= 2) UNROLL for (int l = 0; l < half; l++)
        lanes[l] = lanes[l + half] > lanes[l] ? lanes[l + half] : lanes[l];
    return lanes[0];
}

/* Sixteen chains added as a tree. */
F32_INLINE float attend_sum(VEC *sum) {
    float lanes[LANES];
    UNROLL for (int half = ATTEND_CHUNKS / 2; half > 0; half /= 2)
        UNROLL for (int c = 0; c < half; c++) sum[c] = sum[c] + sum[c + half];
    V_STORE(lanes, sum[0]);
    UNROLL for (int half = LANES / 2; half > 0; half /= 2) UNROLL for (int l = 0; l < half; l++)
        lanes[l] += lanes[l + half];
    return lanes[0];
}

/* x = e^(x - max) for the first n of sixteen values, zeros after them, added to the chains. */
F32_INLINE void attend_sixteen(float *x, uint32_t n, VEC max, bool is_half, VEC *sum) {
    VEC y[ATTEND_CHUNKS];
    UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++) y[c] = V_LOAD(x + c * LANES);
    UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++) y[c] = attend_exp(y[c] - max, is_half);
    if (is_half)
        UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++) y[c] = V_HALF(y[c]);
    UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++) V_STORE(x + c * LANES, y[c]);
    if (n < 16) {
        memset(x + n, 0, (16 - n) * sizeof *x);
        UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++) y[c] = V_LOAD(x + c * LANES);
    }
    UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++) sum[c] = sum[c] + y[c];
}

/* qk = e^(qk - max) for n positions, zeros up to a multiple of 16; their sum. */
F32_INLINE float attend_weights(float *qk, uint32_t n, VEC max, bool is_half) {
    VEC sum[ATTEND_CHUNKS];
    uint32_t p = 0;
    UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++) sum[c] = V_ZERO();
    for (; p + 16 <= n; p += 16)
        attend_sixteen(qk + p, 16, max, is_half, sum);
    if (p < n)
        attend_sixteen(qk + p, n - p, max, is_half, sum);
    return attend_sum(sum);
}

/* Of query q, which sees a position or more: its QK become the weights. */
static TARGET struct softmax attend_softmax(const struct attend_split *s, uint32_t q) {
    float *qk = s->qk + (size_t)q * ATTEND_POSITIONS;
    uint32_t n = s->seen[q], padded = (n + 15) / 16 * 16;
    for (uint32_t p = n; p < padded; p++)
        qk[p] = qk[0];
    struct softmax result = {.max = attend_max(qk, padded)};
    VEC max = V_SET(result.max);
    result.sum =
        s->type == DT_F16 ? attend_weights(qk, n, max, true) : attend_weights(qk, n, max, false);
    return result;
}
