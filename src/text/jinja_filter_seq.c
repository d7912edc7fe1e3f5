/* jinja_filter_seq.c - the filters that work on sequences and dicts: one row each.
 *
 * What Jinja2 returns as a generator is one here too, though its items are made at once: it can be
 * iterated once, has no length and is always true. */
#include "text/jinja_eval.h"

static bool is_given(struct value v) {
    return v.type != VALUE_MISSING && v.type != VALUE_NONE;
}

static bool filter_list(struct render *render, const struct call *call, struct value *out) {
    struct value *items;
    size_t count;
    if (!jinja_iterate(render, call->self, &items, &count) ||
        !jinja_seq(render, SEQ_LIST, count, out))
        return false;
    if (count)
        memcpy(out->seq->items, items, count * sizeof *items);
    return true;
}

static bool filter_items(struct render *render, const struct call *call, struct value *out) {
    if (call->self.type == VALUE_UNDEFINED)
        return jinja_seq(render, SEQ_GENERATOR, 0, out);
    if (call->self.type != VALUE_DICT)
        return jinja_fail(render, "Can only get item pairs from a mapping.");
    if (!jinja_dict_view(render, call->self.dict, SEQ_ITEMS, out))
        return false;
    out->seq->kind = SEQ_GENERATOR;
    return true;
}

static bool filter_first(struct render *render, const struct call *call, struct value *out) {
    struct value *items;
    size_t count;
    struct value v = call->self;
    bool is_generator = v.type == VALUE_SEQ && v.seq->kind == SEQ_GENERATOR;
    size_t next = is_generator ? v.seq->next : 0;
    if (!jinja_iterate(render, v, &items, &count))
        return false;
    if (is_generator)
        v.seq->next = next + (count > 0); /* only one is taken */
    if (count == 0)
        return jinja_undefined(render, out, "No first item, sequence was empty.");
    *out = items[0];
    return true;
}

static bool filter_last(struct render *render, const struct call *call, struct value *out) {
    struct value *items;
    size_t count;
    if (call->self.type == VALUE_SEQ && call->self.seq->kind == SEQ_GENERATOR)
        return jinja_fail(render, "'generator' object is not reversible");
    if (!jinja_iterate(render, call->self, &items, &count))
        return false;
    if (count == 0)
        return jinja_undefined(render, out, "No last item, sequence was empty.");
    *out = items[count - 1];
    return true;
}

static bool filter_reverse(struct render *render, const struct call *call, struct value *out) {
    struct value *items, v = call->self, back[3] = {{0}, {0}, value_int(-1)};
    size_t count;
    if (v.type == VALUE_STRING)
        return jinja_slice(render, v, back, out);
    bool is_generator = v.type == VALUE_SEQ && v.seq->kind == SEQ_GENERATOR;
    if (!jinja_iterate(render, v, &items, &count) ||
        !jinja_seq(render, is_generator ? SEQ_LIST : SEQ_GENERATOR, count, out))
        return false;
    for (size_t i = 0; i < count; i++)
        out->seq->items[i] = items[count - 1 - i];
    return true;
}

/* ---- by attribute ---- */

static bool is_digits(struct str s) {
    for (size_t i = 0; i < s.len; i++)
        if (s.at[i] < '0' || s.at[i] > '9')
            return false;
    return s.len > 0;
}

/* item.a.b for the attribute "a.b"; digits are indices; none gives the item. `fallback`, when
 * given, takes the place of what is undefined on the way. */
static bool get_or_default(struct render *render, struct value item, struct value path,
                           struct value fallback, struct value *out) {
    *out = item;
    if (!is_given(path))
        return true;
    if (path.type != VALUE_STRING) {
        if (!jinja_item(render, item, path, out))
            return false;
        if (out->type == VALUE_UNDEFINED && is_given(fallback))
            *out = fallback;
        return true;
    }
    for (struct str rest = path.string->text;;) {
        const char *dot = memchr(rest.at, '.', rest.len);
        struct str part = {rest.at, dot ? (size_t)(dot - rest.at) : rest.len};
        int64_t index;
        bool is_too_big;
        struct value key;
        if (!jinja_charge(render, JINJA_CHAR * part.len))
            return false;
        bool is_index = is_digits(part) && jinja_parse_int(part, 10, &index, &is_too_big);
        if (is_index)
            key = value_int(index);
        else if (!jinja_string(render, part, &key))
            return false;
        if (!jinja_item(render, *out, key, out))
            return false;
        if (out->type == VALUE_UNDEFINED && is_given(fallback))
            *out = fallback;
        if (!dot)
            return true;
        rest = str_skip(rest, part.len + 1);
    }
}

static bool get_by_path(struct render *render, struct value item, struct value path,
                        struct value *out) {
    return get_or_default(render, item, path, (struct value){0}, out);
}

static bool ignore_case(struct render *render, struct value *v) {
    return v->type != VALUE_STRING || jinja_change_case(render, v->string->text, CASE_LOWER, v);
}

static bool sort_key(struct render *render, struct value item, struct value path, bool is_cased,
                     struct value *out) {
    return get_by_path(render, item, path, out) && (is_cased || ignore_case(render, out));
}

static bool filter_join(struct render *render, const struct call *call, struct value *out) {
    struct value *items, between = {0}, item;
    size_t count, at = render->out->len;
    if (call->args[0].type != VALUE_MISSING && !jinja_to_string(render, call->args[0], &between))
        return false;
    if (!jinja_iterate(render, call->self, &items, &count))
        return false;
    for (size_t i = 0; i < count; i++)
        if ((i > 0 && between.type == VALUE_STRING && !jinja_put(render, between.string->text)) ||
            !get_by_path(render, items[i], call->args[1], &item) || !jinja_put_str(render, item))
            return false;
    return jinja_take(render, at, out);
}

static bool filter_sum(struct render *render, const struct call *call, struct value *out) {
    struct value *items, item;
    size_t count;
    *out = call->args[1].type == VALUE_MISSING ? value_int(0) : call->args[1];
    if (out->type == VALUE_STRING)
        return jinja_fail(render, "sum() can't sum strings");
    if (!jinja_iterate(render, call->self, &items, &count))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!get_by_path(render, items[i], call->args[0], &item) ||
            !jinja_binary(render, TK_ADD, *out, item, out))
            return false;
    return true;
}

static bool extreme(struct render *render, const struct call *call, int op, struct value *out) {
    struct value *items, key, best;
    size_t count;
    bool is_cased = jinja_truth(call->args[0]), better;
    if (!jinja_iterate(render, call->self, &items, &count))
        return false;
    if (count == 0)
        return jinja_undefined(render, out, "No aggregated item, sequence was empty.");
    *out = items[0];
    if (!sort_key(render, items[0], call->args[1], is_cased, &best))
        return false;
    for (size_t i = 1; i < count; i++) {
        if (!sort_key(render, items[i], call->args[1], is_cased, &key) ||
            !jinja_less(render, key, best, op, &better))
            return false;
        if (better) {
            best = key;
            *out = items[i];
        }
    }
    return true;
}

static bool filter_min(struct render *render, const struct call *call, struct value *out) {
    return extreme(render, call, TK_LT, out);
}

static bool filter_max(struct render *render, const struct call *call, struct value *out) {
    return extreme(render, call, TK_GT, out);
}

/* Merge sort: stable, and a comparison may fail. Equal pairs keep their order in reverse too. */
static bool sort_pairs(struct render *render, struct pair *pairs, struct pair *spare, size_t count,
                       bool is_reverse) {
    if (count < 2)
        return true;
    size_t half = count / 2, a = 0, b = half;
    if (!sort_pairs(render, pairs, spare, half, is_reverse) ||
        !sort_pairs(render, pairs + half, spare, count - half, is_reverse))
        return false;
    for (size_t i = 0; i < count; i++) {
        bool takes_b = a == half;
        if (a < half && b < count &&
            !jinja_less(render, pairs[b].key, pairs[a].key, is_reverse ? TK_GT : TK_LT, &takes_b))
            return false;
        spare[i] = takes_b ? pairs[b++] : pairs[a++];
    }
    memcpy(pairs, spare, count * sizeof *pairs);
    return jinja_work(render, count * 8);
}

/* A list of the values of the pairs in the order of their keys. */
static bool sorted_list(struct render *render, struct pair *pairs, size_t count, bool is_reverse,
                        struct value *out) {
    struct pair *spare = jinja_alloc(render, count, sizeof *spare);
    if (!spare || !sort_pairs(render, pairs, spare, count, is_reverse) ||
        !jinja_seq(render, SEQ_LIST, count, out))
        return false;
    for (size_t i = 0; i < count; i++)
        out->seq->items[i] = pairs[i].value;
    return true;
}

/* The keys of one or several attributes, "a,b.c", as a list: so equal keys are never compared for
 * order. */
static bool list_key(struct render *render, struct value item, struct value paths, bool is_cased,
                     struct value *out) {
    size_t capacity = 0;
    struct value key, path = paths;
    struct str rest = paths.type == VALUE_STRING ? paths.string->text : STR("");
    if (!jinja_seq(render, SEQ_LIST, 0, out))
        return false;
    for (;;) {
        const char *comma = memchr(rest.at, ',', rest.len);
        struct str part = {rest.at, comma ? (size_t)(comma - rest.at) : rest.len};
        if ((paths.type == VALUE_STRING && !jinja_string(render, part, &path)) ||
            !sort_key(render, item, path, is_cased, &key) ||
            !jinja_push(render, out->seq, &capacity, key))
            return false;
        if (!comma)
            return true;
        rest = str_skip(rest, part.len + 1);
    }
}

static bool filter_sort(struct render *render, const struct call *call, struct value *out) {
    struct value *items;
    size_t count;
    if (!jinja_iterate(render, call->self, &items, &count))
        return false;
    struct pair *pairs = jinja_alloc(render, count, sizeof *pairs);
    if (!pairs)
        return false;
    for (size_t i = 0; i < count; i++) {
        pairs[i].value = items[i];
        if (!list_key(render, items[i], call->args[2], jinja_truth(call->args[1]), &pairs[i].key))
            return false;
    }
    return sorted_list(render, pairs, count, jinja_truth(call->args[0]), out);
}

static bool filter_dictsort(struct render *render, const struct call *call, struct value *out) {
    struct value by = call->args[1], view;
    if (!jinja_defined(render, call->self))
        return false;
    if (call->self.type != VALUE_DICT)
        return jinja_fail(render, "'%s' object has no items", jinja_type_name(call->self));
    bool by_value = by.type == VALUE_STRING && str_is(by.string->text, "value");
    if (by.type != VALUE_MISSING && !by_value &&
        !(by.type == VALUE_STRING && str_is(by.string->text, "key")))
        return jinja_fail(render, "You can only sort by either \"key\" or \"value\"");
    if (!jinja_dict_view(render, call->self.dict, SEQ_ITEMS, &view))
        return false;
    struct pair *pairs = jinja_alloc(render, view.seq->count, sizeof *pairs);
    if (!pairs)
        return false;
    for (size_t i = 0; i < view.seq->count; i++) {
        pairs[i].value = view.seq->items[i];
        pairs[i].key = view.seq->items[i].seq->items[by_value];
        if (!jinja_truth(call->args[0]) && !ignore_case(render, &pairs[i].key))
            return false;
    }
    return sorted_list(render, pairs, view.seq->count, jinja_truth(call->args[2]), out);
}

static bool filter_unique(struct render *render, const struct call *call, struct value *out) {
    struct value *items, key, seen;
    size_t count, capacity = 0, n_seen = 0;
    if (!jinja_iterate(render, call->self, &items, &count) ||
        !jinja_seq(render, SEQ_GENERATOR, 0, out) || !jinja_seq(render, SEQ_LIST, 0, &seen))
        return false;
    for (size_t i = 0; i < count; i++) {
        bool is_known;
        if (!sort_key(render, items[i], call->args[1], jinja_truth(call->args[0]), &key) ||
            !jinja_hashable(render, key) || !jinja_contains(render, key, seen, &is_known))
            return false;
        if (!is_known && (!jinja_push(render, seen.seq, &n_seen, key) ||
                          !jinja_push(render, out->seq, &capacity, items[i])))
            return false;
    }
    return true;
}

/* ---- over all items ---- */

/* The arguments without the first `n`. */
static struct args args_after(const struct args *args, size_t n) {
    struct args rest = *args;
    rest.at += n;
    rest.count -= n;
    return rest;
}

static bool find_by_value(struct render *render, struct value name, const char *what,
                          const struct builtin *(*find)(struct str), const struct builtin **out) {
    *out = name.type == VALUE_STRING ? find(name.string->text) : NULL;
    if (*out)
        return true;
    return jinja_fail(render, "no %s named '%.*s'", what,
                      STR_ARG(name.type == VALUE_STRING ? name.string->text : STR("?")));
}

/* map(attribute="a.b", default=x) */
static bool map_attribute(struct render *render, const struct args *args, struct value item,
                          struct value *out) {
    struct value path = {0}, fallback = {0};
    for (size_t i = 0; i < args->n_named; i++) {
        if (str_is(args->named[i].name, "attribute"))
            path = args->named[i].value;
        else if (str_is(args->named[i].name, "default"))
            fallback = args->named[i].value;
        else
            return jinja_fail(render, "Unexpected keyword argument '%.*s'",
                              STR_ARG(args->named[i].name));
    }
    return get_or_default(render, item, path, fallback, out);
}

static bool map_item(struct render *render, const struct args *args, struct value item,
                     struct value *out) {
    bool has_attribute = false;
    for (size_t i = 0; i < args->n_named; i++)
        has_attribute |= str_is(args->named[i].name, "attribute");
    if (args->count == 0 && has_attribute)
        return map_attribute(render, args, item, out);
    if (args->count == 0)
        return jinja_fail(render, "map requires a filter argument");
    const struct builtin *filter;
    struct args rest = args_after(args, 1);
    return find_by_value(render, args->at[0], "filter", jinja_filter_find, &filter) &&
           jinja_call_builtin(render, filter, item, &rest, out);
}

static bool filter_map(struct render *render, const struct call *call, struct value *out) {
    struct value *items, item;
    size_t count, capacity = 0;
    if (!jinja_seq(render, SEQ_GENERATOR, 0, out))
        return false;
    if (!jinja_truth(call->self))
        return true;
    if (!jinja_iterate(render, call->self, &items, &count))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!map_item(render, call->all, items[i], &item) ||
            !jinja_push(render, out->seq, &capacity, item))
            return false;
    return true;
}

/* Whether an item passes: the test named by the first argument, or its truth. */
static bool passes(struct render *render, struct value item, const struct args *args, bool *out) {
    struct value result = item;
    if (args->count > 0) {
        const struct builtin *test;
        struct args rest = args_after(args, 1);
        if (!find_by_value(render, args->at[0], "test", jinja_test_find, &test) ||
            !jinja_call_builtin(render, test, item, &rest, &result))
            return false;
    }
    *out = jinja_truth(result);
    return true;
}

static bool choose(struct render *render, const struct call *call, bool wanted, bool by_attribute,
                   struct value *out) {
    struct value *items, item;
    size_t count, capacity = 0;
    if (!jinja_seq(render, SEQ_GENERATOR, 0, out))
        return false;
    if (!jinja_truth(call->self))
        return true;
    if (by_attribute && call->all->count == 0)
        return jinja_fail(render, "Missing parameter for attribute name");
    struct args args = args_after(call->all, by_attribute);
    if (!jinja_iterate(render, call->self, &items, &count))
        return false;
    for (size_t i = 0; i < count; i++) {
        bool is_chosen;
        item = items[i];
        if ((by_attribute && !get_by_path(render, items[i], call->all->at[0], &item)) ||
            !passes(render, item, &args, &is_chosen))
            return false;
        if (is_chosen == wanted && !jinja_push(render, out->seq, &capacity, items[i]))
            return false;
    }
    return true;
}

static bool filter_select(struct render *render, const struct call *call, struct value *out) {
    return choose(render, call, true, false, out);
}

static bool filter_reject(struct render *render, const struct call *call, struct value *out) {
    return choose(render, call, false, false, out);
}

static bool filter_selectattr(struct render *render, const struct call *call, struct value *out) {
    return choose(render, call, true, true, out);
}

static bool filter_rejectattr(struct render *render, const struct call *call, struct value *out) {
    return choose(render, call, false, true, out);
}

static bool filter_attr(struct render *render, const struct call *call, struct value *out) {
    struct value v = call->self, name = call->args[0];
    if (name.type != VALUE_STRING)
        return jinja_fail(render, "attribute name must be a string");
    if (!jinja_defined(render, v))
        return false;
    /* Unlike a.name, never an item of a dict. */
    if (v.type == VALUE_DICT && !jinja_method_find(v, name.string->text))
        return jinja_undefined(render, out, "'dict object' has no attribute '%.*s'",
                               STR_ARG(name.string->text));
    return jinja_attribute(render, v, name.string->text, out);
}

/* clang-format off */
const struct builtin jinja_seq_filters[] = {
    {"attr", "name", filter_attr, PAYS_BY_SIZE},
    {"dictsort", "/ case_sensitive by reverse", filter_dictsort, PAYS_BY_SIZE},
    {"first", "", filter_first, PAYS_ITSELF}, {"items", "", filter_items, PAYS_ITSELF},
    {"join", "/ d attribute", filter_join, PAYS_ITSELF}, {"last", "", filter_last, PAYS_ITSELF},
    {"list", "", filter_list, PAYS_ITSELF}, {"map", "*", filter_map, PAYS_ITSELF},
    {"max", "/ case_sensitive attribute", filter_max, PAYS_BY_SIZE},
    {"min", "/ case_sensitive attribute", filter_min, PAYS_BY_SIZE},
    {"reject", "*", filter_reject, PAYS_ITSELF},
    {"rejectattr", "*", filter_rejectattr, PAYS_ITSELF},
    {"reverse", "", filter_reverse, PAYS_ITSELF}, {"select", "*", filter_select, PAYS_ITSELF},
    {"selectattr", "*", filter_selectattr, PAYS_ITSELF},
    {"sort", "/ reverse case_sensitive attribute", filter_sort, PAYS_BY_SIZE},
    {"sum", "/ attribute start", filter_sum, PAYS_BY_SIZE},
    {"unique", "/ case_sensitive attribute", filter_unique, PAYS_BY_SIZE}, {0},
};
/* clang-format on */
