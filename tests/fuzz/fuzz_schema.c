/* fuzz_schema.c - any JSON as a schema: refused by one line, or a grammar that has an answer, some
 * tokens of which are taken from its masks. */
#include <jansson.h>

#include "fuzz/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    json_t *schema = json_loadb((const char *)bytes, size, JSON_DECODE_ANY, NULL);
    struct grammar *g;
    struct err err = {0};
    if (!schema)
        return 0;
    if (grammar_of_schema(&g, schema, &err))
        CHECK(!g && err.code < 0 && err.text[0]);
    else
        tokens_follow(g, bytes, size);
    grammar_close(g);
    json_decref(schema);
    return 0;
}
