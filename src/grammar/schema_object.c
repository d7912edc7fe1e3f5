/* schema_object.c - objects of a schema as expressions: the listed members in order, then others.
 */
#include "base/size.h"
#include "grammar/schema.h"

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
    size_t length = schema_enter(s, "properties", name);
    uint32_t i = m->n++;
    const struct expr *text = text_literal(b, str_of(name));
    m->names[i] = str_of(name);
    m->is_required[i] = json_object_get(m->required, name);
    m->values[i] = schema ? schema_as_rule(s, schema_compile(s, schema)) : schema_any_value(s);
    m->keys[i] =
        expr_pair(b, expr_triple(b, expr_text(b, "\""), text, expr_text(b, "\"")), schema_colon(s));
    schema_leave(s, length);
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
    return schema_compile_flat(s, flat);
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
    size_t length = schema_enter(s, "additionalProperties", NULL);
    const struct expr *value =
        rest ? schema_as_rule(s, schema_compile(s, rest)) : schema_any_value(s);
    schema_leave(s, length);
    m->rest = schema_as_rule(s, expr_triple(s->b, key, schema_colon(s), value));
    return !s->status;
}

/* An object without listed members. */
static const struct expr *write_map(struct schema *s, const struct members *m) {
    struct builder *b = s->b;
    const struct expr *close = schema_before(s, "}"), *none = expr_text(b, "{}");
    uint32_t max = m->max == REPEAT_NO_LIMIT ? m->max : m->max ? m->max - 1 : 0;
    if (m->min > 1)
        return schema_fail(
            s, SLUICE_ERR_UNSUPPORTED,
            "minProperties of %u for properties that are not listed, expected 0 or 1", m->min);
    const struct expr *more = expr_repeat(b, expr_pair(b, schema_after(s, ","), m->rest), 0, max);
    const struct expr *some = expr_sequence(
        b, &(struct expr_list){
               .n = 4, .at = (const struct expr *[]){schema_after(s, "{"), m->rest, more, close}});
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
    const struct expr *comma = schema_after(s, ","), *close = schema_before(s, "}");
    const struct expr *rest = expr_repeat(b, expr_pair(b, comma, m->rest), 0, REPEAT_NO_LIMIT);
    const struct expr *later = schema_as_rule(s, expr_pair(b, rest, close));
    const struct expr *choice = expr_pair(b, m->rest, later);
    bool may_end = true;
    for (uint32_t i = m->n; i-- > 0;) {
        const struct expr *this = expr_triple(b, m->keys[i], m->values[i], later);
        may_end = may_end && !m->is_required[i];
        choice = schema_as_rule(s, m->is_required[i] ? this : expr_either(b, this, choice));
        later = expr_pair(b, comma, choice);
        later = schema_as_rule(s, may_end ? expr_either(b, close, later) : later);
    }
    if (may_end && m->min == 0)
        choice = expr_either(b, close, choice);
    return expr_pair(b, schema_after(s, "{"), choice);
}

const struct expr *schema_object(struct schema *s, const json_t *flat) {
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
