/* project_fallback.h - params of PROJECT on weight rows as in the file, and what EXPERTS_IN and
 * EXPERTS_OUT share with it. */
#ifndef BACKEND_CUDA_OPS_PROJECT_FALLBACK_H
#define BACKEND_CUDA_OPS_PROJECT_FALLBACK_H

#include "backend/cuda/shared.h"
#include "plan/fuse.h"
#include "quant/quant.h"

enum {
    FALLBACK_WARPS = 16, /* of a block */
    FALLBACK_THREADS = 32 * FALLBACK_WARPS,
    FALLBACK_STAGES = 4, /* of a warp's pipeline */
    FALLBACK_PASS_BYTES = 1184,
    FALLBACK_STAGE_BYTES = 16 + 16 + FALLBACK_PASS_BYTES, /* head, and bytes before the first row */
    /* Shared memory of a block: two blocks fit an SM, so that a kernel can start beside the one
     * before it, and one fits the SMs that have least. */
    FALLBACK_PIPELINE_BYTES = FALLBACK_WARPS * FALLBACK_STAGES * FALLBACK_STAGE_BYTES,
    FALLBACK_MAX_SEGMENTS = 6,
    /* What a block may have in all, less a little for fixed arrays (sm_80: 163 KB). */
    FALLBACK_MAX_SHARED = 160 << 10,
};

/* How a launch's weights are read. */
struct fallback_format {
    uint32_t type;        /* enum dtype */
    uint32_t run;         /* values that share a scale, 16 or 32; 0: F32, F16, BF16 */
    uint32_t pass_values; /* of a row that a warp reads at once, */
    uint32_t pass_bytes;  /* and their bytes; 0: there is no such type */
};

/* Activation rows, f32 and, where they are needed, int8. */
struct fallback_acts {
    float *x; /* (R, x_stride) */
    uint64_t x_stride;
    int8_t *q;    /* (R, q_stride), or NULL */
    void *scales; /* (R, q_stride / 32) float4, see fallback_quantize.cuh */
    uint64_t q_stride;
};

struct fallback_quantize_params {
    struct cuda_io io;
    const float *in, *norm, *gate;
    uint64_t in_stride, gate_row_stride;
    uint32_t k, prologue; /* enum prologue */
    uint32_t head_width, gate_stride;
    float eps;
    uint32_t is_lm_head; /* row i is that of output i */
    uint32_t act_group;  /* int8 values that share a scale: 32 or 128 */
    struct fallback_acts to;
};

/* SwiGLU is two launches: the first stores the gate's results, the second multiplies. */
enum fallback_epilogue {
    FALLBACK_STORE,
    FALLBACK_ADD,   /* out += result */
    FALLBACK_GATED, /* out = silu(out) * result */
};

struct fallback_segment {
    struct cuda_matrix weight;
    const float *bias; /* (N), or NULL */
    uint32_t column;   /* of out */
    uint32_t zero;
};

/* One launch: segments of one type, all with int8 or all with f32 activations. */
struct project_fallback_params {
    struct cuda_io io;
    struct fallback_acts acts;
    struct fallback_format format;
    struct fallback_segment segments[FALLBACK_MAX_SEGMENTS];
    uint32_t n_segments, epilogue; /* enum fallback_epilogue */
    uint32_t k, is_lm_head;
    float *out;
    uint64_t out_stride;
};

#ifndef __CUDACC__
struct recorder;
struct op;
struct operand;
/* Those segments of a PROJECT that are not tiled. */
int record_project_fallback(struct recorder *r, const struct op *op);

/* Whether rows of such a weight are multiplied with f32 activations. */
bool fallback_is_f32(const struct recorder *r, const struct operand *weight);
/* Fails for types without a kernel. */
int fallback_format(struct recorder *r, const struct operand *weight, struct fallback_format *out);
/* Sets p->to, and adds the kernel that fills it for `rows` rows. */
int record_fallback_quantize(struct recorder *r, uint32_t rows, bool needs_int8,
                             struct fallback_quantize_params *p);
#endif

#endif
