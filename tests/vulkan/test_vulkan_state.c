/* test_vulkan_state.c - STATE to, from and within the Vulkan device, and weights that stay where
 * the file is mapped. */
#include "engine/engine.h"
#include "ops.h"

/* The same list on both backends, at offsets and of lengths that are no whole words. */
TEST(vulkan_state_is_copied_and_zeroed) {
    const struct delta_case c = {2, 4, 32, 32, 4, HEADS_GROUPED, 2};
    static const struct backend_copy list[] = {
        {1000, 17, 333},          {4097, BACKEND_ZEROS, 1},
        {5002, BACKEND_ZEROS, 2}, {6001, BACKEND_ZEROS, 1022},
        {8003, 2001, 5},          {12000, BACKEND_ZEROS, 4096}};
    struct rig r;
    struct err err = {0};
    build_delta(&r, &c, 4, 1);
    if (rig_open(&r)) {
        uint64_t bytes = r.plan->bytes[REGION_STATE];
        uint8_t *random = malloc(bytes), *found[RIG_BACKENDS];
        for (uint64_t i = 0; i < bytes; i++)
            random[i] = (uint8_t)rig_bits(&r);
        for (int b = 0; b < RIG_BACKENDS; b++) {
            found[b] = malloc(bytes);
            EXPECT_INT(rig_kinds[b]->write_state(r.b[b], 0, bytes, random, &err), SLUICE_OK);
            EXPECT_INT(rig_kinds[b]->copy_state(r.b[b], list, 6, &err), SLUICE_OK);
            EXPECT_INT(rig_kinds[b]->read_state(r.b[b], 0, bytes, found[b], &err), SLUICE_OK);
        }
        EXPECT(memcmp(found[0], found[1], bytes) == 0);
        EXPECT(memcmp(found[0], random, bytes) != 0);
        for (int b = 0; b < RIG_BACKENDS; b++)
            free(found[b]);
        free(random);
    }
    rig_end(&r);
}

/* Several stretches at once; and while steps run, as they were at the fence. */
TEST(vulkan_state_is_moved) {
    const struct delta_case c = {2, 4, 32, 32, 4, HEADS_GROUPED, 2};
    const struct backend_kind *kind = rig_kinds[RIG_DEVICE];
    struct rig r;
    struct err err = {0};
    build_delta(&r, &c, 4, 2);
    if (rig_open(&r)) {
        uint8_t in[3][1000], out[3][1000], at_fence[3][1000];
        struct backend_move moves[3];
        for (int pass = 0; pass < 3; pass++) {
            for (uint32_t i = 0; i < 3; i++) {
                for (uint32_t k = 0; !pass && k < sizeof in[i]; k++)
                    in[i][k] = (uint8_t)rig_bits(&r);
                moves[i] = (struct backend_move){1234 + 5000ull * i, 1000 - i,
                                                 pass == 0   ? in[i]
                                                 : pass == 1 ? out[i]
                                                             : at_fence[i]};
            }
            if (pass < 2)
                EXPECT_INT(kind->move_state(r.b[RIG_DEVICE], moves, 3, pass == 0, &err), SLUICE_OK);
            else {
                EXPECT_INT(kind->fence(r.b[RIG_DEVICE], 5, &err), SLUICE_OK);
                EXPECT_INT(kind->read_at_fence(r.b[RIG_DEVICE], 5, moves, 3, &err), SLUICE_OK);
            }
        }
        for (uint32_t i = 0; i < 3; i++) {
            EXPECT(memcmp(in[i], out[i], 1000 - i) == 0);
            EXPECT(memcmp(in[i], at_fence[i], 1000 - i) == 0);
        }
    }
    rig_end(&r);
}

/* Greedy tokens, and how many bytes of weights the device reads from the mapping. */
static uint64_t run_reference(const char *import, int32_t tokens[4]) {
    struct sluice_engine_options o = sluice_engine_options_default();
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    sluice_seq *seq = NULL;
    struct backend_memory m = {0};
    int32_t first = 3;
    setenv("SLUICE_VULKAN_IMPORT", import, 1);
    o.backend = "vulkan";
    o.context = 256;
    o.prefill = 1;
    if (sluice_model_open(&model, test_data("reference/llama-k/model-q4_k_m.gguf")) ||
        sluice_engine_open(&engine, model, &o) || sluice_seq_open(&seq, engine)) {
        test_fail(__FILE__, __LINE__, "%s", sluice_engine_error(engine));
    } else {
        struct sluice_sampling s = sluice_sampling_default(model);
        s.temperature = 0;
        sluice_seq_set_sampling(seq, &s);
        sluice_seq_feed(seq, &first, 1);
        for (int i = 0; i < 4; i++)
            EXPECT_INT(sluice_seq_next(seq, &tokens[i]), SLUICE_OK);
        engine->kind->memory(engine->backend, &m);
        EXPECT_INT(m.imported, engine->predicted.imported);
        EXPECT(m.imported <= m.weights);
    }
    sluice_seq_close(seq);
    sluice_engine_close(engine);
    sluice_model_close(model);
    unsetenv("SLUICE_VULKAN_IMPORT");
    return m.imported;
}

TEST(vulkan_weights_are_read_where_they_are_mapped) {
    int32_t with[4], without[4];
    uint64_t imported = run_reference("1", with);
    EXPECT_INT(run_reference("0", without), 0);
    EXPECT(memcmp(with, without, sizeof with) == 0);
    if (imported == 0)
        test_note("the driver takes no mapped files");
}
