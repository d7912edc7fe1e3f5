/* fuzz_safetensors.c - any bytes as a safetensors file: what opens must be whole. */
#include "file/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static uint64_t sum; /* so that no read is optimized away */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct safetensors *st;
    struct err err = {0};
    if (safetensors_parse(&st, bytes, size, &err)) {
        CHECK(!st && err.code < 0 && strstr(err.text, "(memory): "));
        return 0;
    }
    uint64_t total = 0;
    for (uint32_t i = 0; i < st->n_tensors; i++) {
        const struct tensor *t = &st->tensors[i];
        CHECK(safetensors_find(st, t->name) == t);
        CHECK(t->data >= bytes && t->bytes <= size && t->data + t->bytes <= bytes + size);
        if (t->bytes > 0)
            sum += (uint64_t)t->data[0] + t->data[t->bytes - 1];
        total += t->bytes;
    }
    CHECK(total <= size);
    safetensors_close(st);
    return 0;
}
