/* fuzz_regex.c - any text as a regular expression: refused by one line, or a grammar that has an
 * answer, some tokens of which are taken from its masks. */
#include "fuzz/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct grammar *g;
    struct err err = {0};
    if (grammar_of_regex(&g, (const char *)bytes, size, &err))
        CHECK(!g && err.code < 0 && err.text[0]);
    else
        tokens_follow(g, bytes, size);
    grammar_close(g);
    return 0;
}
