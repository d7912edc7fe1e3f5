/* kernels_neon_plain.c - one row of f32 activations with F32, F16 and BF16 weights, for cores that
 * have FMLAL (FEAT_FHM), which run four vector instructions a cycle.
 *
 * The sums are those of kernels_f32.h. Several weight rows are multiplied side by side, since each
 * addition to a sum waits for the one before, and are fetched into L2 long before their use. f16
 * become f32 by FMLAL, which adds f16 products to f32: times 1, added to -0, nothing is rounded,
 * and a zero keeps its sign. More rows, and rows of other lengths, are left to kernels_neon.c. */
#include "backend/cpu/kernels_rows.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "backend/cpu/kernels_neon_fhm.h"
#include "base/cpu.h"

enum { MAX_ROWS = 8, AHEAD = 2048 };

/* Eight weights. */
typedef void wide_fn(const uint8_t *from, float32x4_t *to);

INLINE void wide_f32(const uint8_t *from, float32x4_t *to) {
    to[0] = vreinterpretq_f32_u8(vld1q_u8(from));
    to[1] = vreinterpretq_f32_u8(vld1q_u8(from + 16));
}

/* In two ways, since a core converts one vector a cycle. */
INLINE void wide_f16(const uint8_t *from, float32x4_t *to) {
    uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(from)), one = vdupq_n_u16(0x3c00);
    to[0] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(v)));
    to[1] = vdupq_n_f32(-0.0f);
    __asm__("fmlal2 %0.4s, %1.4h, %2.4h" : "+w"(to[1]) : "w"(v), "w"(one));
}

INLINE void wide_bf16(const uint8_t *from, float32x4_t *to) {
    uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(from)), zero = vdupq_n_u16(0);
    to[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16));
    /* not a shift: those have pipes of their own */
    to[1] = vreinterpretq_f32_u16(vzip2q_u16(zero, v));
}

/* `rows` weight rows, 8 values at a time; `bytes` of a value. */
INLINE void multiply_rows(wide_fn *wide, uint32_t bytes, int rows, const uint8_t *w, const float *x,
                          uint32_t k, float *out) {
    const size_t row = (size_t)k * bytes;
    float32x4_t sum[MAX_ROWS];
    UNROLL for (int j = 0; j < rows; j++) sum[j] = vdupq_n_f32(0);
    for (uint32_t i = 0; i < k; i += 8) {
        const size_t at = (size_t)i * bytes;
        if (at % 64 == 0) { /* beyond a row's end: of the row that comes after these */
            const uint8_t *ahead =
                w + at + AHEAD + (at + AHEAD < row ? 0 : (size_t)(rows - 1) * row);
            UNROLL for (int j = 0; j < rows; j++) __builtin_prefetch(ahead + (size_t)j * row, 0, 2);
        }
        float32x4_t x0 = vld1q_f32(x + i), x1 = vld1q_f32(x + i + 4);
        UNROLL for (int j = 0; j < rows; j++) {
            float32x4_t v[2];
            wide(w + (size_t)j * row + at, v);
            sum[j] = vfmaq_f32(sum[j], v[0], x0);
            sum[j] = vfmaq_f32(sum[j], v[1], x1);
        }
    }
    UNROLL for (int j = 0; j < rows; j++) out[j] = vaddvq_f32(sum[j]);
}

INLINE void project_one(wide_fn *wide, uint32_t bytes, int rows, const uint8_t *w, uint32_t count,
                        const float *x, uint32_t k, float *out) {
    uint32_t n = 0;
    for (; n + (uint32_t)rows <= count; n += (uint32_t)rows)
        multiply_rows(wide, bytes, rows, w + (size_t)n * k * bytes, x, k, out + n);
    for (; n < count; n++)
        multiply_rows(wide, bytes, 1, w + (size_t)n * k * bytes, x, k, out + n);
}

#define PROJECT(TYPE, type, bytes, rows)                                                           \
    static TARGET void project_##type(const void *weights, uint32_t first, uint32_t count,         \
                                      const struct activations *acts, float *out,                  \
                                      size_t out_stride) {                                         \
        if (acts->n_rows != 1 || acts->k % 8 != 0)                                                 \
            kernel_find(DT_##TYPE, true, CPU_NEON)                                                 \
                ->run(weights, first, count, acts, out, out_stride);                               \
        else                                                                                       \
            project_one(wide_##type, bytes, rows,                                                  \
                        (const uint8_t *)weights + (size_t)first * acts->k * (bytes), count,       \
                        acts->x, acts->k, out);                                                    \
    }
PROJECT(F32, f32, 4, 4)
PROJECT(F16, f16, 2, 8)
PROJECT(BF16, bf16, 2, 8)

#define ROW(TYPE, type)                                                                            \
    { #type " f32 fhm", DT_##TYPE, true, CPU_NEON | CPU_FHM, 1, NULL, NULL, project_##type }

static const struct kernel rows[] = {ROW(F32, f32), ROW(F16, f16), ROW(BF16, bf16)};

const struct kernel_rows kernels_neon_plain = {rows, sizeof rows / sizeof *rows, {0}, NULL};

#endif
