/* record.c - plans to lists of dispatches, lists to command buffers. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/vulkan/host/host.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"

static vulkan_record_fn *const functions[] = {
#define OP(kind, name, member) vulkan_record_##member,
#include "plan/ops.def"
#undef OP
};

enum { BIND_ALIGN = 256 };

/* ---- what record functions ask for -------------------------------------------------------- */

static uint64_t values_bytes(const struct operand *o, uint64_t n) {
    uint64_t bytes = 0;
    CHECK(dtype_bytes(o->type, n, &bytes));
    return bytes;
}

static enum vulkan_memory memory_of(const struct operand *o) {
    static const uint8_t memories[] = {
        [REGION_WEIGHTS] = VULKAN_WEIGHTS,
        [REGION_STATE] = VULKAN_STATE,
        [REGION_SCRATCH] = VULKAN_SCRATCH,
        [REGION_IO] = VULKAN_IO,
    };
    return memories[o->region];
}

struct vulkan_bind vulkan_operand(struct vulkan_recorder *r, const struct operand *o,
                                  enum vulkan_access access, uint32_t *first) {
    const struct dtype_info *info = dtype_info(o->type);
    CHECK(o->n_dims > 0);
    if (o->region == REGION_WEIGHTS) {
        if (first)
            *first = 0;
        struct vulkan_bind bind = vulkan_matrix_rows(r, o, 0, (uint32_t)vulkan_all_rows(o));
        return vulkan_as(bind, access);
    }
    uint64_t offset = o->offset, skew = offset % BIND_ALIGN;
    struct vulkan_bind bind = {.memory = (uint8_t)memory_of(o),
                               .access = (uint8_t)access,
                               .offset = offset - skew,
                               .bytes = size_aligned(skew + operand_bytes(o), 4)};
    if (o->stride > o->dims[0]) {
        bind.row_bytes = values_bytes(o, o->stride);
        bind.column = skew;
        bind.width = operand_row_bytes(o);
    }
    CHECK(skew == 0 || info->block_values > 1 || skew % info->block_bytes == 0);
    uint64_t at = info->block_values > 1 ? skew : skew / info->block_bytes;
    CHECK(first || at == 0);
    if (first)
        *first = (uint32_t)at;
    return bind;
}

uint32_t vulkan_weight_type(const struct vulkan_recorder *r, const struct operand *weight) {
    return vulkan_find_weight(r->b, weight)->has_planes ? VULKAN_Q6_K_PLANES : weight->type;
}

uint64_t vulkan_weight_row_bytes(const struct vulkan_recorder *r, const struct operand *weight) {
    return vulkan_find_weight(r->b, weight)->row_bytes;
}

/* A piece begins at an aligned byte: 128 rows of an even number of bytes do. */
uint32_t vulkan_rows_per_bind(const struct vulkan_recorder *r, const struct operand *weight) {
    uint64_t row = vulkan_weight_row_bytes(r, weight), n = r->can->max_range / row;
    return n >= vulkan_all_rows(weight) ? (uint32_t)vulkan_all_rows(weight)
                                        : (uint32_t)(n / 128 * 128);
}

struct vulkan_bind vulkan_matrix_rows(struct vulkan_recorder *r, const struct operand *weight,
                                      uint32_t row, uint32_t n) {
    const struct vulkan_weight *whole = vulkan_find_weight(r->b, weight);
    CHECK(row + (uint64_t)n <= vulkan_all_rows(weight));
    return (struct vulkan_bind){
        .memory = VULKAN_WEIGHTS,
        .access = VULKAN_READ,
        .offset = whole->at + row * whole->row_bytes,
        .bytes = size_aligned(n * whole->row_bytes, 16),
    };
}

bool vulkan_join(struct vulkan_recorder *r, const struct operand *const *all, uint32_t n,
                 struct vulkan_bind *out, uint32_t *firsts) {
    const struct vulkan_region *weights = &r->b->regions[VULKAN_WEIGHTS];
    uint64_t start = UINT64_MAX, end = 0;
    *out = vulkan_operand(r, all[0], VULKAN_READ, NULL);
    for (uint32_t i = 0; i < n; i++) {
        struct vulkan_bind x = vulkan_operand(r, all[i], VULKAN_READ, NULL);
        if (!r->is_counting &&
            (vulkan_buffer_at(weights, x.offset) != vulkan_buffer_at(weights, out->offset) ||
             (x.offset - out->offset) % 16))
            return false;
        start = x.offset < start ? x.offset : start;
        end = x.offset + x.bytes > end ? x.offset + x.bytes : end;
    }
    if (!r->is_counting && end - start > r->can->max_range)
        return false;
    for (uint32_t i = 0; i < n; i++)
        firsts[i] = (uint32_t)(vulkan_operand(r, all[i], VULKAN_READ, NULL).offset - start);
    out->offset = start;
    out->bytes = end - start;
    return true;
}

struct vulkan_bind vulkan_work(struct vulkan_recorder *r, uint64_t bytes) {
    uint64_t at = r->work_used;
    CHECK(size_align(bytes, BIND_ALIGN, &bytes) && size_add(at, bytes, &r->work_used));
    r->work_peak = r->work_used > r->work_peak ? r->work_used : r->work_peak;
    return (struct vulkan_bind){
        .memory = VULKAN_WORK, .access = VULKAN_READ | VULKAN_WRITE, .offset = at, .bytes = bytes};
}

struct vulkan_bind vulkan_io_copy(struct vulkan_recorder *r, enum vulkan_access access) {
    return (struct vulkan_bind){
        .memory = VULKAN_IO_COPY, .access = (uint8_t)access, .bytes = r->plan->io.changes};
}

struct vulkan_bind vulkan_io_host(struct vulkan_recorder *r, enum vulkan_access access) {
    return (struct vulkan_bind){
        .memory = VULKAN_IO, .access = (uint8_t)access, .bytes = r->plan->io.bytes};
}

struct vulkan_bind vulkan_angles(struct vulkan_recorder *r, const struct operand *freqs,
                                 uint32_t *n_high) {
    enum { POSITIONS = 1 << 18 }; /* where no page table says how long a sequence gets */
    struct backend *b = r->b;
    const struct operand *pages = &r->plan->pages;
    uint32_t positions = pages->n_dims ? pages->dims[0] * IO_PAGE_POSITIONS : POSITIONS, i = 0;
    while (i < b->n_tables && b->tables[i].freqs.offset != freqs->offset)
        i++;
    *n_high = div_up(positions, VULKAN_LOW_POSITIONS);
    uint64_t bytes =
        ((uint64_t)VULKAN_LOW_POSITIONS + *n_high) * freqs->dims[0] * 2 * sizeof(float);
    if (i == b->n_tables) {
        CHECK(r->is_counting && i < VULKAN_MAX_TABLES);
        b->tables[b->n_tables++] =
            (struct vulkan_table){.freqs = *freqs, .n_high = *n_high, .at = b->table_bytes};
        b->table_bytes = size_aligned(b->table_bytes + bytes, BIND_ALIGN);
    }
    CHECK(b->tables[i].n_high == *n_high);
    return (struct vulkan_bind){
        .memory = VULKAN_TABLES, .access = VULKAN_READ, .offset = b->tables[i].at, .bytes = bytes};
}

/* They are the first of the tables. */
struct vulkan_bind vulkan_grids(struct vulkan_recorder *r) {
    (void)r;
    return (struct vulkan_bind){.memory = VULKAN_TABLES,
                                .access = VULKAN_READ,
                                .bytes = VULKAN_GRID_ENTRIES * sizeof(uint16_t)};
}

/* After the grids. The tables are zeros when they are made. */
static uint64_t counters_at(void) {
    return size_aligned(VULKAN_GRID_ENTRIES * sizeof(uint16_t), BIND_ALIGN);
}

static uint64_t counter_bytes(void) {
    return (VULKAN_COUNTERS + VULKAN_STAGES * VULKAN_STAGE_WORDS) * sizeof(uint32_t);
}

struct vulkan_bind vulkan_counter_words(struct vulkan_recorder *r) {
    (void)r;
    return (struct vulkan_bind){.memory = VULKAN_TABLES,
                                .access = VULKAN_READ | VULKAN_WRITE,
                                .offset = counters_at(),
                                .bytes = counter_bytes()};
}

/* ---- dispatches --------------------------------------------------------------------------- */

static int grow_nodes(struct vulkan_recorder *r) {
    struct vulkan_recording *into = r->into;
    bool has_room = array_grow(&into->nodes, into->n_nodes, &into->capacity, sizeof *into->nodes);
    return has_room ? SLUICE_OK : err_memory(r->err, "a recording");
}

static int check_dispatch(struct vulkan_recorder *r, const struct vulkan_dispatch *d) {
    char text[96];
    CHECK(d->n_binds > 0 && d->n_binds <= VULKAN_MAX_BINDS && d->n_constants > 0 &&
          d->n_constants <= VULKAN_MAX_CONSTANTS && d->groups[0] && d->groups[1] && d->groups[2] &&
          d->push_bytes <= VULKAN_PUSH_WORDS * sizeof(uint32_t) && d->push_bytes % 4 == 0);
    plan_op_text(r->plan, r->op, text, sizeof text);
    for (int i = 0; i < 3; i++)
        if (d->groups[i] > r->b->max_groups[i])
            return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                           "%s, shader %s: %u workgroups, the Vulkan device has at most %u", text,
                           d->shader, d->groups[i], r->b->max_groups[i]);
    if (d->constants[0] > r->can->max_threads)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "%s, shader %s: workgroups of %u, the Vulkan device has at most %u", text,
                       d->shader, d->constants[0], r->can->max_threads);
    for (uint32_t i = 0; i < d->n_binds; i++)
        if (d->binds[i].bytes > r->can->max_range)
            return err_set(
                r->err, SLUICE_ERR_UNSUPPORTED,
                "%s, shader %s: a buffer of %.3f GB, the Vulkan device has at most %.3f GB", text,
                d->shader, (double)d->binds[i].bytes / 1e9, (double)r->can->max_range / 1e9);
    return SLUICE_OK;
}

static struct vulkan_io_at io_at(const struct plan *plan) {
    const struct io_layout *io = &plan->io;
    return (struct vulkan_io_at){
        .rows = (uint32_t)(io->rows / 4),
        .segments = (uint32_t)(io->segments / 4),
        .to = (uint32_t)(io->to / 4),
        .outputs = (uint32_t)(io->outputs / 4),
        .changes = (uint32_t)(io->changes / 4),
        .biases = (uint32_t)(io->biases / 4),
        .masks = (uint32_t)(io->masks / 4),
        .keeps = (uint32_t)(io->keeps / 4),
    };
}

int vulkan_add(struct vulkan_recorder *r, const struct vulkan_dispatch *d) {
    char text[96];
    struct vulkan_node node = {.n_binds = d->n_binds,
                               .op = r->op,
                               .has_stage = d->has_stage,
                               .resets_stages = d->resets_stages};
    int status = check_dispatch(r, d);
    if (status)
        return status;
    status = vulkan_find_pipeline(r->b, d, r->is_counting ? NULL : &node.pipeline, r->err);
    if (status)
        return err_prefix(r->err, "%s", plan_op_text(r->plan, r->op, text, sizeof text));
    if (r->is_counting)
        return SLUICE_OK;
    const struct vulkan_io_at at = io_at(r->plan);
    memcpy(node.groups, d->groups, sizeof node.groups);
    memcpy(node.binds, d->binds, d->n_binds * sizeof *d->binds);
    memcpy(node.push, &at, sizeof at);
    if (d->push_bytes)
        memcpy(node.push + sizeof at / 4, d->push, d->push_bytes);
    node.push_bytes = (uint32_t)sizeof at + d->push_bytes;
    if ((status = vulkan_find_set(r->b, node.binds, node.n_binds, &node.set, r->err)) ||
        (status = grow_nodes(r)))
        return status;
    r->into->nodes[r->into->n_nodes++] = node;
    return SLUICE_OK;
}

/* ---- command buffers ---------------------------------------------------------------------- */

/* Dispatches that come see what those before them wrote; is_first: and copies before the step. */
static void barrier(VkCommandBuffer commands, bool is_first) {
    const VkMemoryBarrier all = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | (is_first ? VK_ACCESS_TRANSFER_WRITE_BIT : 0),
        .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT,
    };
    vk.cmd_barrier(commands,
                   VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT |
                       (is_first ? VK_PIPELINE_STAGE_TRANSFER_BIT : 0),
                   VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &all, 0, NULL, 0, NULL);
}

/* The end of the stage that begins at node `first`: its dispatches do not wait for each other. */
static uint32_t stage_end(struct hazards *h, const struct vulkan_node *nodes, uint32_t first,
                          uint32_t n) {
    uint32_t i = first;
    hazards_clear(h);
    for (; i < n && !hazards_need_barrier(h, nodes[i].binds, nodes[i].n_binds); i++)
        hazards_add(h, nodes[i].binds, nodes[i].n_binds);
    return i;
}

/* Workgroups of a stage whose shaders count them; 0: not all do. */
static uint32_t count_stage(const struct vulkan_node *nodes, uint32_t first, uint32_t end) {
    uint64_t total = 0;
    for (uint32_t i = first; i < end; i++) {
        if (!nodes[i].has_stage)
            return 0;
        total += (uint64_t)nodes[i].groups[0] * nodes[i].groups[1] * nodes[i].groups[2];
    }
    return total <= UINT16_MAX ? (uint32_t)total : 0;
}

/* stage: of its push constants; 0: it neither waits nor is counted. */
static void encode_node(const struct backend *b, VkCommandBuffer commands,
                        const struct vulkan_node *node, uint32_t stage) {
    VkPipelineLayout layout = b->dev->layouts[node->n_binds];
    uint32_t push[sizeof node->push / sizeof *node->push];
    memcpy(push, node->push, node->push_bytes);
    push[offsetof(struct vulkan_io_at, stage) / sizeof *push] = stage;
    vk.cmd_bind_sets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &node->set, 0, NULL);
    vk.cmd_push(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, node->push_bytes, push);
    vk.cmd_dispatch(commands, node->groups[0], node->groups[1], node->groups[2]);
}

void vulkan_encode(const struct backend *b, VkCommandBuffer commands,
                   const struct vulkan_node *nodes, uint32_t n, bool has_stages,
                   uint32_t *n_barriers) {
    struct hazards hazards;
    const struct vulkan_pipeline *bound = NULL;
    uint32_t number = 0, before = 0; /* the stage's counter; workgroups of the stage before it */
    for (uint32_t first = 0, end; first < n; first = end) {
        end = stage_end(&hazards, nodes, first, n);
        uint32_t count =
            has_stages && number + 1 < VULKAN_STAGES ? count_stage(nodes, first, end) : 0;
        number += count > 0;
        before = count > 0 ? before : 0;
        if (first > 0 && before == 0) {
            barrier(commands, false);
            ++*n_barriers;
        }
        for (uint32_t i = first; i < end; i++) {
            if (nodes[i].pipeline != bound)
                vk.cmd_bind_pipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE,
                                     nodes[i].pipeline->pipeline);
            bound = nodes[i].pipeline;
            encode_node(b, commands, &nodes[i], count ? number << 16 | before : 0);
            if (nodes[i].resets_stages)
                number = 0;
        }
        before = count;
    }
}

/* Whether stages of a plan may follow each other without barriers: counters are set back then. */
static bool has_stages(const struct vulkan_features *can, const struct plan *plan) {
    return can->starts_in_order && plan->max_rows == 1;
}

static int make_commands(struct backend *b, struct vulkan_recording *from, VkCommandBuffer *out,
                         struct err *err) {
    const VkCommandBufferAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = b->steps.pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = 1,
    };
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkResult result = vk.allocate_commands(b->device, &info, out);
    if (result == VK_SUCCESS)
        result = vk.begin_commands(*out, &begin);
    if (result == VK_SUCCESS) {
        barrier(*out, true); /* one for all memory takes 3 us longer on an H200 */
        vulkan_encode(b, *out, from->nodes, from->n_nodes, has_stages(&b->can, from->plan),
                      &from->n_barriers);
        vulkan_full_barrier(*out);
        result = vk.end_commands(*out);
    }
    return vulkan_done(b, result, "recording a step", err);
}

/* ---- plans -------------------------------------------------------------------------------- */

/* Sets the stages' counters back, beside the step's first op: before the first stage that counts
 * there is a barrier. */
static int add_reset(struct vulkan_recorder *r) {
    enum { THREADS = 128 };
    struct vulkan_dispatch d = {.shader = "stage_reset",
                                .resets_stages = true,
                                .groups = {VULKAN_STAGES / THREADS, 1, 1},
                                .constants = {THREADS},
                                .n_constants = 1,
                                .binds = {vulkan_counter_words(r)},
                                .n_binds = 1};
    r->op = 0;
    return vulkan_add(r, &d);
}

static int walk(struct vulkan_recorder *r, uint32_t n_steps) {
    const struct plan *plan = r->plan;
    r->n_steps = n_steps;
    for (r->step = 0; r->step < n_steps; r->step++) {
        int status = has_stages(r->can, plan) ? add_reset(r) : SLUICE_OK;
        if (status)
            return status;
        for (r->op = 0; r->op < plan->n_ops; r->op++) {
            r->work_used = 0;
            if ((status = functions[plan->ops[r->op].kind](r, &plan->ops[r->op])))
                return status;
        }
    }
    return SLUICE_OK;
}

/* into NULL: memory is only counted. */
static struct vulkan_recorder recorder(struct backend *b, const struct plan *plan,
                                       struct vulkan_recording *into, bool is_greedy,
                                       struct err *err) {
    return (struct vulkan_recorder){.plan = plan,
                                    .can = &b->can,
                                    .exact = b->exact,
                                    .is_counting = !into,
                                    .b = b,
                                    .err = err,
                                    .into = into,
                                    .is_greedy = is_greedy};
}

/* Whether a plan has a second recording, for steps whose outputs take the best tokens. */
static bool has_greedy(const struct backend *b, const struct plan *plan) {
    return b->can.has_device_scope && plan_wants_burst(plan) && plan->max_outputs < VULKAN_COUNTERS;
}

int vulkan_count(struct backend *b, struct plan *const *plans, uint32_t n_plans, struct err *err) {
    b->n_tables = 0;
    b->work_bytes = 0;
    b->table_bytes = counters_at() + counter_bytes();
    for (uint32_t i = 0; i < 2 * n_plans; i++) {
        struct vulkan_recorder r = recorder(b, plans[i / 2], NULL, i % 2, err);
        int status = i % 2 == 0 || has_greedy(b, plans[i / 2]) ? walk(&r, 1) : SLUICE_OK;
        if (status)
            return status;
        b->work_bytes = r.work_peak > b->work_bytes ? r.work_peak : b->work_bytes;
    }
    return SLUICE_OK;
}

/* Lists this many steps of a plan. */
static int list_steps(struct backend *b, struct vulkan_recording *into, uint32_t n,
                      struct err *err) {
    struct vulkan_recorder r = recorder(b, into->plan, into, into->is_greedy, err);
    int status = walk(&r, n);
    CHECK(status || r.work_peak <= b->regions[VULKAN_WORK].bytes);
    return status;
}

/* The burst's list is only needed until it is recorded; what it dispatches the step's list has. */
static int record_burst(struct backend *b, struct vulkan_recording *into, struct err *err) {
    struct vulkan_recording burst = {.plan = into->plan, .is_greedy = into->is_greedy};
    int status = list_steps(b, &burst, plan_burst_steps(into->plan), err);
    if (!status)
        status = vulkan_make_pipelines(b, err);
    if (!status)
        status = make_commands(b, &burst, &into->burst, err);
    free(burst.nodes);
    return status;
}

static int list_all(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                    struct err *err) {
    int status = SLUICE_OK;
    for (; !status && b->n_recordings < n_plans; b->n_recordings++) {
        struct vulkan_recording *any = &b->recordings[b->n_recordings],
                                *greedy = &b->greedy[b->n_recordings];
        any->plan = greedy->plan = plans[b->n_recordings];
        greedy->is_greedy = true;
        status = list_steps(b, any, 1, err);
        if (!status && has_greedy(b, greedy->plan))
            status = list_steps(b, greedy, 1, err);
    }
    return status;
}

static int record_one(struct backend *b, struct vulkan_recording *r, struct err *err) {
    int status = make_commands(b, r, &r->step, err);
    return status || !plan_wants_burst(r->plan) ? status : record_burst(b, r, err);
}

int vulkan_record(struct backend *b, struct plan *const *plans, uint32_t n_plans, struct err *err) {
    b->recordings = calloc(n_plans, sizeof *b->recordings);
    b->greedy = calloc(n_plans, sizeof *b->greedy);
    if (!b->recordings || !b->greedy)
        return err_memory(err, "the recordings");
    double start = seconds_now();
    int status = list_all(b, plans, n_plans, err);
    if (!status)
        status = vulkan_make_pipelines(b, err);
    for (uint32_t i = 0; !status && i < n_plans; i++) {
        status = record_one(b, &b->recordings[i], err);
        if (!status && b->greedy[i].n_nodes)
            status = record_one(b, &b->greedy[i], err);
    }
    log_line(LOG_DEBUG, "vulkan: %u plans recorded in %.3f s: %u pipelines, %u sets", n_plans,
             seconds_now() - start, b->dev->n_pipelines, b->n_sets);
    return status;
}
