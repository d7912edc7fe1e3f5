/* attend.h - what the kernels of ATTEND are given. */
#ifndef BACKEND_CUDA_ATTEND_H
#define BACKEND_CUDA_ATTEND_H

#include "backend/cuda/shared.h"

enum {
    ATTEND_WARPS = 8,       /* of a block */
    ATTEND_TILE = 8,        /* query heads that a block takes at once: a tile */
    ATTEND_MAX_WIDTH = 512, /* of a head */
    ATTEND_FOLD = 16,       /* splits that are folded into one before these are folded */
    ATTEND_MAX_ROWS = 1024,
    ATTEND_GROUPS = 6, /* pairs of loads that a thread has in flight */
    ATTEND_SHORT = 32, /* positions of the shortest split */
};

/* Shared memory of the kernels with tensor cores, before the ring, and the ring. */
#define ATTEND_FAST_SHARED(width) (28928 + 76 * (width))
#define ATTEND_RING (ATTEND_GROUPS * 2 * 16 * ATTEND_WARPS * 32)

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
    uint32_t has_neighbours; /* rotary pairs are (2i, 2i + 1) */
    uint32_t type;           /* of the cache, enum dtype */
    uint32_t row_bytes;      /* of a position in the cache */
    uint32_t group, tiles;   /* query heads to a KV head; tiles of them */
    uint32_t tile_rows; /* rows of a segment that a block takes at once, where they fit a tile */
    uint32_t pages_per_slot;
    uint32_t max_splits;      /* while splits are shorter than a page */
    uint32_t max_long_splits; /* of sequences beyond that */
    uint32_t run_splits;      /* that a block takes one after the other: 1 or ATTEND_FOLD */
    uint32_t slots, part_values, counters_per_unit;
    float eps, scale;
};

#endif
