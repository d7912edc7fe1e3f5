/* project.h - params of PROJECT on tiled weights, and how its work is cut.
 *
 * A task is one tile's kblocks of one K split, done by one warp. A block has a run of tiles of
 * every segment, cut so that all blocks have about the same bytes, and all their tasks. Tiles,
 * splits and the order inside a task are of the matrices' shapes and the device alone, so a row's
 * bits never depend on how many rows there are. */
#ifndef BACKEND_CUDA_OPS_PROJECT_H
#define BACKEND_CUDA_OPS_PROJECT_H

#include "backend/cuda/formats/tiles.h"
#include "backend/cuda/shared.h"
#include "plan/fuse.h"

enum {
    PROJECT_SEGMENTS = 6,
    PROJECT_BLOCKS = 528, /* at most */
    PROJECT_TASK_ROWS = 16,
    PROJECT_ROWS = 8,       /* at once, at most, of products by dot products */
    PROJECT_FUSED_ROWS = 2, /* up to so many rows are prepared by the blocks of the product */
    PROJECT_GROUP = 128,    /* columns whose squares are summed at once, by half a warp */
    PROJECT_COLS = 8,       /* columns that a thread makes ready at once */
};

struct project_segment {
    const uint8_t *data;
    const float *bias; /* (n), or NULL */
    uint32_t type, n, column;
    uint32_t lane_shift;   /* lanes that share a row, as a power of two: see project_lanes */
    uint32_t row_shift;    /* rows of a tile, likewise */
    uint32_t kblocks;      /* of a tile */
    uint32_t kblock_bytes; /* of a kblock */
    uint32_t first_tile;   /* in the order of tiles in which blocks are cut */
    uint32_t n_tiles;      /* 0: there is no such segment */
    uint32_t splits;       /* of K; split i has split_kblocks, and one more where i < split_extra */
    uint32_t split_fastdiv; /* 65536 / splits, rounded up: t / splits is t * this >> 16 */
    uint32_t split_kblocks, split_extra;
};

/* What becomes of a row of activations before the product. */
struct project_input {
    const float *x, *norm, *gate; /* rows x_stride and gate_row_stride apart */
    uint32_t k, x_stride, gate_row_stride;
    uint32_t kind;               /* PREPARE_... */
    uint32_t width, head_stride; /* of heads; and from one head of the gate to the next */
    uint32_t head_fastdiv;       /* 65536 by a head's columns in 128s, rounded up */
    uint32_t head_gap;           /* fours of columns between two heads' gates; 0: no gates */
    uint32_t is_aligned;         /* all of it may be read 16 bytes at a time, see is_vec4 */
    uint32_t is_lm_head;         /* rows are those that IO lists as outputs */
    uint32_t wants_int8, wants_f32;
    float eps;
    uint32_t act_group; /* columns that share a scale: 32 or 128 */
};

struct project_params {
    struct cuda_io io;
    struct project_input in;
    const uint8_t *qacts; /* rows made ready by project_quantize; unused where blocks do it */
    const float *squares; /* the sums of their squares, by 128 columns, where there is a norm */
    float *out;
    uint32_t out_stride;
    uint32_t epilogue; /* FINISH_... */
    uint32_t n_segments;
    uint32_t row_limit;   /* rows of the bucket; 1: there is always just that one, but for a head */
    uint32_t is_direct;   /* a warp has all of K of its rows and writes them itself */
    uint32_t max_results; /* results of a block at most; 0 where it is direct */
    uint32_t task_warps;  /* warps that have tasks */
    uint32_t stages;      /* kblocks that a warp has on their way: 2, or for some sets 3, 4 or 6 */
    uint32_t stage_bytes;
    uint32_t has_deep_pipeline;            /* than two may be chosen */
    uint32_t partials_at, qact_at, red_at; /* in shared memory; before red: the factors */
    uint32_t mbars_at;                     /* likewise: a barrier a stage */
    uint32_t qact_bytes;                   /* of a row */
    uint32_t has_bias;                     /* some segment has */
    uint32_t max_shared;                   /* bytes that the device allows a block */
    uint32_t is_plain; /* F32 segments read their activations where they lie, not from an qact */
    struct project_segment segments[PROJECT_SEGMENTS];
    uint16_t bounds[PROJECT_BLOCKS + 1]; /* block b has tiles bounds[b]... */
};

/* A head of one row: what else it does with a logit. */
struct project_head_params {
    struct project_params p;
    float *wanted;  /* mapped: where it goes if the host asks for logits */
    uint64_t *best; /* the key of the best, as pick.h has it */
};

struct quantize_params {
    struct cuda_io io;
    struct project_input in;
    uint8_t *qacts;
    float *squares;
    uint32_t qact_bytes;
    uint32_t zero;
};

/* Sets of types, a bit each. */
enum { IS_Q4_K = 1, IS_Q5_K = 2, IS_Q6_K = 4, IS_Q8_0 = 8, IS_BF16 = 16, IS_F16 = 32, IS_F32 = 64 };

/* With the first of these activations share a scale by 128 columns; all of them meet int8 ones. */
enum { IS_K_QUANT = IS_Q4_K | IS_Q5_K | IS_Q6_K, IS_INT8 = IS_K_QUANT | IS_Q8_0 };

/* Units of these types are small, so more of them may be on their way; for the others the number
 * is a constant, which saves instructions. */
enum { DEEP_PIPELINE = IS_Q8_0 | IS_BF16 | IS_F16 };

/* An qact of a row. Of int8 activations: eight planes of 16-byte pieces, plane 2 i + h of columns
 * 32 i + 16 h... of every 128, piece by piece; then a scale and a sum of the numbers for every 32
 * columns, f32 and int32. Then f32 activations, and 16 bytes that nothing needs: K was sliced with
 * them. */
HOST_DEVICE uint32_t project_plane(uint32_t k) {
    return k / 128 | 1; /* pieces of a plane; odd, so that eight planes lie in different banks */
}

HOST_DEVICE uint32_t project_scales_at(uint32_t k) {
    return project_plane(k) * 128;
}

HOST_DEVICE uint32_t project_sums_at(uint32_t k) {
    return project_scales_at(k) + k / 8;
}

HOST_DEVICE uint32_t project_int8_bytes(uint32_t k) {
    return project_sums_at(k) + k / 8;
}

/* n / d is the upper half of n * this, for n * d below 2^32; 0: d is 1. A division takes a hundred
 * instructions. */
HOST_DEVICE uint32_t fastdiv_magic(uint32_t d) {
    return d > 1 ? 0xffffffffu / d + 1 : 0;
}

/* Rows that half warps make ready 128 columns at a time, twice 16 bytes a lane. */
HOST_DEVICE uint32_t project_is_vec4(const struct project_input *in) {
    return in->is_aligned &&
           (in->kind <= PROLOGUE_NORM || in->width == PROJECT_GROUP ||
            (in->kind == PROLOGUE_SIGMOID_GATE && in->width % PROJECT_GROUP == 0));
}

HOST_DEVICE uint32_t project_qact_bytes(const struct project_input *in) {
    return (in->wants_int8 ? project_int8_bytes(in->k) : 0) + (in->wants_f32 ? in->k * 4 : 0) + 16;
}

#ifndef __CUDACC__
#include "backend/cuda/host/cuda.h"
/* Shared memory of a multiprocessor is 228 KB, of which a block takes 1 KB more than it asks for. A
 * block of the one size has room beside one of the other, but not beside another wide one: so
 * stages that take turns lie one block to a multiprocessor, however early the next one's blocks are
 * placed. Two on one and none on another is handed on from stage to stage and costs as much as it
 * sounds. */
enum {
    PROJECT_SHARED_WIDE = 115968,
    PROJECT_SHARED = 115456,
    PROJECT_SHARED_ALONE = 227 << 10,
    PROJECT_SHARED_LEAST = 78000, /* more than two blocks on one would be in each other's way */
};

/* Between project.c, project_many.c and experts_tiles.c. */

/* Lanes that share a row of a tile; those of types that meet f32 activations share four. */
static inline uint32_t project_lanes(uint32_t type, uint32_t tile_rows) {
    return (tile_is_int8(type) ? 32 : 128) / tile_rows;
}

/* The bit of a tiled type (enum dtype) in a set. */
uint32_t project_type_bit(uint32_t type);

/* The kernels that there are for some sets of types; any other set is `all`. */
const char *project_set_name(uint32_t set);
/* Tasks of the block that has most. */
uint32_t project_max_tasks(const struct project_params *p, uint32_t n_blocks);
/* The blocks' bounds with the smallest largest share; a kblock costs its bytes and `more`. */
void project_cut_blocks(struct project_params *p, uint32_t n_blocks, uint32_t more);
/* Blocks, cut by `cut`: one a multiprocessor, or more where a block's sums would not fit. */
typedef void project_cut_fn(struct project_params *p, uint32_t n_blocks);
uint32_t project_choose_blocks(struct project_params *p, uint32_t n_sms, project_cut_fn *cut);
/* The kernel that makes `rows` rows ready, by blocks of `threads`: several a row. */
struct cuda_launch project_quantize_launch(const struct recorder *r, const struct project_input *in,
                                           const char *kernel, uint32_t rows, uint32_t threads);
#endif

#endif
