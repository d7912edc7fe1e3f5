/* bench_scheduler.c - as many requests as sequences through the scheduler, for bench. */
#include "cmd/bench_scheduler.h"

#include <stdlib.h>

#include "base/clock.h"
#include "cmd/cmd.h"
#include "serve/scheduler.h"

static int submit_all(const struct bench_scheduler *b, struct sched *s, struct err *err) {
    static const int32_t none[1];
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < b->n_requests; i++) {
        uint64_t id;
        const struct sched_request request = {
            .prompt = b->prompt + i % 2,
            .n_prompt = 1,
            .max_tokens = b->n_new,
            .sampling = {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
            .ends = none,
        };
        status = sched_submit(s, &request, &id, err);
    }
    return status;
}

/* Steps until all is done. own: seconds of the scheduler in each, at most n_new. */
static int step_all(const struct bench_scheduler *b, struct sched *s, double *own, uint32_t *n) {
    struct sched_counters c = {0};
    bool worked = true;
    int status = SLUICE_OK;
    *n = 0;
    while (!status && worked) {
        double before = c.own_seconds;
        status = sched_step(s, &worked);
        sched_counters(s, &c);
        if (worked && *n < b->n_new)
            own[(*n)++] = c.own_seconds - before;
    }
    return status;
}

static int run(struct bench_scheduler *b, struct sched *s, double *own, struct err *err) {
    struct sched_counters c;
    uint32_t n;
    double started = seconds_now();
    int status = submit_all(b, s, err);
    if (!status && (status = step_all(b, s, own, &n)))
        err_set(err, status, "%s", sluice_engine_error(b->engine));
    if (status)
        return status;
    sched_counters(s, &c);
    b->rate = (double)c.tokens / (seconds_now() - started);
    qsort(own, n, sizeof *own, compare_doubles);
    b->own_seconds = own[n / 2];
    return SLUICE_OK;
}

int bench_scheduler(struct bench_scheduler *b) {
    const struct sched_options options = {.has_no_bursts = b->is_single};
    struct sched *s = NULL;
    struct err err = {0};
    double *own = malloc(b->n_new * sizeof *own);
    int status = own ? sched_open(&s, b->model, b->engine, &options, &err)
                     : err_memory(&err, "the times of steps");
    if (!status)
        status = run(b, s, own, &err);
    sched_close(s);
    free(own);
    return status ? fail(&err) : 0;
}
