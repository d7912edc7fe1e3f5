/* step.c - a step: one graph launch, one wait.
 *
 * The host sleeps until shortly before the step usually ends, then polls a flag in mapped memory:
 * an interrupt's wake-up alone costs 30 to 60 us. */
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "backend/cuda/host/cuda.h"
#include "base/clock.h"

/* ---- a step ------------------------------------------------------------------------------- */

static const struct io_header *header_of(const struct backend *b) {
    return (const struct io_header *)b->io;
}

static void check_io(const struct backend *b, const struct plan *plan) {
    CHECK(header_of(b)->n_rows <= plan->max_rows && header_of(b)->n_outputs <= plan->max_outputs);
}

/* The recording that runs the step in IO. */
static struct cuda_recording *recording_of(const struct backend *b, uint32_t plan) {
    CHECK(plan < b->n_recordings);
    struct cuda_recording *r = &b->recordings[plan];
    bool is_decode = header_of(b)->n_rows == header_of(b)->n_segments;
    if (is_decode)
        return r->decode ? r->decode : r;
    return r->few && cuda_has_few_open(b, r->plan) ? r->few : r;
}

static int launch_graph(struct backend *b, uint32_t plan, bool is_burst, struct err *err) {
    struct cuda_recording *r = is_burst ? &b->recordings[plan] : recording_of(b, plan);
    check_io(b, r->plan);
    int status = cuda_enter(b, err);
    if (b->trace)
        memset(b->trace, 0, STAMP_BYTES);
    if (!status)
        status = cuda_settle_for_step(b, r, is_burst, err);
    if (!status)
        status = driver_check(driver.graph_launch(is_burst ? r->burst : r->graph, b->stream),
                              "submitting a step", err);
    b->running = r;
    b->is_burst = is_burst;
    b->submitted_at = seconds_now();
    b->count.submissions++;
    return status;
}

int cuda_submit(struct backend *b, uint32_t plan, struct err *err) {
    return launch_graph(b, plan, false, err);
}

bool cuda_has_burst(const struct backend *b, uint32_t plan) {
    return b->recordings[plan].burst != NULL;
}

int cuda_submit_burst(struct backend *b, uint32_t plan, struct err *err) {
    return launch_graph(b, plan, true, err);
}

enum {
    EARLY_US = 6,      /* the host is awake this long before the expected end, */
    MAX_LATE_US = 150, /* plus the usual oversleeping, at most this */
    MIN_SLEEP_US = 20,
    NAP_US = 250, /* after longer sleeps a processor takes 25 us to wake, after this one 7 */
};

static bool is_done(const struct backend *b, uint64_t step) {
    return __atomic_load_n(b->done, __ATOMIC_ACQUIRE) == step;
}

/* Sleeps in naps until `when`, or until a nap ends after the step. Linux's timer slack of 50 us
 * would cost more than sleeping saves, so it is turned off meanwhile. */
static void sleep_until(const struct backend *b, uint64_t step, double when) {
    int slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1ul);
    for (double left; (left = when - seconds_now()) > 0 && !is_done(b, step);) {
        double nap = left > 1.5e-6 * NAP_US ? when - left + 1e-6 * NAP_US : when;
        struct timespec t = {.tv_sec = (time_t)nap};
        t.tv_nsec = (long)((nap - (double)t.tv_sec) * 1e9);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
    }
    prctl(PR_SET_TIMERSLACK, slack > 0 ? (unsigned long)slack : 0ul);
}

static void pause_briefly(void) {
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* A step failed on the device: with a trace, where. A kernel stores its start time after its wait,
 * so it was the kernel with the latest time, or what the next one does before its wait. */
static int step_failed(struct backend *b, CUresult state, struct err *err) {
    const struct cuda_recording *r = b->running;
    char text[96];
    uint32_t last = 0;
    b->is_broken = true;
    int status = driver_check(state,
                              b->trace ? "a step failed on the device"
                                       : "a step failed on the device (SLUICE_CUDA_TRACE=1 names "
                                         "the op)",
                              err);
    for (uint32_t i = 0; b->trace && i < r->n_nodes; i++)
        last = b->trace[i] >= b->trace[last] ? i : last;
    if (b->trace)
        err_prefix(err, "%s", plan_op_text(r->plan, r->nodes[last].op, text, sizeof text));
    return status;
}

/* Polls the completion flag. A failed step never sets it, so the stream is asked now and then. */
static int watch_flag(struct backend *b, uint64_t step, struct err *err) {
    for (uint64_t spins = 1; !is_done(b, step); spins++) {
        pause_briefly();
        if (spins % 65536 != 0)
            continue;
        CUresult state = driver.stream_query(b->stream);
        if (state == CUDA_ERROR_NOT_READY)
            continue;
        if (state != CUDA_SUCCESS)
            return step_failed(b, state, err);
        if (!is_done(b, step)) /* the stream is complete, so its writes are visible */
            return err_set(err, SLUICE_ERR_DEVICE, "a step ended on the device without saying so");
    }
    return SLUICE_OK;
}

/* Updates the expected duration of a step: shorter ones count at once, longer ones slowly. Where
 * the host overslept, the duration is only an upper bound. */
static void learn(double *expected, double took, bool overslept) {
    if (overslept && took < *expected)
        *expected = took < 0.95 * *expected ? took : 0.95 * *expected;
    else if (!overslept)
        *expected = *expected == 0 || took < *expected ? took : 0.9 * *expected + 0.1 * took;
}

/* How much later than asked the host wakes: the 95th percentile. It moves by fixed steps, since
 * outliers may be milliseconds where other work gets in between. */
static void learn_late(double *usual, double late) {
    *usual += late > *usual ? 4e-6 : -0.2e-6;
    if (*usual > 1e-6 * MAX_LATE_US)
        *usual = 1e-6 * MAX_LATE_US;
}

/* After a sleep a submission takes the driver 10 us instead of 6; so an empty one goes before it,
 * while the device is still busy. */
static void wake_driver(struct backend *b) {
    driver.graph_launch(b->empty_graph, b->wake_stream);
}

int cuda_wait(struct backend *b, struct err *err) {
    struct cuda_recording *r = b->running;
    double *expected = b->is_burst ? &r->expected_of_burst : &r->expected;
    double wake = b->submitted_at + 0.985 * *expected - b->late - 1e-6 * EARLY_US;
    uint64_t step = header_of(b)->step;
    bool overslept = false;
    int status = cuda_enter(b, err);
    if (status)
        return status;
    if (wake > seconds_now() + 1e-6 * MIN_SLEEP_US) {
        sleep_until(b, step, wake);
        double late = seconds_now() - wake;
        overslept = is_done(b, step);
        if (late > 0)
            learn_late(&b->late, late);
        if (!overslept)
            wake_driver(b);
    }
    status = watch_flag(b, step, err);
    learn(expected, seconds_now() - b->submitted_at, overslept);
    b->count.waits++;
    return status;
}

/* Every kernel stores when its wait was over, and the last one when it ended: an op's time is from
 * its start to the next op's, measured in the step as it always runs. */
int cuda_time_ops(struct backend *b, uint32_t plan, double *op_seconds, struct err *err) {
    const struct cuda_recording *r = recording_of(b, plan);
    uint64_t *stamps = calloc(r->n_nodes + 1, sizeof *stamps);
    int status = stamps ? cuda_submit(b, plan, err) : err_memory(err, "times");
    if (!status)
        status = cuda_wait(b, err);
    if (!status)
        status = driver_check(
            driver.copy_out(stamps, b->stamps.at, (r->n_nodes + 1) * sizeof *stamps, b->stream),
            "reading times", err);
    if (!status)
        status = driver_check(driver.stream_sync(b->stream), "reading times", err);
    memset(op_seconds, 0, r->plan->n_ops * sizeof *op_seconds);
    for (uint32_t i = r->n_nodes; !status && i-- > 0;)
        stamps[i] = r->nodes[i].launch.is_alone ? stamps[i + 1] : stamps[i];
    for (uint32_t i = 0; !status && i < r->n_nodes; i++)
        if (r->nodes[i].op < r->plan->n_ops)
            op_seconds[r->nodes[i].op] += 1e-9 * (double)(int64_t)(stamps[i + 1] - stamps[i]);
    free(stamps);
    return status;
}

int cuda_run_op(struct backend *b, uint32_t plan, uint32_t op, struct err *err) {
    const struct cuda_recording *r = recording_of(b, plan);
    int status = cuda_enter(b, err);
    if (!status)
        status = cuda_settle_for_step(b, r, false, err);
    for (uint32_t i = 0; !status && i < r->n_nodes; i++)
        if (r->nodes[i].op == op)
            status = cuda_run_node(b, &r->nodes[i], true, err);
    return status ? status
                  : driver_check(driver.stream_sync(b->stream), "an op failed on the device", err);
}

bool cuda_op_kernel(const struct backend *b, uint32_t plan, uint32_t op, uint32_t i,
                    struct backend_kernel *out) {
    const struct cuda_recording *r = &b->recordings[plan];
    uint32_t at = 0;
    while (at < r->n_nodes && (r->nodes[at].op != op || r->nodes[at].launch.is_alone || i-- > 0))
        at++;
    if (at == r->n_nodes)
        return false;
    const struct cuda_launch *l = &r->nodes[at].launch;
    *out = (struct backend_kernel){
        .name = l->kernel,
        .grid = {l->grid[0], l->grid[1], l->grid[2]},
        .threads = l->threads,
        .shared = l->shared,
    };
    driver.function_get(&out->registers, CU_FUNC_ATTRIBUTE_NUM_REGS, r->nodes[at].function);
    return true;
}
