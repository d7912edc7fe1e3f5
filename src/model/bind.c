/* bind.c - tensors by name, with the shapes they must have. */
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "model/arch.h"
#include "model/mixture.h"
#include "quant/random.h"

/* A tensor of the file or folder under our name, whichever it is. */
struct found {
    const struct tensor *tensor;  /* of the file; NULL: made by the hub */
    const struct hub_tensor *hub; /* NULL: a GGUF file */
    uint32_t n_dims;
    uint64_t dims[4];
};

static bool find(const struct model *m, const char *name, struct found *f) {
    *f = (struct found){0};
    if (m->file) {
        f->tensor = gguf_tensor(m->file, name);
        if (!f->tensor)
            return false;
        m->is_bound[f->tensor - m->file->tensors] = true;
        f->n_dims = f->tensor->n_dims;
        memcpy(f->dims, f->tensor->dims, sizeof f->dims);
        return true;
    }
    for (uint32_t i = 0; i < m->hub->n_tensors; i++) {
        const struct hub_tensor *t = &m->hub->tensors[i];
        if (strcmp(t->name, name) != 0)
            continue;
        f->hub = t;
        f->tensor = t->sources ? t->sources[0] : NULL;
        f->n_dims = t->n_dims;
        memcpy(f->dims, t->dims, sizeof f->dims);
        return true;
    }
    return false;
}

enum { FULL_NAME = 96 };

static void full_name(int block, const char *name, char out[FULL_NAME]) {
    if (block >= 0)
        snprintf(out, FULL_NAME, "blk.%d.%s", block, name);
    else
        snprintf(out, FULL_NAME, "%s", name);
}

/* Finds and checks; 1: found, 0: absent and may be, negative: an error. */
static int expect(const struct model *m, int block, const char *name, const uint64_t dims[4],
                  unsigned flags, struct found *f, struct err *err) {
    char full[FULL_NAME];
    full_name(block, name, full);
    if (!find(m, full, f)) {
        if (flags & BIND_OPTIONAL)
            return 0;
        return err_set(err, SLUICE_ERR_FORMAT, "%s: tensor %s is missing", m->path, full);
    }
    bool fits = true;
    for (int i = 0; i < 4; i++)
        fits &= f->dims[i] == (dims[i] ? dims[i] : 1); /* trailing ones may be left out */
    if (!fits)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: tensor %s is %llu x %llu x %llu, expected %llu x %llu x %llu", m->path,
                       full, (unsigned long long)f->dims[0], (unsigned long long)f->dims[1],
                       (unsigned long long)f->dims[2], (unsigned long long)dims[0],
                       (unsigned long long)(dims[1] ? dims[1] : 1),
                       (unsigned long long)(dims[2] ? dims[2] : 1));
    if (f->tensor && (f->tensor->type < 0 || !dtype_info((uint32_t)f->tensor->type)->decode))
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "%s: tensor %s is %s, which cannot be decoded here", m->path, full,
                       f->tensor->type_name);
    return 1;
}

/* ---- tensors made at load ----------------------------------------------------------------- */

static void fill_from_file(const struct made_weight *w, void *out) {
    const struct tensor *t = w->from;
    dtype_info((uint32_t)t->type)->decode(t->data, out, t->n_values);
}

/* In the folder's order of rows; the ops' flags say which that is. */
static void fill_from_hub(const struct made_weight *w, void *out) {
    const struct hub_tensor *t = &w->hub;
    hub_read_rows(w->from, t, 0, t->dims[1] * t->dims[2] * t->dims[3], out);
}

/* Stacks experts that the folder stores one by one. */
static void fill_gathered(const struct made_weight *w, void *out) {
    uint8_t *at = out;
    for (uint32_t e = 0; e < w->hub.n_sources; e++) {
        memcpy(at, w->hub.sources[e]->data, w->hub.sources[e]->bytes);
        at += w->hub.sources[e]->bytes;
    }
}

/* Rows that are grouped in the file or folder, as they are. */
static void fill_rows(const struct made_weight *w, void *out) {
    const struct row_parts *rows = &w->hub.rows;
    const struct tensor *t = w->from;
    uint64_t size = t->bytes / row_parts_of(rows);
    uint8_t *at = out;
    for (uint64_t i = 0; i < row_parts_count(rows); i++, at += size)
        memcpy(at, t->data + row_parts_source(rows, i) * size, size);
}

/* A synthetic model has no rows yet: as random as they will be. */
static void fill_random(const struct made_weight *w, void *out) {
    uint32_t type = (uint32_t)((const struct tensor *)w->from)->type;
    uint32_t step = dtype_info(type)->block_bytes;
    for (uint64_t i = 0; i < w->bytes; i += step)
        random_block(type, w->offset + i, (uint8_t *)out + i);
}

static bool are_alike(const struct hub_tensor *t) {
    for (uint32_t e = 1; e < t->n_sources; e++)
        if (t->sources[e]->type != t->sources[0]->type)
            return false;
    return true;
}

static bool is_plain(const struct found *f) {
    return !f->hub || (f->hub->change == CHANGE_NONE && f->tensor && f->hub->n_sources == 1 &&
                       !f->hub->rows.n_parts);
}

/* Places a vector's values, copied or decoded if need be. */
static int place_vector(struct model *m, const struct found *f, const char *name,
                        const uint32_t dims[4], struct operand *out, struct err *err) {
    /* Ops read vectors as floats, so an unaligned one is copied. Matrices stay where they are:
     * kernels take any address. */
    if (is_plain(f) && f->tensor->type == DT_F32 &&
        weights_offset(m->weights, f->tensor) % sizeof(float) == 0) {
        *out = operand_at(REGION_WEIGHTS, DT_F32, weights_offset(m->weights, f->tensor), dims);
        return SLUICE_OK;
    }
    *out = operand_at(REGION_WEIGHTS, DT_F32, 0, dims);
    struct made_weight *made =
        weights_make(m->weights, operand_bytes(out), f->hub ? fill_from_hub : fill_from_file);
    if (!made)
        return err_memory(err, name);
    made->from = f->hub ? (const void *)m->hub : f->tensor;
    if (f->hub) {
        made->hub = *f->hub;
        made->hub.order = ORDER_SAME;
    }
    out->offset = made->offset;
    return SLUICE_OK;
}

static int note_vector(struct model *m, int block, const char *name, const struct operand *o,
                       struct err *err) {
    char full[FULL_NAME];
    full_name(block, name, full);
    struct bound_vector *v = arena_alloc(&m->arena, sizeof *v);
    if (!v || !(v->name = arena_strdup(&m->arena, str_of(full))))
        return err_memory(err, full);
    v->offset = o->offset;
    v->n = size_times(o->dims[0], o->dims[1]);
    v->is_draft = m->weights->is_draft;
    v->next = m->vectors;
    m->vectors = v;
    return SLUICE_OK;
}

int bind_vector(struct model *m, int block, const char *name, uint32_t n, uint32_t width,
                unsigned flags, struct operand *out, struct err *err) {
    struct found f;
    uint32_t dims[4] = {width ? width : n, width ? n : 0};
    int got = expect(m, block, name, (uint64_t[4]){dims[0], dims[1]}, flags, &f, err);
    if (got <= 0)
        return got;
    int status = place_vector(m, &f, name, dims, out, err);
    return status ? status : note_vector(m, block, name, out, err);
}

/* A matrix of these rows of a tensor, in the tail. */
static int make_rows(struct model *m, const struct tensor *from, const struct row_parts *rows,
                     const char *name, struct operand *out, struct err *err) {
    const uint32_t dims[4] = {(uint32_t)from->dims[0], (uint32_t)row_parts_count(rows)};
    *out = operand_at(REGION_WEIGHTS, (enum dtype)from->type, 0, dims);
    struct made_weight *made =
        weights_make(m->weights, operand_bytes(out), m->synth ? fill_random : fill_rows);
    if (!made)
        return err_memory(err, name);
    made->hub.rows = *rows;
    made->from = from;
    out->offset = made->offset;
    return SLUICE_OK;
}

int bind_row_parts(struct model *m, int block, const char *name, uint32_t k,
                   const struct row_parts *rows, unsigned flags, struct operand *out,
                   struct err *err) {
    struct found f;
    int got = expect(m, block, name, (uint64_t[4]){k, row_parts_of(rows)}, flags, &f, err);
    return got <= 0 ? got : make_rows(m, f.tensor, rows, name, out, err);
}

static int bind_planes(struct model *m, int block, const char *name, const uint32_t dims[4],
                       unsigned flags, struct operand *out, struct err *err) {
    struct found f;
    int got = expect(m, block, name, (uint64_t[4]){dims[0], dims[1], dims[2]}, flags, &f, err);
    if (got <= 0)
        return got;
    if (is_plain(&f)) {
        *out = operand_at(REGION_WEIGHTS, (enum dtype)f.tensor->type,
                          weights_offset(m->weights, f.tensor), dims);
        if (f.hub && f.hub->take_rows) {                              /* half of a fused tensor */
            out->offset += f.hub->skip_rows * operand_row_bytes(out); /* inside the tensor */
            out->plane = (uint32_t)f.tensor->dims[1];
        }
        return SLUICE_OK;
    }
    if (f.hub->rows.n_parts)
        return make_rows(m, f.tensor, &f.hub->rows, name, out, err);
    /* Experts of different types become F32, which holds the values of each. */
    bool is_uniform = are_alike(f.hub);
    enum dtype type = is_uniform ? (enum dtype)f.tensor->type : DT_F32;
    *out = operand_at(REGION_WEIGHTS, type, 0, dims);
    struct made_weight *made =
        weights_make(m->weights, operand_bytes(out), is_uniform ? fill_gathered : fill_from_hub);
    if (!made)
        return err_memory(err, name);
    made->hub = *f.hub;
    made->from = m->hub;
    out->offset = made->offset;
    return SLUICE_OK;
}

int bind_matrix(struct model *m, int block, const char *name, uint32_t k, uint32_t n,
                unsigned flags, struct operand *out, struct err *err) {
    return bind_planes(m, block, name, (uint32_t[4]){k, n}, flags, out, err);
}

int bind_matrices(struct model *m, int block, const char *name, uint32_t k, uint32_t n, uint32_t e,
                  unsigned flags, struct operand *out, struct err *err) {
    return bind_planes(m, block, name, (uint32_t[4]){k, n, e}, flags, out, err);
}

/* ---- tensors that nothing asked for ------------------------------------------------------- */

/* Blocks after the last layer: only draft blocks may be left out, also those that no key counts. */
static void find_drafts(const struct model *m, bool is_draft[MAX_LAYERS]) {
    uint32_t block;
    for (uint32_t i = 0; i < m->file->n_tensors; i++) {
        struct str name = m->file->tensors[i].name;
        if (block_index(name, &block) && block >= m->config.n_layers && block < MAX_LAYERS)
            is_draft[block] |= str_contains(name, ".nextn.");
    }
}

static int check_blocks(const struct model *m, const bool is_draft[MAX_LAYERS], struct err *err) {
    const struct config *c = &m->config;
    uint32_t block, at = 0, count = 0;
    for (uint32_t i = 0; i < m->file->n_tensors; i++)
        if (block_index(m->file->tensors[i].name, &block) && block >= c->n_layers &&
            block >= count && (block >= MAX_LAYERS || !is_draft[block])) {
            count = block + 1;
            at = i;
        }
    if (!count)
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_FORMAT,
                   "%s: key %s.block_count is %u, expected %u, as there is a tensor %.*s", m->path,
                   c->arch, c->n_layers + c->n_mtp, count + c->n_mtp,
                   STR_ARG(m->file->tensors[at].name));
}

/* Encoders of images and sound, which some files have beside the text model, and heads that
 * classify what it has read. */
static bool is_beside_the_model(struct str name) {
    static const char *const prefixes[] = {"v.", "a.", "mm.", "cls."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (str_starts(name, prefixes[i]))
            return true;
    return false;
}

int bind_check_leftovers(struct model *m, struct err *err) {
    bool is_draft[MAX_LAYERS] = {0};
    uint32_t block;
    if (!m->file)
        return SLUICE_OK; /* hub.c has done it */
    find_drafts(m, is_draft);
    int status = check_blocks(m, is_draft, err);
    for (uint32_t i = 0; !status && i < m->file->n_tensors; i++) {
        struct str name = m->file->tensors[i].name;
        if (m->is_bound[i] || is_beside_the_model(name))
            continue;
        if (!block_index(name, &block) || !is_draft[block])
            status = err_set(err, SLUICE_ERR_UNSUPPORTED,
                             "%s: tensor %.*s is unknown to the architecture %s", m->path,
                             STR_ARG(name), m->config.arch);
    }
    return status;
}
