/* fuzz_schema.c - any JSON as a schema: refused by one line, or a grammar that has an answer, some
 * bytes of which are taken from its masks. */
#include <jansson.h>

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

static void follow(const struct grammar *g, const uint8_t *bytes, size_t size) {
    struct matcher *m;
    struct err err = {0};
    if (matcher_open(&m, g, texts(), &err)) {
        CHECK(err.code == SLUICE_ERR_UNSUPPORTED);
        return;
    }
    for (size_t step = 0; step < 24 && !matcher_must_end(m); step++) {
        const uint32_t *mask = matcher_mask(m);
        int32_t first = (int32_t)(bytes[step % size] * 7 + step), token = -1;
        for (int32_t i = 0; i < 256 && token < 0; i++)
            if (mask[(first + i) % 256 / 32] >> (first + i) % 256 % 32 & 1)
                token = (first + i) % 256;
        if (matcher_fault(m, &err))
            break;
        CHECK(token >= 0 && (matcher_accept(m, token) || matcher_fault(m, &err)));
    }
    matcher_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    json_t *schema = json_loadb((const char *)bytes, size, JSON_DECODE_ANY, NULL);
    struct grammar *g;
    struct err err = {0};
    if (!schema)
        return 0;
    if (grammar_of_schema(&g, schema, &err))
        CHECK(!g && err.code < 0 && err.text[0]);
    else
        follow(g, bytes, size);
    grammar_close(g);
    json_decref(schema);
    return 0;
}
