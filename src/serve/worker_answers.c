/* worker_answers.c - answers as they are made: requests of the scheduler from a job's prompts,
 * events from their tokens.
 *
 * A prompt is one request, with all its answers. One whose thinking is cut short ends there, and
 * goes on as a request of its own, whose prompt is all there is so far. Of a job with many prompts
 * those that do not run yet take the places of those that have ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/size.h"
#include "serve/worker_internal.h"

/* ---- thinking ----------------------------------------------------------------------------- */

/* False: nothing may follow this token. */
static bool follow(struct job_choice *c, int32_t token) {
    bool was_thinking = c->follow.is_thinking;
    enum follow_kind kind = follow_token(&c->follow, token);
    c->n_thought += was_thinking && c->follow.is_thinking;
    return kind != FOLLOW_LAST;
}

/* Keeps the token, to continue from it; true when the budget is used up. */
static bool spend_thought(struct job_choice *c, int32_t token) {
    const struct job_thinking *t = &c->job->thinking;
    if (!array_grow(&c->tokens, c->n_new, &c->capacity, sizeof *c->tokens)) {
        c->lacks_memory = true;
        return false;
    }
    c->tokens[c->n_new] = token;
    return c->follow.is_thinking && c->n_thought >= t->budget && t->n_closing > 0;
}

static bool has_budget(const struct job *job) {
    return job->thinking.budget >= 0 && job->thinking.close >= 0;
}

/* Whether the end of its thinking fits, and a token after it. */
static bool has_room_to_close(const struct worker *w, const struct job_choice *c) {
    const struct job *job = c->job;
    size_t n = c->n_new + job->thinking.n_closing;
    return n < job->max_tokens && job->prompts[c->number / job->answers].n + n < w->context;
}

/* ---- tokens, handed out ------------------------------------------------------------------- */

/* A request of the scheduler: the choices of a prompt, or one that continues after its thinking. */
struct job_request {
    struct job *job;
    uint32_t prompt, first; /* its first choice */
    uint64_t *id;           /* in the job's requests */
};

/* False when memory ran out: the answer has to end. */
static bool append(struct job *job, struct job_event event) {
    bool has_room = job_append(job, event);
    worker_touch(job->worker, job);
    return has_room;
}

/* The token goes to the job's reader. False when memory ran out. */
static bool tell(struct worker *w, struct job_choice *c, int32_t token, const float *logits) {
    struct job *job = c->job;
    struct job_event event = {.choice = c->number, .token = token};
    bool wants_logprobs = job->n_top >= 0 && logits;
    if (wants_logprobs)
        event.logprobs = worker_logprobs(w, logits, token, job->n_top);
    if (c->n_new > 0)
        histogram_add(&w->metrics->between_tokens, w->now - c->last);
    c->last = w->now;
    bool is_told = (event.logprobs || !wants_logprobs) && append(job, event);
    if (!is_told)
        free(event.logprobs);
    c->lacks_memory |= !is_told;
    return is_told;
}

static bool hand_out(struct worker *w, struct job_choice *c, int32_t token, const float *logits) {
    const struct job *job = c->job;
    if (job->is_enough[c->number] || job->lacks_memory)
        return false;
    bool is_told = tell(w, c, token, logits);
    bool goes_on = follow(c, token);
    bool is_used_up = has_budget(job) && spend_thought(c, token);
    c->n_new++;
    c->is_to_close = is_used_up && has_room_to_close(w, c);
    return is_told && goes_on && !c->is_to_close && !c->lacks_memory;
}

static struct job_choice *choice_of(struct job_request *q, uint32_t answer) {
    return &q->job->choices[q->first + answer];
}

static bool on_token(void *user, const struct sched_token *token) {
    struct job_request *q = user;
    struct worker *w = q->job->worker;
    struct job_choice *c = choice_of(q, token->answer);
    if (w->now == 0)
        w->now = seconds_now();
    if (token->index == 0 && token->answer == 0 && !c->has_gone_on)
        q->job->n_cached += token->n_reused;
    return hand_out(w, c, token->token, token->logits);
}

static const uint32_t *on_mask(void *user, uint32_t answer) {
    struct job_request *q = user;
    return follow_mask(&choice_of(q, answer)->follow);
}

static const uint32_t *on_keeps(void *user, uint32_t answer) {
    struct job_request *q = user;
    return follow_keeps(&choice_of(q, answer)->follow);
}

/* ---- rows of prompts ---------------------------------------------------------------------- */

static void tell_prompt(struct worker *w, struct job *job, const struct job_prompt *p,
                        const struct sched_rows *rows) {
    for (uint32_t i = 0; i < rows->n; i++) {
        size_t next = (size_t)rows->first + i + 1;
        if (next >= p->n)
            break;
        p->logprobs[next] =
            worker_logprobs(w, rows->logits + (size_t)i * w->n_logits, p->tokens[next], job->n_top);
        job->lacks_memory |= !p->logprobs[next];
    }
}

static void pool(const struct job_request *q, const struct sched_rows *rows) {
    const struct job *job = q->job;
    uint32_t width = job->worker->width, n_prompt = (uint32_t)job->prompts[q->prompt].n;
    uint32_t end = min_u32(rows->first + rows->n, n_prompt);
    float *to = job->hidden + (size_t)q->prompt * width;
    if (rows->first >= end)
        return;
    if (rows->first == 0 || !job->pools_mean)
        memset(to, 0, width * sizeof *to);
    for (uint32_t r = job->pools_mean ? rows->first : end - 1; r < end; r++)
        for (uint32_t i = 0; i < width; i++)
            to[i] += rows->hidden[(size_t)(r - rows->first) * width + i] /
                     (job->pools_mean ? (float)n_prompt : 1);
}

static void on_rows(void *user, const struct sched_rows *rows) {
    const struct job_request *q = user;
    const struct job_prompt *p = &q->job->prompts[q->prompt];
    if (q->job->hidden && rows->hidden)
        pool(q, rows);
    if (p->logprobs && rows->logits)
        tell_prompt(q->job->worker, q->job, p, rows);
}

static bool is_of_prompt(const struct job_request *q) {
    return q->id < q->job->requests + q->job->n_prompts;
}

/* One that continues after its thinking needs nothing of its prompt, whose rows were all read. */
static unsigned reads_of(const struct job_request *q) {
    const struct job *job = q->job;
    return !is_of_prompt(q) ? 0
           : job->hidden    ? (job->pools_mean ? SLUICE_WANT_ALL_HIDDEN : SLUICE_WANT_HIDDEN)
           : job->prompts[q->prompt].logprobs ? SLUICE_WANT_ALL_LOGITS
                                              : 0;
}

/* ---- the end of an answer ----------------------------------------------------------------- */

/* A prompt counts once, for its first answer. */
static void count_prompt(const struct job_request *q, const struct sched_report *r) {
    struct metrics *m = q->job->worker->metrics;
    if (r->answer == 0 && is_of_prompt(q)) {
        m->prompt_tokens += r->n_prompt;
        m->cached_device += r->reuse.device;
        m->cached_host += r->reuse.host;
        m->cached_disk += r->reuse.disk;
    }
}

static void count_end(struct metrics *m, const struct sched_report *r) {
    if (r->first_seconds > 0)
        histogram_add(&m->first_token, r->first_seconds);
    histogram_add(&m->whole, r->seconds);
}

void worker_count_ended(struct job *job, uint32_t n) {
    struct worker *w = job->worker;
    job->n_left -= n;
    uint32_t kept = min_u32(job->n_slots, job->n_left);
    pthread_mutex_lock(&w->lock);
    w->state.n_answers -= job->n_slots - kept;
    pthread_mutex_unlock(&w->lock);
    job->n_slots = kept;
}

/* Adds up the reports of both parts of an answer whose thinking was cut short. */
static void add_report(struct sched_report *r, const struct sched_report *before) {
    r->n_prompt = before->n_prompt;
    r->reuse = before->reuse;
    r->n_processed += before->n_processed;
    r->n_drafted += before->n_drafted;
    r->n_kept += before->n_kept;
    r->times_preempted += before->times_preempted;
    r->steps += before->steps;
    r->submissions += before->submissions;
    r->start_seconds = before->start_seconds;
    r->first_seconds = before->first_seconds;
    r->seconds += before->seconds;
}

static void end_choice(struct job_choice *c, const struct sched_report *report) {
    struct job *job = c->job;
    struct job_end *end = &job->ends[c->number];
    struct err fault;
    end->report = *report;
    if (c->has_gone_on)
        add_report(&end->report, &c->before);
    strncpy(end->error, report->error, sizeof end->error - 1);
    if (report->end == SCHED_END_FAILED && follow_fault(&c->follow, &fault)) {
        end->report.status = fault.code; /* of the engine: the mask allows nothing */
        snprintf(end->error, sizeof end->error, "%s", fault.text);
    }
    end->report.error = end->error;
    end->report.n_new = c->n_new;
    follow_close(&c->follow);
    append(job, (struct job_event){.choice = c->number, .token = JOB_END});
    worker_count_ended(job, 1);
}

/* ---- requests ----------------------------------------------------------------------------- */

static void on_end(void *user, const struct sched_report *report);

/* Fills in what all requests of the job have in common. The scheduler calls on_end once for each
 * answer of a request that it accepted. */
static int submit_request(struct worker *w, struct job_request made, struct sched_request r,
                          struct err *err) {
    static const int32_t none[1];
    const struct job *job = made.job;
    struct job_request *q = malloc(sizeof *q); /* until the last on_end */
    if (!q)
        return err_memory(err, "a request");
    *q = made;
    r.sampling = job->sampling;
    r.sampling.seed += q->first;
    r.ends = job->ignores_ends && !job->format ? none : NULL; /* its mask has none */
    r.wants_logits = job->n_top >= 0;
    r.reads = reads_of(q);
    r.on_rows = on_rows;
    r.on_token = on_token;
    r.on_mask = job->format ? on_mask : NULL;
    r.on_keeps = on_keeps;
    r.on_end = on_end;
    r.user = q;
    int status = sched_submit(w->sched, &r, q->id, err);
    if (status)
        free(q);
    return status;
}

int worker_open_follows(const struct worker *w, struct job *job, uint32_t n_prompts,
                        struct err *err) {
    const struct job_thinking *t = &job->thinking;
    int status = SLUICE_OK;
    for (; !status && job->n_followed < n_prompts * job->answers; job->n_followed++) {
        struct follow *f = &job->choices[job->n_followed].follow;
        status = follow_open(f, job->format, w->n_tokens, &job->budget, err);
        f->open = t->open;
        f->close = t->close;
        f->may_open = t->may_open;
        f->is_thinking = t->is_open;
        f->no_ends = w->no_ends;
        f->ignores_ends = job->ignores_ends;
        f->call = job->call;
        f->model = w->model;
    }
    return status;
}

int worker_start_prompt(struct worker *w, struct job *job, uint32_t p, struct err *err) {
    int status = worker_open_follows(w, job, p + 1, err);
    if (status)
        return status;
    const struct job_request made = {
        .job = job, .prompt = p, .first = p * job->answers, .id = &job->requests[p]};
    const struct sched_request request = {
        .prompt = job->prompts[p].tokens,
        .n_prompt = job->prompts[p].n,
        .max_tokens = job->max_tokens,
        .answers = job->answers,
    };
    return submit_request(w, made, request, err);
}

/* The answer's tokens so far, with its thinking closed, after its prompt's; what closes it goes to
 * the job's reader. NULL: memory ran out; to free. *n: how many. */
static int32_t *close_thinking(struct worker *w, struct job_choice *c, const struct job_prompt *p,
                               size_t *n) {
    const struct job_thinking *t = &c->job->thinking;
    bool is_good = true;
    *n = p->n + c->n_new + t->n_closing;
    int32_t *tokens = malloc(*n * sizeof *tokens);
    if (!tokens)
        return NULL;
    memcpy(tokens, p->tokens, p->n * sizeof *tokens);
    memcpy(tokens + p->n, c->tokens, c->n_new * sizeof *tokens);
    memcpy(tokens + p->n + c->n_new, t->closing, t->n_closing * sizeof *tokens);
    c->is_to_close = c->follow.is_thinking = false;
    for (size_t i = 0; is_good && i < t->n_closing; i++, c->n_new++)
        is_good = tell(w, c, t->closing[i], NULL); /* a format begins after it */
    if (is_good)
        return tokens;
    free(tokens);
    return NULL;
}

/* Continues with a new request, whose prompt is the answer so far. */
static int go_on(struct worker *w, struct job_choice *c, uint32_t prompt,
                 const struct sched_report *report, struct err *err) {
    struct job *job = c->job;
    size_t n;
    int32_t *tokens = close_thinking(w, c, &job->prompts[prompt], &n);
    if (!tokens)
        return err_memory(err, "an answer");
    const struct job_request made = {.job = job,
                                     .prompt = prompt,
                                     .first = c->number,
                                     .id = &job->requests[job->n_prompts + c->number]};
    const struct sched_request request = {
        .prompt = tokens,
        .n_prompt = n,
        .max_tokens = job->max_tokens - c->n_new,
        .age = report->age,
    };
    int status = submit_request(w, made, request, err);
    free(tokens);
    if (status)
        return status;
    c->before = *report;
    c->has_gone_on = true;
    return SLUICE_OK;
}

/* Starts the next prompt in the place of one that ended; if that was cancelled or failed, or the
 * next cannot start, ends all that were not started. */
static void start_next(struct worker *w, struct job *job, const struct sched_report *before) {
    struct err err = {0};
    if (job->n_started == job->n_prompts)
        return;
    struct sched_report end = {.end = SCHED_END_CANCELLED, .end_token = -1, .error = ""};
    bool is_over =
        job->is_cancelled || before->end == SCHED_END_CANCELLED || before->end == SCHED_END_FAILED;
    if (before->end == SCHED_END_FAILED) {
        end.end = SCHED_END_FAILED;
        end.status = before->status;
        end.error = before->error;
    }
    if (!is_over && (end.status = worker_start_prompt(w, job, job->n_started, &err))) {
        end.end = SCHED_END_FAILED;
        end.error = err.text;
        is_over = true;
    }
    if (!is_over) {
        job->n_started++;
        return;
    }
    for (; job->n_started < job->n_prompts; job->n_started++)
        for (uint32_t i = 0; i < job->answers; i++)
            end_choice(&job->choices[job->n_started * job->answers + i], &end);
}

static void on_end(void *user, const struct sched_report *report) {
    struct job_request *q = user;
    struct job *job = q->job;
    struct worker *w = job->worker;
    struct job_choice *c = choice_of(q, report->answer);
    struct sched_report last = *report;
    struct err err = {0};
    bool goes_on = c->is_to_close && report->end == SCHED_END_STOPPED && !job->is_cancelled;
    count_prompt(q, report);
    if ((c->lacks_memory || job->lacks_memory) && report->end != SCHED_END_FAILED) {
        last.end = SCHED_END_FAILED;
        last.status = SLUICE_ERR_MEMORY;
        last.error = "out of memory for a token";
        goes_on = false;
    }
    if (goes_on && (last.status = go_on(w, c, q->prompt, report, &err))) {
        last.end = SCHED_END_FAILED;
        last.error = err.text;
        goes_on = false;
    }
    if (!goes_on) {
        end_choice(c, &last);
        count_end(w->metrics, &job->ends[c->number].report);
    }
    if (report->answers_left > 0)
        return;
    bool is_prompt = is_of_prompt(q);
    *q->id = 0;
    free(q);
    if (is_prompt)
        start_next(w, job, report);
}
