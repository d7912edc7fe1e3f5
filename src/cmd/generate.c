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
struct loop {
    int32_t last[LOOP_PERIODS];      /* the newest tokens, a ring */
    uint32_t repeated[LOOP_PERIODS]; /* newest tokens that equal the one a period before */
    uint64_t n;
};

/* Takes a token; true: at least 200 of the newest tokens, and 8 rounds of them, are repetition. */
static bool loop_push(struct loop *loop, int32_t token) {
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
static bool take(struct generate *g, struct loop *loop, int32_t token, int *exit) {
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

/* Prompt lookup: drafts tokens where the text repeats itself. */
struct drafting {
    void *memory; /* NULL: nothing is drafted */
    uint32_t max_drafts, context;
    struct lookup lookup;
    struct pace pace;
};

static void drafting_open(struct drafting *d, const struct generate *g) {
    struct sluice_choice choice;
    sluice_engine_choice(g->engine, &choice);
    *d = (struct drafting){.max_drafts = choice.drafts, .context = choice.context};
    if (g->see || choice.drafts == 0) /* there are logits of the last token alone */
        return;
    d->memory = malloc(lookup_bytes(d->context));
    if (d->memory)
        lookup_init(&d->lookup, d->memory, d->context);
}

/* Returns the rows of the next step. */
static uint32_t draft(struct drafting *d, struct generate *g) {
    struct pace_step step = {1, 1};
    const int32_t *tokens;
    uint32_t n;
    size_t left = g->max_tokens - g->n_new - 1;
    sluice_seq_tokens(g->seq, &tokens, &n, NULL);
    if (d->memory && lookup_guess(&d->lookup, tokens, n,
                                  left < d->max_drafts ? (uint32_t)left : d->max_drafts)) {
        uint32_t drafted = pace_choose(&d->pace, &step, &d->lookup);
        sluice_seq_draft(g->seq, d->lookup.guess, drafted);
    }
    return step.rows;
}

/* One submission for the waiting token. */
static int submit(struct drafting *d, struct generate *g) {
    size_t left = g->max_tokens - g->n_new;
    uint32_t steps = 0, rows = draft(d, g);
    double started = seconds_now();
    interrupt_lets_finish(true);
    int status = common_burst(g->engine, left < UINT32_MAX ? (uint32_t)left : UINT32_MAX, &steps);
    interrupt_lets_finish(false);
    if (!status && steps)
        pace_note(&d->pace, rows, (seconds_now() - started) / steps);
    return status;
}

/* Feeds a token and generates the next, or several by a burst or right drafts. Tokens after the end
 * are ignored. */
static bool advance(struct generate *g, struct loop *loop, struct drafting *d, int *exit) {
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
    struct loop loop = {0};
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
