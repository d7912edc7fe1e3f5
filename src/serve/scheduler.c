/* scheduler.c - the answers that wait and run, and the step over them.
 *
 * In: requests.  Out: sequences of the engine, tokens and reports through callbacks.
 *
 * (1) An answer in use waits (in `waiting`, without a sequence) or runs (in `running`, with one).
 *     Both lists are sorted by age, oldest first.
 * (2) tokens[0 .. n) of an answer are its prompt and every token handed out. Its sequence has the
 *     first n_fed of them; between two steps all but the last may be missing from it, or none.
 * (3) A request has `live` answers in use. Its memory and number go with the last of them.
 * (4) At most sequences + queue answers are in use, so the tables made at open suffice.
 * (5) An answer is older than another if it was submitted before it, however often it was
 *     preempted. The oldest that runs is never preempted, and nothing starts before an older one
 *     that waits for a sequence or for pages.
 * (6) Callbacks run when the tables are consistent: they may submit and cancel. A cancelled request
 *     is only marked; what it holds is freed when the next step begins. */
#include "serve/scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "serve/scheduler_internal.h"

/* ---- lists -------------------------------------------------------------------------------- */

/* In order of age; searched from the end: usually it is the newest. */
void sched_list_insert(struct answer_list *list, struct sched_answer *a) {
    struct sched_answer *before = list->last;
    while (before && before->age > a->age)
        before = before->prev;
    a->prev = before;
    a->next = before ? before->next : list->first;
    *(a->prev ? &a->prev->next : &list->first) = a;
    *(a->next ? &a->next->prev : &list->last) = a;
    list->n++;
}

void sched_list_remove(struct answer_list *list, struct sched_answer *a) {
    *(a->prev ? &a->prev->next : &list->first) = a->next;
    *(a->next ? &a->next->prev : &list->last) = a->prev;
    a->prev = a->next = NULL;
    list->n--;
}

/* ---- open and close ----------------------------------------------------------------------- */

static bool make_tables(struct sched *s) {
    s->answers = calloc(s->n_answers, sizeof *s->answers);
    s->requests = calloc(s->n_answers, sizeof *s->requests);
    s->seqs = calloc(s->n_sequences, sizeof *s->seqs);
    if (!s->answers || !s->requests || !s->seqs)
        return false;
    for (uint32_t i = s->n_answers; i-- > 0;) {
        s->answers[i].next = s->free_answers;
        s->free_answers = &s->answers[i];
    }
    return true;
}

int sched_open(struct sched **out, const sluice_model *model, sluice_engine *engine,
               const struct sched_options *options, struct err *err) {
    enum { MAX_QUEUE = 1 << 20 };
    struct sluice_choice choice;
    struct sluice_pages pages;
    *out = NULL;
    sluice_engine_choice(engine, &choice);
    sluice_engine_pages(engine, &pages);
    if (choice.sequences == 0)
        return err_set(err, SLUICE_ERR_ARGUMENT, "the engine is not open");
    if (options->queue > MAX_QUEUE)
        return err_set(err, SLUICE_ERR_ARGUMENT, "a queue of %u, expected at most %u",
                       options->queue, MAX_QUEUE);
    struct sched *s = calloc(1, sizeof *s);
    if (!s)
        return err_memory(err, "a scheduler");
    *s = (struct sched){
        .model = model,
        .engine = engine,
        .context = min_u32(choice.context, pages.total * pages.tokens),
        .page = pages.tokens,
        .n_sequences = choice.sequences,
        .n_answers = choice.sequences + options->queue,
        .has_no_bursts = options->has_no_bursts,
        .burst_seconds = options->burst_seconds,
        .has_no_reuse = options->has_no_reuse,
        .drafts = choice.drafts,
        .block_drafts = min_u32(choice.block_drafts, BLOCK_DRAFTS),
        .has_lookup = !options->has_no_lookup,
        .block.rightness = 0.5f,
        .next_serial = 1,
        .next_age = 1,
    };
    sluice_model_facts(model, &s->facts);
    if (!make_tables(s)) {
        sched_close(s);
        return err_memory(err, "the tables of a scheduler");
    }
    *out = s;
    return SLUICE_OK;
}

/* ---- the end of an answer ----------------------------------------------------------------- */

static void close_sequence(struct sched *s, struct sched_answer *a) {
    a->report.n_processed += sched_n_processed(a) - a->n_found;
    sluice_seq_close(a->seq);
    a->seq = NULL;
    a->n_fed = a->n_masked = a->n_drafted = 0;
    a->has_mask = false;
    a->is_stem = false;
    sched_list_remove(&s->running, a);
}

void sched_preempt(struct sched *s, struct sched_answer *a) {
    close_sequence(s, a);
    sched_list_insert(&s->waiting, a);
    a->report.times_preempted++;
    s->counters.preempted++;
}

static void clear_suspicion(struct sched *s, struct sched_answer *a) {
    s->n_suspects -= a->is_suspect;
    a->is_suspect = false;
}

void sched_end_answer(struct sched *s, struct sched_answer *a, enum sched_end why,
                      const struct err *err) {
    struct request *r = a->request;
    struct sched_report report;
    sched_end_fn *on_end = r->asked.on_end;
    void *user = r->asked.user;
    if (a->seq)
        close_sequence(s, a);
    else
        sched_list_remove(&s->waiting, a);
    clear_suspicion(s, a);
    report = a->report;
    report.age = a->age;
    report.answers_left = --r->live;
    report.end = why;
    report.status = err ? err->code : SLUICE_OK;
    report.error = err ? err->text : "";
    report.seconds = seconds_now() - r->submitted;
    report.steps = report.start_seconds > 0 ? (uint32_t)(s->counters.steps - a->started_at) : 0;
    report.submissions =
        report.first_seconds > 0 ? (uint32_t)(s->counters.submissions - a->first_at) : 0;
    a->request = NULL;
    a->next = s->free_answers;
    s->free_answers = a;
    s->n_used--;
    s->counters.answers += r->asked.age == 0;
    if (r->live == 0) {
        free(r->memory);
        r->id = 0;
    }
    if (on_end)
        on_end(user, &report);
}

static void end_list(struct sched *s, struct answer_list *list, enum sched_end why,
                     const struct err *err) {
    for (struct sched_answer *a = list->first, *next; a; a = next) {
        next = a->next;
        sched_end_answer(s, a, why, err);
    }
}

/* What the engine said of its last failure. */
static struct err engine_failure(const struct sched *s, int status) {
    struct err err;
    err_set(&err, status, "%s", sluice_engine_error(s->engine));
    return err;
}

void sched_fail_answer(struct sched *s, struct sched_answer *a, int status) {
    struct err err = engine_failure(s, status);
    sched_end_answer(s, a, SCHED_END_FAILED, &err);
}

void sched_close(struct sched *s) {
    if (!s)
        return;
    if (s->failure.code == 0) /* callbacks may submit: it is refused */
        err_set(&s->failure, SLUICE_ERR_CANCELLED, "the scheduler is closing");
    end_list(s, &s->running, SCHED_END_CANCELLED, NULL);
    end_list(s, &s->waiting, SCHED_END_CANCELLED, NULL);
    free(s->answers);
    free(s->requests);
    free(s->seqs);
    free(s);
}

/* ---- feeding sequences -------------------------------------------------------------------- */

static const uint32_t *mask_of(const struct sched_answer *a) {
    const struct sched_request *q = &a->request->asked;
    return q->on_mask ? q->on_mask(q->user, a->report.answer) : NULL;
}

/* Sets the sequence's mask, once for every token handed out. */
static int set_mask(struct sched_answer *a) {
    if (!a->request->asked.on_mask || a->n_masked == a->n)
        return SLUICE_OK;
    const struct sched_request *q = &a->request->asked;
    const uint32_t *mask = mask_of(a);
    a->n_masked = a->n;
    a->has_mask = mask;
    int status = sluice_seq_set_mask(a->seq, mask);
    const uint32_t *keeps =
        mask && !status && q->on_keeps ? q->on_keeps(q->user, a->report.answer) : NULL;
    return keeps ? sluice_seq_keep_mask(a->seq, keeps) : status;
}

static int feed_to(struct sched_answer *a, uint32_t n) {
    int status = sluice_seq_feed(a->seq, a->tokens + a->n_fed, n - a->n_fed);
    if (!status)
        a->n_fed = n;
    return status;
}

/* Feeds the answer's last token to its sequence. */
static int feed_one(struct sched *s, struct sched_answer *a) {
    if (a->is_stem && sched_n_processed(a) < a->n_fed)
        return SLUICE_OK;
    int status = a->is_stem ? sched_branch(s, a) : SLUICE_OK;
    if (!status && a->n_fed < a->n)
        status = feed_to(a, a->n);
    return status ? status : set_mask(a);
}

/* Feeds all that run, or the suspect alone: then no token of the others waits. */
static void feed(struct sched *s) {
    for (struct sched_answer *a = s->running.first, *next; a; a = next) {
        bool takes_part = s->n_suspects == 0 || a->is_suspect;
        int status = takes_part ? feed_one(s, a) : SLUICE_OK;
        next = a->next; /* maybe one that just forked */
        if (status)
            sched_fail_answer(s, a, status);
    }
}

/* ---- handing out tokens ------------------------------------------------------------------- */

static void push_token(const struct sched *s, struct sched_answer *a, int32_t token) {
    a->tokens[a->n++] = token;
    if (a->n % s->page == 0)
        sched_hash_page(s, a, a->n / s->page - 1);
}

static bool is_end(const struct sched *s, const struct sched_request *q, int32_t token) {
    if (!q->ends)
        return sluice_token_is_end(s->model, token);
    for (size_t i = 0; i < q->n_ends; i++)
        if (q->ends[i] == token)
            return true;
    return false;
}

static bool call_on_token(struct sched_answer *a, const float *logits) {
    const struct request *r = a->request;
    const struct sched_token token = {
        .request = r->id,
        .answer = a->report.answer,
        .index = a->report.n_new - 1,
        .token = a->tokens[a->n - 1],
        .n_reused = a->report.reuse.tokens,
        .logits = logits,
    };
    return !r->asked.on_token || r->asked.on_token(r->asked.user, &token);
}

/* Hands a token out; false: the answer has ended. */
static bool take(struct sched *s, struct sched_answer *a, int32_t token, const float *logits,
                 double now) {
    const struct request *r = a->request;
    if (is_end(s, &r->asked, token)) {
        a->report.end_token = token;
        sched_end_answer(s, a, SCHED_END_TOKEN, NULL);
        return false;
    }
    clear_suspicion(s, a);
    push_token(s, a, token);
    if (a->report.n_new++ == 0) {
        a->report.first_seconds = now - r->submitted;
        a->first_at = s->counters.submissions;
    }
    s->counters.tokens++;
    bool goes_on = call_on_token(a, logits);
    if (r->is_cancelled)
        return false;
    if (!goes_on)
        sched_end_answer(s, a, SCHED_END_STOPPED, NULL);
    else if (a->report.n_new == r->max_tokens)
        sched_end_answer(
            s, a, r->max_tokens == r->asked.max_tokens ? SCHED_END_MAX_TOKENS : SCHED_END_FULL,
            NULL);
    else
        return true;
    return false;
}

static const float *last_logits(const struct sched *s, const struct sched_answer *a) {
    const float *at;
    uint32_t rows = 0;
    if (!a->request->asked.wants_logits || sluice_seq_logits(a->seq, &at, &rows) || rows == 0)
        return NULL;
    return at + (size_t)(rows - 1) * (size_t)s->facts.n_logits;
}

/* Drops what a burst sampled after the last token handed out: that token changed the mask. Where it
 * is the last one fed, it is fed again: what was sampled after it would stay. */
static void drop_rest(struct sched *s, struct sched_answer *a) {
    uint32_t n;
    sluice_seq_tokens(a->seq, NULL, &n, NULL);
    a->report.n_processed += sched_n_processed(a) - a->n_found;
    a->n_fed = n > a->n ? a->n : a->n - 1;
    int status = sluice_seq_rewind(a->seq, a->n_fed);
    a->n_found = sched_n_processed(a);
    if (status)
        sched_fail_answer(s, a, status);
}

/* What the step sampled for an answer: one token, or those of a burst or of drafts, which are fed
 * already. */
static void take_all(struct sched *s, struct sched_answer *a, double now) {
    const int32_t *tokens;
    uint32_t n;
    int32_t token = sluice_seq_token(a->seq);
    if (token < 0 || a->n_fed < a->n) /* none, or one that was handed out before */
        return;
    sluice_seq_tokens(a->seq, &tokens, &n, NULL);
    sched_count_drafts(s, a, n - a->n_fed);
    for (; a->n_fed < n; a->n_fed++) {
        if (!take(s, a, tokens[a->n_fed], NULL, now))
            return;
        if (!a->has_mask && mask_of(a)) { /* a mask it has ends the burst itself */
            drop_rest(s, a);
            return;
        }
    }
    take(s, a, token, last_logits(s, a), now);
}

/* Leaves out rows that were handed out before the answer was preempted. */
static void leave_out_read(const struct sched *s, struct sched_answer *a, struct sched_rows *rows) {
    uint32_t n = a->n_read > rows->first ? min_u32(a->n_read - rows->first, rows->n) : 0;
    rows->first += n;
    rows->n -= n;
    rows->logits += rows->logits ? (size_t)n * (size_t)s->facts.n_logits : 0;
    rows->hidden += rows->hidden ? (size_t)n * s->facts.width : 0;
    a->n_read = max_u32(a->n_read, rows->first + rows->n);
}

static void call_on_rows(const struct sched *s, struct sched_answer *a) {
    struct sched_rows rows = {0};
    uint32_t n_logits = 0, n_hidden = 0;
    if (!sched_reads_of(a) || sluice_seq_logits(a->seq, &rows.logits, &n_logits) ||
        sluice_seq_hidden(a->seq, &rows.hidden, &n_hidden))
        return;
    rows.n = max_u32(n_logits, n_hidden);
    rows.first = sched_n_processed(a) - rows.n;
    if (sched_reads_all(a))
        leave_out_read(s, a, &rows);
    if (rows.n > 0)
        a->request->asked.on_rows(a->request->asked.user, &rows);
}

static void hand_out(struct sched *s) {
    double now = seconds_now();
    for (struct sched_answer *a = s->running.first, *next; a; a = next) {
        next = a->next;
        if (a->is_stem || a->request->is_cancelled) /* maybe by one before it in this list */
            continue;
        call_on_rows(s, a);
        take_all(s, a, now);
    }
}

/* ---- when pages run out ------------------------------------------------------------------- */

/* The youngest that runs, but not the suspect: until it has run the others have nothing to do. */
static struct sched_answer *youngest(const struct sched *s) {
    struct sched_answer *a = s->running.last;
    return a->is_suspect && a->prev ? a->prev : a;
}

/* Preempts the youngest until there is a page for each older one that found none. Those that found
 * none and are younger than all others may wait as they are. */
static void preempt_for_pages(struct sched *s) {
    struct sluice_pages pages;
    uint32_t n_starved = 0;
    sluice_engine_pages(s->engine, &pages);
    if (pages.starved == 0)
        return;
    for (const struct sched_answer *a = s->running.first; a; a = a->next)
        n_starved += sluice_seq_is_starved(a->seq);
    while (n_starved > 0 && s->running.n > 1) {
        struct sched_answer *a = youngest(s);
        n_starved -= sluice_seq_is_starved(a->seq);
        sluice_engine_pages(s->engine, &pages);
        if (pages.free >= n_starved)
            return;
        sched_preempt(s, a);
    }
}

/* ---- failures ----------------------------------------------------------------------------- */

static int end_all(struct sched *s, int status) {
    s->failure = engine_failure(s, status);
    end_list(s, &s->running, SCHED_END_FAILED, &s->failure);
    end_list(s, &s->waiting, SCHED_END_FAILED, &s->failure);
    return status;
}

/* One of those that ran gave NaN or infinity: each has to run alone until it gets a token. The
 * engine has undone the step. */
static void suspect_all(struct sched *s) {
    while (s->running.last) {
        struct sched_answer *a = s->running.last;
        a->is_suspect = true;
        s->n_suspects++;
        sched_preempt(s, a);
    }
}

/* None of those that run found a page. One that is alone may hold the page it lacks itself, by what
 * it reused: then it starts again without reuse. */
static void run_out(struct sched *s, int status) {
    struct sched_answer *a = youngest(s);
    bool is_alone = s->running.n == 1;
    if (is_alone && a->is_cold) {
        sched_fail_answer(s, a, status);
        return;
    }
    a->is_cold = is_alone || s->has_no_reuse;
    sched_preempt(s, a);
}

struct sched_answer *sched_find_suspect(const struct answer_list *list) {
    struct sched_answer *a = list->first;
    while (a && !a->is_suspect)
        a = a->next;
    return a;
}

/* After a step of the engine that failed. A cancelled step is repeated. */
static int recover(struct sched *s, int status) {
    struct sched_answer *suspect = sched_find_suspect(&s->running);
    if (status == SLUICE_ERR_CANCELLED)
        return SLUICE_OK;
    if (status == SLUICE_ERR_DEVICE)
        return end_all(s, status);
    if (status == SLUICE_ERR_MEMORY)
        run_out(s, status);
    else if (suspect || s->running.n == 1)
        sched_fail_answer(s, suspect ? suspect : s->running.first, status);
    else
        suspect_all(s);
    return SLUICE_OK;
}

/* ---- the step ----------------------------------------------------------------------------- */

/* Steps that may be one submission: as long as nobody waits, not even for a first token, and none
 * gets more tokens than it wants. */
static uint32_t steps_at_once(const struct sched *s) {
    uint32_t n = s->waiting.n || s->has_no_bursts ? 1 : UINT32_MAX;
    for (const struct sched_answer *a = s->running.first; a && n > 1; a = a->next)
        n = min_u32(n, a->report.n_new ? a->request->max_tokens - a->report.n_new : 1);
    double step = s->burst_seconds > 0 ? pace_seconds(&s->pace, s->step.rows) : 0;
    if (step > 0 && n > 1 && s->burst_seconds / step < n)
        n = s->burst_seconds > step ? (uint32_t)(s->burst_seconds / step) : 1;
    return n;
}

static int run(struct sched *s, double *engine_seconds) {
    uint32_t steps;
    double started = seconds_now();
    int status = sluice_engine_burst(s->engine, steps_at_once(s), &steps);
    *engine_seconds = seconds_now() - started + s->draft_seconds;
    s->counters.steps += steps;
    s->counters.submissions += steps > 0;
    if (s->is_paced && steps)
        pace_note(&s->pace, s->step.rows, (*engine_seconds - s->draft_seconds) / steps);
    return status;
}

int sched_step(struct sched *s, bool *worked) {
    double started = seconds_now(), engine_seconds = 0;
    bool has_swept = sched_sweep(s);
    sched_admit(s);
    feed(s);
    sched_draft(s);
    bool has_work = s->running.n > 0;
    int status = has_work ? run(s, &engine_seconds) : SLUICE_OK;
    if (status)
        status = recover(s, status);
    else
        hand_out(s);
    preempt_for_pages(s);
    s->counters.engine_seconds += engine_seconds;
    s->counters.own_seconds += seconds_now() - started - engine_seconds;
    if (worked)
        *worked = has_work || has_swept || s->waiting.n > 0;
    return status;
}

void sched_counters(const struct sched *s, struct sched_counters *out) {
    *out = s->counters;
    out->waiting = s->waiting.n;
    out->running = s->running.n;
}

/* ---- invariants --------------------------------------------------------------------------- */

static const char *broken_list(const struct answer_list *list, bool runs) {
    uint32_t n = 0;
    for (const struct sched_answer *a = list->first; a; a = a->next, n++) {
        if (!a->request || a->request->id == 0 || (a->seq != NULL) != runs)
            return "(1) an answer is in the wrong list";
        if (a->next ? a->next->prev != a || a->next->age <= a->age : list->last != a)
            return "(1) a list is not sorted by age, or its links are wrong";
        if (!a->request->is_cancelled && (a->n_fed > a->n || (runs && a->n_fed + 1 < a->n)))
            return "(2) a sequence lacks tokens, or has too many";
    }
    return n == list->n ? NULL : "(1) a list is miscounted";
}

const char *sched_broken(const struct sched *s) {
    uint32_t n_live = 0;
    const char *broken = broken_list(&s->waiting, false);
    if (!broken)
        broken = broken_list(&s->running, true);
    for (uint32_t i = 0; i < s->n_answers; i++)
        n_live += s->requests[i].id ? s->requests[i].live : 0;
    if (!broken && n_live != s->waiting.n + s->running.n)
        broken = "(3) a request's answers are miscounted";
    if (!broken && (n_live != s->n_used || s->running.n > s->n_sequences))
        broken = "(4) more answers are in use than there may be";
    return broken;
}
