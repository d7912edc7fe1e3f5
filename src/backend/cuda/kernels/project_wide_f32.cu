/* project_wide_f32.cu - the F32 segments of a wide PROJECT.
 *
 * Alpha and beta of the delta rule: few weight rows, f32 activations. A block has ROWS rows of
 * activations, a warp of it a tile of 4 weight rows for all of them. Columns are in shared memory
 * 1024 at a time, multiplied by the norm's weights; AHEAD K blocks of weights are in flight. The
 * order of sums is dot_f32_global's.
 *
 * Bytes: the tiles of a block's warps once a block from L2, and its rows once. */
#include "backend/cuda/kernels/project_gemv.cuh"
#include "backend/cuda/ops/project_wide.h"

template <int ROWS>
static __device__ __forceinline__ void load_f32_columns(const struct wide_f32_params &p,
                                                        uint32_t first_row, uint32_t n_rows,
                                                        uint32_t column, float4 *to) {
    uint32_t quads = min(WIDE_F32_COLUMNS, p.in.k - column) / 4;
    for (uint32_t i = threadIdx.x; i < ROWS * quads; i += blockDim.x) {
        uint32_t row = i / quads, c = i - row * quads;
        const float *x = p.in.x + (uint64_t)min(first_row + row, n_rows - 1) * p.in.x_stride;
        float4 v = __ldcg((const float4 *)(x + column) + c);
        if (p.in.prologue == PROLOGUE_NORM)
            v = mul(v, __ldcg((const float4 *)(p.in.norm + column) + c));
        if (p.in.is_split)
            v = join_bf16(split_bf16(v));
        to[row * (WIDE_F32_COLUMNS / 4) + c] = v;
    }
}

/* A K block: 4 weight rows by a lane's 4 columns. */
static __device__ __forceinline__ void load_f32_kblock(float4 (&w)[4], const uint8_t *at) {
#pragma unroll
    for (int r = 0; r < 4; r++)
        w[r] = __ldcg((const float4 *)(at + r * 512));
}

template <int ROWS>
static __device__ __forceinline__ void add_f32_kblock(float (&acc)[ROWS][4], const float4 (&w)[4],
                                                      const float4 *columns) {
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        float4 x = columns[row * (WIDE_F32_COLUMNS / 4)];
#pragma unroll
        for (int r = 0; r < 4; r++)
            acc[row][r] = dot_f32x4(w[r], x, acc[row][r]);
    }
}

/* A split is complete: its lanes are added, and it to the splits before. */
template <int ROWS>
static __device__ __forceinline__ void add_f32_split(float (&sum)[ROWS], float (&acc)[ROWS][4]) {
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        sum[row] = __fadd_rn(sum[row], reduce_f32_lanes(acc[row], 32, threadIdx.x % 32));
#pragma unroll
        for (int r = 0; r < 4; r++)
            acc[row][r] = 0;
    }
}

template <int ROWS, int AHEAD>
static __device__ __forceinline__ void project_wide_f32(const struct wide_f32_params &p) {
    extern __shared__ float4 wide_columns[];
    pdl_launch_dependents();
    uint32_t first_row = blockIdx.x * ROWS, lane = threadIdx.x % 32;
    uint32_t tile = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, segment = 0;
    bool has_tile = tile < p.n_tiles;
    while (has_tile && tile >= p.segments[segment].n_tiles)
        tile -= p.segments[segment++].n_tiles;
    const struct project_segment &s = p.segments[segment];
    pdl_wait(p.io);
    uint32_t n_rows = p.io.header->n_rows, split = 0, left = task_kblocks(s, 0);
    if (first_row >= n_rows)
        return;
    const uint8_t *at = s.data + (uint64_t)tile * s.kblocks * s.kblock_bytes + lane * 16;
    float acc[ROWS][4] = {}, sum[ROWS] = {};
#pragma unroll 1
    for (uint32_t column = 0; column < p.in.k; column += WIDE_F32_COLUMNS) {
        uint32_t n = has_tile ? min(WIDE_F32_COLUMNS, p.in.k - column) / 128 : 0;
        float4 w[AHEAD][4];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (i < n)
                load_f32_kblock(w[i], at + i * s.kblock_bytes);
        __syncthreads();
        load_f32_columns<ROWS>(p, first_row, n_rows, column, wide_columns);
        __syncthreads();
#pragma unroll 1
        for (uint32_t k = 0; k < n; k += AHEAD)
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (k + i >= n)
                    break;
                add_f32_kblock<ROWS>(acc, w[i], wide_columns + (k + i) * 32 + lane);
                if (k + i + AHEAD < n)
                    load_f32_kblock(w[i], at + (k + i + AHEAD) * s.kblock_bytes);
                if (--left == 0) {
                    left = ++split < s.splits ? task_kblocks(s, split) : 0;
                    add_f32_split<ROWS>(sum, acc);
                }
            }
        at += n * s.kblock_bytes;
    }
    uint32_t column = tile * WIDE_F32_TILE + lane % 2 * 2 + lane / 2;
    if (!has_tile || lane >= WIDE_F32_TILE || column >= s.n)
        return;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        if (first_row + row >= n_rows)
            return;
        float *out = p.out + (uint64_t)(first_row + row) * p.out_stride + s.column + column;
        float v = __fmul_rn(sum[row], p.factors ? __ldcg(p.factors + first_row + row) : 1);
        v = add_bias(s, column, v);
        *out = p.epilogue == EPILOGUE_ADD ? __fadd_rn(*out, v) : v;
    }
}

/* ---- few rows --------------------------------------------------------------------------------
 *
 * A block has all columns of 4 rows in shared memory and 4 tiles; a warp has one K split of a tile,
 * and loads the split's first K blocks before pdl_wait. us a layer of qwen35-4b on an H200 with 128
 * rows: 5.3; a warp for all splits, columns 1024 at a time, about 12. */

enum { FEW_AHEAD = 5 }; /* K blocks, or float4s of a row, that a thread has in flight */

/* Dynamic shared memory. */
struct few_shared {
    float4 *columns; /* (row, k / 4) */
    float4 *norm;    /* (k / 4) */
    float *sums;     /* (split, tile, row, n) */

    __device__ __forceinline__ few_shared(const struct wide_f32_params &p) {
        extern __shared__ float4 wide_columns[];
        columns = wide_columns;
        norm = columns + WIDE_F32_FEW_ROWS * (p.in.k / 4);
        sums = (float *)(norm + p.in.k / 4);
    }
    __device__ __forceinline__ float *sum(uint32_t split, uint32_t tile, uint32_t row,
                                          uint32_t n) const {
        return sums +
               ((split * WIDE_F32_FEW_TILES + tile) * WIDE_F32_FEW_ROWS + row) * WIDE_F32_TILE + n;
    }
};

/* `n` K blocks, or as many of them as are kept in flight. */
static __device__ __forceinline__ void
load_f32_kblocks(float4 (&w)[FEW_AHEAD][4], const uint8_t *at, uint32_t n, uint32_t kblock_bytes) {
#pragma unroll
    for (int i = 0; i < FEW_AHEAD; i++)
        if (i < n)
            load_f32_kblock(w[i], at + i * kblock_bytes);
}

/* After the norm's weights, which are in shared memory. A warp reads one row. */
static __device__ __forceinline__ void load_few_columns(const struct wide_f32_params &p,
                                                        const struct few_shared &to,
                                                        uint32_t first_row, uint32_t n_rows) {
    uint32_t row = threadIdx.x / 32 % WIDE_F32_FEW_ROWS, quads = p.in.k / 4,
             step = blockDim.x / WIDE_F32_FEW_ROWS;
    const float4 *x =
        (const float4 *)(p.in.x + (uint64_t)min(first_row + row, n_rows - 1) * p.in.x_stride);
#pragma unroll 1
    for (uint32_t c = threadIdx.x / 32 / WIDE_F32_FEW_ROWS * 32 + threadIdx.x % 32; c < quads;
         c += FEW_AHEAD * step) {
        float4 v[FEW_AHEAD];
#pragma unroll
        for (int i = 0; i < FEW_AHEAD; i++)
            v[i] = __ldcg(x + min(c + i * step, quads - 1));
#pragma unroll
        for (int i = 0; i < FEW_AHEAD; i++) {
            uint32_t at = c + i * step;
            if (at >= quads)
                break;
            if (p.in.prologue == PROLOGUE_NORM)
                v[i] = mul(v[i], to.norm[at]);
            if (p.in.is_split)
                v[i] = join_bf16(split_bf16(v[i]));
            to.columns[row * quads + at] = v[i];
        }
    }
}

/* n K blocks from `kblock` on, the first of which are in w. */
static __device__ __forceinline__ void multiply_few(const struct few_shared &s, const uint8_t *from,
                                                    uint32_t bytes, uint32_t quads, uint32_t kblock,
                                                    uint32_t n, float4 (&w)[FEW_AHEAD][4],
                                                    float (&acc)[WIDE_F32_FEW_ROWS][4]) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
    for (;;) {
#pragma unroll
        for (int i = 0; i < FEW_AHEAD; i++)
            if (i < n)
#pragma unroll
                for (int row = 0; row < WIDE_F32_FEW_ROWS; row++) {
                    float4 x = s.columns[row * quads + (kblock + i) * 32 + lane];
#pragma unroll
                    for (int r = 0; r < 4; r++)
                        acc[row][r] = dot_f32x4(w[i][r], x, acc[row][r]);
                }
        if (n <= FEW_AHEAD)
            return;
        n -= FEW_AHEAD, kblock += FEW_AHEAD;
        load_f32_kblocks(w, from + (uint64_t)kblock * bytes, n, bytes);
    }
}

/* The splits of tile `tile` of a segment, the block's `own`-th, added by a warp: a lane a value. */
static __device__ __forceinline__ void store_few(const struct wide_f32_params &p,
                                                 const struct project_segment &s,
                                                 const struct few_shared &shared, uint32_t own,
                                                 uint32_t tile, uint32_t first_row,
                                                 uint32_t n_rows) {
    uint32_t n = threadIdx.x % 4, row = threadIdx.x % 32 / 4, column = tile * WIDE_F32_TILE + n;
    if (row >= WIDE_F32_FEW_ROWS || column >= s.n || first_row + row >= n_rows)
        return;
    float v = 0;
    for (uint32_t i = 0; i < s.splits; i++)
        v = __fadd_rn(v, *shared.sum(i, own, row, n));
    float *out = p.out + (uint64_t)(first_row + row) * p.out_stride + s.column + column;
    v = __fmul_rn(v, p.factors ? __ldcg(p.factors + first_row + row) : 1);
    v = add_bias(s, column, v);
    *out = p.epilogue == EPILOGUE_ADD ? __fadd_rn(*out, v) : v;
}

static __device__ __forceinline__ void project_wide_f32_few(const struct wide_f32_params &p) {
    constexpr uint32_t ROWS = WIDE_F32_FEW_ROWS, TILES = WIDE_F32_FEW_TILES;
    const struct few_shared shared(p);
    pdl_launch_dependents();
    uint32_t first_row = blockIdx.x * ROWS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t own = warp % TILES, tile = blockIdx.y * TILES + own, segment = 0;
    uint32_t split = warp / TILES, split_step = blockDim.x / 32 / TILES, quads = p.in.k / 4;
    bool has_tile = tile < p.n_tiles;
    while (has_tile && tile >= p.segments[segment].n_tiles)
        tile -= p.segments[segment++].n_tiles;
    const struct project_segment &s = p.segments[segment];
    const uint8_t *from = s.data + (uint64_t)tile * s.kblocks * s.kblock_bytes + lane * 16;
    uint32_t bytes = s.kblock_bytes, n = has_tile && split < s.splits ? task_kblocks(s, split) : 0;
    float4 w[FEW_AHEAD][4];
    load_f32_kblocks(w, from + (uint64_t)task_first_kblock(s, split) * bytes, n, bytes);
    for (uint32_t c = threadIdx.x; p.in.prologue == PROLOGUE_NORM && c < quads; c += blockDim.x)
        shared.norm[c] = __ldg((const float4 *)p.in.norm + c);
    __syncthreads();
    pdl_wait(p.io);
    uint32_t n_rows = p.io.header->n_rows;
    if (first_row >= n_rows)
        return;
    load_few_columns(p, shared, first_row, n_rows);
    __syncthreads();
#pragma unroll 1
    while (n) {
        float acc[ROWS][4] = {};
        multiply_few(shared, from, bytes, quads, task_first_kblock(s, split), n, w, acc);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            float v = reduce_f32_lanes(acc[row], 32, lane);
            if (lane < WIDE_F32_TILE)
                *shared.sum(split, own, row, lane % 2 * 2 + lane / 2) = v;
        }
        split += split_step;
        n = split < s.splits ? task_kblocks(s, split) : 0;
        load_f32_kblocks(w, from + (uint64_t)task_first_kblock(s, split) * bytes, n, bytes);
    }
    __syncthreads();
    if (warp < TILES && has_tile)
        store_few(p, s, shared, own, tile, first_row, n_rows);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    project_wide_f32_16(const __grid_constant__ struct wide_f32_params p) {
    project_wide_f32<16, 2>(p);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    project_wide_f32_4(const __grid_constant__ struct wide_f32_params p) {
    project_wide_f32_few(p);
}
