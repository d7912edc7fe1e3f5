/* cpu.h - the CPU backend's insides: the definition that other backends are tested against.
 *
 * A recording is the op list itself with its weights found; a step is a walk of all threads over
 * it, a barrier between ops.
 * (1) Every result is computed by one thread in an order that depends on shapes alone: the same
 *     bits for any number of threads and any other rows.
 * (2) A thread writes only its share of an op's output; what others need of it they read after a
 *     barrier.
 * (3) A cancelled step ends after the op in which a thread saw the flag: threads skip work inside
 *     an op, never a barrier, and all of them leave after the same op. */
#ifndef BACKEND_CPU_CPU_H
#define BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "base/filemap.h"
#include "base/pool.h"
#include "plan/io.h"

/* A weight matrix with the kernel that runs it. */
struct cpu_weight {
    const struct kernel *kernel;
    const uint8_t *data;  /* packed, or as in the file */
    uint64_t plane_bytes; /* from one matrix to the next, for experts */
    bool is_on_disk;
};

enum { MAX_WEIGHTS = 6 };

struct cpu_op {
    const struct op *op;
    struct cpu_weight weights[MAX_WEIGHTS]; /* segments of a PROJECT; gate, up, shared ... */
    bool needs_int8;                        /* some weight is multiplied with int8 activations */
    bool needs_f32;                         /* some weight is multiplied with f32 ones */
    uint32_t act_group;                     /* how many of them share a scale */
    const float *taps;                      /* DELTA: (conv_width, C), the convolution transposed */
    bool is_ranked; /* LM head and its PICK: the head ranks its logits while they are near */
};

struct cpu_recording {
    const struct plan *plan;
    struct cpu_op *ops;
};

/* A weight that was packed: several plans share it. */
struct cpu_packed {
    uint64_t offset; /* in WEIGHTS */
    const struct kernel *kernel;
    uint64_t at, bytes, plane_bytes; /* in the packed block, or in the file on disk */
    bool is_on_disk;
    const struct operand *operand;
};

/* One thread's own scratch memory. */
struct cpu_scratch {
    float *tile;              /* results of a few weight rows for all rows */
    float *keys;              /* (ATTEND_POSITIONS, d), decoded */
    float *qk;                /* (ATTEND_QUERIES, ATTEND_POSITIONS) */
    float *query, *pv, *part; /* (ATTEND_QUERIES, d) */
    float *delta;             /* (DELTA_BLOCK_ROWS, 2, dk) */
};

struct backend {
    struct pool *pool;
    int threads;
    bool exact;
    uint32_t features;
    const struct attend_kernel *attend;
    uint8_t *region[REGION_COUNT];
    uint64_t bytes[REGION_COUNT];
    uint64_t mapped, released; /* of WEIGHTS: from files; of these, packed and released */
    struct cpu_recording *recordings;
    uint32_t n_recordings;
    struct cpu_packed *packed;
    uint32_t n_packed;
    uint8_t *packed_block, *work_block;
    uint64_t packed_bytes, work_bytes;
    /* Weights on disk: packed ones, and of `mapped` those that need not be in memory. */
    const char *weights_dir;        /* NULL: all weights are in memory */
    uint64_t memory, weights_bytes; /* for all; for packed weights at most */
    struct filemap disk;
    uint64_t disk_bytes, stacks_at, paged; /* matrices are first in the file, then stacks */
    /* Shared scratch memory: the rows an op multiplies, prepared. */
    float *rows;              /* (R or R * U, K) */
    struct act_group *groups; /* the same as int8 */
    float *conv;              /* (R, C) */
    float *parts; /* (n_parts, d): PV of a query and a split, where threads share splits */
    struct softmax *part_sums;
    uint64_t n_parts;
    uint32_t *list; /* experts: pairs sorted by expert, and where each expert's begin */
    int32_t *ranks; /* (O, rank_blocks(V)): of the logits, by block */
    struct cpu_scratch *scratch; /* (threads) */
    struct backend_counters counters;
    const struct backend_observer *observer; /* NULL: nobody */
    /* The running step. */
    const struct cpu_recording *running;
    double *op_seconds; /* NULL: not timed */
    uint32_t only_op;   /* of run_op */
    const atomic_bool *cancel;
    /* Some thread saw the flag in an op, by the lowest bit of the op's number: while a slow thread
     * still reads one of them, a fast one can only write the other. */
    atomic_bool is_cut[2];
};

/* What a thread knows while it walks the ops. */
struct cpu_step {
    struct backend *b;
    const struct cpu_op *op;
    uint32_t op_number;
    const struct plan *plan;
    const struct io_header *io;
    const struct io_row *rows;
    const struct io_segment *segments;
    const uint32_t *to; /* (rows) cells */
    struct io_output *outputs;
    int thread, threads;
    struct cpu_scratch *scratch;
};

typedef void cpu_op_fn(struct cpu_step *s);
#define OP(kind, name, member) cpu_op_fn cpu_##member;
#include "plan/ops.def"
#undef OP

/* Rows of a tile's weights: about what fits into L1 together with the activations. */
enum { TILE_VALUES = 16384, DELTA_BLOCK_ROWS = 32 };

/* ---- shared by the ops -------------------------------------------------------------------- */

static inline void *at(const struct cpu_step *s, const struct operand *o) {
    return s->b->region[o->region] + o->offset;
}

static inline float *row_of(const struct cpu_step *s, const struct operand *o, uint64_t row) {
    return (float *)at(s, o) + row * o->stride;
}

static inline void barrier(struct cpu_step *s) {
    pool_barrier(s->b->pool);
}

/* True when the step was cancelled: the rest of this thread's share may be skipped. Asked about
 * every few milliseconds of work. */
static inline bool is_cancelled(struct cpu_step *s) {
    if (!atomic_load_explicit(s->b->cancel, memory_order_relaxed))
        return false;
    atomic_store_explicit(&s->b->is_cut[s->op_number % 2], true, memory_order_relaxed);
    return true;
}

/* This thread's part of 0..count, in whole multiples of grain. */
struct share {
    uint32_t begin, end;
};
static inline struct share share_of(const struct cpu_step *s, uint32_t count, uint32_t grain) {
    uint64_t pieces = (count + (uint64_t)grain - 1) / grain;
    uint64_t begin = pieces * (uint64_t)s->thread / (uint64_t)s->threads * grain;
    uint64_t end = pieces * (uint64_t)(s->thread + 1) / (uint64_t)s->threads * grain;
    return (struct share){(uint32_t)(begin < count ? begin : count),
                          (uint32_t)(end < count ? end : count)};
}

/* How many weight rows to multiply at once, in multiples of grain, so that their results for n rows
 * stay in the cache. */
static inline uint32_t tile_rows(uint32_t n, uint32_t grain) {
    uint32_t rows = TILE_VALUES / n / grain * grain;
    return rows ? rows : grain;
}

/* Gives an observer n rows of x, a matrix's input. Thread `number` % threads does it. */
static inline void observe(struct cpu_step *s, uint32_t number, const struct operand *weight,
                           uint32_t matrix, const float *x, uint32_t n) {
    const struct backend_observer *o = s->b->observer;
    if (o && number % (uint32_t)s->threads == (uint32_t)s->thread)
        o->rows(o->user, weight, matrix, x, n);
}

/* ---- workspace.c -------------------------------------------------------------------------- */

/* The largest need of any op, in values; UINT64_MAX: more than can be counted. */
struct cpu_needs {
    uint64_t rows, n_rows, conv, list, tile, taps, ranks;
    uint64_t width, parts, key_width;
};
struct cpu_needs workspace_needs(struct plan *const *plans, uint32_t n_plans, int threads);

/* Hands out pieces of one block; with no block it only counts. */
struct cpu_cutter {
    uint8_t *block;
    uint64_t used;
};
/* A piece for `count` values of this size, in whole cache lines. */
void *workspace_cut(struct cpu_cutter *c, uint64_t count, uint64_t size);
/* Cuts what the ops need: what threads share into b, what each has for itself into scratch
 * (threads), which is NULL where it is only counted. */
void workspace_lay_out(struct backend *b, struct cpu_cutter *c, const struct cpu_needs *n,
                       struct cpu_scratch *scratch);
/* Values of a DELTA's convolution, in whole cache lines. */
uint64_t workspace_taps(const struct op_delta *d);

/* ---- packed.c ----------------------------------------------------------------------------- */

/* Lists what the plans need packed. */
int packed_list(struct backend *b, struct plan *const *plans, uint32_t n_plans, struct err *err);
/* Decides what of it is on disk; *m, all else that load would take, gets the sums. */
void packed_place(struct backend *b, struct backend_memory *m);
/* Packs it, into b->packed_block and a file that it makes. */
int packed_make(struct backend *b, void (*progress)(void *user, uint64_t done, uint64_t total),
                void *user, struct err *err);
/* Fills in the op's weights. */
void packed_find(const struct backend *b, struct cpu_op *c);
/* Starts to read one matrix of a stack, if that is on disk. */
void packed_will_need(const struct cpu_weight *w, uint32_t matrix);

/* ---- shared by the ops, defined in one of them --------------------------------------------- */

/* y = rms norm of x, times w. */
void cpu_norm(float *y, const float *x, const float *w, float eps, uint32_t n);

/* Ranks a part of output i's logits for PICK; the part begins at a multiple of RANK_BLOCK. */
void cpu_rank_logits(struct cpu_step *s, uint32_t i, const float *logits, struct share part);

/* Quantizes k values into row r of b->groups, as the running op has them. */
void cpu_quantize_row(struct cpu_step *s, const float *x, uint32_t r, uint32_t k);

/* The first n rows of b->rows as a kernel wants them. */
struct activations cpu_activations(const struct backend *b, uint32_t first, uint32_t n, uint32_t k);

#endif
