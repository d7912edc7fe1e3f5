/* embed.c - recording EMBED and TAP. */
#include "backend/vulkan/host/vulkan.h"
#include "base/size.h"

enum { THREADS = 128 };

/* As in embed.comp. */
struct embed_push {
    uint32_t n_rows, first_token, n_tokens, k, row_bytes, x_first, x_stride;
    uint32_t pages_first, pages_per_slot, max_changes;
    uint32_t n_freqs, n_high, angles_first;
    float rope_scale;
};

/* A table that is larger than a buffer may be is bound piece by piece; the first piece also copies
 * IO and computes the angles. In the later steps of a burst IO is on the device already, and the
 * page table is as it should be. */
static int add_piece(struct vulkan_recorder *r, const struct op_embed *e, uint32_t first,
                     uint32_t n) {
    const struct operand *pages = &r->plan->pages;
    bool copies = r->step == 0 && first == 0, has_pages = copies && pages->n_dims,
         has_angles = first == 0 && e->freqs.n_dims;
    struct embed_push p = {
        .n_rows = r->plan->max_rows,
        .first_token = first,
        .n_tokens = n,
        .k = e->table.dims[0],
        .row_bytes = (uint32_t)operand_row_bytes(&e->table),
        .x_stride = e->x.stride,
        .rope_scale = e->rope_scale,
    };
    struct vulkan_dispatch d = {
        .constants = {THREADS, e->table.type},
        .n_constants = 2,
        .push = &p,
        .push_bytes = sizeof p,
    };
    static const char *const names[2][2][2] = {
        {{"embed_next", "embed_next_angles"}, {0}},
        {{"embed", "embed_angles"}, {"embed_pages", "embed_pages_angles"}},
    };
    d.shader = names[copies][has_pages][has_angles];
    d.binds[d.n_binds++] = copies ? vulkan_io_host(r, VULKAN_READ) : vulkan_io_copy(r, VULKAN_READ);
    d.binds[d.n_binds++] = vulkan_matrix_rows(r, &e->table, first, n);
    d.binds[d.n_binds++] = vulkan_operand(r, &e->x, VULKAN_WRITE, &p.x_first);
    if (has_angles) {
        p.n_freqs = e->freqs.dims[0];
        d.binds[d.n_binds++] = vulkan_angles(r, &e->freqs, &p.n_high);
        d.binds[d.n_binds++] = vulkan_operand(r, &e->angles, VULKAN_WRITE, &p.angles_first);
    }
    if (copies)
        d.binds[d.n_binds++] = vulkan_io_copy(r, VULKAN_WRITE);
    if (has_pages) {
        p.pages_per_slot = pages->dims[0];
        p.max_changes = r->plan->io.max_changes;
        d.binds[d.n_binds++] = vulkan_operand(r, pages, VULKAN_WRITE, &p.pages_first);
    }
    d.groups[0] = div_up(p.k, 32 * THREADS);
    d.groups[1] = p.n_rows + copies;
    d.groups[2] = 1;
    return vulkan_add(r, &d);
}

int vulkan_record_embed(struct vulkan_recorder *r, const struct op *op) {
    const struct op_embed *e = &op->embed;
    uint32_t n = e->table.dims[1], most = vulkan_rows_of_a_bind(r, &e->table);
    int status = SLUICE_OK;
    for (uint32_t first = 0; !status && first < n; first += most)
        status = add_piece(r, e, first, min_u32(n - first, most));
    return status;
}

/* As in tap.comp. */
struct tap_push {
    uint32_t width, x_first, x_stride, out_first, out_stride;
    float eps;
};

int vulkan_record_tap(struct vulkan_recorder *r, const struct op *op) {
    const struct op_tap *t = &op->tap;
    struct tap_push p = {
        .width = t->x.dims[0],
        .x_stride = t->x.stride,
        .out_stride = t->out.stride,
        .eps = t->eps,
    };
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
