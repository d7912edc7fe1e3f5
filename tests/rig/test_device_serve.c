/* test_device_serve.c - the scheduler on a backend with a device: every request gets the tokens and
 * logits of a cold run of its own, whatever runs beside it, in single steps and in bursts. */
#include "rig.h"
#include "sched_sim.h"

static void simulate(const char *path, uint32_t sequences, uint32_t pages, uint32_t n) {
    bool is_slow = rig_is_slow();
    struct sim_options o = {
        .engine = sluice_engine_options_default(),
        .queue = sequences,
        .min_prompt = pages ? 170 : 0, /* nearly a page: a second one is needed soon */
        .max_prompt = pages     ? 256
                      : is_slow ? 40
                                : 300,
        .max_new = pages     ? 90
                   : is_slow ? 20
                             : 40,
        .pages = pages,
        .prompts = is_slow ? 5 : 0,
        .prefill = is_slow ? 16 : 0,
        .seed = n,
    };
    struct sim sim;
    struct sched_counters c;
    o.engine.backend = rig_name();
    o.engine.context = 1024;
    o.engine.prefill = is_slow ? 16 : 0;
    o.engine.sequences = o.engine.batch = sequences;
    if (sim_open(&sim, test_data(path), &o)) {
        sim_run(&sim, n, 2 * sequences);
        sched_counters(sim.sched, &c);
        EXPECT((pages > 0) == (c.preempted > 0));
        test_note("%s: %llu steps, %llu submissions, %llu times preempted", path,
                  (unsigned long long)c.steps, (unsigned long long)c.submissions,
                  (unsigned long long)c.preempted);
    }
    sim_close(&sim);
}

TEST(device_serve_simulation) {
    simulate("reference/qwen35-dense-a/model-q8_0.gguf", 3, 0, rig_is_slow() ? 6 : 60);
    if (rig_is_slow())
        return;
    simulate("reference/qwen35-moe-a/model-f32.gguf", 8, 0, 150);
    simulate("reference/llama-k/model-q4_k_m.gguf", 24, 0, 300);
}

TEST(device_serve_simulation_with_few_pages) {
    if (rig_is_slow())
        return;
    simulate("reference/qwen35-dense-a/model-q8_0.gguf", 8, 4, 100);
    simulate("reference/llama-k/model-q4_k_m.gguf", 8, 4, 100);
}
