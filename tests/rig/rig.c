/* rig.c - see rig.h. */
#include "rig.h"

#include "cells.h"
#include "formats.h"

enum { BLOB_BYTES = 256 << 20 };

/* ---- random numbers ----------------------------------------------------------------------- */

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t rig_bits(struct rig *r) {
    return mix(r->random += 0x9E3779B97F4A7C15u);
}

uint32_t rig_below(struct rig *r, uint32_t n) {
    return (uint32_t)(rig_bits(r) >> 33) % n;
}

float rig_uniform(struct rig *r) {
    return (float)(int64_t)rig_bits(r) * 0x1p-63f;
}

/* ---- plans -------------------------------------------------------------------------------- */

void rig_begin(struct rig *r, uint64_t seed, const struct plan_options *options) {
    struct err err = {0};
    *r = (struct rig){.random = mix(seed + 1), .options = *options, .n_tokens = 64};
    r->options.max_outputs = options->max_rows;
    r->options.n_vocab = options->n_vocab ? options->n_vocab : 64;
    r->weights = calloc(1, BLOB_BYTES);
    if (plan_new(&r->plan, &r->options, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

/* Types that only decode: random blocks, then scales such that the largest value is about `size`.
 */
static void random_blocks(struct rig *r, enum dtype type, uint8_t *to, uint64_t bytes, float size) {
    const struct dtype_info *info = dtype_info(type);
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t bits = rig_bits(r);
        memcpy(to + i, &bits, 8);
    }
    if (!format_of(type)) /* F64: the caller fills it */
        return;
    for (uint64_t at = 0; at < bytes; at += info->block_bytes) {
        float y[256], most = 0;
        format_put_scales(format_of(type), to + at, 1, 1);
        info->decode(to + at, y, info->block_values);
        for (uint32_t i = 0; i < info->block_values; i++)
            most = fmaxf(most, fabsf(y[i]));
        float d = size / fmaxf(most, 1);
        format_put_scales(format_of(type), to + at, d, d);
    }
}

struct operand rig_tensor(struct rig *r, enum dtype type, const uint32_t dims[4], float size) {
    r->used = (r->used + 255) / 256 * 256;
    struct operand o = operand_at(REGION_WEIGHTS, type, r->used, dims);
    uint64_t bytes = operand_bytes(&o), rows = bytes / operand_row_bytes(&o);
    CHECK(r->used + bytes <= BLOB_BYTES);
    uint8_t *to = r->weights + r->used;
    r->used += bytes;
    if (!dtype_info(type)->encode) {
        random_blocks(r, type, to, bytes, size);
        return o;
    }
    float *values = malloc(o.dims[0] * sizeof *values);
    for (uint64_t row = 0; row < rows; row++) {
        for (uint32_t i = 0; i < o.dims[0]; i++)
            values[i] = size * (rig_uniform(r) + rig_uniform(r) * rig_uniform(r));
        dtype_info(type)->encode(values, to + row * operand_row_bytes(&o), o.dims[0]);
    }
    free(values);
    return o;
}

int rig_add(struct rig *r, const struct op *op) {
    struct err err = {0};
    int status = plan_add(r->plan, op, &err);
    if (status)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return status;
}

struct operand rig_rows(struct rig *r, uint32_t width, float size) {
    struct op op = {.kind = OP_EMBED, .layer = -1, .role = "rows"};
    op.embed.table = rig_tensor(r, DT_F32, (uint32_t[4]){width, r->n_tokens}, size);
    op.embed.x = plan_scratch(r->plan, width);
    rig_add(r, &op);
    return op.embed.x;
}

void rig_tap(struct rig *r, uint32_t number, struct operand x) {
    struct op op = {.kind = OP_TAP, .layer = -1, .role = "tap"};
    struct operand out = plan_tap(r->plan, number);
    out.dims[0] = x.dims[0];
    op.tap = (struct op_tap){.x = x, .out = out};
    rig_add(r, &op);
}

/* A device that nobody has open is started again each time, which takes longer than a test. */
static void keep_device(void) {
    static struct backend *kept;
    struct backend_options how = {0};
    struct err ignored;
    if (!kept)
        rig_kinds[RIG_DEVICE]->open(&kept, &how, &ignored);
}

bool rig_open(struct rig *r) {
    struct err err = {0};
    int status = plan_finish(r->plan, &err);
    keep_device();
    for (int i = 0; !status && i < RIG_BACKENDS; i++) {
        struct backend_options how = {.threads = 4, .exact = r->exact};
        status = rig_kinds[i]->open(&r->b[i], &how, &err);
        if (!status)
            status = rig_kinds[i]->load(
                r->b[i], (struct backend_weights){.base = r->weights, .bytes = r->used}, &r->plan,
                1, NULL, NULL, &err);
    }
    if (status)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return status == SLUICE_OK;
}

void rig_end(struct rig *r) {
    for (int i = 0; i < RIG_BACKENDS; i++)
        rig_kinds[i]->close(r->b[i]);
    plan_free(r->plan);
    free(r->weights);
    rig_check_validation();
}

/* ---- steps -------------------------------------------------------------------------------- */

static void fill_step(struct rig *r, int backend, const struct rig_segment *segments,
                      uint32_t n_segments, uint64_t token_seed) {
    static uint64_t step;
    uint8_t *io = rig_kinds[backend]->io(r->b[backend]);
    struct io_header *header = (struct io_header *)io;
    struct io_row *rows = (struct io_row *)(io + r->plan->io.rows);
    struct io_segment *io_segments = (struct io_segment *)(io + r->plan->io.segments);
    struct io_output *outputs = (struct io_output *)(io + r->plan->io.outputs);
    *header = (struct io_header){.step = ++step};
    for (uint32_t s = 0; s < n_segments; s++) {
        io_segments[s] = (struct io_segment){.cell = segments[s].slot,
                                             .first_row = header->n_rows,
                                             .n_rows = segments[s].n_rows,
                                             .first_position = segments[s].first_position};
        for (uint32_t i = 0; i < segments[s].n_rows; i++) {
            uint32_t position = segments[s].first_position + i, row = header->n_rows++;
            uint64_t token = mix(token_seed ^ mix(segments[s].slot + 1000003ull * position));
            rows[row] =
                (struct io_row){(int32_t)(token % r->n_tokens), position, segments[s].slot, s};
            outputs[row] = (struct io_output){.row = row, .repeat_penalty = 1, .top_p = 1};
        }
    }
    header->n_segments = n_segments;
    header->n_outputs = header->n_rows;
    update_in_place(io, r->plan);
}

static void submit_step(struct rig *r, int backend) {
    struct err err = {0};
    int status = rig_kinds[backend]->submit(r->b[backend], 0, &err);
    if (!status)
        status = rig_kinds[backend]->wait(r->b[backend], &err);
    if (status)
        test_fail(__FILE__, __LINE__, "%s: %s", rig_kinds[backend]->name, err.text);
}

void rig_step(struct rig *r, int backend, const struct rig_segment *segments, uint32_t n_segments,
              uint64_t token_seed) {
    fill_step(r, backend, segments, n_segments, token_seed);
    submit_step(r, backend);
}

void rig_step_to(struct rig *r, int backend, const struct rig_segment *segment, const uint32_t *to,
                 uint64_t token_seed) {
    fill_step(r, backend, segment, 1, token_seed);
    memcpy(rig_kinds[backend]->io(r->b[backend]) + r->plan->io.to, to,
           segment->n_rows * sizeof *to);
    submit_step(r, backend);
}

void rig_step_cells(struct rig *r, int backend, const struct rig_segment *segments,
                    uint32_t n_segments, const uint32_t *cells, const uint32_t *to,
                    uint64_t token_seed) {
    uint8_t *io = rig_kinds[backend]->io(r->b[backend]);
    struct io_segment *io_segments = (struct io_segment *)(io + r->plan->io.segments);
    fill_step(r, backend, segments, n_segments, token_seed);
    for (uint32_t i = 0; i < n_segments; i++)
        io_segments[i].cell = cells[i];
    memcpy(io + r->plan->io.to, to, ((struct io_header *)io)->n_rows * sizeof *to);
    submit_step(r, backend);
}

const float *rig_output(struct rig *r, int backend, uint32_t tap, uint32_t row) {
    struct operand o = plan_tap(r->plan, tap);
    const float *rows = (const float *)(rig_kinds[backend]->io(r->b[backend]) + o.offset);
    return rows + (size_t)row * o.stride;
}

double rig_distance(const float *a, const float *b, size_t n) {
    double square = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        square += (double)a[i] * a[i];
        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst / (sqrt(square / (double)n) + 1e-30);
}
