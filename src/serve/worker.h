/* worker.h - the thread that owns the engine and its scheduler: jobs in, tokens out.
 *
 * Any thread submits and cancels jobs; nothing but the worker's thread touches the engine. It only
 * appends to the lists of jobs (job.h), so the engine never waits for a client. It sleeps while
 * there is no job. */
#ifndef SERVE_WORKER_H
#define SERVE_WORKER_H

#include "serve/job.h"
#include "serve/metrics.h"

struct worker;

struct worker_options {
    const sluice_model *model; /* borrowed */
    sluice_engine *engine;     /* borrowed; the worker's until worker_close returns */
    uint32_t queue;            /* answers that may wait when all sequences are taken */
    struct metrics *metrics;   /* borrowed */
    bool has_no_bursts;        /* every submission is one step */
};

int worker_open(struct worker **out, const struct worker_options *options, struct err *err);
/* Ends all jobs, as cancelled, and the thread; further jobs are refused. Takes NULL. */
void worker_stop(struct worker *worker);
void worker_close(struct worker *worker); /* stopped or not; nobody may use it then. Takes NULL. */

/* Accepts a job. Of many prompts as many are started as run at once; each that ends is followed by
 * another. SLUICE_OK, or
 *   SLUICE_ERR_ARGUMENT   more answers to a prompt than ever fit
 *   SLUICE_ERR_MEMORY     too many wait already, or memory ran out: later it may be taken
 *   SLUICE_ERR_DEVICE     the engine failed for good
 *   SLUICE_ERR_CANCELLED  the worker is closing
 * and err says why. What the scheduler refuses later is in `status` and is_over. */
int worker_submit(struct worker *worker, struct job *job, struct err *err);
void worker_cancel(struct job *job); /* of a job that was taken and is not released */

/* Other work with the engine: done once, by the worker's thread, when no answer runs or waits.
 * Requests that arrive meanwhile wait for it. */
struct worker_task {
    /* has_engine: false when the worker is closing or the device has failed. */
    void (*run)(struct worker_task *task, bool has_engine);
    struct worker_task *next; /* the worker's own */
};
/* The task must live until it is run, which always happens. Any thread. */
void worker_add_task(struct worker *worker, struct worker_task *task);

/* As of the last step. */
struct worker_state {
    struct sched_counters sched;
    struct sluice_counters engine;
    struct sluice_pages pages;
    struct sluice_kept kept;
    uint32_t n_answers, max_answers; /* taken and not ended; the limit */
    bool has_failed;                 /* the device is gone */
};
void worker_state(struct worker *worker, struct worker_state *out);

#endif
