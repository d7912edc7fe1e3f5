/* schema_merge.c - merging schemas that must all hold, and when two exclude each other. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"

enum { MAX_DEPTH = 64, MAX_MERGED = 40000, MAX_WORK = 4 * 1000 * 1000 };

/* ---- schemas made on the way -------------------------------------------------------------- */

/* Takes the reference. NULL (out of memory) and too many schemas are a failure and give {}. */
static json_t *keep(struct schema *s, json_t *made) {
    if (++s->n_merged > MAX_MERGED) {
        schema_fail(s, SLUICE_ERR_UNSUPPORTED,
                    "the schema is too large: merging its parts makes more than %d schemas",
                    MAX_MERGED);
        json_decref(made);
    } else {
        schema_work(s, json_object_size(made));
        if (made && json_array_append_new(s->made, made) == 0)
            return made;
        schema_fail(s, SLUICE_ERR_MEMORY, "out of memory for a schema");
    }
    json_t *empty = json_object();
    if (empty && json_array_append_new(s->made, empty) == 0)
        return empty;
    return json_array_get(s->made, 0); /* {}, made first */
}

const json_t *schema_without(struct schema *s, const json_t *object, const char *key) {
    json_t *copy = keep(s, json_copy((json_t *)object));
    json_object_del(copy, key);
    return copy;
}

bool schema_work(struct schema *s, uint64_t n) {
    s->work += n;
    if (s->work > MAX_WORK)
        schema_fail(s, SLUICE_ERR_UNSUPPORTED,
                    "the schema is too large: its parts take more than %d comparisons", MAX_WORK);
    return s->work <= MAX_WORK;
}

/* ---- references --------------------------------------------------------------------------- */

/* A step of a JSON pointer: "~1" is a slash, "~0" a tilde, "%22" a byte. */
static bool unescape(const char *from, size_t n, char *to, size_t capacity) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        char c = from[i];
        unsigned byte;
        if (c == '%' && i + 2 < n && sscanf(from + i + 1, "%2x", &byte) == 1) {
            c = (char)byte;
            i += 2;
        } else if (c == '~' && i + 1 < n) {
            c = from[++i] == '1' ? '/' : '~';
        }
        if (used + 1 >= capacity)
            return false;
        to[used++] = c;
    }
    to[used] = 0;
    return true;
}

static const json_t *step(const json_t *at, const char *name) {
    if (json_is_array(at)) {
        char *end;
        unsigned long i = strtoul(name, &end, 10);
        return *name && !*end ? json_array_get(at, i) : NULL;
    }
    return json_object_get(at, name);
}

const json_t *schema_resolve(struct schema *s, const char *ref) {
    const json_t *at = s->root;
    const char *from = ref + 1;
    if (ref[0] != '#' || (ref[1] && ref[1] != '/')) {
        schema_fail(s, SLUICE_ERR_UNSUPPORTED,
                    "$ref \"%s\" is not supported, expected # or #/ and a path", ref);
        return NULL;
    }
    while (*from == '/' && at) {
        char name[256];
        size_t n = strcspn(++from, "/");
        at = unescape(from, n, name, sizeof name) ? step(at, name) : NULL;
        from += n;
    }
    if (!at || (!json_is_object(at) && !json_is_boolean(at))) {
        schema_fail(s, SLUICE_ERR_FORMAT, "$ref \"%s\" leads to no schema", ref);
        return NULL;
    }
    return at;
}

/* ---- types -------------------------------------------------------------------------------- */

static unsigned type_of_name(const char *name) {
    static const struct {
        const char *name;
        unsigned types;
    } names[] = {{"null", TYPE_NULL},       {"boolean", TYPE_BOOLEAN},
                 {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER | TYPE_INTEGER},
                 {"string", TYPE_STRING},   {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT}};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, name) == 0)
            return names[i].types;
    return 0;
}

static unsigned type_of_value(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return floor(json_real_value(value)) == json_real_value(value) ? TYPE_INTEGER : TYPE_NUMBER;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    default:
        return TYPE_OBJECT;
    }
}

/* The values it lists, as an array; NULL: it does not. */
static const json_t *values_of(struct schema *s, const json_t *flat) {
    const json_t *value = json_object_get(flat, "const"), *list = json_object_get(flat, "enum");
    return value ? keep(s, json_pack("[O]", value)) : list;
}

unsigned schema_types(struct schema *s, const json_t *flat) {
    const json_t *type = json_object_get(flat, "type"), *values = values_of(s, flat), *each;
    unsigned types = 0, listed = 0;
    size_t i;
    if (json_is_string(type))
        types = type_of_name(json_string_value(type));
    json_array_foreach(type, i, each) types |= type_of_name(json_string_value(each));
    if (!type)
        types = TYPE_ANY;
    else if (types && json_is_true(json_object_get(flat, "nullable")))
        types |= TYPE_NULL;
    if (type && !types && !(json_is_array(type) && json_array_size(type) == 0))
        schema_fail(s, SLUICE_ERR_FORMAT,
                    "type is not one of null, boolean, integer, number, "
                    "string, array, object");
    json_array_foreach(values, i, each) listed |= type_of_value(each);
    return values ? types & listed : types;
}

static json_t *write_types(unsigned types) {
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    json_t *list = json_array();
    for (int i = 0; list && i < 7; i++)
        if (types >> i & 1)
            json_array_append_new(list, json_string(names[i]));
    return list;
}

/* ---- values ------------------------------------------------------------------------------- */

static int compare_integers(json_int_t a, json_int_t b) {
    return (a > b) - (a < b);
}

/* Below 0, 0 or above 0. Exact: f64 does not tell all integers above 2^53 apart. */
static int compare_numbers(const json_t *a, const json_t *b) {
    const double limit = 9223372036854775808.0; /* what the largest integers are as f64 */
    double x = json_number_value(a), y = json_number_value(b);
    if (json_is_integer(a) && json_is_integer(b))
        return compare_integers(json_integer_value(a), json_integer_value(b));
    if (x != y || json_is_real(a) == json_is_real(b))
        return (x > y) - (x < y);
    if (x == limit)
        return json_is_real(a) ? 1 : -1;
    return json_is_real(a) ? compare_integers((json_int_t)x, json_integer_value(b))
                           : compare_integers(json_integer_value(a), (json_int_t)y);
}

/* As JSON Schema compares: 1 and 1.0 are equal, also inside of others. */
static bool same_value(const json_t *a, const json_t *b) {
    const char *key;
    const json_t *each;
    size_t i;
    if (json_is_number(a) && json_is_number(b))
        return compare_numbers(a, b) == 0;
    if (json_typeof(a) != json_typeof(b) || json_array_size(a) != json_array_size(b) ||
        json_object_size(a) != json_object_size(b))
        return false;
    json_array_foreach(a, i, each) if (!same_value(each, json_array_get(b, i))) return false;
    json_object_foreach((json_t *)a, key, each) {
        const json_t *other = json_object_get(b, key);
        if (!other || !same_value(each, other))
            return false;
    }
    return json_is_array(a) || json_is_object(a) || json_equal(a, b);
}

static bool is_listed(struct schema *s, const json_t *values, const json_t *value) {
    const json_t *each;
    size_t i;
    if (!schema_work(s, json_array_size(values)))
        return false;
    json_array_foreach(values, i, each) if (same_value(each, value)) return true;
    return false;
}

static size_t count_characters(const char *text) {
    size_t n = 0;
    for (; *text; text++)
        n += (*text & 0xC0) != 0x80;
    return n;
}

/* A limit of the schema, or `none`. */
static double limit(const json_t *flat, const char *key, double none) {
    const json_t *value = json_object_get(flat, key);
    return json_is_number(value) ? json_number_value(value) : none;
}

/* The stricter of the two limits of a side; `at` NULL: there is none. In draft 4 "exclusive..." is
 * true or false. */
struct bound {
    const json_t *at;
    bool is_open;
};

static struct bound bound_of(const json_t *flat, bool is_low) {
    const json_t *closed = json_object_get(flat, is_low ? "minimum" : "maximum");
    const json_t *open = json_object_get(flat, is_low ? "exclusiveMinimum" : "exclusiveMaximum");
    if (!json_is_number(closed))
        closed = NULL;
    if (!json_is_number(open))
        return (struct bound){closed, json_is_true(open)};
    int order = closed ? compare_numbers(open, closed) : 0;
    return order == 0 || (order > 0) == is_low ? (struct bound){open, true}
                                               : (struct bound){closed, false};
}

/* Whether no number is above the one and below the other. */
static bool is_empty_range(struct bound low, struct bound high) {
    int order = low.at && high.at ? compare_numbers(low.at, high.at) : -1;
    return order > 0 || (order == 0 && (low.is_open || high.is_open));
}

bool schema_value_fits(struct schema *s, const json_t *flat, const json_t *value) {
    const double inf = 1e308;
    if (!(schema_types(s, flat) & type_of_value(value)))
        return false;
    const json_t *values = values_of(s, flat);
    if (values && !is_listed(s, values, value))
        return false;
    const struct bound own = {value, false};
    if (json_is_number(value))
        return !is_empty_range(bound_of(flat, true), own) &&
               !is_empty_range(own, bound_of(flat, false));
    if (json_is_string(value)) {
        double n = (double)count_characters(json_string_value(value));
        return n >= limit(flat, "minLength", 0) && n <= limit(flat, "maxLength", inf);
    }
    double n = json_is_array(value) ? (double)json_array_size(value) : 0;
    if (json_is_array(value))
        return n >= limit(flat, "minItems", 0) && n <= limit(flat, "maxItems", inf);
    n = (double)json_object_size(value);
    return !json_is_object(value) ||
           (n >= limit(flat, "minProperties", 0) && n <= limit(flat, "maxProperties", inf));
}

/* ---- merging ------------------------------------------------------------------------------ */

static json_t *all_of(const json_t *a, const json_t *b) {
    if (json_is_true(a) || json_equal(a, b))
        return json_incref((json_t *)b);
    if (json_is_true(b))
        return json_incref((json_t *)a);
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    return json_pack("{s:[O,O]}", "allOf", a, b);
}

/* A property that only one schema lists must match the other's additionalProperties. */
static void merge_properties(struct schema *s, json_t *to, const json_t *a, const json_t *b) {
    const json_t *mine = json_object_get(a, "properties"),
                 *theirs = json_object_get(b, "properties");
    const json_t *my_rest = json_object_get(a, "additionalProperties");
    const json_t *their_rest = json_object_get(b, "additionalProperties");
    json_t *all = json_object(), *value;
    const char *key;
    if (!schema_work(s, json_object_size(mine) + json_object_size(theirs))) {
        json_decref(all);
        return;
    }
    json_object_foreach((json_t *)mine, key, value) {
        const json_t *other = json_object_get(theirs, key);
        other = other ? other : their_rest;
        json_object_set_new(all, key, other ? all_of(value, other) : json_incref(value));
    }
    json_object_foreach((json_t *)theirs, key, value) {
        if (!json_object_get(mine, key))
            json_object_set_new(all, key, my_rest ? all_of(value, my_rest) : json_incref(value));
    }
    json_object_set_new(to, "properties", all);
}

/* The patternProperties of one must match the additionalProperties of the other, which has no
 * patterns. */
static void merge_patterns(struct schema *s, json_t *to, const json_t *a, const json_t *b) {
    const json_t *patterns = json_object_get(a, "patternProperties");
    const json_t *rest = json_object_get(b, "additionalProperties");
    if (!json_is_object(patterns) || !rest || json_object_get(b, "patternProperties") ||
        !schema_work(s, json_object_size(patterns)))
        return;
    json_t *all = json_object(), *value;
    const char *key;
    json_object_foreach((json_t *)patterns, key, value) {
        json_object_set_new(all, key, all_of(value, rest));
    }
    json_object_set_new(to, "patternProperties", all);
}

/* The schema of item i; NULL: none. */
static const json_t *item_of(const json_t *flat, size_t i) {
    const json_t *item = json_array_get(json_object_get(flat, "prefixItems"), i);
    return item ? item : json_object_get(flat, "items");
}

/* A schema's `items` apply to all items beyond its own prefixItems, also to those in the other's.
 */
static void merge_prefix(struct schema *s, json_t *to, const json_t *a, const json_t *b) {
    size_t n_mine = json_array_size(json_object_get(a, "prefixItems"));
    size_t n_theirs = json_array_size(json_object_get(b, "prefixItems"));
    size_t n = n_mine > n_theirs ? n_mine : n_theirs;
    json_t *all = json_array();
    for (size_t i = 0; i < n && schema_work(s, 1); i++) {
        const json_t *x = item_of(a, i), *y = item_of(b, i);
        json_array_append_new(all, x && y ? all_of(x, y)
                                   : x    ? json_incref((json_t *)x)
                                   : y    ? json_incref((json_t *)y)
                                          : json_true());
    }
    json_object_set_new(to, "prefixItems", all);
}

/* A list without repetitions. */
static json_t *union_of(struct schema *s, const json_t *a, const json_t *b) {
    json_t *all = json_array();
    const json_t *each;
    size_t i;
    for (int k = 0; k < 2; k++)
        json_array_foreach(k ? b : a, i, each) if (!is_listed(s, all, each))
            json_array_append(all, (json_t *)each);
    return all;
}

static json_t *intersection_of(struct schema *s, const json_t *a, const json_t *b) {
    json_t *all = json_array();
    const json_t *each;
    size_t i;
    json_array_foreach(a, i, each) if (is_listed(s, b, each))
        json_array_append(all, (json_t *)each);
    return all;
}

/* Each alternative of one has to be one of the other's. */
static json_t *both_choices(const json_t *a, const json_t *b, const char *key) {
    json_t *all = json_array();
    const json_t *each;
    size_t i;
    json_array_foreach(a, i, each)
        json_array_append_new(all, json_pack("{s:[O,{s:O}]}", "allOf", each, key, b));
    return all;
}

static json_t *stricter(const json_t *a, const json_t *b, bool is_low) {
    bool takes_a = (compare_numbers(a, b) > 0) == is_low;
    return json_incref((json_t *)(takes_a ? a : b));
}

static bool is_any(const char *key, const char *const *names) {
    for (; *names; names++)
        if (strcmp(*names, key) == 0)
            return true;
    return false;
}

/* The value of a key that both have and whose values differ; NULL: they cannot be joined. */
static json_t *merge_key(struct schema *s, const char *key, const json_t *a, const json_t *b,
                         const json_t *x, const json_t *y) {
    static const char *const lows[] = {"minimum",  "exclusiveMinimum", "minLength",
                                       "minItems", "minProperties",    NULL};
    static const char *const highs[] = {"maximum",  "exclusiveMaximum", "maxLength",
                                        "maxItems", "maxProperties",    NULL};
    static const char *const schemas[] = {"items", "additionalProperties", "propertyNames",
                                          "unevaluatedProperties", NULL};
    static const char *const choices[] = {"anyOf", "oneOf", NULL};
    bool are_numbers = json_is_number(x) && json_is_number(y);
    if (strcmp(key, "type") == 0 || strcmp(key, "nullable") == 0)
        return write_types(schema_types(s, a) & schema_types(s, b));
    if (strcmp(key, "required") == 0)
        return union_of(s, x, y);
    if (is_any(key, choices))
        return both_choices(x, y, key);
    if (is_any(key, lows) && are_numbers)
        return stricter(x, y, true);
    if (is_any(key, highs) && are_numbers)
        return stricter(x, y, false);
    return is_any(key, schemas) ? all_of(x, y) : NULL;
}

static bool are_prefixes(const char *key, const json_t *x, const json_t *y) {
    return strcmp(key, "prefixItems") == 0 && json_is_array(x) && json_is_array(y);
}

const json_t *schema_merge(struct schema *s, const json_t *a, const json_t *b) {
    json_t *to = keep(s, json_copy((json_t *)a)), *value;
    const json_t *mine = values_of(s, a), *theirs = values_of(s, b);
    const char *key;
    json_object_foreach((json_t *)b, key, value) {
        const json_t *old = json_object_get(a, key);
        if (!old || json_equal(old, value)) {
            json_object_set(to, key, value);
            continue;
        }
        if (strcmp(key, "properties") == 0 || strcmp(key, "enum") == 0 ||
            strcmp(key, "const") == 0 || are_prefixes(key, old, value))
            continue;
        json_t *both = merge_key(s, key, a, b, old, value);
        if (!both) {
            schema_fail(s, SLUICE_ERR_UNSUPPORTED, "two different values of %s that must both hold",
                        key);
            return to;
        }
        json_object_set_new(to, key, both);
    }
    if (json_object_get(a, "properties") || json_object_get(b, "properties"))
        merge_properties(s, to, a, b);
    merge_patterns(s, to, a, b);
    merge_patterns(s, to, b, a);
    if (json_is_array(json_object_get(to, "prefixItems")))
        merge_prefix(s, to, a, b);
    if (mine && theirs) {
        json_object_del(to, "const");
        json_object_set_new(to, "enum", intersection_of(s, mine, theirs));
    }
    return to;
}

/* Annotations do not constrain values, and would differ. */
static void drop_annotations(json_t *flat) {
    static const char *const names[] = {
        "description", "title", "default",     "examples", "example",  "$schema",
        "$comment",    "$defs", "definitions", "$id",      "readOnly", "writeOnly",
        "deprecated",  "$ref",  "allOf",       "$anchor",  "id",       NULL};
    const char *key;
    json_t *value;
    void *next;
    for (int i = 0; names[i]; i++)
        json_object_del(flat, names[i]);
    json_object_foreach_safe(flat, next, key, value) {
        if (strncmp(key, "x-", 2) == 0)
            json_object_del(flat, key);
    }
}

/* Merges const into enum. */
static void join_values(struct schema *s, json_t *flat) {
    const json_t *value = json_object_get(flat, "const"), *list = json_object_get(flat, "enum");
    if (!value || !json_is_array(list))
        return;
    json_object_set_new(flat, "enum", intersection_of(s, keep(s, json_pack("[O]", value)), list));
    json_object_del(flat, "const");
}

/* nullable applies to the type beside it only, not to one merged later. */
static void join_nullable(struct schema *s, json_t *flat) {
    if (json_is_true(json_object_get(flat, "nullable")) && json_object_get(flat, "type"))
        json_object_set_new(flat, "type", write_types(schema_types(s, flat)));
    json_object_del(flat, "nullable");
}

const json_t *schema_flatten(struct schema *s, const json_t *schema) {
    const json_t *parts = json_object_get(schema, "allOf"), *part;
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    size_t i;
    if (json_is_boolean(schema)) /* false: no type at all */
        return keep(s, json_is_true(schema) ? json_object() : json_pack("{s:[]}", "type"));
    json_t *own = keep(s, json_is_object(schema) ? json_copy((json_t *)schema) : json_object());
    drop_annotations(own);
    if (!schema_check(s, schema))
        return own;
    join_values(s, own);
    join_nullable(s, own);
    const json_t *flat = own;
    if (s->depth > MAX_DEPTH) {
        schema_fail(s, SLUICE_ERR_UNSUPPORTED, "nests more than %d deep, or refers to itself",
                    MAX_DEPTH);
        return flat;
    }
    s->depth++;
    if (ref && !s->status) {
        const json_t *target = schema_resolve(s, ref);
        if (target)
            flat = schema_merge(s, schema_flatten(s, target), flat);
    }
    json_array_foreach(parts, i, part) if (!s->status) flat =
        schema_merge(s, flat, schema_flatten(s, part));
    s->depth--;
    return flat;
}

/* ---- when two exclude each other ---------------------------------------------------------- */

const json_t *schema_required(struct schema *s, const json_t *flat) {
    json_t *names = keep(s, json_object());
    const json_t *each;
    size_t i;
    json_array_foreach(json_object_get(flat, "required"), i, each) {
        if (json_is_string(each))
            json_object_set(names, json_string_value(each), (json_t *)each);
        else
            schema_fail(s, SLUICE_ERR_FORMAT, "required lists something that is not a string");
    }
    return names;
}

/* Whether an object generated for it may have this property (schema_object.c). */
static bool may_have(const json_t *flat, const json_t *required, const char *name) {
    const json_t *properties = json_object_get(flat, "properties");
    const json_t *rest = json_object_get(flat, "additionalProperties");
    if (json_object_get(properties, name) || json_object_get(required, name))
        return true;
    return rest ? !json_is_false(rest) : !properties;
}

static bool objects_exclude(struct schema *s, const json_t *a, const json_t *b) {
    json_t *mine = (json_t *)schema_required(s, a), *theirs = (json_t *)schema_required(s, b);
    const json_t *properties = json_object_get(a, "properties");
    const json_t *their_properties = json_object_get(b, "properties");
    bool is_closed = json_is_false(json_object_get(b, "additionalProperties"));
    const char *name;
    json_t *each;
    if (!schema_work(s, json_object_size(mine) + json_object_size(theirs)))
        return false;
    json_object_foreach(theirs, name, each) {
        if (!may_have(a, mine, name))
            return true;
    }
    json_object_foreach(mine, name, each) {
        const json_t *x = json_object_get(properties, name);
        const json_t *y = json_object_get(their_properties, name);
        if (!y && is_closed)
            return true;
        if (x && y && schema_excludes(s, schema_flatten(s, x), schema_flatten(s, y)))
            return true;
    }
    return false;
}

static bool ranges_exclude(const json_t *a, const json_t *b) {
    return is_empty_range(bound_of(a, true), bound_of(b, false)) ||
           is_empty_range(bound_of(b, true), bound_of(a, false));
}

static bool sizes_exclude(const json_t *a, const json_t *b, const char *min_key,
                          const char *max_key) {
    return limit(a, min_key, 0) > limit(b, max_key, 1e308) ||
           limit(b, min_key, 0) > limit(a, max_key, 1e308);
}

bool schema_excludes(struct schema *s, const json_t *a, const json_t *b) {
    unsigned types = schema_types(s, a) & schema_types(s, b);
    const json_t *mine = values_of(s, a), *theirs = values_of(s, b), *each;
    size_t i;
    if (types == 0)
        return true;
    if (s->depth > MAX_DEPTH)
        return false;
    if (mine || theirs) {
        const json_t *other = mine ? b : a;
        json_array_foreach(mine ? mine : theirs, i,
                           each) if (schema_value_fits(s, other, each)) return false;
        return true;
    }
    s->depth++;
    bool excludes = true;
    if (types & (TYPE_NULL | TYPE_BOOLEAN))
        excludes = false;
    if (types & (TYPE_INTEGER | TYPE_NUMBER))
        excludes = excludes && ranges_exclude(a, b);
    if (types & TYPE_STRING)
        excludes = excludes && sizes_exclude(a, b, "minLength", "maxLength");
    if (types & TYPE_ARRAY)
        excludes = excludes && sizes_exclude(a, b, "minItems", "maxItems");
    if (types & TYPE_OBJECT)
        excludes = excludes && objects_exclude(s, a, b);
    s->depth--;
    return excludes;
}
