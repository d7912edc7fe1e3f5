/* fallback.cuh - weight rows as they lie in the file, of every type, times activation rows.
 *
 * The bytes lie in shared memory (rows_stream.cuh brings them). A block type is cut into units of
 * two runs of 16 values, one unit a lane; a run never crosses a scale. A unit is opened into int8
 * quants, one scale and one minimum a run, and then meets
 *
 *   int8 activations   sum += (scale * x.scale) * dot(q, x.q) - min * (x.scale * sum(x.q))
 *   f32 activations    sum += (scale * q - min) * x
 *
 * where dot is exact. F32, F16 and BF16 always meet f32 activations, a value a lane.
 *
 * The same bits for any number of rows: every f32 operation is spelt out, so that no instance of a
 * template can be fused in another way. */
#ifndef BACKEND_CUDA_KERNELS_FALLBACK_CUH
#define BACKEND_CUDA_KERNELS_FALLBACK_CUH

#include <stddef.h>
#include <type_traits>

#include "backend/cuda/kernels/common.cuh"
#include "quant/bf16.h"
#include "quant/iq4_xs.h"
#include "quant/mxfp4.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"
#include "quant/quant.h"

/* Activation rows: f32, int8, or both. */
struct act_rows {
    const float *x;      /* rows x_stride apart */
    const int8_t *q;     /* 16-aligned rows, q_stride apart; runs of 16 in the order of act_run */
    const float2 *runs;  /* q_stride / 16 a row: a run's scale, and scale * (sum of q) */
    uint64_t x_stride;   /* values */
    uint32_t k, skip;    /* the product's values begin `skip` into the row */
    uint32_t first, end; /* rows [first, end) are asked for; those behind repeat the last */
};

/* Values from one int8 row to the next. */
static __device__ __forceinline__ uint32_t act_stride(uint32_t k) {
    return (k + 63) / 64 * 64;
}

/* Where run i of 16 quants lies: the four runs of 64 values are turned, so that eight lanes that
 * read the same run of eight neighbouring groups meet eight different banks. */
static __device__ __forceinline__ uint32_t act_run(uint32_t i) {
    return (i & ~3u) | ((i + (i >> 3)) & 3);
}

static __device__ __forceinline__ uint32_t act_row(const act_rows &a, uint32_t r) {
    return min(a.first + r, a.end - 1);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* N words from an address with that alignment: whole words and a shift where it is odd, so up to 3
 * bytes behind the last word are touched. */
template <int ALIGN, int N>
static __device__ __forceinline__ void load_words(const uint8_t *p, uint32_t (&w)[N]) {
    if constexpr (ALIGN >= 16 && N == 4) {
        uint4 v = *(const uint4 *)p;
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else if constexpr (ALIGN >= 8 && N == 4) {
        uint2 a = ((const uint2 *)p)[0], b = ((const uint2 *)p)[1];
        w[0] = a.x, w[1] = a.y, w[2] = b.x, w[3] = b.y;
    } else if constexpr (ALIGN >= 4) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = ((const uint32_t *)p)[i];
    } else {
        uint32_t skew = (uint32_t)(uintptr_t)p & 3;
        const uint32_t *at = (const uint32_t *)(p - skew);
        uint32_t low = at[0];
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t high = at[i + 1];
            w[i] = __funnelshift_r(low, high, 8 * skew);
            low = high;
        }
    }
}

static __device__ __forceinline__ float load_half(const uint8_t *p) {
    return f16_to_f32(*(const uint16_t *)p);
}

static __device__ __forceinline__ float low_half(uint32_t w) {
    return f16_to_f32((uint16_t)w);
}

static __device__ __forceinline__ float high_half(uint32_t w) {
    return f16_to_f32((uint16_t)(w >> 16));
}

static __device__ __forceinline__ uint32_t low_nibbles(uint32_t w) {
    return w & 0x0f0f0f0f;
}

static __device__ __forceinline__ uint32_t high_nibbles(uint32_t w) {
    return w >> 4 & 0x0f0f0f0f;
}

/* Four bytes (0..127) less BIAS, signed: no byte borrows from its neighbour. */
template <int BIAS> static __device__ __forceinline__ int less(uint32_t w) {
    return (int)((w + (0x80 - BIAS) * 0x01010101u) ^ 0x80808080u);
}

/* Bits 0..3 to bit 4 of four bytes. */
static __device__ __forceinline__ uint32_t fifth_bits(uint32_t bits) {
    return (bits & 15) * (0x00204081u << 4) & 0x10101010u;
}

/* A table of 16 bytes looked up by 8 nibbles: what the low ones name, and the high ones. */
static __device__ __forceinline__ void look_up(const uint32_t (&table)[4], uint32_t w, int &low,
                                               int &high) {
    uint32_t at = w & 0x77777777u, half = (w & 0x88888888u) >> 1 | 0x32103210u;
    uint32_t a =
        __byte_perm(__byte_perm(table[0], table[1], at), __byte_perm(table[2], table[3], at), half);
    at >>= 16, half >>= 16;
    uint32_t b =
        __byte_perm(__byte_perm(table[0], table[1], at), __byte_perm(table[2], table[3], at), half);
    low = (int)__byte_perm(a, b, 0x6420);
    high = (int)__byte_perm(a, b, 0x7531);
}

/* ---- opening a unit -------------------------------------------------------------------------- */

struct opened {
    int q[8];               /* the first run's 16 quants, then the second's */
    float scale[2], min[2]; /* of each run; of both where the type says IS_ONE */
};

/* What every block type says of itself: values and bytes of a block, where in the block unit u's
 * first run begins, how far the second is from it, whether both have one scale, whether there are
 * minimums; and how to open unit u. */
template <int VALUES_, int BYTES_, int APART_, bool IS_ONE_, bool HAS_MIN_> struct block_type {
    static constexpr int VALUES = VALUES_, BYTES = BYTES_, APART = APART_, UNITS = VALUES_ / 32;
    static constexpr bool IS_ONE = IS_ONE_, HAS_MIN = HAS_MIN_;
    /* Blocks follow each other from a 256-aligned start. */
    static constexpr int ALIGN = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : BYTES % 4 == 0 ? 4 : 1;
    static __device__ __forceinline__ uint32_t place(uint32_t u) {
        return APART == 16   ? 32 * u
               : APART == 32 ? 64 * (u / 2) + 16 * (u % 2)
                             : 128 * (u / 4) + 32 * (u % 4 / 2) + 16 * (u % 2);
    }
};

struct rows_q4_0 : block_type<32, sizeof(struct q4_0), 16, true, false> {
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t, opened &o) {
        uint32_t w[4];
        load_words<ALIGN>(b + offsetof(struct q4_0, qs), w);
        o.scale[0] = load_half(b);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            o.q[i] = less<8>(low_nibbles(w[i]));
            o.q[i + 4] = less<8>(high_nibbles(w[i]));
        }
    }
};

struct rows_q4_1 : block_type<32, sizeof(struct q4_1), 16, true, true> {
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t, opened &o) {
        uint32_t w[5];
        load_words<ALIGN>(b, w);
        o.scale[0] = low_half(w[0]);
        o.min[0] = -high_half(w[0]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            o.q[i] = (int)low_nibbles(w[i + 1]);
            o.q[i + 4] = (int)high_nibbles(w[i + 1]);
        }
    }
};

struct rows_q5_0 : block_type<32, sizeof(struct q5_0), 16, true, false> {
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t, opened &o) {
        uint32_t w[5];
        load_words<ALIGN>(b + offsetof(struct q5_0, qh), w);
        o.scale[0] = load_half(b);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            o.q[i] = less<16>(low_nibbles(w[i + 1]) | fifth_bits(w[0] >> 4 * i));
            o.q[i + 4] = less<16>(high_nibbles(w[i + 1]) | fifth_bits(w[0] >> (4 * i + 16)));
        }
    }
};

struct rows_q5_1 : block_type<32, sizeof(struct q5_1), 16, true, true> {
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t, opened &o) {
        uint32_t w[6];
        load_words<4>(b, w);
        o.scale[0] = low_half(w[0]);
        o.min[0] = -high_half(w[0]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            o.q[i] = (int)(low_nibbles(w[i + 2]) | fifth_bits(w[1] >> 4 * i));
            o.q[i + 4] = (int)(high_nibbles(w[i + 2]) | fifth_bits(w[1] >> (4 * i + 16)));
        }
    }
};

struct rows_q8_0 : block_type<32, sizeof(struct q8_0), 16, true, false> {
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t, opened &o) {
        uint32_t w[8];
        load_words<ALIGN>(b + offsetof(struct q8_0, qs), w);
        o.scale[0] = load_half(b);
#pragma unroll
        for (int i = 0; i < 8; i++)
            o.q[i] = (int)w[i];
    }
};

/* iq4_value's sixteen, and mxfp4_twice's. */
#define IQ4_TABLE                                                                                  \
    { 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u }
#define MXFP4_TABLE                                                                                \
    { 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu }

struct rows_iq4_nl : block_type<32, sizeof(struct iq4_nl), 16, true, false> {
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t, opened &o) {
        const uint32_t table[4] = IQ4_TABLE;
        uint32_t w[4];
        load_words<ALIGN>(b + offsetof(struct iq4_nl, qs), w);
        o.scale[0] = load_half(b);
#pragma unroll
        for (int i = 0; i < 4; i++)
            look_up(table, w[i], o.q[i], o.q[i + 4]);
    }
};

struct rows_mxfp4 : block_type<32, sizeof(struct mxfp4), 16, true, false> {
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t, opened &o) {
        const uint32_t table[4] = MXFP4_TABLE;
        uint32_t w[4];
        load_words<ALIGN>(b + offsetof(struct mxfp4, qs), w);
        o.scale[0] = mxfp4_scale(b[0]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            look_up(table, w[i], o.q[i], o.q[i + 4]);
    }
};

struct rows_iq4_xs : block_type<256, sizeof(struct iq4_xs), 16, true, false> {
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t u, opened &o) {
        const uint32_t table[4] = IQ4_TABLE;
        uint2 head = *(const uint2 *)b;
        uint32_t w[4];
        load_words<ALIGN>(b + offsetof(struct iq4_xs, qs) + 16 * u, w);
        uint32_t scale = (head.y >> 4 * u & 15) | (head.x >> (16 + 2 * u) & 3) << 4;
        o.scale[0] = __fmul_rn(low_half(head.x), (float)((int)scale - 32));
#pragma unroll
        for (int i = 0; i < 4; i++)
            look_up(table, w[i], o.q[i], o.q[i + 4]);
    }
};

/* Units of q2_k, q3_k and q6_k: half u / 4 of the block, bytes 16 (u % 2).. of a run of 32, and of
 * the four values that lie there one above the other numbers g and g + 2, g = u % 4 / 2. */
struct rows_q2_k : block_type<256, sizeof(struct q2_k), 64, false, true> {
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t u, opened &o) {
        uint32_t half = u / 4, g = u % 4 / 2, w[4];
        load_words<ALIGN>(b + offsetof(struct q2_k, qs) + 32 * half + 16 * (u % 2), w);
        uint32_t d = *(const uint32_t *)(b + offsetof(struct q2_k, d));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t s = b[8 * half + u % 4 + 4 * i];
            o.scale[i] = __fmul_rn(low_half(d), (float)(s & 15));
            o.min[i] = __fmul_rn(high_half(d), (float)(s >> 4));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            o.q[i] = (int)(w[i] >> 2 * g & 0x03030303u);
            o.q[i + 4] = (int)(w[i] >> (2 * g + 4) & 0x03030303u);
        }
    }
};

struct rows_q3_k : block_type<256, sizeof(struct q3_k), 64, false, false> {
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t u, opened &o) {
        uint32_t half = u / 4, g = u % 4 / 2, bit = 4 * half + g, w[4], h[4];
        load_words<ALIGN>(b + offsetof(struct q3_k, qs) + 32 * half + 16 * (u % 2), w);
        load_words<ALIGN>(b + offsetof(struct q3_k, hmask) + 16 * (u % 2), h);
        float d = load_half(b + offsetof(struct q3_k, d));
        const uint8_t *scales = b + offsetof(struct q3_k, scales);
#pragma unroll
        for (int i = 0; i < 2; i++)
            o.scale[i] = __fmul_rn(d, (float)q3_k_scale(scales, (int)(8 * half + u % 4) + 4 * i));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t a = (w[i] >> 2 * g & 0x03030303u) | (h[i] >> bit & 0x01010101u) << 2;
            uint32_t c = (w[i] >> (2 * g + 4) & 0x03030303u) | (h[i] >> (bit + 2) & 0x01010101u)
                                                                   << 2;
            o.q[i] = less<4>(a);
            o.q[i + 4] = less<4>(c);
        }
    }
};

struct rows_q6_k : block_type<256, sizeof(struct q6_k), 64, false, false> {
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t u, opened &o) {
        uint32_t half = u / 4, g = u % 4 / 2, w[4], h[4];
        load_words<ALIGN>(b + 16 * u, w);
        load_words<ALIGN>(b + offsetof(struct q6_k, qh) + 32 * half + 16 * (u % 2), h);
        float d = load_half(b + offsetof(struct q6_k, d));
        const int8_t *scales = (const int8_t *)b + offsetof(struct q6_k, scales) + 8 * half;
        o.scale[0] = __fmul_rn(d, (float)scales[u % 4]);
        o.scale[1] = __fmul_rn(d, (float)scales[u % 4 + 4]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t high = h[i] >> 2 * g;
            o.q[i] = less<32>(low_nibbles(w[i]) | (high << 4 & 0x30303030u));
            o.q[i + 4] = less<32>(high_nibbles(w[i]) | (high & 0x30303030u));
        }
    }
};

/* Scales and minimums of sub-blocks 2r and 2r + 1 of q4_k and q5_k from a block's first 16 bytes:
 * all four of a half at once, then the two asked for. */
static __device__ __forceinline__ void open_k_scales(const uint8_t *b, uint32_t r, opened &o) {
    uint4 head = *(const uint4 *)b;
    uint32_t scales =
        r < 2 ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
    uint32_t mins =
        r < 2 ? head.z & 0x3f3f3f3fu : (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
    scales >>= 16 * (r % 2), mins >>= 16 * (r % 2);
    float d = low_half(head.x), dmin = high_half(head.x);
    o.scale[0] = __fmul_rn(d, (float)(scales & 255));
    o.scale[1] = __fmul_rn(d, (float)(scales >> 8 & 255));
    o.min[0] = __fmul_rn(dmin, (float)(mins & 255));
    o.min[1] = __fmul_rn(dmin, (float)(mins >> 8 & 255));
}

/* Unit u has bytes 16u.. of the nibbles: half u % 2 of sub-blocks u / 2 * 2 and the next. */
struct rows_q4_k : block_type<256, sizeof(struct q4_k), 32, false, true> {
    static __device__ __forceinline__ void open_quants(const uint8_t *b, uint32_t r, uint32_t half,
                                                       opened &o) {
        uint32_t w[4];
        load_words<ALIGN>(b + offsetof(struct q4_k, qs) + 32 * r + 16 * half, w);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            o.q[i] = (int)low_nibbles(w[i]);
            o.q[i + 4] = (int)high_nibbles(w[i]);
        }
    }
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t u, opened &o) {
        open_k_scales(b, u / 2, o);
        open_quants(b, u / 2, u % 2, o);
    }
};

struct rows_q5_k : block_type<256, sizeof(struct q5_k), 32, false, true> {
    static __device__ __forceinline__ void open_quants(const uint8_t *b, uint32_t r, uint32_t half,
                                                       opened &o) {
        uint32_t w[4], h[4];
        load_words<ALIGN>(b + offsetof(struct q5_k, qs) + 32 * r + 16 * half, w);
        load_words<ALIGN>(b + offsetof(struct q5_k, qh) + 16 * half, h);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t high = h[i] >> 2 * r;
            o.q[i] = (int)(low_nibbles(w[i]) | (high & 0x01010101u) << 4);
            o.q[i + 4] = (int)(high_nibbles(w[i]) | (high << 3 & 0x10101010u));
        }
    }
    static __device__ __forceinline__ void open(const uint8_t *b, uint32_t u, opened &o) {
        open_k_scales(b, u / 2, o);
        open_quants(b, u / 2, u % 2, o);
    }
};

struct rows_f32 {
    static constexpr int BYTES = 4, PASS = 256;
    static __device__ __forceinline__ float value(const uint8_t *p) {
        return *(const float *)p;
    }
};

struct rows_f16 {
    static constexpr int BYTES = 2, PASS = 512;
    static __device__ __forceinline__ float value(const uint8_t *p) {
        return load_half(p);
    }
};

struct rows_bf16 {
    static constexpr int BYTES = 2, PASS = 512;
    static __device__ __forceinline__ float value(const uint8_t *p) {
        return bf16_to_f32(*(const uint16_t *)p);
    }
};

/* ---- products -------------------------------------------------------------------------------- */

/* A pass is what a warp takes of a row at once. The three kinds of product below each add a lane's
 * share of a pass of two weight rows, w[0] and w[1] (where the pass begins), for R activation rows.
 * Two, because the activations are then read once for both. */

template <class T> struct blocks_pass {
    static constexpr int LANE_VALUES = 32;
    static constexpr int VALUES = 32 * LANE_VALUES, BYTES = VALUES / T::VALUES * T::BYTES;
    static __device__ __forceinline__ void open(const uint8_t *pass, uint32_t unit, opened &o) {
        T::open(pass + unit / T::UNITS * T::BYTES, unit % T::UNITS, o);
    }
    /* Where the unit's first run is in the row. */
    static __device__ __forceinline__ uint32_t place(uint32_t pass, uint32_t unit) {
        return pass * VALUES + unit / T::UNITS * T::VALUES + T::place(unit % T::UNITS);
    }
};

static __device__ __forceinline__ int dot16(const int *q, int4 x, int sum = 0) {
    sum = __dp4a(q[0], x.x, sum);
    sum = __dp4a(q[1], x.y, sum);
    sum = __dp4a(q[2], x.z, sum);
    return __dp4a(q[3], x.w, sum);
}

/* Two runs with their scales, or both with one. */
template <bool IS_ONE, bool HAS_MIN>
static __device__ __forceinline__ float add_runs(const float *scale, const float *min, int dot0,
                                                 int dot1, float2 f0, float2 f1, float sum) {
    if constexpr (IS_ONE) {
        sum = __fmaf_rn(__fmul_rn(scale[0], f0.x), (float)(dot0 + dot1), sum);
        if constexpr (HAS_MIN)
            sum = __fmaf_rn(-min[0], __fadd_rn(f0.y, f1.y), sum);
    } else {
        sum = __fmaf_rn(__fmul_rn(scale[0], f0.x), (float)dot0, sum);
        sum = __fmaf_rn(__fmul_rn(scale[1], f1.x), (float)dot1, sum);
        if constexpr (HAS_MIN) {
            sum = __fmaf_rn(-min[0], f0.y, sum);
            sum = __fmaf_rn(-min[1], f1.y, sum);
        }
    }
    return sum;
}

template <class T> struct int8_product : blocks_pass<T> {
    static constexpr bool IS_INT8 = true;
    template <int R>
    static __device__ __forceinline__ void add(const uint8_t *const (&w)[2], uint32_t pass,
                                               uint32_t unit, const act_rows &a,
                                               float (&sum)[2][R]) {
        opened o[2];
        blocks_pass<T>::open(w[0], unit, o[0]);
        blocks_pass<T>::open(w[1], unit, o[1]);
        uint32_t run = (a.skip + blocks_pass<T>::place(pass, unit)) / 16;
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint64_t row = (uint64_t)act_row(a, r) * act_stride(a.k);
            const int4 *x = (const int4 *)(a.q + row);
            const float2 *f = a.runs + row / 16 + run;
            int4 x0 = x[act_run(run)], x1 = x[act_run(run + T::APART / 16)];
            float2 f0 = f[0], f1 = f[T::APART / 16];
#pragma unroll
            for (int i = 0; i < 2; i++)
                sum[i][r] =
                    add_runs<T::IS_ONE, T::HAS_MIN>(o[i].scale, o[i].min, dot16(o[i].q, x0),
                                                    dot16(o[i].q + 4, x1), f0, f1, sum[i][r]);
        }
    }
};

/* q4_k and q5_k: two units a lane that share their scales, 64 values. */
template <class T> struct merged_product {
    static constexpr bool IS_INT8 = true;
    static constexpr int LANE_VALUES = 64;
    static constexpr int VALUES = 32 * LANE_VALUES, BYTES = VALUES / T::VALUES * T::BYTES;
    template <int R>
    static __device__ __forceinline__ void add(const uint8_t *const (&w)[2], uint32_t pass,
                                               uint32_t unit, const act_rows &a,
                                               float (&sum)[2][R]) {
        opened o[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint8_t *b = w[i] + unit / 4 * T::BYTES;
            open_k_scales(b, unit % 4, o[i][0]);
            T::open_quants(b, unit % 4, 0, o[i][0]);
            T::open_quants(b, unit % 4, 1, o[i][1]);
        }
        uint32_t run = (a.skip + pass * VALUES + unit * LANE_VALUES) / 16;
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint64_t row = (uint64_t)act_row(a, r) * act_stride(a.k);
            const int4 *x = (const int4 *)(a.q + row);
            int4 x0 = x[act_run(run)], x1 = x[act_run(run + 1)];
            int4 x2 = x[act_run(run + 2)], x3 = x[act_run(run + 3)];
            const float4 *f = (const float4 *)(a.runs + row / 16 + run);
            float4 f0 = f[0], f1 = f[1];
            float2 g0 = make_float2(f0.x, __fadd_rn(f0.y, f0.w));
            float2 g1 = make_float2(f1.x, __fadd_rn(f1.y, f1.w));
#pragma unroll
            for (int i = 0; i < 2; i++)
                sum[i][r] = add_runs<false, true>(
                    o[i][0].scale, o[i][0].min, dot16(o[i][1].q, x1, dot16(o[i][0].q, x0)),
                    dot16(o[i][1].q + 4, x3, dot16(o[i][0].q + 4, x2)), g0, g1, sum[i][r]);
        }
    }
};

template <class T>
using product_for = std::conditional_t<T::APART == 32, merged_product<T>, int8_product<T>>;

/* f32 activations and a block type. */
template <class T> struct opened_product : blocks_pass<T> {
    static constexpr bool IS_INT8 = false;
    template <int R>
    static __device__ __forceinline__ void add(const uint8_t *const (&w)[2], uint32_t pass,
                                               uint32_t unit, const act_rows &a,
                                               float (&sum)[2][R]) {
        opened o[2];
        blocks_pass<T>::open(w[0], unit, o[0]);
        blocks_pass<T>::open(w[1], unit, o[1]);
        uint32_t at = blocks_pass<T>::place(pass, unit);
#pragma unroll
        for (int v = 0; v < 32; v++) {
            float y[2] = {value(o[0], v), value(o[1], v)};
#pragma unroll
            for (int r = 0; r < R; r++) {
                float x = a.x[act_row(a, r) * a.x_stride + a.skip + at +
                              (v < 16 ? v : v - 16 + T::APART)];
                sum[0][r] = __fmaf_rn(y[0], x, sum[0][r]);
                sum[1][r] = __fmaf_rn(y[1], x, sum[1][r]);
            }
        }
    }
    static __device__ __forceinline__ float value(const opened &o, int v) {
        int run = T::IS_ONE ? 0 : v / 16;
        float q = (float)(int8_t)(o.q[v / 4] >> 8 * (v % 4));
        return T::HAS_MIN ? __fmaf_rn(o.scale[run], q, -o.min[run]) : __fmul_rn(o.scale[run], q);
    }
};

/* f32 activations and F32, F16 or BF16. */
template <class T> struct plain_product {
    static constexpr bool IS_INT8 = false;
    static constexpr int LANE_VALUES = 0; /* a value a lane: all lanes share a row */
    static constexpr int VALUES = T::PASS, BYTES = VALUES * T::BYTES;
    template <int R>
    static __device__ __forceinline__ void add(const uint8_t *const (&w)[2], uint32_t pass,
                                               uint32_t lane, const act_rows &a,
                                               float (&sum)[2][R]) {
#pragma unroll 4
        for (uint32_t i = lane; i < VALUES; i += 32) {
            uint32_t at = pass * VALUES + i;
            bool is_there = at < a.k;
            float y0 = is_there ? T::value(w[0] + i * T::BYTES) : 0;
            float y1 = is_there ? T::value(w[1] + i * T::BYTES) : 0;
#pragma unroll
            for (int r = 0; r < R; r++) {
                float x = is_there ? a.x[act_row(a, r) * a.x_stride + a.skip + at] : 0;
                sum[0][r] = __fmaf_rn(y0, x, sum[0][r]);
                sum[1][r] = __fmaf_rn(y1, x, sum[1][r]);
            }
        }
    }
};

#endif
