/* config.h - the dimensions of a model, as its file gives them. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "file/gguf.h"
#include "plan/plan.h"

enum { MAX_LAYERS = 1024 };

enum rope_scaling { SCALING_NONE, SCALING_LINEAR, SCALING_YARN };

struct rope {
    double base;
    uint32_t dims; /* how many of a head's values rotate */
    enum rope_pairing pairing;
    enum rope_scaling scaling;
    double factor, attn_factor;
    double ext_factor, beta_fast, beta_slow; /* YaRN */
    uint32_t original_context;
};

struct config {
    char arch[32];
    uint32_t n_layers; /* the trunk: draft blocks are not among them */
    uint32_t n_mtp;    /* draft blocks by the file's keys; see bind_draft */
    uint32_t hidden, ffn, context;
    uint32_t n_vocab;  /* rows of the embedding and the head */
    uint32_t n_tokens; /* of them, real tokens */
    float eps;
    uint32_t pooling; /* as enum sluice_pooling; 0: the file does not say */
    uint32_t heads, kv_heads, head_width;
    struct rope rope;
    bool is_recurrent[MAX_LAYERS]; /* a delta-net layer */
    uint32_t key_heads, value_heads, key_width, value_width, conv_width;
    enum head_map head_map;
    uint32_t experts, experts_used, expert_ffn, shared_ffn;
    bool experts_unnormed; /* as op_route's is_unnormed */
    /* Row widths computed from the above, each checked for overflow. */
    uint32_t q_width, kv_width;                       /* all heads */
    uint32_t delta_values, delta_channels, delta_row; /* B*dv, C, all that goes into DELTA */
    uint32_t experts_row;                             /* of all experts used, and the shared */
};

/* Reads c->arch, the architecture's name, and refuses files that are no models. */
int config_read_arch(struct config *c, const struct gguf *keys, struct err *err);

/* Reads what all architectures share, by keys that begin with c->arch; the rest keeps its defaults.
 */
int config_read(struct config *c, const struct gguf *keys, struct err *err);

/* Reads "ARCH.name"; a required key must be there and within 1..max. */
int config_u32(const struct config *c, const struct gguf *keys, const char *name, uint32_t max,
               bool is_required, uint32_t *out, struct err *err);

/* The same for what may be absent or 0: both leave *out as it is. */
int config_count(const struct config *c, const struct gguf *keys, const char *name, uint32_t max,
                 uint32_t *out, struct err *err);

/* Checks a computed width (UINT64_MAX: overflow); one that is too large is refused by name. */
int config_width(const struct config *c, const struct gguf *keys, const char *what, uint64_t width,
                 uint32_t *out, struct err *err);

/* The frequency of each rotary pair, scaling applied; returns the factor of cos and sin. divisors:
 * of Llama 3 files (dims / 2 of them), or NULL. */
double config_rope_freqs(const struct rope *r, const float *divisors, double *freqs);

#endif
