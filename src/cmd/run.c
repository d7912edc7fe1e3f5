/* run.c - the verb run: continue a text. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/filemap.h"
#include "cmd/cmd.h"
#include "cmd/generate.h"
#include "cmd/interrupt.h"
#include "cmd/open.h"
#include "cmd/progress.h"

static const char story[] = "Once upon a time";

struct run {
    struct common common;
    const char *prompt, *file;
    int n;
    bool special, is_story;
    sluice_model *model;
    sluice_engine *engine;
    sluice_seq *seq;
    sluice_text *text;
    size_t n_prompt;
    double prompt_seconds;
    struct generate out;
};

/* ---- the prompt -------------------------------------------------------------------------------
 */

/* Where the text comes from: -p, -f, or standard input. With no model and nothing to read the
 * shipped model begins a story of its own. */
static int read_prompt(struct run *r, struct filemap *map, struct str *text) {
    struct err err = {0};
    *map = (struct filemap){.fd = -1};
    bool is_given = r->prompt || r->file;
    if (r->prompt) {
        *text = str_of(r->prompt);
    } else if (r->file || !isatty(0)) {
        if (filemap_read(map, r->file ? r->file : "-", &err))
            return fail(&err);
        *text = (struct str){(const char *)map->data, map->size};
    }
    if (!is_given && !r->common.model && text->len == 0) {
        r->is_story = true;
        *text = str_of(story);
    } else if (!is_given && isatty(0)) {
        return complain(EXIT_USAGE, "run: no prompt; give one with -p, -f or standard input");
    }
    return 0;
}

static int encode(const struct run *r, struct str text, int32_t **tokens, size_t *n) {
    unsigned flags = SLUICE_ENCODE_BOS | (r->special ? SLUICE_ENCODE_SPECIAL : 0);
    size_t capacity = text.len + 16;
    int status = SLUICE_ERR_MEMORY;
    for (int i = 0; i < 2; i++, capacity = *n) { /* the second time with the room it needs */
        *tokens = malloc((capacity + 1) * sizeof **tokens);
        if (*tokens)
            status = sluice_encode(r->model, text.at, text.len, flags, *tokens, capacity, n);
        if (status != SLUICE_ERR_ARGUMENT)
            break;
        free(*tokens);
    }
    if (status == SLUICE_ERR_UNSUPPORTED)
        return complain(EXIT_WORLD, "%s", sluice_model_error(r->model));
    if (status)
        return complain(EXIT_WORLD, "the prompt: %s", sluice_status_text(status));
    struct sluice_facts facts;
    sluice_model_facts(r->model, &facts);
    if (*n > 0 && (*tokens)[*n - 1] == facts.eos && text.len > 0 && !r->special)
        (*n)--; /* a text that goes on has no end */
    return 0;
}

static int feed_prompt(struct run *r) {
    struct filemap map;
    struct str text = {"", 0};
    int32_t *tokens = NULL;
    int exit = read_prompt(r, &map, &text);
    if (!exit)
        exit = encode(r, text, &tokens, &r->n_prompt);
    if (!exit && r->n_prompt == 0)
        exit = complain(EXIT_WORLD, "the prompt is empty, expected at least one token");
    if (!exit && sluice_seq_feed(r->seq, tokens, r->n_prompt))
        exit = fail_engine(r->engine);
    free(tokens);
    filemap_close(&map);
    return exit;
}

/* ---- the text ---------------------------------------------------------------------------------
 */

static int show(void *user, const char *at, size_t length) {
    (void)user;
    fwrite(at, 1, length, stdout);
    return fflush(stdout) ? complain(EXIT_WORLD, "cannot write to standard output") : 0;
}

static int continue_text(struct run *r) {
    r->out = (struct generate){
        .model = r->model,
        .engine = r->engine,
        .seq = r->seq,
        .text = r->text,
        .most = r->n < 0 ? SIZE_MAX : (size_t)r->n,
        .show = show,
    };
    int exit = generate(&r->out);
    if (r->out.n_new > 0)
        putchar('\n');
    fflush(stdout);
    if (!exit && r->out.end == GENERATE_CONTEXT_FULL)
        fprintf(stderr, "(the context is full)\n");
    if (!exit && r->out.end == GENERATE_LOOP)
        fprintf(stderr, "(stopped: the same tokens over and over; --ignore-eos goes on)\n");
    return exit;
}

static void print_figures(const struct run *r, uint64_t seed) {
    struct sluice_counters c;
    uint32_t depth;
    sluice_engine_counters(r->engine, &c);
    sluice_seq_tokens(r->seq, NULL, &depth, NULL);
    double steps = r->out.n_new > 1 ? (double)(r->out.n_new - 1) : 0;
    double rate = steps > 0 && r->out.seconds > 0 ? steps / r->out.seconds : 0;
    uint64_t bytes = common_step_bytes(r->engine, 1, depth);
    fprintf(stderr,
            "prompt %zu tokens, %.1f tok/s; %zu tokens, %.1f tok/s, %s a token, %.2f GB/s; "
            "%llu submissions, %llu waits; seed %llu\n",
            r->n_prompt, r->prompt_seconds > 0 ? (double)r->n_prompt / r->prompt_seconds : 0,
            r->out.n_new, rate, human_bytes(bytes), rate * (double)bytes / 1e9,
            (unsigned long long)c.submissions, (unsigned long long)c.waits,
            (unsigned long long)seed);
}

/* ---- the verb ---------------------------------------------------------------------------------
 */

static int run(struct run *r) {
    struct sluice_sampling sampling = common_sampling(&r->common, r->model);
    if (sluice_seq_open(&r->seq, r->engine) || sluice_seq_set_sampling(r->seq, &sampling))
        return fail_engine(r->engine);
    int exit = feed_prompt(r);
    if (exit)
        return exit;
    if (sluice_text_open(&r->text, r->model, r->common.stops.at, (size_t)r->common.stops.n))
        return complain(EXIT_WORLD, "%s", sluice_model_error(r->model));
    common_announce(&r->common, r->model, r->engine);
    interrupt_install(r->engine);
    double started = seconds_now();
    exit = common_work_off(r->engine, "prompt", r->n_prompt);
    r->prompt_seconds = seconds_now() - started;
    if (!exit && r->is_story && r->n != 0)
        fputs(story, stdout);
    if (!exit)
        exit = continue_text(r);
    if (!exit || exit == EXIT_INTERRUPTED)
        print_figures(r, sampling.seed);
    return !exit && r->out.end == GENERATE_INTERRUPTED ? EXIT_INTERRUPTED : exit;
}

int cmd_run(int argc, char **argv) {
    struct run r = {.common = common_default(), .n = -1};
    struct opt opts[MAX_COMMON_OPTS + 8] = {
        {"--prompt", 'p', OPT_STRING, &r.prompt, "TEXT", "the text to continue"},
        {"--file", 'f', OPT_STRING, &r.file, "FILE",
         "the same from a file; neither: standard input"},
        {"--tokens", 'n', OPT_INT, &r.n, "N", "tokens at most; none: until the text ends"},
        {"--special", 0, OPT_FLAG, &r.special, NULL,
         "control tokens in the prompt become their ids"},
    };
    const struct usage usage = {
        .verb = "run",
        .synopsis = "[-m MODEL] [-p TEXT | -f FILE] [-n N] [options]",
        .about = "Continues a text. What follows goes to standard output as it comes, which model "
                 "and how\nfast to standard error. With neither model nor prompt: a story.",
        .example = "sluice run -p 'Once upon a time' -n 200 --seed 1",
        .opts = opts,
        .n_opts = common_opts(opts, 4, &r.common, WITH_ENGINE | WITH_SAMPLING | WITH_STOP),
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit == OPTS_GO_ON)
        exit = common_check(&r.common, "run");
    if (exit != OPTS_GO_ON)
        return exit;
    if (r.n < -1)
        return complain(EXIT_USAGE, "run: -n is %d, expected 0 or more", r.n);
    if (r.prompt && r.file)
        return complain(EXIT_USAGE, "run: -p and -f are both given, expected one of them");
    struct sluice_engine_options options = common_engine(&r.common);
    exit = common_open(&r.common, &options, false, &r.model, &r.engine);
    if (!exit)
        exit = run(&r);
    interrupt_install(NULL);
    sluice_text_close(r.text);
    sluice_engine_close(r.engine);
    sluice_model_close(r.model);
    return exit;
}
