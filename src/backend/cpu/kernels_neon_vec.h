/* kernels_neon_vec.h - NEON's vectors, as kernels_f32.h and kernels_softmax.h want them. */
#ifndef BACKEND_CPU_KERNELS_NEON_VEC_H
#define BACKEND_CPU_KERNELS_NEON_VEC_H

#define VEC float32x4_t
#define LANES 4
#define V_SET(x) vdupq_n_f32(x)
#define V_ZERO() vdupq_n_f32(0)
#define V_LOAD(p) vld1q_f32(p)
#define V_STORE(p, v) vst1q_f32(p, v)
#define V_FUSED(a, b, c) vfmaq_f32(c, a, b)
#define V_MAX(a, b) vmaxq_f32(a, b)
#define V_MAX_LANES(v) vmaxvq_f32(v)
/* (0 + 2) + (1 + 3) */
#define V_SUM_LANES(v)                                                                             \
    ({                                                                                             \
        float32x2_t two_ = vadd_f32(vget_low_f32(v), vget_high_f32(v));                            \
        vget_lane_f32(vpadd_f32(two_, two_), 0);                                                   \
    })
#define V_HALF(v) vcvt_f32_f16(vcvt_f16_f32(v))
/* Loaded: FMLA's addend is its result, and a copy costs as much as a product. x makes each load its
 * own. */
#define V_ADDEND(c, x)                                                                             \
    ({                                                                                             \
        static const float addend_[4] __attribute__((aligned(16))) = {c, c, c, c};                 \
        float32x4_t loaded_;                                                                       \
        __asm__("ldr %q0, %1" : "=w"(loaded_) : "m"(addend_), "w"(x));                             \
        loaded_;                                                                                   \
    })

#endif
