/* tokenizer_gguf.c - a tokenizer from the keys of a GGUF file. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/log.h"
#include "file/gguf.h"
#include "text/tokenizer_make.h"

#define KEY(name) "tokenizer.ggml." name

/* An array key, its type and length checked; NULL and SLUICE_OK when it is absent. */
struct array_rule {
    const char *name;
    enum gguf_type type; /* GGUF_I32 stands for every integer type */
    uint64_t min, max;   /* elements */
};

static int find_array(const struct gguf_key **out, const struct gguf *g, struct array_rule rule,
                      struct err *err) {
    const struct gguf_key *key = *out = gguf_key(g, rule.name);
    if (!key)
        return SLUICE_OK;
    bool is_right = key->type == rule.type || (rule.type == GGUF_I32 && gguf_is_int(key));
    if (!key->is_array || !is_right)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: %s is %s, expected %s[]", g->path, rule.name,
                       gguf_key_type_name(key), gguf_type_name(rule.type));
    if (key->count < rule.min || key->count > rule.max)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: %s has %" PRIu64 " elements, expected at %s %" PRIu64, g->path,
                       rule.name, key->count, key->count < rule.min ? "least" : "most",
                       key->count < rule.min ? rule.min : rule.max);
    return SLUICE_OK;
}

static int missing(const struct gguf *g, const char *name, struct err *err) {
    return err_set(err, SLUICE_ERR_FORMAT, "%s: %s is missing", g->path, name);
}

/* "gpt2" or "llama" and the pre-tokenizer; *pre NULL for SentencePiece. */
static int read_kind(const struct gguf *g, const struct pretoken **pre, struct err *err) {
    struct str model = STR("no_vocab"), name = STR("default");
    int status = gguf_get_str(g, KEY("model"), &model, err);
    if (status < 0)
        return status;
    if (str_is(model, "no_vocab"))
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s: the file has no vocabulary (%s)", g->path,
                       status ? KEY("model") " is no_vocab" : KEY("model") " is missing");
    *pre = NULL;
    if (str_is(model, "llama"))
        return SLUICE_OK;
    if (!str_is(model, "gpt2"))
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s: %s is %.*s, expected gpt2 or llama",
                       g->path, KEY("model"), STR_ARG(model));
    status = gguf_get_str(g, KEY("pre"), &name, err);
    if (status < 0)
        return status;
    *pre = pretoken_find(name);
    if (!*pre)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s: the pre-tokenizer %.*s is not known",
                       g->path, STR_ARG(name));
    return SLUICE_OK;
}

static int read_tokens(struct tokenizer **out, const struct gguf *g, struct err *err) {
    const struct gguf_key *texts, *types, *scores;
    int status =
        find_array(&texts, g, (struct array_rule){KEY("tokens"), GGUF_STRING, 1, VOCAB_MAX}, err);
    if (status == SLUICE_OK && !texts)
        status = missing(g, KEY("tokens"), err);
    if (status != SLUICE_OK)
        return status;
    uint64_t n = texts->count;
    status = find_array(&types, g, (struct array_rule){KEY("token_type"), GGUF_I32, n, n}, err);
    if (status == SLUICE_OK)
        status = find_array(&scores, g, (struct array_rule){KEY("scores"), GGUF_F32, n, n}, err);
    if (status != SLUICE_OK)
        return status;
    struct tokenizer *t = *out = tokenizer_new((int32_t)n, err);
    if (!t)
        return SLUICE_ERR_MEMORY;
    for (uint64_t i = 0; i < n; i++) {
        int64_t type = types ? gguf_int_at(types, i) : TOKEN_NORMAL;
        if (type < 0 || type > TOKEN_BYTE)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "%s: token %" PRIu64 " has type %" PRId64 ", expected 1 to 6", g->path,
                           i, type);
        t->vocab.tokens[i] = (struct token){
            .text = texts->strings[i],
            .type = type ? (uint8_t)type : TOKEN_NORMAL, /* 0: older files say nothing */
            .score = scores ? (float)gguf_float_at(scores, i) : 0,
        };
    }
    return SLUICE_OK;
}

/* Splits each line at the first space after its first byte. */
static int read_merges(struct merge_text **out, size_t *count, const struct gguf *g,
                       struct err *err) {
    const struct gguf_key *key;
    int status =
        find_array(&key, g, (struct array_rule){KEY("merges"), GGUF_STRING, 0, VOCAB_MAX}, err);
    if (status == SLUICE_OK && !key)
        status = missing(g, KEY("merges"), err);
    if (status != SLUICE_OK)
        return status;
    struct merge_text *merges = *out = calloc(key->count + 1, sizeof *merges);
    if (!merges)
        return err_memory(err, "the merges");
    *count = key->count;
    for (uint64_t i = 0; i < key->count; i++) {
        struct str line = key->strings[i];
        const char *space = line.len > 1 ? memchr(line.at + 1, ' ', line.len - 1) : NULL;
        if (!space)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "%s: merge %" PRIu64
                           " is \"%.*s\", expected two parts with a space between",
                           g->path, i, STR_ARG(line));
        size_t left = (size_t)(space - line.at);
        merges[i] = (struct merge_text){{line.at, left}, str_skip(line, left + 1)};
    }
    return SLUICE_OK;
}

/* An id key: -1 when absent or beyond the vocabulary, unless *id says otherwise. Files say -1 for
 * none; what else is no token is a mistake, but no reason not to run. */
static int read_id(const struct gguf *g, const char *name, int32_t count, int32_t *id,
                   struct err *err) {
    uint64_t value;
    int status = gguf_get_u64(g, name, &value, err);
    if (status > 0)
        *id = value < (uint64_t)count ? (int32_t)value : -1;
    if (status > 0 && *id < 0 && value != UINT32_MAX)
        log_line(LOG_WARN, "%s: key %s is %" PRIu64 ", expected a token, 0 to %d: it is not used",
                 g->path, name, value, count - 1);
    return status < 0 ? status : SLUICE_OK;
}

static int read_ends(struct tokenizer *t, const struct gguf *g, struct err *err) {
    static const char *const names[] = {
        KEY("eot_token_id"),     KEY("eom_token_id"),     KEY("fim_pad_token_id"),
        KEY("fim_rep_token_id"), KEY("fim_sep_token_id"),
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int32_t id = -1;
        int status = read_id(g, names[i], t->vocab.count, &id, err);
        if (status != SLUICE_OK)
            return status;
        tokenizer_add_end(t, id);
    }
    return SLUICE_OK;
}

static int read_settings(struct tokenizer *t, const struct gguf *g, struct err *err) {
    const int32_t n = t->vocab.count;
    bool is_spm = !t->pre;
    t->adds_bos = is_spm || t->pre->is_llama3;
    t->bpe.ignore_merges = t->pre && t->pre->is_llama3;
    t->spm.has_prefix = is_spm;
    if (is_spm) { /* defaults of SentencePiece models */
        t->spm.unknown = 0;
        t->bos = n > 1 ? 1 : -1;
        t->eos = n > 2 ? 2 : -1;
    }
    int status = read_id(g, KEY("bos_token_id"), n, &t->bos, err);
    if (status == SLUICE_OK)
        status = read_id(g, KEY("eos_token_id"), n, &t->eos, err);
    if (status == SLUICE_OK && is_spm)
        status = read_id(g, KEY("unknown_token_id"), n, &t->spm.unknown, err);
    if (status == SLUICE_OK)
        status = read_ends(t, g, err);
    if (status == SLUICE_OK)
        status = gguf_get_bool(g, KEY("add_bos_token"), &t->adds_bos, err);
    if (status >= 0)
        status = gguf_get_bool(g, KEY("add_eos_token"), &t->adds_eos, err);
    if (status >= 0 && is_spm)
        status = gguf_get_bool(g, KEY("add_space_prefix"), &t->spm.has_prefix, err);
    if (status >= 0)
        status = gguf_get_bool(g, "sluice.nfc", &t->has_nfc, err);
    if (status >= 0)
        status = gguf_get_str(g, "tokenizer.chat_template", &t->chat_template, err);
    return status < 0 ? status : SLUICE_OK;
}

static int check_scores(const struct gguf *g, const struct tokenizer *t, struct err *err) {
    return t->pre || gguf_key(g, KEY("scores")) ? SLUICE_OK : missing(g, KEY("scores"), err);
}

int tokenizer_from_gguf(struct tokenizer **out, const struct gguf *g, struct err *err) {
    struct tokenizer *t = NULL;
    struct merge_text *merges = NULL;
    const struct pretoken *pre = NULL;
    size_t n_merges = 0;
    *out = NULL;
    int status = read_kind(g, &pre, err);
    if (status == SLUICE_OK)
        status = read_tokens(&t, g, err);
    if (status == SLUICE_OK) {
        t->pre = pre;
        status = pre ? read_merges(&merges, &n_merges, g, err) : check_scores(g, t, err);
    }
    if (status == SLUICE_OK)
        status = read_settings(t, g, err);
    if (status == SLUICE_OK && (status = tokenizer_finish(t, merges, n_merges, err)) != SLUICE_OK)
        err_prefix(err, "%s", g->path);
    free(merges);
    if (status == SLUICE_OK)
        *out = t;
    else
        tokenizer_close(t);
    return status;
}
