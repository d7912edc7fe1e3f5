/* recode.c - a tensor from one number format into another, streamed. */
#include "model/recode.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { BATCH_VALUES = 4 << 20, PIECE_VALUES = 64 << 10 };

struct batch {
    const struct recode *r;
    uint64_t first_row;
    uint64_t row_bytes;
    float *values;
    uint8_t *bytes;
    _Atomic uint64_t bad_row; /* the first one found, plus 1 */
};

/* The largest magnitude a value may have: quantized types scale theirs, F16 does not. */
static float largest(enum dtype to) {
    return to == DT_F16 ? 65504.0f : 3.4028235e38f;
}

static bool is_sound(const float *x, uint64_t n, float limit) {
    bool ok = true;
    for (uint64_t i = 0; i < n; i++)
        ok &= fabsf(x[i]) <= limit; /* false for NaN */
    return ok;
}

static void encode_row(const struct recode *r, uint64_t row, const float *x, uint8_t *to) {
    const struct dtype_info *type = dtype_info(r->to);
    if (r->weights && type->encode_weighted)
        type->encode_weighted(x, r->weights + row / (r->rows / r->n_weights) * r->width, to,
                              r->width);
    else
        type->encode(x, to, r->width);
}

static void encode_rows(void *context, uint64_t begin, uint64_t end) {
    struct batch *b = context;
    const struct recode *r = b->r;
    float *x = b->values + begin * r->width;
    r->read(r->source, b->first_row + begin, end - begin, x);
    for (uint64_t row = begin; row < end; row++, x += r->width) {
        if (is_sound(x, r->width, largest(r->to)))
            encode_row(r, b->first_row + row, x, b->bytes + row * b->row_bytes);
        else
            atomic_store(&b->bad_row, b->first_row + row + 1);
    }
}

int recode_tensor(const struct recode *r, struct pool *pool, struct err *err) {
    struct batch b = {.r = r};
    CHECK(dtype_info(r->to)->encode && dtype_bytes(r->to, r->width, &b.row_bytes));
    uint64_t per_batch = BATCH_VALUES / r->width ? BATCH_VALUES / r->width : 1;
    if (per_batch > r->rows)
        per_batch = r->rows;
    b.values = malloc(per_batch * r->width * sizeof *b.values);
    b.bytes = malloc(per_batch * b.row_bytes);
    int status = b.values && b.bytes ? SLUICE_OK : err_memory(err, r->name);
    for (; !status && b.first_row < r->rows; b.first_row += per_batch) {
        uint64_t left = r->rows - b.first_row, count = left < per_batch ? left : per_batch;
        pool_for(pool, count, PIECE_VALUES / r->width, encode_rows, &b);
        if (b.bad_row)
            status = err_set(err, SLUICE_ERR_FORMAT,
                             "tensor %s, row %llu: a value is not finite or does not fit %s",
                             r->name, (unsigned long long)(b.bad_row - 1), dtype_name(r->to));
        else
            status = r->write(r->sink, b.bytes, count * b.row_bytes, err);
    }
    free(b.values);
    free(b.bytes);
    return status;
}
