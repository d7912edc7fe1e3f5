/* project_gemm_kblock.cuh - a kblock of a m16_tile against 8 NT rows of activations, on tensor
 * cores: what project_many.cu's warps do most of the time. */
#ifndef BACKEND_CUDA_KERNELS_PROJECT_GEMM_KBLOCK_CUH
#define BACKEND_CUDA_KERNELS_PROJECT_GEMM_KBLOCK_CUH

#include "backend/cuda/kernels/project_gemv.cuh"
#include "backend/cuda/ops/project_gemm.h"

/* ---- registers --------------------------------------------------------------------------------
 */

/* The products need all registers that there are, and what does not fit goes to memory, far away
 * since shared memory leaves no room for a cache. So what is quickly found again is not kept; the
 * compiler would, if it knew that it is the same. */
/* ---- products ---------------------------------------------------------------------------------
 */

/* Activations in shared memory, as a lane reads them: 8 NT rows. */
struct many_acts {
    uint32_t numbers; /* an address: row lane % 8, columns lane / 8 * 16... */
    uint32_t pitch;   /* from 8 rows to the next 8 */
    uint32_t scales;  /* of rows 2 j and 2 j + 1, from the start of shared memory */
    uint32_t sums;    /* of row g, columns 32 j... */
    uint32_t rows;    /* of the qact */
    uint32_t shift;   /* 128 columns have 1 << shift scales */
};

/* Of a k_slab of the qact, the i-th in shared memory; row: the warp's first. */
static __device__ __forceinline__ struct many_acts acts_of(const struct many_params &m, uint32_t i,
                                                           uint32_t row) {
    extern __shared__ uint4 shared[];
    const struct many_image &e = m.qacts;
    uint32_t lane = volatile_lane(), pitch = (1u << e.band_shift) + 16;
    uint32_t k_slab = m.p.qact_at + i * e.band_bytes;
    struct many_acts a;
    a.numbers = smem_addr(shared) + k_slab + (row + lane % 8) * pitch + lane / 8 * 16;
    a.pitch = 8 * pitch;
    a.scales = k_slab + e.scales_at + row * 4 + lane % 4 * 8;
    a.sums = k_slab + e.sums_at + row * 16 + lane * 4;
    a.rows = e.rows;
    a.shift = e.group == 128 ? 0 : 2;
    return a;
}

/* Where a lane finds its part of a m16_tile's kblocks: for rows g and g + 8 the tile's kblock, from
 * the start of a stage, and the row there, which is the number of the lane that owns its first
 * columns.
 */
struct many_view {
    uint32_t matrix; /* for ldmatrix_x4, from the start of a stage */
    uint32_t kblock[2], row[2];
    uint32_t rows; /* T: so many lanes on are the row's next columns */
};

static __device__ __forceinline__ struct many_view view_of(uint32_t rows, uint32_t stage_bytes) {
    uint32_t lane = volatile_lane(), g = lane / 4, half = lane / 8 % 2, r = lane % 8;
    struct many_view v;
    v.rows = rows;
    v.matrix = lane / 16 * 512; /* matrices 2 and 3 are of the next piece */
    if (rows == 16) {
        v.matrix += (half * 8 + r) * 16;
        v.kblock[0] = v.kblock[1] = 0;
        v.row[0] = g, v.row[1] = g + 8;
    } else if (rows == 8) {
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

/* What is read of 128 columns (64 of Q8_0), group by group; all but the matrices from the start of
 * shared memory. A group further they are `rows` lanes on. */
template <int TYPE> struct many_places {
    static constexpr uint32_t SCALE = TYPE == IS_Q6_K ? 8 : 4; /* bytes of a lane */
    static constexpr uint32_t D = TYPE == IS_Q6_K ? 2 : 4;
    uint32_t matrix;    /* an address */
    uint32_t scales[2]; /* Q8_0: d */
    uint32_t mins[2];   /* of Q4_K and Q5_K */
    uint32_t more[2];   /* upper bits of Q5_K and Q6_K */
    uint32_t d[2];      /* a pair of groups further: `rows` on */
    uint32_t rows;

    __device__ __forceinline__ many_places(const struct many_view &v, uint32_t stage,
                                           uint32_t address) {
        matrix = address + v.matrix;
        rows = v.rows;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t kblock = stage + v.kblock[i];
            scales[i] = kblock + v.row[i] * SCALE;
            mins[i] = kblock + v.row[i] * 2;
            more[i] = kblock + v.row[i] * 16;
            d[i] = kblock + v.row[i] * D;
        }
    }

    __device__ __forceinline__ void next(void) {
        matrix += rows * 16;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            scales[i] += rows * SCALE;
            mins[i] += rows * 2;
            more[i] += rows * 16;
        }
    }

    __device__ __forceinline__ void next_pair(void) {
        d[0] += rows * D;
        d[1] += rows * D;
    }
};

template <class T> static __device__ __forceinline__ T peek(uint32_t at) {
    extern __shared__ uint4 shared[];
    return *(const T *)((const uint8_t *)shared + at);
}

static __device__ __forceinline__ uint32_t byte_of(uint32_t v, uint32_t i) {
    return __byte_perm(v, 0, 0x4440 + i);
}

/* Integers of the m16_tile against 8 rows, scaled: those of row g by a, of row g + 8 by b. */
static __device__ __forceinline__ void add_scaled(int (&sum)[4], const int (&c)[4], int a, int b) {
    sum[0] += a * c[0];
    sum[1] += a * c[1];
    sum[2] += b * c[2];
    sum[3] += b * c[3];
}

/* The minimum of columns 32 j... of a row, as a pair of halves. */
static __device__ __forceinline__ uint32_t min_pair(uint32_t scales, uint32_t mins) {
    uint32_t j = threadIdx.x % 4;
    uint32_t min = (mins >> ((j & 1) * 8 + (j >> 1) * 4) & 15) | (scales >> (8 * j + 2) & 0x30);
    uint32_t pair = min * 0x00010001u + 0x64006400u; /* 1024 more, as halves have it */
    __half2 h = __hadd2(*reinterpret_cast<__half2 *>(&pair), __floats2half2_rn(-1024, -1024));
    return *reinterpret_cast<uint32_t *>(&h);
}

/* 128 columns, numbered x among those of the k_slab. */
template <int TYPE, int NT>
static __device__ __forceinline__ void many_q4(const struct many_places<TYPE> &v,
                                               const struct many_acts &a, uint32_t x,
                                               const float2 (&d)[2], float (&out)[NT][4]) {
    constexpr bool IS_5 = TYPE == IS_Q5_K;
    constexpr uint32_t SCALES = IS_5 ? TILE_Q5_SCALES : TILE_Q4_SCALES;
    uint32_t scales[2], pairs[2], j = threadIdx.x % 4;
    uint4 bits[2];
    int sum[NT][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        scales[i] = peek<uint32_t>(v.scales[i] + SCALES);
        uint32_t mins = peek<uint16_t>(v.mins[i] + SCALES + TILE_MINS);
        pairs[i] = min_pair(scales[i], mins);
        scales[i] &= 0x3f3f3f3fu;
        if (IS_5)
            bits[i] = peek<uint4>(v.more[i] + TILE_HIGH_BITS);
    }
#pragma unroll
    for (int two = 0; two < 2; two++) {
        uint32_t w[4], b[NT][4];
        ldmatrix_x4(w, v.matrix + two * 1024);
#pragma unroll
        for (int t = 0; t < NT; t++)
            ldmatrix_x4(b[t], a.numbers + t * a.pitch + x * 128 + two * 64);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int piece = 2 * two + h;
            uint32_t f[4] = {w[2 * h] & 0x0f0f0f0fu, w[2 * h + 1] & 0x0f0f0f0fu,
                             w[2 * h] >> 4 & 0x0f0f0f0fu, w[2 * h + 1] >> 4 & 0x0f0f0f0fu};
            if (IS_5)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t more = word(bits[i], piece) >> j;
                    f[i] |= more << 4 & 0x10101010u;
                    f[i + 2] |= more & 0x10101010u;
                }
#pragma unroll
            for (int t = 0; t < NT; t++) {
                int c[4];
                mma_m16n8k32_s8(c, f, b[t][2 * h], b[t][2 * h + 1], 0);
                add_scaled(sum[t], c, (int)byte_of(scales[0], piece),
                           (int)byte_of(scales[1], piece));
            }
        }
    }
#pragma unroll
    for (int t = 0; t < NT; t++) {
        float2 as = peek<float2>(a.scales + x * a.rows * 4 + t * 32);
        float least[4];
        mma_m16n8k8_f16(least, pairs[0], pairs[1],
                        peek<uint32_t>(a.sums + x * a.rows * 16 + t * 128));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float value = __fmul_rn(d[i / 2].x, (float)sum[t][i]);
            value = __fmaf_rn(-d[i / 2].y, least[i], value);
            out[t][i] = __fmul_rn(i % 2 ? as.y : as.x, value);
        }
    }
}

/* As dot_q6_k, numbers are four times what they should be. */
template <int NT>
static __device__ __forceinline__ void many_q6(const struct many_places<IS_Q6_K> &v,
                                               const struct many_acts &a, uint32_t x,
                                               const float2 (&d)[2], float (&out)[NT][4]) {
    uint32_t shift = 6 - 2 * (threadIdx.x % 4);
    uint2 scales[2];
    int sum[NT][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++)
        scales[i] = peek<uint2>(v.scales[i] + TILE_Q6_SCALES);
#pragma unroll
    for (int two = 0; two < 2; two++) {
        uint32_t w[4], b[NT][4];
        ldmatrix_x4(w, v.matrix + two * 1024);
        uint4 one = peek<uint4>(v.more[0] + TILE_HIGH_BITS + two * 512);
        uint4 other = peek<uint4>(v.more[1] + TILE_HIGH_BITS + two * 512);
#pragma unroll
        for (int t = 0; t < NT; t++)
            ldmatrix_x4(b[t], a.numbers + t * a.pitch + x * 128 + two * 64);
#pragma unroll
        for (int h = 0; h < 4; h++) { /* runs of 16 columns */
            uint32_t n = w[h / 2 * 2], m = w[h / 2 * 2 + 1];
            uint32_t f = (h % 2 ? n >> 2 : n << 2) & 0x3c3c3c3cu;
            uint32_t g = (h % 2 ? m >> 2 : m << 2) & 0x3c3c3c3cu;
            f |= word(one, h) << shift & 0xc0c0c0c0u;
            g |= word(other, h) << shift & 0xc0c0c0c0u;
            int s = signed_byte(two ? scales[0].y : scales[0].x, h);
            int r = signed_byte(two ? scales[1].y : scales[1].x, h);
#pragma unroll
            for (int t = 0; t < NT; t++) {
                int c[4];
                mma_m16n8k16_s8(c, f, g, b[t][h]);
                add_scaled(sum[t], c, s, r);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < NT; t++) {
        float2 as = peek<float2>(a.scales + x * a.rows * 4 + t * 32);
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[t][i] =
                __fmul_rn(i % 2 ? as.y : as.x, __fmul_rn(d[i / 2].x, (float)(sum[t][i] >> 2)));
    }
}

/* Sums begin with 1.5 * 2^23, as the bits of a float: then they are floats, too large by that. */
enum { MAGIC = 0x4b400000 };

static __device__ __forceinline__ float number(int sum) {
    return __fadd_rn(__int_as_float(sum), -12582912.0f);
}

/* 64 columns, numbered x. */
template <int NT>
static __device__ __forceinline__ void many_q8(const struct many_places<IS_Q8_0> &v,
                                               const struct many_acts &a, uint32_t x,
                                               float (&out)[NT][4]) {
    float2 d[2];
    uint32_t w[2][4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        d[i] = half2_to_float2(peek<uint32_t>(v.scales[i] + TILE_HIGH_BITS));
        ldmatrix_x4(w[i], v.matrix + i * 1024);
    }
#pragma unroll
    for (int t = 0; t < NT; t++) {
        uint32_t b[4];
        ldmatrix_x4(b, a.numbers + t * a.pitch + x * 64);
#pragma unroll
        for (int block = 0; block < 2; block++) {
            int c[4];
            mma_m16n8k32_s8(c, w[block], b[2 * block], b[2 * block + 1], MAGIC);
            uint32_t group = (2 * x + block) << a.shift >> 2;
            float2 as = peek<float2>(a.scales + group * a.rows * 4 + t * 32);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float scale = __fmul_rn(block ? d[i / 2].y : d[i / 2].x, i % 2 ? as.y : as.x);
                out[t][i] = block ? __fmaf_rn(scale, number(c[i]), out[t][i])
                                  : __fmul_rn(scale, number(c[i]));
            }
        }
    }
}

/* The scales that 256 columns share: of Q4_K and Q5_K with the minimums'. */
template <int TYPE>
static __device__ __forceinline__ void load_d(const struct many_places<TYPE> &v, float2 (&d)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (TYPE == IS_Q6_K)
            d[i].x = __half2float(peek<__half>(v.d[i] + TILE_Q6_D));
        else if (TYPE != IS_Q8_0)
            d[i] = half2_to_float2(peek<uint32_t>(
                v.d[i] + (TYPE == IS_Q5_K ? TILE_Q5_SCALES : TILE_Q4_SCALES) + TILE_D));
    }
}

template <int TYPE, int NT>
static __device__ __forceinline__ void many_group(const struct many_places<TYPE> &v,
                                                  const struct many_acts &a, uint32_t x,
                                                  const float2 (&d)[2], float (&out)[NT][4]) {
    if constexpr (TYPE == IS_Q6_K)
        many_q6<NT>(v, a, x, d, out);
    else if constexpr (TYPE == IS_Q8_0)
        many_q8<NT>(v, a, x, out);
    else
        many_q4<TYPE, NT>(v, a, x, d, out);
}

/* A kblock of a m16_tile; x: its first group among those of the k_slab. Groups are added as a tree:
 * neighbours, pairs, and pairs of pairs where there are eight: then the first two pairs wait in
 * memory, since registers are few. -0 changes nothing that is added to it. */
template <int TYPE, int NT>
static __device__ __forceinline__ void
many_unit(struct many_places<TYPE> v, const struct many_acts &a, uint32_t x, float (&acc)[NT][4]) {
    float sum[NT][4];
    volatile float before[NT][4];
    uint32_t pairs = MANY_STRIP / v.rows;
#pragma unroll
    for (int i = 0; i < 4 * NT; i++)
        sum[i / 4][i % 4] = -0.0f;
#pragma unroll 1
    for (uint32_t pair = 0; pair < pairs; pair++) {
        float2 d[2];
        float one[NT][4], two[NT][4];
        if (pair == 2)
#pragma unroll
            for (int i = 0; i < 4 * NT; i++) {
                before[i / 4][i % 4] = sum[i / 4][i % 4];
                sum[i / 4][i % 4] = -0.0f;
            }
        load_d<TYPE>(v, d);
        many_group<TYPE, NT>(v, a, x, d, one);
        v.next();
        many_group<TYPE, NT>(v, a, x + 1, d, two);
        v.next();
        v.next_pair();
        x += 2;
#pragma unroll
        for (int i = 0; i < 4 * NT; i++)
            sum[i / 4][i % 4] =
                __fadd_rn(sum[i / 4][i % 4], __fadd_rn(one[i / 4][i % 4], two[i / 4][i % 4]));
    }
    if (pairs == 4)
#pragma unroll
        for (int i = 0; i < 4 * NT; i++)
            sum[i / 4][i % 4] = __fadd_rn(before[i / 4][i % 4], sum[i / 4][i % 4]);
#pragma unroll
    for (int i = 0; i < 4 * NT; i++)
        acc[i / 4][i % 4] = __fadd_rn(acc[i / 4][i % 4], sum[i / 4][i % 4]);
}

template <int SET, int NT>
static __device__ __forceinline__ void
many_unit_of(uint32_t type, const struct many_view &v, uint32_t stage, uint32_t address,
             const struct many_acts &a, uint32_t x, float (&acc)[NT][4]) {
    if (SET == IS_Q4_K || (SET & IS_Q4_K && type == IS_Q4_K))
        many_unit<IS_Q4_K, NT>({v, stage, address}, a, x, acc);
    else if (SET == IS_Q6_K || (SET & IS_Q6_K && type == IS_Q6_K))
        many_unit<IS_Q6_K, NT>({v, stage, address}, a, x, acc);
    else if (SET == IS_Q8_0 || (SET & IS_Q8_0 && type == IS_Q8_0))
        many_unit<IS_Q8_0, NT>({v, stage, address}, a, x, acc);
    else if (SET & IS_Q5_K)
        many_unit<IS_Q5_K, NT>({v, stage, address}, a, x, acc);
}

#endif
