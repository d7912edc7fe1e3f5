/* delta.h - what the kernels of DELTA are given. */
#ifndef BACKEND_CUDA_OPS_DELTA_H
#define BACKEND_CUDA_OPS_DELTA_H

#include "backend/cuda/shared.h"

enum {
    DELTA_WARPS = 16,      /* of a block; each has some columns of a value head */
    DELTA_MAX_WIDTH = 256, /* of a key or value head */
    DELTA_STAGE_ROWS = 8,  /* rows of a run that come into shared memory at a time */
    DELTA_STAGES = 2,      /* single rows that are on their way, or there, at a time */
    DELTA_ITEM_BYTES = 48, /* of a single row's tile in shared memory */
    DELTA_FEW_ROWS = 32,   /* of a plan, at most, whose blocks keep their tile */
    DELTA_TURN_BYTES = 32, /* of a single row in such a block's shared memory */
    DELTA_FEW_RUN = 2,     /* columns of its warps in runs */
};

/* A row's part of the rule that does not depend on the value head: |q| and |k| as factors (q's with
 * the scale), and q . k of the normed ones. */
struct delta_key {
    float q_factor, k_factor, qk, zero;
};

/* And the part that depends on the value head. */
struct delta_gate {
    float decay, beta, zero[2];
};

/* How the columns of all value heads are cut: a block has a tile of one head's. */
struct delta_cut {
    uint32_t columns; /* of a warp: 1, 2 or 4 */
    uint32_t tiles;   /* of a head */
};

/* Words that are zero between steps: runs are convolved by whoever comes. */
struct delta_counters {
    uint32_t taken, done; /* pieces of the convolution */
    uint32_t left;        /* blocks that are done with both */
};

struct delta_params {
    struct cuda_io io;
    const float *in;     /* (R, in_stride) */
    const float *conv;   /* (C, conv_width) */
    const float *a, *dt; /* (B) */
    float *state;        /* (S, B, dv, dk) */
    float *window;       /* (S, conv_width, C) */
    float *out;          /* (R, out_stride) */
    /* What runs' rows are convolved to; widths padded with zeros. */
    float *qk;                /* (R, A, 2, padded_key) */
    float *v;                 /* (R, B, padded_value) */
    struct delta_key *keys;   /* (R, A) */
    struct delta_gate *gates; /* (R, B) */
    struct delta_counters *counters;
    uint64_t in_stride, out_stride;
    uint64_t state_stride; /* values of a slot's state */
    uint32_t beta_column, alpha_column;
    uint32_t key_heads, value_heads, key_width, value_width, conv_width, channels;
    uint32_t is_tiled;        /* value head v has key head v % A, not v / (B/A) */
    uint32_t slots;           /* S */
    uint32_t rows;            /* R */
    uint32_t most_items;      /* single rows' tiles that a block may have */
    uint32_t lanes;           /* blocks that share a tile's segments; 0: no block keeps its tile */
    uint32_t is_even;         /* keys, and so states, are whole pieces of 16 bytes */
    uint32_t is_aligned;      /* and so are rows of `in` and of the window */
    uint32_t is_full;         /* even, and a tile's keys and columns as many as there is room for */
    struct delta_cut cut;     /* for single rows */
    struct delta_cut run_cut; /* for runs of rows */
    uint32_t padded_key, padded_value;
    float q_scale; /* 1 / sqrt(dk) */
};

#endif
