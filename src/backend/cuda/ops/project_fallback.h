/* project_fallback.h - params of PROJECT over weight rows as they lie in the file. */
#ifndef BACKEND_CUDA_OPS_PROJECT_FALLBACK_H
#define BACKEND_CUDA_OPS_PROJECT_FALLBACK_H

#include "backend/cuda/shared.h"
#include "quant/quant.h"

/* Shared memory of the weights' rings of a block of rows_stream.cuh, and its threads. */
enum { STREAM_RING_BYTES = 102400, STREAM_BLOCK = 512, ROWS_MAX_SEGMENTS = 6 };

/* Values of an int8 row as it is kept, and its bytes with the runs' scales. */
#define ROWS_INT8_STRIDE(k) (((k) + 63) / 64 * 64)
#define ROWS_INT8_BYTES(k) (ROWS_INT8_STRIDE(k) / 2 * 3)

/* What a block may have in all, less a little for fixed arrays (sm_80: 163 KB; see experts.c). */
enum { ROWS_MAX_SHARED = 160 << 10 };

/* Kernels are made for every type. Block types meet int8 or f32 activations (kernel ..._f32), plain
 * ones f32 always. */
#define FOR_EACH_PLAIN_TYPE(X)                                                                     \
    X(F32, f32)                                                                                    \
    X(F16, f16)                                                                                    \
    X(BF16, bf16)

/* The names of one kernel's instances, [type][is f32]. */
#define BLOCK_NAMES(TYPE, type) [DT_##TYPE] = {PREFIX #type, PREFIX #type "_f32"},
#define PLAIN_NAMES(TYPE, type) [DT_##TYPE] = {PREFIX #type, PREFIX #type},
#define KERNEL_NAMES                                                                               \
    { FOR_EACH_BLOCK_TYPE(BLOCK_NAMES) FOR_EACH_PLAIN_TYPE(PLAIN_NAMES) }

enum rows_prologue { ROWS_PLAIN, ROWS_NORM, ROWS_GATED_NORM, ROWS_SIGMOID_GATE };

/* SwiGLU of two types is two launches: the first stores the gate's results, the second gates. */
enum rows_epilogue { ROWS_STORE, ROWS_ADD, ROWS_SWIGLU, ROWS_GATE_OUT };

/* The prepared rows. */
struct rows_prepared {
    float *x;   /* (R, x_stride) */
    int8_t *q;  /* (R, ROWS_INT8_STRIDE(k)) */
    void *runs; /* a float2 for 16 of q: scale, scale * (sum of q) */
    uint64_t x_stride;
};

struct rows_prepare_params {
    struct cuda_io io;
    const float *in, *norm, *gate;
    uint64_t in_stride, gate_row_stride;
    uint32_t k, prologue; /* enum rows_prologue */
    uint32_t head_width, gate_stride;
    float eps;
    uint32_t is_lm_head, needs_int8;
    uint32_t act_group;      /* int8 values that share a scale: 32 or 128 */
    struct rows_prepared to; /* NULL where each block keeps its own */
};

struct rows_segment {
    struct cuda_matrix weight;
    const float *bias; /* (N), or NULL */
    uint32_t column, zero;
};

/* One launch: segments of one type that meet the same activations. */
struct project_rows_params {
    struct rows_prepare_params prepare; /* also says which rows there are */
    struct rows_segment segments[ROWS_MAX_SEGMENTS];
    uint32_t n_segments, epilogue; /* enum rows_epilogue; SwiGLU: segments 0 and 1 are one */
    float *out;
    uint64_t out_stride;
    uint32_t is_fused; /* 1: every block prepares the one row for itself, in shared memory */
};

#ifndef __CUDACC__
struct recorder;
struct op;
struct operand;
/* Those segments of a PROJECT that are not tiled. */
int record_project_rows(struct recorder *r, const struct op *op);
/* Rows of such a weight, as they lie in the file, are multiplied with f32 activations. */
bool rows_meet_f32(const struct recorder *r, const struct operand *weight);
#endif

#endif
