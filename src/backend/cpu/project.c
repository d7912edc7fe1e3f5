/* project.c - PROJECT on the CPU: out = epilogue(weights * prologue(in)).
 *
 * First the rows are prepared (norm or gate, then int8 where a weight wants it), each by one
 * thread; a single row by every thread for itself would save a barrier but not time. Then each
 * thread takes its share of every segment's weight rows, for all rows at once. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/vec.h"

void cpu_norm(float *y, const float *x, const float *w, float eps, uint32_t n) {
    float mean = row_dot(x, x, n) / (float)n;
    row_scale_by(y, x, 1 / sqrtf(mean + eps), w, n);
}

void cpu_quantize_row(struct cpu_step *s, const float *x, uint32_t r, uint32_t k) {
    act_groups(x, k, s->op->act_group, s->b->groups + r * act_group_stride(k));
}

struct activations cpu_activations(const struct backend *b, uint32_t first, uint32_t n,
                                   uint32_t k) {
    return (struct activations){
        .n_rows = n,
        .k = k,
        .x = b->rows + (uint64_t)first * k,
        .x_stride = k,
        .groups = b->groups + first * act_group_stride(k),
        .group_stride = act_group_stride(k),
    };
}

/* ---- prologues ---------------------------------------------------------------------------- */

static void gated_norm(const struct cpu_step *s, const struct op_project *p, const float *x,
                       const float *gate, float *y) {
    uint32_t width = p->head_width, heads = p->in.dims[0] / width;
    for (uint32_t h = 0; h < heads; h++) {
        cpu_norm(y + h * width, x + h * width, at(s, &p->norm), p->eps, width);
        row_times_silu(y + h * width, gate + (uint64_t)h * p->gate_stride, width);
    }
}

static void sigmoid_gate(const struct op_project *p, const float *x, const float *gate, float *y) {
    uint32_t width = p->head_width, heads = p->in.dims[0] / width;
    memcpy(y, x, p->in.dims[0] * sizeof *y);
    for (uint32_t h = 0; h < heads; h++)
        row_times_sigmoid(y + h * width, gate + (uint64_t)h * p->gate_stride, width);
}

static void prepare_row(struct cpu_step *s, const struct op_project *p, uint32_t from,
                        uint32_t to) {
    uint32_t k = p->in.dims[0];
    const float *x = row_of(s, &p->in, from);
    float *y = s->b->rows + (uint64_t)to * k;
    switch (p->prologue) {
    case PROLOGUE_NONE:
        if (s->op->needs_f32 || s->b->observer)
            memcpy(y, x, k * sizeof *y);
        break;
    case PROLOGUE_NORM:
        cpu_norm(y, x, at(s, &p->norm), p->eps, k);
        break;
    case PROLOGUE_GATED_NORM:
        gated_norm(s, p, x, row_of(s, &p->gate, from), y);
        break;
    case PROLOGUE_SIGMOID_GATE:
        sigmoid_gate(p, x, row_of(s, &p->gate, from), y);
        break;
    }
    if (s->op->needs_int8)
        cpu_quantize_row(s, p->prologue == PROLOGUE_NONE ? x : y, to, k);
}

/* ---- products ----------------------------------------------------------------------------- */

static void add_bias(const struct cpu_step *s, const struct operand *bias, float *y, uint32_t first,
                     uint32_t count) {
    if (bias->n_dims)
        row_add(y, (const float *)at(s, bias) + first, count);
}

/* Weight rows [first, first + count) of segment i for all rows, bias added, count apart. */
static const float *multiply(struct cpu_step *s, uint32_t i, const struct activations *acts,
                             uint32_t first, uint32_t count, float *tile) {
    const struct segment *segment = &s->op->op->project.segments[i];
    const struct cpu_weight *w = &s->op->weights[i];
    w->kernel->run(w->data, first, count, acts, tile, count);
    for (uint32_t r = 0; r < acts->n_rows; r++)
        add_bias(s, &segment->bias, tile + (uint64_t)r * count, first, count);
    return tile;
}

/* The same, put where the epilogue wants it. */
static void multiply_into(struct cpu_step *s, uint32_t i, const struct activations *acts,
                          uint32_t first, uint32_t count) {
    const struct op_project *p = &s->op->op->project;
    const struct segment *segment = &p->segments[i];
    const struct cpu_weight *w = &s->op->weights[i];
    float *out = row_of(s, &p->out, 0) + segment->column + first;
    if (p->epilogue == EPILOGUE_STORE && !segment->bias.n_dims) {
        w->kernel->run(w->data, first, count, acts, out, p->out.stride);
        return;
    }
    const float *tile = multiply(s, i, acts, first, count, s->scratch->tile);
    for (uint32_t r = 0; r < acts->n_rows; r++, tile += count, out += p->out.stride) {
        if (p->epilogue == EPILOGUE_ADD)
            row_add(out, tile, count);
        else
            memcpy(out, tile, count * sizeof *out);
    }
}

static void run_segment(struct cpu_step *s, uint32_t i, const struct activations *acts) {
    const struct op_project *p = &s->op->op->project;
    uint32_t grain = s->op->is_ranked ? RANK_BLOCK : s->op->weights[i].kernel->tile_rows;
    struct share share = share_of(s, p->segments[i].weight.dims[1], grain);
    uint32_t step = tile_rows(acts->n_rows, grain);
    for (uint32_t n = share.begin; n < share.end && !is_cancelled(s); n += step) {
        uint32_t count = share.end - n < step ? share.end - n : step;
        multiply_into(s, i, acts, n, count);
        for (uint32_t r = 0; s->op->is_ranked && r < acts->n_rows; r++)
            cpu_rank_logits(s, r, row_of(s, &p->out, r), (struct share){n, n + count});
    }
}

/* Gate and up rows of the same numbers, by the same thread. */
static void run_swiglu(struct cpu_step *s, const struct activations *acts) {
    const struct op_project *p = &s->op->op->project;
    uint32_t grain = s->op->weights[0].kernel->tile_rows;
    grain =
        grain > s->op->weights[1].kernel->tile_rows ? grain : s->op->weights[1].kernel->tile_rows;
    struct share share = share_of(s, p->out.dims[0], grain);
    uint32_t step = tile_rows(acts->n_rows, grain);
    for (uint32_t n = share.begin; n < share.end && !is_cancelled(s); n += step) {
        uint32_t count = share.end - n < step ? share.end - n : step;
        float *both = s->scratch->tile;
        const float *gate = multiply(s, 0, acts, n, count, both);
        const float *up = multiply(s, 1, acts, n, count, both + (uint64_t)count * acts->n_rows);
        for (uint32_t r = 0; r < acts->n_rows; r++)
            row_swiglu(row_of(s, &p->out, r) + n, gate + (uint64_t)r * count,
                       up + (uint64_t)r * count, count);
    }
}

void cpu_project(struct cpu_step *s) {
    const struct op_project *p = &s->op->op->project;
    uint32_t n = p->is_lm_head ? s->io->n_outputs : s->io->n_rows;
    struct share share = share_of(s, n, 1);
    for (uint32_t r = share.begin; r < share.end && !is_cancelled(s); r++)
        prepare_row(s, p, p->is_lm_head ? s->outputs[r].row : r, r);
    barrier(s);
    if (n == 0)
        return;
    struct activations acts = cpu_activations(s->b, 0, n, p->in.dims[0]);
    for (uint32_t i = 0; i < p->n_segments && !p->is_lm_head; i++)
        observe(s, i, &p->segments[i].weight, 0, acts.x, n);
    if (p->epilogue == EPILOGUE_SWIGLU) {
        run_swiglu(s, &acts);
        return;
    }
    for (uint32_t i = 0; i < p->n_segments; i++)
        run_segment(s, i, &acts);
}
