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
 * Heads of 64, 96, 128 and 256 over an fp16, q8_0 or q4_0 cache use the tensor cores: fp16
 * operands, fp32 sums. Q is rounded to fp16 after scaling by a power of two, softmax weights are
 * rounded to fp16, and so are the values d q of a quantized cache.
 *
 *   QK   every score is one chain of MMAs over its columns, 16 a step
 *   PV   every value of a split's O is one chain of MMAs over its positions, 16 a step
 *
 * All kernels, whatever the shape of their MMAs (m16n8k16, wgmma), walk these chains in the same
 * order, from zero; the order within a step of 16 does not change the bits on sm_90. So a row's
 * bits are the same in all of them.
 *
 *   m16n8k16 QK   A: 16 positions x 16 columns of K       B: 16 columns x 8 queries
 *   m16n8k16 PV   A: weights of 8 queries (rows 8 to 15 are zero) x 16 positions
 *                 B: 16 positions x 8 columns of V
 *
 * In fragments g = lane / 4 and t = lane % 4. The order of columns (QK) and positions (PV) within
 * an MMA's k is 4 t to 4 t + 3 for lane t, so that a lane loads consecutive bytes, without
 * ldmatrix.
 */
#ifndef BACKEND_CUDA_KERNELS_ATTEND_CUH
#define BACKEND_CUDA_KERNELS_ATTEND_CUH

#include <float.h>

#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/attend.h"

enum { THREADS = ATTEND_WARPS * 32, PAGE = IO_PAGE_POSITIONS };

/* Of enum dtype, whose header is for C alone. */
enum { CACHE_F32 = 0, CACHE_F16 = 1, CACHE_Q4_0 = 2, CACHE_Q8_0 = 8 };

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

/* As f16_encode in src/quant: to nearest, larger numbers become the largest fp16; NaN
 * stays NaN, and shows in the logits. */
static __device__ __forceinline__ __half f16_clamped(float x) {
    float number = fminf(fmaxf(x, -65504.0f), 65504.0f);
    return __float2half_rn(fabsf(x) <= FLT_MAX ? number : x);
}

/* Bytes from the start of the keys, or values, to a position of a slot in a KV head. */
static __device__ __forceinline__ uint64_t cache_offset(const struct attend_params &p,
                                                        uint32_t slot, uint32_t head,
                                                        uint32_t position) {
    uint64_t page = (uint64_t)p.page_table[(uint64_t)slot * p.pages_per_slot + position / PAGE];
    return ((page * p.kv_heads + head) * PAGE + position % PAGE) * p.row_bytes;
}

/* Bytes of a position in the cache: blocks of 32 are a scale (fp16) and 32 bytes, or nibbles. */
template <int TYPE, int D>
static constexpr int CACHE_ROW = TYPE == CACHE_F16    ? 2 * D
                                 : TYPE == CACHE_Q8_0 ? D / 32 * 34
                                                      : D / 32 * 18;

/* Four quants of a block, a byte each, times its scale, as fp16. Bytes become 1024 + q by their
 * bits, so what the tensor cores get is d q rounded once. */
template <int TYPE> static __device__ __forceinline__ uint2 f16_of_quants(uint32_t q, __half2 d) {
    uint32_t x = TYPE == CACHE_Q8_0 ? q ^ 0x80808080u : q & 0x0f0f0f0fu;
    uint32_t bits[2] = {__byte_perm(x, 0x64646464u, 0x4140), __byte_perm(x, 0x64646464u, 0x4342)};
    const uint32_t zero = TYPE == CACHE_Q8_0 ? 0x64806480u : 0x64086408u;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        __half2 y = __hmul2_rn(__hsub2_rn(*(__half2 *)&bits[i], *(const __half2 *)&zero), d);
        bits[i] = *(uint32_t *)&y;
    }
    return make_uint2(bits[0], bits[1]);
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

/* Rows of a segment that share a tile: their splits have the same length. */
struct row_tile {
    uint32_t first, n; /* first: in the segment */
};

/* Finds the tile of that index, where tiles have up to `most` rows; returns the number of tiles if
 * there are no more. */
static __device__ __forceinline__ uint32_t walk_row_tiles(const struct attend_params &p,
                                                          const struct io_segment &s, uint32_t most,
                                                          uint32_t index, struct row_tile *tile) {
    uint32_t done = 0, tiles = 0;
    while (done < s.n_rows) {
        uint32_t position = s.first_position + done, rows = s.n_rows - done;
        struct split_layout l = split_layout_of(p, position);
        if (position < p.short_positions)
            rows = min(rows, p.short_positions - position);
        else if (l.length != 1u << p.max_split_shift)
            rows = min(rows, l.per_group * l.length - position);
        uint32_t n = (rows + most - 1) / most;
        if (index < tiles + n) {
            uint32_t first = (index - tiles) * most;
            tile->first = done + first, tile->n = min(most, rows - first);
            return tiles;
        }
        tiles += n, done += rows;
    }
    return tiles;
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

/* Two fp32 values rounded to fp16, the first in the lower half. */
static __device__ __forceinline__ uint32_t f16x2_of(float x, float y) {
    __half2 h = __floats2half2_rn(x, y);
    return *(uint32_t *)&h;
}

/* c += 16 positions x 16 columns of K times 8 queries. Lane (g, t) has columns 4 t to 4 t + 3 of
 * position g (k0) and of g + 8 (k8); q is the queries' fragment. After all columns score k of a
 * lane is that of position g + k / 2 * 8 and query 2 t + k % 2. */
static __device__ __forceinline__ void qk_mma(float (&c)[4], uint2 k0, uint2 k8, uint2 q) {
    mma_m16n8k16_f16(c, k0.x, k8.x, k0.y, k8.y, q.x, q.y);
}

/* Softmax weights are 2^(s - max) times this power of two, so that small ones stay normal in fp16;
 * so are their sum and O, and the quotient is what it was. */
static constexpr float WEIGHT_EXPONENT = 15;

/* What scores are shifted by, from their largest: it is rounded up, and -1e30 where there is none.
 */
static __device__ __forceinline__ float rounded_max(float score, float factor) {
    return fmaxf(ceilf(__fmul_rn(score, factor)), -1e30f);
}

static __device__ __forceinline__ float softmax_weight(float score, float factor, float max) {
    return ex2_approx(fmaf(score, factor, WEIGHT_EXPONENT - max));
}

/* C consecutive columns of V, as a lane loads them. */
template <int C> struct v_columns { uint32_t x[C / 2]; };

template <int C>
static __device__ __forceinline__ struct v_columns<C> load_v_columns(const void *from) {
    struct v_columns<C> v;
    if constexpr (C == 8)
        *(uint4 *)v.x = *(const uint4 *)from;
    else if constexpr (C == 4)
        *(uint2 *)v.x = *(const uint2 *)from;
    else
        v.x[0] = *(const uint32_t *)from;
    return v;
}

/* c += 8 queries' weights times 16 positions x 8 C columns of V. Lane (g, t) has C columns from C g
 * on of positions 4 t to 4 t + 3, and the weights of these positions for query g. */
template <int C>
static __device__ __forceinline__ void pv_mma(float (&c)[C][4], const struct v_columns<C> (&v)[4],
                                              uint2 weights) {
#pragma unroll
    for (int k = 0; k < C; k++) {
        const uint32_t column = k % 2 ? 0x7632 : 0x5410; /* upper or lower fp16 of each word */
        mma_m16n8k16_f16(c[k], weights.x, 0, weights.y, 0,
                         __byte_perm(v[0].x[k / 2], v[1].x[k / 2], column),
                         __byte_perm(v[2].x[k / 2], v[3].x[k / 2], column));
    }
}

/* Of 8 C columns lane (g, t) has 2 C from 2 C t on, for query g: the four of them from i on. */
template <int C>
static __device__ __forceinline__ float4 pv_columns(const float (&c)[C][4], int i) {
    float o[4];
#pragma unroll
    for (int r = 0; r < 4; r++)
        o[r] = c[(i + r) % C][(i + r) / C];
    return make_float4(o[0], o[1], o[2], o[3]);
}

template <int C>
static __device__ __forceinline__ void store_pv(const float (&c)[C][4], float *to) {
#pragma unroll
    for (int i = 0; i < 2 * C; i += 4)
        *(float4 *)(to + i) = pv_columns(c, i);
}

/* The power of two that brings a query's largest value into [256, 512), in the middle of fp16's
 * range, as an exponent. By one warp. */
template <int M> static __device__ __forceinline__ int query_exponent(const float2 (&x)[M]) {
    float most = 0;
#pragma unroll
    for (int b = 0; b < M; b++)
        most = fmaxf(most, fmaxf(fabsf(x[b].x), fabsf(x[b].y)));
    int up = 135 - (int)(__reduce_max_sync(0xffffffffu, __float_as_uint(most)) >> 23);
    return up > 120 ? 120 : up; /* all values tiny, or zero */
}

/* What the scores of a query are multiplied by that was scaled by 2^up. */
static __device__ __forceinline__ float score_factor_of(const struct attend_params &p, int up) {
    return __fmul_rn(p.scale * LOG2_E, __int_as_float((127 - up) << 23));
}

/* A warp writes a query as B fragments, of columns 16 b to 16 b + 15 each, and the factor that its
 * scores are multiplied by. */
template <int D>
static __device__ __forceinline__ void pack_query(const struct attend_params &p,
                                                  const float2 (&x)[D / 64], uint2 (*fragments)[32],
                                                  float *score_factor, uint32_t query) {
    uint32_t lane = threadIdx.x % 32;
    int up = query_exponent<D / 64>(x);
    float factor = __int_as_float((127 + up) << 23);
#pragma unroll
    for (uint32_t b = 0; b < D / 64; b++) {
        uint32_t i = 64 * b + 2 * lane;
        uint32_t *to = (uint32_t *)&fragments[i / 16][query * 4 + i % 16 / 4];
        to[i % 4 / 2] = f16x2_of(x[b].x * factor, x[b].y * factor);
    }
    if (lane == 0)
        score_factor[query] = score_factor_of(p, up);
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
