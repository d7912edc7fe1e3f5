/* schema_array.c - arrays of a schema as expressions: items, those with a place of their own first.
 */
#include <stdio.h>

#include "base/size.h"
#include "grammar/schema.h"

enum { MAX_PREFIX = 256 };

struct items {
    const json_t *prefix; /* an array, or NULL */
    uint32_t n_prefix;
    const struct expr *rest; /* what follows them */
    uint32_t min, max;
};

static bool read_items(struct schema *s, const json_t *flat, struct items *out) {
    const json_t *prefix = json_object_get(flat, "prefixItems"),
                 *items = json_object_get(flat, "items");
    if (!prefix && json_is_array(items)) { /* drafts before 2020-12 */
        prefix = items;
        items = json_object_get(flat, "additionalItems");
    }
    *out = (struct items){.prefix = prefix, .max = REPEAT_NO_LIMIT};
    out->n_prefix = (uint32_t)json_array_size(prefix);
    if ((prefix && !json_is_array(prefix)) || out->n_prefix > MAX_PREFIX) {
        schema_fail(s, SLUICE_ERR_UNSUPPORTED, "prefixItems is not an array of up to %d",
                    MAX_PREFIX);
        return false;
    }
    if (!schema_count(s, flat, "minItems", &out->min) ||
        !schema_count(s, flat, "maxItems", &out->max))
        return false;
    bool is_open = !prefix || out->min > out->n_prefix;
    size_t length = schema_enter(s, "items", NULL);
    out->rest = items     ? schema_as_rule(s, schema_compile(s, items))
                : is_open ? schema_any_value(s)
                          : expr_never(s->b);
    schema_leave(s, length);
    return !s->status;
}

static const struct expr *prefix_item(struct schema *s, const struct items *items, uint32_t i) {
    char name[16];
    snprintf(name, sizeof name, "%u", i);
    size_t length = schema_enter(s, "prefixItems", name);
    const struct expr *e = schema_compile(s, json_array_get(items->prefix, i));
    schema_leave(s, length);
    return e;
}

/* Built from the end: what follows i items, then one more item before it. */
const struct expr *schema_array(struct schema *s, const json_t *flat) {
    struct builder *b = s->b;
    struct items items;
    if (!read_items(s, flat, &items))
        return expr_never(b);
    if (items.min > items.max)
        return expr_never(b);
    const struct expr *close = schema_before(s, "]"), *tail;
    const struct expr *more = expr_pair(b, schema_after(s, ","), items.rest);
    uint32_t n = min_u32(items.n_prefix, items.max), taken = max_u32(n, 1);
    uint32_t min = items.min > taken ? items.min - taken : 0;
    uint32_t max = items.max == REPEAT_NO_LIMIT ? items.max
                   : items.max > taken          ? items.max - taken
                                                : 0;
    tail = expr_pair(b, expr_repeat(b, more, min, max), close);
    for (uint32_t i = n; i-- > 0;) {
        const struct expr *item = prefix_item(s, &items, i);
        if (i)
            item = expr_pair(b, schema_after(s, ","), item);
        tail = expr_pair(b, item, tail);
        if (i && i >= items.min)
            tail = expr_either(b, close, tail);
    }
    if (n == 0)
        tail = items.max ? expr_pair(b, items.rest, tail) : expr_never(b);
    if (items.min == 0)
        tail = expr_either(b, close, tail);
    const struct expr *open = expr_text(b, "[");
    return expr_either(b, items.min == 0 ? expr_text(b, "[]") : expr_never(b),
                       expr_triple(b, open, schema_blank(s), tail));
}
