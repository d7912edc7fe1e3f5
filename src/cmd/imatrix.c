/* imatrix.c - the verb imatrix: runs a model over a text and sums the squared inputs of each
 * matrix, for quantize --imatrix.
 *
 * The text is cut into windows as by ppl, each from an empty context; a model that begins texts
 * with BOS has it in place of a window's first token. */
#include "model/imatrix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/outfile.h"
#include "cmd/cmd.h"
#include "cmd/open.h"
#include "cmd/output.h"
#include "engine/engine.h"

/* A tensor of blocks, by its offset in WEIGHTS. */
struct counted {
    uint64_t offset;
    uint64_t width;
    struct imatrix_entry *entry;
};

struct collector {
    struct common common;
    const char *file, *out;
    int window, max_windows;
    sluice_model *model;
    sluice_engine *engine;
    struct ids ids;
    struct imatrix matrix;
    struct counted *counted; /* (matrix.n_entries), ascending */
    struct err err;
};

/* ---- collecting --------------------------------------------------------------------------- */

static int compare_offsets(const void *a, const void *b) {
    const struct counted *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Parts of a tensor (the second half of fused matrices) have other offsets and the same inputs:
 * only the first is counted. */
static void add_rows(void *user, const struct operand *weight, uint32_t matrix, const float *x,
                     uint32_t n) {
    struct collector *c = user;
    struct counted key = {.offset = weight->offset};
    const struct counted *p =
        bsearch(&key, c->counted, c->matrix.n_entries, sizeof *p, compare_offsets);
    if (!p || weight->dims[0] != p->width || matrix >= p->entry->n_counts)
        return;
    float *sums = p->entry->sums + matrix * p->width;
    for (uint32_t r = 0; r < n; r++, x += p->width)
        for (uint64_t i = 0; i < p->width; i++)
            sums[i] += x[i] * x[i];
    p->entry->counts[matrix] += (float)n;
}

static bool is_counted(const struct tensor *t) {
    return t->n_dims >= 2 && str_starts(t->name, "blk.") && str_ends(t->name, ".weight");
}

/* An entry for every matrix of a block; those that no product reads stay empty. */
static int make_entries(struct collector *c) {
    const struct model *m = c->model->model;
    struct imatrix *to = &c->matrix;
    if (!m->file)
        return err_set(&c->err, SLUICE_ERR_UNSUPPORTED,
                       "%s is a folder, expected a GGUF file (sluice convert makes one)", m->path);
    to->entries = arena_array(&to->arena, m->file->n_tensors + 1, sizeof *to->entries);
    c->counted = arena_array(&to->arena, m->file->n_tensors + 1, sizeof *c->counted);
    for (uint32_t i = 0; to->entries && c->counted && i < m->file->n_tensors; i++) {
        const struct tensor *t = &m->file->tensors[i];
        if (!is_counted(t))
            continue;
        struct imatrix_entry *e = &to->entries[to->n_entries];
        *e = (struct imatrix_entry){
            .name = t->name,
            .n_counts = (uint32_t)t->dims[2],
            .n_sums = t->dims[0] * t->dims[2],
            .sums = arena_array(&to->arena, t->dims[0] * t->dims[2], sizeof *e->sums),
            .counts = arena_array(&to->arena, t->dims[2], sizeof *e->counts)};
        if (!e->sums || !e->counts)
            return err_memory(&c->err, "the importance matrix");
        c->counted[to->n_entries++] =
            (struct counted){weights_read_offset(m->weights, t), t->dims[0], e};
    }
    if (!to->entries || !c->counted)
        return err_memory(&c->err, "the importance matrix");
    qsort(c->counted, to->n_entries, sizeof *c->counted, compare_offsets);
    return SLUICE_OK;
}

static int run_window(void *user, const int32_t *tokens, uint32_t n) {
    struct collector *c = user;
    sluice_seq *seq;
    struct sluice_facts facts;
    sluice_model_facts(c->model, &facts);
    bool has_bos = facts.adds_bos && facts.bos >= 0;
    if (sluice_seq_open(&seq, c->engine) ||
        sluice_seq_feed(seq, has_bos ? &facts.bos : tokens, 1) ||
        sluice_seq_feed(seq, tokens + 1, n - 1))
        return fail_engine(c->engine);
    int exit = common_work_off(c->engine, NULL, 0);
    sluice_seq_close(seq);
    return exit;
}

static int run_text(struct collector *c) {
    c->matrix.dataset = str_of(c->file);
    c->matrix.n_chunks = (uint32_t)common_count_windows(&c->ids, c->window, c->max_windows);
    c->matrix.chunk_size = (uint32_t)c->window;
    return common_each_window(&c->ids, c->window, c->max_windows, "reading", run_window, c);
}

/* ---- the file ----------------------------------------------------------------------------- */

/* Entries of tensors that no product read are left out; experts that were never chosen stay, with a
 * count of 0. */
static uint32_t drop_empty(struct imatrix *m) {
    uint32_t kept = 0, unseen = 0;
    for (uint32_t i = 0; i < m->n_entries; i++) {
        struct imatrix_entry *e = &m->entries[i];
        uint32_t zeros = 0;
        for (uint32_t k = 0; k < e->n_counts; k++)
            zeros += e->counts[k] == 0;
        if (zeros == e->n_counts)
            continue;
        unseen += zeros;
        m->entries[kept++] = *e;
    }
    m->n_entries = kept;
    return unseen;
}

static int write_matrix(struct collector *c) {
    const char *replaced = output_replaces(c->out);
    uint32_t unseen = drop_empty(&c->matrix);
    int status = imatrix_write(&c->matrix, output_path(c->out), &c->err);
    if (status)
        return fail(&c->err);
    if (unseen)
        warn("%u matrices of experts were never used; quantize will weigh their inputs equally",
             unseen);
    say(SAY_NORMAL, "%s: %u tensors, %u window%s of %u tokens%s", c->out, c->matrix.n_entries,
        c->matrix.n_chunks, c->matrix.n_chunks == 1 ? "" : "s", c->matrix.chunk_size, replaced);
    return 0;
}

static int open_engine(struct collector *c) {
    struct sluice_engine_options o = common_engine(&c->common);
    o.context = c->window;
    int exit = common_open_engine(c->model, &o, false, &c->engine);
    if (exit)
        return exit;
    common_announce(&c->common, c->model, c->engine);
    return 0;
}

/* Checks early that the output can be written, and is not one of the input files. */
static int check_output(struct collector *c) {
    const char *path = output_path(c->out);
    int status = model_protect(c->model->model, path, &c->err);
    if (!status)
        status = filemap_protect_path(c->file, path, &c->err);
    if (!status)
        status = outfile_check(path, &c->err);
    return status ? fail(&c->err) : 0;
}

static int collect(struct collector *c) {
    const struct backend_observer observer = {add_rows, c};
    int exit = check_output(c);
    if (!exit)
        exit = common_encode_file(c->model, c->file, (size_t)c->window, &c->ids);
    if (!exit && make_entries(c))
        exit = fail(&c->err);
    if (!exit)
        exit = open_engine(c);
    if (exit)
        return exit;
    c->engine->kind->observe(c->engine->backend, &observer);
    exit = run_text(c);
    c->engine->kind->observe(c->engine->backend, NULL);
    return exit ? exit : write_matrix(c);
}

int cmd_imatrix(int argc, char **argv) {
    struct collector c = {.common = common_default(), .window = WINDOW_NOT_GIVEN};
    int context = WINDOW_NOT_GIVEN;
    struct opt opts[MAX_COMMON_OPTS + 8] = {
        {"--file", 'f', OPT_STRING, &c.file, "TEXT", "text to run; -: standard input"},
        {"--output", 'o', OPT_STRING, &c.out, "FILE", "the importance matrix, a GGUF file"},
        {"--window", 0, OPT_INT, &c.window, "N", "tokens per window; default: 512"},
        {"--windows", 0, OPT_INT, &c.max_windows, "N",
         "run the first N windows only; 0 (default): all"},
        {"--context", 'c', OPT_INT, &context, "N", "the same as --window"},
        {"--backend", 0, OPT_STRING, &c.common.backend, "NAME",
         "cpu, the only one that shows what goes into its products"},
    };
    const struct usage usage = {
        .verb = "imatrix",
        .synopsis = "[MODEL] -f TEXT -o FILE [--window 512] [options]",
        .about =
            "Runs a model over a text, on the CPU, and writes an importance matrix: for each "
            "matrix the\nsums of its squared inputs, by which quantize --imatrix weighs errors.",
        .example = "sluice imatrix model-f16.gguf -f texts.txt -o model.imatrix.gguf",
        .opts = opts,
        .n_opts = common_opts(opts, 6, &c.common, WITH_CPU),
        .model = &c.common.model,
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit == OPTS_GO_ON)
        exit = common_check(&c.common, "imatrix");
    if (exit != OPTS_GO_ON)
        return exit;
    if (!c.file || !c.out)
        return complain(EXIT_USAGE, "imatrix: %s is missing", c.file ? "-o FILE" : "-f TEXT");
    if (c.common.backend && strcmp(c.common.backend, "auto") && strcmp(c.common.backend, "cpu"))
        return complain(EXIT_USAGE, "imatrix: --backend is '%s', expected cpu", c.common.backend);
    c.common.backend = "cpu";
    if ((exit = output_check_binary("imatrix", c.out)) != OPTS_GO_ON ||
        (exit = common_check_windows("imatrix", &c.window, c.max_windows, context)) != OPTS_GO_ON)
        return exit;
    exit = common_open_model(&c.common, &c.model);
    if (!exit)
        exit = collect(&c);
    ids_free(&c.ids);
    arena_free(&c.matrix.arena);
    sluice_engine_close(c.engine);
    sluice_model_close(c.model);
    return exit;
}
