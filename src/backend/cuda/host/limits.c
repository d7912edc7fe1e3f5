/* limits.c - what the device can do, measured: memory bandwidth and tensor cores. */
#include "backend/cuda/ops/limits.h"

#include "backend/cuda/host/cuda.h"

enum { TRIES = 12 };

/* The least seconds of TRIES runs of a kernel. */
static int time_node(struct backend *b, struct cuda_node *node, double *seconds, struct err *err) {
    CUevent events[2] = {0};
    int status = cuda_enter(b, err);
    node->function = cuda_function(b, node->launch.kernel);
    if (!status && !node->function)
        status = err_set(err, SLUICE_ERR_DEVICE, "no CUDA kernel %s in this program",
                         node->launch.kernel);
    for (int i = 0; !status && i < 2; i++)
        status = driver_check(driver.event_create(&events[i], 0), "an event", err);
    *seconds = 0;
    for (int i = 0; !status && i < TRIES; i++) {
        float ms = 0;
        if ((status = driver_check(driver.event_record(events[0], b->stream), "an event", err)) ||
            (status = cuda_run_node(b, node, false, err)) ||
            (status = driver_check(driver.event_record(events[1], b->stream), "an event", err)) ||
            (status = driver_check(driver.stream_sync(b->stream), node->launch.kernel, err)) ||
            (status =
                 driver_check(driver.event_milliseconds(&ms, events[0], events[1]), "timing", err)))
            break;
        *seconds = i == 0 || 1e-3 * ms < *seconds ? 1e-3 * ms : *seconds;
    }
    for (int i = 0; i < 2; i++)
        if (events[i])
            driver.event_destroy(events[i]);
    return status;
}

/* Two gigabytes, or a quarter of what is free: much more than the caches hold. */
int cuda_bandwidth(struct backend *b, double *bytes_per_second, struct err *err) {
    uint64_t available;
    CUdeviceptr room = 0;
    double seconds = 0;
    int status = cuda_available(b, &available, err);
    uint64_t bytes = available / 4 < 2ull << 30 ? available / 4 / 65536 * 65536 : 2ull << 30;
    struct read_params p = {.bytes = bytes, .sink = (uint32_t *)(uintptr_t)b->counters.at};
    struct cuda_node node = {
        .params = &p,
        .launch = {.kernel = "read_memory", .grid = {b->n_sms * 8, 1, 1}, .threads = 512},
    };
    if (!status)
        status = driver_check(driver.alloc(&room, bytes), "memory to read", err);
    if (!status)
        status = driver_check(driver.set_bytes(room, 0, bytes, b->stream), "memory", err);
    p.from = (const uint8_t *)(uintptr_t)room;
    if (!status)
        status = time_node(b, &node, &seconds, err);
    *bytes_per_second = seconds > 0 ? (double)bytes / seconds : 0;
    if (room)
        driver.free(room);
    return status;
}

int cuda_peak(struct backend *b, double *flops_per_second, struct err *err) {
    bool has_wgmma = b->capability == 90;
    struct peak_params p = {.rounds = 512, .sink = (float *)(uintptr_t)b->counters.at};
    struct cuda_node node = {
        .params = &p,
        .launch = {.kernel = has_wgmma ? "peak_wgmma" : "peak_mma",
                   .grid = {has_wgmma ? b->n_sms : 2 * b->n_sms, 1, 1},
                   .threads = PEAK_THREADS},
    };
    double seconds = 0;
    int status = time_node(b, &node, &seconds, err);
    double flops = (double)p.rounds * PEAK_PRODUCTS * node.launch.grid[0] *
                   (has_wgmma ? (double)PEAK_WARPGROUPS * PEAK_WGMMA_FLOPS
                              : (double)PEAK_THREADS / 32 * PEAK_MMA_FLOPS);
    *flops_per_second = seconds > 0 ? flops / seconds : 0;
    return status;
}
