/* imatrix.c - importance matrices: how much each input of a matrix matters. */
#include "model/imatrix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/filemap.h"
#include "base/size.h"
#include "file/gguf.h"
#include "file/gguf_write.h"

#define SUMS ".in_sum2"
#define COUNTS ".counts"

/* The smallest weight, where the average is 1. Not 0: another text may use the column, and sums of
 * weights are divisors. */
#define MIN_WEIGHT 1e-4f

void imatrix_close(struct imatrix *m) {
    if (!m)
        return;
    arena_free(&m->arena);
    free(m);
}

/* ---- reading ------------------------------------------------------------------------------ */

/* Sums and counts are finite and not negative. */
static int check_entry(const struct imatrix_entry *e, struct err *err) {
    for (uint64_t i = 0; i < e->n_sums; i++)
        if (!(e->sums[i] >= 0 && e->sums[i] <= 3.4e38f))
            return err_set(err, SLUICE_ERR_FORMAT, "%.*s: sum %llu is %g, expected 0 or more",
                           STR_ARG(e->name), (unsigned long long)i, e->sums[i]);
    for (uint32_t i = 0; i < e->n_counts; i++)
        if (!(e->counts[i] >= 0 && e->counts[i] <= 3.4e38f))
            return err_set(err, SLUICE_ERR_FORMAT, "%.*s: count %u is %g, expected 0 or more",
                           STR_ARG(e->name), i, e->counts[i]);
    return SLUICE_OK;
}

/* Adds an entry with space for its numbers; the name is copied. */
static struct imatrix_entry *add_entry(struct imatrix *m, struct str name, uint64_t n_sums,
                                       uint32_t n_counts) {
    struct imatrix_entry *e = &m->entries[m->n_entries];
    e->name = (struct str){arena_strdup(&m->arena, name), name.len};
    e->n_sums = n_sums;
    e->n_counts = n_counts;
    e->sums = arena_array(&m->arena, n_sums, sizeof *e->sums);
    e->counts = arena_array(&m->arena, n_counts, sizeof *e->counts);
    if (!e->name.at || !e->sums || !e->counts)
        return NULL;
    m->n_entries++;
    return e;
}

static int read_pair(struct imatrix *m, const struct gguf *g, const struct tensor *sums,
                     struct err *err) {
    char name[GGUF_MAX_NAME + sizeof COUNTS];
    struct str base = {sums->name.at, sums->name.len - strlen(SUMS)};
    snprintf(name, sizeof name, "%.*s%s", STR_ARG(base), COUNTS);
    const struct tensor *counts = gguf_tensor(g, name);
    if (!counts)
        return err_set(err, SLUICE_ERR_FORMAT, "tensor %s is missing", name);
    if (sums->type != DT_F32 || counts->type != DT_F32)
        return err_set(err, SLUICE_ERR_FORMAT, "%.*s: sums and counts are %s and %s, expected F32",
                       STR_ARG(base), sums->type_name, counts->type_name);
    if (!counts->n_values || counts->n_values > UINT32_MAX || !sums->n_values ||
        sums->n_values % counts->n_values != 0)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%.*s: %llu sums, expected a multiple of %llu counts", STR_ARG(base),
                       (unsigned long long)sums->n_values, (unsigned long long)counts->n_values);
    struct imatrix_entry *e = add_entry(m, base, sums->n_values, (uint32_t)counts->n_values);
    if (!e)
        return err_memory(err, "the importance matrix");
    memcpy(e->sums, sums->data, sums->bytes);
    memcpy(e->counts, counts->data, counts->bytes);
    return check_entry(e, err);
}

static int read_gguf(struct imatrix *m, const struct gguf *g, struct err *err) {
    struct str type = {0};
    int got = gguf_get_str(g, "general.type", &type, err);
    if (got < 0)
        return got;
    if (!str_is(type, "imatrix"))
        return err_set(err, SLUICE_ERR_FORMAT, "general.type is '%.*s', expected 'imatrix'",
                       STR_ARG(type));
    if ((got = gguf_get_u32(g, "imatrix.chunk_count", &m->n_chunks, err)) < 0 ||
        (got = gguf_get_u32(g, "imatrix.chunk_size", &m->chunk_size, err)) < 0)
        return got;
    const struct gguf_key *sets = gguf_key(g, "imatrix.datasets");
    struct str first = {0};
    if (sets && sets->type == GGUF_STRING && sets->count)
        first = sets->strings[0];
    m->dataset = (struct str){arena_strdup(&m->arena, first), first.len};
    m->entries = arena_array(&m->arena, g->n_tensors + 1, sizeof *m->entries);
    if (!m->entries || !m->dataset.at)
        return err_memory(err, "the importance matrix");
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < g->n_tensors; i++)
        if (str_ends(g->tensors[i].name, SUMS))
            status = read_pair(m, g, &g->tensors[i], err);
    return status;
}

/* The rest of an older file. */
struct old {
    const uint8_t *at;
    size_t left;
};

static bool take(struct old *o, void *to, uint64_t bytes) {
    if (bytes > o->left)
        return false;
    memcpy(to, o->at, bytes);
    o->at += bytes;
    o->left -= bytes;
    return true;
}

/* i32 length, name, i32 calls, i32 count of values, f32 values: each the mean times calls. */
static int read_old_entry(struct imatrix *m, struct old *o, struct err *err) {
    int32_t length, calls, n;
    if (!take(o, &length, 4) || length < 1 || length > GGUF_MAX_NAME || (size_t)length > o->left)
        return err_set(err, SLUICE_ERR_FORMAT, "entry %u: its name is not a text of 1 to %d bytes",
                       m->n_entries, GGUF_MAX_NAME);
    struct str name = {(const char *)o->at, (size_t)length};
    o->at += length;
    o->left -= (size_t)length;
    if (!take(o, &calls, 4) || !take(o, &n, 4) || calls < 0 || n < 1 ||
        (uint64_t)n * sizeof(float) > o->left)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "entry %u: the file ends inside it, or its counts are wrong", m->n_entries);
    struct imatrix_entry *e = add_entry(m, name, (uint64_t)n, 1);
    if (!e)
        return err_memory(err, "the importance matrix");
    take(o, e->sums, (uint64_t)n * sizeof(float));
    e->counts[0] = (float)calls;
    return check_entry(e, err);
}

static int read_old(struct imatrix *m, struct old o, struct err *err) {
    enum { MIN_ENTRY_BYTES = 17 }; /* bytes: a name and a value of one byte and one number */
    int32_t n = 0, calls = 0, length = 0;
    if (!take(&o, &n, 4) || n < 1 || (uint64_t)n * MIN_ENTRY_BYTES > o.left)
        return err_set(
            err, SLUICE_ERR_FORMAT,
            "neither GGUF nor an older importance matrix, whose first number is the count "
            "of entries");
    m->entries = arena_array(&m->arena, (uint64_t)n, sizeof *m->entries);
    if (!m->entries)
        return err_memory(err, "the importance matrix");
    int status = SLUICE_OK;
    for (int32_t i = 0; !status && i < n; i++)
        status = read_old_entry(m, &o, err);
    /* Then, in most of them: chunks, and the text's name. */
    if (!status && take(&o, &calls, 4) && calls > 0)
        m->n_chunks = (uint32_t)calls;
    m->dataset = STR("");
    if (!status && take(&o, &length, 4) && length > 0 && (size_t)length <= o.left) {
        struct str name = {(const char *)o.at, (size_t)length};
        m->dataset = (struct str){arena_strdup(&m->arena, name), name.len};
    }
    return status;
}

static bool is_gguf(const void *bytes, size_t size) {
    return size >= 4 && memcmp(bytes, "GGUF", 4) == 0;
}

/* An empty one is no importance matrix. */
static int finish(struct imatrix **out, struct imatrix *m, int status, struct err *err) {
    if (!status && m->n_entries == 0)
        status = err_set(err, SLUICE_ERR_FORMAT, "it has no tensor NAME" SUMS);
    if (status)
        imatrix_close(m);
    else
        *out = m;
    return status;
}

static int read_any(struct imatrix **out, const struct gguf *g, struct old old, struct err *err) {
    struct imatrix *m = calloc(1, sizeof *m);
    if (!m)
        return err_memory(err, "the importance matrix");
    return finish(out, m, g ? read_gguf(m, g, err) : read_old(m, old, err), err);
}

int imatrix_parse(struct imatrix **out, const void *bytes, size_t size, struct err *err) {
    struct gguf *g = NULL;
    *out = NULL;
    int status = is_gguf(bytes, size) ? gguf_parse(&g, bytes, size, err) : SLUICE_OK;
    if (!status)
        status = read_any(out, g, (struct old){bytes, size}, err);
    gguf_close(g);
    return status;
}

int imatrix_open(struct imatrix **out, const char *path, struct err *err) {
    struct filemap map = {.fd = -1};
    struct gguf *g = NULL;
    *out = NULL;
    int status = filemap_open(&map, path, err);
    if (!status && is_gguf(map.data, map.size))
        status = gguf_open(&g, path, err);
    if (!status) {
        status = read_any(out, g, (struct old){map.data, map.size}, err);
        if (status)
            err_prefix(err, "%s", path);
    }
    gguf_close(g);
    filemap_close(&map);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------ */

static int describe(const struct imatrix *m, struct gguf_writer *w, struct err *err) {
    int status = gguf_write_str(w, "general.type", STR("imatrix"), err);
    if (!status)
        status = gguf_write_strs(w, "imatrix.datasets", &m->dataset, 1, err);
    if (!status)
        status = gguf_write_u32(w, "imatrix.chunk_count", m->n_chunks, err);
    if (!status)
        status = gguf_write_u32(w, "imatrix.chunk_size", m->chunk_size, err);
    for (uint32_t i = 0; !status && i < m->n_entries; i++) {
        const struct imatrix_entry *e = &m->entries[i];
        char name[GGUF_MAX_NAME + sizeof SUMS];
        snprintf(name, sizeof name, "%.*s%s", STR_ARG(e->name), SUMS);
        uint64_t sums[2] = {e->n_sums / e->n_counts, e->n_counts}, counts[2] = {1, e->n_counts};
        status = gguf_write_tensor(w, str_of(name), DT_F32, sums, 2, err);
        snprintf(name, sizeof name, "%.*s%s", STR_ARG(e->name), COUNTS);
        if (!status)
            status = gguf_write_tensor(w, str_of(name), DT_F32, counts, 2, err);
    }
    return status;
}

int imatrix_write(const struct imatrix *m, const char *path, struct err *err) {
    struct gguf_writer *w = NULL;
    int status = gguf_writer_open(&w, path, 0, err);
    if (status)
        return status;
    status = describe(m, w, err);
    for (uint32_t i = 0; !status && i < m->n_entries; i++) {
        const struct imatrix_entry *e = &m->entries[i];
        status = gguf_write_data(w, e->sums, e->n_sums * sizeof *e->sums, err);
        if (!status)
            status = gguf_write_data(w, e->counts, e->n_counts * sizeof *e->counts, err);
    }
    if (!status)
        return gguf_writer_close(w, err);
    gguf_writer_abort(w);
    return status;
}

/* ---- use ---------------------------------------------------------------------------------- */

/* One matrix's sums as weights. Counts cancel: only ratios within a row matter. */
static void weights_of(const float *sums, bool is_known, uint64_t width, float *out) {
    double total = 0;
    for (uint64_t i = 0; i < width; i++)
        total += sums[i];
    double scale = is_known && total > 0 ? (double)width / total : 0;
    for (uint64_t i = 0; i < width; i++) {
        float w = scale > 0 ? (float)(sums[i] * scale) : 1;
        out[i] = w > MIN_WEIGHT ? w : MIN_WEIGHT;
    }
}

int imatrix_weights(const struct imatrix *m, const struct tensor *t, float **out, uint64_t *n,
                    struct err *err) {
    *out = NULL;
    *n = 0;
    const struct imatrix_entry *e = NULL;
    for (uint32_t i = 0; !e && i < m->n_entries; i++)
        if (str_equal(m->entries[i].name, t->name))
            e = &m->entries[i];
    if (!e)
        return SLUICE_OK;
    uint64_t width = t->dims[0], matrices = t->dims[2] * t->dims[3];
    if ((e->n_sums != width && e->n_sums != width * matrices) ||
        (e->n_counts != 1 && e->n_counts != e->n_sums / width))
        return err_set(
            err, SLUICE_ERR_FORMAT,
            "the importance matrix has %llu sums and %u counts for %.*s, expected those of "
            "%llu columns and %llu matrices",
            (unsigned long long)e->n_sums, e->n_counts, STR_ARG(e->name), (unsigned long long)width,
            (unsigned long long)matrices);
    float *weights = malloc(e->n_sums * sizeof *weights);
    if (!weights)
        return err_memory(err, "the importance matrix");
    *n = e->n_sums / width;
    for (uint64_t i = 0; i < *n; i++)
        weights_of(e->sums + i * width, e->counts[e->n_counts == 1 ? 0 : i] > 0, width,
                   weights + i * width);
    *out = weights;
    return SLUICE_OK;
}
