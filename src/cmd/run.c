/* run.c - the verb run: continue a text. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/outfile.h"
#include "cmd/cmd.h"
#include "cmd/figures.h"
#include "cmd/interrupt.h"
#include "cmd/logprobs.h"
#include "cmd/open.h"
#include "engine/engine.h"

static const char story[] = "Once upon a time";

struct run {
    struct common common;
    struct constraint constraint;
    const char *prompt, *file, *cache;
    int n, n_logprobs;
    bool special, keep_newline, is_story;
    sluice_model *model;
    sluice_engine *engine;
    sluice_seq *seq;
    sluice_text *text;
    struct filemap map;
    struct str prompt_text;
    int32_t *tokens; /* of the prompt */
    size_t n_prompt, n_cached;
    double prompt_seconds;
    uint64_t seed;
    struct generate out;
    struct text_buffer kept; /* with --json */
    struct logprobs logprobs;
};

/* ---- the prompt --------------------------------------------------------------------------- */

/* The newline that an editor or `echo` puts at the end is not part of the prompt. */
static struct str without_newline(struct str text) {
    if (text.len > 0 && text.at[text.len - 1] == '\n')
        text.len--;
    else
        return text;
    if (text.len > 0 && text.at[text.len - 1] == '\r')
        text.len--;
    return text;
}

/* Where the text comes from: -p, -f, or standard input. With no model and nothing to read the
 * shipped model begins a story of its own. */
static int read_prompt(struct run *r) {
    struct err err = {0};
    bool is_given = r->prompt || r->file;
    r->prompt_text = STR("");
    if (r->prompt) {
        r->prompt_text = str_of(r->prompt);
    } else if (r->file || !isatty(0)) {
        if (filemap_read(&r->map, r->file ? r->file : "-", &err))
            return fail(&err);
        r->prompt_text = (struct str){(const char *)r->map.data, r->map.size};
        if (!r->keep_newline)
            r->prompt_text = without_newline(r->prompt_text);
    }
    if (!is_given && !model_named(r->common.model) && r->prompt_text.len == 0) {
        r->is_story = true;
        r->prompt_text = str_of(story);
    } else if (!is_given && isatty(0)) {
        return complain(
            EXIT_USAGE,
            "run: no prompt; give one with -p, -f or standard input, or use `sluice chat`");
    }
    return 0;
}

static int encode_prompt(struct run *r) {
    unsigned flags = SLUICE_ENCODE_BOS | (r->special ? SLUICE_ENCODE_SPECIAL : 0);
    struct str text = r->prompt_text;
    size_t capacity = text.len + 16;
    int status = SLUICE_ERR_MEMORY;
    for (int i = 0; i < 2; i++, capacity = r->n_prompt) { /* then with the capacity it needs */
        free(r->tokens);
        r->tokens = malloc((capacity + 1) * sizeof *r->tokens);
        if (r->tokens)
            status = sluice_encode(r->model, text.at, text.len, flags, r->tokens, capacity,
                                   &r->n_prompt);
        if (status != SLUICE_ERR_ARGUMENT)
            break;
    }
    if (status == SLUICE_ERR_UNSUPPORTED)
        return complain(EXIT_WORLD, "%s", sluice_model_error(r->model));
    if (status)
        return complain(EXIT_WORLD, "the prompt: %s", sluice_status_text(status));
    struct sluice_facts facts;
    sluice_model_facts(r->model, &facts);
    if (r->n_prompt > 0 && r->tokens[r->n_prompt - 1] == facts.eos && text.len > 0 && !r->special)
        r->n_prompt--; /* no EOS: the text continues */
    if (r->n_prompt == 0)
        return complain(EXIT_WORLD, "the prompt is empty, expected at least one token");
    return 0;
}

/* ---- the prompt's cache -----------------------------------------------------------------------
 *
 * The file holds the sequence of all tokens but the last, which is always processed: the first new
 * token is picked after it, by this run's sampling. What the file has in common with the prompt is
 * kept; a file of another prompt is replaced. */

/* Opens r->seq, from the file if that helps. */
static int load_cache(struct run *r) {
    uint32_t waiting;
    if (access(r->cache, F_OK) != 0)
        return sluice_seq_open(&r->seq, r->engine);
    if (sluice_seq_load(&r->seq, r->engine, r->cache)) {
        warn("%s; the prompt is processed in full", sluice_engine_error(r->engine));
        return sluice_seq_open(&r->seq, r->engine);
    }
    uint32_t common = common_prefix(r->seq, r->tokens, r->n_prompt ? r->n_prompt - 1 : 0);
    int status = sluice_seq_rewind(r->seq, common);
    sluice_seq_tokens(r->seq, NULL, NULL, &waiting);
    r->n_cached = common - waiting;
    if (!status && r->n_cached == 0)
        warn("%s: was saved for another prompt; this one is processed in full", r->cache);
    return status;
}

/* Checks early: a file that can be neither read nor created is not used. */
static void check_cache(struct run *r) {
    struct err err = {0};
    struct stat st;
    if (!r->cache || (stat(r->cache, &st) == 0 && S_ISREG(st.st_mode)))
        return;
    if (access(r->cache, F_OK) == 0)
        err_set(&err, SLUICE_ERR_ARGUMENT, "%s: is not a regular file", r->cache);
    else if (!outfile_check(r->cache, &err))
        return;
    warn("%s; the prompt is not saved", err.text);
    r->cache = NULL;
}

static int save_cache(struct run *r, uint32_t n_before) {
    if (n_before == r->n_prompt - 1)
        return 0; /* it holds this already */
    if (sluice_seq_save(r->seq, r->cache))
        warn("%s", sluice_engine_error(r->engine));
    return 0;
}

/* ---- reading it --------------------------------------------------------------------------- */

static int open_seq(struct run *r) {
    struct sluice_sampling sampling = common_sampling(&r->common, r->model);
    unsigned wants = SLUICE_WANT_TOKEN | (r->n_logprobs >= 0 ? SLUICE_WANT_LOGITS : 0);
    struct sluice_choice choice;
    r->seed = sampling.seed;
    sluice_engine_choice(r->engine, &choice);
    if (r->n_prompt > choice.context)
        return complain(EXIT_WORLD,
                        "the prompt has %zu tokens, expected at most %u, the context "
                        "(-c)",
                        r->n_prompt, choice.context);
    int status = r->cache ? load_cache(r) : sluice_seq_open(&r->seq, r->engine);
    if (!status)
        status = sluice_seq_set_sampling(r->seq, &sampling);
    if (!status)
        status = sluice_seq_want(r->seq, wants);
    return status ? fail_engine(r->engine)
                  : constraint_begin(&r->constraint, r->seq, r->tokens, r->n_prompt, false);
}

/* Feeds the tokens up to n and works off what waits. */
static int feed_up_to(struct run *r, size_t n) {
    uint32_t fed, waiting;
    sluice_seq_tokens(r->seq, NULL, &fed, NULL);
    if (n > fed && sluice_seq_feed(r->seq, r->tokens + fed, n - fed))
        return fail_engine(r->engine);
    sluice_seq_tokens(r->seq, NULL, NULL, &waiting);
    return common_work_off(r->engine, "prompt", waiting);
}

/* Feeds the prompt with what --cache-dir has of it. */
static int resume_prompt(struct run *r) {
    struct sluice_reuse reuse;
    uint32_t last = (uint32_t)r->n_prompt - 1;
    if (sluice_seq_resume(r->seq, r->tokens, r->n_prompt, &reuse) ||
        sluice_seq_mark_turns(r->seq) || (last > reuse.tokens && sluice_seq_mark(r->seq, last)))
        return fail_engine(r->engine);
    r->n_cached = reuse.tokens;
    return 0;
}

static int feed_prompt(struct run *r) {
    double started = seconds_now();
    uint32_t before;
    int exit = 0;
    sluice_seq_tokens(r->seq, NULL, &before, NULL);
    if (r->cache && r->n_prompt > 1) {
        exit = feed_up_to(r, r->n_prompt - 1);
        if (!exit)
            exit = save_cache(r, before);
    } else {
        exit = resume_prompt(r);
    }
    if (!exit)
        exit = feed_up_to(r, r->n_prompt);
    r->prompt_seconds = seconds_now() - started;
    return exit;
}

/* ---- the text ----------------------------------------------------------------------------- */

static int show(void *user, const char *at, size_t length) {
    struct run *r = user;
    if (!r->common.as_json)
        return say_text(at, length);
    struct err err = {0};
    return text_buffer_add(&r->kept, at, length, &err) ? fail(&err) : 0;
}

static int see(void *user, int32_t token) {
    struct run *r = user;
    const float *logits;
    uint32_t rows = 0;
    struct err err = {0};
    struct sluice_facts facts;
    sluice_model_facts(r->model, &facts);
    if (sluice_seq_logits(r->seq, &logits, &rows) || rows == 0)
        return fail_engine(r->engine);
    logits += (size_t)(rows - 1) * (size_t)facts.n_logits;
    return logprobs_push(&r->logprobs, logits, facts.n_tokens, token, &err) ? fail(&err) : 0;
}

/* A terminal shows the whole text, a pipe only what is new, or all of the shipped model's story. */
static int echo_prompt(const struct run *r) {
    bool is_shown = r->n != 0 && !r->common.as_json && (r->is_story || isatty(1));
    return is_shown ? say_text(r->prompt_text.at, r->prompt_text.len) : 0;
}

static int continue_text(struct run *r) {
    r->out.max_tokens = r->n < 0 ? SIZE_MAX : (size_t)r->n;
    r->out.text = r->text;
    r->out.is_endless = r->common.ignore_eos;
    r->out.constraint = &r->constraint;
    r->out.show = show;
    r->out.see = r->n_logprobs >= 0 ? see : NULL;
    r->out.user = r;
    int exit = echo_prompt(r);
    if (!exit)
        exit = generate(&r->out);
    say_end_line();
    if (!exit && r->out.end == GENERATE_CONTEXT_FULL)
        say(SAY_NORMAL, "(the context is full; -c makes it larger)");
    if (!exit && r->out.end == GENERATE_LOOP)
        say(SAY_NORMAL, "(stopped: the same tokens over and over; --ignore-eos goes on)");
    return exit;
}

static void report(const struct run *r) {
    uint32_t fed, waiting;
    sluice_seq_tokens(r->seq, NULL, &fed, &waiting);
    /* An interrupted step may reset a recurrent state: tokens that were processed wait again. */
    size_t n_processed = r->out.n_new > 0 ? r->n_prompt : fed - waiting;
    const struct figures figures = {
        .engine = r->engine,
        .out = &r->out,
        .n_prompt = r->n_prompt,
        .n_cached = r->n_cached,
        .n_left = n_processed < r->n_prompt ? r->n_prompt - n_processed : 0,
        .prompt_seconds = r->prompt_seconds,
        .seed = r->seed,
    };
    if (r->n_logprobs >= 0 && !r->common.as_json)
        logprobs_say(&r->logprobs, r->model->tokenizer);
    figures_say(&figures);
    if (!r->common.as_json)
        return;
    json_t *object = figures_json(&figures, (struct str){r->kept.at, r->kept.len});
    if (r->n_logprobs >= 0)
        json_object_set_new(object, "logprobs", logprobs_json(&r->logprobs, r->model->tokenizer));
    print_json_line(object);
}

/* ---- the verb ----------------------------------------------------------------------------- */

static int run(struct run *r) {
    int exit = open_seq(r);
    if (exit)
        return exit;
    if (sluice_text_open(&r->text, r->model, r->common.stops.at, (size_t)r->common.stops.n))
        return complain(EXIT_WORLD, "%s", sluice_model_error(r->model));
    common_announce(&r->common, r->model, r->engine);
    r->out = (struct generate){.model = r->model, .engine = r->engine, .seq = r->seq};
    interrupt_install(r->engine);
    exit = feed_prompt(r);
    if (!exit)
        exit = continue_text(r);
    if (exit == EXIT_INTERRUPTED)
        r->out.end = GENERATE_INTERRUPTED;
    if (!exit && r->out.end == GENERATE_INTERRUPTED)
        exit = EXIT_INTERRUPTED;
    if (!exit || exit == EXIT_INTERRUPTED)
        report(r);
    return exit;
}

static int check(const struct run *r) {
    if (r->n < -1)
        return complain(EXIT_USAGE, "run: -n is %d, expected 0 or more", r->n);
    if (r->n_logprobs < -1 || r->n_logprobs > MAX_LOGPROBS)
        return complain(EXIT_USAGE, "run: --logprobs is %d, expected 0 to %d", r->n_logprobs,
                        MAX_LOGPROBS);
    if (r->prompt && r->file)
        return complain(EXIT_USAGE, "run: -p and -f are both given, expected one of them");
    if (r->cache && strcmp(r->cache, "-") == 0)
        return complain(EXIT_USAGE, "run: --prompt-cache is '-', expected a file: it is read, too");
    int exit = constraint_check(&r->constraint, "run", r->common.ignore_eos);
    return exit == OPTS_GO_ON ? common_check(&r->common, "run") : exit;
}

int cmd_run(int argc, char **argv) {
    struct run r = {.common = common_default(), .n = -1, .n_logprobs = -1, .map = {.fd = -1}};
    r.common.draft = USUAL_DRAFT;
    struct opt opts[MAX_COMMON_OPTS + N_CONSTRAINT_OPTS + 8] = {
        {"--prompt", 'p', OPT_STRING, &r.prompt, "TEXT", "the text to continue"},
        {"--file", 'f', OPT_STRING, &r.file, "FILE",
         "read the prompt from FILE; - (default): standard input"},
        {"--tokens", 'n', OPT_INT, &r.n, "N", "at most N tokens; default: until the text ends"},
        {"--special", 0, OPT_FLAG, &r.special, NULL,
         "parse control tokens, such as <|im_start|>, in the prompt"},
        {"--keep-newline", 0, OPT_FLAG, &r.keep_newline, NULL,
         "keep the last newline of a file or pipe"},
        {"--prompt-cache", 0, OPT_STRING, &r.cache, "FILE",
         "save the processed prompt to FILE, and reuse it"},
        {"--logprobs", 0, OPT_INT, &r.n_logprobs, "N",
         "log probability of each token, and of the N most likely"},
    };
    const struct usage usage = {
        .verb = "run",
        .synopsis = "[MODEL] [-p TEXT | -f FILE] [-n N] [options]",
        .about = "Continues a text. The continuation goes to standard output as it is generated, "
                 "the model and\nthe speed to standard error. Without a model and a prompt it "
                 "tells a story.",
        .example = "sluice run -p 'Once upon a time' -n 200 --seed 1",
        .opts = opts,
        .n_opts = common_opts(opts, constraint_opts(opts, 7, &r.constraint), &r.common,
                              WITH_ENGINE | WITH_CACHE | WITH_DRAFT | WITH_SAMPLING | WITH_STOP |
                                  WITH_JSON),
        .model = &r.common.model,
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit == OPTS_GO_ON)
        exit = check(&r);
    if (exit != OPTS_GO_ON)
        return exit;
    r.logprobs.n_top = r.n_logprobs > 0 ? (uint32_t)r.n_logprobs : 0;
    struct sluice_engine_options options = common_engine(&r.common);
    exit = common_open_model(&r.common, &r.model);
    if (!exit) {
        check_cache(&r);
        exit = read_prompt(&r);
    }
    if (!exit)
        exit = encode_prompt(&r);
    if (!exit)
        exit = constraint_open(&r.constraint, r.model);
    if (!exit)
        exit = common_open_engine(r.model, &options, false, &r.engine);
    if (!exit)
        exit = run(&r);
    interrupt_install(NULL);
    constraint_close(&r.constraint);
    free(r.tokens);
    text_buffer_free(&r.kept);
    logprobs_free(&r.logprobs);
    filemap_close(&r.map);
    sluice_text_close(r.text);
    sluice_engine_close(r.engine);
    sluice_model_close(r.model);
    return exit;
}
