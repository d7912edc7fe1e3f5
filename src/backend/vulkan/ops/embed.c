/* embed.c - recording EMBED and TAP. */
#include "backend/vulkan/host/vulkan.h"
#include "base/size.h"

enum { THREADS = 128, EMBED_THREADS = 32 /* of many cores: a thread writes 32 values */ };

/* Changes of the page table, of which most steps have none. */
static int add_pages(struct vulkan_recorder *r) {
    const struct operand *pages = &r->plan->pages;
    struct {
        uint32_t pages_first, pages_per_slot;
    } p = {0, pages->dims[0]};
    struct vulkan_dispatch d = {
        .shader = "pages",
        .groups = {1, 1, 1},
        .constants = {THREADS},
        .n_constants = 1,
        .binds = {vulkan_io_copy(r, VULKAN_READ), vulkan_io_host(r, VULKAN_READ),
                  vulkan_operand(r, pages, VULKAN_WRITE, &p.pages_first)},
        .n_binds = 3,
        .push = &p,
        .push_bytes = sizeof p,
    };
    return vulkan_add(r, &d);
}

static int add_angles(struct vulkan_recorder *r, const struct op_embed *e) {
    struct {
        uint32_t n_freqs, n_high, first;
        float scale;
    } p = {.n_freqs = e->freqs.dims[0], .scale = e->rope_scale};
    struct vulkan_dispatch d = {
        .shader = "angles",
        .groups = {r->plan->max_rows, 1, 1},
        .constants = {32},
        .n_constants = 1,
        .binds = {vulkan_io_copy(r, VULKAN_READ), vulkan_angles(r, &e->freqs, &p.n_high),
                  vulkan_operand(r, &e->angles, VULKAN_WRITE, &p.first)},
        .n_binds = 3,
        .push = &p,
        .push_bytes = sizeof p,
    };
    return vulkan_add(r, &d);
}

/* A piece of the table: tokens [first, first + n). */
static int add_rows(struct vulkan_recorder *r, const struct op_embed *e, uint32_t first,
                    uint32_t n) {
    struct {
        uint32_t first_token, n_tokens, k, row_bytes, x_first, x_stride;
    } p = {.first_token = first,
           .n_tokens = n,
           .k = e->table.dims[0],
           .row_bytes = (uint32_t)vulkan_weight_row_bytes(r, &e->table),
           .x_stride = e->x.stride};
    struct vulkan_dispatch d = {
        .shader = "embed",
        .has_stage = true,
        .groups = {div_up(p.k, 32 * EMBED_THREADS), r->plan->max_rows, 1},
        .constants = {EMBED_THREADS, vulkan_weight_type(r, &e->table)},
        .n_constants = 2,
        .binds = {vulkan_io_copy(r, VULKAN_READ), vulkan_matrix_rows(r, &e->table, first, n),
                  vulkan_operand(r, &e->x, VULKAN_WRITE, &p.x_first), vulkan_grids(r),
                  vulkan_counter_words(r)},
        .n_binds = 5,
        .push = &p,
        .push_bytes = sizeof p,
    };
    return vulkan_add(r, &d);
}

/* None of these waits for another, but pieces of a table that is larger than a buffer may be. The
 * page table is changed once a submission, by its first EMBED: others may be in the middle of a
 * plan. */
int vulkan_record_embed(struct vulkan_recorder *r, const struct op *op) {
    const struct op_embed *e = &op->embed;
    uint32_t n = e->table.dims[1], per_bind = vulkan_rows_per_bind(r, &e->table);
    bool is_begin = r->step == 0 && r->op == 0;
    int status = is_begin && r->plan->pages.n_dims ? add_pages(r) : SLUICE_OK;
    if (!status && e->freqs.n_dims)
        status = add_angles(r, e);
    for (uint32_t first = 0; !status && first < n; first += per_bind)
        status = add_rows(r, e, first, min_u32(n - first, per_bind));
    return status;
}

int vulkan_record_tap(struct vulkan_recorder *r, const struct op *op) {
    const struct op_tap *t = &op->tap;
    struct {
        uint32_t width, x_first, x_stride, out_first, out_stride;
        float eps;
    } p = {
        .width = t->x.dims[0], .x_stride = t->x.stride, .out_stride = t->out.stride, .eps = t->eps};
    struct vulkan_dispatch d = {
        .shader = t->norm.n_dims ? "tap_norm" : "tap",
        .groups = {r->plan->max_outputs, 1, 1},
        .constants = {THREADS},
        .n_constants = 1,
        .binds = {vulkan_io_copy(r, VULKAN_READ), vulkan_operand(r, &t->x, VULKAN_READ, &p.x_first),
                  vulkan_operand(r, &t->out, VULKAN_WRITE, &p.out_first)},
        .n_binds = 3,
        .push = &p,
        .push_bytes = sizeof p,
    };
    if (t->norm.n_dims)
        d.binds[d.n_binds++] = vulkan_operand(r, &t->norm, VULKAN_READ, NULL);
    return vulkan_add(r, &d);
}
