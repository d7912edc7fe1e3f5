/* experts_gemv.cu - EXPERTS_IN and EXPERTS_OUT on tiled weights.
 *
 * A block has one row (grid y), and tasks: tiles of experts' matrices. Each warp has a pipeline of
 * kblocks, as in project.cuh, with the same sums in the same order; a warp's kblocks usually all
 * fit it, so that the whole stage is on its way at once. IN: a block has pairs of tiles, gate and
 * up, first of the shared expert, then choice by choice. OUT: a block has some outputs, and their
 * tiles of all choices; the sums over choices are added in the choices' order.
 *
 * Which experts a row has is known only behind ROUTE. But ROUTE, and IN, let the next kernel begin
 * only behind their own wait. So when IN begins, all before ROUTE is over, and the row may be made
 * ready before IN's wait; and when OUT begins ROUTE is over, and the chosen weights may be asked
 * for before OUT's wait. (is_early: the kernel before this one is such a one.) */
#include "backend/cuda/kernels/project_gemv.cuh"
#include "backend/cuda/ops/experts.h"

/* ---- the pipeline
 * ---------------------------------------------------------------------------------
 */

/* Where a task's kblocks are. */
struct run {
    const uint8_t *at;
    uint32_t kblocks, kblock_bytes;
};

static __device__ __forceinline__ struct run run_of(const struct experts_matrix &m, uint32_t plane,
                                                    uint32_t tile) {
    return {m.data + plane * m.plane_bytes + (uint64_t)tile * m.kblocks * m.kblock_bytes, m.kblocks,
            m.kblock_bytes};
}

static __device__ __forceinline__ void copy_unit(uint32_t stage, const uint8_t *from,
                                                 uint32_t bytes, uint32_t barrier) {
    uint32_t lane = threadIdx.x % 32;
    if constexpr (HAS_CP_ASYNC_BULK) {
        if (lane == 0)
            bulk_load(stage, from, bytes, barrier);
    } else {
        for (uint32_t i = lane * 16; i < bytes; i += 512)
            cp_async_16(stage + i, from + i);
    }
}

/* WORK has: n_tasks, of the block; run_of_task(t), called by all lanes. A warp has every
 * EXPERTS_WARPS-th task. */
template <class WORK> struct feeder {
    const WORK &work;
    const struct experts_ring &pipeline;
    struct run now;
    uint32_t next, base, mbars; /* the next task; addresses in shared memory */
    uint32_t filled;            /* stages that were, as long as there are new ones */

    __device__ __forceinline__ feeder(const WORK &w, const struct experts_ring &r, uint8_t *shared,
                                      uint32_t warp)
        : work(w), pipeline(r), next(warp), filled(0) {
        now.kblocks = 0;
        base = (uint32_t)__cvta_generic_to_shared(shared);
        mbars = base + r.mbars_at + warp * r.stages * 8;
        base += warp * r.stages * r.stage_bytes;
        if (HAS_CP_ASYNC_BULK)
            mbarrier_init_stages(mbars, r.stages);
    }

    /* The next kblock of the tasks below `limit` to a stage; false: there is none. */
    __device__ __forceinline__ bool feed(uint32_t stage, uint32_t limit) {
        if (now.kblocks == 0) {
            if (next >= limit)
                return false;
            now = work.run_of_task(next);
            next += EXPERTS_WARPS;
        }
        copy_unit(base + stage * pipeline.stage_bytes, now.at, now.kblock_bytes, mbars + stage * 8);
        now.at += now.kblock_bytes;
        now.kblocks--;
        return true;
    }

    __device__ __forceinline__ void fill(uint32_t limit) {
        while (filled < pipeline.stages && feed(filled, limit))
            filled++;
    }

    /* A stage's kblock is there. */
    __device__ __forceinline__ void wait(uint32_t stage, uint32_t phase) {
        bulk_wait(mbars + stage * 8, phase);
    }
};

/* Eats the warp's tasks. WORK also has: matrix_of(t), first_unit(t), the kblock of the activations
 * that a task begins with, and put(t, row of the tile, sum). */
template <int SET, class WORK>
static __device__ __forceinline__ void eat(const WORK &work, struct feeder<WORK> &feeder,
                                           const uint8_t *shared, uint32_t warp,
                                           const struct qact_view &a) {
    uint32_t stage = 0, phase = 0;
    const uint8_t *kblocks = shared + warp * feeder.pipeline.stages * feeder.pipeline.stage_bytes;
#pragma unroll 1
    for (uint32_t t = warp; t < work.n_tasks; t += EXPERTS_WARPS) {
        const struct experts_matrix &m = work.matrix_of(t);
        struct lane_share own = find_lane_share<SET>(a, m.type, m.lane_shift);
        uint32_t x = work.first_unit(t) << m.lane_shift, last = x + (m.kblocks << m.lane_shift);
        uint32_t type = m.type;
        float acc[1][4] = {};
#pragma unroll 1
        for (; x < last; x += own.row_lanes) {
            feeder.wait(stage, phase);
            dot_kblock<SET, 1>(type, kblocks + stage * feeder.pipeline.stage_bytes, a, x, own, acc);
            __syncwarp();
            feeder.feed(stage, work.n_tasks);
            stage = stage + 1 == feeder.pipeline.stages ? 0 : stage + 1;
            phase ^= stage == 0;
        }
        float sum = task_sum<SET>(type, own, acc[0]);
        uint32_t row = stored_row<SET>(type, m.lane_shift);
        if (row != ~0u)
            work.put(t, row, sum);
    }
}

/* The experts of a row: a lane keeps one, so that none is fetched twice. */
struct chosen {
    const uint32_t *choice;
    uint32_t mine;

    __device__ __forceinline__ void load(const uint32_t *from, uint32_t used) {
        choice = from;
        mine = threadIdx.x % 32 < used ? __ldcg(from + threadIdx.x % 32) : 0;
    }

    /* By all lanes. */
    __device__ __forceinline__ uint32_t at(uint32_t place) const {
        return place < 32 ? __shfl_sync(~0u, mine, place) : __ldcg(choice + place);
    }
};

/* By fastdiv_of of what n is divided by. */
static __device__ __forceinline__ uint32_t quotient(uint32_t n, uint32_t magic) {
    return magic ? __umulhi(n, magic) : n;
}

/* Row 0 always is: it need not wait for the count. */
static __device__ __forceinline__ bool is_row_there(const struct cuda_io &io) {
    return blockIdx.y == 0 || blockIdx.y < io.header->n_rows;
}

/* Before a block leaves what it asked for must have come. */
template <class WORK> static __device__ __forceinline__ void give_up(struct feeder<WORK> &feeder) {
    for (uint32_t i = 0; i < feeder.filled; i++)
        feeder.wait(i, 0);
}

/* ---- EXPERTS_IN -------------------------------------------------------------------------------
 */

struct in_work {
    const struct experts_in_tiles_params &p;
    float *parts; /* (task, row of a tile) */
    struct chosen experts;
    uint32_t n_tasks, shared_first, n_shared, routed_first; /* tiles; pairs of tasks */

    __device__ __forceinline__ in_work(const struct experts_in_tiles_params &params, float *room)
        : p(params), parts(room) {
        /* All tiles are spread over the blocks, and those of the shared expert among them: a block
         * never has more of those than tiles. */
        uint32_t all = p.shared_tiles + p.used * p.routed_tiles, b = blockIdx.x, n = gridDim.x;
        uint32_t begin = b * all / n, end = (b + 1) * all / n;
        shared_first = (uint32_t)((uint64_t)begin * p.shared_tiles / all);
        n_shared = (uint32_t)((uint64_t)end * p.shared_tiles / all) - shared_first;
        routed_first = begin - shared_first;
        n_tasks = 2 * (end - begin);
    }

    __device__ __forceinline__ uint32_t shared_tasks(void) const {
        return 2 * n_shared;
    }

    /* Which choice tile i of the block is of, `used`: the shared expert; and which tile of it. */
    __device__ __forceinline__ uint32_t find(uint32_t i, uint32_t &tile) const {
        if (i < n_shared) {
            tile = shared_first + i;
            return p.used;
        }
        i += routed_first - n_shared;
        uint32_t place = quotient(i, p.routed_magic);
        tile = i - place * p.routed_tiles;
        return place;
    }

    __device__ __forceinline__ struct run run_of_task(uint32_t t) const {
        uint32_t tile, place = find(t / 2, tile);
        if (place == p.used)
            return run_of(p.shared[t % 2], 0, tile);
        return run_of(p.routed[t % 2], experts.at(place), tile);
    }

    __device__ __forceinline__ const struct experts_matrix &matrix_of(uint32_t t) const {
        return t < shared_tasks() ? p.shared[t % 2] : p.routed[t % 2];
    }

    __device__ __forceinline__ uint32_t first_unit(uint32_t) const {
        return 0;
    }

    __device__ __forceinline__ void put(uint32_t t, uint32_t row, float sum) const {
        parts[(t << p.row_shift) + row] = sum;
    }

    /* Hidden value e of the block's. */
    __device__ __forceinline__ void epilogue(uint32_t e, float factor) const {
        uint32_t i = e >> p.row_shift, row = e - (i << p.row_shift), tile, place = find(i, tile);
        uint32_t n = (tile << p.row_shift) + row;
        if (n >= (place == p.used ? p.shared_width : p.routed_width))
            return;
        float gate = __fmul_rn(parts[(2 * i << p.row_shift) + row], factor);
        float up = __fmul_rn(parts[(2 * i + 1 << p.row_shift) + row], factor);
        p.hidden[blockIdx.y * p.hidden_stride + (uint64_t)place * p.routed_width + n] =
            swiglu(gate, up);
    }
};

template <int SET>
static __device__ __forceinline__ void experts_in(const struct experts_in_tiles_params &p) {
    extern __shared__ uint4 room[];
    uint8_t *shared = (uint8_t *)room, *qact = shared + p.pipeline.qact_at;
    float *red = (float *)(shared + p.pipeline.red_at);
    uint32_t warp = warp_uniform(threadIdx.x / 32);
    in_work work(p, (float *)(shared + p.pipeline.partials_at));
    feeder<in_work> feeder(work, p.pipeline, shared, warp);
    feeder.fill(work.shared_tasks());
    struct col8 weights = {};
    struct row_threads threads = row_threads_of(p.in);
    load_first_norm_weights(threads, p.in, weights);
    struct row_source source = {blockIdx.y, gridDim.y, !p.is_early};
    quantize_row_vec4<SET>(threads, p.io, p.in, source, weights, qact, red);
    if (p.is_early)
        pdl_wait(p.io);
    pdl_launch_dependents();
    work.experts.load(p.choice + blockIdx.y * p.choice_stride, p.used);
    if (!is_row_there(p.io)) {
        give_up(feeder);
        return;
    }
    feeder.fill(work.n_tasks);
    __syncthreads();
    struct qact_view a = view_qact(p.in, qact, 0);
    float factor = row_factor(p.in, red);
    eat<SET>(work, feeder, shared, warp, a);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < work.n_tasks / 2 << p.row_shift; e += blockDim.x)
        work.epilogue(e, factor);
}

/* ---- EXPERTS_OUT ------------------------------------------------------------------------------
 */

struct out_work {
    const struct experts_out_tiles_params &p;
    float *parts; /* (choice, output of the block): the shared expert's last */
    struct chosen experts;
    uint32_t n_tasks, first_tile, n_tiles, magic;
    bool has_shared;

    __device__ __forceinline__ out_work(const struct experts_out_tiles_params &params, float *room)
        : p(params), parts(room) {
        first_tile = blockIdx.x * p.tiles / gridDim.x;
        n_tiles = (blockIdx.x + 1) * p.tiles / gridDim.x - first_tile;
        has_shared = p.shared.kblocks != 0;
        n_tasks = (p.used + has_shared) * n_tiles;
        magic = fastdiv_of(n_tiles);
    }

    __device__ __forceinline__ uint32_t shared_tasks(void) const {
        return has_shared ? n_tiles : 0;
    }

    /* Which choice task t is of, `used`: the shared expert, which goes first; and which tile of the
     * block's. */
    __device__ __forceinline__ uint32_t find(uint32_t t, uint32_t &tile) const {
        if (t < shared_tasks()) {
            tile = t;
            return p.used;
        }
        t -= shared_tasks();
        uint32_t place = quotient(t, magic);
        tile = t - place * n_tiles;
        return place;
    }

    __device__ __forceinline__ struct run run_of_task(uint32_t t) const {
        uint32_t tile, place = find(t, tile);
        if (place == p.used)
            return run_of(p.shared, 0, first_tile + tile);
        return run_of(p.routed, experts.at(place), first_tile + tile);
    }

    __device__ __forceinline__ const struct experts_matrix &matrix_of(uint32_t t) const {
        return t < shared_tasks() ? p.shared : p.routed;
    }

    __device__ __forceinline__ uint32_t first_unit(uint32_t t) const {
        uint32_t tile, place = find(t, tile);
        return place == p.used ? p.shared_first : place * p.routed.kblocks;
    }

    __device__ __forceinline__ void put(uint32_t t, uint32_t row, float sum) const {
        uint32_t tile, place = find(t, tile);
        parts[((place * n_tiles + tile) << p.row_shift) + row] = sum;
    }
};

template <int SET>
static __device__ __forceinline__ void experts_out(const struct experts_out_tiles_params &p) {
    extern __shared__ uint4 room[];
    pdl_launch_dependents();
    uint8_t *shared = (uint8_t *)room, *qact = shared + p.pipeline.qact_at;
    float *weight = (float *)(shared + p.pipeline.red_at); /* (used + 1) */
    uint32_t warp = warp_uniform(threadIdx.x / 32), n_weights = p.used + 1;
    out_work work(p, (float *)(shared + p.pipeline.partials_at));
    feeder<out_work> feeder(work, p.pipeline, shared, warp);
    feeder.fill(work.shared_tasks());
    if (!p.is_early)
        pdl_wait(p.io);
    work.experts.load(p.choice + blockIdx.y * p.choice_stride, p.used);
    bool is_there = is_row_there(p.io);
    uint32_t outputs = work.n_tiles << p.row_shift, first = work.first_tile << p.row_shift;
    float *x = p.x + blockIdx.y * p.x_stride + first, was = 0;
    if (is_there) {
        feeder.fill(work.n_tasks);
        if (threadIdx.x < outputs && first + threadIdx.x < p.width)
            was = __ldcg(x + threadIdx.x);
        for (uint32_t i = threadIdx.x; i < n_weights; i += blockDim.x)
            weight[i] = __ldcg(p.weight + blockIdx.y * p.weight_stride + i);
    }
    struct row_source source = {blockIdx.y, gridDim.y, p.is_early != 0};
    quantize_row_vec4<SET>(row_threads_of(p.in), p.io, p.in, source, {}, qact, NULL);
    if (!is_there) {
        give_up(feeder);
        return;
    }
    __syncthreads();
    struct qact_view a = view_qact(p.in, qact, 0);
    eat<SET>(work, feeder, shared, warp, a);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < outputs; e += blockDim.x) {
        if (first + e >= p.width)
            return;
        float y = e == threadIdx.x ? was : __ldcg(x + e);
        for (uint32_t j = 0; j < p.used + work.has_shared; j++)
            y = __fmaf_rn(weight[j], work.parts[j * outputs + e], y);
        x[e] = y;
    }
}

/* ---- kernels ----------------------------------------------------------------------------------
 */

#define EXPERTS(name, SET)                                                                         \
    extern "C" __global__ void __maxnreg__(64)                                                     \
        experts_in_tiles_##name(const __grid_constant__ struct experts_in_tiles_params p) {        \
        experts_in<SET>(p);                                                                        \
    }                                                                                              \
    extern "C" __global__ void __maxnreg__(64)                                                     \
        experts_out_tiles_##name(const __grid_constant__ struct experts_out_tiles_params p) {      \
        experts_out<SET>(p);                                                                       \
    }

EXPERTS(q4, IS_Q4_K)
EXPERTS(q6, IS_Q6_K)
EXPERTS(q4_q6, IS_Q4_K | IS_Q6_K)
EXPERTS(q8, IS_Q8_0)
EXPERTS(all, IS_Q4_K | IS_Q5_K | IS_Q6_K | IS_Q8_0)
