/* fuzz_tokenizer.c - texts of any bytes through every kind of tokenizer, and any ids back.
 *
 * Input: a byte that picks the tokenizer, a byte of flags, then the text. What must hold: encoding
 * never fails, ids are in the vocabulary, decoding gives valid UTF-8, and where nothing is
 * stripped or normalized it gives the text (bad bytes as U+FFFD) again. */
#include <stdio.h>

#include "text/tokenizer_make.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const kinds[] = {"qwen2",  "qwen35",  "llama-bpe", "gpt-2",
                                    "smollm", "default", NULL}; /* NULL: SentencePiece */
enum { KINDS = sizeof kinds / sizeof *kinds };

/* "aab" is the result of a merge, but no token. */
static const struct merge_text merges[] = {
    {STR("a"), STR("a")},   {STR("aa"), STR("b")}, {STR("\xC4\xA0"), STR("a")},
    {STR("aa"), STR("aa")}, {STR("h"), STR("e")},  {STR("l"), STR("l")},
    {STR("he"), STR("ll")}, {STR("1"), STR("2")},  {STR("\xC3\xB0"), STR("\xC5\x81")},
    {STR("aab"), STR("b")}, {STR("e"), STR("l")},  {STR("\xC4\xA0"), STR("\xC4\xA0")},
};
enum { MERGES = sizeof merges / sizeof *merges };

static const struct {
    const char *text;
    uint8_t type, flags;
} extras[] = {
    {"aa", TOKEN_NORMAL, 0},
    {"\xC4\xA0"
     "a",
     TOKEN_NORMAL, 0},
    {"aaaa", TOKEN_NORMAL, 0},
    {"he", TOKEN_NORMAL, 0},
    {"ll", TOKEN_NORMAL, 0},
    {"hell", TOKEN_NORMAL, 0},
    {"12", TOKEN_NORMAL, 0},
    {"\xC3\xB0\xC5\x81", TOKEN_NORMAL, 0},
    {"aabb", TOKEN_NORMAL, 0},
    {"<s>", TOKEN_CONTROL, 0},
    {"<s>a", TOKEN_CONTROL, 0},
    {"<think>", TOKEN_USER, TOKEN_NORMALIZED},
    {"<pad>", TOKEN_UNUSED, 0},
    {"<l>", TOKEN_USER, TOKEN_LSTRIP},
    {"<r>", TOKEN_USER, TOKEN_RSTRIP},
    {"word", TOKEN_USER, TOKEN_SINGLE_WORD},
};
enum { EXTRAS = sizeof extras / sizeof *extras };

static void name_byte(struct tokenizer *t, int byte) {
    struct token *token = &t->vocab.tokens[byte];
    char *text = arena_alloc(&t->arena, 8);
    token->type = t->pre ? TOKEN_NORMAL : TOKEN_BYTE;
    if (!t->pre) {
        token->text = (struct str){text, (size_t)snprintf(text, 8, "<0x%02X>", (unsigned)byte)};
        return;
    }
    for (uint32_t c = 0; c < 0x144; c++) { /* the character that stands for this byte */
        char bytes[4];
        size_t n = utf8_put(c, text);
        if (bpe_unmap((struct str){text, n}, bytes) == 1 && (unsigned char)bytes[0] == byte)
            token->text = (struct str){text, n};
        if (token->text.len)
            return;
    }
}

static struct tokenizer *make(const char *kind) {
    struct tokenizer *t = tokenizer_new(256 + EXTRAS, NULL);
    CHECK(t);
    t->pre = kind ? pretoken_find(str_of(kind)) : NULL;
    t->bpe.ignore_merges = kind && t->pre->is_llama3;
    t->spm.has_prefix = !kind;
    for (int i = 0; i < 256; i++)
        name_byte(t, i);
    for (int i = 0; i < EXTRAS; i++)
        t->vocab.tokens[256 + i] = (struct token){.text = str_of(extras[i].text),
                                                  .type = extras[i].type,
                                                  .flags = extras[i].flags,
                                                  .score = (float)-(i % 5)};
    CHECK(tokenizer_finish(t, merges, MERGES, NULL) == SLUICE_OK);
    return t;
}

static void check_decoding(const struct tokenizer *t, const struct ids *ids, struct str text,
                           bool is_exact) {
    struct detok d = {.t = t, .with_control = true};
    struct text_buffer out = {0};
    struct arena arena = {0};
    for (size_t i = 0; i < ids->len; i++) {
        CHECK(detok_push(&d, ids->at[i], &out, NULL) == SLUICE_OK);
        CHECK(d.n_held < 4);
    }
    CHECK(detok_end(&d, &out, NULL) == SLUICE_OK);
    CHECK(utf8_valid((struct str){out.at, out.len}));
    CHECK(utf8_clean(&text, &arena, NULL) == SLUICE_OK);
    if (is_exact)
        CHECK(str_equal(text, (struct str){out.at, out.len}));
    text_buffer_free(&out);
    arena_free(&arena);
}

static bool holds(struct str text, const char *word) {
    return text.len > 0 && str_contains(text, word);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *made[KINDS];
    if (size < 2)
        return 0;
    int kind = data[0] % KINDS;
    if (!made[kind])
        made[kind] = make(kinds[kind]);
    struct tokenizer *t = made[kind];
    struct str text = {(const char *)data + 2, size - 2};
    bool has_nfc = data[1] & 4;
    struct ids ids = {0};
    tokenizer_set_nfc(t, has_nfc);
    CHECK(tokenizer_encode(t, text, data[1] & 3, &ids, NULL) == SLUICE_OK);
    for (size_t i = 0; i < ids.len; i++) {
        CHECK(ids.at[i] >= 0 && ids.at[i] < tokenizer_count(t));
        CHECK(data[1] & ENCODE_SPECIAL || tokenizer_type(t, ids.at[i]) != TOKEN_CONTROL);
    }
    /* A token that takes white space along loses it, and SentencePiece adds spaces of its own. */
    bool is_exact = t->pre && !has_nfc && !holds(text, "<l>") && !holds(text, "<r>");
    check_decoding(t, &ids, text, is_exact);
    ids.len = 0;
    for (size_t i = 0; i + 1 < text.len; i += 2)
        CHECK(ids_push(&ids, (data[i + 2] << 8 | data[i + 3]) % (256 + EXTRAS), NULL) == SLUICE_OK);
    check_decoding(t, &ids, STR(""), false);
    ids_free(&ids);
    return 0;
}
