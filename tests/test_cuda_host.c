/* test_cuda_host.c - the CUDA backend's host side on machines without a GPU: where weights go and
 * which kernels a plan becomes, for models of true size. Nothing is launched. */
#include "built_with.h"
#ifdef SLUICE_CUDA
#include "backend/cuda/host/cuda.h"
#include "backend/cuda/host/fatbins.h"
#include "backend/cuda/ops/project_schedule.h"
#include "backend/cuda/ops/state.h"
#include "draft_plans.h"
#include "model/model.h"
#include "test.h"

static const char *const models[] = {
    "models/stories-27m-q4_k_m.gguf", "synth:qwen35-4b:q4_k_m",
    "synth:qwen35-tiny:bf16",         "synth:smollm2-135m:q4_k_m",
    "synth:qwen35-35b-a3b:q4_k_m",    "synth:qwen35-tiny:q8_0",
    "synth:qwen35-tiny:f16",          "synth:qwen35-4b-mtp:q4_k_m",
    "synth:qwen35-35b-a3b-mtp:q8_0",  "synth:qwen3-30b-a3b:q4_k_m",
    "synth:qwen3next-80b-a3b:q4_k_m", "synth:qwen3next-80b-a3b-mtp:q8_0",
};

/* Every tile of a product has one thread block, in order: of all segments, or of each. */
static void check_schedules(const struct backend *b) {
    for (const struct project_schedule *s = b->schedules; s; s = s->next) {
        const struct project_segment *last = &s->segments[s->shape.n_segments - 1];
        uint32_t all = last->first_tile + last->n_tiles;
        for (uint32_t i = 0; i < (s->shape.has_shares ? s->shape.n_segments : 1); i++) {
            const uint16_t *bounds = s->bounds + i * (s->n_blocks + 1);
            EXPECT_INT(bounds[0], 0);
            EXPECT_INT(bounds[s->n_blocks], s->shape.has_shares ? s->segments[i].n_tiles : all);
            for (uint32_t block = 0; block < s->n_blocks; block++)
                EXPECT(bounds[block] <= bounds[block + 1]);
        }
    }
}

/* Plans of some widths, and of the draft block, if there is one: their weights all have addresses
 * that do not overlap, their ops all have kernels, and what the kernels ask for is the same each
 * time.
 */
static void check_model(const char *path, uint32_t n_sms, bool is_exact) {
    static const uint32_t widths[] = {1, 2, 3, 8, 16, 32, 128, 4096};
    struct model *m;
    struct err err = {0};
    bool is_big = n_sms > 100;
    struct backend b = {.n_sms = n_sms,
                        .capability = is_big ? 90 : 80,
                        .max_shared = is_big ? 227 << 10 : 99 << 10,
                        .exact = is_exact};
    uint64_t work[2] = {0}, counters[2] = {0}, end = 0;
    int status = model_open(&m, path, &err);
    for (size_t i = 0; !status && i < sizeof widths / sizeof *widths; i++) {
        struct plan *plans[2] = {0};
        uint32_t n_plans = 1;
        struct plan_options options = {
            .max_rows = widths[i],
            .max_outputs = widths[i] < 4 ? widths[i] : 4,
            .n_slots = 4,
            .n_cells = 4,
            .n_pages = 64,
            .pages_per_seq = 16,
            .kv_type = is_exact ? DT_F32 : DT_F16,
            .n_vocab = m->config.n_vocab,
            .has_draft_block = m->draft.join.n_dims != 0,
        };
        status = model_plan(&plans[0], m, &options, &err);
        if (!status && options.has_draft_block && widths[i] <= 8) {
            options.max_outputs = widths[i];
            options.burst_steps = 3;
            status = model_draft_plan(&plans[n_plans++], m, &options, &err);
        }
        if (!status)
            status = cuda_place_weights(&b, plans, n_plans, &err);
        for (int pass = 0; !status && pass < 2; pass++)
            status = cuda_count(&b, plans, n_plans, &work[pass], &counters[pass], &err);
        EXPECT_INT(work[1], work[0]);
        EXPECT_INT(counters[1], counters[0]);
        plan_free(plans[0]);
        plan_free(plans[1]);
    }
    if (status)
        test_fail(__FILE__, __LINE__, "%s: %s", path, err.text);
    for (uint32_t i = 0; !status && i < b.n_weights; i++) {
        EXPECT(b.weight_list[i].at % 16 == 0 && b.weight_list[i].at >= end);
        end = b.weight_list[i].at + b.weight_list[i].bytes;
    }
    EXPECT(status || (end > 0 && end <= b.weight_bytes));
    EXPECT(status || is_exact || b.schedules);
    check_schedules(&b);
    free(b.weight_list);
    arena_free(&b.arena);
    model_close(m);
}

TEST(cuda_host_plans_become_kernels) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_model(models[i], 132, false);
    check_model(models[0], 132, true);
}

/* ---- draft blocks ------------------------------------------------------------------------- */

static struct operand next_tensor(void *user, enum dtype type, const uint32_t dims[4], float size) {
    uint64_t *at = user;
    struct operand o = operand_at(REGION_WEIGHTS, type, *at, dims);
    (void)size;
    *at += (operand_bytes(&o) + 255) / 256 * 256;
    return o;
}

/* Plans of a trunk with a draft block and of the block, loaded together. */
static void check_draft_block(struct draft_model *m, uint32_t n_sms, bool is_exact) {
    static const uint32_t widths[] = {1, 2, 3, 8, 16, 32, 128, 4096}, steps[] = {1, 2, 4, 8, 3};
    enum { TRUNK = sizeof widths / sizeof *widths, ALL = TRUNK + sizeof steps / sizeof *steps };
    struct plan *plans[ALL];
    struct err err = {0};
    bool is_big = n_sms > 100;
    struct backend b = {.n_sms = n_sms,
                        .capability = is_big ? 90 : 80,
                        .max_shared = is_big ? 227 << 10 : 99 << 10,
                        .exact = is_exact};
    uint64_t work[2] = {0}, counters[2] = {0}, at = 0;
    draft_weights(m, next_tensor, &at);
    for (uint32_t i = 0; i < ALL; i++) {
        uint32_t rows = i < TRUNK ? widths[i] : 1u << (i - TRUNK);
        plans[i] = draft_plan(m, rows, rows < 4 || i >= TRUNK ? rows : 4,
                              i < TRUNK ? 0 : steps[i - TRUNK]);
    }
    int status = cuda_place_weights(&b, plans, ALL, &err);
    for (int pass = 0; !status && pass < 2; pass++)
        status = cuda_count(&b, plans, ALL, &work[pass], &counters[pass], &err);
    if (status)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    EXPECT_INT(work[1], work[0]);
    EXPECT_INT(counters[1], counters[0]);
    /* What only the block's own plans read is there, too; its head in tiles, its table not. */
    const struct cuda_weight *head = cuda_find_weight(&b, &m->draft_head),
                             *table = cuda_find_weight(&b, &m->draft_embed);
    EXPECT(head->is_tiled == !is_exact && !table->is_tiled);
    EXPECT(cuda_find_weight(&b, &m->norm)->bytes == m->width * sizeof(float));
    for (uint32_t i = 0; i + 1 < b.n_weights; i++)
        EXPECT(b.weight_list[i].at + b.weight_list[i].bytes <= b.weight_list[i + 1].at);
    for (uint32_t i = 0; i < ALL; i++) {
        uint32_t n = i < TRUNK ? IO_BURST : steps[i - TRUNK];
        EXPECT_INT(plan_burst_steps(plans[i]), n);
        EXPECT_INT(plan_wants_burst(plans[i]), i < TRUNK ? widths[i] < 8 : n > 1);
        plan_free(plans[i]);
    }
    free(b.weight_list);
    arena_free(&b.arena);
}

static struct draft_model draft_model_of(enum dtype type, enum dtype draft_type, uint32_t experts) {
    return (struct draft_model){.width = 2560,
                                .heads = 16,
                                .kv_heads = 4,
                                .head_width = 256,
                                .inner = experts ? 512 : 9216,
                                .vocab = 151936,
                                .n_layers = 2,
                                .experts = experts,
                                .used = experts ? 8 : 0,
                                .type = type,
                                .draft_type = draft_type,
                                .n_slots = 4,
                                .n_cells = 12,
                                .pages_per_seq = 16};
}

TEST(cuda_host_draft_blocks) {
    static const enum dtype types[][2] = {
        {DT_Q4_K, DT_Q4_K}, {DT_Q4_K, DT_Q8_0}, {DT_Q8_0, DT_BF16}, {DT_BF16, DT_BF16}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct draft_model m = draft_model_of(types[i][0], types[i][1], 0);
        check_draft_block(&m, 132, false);
        check_draft_block(&m, 40, i == 3);
    }
    struct draft_model m = draft_model_of(DT_Q4_K, DT_Q8_0, 64);
    check_draft_block(&m, 132, false);
}

/* The trunk's products share the kernel that they have without a draft block, which shares it if
 * it can. */
TEST(cuda_host_draft_block_has_kernels_of_its_own) {
    static const struct {
        enum dtype type, draft_type;
        uint32_t set, draft_set;
    } cases[] = {{DT_Q4_K, DT_Q4_K, IS_Q4_K, IS_Q4_K},
                 {DT_Q4_K, DT_Q8_0, IS_Q4_K, IS_Q8_0},
                 {DT_BF16, DT_Q6_K, IS_BF16, IS_Q6_K}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t steps = 0; steps < 2; steps++) {
            struct draft_model m = draft_model_of(cases[i].type, cases[i].draft_type, 0);
            struct backend b = {.n_sms = 132, .capability = 90, .max_shared = 227 << 10};
            uint64_t at = 0;
            struct err err = {0};
            draft_weights(&m, next_tensor, &at);
            struct plan *plan = draft_plan(&m, 1, 1, steps);
            struct recorder r = {.plan = plan, .b = &b, .n_sms = 132, .is_counting = true};
            EXPECT_INT(cuda_place_weights(&b, &plan, 1, &err), SLUICE_OK);
            project_survey(&r);
            EXPECT_INT(project_all_types(&r), steps ? 0 : cases[i].set);
            while (plan->ops[r.op].kind != OP_JOIN)
                r.op++;
            r.op++;
            EXPECT_INT(project_all_types(&r), cases[i].draft_set);
            plan_free(plan);
            free(b.weight_list);
        }
}

/* ---- the rest ----------------------------------------------------------------------------- */

/* Segments beside each other: no thread block has more than 5 % above its share of the bytes, and
 * nearly all have tiles of both large ones. */
TEST(cuda_host_segments_are_shared_evenly) {
    struct backend b = {.n_sms = 132, .capability = 90, .max_shared = 227 << 10};
    const struct project_shape shape = {
        .k = 2560,
        .head_width = 2560,
        .prologue = PROLOGUE_NORM,
        .row_limit = 1,
        .max_shared = b.max_shared,
        .types = IS_Q8_0 | IS_F32,
        .has_shares = 1,
        .n_segments = 4,
        .segments = {{DT_Q8_0, 8192, 8}, {DT_Q8_0, 4096, 4}, {DT_F32, 32, 4}, {DT_F32, 32, 4}},
    };
    EXPECT(project_can_share(&shape, b.n_sms) && !project_can_share(&shape, b.n_sms + 1));
    const struct project_schedule *s = project_find_schedule(&b, &shape);
    double all = 0, most = 0;
    uint32_t n_both = 0; /* the first segment's tiles are the largest: every block has some */
    for (uint32_t block = 0; s && block < s->n_blocks; block++) {
        double bytes = 0;
        for (uint32_t i = 0; i < shape.n_segments; i++) {
            const struct project_segment *g = &s->segments[i];
            const uint16_t *bounds = s->bounds + i * (s->n_blocks + 1) + block;
            bytes += (double)(bounds[1] - bounds[0]) * g->kblocks * g->kblock_bytes;
            n_both += i == 1 && bounds[1] > bounds[0];
        }
        all += bytes;
        most = bytes > most ? bytes : most;
    }
    EXPECT(s && all > 0 && most * s->n_blocks < 1.05 * all);
    EXPECT(n_both > b.n_sms * 9 / 10);
    check_schedules(&b);
    arena_free(&b.arena);
}

/* Kernels that are launched outside of plans. */
TEST(cuda_host_other_kernels) {
    static const char *const names[] = {COPY_KERNEL, "repack",     "synth_fill",
                                        "peak_mma",  "peak_wgmma", "read_memory"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!cuda_find_kernel(names[i]))
            test_fail(__FILE__, __LINE__, "no kernel %s", names[i]);
    size_t n = 0;
    while (cuda_fatbins[n].name)
        n++;
    EXPECT(n > 0 && n <= MAX_MODULES);
}

/* Devices that have 99 KB of shared memory: products on tiles are cut to it, the fallback (widths
 * that are no multiple of 256) needs less. */
TEST(cuda_host_small_devices) {
    check_model(models[0], 40, false);
    check_model("synth:qwen35-4b:q4_k_m", 40, false);
    check_model("synth:qwen35-4b:q8_0", 40, false);
    check_model("synth:qwen35-4b:bf16", 40, false);
    check_model("synth:smollm2-135m:q4_k_m", 40, false);
    check_model("synth:qwen35-tiny:bf16", 40, true);
}
#else
/* A file that is empty without CUDA. */
typedef int nothing_to_test;
#endif
