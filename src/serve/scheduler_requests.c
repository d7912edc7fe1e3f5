/* scheduler_requests.c - requests: checked, copied, entered with their answers; and cancelled.
 *
 * The memory of a request is one block, which is freed when its last answer ends. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/size.h"
#include "serve/scheduler_internal.h"

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
    if (q->sampling.n_biases > SLUICE_MAX_BIASES)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%zu logit biases, expected at most %d",
                       q->sampling.n_biases, SLUICE_MAX_BIASES);
    if (q->sampling.n_biases && !q->sampling.biases)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%zu logit biases, but their pointer is NULL",
                       q->sampling.n_biases);
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

/* An unused element of the table of requests. */
static struct request *find_free(struct sched *s) {
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

void sched_hash_page(const struct sched *s, struct sched_answer *a, uint32_t i) {
    uint64_t before = i ? a->hashes[i - 1] : 0;
    uint64_t own = hash64_of(a->tokens + i * s->page, s->page * sizeof *a->tokens);
    a->hashes[i] = (before ^ own) * 0x9e3779b97f4a7c15u;
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
    a->is_cold = s->has_no_reuse;
    memcpy(a->tokens, q->prompt, q->n_prompt * sizeof *q->prompt);
    for (uint32_t i = 0; i < a->n / s->page; i++)
        sched_hash_page(s, a, i);
    if (r->lookups)
        lookup_init(&a->lookup, r->lookups + number * lookup_bytes((uint32_t)n_tokens),
                    (uint32_t)n_tokens);
    s->n_used++;
    sched_list_insert(&s->waiting, a);
}

int sched_submit(struct sched *s, const struct sched_request *q, uint64_t *id, struct err *err) {
    int status = check_request(s, q, err);
    *id = 0;
    if (status) {
        s->counters.refused++;
        return status;
    }
    struct request *r = find_free(s);
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

static void sweep_list(struct sched *s, struct answer_list *list) {
    for (struct sched_answer *a = list->first, *next; a; a = next) {
        next = a->next;
        if (a->request->is_cancelled)
            sched_end_answer(s, a, SCHED_END_CANCELLED, NULL);
    }
}

bool sched_sweep(struct sched *s) {
    bool has_ended = s->n_cancelled > 0;
    while (s->n_cancelled > 0) { /* reports may cancel further ones */
        s->n_cancelled = 0;
        sweep_list(s, &s->running);
        sweep_list(s, &s->waiting);
    }
    return has_ended;
}
