/* inspect.c - the verb inspect: what a model file holds.
 *
 * The facts are gathered once into a JSON value; --json prints it, otherwise it is laid out as
 * text. So both always agree. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/open.h"
#include "engine/engine.h"
#include "file/folder.h"
#include "file/gguf.h"
#include "model/synth.h"

/* Longer arrays (vocabularies) are shown by their beginning, unless --full. */
enum { ARRAY_SHOWN = 8 };

/* ---- values ------------------------------------------------------------------------------- */

static json_t *json_float(double v) {
    return isfinite(v) ? json_real(v) : json_string(isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
}

static json_t *element(const struct gguf_key *key, uint64_t i) {
    if (key->type == GGUF_STRING)
        return json_text(key->strings[i]);
    if (key->type == GGUF_BOOL)
        return json_boolean(key->data[i] != 0);
    if (key->type == GGUF_F32 || key->type == GGUF_F64)
        return json_float(gguf_float_at(key, i));
    /* A u64 as the i64 of its bits, which is all that jansson has: its row's type says so. */
    if (key->type == GGUF_U64)
        return json_integer((json_int_t)gguf_unsigned_at(key, i));
    return json_integer(gguf_int_at(key, i));
}

static json_t *key_value(const struct gguf_key *key, bool is_full) {
    if (!key->is_array)
        return element(key, 0);
    json_t *list = json_array();
    uint64_t shown = is_full || key->count < ARRAY_SHOWN ? key->count : ARRAY_SHOWN;
    for (uint64_t i = 0; i < shown; i++)
        json_array_append_new(list, element(key, i));
    return list;
}

/* ---- facts -------------------------------------------------------------------------------- */

static json_t *keys_of_gguf(const struct gguf *g, bool is_full) {
    json_t *keys = json_object();
    for (uint32_t i = 0; i < g->n_keys; i++) {
        const struct gguf_key *k = &g->keys[i];
        char type[32];
        snprintf(type, sizeof type, "%s%s", gguf_type_name(k->type), k->is_array ? "[]" : "");
        json_t *row = json_pack("{s:s, s:o}", "type", type, "value", key_value(k, is_full));
        if (k->is_array)
            json_object_set_new(row, "count", json_integer((json_int_t)k->count));
        char *name = strndup(k->name.at, k->name.len);
        json_object_set_new(keys, name ? name : "", row);
        free(name);
    }
    return keys;
}

/* config.json's values that are not themselves objects. */
static json_t *keys_of_folder(const struct folder *f) {
    json_t *keys = json_object(), *value;
    const char *name;
    json_object_foreach(f->config, name, value) {
        if (json_is_object(value))
            continue;
        const char *type = json_is_string(value)    ? "string"
                           : json_is_integer(value) ? "integer"
                           : json_is_real(value)    ? "real"
                           : json_is_boolean(value) ? "bool"
                           : json_is_array(value)   ? "array"
                                                    : "null";
        json_t *row = json_pack("{s:s, s:O}", "type", type, "value", value);
        if (json_is_array(value))
            json_object_set_new(row, "count", json_integer((json_int_t)json_array_size(value)));
        json_object_set_new(keys, name, row);
    }
    return keys;
}

/* Adds one tensor to the row of its type. */
static void count_type(json_t *types, const struct tensor *t) {
    json_t *row = json_object_get(types, t->type_name);
    if (!row) {
        row = json_pack("{s:i, s:i, s:i}", "tensors", 0, "values", 0, "bytes", 0);
        json_object_set_new(types, t->type_name, row);
    }
    const struct {
        const char *name;
        uint64_t more;
    } sums[] = {{"tensors", 1}, {"values", t->n_values}, {"bytes", t->bytes}};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        json_t *n = json_object_get(row, sums[i].name);
        json_integer_set(n, json_integer_value(n) + (json_int_t)sums[i].more);
    }
}

static void add_tensors(json_t *facts, const struct tensor *tensors, uint32_t n) {
    json_t *list = json_array(), *types = json_object();
    uint64_t parameters = 0, bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct tensor *t = &tensors[i];
        json_t *dims = json_array();
        for (uint32_t d = 0; d < t->n_dims; d++)
            json_array_append_new(dims, json_integer((json_int_t)t->dims[d]));
        json_array_append_new(list,
                              json_pack("{s:o, s:s, s:o, s:I}", "name", json_text(t->name), "type",
                                        t->type_name, "dims", dims, "bytes", (json_int_t)t->bytes));
        count_type(types, t);
        parameters += t->n_values;
        bytes += t->bytes;
    }
    json_object_set_new(facts, "parameters", json_integer((json_int_t)parameters));
    json_object_set_new(facts, "tensor_bytes", json_integer((json_int_t)bytes));
    json_object_set_new(facts, "types", types);
    json_object_set_new(facts, "tensors", list);
}

static int facts_of_gguf(json_t *facts, const char *path, bool is_full, struct err *err) {
    struct gguf *g = NULL;
    struct synth *synth = NULL;
    int status = synth_is(path) ? synth_open(&synth, path, err) : gguf_open(&g, path, err);
    if (status)
        return status;
    g = synth ? synth->file : g;
    char format[32];
    snprintf(format, sizeof format, synth ? "synthetic" : "GGUF v%u", g->version);
    const struct gguf_key *arch = gguf_key(g, "general.architecture");
    json_object_set_new(facts, "format", json_string(format));
    json_object_set_new(facts, "files", json_integer(g->n_parts));
    json_object_set_new(facts, "file_bytes", json_integer((json_int_t)g->file_bytes));
    if (arch && arch->type == GGUF_STRING && !arch->is_array)
        json_object_set_new(facts, "architecture", json_text(arch->strings[0]));
    json_object_set_new(facts, "keys", keys_of_gguf(g, is_full));
    add_tensors(facts, g->tensors, g->n_tensors);
    if (synth)
        synth_close(synth);
    else
        gguf_close(g);
    return SLUICE_OK;
}

static int facts_of_folder(json_t *facts, const char *path, struct err *err) {
    struct folder *f;
    int status = folder_open(&f, path, true, err);
    if (status)
        return status;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < f->weights->n_shards; i++)
        bytes += f->weights->shards[i].size;
    json_object_set_new(facts, "format", json_string("safetensors"));
    json_object_set_new(facts, "files", json_integer(f->weights->n_shards));
    json_object_set_new(facts, "file_bytes", json_integer((json_int_t)bytes));
    json_t *type = json_object_get(f->config, "model_type");
    if (json_is_string(type))
        json_object_set(facts, "architecture", type);
    json_object_set_new(facts, "keys", keys_of_folder(f));
    add_tensors(facts, f->weights->tensors, f->weights->n_tensors);
    folder_close(f);
    return SLUICE_OK;
}

/* ---- memory ------------------------------------------------------------------------------- */

static json_t *memory_json(const struct sluice_engine *e) {
    struct sluice_memory m;
    sluice_engine_memory(e, &m);
    const struct {
        const char *name;
        uint64_t bytes;
    } rows[] = {
        {"weights", m.weights},
        {"imported", e->predicted.imported},
        {"state", m.state},
        {"scratch", m.scratch},
        {"io", m.io},
        {"packed", m.packed},
        {"workspace", m.workspace},
        {"total", m.total},
        {"disk", m.disk},
        {"pages", e->setup.n_pages},
        {"page_tokens", IO_PAGE_POSITIONS},
        {"page_bytes", e->state.layout.page_bytes},
        {"snapshots", e->setup.n_snapshots},
        {"snapshot_bytes", e->state.layout.recurrent_bytes},
        {"snapshot_every", e->state.layout.recurrent_bytes ? e->setup.snapshot_every : 0},
        {"cache_bytes", m.cache},
        {"cache_dir_bytes", e->setup.disk_bytes},
    };
    json_t *out = json_pack("{s:s, s:i, s:i, s:s, s:b, s:b}", "backend", e->kind->name, "context",
                            (int)e->setup.context, "sequences", (int)e->setup.n_seqs, "kv",
                            dtype_name(e->setup.kv_type), "mapped",
                            weights_mapped(e->model->model->weights) > 0, "on_host",
                            e->kind->uses_host_weights);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        json_object_set_new(out, rows[i].name, json_integer((json_int_t)rows[i].bytes));
    return out;
}

/* Whether that fits into what is free now, and if not, what would make it fit. */
static json_t *fit_json(const struct sluice_engine *e, const struct fit *f) {
    json_t *advice = json_array();
    for (uint32_t i = 0; i < f->n_advice; i++)
        json_array_append_new(advice, json_string(f->advice[i]));
    json_t *row = json_pack("{s:s, s:i, s:I, s:I, s:o, s:b, s:o}", "backend", e->kind->name,
                            "context", (int)e->setup.context, "needs", (json_int_t)f->total,
                            "weights", (json_int_t)f->weights, "free",
                            f->free == UINT64_MAX ? json_null() : json_integer((json_int_t)f->free),
                            "fits", f->fits && f->cache_fits && f->has_room, "would_fit", advice);
    if (f->disk)
        json_object_update_new(row, json_pack("{s:I, s:I}", "disk", (json_int_t)f->disk,
                                              "disk_free", (json_int_t)f->disk_free));
    return row;
}

/* Adds a row to the fits of the devices, and, if it is the first, the memory itself. */
static int add_fit(json_t *facts, struct sluice_model *model, const struct sluice_engine_options *o,
                   struct err *err) {
    struct sluice_engine *engine;
    struct fit f;
    json_t *fits = json_object_get(facts, "fit");
    int status = engine_prepare(&engine, model, o, false, err);
    if (!status)
        status = fit_find(&f, engine, o, err);
    if (!status && !fits) {
        json_object_set_new(facts, "memory", memory_json(engine));
        json_object_set_new(facts, "fit", fits = json_array());
    }
    if (!status)
        json_array_append_new(fits, fit_json(engine, &f));
    engine_close(engine);
    return status;
}

/* An error without the name of the file, which stands above it. */
static struct str without_path(const char *text, const char *path) {
    struct str rest = str_of(text);
    if (str_starts(rest, path) && str_starts(str_skip(rest, strlen(path)), ": "))
        rest = str_skip(rest, strlen(path) + 2);
    return rest;
}

/* What `run` would take with these options, to the byte, and on the CPU if it would choose another
 * device by itself; why a model cannot be run, instead. */
static int add_memory(json_t *facts, const struct common *c, const char *path, bool is_asked) {
    struct sluice_model *model = NULL;
    struct sluice_engine_options o = common_engine(c);
    struct err err = {0}, ignored;
    int exit = 0, status = sluice_model_open(&model, path);
    if (status)
        err_set(&err, status, "%s", sluice_model_error(model));
    else
        status = add_fit(facts, model, &o, &err);
    if (!status) {
        struct sluice_facts of_model;
        sluice_model_facts(model, &of_model);
        json_object_set_new(facts, "draft_block", json_boolean(of_model.has_draft_block));
    }
    bool is_elsewhere = strcmp(backend_meant(o.backend), "auto") == 0 &&
                        !backend_find(o.backend)->uses_host_weights;
    o.backend = "cpu";
    o.device = 0;
    if (!status && is_elsewhere)
        add_fit(facts, model, &o, &ignored);
    else if (status && is_asked)
        exit = fail(&err);
    else if (status)
        json_object_set_new(facts, "cannot_run", json_text(without_path(err.text, path)));
    sluice_model_close(model);
    return exit;
}

/* ---- text --------------------------------------------------------------------------------- */

static uint64_t number(const json_t *object, const char *name) {
    return (uint64_t)json_integer_value(json_object_get(object, name));
}

/* Whether the integers of a key's row are the bits of u64. */
static bool is_u64(const json_t *row) {
    const char *type = json_string_value(json_object_get(row, "type"));
    return type && strncmp(type, "u64", 3) == 0;
}

static void print_int(const json_t *v, bool is_unsigned) {
    long long value = json_integer_value(v);
    if (is_unsigned)
        printf("%llu", (unsigned long long)value);
    else
        printf("%lld", value);
}

static struct str text_of(const json_t *v) {
    return json_is_string(v) ? (struct str){json_string_value(v), json_string_length(v)} : STR("");
}

/* Prints at most `max` characters of a text from the file, safe for a terminal; returns how many;
 * *s is the rest. */
static int print_escaped(struct str *s, int max) {
    int n = 0;
    for (; s->len > 0 && n < max; n++) {
        char one[8];
        *s = str_skip(*s, quote_one(*s, one));
        fputs(one, stdout);
    }
    return n;
}

static void print_indent(int depth) {
    printf("\n%*s", 2 * depth, "");
}

/* As jansson would, with two spaces a level, but for the integers of u64. */
static void print_facts(json_t *v, int depth, bool is_unsigned) {
    size_t i = 0;
    const char *name;
    json_t *child;
    if (json_is_object(v) && json_object_size(v) > 0) {
        is_unsigned |= is_u64(v);
        json_object_foreach(v, name, child) {
            putchar(i++ ? ',' : '{');
            print_indent(depth + 1);
            json_t *key = json_string(name);
            print_json_value(key, 0);
            json_decref(key);
            fputs(": ", stdout);
            print_facts(child, depth + 1, is_unsigned);
        }
        print_indent(depth);
        putchar('}');
    } else if (json_is_array(v) && json_array_size(v) > 0) {
        json_array_foreach(v, i, child) {
            putchar(i ? ',' : '[');
            print_indent(depth + 1);
            print_facts(child, depth + 1, is_unsigned);
        }
        print_indent(depth);
        putchar(']');
    } else if (json_is_integer(v)) {
        print_int(v, is_unsigned);
    } else {
        print_json_value(v, 0);
    }
}

/* A name in a column of that width. */
static void print_name(struct str name, int width) {
    int n = print_escaped(&name, INT_MAX);
    printf("%*s", n < width ? width - n : 0, "");
}

/* A string cut to a line's rest. */
static void print_string(struct str s) {
    fputc('"', stdout);
    print_escaped(&s, 60);
    fputs(s.len ? "\"..." : "\"", stdout);
}

static void print_value(const json_t *v, bool is_unsigned) {
    if (json_is_string(v))
        print_string(text_of(v));
    else if (json_is_boolean(v))
        fputs(json_is_true(v) ? "true" : "false", stdout);
    else if (json_is_integer(v))
        print_int(v, is_unsigned);
    else if (json_is_real(v))
        printf("%.9g", json_real_value(v));
    else
        fputs("null", stdout);
}

static void print_key(const char *name, const json_t *row) {
    const json_t *v = json_object_get(row, "value");
    bool is_unsigned = is_u64(row);
    fputs("  ", stdout);
    print_name(str_of(name), 44);
    printf(" %-9s ", json_string_value(json_object_get(row, "type")));
    if (!json_is_array(v)) {
        print_value(v, is_unsigned);
    } else {
        uint64_t count = number(row, "count");
        size_t shown = json_array_size(v) < ARRAY_SHOWN ? json_array_size(v) : ARRAY_SHOWN;
        printf("%llu: ", (unsigned long long)count);
        for (size_t i = 0; i < shown; i++) {
            fputs(i ? ", " : "", stdout);
            print_value(json_array_get(v, i), is_unsigned);
        }
        fputs(count > shown ? ", ..." : "", stdout);
    }
    putchar('\n');
}

static void print_tensor(const json_t *t) {
    char dims[TENSOR_MAX_DIMS * 24] = "";
    size_t i, len = 0;
    const json_t *dim;
    json_array_foreach(json_object_get(t, "dims"), i, dim) len +=
        (size_t)snprintf(dims + len, sizeof dims - len, "%s%lld", i ? " x " : "",
                         (long long)json_integer_value(dim));
    fputs("  ", stdout);
    print_name(text_of(json_object_get(t, "name")), 44);
    printf(" %-7s %-22s %10s\n", json_string_value(json_object_get(t, "type")), dims,
           human_bytes(number(t, "bytes")));
}

/* The caches of conversations, and where they are. */
static void print_cache(const json_t *m) {
    static const char *const below[][2] = {{"cache_bytes", "host memory"},
                                           {"cache_dir_bytes", "folder, at most"}};
    printf("\nconversations\n  %s page%s of %llu tokens, %s bytes each\n",
           human_count(number(m, "pages")), number(m, "pages") == 1 ? "" : "s",
           (unsigned long long)number(m, "page_tokens"), human_count(number(m, "page_bytes")));
    if (number(m, "snapshot_bytes"))
        printf("  %s snapshot%s of recurrent state, %s bytes each, one every %s tokens\n",
               human_count(number(m, "snapshots")), number(m, "snapshots") == 1 ? "" : "s",
               human_count(number(m, "snapshot_bytes")), human_count(number(m, "snapshot_every")));
    for (size_t i = 0; i < sizeof below / sizeof *below; i++)
        if (number(m, below[i][0]))
            printf("  %s %s bytes\n", below[i][1], human_count(number(m, below[i][0])));
}

static void print_memory(const json_t *m) {
    bool is_mapped = json_is_true(json_object_get(m, "mapped"));
    char weights[96];
    if (json_is_true(json_object_get(m, "on_host")))
        snprintf(weights, sizeof weights, "%s",
                 is_mapped ? "used where the file is mapped" : "in memory");
    else if (number(m, "imported"))
        snprintf(weights, sizeof weights, "%s bytes read where the file is mapped, not uploaded",
                 human_count(number(m, "imported")));
    else
        snprintf(weights, sizeof weights, "uploaded to the device");
    const char *const rows[][2] = {
        {"weights", weights},
        {"state", "KV cache, recurrent states, token counts"},
        {"scratch", "activations"},
        {"io", "each step's inputs, and logits"},
        {"packed", is_mapped ? "weights in the kernels' order; the file's pages are released"
                             : "weights in the kernels' order, a second copy"},
        {"workspace", "temporary memory of the backend"},
        {"total", ""},
        {"disk", "weights that are read from the disk when they are needed"},
    };
    size_t n = sizeof rows / sizeof *rows - !number(m, "disk");
    printf("\nmemory (%s, context %llu, sequences %llu, kv %s)\n",
           json_string_value(json_object_get(m, "backend")),
           (unsigned long long)number(m, "context"), (unsigned long long)number(m, "sequences"),
           json_string_value(json_object_get(m, "kv")));
    for (size_t i = 0; i < n; i++)
        printf("  %-10s %20s bytes  %s\n", rows[i][0], human_count(number(m, rows[i][0])),
               rows[i][1]);
    print_cache(m);
}

/* "fits cpu: needs 2.71 GB with a context of 8192, 21.5 GB are free". */
static void print_fit(const json_t *f) {
    json_t *free = json_object_get(f, "free"), *advice = json_object_get(f, "would_fit"), *option;
    bool fits = json_is_true(json_object_get(f, "fits"));
    size_t i;
    printf("  %s %s: needs %s with a context of %llu", fits ? "fits" : "does not fit",
           json_string_value(json_object_get(f, "backend")), human_bytes(number(f, "needs")),
           (unsigned long long)number(f, "context"));
    if (json_is_integer(free))
        printf(", %s are free", human_bytes(number(f, "free")));
    if (number(f, "disk"))
        printf("; %s of weights on disk, %s are free there", human_bytes(number(f, "disk")),
               human_bytes(number(f, "disk_free")));
    json_array_foreach(advice, i, option)
        printf("%s%s", i ? ", " : "; what would fit: ", json_string_value(option));
    if (!fits && json_array_size(advice) == 0 && number(f, "disk") <= number(f, "disk_free"))
        fputs(number(f, "weights") > number(f, "free") ? "; the weights alone do not fit"
                                                       : "; no -c or --kv would fit",
              stdout);
    putchar('\n');
}

static void print_text(json_t *facts) {
    struct str arch = text_of(json_object_get(facts, "architecture"));
    const char *name;
    json_t *keys = json_object_get(facts, "keys"), *tensors = json_object_get(facts, "tensors");
    json_t *row;
    size_t i;
    print_name(text_of(json_object_get(facts, "path")), 0);
    printf("\n  %s, ", json_string_value(json_object_get(facts, "format")));
    if (number(facts, "files"))
        printf("%s in %llu file%s, ", human_bytes(number(facts, "file_bytes")),
               (unsigned long long)number(facts, "files"), number(facts, "files") == 1 ? "" : "s");
    printf("architecture ");
    print_name(arch.len ? arch : STR("unknown"), 0);
    printf("\n  %s parameters in %zu tensors, %s bytes\n", human_count(number(facts, "parameters")),
           json_array_size(tensors), human_count(number(facts, "tensor_bytes")));
    json_array_foreach(json_object_get(facts, "fit"), i, row) print_fit(row);
    if (json_object_get(facts, "cannot_run")) {
        printf("  cannot be run: ");
        print_name(text_of(json_object_get(facts, "cannot_run")), 0);
        putchar('\n');
    }
    if (json_is_true(json_object_get(facts, "draft_block")))
        printf("  has a block for multi-token prediction, which drafts (--mtp)\n");
    printf("\ntypes\n");
    json_object_foreach(json_object_get(facts, "types"), name, row) {
        double values = (double)number(row, "values");
        printf("  %-8s %5llu tensor%s %18s values %10s  %.4g bits a value\n", name,
               (unsigned long long)number(row, "tensors"), number(row, "tensors") == 1 ? " " : "s",
               human_count(number(row, "values")), human_bytes(number(row, "bytes")),
               values > 0 ? 8 * (double)number(row, "bytes") / values : 0);
    }
    if (json_object_get(facts, "memory"))
        print_memory(json_object_get(facts, "memory"));
    printf("\nkeys (%zu)\n", json_object_size(keys));
    json_object_foreach(keys, name, row) print_key(name, row);
    printf("\ntensors (%zu)\n", json_array_size(tensors));
    json_array_foreach(tensors, i, row) print_tensor(row);
}

static bool has_cache(const struct common *c) {
    return c->cache_dir || c->kv_bytes != UINT64_MAX || c->snapshot_bytes != UINT64_MAX ||
           c->cache_bytes != UINT64_MAX;
}

int cmd_inspect(int argc, char **argv) {
    bool as_json = false, is_full = false;
    struct common c = common_default();
    c.batch = INT_MIN; /* not given */
    c.draft = USUAL_DRAFT;
    struct opt opts[MAX_COMMON_OPTS + 8] = {
        {"--json", 0, OPT_FLAG, &as_json, NULL, "print one JSON object"},
        {"--full", 0, OPT_FLAG, &is_full, NULL, "with --json: don't shorten long arrays"},
        {"--batch", 0, OPT_INT, &c.batch, "N",
         "number of sequences to plan memory for; default: 1"},
    };
    const struct usage usage = {
        .verb = "inspect",
        .synopsis = "[MODEL] [--json [--full]] [-c N] [--batch N] [--kv TYPE]",
        .about =
            "Lists the keys, tensors, types and sizes of a GGUF file (or the first part of a\n"
            "split one) or of a folder with safetensors, and the memory that `sluice run` takes,\n"
            "to the byte, and whether that fits into what is free now, or with which options it\n"
            "would. Nothing is loaded. Weights are in memory once: \"packed\" are those in\n"
            "the order of the CPU's kernels, whose pages of the file are released, \"weights\"\n"
            "those used where the file is mapped, or uploaded to a device.",
        .example = "sluice inspect models/stories-27m-q4_k_m.gguf",
        .opts = opts,
        .n_opts = common_opts(opts, 3, &c, WITH_ENGINE | WITH_CACHE | WITH_DRAFT),
        .model = &c.model,
    };
    const struct common none = c;
    int exit = opts_parse(&usage, argc, argv, NULL);
    bool is_asked = c.context != none.context || c.batch != INT_MIN || strcmp(c.kv, none.kv) != 0 ||
                    c.exact || strcmp(c.backend, none.backend) != 0 || c.device || has_cache(&c) ||
                    c.draft != none.draft || c.mtp != none.mtp || c.weights_dir;
    c.batch = c.batch != INT_MIN ? c.batch : 1;
    if (exit == OPTS_GO_ON)
        exit = common_check(&c, "inspect");
    if (exit != OPTS_GO_ON)
        return exit;
    if (is_full && !as_json)
        return complain(EXIT_USAGE, "inspect: --full needs --json");
    struct err err = {0};
    const char *path = model_path(c.model, &err);
    if (!path)
        return fail(&err);
    json_t *facts = json_pack("{s:o}", "path", json_text(str_of(path)));
    int status = folder_is(path) ? facts_of_folder(facts, path, &err)
                                 : facts_of_gguf(facts, path, is_full, &err);
    if (status)
        hint_of_model(&err, path);
    exit = status ? fail(&err) : add_memory(facts, &c, path, is_asked);
    if (!exit && as_json) {
        print_facts(facts, 0, false);
        putchar('\n');
    } else if (!exit) {
        print_text(facts);
    }
    json_decref(facts);
    return exit;
}
