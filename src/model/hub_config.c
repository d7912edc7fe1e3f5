/* hub_config.c - a hub folder in GGUF's terms: config.json and the keys made from it. */
#include "model/hub_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/locale.h"
#include "model/arch.h"

#define PI 3.14159265358979323846

/* ---- values of config.json ---------------------------------------------------------------- */

/* A value as it is in the file, for messages; a long one only by its beginning. */
static const char *found(const json_t *v, char out[40]) {
    enum { FITS = 36 }; /* and dots */
    memset(out, 0, 40);
    if (!v)
        return "missing";
    locale_t before = locale_enter();
    size_t n = json_dumpb(v, out, FITS, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    locale_leave(before);
    if (n > FITS)
        memcpy(out + strnlen(out, FITS), "...", 4); /* parts that do not fit are not written */
    return out;
}

static int check_count(const struct hub *h, const char *name, const json_t *v, uint32_t max,
                       struct err *err) {
    char text[40];
    if (json_is_integer(v) && json_integer_value(v) >= 1 && json_integer_value(v) <= max)
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_FORMAT,
                   "%s/config.json: %s is %s, expected a number from 1 to %u", h->folder->path,
                   name, found(v, text), max);
}

int hub_count(const struct hub *h, const char *name, uint32_t max, uint32_t *out, struct err *err) {
    const json_t *v = json_object_get(h->folder->config, name);
    if ((!v || json_is_null(v)) && *out)
        return SLUICE_OK;
    if (!v)
        return err_set(err, SLUICE_ERR_FORMAT, "%s/config.json: %s is missing", h->folder->path,
                       name);
    int status = check_count(h, name, v, max, err);
    if (status)
        return status;
    *out = (uint32_t)json_integer_value(v);
    return SLUICE_OK;
}

int hub_number(const struct hub *h, const json_t *object, const char *name, double fallback,
               double *out, struct err *err) {
    const json_t *v = json_object_get(object, name);
    char text[40];
    *out = v && !json_is_null(v) ? json_number_value(v) : fallback;
    if (!(*out > 0) || !isfinite(*out))
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s/config.json: %s is %s, expected a number above 0", h->folder->path, name,
                       found(v, text));
    return SLUICE_OK;
}

int hub_flag(const struct hub *h, const char *name, bool fallback, bool *out, struct err *err) {
    const json_t *v = json_object_get(h->folder->config, name);
    char text[40];
    *out = json_is_boolean(v) ? json_is_true(v) : fallback;
    if (!v || json_is_null(v) || json_is_boolean(v))
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_FORMAT, "%s/config.json: %s is %s, expected true or false",
                   h->folder->path, name, found(v, text));
}

const json_t *hub_rope(const struct hub *h) {
    const json_t *v = json_object_get(h->folder->config, "rope_parameters");
    if (json_object_size(v) == 0)
        v = json_object_get(h->folder->config, "rope_scaling");
    return json_is_object(v) ? v : NULL;
}

const char *hub_rope_type(const struct hub *h) {
    const json_t *rope = hub_rope(h);
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (!type)
        type = json_string_value(json_object_get(rope, "type"));
    return type ? type : "default";
}

static int read_theta(const struct hub *h, double *out, struct err *err) {
    double root;
    int status = hub_number(h, h->folder->config, "rope_theta", 10000, &root, err);
    return status ? status : hub_number(h, hub_rope(h), "rope_theta", root, out, err);
}

/* ---- what the engine can't do ------------------------------------------------------------- */

int hub_refuse_text(const struct hub *h, const char *name, const char *expected, struct err *err) {
    const char *v = json_string_value(json_object_get(h->folder->config, name));
    if (!v || strcmp(v, expected) == 0)
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s/config.json: %s is %s, expected %s",
                   h->folder->path, name, v, expected);
}

int hub_refuse_flag(const struct hub *h, const char *name, bool expected, struct err *err) {
    const json_t *v = json_object_get(h->folder->config, name);
    char text[40];
    if (!v || json_is_null(v) || (json_is_boolean(v) && json_is_true(v) == expected))
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s/config.json: %s is %s, which is not supported",
                   h->folder->path, name, found(v, text));
}

/* One of another kind would be taken for none. With both, transformers takes rope_scaling; it would
 * also lose what only rope_parameters has, so the two must be the same. */
static int check_rope_objects(const struct hub *h, struct err *err) {
    static const char *const names[] = {"rope_parameters", "rope_scaling"};
    const json_t *given[2];
    char text[40];
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = given[i] = json_object_get(h->folder->config, names[i]);
        if (v && !json_is_null(v) && !json_is_object(v))
            return err_set(err, SLUICE_ERR_FORMAT, "%s/config.json: %s is %s, expected an object",
                           h->folder->path, names[i], found(v, text));
    }
    if (json_object_size(given[0]) > 0 && json_object_size(given[1]) > 0 &&
        !json_equal(given[0], given[1]))
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s/config.json: rope_parameters and rope_scaling differ, expected one of "
                       "them",
                       h->folder->path);
    return SLUICE_OK;
}

/* One with a type of another kind would be taken for none, too. */
static int check_rope(const struct hub *h, struct err *err) {
    static const char *const types[] = {"rope_type", "type"};
    const char *name;
    json_t *value;
    char text[40];
    int status = check_rope_objects(h, err);
    if (status)
        return status;
    json_object_foreach((json_t *)hub_rope(h), name, value) {
        if (json_is_object(value)) /* values of each kind of layer */
            return err_set(err, SLUICE_ERR_UNSUPPORTED,
                           "%s/config.json: the rotary value %s is %s, expected the same values "
                           "for all layers",
                           h->folder->path, name, found(value, text));
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const json_t *v = json_object_get(hub_rope(h), types[i]);
        if (v && !json_is_null(v) && !json_is_string(v))
            return err_set(err, SLUICE_ERR_FORMAT,
                           "%s/config.json: %s is %s, expected default, linear, llama3 or yarn",
                           h->folder->path, types[i], found(v, text));
    }
    return SLUICE_OK;
}

static int check_layer_types(const struct hub *h, struct err *err) {
    const json_t *kinds = json_object_get(h->folder->config, "layer_types"), *kind;
    char text[40];
    size_t i;
    if (!kinds || json_is_null(kinds))
        return SLUICE_OK;
    if (!json_is_array(kinds))
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s/config.json: layer_types is %s, expected an array", h->folder->path,
                       found(kinds, text));
    json_array_foreach(kinds, i, kind) {
        const char *name = json_is_string(kind) ? json_string_value(kind) : "";
        if (strcmp(name, "full_attention") != 0 && strcmp(name, "linear_attention") != 0)
            return err_set(err, SLUICE_ERR_UNSUPPORTED,
                           "%s/config.json: layer_types: layer %zu is %s, expected full_attention "
                           "or linear_attention",
                           h->folder->path, i, found(kind, text));
    }
    return SLUICE_OK;
}

/* Whether use_sliding_window makes a layer attend to a window of the last tokens alone, as
 * transformers 5.23 reads it. What layer_types says is checked: it names no such layer. */
static bool has_windows(const struct hub *h) {
    enum { DEFAULT_FIRST = 28 };
    const json_t *config = h->folder->config;
    const json_t *size = json_object_get(config, "sliding_window");
    const json_t *kinds = json_object_get(config, "layer_types");
    const json_t *first = json_object_get(config, "max_window_layers");
    if (json_is_null(size))
        return false;
    if (!h->arch->has_some_windows)
        return true;
    if (kinds && !json_is_null(kinds))
        return false;
    return (first && !json_is_integer(first)) ||
           (first ? json_integer_value(first) : DEFAULT_FIRST) < h->n_layers;
}

/* The flag alone says nothing: the layers before max_window_layers have no window. */
static int check_windows(const struct hub *h, struct err *err) {
    if (json_is_true(json_object_get(h->folder->config, "use_sliding_window")) && !has_windows(h))
        return SLUICE_OK;
    return hub_refuse_flag(h, "use_sliding_window", false, err);
}

/* Values that some layers have and others do not. */
static int check_each_layer(const struct hub *h, struct err *err) {
    const json_t *each = json_object_get(h->folder->config, "per_layer_config");
    char text[40];
    if (json_object_size(each) == 0 && json_array_size(each) == 0)
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_UNSUPPORTED,
                   "%s/config.json: per_layer_config is %s, expected the same values for all "
                   "layers",
                   h->folder->path, found(each, text));
}

static int refuse_unsupported(const struct hub *h, struct err *err) {
    const char *rope = hub_rope_type(h);
    char text[40];
    bool is_known = !strcmp(rope, "default") || !strcmp(rope, "linear") || !strcmp(rope, "yarn") ||
                    !strcmp(rope, "llama3");
    int status = hub_refuse_text(h, "hidden_act", "silu", err);
    if (!status)
        status = hub_refuse_flag(h, "is_causal", true, err);
    if (!status)
        status = check_each_layer(h, err);
    if (!status)
        status = check_layer_types(h, err);
    if (!status)
        status = check_rope(h, err);
    const json_t *truncate = json_object_get(hub_rope(h), "truncate");
    if (!status && !strcmp(rope, "yarn") && truncate && !json_is_true(truncate))
        status = err_set(err, SLUICE_ERR_UNSUPPORTED,
                         "%s/config.json: truncate is %s, expected true: whole rotary pairs",
                         h->folder->path, found(truncate, text));
    if (!status && !is_known)
        status =
            err_set(err, SLUICE_ERR_UNSUPPORTED,
                    "%s/config.json: rope_type is %s, expected default, linear, llama3 or yarn",
                    h->folder->path, rope);
    return status;
}

/* ---- dimensions --------------------------------------------------------------------------- */

static int find_arch(struct hub *h, struct err *err) {
    const char *type = json_string_value(json_object_get(h->folder->config, "model_type"));
    char types[ARCH_LIST];
    h->arch = type ? arch_by_model_type(type) : NULL;
    return h->arch ? SLUICE_OK
                   : err_set(err, SLUICE_ERR_UNSUPPORTED,
                             "%s/config.json: model_type is %s, expected %s", h->folder->path,
                             type ? type : "missing", arch_model_types(types));
}

int hub_read_config(struct hub *h, struct err *err) {
    int status;
    if ((status = find_arch(h, err)) || (status = refuse_unsupported(h, err)) ||
        (status = hub_count(h, "hidden_size", 1 << 17, &h->hidden, err)) ||
        (status = hub_count(h, "num_hidden_layers", MAX_LAYERS, &h->n_layers, err)) ||
        (status = check_windows(h, err)) ||
        (status = hub_count(h, "num_attention_heads", 1 << 12, &h->n_heads, err)) ||
        (status = hub_count(h, "vocab_size", 1 << 22, &h->vocab, err)))
        return status;
    h->n_kv_heads = h->n_heads;
    h->head_dim = h->hidden / h->n_heads;
    if ((status = hub_count(h, "num_key_value_heads", 1 << 12, &h->n_kv_heads, err)) ||
        (status = hub_count(h, "head_dim", 1024, &h->head_dim, err)) ||
        (status = hub_flag(h, "tie_word_embeddings", false, &h->is_tied, err)))
        return status;
    if (h->head_dim == 0 || h->head_dim % 2 != 0)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s/config.json: head_dim is %u, expected an even number", h->folder->path,
                       h->head_dim);
    return h->arch->hub_config ? h->arch->hub_config(h, err) : SLUICE_OK;
}

/* ---- keys --------------------------------------------------------------------------------- */

static const char *full_name(struct hub_keys *k, const char *name, char out[128]) {
    snprintf(out, 128, "%s.%s", k->hub->arch->name, name);
    return out;
}

void hub_put_u32(struct hub_keys *k, const char *name, uint32_t value) {
    char full[128];
    if (!k->status)
        k->status = gguf_write_u32(k->w, full_name(k, name, full), value, k->err);
}

void hub_put_f32(struct hub_keys *k, const char *name, double value) {
    char full[128];
    if (!k->status)
        k->status = gguf_write_f32(k->w, full_name(k, name, full), (float)value, k->err);
}

void hub_put_bool(struct hub_keys *k, const char *name, bool value) {
    char full[128];
    if (!k->status)
        k->status = gguf_write_bool(k->w, full_name(k, name, full), value, k->err);
}

void hub_put_i32s(struct hub_keys *k, const char *name, const int32_t *values, uint32_t n) {
    char full[128];
    if (!k->status)
        k->status = gguf_write_i32s(k->w, full_name(k, name, full), values, n, k->err);
}

void hub_put_bools(struct hub_keys *k, const char *name, const uint8_t *values, uint32_t n) {
    char full[128];
    struct gguf_key list = {.name = str_of(full_name(k, name, full)),
                            .type = GGUF_BOOL,
                            .is_array = true,
                            .count = n,
                            .data = values};
    if (!k->status)
        k->status = gguf_write_key(k->w, &list, k->err);
}

void hub_copy_count(struct hub_keys *k, const char *theirs, const char *ours) {
    uint32_t v = 0;
    if (!k->status)
        k->status = hub_count(k->hub, theirs, UINT32_MAX >> 1, &v, k->err);
    hub_put_u32(k, ours, v);
}

/* The length that a model was trained with before it was scaled; NULL: not given. Beside the rotary
 * values it counts more than among them, as in transformers. */
static const json_t *original_context(const struct hub *h) {
    static const char name[] = "original_max_position_embeddings";
    const json_t *v = json_object_get(h->folder->config, name);
    if (!v || json_is_null(v))
        v = json_object_get(hub_rope(h), name);
    return v && !json_is_null(v) ? v : NULL;
}

/* YaRN's factor of cos and sin: `weight` is 1, or one of mscale and mscale_all_dim. */
static double yarn_attention(double factor, double weight) {
    return factor > 1 ? 1 + 0.1 * weight * log(factor) : 1;
}

/* A rotary value that is absent where it is null or 0; *has says whether it is there. */
static int optional_number(const struct hub *h, const char *name, bool *has, double *out,
                           struct err *err) {
    const json_t *v = json_object_get(hub_rope(h), name);
    *has = v && !json_is_null(v) && !(json_is_number(v) && json_number_value(v) == 0);
    return *has ? hub_number(h, hub_rope(h), name, 1, out, err) : SLUICE_OK;
}

/* The factor of cos and sin if it is another than that of YaRN alone. GGUF's multiplies that one,
 * theirs replaces it. */
static void put_attention_factor(struct hub_keys *k, double factor) {
    const struct hub *h = k->hub;
    const json_t *own = json_object_get(hub_rope(h), "attention_factor");
    bool has_given = own && !json_is_null(own), has_scale, has_all_dim;
    double given = 1, scale, all_dim;
    if (k->status ||
        (has_given &&
         (k->status = hub_number(h, hub_rope(h), "attention_factor", 1, &given, k->err))) ||
        (k->status = optional_number(h, "mscale", &has_scale, &scale, k->err)) ||
        (k->status = optional_number(h, "mscale_all_dim", &has_all_dim, &all_dim, k->err)))
        return;
    if (!has_given && has_scale && has_all_dim)
        given = yarn_attention(factor, scale) / yarn_attention(factor, all_dim);
    if (has_given || (has_scale && has_all_dim))
        hub_put_f32(k, "rope.scaling.attn_factor", given / yarn_attention(factor, 1));
}

static void put_rope_scaling(struct hub_keys *k) {
    const char *type = hub_rope_type(k->hub);
    if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        return; /* llama3 is in the divisors of rope_freqs.weight */
    static const struct {
        const char *theirs, *ours;
    } numbers[] = {{"beta_fast", "rope.scaling.yarn_beta_fast"},
                   {"beta_slow", "rope.scaling.yarn_beta_slow"}};
    const json_t *original = original_context(k->hub);
    char full[128];
    double factor = 1, v;
    bool has;
    if (!k->status)
        k->status =
            gguf_write_str(k->w, full_name(k, "rope.scaling.type", full), str_of(type), k->err);
    if (!k->status)
        k->status = hub_number(k->hub, hub_rope(k->hub), "factor", 0, &factor, k->err);
    hub_put_f32(k, "rope.scaling.factor", factor);
    if (original && !k->status)
        k->status = check_count(k->hub, "original_max_position_embeddings", original,
                                UINT32_MAX >> 1, k->err);
    if (original && !k->status)
        hub_put_u32(k, "rope.scaling.original_context_length",
                    (uint32_t)json_integer_value(original));
    if (strcmp(type, "yarn") != 0)
        return;
    put_attention_factor(k, factor);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (!k->status)
            k->status = optional_number(k->hub, numbers[i].theirs, &has, &v, k->err);
        if (!k->status && has)
            hub_put_f32(k, numbers[i].ours, v);
    }
}

int hub_write_keys(const struct hub *h, struct gguf_writer *w, struct err *err) {
    struct hub_keys k = {.hub = h, .w = w, .err = err};
    double eps = 0, theta = 0;
    k.status = gguf_write_str(w, "general.architecture", str_of(h->arch->name), err);
    if (!k.status)
        k.status = hub_number(h, h->folder->config, "rms_norm_eps", 1e-6, &eps, err);
    if (!k.status)
        k.status = read_theta(h, &theta, err);
    hub_copy_count(&k, "max_position_embeddings", "context_length");
    hub_put_u32(&k, "embedding_length", h->hidden);
    hub_put_u32(&k, "block_count", h->n_layers + h->n_mtp);
    hub_put_u32(&k, "attention.head_count", h->n_heads);
    hub_put_u32(&k, "attention.head_count_kv", h->n_kv_heads);
    hub_put_u32(&k, "attention.key_length", h->head_dim);
    hub_put_u32(&k, "attention.value_length", h->head_dim);
    hub_put_f32(&k, "attention.layer_norm_rms_epsilon", eps);
    hub_put_f32(&k, "rope.freq_base", theta);
    hub_put_u32(&k, "vocab_size", h->vocab);
    put_rope_scaling(&k);
    h->arch->hub_keys(&k);
    return k.status;
}

/* ---- Llama 3's frequencies ---------------------------------------------------------------- */

int hub_rope_divisors(struct hub *h, float **out, struct err *err) {
    *out = NULL;
    if (strcmp(hub_rope_type(h), "llama3") != 0)
        return SLUICE_OK;
    const json_t *rope = hub_rope(h), *config = h->folder->config;
    static const char before[] = "original_max_position_embeddings"; /* see original_context */
    double theta, factor, low, high, original;
    int status;
    if ((status = hub_number(h, config, "max_position_embeddings", 0, &original, err)) ||
        (status = hub_number(h, rope, before, original, &original, err)) ||
        (status = hub_number(h, config, before, original, &original, err)) ||
        (status = read_theta(h, &theta, err)) ||
        (status = hub_number(h, rope, "factor", 0, &factor, err)) ||
        (status = hub_number(h, rope, "low_freq_factor", 1, &low, err)) ||
        (status = hub_number(h, rope, "high_freq_factor", 4, &high, err)))
        return status;
    if (high <= low)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s/config.json: high_freq_factor is %g, expected more than "
                       "low_freq_factor, %g",
                       h->folder->path, high, low);
    float *d = arena_array(&h->arena, h->head_dim / 2, sizeof *d);
    if (!d)
        return err_memory(err, "rotary frequencies");
    for (uint32_t i = 0; i < h->head_dim / 2; i++) {
        double freq = pow(theta, -2.0 * i / h->head_dim);
        double keep = (original * freq / (2 * PI) - low) / (high - low);
        keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
        d[i] = (float)(1 / ((1 - keep) / factor + keep));
    }
    *out = d;
    return SLUICE_OK;
}
