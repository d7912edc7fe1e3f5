/* bench_scheduler.h - as many requests as sequences through the scheduler, for bench. */
#ifndef CMD_BENCH_SCHEDULER_H
#define CMD_BENCH_SCHEDULER_H

#include "sluice.h"

struct bench_scheduler {
    const sluice_model *model;
    sluice_engine *engine;
    const int32_t *prompt; /* at least two tokens: requests have the one or the other */
    uint32_t n_requests, n_new;
    bool is_single; /* no bursts */
    /* Out. */
    double rate;        /* tokens per second, of all requests */
    double own_seconds; /* of the scheduler itself, per submission: the median */
};

/* One run; no other sequence is open. 0, or the exit status after one line. */
int bench_scheduler(struct bench_scheduler *b);

#endif
