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

extern "C" __global__ void __launch_bounds__(256, 2)
    project_wide_f32_16(const __grid_constant__ struct wide_f32_params p) {
    project_wide_f32<16, 2>(p);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    project_wide_f32_4(const __grid_constant__ struct wide_f32_params p) {
    project_wide_f32<4, 4>(p);
}
