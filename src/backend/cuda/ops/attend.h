/* attend.h - limits and arguments of the ATTEND kernels, for host and device.
 *
 * Words of all ATTEND files. A query tile is up to 8 queries that read the same KV head: query
 * heads of one row, or of consecutive rows of a segment. A split is a range of positions; a group
 * is the splits that are combined first (a cluster's, where there are clusters); a chunk is what a
 * block computes before it hands on a partial result: one split or a group of them. */
#ifndef BACKEND_CUDA_OPS_ATTEND_H
#define BACKEND_CUDA_OPS_ATTEND_H

#include "backend/cuda/shared.h"

enum {
    ATTEND_WARPS = 8,        /* of a block that compute: beside them decode has a producer warp */
    ATTEND_TILE_QUERIES = 8, /* N of the MMAs */
    ATTEND_MAX_WIDTH = 512,  /* of a head */
    ATTEND_MAX_SPLIT = 128,  /* positions of the longest split but the fallback's, which has 256 */
    ATTEND_GROUP_SPLITS = 8, /* the most splits of a group, and blocks of a cluster */
    ATTEND_MAX_ROWS = 4096,
    ATTEND_WIDE_ROWS = 16,     /* segments of this many rows have a kernel of their own, */
    ATTEND_WIDE_QUERIES = 128, /* which computes this many queries at once */
    ATTEND_FUSED_ROWS = 32,    /* up to this many, one kernel also does norm, RoPE and KV store */
    ATTEND_PREFETCHED = 32,    /* positions of a pass, at least, that go to L2 first */
    ATTEND_STAGES = 4,         /* of decode's pipeline */
    ATTEND_UNPACK_POSITIONS = 64, /* that a thread block of attend_unpack takes at once */
    ATTEND_STAGE_BYTES = 16384    /* keys, or values, of as many positions as fit; see below */
};

/* Positions of a stage of decode's pipeline, of this many bytes each. Those of q8_0 and q4_0 may
 * take an eighth more than ATTEND_STAGE_BYTES. */
#define ATTEND_STAGE_POSITIONS(row_bytes) ((row_bytes) >= 512 ? 32 : (row_bytes) >= 256 ? 64 : 128)

/* Up to this many positions splits are 16 long and a warp computes one alone. Only for narrow
 * heads: at 256 columns it was slower (6.3 us against 5.9). */
#define ATTEND_SHORT_POSITIONS(width) ((width) == 64 ? 128 : 0)
/* Bytes of dynamic shared memory; the kernels assert that their structs fit. */
#define ATTEND_DECODE_SHARED(row_bytes, width)                                                     \
    (ATTEND_STAGES * ATTEND_STAGE_POSITIONS(row_bytes) * (row_bytes) + ((width) > 128  ? 33408     \
                                                                        : (width) > 64 ? 18688     \
                                                                                       : 28032))
#define ATTEND_FUSED_SHARED(width) (192 * (width) + ((width) > 64 ? 21216 : 32992))
#define ATTEND_WIDE_SHARED(width) ((width) > 64 ? 232448 : 118784)
#define ATTEND_STAGED_SHARED(row_bytes, width) (256 * (row_bytes) + 48 * (width) + 7936)
/* Before that: where rows are that share a tile. */
#define ATTEND_ROW_TABLE(rows) (((rows)*2u + 15u) / 16u * 16u)

/* RoPE by where a value's partner is, seen from a lane that holds values 2 l, 2 l + 1 and every
 * 64th after them. */
enum {
    ROTATE_NONE,
    ROTATE_ADJACENT, /* pairs (2i, 2i + 1): beside it */
    ROTATE_SHUFFLE,  /* (i, i + 32): in lane l ^ 16 */
    ROTATE_IN_LANE,  /* (i, i + width / 2), width a multiple of 128: in the same lane */
    ROTATE_MEMORY    /* (i, i + rotary / 2), any: through shared memory */
};

struct attend_params {
    struct cuda_io io;
    const float *in;                  /* (R, in_stride) */
    const float *q_norm, *k_norm;     /* (d), or NULL */
    const float *angles;              /* (R, rotary / 2, 2): cos, sin */
    uint8_t *keys, *values;           /* the KV cache: (P, G, IO_PAGE_POSITIONS, d) */
    uint8_t *half_keys, *half_values; /* the same as fp16, for attend_wide over another type */
    const int32_t *page_table;        /* (S, pages_per_slot) */
    float *out;                       /* (R, out_stride) */
    void *queries;        /* (R, H, d), normed and rotated by attend_rope_store: f32, or */
    float *query_factors; /* (R, H) where it is there: then they are fp16 and scaled */
    float *partials;      /* (R, G, tiles_per_kv, n_partials, partial_floats) */
    uint32_t *counters;   /* (R, G, tiles_per_kv, counters_per_tile), zero between steps */
    uint32_t *wide_work;  /* of attend_wide: items taken, then a flag a tile and warpgroup */
    float *wide_states;   /* of attend_wide: (R, H, 2), max and sum */
    uint64_t in_stride, out_stride;
    uint32_t q_stride, k_column, v_column;
    uint32_t heads, kv_heads, head_width, rotary;
    uint32_t rotation;               /* ROTATE_... */
    uint32_t type;                   /* of the cache, enum dtype */
    uint32_t row_bytes;              /* of a position in the cache */
    uint32_t q_per_kv, tiles_per_kv; /* query heads, and query tiles, of a KV head */
    uint32_t tile_rows;              /* rows of a segment that share a tile, where they fit */
    uint32_t pages_per_slot, n_slots, n_pages, max_rows;
    uint32_t short_positions;                  /* up to this many: splits of 16 */
    uint32_t min_split_shift, max_split_shift; /* splits are 2^shift positions long */
    uint32_t group_splits;                     /* splits of a group */
    uint32_t chunk_splits;                     /* splits of a chunk: 1 or group_splits */
    uint32_t n_partials, partial_floats, counters_per_tile;
    uint32_t wide_rows;   /* rows of a tile of attend_wide; 0: batch has all segments */
    uint32_t n_wide_work; /* words */
    float eps, scale;
};

#endif
