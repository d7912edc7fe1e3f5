/* state.c - STATE and SCRATCH to and from the host, between steps; and the bandwidth of the device.
 */
#include "backend/cuda/host/cuda.h"
#include "backend/cuda/ops/embed.h"

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

int cuda_read_state(struct backend *b, uint64_t offset, uint64_t bytes, void *to, struct err *err) {
    int status = cuda_enter(b, err);
    return status
               ? status
               : count_copy(b, bytes,
                            driver.copy_out(to, state_at(b, offset, bytes), bytes, b->stream), err);
}

int cuda_write_state(struct backend *b, uint64_t offset, uint64_t bytes, const void *from,
                     struct err *err) {
    int status = cuda_enter(b, err);
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

int cuda_peek(struct backend *b, enum region region, uint64_t offset, uint64_t bytes, void *to,
              struct err *err) {
    const struct cuda_block *block = block_of(b, region, offset, bytes);
    int status = cuda_enter(b, err);
    return status ? status
                  : count_copy(b, bytes, driver.copy_out(to, block->at + offset, bytes, b->stream),
                               err);
}

int cuda_poke(struct backend *b, enum region region, uint64_t offset, uint64_t bytes,
              const void *from, struct err *err) {
    const struct cuda_block *block = block_of(b, region, offset, bytes);
    int status = cuda_enter(b, err);
    return status ? status
                  : count_copy(b, bytes, driver.copy_in(block->at + offset, from, bytes, b->stream),
                               err);
}

/* No wait: the next step follows in the same stream. */
int cuda_copy_state(struct backend *b, uint64_t to, uint64_t from, uint64_t bytes,
                    struct err *err) {
    int status = cuda_enter(b, err);
    return status ? status
                  : driver_check(driver.copy_within(state_at(b, to, bytes),
                                                    state_at(b, from, bytes), bytes, b->stream),
                                 "copying state", err);
}

int cuda_clear_state(struct backend *b, uint64_t offset, uint64_t bytes, struct err *err) {
    int status = cuda_enter(b, err);
    return status || !bytes
               ? status
               : driver_check(driver.set_bytes(state_at(b, offset, bytes), 0, bytes, b->stream),
                              "clearing state", err);
}

/* ---- the limit --------------------------------------------------------------------------------
 */

/* Two gigabytes, or a quarter of what is free: much more than the caches hold. */
int cuda_bandwidth(struct backend *b, double *bytes_per_second, struct err *err) {
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
