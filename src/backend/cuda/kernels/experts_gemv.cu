/* experts_gemv.cu - EXPERTS_IN and EXPERTS_OUT on tiled weights, a row at a time.
 *
 *   IN    hidden[i][n] = silu(gate[e(i)][n] . a) * (up[e(i)][n] . a), a = norm(in), e = choice
 *   OUT   x[n] += sum over i of weight[i] * (down[e(i)][n] . hidden[i])
 *
 * for the `used` experts that ROUTE has chosen for the row, and then the shared expert.
 *
 * Grid: (one thread block an SM, rows); 16 warps, of OUT of one row 18. A task is a tile (4 to 16
 * weight rows) of one expert's matrix, all of K, by one warp: dot products and their order are
 * those of project_gemv.cuh. IN: a thread block has pairs of tasks, gate and up of one tile. OUT: a
 * thread block has a range of outputs and the tiles of all experts for them; it adds them in order
 * of choice, the shared expert last. Both run the shared expert's tasks first: they need no choice.
 *
 * Pipeline: each warp has stages in shared memory, a K block each, filled by bulk copies. Usually
 * all K blocks of a warp fit, so that all of a thread block's weights are in flight at once.
 *
 * Reads (used + 1) matrices and one row; the row is quantized by every thread block for itself.
 *
 * Early reads: which experts a row has is known only after ROUTE. But ROUTE and EXPERTS_IN call
 * launch_dependents after their own wait. So when IN starts, all before ROUTE is complete, and IN
 * quantizes the row before its wait; when OUT starts, ROUTE is complete, and OUT loads the chosen
 * weights before its wait. (can_read_early: the kernel before this one is such a one.) H200,
 * qwen35-35b-a3b Q4_K_M, one row, us of IN and OUT: 7.2 and 4.7; 8.0 and 4.7 without the early row,
 * 7.3 and 6.7 without the early weights. */
#include "backend/cuda/kernels/project_gemv.cuh"
#include "backend/cuda/ops/experts.h"

/* ---- pipeline ----------------------------------------------------------------------------- */

/* K blocks of a task that are still to be loaded. */
struct kblock_run {
    const uint8_t *at;
    uint32_t kblocks, kblock_bytes;
};

static __device__ __forceinline__ struct kblock_run find_tile(const struct experts_matrix &m,
                                                              uint32_t expert, uint32_t tile) {
    return {m.data + expert * m.expert_bytes + (uint64_t)tile * m.kblocks * m.kblock_bytes,
            m.kblocks, m.kblock_bytes};
}

static __device__ __forceinline__ void copy_kblock(uint32_t stage, const uint8_t *from,
                                                   uint32_t bytes, uint32_t mbar) {
    uint32_t lane = threadIdx.x % 32;
    if constexpr (HAS_CP_ASYNC_BULK) {
        if (lane == 0)
            bulk_load(stage, from, bytes, mbar);
    } else {
        for (uint32_t i = lane * 16; i < bytes; i += 512)
            cp_async_16(stage + i, from + i);
    }
}

/* A warp's pipeline over tasks warp, warp + WARPS, ... TASKS has: n_tasks, of the thread block;
 * kblocks_of(t), called by all lanes. */
template <int WARPS, class TASKS> struct pipeline {
    const TASKS &tasks;
    const struct experts_smem &smem;
    struct kblock_run run;
    uint32_t next_task;
    uint32_t base, mbars; /* smem addresses of stage 0 and its mbarrier */
    uint32_t filled;      /* stages filled for the first time */

    __device__ __forceinline__ pipeline(const TASKS &of, const struct experts_smem &s,
                                        uint8_t *shared, uint32_t warp)
        : tasks(of), smem(s), next_task(warp), filled(0) {
        run.kblocks = 0;
        base = smem_addr(shared);
        mbars = base + s.mbars_at + warp * s.stages * 8;
        base += warp * s.stages * s.stage_bytes;
        if (HAS_CP_ASYNC_BULK)
            mbarrier_init_stages(mbars, s.stages);
    }

    /* The next K block of tasks below `end` into a stage; false: there is none. */
    __device__ __forceinline__ bool load(uint32_t stage, uint32_t end) {
        if (run.kblocks == 0) {
            if (next_task >= end)
                return false;
            run = tasks.kblocks_of(next_task);
            next_task += WARPS;
        }
        copy_kblock(base + stage * smem.stage_bytes, run.at, run.kblock_bytes, mbars + stage * 8);
        run.at += run.kblock_bytes;
        run.kblocks--;
        return true;
    }

    /* Fills empty stages with tasks below `end`. */
    __device__ __forceinline__ void fill(uint32_t end) {
        while (filled < smem.stages && load(filled, end))
            filled++;
    }

    __device__ __forceinline__ void wait(uint32_t stage, uint32_t phase) {
        bulk_wait(mbars + stage * 8, phase);
    }

    /* A bulk copy must not outlive its thread block. */
    __device__ __forceinline__ void drain(void) {
        for (uint32_t i = 0; i < filled; i++)
            wait(i, 0);
    }
};

/* All tasks of a warp; IS_ROOMY: all of its K blocks have been asked for. TASKS also has:
 * matrix_of(t); first_kblock(t), where in the activations the task begins; store_sum(t, row of the
 * tile, sum). */
template <int SET, int WARPS, bool IS_ROOMY, class TASKS>
static __device__ __forceinline__ void
accumulate_tasks(const TASKS &tasks, struct pipeline<WARPS, TASKS> &pipeline, const uint8_t *shared,
                 uint32_t warp, const struct qact_view &a) {
    uint32_t stage = 0, phase = 0;
    const uint8_t *stages = shared + warp * pipeline.smem.stages * pipeline.smem.stage_bytes;
#pragma unroll 1
    for (uint32_t t = warp; t < tasks.n_tasks; t += WARPS) {
        const struct experts_matrix &m = tasks.matrix_of(t);
        struct lane_share own = find_lane_share<SET>(a, m.type, m.lane_shift, 0);
        uint32_t x = tasks.first_kblock(t) << m.lane_shift, end = x + (m.kblocks << m.lane_shift);
        uint32_t type = m.type;
        float acc[1][4] = {};
#pragma unroll 1
        for (; x < end; x += own.row_lanes) {
            pipeline.wait(stage, phase);
            dot_kblock<SET, 1>(type, stages + stage * pipeline.smem.stage_bytes, a, x, own, acc);
            stage++;
            if (IS_ROOMY)
                continue;
            __syncwarp();
            pipeline.load(stage - 1, tasks.n_tasks);
            stage = stage == pipeline.smem.stages ? 0 : stage;
            phase ^= stage == 0;
        }
        sum_task<SET, 1>(type, own, acc);
        uint32_t row = stored_row<SET>(type, m.lane_shift);
        if (row != ~0u)
            tasks.store_sum(t, row, acc[0][0]);
    }
}

/* ---- rows and their experts --------------------------------------------------------------- */

/* The experts of a row: lane i keeps the i-th, so that none is read twice. */
struct chosen_experts {
    const uint32_t *choice;
    uint32_t of_lane;

    __device__ __forceinline__ void load(const uint32_t *from, uint32_t used) {
        choice = from;
        of_lane = threadIdx.x % 32 < used ? __ldcg(from + threadIdx.x % 32) : 0;
    }

    /* By all lanes. */
    __device__ __forceinline__ uint32_t get(uint32_t i) const {
        return i < 32 ? __shfl_sync(~0u, of_lane, i) : __ldcg(choice + i);
    }
};

/* n / d, by fastdiv_of(d). */
static __device__ __forceinline__ uint32_t fastdiv(uint32_t n, uint32_t multiplier) {
    return multiplier ? __umulhi(n, multiplier) : n;
}

/* Row 0 always exists: no need to wait for the count. */
static __device__ __forceinline__ bool has_row(const struct cuda_io &io) {
    return blockIdx.y == 0 || blockIdx.y < io.header->n_rows;
}

/* ---- EXPERTS_IN --------------------------------------------------------------------------- */

/* Tasks 2 i and 2 i + 1 are gate and up of the thread block's tile i. */
struct in_tasks {
    const struct experts_in_gemv_params &p;
    float *sums; /* (task, row of a tile) */
    struct chosen_experts experts;
    uint32_t n_tasks, shared_first, n_shared, routed_first; /* tiles, but for n_tasks */

    __device__ __forceinline__ in_tasks(const struct experts_in_gemv_params &params, float *to)
        : p(params), sums(to) {
        /* All tiles are dealt evenly, and those of the shared expert in proportion: a thread block
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

    /* Which of the row's experts tile i is of (p.used: the shared one), and which tile of it. */
    __device__ __forceinline__ uint32_t find(uint32_t i, uint32_t &tile) const {
        if (i < n_shared) {
            tile = shared_first + i;
            return p.used;
        }
        i += routed_first - n_shared;
        uint32_t expert = fastdiv(i, p.routed_fastdiv);
        tile = i - expert * p.routed_tiles;
        return expert;
    }

    __device__ __forceinline__ struct kblock_run kblocks_of(uint32_t t) const {
        uint32_t tile, expert = find(t / 2, tile);
        if (expert == p.used)
            return find_tile(p.shared[t % 2], 0, tile);
        return find_tile(p.routed[t % 2], experts.get(expert), tile);
    }

    __device__ __forceinline__ const struct experts_matrix &matrix_of(uint32_t t) const {
        return t < shared_tasks() ? p.shared[t % 2] : p.routed[t % 2];
    }

    __device__ __forceinline__ uint32_t first_kblock(uint32_t) const {
        return 0;
    }

    __device__ __forceinline__ void store_sum(uint32_t t, uint32_t row, float sum) const {
        sums[(t << p.row_shift) + row] = sum;
    }

    /* SwiGLU of value e of the thread block; factor: the norm's. */
    __device__ __forceinline__ void store_hidden(uint32_t e, float factor) const {
        uint32_t i = e >> p.row_shift, row = e - (i << p.row_shift), tile, expert = find(i, tile);
        uint32_t n = (tile << p.row_shift) + row;
        if (n >= (expert == p.used ? p.shared_width : p.routed_width))
            return;
        float gate = __fmul_rn(sums[(2 * i << p.row_shift) + row], factor);
        float up = __fmul_rn(sums[(2 * i + 1 << p.row_shift) + row], factor);
        p.hidden[blockIdx.y * p.hidden_stride + (uint64_t)expert * p.routed_width + n] =
            swiglu(gate, up);
    }
};

/* The input, with what is known of it when the kernel is compiled: no code for other prologues. */
static __device__ __forceinline__ struct project_input input_with(const struct project_input &in,
                                                                  uint32_t prologue) {
    struct project_input known = in;
    known.prologue = prologue;
    known.wants_int8 = 1;
    known.wants_f32 = known.is_split = 0;
    return known;
}

template <int SET, int WARPS, bool IS_ROOMY>
static __device__ __forceinline__ void experts_in(const struct experts_in_gemv_params &p) {
    extern __shared__ uint4 smem[];
    uint8_t *shared = (uint8_t *)smem, *qact = shared + p.smem.qact_at;
    float *squares = (float *)(shared + p.smem.floats_at);
    uint32_t warp = warp_uniform(threadIdx.x / 32);
    in_tasks tasks(p, (float *)(shared + p.smem.partials_at));
    pipeline<WARPS, in_tasks> pipeline(tasks, p.smem, shared, warp);
    pipeline.fill(tasks.shared_tasks());
    struct col8 norm_weights = {};
    struct row_threads threads = row_threads_of(p.in);
    load_first_norm_weights(threads, p.in, norm_weights);
    struct row_source source = {blockIdx.y, gridDim.y, !p.can_read_early};
    struct no_early_load<true> none = {};
    quantize_row_vec4<SET>(threads, p.io, input_with(p.in, PROLOGUE_NORM), source, norm_weights,
                           qact, squares, none);
    if (p.can_read_early)
        pdl_wait(p.io);
    pdl_launch_dependents(); /* only now, for EXPERTS_OUT's early reads */
    tasks.experts.load(p.choice + blockIdx.y * p.choice_stride, p.used);
    if (!has_row(p.io)) {
        pipeline.drain();
        return;
    }
    pipeline.fill(tasks.n_tasks);
    __syncthreads();
    struct qact_view a = view_qact(p.in, qact, 0);
    float factor = row_factor(p.in, squares);
    accumulate_tasks<SET, WARPS, IS_ROOMY>(tasks, pipeline, shared, warp, a);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < tasks.n_tasks / 2 << p.row_shift; e += blockDim.x)
        tasks.store_hidden(e, factor);
}

/* ---- EXPERTS_OUT -------------------------------------------------------------------------- */

/* Expert by expert, the shared one first, the thread block's tiles of each. */
struct out_tasks {
    const struct experts_out_gemv_params &p;
    float *sums; /* (expert, output of the thread block), the shared expert's last */
    struct chosen_experts experts;
    uint32_t n_tasks, first_tile, n_tiles, tiles_fastdiv;
    bool has_shared;

    __device__ __forceinline__ out_tasks(const struct experts_out_gemv_params &params, float *to)
        : p(params), sums(to) {
        first_tile = blockIdx.x * p.tiles / gridDim.x;
        n_tiles = (blockIdx.x + 1) * p.tiles / gridDim.x - first_tile;
        has_shared = p.shared.kblocks != 0;
        n_tasks = (p.used + has_shared) * n_tiles;
        tiles_fastdiv = fastdiv_of(n_tiles);
    }

    __device__ __forceinline__ uint32_t shared_tasks(void) const {
        return has_shared ? n_tiles : 0;
    }

    /* Which of the row's experts task t is of (p.used: the shared one), and which of the thread
     * block's tiles. */
    __device__ __forceinline__ uint32_t find(uint32_t t, uint32_t &tile) const {
        if (t < shared_tasks()) {
            tile = t;
            return p.used;
        }
        t -= shared_tasks();
        uint32_t expert = fastdiv(t, tiles_fastdiv);
        tile = t - expert * n_tiles;
        return expert;
    }

    __device__ __forceinline__ struct kblock_run kblocks_of(uint32_t t) const {
        uint32_t tile, expert = find(t, tile);
        if (expert == p.used)
            return find_tile(p.shared, 0, first_tile + tile);
        return find_tile(p.routed, experts.get(expert), first_tile + tile);
    }

    __device__ __forceinline__ const struct experts_matrix &matrix_of(uint32_t t) const {
        return t < shared_tasks() ? p.shared : p.routed;
    }

    __device__ __forceinline__ uint32_t first_kblock(uint32_t t) const {
        uint32_t tile, expert = find(t, tile);
        return expert == p.used ? p.shared_first_kblock : expert * p.routed.kblocks;
    }

    __device__ __forceinline__ void store_sum(uint32_t t, uint32_t row, float sum) const {
        uint32_t tile, expert = find(t, tile);
        sums[((expert * n_tiles + tile) << p.row_shift) + row] = sum;
    }
};

template <int SET, int WARPS, bool IS_ROOMY>
static __device__ __forceinline__ void experts_out(const struct experts_out_gemv_params &p) {
    extern __shared__ uint4 smem[];
    pdl_launch_dependents();
    uint8_t *shared = (uint8_t *)smem, *qact = shared + p.smem.qact_at;
    float *weights = (float *)(shared + p.smem.floats_at); /* (used + 1) */
    uint32_t warp = warp_uniform(threadIdx.x / 32), n_weights = p.used + 1;
    out_tasks tasks(p, (float *)(shared + p.smem.partials_at));
    pipeline<WARPS, out_tasks> pipeline(tasks, p.smem, shared, warp);
    pipeline.fill(tasks.shared_tasks());
    if (!p.can_read_early)
        pdl_wait(p.io);
    tasks.experts.load(p.choice + blockIdx.y * p.choice_stride, p.used);
    bool is_active = has_row(p.io);
    uint32_t outputs = tasks.n_tiles << p.row_shift, first = tasks.first_tile << p.row_shift;
    float *x = p.x + blockIdx.y * p.x_stride + first, residual = 0;
    if (is_active) {
        pipeline.fill(tasks.n_tasks);
        if (threadIdx.x < outputs && first + threadIdx.x < p.width)
            residual = __ldcg(x + threadIdx.x);
        for (uint32_t i = threadIdx.x; i < n_weights; i += blockDim.x)
            weights[i] = __ldcg(p.weight + blockIdx.y * p.weight_stride + i);
    }
    struct row_source source = {blockIdx.y, gridDim.y, p.can_read_early != 0};
    struct no_early_load<true> none = {};
    quantize_row_vec4<SET>(row_threads_of(p.in), p.io, input_with(p.in, PROLOGUE_NONE), source, {},
                           qact, (float *)NULL, none);
    if (!is_active) {
        pipeline.drain();
        return;
    }
    __syncthreads();
    struct qact_view a = view_qact(p.in, qact, 0);
    accumulate_tasks<SET, WARPS, IS_ROOMY>(tasks, pipeline, shared, warp, a);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < outputs; e += blockDim.x) {
        if (first + e >= p.width)
            return;
        float y = e == threadIdx.x ? residual : __ldcg(x + e);
        for (uint32_t i = 0; i < p.used + tasks.has_shared; i++)
            y = __fmaf_rn(weights[i], tasks.sums[i * outputs + e], y);
        x[e] = y;
    }
}

/* ---- kernels ------------------------------------------------------------------------------ */

#define EXPERTS_IN(KIND, NAME, REGISTERS, ...)                                                     \
    extern "C" __global__ void __maxnreg__(REGISTERS)                                              \
        experts_##KIND##_in_##NAME(const __grid_constant__ struct experts_in_gemv_params p) {      \
        experts_in<__VA_ARGS__>(p);                                                                \
    }
#define EXPERTS_OUT(KIND, NAME, REGISTERS, ...)                                                    \
    extern "C" __global__ void __maxnreg__(REGISTERS)                                              \
        experts_##KIND##_out_##NAME(const __grid_constant__ struct experts_out_gemv_params p) {    \
        experts_out<__VA_ARGS__>(p);                                                               \
    }
#define EXPERTS_GEMV(NAME, SET)                                                                    \
    EXPERTS_IN(gemv, NAME, 64, SET, EXPERTS_WARPS, false)                                          \
    EXPERTS_OUT(gemv, NAME, 64, SET, EXPERTS_WARPS, false)

/* One row: OUT where all K blocks of a thread block fit its shared memory. */
#define EXPERTS_ONE(NAME, SET)                                                                     \
    EXPERTS_IN(one, NAME, 56, SET, EXPERTS_WARPS, false)                                           \
    EXPERTS_OUT(one, NAME, 56, SET, EXPERTS_OUT_WARPS, true)

EXPERTS_GEMV(q4, IS_Q4_K)
EXPERTS_GEMV(q6, IS_Q6_K)
EXPERTS_GEMV(q4_q6, IS_Q4_K | IS_Q6_K)
EXPERTS_GEMV(q8, IS_Q8_0)
EXPERTS_GEMV(all, IS_Q4_K | IS_Q5_K | IS_Q6_K | IS_Q8_0)
#if __CUDA_ARCH__ >= 900
EXPERTS_ONE(q4, IS_Q4_K)
EXPERTS_ONE(q6, IS_Q6_K)
EXPERTS_ONE(q4_q6, IS_Q4_K | IS_Q6_K)
EXPERTS_ONE(q8, IS_Q8_0)
#endif
