/* experts_fallback.cu - EXPERTS_IN and EXPERTS_OUT on rows as they lie in the file.
 *
 * A block has one row (grid y). Which experts a row has is read behind the wait; the shared
 * expert's weights are on their way before it. An expert's weights are read once for every row that
 * chose it.
 * IN: a warp's tasks are hidden values of all choices; every block normalises the row for itself
 * while its first weights travel. OUT: a block owns some outputs; its warps take (choice, outputs)
 * and the sums over choices are added in the choices' order. */
#include "backend/cuda/ops/experts_fallback.h"

#define STREAM_WARPS (EXPERTS_BLOCK / 32)
#include "backend/cuda/kernels/fallback_quantize.cuh"

/* Row 0 always is: it need not wait for the count. */
static __device__ __forceinline__ bool is_row_there(const struct cuda_io &io) {
    return blockIdx.y == 0 || blockIdx.y < io.header->n_rows;
}

/* ---- EXPERTS_IN ------------------------------------------------------------------------------ */

/* n / d by a multiplication: the quotient is on every task's way to its first byte. */
struct divider {
    uint32_t d, magic; /* ceil(2^32 / d), or 0 where that might not be exact */

    /* For n < end. */
    __device__ __forceinline__ void set(uint32_t by, uint32_t end) {
        d = by;
        magic = by > 1 && (uint64_t)end * by < 1ull << 32 ? 0xffffffffu / by + 1 : 0;
    }

    __device__ __forceinline__ uint32_t of(uint32_t n) const {
        return magic ? __umulhi(n, magic) : n / d;
    }
};

/* The experts of a row: a lane keeps one, so that none is fetched twice. */
struct chosen_experts {
    const uint32_t *choice;
    uint32_t mine;

    /* Behind pdl_wait, long before the first is needed. */
    __device__ __forceinline__ void load_choice(const uint32_t *from, uint32_t used) {
        choice = from;
        mine = threadIdx.x % 32 < used ? from[threadIdx.x % 32] : 0;
    }

    /* By all lanes. */
    __device__ __forceinline__ uint32_t chosen(uint32_t place) const {
        return place < 32 ? __shfl_sync(0xffffffffu, mine, place) : choice[place];
    }
};

/* This warp's tasks: first those of the shared expert, then choice by choice. */
struct experts_in_source : chosen_experts {
    const struct experts_in_params &p;
    uint32_t k, first, end, step, set_rows, shared_tasks, routed_tasks;
    uint64_t row_bytes;
    divider by_tasks;

    __device__ __forceinline__ experts_in_source(const struct experts_in_params &params,
                                                 uint32_t lane_values)
        : p(params) {
        k = p.k;
        set_rows = 32 / lanes_of(lane_values, k);
        row_bytes = p.routed[0].n ? p.routed[0].row_bytes : p.shared[0].row_bytes;
        shared_tasks = (p.shared[0].n + task_rows() - 1) / task_rows();
        routed_tasks = (p.routed[0].n + task_rows() - 1) / task_rows();
        first = threadIdx.x / 32 * gridDim.x + blockIdx.x;
        step = gridDim.x * STREAM_WARPS;
        end = shared_tasks + p.used * routed_tasks;
        by_tasks.set(routed_tasks, end);
    }

    __device__ __forceinline__ uint32_t task_rows(void) const {
        return p.epilogue == ROWS_SWIGLU ? set_rows : 2 * set_rows;
    }

    /* Tags: which choice, `used` for the shared expert, and the first row. */
    __device__ __forceinline__ row_sets sets(uint32_t task) const {
        uint32_t place = p.used, row = task;
        uint64_t plane = 0;
        if (task >= shared_tasks) {
            place = by_tasks.of(task - shared_tasks);
            row = task - shared_tasks - place * routed_tasks;
            plane = chosen(place);
        }
        const struct cuda_matrix *w = place == p.used ? p.shared : p.routed;
        const uint8_t *at = w[0].data + plane * w[0].plane_bytes;
        row *= task_rows();
        row_sets s = p.epilogue == ROWS_SWIGLU ? twins(at, w[1].data + plane * w[1].plane_bytes,
                                                       row_bytes, row, w->n, set_rows)
                                               : neighbours(at, row_bytes, row, w->n, set_rows);
        s.tag[0] = place;
        s.tag[1] = row;
        return s;
    }

    __device__ __forceinline__ act_rows acts(const act_rows &a, uint32_t) const {
        return a;
    }

    __device__ __forceinline__ void store(uint32_t place, uint32_t n, uint32_t lane,
                                          const float (&sum)[2][1]) const {
        uint32_t width = place == p.used ? p.shared[0].n : p.routed[0].n;
        float *out = p.hidden + blockIdx.y * p.hidden_stride + (uint64_t)place * p.routed_width;
        if (p.epilogue == ROWS_SWIGLU) {
            if (lane == 0 && n < width)
                out[n] = silu(sum[0][0]) * sum[1][0];
            return;
        }
        n += lane * set_rows;
        if (lane < 2 && n < width) {
            float y = lane == 0 ? sum[0][0] : sum[1][0];
            out[n] = p.epilogue == ROWS_GATE_OUT ? silu(out[n]) * y : y;
        }
    }
};

template <class PRODUCT>
static __device__ __forceinline__ void experts_in(const struct experts_in_params &p) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float room[STREAM_WARPS];
    pdl_launch_dependents();
    experts_in_source source(p, PRODUCT::LANE_VALUES);
    stream<PRODUCT, experts_in_source> s(source, shared);
    s.fill(source.shared_tasks);
    row_norm norm;
    norm.load_weights(p.norm, p.k);
    pdl_wait(p.io);
    source.load_choice(p.choice + blockIdx.y * p.choice_stride, p.used);
    norm.load_row(p.in + blockIdx.y * p.in_stride);
    if (!is_row_there(p.io)) {
        cp_async_wait<0>();
        return;
    }
    s.fill(source.end);
    float *x = (float *)(shared + STREAM_RING_BYTES); /* or, in its place: */
    int8_t *q = (int8_t *)x;
    float2 *runs = (float2 *)(q + act_stride(p.k));
    norm.store(p.eps,
               p.needs_int8 ? row_places{NULL, q, runs, p.act_group} : row_places{x, NULL, NULL, 0},
               room);
    __syncthreads();
    act_rows a = {x, q, runs, 0, p.k, 0, 0, 1};
    s.template eat<1>(a, [&](uint32_t place, uint32_t n, uint32_t lane, uint32_t row, auto &sum) {
        source.store(place, n + row, lane, sum);
    });
}

/* ---- EXPERTS_OUT ----------------------------------------------------------------------------- */

/* This warp's tasks for the block's outputs: first the shared expert's, then choice by choice. */
struct experts_out_source : chosen_experts {
    const struct experts_out_params &p;
    uint32_t k, first, end, step, set_rows, tasks, begin, n;
    uint64_t row_bytes;
    divider by_tasks;

    __device__ __forceinline__ experts_out_source(const struct experts_out_params &params,
                                                  uint32_t lane_values)
        : p(params) {
        k = p.k;
        set_rows = 32 / lanes_of(lane_values, k);
        row_bytes = p.routed.n ? p.routed.row_bytes : p.shared.row_bytes;
        begin = min(blockIdx.x * p.tile, p.width);
        n = min(p.tile, p.width - begin); /* 0: this block has nothing to do */
        tasks = (n + 2 * set_rows - 1) / (2 * set_rows);
        first = threadIdx.x / 32;
        step = STREAM_WARPS;
        end = (p.routed.n ? p.used : 0) * tasks + shared_tasks();
        by_tasks.set(max(tasks, 1u), end);
    }

    __device__ __forceinline__ uint32_t shared_tasks(void) const {
        return p.shared.n ? tasks : 0;
    }

    /* Tags: which choice of this launch, the shared expert last though it goes first, and the first
     * of the block's outputs. */
    __device__ __forceinline__ row_sets sets(uint32_t task) const {
        uint32_t place = by_tasks.of(task), row = (task - place * tasks) * 2 * set_rows;
        uint64_t plane = 0;
        bool is_shared = p.shared.n && place == 0;
        if (!is_shared) {
            place -= p.shared.n != 0;
            plane = chosen(place);
        } else if (p.routed.n) {
            place = p.used;
        }
        const struct cuda_matrix &w = is_shared ? p.shared : p.routed;
        row_sets s = neighbours(w.data + plane * w.plane_bytes + begin * row_bytes, row_bytes, row,
                                n, set_rows);
        s.tag[0] = place;
        s.tag[1] = row;
        return s;
    }

    __device__ __forceinline__ act_rows acts(act_rows a, uint32_t place) const {
        a.skip = place * k;
        return a;
    }
};

template <class PRODUCT>
static __device__ __forceinline__ void experts_out(const struct experts_out_params &p) {
    extern __shared__ __align__(16) uint8_t shared[];
    pdl_launch_dependents();
    experts_out_source source(p, PRODUCT::LANE_VALUES);
    stream<PRODUCT, experts_out_source> s(source, shared);
    uint32_t places = (p.routed.n ? p.used : 0) + (p.shared.n != 0), values = places * p.k;
    float *parts = (float *)(shared + STREAM_RING_BYTES); /* (places + 1, tile): x first */
    float *weight = parts + (places + 1) * p.tile;        /* (places) */
    int8_t *q = (int8_t *)(weight + (places + 3) / 4 * 4);
    float2 *runs = (float2 *)(q + act_stride(values));
    s.fill(source.shared_tasks());
    pdl_wait(p.io);
    source.load_choice(p.choice + blockIdx.y * p.choice_stride, p.used);
    if (!is_row_there(p.io)) {
        cp_async_wait<0>();
        return;
    }
    const float *hidden = p.hidden + blockIdx.y * p.hidden_stride;
    float *x = p.x + blockIdx.y * p.x_stride + source.begin;
    /* Everything is asked for before anything is waited for; what the end needs comes beside the
     * first weights. */
    for (uint32_t i = threadIdx.x; i < source.n; i += STREAM_THREADS)
        cp_async_4(smem_addr(parts + i), x + i);
    for (uint32_t i = threadIdx.x; i < places; i += STREAM_THREADS)
        cp_async_4(smem_addr(weight + i),
                   p.weight + blockIdx.y * p.weight_stride + (p.routed.n ? 0 : p.used) + i);
    row_copy<3> copy;
    copy.load(hidden, p.needs_int8 ? values : 0);
    s.fill(source.end);
    copy.store(row_places{NULL, q, runs, p.act_group});
    __syncthreads();
    act_rows a = {hidden, q, runs, 0, p.k, 0, 0, 1};
    s.template eat<1>(a, [&](uint32_t place, uint32_t i, uint32_t lane, uint32_t row, auto &sum) {
        i += lane * source.set_rows + row;
        if (lane < 2 && i < source.n)
            parts[(place + 1) * p.tile + i] = lane == 0 ? sum[0][0] : sum[1][0];
    });
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < source.n; i += STREAM_THREADS) {
        float y = parts[i];
        for (uint32_t j = 0; j < places; j++)
            y = __fmaf_rn(weight[j], parts[(j + 1) * p.tile + i], y);
        x[i] = y;
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

#define EXPERTS(name, product)                                                                     \
    extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 2)                                \
        experts_in_##name(const __grid_constant__ struct experts_in_params p) {                    \
        experts_in<product>(p);                                                                    \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 2)                                \
        experts_out_##name(const __grid_constant__ struct experts_out_params p) {                  \
        experts_out<product>(p);                                                                   \
    }
#define BLOCK_EXPERTS(TYPE, type)                                                                  \
    EXPERTS(type, product_for<rows_##type>)                                                        \
    EXPERTS(type##_f32, opened_product<rows_##type>)
#define PLAIN_EXPERTS(TYPE, type) EXPERTS(type, plain_product<rows_##type>)

FOR_EACH_BLOCK_TYPE(BLOCK_EXPERTS)
FOR_EACH_PLAIN_TYPE(PLAIN_EXPERTS)
