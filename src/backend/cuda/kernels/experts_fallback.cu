/* experts_fallback.cu - EXPERTS_IN and EXPERTS_OUT on weight rows as in the file.
 *
 *   in    hidden[place] = gate[place] * x, and in a second launch silu(hidden) * (up[place] * x)
 *   out   x += sum over places of weight[place] * (down[place] * hidden[place])
 *
 * A place is one of the row's chosen experts, in ROUTE's order; the shared expert is the last. Grid
 * y is the row: an expert's weights are read once for every row that chose it. in: the warps of all
 * blocks of a row share its tasks. out: a block owns some outputs, its warps do (place, outputs),
 * and the places' results are added in their order. */
#include "backend/cuda/kernels/fallback.cuh"
#include "backend/cuda/ops/experts_fallback.h"

/* What both have of a source of tasks (weight_pipeline), and the rows of one. */
template <class PARAMS> struct experts_source {
    const PARAMS &p;
    const struct fallback_format &format;
    uint32_t k, first, end, step, task_rows;
    uint64_t row_bytes;

    __device__ __forceinline__ experts_source(const PARAMS &params)
        : p(params), format(params.format) {
        k = p.k;
        task_rows = 32 / lanes_of_row(format, k);
        row_bytes = p.routed.n ? p.routed.row_bytes : p.shared.row_bytes;
    }

    /* The task from row `row` on, of the n rows that begin at row `begin` of a place's matrix.
     * Tags: the place, and `row`. */
    __device__ __forceinline__ struct weight_rows
    rows_of(uint32_t place, bool is_shared, uint32_t begin, uint32_t n, uint32_t row) const {
        const struct cuda_matrix &w = is_shared ? p.shared : p.routed;
        uint64_t expert = is_shared ? 0 : p.choice[blockIdx.y * p.choice_stride + place];
        return {w.data + expert * w.plane_bytes + (begin + row) * row_bytes,
                min(n - row, task_rows),
                {place, row}};
    }
};

/* The kernels' common beginning; false: the grid has more rows than the step. */
static __device__ __forceinline__ bool begin_row(const struct cuda_io &io) {
    pdl_launch_dependents();
    pdl_wait(io);
    return blockIdx.y < io.header->n_rows;
}

/* All tasks of this warp, with the activations of the grid's row. */
template <bool IS_INT8, class SOURCE, class SINK>
static __device__ __forceinline__ void run_tasks(const SOURCE &source, uint8_t *shared, SINK sink) {
    weight_pipeline<SOURCE> pipeline(source, shared);
    act_batch a = {source.p.acts, blockIdx.y, blockIdx.y + 1};
    pipeline.template run<IS_INT8, 1>(a, sink);
}

/* ---- EXPERTS_IN ------------------------------------------------------------------------------ */

/* This warp's tasks: those of the shared expert, then place by place. */
struct experts_in_source : experts_source<struct experts_in_fallback_params> {
    uint32_t shared_tasks, routed_tasks;

    __device__ __forceinline__ experts_in_source(const struct experts_in_fallback_params &params)
        : experts_source(params) {
        shared_tasks = (p.shared.n + task_rows - 1) / task_rows;
        routed_tasks = (p.routed.n + task_rows - 1) / task_rows;
        first = threadIdx.x / 32 * gridDim.x + blockIdx.x;
        step = gridDim.x * FALLBACK_WARPS;
        end = shared_tasks + p.used * routed_tasks;
    }

    __device__ __forceinline__ struct weight_rows rows(uint32_t task) const {
        if (task < shared_tasks)
            return rows_of(p.used, true, 0, p.shared.n, task * task_rows);
        task -= shared_tasks;
        uint32_t place = task / routed_tasks;
        return rows_of(place, false, 0, p.routed.n, (task - place * routed_tasks) * task_rows);
    }

    __device__ __forceinline__ uint32_t act_column(uint32_t) const {
        return 0;
    }
};

template <bool IS_INT8>
static __device__ __forceinline__ void experts_in(const struct experts_in_fallback_params &p) {
    extern __shared__ __align__(16) uint8_t shared[];
    if (!begin_row(p.io))
        return;
    run_tasks<IS_INT8>(experts_in_source(p), shared,
                       [&](uint32_t place, uint32_t n, uint32_t lane, uint32_t row, auto &sum) {
                           const struct cuda_matrix &w = place == p.used ? p.shared : p.routed;
                           float *out = p.hidden + blockIdx.y * p.hidden_stride +
                                        (uint64_t)place * p.routed_width;
                           if (lane == 0 && n + row < w.n)
                               fallback_store(p.epilogue, sum[0], out + n + row);
                       });
}

/* ---- EXPERTS_OUT ----------------------------------------------------------------------------- */

/* This warp's tasks for the block's outputs, place by place; places are those of this launch. */
struct experts_out_source : experts_source<struct experts_out_fallback_params> {
    uint32_t place_tasks, places;
    uint32_t output, n; /* the block's first, and how many: 0, there are none left */

    __device__ __forceinline__ experts_out_source(const struct experts_out_fallback_params &params)
        : experts_source(params) {
        places = routed_places() + (p.shared.n != 0);
        output = min(blockIdx.x * p.block_outputs, p.width);
        n = min(p.block_outputs, p.width - output);
        place_tasks = (n + task_rows - 1) / task_rows;
        first = threadIdx.x / 32;
        step = FALLBACK_WARPS;
        end = places * place_tasks;
    }

    __device__ __forceinline__ uint32_t routed_places(void) const {
        return p.routed.n ? p.used : 0;
    }

    __device__ __forceinline__ struct weight_rows rows(uint32_t task) const {
        uint32_t place = task / place_tasks, row = (task - place * place_tasks) * task_rows;
        return rows_of(place, place == routed_places(), output, n, row);
    }

    __device__ __forceinline__ uint32_t act_column(uint32_t place) const {
        return place * k;
    }
};

template <bool IS_INT8>
static __device__ __forceinline__ void experts_out(const struct experts_out_fallback_params &p) {
    extern __shared__ __align__(16) uint8_t shared[];
    if (!begin_row(p.io))
        return;
    experts_out_source source(p);
    float *results = (float *)(shared + FALLBACK_PIPELINE_BYTES); /* (places, block_outputs) */
    run_tasks<IS_INT8>(source, shared,
                       [&](uint32_t place, uint32_t i, uint32_t lane, uint32_t row, auto &sum) {
                           if (lane == 0 && i + row < source.n)
                               results[place * p.block_outputs + i + row] = sum[0];
                       });
    __syncthreads();
    const float *weight =
        p.weight + blockIdx.y * p.weight_stride + (p.used - source.routed_places());
    float *x = p.x + blockIdx.y * p.x_stride + source.output;
    for (uint32_t i = threadIdx.x; i < source.n; i += FALLBACK_THREADS) {
        float y = x[i];
        for (uint32_t j = 0; j < source.places; j++)
            y = __fmaf_rn(weight[j], results[j * p.block_outputs + i], y);
        x[i] = y;
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

#define EXPERTS_FALLBACK(name, is_int8)                                                            \
    extern "C" __global__ void __launch_bounds__(FALLBACK_THREADS, 2)                              \
        experts_in_fallback_##name(const __grid_constant__ struct experts_in_fallback_params p) {  \
        experts_in<is_int8>(p);                                                                    \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(FALLBACK_THREADS, 2) experts_out_fallback_##name( \
        const __grid_constant__ struct experts_out_fallback_params p) {                            \
        experts_out<is_int8>(p);                                                                   \
    }
EXPERTS_FALLBACK(int8, true)
EXPERTS_FALLBACK(f32, false)
