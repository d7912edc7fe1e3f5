/* worker.h - the thread that owns the engine and its scheduler: jobs in, tokens out.
 *
 * A job is what one client asked for: prompts, and answers to each. Any thread submits and cancels
 * jobs; nothing but the worker's thread touches the engine. It hands tokens out by appending them
 * to the job's list and calling its `wake`, after every step that produced any for the job, so the
 * engine never waits for a client. It sleeps while there is no job.
 *
 * (1) A job that was accepted is woken until `is_over`, and `release` is called once after that.
 * (2) A cancelled job gets no more tokens from the next step on; its answers end as cancelled. */
#ifndef SERVE_WORKER_H
#define SERVE_WORKER_H

#include <pthread.h>
#include <stdatomic.h>

#include "serve/formats.h"
#include "serve/metrics.h"
#include "serve/scheduler.h"

struct job_logprobs;

struct job_prompt {
    const int32_t *tokens;
    size_t n;
    struct job_logprobs **logprobs; /* (n) of all its tokens but the first, set before its first
                                     * answer begins; NULL: not wanted */
};

/* Log probabilities of a token and of the likeliest, best first. */
struct job_logprobs {
    float logprob;
    uint32_t n;
    struct {
        int32_t token;
        float logprob;
    } top[];
};

enum { JOB_END = -1 };

struct job_event {
    uint32_t choice;               /* answer i of prompt p is choice p * answers + i */
    int32_t token;                 /* JOB_END: the choice has ended, as `ends` says */
    struct job_logprobs *logprobs; /* where wanted; the reader frees it. NULL for what ends thinking
                                    * over budget */
};

struct job_end {
    struct sched_report report; /* its error is in `error` */
    char error[200];
};

/* Tokens that a model may spend on thinking; then the tokens `closing` are inserted. */
struct job_thinking {
    int64_t budget;         /* below 0: no limit */
    bool is_open;           /* the prompt ends inside of it */
    bool may_open;          /* an answer may begin with it */
    int32_t open, close;    /* the tokens that begin and end it; -1: the model has none */
    const int32_t *closing; /* what to insert: `close` and what follows it */
    size_t n_closing;
};

struct job_choice; /* the worker's own */

/* Begin with job_begin and fill in the first part; all is borrowed until release. */
struct job {
    const struct job_prompt *prompts;
    uint32_t n_prompts, answers, max_tokens;
    struct sluice_sampling sampling; /* choice i: seed + i */
    int n_top;         /* how many of the likeliest tokens to report with each; below 0: no log
                        * probabilities */
    bool ignores_ends; /* no token ends an answer */
    struct job_thinking thinking;
    float *hidden;               /* (n_prompts, width) gets the pooled hidden state of each
                                  * prompt, before its first answer ends; NULL: not wanted */
    bool pools_mean;             /* the mean of all its tokens, not that of the last */
    const struct format *format; /* that answers must follow, after their thinking; NULL: none */
    int32_t call; /* the token that begins a tool call, which an answer may be instead; -1: none */
    void (*wake)(struct job *job);    /* by the worker's thread; must be quick */
    void (*release)(struct job *job); /* the same, once, last */

    /* Read by anyone with job_take. */
    pthread_mutex_t lock;
    struct job_event *events;
    size_t n_events, capacity;
    bool is_accepted, is_over;
    int status; /* why it was refused; SLUICE_OK: it was not */
    char error[200];
    struct job_end *ends; /* one per choice; valid after its JOB_END */

    atomic_uint n_cached;   /* prompt tokens found in the cache, once an answer has begun */
    atomic_bool *is_enough; /* one per choice; set by any thread: it ends with its next token */

    /* The worker's own. */
    atomic_bool is_cancelled;
    struct worker *worker;
    struct job *next, *previous;
    struct job_choice *choices;
    uint32_t n_choices, n_left;
    uint32_t n_started;  /* prompts that the scheduler has or had */
    uint32_t n_slots;    /* answers that count against the limit, of prompts that run or wait */
    uint64_t *requests;  /* of the scheduler, 0: none; per prompt, and per choice that continues */
    uint32_t n_followed; /* answers with an open grammar: those of the prompts that run */
    struct matcher_budget budget; /* for the grammars of all its answers */
    bool is_touched;
    bool lacks_memory; /* for log probabilities of its prompts */
};

void job_begin(struct job *job);
void job_free(struct job *job); /* of a job that was never taken, or was released */

/* What a reader takes from a job at once. Pass the same struct again: it keeps its memory. */
struct job_news {
    struct job_event *events;
    size_t n_events, capacity;
    bool is_accepted, is_over;
};
void job_take(struct job *job, struct job_news *news);
void job_news_free(struct job_news *news); /* also the logprobs that nobody took */

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
