/* model.h - a model: its file, its dimensions, its tensors bound by role.
 *
 * In: a GGUF file, a hub folder, or the name of a synthetic model.  Out: plans.  A model is
 * read-only once open and may be shared by threads. What differs between architectures is in
 * arch.h. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "file/folder.h"
#include "file/gguf.h"
#include "model/config.h"
#include "model/hub.h"
#include "model/synth.h"
#include "model/weights.h"
#include "plan/build.h"

/* The tensors of a layer by role; absent ones have n_dims 0. */
struct layer {
    struct operand norm, ffn_norm; /* (D) f32 */
    struct operand q, k, v, o;     /* attention */
    struct operand q_bias, k_bias, v_bias, o_bias;
    struct operand q_norm, k_norm;           /* (d) f32 */
    struct operand qkv, z, beta, alpha, out; /* delta-net */
    struct operand conv, a, dt, head_norm;   /* f32 */
    struct operand gate, up, down;           /* dense FFN */
    struct operand gate_bias, up_bias, down_bias;
    struct operand router, shared_switch; /* MoE, f32: (E, D) and (D) */
    struct operand expert_gate, expert_up, expert_down;
    struct operand shared_gate, shared_up, shared_down;
};

/* The block that predicts the token after next (multi-token prediction); its layer is the last of
 * `layers`. */
struct draft_block {
    struct operand join;                   /* (D, 2 * D); n_dims 0: the model has no draft block */
    struct operand embed_norm, state_norm; /* (D) f32: of the embedding, of the hidden state */
    struct operand norm;                   /* (D) f32: before the head */
    struct operand embed, head;            /* its own, or the trunk's */
};

/* A bound vector, to be checked when the weights are loaded. */
struct bound_vector {
    const char *name;
    uint64_t offset, n; /* in WEIGHTS; values */
    bool is_draft;      /* of the draft block */
    struct bound_vector *next;
};

struct arch; /* arch.h */

struct model {
    struct arena arena;
    const char *path;
    struct gguf *file; /* one of these two */
    struct folder *folder;
    struct synth *synth; /* owner of `file`, for models without one */
    struct hub *hub;     /* with a folder */
    struct gguf *keys;   /* the file's own, or made from the folder's config */
    void *key_bytes;     /* of the latter */
    const struct arch *arch;
    struct config config;
    struct weights *weights;
    struct operand embed, head, head_bias, final_norm, freqs;
    float rope_scale;
    struct layer *layers; /* the trunk's, then that of the draft block */
    struct draft_block draft;
    struct err draft_fault; /* why there is none, where the file promises one */
    struct bound_vector *vectors;
    bool *is_bound;     /* the file's tensors that were asked for; NULL with a folder */
    uint32_t n_skipped; /* unused tensors of the file: vision towers */
};

/* Opens and binds; nothing is mapped yet. Errors begin with the path. */
int model_open(struct model **out, const char *path, struct err *err);
void model_close(struct model *m); /* takes NULL */

/* Refuses a path that is to be written and names one of the model's own files. */
int model_protect(const struct model *m, const char *path, struct err *err);

/* Loads the weights into memory. Once; not while others use m. Vectors (norms, biases, routers, the
 * convolution) that hold NaN or infinities are refused; matrices are too large to check; damage
 * shows in the logits. */
int model_load(struct model *m, struct err *err);
/* The same for backends that keep weights elsewhere: of a synthetic model the first
 * weights->synthetic bytes are left out, which such a backend makes itself. */
int model_map(struct model *m, struct err *err);
/* After either, for engines that use the draft block: fills in those of its weights that are not in
 * the files as they are. Until then they are zero. */
int model_load_draft(struct model *m, struct err *err);

/* A whole step of the model for these options. Taps: none, one after the final norm, or that one
 * last, after those of the embedding and of each layer. With options->has_draft_block the step also
 * keeps the draft block's state. */
int model_plan(struct plan **out, const struct model *m, const struct plan_options *options,
               struct err *err);

/* A step of the draft block, of one row a sequence: it continues from the hidden state in the
 * segment's cell, picks the token after the row's and stores its own hidden state to the row's
 * cell in `to`. STATE is that of plans with has_draft_block, for as far as the block uses it. */
int model_draft_plan(struct plan **out, const struct model *m, const struct plan_options *options,
                     struct err *err);

#endif
