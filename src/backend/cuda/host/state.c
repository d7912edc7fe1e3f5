/* state.c - STATE and SCRATCH to and from the host, between steps and during them. */
#include "backend/cuda/ops/state.h"

#include "backend/cuda/host/cuda.h"
#include "base/size.h"

/* ---- STATE -------------------------------------------------------------------------------- */

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
    if (!status)
        status = cuda_settle_range(b, offset, bytes, err);
    return status
               ? status
               : count_copy(b, bytes,
                            driver.copy_out(to, state_at(b, offset, bytes), bytes, b->stream), err);
}

int cuda_write_state(struct backend *b, uint64_t offset, uint64_t bytes, const void *from,
                     struct err *err) {
    int status = cuda_enter(b, err);
    if (!status)
        status = cuda_settle_range(b, offset, bytes, err);
    return status ? status
                  : count_copy(b, bytes,
                               driver.copy_in(state_at(b, offset, bytes), from, bytes, b->stream),
                               err);
}

static const struct cuda_buffer *buffer_of(const struct backend *b, enum region region,
                                           uint64_t offset, uint64_t bytes) {
    const struct cuda_buffer *buffer = region == REGION_STATE ? &b->state : &b->scratch;
    CHECK(region == REGION_STATE || region == REGION_SCRATCH);
    CHECK(offset <= buffer->bytes && bytes <= buffer->bytes - offset);
    return buffer;
}

int cuda_peek(struct backend *b, enum region region, uint64_t offset, uint64_t bytes, void *to,
              struct err *err) {
    const struct cuda_buffer *buffer = buffer_of(b, region, offset, bytes);
    int status = cuda_enter(b, err);
    if (!status && region == REGION_STATE)
        status = cuda_settle_range(b, offset, bytes, err);
    return status ? status
                  : count_copy(b, bytes, driver.copy_out(to, buffer->at + offset, bytes, b->stream),
                               err);
}

int cuda_poke(struct backend *b, enum region region, uint64_t offset, uint64_t bytes,
              const void *from, struct err *err) {
    const struct cuda_buffer *buffer = buffer_of(b, region, offset, bytes);
    int status = cuda_enter(b, err);
    if (!status && region == REGION_STATE)
        status = cuda_settle_range(b, offset, bytes, err);
    return status ? status
                  : count_copy(b, bytes,
                               driver.copy_in(buffer->at + offset, from, bytes, b->stream), err);
}

int cuda_move_state(struct backend *b, const struct backend_move *list, uint32_t n, bool is_in,
                    struct err *err) {
    uint64_t bytes = 0;
    CUresult result = CUDA_SUCCESS;
    int status = cuda_enter(b, err);
    if (status || (status = cuda_settle_moves(b, list, n, err)))
        return status;
    for (uint32_t i = 0; result == CUDA_SUCCESS && i < n; i++) {
        CUdeviceptr at = state_at(b, list[i].offset, list[i].bytes);
        result = is_in ? driver.copy_in(at, list[i].host, list[i].bytes, b->stream)
                       : driver.copy_out(list[i].host, at, list[i].bytes, b->stream);
        bytes += list[i].bytes;
    }
    return count_copy(b, bytes, result, err);
}

/* One kernel for up to COPY_MOST stretches: a call of the driver for each took 0.2 ms a slot. No
 * wait: the next step follows in the same stream. */
int cuda_copy_state(struct backend *b, const struct backend_copy *list, uint32_t n,
                    struct err *err) {
    int status = cuda_enter(b, err);
    if (!status)
        status = cuda_settle_copies(b, list, n, err);
    for (uint32_t first = 0; !status && first < n; first += COPY_MOST) {
        struct copy_params p = {.n = min_u32(n - first, COPY_MOST)};
        struct cuda_node node = {
            .params = &p,
            .function = b->copy,
            .launch = {.kernel = COPY_KERNEL,
                       .grid = {COPY_BLOCKS, p.n, 1},
                       .threads = COPY_THREADS},
        };
        for (uint32_t i = 0; i < p.n; i++) {
            const struct backend_copy *c = &list[first + i];
            p.list[i] = (struct copy_piece){
                .to = state_at(b, c->to, c->bytes),
                .from = c->from == BACKEND_ZEROS ? 0 : state_at(b, c->from, c->bytes),
                .bytes = c->bytes,
            };
        }
        status = cuda_run_node(b, &node, false, err);
    }
    return status;
}

int cuda_fence(struct backend *b, uint32_t number, struct err *err) {
    CHECK(number < BACKEND_FENCES);
    int status = cuda_enter(b, err);
    if (!status)
        status = cuda_settle_all(b, err); /* which cells will be read is not known yet */
    return status ? status
                  : driver_check(driver.event_record(b->fences[number], b->stream), "a fence", err);
}

/* A stream of its own: the steps that follow the fence run meanwhile. */
int cuda_read_at_fence(struct backend *b, uint32_t fence, const struct backend_move *list,
                       uint32_t n, struct err *err) {
    CHECK(fence < BACKEND_FENCES);
    int status = cuda_enter(b, err);
    CUresult result =
        status ? CUDA_SUCCESS : driver.stream_wait(b->copy_stream, b->fences[fence], 0);
    for (uint32_t i = 0; !status && result == CUDA_SUCCESS && i < n; i++)
        result = driver.copy_out(list[i].host, state_at(b, list[i].offset, list[i].bytes),
                                 list[i].bytes, b->copy_stream);
    if (!status && result == CUDA_SUCCESS)
        result = driver.event_record(b->copied, b->copy_stream);
    if (!status && result == CUDA_SUCCESS)
        result = driver.event_sync(b->copied);
    return status ? status : driver_check(result, "copying state", err);
}

int cuda_pin(struct backend *b, void *memory, uint64_t bytes, struct err *err) {
    int status = cuda_enter(b, err);
    return status
               ? status
               : driver_check(driver.host_register(memory, bytes, 0), "pinning host memory", err);
}

void cuda_unpin(struct backend *b, void *memory) {
    struct err ignored;
    if (cuda_enter(b, &ignored) == SLUICE_OK)
        driver.host_unregister(memory);
}
