/* hub.c - a hub folder in GGUF's terms: tensors.
 *
 * (1) A tensor of the folder is used once, skipped for a reason, or an error: nothing is dropped
 *     silently.
 * (2) Shapes that a reordering relies on are checked when the tensor is bound, so reading rows
 *     never leaves the source. */
#include "model/hub.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "model/arch.h"
#include "model/hub_config.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* What is needed only while the tensors are bound. */
struct binder {
    struct hub *hub;
    struct strmap by_name; /* short names to indices of the folder's tensors */
    bool *is_used;
    uint32_t capacity; /* of hub->tensors */
    struct err *err;
};

/* "model.language_model.layers.0.x" and the like become "layers.0.x". */
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

/* ---- shapes ------------------------------------------------------------------------------- */

/* How many items a reordering permutes: rows, or values of a vector or of a row. */
static uint64_t ordered_places(const struct hub_tensor *t) {
    return t->n_dims == 1 || t->order == ORDER_TILE_COLUMNS ? t->dims[0] : t->dims[1];
}

/* How many the reordering needs; 0: any number. */
static uint64_t expected_places(const struct hub *h, const struct hub_tensor *t) {
    uint64_t keys = 2 * (uint64_t)h->key_heads * h->key_dim;
    uint64_t values = (uint64_t)h->value_heads * h->value_dim;
    switch (t->order) {
    case ORDER_SAME:
        return 0;
    case ORDER_PAIR_Q:
        return (uint64_t)h->n_heads * h->head_dim;
    case ORDER_PAIR_K:
        return (uint64_t)h->n_kv_heads * h->head_dim;
    case ORDER_TILE_HEADS:
        return h->value_heads;
    case ORDER_TILE_TAIL:
        return keys + values;
    case ORDER_TILE:
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

/* ---- binding ------------------------------------------------------------------------------ */

static struct hub_tensor *new_tensor(struct binder *b, const char *name) {
    CHECK(b->hub->n_tensors < b->capacity);
    struct hub_tensor *t = &b->hub->tensors[b->hub->n_tensors];
    t->name = arena_strdup(&b->hub->arena, str_of(name));
    if (!t->name)
        return NULL;
    b->hub->n_tensors++;
    return t;
}

/* A new tensor with space for its sources; NULL when memory ran out. */
static struct hub_tensor *tensor_from(struct binder *b, const char *name, uint32_t n_sources) {
    struct hub_tensor *t = new_tensor(b, name);
    if (!t || !(t->sources = arena_array(&b->hub->arena, n_sources, sizeof *t->sources)))
        return NULL;
    t->n_sources = n_sources;
    return t;
}

/* Gate rows first, then up rows, in each expert: {D, 2F, E}. */
static int take_half(struct binder *b, struct hub_tensor *t, enum hub_part part) {
    const struct tensor *s = t->sources[0];
    if (s->n_dims != 3 || s->dims[1] % 2 != 0 || s->dims[2] != b->hub->n_experts)
        return err_set(b->err, SLUICE_ERR_FORMAT,
                       "%s: tensor %.*s has %u dimensions, expected 3: experts, gate and up rows, "
                       "width",
                       b->hub->folder->path, STR_ARG(s->name), s->n_dims);
    t->take_rows = t->dims[1] = s->dims[1] / 2;
    t->skip_rows = part == PART_SECOND_HALF ? t->take_rows : 0;
    return SLUICE_OK;
}

/* Some rows of every key head's. */
static int take_parts(struct binder *b, struct hub_tensor *t, enum hub_part part) {
    const struct hub *h = b->hub;
    const struct delta_heads heads = {h->key_heads, h->value_heads, h->key_dim, h->value_dim};
    const struct tensor *s = t->sources[0];
    t->rows = part == PART_Z ? row_parts_z(&heads) : row_parts_qkv(&heads);
    if (s->n_dims != 2 || s->dims[1] != row_parts_of(&t->rows))
        return err_set(b->err, SLUICE_ERR_FORMAT,
                       "%s: tensor %.*s has %llu rows in %u dimensions, expected %llu in 2",
                       h->folder->path, STR_ARG(s->name), (unsigned long long)s->dims[1], s->n_dims,
                       (unsigned long long)row_parts_of(&t->rows));
    t->dims[1] = row_parts_count(&t->rows);
    return SLUICE_OK;
}

/* Some writers store the matrix that embedding and head share twice. Where the two differ, the head
 * was trained after all, and tie_word_embeddings is wrong: transformers 5 decides so, too. */
static bool is_embedding_again(struct binder *b, const struct tensor *head) {
    const struct tensor *embed = take(b, "embed_tokens.weight");
    return b->hub->is_tied && embed && embed->type == head->type && embed->bytes == head->bytes &&
           memcmp(embed->data, head->data, head->bytes) == 0;
}

static int bind_one(struct binder *b, const char *theirs, const char *ours,
                    const struct hub_name *row) {
    const struct tensor *s = take(b, theirs);
    if (!s || (strcmp(ours, "output.weight") == 0 && is_embedding_again(b, s)))
        return SLUICE_OK;
    struct hub_tensor *t = tensor_from(b, ours, 1);
    if (!t)
        return err_memory(b->err, ours);
    t->sources[0] = s;
    t->order = row->order;
    t->change = row->change;
    int status = set_dims(b, t, s, row->is_squeezed);
    if (!status && row->part != PART_ALL)
        status = row->part < PART_QKV ? take_half(b, t, row->part) : take_parts(b, t, row->part);
    return status ? status : check_tensor(b, t);
}

/* The name of expert e's tensor: the number in place of the '*'. */
static void name_expert(char *out, size_t size, const char *pattern, const char *star, uint32_t e) {
    snprintf(out, size, "%.*s%u%s", (int)(star - pattern), pattern, e, star + 1);
}

/* One matrix per expert, stacked. */
static int bind_each_expert(struct binder *b, const char *theirs, const char *star,
                            const char *ours) {
    char from[256];
    uint32_t at;
    name_expert(from, sizeof from, theirs, star, 0);
    if (!b->hub->n_experts || !strmap_get(&b->by_name, str_of(from), &at))
        return SLUICE_OK;
    struct hub_tensor *t = tensor_from(b, ours, b->hub->n_experts);
    if (!t)
        return err_memory(b->err, ours);
    for (uint32_t e = 0; e < b->hub->n_experts; e++) {
        name_expert(from, sizeof from, theirs, star, e);
        const struct tensor *s = take(b, from), *first = e ? t->sources[0] : s;
        if (!s || s->n_dims != 2 || s->dims[0] != first->dims[0] || s->dims[1] != first->dims[1])
            return err_set(b->err, SLUICE_ERR_FORMAT,
                           "%s: tensor %s is %s, expected a matrix like that of expert 0",
                           b->hub->folder->path, from, s ? "of another shape" : "missing");
        t->sources[e] = s;
    }
    int status = set_dims(b, t, t->sources[0], false);
    t->n_dims = 3;
    t->dims[2] = b->hub->n_experts;
    return status ? status : check_tensor(b, t);
}

static int bind_rows(struct binder *b, const struct hub_name *rows, const char *theirs,
                     const char *ours) {
    int status = SLUICE_OK;
    for (const struct hub_name *row = rows; !status && row->theirs; row++) {
        char from[256], to[64];
        snprintf(from, sizeof from, "%s%s", theirs, row->theirs);
        snprintf(to, sizeof to, "%s%s", ours, row->ours);
        const char *star = strchr(from, '*');
        status = star ? bind_each_expert(b, from, star, to) : bind_one(b, from, to, row);
    }
    return status;
}

static int bind_layer(struct binder *b, const char *theirs, const char *ours) {
    const struct hub_name *const *tables = b->hub->arch->layer_names;
    int status = SLUICE_OK;
    for (int i = 0; !status && i < MAX_NAME_TABLES && tables[i]; i++)
        status = bind_rows(b, tables[i], theirs, ours);
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
    int status = bind_rows(b, h->arch->global_names, "", "");
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
            status = bind_rows(b, h->arch->draft_names, "", ours);
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
                       STR_ARG(name), b->hub->arch->name);
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
                           "%s: tensor %.*s appears twice, with different prefixes",
                           b->hub->folder->path, STR_ARG(st->tensors[i].name));
    return SLUICE_OK;
}

/* The folder has a draft block, which config.json may deny but need not mention. */
static bool has_draft_block(const struct binder *b) {
    const json_t *n = json_object_get(b->hub->folder->config, "mtp_num_hidden_layers");
    uint32_t at;
    return b->hub->arch->draft_names && !(json_is_integer(n) && json_integer_value(n) == 0) &&
           strmap_get(&b->by_name, str_of(b->hub->arch->draft_names->theirs), &at);
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
        h->n_mtp = with_mtp && has_draft_block(&b);
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

static bool has_tensor(const struct hub *h, const char *name) {
    for (uint32_t i = 0; i < h->n_tensors; i++)
        if (strcmp(h->tensors[i].name, name) == 0)
            return true;
    return false;
}

bool hub_draft_lacks(const struct hub *h, char name[HUB_NAME]) {
    char like[32]; /* a layer with attention, as the block's is */
    uint32_t layer = 0;
    for (; h->n_mtp && layer < h->n_layers; layer++) {
        snprintf(name, HUB_NAME, "blk.%u.attn_q.weight", layer);
        if (has_tensor(h, name))
            break;
    }
    snprintf(like, sizeof like, "blk.%u.", layer);
    for (uint32_t i = 0; h->n_mtp && i < h->n_tensors; i++) {
        const char *part = h->tensors[i].name + strlen(like);
        if (strncmp(h->tensors[i].name, like, strlen(like)) != 0)
            continue;
        snprintf(name, HUB_NAME, "blk.%u.%s", h->n_layers, part);
        if (!has_tensor(h, name))
            return true;
    }
    for (const struct hub_name *row = h->arch->draft_names; h->n_mtp && row->theirs; row++) {
        snprintf(name, HUB_NAME, "blk.%u.%s", h->n_layers, row->ours);
        if (!has_tensor(h, name))
            return true;
    }
    return false;
}

/* ---- reading ------------------------------------------------------------------------------ */

/* Which place of the source goes to place `at` of n. */
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
    if (t->rows.n_parts)
        in_matrix = row_parts_source(&t->rows, in_matrix);
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
