/* vulkan.h - the Vulkan backend's host side: a step is one command buffer, recorded once.
 *
 * At load every op of a plan lists its dispatches (vulkan_record_*, one file of ops/ each). The
 * list becomes a command buffer with the barriers that its operands need, and from then on that
 * buffer is only submitted.
 * (1) What differs between two steps is in IO. Push constants and descriptors are those of the
 *     recording.
 * (2) A result's bits depend on its own row alone: never on the rows beside it, on the bucket, or
 *     on which workgroup was first. No float atomics.
 * (3) Nothing is allocated after load.
 * (4) Every buffer of a shader is a storage buffer of one operand: no buffer is larger than
 *     maxStorageBufferRange, and nothing needs buffer device addresses. Weights are as in the file,
 *     but for Q6_K that is not imported (vulkan_weight_type).
 */
#ifndef BACKEND_VULKAN_HOST_VULKAN_H
#define BACKEND_VULKAN_HOST_VULKAN_H

#include "backend/backend.h"
#include "backend/vulkan/host/driver.h"
#include "backend/vulkan/host/hazards.h"

enum {
    VULKAN_MAX_BINDS = 12,
    VULKAN_MAX_CONSTANTS = 24,
    VULKAN_PUSH_WORDS = 23,
    VULKAN_COUNTERS = 256,
    VULKAN_STAGES = 1024, /* counters of stages (stage.glsl), a cache line each */
    VULKAN_STAGE_WORDS = 32,
    VULKAN_LOW_POSITIONS = 1024, /* of the first table of angles; embed.comp */
};

/* One dispatch. Binding i of set 0 is binds[i]; specialization constant i is constants[i], and
 * constant 0 is local_size_x; push constants are struct vulkan_io_at, then `push`. */
struct vulkan_dispatch {
    const char *shader; /* its name in shaders/shaders.list */
    uint32_t groups[3];
    uint32_t constants[VULKAN_MAX_CONSTANTS];
    uint32_t n_constants;
    bool needs_full_subgroups; /* the shader numbers its threads by subgroups */
    bool has_stage; /* the shader waits for the stage before it, and is counted, in a plan of one
                     * row: stage.glsl */
    bool resets_stages;
    struct vulkan_bind binds[VULKAN_MAX_BINDS];
    uint32_t n_binds;
    const void *push; /* at most VULKAN_PUSH_WORDS words */
    uint32_t push_bytes;
};

/* Where the parts of IO are, in words, and stage.glsl's word; the first push constants of every
 * shader (io.glsl). */
struct vulkan_io_at {
    uint32_t rows, segments, to, outputs, changes, biases, masks, keeps, stage;
};

/* What the device can do; a shader that needs more has one beside it that does not. */
struct vulkan_features {
    uint32_t subgroup_size; /* 4 to 128 */
    uint32_t shared_bytes;  /* a workgroup may have; 16 KB at least */
    uint32_t max_threads;   /* of a workgroup; 128 at least */
    uint64_t max_range;     /* bytes of a storage buffer; 128 MiB at least */
    uint32_t n_cores;       /* compute units, where they are known; else a guess */
    bool has_dot;           /* 4 int8 products in an instruction, accelerated */
    bool has_matrix;        /* products of f16 matrices, 16 x 16 x 16, by subgroups of 32 */
    bool has_plain_matrix;  /* their products by plain code, for tests */
    bool has_device_scope;  /* workgroups see each other's writes within a dispatch */
    bool starts_in_order;   /* workgroups start after those of earlier dispatches: stage.glsl */
    bool is_unified;        /* the device's memory is the host's */
    bool is_processor;      /* a driver that runs on the processor */
};

/* What a record function reads and adds to. Each runs twice: once to count memory (is_counting),
 * once to record. */
struct vulkan_recording;
struct vulkan_recorder {
    const struct plan *plan;
    const struct vulkan_features *can;
    bool exact; /* f32 activations throughout */
    bool is_counting;
    struct backend *b;
    struct err *err;
    struct vulkan_recording *into;
    uint32_t step, n_steps; /* of a burst */
    bool is_greedy;         /* outputs all take the best token of their logits as they are */
    uint32_t op;            /* the running one */
    uint64_t work_used, work_peak;
};

/* What a dispatch reads or writes is said by the operands it binds, and barriers follow from that:
 * so a shader that writes only some columns of a row says so (operand_columns).
 */

/* An operand as a shader's buffer. Its first value is number *first of it (in values of its type;
 * quantized ones: in bytes): 0 for whole operands, more for columns of a row. */
struct vulkan_bind vulkan_operand(struct vulkan_recorder *r, const struct operand *o,
                                  enum vulkan_access access, uint32_t *first);
/* The operand, or another where there is none: a binding has to have something. */
static inline struct vulkan_bind vulkan_operand_or(struct vulkan_recorder *r,
                                                   const struct operand *o,
                                                   const struct operand *other,
                                                   enum vulkan_access access, uint32_t *first) {
    return vulkan_operand(r, o->n_dims ? o : other, access, first);
}
/* Rows [row, row + n) of a matrix, for one that is larger than max_range. */
struct vulkan_bind vulkan_matrix_rows(struct vulkan_recorder *r, const struct operand *weight,
                                      uint32_t row, uint32_t n);
/* One bind for n matrices, which begin at bytes firsts[i] of it; false: they are too far apart, or
 * not by whole vectors of 16 bytes. */
bool vulkan_join(struct vulkan_recorder *r, const struct operand *const *all, uint32_t n,
                 struct vulkan_bind *out, uint32_t *firsts);
/* A weight's type as shaders know it, and bytes from row to row. A block of Q6_K has 210 bytes, so
 * that nothing of it begins at a whole word; where it is not imported a row has planes instead: low
 * bits of all their blocks, high bits, scales, d, and zeros up to a multiple of 16 bytes. */
enum { VULKAN_Q6_K_PLANES = 64 };
uint32_t vulkan_weight_type(const struct vulkan_recorder *r, const struct operand *weight);
uint64_t vulkan_weight_row_bytes(const struct vulkan_recorder *r, const struct operand *weight);
/* How many rows of a matrix fit a buffer; all of them, mostly. */
uint32_t vulkan_rows_per_bind(const struct vulkan_recorder *r, const struct operand *weight);
/* Workspace of the running op alone: the next op's dispatches overwrite it. */
struct vulkan_bind vulkan_work(struct vulkan_recorder *r, uint64_t bytes);
/* IO: the device's copy, and the host's block. */
struct vulkan_bind vulkan_io_copy(struct vulkan_recorder *r, enum vulkan_access access);
struct vulkan_bind vulkan_io_host(struct vulkan_recorder *r, enum vulkan_access access);

/* cos and sin of position * frequency, in two tables that are multiplied (embed.comp): (1024, n, 2)
 * f32 of the position's low ten bits, then (*n_high, n, 2) of the others. freqs: an EMBED's. */
struct vulkan_bind vulkan_angles(struct vulkan_recorder *r, const struct operand *freqs,
                                 uint32_t *n_high);

/* The codebooks of IQ1, IQ2_S, IQ2_XS, IQ3_S, IQ2_XXS and IQ3_XXS (types.glsl): 16 bits an entry.
 */
struct vulkan_bind vulkan_grids(struct vulkan_recorder *r);

/* VULKAN_COUNTERS words that are 0 between two dispatches: who counts in them sets them back. */
struct vulkan_bind vulkan_counter_words(struct vulkan_recorder *r);

/* The same bytes with another access: a dispatch reads what the one before it wrote. */
static inline struct vulkan_bind vulkan_as(struct vulkan_bind b, enum vulkan_access access) {
    b.access = (uint8_t)access;
    return b;
}

/* Adds a dispatch to the step. The barriers that it needs follow from its binds and those of the
 * dispatches before it. */
int vulkan_add(struct vulkan_recorder *r, const struct vulkan_dispatch *d);

/* One function an op. What the shaders cannot do is refused here, with the reason. */
typedef int vulkan_record_fn(struct vulkan_recorder *r, const struct op *op);
#define OP(kind, name, member) vulkan_record_fn vulkan_record_##member;
#include "plan/ops.def"
#undef OP

#endif
