/* ppl.c - the verb ppl: how well a model predicts a text.
 *
 * The whole text as tokens, without BOS, cut into windows; an incomplete one at the end is dropped.
 * Each window begins with an empty sequence, and its tokens from the second on are scored: nll is
 * the mean of -log p. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log_sum.h"
#include "cmd/cmd.h"
#include "cmd/open.h"
#include "engine/engine.h"

struct ppl {
    struct common common;
    const char *file;
    int window, max_windows;
    sluice_model *model;
    sluice_engine *engine;
    struct ids ids;
    double nll; /* sum */
    uint64_t scored;
};

static int score_window(void *user, const int32_t *tokens, uint32_t n) {
    struct ppl *p = user;
    sluice_seq *seq;
    struct sluice_facts facts;
    sluice_model_facts(p->model, &facts);
    if (sluice_seq_open(&seq, p->engine) || sluice_seq_want(seq, SLUICE_WANT_ALL_LOGITS) ||
        sluice_seq_feed(seq, tokens, n))
        return fail_engine(p->engine);
    for (uint32_t at = 0; at < n;) {
        const float *logits;
        uint32_t rows;
        if (sluice_engine_step(p->engine, NULL) || sluice_seq_logits(seq, &logits, &rows))
            return fail_engine(p->engine);
        for (uint32_t i = 0; i < rows; i++, at++, logits += facts.n_logits)
            if (at + 1 < n) {
                p->nll += log_sum_exp(logits, facts.n_logits) - logits[tokens[at + 1]];
                p->scored++;
            }
    }
    sluice_seq_close(seq);
    return 0;
}

static int score(struct ppl *p) {
    int exit = common_each_window(&p->ids, p->window, p->max_windows, "scoring", score_window, p);
    if (exit)
        return exit;
    double nll = p->nll / (double)p->scored;
    if (p->common.as_json)
        print_json_line(json_pack("{s:o, s:o, s:I}", "nll", json_number_or_null(nll), "ppl",
                                  json_number_or_null(exp(nll)), "scored", (json_int_t)p->scored));
    size_t n = common_count_windows(&p->ids, p->window, p->max_windows);
    if (!p->common.as_json && isfinite(nll))
        printf("nll %.6f  perplexity %.6f  scored %llu tokens in %zu window%s of %d\n", nll,
               exp(nll), (unsigned long long)p->scored, n, n == 1 ? "" : "s", p->window);
    if (!isfinite(nll))
        return complain(EXIT_WORLD, "%s: its logits are not finite: nll is %g",
                        p->model->model->path, nll);
    return 0;
}

int cmd_ppl(int argc, char **argv) {
    struct ppl p = {.common = common_default(), .window = WINDOW_NOT_GIVEN};
    int context = WINDOW_NOT_GIVEN;
    struct opt opts[MAX_COMMON_OPTS + 8] = {
        {"--file", 'f', OPT_STRING, &p.file, "TEXT", "text to score; -: standard input"},
        {"--window", 0, OPT_INT, &p.window, "N", "tokens per window; default: 512"},
        {"--windows", 0, OPT_INT, &p.max_windows, "N",
         "score the first N windows only; 0 (default): all"},
        {"--context", 'c', OPT_INT, &context, "N", "the same as --window"},
    };
    const struct usage usage = {
        .verb = "ppl",
        .synopsis = "[MODEL] -f TEXT [--window 512] [options]",
        .about =
            "Scores a text, cut into windows that each start from an empty context. All tokens of "
            "a "
            "window\nbut the first are scored. nll is the mean of -log p, perplexity is exp(nll).",
        .example = "sluice ppl -f stories.txt --exact --json",
        .opts = opts,
        .n_opts = common_opts(opts, 4, &p.common, WITH_CPU | WITH_DEVICE | WITH_JSON),
        .model = &p.common.model,
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit == OPTS_GO_ON)
        exit = common_check(&p.common, "ppl");
    if (exit != OPTS_GO_ON)
        return exit;
    if (!p.file)
        return complain(EXIT_USAGE, "ppl: -f TEXT is missing");
    exit = common_check_windows("ppl", &p.window, p.max_windows, context);
    if (exit != OPTS_GO_ON)
        return exit;
    exit = common_open_model(&p.common, &p.model);
    if (!exit)
        exit = common_encode_file(p.model, p.file, (size_t)p.window, &p.ids);
    if (!exit) {
        struct sluice_engine_options o = common_engine(&p.common);
        o.context = p.window;
        o.all_outputs = common_outputs(p.model, (uint32_t)p.window);
        exit = common_open_engine(p.model, &o, false, &p.engine);
    }
    if (!exit) {
        common_announce(&p.common, p.model, p.engine);
        exit = score(&p);
    }
    ids_free(&p.ids);
    sluice_engine_close(p.engine);
    sluice_model_close(p.model);
    return exit;
}
