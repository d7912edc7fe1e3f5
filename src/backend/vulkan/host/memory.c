/* memory.c - buffers, regions made of them, and queues with what copies through them need. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/vulkan/host/host.h"
#include "base/array.h"
#include "base/locale.h"
#include "base/size.h"

/* ---- buffers ------------------------------------------------------------------------------ */

/* The best type of memory: the flags that it must have, then as many of the wanted as there are. */
static int find_type(const struct backend *b, uint32_t allowed, VkMemoryPropertyFlags must,
                     VkMemoryPropertyFlags wanted) {
    int best = -1, best_n = -1;
    for (uint32_t i = 0; i < b->memory.memoryTypeCount; i++) {
        VkMemoryPropertyFlags flags = b->memory.memoryTypes[i].propertyFlags;
        int n = __builtin_popcount(flags & wanted);
        if (allowed >> i & 1 && (flags & must) == must && n > best_n) {
            best = (int)i;
            best_n = n;
        }
    }
    return best;
}

static VkResult create_buffer(const struct backend *b, uint64_t bytes, const void *next,
                              VkBuffer *out) {
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .pNext = next,
        .size = bytes,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT,
        .sharingMode = VK_SHARING_MODE_EXCLUSIVE,
    };
    return vk.create_buffer(b->device, &info, NULL, out);
}

static VkResult allocate(struct backend *b, struct vulkan_buffer *out, uint64_t bytes, int type,
                         const void *next) {
    const VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
        .pNext = next,
        .allocationSize = bytes,
        .memoryTypeIndex = (uint32_t)type,
    };
    VkResult result = vk.allocate_memory(b->device, &info, NULL, &out->memory);
    if (result == VK_SUCCESS)
        result = vk.bind_buffer(b->device, out->buffer, out->memory, 0);
    return result;
}

static int type_of(const struct backend *b, uint32_t allowed, enum vulkan_memory_kind kind) {
    const VkMemoryPropertyFlags is_local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
                                is_mapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                            VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    if (kind == VULKAN_ON_DEVICE)
        return find_type(b, allowed, 0, is_local);
    return find_type(b, allowed, is_mapped,
                     kind == VULKAN_ON_HOST ? VK_MEMORY_PROPERTY_HOST_CACHED_BIT : is_local);
}

int vulkan_make_buffer(struct backend *b, struct vulkan_buffer *out, uint64_t bytes,
                       enum vulkan_memory_kind kind, const char *what, struct err *err) {
    *out = (struct vulkan_buffer){.bytes = bytes};
    if (bytes > b->max_allocation)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "%s: one piece of %.3f GB, the device allows %.3f GB", what,
                       (double)bytes / 1e9, (double)b->max_allocation / 1e9);
    VkMemoryRequirements needs;
    VkResult result = create_buffer(b, bytes, NULL, &out->buffer);
    if (result == VK_SUCCESS) {
        vk.buffer_needs(b->device, out->buffer, &needs);
        int type = type_of(b, needs.memoryTypeBits, kind);
        result =
            type < 0 ? VK_ERROR_OUT_OF_DEVICE_MEMORY : allocate(b, out, needs.size, type, NULL);
    }
    if (result == VK_SUCCESS && kind != VULKAN_ON_DEVICE) {
        void *host = NULL;
        result = vk.map_memory(b->device, out->memory, 0, VK_WHOLE_SIZE, 0, &host);
        out->host = host;
    }
    b->count.allocations++;
    char text[96];
    locale_print(text, sizeof text, "%s, %.3f GB", what, (double)bytes / 1e9);
    int status = vulkan_done(b, result, text, err);
    if (status)
        vulkan_free_buffer(b, out);
    return status;
}

int vulkan_import_buffer(struct backend *b, struct vulkan_buffer *out, const uint8_t *host,
                         uint64_t bytes, struct err *err) {
    const VkExternalMemoryHandleTypeFlagBits from_host =
        VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
    *out = (struct vulkan_buffer){.bytes = bytes};
    VkMemoryHostPointerPropertiesEXT types = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    const VkExternalMemoryBufferCreateInfo external = {
        .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO, .handleTypes = from_host};
    const VkImportMemoryHostPointerInfoEXT import = {
        .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
        .handleType = from_host,
        .pHostPointer = (void *)(uintptr_t)host,
    };
    VkMemoryRequirements needs;
    VkResult result = bytes > b->max_allocation ? VK_ERROR_INVALID_EXTERNAL_HANDLE
                                                : create_buffer(b, bytes, &external, &out->buffer);
    if (result == VK_SUCCESS) {
        vk.buffer_needs(b->device, out->buffer, &needs);
        result = vk.host_pointer_properties(b->device, from_host, (void *)(uintptr_t)host, &types);
    }
    if (result == VK_SUCCESS) {
        int type = find_type(b, needs.memoryTypeBits & types.memoryTypeBits, 0,
                             VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
        result = type < 0 || needs.size > bytes ? VK_ERROR_INVALID_EXTERNAL_HANDLE
                                                : allocate(b, out, bytes, type, &import);
    }
    int status = vulkan_check(result, "importing weights", err);
    if (status)
        vulkan_free_buffer(b, out);
    return status;
}

void vulkan_free_buffer(struct backend *b, struct vulkan_buffer *buffer) {
    if (buffer->buffer)
        vk.destroy_buffer(b->device, buffer->buffer, NULL);
    if (buffer->memory)
        vk.free_memory(b->device, buffer->memory, NULL);
    *buffer = (struct vulkan_buffer){0};
}

/* ---- regions ------------------------------------------------------------------------------ */

int vulkan_region_add(struct vulkan_region *r, const struct vulkan_buffer *buffer,
                      struct err *err) {
    if (!array_grow(&r->list, r->n, &r->capacity, sizeof *r->list))
        return err_memory(err, "a list of buffers");
    CHECK(r->n == 0 || buffer->start >= r->list[r->n - 1].start + r->list[r->n - 1].bytes);
    r->list[r->n++] = *buffer;
    r->bytes = buffer->start + buffer->bytes;
    return SLUICE_OK;
}

void vulkan_region_free(struct backend *b, struct vulkan_region *r) {
    for (uint32_t i = 0; i < r->n; i++)
        vulkan_free_buffer(b, &r->list[i]);
    free(r->list);
    *r = (struct vulkan_region){0};
}

const struct vulkan_buffer *vulkan_buffer_at(const struct vulkan_region *r, uint64_t offset) {
    uint32_t low = 0, high = r->n;
    CHECK(r->n > 0);
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (r->list[middle].start <= offset)
            low = middle;
        else
            high = middle;
    }
    CHECK(offset >= r->list[low].start && offset < r->list[low].start + r->list[low].bytes);
    return &r->list[low];
}

/* ---- queues ------------------------------------------------------------------------------- */

int vulkan_queue_open(struct backend *b, struct vulkan_queue *q, uint32_t queue, struct err *err) {
    const VkCommandPoolCreateInfo pool = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
        .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
        .queueFamilyIndex = b->family,
    };
    const VkSemaphoreTypeCreateInfo type = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
        .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
    };
    const VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                             .pNext = &type};
    vk.get_queue(b->device, b->family, queue, &q->queue);
    VkResult result = vk.create_command_pool(b->device, &pool, NULL, &q->pool);
    VkCommandBufferAllocateInfo commands = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = q->pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = QUEUE_COMMANDS,
    };
    if (result == VK_SUCCESS)
        result = vk.allocate_commands(b->device, &commands, q->commands);
    if (result == VK_SUCCESS)
        result = vk.create_semaphore(b->device, &semaphore, NULL, &q->timeline);
    int status = vulkan_done(b, result, "opening a queue", err);
    if (!status)
        status = vulkan_make_buffer(b, &q->staging, STAGING_BYTES, VULKAN_ON_HOST,
                                    "copies to the device", err);
    if (!status)
        status = vulkan_make_buffer(b, &q->zeros, ZERO_BYTES, VULKAN_ON_HOST, "zeros", err);
    if (!status)
        memset(q->zeros.host, 0, ZERO_BYTES);
    return status;
}

void vulkan_queue_close(struct backend *b, struct vulkan_queue *q) {
    vulkan_free_buffer(b, &q->staging);
    vulkan_free_buffer(b, &q->zeros);
    if (q->timeline)
        vk.destroy_semaphore(b->device, q->timeline, NULL);
    if (q->pool)
        vk.destroy_command_pool(b->device, q->pool, NULL);
    *q = (struct vulkan_queue){0};
}

static int wait_for(struct backend *b, const struct vulkan_queue *q, uint64_t value,
                    struct err *err) {
    const VkSemaphoreWaitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
        .semaphoreCount = 1,
        .pSemaphores = &q->timeline,
        .pValues = &value,
    };
    return vulkan_done(b, vk.wait_semaphores(b->device, &info, UINT64_MAX),
                       "waiting for the Vulkan device", err);
}

int vulkan_queue_begin(struct backend *b, struct vulkan_queue *q, VkCommandBuffer *out,
                       struct err *err) {
    const VkCommandBufferBeginInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
        .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
    };
    int status = wait_for(b, q, q->values[q->next], err);
    *out = q->commands[q->next];
    if (!status)
        status = vulkan_done(b, vk.begin_commands(*out, &info), "recording copies", err);
    if (!status)
        vulkan_full_barrier(*out);
    return status;
}

int vulkan_queue_submit(struct backend *b, struct vulkan_queue *q, VkCommandBuffer commands,
                        VkSemaphore other, uint64_t after, struct err *err) {
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    uint64_t value = q->submitted + 1;
    const VkTimelineSemaphoreSubmitInfo values = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = other != VK_NULL_HANDLE,
        .pWaitSemaphoreValues = &after,
        .signalSemaphoreValueCount = 1,
        .pSignalSemaphoreValues = &value,
    };
    const VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
        .pNext = &values,
        .waitSemaphoreCount = other != VK_NULL_HANDLE,
        .pWaitSemaphores = &other,
        .pWaitDstStageMask = &stage,
        .commandBufferCount = 1,
        .pCommandBuffers = &commands,
        .signalSemaphoreCount = 1,
        .pSignalSemaphores = &q->timeline,
    };
    pthread_mutex_lock(&b->dev->submitting);
    VkResult result = vk.queue_submit(q->queue, 1, &info, VK_NULL_HANDLE);
    pthread_mutex_unlock(&b->dev->submitting);
    int status = vulkan_done(b, result, "submitting to the Vulkan device", err);
    if (!status)
        q->submitted = value;
    return status;
}

int vulkan_queue_end(struct backend *b, struct vulkan_queue *q, VkSemaphore other, uint64_t after,
                     struct err *err) {
    VkCommandBuffer commands = q->commands[q->next];
    vulkan_full_barrier(commands);
    int status = vulkan_done(b, vk.end_commands(commands), "recording copies", err);
    if (!status)
        status = vulkan_queue_submit(b, q, commands, other, after, err);
    if (!status)
        q->values[q->next] = q->submitted;
    q->next = (q->next + 1) % QUEUE_COMMANDS;
    return status;
}

int vulkan_queue_wait(struct backend *b, struct vulkan_queue *q, struct err *err) {
    return wait_for(b, q, q->submitted, err);
}

/* A submission sees what the host wrote before it without a barrier; what the host reads afterwards
 * needs one. */
void vulkan_full_barrier(VkCommandBuffer commands) {
    const VkMemoryBarrier all = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT,
    };
    vk.cmd_barrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                   VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &all, 0,
                   NULL, 0, NULL);
}
