/* encode.c - quantizers of the plain types: the scale follows from the block's largest value, or is
 * searched for near that where errors have weights, and the values are rounded against the scale as
 * it is stored.
 *
 * K-quants, where scales are searched for, are in encode_k.c. */
#include "quant/encode.h"

#include "base/err.h"
#include "quant/bf16.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q8_0.h"

/* ---- floats ---------------------------------------------------------------------------------- */

void f32_encode(const float *src, void *dst, size_t n) {
    memcpy(dst, src, n * sizeof *src);
}

void f16_encode(const float *src, void *dst, size_t n) {
    uint8_t *at = dst;
    for (size_t i = 0; i < n; i++) {
        bool is_number = src[i] >= -FLT_MAX && src[i] <= FLT_MAX;
        uint16_t half = is_number ? f16_from_f32_clamped(src[i]) : f16_from_f32(src[i]);
        memcpy(at + 2 * i, &half, sizeof half);
    }
}

void bf16_encode(const float *src, void *dst, size_t n) {
    uint8_t *at = dst;
    for (size_t i = 0; i < n; i++) {
        uint16_t bits = bf16_from_f32_clamped(src[i]);
        memcpy(at + 2 * i, &bits, sizeof bits);
    }
}

/* ---- blocks of 32 ---------------------------------------------------------------------------- */

struct range {
    float low, high;
};

static struct range range_of(const float *x) {
    struct range r = {x[0], x[0]};
    for (int i = 1; i < 32; i++) {
        r.low = x[i] < r.low ? x[i] : r.low;
        r.high = x[i] > r.high ? x[i] : r.high;
    }
    return r;
}

/* The value farthest from zero, with its sign. */
static float extreme(struct range r) {
    return -r.low > r.high ? r.low : r.high;
}

static float inverse(float scale) {
    return scale != 0 ? 1.0f / scale : 0.0f;
}

/* q = (x - offset) * factor + shift, rounded half to even, within low..high. */
static void round_values(const float *x, float offset, float factor, float shift, struct range to,
                         int8_t *q) {
    for (int i = 0; i < 32; i++) {
        float v = (x[i] - offset) * factor + shift;
        v = v < to.low ? to.low : v;
        v = v > to.high ? to.high : v;
        q[i] = (int8_t)(uint8_t)f32_bits(v + ROUND_MAGIC);
    }
}

static void pack_nibbles(const int8_t *q, uint8_t *qs) {
    for (int i = 0; i < 16; i++)
        qs[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static void pack_fifth_bits(const int8_t *q, uint8_t *qh) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++)
        bits |= (uint32_t)(q[i] >> 4 & 1) << i;
    memcpy(qh, &bits, sizeof bits);
}

/* ---- searches, where errors have weights -------------------------------------------------- */

/* The error of y = d (q - shift) + offset. */
static float price(const float *x, const float *w, const int8_t *q, float d, float shift,
                   float offset) {
    float sum = 0;
    for (int i = 0; i < 32; i++) {
        float error = d * ((float)q[i] - shift) + offset - x[i];
        sum += w[i] * error * error;
    }
    return sum;
}

/* The best scale among some that map the extreme value to slightly more or fewer codes. An error
 * that overflows is never the smallest: then the plain scale stays. */
static uint16_t search_signed_scale(const float *x, const float *w, float top, float codes,
                                    struct range to) {
    enum { STEPS = 15 };
    uint16_t best = f16_from_scale(top / -codes);
    float least_error = FLT_MAX;
    for (int step = 0; step < STEPS; step++) {
        int8_t q[32];
        uint16_t d = f16_from_scale(top / -(codes + 0.25f * (float)(step - STEPS / 2)));
        round_values(x, 0, inverse(f16_to_f32(d)), codes, to, q);
        float error = price(x, w, q, f16_to_f32(d), codes, 0);
        if (error < least_error) {
            least_error = error;
            best = d;
        }
    }
    return best;
}

/* The same for a range, whose ends are cut off or moved apart. */
static struct range search_range(const float *x, const float *w, struct range r, float max_code) {
    enum { STEPS = 7 };
    struct range best = r;
    float least_error = FLT_MAX, part = (r.high - r.low) / max_code * 0.25f;
    for (int step = 0; step < STEPS * STEPS; step++) {
        int8_t q[32];
        struct range to = {r.low + part * (float)(step % STEPS - 1),
                           r.high - part * (float)(step / STEPS - 1)};
        float offset = f16_to_f32(f16_from_f32_clamped(to.low)), d = (to.high - offset) / max_code;
        d = f16_to_f32(f16_from_scale(d > 0 ? d : 0));
        round_values(x, offset, inverse(d), 0, (struct range){0, max_code}, q);
        float error = price(x, w, q, d, 0, offset);
        if (error < least_error) {
            least_error = error;
            best = to;
        }
    }
    return best;
}

/* ---- blocks ------------------------------------------------------------------------------- */

/* Symmetric types have one more code below zero than above: the extreme value gets it, so the scale
 * is negative where that value is positive. */
static uint16_t signed_scale(const float *x, const float *w, float codes_below_zero, int8_t *q) {
    float top = extreme(range_of(x));
    struct range to = {0, 2 * codes_below_zero - 1};
    uint16_t d = f16_from_scale(top / -codes_below_zero);
    if (w)
        d = search_signed_scale(x, w, top, codes_below_zero, to);
    round_values(x, 0, inverse(f16_to_f32(d)), codes_below_zero, to, q);
    return d;
}

/* Types with an offset: it is stored first, then the scale reaches from there to the top. */
static void offset_scale(const float *x, const float *w, float max_code, uint16_t *d, uint16_t *m,
                         int8_t *q) {
    struct range r = range_of(x);
    if (w)
        r = search_range(x, w, r, max_code);
    *m = f16_from_f32_clamped(r.low);
    float offset = f16_to_f32(*m);
    float scale = r.high / max_code - offset / max_code; /* the difference itself could overflow */
    *d = f16_from_scale(scale > 0 ? scale : 0);
    round_values(x, offset, inverse(f16_to_f32(*d)), 0, (struct range){0, max_code}, q);
}

static void q4_0_encode_block(const float *x, const float *w, struct q4_0 *b) {
    int8_t q[32];
    b->d = signed_scale(x, w, 8, q);
    pack_nibbles(q, b->qs);
}

static void q5_0_encode_block(const float *x, const float *w, struct q5_0 *b) {
    int8_t q[32];
    b->d = signed_scale(x, w, 16, q);
    pack_nibbles(q, b->qs);
    pack_fifth_bits(q, b->qh);
}

static void q4_1_encode_block(const float *x, const float *w, struct q4_1 *b) {
    int8_t q[32];
    offset_scale(x, w, 15, &b->d, &b->m, q);
    pack_nibbles(q, b->qs);
}

static void q5_1_encode_block(const float *x, const float *w, struct q5_1 *b) {
    int8_t q[32];
    offset_scale(x, w, 31, &b->d, &b->m, q);
    pack_nibbles(q, b->qs);
    pack_fifth_bits(q, b->qh);
}

/* Q8_0 is byte for byte what other converters write: quants are rounded half away from zero against
 * the scale before it becomes fp16. The other types round against the stored scale, which is a
 * little better; here only where the scale overflows fp16. */
static void q8_0_encode_block(const float *x, const float *w, struct q8_0 *b) {
    (void)w;
    struct range r = range_of(x);
    float scale = (-r.low > r.high ? -r.low : r.high) / 127.0f;
    b->d = f16_from_f32_clamped(scale);
    float factor = inverse(scale <= 65504.0f ? scale : f16_to_f32(b->d));
    if (!(factor <= FLT_MAX))
        factor = 0; /* a scale so small that it is 0 in fp16 */
    for (int i = 0; i < 32; i++) {
        float v = x[i] * factor, size = v < 0 ? -v : v;
        size = size > 127 ? 127 : size;
        int whole = (int)size;
        whole += size - (float)whole >= 0.5f;
        b->qs[i] = (int8_t)(v < 0 ? -whole : whole);
    }
}

/* NaN and infinity must stay visible: the KV cache of damaged weights must not look sound. */
static void mark_damage(const float *x, uint16_t *d) {
    float sum = 0;
    for (int i = 0; i < 32; i++)
        sum += x[i] - x[i];
    if (sum != 0)
        *d = 0x7e00;
}

/* dst may have any address, the structs want an even one. */
#define BLOCK_ENCODE(type)                                                                         \
    void type##_encode_weighted(const float *src, const float *weights, void *dst, size_t n) {     \
        CHECK(n % 32 == 0);                                                                        \
        uint8_t *at = dst;                                                                         \
        for (size_t i = 0; i < n; i += 32, at += sizeof(struct type)) {                            \
            struct type block;                                                                     \
            type##_encode_block(src + i, weights ? weights + i : NULL, &block);                    \
            mark_damage(src + i, &block.d);                                                        \
            memcpy(at, &block, sizeof block);                                                      \
        }                                                                                          \
    }                                                                                              \
    void type##_encode(const float *src, void *dst, size_t n) {                                    \
        type##_encode_weighted(src, NULL, dst, n);                                                 \
    }

BLOCK_ENCODE(q4_0)
BLOCK_ENCODE(q4_1)
BLOCK_ENCODE(q5_0)
BLOCK_ENCODE(q5_1)
BLOCK_ENCODE(q8_0)
