/* kernels_neon.c - products with f32 activations, and attention, with NEON. Those with int8 are in
 * kernels_neon_sdot.c and kernels_neon_mmla.c, attention with FMLAL in kernels_neon_fhm.c. */
#include "backend/cpu/kernels_rows.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

#include "base/cpu.h"
#include "quant/encode.h"

#define TARGET
#define INLINE static inline __attribute__((always_inline))

/* ---- activations as int8 --------------------------------------------------------------------- */

/* The largest of n values (a multiple of 32) without their signs, as bits. */
INLINE int32_t largest_bits(const float *x, uint32_t n) {
    const int32x4_t no_sign = vdupq_n_s32(0x7fffffff);
    int32x4_t max[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    for (uint32_t i = 0; i < n; i += 8)
        UNROLL for (uint32_t j = 0; j < 2; j++) max[j] =
            vmaxq_s32(max[j], vandq_s32(vreinterpretq_s32_f32(vld1q_f32(x + i + 4 * j)), no_sign));
    return vmaxvq_s32(vmaxq_s32(max[0], max[1]));
}

/* Four values: the integer is in the lowest byte. */
INLINE int32x4_t rounded_4(const float *x, float inverse) {
    float32x4_t y = vmulq_n_f32(vld1q_f32(x), inverse);
    return vreinterpretq_s32_f32(vaddq_f32(y, vdupq_n_f32(ROUND_MAGIC)));
}

INLINE int8x8_t rounded_8(const float *x, float inverse) {
    int16x4_t low = vmovn_s32(rounded_4(x, inverse));
    return vmovn_s16(vmovn_high_s32(low, rounded_4(x + 4, inverse)));
}

/* 32 values to int8; sum: of either half. */
INLINE void quantize_group(const float *x, float inverse, int8_t *q, int32_t *sum) {
    UNROLL for (int h = 0; h < 2; h++) {
        int8x8_t low = rounded_8(x + 16 * h, inverse);
        int8x16_t bytes = vcombine_s8(low, rounded_8(x + 16 * h + 8, inverse));
        vst1q_s8(q + 16 * h, bytes);
        sum[h] = vaddlvq_s8(bytes);
    }
}

#define ACTS_INLINE INLINE
#define ACTS_TARGET TARGET
#include "backend/cpu/kernels_acts.h"

/* ---- f32 activations ------------------------------------------------------------------------- */

INLINE float32x4_t half_load(const uint8_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

INLINE float32x4_t bf16_load(const uint8_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

/* Sixteen signed bytes as f32. */
INLINE void widen_16(bytes16 q, float32x4_t *to) {
    int8x16_t v = vreinterpretq_s8_u8((uint8x16_t)q);
    int16x8_t half[2] = {vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v)};
    UNROLL for (int i = 0; i < 2; i++) {
        to[2 * i] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(half[i])));
        to[2 * i + 1] = vcvtq_f32_s32(vmovl_high_s16(half[i]));
    }
}

INLINE bytes16 look_up_16(const uint8_t *values, bytes16 nibbles) {
    return (bytes16)vqtbl1q_u8(vld1q_u8(values), (uint8x16_t)nibbles);
}

INLINE float half_to_f32(uint16_t half) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
}

#include "backend/cpu/kernels_neon_vec.h"
#define F32_ACTS 4
#define V_FMA(a, b, c) vfmaq_f32(c, a, b)
#define V_SUM(v) vaddvq_f32(v)
#include "backend/cpu/kernels_decode.h"

/* ---- attention ------------------------------------------------------------------------------- */

#define V_FOUR(p) vld1q_f32(p)
#define V_PAIRS(a, b) vpaddq_f32(a, b)
#define V_WEIGHTS float32x4_t
#define V_LOAD_WEIGHTS(p) vld1q_f32(p)
#define V_WEIGHT(w, i) vdupq_n_f32((w)[i]) /* a lane of a register where loops are unrolled */
#define ATTEND_ROWS 5
#define ATTEND_ONE "backend/cpu/kernels_attend_neon.h"
#include "backend/cpu/kernels_attend.h"

/* ---- the rows -------------------------------------------------------------------------------- */

#define F32_ROW(TYPE, type) F32_KERNEL(TYPE, type, "neon", CPU_NEON),

static const struct kernel rows[] = {
    /* clang-format off */
    FOR_EACH_FAST_TYPE(F32_ROW)
    F32_ROW(F32, f32)
    F32_ROW(F16, f16)
    F32_ROW(BF16, bf16)
    /* clang-format on */
};

const struct kernel_rows kernels_neon = {
    rows, sizeof rows / sizeof *rows, {"attend neon", CPU_NEON, attend_split}, act_groups_vectors};

#endif
