/* tokenizer_json.c - a tokenizer from a folder's tokenizer.json and the files beside it.
 *
 * tokenizer.json says how text is cut and merged. tokenizer_config.json names BOS and EOS,
 * generation_config.json the ids that end a generation, config.json how many ids there are.
 * Anything unknown that tokenizer.json requires is refused: ignoring a step would give other tokens
 * than the model was trained with. */
#include <stdlib.h>

#include "file/folder.h"
#include "text/tokenizer_make.h"

struct loading {
    const struct folder *folder;
    const json_t *root, *model, *vocab, *added; /* parts of tokenizer.json */
    struct tokenizer *t;
    struct merge_text *merges;
    size_t n_merges;
};

/* ---- small steps ---- */

static const char *type_name(const json_t *value) {
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return value ? names[json_typeof(value)] : "missing";
}

static int wrong(const char *what, const json_t *found, const char *expected, struct err *err) {
    return err_set(err, SLUICE_ERR_FORMAT, "%s is %s, expected %s", what, type_name(found),
                   expected);
}

/* The "type" of a step, "?" where it has none. */
static struct str step_type(const json_t *step) {
    struct str type;
    return json_str(json_object_get(step, "type"), &type) ? type : STR("?");
}

static int unknown_step(const char *what, struct str type, struct err *err) {
    return err_set(err, SLUICE_ERR_UNSUPPORTED, "the %s %.*s is not known", what, STR_ARG(type));
}

static bool is_set(const json_t *value) { /* present, and not null, false, "" or 0 */
    return value && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_string(value) && json_string_length(value) == 0) &&
           !(json_is_number(value) && json_number_value(value) == 0);
}

/* ---- steps before the model ---- */

static int read_normalizer(struct loading *l, struct err *err) {
    const json_t *step = json_object_get(l->root, "normalizer");
    if (!is_set(step))
        return SLUICE_OK;
    if (!json_is_object(step))
        return wrong("normalizer", step, "an object or null", err);
    const json_t *steps = json_object_get(step, "normalizers");
    if (str_is(step_type(step), "Sequence") && json_array_size(steps) == 0)
        return SLUICE_OK;
    if (str_is(step_type(step), "Sequence") && json_array_size(steps) == 1)
        step = json_array_get(steps, 0);
    if (!str_is(step_type(step), "NFC"))
        return unknown_step("normalizer", step_type(step), err);
    l->t->has_nfc = true;
    return SLUICE_OK;
}

/* ByteLevel, with or without its own regex, which is gpt-2's. */
static bool is_byte_level(const json_t *step, bool use_regex) {
    const json_t *regex = json_object_get(step, "use_regex");
    return str_is(step_type(step), "ByteLevel") &&
           !is_set(json_object_get(step, "add_prefix_space")) &&
           (regex ? json_is_true(regex) : true) == use_regex;
}

static int read_split(struct loading *l, const json_t *step, struct err *err) {
    struct str regex, behavior = STR("?");
    json_str(json_object_get(step, "behavior"), &behavior);
    if (!str_is(behavior, "Isolated") || is_set(json_object_get(step, "invert")))
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "the pre-tokenizer Split has behavior %.*s, expected Isolated, not inverted",
                       STR_ARG(behavior));
    if (!json_str(json_object_get(json_object_get(step, "pattern"), "Regex"), &regex))
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "the pre-tokenizer Split has no regex");
    l->t->pre = pretoken_find_regex(regex);
    if (!l->t->pre)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "the pre-tokenizer regex %.*s is not known",
                       STR_ARG(regex));
    return SLUICE_OK;
}

/* Three forms are known: Split + ByteLevel, Digits + ByteLevel (smollm), ByteLevel (gpt-2). */
static int read_pretokenizer(struct loading *l, struct err *err) {
    const json_t *step = json_object_get(l->root, "pre_tokenizer");
    if (!json_is_object(step))
        return wrong("pre_tokenizer", step, "an object", err);
    const json_t *steps = json_object_get(step, "pretokenizers");
    bool is_sequence = str_is(step_type(step), "Sequence");
    if (is_sequence && json_array_size(steps) == 2) {
        const json_t *first = json_array_get(steps, 0), *second = json_array_get(steps, 1);
        if (str_is(step_type(first), "Split") && is_byte_level(second, false))
            return read_split(l, first, err);
        if (str_is(step_type(first), "Digits") && is_byte_level(second, true) &&
            json_is_true(json_object_get(first, "individual_digits")))
            return l->t->pre = pretoken_find(STR("smollm")), SLUICE_OK;
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "the pre-tokenizer %.*s + %.*s is not known",
                       STR_ARG(step_type(first)), STR_ARG(step_type(second)));
    }
    if (is_sequence && json_array_size(steps) == 1)
        step = json_array_get(steps, 0);
    if (!is_byte_level(step, true))
        return unknown_step("pre-tokenizer", step_type(step), err);
    l->t->pre = pretoken_find(STR("gpt-2"));
    return SLUICE_OK;
}

/* ---- the model ---- */

static int find_parts(struct loading *l, struct err *err) {
    l->root = l->folder->tokenizer;
    if (!l->root)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "the file is missing: there is no vocabulary");
    l->model = json_object_get(l->root, "model");
    if (!json_is_object(l->model))
        return wrong("model", l->model, "an object", err);
    if (!str_is(step_type(l->model), "BPE"))
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "model.type is %.*s, expected BPE",
                       STR_ARG(step_type(l->model)));
    static const char *const foreign[] = {"dropout", "continuing_subword_prefix",
                                          "end_of_word_suffix", "byte_fallback"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (is_set(json_object_get(l->model, foreign[i])))
            return err_set(err, SLUICE_ERR_UNSUPPORTED, "model.%s is set, expected it not to be",
                           foreign[i]);
    l->vocab = json_object_get(l->model, "vocab");
    if (!json_is_object(l->vocab))
        return wrong("model.vocab", l->vocab, "an object", err);
    l->added = json_object_get(l->root, "added_tokens");
    if (is_set(l->added) && !json_is_array(l->added))
        return wrong("added_tokens", l->added, "an array", err);
    return SLUICE_OK;
}

/* The id that a value holds, checked; -1 after an error. `limit` is one more than the highest. */
static int64_t read_id(const json_t *value, struct str text, int64_t limit, struct err *err) {
    if (!json_is_integer(value)) {
        err_set(err, SLUICE_ERR_FORMAT, "the id of token \"%.*s\" is %s, expected an integer",
                STR_ARG(text), type_name(value));
        return -1;
    }
    int64_t id = json_integer_value(value);
    if (id < 0 || id >= limit) {
        err_set(err, SLUICE_ERR_FORMAT, "the id of token \"%.*s\" is %lld, expected 0 to %lld",
                STR_ARG(text), (long long)id, (long long)limit - 1);
        return -1;
    }
    return id;
}

/* One more than the highest id allowed for this many entries: there may be gaps, but a small file
 * must not ask for gigabytes. */
static int64_t id_limit(const struct loading *l) {
    int64_t entries = (int64_t)json_object_size(l->vocab) + (int64_t)json_array_size(l->added);
    int64_t limit = entries * 4 + 65536;
    return limit < VOCAB_MAX ? limit : VOCAB_MAX;
}

/* How many ids there are: those of the entries, and padding up to config.json's vocab_size. */
static int count_ids(const struct loading *l, int32_t *count, struct err *err) {
    const int64_t limit = id_limit(l);
    int64_t highest = -1, id;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)l->vocab, name, value) {
        if ((id = read_id(value, str_of(name), limit, err)) < 0)
            return SLUICE_ERR_FORMAT;
        highest = id > highest ? id : highest;
    }
    for (size_t i = 0; i < json_array_size(l->added); i++) {
        struct str text;
        const json_t *entry = json_array_get(l->added, i);
        if (!json_str(json_object_get(entry, "content"), &text))
            return wrong("content of an added token", json_object_get(entry, "content"), "a string",
                         err);
        if ((id = read_id(json_object_get(entry, "id"), text, limit, err)) < 0)
            return SLUICE_ERR_FORMAT;
        highest = id > highest ? id : highest;
    }
    if (highest < 0)
        return err_set(err, SLUICE_ERR_FORMAT, "model.vocab has no tokens, expected at least 1");
    const json_t *size = json_object_get(l->folder->config, "vocab_size");
    int64_t padded = json_is_integer(size) ? json_integer_value(size) : 0;
    *count = (int32_t)(padded > highest && padded <= limit ? padded : highest + 1);
    return SLUICE_OK;
}

static int read_vocab(struct loading *l, struct err *err) {
    size_t len;
    const char *name;
    json_t *value;
    json_object_keylen_foreach((json_t *)l->vocab, name, len, value) {
        struct token *token = &l->t->vocab.tokens[json_integer_value(value)];
        if (token->type != TOKEN_UNUSED)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "the tokens \"%.*s\" and \"%.*s\" both have id %lld",
                           STR_ARG(token->text), STR_ARG(((struct str){name, len})),
                           (long long)json_integer_value(value));
        *token = (struct token){.text = {name, len}, .type = TOKEN_NORMAL};
    }
    return SLUICE_OK;
}

static uint8_t flag_of(const json_t *entry, const char *name, enum token_flag flag) {
    return json_is_true(json_object_get(entry, name)) ? (uint8_t)flag : 0;
}

/* If an added token's text is in model.vocab too, it must have the same id there. */
static int read_added(struct loading *l, const json_t *entry, struct err *err) {
    struct str text = {json_string_value(json_object_get(entry, "content")),
                       json_string_length(json_object_get(entry, "content"))};
    int64_t id = json_integer_value(json_object_get(entry, "id"));
    const json_t *known = json_object_getn(l->vocab, text.at, text.len);
    struct token *token = &l->t->vocab.tokens[id];
    if (known && json_integer_value(known) != id)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "the added token \"%.*s\" has id %lld, expected %lld as in model.vocab",
                       STR_ARG(text), (long long)id, (long long)json_integer_value(known));
    if (token->type != TOKEN_UNUSED && !str_equal(token->text, text))
        return err_set(err, SLUICE_ERR_FORMAT, "the tokens \"%.*s\" and \"%.*s\" both have id %lld",
                       STR_ARG(token->text), STR_ARG(text), (long long)id);
    bool is_control = json_is_true(json_object_get(entry, "special")) ||
                      (text.len > 4 && str_starts(text, "<|") && str_ends(text, "|>"));
    *token = (struct token){
        .text = text,
        .type = is_control ? TOKEN_CONTROL : TOKEN_USER,
        .flags = flag_of(entry, "lstrip", TOKEN_LSTRIP) | flag_of(entry, "rstrip", TOKEN_RSTRIP) |
                 flag_of(entry, "single_word", TOKEN_SINGLE_WORD) |
                 flag_of(entry, "normalized", TOKEN_NORMALIZED) | (known ? 0 : TOKEN_ADDED),
    };
    return SLUICE_OK;
}

/* Padding is named as it is in GGUF files. */
static int name_padding(struct tokenizer *t, struct err *err) {
    for (int32_t i = 0; i < t->vocab.count; i++) {
        struct token *token = &t->vocab.tokens[i];
        if (token->type != TOKEN_UNUSED)
            continue;
        char *name = arena_alloc(&t->arena, 16);
        if (!name)
            return err_memory(err, "the vocabulary");
        token->text = (struct str){name, (size_t)snprintf(name, 16, "[PAD%d]", (int)i)};
    }
    return SLUICE_OK;
}

static int read_tokens(struct loading *l, struct err *err) {
    int32_t count = 0;
    int status = count_ids(l, &count, err);
    if (status != SLUICE_OK)
        return status;
    l->t = tokenizer_new(count, err);
    if (!l->t)
        return SLUICE_ERR_MEMORY;
    status = read_vocab(l, err);
    for (size_t i = 0; i < json_array_size(l->added) && status == SLUICE_OK; i++)
        status = read_added(l, json_array_get(l->added, i), err);
    return status == SLUICE_OK ? name_padding(l->t, err) : status;
}

/* One merge: "left right", or ["left", "right"]. */
static bool read_merge(const json_t *value, struct merge_text *merge) {
    struct str line;
    if (!json_str(value, &line))
        return json_array_size(value) == 2 && json_str(json_array_get(value, 0), &merge->left) &&
               json_str(json_array_get(value, 1), &merge->right);
    const char *space = line.len > 1 ? memchr(line.at + 1, ' ', line.len - 1) : NULL;
    if (!space)
        return false;
    merge->left = (struct str){line.at, (size_t)(space - line.at)};
    merge->right = str_skip(line, merge->left.len + 1);
    return true;
}

static int read_merges(struct loading *l, struct err *err) {
    const json_t *list = json_object_get(l->model, "merges");
    if (!json_is_array(list))
        return wrong("model.merges", list, "an array", err);
    size_t n = json_array_size(list);
    if (n > VOCAB_MAX)
        return err_set(err, SLUICE_ERR_FORMAT, "model.merges has %zu elements, expected at most %d",
                       n, VOCAB_MAX);
    l->merges = calloc(n + 1, sizeof *l->merges);
    if (!l->merges)
        return err_memory(err, "the merges");
    l->n_merges = n;
    for (size_t i = 0; i < n; i++)
        if (!read_merge(json_array_get(list, i), &l->merges[i]))
            return err_set(
                err, SLUICE_ERR_FORMAT,
                "merge %zu is %s that is not a pair, expected \"left right\" or two strings", i,
                type_name(json_array_get(list, i)));
    l->t->bpe.ignore_merges = json_is_true(json_object_get(l->model, "ignore_merges"));
    return SLUICE_OK;
}

/* ---- settings ---- */

/* The id of the token that a value names: "text", or {"content": "text"}. -1 when none does. */
static int32_t named_token(const struct tokenizer *t, const json_t *value) {
    struct str text;
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_str(value, &text) ? tokenizer_find(t, text) : -1;
}

/* Calls tokenizer_add_end for an id or a list of them; returns the first. */
static int32_t add_ends(struct tokenizer *t, const json_t *value) {
    const json_t *first = json_is_array(value) ? json_array_get(value, 0) : value;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (json_is_integer(json_array_get(value, i)))
            tokenizer_add_end(t, json_integer_value(json_array_get(value, i)));
    if (!json_is_integer(first))
        return -1;
    tokenizer_add_end(t, json_integer_value(first));
    int64_t id = json_integer_value(first);
    return id >= 0 && id < t->vocab.count ? (int32_t)id : -1;
}

/* The TemplateProcessing step, alone or in a Sequence; NULL when there is none. */
static const json_t *find_template(const json_t *step) {
    if (str_is(step_type(step), "TemplateProcessing"))
        return json_object_get(step, "single");
    const json_t *steps = json_object_get(step, "processors");
    for (size_t i = 0; i < json_array_size(steps); i++)
        if (str_is(step_type(json_array_get(steps, i)), "TemplateProcessing"))
            return json_object_get(json_array_get(steps, i), "single");
    return NULL;
}

/* The special token at place i of a template, or -1. */
static int32_t template_token(const struct tokenizer *t, const json_t *list, size_t i) {
    struct str text;
    const json_t *token = json_object_get(json_array_get(list, i), "SpecialToken");
    return json_str(json_object_get(token, "id"), &text) ? tokenizer_find(t, text) : -1;
}

/* BOS before and EOS last: as the template of tokenizer.json has it, unless
 * tokenizer_config.json says yes or no. What the template has last may be another than EOS. */
static void read_affixes(struct loading *l) {
    struct tokenizer *t = l->t;
    const json_t *list = find_template(json_object_get(l->root, "post_processor"));
    size_t n = json_array_size(list);
    int32_t before = n > 1 ? template_token(t, list, 0) : -1;
    int32_t last = n > 1 ? template_token(t, list, n - 1) : -1;
    const json_t *config = l->folder->tokenizer_config;
    const json_t *add_bos = json_object_get(config, "add_bos_token");
    const json_t *add_eos = json_object_get(config, "add_eos_token");
    t->adds_bos = json_is_boolean(add_bos) ? json_is_true(add_bos) : before >= 0;
    t->adds_eos = json_is_boolean(add_eos) ? json_is_true(add_eos) : last >= 0;
    t->last = last;
    if (t->bos < 0)
        t->bos = before;
    if (t->eos < 0)
        t->eos = last;
}

static void read_settings(struct loading *l) {
    struct tokenizer *t = l->t;
    const json_t *config = l->folder->tokenizer_config, *generation = l->folder->generation;
    t->bos = named_token(t, json_object_get(config, "bos_token"));
    t->eos = named_token(t, json_object_get(config, "eos_token"));
    read_affixes(l);
    int32_t first = add_ends(t, json_object_get(generation, "eos_token_id"));
    if (!generation)
        first = add_ends(t, json_object_get(l->folder->config, "eos_token_id"));
    if (t->eos < 0)
        t->eos = first;
    t->chat_template = l->folder->chat_template;
}

static int load(struct loading *l, struct err *err) {
    int status = find_parts(l, err);
    if (status == SLUICE_OK)
        status = read_tokens(l, err);
    if (status == SLUICE_OK)
        status = read_normalizer(l, err);
    if (status == SLUICE_OK)
        status = read_pretokenizer(l, err);
    if (status == SLUICE_OK)
        status = read_merges(l, err);
    if (status != SLUICE_OK)
        return status;
    read_settings(l);
    return tokenizer_finish(l->t, l->merges, l->n_merges, err);
}

int tokenizer_from_folder(struct tokenizer **out, const struct folder *f, struct err *err) {
    struct loading l = {.folder = f};
    int status = load(&l, err);
    free(l.merges);
    *out = status == SLUICE_OK ? l.t : NULL;
    if (status != SLUICE_OK) {
        tokenizer_close(l.t);
        err_prefix(err, "%s/tokenizer.json", f->path);
    }
    return status;
}
