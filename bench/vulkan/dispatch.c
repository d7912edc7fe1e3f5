/* dispatch.c - what a dependent dispatch costs on a Vulkan driver, by kind of barrier.
 *
 *     make bench-programs
 *     build/bench/vulkan/dispatch [device] [runs] [all|code]
 *
 * A chain of dispatches, each after a barrier, between two time stamps; best of a few runs, divided
 * by their number. `all`: also with barriers of all workgroups inside a shader, which hang where a
 * device does not run so many at once, and stages that wait for counters, where dispatches do not
 * start in order; `code`: those of the instructions alone. No part of the
 * engine. */
#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

static const uint32_t spirv_2[] =
#include "chain1.inc"
    ;
static const uint32_t spirv_10[] =
#include "chain10.inc"
    ;

/* clang-format off */
#define FUNCTIONS                                                                                  \
    F(EnumeratePhysicalDevices)                                                                    \
    F(GetPhysicalDeviceProperties)                                                                 \
    F(GetPhysicalDeviceMemoryProperties)                                                           \
    F(GetPhysicalDeviceQueueFamilyProperties) F(GetPhysicalDeviceFeatures2) F(CreateDevice)        \
        F(GetDeviceQueue) F(CreateBuffer) F(GetBufferMemoryRequirements) F(AllocateMemory)         \
            F(BindBufferMemory) F(CreateShaderModule) F(CreateDescriptorSetLayout) F(              \
                CreatePipelineLayout) F(CreateComputePipelines) F(CreateDescriptorPool)            \
                F(AllocateDescriptorSets) F(UpdateDescriptorSets) F(CreateCommandPool) F(          \
                    AllocateCommandBuffers) F(BeginCommandBuffer) F(EndCommandBuffer)              \
                    F(CmdBindPipeline) F(CmdBindDescriptorSets) F(CmdPushConstants) F(CmdDispatch) \
                        F(CmdPipelineBarrier) F(CmdPipelineBarrier2) F(CmdPipelineBarrier2KHR)     \
                            F(CreateEvent) F(CmdSetEvent) F(CmdWaitEvents) F(CmdResetEvent)        \
                                F(CreateQueryPool) F(CmdResetQueryPool) F(CmdWriteTimestamp)       \
                                    F(GetQueryPoolResults) F(QueueSubmit) F(QueueWaitIdle)         \
                                        F(CmdExecuteCommands) F(CmdFillBuffer) F(ResetCommandPool) \
                                            F(EnumerateDeviceExtensionProperties)                  \
                                                F(GetPhysicalDeviceQueueFamilyProperties2)
/* clang-format on */
#define F(name) static PFN_vk##name name;
FUNCTIONS
#undef F

static void check(VkResult r, const char *what) {
    if (r < 0) {
        fprintf(stderr, "%s: VkResult %d\n", what, r);
        exit(1);
    }
}

enum { STAGES = 160, MAX_FAMILIES = 8, STREAM_BYTES = 1 << 30 };

enum barrier { NONE, GLOBAL, GLOBAL_READ, EXECUTION, BUFFER, BUFFERS, EVENT, SYNC2, FULL };
static const char *const barrier_names[] = {"none",           "global W>RW", "global W>R",
                                            "execution only", "buffer W>RW", "ten buffers",
                                            "event",          "sync2",       "full (memory, host)"};

static struct {
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue[MAX_FAMILIES];
    VkCommandPool pool[MAX_FAMILIES];
    uint32_t n_families, flags[MAX_FAMILIES];
    VkBuffer words, stream, host;
    uint64_t stream_bytes;
    VkDescriptorSetLayout set_layout[2];
    VkPipelineLayout layout[2];
    VkDescriptorSet set[2];
    VkQueryPool queries;
    VkEvent events[STAGES];
    double tick;
    int runs;
    int has_sync2;
} g;

static uint32_t memory_type(uint32_t bits, VkMemoryPropertyFlags want) {
    VkPhysicalDeviceMemoryProperties m;
    GetPhysicalDeviceMemoryProperties(g.physical, &m);
    for (uint32_t i = 0; i < m.memoryTypeCount; i++)
        if (bits >> i & 1 && (m.memoryTypes[i].propertyFlags & want) == want)
            return i;
    fprintf(stderr, "no memory of that kind\n");
    exit(1);
}

static VkBuffer make_buffer(uint64_t bytes, VkMemoryPropertyFlags want) {
    VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                               .size = bytes,
                               .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                        VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    VkMemoryRequirements need;
    VkBuffer buffer;
    VkDeviceMemory memory;
    check(CreateBuffer(g.device, &info, NULL, &buffer), "buffer");
    GetBufferMemoryRequirements(g.device, buffer, &need);
    VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                     .allocationSize = need.size,
                                     .memoryTypeIndex = memory_type(need.memoryTypeBits, want)};
    check(AllocateMemory(g.device, &allocate, NULL, &memory), "memory");
    check(BindBufferMemory(g.device, buffer, memory, 0), "bind");
    return buffer;
}

static void open_instance(void) {
    void *lib = dlopen("libvulkan.so.1", RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    PFN_vkGetInstanceProcAddr find;
    *(void **)&find = dlsym(lib, "vkGetInstanceProcAddr");
    PFN_vkCreateInstance create = (PFN_vkCreateInstance)find(NULL, "vkCreateInstance");
    VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                             .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &app};
    check(create(&info, NULL, &g.instance), "instance");
#define F(name) name = (PFN_vk##name)find(g.instance, "vk" #name);
    FUNCTIONS
#undef F
}

/* Its version of Vulkan. */
static uint32_t choose_device(int number) {
    VkPhysicalDevice list[8];
    uint32_t n = 8;
    check(EnumeratePhysicalDevices(g.instance, &n, list), "devices");
    if ((uint32_t)number >= n) {
        fprintf(stderr, "device %d of %u\n", number, n);
        exit(1);
    }
    g.physical = list[number];
    VkPhysicalDeviceProperties p;
    GetPhysicalDeviceProperties(g.physical, &p);
    g.tick = p.limits.timestampPeriod * 1e-3;
    printf("%s, driver %u.%u\n", p.deviceName, p.driverVersion >> 22, p.driverVersion >> 14 & 255);
    return p.apiVersion;
}

/* With a queue of every family that computes. */
static void make_device(uint32_t version) {
    VkQueueFamilyProperties families[MAX_FAMILIES];
    g.n_families = MAX_FAMILIES;
    GetPhysicalDeviceQueueFamilyProperties(g.physical, &g.n_families, families);
    VkPhysicalDeviceSynchronization2Features sync2 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SYNCHRONIZATION_2_FEATURES};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                          .pNext = &sync2};
    if (version >= VK_API_VERSION_1_3)
        GetPhysicalDeviceFeatures2(g.physical, &features);
    g.has_sync2 = sync2.synchronization2 && CmdPipelineBarrier2;
    float one = 1;
    VkDeviceQueueCreateInfo queues[MAX_FAMILIES];
    uint32_t n_queues = 0;
    for (uint32_t i = 0; i < g.n_families; i++) {
        g.flags[i] = families[i].queueFlags;
        if (g.flags[i] & VK_QUEUE_COMPUTE_BIT)
            queues[n_queues++] =
                (VkDeviceQueueCreateInfo){.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                          .queueFamilyIndex = i,
                                          .queueCount = 1,
                                          .pQueuePriorities = &one};
    }
    VkDeviceCreateInfo device = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                 .pNext = g.has_sync2 ? &sync2 : NULL,
                                 .queueCreateInfoCount = n_queues,
                                 .pQueueCreateInfos = queues};
    check(CreateDevice(g.physical, &device, NULL, &g.device), "device");
}

static void open_device(int number) {
    open_instance();
    make_device(choose_device(number));
    for (uint32_t i = 0; i < g.n_families; i++) {
        if (!(g.flags[i] & VK_QUEUE_COMPUTE_BIT))
            continue;
        VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                        .queueFamilyIndex = i};
        GetDeviceQueue(g.device, i, 0, &g.queue[i]);
        check(CreateCommandPool(g.device, &pool, NULL, &g.pool[i]), "pool");
    }
}

/* Layout k, of n buffers. */
static void make_layout(uint32_t k, uint32_t n) {
    VkDescriptorSetLayoutBinding binding[10];
    for (uint32_t i = 0; i < n; i++)
        binding[i] =
            (VkDescriptorSetLayoutBinding){.binding = i,
                                           .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                           .descriptorCount = 1,
                                           .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    VkDescriptorSetLayoutCreateInfo set = {.sType =
                                               VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                           .bindingCount = n,
                                           .pBindings = binding};
    check(CreateDescriptorSetLayout(g.device, &set, NULL, &g.set_layout[k]), "set layout");
    VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, 128};
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .setLayoutCount = 1,
                                         .pSetLayouts = &g.set_layout[k],
                                         .pushConstantRangeCount = 1,
                                         .pPushConstantRanges = &range};
    check(CreatePipelineLayout(g.device, &layout, NULL, &g.layout[k]), "layout");
}

static void make_set(uint32_t k, uint32_t n) {
    VkDescriptorBufferInfo at[10];
    VkWriteDescriptorSet write[10];
    VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, n};
    VkDescriptorPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                       .maxSets = 1,
                                       .poolSizeCount = 1,
                                       .pPoolSizes = &size};
    VkDescriptorPool made;
    check(CreateDescriptorPool(g.device, &pool, NULL, &made), "set pool");
    VkDescriptorSetAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                            .descriptorPool = made,
                                            .descriptorSetCount = 1,
                                            .pSetLayouts = &g.set_layout[k]};
    check(AllocateDescriptorSets(g.device, &allocate, &g.set[k]), "set");
    for (uint32_t i = 0; i < n; i++) {
        at[i] = (VkDescriptorBufferInfo){g.words, 65536 * i, i ? 65536 : 1 << 18};
        if (i == 1)
            at[i] = (VkDescriptorBufferInfo){g.stream, 0, VK_WHOLE_SIZE};
        write[i] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                          .dstSet = g.set[k],
                                          .dstBinding = i,
                                          .descriptorCount = 1,
                                          .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                          .pBufferInfo = &at[i]};
    }
    UpdateDescriptorSets(g.device, n, write, 0, NULL);
}

static void open_sets(void) {
    g.stream_bytes = STREAM_BYTES;
    g.words = make_buffer(1 << 20, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    g.host = make_buffer(1 << 20, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT);
    g.stream = make_buffer(g.stream_bytes, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    for (uint32_t k = 0; k < 2; k++) {
        make_layout(k, k ? 10 : 2);
        make_set(k, k ? 10 : 2);
    }
    VkQueryPoolCreateInfo queries = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                     .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                     .queryCount = 2};
    check(CreateQueryPool(g.device, &queries, NULL, &g.queries), "queries");
    VkEventCreateInfo event = {.sType = VK_STRUCTURE_TYPE_EVENT_CREATE_INFO};
    for (int i = 0; i < STAGES; i++)
        check(CreateEvent(g.device, &event, NULL, &g.events[i]), "event");
}

static VkPipeline make_pipeline(uint32_t many, uint32_t threads, uint32_t kind) {
    static struct {
        uint32_t many, threads, kind;
        VkPipeline pipeline;
    } made[128];
    static uint32_t n_made;
    for (uint32_t i = 0; i < n_made; i++)
        if (made[i].many == many && made[i].threads == threads && made[i].kind == kind)
            return made[i].pipeline;
    VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                     .codeSize = many ? sizeof spirv_10 : sizeof spirv_2,
                                     .pCode = many ? spirv_10 : spirv_2};
    uint32_t values[3] = {threads, kind & 15, kind >> 4};
    VkSpecializationMapEntry entries[3] = {{0, 0, 4}, {1, 4, 4}, {2, 8, 4}};
    VkSpecializationInfo constants = {3, entries, sizeof values, values};
    VkShaderModule module;
    check(CreateShaderModule(g.device, &info, NULL, &module), "module");
    VkComputePipelineCreateInfo pipeline = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &constants},
        .layout = g.layout[many]};
    made[n_made].many = many;
    made[n_made].threads = threads;
    made[n_made].kind = kind;
    check(CreateComputePipelines(g.device, VK_NULL_HANDLE, 1, &pipeline, NULL,
                                 &made[n_made].pipeline),
          "pipeline");
    return made[n_made++].pipeline;
}

/* One line of the table. */
struct chain {
    const char *name;
    enum barrier barrier;
    uint32_t groups, threads, kind;
    uint32_t many;                    /* 1: ten buffers */
    uint32_t alternate;               /* pipelines in turn, less one */
    uint32_t push, rebind, secondary; /* flags */
    uint64_t bytes;                   /* of a stage */
    uint32_t first_family;            /* 1: only the first family */
};

static void put_barrier(VkCommandBuffer c, enum barrier kind, uint32_t stage) {
    const VkPipelineStageFlags compute = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    VkMemoryBarrier all = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                           .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                           .dstAccessMask =
                               VK_ACCESS_SHADER_READ_BIT |
                               (kind == GLOBAL_READ ? 0 : (uint32_t)VK_ACCESS_SHADER_WRITE_BIT)};
    VkBufferMemoryBarrier list[10];
    for (uint32_t i = 0; i < 10; i++)
        list[i] = (VkBufferMemoryBarrier){.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER,
                                          .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                                          .dstAccessMask = VK_ACCESS_SHADER_READ_BIT |
                                                           VK_ACCESS_SHADER_WRITE_BIT,
                                          .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                          .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                          .buffer = g.words,
                                          .offset = 65536 * i,
                                          .size = 65536};
    VkMemoryBarrier2 two = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER_2,
                            .srcStageMask = VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT,
                            .srcAccessMask = VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT,
                            .dstStageMask = VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT,
                            .dstAccessMask = VK_ACCESS_2_SHADER_STORAGE_READ_BIT};
    VkDependencyInfo depends = {.sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO,
                                .memoryBarrierCount = 1,
                                .pMemoryBarriers = &two};
    switch (kind) {
    case NONE:
        break;
    case GLOBAL:
    case GLOBAL_READ:
        CmdPipelineBarrier(c, compute, compute, 0, 1, &all, 0, NULL, 0, NULL);
        break;
    case EXECUTION:
        CmdPipelineBarrier(c, compute, compute, 0, 0, NULL, 0, NULL, 0, NULL);
        break;
    case BUFFER:
        CmdPipelineBarrier(c, compute, compute, 0, 0, NULL, 1, list, 0, NULL);
        break;
    case BUFFERS:
        CmdPipelineBarrier(c, compute, compute, 0, 0, NULL, 10, list, 0, NULL);
        break;
    case EVENT:
        CmdSetEvent(c, g.events[stage], compute);
        CmdWaitEvents(c, 1, &g.events[stage], compute, compute, 1, &all, 0, NULL, 0, NULL);
        break;
    case SYNC2:
        CmdPipelineBarrier2(c, &depends);
        break;
    case FULL:
        all.srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT;
        all.dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
        CmdPipelineBarrier(c, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                           VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
                           &all, 0, NULL, 0, NULL);
        break;
    }
}

static void encode(VkCommandBuffer c, const struct chain *t) {
    VkPipeline pipelines[8];
    for (uint32_t i = 0; i <= t->alternate; i++)
        pipelines[i] = make_pipeline(t->many, t->threads, t->kind | i << 4);
    uint32_t n = (uint32_t)(t->bytes / 16), stages = t->kind == 3 ? 1 : STAGES;
    for (uint32_t s = 0; s < stages; s++) {
        uint32_t fit = (uint32_t)(g.stream_bytes / 16),
                 first = n ? s * n % (fit - (t->kind == 3 ? STAGES * n % fit : n)) : 0;
        uint32_t push[32] = {n, first, STAGES, s};
        if (s)
            put_barrier(c, t->barrier, s);
        if (s == 0 || t->alternate)
            CmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, pipelines[s % (t->alternate + 1)]);
        if (s == 0 || t->rebind)
            CmdBindDescriptorSets(c, VK_PIPELINE_BIND_POINT_COMPUTE, g.layout[t->many], 0, 1,
                                  &g.set[t->many], 0, NULL);
        if (s == 0 || t->push)
            CmdPushConstants(c, g.layout[t->many], VK_SHADER_STAGE_COMPUTE_BIT, 0, 128, push);
        CmdDispatch(c, t->groups, 1, 1);
    }
}

static double run(const struct chain *t, uint32_t family) {
    VkCommandBufferAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandPool = g.pool[family],
                                            .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                            .commandBufferCount = 1};
    VkCommandBufferInheritanceInfo inherits = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO};
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                      .pInheritanceInfo = &inherits};
    VkCommandBuffer c, second;
    double best = 1e30;
    check(AllocateCommandBuffers(g.device, &allocate, &c), "commands");
    if (t->secondary) {
        allocate.level = VK_COMMAND_BUFFER_LEVEL_SECONDARY;
        check(AllocateCommandBuffers(g.device, &allocate, &second), "commands");
        check(BeginCommandBuffer(second, &begin), "begin");
        encode(second, t);
        check(EndCommandBuffer(second), "end");
    }
    check(BeginCommandBuffer(c, &begin), "begin");
    CmdResetQueryPool(c, g.queries, 0, 2);
    CmdFillBuffer(c, g.words, 0, 1 << 20, 0);
    if (t->barrier == EVENT)
        for (int i = 0; i < STAGES; i++)
            CmdResetEvent(c, g.events[i], VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
    put_barrier(c, FULL, 0);
    CmdWriteTimestamp(c, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, g.queries, 0);
    if (t->secondary)
        CmdExecuteCommands(c, 1, &second);
    else
        encode(c, t);
    CmdWriteTimestamp(c, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, g.queries, 1);
    put_barrier(c, FULL, 0);
    check(EndCommandBuffer(c), "end");
    for (int i = 0; i < g.runs; i++) {
        VkSubmitInfo submit = {
            .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &c};
        uint64_t stamps[2];
        check(QueueSubmit(g.queue[family], 1, &submit, VK_NULL_HANDLE), "submit");
        check(QueueWaitIdle(g.queue[family]), "wait");
        check(GetQueryPoolResults(g.device, g.queries, 0, 2, sizeof stamps, stamps, 8,
                                  VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
              "times");
        double us = (double)(stamps[1] - stamps[0]) * g.tick / STAGES;
        best = us < best ? us : best;
    }
    return best;
}

enum { IN_SHADER = 23 }; /* the last of them */

static const struct chain chains[] = {
    {"empty", NONE, 132, 256, 0, .push = 1, .rebind = 1},
    {"empty", GLOBAL, 132, 256, 0, .push = 1, .rebind = 1},
    {"empty", GLOBAL_READ, 132, 256, 0, .push = 1, .rebind = 1},
    {"empty", EXECUTION, 132, 256, 0, .push = 1, .rebind = 1},
    {"empty", BUFFER, 132, 256, 0, .push = 1, .rebind = 1},
    {"empty", BUFFERS, 132, 256, 0, .push = 1, .rebind = 1},
    {"empty", EVENT, 132, 256, 0, .push = 1, .rebind = 1},
    {"empty", SYNC2, 132, 256, 0, .push = 1, .rebind = 1},
    {"empty", FULL, 132, 256, 0, .push = 1, .rebind = 1},
    {"empty, nothing bound again", GLOBAL, 132, 256, 0},
    {"empty, set bound again", GLOBAL, 132, 256, 0, .rebind = 1},
    {"empty, pushed again", GLOBAL, 132, 256, 0, .push = 1},
    {"empty, pipelines alternate", GLOBAL, 132, 256, 0, .alternate = 1},
    {"empty, all of it", GLOBAL, 132, 256, 0, .alternate = 1, .push = 1, .rebind = 1},
    {"empty, all of it, secondary", GLOBAL, 132, 256, 0, 0, 1, 1, 1, .secondary = 1},
    {"empty", GLOBAL, 1, 64, 0, .push = 1, .rebind = 1},
    {"empty", GLOBAL, 1, 256, 0, .push = 1, .rebind = 1},
    {"empty", GLOBAL, 132, 64, 0, .push = 1, .rebind = 1},
    {"empty", GLOBAL, 528, 64, 0, .push = 1, .rebind = 1},
    {"empty", GLOBAL, 528, 256, 0, .push = 1, .rebind = 1},
    {"empty", GLOBAL, 2000, 64, 0, .push = 1, .rebind = 1},
    {"empty", GLOBAL, 2000, 256, 0, .push = 1, .rebind = 1},
    {"a word", GLOBAL, 132, 256, 1, .push = 1, .rebind = 1},
    {"a word, no push", GLOBAL, 132, 256, 1},
    {"a word, alternating", GLOBAL, 132, 256, 1, .alternate = 1, .push = 1, .rebind = 1},
    {"a word of 10 buffers", GLOBAL, 132, 256, 1, .many = 1, .push = 1, .rebind = 1},
    {"a word of 10, no push", GLOBAL, 132, 256, 1, .many = 1},
    {"a word of 10, alternating", GLOBAL, 132, 256, 1, 1, 1, 1, 1},
    {"a word of 10, alternating", GLOBAL, 528, 256, 1, 1, 1, 1, 1},
    {"a word of 10, alternating", BUFFER, 132, 256, 1, 1, 1, 1, 1},
    {"a word of 10, alternating", SYNC2, 132, 256, 1, 1, 1, 1, 1},
    {"a word of 10, alternating", EVENT, 132, 256, 1, 1, 1, 1, 1},
    {"stream of 6 MB", GLOBAL, 528, 256, 2, 1, 1, 1, 1, .bytes = 6000000},
    {"stream of 17 MB", GLOBAL, 132, 256, 2, 1, 1, 1, 1, .bytes = 17000000},
    {"stream of 17 MB", GLOBAL, 264, 512, 2, 1, 1, 1, 1, .bytes = 17000000},
    {"stream of 17 MB", GLOBAL, 528, 128, 2, 1, 1, 1, 1, .bytes = 17000000},
    {"stream of 17 MB", GLOBAL, 528, 256, 2, 1, 1, 1, 1, .bytes = 17000000},
    {"stream of 17 MB", GLOBAL, 1056, 256, 2, 1, 1, 1, 1, .bytes = 17000000},
    {"stream of 17 MB", GLOBAL, 2112, 128, 2, 1, 1, 1, 1, .bytes = 17000000},
    {"stream of 17 MB", GLOBAL, 4000, 128, 2, 1, 1, 1, 1, .bytes = 17000000},
    {"stream of 17 MB", NONE, 528, 256, 2, 1, 1, 1, 1, .bytes = 17000000},
    {"stream of 17 MB", GLOBAL, 528, 256, 2, 0, 0, 1, 0, .bytes = 17000000},
    {"stream of 27 MB", GLOBAL, 528, 256, 2, 1, 1, 1, 1, .bytes = 27000000},
    {"512 instructions", GLOBAL, 132, 256, 4, 1, 0, 1, 1},
    {"512 instructions, 8 programs", GLOBAL, 132, 256, 4, 1, 7, 1, 1},
    {"4096 instructions", GLOBAL, 132, 256, 5, 1, 0, 1, 1},
    {"4096 instructions, 2 programs", GLOBAL, 132, 256, 5, 1, 1, 1, 1},
    {"4096 instructions, 4 programs", GLOBAL, 132, 256, 5, 1, 3, 1, 1},
    {"4096 instructions, 8 programs", GLOBAL, 132, 256, 5, 1, 7, 1, 1},
    {"barrier in the shader", NONE, 132, 256, 3, 1, 1, 1, 1, .bytes = 0},
    {"barrier in the shader, 528", NONE, 528, 256, 3, 1, 1, 1, 1, .bytes = 0},
    {"the same, stream of 6 MB", NONE, 528, 256, 3, 1, 1, 1, 1, .bytes = 6000000},
    {"a word, counted", NONE, 1, 256, 9, 0, 1, 1, 1},
    {"a word, counted", NONE, 132, 256, 9, 0, 1, 1, 1},
    {"a word, counted", NONE, 264, 512, 9, 0, 1, 1, 1},
    {"a word, counted", NONE, 396, 384, 9, 0, 1, 1, 1},
    {"a word, counted", NONE, 528, 256, 9, 0, 1, 1, 1},
    {"1.2 MB before the wait", NONE, 396, 384, 10, 0, 1, 1, 1, .bytes = 1200000},
    {"6 MB before the wait", NONE, 396, 384, 10, 0, 1, 1, 1, .bytes = 6000000},
    {"17 MB before the wait", NONE, 396, 384, 10, 0, 1, 1, 1, .bytes = 17000000},
    {"1.2 MB after the wait", NONE, 396, 384, 11, 0, 1, 1, 1, .bytes = 1200000},
    {"6 MB after the wait", NONE, 396, 384, 11, 0, 1, 1, 1, .bytes = 6000000},
    {"17 MB after the wait", NONE, 396, 384, 11, 0, 1, 1, 1, .bytes = 17000000},
    {"1.2 MB after a barrier", GLOBAL, 396, 384, 2, 0, 1, 1, 1, .bytes = 1200000},
    {"6 MB after a barrier", GLOBAL, 396, 384, 2, 0, 1, 1, 1, .bytes = 6000000},
    {"17 MB after a barrier", GLOBAL, 396, 384, 2, 0, 1, 1, 1, .bytes = 17000000},
    {"512 after the wait, 8", NONE, 132, 256, 14, 1, 7, 1, 1},
    {"4096 after the wait, 2", NONE, 132, 256, 15, 1, 1, 1, 1},
    {"4096 after the wait, 8", NONE, 132, 256, 15, 1, 7, 1, 1},
    {"4096 before the wait, 2", NONE, 132, 256, 13, 1, 1, 1, 1},
    {"4096 before the wait, 8", NONE, 132, 256, 13, 1, 7, 1, 1},
    {"4096 after a barrier, 8", GLOBAL, 132, 256, 5, 1, 7, 1, 1},
};

int main(int n_args, char **args) {
    open_device(n_args > 1 ? atoi(args[1]) : 0);
    g.runs = n_args > 2 ? atoi(args[2]) : 20;
    open_sets();
    const char *which = n_args > 3 ? args[3] : "";
    int cases = (int)(sizeof chains / sizeof *chains) - (strcmp(which, "all") ? IN_SHADER : 0);
    printf("%-32s %-20s %6s %7s  us a dispatch, by queue family:", "dispatch", "barrier", "groups",
           "threads");
    for (uint32_t f = 0; f < g.n_families; f++)
        if (g.flags[f] & VK_QUEUE_COMPUTE_BIT)
            printf(" %u%s", f, g.flags[f] & VK_QUEUE_GRAPHICS_BIT ? " (graphics)" : "");
    printf("\n");
    for (int i = 0; i < cases; i++) {
        const struct chain *t = &chains[i];
        if ((t->barrier == SYNC2 && !g.has_sync2) || (strcmp(which, "code") == 0 && t->kind < 4))
            continue;
        printf("%-32s %-20s %6u %7u ", t->name, barrier_names[t->barrier], t->groups, t->threads);
        for (uint32_t f = 0; f < g.n_families; f++)
            if (g.flags[f] & VK_QUEUE_COMPUTE_BIT) {
                double us = run(t, f);
                printf(" %7.3f", us);
                if (t->bytes)
                    printf(" (%.2f TB/s)", (double)t->bytes / us * 1e-6);
                fflush(stdout);
            }
        printf("\n");
    }
    return 0;
}
