/* jinja_test.c - the tests that follow `is`: one row each. */
#include <math.h>
#include <utf8proc.h>

#include "text/jinja_eval.h"

static bool test_defined(struct render *render, const struct call *call, struct value *out) {
    (void)render;
    *out = value_bool(call->self.type != VALUE_UNDEFINED);
    return true;
}

static bool test_undefined(struct render *render, const struct call *call, struct value *out) {
    (void)render;
    *out = value_bool(call->self.type == VALUE_UNDEFINED);
    return true;
}

/* A test of the type alone. */
#define TYPE_TEST(name, condition)                                                                 \
    static bool test_##name(struct render *render, const struct call *call, struct value *out) {   \
        (void)render;                                                                              \
        struct value v = call->self;                                                               \
        *out = value_bool(condition);                                                              \
        return true;                                                                               \
    }

TYPE_TEST(none, v.type == VALUE_NONE)
TYPE_TEST(string, v.type == VALUE_STRING)
TYPE_TEST(mapping, v.type == VALUE_DICT)
TYPE_TEST(number, jinja_is_number(v))
TYPE_TEST(integer, v.type == VALUE_INT)
TYPE_TEST(float, v.type == VALUE_FLOAT)
TYPE_TEST(boolean, v.type == VALUE_BOOL)
TYPE_TEST(true, v.type == VALUE_BOOL && v.truth)
TYPE_TEST(false, v.type == VALUE_BOOL && !v.truth)
TYPE_TEST(escaped, v.type == VALUE_STRING && v.string->is_markup)
/* Undefined counts as all of these: its methods exist, and fail. */
TYPE_TEST(iterable, v.type == VALUE_STRING || v.type == VALUE_SEQ || v.type == VALUE_DICT ||
                        v.type == VALUE_UNDEFINED || v.type == VALUE_LOOP)
TYPE_TEST(sequence, v.type == VALUE_STRING || v.type == VALUE_DICT || v.type == VALUE_UNDEFINED ||
                        (v.type == VALUE_SEQ && v.seq->kind <= SEQ_RANGE))
TYPE_TEST(callable, v.type == VALUE_FUNCTION || v.type == VALUE_METHOD || v.type == VALUE_MACRO ||
                        v.type == VALUE_LOOP || v.type == VALUE_UNDEFINED)

/* self % divisor == rest */
static bool test_rest(struct render *render, struct value v, struct value divisor, int64_t rest,
                      struct value *out) {
    struct value found;
    bool same;
    if (!jinja_binary(render, TK_MOD, v, divisor, &found) ||
        !jinja_equal(render, found, value_int(rest), &same))
        return false;
    *out = value_bool(same);
    return true;
}

static bool test_odd(struct render *render, const struct call *call, struct value *out) {
    return test_rest(render, call->self, value_int(2), 1, out);
}

static bool test_even(struct render *render, const struct call *call, struct value *out) {
    return test_rest(render, call->self, value_int(2), 0, out);
}

static bool test_divisible(struct render *render, const struct call *call, struct value *out) {
    return test_rest(render, call->self, call->args[0], 0, out);
}

static bool test_equal(struct render *render, const struct call *call, struct value *out) {
    bool same;
    if (!jinja_equal(render, call->self, call->args[0], &same))
        return false;
    *out = value_bool(same);
    return true;
}

static bool test_unequal(struct render *render, const struct call *call, struct value *out) {
    if (!test_equal(render, call, out))
        return false;
    *out = value_bool(!out->truth);
    return true;
}

static bool test_order(struct render *render, const struct call *call, int op, struct value *out) {
    bool holds;
    if (!jinja_less(render, call->self, call->args[0], op, &holds))
        return false;
    *out = value_bool(holds);
    return true;
}

static bool test_less(struct render *render, const struct call *call, struct value *out) {
    return test_order(render, call, TK_LT, out);
}

static bool test_less_equal(struct render *render, const struct call *call, struct value *out) {
    return test_order(render, call, TK_LE, out);
}

static bool test_greater(struct render *render, const struct call *call, struct value *out) {
    return test_order(render, call, TK_GT, out);
}

static bool test_greater_equal(struct render *render, const struct call *call, struct value *out) {
    return test_order(render, call, TK_GE, out);
}

static bool test_in(struct render *render, const struct call *call, struct value *out) {
    bool holds;
    if (!jinja_contains(render, call->self, call->args[0], &holds))
        return false;
    *out = value_bool(holds);
    return true;
}

/* Identity; for plain values: same type and equal. */
static bool test_same(struct render *render, const struct call *call, struct value *out) {
    struct value a = call->self, b = call->args[0];
    bool same = a.type == b.type;
    if (same && a.type >= VALUE_SEQ)
        same = a.seq == b.seq;
    else if (same && !jinja_equal(render, a, b, &same))
        return false;
    *out = value_bool(same);
    return true;
}

/* Whether there are letters with case, and all of them are of this one. */
static bool test_case(struct render *render, const struct call *call, bool is_upper,
                      struct value *out) {
    struct value text;
    bool has_any = false;
    if (!jinja_to_string(render, call->self, &text))
        return false;
    for (struct str s = text.string->text; s.len > 0;) {
        uint32_t c;
        if (!jinja_next_char(render, &s, &c) || !jinja_charge(render, JINJA_CHAR))
            return false;
        bool upper = utf8proc_isupper((utf8proc_int32_t)c);
        bool lower = utf8proc_islower((utf8proc_int32_t)c);
        if (utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LT ||
            (is_upper ? lower : upper))
            return *out = value_bool(false), true;
        has_any |= upper || lower;
    }
    *out = value_bool(has_any);
    return true;
}

static bool test_lower(struct render *render, const struct call *call, struct value *out) {
    return test_case(render, call, false, out);
}

static bool test_upper(struct render *render, const struct call *call, struct value *out) {
    return test_case(render, call, true, out);
}

static bool test_filter(struct render *render, const struct call *call, struct value *out) {
    (void)render;
    *out = value_bool(call->self.type == VALUE_STRING &&
                      jinja_filter_find(call->self.string->text) != NULL);
    return true;
}

static bool test_test(struct render *render, const struct call *call, struct value *out) {
    (void)render;
    *out = value_bool(call->self.type == VALUE_STRING &&
                      jinja_test_find(call->self.string->text) != NULL);
    return true;
}

/* clang-format off */
static const struct builtin tests[] = {
    {"defined", "", test_defined, PAYS_ITSELF}, {"undefined", "", test_undefined, PAYS_ITSELF},
    {"none", "", test_none, PAYS_ITSELF}, {"string", "", test_string, PAYS_ITSELF},
    {"mapping", "", test_mapping, PAYS_ITSELF}, {"number", "", test_number, PAYS_ITSELF},
    {"integer", "", test_integer, PAYS_ITSELF}, {"float", "", test_float, PAYS_ITSELF},
    {"boolean", "", test_boolean, PAYS_ITSELF}, {"true", "", test_true, PAYS_ITSELF},
    {"false", "", test_false, PAYS_ITSELF}, {"escaped", "", test_escaped, PAYS_ITSELF},
    {"iterable", "", test_iterable, PAYS_ITSELF}, {"sequence", "", test_sequence, PAYS_ITSELF},
    {"callable", "", test_callable, PAYS_ITSELF}, {"odd", "", test_odd, PAYS_BY_SIZE},
    {"even", "", test_even, PAYS_BY_SIZE}, {"divisibleby", "num", test_divisible, PAYS_BY_SIZE},
    {"eq", "b", test_equal, PAYS_ITSELF}, {"==", "b", test_equal, PAYS_ITSELF},
    {"equalto", "b", test_equal, PAYS_ITSELF}, {"ne", "b", test_unequal, PAYS_ITSELF},
    {"!=", "b", test_unequal, PAYS_ITSELF}, {"lt", "b", test_less, PAYS_ITSELF},
    {"<", "b", test_less, PAYS_ITSELF}, {"lessthan", "b", test_less, PAYS_ITSELF},
    {"le", "b", test_less_equal, PAYS_ITSELF}, {"<=", "b", test_less_equal, PAYS_ITSELF},
    {"gt", "b", test_greater, PAYS_ITSELF}, {">", "b", test_greater, PAYS_ITSELF},
    {"greaterthan", "b", test_greater, PAYS_ITSELF}, {"ge", "b", test_greater_equal, PAYS_ITSELF},
    {">=", "b", test_greater_equal, PAYS_ITSELF}, {"in", "seq", test_in, PAYS_ITSELF},
    {"sameas", "other", test_same, PAYS_ITSELF}, {"lower", "", test_lower, PAYS_ITSELF},
    {"upper", "", test_upper, PAYS_ITSELF}, {"filter", "", test_filter, PAYS_BY_SIZE},
    {"test", "", test_test, PAYS_BY_SIZE},
};
/* clang-format on */

const struct builtin *jinja_test_find(struct str name) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (str_is(name, tests[i].name))
            return &tests[i];
    return NULL;
}
