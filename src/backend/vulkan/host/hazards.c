/* hazards.c - see hazards.h. */
#include "backend/vulkan/host/hazards.h"

#include "base/err.h"

/* Nothing writes these but the counters in TABLES, of which dispatches side by side have their own.
 */
static bool is_constant(const struct vulkan_bind *b) {
    return b->memory == VULKAN_WEIGHTS || b->memory == VULKAN_TABLES;
}

/* Of rows of the same width: columns wrap around, as binds may begin anywhere in a row. */
static bool share_columns(const struct vulkan_bind *a, const struct vulkan_bind *b) {
    if (a->row_bytes == 0 || a->row_bytes != b->row_bytes)
        return true;
    uint64_t row = a->row_bytes, x = (a->offset + a->column) % row,
             y = (b->offset + b->column) % row;
    return (y + row - x) % row < a->width || (x + row - y) % row < b->width;
}

static bool share_bytes(const struct vulkan_bind *a, const struct vulkan_bind *b) {
    return a->memory == b->memory && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes && share_columns(a, b);
}

bool hazards_need_barrier(const struct hazards *h, const struct vulkan_bind *binds, uint32_t n) {
    if (h->n + n > MAX_HAZARDS)
        return true;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < h->n; k++)
            if ((binds[i].access | h->list[k].access) & VULKAN_WRITE &&
                share_bytes(&binds[i], &h->list[k]))
                return true;
    return false;
}

void hazards_add(struct hazards *h, const struct vulkan_bind *binds, uint32_t n) {
    CHECK(h->n + n <= MAX_HAZARDS);
    for (uint32_t i = 0; i < n; i++)
        if (!is_constant(&binds[i]))
            h->list[h->n++] = binds[i];
}
