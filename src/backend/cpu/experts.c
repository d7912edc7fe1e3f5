/* experts.c - ROUTE, EXPERTS_IN and EXPERTS_OUT on the CPU.
 *
 * A (row, choice) pair is one product with one expert's matrices. Pairs are sorted by expert, so
 * that an expert's weights are read once for all its rows; the order of pairs changes no result. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/vec.h"

/* ---- ROUTE -------------------------------------------------------------------------------- */

/* The `used` largest of n, the lower index first among equals, by repeated search: both are small.
 */
static void choose(const float *logits, uint32_t n, uint32_t used, int32_t *choice) {
    for (uint32_t j = 0; j < used; j++) {
        int32_t best = -1;
        for (uint32_t e = 0; e < n; e++) {
            bool is_taken = false;
            for (uint32_t i = 0; i < j; i++)
                is_taken |= choice[i] == (int32_t)e;
            if (!is_taken && (best < 0 || logits[e] > logits[best]))
                best = (int32_t)e;
        }
        choice[j] = best;
    }
}

static float exp_sum(const float *logits, uint32_t n, float largest) {
    float sum = 0;
    for (uint32_t e = 0; e < n; e++)
        sum += expf(logits[e] - largest);
    return sum;
}

void cpu_route(struct cpu_step *s) {
    const struct op_route *r = &s->op->op->route;
    uint32_t width = r->in.dims[0], experts = r->router.dims[1];
    struct share share = share_of(s, s->io->n_rows, 1);
    for (uint32_t row = share.begin; row < share.end && !is_cancelled(s); row++) {
        float *x = s->b->rows + (uint64_t)row * width, *logits = s->scratch->tile;
        int32_t *choice = (int32_t *)at(s, &r->choice) + (uint64_t)row * r->choice.stride;
        float *weight = row_of(s, &r->weight, row), sum = 0;
        cpu_norm(x, row_of(s, &r->in, row), at(s, &r->norm), r->eps, width);
        for (uint32_t e = 0; e < experts; e++)
            logits[e] = row_dot(x, row_of(s, &r->router, e), width);
        choose(logits, experts, r->used, choice);
        /* A softmax over all, normalized again over the chosen, is a softmax over the chosen. */
        for (uint32_t j = 0; j < r->used; j++)
            sum += weight[j] = expf(logits[choice[j]] - logits[choice[0]]);
        if (r->is_unnormed)
            sum = exp_sum(logits, experts, logits[choice[0]]);
        for (uint32_t j = 0; j < r->used; j++)
            weight[j] /= sum;
        choice[r->used] = (int32_t)experts;
        weight[r->used] = 0;
        if (r->shared_switch.n_dims)
            weight[r->used] = 1 / (1 + expf(-row_dot(x, at(s, &r->shared_switch), width)));
    }
}

/* ---- pairs -------------------------------------------------------------------------------- */

/* b->list: starts[experts + 2], then the pairs (row * (used + 1) + j, for choice j of a row) by
 * expert; the shared expert is the last. */
struct pairs {
    uint32_t *starts, *pair;
    uint32_t experts, per_row;
};

static struct pairs pairs_of(struct cpu_step *s, const struct operand *choice, uint32_t experts) {
    return (struct pairs){.starts = s->b->list,
                          .pair = s->b->list + experts + 2,
                          .experts = experts,
                          .per_row = choice->dims[0]};
}

/* A counting sort, by one thread: there are few. */
static void sort_pairs(struct cpu_step *s, const struct operand *choice, struct pairs *p,
                       bool has_shared) {
    uint32_t n = s->io->n_rows * p->per_row;
    const int32_t *ids = at(s, choice);
    memset(p->starts, 0, (p->experts + 2) * sizeof *p->starts);
    for (uint32_t i = 0; i < n; i++)
        p->starts[ids[i] + 1] += has_shared || ids[i] != (int32_t)p->experts;
    for (uint32_t e = 0; e <= p->experts; e++)
        p->starts[e + 1] += p->starts[e];
    for (uint32_t i = n; i-- > 0;) {
        if (!has_shared && ids[i] == (int32_t)p->experts)
            continue;
        /* From the back, so that `starts[e + 1]` walks down to where e + 1 begins ... */
        p->pair[--p->starts[ids[i] + 1]] = i;
    }
    /* ... and every start has moved one up: put them back. */
    for (uint32_t e = 0; e <= p->experts; e++)
        p->starts[e] = p->starts[e + 1];
    p->starts[p->experts + 1] = has_shared ? n : n - s->io->n_rows;
}

/* Starts to read the chosen experts' matrices, where they are on disk. */
static void read_chosen(const struct cpu_weight *w, const struct pairs *p) {
    for (uint32_t x = 0; w->is_on_disk && x < p->experts; x++)
        if (p->starts[x + 1] > p->starts[x])
            packed_will_need(w, x);
}

/* ---- EXPERTS_IN --------------------------------------------------------------------------- */

static const uint8_t *matrix_of(const struct cpu_weight *w, uint32_t expert) {
    return w->data + expert * w->plane_bytes;
}

/* Gate and up rows of this thread's share of one expert, for its pairs (already gathered). */
static void run_expert_in(struct cpu_step *s, const struct op_experts_in *e, const struct pairs *p,
                          uint32_t expert) {
    bool is_shared = expert == p->experts;
    const struct cpu_weight *gate = &s->op->weights[is_shared ? 2 : 0];
    const struct cpu_weight *up = &s->op->weights[is_shared ? 3 : 1];
    uint32_t first = p->starts[expert], n = p->starts[expert + 1] - first;
    uint32_t width = is_shared ? e->shared_gate.dims[1] : e->gate.dims[1];
    uint32_t grain = gate->kernel->tile_rows > up->kernel->tile_rows ? gate->kernel->tile_rows
                                                                     : up->kernel->tile_rows;
    struct share share = share_of(s, width, grain);
    uint32_t step = tile_rows(n, grain);
    struct activations acts = cpu_activations(s->b, first, n, e->in.dims[0]);
    observe(s, expert, is_shared ? &e->shared_gate : &e->gate, is_shared ? 0 : expert, acts.x, n);
    observe(s, expert, is_shared ? &e->shared_up : &e->up, is_shared ? 0 : expert, acts.x, n);
    for (uint32_t f = share.begin; f < share.end && !is_cancelled(s); f += step) {
        uint32_t count = share.end - f < step ? share.end - f : step;
        float *a = s->scratch->tile, *b = a + (uint64_t)count * n;
        uint32_t matrix = is_shared ? 0 : expert;
        gate->kernel->run(matrix_of(gate, matrix), f, count, &acts, a, count);
        up->kernel->run(matrix_of(up, matrix), f, count, &acts, b, count);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t pair = p->pair[first + i], row = pair / p->per_row, j = pair % p->per_row;
            row_swiglu(row_of(s, &e->hidden, row) + (uint64_t)j * e->gate.dims[1] + f,
                       a + (uint64_t)i * count, b + (uint64_t)i * count, count);
        }
    }
}

void cpu_experts_in(struct cpu_step *s) {
    const struct op_experts_in *e = &s->op->op->experts_in;
    uint32_t width = e->in.dims[0];
    struct pairs p = pairs_of(s, &e->choice, e->gate.dims[2]);
    if (s->thread == 0) {
        sort_pairs(s, &e->choice, &p, e->shared_gate.n_dims != 0);
        read_chosen(&s->op->weights[0], &p);
        read_chosen(&s->op->weights[1], &p);
    }
    barrier(s);
    struct share share = share_of(s, p.starts[p.experts + 1], 1);
    for (uint32_t i = share.begin; i < share.end; i++) {
        float *x = s->b->rows + (uint64_t)i * width;
        cpu_norm(x, row_of(s, &e->in, p.pair[i] / p.per_row), at(s, &e->norm), e->eps, width);
        if (s->op->needs_int8)
            cpu_quantize_row(s, x, i, width);
    }
    barrier(s);
    for (uint32_t x = 0; x <= p.experts; x++)
        if (p.starts[x + 1] > p.starts[x])
            run_expert_in(s, e, &p, x);
}

/* ---- EXPERTS_OUT -------------------------------------------------------------------------- */

/* Where the hidden row of pair i is gathered. Rows of routed experts come first, then those of the
 * shared one, which may have another width; values and groups are counted apart, as a width need
 * not be a multiple of a group. */
struct hidden_row {
    const struct cpu_weight *down; /* what it is multiplied with */
    uint32_t k;
    float *x;
    struct act_group *groups;
};

static struct hidden_row hidden_row(const struct cpu_step *s, const struct op_experts_out *e,
                                    const struct pairs *p, uint32_t i) {
    uint32_t first_shared = p->starts[p->experts];
    bool is_shared = i >= first_shared;
    uint64_t routed = is_shared ? first_shared : i, shared = i - routed;
    uint32_t width = e->down.dims[0], shared_width = e->shared_down.dims[0];
    return (struct hidden_row){
        .down = &s->op->weights[is_shared ? 1 : 0],
        .k = is_shared ? shared_width : width,
        .x = s->b->rows + routed * width + shared * shared_width,
        .groups = s->b->groups + routed * act_group_stride(width) +
                  shared * act_group_stride(shared_width),
    };
}

/* Results of pair i go to b->conv, (pairs, D): added up afterwards, in the order of a row's
 * choices, whatever order the experts ran in. */
static void run_expert_out(struct cpu_step *s, const struct op_experts_out *e,
                           const struct pairs *p, uint32_t expert) {
    const struct cpu_weight *down = &s->op->weights[expert == p->experts ? 1 : 0];
    uint32_t first = p->starts[expert], n = p->starts[expert + 1] - first, width = e->x.dims[0];
    struct share share = share_of(s, width, down->kernel->tile_rows);
    struct hidden_row at_first = hidden_row(s, e, p, first);
    struct activations acts = {.n_rows = n,
                               .k = at_first.k,
                               .x = at_first.x,
                               .x_stride = at_first.k,
                               .groups = at_first.groups,
                               .group_stride = act_group_stride(at_first.k)};
    uint32_t step = tile_rows(n, down->kernel->tile_rows);
    bool is_shared = expert == p->experts;
    observe(s, expert, is_shared ? &e->shared_down : &e->down, is_shared ? 0 : expert, acts.x, n);
    for (uint32_t d = share.begin; d < share.end && !is_cancelled(s); d += step)
        down->kernel->run(matrix_of(down, expert == p->experts ? 0 : expert), d,
                          share.end - d < step ? share.end - d : step, &acts,
                          s->b->conv + (uint64_t)first * width + d, width);
}

static void gather_hidden(struct cpu_step *s, const struct op_experts_out *e, const struct pairs *p,
                          uint32_t i) {
    struct hidden_row to = hidden_row(s, e, p, i);
    uint32_t row = p->pair[i] / p->per_row, j = p->pair[i] % p->per_row;
    memcpy(to.x, row_of(s, &e->hidden, row) + (uint64_t)j * e->down.dims[0], to.k * sizeof *to.x);
    if (!to.down->kernel->is_f32)
        act_groups(to.x, to.k, s->op->act_group, to.groups);
}

void cpu_experts_out(struct cpu_step *s) {
    const struct op_experts_out *e = &s->op->op->experts_out;
    uint32_t width = e->x.dims[0];
    struct pairs p = pairs_of(s, &e->choice, e->down.dims[2]);
    if (s->thread == 0) {
        sort_pairs(s, &e->choice, &p, e->shared_down.n_dims != 0);
        read_chosen(&s->op->weights[0], &p);
    }
    barrier(s);
    struct share share = share_of(s, p.starts[p.experts + 1], 1);
    for (uint32_t i = share.begin; i < share.end; i++)
        gather_hidden(s, e, &p, i);
    barrier(s);
    for (uint32_t x = 0; x <= p.experts; x++)
        if (p.starts[x + 1] > p.starts[x])
            run_expert_out(s, e, &p, x);
    barrier(s);
    /* Choice by choice, so that each row adds its own in their order. */
    struct share columns = share_of(s, width, LANES);
    uint32_t n = columns.end - columns.begin;
    const float *weight = at(s, &e->weight);
    for (uint32_t j = 0; n && j < p.per_row; j++)
        for (uint32_t i = 0; i < p.starts[p.experts + 1]; i++) {
            if (p.pair[i] % p.per_row != j)
                continue;
            uint32_t row = p.pair[i] / p.per_row;
            row_mix(row_of(s, &e->x, row) + columns.begin, 1,
                    s->b->conv + (uint64_t)i * width + columns.begin, weight[p.pair[i]], n);
        }
}
