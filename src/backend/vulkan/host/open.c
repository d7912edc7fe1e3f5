/* open.c - the Vulkan backend: devices, opening and closing, memory, loading. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/vulkan/host/host.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/size.h"

/* ---- what a device can do ----------------------------------------------------------------- */

enum { MAX_DEVICES = 16, MAX_EXTENSIONS = 512 };

struct extensions {
    VkExtensionProperties list[MAX_EXTENSIONS];
    uint32_t n;
};

static bool has(const struct extensions *e, const char *name) {
    for (uint32_t i = 0; i < e->n; i++)
        if (strcmp(e->list[i].extensionName, name) == 0)
            return true;
    return false;
}

/* SLUICE_VULKAN_PLAIN=1: the shaders of a device that has no more than it must; matrix: that for
 * matrices, without them. Both are for tests. */
static bool is_plain_forced(const char *how) {
    const char *plain = getenv("SLUICE_VULKAN_PLAIN");
    return plain && strcmp(plain, how) == 0;
}

/* What is queried from the driver and its answers, chained as Vulkan requires. */
struct feature_query {
    VkPhysicalDeviceFeatures2 base;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceShaderIntegerDotProductFeatures dot;
    VkPhysicalDeviceCooperativeMatrixFeaturesNV matrix;
    VkPhysicalDeviceSubgroupSizeControlFeatures subgroups;
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR statistics;
    VkPhysicalDevicePipelineRobustnessFeaturesEXT robustness;
};

static bool wants_statistics(void) {
    const char *wants = getenv("SLUICE_VULKAN_STATISTICS");
    return wants && strcmp(wants, "1") == 0;
}

static void query_features(VkPhysicalDevice device, const struct extensions *e,
                           struct feature_query *a) {
    *a = (struct feature_query){
        .base = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &a->v11},
        .v11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &a->v12},
        .v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES},
        .dot = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES},
        .matrix = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV},
        .subgroups = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES},
        .statistics =
            {.sType =
                 VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR},
        .robustness = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_ROBUSTNESS_FEATURES_EXT},
    };
    if (has(e, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME))
        a->v12.pNext = &a->dot;
    if (has(e, VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME)) {
        a->matrix.pNext = a->v12.pNext;
        a->v12.pNext = &a->matrix;
    }
    if (has(e, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME)) {
        a->subgroups.pNext = a->v12.pNext;
        a->v12.pNext = &a->subgroups;
    }
    if (has(e, VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME) && wants_statistics()) {
        a->statistics.pNext = a->v12.pNext;
        a->v12.pNext = &a->statistics;
    }
    if (has(e, VK_EXT_PIPELINE_ROBUSTNESS_EXTENSION_NAME)) {
        a->robustness.pNext = a->v12.pNext;
        a->v12.pNext = &a->robustness;
    }
    vk.device_features(device, &a->base);
}

/* Compute units: what drivers report, or a guess that is good enough to divide work by. */
static uint32_t count_cores(VkPhysicalDevice device, const struct extensions *e, bool is_cpu) {
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nvidia = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV};
    VkPhysicalDeviceShaderCorePropertiesAMD amd = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    if (is_cpu)
        return (uint32_t)cpu_count();
    if (has(e, VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME))
        p.pNext = &nvidia;
    else if (has(e, VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME))
        p.pNext = &amd;
    vk.device_properties(device, &p);
    uint32_t n = nvidia.shaderSMCount ? nvidia.shaderSMCount
                                      : amd.shaderEngineCount * amd.shaderArraysPerEngineCount *
                                            amd.computeUnitsPerShaderArray;
    return n ? n : 32;
}

/* Whether there are products of f16 matrices, 16 x 16 x 16, with f32 sums, by a subgroup
 * of 32. */
static bool has_f16_matrices(VkPhysicalDevice device, const struct feature_query *a,
                             uint32_t subgroup_size) {
    VkCooperativeMatrixPropertiesNV list[64] = {0};
    uint32_t n = sizeof list / sizeof *list;
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesNV ask =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesNV)vk.find(
            vk.instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesNV");
    if (!ask || !a->matrix.cooperativeMatrix || !a->v12.vulkanMemoryModel ||
        !a->v12.vulkanMemoryModelDeviceScope || !a->v12.shaderFloat16 || subgroup_size != 32)
        return false;
    for (uint32_t i = 0; i < n; i++)
        list[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_NV;
    if (ask(device, &n, list) < 0)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (list[i].MSize == 16 && list[i].NSize == 16 && list[i].KSize == 16 &&
            list[i].AType == VK_COMPONENT_TYPE_FLOAT16_NV &&
            list[i].BType == VK_COMPONENT_TYPE_FLOAT16_NV &&
            list[i].CType == VK_COMPONENT_TYPE_FLOAT32_NV &&
            list[i].DType == VK_COMPONENT_TYPE_FLOAT32_NV && list[i].scope == VK_SCOPE_SUBGROUP_NV)
            return true;
    return false;
}

/* What shaders use of subgroups: DELTA's lanes add their sums by shuffles, products skip the
 * threads that have nothing to prepare by a vote. */
static const VkSubgroupFeatureFlags subgroup_needs =
    VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_VOTE_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;

/* Vulkan does not say in which order workgroups of two dispatches start; NVIDIA's driver keeps that
 * of the command buffer. SLUICE_VULKAN_STAGES=1 or 0: taken for granted, or not. The validation
 * layer sees barriers alone, not what shaders wait for. */
static bool starts_in_order(VkDriverId driver) {
    const char *setting = getenv("SLUICE_VULKAN_STAGES");
    bool does = driver == VK_DRIVER_ID_NVIDIA_PROPRIETARY && !vk.is_validating;
    return setting ? strcmp(setting, "1") == 0 : does;
}

static void fill_features(struct backend *b, const struct extensions *e,
                          const struct feature_query *a) {
    VkPhysicalDeviceShaderIntegerDotProductProperties dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES};
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT import = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
    VkPhysicalDeviceVulkan11Properties v11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES};
    VkPhysicalDeviceDriverProperties driver = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES, .pNext = &v11};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                     .pNext = &driver};
    b->has_import =
        has(e, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME) && vk.host_pointer_properties;
    b->has_budget = has(e, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    if (b->has_import) {
        import.pNext = v11.pNext;
        v11.pNext = &import;
    }
    if (a->dot.shaderIntegerDotProduct) {
        dot.pNext = v11.pNext;
        v11.pNext = &dot;
    }
    vk.device_properties(b->physical, &p);
    const VkPhysicalDeviceLimits *limits = &p.properties.limits;
    bool is_plain = is_plain_forced("1");
    bool has_device_scope = a->v12.vulkanMemoryModelDeviceScope && !is_plain;
    b->import_align = import.minImportedHostPointerAlignment;
    b->offset_align = limits->minStorageBufferOffsetAlignment;
    b->max_allocation = v11.maxMemoryAllocationSize;
    b->tick = 1e-9 * (double)limits->timestampPeriod;
    memcpy(b->max_groups, limits->maxComputeWorkGroupCount, sizeof b->max_groups);
    b->can = (struct vulkan_features){
        .subgroup_size = v11.subgroupSize,
        .shared_bytes = limits->maxComputeSharedMemorySize,
        .max_threads = limits->maxComputeWorkGroupInvocations,
        .max_range = limits->maxStorageBufferRange,
        .n_cores = count_cores(b->physical, e, b->is_cpu),
        .has_dot = dot.integerDotProduct4x8BitPackedSignedAccelerated && !is_plain,
        .has_device_scope = has_device_scope,
        .starts_in_order = starts_in_order(driver.driverID) && has_device_scope,
        .has_matrix = has_f16_matrices(b->physical, a, v11.subgroupSize) && !is_plain,
        .has_plain_matrix = is_plain_forced("matrix") && a->v12.shaderFloat16,
    };
    b->has_subgroups = v11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT &&
                       (v11.subgroupSupportedOperations & subgroup_needs) == subgroup_needs;
    if (b->can.max_threads > limits->maxComputeWorkGroupSize[0])
        b->can.max_threads = limits->maxComputeWorkGroupSize[0];
    if (is_plain) {
        b->can.max_threads = 128;
        b->can.shared_bytes = 16384;
    }
}

/* A family of queues that computes, if possible without drawing: those are given to compute alone.
 */
static bool find_family(struct backend *b) {
    VkQueueFamilyProperties list[16];
    uint32_t n = sizeof list / sizeof *list, best = UINT32_MAX;
    vk.queue_families(b->physical, &n, list);
    for (uint32_t i = 0; i < n; i++) {
        if (!(list[i].queueFlags & VK_QUEUE_COMPUTE_BIT))
            continue;
        if (best == UINT32_MAX || (list[best].queueFlags & VK_QUEUE_GRAPHICS_BIT &&
                                   !(list[i].queueFlags & VK_QUEUE_GRAPHICS_BIT)))
            best = i;
    }
    if (best == UINT32_MAX)
        return false;
    b->family = best;
    b->n_queues = min_u32(list[best].queueCount, 2);
    b->time_bits = list[best].timestampValidBits;
    return true;
}

/* ---- devices ------------------------------------------------------------------------------ */

/* Fills what is known of a device before it is opened; fails for one that will not do. */
static int probe_device(struct backend *b, VkPhysicalDevice device, struct extensions *e,
                        struct feature_query *a, struct err *err) {
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    VkPhysicalDeviceMemoryProperties2 memory = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    b->physical = device;
    vk.device_properties(device, &p);
    snprintf(b->name, sizeof b->name, "%s", p.properties.deviceName);
    b->is_cpu = p.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    if (p.properties.apiVersion < VK_API_VERSION_1_2)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "Vulkan device %s has Vulkan %u.%u, expected 1.2 or later", b->name,
                       VK_API_VERSION_MAJOR(p.properties.apiVersion),
                       VK_API_VERSION_MINOR(p.properties.apiVersion));
    if (p.properties.limits.maxPerStageDescriptorStorageBuffers < VULKAN_MAX_BINDS)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "Vulkan device %s has %u storage buffers a shader, expected %d", b->name,
                       p.properties.limits.maxPerStageDescriptorStorageBuffers, VULKAN_MAX_BINDS);
    e->n = MAX_EXTENSIONS;
    if (vk.list_device_extensions(device, NULL, &e->n, e->list) < 0)
        e->n = 0;
    query_features(device, e, a);
    if (!a->v12.timelineSemaphore)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "Vulkan device %s has no timeline semaphores",
                       b->name);
    if (!find_family(b))
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "Vulkan device %s has no queue that computes",
                       b->name);
    vk.device_memory(device, &memory);
    b->memory = memory.memoryProperties;
    fill_features(b, e, a);
    if (!b->has_subgroups)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "Vulkan device %s has no shuffles and votes within subgroups", b->name);
    b->can.is_processor = b->is_cpu;
    b->can.is_unified =
        b->is_cpu || p.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    return SLUICE_OK;
}

/* Devices are numbered as Vulkan lists them, those that will do alone: GPUs first, then drivers
 * that run on the processor. */
static int find_device(struct backend *b, int number, struct extensions *e, struct feature_query *a,
                       struct err *err) {
    VkPhysicalDevice list[MAX_DEVICES];
    uint32_t n = MAX_DEVICES;
    int status = vulkan_driver_open(err), n_found = 0;
    if (status)
        return status;
    VkResult result = vk.list_devices(vk.instance, &n, list);
    status =
        vulkan_check(result == VK_INCOMPLETE ? VK_SUCCESS : result, "counting Vulkan devices", err);
    if (status)
        return status;
    if (n == 0)
        return err_set(err, SLUICE_ERR_DEVICE, "Vulkan finds no device");
    for (int is_cpu = 0; is_cpu < 2; is_cpu++)
        for (uint32_t i = 0; i < n; i++) {
            struct err why;
            int refused = probe_device(b, list[i], e, a, &why);
            if (refused && !status) {
                status = refused;
                *err = why;
            }
            if (!refused && b->is_cpu == is_cpu && n_found++ == number)
                return SLUICE_OK;
        }
    return n_found == 0 ? status
                        : err_set(err, SLUICE_ERR_ARGUMENT,
                                  "device (--device) is %d, expected 0 to %d", number, n_found - 1);
}

/* The largest heap that is the device's own. */
static uint32_t device_heap(const struct backend *b) {
    uint32_t best = 0;
    for (uint32_t i = 0; i < b->memory.memoryHeapCount; i++) {
        const VkMemoryHeap *heap = &b->memory.memoryHeaps[i],
                           *so_far = &b->memory.memoryHeaps[best];
        bool is_local = heap->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT,
             is_best_local = so_far->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT;
        if (is_local > is_best_local || (is_local == is_best_local && heap->size > so_far->size))
            best = i;
    }
    return best;
}

/* A driver that runs on the processor has the host's memory, whatever it says. */
int vulkan_available(struct backend *b, uint64_t *bytes, struct err *err) {
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 memory = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
        .pNext = b->has_budget ? &budget : NULL,
    };
    uint32_t heap = device_heap(b);
    (void)err;
    vk.device_memory(b->physical, &memory);
    *bytes = memory.memoryProperties.memoryHeaps[heap].size;
    if (b->has_budget)
        *bytes = budget.heapBudget[heap] > budget.heapUsage[heap]
                     ? budget.heapBudget[heap] - budget.heapUsage[heap]
                     : 0;
    else if (b->is_cpu && memory_available() < UINT64_MAX)
        *bytes = memory_available();
    return SLUICE_OK;
}

static bool vulkan_device_line(int i, char *out, size_t size) {
    struct backend *b = calloc(1, sizeof *b);
    struct extensions *e = calloc(1, sizeof *e);
    struct feature_query a;
    struct err err;
    bool is_there = b && e && find_device(b, i, e, &a, &err) == SLUICE_OK;
    if (is_there)
        snprintf(out, size, "vulkan: device %d, %s, subgroups of %u, %.1f GB%s%s%s", i, b->name,
                 b->can.subgroup_size, (double)b->memory.memoryHeaps[device_heap(b)].size / 1e9,
                 b->can.is_unified ? " shared with the host" : "",
                 b->can.has_dot ? ", int8 dot products" : "",
                 b->has_import && b->can.is_unified ? ", reads mapped files" : "");
    free(b);
    free(e);
    return is_there;
}

/* Whether there may be a GPU at all, by the nodes that drivers of Linux have for them: where only a
 * driver for the processor is installed, loading it takes 0.1 s and 60 MB that `auto` can spare. */
static bool may_have_gpu(void) {
#ifdef __linux__
    static const char *const nodes[] = {"/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/nvhost*",
                                        "/dev/nvgpu*",       "/dev/dxg",          "/dev/kgsl*",
                                        "/dev/mali*",        "/dev/pvr*"};
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        glob_t found;
        if (glob(nodes[i], GLOB_NOSORT, NULL, &found) == 0) {
            globfree(&found);
            return true;
        }
    }
    return false;
#else
    return true;
#endif
}

static bool is_worth_taking(void) {
    if (!may_have_gpu())
        return false;
    struct backend *b = calloc(1, sizeof *b);
    struct extensions *e = calloc(1, sizeof *e);
    struct feature_query a;
    struct err err;
    bool is_gpu = b && e && find_device(b, 0, e, &a, &err) == SLUICE_OK && !b->is_cpu;
    free(b);
    free(e);
    return is_gpu;
}

/* ---- opening and closing ------------------------------------------------------------------ */

int vulkan_enter(const struct backend *b, struct err *err) {
    return b->dev->is_lost ? err_set(err, SLUICE_ERR_DEVICE,
                                     "the Vulkan device failed earlier; close the engine")
                           : SLUICE_OK;
}

int vulkan_done(struct backend *b, VkResult result, const char *what, struct err *err) {
    if (result == VK_ERROR_DEVICE_LOST)
        b->dev->is_lost = true;
    return vulkan_check(result, what, err);
}

/* Leaves of the features that the device has those that shaders and queues use. */
static void enable_features(const struct backend *b, struct feature_query *a) {
    a->base.features = (VkPhysicalDeviceFeatures){0};
    a->v11 = (VkPhysicalDeviceVulkan11Features){.sType = a->v11.sType, .pNext = a->v11.pNext};
    a->v12 = (VkPhysicalDeviceVulkan12Features){
        .sType = a->v12.sType,
        .pNext = a->v12.pNext,
        .shaderFloat16 = a->v12.shaderFloat16,
        .timelineSemaphore = VK_TRUE,
        .vulkanMemoryModel = b->can.has_matrix,
        .vulkanMemoryModelDeviceScope = b->can.has_matrix,
    };
    a->matrix.cooperativeMatrixRobustBufferAccess = VK_FALSE;
}

static int make_device(struct backend *b, const struct extensions *e, struct feature_query *a,
                       struct err *err) {
    static const char *const wanted[] = {
        VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME,
        VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME,
        VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME,
        VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME,
        VK_EXT_MEMORY_BUDGET_EXTENSION_NAME,
        "VK_KHR_portability_subset",
        VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME,
        VK_EXT_PIPELINE_ROBUSTNESS_EXTENSION_NAME,
    };
    const char *names[sizeof wanted / sizeof *wanted];
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (has(e, wanted[i]))
            names[n++] = wanted[i];
    const float priorities[2] = {1, 0.5f};
    const VkDeviceQueueCreateInfo queues = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
        .queueFamilyIndex = b->family,
        .queueCount = b->n_queues,
        .pQueuePriorities = priorities,
    };
    enable_features(b, a);
    const VkDeviceCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
        .pNext = &a->base,
        .queueCreateInfoCount = 1,
        .pQueueCreateInfos = &queues,
        .enabledExtensionCount = n,
        .ppEnabledExtensionNames = names,
    };
    return vulkan_check(vk.create_device(b->physical, &info, NULL, &b->dev->device),
                        "opening the Vulkan device", err);
}

static pthread_mutex_t sharing = PTHREAD_MUTEX_INITIALIZER;
static struct vulkan_device *open_devices; /* of this process */

static void close_device(struct vulkan_device *d) {
    if (d->device) {
        vulkan_close_pipelines(d);
        vk.destroy_device(d->device, NULL);
    }
    pthread_mutex_destroy(&d->submitting);
    pthread_mutex_destroy(&d->making);
    free(d);
}

static int open_device(struct backend *b, const struct extensions *e, struct feature_query *a,
                       struct err *err) {
    b->dev = calloc(1, sizeof *b->dev);
    if (!b->dev)
        return err_memory(err, "the Vulkan device");
    b->dev->physical = b->physical;
    b->dev->has_full_subgroups = a->subgroups.computeFullSubgroups;
    b->dev->has_robustness = a->robustness.pipelineRobustness;
#ifdef __aarch64__ /* Mesa's driver with LLVM 15: wrong values, or "Cannot select" and abort */
    b->dev->converts_halves = b->is_cpu;
#endif
    b->dev->has_statistics = a->statistics.pipelineExecutableInfo && vk.pipeline_statistics;
    pthread_mutex_init(&b->dev->submitting, NULL);
    pthread_mutex_init(&b->dev->making, NULL);
    int status = make_device(b, e, a, err);
    if (status)
        b->dev->device = VK_NULL_HANDLE;
    else
        status = vulkan_open_pipelines(b->dev, err);
    if (status) {
        close_device(b->dev);
        b->dev = NULL;
        return status;
    }
    b->dev->next = open_devices;
    open_devices = b->dev;
    return SLUICE_OK;
}

/* The device that another backend of this process has open, or a new one. A lost one is not taken
 * again. */
static int take_device(struct backend *b, const struct extensions *e, struct feature_query *a,
                       struct err *err) {
    int status = SLUICE_OK;
    pthread_mutex_lock(&sharing);
    for (struct vulkan_device *d = open_devices; d && !b->dev; d = d->next)
        if (d->physical == b->physical && !d->is_lost)
            b->dev = d;
    if (!b->dev)
        status = open_device(b, e, a, err);
    if (!status) {
        b->dev->n_users++;
        b->device = b->dev->device;
    }
    pthread_mutex_unlock(&sharing);
    return status;
}

static void leave_device(struct backend *b) {
    pthread_mutex_lock(&sharing);
    if (--b->dev->n_users == 0) {
        struct vulkan_device **at = &open_devices;
        while (*at != b->dev)
            at = &(*at)->next;
        *at = b->dev->next;
        close_device(b->dev);
    }
    pthread_mutex_unlock(&sharing);
}

/* A lost device is left like any other. */
static void vulkan_close(struct backend *b) {
    if (!b)
        return;
    if (b->dev) {
        struct err ignored;
        if (b->steps.timeline)
            vulkan_queue_wait(b, &b->steps, &ignored);
        if (b->copies.timeline)
            vulkan_queue_wait(b, &b->copies, &ignored);
        vulkan_queue_close(b, &b->steps);
        vulkan_queue_close(b, &b->copies);
        vulkan_free_sets(b);
        for (int i = 0; i < VULKAN_MEMORIES; i++)
            vulkan_region_free(b, &b->regions[i]);
        leave_device(b);
    }
    for (uint32_t i = 0; i < b->n_recordings; i++) {
        free(b->recordings[i].nodes);
        free(b->greedy[i].nodes);
    }
    free(b->recordings);
    free(b->greedy);
    free(b->places);
    free(b);
}

static int vulkan_open(struct backend **out, const struct backend_options *options,
                       struct err *err) {
    *out = NULL;
    struct backend *b = calloc(1, sizeof *b);
    struct extensions *e = calloc(1, sizeof *e);
    struct feature_query a;
    if (!b || !e) {
        free(b);
        free(e);
        return err_memory(err, "the Vulkan backend");
    }
    b->exact = options->exact;
    b->mapped = options->mapped;
    int status = find_device(b, options->device, e, &a, err);
    if (!status)
        status = take_device(b, e, &a, err);
    free(e);
    if (status || (status = vulkan_queue_open(b, &b->steps, 0, err)) ||
        (status = vulkan_queue_open(b, &b->copies, b->n_queues - 1, err))) {
        vulkan_close(b);
        return status;
    }
    b->has_import = vulkan_can_import(b);
    *out = b;
    return SLUICE_OK;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* As make_region has them. */
static uint64_t whole(uint64_t bytes) {
    return size_aligned(bytes, 256);
}

static uint64_t placed_bytes(const struct backend *b) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < b->n_places; i++)
        bytes += b->places[i].bytes;
    return bytes;
}

static int survey(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                  struct backend_memory *out, struct err *err) {
    int status = vulkan_place_weights(b, plans, n_plans, err);
    if (!status)
        status = vulkan_count(b, plans, n_plans, err);
    *out = (struct backend_memory){
        .weights = placed_bytes(b),
        .state = whole(plans_bytes(plans, n_plans, REGION_STATE)),
        .scratch = whole(plans_bytes(plans, n_plans, REGION_SCRATCH)),
        .io = whole(plans_bytes(plans, n_plans, REGION_IO)),
        .workspace = whole(b->work_bytes) + whole(b->table_bytes) +
                     whole(plans_copied_io(plans, n_plans)) + 2ull * STAGING_BYTES,
        .imported = vulkan_importable(b),
    };
    return status;
}

static int vulkan_predict(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                          struct backend_memory *out, struct err *err) {
    return survey(b, plans, n_plans, out, err);
}

/* A region of one buffer. */
static int make_region(struct backend *b, enum vulkan_memory m, uint64_t bytes, const char *what,
                       struct err *err) {
    struct vulkan_buffer buffer;
    bytes = whole(bytes);
    if (bytes == 0)
        return SLUICE_OK;
    enum vulkan_memory_kind kind = m == VULKAN_IO        ? VULKAN_ON_HOST
                                   : m == VULKAN_IO_COPY ? VULKAN_ON_BOTH
                                                         : VULKAN_ON_DEVICE;
    int status = vulkan_make_buffer(b, &buffer, bytes, kind, what, err);
    if (status && kind == VULKAN_ON_BOTH) /* of some GPUs 256 MB, which may be full */
        status = vulkan_make_buffer(b, &buffer, bytes, VULKAN_ON_HOST, what, err);
    if (!status && (status = vulkan_region_add(&b->regions[m], &buffer, err)))
        vulkan_free_buffer(b, &buffer);
    if (!status && m == VULKAN_IO)
        memset(buffer.host, 0, bytes);
    return status || m == VULKAN_IO ? status : vulkan_zero(b, &b->regions[m], err);
}

struct span {
    uint64_t from, to;
};

static int compare_spans(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* A plan's operands in STATE, after the first n of the spans; returns how many there are then. */
static uint32_t add_spans(struct plan *plan, struct span *spans, uint32_t n) {
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        struct operand_ref refs[MAX_OPERANDS];
        uint32_t n_refs = op_operands(&plan->ops[i], refs);
        for (uint32_t k = 0; k < n_refs; k++)
            if (refs[k].at->region == REGION_STATE)
                spans[n++] = (struct span){refs[k].at->offset,
                                           refs[k].at->offset + operand_bytes(refs[k].at)};
    }
    return n;
}

/* The operands in STATE of all plans, by offset: a draft plan has not all that others have. NULL:
 * there is no memory. */
static struct span *list_state(struct plan *const *plans, uint32_t n_plans, uint32_t *n) {
    size_t most = 1;
    for (uint32_t i = 0; i < n_plans; i++)
        most += (size_t)plans[i]->n_ops * MAX_OPERANDS;
    struct span *spans = calloc(most, sizeof *spans);
    *n = 0;
    for (uint32_t i = 0; spans && i < n_plans; i++)
        *n = add_spans(plans[i], spans, *n);
    if (spans)
        qsort(spans, *n, sizeof *spans, compare_spans);
    return spans;
}

static int add_state_buffer(struct backend *b, uint64_t begin, uint64_t end, struct err *err) {
    struct vulkan_buffer buffer;
    int status = vulkan_make_buffer(b, &buffer, end - begin, VULKAN_ON_DEVICE, "state", err);
    buffer.start = begin;
    if (!status && (status = vulkan_region_add(&b->regions[VULKAN_STATE], &buffer, err)))
        vulkan_free_buffer(b, &buffer);
    return status;
}

/* STATE in as few buffers as the device allows, cut between operands. */
static int make_state(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                      uint64_t bytes, struct err *err) {
    enum { PIECE_BYTES = 1 << 30 };
    uint64_t limit = b->max_allocation < PIECE_BYTES ? b->max_allocation : PIECE_BYTES;
    uint64_t begin = 0, end = 0; /* of the next buffer; of the operands so far */
    uint32_t n;
    struct span *spans = list_state(plans, n_plans, &n);
    if (!spans)
        return err_memory(err, "the table of state");
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i <= n; i++) {
        bool is_cut = i == n || (spans[i].to - begin > limit && spans[i].from >= end &&
                                 spans[i].from > begin && spans[i].from % 256 == 0);
        uint64_t to = i == n ? bytes : spans[i].from;
        if (is_cut && to > begin) {
            status = add_state_buffer(b, begin, to, err);
            begin = to;
        }
        end = i < n && spans[i].to > end ? spans[i].to : end;
    }
    free(spans);
    return status || bytes == 0 ? status : vulkan_zero(b, &b->regions[VULKAN_STATE], err);
}

static int vulkan_load(struct backend *b, struct backend_weights weights, struct plan *const *plans,
                       uint32_t n_plans,
                       void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                       struct err *err) {
    struct backend_memory m;
    int status;
    if ((status = vulkan_enter(b, err)) || (status = survey(b, plans, n_plans, &m, err)) ||
        (status = vulkan_make_weights(b, weights, err)) ||
        (status = make_state(b, plans, n_plans, m.state, err)) ||
        (status = make_region(b, VULKAN_SCRATCH, m.scratch, "scratch", err)) ||
        (status = make_region(b, VULKAN_WORK, b->work_bytes, "workspace", err)) ||
        (status = make_region(b, VULKAN_TABLES, b->table_bytes, "tables", err)) ||
        (status = make_region(b, VULKAN_IO_COPY, plans_copied_io(plans, n_plans), "the copy of IO",
                              err)) ||
        (status = make_region(b, VULKAN_IO, m.io, "IO", err)) ||
        (status = vulkan_upload(b, weights, progress, user, err)) ||
        (status = vulkan_fill_tables(b, weights, err)))
        return status;
    return vulkan_record(b, plans, n_plans, err);
}

/* ---- the backend -------------------------------------------------------------------------- */

static uint8_t *vulkan_io(struct backend *b) {
    return b->regions[VULKAN_IO].list[0].host;
}

static void vulkan_memory(const struct backend *b, struct backend_memory *out) {
    *out = (struct backend_memory){
        .weights = placed_bytes(b),
        .imported = b->imported,
        .state = b->regions[VULKAN_STATE].bytes,
        .scratch = b->regions[VULKAN_SCRATCH].bytes,
        .io = b->regions[VULKAN_IO].bytes,
        .workspace = b->regions[VULKAN_WORK].bytes + b->regions[VULKAN_TABLES].bytes +
                     b->regions[VULKAN_IO_COPY].bytes + 2ull * STAGING_BYTES,
    };
}

static void vulkan_counters(const struct backend *b, struct backend_counters *out) {
    *out = b->count;
}

const struct backend_kind backend_vulkan = {
    .name = "vulkan",
    .numerics = 2, /* 2: f16 queries over an f16 cache */
    .max_rows = 512,
    .prefill = 512,
    .open = vulkan_open,
    .close = vulkan_close,
    .predict = vulkan_predict,
    .available = vulkan_available,
    .load = vulkan_load,
    .io = vulkan_io,
    .submit = vulkan_submit,
    .wait = vulkan_wait,
    .has_burst = vulkan_has_burst,
    .submit_burst = vulkan_submit_burst,
    .read_state = vulkan_read_state,
    .write_state = vulkan_write_state,
    .move_state = vulkan_move_state,
    .copy_state = vulkan_copy_state,
    .fence = vulkan_fence,
    .move_beside = vulkan_move_beside,
    .memory = vulkan_memory,
    .counters = vulkan_counters,
    .time_ops = vulkan_time_ops,
    .run_op = vulkan_run_op,
    .op_kernel = vulkan_op_kernel,
    .peek = vulkan_peek,
    .poke = vulkan_poke,
    .bandwidth = vulkan_bandwidth,
    .device_line = vulkan_device_line,
    .is_worth_taking = is_worth_taking,
};
