/* common.h - how the type headers speak C and CUDA at once.
 *
 * A type header holds a block's layout and its decode, and is compiled by both languages. So it
 * keeps to their common subset: no designated initialisers, no plain `char` (its sign differs), no
 * field that asks for more than 2-byte alignment. Blocks are little-endian in the file, and so are
 * all machines we run on.
 *
 * CUDA may fuse a multiplication and a subtraction, so a decode on the device can differ from the
 * host's in the last bit. */
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

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blocks are read as they lie in the file");

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

#endif
