/* kernels_portable.c - products in plain C, from weights as they lie in the file.
 *
 * They run everywhere and define the integers: a block is opened into int8 quants with a scale (and
 * a minimum) for each run of 16 or 32, and for each run
 *
 *   out += (w.scale * x.scale) * dot(w.q, x.q) - w.min * (x.scale * sum(x.q))
 *
 * where dot and sum are exact. A block is opened once for all activation rows, whose sums rest in
 * out. */
#include <string.h>

#include "backend/cpu/kernels_rows.h"
#include "quant/bf16.h"
#include "quant/iq4_nl.h"
#include "quant/iq4_xs.h"
#include "quant/mxfp4.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

/* ---- opening a block ------------------------------------------------------------------------- */

struct opened {
    int8_t q[256];
    float scale[16], min[16]; /* of each run */
};

typedef void open_fn(const void *block, struct opened *out);

/* Sixteen bytes of the 32-value types: low nibbles first, less `bias`. */
static void open_nibbles(const uint8_t *qs, int bias, int8_t *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)((qs[i] & 15) - bias);
        q[i + 16] = (int8_t)((qs[i] >> 4) - bias);
    }
}

static void add_fifth_bits(const uint8_t *qh, int8_t *q) {
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)(q[i] + (qh[i / 8] >> i % 8 & 1) * 16);
}

static void open_q4_0(const void *block, struct opened *out) {
    const struct q4_0 *b = block;
    out->scale[0] = f16_to_f32(b->d);
    open_nibbles(b->qs, 8, out->q);
}

static void open_q4_1(const void *block, struct opened *out) {
    const struct q4_1 *b = block;
    out->scale[0] = f16_to_f32(b->d);
    out->min[0] = -f16_to_f32(b->m);
    open_nibbles(b->qs, 0, out->q);
}

static void open_q5_0(const void *block, struct opened *out) {
    const struct q5_0 *b = block;
    out->scale[0] = f16_to_f32(b->d);
    open_nibbles(b->qs, 16, out->q);
    add_fifth_bits(b->qh, out->q);
}

static void open_q5_1(const void *block, struct opened *out) {
    const struct q5_1 *b = block;
    out->scale[0] = f16_to_f32(b->d);
    out->min[0] = -f16_to_f32(b->m);
    open_nibbles(b->qs, 0, out->q);
    add_fifth_bits(b->qh, out->q);
}

static void open_q8_0(const void *block, struct opened *out) {
    const struct q8_0 *b = block;
    out->scale[0] = f16_to_f32(b->d);
    memcpy(out->q, b->qs, sizeof b->qs);
}

static void open_iq4_nl(const void *block, struct opened *out) {
    const struct iq4_nl *b = block;
    out->scale[0] = f16_to_f32(b->d);
    open_nibbles(b->qs, 0, out->q);
    for (int i = 0; i < 32; i++)
        out->q[i] = (int8_t)iq4_value(out->q[i]);
}

static void open_mxfp4(const void *block, struct opened *out) {
    const struct mxfp4 *b = block;
    out->scale[0] = mxfp4_scale(b->e);
    open_nibbles(b->qs, 0, out->q);
    for (int i = 0; i < 32; i++)
        out->q[i] = (int8_t)mxfp4_twice(out->q[i]);
}

static void open_q2_k(const void *block, struct opened *out) {
    const struct q2_k *b = block;
    float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    for (int k = 0; k < 16; k++) {
        const uint8_t *qs = b->qs + 32 * (k / 8) + 16 * (k % 2);
        out->scale[k] = d * (float)(b->scales[k] & 15);
        out->min[k] = dmin * (float)(b->scales[k] >> 4);
        for (int l = 0; l < 16; l++)
            out->q[16 * k + l] = (int8_t)(qs[l] >> 2 * (k % 8 / 2) & 3);
    }
}

static void open_q3_k(const void *block, struct opened *out) {
    const struct q3_k *b = block;
    float d = f16_to_f32(b->d);
    for (int k = 0; k < 16; k++) {
        const uint8_t *qs = b->qs + 32 * (k / 8) + 16 * (k % 2), *high = b->hmask + 16 * (k % 2);
        out->scale[k] = d * (float)q3_k_scale(b->scales, k);
        for (int l = 0; l < 16; l++)
            out->q[16 * k + l] =
                (int8_t)((qs[l] >> 2 * (k % 8 / 2) & 3) + (high[l] >> k / 2 & 1) * 4 - 4);
    }
}

/* The part that q4_k and q5_k have in common. */
static void open_k_nibbles(uint16_t d, uint16_t dmin, const uint8_t *scales, const uint8_t *qs,
                           struct opened *out) {
    for (int s = 0; s < 8; s++) {
        out->scale[s] = f16_to_f32(d) * (float)q4_k_scale(scales, s);
        out->min[s] = f16_to_f32(dmin) * (float)q4_k_min(scales, s);
        for (int l = 0; l < 32; l++)
            out->q[32 * s + l] = (int8_t)(qs[32 * (s / 2) + l] >> 4 * (s % 2) & 15);
    }
}

static void open_q4_k(const void *block, struct opened *out) {
    const struct q4_k *b = block;
    open_k_nibbles(b->d, b->dmin, b->scales, b->qs, out);
}

static void open_q5_k(const void *block, struct opened *out) {
    const struct q5_k *b = block;
    open_k_nibbles(b->d, b->dmin, b->scales, b->qs, out);
    for (int i = 0; i < 256; i++)
        out->q[i] = (int8_t)(out->q[i] + (b->qh[i % 32] >> i / 32 & 1) * 16);
}

static void open_q6_k(const void *block, struct opened *out) {
    const struct q6_k *b = block;
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, g = i % 128 / 32, l = i % 32;
        int low = b->ql[64 * half + 32 * (g % 2) + l] >> 4 * (g / 2) & 15;
        int high = b->qh[32 * half + l] >> 2 * g & 3;
        out->q[i] = (int8_t)((low | high << 4) - 32);
    }
    for (int k = 0; k < 16; k++)
        out->scale[k] = d * (float)b->scales[k];
}

static void open_iq4_xs(const void *block, struct opened *out) {
    const struct iq4_xs *b = block;
    float d = f16_to_f32(b->d);
    for (int s = 0; s < 8; s++) {
        out->scale[s] = d * (float)iq4_xs_scale(b, s);
        for (int i = 0; i < 16; i++) {
            out->q[32 * s + i] = (int8_t)iq4_value(b->qs[16 * s + i] & 15);
            out->q[32 * s + 16 + i] = (int8_t)iq4_value(b->qs[16 * s + i] >> 4);
        }
    }
}

/* ---- int8 activations ------------------------------------------------------------------------ */

struct format {
    enum dtype type;
    open_fn *open;
    uint32_t run; /* values of one scale: 16 or 32 */
    bool has_min;
};

static int32_t dot(const int8_t *a, const int8_t *b, uint32_t n) {
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* One group of 32 values: one run or two. */
static float add_group(const struct format *f, const struct opened *w, uint32_t group,
                       const struct act_group *a, float sum) {
    for (uint32_t at = 0; at < 32; at += f->run) {
        uint32_t run = (32 * group + at) / f->run;
        int32_t product = dot(w->q + 32 * group + at, a->q + at, f->run);
        sum += w->scale[run] * a->scale * (float)product;
        if (f->has_min) {
            int32_t minus = f->run == 32 ? a->minus_sum : a->minus_half[at / 16];
            sum += w->min[run] * (a->scale * (float)minus);
        }
    }
    return sum;
}

static void project_int8(const struct format *f, const void *weights, uint32_t first,
                         uint32_t count, const struct activations *acts, float *out,
                         size_t out_stride) {
    const struct dtype_info *info = dtype_info((uint32_t)f->type);
    size_t blocks = acts->k / info->block_values, groups = info->block_values / 32;
    const uint8_t *at = (const uint8_t *)weights + first * blocks * info->block_bytes;
    for (uint32_t n = 0; n < count; n++) {
        for (uint32_t r = 0; r < acts->n_rows; r++)
            out[r * out_stride + n] = 0;
        for (size_t b = 0; b < blocks; b++, at += info->block_bytes) {
            struct opened w;
            _Alignas(8) uint8_t block[256]; /* blocks may lie at odd addresses */
            memcpy(block, at, info->block_bytes);
            f->open(block, &w);
            for (uint32_t r = 0; r < acts->n_rows; r++) {
                const struct act_group *a = acts->groups + r * stride_of(acts) + b * groups;
                float *sum = &out[r * out_stride + n];
                for (uint32_t g = 0; g < groups; g++)
                    *sum = add_group(f, &w, g, a + g, *sum);
            }
        }
    }
}

#define PROJECT_INT8(TYPE, type, run, has_min)                                                     \
    static void project_##type(const void *weights, uint32_t first, uint32_t count,                \
                               const struct activations *acts, float *out, size_t out_stride) {    \
        static const struct format format = {DT_##TYPE, open_##type, run, has_min};                \
        project_int8(&format, weights, first, count, acts, out, out_stride);                       \
    }

PROJECT_INT8(Q4_0, q4_0, 32, false)
PROJECT_INT8(Q4_1, q4_1, 32, true)
PROJECT_INT8(Q5_0, q5_0, 32, false)
PROJECT_INT8(Q5_1, q5_1, 32, true)
PROJECT_INT8(Q8_0, q8_0, 32, false)
PROJECT_INT8(Q2_K, q2_k, 16, true)
PROJECT_INT8(Q3_K, q3_k, 16, false)
PROJECT_INT8(Q4_K, q4_k, 32, true)
PROJECT_INT8(Q5_K, q5_k, 32, true)
PROJECT_INT8(Q6_K, q6_k, 16, false)
PROJECT_INT8(IQ4_NL, iq4_nl, 32, false)
PROJECT_INT8(IQ4_XS, iq4_xs, 32, false)
PROJECT_INT8(MXFP4, mxfp4, 32, false)

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

/* Sixteen signed bytes as f32. */
static inline void widen_16(bytes16 q, vec *to) {
    for (int i = 0; i < 16; i++)
        to[i / 4][i % 4] = (float)(int8_t)q[i];
}

static inline bytes16 look_up_16(const uint8_t *values, bytes16 nibbles) {
    for (int i = 0; i < 16; i++)
        nibbles[i] = values[nibbles[i]];
    return nibbles;
}

#define half_to_f32 f16_to_f32
#define VEC vec
#define LANES 4
#define F32_ACTS 2
#define V_SET(x) ((vec){(x), (x), (x), (x)})
#define TARGET
#define V_ZERO() ((vec){0})
#define V_LOAD(p) vec_load(p)
#define V_STORE(p, v) memcpy(p, &(v), sizeof(vec))
#define V_FMA(a, b, c) ((a) * (b) + (c))
#define V_SUM(v) (((v)[0] + (v)[1]) + ((v)[2] + (v)[3]))
#include "backend/cpu/kernels_f32.h"

/* ---- the rows -------------------------------------------------------------------------------- */

#define INT8_ROW(TYPE, type)                                                                       \
    {#type " portable", DT_##TYPE, false, 0, 1, NULL, NULL, project_##type},
#define F32_ROW(TYPE, type) F32_KERNEL(TYPE, type, "portable", 0),

static const struct kernel rows[] = {
    FOR_EACH_BLOCK_TYPE(INT8_ROW) FOR_EACH_BLOCK_TYPE(F32_ROW) /* clang-format off */
    F32_ROW(F32, f32)
    F32_ROW(F16, f16)
    F32_ROW(BF16, bf16) /* clang-format on */
};

const struct kernel_rows kernels_portable = {rows, sizeof rows / sizeof *rows};
