/* delta.h - limits and arguments of the DELTA kernels, for host and device.
 *
 * Words of all DELTA files. Value head h has dv columns; column j's state S[j] is dk values. A head
 * tile is the columns of one value head that a block computes at a time, 16 warps of 1, 2 or 4. The
 * channels of a tile are what the convolution has to give for it: q and k of its key head and v of
 * its columns. A decode segment has one row, a prefill segment several. The window holds the
 * convolution's last inputs of each cell, an entry a position: entry position % conv_width.
 *
 * The log. A state in memory may lack its last rows: the log has what they add to it, a row an
 * entry, and the kernels that know it (delta_log) apply the entries in order after they have
 * read the state, with the same instructions, so the bits are the same. A state is then written
 * once in DELTA_LOG_ENTRIES + 1 rows. An entry is dk of the tile's columns, decay and padding, 272
 * bytes for 32 KB of state, and k, which all tiles of a key head share: of a cell they have equally
 * many entries. Before anybody else reads or writes a state, it is settled: the entries are
 * applied, and it has none (delta_settle; host/log.c keeps account). */
#ifndef BACKEND_CUDA_OPS_DELTA_H
#define BACKEND_CUDA_OPS_DELTA_H

#include "backend/cuda/shared.h"

enum {
    DELTA_WARPS = 16,          /* of a block */
    DELTA_MAX_WIDTH = 256,     /* of a key or value head */
    DELTA_STAGES = 2,          /* decode: states in shared memory, or in flight to it */
    DELTA_PREFILL_ROWS = 8,    /* prefill: rows of a stage, of which there are two, */
    DELTA_PREFILL_COLUMNS = 2, /* and columns of a warp */
    DELTA_JOB_BYTES = 48,      /* struct decode_job */
    DELTA_FEW_ROWS = 32,       /* largest plan whose prefill segments delta_few has, */
    DELTA_FEW_ROWS_4 = 16,     /* with four columns a warp, */
    DELTA_FEW_CHUNK = 8,       /* rows that it convolves at once, */
    DELTA_FEW_SEGMENTS = 8,    /* and segments that have blocks of their own */
    DELTA_FUSED_ROWS = 32, /* largest plan whose prefill segments have no kernels of their own */
    DELTA_TILE_JOBS = 32,  /* segments of a block of delta_batch_tile */
    DELTA_TILE_JOB_BYTES = 32, /* struct tile_job */
    DELTA_LOG_JOB_BYTES = 64,  /* struct log_job */
    DELTA_LOG_ENTRIES = 7,     /* rows of a log, at most; one more is a power of two */
    DELTA_LOG_ROWS = 16,       /* smallest plan that leaves rows to the log, */
    DELTA_LOG_CELLS = 8,       /* and the fewest sequences */
    DELTA_LOG_KEY = 128,       /* shapes that have one: values of a key, */
    DELTA_LOG_TILE = 64,       /* columns of a head tile */
    DELTA_LOG_FLOATS = 68,     /* of an entry: those columns, decay, padding */
    DELTA_CONV_WARPS = 8,      /* of a block of delta_conv */
    DELTA_SCAN_GROUPS = 2,     /* of warps of a block of delta_scan, at most, */
    DELTA_SCAN_WARPS = 4,      /* warps of a group, */
    DELTA_SCAN_ROWS = 8,       /* rows of its stages, */
    DELTA_SCAN_STAGES = 4      /* and how many there are */
};

/* Of delta_few, of n channels: four weights and four entries of the window, a chunk after the
 * convolution, all rows before it and three earlier ones. */
#define DELTA_FEW_SHARED(n, rows) ((4 + 4 + DELTA_FEW_CHUNK + 3 + (rows)) * (n)*4)

/* Of delta_scan: a stage's q, k, v of a tile, norms and gates. */
#define DELTA_SCAN_STAGE_BYTES(columns, key)                                                       \
    (DELTA_SCAN_ROWS * (2 * (key) + DELTA_WARPS * (columns) + 8) * 4)

/* Of delta_log: two states, three logs, q, k and v of three jobs, norms of two; jobs. */
#define DELTA_LOG_SHARED                                                                           \
    (4 * (2 * DELTA_LOG_TILE * DELTA_LOG_KEY +                                                     \
          3 * DELTA_LOG_ENTRIES * (DELTA_LOG_KEY + DELTA_LOG_FLOATS) +                             \
          3 * (2 * DELTA_LOG_KEY + DELTA_LOG_TILE) + 2 * 4) +                                      \
     (DELTA_TILE_JOBS + 2) * DELTA_LOG_JOB_BYTES)

/* What a row's q and k of a key head give the rule: 1 / (|q| sqrt(dk)), 1 / |k|, and q . k with
 * both applied. */
struct delta_norms {
    float q_factor, k_factor, qk, padding;
};

/* A row's gates of a value head. */
struct delta_gate {
    float decay, beta, padding[2];
};

/* How value heads are divided into head tiles. */
struct delta_tiling {
    uint32_t columns; /* of a warp: 1, 2 or 4 */
    uint32_t tiles;   /* of a value head */
};

/* Counters of prefill's convolution, zero between steps. A task is DELTA_WARPS (row, head). */
struct delta_counters {
    uint32_t tasks_taken, tasks_done, blocks_done;
};

struct delta_params {
    struct cuda_io io;
    const float *in;           /* (R, in_stride): qkv, z, beta, alpha */
    const float *conv_weights; /* (C, conv_width), oldest position first */
    const float *a, *dt;       /* (B) */
    float *state;              /* (cells, B, dv, dk) */
    float *window;             /* (cells, conv_width, C) */
    float *out;                /* (R, out_stride) */
    /* Workspace: rows of prefill segments after the convolution; widths padded with zeros. Left:
     * delta_batch. Right: delta_scan, where rows of a head tile, of T columns, are contiguous. */
    float *conv_qk;            /* (R, A, 2, padded_key), (A, R, 2, padded_key) */
    float *conv_v;             /* (R, B, padded_value), (B, padded_value / T, R, T) */
    struct delta_norms *norms; /* (R, A), (A, R) */
    struct delta_gate *gates;  /* (R, B), (B, R) */
    struct delta_counters *counters;
    uint32_t *arrivals; /* delta_few: (segments, A) blocks that have read the window; zero */
    uint64_t in_stride, out_stride;
    uint64_t state_stride; /* values of a cell's state */
    uint32_t beta_column, alpha_column;
    uint32_t key_heads, value_heads, key_width, value_width, conv_width, channels;
    uint32_t is_modulo_map; /* value head h has key head h % A, not h / (B / A) */
    uint32_t n_cells;
    uint32_t max_rows;        /* R */
    uint32_t max_segments;    /* of a step: no more than rows or slots */
    uint32_t max_jobs;        /* (head tile, decode segment) of a block */
    uint32_t blocks_per_tile; /* delta_batch_tile: blocks that divide a tile's segments; else 0 */
    uint32_t is_state_vec4;   /* keys, and so states, are whole 16-byte vectors */
    uint32_t is_conv_vec4;    /* and so are rows of `in` and of the window, and the weights */
    uint32_t is_full;         /* is_state_vec4, dk == padded_key, and all tiles are full */
    uint32_t has_scan;        /* delta_scan has the prefill segments, delta_batch the others */
    uint32_t scans_all;       /* delta_scan has all segments */
    struct delta_tiling decode_tiling, scan_tiling;
    struct delta_tiling prefill_tiling;
    uint32_t padded_key, padded_value;
    float q_scale;        /* 1 / sqrt(dk) */
    uint32_t log_cells;   /* this many cells, the first, have a log; 0: it is not used here */
    uint32_t *log_counts; /* (B tiles, log_cells) entries in use */
    float *log_keys;      /* (log_cells, A, DELTA_LOG_ENTRIES, DELTA_LOG_KEY) */
    float *log;           /* (log_cells, B tiles, DELTA_LOG_ENTRIES, DELTA_LOG_FLOATS) */
};

/* Which key head a tile has. */
struct delta_log_heads {
    uint16_t head_tiles; /* of a value head */
    uint16_t key_heads, heads_per_key, is_modulo_map;
};

/* delta_settle: applies and empties the logs of some cells in some layers. */
enum { SETTLE_LAYERS = 48, SETTLE_CELLS = 256 };
#define SETTLE_KERNEL "delta_settle"

struct settle_layer {
    float *state;
    uint32_t *counts;
    float *log_keys, *log;
    uint64_t state_stride;
    uint32_t tiles, cells; /* head tiles of all value heads, cells that have a log */
    struct delta_log_heads heads;
};

struct settle_params {
    struct settle_layer layers[SETTLE_LAYERS];
    uint32_t cells[SETTLE_CELLS];
};

#endif
