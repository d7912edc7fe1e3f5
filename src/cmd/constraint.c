/* constraint.c - --grammar and --json-schema: constrained output of run and chat. */
#include "cmd/constraint.h"

#include <stdlib.h>
#include <string.h>

#include "base/filemap.h"
#include "cmd/cmd.h"
#include "cmd/open.h"
#include "engine/engine.h"
#include "serve/ask.h"

int constraint_opts(struct opt *opts, int n, struct constraint *c) {
    opts[n++] = (struct opt){"--grammar", 0,           OPT_STRING,
                             &c->grammar, "FILE|TEXT", "the text follows this grammar (GBNF)"};
    opts[n++] =
        (struct opt){"--json-schema", 0,           OPT_STRING,
                     &c->schema,      "FILE|TEXT", "the text is JSON, valid for this schema"};
    return n;
}

int constraint_check(const struct constraint *c, const char *verb, bool ignores_ends) {
    if (c->grammar && c->schema)
        return complain(EXIT_USAGE,
                        "%s: --grammar and --json-schema are both given, expected one of them",
                        verb);
    if ((c->grammar || c->schema) && ignores_ends)
        return complain(EXIT_USAGE,
                        "%s: --ignore-eos and --%s are both given, expected one of them", verb,
                        c->grammar ? "grammar" : "json-schema");
    return OPTS_GO_ON;
}

/* ---- compiling ---------------------------------------------------------------------------- */

/* A schema begins with a brace, a grammar contains a rule; other values are files. */
static bool is_text(const struct constraint *c) {
    return c->schema ? c->schema[strspn(c->schema, " \t\r\n")] == '{'
                     : strstr(c->grammar, "::=") != NULL;
}

static int check_json(struct str text, struct err *err) {
    json_error_t where;
    json_t *root = json_loadb(text.at, text.len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &where);
    json_decref(root);
    return root ? SLUICE_OK
                : err_set(err, SLUICE_ERR_FORMAT, "not JSON: line %d: %s", where.line, where.text);
}

static int compile(struct constraint *c, struct str text, struct err *err) {
    int status = c->schema ? check_json(text, err) : SLUICE_OK;
    return status ? status
                  : formats_find(c->formats, c->schema ? FORMAT_SCHEMA : FORMAT_GBNF, text,
                                 &c->format, err);
}

static int read_and_compile(struct constraint *c, struct err *err) {
    const char *path = c->schema ? c->schema : c->grammar;
    struct filemap map = {.fd = -1};
    int status;
    if (is_text(c)) {
        status = compile(c, str_of(path), err);
        path = c->schema ? "--json-schema" : "--grammar";
    } else if ((status = filemap_read(&map, path, err))) { /* it names the file */
        return hint_if_missing(err, path,
                               c->schema ? "--json-schema takes a file or a schema in JSON"
                                         : "--grammar takes a file or a grammar in GBNF");
    } else {
        status = compile(c, (struct str){(const char *)map.data, map.size}, err);
    }
    filemap_close(&map);
    if (status)
        err_prefix(err, "%s", path);
    return status;
}

int constraint_open(struct constraint *c, const sluice_model *model) {
    struct err err = {0};
    struct ask_model m = {0};
    if (!c->grammar && !c->schema)
        return 0;
    ask_model_fill(&m, model);
    c->n_tokens = m.facts.n_tokens;
    c->think_open = m.think_open;
    c->think_close = m.think_close;
    c->formats = formats_open(model, FORMATS_BYTES);
    c->no_ends = follow_no_ends(model);
    if (!c->formats || !c->no_ends)
        return complain(EXIT_WORLD, "out of memory for a grammar");
    return read_and_compile(c, &err) ? fail(&err) : 0;
}

void constraint_close(struct constraint *c) {
    follow_close(&c->follow);
    format_release(c->format);
    formats_close(c->formats);
    free(c->no_ends);
    *c = (struct constraint){0};
}

/* ---- a text ------------------------------------------------------------------------------- */

static int set_mask(struct constraint *c, sluice_seq *seq) {
    struct err err = {0};
    const uint32_t *mask = follow_mask(&c->follow);
    if (follow_fault(&c->follow, &err))
        return fail(&err);
    int status = sluice_seq_set_mask(seq, mask);
    const uint32_t *keeps = mask && !status ? follow_keeps(&c->follow) : NULL;
    if (keeps)
        status = sluice_seq_keep_mask(seq, keeps);
    return status ? fail_engine(seq->engine) : 0;
}

int constraint_begin(struct constraint *c, sluice_seq *seq, const int32_t *prompt, size_t n,
                     bool may_think) {
    struct err err = {0};
    if (!c->format)
        return 0;
    follow_close(&c->follow);
    if (follow_open(&c->follow, c->format, c->n_tokens, NULL, &err))
        return fail(&err);
    c->follow.no_ends = c->no_ends;
    if (may_think) {
        c->follow.open = c->think_open;
        c->follow.close = c->think_close;
        follow_look(&c->follow, prompt, n);
    }
    return set_mask(c, seq);
}

int constraint_take(struct constraint *c, sluice_seq *seq, int32_t token, bool *is_last) {
    *is_last = c->format && follow_token(&c->follow, token) == FOLLOW_LAST;
    return c->format && !*is_last ? set_mask(c, seq) : 0;
}
