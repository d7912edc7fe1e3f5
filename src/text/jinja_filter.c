/* jinja_filter.c - the filters that follow `|`: one row each. Those on sequences are in
 * jinja_filter_seq.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/locale.h"
#include "text/jinja_eval.h"

static bool is_given(struct value v) {
    return v.type != VALUE_MISSING && v.type != VALUE_NONE;
}

static bool string_self(struct render *render, const struct call *call, struct str *out) {
    struct value text;
    if (!jinja_to_string(render, call->self, &text))
        return false;
    *out = text.string->text;
    return true;
}

/* ---- text ---- */

static bool filter_upper(struct render *render, const struct call *call, struct value *out) {
    struct str s;
    return string_self(render, call, &s) && jinja_change_case(render, s, CASE_UPPER, out);
}

static bool filter_lower(struct render *render, const struct call *call, struct value *out) {
    struct str s;
    return string_self(render, call, &s) && jinja_change_case(render, s, CASE_LOWER, out);
}

static bool filter_title(struct render *render, const struct call *call, struct value *out) {
    struct str s;
    return string_self(render, call, &s) && jinja_change_case(render, s, CASE_WORDS, out);
}

static bool filter_capitalize(struct render *render, const struct call *call, struct value *out) {
    struct str s;
    return string_self(render, call, &s) && jinja_change_case(render, s, CASE_CAPITALIZE, out);
}

static bool filter_trim(struct render *render, const struct call *call, struct value *out) {
    struct str s, chars = {0};
    if (!string_self(render, call, &s))
        return false;
    if (is_given(call->args[0])) {
        if (call->args[0].type != VALUE_STRING)
            return jinja_fail(render, "strip arg must be None or str");
        chars = call->args[0].string->text;
    }
    return jinja_strip(render, s, chars, true, true, &s) && jinja_string(render, s, out);
}

static bool filter_string(struct render *render, const struct call *call, struct value *out) {
    return jinja_to_string(render, call->self, out);
}

/* A new string that is marked as safe. */
static bool mark(struct render *render, struct str text, struct value *out) {
    if (!jinja_string(render, text, out))
        return false;
    ((struct string *)out->string)->is_markup = true; /* just made, nobody else's yet */
    return true;
}

static bool filter_safe(struct render *render, const struct call *call, struct value *out) {
    struct str s;
    return string_self(render, call, &s) && mark(render, s, out);
}

static bool filter_escape(struct render *render, const struct call *call, struct value *out) {
    struct value text;
    size_t at = render->out->len;
    if (!jinja_to_string(render, call->self, &text))
        return false;
    if (text.string->is_markup)
        return *out = text, true;
    return jinja_put_escaped(render, text.string->text) && jinja_take(render, at, &text) &&
           mark(render, text.string->text, out);
}

static bool filter_replace(struct render *render, const struct call *call, struct value *out) {
    struct str s;
    struct value old, new;
    int64_t count = -1;
    if (!string_self(render, call, &s) || !jinja_to_string(render, call->args[0], &old) ||
        !jinja_to_string(render, call->args[1], &new) ||
        (is_given(call->args[2]) && !jinja_int_arg(render, call->args[2], -1, &count)))
        return false;
    return jinja_replace(render, s, old.string->text, new.string->text, count, out);
}

static bool filter_format(struct render *render, const struct call *call, struct value *out) {
    struct str s;
    struct value args;
    if (call->all->count > 0 && call->all->n_named > 0)
        return jinja_fail(render, "can't handle positional and keyword arguments at the same time");
    if (!string_self(render, call, &s))
        return false;
    if (call->all->n_named > 0) {
        if (!jinja_dict(render, VALUE_DICT, &args))
            return false;
        for (size_t i = 0; i < call->all->n_named; i++) {
            struct value key;
            if (!jinja_string(render, call->all->named[i].name, &key) ||
                !jinja_dict_set(render, args.dict, key, call->all->named[i].value))
                return false;
        }
    } else {
        if (!jinja_seq(render, SEQ_TUPLE, call->all->count, &args))
            return false;
        for (size_t i = 0; i < call->all->count; i++)
            args.seq->items[i] = call->all->at[i];
    }
    return jinja_format(render, s, args, out);
}

/* Puts an indentation: a text, or this many spaces. */
static bool put_indent(struct render *render, struct value width) {
    int64_t spaces = 4;
    if (width.type == VALUE_STRING)
        return jinja_put(render, width.string->text);
    if (!jinja_int_arg(render, width, 4, &spaces))
        return false;
    return jinja_put_times(render, STR(" "), spaces > 0 ? (uint64_t)spaces : 0);
}

static bool filter_indent(struct render *render, const struct call *call, struct value *out) {
    bool first = jinja_truth(call->args[1]), blank = jinja_truth(call->args[2]);
    struct value text, lines;
    size_t at = render->out->len;
    if (!jinja_defined(render, call->self))
        return false;
    if (call->self.type != VALUE_STRING)
        return jinja_fail(render, "indent: '%s' is not a text", jinja_type_name(call->self));
    if (!jinja_put(render, call->self.string->text) || !jinja_put(render, STR("\n")) ||
        !jinja_take(render, at, &text) ||
        !jinja_split_lines(render, text.string->text, false, &lines))
        return false;
    if (first && !put_indent(render, call->args[0]))
        return false;
    for (size_t i = 0; i < lines.seq->count; i++) {
        struct str line = lines.seq->items[i].string->text;
        bool is_indented = i > 0 && (blank || line.len > 0);
        if ((i > 0 && !jinja_put(render, STR("\n"))) ||
            (is_indented && !put_indent(render, call->args[0])) || !jinja_put(render, line))
            return false;
    }
    return jinja_take(render, at, out);
}

/* ---- JSON ---- */

/* The two texts of `separators`. */
static bool read_separators(struct render *render, struct value v, struct json_style *style) {
    struct value *items;
    size_t count;
    if (!jinja_iterate(render, v, &items, &count))
        return false;
    if (count != 2 || items[0].type != VALUE_STRING || items[1].type != VALUE_STRING)
        return jinja_fail(render, "tojson: separators must be two texts");
    style->between = items[0].string->text;
    style->colon = items[1].string->text;
    return true;
}

static bool filter_tojson(struct render *render, const struct call *call, struct value *out) {
    struct value indent = call->args[1], separators = call->args[2], spaces;
    struct json_style style = {.is_ascii = jinja_truth(call->args[0]),
                               .is_sorted = jinja_truth(call->args[3]),
                               .has_indent = is_given(indent),
                               .between = is_given(indent) ? STR(",") : STR(", "),
                               .colon = STR(": ")};
    size_t at = render->out->len;
    bool has_items = call->self.type == VALUE_SEQ || call->self.type == VALUE_DICT;
    if (style.has_indent && has_items) { /* as Python: not looked at for the rest */
        if (!put_indent(render, indent) || !jinja_take(render, at, &spaces))
            return false;
        style.indent = spaces.string->text;
    }
    if (is_given(separators) && !read_separators(render, separators, &style))
        return false;
    return jinja_put_json(render, call->self, &style) && jinja_take(render, at, out);
}

/* ---- numbers ---- */

static bool filter_int(struct render *render, const struct call *call, struct value *out) {
    struct value v = call->self;
    int64_t integer = 0, base;
    double real;
    bool is_too_big = false, is_text = v.type == VALUE_STRING;
    *out = call->args[0].type == VALUE_MISSING ? value_int(0) : call->args[0];
    if (!jinja_defined(render, v) || !jinja_int_arg(render, call->args[1], 10, &base) ||
        !jinja_charge_sizes(render, &v,
                            1)) /* what is not an int is read again: it may be a float */
        return false;
    if (jinja_is_int(v, &integer) ||
        (is_text && jinja_parse_int(v.string->text, base, &integer, &is_too_big)))
        return *out = value_int(integer), true;
    if (is_too_big)
        return jinja_fail(render, "a number does not fit in 64 bits");
    if (is_text ? !jinja_parse_float(v.string->text, &real) : v.type != VALUE_FLOAT)
        return true;
    real = is_text ? real : v.real;
    if (isnan(real) || (isinf(real) && is_text))
        return true;
    if (!(fabs(real) < 9223372036854775808.0))
        return jinja_fail(render, "a number does not fit in 64 bits");
    *out = value_int((int64_t)real);
    return true;
}

static bool filter_float(struct render *render, const struct call *call, struct value *out) {
    double real;
    *out = call->args[0].type == VALUE_MISSING ? value_float(0) : call->args[0];
    if (!jinja_defined(render, call->self))
        return false;
    if (jinja_is_number(call->self))
        *out = value_float(jinja_number(call->self));
    else if (call->self.type == VALUE_STRING && jinja_parse_float(call->self.string->text, &real))
        *out = value_float(real);
    return true;
}

static bool filter_abs(struct render *render, const struct call *call, struct value *out) {
    int64_t integer;
    if (!jinja_defined(render, call->self))
        return false;
    if (!jinja_is_number(call->self))
        return jinja_fail(render, "bad operand type for abs(): '%s'", jinja_type_name(call->self));
    if (!jinja_is_int(call->self, &integer))
        *out = value_float(fabs(call->self.real));
    else if (integer < 0 && __builtin_sub_overflow(0, integer, &integer))
        return jinja_fail(render, "a number does not fit in 64 bits");
    else
        *out = value_int(integer);
    return true;
}

/* Python's round(): to the even neighbour, by the exact decimal value. */
static double round_float(double real, int64_t digits) {
    char text[512];
    if (!isfinite(real) || digits > 100 || fabs(real) > 1e100)
        return real;
    locale_print(text, sizeof text, "%.*f", (int)digits, real);
    return locale_number(text);
}

static bool filter_round(struct render *render, const struct call *call, struct value *out) {
    int64_t digits, integer;
    struct value v = call->self, method = call->args[1];
    bool is_common = method.type == VALUE_MISSING ||
                     (method.type == VALUE_STRING && str_is(method.string->text, "common"));
    if (!jinja_defined(render, v) || !jinja_int_arg(render, call->args[0], 0, &digits))
        return false;
    if (!jinja_is_number(v))
        return jinja_fail(render, "round: '%s' is not a number", jinja_type_name(v));
    if (digits < 0 || digits > 300)
        return jinja_fail(render, "round: %lld digits are not supported", (long long)digits);
    if (!jinja_charge(render, 4096)) /* for hundreds of digits */
        return false;
    if (is_common) {
        *out = jinja_is_int(v, &integer) ? value_int(integer)
                                         : value_float(round_float(v.real, digits));
        return true;
    }
    bool is_ceil = method.type == VALUE_STRING && str_is(method.string->text, "ceil");
    if (!is_ceil && !(method.type == VALUE_STRING && str_is(method.string->text, "floor")))
        return jinja_fail(render, "method must be common, ceil or floor");
    double scale = pow(10, (double)digits), scaled = jinja_number(v) * scale;
    *out = value_float((is_ceil ? ceil(scaled) : floor(scaled)) / scale);
    return true;
}

/* ---- defaults and conversions ---- */

static bool filter_default(struct render *render, const struct call *call, struct value *out) {
    bool is_replaced = call->self.type == VALUE_UNDEFINED ||
                       (jinja_truth(call->args[1]) && !jinja_truth(call->self));
    *out = call->self;
    if (!is_replaced)
        return true;
    *out = call->args[0];
    return out->type != VALUE_MISSING || jinja_string(render, STR(""), out);
}

static bool filter_length(struct render *render, const struct call *call, struct value *out) {
    int64_t length;
    if (!jinja_length(render, call->self, &length))
        return false;
    *out = value_int(length);
    return true;
}

/* clang-format off */
static const struct builtin filters[] = {
    {"abs", "", filter_abs, PAYS_BY_SIZE}, {"capitalize", "", filter_capitalize, PAYS_ITSELF},
    {"count", "", filter_length, PAYS_ITSELF},
    {"d", "/ default_value boolean", filter_default, PAYS_ITSELF},
    {"default", "/ default_value boolean", filter_default, PAYS_ITSELF},
    {"e", "", filter_escape, PAYS_BY_SIZE}, {"escape", "", filter_escape, PAYS_BY_SIZE},
    {"float", "/ default", filter_float, PAYS_BY_SIZE},
    {"format", "*", filter_format, PAYS_BY_SIZE},
    {"indent", "/ width first blank", filter_indent, PAYS_BY_SIZE},
    {"int", "/ default base", filter_int, PAYS_BY_SIZE}, {"length", "", filter_length, PAYS_ITSELF},
    {"lower", "", filter_lower, PAYS_ITSELF},
    {"replace", "old new / count", filter_replace, PAYS_ITSELF},
    {"round", "/ precision method", filter_round, PAYS_BY_SIZE},
    {"safe", "", filter_safe, PAYS_ITSELF}, {"string", "", filter_string, PAYS_ITSELF},
    {"title", "", filter_title, PAYS_ITSELF},
    {"tojson", "/ ensure_ascii indent separators sort_keys", filter_tojson, PAYS_ITSELF},
    {"trim", "/ chars", filter_trim, PAYS_ITSELF}, {"upper", "", filter_upper, PAYS_ITSELF}, {0},
};
/* clang-format on */

static const struct builtin *find_row(const struct builtin *rows, struct str name) {
    for (; rows->name; rows++)
        if (str_is(name, rows->name))
            return rows;
    return NULL;
}

const struct builtin *jinja_filter_find(struct str name) {
    const struct builtin *row = find_row(filters, name);
    return row ? row : find_row(jinja_seq_filters, name);
}
