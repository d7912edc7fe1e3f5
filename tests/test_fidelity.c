/* test_fidelity.c - every reference model through the CPU backend, against stored f32 figures.
 *
 * Straight on plan and backend, no engine between: what is wrong here is wrong in an op. */
#include <dirent.h>
#include <unistd.h>

#include "backend/backend.h"
#include "cells.h"
#include "file/gguf_write.h"
#include "model/mixture.h"
#include "model/model.h"
#include "plan/io.h"
#include "test.h"

/* ---- a model on a backend, one sequence --------------------------------------------------- */

struct rig {
    struct model *m;
    struct plan *plan;
    struct backend *b;
    uint32_t length; /* positions done */
    uint32_t pages;
};

static bool rig_open(struct rig *r, const char *path, bool exact, enum dtype kv, int threads,
                     uint32_t rows) {
    struct err err = {0};
    *r = (struct rig){.pages = 2};
    if (model_open(&r->m, path, &err) || model_load(r->m, &err)) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return false;
    }
    const struct config *c = &r->m->config;
    struct plan_options options = {.max_rows = rows,
                                   .max_outputs = rows,
                                   .n_slots = 1,
                                   .n_cells = 1,
                                   .n_pages = r->pages,
                                   .pages_per_seq = r->pages,
                                   .kv_type = kv,
                                   .n_vocab = c->n_vocab,
                                   .n_taps = c->n_layers + 2,
                                   .tap_width = c->hidden};
    struct backend_options how = {.threads = threads, .exact = exact};
    if (model_plan(&r->plan, r->m, &options, &err) || backend_cpu.open(&r->b, &how, &err) ||
        backend_cpu.load(
            r->b,
            (struct backend_weights){.base = r->m->weights->base, .bytes = r->m->weights->bytes},
            &r->plan, 1, NULL, NULL, &err)) {
        test_fail(__FILE__, __LINE__, "%s: %s", path, err.text);
        return false;
    }
    return true;
}

static void rig_close(struct rig *r) {
    backend_cpu.close(r->b);
    plan_free(r->plan);
    model_close(r->m);
}

/* An empty state, and the pages of the one sequence in order. */
static void rig_reset(struct rig *r) {
    uint64_t bytes = r->plan->bytes[REGION_STATE];
    void *zeros = calloc(1, bytes);
    backend_cpu.write_state(r->b, 0, bytes, zeros, NULL);
    free(zeros);
    r->length = 0;
}

/* Feeds n tokens (at most the plan's rows), all of them outputs. */
static void rig_feed(struct rig *r, const int32_t *tokens, uint32_t n) {
    uint8_t *io = backend_cpu.io(r->b);
    struct io_header *header = (struct io_header *)io;
    struct io_row *rows = (struct io_row *)(io + r->plan->io.rows);
    struct io_segment *segments = (struct io_segment *)(io + r->plan->io.segments);
    struct io_output *outputs = (struct io_output *)(io + r->plan->io.outputs);
    struct io_change *changes = (struct io_change *)(io + r->plan->io.changes);
    *header = (struct io_header){.n_rows = n, .n_segments = 1, .n_outputs = n};
    segments[0] = (struct io_segment){.n_rows = n, .first_position = r->length};
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (struct io_row){.token = tokens[i], .position = r->length + i};
        outputs[i] = (struct io_output){.row = i,
                                        .flags = IO_WANTS_LOGITS | IO_WANTS_TOKEN,
                                        .repeat_penalty = 1,
                                        .top_p = 1,
                                        .n_vocab = r->plan->n_vocab};
        if (rows[i].position % IO_PAGE_POSITIONS == 0)
            changes[header->n_changes++] =
                (struct io_change){.index = rows[i].position / IO_PAGE_POSITIONS,
                                   .page = r->pages - 1 - rows[i].position / IO_PAGE_POSITIONS};
    }
    update_in_place(io, r->plan);
    EXPECT_INT(backend_cpu.submit(r->b, 0, NULL), SLUICE_OK);
    EXPECT_INT(backend_cpu.wait(r->b, NULL), SLUICE_OK);
    r->length += n;
}

static const float *rig_logits(const struct rig *r, uint32_t output) {
    return (const float *)(backend_cpu.io(r->b) + r->plan->io.logits) +
           (uint64_t)output * r->plan->n_vocab;
}

static int32_t rig_token(const struct rig *r, uint32_t output) {
    return ((const struct io_output *)(backend_cpu.io(r->b) + r->plan->io.outputs))[output].token;
}

/* ---- the references ----------------------------------------------------------------------- */

enum { MAX_PROMPTS = 8, MAX_TOKENS = 256 };

struct prompts {
    int32_t tokens[MAX_PROMPTS][MAX_TOKENS];
    uint32_t len[MAX_PROMPTS], n;
};

static struct prompts read_ids(const char *path) {
    struct prompts p = {0};
    size_t size;
    char *text = test_read_file(path, &size), *line, *rest = text;
    while (rest && (line = strsep(&rest, "\n")) && p.n < MAX_PROMPTS) {
        if (!*line && !rest)
            break;
        for (char *word; (word = strsep(&line, " "));)
            if (*word && p.len[p.n] < MAX_TOKENS)
                p.tokens[p.n][p.len[p.n]++] = atoi(word);
        p.n++;
    }
    free(text);
    return p;
}

static char *in_folder(char out[256], const char *name, const char *file) {
    snprintf(out, 256, "reference/%s/%s", name, file);
    return out;
}

struct reference {
    const char *name, *suffix; /* of model, logits and greedy: "-q8_0" */
};

static const struct reference references[] = {
    {"qwen35-dense-a", ""},    {"qwen35-dense-b", ""},
    {"qwen35-moe-a", ""},      {"llama-a", ""},
    {"llama-b", ""},           {"qwen3-a", ""},
    {"qwen2-a", ""},           {"qwen35-dense-a", "-q8_0"},
    {"llama-a", "-q8_0"},      {"qwen35-dense-k", "-q4_k_m"},
    {"llama-k", "-q4_k_m"},    {"qwen3moe-a", ""},
    {"qwen3moe-a", "-q8_0"},   {"qwen3next-a", ""},
    {"qwen3next-a", "-fused"},
};

enum { N_REFERENCES = sizeof references / sizeof *references };

struct figures {
    double worst;      /* largest difference of a logit */
    uint32_t n_logits; /* rows compared */
    uint32_t greedy;   /* tokens that agree */
    double layers;     /* largest relative difference of a residual */
};

/* Largest difference, relative to the row's largest value where `relative`. */
static double difference(const float *a, const float *b, uint32_t n, bool relative) {
    double worst = 0, top = 1e-30;
    for (uint32_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        worst = !(d <= worst) ? d : worst;
        top = fmax(top, fabs(b[i]));
    }
    return relative ? worst / top : worst;
}

static void compare_prompt(struct rig *r, const int32_t *tokens, uint32_t len, uint32_t chunk,
                           const float **expected, struct figures *f) {
    uint32_t vocab = r->plan->n_vocab;
    rig_reset(r);
    for (uint32_t at = 0; at < len; at += chunk) {
        uint32_t n = len - at < chunk ? len - at : chunk;
        rig_feed(r, tokens + at, n);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t t = at + i;
            if (t % 8 != 0 && t != len - 1)
                continue;
            f->worst = fmax(f->worst, difference(rig_logits(r, i), *expected, vocab, false));
            *expected += vocab;
            f->n_logits++;
        }
    }
}

static void compare_greedy(struct rig *r, const int32_t *expected, uint32_t n, uint32_t last_output,
                           const char *name, struct figures *f) {
    int32_t token = rig_token(r, last_output);
    for (uint32_t i = 0; i < n; i++) {
        if (token != expected[i]) {
            test_fail(__FILE__, __LINE__, "%s: greedy token %u is %d, expected %d", name, i, token,
                      expected[i]);
            return;
        }
        f->greedy++;
        if (i + 1 < n) {
            rig_feed(r, &token, 1);
            token = rig_token(r, 0);
        }
    }
}

static void compare_layers(struct rig *r, uint32_t output, const float *expected,
                           struct figures *f) {
    uint32_t width = r->plan->tap_width, outputs = r->plan->max_outputs;
    const float *taps = (const float *)(backend_cpu.io(r->b) + r->plan->io.taps);
    for (uint32_t i = 0; i < r->plan->n_taps; i++)
        f->layers = fmax(f->layers, difference(taps + ((uint64_t)i * outputs + output) * width,
                                               expected + (uint64_t)i * width, width, true));
}

static struct figures run_at(const struct reference *ref, const char *model, bool exact,
                             uint32_t chunk, bool with_greedy) {
    struct figures f = {0};
    struct rig r;
    char path[256], file[64];
    size_t logit_bytes, layer_bytes;
    if (!rig_open(&r, model, exact, DT_F32, 2, 64))
        return f;
    struct prompts p = read_ids(test_data(in_folder(path, ref->name, "tokens.txt")));
    snprintf(file, sizeof file, "greedy%s.txt", ref->suffix);
    struct prompts greedy = read_ids(test_data(in_folder(path, ref->name, file)));
    snprintf(file, sizeof file, "logits%s.bin", ref->suffix);
    char *logits = test_read_file(test_data(in_folder(path, ref->name, file)), &logit_bytes);
    snprintf(file, sizeof file, "layers%s.bin", ref->suffix);
    char *layers = test_read_file(test_data(in_folder(path, ref->name, file)), &layer_bytes);
    const float *expected = (const float *)logits;
    for (uint32_t i = 0; logits && layers && i < p.n; i++) {
        compare_prompt(&r, p.tokens[i], p.len[i], chunk, &expected, &f);
        uint32_t last = (p.len[i] - 1) % chunk;
        if (i == 3)
            compare_layers(&r, last, (const float *)layers, &f);
        if (with_greedy)
            compare_greedy(&r, greedy.tokens[i], greedy.len[i], last, ref->name, &f);
    }
    EXPECT_INT((const char *)expected - logits, logit_bytes); /* every stored row was used */
    free(logits);
    free(layers);
    rig_close(&r);
    return f;
}

static struct figures run_reference(const struct reference *ref, const char *model, bool exact,
                                    uint32_t chunk, bool with_greedy) {
    char path[256];
    return run_at(ref, test_data(in_folder(path, ref->name, model)), exact, chunk, with_greedy);
}

TEST(fidelity_of_every_gguf_reference) {
    int ran = 0;
    for (int i = 0; i < N_REFERENCES; i++) {
        const struct reference *ref = &references[i];
        char file[64], path[256];
        snprintf(file, sizeof file, "model%s.gguf", *ref->suffix ? ref->suffix : "-f32");
        FILE *there = fopen(test_data(in_folder(path, ref->name, file)), "rb");
        if (!there)
            continue; /* one is not shipped: its folder is tested below */
        fclose(there);
        struct figures f = run_reference(ref, file, true, 64, true);
        ran++;
        if (!(f.worst <= 2e-4) || f.n_logits != 40 || !(f.layers <= 1e-4))
            test_fail(__FILE__, __LINE__, "%s%s: %u rows, logits off by %g, layers by %g",
                      ref->name, ref->suffix, f.n_logits, f.worst, f.layers);
    }
    test_note("fidelity: %d of %d GGUF references ran", ran, N_REFERENCES);
    EXPECT(ran >= N_REFERENCES - 1);
}

TEST(fidelity_of_every_folder_reference) {
    for (int i = 0; i < N_REFERENCES; i++) {
        if (*references[i].suffix)
            continue;
        struct figures f = run_reference(&references[i], "", true, 64, true);
        if (!(f.worst <= 2e-4) || f.n_logits != 40 || !(f.layers <= 1e-4))
            test_fail(__FILE__, __LINE__, "%s: %u rows, logits off by %g, layers by %g",
                      references[i].name, f.n_logits, f.worst, f.layers);
    }
}

TEST(fidelity_at_any_chunking) {
    static const uint32_t chunks[] = {1, 3, 7, 33};
    for (int i = 0; i < N_REFERENCES; i += 2)
        for (int c = 0; c < 4; c++) {
            char file[64], path[256];
            snprintf(file, sizeof file, "model%s.gguf",
                     *references[i].suffix ? references[i].suffix : "-f32");
            FILE *there = fopen(test_data(in_folder(path, references[i].name, file)), "rb");
            if (!there)
                continue;
            fclose(there);
            struct figures f = run_reference(&references[i], file, true, chunks[c], false);
            if (!(f.worst <= 2e-4))
                test_fail(__FILE__, __LINE__, "%s in chunks of %u: logits off by %g",
                          references[i].name, chunks[c], f.worst);
        }
}

/* int8 activations move logits, but not far; further where they make another expert chosen. */
TEST(fidelity_of_int8_activations) {
    for (int i = 0; i < N_REFERENCES; i++) {
        if (!*references[i].suffix)
            continue;
        char file[64];
        snprintf(file, sizeof file, "model%s.gguf", references[i].suffix);
        struct figures f = run_reference(&references[i], file, false, 64, false);
        bool has_experts = strstr(references[i].name, "moe") || strstr(references[i].name, "next");
        double most = has_experts ? 1 : 0.5;
        if (!(f.worst <= most) || f.worst < 1e-3)
            test_fail(__FILE__, __LINE__, "%s%s: logits off by %g, expected 0.001 to %g",
                      references[i].name, references[i].suffix, f.worst, most);
    }
}

/* ---- experts whose gate and up are one tensor --------------------------------------------- */

/* In `path`, the file with gate's rows and up's of each expert as one matrix. */
static int write_fused(const struct gguf *g, const char *path, struct err *err) {
    struct gguf_writer *w;
    int status = gguf_writer_open(&w, path, 0, err);
    if (status)
        return status;
    for (uint32_t i = 0; !status && i < g->n_keys; i++)
        status = gguf_write_key(w, &g->keys[i], err);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; !status && i < g->n_tensors; i++) {
            const struct tensor *gate = &g->tensors[i], *up = NULL;
            char name[64];
            uint32_t block;
            if (str_ends(gate->name, "ffn_up_exps.weight"))
                continue;
            if (str_ends(gate->name, "ffn_gate_exps.weight") && block_index(gate->name, &block)) {
                snprintf(name, sizeof name, "blk.%u.ffn_up_exps.weight", block);
                up = gguf_tensor(g, name);
                snprintf(name, sizeof name, "blk.%u.ffn_gate_up_exps.weight", block);
            }
            uint64_t dims[4] = {gate->dims[0], gate->dims[1] << (up != NULL), gate->dims[2], 1};
            uint64_t n = up ? gate->dims[2] : 1, bytes = gate->bytes / n;
            if (!pass)
                status = gguf_write_tensor(w, up ? str_of(name) : gate->name,
                                           (enum dtype)gate->type, dims, gate->n_dims, err);
            for (uint64_t e = 0; pass && !status && e < n; e++) {
                status = gguf_write_data(w, gate->data + e * bytes, bytes, err);
                if (!status && up)
                    status = gguf_write_data(w, up->data + e * bytes, bytes, err);
            }
        }
    if (!status)
        return gguf_writer_close(w, err);
    gguf_writer_abort(w);
    return status;
}

TEST(fidelity_of_fused_experts) {
    static const struct reference all[] = {{"qwen3moe-a", "-q8_0"}, {"qwen35-moe-a", ""}};
    for (int i = 0; i < 2; i++) {
        struct gguf *g = NULL;
        struct err err = {0};
        char file[64], path[256], fused[512];
        snprintf(file, sizeof file, "model%s.gguf", *all[i].suffix ? all[i].suffix : "-f32");
        snprintf(fused, sizeof fused, "%s", test_temporary("fused.gguf"));
        int status = gguf_open(&g, test_data(in_folder(path, all[i].name, file)), &err);
        if (status || (status = write_fused(g, fused, &err))) {
            test_fail(__FILE__, __LINE__, "%s", err.text);
            return;
        }
        for (int exact = 0; exact < 2; exact++) {
            struct figures f = run_at(&all[i], fused, exact, 64, false);
            double most = exact ? 2e-4 : 1;
            if (!(f.worst <= most) || f.n_logits != 40)
                test_fail(__FILE__, __LINE__, "%s: logits off by %g, expected %g", all[i].name,
                          f.worst, most);
        }
        gguf_close(g);
        unlink(fused);
    }
}
