/* jinja_value.c - making values, and Python's truth, order and membership. */
#include "text/jinja_value.h"

#include <math.h>
#include <stdarg.h>

#include "base/locale.h"
#include "text/jinja_ast.h"

enum {
    MAX_DEPTH = 600,       /* of evaluation, and of values in values */
    UNDEFINED_UNITS = 256, /* of work, to write the message */
};

bool jinja_fail(struct render *render, const char *format, ...) {
    char what[sizeof render->err->text];
    va_list args;
    va_start(args, format);
    locale_vprint(what, sizeof what, format, args);
    va_end(args);
    jinja_error(render->err, SLUICE_ERR_FORMAT, render->line, "%s", what);
    return false;
}

bool jinja_no_memory(struct render *render) {
    jinja_error(render->err, SLUICE_ERR_MEMORY, render->line, "out of memory for rendering");
    return false;
}

bool jinja_enter(struct render *render) {
    if (render->depth >= MAX_DEPTH)
        return jinja_fail(render, "nested deeper than %d levels", MAX_DEPTH);
    render->depth++;
    return true;
}

void jinja_leave(struct render *render) {
    render->depth--;
}

/* ---- making ---- */

bool jinja_undefined(struct render *render, struct value *out, const char *format, ...) {
    char why[256];
    va_list args;
    va_start(args, format);
    locale_vprint(why, sizeof why, format, args);
    va_end(args);
    size_t size = strlen(why) + 1;
    char *copy = jinja_alloc(render, 1, size);
    if (!copy || !jinja_charge(render, UNDEFINED_UNITS))
        return false;
    memcpy(copy, why, size);
    *out = (struct value){.type = VALUE_UNDEFINED, .why = copy};
    return true;
}

size_t jinja_count_chars(struct str text) {
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++)
        n += (text.at[i] & 0xC0) != 0x80;
    return n;
}

bool jinja_string(struct render *render, struct str text, struct value *out) {
    struct string *s = jinja_alloc(render, 1, sizeof *s);
    if (!s || !jinja_charge(render, 8 + text.len / 2)) /* for counting */
        return false;
    *s = (struct string){.text = text, .chars = jinja_count_chars(text)};
    if (!s->text.at)
        s->text.at = "";
    *out = (struct value){.type = VALUE_STRING, .string = s};
    return true;
}

bool jinja_string_copy(struct render *render, struct str text, struct value *out) {
    char *copy = render->is_tracked ? jinja_origins_keep(render, text)
                                    : jinja_alloc(render, text.len + 1, 1);
    if (!copy)
        return false;
    if (text.len > 0 && !render->is_tracked)
        memcpy(copy, text.at, text.len);
    return jinja_string(render, (struct str){copy, text.len}, out);
}

bool jinja_seq(struct render *render, enum seq_kind kind, size_t count, struct value *out) {
    struct seq *seq = jinja_alloc(render, 1, sizeof *seq);
    if (!seq || !(seq->items = jinja_alloc(render, count, sizeof *seq->items)))
        return false;
    seq->kind = kind;
    seq->count = count;
    *out = (struct value){.type = VALUE_SEQ, .seq = seq};
    return true;
}

bool jinja_push(struct render *render, struct seq *seq, size_t *capacity, struct value item) {
    if (seq->count == *capacity) {
        size_t grown = *capacity ? *capacity * 2 : 8;
        struct value *items = jinja_alloc(render, grown, sizeof *items);
        if (!items)
            return false;
        if (seq->count)
            memcpy(items, seq->items, seq->count * sizeof *items);
        seq->items = items;
        *capacity = grown;
    }
    seq->items[seq->count++] = item;
    return jinja_charge(render, 4);
}

bool jinja_dict(struct render *render, enum value_type type, struct value *out) {
    struct dict *dict = jinja_alloc(render, 1, sizeof *dict);
    *out = (struct value){.type = type, .dict = dict};
    return dict != NULL;
}

static bool dict_find(struct render *render, const struct dict *dict, struct value key,
                      struct pair **out) {
    *out = NULL;
    for (size_t i = 0; i < dict->count; i++) {
        bool same;
        if (!jinja_equal(render, dict->pairs[i].key, key, &same))
            return false;
        if (same) {
            *out = &dict->pairs[i];
            break;
        }
    }
    return true;
}

bool jinja_dict_get(struct render *render, const struct dict *dict, struct value key,
                    const struct value **out) {
    struct pair *pair;
    bool ok = dict_find(render, dict, key, &pair);
    *out = ok && pair ? &pair->value : NULL;
    return ok;
}

static bool dict_append(struct render *render, struct dict *dict, struct value key,
                        struct value value) {
    if (dict->count == dict->capacity) {
        size_t grown = dict->capacity ? dict->capacity * 2 : 4;
        struct pair *pairs = jinja_alloc(render, grown, sizeof *pairs);
        if (!pairs)
            return false;
        if (dict->count)
            memcpy(pairs, dict->pairs, dict->count * sizeof *pairs);
        dict->pairs = pairs;
        dict->capacity = grown;
    }
    dict->pairs[dict->count++] = (struct pair){key, value};
    return true;
}

bool jinja_dict_set(struct render *render, struct dict *dict, struct value key,
                    struct value value) {
    struct pair *pair;
    if (!jinja_hashable(render, key) || !dict_find(render, dict, key, &pair))
        return false;
    if (!pair)
        return dict_append(render, dict, key, value);
    pair->value = value;
    return true;
}

static bool from_json_array(struct render *render, const json_t *json, struct value *out) {
    if (!jinja_seq(render, SEQ_LIST, json_array_size(json), out))
        return false;
    for (size_t i = 0; i < out->seq->count; i++)
        if (!jinja_from_json(render, json_array_get(json, i), &out->seq->items[i]))
            return false;
    return true;
}

/* The value of the key whose words are the template's: "role" ... */
static bool is_own_word(const struct render *render, struct str key, const json_t *value) {
    if (!render->is_tracked || !json_is_string(value) || !str_equal(key, render->own_key))
        return false;
    struct str text = {json_string_value(value), json_string_length(value)};
    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i], low = (char)(c | 32);
        if (!((low >= 'a' && low <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'))
            return false;
    }
    return true;
}

static bool from_json_object(struct render *render, const json_t *json, struct value *out) {
    if (!jinja_dict(render, VALUE_DICT, out))
        return false;
    const char *name;
    size_t len;
    json_t *child;
    json_object_keylen_foreach((json_t *)json, name, len, child) {
        struct value key, value;
        bool was_own = render->is_own;
        render->is_own |= is_own_word(render, (struct str){name, len}, child);
        bool ok = jinja_string(render, (struct str){name, len}, &key) &&
                  jinja_from_json(render, child, &value);
        render->is_own = was_own;
        if (!ok || !dict_append(render, out->dict, key, value))
            return false;
    }
    return true;
}

bool jinja_from_json(struct render *render, const json_t *json, struct value *out) {
    if (!jinja_charge(render, 16) || !jinja_enter(render))
        return false;
    bool ok = true;
    struct str text;
    switch (json ? json_typeof(json) : JSON_NULL) {
    case JSON_OBJECT:
        ok = from_json_object(render, json, out);
        break;
    case JSON_ARRAY:
        ok = from_json_array(render, json, out);
        break;
    case JSON_STRING:
        text = (struct str){json_string_value(json), json_string_length(json)};
        ok = render->is_own ? jinja_string_own(render, text, out) : jinja_string(render, text, out);
        break;
    case JSON_INTEGER:
        *out = value_int(json_integer_value(json));
        break;
    case JSON_REAL:
        *out = value_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = value_bool(json_is_true(json));
        break;
    case JSON_NULL:
        *out = value_none();
        break;
    }
    jinja_leave(render);
    return ok;
}

/* ---- asking ---- */

const char *jinja_type_name(struct value v) {
    static const char *const names[] = {
        [VALUE_MISSING] = "missing",   [VALUE_UNDEFINED] = "Undefined",
        [VALUE_NONE] = "NoneType",     [VALUE_BOOL] = "bool",
        [VALUE_INT] = "int",           [VALUE_FLOAT] = "float",
        [VALUE_STRING] = "str",        [VALUE_DICT] = "dict",
        [VALUE_SEQ] = "sequence",      [VALUE_NAMESPACE] = "Namespace",
        [VALUE_LOOP] = "loop",         [VALUE_MACRO] = "macro",
        [VALUE_FUNCTION] = "function", [VALUE_METHOD] = "method"};
    static const char *const seqs[] = {
        [SEQ_LIST] = "list",           [SEQ_TUPLE] = "tuple",        [SEQ_RANGE] = "range",
        [SEQ_KEYS] = "dict_keys",      [SEQ_VALUES] = "dict_values", [SEQ_ITEMS] = "dict_items",
        [SEQ_GENERATOR] = "generator",
    };
    return v.type == VALUE_SEQ ? seqs[v.seq->kind] : names[v.type];
}

bool jinja_truth(struct value v) {
    switch (v.type) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return v.truth;
    case VALUE_INT:
        return v.integer != 0;
    case VALUE_FLOAT:
        return v.real != 0;
    case VALUE_STRING:
        return v.string->text.len > 0;
    case VALUE_SEQ:
        return v.seq->kind == SEQ_GENERATOR || v.seq->count > 0;
    case VALUE_DICT:
        return v.dict->count > 0;
    default:
        return true;
    }
}

bool jinja_is_number(struct value v) {
    return v.type == VALUE_BOOL || v.type == VALUE_INT || v.type == VALUE_FLOAT;
}

bool jinja_is_int(struct value v, int64_t *out) {
    if (v.type != VALUE_BOOL && v.type != VALUE_INT)
        return false;
    *out = v.type == VALUE_INT ? v.integer : v.truth;
    return true;
}

double jinja_number(struct value v) {
    return v.type == VALUE_FLOAT ? v.real : v.type == VALUE_INT ? (double)v.integer : v.truth;
}

bool jinja_defined(struct render *render, struct value v) {
    return v.type != VALUE_UNDEFINED || jinja_fail(render, "%s", v.why);
}

bool jinja_hashable(struct render *render, struct value v) {
    bool is_plain = v.type != VALUE_DICT &&
                    !(v.type == VALUE_SEQ && (v.seq->kind == SEQ_LIST || v.seq->kind == SEQ_KEYS ||
                                              v.seq->kind == SEQ_ITEMS));
    if (!is_plain)
        return jinja_fail(render, "unhashable type: '%s'", jinja_type_name(v));
    if (v.type != VALUE_SEQ || v.seq->kind != SEQ_TUPLE)
        return true;
    if (!jinja_enter(render))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < v.seq->count; i++)
        ok = jinja_work(render, 0) && jinja_hashable(render, v.seq->items[i]);
    jinja_leave(render);
    return ok;
}

/* Compares an int with a float exactly: a double cannot hold every int64. -1, 0, 1; 2: unordered.
 */
static int order_int_float(int64_t i, double f) {
    if (isnan(f))
        return 2;
    if (f >= 9223372036854775808.0)
        return -1;
    if (f < -9223372036854775808.0)
        return 1;
    int64_t whole = (int64_t)f;
    if (i != whole)
        return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

/* -1, 0, 1; 2 when one is NaN. */
static int order_numbers(struct value a, struct value b) {
    int64_t x, y;
    bool a_int = jinja_is_int(a, &x), b_int = jinja_is_int(b, &y);
    if (a_int && b_int)
        return (x > y) - (x < y);
    if (a_int)
        return order_int_float(x, b.real);
    if (b_int) {
        int order = order_int_float(y, a.real);
        return order == 2 ? 2 : -order;
    }
    if (isnan(a.real) || isnan(b.real))
        return 2;
    return (a.real > b.real) - (a.real < b.real);
}

static int order_strings(struct str a, struct str b) {
    /* The order of UTF-8 bytes is that of the characters. */
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n ? memcmp(a.at, b.at, n) : 0;
    if (order == 0)
        order = (a.len > b.len) - (a.len < b.len);
    return (order > 0) - (order < 0);
}

static bool equal_seqs(struct render *render, const struct seq *a, const struct seq *b, bool *out) {
    *out = a == b;
    if (*out || a->kind == SEQ_GENERATOR || a->kind == SEQ_VALUES || a->kind != b->kind ||
        a->count != b->count)
        return true;
    *out = true;
    for (size_t i = 0; i < a->count && *out; i++)
        if (!jinja_equal(render, a->items[i], b->items[i], out))
            return false;
    return true;
}

static bool equal_dicts(struct render *render, const struct dict *a, const struct dict *b,
                        bool *out) {
    *out = a->count == b->count;
    for (size_t i = 0; i < a->count && *out; i++) {
        struct pair *pair;
        if (!dict_find(render, b, a->pairs[i].key, &pair))
            return false;
        *out = false;
        if (pair && !jinja_equal(render, a->pairs[i].value, pair->value, out))
            return false;
    }
    return true;
}

static bool equal_compound(struct render *render, struct value a, struct value b, bool *out) {
    if (!jinja_enter(render))
        return false;
    bool ok = a.type == VALUE_SEQ ? equal_seqs(render, a.seq, b.seq, out)
                                  : equal_dicts(render, a.dict, b.dict, out);
    jinja_leave(render);
    return ok;
}

bool jinja_equal(struct render *render, struct value a, struct value b, bool *out) {
    if (!jinja_charge(render, 2 * JINJA_CHAR))
        return false;
    if (jinja_is_number(a) && jinja_is_number(b))
        return *out = order_numbers(a, b) == 0, true;
    if (a.type != b.type)
        return *out = false, true;
    switch (a.type) {
    case VALUE_STRING:
        *out = a.string->text.len == b.string->text.len;
        if (*out && !jinja_charge(render, a.string->text.len / 4))
            return false;
        return *out = *out && str_equal(a.string->text, b.string->text), true;
    case VALUE_SEQ:
    case VALUE_DICT:
        return equal_compound(render, a, b, out);
    case VALUE_METHOD:
        *out = a.method->builtin == b.method->builtin;
        return true;
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return *out = true, true;
    default:
        return *out = a.macro == b.macro, true; /* by identity */
    }
}

/* Whether an order (-1, 0, 1; 2: none) fulfils the operator. */
static bool fulfils(int order, int op) {
    switch (op) {
    case TK_LT:
        return order == -1;
    case TK_LE:
        return order == -1 || order == 0;
    case TK_GT:
        return order == 1;
    default:
        return order == 1 || order == 0;
    }
}

static bool less_seqs(struct render *render, const struct seq *a, const struct seq *b, int op,
                      bool *out) {
    size_t n = a->count < b->count ? a->count : b->count;
    for (size_t i = 0; i < n; i++) {
        bool same;
        if (!jinja_equal(render, a->items[i], b->items[i], &same))
            return false;
        if (!same)
            return jinja_less(render, a->items[i], b->items[i], op, out);
    }
    *out = fulfils((a->count > b->count) - (a->count < b->count), op);
    return true;
}

bool jinja_less(struct render *render, struct value a, struct value b, int op, bool *out) {
    if (!jinja_charge(render, 2 * JINJA_CHAR))
        return false;
    if (jinja_is_number(a) && jinja_is_number(b))
        return *out = fulfils(order_numbers(a, b), op), true;
    if (a.type == VALUE_STRING && b.type == VALUE_STRING) {
        *out = fulfils(order_strings(a.string->text, b.string->text), op);
        return jinja_charge(render, a.string->text.len / 4);
    }
    if (!jinja_defined(render, a) || !jinja_defined(render, b))
        return false;
    if (a.type == VALUE_SEQ && b.type == VALUE_SEQ && a.seq->kind == b.seq->kind &&
        a.seq->kind <= SEQ_TUPLE) {
        if (!jinja_enter(render))
            return false;
        bool ok = less_seqs(render, a.seq, b.seq, op, out);
        jinja_leave(render);
        return ok;
    }
    return jinja_fail(render, "cannot order '%s' and '%s'", jinja_type_name(a), jinja_type_name(b));
}

static bool seq_contains(struct render *render, struct value item, struct seq *seq, bool *out) {
    *out = false;
    size_t i = seq->kind == SEQ_GENERATOR ? seq->next : 0;
    while (i < seq->count && !*out)
        if (!jinja_equal(render, seq->items[i++], item, out))
            return false;
    if (seq->kind == SEQ_GENERATOR)
        seq->next = i; /* a search consumes what it passes */
    return true;
}

bool jinja_contains(struct render *render, struct value item, struct value in, bool *out) {
    const struct value *found;
    const char *at;
    switch (in.type) {
    case VALUE_UNDEFINED:
        return *out = false, true;
    case VALUE_STRING:
        if (item.type != VALUE_STRING)
            return jinja_fail(render, "'in <string>' requires string as left operand, not %s",
                              jinja_type_name(item));
        if (!jinja_find(render, in.string->text, item.string->text, false, &at))
            return false;
        return *out = at != NULL, true;
    case VALUE_SEQ:
        return seq_contains(render, item, in.seq, out);
    case VALUE_DICT:
        if (!jinja_hashable(render, item) || !jinja_dict_get(render, in.dict, item, &found))
            return false;
        return *out = found != NULL, true;
    default:
        return jinja_fail(render, "argument of type '%s' is not iterable", jinja_type_name(in));
    }
}

bool jinja_length(struct render *render, struct value v, int64_t *out) {
    *out = 0;
    if (v.type == VALUE_STRING)
        *out = (int64_t)v.string->chars;
    else if (v.type == VALUE_SEQ && v.seq->kind != SEQ_GENERATOR)
        *out = (int64_t)v.seq->count;
    else if (v.type == VALUE_DICT)
        *out = (int64_t)v.dict->count;
    else if (v.type != VALUE_UNDEFINED)
        return jinja_fail(render, "object of type '%s' has no len()", jinja_type_name(v));
    return true;
}

/* ---- iterating ---- */

bool jinja_dict_view(struct render *render, const struct dict *dict, enum seq_kind kind,
                     struct value *out) {
    if (!jinja_seq(render, kind, dict->count, out))
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        struct value *item = &out->seq->items[i];
        if (kind == SEQ_ITEMS) {
            if (!jinja_seq(render, SEQ_TUPLE, 2, item))
                return false;
            item->seq->items[0] = dict->pairs[i].key;
            item->seq->items[1] = dict->pairs[i].value;
        } else {
            *item = kind == SEQ_KEYS ? dict->pairs[i].key : dict->pairs[i].value;
        }
    }
    return true;
}

static bool iterate_string(struct render *render, const struct string *s, struct value *out) {
    if (!jinja_seq(render, SEQ_LIST, s->chars, out))
        return false;
    struct str rest = s->text;
    for (size_t i = 0; i < s->chars; i++) {
        size_t n = utf8_length(rest);
        if (!jinja_string(render, (struct str){rest.at, n}, &out->seq->items[i]))
            return false;
        rest = str_skip(rest, n);
    }
    return true;
}

bool jinja_iterate(struct render *render, struct value v, struct value **items, size_t *count) {
    struct value list = v;
    *items = NULL;
    *count = 0;
    if (v.type == VALUE_UNDEFINED)
        return true;
    if (v.type == VALUE_STRING && !iterate_string(render, v.string, &list))
        return false;
    if (v.type == VALUE_DICT && !jinja_dict_view(render, v.dict, SEQ_KEYS, &list))
        return false;
    if (list.type != VALUE_SEQ)
        return jinja_fail(render, "'%s' object is not iterable", jinja_type_name(v));
    size_t from = list.seq->kind == SEQ_GENERATOR ? list.seq->next : 0;
    *items = list.seq->items + from;
    *count = list.seq->count - from;
    list.seq->next = list.seq->count;
    return jinja_work(render, JINJA_CHAR * *count); /* for callers that read them all */
}
