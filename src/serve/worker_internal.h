/* worker_internal.h - what the files of worker.h share.
 *
 * worker.c is the thread and what others ask of it; worker_answers.c makes requests of the
 * scheduler from jobs and events from tokens; worker_logprobs.c computes log probabilities. */
#ifndef SERVE_WORKER_INTERNAL_H
#define SERVE_WORKER_INTERNAL_H

#include "serve/follow.h"
#include "serve/worker.h"

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

/* ---- worker.c ----------------------------------------------------------------------------- */

/* The job is woken after the step. */
void worker_touch(struct worker *w, struct job *job);

/* ---- worker_answers.c --------------------------------------------------------------------- */

/* Opens the grammars of the answers to the job's first n_prompts prompts, where they are not open;
 * those of a prompt that waits for others are opened when it starts. Called by the thread that
 * submits the job, then by the worker's. */
int worker_open_follows(const struct worker *w, struct job *job, uint32_t n_prompts,
                        struct err *err);
/* Hands prompt p to the scheduler. An error is err's; the job is as before. */
int worker_start_prompt(struct worker *w, struct job *job, uint32_t p, struct err *err);
/* This many of the job's answers are done. Those still to be started take the places of those that
 * ended. */
void worker_count_ended(struct job *job, uint32_t n);

/* ---- worker_logprobs.c -------------------------------------------------------------------- */

/* The token's log probability and those of the n_top likeliest tokens; the caller frees it. NULL:
 * memory ran out. */
struct job_logprobs *worker_logprobs(struct worker *w, const float *logits, int32_t token,
                                     int n_top);

#endif
