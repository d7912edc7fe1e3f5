/* units.cuh - one unit of weights (tiles.h) against the activations of a block, on tensor cores.
 *
 * For one activation row the eight columns of an mma would be idle but one. Instead every
 * sub-block gets a column of its own: B of sub-block s is zero but in column s, the sums of a
 * whole unit pile up in one set of accumulators, and lane (g, t) ends with the integer
 * sums of rows g, g + 8 for the sub-blocks of its class t (2t and 2t + 1; Q6_K: t and t + 4): no
 * work is done twice, and scaling costs 4 values a lane and unit.
 * For 2 to 8 rows the columns are the rows, and a lane keeps four accumulators a value, one a
 * class, so that both paths add the same numbers in the same order.
 *
 * Integer sums come out on top of MAGIC_BITS, the bits of 1.5 x 2^23: read as f32 they are
 * 1.5 x 2^23 + sum, exactly, while |sum| < 2^22; one subtraction makes a float of them. */
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common.cuh"
#include "tiles.h"

#define MAGIC_BITS 0x4b400000
#define MAGIC 12582912.0f

/* Activations of a block's K slice in shared memory; RP = 1 or 8 rows. */
struct acts {
    uint8_t *q;      /* (rows, stride): int8 or bf16, natural order */
    float *scale;    /* (slice / 32, RP) */
    float *sum;      /* (slice / 32, RP): scale x sum of the 32 quants */
    int32_t *bias16; /* (slice / 16, RP): MAGIC_BITS - 32 x sum of the 16 quants */
    int stride;
};

struct lane_view {
    const uint8_t *q; /* RP 1: row 0; RP 8: row g, or NULL; at t's first word */
    uint32_t mask[8]; /* RP 1: all ones where g == s */
    int lane, g, t;
};

template <int RP> struct lane_acc {
    float v[RP == 1 ? 4 : 16]; /* RP 1: rows g, g + 8; RP 8: [class][row g c0, c1, g+8 c0, c1] */
};

template <bool SIGNED>
__device__ static inline void mma_k32(int c[4], uint4 a, uint32_t b0, uint32_t b1) {
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ static inline void mma_u8_k16(int c[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

__device__ static inline void mma_bf16(float *c, uint4 a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ static inline uint4 and4(uint4 v, uint32_t m) {
    return make_uint4(v.x & m, v.y & m, v.z & m, v.w & m);
}

__device__ static inline float centred(int c) {
    return __int_as_float(c) - MAGIC;
}

__device__ static inline float ubyte(uint32_t w, int i) {
    return (float)(uint8_t)(w >> 8 * i);
}
__device__ static inline float sbyte(uint32_t w, int i) {
    return (float)(int8_t)(w >> 8 * i);
}

__device__ static inline float2 halves(uint32_t w) {
    return __half22float2(*(const __half2 *)&w);
}

/* ---- Q4_K ---- */

struct q4_k_class { /* scales and minimums of one class: [row g s0, s1, row g+8 s0, s1] */
    uint32_t sc, mn;
    float2 d[2]; /* d, dmin of the two rows */
};

__device__ static inline struct q4_k_class q4_k_header(const uint8_t *u, int g, int t) {
    struct q4_k_class h;
    uint32_t w = *(const uint32_t *)(u + 2048 + (g * 4 + t) * 4);
    uint32_t n = *(const uint16_t *)(u + 2176 + (g * 4 + t) * 2);
    uint2 d = *(const uint2 *)(u + 2240 + g * 8);
    n = __byte_perm(n, 0, 0x1100); /* bytes n0 n0 n1 n1 */
    h.sc = w & 0x3f3f3f3f;
    h.mn = (n & 0x000f000f) | ((n >> 4) & 0x0f000f00) | ((w >> 2) & 0x30303030);
    h.d[0] = halves(d.x), h.d[1] = halves(d.y);
    return h;
}

/* Adds one class of one row: f0, f1 its two integer sums (f1 sixteen times too much). */
__device__ static inline float q4_k_add(float acc, float f0, float f1, float2 as, float2 am,
                                        const struct q4_k_class &h, int row) {
    float a0 = __fmul_rn(f0, as.x), a1 = __fmul_rn(f1, __fmul_rn(as.y, 0.0625f));
    float x = fmaf(a1, ubyte(h.sc, 2 * row + 1), __fmul_rn(a0, ubyte(h.sc, 2 * row)));
    float m = fmaf(am.y, ubyte(h.mn, 2 * row + 1), __fmul_rn(am.x, ubyte(h.mn, 2 * row)));
    return fmaf(-h.d[row].y, m, fmaf(h.d[row].x, x, acc));
}

__device__ static inline void unit_q4_k(struct lane_acc<1> &acc, const uint8_t *u,
                                        const struct acts &s, const struct lane_view &l, int unit) {
    uint2 b = *(const uint2 *)(l.q + (unit * 8 + l.g) * 32);
    int e[4] = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS}, o[4];
    for (int i = 0; i < 4; i++)
        o[i] = e[i];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint4 w = *(const uint4 *)(u + p * 512 + l.lane * 16);
        mma_k32<false>(e, and4(w, 0x0f0f0f0f), b.x & l.mask[2 * p], b.y & l.mask[2 * p]);
        mma_k32<false>(o, and4(w, 0xf0f0f0f0), b.x & l.mask[2 * p + 1], b.y & l.mask[2 * p + 1]);
    }
    struct q4_k_class h = q4_k_header(u, l.g, l.t);
    float2 as = *(const float2 *)(s.scale + unit * 8 + 2 * l.t);
    float2 am = *(const float2 *)(s.sum + unit * 8 + 2 * l.t);
    acc.v[0] = q4_k_add(acc.v[0], centred(e[0]), centred(o[1]), as, am, h, 0);
    acc.v[1] = q4_k_add(acc.v[1], centred(e[2]), centred(o[3]), as, am, h, 1);
}

__device__ static inline uint2 row_words(const struct lane_view &l, int sub) {
    return l.q ? *(const uint2 *)(l.q + sub * 32) : make_uint2(0, 0);
}

__device__ static inline void unit_q4_k(struct lane_acc<8> &acc, const uint8_t *u,
                                        const struct acts &s, const struct lane_view &l, int unit) {
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint4 w = *(const uint4 *)(u + p * 512 + l.lane * 16);
        uint2 b0 = row_words(l, unit * 8 + 2 * p), b1 = row_words(l, unit * 8 + 2 * p + 1);
        int e[4] = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS}, o[4];
        for (int i = 0; i < 4; i++)
            o[i] = e[i];
        mma_k32<false>(e, and4(w, 0x0f0f0f0f), b0.x, b0.y);
        mma_k32<false>(o, and4(w, 0xf0f0f0f0), b1.x, b1.y);
        struct q4_k_class h = q4_k_header(u, l.g, p);
        const float *as = s.scale + (unit * 8 + 2 * p) * 8 + 2 * l.t;
        const float *am = s.sum + (unit * 8 + 2 * p) * 8 + 2 * l.t;
#pragma unroll
        for (int i = 0; i < 4; i++) /* row i / 2, column i % 2 */
            acc.v[p * 4 + i] = q4_k_add(acc.v[p * 4 + i], centred(e[i]), centred(o[i]),
                                        make_float2(as[i % 2], as[8 + i % 2]),
                                        make_float2(am[i % 2], am[8 + i % 2]), h, i / 2);
    }
}

/* ---- Q6_K ---- */

__device__ static inline uint4 q6_k_words(uint32_t w0, uint32_t w1, uint32_t w2) {
    uint32_t top = ((w0 >> 2) & 0x30303030) | ((w1 >> 4) & 0x0c0c0c0c) | ((w2 >> 6) & 0x03030303);
    return make_uint4(w0 & 0x3f3f3f3f, w1 & 0x3f3f3f3f, w2 & 0x3f3f3f3f, top);
}

/* Four sub-blocks from the three planes q = 0 or 1. */
__device__ static inline void q6_k_load(uint4 a[4], const uint8_t *u, int q, int lane) {
    uint4 v[3];
#pragma unroll
    for (int j = 0; j < 3; j++)
        v[j] = *(const uint4 *)(u + (3 * q + j) * 512 + lane * 16);
    a[0] = q6_k_words(v[0].x, v[0].y, v[0].z);
    a[1] = q6_k_words(v[0].w, v[1].x, v[1].y);
    a[2] = q6_k_words(v[1].z, v[1].w, v[2].x);
    a[3] = q6_k_words(v[2].y, v[2].z, v[2].w);
}

/* One class of one row: four group sums, the four scale bytes, the two activation scales. */
__device__ static inline float q6_k_add(float acc, float f0, float f1, float f2, float f3,
                                        uint32_t sc, float as0, float as1, float d) {
    float x = fmaf(f1, sbyte(sc, 1), __fmul_rn(f0, sbyte(sc, 0)));
    float y = fmaf(f3, sbyte(sc, 3), __fmul_rn(f2, sbyte(sc, 2)));
    return fmaf(d, fmaf(y, as1, __fmul_rn(x, as0)), acc);
}

__device__ static inline void unit_q6_k(struct lane_acc<1> &acc, const uint8_t *u,
                                        const struct acts &s, const struct lane_view &l, int unit) {
    int c[2][4];
#pragma unroll
    for (int q = 0; q < 2; q++) {
        uint4 a[4];
        q6_k_load(a, u, q, l.lane);
        uint32_t b =
            *(const uint32_t *)(s.q + (unit * 8 + 4 * q + l.g / 2) * 32 + (l.g & 1) * 16 + l.t * 4);
        int2 bias = *(const int2 *)(s.bias16 + unit * 16 + 8 * q + 2 * l.t);
        c[q][0] = c[q][2] = bias.x, c[q][1] = c[q][3] = bias.y;
#pragma unroll
        for (int j = 0; j < 4; j++)
            mma_k32<false>(c[q], a[j], b & l.mask[2 * j], b & l.mask[2 * j + 1]);
    }
    uint2 sc = *(const uint2 *)(u + 3072 + l.lane * 8);
    float2 d = halves(*(const uint32_t *)(u + 3328 + l.g * 4));
    float as0 = s.scale[unit * 8 + l.t], as1 = s.scale[unit * 8 + 4 + l.t];
    acc.v[0] = q6_k_add(acc.v[0], centred(c[0][0]), centred(c[0][1]), centred(c[1][0]),
                        centred(c[1][1]), sc.x, as0, as1, d.x);
    acc.v[1] = q6_k_add(acc.v[1], centred(c[0][2]), centred(c[0][3]), centred(c[1][2]),
                        centred(c[1][3]), sc.y, as0, as1, d.y);
}

__device__ static inline void unit_q6_k(struct lane_acc<8> &acc, const uint8_t *u,
                                        const struct acts &s, const struct lane_view &l, int unit) {
    uint4 a[2][4];
    q6_k_load(a[0], u, 0, l.lane);
    q6_k_load(a[1], u, 1, l.lane);
    float2 d = halves(*(const uint32_t *)(u + 3328 + l.g * 4));
#pragma unroll
    for (int t = 0; t < 4; t++) {
        int c[4][4];
        float as[2][2];
#pragma unroll
        for (int q = 0; q < 2; q++) {
            int sub = unit * 8 + 4 * q + t;
            uint2 b = make_uint2(0, 0); /* l.q is at word 2t of the row: go back to word t */
            if (l.q)
                b.x = *(const uint32_t *)(l.q + sub * 32 - l.t * 4);
            if (l.q)
                b.y = *(const uint32_t *)(l.q + sub * 32 - l.t * 4 + 16);
            int2 i0 = *(const int2 *)(s.bias16 + 2 * sub * 8 + 2 * l.t);
            int2 i1 = *(const int2 *)(s.bias16 + (2 * sub + 1) * 8 + 2 * l.t);
            c[2 * q][0] = c[2 * q][2] = i0.x, c[2 * q][1] = c[2 * q][3] = i0.y;
            c[2 * q + 1][0] = c[2 * q + 1][2] = i1.x, c[2 * q + 1][1] = c[2 * q + 1][3] = i1.y;
            mma_u8_k16(c[2 * q], a[q][t].x, a[q][t].y, b.x);
            mma_u8_k16(c[2 * q + 1], a[q][t].z, a[q][t].w, b.y);
            as[q][0] = s.scale[sub * 8 + 2 * l.t], as[q][1] = s.scale[sub * 8 + 2 * l.t + 1];
        }
        uint2 sc = *(const uint2 *)(u + 3072 + (l.g * 4 + t) * 8);
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc.v[t * 4 + i] = q6_k_add(acc.v[t * 4 + i], centred(c[0][i]), centred(c[1][i]),
                                        centred(c[2][i]), centred(c[3][i]), i / 2 ? sc.y : sc.x,
                                        as[0][i % 2], as[1][i % 2], i / 2 ? d.y : d.x);
    }
}

/* ---- Q8_0 ---- */

__device__ static inline float q8_0_add(float acc, float f0, float f1, float2 as, float2 d) {
    return fmaf(f1, __fmul_rn(d.y, as.y), fmaf(f0, __fmul_rn(d.x, as.x), acc));
}

__device__ static inline void unit_q8_0(struct lane_acc<1> &acc, const uint8_t *u,
                                        const struct acts &s, const struct lane_view &l, int unit,
                                        int subs) {
    uint2 b = *(const uint2 *)(l.q + (unit * 8 + l.g) * 32);
    int e[4] = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS}, o[4];
    for (int i = 0; i < 4; i++)
        o[i] = e[i];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (j >= subs)
            break;
        uint4 w = *(const uint4 *)(u + 256 + j * 512 + l.lane * 16);
        mma_k32<true>(j % 2 ? o : e, w, b.x & l.mask[j], b.y & l.mask[j]);
    }
    uint2 d = *(const uint2 *)(u + l.lane * 8);
    float2 as = *(const float2 *)(s.scale + unit * 8 + 2 * l.t);
    acc.v[0] = q8_0_add(acc.v[0], centred(e[0]), centred(o[1]), as, halves(d.x));
    acc.v[1] = q8_0_add(acc.v[1], centred(e[2]), centred(o[3]), as, halves(d.y));
}

__device__ static inline void unit_q8_0(struct lane_acc<8> &acc, const uint8_t *u,
                                        const struct acts &s, const struct lane_view &l, int unit,
                                        int subs) {
#pragma unroll
    for (int p = 0; p < 4; p++) {
        int c[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 4; i++)
                c[h][i] = MAGIC_BITS;
            if (2 * p + h >= subs)
                continue;
            uint2 b = row_words(l, unit * 8 + 2 * p + h);
            mma_k32<true>(c[h], *(const uint4 *)(u + 256 + (2 * p + h) * 512 + l.lane * 16), b.x,
                          b.y);
        }
        uint2 d = *(const uint2 *)(u + (l.g * 4 + p) * 8);
        const float *as = s.scale + (unit * 8 + 2 * p) * 8 + 2 * l.t;
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc.v[p * 4 + i] =
                q8_0_add(acc.v[p * 4 + i], centred(c[0][i]), centred(c[1][i]),
                         make_float2(as[i % 2], as[8 + i % 2]), halves(i / 2 ? d.y : d.x));
    }
}

/* ---- BF16: columns are rows in both cases; the first four accumulators are the mma's own ---- */

template <int RP>
__device__ static inline void unit_bf16(struct lane_acc<RP> &acc, const uint8_t *u,
                                        const struct lane_view &l, int unit, int steps) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i >= steps)
            break;
        uint2 b = make_uint2(0, 0);
        if (RP == 8 ? l.q != NULL : l.g == 0)
            b = *(const uint2 *)(l.q + (unit * 8 + i) * 32);
        mma_bf16(acc.v, *(const uint4 *)(u + i * 512 + l.lane * 16), b.x, b.y);
    }
}

/* The lane's results: lo[j], hi[j] = rows g, g + 8 for column 2t + j (RP 1: column 0, t = 0). */
template <int RP, bool BF16>
__device__ static inline void lane_result(const struct lane_acc<RP> &acc, float lo[2],
                                          float hi[2]) {
    if (BF16) {
        for (int j = 0; j < 2; j++)
            lo[j] = acc.v[j], hi[j] = acc.v[2 + j];
    } else if (RP == 1) {
        float v[2] = {acc.v[0], acc.v[1]};
        for (int i = 0; i < 2; i++) {
            v[i] += __shfl_xor_sync(~0u, v[i], 1);
            v[i] += __shfl_xor_sync(~0u, v[i], 2);
        }
        lo[0] = v[0], hi[0] = v[1], lo[1] = hi[1] = 0;
    } else {
        float v[4];
        for (int i = 0; i < 4; i++)
            v[i] = (acc.v[i] + acc.v[(RP == 1 ? 0 : 4) + i % 4]) +
                   (acc.v[(RP == 1 ? 0 : 8) + i % 4] + acc.v[(RP == 1 ? 0 : 12) + i % 4]);
        lo[0] = v[0], lo[1] = v[1], hi[0] = v[2], hi[1] = v[3];
    }
}
