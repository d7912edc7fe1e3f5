/* limits.c - what the device can do, measured: memory bandwidth. */
#include "backend/vulkan/host/host.h"
#include "base/clock.h"

enum { TRIES = 6, READ_THREADS = 128, READ_GROUPS_PER_CORE = 16 };

/* A gigabyte, or a quarter of what is free, or what a buffer may have: more than the caches hold.
 */
static int make_buffer(struct backend *b, struct err *err) {
    struct vulkan_region *r = &b->regions[VULKAN_BANDWIDTH];
    struct vulkan_buffer buffer;
    uint64_t bytes = 0;
    int status = r->n ? SLUICE_OK : vulkan_available(b, &bytes, err);
    if (status || r->n)
        return status;
    bytes = bytes / 4 < 1 << 30 ? bytes / 4 : 1 << 30;
    bytes = bytes < b->can.max_range ? bytes : b->can.max_range;
    bytes = bytes < 65536 ? 65536 : bytes / 65536 * 65536;
    status = vulkan_make_buffer(b, &buffer, bytes, VULKAN_ON_DEVICE, "memory to read", err);
    if (!status && (status = vulkan_region_add(r, &buffer, err)))
        vulkan_free_buffer(b, &buffer);
    return status ? status : vulkan_zero(b, r, err);
}

static int make_node(struct backend *b, struct vulkan_node *node, struct err *err) {
    const struct vulkan_region *r = &b->regions[VULKAN_BANDWIDTH];
    const struct vulkan_dispatch d = {
        .shader = "read_memory",
        .constants = {READ_THREADS},
        .n_constants = 1,
        .n_binds = 1,
    };
    *node = (struct vulkan_node){
        .groups = {b->can.n_cores * READ_GROUPS_PER_CORE, 1, 1},
        .binds = {{.memory = VULKAN_BANDWIDTH, .access = VULKAN_READ, .bytes = r->bytes}},
        .n_binds = 1,
        .push = {(uint32_t)(r->bytes / 16)},
        .push_bytes = sizeof(uint32_t),
    };
    int status = vulkan_find_pipeline(b, &d, &node->pipeline, err);
    if (!status)
        status = vulkan_make_pipelines(b, err);
    return status ? status : vulkan_find_set(b, node->binds, 1, &node->set, err);
}

/* So often in one submission that its own time does not count: a gigabyte or more. */
int vulkan_bandwidth(struct backend *b, double *bytes_per_second, struct err *err) {
    struct vulkan_node node;
    int status = vulkan_enter(b, err);
    *bytes_per_second = 0;
    if (status || (status = make_buffer(b, err)) || (status = make_node(b, &node, err)))
        return status;
    uint64_t bytes = b->regions[VULKAN_BANDWIDTH].bytes, times = (2ull << 30) / bytes;
    for (int i = 0; !status && i < TRIES; i++) {
        VkCommandBuffer commands;
        uint32_t ignored = 0;
        if ((status = vulkan_queue_wait(b, &b->steps, err)) ||
            (status = vulkan_queue_begin(b, &b->steps, &commands, err)))
            break;
        for (uint64_t k = 0; k < times; k++)
            vulkan_encode(b, commands, &node, 1, false, &ignored);
        double start = seconds_now();
        status = vulkan_queue_end(b, &b->steps, VK_NULL_HANDLE, 0, err);
        if (!status)
            status = vulkan_queue_wait(b, &b->steps, err);
        double rate = (double)(times * bytes) / (seconds_now() - start);
        *bytes_per_second = rate > *bytes_per_second ? rate : *bytes_per_second;
    }
    return status;
}
