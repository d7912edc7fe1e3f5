/* kernels.h - products of weight rows and activation rows, and attention over a split of
 * positions: what has code for each instruction set.
 *
 * The inner loops of the CPU backend. A kernel knows one weight type, one instruction set and
 * one numeric mode; a table gives the best one this machine can run.
 * (1) out[r][n] is a function of weight row n and activation row r alone: the order of its sums
 *     depends on K, never on how many rows share the call or on where they begin.
 * (2) Portable C defines the integer results; every other kernel gives the same integers. The
 *     order of the f32 sums over blocks may differ between instruction sets, not within one.
 * (3) A kernel allocates nothing and keeps nothing: threads may run it side by side. */
#ifndef BACKEND_CPU_KERNELS_H
#define BACKEND_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quant/quant.h"

/* Thirty-two activations as the int8 kernels read them: one cache line a group. Some weight types
 * have a scale for every 16 values, so the sums of both halves are there too. */
struct act_group {
    int8_t q[32];
    float scale;
    float offset;          /* scale * (sum of q): what a weight's minimum is multiplied with */
    int32_t minus_sum;     /* -(sum of q): the first value of a sum over weights kept unsigned, once
                            * it is multiplied with what was added to them */
    int32_t minus_half[2]; /* the same of q[0..15] and q[16..31] */
    float half_offset[2];  /* scale * (sum of either half) */
    int32_t unused;
};
_Static_assert(sizeof(struct act_group) == 64, "a group is a cache line");

/* act_quantize of k values (a multiple of 32) as groups, where every `group` values, 32 or
 * 128, share a scale. Faster where groups are 64-aligned. */
void act_groups(const float *x, uint32_t k, uint32_t group,
                struct act_group *groups /* (k / 32) */);

/* The groups from one row to the next: odd, so that the rows of a batch do not all fall into the
 * same few cache sets (a row of 4096 values is 8 KiB: sixteen such rows share one set of L1). */
static inline size_t act_group_stride(uint32_t k) {
    return k / 32 | 1;
}

/* Rows of activations, K values each. */
struct activations {
    uint32_t n_rows, k;
    const float *x; /* (n_rows, k), rows x_stride apart; unused in int8 mode */
    size_t x_stride;
    const struct act_group *groups; /* (n_rows, k / 32), rows group_stride apart; unused in f32 */
    size_t group_stride;            /* act_group_stride(k) is best; 0 means k / 32 */
};

/* out[r * out_stride + n - first] for weight rows [first, first + count) and all rows of acts.
 * `weights` is the whole matrix as `pack` left it (or as in the file, when pack is NULL). */
typedef void kernel_fn(const void *weights, uint32_t first, uint32_t count,
                       const struct activations *acts, float *out, size_t out_stride);

struct kernel {
    const char *name; /* "q4_k avx512_vnni" */
    enum dtype type;
    bool is_f32;        /* takes f32 activations; otherwise int8 */
    uint32_t features;  /* of base/cpu.h that it needs */
    uint32_t tile_rows; /* first and count are multiples of this, but for the matrix's last rows */
    /* Bytes of a packed matrix, and the packing. NULL: used as it is in the file. A packed
     * matrix begins at a multiple of 64. */
    uint64_t (*packed_bytes)(uint32_t k, uint32_t n);
    void (*pack)(const void *rows, uint32_t k, uint32_t n, void *packed);
    kernel_fn *run;
};

/* The best kernel for a type; never NULL for a type that decodes: portable f32 is always there.
 * exact: f32 activations (F32, F16 and BF16 weights take them in any case). K must be a multiple
 * of 32 for int8 mode; block types are so by themselves. */
const struct kernel *kernel_find(enum dtype type, bool exact, uint32_t features);

/* All rows of the table, for tests: best first within a type and mode. */
const struct kernel *kernel_at(size_t i); /* NULL after the last */

/* ---- attention over one split ------------------------------------------------------------- */

enum {
    ATTEND_POSITIONS = 128,  /* of a split */
    ATTEND_QUERIES = 64,     /* that share the reading of a split */
    ATTEND_MAX_WIDTH = 1024, /* of a head */
};

/* Values from one query, or its PV, to the next: zeros fill up the last vector. */
static inline uint32_t attend_stride(uint32_t width) {
    return (width + 15) / 16 * 16;
}

/* What a query has seen: the largest QK, and the sum of e^(QK - max). */
struct softmax {
    float max, sum;
};

/* Queries of one KV head against up to ATTEND_POSITIONS positions of it. */
struct attend_split {
    enum dtype type; /* of the cache */
    uint32_t width;
    const void *keys, *values; /* (seen, width) of `type`; ATTEND_POSITIONS rows can be read */
    const float *queries;      /* (n_queries, stride), already scaled; f16 values over f16 */
    const uint32_t *seen;      /* (n_queries) positions: never fewer than the query before */
    uint32_t n_queries;
    struct softmax *sums; /* out: (n_queries) */
    float *pv;            /* out: (n_queries, stride), the sum over positions of e^(QK - max) V */
    float *tile;          /* scratch: (ATTEND_POSITIONS, stride) */
    float *qk;            /* scratch: (n_queries, ATTEND_POSITIONS) */
    const void *next;     /* the keys of the split after this one, to be fetched; NULL: unknown */
};

/* Queries that see nothing get max 0, sum 0, and zeros. All instruction sets give the same bits,
 * and a query the same in any company:
 *   qk   four fused chains over i % 4, added as (0 + 1) + (2 + 3)
 *   sum  sixteen chains over p % 16, added as a tree: l and l + 8, then l + 4 ...
 *   pv   one fused chain over the positions, for each value
 * Over f16 the weights e^(QK - max) are rounded to f16, and summed so: f32 holds the product of two
 * f16 exactly, so instructions that take f16 and add to f32 have the bits of those that take f32.
 */
typedef void attend_fn(const struct attend_split *split);

struct attend_kernel {
    const char *name;
    uint32_t features; /* of base/cpu.h that it needs */
    attend_fn *run;
};

const struct attend_kernel *attend_find(uint32_t features); /* the best one; never NULL */
const struct attend_kernel *attend_at(size_t i);            /* NULL after the last */

#endif
