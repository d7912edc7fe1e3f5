/* fuzz_imatrix.c - any bytes as an importance matrix: what opens gives weights that can be used. */
#include <stdlib.h>

#include "model/imatrix.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* For a tensor whose width is that of one of the entry's matrices, and for one of half of it. */
static void weigh(const struct imatrix *m, const struct imatrix_entry *e) {
    struct err err = {0};
    for (uint64_t part = 1; part <= 2; part++) {
        uint64_t width = e->n_sums / e->n_counts / part, n;
        if (width == 0)
            continue;
        struct tensor t = {.name = e->name, .n_dims = 3, .dims = {width, 1, e->n_counts, 1}};
        float *weights;
        if (imatrix_weights(m, &t, &weights, &n, &err)) {
            CHECK(!weights && err.code < 0 && err.text[0]);
            continue;
        }
        for (uint64_t i = 0; i < n * width; i++)
            CHECK(weights[i] > 0 && weights[i] <= 3.4e38f);
        free(weights);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct imatrix *m;
    struct err err = {0};
    if (imatrix_parse(&m, bytes, size, &err)) {
        CHECK(!m && err.code < 0 && err.text[0]);
        return 0;
    }
    CHECK(m->n_entries > 0 && m->arena.used <= 64 * size + (64 << 10));
    for (uint32_t i = 0; i < m->n_entries; i++)
        weigh(m, &m->entries[i]);
    imatrix_close(m);
    return 0;
}
