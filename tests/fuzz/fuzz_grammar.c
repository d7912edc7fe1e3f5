/* fuzz_grammar.c - any bytes as GBNF: refused by one line, or masks that are obeyed for some
 * tokens, and the same again after tokens that are said to keep them. What takes too long ends with
 * one line too. */
#include <string.h>

#include "fuzz/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Some tokens of the masks. */
static void follow(struct matcher *m, const uint8_t *bytes, size_t size) {
    struct err err = {0};
    for (size_t step = 0; step < 24 && !matcher_must_end(m); step++) {
        const uint32_t *mask = matcher_mask(m);
        if (matcher_fault(m, &err))
            break;
        int32_t token = tokens_pick(mask, bytes[step % size] * 7u + step);
        const uint32_t *keeps = matcher_keeps(m);
        uint32_t before[TOKEN_MASK];
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
    if (matcher_open(&m, g, tokens_all(), NULL, &err))
        CHECK(!m && err.code == SLUICE_ERR_UNSUPPORTED && err.text[0]);
    else
        follow(m, bytes, size);
    matcher_close(m);
    grammar_close(g);
    return 0;
}
