/* api_seq.c - the public interface of sequences: checks arguments, keeps errors with their engine.
 */
#include <string.h>

#include "base/size.h"
#include "engine/engine.h"

/* ---- handles ------------------------------------------------------------------------------ */

static bool is_open(const struct sluice_seq *seq) {
    return seq && seq->is_open;
}

static int check_open(const struct sluice_seq *seq) {
    if (is_open(seq))
        return SLUICE_OK;
    return err_set(seq ? &seq->engine->err : NULL, SLUICE_ERR_ARGUMENT,
                   "the sequence is closed, expected an open one");
}

/* The handle that was closed longest ago, for an open slot. */
static struct sluice_seq *take_handle(struct sluice_engine *e, uint32_t slot) {
    struct sluice_seq *seq = NULL;
    for (uint32_t i = 0; i < e->setup.n_seqs + SPARE_HANDLES; i++) {
        struct sluice_seq *other = &e->handles[i];
        if (!other->is_open && (!seq || other->closed_at < seq->closed_at))
            seq = other;
    }
    CHECK(seq);
    e->seqs[slot] = seq;
    return seq;
}

static struct sluice_seq *open_handle(struct sluice_engine *e, uint32_t slot) {
    struct sluice_seq *seq = take_handle(e, slot);
    *seq = (struct sluice_seq){
        .engine = e,
        .is_open = true,
        .slot = slot,
        .wants = SLUICE_WANT_TOKEN,
        .n_pick = (uint32_t)e->model->n_tokens,
        .token = -1,
    };
    sampler_defaults(&seq->sampling, e->model->model);
    return seq;
}

/* For calls that make a sequence: *out is NULL until they succeed. */
static int check_maker(sluice_seq **out, const struct sluice_engine *e) {
    if (out)
        *out = NULL;
    return out && api_is_loaded(e) ? SLUICE_OK : SLUICE_ERR_ARGUMENT;
}

int sluice_seq_open(sluice_seq **out, sluice_engine *e) {
    uint32_t slot;
    int status = check_maker(out, e);
    if (!status)
        status = state_open(&e->state, &slot, &e->err);
    if (!status)
        *out = open_handle(e, slot);
    return status;
}

void sluice_seq_close(sluice_seq *seq) {
    if (!is_open(seq))
        return;
    state_close(&seq->engine->state, seq->slot, true);
    seq->is_open = false;
    seq->closed_at = ++seq->engine->n_closed;
}

static struct slot *slot_of(const struct sluice_seq *seq) {
    return &seq->engine->state.slots[seq->slot];
}

/* ---- tokens in ---------------------------------------------------------------------------- */

static int check_tokens(struct sluice_engine *e, const int32_t *tokens, size_t n) {
    uint32_t n_vocab = e->model->model->config.n_vocab;
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= n_vocab)
            return err_set(&e->err, SLUICE_ERR_ARGUMENT, "token %d at place %zu, expected 0 to %u",
                           tokens[i], i, n_vocab - 1);
    return SLUICE_OK;
}

/* Appends the tokens, or changes nothing. */
static int append(sluice_seq *seq, const int32_t *tokens, size_t n) {
    int status = check_open(seq);
    if (!status && n > 0)
        status = api_check_pointer(seq->engine, tokens, "tokens");
    if (status)
        return status;
    struct sluice_engine *e = seq->engine;
    struct slot *s = slot_of(seq);
    if (n > e->setup.context - s->n_tokens)
        return err_set(&e->err, SLUICE_ERR_ARGUMENT,
                       "%zu tokens to add to %u, expected at most %u in all, the context (-c)", n,
                       s->n_tokens, e->setup.context);
    if (n == 0 || (status = check_tokens(e, tokens, n)))
        return status;
    memcpy(s->tokens + s->n_tokens, tokens, n * sizeof *tokens);
    s->n_tokens += (uint32_t)n;
    s->n_drafts = 0;
    return SLUICE_OK;
}

/* A step has to process the last token for what is wanted after it. */
static int resume(sluice_seq *seq, struct state_found *found) {
    struct sluice_engine *e = seq->engine;
    uint32_t n = slot_of(seq)->n_tokens;
    return state_resume(&e->state, seq->slot, n - (seq->wants && n > 0), found, &e->err);
}

/* After a rewind the last token kept waits again, so that one can be sampled after it. With more
 * tokens to come that is not needed. */
int sluice_seq_feed(sluice_seq *seq, const int32_t *tokens, size_t n) {
    int status = append(seq, tokens, n);
    struct state_found ignored;
    if (status || n == 0 || !slot_of(seq)->is_rewound)
        return status;
    return resume(seq, &ignored);
}

/* ---- drafts ------------------------------------------------------------------------------- */

int sluice_seq_draft(sluice_seq *seq, const int32_t *tokens, size_t n) {
    int status = check_open(seq);
    if (!status && n > 0)
        status = api_check_pointer(seq->engine, tokens, "tokens");
    if (!status)
        status = check_tokens(seq->engine, tokens, n);
    if (status)
        return status;
    draft_set(seq, tokens, n);
    return SLUICE_OK;
}

static int check_draft(struct sluice_engine *e, struct sluice_seq *const *seqs, size_t n_seqs,
                       uint32_t n) {
    int status = n_seqs > 0 ? api_check_pointer(e, seqs, "seqs") : SLUICE_OK;
    if (!status && (n < 1 || n > e->setup.block_drafts))
        return err_set(&e->err, SLUICE_ERR_ARGUMENT,
                       "%u tokens to draft, expected 1 to block_drafts, which is %u", n,
                       e->setup.block_drafts);
    for (size_t i = 0; !status && i < n_seqs; i++) {
        status = api_check_pointer(e, seqs[i], "a sequence to draft for");
        if (!status)
            status = check_open(seqs[i]);
        if (!status && seqs[i]->engine != e)
            status = err_set(&e->err, SLUICE_ERR_ARGUMENT,
                             "sequence %zu of those to draft for is of another engine", i);
    }
    return status;
}

int sluice_engine_draft(sluice_engine *e, sluice_seq *const *seqs, size_t n_seqs, uint32_t n) {
    if (!api_is_loaded(e))
        return SLUICE_ERR_ARGUMENT;
    int status = check_draft(e, seqs, n_seqs, n);
    return status || n_seqs == 0 ? status : draft_step(e, seqs, n_seqs, n, &e->err);
}

void sluice_seq_drafts(const sluice_seq *seq, const int32_t **tokens, uint32_t *n) {
    const struct slot *s = is_open(seq) ? slot_of(seq) : NULL;
    if (tokens)
        *tokens = s && s->n_drafts ? s->tokens + s->n_tokens : NULL;
    if (n)
        *n = s ? s->n_drafts : 0;
}

/* ---- what is known already ---------------------------------------------------------------- */

static void explain_reuse(struct sluice_reuse *r, const struct state_found *found, uint32_t n) {
    uint32_t held = found->held, matched = found->matched;
    if (held + 1 >= n)
        r->why[0] = 0;
    else if (found->lacks_pages)
        snprintf(r->why, sizeof r->why, "no free pages of the KV cache for tokens from %u on",
                 held);
    else if (matched == 0)
        snprintf(r->why, sizeof r->why, "no conversation began like this");
    else if (held < matched && held + 1 < n)
        snprintf(r->why, sizeof r->why, "no snapshot between %u and %u", held + 1,
                 min_u32(matched, n - 1));
    else
        snprintf(r->why, sizeof r->why, "differs from every known conversation at token %u",
                 matched);
}

int sluice_seq_resume(sluice_seq *seq, const int32_t *tokens, size_t n,
                      struct sluice_reuse *reuse) {
    struct sluice_reuse ignored = {0}, *r = reuse ? reuse : &ignored;
    struct state_found found;
    *r = (struct sluice_reuse){0};
    int status = append(seq, tokens, n);
    if (status)
        return status;
    struct sluice_engine *e = seq->engine;
    const struct slot *s = slot_of(seq);
    uint32_t before = s->length;
    if ((status = resume(seq, &found)))
        return status;
    if (found.held > before)
        seq->n_logits = seq->n_hidden = 0; /* they no longer follow the newest token processed */
    r->tokens = found.held - before;
    r->matched = found.matched;
    r->disk = min_u32(r->tokens, found.from[TIER_DISK]);
    r->host = min_u32(r->tokens - r->disk, found.from[TIER_HOST]);
    r->device = r->tokens - r->disk - r->host;
    explain_reuse(r, &found, s->n_tokens);
    e->n_resumed++;
    e->n_hits += r->tokens > 0;
    e->n_reused += r->tokens;
    return SLUICE_OK;
}

/* ---- marks -------------------------------------------------------------------------------- */

int sluice_seq_mark(sluice_seq *seq, uint32_t n) {
    int status = check_open(seq);
    if (status)
        return status;
    struct sluice_engine *e = seq->engine;
    const struct slot *s = slot_of(seq);
    if (n < s->length || n > s->n_tokens)
        return err_set(&e->err, SLUICE_ERR_ARGUMENT,
                       "a mark after %u tokens, expected %u to %u: those processed and those fed",
                       n, s->length, s->n_tokens);
    return state_mark(&e->state, seq->slot, n, &e->err);
}

/* Marks as many as fit. */
static int mark_end(sluice_seq *seq, uint32_t n) {
    const struct slot *s = slot_of(seq);
    bool is_new = n > s->length && n <= s->n_tokens && s->n_marks < MAX_MARKS;
    return is_new ? state_mark(&seq->engine->state, seq->slot, n, &seq->engine->err) : SLUICE_OK;
}

int sluice_seq_mark_turns(sluice_seq *seq) {
    enum { LAST = 2 };
    int status = check_open(seq);
    if (status)
        return status;
    const struct sluice_model *model = seq->engine->model;
    const struct slot *s = slot_of(seq);
    uint32_t first = 1;
    while (first <= s->n_tokens && !sluice_token_is_end(model, s->tokens[first - 1]))
        first++;
    status = mark_end(seq, first);
    for (uint32_t n = s->n_tokens, i = 0; !status && n > s->length && i < LAST; n--)
        if (sluice_token_is_end(model, s->tokens[n - 1])) {
            status = mark_end(seq, n);
            i++;
        }
    return status;
}

/* ---- tokens and results out --------------------------------------------------------------- */

void sluice_seq_tokens(const sluice_seq *seq, const int32_t **tokens, uint32_t *n,
                       uint32_t *waiting) {
    static const struct slot closed;
    const struct slot *s = is_open(seq) ? slot_of(seq) : &closed;
    if (tokens)
        *tokens = s->tokens;
    if (n)
        *n = s->n_tokens;
    if (waiting)
        *waiting = s->n_tokens - s->length;
}

bool sluice_seq_is_starved(const sluice_seq *seq) {
    return is_open(seq) && slot_of(seq)->is_starved;
}

int sluice_seq_want(sluice_seq *seq, unsigned wants) {
    const unsigned hidden = SLUICE_WANT_HIDDEN | SLUICE_WANT_ALL_HIDDEN,
                   all = SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS | SLUICE_WANT_ALL_LOGITS | hidden;
    int status = check_open(seq);
    if (status)
        return status;
    if ((wants & hidden) && seq->engine->setup.n_taps == 0)
        return err_set(&seq->engine->err, SLUICE_ERR_ARGUMENT,
                       "hidden states are wanted, expected an engine opened with `hidden`");
    if (wants & ~all)
        return err_set(&seq->engine->err, SLUICE_ERR_ARGUMENT, "wants is %u, expected 0 to %u",
                       wants, all);
    seq->wants = wants;
    return SLUICE_OK;
}

int32_t sluice_seq_token(const sluice_seq *seq) {
    if (!is_open(seq))
        return -1;
    const struct slot *s = slot_of(seq);
    bool is_there = s->length == s->n_tokens && s->n_tokens == seq->picked_at;
    return is_there ? seq->token : -1;
}

/* Whether steps will pick another token, after the last one picked, if any, is fed. */
static int check_next(struct sluice_seq *seq) {
    struct sluice_engine *e = seq->engine;
    const struct slot *s = slot_of(seq);
    bool has_token = sluice_seq_token(seq) >= 0;
    if (has_token && !seq->is_given)
        return SLUICE_OK;
    if (!(seq->wants & SLUICE_WANT_TOKEN))
        return err_set(&e->err, SLUICE_ERR_ARGUMENT,
                       "the sequence wants no token, expected SLUICE_WANT_TOKEN");
    if (!has_token && s->length == s->n_tokens)
        return err_set(&e->err, SLUICE_ERR_ARGUMENT,
                       "the sequence has nothing to go on from, expected tokens that wait");
    return SLUICE_OK;
}

int sluice_seq_next(sluice_seq *seq, int32_t *token) {
    int status = check_open(seq);
    if (!status)
        status = api_check_pointer(seq->engine, token, "token");
    if (!status)
        status = check_next(seq);
    if (!status)
        status = batch_check_cancel(seq->engine, &seq->engine->err);
    if (status)
        return status;
    int32_t last = sluice_seq_token(seq);
    if (last >= 0 && seq->is_given)
        status = sluice_seq_feed(seq, &last, 1);
    while (!status && sluice_seq_token(seq) < 0)
        status = sluice_engine_step(seq->engine, NULL);
    if (status)
        return status;
    *token = sluice_seq_token(seq);
    seq->is_given = true;
    return SLUICE_OK;
}

static int check_rows(const struct sluice_seq *seq, const float **at, const uint32_t *rows) {
    int status = check_open(seq);
    if (!status)
        status = api_check_pointer(seq->engine, at, "at");
    return status ? status : api_check_pointer(seq->engine, rows, "rows");
}

int sluice_seq_logits(const sluice_seq *seq, const float **at, uint32_t *rows) {
    int status = check_rows(seq, at, rows);
    if (status)
        return status;
    const struct sluice_engine *e = seq->engine;
    const struct plan *plan = e->plans[e->last_plan];
    const float *logits = engine_io(e, plan->io.logits);
    *rows = seq->logits_step == e->n_steps ? seq->n_logits : 0;
    *at = *rows ? logits + (size_t)seq->first_output * plan->n_vocab : NULL;
    return SLUICE_OK;
}

int sluice_seq_hidden(const sluice_seq *seq, const float **at, uint32_t *rows) {
    int status = check_rows(seq, at, rows);
    if (status)
        return status;
    const struct sluice_engine *e = seq->engine;
    const struct plan *plan = e->plans[e->last_plan];
    *rows = seq->logits_step == e->n_steps ? seq->n_hidden : 0;
    *at = NULL;
    if (*rows) {
        const float *hidden = engine_io(e, plan_tap(plan, plan->n_taps - 1).offset);
        *at = hidden + (size_t)seq->first_output * plan->tap_width;
    }
    return SLUICE_OK;
}

/* ---- how tokens are picked ---------------------------------------------------------------- */

struct sluice_sampling sluice_sampling_default(const sluice_model *model) {
    struct sluice_sampling s;
    sampler_defaults(&s, model && model->is_open ? model->model : NULL);
    return s;
}

int sluice_seq_set_sampling(sluice_seq *seq, const struct sluice_sampling *sampling) {
    int status = check_open(seq);
    if (!status)
        status = api_check_pointer(seq->engine, sampling, "sampling");
    if (!status)
        status = sampler_check(sampling, seq->engine->model->n_tokens, &seq->engine->err);
    if (status)
        return status;
    if (sampling->n_biases)
        memmove(seq->biases, sampling->biases, sampling->n_biases * sizeof *seq->biases);
    seq->sampling = *sampling;
    seq->sampling.biases = seq->biases;
    return SLUICE_OK;
}

/* Whether it allows one of the first n tokens. */
static bool allows_any(const uint32_t *mask, uint32_t n) {
    uint32_t any = n % 32 ? mask[n / 32] & ((1u << n % 32) - 1) : 0;
    for (uint32_t i = 0; i < n / 32; i++)
        any |= mask[i];
    return any;
}

int sluice_seq_set_mask(sluice_seq *seq, const uint32_t *mask) {
    int status = check_open(seq);
    if (status)
        return status;
    struct sluice_engine *e = seq->engine;
    if (mask && !allows_any(mask, seq->n_pick))
        return err_set(&e->err, SLUICE_ERR_ARGUMENT, "the mask allows no token, expected one");
    seq->has_mask = mask;
    seq->keeps_mask = false;
    if (mask)
        memcpy(engine_mask(e, seq->slot), mask, e->mask_words * sizeof *mask);
    return SLUICE_OK;
}

int sluice_seq_keep_mask(sluice_seq *seq, const uint32_t *after) {
    int status = check_open(seq);
    if (!status && !seq->has_mask)
        status = err_set(&seq->engine->err, SLUICE_ERR_ARGUMENT,
                         "the sequence has no mask to keep, expected one");
    if (status)
        return status;
    struct sluice_engine *e = seq->engine;
    seq->keeps_mask = after;
    if (after)
        memcpy(engine_keeps(e, seq->slot), after, e->mask_words * sizeof *after);
    return SLUICE_OK;
}

/* ---- forks, rewinding, files -------------------------------------------------------------- */

int sluice_seq_fork(sluice_seq **out, const sluice_seq *seq) {
    uint32_t slot;
    if (out)
        *out = NULL;
    int status = check_open(seq);
    if (!status)
        status = api_check_pointer(seq->engine, out, "out");
    if (!status)
        status = state_fork(&seq->engine->state, seq->slot, &slot, &seq->engine->err);
    if (status)
        return status;
    struct sluice_seq *copy = take_handle(seq->engine, slot);
    *copy = *seq;
    copy->slot = slot;
    copy->sampling.biases = copy->biases;
    if (copy->has_mask)
        memcpy(engine_mask(seq->engine, slot), engine_mask(seq->engine, seq->slot),
               2 * seq->engine->mask_words * sizeof(uint32_t));
    copy->n_logits = copy->n_hidden = 0;
    *out = copy;
    return SLUICE_OK;
}

int sluice_seq_rewind(sluice_seq *seq, uint32_t n) {
    int status = check_open(seq);
    if (status)
        return status;
    struct sluice_engine *e = seq->engine;
    struct slot *s = slot_of(seq);
    if (n > s->n_tokens)
        return err_set(&e->err, SLUICE_ERR_ARGUMENT,
                       "cannot go back to %u tokens, expected at most the %u that there are", n,
                       s->n_tokens);
    if (n == s->n_tokens)
        return SLUICE_OK;
    /* The last token kept waits again, so that one can be sampled after it, unless that was done
     * already. */
    bool has_token = n == s->length && n == seq->picked_at && seq->token >= 0;
    status = state_rewind(&e->state, seq->slot, n, n > 0 && !has_token ? n - 1 : n, &e->err);
    if (status)
        return status;
    seq->n_logits = seq->n_hidden = 0;
    seq->is_given = false;
    return SLUICE_OK;
}

int sluice_seq_save(const sluice_seq *seq, const char *path) {
    int status = check_open(seq);
    if (!status)
        status = api_check_pointer(seq->engine, path, "path");
    return status ? status : save_write(seq, path, &seq->engine->err);
}

int sluice_seq_load(sluice_seq **out, sluice_engine *e, const char *path) {
    struct saved saved;
    int status = check_maker(out, e);
    if (!status)
        status = api_check_pointer(e, path, "path");
    if (!status)
        status = save_read(e, path, &saved, &e->err);
    if (status)
        return status;
    struct sluice_seq *seq = *out = open_handle(e, saved.slot);
    seq->token = saved.token;
    seq->is_given = saved.is_given;
    seq->picked_at = slot_of(seq)->n_tokens;
    return SLUICE_OK;
}
