/* attend.cuh - what the kernels of ATTEND share: heads, splits, folding, tensor cores.
 *
 * A sequence's positions come in splits, a group of them (4 or 8) as long as they need not be
 * longer than ATTEND_LENGTH; how long depends on its own length alone. A unit is up to 8 queries
 * that share keys and values. A split gives each query a maximum, a sum and a mixed value, which
 * are folded in order: the splits of a group, then the groups.
 *
 * Maxima are rounded up to whole powers of two, so that folding only ever multiplies by powers of
 * two: exact, and no exponentials in that chain.
 *
 * Heads of 64, 128 and 256 over halves use the tensor cores. Queries and weights, which are f32, go
 * in as two halves each, high and low: 22 bits of them count. For scores A is 16 positions x 16
 * values of K and B 8 queries, and every 64 columns are a sum of their own; for mixing A is 8
 * queries' high and 8 queries' low weights x 16 positions and B is V x 8 columns. */
#ifndef BACKEND_CUDA_KERNELS_ATTEND_CUH
#define BACKEND_CUDA_KERNELS_ATTEND_CUH

#include <float.h>

#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/attend.h"

enum { THREADS = ATTEND_WARPS * 32, PAGE = IO_PAGE_POSITIONS };

static constexpr float LOG2_E = 1.44269504088896f; /* scores are to base 2 */

/* Where a position's page is: relaxed, since it may be a guess before the wait. */
static __device__ __forceinline__ uint32_t load_page(const struct attend_params &p, uint32_t slot,
                                                     uint32_t position) {
    return ld_relaxed(p.pages + (uint64_t)slot * p.pages_per_slot + position / PAGE);
}

/* ---- heads ---------------------------------------------------------------------------------- */

/* A head as a warp has it: lane l has values 2 l and 2 l + 1, and every 64th behind them; and the
 * angles that it needs. Loads that nothing waits for yet. W is the width, or 0: any even one up to
 * 64 M. */
template <int M, int W> struct raw_head {
    static constexpr int TURNS = (M + 1) / 2;
    float2 x[M], norm[M];
    float4 turn[TURNS];

    static __device__ __forceinline__ bool has(const struct attend_params &p, int m) {
        return W ? true : threadIdx.x % 32 * 2 + 64 * m < p.head_width;
    }

    __device__ __forceinline__ void load_norm(const struct attend_params &p, const float *from) {
        uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < M; m++)
            norm[m] =
                from && has(p, m) ? *(const float2 *)(from + 2 * lane + 64 * m) : make_float2(1, 1);
    }

    /* TURN_FAR is only for widths that the compiler knows. */
    static __device__ __forceinline__ uint32_t kind(const struct attend_params &p) {
        return p.turn == TURN_FAR && (!W || M < 2) ? TURN_ANY : p.turn;
    }

    __device__ __forceinline__ void load(const struct attend_params &p, const float *from,
                                         uint32_t row) {
        uint32_t lane = threadIdx.x % 32;
        const float *angles = p.angles + (uint64_t)row * p.rotary;
#pragma unroll
        for (int m = 0; m < M; m++)
            x[m] = has(p, m) ? ld_cg_f32x2(from + 2 * lane + 64 * m) : make_float2(0, 0);
        if (kind(p) == TURN_NEAR)
            turn[0] = ld_cg_f32x4(angles + 4 * (lane % 16));
        if (kind(p) == TURN_FAR)
#pragma unroll
            for (int m = 0; m < TURNS; m++)
                turn[m] = ld_cg_f32x4(angles + 4 * lane + 128 * m);
        if (kind(p) == TURN_NEIGHBOURS)
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint32_t i = min(lane + 32 * m, p.rotary / 2 - 1);
                *((float2 *)turn + m) = ld_cg_f32x2(angles + 2 * i);
            }
    }

    /* x by (cos, sin), its partner being at the other place. */
    static __device__ __forceinline__ float turned(float x, float other, float c, float s) {
        return fmaf(x, c, __fmul_rn(other, s));
    }

    __device__ __forceinline__ void turn_near(void) {
        float up = __shfl_xor_sync(0xffffffffu, x[0].x, 16);
        float side = __shfl_xor_sync(0xffffffffu, x[0].y, 16);
        float sign = threadIdx.x % 32 < 16 ? -1.0f : 1.0f;
        x[0].x = turned(x[0].x, up, turn[0].x, sign * turn[0].y);
        x[0].y = turned(x[0].y, side, turn[0].z, sign * turn[0].w);
    }

    __device__ __forceinline__ void turn_far(void) {
        constexpr int H = M / 2;
#pragma unroll
        for (int m = 0; m < H; m++) {
            float2 a = x[m], b = x[m + H];
            x[m].x = turned(a.x, b.x, turn[m].x, -turn[m].y);
            x[m].y = turned(a.y, b.y, turn[m].z, -turn[m].w);
            x[m + H].x = turned(b.x, a.x, turn[m].x, turn[m].y);
            x[m + H].y = turned(b.y, a.y, turn[m].z, turn[m].w);
        }
    }

    __device__ __forceinline__ void turn_neighbours(const struct attend_params &p) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            float2 a = x[m], by = *((float2 *)turn + m);
            if (threadIdx.x % 32 * 2 + 64 * m < p.rotary) {
                x[m].x = turned(a.x, a.y, by.x, -by.y);
                x[m].y = turned(a.y, a.x, by.x, by.y);
            }
        }
    }

    /* The one way for all: partners and angles through memory. */
    __device__ __forceinline__ void turn_any(const struct attend_params &p, const float *angles,
                                             float *room) {
        uint32_t lane = threadIdx.x % 32, half = p.rotary / 2;
        keep(p, room);
        __syncwarp();
#pragma unroll 1
        for (uint32_t i = lane; i < half; i += 32) {
            float a = room[i], b = room[i + half];
            float2 by = ld_cg_f32x2(angles + 2 * i);
            room[i] = turned(a, b, by.x, -by.y);
            room[i + half] = turned(b, a, by.x, by.y);
        }
        __syncwarp();
#pragma unroll
        for (int m = 0; m < M; m++)
            if (has(p, m))
                x[m] = *(const float2 *)(room + 2 * lane + 64 * m);
        __syncwarp();
    }

    __device__ __forceinline__ void keep(const struct attend_params &p, float *to) const {
#pragma unroll
        for (int m = 0; m < M; m++)
            if (has(p, m))
                *(float2 *)(to + threadIdx.x % 32 * 2 + 64 * m) = x[m];
    }

    /* Normed (where there is a norm) and turned. `room` is this warp's, for a head. */
    __device__ __forceinline__ void make(const struct attend_params &p, bool has_norm, uint32_t row,
                                         float *room) {
        uint32_t d = W ? W : p.head_width;
        if (has_norm) {
            float sum = 0;
#pragma unroll
            for (int m = 0; m < M; m++)
                sum = fmaf(x[m].y, x[m].y, fmaf(x[m].x, x[m].x, sum));
            float factor = rsqrtf(fmaf(warp_sum(sum), __frcp_rn((float)d), p.eps));
#pragma unroll
            for (int m = 0; m < M; m++) {
                x[m].x = __fmul_rn(__fmul_rn(x[m].x, factor), norm[m].x);
                x[m].y = __fmul_rn(__fmul_rn(x[m].y, factor), norm[m].y);
            }
        }
        if (kind(p) == TURN_NEAR)
            turn_near();
        else if (kind(p) == TURN_FAR)
            turn_far();
        else if (kind(p) == TURN_NEIGHBOURS)
            turn_neighbours(p);
        else if (kind(p) == TURN_ANY)
            turn_any(p, p.angles + (uint64_t)row * p.rotary, room);
    }
};

/* ---- the cache ------------------------------------------------------------------------------ */

/* To the nearest half: f16_from_f32_clamped in one instruction. */
static __device__ __forceinline__ __half half_of(float x) {
    return __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
}

/* Bytes from the start of keys or values to a position of a slot for a KV head. */
static __device__ __forceinline__ uint64_t cache_at(const struct attend_params &p, uint32_t slot,
                                                    uint32_t head, uint32_t position) {
    uint64_t page = (uint64_t)p.pages[(uint64_t)slot * p.pages_per_slot + position / PAGE];
    return ((page * p.kv_heads + head) * PAGE + position % PAGE) * p.row_bytes;
}

/* ---- splits --------------------------------------------------------------------------------- */

/* How a row's positions are dealt out. */
struct extent {
    uint32_t n, length, splits; /* positions; of a split; how many */
    uint32_t fold;              /* splits of a group */
};

/* Splits of 16, or the shortest of which there is no more than a group. */
static __device__ __forceinline__ struct extent extent_of(const struct attend_params &p,
                                                          uint32_t position) {
    if (position < p.short_positions) {
        struct extent e = {position + 1, 16, position / 16 + 1, ATTEND_FOLD};
        return e;
    }
    uint32_t shift = p.short_shift;
    while (shift < p.long_shift && position >> shift >= p.fold)
        shift++;
    struct extent e = {position + 1, 1u << shift, (position >> shift) + 1, p.fold};
    return e;
}

/* ---- folding -------------------------------------------------------------------------------- */

/* 2^(a - b) for whole a <= b. */
static __device__ __forceinline__ float power(float a, float b) {
    int k = (int)(a - b);
    return k < -126 ? 0.0f : __int_as_float((127 + k) << 23);
}

/* What a query has seen: the maximum (a whole number, of scores to base 2) and the sum. */
struct seen {
    float max, sum;
};

/* Before the first split. */
static __device__ __forceinline__ struct seen seen_none(void) {
    struct seen s = {-1e30f, 0};
    return s;
}

/* Factors of the old and the new mixed value. */
struct factors {
    float old, now;
};

static __device__ __forceinline__ struct factors fold(struct seen *all, struct seen part) {
    float max = fmaxf(all->max, part.max);
    struct factors f = {power(all->max, max), power(part.max, max)};
    all->sum = fmaf(all->sum, f.old, __fmul_rn(part.sum, f.now));
    all->max = max;
    return f;
}

static __device__ __forceinline__ float fold_value(float x, float part, struct factors f) {
    return fmaf(x, f.old, __fmul_rn(part, f.now));
}

/* ---- tensor cores --------------------------------------------------------------------------- */

/* Two values as halves, and what that leaves of them as halves. */
struct split_pair {
    uint32_t high, low;
};

static __device__ __forceinline__ struct split_pair split_of(float x, float y) {
    __half2 high = __floats2half2_rn(x, y);
    float2 back = __half22float2(high);
    __half2 low = __floats2half2_rn(__fsub_rn(x, back.x), __fsub_rn(y, back.y));
    struct split_pair s = {*(uint32_t *)&high, *(uint32_t *)&low};
    return s;
}

/* c += 16 positions x 32 columns of the keys by 8 queries. Lane (g, t) has 8 columns from 8 t on of
 * positions g and g + 8; x and y are the queries' fragments. */
static __device__ __forceinline__ void score_step(float (&c)[4][4], uint4 low, uint4 high, uint4 x,
                                                  uint4 y) {
    mma_m16n8k16_f16(c[0], low.x, high.x, low.y, high.y, x.x, x.y);
    mma_m16n8k16_f16(c[1], low.x, high.x, low.y, high.y, x.z, x.w);
    mma_m16n8k16_f16(c[2], low.z, high.z, low.w, high.w, y.x, y.y);
    mma_m16n8k16_f16(c[3], low.z, high.z, low.w, high.w, y.z, y.w);
}

static __device__ __forceinline__ float score_of(const float (&c)[4][4], int k) {
    return (c[0][k] + c[2][k]) + (c[1][k] + c[3][k]);
}

static constexpr float WEIGHT_UP = 1024.0f; /* so that small weights keep their bits as halves */

/* c += 8 queries' weights by 16 positions x 64 columns of the values. Lane (g, t) has 8 columns
 * from 8 g on of positions 4 t to 4 t + 3, and `weights` of those positions for query g. */
static __device__ __forceinline__ void mix_step(float (&c)[8][4], const uint4 (&v)[4],
                                                float4 weights) {
    struct split_pair x = split_of(weights.x * WEIGHT_UP, weights.y * WEIGHT_UP);
    struct split_pair y = split_of(weights.z * WEIGHT_UP, weights.w * WEIGHT_UP);
    const uint32_t *v0 = (const uint32_t *)&v[0], *v1 = (const uint32_t *)&v[1];
    const uint32_t *v2 = (const uint32_t *)&v[2], *v3 = (const uint32_t *)&v[3];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const uint32_t pick = k % 2 ? 0x7632 : 0x5410;
        mma_m16n8k16_f16(c[k], x.high, x.low, y.high, y.low,
                         __byte_perm(v0[k / 2], v1[k / 2], pick),
                         __byte_perm(v2[k / 2], v3[k / 2], pick));
    }
}

/* Query g's 16 values of 64 columns that lane (g, t) has: from 16 t on. */
static __device__ __forceinline__ void store_mixed(const float (&c)[8][4], float4 *to) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float o[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int column = k % 2 * 4 + r;
            o[r] = (c[column][k / 2] + c[column][k / 2 + 2]) * (1 / WEIGHT_UP);
        }
        to[k] = make_float4(o[0], o[1], o[2], o[3]);
    }
}

/* A query into fragments (high 0, high 1, low 0, low 1 of a lane), by one warp; and the factor of
 * its scores. It is multiplied by the power of two that brings its largest value to [256, 512):
 * room for halves above and below. */
template <int D>
static __device__ __forceinline__ void pack_query(const struct attend_params &p,
                                                  const float2 (&x)[D / 64], uint4 (*fragments)[32],
                                                  float *factors, uint32_t query) {
    uint32_t lane = threadIdx.x % 32;
    float most = 0;
#pragma unroll
    for (int b = 0; b < D / 64; b++)
        most = fmaxf(most, fmaxf(fabsf(x[b].x), fabsf(x[b].y)));
    int up = 135 - (int)(__reduce_max_sync(0xffffffffu, __float_as_uint(most)) >> 23);
    up = up > 120 ? 120 : up; /* a tiny query, or none */
    float factor = __int_as_float((127 + up) << 23);
#pragma unroll
    for (uint32_t b = 0; b < D / 64; b++) {
        uint32_t i = 64 * b + 2 * lane;
        struct split_pair pair = split_of(x[b].x * factor, x[b].y * factor);
        uint32_t *to = (uint32_t *)&fragments[i / 32 * 2 + i % 8 / 4][query * 4 + i % 32 / 8];
        to[i % 4 / 2] = pair.high, to[2 + i % 4 / 2] = pair.low;
    }
    if (lane == 0)
        factors[query] = __fmul_rn(p.scale * LOG2_E, __int_as_float((127 - up) << 23));
}

/* A head as halves. */
template <int D>
static __device__ __forceinline__ void keep_halves(const float2 (&x)[D / 64], uint4 *to) {
#pragma unroll
    for (int m = 0; m < D / 64; m++)
        ((__half2 *)to)[threadIdx.x % 32 + 32 * m] =
            __halves2half2(half_of(x[m].x), half_of(x[m].y));
}

#endif
