/* project_bf16.cuh - the product of BF16 or F16 weights and f32 activations: one definition for
 * every number of rows.
 *
 *   BF16     a = hi + lo + e       hi = bf16(a), lo = bf16(a - hi): |e| <= 2^-18 |a|
 *   F16      a * s = hi + lo + e   likewise with f16; s is a power of two, one for the row, with
 *                                  the largest |a * s| of it in [2^14, 2^15): |e| <= 2^-22 |a * s|,
 *                                  or 2^-39 of the largest
 *   chain    c = 0; for every step of 16 columns, in order: c = mma(w, part, c)
 *   stripes  the panels of 64 columns of a split of K are dealt in turn to S = 16 / T stripes, T
 *            the rows of a tile: each stripe is a chain of w * hi and one of w * lo
 *   sum      v = 0; for every split, for every stripe: v = v + (hi's chain + lo's), in f32
 *
 * then factor (of F16 factor / s), bias, epilogue. A product of two parts is exact in f32; an mma
 * adds 16 of them to an f32 sum and truncates, which costs less than 2^-22 of the largest of its
 * terms. mma.sync and wgmma give the same bits, and the order of the columns within a step does not
 * matter (measured on an H200: docs/lab/cuda.md), so a kernel takes the shape it likes:
 * project_gemv.cuh has the stripes of a K block as the 16 rows of A, and stripes, rows and parts as
 * the columns of B; project_wide_bf16.cu both parts of 16 to 128 rows as the columns of one wgmma,
 * a stripe after the other.
 *
 * F32 segments beside BF16 or F16 ones are multiplied with hi + lo, not a: the qact has only those.
 * F16 beside BF16 or int8 ones is expanded to F32 (host/load.c): a row has parts of one kind.
 *
 * The CPU multiplies f32 values; the bound above is what the two may differ by, besides the order
 * of sums. An infinity or a NaN in the activations gives NaN. */
#ifndef BACKEND_CUDA_KERNELS_PROJECT_BF16_CUH
#define BACKEND_CUDA_KERNELS_PROJECT_BF16_CUH

#include <cuda_fp16.h>

#include "backend/cuda/kernels/ptx.cuh"

/* Four columns: words of two. Names with bf16 are for both types, but where they say split or join.
 */
struct bf16_parts {
    uint2 hi, lo;
};

/* The first in the lower half. */
static __device__ __forceinline__ float bf16_first(uint32_t pair) {
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float bf16_second(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

static __device__ __forceinline__ uint32_t bf16_rest(float a, float b, uint32_t hi) {
    return cvt_bf16x2(__fsub_rn(a, bf16_first(hi)), __fsub_rn(b, bf16_second(hi)));
}

static __device__ __forceinline__ struct bf16_parts split_bf16(float4 v) {
    uint2 hi = make_uint2(cvt_bf16x2(v.x, v.y), cvt_bf16x2(v.z, v.w));
    return {hi, make_uint2(bf16_rest(v.x, v.y, hi.x), bf16_rest(v.z, v.w, hi.y))};
}

/* hi + lo, exact. */
static __device__ __forceinline__ float4 join_bf16(const struct bf16_parts &p) {
    return make_float4(__fadd_rn(bf16_first(p.hi.x), bf16_first(p.lo.x)),
                       __fadd_rn(bf16_second(p.hi.x), bf16_second(p.lo.x)),
                       __fadd_rn(bf16_first(p.hi.y), bf16_first(p.lo.y)),
                       __fadd_rn(bf16_second(p.hi.y), bf16_second(p.lo.y)));
}

/* ---- F16 ---------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t f16_pair(float a, float b) {
    __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&pair);
}

static __device__ __forceinline__ float2 f16_values(uint32_t pair) {
    return __half22float2(*reinterpret_cast<__half2 *>(&pair));
}

static __device__ __forceinline__ uint32_t f16_rest(float a, float b, uint32_t hi) {
    float2 v = f16_values(hi);
    return f16_pair(__fsub_rn(a, v.x), __fsub_rn(b, v.y));
}

/* v: scaled. */
static __device__ __forceinline__ struct bf16_parts split_f16(float4 v) {
    uint2 hi = make_uint2(f16_pair(v.x, v.y), f16_pair(v.z, v.w));
    return {hi, make_uint2(f16_rest(v.x, v.y, hi.x), f16_rest(v.z, v.w, hi.y))};
}

/* hi + lo, exact, scaled. */
static __device__ __forceinline__ float4 join_f16(const struct bf16_parts &p) {
    float2 a = f16_values(p.hi.x), b = f16_values(p.hi.y), c = f16_values(p.lo.x),
           d = f16_values(p.lo.y);
    return make_float4(__fadd_rn(a.x, c.x), __fadd_rn(a.y, c.y), __fadd_rn(b.x, d.x),
                       __fadd_rn(b.y, d.y));
}

/* s and 1 / s of a row, from the bits of its largest |a|; 1 where that is not finite. */
struct f16_scale {
    float up, down;
};

static __device__ __forceinline__ struct f16_scale f16_scale_of(uint32_t max_bits) {
    uint32_t e = max_bits < 0x7f800000u ? max(max_bits >> 23, 15u) : 127 + 14;
    return {__uint_as_float((127 + 14 + 127 - e) << 23), __uint_as_float((e - 14) << 23)};
}

/* ---- parts in a qact: 32 columns are (four columns of a step: j, part, step) of 8 bytes -------
 *
 * so that a lane of mma has its columns of two steps by one load. */

enum { BF16_PART = 16 }; /* bytes from hi to lo */

/* Offset of columns 4 i ... */
static __device__ __forceinline__ uint32_t bf16_parts_at(uint32_t i) {
    return i / 8 * 128 + i % 4 * 32 + i / 4 % 2 * 8;
}

static __device__ __forceinline__ void store_bf16_parts(uint8_t *at, uint32_t i,
                                                        const struct bf16_parts &p) {
    at += bf16_parts_at(i);
    *(uint2 *)at = p.hi;
    *(uint2 *)(at + BF16_PART) = p.lo;
}

/* Also of columns 64 + 4 i ... */
static __device__ __forceinline__ void
store_bf16_parts(uint8_t *at, uint32_t i, const struct bf16_parts &a, const struct bf16_parts &b) {
    store_bf16_parts(at, i, a);
    store_bf16_parts(at + 256, i, b);
}

static __device__ __forceinline__ struct bf16_parts load_bf16_parts(const uint8_t *at, uint32_t i) {
    at += bf16_parts_at(i);
    return {*(const uint2 *)at, *(const uint2 *)(at + BF16_PART)};
}

/* ---- a K block times R rows, by one warp: A is weights, B the parts ---------------------------
 *
 * A K block is S panels of T rows of 128 bytes (tiles.h): 16 lines, the rows of A, of four steps.
 * Columns of B are (stripe, row, part), eight a tile of B: of C are wanted the values where the
 * stripes of A's row and B's column are the same. So a K block of one row is four MMAs, however
 * high its tile. */

/* What a lane reads. */
struct bf16_lane {
    uint32_t row_shift; /* log2 of T */
    uint32_t weights;   /* offset in the K block, of the line whose address it gives ldmatrix */
    uint32_t acts;      /* shared address of its parts in the first tile of B */
    bool has_acts;      /* there is such a column */
};

/* Of columns lane / 8 ... of B, counted in pairs of parts. */
template <int R>
static __device__ __forceinline__ struct bf16_lane find_bf16_lane(uint32_t row_shift, uint32_t tile,
                                                                  uint32_t qact, uint32_t stride) {
    uint32_t lane = threadIdx.x % 32, line = lane % 16, column = lane / 8;
    uint32_t n = (tile << row_shift) + (line & ((1u << row_shift) - 1));
    return {row_shift, line * 128 + (lane / 16 ^ n % 8) * 16,
            qact + column / R * 256 + column % R * stride + lane % 4 * 32 +
                lane / 4 % 2 * BF16_PART,
            column << row_shift < 16 * R};
}

/* A K block in registers, by steps: its stage is free when it is there. stage: shared address. */
typedef uint32_t bf16_weights[4][4];

static __device__ __forceinline__ void load_bf16_weights(bf16_weights &a, uint32_t stage,
                                                         const struct bf16_lane &own) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        ldmatrix_x4(a[i], stage + (own.weights ^ i * 32));
}

/* 0, when all of the K block is in registers: loads wait in a queue that copies do not go through,
 * and a copy to their stage overtakes them (docs/lab/cuda.md). blockIdx.z is 0, which the
 * compiler does not know. */
static __device__ __forceinline__ uint32_t none_of(const bf16_weights &a) {
    return (a[0][0] ^ a[1][0] ^ a[2][0] ^ a[3][0]) & blockIdx.z;
}

/* Whether tile t of B exists; R is their number where S is 4. */
template <int R>
static __device__ __forceinline__ bool has_tile(const struct bf16_lane &own, uint32_t t) {
    return t == 0 || 4 * t << own.row_shift < 16 * R;
}

/* From the first tile of B to tile t. */
template <int R> static __device__ __forceinline__ uint32_t tile_offset(uint32_t stride, int t) {
    return R <= 4 ? t * (4 / (R < 4 ? R : 4)) * 256 : t / 2 * 256 + t % 2 * 4 * stride;
}

/* The parts of two steps. column: the K block's first, of the row. */
template <int R> struct bf16_acts { uint4 v[R]; };

template <int R>
static __device__ __forceinline__ void load_bf16_acts(struct bf16_acts<R> &b, uint32_t column,
                                                      int half, const struct bf16_lane &own,
                                                      uint32_t stride) {
#pragma unroll
    for (int t = 0; t < R; t++)
        if (has_tile<R>(own, t)) {
            b.v[t] = make_uint4(0, 0, 0, 0);
            ld_shared_u32x4_if(R >= 4 || own.has_acts,
                               own.acts + column * 4 + half * 128 + tile_offset<R>(stride, t),
                               b.v[t]);
        }
}

/* A step, the first or second of b's. acc[t]: C of tile t of B. */
template <int R, bool F16>
static __device__ __forceinline__ void mma_bf16_step(float (&acc)[R][4], const uint32_t (&a)[4],
                                                     const struct bf16_acts<R> &b, bool is_second,
                                                     const struct bf16_lane &own) {
#pragma unroll
    for (int t = 0; t < R; t++)
        if (has_tile<R>(own, t)) {
            uint32_t b0 = is_second ? b.v[t].z : b.v[t].x, b1 = is_second ? b.v[t].w : b.v[t].y;
            if (F16)
                mma_m16n8k16_f16(acc[t], a[0], a[1], a[2], a[3], b0, b1);
            else
                mma_m16n8k16_bf16(acc[t], a[0], a[1], a[2], a[3], b0, b1);
        }
}

template <int R, bool F16>
static __device__ __forceinline__ void dot_bf16(const bf16_weights &a, uint32_t column,
                                                const struct bf16_lane &own, uint32_t stride,
                                                float (&acc)[R][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        struct bf16_acts<R> b;
        load_bf16_acts<R>(b, column, half, own, stride);
        mma_bf16_step<R, F16>(acc, a[2 * half], b, false, own);
        mma_bf16_step<R, F16>(acc, a[2 * half + 1], b, true, own);
    }
}

/* A task's sums of all stripes to its partials, (row, line): 16 lines are S stripes of T rows. */
template <int R>
static __device__ __forceinline__ void
store_bf16_stripes(const float (&acc)[R][4], const struct bf16_lane &own, float *partials) {
    uint32_t lane = threadIdx.x % 32, line = lane / 4;
    uint32_t upper = line >> own.row_shift, lower = (line + 8) >> own.row_shift;
#pragma unroll
    for (int t = 0; t < R; t++) {
        uint32_t column = 4 * t + lane % 4, stripe = column / R;
        float *to = partials + column % R * 16 + line;
        if (stripe == upper)
            to[0] = __fadd_rn(acc[t][0], acc[t][1]);
        if (stripe == lower)
            to[8] = __fadd_rn(acc[t][2], acc[t][3]);
    }
}

/* The same added up, where there is one split: lane n has row n of the tile, in acc[r][0]. */
template <int R>
static __device__ __forceinline__ void sum_bf16(float (&acc)[R][4], const struct bf16_lane &own) {
    float upper[R], lower[R], sum[R] = {};
    uint32_t row = threadIdx.x % 32 & ((1u << own.row_shift) - 1);
#pragma unroll
    for (int t = 0; t < R; t++) {
        upper[t] = __fadd_rn(acc[t][0], acc[t][1]);
        lower[t] = __fadd_rn(acc[t][2], acc[t][3]);
    }
#pragma unroll
    for (int stripe = 0; stripe < 4; stripe++) {
        if (stripe << own.row_shift >= 16)
            break;
        uint32_t line = ((uint32_t)stripe << own.row_shift) + row;
#pragma unroll
        for (int r = 0; r < R; r++) {
            int column = stripe * R + r, t = column / 4;
            float a = __shfl_sync(~0u, upper[t], line % 8 * 4 + column % 4),
                  b = __shfl_sync(~0u, lower[t], line % 8 * 4 + column % 4);
            sum[r] = __fadd_rn(sum[r], line < 8 ? a : b);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        acc[r][0] = sum[r];
}

/* A result out of the partials of a split, added to v. */
static __device__ __forceinline__ float add_bf16_stripes(float v, const float *partials,
                                                         uint32_t row_shift) {
    float w[4];
    uint32_t stripes = 16u >> row_shift;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        w[i] = i < stripes ? partials[i << row_shift] : 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        v = i < stripes ? __fadd_rn(v, w[i]) : v;
    return v;
}

#endif
