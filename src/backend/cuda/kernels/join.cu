/* join.cu - JOIN and HIDDEN: a thread block a row, RMS norms in f32.
 *
 * A thread has every 1024th column, BATCH of them at once, so that their loads are in flight
 * together. A sum of squares is the threads' own, then block_sum. What HIDDEN stores and what JOIN
 * makes of the row before are the same instructions: a row has the same bits whether the one before
 * it is in its step, or the hidden state comes from a cell. The state is read after the wait: an
 * earlier step has written it.
 *
 * JOIN reads two rows of D and two or three norms a row, and writes 2 D; HIDDEN reads one and one,
 * and writes D. */
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/join.h"

enum { BATCH = 4, BATCH_COLUMNS = BATCH * JOIN_THREADS };

/* A norm into L2, before the wait: by one thread of the grid. */
static __device__ __forceinline__ void prefetch_norm(const float *norm, uint32_t width) {
    if ((blockIdx.x | threadIdx.x) == 0 && norm && width >= 4)
        prefetch_l2((const uint8_t *)norm, width / 4 * 16);
}

/* The thread's columns from `first` on; after the row's end its last one. */
static __device__ __forceinline__ void load(const float *x, uint32_t first, uint32_t width,
                                            float (&v)[BATCH]) {
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++)
        v[i] = x[min(first + i * JOIN_THREADS, width - 1)];
}

/* The same, normed. */
static __device__ __forceinline__ void load_normed(const float *x, float factor, const float *norm,
                                                   uint32_t first, uint32_t width,
                                                   float (&v)[BATCH]) {
    float n[BATCH];
    load(x, first, width, v);
    load(norm, first, width, n);
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++)
        v[i] = __fmul_rn(__fmul_rn(v[i], factor), n[i]);
}

static __device__ __forceinline__ float add_squares(const float (&v)[BATCH], uint32_t first,
                                                    uint32_t width, float sum) {
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++)
        sum = first + i * JOIN_THREADS < width ? __fmaf_rn(v[i], v[i], sum) : sum;
    return sum;
}

static __device__ __forceinline__ void store(float *to, const float (&v)[BATCH], uint32_t first,
                                             uint32_t width) {
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++)
        if (first + i * JOIN_THREADS < width)
            to[first + i * JOIN_THREADS] = v[i];
}

/* The thread's part of a row's sum of squares. */
static __device__ __forceinline__ float squares_of(const float *x, uint32_t width) {
    float v[BATCH], sum = 0;
    for (uint32_t c = threadIdx.x; c < width; c += BATCH_COLUMNS) {
        load(x, c, width, v);
        sum = add_squares(v, c, width, sum);
    }
    return sum;
}

static __device__ __forceinline__ float factor_of(float squares, uint32_t width, float eps) {
    return norm_factor(block_sum(squares), width, eps);
}

extern "C" __global__ void __launch_bounds__(JOIN_THREADS)
    join(const __grid_constant__ struct join_params p) {
    pdl_launch_dependents();
    prefetch_norm(p.embed_norm, p.width);
    prefetch_norm(p.state_norm, p.width);
    prefetch_norm(p.norm, p.width);
    pdl_wait(p.io);
    uint32_t row = blockIdx.x, segment = p.io.rows[min(row, p.n_rows - 1)].segment;
    if (row >= p.io.header->n_rows)
        return;
    const struct io_segment g = p.io.segments[segment];
    const float *embed = p.embed + (uint64_t)row * p.embed_stride;
    float embed_squares = squares_of(embed, p.width);
    bool is_first = row == g.first_row || !p.x;
    const float *before = is_first ? p.state + (uint64_t)g.cell * p.state_stride
                                   : p.x + (uint64_t)(row - 1) * p.x_stride;
    float squares = squares_of(before, p.width), trunk_factor = 1, v[BATCH], w[BATCH], n[BATCH];
    if (!is_first) {
        trunk_factor = factor_of(squares, p.width, p.eps);
        squares = 0;
        for (uint32_t c = threadIdx.x; c < p.width; c += BATCH_COLUMNS) {
            load_normed(before, trunk_factor, p.norm, c, p.width, v);
            squares = add_squares(v, c, p.width, squares);
        }
    }
    float embed_factor = factor_of(embed_squares, p.width, p.eps),
          factor = factor_of(squares, p.width, p.eps);
    float *out = p.out + (uint64_t)row * p.out_stride;
    for (uint32_t c = threadIdx.x; c < p.width; c += BATCH_COLUMNS) {
        load_normed(embed, embed_factor, p.embed_norm, c, p.width, w);
        load(p.state_norm, c, p.width, n);
        if (is_first)
            load(before, c, p.width, v);
        else
            load_normed(before, trunk_factor, p.norm, c, p.width, v);
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++)
            v[i] = v[i] * factor * n[i];
        store(out, w, c, p.width);
        store(out + p.width, v, c, p.width);
    }
}

extern "C" __global__ void __launch_bounds__(JOIN_THREADS)
    hidden(const __grid_constant__ struct hidden_params p) {
    pdl_launch_dependents();
    prefetch_norm(p.norm, p.width);
    pdl_wait(p.io);
    uint32_t row = blockIdx.x, to = p.io.to[min(row, p.n_rows - 1)];
    if (row >= p.io.header->n_rows || to == IO_NO_CELL)
        return;
    const float *x = p.x + (uint64_t)row * p.x_stride;
    float *state = p.state + (uint64_t)to * p.state_stride;
    float factor = factor_of(squares_of(x, p.width), p.width, p.eps), v[BATCH];
    for (uint32_t c = threadIdx.x; c < p.width; c += BATCH_COLUMNS) {
        load_normed(x, factor, p.norm, c, p.width, v);
        store(state, v, c, p.width);
    }
}
