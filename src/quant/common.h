/* common.h - what the type headers share, for C and CUDA.
 *
 * A type header holds a block's layout and its unpacking, and is compiled by both languages. So it
 * keeps to their common subset: no designated initialisers, no plain `char` (its sign differs), no
 * field that asks for more than 2-byte alignment. Blocks are little-endian in the file, and so are
 * all machines we run on.
 *
 * A type is defined by one function: <type>_unpack(block, g, out) gives values 32 g ... 32 g + 31
 * of a block as integers with scales. Decoding, and the products of all backends that have no
 * kernel of their own for a type, are made from it. */
#ifndef QUANT_COMMON_H
#define QUANT_COMMON_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define QUANT_FN static __host__ __device__ __forceinline__
#else
#define QUANT_FN static inline
#endif

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blocks are read as they are in the file");

QUANT_FN float f32_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

QUANT_FN uint32_t f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* 32 values: y[i] = scale[i / 16] * q[i] - min[i / 16]. Types whose scales are for 32 values (RUN
 * 32 in types.def) have the same pair twice. */
struct unpacked {
    uint32_t q[8]; /* int8, four per word, the first lowest */
    float scale[2], min[2];
};

QUANT_FN void unpacked_scale(struct unpacked *u, float scale, float min) {
    u->scale[0] = u->scale[1] = scale;
    u->min[0] = u->min[1] = min;
}

/* y[i], rounded after the product and after the difference: the same bits on host and device. */
QUANT_FN float unpacked_value(const struct unpacked *u, int i) {
    float q = (float)(int8_t)(u->q[i / 4] >> 8 * (i % 4) & 255);
#ifdef __CUDA_ARCH__
    return __fsub_rn(__fmul_rn(u->scale[i / 16], q), u->min[i / 16]);
#else
    return u->scale[i / 16] * q - u->min[i / 16];
#endif
}

/* Four bytes from any address. On the device by whole words: only those that hold a wanted byte. */
QUANT_FN uint32_t load_u32(const void *p) {
#ifdef __CUDA_ARCH__
    uint32_t skew = (uint32_t)(uintptr_t)p & 3;
    const uint32_t *at = (const uint32_t *)((const uint8_t *)p - skew);
    return __funnelshift_r(at[0], at[skew != 0], 8 * skew);
#else
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return w;
#endif
}

/* 16 bytes: values 0..15 in the low nibbles, 16..31 in the high ones. */
QUANT_FN void unpack_nibbles(const uint8_t *qs, struct unpacked *out) {
    for (int i = 0; i < 4; i++) {
        uint32_t w = load_u32(qs + 4 * i);
        out->q[i] = w & 0x0f0f0f0f;
        out->q[i + 4] = w >> 4 & 0x0f0f0f0f;
    }
}

/* Four bytes of 0..127, less `bias` (0..127): int8. */
QUANT_FN uint32_t bytes_minus(uint32_t w, uint32_t bias) {
    return (w + (0x80 - bias) * 0x01010101u) ^ 0x80808080u; /* no byte borrows from the next */
}

/* Four bytes of 0..15, each replaced by that byte of a table of 16 in four words. */
QUANT_FN uint32_t bytes_lookup(uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3, uint32_t w) {
#ifdef __CUDA_ARCH__
    uint32_t low = w & 0x07070707, pairs = low | low >> 4;
    uint32_t select = (pairs & 0xff) | (pairs >> 8 & 0xff00); /* a nibble each */
    uint32_t upper = (w >> 3 & 0x01010101) * 0xff;
    return (__byte_perm(t0, t1, select) & ~upper) | (__byte_perm(t2, t3, select) & upper);
#else
    const uint32_t words[4] = {t0, t1, t2, t3};
    uint8_t table[16], bytes[4];
    memcpy(table, words, sizeof table);
    for (int i = 0; i < 4; i++)
        bytes[i] = table[w >> 8 * i & 15];
    memcpy(&w, bytes, sizeof w);
    return w;
#endif
}

#endif
