/* fuzz_schema.c - any JSON as a schema: refused by one line, or a grammar that has an answer, some
 * tokens of which are taken from its masks. */
#include <jansson.h>

#include "fuzz/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void follow(const struct grammar *g, const uint8_t *bytes, size_t size) {
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
