/* project_gemm.h - params of PROJECT on int8 tensor cores: five rows and more.
 *
 *   out[row][n] = epilogue(factor[row] * sum over k of w[n][k] * a[row][k])
 *
 * Weights are the A operand of mma, an M16 tile at a time; activations are B, an n8 tile at a time.
 * An M16 tile is 16 weight rows: one tile of tiles.h, or 2 or 4 side by side; for SwiGLU 8 rows of
 * gate and the same 8 of up, so that one warp has both. A row block is the 8, 16 or 32 rows of
 * activations (1, 2 or 4 n8 tiles) that the thread blocks of one grid y multiply with.
 *
 * A task is a run of K blocks of one M16 tile against a row block, done by one warp, or by two
 * (warps_per_tile) that have half of the rows each. Tasks are divided in one of two ways:
 *
 *   by tiles   a thread block has whole M16 tiles; a task is one of the splits of K, and partial
 *              sums are combined in shared memory
 *   stream-K   where M16 tiles are too few for that; a task is a single K block, tasks are dealt
 *              evenly to all thread blocks in order of K, so that a thread block needs few K slabs
 *              of the activations; partial sums are combined in global memory
 *
 * Either way the last warp to arrive adds the partial sums, in order of K; or, with stream-K, the
 * next kernel, project_gemm_finish. */
#ifndef BACKEND_CUDA_OPS_PROJECT_GEMM_H
#define BACKEND_CUDA_OPS_PROJECT_GEMM_H

#include "backend/cuda/ops/project.h"

enum {
    GEMM_MIN_ROWS = 5, /* with fewer the gemv kernels are faster */
    GEMM_M = 16,       /* weight rows of an M16 tile */
    GEMM_TYPES = IS_Q4_K | IS_Q5_K | IS_Q6_K | IS_Q8_0,
    GEMM_PARTIAL_BYTES = 512, /* of an M16 tile by an n8 tile: 16 a lane */
    GEMM_F32_TILE = 4,        /* F32 segments: weight rows of a tile, */
    GEMM_F32_ROWS = 4,        /* and rows of activations that a thread block takes at once */
    GEMM_MAX_ROWS = 32,       /* of a row block */
    GEMM_FINISH_THREADS = 256,
};

/* The quantized activations of a row block; rows after the bucket's last repeat it. They are stored
 * as K slabs of as many columns as the largest K block has, and each is one bulk copy with an
 * mbarrier of its own (8 rows 3985 to 4051 tok/s, 32 rows 8850 to 9066, qwen35-4b). A slab:
 *
 *   int8     (rows, columns + 16): padded so that ldmatrix reads eight rows from different banks
 *   scales   (columns / 128, rows), f32
 *   sums     (columns / 128, rows, 4), half2: the sum of 32 int8 values as its even part and the
 *            rest, both exact in fp16
 *
 * After the slabs, where there is a norm: (rows, squares_pitch) f32, the sum of squares of every
 * 128 columns. */
struct gemm_qacts {
    uint8_t *data;
    uint32_t rows;       /* of a row block: 8, 16 or 32 */
    uint32_t slab_shift; /* log2 of a slab's columns */
    uint32_t n_slabs;
    uint32_t scales_at, sums_at, slab_bytes; /* in a slab */
    uint32_t squares_at, bytes;              /* in a row block, and all of it */
    uint32_t squares_pitch;                  /* odd, so that rows are in different banks */
};

struct gemm_params {
    /* Segments are without the F32 ones, and n_tiles and first_tile count M16 tiles. task_warps is
     * the number of pipelines, each of warps_per_tile warps. With stream-K thread block b has tasks
     * bounds[b]... */
    struct project_params p;
    struct gemm_qacts qacts; /* of the first row block; the others follow */
    uint32_t warps_per_tile; /* 1 or 2 */
    uint32_t tail_warps;     /* of the last pipeline, a warp for each n8 tile; 0: as the others */
    uint32_t tiles_per_m16;  /* at most: tiles that share a pipeline stage */
    uint32_t is_stream_k;
    uint32_t n_m16_tiles, kblocks; /* stream-K: of the only segment */
    uint32_t m16_fastdiv;          /* of n_m16_tiles, never 0: see fastdiv_of */
    float *partials;          /* stream-K: (row block, M16 tile, warp, K block, n8 tile, lane, 4) */
    uint32_t *arrivals;       /* stream-K: (row block, M16 tile, warp); 0 between two steps */
    uint32_t leaves_partials; /* stream-K: project_gemm_finish adds them, not the last to arrive */
    uint32_t squares_at;  /* in shared memory, as the following; after them the norm's factors */
    uint32_t arrivals_at; /* by tiles: (M16 tile of the thread block, warp) */
    uint32_t releases_at; /* two warps a tile: how many are done with a stage, by stages */
    uint32_t f32_tiles;   /* of all F32 segments */
    uint32_t f32_splits;  /* of K, at most */
    uint32_t f32_sums_at; /* in shared memory: their partial sums */
    struct project_segment f32_segments[PROJECT_SEGMENTS];
};

/* Of project_gemm_finish, the kernel after a stream-K product that adds to the residual, where the
 * next op is a product of that: it adds the partial sums, and quantizes the sum for the next op.
 * So there is no counter of arrivals to wait for, nobody reads the partial sums of a tile alone,
 * and the next op needs no kernel that quantizes (32 rows of qwen35-4b: a step of 3510 us to
 * 3343). One row block. */
struct gemm_finish_params {
    struct cuda_io io;
    struct project_input in; /* of the next op */
    struct gemm_qacts qacts;
    const float *partials;
    float *out;
    uint32_t out_stride, row_limit;
    uint32_t kblocks;
    uint32_t warps_per_tile, warp_n8; /* warp_n8: n8 tiles of a warp */
    uint64_t split_ends;              /* project_split_ends */
};

/* Of project_gemm_quantize, the kernel before it. */
struct gemm_quantize_params {
    struct cuda_io io;
    struct project_input in;
    struct gemm_qacts qacts;
    uint32_t row_limit; /* rows of the bucket */
};

#ifndef __CUDACC__
/* A PROJECT whose K splits project.c has chosen. */
struct gemm_op {
    const struct project_params *p;
    uint32_t set; /* of types */
};

/* Records it; next: the next op, if that is a product of this one's output alone, with p NULL if it
 * is not. False: not one for these kernels, and nothing was recorded. */
bool record_project_gemm(struct recorder *r, const struct gemm_op *op, const struct gemm_op *next,
                         int *status);

/* Bytes that the quantized activations of up to this many rows of k columns need at most. */
static inline uint64_t gemm_most_qact_bytes(uint64_t k, uint32_t rows) {
    return (k * rows * 3 / 2 + 255) / 256 * 256;
}
#endif

#endif
