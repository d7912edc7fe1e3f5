/* step_facts.c - one step of an engine, op by op. */
#include "cmd/step_facts.h"

#include <stdlib.h>

#include "cmd/cmd.h"
#include "cmd/open.h"

void step_facts_find(struct step_facts *f) {
    f->plan_number = engine_plan_for(f->engine, (uint32_t)f->rows, (uint32_t)f->sequences);
    f->plan = f->engine->plans[f->plan_number];
}

void step_facts_free(struct step_facts *f) {
    free(f->seconds);
    f->seconds = NULL;
}

/* ---- timing ------------------------------------------------------------------------------- */

int step_facts_rows_of(const struct step_facts *f, int i) {
    return f->rows / f->sequences + (i < f->rows % f->sequences);
}

bool step_facts_is_prompt(const struct step_facts *f) {
    return f->rows > f->sequences;
}

int step_facts_feed(sluice_engine *engine, sluice_seq *seq, int i, int n) {
    int32_t n_tokens = engine->model->n_tokens;
    for (int k = 0; k < n; k++) {
        int32_t token = (int32_t)(((int64_t)k * 7919 + i) % n_tokens);
        if (sluice_seq_feed(seq, &token, 1))
            return fail_engine(engine);
    }
    return 0;
}

/* Greedy sampling, as in bench: the cost of other sampling depends on how flat the logits are. */
int step_facts_open(const struct step_facts *f, sluice_engine *engine, sluice_seq **seqs) {
    struct sluice_sampling best = {.temperature = 0, .top_p = 1, .repeat_penalty = 1};
    int exit = 0;
    for (int i = 0; !exit && i < f->sequences; i++) {
        if (sluice_seq_open(&seqs[i], engine) || sluice_seq_set_sampling(seqs[i], &best))
            return fail_engine(engine);
        exit = step_facts_feed(engine, seqs[i], i, f->depth);
    }
    return exit ? exit
                : common_work_off(engine, "depth", (uint64_t)f->sequences * (uint64_t)f->depth);
}

/* Every step of prompt rows has its own sequences, so that all are equally deep; single rows only
 * make theirs one token longer. */
static int begin_step(struct step_facts *f, sluice_seq **seqs, sluice_seq **now) {
    int exit = 0;
    for (int i = 0; !exit && i < f->sequences; i++) {
        now[i] = seqs[i];
        if (step_facts_is_prompt(f) && sluice_seq_fork(&now[i], seqs[i]))
            return fail_engine(f->engine);
        exit = step_facts_feed(f->engine, now[i], i, step_facts_rows_of(f, i));
    }
    return exit;
}

/* All repeats: times[op * repeats + repeat]. */
static int time_steps(struct step_facts *f, sluice_seq **seqs, double *times) {
    for (int r = -1; r < f->repeats; r++) { /* the first warms up */
        uint32_t rows;
        sluice_seq **now = seqs + f->sequences;
        int exit = begin_step(f, seqs, now);
        if (exit)
            return exit;
        if (batch_step(f->engine, &rows, f->seconds, &f->engine->err))
            return fail_engine(f->engine);
        for (int i = 0; step_facts_is_prompt(f) && i < f->sequences; i++)
            sluice_seq_close(now[i]);
        for (uint32_t i = 0; r >= 0 && i < f->plan->n_ops; i++)
            times[i * (uint32_t)f->repeats + (uint32_t)r] = f->seconds[i];
    }
    return 0;
}

int step_facts_time(struct step_facts *f) {
    size_t n = f->plan->n_ops, repeats = (size_t)f->repeats;
    sluice_seq **seqs = calloc(2 * (size_t)f->sequences, sizeof *seqs);
    double *times = calloc(n * repeats, sizeof *times);
    f->seconds = calloc(n, sizeof *f->seconds);
    int exit = 0;
    if (!seqs || !times || !f->seconds)
        exit = complain(EXIT_WORLD, "out of memory for times");
    if (!exit)
        exit = step_facts_open(f, f->engine, seqs);
    if (!exit)
        exit = time_steps(f, seqs, times);
    for (size_t i = 0; !exit && i < n; i++) {
        qsort(times + i * repeats, repeats, sizeof *times, compare_doubles);
        f->seconds[i] = times[i * repeats + repeats / 2];
    }
    for (int i = 0; seqs && i < f->sequences; i++)
        sluice_seq_close(seqs[i]);
    free(times);
    free(seqs);
    return exit;
}

/* ---- facts -------------------------------------------------------------------------------- */

struct op_use step_facts_use(const struct step_facts *f) {
    return (struct op_use){(uint32_t)f->rows, (uint32_t)f->sequences, (uint32_t)f->depth + 1};
}

struct op_traffic step_facts_traffic(const struct step_facts *f, uint32_t op) {
    return op_traffic(&f->plan->ops[op], step_facts_use(f));
}

double step_facts_speed(double flops, double seconds) {
    return seconds > 0 ? 1e-12 * flops / seconds : 0;
}

double step_facts_peak_percent(const struct step_facts *f, double flops, double seconds) {
    return f->peak > 0 ? 100 * step_facts_speed(flops, seconds) / f->peak : 0;
}

double step_facts_percent(const struct step_facts *f, const struct op_traffic *t, double seconds) {
    if (seconds <= 0 || f->bandwidth <= 0)
        return 0;
    uint64_t bytes = t->weights + t->state ? t->weights + t->state : t->read; /* PICK: logits */
    return 100 * (double)bytes / 1e9 / f->bandwidth / seconds;
}

bool step_facts_kernel(const struct step_facts *f, uint32_t op, uint32_t k,
                       struct backend_kernel *out) {
    const struct sluice_engine *e = f->engine;
    return f->has_kernels && e->kind->op_kernel &&
           e->kind->op_kernel(e->backend, f->plan_number, op, k, out);
}

static json_t *operand_json(const struct operand_ref *ref) {
    static const char *const regions[] = {"weights", "state", "scratch", "io"};
    const struct operand *o = ref->at;
    json_t *dims = json_array();
    for (int i = o->n_dims; i-- > 0;)
        json_array_append_new(dims, json_integer(o->dims[i]));
    return json_pack("{s:s, s:s, s:I, s:s, s:o, s:b, s:b}", "name", ref->name, "region",
                     regions[o->region], "offset", (json_int_t)o->offset, "type",
                     dtype_name(o->type), "dims", dims, "read", ref->is_read, "written",
                     ref->is_written);
}

static json_t *kernels_json(const struct step_facts *f, uint32_t i) {
    struct backend_kernel kernel;
    json_t *all = json_array();
    for (uint32_t k = 0; step_facts_kernel(f, i, k, &kernel); k++)
        json_array_append_new(all, json_pack("{s:s, s:[i,i,i], s:i, s:i, s:i}", "kernel",
                                             kernel.name, "grid", (int)kernel.grid[0],
                                             (int)kernel.grid[1], (int)kernel.grid[2], "threads",
                                             (int)kernel.threads, "shared", (int)kernel.shared,
                                             "registers", kernel.registers));
    return all;
}

static json_t *operands_json(struct op *op) {
    struct operand_ref refs[MAX_OPERANDS];
    uint32_t n = op_operands(op, refs);
    json_t *operands = json_array();
    for (uint32_t k = 0; k < n; k++)
        json_array_append_new(operands, operand_json(&refs[k]));
    return operands;
}

static json_t *op_json(const struct step_facts *f, uint32_t i, bool has_operands) {
    struct op *op = &f->plan->ops[i];
    struct op_traffic t = step_facts_traffic(f, i);
    json_t *row = json_pack("{s:s, s:i, s:s, s:I, s:I, s:I}", "op", op_name(op->kind), "layer",
                            (int)op->layer, "role", op->role, "read", (json_int_t)t.read, "written",
                            (json_int_t)t.written, "weights", (json_int_t)t.weights);
    if (has_operands)
        json_object_set_new(row, "operands", operands_json(op));
    if (f->seconds) {
        double flops = op_flops(op, step_facts_use(f));
        json_object_set_new(row, "us", json_real(1e6 * f->seconds[i]));
        if (f->bandwidth > 0)
            json_object_set_new(row, "percent_of_limit",
                                json_real(step_facts_percent(f, &t, f->seconds[i])));
        json_object_set_new(row, "tflop_s", json_real(step_facts_speed(flops, f->seconds[i])));
        if (f->peak > 0)
            json_object_set_new(row, "percent_of_peak",
                                json_real(step_facts_peak_percent(f, flops, f->seconds[i])));
    }
    if (f->has_kernels)
        json_object_set_new(row, "kernels", kernels_json(f, i));
    return row;
}

json_t *step_facts_json(const struct step_facts *f, bool has_operands) {
    const struct plan *p = f->plan;
    json_t *ops = json_array();
    for (uint32_t i = 0; i < p->n_ops; i++)
        json_array_append_new(ops, op_json(f, i, has_operands));
    json_t *all = json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:o}", "rows", f->rows, "depth",
                            f->depth, "weights", (json_int_t)p->bytes[REGION_WEIGHTS], "state",
                            (json_int_t)p->bytes[REGION_STATE], "scratch",
                            (json_int_t)p->bytes[REGION_SCRATCH], "io",
                            (json_int_t)p->bytes[REGION_IO], "ops", ops);
    if (f->bandwidth > 0)
        json_object_set_new(all, "bandwidth_gb_s", json_real(f->bandwidth));
    if (f->peak > 0)
        json_object_set_new(all, "peak_tflop_s", json_real(f->peak));
    return all;
}
