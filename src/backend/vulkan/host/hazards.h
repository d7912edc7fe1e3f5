/* hazards.h - which dispatches must wait for which, from the bytes they touch.
 *
 * A barrier is one for all memory: after it, everything before is done and seen. So what must be
 * known of the dispatches since the last one is which bytes they read and wrote; the next dispatch
 * needs a barrier where it reads what was written, or writes what was read or written. */
#ifndef BACKEND_VULKAN_HOST_HAZARDS_H
#define BACKEND_VULKAN_HOST_HAZARDS_H

#include <stdbool.h>
#include <stdint.h>

/* Memory of the backend. A region may be several VkBuffers, where the device limits their size; an
 * operand is in one of them. */
enum vulkan_memory {
    VULKAN_WEIGHTS,
    VULKAN_STATE,
    VULKAN_SCRATCH,
    VULKAN_IO, /* the host's block: shaders read masks and biases, and write tokens and logits */
    VULKAN_IO_COPY, /* of its beginning, up to the page changes, on the device; step.c writes it */
    VULKAN_WORK,    /* of the running op */
    VULKAN_TABLES,  /* cos and sin, codebooks, counters: vulkan_angles, _grids, _counter_words */
    VULKAN_BANDWIDTH, /* of limits.c, made when it first measures */
    VULKAN_MEMORIES,
};

enum vulkan_access { VULKAN_READ = 1, VULKAN_WRITE = 2 };

/* Bytes that a shader sees as the storage buffer of a binding, and what it does to them. Where it
 * touches only some columns of rows, row_bytes is not 0: they are bytes [column, column + width) of
 * every row_bytes from the offset on. */
struct vulkan_bind {
    uint8_t memory;         /* enum vulkan_memory */
    uint8_t access;         /* of enum vulkan_access */
    uint64_t offset, bytes; /* within the region; the offset is as aligned as the device asks */
    uint64_t row_bytes, column, width;
};

enum { MAX_HAZARDS = 512 };

struct hazards {
    struct vulkan_bind list[MAX_HAZARDS]; /* touched since the last barrier */
    uint32_t n;
};

/* Whether a dispatch with these binds must wait for one of those that were added. */
bool hazards_need_barrier(const struct hazards *h, const struct vulkan_bind *binds, uint32_t n);
void hazards_add(struct hazards *h, const struct vulkan_bind *binds, uint32_t n);
static inline void hazards_clear(struct hazards *h) {
    h->n = 0;
}

#endif
