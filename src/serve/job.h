/* job.h - what one client asked for: prompts, and answers to each.
 *
 * The worker (worker.h) hands tokens out by appending them to the job's list, and calls `wake`,
 * after every step that produced any for the job; a reader takes the list with job_take.
 *
 * (1) A job that was accepted is woken until `is_over`, and `release` is called once after that.
 * (2) A cancelled job gets no more tokens from the next step on; its answers end as cancelled.
 *
 * Threads. One fills a job in and submits it; then the worker's appends, and any may take. */
#ifndef SERVE_JOB_H
#define SERVE_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "serve/formats.h"
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

struct job_choice; /* the worker's own, as struct worker */
struct worker;

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

/* Appends to the list, by the worker's thread. False: memory ran out, and what the event points to
 * is still the caller's. */
bool job_append(struct job *job, struct job_event event);

/* What a reader takes from a job at once. Pass the same struct again: it keeps its memory. */
struct job_news {
    struct job_event *events;
    size_t n_events, capacity;
    bool is_accepted, is_over;
};
void job_take(struct job *job, struct job_news *news);
void job_news_free(struct job_news *news); /* also the logprobs that nobody took */

#endif
