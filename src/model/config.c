/* config.c - the dimensions of a model, as its file gives them. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"

#define PI 3.14159265358979323846

static const char *full_name(const struct config *c, const char *name, char out[128]) {
    snprintf(out, 128, "%s.%s", c->arch, name);
    return out;
}

int config_u32(const struct config *c, const struct gguf *keys, const char *name, uint32_t max,
               bool is_required, uint32_t *out, struct err *err) {
    char full[128];
    full_name(c, name, full);
    int got = gguf_get_u32(keys, full, out, err);
    if (got < 0)
        return got;
    if (got == 0 && is_required)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key %s is missing", keys->path, full);
    if (got == 1 && (*out < 1 || *out > max))
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key %s is %u, expected 1 to %u", keys->path,
                       full, *out, max);
    return SLUICE_OK;
}

int config_count(const struct config *c, const struct gguf *keys, const char *name, uint32_t max,
                 uint32_t *out, struct err *err) {
    char full[128];
    uint32_t count = 0;
    int got = gguf_get_u32(keys, full_name(c, name, full), &count, err);
    if (got < 0)
        return got;
    if (count > max)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key %s is %u, expected at most %u", keys->path,
                       full, count, max);
    *out = count ? count : *out;
    return SLUICE_OK;
}

int config_width(const struct config *c, const struct gguf *keys, const char *what, uint64_t width,
                 uint32_t *out, struct err *err) {
    if (width < 1 || width > INT32_MAX)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "%s: %s of %s make rows of %s%llu values, expected 1 to %d", keys->path,
                       what, c->arch, width == UINT64_MAX ? "more than " : "",
                       (unsigned long long)width, INT32_MAX);
    *out = (uint32_t)width;
    return SLUICE_OK;
}

/* A positive finite number, optional. */
static int read_f64(const struct config *c, const struct gguf *keys, const char *name, double *out,
                    struct err *err) {
    char full[128];
    float v;
    int got = gguf_get_f32(keys, full_name(c, name, full), &v, err);
    if (got < 0)
        return got;
    if (got == 1 && !(v > 0 && isfinite(v)))
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key %s is %g, expected a finite number above 0",
                       keys->path, full, (double)v);
    if (got == 1)
        *out = v;
    return SLUICE_OK;
}

static int read_rope(struct config *c, const struct gguf *keys, struct err *err) {
    struct rope *r = &c->rope;
    char full[128];
    struct str type = STR("none");
    double yarn_attn_factor = 1;
    int status;
    *r = (struct rope){.base = 10000,
                       .dims = c->head_width,
                       .factor = 1,
                       .attn_factor = 1,
                       .ext_factor = 1,
                       .beta_fast = 32,
                       .beta_slow = 1,
                       .original_context = c->context};
    if ((status =
             config_u32(c, keys, "rope.dimension_count", c->head_width, false, &r->dims, err)) ||
        (status = config_u32(c, keys, "rope.scaling.original_context_length", UINT32_MAX, false,
                             &r->original_context, err)) ||
        (status = read_f64(c, keys, "rope.freq_base", &r->base, err)) ||
        (status = read_f64(c, keys, "rope.scale_linear", &r->factor, err)) ||
        (status = read_f64(c, keys, "rope.scaling.factor", &r->factor, err)) ||
        (status = read_f64(c, keys, "rope.scaling.attn_factor", &r->attn_factor, err)) ||
        (status = read_f64(c, keys, "rope.scaling.yarn_ext_factor", &r->ext_factor, err)) ||
        (status = read_f64(c, keys, "rope.scaling.yarn_attn_factor", &yarn_attn_factor, err)) ||
        (status = read_f64(c, keys, "rope.scaling.yarn_beta_fast", &r->beta_fast, err)) ||
        (status = read_f64(c, keys, "rope.scaling.yarn_beta_slow", &r->beta_slow, err)))
        return status;
    r->attn_factor *= yarn_attn_factor;
    if (r->dims % 2 != 0)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: key %s.rope.dimension_count is %u, expected an even number", keys->path,
                       c->arch, r->dims);
    int got = gguf_get_str(keys, full_name(c, "rope.scaling.type", full), &type, err);
    if (got < 0)
        return got;
    if (str_is(type, "yarn"))
        r->scaling = SCALING_YARN;
    else if (str_is(type, "linear") || (got == 0 && r->factor != 1))
        r->scaling = SCALING_LINEAR;
    else if (!str_is(type, "none"))
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "%s: key %s is %.*s, expected none, linear or yarn", keys->path, full,
                       STR_ARG(type));
    return SLUICE_OK;
}

/* Refuses what would give wrong results, by name. */
static int refuse_unsupported(const struct config *c, const struct gguf *keys, struct err *err) {
    static const char *const names[] = {"attention.sliding_window",
                                        "attn_logit_softcapping",
                                        "final_logit_softcapping",
                                        "logit_scale",
                                        "attention.clamp_kqv",
                                        "attention.max_alibi_bias",
                                        "attention.scale",
                                        "embedding_scale",
                                        "residual_scale"};
    char full[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct gguf_key *key = gguf_key(keys, full_name(c, names[i], full));
        if (key && !key->is_array && key->type != GGUF_STRING && key->type != GGUF_BOOL &&
            gguf_float_at(key, 0) != 0)
            return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s: key %s is %g, which is not supported",
                           keys->path, full, gguf_float_at(key, 0));
    }
    bool is_causal = true;
    int got = gguf_get_bool(keys, full_name(c, "attention.causal", full), &is_causal, err);
    if (got < 0)
        return got;
    if (!is_causal)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s: key %s is false, which is not supported",
                       keys->path, full);
    return SLUICE_OK;
}

static int read_eps(struct config *c, const struct gguf *keys, struct err *err) {
    char full[128];
    int got =
        gguf_get_f32(keys, full_name(c, "attention.layer_norm_rms_epsilon", full), &c->eps, err);
    if (got < 0)
        return got;
    if (got == 0 || !(c->eps > 0 && c->eps < 1))
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key %s is %g, expected between 0 and 1",
                       keys->path, full, got ? (double)c->eps : 0.0);
    return SLUICE_OK;
}

/* Values that are not supported are refused where pooling is done. */
static int read_pooling(struct config *c, const struct gguf *keys, struct err *err) {
    char full[128];
    int got = gguf_get_u32(keys, full_name(c, "pooling_type", full), &c->pooling, err);
    return got < 0 ? got : SLUICE_OK;
}

/* Files that go with a model and are none. */
static int refuse_other_kinds(const struct gguf *keys, struct err *err) {
    static const struct {
        const char *type, *words;
    } kinds[] = {
        {"adapter", "is an adapter, expected a model; it has to be merged into its model"},
        {"imatrix", "is an importance matrix, expected a model"},
        {"mmproj", "is for images (mmproj), expected the model that it belongs to"},
    };
    struct str type = {0};
    int got = gguf_get_str(keys, "general.type", &type, err);
    for (size_t i = 0; got > 0 && i < sizeof kinds / sizeof *kinds; i++)
        if (str_is(type, kinds[i].type))
            return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s: %s", keys->path, kinds[i].words);
    return got < 0 ? got : SLUICE_OK;
}

int config_read_arch(struct config *c, const struct gguf *keys, struct err *err) {
    struct str arch;
    int got = refuse_other_kinds(keys, err);
    if (got)
        return got;
    got = gguf_get_str(keys, "general.architecture", &arch, err);
    if (got < 0)
        return got;
    if (got == 0)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key general.architecture is missing",
                       keys->path);
    if (arch.len == 0 || arch.len >= sizeof c->arch)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: key general.architecture is '%.*s', expected a name of 1 to %zu bytes",
                       keys->path, STR_ARG(arch), sizeof c->arch - 1);
    memcpy(c->arch, arch.at, arch.len);
    c->arch[arch.len] = 0;
    return SLUICE_OK;
}

/* Heads of keys and values, and how wide all heads are. */
static int read_heads(struct config *c, const struct gguf *keys, struct err *err) {
    int status;
    c->kv_heads = c->heads;
    c->head_width = c->hidden / c->heads;
    if ((status =
             config_u32(c, keys, "attention.head_count_kv", 1 << 12, false, &c->kv_heads, err)) ||
        (status = config_u32(c, keys, "attention.key_length", 1024, false, &c->head_width, err)))
        return status;
    uint32_t value_length = c->head_width;
    if ((status = config_u32(c, keys, "attention.value_length", 1024, false, &value_length, err)))
        return status;
    if (c->heads % c->kv_heads != 0)
        return err_set(
            err, SLUICE_ERR_FORMAT,
            "%s: %s.attention.head_count is %u, expected a multiple of head_count_kv, %u",
            keys->path, c->arch, c->heads, c->kv_heads);
    if (c->head_width == 0 || c->head_width % 2 != 0 || value_length != c->head_width)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "%s: %s has heads of %u and %u values, expected an even number, twice",
                       keys->path, c->arch, c->head_width, value_length);
    status = config_width(c, keys, "attention heads", size_times(c->heads, c->head_width),
                          &c->q_width, err);
    return status ? status
                  : config_width(c, keys, "KV heads", size_times(c->kv_heads, c->head_width),
                                 &c->kv_width, err);
}

int config_read(struct config *c, const struct gguf *keys, struct err *err) {
    int status;
    if ((status = refuse_unsupported(c, keys, err)) ||
        (status = config_u32(c, keys, "block_count", MAX_LAYERS, true, &c->n_layers, err)) ||
        (status = config_u32(c, keys, "embedding_length", 1 << 17, true, &c->hidden, err)) ||
        (status = config_u32(c, keys, "context_length", 1u << 30, true, &c->context, err)) ||
        (status = config_u32(c, keys, "attention.head_count", 1 << 12, true, &c->heads, err)) ||
        (status = read_pooling(c, keys, err)) || (status = read_eps(c, keys, err)) ||
        (status = read_heads(c, keys, err)))
        return status;
    return read_rope(c, keys, err);
}

/* ---- rotary frequencies ------------------------------------------------------------------- */

/* The pair at which a wave rotates n times over the original context. */
static double pair_of_rotations(const struct rope *r, double n) {
    return r->dims * log(r->original_context / (n * 2 * PI)) / (2 * log(r->base));
}

double config_rope_freqs(const struct rope *r, const float *divisors, double *freqs) {
    double low = 0, high = 0;
    if (r->scaling == SCALING_YARN) {
        low = fmax(0, floor(pair_of_rotations(r, r->beta_fast)));
        high = fmin(r->dims - 1, ceil(pair_of_rotations(r, r->beta_slow)));
    }
    for (uint32_t i = 0; i < r->dims / 2; i++) {
        double f = pow(r->base, -2.0 * i / r->dims);
        if (divisors)
            f /= divisors[i];
        if (r->scaling == SCALING_LINEAR)
            f /= r->factor;
        if (r->scaling == SCALING_YARN) {
            double part = (i - low) / fmax(0.001, high - low);
            double keep = (1 - fmin(1, fmax(0, part))) * r->ext_factor;
            f = f / r->factor * (1 - keep) + f * keep;
        }
        freqs[i] = f;
    }
    bool is_yarn = r->scaling == SCALING_YARN && r->factor > 1;
    return (is_yarn ? 1 + 0.1 * log(r->factor) : 1) * r->attn_factor;
}
