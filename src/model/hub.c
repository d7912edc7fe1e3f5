/* hub.c - a hub folder in our words: tensors.
 *
 * (1) A tensor of the folder is used once, skipped for a reason, or an error: nothing is lost in
 *     silence.
 * (2) Shapes that a reordering relies on are checked when the tensor is bound, so reading rows
 *     can't leave the source. */
#include "model/hub.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "model/hub_config.h"

enum { F_LLAMA = 1, F_QWEN = 2, F_HYBRID = 4, F_PLAIN = F_LLAMA | F_QWEN, F_ALL = 7 };

struct name_row {
    unsigned families;
    const char *theirs, *ours;
    enum hub_order order;
    enum hub_change change;
    bool is_squeezed; /* dimensions of one, but the first, are dropped */
};

/* clang-format off */
static const struct name_row global_rows[] = {
    {F_ALL,    "embed_tokens.weight", "token_embd.weight",  ORDER_SAME, CHANGE_NONE,     false},
    {F_PLAIN,  "norm.weight",         "output_norm.weight", ORDER_SAME, CHANGE_NONE,     false},
    {F_HYBRID, "norm.weight",         "output_norm.weight", ORDER_SAME, CHANGE_PLUS_ONE, false},
    {F_ALL,    "lm_head.weight",      "output.weight",      ORDER_SAME, CHANGE_NONE,     false},
};

static const struct name_row layer_rows[] = {
    {F_PLAIN,  "input_layernorm.weight",          "attn_norm.weight",           ORDER_SAME,         CHANGE_NONE,     false},
    {F_HYBRID, "input_layernorm.weight",          "attn_norm.weight",           ORDER_SAME,         CHANGE_PLUS_ONE, false},
    {F_PLAIN,  "post_attention_layernorm.weight", "ffn_norm.weight",            ORDER_SAME,         CHANGE_NONE,     false},
    {F_HYBRID, "post_attention_layernorm.weight", "post_attention_norm.weight", ORDER_SAME,         CHANGE_PLUS_ONE, false},
    {F_LLAMA,  "self_attn.q_proj.weight",         "attn_q.weight",              ORDER_PAIR_Q,       CHANGE_NONE,     false},
    {F_LLAMA,  "self_attn.k_proj.weight",         "attn_k.weight",              ORDER_PAIR_K,       CHANGE_NONE,     false},
    {F_LLAMA,  "self_attn.q_proj.bias",           "attn_q.bias",                ORDER_PAIR_Q,       CHANGE_NONE,     false},
    {F_LLAMA,  "self_attn.k_proj.bias",           "attn_k.bias",                ORDER_PAIR_K,       CHANGE_NONE,     false},
    {F_QWEN | F_HYBRID, "self_attn.q_proj.weight", "attn_q.weight",             ORDER_SAME,         CHANGE_NONE,     false},
    {F_QWEN | F_HYBRID, "self_attn.k_proj.weight", "attn_k.weight",             ORDER_SAME,         CHANGE_NONE,     false},
    {F_QWEN,   "self_attn.q_proj.bias",           "attn_q.bias",                ORDER_SAME,         CHANGE_NONE,     false},
    {F_QWEN,   "self_attn.k_proj.bias",           "attn_k.bias",                ORDER_SAME,         CHANGE_NONE,     false},
    {F_ALL,    "self_attn.v_proj.weight",         "attn_v.weight",              ORDER_SAME,         CHANGE_NONE,     false},
    {F_PLAIN,  "self_attn.v_proj.bias",           "attn_v.bias",                ORDER_SAME,         CHANGE_NONE,     false},
    {F_ALL,    "self_attn.o_proj.weight",         "attn_output.weight",         ORDER_SAME,         CHANGE_NONE,     false},
    {F_PLAIN,  "self_attn.o_proj.bias",           "attn_output.bias",           ORDER_SAME,         CHANGE_NONE,     false},
    {F_QWEN,   "self_attn.q_norm.weight",         "attn_q_norm.weight",         ORDER_SAME,         CHANGE_NONE,     false},
    {F_QWEN,   "self_attn.k_norm.weight",         "attn_k_norm.weight",         ORDER_SAME,         CHANGE_NONE,     false},
    {F_HYBRID, "self_attn.q_norm.weight",         "attn_q_norm.weight",         ORDER_SAME,         CHANGE_PLUS_ONE, false},
    {F_HYBRID, "self_attn.k_norm.weight",         "attn_k_norm.weight",         ORDER_SAME,         CHANGE_PLUS_ONE, false},
    {F_HYBRID, "linear_attn.in_proj_qkv.weight",  "attn_qkv.weight",            ORDER_TILE_TAIL,    CHANGE_NONE,     false},
    {F_HYBRID, "linear_attn.in_proj_z.weight",    "attn_gate.weight",           ORDER_TILE,         CHANGE_NONE,     false},
    {F_HYBRID, "linear_attn.in_proj_b.weight",    "ssm_beta.weight",            ORDER_TILE,         CHANGE_NONE,     false},
    {F_HYBRID, "linear_attn.in_proj_a.weight",    "ssm_alpha.weight",           ORDER_TILE,         CHANGE_NONE,     false},
    {F_HYBRID, "linear_attn.conv1d.weight",       "ssm_conv1d.weight",          ORDER_TILE_TAIL,    CHANGE_NONE,     true},
    {F_HYBRID, "linear_attn.A_log",               "ssm_a",                      ORDER_TILE,         CHANGE_NEG_EXP,  false},
    {F_HYBRID, "linear_attn.dt_bias",             "ssm_dt.bias",                ORDER_TILE,         CHANGE_NONE,     false},
    {F_HYBRID, "linear_attn.norm.weight",         "ssm_norm.weight",            ORDER_SAME,         CHANGE_NONE,     false},
    {F_HYBRID, "linear_attn.out_proj.weight",     "ssm_out.weight",             ORDER_TILE_COLUMNS, CHANGE_NONE,     false},
    {F_ALL,    "mlp.gate_proj.weight",            "ffn_gate.weight",            ORDER_SAME,         CHANGE_NONE,     false},
    {F_ALL,    "mlp.up_proj.weight",              "ffn_up.weight",              ORDER_SAME,         CHANGE_NONE,     false},
    {F_ALL,    "mlp.down_proj.weight",            "ffn_down.weight",            ORDER_SAME,         CHANGE_NONE,     false},
    {F_PLAIN,  "mlp.gate_proj.bias",              "ffn_gate.bias",              ORDER_SAME,         CHANGE_NONE,     false},
    {F_PLAIN,  "mlp.up_proj.bias",                "ffn_up.bias",                ORDER_SAME,         CHANGE_NONE,     false},
    {F_PLAIN,  "mlp.down_proj.bias",              "ffn_down.bias",              ORDER_SAME,         CHANGE_NONE,     false},
    {F_HYBRID, "mlp.gate.weight",                 "ffn_gate_inp.weight",        ORDER_SAME,         CHANGE_NONE,     false},
    {F_HYBRID, "mlp.shared_expert_gate.weight",   "ffn_gate_inp_shexp.weight",  ORDER_SAME,         CHANGE_NONE,     true},
    {F_HYBRID, "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight",   ORDER_SAME,         CHANGE_NONE,     false},
    {F_HYBRID, "mlp.shared_expert.up_proj.weight",   "ffn_up_shexp.weight",     ORDER_SAME,         CHANGE_NONE,     false},
    {F_HYBRID, "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight",   ORDER_SAME,         CHANGE_NONE,     false},
    {F_HYBRID, "mlp.experts.down_proj",           "ffn_down_exps.weight",       ORDER_SAME,         CHANGE_NONE,     false},
};

static const struct name_row mtp_rows[] = {
    {F_HYBRID, "mtp.fc.weight",                    "nextn.eh_proj.weight",          ORDER_SAME, CHANGE_NONE,     false},
    {F_HYBRID, "mtp.norm.weight",                  "nextn.shared_head_norm.weight", ORDER_SAME, CHANGE_PLUS_ONE, false},
    {F_HYBRID, "mtp.pre_fc_norm_embedding.weight", "nextn.enorm.weight",            ORDER_SAME, CHANGE_PLUS_ONE, false},
    {F_HYBRID, "mtp.pre_fc_norm_hidden.weight",    "nextn.hnorm.weight",            ORDER_SAME, CHANGE_PLUS_ONE, false},
};
/* clang-format on */

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* What is needed only while the tensors are bound. */
struct binder {
    struct hub *hub;
    struct strmap by_name; /* short names to indices of the folder's tensors */
    bool *is_used;
    uint32_t capacity; /* of hub->tensors */
    unsigned family;
    struct err *err;
};

/* "model.language_model.layers.0.x" and its kin are "layers.0.x". */
static struct str short_name(struct str name) {
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                           "model.", "language_model."};
    for (size_t i = 0; i < COUNT(prefixes); i++)
        if (str_starts(name, prefixes[i]))
            return str_skip(name, strlen(prefixes[i]));
    return name;
}

/* The folder's tensor of that short name, marked as used; NULL when there is none. */
static const struct tensor *take(struct binder *b, const char *name) {
    uint32_t i;
    if (!strmap_get(&b->by_name, str_of(name), &i))
        return NULL;
    b->is_used[i] = true;
    return &b->hub->folder->weights->tensors[i];
}

/* ---- shapes -----------------------------------------------------------------------------------
 */

/* How many places a reordering moves things among: rows, or values of a vector or of a row. */
static uint64_t ordered_places(const struct hub_tensor *t) {
    return t->n_dims == 1 || t->order == ORDER_TILE_COLUMNS ? t->dims[0] : t->dims[1];
}

/* How many there must be for the reordering to make sense; 0: any number. */
static uint64_t expected_places(const struct hub *h, const struct hub_tensor *t) {
    uint64_t keys = 2 * (uint64_t)h->key_heads * h->key_dim;
    uint64_t values = (uint64_t)h->value_heads * h->value_dim;
    bool is_a_head_each =
        str_ends(str_of(t->name), "ssm_a") || str_contains(str_of(t->name), "ssm_dt") ||
        str_contains(str_of(t->name), "ssm_alpha") || str_contains(str_of(t->name), "ssm_beta");
    switch (t->order) {
    case ORDER_SAME:
        return 0;
    case ORDER_PAIR_Q:
        return (uint64_t)h->n_heads * h->head_dim;
    case ORDER_PAIR_K:
        return (uint64_t)h->n_kv_heads * h->head_dim;
    case ORDER_TILE:
        return is_a_head_each ? h->value_heads : values;
    case ORDER_TILE_TAIL:
        return keys + values;
    case ORDER_TILE_COLUMNS:
        return values;
    }
    return 0;
}

static int check_tensor(struct binder *b, const struct hub_tensor *t) {
    for (uint32_t i = 0; i < t->n_sources; i++) {
        const struct tensor *s = t->sources[i];
        if (s->type < 0 || !dtype_info((uint32_t)s->type)->decode)
            return err_set(b->err, SLUICE_ERR_UNSUPPORTED,
                           "%s: tensor %.*s is %s, expected F32, F16 or BF16", b->hub->folder->path,
                           STR_ARG(s->name), s->type_name);
        if (s->n_values == 0)
            return err_set(b->err, SLUICE_ERR_FORMAT, "%s: tensor %.*s is empty",
                           b->hub->folder->path, STR_ARG(s->name));
    }
    uint64_t found = ordered_places(t), expected = expected_places(b->hub, t);
    if (expected && (found != expected || t->n_dims > 2))
        return err_set(b->err, SLUICE_ERR_FORMAT,
                       "%s: tensor for %s has %llu rows of heads in %u dimensions, expected %llu",
                       b->hub->folder->path, t->name, (unsigned long long)found, t->n_dims,
                       (unsigned long long)expected);
    return SLUICE_OK;
}

/* The source's dims as ours. */
static int set_dims(struct binder *b, struct hub_tensor *t, const struct tensor *s,
                    bool is_squeezed) {
    for (uint32_t i = 0; i < 4; i++)
        t->dims[i] = 1;
    t->n_dims = 0;
    for (uint32_t i = 0; i < s->n_dims; i++) {
        if (is_squeezed && i > 0 && s->dims[i] == 1)
            continue;
        if (t->n_dims == 4)
            return err_set(b->err, SLUICE_ERR_FORMAT,
                           "%s: tensor %.*s has %u dimensions, expected at most 4",
                           b->hub->folder->path, STR_ARG(s->name), s->n_dims);
        t->dims[t->n_dims++] = s->dims[i];
    }
    if (t->n_dims == 0)
        t->n_dims = 1; /* a scalar is a vector of one */
    return SLUICE_OK;
}

/* ---- binding ----------------------------------------------------------------------------------
 */

static struct hub_tensor *new_tensor(struct binder *b, const char *name) {
    CHECK(b->hub->n_tensors < b->capacity);
    struct hub_tensor *t = &b->hub->tensors[b->hub->n_tensors];
    t->name = arena_strdup(&b->hub->arena, str_of(name));
    if (!t->name)
        return NULL;
    b->hub->n_tensors++;
    return t;
}

/* Room for the sources of a new tensor; NULL when memory ran out. */
static struct hub_tensor *tensor_from(struct binder *b, const char *name, uint32_t n_sources) {
    struct hub_tensor *t = new_tensor(b, name);
    if (!t || !(t->sources = arena_array(&b->hub->arena, n_sources, sizeof *t->sources)))
        return NULL;
    t->n_sources = n_sources;
    return t;
}

static int bind_one(struct binder *b, const char *theirs, const char *ours,
                    const struct name_row *row) {
    const struct tensor *s = take(b, theirs);
    if (!s)
        return SLUICE_OK;
    struct hub_tensor *t = tensor_from(b, ours, 1);
    if (!t)
        return err_memory(b->err, ours);
    t->sources[0] = s;
    t->order = row->order;
    t->change = row->change;
    int status = set_dims(b, t, s, row->is_squeezed);
    return status ? status : check_tensor(b, t);
}

static int bind_rows(struct binder *b, const struct name_row *rows, size_t n_rows,
                     const char *theirs, const char *ours) {
    for (size_t i = 0; i < n_rows; i++) {
        if (!(rows[i].families & b->family))
            continue;
        char from[256], to[64];
        snprintf(from, sizeof from, "%s%s", theirs, rows[i].theirs);
        snprintf(to, sizeof to, "%s%s", ours, rows[i].ours);
        int status = bind_one(b, from, to, &rows[i]);
        if (status)
            return status;
    }
    return SLUICE_OK;
}

/* experts.gate_up_proj {D, 2F, E}: gate rows first, then up rows, in each expert. */
static int bind_fused_experts(struct binder *b, const char *theirs, const char *ours) {
    char name[256];
    snprintf(name, sizeof name, "%smlp.experts.gate_up_proj", theirs);
    const struct tensor *s = take(b, name);
    if (!s)
        return SLUICE_OK;
    if (s->n_dims != 3 || s->dims[1] % 2 != 0 || s->dims[2] != b->hub->n_experts)
        return err_set(b->err, SLUICE_ERR_FORMAT,
                       "%s: tensor %.*s has %u dimensions, expected 3: experts, gate and up rows, "
                       "width",
                       b->hub->folder->path, STR_ARG(s->name), s->n_dims);
    for (int half = 0; half < 2; half++) {
        char to[64];
        snprintf(to, sizeof to, "%s%s", ours, half ? "ffn_up_exps.weight" : "ffn_gate_exps.weight");
        struct hub_tensor *t = tensor_from(b, to, 1);
        if (!t)
            return err_memory(b->err, to);
        t->sources[0] = s;
        int status = set_dims(b, t, s, false);
        t->take_rows = t->dims[1] = s->dims[1] / 2;
        t->skip_rows = half ? t->take_rows : 0;
        if (status || (status = check_tensor(b, t)))
            return status;
    }
    return SLUICE_OK;
}

/* experts.0.gate_proj.weight and so on: stacked. */
static int bind_single_experts(struct binder *b, const char *theirs, const char *ours) {
    static const char *const parts[] = {"gate", "up", "down"};
    for (size_t p = 0; p < COUNT(parts); p++) {
        char from[256], to[64];
        uint32_t at;
        snprintf(from, sizeof from, "%smlp.experts.0.%s_proj.weight", theirs, parts[p]);
        snprintf(to, sizeof to, "%sffn_%s_exps.weight", ours, parts[p]);
        if (!strmap_get(&b->by_name, str_of(from), &at))
            continue;
        struct hub_tensor *t = tensor_from(b, to, b->hub->n_experts);
        if (!t)
            return err_memory(b->err, to);
        for (uint32_t e = 0; e < b->hub->n_experts; e++) {
            snprintf(from, sizeof from, "%smlp.experts.%u.%s_proj.weight", theirs, e, parts[p]);
            const struct tensor *s = take(b, from), *first = e ? t->sources[0] : s;
            if (!s || s->n_dims != 2 || s->dims[0] != first->dims[0] ||
                s->dims[1] != first->dims[1])
                return err_set(b->err, SLUICE_ERR_FORMAT,
                               "%s: tensor %s is %s, expected a matrix like that of expert 0",
                               b->hub->folder->path, from, s ? "of another shape" : "missing");
            t->sources[e] = s;
        }
        int status = set_dims(b, t, t->sources[0], false);
        t->n_dims = 3;
        t->dims[2] = b->hub->n_experts;
        if (status || (status = check_tensor(b, t)))
            return status;
    }
    return SLUICE_OK;
}

static int bind_layer(struct binder *b, const char *theirs, const char *ours) {
    int status = bind_rows(b, layer_rows, COUNT(layer_rows), theirs, ours);
    if (!status && b->hub->n_experts)
        status = bind_fused_experts(b, theirs, ours);
    if (!status && b->hub->n_experts)
        status = bind_single_experts(b, theirs, ours);
    return status;
}

static int bind_rope_divisors(struct binder *b) {
    float *values = NULL;
    int status = hub_rope_divisors(b->hub, &values, b->err);
    if (status || !values)
        return status;
    struct hub_tensor *t = new_tensor(b, "rope_freqs.weight");
    if (!t)
        return err_memory(b->err, "rope_freqs.weight");
    t->n_dims = 1;
    t->dims[0] = b->hub->head_dim / 2;
    t->dims[1] = t->dims[2] = t->dims[3] = 1;
    t->values = values;
    return SLUICE_OK;
}

static int bind_all(struct binder *b) {
    struct hub *h = b->hub;
    if (h->is_tied) /* some writers store the shared matrix twice */
        take(b, "lm_head.weight");
    int status =
        bind_rows(b, global_rows, h->is_tied ? COUNT(global_rows) - 1 : COUNT(global_rows), "", "");
    if (!status)
        status = bind_rope_divisors(b);
    for (uint32_t i = 0; !status && i < h->n_layers + h->n_mtp; i++) {
        char theirs[64], ours[32];
        bool is_draft = i >= h->n_layers;
        snprintf(theirs, sizeof theirs, "%slayers.%u.", is_draft ? "mtp." : "",
                 is_draft ? i - h->n_layers : i);
        snprintf(ours, sizeof ours, "blk.%u.", i);
        status = bind_layer(b, theirs, ours);
        if (!status && i == h->n_layers)
            status = bind_rows(b, mtp_rows, COUNT(mtp_rows), "", ours);
    }
    return status;
}

/* Every tensor of the folder must have been used or be one that we know to leave out. */
static int check_leftovers(struct binder *b) {
    const struct safetensors *st = b->hub->folder->weights;
    for (uint32_t i = 0; i < st->n_tensors; i++) {
        struct str name = st->tensors[i].name;
        if (b->is_used[i])
            continue;
        if (str_contains(name, "visual.") || str_starts(short_name(name), "mtp.")) {
            b->hub->n_skipped++;
            continue;
        }
        if (str_ends(name, "rotary_emb.inv_freq"))
            continue;
        return err_set(b->err, SLUICE_ERR_UNSUPPORTED,
                       "%s: tensor %.*s is unknown to the architecture %s", b->hub->folder->path,
                       STR_ARG(name), b->hub->arch);
    }
    return SLUICE_OK;
}

static int index_names(struct binder *b) {
    const struct safetensors *st = b->hub->folder->weights;
    b->is_used = arena_array(&b->hub->arena, st->n_tensors, 1);
    if (!b->is_used || !strmap_init(&b->by_name, &b->hub->arena, st->n_tensors))
        return err_memory(b->err, "tensor names");
    for (uint32_t i = 0; i < st->n_tensors; i++)
        if (!str_contains(st->tensors[i].name, "visual.") &&
            !strmap_add(&b->by_name, short_name(st->tensors[i].name), i))
            return err_set(b->err, SLUICE_ERR_FORMAT,
                           "%s: tensor %.*s stands twice, with different prefixes",
                           b->hub->folder->path, STR_ARG(st->tensors[i].name));
    return SLUICE_OK;
}

int hub_open(struct hub **out, const struct folder *folder, bool with_mtp, struct err *err) {
    *out = NULL;
    struct hub *h = calloc(1, sizeof *h);
    if (!h)
        return err_memory(err, folder->path);
    h->folder = folder;
    int status = hub_read_config(h, err);
    struct binder b = {.hub = h, .err = err};
    if (!status)
        status = index_names(&b);
    if (!status) {
        uint32_t at;
        h->n_mtp = with_mtp && strmap_get(&b.by_name, STR("mtp.fc.weight"), &at) ? h->n_mtp : 0;
        b.family = strcmp(h->arch, "llama") == 0        ? F_LLAMA
                   : strncmp(h->arch, "qwen35", 6) == 0 ? F_HYBRID
                                                        : F_QWEN;
        /* A fused tensor becomes two, and one is made here. */
        b.capacity = 2 * folder->weights->n_tensors + 1;
        h->tensors = arena_array(&h->arena, b.capacity, sizeof *h->tensors);
        status = h->tensors ? bind_all(&b) : err_memory(err, "the tensor list");
    }
    if (!status)
        status = check_leftovers(&b);
    if (status) {
        hub_close(h);
        return status;
    }
    *out = h;
    return SLUICE_OK;
}

void hub_close(struct hub *hub) {
    if (!hub)
        return;
    arena_free(&hub->arena);
    free(hub);
}

/* ---- reading ----------------------------------------------------------------------------------
 */

/* Place `at` of n holds what stands at which place of the source? */
static uint64_t source_place(const struct hub *h, enum hub_order order, uint64_t at, uint64_t n) {
    if (order == ORDER_PAIR_Q || order == ORDER_PAIR_K) {
        uint64_t dim = h->head_dim, in_head = at % dim;
        return at - in_head + in_head % 2 * (dim / 2) + in_head / 2;
    }
    uint64_t from = order == ORDER_TILE_TAIL ? 2 * (uint64_t)h->key_heads * h->key_dim : 0;
    if (order == ORDER_SAME || at < from)
        return at;
    uint64_t block = (n - from) / h->value_heads, group = h->value_heads / h->key_heads;
    uint64_t head = (at - from) / block, inside = (at - from) % block;
    return from + (head % h->key_heads * group + head / h->key_heads) * block + inside;
}

static void change_values(float *x, uint64_t n, enum hub_change change) {
    for (uint64_t i = 0; change == CHANGE_PLUS_ONE && i < n; i++)
        x[i] += 1;
    for (uint64_t i = 0; change == CHANGE_NEG_EXP && i < n; i++)
        x[i] = (float)-exp(x[i]);
}

/* One row of the source, its values in our order. */
static void read_row(const struct hub *h, const struct hub_tensor *t, uint64_t row, float *out) {
    uint64_t rows = t->dims[1], matrix = row / rows, in_matrix = row % rows;
    bool moves_values = t->n_dims == 1 || t->order == ORDER_TILE_COLUMNS;
    if (!moves_values)
        in_matrix = source_place(h, t->order, in_matrix, rows);
    const struct tensor *s = t->sources[t->n_sources > 1 ? matrix : 0];
    uint64_t source_rows = t->take_rows ? s->dims[1] : rows; /* of each matrix */
    uint64_t source_row = (t->n_sources > 1 ? 0 : matrix * source_rows) + t->skip_rows + in_matrix;
    const struct dtype_info *type = dtype_info((uint32_t)s->type);
    uint64_t width = t->dims[0], size = type->block_bytes; /* floats: a block is a value */
    const uint8_t *data = s->data + source_row * width * size;
    if (moves_values && t->order != ORDER_SAME)
        for (uint64_t i = 0; i < width; i++)
            type->decode(data + source_place(h, t->order, i, width) * size, out + i, 1);
    else
        type->decode(data, out, width);
}

void hub_read_rows(const struct hub *hub, const struct hub_tensor *t, uint64_t first,
                   uint64_t count, float *out) {
    uint64_t width = t->dims[0];
    for (uint64_t r = 0; r < count; r++, out += width) {
        if (t->values)
            memcpy(out, t->values + (first + r) * width, width * sizeof *out);
        else
            read_row(hub, t, first + r, out);
        change_values(out, width, t->change);
    }
}
