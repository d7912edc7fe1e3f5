/* attend.cuh - what all ATTEND kernels share: heads in registers, splits of the KV cache, combining
 * of (max, sum), and the MMAs for QK and PV.
 *
 *   out = softmax(scale Q K^T) V    per query head, over all positions up to the row's own
 *
 * Split-KV as in FlashDecoding: a split gives each query of a tile (max, sum) and the unnormalised
 * output O = sum of 2^(s - max) V; these are combined in order, first the splits of a group (4 or
 * 8), then the groups. How positions are split depends on the sequence's length alone, so a row's
 * bits do not depend on the rest of the batch.
 *
 * Scores s are to base 2 (scale times log2 e), and a maximum is rounded up to an integer: combining
 * only ever multiplies by powers of two, which is exact and needs no exponentials.
 *
 * Heads of 64, 128 and 256 over an fp16 cache use the tensor cores, m16n8k16. Q and the softmax
 * weights are fp32 and enter as two fp16 each, high and low: 22 bits of them count.
 *
 *   QK   A: 16 positions x 16 columns of K       B: 16 columns x 8 queries
 *        every 64 columns are a sum of their own
 *   PV   A: 16 rows (high weights of 8 queries, then their low ones) x 16 positions
 *        B: 16 positions x 8 columns of V
 *
 * In fragments g = lane / 4 and t = lane % 4. The order of columns (QK) and positions (PV) within
 * an MMA's k is free: chosen so that a lane loads 16 consecutive bytes of K or V, without ldmatrix.
 */
#ifndef BACKEND_CUDA_KERNELS_ATTEND_CUH
#define BACKEND_CUDA_KERNELS_ATTEND_CUH

#include <float.h>

#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/attend.h"

enum { THREADS = ATTEND_WARPS * 32, PAGE = IO_PAGE_POSITIONS };

static constexpr float LOG2_E = 1.44269504088896f;

/* The page table's entry for a position. Relaxed: it may be read before griddepcontrol.wait, while
 * the step's first kernel still writes it, and is then read again after. */
static __device__ __forceinline__ uint32_t load_page(const struct attend_params &p, uint32_t slot,
                                                     uint32_t position) {
    return ld_relaxed(p.page_table + (uint64_t)slot * p.pages_per_slot + position / PAGE);
}

/* ---- a head in a warp's registers: norm and RoPE --------------------------------------------- */

/* Lane l holds values 2 l and 2 l + 1 and every 64th after them, with the norm's weights and the
 * angles for these. The loads are issued at once and used later. W is the width, or 0: any even one
 * up to 64 M. */
template <int M, int W> struct head_regs {
    static constexpr int ANGLES = (M + 1) / 2;
    float2 x[M], norm[M];
    float4 angle[ANGLES]; /* (cos, sin) twice */

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

    /* ROTATE_IN_LANE needs a width known at compile time. */
    static __device__ __forceinline__ uint32_t rotation(const struct attend_params &p) {
        return p.rotation == ROTATE_IN_LANE && (!W || M < 2) ? ROTATE_MEMORY : p.rotation;
    }

    __device__ __forceinline__ void load(const struct attend_params &p, const float *from,
                                         uint32_t row) {
        uint32_t lane = threadIdx.x % 32;
        const float *angles = p.angles + (uint64_t)row * p.rotary;
#pragma unroll
        for (int m = 0; m < M; m++)
            x[m] = has(p, m) ? ld_cg_f32x2(from + 2 * lane + 64 * m) : make_float2(0, 0);
        if (rotation(p) == ROTATE_SHUFFLE)
            angle[0] = ld_cg_f32x4(angles + 4 * (lane % 16));
        if (rotation(p) == ROTATE_IN_LANE)
#pragma unroll
            for (int m = 0; m < ANGLES; m++)
                angle[m] = ld_cg_f32x4(angles + 4 * lane + 128 * m);
        if (rotation(p) == ROTATE_ADJACENT)
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint32_t i = min(lane + 32 * m, p.rotary / 2 - 1);
                *((float2 *)angle + m) = ld_cg_f32x2(angles + 2 * i);
            }
    }

    /* One value of a rotated pair: x cos + partner sin, the sine with its sign. */
    static __device__ __forceinline__ float rotated(float x, float partner, float c, float s) {
        return fmaf(x, c, __fmul_rn(partner, s));
    }

    __device__ __forceinline__ void rotate_shuffle(void) {
        float partner_x = __shfl_xor_sync(0xffffffffu, x[0].x, 16);
        float partner_y = __shfl_xor_sync(0xffffffffu, x[0].y, 16);
        float sign = threadIdx.x % 32 < 16 ? -1.0f : 1.0f;
        x[0].x = rotated(x[0].x, partner_x, angle[0].x, sign * angle[0].y);
        x[0].y = rotated(x[0].y, partner_y, angle[0].z, sign * angle[0].w);
    }

    __device__ __forceinline__ void rotate_in_lane(void) {
        constexpr int H = M / 2;
#pragma unroll
        for (int m = 0; m < H; m++) {
            float2 a = x[m], b = x[m + H];
            x[m].x = rotated(a.x, b.x, angle[m].x, -angle[m].y);
            x[m].y = rotated(a.y, b.y, angle[m].z, -angle[m].w);
            x[m + H].x = rotated(b.x, a.x, angle[m].x, angle[m].y);
            x[m + H].y = rotated(b.y, a.y, angle[m].z, angle[m].w);
        }
    }

    __device__ __forceinline__ void rotate_adjacent(const struct attend_params &p) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            float2 a = x[m], by = *((float2 *)angle + m);
            if (threadIdx.x % 32 * 2 + 64 * m < p.rotary) {
                x[m].x = rotated(a.x, a.y, by.x, -by.y);
                x[m].y = rotated(a.y, a.x, by.x, by.y);
            }
        }
    }

    /* `scratch` is the warp's own in shared memory, of a head's width. */
    __device__ __forceinline__ void rotate_memory(const struct attend_params &p,
                                                  const float *angles, float *scratch) {
        uint32_t lane = threadIdx.x % 32, half = p.rotary / 2;
        store(p, scratch);
        __syncwarp();
#pragma unroll 1
        for (uint32_t i = lane; i < half; i += 32) {
            float a = scratch[i], b = scratch[i + half];
            float2 by = ld_cg_f32x2(angles + 2 * i);
            scratch[i] = rotated(a, b, by.x, -by.y);
            scratch[i + half] = rotated(b, a, by.x, by.y);
        }
        __syncwarp();
#pragma unroll
        for (int m = 0; m < M; m++)
            if (has(p, m))
                x[m] = *(const float2 *)(scratch + 2 * lane + 64 * m);
        __syncwarp();
    }

    __device__ __forceinline__ void store(const struct attend_params &p, float *to) const {
#pragma unroll
        for (int m = 0; m < M; m++)
            if (has(p, m))
                *(float2 *)(to + threadIdx.x % 32 * 2 + 64 * m) = x[m];
    }

    /* RMS norm, where there is one, and RoPE. `scratch` as for rotate_memory. */
    __device__ __forceinline__ void norm_and_rotate(const struct attend_params &p, bool has_norm,
                                                    uint32_t row, float *scratch) {
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
        if (rotation(p) == ROTATE_SHUFFLE)
            rotate_shuffle();
        else if (rotation(p) == ROTATE_IN_LANE)
            rotate_in_lane();
        else if (rotation(p) == ROTATE_ADJACENT)
            rotate_adjacent(p);
        else if (rotation(p) == ROTATE_MEMORY)
            rotate_memory(p, p.angles + (uint64_t)row * p.rotary, scratch);
    }
};

/* ---- the KV cache ---------------------------------------------------------------------------- */

/* f16_from_f32_clamped in one conversion: to nearest, larger values become the largest fp16. */
static __device__ __forceinline__ __half f16_clamped(float x) {
    return __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
}

/* Bytes from the start of the keys, or values, to a position of a slot in a KV head. */
static __device__ __forceinline__ uint64_t cache_offset(const struct attend_params &p,
                                                        uint32_t slot, uint32_t head,
                                                        uint32_t position) {
    uint64_t page = (uint64_t)p.page_table[(uint64_t)slot * p.pages_per_slot + position / PAGE];
    return ((page * p.kv_heads + head) * PAGE + position % PAGE) * p.row_bytes;
}

/* ---- splits ---------------------------------------------------------------------------------- */

/* How the positions that a row sees are split. */
struct split_layout {
    uint32_t n_positions, length, count; /* of all; of a split; how many splits */
    uint32_t per_group;                  /* splits that are combined first */
};

/* Splits of 16 for short contexts, else the shortest of which there is at most one group. */
static __device__ __forceinline__ struct split_layout split_layout_of(const struct attend_params &p,
                                                                      uint32_t position) {
    if (position < p.short_positions) {
        struct split_layout l = {position + 1, 16, position / 16 + 1, ATTEND_GROUP_SPLITS};
        return l;
    }
    uint32_t shift = p.min_split_shift;
    while (shift < p.max_split_shift && position >> shift >= p.group_splits)
        shift++;
    struct split_layout l = {position + 1, 1u << shift, (position >> shift) + 1, p.group_splits};
    return l;
}

/* ---- combining ------------------------------------------------------------------------------- */

/* 2^(a - b) for integers a <= b. */
static __device__ __forceinline__ float exp2_diff(float a, float b) {
    int k = (int)(a - b);
    return k < -126 ? 0.0f : __int_as_float((127 + k) << 23);
}

/* A query's running softmax: the maximum of its scores, an integer, and the sum of 2^(s - max). */
struct max_sum {
    float max, sum;
};

static __device__ __forceinline__ struct max_sum max_sum_empty(void) {
    struct max_sum s = {-1e30f, 0};
    return s;
}

/* What combining multiplies the two outputs by. */
struct rescale {
    float all, part;
};

static __device__ __forceinline__ struct rescale combine(struct max_sum *all, struct max_sum part) {
    float max = fmaxf(all->max, part.max);
    struct rescale f = {exp2_diff(all->max, max), exp2_diff(part.max, max)};
    all->sum = fmaf(all->sum, f.all, __fmul_rn(part.sum, f.part));
    all->max = max;
    return f;
}

static __device__ __forceinline__ float combine_value(float x, float part, struct rescale f) {
    return fmaf(x, f.all, __fmul_rn(part, f.part));
}

/* ---- tensor cores ---------------------------------------------------------------------------- */

/* Two fp32 values: rounded to fp16, and the remainders as fp16. */
struct high_low {
    uint32_t high, low;
};

static __device__ __forceinline__ struct high_low high_low_of(float x, float y) {
    __half2 high = __floats2half2_rn(x, y);
    float2 back = __half22float2(high);
    __half2 low = __floats2half2_rn(__fsub_rn(x, back.x), __fsub_rn(y, back.y));
    struct high_low s = {*(uint32_t *)&high, *(uint32_t *)&low};
    return s;
}

/* c += 16 positions x 32 columns of K times 8 queries, high and low. Lane (g, t) has 8 columns from
 * 8 t on of position g (k0) and of g + 8 (k8); q0 and q1 are the queries' fragments. */
static __device__ __forceinline__ void qk_mma(float (&c)[4][4], uint4 k0, uint4 k8, uint4 q0,
                                              uint4 q1) {
    mma_m16n8k16_f16(c[0], k0.x, k8.x, k0.y, k8.y, q0.x, q0.y);
    mma_m16n8k16_f16(c[1], k0.x, k8.x, k0.y, k8.y, q0.z, q0.w);
    mma_m16n8k16_f16(c[2], k0.z, k8.z, k0.w, k8.w, q1.x, q1.y);
    mma_m16n8k16_f16(c[3], k0.z, k8.z, k0.w, k8.w, q1.z, q1.w);
}

/* Score k of a lane: position g + k / 2 * 8, query 2 t + k % 2. */
static __device__ __forceinline__ float qk_score(const float (&c)[4][4], int k) {
    return (c[0][k] + c[2][k]) + (c[1][k] + c[3][k]);
}

/* Softmax weights are in [0, 1]: scaled up, so that small ones stay normal in fp16. */
static constexpr float WEIGHT_SCALE = 1024.0f;

/* c += 8 queries' weights times 16 positions x 64 columns of V. Lane (g, t) has 8 columns from 8 g
 * on of positions 4 t to 4 t + 3, and the weights of these positions for query g. */
static __device__ __forceinline__ void pv_mma(float (&c)[8][4], const uint4 (&v)[4],
                                              float4 weights) {
    struct high_low x = high_low_of(weights.x * WEIGHT_SCALE, weights.y * WEIGHT_SCALE);
    struct high_low y = high_low_of(weights.z * WEIGHT_SCALE, weights.w * WEIGHT_SCALE);
    const uint32_t *v0 = (const uint32_t *)&v[0], *v1 = (const uint32_t *)&v[1];
    const uint32_t *v2 = (const uint32_t *)&v[2], *v3 = (const uint32_t *)&v[3];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const uint32_t column = k % 2 ? 0x7632 : 0x5410; /* upper or lower fp16 of each word */
        mma_m16n8k16_f16(c[k], x.high, x.low, y.high, y.low,
                         __byte_perm(v0[k / 2], v1[k / 2], column),
                         __byte_perm(v2[k / 2], v3[k / 2], column));
    }
}

/* Adds high and low: of 64 columns lane (g, t) has 16 from 16 t on, for query g. */
static __device__ __forceinline__ void store_pv(const float (&c)[8][4], float4 *to) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float o[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int column = k % 2 * 4 + r;
            o[r] = (c[column][k / 2] + c[column][k / 2 + 2]) * (1 / WEIGHT_SCALE);
        }
        to[k] = make_float4(o[0], o[1], o[2], o[3]);
    }
}

/* A warp writes a query as B fragments (a lane's words: high 0, high 1, low 0, low 1) and the
 * factor that its scores are multiplied by. The query is scaled by the power of two that brings its
 * largest value into [256, 512): in the middle of fp16's range. */
template <int D>
static __device__ __forceinline__ void pack_query(const struct attend_params &p,
                                                  const float2 (&x)[D / 64], uint4 (*fragments)[32],
                                                  float *score_factor, uint32_t query) {
    uint32_t lane = threadIdx.x % 32;
    float most = 0;
#pragma unroll
    for (int b = 0; b < D / 64; b++)
        most = fmaxf(most, fmaxf(fabsf(x[b].x), fabsf(x[b].y)));
    int up = 135 - (int)(__reduce_max_sync(0xffffffffu, __float_as_uint(most)) >> 23);
    up = up > 120 ? 120 : up; /* all values tiny, or zero */
    float factor = __int_as_float((127 + up) << 23);
#pragma unroll
    for (uint32_t b = 0; b < D / 64; b++) {
        uint32_t i = 64 * b + 2 * lane;
        struct high_low pair = high_low_of(x[b].x * factor, x[b].y * factor);
        uint32_t *to = (uint32_t *)&fragments[i / 32 * 2 + i % 8 / 4][query * 4 + i % 32 / 8];
        to[i % 4 / 2] = pair.high, to[2 + i % 4 / 2] = pair.low;
    }
    if (lane == 0)
        score_factor[query] = __fmul_rn(p.scale * LOG2_E, __int_as_float((127 - up) << 23));
}

/* A warp writes a key or value head as fp16. */
template <int D>
static __device__ __forceinline__ void store_f16(const float2 (&x)[D / 64], uint4 *to) {
#pragma unroll
    for (int m = 0; m < D / 64; m++)
        ((__half2 *)to)[threadIdx.x % 32 + 32 * m] =
            __halves2half2(f16_clamped(x[m].x), f16_clamped(x[m].y));
}

#endif
