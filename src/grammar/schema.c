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
#include "grammar/compile.h"

enum { MAX_DEPTH = 64, MAX_COMPILED = 20000, MAX_CHOICES = 64 };

struct ref {
    const json_t *target;
    uint32_t rule;
};

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

size_t schema_enter(struct schema *s, const char *key, const char *name) {
    size_t n = strlen(s->path);
    snprintf(s->path + n, sizeof s->path - n, "/%s%s%s", key, name ? "/" : "", name ? name : "");
    return n;
}

void schema_leave(struct schema *s, size_t n) {
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

const struct expr *schema_blank(struct schema *s) {
    struct builder *b = s->b;
    return expr_optional(
        b, expr_either(b, expr_text(b, " "), expr_pair(b, expr_text(b, "\n"), indent(s))));
}

const struct expr *schema_before(struct schema *s, const char *text) {
    return expr_pair(s->b, schema_blank(s), expr_text(s->b, text));
}

const struct expr *schema_after(struct schema *s, const char *text) {
    return expr_pair(s->b, expr_text(s->b, text), schema_blank(s));
}

const struct expr *schema_colon(struct schema *s) {
    return expr_pair(s->b, expr_text(s->b, ":"), expr_optional(s->b, expr_text(s->b, " ")));
}

const struct expr *schema_as_rule(struct schema *s, const struct expr *e) {
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
    e = schema_as_rule(s, e);
    const struct expr *more =
        expr_repeat(b, expr_pair(b, schema_after(s, ","), e), 0, REPEAT_NO_LIMIT);
    return expr_triple(b, schema_after(s, open), expr_optional(b, expr_pair(b, e, more)),
                       schema_before(s, close));
}

const struct expr *schema_any_value(struct schema *s) {
    struct builder *b = s->b;
    if (s->value != UINT32_MAX)
        return expr_rule(b, s->value);
    uint32_t rule = builder_rule(b, STR("any value"));
    if (b->is_out_of_memory)
        return expr_never(b);
    s->value = rule;
    const struct expr *value = expr_rule(b, rule);
    const struct expr *member = expr_triple(b, text_string(s), schema_colon(s), value);
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
    expr_push(b, &list, schema_after(s, is_object ? "{" : "["));
    json_object_foreach((json_t *)value, key, each) {
        if (list.n > 1)
            expr_push(b, &list, schema_after(s, ","));
        expr_push(
            b, &list,
            expr_triple(b, expr_text(b, "\""), text_literal(b, str_of(key)), expr_text(b, "\"")));
        expr_push(b, &list, expr_pair(b, schema_colon(s), literal(s, each)));
    }
    json_array_foreach(value, i, each) {
        if (i)
            expr_push(b, &list, schema_after(s, ","));
        expr_push(b, &list, literal(s, each));
    }
    expr_push(b, &list, schema_before(s, is_object ? "}" : "]"));
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
        size_t length = schema_enter(s, key, name);
        flats[i] = json_object_size(rest) || strcmp(key, "oneOf") == 0
                       ? schema_merge(s, rest, schema_flatten(s, each))
                       : NULL;
        expr_push(s->b, &list,
                  json_object_size(rest) ? schema_compile_flat(s, flats[i])
                                         : schema_compile(s, each));
        schema_leave(s, length);
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
        expr_push(b, &list, schema_object(s, flat));
    if (types & TYPE_ARRAY)
        expr_push(b, &list, schema_array(s, flat));
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

const struct expr *schema_compile_flat(struct schema *s, const json_t *flat) {
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
        e = types == TYPE_ANY && guess == TYPE_ANY ? schema_any_value(s)
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
    const struct expr *body = schema_compile(s, target);
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

const struct expr *schema_compile(struct schema *s, const json_t *schema) {
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *all = json_object_get(schema, "allOf");
    if (s->status || !schema_check(s, schema))
        return expr_never(s->b);
    if (json_is_boolean(schema))
        return json_is_true(schema) ? schema_any_value(s) : expr_never(s->b);
    if (s->depth > MAX_DEPTH)
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED, "nests more than %d deep", MAX_DEPTH);
    s->depth++;
    const struct expr *e;
    if (ref && has_only(s, schema, "$ref"))
        e = compile_ref(s, ref);
    else if (json_array_size(all) == 1 && has_only(s, schema, "allOf"))
        e = schema_compile(s, json_array_get(all, 0));
    else
        e = schema_compile_flat(s, schema_flatten(s, schema));
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
    const struct expr *e = schema_compile(&s, schema);
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
