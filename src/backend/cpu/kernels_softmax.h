/* kernels_softmax.h - the softmax of a split, for one instruction set: max, e^(QK - max), their
 * sum. The contract, and the order of the sum, are in kernels.h.
 *
 * Included by kernels_attend.h, or by who has QK and PV of its own, and wants
 *   VEC, LANES, V_ZERO, V_LOAD, V_STORE    as kernels_f32.h does
 *   V_SET(x)
 *   V_FUSED(a, b, c)   a b + c, rounded once
 *   V_MAX(a, b)        a > b ? a : b, but a NaN in b stays
 *   V_HALF(v)          each value rounded to f16, as f32
 * and may have
 *   V_ADDEND(c, x)     V_SET(c) for a sum with a product of x
 *   V_MAX_LANES(v)     the largest lane
 *   V_SUM_LANES(v)     their sum as a tree: l and l + LANES / 2 first
 *   ATTEND_STORE_WEIGHTS   attend_store_weights in another way */

enum { ATTEND_CHUNKS = 16 / LANES }; /* vectors of the sixteen chains of a sum */

#define EACH_CHUNK UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++)

typedef uint32_t attend_bits __attribute__((vector_size(4 * LANES)));

#ifndef V_ADDEND
#define V_ADDEND(c, x) V_SET(c)
#endif

/* x = e^x for sixteen x <= 0 to about 1e-7 of itself, or for f16 to 6e-6, where half a last bit is
 * 2.4e-4; NaN for NaN: 2^n times a polynomial in what is left of the exponent. Below -87 the value
 * there. Adding 1.5 * 2^23 rounds to an integer, n, which then is in the low bits; for f16 it is
 * added to the exponent, as a NaN that comes from f16 has zeros there; ln 2 is subtracted in two
 * parts, for f16 at once. Each step is done for all vectors before the next: instructions that
 * follow each other do not wait for each other. is_half is a constant where this is inlined. */
F32_INLINE void attend_exp(VEC *x, bool is_half) {
    VEC n[ATTEND_CHUNKS], r[ATTEND_CHUNKS], p[ATTEND_CHUNKS];
    attend_bits up[ATTEND_CHUNKS];
#define STEP(constant) EACH_CHUNK p[c] = V_FUSED(p[c], r[c], V_ADDEND(constant, r[c]))
    EACH_CHUNK x[c] = V_MAX(V_SET(-87.0f), x[c]);
    EACH_CHUNK n[c] = V_FUSED(x[c], V_SET(1.44269504f), V_ADDEND(12582912.0f, x[c]));
    EACH_CHUNK up[c] = (attend_bits)n[c] << 23;
    EACH_CHUNK n[c] = n[c] - V_SET(12582912.0f);
    if (is_half) {
        EACH_CHUNK r[c] = V_FUSED(n[c], V_SET(-0.693147181f), x[c]);
        EACH_CHUNK p[c] = V_FUSED(V_SET(4.1277673e-2f), r[c], V_ADDEND(1.6753532e-1f, r[c]));
        STEP(5.000512e-1f);
    } else {
        EACH_CHUNK r[c] = V_FUSED(n[c], V_SET(-0.693359375f), x[c]);
        EACH_CHUNK r[c] = V_FUSED(n[c], V_SET(2.12194440e-4f), r[c]);
        EACH_CHUNK p[c] = V_FUSED(V_SET(1.9875691500e-4f), r[c], V_ADDEND(1.3981999507e-3f, r[c]));
        STEP(8.3334519073e-3f);
        STEP(4.1665795894e-2f);
        STEP(1.6666665459e-1f);
        STEP(5.0000001201e-1f);
    }
    EACH_CHUNK n[c] = r[c] * r[c];
    EACH_CHUNK p[c] = V_FUSED(p[c], n[c], r[c]);
    EACH_CHUNK p[c] = p[c] + V_SET(1.0f);
    if (is_half)
        EACH_CHUNK x[c] = (VEC)((attend_bits)p[c] + up[c]);
    else
        EACH_CHUNK x[c] = p[c] * (VEC)(up[c] + 0x3F800000u);
#undef STEP
}

/* The largest of n values, a multiple of 16. */
F32_INLINE float attend_max(const float *qk, uint32_t n) {
    VEC best[ATTEND_CHUNKS];
    UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++) best[c] = V_LOAD(qk + c * LANES);
    for (uint32_t p = 16; p < n; p += 16)
        UNROLL for (int c = 0; c < ATTEND_CHUNKS; c++) best[c] =
            V_MAX(V_LOAD(qk + p + c * LANES), best[c]);
    UNROLL for (int half = ATTEND_CHUNKS / 2; half > 0; half /= 2)
        UNROLL for (int c = 0; c < half; c++) best[c] = V_MAX(best[c + half], best[c]);
#ifdef V_MAX_LANES
    return V_MAX_LANES(best[0]);
#else
    float lanes[LANES];
    V_STORE(lanes, best[0]);
    UNROLL for (int half = LANES / 2; half > 0; half /= 2) UNROLL for (int l = 0; l < half; l++)
        lanes[l] = lanes[l + half] > lanes[l] ? lanes[l + half] : lanes[l];
    return lanes[0];
#endif
}

/* Sixteen chains added as a tree. */
F32_INLINE float attend_sum(VEC *sum) {
    UNROLL for (int half = ATTEND_CHUNKS / 2; half > 0; half /= 2)
        UNROLL for (int c = 0; c < half; c++) sum[c] = sum[c] + sum[c + half];
#ifdef V_SUM_LANES
    return V_SUM_LANES(sum[0]);
#else
    float lanes[LANES];
    V_STORE(lanes, sum[0]);
    UNROLL for (int half = LANES / 2; half > 0; half /= 2) UNROLL for (int l = 0; l < half; l++)
        lanes[l] += lanes[l + half];
    return lanes[0];
#endif
}

#ifndef ATTEND_STORE_WEIGHTS
/* To where their QK were, and to the chains. */
F32_INLINE void attend_store_weights(float *qk, uint32_t p, VEC *y, bool is_half, VEC *sum) {
    if (is_half)
        EACH_CHUNK y[c] = V_HALF(y[c]);
    EACH_CHUNK V_STORE(qk + p + c * LANES, y[c]);
    EACH_CHUNK sum[c] = sum[c] + y[c];
}
#define ATTEND_STORE_WEIGHTS attend_store_weights
#endif

/* qk = e^(qk - max) for the sixteen positions from p on, added to the chains; zeros from n on. */
F32_INLINE void attend_sixteen(float *qk, uint32_t p, uint32_t n, VEC max, bool is_half, VEC *sum) {
    VEC y[ATTEND_CHUNKS];
    EACH_CHUNK y[c] = V_LOAD(qk + p + c * LANES);
    EACH_CHUNK y[c] = y[c] - max;
    attend_exp(y, is_half);
    if (p + 16 > n) {
        float last[16];
        EACH_CHUNK V_STORE(last + c * LANES, y[c]);
        memset(last + (n - p), 0, (p + 16 - n) * sizeof *last);
        EACH_CHUNK y[c] = V_LOAD(last + c * LANES);
    }
    ATTEND_STORE_WEIGHTS(qk, p, y, is_half, sum);
}

/* The same for n positions, zeros up to a multiple of 16; their sum. */
F32_INLINE float attend_weights(float *qk, uint32_t n, VEC max, bool is_half) {
    VEC sum[ATTEND_CHUNKS];
    uint32_t p = 0;
    EACH_CHUNK sum[c] = V_ZERO();
    for (; p + 16 <= n; p += 16)
        attend_sixteen(qk, p, p + 16, max, is_half, sum);
    if (p < n)
        attend_sixteen(qk, p, n, max, is_half, sum);
    return attend_sum(sum);
}

/* Of the queries from `first` on, which see a position or more: their QK become the weights. All
 * maxima come first: they need not wait for each other, nor the exponentials for them. */
static TARGET void attend_softmax(const struct attend_split *s, uint32_t first) {
    for (uint32_t q = first; q < s->n_queries; q++) {
        float *qk = s->qk + (size_t)q * ATTEND_POSITIONS;
        uint32_t n = s->seen[q], padded = (n + 15) / 16 * 16;
        for (uint32_t p = n; p < padded; p++)
            qk[p] = qk[0];
        s->sums[q].max = attend_max(qk, padded);
    }
    for (uint32_t q = first; q < s->n_queries; q++) {
        float *qk = s->qk + (size_t)q * ATTEND_POSITIONS;
        VEC max = V_SET(s->sums[q].max);
        s->sums[q].sum = s->type == DT_F16 ? attend_weights(qk, s->seen[q], max, true)
                                           : attend_weights(qk, s->seen[q], max, false);
    }
}
