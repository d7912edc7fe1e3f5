/* explain.c - the verb explain: the plan of a step, op by op.
 *
 * The facts of each op are those of step_facts.h; the table, --json and --html print the same ones.
 */
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
#include "cmd/step_facts.h"

enum { MAX_SINGLE_ROWS = 128 }; /* that are a sequence each unless --sequences says so */

struct explain {
    struct common common;
    bool is_timed;
    const char *html;
    const char *compare; /* another backend */
    sluice_model *model;
    sluice_engine *engine, *other;
    struct step_facts facts; /* its sequences are 0 where they were not given */
};

/* ---- operands ----------------------------------------------------------------------------- */

static const char *const region_letters = "WSXI"; /* weights, state, scratch, io */

static void operand_text(char *out, size_t size, const struct operand_ref *ref) {
    const struct operand *o = ref->at;
    size_t n = (size_t)snprintf(out, size, "%s%s=%c:%s(", ref->is_written ? "->" : "", ref->name,
                                region_letters[o->region], dtype_name(o->type));
    for (int i = o->n_dims; i-- > 0 && n < size;)
        n += (size_t)snprintf(out + n, size - n, "%u%s", o->dims[i], i ? "," : ")");
}

/* ---- two backends ------------------------------------------------------------------------- */

/* The same step on both backends, op by op. */
static int compare(struct explain *x) {
    sluice_engine *engines[] = {x->engine, x->other};
    int exit = 0;
    for (int e = 0; !exit && e < 2; e++) {
        sluice_seq **seqs = calloc((size_t)x->facts.sequences, sizeof *seqs);
        exit = seqs ? step_facts_open(&x->facts, engines[e], seqs)
                    : complain(EXIT_WORLD, "out of memory");
        for (int i = 0; !exit && i < x->facts.sequences; i++)
            exit = step_facts_feed(engines[e], seqs[i], 1 + i, step_facts_rows_of(&x->facts, i));
        free(seqs);
    }
    return exit ? exit : compare_step(x->engine, x->other, x->common.as_json);
}

/* ---- output ------------------------------------------------------------------------------- */

/* The columns of a timed op, or of all. */
static void print_times(const struct explain *x, const struct op_traffic *t, double flops,
                        double seconds) {
    printf(" %9.1f %5.0f %8.3g", 1e6 * seconds, step_facts_percent(&x->facts, t, seconds),
           step_facts_speed(flops, seconds));
    if (x->facts.peak > 0)
        printf(" %5.1f", step_facts_peak_percent(&x->facts, flops, seconds));
}

static void print_json(const struct explain *x) {
    json_t *all = step_facts_json(&x->facts, true);
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(all);
}

static void print_op(const struct explain *x, uint32_t i) {
    struct op *op = &x->facts.plan->ops[i];
    struct op_traffic t = step_facts_traffic(&x->facts, i);
    char layer[16] = "-", operand[128];
    if (op->layer >= 0)
        snprintf(layer, sizeof layer, "%d", op->layer);
    printf("%4u %-11s %5s %-9s %10s %10s", i, op_name(op->kind), layer, op->role,
           human_bytes(t.read), human_bytes(t.written));
    if (x->facts.seconds)
        print_times(x, &t, op_flops(op, step_facts_use(&x->facts)), x->facts.seconds[i]);
    struct operand_ref refs[MAX_OPERANDS];
    uint32_t n = x->facts.has_kernels ? 0 : op_operands(op, refs);
    for (uint32_t k = 0; k < n; k++) {
        operand_text(operand, sizeof operand, &refs[k]);
        printf("%s%s", k ? " " : "  ", operand);
    }
    struct backend_kernel kernel;
    for (uint32_t k = 0; step_facts_kernel(&x->facts, i, k, &kernel); k++) {
        printf("%s%s (%u, %u, %u) x %u, %u B shared", k ? "; " : "  ", kernel.name, kernel.grid[0],
               kernel.grid[1], kernel.grid[2], kernel.threads, kernel.shared);
        if (kernel.registers) /* 0: not known */
            printf(", %d registers", kernel.registers);
        if (kernel.code)
            printf(", %u B code", kernel.code);
    }
    putchar('\n');
}

static void print_table(const struct explain *x) {
    struct op_traffic sum = {0};
    double seconds = 0, flops = 0;
    printf("%d row%s at depth %d; W weights, S state, X scratch, I io; -> is written\n\n",
           x->facts.rows, x->facts.rows == 1 ? "" : "s", x->facts.depth);
    printf("%4s %-11s %5s %-9s %10s %10s%s  %s\n", "#", "op", "layer", "role", "read", "written",
           !x->facts.seconds   ? ""
           : x->facts.peak > 0 ? "        us %limit  TFLOP/s %peak"
                               : "        us %limit  TFLOP/s",
           x->facts.has_kernels ? "kernels: (grid) x threads, shared memory, registers"
                                : "operands");
    for (uint32_t i = 0; i < x->facts.plan->n_ops; i++) {
        struct op_traffic t = step_facts_traffic(&x->facts, i);
        print_op(x, i);
        sum.read += t.read;
        sum.written += t.written;
        sum.weights += t.weights;
        sum.state += t.state;
        flops += op_flops(&x->facts.plan->ops[i], step_facts_use(&x->facts));
        seconds += x->facts.seconds ? x->facts.seconds[i] : 0;
    }
    printf("%4s %-11s %5s %-9s %10s %10s", "", "all", "", "", human_bytes(sum.read),
           human_bytes(sum.written));
    if (x->facts.seconds) {
        print_times(x, &sum, flops, seconds);
        printf("  of %.2f GB/s", x->facts.bandwidth);
        if (x->facts.peak > 0)
            printf(" and %.0f TFLOP/s (fp16 tensor cores)", x->facts.peak);
    }
    printf("\n\nweights %s, state %s, scratch %s, io %s bytes\n",
           human_count(x->facts.plan->bytes[REGION_WEIGHTS]),
           human_count(x->facts.plan->bytes[REGION_STATE]),
           human_count(x->facts.plan->bytes[REGION_SCRATCH]),
           human_count(x->facts.plan->bytes[REGION_IO]));
}

/* ---- a picture ---------------------------------------------------------------------------- */

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

/* A bar for each op, as long as its time; the dark part is the time its bytes would take at full
 * bandwidth. */
static int put_bars(const struct explain *x, struct outfile *out, struct err *err) {
    static const char *const colours[OP_KIND_COUNT] = {
        [OP_EMBED] = "#888",          [OP_PROJECT] = "#4a90d9", [OP_DELTA] = "#e08a2e",
        [OP_ATTEND] = "#5aa469",      [OP_ROUTE] = "#b05ac0",   [OP_EXPERTS_IN] = "#9aa83a",
        [OP_EXPERTS_OUT] = "#9aa83a", [OP_TAP] = "#888",        [OP_PICK] = "#c04a4a",
        [OP_JOIN] = "#888",           [OP_HIDDEN] = "#888",
    };
    double longest = 0;
    for (uint32_t i = 0; i < x->facts.plan->n_ops; i++)
        longest = x->facts.seconds[i] > longest ? x->facts.seconds[i] : longest;
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < x->facts.plan->n_ops; i++) {
        const struct op *op = &x->facts.plan->ops[i];
        struct op_traffic t = step_facts_traffic(&x->facts, i);
        double percent = step_facts_percent(&x->facts, &t, x->facts.seconds[i]);
        char layer[16] = "";
        if (op->layer >= 0)
            snprintf(layer, sizeof layer, " %d", op->layer);
        status = put_line(out, err,
                          "<div class=r><span>%u %s %s%s</span><i style='width:%.2f%%;"
                          "background:linear-gradient(90deg,%s %.0f%%,%s66 0)'></i>"
                          "<b>%.1f us, %s, %.0f %%</b></div>\n",
                          i, op_name(op->kind), op->role, layer, 60 * x->facts.seconds[i] / longest,
                          colours[op->kind], percent < 100 ? percent : 100, colours[op->kind],
                          1e6 * x->facts.seconds[i], human_bytes(t.read + t.written), percent);
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
                          x->facts.rows, x->facts.depth, x->facts.bandwidth);
    if (!status)
        status = put_bars(x, &out, &err);
    if (!status)
        status = outfile_commit(&out, &err);
    outfile_abort(&out);
    if (!status && replaced[0])
        say(SAY_NORMAL, "%s: the drawing%s", x->html, replaced);
    return status ? fail(&err) : 0;
}

/* ---- the verb ----------------------------------------------------------------------------- */

static int open_engine(struct explain *x) {
    struct sluice_engine_options o = common_engine(&x->common);
    struct err err = {0};
    o.sequences = o.batch = (uint32_t)x->facts.sequences;
    if (x->common.context < 0)
        o.context = x->facts.depth +
                    (step_facts_is_prompt(&x->facts) ? x->facts.rows : x->facts.repeats + 1);
    if (step_facts_is_prompt(&x->facts)) { /* snapshots would split the step; all sequences fork */
        o.sequences *= 2;
        o.prefill = (uint32_t)x->facts.rows;
        o.snapshot_bytes = 0;
    }
    if (x->compare) {
        o.prefill = (uint32_t)x->facts.rows; /* both must have the same plans */
        o.backend = "cpu";
        int exit = common_open_engine(x->model, &o, false, &x->engine);
        o.backend = x->compare;
        return exit ? exit : common_open_engine(x->model, &o, false, &x->other);
    }
    if (x->is_timed || x->facts.has_kernels)
        return common_open_engine(x->model, &o, false, &x->engine);
    int status = engine_prepare(&x->engine, x->model, &o, false, &err); /* nothing is loaded */
    return status ? fail(&err) : 0;
}

static int explain(struct explain *x) {
    struct err err = {0};
    if (x->html && (model_protect(x->model->model, output_path(x->html), &err) ||
                    outfile_check(output_path(x->html), &err)))
        return fail(&err); /* before anything is timed */
    int exit = open_engine(x);
    if (exit)
        return exit;
    if (x->compare)
        return compare(x);
    if (x->facts.has_kernels && !x->engine->kind->op_kernel)
        return complain(EXIT_WORLD, "explain: --kernels needs a GPU backend, found %s",
                        x->engine->kind->name);
    x->facts.engine = x->engine;
    step_facts_find(&x->facts);
    if (x->is_timed && !(exit = step_facts_time(&x->facts))) {
        x->facts.bandwidth = common_limit(x->engine, x->common.threads);
        x->facts.peak = common_peak(x->engine);
    }
    if (!exit && x->html)
        exit = write_html(x);
    if (!exit && !(x->html && output_is_stdout(x->html)))
        (x->common.as_json ? print_json : print_table)(x);
    return exit;
}

int cmd_explain(int argc, char **argv) {
    struct explain x = {.common = common_default(), .facts = {.rows = 1, .repeats = 21}};
    struct opt opts[MAX_COMMON_OPTS + 8] = {
        {"--rows", 0, OPT_INT, &x.facts.rows, "N", "rows in the step; default: 1"},
        {"--sequences", 0, OPT_INT, &x.facts.sequences, "N",
         "sequences they belong to; default: one per row, 1 above 128 rows"},
        {"--depth", 0, OPT_INT, &x.facts.depth, "N",
         "positions already in the context; default: 0"},
        {"--time", 0, OPT_FLAG, &x.is_timed, NULL,
         "run it: microseconds per op, percent of the memory bandwidth and of the tensor cores"},
        {"--kernels", 0, OPT_FLAG, &x.facts.has_kernels, NULL,
         "each op's kernels: grid, threads, shared memory, registers"},
        {"--html", 0, OPT_STRING, &x.html, "FILE",
         "with --time: also draw it, as a web page; -: standard output"},
        {"--compare", 0, OPT_STRING, &x.compare, "NAME",
         "run it on the CPU and on this backend, and compare the results of each op"},
    };
    const struct usage usage = {
        .verb = "explain",
        .synopsis = "[MODEL] [--rows N] [--depth N] [--time [--html FILE]] [options]",
        .about = "Prints what one step does: each op with its operands and the bytes it reads and "
                 "writes.\nWithout --time nothing is loaded.",
        .example = "sluice explain --time --depth 512",
        .opts = opts,
        .n_opts = common_opts(opts, 7, &x.common, WITH_ENGINE | WITH_JSON | WITH_DRAFT),
        .model = &x.common.model,
    };
    x.common.mtp = 0;
    int exit = opts_parse(&usage, argc, argv, NULL);
    x.common.draft = x.common.draft > x.common.mtp ? x.common.draft : x.common.mtp;
    if (exit == OPTS_GO_ON)
        exit = common_check(&x.common, "explain");
    if (exit != OPTS_GO_ON)
        return exit;
    if (!x.facts.sequences)
        x.facts.sequences = x.facts.rows > MAX_SINGLE_ROWS ? 1 : x.facts.rows;
    if ((exit = check_range("explain", "--rows", x.facts.rows, 1, 4096)) != OPTS_GO_ON ||
        (exit = check_range("explain", "--sequences", x.facts.sequences, 1, x.facts.rows)) !=
            OPTS_GO_ON ||
        (exit = check_range("explain", "--depth", x.facts.depth, 0, MAX_TOKENS)) != OPTS_GO_ON)
        return exit;
    if (x.compare && !backend_find(x.compare)) {
        char names[128];
        return complain(EXIT_USAGE, "explain: --compare is '%s', expected %s", x.compare,
                        backend_names(x.compare, names, sizeof names));
    }
    if (x.html && !x.is_timed)
        return complain(EXIT_USAGE, "explain: --html needs --time");
    exit = common_open_model(&x.common, &x.model);
    if (!exit)
        exit = explain(&x);
    step_facts_free(&x.facts);
    sluice_engine_close(x.engine);
    sluice_engine_close(x.other);
    sluice_model_close(x.model);
    return exit;
}
