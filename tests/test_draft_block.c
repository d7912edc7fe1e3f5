/* test_draft_block.c - the model's own block for drafts, on the CPU. */
#include "draft_block.h"
#include "random_model.h"

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
    if (test_is_slow())
        return;
    double greedy = block_compare_model("cpu", test_data("mtp/stories.gguf"), 0);
    double sampled = block_compare_model("cpu", test_data("mtp/stories.gguf"), 0.8f);
    test_note("drafts of the story model's block that were right: %.2f, sampled %.2f", greedy,
              sampled);
    EXPECT(greedy > 0.7);
    EXPECT(sampled > 0.4);
}

TEST(draft_block_cancelled_drafts_the_same_later) {
    block_compare_cancelled("cpu", test_data("mtp/qwen35-mtp/model-f32.gguf"));
}

TEST(draft_block_of_forks_goes_on_as_one_alone) {
    block_compare_forks("cpu", test_data("mtp/qwen35-mtp/model-f32.gguf"));
}

TEST(draft_block_drafts_from_the_first_tokens) {
    block_compare_vocab("cpu", test_data("mtp/qwen35-mtp/model-f32.gguf"));
    block_compare_vocab("cpu", test_data("mtp/qwen35moe-mtp/model-f32.gguf"));
    block_compare_vocab("cpu", test_data("mtp/stories.gguf"));
}

/* No released file with such a block was at hand: its tokens, at least, are the trunk's. */
TEST(draft_block_of_qwen3next_gives_the_tokens_of_a_run_without) {
    struct random_model m = random_tiny("qwen3next");
    const char *path = test_temporary("next-block.gguf");
    struct err err = {0};
    m.draft_block = 1;
    m.experts = 5;
    m.used = 2;
    m.shared = 32;
    if (random_model_write(&m, path, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    else
        block_compare_model("cpu", path, 0);
}

/* The trunk does not need the block: a damaged one is an error only where it is to draft. */
TEST(draft_block_that_is_damaged_is_refused_where_it_is_used) {
    struct random_model m = random_tiny("qwen35");
    const char *path = test_temporary("damaged-block.gguf");
    struct err err = {0};
    m.draft_block = 1;
    m.damaged = "blk.2.nextn.enorm.weight";
    m.damage = NAN;
    if (random_model_write(&m, path, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    for (uint32_t n = 0; n < 4; n += 3) {
        struct sluice_engine_options o = block_options("cpu", n);
        struct block_rig r = {0};
        EXPECT_INT(sluice_model_open(&r.model, path), SLUICE_OK);
        EXPECT_INT(sluice_engine_open(&r.engine, r.model, &o), n ? SLUICE_ERR_FORMAT : SLUICE_OK);
        EXPECT(!n || strstr(sluice_engine_error(r.engine), "nextn.enorm.weight has nan"));
        block_close(&r);
    }
}
