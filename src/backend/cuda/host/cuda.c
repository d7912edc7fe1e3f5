/* cuda.c - the CUDA backend: device, regions, submitting and waiting. */
#include "backend/cuda/host/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "backend/cuda/ops/embed.h"
#include "base/clock.h"
#include "base/size.h"

/* ---- devices ----------------------------------------------------------------------------------
 */

static int attribute(CUdevice device, CUdevice_attribute what) {
    int value = 0;
    driver.device_attribute(&value, what, device);
    return value;
}

static int find_device(struct backend *b, int number, struct err *err) {
    int count = 0, status = driver_open(err);
    if (!status)
        status = driver_check(driver.device_count(&count), "counting CUDA devices", err);
    if (!status && count == 0)
        status = err_set(err, SLUICE_ERR_DEVICE, "the CUDA driver finds no device");
    if (!status && (number < 0 || number >= count))
        status = err_set(err, SLUICE_ERR_ARGUMENT, "device (--device) is %d, expected 0 to %d",
                         number, count - 1);
    if (!status)
        status = driver_check(driver.device_get(&b->device, number), "a CUDA device", err);
    if (status)
        return status;
    b->n_sms = (uint32_t)attribute(b->device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    b->max_shared =
        (uint32_t)attribute(b->device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    b->capability = 10 * attribute(b->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                    attribute(b->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    if (b->capability < 80)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "CUDA device %d has compute capability %d.%d, expected 8.0 or later", number,
                       b->capability / 10, b->capability % 10);
    return SLUICE_OK;
}

static bool cuda_device_line(int i, char *out, size_t size) {
    struct backend b = {0};
    char name[128] = "";
    size_t bytes = 0;
    int version = 0;
    struct err err;
    if (find_device(&b, i, &err))
        return false;
    driver.device_name(name, sizeof name, b.device);
    driver.device_memory(&bytes, b.device);
    driver.driver_version(&version);
    snprintf(out, size,
             "cuda: device %d, %s, compute %d.%d, %u SMs, %.1f GB, driver for CUDA %d.%d", i, name,
             b.capability / 10, b.capability % 10, b.n_sms, (double)bytes / 1e9, version / 1000,
             version % 1000 / 10);
    return true;
}

/* ---- opening and closing ----------------------------------------------------------------------
 */

/* Every call comes here first: the caller may be another thread than last time. */
static int enter(struct backend *b, struct err *err) {
    if (b->is_broken)
        return err_set(err, SLUICE_ERR_DEVICE, "the CUDA device failed earlier; close the engine");
    return driver_check(driver.context_set(b->context), "the CUDA context", err);
}

static void free_block(struct cuda_block *block) {
    if (block->at)
        driver.free(block->at);
    *block = (struct cuda_block){0};
}

/* A lost context frees nothing by name; releasing it frees everything. */
static void cuda_close(struct backend *b) {
    if (!b)
        return;
    if (b->context) {
        driver.context_set(b->context);
        if (b->aside)
            driver.stream_sync(b->aside);
        for (uint32_t i = 0; i < b->n_recordings; i++) {
            if (b->recordings[i].graph)
                driver.graph_exec_destroy(b->recordings[i].graph);
            if (b->recordings[i].burst)
                driver.graph_exec_destroy(b->recordings[i].burst);
            free(b->recordings[i].nodes);
        }
        if (b->trace) {
            driver.host_free(b->trace);
            b->stamps = (struct cuda_block){0};
        }
        struct cuda_block *blocks[] = {&b->weights,  &b->state,   &b->scratch, &b->work,
                                       &b->counters, &b->io_copy, &b->stamps};
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
            free_block(blocks[i]);
        if (b->idle)
            driver.graph_exec_destroy(b->idle);
        if (b->io)
            driver.host_free(b->io);
        for (uint32_t i = 0; i < b->n_modules; i++)
            driver.module_unload(b->modules[i]);
        if (b->stream)
            driver.stream_destroy(b->stream);
        if (b->aside)
            driver.stream_destroy(b->aside);
        driver.context_release(b->device);
    }
    free(b->recordings);
    free(b->places);
    arena_free(&b->arena);
    free(b);
}

static int cuda_open(struct backend **out, const struct backend_options *options, struct err *err) {
    *out = NULL;
    struct backend *b = calloc(1, sizeof *b);
    if (!b)
        return err_memory(err, "the CUDA backend");
    b->exact = options->exact;
    int status = find_device(b, options->device, err);
    if (!status) {
        status = driver_check(driver.context_retain(&b->context, b->device),
                              "opening the CUDA device", err);
        if (status)
            b->context = NULL;
    }
    if (!status)
        status = enter(b, err);
    if (!status)
        status =
            driver_check(driver.stream_create(&b->stream, CU_STREAM_NON_BLOCKING), "a stream", err);
    if (!status)
        status =
            driver_check(driver.stream_create(&b->aside, CU_STREAM_NON_BLOCKING), "a stream", err);
    if (status) {
        cuda_close(b);
        return status;
    }
    *out = b;
    return SLUICE_OK;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

enum { STAMP_BYTES = MAX_STAMPS * sizeof(uint64_t) };

static uint64_t most(struct plan *const *plans, uint32_t n_plans, enum region region) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_plans; i++)
        bytes = plans[i]->bytes[region] > bytes ? plans[i]->bytes[region] : bytes;
    return bytes;
}

/* The part of IO that has a copy on the device: all that comes before the page changes. */
static uint64_t copied_io(struct plan *const *plans, uint32_t n_plans) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_plans; i++)
        bytes = plans[i]->io.changes > bytes ? plans[i]->io.changes : bytes;
    return bytes;
}

/* What the plans need of the backend's own memory. */
struct needs {
    uint64_t work, counters, io_copy;
};

/* Gives every weight its place and counts. */
static int survey(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                  struct backend_memory *out, struct needs *needs, struct err *err) {
    int status = cuda_place_weights(b, plans, n_plans, err);
    if (!status)
        status = cuda_count(b, plans, n_plans, &needs->work, &needs->counters, err);
    if (status)
        return status;
    needs->io_copy = copied_io(plans, n_plans);
    *out = (struct backend_memory){
        .weights = b->weight_bytes,
        .state = most(plans, n_plans, REGION_STATE),
        .scratch = most(plans, n_plans, REGION_SCRATCH),
        .io = most(plans, n_plans, REGION_IO),
        .workspace = needs->work + needs->counters + needs->io_copy + STAMP_BYTES,
        .driver = b->driver_bytes,
    };
    return SLUICE_OK;
}

static int cuda_predict(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                        struct backend_memory *out, struct err *err) {
    struct needs ignored;
    return survey(b, plans, n_plans, out, &ignored, err);
}

static int cuda_available(struct backend *b, uint64_t *bytes, struct err *err) {
    size_t available = 0, total = 0;
    int status = enter(b, err);
    if (!status)
        status = driver_check(driver.memory_info(&available, &total), "the device's memory", err);
    *bytes = available;
    return status;
}

static int make_block(struct backend *b, struct cuda_block *block, uint64_t bytes, bool is_zeroed,
                      const char *what, struct err *err) {
    block->bytes = bytes;
    if (bytes == 0)
        return SLUICE_OK;
    int status = driver_check(driver.alloc(&block->at, bytes), what, err);
    if (status)
        return err_prefix(err, "%.3f GB on the device for", (double)bytes / 1e9);
    b->count.allocations++;
    return is_zeroed ? driver_check(driver.set_bytes(block->at, 0, bytes, b->stream), what, err)
                     : SLUICE_OK;
}

/* IO is the host's memory, seen by the device. The flag that ends a step has a line to itself. */
static int make_io(struct backend *b, uint64_t bytes, struct err *err) {
    void *host = NULL;
    b->io_bytes = bytes;
    CHECK(size_align(bytes, 128, &bytes));
    int status = driver_check(driver.host_alloc(&host, bytes + 128, CU_MEMHOSTALLOC_DEVICEMAP),
                              "host memory for IO", err);
    if (!status) {
        b->io = host;
        memset(b->io, 0, bytes + 128);
        b->count.allocations++;
        status = driver_check(driver.host_address(&b->io_device, host, 0), "mapping IO", err);
    }
    b->done = (volatile uint64_t *)(b->io + bytes);
    b->done_device = b->io_device + bytes;
    return status;
}

/* Times of kernels. After a fault nothing can be read from the device any more, so whoever looks
 * for one has them in mapped host memory, which costs every stage a write to it. */
static int make_stamps(struct backend *b, struct err *err) {
    const char *trace = getenv("SLUICE_CUDA_TRACE");
    if (!trace || strcmp(trace, "1") != 0)
        return make_block(b, &b->stamps, STAMP_BYTES, true, "times", err);
    void *host = NULL;
    int status = driver_check(driver.host_alloc(&host, STAMP_BYTES, CU_MEMHOSTALLOC_DEVICEMAP),
                              "host memory for times", err);
    if (!status) {
        b->trace = host;
        b->stamps.bytes = STAMP_BYTES;
        b->count.allocations++;
        status = driver_check(driver.host_address(&b->stamps.at, host, 0), "mapping times", err);
    }
    return status;
}

static int make_blocks(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                       struct err *err) {
    struct backend_memory m;
    struct needs needs;
    int status = survey(b, plans, n_plans, &m, &needs, err);
    if (status || (status = make_block(b, &b->weights, m.weights, false, "weights", err)) ||
        (status = make_block(b, &b->state, m.state, true, "state", err)) ||
        (status = make_block(b, &b->scratch, m.scratch, true, "scratch", err)) ||
        (status = make_block(b, &b->work, needs.work, true, "workspace", err)) ||
        (status = make_block(b, &b->counters, needs.counters, true, "counters", err)) ||
        (status = make_stamps(b, err)) ||
        (status = make_block(b, &b->io_copy, needs.io_copy, true, "the copy of IO", err)))
        return status;
    return make_io(b, m.io, err);
}

static int cuda_load(struct backend *b, struct backend_weights weights, struct plan *const *plans,
                     uint32_t n_plans, void (*progress)(void *user, uint64_t done, uint64_t total),
                     void *user, struct err *err) {
    uint64_t before = 0, after = 0;
    int status = cuda_available(b, &before, err);
    if (!status)
        status = cuda_load_modules(b, err);
    if (!status)
        status = make_blocks(b, plans, n_plans, err);
    if (!status)
        status = cuda_upload(b, weights, progress, user, err);
    if (!status)
        status = cuda_record(b, plans, n_plans, err);
    if (!status)
        status = cuda_available(b, &after, err);
    uint64_t ours = b->weights.bytes + b->state.bytes + b->scratch.bytes + b->work.bytes +
                    b->counters.bytes + b->io_copy.bytes + b->stamps.bytes;
    b->driver_bytes = before > after + ours ? before - after - ours : 0;
    return status;
}

/* ---- a step -----------------------------------------------------------------------------------
 */

static const struct io_header *header_of(const struct backend *b) {
    return (const struct io_header *)b->io;
}

static void check_io(const struct backend *b, const struct plan *plan) {
    CHECK(header_of(b)->n_rows <= plan->max_rows && header_of(b)->n_outputs <= plan->max_outputs);
}

static int launch_graph(struct backend *b, uint32_t plan, bool is_burst, struct err *err) {
    CHECK(plan < b->n_recordings);
    const struct cuda_recording *r = &b->recordings[plan];
    check_io(b, r->plan);
    int status = enter(b, err);
    if (b->trace)
        memset(b->trace, 0, STAMP_BYTES);
    if (!status)
        status = driver_check(driver.graph_launch(is_burst ? r->burst : r->graph, b->stream),
                              "submitting a step", err);
    b->running = plan;
    b->is_burst = is_burst;
    b->submitted_at = seconds_now();
    b->count.submissions++;
    return status;
}

static int cuda_submit(struct backend *b, uint32_t plan, struct err *err) {
    return launch_graph(b, plan, false, err);
}

static bool cuda_has_burst(const struct backend *b, uint32_t plan) {
    return b->recordings[plan].burst != NULL;
}

static int cuda_submit_burst(struct backend *b, uint32_t plan, struct err *err) {
    return launch_graph(b, plan, true, err);
}

enum {
    EARLY_US = 6, /* the host is awake so long before the expected end, */
    MOST_LATE_US =
        150, /* and as long as sleeping usually lasts too long, but no longer than this */
    LEAST_SLEEP_US = 20,
    NAP_US = 250, /* from a longer sleep a processor takes longer to wake: 25 us, where it is 7 */
};

static bool is_done(const struct backend *b, uint64_t step) {
    return __atomic_load_n(b->done, __ATOMIC_ACQUIRE) == step;
}

/* Until shortly before the step is expected to end, or it is over after a nap. The kernel's usual
 * slack of 50 us would cost more than it saves, so it is turned off meanwhile. */
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

/* A step failed on the device: with a trace, where. A kernel notes when its turn came, so the one
 * that did so last is it, or what the one behind it does before its turn. */
static int step_failed(struct backend *b, CUresult state, struct err *err) {
    const struct cuda_recording *r = &b->recordings[b->running];
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
        err_prefix(err, "%s", cuda_op_text(r->plan, r->nodes[last].op, text, sizeof text));
    return status;
}

/* A step that takes much longer than usual may have failed: then the flag never comes. */
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
        if (!is_done(b, step)) /* what was written is seen once the stream is over */
            return err_set(err, SLUICE_ERR_DEVICE, "a step ended on the device without saying so");
    }
    return SLUICE_OK;
}

/* What is learnt of how long such a step takes: sooner than expected counts at once, later slowly.
 * Where the host overslept, how long it took is known to a nap, if the host was not awake too late
 * even for that. */
static void learn(double *expected, double took, bool overslept) {
    if (overslept && took < *expected)
        *expected = took < 0.95 * *expected ? took : 0.95 * *expected;
    else if (!overslept)
        *expected = *expected == 0 || took < *expected ? took : 0.9 * *expected + 0.1 * took;
}

/* How much later than asked for the host wakes: in one of 20 times it is more than this. How much
 * more counts for nothing: where other work gets in between, it may be milliseconds. */
static void learn_late(double *usual, double late) {
    *usual += late > *usual ? 4e-6 : -0.2e-6;
    if (*usual > 1e-6 * MOST_LATE_US)
        *usual = 1e-6 * MOST_LATE_US;
}

/* Behind a sleep a submission takes the driver 10 us instead of 6; so one that does nothing goes
 * before it, while the device is still busy. */
static void wake_driver(struct backend *b) {
    driver.graph_launch(b->idle, b->aside);
}

static int cuda_wait(struct backend *b, struct err *err) {
    struct cuda_recording *r = &b->recordings[b->running];
    double *expected = b->is_burst ? &r->expected_of_burst : &r->expected;
    double wake = b->submitted_at + 0.985 * *expected - b->late - 1e-6 * EARLY_US;
    uint64_t step = header_of(b)->step;
    bool overslept = false;
    int status = enter(b, err);
    if (status)
        return status;
    if (wake > seconds_now() + 1e-6 * LEAST_SLEEP_US) {
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

/* Every kernel notes when its turn came, and the last one when it was over: an op's time is from
 * its turn to the next op's. So the step is the one that is always run. */
static int cuda_time_ops(struct backend *b, uint32_t plan, double *op_seconds, struct err *err) {
    const struct cuda_recording *r = &b->recordings[plan];
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
    for (uint32_t i = 0; !status && i < r->n_nodes; i++)
        if (r->nodes[i].op < r->plan->n_ops)
            op_seconds[r->nodes[i].op] += 1e-9 * (double)(int64_t)(stamps[i + 1] - stamps[i]);
    free(stamps);
    return status;
}

static int cuda_run_op(struct backend *b, uint32_t plan, uint32_t op, struct err *err) {
    const struct cuda_recording *r = &b->recordings[plan];
    int status = enter(b, err);
    for (uint32_t i = 0; !status && i < r->n_nodes; i++)
        if (r->nodes[i].op == op)
            status = cuda_run_node(b, &r->nodes[i], true, err);
    return status ? status
                  : driver_check(driver.stream_sync(b->stream), "an op failed on the device", err);
}

/* ---- STATE ------------------------------------------------------------------------------------
 */

static CUdeviceptr state_at(const struct backend *b, uint64_t offset, uint64_t bytes) {
    CHECK(offset <= b->state.bytes && bytes <= b->state.bytes - offset);
    return b->state.at + offset;
}

static int count_copy(struct backend *b, uint64_t bytes, CUresult result, struct err *err) {
    int status = driver_check(result, "copying state", err);
    if (!status)
        status = driver_check(driver.stream_sync(b->stream), "copying state", err);
    b->count.host_copies++;
    b->count.host_copy_bytes += bytes;
    return status;
}

static int cuda_read_state(struct backend *b, uint64_t offset, uint64_t bytes, void *to,
                           struct err *err) {
    int status = enter(b, err);
    return status
               ? status
               : count_copy(b, bytes,
                            driver.copy_out(to, state_at(b, offset, bytes), bytes, b->stream), err);
}

static int cuda_write_state(struct backend *b, uint64_t offset, uint64_t bytes, const void *from,
                            struct err *err) {
    int status = enter(b, err);
    return status ? status
                  : count_copy(b, bytes,
                               driver.copy_in(state_at(b, offset, bytes), from, bytes, b->stream),
                               err);
}

static const struct cuda_block *block_of(const struct backend *b, enum region region,
                                         uint64_t offset, uint64_t bytes) {
    const struct cuda_block *block = region == REGION_STATE ? &b->state : &b->scratch;
    CHECK(region == REGION_STATE || region == REGION_SCRATCH);
    CHECK(offset <= block->bytes && bytes <= block->bytes - offset);
    return block;
}

static int cuda_peek(struct backend *b, enum region region, uint64_t offset, uint64_t bytes,
                     void *to, struct err *err) {
    const struct cuda_block *block = block_of(b, region, offset, bytes);
    int status = enter(b, err);
    return status ? status
                  : count_copy(b, bytes, driver.copy_out(to, block->at + offset, bytes, b->stream),
                               err);
}

static int cuda_poke(struct backend *b, enum region region, uint64_t offset, uint64_t bytes,
                     const void *from, struct err *err) {
    const struct cuda_block *block = block_of(b, region, offset, bytes);
    int status = enter(b, err);
    return status ? status
                  : count_copy(b, bytes, driver.copy_in(block->at + offset, from, bytes, b->stream),
                               err);
}

/* Behind it in the stream comes the next step: nobody needs to wait. */
static int cuda_copy_state(struct backend *b, uint64_t to, uint64_t from, uint64_t bytes,
                           struct err *err) {
    int status = enter(b, err);
    return status ? status
                  : driver_check(driver.copy_within(state_at(b, to, bytes),
                                                    state_at(b, from, bytes), bytes, b->stream),
                                 "copying state", err);
}

static int cuda_clear_state(struct backend *b, uint64_t offset, uint64_t bytes, struct err *err) {
    int status = enter(b, err);
    return status || !bytes
               ? status
               : driver_check(driver.set_bytes(state_at(b, offset, bytes), 0, bytes, b->stream),
                              "clearing state", err);
}

/* ---- the limit --------------------------------------------------------------------------------
 */

/* Two gigabytes, or a quarter of what is free: much more than the caches hold. */
static int cuda_bandwidth(struct backend *b, double *bytes_per_second, struct err *err) {
    enum { TRIES = 12 };
    uint64_t available;
    CUdeviceptr room = 0;
    CUevent events[2] = {0};
    int status = cuda_available(b, &available, err);
    uint64_t bytes = available / 4 < 2ull << 30 ? available / 4 / 65536 * 65536 : 2ull << 30;
    struct read_params p = {.bytes = bytes, .sink = (uint32_t *)(uintptr_t)b->counters.at};
    struct cuda_node node = {
        .params = &p,
        .launch = {.kernel = "read_memory", .grid = {b->n_sms * 8, 1, 1}, .threads = 512},
    };
    *bytes_per_second = 0;
    if (status || (status = driver_check(driver.alloc(&room, bytes), "memory to read", err)) ||
        (status = driver_check(driver.event_create(&events[0], 0), "an event", err)) ||
        (status = driver_check(driver.event_create(&events[1], 0), "an event", err)) ||
        (status = driver_check(driver.set_bytes(room, 0, bytes, b->stream), "memory", err)))
        goto out;
    p.from = (const uint8_t *)(uintptr_t)room;
    node.function = cuda_function(b, node.launch.kernel);
    for (int i = 0; !status && i < TRIES; i++) {
        float ms = 0;
        if ((status = driver_check(driver.event_record(events[0], b->stream), "an event", err)) ||
            (status = cuda_run_node(b, &node, false, err)) ||
            (status = driver_check(driver.event_record(events[1], b->stream), "an event", err)) ||
            (status = driver_check(driver.stream_sync(b->stream), "reading memory", err)) ||
            (status =
                 driver_check(driver.event_milliseconds(&ms, events[0], events[1]), "timing", err)))
            break;
        double rate = (double)bytes / (1e-3 * ms);
        *bytes_per_second = rate > *bytes_per_second ? rate : *bytes_per_second;
    }
out:
    for (int i = 0; i < 2; i++)
        if (events[i])
            driver.event_destroy(events[i]);
    if (room)
        driver.free(room);
    return status;
}

/* ---- the rest ---------------------------------------------------------------------------------
 */

static uint8_t *cuda_io(struct backend *b) {
    return b->io;
}

static void cuda_memory(const struct backend *b, struct backend_memory *out) {
    *out = (struct backend_memory){
        .weights = b->weights.bytes,
        .state = b->state.bytes,
        .scratch = b->scratch.bytes,
        .io = b->io_bytes,
        .workspace = b->work.bytes + b->counters.bytes + b->io_copy.bytes + b->stamps.bytes,
        .driver = b->driver_bytes,
    };
}

static void cuda_counters(const struct backend *b, struct backend_counters *out) {
    *out = b->count;
}

const struct backend_kind backend_cuda = {
    .name = "cuda",
    .max_rows = 128,
    .open = cuda_open,
    .close = cuda_close,
    .predict = cuda_predict,
    .available = cuda_available,
    .load = cuda_load,
    .io = cuda_io,
    .submit = cuda_submit,
    .wait = cuda_wait,
    .has_burst = cuda_has_burst,
    .submit_burst = cuda_submit_burst,
    .read_state = cuda_read_state,
    .write_state = cuda_write_state,
    .copy_state = cuda_copy_state,
    .clear_state = cuda_clear_state,
    .memory = cuda_memory,
    .counters = cuda_counters,
    .time_ops = cuda_time_ops,
    .run_op = cuda_run_op,
    .peek = cuda_peek,
    .poke = cuda_poke,
    .bandwidth = cuda_bandwidth,
    .device_line = cuda_device_line,
};
