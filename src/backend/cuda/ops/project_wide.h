/* project_wide.h - params of PROJECT on wgmma: 64 rows and more, on compute capability 9.0.
 *
 *   out[row][n] = epilogue(factor[row] * sum over k of w[n][k] * a[row][k])
 *
 * Kernels of an op: project_wide_quantize quantizes the activations and computes the norm's
 * factors, project_wide_<type> multiplies them with the tiles of the segments of a type,
 * project_wide_f32 does the F32 segments, where the product has no room for them. Tiles and K
 * splits are those of the gemv kernels, so a row's bits are, too.
 *
 * Quantized activations (qact) have the columns in groups of 128, and of a group all rows of the
 * bucket, R (rounded up: wide_qact_rows), as four arrays, so that any 32 i rows are four runs of
 * bytes:
 *
 *   numbers   two panels of 64 columns; a row of a panel is 128 bytes of fp16, its 16-byte chunks
 *             swizzled as wgmma wants them: chunk p of row r is at p ^ r % 8. Which column is where
 *             in a row is in project_wide_quantize.cu (qact_word). Q8_0 in tiles of 128 rows: one
 *             panel of 128 columns as int8
 *   scales    f32, 32 rows at a time: (rows 8 i + 2 j and the next, i = 0, 1; then i = 2, 3), j = 0
 *             ... 3
 *   sums      K-quants, half2, 32 rows at a time: (row % 8, block of 32 columns, row / 8 % 4): the
 *             sum of 32 int8 values as its even part and the rest, both exact in fp16
 *
 * K-quants and Q8_0 want them in different order: an op with both is quantized twice. */
#ifndef BACKEND_CUDA_OPS_PROJECT_WIDE_H
#define BACKEND_CUDA_OPS_PROJECT_WIDE_H

#include "backend/cuda/ops/project.h"

enum {
    WIDE_MIN_ROWS = 64,    /* of a bucket; */
    WIDE_MIXED_ROWS = 128, /* where segments have several types that do not share a kernel */
    WIDE_GROUP = 128,      /* columns of a stage */
    WIDE_N = 128,          /* weight rows of a tile of the product: 64 a multiplying warpgroup */
    WIDE_THREADS = 384,    /* two warpgroups multiply, one copies */
    WIDE_CHUNK = WIDE_N * 16 + 32, /* 16 bytes of every weight row, padded against bank conflicts */
    WIDE_TYPES = IS_K_QUANT | IS_Q8_0,
    WIDE_PAIR = IS_Q4_K | IS_Q6_K, /* which share a kernel in small buckets */
    WIDE_ROW_BYTES = 276,          /* of a row and group of qact */
    WIDE_HANDED_ROWS = 128,        /* largest bucket that one product may quantize for the next */
    WIDE_ROW_STEP = 128,           /* qact's rows are a multiple of it */
    WIDE_STAGES_AT = 1024,         /* offset of the stages in shared memory, after the mbarriers */
    WIDE_MAX_STAGES = 6,
    WIDE_DIVISION = 136,     /* likewise: struct wide_division */
    WIDE_TILES = 256,        /* likewise: struct wide_tile, a warp's */
    WIDE_EARLY_GROUPS = 2,   /* whose weights are copied before pdl_wait: more would delay what the
                                kernel before it still reads */
    WIDE_CUT_COST = 8,       /* of adding up the parts of tiles, in groups of 128 columns */
    WIDE_F32_COLUMNS = 1024, /* that project_wide_f32 has in shared memory at once */
    WIDE_F32_TILE = 4,
    WIDE_F32_FEW_ROWS = 4, /* of a block of project_wide_f32_4, */
    WIDE_F32_FEW_TILES = 4,
    WIDE_F32_FEW_SPLITS = 4, /* and K splits of a tile that it does at once */
};

/* Rows of qact. */
HOST_DEVICE uint32_t wide_qact_rows(uint32_t bucket) {
    return (bucket + WIDE_ROW_STEP - 1) / WIDE_ROW_STEP * WIDE_ROW_STEP;
}

/* How a step's tiles are divided: as many as make whole rounds of all thread blocks are a block's,
 * the rest are cut into parts of K, if that is faster. The blocks that have multiplied a tile's
 * parts add them, some rows each. */
enum wide_cut { WIDE_UNCUT, WIDE_BY_SPLITS, WIDE_BY_KBLOCKS };

struct wide_division {
    uint32_t rows;  /* that tiles are made for: of the step, or the bucket's */
    uint32_t whole; /* tiles */
    uint32_t cut;   /* enum wide_cut, of the others */
    uint32_t parts; /* of these others in all, uncut ones included: the first tasks */
};

struct wide_params {
    struct cuda_io io;
    struct project_input in;
    const uint8_t *qact;
    uint64_t group_bytes; /* of qact */
    uint32_t qact_rows;
    float *factors;       /* of the norm, a row each; NULL: there are none */
    const float *squares; /* not NULL: factors are computed from them, (row, group) */
    float *out;
    uint32_t out_stride, epilogue, has_bias;
    uint32_t n_segments; /* SwiGLU: 1, gate; up follows it */
    uint32_t stages, stage_bytes;
    uint32_t zero;       /* 0, which the compiler does not know: release_stage */
    uint32_t splits_at;  /* offset in shared memory: sums of the K splits before */
    uint32_t factors_at; /* likewise: with squares, factors */
    /* F32 segments, after the others; done by thread blocks from f32_from on. 0: another kernel
     * does them, or there are none. */
    uint32_t n_f32_tiles, f32_from;
    uint32_t max_parts; /* of tiles that thread blocks share, in all */
    /* Not 0: the first weights are copied before pdl_wait, and tiles are for this many rows. */
    uint32_t early_rows;
    /* With early_rows: parts and whole tiles in all. Else UINT32_MAX. */
    uint32_t n_tasks;
    /* Not 0: tiles that are cut, all of one segment. Thread blocks from combine_from on, which have
     * a task less than the others, add their parts. */
    uint32_t n_cut, combine_from;
    float *partials; /* (part, four values, thread, value) */
    /* At a tile that is cut: its parts, then who has added; 0 between steps. NULL: parts are left
     * to project_wide_finish. */
    uint32_t *arrivals;
    struct wide_division division;                     /* with early_rows */
    struct project_segment segments[PROJECT_SEGMENTS]; /* of one type */
};

struct wide_quantize_params {
    struct cuda_io io;
    struct project_input in;
    uint8_t *qact;
    float *factors;
    float *squares; /* as of wide_params; NULL: nobody wants them */
    uint32_t row_limit, qact_rows, is_q8_0, is_int8; /* is_int8: numbers stay int8 */
};

/* Of project_wide_finish, the kernel after a product all tiles of which are cut and that adds to
 * the residual, where the next op is a product of that: it adds the parts, and quantizes the sum
 * for the next op, which needs no kernel that does. */
struct wide_finish_params {
    struct cuda_io io;
    struct project_input in; /* of the next op */
    uint8_t *qact;           /* likewise */
    float *squares;
    uint32_t qact_rows, row_limit;
    const float *partials;
    float *out;
    uint32_t out_stride;
    uint32_t tile_rows, row_blocks, tiles, parts; /* of the product */
    uint64_t split_ends;                          /* bit i: a K split ends with part i */
};

struct wide_f32_params {
    struct cuda_io io;
    struct project_input in;
    const float *factors;
    float *out;
    uint32_t out_stride, epilogue, n_segments, n_tiles;
    struct project_segment segments[PROJECT_SEGMENTS];
};

#ifndef __CUDACC__
/* Bytes of a stage of the pipeline, for tiles of this many rows: stage_layout of
 * project_wide_types.cuh. */
uint32_t wide_stage_bytes(uint32_t type, uint32_t rows);
/* Tiles that n weight rows are; and all segments with a bucket's rows, `rows` of them a tile. */
uint32_t wide_n_blocks(uint32_t epilogue, uint32_t n);
uint32_t wide_count_tiles(const struct project_segment *segments, uint32_t n_segments,
                          uint32_t epilogue, uint32_t rows, uint32_t bucket);

/* A PROJECT whose K splits project.c has chosen. */
struct wide_product {
    const struct project_params *p;
    uint32_t set; /* of types */
};

/* Records it; next: the next op, if that is a product of this one's output alone, with p NULL if it
 * is not. False: not one for these kernels, and nothing was recorded. */
bool record_project_wide(struct recorder *r, const struct wide_product *product,
                         const struct wide_product *next, int *status);

/* Bytes that one product hands to the next: quantized activations, sums of squares. */
uint64_t wide_handed_bytes(uint32_t k, uint32_t rows);

/* Its F32 segments alone, for any kernel of the others; whether they can be done so. */
int record_project_wide_f32(struct recorder *r, const struct project_params *p,
                            const float *factors);
bool project_can_do_f32(const struct project_params *p);
#endif

#endif
