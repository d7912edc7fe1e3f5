/* project_bf16.cuh - the product of BF16 weights and f32 activations: one definition for every
 * number of rows.
 *
 *   a = hi + lo + e    hi = bf16(a), lo = bf16(a - hi), both rounded to nearest: |e| <= 2^-18 |a|
 *   split of K:        (chain of w * hi) + (chain of w * lo), an addition in f32
 *   chain:             c = 0; for every step of 16 columns, in order: c = mma(w, part, c)
 *
 * then splits in order, beginning with 0; factor, bias, epilogue. A product of two bf16 is exact in
 * f32; an mma adds 16 of them to an f32 sum and truncates, which costs less than 2^-22 of the
 * largest of its terms. mma.sync and wgmma give the same bits, and the order of the columns within
 * a step does not matter (measured on an H200), so a kernel takes the shape it likes:
 * project_gemv.cuh has both parts of up to four rows as the eight columns of one mma.sync,
 * project_wide_bf16.cu those of 8 to 128 rows as the columns of one wgmma.
 *
 * F16 and F32 segments beside BF16 ones meet hi + lo in place of a: the qact has no others.
 *
 * The CPU multiplies f32 values; the bound above is what the two may differ by, besides the order
 * of sums. An infinity or a NaN in the activations gives NaN. */
#ifndef BACKEND_CUDA_KERNELS_PROJECT_BF16_CUH
#define BACKEND_CUDA_KERNELS_PROJECT_BF16_CUH

#include "backend/cuda/kernels/ptx.cuh"

/* Four columns: words of two. */
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

/* ---- parts in a qact: 32 columns are (four columns of a step: j, part, step) of 8 bytes -------
 *
 * so that a lane of mma has its columns of two steps by one load. */

enum { BF16_PART = 16 }; /* bytes from hi to lo */

/* Offset of columns 4 i ... */
static __device__ __forceinline__ uint32_t bf16_parts_at(uint32_t i) {
    return i / 8 * 128 + i % 4 * 32 + i / 4 % 2 * 8;
}

static __device__ __forceinline__ void store_bf16_parts(uint8_t *at, uint32_t i, float4 v) {
    struct bf16_parts p = split_bf16(v);
    at += bf16_parts_at(i);
    *(uint2 *)at = p.hi;
    *(uint2 *)(at + BF16_PART) = p.lo;
}

static __device__ __forceinline__ float4 load_bf16_parts(const uint8_t *at, uint32_t i) {
    at += bf16_parts_at(i);
    return join_bf16({*(const uint2 *)at, *(const uint2 *)(at + BF16_PART)});
}

/* ---- a K block times R rows, by one warp: A is weights, B the parts ---------------------------
 */

/* What a lane reads: see tiles.h for the K block. */
struct bf16_lane {
    uint32_t tile_rows;
    uint32_t weights; /* offset in the K block, of the row whose address it gives ldmatrix */
    uint32_t acts;    /* shared address of its part and columns in the qact of row lane / 8 */
};

/* qact: shared address of the first row's parts. Of tiles of 4 rows, the upper half of a matrix of
 * ldmatrix is the K block's second half. */
static __device__ __forceinline__ struct bf16_lane find_bf16_lane(uint32_t tile_rows, uint32_t tile,
                                                                  uint32_t qact, uint32_t stride) {
    uint32_t lane = threadIdx.x % 32;
    uint32_t row = lane & (tile_rows - 1);
    uint32_t chunk = tile_rows == 16 ? lane / 16 : lane / 8;
    uint32_t half = tile_rows == 4 ? lane / 4 % 2 * (TILE_KBLOCK_FLOAT / 2) : 0;
    return {tile_rows, half + tile_bf16_chunk(tile_rows, tile * tile_rows + row, chunk),
            qact + lane / 8 * stride + lane % 4 * 32 + lane / 4 % 2 * BF16_PART};
}

/* A K block in registers: its stage is free when it is there. T = 16: step i is a[i]; T = 8: steps
 * 2 i and 2 i + 1 are its halves; T = 4: the same of lanes 0 to 15, steps 8 + 2 i ... of the
 * others. stage: shared address. */
typedef uint32_t bf16_weights[4][4];

static __device__ __forceinline__ void load_bf16_weights(bf16_weights &a, uint32_t stage,
                                                         const struct bf16_lane &own) {
    if (own.tile_rows == 16) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            ldmatrix_x4(a[i], stage + (own.weights ^ i * 32));
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        ldmatrix_x4(a[i], stage + i / 2 * own.tile_rows * 128 + (own.weights ^ i % 2 * 64));
}

/* A step of 16 columns. */
template <int R>
static __device__ __forceinline__ void mma_bf16_step(float (&acc)[R][4], uint32_t a0, uint32_t a1,
                                                     uint32_t a2, uint32_t a3,
                                                     const uint4 (&b)[(R + 3) / 4], int step) {
#pragma unroll
    for (int t = 0; t < (R + 3) / 4; t++)
        mma_m16n8k16_bf16(acc[t], a0, a1, a2, a3, step ? b[t].z : b[t].x, step ? b[t].w : b[t].y);
}

/* The parts of 32 columns: of R < 4 rows the other lanes have none. */
template <int R>
static __device__ __forceinline__ void load_bf16_acts(uint4 (&b)[(R + 3) / 4], uint32_t at,
                                                      uint32_t stride) {
#pragma unroll
    for (int t = 0; t < (R + 3) / 4; t++) {
        b[t] = make_uint4(0, 0, 0, 0);
        ld_shared_u32x4_if(R >= 4 || threadIdx.x % 32 < 8 * R, at + t * 4 * stride, b[t]);
    }
}

/* Eight steps of tiles that have no lower rows. */
template <int R>
static __device__ __forceinline__ void mma_bf16_half(float (&acc)[R][4], const bf16_weights &a,
                                                     uint32_t acts, uint32_t stride) {
    uint4 b[(R + 3) / 4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        load_bf16_acts<R>(b, acts + i * 128, stride);
        mma_bf16_step<R>(acc, a[i][0], 0, a[i][1], 0, b, 0);
        mma_bf16_step<R>(acc, a[i][2], 0, a[i][3], 0, b, 1);
    }
}

/* column: the K block's first, of the row. acc[t]: C of mma, rows 4 t ... of activations. */
template <int R>
static __device__ __forceinline__ void dot_bf16(bf16_weights &a, uint32_t column,
                                                const struct bf16_lane &own, uint32_t stride,
                                                float (&acc)[R][4]) {
    uint32_t acts = own.acts + column * 4;
    if (own.tile_rows == 16) {
        uint4 b[(R + 3) / 4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i % 2 == 0)
                load_bf16_acts<R>(b, acts + i / 2 * 128, stride);
            mma_bf16_step<R>(acc, a[i][0], a[i][1], a[i][2], a[i][3], b, i % 2);
        }
        return;
    }
    mma_bf16_half<R>(acc, a, acts, stride);
    if (own.tile_rows == 4) {
#pragma unroll
        for (int i = 0; i < 16; i++)
            a[i / 4][i % 4] = __shfl_xor_sync(~0u, a[i / 4][i % 4], 16);
        mma_bf16_half<R>(acc, a, acts + 512, stride);
    }
}

/* At a split's end: both parts are added, and lane n has row n of the tile. */
template <int R> static __device__ __forceinline__ void sum_bf16(float (&acc)[R][4]) {
    float upper[(R + 3) / 4], lower[(R + 3) / 4];
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < (R + 3) / 4; t++) {
        upper[t] = __fadd_rn(acc[t][0], acc[t][1]);
        lower[t] = __fadd_rn(acc[t][2], acc[t][3]);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float a = __shfl_sync(~0u, upper[r / 4], lane % 8 * 4 + r % 4),
              b = __shfl_sync(~0u, lower[r / 4], lane % 8 * 4 + r % 4);
        acc[r][0] = lane < 8 ? a : b;
    }
}

#endif
