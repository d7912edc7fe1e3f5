/* test_cuda_serve.c - the scheduler on the CUDA backend: every request gets the tokens and logits
 * of a cold run of its own, whatever runs beside it, in single steps and in bursts. */
#include "sched_sim.h"

static void simulate(const char *path, uint32_t sequences, uint32_t n, uint64_t seed) {
    struct sim_options o = {
        .engine = sluice_engine_options_default(),
        .queue = sequences,
        .max_prompt = 300,
        .seed = seed,
    };
    struct sim sim;
    o.engine.backend = "cuda";
    o.engine.context = 1024;
    o.engine.sequences = o.engine.batch = sequences;
    if (sim_open(&sim, test_data(path), &o))
        sim_run(&sim, n, 2 * sequences);
    struct sched_counters c;
    sched_counters(sim.sched, &c);
    test_note("%s: %llu steps, %llu submissions, %llu times set back", path,
              (unsigned long long)c.steps, (unsigned long long)c.submissions,
              (unsigned long long)c.set_back);
    sim_close(&sim);
}

TEST(cuda_serve_simulation) {
    simulate("reference/qwen35-dense-a/model-q8_0.gguf", 3, 60, 1);
    simulate("reference/qwen35-moe-a/model-f32.gguf", 8, 150, 2);
    simulate("reference/llama-k/model-q4_k_m.gguf", 24, 300, 3);
}
