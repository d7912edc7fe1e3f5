/* kernels_decode.h - weights of FOR_EACH_FAST_TYPE as f32, sixteen at a time, for one instruction
 * set.
 *
 * Gives kernels_f32.h and project_f32_<type> for those types. A block's quants become sixteen
 * signed bytes, by operations on bytes; those become f32, which are multiplied by their scale and
 * minimum:
 *
 *   y = scale * q              y = scale * q - min
 *
 * The very products of src/quant/<type>.h, in the same order and nothing fused: the same bits.
 * Beside what kernels_f32.h asks for, the file that includes it defines
 *   V_SET(x)                  a vector of one value
 *   widen_16(q, y)            sixteen signed bytes to sixteen f32, in vectors
 *   look_up_16(table, n)      sixteen nibbles to the table's bytes
 *   half_to_f32(bits)         f16_to_f32 */

#include "backend/cpu/kernels_f32.h"
#include "quant/types.h"

#define DECODE_INLINE F32_INLINE

/* ---- bytes ----------------------------------------------------------------------------------- */

DECODE_INLINE bytes16 bytes_load(const void *p) {
    bytes16 v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The bits of `mask` after a shift to the right. There are no shifts of bytes; what comes in from
 * the neighbour does not pass the mask. */
DECODE_INLINE bytes16 byte_bits(bytes16 v, int shift, int mask) {
    return (bytes16)((words8)v >> shift) & (uint8_t)mask;
}

/* For values whose upper bits are zero. */
DECODE_INLINE bytes16 byte_left(bytes16 v, int shift) {
    return (bytes16)((words8)v << shift);
}

/* Bits 16 half .. 16 half + 15 of a word as bytes of 0 or 16. The word's bytes are spread by the
 * table look-up, which reads sixteen: there are more in the block. */
DECODE_INLINE bytes16 fifth_bits(const uint8_t *word, int half) {
    const bytes16 byte = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    const bytes16 bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    bytes16 spread = look_up_16(word, byte + (uint8_t)(2 * half));
    return (bytes16)((spread & bit) == bit) & 16;
}

/* ---- f32 ------------------------------------------------------------------------------------- */

enum { PARTS = 16 / LANES };

/* Sixteen results: y = scale * q. */
DECODE_INLINE void put(float *y, bytes16 q, float scale) {
    VEC wide[PARTS];
    widen_16(q, wide);
    UNROLL for (int i = 0; i < PARTS; i++) {
        VEC v = wide[i] * V_SET(scale);
        V_STORE(y + i * LANES, v);
    }
}

/* y = scale * q - min */
DECODE_INLINE void put_less(float *y, bytes16 q, float scale, float min) {
    VEC wide[PARTS];
    widen_16(q, wide);
    UNROLL for (int i = 0; i < PARTS; i++) {
        VEC v = wide[i] * V_SET(scale) - V_SET(min);
        V_STORE(y + i * LANES, v);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* The structs want an even address; in a row they may be at any. */
#define ANYWHERE(TYPE, type) typedef struct type type##_anywhere __attribute__((aligned(1)));
FOR_EACH_FAST_TYPE(ANYWHERE)

static const uint8_t decode_iq4[16] = {129, 152, 173, 191, 207, 221, 234, 246,
                                       1,   13,  25,  38,  53,  69,  89,  113}; /* iq4_lookup */
static const uint8_t decode_mxfp4_twice[16] = {0, 1,   2,   3,   4,   6,   8,   12,
                                               0, 255, 254, 253, 252, 250, 248, 244};

DECODE_INLINE void block_q4_0(const q4_0_anywhere *b, float *y) {
    float d = half_to_f32(b->d);
    bytes16 v = bytes_load(b->qs);
    put(y, byte_bits(v, 0, 15) - 8, d);
    put(y + 16, byte_bits(v, 4, 15) - 8, d);
}

DECODE_INLINE void block_q4_1(const q4_1_anywhere *b, float *y) {
    float d = half_to_f32(b->d), min = -half_to_f32(b->m);
    bytes16 v = bytes_load(b->qs);
    put_less(y, byte_bits(v, 0, 15), d, min);
    put_less(y + 16, byte_bits(v, 4, 15), d, min);
}

DECODE_INLINE void block_q5_0(const q5_0_anywhere *b, float *y) {
    float d = half_to_f32(b->d);
    bytes16 v = bytes_load(b->qs);
    put(y, (byte_bits(v, 0, 15) | fifth_bits(b->qh, 0)) - 16, d);
    put(y + 16, (byte_bits(v, 4, 15) | fifth_bits(b->qh, 1)) - 16, d);
}

DECODE_INLINE void block_q5_1(const q5_1_anywhere *b, float *y) {
    float d = half_to_f32(b->d), min = -half_to_f32(b->m);
    bytes16 v = bytes_load(b->qs);
    put_less(y, byte_bits(v, 0, 15) | fifth_bits(b->qh, 0), d, min);
    put_less(y + 16, byte_bits(v, 4, 15) | fifth_bits(b->qh, 1), d, min);
}

DECODE_INLINE void block_q8_0(const q8_0_anywhere *b, float *y) {
    float d = half_to_f32(b->d);
    put(y, bytes_load(b->qs), d);
    put(y + 16, bytes_load(b->qs + 16), d);
}

DECODE_INLINE void block_iq4_nl(const iq4_nl_anywhere *b, float *y) {
    float d = half_to_f32(b->d);
    bytes16 v = bytes_load(b->qs);
    put(y, look_up_16(decode_iq4, byte_bits(v, 0, 15)), d);
    put(y + 16, look_up_16(decode_iq4, byte_bits(v, 4, 15)), d);
}

DECODE_INLINE void block_mxfp4(const mxfp4_anywhere *b, float *y) {
    float d = mxfp4_scale(b->e);
    bytes16 v = bytes_load(b->qs);
    put(y, look_up_16(decode_mxfp4_twice, byte_bits(v, 0, 15)), d);
    put(y + 16, look_up_16(decode_mxfp4_twice, byte_bits(v, 4, 15)), d);
}

DECODE_INLINE void block_iq4_xs(const iq4_xs_anywhere *b, float *y) {
    float d = half_to_f32(b->d);
    struct iq4_xs head;
    memcpy(&head, b, offsetof(struct iq4_xs, qs));
    UNROLL for (int s = 0; s < 8; s++) {
        float scale = d * (float)iq4_xs_scale(&head, s);
        bytes16 v = bytes_load(b->qs + 16 * s);
        put(y + 32 * s, look_up_16(decode_iq4, byte_bits(v, 0, 15)), scale);
        put(y + 32 * s + 16, look_up_16(decode_iq4, byte_bits(v, 4, 15)), scale);
    }
}

DECODE_INLINE void block_q2_k(const q2_k_anywhere *b, float *y) {
    float scale[16], min[16];
    put(scale, byte_bits(bytes_load(b->scales), 0, 15), half_to_f32(b->d));
    put(min, byte_bits(bytes_load(b->scales), 4, 15), half_to_f32(b->dmin));
    UNROLL for (int k = 0; k < 16; k++) {
        bytes16 v = bytes_load(b->qs + 32 * (k / 8) + 16 * (k % 2));
        put_less(y + 16 * k, byte_bits(v, 2 * (k % 8 / 2), 3), scale[k], min[k]);
    }
}

DECODE_INLINE void block_q3_k(const q3_k_anywhere *b, float *y) {
    float scale[16];
    bytes16 scales = {0};
    for (int k = 0; k < 16; k++)
        scales[k] = (uint8_t)q3_k_scale(b->scales, k);
    put(scale, scales, half_to_f32(b->d));
    UNROLL for (int k = 0; k < 16; k++) {
        bytes16 v = bytes_load(b->qs + 32 * (k / 8) + 16 * (k % 2));
        bytes16 high = byte_bits(bytes_load(b->hmask + 16 * (k % 2)), k / 2, 1);
        put(y + 16 * k, (byte_bits(v, 2 * (k % 8 / 2), 3) | byte_left(high, 2)) - 4, scale[k]);
    }
}

/* q4_k_scale and q4_k_min of all eight sub-blocks, times d and dmin: scales, then minimums. */
DECODE_INLINE void scales_q4_k(const uint8_t *scales, uint16_t d, uint16_t dmin, float *to) {
    uint32_t in[3], out[4];
    memcpy(in, scales, sizeof in);
    out[0] = in[0] & 0x3f3f3f3f;
    out[1] = (in[2] & 0x0f0f0f0f) | (in[0] >> 6 & 0x03030303) << 4;
    out[2] = in[1] & 0x3f3f3f3f;
    out[3] = (in[2] >> 4 & 0x0f0f0f0f) | (in[1] >> 6 & 0x03030303) << 4;
    VEC wide[PARTS];
    float factors[16], fd = half_to_f32(d), fm = half_to_f32(dmin);
    for (int i = 0; i < 8; i++)
        factors[i] = fd, factors[8 + i] = fm;
    widen_16(bytes_load(out), wide);
    UNROLL for (int i = 0; i < PARTS; i++) {
        VEC v = wide[i] * V_LOAD(factors + i * LANES);
        V_STORE(to + i * LANES, v);
    }
}

DECODE_INLINE void block_q4_k(const q4_k_anywhere *b, float *y) {
    float scale[16];
    scales_q4_k(b->scales, b->d, b->dmin, scale);
    UNROLL for (int k = 0; k < 16; k++) {
        bytes16 v = bytes_load(b->qs + 32 * (k / 4) + 16 * (k % 2));
        put_less(y + 16 * k, byte_bits(v, 4 * (k / 2 % 2), 15), scale[k / 2], scale[8 + k / 2]);
    }
}

DECODE_INLINE void block_q5_k(const q5_k_anywhere *b, float *y) {
    float scale[16];
    scales_q4_k(b->scales, b->d, b->dmin, scale);
    UNROLL for (int k = 0; k < 16; k++) {
        bytes16 v = bytes_load(b->qs + 32 * (k / 4) + 16 * (k % 2));
        bytes16 high = byte_bits(bytes_load(b->qh + 16 * (k % 2)), k / 2, 1);
        bytes16 q = byte_bits(v, 4 * (k / 2 % 2), 15) | byte_left(high, 4);
        put_less(y + 16 * k, q, scale[k / 2], scale[8 + k / 2]);
    }
}

DECODE_INLINE void block_q6_k(const q6_k_anywhere *b, float *y) {
    float scale[16];
    put(scale, bytes_load(b->scales), half_to_f32(b->d));
    UNROLL for (int k = 0; k < 16; k++) {
        int half = k / 8, g = k % 8 / 2, at = 16 * (k % 2);
        bytes16 low = bytes_load(b->ql + 64 * half + 32 * (g % 2) + at);
        bytes16 high = byte_bits(bytes_load(b->qh + 32 * half + at), 2 * g, 3);
        put(y + 16 * k, (byte_bits(low, 4 * (g / 2), 15) | byte_left(high, 4)) - 32, scale[k]);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define DECODE_ROW(TYPE, type)                                                                     \
    static TARGET void decode_##type(const uint8_t *from, float *to, uint32_t n) {                 \
        const type##_anywhere *b = (const void *)from;                                             \
        const uint32_t values = sizeof *b < 64 ? 32 : 256;                                         \
        for (uint32_t i = 0; i < n; i += values, b++)                                              \
            block_##type(b, to + i);                                                               \
    }
FOR_EACH_FAST_TYPE(DECODE_ROW)
FOR_EACH_FAST_TYPE(PROJECT_DECODED)
