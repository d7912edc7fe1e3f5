/* kernels_portable.c - products in plain C, from weights as they are in the file.
 *
 * They run everywhere, know every type of types.def, and define the integers: 32 values of a block
 * are unpacked into int8 quants with a scale (and a minimum) for each run of 16 or 32, and for each
 * run
 *
 *   out += (w.scale * x.scale) * dot(w.q, x.q) - w.min * (x.scale * sum(x.q))
 *
 * where dot and sum are exact. Values are unpacked once for all activation rows, whose sums are
 * kept in out. */
#include <string.h>

#include "backend/cpu/kernels_rows.h"
#include "quant/types.h"

/* ---- int8 activations ------------------------------------------------------------------------ */

typedef void unpack_fn(const void *block, int g, struct unpacked *out);

struct format {
    unpack_fn *unpack;
    uint32_t values, bytes; /* of a block */
    uint32_t run;           /* values of one scale: 16 or 32 */
};

static int32_t dot(const int8_t *a, const int8_t *b, uint32_t n) {
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* 32 values: one run or two. */
static float add_group(uint32_t run, const struct unpacked *w, const struct act_group *a,
                       float sum) {
    int8_t q[32];
    memcpy(q, w->q, sizeof q);
    for (uint32_t i = 0; i < 32 / run; i++) {
        int32_t product = dot(q + i * run, a->q + i * run, run);
        int32_t minus = run == 32 ? a->minus_sum : a->minus_half[i];
        sum += w->scale[i] * a->scale * (float)product;
        sum += w->min[i] * (a->scale * (float)minus);
    }
    return sum;
}

static void project_int8(const struct format *f, const void *weights, uint32_t first,
                         uint32_t count, const struct activations *acts, float *out,
                         size_t out_stride) {
    size_t blocks = acts->k / f->values;
    const uint8_t *at = (const uint8_t *)weights + first * blocks * f->bytes;
    for (uint32_t n = 0; n < count; n++) {
        for (uint32_t r = 0; r < acts->n_rows; r++)
            out[r * out_stride + n] = 0;
        for (uint32_t g = 0; g < acts->k / 32; g++) {
            struct unpacked w;
            uint32_t in_block = g % (f->values / 32);
            f->unpack(at, (int)in_block, &w);
            for (uint32_t r = 0; r < acts->n_rows; r++) {
                float *sum = &out[r * out_stride + n];
                *sum = add_group(f->run, &w, acts->groups + r * stride_of(acts) + g, *sum);
            }
            at += in_block + 1 == f->values / 32 ? f->bytes : 0;
        }
    }
}

/* Blocks may have odd addresses, the structs want an even one. */
#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode)                                     \
    static void unpack_##name(const void *at, int g, struct unpacked *out) {                       \
        struct name block;                                                                         \
        memcpy(&block, at, sizeof block);                                                          \
        name##_unpack(&block, g, out);                                                             \
    }                                                                                              \
    static void project_##name(const void *weights, uint32_t first, uint32_t count,                \
                               const struct activations *acts, float *out, size_t out_stride) {    \
        static const struct format format = {unpack_##name, values, bytes, run};                   \
        project_int8(&format, weights, first, count, acts, out, out_stride);                       \
    }
#include "quant/types.def"

/* ---- f32 activations ------------------------------------------------------------------------- */

/* The compilers' own vectors: SSE2 or NEON on the machines we know, and correct on any. */
typedef float vec __attribute__((vector_size(16)));

static inline vec vec_load(const void *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline vec half_load(const uint8_t *p) {
    uint16_t h[4];
    memcpy(h, p, sizeof h);
    return (vec){f16_to_f32(h[0]), f16_to_f32(h[1]), f16_to_f32(h[2]), f16_to_f32(h[3])};
}

static inline vec bf16_load(const uint8_t *p) {
    uint16_t b[4];
    memcpy(b, p, sizeof b);
    return (vec){bf16_to_f32(b[0]), bf16_to_f32(b[1]), bf16_to_f32(b[2]), bf16_to_f32(b[3])};
}

#define VEC vec
#define LANES 4
#define F32_ACTS 2
#define TARGET
#define V_ZERO() ((vec){0})
#define V_LOAD(p) vec_load(p)
#define V_STORE(p, v) memcpy(p, &(v), sizeof(vec))
#define V_FMA(a, b, c) ((a) * (b) + (c))
#define V_SUM(v) (((v)[0] + (v)[1]) + ((v)[2] + (v)[3]))
#include "backend/cpu/kernels_f32.h"

#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode)                                     \
    static void decode_##name(const uint8_t *from, float *to, uint32_t n) {                        \
        dtype_info(DT_##NAME)->decode(from, to, n);                                                \
    }                                                                                              \
    PROJECT_DECODED(NAME, name)
#include "quant/types.def"

/* ---- attention ------------------------------------------------------------------------------- */

/* a b + c rounded once, for processors without an instruction for it: the product is exact in f64,
 * and a sum that is not is made odd in its last bit, so that rounding it again to f32 is as
 * rounding once. */
static inline float fused(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
    return __builtin_fmaf(a, b, c);
#else
    double product = (double)a * b, sum = product + c;
    double part = sum - product, error = (product - (sum - part)) + (c - part);
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if ((error < 0 || error > 0) && bits % 2 == 0) /* neither where the sum is infinite */
        bits += (error > 0) == (sum > 0) ? 1 : (uint64_t)-1;
    memcpy(&sum, &bits, sizeof sum);
    return (float)sum;
#endif
}

static inline vec vec_fused(vec a, vec b, vec c) {
    return (vec){fused(a[0], b[0], c[0]), fused(a[1], b[1], c[1]), fused(a[2], b[2], c[2]),
                 fused(a[3], b[3], c[3])};
}

static inline vec vec_larger(vec a, vec b) {
    return (vec){a[0] > b[0] ? a[0] : b[0], a[1] > b[1] ? a[1] : b[1], a[2] > b[2] ? a[2] : b[2],
                 a[3] > b[3] ? a[3] : b[3]};
}

static inline float half_of(float x) {
    return f16_to_f32(f16_from_f32(x));
}

static inline vec vec_half(vec v) {
    return (vec){half_of(v[0]), half_of(v[1]), half_of(v[2]), half_of(v[3])};
}

static inline vec vec_pairs(vec a, vec b) {
    return (vec){a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3]};
}

static inline vec vec_set(float x) {
    return (vec){x, x, x, x};
}

#define V_FUSED(a, b, c) vec_fused(a, b, c)
#define V_MAX(a, b) vec_larger(a, b)
#define V_HALF(v) vec_half(v)
#define V_FOUR(p) vec_load(p)
#define V_PAIRS(a, b) vec_pairs(a, b)
#define V_SET(x) vec_set(x)
#define V_WEIGHTS const float *
#define V_LOAD_WEIGHTS(p) (p)
#define V_WEIGHT(w, i) V_SET((w)[i])
#define ATTEND_ROWS 3
#include "backend/cpu/kernels_attend.h"

/* ---- the rows -------------------------------------------------------------------------------- */

static const struct kernel rows[] = {
/* clang-format off */
#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode)                                     \
    {#name " portable", DT_##NAME, false, 0, 1, NULL, NULL, project_##name},                       \
    F32_KERNEL(NAME, name, "portable", 0),
#define PLAIN_TYPE(NAME, name, id, bytes) F32_KERNEL(NAME, name, "portable", 0),
#include "quant/types.def"
    /* clang-format on */
};

const struct kernel_rows kernels_portable = {
    rows, sizeof rows / sizeof *rows, {"attend portable", 0, attend_split}, NULL};
