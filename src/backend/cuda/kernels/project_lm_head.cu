/* project_lm_head.cu - the LM head of one row: PROJECT, which also writes the logits that the host
 * asks for while its weights stream, and finds their argmax.
 *
 * Greedy PICK then only reports the argmax: 12 us to 1.6 a step (H200). The layers' kernels do not
 * have this code: a branch for it cost them 15 to 25 us a step.
 *
 * argmax: a 64-bit key, the logit's order in the upper half, ~column in the lower, so that of equal
 * logits the first wins; NaN and both infinities are above all numbers. */
#include <float.h>

#include "backend/cuda/kernels/project_gemv.cuh"

struct lm_head {
    static constexpr bool IS_LM_HEAD = true;
    const struct project_lm_head_params &h;

    /* Called by converged lanes, with is_valid false by those without a logit. One lane a warp
     * updates the row's key, and only if the warp's maximum is not below block_max, the largest of
     * this thread block so far (the bits of a key's upper half). */
    __device__ __forceinline__ void on_logit(const struct project_params &p, bool is_valid,
                                             uint32_t column, float v,
                                             const float *block_max) const {
        const struct io_output &o = p.io.outputs[0];
        uint32_t *max_bits = (uint32_t *)block_max;
        uint32_t lanes = __activemask(), bits = order_bits(v + 0.0f);
        if (is_valid && o.flags & IO_WANTS_LOGITS)
            h.logits[column] = v;
        bits = !is_valid || column >= o.n_vocab ? 0 : fabsf(v) <= FLT_MAX ? bits : ~0u;
        uint32_t best = __reduce_max_sync(lanes, bits);
        uint32_t first = __reduce_min_sync(lanes, bits == best ? column : ~0u);
        if (best && bits == best && column == first && atomicMax(max_bits, best) <= best)
            atomicMax((unsigned long long *)h.argmax,
                      (unsigned long long)best << 32 | (uint32_t)~first);
    }
};

/* An LM head is one matrix, so sets of one type are enough. Q6_K over `all`: 1.0 % of a step of
 * qwen35-0.8b. */
#define PROJECT_LM_HEAD(NAME, SET)                                                                 \
    extern "C" __global__ void __maxnreg__(56)                                                     \
        project_lm_head_##NAME(const __grid_constant__ struct project_lm_head_params h) {          \
        project_gemv<SET, 1>(h.p, lm_head{h});                                                     \
    }

#if __CUDA_ARCH__ >= 900 /* below, int8 types have `all` */
PROJECT_LM_HEAD(q4, IS_Q4_K)
PROJECT_LM_HEAD(q6, IS_Q6_K)
PROJECT_LM_HEAD(q8, IS_Q8_0)
#endif
PROJECT_LM_HEAD(bf16, IS_BF16)
PROJECT_LM_HEAD(f16, IS_F16)
PROJECT_LM_HEAD(all, IS_ANY)
