/* logits.c - the verb logits: a model's raw numbers, for comparing.
 *
 * In: prompts as token ids, one per line, fed as they are, each from an empty sequence. Out: f32
 * logits of every position of every prompt, row by row, all rows of the vocabulary. With --layers a
 * second file: the residual after the embedding, after each layer and after the final norm, at each
 * prompt's last position. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/filemap.h"
#include "base/outfile.h"
#include "cmd/cmd.h"
#include "cmd/open.h"
#include "cmd/output.h"
#include "engine/engine.h"

struct logits {
    struct common common;
    const char *tokens, *out;
    int greedy;
    bool layers;
    sluice_model *model;
    sluice_engine *engine;
    struct filemap prompts;
    struct outfile rows, taps;
    struct err err;
};

/* ---- prompts ------------------------------------------------------------------------------ */

/* The ids of one line. */
static int parse_line(struct str line, struct ids *ids, struct err *err) {
    while (line.len > 0) {
        size_t n = 0;
        while (n < line.len && line.at[n] != ' ' && line.at[n] != '\t' && line.at[n] != '\r')
            n++;
        if (n > 0) {
            char word[16] = "";
            memcpy(word, line.at, n < sizeof word ? n : sizeof word - 1);
            char *end;
            errno = 0;
            long id = strtol(word, &end, 10);
            if (*end || errno || id < 0 || id > INT32_MAX || n >= sizeof word)
                return err_set(err, SLUICE_ERR_ARGUMENT, "found '%s', expected a token id", word);
            int status = ids_push(ids, (int32_t)id, err);
            if (status)
                return status;
        }
        line = str_skip(line, n < line.len ? n + 1 : n);
    }
    return SLUICE_OK;
}

/* The next line, without its end; false after the last. */
static bool next_line(struct str *text, struct str *line) {
    if (text->len == 0)
        return false;
    const char *end = memchr(text->at, '\n', text->len);
    line->at = text->at;
    line->len = end ? (size_t)(end - text->at) : text->len;
    *text = str_skip(*text, end ? line->len + 1 : line->len);
    return true;
}

/* ---- one prompt --------------------------------------------------------------------------- */

static int write_layers(struct logits *l, const sluice_seq *seq) {
    const struct config *c = &l->model->model->config;
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < c->n_layers + 2; i++)
        status = outfile_write(&l->taps, batch_tap(l->engine, seq, i), c->hidden * sizeof(float),
                               &l->err);
    return status;
}

static int write_rows(struct logits *l, sluice_seq *seq) {
    const float *at;
    uint32_t rows = 0;
    sluice_seq_logits(seq, &at, &rows);
    size_t row_bytes = l->model->model->config.n_vocab * sizeof(float);
    return l->out ? outfile_write(&l->rows, at, rows * row_bytes, &l->err) : SLUICE_OK;
}

static int continue_greedily(struct logits *l, sluice_seq *seq) {
    for (int i = 0; i < l->greedy; i++) {
        int32_t token = sluice_seq_token(seq);
        printf("%s%d", i ? " " : "", token);
        sluice_seq_want(seq, SLUICE_WANT_TOKEN);
        if (i + 1 < l->greedy &&
            (sluice_seq_feed(seq, &token, 1) || sluice_engine_step(l->engine, NULL)))
            return l->engine->err.code;
    }
    if (l->greedy)
        putchar('\n');
    return SLUICE_OK;
}

static int run_prompt(struct logits *l, const struct ids *ids) {
    struct err *err = &l->err;
    sluice_seq *seq;
    struct sluice_sampling best = {.temperature = 0, .top_p = 1, .repeat_penalty = 1};
    int status = sluice_seq_open(&seq, l->engine);
    if (status) {
        *err = l->engine->err;
        return status;
    }
    seq->n_pick = l->model->model->config.n_vocab; /* all rows, padding too */
    sluice_seq_set_sampling(seq, &best);
    sluice_seq_want(seq, SLUICE_WANT_ALL_LOGITS | (l->greedy ? SLUICE_WANT_TOKEN : 0));
    status = sluice_seq_feed(seq, ids->at, ids->len);
    for (uint32_t waiting = (uint32_t)ids->len; !status && waiting > 0;) {
        status = sluice_engine_step(l->engine, NULL);
        sluice_seq_tokens(seq, NULL, NULL, &waiting);
        if (!status && (status = write_rows(l, seq)))
            return status;
    }
    if (!status && l->layers && (status = write_layers(l, seq)))
        return status;
    if (!status)
        status = continue_greedily(l, seq);
    if (status)
        *err = l->engine->err;
    sluice_seq_close(seq);
    return status;
}

/* ---- the verb ----------------------------------------------------------------------------- */

static int run_prompts(struct logits *l, struct str text) {
    struct str line;
    struct ids ids = {0};
    bool is_any = false;
    int status = SLUICE_OK;
    for (int n = 1; !status && next_line(&text, &line); n++) {
        ids.len = 0;
        status = parse_line(line, &ids, &l->err);
        if (!status && ids.len > 0)
            status = run_prompt(l, &ids);
        is_any |= ids.len > 0;
        if (status)
            err_prefix(&l->err, "%s, line %d", l->tokens, n);
    }
    ids_free(&ids);
    if (!status && !is_any)
        return err_set(&l->err, SLUICE_ERR_ARGUMENT, "%s: no prompt, expected some", l->tokens);
    return status;
}

/* Opens an output, which must not be one of the input files. */
static int open_output(struct logits *l, struct outfile *out, const char *path) {
    int status = model_protect(l->model->model, path, &l->err);
    if (!status)
        status = filemap_protect(&l->prompts, 1, path, &l->err);
    return status ? status : outfile_open(out, path, &l->err);
}

static int open_outputs(struct logits *l, char *layers_path, size_t size) {
    int status = SLUICE_OK;
    if (l->out)
        status = open_output(l, &l->rows, output_path(l->out));
    if (status || !l->layers)
        return status;
    if ((size_t)snprintf(layers_path, size, "%s.layers", l->out) >= size)
        return err_set(&l->err, SLUICE_ERR_ARGUMENT, "%s: the path is too long", l->out);
    return open_output(l, &l->taps, layers_path);
}

/* The longest line decides how much context is needed. */
static uint32_t longest_prompt(struct str text) {
    struct str line;
    uint32_t longest = 1;
    while (next_line(&text, &line)) {
        uint32_t n = 1;
        for (size_t i = 0; i < line.len; i++)
            n += line.at[i] == ' ' || line.at[i] == '\t';
        longest = n > longest ? n : longest;
    }
    return longest;
}

static int open_and_run(struct logits *l, struct str text) {
    char layers_path[4096];
    struct sluice_engine_options o = common_engine(&l->common);
    uint32_t longest = longest_prompt(text);
    if (l->common.context < 0)
        o.context = (int64_t)longest + l->greedy;
    o.all_outputs = common_outputs(l->model, longest);
    const char *replaced = l->out ? output_replaces_model(l->out) : "";
    int status = open_outputs(l, layers_path, sizeof layers_path);
    int exit = status ? fail(&l->err) : common_open_engine(l->model, &o, l->layers, &l->engine);
    if (exit)
        return exit;
    status = run_prompts(l, text);
    if (!status && l->out)
        status = outfile_commit(&l->rows, &l->err);
    if (!status && l->layers)
        status = outfile_commit(&l->taps, &l->err);
    if (!status && replaced[0])
        say(SAY_NORMAL, "%s: logits%s", l->out, replaced);
    return status ? fail(&l->err) : 0;
}

int cmd_logits(int argc, char **argv) {
    struct logits l = {.common = common_default(), .rows = {.fd = -1}, .taps = {.fd = -1}};
    struct filemap *prompts = &l.prompts;
    struct opt opts[MAX_COMMON_OPTS + 8] = {
        {"--tokens", 0, OPT_STRING, &l.tokens, "FILE",
         "token ids separated by spaces, one prompt per line"},
        {"--output", 'o', OPT_STRING, &l.out, "OUT",
         "f32 logits of each position, row by row; -: standard output"},
        {"--layers", 0, OPT_FLAG, &l.layers, NULL,
         "also write OUT.layers: the residual stream after each layer"},
        {"--greedy", 0, OPT_INT, &l.greedy, "N", "print the N ids that follow each prompt"},
    };
    const struct usage usage = {
        .verb = "logits",
        .synopsis = "[MODEL] --tokens FILE [-o OUT [--layers]] [--greedy N] [options]",
        .about =
            "Writes a model's raw logits for prompts given as token ids. Nothing is added to the "
            "ids, each\nprompt starts from an empty context, and end tokens don't end anything.",
        .example = "sluice logits --tokens ids.txt -o logits.bin --exact",
        .opts = opts,
        .n_opts = common_opts(opts, 4, &l.common, WITH_ENGINE),
        .model = &l.common.model,
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit == OPTS_GO_ON)
        exit = common_check(&l.common, "logits");
    if (exit != OPTS_GO_ON)
        return exit;
    if (!l.tokens || (!l.out && !l.greedy))
        return complain(EXIT_USAGE, "logits: %s is missing", l.tokens ? "-o OUT" : "--tokens FILE");
    if (l.layers && !l.out)
        return complain(EXIT_USAGE, "logits: --layers needs -o OUT");
    if ((exit = check_range("logits", "--greedy", l.greedy, 0, MAX_TOKENS)) != OPTS_GO_ON)
        return exit;
    if (l.out && output_is_stdout(l.out) && (l.layers || l.greedy))
        return complain(EXIT_USAGE, "logits: %s needs -o FILE, found -o %s",
                        l.layers ? "--layers" : "--greedy", l.out);
    if (l.out && (exit = output_check_binary("logits", l.out)) != OPTS_GO_ON)
        return exit;
    if (filemap_read(prompts, l.tokens, &l.err))
        return fail(&l.err);
    exit = common_open_model(&l.common, &l.model);
    if (!exit)
        exit = open_and_run(&l, (struct str){(const char *)prompts->data, prompts->size});
    outfile_abort(&l.rows);
    outfile_abort(&l.taps);
    filemap_close(prompts);
    sluice_engine_close(l.engine);
    sluice_model_close(l.model);
    return exit;
}
