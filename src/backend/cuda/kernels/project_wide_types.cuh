/* project_wide_types.cuh - what project_wide.cu does for each weight type: a stage's layout,
 * weights unpacked to fp16 fragments, a group's products scaled. */
#ifndef BACKEND_CUDA_KERNELS_PROJECT_WIDE_TYPES_CUH
#define BACKEND_CUDA_KERNELS_PROJECT_WIDE_TYPES_CUH

#include "backend/cuda/kernels/project_wide_store.cuh"

#if __CUDA_ARCH_FEAT_SM90_ALL

/* ---- a stage ------------------------------------------------------------------------------ */

/* Whether both operands are int8, which wgmma reads from shared memory: project_wide_q8.cuh. */
template <int TYPE, int ROWS> constexpr bool IS_ALL_INT8 = TYPE == IS_Q8_0 &&ROWS == 128;

/* Offsets in a stage: the quantized activations of ROWS rows, then the bytes of the weight rows. */
template <int TYPE, int ROWS> struct stage_layout {
    enum : uint32_t {
        PANEL = ROWS * 128,
        SCALES = (IS_ALL_INT8<TYPE, ROWS> ? 1 : 2) * PANEL,
        SCALE_BYTES = ROWS * 4,
        SUMS = SCALES + SCALE_BYTES,
        SUM_BYTES = TYPE == IS_Q8_0 ? 0 : ROWS * 16,
        QUANTS = (SUMS + SUM_BYTES + 127) / 128 * 128,
        HIGH_BITS = QUANTS + (TYPE == IS_Q8_0 ? 8 : 4) * WIDE_CHUNK,
        W_SCALES = HIGH_BITS + (TYPE == IS_Q5_K   ? 1
                                : TYPE == IS_Q6_K ? 2
                                                  : 0) *
                                   WIDE_CHUNK,
        W_MINS = W_SCALES + WIDE_N * (TYPE == IS_Q8_0   ? 0
                                      : TYPE == IS_Q6_K ? 8
                                                        : 4),
        W_D = W_MINS + WIDE_N * (TYPE == IS_Q4_K || TYPE == IS_Q5_K ? 2 : 0),
        END = W_D + WIDE_N * (TYPE == IS_Q8_0 ? 8 : 4),
    };
};

/* Descriptor of activations: rows of 128 bytes, swizzled, n8 of them 1024 bytes. */
static __device__ __forceinline__ uint64_t describe_panel(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

template <class T> static __device__ __forceinline__ T peek(uint32_t at) {
    return *(const T *)__cvta_shared_to_generic(at);
}

/* ---- unpacking weights -------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t as_u32(__half2 h) {
    return *reinterpret_cast<uint32_t *>(&h);
}

static __device__ __forceinline__ __half2 as_half2(uint32_t v) {
    return *reinterpret_cast<__half2 *>(&v);
}

static __device__ __forceinline__ __half2 times(__half2 a, float b) {
    return __hmul2(a, __float2half2_rn(b));
}

/* Two bytes at once: 0x64 above a byte is the half 1024 + byte. */
template <uint32_t FROM> static __device__ __forceinline__ __half2 int8_pair(uint32_t flipped) {
    return __hsub2(as_half2(__byte_perm(flipped, 0x64646464u, FROM)), __float2half2_rn(1152));
}

/* Unpacked weights of 64 columns, four steps of 16: what a part of a group is multiplied from. A
 * group has two parts, of Q6_K four: first the lower bits, then the upper. */
typedef uint32_t fragments[4][4];

/* Factors of a thread's quants of a weight row in a group. */
template <int TYPE> struct weight_scales {};

/* Q4_K and Q5_K: a block's, for quants in the lower and in the upper nibbles. */
struct q4_scales {
    __half2 low, high;

    template <class L> __device__ __forceinline__ void load(uint32_t at, uint32_t row, uint32_t j) {
        uint32_t scale = peek<uint8_t>(at + L::W_SCALES + row * 4 + j) & 63;
        high = times(times(as_half2(scale * 0x00010001u), 32768), 32768); /* 2^6 */
        low = times(high, 16);
    }
};
template <> struct weight_scales<IS_Q4_K> : q4_scales {};
template <> struct weight_scales<IS_Q5_K> : q4_scales {};

/* Q6_K: each half of the block has a scale: that of low nibbles (a), and of high ones (b). */
template <> struct weight_scales<IS_Q6_K> {
    __half2 a, b, offset_a, offset_b;

    /* Of the lower bits. */
    template <class L> __device__ __forceinline__ void load(uint32_t at, uint32_t row, uint32_t j) {
        uint32_t flipped = peek<uint16_t>(at + L::W_SCALES + row * 8 + j * 2) ^ 0x8080u;
        a = times(int8_pair<0x4040>(flipped), 256);
        b = times(int8_pair<0x4141>(flipped), 16);
        offset_a = times(a, -0x1p-21f);
        offset_b = times(b, -0x1p-17f);
    }

    /* From those to the upper bits', which are in the first place of a half, or in the third. */
    template <bool IS_THIRD> __device__ __forceinline__ void raise(void) {
        a = IS_THIRD ? times(a, 1 / 16.0f) : a;
        b = IS_THIRD ? b : times(b, 16);
        offset_a = times(offset_a, 3 / 16.0f);
        offset_b = times(offset_b, 3 / 16.0f);
    }

    __device__ __forceinline__ void next_place(void) {
        a = times(a, 0.25f), b = times(b, 0.25f);
    }
};

/* Whether scales are kept for all parts of a group: to make them again is a tenth of Q6_K's
 * instructions. Tiles of 128 rows, and of 32 with two thread blocks an SM, would spill. */
template <int ROWS> constexpr bool KEEPS_SCALES = ROWS == 64;

/* The scales of a part, from those of the part before where these are kept. */
template <int TYPE, int ROWS, int PART>
static __device__ __forceinline__ void load_scales_of(struct weight_scales<TYPE> &scales,
                                                      uint32_t at, uint32_t row, uint32_t j) {
    constexpr bool IS_FIRST = PART == 0 || !KEEPS_SCALES<ROWS>;
    if constexpr (IS_FIRST)
        scales.template load<stage_layout<TYPE, ROWS>>(at, row, j);
    if constexpr (TYPE == IS_Q6_K && PART == 3 && !IS_FIRST)
        scales.next_place();
    else if constexpr (TYPE == IS_Q6_K && PART >= 2)
        scales.template raise<PART == 3>();
}

/* scale * q * 2^-14 of Q4_K; scale * (q - 16) * 2^-14 of Q5_K. */
template <int TYPE, int ROWS, int PART>
static __device__ __forceinline__ void
unpack_q4(fragments &f, struct weight_scales<TYPE> (&scales)[2], uint32_t at) {
    using L = stage_layout<TYPE, ROWS>;
    const thread_place own;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = own.row + 8 * i;
        uint2 raw = peek<uint2>(at + L::QUANTS + own.j * WIDE_CHUNK + row * 16 + PART * 8);
        load_scales_of<TYPE, ROWS, PART>(scales[i], at, row, own.j);
        uint32_t bits = 0;
        if (TYPE == IS_Q5_K)
            bits = peek<uint32_t>(at + L::HIGH_BITS + row * 16 + own.j * 4);
        __half2 offset = times(scales[i].high, -0x1p-16f); /* -16 * scale * 2^-14 */
#pragma unroll
        for (int step = 0; step < 4; step++) {
            int w = step / 2 + 2 * PART; /* word of the block's 16 bytes */
            uint32_t q = (step / 2 ? raw.y : raw.x) >> (step % 2 * 8);
            uint32_t a = q & 0x000f000fu, b = q & 0x00f000f0u;
            if (TYPE == IS_Q5_K) {
                uint32_t h = step % 2 ? bits >> (4 + w) : bits << (4 - w);
                a |= h & 0x00100010u, b |= h & 0x01000100u;
                f[step][i] = as_u32(__hfma2(as_half2(a), scales[i].low, offset));
                f[step][i + 2] = as_u32(__hfma2(as_half2(b), scales[i].high, offset));
            } else {
                f[step][i] = as_u32(__hmul2(as_half2(a), scales[i].low));
                f[step][i + 2] = as_u32(__hmul2(as_half2(b), scales[i].high));
            }
        }
    }
}

/* scale * (low - 8) * 2^-16. */
template <int ROWS, int PART>
static __device__ __forceinline__ void
unpack_q6_low(fragments &f, struct weight_scales<IS_Q6_K> (&scales)[2], uint32_t at) {
    using L = stage_layout<IS_Q6_K, ROWS>;
    const thread_place own;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = own.row + 8 * i;
        uint2 raw = peek<uint2>(at + L::QUANTS + own.j * WIDE_CHUNK + row * 16 + PART * 8);
        struct weight_scales<IS_Q6_K> &by = scales[i];
        load_scales_of<IS_Q6_K, ROWS, PART>(by, at, row, own.j);
#pragma unroll
        for (int step = 0; step < 4; step++) {
            uint32_t q = (step / 2 ? raw.y : raw.x) >> (step % 2 * 8);
            f[step][i] = as_u32(__hfma2(as_half2(q & 0x000f000fu), by.a, by.offset_a));
            f[step][i + 2] = as_u32(__hfma2(as_half2(q & 0x00f000f0u), by.b, by.offset_b));
        }
    }
}

/* scale * (2 r - 3) * 2^-17. Bits stay at their place in the lower 10 of a half, and the scales go
 * down by 4 from place to place: fewer instructions than to shift every pair. */
template <int ROWS, int PART>
static __device__ __forceinline__ void
unpack_q6_high(fragments &f, struct weight_scales<IS_Q6_K> (&scales)[2], uint32_t at) {
    using L = stage_layout<IS_Q6_K, ROWS>;
    const thread_place own;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = own.row + 8 * i;
        uint2 bits =
            peek<uint2>(at + L::HIGH_BITS + own.j / 2 * WIDE_CHUNK + row * 16 + own.j % 2 * 8);
        struct weight_scales<IS_Q6_K> &by = scales[i];
        load_scales_of<IS_Q6_K, ROWS, PART>(by, at, row, own.j);
        bits.x ^= 0xaaaaaaaau, bits.y ^= 0xaaaaaaaau;
        compute_once(bits); /* not with every mask */
#pragma unroll
        for (int step = 0; step < 4; step++) {
            uint32_t mask = 0x00030003u << (step / 2 * 2 + (PART - 2) * 4);
            uint32_t a = bits.x >> (step % 2 * 8), b = bits.y >> (step % 2 * 8);
            f[step][i] = as_u32(__hfma2(as_half2(a & mask), by.a, by.offset_a));
            f[step][i + 2] = as_u32(__hfma2(as_half2(b & mask), by.b, by.offset_b));
            if (step == 1)
                by.next_place();
        }
    }
}

/* q. A step of 16 columns is a chunk; a thread has the columns 4 j ... of it. */
template <int ROWS>
static __device__ __forceinline__ void unpack_q8(fragments &f, uint32_t at, int half) {
    using L = stage_layout<IS_Q8_0, ROWS>;
    const thread_place own;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int step = 0; step < 4; step++) {
            uint32_t q = peek<uint32_t>(at + L::QUANTS + (half * 4 + step) * WIDE_CHUNK +
                                        (own.row + 8 * i) * 16 + own.j * 4) ^
                         0x80808080u;
            f[step][i] = as_u32(int8_pair<0x4140>(q));
            f[step][i + 2] = as_u32(int8_pair<0x4342>(q));
        }
}

template <int TYPE, int ROWS, int PART>
static __device__ __forceinline__ void
unpack_part(fragments &f, struct weight_scales<TYPE> (&scales)[2], uint32_t at) {
    if constexpr (TYPE == IS_Q6_K && PART < 2)
        unpack_q6_low<ROWS, PART>(f, scales, at);
    else if constexpr (TYPE == IS_Q6_K)
        unpack_q6_high<ROWS, PART>(f, scales, at);
    else if constexpr (TYPE == IS_Q8_0)
        unpack_q8<ROWS>(f, at, PART);
    else
        unpack_q4<TYPE, ROWS, PART>(f, scales, at);
        /* Here, not earlier or later: registers are few. */
#pragma unroll
    for (int i = 0; i < 16; i++)
        materialize(f[i / 4][i % 4]);
}

/* ---- scaling ------------------------------------------------------------------------------ */

/* What a thread keeps from group to group: of its two weight rows, and rows 8 i + 2 j and the next
 * of the activations: [4 i ...]. */
template <int TYPE, int ROWS> struct wide_sums {
    static constexpr int PRODUCTS = TYPE == IS_Q6_K ? 2 : TYPE == IS_Q8_0 ? 4 : 1;
    float c[PRODUCTS][ROWS / 2];          /* of a group */
    float kblock[ROWS / 2];               /* groups of a K block */
    float split[ROWS / 2];                /* K blocks of a split */
    fragments f[2];                       /* of parts in flight */
    struct weight_scales<TYPE> scales[2]; /* of the weight rows: KEEPS_SCALES */
};

/* Activation scales of rows 8 i + 2 j and the next, i = 0 ... 3 of 32 rows. */
struct act_scales {
    float4 v[2];

    act_scales(void) = default;
    __device__ __forceinline__ act_scales(uint32_t at) {
        v[0] = peek<float4>(at);
        v[1] = peek<float4>(at + 64);
    }

    /* x: of the fragment's four. */
    __device__ __forceinline__ float get(int i, int x) const {
        float4 w = v[i / 2];
        return i % 2 ? (x % 2 ? w.w : w.z) : (x % 2 ? w.y : w.x);
    }
};

/* The minimum (6 bits) of a row's block j, times 2^-24. */
static __device__ __forceinline__ uint32_t min_pair(uint32_t scale, uint32_t mins, uint32_t j) {
    return ((mins >> ((j & 1) * 8 + (j >> 1) * 4) & 15) | (scale >> 2 & 0x30)) * 0x00010001u;
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void scale_q4(struct wide_sums<TYPE, ROWS> &s, uint32_t at) {
    using L = stage_layout<TYPE, ROWS>;
    const thread_place own;
    uint32_t lane = own.row % 8 * 4 + own.j, mins[2], scales[2];
    float2 d[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = own.row + 8 * i;
        uint32_t scale = peek<uint8_t>(at + L::W_SCALES + row * 4 + own.j);
        mins[i] = min_pair(scale, peek<uint16_t>(at + L::W_MINS + row * 2), own.j);
        scales[i] = (scale & 63) * 0x00010001u;
        d[i] = half2_to_float2(peek<uint32_t>(at + L::W_D + row * 4));
        d[i].x *= 0x1p14f;
        d[i].y *= -0x1p24f;
    }
#pragma unroll
    for (int four = 0; four < ROWS / 32; four++) {
        uint4 sum = peek<uint4>(at + L::SUMS + four * 512 + lane * 16);
        const act_scales as(at + L::SCALES + four * 128 + own.j * 16);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = four * 4 + e;
            float min_sum[4], scale_sum[4];
            mma_m16n8k8_f16(min_sum, mins[0], mins[1], word(sum, e));
            if (TYPE == IS_Q5_K)
                mma_m16n8k8_f16(scale_sum, scales[0], scales[1], word(sum, e));
#pragma unroll
            for (int x = 0; x < 4; x++) {
                float c = s.c[0][i * 4 + x];
                if (TYPE == IS_Q5_K) /* 16 * 2^-14 / 2^-24 */
                    c = __fmaf_rn(0x1p14f, scale_sum[x], c);
                float v = __fmul_rn(d[x / 2].x, c);
                v = __fmul_rn(as.get(e, x), __fmaf_rn(d[x / 2].y, min_sum[x], v));
                s.kblock[i * 4 + x] = __fadd_rn(s.kblock[i * 4 + x], v);
            }
        }
    }
}

template <int ROWS>
static __device__ __forceinline__ void scale_q6(struct wide_sums<IS_Q6_K, ROWS> &s, uint32_t at) {
    using L = stage_layout<IS_Q6_K, ROWS>;
    const thread_place own;
    float d[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        d[i] = __half2float(peek<__half>(at + L::W_D + (own.row + 8 * i) * 2)) * 0x1p16f;
#pragma unroll
    for (int four = 0; four < ROWS / 32; four++) {
        const act_scales as(at + L::SCALES + four * 128 + own.j * 16);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int x = 0; x < 4; x++) {
                int i = (four * 4 + e) * 4 + x;
                float c = __fmaf_rn(16, s.c[1][i], s.c[0][i]); /* 8 * 2^-16 / 2^-17 */
                float v = __fmul_rn(as.get(e, x), __fmul_rn(d[x / 2], c));
                s.kblock[i] = __fadd_rn(s.kblock[i], v);
            }
    }
}

/* The scales of a weight row's four blocks. */
struct q8_factors {
    float v[4];

    __device__ __forceinline__ q8_factors(uint32_t at) {
        uint2 d = peek<uint2>(at);
        float2 low = half2_to_float2(d.x), high = half2_to_float2(d.y);
        v[0] = low.x, v[1] = low.y, v[2] = high.x, v[3] = high.y;
    }
};

template <int ROWS>
static __device__ __forceinline__ void scale_q8(struct wide_sums<IS_Q8_0, ROWS> &s, uint32_t at) {
    using L = stage_layout<IS_Q8_0, ROWS>;
    const thread_place own;
    const q8_factors d[2] = {{at + L::W_D + own.row * 8}, {at + L::W_D + own.row * 8 + 64}};
#pragma unroll
    for (int four = 0; four < ROWS / 32; four++) {
        const act_scales as(at + L::SCALES + four * 128 + own.j * 16);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int x = 0; x < 4; x++) {
                int i = (four * 4 + e) * 4 + x;
                float v = __fmul_rn(d[x / 2].v[2], s.c[2][i]);
#pragma unroll
                for (int block = 3; block < 6; block++)
                    v = __fmaf_rn(d[x / 2].v[block % 4], s.c[block % 4][i], v);
                s.kblock[i] = __fadd_rn(s.kblock[i], __fmul_rn(as.get(e, x), v));
            }
    }
}

/* Adds the products of a group, which are complete, to the K block's sums. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void scale_group(struct wide_sums<TYPE, ROWS> &s, uint32_t at) {
#pragma unroll
    for (int i = 0; i < s.PRODUCTS * (ROWS / 2); i++) /* nothing is read before the wait */
        materialize(s.c[i / (ROWS / 2)][i % (ROWS / 2)]);
    if constexpr (TYPE == IS_Q6_K) {
        scale_q6<ROWS>(s, at);
    } else if constexpr (TYPE == IS_Q8_0) {
        scale_q8<ROWS>(s, at);
    } else {
        scale_q4<TYPE, ROWS>(s, at);
    }
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) /* done here, not later */
        materialize(s.kblock[i], s.split[i]);
}

#endif

#endif
