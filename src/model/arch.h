/* arch.h - an architecture: what a file arch_*.c provides, and the functions it uses.
 *
 * It knows its keys and tensors in a GGUF file, their names in a hub folder, and the ops of a
 * layer. To add one, write such a file and add a row to archs.def. */
#ifndef MODEL_ARCH_H
#define MODEL_ARCH_H

#include "model/hub.h"
#include "model/model.h"

enum { MAX_MODEL_TYPES = 4, MAX_NAME_TABLES = 8 };

/* A plan that is being written. */
struct emit {
    const struct model *m;
    struct plan *plan; /* plan->pages: the page table */
    const struct plan_options *options;
    struct operand x;            /* the residual (R, D) */
    struct operand angles;       /* of rotary positions, as in op_embed */
    const struct operand *cache; /* keys and values of the layer; NULL: see emit_cache */
    struct err *err;
};

struct arch {
    const char *name; /* general.architecture, and what its keys begin with */
    /* Fills in the config beyond what all share; refuses what cannot be run. */
    int (*config)(struct model *m, struct err *err);
    /* Finds the tensors of each layer, and of the draft block if there is one, and checks their
     * shapes. */
    int (*bind)(struct model *m, struct err *err);
    /* Adds the ops of one layer, from residual to residual: its mixer and its feed-forward part. */
    int (*emit_layer)(const struct emit *e, uint32_t layer);

    /* Hub folders: all its model_types in config.json; messages name the first. */
    const char *model_types[MAX_MODEL_TYPES];
    /* With use_sliding_window, layer_types or max_window_layers say which layers have a window. */
    bool has_some_windows;
    /* The tensors of a layer; those outside layers; and what a draft block has besides a layer's,
     * of which the first row is always there (NULL: no draft block). Each table ends with an empty
     * row. */
    const struct hub_name *layer_names[MAX_NAME_TABLES];
    const struct hub_name *global_names, *draft_names;
    /* Reads config.json beyond what all share and refuses what cannot be run; NULL: nothing more.
     */
    int (*hub_config)(struct hub *h, struct err *err);
    /* Writes the keys that config() reads. */
    void (*hub_keys)(struct hub_keys *k);
};

#define ARCH(name) extern const struct arch name;
#include "model/archs.def"
#undef ARCH

/* By general.architecture, by model_type; NULL: there is none. */
const struct arch *arch_by_name(const char *name);
const struct arch *arch_by_model_type(const char *type);

/* "llama, qwen2 or qwen3": the names of all, or their model types, for messages. */
enum { ARCH_LIST = 512 };
const char *arch_names(char out[ARCH_LIST]);
const char *arch_model_types(char out[ARCH_LIST]);

/* ---- experts ------------------------------------------------------------------------------ */

enum { MAX_EXPERTS = 4096 };

/* Reads their keys, and finds their tensors and the router's of a layer; a shared expert where the
 * keys give its width. */
int config_experts(struct model *m, struct err *err);
int bind_experts(struct model *m, int block, struct layer *l, struct err *err);

/* ---- tensors ------------------------------------------------------------------------------ */

/* By name; `block` below 0: no "blk.N." before it. A missing tensor is an error unless it may be
 * absent, a wrong shape always. */
enum bind_flags { BIND_OPTIONAL = 1 };
int bind_matrix(struct model *m, int block, const char *name, uint32_t k, uint32_t n,
                unsigned flags, struct operand *out, struct err *err);
int bind_matrices(struct model *m, int block, const char *name, uint32_t k, uint32_t n, uint32_t e,
                  unsigned flags, struct operand *out, struct err *err);
/* A matrix of some rows of the named one. */
int bind_row_parts(struct model *m, int block, const char *name, uint32_t k,
                   const struct row_parts *rows, unsigned flags, struct operand *out,
                   struct err *err);
/* As f32, whatever type the file has: (n), or (n, width) where width is above 0. */
int bind_vector(struct model *m, int block, const char *name, uint32_t n, uint32_t width,
                unsigned flags, struct operand *out, struct err *err);
/* Once all are bound: refuses a file with tensors of layers that the model would run without. */
int bind_check_leftovers(struct model *m, struct err *err);

/* ---- ops ---------------------------------------------------------------------------------- */

/* PROJECTs whose input is the residual, with a norm before it, or whose output is added to it. The
 * caller fills in the rest: n_segments, segments and out, or the prologue and its operands. */
struct op project_from_residual(const struct emit *e, uint32_t layer, const char *role,
                                struct operand norm);
struct op project_to_residual(const struct emit *e, uint32_t layer, const char *role,
                              struct operand in, struct segment segment);

/* Parts that layers share, each from norm to residual. is_gated: each query head has a gate after
 * it. */
int emit_attention(const struct emit *e, uint32_t layer, bool is_gated);
/* Of a layer's attention only what later rows read: no queries, and nothing for the residual. */
int emit_keys_and_values(const struct emit *e, uint32_t layer);
/* Keys and values of a layer: e->cache, or the next pieces of STATE. */
void emit_cache(const struct emit *e, struct operand cache[2]);
int emit_dense(const struct emit *e, uint32_t layer);
int emit_experts(const struct emit *e, uint32_t layer);

/* ---- hub folders -------------------------------------------------------------------------- */

/* Values of config.json. A count is a whole number within [1, max]. *out: if not 0 before the call,
 * the default. */
int hub_count(const struct hub *h, const char *name, uint32_t max, uint32_t *out, struct err *err);
/* true or false; the fallback where it is absent or null. */
int hub_flag(const struct hub *h, const char *name, bool fallback, bool *out, struct err *err);
/* A finite positive number of `object`; the fallback when it is absent. */
int hub_number(const struct hub *h, const json_t *object, const char *name, double fallback,
               double *out, struct err *err);
/* The parameters of rotary embeddings: newer files have rope_parameters, older ones rope_scaling
 * and a rope_theta at the root. NULL: none. */
const json_t *hub_rope(const struct hub *h);
const char *hub_rope_type(const struct hub *h); /* "default" when there is none */

/* Experts in every layer: reads their number and refuses what cannot be run; writes the keys that
 * config_experts reads, but for the shared expert's. */
int hub_experts(struct hub *h, struct err *err);
void hub_put_experts(struct hub_keys *k);
/* The same of norm_topk_prob, for families that have it; fallback: where it is absent. */
void hub_put_norm(struct hub_keys *k, bool fallback);
extern const struct hub_name hub_expert_names[], hub_shared_expert_names[];

/* Anything but the expected value is refused; absent is as expected. */
int hub_refuse_text(const struct hub *h, const char *name, const char *expected, struct err *err);
int hub_refuse_flag(const struct hub *h, const char *name, bool expected, struct err *err);

/* Writes "ARCH.name". The first failure stays in k->status; later calls do nothing. */
void hub_put_u32(struct hub_keys *k, const char *name, uint32_t value);
void hub_put_f32(struct hub_keys *k, const char *name, double value);
void hub_put_bool(struct hub_keys *k, const char *name, bool value);
void hub_put_i32s(struct hub_keys *k, const char *name, const int32_t *values, uint32_t n);
void hub_put_bools(struct hub_keys *k, const char *name, const uint8_t *values, uint32_t n);
/* Copies a count of config.json under our name. */
void hub_copy_count(struct hub_keys *k, const char *theirs, const char *ours);

#endif
