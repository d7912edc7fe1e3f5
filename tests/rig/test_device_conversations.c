/* test_device_conversations.c - random schedules of conversations on a backend with a device: every
 * token, and the bits of the last logits, as in a cold run; drafted tokens, and all that they
 * leave, as in a run without. */
#include "conversations.h"
#include "draft_block.h"
#include "drafts.h"
#include "rig.h"

static const char *const models[] = {
    "reference/qwen35-dense-a/model-q8_0.gguf", "reference/llama-k/model-q4_k_m.gguf",
    "reference/qwen35-moe-a/model-f32.gguf",    "mtp/qwen35-mtp/model-q8_0.gguf",
    "mtp/qwen35moe-mtp/model-f32.gguf",
};
enum { N_MODELS = sizeof models / sizeof *models };

TEST(device_drafts_give_the_bits_of_a_run_without) {
    for (uint32_t i = 0; i < (rig_is_slow() ? 1 : N_MODELS) && !test_has_failed(); i++)
        draft_run(test_data(models[i]), rig_name(), 1 + i);
}

TEST(device_conversations_in_any_schedule_as_in_a_cold_run) {
    for (uint32_t i = 0; i < 3 * N_MODELS && !test_has_failed(); i += rig_is_slow() ? 8 : 1) {
        const struct talk_setup setup = {
            .path = test_data(models[i % N_MODELS]),
            .backend = rig_name(),
            .pages = i < N_MODELS ? 7 : 24,
            .snapshots = i < N_MODELS ? 3 : 12,
            .every = i < N_MODELS ? 96 : 0,
            .prefill = rig_is_slow() ? 12
                       : i % 2       ? 50
                                     : 1000,
            .host = i < 2 * N_MODELS ? 0 : 10,
            .drafts = i % 2 ? 7 : 3,
            .seed = 100 + i,
        };
        talk_run(&setup, rig_is_slow() ? 10 : 60);
    }
}

TEST(device_draft_block_of_references) {
    block_run_reference(rig_name(), "qwen35-mtp", "model-f32.gguf", "");
    block_run_reference(rig_name(), "qwen35-mtp", "model-q8_0.gguf", "-q8_0");
    block_run_reference(rig_name(), "qwen35moe-mtp", "model-f32.gguf", "");
}

TEST(device_draft_block_gives_the_tokens_of_a_run_without) {
    for (int i = 0; i < (rig_is_slow() ? 1 : 2) && !test_has_failed(); i++) {
        block_compare_model(rig_name(), test_data("mtp/qwen35-mtp/model-q8_0.gguf"), (float)i);
        block_compare_model(rig_name(), test_data("mtp/qwen35moe-mtp/model-f32.gguf"), (float)i);
    }
    if (rig_is_slow())
        return;
    double greedy = block_compare_model(rig_name(), test_data("mtp/stories.gguf"), 0);
    double sampled = block_compare_model(rig_name(), test_data("mtp/stories.gguf"), 0.8f);
    test_note("drafts of the story model's block that were right: %.2f, sampled %.2f", greedy,
              sampled);
    EXPECT(greedy > 0.7);
    EXPECT(sampled > 0.4);
}

TEST(device_draft_block_drafts_from_the_first_tokens) {
    block_compare_vocab(rig_name(), test_data("mtp/qwen35-mtp/model-q8_0.gguf"));
    if (!rig_is_slow())
        block_compare_vocab(rig_name(), test_data("mtp/stories.gguf"));
}

TEST(device_draft_block_of_forks) {
    block_compare_forks(rig_name(), test_data("mtp/qwen35-mtp/model-q8_0.gguf"));
    block_compare_cancelled(rig_name(), test_data("mtp/qwen35-mtp/model-q8_0.gguf"));
}
