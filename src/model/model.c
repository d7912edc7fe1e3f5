/* model.c - opening a model, and the plan of its step. */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/arch.h"

/* ---- opening ------------------------------------------------------------------------------ */

static int find_arch(struct model *m, struct err *err) {
    char names[ARCH_LIST];
    m->arch = arch_by_name(m->config.arch);
    return m->arch ? SLUICE_OK
                   : err_set(err, SLUICE_ERR_UNSUPPORTED, "%s: architecture is %s, expected %s",
                             m->path, m->config.arch, arch_names(names));
}

/* The keys that a GGUF file of the folder would have. */
static int keys_of_folder(struct model *m, struct err *err) {
    struct gguf_writer *w;
    size_t size = 0;
    int status = gguf_writer_open(&w, NULL, 0, err);
    if (!status)
        status = hub_write_keys(m->hub, w, err);
    if (!status)
        status = gguf_writer_header(w, &m->key_bytes, &size, err);
    if (!status)
        status = gguf_parse(&m->keys, m->key_bytes, size, err);
    if (!status)
        m->keys->path = m->path;
    gguf_writer_abort(w);
    return status;
}

static int open_synth(struct model *m, struct err *err) {
    int status = synth_open(&m->synth, m->path, err);
    if (status)
        return status;
    m->file = m->keys = m->synth->file;
    status = weights_new(&m->weights, &m->synth->map, 1, err);
    if (!status)
        m->weights->synthetic = m->synth->made;
    return status;
}

static int open_files(struct model *m, struct err *err) {
    int status;
    if (synth_is(m->path))
        return open_synth(m, err);
    if (!folder_is(m->path)) {
        if ((status = gguf_open(&m->file, m->path, err)))
            return status;
        m->keys = m->file;
        return weights_new(&m->weights, m->file->parts, m->file->n_parts, err);
    }
    if ((status = folder_open(&m->folder, m->path, true, err)) ||
        (status = hub_open(&m->hub, m->folder, true, err)) || (status = keys_of_folder(m, err)))
        return status;
    m->n_skipped = m->hub->n_skipped;
    return weights_new(&m->weights, m->folder->weights->shards, m->folder->weights->n_shards, err);
}

/* ---- what every architecture has ---------------------------------------------------------- */

/* The embedding decides how many rows the vocabulary has. */
static int bind_vocabulary(struct model *m, struct err *err) {
    struct config *c = &m->config;
    uint64_t rows = m->hub ? m->hub->vocab : 0;
    const struct tensor *t = m->file ? gguf_tensor(m->file, "token_embd.weight") : NULL;
    if (t)
        rows = t->dims[1];
    if (m->file && !t)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: tensor token_embd.weight is missing", m->path);
    if (rows < 1 || rows > 1u << 22)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: tensor token_embd.weight has %llu rows, expected 1 to %u", m->path,
                       (unsigned long long)rows, 1u << 22);
    c->n_vocab = c->n_tokens = (uint32_t)rows;
    int status = bind_matrix(m, -1, "token_embd.weight", c->hidden, c->n_vocab, 0, &m->embed, err);
    if (!status)
        status = bind_matrix(m, -1, "output.weight", c->hidden, c->n_vocab, BIND_OPTIONAL, &m->head,
                             err);
    if (!status)
        status =
            bind_vector(m, -1, "output.bias", c->n_vocab, 0, BIND_OPTIONAL, &m->head_bias, err);
    if (!status)
        status = bind_vector(m, -1, "output_norm.weight", c->hidden, 0, 0, &m->final_norm, err);
    if (!m->head.n_dims)
        m->head = m->embed;
    return status;
}

static void fill_freqs(const struct made_weight *w, void *out) {
    memcpy(out, w->from, w->bytes);
}

static int bind_freqs(struct model *m, struct err *err) {
    const struct rope *r = &m->config.rope;
    uint32_t pairs = r->dims / 2;
    double *freqs = arena_array(&m->arena, pairs, sizeof *freqs);
    float *divisors = NULL;
    const struct tensor *t = m->file ? gguf_tensor(m->file, "rope_freqs.weight") : NULL;
    for (uint32_t i = 0; m->hub && i < m->hub->n_tensors; i++)
        if (strcmp(m->hub->tensors[i].name, "rope_freqs.weight") == 0)
            divisors = (float *)m->hub->tensors[i].values;
    if (t) {
        if (t->type != DT_F32 || t->n_values != pairs)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "%s: tensor rope_freqs.weight has %llu values of %s, expected %u of F32",
                           m->path, (unsigned long long)t->n_values, t->type_name, pairs);
        m->is_bound[t - m->file->tensors] = true;
        if ((divisors = arena_array(&m->arena, pairs, sizeof *divisors)))
            memcpy(divisors, t->data, t->bytes);
    }
    struct made_weight *made =
        freqs ? weights_make(m->weights, pairs * sizeof *freqs, fill_freqs) : NULL;
    if (!made)
        return err_memory(err, "rotary frequencies");
    m->rope_scale = (float)config_rope_freqs(r, divisors, freqs);
    for (uint32_t i = 0; i < pairs; i++)
        if (!isfinite(freqs[i]) || !isfinite(m->rope_scale))
            return err_set(err, SLUICE_ERR_FORMAT,
                           "%s: rotary frequency %u is %g, scaled by %g, expected finite numbers",
                           m->path, i, freqs[i], (double)m->rope_scale);
    made->from = freqs;
    m->freqs = operand_at(REGION_WEIGHTS, DT_F64, made->offset, (uint32_t[4]){pairs});
    return SLUICE_OK;
}

int model_open(struct model **out, const char *path, struct err *err) {
    *out = NULL;
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return err_memory(err, path);
    m->path = arena_strdup(&m->arena, str_of(path));
    int status = m->path ? open_files(m, err) : err_memory(err, path);
    if (!status)
        status = config_read_arch(&m->config, m->keys, err);
    if (!status)
        status = find_arch(m, err); /* first: another one's keys mean what nobody here knows */
    if (!status)
        status = config_read(&m->config, m->keys, err);
    if (!status)
        status = m->arch->config(m, err);
    if (!status && m->file &&
        !(m->is_bound = arena_array(&m->arena, m->file->n_tensors, sizeof *m->is_bound)))
        status = err_memory(err, "tensor names");
    if (!status)
        status = bind_vocabulary(m, err);
    if (!status)
        status = bind_freqs(m, err);
    if (!status && !(m->layers = arena_array(&m->arena, m->config.n_layers + 1, sizeof *m->layers)))
        status = err_memory(err, "the layers");
    if (!status)
        status = m->arch->bind(m, err);
    if (!status)
        status = bind_check_leftovers(m, err);
    if (status) {
        model_close(m);
        return status;
    }
    *out = m;
    return SLUICE_OK;
}

void model_close(struct model *m) {
    if (!m)
        return;
    weights_free(m->weights);
    if (m->keys != m->file)
        gguf_close(m->keys);
    free(m->key_bytes);
    hub_close(m->hub);
    folder_close(m->folder);
    if (m->synth)
        synth_close(m->synth); /* the file with it */
    else
        gguf_close(m->file);
    arena_free(&m->arena);
    free(m);
}

int model_protect(const struct model *m, const char *path, struct err *err) {
    return m->folder ? folder_protect(m->folder, path, err)
                     : filemap_protect(m->weights->files, m->weights->n_files, path, err);
}

/* Of the draft block, or of all else. */
static int check_vectors(const struct model *m, bool is_draft, struct err *err) {
    for (const struct bound_vector *v = m->vectors; v; v = v->next) {
        if (v->is_draft != is_draft)
            continue;
        const float *x = (const float *)(m->weights->base + v->offset);
        uint64_t at = find_not_finite(x, v->n);
        if (at < v->n)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "%s: tensor %s has %g at %llu, expected finite numbers", m->path,
                           v->name, (double)x[at], (unsigned long long)at);
    }
    return SLUICE_OK;
}

int model_map(struct model *m, struct err *err) {
    if (m->weights->base)
        return SLUICE_OK;
    int status = weights_map(m->weights, err);
    if (!status && m->synth)
        synth_fill_vectors(m->synth, m->weights->base);
    if (!status && (status = check_vectors(m, false, err)))
        weights_unmap(m->weights);
    return status;
}

int model_load(struct model *m, struct err *err) {
    int status = model_map(m, err);
    if (!status && m->weights->synthetic) {
        synth_fill_matrices(m->synth, m->weights->base);
        m->weights->synthetic = 0;
    }
    return status;
}

int model_load_draft(struct model *m, struct err *err) {
    int status = weights_fill_draft(m->weights, err);
    return status ? status : check_vectors(m, true, err);
}

/* ---- the plan ----------------------------------------------------------------------------- */

static int emit_tap(struct plan *plan, uint32_t number, int layer, struct operand x,
                    struct operand norm, float eps, struct err *err) {
    struct op op = {
        .kind = OP_TAP,
        .layer = layer,
        .role = "tap",
        .tap = {.x = x, .norm = norm, .eps = eps, .out = plan_tap(plan, number)},
    };
    return plan_add(plan, &op, err);
}

/* has_angles: it also fills the step's angles, which one EMBED of a step does. */
static int emit_embed(const struct emit *e, struct operand table, struct operand x,
                      bool has_angles) {
    struct op op = {
        .kind = OP_EMBED, .layer = -1, .role = "embed", .embed = {.table = table, .x = x}};
    if (has_angles) {
        op.embed.freqs = e->m->freqs;
        op.embed.angles = e->angles;
        op.embed.rope_scale = e->m->rope_scale;
    }
    return plan_add(e->plan, &op, e->err);
}

static struct operand new_logits(const struct emit *e) {
    return plan_scratch_of(e->plan, DT_F32, (uint32_t[4]){e->plan->n_vocab, e->plan->max_outputs});
}

/* weight: of so many tokens as the plan picks from. */
static int emit_head(const struct emit *e, struct operand norm, struct operand weight,
                     struct operand logits) {
    struct operand bias = e->m->head_bias;
    if (bias.n_dims)
        bias = operand_columns(bias, 0, e->plan->n_vocab);
    struct op op = {
        .kind = OP_PROJECT,
        .layer = -1,
        .role = "head",
        .project =
            {
                .in = e->x,
                .prologue = PROLOGUE_NORM,
                .norm = norm,
                .eps = e->m->config.eps,
                .n_segments = 1,
                .segments = {{.weight = weight, .bias = bias}},
                .out = logits,
                .is_lm_head = true,
            },
    };
    return plan_add(e->plan, &op, e->err);
}

/* counts_tokens: in the sequences' counts, for penalties. */
static int emit_pick(const struct emit *e, struct operand logits, bool counts_tokens) {
    const uint32_t outputs[4] = {e->plan->n_vocab, e->plan->max_outputs};
    const uint32_t counts[4] = {e->plan->n_vocab, e->options->n_slots};
    struct op op = {
        .kind = OP_PICK,
        .layer = -1,
        .role = "pick",
        .pick = {.logits = logits,
                 .wanted = plan_logits(e->plan),
                 .adjusted = plan_scratch_of(e->plan, DT_F32, outputs),
                 .order = plan_scratch_of(e->plan, DT_I64, outputs)},
    };
    if (counts_tokens)
        op.pick.counts = plan_state(e->plan, DT_I16, counts);
    return plan_add(e->plan, &op, e->err);
}

/* Every layer, and a tap after it where plans have one for each. */
static int emit_layers(const struct emit *e) {
    bool has_taps = e->plan->n_taps > 1;
    int status = has_taps ? emit_tap(e->plan, 0, -1, e->x, (struct operand){0}, 0, e->err) : 0;
    for (uint32_t i = 0; !status && i < e->m->config.n_layers; i++) {
        status = e->m->arch->emit_layer(e, i);
        if (!status && has_taps)
            status = emit_tap(e->plan, i + 1, (int)i, e->x, (struct operand){0}, 0, e->err);
    }
    return status;
}

/* ---- the draft block ---------------------------------------------------------------------- */

/* Its part of STATE. It comes before all layers', so that it is at the same place in every plan. */
struct draft_state {
    struct operand cache[2]; /* keys and values, in the pages of the trunk's layers */
    struct operand hidden;   /* (cells, D) f32: the trunk's, or of a draft the block's */
};

static struct draft_state draft_state_of(const struct emit *e) {
    const uint32_t cells[4] = {e->m->config.hidden, e->options->n_cells};
    struct draft_state s;
    emit_cache(e, s.cache);
    s.hidden = plan_state(e->plan, DT_F32, cells);
    return s;
}

/* The block for the step's rows. In the trunk's plan, whose residual is x, only its keys and
 * values: what drafts later attend to. In its own plan (x: none), where every row continues from
 * its cell, all of it, up to its residual y. */
static int emit_draft_layer(const struct emit *e, const struct draft_state *s, struct operand x,
                            struct operand y) {
    const struct draft_block *b = &e->m->draft;
    const struct config *c = &e->m->config;
    struct emit block = {e->m, e->plan, e->options, y, e->angles, s->cache, e->err};
    struct operand embed = plan_scratch(e->plan, c->hidden);
    struct operand joined = plan_scratch(e->plan, 2 * (uint64_t)c->hidden);
    struct op join = {
        .kind = OP_JOIN,
        .layer = (int32_t)c->n_layers,
        .role = "join",
        .join = {.embed = embed,
                 .x = x,
                 .norm = x.n_dims ? e->m->final_norm : x,
                 .embed_norm = b->embed_norm,
                 .state_norm = b->state_norm,
                 .state = s->hidden,
                 .out = joined,
                 .eps = c->eps},
    };
    struct op project = {
        .kind = OP_PROJECT,
        .layer = (int32_t)c->n_layers,
        .role = "join out",
        .project = {.in = joined, .n_segments = 1, .segments = {{.weight = b->join}}, .out = y},
    };
    int status = emit_embed(e, b->embed, embed, !x.n_dims);
    if (!status)
        status = plan_add(e->plan, &join, e->err);
    if (!status)
        status = plan_add(e->plan, &project, e->err);
    if (status)
        return status;
    return x.n_dims ? emit_keys_and_values(&block, c->n_layers)
                    : e->m->arch->emit_layer(&block, c->n_layers);
}

static int emit_hidden(const struct emit *e, const struct draft_state *s, struct operand x,
                       struct operand norm) {
    struct op op = {
        .kind = OP_HIDDEN,
        .layer = -1,
        .role = "hidden",
        .hidden = {.x = x, .norm = norm, .state = s->hidden, .eps = e->m->config.eps},
    };
    return plan_add(e->plan, &op, e->err);
}

/* In a trunk's step: the rows' keys and values in the block, and their hidden states. */
static int emit_draft_state(const struct emit *e, const struct draft_state *s) {
    int status = emit_draft_layer(e, s, e->x, plan_scratch(e->plan, e->m->config.hidden));
    return status ? status : emit_hidden(e, s, e->x, e->m->final_norm);
}

/* ---- whole plans -------------------------------------------------------------------------- */

typedef int emit_step(const struct emit *e);

/* What the draft block needs comes after the head: CUDA's head is fastest after a product, and a
 * step ends with PICK. */
static int emit_trunk_step(const struct emit *e) {
    const struct model *m = e->m;
    bool has_draft_block = e->options->has_draft_block;
    struct draft_state draft = {0};
    int status;
    if (has_draft_block)
        draft = draft_state_of(e);
    if ((status = emit_embed(e, m->embed, e->x, true)) || (status = emit_layers(e)) ||
        (e->plan->n_taps && (status = emit_tap(e->plan, e->plan->n_taps - 1, -1, e->x,
                                               m->final_norm, m->config.eps, e->err))))
        return status;
    struct operand logits = new_logits(e);
    status = emit_head(e, m->final_norm, m->head, logits);
    if (!status && has_draft_block)
        status = emit_draft_state(e, &draft);
    return status ? status : emit_pick(e, logits, true);
}

static int emit_draft_step(const struct emit *e) {
    const struct draft_block *b = &e->m->draft;
    struct draft_state s = draft_state_of(e);
    int status = emit_draft_layer(e, &s, (struct operand){0}, e->x);
    struct operand logits = new_logits(e), head = operand_rows(b->head, e->plan->n_vocab);
    if (!status)
        status = emit_head(e, b->norm, head, logits);
    if (!status)
        status = emit_hidden(e, &s, e->x, b->norm);
    return status ? status : emit_pick(e, logits, false);
}

static int make_plan(struct plan **out, const struct model *m, const struct plan_options *options,
                     emit_step *emit_ops, struct err *err) {
    struct plan *plan;
    int status = plan_new(&plan, options, err);
    if (status)
        return status;
    struct operand x = plan_scratch(plan, m->config.hidden);
    struct operand angles =
        plan_scratch_of(plan, DT_F32, (uint32_t[4]){2, m->config.rope.dims / 2, plan->max_rows});
    const struct emit e = {m, plan, options, x, angles, NULL, err};
    plan_page_table(plan, options->pages_per_seq, options->n_slots);
    if ((status = emit_ops(&e)) || (status = plan_finish(plan, err))) {
        plan_free(plan);
        plan = NULL;
    }
    *out = plan;
    return status;
}

int model_plan(struct plan **out, const struct model *m, const struct plan_options *options,
               struct err *err) {
    CHECK(!options->has_draft_block || m->draft.join.n_dims);
    return make_plan(out, m, options, emit_trunk_step, err);
}

int model_draft_plan(struct plan **out, const struct model *m, const struct plan_options *options,
                     struct err *err) {
    CHECK(options->has_draft_block && m->draft.join.n_dims);
    return make_plan(out, m, options, emit_draft_step, err);
}
