/* project_wide.cu - PROJECT for 128 rows and more, on wgmma (sm_90a), with the bits of one row.
 *
 *   out[row][n] = epilogue(factor[row] * sum over k of w[n][k] * a[row][k])
 *
 * Why halves. A group is 128 columns that share an activation scale. Its integer sum, in the gemv
 * kernels sum of scale * sum(q * x) over its blocks, is also the sum of (scale * q) * x, and with
 * |x| <= 127 all of that is exact on fp16 tensor cores, where f32 sums below 2^24 are integers:
 *
 *   Q4_K   scale * q <= 945
 *   Q5_K   scale * (q - 16) <= 1008 in size, and 16 * (sum of scale * sum(x)) added by an fma,
 *          which rounds to the same float as converting the integer does
 *   Q6_K   q = 8 (2 r - 3) + (low - 8), r the upper two bits, low the nibble: scale * (2 r - 3) <=
 *          384 and scale * (low - 8) <= 1024 in two sums, which an fma adds
 *   Q8_0   q itself, a sum for every 32 columns
 *
 * Minimums times sums of activations are a small mma, as in project_gemm_kblock.cuh. A quant in the
 * lowest bits of a half is a denormal, q * 2^-24: a mask and one multiplication (or fma) unpack two
 * of them; the powers of two that are left go into d, exactly.
 *
 * Order of sums, that of the gemv kernels (project_gemv.cuh): groups of a K block (of Q8_0, halves
 * of a group) one by one, K blocks of a split from 0 on, splits from 0 on.
 *
 * Who does what. A thread block, one an SM, takes tiles of 128 weight rows by 128 (64) rows of
 * activations; a stage of its ring has 128 columns of both. The last warpgroup copies: one bulk
 * copy (four) for the activations, and a thread a weight row gathers the row's bytes out of the
 * tiles. The other two have 64 weight rows each: a thread unpacks weights into the A registers of
 * wgmma, which columns a step of 16 has is chosen (image_word) so that all of a thread's columns
 * are one block of 32 with one scale. 64 columns are unpacked while the 64 before are multiplied,
 * and the next group's first while its last are. Then the sums are scaled and added while the other
 * warpgroup multiplies.
 *
 * Bytes: of a tile 276 a row of activations and 72 to 136 a weight row for every 128 columns, out
 * of L2. H200, 4096 rows: see docs/lab/kernels.md. */
#include "backend/cuda/kernels/project_gemv.cuh"
#include "backend/cuda/ops/project_wide.h"

#if __CUDA_ARCH_FEAT_SM90_ALL

/* ---- shared memory ---------------------------------------------------------------------------
 */

/* Offsets in a stage: the image of ROWS rows, then the bytes of the weight rows. */
template <int TYPE, int ROWS> struct stage_layout {
    enum : uint32_t {
        PANEL = ROWS * 128,
        SCALES = 2 * PANEL,
        SCALE_BYTES = ROWS * (TYPE == IS_Q8_0 ? 16 : 4),
        SUMS = SCALES + SCALE_BYTES,
        SUM_BYTES = TYPE == IS_Q8_0 ? 0 : ROWS * 16,
        QUANTS = (SUMS + SUM_BYTES + 127) / 128 * 128,
        HIGH_BITS = QUANTS + (TYPE == IS_Q8_0 ? 8 : 4) * WIDE_PIECE,
        W_SCALES = HIGH_BITS + (TYPE == IS_Q5_K   ? 1
                                : TYPE == IS_Q6_K ? 2
                                                  : 0) *
                                   WIDE_PIECE,
        W_MINS = W_SCALES + WIDE_N * (TYPE == IS_Q8_0   ? 0
                                      : TYPE == IS_Q6_K ? 8
                                                        : 4),
        W_D = W_MINS + WIDE_N * (TYPE == IS_Q4_K || TYPE == IS_Q5_K ? 2 : 0),
        END = W_D + WIDE_N * (TYPE == IS_Q8_0 ? 8 : 4),
    };
};

static __device__ __forceinline__ uint32_t shared_base(void) {
    extern __shared__ __align__(1024) uint8_t wide_shared[];
    return smem_addr(wide_shared);
}

/* The stage that is filled, or multiplied, next. */
struct ring {
    uint32_t stage, phase;

    __device__ __forceinline__ uint32_t at(const struct wide_params &p) const {
        return shared_base() + WIDE_RING + stage * p.stage_bytes;
    }
    __device__ __forceinline__ uint32_t full(void) const {
        return shared_base() + stage * 8;
    }
    __device__ __forceinline__ uint32_t empty(void) const {
        return shared_base() + 64 + stage * 8;
    }
    __device__ __forceinline__ void next(const struct wide_params &p) {
        stage = stage + 1 == p.stages ? 0 : stage + 1;
        phase ^= stage == 0;
    }
};

template <class T> static __device__ __forceinline__ T peek(uint32_t at) {
    return *(const T *)__cvta_shared_to_generic(at);
}

/* ---- tiles of the product --------------------------------------------------------------------
 */

struct wide_tile {
    uint32_t segment, n_block, row_block; /* row_block: of the tile's 64 or 128 rows */
    uint32_t first_split, end_split;      /* K splits that this thread block multiplies */
};

/* Tiles that n weight rows are; with SwiGLU a tile has half as many rows of each matrix. */
static __device__ __forceinline__ uint32_t count_tiles(const struct wide_params &p, uint32_t n) {
    uint32_t rows = p.epilogue == EPILOGUE_SWIGLU ? WIDE_N / 2 : WIDE_N;
    return (n + rows - 1) / rows;
}

/* Tile t of the step, or part of one: with p.is_spread each K split is a thread block's. Row blocks
 * first, so that blocks that run together share weights. */
template <int ROWS>
static __device__ __forceinline__ bool find_tile(const struct wide_params &p, uint32_t t,
                                                 uint32_t n_rows, struct wide_tile &out) {
    uint32_t row_blocks = (n_rows + ROWS - 1) / ROWS;
#pragma unroll 1
    for (uint32_t i = 0; i < p.n_segments; i++) {
        uint32_t n = row_blocks * count_tiles(p, p.segments[i].n), splits = p.segments[i].splits;
        uint32_t parts = p.is_spread ? splits : 1;
        if (t < n * parts) {
            uint32_t split = t / n;
            t -= split * n;
            out.segment = i;
            out.n_block = t / row_blocks;
            out.row_block = t - out.n_block * row_blocks;
            out.first_split = split;
            out.end_split = p.is_spread ? split + 1 : splits;
            return true;
        }
        t -= n * parts;
    }
    return false;
}

/* Groups of a K block. */
template <int TYPE>
static __device__ __forceinline__ uint32_t kblock_groups(const struct project_segment &s) {
    return (TYPE == IS_Q8_0 ? 16u : 32u) >> s.row_shift;
}

/* ---- the copying warpgroup -------------------------------------------------------------------
 */

/* A weight row in its tile. SwiGLU: rows 8 i ... of gate, then the same of up, in turns. */
struct weight_row {
    const uint8_t *tile;
    uint32_t row; /* of the tile */
};

static __device__ __forceinline__ struct weight_row
find_weight_row(const struct wide_params &p, const struct wide_tile &t, uint32_t r) {
    const struct project_segment &s = p.segments[t.segment];
    uint32_t n = t.n_block * WIDE_N + r;
    const uint8_t *data = s.data;
    if (p.epilogue == EPILOGUE_SWIGLU) {
        data = r / 8 % 2 ? p.segments[1].data : data;
        n = t.n_block * (WIDE_N / 2) + r / 16 * 8 + r % 8;
    }
    n = min(n, s.n - 1); /* rows after the last are not stored */
    uint32_t tile = n >> s.row_shift;
    return {data + (uint64_t)tile * s.kblocks * s.kblock_bytes, n - (tile << s.row_shift)};
}

/* Group `i` of a K block: row r of the stage's weights. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void copy_weights(uint32_t at, const uint8_t *kblock, uint32_t i,
                                                    uint32_t row, uint32_t row_shift, uint32_t r) {
    using L = stage_layout<TYPE, ROWS>;
    uint32_t lane = (i << row_shift) + row, d = (i / 2 << row_shift) + row;
    if constexpr (TYPE == IS_Q8_0) {
        lane = (2 * i << row_shift) + row;
#pragma unroll
        for (uint32_t c = 0; c < 8; c++)
            cp_async_16(at + L::QUANTS + c * WIDE_PIECE + r * 16,
                        kblock + c % 4 * 512 + (lane + (c / 4 << row_shift)) * 16);
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
            cp_async_4(at + L::W_D + r * 8 + c * 4,
                       kblock + TILE_HIGH_BITS + (lane + (c << row_shift)) * 4);
    } else {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            cp_async_16(at + L::QUANTS + c * WIDE_PIECE + r * 16, kblock + c * 512 + lane * 16);
    }
    if constexpr (TYPE == IS_Q6_K) {
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
            cp_async_16(at + L::HIGH_BITS + c * WIDE_PIECE + r * 16,
                        kblock + TILE_HIGH_BITS + c * 512 + lane * 16);
        cp_async_8(at + L::W_SCALES + r * 8, kblock + TILE_Q6_SCALES + lane * 8);
        if (r % 2 == 0) /* the row's and the next one's */
            cp_async_4(at + L::W_D + r * 2, kblock + TILE_Q6_D + d / 2 * 4);
    } else if constexpr (TYPE != IS_Q8_0) {
        const uint8_t *scales = kblock + (TYPE == IS_Q5_K ? TILE_Q5_SCALES : TILE_Q4_SCALES);
        if (TYPE == IS_Q5_K)
            cp_async_16(at + L::HIGH_BITS + r * 16, kblock + TILE_HIGH_BITS + lane * 16);
        cp_async_4(at + L::W_SCALES + r * 4, scales + lane * 4);
        cp_async_4(at + L::W_D + r * 4, scales + TILE_D + d * 4);
        if (r % 2 == 0)
            cp_async_4(at + L::W_MINS + r * 2, scales + TILE_MINS + lane / 2 * 4);
    }
}

/* By one thread: rows `first` ... of a group's image. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void copy_image(const struct wide_params &p, uint32_t at,
                                                  const uint8_t *group, uint32_t first,
                                                  uint32_t full) {
    using L = stage_layout<TYPE, ROWS>;
    const uint8_t *panel = group + first * 128, *scales = group + p.image_rows * 256;
    mbarrier_expect_tx(full, L::SUMS + L::SUM_BYTES);
    cp_async_bulk(at, panel, L::PANEL, full);
    cp_async_bulk(at + L::PANEL, panel + p.image_rows * 128, L::PANEL, full);
    cp_async_bulk(at + L::SCALES, scales + first * (L::SCALE_BYTES / ROWS), L::SCALE_BYTES, full);
    if (L::SUM_BYTES)
        cp_async_bulk(at + L::SUMS, scales + p.image_rows * 4 + first * 16, L::SUM_BYTES, full);
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void copy_tile(const struct wide_params &p,
                                                 const struct wide_tile &t, struct ring &ring) {
    const struct project_segment &s = p.segments[t.segment];
    uint32_t r = threadIdx.x % 128, row_shift = s.row_shift, in_kblock = kblock_groups<TYPE>(s);
    uint32_t kblock_bytes = s.kblock_bytes, kblock = task_first_kblock(s, t.first_split);
    uint32_t left = task_first_kblock(s, t.end_split) - kblock;
    struct weight_row own = find_weight_row(p, t, r);
    const uint8_t *group = p.image + (uint64_t)kblock * in_kblock * p.group_bytes;
    own.tile += (uint64_t)kblock * kblock_bytes;
#pragma unroll 1
    for (; left; left--, own.tile += kblock_bytes)
#pragma unroll 1
        for (uint32_t i = 0; i < in_kblock; i++, group += p.group_bytes) {
            mbarrier_wait(ring.empty(), ring.phase ^ 1);
            if (r == 0)
                copy_image<TYPE, ROWS>(p, ring.at(p), group, t.row_block * ROWS, ring.full());
            copy_weights<TYPE, ROWS>(ring.at(p), own.tile, i, own.row, row_shift, r);
            cp_async_arrive(ring.full());
            ring.next(p);
        }
}

/* ---- unpacking weights -----------------------------------------------------------------------
 */

static __device__ __forceinline__ uint32_t bits_of(__half2 h) {
    return *reinterpret_cast<uint32_t *>(&h);
}

static __device__ __forceinline__ __half2 halves(uint32_t v) {
    return *reinterpret_cast<__half2 *>(&v);
}

static __device__ __forceinline__ __half2 times(__half2 a, float b) {
    return __hmul2(a, __float2half2_rn(b));
}

/* Two bytes at once: 0x64 above a byte is the half 1024 + byte. */
template <uint32_t FROM> static __device__ __forceinline__ __half2 int8_pair(uint32_t flipped) {
    return __hsub2(halves(__byte_perm(flipped, 0x64646464u, FROM)), __float2half2_rn(1152));
}

/* A thread's rows of its warpgroup's 64 are `row` and the one 8 further, its block of 32 columns is
 * j. Found again where it is needed: registers are few. */
struct thread_place {
    uint32_t row, j;

    __device__ __forceinline__ thread_place(void) {
        uint32_t thread = volatile_thread();
        row = thread / 32 * 16 + thread % 32 / 4;
        j = thread % 4;
    }
};

/* Unpacked weights of 64 columns, four steps of 16: what a part of a group is multiplied from. A
 * group has two parts, of Q6_K four: first the lower bits, then the upper. */
typedef uint32_t fragments[4][4];

/* scale * q * 2^-14 of Q4_K; scale * (q - 16) * 2^-14 of Q5_K. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void unpack_q4(fragments &f, uint32_t at, int half) {
    using L = stage_layout<TYPE, ROWS>;
    const thread_place own;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = own.row + 8 * i;
        uint2 raw = peek<uint2>(at + L::QUANTS + own.j * WIDE_PIECE + row * 16 + half * 8);
        uint32_t scale = peek<uint8_t>(at + L::W_SCALES + row * 4 + own.j) & 63;
        __half2 high = times(times(halves(scale * 0x00010001u), 32768), 32768); /* 2^6 */
        __half2 low = times(high, 16);
        uint32_t bits = 0;
        if (TYPE == IS_Q5_K)
            bits = peek<uint32_t>(at + L::HIGH_BITS + row * 16 + own.j * 4);
        __half2 offset = times(high, -0x1p-16f); /* -16 * scale * 2^-14 */
#pragma unroll
        for (int step = 0; step < 4; step++) {
            int w = step / 2 + 2 * half; /* word of the block's 16 bytes */
            uint32_t q = (step / 2 ? raw.y : raw.x) >> (step % 2 * 8);
            uint32_t a = q & 0x000f000fu, b = q & 0x00f000f0u;
            if (TYPE == IS_Q5_K) {
                uint32_t h = step % 2 ? bits >> (4 + w) : bits << (4 - w);
                f[step][i] = bits_of(__hfma2(halves(a | (h & 0x00100010u)), low, offset));
                f[step][i + 2] = bits_of(__hfma2(halves(b | (h & 0x01000100u)), high, offset));
            } else {
                f[step][i] = bits_of(__hmul2(halves(a), low));
                f[step][i + 2] = bits_of(__hmul2(halves(b), high));
            }
        }
    }
}

/* scale * (low - 8) * 2^-16. Each half of the block has a scale: that of low nibbles (a), and of
 * high ones (b). */
template <int ROWS>
static __device__ __forceinline__ void unpack_q6_low(fragments &f, uint32_t at, int half) {
    using L = stage_layout<IS_Q6_K, ROWS>;
    const thread_place own;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = own.row + 8 * i;
        uint2 raw = peek<uint2>(at + L::QUANTS + own.j * WIDE_PIECE + row * 16 + half * 8);
        uint32_t flipped = peek<uint16_t>(at + L::W_SCALES + row * 8 + own.j * 2) ^ 0x8080u;
        __half2 scale_a = times(int8_pair<0x4040>(flipped), 256),
                scale_b = times(int8_pair<0x4141>(flipped), 16);
        __half2 offset_a = times(scale_a, -0x1p-21f), offset_b = times(scale_b, -0x1p-17f);
#pragma unroll
        for (int step = 0; step < 4; step++) {
            uint32_t q = (step / 2 ? raw.y : raw.x) >> (step % 2 * 8);
            f[step][i] = bits_of(__hfma2(halves(q & 0x000f000fu), scale_a, offset_a));
            f[step][i + 2] = bits_of(__hfma2(halves(q & 0x00f000f0u), scale_b, offset_b));
        }
    }
}

/* scale * (2 r - 3) * 2^-17. */
template <int ROWS>
static __device__ __forceinline__ void unpack_q6_high(fragments &f, uint32_t at, int half) {
    using L = stage_layout<IS_Q6_K, ROWS>;
    const thread_place own;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = own.row + 8 * i;
        uint2 bits =
            peek<uint2>(at + L::HIGH_BITS + own.j / 2 * WIDE_PIECE + row * 16 + own.j % 2 * 8);
        uint32_t flipped = peek<uint16_t>(at + L::W_SCALES + row * 8 + own.j * 2) ^ 0x8080u;
        __half2 scale_a = times(int8_pair<0x4040>(flipped), 256),
                scale_b = times(int8_pair<0x4141>(flipped), 256);
        __half2 offset_a = times(times(scale_a, -0x1p-21f), 3 / 16.0f),
                offset_b = times(times(scale_b, -0x1p-21f), 3 / 16.0f);
        bits.x ^= 0xaaaaaaaau, bits.y ^= 0xaaaaaaaau;
#pragma unroll
        for (int step = 0; step < 4; step++) {
            int shift = step % 2 * 8 + 2 * (step / 2 + 2 * half);
            f[step][i] = bits_of(__hfma2(halves(bits.x >> shift & 0x00030003u), scale_a, offset_a));
            f[step][i + 2] =
                bits_of(__hfma2(halves(bits.y >> shift & 0x00030003u), scale_b, offset_b));
        }
    }
}

/* q. A step of 16 columns is a piece; a thread has the columns 4 j ... of it. */
template <int ROWS>
static __device__ __forceinline__ void unpack_q8(fragments &f, uint32_t at, int half) {
    using L = stage_layout<IS_Q8_0, ROWS>;
    const thread_place own;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int step = 0; step < 4; step++) {
            uint32_t q = peek<uint32_t>(at + L::QUANTS + (half * 4 + step) * WIDE_PIECE +
                                        (own.row + 8 * i) * 16 + own.j * 4) ^
                         0x80808080u;
            f[step][i] = bits_of(int8_pair<0x4140>(q));
            f[step][i + 2] = bits_of(int8_pair<0x4342>(q));
        }
}

template <int TYPE, int ROWS, int PART>
static __device__ __forceinline__ void unpack_part(fragments &f, uint32_t at) {
    if constexpr (TYPE == IS_Q6_K && PART < 2)
        unpack_q6_low<ROWS>(f, at, PART);
    else if constexpr (TYPE == IS_Q6_K)
        unpack_q6_high<ROWS>(f, at, PART - 2);
    else if constexpr (TYPE == IS_Q8_0)
        unpack_q8<ROWS>(f, at, PART);
    else
        unpack_q4<TYPE, ROWS>(f, at, PART);
        /* Here, not earlier or later: registers are few. */
#pragma unroll
    for (int i = 0; i < 16; i++)
        asm volatile("" : "+r"(f[i / 4][i % 4]));
}

/* ---- multiplying -----------------------------------------------------------------------------
 */

/* Descriptor of activations: rows of 128 bytes, swizzled, eight of them 1024 bytes. */
static __device__ __forceinline__ uint64_t describe_panel(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* What a thread keeps from group to group: of its two weight rows, and rows 8 i + 2 j and the next
 * of the activations: [4 i ...]. */
template <int TYPE, int ROWS> struct wide_sums {
    static constexpr int PRODUCTS = TYPE == IS_Q6_K ? 2 : TYPE == IS_Q8_0 ? 4 : 1;
    float c[PRODUCTS][ROWS / 2]; /* of a group */
    float kblock[ROWS / 2];      /* groups of a K block */
    float split[ROWS / 2];       /* K blocks of a split */
    fragments f[2];              /* of parts under way */
};

/* Starts a part of a group; b: its activations. Q8_0: the half's two products. */
template <int TYPE, int ROWS, int PART>
static __device__ __forceinline__ void multiply_part(struct wide_sums<TYPE, ROWS> &s, uint64_t b) {
    constexpr int HALF = PART % 2, PRODUCT = TYPE == IS_Q6_K ? PART / 2 : 0;
    const fragments &f = s.f[PART % 2];
    b += HALF * (ROWS * 128 / 16);
    wgmma_fence();
    if constexpr (TYPE == IS_Q8_0) {
        wgmma_f16_t<false>(s.c[2 * HALF], f[0], b);
        wgmma_f16_t<true>(s.c[2 * HALF], f[1], b + 2);
        wgmma_f16_t<false>(s.c[2 * HALF + 1], f[2], b + 4);
        wgmma_f16_t<true>(s.c[2 * HALF + 1], f[3], b + 6);
    } else {
        wgmma_f16_t<HALF != 0>(s.c[PRODUCT], f[0], b);
        wgmma_f16_t<true>(s.c[PRODUCT], f[1], b + 2);
        wgmma_f16_t<true>(s.c[PRODUCT], f[2], b + 4);
        wgmma_f16_t<true>(s.c[PRODUCT], f[3], b + 6);
    }
    wgmma_commit();
}

/* ---- scaling ---------------------------------------------------------------------------------
 */

/* Activation scales of rows 8 i + 2 j and the next, i = 0 ... 3 of 32 rows. */
struct act_scales {
    float4 v[2];

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

/* 64 columns, half HALF of a group: what a lane of the gemv kernels has. */
template <int ROWS, int HALF>
static __device__ __forceinline__ void scale_q8(struct wide_sums<IS_Q8_0, ROWS> &s, uint32_t at) {
    using L = stage_layout<IS_Q8_0, ROWS>;
    const thread_place own;
    float2 d[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        d[i] = half2_to_float2(peek<uint32_t>(at + L::W_D + (own.row + 8 * i) * 8 + HALF * 4));
#pragma unroll
    for (int four = 0; four < ROWS / 32; four++) {
        const act_scales first(at + L::SCALES + four * 512 + HALF * 256 + own.j * 16),
            second(at + L::SCALES + four * 512 + HALF * 256 + 128 + own.j * 16);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int x = 0; x < 4; x++) {
                int i = (four * 4 + e) * 4 + x;
                float v = __fmul_rn(__fmul_rn(d[x / 2].x, first.get(e, x)), s.c[2 * HALF][i]);
                v = __fmaf_rn(__fmul_rn(d[x / 2].y, second.get(e, x)), s.c[2 * HALF + 1][i], v);
                s.kblock[i] = __fadd_rn(s.kblock[i], v);
            }
    }
}

/* Adds the products of a group, which are complete, to the K block's sums. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void scale_group(struct wide_sums<TYPE, ROWS> &s, uint32_t at) {
#pragma unroll
    for (int i = 0; i < s.PRODUCTS * (ROWS / 2); i++) /* nothing is read before the wait */
        asm volatile("" : "+f"(s.c[i / (ROWS / 2)][i % (ROWS / 2)]));
    if constexpr (TYPE == IS_Q6_K) {
        scale_q6<ROWS>(s, at);
    } else if constexpr (TYPE == IS_Q8_0) {
        scale_q8<ROWS, 0>(s, at);
        scale_q8<ROWS, 1>(s, at);
    } else {
        scale_q4<TYPE, ROWS>(s, at);
    }
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) /* done here, not later */
        asm volatile("" : "+f"(s.kblock[i]), "+f"(s.split[i]));
}

/* ---- the pipeline ----------------------------------------------------------------------------
 *
 * At most two parts are under way, the fragments of each in registers of its own; before a part is
 * unpacked the last but one is waited for. */

/* When the part's fragments are free. */
template <int TYPE, int ROWS, int PART>
static __device__ __forceinline__ void start_part(struct wide_sums<TYPE, ROWS> &s, uint32_t at) {
    wgmma_wait<1>();
    unpack_part<TYPE, ROWS, PART>(s.f[PART % 2], at);
    multiply_part<TYPE, ROWS, PART>(s, describe_panel(at));
}

/* The next group's first part, if there is one. left: groups of the tile. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void unpack_next(const struct wide_params &p,
                                                   struct wide_sums<TYPE, ROWS> &s,
                                                   const struct ring &ring, uint32_t left) {
    if (left) {
        mbarrier_wait(ring.full(), ring.phase);
        unpack_part<TYPE, ROWS, 0>(s.f[0], ring.at(p));
    }
}

/* A group, whose first part is unpacked. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void multiply_group(const struct wide_params &p,
                                                      struct wide_sums<TYPE, ROWS> &s,
                                                      struct ring &ring, uint32_t &left) {
    uint32_t at = ring.at(p), empty = ring.empty();
    multiply_part<TYPE, ROWS, 0>(s, describe_panel(at));
    mbarrier_wait(ring.full(), ring.phase); /* is over: so that nothing is unpacked earlier */
    start_part<TYPE, ROWS, 1>(s, at);
    if constexpr (TYPE == IS_Q6_K) {
        start_part<TYPE, ROWS, 2>(s, at);
        start_part<TYPE, ROWS, 3>(s, at);
    }
    ring.next(p);
    wgmma_wait<1>();
    unpack_next<TYPE, ROWS>(p, s, ring, left -= 1);
    wgmma_wait<0>();
    scale_group<TYPE, ROWS>(s, at);
    __syncwarp();
    if (volatile_lane() == 0)
        mbarrier_arrive(empty);
}

/* ---- epilogue --------------------------------------------------------------------------------
 */

/* A tile all of which exists, without biases. */
template <int ROWS, int EPILOGUE>
static __device__ __forceinline__ void
store_whole(const struct wide_params &p, float (&v)[ROWS / 2], float *out, const float *factors) {
    float2 f[ROWS / 8];
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
        f[i] = factors ? __ldcg((const float2 *)factors + 4 * i) : make_float2(1, 1);
    float was[ROWS / 2];
    if (EPILOGUE == EPILOGUE_ADD)
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++)
            was[i] = __ldcg(out + (uint64_t)p.out_stride * (i / 4 * 8 + i % 2) + i % 4 / 2 * 8);
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        v[i] = __fmul_rn(v[i], i % 2 ? f[i / 4].y : f[i / 4].x);
        if (EPILOGUE == EPILOGUE_ADD)
            v[i] = __fadd_rn(was[i], v[i]);
    }
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        float *next = out + p.out_stride;
        if (EPILOGUE == EPILOGUE_SWIGLU) {
            out[0] = swiglu(v[4 * i], v[4 * i + 2]);
            next[0] = swiglu(v[4 * i + 1], v[4 * i + 3]);
        } else {
            out[0] = v[4 * i], next[0] = v[4 * i + 1];
            out[8] = v[4 * i + 2], next[8] = v[4 * i + 3];
        }
        out += (uint64_t)p.out_stride * 8;
    }
}

/* One value after the other. row: of the activations; n: weight row of the segment. */
template <int ROWS>
static __device__ __forceinline__ void
store_part(const struct wide_params &p, const struct project_segment &s, const float (&v)[ROWS / 2],
           float *out, const float *factors, uint32_t row, uint32_t n, uint32_t n_rows) {
    bool is_swiglu = p.epilogue == EPILOGUE_SWIGLU;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        uint32_t r = i / 4 * 8 + i % 2, column = i % 4 / 2 * 8;
        if (row + r >= n_rows || n + column >= s.n || (is_swiglu && column))
            continue;
        float *to = out + (uint64_t)p.out_stride * r + column,
              f = factors ? __ldcg(factors + r) : 1;
        float a = add_bias(s, n + column, __fmul_rn(v[i], f));
        if (is_swiglu)
            a = swiglu(a, add_bias(p.segments[1], n, __fmul_rn(v[i ^ 2], f)));
        *to = p.epilogue == EPILOGUE_ADD ? __fadd_rn(__ldcg(to), a) : a;
    }
}

template <int ROWS>
static __device__ __forceinline__ void store_tile(const struct wide_params &p,
                                                  const struct wide_tile &t, uint32_t n_rows,
                                                  float (&v)[ROWS / 2]) {
    const thread_place own;
    const struct project_segment &s = p.segments[t.segment];
    bool is_swiglu = p.epilogue == EPILOGUE_SWIGLU;
    uint32_t columns = is_swiglu ? WIDE_N / 2 : WIDE_N, row = t.row_block * ROWS + 2 * own.j;
    uint32_t n = t.n_block * columns + (is_swiglu ? own.row / 16 * 8 + own.row % 8 : own.row);
    float *out = p.out + (uint64_t)row * p.out_stride + s.column + n;
    const float *factors = p.factors ? p.factors + row : NULL;
    if ((t.row_block + 1) * ROWS > n_rows || (t.n_block + 1) * columns > s.n || p.has_bias)
        store_part<ROWS>(p, s, v, out, factors, row, n, n_rows);
    else if (is_swiglu)
        store_whole<ROWS, EPILOGUE_SWIGLU>(p, v, out, factors);
    else if (p.epilogue == EPILOGUE_ADD)
        store_whole<ROWS, EPILOGUE_ADD>(p, v, out, factors);
    else
        store_whole<ROWS, EPILOGUE_STORE>(p, v, out, factors);
}

/* ---- the multiplying warpgroups --------------------------------------------------------------
 */

/* Adds the sum of the K splits before to v, and keeps it for the next one. */
template <int ROWS>
static __device__ __forceinline__ void add_splits_before(float (&v)[ROWS / 2], uint32_t at,
                                                         bool is_first, bool is_last) {
    at += threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        float4 *kept = (float4 *)__cvta_shared_to_generic(at + i * (WIDE_N * 2) * 16);
        float4 w = is_first ? make_float4(0, 0, 0, 0) : *kept;
        v[4 * i] = __fadd_rn(w.x, v[4 * i]);
        v[4 * i + 1] = __fadd_rn(w.y, v[4 * i + 1]);
        v[4 * i + 2] = __fadd_rn(w.z, v[4 * i + 2]);
        v[4 * i + 3] = __fadd_rn(w.w, v[4 * i + 3]);
        if (!is_last)
            *kept = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    }
}

/* A split's sums to the workspace; the last thread block of the tile's adds all, in order, and has
 * them in v. */
template <int ROWS>
static __device__ __forceinline__ bool
combine_splits(const struct wide_params &p, const struct wide_tile &t, float (&v)[ROWS / 2]) {
    constexpr uint32_t THREADS = WIDE_N * 2;
    const struct project_segment &s = p.segments[t.segment];
    uint32_t tile = s.first_tile + t.n_block * p.row_blocks + t.row_block;
    float4 *partials =
        (float4 *)p.partials + (uint64_t)tile * p.max_splits * (ROWS / 8) * THREADS + threadIdx.x;
    float4 *own = partials + (uint64_t)t.first_split * (ROWS / 8) * THREADS;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
        own[i * THREADS] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    uint32_t at = shared_base() + WIDE_LAST, *last = (uint32_t *)__cvta_shared_to_generic(at);
    any_barrier_sync(1, THREADS);
    if (threadIdx.x == 0) {
        uint32_t before = atomic_inc_acq_rel_gpu(p.arrivals + tile);
        *last = before == s.splits - 1;
        if (*last)
            p.arrivals[tile] = 0;
    }
    any_barrier_sync(1, THREADS);
    if (!*last)
        return false;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        v[i] = 0;
#pragma unroll 1
    for (uint32_t split = 0; split < s.splits; split++)
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
            float4 w = __ldcg(partials + (uint64_t)(split * (ROWS / 8) + i) * THREADS);
            v[4 * i] = __fadd_rn(v[4 * i], w.x);
            v[4 * i + 1] = __fadd_rn(v[4 * i + 1], w.y);
            v[4 * i + 2] = __fadd_rn(v[4 * i + 2], w.z);
            v[4 * i + 3] = __fadd_rn(v[4 * i + 3], w.w);
        }
    return true;
}

/* Tile number `index`, which is t. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void multiply_tile(const struct wide_params &p,
                                                     const struct wide_tile &t, uint32_t index,
                                                     struct ring &ring) {
    const struct project_segment &s = p.segments[t.segment];
    uint32_t left = (task_first_kblock(s, t.end_split) - task_first_kblock(s, t.first_split)) *
                    kblock_groups<TYPE>(s);
    struct wide_sums<TYPE, ROWS> sums;
    unpack_next<TYPE, ROWS>(p, sums, ring, left);
#pragma unroll 1
    for (uint32_t split = t.first_split; split < t.end_split; split++) {
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++)
            sums.split[i] = 0;
#pragma unroll 1
        for (uint32_t kblock = task_kblocks(s, split); kblock; kblock--) {
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++)
                sums.kblock[i] = -0.0f;
#pragma unroll 1
            for (uint32_t i = kblock_groups<TYPE>(s); i; i--)
                multiply_group<TYPE, ROWS>(p, sums, ring, left);
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++)
                sums.split[i] = __fadd_rn(sums.split[i], sums.kblock[i]);
        }
        if (t.end_split - t.first_split > 1)
            add_splits_before<ROWS>(sums.split, shared_base() + p.splits_at, split == 0,
                                    split + 1 == s.splits);
    }
    struct wide_tile same; /* found again: keeping it costs spills */
    uint32_t n_rows = count_rows(p.io, p.in);
    find_tile<ROWS>(p, opaque(index), n_rows, same);
    if constexpr (ROWS == 64) /* with more, registers spill */
        if (p.is_spread && p.segments[same.segment].splits > 1 &&
            !combine_splits<ROWS>(p, same, sums.split))
            return;
    store_tile<ROWS>(p, same, n_rows, sums.split);
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void multiply_tiles(const struct wide_params &p,
                                                      uint32_t n_rows) {
    struct ring ring = {0, 0};
    struct wide_tile t;
#pragma unroll 1
    for (uint32_t i = blockIdx.x; find_tile<ROWS>(p, i, n_rows, t); i += gridDim.x)
        multiply_tile<TYPE, ROWS>(p, t, i, ring);
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void copy_tiles(const struct wide_params &p, uint32_t n_rows) {
    struct ring ring = {0, 0};
    struct wide_tile t;
#pragma unroll 1
    for (uint32_t i = blockIdx.x; find_tile<ROWS>(p, i, n_rows, t); i += gridDim.x)
        copy_tile<TYPE, ROWS>(p, t, ring);
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void project_wide(const struct wide_params &p) {
    pdl_launch_dependents();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < p.stages; i++) {
            mbarrier_init(shared_base() + i * 8, 128 + 1); /* full: the copying threads, bytes */
            mbarrier_init(shared_base() + 64 + i * 8, 8);  /* empty: the multiplying warps */
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    pdl_wait(p.io);
    uint32_t n_rows = count_rows(p.io, p.in);
    if (threadIdx.x >= 256) {
        setmaxnreg_dec<24>();
        copy_tiles<TYPE, ROWS>(p, n_rows);
    } else {
        setmaxnreg_inc<240>();
        multiply_tiles<TYPE, ROWS>(p, n_rows);
    }
}

#endif

/* project_wide_<type>_<rows of a tile>: a type each, since ptxas spills where one kernel has two.
 */
#if __CUDA_ARCH_FEAT_SM90_ALL
#define WIDE_KERNEL(NAME, TYPE, ROWS)                                                              \
    extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1)                                  \
        project_wide_##NAME##_##ROWS(const __grid_constant__ struct wide_params p) {               \
        project_wide<TYPE, ROWS>(p);                                                               \
    }
#else
#define WIDE_KERNEL(NAME, TYPE, ROWS)                                                              \
    extern "C" __global__ void project_wide_##NAME##_##ROWS(                                       \
        const __grid_constant__ struct wide_params) {                                              \
    }
#endif

WIDE_KERNEL(q4, IS_Q4_K, 64)
WIDE_KERNEL(q4, IS_Q4_K, 128)
WIDE_KERNEL(q5, IS_Q5_K, 64)
WIDE_KERNEL(q5, IS_Q5_K, 128)
WIDE_KERNEL(q6, IS_Q6_K, 64)
WIDE_KERNEL(q8, IS_Q8_0, 64)

/* ---- quantizing the activations --------------------------------------------------------------
 */

/* A row of the image: what quantize.cuh calls a QACT. Index i counts four columns. */
struct wide_image_row {
    uint8_t *data; /* the image */
    uint32_t row, rows, is_q8_0;

    __device__ __forceinline__ uint8_t *group(uint32_t i) const {
        return data + (uint64_t)(i / 32) * rows * WIDE_ROW_BYTES;
    }
};

static __device__ __forceinline__ float4 *qact_floats(const struct wide_image_row &,
                                                      const struct project_input &) {
    return NULL; /* there are none */
}

/* Where two halves go: 4 bytes of k step `step` (of 16 columns), of its lower or upper 8. */
static __device__ __forceinline__ uint32_t *image_word(const struct wide_image_row &to, uint32_t i,
                                                       uint32_t step, uint32_t upper, uint32_t j) {
    uint32_t piece = (step % 4 * 2 + upper) ^ (to.row % 8);
    return (uint32_t *)(to.group(i) + (step / 4 * to.rows + to.row) * 128 + piece * 16 + j * 4);
}

/* K-quants: steps 2 w and 2 w + 1 have columns 4 w, 4 w + 2 and 4 w + 1, 4 w + 3 of the halves of
 * all four blocks of 32 columns: so that thread j of wgmma has block j, its low nibbles in the
 * step's lower columns and its high ones in the upper. Q8_0: a step has 16 columns, thread j four
 * neighbours. */
static __device__ __forceinline__ void qact_store(const struct wide_image_row &to, uint32_t,
                                                  uint32_t i, uint32_t q) {
    const __half2 bias = __float2half2_rn(1152);
    uint32_t flipped = q ^ 0x80808080u, block = i / 8 % 4, w = i % 4, upper = i / 4 % 2;
    uint32_t a = __byte_perm(flipped, 0x64646464u, to.is_q8_0 ? 0x4140 : 0x4240),
             b = __byte_perm(flipped, 0x64646464u, to.is_q8_0 ? 0x4342 : 0x4341);
    __half2 first = __hsub2(*reinterpret_cast<__half2 *>(&a), bias),
            second = __hsub2(*reinterpret_cast<__half2 *>(&b), bias);
    uint32_t *at =
        to.is_q8_0 ? image_word(to, i, i / 4 % 8, 0, w) : image_word(to, i, 2 * w, upper, block);
    uint32_t *next = to.is_q8_0 ? image_word(to, i, i / 4 % 8, 1, w)
                                : image_word(to, i, 2 * w + 1, upper, block);
    *at = *reinterpret_cast<uint32_t *>(&first);
    *next = *reinterpret_cast<uint32_t *>(&second);
}

static __device__ __forceinline__ void qact_group(const struct wide_image_row &to, uint32_t,
                                                  uint32_t i, float scale, int sum) {
    uint8_t *at = to.group(i) + to.rows * 256;
    uint32_t row = to.row, eight = row / 8, block = i / 8 % 4;
    uint32_t scales = to.is_q8_0 ? eight / 4 * 512 + block * 128 : eight / 4 * 128;
    *(float *)(at + scales + eight % 4 / 2 * 64 + row % 8 / 2 * 16 +
               (eight % 2 * 2 + row % 2) * 4) = scale;
    if (!to.is_q8_0)
        *(__half2 *)(at + to.rows * 4 + eight / 4 * 512 + (row % 8 * 4 + block) * 16 +
                     eight % 4 * 4) = __floats2half2_rn((float)(sum & ~1), (float)(sum & 1));
}

/* A block a row. Rows after the step's last are left as they are: each row of the image meets its
 * own results alone. Shared memory: sums of squares of 128 columns, or a factor a head. */
extern "C" __global__ void __maxnreg__(56)
    project_wide_quantize(const __grid_constant__ struct wide_quantize_params p) {
    extern __shared__ float wide_red[];
    pdl_launch_dependents();
    uint32_t row = blockIdx.x;
    struct wide_image_row to = {p.image, row, p.image_rows, p.is_q8_0};
    struct row_threads threads = row_threads_of(p.in);
    struct col8 weights = {};
    load_first_norm_weights(threads, p.in, weights);
    pdl_wait(p.io);
    if (row >= count_rows(p.io, p.in))
        return;
    struct row_source source = {row, p.row_limit, false};
    quantize_row<IS_INT8>(threads, p.io, p.in, source, weights, to, wide_red);
    if (p.in.prologue != PROLOGUE_NORM)
        return;
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    float factor = row_factor(p.in, wide_red);
    if (threadIdx.x == 0)
        p.factors[row] = factor;
}

/* ---- F32 segments ----------------------------------------------------------------------------
 *
 * Alpha and beta of the delta rule: few weight rows, f32 activations. A block has ROWS rows of
 * activations, a warp of it a tile of 4 weight rows for all of them. Columns are in shared memory
 * 1024 at a time, multiplied by the norm's weights; AHEAD K blocks of weights are in flight. The
 * order of sums is dot_f32_global's.
 *
 * Bytes: the tiles of a block's warps once a block from L2, and its rows once. */

template <int ROWS>
static __device__ __forceinline__ void load_f32_columns(const struct wide_f32_params &p,
                                                        uint32_t first_row, uint32_t n_rows,
                                                        uint32_t column, float4 *to) {
    uint32_t quads = min(WIDE_F32_COLUMNS, p.in.k - column) / 4;
    for (uint32_t i = threadIdx.x; i < ROWS * quads; i += blockDim.x) {
        uint32_t row = i / quads, c = i - row * quads;
        const float *x = p.in.x + (uint64_t)min(first_row + row, n_rows - 1) * p.in.x_stride;
        float4 v = __ldcg((const float4 *)(x + column) + c);
        if (p.in.prologue == PROLOGUE_NORM)
            v = mul(v, __ldcg((const float4 *)(p.in.norm + column) + c));
        to[row * (WIDE_F32_COLUMNS / 4) + c] = v;
    }
}

/* A K block: 4 weight rows by a lane's 4 columns. */
static __device__ __forceinline__ void load_f32_kblock(float4 (&w)[4], const uint8_t *at) {
#pragma unroll
    for (int r = 0; r < 4; r++)
        w[r] = __ldcg((const float4 *)(at + r * 512));
}

template <int ROWS>
static __device__ __forceinline__ void add_f32_kblock(float (&acc)[ROWS][4], const float4 (&w)[4],
                                                      const float4 *columns) {
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        float4 x = columns[row * (WIDE_F32_COLUMNS / 4)];
#pragma unroll
        for (int r = 0; r < 4; r++)
            acc[row][r] = dot_f32x4(w[r], x, acc[row][r]);
    }
}

/* A split is complete: its lanes are added, and it to the splits before. */
template <int ROWS>
static __device__ __forceinline__ void add_f32_split(float (&sum)[ROWS], float (&acc)[ROWS][4]) {
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        sum[row] = __fadd_rn(sum[row], reduce_f32_lanes(acc[row], 32, threadIdx.x % 32));
#pragma unroll
        for (int r = 0; r < 4; r++)
            acc[row][r] = 0;
    }
}

template <int ROWS, int AHEAD>
static __device__ __forceinline__ void project_wide_f32(const struct wide_f32_params &p) {
    extern __shared__ float4 wide_columns[];
    pdl_launch_dependents();
    uint32_t first_row = blockIdx.x * ROWS, lane = threadIdx.x % 32;
    uint32_t tile = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, segment = 0;
    bool has_tile = tile < p.n_tiles;
    while (has_tile && tile >= p.segments[segment].n_tiles)
        tile -= p.segments[segment++].n_tiles;
    const struct project_segment &s = p.segments[segment];
    pdl_wait(p.io);
    uint32_t n_rows = p.io.header->n_rows, split = 0, left = task_kblocks(s, 0);
    if (first_row >= n_rows)
        return;
    const uint8_t *at = s.data + (uint64_t)tile * s.kblocks * s.kblock_bytes + lane * 16;
    float acc[ROWS][4] = {}, sum[ROWS] = {};
#pragma unroll 1
    for (uint32_t column = 0; column < p.in.k; column += WIDE_F32_COLUMNS) {
        uint32_t n = has_tile ? min(WIDE_F32_COLUMNS, p.in.k - column) / 128 : 0;
        float4 w[AHEAD][4];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (i < n)
                load_f32_kblock(w[i], at + i * s.kblock_bytes);
        __syncthreads();
        load_f32_columns<ROWS>(p, first_row, n_rows, column, wide_columns);
        __syncthreads();
#pragma unroll 1
        for (uint32_t k = 0; k < n; k += AHEAD)
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (k + i >= n)
                    break;
                add_f32_kblock<ROWS>(acc, w[i], wide_columns + (k + i) * 32 + lane);
                if (k + i + AHEAD < n)
                    load_f32_kblock(w[i], at + (k + i + AHEAD) * s.kblock_bytes);
                if (--left == 0) {
                    left = ++split < s.splits ? task_kblocks(s, split) : 0;
                    add_f32_split<ROWS>(sum, acc);
                }
            }
        at += n * s.kblock_bytes;
    }
    uint32_t column = tile * WIDE_F32_TILE + lane % 2 * 2 + lane / 2;
    if (!has_tile || lane >= WIDE_F32_TILE || column >= s.n)
        return;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        if (first_row + row >= n_rows)
            return;
        float *out = p.out + (uint64_t)(first_row + row) * p.out_stride + s.column + column;
        float v = __fmul_rn(sum[row], p.factors ? __ldcg(p.factors + first_row + row) : 1);
        v = add_bias(s, column, v);
        *out = p.epilogue == EPILOGUE_ADD ? __fadd_rn(*out, v) : v;
    }
}

extern "C" __global__ void __launch_bounds__(256, 2)
    project_wide_f32_16(const __grid_constant__ struct wide_f32_params p) {
    project_wide_f32<16, 2>(p);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    project_wide_f32_4(const __grid_constant__ struct wide_f32_params p) {
    project_wide_f32<4, 4>(p);
}
