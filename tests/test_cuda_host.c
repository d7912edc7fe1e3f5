/* test_cuda_host.c - the CUDA backend's host side on machines without a GPU: where weights go and
 * which kernels a plan becomes, for models of true size. Nothing is launched. */
#ifdef SLUICE_CUDA
#include "backend/cuda/host/cuda.h"
#include "backend/cuda/host/fatbins.h"
#include "backend/cuda/ops/project_schedule.h"
#include "backend/cuda/ops/state.h"
#include "model/model.h"
#include "test.h"

static const char *const models[] = {
    "models/stories-27m-q4_k_m.gguf", "synth:qwen35-4b:q4_k_m",      "synth:qwen35-tiny:bf16",
    "synth:smollm2-135m:q4_k_m",      "synth:qwen35-35b-a3b:q4_k_m", "synth:qwen35-tiny:q8_0",
    "synth:qwen35-tiny:f16",
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

/* Plans of some widths: their weights all have places that do not overlap, their ops all have
 * kernels, and what the kernels ask for is the same each time. */
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
        struct plan *plan = NULL;
        const struct plan_options options = {
            .max_rows = widths[i],
            .max_outputs = widths[i] < 4 ? widths[i] : 4,
            .n_slots = 4,
            .n_cells = 4,
            .n_pages = 64,
            .pages_per_seq = 16,
            .kv_type = is_exact ? DT_F32 : DT_F16,
            .n_vocab = m->config.n_vocab,
        };
        status = model_plan(&plan, m, &options, &err);
        if (!status)
            status = cuda_place_weights(&b, &plan, 1, &err);
        for (int pass = 0; !status && pass < 2; pass++)
            status = cuda_count(&b, &plan, 1, &work[pass], &counters[pass], &err);
        EXPECT_INT(work[1], work[0]);
        EXPECT_INT(counters[1], counters[0]);
        plan_free(plan);
    }
    if (status)
        test_fail(__FILE__, __LINE__, "%s: %s", path, err.text);
    for (uint32_t i = 0; !status && i < b.n_places; i++) {
        EXPECT(b.places[i].at % 16 == 0 && b.places[i].at >= end);
        end = b.places[i].at + b.places[i].bytes;
    }
    EXPECT(status || (end > 0 && end <= b.weight_bytes));
    EXPECT(status || is_exact || b.schedules);
    check_schedules(&b);
    free(b.places);
    arena_free(&b.arena);
    model_close(m);
}

TEST(cuda_host_plans_become_kernels) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_model(models[i], 132, false);
    check_model(models[0], 132, true);
}

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
