/* worker.c - the thread that owns the engine and its scheduler. */
#include "serve/worker.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/thread.h"
#include "serve/worker_internal.h"

/* ---- jobs --------------------------------------------------------------------------------- */

void worker_touch(struct worker *w, struct job *job) {
    if (job->is_touched)
        return;
    CHECK(w->n_touched < w->state.max_answers);
    job->is_touched = true;
    w->touched[w->n_touched++] = job;
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
        if (!(status = worker_start_prompt(w, job, job->n_started, &err)))
            job->n_started++;
    pthread_mutex_lock(&job->lock);
    job->is_accepted = !status;
    job->status = status;
    memcpy(job->error, err.text, sizeof job->error - 1);
    pthread_mutex_unlock(&job->lock);
    worker_touch(w, job);
    if (!status)
        return;
    worker_count_ended(job, (job->n_prompts - job->n_started) * job->answers);
    job->n_started = job->n_prompts; /* no more are started */
    cancel_requests(w, job);
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
    return worker_open_follows(w, job, job->n_slots / job->answers, err);
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
