/* simple.c - EMBED, TAP, JOIN and HIDDEN on the CPU. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

#define TWO_PI 6.28318530717958647692

/* Angles in f64, reduced before cos and sin: at position 200000 an f32 angle is off by 0.01. */
static void fill_angles(const struct op_embed *e, const double *freqs, uint32_t position,
                        float *out) {
    for (uint32_t i = 0; i < e->freqs.dims[0]; i++) {
        double angle = fmod(position * freqs[i], TWO_PI);
        out[2 * i] = (float)cos(angle) * e->rope_scale;
        out[2 * i + 1] = (float)sin(angle) * e->rope_scale;
    }
}

void cpu_embed(struct cpu_step *s) {
    const struct op_embed *e = &s->op->op->embed;
    struct share share = share_of(s, s->io->n_rows, 1);
    uint64_t row_bytes = operand_row_bytes(&e->table);
    for (uint32_t r = share.begin; r < share.end; r++) {
        const uint8_t *from =
            (const uint8_t *)at(s, &e->table) + (uint64_t)s->rows[r].token * row_bytes;
        dtype_info(e->table.type)->decode(from, row_of(s, &e->x, r), e->table.dims[0]);
        if (e->freqs.n_dims)
            fill_angles(e, at(s, &e->freqs), s->rows[r].position,
                        (float *)at(s, &e->angles) + (uint64_t)r * 2 * e->freqs.dims[0]);
    }
}

void cpu_tap(struct cpu_step *s) {
    const struct op_tap *t = &s->op->op->tap;
    struct share share = share_of(s, s->io->n_outputs, 1);
    for (uint32_t i = share.begin; i < share.end; i++) {
        const float *x = row_of(s, &t->x, s->outputs[i].row);
        float *out = row_of(s, &t->out, i);
        if (t->norm.n_dims)
            cpu_norm(out, x, at(s, &t->norm), t->eps, t->x.dims[0]);
        else
            memcpy(out, x, t->x.dims[0] * sizeof *out);
    }
}

/* The row before is normed twice: to its hidden state, as HIDDEN stores it, and that once more. */
void cpu_join(struct cpu_step *s) {
    const struct op_join *j = &s->op->op->join;
    struct share share = share_of(s, s->io->n_rows, 1);
    uint32_t width = j->embed.dims[0];
    for (uint32_t r = share.begin; r < share.end; r++) {
        const struct io_segment *g = &s->segments[s->rows[r].segment];
        const float *before = row_of(s, &j->state, g->cell);
        float *out = row_of(s, &j->out, r);
        cpu_norm(out, row_of(s, &j->embed, r), at(s, &j->embed_norm), j->eps, width);
        if (r > g->first_row) {
            CHECK(j->x.n_dims);
            cpu_norm(out + width, row_of(s, &j->x, r - 1), at(s, &j->norm), j->eps, width);
            before = out + width;
        }
        cpu_norm(out + width, before, at(s, &j->state_norm), j->eps, width);
    }
}

void cpu_hidden(struct cpu_step *s) {
    const struct op_hidden *h = &s->op->op->hidden;
    struct share share = share_of(s, s->io->n_rows, 1);
    for (uint32_t r = share.begin; r < share.end; r++)
        if (s->to[r] != IO_NO_CELL)
            cpu_norm(row_of(s, &h->state, s->to[r]), row_of(s, &h->x, r), at(s, &h->norm), h->eps,
                     h->x.dims[0]);
}
