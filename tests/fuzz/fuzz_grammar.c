/* fuzz_grammar.c - any bytes as GBNF: refused by one line, or masks that are obeyed for some
 * tokens, and the same again after tokens that are said to keep them. */
#include <string.h>

#include "grammar/texts.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static struct token_texts *texts(void) {
    static struct token_texts *made;
    static char each[256];
    struct str s[257] = {{0}};
    int32_t ends[] = {256};
    for (int i = 0; i < 256 && !made; i++) {
        each[i] = (char)i;
        s[i] = (struct str){&each[i], 1};
    }
    if (!made)
        CHECK(token_texts_make(&made, s, 257, ends, 1, NULL) == SLUICE_OK);
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct grammar *g;
    struct matcher *m;
    struct err err = {0};
    if (grammar_of_gbnf(&g, (const char *)bytes, size, &err)) {
        CHECK(!g && err.code < 0 && err.text[0]);
        return 0;
    }
    CHECK(matcher_open(&m, g, texts(), &err) == SLUICE_OK);
    for (size_t step = 0; step < 24 && !matcher_must_end(m); step++) {
        const uint32_t *mask = matcher_mask(m);
        int32_t first = (int32_t)(bytes[step % size] * 7 + step), token = -1;
        for (int32_t i = 0; i < 256 && token < 0; i++)
            if (mask[(first + i) % 256 / 32] >> (first + i) % 256 % 32 & 1)
                token = (first + i) % 256;
        const uint32_t *keeps = matcher_keeps(m);
        uint32_t before[257 / 32 + 1];
        memcpy(before, mask, sizeof before);
        CHECK(token >= 0 && matcher_accept(m, token));
        if (keeps && keeps[token / 32] >> token % 32 & 1)
            CHECK(memcmp(before, matcher_mask(m), sizeof before) == 0);
    }
    matcher_close(m);
    grammar_close(g);
    return 0;
}
