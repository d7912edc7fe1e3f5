/* explain.c - the verb explain: the plan of a step, op by op.
 *
 * The facts of each op are gathered once; the table, --json and --html print the same ones. */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/outfile.h"
#include "cmd/cmd.h"
#include "cmd/compare.h"
#include "cmd/open.h"
#include "cmd/output.h"
#include "engine/engine.h"

enum { MAX_SINGLE_ROWS = 128 }; /* that are a sequence each unless --sequences says so */

struct explain {
    struct common common;
    int rows, depth, repeats;
    int sequences; /* that the rows belong to, consecutive ones each; 0: not given */
    bool is_timed, has_kernels;
    const char *html;
    const char *compare; /* another backend */
    sluice_model *model;
    sluice_engine *engine, *other;
    const struct plan *plan;
    uint32_t plan_number;
    double *seconds;  /* of each op, NULL: not timed */
    double bandwidth; /* GB/s */
};

/* ---- operands ---------------------------------------------------------------------------------
 */

static const char *const region_letters = "WSXI"; /* weights, state, scratch, io */

static void operand_text(char *out, size_t size, const struct operand_ref *ref) {
    const struct operand *o = ref->at;
    size_t n = (size_t)snprintf(out, size, "%s%s=%c:%s(", ref->is_written ? "->" : "", ref->name,
                                region_letters[o->region], dtype_name(o->type));
    for (int i = o->n_dims; i-- > 0 && n < size;)
        n += (size_t)snprintf(out + n, size - n, "%u%s", o->dims[i], i ? "," : ")");
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

/* ---- timing -----------------------------------------------------------------------------------
 */

/* Rows of sequence i. */
static int rows_of(const struct explain *x, int i) {
    return x->rows / x->sequences + (i < x->rows % x->sequences);
}

static int feed_many(struct explain *x, sluice_engine *engine, sluice_seq *seq, int i, int n) {
    struct sluice_facts facts;
    sluice_model_facts(x->model, &facts);
    for (int k = 0; k < n; k++) {
        int32_t token = (int32_t)(((int64_t)k * 7919 + i) % facts.n_tokens);
        if (sluice_seq_feed(seq, &token, 1))
            return fail_engine(engine);
    }
    return 0;
}

/* Sequences of the given depth. They take the best token, as in bench: what sampling costs depends
 * on how flat the logits are. */
static int make_seqs(struct explain *x, sluice_engine *engine, sluice_seq **seqs) {
    struct sluice_sampling best = {.temperature = 0, .top_p = 1, .repeat_penalty = 1};
    int exit = 0;
    for (int i = 0; !exit && i < x->sequences; i++) {
        if (sluice_seq_open(&seqs[i], engine) || sluice_seq_set_sampling(seqs[i], &best))
            return fail_engine(engine);
        exit = feed_many(x, engine, seqs[i], i, x->depth);
    }
    return exit ? exit
                : common_work_off(engine, "depth", (uint64_t)x->sequences * (uint64_t)x->depth);
}

/* The same step on both backends, op by op. */
static int compare(struct explain *x) {
    sluice_engine *engines[] = {x->engine, x->other};
    int exit = 0;
    for (int e = 0; !exit && e < 2; e++) {
        sluice_seq **seqs = calloc((size_t)x->sequences, sizeof *seqs);
        exit = seqs ? make_seqs(x, engines[e], seqs) : complain(EXIT_WORLD, "out of memory");
        for (int i = 0; !exit && i < x->sequences; i++)
            exit = feed_many(x, engines[e], seqs[i], 1 + i, rows_of(x, i));
        free(seqs);
    }
    return exit ? exit : compare_step(x->engine, x->other, x->common.as_json);
}

/* Whether rows are parts of prompts. */
static bool is_prompt(const struct explain *x) {
    return x->rows > x->sequences;
}

/* Every step of prompts has sequences of its own, so that all are equally deep; single rows only
 * make theirs a token longer. */
static int begin_step(struct explain *x, sluice_seq **seqs, sluice_seq **now) {
    int exit = 0;
    for (int i = 0; !exit && i < x->sequences; i++) {
        now[i] = seqs[i];
        if (is_prompt(x) && sluice_seq_fork(&now[i], seqs[i]))
            return fail_engine(x->engine);
        exit = feed_many(x, x->engine, now[i], i, rows_of(x, i));
    }
    return exit;
}

/* All repeats: times[op * repeats + repeat]. */
static int time_steps(struct explain *x, sluice_seq **seqs, double *times) {
    for (int r = -1; r < x->repeats; r++) { /* the first warms up */
        uint32_t rows;
        sluice_seq **now = seqs + x->sequences;
        int exit = begin_step(x, seqs, now);
        if (exit)
            return exit;
        if (batch_step(x->engine, &rows, x->seconds, &x->engine->err))
            return fail_engine(x->engine);
        for (int i = 0; is_prompt(x) && i < x->sequences; i++)
            sluice_seq_close(now[i]);
        for (uint32_t i = 0; r >= 0 && i < x->plan->n_ops; i++)
            times[i * (uint32_t)x->repeats + (uint32_t)r] = x->seconds[i];
    }
    return 0;
}

static int time_ops(struct explain *x) {
    size_t n = x->plan->n_ops, repeats = (size_t)x->repeats;
    sluice_seq **seqs = calloc(2 * (size_t)x->sequences, sizeof *seqs);
    double *times = calloc(n * repeats, sizeof *times);
    x->seconds = calloc(n, sizeof *x->seconds);
    int exit = 0;
    if (!seqs || !times || !x->seconds)
        exit = complain(EXIT_WORLD, "out of memory for times");
    if (!exit)
        exit = make_seqs(x, x->engine, seqs);
    if (!exit)
        exit = time_steps(x, seqs, times);
    for (size_t i = 0; !exit && i < n; i++) {
        qsort(times + i * repeats, repeats, sizeof *times, compare_doubles);
        x->seconds[i] = times[i * repeats + repeats / 2];
    }
    x->bandwidth = exit ? 0 : common_limit(x->engine, x->common.threads);
    free(times);
    free(seqs);
    return exit;
}

/* ---- output -----------------------------------------------------------------------------------
 */

static struct op_use use_of(const struct explain *x) {
    return (struct op_use){(uint32_t)x->rows, (uint32_t)x->sequences, (uint32_t)x->depth + 1};
}

static struct op_traffic traffic_of(const struct explain *x, uint32_t i) {
    return op_traffic(&x->plan->ops[i], use_of(x));
}

/* TFLOP/s of so many operations. */
static double speed_of(double flops, double seconds) {
    return seconds > 0 ? 1e-12 * flops / seconds : 0;
}

/* How near an op is to what its bytes of weights and state allow, in percent. */
static double percent_of_limit(const struct explain *x, const struct op_traffic *t,
                               double seconds) {
    if (seconds <= 0 || x->bandwidth <= 0)
        return 0;
    return 100 * (double)(t->weights + t->state) / 1e9 / x->bandwidth / seconds;
}

/* The columns of a timed op, or of all. */
static void print_times(const struct explain *x, const struct op_traffic *t, double flops,
                        double seconds) {
    printf(" %9.1f %5.0f %8.3g", 1e6 * seconds, percent_of_limit(x, t, seconds),
           speed_of(flops, seconds));
}

/* Kernel k of op i; false after the last, and on backends without kernels. */
static bool kernel_of(const struct explain *x, uint32_t i, uint32_t k, struct backend_kernel *out) {
    const struct sluice_engine *e = x->engine;
    return x->has_kernels && e->kind->op_kernel &&
           e->kind->op_kernel(e->backend, x->plan_number, i, k, out);
}

static json_t *kernels_json(const struct explain *x, uint32_t i) {
    struct backend_kernel kernel;
    json_t *all = json_array();
    for (uint32_t k = 0; kernel_of(x, i, k, &kernel); k++)
        json_array_append_new(all, json_pack("{s:s, s:[i,i,i], s:i, s:i, s:i}", "kernel",
                                             kernel.name, "grid", (int)kernel.grid[0],
                                             (int)kernel.grid[1], (int)kernel.grid[2], "threads",
                                             (int)kernel.threads, "shared", (int)kernel.shared,
                                             "registers", kernel.registers));
    return all;
}

static json_t *op_json(const struct explain *x, uint32_t i) {
    struct op *op = &x->plan->ops[i];
    struct op_traffic t = traffic_of(x, i);
    struct operand_ref refs[MAX_OPERANDS];
    uint32_t n = op_operands(op, refs);
    json_t *operands = json_array();
    for (uint32_t k = 0; k < n; k++)
        json_array_append_new(operands, operand_json(&refs[k]));
    json_t *row =
        json_pack("{s:s, s:i, s:s, s:I, s:I, s:I, s:o}", "op", op_name(op->kind), "layer",
                  (int)op->layer, "role", op->role, "read", (json_int_t)t.read, "written",
                  (json_int_t)t.written, "weights", (json_int_t)t.weights, "operands", operands);
    if (x->seconds) {
        json_object_set_new(row, "us", json_real(1e6 * x->seconds[i]));
        json_object_set_new(row, "percent_of_limit",
                            json_real(percent_of_limit(x, &t, x->seconds[i])));
        double tflops = speed_of(op_flops(op, use_of(x)), x->seconds[i]);
        json_object_set_new(row, "tflop_s", json_real(tflops));
    }
    if (x->has_kernels)
        json_object_set_new(row, "kernels", kernels_json(x, i));
    return row;
}

static void print_json(const struct explain *x) {
    json_t *ops = json_array();
    for (uint32_t i = 0; i < x->plan->n_ops; i++)
        json_array_append_new(ops, op_json(x, i));
    json_t *all = json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:o}", "rows", x->rows, "depth",
                            x->depth, "weights", (json_int_t)x->plan->bytes[REGION_WEIGHTS],
                            "state", (json_int_t)x->plan->bytes[REGION_STATE], "scratch",
                            (json_int_t)x->plan->bytes[REGION_SCRATCH], "io",
                            (json_int_t)x->plan->bytes[REGION_IO], "ops", ops);
    if (x->seconds)
        json_object_set_new(all, "bandwidth_gb_s", json_real(x->bandwidth));
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(all);
}

static void print_op(const struct explain *x, uint32_t i) {
    struct op *op = &x->plan->ops[i];
    struct op_traffic t = traffic_of(x, i);
    char layer[16] = "-", operand[128];
    if (op->layer >= 0)
        snprintf(layer, sizeof layer, "%d", op->layer);
    printf("%4u %-11s %5s %-9s %10s %10s", i, op_name(op->kind), layer, op->role,
           human_bytes(t.read), human_bytes(t.written));
    if (x->seconds)
        print_times(x, &t, op_flops(op, use_of(x)), x->seconds[i]);
    struct operand_ref refs[MAX_OPERANDS];
    uint32_t n = x->has_kernels ? 0 : op_operands(op, refs);
    for (uint32_t k = 0; k < n; k++) {
        operand_text(operand, sizeof operand, &refs[k]);
        printf("%s%s", k ? " " : "  ", operand);
    }
    struct backend_kernel kernel;
    for (uint32_t k = 0; kernel_of(x, i, k, &kernel); k++)
        printf("%s%s (%u, %u, %u) x %u, %u B shared, %d registers", k ? "; " : "  ", kernel.name,
               kernel.grid[0], kernel.grid[1], kernel.grid[2], kernel.threads, kernel.shared,
               kernel.registers);
    putchar('\n');
}

static void print_table(const struct explain *x) {
    struct op_traffic sum = {0};
    double seconds = 0, flops = 0;
    printf("%d row%s at depth %d; W weights, S state, X scratch, I io; -> is written\n\n", x->rows,
           x->rows == 1 ? "" : "s", x->depth);
    printf("%4s %-11s %5s %-9s %10s %10s%s  %s\n", "#", "op", "layer", "role", "read", "written",
           x->seconds ? "        us %limit  TFLOP/s" : "",
           x->has_kernels ? "kernels: (grid) x threads, shared memory, registers" : "operands");
    for (uint32_t i = 0; i < x->plan->n_ops; i++) {
        struct op_traffic t = traffic_of(x, i);
        print_op(x, i);
        sum.read += t.read;
        sum.written += t.written;
        sum.weights += t.weights;
        sum.state += t.state;
        flops += op_flops(&x->plan->ops[i], use_of(x));
        seconds += x->seconds ? x->seconds[i] : 0;
    }
    printf("%4s %-11s %5s %-9s %10s %10s", "", "all", "", "", human_bytes(sum.read),
           human_bytes(sum.written));
    if (x->seconds) {
        print_times(x, &sum, flops, seconds);
        printf("  of %.2f GB/s", x->bandwidth);
    }
    printf("\n\nweights %s, state %s, scratch %s, io %s bytes\n",
           human_count(x->plan->bytes[REGION_WEIGHTS]), human_count(x->plan->bytes[REGION_STATE]),
           human_count(x->plan->bytes[REGION_SCRATCH]), human_count(x->plan->bytes[REGION_IO]));
}

/* ---- a picture --------------------------------------------------------------------------------
 */

static int put_line(struct outfile *out, struct err *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int put_line(struct outfile *out, struct err *err, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    return outfile_write(out, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1, err);
}

/* A bar for each op, as long as it takes; the dark part is what its bytes would take. */
static int put_bars(const struct explain *x, struct outfile *out, struct err *err) {
    static const char *const colours[OP_KIND_COUNT] = {"#888",    "#4a90d9", "#e08a2e",
                                                       "#5aa469", "#b05ac0", "#9aa83a",
                                                       "#9aa83a", "#888",    "#c04a4a"};
    double longest = 0;
    for (uint32_t i = 0; i < x->plan->n_ops; i++)
        longest = x->seconds[i] > longest ? x->seconds[i] : longest;
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < x->plan->n_ops; i++) {
        const struct op *op = &x->plan->ops[i];
        struct op_traffic t = traffic_of(x, i);
        double percent = percent_of_limit(x, &t, x->seconds[i]);
        status = put_line(out, err,
                          "<div class=r><span>%u %s %s%s%.0d</span><i style='width:%.2f%%;"
                          "background:linear-gradient(90deg,%s %.0f%%,%s66 0)'></i>"
                          "<b>%.1f us, %s, %.0f %%</b></div>\n",
                          i, op_name(op->kind), op->role, op->layer > 0 ? " " : "",
                          op->layer > 0 ? op->layer : 0, 60 * x->seconds[i] / longest,
                          colours[op->kind], percent < 100 ? percent : 100, colours[op->kind],
                          1e6 * x->seconds[i], human_bytes(t.read + t.written), percent);
    }
    return status;
}

static int write_html(const struct explain *x) {
    struct err err = {0};
    struct outfile out = {.fd = -1};
    const char *path = output_path(x->html), *replaced = output_replaces_model(x->html);
    int status = outfile_open(&out, path, &err);
    if (!status)
        status = put_line(&out, &err,
                          "<!doctype html><meta charset=utf-8><title>one step</title><style>"
                          "body{font:12px monospace}.r{display:flex;gap:1em;align-items:center}"
                          ".r span{width:18em}.r i{height:11px}</style>"
                          "<h3>one step, %d rows at depth %d, limit %.2f GB/s</h3>\n",
                          x->rows, x->depth, x->bandwidth);
    if (!status)
        status = put_bars(x, &out, &err);
    if (!status)
        status = outfile_commit(&out, &err);
    outfile_abort(&out);
    if (!status && replaced[0])
        say(SAY_NORMAL, "%s: a picture%s", x->html, replaced);
    return status ? fail(&err) : 0;
}

/* ---- the verb ---------------------------------------------------------------------------------
 */

static int open_engine(struct explain *x) {
    struct sluice_engine_options o = common_engine(&x->common);
    struct err err = {0};
    o.sequences = o.batch = (uint32_t)x->sequences;
    if (x->common.context < 0)
        o.context = x->depth + (is_prompt(x) ? x->rows : x->repeats + 1);
    if (is_prompt(x)) { /* in one step, which snapshots would cut; and forks of all sequences */
        o.sequences *= 2;
        o.prefill = (uint32_t)x->rows;
        o.snapshot_bytes = 0;
    }
    if (x->compare) {
        o.prefill = (uint32_t)x->rows; /* both are to have the same plans */
        o.backend = "cpu";
        int exit = common_open_engine(x->model, &o, false, &x->engine);
        o.backend = x->compare;
        return exit ? exit : common_open_engine(x->model, &o, false, &x->other);
    }
    if (x->is_timed || x->has_kernels)
        return common_open_engine(x->model, &o, false, &x->engine);
    int status = engine_prepare(&x->engine, x->model, &o, false, &err); /* nothing is loaded */
    return status ? fail(&err) : 0;
}

static int explain(struct explain *x) {
    struct err err = {0};
    if (x->html && model_protect(x->model->model, output_path(x->html), &err))
        return fail(&err); /* before anything is timed */
    int exit = open_engine(x);
    if (exit)
        return exit;
    if (x->compare)
        return compare(x);
    if (x->has_kernels && !x->engine->kind->op_kernel)
        return complain(EXIT_WORLD, "explain: --kernels: the backend %s has none, expected cuda",
                        x->engine->kind->name);
    x->plan_number = engine_plan_for(x->engine, (uint32_t)x->rows, (uint32_t)x->sequences);
    x->plan = x->engine->plans[x->plan_number];
    if (x->is_timed)
        exit = time_ops(x);
    if (!exit && x->html)
        exit = write_html(x);
    if (!exit && !(x->html && output_is_stdout(x->html)))
        (x->common.as_json ? print_json : print_table)(x);
    return exit;
}

int cmd_explain(int argc, char **argv) {
    struct explain x = {.common = common_default(), .rows = 1, .repeats = 21};
    struct opt opts[MAX_COMMON_OPTS + 8] = {
        {"--rows", 0, OPT_INT, &x.rows, "N", "rows in the step; default: 1"},
        {"--sequences", 0, OPT_INT, &x.sequences, "N",
         "sequences they belong to; default: one per row, 1 above 128 rows"},
        {"--depth", 0, OPT_INT, &x.depth, "N", "positions already in the context; default: 0"},
        {"--time", 0, OPT_FLAG, &x.is_timed, NULL,
         "run it: microseconds per op, and percent of the memory bandwidth"},
        {"--kernels", 0, OPT_FLAG, &x.has_kernels, NULL,
         "each op's kernels: grid, threads, shared memory, registers"},
        {"--html", 0, OPT_STRING, &x.html, "FILE",
         "with --time: draw it as a web page; -: standard output"},
        {"--compare", 0, OPT_STRING, &x.compare, "NAME",
         "run it on the CPU and on this backend: how far each op's results differ"},
    };
    const struct usage usage = {
        .verb = "explain",
        .synopsis = "[MODEL] [--rows N] [--depth N] [--time [--html FILE]] [options]",
        .about = "Prints what one step does: each op with its operands and the bytes it reads and "
                 "writes.\nWithout --time nothing is loaded.",
        .example = "sluice explain --time --depth 512",
        .opts = opts,
        .n_opts = common_opts(opts, 7, &x.common, WITH_ENGINE | WITH_JSON),
        .model = &x.common.model,
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit == OPTS_GO_ON)
        exit = common_check(&x.common, "explain");
    if (exit != OPTS_GO_ON)
        return exit;
    if (!x.sequences)
        x.sequences = x.rows > MAX_SINGLE_ROWS ? 1 : x.rows;
    if ((exit = check_range("explain", "--rows", x.rows, 1, 4096)) != OPTS_GO_ON ||
        (exit = check_range("explain", "--sequences", x.sequences, 1, x.rows)) != OPTS_GO_ON ||
        (exit = check_range("explain", "--depth", x.depth, 0, MAX_TOKENS)) != OPTS_GO_ON)
        return exit;
    if (x.compare && !backend_find(x.compare)) {
        char names[64];
        return complain(EXIT_USAGE, "explain: --compare is '%s', expected %s", x.compare,
                        backend_names(names, sizeof names));
    }
    if (x.html && !x.is_timed)
        return complain(EXIT_USAGE, "explain: --html needs --time");
    exit = common_open_model(&x.common, &x.model);
    if (!exit)
        exit = explain(&x);
    free(x.seconds);
    sluice_engine_close(x.engine);
    sluice_engine_close(x.other);
    sluice_model_close(x.model);
    return exit;
}
