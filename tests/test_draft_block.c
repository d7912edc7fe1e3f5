/* test_draft_block.c - the model's own block for drafts, on the CPU. */
#include "draft_block.h"

TEST(draft_block_has_the_logits_of_the_references) {
    block_run_reference("cpu", "qwen35-mtp", "model-f32.gguf", "");
    block_run_reference("cpu", "qwen35-mtp", "model-q8_0.gguf", "-q8_0");
    block_run_reference("cpu", "qwen35moe-mtp", "model-f32.gguf", "");
}

TEST(draft_block_of_a_folder_has_the_logits_of_the_references) {
    block_run_reference("cpu", "qwen35-mtp", "", "");
    block_run_reference("cpu", "qwen35moe-mtp", "", "");
}

/* The story model's block was trained; those of random models know nothing. */
TEST(draft_block_gives_the_tokens_of_a_run_without) {
    for (int i = 0; i < 2 && !test_has_failed(); i++) {
        block_compare_model("cpu", test_data("mtp/qwen35-mtp/model-f32.gguf"), (float)i);
        block_compare_model("cpu", test_data("mtp/qwen35moe-mtp/model-f32.gguf"), (float)i);
    }
    double greedy = block_compare_model("cpu", test_data("mtp/stories.gguf"), 0);
    double sampled = block_compare_model("cpu", test_data("mtp/stories.gguf"), 0.8f);
    test_note("drafts of the story model's block that were right: %.2f, sampled %.2f", greedy,
              sampled);
    EXPECT(greedy > 0.7);
    EXPECT(sampled > 0.4);
}
