/* scheduler_draft.c - drafts for the answers that run: by prompt lookup, and by the model's own
 * block for those that have none. How many are worth their rows: pace.h. */
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "serve/scheduler_internal.h"

/* Tokens of it that may be drafted. */
static uint32_t max_drafts(const struct sched_answer *a, uint32_t max) {
    return min_u32(max, a->request->max_tokens - a->report.n_new - 1);
}

/* Drafts what followed its newest tokens before; at most `max` tokens. Where the model's own block
 * is right more often, nothing: draft_by_block follows. Returns how many. */
static uint32_t draft_by_lookup(struct sched *s, struct sched_answer *a, uint32_t max) {
    uint32_t n = 0;
    if (s->has_lookup && a->request->lookups &&
        lookup_guess(&a->lookup, a->tokens, a->n, max_drafts(a, max)) &&
        (s->block_drafts == 0 || a->lookup.record.rightness >= s->block.rightness))
        n = pace_choose(&s->pace, &s->step, &a->lookup.record, 1, a->lookup.n_guess, 0);
    if ((n || a->n_drafted) && sluice_seq_draft(a->seq, a->lookup.guess, n))
        n = 0;
    a->n_drafted = n;
    a->is_by_block = false;
    return n;
}

/* What the block drafted for an answer, cut to what it may still have. */
static void take_drafts(struct sched_answer *a) {
    const int32_t *tokens;
    int32_t kept[BLOCK_DRAFTS];
    uint32_t n;
    sluice_seq_drafts(a->seq, &tokens, &n);
    a->is_by_block = n > 0;
    a->n_drafted = max_drafts(a, min_u32(n, BLOCK_DRAFTS));
    if (a->n_drafted == n)
        return;
    memcpy(kept, tokens, a->n_drafted * sizeof *kept);
    if (sluice_seq_draft(a->seq, kept, a->n_drafted))
        a->n_drafted = 0;
}

static bool may_use_block(const struct sched_answer *a) {
    return a->request->lookups && !a->n_drafted && sched_n_waiting(a) == 1 && max_drafts(a, 1);
}

/* Drafts by the model's block for all those that decode and have none: the same number of tokens
 * for each. A failure is no loss. */
static void draft_by_block(struct sched *s, uint32_t drafts_left) {
    uint32_t n_seqs = 0;
    for (struct sched_answer *a = s->running.first; a; a = a->next)
        if (may_use_block(a))
            s->seqs[n_seqs++] = a->seq;
    uint32_t max = n_seqs ? min_u32(s->block_drafts, drafts_left / n_seqs) : 0;
    uint32_t n = max ? pace_choose(&s->pace, &s->step, &s->block, n_seqs, max,
                                   pace_draft_seconds(&s->pace, n_seqs))
                     : 0;
    if (n == 0)
        return;
    double started = seconds_now();
    int status = sluice_engine_draft(s->engine, s->seqs, n_seqs, n);
    s->draft_seconds = seconds_now() - started;
    if (status == SLUICE_ERR_CANCELLED)
        sluice_engine_cancel(s->engine); /* it is the next step's to report */
    if (status) {
        s->step.rows -= n * n_seqs;
        return;
    }
    pace_note_draft(&s->pace, n_seqs, n, s->draft_seconds);
    for (struct sched_answer *a = s->running.first; a; a = a->next)
        if (may_use_block(a)) {
            take_drafts(a);
            s->step.rows -= n - a->n_drafted;
        }
}

/* Only in steps without rows of prompts: how long those take is not known. */
void sched_draft(struct sched *s) {
    uint32_t n = 0, drafts_left = s->drafts;
    s->is_paced = true;
    s->draft_seconds = 0;
    for (const struct sched_answer *a = s->running.first; a; a = a->next) {
        uint32_t waiting = sched_n_waiting(a);
        s->is_paced &= waiting <= 1;
        n += waiting;
    }
    s->step = (struct pace_step){n, n};
    for (struct sched_answer *a = s->running.first; a && s->is_paced && drafts_left; a = a->next)
        if (sched_n_waiting(a) == 1)
            drafts_left -= draft_by_lookup(s, a, drafts_left);
    if (s->is_paced && s->block_drafts && drafts_left)
        draft_by_block(s, drafts_left);
}

/* Of a step that fed this many tokens. */
void sched_count_drafts(struct sched *s, struct sched_answer *a, uint32_t n_fed) {
    uint32_t n_kept = a->n_drafted ? n_fed : 0;
    if (a->is_by_block)
        pace_learn(&s->block, n_kept, a->n_drafted);
    a->report.n_drafted += a->n_drafted;
    a->report.n_kept += n_kept;
    s->counters.drafted += a->n_drafted;
    s->counters.drafts_kept += n_kept;
    a->n_drafted = 0;
}
