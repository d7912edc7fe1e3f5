/* experts_fallback.h - params of EXPERTS_IN and EXPERTS_OUT on weight rows as in the file.
 *
 * A launch has matrices of one type: routed and shared experts together where their types agree,
 * else one launch each. */
#ifndef BACKEND_CUDA_OPS_EXPERTS_FALLBACK_H
#define BACKEND_CUDA_OPS_EXPERTS_FALLBACK_H

#include "backend/cuda/ops/project_fallback.h"

struct experts_in_fallback_params {
    struct cuda_io io;
    struct fallback_acts acts;
    struct fallback_format format;
    const uint32_t *choice;
    float *hidden;
    uint64_t choice_stride, hidden_stride;
    struct cuda_matrix routed, shared; /* gate or up; n 0: none */
    uint32_t k, used;
    uint32_t routed_width; /* of hidden, also where no routed expert is in this launch */
    uint32_t epilogue;     /* enum fallback_epilogue */
};

struct experts_out_fallback_params {
    struct cuda_io io;
    struct fallback_acts acts; /* hidden, from the first value that this launch reads */
    struct fallback_format format;
    const uint32_t *choice;
    const float *weight;
    float *x;
    uint64_t choice_stride, weight_stride, x_stride;
    struct cuda_matrix routed, shared; /* n 0: none */
    uint32_t k, used, width;
    uint32_t block_outputs; /* outputs of a block */
};

#endif
