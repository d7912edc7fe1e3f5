/* formats.c - the grammars that answers must follow, compiled once and kept. */
#include "serve/formats.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/hash.h"

enum { KEPT = 16 };

struct kept_format {
    struct format format; /* first */
    struct grammar *grammar;
    atomic_int refs;
    struct hash128 name;
    uint64_t used;
};

struct formats {
    const sluice_model *model;
    pthread_mutex_t lock;
    struct token_texts *texts; /* made when first asked for */
    struct kept_format *kept[KEPT];
    uint64_t clock;
    size_t max_bytes;
};

struct formats *formats_open(const sluice_model *model, size_t max_bytes) {
    struct formats *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->model = model;
    f->max_bytes = max_bytes;
    pthread_mutex_init(&f->lock, NULL);
    return f;
}

void formats_close(struct formats *f) {
    if (!f)
        return;
    for (int i = 0; i < KEPT; i++)
        format_release(f->kept[i] ? &f->kept[i]->format : NULL);
    token_texts_close(f->texts);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* One reference more. */
static struct format *share(struct kept_format *e) {
    atomic_fetch_add(&e->refs, 1);
    return &e->format;
}

void format_release(struct format *format) {
    struct kept_format *e = (struct kept_format *)format;
    if (!e || atomic_fetch_sub(&e->refs, 1) > 1)
        return;
    grammar_close(e->grammar);
    free(e);
}

static int compile_schema(struct grammar **out, struct str text, struct err *err) {
    json_error_t why = {0};
    json_t *schema = json_loadb(text.at, text.len, JSON_DECODE_ANY, &why);
    if (!schema && json_error_code(&why) == json_error_null_character)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "schema: a text has a zero byte, which is not supported");
    int status = schema ? grammar_of_schema(out, schema, err) : err_memory(err, "a schema");
    json_decref(schema);
    return status;
}

static int compile(struct grammar **out, enum format_kind kind, struct str text, struct err *err) {
    return kind == FORMAT_GBNF    ? grammar_of_gbnf(out, text.at, text.len, err)
           : kind == FORMAT_REGEX ? grammar_of_regex(out, text.at, text.len, err)
           : kind == FORMAT_JSON  ? grammar_of_json_object(out, err)
                                  : compile_schema(out, text, err);
}

/* Stores it in place of the least recently used one. Under the lock. */
static void keep(struct formats *f, struct kept_format *e) {
    int oldest = 0;
    for (int i = 0; i < KEPT && f->kept[oldest]; i++)
        if (!f->kept[i] || f->kept[i]->used < f->kept[oldest]->used)
            oldest = i;
    if (f->kept[oldest])
        format_release(&f->kept[oldest]->format);
    f->kept[oldest] = e;
    e->used = ++f->clock;
    share(e);
}

static size_t kept_bytes(const struct formats *f) {
    size_t bytes = 0;
    for (int i = 0; i < KEPT; i++)
        bytes += f->kept[i] ? grammar_bytes(f->kept[i]->grammar) : 0;
    return bytes;
}

/* Drops the least recently used until the rest is small enough; the newest stays. Under the lock.
 */
static void shrink(struct formats *f) {
    while (kept_bytes(f) > f->max_bytes) {
        int oldest = -1;
        for (int i = 0; i < KEPT; i++)
            if (f->kept[i] && f->kept[i]->used < f->clock &&
                (oldest < 0 || f->kept[i]->used < f->kept[oldest]->used))
                oldest = i;
        if (oldest < 0)
            return;
        format_release(&f->kept[oldest]->format);
        f->kept[oldest] = NULL;
    }
}

size_t formats_bytes(struct formats *f) {
    pthread_mutex_lock(&f->lock);
    size_t bytes = kept_bytes(f);
    pthread_mutex_unlock(&f->lock);
    return bytes;
}

static struct format *find(struct formats *f, struct hash128 name) {
    for (int i = 0; i < KEPT; i++)
        if (f->kept[i] && hash128_equal(f->kept[i]->name, name)) {
            f->kept[i]->used = ++f->clock;
            return share(f->kept[i]);
        }
    return NULL;
}

static struct hash128 name_of(enum format_kind kind, struct str text) {
    struct hash h;
    unsigned char byte = (unsigned char)kind;
    hash_begin_secret(&h);
    hash_add(&h, &byte, 1);
    hash_add(&h, text.at, text.len);
    return hash128_end(&h);
}

static int make(struct formats *f, enum format_kind kind, struct str text, struct kept_format **out,
                struct err *err) {
    struct kept_format *e = calloc(1, sizeof *e);
    int status = e ? compile(&e->grammar, kind, text, err) : err_memory(err, "a grammar");
    pthread_mutex_lock(&f->lock);
    if (!status && !f->texts)
        status = token_texts_open(&f->texts, f->model, err);
    pthread_mutex_unlock(&f->lock);
    if (status) {
        if (e)
            grammar_close(e->grammar);
        free(e);
        return status;
    }
    e->format = (struct format){e->grammar, f->texts};
    e->refs = 1;
    *out = e;
    return SLUICE_OK;
}

int formats_find(struct formats *f, enum format_kind kind, struct str text, struct format **out,
                 struct err *err) {
    struct hash128 name = name_of(kind, text);
    struct kept_format *e;
    pthread_mutex_lock(&f->lock);
    *out = find(f, name);
    if (*out)
        shrink(f);
    pthread_mutex_unlock(&f->lock);
    if (*out)
        return SLUICE_OK;
    int status = make(f, kind, text, &e, err); /* two threads may do so at once: harmless */
    if (status)
        return status;
    e->name = name;
    *out = &e->format;
    pthread_mutex_lock(&f->lock);
    keep(f, e);
    shrink(f);
    pthread_mutex_unlock(&f->lock);
    return SLUICE_OK;
}
