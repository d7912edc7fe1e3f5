/* fuzz_json.c - any bytes as JSON: the scan's limits hold for what the parser makes. */
#include "base/err.h"
#include "file/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { MAX_DEPTH = 8, MAX_VALUES = 256 };

/* Counts values; recursion is bounded by what is checked. */
static size_t count(json_t *value, size_t depth) {
    size_t n = 1;
    json_t *child;
    if (!json_is_object(value) && !json_is_array(value))
        return n;
    CHECK(++depth <= MAX_DEPTH);
    for (size_t i = 0; i < json_array_size(value); i++)
        n += count(json_array_get(value, i), depth);
    const char *key;
    json_object_foreach(value, key, child) {
        n += count(child, depth);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct err err = {0};
    struct json_limits limits = {.max_depth = MAX_DEPTH, .max_values = MAX_VALUES};
    json_t *value = json_parse((struct str){(const char *)bytes, size}, "text", &limits, &err);
    if (value)
        CHECK(count(value, 0) <= MAX_VALUES);
    else
        CHECK(err.code < 0 && strncmp(err.text, "text: ", 6) == 0);
    json_decref(value);
    return 0;
}
