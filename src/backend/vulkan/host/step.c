/* step.c - a step: one submission, one wait. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/vulkan/host/host.h"
#include "base/clock.h"

/* What the step has of IO, to where shaders read it: the device's own memory, mostly, so that no
 * dispatch has to fetch or copy it. */
static void copy_io(struct backend *b, const struct plan *plan) {
    const uint8_t *from = b->regions[VULKAN_IO].list[0].host;
    uint8_t *to = b->regions[VULKAN_IO_COPY].list[0].host;
    const struct io_header *h = (const struct io_header *)from;
    const struct {
        uint64_t at, bytes;
    } parts[] = {
        {0, sizeof *h},
        {plan->io.rows, h->n_rows * sizeof(struct io_row)},
        {plan->io.segments, h->n_segments * sizeof(struct io_segment)},
        {plan->io.to, h->n_rows * sizeof(uint32_t)},
        {plan->io.outputs, h->n_outputs * sizeof(struct io_output)},
    };
    CHECK(h->n_rows <= plan->max_rows && h->n_segments <= plan->max_rows &&
          h->n_outputs <= plan->max_outputs);
    for (uint32_t i = 0; i < sizeof parts / sizeof *parts; i++)
        memcpy(to + parts[i].at, from + parts[i].at, parts[i].bytes);
}

/* Whether the step's outputs take the best token of their logits as they are. */
static bool is_greedy(const struct backend *b, const struct plan *plan) {
    const uint8_t *io = b->regions[VULKAN_IO].list[0].host;
    const struct io_output *o = (const struct io_output *)(io + plan->io.outputs);
    uint32_t n = ((const struct io_header *)io)->n_outputs;
    for (uint32_t i = 0; i < n; i++)
        if (o[i].flags & IO_WANTS_TOKEN &&
            (o[i].temperature > 0 || o[i].flags & IO_HAS_MASK || o[i].n_bias ||
             o[i].repeat_penalty != 1 || o[i].presence_penalty != 0 || o[i].frequency_penalty != 0))
            return false;
    return true;
}

/* What serves the step that IO describes. */
static struct vulkan_recording *recording_for(const struct backend *b, uint32_t plan) {
    CHECK(plan < b->n_recordings);
    bool greedy = b->greedy[plan].n_nodes && is_greedy(b, b->recordings[plan].plan);
    return greedy ? &b->greedy[plan] : &b->recordings[plan];
}

static int submit(struct backend *b, uint32_t plan, bool is_burst, struct err *err) {
    struct vulkan_recording *r = recording_for(b, plan);
    copy_io(b, r->plan);
    int status = vulkan_enter(b, err);
    if (!status)
        status = vulkan_queue_submit(b, &b->steps, is_burst ? r->burst : r->step, VK_NULL_HANDLE, 0,
                                     err);
    b->running = r->plan;
    b->is_burst = is_burst;
    b->expected = is_burst ? &r->expected_of_burst : &r->expected;
    b->submitted_at = seconds_now();
    b->count.submissions++;
    return status;
}

int vulkan_submit(struct backend *b, uint32_t plan, struct err *err) {
    return submit(b, plan, false, err);
}

bool vulkan_has_burst(const struct backend *b, uint32_t plan) {
    return b->recordings[plan].burst != VK_NULL_HANDLE;
}

int vulkan_submit_burst(struct backend *b, uint32_t plan, struct err *err) {
    return submit(b, plan, true, err);
}

/* A driver's wait ends tens of microseconds after the device has. So the host sleeps for most of
 * what the step usually takes, then polls the timeline; a step that takes much longer is waited
 * for. The processor is not polled where it computes the step itself. */
enum { MIN_SLEEP_US = 200, POLL_US = 2000 };

static void sleep_until(double when) {
    struct timespec t = {.tv_sec = (time_t)when};
    t.tv_nsec = (long)((when - (double)t.tv_sec) * 1e9);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void poll_step(struct backend *b) {
    double wake = b->submitted_at + 0.9 * *b->expected - 1e-4, now = seconds_now();
    uint64_t value = 0;
    if (wake > now + 1e-6 * MIN_SLEEP_US)
        sleep_until(wake);
    double end = seconds_now() + 1e-6 * POLL_US;
    while (vk.semaphore_value(b->device, b->steps.timeline, &value) == VK_SUCCESS &&
           value < b->steps.submitted && seconds_now() < end)
        ;
}

/* PICK's token where a stage did not see the one before it end (stage.glsl). */
enum { STAGE_FAILED = -3 };

static int check_stages(const struct backend *b, struct err *err) {
    const uint8_t *io = b->regions[VULKAN_IO].list[0].host;
    const struct io_output *o = (const struct io_output *)(io + b->running->io.outputs);
    const int32_t *burst = (const int32_t *)(io + b->running->io.burst);
    uint32_t n = ((const struct io_header *)io)->n_outputs;
    uint32_t steps = b->is_burst ? plan_burst_steps(b->running) : 1;
    bool has_failed = false;
    for (uint32_t i = 0; i < n; i++) {
        has_failed = has_failed || o[i].token == STAGE_FAILED; /* the last step's */
        for (uint32_t k = 0; k + 1 < steps; k++)
            has_failed = has_failed || burst[i * IO_BURST + k] == STAGE_FAILED;
    }
    return !has_failed ? SLUICE_OK
                       : err_set(err, SLUICE_ERR_DEVICE,
                                 "%s: the driver does not start dispatches in order, expected of "
                                 "NVIDIA's; SLUICE_VULKAN_STAGES=0 has barriers between them",
                                 b->name);
}

int vulkan_wait(struct backend *b, struct err *err) {
    int status = vulkan_enter(b, err);
    b->count.waits++;
    if (!status && !b->is_cpu)
        poll_step(b);
    if (!status)
        status = vulkan_queue_wait(b, &b->steps, err);
    if (!status && b->can.starts_in_order)
        status = check_stages(b, err);
    double took = seconds_now() - b->submitted_at, *expected = b->expected;
    *expected = *expected == 0 || took < *expected ? took : 0.9 * *expected + 0.1 * took;
    return status;
}

/* ---- ops alone ---------------------------------------------------------------------------- */

static uint32_t first_node(const struct vulkan_recording *r, uint32_t op) {
    uint32_t i = 0;
    while (i < r->n_nodes && r->nodes[i].op < op)
        i++;
    return i;
}

int vulkan_run_op(struct backend *b, uint32_t plan, uint32_t op, struct err *err) {
    const struct vulkan_recording *r = recording_for(b, plan);
    uint32_t first = first_node(r, op), n = first_node(r, op + 1) - first, ignored = 0;
    VkCommandBuffer commands;
    int status = vulkan_enter(b, err);
    copy_io(b, r->plan);
    if (!status)
        status = vulkan_queue_begin(b, &b->steps, &commands, err);
    if (status)
        return status;
    vulkan_encode(b, commands, r->nodes + first, n, false, &ignored);
    status = vulkan_queue_end(b, &b->steps, VK_NULL_HANDLE, 0, err);
    return status ? status : vulkan_queue_wait(b, &b->steps, err);
}

/* The step with a time stamp before every op and a barrier after it. */
static int run_stamped(struct backend *b, const struct vulkan_recording *r, VkQueryPool queries,
                       struct err *err) {
    const struct plan *plan = r->plan;
    VkCommandBuffer commands;
    uint32_t ignored = 0;
    copy_io(b, plan);
    int status = vulkan_queue_begin(b, &b->steps, &commands, err);
    if (status)
        return status;
    vk.cmd_reset_queries(commands, queries, 0, plan->n_ops + 1);
    for (uint32_t op = 0; op < plan->n_ops; op++) {
        uint32_t first = first_node(r, op);
        vk.cmd_time(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries, op);
        vulkan_encode(b, commands, r->nodes + first, first_node(r, op + 1) - first, false,
                      &ignored);
        vulkan_full_barrier(commands);
    }
    vk.cmd_time(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries, plan->n_ops);
    status = vulkan_queue_end(b, &b->steps, VK_NULL_HANDLE, 0, err);
    return status ? status : vulkan_queue_wait(b, &b->steps, err);
}

static int time_by_stamps(struct backend *b, const struct vulkan_recording *r, double *seconds,
                          struct err *err) {
    uint32_t n = r->plan->n_ops + 1;
    const VkQueryPoolCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
        .queryType = VK_QUERY_TYPE_TIMESTAMP,
        .queryCount = n,
    };
    VkQueryPool queries;
    uint64_t *stamps = calloc(n, sizeof *stamps);
    if (!stamps)
        return err_memory(err, "times");
    int status =
        vulkan_done(b, vk.create_queries(b->device, &info, NULL, &queries), "time stamps", err);
    if (status) {
        free(stamps);
        return status;
    }
    status = run_stamped(b, r, queries, err);
    if (!status)
        status = vulkan_done(b,
                             vk.query_results(b->device, queries, 0, n, n * sizeof *stamps, stamps,
                                              sizeof *stamps,
                                              VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
                             "time stamps", err);
    uint64_t valid = UINT64_MAX >> (64 - b->time_bits); /* of some GPUs 36 bits, which wrap */
    for (uint32_t i = 0; !status && i + 1 < n; i++)
        seconds[i] = b->tick * (double)((stamps[i + 1] - stamps[i]) & valid);
    vk.destroy_queries(b->device, queries, NULL);
    free(stamps);
    return status;
}

int vulkan_time_ops(struct backend *b, uint32_t plan, double *seconds, struct err *err) {
    const struct vulkan_recording *r = recording_for(b, plan);
    int status = vulkan_enter(b, err);
    if (status || b->time_bits)
        return status ? status : time_by_stamps(b, r, seconds, err);
    for (uint32_t op = 0; !status && op < r->plan->n_ops; op++) {
        double start = seconds_now();
        status = vulkan_run_op(b, plan, op, err);
        seconds[op] = seconds_now() - start;
    }
    return status;
}

bool vulkan_op_kernel(const struct backend *b, uint32_t plan, uint32_t op, uint32_t i,
                      struct backend_kernel *out) {
    const struct vulkan_recording *r = recording_for(b, plan);
    uint32_t at = first_node(r, op) + i;
    if (at >= r->n_nodes || r->nodes[at].op != op)
        return false;
    const struct vulkan_node *node = &r->nodes[at];
    *out = (struct backend_kernel){
        .name = node->pipeline->shader->name,
        .grid = {node->groups[0], node->groups[1], node->groups[2]},
        .threads = node->pipeline->constants[0],
        .shared = node->pipeline->shared,
        .registers = (int)node->pipeline->registers,
        .code = node->pipeline->code,
    };
    return true;
}
