/* workspace.c - the CPU backend's own memory: what the ops of all plans need besides their
 * operands, cut out of one block.
 *
 * Ops run one after the other, so each kind of memory is as large as its largest user. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/vec.h"
#include "base/size.h"

uint64_t workspace_taps(const struct op_delta *d) {
    return size_aligned(size_times(d->window.dims[0], d->conv_width), 16);
}

static void grow(uint64_t *to, uint64_t value) {
    *to = value > *to ? value : *to;
}

/* The pairs of a row and an expert, the shared one counted in. */
static void add_pairs(struct cpu_needs *n, uint64_t rows, const struct operand *choice,
                      const struct operand *matrices) {
    uint64_t pairs = size_times(rows, choice->dims[0]);
    grow(&n->n_rows, pairs);
    grow(&n->list, size_plus(pairs, size_plus(matrices->dims[2], 2)));
}

/* The parts that threads keep where they share out splits: of so many rows that blocks of one row
 * would not be enough for all threads, at the sequences' full length. */
static uint64_t parts_of(const struct op_attend *a, uint64_t rows, int threads) {
    uint64_t few = (4 * (uint64_t)threads + a->kv_heads - 1) / a->kv_heads;
    uint64_t splits = size_times(a->pages.dims[0], IO_PAGE_POSITIONS / ATTEND_POSITIONS);
    return threads > 1 ? size_times(size_times(rows < few ? rows : few, a->heads), splits) : 0;
}

static void add_needs(struct cpu_needs *n, const struct plan *plan, const struct op *op,
                      bool is_first, int threads) {
    uint64_t rows = plan->max_rows;
    grow(&n->n_rows, rows);
    grow(&n->tile, 2 * (TILE_VALUES > rows * 64 ? TILE_VALUES : rows * 64));
    if (op->kind == OP_PROJECT)
        grow(&n->rows, size_times(rows, op->project.in.dims[0]));
    if (op->kind == OP_DELTA) {
        grow(&n->conv, size_times(rows, op->delta.window.dims[0]));
        grow(&n->key_width, op->delta.key_width);
        n->taps = size_plus(n->taps, is_first ? workspace_taps(&op->delta) : 0);
    }
    if (op->kind == OP_ATTEND) {
        grow(&n->width, op->attend.head_width);
        grow(&n->parts, parts_of(&op->attend, rows, threads));
    }
    if (op->kind == OP_PICK)
        grow(&n->ranks, size_times(plan->max_outputs, rank_blocks(plan->n_vocab)));
    if (op->kind == OP_ROUTE) {
        grow(&n->rows, size_times(rows, op->route.in.dims[0]));
        grow(&n->tile, op->route.router.dims[1]);
    }
    if (op->kind == OP_EXPERTS_IN) {
        const struct op_experts_in *e = &op->experts_in;
        add_pairs(n, rows, &e->choice, &e->gate);
        grow(&n->rows, size_times(size_times(rows, e->choice.dims[0]), e->in.dims[0]));
    }
    if (op->kind == OP_EXPERTS_OUT) {
        const struct op_experts_out *e = &op->experts_out;
        add_pairs(n, rows, &e->choice, &e->down);
        grow(&n->rows, size_times(rows, e->hidden.dims[0]));
        grow(&n->conv, size_times(size_times(rows, e->choice.dims[0]), e->x.dims[0]));
    }
}

struct cpu_needs workspace_needs(struct plan *const *plans, uint32_t n_plans, int threads) {
    struct cpu_needs n = {0};
    for (uint32_t p = 0; p < n_plans; p++)
        for (uint32_t i = 0; i < plans[p]->n_ops; i++)
            add_needs(&n, plans[p], &plans[p]->ops[i], p == 0, threads);
    return n;
}

void *workspace_cut(struct cpu_cutter *c, uint64_t count, uint64_t size) {
    void *piece = c->block ? c->block + c->used : NULL;
    c->used = size_plus(c->used, size_aligned(size_times(count, size), 64));
    return piece;
}

void workspace_lay_out(struct backend *b, struct cpu_cutter *c, const struct cpu_needs *n,
                       struct cpu_scratch *scratch) {
    uint64_t stride = attend_stride((uint32_t)n->width); /* small: check_plans */
    b->rows = workspace_cut(c, n->rows, sizeof(float));
    b->groups = workspace_cut(c, size_plus(n->rows / 32, n->n_rows), sizeof *b->groups);
    b->conv = workspace_cut(c, n->conv, sizeof(float));
    b->list = workspace_cut(c, n->list, sizeof *b->list);
    b->ranks = workspace_cut(c, n->ranks, sizeof *b->ranks);
    b->n_parts = n->parts;
    b->parts = workspace_cut(c, n->parts, stride * sizeof(float));
    b->part_sums = workspace_cut(c, n->parts, sizeof *b->part_sums);
    for (int t = 0; t < b->threads; t++) {
        struct cpu_scratch own = {
            .tile = workspace_cut(c, n->tile, sizeof(float)),
            .keys = workspace_cut(c, ATTEND_POSITIONS * stride, sizeof(float)),
            .qk = workspace_cut(c, ATTEND_QUERIES * ATTEND_POSITIONS, sizeof(float)),
            .query = workspace_cut(c, ATTEND_QUERIES * stride, sizeof(float)),
            .pv = workspace_cut(c, ATTEND_QUERIES * stride, sizeof(float)),
            .part = workspace_cut(c, ATTEND_QUERIES * stride, sizeof(float)),
            .delta = workspace_cut(c, DELTA_BLOCK_ROWS * 2 * n->key_width, sizeof(float)),
        };
        if (scratch)
            scratch[t] = own;
    }
}
