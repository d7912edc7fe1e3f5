/* fuzz_grammar.c - any bytes as GBNF: refused by one line, or masks that are obeyed for some
 * tokens, and the same again after tokens that are said to keep them. What takes too long ends with
 * one line too. */
#include <string.h>

#include "grammar/texts.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Every byte, and texts of several. */
static const char *const words[] = {"aa",   "aaa",  "aaaa", "ab",  "ba",      "bb",   "aab",
                                    "abab", "  ",   "\n  ", "\"a", "a\"",     "a\"b", "((",
                                    "))",   "()()", "012",  "x1",  "\xc3\xa9"};
enum { N_WORDS = sizeof words / sizeof *words, END = 256 + N_WORDS, N_MASK = END / 32 + 1 };

static struct token_texts *texts(void) {
    static struct token_texts *made;
    static char each[256];
    struct str s[END + 1] = {{0}};
    int32_t ends[] = {END};
    for (int i = 0; i < END && !made; i++) {
        each[i % 256] = (char)i;
        s[i] = i < 256 ? (struct str){&each[i], 1} : str_of(words[i - 256]);
    }
    if (!made)
        CHECK(token_texts_make(&made, s, END + 1, ends, 1, NULL) == SLUICE_OK);
    return made;
}

/* Some tokens of the masks. */
static void follow(struct matcher *m, const uint8_t *bytes, size_t size) {
    struct err err = {0};
    for (size_t step = 0; step < 24 && !matcher_must_end(m); step++) {
        const uint32_t *mask = matcher_mask(m);
        if (matcher_fault(m, &err))
            break;
        int32_t first = (int32_t)(bytes[step % size] * 7 + step), token = -1;
        for (int32_t i = 0; i < END && token < 0; i++)
            if (mask[(first + i) % END / 32] >> (first + i) % END % 32 & 1)
                token = (first + i) % END;
        const uint32_t *keeps = matcher_keeps(m);
        uint32_t before[N_MASK];
        memcpy(before, mask, sizeof before);
        CHECK(token >= 0 && (matcher_accept(m, token) || matcher_fault(m, &err)));
        if (keeps && keeps[token / 32] >> token % 32 & 1 && !matcher_fault(m, &err))
            CHECK(memcmp(before, matcher_mask(m), sizeof before) == 0 || matcher_fault(m, &err));
    }
    if (matcher_fault(m, &err))
        CHECK(err.text[0] && !matcher_accept(m, 'a') && matcher_mask(m)['a' / 32] == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct grammar *g;
    struct matcher *m;
    struct err err = {0};
    if (grammar_of_gbnf(&g, (const char *)bytes, size, &err)) {
        CHECK(!g && err.code < 0 && err.text[0]);
        return 0;
    }
    if (matcher_open(&m, g, texts(), &err))
        CHECK(!m && err.code == SLUICE_ERR_UNSUPPORTED && err.text[0]);
    else
        follow(m, bytes, size);
    matcher_close(m);
    grammar_close(g);
    return 0;
}
