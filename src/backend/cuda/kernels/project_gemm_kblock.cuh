/* project_gemm_kblock.cuh - one K block of an M16 tile times N8 n8 tiles of activations, by a warp.
 *
 * A lane is (g, j) = (lane / 4, lane % 4), as PTX numbers the fragments of mma: it has rows g and
 * g + 8 of A, and of every C fragment rows g, g + 8 of the M16 tile by rows 2 j, 2 j + 1 of the n8
 * tile. A comes from a pipeline stage by ldmatrix and is unpacked to int8; B is read from a K slab
 * by ldmatrix as it is.
 *
 * A span is the columns that a lane of a gemv kernel has (tiles.h): 128, of Q8_0 64. A sum of 128
 * columns here is the sum there, bit for bit: integers are exact in any order, the float operations
 * are the same and in the same order, and spans are added as lanes are there, in order
 * (project_gemv.cuh, order of sums).
 *
 * All registers are taken, and spills are slow where shared memory leaves no room for L1. So what
 * is cheap to compute again is not kept: volatile_lane and opaque (ptx.cuh) hide from the compiler
 * that it is the same value (32 rows: 3394 to 3240 us for a step's products). */
#ifndef BACKEND_CUDA_KERNELS_PROJECT_GEMM_KBLOCK_CUH
#define BACKEND_CUDA_KERNELS_PROJECT_GEMM_KBLOCK_CUH

#include "backend/cuda/kernels/project_gemv.cuh"
#include "backend/cuda/ops/project_gemm.h"

/* ---- where a lane reads ------------------------------------------------------------------- */

/* At an offset from the start of shared memory. */
template <class T> static __device__ __forceinline__ T read_smem(uint32_t at) {
    extern __shared__ uint4 shared[];
    return *(const T *)((const uint8_t *)shared + at);
}

/* B: a lane's part of a K slab. */
struct slab_view {
    uint32_t int8;     /* smem address for ldmatrix: row lane % 8, columns lane / 8 * 16... */
    uint32_t n8_pitch; /* from one n8 tile to the next */
    uint32_t scales;   /* offset: of rows 2 j and 2 j + 1 */
    uint32_t sums;     /* offset: of row g, columns 32 j... */
    uint32_t rows;     /* of the row block */
};

/* Of the i-th slab in shared memory; first_row: the warp's, in the row block. */
static __device__ __forceinline__ struct slab_view view_slab(const struct gemm_params &gemm,
                                                             uint32_t i, uint32_t first_row) {
    extern __shared__ uint4 shared[];
    const struct gemm_qacts &q = gemm.qacts;
    uint32_t lane = volatile_lane(), pitch = (1u << q.slab_shift) + 16;
    uint32_t slab = gemm.p.qact_at + i * q.slab_bytes;
    struct slab_view v;
    v.int8 = smem_addr(shared) + slab + (first_row + lane % 8) * pitch + lane / 8 * 16;
    v.n8_pitch = 8 * pitch;
    v.scales = slab + q.scales_at + first_row * 4 + lane % 4 * 8;
    v.sums = slab + q.sums_at + first_row * 16 + lane * 4;
    v.rows = q.rows;
    return v;
}

/* A: where a lane's rows g and g + 8 of an M16 tile are in a stage, which has a K block of each of
 * its tiles. */
struct stage_view {
    uint32_t matrix;    /* offset in the stage, for ldmatrix */
    uint32_t kblock[2]; /* offset of the K block that has the row, */
    uint32_t row[2];    /* and the row's number there: that of the lane with its first span */
    uint32_t tile_rows; /* a row's next span is this many lanes further */
};

static __device__ __forceinline__ struct stage_view view_stage(uint32_t tile_rows,
                                                               uint32_t stage_bytes) {
    uint32_t lane = volatile_lane(), g = lane / 4, half = lane / 8 % 2, r = lane % 8;
    struct stage_view v;
    v.tile_rows = tile_rows;
    v.matrix = lane / 16 * 512; /* matrices 2 and 3 are the span's next 16 bytes a row */
    if (tile_rows == 16) {
        v.matrix += (half * 8 + r) * 16;
        v.kblock[0] = v.kblock[1] = 0;
        v.row[0] = g, v.row[1] = g + 8;
    } else if (tile_rows == 8) {
        v.matrix += half * stage_bytes + r * 16;
        v.kblock[0] = 0, v.kblock[1] = stage_bytes;
        v.row[0] = v.row[1] = g;
    } else {
        v.matrix += (half * 2 + r / 4) * stage_bytes + r % 4 * 16;
        v.kblock[0] = g / 4 * stage_bytes, v.kblock[1] = v.kblock[0] + 2 * stage_bytes;
        v.row[0] = v.row[1] = g % 4;
    }
    return v;
}

/* What is read of a span of rows g and g + 8, moved on from span to span. */
template <int TYPE> struct span_cursor {
    static constexpr uint32_t SCALE_BYTES = TYPE == IS_Q6_K ? 8 : 4; /* of a lane */
    static constexpr uint32_t D_BYTES = TYPE == IS_Q6_K ? 2 : 4;
    uint32_t matrix;       /* smem address */
    uint32_t scales[2];    /* offsets; of Q8_0: d */
    uint32_t mins[2];      /* of Q4_K and Q5_K */
    uint32_t high_bits[2]; /* of Q5_K and Q6_K */
    uint32_t d[2];         /* shared by two spans */
    uint32_t tile_rows;

    /* stage: its offset; address: its smem address. */
    __device__ __forceinline__ span_cursor(const struct stage_view &v, uint32_t stage,
                                           uint32_t address) {
        matrix = address + v.matrix;
        tile_rows = v.tile_rows;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t kblock = stage + v.kblock[i];
            scales[i] = kblock + v.row[i] * SCALE_BYTES;
            mins[i] = kblock + v.row[i] * 2;
            high_bits[i] = kblock + v.row[i] * 16;
            d[i] = kblock + v.row[i] * D_BYTES;
        }
    }

    __device__ __forceinline__ void next_span(void) {
        matrix += tile_rows * 16;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            scales[i] += tile_rows * SCALE_BYTES;
            mins[i] += tile_rows * 2;
            high_bits[i] += tile_rows * 16;
        }
    }

    __device__ __forceinline__ void next_d(void) {
        d[0] += tile_rows * D_BYTES;
        d[1] += tile_rows * D_BYTES;
    }
};

/* ---- one span ----------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t unsigned_byte(uint32_t v, uint32_t i) {
    return __byte_perm(v, 0, 0x4440 + i);
}

/* A fragment of C times the scales of weight rows g and g + 8. */
static __device__ __forceinline__ void add_scaled(int (&sum)[4], const int (&c)[4], int scale_g,
                                                  int scale_g8) {
    sum[0] += scale_g * c[0];
    sum[1] += scale_g * c[1];
    sum[2] += scale_g8 * c[2];
    sum[3] += scale_g8 * c[3];
}

/* The minimum (6 bits) of a row's columns 32 j..., twice as fp16: A of the mma with the sums of the
 * activations, which are pairs, too. */
static __device__ __forceinline__ uint32_t unpack_min(uint32_t scales, uint32_t mins) {
    uint32_t j = threadIdx.x % 4;
    uint32_t min = (mins >> ((j & 1) * 8 + (j >> 1) * 4) & 15) | (scales >> (8 * j + 2) & 0x30);
    uint32_t pair = min * 0x00010001u + 0x64006400u; /* as fp16: 1024 + min */
    __half2 h = __hadd2(*reinterpret_cast<__half2 *>(&pair), __floats2half2_rn(-1024, -1024));
    return *reinterpret_cast<uint32_t *>(&h);
}

/* out += span `x` of the slab. Minimums times sums of activations are an fp16 mma, in which all
 * values and results are integers that fp16 and f32 hold exactly. */
template <int TYPE, int N8>
static __device__ __forceinline__ void mma_span_q4(const struct span_cursor<TYPE> &w,
                                                   const struct slab_view &a, uint32_t x,
                                                   const float2 (&d)[2], float (&out)[N8][4]) {
    constexpr bool IS_Q5 = TYPE == IS_Q5_K;
    constexpr uint32_t SCALES = IS_Q5 ? TILE_Q5_SCALES : TILE_Q4_SCALES;
    uint32_t scales[2], min[2], j = threadIdx.x % 4;
    uint4 high_bits[2];
    int sum[N8][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        scales[i] = read_smem<uint32_t>(w.scales[i] + SCALES);
        uint32_t mins = read_smem<uint16_t>(w.mins[i] + SCALES + TILE_MINS);
        min[i] = unpack_min(scales[i], mins);
        scales[i] &= 0x3f3f3f3fu;
        if (IS_Q5)
            high_bits[i] = read_smem<uint4>(w.high_bits[i] + TILE_HIGH_BITS);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) { /* 64 columns */
        uint32_t nibbles[4], b[N8][4];
        ldmatrix_x4(nibbles, w.matrix + half * 1024);
#pragma unroll
        for (int t = 0; t < N8; t++)
            ldmatrix_x4(b[t], a.int8 + t * a.n8_pitch + x * 128 + half * 64);
#pragma unroll
        for (int q = 0; q < 2; q++) { /* 32 columns: a block of the format, and K of an mma */
            int block = 2 * half + q;
            uint32_t f[4] = {nibbles[2 * q] & 0x0f0f0f0fu, nibbles[2 * q + 1] & 0x0f0f0f0fu,
                             nibbles[2 * q] >> 4 & 0x0f0f0f0fu,
                             nibbles[2 * q + 1] >> 4 & 0x0f0f0f0fu};
            if (IS_Q5)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t high = word(high_bits[i], block) >> j;
                    f[i] |= high << 4 & 0x10101010u;
                    f[i + 2] |= high & 0x10101010u;
                }
#pragma unroll
            for (int t = 0; t < N8; t++) {
                int c[4];
                mma_m16n8k32_s8(c, f, b[t][2 * q], b[t][2 * q + 1], 0);
                add_scaled(sum[t], c, (int)unsigned_byte(scales[0], block),
                           (int)unsigned_byte(scales[1], block));
            }
        }
    }
#pragma unroll
    for (int t = 0; t < N8; t++) {
        float2 as = read_smem<float2>(a.scales + x * a.rows * 4 + t * 32);
        float min_sum[4];
        mma_m16n8k8_f16(min_sum, min[0], min[1],
                        read_smem<uint32_t>(a.sums + x * a.rows * 16 + t * 128));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float value = __fmul_rn(d[i / 2].x, (float)sum[t][i]);
            value = __fmaf_rn(-d[i / 2].y, min_sum[i], value);
            value = __fmul_rn(i % 2 ? as.y : as.x, value);
            out[t][i] = __fadd_rn(out[t][i], value);
        }
    }
}

/* Weights are in the upper 6 bits of a byte, as in dot_q6_k: so the sum is four times what it is.
 */
template <int N8>
static __device__ __forceinline__ void mma_span_q6(const struct span_cursor<IS_Q6_K> &w,
                                                   const struct slab_view &a, uint32_t x,
                                                   const float2 (&d)[2], float (&out)[N8][4]) {
    uint32_t shift = 6 - 2 * (threadIdx.x % 4);
    uint2 scales[2];
    int sum[N8][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++)
        scales[i] = read_smem<uint2>(w.scales[i] + TILE_Q6_SCALES);
#pragma unroll
    for (int half = 0; half < 2; half++) { /* 64 columns */
        uint32_t nibbles[4], b[N8][4];
        ldmatrix_x4(nibbles, w.matrix + half * 1024);
        uint4 high_g = read_smem<uint4>(w.high_bits[0] + TILE_HIGH_BITS + half * 512);
        uint4 high_g8 = read_smem<uint4>(w.high_bits[1] + TILE_HIGH_BITS + half * 512);
#pragma unroll
        for (int t = 0; t < N8; t++)
            ldmatrix_x4(b[t], a.int8 + t * a.n8_pitch + x * 128 + half * 64);
#pragma unroll
        for (int q = 0; q < 4; q++) { /* 16 columns: they share a scale */
            uint32_t low_g = nibbles[q / 2 * 2], low_g8 = nibbles[q / 2 * 2 + 1];
            uint32_t f_g = (q % 2 ? low_g >> 2 : low_g << 2) & 0x3c3c3c3cu;
            uint32_t f_g8 = (q % 2 ? low_g8 >> 2 : low_g8 << 2) & 0x3c3c3c3cu;
            f_g |= word(high_g, q) << shift & 0xc0c0c0c0u;
            f_g8 |= word(high_g8, q) << shift & 0xc0c0c0c0u;
            int scale_g = signed_byte(half ? scales[0].y : scales[0].x, q);
            int scale_g8 = signed_byte(half ? scales[1].y : scales[1].x, q);
#pragma unroll
            for (int t = 0; t < N8; t++) {
                int c[4];
                mma_m16n8k16_s8(c, f_g, f_g8, b[t][q]);
                add_scaled(sum[t], c, scale_g, scale_g8);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < N8; t++) {
        float2 as = read_smem<float2>(a.scales + x * a.rows * 4 + t * 32);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float value = __fmul_rn(d[i / 2].x, (float)(sum[t][i] >> 2));
            value = __fmul_rn(i % 2 ? as.y : as.x, value);
            out[t][i] = __fadd_rn(out[t][i], value);
        }
    }
}

/* An mma that starts with the bits of 1.5 * 2^23 ends with those of 1.5 * 2^23 + sum: an addition
 * instead of a conversion. */
enum { INT_BIAS = 0x4b400000 };

static __device__ __forceinline__ float unbias(int sum) {
    return __fadd_rn(__int_as_float(sum), -12582912.0f);
}

/* 64 columns, two blocks of the format: half of what shares an activation scale, the upper one
 * first. value: its sum. */
template <int N8, bool IS_SECOND>
static __device__ __forceinline__ void mma_span_q8(const struct span_cursor<IS_Q8_0> &w,
                                                   const struct slab_view &a, uint32_t x,
                                                   float (&value)[N8][4], float (&out)[N8][4]) {
    float2 d[2];
    uint32_t f[2][4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        d[i] = half2_to_float2(read_smem<uint32_t>(w.scales[i] + TILE_HIGH_BITS));
        ldmatrix_x4(f[i], w.matrix + i * 1024);
    }
#pragma unroll
    for (int t = 0; t < N8; t++) {
        uint32_t b[4];
        ldmatrix_x4(b, a.int8 + t * a.n8_pitch + x * 64);
#pragma unroll
        for (int block = 0; block < 2; block++) {
            int c[4];
            mma_m16n8k32_s8(c, f[block], b[2 * block], b[2 * block + 1], INT_BIAS);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float scale = block ? d[i / 2].y : d[i / 2].x;
                value[t][i] = block || IS_SECOND ? __fmaf_rn(scale, unbias(c[i]), value[t][i])
                                                 : __fmul_rn(scale, unbias(c[i]));
            }
        }
        if (!IS_SECOND)
            continue;
        float2 as = read_smem<float2>(a.scales + x / 2 * a.rows * 4 + t * 32);
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[t][i] = __fadd_rn(out[t][i], __fmul_rn(i % 2 ? as.y : as.x, value[t][i]));
    }
}

/* d of K-quants, with Q4_K's and Q5_K's dmin: shared by 256 columns, two spans. */
template <int TYPE>
static __device__ __forceinline__ void load_d(const struct span_cursor<TYPE> &w, float2 (&d)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (TYPE == IS_Q6_K)
            d[i].x = __half2float(read_smem<__half>(w.d[i] + TILE_Q6_D));
        else if (TYPE != IS_Q8_0)
            d[i] = half2_to_float2(read_smem<uint32_t>(
                w.d[i] + (TYPE == IS_Q5_K ? TILE_Q5_SCALES : TILE_Q4_SCALES) + TILE_D));
    }
}

template <int TYPE, int N8>
static __device__ __forceinline__ void mma_span(const struct span_cursor<TYPE> &w,
                                                const struct slab_view &a, uint32_t x,
                                                const float2 (&d)[2], float (&out)[N8][4]) {
    if constexpr (TYPE == IS_Q6_K)
        mma_span_q6<N8>(w, a, x, d, out);
    else
        mma_span_q4<TYPE, N8>(w, a, x, d, out);
}

/* ---- one K block -------------------------------------------------------------------------- */

/* acc += K block; x: its first span in the slab. Its 2, 4 or 8 spans are added one by one. A sum
 * starts with -0, to which adding changes nothing. */
template <int TYPE, int N8>
static __device__ __forceinline__ void
mma_kblock(struct span_cursor<TYPE> w, const struct slab_view &a, uint32_t x, float (&acc)[N8][4]) {
    float sum[N8][4];
    uint32_t pairs = GEMM_M / w.tile_rows;
#pragma unroll
    for (int i = 0; i < 4 * N8; i++)
        sum[i / 4][i % 4] = -0.0f;
#pragma unroll 1
    for (; pairs; pairs--) {
        if constexpr (TYPE == IS_Q8_0) {
            float value[N8][4];
            const struct span_cursor<TYPE> first = w;
            w.next_span();
            mma_span_q8<N8, false>(w, a, x + 1, value, sum);
            mma_span_q8<N8, true>(first, a, x, value, sum);
        } else {
            float2 d[2];
            load_d<TYPE>(w, d);
            mma_span<TYPE, N8>(w, a, x, d, sum);
            w.next_span();
            mma_span<TYPE, N8>(w, a, x + 1, d, sum);
        }
        w.next_span();
        w.next_d();
        x += 2;
    }
#pragma unroll
    for (int i = 0; i < 4 * N8; i++)
        acc[i / 4][i % 4] = __fadd_rn(acc[i / 4][i % 4], sum[i / 4][i % 4]);
}

/* By the segment's type, one of SET. */
template <int SET, int N8>
static __device__ __forceinline__ void
mma_kblock_of_type(uint32_t type, const struct stage_view &v, uint32_t stage, uint32_t address,
                   const struct slab_view &a, uint32_t x, float (&acc)[N8][4]) {
    if (SET == IS_Q4_K || (SET & IS_Q4_K && type == IS_Q4_K))
        mma_kblock<IS_Q4_K, N8>({v, stage, address}, a, x, acc);
    else if (SET == IS_Q6_K || (SET & IS_Q6_K && type == IS_Q6_K))
        mma_kblock<IS_Q6_K, N8>({v, stage, address}, a, x, acc);
    else if (SET == IS_Q8_0 || (SET & IS_Q8_0 && type == IS_Q8_0))
        mma_kblock<IS_Q8_0, N8>({v, stage, address}, a, x, acc);
    else if (SET & IS_Q5_K)
        mma_kblock<IS_Q5_K, N8>({v, stage, address}, a, x, acc);
}

#endif
