/* tokens.h - a small vocabulary for fuzz entries that follow masks: every byte, texts of several,
 * and the token that ends. */
#ifndef FUZZ_TOKENS_H
#define FUZZ_TOKENS_H

#include "grammar/grammar.h"
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

/* Some tokens of an answer's masks, by these bytes. */
static inline void tokens_follow(const struct grammar *g, const uint8_t *bytes, size_t size) {
    struct matcher *m;
    struct err err = {0};
    if (matcher_open(&m, g, tokens_all(), NULL, &err)) {
        CHECK(err.code == SLUICE_ERR_UNSUPPORTED);
        return;
    }
    for (size_t step = 0; step < 24 && !matcher_must_end(m); step++) {
        const uint32_t *mask = matcher_mask(m);
        int32_t token = tokens_pick(mask, bytes[step % size] * 7u + step);
        if (matcher_fault(m, &err))
            break;
        CHECK(token >= 0 && (matcher_accept(m, token) || matcher_fault(m, &err)));
    }
    matcher_close(m);
}

#endif
