/* open.c - the Vulkan backend: opening and closing, memory, loading. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/vulkan/host/host.h"
#include "base/size.h"

/* ---- opening and closing ------------------------------------------------------------------ */

int vulkan_enter(const struct backend *b, struct err *err) {
    return b->dev->is_lost ? err_set(err, SLUICE_ERR_DEVICE,
                                     "the Vulkan device failed earlier; close the engine")
                           : SLUICE_OK;
}

int vulkan_done(struct backend *b, VkResult result, const char *what, struct err *err) {
    if (result == VK_ERROR_DEVICE_LOST)
        b->dev->is_lost = true;
    return vulkan_check(result, what, err);
}

/* A lost device is left like any other. */
static void vulkan_close(struct backend *b) {
    if (!b)
        return;
    if (b->dev) {
        struct err ignored;
        if (b->steps.timeline)
            vulkan_queue_wait(b, &b->steps, &ignored);
        if (b->copies.timeline)
            vulkan_queue_wait(b, &b->copies, &ignored);
        vulkan_queue_close(b, &b->steps);
        vulkan_queue_close(b, &b->copies);
        vulkan_free_sets(b);
        for (int i = 0; i < VULKAN_MEMORIES; i++)
            vulkan_region_free(b, &b->regions[i]);
        vulkan_leave_device(b);
    }
    for (uint32_t i = 0; i < b->n_recordings; i++) {
        free(b->recordings[i].nodes);
        free(b->greedy[i].nodes);
    }
    free(b->recordings);
    free(b->greedy);
    free(b->weight_list);
    free(b);
}

static int vulkan_open(struct backend **out, const struct backend_options *options,
                       struct err *err) {
    *out = NULL;
    struct backend *b = calloc(1, sizeof *b);
    if (!b)
        return err_memory(err, "the Vulkan backend");
    b->exact = options->exact;
    b->mapped = options->mapped;
    int status = vulkan_take_device(b, options->device, err);
    if (status || (status = vulkan_queue_open(b, &b->steps, 0, err)) ||
        (status = vulkan_queue_open(b, &b->copies, b->n_queues - 1, err))) {
        vulkan_close(b);
        return status;
    }
    b->has_import = vulkan_can_import(b);
    *out = b;
    return SLUICE_OK;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* As make_region has them. */
static uint64_t whole(uint64_t bytes) {
    return size_aligned(bytes, 256);
}

static uint64_t weight_bytes(const struct backend *b) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < b->n_weights; i++)
        bytes += b->weight_list[i].bytes;
    return bytes;
}

static int survey(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                  struct backend_memory *out, struct err *err) {
    int status = vulkan_place_weights(b, plans, n_plans, err);
    if (!status)
        status = vulkan_count(b, plans, n_plans, err);
    *out = (struct backend_memory){
        .weights = weight_bytes(b),
        .state = whole(plans_bytes(plans, n_plans, REGION_STATE)),
        .scratch = whole(plans_bytes(plans, n_plans, REGION_SCRATCH)),
        .io = whole(plans_bytes(plans, n_plans, REGION_IO)),
        .workspace = whole(b->work_bytes) + whole(b->table_bytes) +
                     whole(plans_copied_io(plans, n_plans)) + 2ull * STAGING_BYTES,
        .imported = vulkan_importable(b),
    };
    return status;
}

static int vulkan_predict(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                          struct backend_memory *out, struct err *err) {
    return survey(b, plans, n_plans, out, err);
}

/* A region of one buffer. */
static int make_region(struct backend *b, enum vulkan_memory m, uint64_t bytes, const char *what,
                       struct err *err) {
    struct vulkan_buffer buffer;
    bytes = whole(bytes);
    if (bytes == 0)
        return SLUICE_OK;
    enum vulkan_memory_kind kind = m == VULKAN_IO        ? VULKAN_ON_HOST
                                   : m == VULKAN_IO_COPY ? VULKAN_ON_BOTH
                                                         : VULKAN_ON_DEVICE;
    int status = vulkan_make_buffer(b, &buffer, bytes, kind, what, err);
    if (status && kind == VULKAN_ON_BOTH) /* of some GPUs 256 MB, which may be full */
        status = vulkan_make_buffer(b, &buffer, bytes, VULKAN_ON_HOST, what, err);
    if (!status && (status = vulkan_region_add(&b->regions[m], &buffer, err)))
        vulkan_free_buffer(b, &buffer);
    if (!status && m == VULKAN_IO)
        memset(buffer.host, 0, bytes);
    return status || m == VULKAN_IO ? status : vulkan_zero(b, &b->regions[m], err);
}

struct byte_range {
    uint64_t from, to;
};

static int compare_ranges(const void *a, const void *b) {
    const struct byte_range *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* A plan's operands in STATE, after the first n of the ranges; returns how many there are then. */
static uint32_t add_ranges(struct plan *plan, struct byte_range *ranges, uint32_t n) {
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        struct operand_ref refs[MAX_OPERANDS];
        uint32_t n_refs = op_operands(&plan->ops[i], refs);
        for (uint32_t k = 0; k < n_refs; k++)
            if (refs[k].at->region == REGION_STATE)
                ranges[n++] = (struct byte_range){refs[k].at->offset,
                                                  refs[k].at->offset + operand_bytes(refs[k].at)};
    }
    return n;
}

/* The operands in STATE of all plans, by offset: a draft plan has not all that others have. NULL:
 * there is no memory. */
static struct byte_range *list_state(struct plan *const *plans, uint32_t n_plans, uint32_t *n) {
    size_t most = 1;
    for (uint32_t i = 0; i < n_plans; i++)
        most += (size_t)plans[i]->n_ops * MAX_OPERANDS;
    struct byte_range *ranges = calloc(most, sizeof *ranges);
    *n = 0;
    for (uint32_t i = 0; ranges && i < n_plans; i++)
        *n = add_ranges(plans[i], ranges, *n);
    if (ranges)
        qsort(ranges, *n, sizeof *ranges, compare_ranges);
    return ranges;
}

static int add_state_buffer(struct backend *b, uint64_t begin, uint64_t end, struct err *err) {
    struct vulkan_buffer buffer;
    int status = vulkan_make_buffer(b, &buffer, end - begin, VULKAN_ON_DEVICE, "state", err);
    buffer.start = begin;
    if (!status && (status = vulkan_region_add(&b->regions[VULKAN_STATE], &buffer, err)))
        vulkan_free_buffer(b, &buffer);
    return status;
}

/* STATE in as few buffers as the device allows, cut between operands. */
static int make_state(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                      uint64_t bytes, struct err *err) {
    enum { PIECE_BYTES = 1 << 30 };
    uint64_t limit = b->max_allocation < PIECE_BYTES ? b->max_allocation : PIECE_BYTES;
    uint64_t begin = 0, end = 0; /* of the next buffer; of the operands so far */
    uint32_t n;
    struct byte_range *ranges = list_state(plans, n_plans, &n);
    if (!ranges)
        return err_memory(err, "the table of state");
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i <= n; i++) {
        bool is_cut = i == n || (ranges[i].to - begin > limit && ranges[i].from >= end &&
                                 ranges[i].from > begin && ranges[i].from % 256 == 0);
        uint64_t to = i == n ? bytes : ranges[i].from;
        if (is_cut && to > begin) {
            status = add_state_buffer(b, begin, to, err);
            begin = to;
        }
        end = i < n && ranges[i].to > end ? ranges[i].to : end;
    }
    free(ranges);
    return status || bytes == 0 ? status : vulkan_zero(b, &b->regions[VULKAN_STATE], err);
}

static int vulkan_load(struct backend *b, struct backend_weights weights, struct plan *const *plans,
                       uint32_t n_plans,
                       void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                       struct err *err) {
    struct backend_memory m;
    int status;
    if ((status = vulkan_enter(b, err)) || (status = survey(b, plans, n_plans, &m, err)) ||
        (status = vulkan_make_weights(b, weights, err)) ||
        (status = make_state(b, plans, n_plans, m.state, err)) ||
        (status = make_region(b, VULKAN_SCRATCH, m.scratch, "scratch", err)) ||
        (status = make_region(b, VULKAN_WORK, b->work_bytes, "workspace", err)) ||
        (status = make_region(b, VULKAN_TABLES, b->table_bytes, "tables", err)) ||
        (status = make_region(b, VULKAN_IO_COPY, plans_copied_io(plans, n_plans), "the copy of IO",
                              err)) ||
        (status = make_region(b, VULKAN_IO, m.io, "IO", err)) ||
        (status = vulkan_upload(b, weights, progress, user, err)) ||
        (status = vulkan_fill_tables(b, weights, err)))
        return status;
    return vulkan_record(b, plans, n_plans, err);
}

/* ---- the backend -------------------------------------------------------------------------- */

static uint8_t *vulkan_io(struct backend *b) {
    return b->regions[VULKAN_IO].list[0].host;
}

static void vulkan_memory(const struct backend *b, struct backend_memory *out) {
    *out = (struct backend_memory){
        .weights = weight_bytes(b),
        .imported = b->imported,
        .state = b->regions[VULKAN_STATE].bytes,
        .scratch = b->regions[VULKAN_SCRATCH].bytes,
        .io = b->regions[VULKAN_IO].bytes,
        .workspace = b->regions[VULKAN_WORK].bytes + b->regions[VULKAN_TABLES].bytes +
                     b->regions[VULKAN_IO_COPY].bytes + 2ull * STAGING_BYTES,
    };
}

static void vulkan_counters(const struct backend *b, struct backend_counters *out) {
    *out = b->count;
}

const struct backend_kind backend_vulkan = {
    .name = "vulkan",
    .numerics = 2, /* 2: f16 queries over an f16 cache */
    .max_rows = 512,
    .prefill = 512,
    .open = vulkan_open,
    .close = vulkan_close,
    .predict = vulkan_predict,
    .available = vulkan_available,
    .load = vulkan_load,
    .io = vulkan_io,
    .submit = vulkan_submit,
    .wait = vulkan_wait,
    .has_burst = vulkan_has_burst,
    .submit_burst = vulkan_submit_burst,
    .read_state = vulkan_read_state,
    .write_state = vulkan_write_state,
    .move_state = vulkan_move_state,
    .copy_state = vulkan_copy_state,
    .fence = vulkan_fence,
    .read_at_fence = vulkan_read_at_fence,
    .memory = vulkan_memory,
    .counters = vulkan_counters,
    .time_ops = vulkan_time_ops,
    .run_op = vulkan_run_op,
    .op_kernel = vulkan_op_kernel,
    .peek = vulkan_peek,
    .poke = vulkan_poke,
    .bandwidth = vulkan_bandwidth,
    .device_line = vulkan_device_line,
    .is_worth_taking = vulkan_is_worth_taking,
};
