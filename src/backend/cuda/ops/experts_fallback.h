/* experts_fallback.h - params of EXPERTS_IN and EXPERTS_OUT on rows as they lie in the file.
 *
 * A launch takes the matrices of one type: routed and shared expert together where their types
 * agree, else one launch each. */
#ifndef BACKEND_CUDA_OPS_EXPERTS_FALLBACK_H
#define BACKEND_CUDA_OPS_EXPERTS_FALLBACK_H

#include "backend/cuda/ops/project_fallback.h"

enum { EXPERTS_BLOCK = 384 }; /* threads: fewer than PROJECT's, so that they have 80 registers */

struct experts_in_params {
    struct cuda_io io;
    const float *in, *norm;
    const uint32_t *choice;
    float *hidden;
    uint64_t in_stride, choice_stride, hidden_stride;
    struct cuda_matrix routed[2],
        shared[2];                  /* SwiGLU: gate and up; else the first alone. n 0: none */
    uint32_t k, used, routed_width; /* routed_width: Fe, also where no routed is here */
    uint32_t epilogue;              /* enum rows_epilogue */
    uint32_t needs_int8, act_group; /* int8 values that share a scale: 32 or 128 */
    float eps;
};

struct experts_out_params {
    struct cuda_io io;
    const float *hidden; /* of row 0: the first value this launch reads */
    const uint32_t *choice;
    const float *weight;
    float *x;
    uint64_t hidden_stride, choice_stride, weight_stride, x_stride;
    struct cuda_matrix routed, shared; /* n 0: none */
    uint32_t k, used, width;
    uint32_t tile; /* outputs a block */
    uint32_t needs_int8, act_group;
};

#endif
