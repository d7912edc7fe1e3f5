/* kernels_neon.c - products with f32 activations, and attention, with NEON. Those with int8 are in
 * kernels_neon_sdot.c and kernels_neon_mmla.c. */
#include "backend/cpu/kernels_rows.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

#include "base/cpu.h"

#define TARGET
#define INLINE static inline __attribute__((always_inline))

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

#define VEC float32x4_t
#define LANES 4
#define F32_ACTS 4
#define V_SET(x) vdupq_n_f32(x)
#define V_ZERO() vdupq_n_f32(0)
#define V_LOAD(p) vld1q_f32(p)
#define V_STORE(p, v) vst1q_f32(p, v)
#define V_FMA(a, b, c) vfmaq_f32(c, a, b)
#define V_SUM(v) vaddvq_f32(v)
#include "backend/cpu/kernels_decode.h"

/* ---- attention ------------------------------------------------------------------------------- */

#define V_FUSED(a, b, c) vfmaq_f32(c, a, b)
#define V_MAX(a, b) vmaxq_f32(a, b)
#define V_FOUR(p) vld1q_f32(p)
#define V_PAIRS(a, b) vpaddq_f32(a, b)
#define V_WEIGHTS float32x4_t
#define V_LOAD_WEIGHTS(p) vld1q_f32(p)
#define V_WEIGHT(w, i) vdupq_n_f32((w)[i]) /* a lane of a register where loops are unrolled */
/* Loaded: FMLA's addend is its result, and a copy costs as much as a product. x makes each load its
 * own. */
#define V_ADDEND(c, x)                                                                             \
    ({                                                                                             \
        static const float addend_[4] __attribute__((aligned(16))) = {c, c, c, c};                 \
        float32x4_t loaded_;                                                                       \
        __asm__("ldr %q0, %1" : "=w"(loaded_) : "m"(addend_), "w"(x));                             \
        loaded_;                                                                                   \
    })
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
    rows, sizeof rows / sizeof *rows, {"attend neon", CPU_NEON, attend_split}, NULL};

#endif
