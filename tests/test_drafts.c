/* test_drafts.c - drafted tokens: the same answers in fewer steps. */
#include "drafts.h"
#include "random_model.h"

TEST(engine_drafts_give_the_bits_of_a_run_without) {
    static const char *const models[] = {
        "reference/qwen35-dense-a/model-f32.gguf",
        "reference/llama-a/model-q8_0.gguf",
        "reference/qwen35-moe-a/model-f32.gguf",
    };
    for (uint64_t i = 0; i < 3 && !test_has_failed(); i++)
        draft_run(test_data(models[i]), "cpu", 1 + i);
}

/* Heads of odd widths, where rows of vectors have ends of their own. */
TEST(engine_drafts_in_random_models) {
    for (uint64_t seed = 0; seed < 3 && !test_has_failed(); seed++) {
        const struct random_model m = {.seed = seed,
                                       .arch = "qwen35",
                                       .hidden = 64,
                                       .layers = 2 + (uint32_t)seed,
                                       .heads = 2,
                                       .kv_heads = 1,
                                       .head_width = 32,
                                       .ffn = 96,
                                       .vocab = 101,
                                       .key_heads = 1 + (uint32_t)seed % 2,
                                       .value_heads = 2,
                                       .key_width = 20,
                                       .value_width = 12,
                                       .type = DT_F32};
        const char *path = test_temporary("drafts.gguf");
        struct err err = {0};
        if (random_model_write(&m, path, &err))
            test_fail(__FILE__, __LINE__, "%s", err.text);
        else
            draft_run(path, "cpu", 10 + seed);
    }
}
