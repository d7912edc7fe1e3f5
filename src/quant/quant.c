/* quant.c - the table of types, made from types.def, and activations for integer dot products. */
#include "quant/quant.h"

#include <float.h>

#include "base/err.h"
#include "base/size.h"
#include "quant/encode.h"
#include "quant/types.h"

/* ---- decode ---------------------------------------------------------------------------------- */

static void f32_decode(const void *src, float *dst, size_t n) {
    memcpy(dst, src, n * sizeof *dst);
}

static void f16_decode(const void *src, float *dst, size_t n) {
    const uint8_t *at = src;
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, at + 2 * i, sizeof half);
        dst[i] = f16_to_f32(half);
    }
}

static void bf16_decode(const void *src, float *dst, size_t n) {
    const uint8_t *at = src;
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, at + 2 * i, sizeof bits);
        dst[i] = bf16_to_f32(bits);
    }
}

static inline void decode_run(const int8_t *q, float scale, float min, float *restrict y) {
    for (int i = 0; i < 16; i++)
        y[i] = scale * (float)q[i] - min;
}

/* unpacked_value of all 32, by loops that compilers turn into vectors. */
static inline void decode_unpacked(const struct unpacked *u, float *y) {
    int8_t q[32];
    memcpy(q, u->q, sizeof q);
    decode_run(q, u->scale[0], u->min[0], y);
    decode_run(q + 16, u->scale[1], u->min[1], y + 16);
}

/* Blocks are copied out first: src may have any address, the structs want an even one. */
#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode)                                     \
    static_assert(sizeof(struct name) == (bytes), "types.def has the size of " #name);             \
    static void name##_decode(const void *src, float *dst, size_t n) {                             \
        CHECK(n % (values) == 0);                                                                  \
        const uint8_t *at = src;                                                                   \
        for (size_t i = 0; i < n; i += (values), at += sizeof(struct name)) {                      \
            struct name block;                                                                     \
            memcpy(&block, at, sizeof block);                                                      \
            for (int g = 0; g < (values) / 32; g++) {                                              \
                struct unpacked u;                                                                 \
                name##_unpack(&block, g, &u);                                                      \
                decode_unpacked(&u, dst + i + 32 * (size_t)g);                                     \
            }                                                                                      \
        }                                                                                          \
    }
#include "quant/types.def"

/* ---- the table ------------------------------------------------------------------------------- */

#define NONE NULL
#define NONE_weighted NULL
#define PLAIN_TYPE(NAME, name, id, bytes)                                                          \
    [id] = {#NAME, 1, bytes, name##_decode, name##_encode, NULL},
#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode)                                     \
    [id] = {#NAME, values, bytes, name##_decode, encode, encode##_weighted},
#define SIZED_TYPE(NAME, id, values, bytes) [id] = {#NAME, values, bytes, NULL, NULL, NULL},
static const struct dtype_info types[DT_COUNT] = {
#include "quant/types.def"
};
#undef NONE
#undef NONE_weighted

const struct dtype_info *dtype_info(uint32_t id) {
    return id < DT_COUNT && types[id].name ? &types[id] : NULL;
}

const char *dtype_name(uint32_t id) {
    const struct dtype_info *info = dtype_info(id);
    return info ? info->name : "unknown";
}

static char upper(char c) {
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

static bool equal_but_for_case(struct str name, const char *z) {
    if (name.len != strlen(z))
        return false;
    for (size_t i = 0; i < name.len; i++)
        if (upper(name.at[i]) != z[i])
            return false;
    return true;
}

bool dtype_find(struct str name, enum dtype *out) {
    for (uint32_t id = 0; id < DT_COUNT; id++) {
        if (types[id].name && equal_but_for_case(name, types[id].name)) {
            *out = (enum dtype)id;
            return true;
        }
    }
    return false;
}

bool dtype_bytes(enum dtype type, uint64_t n, uint64_t *bytes) {
    const struct dtype_info *info = dtype_info((uint32_t)type);
    if (!info || n % info->block_values != 0)
        return false;
    return size_mul(n / info->block_values, info->block_bytes, bytes);
}

/* ---- values that are not finite -------------------------------------------------------------- */

static uint64_t not_finite_within(const float *x, uint64_t n) {
    uint64_t i = 0;
    while (i < n && (f32_bits(x[i]) & 0x7f800000) != 0x7f800000)
        i++;
    return i;
}

uint64_t find_not_finite(const float *x, uint64_t n) {
    enum { BLOCK = 64 }; /* by one comparison, without a branch for each value */
    uint64_t at = 0;
    for (; at + BLOCK <= n; at += BLOCK) {
        uint32_t found = 0;
        for (int i = 0; i < BLOCK; i++)
            found |= (f32_bits(x[at + i]) & 0x7f800000) == 0x7f800000;
        if (found)
            return at + not_finite_within(x + at, BLOCK);
    }
    return at + not_finite_within(x + at, n - at);
}

/* ---- activations ----------------------------------------------------------------------------- */

/* The largest magnitude of 32 values, found on the bits: they order as the numbers do, infinity
 * above all of them and NaN above that, so neither can hide. */
static int32_t largest(const float *x) {
    int32_t max[4] = {0};
    for (int i = 0; i < 32; i += 4) {
        for (int lane = 0; lane < 4; lane++) {
            int32_t size = (int32_t)(f32_bits(x[i + lane]) & 0x7fffffff);
            max[lane] = size > max[lane] ? size : max[lane];
        }
    }
    int32_t a = max[0] > max[1] ? max[0] : max[1], b = max[2] > max[3] ? max[2] : max[3];
    return a > b ? a : b;
}

static float scale_of(const float *x, size_t n) {
    int32_t max = 0;
    for (size_t i = 0; i < n; i += 32) {
        int32_t size = largest(x + i);
        max = size > max ? size : max;
    }
    float d = f32_from_bits((uint32_t)max) / 127.0f;
    return d < FLT_MIN ? 0.0f : d;
}

/* Returns the sum. */
static int32_t quantize_32(const float *x, float inverse, int8_t *q) {
    int32_t total = 0;
    for (int i = 0; i < 32; i++) {
        q[i] = (int8_t)(uint8_t)f32_bits(x[i] * inverse + ROUND_MAGIC);
        total += q[i];
    }
    return total;
}

void act_quantize(const float *x, size_t n, uint32_t group, int8_t *q, float *scale, int32_t *sum) {
    CHECK(n % 32 == 0 && (group == 32 || group == MAX_ACT_GROUP));
    for (size_t first = 0; first < n; first += group) {
        size_t end = n - first < group ? n : first + group;
        float d = scale_of(x + first, end - first);
        float inverse = d > 0 && d <= FLT_MAX ? 1.0f / d : 0.0f;
        for (size_t i = first; i < end; i += 32) {
            scale[i / 32] = d;
            sum[i / 32] = quantize_32(x + i, inverse, q + i);
        }
    }
}
