/* project_fallback.cu - PROJECT on weight rows as in the file: out = epilogue(w * prologue(in)).
 *
 * fallback_quantize: a block a row. project_fallback_{int8,f32}_R: tasks of all segments (see
 * fallback.cuh) over the warps of all blocks; weights are read once for R activation rows, and
 * again for the next R. Reads the weights and, on every SM, the activations. */
#include "backend/cuda/kernels/fallback.cuh"
#include "backend/cuda/kernels/fallback_quantize.cuh"

static __device__ __forceinline__ uint32_t count_rows(const struct cuda_io &io,
                                                      uint32_t is_lm_head) {
    return is_lm_head ? io.header->n_outputs : io.header->n_rows;
}

extern "C" __global__ void __launch_bounds__(FALLBACK_THREADS)
    fallback_quantize(const __grid_constant__ struct fallback_quantize_params p) {
    __shared__ float partials[FALLBACK_WARPS];
    pdl_launch_dependents();
    pdl_wait(p.io);
    uint64_t r = blockIdx.x;
    if (r >= count_rows(p.io, p.is_lm_head))
        return;
    uint64_t from = p.is_lm_head ? p.io.outputs[r].row : r;
    float *x = p.to.x + r * p.to.x_stride;
    apply_prologue(p, p.in + from * p.in_stride, p.gate + from * p.gate_row_stride, x, partials);
    if (!p.to.q)
        return;
    __syncthreads();
    quantize_row(x, p.k, p.act_group, p.to.q + r * p.to.q_stride,
                 (float4 *)p.to.scales + r * p.to.q_stride / 32);
}

/* This warp's tasks of all segments. */
struct project_source {
    const struct project_fallback_params &p;
    const struct fallback_format &format;
    uint32_t k, first, end, step, task_rows;
    uint64_t row_bytes;

    __device__ __forceinline__ project_source(const struct project_fallback_params &params)
        : p(params), format(params.format) {
        k = p.k;
        row_bytes = p.segments[0].weight.row_bytes;
        task_rows = 32 / lanes_of_row(format, k);
        /* Neighbouring tasks go to different SMs. */
        first = threadIdx.x / 32 * gridDim.x + blockIdx.x;
        step = gridDim.x * FALLBACK_WARPS;
        end = 0;
        for (uint32_t i = 0; i < p.n_segments; i++)
            end += tasks_of(i);
    }

    __device__ __forceinline__ uint32_t tasks_of(uint32_t segment) const {
        return (p.segments[segment].weight.n + task_rows - 1) / task_rows;
    }

    /* Tags: the segment, and its first row. */
    __device__ __forceinline__ struct weight_rows rows(uint32_t task) const {
        uint32_t segment = 0;
        for (uint32_t n; task >= (n = tasks_of(segment)); segment++)
            task -= n;
        const struct cuda_matrix &w = p.segments[segment].weight;
        uint32_t row = task * task_rows;
        return {w.data + row * row_bytes, min(w.n - row, task_rows), {segment, row}};
    }

    __device__ __forceinline__ uint32_t act_column(uint32_t) const {
        return 0;
    }
};

/* All lanes of a weight row have all of its sums, and each stores some. */
template <int R>
static __device__ __forceinline__ void store_sums(const project_source &source, const act_batch &a,
                                                  const struct fallback_segment &s, uint32_t n,
                                                  uint32_t lane, const float (&sum)[R]) {
#pragma unroll
    for (uint32_t c = 0; c < R; c++) {
        uint32_t r = a.first + c;
        if (c % (32 / source.task_rows) != lane || r >= a.end || n >= s.weight.n)
            continue;
        fallback_store(source.p.epilogue, s.bias ? sum[c] + s.bias[n] : sum[c],
                       source.p.out + r * source.p.out_stride + s.column + n);
    }
}

template <bool IS_INT8, int R>
static __device__ __forceinline__ void project(const struct project_fallback_params &p) {
    extern __shared__ __align__(16) uint8_t shared[];
    pdl_launch_dependents();
    project_source source(p);
    weight_pipeline<project_source> pipeline(source, shared);
    pipeline.load_first();
    pdl_wait(p.io);
    uint32_t n_rows = count_rows(p.io, p.is_lm_head);
    for (uint32_t first = 0; first < n_rows; first += R) {
        if (first)
            pipeline.restart();
        act_batch a = {p.acts, first, min(n_rows, first + R)};
        pipeline.template run<IS_INT8, R>(
            a, [&](uint32_t segment, uint32_t n, uint32_t lane, uint32_t row, auto &sum) {
                store_sums<R>(source, a, p.segments[segment], n + row, lane, sum);
            });
    }
    cp_async_wait<0>();
}

/* One row: two blocks an SM, so that neighbouring kernels overlap. */
#define PROJECT_FALLBACK(name, is_int8, rows, blocks)                                              \
    extern "C" __global__ void __launch_bounds__(FALLBACK_THREADS, blocks)                         \
        project_fallback_##name##_##rows(                                                          \
            const __grid_constant__ struct project_fallback_params p) {                            \
        project<is_int8, rows>(p);                                                                 \
    }
PROJECT_FALLBACK(int8, true, 1, 2)
PROJECT_FALLBACK(int8, true, 8, 1)
PROJECT_FALLBACK(f32, false, 1, 2)
PROJECT_FALLBACK(f32, false, 4, 1)
