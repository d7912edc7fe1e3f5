/* pipelines.c - pipelines by shader and constants, descriptor sets by what they bind. Each is made
 * once and lives as long as the backend. */
#include <stdlib.h>
#include <string.h>

#include "backend/vulkan/host/host.h"

/* ---- layouts ----------------------------------------------------------------------------------
 */

/* n storage buffers, and push constants. */
static VkResult make_layouts(struct backend *b, uint32_t n) {
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
    VkResult result = vk.create_set_layout(b->device, &set, NULL, &b->set_layouts[n]);
    const VkPushConstantRange push = {
        .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
        .size = sizeof(struct vulkan_io_at) + VULKAN_PUSH_WORDS * sizeof(uint32_t),
    };
    const VkPipelineLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .setLayoutCount = 1,
        .pSetLayouts = &b->set_layouts[n],
        .pushConstantRangeCount = 1,
        .pPushConstantRanges = &push,
    };
    return result == VK_SUCCESS
               ? vk.create_pipeline_layout(b->device, &layout, NULL, &b->layouts[n])
               : result;
}

int vulkan_open_pipelines(struct backend *b, struct err *err) {
    const VkPipelineCacheCreateInfo cache = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    VkResult result = vk.create_cache(b->device, &cache, NULL, &b->cache);
    for (uint32_t n = 1; result == VK_SUCCESS && n <= VULKAN_MAX_BINDS; n++)
        result = make_layouts(b, n);
    b->modules = calloc(vulkan_n_shaders + 1, sizeof *b->modules);
    if (!b->modules)
        return err_memory(err, "the shaders");
    return vulkan_done(b, result, "layouts of shaders", err);
}

void vulkan_close_pipelines(struct backend *b) {
    for (uint32_t i = 0; i < b->n_pipelines; i++) {
        vk.destroy_pipeline(b->device, b->pipelines[i]->pipeline, NULL);
        free(b->pipelines[i]);
    }
    free(b->pipelines);
    for (uint32_t i = 0; b->modules && i < vulkan_n_shaders; i++)
        if (b->modules[i])
            vk.destroy_shader(b->device, b->modules[i], NULL);
    free(b->modules);
    for (uint32_t i = 0; i < b->n_pools; i++)
        vk.destroy_set_pool(b->device, b->pools[i], NULL);
    free(b->pools);
    free(b->sets);
    for (uint32_t n = 0; n <= VULKAN_MAX_BINDS; n++) {
        if (b->layouts[n])
            vk.destroy_pipeline_layout(b->device, b->layouts[n], NULL);
        if (b->set_layouts[n])
            vk.destroy_set_layout(b->device, b->set_layouts[n], NULL);
    }
    if (b->cache)
        vk.destroy_cache(b->device, b->cache, NULL);
}

/* ---- pipelines --------------------------------------------------------------------------------
 */

static const struct vulkan_shader *find_shader(const char *name) {
    for (uint32_t i = 0; i < vulkan_n_shaders; i++)
        if (strcmp(vulkan_shaders[i].name, name) == 0)
            return &vulkan_shaders[i];
    return NULL;
}

static VkResult find_module(struct backend *b, const struct vulkan_shader *shader,
                            VkShaderModule *out) {
    VkShaderModule *module = &b->modules[shader - vulkan_shaders];
    const VkShaderModuleCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
        .codeSize = (size_t)(shader->end - shader->words) * sizeof *shader->words,
        .pCode = shader->words,
    };
    VkResult result = *module ? VK_SUCCESS : vk.create_shader(b->device, &info, NULL, module);
    *out = *module;
    return result;
}

static VkResult make_pipeline(struct backend *b, struct vulkan_pipeline *p) {
    VkSpecializationMapEntry entries[VULKAN_MAX_CONSTANTS];
    for (uint32_t i = 0; i < p->n_constants; i++)
        entries[i] = (VkSpecializationMapEntry){i, i * sizeof *p->constants, sizeof *p->constants};
    const VkSpecializationInfo constants = {
        .mapEntryCount = p->n_constants,
        .pMapEntries = entries,
        .dataSize = p->n_constants * sizeof *p->constants,
        .pData = p->constants,
    };
    VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .pName = "main",
                  .pSpecializationInfo = &constants},
        .layout = b->layouts[p->n_binds],
    };
    VkResult result = find_module(b, p->shader, &info.stage.module);
    return result == VK_SUCCESS
               ? vk.create_pipelines(b->device, b->cache, 1, &info, NULL, &p->pipeline)
               : result;
}

static bool is_for(const struct vulkan_pipeline *p, const struct vulkan_shader *shader,
                   const struct vulkan_dispatch *d) {
    return p->shader == shader && p->n_binds == d->n_binds && p->n_constants == d->n_constants &&
           memcmp(p->constants, d->constants, d->n_constants * sizeof *d->constants) == 0;
}

static int add_pipeline(struct backend *b, const struct vulkan_pipeline *key, struct err *err) {
    if (b->n_pipelines == b->pipeline_capacity) {
        uint32_t capacity = b->pipeline_capacity ? 2 * b->pipeline_capacity : 64;
        struct vulkan_pipeline **more = realloc(b->pipelines, capacity * sizeof *more);
        if (!more)
            return err_memory(err, "the pipelines");
        b->pipelines = more;
        b->pipeline_capacity = capacity;
    }
    struct vulkan_pipeline *p = malloc(sizeof *p);
    if (!p)
        return err_memory(err, "a pipeline");
    *p = *key;
    int status = vulkan_done(b, make_pipeline(b, p), p->shader->name, err);
    if (status) {
        free(p);
        return err_prefix(err, "making the pipeline of the shader");
    }
    b->pipelines[b->n_pipelines++] = p;
    return SLUICE_OK;
}

int vulkan_find_pipeline(struct backend *b, const struct vulkan_dispatch *d,
                         const struct vulkan_pipeline **out, struct err *err) {
    const struct vulkan_shader *shader = find_shader(d->shader);
    if (out)
        *out = NULL;
    if (!shader)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "no Vulkan shader %s in this program",
                       d->shader);
    if (!out)
        return SLUICE_OK;
    for (uint32_t i = 0; i < b->n_pipelines; i++)
        if (is_for(b->pipelines[i], shader, d)) {
            *out = b->pipelines[i];
            return SLUICE_OK;
        }
    struct vulkan_pipeline p = {
        .shader = shader, .n_constants = d->n_constants, .n_binds = d->n_binds};
    memcpy(p.constants, d->constants, sizeof p.constants);
    int status = add_pipeline(b, &p, err);
    if (!status)
        *out = b->pipelines[b->n_pipelines - 1];
    return status;
}

/* ---- descriptor sets --------------------------------------------------------------------------
 */

enum { POOL_SETS = 1024 };

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
            .pSetLayouts = &b->set_layouts[n_binds],
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
