/* worker.c - the thread that owns the engine and its scheduler. */
#include "serve/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log_sum.h"
#include "base/size.h"
#include "base/thread.h"
#include "serve/follow.h"

/* One answer that is being made. */
struct job_choice {
    struct job *job;
    uint32_t number;
    uint32_t n_new; /* tokens handed out */
    double last;    /* when the last one was */
    /* With a thinking budget: what was handed out, to go on from. */
    int32_t *tokens;
    size_t capacity;
    uint32_t n_thought;
    bool is_to_close;
    struct follow follow;
    struct sched_report before; /* its thinking was cut short: the report of the first part */
    bool has_gone_on;
    bool lacks_memory; /* a token was not handed out */
};

struct worker {
    const sluice_model *model;
    sluice_engine *engine;
    struct sched *sched;
    struct metrics *metrics;
    int32_t n_tokens;
    uint32_t width, n_logits; /* of a hidden state, of a row of logits */
    uint32_t *no_ends;        /* all tokens but those that end an answer */
    uint32_t sequences;       /* answers that run at once */
    uint32_t context;         /* maximum tokens of one */
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock;
    pthread_cond_t wakes;
    struct job *inbox, **inbox_end; /* by `next` */
    struct worker_task *tasks, **tasks_end;
    bool has_cancels, is_closing;
    struct worker_state state;

    /* The thread's own. */
    struct job *jobs;     /* that run, by next and previous */
    struct job **touched; /* a job has at least one answer, so max_answers are enough */
    size_t n_touched;
    double now; /* of the step whose tokens are handed out; 0: not looked at yet */
    struct {
        int32_t token;
        float logit;
    } top[128];
};

/* ---- what a job is told ------------------------------------------------------------------- */

static void touch(struct worker *w, struct job *job) {
    if (job->is_touched)
        return;
    CHECK(w->n_touched < w->state.max_answers);
    job->is_touched = true;
    w->touched[w->n_touched++] = job;
}

/* False when memory ran out: the answer has to end. */
static bool append(struct job *job, struct job_event event) {
    pthread_mutex_lock(&job->lock);
    bool has_room = array_grow(&job->events, job->n_events, &job->capacity, sizeof *job->events);
    if (has_room)
        job->events[job->n_events++] = event;
    pthread_mutex_unlock(&job->lock);
    touch(job->worker, job);
    return has_room;
}

void job_take(struct job *job, struct job_news *news) {
    struct job_event *events = news->events;
    size_t capacity = news->capacity;
    pthread_mutex_lock(&job->lock);
    *news = (struct job_news){job->events, job->n_events, job->capacity, job->is_accepted,
                              job->is_over};
    job->events = events;
    job->capacity = capacity;
    job->n_events = 0;
    pthread_mutex_unlock(&job->lock);
}

void job_news_free(struct job_news *news) {
    for (size_t i = 0; i < news->n_events; i++)
        free(news->events[i].logprobs);
    free(news->events);
    *news = (struct job_news){0};
}

/* ---- log probabilities -------------------------------------------------------------------- */

/* The n likeliest into w->top, best first; of equals the lower id. */
static void find_top(struct worker *w, const float *logits, uint32_t n) {
    uint32_t found = 0;
    for (int32_t t = 0; t < w->n_tokens; t++) {
        if (found == n && !(logits[t] > w->top[n - 1].logit))
            continue;
        uint32_t at = found < n ? found++ : n - 1;
        for (; at > 0 && logits[t] > w->top[at - 1].logit; at--)
            w->top[at] = w->top[at - 1];
        w->top[at].token = t;
        w->top[at].logit = logits[t];
    }
}

static struct job_logprobs *logprobs_of(struct worker *w, const float *logits, int32_t token,
                                        int n_top) {
    uint32_t capacity = sizeof w->top / sizeof *w->top,
             n = (uint32_t)n_top < capacity ? (uint32_t)n_top : capacity;
    n = n < (uint32_t)w->n_tokens ? n : (uint32_t)w->n_tokens;
    struct job_logprobs *out = malloc(sizeof *out + n * sizeof *out->top);
    if (!out)
        return NULL;
    double sum = log_sum_exp(logits, w->n_tokens);
    if (n > 0)
        find_top(w, logits, n);
    out->logprob = (float)((double)logits[token] - sum);
    out->n = n;
    for (uint32_t i = 0; i < n; i++) {
        out->top[i].token = w->top[i].token;
        out->top[i].logprob = (float)((double)w->top[i].logit - sum);
    }
    return out;
}

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

/* ---- callbacks of the scheduler ----------------------------------------------------------- */

/* A request of the scheduler: the choices of a prompt, or one that continues after its thinking. */
struct run {
    struct job *job;
    uint32_t prompt, first; /* its first choice */
    uint64_t *id;           /* in the job's requests */
};

/* The token goes to the job's reader. False when memory ran out. */
static bool tell(struct worker *w, struct job_choice *c, int32_t token, const float *logits) {
    struct job *job = c->job;
    struct job_event event = {.choice = c->number, .token = token};
    bool wants_logprobs = job->n_top >= 0 && logits;
    if (wants_logprobs)
        event.logprobs = logprobs_of(w, logits, token, job->n_top);
    if (c->n_new > 0)
        histogram_add(&w->metrics->between_tokens, w->now - c->last);
    c->last = w->now;
    bool is_told = (event.logprobs || !wants_logprobs) && append(job, event);
    if (!is_told)
        free(event.logprobs);
    c->lacks_memory |= !is_told;
    return is_told;
}

/* Whether the end of its thinking fits, and a token after it. */
static bool has_room_to_close(const struct worker *w, const struct job_choice *c) {
    const struct job *job = c->job;
    size_t n = c->n_new + job->thinking.n_closing;
    return n < job->max_tokens && job->prompts[c->number / job->answers].n + n < w->context;
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

static struct job_choice *choice_of(struct run *run, uint32_t answer) {
    return &run->job->choices[run->first + answer];
}

static bool on_token(void *user, const struct sched_token *token) {
    struct run *run = user;
    struct worker *w = run->job->worker;
    struct job_choice *c = choice_of(run, token->answer);
    if (w->now == 0)
        w->now = seconds_now();
    if (token->index == 0 && token->answer == 0 && !c->has_gone_on)
        run->job->n_cached += token->n_reused;
    return hand_out(w, c, token->token, token->logits);
}

static const uint32_t *on_mask(void *user, uint32_t answer) {
    struct run *run = user;
    return follow_mask(&choice_of(run, answer)->follow);
}

static const uint32_t *on_keeps(void *user, uint32_t answer) {
    struct run *run = user;
    return follow_keeps(&choice_of(run, answer)->follow);
}

/* Each is set once: a reader may have it when the prompt is processed a second time. */
static void tell_prompt(struct worker *w, struct job *job, const struct job_prompt *p,
                        const struct sched_rows *rows) {
    for (uint32_t i = 0; i < rows->n; i++) {
        size_t next = (size_t)rows->first + i + 1;
        if (next >= p->n || p->logprobs[next])
            continue;
        p->logprobs[next] =
            logprobs_of(w, rows->logits + (size_t)i * w->n_logits, p->tokens[next], job->n_top);
        job->lacks_memory |= !p->logprobs[next];
    }
}

/* A prompt that is processed a second time starts over. */
static void pool(const struct run *run, const struct sched_rows *rows) {
    const struct job *job = run->job;
    uint32_t width = job->worker->width, n_prompt = (uint32_t)job->prompts[run->prompt].n;
    uint32_t end = min_u32(rows->first + rows->n, n_prompt);
    float *to = job->hidden + (size_t)run->prompt * width;
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
    const struct run *run = user;
    const struct job_prompt *p = &run->job->prompts[run->prompt];
    if (run->job->hidden && rows->hidden)
        pool(run, rows);
    if (p->logprobs && rows->logits)
        tell_prompt(run->job->worker, run->job, p, rows);
}

static unsigned reads_of(const struct run *run) {
    const struct job *job = run->job;
    return job->hidden ? job->pools_mean ? SLUICE_WANT_ALL_HIDDEN : SLUICE_WANT_HIDDEN
           : job->prompts[run->prompt].logprobs ? SLUICE_WANT_ALL_LOGITS
                                                : 0;
}

static bool is_of_prompt(const struct run *run) {
    return run->id < run->job->requests + run->job->n_prompts;
}

/* A prompt counts once, for its first answer. */
static void count_prompt(const struct run *run, const struct sched_report *r) {
    struct metrics *m = run->job->worker->metrics;
    if (r->answer == 0 && is_of_prompt(run)) {
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

/* This many of its answers are done. Those still to be started take the places of those that ended.
 */
static void count_out(struct job *job, uint32_t n) {
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
    count_out(job, 1);
}

static int start_run(struct worker *w, struct run *run, const struct sched_request *request,
                     struct err *err);
static int start_prompt(struct worker *w, struct job *job, uint32_t p, struct err *err);

/* Continues with a new request: its prompt is the thinking so far, closed. */
static int go_on(struct worker *w, struct job_choice *c, uint32_t prompt,
                 const struct sched_report *report, struct err *err) {
    struct job *job = c->job;
    const struct job_prompt *p = &job->prompts[prompt];
    const struct job_thinking *t = &job->thinking;
    size_t n = p->n + c->n_new + t->n_closing;
    int32_t *tokens = malloc(n * sizeof *tokens);
    struct run *run = calloc(1, sizeof *run);
    bool is_good = tokens && run;
    int status = SLUICE_OK;
    if (is_good) {
        memcpy(tokens, p->tokens, p->n * sizeof *tokens);
        memcpy(tokens + p->n, c->tokens, c->n_new * sizeof *tokens);
        memcpy(tokens + p->n + c->n_new, t->closing, t->n_closing * sizeof *tokens);
        c->is_to_close = c->follow.is_thinking = false;
        for (size_t i = 0; is_good && i < t->n_closing; i++, c->n_new++)
            is_good = tell(w, c, t->closing[i], NULL); /* a format begins after it */
    }
    if (is_good) {
        struct sched_request request = {
            .prompt = tokens,
            .n_prompt = n,
            .max_tokens = job->max_tokens - c->n_new,
            .age = report->age,
            .sampling = job->sampling,
        };
        *run = (struct run){.job = job, .prompt = prompt, .first = c->number};
        run->id = &job->requests[job->n_prompts + c->number];
        request.sampling.seed += c->number;
        status = start_run(w, run, &request, err);
    } else {
        status = err_memory(err, "an answer");
    }
    if (status) {
        free(run);
    } else {
        c->before = *report;
        c->has_gone_on = true;
    }
    free(tokens);
    return status;
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
    if (!is_over && (end.status = start_prompt(w, job, job->n_started, &err))) {
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
    struct run *run = user;
    struct job *job = run->job;
    struct worker *w = job->worker;
    struct job_choice *c = choice_of(run, report->answer);
    struct sched_report last = *report;
    struct err err = {0};
    bool goes_on = c->is_to_close && report->end == SCHED_END_STOPPED && !job->is_cancelled;
    count_prompt(run, report);
    if ((c->lacks_memory || job->lacks_memory) && report->end != SCHED_END_FAILED) {
        last.end = SCHED_END_FAILED;
        last.status = SLUICE_ERR_MEMORY;
        last.error = "out of memory for a token";
        goes_on = false;
    }
    if (goes_on && (last.status = go_on(w, c, run->prompt, report, &err))) {
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
    bool is_prompt = is_of_prompt(run);
    *run->id = 0;
    free(run);
    if (is_prompt)
        start_next(w, job, report);
}

/* ---- jobs --------------------------------------------------------------------------------- */

/* The scheduler calls on_end once for each answer of a request it accepted; run is freed then. */
static int start_run(struct worker *w, struct run *run, const struct sched_request *request,
                     struct err *err) {
    static const int32_t none[1];
    struct sched_request r = *request;
    r.ends = run->job->ignores_ends ? none : NULL;
    r.wants_logits = run->job->n_top >= 0;
    r.reads = reads_of(run);
    r.on_rows = on_rows;
    r.on_token = on_token;
    r.on_mask = run->job->format ? on_mask : NULL;
    r.on_keeps = on_keeps;
    r.on_end = on_end;
    r.user = run;
    return sched_submit(w->sched, &r, run->id, err);
}

/* Opens the grammars of its answers; a prompt that waits for others has none yet. */
static int open_follows(const struct worker *w, struct job *job, uint32_t n_prompts,
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
        f->call = job->call;
        f->model = w->model;
    }
    return status;
}

static int start_prompt(struct worker *w, struct job *job, uint32_t p, struct err *err) {
    int status = open_follows(w, job, p + 1, err);
    if (status)
        return status;
    struct run *run = calloc(1, sizeof *run);
    if (!run)
        return err_memory(err, "a request");
    *run =
        (struct run){.job = job, .prompt = p, .first = p * job->answers, .id = &job->requests[p]};
    struct sched_request request = {
        .prompt = job->prompts[p].tokens,
        .n_prompt = job->prompts[p].n,
        .max_tokens = job->max_tokens,
        .answers = job->answers,
        .sampling = job->sampling,
    };
    request.sampling.seed += run->first;
    status = start_run(w, run, &request, err);
    if (status)
        free(run);
    return status;
}

static void unlink_job(struct worker *w, struct job *job) {
    if (job->next)
        job->next->previous = job->previous;
    if (job->previous)
        job->previous->next = job->next;
    else
        w->jobs = job->next;
}

static void cancel_requests(struct worker *w, struct job *job) {
    for (uint32_t i = 0; i < job->n_prompts + job->n_choices; i++)
        if (job->requests[i])
            sched_cancel(w->sched, job->requests[i]);
}

/* All prompts or, after a refusal, none: those that were accepted are cancelled. */
static void start_job(struct worker *w, struct job *job) {
    struct err err = {0};
    int status = job->is_cancelled ? err_set(&err, SLUICE_ERR_CANCELLED, "cancelled") : SLUICE_OK;
    job->next = w->jobs;
    job->previous = NULL;
    if (w->jobs)
        w->jobs->previous = job;
    w->jobs = job;
    uint32_t n_first = job->n_slots / job->answers;
    while (!status && job->n_started < n_first)
        if (!(status = start_prompt(w, job, job->n_started, &err)))
            job->n_started++;
    pthread_mutex_lock(&job->lock);
    job->is_accepted = !status;
    job->status = status;
    memcpy(job->error, err.text, sizeof job->error - 1);
    pthread_mutex_unlock(&job->lock);
    touch(w, job);
    if (!status)
        return;
    count_out(job, (job->n_prompts - job->n_started) * job->answers);
    job->n_started = job->n_prompts; /* no more are started */
    cancel_requests(w, job);
}

void job_begin(struct job *job) {
    *job = (struct job){
        .n_top = -1, .answers = 1, .call = -1, .thinking = {.budget = -1, .open = -1, .close = -1}};
    pthread_mutex_init(&job->lock, NULL);
}

void job_free(struct job *job) {
    struct job_news rest = {job->events, job->n_events, job->capacity, false, false};
    job_news_free(&rest);
    free(job->ends);
    free(job->is_enough);
    pthread_mutex_destroy(&job->lock);
}

static void free_parts(struct job *job) {
    for (uint32_t i = 0; job->choices && i < job->n_choices; i++) {
        free(job->choices[i].tokens);
        follow_close(&job->choices[i].follow);
    }
    free(job->choices);
    free(job->requests);
    job->choices = NULL;
    job->requests = NULL;
}

static void wake_touched(struct worker *w) {
    size_t n = w->n_touched;
    w->n_touched = 0;
    for (size_t i = 0; i < n; i++) {
        struct job *job = w->touched[i];
        bool is_over = job->n_left == 0;
        job->is_touched = false;
        if (is_over) {
            unlink_job(w, job);
            free_parts(job);
            pthread_mutex_lock(&job->lock);
            job->is_over = true;
            pthread_mutex_unlock(&job->lock);
        }
        job->wake(job);
        if (is_over)
            job->release(job);
    }
}

/* ---- the thread --------------------------------------------------------------------------- */

/* Sleeps until there is something to do; false: the worker is closing. */
static bool take_inbox(struct worker *w, bool is_idle) {
    pthread_mutex_lock(&w->lock);
    while (is_idle && !w->inbox && !w->has_cancels && !w->is_closing && !(w->tasks && !w->jobs))
        pthread_cond_wait(&w->wakes, &w->lock);
    struct job *job = w->inbox;
    bool has_cancels = w->has_cancels, goes_on = !w->is_closing;
    w->inbox = NULL;
    w->inbox_end = &w->inbox;
    w->has_cancels = false;
    pthread_mutex_unlock(&w->lock);
    while (job) {
        struct job *next = job->next;
        start_job(w, job);
        job = next;
    }
    for (job = has_cancels ? w->jobs : NULL; job; job = job->next)
        if (job->is_cancelled)
            cancel_requests(w, job);
    return goes_on;
}

/* The oldest task, if there is time for it now; else NULL. */
static struct worker_task *take_task(struct worker *w, bool is_idle) {
    pthread_mutex_lock(&w->lock);
    struct worker_task *task = is_idle && !w->inbox ? w->tasks : NULL;
    if (task) {
        w->tasks = task->next;
        if (!w->tasks)
            w->tasks_end = &w->tasks;
    }
    pthread_mutex_unlock(&w->lock);
    return task;
}

static void publish(struct worker *w, int status) {
    struct worker_state s;
    sched_counters(w->sched, &s.sched);
    sluice_engine_counters(w->engine, &s.engine);
    sluice_engine_pages(w->engine, &s.pages);
    sluice_engine_kept(w->engine, &s.kept);
    uint64_t rows = s.engine.rows - w->state.engine.rows;
    uint64_t steps = s.engine.steps - w->state.engine.steps;
    if (steps > 0)
        histogram_add(&w->metrics->batch_rows, (double)rows / (double)steps);
    pthread_mutex_lock(&w->lock);
    w->state.sched = s.sched;
    w->state.engine = s.engine;
    w->state.pages = s.pages;
    w->state.kept = s.kept;
    w->state.has_failed |= status == SLUICE_ERR_DEVICE;
    pthread_mutex_unlock(&w->lock);
}

static void *work(void *user) {
    struct worker *w = user;
    bool worked = false;
    while (take_inbox(w, !worked)) {
        w->now = 0;
        int status = sched_step(w->sched, &worked);
        worked &= status != SLUICE_ERR_DEVICE;
        publish(w, status);
        wake_touched(w);
        struct worker_task *task = take_task(w, !worked && !w->jobs);
        if (task)
            task->run(task, !w->state.has_failed);
    }
    sched_close(w->sched); /* ends what is left */
    wake_touched(w);
    for (struct worker_task *task; (task = take_task(w, true));)
        task->run(task, false);
    return NULL;
}

/* ---- from other threads ------------------------------------------------------------------- */

static int prepare(const struct worker *w, struct job *job, struct err *err) {
    job->choices = calloc(job->n_choices, sizeof *job->choices);
    job->requests = calloc(job->n_prompts + job->n_choices, sizeof *job->requests);
    job->ends = calloc(job->n_choices, sizeof *job->ends);
    job->is_enough = calloc(job->n_choices, sizeof *job->is_enough);
    if (!job->choices || !job->requests || !job->ends || !job->is_enough)
        return err_memory(err, "a request");
    for (uint32_t i = 0; i < job->n_choices; i++)
        job->choices[i] = (struct job_choice){.job = job, .number = i};
    matcher_budget_begin(&job->budget, min_u32(job->n_choices, w->sequences));
    return open_follows(w, job, job->n_slots / job->answers, err);
}

/* Under the lock, as the functions below. */
static int check_works(const struct worker *w, struct err *err) {
    return w->state.has_failed ? err_set(err, SLUICE_ERR_DEVICE, "the device failed")
           : w->is_closing     ? err_set(err, SLUICE_ERR_CANCELLED, "the server is shutting down")
                               : SLUICE_OK;
}

static int admit(struct worker *w, const struct job *job, struct err *err) {
    struct worker_state *s = &w->state;
    int status = check_works(w, err);
    if (status)
        return status;
    if (job->answers > s->max_answers)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%u answers requested, expected at most %u",
                       job->answers, s->max_answers);
    if (s->n_answers + job->n_slots > s->max_answers)
        return err_set(err, SLUICE_ERR_MEMORY, "%u answers run or wait, and there is room for %u",
                       s->n_answers, s->max_answers);
    s->n_answers += job->n_slots;
    return SLUICE_OK;
}

/* Queues a job that was admitted, if it could be prepared. */
static int add_to_inbox(struct worker *w, struct job *job, int status, struct err *err) {
    if (!status)
        status = check_works(w, err);
    if (status) {
        w->state.n_answers -= job->n_slots;
        return status;
    }
    *w->inbox_end = job;
    w->inbox_end = &job->next;
    pthread_cond_signal(&w->wakes);
    return SLUICE_OK;
}

int worker_submit(struct worker *w, struct job *job, struct err *err) {
    job->worker = w;
    job->next = NULL;
    job->n_started = job->n_followed = 0;
    job->n_choices = job->n_left = job->n_prompts * job->answers;
    job->n_slots = min_u32(job->n_prompts, max_u32(1, w->sequences / job->answers)) * job->answers;
    pthread_mutex_lock(&w->lock);
    int status = admit(w, job, err); /* first: a refused job costs nothing */
    pthread_mutex_unlock(&w->lock);
    if (status)
        return status;
    status = prepare(w, job, err);
    pthread_mutex_lock(&w->lock);
    status = add_to_inbox(w, job, status, err);
    pthread_mutex_unlock(&w->lock);
    if (status)
        free_parts(job);
    return status;
}

void worker_cancel(struct job *job) {
    struct worker *w = job->worker;
    atomic_store(&job->is_cancelled, true);
    pthread_mutex_lock(&w->lock);
    w->has_cancels = true;
    pthread_cond_signal(&w->wakes);
    pthread_mutex_unlock(&w->lock);
}

void worker_add_task(struct worker *w, struct worker_task *task) {
    pthread_mutex_lock(&w->lock);
    bool is_late = w->is_closing;
    task->next = NULL;
    if (!is_late) {
        *w->tasks_end = task;
        w->tasks_end = &task->next;
        pthread_cond_signal(&w->wakes);
    }
    pthread_mutex_unlock(&w->lock);
    if (is_late)
        task->run(task, false);
}

void worker_state(struct worker *w, struct worker_state *out) {
    pthread_mutex_lock(&w->lock);
    *out = w->state;
    pthread_mutex_unlock(&w->lock);
}

int worker_open(struct worker **out, const struct worker_options *o, struct err *err) {
    struct worker *w = calloc(1, sizeof *w);
    /* New requests wait for the end of a burst, and its tokens come all at once. A burst saves some
     * 10 us per step: 1 % of steps of 1 ms, nothing measurable of longer ones. */
    const double burst_seconds = 0.010;
    struct sched_options options = {
        .queue = o->queue, .has_no_bursts = o->has_no_bursts, .burst_seconds = burst_seconds};
    struct sluice_facts facts;
    struct sluice_choice choice;
    struct sluice_pages pages;
    *out = w;
    if (!w)
        return err_memory(err, "the worker");
    sluice_model_facts(o->model, &facts);
    sluice_engine_choice(o->engine, &choice);
    w->model = o->model;
    w->engine = o->engine;
    w->metrics = o->metrics;
    w->n_tokens = facts.n_tokens;
    w->width = facts.width;
    w->n_logits = (uint32_t)facts.n_logits;
    w->no_ends = follow_no_ends(w->model);
    w->inbox_end = &w->inbox;
    w->tasks_end = &w->tasks;
    w->sequences = choice.sequences;
    sluice_engine_pages(o->engine, &pages);
    w->context = min_u32(choice.context, pages.total * pages.tokens);
    w->state.max_answers = choice.sequences + o->queue;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wakes, NULL);
    w->touched = calloc(w->state.max_answers, sizeof *w->touched);
    int status = w->touched && w->no_ends
                     ? sched_open(&w->sched, o->model, o->engine, &options, err)
                     : err_memory(err, "the worker");
    if (!status) {
        publish(w, SLUICE_OK);
        w->has_thread = thread_start(&w->thread, work, w);
        status = w->has_thread ? SLUICE_OK : err_memory(err, "the worker's thread");
    }
    if (!status)
        return SLUICE_OK;
    worker_close(w);
    *out = NULL;
    return status;
}

void worker_stop(struct worker *w) {
    if (!w || !w->has_thread)
        return;
    thread_stop(w->thread, &w->lock, &w->wakes, &w->is_closing);
    w->has_thread = false;
}

void worker_close(struct worker *w) {
    if (!w)
        return;
    bool has_run = w->has_thread || w->is_closing;
    worker_stop(w);
    if (!has_run)
        sched_close(w->sched);
    pthread_cond_destroy(&w->wakes);
    pthread_mutex_destroy(&w->lock);
    free(w->touched);
    free(w->no_ends);
    free(w);
}
