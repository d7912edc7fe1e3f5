/* test_vulkan_faults.c - calls of the driver that fail: every one of an engine's opening in turn,
 * and a device that is lost in the middle of an answer. The driver's table is filled with functions
 * that fail when they are told to. */
#include "backend/vulkan/host/host.h"
#include "engine/engine.h"
#include "rig.h"

/* ---- functions that fail ------------------------------------------------------------------ */

/* Every function that an engine's opening or a step calls and that may fail, but those that make a
 * device and its pipelines, which all tests share: FAULT(member of vk, parameters, arguments). */
#define FAULTS                                                                                     \
    FAULT(allocate_memory,                                                                         \
          (VkDevice a, const VkMemoryAllocateInfo *b, const VkAllocationCallbacks *c,              \
           VkDeviceMemory *d),                                                                     \
          (a, b, c, d))                                                                            \
    FAULT(map_memory,                                                                              \
          (VkDevice a, VkDeviceMemory b, VkDeviceSize c, VkDeviceSize d, VkMemoryMapFlags e,       \
           void **f),                                                                              \
          (a, b, c, d, e, f))                                                                      \
    FAULT(create_buffer,                                                                           \
          (VkDevice a, const VkBufferCreateInfo *b, const VkAllocationCallbacks *c, VkBuffer *d),  \
          (a, b, c, d))                                                                            \
    FAULT(bind_buffer, (VkDevice a, VkBuffer b, VkDeviceMemory c, VkDeviceSize d), (a, b, c, d))   \
    FAULT(create_semaphore,                                                                        \
          (VkDevice a, const VkSemaphoreCreateInfo *b, const VkAllocationCallbacks *c,             \
           VkSemaphore *d),                                                                        \
          (a, b, c, d))                                                                            \
    FAULT(create_command_pool,                                                                     \
          (VkDevice a, const VkCommandPoolCreateInfo *b, const VkAllocationCallbacks *c,           \
           VkCommandPool *d),                                                                      \
          (a, b, c, d))                                                                            \
    FAULT(allocate_commands,                                                                       \
          (VkDevice a, const VkCommandBufferAllocateInfo *b, VkCommandBuffer *c), (a, b, c))       \
    FAULT(begin_commands, (VkCommandBuffer a, const VkCommandBufferBeginInfo *b), (a, b))          \
    FAULT(end_commands, (VkCommandBuffer a), (a))                                                  \
    FAULT(create_set_pool,                                                                         \
          (VkDevice a, const VkDescriptorPoolCreateInfo *b, const VkAllocationCallbacks *c,        \
           VkDescriptorPool *d),                                                                   \
          (a, b, c, d))                                                                            \
    FAULT(allocate_sets, (VkDevice a, const VkDescriptorSetAllocateInfo *b, VkDescriptorSet *c),   \
          (a, b, c))                                                                               \
    FAULT(queue_submit, (VkQueue a, uint32_t b, const VkSubmitInfo *c, VkFence d), (a, b, c, d))   \
    FAULT(wait_semaphores, (VkDevice a, const VkSemaphoreWaitInfo *b, uint64_t c), (a, b, c))

enum fault {
#define FAULT(member, parameters, arguments) FAULT_##member,
    FAULTS
#undef FAULT
        N_FAULTS
};
static const char *const names[] = {
#define FAULT(member, parameters, arguments) #member,
    FAULTS
#undef FAULT
};

static struct vulkan_driver driver; /* the real one */
static enum fault failing;
static int n_left = -1; /* calls of it until one fails; negative: none does */
static VkResult fails_with;

static bool is_now(enum fault fault) {
    return fault == failing && n_left >= 0 && n_left-- == 0;
}

#define FAULT(member, parameters, arguments)                                                       \
    static VkResult VKAPI_PTR fail_##member parameters {                                           \
        return is_now(FAULT_##member) ? fails_with : driver.member arguments;                      \
    }
FAULTS
#undef FAULT

static void begin_faults(void) {
    driver = vk;
#define FAULT(member, parameters, arguments) vk.member = fail_##member;
    FAULTS
#undef FAULT
}

/* One workgroup more than the stage before it has is waited for. */
static void VKAPI_PTR push_too_many(VkCommandBuffer commands, VkPipelineLayout layout,
                                    VkShaderStageFlags stages, uint32_t at, uint32_t bytes,
                                    const void *from) {
    uint32_t push[32];
    CHECK(at == 0 && bytes <= sizeof push);
    memcpy(push, from, bytes);
    uint32_t *stage = &push[offsetof(struct vulkan_io_at, stage) / sizeof *push];
    *stage += (*stage & 0xffff) > 0;
    driver.cmd_push(commands, layout, stages, at, bytes, push);
}

static void end_faults(void) {
    n_left = -1;
    vk = driver;
}

static void fail_once(enum fault fault, int after, VkResult result) {
    failing = fault;
    n_left = after;
    fails_with = result;
}

/* ---- engines ------------------------------------------------------------------------------ */

static int open_engine(sluice_model *model, sluice_engine **engine) {
    struct sluice_engine_options o = sluice_engine_options_default();
    o.backend = "vulkan";
    o.context = 256;
    o.prefill = 1;
    return sluice_engine_open(engine, model, &o);
}

static sluice_model *open_model(void) {
    sluice_model *model = NULL;
    EXPECT_INT(sluice_model_open(&model, test_data("reference/llama-k/model-q4_k_m.gguf")),
               SLUICE_OK);
    return model;
}

static bool is_one_line(const char *text) {
    return *text && !strchr(text, '\n');
}

/* A refused import of weights is no error: they are uploaded then. Nor is it where the device has
 * no mapped memory left for the copy of IO: that is the host's then. */
static bool may_go_on(enum fault fault) {
    return fault == FAULT_create_buffer || fault == FAULT_allocate_memory ||
           fault == FAULT_bind_buffer || fault == FAULT_map_memory;
}

/* Whether the n-th call of that function came, and failed. */
static bool fail_opening(sluice_model *model, enum fault fault, int n) {
    sluice_engine *engine = NULL;
    fail_once(fault, n, VK_ERROR_OUT_OF_DEVICE_MEMORY);
    int status = open_engine(model, &engine);
    bool is_reached = n_left < 0,
         is_told = status == SLUICE_ERR_MEMORY && is_one_line(sluice_engine_error(engine));
    n_left = -1;
    if (is_reached && !is_told && !(status == SLUICE_OK && may_go_on(fault)))
        test_fail(__FILE__, __LINE__, "%s, call %d: status %d, \"%s\"", names[fault], n, status,
                  sluice_engine_error(engine));
    sluice_engine_close(engine);
    return is_reached;
}

/* Every 1st, 2nd, 3rd, 4th, 6th ... call of every function: one line, nothing leaks into the next
 * opening. */
TEST(vulkan_opening_without_memory_is_an_error) {
    sluice_model *model = open_model();
    sluice_engine *engine = NULL;
    int n_failed = 0;
    begin_faults();
    for (enum fault f = 0; f < FAULT_queue_submit; f++)
        for (int n = 0; fail_opening(model, f, n); n += 1 + n / 2)
            n_failed++;
    end_faults();
    EXPECT(n_failed > 2 * N_FAULTS);
    EXPECT_INT(open_engine(model, &engine), SLUICE_OK);
    sluice_engine_close(engine);
    sluice_model_close(model);
}

static sluice_seq *begin_answer(sluice_engine *engine, sluice_model *model) {
    sluice_seq *seq = NULL;
    int32_t first = 3;
    EXPECT_INT(sluice_seq_open(&seq, engine), SLUICE_OK);
    struct sluice_sampling s = sluice_sampling_default(model);
    s.temperature = 0;
    sluice_seq_set_sampling(seq, &s);
    sluice_seq_feed(seq, &first, 1);
    return seq;
}

/* The engine fails and stays failed; the process lives, and a new engine has a new device. */
static void lose_device(enum fault fault) {
    sluice_model *model = open_model();
    sluice_engine *engine = NULL, *again = NULL;
    int32_t token, before, after;
    begin_faults();
    if (open_engine(model, &engine)) {
        test_fail(__FILE__, __LINE__, "%s", sluice_engine_error(engine));
    } else {
        sluice_seq *seq = begin_answer(engine, model), *second;
        struct vulkan_device *lost = engine->backend->dev;
        EXPECT_INT(sluice_seq_next(seq, &before), SLUICE_OK);
        fail_once(fault, 0, VK_ERROR_DEVICE_LOST);
        EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_ERR_DEVICE);
        EXPECT(strstr(sluice_engine_error(engine), "the device was lost"));
        EXPECT(is_one_line(sluice_engine_error(engine)));
        EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_ERR_DEVICE);
        EXPECT(is_one_line(sluice_engine_error(engine)));
        EXPECT_INT(open_engine(model, &again), SLUICE_OK);
        EXPECT(again->backend->dev != lost);
        second = begin_answer(again, model);
        EXPECT_INT(sluice_seq_next(second, &after), SLUICE_OK);
        EXPECT_INT(after, before);
        lost->is_lost = false; /* it was not really: other tests use its pipelines */
    }
    end_faults();
    sluice_engine_close(engine);
    sluice_engine_close(again);
    sluice_model_close(model);
}

TEST(vulkan_device_that_is_lost) {
    lose_device(FAULT_queue_submit);
    lose_device(FAULT_wait_semaphores);
}

/* ---- stages that wait for each other ------------------------------------------------------ */

/* Greedy tokens of an engine whose stages do so, or do not. */
static void answer(sluice_model *model, const char *stages, int32_t *tokens, int n) {
    sluice_engine *engine = NULL;
    setenv("SLUICE_VULKAN_STAGES", stages, 1);
    EXPECT_INT(open_engine(model, &engine), SLUICE_OK);
    sluice_seq *seq = begin_answer(engine, model);
    for (int i = 0; i < n; i++)
        EXPECT_INT(sluice_seq_next(seq, &tokens[i]), SLUICE_OK);
    sluice_engine_close(engine);
}

TEST(stages_without_barriers_are_those_with_them) {
    enum { N = 12 };
    sluice_model *model = open_model();
    int32_t with[N], without[N];
    answer(model, "0", with, N);
    answer(model, "1", without, N);
    for (int i = 0; i < N; i++)
        EXPECT_INT(without[i], with[i]);
    unsetenv("SLUICE_VULKAN_STAGES");
    sluice_model_close(model);
}

static uint32_t n_stages; /* dispatches that wait or are counted */

static void VKAPI_PTR count_stages(VkCommandBuffer commands, VkPipelineLayout layout,
                                   VkShaderStageFlags stages, uint32_t at, uint32_t bytes,
                                   const void *from) {
    n_stages += ((const struct vulkan_io_at *)from)->stage != 0;
    driver.cmd_push(commands, layout, stages, at, bytes, from);
}

/* Only there are the counters set back. */
TEST(stages_are_those_of_plans_of_one_row) {
    setenv("SLUICE_VULKAN_STAGES", "1", 1);
    begin_faults();
    vk.cmd_push = count_stages;
    for (uint32_t rows = 1; rows <= 4; rows += 3) {
        const struct plan_options options = {.max_rows = rows};
        struct op op = {.kind = OP_HIDDEN, .role = "hidden"};
        struct rig r;
        n_stages = 0;
        rig_begin(&r, 1, &options);
        op.hidden = (struct op_hidden){.x = rig_rows(&r, 64, 1),
                                       .norm = rig_tensor(&r, DT_F32, (uint32_t[4]){64}, 1),
                                       .state = plan_state(r.plan, DT_F32, (uint32_t[4]){64, 2}),
                                       .eps = 1e-5f};
        rig_add(&r, &op);
        EXPECT(rig_open(&r));
        EXPECT(rows == 1 ? n_stages > 0 : n_stages == 0);
        rig_end(&r);
    }
    end_faults();
    unsetenv("SLUICE_VULKAN_STAGES");
}

/* The wait ends, and so does the step, with an error. */
TEST(stages_that_do_not_end_are_an_error) {
    sluice_model *model = open_model();
    sluice_engine *engine = NULL;
    int32_t token;
    setenv("SLUICE_VULKAN_STAGES", "1", 1);
    begin_faults();
    vk.cmd_push = push_too_many;
    EXPECT_INT(open_engine(model, &engine), SLUICE_OK);
    end_faults();
    sluice_seq *seq = begin_answer(engine, model);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_ERR_DEVICE);
    EXPECT(is_one_line(sluice_engine_error(engine)));
    EXPECT(strstr(sluice_engine_error(engine), "SLUICE_VULKAN_STAGES"));
    unsetenv("SLUICE_VULKAN_STAGES");
    sluice_engine_close(engine);
    sluice_model_close(model);
}

/* Records the step again, such that its stages do not see those before them end. */
static void break_step(struct backend *b, struct vulkan_recording *r) {
    const VkCommandBufferAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = b->steps.pool,
        .commandBufferCount = 1,
    };
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    uint32_t ignored = 0;
    EXPECT_INT(vk.allocate_commands(b->device, &info, &r->step), VK_SUCCESS);
    EXPECT_INT(vk.begin_commands(r->step, &begin), VK_SUCCESS);
    begin_faults();
    vk.cmd_push = push_too_many;
    vulkan_encode(b, r->step, r->nodes, r->n_nodes, true, &ignored);
    end_faults();
    vulkan_full_barrier(r->step);
    EXPECT_INT(vk.end_commands(r->step), VK_SUCCESS);
}

/* A step without outputs has no token that could tell. The next one that has some does, whatever
 * was run before it. */
TEST(stages_that_do_not_end_are_not_forgotten) {
    sluice_model *model = open_model();
    sluice_engine *engine = NULL;
    int32_t more = 5, token;
    setenv("SLUICE_VULKAN_STAGES", "1", 1);
    EXPECT_INT(open_engine(model, &engine), SLUICE_OK);
    break_step(engine->backend, &engine->backend->greedy[0]);
    sluice_seq *seq = begin_answer(engine, model);
    struct sluice_sampling s = sluice_sampling_default(model);
    s.temperature = 1; /* not the recording that is broken */
    sluice_seq_set_sampling(seq, &s);
    sluice_seq_feed(seq, &more, 1);
    for (int i = 0; i < 2; i++) {
        EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_ERR_DEVICE);
        EXPECT(strstr(sluice_engine_error(engine), "SLUICE_VULKAN_STAGES"));
    }
    unsetenv("SLUICE_VULKAN_STAGES");
    sluice_engine_close(engine);
    sluice_model_close(model);
}

/* ---- a device with small buffers ---------------------------------------------------------- */

/* Less than the story model's head and table, which have 3.44 MB; states of a layer fit. */
static void VKAPI_PTR small_properties(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *out) {
    driver.device_properties(device, out);
    out->properties.limits.maxStorageBufferRange = 3 << 20;
}

/* Matrices that are larger than a buffer are bound piece by piece, with barriers and without. */
TEST(stages_of_a_head_in_pieces) {
    enum { N = 4 };
    sluice_model *model = NULL;
    int32_t whole[N], pieces[N];
    EXPECT_INT(sluice_model_open(&model, "models/stories-27m-q4_k_m.gguf"), SLUICE_OK);
    answer(model, "0", whole, N);
    for (int stages = 0; stages < 2; stages++) {
        begin_faults();
        vk.device_properties = small_properties;
        answer(model, stages ? "1" : "0", pieces, N);
        end_faults();
        for (int i = 0; i < N; i++)
            EXPECT_INT(pieces[i], whole[i]);
    }
    unsetenv("SLUICE_VULKAN_STAGES");
    sluice_model_close(model);
}
