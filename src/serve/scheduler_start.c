/* scheduler_start.c - which of the waiting answers start, and from what.
 *
 * Oldest first, when a sequence is free and there are pages: (5) in scheduler.c. One whose
 * beginning an older one is processing waits for that, and one whose state is on disk waits for the
 * reads; younger ones may start meanwhile. */
#include "base/clock.h"
#include "base/size.h"
#include "serve/scheduler_internal.h"

/* ---- what answers have in common ---------------------------------------------------------- */

/* Length of the common prefix, in full pages. Compares hashes, not tokens: a collision would only
 * make an answer wait needlessly. */
static uint32_t common_tokens(const struct sched *s, const struct sched_answer *a,
                              const struct sched_answer *b) {
    uint32_t low = 0, high = min_u32(a->n, b->n) / s->page;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (a->hashes[middle - 1] == b->hashes[middle - 1])
            low = middle;
        else
            high = middle - 1;
    }
    return low * s->page;
}

/* How many of its first tokens it may take from the cache: those whose rows it needs no more. */
static uint32_t reusable_tokens(const struct sched_answer *a) {
    bool is_reading = sched_reads_all(a) && a->n_read < a->report.n_prompt;
    return a->is_cold ? 0 : is_reading ? a->n_read : a->n;
}

/* The longest prefix shared with a running answer that has processed it. */
static uint32_t shared_tokens(const struct sched *s, const struct sched_answer *a) {
    uint32_t n = 0;
    for (const struct sched_answer *r = s->running.first; r; r = r->next)
        n = max_u32(n, min_u32(common_tokens(s, a, r), sched_n_processed(r)));
    return min_u32(n, reusable_tokens(a));
}

/* ---- start -------------------------------------------------------------------------------- */

static int set_up(struct sched_answer *a) {
    const struct sched_request *q = &a->request->asked;
    struct sluice_sampling sampling = q->sampling;
    unsigned wants =
        SLUICE_WANT_TOKEN | (q->wants_logits ? SLUICE_WANT_LOGITS : 0) | sched_reads_of(a);
    sampling.seed += a->report.answer;
    int status = sluice_seq_want(a->seq, a->is_stem ? 0 : wants);
    return status ? status : sluice_seq_set_sampling(a->seq, &sampling);
}

/* Puts an answer whose sequence was just opened among those that run. */
static void begin_running(struct sched *s, struct sched_answer *a) {
    a->is_fetched = false;
    sched_list_remove(&s->waiting, a);
    sched_list_insert(&s->running, a);
    if (a->report.start_seconds == 0) {
        a->report.start_seconds = seconds_now() - a->request->submitted;
        a->started_at = s->counters.steps;
    }
}

/* The first answer of the same request that waits. */
static struct sched_answer *waiting_sibling(const struct sched *s, const struct sched_answer *a) {
    struct sched_answer *other = s->waiting.first;
    while (other && (other == a || other->request != a->request))
        other = other->next;
    return other;
}

static int mark_at(const struct sched_answer *a, uint32_t n) {
    return n > a->n_found ? sluice_seq_mark(a->seq, n) : SLUICE_OK;
}

/* Marks where the next request is likely to continue: snapshots are kept there. The prompt's own
 * mark is before its last token: the same prompt, sent again, has to process one. */
static int mark(const struct sched_answer *a) {
    const struct sched_request *q = &a->request->asked;
    int status = sluice_seq_mark_turns(a->seq);
    for (uint32_t i = 0; !status && i < q->n_marks; i++)
        status = mark_at(a, q->marks[i]);
    return status ? status : mark_at(a, a->report.n_prompt - 1);
}

static void count_reuse(struct sched *s, const struct sluice_reuse *reuse) {
    s->counters.reused += reuse->tokens;
    s->counters.device += reuse->device;
    s->counters.host += reuse->host;
    s->counters.disk += reuse->disk;
}

/* Feeds an empty sequence the first n tokens, reusing what the engine has cached. */
static int resume(struct sched *s, struct sched_answer *a, uint32_t n) {
    struct sluice_reuse reuse = {0};
    uint32_t known = reusable_tokens(a);
    known = known ? min_u32(known + 1, n) : 0; /* all but the last of these may be reused */
    int status = known ? sluice_seq_resume(a->seq, a->tokens, known, &reuse) : SLUICE_OK;
    if (!status && n > known)
        status = sluice_seq_feed(a->seq, a->tokens + known, n - known);
    if (status)
        return status;
    if (a->report.times_preempted == 0)
        a->report.reuse = reuse;
    count_reuse(s, &reuse);
    a->n_fed = n;
    a->n_found = reuse.tokens;
    return mark(a);
}

static void start(struct sched *s, struct sched_answer *a) {
    a->n_found = 0;
    int status = sluice_seq_open(&a->seq, s->engine);
    if (status) {
        sched_fail_answer(s, a, status);
        return;
    }
    a->is_stem = a->n > 1 && a->report.n_new == 0 && !sched_reads_of(a) && waiting_sibling(s, a);
    begin_running(s, a);
    status = set_up(a);
    if (!status)
        status = resume(s, a, a->n - a->is_stem);
    if (status)
        sched_fail_answer(s, a, status);
}

/* Whether r, which runs, is processing a prefix that `a` needs too, or reports its rows for both.
 */
static bool reads_for(const struct sched *s, const struct sched_answer *r,
                      const struct sched_answer *a) {
    uint32_t n = sched_n_processed(r);
    return (r->request == a->request &&
            (r->is_stem || (sched_reads_of(r) && n < r->report.n_prompt))) ||
           (r->n_fed - n > 1 && common_tokens(s, a, r) > n);
}

/* A prefix that an older answer is processing is waited for, not processed twice. Younger ones are
 * not waited for: there may always be another. */
static bool waits_for_prefix(const struct sched *s, const struct sched_answer *a) {
    if (reusable_tokens(a) < a->n)
        return false;
    for (const struct sched_answer *r = s->running.first; r && r->age < a->age; r = r->next)
        if (reads_for(s, r, a))
            return true;
    return false;
}

/* Prefetches what the disk has of it into host memory, while others run; once: if it is evicted
 * again before the answer starts it is read from disk then. */
static bool waits_for_disk(struct sched *s, struct sched_answer *a) {
    bool is_ready = true;
    uint32_t n = reusable_tokens(a);
    if (n && !a->is_fetched && sluice_engine_fetch(s->engine, a->tokens, n, &is_ready))
        is_ready = true; /* starting says why */
    a->is_fetched |= is_ready;
    return !is_ready;
}

/* Pages it will take for the tokens it has. A page it shares in part is copied before it is written
 * to. */
static uint32_t pages_to_come(const struct sched *s, const struct sched_answer *a) {
    uint32_t n = sched_n_processed(a);
    uint32_t held = n > a->n_found ? div_up(n, s->page) : n / s->page;
    return div_up(a->n, s->page) - held;
}

/* Pages that it may need for tokens it does not have yet. Its last one is never fed. */
static uint32_t pages_to_grow(const struct sched *s, const struct sched_answer *a) {
    return div_up(a->report.n_prompt + a->request->max_tokens - 1, s->page) - div_up(a->n, s->page);
}

/* Whether there are pages for one that needs this many, for those that run, and some for these to
 * grow: one page for every fourth. With one for each, few were ever preempted, and 200 requests on
 * four pages took a fifth more steps. While any lacks a page none starts. One that is alone may
 * have all pages. */
static bool has_room(const struct sched *s, uint32_t needed) {
    struct sluice_pages pages;
    if (s->running.n == 0)
        return true;
    sluice_engine_pages(s->engine, &pages);
    uint32_t growth = 0;
    for (const struct sched_answer *a = s->running.first; a; a = a->next) {
        needed += pages_to_come(s, a);
        growth += pages_to_grow(s, a);
    }
    needed += min_u32(s->running.n / 4, growth);
    return pages.starved == 0 && pages.free >= needed;
}

/* Suspects start one at a time, and nothing else meanwhile. */
static void admit_suspect(struct sched *s) {
    if (sched_find_suspect(&s->running))
        return;
    if (s->running.n == s->n_sequences)
        sched_preempt(s, s->running.last);
    start(s, sched_find_suspect(&s->waiting));
}

/* Those that wait for a prefix or for the disk let others go first; if nothing else could run, the
 * oldest starts without its prefetch. */
void sched_admit(struct sched *s) {
    enum { MAX_LOOKED_AT = 64 }; /* of those that wait: a step must not take long */
    struct sched_answer *oldest = NULL;
    uint32_t n = 0;
    if (s->n_suspects > 0) {
        admit_suspect(s);
        return;
    }
    for (struct sched_answer *a = s->waiting.first, *next; a && s->running.n < s->n_sequences;
         a = next) {
        next = a->next;
        if (waits_for_prefix(s, a)) {
            if (++n == MAX_LOOKED_AT)
                break;
            continue;
        }
        if (!has_room(s, div_up(a->n + 1, s->page) - shared_tokens(s, a) / s->page))
            break;
        if (waits_for_disk(s, a)) {
            oldest = oldest ? oldest : a;
            if (++n == MAX_LOOKED_AT)
                break;
            continue;
        }
        start(s, a);
    }
    if (oldest && s->running.n == 0)
        start(s, oldest);
}

/* ---- several answers of one prompt -------------------------------------------------------- */

/* The prompt is processed but for its last token: the other answers fork from here, as many as
 * there are sequences and pages for. The rest start like any other. */
int sched_branch(struct sched *s, struct sched_answer *stem) {
    enum { PAGES = 2 }; /* a partly filled one, which has to be copied, and the next */
    struct sched_answer *a;
    stem->is_stem = false;
    while (s->running.n < s->n_sequences && has_room(s, PAGES) && (a = waiting_sibling(s, stem))) {
        if (sluice_seq_fork(&a->seq, stem->seq))
            break;
        a->n_fed = a->n_found = stem->n_fed;
        struct sluice_reuse reuse = {.tokens = a->n_fed, .device = a->n_fed, .matched = a->n_fed};
        if (a->report.times_preempted == 0)
            a->report.reuse = reuse;
        count_reuse(s, &reuse);
        begin_running(s, a);
        int status = set_up(a);
        if (status)
            sched_fail_answer(s, a, status);
    }
    return set_up(stem);
}
