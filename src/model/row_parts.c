/* row_parts.c - matrices whose rows are grouped. */
#include "model/row_parts.h"

static uint32_t values_of(const struct delta_heads *h) {
    return h->value_heads / h->key_heads * h->value_width;
}

static struct row_parts qkvz_of(const struct delta_heads *h) {
    return (struct row_parts){.groups = h->key_heads,
                              .group_rows = 2 * (h->key_width + values_of(h))};
}

struct row_parts row_parts_qkv(const struct delta_heads *h) {
    struct row_parts p = qkvz_of(h);
    uint32_t keys = h->key_width;
    p.n_parts = 3;
    p.parts[0].count = p.parts[1].count = keys;
    p.parts[1].first = keys;
    p.parts[2].first = 2 * keys;
    p.parts[2].count = values_of(h);
    return p;
}

struct row_parts row_parts_z(const struct delta_heads *h) {
    struct row_parts p = qkvz_of(h);
    p.n_parts = 1;
    p.parts[0].count = values_of(h);
    p.parts[0].first = p.group_rows - p.parts[0].count;
    return p;
}

struct row_parts row_parts_beta(const struct delta_heads *h) {
    uint32_t heads = h->value_heads / h->key_heads;
    return (struct row_parts){
        .groups = h->key_heads, .group_rows = 2 * heads, .n_parts = 1, .parts = {{0, heads}}};
}

struct row_parts row_parts_alpha(const struct delta_heads *h) {
    struct row_parts p = row_parts_beta(h);
    p.parts[0].first = p.parts[0].count;
    return p;
}

uint64_t row_parts_count(const struct row_parts *p) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_parts; i++)
        n += (uint64_t)p->groups * p->parts[i].count;
    return n;
}

uint64_t row_parts_of(const struct row_parts *p) {
    return (uint64_t)p->groups * p->group_rows;
}

uint64_t row_parts_source(const struct row_parts *p, uint64_t at) {
    uint32_t i = 0;
    for (; i + 1 < p->n_parts && at >= (uint64_t)p->groups * p->parts[i].count; i++)
        at -= (uint64_t)p->groups * p->parts[i].count;
    return at / p->parts[i].count * p->group_rows + p->parts[i].first + at % p->parts[i].count;
}
