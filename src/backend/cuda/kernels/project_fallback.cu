/* project_fallback.cu - PROJECT over weight rows as they lie in the file: out = epilogue(w *
 * prologue(in)).
 *
 * rows_prepare: a block a row. project_rows_*: each warp takes every n-th task of all segments,
 * two weight rows (SwiGLU: a gate row and its up row) or, where K is short, as many pairs as it has
 * lanes for; the weights are read once for 1 to 8 activation rows, and again for the next 8.
 * Reads the weights' bytes and, in every SM, the prepared rows. */
#include "backend/cuda/kernels/fallback_quantize.cuh"
#include "backend/cuda/ops/project_fallback.h"

static __device__ __forceinline__ uint32_t rows_of(const struct rows_prepare_params &p) {
    return p.is_lm_head ? p.io.header->n_outputs : p.io.header->n_rows;
}

/* ---- prologues ------------------------------------------------------------------------------- */

/* A warp a head. */
static __device__ __forceinline__ void gated_norm(const struct rows_prepare_params &p,
                                                  const float *x, const float *gate, float *y) {
    uint32_t width = p.head_width, heads = p.k / width, lane = threadIdx.x % 32;
    for (uint32_t h = threadIdx.x / 32; h < heads; h += STREAM_WARPS) {
        const float *from = x + (uint64_t)h * width, *g = gate + (uint64_t)h * p.gate_stride;
        float squares = 0;
        for (uint32_t i = lane; i < width; i += 32)
            squares = __fmaf_rn(from[i], from[i], squares);
        float factor = norm_factor(warp_sum(squares), width, p.eps);
        for (uint32_t i = lane; i < width; i += 32)
            y[(uint64_t)h * width + i] = from[i] * factor * p.norm[i] * silu(g[i]);
    }
}

static __device__ __forceinline__ void sigmoid_gate(const struct rows_prepare_params &p,
                                                    const float *x, const float *gate, float *y) {
    for (uint32_t i = threadIdx.x; i < p.k; i += STREAM_THREADS) {
        uint32_t h = i / p.head_width;
        y[i] = x[i] * sigmoid(gate[(uint64_t)h * p.gate_stride + (i - h * p.head_width)]);
    }
}

/* Row r of those there are, by the block. The norm's weights are loaded; to.y is there but for a
 * norm or none. */
static __device__ __forceinline__ void quantize_row(const struct rows_prepare_params &p, uint32_t r,
                                                    row_norm &norm, const row_places &to,
                                                    float *room) {
    uint32_t from = p.is_lm_head ? p.io.outputs[r].row : r;
    const float *x = p.in + from * p.in_stride, *gate = p.gate + from * p.gate_row_stride;
    row_copy<2> copy;
    switch (p.prologue) {
    case ROWS_NORM:
        norm.load_row(x);
        norm.store(p.eps, to, room);
        return;
    case ROWS_PLAIN:
        copy.load(x, p.k);
        copy.store(to);
        return;
    case ROWS_GATED_NORM:
        gated_norm(p, x, gate, to.y);
        break;
    case ROWS_SIGMOID_GATE:
        sigmoid_gate(p, x, gate, to.y);
        break;
    }
    __syncthreads();
    copy.load(to.y, p.k);
    copy.store(row_places{NULL, to.q, to.runs, to.group});
}

extern "C" __global__ void __launch_bounds__(STREAM_THREADS)
    rows_prepare(const __grid_constant__ struct rows_prepare_params p) {
    __shared__ float room[STREAM_WARPS];
    pdl_launch_dependents();
    row_norm norm;
    norm.load_weights(p.norm, p.prologue == ROWS_NORM ? p.k : 0);
    pdl_wait(p.io);
    uint64_t r = blockIdx.x;
    if (r >= rows_of(p))
        return;
    row_places to = {p.to.x + r * p.to.x_stride, NULL, NULL, p.act_group};
    if (p.needs_int8) {
        to.q = p.to.q + r * act_stride(p.k);
        to.runs = (float2 *)p.to.runs + r * (act_stride(p.k) / 16);
    }
    quantize_row(p, (uint32_t)r, norm, to, room);
}

/* ---- products -------------------------------------------------------------------------------- */

/* This warp's tasks of all segments. */
struct project_source {
    const struct project_rows_params &p;
    uint32_t k, first, end, step, set_rows;
    uint64_t row_bytes;

    __device__ __forceinline__ project_source(const struct project_rows_params &params,
                                              uint32_t lane_values)
        : p(params) {
        k = p.prepare.k;
        row_bytes = p.segments[0].weight.row_bytes;
        set_rows = 32 / lanes_of(lane_values, k);
        /* Neighbouring tasks go to different SMs. */
        first = threadIdx.x / 32 * gridDim.x + blockIdx.x;
        step = gridDim.x * STREAM_WARPS;
        end = 0;
        for (uint32_t i = 0; i < p.n_segments; i++)
            end += tasks_of(i);
    }

    __device__ __forceinline__ uint32_t task_rows(void) const {
        return p.epilogue == ROWS_SWIGLU ? set_rows : 2 * set_rows;
    }

    __device__ __forceinline__ uint32_t tasks_of(uint32_t segment) const {
        if (p.epilogue == ROWS_SWIGLU && segment > 0)
            return 0;
        return (p.segments[segment].weight.n + task_rows() - 1) >> (__ffs(task_rows()) - 1);
    }

    /* Tags: the segment, and its first row. */
    __device__ __forceinline__ row_sets sets(uint32_t task) const {
        uint32_t segment = 0;
        for (uint32_t n; segment + 1 < p.n_segments && task >= (n = tasks_of(segment)); segment++)
            task -= n;
        const struct cuda_matrix &w = p.segments[segment].weight;
        uint32_t row = task * task_rows();
        row_sets s = p.epilogue == ROWS_SWIGLU
                         ? twins(w.data, p.segments[1].weight.data, row_bytes, row, w.n, set_rows)
                         : neighbours(w.data, row_bytes, row, w.n, set_rows);
        s.tag[0] = segment;
        s.tag[1] = row;
        return s;
    }

    __device__ __forceinline__ act_rows acts(const act_rows &a, uint32_t) const {
        return a;
    }
};

static __device__ __forceinline__ float biased(const struct rows_segment &s, uint32_t n, float x) {
    return s.bias ? x + s.bias[n] : x;
}

/* Sum c of 2 R: set c / R, row c % R. */
template <int R>
static __device__ __forceinline__ float pick_sum(const float (&sum)[2][R], uint32_t c) {
    float x = sum[0][0];
#pragma unroll
    for (int i = 1; i < 2 * R; i++)
        x = c == i ? sum[i / R][i % R] : x;
    return x;
}

/* Where a task's results go: all lanes have all sums, and each takes some. */
template <int R>
static __device__ __forceinline__ void
project_store(const project_source &source, const act_rows &a, uint32_t segment, uint32_t row,
              uint32_t lane, const float (&sum)[2][R]) {
    const struct project_rows_params &p = source.p;
    const struct rows_segment &s = p.segments[segment];
    bool is_swiglu = p.epilogue == ROWS_SWIGLU;
    for (uint32_t c = lane; c < (is_swiglu ? R : 2 * R); c += 32 / source.set_rows) {
        uint32_t r = a.first + c % R, n = row + c / R * source.set_rows;
        if (r >= a.end || n >= s.weight.n)
            continue;
        float *out = p.out + r * p.out_stride + s.column + n;
        float y = biased(s, n, pick_sum<R>(sum, c));
        if (is_swiglu)
            y = silu(y) * biased(p.segments[1], n, pick_sum<R>(sum, c + R));
        else if (p.epilogue == ROWS_ADD)
            y += *out;
        else if (p.epilogue == ROWS_GATE_OUT)
            y *= silu(*out);
        *out = y;
    }
}

template <int R, class STREAM>
static __device__ __forceinline__ void project_groups(STREAM &s, act_rows a) {
    uint32_t n = a.end;
    for (a.first = 0; a.first < n; a.first += R) {
        if (a.first)
            s.begin();
        a.end = min(n, a.first + R);
        s.template eat<R>(
            a, [&](uint32_t segment, uint32_t n, uint32_t lane, uint32_t row, auto &sum) {
                project_store<R>(s.source, a, segment, n + row, lane, sum);
            });
    }
}

/* The prepared rows: those of rows_prepare, or the one row prepared here. Behind pdl_wait. */
static __device__ __forceinline__ act_rows project_acts(const struct project_rows_params &p,
                                                        row_norm &norm, uint8_t *shared,
                                                        float *room) {
    const struct rows_prepared &to = p.prepare.to;
    uint32_t k = p.prepare.k, n = rows_of(p.prepare);
    act_rows a = {to.x, to.q, (const float2 *)to.runs, to.x_stride, k, 0, 0, n};
    if (!p.is_fused)
        return a;
    float *x = (float *)shared;
    int8_t *q = (int8_t *)(shared + (k + 3) / 4 * 16);
    float2 *runs = (float2 *)(q + act_stride(k));
    if (n)
        quantize_row(p.prepare, 0, norm,
                     row_places{x, p.prepare.needs_int8 ? q : NULL, runs, p.prepare.act_group},
                     room);
    __syncthreads();
    a.x = x, a.q = q, a.runs = runs;
    return a;
}

template <class PRODUCT, bool IS_ONE>
static __device__ __forceinline__ void project_rows(const struct project_rows_params &p) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float room[STREAM_WARPS];
    pdl_launch_dependents();
    project_source source(p, PRODUCT::LANE_VALUES);
    stream<PRODUCT, project_source> s(source, shared);
    s.fill(source.end);
    row_norm norm;
    norm.load_weights(p.prepare.norm,
                      p.is_fused && p.prepare.prologue == ROWS_NORM ? p.prepare.k : 0);
    pdl_wait(p.prepare.io);
    act_rows a = project_acts(p, norm, shared + STREAM_RING_BYTES, room);
    if constexpr (IS_ONE)
        project_groups<1>(s, a);
    else if (!PRODUCT::IS_INT8 || a.end <= 4)
        project_groups<4>(s, a);
    else
        project_groups<PRODUCT::IS_INT8 ? 8 : 4>(s, a);
    cp_async_wait<0>();
}

/* For plans of one row, two blocks an SM, so that neighbouring kernels overlap; for plans of more.
 */
#define PROJECT_ROWS(name, product)                                                                \
    extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 2)                                \
        project_rows_one_##name(const __grid_constant__ struct project_rows_params p) {            \
        project_rows<product, true>(p);                                                            \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1)                                \
        project_rows_many_##name(const __grid_constant__ struct project_rows_params p) {           \
        project_rows<product, false>(p);                                                           \
    }
#define BLOCK_KERNELS(TYPE, type)                                                                  \
    PROJECT_ROWS(type, product_for<rows_##type>)                                                   \
    PROJECT_ROWS(type##_f32, opened_product<rows_##type>)
#define PLAIN_KERNELS(TYPE, type) PROJECT_ROWS(type, plain_product<rows_##type>)

FOR_EACH_BLOCK_TYPE(BLOCK_KERNELS)
FOR_EACH_PLAIN_TYPE(PLAIN_KERNELS)
