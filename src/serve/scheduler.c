/* scheduler.c - who runs when: waiting and running answers, and the step over them.
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
#include "base/hash.h"
#include "base/size.h"
#include "serve/lookup.h"
#include "serve/pace.h"

struct request {
    uint64_t id;                /* 0: free */
    struct sched_request asked; /* its pointers point into `memory` */
    void *memory;               /* hashes, biases, ends, tokens, lookups */
    uint64_t *hashes;           /* (answers, pages of tokens) */
    int32_t *tokens;            /* (answers, n_prompt + max_tokens) */
    char *lookups;       /* (answers) each of lookup_bytes; NULL: its tokens are not drafted */
    uint32_t max_tokens; /* new tokens that fit, and are wanted */
    uint32_t live;
    bool is_cancelled;
    double submitted;
};

struct sched_answer {
    struct request *request;          /* NULL: free */
    struct sched_answer *prev, *next; /* in its list; next also in the list of free ones */
    uint64_t age;                     /* smaller is older */
    int32_t *tokens;                  /* (n_prompt + max_tokens) */
    uint32_t n;
    uint64_t *hashes; /* of each full page of tokens and all before it */
    sluice_seq *seq;  /* NULL: it waits */
    uint32_t n_fed;
    uint32_t n_masked;    /* tokens it had when its sequence got its mask; 0: it has none */
    bool has_mask;        /* it got a mask, not the permission for any token */
    struct lookup lookup; /* where its request has them */
    uint32_t n_drafted;   /* tokens for the next step ... */
    bool is_by_block;     /* ... by the model's draft block */
    uint32_t n_found;     /* tokens that its sequence had, processed, when it was opened */
    bool is_stem;    /* it processes the prompt but for the last token, then others fork from it */
    bool is_cold;    /* it starts without what the engine has cached */
    bool is_fetched; /* it has waited for the disk, and starts whether that helped or not */
    bool is_suspect; /* took part in a failed step; runs alone until it gets a token */
    uint64_t started_at; /* count of steps */
    uint64_t first_at;   /* count of submissions at its first token */
    struct sched_report report;
};

enum { BLOCK_DRAFTS = 8 }; /* most tokens that the model's draft block drafts for an answer */

struct list {
    struct sched_answer *first, *last;
    uint32_t n;
};

struct sched {
    const sluice_model *model;
    sluice_engine *engine;
    struct sluice_facts facts;
    uint32_t context; /* maximum tokens of a sequence: all pages may be fewer than the engine's */
    uint32_t page;    /* tokens of a page */
    uint32_t n_sequences; /* that may run */
    uint32_t n_answers;   /* in the table below: also the number of requests */
    bool has_no_bursts, has_no_reuse;
    double burst_seconds; /* at most; 0: any */
    struct sched_answer *answers;
    struct request *requests;
    struct sched_answer *free_answers;
    uint32_t n_used; /* answers */
    struct list waiting, running;
    uint32_t n_cancelled; /* requests that are marked */
    uint32_t n_suspects;
    uint64_t next_age, next_serial;
    uint32_t drafts;       /* maximum per step; 0: none */
    uint32_t block_drafts; /* maximum for one answer by the model's own block; 0: it is not used */
    bool has_lookup;       /* drafts come from the text, too */
    sluice_seq **seqs;     /* (n_sequences) scratch */
    struct guess_record block; /* how often its drafts were right, in all answers */
    double draft_seconds;      /* that the block took for the next step's drafts */
    struct pace pace;
    struct pace_step step; /* the next one */
    bool is_paced;         /* it has no rows of prompts */
    struct err failure;    /* why the engine will never run again; code 0: it will */
    struct sched_counters counters;
};

/* ---- lists -------------------------------------------------------------------------------- */

/* In order of age; searched from the end: usually it is the newest. */
static void list_insert(struct list *list, struct sched_answer *a) {
    struct sched_answer *before = list->last;
    while (before && before->age > a->age)
        before = before->prev;
    a->prev = before;
    a->next = before ? before->next : list->first;
    *(a->prev ? &a->prev->next : &list->first) = a;
    *(a->next ? &a->next->prev : &list->last) = a;
    list->n++;
}

static void list_remove(struct list *list, struct sched_answer *a) {
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

static uint32_t n_processed(const struct sched_answer *a) {
    uint32_t n, waiting;
    sluice_seq_tokens(a->seq, NULL, &n, &waiting);
    return n - waiting;
}

static void close_sequence(struct sched *s, struct sched_answer *a) {
    a->report.n_processed += n_processed(a) - a->n_found;
    sluice_seq_close(a->seq);
    a->seq = NULL;
    a->n_fed = a->n_masked = a->n_drafted = 0;
    a->has_mask = false;
    a->is_stem = false;
    list_remove(&s->running, a);
}

static void preempt(struct sched *s, struct sched_answer *a) {
    close_sequence(s, a);
    list_insert(&s->waiting, a);
    a->report.times_preempted++;
    s->counters.preempted++;
}

static void clear_suspicion(struct sched *s, struct sched_answer *a) {
    s->n_suspects -= a->is_suspect;
    a->is_suspect = false;
}

/* Removes the answer from the tables, and its request with its last answer, then reports. */
static void end(struct sched *s, struct sched_answer *a, enum sched_end why,
                const struct err *err) {
    struct request *r = a->request;
    struct sched_report report;
    sched_end_fn *on_end = r->asked.on_end;
    void *user = r->asked.user;
    if (a->seq)
        close_sequence(s, a);
    else
        list_remove(&s->waiting, a);
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

static void end_list(struct sched *s, struct list *list, enum sched_end why,
                     const struct err *err) {
    for (struct sched_answer *a = list->first, *next; a; a = next) {
        next = a->next;
        end(s, a, why, err);
    }
}

/* What the engine said of its last failure. */
static struct err engine_failure(const struct sched *s, int status) {
    struct err err;
    err_set(&err, status, "%s", sluice_engine_error(s->engine));
    return err;
}

static void fail(struct sched *s, struct sched_answer *a, int status) {
    struct err err = engine_failure(s, status);
    end(s, a, SCHED_END_FAILED, &err);
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

/* ---- tokens and what they have in common -------------------------------------------------- */

static void hash_page(const struct sched *s, struct sched_answer *a, uint32_t i) {
    uint64_t before = i ? a->hashes[i - 1] : 0;
    uint64_t own = hash64_of(a->tokens + i * s->page, s->page * sizeof *a->tokens);
    a->hashes[i] = (before ^ own) * 0x9e3779b97f4a7c15u;
}

static void push_token(const struct sched *s, struct sched_answer *a, int32_t token) {
    a->tokens[a->n++] = token;
    if (a->n % s->page == 0)
        hash_page(s, a, a->n / s->page - 1);
}

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

/* The longest prefix shared with a running answer that has processed it. */
static uint32_t shared_tokens(const struct sched *s, const struct sched_answer *a) {
    uint32_t n = 0;
    for (const struct sched_answer *r = s->running.first; r && !a->is_cold; r = r->next)
        n = max_u32(n, min_u32(common_tokens(s, a, r), n_processed(r)));
    return n;
}

/* ---- rows of the prompt that are handed out ----------------------------------------------- */

/* Of several answers the first processes the prompt for all. */
static unsigned reads_of(const struct sched_answer *a) {
    return a->report.answer == 0 ? a->request->asked.reads : 0;
}

static bool reads_all(const struct sched_answer *a) {
    return reads_of(a) & (SLUICE_WANT_ALL_LOGITS | SLUICE_WANT_ALL_HIDDEN);
}

static void call_on_rows(const struct sched_answer *a) {
    struct sched_rows rows = {0};
    uint32_t n_logits = 0, n_hidden = 0;
    if (!reads_of(a) || sluice_seq_logits(a->seq, &rows.logits, &n_logits) ||
        sluice_seq_hidden(a->seq, &rows.hidden, &n_hidden))
        return;
    rows.n = max_u32(n_logits, n_hidden);
    rows.first = n_processed(a) - rows.n;
    if (rows.n > 0)
        a->request->asked.on_rows(a->request->asked.user, &rows);
}

/* ---- submit ------------------------------------------------------------------------------- */

static int check_tokens(const struct sched *s, const struct sched_request *q, struct err *err) {
    for (size_t i = 0; i < q->n_prompt; i++)
        if (q->prompt[i] < 0 || q->prompt[i] >= s->facts.n_logits)
            return err_set(err, SLUICE_ERR_ARGUMENT, "token %d at place %zu, expected 0 to %d",
                           q->prompt[i], i, s->facts.n_logits - 1);
    return SLUICE_OK;
}

static int check_marks(const struct sched_request *q, struct err *err) {
    if (q->n_marks > SCHED_MARKS)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%u marks, expected at most %d", q->n_marks,
                       SCHED_MARKS);
    for (uint32_t i = 0; i < q->n_marks; i++)
        if (q->marks[i] >= q->n_prompt)
            return err_set(err, SLUICE_ERR_ARGUMENT,
                           "a mark after %u tokens, expected fewer than the prompt's %zu",
                           q->marks[i], q->n_prompt);
    return SLUICE_OK;
}

static int check_request(const struct sched *s, const struct sched_request *q, struct err *err) {
    if (s->failure.code)
        return err_set(err, s->failure.code, "%s", s->failure.text);
    if (!q->prompt || q->n_prompt == 0)
        return err_set(err, SLUICE_ERR_ARGUMENT, "the prompt is empty, expected tokens");
    if (q->max_tokens == 0)
        return err_set(err, SLUICE_ERR_ARGUMENT, "0 new tokens, expected at least 1");
    if (q->sampling.n_biases > SLUICE_MAX_BIASES || (q->sampling.n_biases && !q->sampling.biases))
        return err_set(err, SLUICE_ERR_ARGUMENT, "%zu logit biases, expected at most %d",
                       q->sampling.n_biases, SLUICE_MAX_BIASES);
    if (q->answers > s->n_answers)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%u answers, expected at most %u", q->answers,
                       s->n_answers);
    if (q->n_prompt > s->context)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "the prompt has %zu tokens, expected at most %u: the context, or all pages "
                       "of the KV cache",
                       q->n_prompt, s->context);
    if (s->n_used + max_u32(q->answers, 1) > s->n_answers)
        return err_set(err, SLUICE_ERR_MEMORY,
                       "the queue is full: %u answers wait or run, expected fewer than %u",
                       s->n_used, s->n_answers);
    int status = check_marks(q, err);
    return status ? status : check_tokens(s, q, err);
}

/* A free place for a request. */
static struct request *find_place(struct sched *s) {
    uint32_t i = (uint32_t)(s->next_serial % s->n_answers);
    while (s->requests[i].id)
        i = (i + 1) % s->n_answers;
    return &s->requests[i];
}

/* The request's memory: a copy of what its pointers point to, and space for its answers. */
static bool copy_request(const struct sched *s, struct request *r, const struct sched_request *q) {
    size_t n_tokens = q->n_prompt + r->max_tokens, answers = max_u32(q->answers, 1);
    size_t hash_bytes = answers * (n_tokens / s->page) * sizeof(uint64_t);
    size_t bias_bytes = q->sampling.n_biases * sizeof *q->sampling.biases;
    size_t end_bytes = q->n_ends * sizeof *q->ends;
    size_t token_bytes = answers * n_tokens * sizeof(int32_t);
    bool has_lookups = s->drafts && (s->has_lookup || s->block_drafts) && !q->wants_logits &&
                       !q->reads && !q->on_mask;
    size_t lookup = has_lookups ? answers * lookup_bytes((uint32_t)n_tokens) : 0;
    char *at = malloc(hash_bytes + bias_bytes + end_bytes + token_bytes + lookup);
    if (!at)
        return false;
    r->asked = *q;
    r->asked.answers = (uint32_t)answers;
    r->memory = r->hashes = (uint64_t *)at;
    if (q->sampling.n_biases)
        r->asked.sampling.biases = memcpy(at + hash_bytes, q->sampling.biases, bias_bytes);
    if (q->n_ends)
        r->asked.ends = memcpy(at + hash_bytes + bias_bytes, q->ends, end_bytes);
    r->tokens = (int32_t *)(at + hash_bytes + bias_bytes + end_bytes);
    r->lookups = has_lookups ? (char *)r->tokens + token_bytes : NULL;
    return true;
}

static void add_answer(struct sched *s, struct request *r, uint32_t number,
                       const struct sched_request *q) {
    struct sched_answer *a = s->free_answers;
    size_t n_tokens = q->n_prompt + r->max_tokens;
    s->free_answers = a->next;
    *a = (struct sched_answer){
        .request = r,
        .age = q->age ? q->age : s->next_age++,
        .tokens = r->tokens + number * n_tokens,
        .hashes = r->hashes + number * (n_tokens / s->page),
        .n = (uint32_t)q->n_prompt,
        .report = {.request = r->id,
                   .answer = number,
                   .end_token = -1,
                   .n_prompt = (uint32_t)q->n_prompt},
    };
    a->is_cold = s->has_no_reuse || reads_all(a);
    memcpy(a->tokens, q->prompt, q->n_prompt * sizeof *q->prompt);
    for (uint32_t i = 0; i < a->n / s->page; i++)
        hash_page(s, a, i);
    if (r->lookups)
        lookup_init(&a->lookup, r->lookups + number * lookup_bytes((uint32_t)n_tokens),
                    (uint32_t)n_tokens);
    s->n_used++;
    list_insert(&s->waiting, a);
}

int sched_submit(struct sched *s, const struct sched_request *q, uint64_t *id, struct err *err) {
    int status = check_request(s, q, err);
    *id = 0;
    if (status) {
        s->counters.refused++;
        return status;
    }
    struct request *r = find_place(s);
    *r = (struct request){.submitted = seconds_now()};
    /* The last token of an answer is never fed, so it needs no place in the context. */
    r->max_tokens = min_u32(q->max_tokens, s->context - (uint32_t)q->n_prompt + 1);
    if (!copy_request(s, r, q)) {
        s->counters.refused++;
        return err_memory(err, "a request");
    }
    r->id = s->next_serial++ * s->n_answers + (uint64_t)(r - s->requests);
    r->live = r->asked.answers;
    for (uint32_t i = 0; i < r->live; i++)
        add_answer(s, r, i, q);
    s->counters.requests += q->age == 0;
    *id = r->id;
    return SLUICE_OK;
}

/* ---- cancel ------------------------------------------------------------------------------- */

bool sched_cancel(struct sched *s, uint64_t id) {
    struct request *r = &s->requests[id % s->n_answers];
    if (id == 0 || r->id != id || r->is_cancelled)
        return false;
    r->is_cancelled = true;
    s->n_cancelled++;
    return true;
}

static void sweep_list(struct sched *s, struct list *list) {
    for (struct sched_answer *a = list->first, *next; a; a = next) {
        next = a->next;
        if (a->request->is_cancelled)
            end(s, a, SCHED_END_CANCELLED, NULL);
    }
}

static bool sweep(struct sched *s) {
    bool has_ended = s->n_cancelled > 0;
    while (s->n_cancelled > 0) { /* reports may cancel further ones */
        s->n_cancelled = 0;
        sweep_list(s, &s->running);
        sweep_list(s, &s->waiting);
    }
    return has_ended;
}

/* ---- start -------------------------------------------------------------------------------- */

static int set_up(struct sched_answer *a) {
    const struct sched_request *q = &a->request->asked;
    struct sluice_sampling sampling = q->sampling;
    unsigned wants = SLUICE_WANT_TOKEN | (q->wants_logits ? SLUICE_WANT_LOGITS : 0) | reads_of(a);
    sampling.seed += a->report.answer;
    int status = sluice_seq_want(a->seq, a->is_stem ? 0 : wants);
    return status ? status : sluice_seq_set_sampling(a->seq, &sampling);
}

/* Puts an answer whose sequence was just opened among those that run. */
static void begin_running(struct sched *s, struct sched_answer *a) {
    a->is_fetched = false;
    list_remove(&s->waiting, a);
    list_insert(&s->running, a);
    if (a->report.start_seconds == 0) {
        a->report.start_seconds = seconds_now() - a->request->submitted;
        a->started_at = s->counters.steps;
    }
}

static int feed_to(struct sched_answer *a, uint32_t n) {
    int status = sluice_seq_feed(a->seq, a->tokens + a->n_fed, n - a->n_fed);
    if (!status)
        a->n_fed = n;
    return status;
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
    int status = a->is_cold ? sluice_seq_feed(a->seq, a->tokens, n)
                            : sluice_seq_resume(a->seq, a->tokens, n, &reuse);
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
        fail(s, a, status);
        return;
    }
    a->is_stem = a->n > 1 && a->report.n_new == 0 && !reads_of(a) && waiting_sibling(s, a);
    begin_running(s, a);
    status = set_up(a);
    if (!status)
        status = resume(s, a, a->n - a->is_stem);
    if (status)
        fail(s, a, status);
}

/* Whether r, which runs, is processing a prefix that `a` needs too, or reports its rows for both.
 */
static bool reads_for(const struct sched *s, const struct sched_answer *r,
                      const struct sched_answer *a) {
    uint32_t n = n_processed(r);
    return (r->request == a->request && (r->is_stem || (reads_of(r) && n < r->report.n_prompt))) ||
           (r->n_fed - n > 1 && common_tokens(s, a, r) > n);
}

/* A prefix that an older answer is processing is waited for, not processed twice. Younger ones are
 * not waited for: there may always be another. */
static bool waits_for_prefix(const struct sched *s, const struct sched_answer *a) {
    for (const struct sched_answer *r = s->running.first; r && r->age < a->age; r = r->next)
        if (!a->is_cold && reads_for(s, r, a))
            return true;
    return false;
}

/* Prefetches what the disk has of it into host memory, while others run; once: if it is evicted
 * again before the answer starts it is read from disk then. */
static bool waits_for_disk(struct sched *s, struct sched_answer *a) {
    bool is_ready = true;
    if (!a->is_cold && !a->is_fetched && sluice_engine_fetch(s->engine, a->tokens, a->n, &is_ready))
        is_ready = true; /* starting says why */
    a->is_fetched |= is_ready;
    return !is_ready;
}

/* Pages it will take for the tokens it has. A page it shares in part is copied before it is written
 * to. */
static uint32_t pages_to_come(const struct sched *s, const struct sched_answer *a) {
    uint32_t n = n_processed(a);
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

static struct sched_answer *find_suspect(const struct list *list) {
    struct sched_answer *a = list->first;
    while (a && !a->is_suspect)
        a = a->next;
    return a;
}

/* Suspects start one at a time, and nothing else meanwhile. */
static void admit_suspect(struct sched *s) {
    if (find_suspect(&s->running))
        return;
    if (s->running.n == s->n_sequences)
        preempt(s, s->running.last);
    start(s, find_suspect(&s->waiting));
}

/* Those that wait for a prefix or for the disk let others go first; if nothing else could run, the
 * oldest starts without its prefetch. */
static void admit(struct sched *s) {
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
static int branch(struct sched *s, struct sched_answer *stem) {
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
            fail(s, a, status);
    }
    return set_up(stem);
}

/* ---- a step ------------------------------------------------------------------------------- */

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

/* Feeds the answer's last token to its sequence. */
static int feed_one(struct sched *s, struct sched_answer *a) {
    if (a->is_stem && n_processed(a) < a->n_fed)
        return SLUICE_OK;
    int status = a->is_stem ? branch(s, a) : SLUICE_OK;
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
            fail(s, a, status);
    }
}

/* How many of its tokens wait. */
static uint32_t waiting_of(const struct sched_answer *a) {
    uint32_t waiting;
    sluice_seq_tokens(a->seq, NULL, NULL, &waiting);
    return waiting;
}

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
    return a->request->lookups && !a->n_drafted && waiting_of(a) == 1 && max_drafts(a, 1);
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
static void draft(struct sched *s) {
    uint32_t n = 0, drafts_left = s->drafts;
    s->is_paced = true;
    s->draft_seconds = 0;
    for (const struct sched_answer *a = s->running.first; a; a = a->next) {
        uint32_t waiting = waiting_of(a);
        s->is_paced &= waiting <= 1;
        n += waiting;
    }
    s->step = (struct pace_step){n, n};
    for (struct sched_answer *a = s->running.first; a && s->is_paced && drafts_left; a = a->next)
        if (waiting_of(a) == 1)
            drafts_left -= draft_by_lookup(s, a, drafts_left);
    if (s->is_paced && s->block_drafts && drafts_left)
        draft_by_block(s, drafts_left);
}

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
        end(s, a, SCHED_END_TOKEN, NULL);
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
        end(s, a, SCHED_END_STOPPED, NULL);
    else if (a->report.n_new == r->max_tokens)
        end(s, a, r->max_tokens == r->asked.max_tokens ? SCHED_END_MAX_TOKENS : SCHED_END_FULL,
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
    a->report.n_processed += n_processed(a) - a->n_found;
    a->n_fed = n > a->n ? a->n : a->n - 1;
    int status = sluice_seq_rewind(a->seq, a->n_fed);
    a->n_found = n_processed(a);
    if (status)
        fail(s, a, status);
}

/* Of a step that fed this many tokens. */
static void count_drafts(struct sched *s, struct sched_answer *a, uint32_t n_fed) {
    uint32_t n_kept = a->n_drafted ? n_fed : 0;
    if (a->is_by_block)
        pace_learn(&s->block, n_kept, a->n_drafted);
    a->report.n_drafted += a->n_drafted;
    a->report.n_kept += n_kept;
    s->counters.drafted += a->n_drafted;
    s->counters.drafts_kept += n_kept;
    a->n_drafted = 0;
}

/* What the step sampled for an answer: one token, or those of a burst
 * or of drafts, which are fed already. */
static void take_all(struct sched *s, struct sched_answer *a, double now) {
    const int32_t *tokens;
    uint32_t n;
    int32_t token = sluice_seq_token(a->seq);
    if (token < 0 || a->n_fed < a->n) /* none, or one that was handed out before */
        return;
    sluice_seq_tokens(a->seq, &tokens, &n, NULL);
    count_drafts(s, a, n - a->n_fed);
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

static void hand_out(struct sched *s) {
    double now = seconds_now();
    for (struct sched_answer *a = s->running.first, *next; a; a = next) {
        next = a->next;
        if (a->is_stem || a->request->is_cancelled) /* maybe by one before it in this list */
            continue;
        call_on_rows(a);
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
        preempt(s, a);
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
        preempt(s, a);
    }
}

/* None of those that run found a page. One that is alone may hold the page it lacks itself, by what
 * it reused: then it starts again without reuse. */
static void run_out(struct sched *s, int status) {
    struct sched_answer *a = youngest(s);
    bool is_alone = s->running.n == 1;
    if (is_alone && a->is_cold) {
        fail(s, a, status);
        return;
    }
    a->is_cold = is_alone || s->has_no_reuse || reads_all(a);
    preempt(s, a);
}

/* After a step of the engine that failed. A cancelled step is repeated. */
static int recover(struct sched *s, int status) {
    struct sched_answer *suspect = find_suspect(&s->running);
    if (status == SLUICE_ERR_CANCELLED)
        return SLUICE_OK;
    if (status == SLUICE_ERR_DEVICE)
        return end_all(s, status);
    if (status == SLUICE_ERR_MEMORY)
        run_out(s, status);
    else if (suspect || s->running.n == 1)
        fail(s, suspect ? suspect : s->running.first, status);
    else
        suspect_all(s);
    return SLUICE_OK;
}

/* ---- the step ----------------------------------------------------------------------------- */

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
    bool has_swept = sweep(s);
    admit(s);
    feed(s);
    draft(s);
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

static const char *broken_list(const struct list *list, bool runs) {
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
