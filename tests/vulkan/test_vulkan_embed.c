/* test_vulkan_embed.c - EMBED and TAP of the Vulkan backend against the CPU's. */
#include "ops.h"

static void check_embed(enum dtype type, uint32_t width, bool has_norm) {
    struct rig r;
    const struct plan_options options = {.max_rows = 5,
                                         .n_slots = 2,
                                         .n_cells = 2,
                                         .n_pages = 8,
                                         .pages_per_seq = 4,
                                         .kv_type = DT_F16,
                                         .n_taps = 2,
                                         .tap_width = width};
    rig_begin(&r, type + width, &options);
    struct op op = {.kind = OP_EMBED, .layer = -1, .role = "rows"};
    op.embed.table = rig_tensor(&r, type, (uint32_t[4]){width, r.n_tokens}, 1);
    op.embed.x = plan_scratch(r.plan, width);
    op.embed.freqs = rig_tensor(&r, DT_F64, (uint32_t[4]){32}, 1);
    for (uint32_t i = 0; i < 32; i++)
        ((double *)(r.weights + op.embed.freqs.offset))[i] = pow(10000, -(double)i / 32);
    op.embed.angles = plan_scratch_of(r.plan, DT_F32, (uint32_t[4]){2, 32, options.max_rows});
    op.embed.rope_scale = 1.25f;
    rig_add(&r, &op);
    rig_tap(&r, 0, op.embed.x);
    struct op tap = {.kind = OP_TAP, .layer = -1, .role = "tap"};
    struct operand out = plan_tap(r.plan, 1);
    out.dims[0] = width;
    tap.tap = (struct op_tap){.x = op.embed.x, .out = out, .eps = 1e-6f};
    if (has_norm)
        tap.tap.norm = rig_tensor(&r, DT_F32, (uint32_t[4]){width}, 1);
    rig_add(&r, &tap);
    bool is_open = rig_open(&r);
    for (uint32_t n = 1; is_open && n <= 5; n += 4) {
        const struct rig_segment segment = {1, 900, n};
        rig_step(&r, RIG_CPU, &segment, 1, 7);
        rig_step(&r, RIG_DEVICE, &segment, 1, 7);
        for (uint32_t row = 0; row < n; row++) {
            EXPECT_NEAR(rig_distance(rig_output(&r, RIG_CPU, 0, row),
                                     rig_output(&r, RIG_DEVICE, 0, row), width),
                        0, is_float(type) ? 0 : 1e-6);
            EXPECT_NEAR(rig_distance(rig_output(&r, RIG_CPU, 1, row),
                                     rig_output(&r, RIG_DEVICE, 1, row), width),
                        0, 1e-5);
        }
    }
    rig_end(&r);
}

TEST(vulkan_embed_and_tap) {
    check_embed(DT_F32, 33, false);
    check_embed(DT_F16, 4160, true);
    check_embed(DT_BF16, 96, true);
    for (uint32_t t = 0; t < FORMAT_TYPES; t++)
        check_embed(format_types[t], 512, t % 2);
}
