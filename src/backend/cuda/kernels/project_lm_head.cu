/* project_lm_head.cu - the head of one row: PROJECT, whose results also go to the host if it asks
 * for them, while weights still stream, and of which the best is found on the way. */
#include "backend/cuda/kernels/project_gemv.cuh"

/* The best of a warp's logits goes into the row's, by one of its lanes, unless the block knows of a
 * better one. Every lane that is here comes; those without a logit have none to put in. */
struct head {
    static constexpr bool IS_HEAD = true;
    const struct project_head_params &h;

    __device__ __forceinline__ void note(const struct project_params &p, bool is_in,
                                         uint32_t column, float v, const float *block_best) const {
        const struct io_output &o = p.io.outputs[0];
        uint32_t *most = (uint32_t *)block_best;
        uint32_t lanes = __activemask(), bits = __float_as_uint(v + 0.0f);
        if (is_in && o.flags & IO_WANTS_LOGITS)
            h.wanted[column] = v;
        bits = bits >> 31 ? ~bits : bits | 0x80000000u;
        bits = !is_in || column >= o.n_vocab ? 0 : v == v ? bits : ~0u;
        uint32_t best = __reduce_max_sync(lanes, bits);
        uint32_t first = __reduce_min_sync(lanes, bits == best ? column : ~0u);
        if (best && bits == best && column == first && atomicMax(most, best) <= best)
            atomicMax((unsigned long long *)h.best,
                      (unsigned long long)best << 32 | (uint32_t)~first);
    }
};

/* A head is one matrix: of one type. */
#define HEAD_KERNEL(NAME, SET)                                                                     \
    extern "C" __global__ void __maxnreg__(56)                                                     \
        project_head_1_##NAME(const __grid_constant__ struct project_head_params h) {              \
        project<SET, 1>(h.p, head{h});                                                             \
    }

HEAD_KERNEL(q4, IS_Q4_K)
HEAD_KERNEL(q6, IS_Q6_K)
HEAD_KERNEL(q8, IS_Q8_0)
HEAD_KERNEL(bf16, IS_BF16)
HEAD_KERNEL(f16, IS_F16)
HEAD_KERNEL(all, 127)
