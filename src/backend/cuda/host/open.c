/* open.c - the CUDA backend: devices, opening and closing, memory, loading. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/host/cuda.h"
#include "backend/cuda/ops/state.h"
#include "base/locale.h"
#include "base/size.h"

/* ---- devices ------------------------------------------------------------------------------ */

static int attribute(CUdevice device, CUdevice_attribute what) {
    int value = 0;
    driver.device_attribute(&value, what, device);
    return value;
}

/* SLUICE_CUDA_CAPABILITY=80: the kernels of an older device, for tests on a newer one, and its
 * shared memory. */
static void lower_capability(struct backend *b) {
    const char *wanted = getenv("SLUICE_CUDA_CAPABILITY");
    int capability = wanted ? atoi(wanted) : 0;
    if (capability <= 0 || capability >= b->capability)
        return;
    b->capability = capability;
    if (capability < 90)
        b->max_shared = min_u32(b->max_shared, (capability == 80 ? 163 : 99) << 10);
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
    lower_capability(b);
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
    locale_print(out, size,
                 "cuda: device %d, %s, compute %d.%d, %u SMs, %.1f GB, driver for CUDA %d.%d", i,
                 name, b.capability / 10, b.capability % 10, b.n_sms, (double)bytes / 1e9,
                 version / 1000, version % 1000 / 10);
    return true;
}

/* ---- opening and closing ------------------------------------------------------------------ */

int cuda_enter(struct backend *b, struct err *err) {
    if (b->is_broken)
        return err_set(err, SLUICE_ERR_DEVICE, "the CUDA device failed earlier; close the engine");
    return driver_check(driver.context_set(b->context), "the CUDA context", err);
}

static void free_buffer(struct cuda_buffer *buffer) {
    if (buffer->at)
        driver.free(buffer->at);
    *buffer = (struct cuda_buffer){0};
}

/* What cuda_read_at_fence needs. The thread that calls it sleeps until its copies are done. */
static int open_copy_stream(struct backend *b, struct err *err) {
    int status = driver_check(driver.stream_create(&b->copy_stream, CU_STREAM_NON_BLOCKING),
                              "a stream", err);
    if (!status)
        status = driver_check(
            driver.event_create(&b->copied, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING),
            "an event", err);
    for (uint32_t i = 0; !status && i < BACKEND_FENCES; i++)
        status = driver_check(driver.event_create(&b->fences[i], CU_EVENT_DISABLE_TIMING),
                              "an event", err);
    return status;
}

static void close_copy_stream(struct backend *b) {
    for (uint32_t i = 0; i < BACKEND_FENCES; i++)
        if (b->fences[i])
            driver.event_destroy(b->fences[i]);
    if (b->copied)
        driver.event_destroy(b->copied);
    if (b->copy_stream)
        driver.stream_destroy(b->copy_stream);
}

static void close_variant(struct cuda_recording *r) {
    if (r && r->graph)
        driver.graph_exec_destroy(r->graph);
    if (r)
        free(r->nodes);
    free(r);
}

/* A lost context frees nothing by name; releasing it frees everything. */
static void cuda_close(struct backend *b) {
    if (!b)
        return;
    if (b->context) {
        driver.context_set(b->context);
        if (b->wake_stream)
            driver.stream_sync(b->wake_stream);
        close_copy_stream(b);
        for (uint32_t i = 0; i < b->n_recordings; i++) {
            if (b->recordings[i].graph)
                driver.graph_exec_destroy(b->recordings[i].graph);
            if (b->recordings[i].burst)
                driver.graph_exec_destroy(b->recordings[i].burst);
            free(b->recordings[i].nodes);
            close_variant(b->recordings[i].decode);
            close_variant(b->recordings[i].few);
        }
        if (b->trace) {
            driver.host_free(b->trace);
            b->stamps = (struct cuda_buffer){0};
        }
        struct cuda_buffer *buffers[] = {&b->weights,  &b->state,   &b->scratch, &b->work,
                                         &b->counters, &b->io_copy, &b->stamps,  &b->log_memory};
        for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
            free_buffer(buffers[i]);
        if (b->empty_graph)
            driver.graph_exec_destroy(b->empty_graph);
        if (b->io)
            driver.host_free(b->io);
        for (uint32_t i = 0; i < b->n_modules; i++)
            if (b->modules[i])
                driver.module_unload(b->modules[i]);
        if (b->stream)
            driver.stream_destroy(b->stream);
        if (b->wake_stream)
            driver.stream_destroy(b->wake_stream);
        driver.context_release(b->device);
    }
    free(b->recordings);
    free(b->weight_list);
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
        status = cuda_enter(b, err);
    if (!status)
        status =
            driver_check(driver.stream_create(&b->stream, CU_STREAM_NON_BLOCKING), "a stream", err);
    if (!status)
        status = driver_check(driver.stream_create(&b->wake_stream, CU_STREAM_NON_BLOCKING),
                              "a stream", err);
    if (!status)
        status = open_copy_stream(b, err);
    if (status) {
        cuda_close(b);
        return status;
    }
    *out = b;
    return SLUICE_OK;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* What the plans need of the backend's own memory. */
struct needs {
    uint64_t work, counters, io_copy;
};

/* Gives every weight its address and adds up. */
static int survey(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                  struct backend_memory *out, struct needs *needs, struct err *err) {
    int status = cuda_place_weights(b, plans, n_plans, err);
    if (!status)
        status = cuda_count(b, plans, n_plans, &needs->work, &needs->counters, err);
    if (status)
        return status;
    needs->io_copy = plans_copied_io(plans, n_plans);
    *out = (struct backend_memory){
        .weights = b->weight_bytes,
        .state = plans_bytes(plans, n_plans, REGION_STATE),
        .scratch = plans_bytes(plans, n_plans, REGION_SCRATCH),
        .io = plans_bytes(plans, n_plans, REGION_IO),
        .workspace = needs->work + needs->counters + needs->io_copy + b->logs.bytes + STAMP_BYTES,
        .driver = b->driver_bytes,
    };
    return SLUICE_OK;
}

static int cuda_predict(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                        struct backend_memory *out, struct err *err) {
    struct needs ignored;
    return survey(b, plans, n_plans, out, &ignored, err);
}

int cuda_available(struct backend *b, uint64_t *bytes, struct err *err) {
    size_t available = 0, total = 0;
    int status = cuda_enter(b, err);
    if (!status)
        status = driver_check(driver.memory_info(&available, &total), "the device's memory", err);
    *bytes = available;
    return status;
}

static int make_buffer(struct backend *b, struct cuda_buffer *buffer, uint64_t bytes,
                       bool is_zeroed, const char *what, struct err *err) {
    buffer->bytes = bytes;
    if (bytes == 0)
        return SLUICE_OK;
    int status = driver_check(driver.alloc(&buffer->at, bytes), what, err);
    if (status)
        return err_prefix(err, "%.3f GB on the device for", (double)bytes / 1e9);
    b->count.allocations++;
    return is_zeroed ? driver_check(driver.set_bytes(buffer->at, 0, bytes, b->stream), what, err)
                     : SLUICE_OK;
}

/* IO is mapped host memory. The flag that ends a step has a cache line to itself. */
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

/* The kernels' time stamps. After a fault nothing can be read from the device any more, so with
 * SLUICE_CUDA_TRACE=1 they are in mapped host memory, which costs every kernel a write to it. */
static int make_stamps(struct backend *b, struct err *err) {
    const char *trace = getenv("SLUICE_CUDA_TRACE");
    if (!trace || strcmp(trace, "1") != 0)
        return make_buffer(b, &b->stamps, STAMP_BYTES, true, "times", err);
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

static int make_buffers(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                        struct err *err) {
    struct backend_memory m;
    struct needs needs;
    int status = survey(b, plans, n_plans, &m, &needs, err);
    if (status || (status = make_buffer(b, &b->weights, m.weights, false, "weights", err)) ||
        (status = make_buffer(b, &b->state, m.state, true, "state", err)) ||
        (status = make_buffer(b, &b->scratch, m.scratch, true, "scratch", err)) ||
        (status = make_buffer(b, &b->work, needs.work, true, "workspace", err)) ||
        (status = make_buffer(b, &b->counters, needs.counters, true, "counters", err)) ||
        (status = make_buffer(b, &b->log_memory, b->logs.bytes, true, "logs of states", err)) ||
        (status = cuda_open_logs(b, err)) || (status = make_stamps(b, err)) ||
        (status = make_buffer(b, &b->io_copy, needs.io_copy, true, "the copy of IO", err)))
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
    if (!status && !(b->copy = cuda_function(b, COPY_KERNEL)))
        status = err_set(err, SLUICE_ERR_DEVICE, "no CUDA kernel %s in this program", COPY_KERNEL);
    if (!status)
        status = make_buffers(b, plans, n_plans, err);
    if (!status)
        status = cuda_upload(b, weights, progress, user, err);
    if (!status)
        status = cuda_record(b, plans, n_plans, err);
    if (!status)
        status = cuda_available(b, &after, err);
    uint64_t ours = b->weights.bytes + b->state.bytes + b->scratch.bytes + b->work.bytes +
                    b->counters.bytes + b->io_copy.bytes + b->stamps.bytes + b->log_memory.bytes;
    b->driver_bytes = before > after + ours ? before - after - ours : 0;
    return status;
}

/* ---- the backend -------------------------------------------------------------------------- */

static uint8_t *cuda_io(struct backend *b) {
    return b->io;
}

static void cuda_memory(const struct backend *b, struct backend_memory *out) {
    *out = (struct backend_memory){
        .weights = b->weights.bytes,
        .state = b->state.bytes,
        .scratch = b->scratch.bytes,
        .io = b->io_bytes,
        .workspace = b->work.bytes + b->counters.bytes + b->io_copy.bytes + b->stamps.bytes +
                     b->log_memory.bytes,
        .driver = b->driver_bytes,
    };
}

static void cuda_counters(const struct backend *b, struct backend_counters *out) {
    *out = b->count;
}

const struct backend_kind backend_cuda = {
    .name = "cuda",
    .numerics = 3, /* 2: one order of sums for all products; 3: Q8_0 has 128 activations a scale */
    .max_rows = 4096,
    .prefill = 4096,
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
    .move_state = cuda_move_state,
    .copy_state = cuda_copy_state,
    .fence = cuda_fence,
    .read_at_fence = cuda_read_at_fence,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .memory = cuda_memory,
    .counters = cuda_counters,
    .time_ops = cuda_time_ops,
    .run_op = cuda_run_op,
    .op_kernel = cuda_op_kernel,
    .peek = cuda_peek,
    .poke = cuda_poke,
    .bandwidth = cuda_bandwidth,
    .peak = cuda_peak,
    .device_line = cuda_device_line,
};
