/* hub.h - a Hugging Face folder (config.json, safetensors, tokenizer.json) in GGUF's terms.
 *
 * Checkpoints on the hub have their own names and layouts: heads in another order, norms stored
 * minus one, experts fused or one by one. This maps them to GGUF's, which Sluice uses; the names
 * are in each architecture's file. In: an open folder.  Out: the keys and tensors that a GGUF file
 * of that model has, the tensors' rows on demand, so that a model need never be in memory. A hub
 * borrows its folder.
 *
 * Read-only once open: several threads may read rows. */
#ifndef MODEL_HUB_H
#define MODEL_HUB_H

#include "base/arena.h"
#include "base/err.h"
#include "file/folder.h"
#include "file/gguf_write.h"
#include "model/row_parts.h"

/* How rows or values are permuted. */
enum hub_order {
    ORDER_SAME,
    ORDER_PAIR_Q, /* rotary halves (i, i + d/2) of a query head to neighbours (2i, 2i + 1) */
    ORDER_PAIR_K,
    ORDER_TILE,         /* value heads grouped by key head to tiled, along the rows */
    ORDER_TILE_HEADS,   /* the same where a head has one row or value */
    ORDER_TILE_TAIL,    /* the same for the v part after q and k */
    ORDER_TILE_COLUMNS, /* the same along the values of a row */
};

/* How each value is changed. */
enum hub_change { CHANGE_NONE, CHANGE_PLUS_ONE, CHANGE_NEG_EXP };

/* Which rows of a source are taken. Halves: of each expert's matrix, where gate and up are one. QKV
 * and Z: of the delta rule's inputs where they are one, grouped by key head. */
enum hub_part { PART_ALL, PART_FIRST_HALF, PART_SECOND_HALF, PART_QKV, PART_Z };

/* A tensor's name on the hub and in GGUF: a row of an architecture's table. A folder may lack it.
 */
struct hub_name {
    const char *theirs; /* '*': the number of an expert; all experts become one tensor */
    const char *ours;
    enum hub_order order;
    enum hub_change change;
    enum hub_part part;
    bool is_squeezed; /* dimensions of size 1, except the first, are dropped */
};

struct hub_tensor {
    const char *name; /* ours: "blk.3.attn_q.weight" */
    uint32_t n_dims;
    uint64_t dims[4];              /* contiguous first */
    const struct tensor **sources; /* n_sources of them: 1, or one per expert; NULL: `values` */
    uint32_t n_sources;
    uint64_t skip_rows, take_rows; /* of each matrix of the source, the rows that are ours; take
                                    * 0: all */
    struct row_parts rows;         /* those of the source that are ours; n_parts 0: all */
    enum hub_order order;
    enum hub_change change;
    const float *values; /* a tensor that no file holds, made here */
};

struct arch;

struct hub {
    struct arena arena;
    const struct folder *folder;
    const struct arch *arch; /* arch.h */
    uint32_t hidden, n_layers, n_mtp, n_heads, n_kv_heads, head_dim, vocab;
    uint32_t key_heads, value_heads, key_dim, value_dim, conv_kernel; /* delta-net */
    uint32_t n_experts;                                               /* 0: none */
    bool is_tied;
    struct hub_tensor *tensors;
    uint32_t n_tensors;
    uint32_t n_skipped; /* tensors of a vision tower, or of a draft block that was not asked for */
};

/* Reads the config, finds every tensor and checks the shapes that reordering relies on. What is not
 * supported is refused by name; unknown tensors are an error. */
int hub_open(struct hub **out, const struct folder *folder, bool with_mtp, struct err *err);
void hub_close(struct hub *hub); /* takes NULL */

/* Whether a tensor of the draft block is missing, and if so its name, ours. Without it the block
 * cannot draft. */
enum { HUB_NAME = 96 };
bool hub_draft_lacks(const struct hub *hub, char name[HUB_NAME]);

/* Rows [first, first + count) of a tensor as f32, in our order and form. */
void hub_read_rows(const struct hub *hub, const struct hub_tensor *t, uint64_t first,
                   uint64_t count, float *out);

/* Keys that are being written. */
struct hub_keys {
    const struct hub *hub;
    struct gguf_writer *w;
    struct err *err;
    int status; /* the first failure */
};

/* The keys that describe the architecture; the tokenizer's are not among them. */
int hub_write_keys(const struct hub *hub, struct gguf_writer *w, struct err *err);

#endif
