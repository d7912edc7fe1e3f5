/* compare.c - explain --compare: how far the results of two backends are apart, op by op. */
#include "cmd/compare.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cmd/cmd.h"
#include "engine/engine.h"

/* How far two rows of results are apart. */
struct divergence {
    double largest; /* difference */
    double rms;     /* of the first's values */
};

static void add_values(struct divergence *d, const float *a, const float *b, uint32_t n) {
    double square = 0;
    for (uint32_t i = 0; i < n; i++) {
        double apart = fabs((double)a[i] - b[i]);
        square += (double)a[i] * a[i];
        d->largest = apart > d->largest || isnan(apart) ? apart : d->largest;
    }
    d->rms = fmax(d->rms, sqrt(square / n));
}

/* The rows of an operand that the step has. */
static uint32_t rows_of(const struct sluice_engine *e, const struct op *op) {
    const struct io_header *h = engine_io(e, 0);
    bool is_lm_head = (op->kind == OP_PROJECT && op->project.is_lm_head) || op->kind == OP_PICK;
    return is_lm_head ? h->n_outputs : h->n_rows;
}

static int compare_operand(sluice_engine *one, sluice_engine *other, const struct op *op,
                           const struct operand *o, struct divergence *d, struct err *err) {
    uint32_t rows = rows_of(one, op), n = o->dims[0] * (o->n_dims > 2 ? o->dims[1] : 1);
    uint64_t values = (uint64_t)o->stride * (o->n_dims > 2 ? o->dims[1] : 1) * rows;
    float *a = malloc(values * sizeof *a), *b = malloc(values * sizeof *b);
    uint64_t bytes = ((uint64_t)(rows - 1) * (values / rows) + n) * sizeof *a;
    int status = a && b ? SLUICE_OK : err_memory(err, "results to compare");
    if (!status)
        status = one->kind->peek(one->backend, o->region, o->offset, bytes, a, err);
    if (!status)
        status = other->kind->peek(other->backend, o->region, o->offset, bytes, b, err);
    for (uint32_t r = 0; !status && o->type == DT_F32 && r < rows; r++)
        add_values(d, a + r * (values / rows), b + r * (values / rows), n);
    if (!status)
        status = other->kind->poke(other->backend, o->region, o->offset, bytes, a, err);
    free(a);
    free(b);
    return status;
}

/* Copies STATE from the first to the other, so that rounding in earlier steps does not count. */
static int copy_state(sluice_engine *one, sluice_engine *other, struct err *err) {
    enum { PIECE = 16 << 20 };
    uint64_t bytes = one->plans[one->last_plan]->bytes[REGION_STATE];
    CHECK(other->plans[other->last_plan]->bytes[REGION_STATE] == bytes);
    uint8_t *piece = malloc(PIECE);
    int status = piece ? SLUICE_OK : err_memory(err, "states to compare");
    for (uint64_t at = 0; !status && at < bytes; at += PIECE) {
        uint64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        status = one->kind->read_state(one->backend, at, n, piece, err);
        if (!status)
            status = other->kind->write_state(other->backend, at, n, piece, err);
    }
    free(piece);
    return status;
}

/* What an op writes to STATE shows in its results one step later. */
static int compare_op(sluice_engine *one, sluice_engine *other, uint32_t i, struct divergence *d,
                      struct err *err) {
    struct op *op = &one->plans[one->last_plan]->ops[i];
    struct operand_ref refs[MAX_OPERANDS];
    uint32_t n = op_operands(op, refs);
    int status = one->kind->run_op(one->backend, one->last_plan, i, err);
    if (!status)
        status = other->kind->run_op(other->backend, other->last_plan, i, err);
    for (uint32_t k = 0; !status && rows_of(one, op) && k < n; k++)
        if (refs[k].is_written && refs[k].at->region == REGION_SCRATCH && op->kind != OP_PICK)
            status = compare_operand(one, other, op, refs[k].at, d, err);
    return status;
}

int compare_step(sluice_engine *one, sluice_engine *other, bool as_json) {
    uint32_t rows = 0, other_rows = 0, worst_op = 0;
    double worst = 0;
    int status = batch_begin(one, &rows, &one->err);
    if (!status)
        status = batch_begin(other, &other_rows, &one->err);
    if (!status)
        status = copy_state(one, other, &one->err);
    if (status)
        return fail(&one->err);
    json_t *list = json_array();
    CHECK(rows > 0 && other_rows == rows);
    const struct plan *plan = one->plans[one->last_plan];
    CHECK(other->plans[other->last_plan]->n_ops == plan->n_ops &&
          other->plans[other->last_plan]->max_rows == plan->max_rows);
    if (!as_json)
        printf("%4s %-11s %5s %-9s %12s %12s %12s\n", "#", "op", "layer", "role", "largest", "rms",
               "of the rms");
    for (uint32_t i = 0; !status && i < plan->n_ops; i++) {
        const struct op *op = &plan->ops[i];
        struct divergence d = {0};
        status = compare_op(one, other, i, &d, &one->err);
        double share = d.rms > 0 ? d.largest / d.rms : 0;
        if (share > worst || isnan(share)) {
            worst = share;
            worst_op = i;
        }
        char layer[16] = "-";
        if (op->layer >= 0)
            snprintf(layer, sizeof layer, "%d", op->layer);
        if (!as_json && !status)
            printf("%4u %-11s %5s %-9s %12.3e %12.3e %12.3e\n", i, op_name(op->kind), layer,
                   op->role, d.largest, d.rms, share);
        json_array_append_new(list, json_pack("{s:s, s:i, s:s, s:o, s:o}", "op", op_name(op->kind),
                                              "layer", (int)op->layer, "role", op->role, "largest",
                                              json_number_or_null(d.largest), "rms",
                                              json_number_or_null(d.rms)));
    }
    if (!status && as_json) {
        json_dumpf(list, stdout, JSON_INDENT(1));
        putchar('\n');
    } else if (!status) {
        printf("\n%s against %s: the largest is op %u, %.3e of its rms\n", other->kind->name,
               one->kind->name, worst_op, worst);
    }
    json_decref(list);
    if (!status)
        status = batch_end(one, &one->err);
    if (!status)
        status = batch_end(other, &one->err);
    return status ? fail(&one->err) : 0;
}
