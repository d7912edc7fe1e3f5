/* project_many.cu - PROJECT for five rows and more: the sums of project.cuh, bit for bit, on tensor
 * cores.
 *
 * A warp has a task (tile, K slice) as there, and a ring of units. But where lanes share a row's
 * columns there, here every lane has all of them, of two rows of weights: an mma multiplies 16 rows
 * of activations (A) with one span (32 columns, 16 of Q8_0) of 8 rows of weights (B), and adds
 * nothing else. What a lane sums there as its spans is here an accumulator, one of 16 side by side,
 * and the sum over lanes is one of accumulators. Lane (g, j) = (lane / 4, lane % 4) brings row g of
 * B, and its results are of row g of the activations and rows 2 j and 2 j + 1 of B.
 *
 * Row g of B in acc[q], q = 8 h + p, as row of the tile and lane of its group:
 *   tiles of 8 rows    row g, lane q
 *   tiles of 16 rows   row 8 h + g, lane p
 *   tiles of 4 rows    row g % 4, lane 16 h + g / 4 * 8 + p (Q8_0: g / 4 * 16 + q)
 *
 * G = 2: rows g + 8 of A are further rows of activations. Tiles of 4 rows then take two mmas, for
 * the lanes of both halves of B, of which each result is of use in one. G = 1: rows g + 8 of A are
 * the same rows 8 spans of 32 columns on, so that what is read at once are the registers of an mma;
 * of its results either half is of use.
 * Bytes: all weights once for 8 G rows, and those rows once for every block. */
#include "backend/cuda/project.cuh"
#include "backend/cuda/project_many.h"

/* ---- the ring ---------------------------------------------------------------------------------
 */

enum { MANY_BATCH = 4 }; /* accumulators at once */

struct many_loader {
    const uint8_t *at; /* this lane's */
    uint32_t left;     /* units of the task */
    uint32_t task;     /* the next one */
    uint32_t bytes;    /* of a unit */
    uint32_t to;       /* where in a slot a lane's first piece goes */
    uint32_t more_to;  /* and the first of those behind the nibbles */
    uint32_t more_by;  /* the second of those is there ^ this */
    bool is_over;
};

/* Lanes of a unit from rows 0..3 of B to rows 4..7. */
static __device__ __forceinline__ constexpr uint32_t many_group(uint32_t rows, bool is_q8) {
    return rows == 8 || (rows == 4 && is_q8) ? 16 : 8;
}

/* Pieces of the rows that are read at once, row g of B by lanes g, must lie in different banks: so
 * a piece of row g goes to its place ^ g, in the groups of 8. */
static __device__ __forceinline__ void aim(const struct project_segment &s, struct many_loader &l,
                                           uint32_t lane) {
    uint32_t upper = lane / many_group(1u << s.row_shift, s.type == IS_Q8_0) % 2;
    bool has_pairs = s.type == IS_Q6_K;
    l.to = (lane ^ upper * 4) * 16;
    l.more_to = TILE_MORE + (has_pairs ? (lane ^ upper * 2) * 16 : lane * 16);
    l.more_by = has_pairs ? 16 : 0;
}

static __device__ __forceinline__ void load_many(const struct project_params &p,
                                                 struct many_loader &l, uint32_t slot) {
    struct task t;
    uint32_t lane = threadIdx.x % 32;
    if (l.left == 0 && !l.is_over) {
        l.is_over = !find_task(p, l.task, t);
        if (!l.is_over) {
            const struct project_segment &s = p.segments[t.segment];
            l.left = task_units(s, t.slice);
            l.bytes = s.unit_bytes;
            l.at = s.data + ((uint64_t)t.tile * s.units + task_first(s, t.slice)) * l.bytes +
                   lane * 16;
            l.task += p.ring_warps;
            aim(s, l, lane);
        }
    }
    if (l.left) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            copy16(slot + i * 512 + (l.to ^ i * 16), l.at + i * 512);
        if (lane * 16 + TILE_MORE < l.bytes)
            copy16(slot + l.more_to, l.at + TILE_MORE);
        if (lane * 16 + TILE_MORE + 512 < l.bytes)
            copy16(slot + 512 + (l.more_to ^ l.more_by), l.at + TILE_MORE + 512);
        if (lane * 16 + TILE_MORE + 1024 < l.bytes)
            copy16(slot + TILE_MORE + 1024 + lane * 16, l.at + TILE_MORE + 1024);
        l.at += l.bytes;
        l.left--;
    }
    copy_commit();
}

/* ---- products ---------------------------------------------------------------------------------
 */

/* Sums begin with 1.5 * 2^23, as the bits of a float: then they are floats, too large by that. */
enum : uint32_t { MAGIC = 0x4b400000u };

static __device__ __forceinline__ float number(uint32_t sum) {
    return __fadd_rn(__uint_as_float(sum), -12582912.0f);
}

static __device__ __forceinline__ void mma32(uint32_t (&c)[4], uint4 a, uint32_t lo, uint32_t hi) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(lo), "r"(hi), "r"(MAGIC));
}

static __device__ __forceinline__ void mma16(uint32_t (&c)[4], uint32_t a, uint32_t b, uint32_t w) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %7, %7, %7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a), "r"(b), "r"(w), "r"(MAGIC));
}

/* Where a lane finds its part of a unit: T rows of a tile. All in bytes; (h, p) is an accumulator.
 */
template <int G, int T, bool IS_Q8> struct many_view {
    static constexpr uint32_t GROUP = many_group(T, IS_Q8), HALF = 24 - GROUP, LANES = 128 / T;
    uint32_t words; /* of its row of B */
    uint32_t pairs; /* Q6_K: its upper pairs */
    uint32_t bits;  /* Q5_K: its upper bits */
    uint32_t lane;  /* of the unit, for the scales of its results */
    uint32_t rows;  /* of that lane: 0 or 2, and the next */
    uint32_t quads; /* of the activations */
    uint32_t scales[G];
    bool is_far; /* the second half of the results is of use */

    /* Activations of an accumulator, from `quads` on; and their scales. */
    static __device__ constexpr uint32_t quad_at(uint32_t h, uint32_t p) {
        uint32_t span = T == 16 ? p : T == 8 ? 8 * h + p : (IS_Q8 ? 8 : G == 1 ? 8 : 16) * h + p;
        return IS_Q8 ? span / 2 * 64 : G == 1 && T == 8 ? p * 64 : span * 64;
    }
    static __device__ constexpr uint32_t scale_at(uint32_t h, uint32_t p) {
        uint32_t span = T == 16 ? p : T == 8 || IS_Q8 ? 8 * h + p : 16 * h + p;
        return IS_Q8 ? span / 2 * 8 : span * 8;
    }
};

/* What is the lane's of all units. */
template <int G> struct many_acts { uint32_t quads, scales[G]; /* in shared memory */ };

template <int G, int T, bool IS_Q8>
static __device__ __forceinline__ struct many_view<G, T, IS_Q8>
view_of(const struct many_acts<G> &a, uint32_t slot, uint32_t u) {
    struct many_view<G, T, IS_Q8> v;
    uint32_t lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
    uint32_t first = g / 4 * v.GROUP, spans = IS_Q8 ? v.LANES / 2 : v.LANES; /* of 32 columns */
    v.words = slot + g % 4 * 512 + (first + g) * 16 + j * 4;
    v.pairs = slot + TILE_MORE + g % 4 / 2 * 512 + (first + g / 2) * 16 + g % 2 * 8;
    v.bits = slot + TILE_MORE + first * 16 + g % 4 * 4;
    v.lane = j / 2 * v.GROUP;
    v.rows = j % 2 * 2;
    uint32_t c = u * spans;
    v.quads = a.quads + (G > 1 ? c * 64 : c / 16 * 512 + c % 8 * 64);
    v.is_far = T == 4 ? j / 2 : c / 8 % 2;
#pragma unroll
    for (int i = 0; i < G; i++)
        v.scales[i] = a.scales[i] + c * 8 + (T == 4 ? j / 2 * 64 : 0);
    return v;
}

/* Activations as A has them: [1] is there only for tiles of 4 rows and G = 2. */
template <int G, int T, bool IS_Q8>
static __device__ __forceinline__ void load_quads(const uint8_t *base,
                                                  const struct many_view<G, T, IS_Q8> &v,
                                                  uint32_t h, uint32_t p, uint4 (&x)[2]) {
    x[0] = *(const uint4 *)(base + v.quads + v.quad_at(h, p));
    if (G > 1 && T == 4)
        x[1] = *(const uint4 *)(base + v.quads + v.quad_at(h, p) + 512);
}

/* The results that are of use, one of the mma with each quad: sum[2 i + r] is of row g + 8 i of the
 * activations and row 2 j + r of B. */
template <int G, int T, bool IS_Q8>
static __device__ __forceinline__ void take(const struct many_view<G, T, IS_Q8> &v, uint32_t h,
                                            const uint32_t (&c)[4], const uint32_t (&d)[4],
                                            uint32_t (&sum)[2 * G]) {
    if (G > 1) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i % (2 * G)] = T == 4 && v.is_far ? d[i] : c[i];
    } else {
        bool is_far = T == 8 && !IS_Q8 ? h : v.is_far;
        sum[0] = is_far ? c[2] : c[0];
        sum[1] = is_far ? c[3] : c[1];
    }
}

/* The scales of four rows of a lane of the unit, behind each other; each 8 lanes set off, so that
 * those that are read together lie in different banks. */
static __device__ __forceinline__ uint32_t scales_place(uint32_t lane) {
    return lane * 32 + lane / 8 * 32;
}

static __device__ __forceinline__ void put_scales(uint8_t *scales, uint32_t lane, float4 a,
                                                  float4 b) {
    float4 *to = (float4 *)(scales + scales_place(lane));
    to[0] = a;
    to[1] = b;
    __syncwarp();
}

/* ---- units against activations: the operations of eat_* ---------------------------------------
 */

template <int G, int T, bool IS_5>
static __device__ __forceinline__ void many_q4(uint8_t *base, uint32_t slot, uint8_t *scales,
                                               const struct many_acts<G> &a, uint32_t u,
                                               float (&acc)[32 * G]) {
    uint32_t lane = threadIdx.x % 32;
    struct many_view<G, T, false> v = view_of<G, T, false>(a, slot, u);
    struct scales s = unit_scales(base + slot + (IS_5 ? TILE_Q5_SCALES : TILE_Q4_SCALES), lane);
    put_scales(scales, lane, make_float4(s.scale[0], s.min[0], s.scale[1], s.min[1]),
               make_float4(s.scale[2], s.min[2], s.scale[3], s.min[3]));
    const uint8_t *from = scales + scales_place(v.lane) + v.rows * 8;
    /* A batch's products come first, then its sums: so they wait for each other less. */
#pragma unroll
    for (uint32_t first = 0; first < 16; first += MANY_BATCH) {
        uint32_t sum[MANY_BATCH][2 * G];
#pragma unroll
        for (uint32_t k = 0; k < MANY_BATCH; k++) {
            uint32_t h = (first + k) % 2, p = (first + k) / 2, c[4], d[4];
            uint32_t w = *(const uint32_t *)(base + (v.words ^ p * 16) + h * v.HALF * 16);
            uint32_t lo = w & 0x0f0f0f0fu, hi = w >> 4 & 0x0f0f0f0fu;
            if (IS_5) {
                uint32_t b = *(const uint32_t *)(base + v.bits + (h * v.HALF + p) * 16) >> lane % 4;
                lo |= b << 4 & 0x10101010u;
                hi |= b & 0x10101010u;
            }
            uint4 x[2];
            load_quads(base, v, h, p, x);
            mma32(c, x[0], lo, hi);
            if (G > 1 && T == 4)
                mma32(d, x[1], lo, hi);
            take(v, h, c, d, sum[k]);
        }
#pragma unroll
        for (uint32_t k = 0; k < MANY_BATCH; k++) {
            uint32_t h = (first + k) % 2, p = (first + k) / 2;
            float4 f = *(const float4 *)(from + scales_place(h * v.HALF) + p * 32);
            float *to = acc + (h * 8 + p) * 2 * G;
#pragma unroll
            for (int i = 0; i < G; i++) {
                float2 as = *(const float2 *)(base + v.scales[i] + v.scale_at(h, p));
                float t = __fmaf_rn(__fmul_rn(f.x, as.x), number(sum[k][2 * i]), to[2 * i]);
                float w = __fmaf_rn(__fmul_rn(f.z, as.x), number(sum[k][2 * i + 1]), to[2 * i + 1]);
                to[2 * i] = __fmaf_rn(f.y, as.y, t);
                to[2 * i + 1] = __fmaf_rn(f.w, as.y, w);
            }
        }
    }
}

/* As eat_q6, numbers are four times what they should be; here the scales are a quarter. What is
 * integers there is floats here: all of it is whole numbers under 2^24, so it is exact. */
static __device__ __forceinline__ float4 quarters(uint32_t s) {
    return make_float4((float)(int8_t)(s & 255) * 0.25f, (float)(int8_t)(s >> 8 & 255) * 0.25f,
                       (float)(int8_t)(s >> 16 & 255) * 0.25f, (float)(int8_t)(s >> 24) * 0.25f);
}

template <int G, int T>
static __device__ __forceinline__ void many_q6(uint8_t *base, uint32_t slot, uint8_t *scales,
                                               const struct many_acts<G> &a, uint32_t u,
                                               float (&acc)[32 * G]) {
    uint32_t lane = threadIdx.x % 32, shift = 6 - 2 * (lane % 4);
    struct many_view<G, T, false> v = view_of<G, T, false>(a, slot, u);
    uint2 sc = ((const uint2 *)(base + slot + TILE_Q6_SCALES))[lane];
    put_scales(scales, lane, quarters(sc.x), quarters(sc.y));
    const uint8_t *from = scales + scales_place(v.lane) + v.rows * 8;
    float2 dr[2];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++)
        dr[h] =
            halves(*(const uint32_t *)(base + slot + TILE_Q6_D + v.lane + h * v.HALF + v.rows * 2));
#pragma unroll
    for (uint32_t first = 0; first < 16; first += MANY_BATCH) {
        uint32_t one[MANY_BATCH][2 * G], two[MANY_BATCH][2 * G];
#pragma unroll
        for (uint32_t k = 0; k < MANY_BATCH; k++) {
            uint32_t h = (first + k) % 2, p = (first + k) / 2, c[4], d[4];
            uint32_t w = *(const uint32_t *)(base + (v.words ^ p * 16) + h * v.HALF * 16);
            uint2 b = *(const uint2 *)(base + (v.pairs ^ p * 16) + h * v.HALF * 16);
            uint32_t lo = (w << 2 & 0x3c3c3c3cu) | (b.x << shift & 0xc0c0c0c0u);
            uint32_t hi = (w >> 2 & 0x3c3c3c3cu) | (b.y << shift & 0xc0c0c0c0u);
            uint4 x[2];
            load_quads(base, v, h, p, x);
            mma16(c, x[0].x, x[0].y, lo);
            if (G > 1 && T == 4)
                mma16(d, x[1].x, x[1].y, lo);
            take(v, h, c, d, one[k]);
            mma16(c, x[0].z, x[0].w, hi);
            if (G > 1 && T == 4)
                mma16(d, x[1].z, x[1].w, hi);
            take(v, h, c, d, two[k]);
        }
#pragma unroll
        for (uint32_t k = 0; k < MANY_BATCH; k++) {
            uint32_t h = (first + k) % 2, p = (first + k) / 2;
            float4 f = *(const float4 *)(from + scales_place(h * v.HALF) + p * 32);
            float *to = acc + (h * 8 + p) * 2 * G;
#pragma unroll
            for (int i = 0; i < G; i++) {
                float as = *(const float *)(base + v.scales[i] + v.scale_at(h, p));
                float t = __fmul_rn(number(one[k][2 * i]), f.x);
                float w = __fmul_rn(number(one[k][2 * i + 1]), f.z);
                t = __fmaf_rn(number(two[k][2 * i]), f.y, t);
                w = __fmaf_rn(number(two[k][2 * i + 1]), f.w, w);
                to[2 * i] = __fmaf_rn(__fmul_rn(dr[h].x, as), t, to[2 * i]);
                to[2 * i + 1] = __fmaf_rn(__fmul_rn(dr[h].y, as), w, to[2 * i + 1]);
            }
        }
    }
}

/* Two spans at once: they share 32 columns of the activations. */
template <int G, int T>
static __device__ __forceinline__ void many_q8(uint8_t *base, uint32_t slot,
                                               const struct many_acts<G> &a, uint32_t u,
                                               float (&acc)[32 * G]) {
    struct many_view<G, T, true> v = view_of<G, T, true>(a, slot, u);
    uint32_t from = slot + TILE_MORE + v.lane * 4 + v.rows * 2;
#pragma unroll
    for (uint32_t q = 0; q < 16; q += 2) {
        uint32_t h = q / 8, p = q % 8, sum[2][2 * G];
        float2 dr = halves(*(const uint32_t *)(base + from + (h * v.HALF + p) * 4));
        uint4 x[2];
        load_quads(base, v, h, p, x);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t w = *(const uint32_t *)(base + (v.words ^ (p + k) * 16) + h * v.HALF * 16);
            uint32_t c[4], d[4];
            mma16(c, k ? x[0].z : x[0].x, k ? x[0].w : x[0].y, w);
            if (G > 1 && T == 4)
                mma16(d, k ? x[1].z : x[1].x, k ? x[1].w : x[1].y, w);
            take(v, h, c, d, sum[k]);
        }
#pragma unroll
        for (int i = 0; i < G; i++) {
            float as = *(const float *)(base + v.scales[i] + v.scale_at(h, p));
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                float *to = acc + (q + k) * 2 * G + 2 * i;
                to[0] = __fmaf_rn(__fmul_rn(dr.x, as), number(sum[k][2 * i]), to[0]);
                to[1] = __fmaf_rn(__fmul_rn(dr.y, as), number(sum[k][2 * i + 1]), to[1]);
            }
        }
    }
}

template <int SET, int G, int T>
static __device__ __forceinline__ void many_unit(uint32_t type, uint8_t *base, uint32_t slot,
                                                 uint8_t *scales, const struct many_acts<G> &a,
                                                 uint32_t u, float (&acc)[32 * G]) {
    if (SET == IS_Q4_K || (SET & IS_Q4_K && type == IS_Q4_K))
        many_q4<G, T, false>(base, slot, scales, a, u, acc);
    else if (SET == IS_Q6_K || (SET & IS_Q6_K && type == IS_Q6_K))
        many_q6<G, T>(base, slot, scales, a, u, acc);
    else if (SET == IS_Q8_0 || (SET & IS_Q8_0 && type == IS_Q8_0))
        many_q8<G, T>(base, slot, a, u, acc);
    else if (SET & IS_Q5_K)
        many_q4<G, T, true>(base, slot, scales, a, u, acc);
}

/* ---- sums and results -------------------------------------------------------------------------
 */

/* Row `row` of a task's tile, row r of the activations of this block. */
struct many_sink {
    float *parts; /* of the task */
    uint32_t n;   /* of the tile's first row */
    uint32_t first_row, n_rows;
    const float *factors;
};

static __device__ __forceinline__ void put_sum(const struct many_params &m,
                                               const struct project_segment &s,
                                               const struct many_sink &to, uint32_t r, uint32_t row,
                                               float v) {
    if (!m.p.is_direct)
        to.parts[r * PROJECT_TASK_ROWS + row] = v;
    else if (to.n + row < s.n && to.first_row + r < to.n_rows)
        put_result(m.p, s, to.n + row, to.first_row + r, __fmul_rn(v, to.factors[r]));
}

template <int G>
static __device__ __forceinline__ void put_sums(const struct many_params &m,
                                                const struct project_segment &s,
                                                const struct many_sink &to, float (&acc)[32 * G]) {
    uint32_t lane = threadIdx.x % 32, row = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * G; i++) {
#pragma unroll
        for (int step = 1; step < 8; step *= 2)
#pragma unroll
            for (int q = 0; q < 16; q += 2 * step)
                acc[q * 2 * G + i] = __fadd_rn(acc[q * 2 * G + i], acc[(q + step) * 2 * G + i]);
        uint32_t r = lane / 4 + i / 2 * 8, at = row + i % 2;
        float one = acc[i], two = acc[16 * G + i];
        if (s.row_shift == 4) {
            put_sum(m, s, to, r, at, one);
            put_sum(m, s, to, r, at + 8, two);
            continue;
        }
        bool is_low = s.row_shift == 2, is_q8 = s.type == IS_Q8_0;
        if (is_low && !is_q8) {
            one = __fadd_rn(one, __shfl_xor_sync(~0u, one, 2));
            two = __fadd_rn(two, __shfl_xor_sync(~0u, two, 2));
        }
        one = __fadd_rn(one, two);
        if (is_low && is_q8)
            one = __fadd_rn(one, __shfl_xor_sync(~0u, one, 2));
        if (!is_low || row < 4)
            put_sum(m, s, to, r, at, one);
    }
}

/* All tasks of a warp. */
template <int SET, int G>
static __device__ __forceinline__ void
many_tasks(const struct many_params &m, struct many_loader &l, uint32_t warp, struct task t,
           uint32_t first_row, uint32_t n_rows) {
    extern __shared__ uint4 shared[];
    const struct project_params &p = m.p;
    uint8_t *base = (uint8_t *)shared, *scales = base + m.scales_at + warp * MANY_SCALES;
    uint32_t lane = threadIdx.x % 32, slot = 0, i = warp;
    uint32_t ring = warp * p.slots * p.slot_bytes,
             from = (uint32_t)__cvta_generic_to_shared(shared);
    uint32_t row = lane / 4 & (m.rows - 1);
    struct many_acts<G> a;
    a.quads = p.image_at + row * many_row_bytes(p.in.k, G) + lane % 4 * 16;
#pragma unroll
    for (int e = 0; e < G; e++)
        a.scales[e] = m.pairs_at + (row + 8 * e) * many_pair_bytes(p.in.k);
    do {
        const struct project_segment &s = p.segments[t.segment];
        uint32_t u = task_first(s, t.slice), last = u + task_units(s, t.slice), type = s.type;
        float acc[32 * G] = {};
#pragma unroll 1
        for (; u < last; u++) {
            uint32_t at = ring + slot * p.slot_bytes;
            copy_wait_slots(p.slots);
            __syncwarp();
            if (s.row_shift == 2)
                many_unit<SET, G, 4>(type, base, at, scales, a, u, acc);
            else if (s.row_shift == 3)
                many_unit<SET, G, 8>(type, base, at, scales, a, u, acc);
            else
                many_unit<SET, G, 16>(type, base, at, scales, a, u, acc);
            __syncwarp();
            load_many(p, l, from + at);
            slot = slot + 1 == p.slots ? 0 : slot + 1;
        }
        struct many_sink to = {(float *)(base + p.parts_at) + i * 8 * G * PROJECT_TASK_ROWS,
                               t.tile << s.row_shift, first_row, n_rows,
                               (const float *)(base + m.factors_at)};
        put_sums<G>(m, s, to, acc);
        i += p.ring_warps;
    } while (!(l.is_over && i == l.task) && find_task(p, i, t));
}

/* ---- plain segments ---------------------------------------------------------------------------
 */

/* A slice of a tile for one row: sums as of eat_plain. */
static __device__ __forceinline__ float plain_task(const struct project_params &p,
                                                   const struct project_segment &s, uint32_t tile,
                                                   uint32_t slice, uint32_t row) {
    uint32_t lane = threadIdx.x % 32, lanes = 1u << s.lane_shift, place = lane & (lanes - 1);
    const uint8_t *at = s.data + (uint64_t)tile * s.units * s.unit_bytes + lane * 16;
    uint32_t u = task_first(s, slice), last = u + task_units(s, slice);
    float acc[4] = {};
#pragma unroll 2
    for (; u < last; u++) {
        struct plain_acts<1> a;
        load_plain<1>(p, row, u * lanes + place, a);
        float4 x = plain_act(p, a.x[0], a.norm);
#pragma unroll
        for (uint32_t r = 0; r < 4; r++) {
            uint4 w = load_weights(at + (uint64_t)u * s.unit_bytes + r * 512);
            acc[r] = dot_floats(make_float4(__uint_as_float(w.x), __uint_as_float(w.y),
                                            __uint_as_float(w.z), __uint_as_float(w.w)),
                                x, acc[r]);
        }
    }
    return sum_lanes(acc, lanes, lane);
}

/* All blocks share the plain segments: each has a tile for a row, or some; its warps have the
 * slices. */
template <int G>
static __device__ __forceinline__ void plain_tiles(const struct many_params &m, uint32_t warp,
                                                   uint32_t first_row, uint32_t n_rows) {
    extern __shared__ uint4 shared[];
    const struct project_params &p = m.p;
    float *sums = (float *)((uint8_t *)shared + p.parts_at);
    const float *factors = (const float *)((uint8_t *)shared + m.factors_at);
    uint32_t rows = min(8 * G, n_rows - first_row), lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t i = blockIdx.x; i < m.plain_tiles * rows; i += gridDim.x) {
        uint32_t tile = i / rows, r = i - tile * rows, k = 0;
        while (tile >= m.plain[k].n_tiles)
            tile -= m.plain[k++].n_tiles;
        const struct project_segment &s = m.plain[k];
#pragma unroll 1
        for (uint32_t slice = warp; slice < s.slices; slice += blockDim.x / 32) {
            float v = plain_task(p, s, tile, slice, first_row + r);
            uint32_t place = lane & ((1u << s.lane_shift) - 1);
            uint32_t row = (lane >> s.lane_shift) * 4 + place % 2 * 2 + place / 2 % 2;
            if (place < 4)
                sums[slice * PROJECT_TASK_ROWS + row] = v;
        }
        __syncthreads();
        uint32_t n = (tile << s.row_shift) + threadIdx.x;
        if (threadIdx.x < 1u << s.row_shift && n < s.n) {
            float v =
                p.is_direct ? sums[threadIdx.x] : add_slices<1>(sums, threadIdx.x, 0, s.slices);
            put_result(p, s, n, first_row + r, __fmul_rn(v, factors[r]));
        }
        __syncthreads();
    }
}

/* ---- the whole --------------------------------------------------------------------------------
 */

/* Rows into shared memory, so that what is read at once is A of an mma: word j of two pieces of 32
 * columns, of the first halves and of the second. */
template <int G>
static __device__ __forceinline__ void fetch_rows(const struct many_params &m, uint32_t first_row,
                                                  uint8_t *base) {
    const struct project_params &p = m.p;
    uint32_t spans = p.in.k / 32, plane = project_plane(p.in.k);
    uint32_t n = min(m.rows, p.row_limit - first_row), quads = many_quads(p.in.k, G);
    const uint8_t *images = p.images + (uint64_t)first_row * p.image_bytes;
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < (G > 1 ? 8 : m.rows) * quads; i += blockDim.x) {
        uint32_t r = i / quads, e = i - r * quads;
        uint32_t c = G > 1 ? e : e / 8 * 16 + e % 8, d = G > 1 ? e : min(c + 8, spans - 1);
        const uint8_t *one = images + (uint64_t)min(r, n - 1) * p.image_bytes,
                      *two = G > 1 ? images + (uint64_t)min(r + 8, n - 1) * p.image_bytes : one;
        uint4 x = __ldcg((const uint4 *)one + c), y = __ldcg((const uint4 *)two + d);
        uint4 z = __ldcg((const uint4 *)one + plane + c),
              w = __ldcg((const uint4 *)two + plane + d);
        float2 s = __ldcg((const float2 *)(one + plane * 32) + c),
               t = __ldcg((const float2 *)(two + plane * 32) + d);
        uint4 *to = (uint4 *)(base + p.image_at + r * many_row_bytes(p.in.k, G)) + 4 * e;
        to[0] = make_uint4(x.x, y.x, z.x, w.x);
        to[1] = make_uint4(x.y, y.y, z.y, w.y);
        to[2] = make_uint4(x.z, y.z, z.z, w.z);
        to[3] = make_uint4(x.w, y.w, z.w, w.w);
        uint8_t *scales = base + m.pairs_at + r * many_pair_bytes(p.in.k);
        ((float2 *)scales)[c] = s;
        ((float2 *)(scales + (G > 1 ? 8 * many_pair_bytes(p.in.k) : 0)))[d] = t;
    }
    if (threadIdx.x < n)
        ((float *)(base + m.factors_at))[threadIdx.x] =
            __ldcg((const float *)(images + (threadIdx.x + 1ull) * p.image_bytes - 16));
}

/* Results `at` of rows r, r + step, ...; four at once, since what is added to comes from afar. */
template <int R>
static __device__ __forceinline__ void
finish_rows(const struct many_params &m, const struct place &at, uint32_t r, uint32_t step,
            uint32_t first_row, uint32_t n_rows, const uint8_t *base) {
    const struct project_params &p = m.p;
    const float *factors = (const float *)(base + m.factors_at);
    const float *parts = (const float *)(base + p.parts_at);
    float *out = p.out + (uint64_t)first_row * p.out_stride + at.column;
#pragma unroll 1
    for (uint32_t n = min(n_rows - first_row, R); r < n; r += 4 * step) {
        float was[4] = {};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (p.finish == FINISH_ADD && r + i * step < n)
                was[i] = __ldcg(out + (uint64_t)(r + i * step) * p.out_stride);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (r + i * step < n)
                out[(uint64_t)(r + i * step) * p.out_stride] =
                    finish_place<R>(p, at, parts, r + i * step, factors[r + i * step], was[i]);
    }
}

template <int SET, int G>
static __device__ __forceinline__ void project_many(const struct many_params &m) {
    extern __shared__ uint4 shared[];
    pdl_launch();
    const struct project_params &p = m.p;
    uint8_t *base = (uint8_t *)shared;
    uint32_t warp = uniform(threadIdx.x / 32), first_row = blockIdx.y * 8 * G;
    uint32_t from = (uint32_t)__cvta_generic_to_shared(shared) + warp * p.slots * p.slot_bytes;
    struct many_loader l = {NULL, 0, warp, 0, 0, 0, 0, false};
    struct task t;
    bool has_task = warp < p.ring_warps && find_task(p, warp, t);
    if (has_task)
#pragma unroll 1
        for (uint32_t i = 0; i < p.slots; i++)
            load_many(p, l, from + i * p.slot_bytes);
    /* Threads that have the same result share its rows. */
    uint32_t wide = min(max(p.most_places, 1), blockDim.x), teams = blockDim.x / wide;
    uint32_t team = threadIdx.x / wide, e = threadIdx.x - team * wide;
    struct place at = {NO_PLACE, 0, 0};
    if (e < p.most_places && team < teams)
        at = find_place(p, e);
    pdl_wait(p.io);
    uint32_t n_rows = prepare_count(p.io, p.in);
    if (blockIdx.y && first_row >= n_rows) {
        copy_wait<0>();
        return;
    }
    fetch_rows<G>(m, first_row, base);
    __syncthreads();
    if (m.plain_tiles && first_row < n_rows)
        plain_tiles<G>(m, warp, first_row, n_rows);
    if (has_task)
        many_tasks<SET, G>(m, l, warp, t, first_row, n_rows);
    if (p.is_direct || first_row >= n_rows)
        return;
    __syncthreads();
    while (team < teams && e < p.most_places) {
        if (at.column != NO_PLACE)
            finish_rows<8 * G>(m, at, team, teams, first_row, n_rows, base);
        e += wide;
        if (e < p.most_places)
            at = find_place(p, e);
    }
}

#define MANY_KERNEL(G, REGISTERS, NAME, SET)                                                       \
    extern "C" __global__ void __maxnreg__(REGISTERS)                                              \
        project_many_##G##_##NAME(const __grid_constant__ struct many_params m) {                  \
        project_many<SET, G>(m);                                                                   \
    }

#define MANY_KERNELS(...)                                                                          \
    MANY_KERNEL(__VA_ARGS__, q4, IS_Q4_K)                                                          \
    MANY_KERNEL(__VA_ARGS__, q6, IS_Q6_K)                                                          \
    MANY_KERNEL(__VA_ARGS__, q4_q6, IS_Q4_K | IS_Q6_K)                                             \
    MANY_KERNEL(__VA_ARGS__, q8, IS_Q8_0)                                                          \
    MANY_KERNEL(__VA_ARGS__, all, MANY_SETS)

MANY_KERNELS(1, 128)
MANY_KERNELS(2, 168)
