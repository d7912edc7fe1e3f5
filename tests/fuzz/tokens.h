/* tokens.h - a small vocabulary for fuzz entries that follow masks: every byte, texts of several,
 * and the token that ends. */
#ifndef FUZZ_TOKENS_H
#define FUZZ_TOKENS_H

#include "grammar/texts.h"

static const char *const token_words[] = {"aa",   "aaa",  "aaaa", "ab",  "ba",      "bb",   "aab",
                                          "abab", "  ",   "\n  ", "\"a", "a\"",     "a\"b", "((",
                                          "))",   "()()", "012",  "x1",  "\xc3\xa9"};
enum {
    TOKEN_END = 256 + sizeof token_words / sizeof *token_words,
    TOKEN_MASK = TOKEN_END / 32 + 1
};

static inline const struct token_texts *tokens_all(void) {
    static struct token_texts *made;
    static char each[256];
    struct str s[TOKEN_END + 1] = {{0}};
    int32_t ends[] = {TOKEN_END};
    for (int i = 0; i < TOKEN_END && !made; i++) {
        each[i % 256] = (char)i;
        s[i] = i < 256 ? (struct str){&each[i], 1} : str_of(token_words[i - 256]);
    }
    if (!made)
        CHECK(token_texts_make(&made, s, TOKEN_END + 1, ends, 1, NULL) == SLUICE_OK);
    return made;
}

/* The first token of the mask from `first` on, without the end; -1: none. */
static inline int32_t tokens_pick(const uint32_t *mask, size_t first) {
    for (size_t i = 0; i < TOKEN_END; i++) {
        size_t token = (first + i) % TOKEN_END;
        if (mask[token / 32] >> token % 32 & 1)
            return (int32_t)token;
    }
    return -1;
}

#endif
