/* schema.c - JSON schemas to grammars.
 *
 * Where a schema allows more than its author probably means, less is generated: objects that list
 * properties have no others unless additionalProperties says so, prefixItems are not followed by
 * others unless items says so, and a schema without a type gets the type its keywords apply to.
 * Everything generated is valid.
 *
 * White space: none, a blank, or a line end and some indentation, where JSON may have it. */
#include "grammar/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/locale.h"
#include "base/size.h"
#include "grammar/compile.h"

enum { MAX_DEPTH = 64, MAX_COMPILED = 20000, MAX_CHOICES = 64, MAX_PREFIX = 256 };

struct ref {
    const json_t *target;
    uint32_t rule;
};

static const struct expr *compile(struct schema *s, const json_t *schema);
static const struct expr *compile_flat(struct schema *s, const json_t *flat);

/* ---- failures and paths ------------------------------------------------------------------- */

const struct expr *schema_fail(struct schema *s, int code, const char *format, ...) {
    char text[300];
    va_list list;
    if (s->status)
        return expr_never(s->b);
    va_start(list, format);
    locale_vprint(text, sizeof text, format, list);
    va_end(list);
    s->status = err_set(s->err, code, "schema, at %s: %s", s->path, text);
    return expr_never(s->b);
}

/* Goes down to a member; returns the length of the path before, which `leave` needs. */
static size_t enter(struct schema *s, const char *key, const char *name) {
    size_t n = strlen(s->path);
    snprintf(s->path + n, sizeof s->path - n, "/%s%s%s", key, name ? "/" : "", name ? name : "");
    return n;
}

static void leave(struct schema *s, size_t n) {
    s->path[n] = 0;
}

/* ---- keywords ----------------------------------------------------------------------------- */

static bool is_any(const char *key, const char *const *names) {
    for (; *names; names++)
        if (strcmp(*names, key) == 0)
            return true;
    return false;
}

static const char *const known[] = {
    "type", "properties", "required", "additionalProperties", "enum", "const", "items",
    "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "anyOf", "oneOf", "allOf",
    "$ref", "nullable", "patternProperties", "propertyNames", "minProperties", "maxProperties",
    /* only with some values */
    "uniqueItems", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "not",
    /* that say nothing of values */
    "description", "title", "default", "examples", "example", "$schema", "$comment", "$defs",
    "definitions", "readOnly", "writeOnly", "deprecated", "contentMediaType", "contentEncoding",
    "discriminator", "externalDocs", "xml", "enumNames", "markdownDescription", "propertyOrdering",
    "$anchor", "$id", "id", "strict", "name", NULL};

/* Unsupported keywords are allowed with values that change nothing. */
static bool changes_nothing(const char *key, const json_t *value) {
    static const char *const off[] = {"uniqueItems", "not", NULL};
    static const char *const rests[] = {"additionalItems", "unevaluatedItems",
                                        "unevaluatedProperties", NULL};
    if (is_any(key, rests))
        return json_is_boolean(value);
    return !is_any(key, off) || json_is_false(value);
}

bool schema_check(struct schema *s, const json_t *schema) {
    const char *key;
    json_t *value;
    if (json_is_boolean(schema))
        return true;
    if (!json_is_object(schema)) {
        schema_fail(s, SLUICE_ERR_FORMAT, "a schema is an object, true or false");
        return false;
    }
    if (!schema_work(s, json_object_size(schema)))
        return false;
    json_object_foreach((json_t *)schema, key, value) {
        bool is_extension = strncmp(key, "x-", 2) == 0;
        if (is_extension || (is_any(key, known) && changes_nothing(key, value)))
            continue;
        schema_fail(s, SLUICE_ERR_UNSUPPORTED, "the keyword %s is not supported", key);
        return false;
    }
    return true;
}

bool schema_count(struct schema *s, const json_t *flat, const char *key, uint32_t *out) {
    const json_t *value = json_object_get(flat, key);
    double x = json_number_value(value);
    if (!value)
        return true;
    if (!json_is_number(value) || x < 0 || x >= 0x1p63 || x != (double)(uint64_t)x) {
        schema_fail(s, SLUICE_ERR_FORMAT, "%s is not a count, expected 0 or more", key);
        return false;
    }
    *out = x > (1 << 24) ? 1 << 24 : (uint32_t)x;
    return true;
}

/* ---- small parts -------------------------------------------------------------------------- */

/* One rule for all: it is by far the longest part between two values. */
static const struct expr *indent(struct schema *s) {
    struct builder *b = s->b;
    if (s->indent == UINT32_MAX) {
        uint32_t rule = builder_rule(b, STR("an indentation"));
        if (b->is_out_of_memory)
            return expr_never(b);
        b->rules[rule].body = expr_either(b, expr_repeat(b, expr_text(b, " "), 0, 32),
                                          expr_repeat(b, expr_text(b, "\t"), 1, 8));
        s->indent = rule;
    }
    return expr_rule(b, s->indent);
}

static const struct expr *blank(struct schema *s) {
    struct builder *b = s->b;
    return expr_optional(
        b, expr_either(b, expr_text(b, " "), expr_pair(b, expr_text(b, "\n"), indent(s))));
}

static const struct expr *before(struct schema *s, const char *text) {
    return expr_pair(s->b, blank(s), expr_text(s->b, text));
}

static const struct expr *after(struct schema *s, const char *text) {
    return expr_pair(s->b, expr_text(s->b, text), blank(s));
}

static const struct expr *colon(struct schema *s) {
    return expr_pair(s->b, expr_text(s->b, ":"), expr_optional(s->b, expr_text(s->b, " ")));
}

/* Makes a rule of an expression that is used in several places. */
static const struct expr *as_rule(struct schema *s, const struct expr *e) {
    if (e->kind == EXPR_RULE || e->kind == EXPR_BYTES || e->kind == EXPR_CLASS || expr_is_never(e))
        return e;
    uint32_t rule = builder_rule(s->b, str_of(s->path));
    if (s->b->is_out_of_memory)
        return expr_never(s->b);
    s->b->rules[rule].body = e;
    return expr_rule(s->b, rule);
}

/* ---- any value ---------------------------------------------------------------------------- */

static const struct expr *listed(struct schema *s, const char *open, const struct expr *e,
                                 const char *close) {
    struct builder *b = s->b;
    e = as_rule(s, e);
    const struct expr *more = expr_repeat(b, expr_pair(b, after(s, ","), e), 0, REPEAT_NO_LIMIT);
    return expr_triple(b, after(s, open), expr_optional(b, expr_pair(b, e, more)),
                       before(s, close));
}

static const struct expr *any_value(struct schema *s) {
    struct builder *b = s->b;
    if (s->value != UINT32_MAX)
        return expr_rule(b, s->value);
    uint32_t rule = builder_rule(b, STR("any value"));
    if (b->is_out_of_memory)
        return expr_never(b);
    s->value = rule;
    const struct expr *value = expr_rule(b, rule);
    const struct expr *member = expr_triple(b, text_string(s), colon(s), value);
    struct expr_list list = {0};
    expr_push(b, &list, listed(s, "{", member, "}"));
    expr_push(b, &list, listed(s, "[", value, "]"));
    expr_push(b, &list, text_string(s));
    expr_push(b, &list, number_of(s, NULL, false));
    expr_push(b, &list, expr_text(b, "true"));
    expr_push(b, &list, expr_text(b, "false"));
    expr_push(b, &list, expr_text(b, "null"));
    if (!b->is_out_of_memory)
        b->rules[rule].body = expr_choice(b, &list);
    return value;
}

/* ---- values that are listed --------------------------------------------------------------- */

static const struct expr *literal(struct schema *s, const json_t *value);

static const struct expr *literal_parts(struct schema *s, const json_t *value) {
    struct builder *b = s->b;
    struct expr_list list = {0};
    const char *key;
    json_t *each;
    size_t i;
    bool is_object = json_is_object(value);
    expr_push(b, &list, after(s, is_object ? "{" : "["));
    json_object_foreach((json_t *)value, key, each) {
        if (list.n > 1)
            expr_push(b, &list, after(s, ","));
        expr_push(
            b, &list,
            expr_triple(b, expr_text(b, "\""), text_literal(b, str_of(key)), expr_text(b, "\"")));
        expr_push(b, &list, expr_pair(b, colon(s), literal(s, each)));
    }
    json_array_foreach(value, i, each) {
        if (i)
            expr_push(b, &list, after(s, ","));
        expr_push(b, &list, literal(s, each));
    }
    expr_push(b, &list, before(s, is_object ? "}" : "]"));
    return expr_sequence(b, &list);
}

/* As one run of bytes where it has no parts, so that choices share their beginnings. */
static const struct expr *literal(struct schema *s, const json_t *value) {
    struct builder *b = s->b;
    char number[40];
    if (json_is_object(value) || json_is_array(value)) {
        if (s->depth > MAX_DEPTH)
            return schema_fail(s, SLUICE_ERR_UNSUPPORTED, "a value nests more than %d deep",
                               MAX_DEPTH);
        s->depth++;
        const struct expr *e = literal_parts(s, value);
        s->depth--;
        return e;
    }
    if (json_is_number(value)) {
        number_write(value, number);
        return expr_text(b, number);
    }
    if (!json_is_string(value))
        return expr_text(b, json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false");
    struct str text = {json_string_value(value), json_string_length(value)};
    const struct expr *inside = text_literal(b, text);
    size_t n = inside->kind == EXPR_BYTES ? inside->bytes.len : 0;
    char *quoted = arena_alloc(&b->arena, n + 2);
    if (!quoted) {
        b->is_out_of_memory = true;
        return expr_never(b);
    }
    quoted[0] = quoted[n + 1] = '"';
    if (n)
        memcpy(quoted + 1, inside->bytes.at, n);
    return expr_bytes(b, (struct str){quoted, n + 2});
}

/* Writes those of the values that the other keywords allow. */
static const struct expr *write_values(struct schema *s, const json_t *flat, const json_t *values) {
    static const char *const unsure[] = {"pattern",
                                         "format",
                                         "multipleOf",
                                         "properties",
                                         "required",
                                         "items",
                                         "prefixItems",
                                         "anyOf",
                                         "oneOf",
                                         "additionalProperties",
                                         "patternProperties",
                                         "propertyNames",
                                         NULL};
    struct expr_list list = {0};
    const json_t *each;
    size_t i;
    if (!json_is_array(values))
        return schema_fail(s, SLUICE_ERR_FORMAT, "enum is not an array");
    for (int k = 0; unsure[k]; k++)
        if (json_object_get(flat, unsure[k]))
            return schema_fail(s, SLUICE_ERR_UNSUPPORTED, "enum or const beside %s", unsure[k]);
    const json_t *others = schema_without(s, schema_without(s, flat, "enum"), "const");
    json_array_foreach(values, i, each) if (schema_value_fits(s, others, each))
        expr_push(s->b, &list, literal(s, each));
    return expr_choice(s->b, &list);
}

/* ---- arrays ------------------------------------------------------------------------------- */

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
    size_t length = enter(s, "items", NULL);
    out->rest = items ? as_rule(s, compile(s, items)) : is_open ? any_value(s) : expr_never(s->b);
    leave(s, length);
    return !s->status;
}

static const struct expr *prefix_item(struct schema *s, const struct items *items, uint32_t i) {
    char name[16];
    snprintf(name, sizeof name, "%u", i);
    size_t length = enter(s, "prefixItems", name);
    const struct expr *e = compile(s, json_array_get(items->prefix, i));
    leave(s, length);
    return e;
}

/* Built from the end: what follows i items, then one more item before it. */
static const struct expr *write_array(struct schema *s, const json_t *flat) {
    struct builder *b = s->b;
    struct items items;
    if (!read_items(s, flat, &items))
        return expr_never(b);
    if (items.min > items.max)
        return expr_never(b);
    const struct expr *close = before(s, "]"), *tail;
    const struct expr *more = expr_pair(b, after(s, ","), items.rest);
    uint32_t n = min_u32(items.n_prefix, items.max), taken = max_u32(n, 1);
    uint32_t min = items.min > taken ? items.min - taken : 0;
    uint32_t max = items.max == REPEAT_NO_LIMIT ? items.max
                   : items.max > taken          ? items.max - taken
                                                : 0;
    tail = expr_pair(b, expr_repeat(b, more, min, max), close);
    for (uint32_t i = n; i-- > 0;) {
        const struct expr *item = prefix_item(s, &items, i);
        if (i)
            item = expr_pair(b, after(s, ","), item);
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
                       expr_triple(b, open, blank(s), tail));
}

/* ---- objects ------------------------------------------------------------------------------ */

struct members {
    uint32_t n;
    struct str *names;
    const struct expr **keys, **values; /* of each: its key and the colon; its value */
    bool *is_required;
    const json_t *required;  /* an object of their names */
    const struct expr *rest; /* any other member; never: there are none */
    uint32_t min, max;
};

static void add_member(struct schema *s, struct members *m, const char *name,
                       const json_t *schema) {
    struct builder *b = s->b;
    size_t length = enter(s, "properties", name);
    uint32_t i = m->n++;
    const struct expr *text = text_literal(b, str_of(name));
    m->names[i] = str_of(name);
    m->is_required[i] = json_object_get(m->required, name);
    m->values[i] = schema ? as_rule(s, compile(s, schema)) : any_value(s);
    m->keys[i] =
        expr_pair(b, expr_triple(b, expr_text(b, "\""), text, expr_text(b, "\"")), colon(s));
    leave(s, length);
}

/* The listed properties, then required ones that are not listed. */
static bool read_members(struct schema *s, const json_t *flat, struct members *m) {
    const json_t *properties = json_object_get(flat, "properties");
    const json_t *required = json_object_get(flat, "required");
    const json_t *rest = json_object_get(flat, "additionalProperties");
    uint64_t capacity = json_object_size(properties) + json_array_size(required) + 1;
    const char *name;
    json_t *value;
    *m = (struct members){.max = REPEAT_NO_LIMIT,
                          .names = arena_array(&s->b->arena, capacity, sizeof *m->names),
                          .keys = arena_array(&s->b->arena, capacity, sizeof *m->keys),
                          .values = arena_array(&s->b->arena, capacity, sizeof *m->values),
                          .is_required =
                              arena_array(&s->b->arena, capacity, sizeof *m->is_required)};
    if (!m->names || !m->keys || !m->values || !m->is_required) {
        s->b->is_out_of_memory = true;
        return false;
    }
    if ((properties && !json_is_object(properties)) || (required && !json_is_array(required))) {
        schema_fail(s, SLUICE_ERR_FORMAT, "properties is not an object, or required not an array");
        return false;
    }
    m->required = schema_required(s, flat);
    json_object_foreach((json_t *)properties, name, value) add_member(s, m, name, value);
    json_object_foreach((json_t *)m->required, name, value) {
        if (!json_object_get(properties, name))
            add_member(s, m, name, rest);
    }
    return !s->status && schema_count(s, flat, "minProperties", &m->min) &&
           schema_count(s, flat, "maxProperties", &m->max);
}

/* The key of members by a pattern. */
static const struct expr *pattern_key(struct schema *s, const json_t *patterns,
                                      const json_t **schema) {
    const char *pattern = json_object_iter_key(json_object_iter((json_t *)patterns));
    struct sized_expr body;
    if (json_object_size(patterns) != 1 || !pattern)
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED, "patternProperties of several patterns");
    *schema = json_object_get(patterns, pattern);
    if (!pattern_read(s, pattern, &body))
        return expr_never(s->b);
    const struct expr *quote = expr_text(s->b, "\"");
    return expr_triple(s->b, quote, body.e, quote);
}

static const struct expr *name_key(struct schema *s, const json_t *names) {
    json_t *string = json_pack("{s:s}", "type", "string");
    const json_t *flat = schema_merge(s, schema_flatten(s, string), schema_flatten(s, names));
    json_decref(string);
    return compile_flat(s, flat);
}

/* Members that are not listed. */
static bool read_rest(struct schema *s, const json_t *flat, struct members *m) {
    const json_t *rest = json_object_get(flat, "additionalProperties");
    const json_t *patterns = json_object_get(flat, "patternProperties");
    const json_t *names = json_object_get(flat, "propertyNames");
    bool is_closed = json_is_false(json_object_get(flat, "unevaluatedProperties"));
    const struct expr *key = NULL;
    m->rest = expr_never(s->b);
    if ((patterns || names) && m->n) {
        schema_fail(s, SLUICE_ERR_UNSUPPORTED, "%s beside properties or required",
                    patterns ? "patternProperties" : "propertyNames");
        return false;
    }
    if (patterns && names) {
        schema_fail(s, SLUICE_ERR_UNSUPPORTED, "patternProperties beside propertyNames");
        return false;
    }
    if (patterns)
        key = pattern_key(s, patterns, &rest);
    else if (rest ? json_is_false(rest) : is_closed || json_object_get(flat, "properties"))
        return true;
    else if (names)
        key = name_key(s, names);
    else
        key = m->n ? text_other_key(s, m->names, m->n) : text_string(s);
    size_t length = enter(s, "additionalProperties", NULL);
    const struct expr *value = rest ? as_rule(s, compile(s, rest)) : any_value(s);
    leave(s, length);
    m->rest = as_rule(s, expr_triple(s->b, key, colon(s), value));
    return !s->status;
}

/* An object without listed members. */
static const struct expr *write_map(struct schema *s, const struct members *m) {
    struct builder *b = s->b;
    const struct expr *close = before(s, "}"), *none = expr_text(b, "{}");
    uint32_t max = m->max == REPEAT_NO_LIMIT ? m->max : m->max ? m->max - 1 : 0;
    if (m->min > 1)
        return schema_fail(
            s, SLUICE_ERR_UNSUPPORTED,
            "minProperties of %u for properties that are not listed, expected 0 or 1", m->min);
    const struct expr *more = expr_repeat(b, expr_pair(b, after(s, ","), m->rest), 0, max);
    const struct expr *some = expr_sequence(
        b, &(struct expr_list){.n = 4,
                               .at = (const struct expr *[]){after(s, "{"), m->rest, more, close}});
    if (m->max == 0 || expr_is_never(m->rest))
        return m->min ? expr_never(b) : none;
    return m->min ? some : expr_either(b, none, some);
}

static bool check_counts(struct schema *s, const struct members *m, uint32_t n_required) {
    bool is_open = !expr_is_never(m->rest);
    if (m->min > max_u32(n_required, 1)) {
        schema_fail(s, SLUICE_ERR_UNSUPPORTED,
                    "minProperties of %u beside %u required properties, expected no more", m->min,
                    n_required);
        return false;
    }
    if (m->max < m->n || (is_open && m->max != REPEAT_NO_LIMIT)) {
        schema_fail(s, SLUICE_ERR_UNSUPPORTED, "maxProperties beside optional properties");
        return false;
    }
    return true;
}

/* Rules from the last member to the first: `choice` is a member from here on and what follows it,
 * `later` what may follow when one was written before. */
static const struct expr *write_listed(struct schema *s, const struct members *m) {
    struct builder *b = s->b;
    const struct expr *comma = after(s, ","), *close = before(s, "}");
    const struct expr *rest = expr_repeat(b, expr_pair(b, comma, m->rest), 0, REPEAT_NO_LIMIT);
    const struct expr *later = as_rule(s, expr_pair(b, rest, close));
    const struct expr *choice = expr_pair(b, m->rest, later);
    bool may_end = true;
    for (uint32_t i = m->n; i-- > 0;) {
        const struct expr *this = expr_triple(b, m->keys[i], m->values[i], later);
        may_end = may_end && !m->is_required[i];
        choice = as_rule(s, m->is_required[i] ? this : expr_either(b, this, choice));
        later = expr_pair(b, comma, choice);
        later = as_rule(s, may_end ? expr_either(b, close, later) : later);
    }
    if (may_end && m->min == 0)
        choice = expr_either(b, close, choice);
    return expr_pair(b, after(s, "{"), choice);
}

static const struct expr *write_object(struct schema *s, const json_t *flat) {
    struct members m;
    uint32_t n_required = 0;
    if (!read_members(s, flat, &m) || !read_rest(s, flat, &m))
        return expr_never(s->b);
    if (m.n == 0)
        return write_map(s, &m);
    for (uint32_t i = 0; i < m.n; i++)
        n_required += m.is_required[i];
    return check_counts(s, &m, n_required) ? write_listed(s, &m) : expr_never(s->b);
}

/* ---- choices ------------------------------------------------------------------------------ */

/* With oneOf a value must be valid for exactly one: what is generated for one must be invalid for
 * the others. */
static bool check_apart(struct schema *s, const json_t *const *flats, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            if (i != k && !schema_excludes(s, flats[i], flats[k])) {
                schema_fail(s, SLUICE_ERR_UNSUPPORTED,
                            "oneOf: a value may be valid for alternatives %zu and %zu, expected "
                            "them to differ in a type, a constant or a required property; or anyOf",
                            i < k ? i : k, i < k ? k : i);
                return false;
            }
    return true;
}

static const struct expr *write_choices(struct schema *s, const json_t *flat, const char *key) {
    const json_t *choices = json_object_get(flat, key), *each;
    const json_t *rest = schema_without(s, flat, key), *flats[MAX_CHOICES];
    struct expr_list list = {0};
    size_t n = json_array_size(choices), i;
    if (!json_is_array(choices) || n == 0 || n > MAX_CHOICES)
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED, "%s is not an array of 1 to %d schemas", key,
                           MAX_CHOICES);
    json_array_foreach(choices, i, each) {
        char name[16];
        snprintf(name, sizeof name, "%zu", i);
        size_t length = enter(s, key, name);
        flats[i] = json_object_size(rest) || strcmp(key, "oneOf") == 0
                       ? schema_merge(s, rest, schema_flatten(s, each))
                       : NULL;
        expr_push(s->b, &list,
                  json_object_size(rest) ? compile_flat(s, flats[i]) : compile(s, each));
        leave(s, length);
        if (s->status)
            return expr_never(s->b);
    }
    if (strcmp(key, "oneOf") == 0 && !check_apart(s, flats, n))
        return expr_never(s->b);
    return expr_choice(s->b, &list);
}

/* ---- schemas ------------------------------------------------------------------------------ */

/* For a schema without a type: the types its keywords apply to; all if there are none. */
static unsigned guess_types(const json_t *flat) {
    static const struct {
        const char *key;
        unsigned types;
    } about[] = {
        {"properties", TYPE_OBJECT},
        {"required", TYPE_OBJECT},
        {"patternProperties", TYPE_OBJECT},
        {"additionalProperties", TYPE_OBJECT},
        {"propertyNames", TYPE_OBJECT},
        {"minProperties", TYPE_OBJECT},
        {"maxProperties", TYPE_OBJECT},
        {"items", TYPE_ARRAY},
        {"prefixItems", TYPE_ARRAY},
        {"minItems", TYPE_ARRAY},
        {"maxItems", TYPE_ARRAY},
        {"pattern", TYPE_STRING},
        {"format", TYPE_STRING},
        {"minLength", TYPE_STRING},
        {"maxLength", TYPE_STRING},
        {"minimum", TYPE_NUMBER | TYPE_INTEGER},
        {"maximum", TYPE_NUMBER | TYPE_INTEGER},
        {"exclusiveMinimum", TYPE_NUMBER | TYPE_INTEGER},
        {"exclusiveMaximum", TYPE_NUMBER | TYPE_INTEGER},
        {"multipleOf", TYPE_NUMBER | TYPE_INTEGER},
    };
    unsigned types = 0;
    for (size_t i = 0; i < sizeof about / sizeof *about; i++)
        types |= json_object_get(flat, about[i].key) ? about[i].types : 0;
    return types ? types : TYPE_ANY;
}

static const struct expr *write_types(struct schema *s, const json_t *flat, unsigned types) {
    struct builder *b = s->b;
    struct expr_list list = {0};
    if (types & TYPE_OBJECT)
        expr_push(b, &list, write_object(s, flat));
    if (types & TYPE_ARRAY)
        expr_push(b, &list, write_array(s, flat));
    if (types & TYPE_STRING)
        expr_push(b, &list, text_of(s, flat));
    if (types & (TYPE_NUMBER | TYPE_INTEGER))
        expr_push(b, &list, number_of(s, flat, !(types & TYPE_NUMBER)));
    if (types & TYPE_BOOLEAN) {
        expr_push(b, &list, expr_text(b, "true"));
        expr_push(b, &list, expr_text(b, "false"));
    }
    if (types & TYPE_NULL)
        expr_push(b, &list, expr_text(b, "null"));
    return expr_choice(b, &list);
}

static const struct expr *compile_flat(struct schema *s, const json_t *flat) {
    const json_t *value = json_object_get(flat, "const"), *values = json_object_get(flat, "enum");
    if (s->status)
        return expr_never(s->b);
    if (++s->n_compiled > MAX_COMPILED)
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED,
                           "the schema is too large: more than %d schemas in it", MAX_COMPILED);
    if (s->depth > MAX_DEPTH)
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED, "nests more than %d deep", MAX_DEPTH);
    s->depth++;
    const struct expr *e;
    unsigned types = schema_types(s, flat);
    if (json_object_get(flat, "anyOf"))
        e = write_choices(s, flat, "anyOf");
    else if (json_object_get(flat, "oneOf"))
        e = write_choices(s, flat, "oneOf");
    else if (value || values) {
        json_t *one = value ? json_pack("[O]", value) : json_incref((json_t *)values);
        e = one ? write_values(s, flat, one) : expr_never(s->b);
        json_decref(one);
    } else {
        unsigned guess = json_object_get(flat, "type") ? TYPE_ANY : guess_types(flat);
        e = types == TYPE_ANY && guess == TYPE_ANY ? any_value(s)
                                                   : write_types(s, flat, types & guess);
    }
    s->depth--;
    return e;
}

/* The rule of a $ref's target: one for each target, so schemas may refer to themselves. */
static const struct expr *compile_ref(struct schema *s, const char *ref) {
    const json_t *target = schema_resolve(s, ref);
    char path[sizeof s->path];
    for (uint32_t i = 0; target && i < s->n_refs; i++)
        if (s->refs[i].target == target)
            return expr_rule(s->b, s->refs[i].rule);
    if (!target)
        return expr_never(s->b);
    if (!array_grow(&s->refs, s->n_refs, &s->ref_capacity, sizeof *s->refs)) {
        s->b->is_out_of_memory = true;
        return expr_never(s->b);
    }
    uint32_t rule = builder_rule(s->b, str_of(ref));
    s->refs[s->n_refs++] = (struct ref){target, rule};
    memcpy(path, s->path, sizeof path);
    snprintf(s->path, sizeof s->path, "%s", ref);
    const struct expr *body = compile(s, target);
    memcpy(s->path, path, sizeof path);
    if (!s->b->is_out_of_memory)
        s->b->rules[rule].body = body;
    return expr_rule(s->b, rule);
}

/* Whether a schema says nothing besides this key. */
static bool has_only(struct schema *s, const json_t *schema, const char *key) {
    static const char *const notes[] = {"description", "title",   "default", "examples",
                                        "$comment",    "$schema", "$defs",   "definitions",
                                        "$id",         NULL};
    const char *each;
    json_t *value;
    (void)s;
    json_object_foreach((json_t *)schema, each,
                        value) if (strcmp(each, key) != 0 && !is_any(each, notes)) return false;
    return true;
}

static const struct expr *compile(struct schema *s, const json_t *schema) {
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *all = json_object_get(schema, "allOf");
    if (s->status || !schema_check(s, schema))
        return expr_never(s->b);
    if (json_is_boolean(schema))
        return json_is_true(schema) ? any_value(s) : expr_never(s->b);
    if (s->depth > MAX_DEPTH)
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED, "nests more than %d deep", MAX_DEPTH);
    s->depth++;
    const struct expr *e;
    if (ref && has_only(s, schema, "$ref"))
        e = compile_ref(s, ref);
    else if (json_array_size(all) == 1 && has_only(s, schema, "allOf"))
        e = compile(s, json_array_get(all, 0));
    else
        e = compile_flat(s, schema_flatten(s, schema));
    s->depth--;
    return e;
}

/* ---- grammars ----------------------------------------------------------------------------- */

int grammar_of_schema(struct grammar **out, const json_t *schema, struct err *err) {
    struct builder b;
    struct schema s = {.b = &b,
                       .root = schema,
                       .made = json_pack("[{}]"),
                       .err = err,
                       .path = "#",
                       .value = UINT32_MAX,
                       .string = UINT32_MAX,
                       .character = UINT32_MAX,
                       .integer = UINT32_MAX,
                       .number = UINT32_MAX,
                       .indent = UINT32_MAX};
    *out = NULL;
    if (!s.made)
        return err_memory(err, "a schema");
    builder_begin(&b);
    uint32_t root = builder_rule(&b, STR("#"));
    const struct expr *e = compile(&s, schema);
    int status = s.status;
    if (!status && !b.is_out_of_memory)
        b.rules[root].body = e;
    if (!status)
        status = grammar_compile(out, &b, root, err);
    if (status && !s.status)
        err_prefix(err, "schema");
    builder_end(&b);
    free(s.refs);
    json_decref(s.made);
    return status;
}

int grammar_of_json_object(struct grammar **out, struct err *err) {
    *out = NULL;
    json_t *schema = json_pack("{s:s}", "type", "object");
    int status = schema ? grammar_of_schema(out, schema, err) : err_memory(err, "a schema");
    json_decref(schema);
    return status;
}
