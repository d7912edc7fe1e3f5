/* tokenizer.c - building a tokenizer, its facts, and the stages of encoding: clean UTF-8, special
 * tokens, NFC, special tokens again, words, ids. */
#include "text/tokenizer.h"

#include <stdlib.h>

#include "base/size.h"
#include "text/tokenizer_make.h"
#include "text/unicode.h"

/* ---- lists of ids ---- */

int ids_reserve(struct ids *ids, size_t more, struct err *err) {
    if (ids->capacity - ids->len >= more)
        return SLUICE_OK;
    uint64_t need, bytes;
    bool fits = size_add(ids->len, more, &need) && size_add(need, need / 2 + 64, &need) &&
                size_mul(need, sizeof *ids->at, &bytes) && bytes <= SIZE_MAX;
    int32_t *at = fits ? realloc(ids->at, bytes) : NULL;
    if (!at)
        return err_memory(err, "a list of tokens");
    ids->at = at;
    ids->capacity = need;
    return SLUICE_OK;
}

int ids_push(struct ids *ids, int32_t id, struct err *err) {
    int status = ids_reserve(ids, 1, err);
    if (status == SLUICE_OK)
        ids->at[ids->len++] = id;
    return status;
}

void ids_free(struct ids *ids) {
    free(ids->at);
    *ids = (struct ids){0};
}

/* ---- making ---- */

struct tokenizer *tokenizer_new(int32_t count, struct err *err) {
    struct tokenizer *t = calloc(1, sizeof *t);
    if (t)
        t->vocab.tokens = arena_array(&t->arena, (uint64_t)count, sizeof *t->vocab.tokens);
    if (!t || !t->vocab.tokens) {
        free(t);
        err_memory(err, "the vocabulary");
        return NULL;
    }
    t->vocab.count = count;
    t->bos = t->eos = t->last = t->spm.unknown = -1;
    for (int32_t i = 0; i < count; i++)
        t->vocab.tokens[i].type = TOKEN_UNUSED;
    return t;
}

void tokenizer_close(struct tokenizer *t) {
    if (!t)
        return;
    bpe_free(&t->bpe);
    spm_free(&t->spm);
    special_free(&t->raw);
    special_free(&t->normalized);
    arena_free(&t->arena);
    free(t);
}

void tokenizer_add_end(struct tokenizer *t, int64_t id) {
    if (id >= 0 && id < t->vocab.count)
        t->vocab.tokens[id].flags |= TOKEN_ENDS;
}

/* Copies all texts into one block. */
static int copy_texts(struct tokenizer *t, struct err *err) {
    uint64_t total = 0;
    for (int32_t i = 0; i < t->vocab.count; i++)
        if (!size_add(total, t->vocab.tokens[i].text.len, &total))
            return err_memory(err, "the vocabulary");
    char *block = arena_alloc(&t->arena, total);
    char *template = arena_strdup(&t->arena, t->chat_template);
    if (!block || !template)
        return err_memory(err, "the vocabulary");
    t->chat_template.at = template;
    for (int32_t i = 0; i < t->vocab.count; i++) {
        struct str *text = &t->vocab.tokens[i].text;
        if (text->len)
            memcpy(block, text->at, text->len);
        text->at = block;
        block += text->len;
    }
    return SLUICE_OK;
}

/* What a SentencePiece text stands for: U+2581 is a space. */
static size_t spaces_back(struct str text, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < text.len; n++) {
        bool is_mark = str_starts(str_skip(text, i), "\xE2\x96\x81");
        out[n] = is_mark ? ' ' : text.at[i];
        i += is_mark ? 3 : 1;
    }
    return n;
}

/* Writes what a token stands for to `out`; at most its text's length. */
static size_t token_bytes(const struct tokenizer *t, const struct token *token, char *out) {
    int byte = token->type == TOKEN_BYTE ? spm_byte_of(token->text) : -1;
    if (token->type == TOKEN_UNUSED)
        return 0;
    if (byte >= 0) {
        *out = (char)byte;
        return 1;
    }
    if (token->type == TOKEN_NORMAL || token->type == TOKEN_BYTE) {
        size_t n = t->pre ? bpe_unmap(token->text, out) : spaces_back(token->text, out);
        if (n != SIZE_MAX)
            return n;
    }
    if (token->text.len)
        memcpy(out, token->text.at, token->text.len);
    return token->text.len;
}

static int fill_bytes(struct tokenizer *t, struct err *err) {
    size_t total = 0;
    for (int32_t i = 0; i < t->vocab.count; i++)
        total += t->vocab.tokens[i].text.len;
    char *block = arena_alloc(&t->arena, total);
    if (!block)
        return err_memory(err, "the vocabulary");
    for (int32_t i = 0; i < t->vocab.count; i++) {
        struct token *token = &t->vocab.tokens[i];
        token->bytes = (struct str){block, token_bytes(t, token, block)};
        block += token->bytes.len;
    }
    return SLUICE_OK;
}

static int add_specials(struct tokenizer *t, struct err *err) {
    int status = SLUICE_OK;
    for (int32_t i = 0; i < t->vocab.count && status == SLUICE_OK; i++) {
        const struct token *token = &t->vocab.tokens[i];
        if (token->type != TOKEN_CONTROL && token->type != TOKEN_USER &&
            token->type != TOKEN_UNKNOWN)
            continue;
        struct str text = token->text;
        bool is_late = token->flags & TOKEN_NORMALIZED;
        if (is_late && t->has_nfc && utf8_valid(text))
            status = nfc_normalize(&text, &t->arena, err);
        if (status == SLUICE_OK)
            status = special_add(is_late ? &t->normalized : &t->raw, text, i, err);
    }
    return status;
}

/* Tokens that end a generation wherever they occur; the last three end a file of code. */
static const char *const end_texts[] = {
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>",  "<|eom_id|>",    "<|end_of_text|>", "</s>",
    "<|end|>",    "<end_of_turn>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
};

/* Those of fill-in-the-middle that do not end one. */
static const char *const tag_texts[] = {
    "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<fim_prefix>", "<fim_suffix>",
    "<fim_middle>",   "<fim_pad>",      "<repo_name>",    "<reponame>",   "<file_sep>",
};

static bool is_among(struct str text, const char *const *texts, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (str_is(text, texts[i]))
            return true;
    return false;
}

bool tokenizer_text_ends(struct str text) {
    return is_among(text, end_texts, sizeof end_texts / sizeof *end_texts);
}

/* Only special tokens: in many vocabularies </s> is also ordinary text. Some files have these as
 * defined by the user, which any text could contain. */
static void mark_tags(struct tokenizer *t) {
    for (int32_t i = 0; i < t->vocab.count; i++) {
        struct token *token = &t->vocab.tokens[i];
        if (token->type != TOKEN_CONTROL && token->type != TOKEN_USER)
            continue;
        bool is_end = tokenizer_text_ends(token->text);
        if (is_end)
            tokenizer_add_end(t, i);
        if (is_end || is_among(token->text, tag_texts, sizeof tag_texts / sizeof *tag_texts))
            token->type = TOKEN_CONTROL;
    }
    tokenizer_add_end(t, t->eos);
}

int tokenizer_finish(struct tokenizer *t, const struct merge_text *merges, size_t n_merges,
                     struct err *err) {
    int status = copy_texts(t, err);
    if (status == SLUICE_OK)
        status = fill_bytes(t, err);
    if (status == SLUICE_OK && t->pre)
        status = bpe_init(&t->bpe, &t->arena, &t->vocab, merges, n_merges, err);
    else if (status == SLUICE_OK)
        status = spm_init(&t->spm, &t->arena, &t->vocab, err);
    if (status == SLUICE_OK)
        status = add_specials(t, err);
    if (status == SLUICE_OK)
        mark_tags(t);
    return status;
}

/* ---- encoding ---- */

/* One call of encode. */
struct encoding {
    const struct tokenizer *t;
    unsigned flags;
    const char *own; /* see tokenizer_encode_own; of `text` */
    struct str text;
    struct ids *out;
    struct arena arena; /* cleaned and normalized text */
    struct bpe_scratch scratch;
};

static int encode_words(struct encoding *e, struct str text, struct err *err) {
    if (text.len == 0)
        return SLUICE_OK;
    if (e->t->pre)
        return bpe_encode(&e->t->bpe, e->t->pre, &e->scratch, text, e->out, err);
    return spm_encode(&e->t->spm, &e->scratch.merger, text, e->out, err);
}

/* Sets who wrote a part of the text; unknown if the text was changed. */
static void set_authors(const struct encoding *e, struct special_scan *scan) {
    size_t at = (uintptr_t)scan->text.at - (uintptr_t)e->text.at;
    if (!e->own)
        return;
    scan->own = at <= e->text.len ? e->own + at : NULL;
    scan->with_control = scan->with_control && scan->own;
}

/* Encodes the special tokens of one trie, and the text between them by `next`. */
static int encode_around(struct encoding *e, const struct special *special, struct str text,
                         int (*next)(struct encoding *, struct str, struct err *),
                         struct err *err) {
    if (special->n_nodes == 0)
        return next(e, text, err);
    struct special_scan scan = {.special = special,
                                .vocab = &e->t->vocab,
                                .with_control = e->flags & ENCODE_SPECIAL,
                                .text = text};
    struct str plain;
    int32_t id;
    int status = SLUICE_OK;
    set_authors(e, &scan);
    while (status == SLUICE_OK && special_next(&scan, &plain, &id)) {
        status = next(e, plain, err);
        if (status == SLUICE_OK && id >= 0)
            status = ids_push(e->out, id, err);
    }
    return status;
}

static int encode_normalized(struct encoding *e, struct str text, struct err *err) {
    int status = e->t->has_nfc ? nfc_normalize(&text, &e->arena, err) : SLUICE_OK;
    if (status != SLUICE_OK)
        return status;
    return encode_around(e, &e->t->normalized, text, encode_words, err);
}

int tokenizer_encode(const struct tokenizer *t, struct str text, unsigned flags, struct ids *out,
                     struct err *err) {
    return tokenizer_encode_own(t, text, NULL, flags, out, err);
}

int tokenizer_encode_own(const struct tokenizer *t, struct str text, const char *own,
                         unsigned flags, struct ids *out, struct err *err) {
    int status = SLUICE_OK;
    if (text.len == 0)
        text = STR("");
    struct encoding e = {.t = t, .flags = flags, .own = own, .text = text, .out = out};
    bpe_scratch_init(&e.scratch, t->pre ? text.len : 0);
    if (flags & ENCODE_BOS && t->adds_bos && t->bos >= 0)
        status = ids_push(out, t->bos, err);
    if (status == SLUICE_OK)
        status = utf8_clean(&text, &e.arena, err);
    if (status == SLUICE_OK)
        status = encode_around(&e, &t->raw, text, encode_normalized, err);
    if (status == SLUICE_OK && flags & ENCODE_BOS && tokenizer_last(t) >= 0)
        status = ids_push(out, tokenizer_last(t), err);
    bpe_scratch_free(&e.scratch);
    arena_free(&e.arena);
    return status;
}

void tokenizer_set_nfc(struct tokenizer *t, bool on) {
    t->has_nfc = on;
}

/* ---- facts ---- */

static const struct token *token_at(const struct tokenizer *t, int32_t id) {
    static const struct token none = {.text = {"", 0}, .bytes = {"", 0}, .type = TOKEN_UNUSED};
    return id >= 0 && id < t->vocab.count ? &t->vocab.tokens[id] : &none;
}

int32_t tokenizer_count(const struct tokenizer *t) {
    return t->vocab.count;
}

struct str tokenizer_token(const struct tokenizer *t, int32_t id) {
    return token_at(t, id)->text;
}

struct str tokenizer_bytes(const struct tokenizer *t, int32_t id) {
    return token_at(t, id)->bytes;
}

enum token_type tokenizer_type(const struct tokenizer *t, int32_t id) {
    return (enum token_type)token_at(t, id)->type;
}

int32_t tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t) {
    return t->adds_bos && t->bos >= 0;
}

int32_t tokenizer_last(const struct tokenizer *t) {
    return !t->adds_eos ? -1 : t->last >= 0 ? t->last : t->eos;
}

bool tokenizer_uses_nfc(const struct tokenizer *t) {
    return t->has_nfc;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id) {
    return token_at(t, id)->flags & TOKEN_ENDS;
}

int32_t tokenizer_find(const struct tokenizer *t, struct str stored_text) {
    for (int32_t i = 0; i < t->vocab.count; i++)
        if (str_equal(t->vocab.tokens[i].text, stored_text))
            return i;
    return -1;
}

struct str tokenizer_chat_template(const struct tokenizer *t) {
    return t->chat_template;
}

const char *tokenizer_pre_name(const struct tokenizer *t) {
    return t->pre ? t->pre->names[0] : "spm";
}
