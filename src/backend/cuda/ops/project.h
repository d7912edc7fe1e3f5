/* project.h - PROJECT on tiled weights: arguments of its kernels, and the layout of a qact.
 *
 * A task is one tile's K blocks of one K split, done by one warp. A thread block has a range of
 * tiles of every segment, divided so that all blocks have about the same bytes, and all their
 * tasks. How the host divides the work is in project_schedule.h. */
#ifndef BACKEND_CUDA_OPS_PROJECT_H
#define BACKEND_CUDA_OPS_PROJECT_H

#include "backend/cuda/formats/tiles.h"
#include "backend/cuda/shared.h"
#include "plan/fuse.h"

enum {
    PROJECT_SEGMENTS = 6,
    PROJECT_BLOCKS = 528, /* thread blocks at most */
    PROJECT_BOUNDS = 532, /* words of bounds: PROJECT_BLOCKS + 1, or four segments of 132 blocks */
    PROJECT_TILE_ROWS = 16,    /* of the tallest tile */
    PROJECT_MAX_ROWS = 8,      /* rows of activations at once in a gemv kernel */
    PROJECT_GROUP = 128,       /* columns that half a warp quantizes, and whose squares it sums */
    PROJECT_COLS = 8,          /* columns of a thread of it */
    PROJECT_WARPS = 32,        /* of a thread block, at most */
    PROJECT_FINISH_PARTS = 64, /* of a tile, at most, that a kernel after the product adds */
};

/* A weight matrix of several that share an input. */
struct project_segment {
    const uint8_t *data;
    const float *bias;      /* (n), or NULL */
    uint32_t type;          /* IS_... */
    uint32_t n;             /* rows */
    uint32_t column;        /* of the output, where its rows begin */
    uint32_t lane_shift;    /* log2 of the lanes that share a row: see project_lanes */
    uint32_t row_shift;     /* log2 of a tile's rows */
    uint32_t kblocks;       /* of a tile */
    uint32_t kblock_bytes;  /* of a K block */
    uint32_t first_tile;    /* in the order in which thread blocks take tiles; SwiGLU: 0 of both */
    uint32_t n_tiles;       /* 0: there is no such segment */
    uint32_t splits;        /* of K; split i has split_kblocks, and one more if i < split_extra */
    uint32_t split_fastdiv; /* 65536 / splits, rounded up: t / splits is t * this >> 16 */
    uint32_t split_kblocks, split_extra;
};

/* The rows of activations and their prologue. */
struct project_input {
    const float *x;    /* rows x_stride floats apart */
    const float *norm; /* weights: (k), or (head_width) with GATED_NORM */
    const float *gate; /* rows gate_row_stride apart, heads gate_head_stride */
    uint32_t k, x_stride, gate_row_stride;
    uint32_t prologue;              /* enum prologue */
    uint32_t head_width;            /* columns of a head; k where there are none */
    uint32_t gate_head_stride;      /* floats */
    uint32_t head_fastdiv;          /* 65536 / (head_width / 128), rounded up */
    uint32_t gate_gap;              /* float4s between the gates of two heads; 0: no gates */
    uint32_t can_vec4;              /* may be read 16 bytes at a time: see project.c */
    uint32_t is_lm_head;            /* rows are those that IO lists as outputs */
    uint32_t wants_int8, wants_f32; /* what the qact holds */
    uint32_t is_split;              /* its f32 values as two bf16 (kernels/project_bf16.cuh) */
    float eps;
};

/* Arguments of the gemv kernels; of the gemm kernels, too, in a larger struct. Offsets are in bytes
 * of dynamic shared memory, which begins with the warps' pipelines. */
struct project_params {
    struct cuda_io io;
    struct project_input in;
    const uint8_t *qacts; /* from project_quantize, of two rows and more */
    const float *squares; /* (row, k / 128): with PROLOGUE_NORM, likewise */
    float *out;
    uint32_t out_stride;
    uint32_t epilogue; /* enum epilogue */
    uint32_t n_segments;
    uint32_t row_limit;    /* rows of the bucket; 1: always that one row, but for the LM head */
    uint32_t is_direct;    /* an LM head without split-K: a warp stores its results itself */
    uint32_t max_results;  /* of a thread block, where it is not direct */
    uint32_t task_warps;   /* warps that have tasks */
    uint32_t stages;       /* of a warp's pipeline, */
    uint32_t extra_stages; /* and this many warps have one more: R = 1, see project_schedule.c */
    uint32_t stage_bytes;  /* of the largest K block */
    uint32_t shared_bytes;
    uint32_t partials_at; /* f32 (task, row, PROJECT_TILE_ROWS) */
    uint32_t qact_at;     /* a qact a row */
    uint32_t red_at;      /* sums of squares, or factors of heads; before it the rows' factors, and
                            of F16 the largest values of warps */
    uint32_t mbars_at;    /* an mbarrier a stage; before them, of two rows and more, the qacts' */
    uint32_t qact_bytes;  /* of a row */
    uint32_t has_bias;    /* some segment has */
    uint32_t n_blocks;    /* gridDim.x */
    uint32_t f32_from_global; /* F32 segments read x and the norm's weights, not the qact */
    struct project_segment segments[PROJECT_SEGMENTS];
    /* Thread block b has tiles bounds[b] ... bounds[b + 1] of all segments, in the order of
     * first_tile. PROJECT_HAS_SHARES: (segment, n_blocks + 1), tiles of the segment. */
    uint16_t bounds[PROJECT_BOUNDS];
};

/* Of the LM head of one row: what else it does with a logit. */
struct project_lm_head_params {
    struct project_params p;
    float *logits;    /* mapped host memory: written if the host asks for them */
    uint64_t *argmax; /* key of the largest: see project_lm_head.cu */
};

struct quantize_params {
    struct cuda_io io;
    struct project_input in;
    uint8_t *qacts;
    float *squares;
    uint32_t qact_bytes;
    uint32_t zero;
};

/* Sets of weight types, a bit each. */
enum { IS_Q4_K = 1, IS_Q5_K = 2, IS_Q6_K = 4, IS_Q8_0 = 8, IS_BF16 = 16, IS_F16 = 32, IS_F32 = 64 };

/* All types that may be beside each other: F16 is alone, or with F32. */
enum { IS_ANY = IS_Q4_K | IS_Q5_K | IS_Q6_K | IS_Q8_0 | IS_BF16 | IS_F32 };

/* Sets whose kernels of one row have a range of every segment's tiles for every thread block, not
 * one range of all. Q8_0's kernel has no spills by it; K-quants' would lose 1 to 2 % with small
 * models (docs/lab/cuda.md, "One row: shares of segments"). */
#define PROJECT_HAS_SHARES(set)                                                                    \
    (((set) & (IS_Q8_0 | IS_BF16)) != 0 && !((set) & (IS_Q4_K | IS_Q5_K | IS_Q6_K)))

/* Activations are in two parts (kernels/project_bf16.cuh). */
enum { IS_SPLIT = IS_BF16 | IS_F16 };

/* K-quants have activations that share a scale by 128 columns; all of IS_INT8 int8 activations. */
enum { IS_K_QUANT = IS_Q4_K | IS_Q5_K | IS_Q6_K, IS_INT8 = IS_K_QUANT | IS_Q8_0 };

/* Sets with one of these have pipelines of 2, 3, 4 or 6 stages, since their K blocks are small. For
 * the others 2 is a constant, which saves instructions. */
enum { DEEP_PIPELINE = IS_Q8_0 | IS_BF16 | IS_F16 };

/* A qact, if it has int8 activations, is eight planes of 16-byte chunks: plane 2 i + h has columns
 * 32 i + 16 h ... of every 128. Then an f32 scale and an int32 sum of quants for every 32 columns.
 * Then f32 activations, if it has any (beside BF16 and F16 weights each as two of those), and 16
 * bytes, which the choice of K splits counts: of F16 the first 4 are the row's 1 / s. */
HOST_DEVICE uint32_t project_plane(uint32_t k) {
    return k / 128 | 1; /* chunks of a plane: odd, so that eight planes begin in different banks */
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

/* The fastdiv multiplier of d: n / d is the upper word of n * this, for n * d below 2^32; 0: d is
 * 1. A division takes a hundred instructions. */
HOST_DEVICE uint32_t fastdiv_of(uint32_t d) {
    return d > 1 ? 0xffffffffu / d + 1 : 0;
}

/* Whether rows take quantize.cuh's fast path. */
HOST_DEVICE uint32_t project_is_vec4(const struct project_input *in) {
    return in->can_vec4 &&
           (in->prologue <= PROLOGUE_NORM || in->head_width == PROJECT_GROUP ||
            (in->prologue == PROLOGUE_SIGMOID_GATE && in->head_width % PROJECT_GROUP == 0));
}

#ifndef __CUDACC__
#include "backend/cuda/host/cuda.h"

/* Dynamic shared memory of a thread block. An SM has 228 KB, of which a block takes 1 KB more than
 * it asks for. A wide block fits beside one of the other size, but not beside another wide one. So
 * kernels that alternate between the two sizes run one block an SM, however early the next kernel's
 * blocks are placed; two on one SM and none on another would be handed on from kernel to kernel
 * (README, rule 4, with figures). */
enum {
    PROJECT_SHARED_WIDE = 115968,
    PROJECT_SHARED = 115456,
    PROJECT_SHARED_ALONE = 227 << 10,
    PROJECT_SHARED_LEAST = 78000, /* at most two blocks an SM */
};

/* Lanes that share a row of a tile; with f32 activations, four rows (BF16: this many would). */
static inline uint32_t project_lanes(uint32_t type, uint32_t tile_rows) {
    return (tile_is_int8(type) ? 32 : 128) / tile_rows;
}

/* Bit i: a K split ends with K block i, of at most PROJECT_FINISH_PARTS. */
static inline uint64_t project_split_ends(const struct project_segment *s) {
    uint64_t ends = 0;
    for (uint32_t split = 0, end = 0; split < s->splits; split++) {
        end += s->split_kblocks + (split < s->split_extra);
        ends |= (uint64_t)1 << (end - 1);
    }
    return ends;
}

/* The bit of a tiled type (enum dtype). */
uint32_t project_type_bit(uint32_t type);

/* How kernel names end, by set: "q4", "q4_q6", ...; "all" for sets without kernels of their own. */
const char *project_set_name(uint32_t set);

/* The kernel that quantizes `rows` rows: `threads` a block, several blocks a row. */
struct cuda_launch project_quantize_launch(const struct recorder *r, const struct project_input *in,
                                           const char *kernel, uint32_t rows, uint32_t threads);
#endif

#endif
