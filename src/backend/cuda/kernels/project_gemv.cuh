/* project_gemv.cuh - PROJECT for few rows: tiled weights times R rows of activations, by dot
 * products.
 *
 *   out[r][n] = epilogue(factor[r] * sum over k of w[n][k] * a[r][k] + bias[n])
 *
 * Work: a task is one tile's K blocks of one K split (split-K), done by one warp for all R rows. A
 * thread block (blockIdx.x) has the tiles bounds[b] ... bounds[b + 1] of all segments, or a range
 * of every segment (PROJECT_HAS_SHARES); its task_warps warps take its tasks round robin.
 * blockIdx.y: R rows. A lane owns the same columns of the same row (or 4 rows) in every K block of
 * a tile: see tiles.h.
 *
 * Pipeline: each warp has its own, of p.stages K blocks in shared memory, filled by the copy engine
 * (one row, and K-quants of 2 to 4: one bulk copy a K block and an mbarrier a stage; the lanes'
 * load units stay free for the activations) or by cp.async. It is filled before pdl_wait, so memory
 * is busy while this kernel waits for its input and quantizes it. A warp issues its second K block
 * only when the first has arrived: at that time the previous kernel reads its activations, which
 * would queue after all weights in flight. R = 1: every thread block quantizes the row itself.
 * More: project_quantize ran before, and their qacts are copied to shared memory (two rows of
 * qwen35-4b 1368 to 1483 tok/s).
 *
 * Bytes: each weight once for R rows; of the activations a qact's input a thread block.
 *
 * Order of sums. A row's bits must not depend on R, on the batch or on the kernel (project_gemm.cu
 * has the same order). Within a task, types with int8 activations: a lane's value v of a K block is
 *
 *   Q4_K, Q5_K  I = sum of scale * dot, M = sum of min * sum(q): integers, over 4 x 32 columns;
 *               t = d * I; t = fma(-dmin, M, t); v = as * t, as: the activations' scale
 *   Q6_K        I likewise over 8 x 16 columns; v = as * (d * I)
 *   Q8_0        of 128 columns, which two lanes have: t = d * dot of the first 32;
 *               t = fma(d, dot, t) of the others; v = as * t
 *
 * The lanes of a row are added one after the other, in order of their columns; that is added to the
 * sum of the K blocks before, which begins at 0. F32: a lane adds its columns one by one, K block
 * by K block; at the task's end the lanes of a row are added, neighbours first: l with l ^ 1, l ^
 * 2, l ^ 4, ... BF16 and F16: project_bf16.cuh. Then K splits in order, beginning with 0; then
 * factor, bias, epilogue.
 *
 * SET: the weight types that a kernel is compiled for, a bit each. Fewer types are fewer
 * instructions, and all products of a layer sharing one kernel keeps them cached (README, rule 5).
 * Gain of the smallest set a product over q4_q6_f32 (q8_f32) for all, H200: four rows of qwen35-4b
 * 1.5 %; two rows -2.6 %, so there they share one; qwen35-0.8b Q8_0, two rows 0.9 %, one row none;
 * smollm2-1.7b, one row, q4_q6 over q4_q6_f32 1.4 %. Below 9.0 there are only the larger sets. What
 * products of layers never need is in `all` alone: rows that cannot be read 16 bytes at a time (of
 * one row), an LM head of one row without PICK (the kernels with F16 have both). */
#ifndef BACKEND_CUDA_KERNELS_PROJECT_GEMV_CUH
#define BACKEND_CUDA_KERNELS_PROJECT_GEMV_CUH

#include "backend/cuda/kernels/quantize.cuh"

/* ---- asynchronous copies ------------------------------------------------------------------ */

/* All but the latest stages - 1 groups are complete. */
static __device__ __forceinline__ void cp_async_wait_stages(uint32_t stages) {
    if (stages == 2)
        cp_async_wait<1>();
    else if (stages == 3)
        cp_async_wait<2>();
    else if (stages == 4)
        cp_async_wait<3>();
    else
        cp_async_wait<5>();
}

/* A bulk copy that completes a phase of the mbarrier. By one lane. */
static __device__ __forceinline__ void bulk_load(uint32_t to, const uint8_t *from, uint32_t bytes,
                                                 uint32_t mbar) {
    mbarrier_expect_tx(mbar, bytes);
    cp_async_bulk(to, from, bytes, mbar);
}

/* Waits for the mbarrier's phase; below 9.0, for the lanes' own cp.async. */
static __device__ __forceinline__ void bulk_wait(uint32_t mbar, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
    mbarrier_wait(mbar, phase);
#else
    cp_async_wait_all();
    __syncwarp();
#endif
}

/* A warp's mbarriers, one a stage. */
static __device__ __forceinline__ void mbarrier_init_stages(uint32_t mbars, uint32_t stages) {
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
        for (uint32_t i = 0; i < stages; i++)
            mbarrier_init(mbars + i * 8, 1);
        mbarrier_init_fence();
    }
    __syncwarp();
}

/* ---- tasks -------------------------------------------------------------------------------- */

struct task {
    uint32_t segment, tile, split;
};

/* Whether bounds are a table of segments and thread blocks. */
template <int SET, int R> static __device__ __forceinline__ constexpr bool has_shares(void) {
    return R == 1 && PROJECT_HAS_SHARES(SET);
}

/* A thread block's tiles of a segment: `first` to `last` - 1, maybe none. */
struct segment_range {
    uint32_t first, last;
};

/* Where bounds are of all segments, one after the other: in that order. */
template <bool HAS_SHARES> struct block_tiles {
    uint32_t begin, end;

    __device__ __forceinline__ block_tiles(const struct project_params &p)
        : begin(p.bounds[blockIdx.x]), end(p.bounds[blockIdx.x + 1]) {
    }

    __device__ __forceinline__ struct segment_range of(const struct project_params &p,
                                                       uint32_t segment) const {
        const struct project_segment &s = p.segments[segment];
        return {max(begin, s.first_tile), min(end, s.first_tile + s.n_tiles)};
    }

    /* This many for every tile. */
    static __device__ __forceinline__ uint32_t count(const struct segment_range &r, uint32_t each) {
        return r.last > r.first ? (r.last - r.first) * each : 0;
    }

    /* The first one's number in the segment. */
    static __device__ __forceinline__ uint32_t first(const struct project_segment &s,
                                                     const struct segment_range &r) {
        return r.first - s.first_tile;
    }
};

/* A range of each segment. */
template <> struct block_tiles<true> {
    __device__ __forceinline__ block_tiles(const struct project_params &) {
    }

    __device__ __forceinline__ struct segment_range of(const struct project_params &p,
                                                       uint32_t segment) const {
        const uint16_t *bounds = p.bounds + segment * (p.n_blocks + 1) + blockIdx.x;
        return {bounds[0], bounds[1]};
    }

    static __device__ __forceinline__ uint32_t count(const struct segment_range &r, uint32_t each) {
        return (r.last - r.first) * each;
    }

    static __device__ __forceinline__ uint32_t first(const struct project_segment &,
                                                     const struct segment_range &r) {
        return r.first;
    }
};

/* Task t of this thread block: segment by segment, tile by tile, a tile's splits together. False:
 * it has fewer. */
template <bool HAS_SHARES = false>
static __device__ __forceinline__ bool find_task(const struct project_params &p, uint32_t t,
                                                 struct task &out) {
    struct block_tiles<HAS_SHARES> tiles(p);
#pragma unroll 1
    for (uint32_t i = 0; i < p.n_segments; i++) {
        const struct project_segment &s = p.segments[i];
        struct segment_range range = tiles.of(p, i);
        uint32_t n = tiles.count(range, s.splits);
        if (t < n) {
            uint32_t tile = t * s.split_fastdiv >> 16;
            out.segment = i;
            out.tile = tiles.first(s, range) + tile;
            out.split = t - tile * s.splits;
            return true;
        }
        t -= n;
    }
    return false;
}

/* Tasks of this thread block. */
template <bool HAS_SHARES>
static __device__ __forceinline__ uint32_t count_tasks(const struct project_params &p) {
    struct block_tiles<HAS_SHARES> tiles(p);
    uint32_t n = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < p.n_segments; i++)
        n += tiles.count(tiles.of(p, i), p.segments[i].splits);
    return n;
}

static __device__ __forceinline__ uint32_t task_kblocks(const struct project_segment &s,
                                                        uint32_t split) {
    return s.split_kblocks + (split < s.split_extra);
}

static __device__ __forceinline__ uint32_t task_first_kblock(const struct project_segment &s,
                                                             uint32_t split) {
    return split * s.split_kblocks + min(split, (uint32_t)s.split_extra);
}

/* ---- the pipeline ------------------------------------------------------------------------- */

/* Whether the copy engine fills it. Of 2 to 4 rows only K-quants gain by it: two rows of qwen35-4b
 * Q4_K_M 1507 to 1526 tok/s, but of BF16 2.5 % less. */
template <int SET, int R> static __device__ __forceinline__ constexpr bool is_bulk(void) {
    bool is_k_quant = SET & IS_K_QUANT && !(SET & DEEP_PIPELINE);
    return HAS_CP_ASYNC_BULK && (R == 1 || (R <= 4 && is_k_quant));
}

/* Whether there are registers to keep what is known before the wait. */
template <int SET, int R> static __device__ __forceinline__ constexpr bool keeps_early(void) {
    return HAS_CP_ASYNC_BULK && R == 1 && SET != IS_ANY && SET & (IS_Q4_K | IS_BF16 | IS_Q8_0);
}

/* Whether there are also registers for a task's columns. */
template <int SET, int R> static __device__ __forceinline__ constexpr bool keeps_span(void) {
    return keeps_early<SET, R>() && !(SET & IS_Q8_0);
}

/* Whether there are also registers for the lane's share of its first tile. */
template <int SET, int R> static __device__ __forceinline__ constexpr bool keeps_share(void) {
    return keeps_early<SET, R>() && SET & IS_Q4_K;
}

/* Whether some warps have a stage more than others: a warp's number is in a register, or else 8
 * bytes before its mbarriers. */
template <int SET, int R> static __device__ __forceinline__ constexpr bool has_extra_stages(void) {
    return keeps_early<SET, R>() || (HAS_CP_ASYNC_BULK && R == 1 && SET & (IS_SPLIT | IS_Q8_0));
}

/* The K block that a warp loads next. */
struct kblock_loader {
    const uint8_t *from;   /* cp.async: this lane's first 16 bytes of it */
    uint32_t left;         /* K blocks of the task, this one included */
    uint32_t next_task;    /* of the warp, after this one */
    uint32_t n_tasks;      /* of the thread block */
    uint32_t kblock_bytes; /* of the task's type */
};

/* Bytes of a K block; 0: they differ from segment to segment. */
template <int SET> static __device__ __forceinline__ constexpr uint32_t set_kblock_bytes(void) {
    return SET == IS_Q4_K                                  ? TILE_KBLOCK_Q4_K
           : SET == IS_Q6_K                                ? TILE_KBLOCK_Q6_K
           : SET == IS_Q8_0                                ? TILE_KBLOCK_Q8_0
           : SET & (IS_Q4_K | IS_Q5_K | IS_Q6_K | IS_Q8_0) ? 0
                                                           : TILE_KBLOCK_FLOAT;
}

/* The warp's next task is t. */
template <int SET, bool IS_BULK>
static __device__ __forceinline__ void start_task(const struct project_params &p,
                                                  struct kblock_loader &l, const struct task &t) {
    constexpr uint32_t BYTES = set_kblock_bytes<SET>();
    const struct project_segment &s = p.segments[t.segment];
    l.left = task_kblocks(s, t.split);
    l.kblock_bytes = s.kblock_bytes;
    l.from = s.data +
             ((uint64_t)t.tile * s.kblocks + task_first_kblock(s, t.split)) *
                 (BYTES ? BYTES : l.kblock_bytes) +
             (IS_BULK ? 0 : threadIdx.x % 32 * 16);
    l.next_task += p.task_warps;
}

/* Starts loading the warp's next K block, if there is one. stage, mbar: shared addresses. none: 0,
 * when the stage is read. */
template <int SET, int R>
static __device__ __forceinline__ void load_kblock(const struct project_params &p,
                                                   struct kblock_loader &l, uint32_t stage,
                                                   uint32_t mbar, uint32_t none = 0) {
    constexpr uint32_t BYTES = set_kblock_bytes<SET>();
    constexpr bool IS_BULK = is_bulk<SET, R>();
    struct task t;
    uint32_t lane = threadIdx.x % 32;
    if (l.left == 0 && l.next_task < l.n_tasks) {
        find_task<has_shares<SET, R>()>(p, l.next_task, t);
        start_task<SET, IS_BULK>(p, l, t);
    }
    uint32_t bytes = BYTES ? BYTES : l.kblock_bytes;
    if (IS_BULK) {
        if (l.left) {
            if (SET & (IS_SPLIT | IS_Q8_0) ? lane == none : elect_lane()) /* Q8_0 would spill */
                bulk_load(stage, l.from, bytes, mbar);
            l.from += bytes;
            l.left--;
        }
        return;
    }
    if (l.left) {
        stage += lane * 16 + none;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            cp_async_16(stage + i * 512, l.from + i * 512);
#pragma unroll
        for (uint32_t i = 4; i < 7; i++)
            if ((!BYTES || i * 512 < BYTES) && lane * 16 + i * 512 < bytes)
                cp_async_16(stage + i * 512, l.from + i * 512);
        l.from += bytes;
        l.left--;
    }
    cp_async_commit();
}

/* Loads the warp's first K blocks, each when the one before has arrived; of BF16 and F16 in one row
 * the others with the second (qwen35-4b BF16 456.1 to 457.8 tok/s; Q8_0 724 to 717). */
template <int SET, int R>
static __device__ __forceinline__ void fill_pipeline(const struct project_params &p,
                                                     struct kblock_loader &l, uint32_t stages,
                                                     uint32_t pipeline, uint32_t mbars) {
    constexpr bool IS_BULK = is_bulk<SET, R>();
    if (IS_BULK)
        mbarrier_init_stages(mbars, stages);
#pragma unroll 1
    for (uint32_t i = 0; i < stages; i++) {
        if (i && (i == 1 || !(IS_BULK && SET & IS_SPLIT && SET != IS_ANY)) &&
            (l.left || l.next_task < l.n_tasks)) {
            if (IS_BULK)
                mbarrier_wait(mbars + i * 8 - 8, 0);
            else
                cp_async_wait<0>();
        }
        load_kblock<SET, R>(p, l, pipeline + i * p.stage_bytes, mbars + i * 8);
    }
}

/* Of two stages, those that fill_pipeline has begun to load, of the warp's first task t: a thread
 * block must not end before. */
template <int SET, int R>
static __device__ __forceinline__ void wait_first_stages(const struct project_params &p,
                                                         const struct task &t, uint32_t warp,
                                                         uint32_t n_tasks, uint32_t mbars) {
    if (!is_bulk<SET, R>()) {
        cp_async_wait<0>();
        return;
    }
    mbarrier_wait(mbars, 0);
    if (task_kblocks(p.segments[t.segment], t.split) > 1 || warp + p.task_warps < n_tasks)
        mbarrier_wait(mbars + 8, 0);
}

/* ---- activations in shared memory --------------------------------------------------------- */

/* R qacts, laid out as in project.h. */
struct qact_view {
    uint32_t addr;      /* shared address of the first */
    uint32_t stride;    /* bytes from row to row */
    uint32_t planes[5]; /* offsets of planes 0 to 4; plane 4 + i is planes[4] + planes[i] */
    uint32_t sums_at;   /* offset of the sums of quants */
    const uint8_t *f32; /* the first row's f32 values */
    bool is_split;      /* they are parts */
};

/* opaque_add hides that the planes are multiples of one number: the compiler would multiply again
 * at every load, rather than keep the offsets. */
static __device__ __forceinline__ struct qact_view view_qact(const struct project_input &in,
                                                             const uint8_t *qact, uint32_t stride) {
    struct qact_view a = {};
    a.addr = smem_addr(qact);
    a.stride = stride;
#pragma unroll
    for (int j = 1; j < 5; j++)
        a.planes[j] = opaque_add(a.planes[j - 1], project_plane(in.k) * 16);
    a.sums_at = project_sums_at(in.k);
    a.f32 = qact + (in.wants_int8 ? project_int8_bytes(in.k) : 0);
    a.is_split = in.is_split;
    return a;
}

template <class T> static __device__ __forceinline__ T read_shared(uint32_t addr) {
    return *(const T *)__cvta_shared_to_generic(addr);
}

/* Of 128 columns, whose chunk of plane 0 is at `addr`: 16 columns of plane j, the four sums of
 * quants, scale i. */
static __device__ __forceinline__ uint4 act_int8x16(const struct qact_view &a, uint32_t addr,
                                                    int j) {
    return read_shared<uint4>(addr + j / 4 * a.planes[4] + a.planes[j % 4]);
}

static __device__ __forceinline__ uint4 act_sums(const struct qact_view &a, uint32_t addr) {
    return read_shared<uint4>(addr + a.sums_at);
}

template <class T = float>
static __device__ __forceinline__ T act_scale(const struct qact_view &a, uint32_t addr,
                                              uint32_t i) {
    return read_shared<T>(addr + a.planes[4] + a.planes[4] + 4 * i);
}

/* Columns 4 i ... of row r. */
template <int SET>
static __device__ __forceinline__ float4 act_f32x4(const struct qact_view &a, int r, uint32_t i) {
    const uint8_t *row = a.f32 + r * a.stride;
    if (SET & IS_F16)
        return join_f16(load_bf16_parts(row, i));
    return is_split<SET>(a.is_split) ? join_bf16(load_bf16_parts(row, i))
                                     : ((const float4 *)row)[i];
}

/* ---- a K block times R rows --------------------------------------------------------------- */

static __device__ __forceinline__ int dp4a_ss(uint32_t w, uint32_t a, int c) {
    return __dp4a((int)w, (int)a, c);
}

static __device__ __forceinline__ uint32_t word(uint4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

static __device__ __forceinline__ float2 half2_to_float2(uint32_t v) {
    return __half22float2(*reinterpret_cast<__half2 *>(&v));
}

/* What a lane owns in the K blocks of a task. */
struct lane_share {
    uint32_t row_lanes; /* lanes that share a row (f32 activations: 4 rows) */
    uint32_t index;     /* this lane's among them */
    uint32_t d_at;      /* K-quants: offset of its (d, dmin) in that array, 4 bytes each */
    uint32_t acts;      /* int8: shared address of its columns' activations in K block 0 */
    struct bf16_lane bf16;
};

/* Whether a segment's type has int8 activations: mostly SET decides. */
template <int SET> static __device__ __forceinline__ bool is_int8(uint32_t type) {
    return !(SET & ~IS_INT8) || (SET & IS_INT8 && type & IS_INT8);
}

/* BF16 and F16; no set has both. */
template <int SET> static __device__ __forceinline__ bool is_bf16(uint32_t type) {
    constexpr int TYPE = SET & IS_SPLIT;
    return SET == TYPE || (TYPE && type == TYPE);
}

template <int SET, int R = 1>
static __device__ __forceinline__ struct lane_share
find_lane_share(const struct qact_view &a, uint32_t type, uint32_t lane_shift, uint32_t tile) {
    uint32_t lane = threadIdx.x % 32, row_lanes = 1u << lane_shift, row_shift = 5 - lane_shift;
    if (is_bf16<SET>(type))
        return {row_lanes, 0, 0, 0,
                find_bf16_lane<R>(7 - lane_shift, tile, smem_addr(a.f32), a.stride)};
    if (!is_int8<SET>(type))
        return {row_lanes, lane & (row_lanes - 1), 0, 0, {}};
    uint32_t index = lane >> row_shift, row = lane & ((1u << row_shift) - 1);
    return {row_lanes, index, (index / 2 << row_shift | row) * 4, a.addr + index * 16, {}};
}

/* One row: v of lane l, then those of lanes l + 32 / n, l + 64 / n, ... below 32, added one after
 * the other; n is 2, 4 or 8, the same for all lanes. For lanes below 32 / n: others get no
 * meaningful sum. Two shuffles too many for n = 2 are cheaper than a branch each. */
static __device__ __forceinline__ float add_lanes_in_order(float v, uint32_t n) {
    auto other = [&](int lanes) { return __shfl_down_sync(~0u, v, lanes); };
    float sum = v;
    if (n > 4) {
#pragma unroll
        for (int i = 4; i < 32; i += 4)
            sum = __fadd_rn(sum, other(i));
        return sum;
    }
    float a = other(8), b = other(16), c = other(24);
    sum = n > 2 ? __fadd_rn(sum, a) : sum;
    sum = __fadd_rn(sum, b);
    return n > 2 ? __fadd_rn(sum, c) : sum;
}

/* Several rows: by branches, since registers are few, and rows hide each other's latency. */
template <int R, int LANES>
static __device__ __forceinline__ void add_last_of_lanes(float (&acc)[R][4]) {
#pragma unroll
    for (int r = 0; r < R; r++) {
        float sum = acc[r][1];
#pragma unroll
        for (int i = 1; i < LANES; i++)
            sum = __fadd_rn(sum, __shfl_down_sync(~0u, acc[r][1], i * (32 / LANES)));
        acc[r][0] = __fadd_rn(acc[r][0], sum);
    }
}

/* Four rows of activations: lane i of those that share a row of weights adds up row i (of two
 * lanes, rows 2 i and 2 i + 1; of eight, the first four), in acc[0][0] (and acc[1][0]): its values
 * come to it by a transposition, 4 shuffles instead of 12 for four lanes. */
template <int LANES> static __device__ __forceinline__ void add_last_of_four(float (&acc)[4][4]) {
    constexpr int HIGH = LANES == 8 ? 8 : 16, LOW = HIGH / 2;
    bool high = threadIdx.x & HIGH, low = threadIdx.x & LOW;
    float keep[2], got[2];
#pragma unroll
    for (int i = 0; i < 2; i++) { /* rows 2, 3 to the upper lanes, 0, 1 to the lower ones */
        keep[i] = high ? acc[i + 2][1] : acc[i][1];
        got[i] = __shfl_xor_sync(~0u, high ? acc[i][1] : acc[i + 2][1], HIGH);
    }
    if (LANES == 2) {
        acc[0][0] = __fadd_rn(acc[0][0], __fadd_rn(keep[0], got[0]));
        acc[1][0] = __fadd_rn(acc[1][0], __fadd_rn(keep[1], got[1]));
        return;
    }
    /* Of lanes i, i ^ 2, i ^ 1, i ^ 3; then by their number. */
    float a = low ? keep[1] : keep[0], b = low ? got[1] : got[0];
    float c = __shfl_xor_sync(~0u, low ? keep[0] : keep[1], LOW);
    float d = __shfl_xor_sync(~0u, low ? got[0] : got[1], LOW);
    float even[2] = {low ? c : a, low ? d : b}, odd[2] = {low ? a : c, low ? b : d};
    float v[4] = {high ? even[1] : even[0], high ? odd[1] : odd[0], high ? even[0] : even[1],
                  high ? odd[0] : odd[1]};
    float sum = __fadd_rn(__fadd_rn(__fadd_rn(v[0], v[1]), v[2]), v[3]);
    if (LANES == 8)
#pragma unroll
        for (int i = 0; i < 4; i++) /* of lanes 4 to 7 */
            sum = __fadd_rn(sum, __shfl_down_sync(~0u, v[i], 16));
    acc[0][0] = __fadd_rn(acc[0][0], sum);
}

/* At a task's end: all four sums to the lanes that store them. */
static __device__ __forceinline__ void gather_four(uint32_t row_lanes, float (&acc)[4][4]) {
    uint32_t tile_rows = 32 / row_lanes, row = threadIdx.x % tile_rows;
    float first = acc[0][0], second = acc[1][0];
#pragma unroll
    for (uint32_t r = 0; r < 4; r++)
        acc[r][0] = row_lanes == 2 ? __shfl_sync(~0u, r % 2 ? second : first, row + r / 2 * 16)
                                   : __shfl_sync(~0u, first, row + r * tile_rows);
}

/* int8 types: acc[r][0] is the row's sum so far (in the lane of the row's first columns),
 * acc[r][1] the lane's value of the latest K block. It is reduced a K block late, while the next
 * one's first shared loads are in flight. */
template <int R>
static __device__ __forceinline__ void add_last_kblock(const struct lane_share &own,
                                                       float (&acc)[R][4]) {
    if (R == 1) {
        acc[0][0] = __fadd_rn(acc[0][0], add_lanes_in_order(acc[0][1], own.row_lanes));
        return;
    }
    if constexpr (R == 4) {
        if (own.row_lanes == 4)
            add_last_of_four<4>(acc);
        else if (own.row_lanes == 2)
            add_last_of_four<2>(acc);
        else
            add_last_of_four<8>(acc);
        return;
    }
    if (own.row_lanes == 4)
        add_last_of_lanes<R, 4>(acc);
    else if (own.row_lanes == 2)
        add_last_of_lanes<R, 2>(acc);
    else
        add_last_of_lanes<R, 8>(acc);
}

/* The same of Q8_0, where every second lane has -0. */
template <int R>
static __device__ __forceinline__ void add_last_q8_0(const struct lane_share &own,
                                                     float (&acc)[R][4]) {
    if (R == 1)
        acc[0][0] = __fadd_rn(acc[0][0], add_lanes_in_order(acc[0][1], max(own.row_lanes / 2, 2u)));
    else
        add_last_kblock<R>(own, acc);
}

/* sum of min[i] * sums[i]: four sums that fit 16 bits, four mins of 6 bits. */
static __device__ __forceinline__ int dot_mins(uint4 sums, uint32_t mins) {
    int low = __dp2a_lo((int)__byte_perm(sums.x, sums.y, 0x5410), (int)mins, 0);
    return __dp2a_hi((int)__byte_perm(sums.z, sums.w, 0x5410), (int)mins, low);
}

/* d * sum - dmin * offset. */
static __device__ __forceinline__ float scale_and_offset(float2 d, int sum, int offset) {
    return __fmaf_rn(-d.y, (float)offset, __fmul_rn(d.x, (float)sum));
}

/* Q4_K and Q5_K. x: spans (of a lane) before this K block; the lane has columns 128 (x + index) ...
 * The high nibbles of Q4_K stay in place: 16 times too large, exact after the shift. */
template <int R, bool IS_Q5>
static __device__ __forceinline__ void dot_q4_k(const uint8_t *stage, const struct qact_view &a,
                                                const struct lane_share &own, uint32_t x,
                                                float (&acc)[R][4]) {
    uint32_t lane = threadIdx.x % 32, acts = own.acts + x * 16;
    const uint8_t *scales = stage + (IS_Q5 ? TILE_Q5_SCALES : TILE_Q4_SCALES);
    uint32_t s = ((const uint32_t *)scales)[lane];
    uint32_t n = ((const uint16_t *)(scales + TILE_MINS))[lane];
    uint32_t dd = *(const uint32_t *)(scales + TILE_D + own.d_at);
    uint4 high = IS_Q5 ? ((const uint4 *)(stage + TILE_HIGH_BITS))[lane] : make_uint4(0, 0, 0, 0);
    uint32_t mins = (n & 0x0f0fu) | (n << 12 & 0x0f0f0000u) | (s >> 2 & 0x30303030u);
    float2 d = half2_to_float2(dd);
    int sum[R] = {};
    add_last_kblock<R>(own, acc);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 w = ((const uint4 *)stage)[i * 32 + lane];
        uint32_t lo[4], hi[4], bits = word(high, i);
        int scale = (int)__byte_perm(s & 0x3f3f3f3fu, 0, 0x4440 + i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b = word(w, j);
            lo[j] = b & 0x0f0f0f0fu;
            hi[j] = b & 0xf0f0f0f0u;
            if (IS_Q5) {
                lo[j] |= (bits >> j & 0x01010101u) << 4;
                hi[j] = (b >> 4 & 0x0f0f0f0fu) | (bits >> (4 + j) & 0x01010101u) << 4;
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint32_t row = acts + r * a.stride;
            uint4 y = act_int8x16(a, row, 2 * i), z = act_int8x16(a, row, 2 * i + 1);
            int low = 0, high16 = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                low = dp4a_us(lo[j], word(y, j), low);
                high16 = dp4a_us(hi[j], word(z, j), high16);
            }
            sum[r] += scale * (low + (IS_Q5 ? high16 : high16 >> 4));
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint32_t row = acts + r * a.stride;
        acc[r][1] = __fmul_rn(act_scale(a, row, 0),
                              scale_and_offset(d, sum[r], dot_mins(act_sums(a, row), mins)));
    }
}

/* Six-bit quants are moved to the upper bits of a byte, which signs them: sums are 4 times too
 * large, exact after the shift. */
template <int R>
static __device__ __forceinline__ void dot_q6_k(const uint8_t *stage, const struct qact_view &a,
                                                const struct lane_share &own, uint32_t x,
                                                float (&acc)[R][4]) {
    uint32_t lane = threadIdx.x % 32, acts = own.acts + x * 16;
    uint2 scales = ((const uint2 *)(stage + TILE_Q6_SCALES))[lane];
    float d = __half2float(*(const __half *)(stage + TILE_Q6_D + own.d_at / 2));
    int sum[R] = {};
    add_last_kblock<R>(own, acc);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 w = ((const uint4 *)stage)[i * 32 + lane];
        uint2 h = ((const uint2 *)(stage + TILE_HIGH_BITS + i / 2 * 512))[lane * 2 + i % 2];
        uint32_t lo[4], hi[4], pair = (i / 2 ? scales.y : scales.x) >> (i % 2 * 16);
        int s0 = (int8_t)(pair & 255), s1 = (int8_t)(pair >> 8 & 255);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            lo[j] = (word(w, j) << 2 & 0x3c3c3c3cu) | (h.x << (6 - 2 * j) & 0xc0c0c0c0u);
            hi[j] = (word(w, j) >> 2 & 0x3c3c3c3cu) | (h.y << (6 - 2 * j) & 0xc0c0c0c0u);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint32_t row = acts + r * a.stride;
            uint4 y = act_int8x16(a, row, 2 * i), z = act_int8x16(a, row, 2 * i + 1);
            int low = 0, high = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                low = dp4a_ss(lo[j], word(y, j), low);
                high = dp4a_ss(hi[j], word(z, j), high);
            }
            sum[r] += low * s0 + high * s1;
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        acc[r][1] =
            __fmul_rn(act_scale(a, acts + r * a.stride, 0), __fmul_rn(d, (float)(sum[r] >> 2)));
}

/* A lane has 64 columns: those of planes 0 to 3, or of planes 4 to 7, of 128, whose sum is made in
 * the first of these two lanes; the other one's value is -0, which changes nothing. */
template <int R>
static __device__ __forceinline__ void dot_q8_0(const uint8_t *stage, const struct qact_view &a,
                                                const struct lane_share &own, uint32_t x,
                                                float (&acc)[R][4]) {
    uint32_t lane = threadIdx.x % 32, half = (x + own.index) % 2;
    uint32_t acts = a.addr + (x + own.index) / 2 * 16;
    float2 d = half2_to_float2(((const uint32_t *)(stage + TILE_HIGH_BITS))[lane]);
    int dot[R][2] = {};
    add_last_q8_0<R>(own, acc);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 w = ((const uint4 *)stage)[i * 32 + lane];
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint4 y = act_int8x16(a, acts + r * a.stride + half * a.planes[4], i);
#pragma unroll
            for (int j = 0; j < 4; j++)
                dot[r][i / 2] = dp4a_ss(word(w, j), word(y, j), dot[r][i / 2]);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float as = act_scale(a, acts + r * a.stride, 0);
        float x0 = (float)dot[r][0], x1 = (float)dot[r][1];
        float t = __fmaf_rn(d.y, x1, __fmul_rn(d.x, x0));
        t = __shfl_down_sync(~0u, t, 32u >> __popc(own.row_lanes - 1));
        t = __fmaf_rn(d.y, x1, __fmaf_rn(d.x, x0, t));
        t = __fmul_rn(as, t); /* no branch */
        acc[r][1] = half ? -0.0f : t;
    }
}

static __device__ __forceinline__ float dot_f32x4(float4 w, float4 x, float acc) {
    acc = __fmaf_rn(w.x, x.x, acc);
    acc = __fmaf_rn(w.y, x.y, acc);
    acc = __fmaf_rn(w.z, x.z, acc);
    return __fmaf_rn(w.w, x.w, acc);
}

/* F32: 4 rows by 4 columns. act(r): the lane's columns of row r. */
template <int R, class ACT>
static __device__ __forceinline__ void dot_f32_with(const uint8_t *stage, ACT act,
                                                    float (&acc)[R][4]) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int row = 0; row < 4; row++) {
        float4 w = ((const float4 *)stage)[row * 32 + lane];
#pragma unroll
        for (int r = 0; r < R; r++)
            acc[r][row] = dot_f32x4(w, act(r), acc[r][row]);
    }
}

template <int SET, int R>
static __device__ __forceinline__ void dot_f32(const uint8_t *stage, const struct qact_view &a,
                                               uint32_t c, float (&acc)[R][4]) {
    dot_f32_with<R>(
        stage, [&](int r) { return act_f32x4<SET>(a, r, c); }, acc);
}

/* Activations of F32 segments from global memory (p.f32_from_global), loaded a K block ahead.
 * Beside int8 segments F32 ones are few rows of weights; f32 values in the qacts would take 4 bytes
 * a column and row of pipeline from every block. */
template <int R> struct global_acts { float4 x[R], norm; };

template <int R>
static __device__ __forceinline__ void load_global_acts(const struct project_params &p,
                                                        uint32_t first_row, uint32_t c,
                                                        struct global_acts<R> &a) {
#pragma unroll
    for (int r = 0; r < R; r++)
        a.x[r] = __ldcg((const float4 *)(p.in.x + (uint64_t)min(first_row + r, p.row_limit - 1) *
                                                      p.in.x_stride) +
                        c);
    if (p.in.prologue == PROLOGUE_NORM)
        a.norm = __ldcg((const float4 *)p.in.norm + c);
}

static __device__ __forceinline__ float4 apply_norm_weight(const struct project_params &p, float4 x,
                                                           float4 norm) {
    return p.in.prologue == PROLOGUE_NORM ? mul(x, norm) : x;
}

template <int R>
static __device__ __forceinline__ void
dot_f32_global(const struct project_params &p, const uint8_t *stage, const struct global_acts<R> &a,
               float (&acc)[R][4]) {
    dot_f32_with<R>(
        stage, [&](int r) { return apply_norm_weight(p, a.x[r], a.norm); }, acc);
}

/* The K block in `stage`, x spans of a lane from the tile's first column. BF16 and F16 are not
 * here: project_bf16.cuh. */
template <int SET, int R>
static __device__ __forceinline__ void
dot_kblock(uint32_t type, const uint8_t *stage, const struct qact_view &a, uint32_t x,
           const struct lane_share &own, float (&acc)[R][4]) {
    if (SET == IS_Q4_K || (SET & IS_Q4_K && type == IS_Q4_K)) {
        dot_q4_k<R, false>(stage, a, own, x, acc);
    } else if (SET == IS_Q6_K || (SET & IS_Q6_K && type == IS_Q6_K)) {
        dot_q6_k<R>(stage, a, own, x, acc);
    } else if (SET == IS_F32 || (SET & IS_F32 && type == IS_F32)) {
        dot_f32<SET, R>(stage, a, x + own.index, acc);
    } else if (SET == IS_Q8_0 || (SET & IS_Q8_0 && type == IS_Q8_0)) {
        dot_q8_0<R>(stage, a, own, x, acc);
    } else if (SET & IS_Q5_K) {
        dot_q4_k<R, true>(stage, a, own, x, acc);
    }
}

/* ---- sums of a task ----------------------------------------------------------------------- */

/* f32 activations: transposes and adds 4 rows over row_lanes lanes. Lane i of them ends up with row
 * i % 2 * 2 + i / 2 % 2. */
static __device__ __forceinline__ float reduce_f32_lanes(const float (&v)[4], uint32_t row_lanes,
                                                         uint32_t lane) {
    bool one = lane & 1, two = lane & 2;
    float a = one ? v[2] : v[0], b = one ? v[3] : v[1];
    a = __fadd_rn(a, __shfl_xor_sync(~0u, one ? v[0] : v[2], 1));
    b = __fadd_rn(b, __shfl_xor_sync(~0u, one ? v[1] : v[3], 1));
    float s = __fadd_rn(two ? b : a, __shfl_xor_sync(~0u, two ? a : b, 2));
    s = __fadd_rn(s, __shfl_xor_sync(~0u, s, 4));
    if (row_lanes > 8)
        s = __fadd_rn(s, __shfl_xor_sync(~0u, s, 8));
    if (row_lanes > 16)
        s = __fadd_rn(s, __shfl_xor_sync(~0u, s, 16));
    return s;
}

/* The row of the tile whose sum this lane stores at a task's end; ~0: another lane does. */
template <int SET>
static __device__ __forceinline__ uint32_t stored_row(uint32_t type, uint32_t lane_shift) {
    uint32_t lane = threadIdx.x % 32;
    if (is_bf16<SET>(type))
        return lane < 128u >> lane_shift ? lane : ~0u;
    if (is_int8<SET>(type))
        return lane < 32u >> lane_shift ? lane : ~0u;
    uint32_t index = lane & ((1u << lane_shift) - 1);
    return index < 4 ? (lane >> lane_shift) * 4 + index % 2 * 2 + index / 2 % 2 : ~0u;
}

/* The task's sums of R rows, in acc[r][0]. */
template <int SET, int R>
static __device__ __forceinline__ void sum_task(uint32_t type, const struct lane_share &own,
                                                float (&acc)[R][4]) {
    if (is_int8<SET>(type)) {
        if (R == 1 && (SET == IS_Q8_0 || (SET & IS_Q8_0 && type == IS_Q8_0)))
            add_last_q8_0<R>(own, acc);
        else
            add_last_kblock<R>(own, acc);
        if constexpr (R == 4)
            gather_four(own.row_lanes, acc);
        return;
    }
    if (is_bf16<SET>(type)) {
        sum_bf16<R>(acc, own.bf16);
        return;
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        acc[r][0] = reduce_f32_lanes(acc[r], own.row_lanes, threadIdx.x % 32);
}

static __device__ __forceinline__ float add_bias(const struct project_segment &s, uint32_t n,
                                                 float v) {
    return s.bias ? __fadd_rn(v, s.bias[n]) : v;
}

/* STORE and ADD. */
static __device__ __forceinline__ void store_result(const struct project_params &p,
                                                    const struct project_segment &s, uint32_t n,
                                                    uint32_t row, float v) {
    float *out = p.out + (uint64_t)row * p.out_stride + s.column + n;
    v = add_bias(s, n, v);
    *out = p.epilogue == EPILOGUE_ADD ? __fadd_rn(*out, v) : v;
}

/* What is done with a result besides storing it: nothing, but in project_lm_head.cu. A branch in
 * the shared kernels for that cost the layers 15 to 25 us a step. */
struct no_lm_head {
    static constexpr bool IS_LM_HEAD = false;
    __device__ void on_logit(const struct project_params &, bool, uint32_t, float,
                             const float *) const {
    }
};

/* Kernels of one row that have no code for LM heads: an SM keeps few instructions near.
 * For Q4_K and Q6_K alone ptxas spills without it. */
template <int SET, int R, class LM_HEAD>
static __device__ __forceinline__ constexpr bool is_layer(void) {
    return R == 1 && SET != IS_ANY && !(SET & IS_F16) && !LM_HEAD::IS_LM_HEAD && SET != IS_Q4_K &&
           SET != IS_Q6_K;
}

/* A task's columns, in spans of a lane, and what its tile is. */
struct task_span {
    uint32_t x, last, type, lane_shift;
};

static __device__ __forceinline__ struct task_span find_span(const struct project_params &p,
                                                             const struct task &t) {
    const struct project_segment &s = p.segments[t.segment];
    uint32_t x = task_first_kblock(s, t.split) << s.lane_shift;
    return {x, x + (task_kblocks(s, t.split) << s.lane_shift), s.type, s.lane_shift};
}

/* All tasks of a warp, t the first. With split-K or SwiGLU, sums go to partials in shared memory:
 * (task, row, row of the tile). */
template <int SET, int R, class LM_HEAD>
static __device__ __forceinline__ void
run_tasks(const struct project_params &p, struct kblock_loader &l, uint32_t warp, uint32_t pipeline,
          uint32_t mbars, struct task t, const struct qact_view &a, const float *factors,
          float *partials, uint32_t first_row, uint32_t n_rows, struct task_span span,
          uint32_t own_stages, struct lane_share own, const LM_HEAD &lm_head) {
    extern __shared__ uint4 shared[];
    uint32_t stage = 0, stages = keeps_early<SET, R>() ? own_stages
                                 : SET & DEEP_PIPELINE ? p.stages
                                                       : 2;
    constexpr bool IS_BULK = is_bulk<SET, R>();
    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), i = warp, phase = 0;
    bool is_direct = !is_layer<SET, R, LM_HEAD>() && p.is_direct;
    for (;;) {
        const struct project_segment &s = p.segments[t.segment];
        if (!keeps_span<SET, R>())
            span = find_span(p, t);
        uint32_t x = span.x, last = span.last, type = span.type;
        if (!keeps_share<SET, R>())
            own = find_lane_share<SET, R>(a, type, span.lane_shift, t.tile);
        bool is_global = R > 1 && SET & IS_F32 && p.f32_from_global && type == IS_F32;
        float acc[R][4] = {};
#pragma unroll 1
        for (; x < last; x += own.row_lanes) {
            uint32_t at = pipeline + stage * p.stage_bytes;
            struct global_acts<R> global;
            if (is_global)
                load_global_acts<R>(p, first_row, x + own.index, global);
            /* BF16 of few rows: activations before the weights are waited for, the first step
             * before the stage is filled again. */
            constexpr bool IS_F16 = (SET & ::IS_F16) != 0, IS_EAGER = R == 1 && !(SET & ~IS_SPLIT);
            struct bf16_acts<R> acts[2];
            if (IS_EAGER && is_bf16<SET>(type))
#pragma unroll
                for (int half = 0; half < 2; half++)
                    load_bf16_acts<R>(acts[half], x * 8, half, own.bf16, a.stride);
            if (IS_BULK) {
                mbarrier_wait(mbars + stage * 8, phase);
            } else {
                cp_async_wait_stages(stages);
                __syncwarp();
            }
            bf16_weights weights;
            if (is_bf16<SET>(type)) {
                load_bf16_weights(weights, base + at, own.bf16);
                if (IS_EAGER)
                    mma_bf16_step<R, IS_F16>(acc, weights[0], acts[0], false, own.bf16);
            } else if (is_global) {
                dot_f32_global<R>(p, (const uint8_t *)shared + at, global, acc);
            } else {
                dot_kblock<SET, R>(type, (const uint8_t *)shared + at, a, x, own, acc);
            }
            __syncwarp();
            load_kblock<SET, R>(p, l, base + at, mbars + stage * 8,
                                is_bf16<SET>(type) ? none_of(weights) : 0);
            if (is_bf16<SET>(type)) { /* the chain is long: the stage is filled meanwhile */
                if (IS_EAGER) {
                    mma_bf16_step<R, IS_F16>(acc, weights[1], acts[0], true, own.bf16);
                    mma_bf16_step<R, IS_F16>(acc, weights[2], acts[1], false, own.bf16);
                    mma_bf16_step<R, IS_F16>(acc, weights[3], acts[1], true, own.bf16);
                } else {
                    dot_bf16<R, IS_F16>(weights, x * 8, own.bf16, a.stride, acc);
                }
            }
            if (has_extra_stages<SET, R>() && !keeps_early<SET, R>())
                stages = ld_shared_u32(mbars - 8);
            stage = stage + 1 == stages ? 0 : stage + 1;
            phase ^= stage == 0;
        }
        uint32_t row = stored_row<SET>(type, s.lane_shift), n = (t.tile << s.row_shift) + row;
        bool stores = row != ~0u, are_stripes = is_bf16<SET>(type) && !is_direct;
        if (are_stripes)
            store_bf16_stripes<R>(acc, own.bf16, partials + i * R * PROJECT_TILE_ROWS);
        else
            sum_task<SET, R>(type, own, acc);
#pragma unroll
        for (int r = 0; r < R && !are_stripes; r++) {
            float v = acc[r][0];
            if (!is_direct) {
                if (stores)
                    partials[(r + i * R) * PROJECT_TILE_ROWS + row] = v;
            } else if (stores && n < s.n && first_row + r < n_rows) {
                store_result(p, s, n, first_row + r, __fmul_rn(v, factors[r]));
            }
            if (LM_HEAD::IS_LM_HEAD && is_direct)
                lm_head.on_logit(p, stores && n < s.n && n_rows > 0, n,
                                 n < s.n ? add_bias(s, n, __fmul_rn(v, factors[0])) : 0,
                                 factors + 1);
        }
        i += p.task_warps;
        if (i >= l.n_tasks)
            return;
        find_task<has_shares<SET, R>()>(p, i, t);
        if (keeps_span<SET, R>())
            span = find_span(p, t);
        if (keeps_share<SET, R>())
            own = find_lane_share<SET, R>(a, span.type, span.lane_shift, t.tile);
    }
}

/* ---- combining partial sums --------------------------------------------------------------- */

/* One output of the thread block, for one row. Packed: registers are few. */
struct result {
    uint32_t column;   /* of the output row, later of all rows together; NO_RESULT: none */
    uint32_t partials; /* index of the first split's with R = 1; of `up` in the upper 16 bits */
    uint32_t splits;   /* bits 0-7; of `up` bits 8-15; the segment from bit 16 */
};

enum : uint32_t { NO_RESULT = ~0u };

/* Output e of this thread block: segment by segment, tile by tile. SwiGLU: of gate and up. */
template <bool HAS_SHARES>
static __device__ __forceinline__ struct result find_result(const struct project_params &p,
                                                            uint32_t e) {
    struct block_tiles<HAS_SHARES> block(p);
    uint32_t task = 0;
    bool is_swiglu = p.epilogue == EPILOGUE_SWIGLU;
    struct result out = {NO_RESULT, 0, 0};
#pragma unroll 1
    for (uint32_t g = 0; g < (is_swiglu ? 1 : p.n_segments); g++) {
        const struct project_segment &s = p.segments[g], &up = p.segments[1];
        struct segment_range range = block.of(p, g);
        uint32_t tiles = block.count(range, 1), tile = e >> s.row_shift;
        if (tile < tiles) {
            uint32_t n = (block.first(s, range) << s.row_shift) + e,
                     row = e - (tile << s.row_shift);
            out.column = n < s.n ? s.column + n : NO_RESULT;
            out.partials = (task + tile * s.splits) * PROJECT_TILE_ROWS + row;
            out.splits = s.splits | g << 16;
            if (is_swiglu) {
                out.partials |= ((tiles * s.splits + tile * up.splits) * PROJECT_TILE_ROWS + row)
                                << 16;
                out.splits |= up.splits << 8;
            }
            break;
        }
        e -= tiles << s.row_shift;
        task += tiles * s.splits;
    }
    return out;
}

template <int SET, int R>
static __device__ __forceinline__ float add_splits(const struct project_segment &s,
                                                   const float *partials, uint32_t first,
                                                   uint32_t r, uint32_t splits) {
    float v = 0;
    partials += first % PROJECT_TILE_ROWS + (r + first / PROJECT_TILE_ROWS * R) * PROJECT_TILE_ROWS;
#pragma unroll 1
    for (; splits; splits--, partials += R * PROJECT_TILE_ROWS)
        v = is_bf16<SET>(s.type) ? add_bf16_stripes(v, partials, s.row_shift)
                                 : __fadd_rn(v, *partials);
    return v;
}

static __device__ __forceinline__ float add_bias_of(const struct project_params &p,
                                                    const struct result &at, uint32_t segment,
                                                    uint32_t row_at, float v) {
    const struct project_segment &s = p.segments[segment];
    return add_bias(s, at.column - row_at - s.column, v);
}

/* residual: the output's value before, with EPILOGUE_ADD. row_at: what was added to at.column. */
template <int SET, int R>
static __device__ __forceinline__ float
combine_result(const struct project_params &p, const struct result &at, const float *partials,
               uint32_t r, float factor, float residual, uint32_t row_at) {
    float v = __fmul_rn(add_splits<SET, R>(p.segments[at.splits >> 16], partials,
                                           at.partials & 0xffff, r, at.splits & 255),
                        factor);
    if (p.has_bias)
        v = add_bias_of(p, at, at.splits >> 16, row_at, v);
    if (p.epilogue == EPILOGUE_ADD)
        v = __fadd_rn(residual, v);
    if (p.epilogue == EPILOGUE_SWIGLU) {
        float up = __fmul_rn(
            add_splits<SET, R>(p.segments[1], partials, at.partials >> 16, r, at.splits >> 8 & 255),
            factor);
        if (p.has_bias)
            up = add_bias_of(p, at, 1, row_at, up);
        v = swiglu(v, up);
    }
    return v;
}

/* ---- the kernel --------------------------------------------------------------------------- */

/* Rows quantized by project_quantize, and their sums of squares, to shared memory. By one lane. */
template <int R>
static __device__ __forceinline__ void load_qacts(const struct project_params &p,
                                                  uint32_t first_row, const uint8_t *qacts,
                                                  const float *squares, uint32_t mbar) {
    bool is_norm = p.in.prologue == PROLOGUE_NORM;
    uint32_t groups = p.in.k / PROJECT_GROUP, bytes = R * p.qact_bytes;
    uint32_t squares_bytes = is_norm ? R * groups * 4 : 0;
    mbarrier_expect_tx(mbar, bytes + squares_bytes);
    cp_async_bulk(smem_addr(qacts), p.qacts + (uint64_t)first_row * p.qact_bytes, bytes, mbar);
    if (is_norm)
        cp_async_bulk(smem_addr(squares), (const uint8_t *)(p.squares + first_row * groups),
                      squares_bytes, mbar);
}

template <int SET, int R>
static __device__ __forceinline__ void store_factors(const struct project_params &p,
                                                     const float *squares, const uint8_t *qacts,
                                                     float *factors) {
#pragma unroll(R > 4 ? 1 : R)
    for (uint32_t r = 0; r < R; r++) {
        float factor = row_factor(p.in, squares + r * (p.in.k / PROJECT_GROUP));
        if (SET & IS_F16)
            factor = __fmul_rn(factor, *f16_down(qacts + r * p.qact_bytes, p.in.k));
        factors[r] = factor;
    }
}

/* A row that waits as f32 in its qact becomes parts there. */
static __device__ __forceinline__ void split_f16(const struct project_params &p, uint8_t *qact,
                                                 const uint32_t *maxima) {
    __syncthreads();
    float down =
        split_f16_row(p.in.k, (const float4 *)qact, maxima,
                      [&](uint32_t i, const struct bf16_parts &v, const struct bf16_parts &w) {
                          store_bf16_parts(qact, i, v, w);
                      });
    if (threadIdx.x == 0)
        *f16_down(qact, p.in.k) = down;
}

/* All that does not depend on earlier kernels is done before pdl_wait: the pipeline, the norm
 * weights, the first task, the thread's first result. The factors are computed by the last warp,
 * which often has no task, before its first K block: the weights are in flight anyway. */
template <int SET, int R, class LM_HEAD = struct no_lm_head>
static __device__ __forceinline__ void project_gemv(const struct project_params &p,
                                                    const LM_HEAD &lm_head = LM_HEAD()) {
    extern __shared__ uint4 shared[];
    constexpr bool IS_FUSED = R == 1; /* the row is quantized here */
    constexpr bool IS_BULK = is_bulk<SET, R>();
    constexpr bool ALL_VEC4 = SET != IS_ANY && !(SET & IS_F16) && !LM_HEAD::IS_LM_HEAD;
    constexpr bool IS_LAYER = is_layer<SET, R, LM_HEAD>();
    constexpr bool IS_EARLY = keeps_early<SET, R>() && !LM_HEAD::IS_LM_HEAD;
    pdl_launch_dependents();
    uint8_t *base = (uint8_t *)shared, *qacts = base + p.qact_at;
    float *partials = (float *)(base + p.partials_at), *red = (float *)(base + p.red_at);
    float *factors = red - PROJECT_MAX_ROWS;
    uint32_t *maxima = (uint32_t *)factors - PROJECT_WARPS; /* of F16 */
    uint32_t warp = warp_uniform(threadIdx.x / 32), first_row = blockIdx.y * R, n_rows = 1;
    uint32_t pipeline = warp * p.stages * p.stage_bytes,
             base_addr = (uint32_t)__cvta_generic_to_shared(shared);
    struct kblock_loader l = {NULL, 0, warp, count_tasks<has_shares<SET, R>()>(p), 0};
    struct task t;
    bool has_task = warp < p.task_warps && warp < l.n_tasks;
    uint32_t qacts_mbar = base_addr + p.mbars_at, stages = p.stages;
    uint32_t mbars = qacts_mbar + (IS_FUSED ? 0 : 8) + warp * stages * 8;
    if (has_extra_stages<SET, R>()) {
        stages += warp < p.extra_stages;
        pipeline += min(warp, p.extra_stages) * p.stage_bytes;
        mbars += min(warp, p.extra_stages) * 8 + warp * 8 + 8;
        if (keeps_early<SET, R>())
            stages = warp_uniform(stages);
        else
            st_shared_u32(mbars - 8, stages);
    }
    if (!IS_FUSED) {
        if (warp == 0)
            mbarrier_init_stages(qacts_mbar, 1);
        __syncthreads();
    }
    struct task_span span = {};
    if (has_task) {
        find_task<has_shares<SET, R>()>(p, warp, t);
        start_task<SET, IS_BULK>(p, l, t);
        if (IS_EARLY && keeps_span<SET, R>())
            span = find_span(p, t);
        fill_pipeline<SET, R>(p, l, stages, base_addr + pipeline, mbars);
    }
    struct col8 weights = {};
    struct row_threads threads = row_threads_of(p.in);
    if (IS_FUSED)
        load_first_norm_weights<ALL_VEC4>(threads, p.in, weights);
    /* A row has threads_per_row threads to combine its results. */
    uint32_t threads_per_row = blockDim.x / R;
    uint32_t r = R == 1 ? 0 : threadIdx.x / threads_per_row;
    uint32_t e = threadIdx.x - r * threads_per_row;
    struct result at = {NO_RESULT, 0, 0};
    if (e < p.max_results)
        at = find_result<has_shares<SET, R>()>(p, e);
    /* The row's place is in `out`, or in at.column, so that it need not be found out again. */
    auto row_at = [&](bool is_in_column) {
        return IS_EARLY == is_in_column ? (first_row + r) * p.out_stride : 0;
    };
    struct early_load residual = {};
    if (IS_EARLY) {
        at.column = at.column != NO_RESULT ? at.column + row_at(true) : NO_RESULT;
        residual.at = p.out + (at.column != NO_RESULT ? at.column : 0);
        residual.is_wanted = at.column != NO_RESULT && p.epilogue == EPILOGUE_ADD;
        if (keeps_span<SET, R>())
            span = {warp_uniform(span.x), warp_uniform(span.last), warp_uniform(span.type),
                    warp_uniform(span.lane_shift)};
    }
    struct lane_share own = {};
    if (IS_EARLY && keeps_share<SET, R>()) {
        struct qact_view a = {};
        a.addr = smem_addr(qacts);
        own = find_lane_share<SET, R>(a, span.type, span.lane_shift, t.tile);
        residual.known = own.acts | own.d_at;
    }
    auto may_lack_rows = [&]() { return p.row_limit > 1 || (!IS_LAYER && p.in.is_lm_head); };
    bool is_direct = !IS_LAYER && p.is_direct;
    bool counts_rows = IS_EARLY && warp_uniform(may_lack_rows());
    if (IS_FUSED) {
        struct row_source source = {first_row, p.row_limit, true};
        if constexpr ((SET & IS_F16) != 0) {
            uint32_t max_bits = 0;
            struct f16_row to = {(float4 *)qacts, &max_bits};
            quantize_row<SET, ALL_VEC4>(threads, p.io, p.in, source, weights, to, red);
            store_warp_max(max_bits, maxima);
        } else if (IS_EARLY) {
            quantize_row<SET, ALL_VEC4>(threads, p.io, p.in, source, weights, qacts, red, residual);
        } else {
            struct no_early_load<IS_LAYER> none = {};
            quantize_row<SET, ALL_VEC4>(threads, p.io, p.in, source, weights, qacts, red, none);
        }
        if (SET & IS_F16)
            split_f16(p, qacts, maxima);
        if (IS_EARLY ? counts_rows : may_lack_rows())
            n_rows = count_rows(p.io, p.in);
    } else {
        pdl_wait(p.io);
        if (threadIdx.x == 0)
            load_qacts<R>(p, first_row, qacts, red, qacts_mbar);
        n_rows = count_rows(p.io, p.in);
        bulk_wait(qacts_mbar, 0);
        if (first_row >= n_rows) {
            if (has_task)
                wait_first_stages<SET, R>(p, t, warp, l.n_tasks, mbars);
            return;
        }
    }
    if (!IS_EARLY || counts_rows)
        at.column = first_row + r < n_rows ? at.column : NO_RESULT;
    float *out = p.out + row_at(false);
    if (!IS_EARLY && at.column != NO_RESULT && p.epilogue == EPILOGUE_ADD)
        residual.value = __ldcg(out + at.column);
    __syncthreads();
    struct qact_view a = view_qact(p.in, qacts, p.qact_bytes);
    if (warp == blockDim.x / 32 - 1)
        store_factors<SET, R>(p, red, qacts, factors);
    if (LM_HEAD::IS_LM_HEAD && threadIdx.x == 0)
        factors[1] = 0; /* the thread block's largest logit, as a key: none yet */
    if (is_direct)
        __syncthreads();
    if (!IS_EARLY && keeps_span<SET, R>() && has_task)
        span = find_span(p, t);
    if (!IS_EARLY && keeps_share<SET, R>() && has_task)
        own = find_lane_share<SET, R>(a, span.type, span.lane_shift, t.tile);
    if (has_task)
        run_tasks<SET, R>(p, l, warp, pipeline, mbars, t, a, factors, partials, first_row, n_rows,
                          span, stages, own, lm_head);
    if (is_direct)
        return;
    __syncthreads();
    for (;;) {
        if (at.column != NO_RESULT) {
            float v = combine_result<SET, R>(p, at, partials, r, factors[r], residual.value,
                                             row_at(true));
            out[at.column] = v;
            lm_head.on_logit(p, true, at.column, v, factors + 1);
        }
        e += threads_per_row;
        if (e >= p.max_results || first_row + r >= n_rows)
            return;
        at = find_result<has_shares<SET, R>()>(p, e);
        if (at.column != NO_RESULT)
            at.column += row_at(true);
        if (at.column != NO_RESULT && p.epilogue == EPILOGUE_ADD)
            residual.value = __ldcg(out + at.column);
    }
}

/* Kernels project_gemv_<rows>_<set>, by sets of types: project.c puts the names together. */
#define PROJECT_GEMV(ROWS, REGISTERS, SET_NAME, SET)                                               \
    extern "C" __global__ void __maxnreg__(REGISTERS)                                              \
        project_gemv_##ROWS##_##SET_NAME(const __grid_constant__ struct project_params p) {        \
        project_gemv<SET, ROWS>(p);                                                                \
    }

/* Types with f32 activations, and the fallback for every set. */
#define PROJECT_GEMV_FLOAT(...)                                                                    \
    PROJECT_GEMV(__VA_ARGS__, bf16, IS_BF16)                                                       \
    PROJECT_GEMV(__VA_ARGS__, bf16_f32, IS_BF16 | IS_F32)                                          \
    PROJECT_GEMV(__VA_ARGS__, f16, IS_F16)                                                         \
    PROJECT_GEMV(__VA_ARGS__, f16_f32, IS_F16 | IS_F32)                                            \
    PROJECT_GEMV(__VA_ARGS__, all, IS_ANY)

/* Q4_K and Q6_K together; below 9.0 also with F32. */
#if __CUDA_ARCH__ >= 900
#define PROJECT_GEMV_PAIRS(...)                                                                    \
    PROJECT_GEMV(__VA_ARGS__, q4_q6, IS_Q4_K | IS_Q6_K)                                            \
    PROJECT_GEMV(__VA_ARGS__, q4_q6_f32, IS_Q4_K | IS_Q6_K | IS_F32)                               \
    PROJECT_GEMV(__VA_ARGS__, q8, IS_Q8_0)                                                         \
    PROJECT_GEMV(__VA_ARGS__, q8_f32, IS_Q8_0 | IS_F32)                                            \
    PROJECT_GEMV_FLOAT(__VA_ARGS__)

#define PROJECT_GEMV_ALL(...)                                                                      \
    PROJECT_GEMV(__VA_ARGS__, q4, IS_Q4_K)                                                         \
    PROJECT_GEMV(__VA_ARGS__, q6, IS_Q6_K)                                                         \
    PROJECT_GEMV(__VA_ARGS__, q4_f32, IS_Q4_K | IS_F32)                                            \
    PROJECT_GEMV_PAIRS(__VA_ARGS__)
#else
#define PROJECT_GEMV_PAIRS(...)                                                                    \
    PROJECT_GEMV(__VA_ARGS__, q4_q6_f32, IS_Q4_K | IS_Q6_K | IS_F32)                               \
    PROJECT_GEMV(__VA_ARGS__, q8_f32, IS_Q8_0 | IS_F32)                                            \
    PROJECT_GEMV_FLOAT(__VA_ARGS__)
#define PROJECT_GEMV_ALL PROJECT_GEMV_PAIRS
#endif

#endif
