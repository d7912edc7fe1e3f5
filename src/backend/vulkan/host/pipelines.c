/* pipelines.c - pipelines by shader and constants, descriptor sets by what they bind. Each is made
 * once and lives as long as the backend. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/vulkan/host/host.h"
#include "base/array.h"
#include "base/cpu.h"

/* ---- layouts ------------------------------------------------------------------------------ */

/* n storage buffers, and push constants. */
static VkResult make_layouts(struct vulkan_device *d, uint32_t n) {
    VkDescriptorSetLayoutBinding bindings[VULKAN_MAX_BINDS];
    for (uint32_t i = 0; i < n; i++)
        bindings[i] = (VkDescriptorSetLayoutBinding){
            .binding = i,
            .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
            .descriptorCount = 1,
            .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
        };
    const VkDescriptorSetLayoutCreateInfo set = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
        .bindingCount = n,
        .pBindings = bindings,
    };
    VkResult result = vk.create_set_layout(d->device, &set, NULL, &d->set_layouts[n]);
    const VkPushConstantRange push = {
        .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
        .size = sizeof(struct vulkan_io_at) + VULKAN_PUSH_WORDS * sizeof(uint32_t),
    };
    const VkPipelineLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .setLayoutCount = 1,
        .pSetLayouts = &d->set_layouts[n],
        .pushConstantRangeCount = 1,
        .pPushConstantRanges = &push,
    };
    return result == VK_SUCCESS
               ? vk.create_pipeline_layout(d->device, &layout, NULL, &d->layouts[n])
               : result;
}

/* ---- the driver's cache ------------------------------------------------------------------- */

static void find_cache(struct vulkan_device *d) {
    VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                     .pNext = &id};
    vk.device_properties(d->physical, &p);
    struct cache_key *key = &d->cache_key;
    *key = (struct cache_key){.vendor_id = p.properties.vendorID,
                              .device_id = p.properties.deviceID,
                              .driver_version = p.properties.driverVersion};
    static_assert(sizeof key->device == VK_UUID_SIZE, "a UUID");
    memcpy(key->device, id.deviceUUID, VK_UUID_SIZE);
    memcpy(key->driver, id.driverUUID, VK_UUID_SIZE);
    memcpy(key->pipelines, p.properties.pipelineCacheUUID, VK_UUID_SIZE);
    d->cache_path = cache_path(key);
}

/* With what an earlier process left; a driver that does not want that gets an empty one. */
static VkResult open_cache(struct vulkan_device *d) {
    VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    find_cache(d);
    void *kept =
        d->cache_path ? cache_read(d->cache_path, &d->cache_key, &info.initialDataSize) : NULL;
    info.pInitialData = kept;
    VkResult result = vk.create_cache(d->device, &info, NULL, &d->cache);
    d->cache_bytes = info.initialDataSize;
    free(kept);
    if (result == VK_SUCCESS || !kept)
        return result;
    info = (VkPipelineCacheCreateInfo){.sType = info.sType};
    d->cache_bytes = 0;
    return vk.create_cache(d->device, &info, NULL, &d->cache);
}

/* After pipelines were made. The same number of bytes is taken for the same. */
static void keep_cache(struct vulkan_device *d) {
    size_t n = 0;
    if (!d->cache_path || vk.cache_data(d->device, d->cache, &n, NULL) != VK_SUCCESS ||
        n <= sizeof(VkPipelineCacheHeaderVersionOne) || n == d->cache_bytes)
        return;
    void *bytes = malloc(n);
    if (bytes && vk.cache_data(d->device, d->cache, &n, bytes) == VK_SUCCESS &&
        cache_write(d->cache_path, &d->cache_key, bytes, n))
        d->cache_bytes = n;
    free(bytes);
}

int vulkan_open_pipelines(struct vulkan_device *d, struct err *err) {
    VkResult result = open_cache(d);
    for (uint32_t n = 1; result == VK_SUCCESS && n <= VULKAN_MAX_BINDS; n++)
        result = make_layouts(d, n);
    d->modules = calloc(vulkan_n_shaders + 1, sizeof *d->modules);
    if (!d->modules)
        return err_memory(err, "the shaders");
    return vulkan_check(result, "layouts of shaders", err);
}

void vulkan_close_pipelines(struct vulkan_device *d) {
    for (uint32_t i = 0; i < d->n_pipelines; i++) {
        if (d->pipelines[i]->pipeline)
            vk.destroy_pipeline(d->device, d->pipelines[i]->pipeline, NULL);
        free(d->pipelines[i]);
    }
    free(d->pipelines);
    for (uint32_t i = 0; d->modules && i < vulkan_n_shaders; i++)
        if (d->modules[i])
            vk.destroy_shader(d->device, d->modules[i], NULL);
    free(d->modules);
    for (uint32_t n = 0; n <= VULKAN_MAX_BINDS; n++) {
        if (d->layouts[n])
            vk.destroy_pipeline_layout(d->device, d->layouts[n], NULL);
        if (d->set_layouts[n])
            vk.destroy_set_layout(d->device, d->set_layouts[n], NULL);
    }
    if (d->cache)
        vk.destroy_cache(d->device, d->cache, NULL);
    free(d->cache_path);
}

/* ---- pipelines ---------------------------------------------------------------------------- */

static const struct vulkan_shader *shader_named(const char *name) {
    for (uint32_t i = 0; i < vulkan_n_shaders; i++)
        if (strcmp(vulkan_shaders[i].name, name) == 0)
            return &vulkan_shaders[i];
    return NULL;
}

/* The module for the type alone, where there is one. */
static const struct vulkan_shader *find_shader(const struct vulkan_dispatch *d) {
    char name[64];
    snprintf(name, sizeof name, "%s_t%u", d->shader, d->constants[1]);
    const struct vulkan_shader *own = d->n_constants > 1 ? shader_named(name) : NULL;
    return own ? own : shader_named(d->shader);
}

static VkResult find_module(struct vulkan_device *d, const struct vulkan_shader *shader,
                            VkShaderModule *out) {
    VkShaderModule *module = &d->modules[shader - vulkan_shaders];
    const VkShaderModuleCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
        .codeSize = (size_t)(shader->end - shader->words) * sizeof *shader->words,
        .pCode = shader->words,
    };
    VkResult result = *module ? VK_SUCCESS : vk.create_shader(d->device, &info, NULL, module);
    *out = *module;
    return result;
}

/* Names of NVIDIA's driver. */
static void read_statistics(const struct vulkan_device *d, struct vulkan_pipeline *p) {
    enum { MAX_STATISTICS = 32 };
    const VkPipelineExecutableInfoKHR info = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
        .pipeline = p->pipeline,
    };
    VkPipelineExecutableStatisticKHR list[MAX_STATISTICS];
    uint32_t n = MAX_STATISTICS;
    for (uint32_t i = 0; i < MAX_STATISTICS; i++)
        list[i] = (VkPipelineExecutableStatisticKHR){
            .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR};
    if (vk.pipeline_statistics(d->device, &info, &n, list) < 0)
        return;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t value = (uint32_t)list[i].value.u64;
        if (strcmp(list[i].name, "Register Count") == 0)
            p->registers = value;
        else if (strcmp(list[i].name, "Shared Memory Size") == 0)
            p->shared = value;
        else if (strcmp(list[i].name, "Binary Size") == 0)
            p->code = value;
    }
}

/* The constant of half.glsl. A shader without it is not concerned. */
enum { CONVERTS_HALVES = 100 };

static VkResult make_pipeline(struct vulkan_device *d, struct vulkan_pipeline *p) {
    const uint32_t n = p->n_constants, size = sizeof *p->constants;
    VkSpecializationMapEntry entries[VULKAN_MAX_CONSTANTS + 1];
    uint32_t values[VULKAN_MAX_CONSTANTS + 1];
    for (uint32_t i = 0; i < n; i++)
        entries[i] = (VkSpecializationMapEntry){i, i * size, size};
    memcpy(values, p->constants, n * size);
    entries[n] = (VkSpecializationMapEntry){CONVERTS_HALVES, n * size, size};
    values[n] = d->converts_halves;
    const VkSpecializationInfo constants = {
        .mapEntryCount = n + 1,
        .pMapEntries = entries,
        .dataSize = (n + 1) * size,
        .pData = values,
    };
    /* NVIDIA's driver checks the bounds of every access unless the pipeline opts out. */
    const VkPipelineRobustnessCreateInfoEXT unchecked = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_ROBUSTNESS_CREATE_INFO_EXT,
        .storageBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT,
        .uniformBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT,
        .vertexInputs = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT,
        .images = VK_PIPELINE_ROBUSTNESS_IMAGE_BEHAVIOR_DISABLED_EXT,
    };
    bool is_full = p->needs_full_subgroups && d->has_full_subgroups;
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .pNext = d->has_robustness ? &unchecked : NULL,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .flags =
                      is_full ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT_EXT : 0,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = p->module,
                  .pName = "main",
                  .pSpecializationInfo = &constants},
        .layout = d->layouts[p->n_binds],
        .flags = d->has_statistics ? VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR : 0,
    };
    VkResult result = vk.create_pipelines(d->device, d->cache, 1, &info, NULL, &p->pipeline);
    if (result == VK_SUCCESS && d->has_statistics)
        read_statistics(d, p);
    return result;
}

static bool is_for(const struct vulkan_pipeline *p, const struct vulkan_shader *shader,
                   const struct vulkan_dispatch *d) {
    return p->shader == shader && p->n_binds == d->n_binds && p->n_constants == d->n_constants &&
           memcmp(p->constants, d->constants, d->n_constants * sizeof *d->constants) == 0;
}

static int note_pipeline(struct vulkan_device *d, const struct vulkan_pipeline *key,
                         struct err *err) {
    if (!array_grow(&d->pipelines, d->n_pipelines, &d->pipeline_capacity, sizeof *d->pipelines))
        return err_memory(err, "the pipelines");
    struct vulkan_pipeline *p = malloc(sizeof *p);
    if (!p)
        return err_memory(err, "a pipeline");
    *p = *key;
    int status = vulkan_check(find_module(d, p->shader, &p->module), p->shader->name, err);
    if (status) {
        free(p);
        return err_prefix(err, "the shader");
    }
    d->pipelines[d->n_pipelines++] = p;
    return SLUICE_OK;
}

static int find_or_note(struct vulkan_device *dev, const struct vulkan_shader *shader,
                        const struct vulkan_dispatch *d, const struct vulkan_pipeline **out,
                        struct err *err) {
    for (uint32_t i = 0; i < dev->n_pipelines; i++)
        if (is_for(dev->pipelines[i], shader, d)) {
            *out = dev->pipelines[i];
            return SLUICE_OK;
        }
    struct vulkan_pipeline p = {.shader = shader,
                                .n_constants = d->n_constants,
                                .n_binds = d->n_binds,
                                .needs_full_subgroups = d->needs_full_subgroups};
    memcpy(p.constants, d->constants, sizeof p.constants);
    int status = note_pipeline(dev, &p, err);
    if (!status)
        *out = dev->pipelines[dev->n_pipelines - 1];
    return status;
}

int vulkan_find_pipeline(struct backend *b, const struct vulkan_dispatch *d,
                         const struct vulkan_pipeline **out, struct err *err) {
    const struct vulkan_shader *shader = find_shader(d);
    if (!shader)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "no Vulkan shader %s in this program",
                       d->shader);
    if (!out)
        return SLUICE_OK;
    pthread_mutex_lock(&b->dev->making);
    int status = find_or_note(b->dev, shader, d, out, err);
    pthread_mutex_unlock(&b->dev->making);
    return status;
}

/* ---- making them, by several threads ------------------------------------------------------ */

enum { MAX_MAKERS = 16 };

struct making {
    struct vulkan_device *dev;
    atomic_uint next;
    atomic_int result;  /* the first VkResult that is an error, */
    atomic_uint failed; /* and of which pipeline */
};

static void *make_some(void *user) {
    struct making *m = user;
    for (uint32_t i; (i = atomic_fetch_add(&m->next, 1)) < m->dev->n_pipelines;) {
        struct vulkan_pipeline *p = m->dev->pipelines[i];
        VkResult result = p->pipeline ? VK_SUCCESS : make_pipeline(m->dev, p);
        int none = VK_SUCCESS;
        if (result != VK_SUCCESS && atomic_compare_exchange_strong(&m->result, &none, result))
            atomic_store(&m->failed, i);
    }
    return NULL;
}

/* Drivers compile in the thread that asks. */
int vulkan_make_pipelines(struct backend *b, struct err *err) {
    struct making m = {.dev = b->dev};
    pthread_t threads[MAX_MAKERS];
    pthread_mutex_lock(&b->dev->making);
    int n = 0, n_started = 0;
    for (uint32_t i = 0; i < b->dev->n_pipelines && n < MAX_MAKERS && n < cpu_count(); i++)
        n += !b->dev->pipelines[i]->pipeline;
    while (n_started < n - 1 && !pthread_create(&threads[n_started], NULL, make_some, &m))
        n_started++;
    make_some(&m);
    for (int i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
    if (n)
        keep_cache(b->dev);
    int status = SLUICE_OK;
    if (m.result != VK_SUCCESS)
        status = vulkan_done(b, (VkResult)m.result, b->dev->pipelines[m.failed]->shader->name, err);
    pthread_mutex_unlock(&b->dev->making);
    return status ? err_prefix(err, "making the pipeline of the shader") : SLUICE_OK;
}

/* ---- descriptor sets ---------------------------------------------------------------------- */

enum { POOL_SETS = 1024 };

void vulkan_free_sets(struct backend *b) {
    for (uint32_t i = 0; i < b->n_pools; i++)
        vk.destroy_set_pool(b->device, b->pools[i], NULL);
    free(b->pools);
    free(b->sets);
}

static bool binds_same(const struct vulkan_set *s, const struct vulkan_bind *binds, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (s->binds[i].memory != binds[i].memory || s->binds[i].offset != binds[i].offset ||
            s->binds[i].bytes != binds[i].bytes)
            return false;
    return s->n_binds == n;
}

/* The set's place in the table, or the empty one where it belongs. */
static struct vulkan_set *set_place(const struct backend *b, const struct vulkan_bind *binds,
                                    uint32_t n) {
    uint64_t hash = n;
    for (uint32_t i = 0; i < n; i++) {
        hash = (hash ^ binds[i].offset ^ (uint64_t)binds[i].memory << 56) * 0x9E3779B97F4A7C15u;
        hash = (hash ^ hash >> 29 ^ binds[i].bytes) * 0xBF58476D1CE4E5B9u;
    }
    uint32_t at = (uint32_t)(hash >> 32) & (b->set_capacity - 1);
    while (b->sets[at].n_binds && !binds_same(&b->sets[at], binds, n))
        at = (at + 1) & (b->set_capacity - 1);
    return &b->sets[at];
}

static int grow_sets(struct backend *b, struct err *err) {
    if (2 * (b->n_sets + 1) <= b->set_capacity)
        return SLUICE_OK;
    struct vulkan_set *old = b->sets;
    uint32_t old_capacity = b->set_capacity, capacity = old_capacity ? 2 * old_capacity : 1024;
    struct vulkan_set *more = calloc(capacity, sizeof *more);
    if (!more)
        return err_memory(err, "the descriptor sets");
    b->sets = more;
    b->set_capacity = capacity;
    for (uint32_t i = 0; i < old_capacity; i++)
        if (old[i].n_binds)
            *set_place(b, old[i].binds, old[i].n_binds) = old[i];
    free(old);
    return SLUICE_OK;
}

static int grow_pools(struct backend *b, struct err *err) {
    if (b->pool_left)
        return SLUICE_OK;
    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                       POOL_SETS * VULKAN_MAX_BINDS};
    const VkDescriptorPoolCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
        .maxSets = POOL_SETS,
        .poolSizeCount = 1,
        .pPoolSizes = &size,
    };
    VkDescriptorPool *more = realloc(b->pools, (b->n_pools + 1) * sizeof *more);
    if (!more)
        return err_memory(err, "the descriptor sets");
    b->pools = more;
    int status = vulkan_done(b, vk.create_set_pool(b->device, &info, NULL, &b->pools[b->n_pools]),
                             "descriptor sets", err);
    if (!status) {
        b->n_pools++;
        b->pool_left = POOL_SETS;
    }
    return status;
}

static void fill_set(const struct backend *b, const struct vulkan_set *s) {
    VkDescriptorBufferInfo buffers[VULKAN_MAX_BINDS];
    VkWriteDescriptorSet writes[VULKAN_MAX_BINDS];
    for (uint32_t i = 0; i < s->n_binds; i++) {
        const struct vulkan_bind *bind = &s->binds[i];
        const struct vulkan_buffer *in = vulkan_buffer_at(&b->regions[bind->memory], bind->offset);
        uint64_t at = bind->offset - in->start;
        CHECK(bind->bytes > 0 && at + bind->bytes <= in->bytes);
        buffers[i] = (VkDescriptorBufferInfo){in->buffer, at, bind->bytes};
        writes[i] = (VkWriteDescriptorSet){
            .sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
            .dstSet = s->set,
            .dstBinding = i,
            .descriptorCount = 1,
            .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
            .pBufferInfo = &buffers[i],
        };
    }
    vk.update_sets(b->device, s->n_binds, writes, 0, NULL);
}

int vulkan_find_set(struct backend *b, const struct vulkan_bind *binds, uint32_t n_binds,
                    VkDescriptorSet *out, struct err *err) {
    int status = grow_sets(b, err);
    if (status)
        return status;
    struct vulkan_set *s = set_place(b, binds, n_binds);
    if (s->n_binds == 0) {
        struct vulkan_set made = {.n_binds = n_binds};
        memcpy(made.binds, binds, n_binds * sizeof *binds);
        if ((status = grow_pools(b, err)))
            return status;
        const VkDescriptorSetAllocateInfo info = {
            .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
            .descriptorPool = b->pools[b->n_pools - 1],
            .descriptorSetCount = 1,
            .pSetLayouts = &b->dev->set_layouts[n_binds],
        };
        status =
            vulkan_done(b, vk.allocate_sets(b->device, &info, &made.set), "descriptor sets", err);
        if (status)
            return status;
        b->pool_left--;
        b->n_sets++;
        fill_set(b, &made);
        *s = made;
    }
    *out = s->set;
    return SLUICE_OK;
}
