/* attend.h - what the kernels of ATTEND are given. */
#ifndef BACKEND_CUDA_OPS_ATTEND_H
#define BACKEND_CUDA_OPS_ATTEND_H

#include "backend/cuda/shared.h"

enum {
    ATTEND_WARPS = 8,       /* of a block, beside the one that copies */
    ATTEND_TILE = 8,        /* query heads that a block takes at once: a tile */
    ATTEND_MAX_WIDTH = 512, /* of a head */
    ATTEND_FOLD = 8,        /* the most splits that are folded into one before these are folded */
    ATTEND_MAX_ROWS = 1024,
    ATTEND_FEW_ROWS = 32,     /* up to so many rows are one kernel */
    ATTEND_SLOTS = 4,         /* of a row's copies: that many are on their way */
    ATTEND_SLOT_BYTES = 16384 /* positions of a slot: as many as fit */
};

/* Up to so many positions are splits of 16, a warp each. Not for wide heads: a warp would have too
 * much to do, and all warps together are sooner done with one split. */
#define ATTEND_SHORT(width) ((width) == 64 ? 128 : 0)
/* Positions of the longest split for heads of this width. */
#define ATTEND_LENGTH(width) ((width) > 128 ? 128 : 256)
/* Shared memory of a row alone. */
#define ATTEND_ROW_SHARED(width)                                                                   \
    (ATTEND_SLOTS * ATTEND_SLOT_BYTES + ((width) > 128 ? 49664 : (width) > 64 ? 40960 : 39424))

/* Shared memory where rows are few. */
#define ATTEND_FEW_SHARED(width) (192 * (width) + ((width) > 64 ? 27776 : 32384))

/* Pairs that are turned: none; (2i, 2i + 1); (i, i + 32); (i, i + width / 2) of wide heads; (i, i +
 * rotary / 2). */
enum { TURN_NONE, TURN_NEIGHBOURS, TURN_NEAR, TURN_FAR, TURN_ANY };

struct attend_params {
    struct cuda_io io;
    const float *in;              /* (R, in_stride) */
    const float *q_norm, *k_norm; /* (d), or NULL */
    const float *angles;          /* (R, rotary / 2, 2) */
    uint8_t *keys, *values;       /* (P, G, IO_PAGE_POSITIONS, d) */
    const int32_t *pages;         /* (S, pages_per_slot) */
    float *out;                   /* (R, out_stride) */
    float *query;                 /* (R, H, d): queries normed and turned */
    float *parts;                 /* (R, G, tiles, slots, part_values) */
    uint32_t *counters;           /* (R, G, tiles, counters_per_unit) */
    uint64_t in_stride, out_stride;
    uint32_t q_stride, k_column, v_column;
    uint32_t heads, kv_heads, head_width, rotary;
    uint32_t turn;         /* which values are turned together: TURN_... */
    uint32_t type;         /* of the cache, enum dtype */
    uint32_t row_bytes;    /* of a position in the cache */
    uint32_t group, tiles; /* query heads to a KV head; tiles of them */
    uint32_t tile_rows;    /* rows of a segment that a block takes at once, where they fit a tile */
    uint32_t pages_per_slot, n_slots, n_pages, max_rows;
    uint32_t short_positions;         /* up to so many are splits of 16 */
    uint32_t short_shift, long_shift; /* 2^shift: positions of the shortest and longest split */
    uint32_t fold;                    /* splits of a group */
    uint32_t run_splits;              /* that a block takes one after the other: 1 or a group's */
    uint32_t slots, part_values, counters_per_unit;
    float eps, scale;
};

#endif
