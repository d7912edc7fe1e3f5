/* device.c - Vulkan's devices: which there are, what they can do, and opening them, once for all
 * backends of this process. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/vulkan/host/host.h"
#include "base/cpu.h"
#include "base/locale.h"
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

/* SLUICE_VULKAN_PLAIN=1: the shaders of a device without optional features (how it imports and
 * copies stays); matrix: the shader for matrices, by plain code. Both are for tests. */
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

/* Devices that will do are numbered in Vulkan's order: GPUs first, then drivers that run on the
 * processor. */
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

bool vulkan_device_line(int i, char *out, size_t size) {
    struct backend *b = calloc(1, sizeof *b);
    struct extensions *e = calloc(1, sizeof *e);
    struct feature_query a;
    struct err err;
    bool is_there = b && e && find_device(b, i, e, &a, &err) == SLUICE_OK;
    if (is_there)
        locale_print(out, size, "vulkan: device %d, %s, subgroups of %u, %.1f GB%s%s%s", i, b->name,
                     b->can.subgroup_size, (double)b->memory.memoryHeaps[device_heap(b)].size / 1e9,
                     b->can.is_unified ? " shared with the host" : "",
                     b->can.has_dot ? ", int8 dot products" : "",
                     b->has_import && b->can.is_unified ? ", reads mapped files" : "");
    free(b);
    free(e);
    return is_there;
}

/* Whether there may be a GPU at all, by the device nodes of Linux's drivers: where only a driver
 * for the processor is installed, `auto` is spared the 0.1 s and 60 MB that loading it takes. */
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

bool vulkan_is_worth_taking(void) {
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

/* ---- opening ------------------------------------------------------------------------------ */

/* Of the features that the device has, keeps those that shaders and queues use. */
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
static int share_device(struct backend *b, const struct extensions *e, struct feature_query *a,
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

int vulkan_take_device(struct backend *b, int number, struct err *err) {
    struct extensions *e = calloc(1, sizeof *e);
    struct feature_query a;
    if (!e)
        return err_memory(err, "the Vulkan device");
    int status = find_device(b, number, e, &a, err);
    if (!status)
        status = share_device(b, e, &a, err);
    free(e);
    return status;
}

void vulkan_leave_device(struct backend *b) {
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
