/* test_cuda_io.c - a step's first and last op of the CUDA backend: rows in, tokens and logits out.
 *
 * EMBED opens rows to the CPU's bits. PICK on the same logits gives the CPU's tokens, but where a
 * draw falls between two that rounding cannot tell apart. */
#include "cells.h"
#include "check_pick.h"
#include "formats.h"
#include "pick_drafts.h"
#include "rig.h"

/* ---- EMBED -------------------------------------------------------------------------------- */

struct embed_case {
    enum dtype type;
    uint32_t k, rows;
    uint32_t n_freqs;
    bool is_lm_head; /* the table is also the head: in tiles */
};

static void build_embed(struct rig *r, const struct embed_case *c, uint64_t seed) {
    enum { TOKENS = 70 };
    uint32_t width = c->k > 2 * c->n_freqs ? c->k : 2 * c->n_freqs;
    struct plan_options options = {
        .max_rows = c->rows, .n_taps = 2, .tap_width = width, .n_vocab = TOKENS};
    rig_begin(r, seed, &options);
    r->n_tokens = TOKENS;
    struct op embed = {.kind = OP_EMBED, .layer = -1, .role = "embed"};
    embed.embed.table = rig_tensor(r, c->type, (uint32_t[4]){c->k, TOKENS}, 1);
    embed.embed.x = plan_scratch(r->plan, c->k);
    if (c->n_freqs) {
        embed.embed.freqs = rig_tensor(r, DT_F64, (uint32_t[4]){c->n_freqs}, 1);
        double *freqs = (double *)(r->weights + embed.embed.freqs.offset);
        for (uint32_t i = 0; i < c->n_freqs; i++)
            freqs[i] = pow(1e6, -(double)i / c->n_freqs);
        embed.embed.angles =
            plan_scratch_of(r->plan, DT_F32, (uint32_t[4]){2, c->n_freqs, c->rows});
        embed.embed.rope_scale = 1.25f;
    }
    rig_add(r, &embed);
    if (c->is_lm_head) {
        struct op head = {.kind = OP_PROJECT, .layer = -1, .role = "head"};
        head.project.in = embed.embed.x;
        head.project.n_segments = 1;
        head.project.segments[0].weight = embed.embed.table;
        head.project.out = plan_scratch(r->plan, TOKENS);
        rig_add(r, &head);
    }
    rig_tap(r, 0, embed.embed.x);
    if (c->n_freqs) {
        struct operand angles = embed.embed.angles;
        angles.n_dims = 2;
        angles.dims[0] = angles.stride = 2 * c->n_freqs;
        angles.dims[1] = angles.plane = c->rows;
        angles.dims[2] = 1;
        rig_tap(r, 1, angles);
    }
}

static void check_embed(const struct embed_case *c, uint32_t position, uint64_t seed) {
    struct rig r;
    build_embed(&r, c, seed);
    if (rig_open(&r)) {
        struct rig_segment segment = {0, position, c->rows};
        for (int i = 0; i < RIG_BACKENDS; i++)
            rig_step(&r, i, &segment, 1, seed);
        for (uint32_t row = 0; row < c->rows; row++) {
            const float *a = rig_output(&r, RIG_CPU, 0, row),
                        *b = rig_output(&r, RIG_DEVICE, 0, row);
            for (uint32_t i = 0; i < c->k; i++)
                if (a[i] != b[i]) {
                    test_fail(__FILE__, __LINE__, "%s, K %u, row %u of %u: value %u is %g, not %g",
                              dtype_name(c->type), c->k, row, c->rows, i, (double)b[i],
                              (double)a[i]);
                    break;
                }
            if (c->n_freqs &&
                !(rig_distance(rig_output(&r, RIG_CPU, 1, row), rig_output(&r, RIG_DEVICE, 1, row),
                               2 * c->n_freqs) < 1e-6))
                test_fail(__FILE__, __LINE__, "angles at %u differ", position + row);
        }
    }
    rig_end(&r);
}

TEST(cuda_embed) {
    for (uint32_t t = 0; t < FORMAT_TYPES; t++)
        for (uint32_t is_lm_head = 0; is_lm_head < 2; is_lm_head++) {
            struct embed_case one = {format_types[t], 2048, 1, 32, is_lm_head},
                              many = {format_types[t], 768, 33, 200, is_lm_head};
            check_embed(&one, 200000, t);
            check_embed(&many, 77, t + 100);
        }
    check_embed(&(struct embed_case){DT_F32, 33, 3, 0, false}, 0, 1);
    check_embed(&(struct embed_case){DT_BF16, 5001, 2, 5, false}, 0, 1);
}

/* ---- PICK --------------------------------------------------------------------------------- */

TEST(cuda_pick_of_drafts_is_that_of_a_row_after_the_other) {
    check_picks_of_drafts(rig_kinds[RIG_DEVICE], 1);
}

TEST(cuda_pick) {
    static const uint32_t rows[] = {1, 3, 16};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_pick(1001, rows[i], DT_F32);
        check_pick(6000, rows[i], DT_F16);
        check_head(1003, rows[i], DT_Q4_K);
        check_head(120007, rows[i], DT_Q8_0);
        check_head(5000, rows[i], DT_Q4_0);
    }
}

TEST(cuda_pick_of_what_is_not_finite) {
    static const uint32_t rows[] = {1, 3, 16};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 9; i++) {
        check_not_finite(1001, rows[i % 3], DT_F32, false, values[i / 3]);
        check_not_finite(5003, rows[i % 3], DT_F32, true, values[i / 3]);
        check_not_finite(5000, rows[i % 3], DT_F16, true, values[i / 3]);
        check_not_finite(120007, rows[i % 3], DT_Q8_0, true, values[i / 3]);
    }
}
