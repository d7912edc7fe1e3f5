/* plan.h - the interface between models and backends: what one step does, as plain data.
 *
 * Models write plans and never see a device; backends read plans and never see a model. A plan is
 * an array of ops over operands in four regions whose addresses never change. It depends on the
 * model, the row bucket and the options alone: per-step values are in IO.
 *
 * Dimension letters, the same in all modules:
 *   R rows of a step      O rows that go through the head
 *   D hidden width        F width between gate/up and down      V vocabulary rows
 *   K values of a weight row (the sum runs over them)           N weight rows (results)
 *   H query heads         G key/value heads                     d head width
 *   A/B delta-net key/value heads, C its convolution channels   E experts, U of them used
 *   S slots (sequences)   P pages of KV cache */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "plan/fuse.h"
#include "quant/quant.h"

enum region { REGION_WEIGHTS, REGION_STATE, REGION_SCRATCH, REGION_IO, REGION_COUNT };

/* Rows of values in a region. n_dims 0: absent. */
struct operand {
    uint8_t region; /* enum region */
    uint8_t type;   /* enum dtype */
    uint16_t n_dims;
    uint32_t dims[4]; /* contiguous first, as in files; those beyond n_dims are 1 */
    uint32_t stride;  /* values from one row (dims[1]) to the next; dims[0] unless part of a row */
    uint32_t plane;   /* rows from one matrix (dims[2]) to the next; dims[1] unless part of one */
    uint32_t zero;    /* no byte of a plan is padding: two are compared as bytes */
    uint64_t offset;  /* bytes from the region's start */
};

enum op_kind {
#define OP(kind, name, member) OP_##kind,
#include "plan/ops.def"
#undef OP
    OP_KIND_COUNT,
};

/* x[r] = row token[r] of the table; and the rotary angles of the step's positions, which all
 * attention layers share: cos and sin of position * frequency, times rope_scale. */
struct op_embed {
    struct operand table;  /* (V, D) any type */
    struct operand x;      /* (R, D) f32 */
    struct operand freqs;  /* (rotary / 2) f64; none: no attention layer */
    struct operand angles; /* (R, rotary / 2, 2) f32: cos, sin */
    float rope_scale;
    uint32_t zero;
};

enum { MAX_SEGMENTS = 6 };

struct segment {
    struct operand weight; /* (N, K) any type */
    struct operand bias;   /* (N) f32, or none */
    uint32_t column;       /* column of the output row where its N results begin; SwiGLU: 0 */
    uint32_t f32_act;      /* 1: multiplied with f32 activations in every mode */
};

/* out = epilogue(weights * prologue(in)), row by row. */
struct op_project {
    struct operand in;   /* (R, K) f32 */
    struct operand norm; /* f32: (K) or (d) */
    struct operand gate; /* (R, K) f32, in heads of head_width, gate_stride apart */
    struct operand out;  /* (R, N of all segments) f32; SwiGLU (R, N); head (O, V) */
    struct segment segments[MAX_SEGMENTS];
    uint32_t n_segments;
    enum prologue prologue;
    enum epilogue epilogue;
    uint32_t head_width, gate_stride;
    float eps;
    uint32_t is_lm_head; /* 1: only the rows that IO lists as outputs, in that order */
    uint32_t zero;
};

enum head_map { HEADS_GROUPED, HEADS_TILED }; /* value head v has key head v/(B/A), or v%A */

/* The gated delta rule over each segment's rows in order, from and to the cells that IO names.
 * Of a row of `in`: qkv at column 0 (2*A*dk + B*dv = C values), then as the columns say. */
struct op_delta {
    struct operand in;     /* (R, C + B*dv + 2*B) f32: qkv, z, beta, alpha */
    struct operand conv;   /* (C, conv_width) f32, oldest tap first */
    struct operand a, dt;  /* (B) f32: g = a * softplus(alpha + dt) */
    struct operand state;  /* (cells, B, dv, dk) f32 */
    struct operand window; /* (cells, conv_width, C) f32: a ring, column position % conv_width */
    struct operand out;    /* (R, B*dv) f32 */
    uint32_t beta_column, alpha_column;
    uint32_t key_heads, value_heads, key_width, value_width, conv_width;
    enum head_map head_map;
};

enum rope_pairing { ROPE_HALVES, ROPE_NEIGHBOURS }; /* (i, i + n/2) or (2i, 2i + 1) */

/* Attention of each row to its sequence up to itself; keys and values stored on the way. Without
 * heads they are only stored, and there is no `out`.
 * Rows of the running segment are taken from `in`, rounded to the cache's type first. */
struct op_attend {
    struct operand in;             /* (R, ...) f32: heads of q (q_stride apart), then k, then v */
    struct operand q_norm, k_norm; /* (d) f32, or none */
    struct operand angles;         /* as in op_embed */
    struct operand keys, values;   /* (P, G, IO_PAGE_POSITIONS, d) of the cache's type */
    struct operand pages;          /* the plan's page table */
    struct operand out;            /* (R, H*d) f32 */
    uint32_t q_stride, k_column, v_column;
    uint32_t heads, kv_heads, head_width, rotary;
    enum rope_pairing pairing;
    float eps, scale;
};

/* Norm, router logits in f32, softmax, the U best, renormalised; the shared expert's switch,
 * sigmoid(norm(in) . shared_switch). */
struct op_route {
    struct operand in;            /* (R, D) f32 */
    struct operand norm;          /* (D) f32 */
    struct operand router;        /* (E, D) f32 */
    struct operand shared_switch; /* (D) f32, or none */
    struct operand choice;        /* (R, U + 1) u32: expert ids; the last is E, the shared expert */
    struct operand weight;        /* (R, U + 1) f32 */
    float eps;
    uint32_t used;
    bool is_unnormed; /* the chosen experts' weights are those of a softmax over all experts; else
                       * they are normalized again, to add up to 1 */
};

/* hidden[r][j] = SwiGLU of expert choice[r][j], gate and up; the shared expert last. */
struct op_experts_in {
    struct operand in, norm;               /* as in op_route */
    struct operand gate, up;               /* (E, Fe, D) any type */
    struct operand shared_gate, shared_up; /* (Fs, D), or none */
    struct operand choice;
    struct operand hidden; /* (R, U*Fe + Fs) f32 */
    float eps;
    uint32_t zero;
};

/* x[r] += sum over j of weight[r][j] * down(choice[r][j]) * hidden[r][j]. */
struct op_experts_out {
    struct operand hidden, choice, weight;
    struct operand down;        /* (E, D, Fe) any type */
    struct operand shared_down; /* (D, Fs), or none */
    struct operand x;           /* (R, D) f32 */
};

/* Copies the residual of the output rows out, for checks; with a norm: normed. */
struct op_tap {
    struct operand x, norm;
    struct operand out; /* (O, D) f32 */
    float eps;
    uint32_t zero;
};

/* The input of a draft block: out[r] = rms(embed[r], embed_norm), then rms(h, state_norm), where h
 * is the hidden state one position earlier: of the row before it in its segment, rms(x[r - 1],
 * norm); before the segment's first row, that of its cell. Without x every segment has one row. */
struct op_join {
    struct operand embed;                  /* (R, D) f32 */
    struct operand x, norm;                /* (R, D) and (D) f32, or none */
    struct operand embed_norm, state_norm; /* (D) f32 */
    struct operand state; /* (cells, D) f32: hidden states, as HIDDEN stores them */
    struct operand out;   /* (R, 2 * D) f32 */
    float eps;
    uint32_t zero;
};

/* Stores the hidden states, rms(x[r], norm), after the rows that IO's `to` names a cell for. */
struct op_hidden {
    struct operand x, norm; /* (R, D) and (D) f32 */
    struct operand state;   /* (cells, D) f32 */
    float eps;
    uint32_t zero;
};

/* Picks a token for each output that wants one, and copies out the logits that are wanted. */
struct op_pick {
    struct operand logits;   /* (O, V) f32 */
    struct operand wanted;   /* (O, V) f32 in IO: the logits of rows that want them */
    struct operand counts;   /* (S, V) u16: how often each token occurs in the sequence; or none */
    struct operand adjusted; /* (O, V) f32: logits with penalties and biases */
    struct operand order;    /* (O, V) u64: scratch to sort in */
};

struct op {
    enum op_kind kind;
    int32_t layer;    /* -1: none */
    const char *role; /* "mix in", "mix out", "ffn in", "ffn out", "head" ... static */
    union {
#define OP(kind, name, member) struct op_##member member;
#include "plan/ops.def"
#undef OP
    };
};

/* How many int8 activations of a row share a scale in PROJECT, EXPERTS_IN and EXPERTS_OUT: 128
 * where one of the matrices multiplied with int8 activations is Q4_K, Q5_K or Q6_K, or all of them
 * are Q8_0, and the rows of all are whole groups; 32 elsewhere, and in all other ops. Matrices of
 * F32, F16 and BF16 and segments with f32_act use f32 activations and do not count. Results depend
 * on it, so it is the same on every backend.
 *
 * Integer products of four blocks of 32 can then be added as integers, which saves a GPU most of
 * its float instructions (for Q8_0, which has a scale for every 32, four of ten). Q4_1 loses too
 * much accuracy by it (docs/results.md): without a K-quant in the op other types keep 32. */
uint32_t op_act_group(const struct op *op);

/* Offsets of the parts of IO. */
struct io_layout {
    uint64_t rows, segments, to, outputs, changes, biases, masks, keeps, burst, taps, logits, bytes;
    uint32_t max_changes, max_biases;
};

struct plan {
    struct arena arena;
    struct op *ops;
    uint32_t n_ops, capacity;
    uint32_t max_rows, max_outputs; /* R and O */
    uint32_t burst_steps;           /* steps of a burst of this plan; 0: IO_BURST */
    uint32_t n_vocab; /* V, tokens that are picked from: a draft may leave out the last ones */
    uint32_t n_taps, tap_width;
    struct operand pages; /* (S, pages per sequence) i32 in STATE: the page table that all attention
                           * layers share; none: the plan has no attention */
    struct io_layout io;
    uint64_t bytes[REGION_COUNT]; /* what the plan needs of each region */
    struct plan_builder *builder; /* of build.c, unused after plan_finish */
    struct err fault;             /* the first operand that could not be handed out; code 0: none */
};

#endif
