/* delta.h - what the kernels of DELTA are given. */
#ifndef BACKEND_CUDA_DELTA_H
#define BACKEND_CUDA_DELTA_H

#include "backend/cuda/shared.h"

enum {
    DELTA_WARPS = 16,      /* of a block; each has some columns of a value head */
    DELTA_MAX_WIDTH = 256, /* of a key or value head */
    DELTA_STAGE_ROWS = 8,  /* rows that come into shared memory at a time */
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

struct delta_params {
    struct cuda_io io;
    const float *in;     /* (R, in_stride) */
    const float *conv;   /* (C, conv_width) */
    const float *a, *dt; /* (B) */
    float *state;        /* (S, B, dv, dk) */
    float *window;       /* (S, conv_width, C) */
    float *out;          /* (R, out_stride) */
    /* Between the two kernels of many rows; widths padded with zeros. */
    float *qk;                /* (R, A, 2, padded_key) */
    float *v;                 /* (R, B, padded_value) */
    struct delta_key *keys;   /* (R, A) */
    struct delta_gate *gates; /* (R, B) */
    uint64_t in_stride, out_stride;
    uint32_t beta_column, alpha_column;
    uint32_t key_heads, value_heads, key_width, value_width, conv_width, channels;
    uint32_t is_tiled; /* value head v has key head v % A, not v / (B/A) */
    uint32_t slots;    /* S */
    uint32_t tiles;    /* of a value head's columns */
    uint32_t padded_key, padded_value;
    float q_scale; /* 1 / sqrt(dk) */
};

#endif
