/* state.c - STATE and SCRATCH to and from the host, between steps and during them. */
#include <string.h>

#include "backend/vulkan/host/host.h"
#include "base/size.h"

/* ---- through a staging buffer ------------------------------------------------------------- */

static void copy(VkCommandBuffer commands, const struct vulkan_buffer *from, uint64_t from_at,
                 const struct vulkan_buffer *to, uint64_t to_at, uint64_t bytes) {
    const VkBufferCopy region = {from_at, to_at, bytes};
    vk.cmd_copy(commands, from->buffer, to->buffer, 1, &region);
}

/* Bytes of a region that are in one buffer. */
static uint64_t bytes_in_buffer(const struct vulkan_buffer *in, uint64_t offset, uint64_t bytes) {
    uint64_t left = in->start + in->bytes - offset;
    return bytes < left ? bytes : left;
}

/* A list of moves, read as one run of bytes: where it is, and how far it was copied. */
struct cursor {
    const struct backend_move *list;
    uint32_t n, i;
    uint64_t done; /* of list[i] */
};

/* The next piece of up to `limit` bytes; 0: none is left. */
static uint64_t next_piece(struct cursor *c, const struct vulkan_region *r, uint64_t limit,
                           const struct vulkan_buffer **in, uint64_t *at, uint8_t **host) {
    while (c->i < c->n && c->done == c->list[c->i].bytes) {
        c->i++;
        c->done = 0;
    }
    if (c->i == c->n || limit == 0)
        return 0;
    const struct backend_move *m = &c->list[c->i];
    uint64_t offset = m->offset + c->done, left = m->bytes - c->done;
    *in = vulkan_buffer_at(r, offset);
    *at = offset - (*in)->start;
    *host = (uint8_t *)m->host + c->done;
    left = bytes_in_buffer(*in, offset, left < limit ? left : limit);
    c->done += left;
    return left;
}

struct transfer {
    struct vulkan_queue *queue;
    const struct vulkan_region *region;
    bool is_in; /* from the host to the region */
    VkSemaphore
        other; /* a timeline, and the value that it must have reached; VK_NULL_HANDLE: none */
    uint64_t after;
};

/* Fills the staging buffer once, and copies what came out to the host. */
static int transfer_once(struct backend *b, const struct transfer *t, struct cursor *c,
                         struct err *err) {
    struct vulkan_queue *q = t->queue;
    const struct vulkan_region *r = t->region;
    struct cursor begin = *c;
    const struct vulkan_buffer *in;
    VkCommandBuffer commands;
    uint64_t used = 0, at, n;
    uint8_t *host;
    int status = vulkan_queue_begin(b, q, &commands, err);
    if (status)
        return status;
    while ((n = next_piece(c, r, STAGING_BYTES - used, &in, &at, &host)) > 0) {
        if (t->is_in) {
            memcpy(q->staging.host + used, host, n);
            copy(commands, &q->staging, used, in, at, n);
        } else {
            copy(commands, in, at, &q->staging, used, n);
        }
        used += n;
    }
    if ((status = vulkan_queue_end(b, q, t->other, t->after, err)) ||
        (status = vulkan_queue_wait(b, q, err)) || t->is_in)
        return status;
    used = 0;
    while ((n = next_piece(&begin, r, STAGING_BYTES - used, &in, &at, &host)) > 0) {
        memcpy(host, q->staging.host + used, n);
        used += n;
    }
    return SLUICE_OK;
}

static bool is_finished(const struct cursor *c) {
    uint64_t left = 0;
    for (uint32_t i = c->i; i < c->n && !left; i++)
        left = c->list[i].bytes - (i == c->i ? c->done : 0);
    return left == 0;
}

static int transfer_all(struct backend *b, const struct transfer *t,
                        const struct backend_move *list, uint32_t n, struct err *err) {
    struct cursor c = {.list = list, .n = n};
    int status = vulkan_enter(b, err);
    for (uint32_t i = 0; i < n; i++)
        CHECK(list[i].offset <= t->region->bytes &&
              list[i].bytes <= t->region->bytes - list[i].offset);
    while (!status && !is_finished(&c))
        status = transfer_once(b, t, &c, err);
    return status;
}

int vulkan_transfer(struct backend *b, struct vulkan_queue *q, const struct vulkan_region *r,
                    const struct backend_move *list, uint32_t n, bool is_in, struct err *err) {
    const struct transfer t = {.queue = q, .region = r, .is_in = is_in};
    return transfer_all(b, &t, list, n, err);
}

int vulkan_zero(struct backend *b, const struct vulkan_region *r, struct err *err) {
    VkCommandBuffer commands;
    int status = vulkan_queue_begin(b, &b->steps, &commands, err);
    for (uint32_t i = 0; !status && i < r->n; i++)
        vk.cmd_fill(commands, r->list[i].buffer, 0, VK_WHOLE_SIZE, 0);
    return status ? status : vulkan_queue_end(b, &b->steps, VK_NULL_HANDLE, 0, err);
}

/* ---- STATE -------------------------------------------------------------------------------- */

static int counted(struct backend *b, const struct vulkan_region *r,
                   const struct backend_move *list, uint32_t n, bool is_in, struct err *err) {
    b->count.host_copies++;
    for (uint32_t i = 0; i < n; i++)
        b->count.host_copy_bytes += list[i].bytes;
    return vulkan_transfer(b, &b->steps, r, list, n, is_in, err);
}

int vulkan_read_state(struct backend *b, uint64_t offset, uint64_t bytes, void *to,
                      struct err *err) {
    const struct backend_move move = {offset, bytes, to};
    return counted(b, &b->regions[VULKAN_STATE], &move, 1, false, err);
}

int vulkan_write_state(struct backend *b, uint64_t offset, uint64_t bytes, const void *from,
                       struct err *err) {
    const struct backend_move move = {offset, bytes, (void *)(uintptr_t)from};
    return counted(b, &b->regions[VULKAN_STATE], &move, 1, true, err);
}

int vulkan_move_state(struct backend *b, const struct backend_move *list, uint32_t n, bool is_in,
                      struct err *err) {
    return counted(b, &b->regions[VULKAN_STATE], list, n, is_in, err);
}

static const struct vulkan_region *region_of(const struct backend *b, enum region region) {
    CHECK(region == REGION_STATE || region == REGION_SCRATCH);
    return &b->regions[region == REGION_STATE ? VULKAN_STATE : VULKAN_SCRATCH];
}

int vulkan_peek(struct backend *b, enum region region, uint64_t offset, uint64_t bytes, void *to,
                struct err *err) {
    const struct backend_move move = {offset, bytes, to};
    return counted(b, region_of(b, region), &move, 1, false, err);
}

int vulkan_poke(struct backend *b, enum region region, uint64_t offset, uint64_t bytes,
                const void *from, struct err *err) {
    const struct backend_move move = {offset, bytes, (void *)(uintptr_t)from};
    return counted(b, region_of(b, region), &move, 1, true, err);
}

/* ---- within STATE ------------------------------------------------------------------------- */

/* vkCmdFillBuffer takes whole words: up to three bytes before and after them come from the staging
 * buffer, which holds zeros there. */
static void fill_zeros(const struct backend *b, VkCommandBuffer commands,
                       const struct vulkan_buffer *in, uint64_t at, uint64_t bytes) {
    uint64_t head = (4 - at % 4) % 4;
    head = head < bytes ? head : bytes;
    uint64_t words = (bytes - head) / 4 * 4, tail = bytes - head - words;
    if (head)
        copy(commands, &b->steps.zeros, 0, in, at, head);
    if (words)
        vk.cmd_fill(commands, in->buffer, at + head, words, 0);
    if (tail)
        copy(commands, &b->steps.zeros, 0, in, at + head + words, tail);
}

static void copy_within(const struct backend *b, VkCommandBuffer commands,
                        const struct backend_copy *c) {
    const struct vulkan_region *r = &b->regions[VULKAN_STATE];
    CHECK(c->to <= r->bytes && c->bytes <= r->bytes - c->to);
    for (uint64_t done = 0, n; done < c->bytes; done += n) {
        const struct vulkan_buffer *to = vulkan_buffer_at(r, c->to + done);
        n = bytes_in_buffer(to, c->to + done, c->bytes - done);
        if (c->from == BACKEND_ZEROS) {
            fill_zeros(b, commands, to, c->to + done - to->start, n);
            continue;
        }
        const struct vulkan_buffer *from = vulkan_buffer_at(r, c->from + done);
        n = bytes_in_buffer(from, c->from + done, n);
        copy(commands, from, c->from + done - from->start, to, c->to + done - to->start, n);
    }
}

/* No wait: the next step follows in the same queue, after a barrier. */
int vulkan_copy_state(struct backend *b, const struct backend_copy *list, uint32_t n,
                      struct err *err) {
    VkCommandBuffer commands;
    int status = vulkan_enter(b, err);
    if (!status)
        status = vulkan_queue_begin(b, &b->steps, &commands, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < n; i++)
        copy_within(b, commands, &list[i]);
    return vulkan_queue_end(b, &b->steps, VK_NULL_HANDLE, 0, err);
}

int vulkan_fence(struct backend *b, uint32_t number, struct err *err) {
    CHECK(number < BACKEND_FENCES);
    b->fences[number] = b->steps.submitted;
    return vulkan_enter(b, err);
}

/* Through a queue of its own, by another thread. */
int vulkan_read_at_fence(struct backend *b, uint32_t fence, const struct backend_move *list,
                         uint32_t n, struct err *err) {
    CHECK(fence < BACKEND_FENCES);
    const struct transfer t = {.queue = &b->copies,
                               .region = &b->regions[VULKAN_STATE],
                               .other = b->steps.timeline,
                               .after = b->fences[fence]};
    return transfer_all(b, &t, list, n, err);
}
