/* quant.h - number formats: what a tensor's bytes mean.
 *
 * The table of types is types.def. Layout and unpacking of each type are in a header of its own
 * (q4_k.h ...), which C and CUDA share; quantizers are in encode.c and encode_k.c. */
#ifndef QUANT_QUANT_H
#define QUANT_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

enum dtype {
#define PLAIN_TYPE(NAME, name, id, bytes) DT_##NAME = id,
#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode) DT_##NAME = id,
#define SIZED_TYPE(NAME, id, values, bytes) DT_##NAME = id,
#include "quant/types.def"
    DT_COUNT = 43, /* one more than the highest id; there are holes below it */
};

/* Decodes n values (a multiple of block_values) of consecutive blocks. src needs no alignment. */
typedef void dtype_decode_fn(const void *src, float *dst, size_t n);

/* Quantizes n values (a multiple of block_values; usually one row) into consecutive blocks.
 * Values must be finite, and then the decoded ones are: what is beyond a type's range goes to its
 * end. The same bits on every machine; a block depends on its own values only. dst needs no
 * alignment. */
typedef void dtype_encode_fn(const float *src, void *dst, size_t n);

/* The same where the square of each value's error counts as much as its weight, which is above 0,
 * and best 1 on average. weights: (n), or NULL: all alike, and the bytes are those of encode. */
typedef void dtype_encode_weighted_fn(const float *src, const float *weights, void *dst, size_t n);

struct dtype_info {
    const char *name;      /* "Q4_K"; NULL in the table's holes */
    uint32_t block_values; /* a row is a multiple of this */
    uint32_t block_bytes;
    dtype_decode_fn *decode;                   /* NULL: sizes only */
    dtype_encode_fn *encode;                   /* NULL: decode only */
    dtype_encode_weighted_fn *encode_weighted; /* NULL: there is no choice to make, as in floats */
};

/* NULL for an id that is no type. */
const struct dtype_info *dtype_info(uint32_t id);

/* "Q4_K", or "unknown". */
const char *dtype_name(uint32_t id);

/* Finds a type by name, upper or lower case. */
bool dtype_find(struct str name, enum dtype *out);

/* Bytes of n values: false when n is no multiple of the block or the product overflows. */
bool dtype_bytes(enum dtype type, uint64_t n, uint64_t *bytes);

/* The index of the first of n values that is infinite or NaN; n: none is. */
uint64_t find_not_finite(const float *x, uint64_t n);

/* Activations for integer dot products: every `group` values, 32 or 128, share one f32 scale
 * (largest magnitude / 127); int8 quants round_half_even(x * (1 / scale)). n is a multiple of 32,
 * so the last group may be shorter. Scales and sums of the quants (for formats with a minimum) are
 * written per 32 values whatever the group: kernels need not know it. The same bits on every
 * machine.
 *
 * A group whose scale would be subnormal (largest magnitude below 127 FLT_MIN, about 1.5e-36)
 * counts as zero: scale 0, quants 0. Its inverse could overflow, and some devices flush subnormals
 * anyway. A group with an infinity or a NaN has that as its scale, so that products with it show
 * it. */
enum { MAX_ACT_GROUP = 128 };
void act_quantize(const float *x, size_t n, uint32_t group, int8_t *q, float *scale /* (n / 32) */,
                  int32_t *sum /* (n / 32) */);

#endif
