/* generate.c - the token loop that run and chat share. */
#include "cmd/generate.h"

#include <stdlib.h>

#include "base/clock.h"
#include "cmd/interrupt.h"
#include "cmd/open.h"
#include "serve/lookup.h"

/* ---- loops -------------------------------------------------------------------------------- */

/* Finds loops, the same few tokens over and over, by their period. */
enum { LOOP_PERIODS = 64 };
struct loop_finder {
    int32_t last[LOOP_PERIODS];      /* the newest tokens, a ring */
    uint32_t repeated[LOOP_PERIODS]; /* newest tokens that equal the one a period before */
    uint64_t n;
};

/* Takes a token; true: at least 200 of the newest tokens, and 8 rounds of them, are repetition. */
static bool loop_push(struct loop_finder *loop, int32_t token) {
    enum { TOKENS = 200, ROUNDS = 8 };
    bool is_loop = false;
    for (uint64_t period = 1; period <= LOOP_PERIODS && period <= loop->n; period++) {
        uint32_t *repeated = &loop->repeated[period - 1];
        *repeated = loop->last[(loop->n - period) % LOOP_PERIODS] == token ? *repeated + 1 : 0;
        is_loop |= *repeated >= TOKENS && *repeated >= ROUNDS * period;
    }
    loop->last[loop->n++ % LOOP_PERIODS] = token;
    return is_loop;
}

/* ---- one token ---------------------------------------------------------------------------- */

static int show_token(struct generate *g, int32_t token) {
    const char *at;
    size_t length;
    int status = sluice_text_push(g->text, token, &at, &length);
    if (status)
        return complain(EXIT_WORLD, "token %d: %s", token, sluice_status_text(status));
    return length ? g->show(g->user, at, length) : 0;
}

/* Ends the loop for that reason. */
static bool end_by(struct generate *g, enum generate_end why) {
    g->end = why;
    return false;
}

/* Shows a token; false: it was the last, g->end says why. */
static bool take(struct generate *g, struct loop_finder *loop, int32_t token, int *exit) {
    bool is_last = false;
    if (!g->is_endless && sluice_token_is_end(g->model, token))
        return end_by(g, GENERATE_END_TOKEN);
    if (g->see)
        *exit = g->see(g->user, token);
    if (!*exit)
        *exit = show_token(g, token);
    g->n_new++;
    if (!*exit)
        *exit = constraint_take(g->constraint, g->seq, token, &is_last);
    if (*exit)
        return end_by(g, GENERATE_FAILED);
    if (is_last)
        return end_by(g, GENERATE_END_TOKEN);
    if (sluice_text_has_stopped(g->text))
        return end_by(g, GENERATE_STOP_STRING);
    if (g->n_new >= g->max_tokens)
        return end_by(g, GENERATE_MAX_TOKENS);
    if (!g->is_endless && loop_push(loop, token))
        return end_by(g, GENERATE_LOOP);
    return true;
}

/* Between submissions: all tokens of the last one are part of the answer, as they are in the
 * sequence, so that the next turn goes on from there. */
static bool goes_on(struct generate *g) {
    return interrupt_asked() ? end_by(g, GENERATE_INTERRUPTED) : true;
}

/* ---- the loop ----------------------------------------------------------------------------- */

static bool is_full(const struct generate *g) {
    struct sluice_choice choice;
    uint32_t n;
    sluice_engine_choice(g->engine, &choice);
    sluice_seq_tokens(g->seq, NULL, &n, NULL);
    return n >= choice.context;
}

/* Drafts: by prompt lookup, where the text repeats itself, or by the model's own block. */
struct drafting {
    void *memory; /* NULL: nothing is drafted by lookup */
    uint32_t max_drafts, block_drafts, context;
    struct lookup lookup;
    struct guess_record block;
    struct pace pace;
};

static void drafting_open(struct drafting *d, const struct generate *g) {
    struct sluice_choice choice;
    sluice_engine_choice(g->engine, &choice);
    *d = (struct drafting){.context = choice.context, .block.rightness = 0.5f};
    if (g->see || choice.drafts == 0) /* there are logits of the last token alone */
        return;
    d->max_drafts = choice.drafts;
    d->block_drafts = choice.block_drafts;
    d->memory = malloc(lookup_bytes(d->context));
    if (d->memory)
        lookup_init(&d->lookup, d->memory, d->context);
}

static uint32_t draft_by_lookup(struct drafting *d, struct generate *g, uint32_t max,
                                struct pace_step *step) {
    const int32_t *tokens;
    uint32_t n, drafted = 0;
    sluice_seq_tokens(g->seq, &tokens, &n, NULL);
    if (d->memory && lookup_guess(&d->lookup, tokens, n, max) &&
        (d->block_drafts == 0 || d->lookup.record.rightness >= d->block.rightness))
        drafted = pace_choose(&d->pace, step, &d->lookup.record, 1, d->lookup.n_guess, 0);
    if (drafted)
        sluice_seq_draft(g->seq, d->lookup.guess, drafted);
    return drafted;
}

/* If it fails, nothing is drafted. Returns how many tokens it drafted. */
static uint32_t draft_by_block(struct drafting *d, struct generate *g, uint32_t max,
                               struct pace_step *step) {
    uint32_t n = pace_choose(&d->pace, step, &d->block, 1, max, pace_draft_seconds(&d->pace, 1));
    double started = seconds_now();
    int status = n ? sluice_engine_draft(g->engine, &g->seq, 1, n) : SLUICE_OK;
    if (status == SLUICE_ERR_CANCELLED)
        sluice_engine_cancel(g->engine); /* it is the next step's to report */
    if (n == 0 || status) {
        step->rows = 1;
        return 0;
    }
    pace_note_draft(&d->pace, 1, n, seconds_now() - started);
    sluice_seq_drafts(g->seq, NULL, &n);
    step->rows = 1 + n;
    return n;
}

/* Returns the rows of the next step; *by_block: how many of them the model's block drafted. */
static uint32_t draft(struct drafting *d, struct generate *g, uint32_t *by_block) {
    struct pace_step step = {1, 1};
    size_t left = g->max_tokens - g->n_new - 1;
    uint32_t max = left < d->max_drafts ? (uint32_t)left : d->max_drafts;
    *by_block = 0;
    if (!draft_by_lookup(d, g, max, &step) && d->block_drafts && max)
        *by_block = draft_by_block(d, g, max < d->block_drafts ? max : d->block_drafts, &step);
    return step.rows;
}

/* One submission for the waiting token. */
static int submit(struct drafting *d, struct generate *g) {
    size_t left = g->max_tokens - g->n_new;
    uint32_t steps = 0, by_block, before, after;
    interrupt_lets_finish(true);
    uint32_t rows = draft(d, g, &by_block);
    double started = seconds_now();
    sluice_seq_tokens(g->seq, NULL, &before, NULL);
    int status = common_burst(g->engine, left < UINT32_MAX ? (uint32_t)left : UINT32_MAX, &steps);
    interrupt_lets_finish(false);
    if (status || !steps)
        return status;
    pace_note(&d->pace, rows, (seconds_now() - started) / steps);
    sluice_seq_tokens(g->seq, NULL, &after, NULL);
    if (by_block)
        pace_learn(&d->block, after - before, by_block);
    return status;
}

/* Feeds a token and generates the next, or several by a burst or right drafts. Tokens after the end
 * are ignored. */
static bool advance(struct generate *g, struct loop_finder *loop, struct drafting *d, int *exit) {
    const int32_t *tokens;
    int32_t token = sluice_seq_token(g->seq);
    uint32_t n, before;
    bool has_shrunk = is_full(g);
    if (has_shrunk && (!g->make_room || !g->make_room(g->user, exit)))
        return end_by(g, *exit               ? GENERATE_FAILED
                         : interrupt_asked() ? GENERATE_INTERRUPTED
                                             : GENERATE_CONTEXT_FULL);
    if (has_shrunk && d->memory)
        lookup_init(&d->lookup, d->memory, d->context);
    sluice_seq_tokens(g->seq, NULL, &before, NULL);
    if (sluice_seq_feed(g->seq, &token, 1) || submit(d, g)) {
        if (interrupt_asked())
            return end_by(g, GENERATE_INTERRUPTED);
        *exit = fail_engine(g->engine);
        return end_by(g, GENERATE_FAILED);
    }
    sluice_seq_tokens(g->seq, &tokens, &n, NULL);
    for (uint32_t i = before + 1; i < n; i++)
        if (!take(g, loop, tokens[i], exit))
            return false;
    return take(g, loop, sluice_seq_token(g->seq), exit);
}

int generate(struct generate *g) {
    struct loop_finder loop = {0};
    struct drafting drafting;
    struct sluice_counters before, after;
    double started = seconds_now();
    int exit = 0;
    g->n_new = 0;
    g->end = GENERATE_MAX_TOKENS;
    drafting_open(&drafting, g);
    sluice_engine_counters(g->engine, &before);
    bool has_more = g->max_tokens > 0 && take(g, &loop, sluice_seq_token(g->seq), &exit);
    while (has_more && goes_on(g))
        has_more = advance(g, &loop, &drafting, &exit);
    if (!exit)
        exit = show_token(g, SLUICE_TEXT_END);
    sluice_engine_counters(g->engine, &after);
    g->seconds = seconds_now() - started;
    g->submissions = after.submissions - before.submissions;
    free(drafting.memory);
    return exit;
}
