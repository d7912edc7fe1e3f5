/* jinja_op.c - operators on values: arithmetic, attributes, items, slices. */
#include <math.h>

#include "text/jinja_eval.h"

/* ---- arithmetic ---- */

enum { FMOD_UNITS = 4096 }; /* of work: it goes bit by bit through 2000 of them, at worst */

static const char *op_text(int op) {
    static const char *const texts[] = {
        [TK_ADD] = "+",       [TK_SUB] = "-", [TK_MUL] = "*", [TK_DIV] = "/",
        [TK_FLOORDIV] = "//", [TK_MOD] = "%", [TK_POW] = "**"};
    return texts[op];
}

static bool int_power(struct render *render, int64_t base, int64_t exponent, int64_t *out) {
    bool too_big = false;
    *out = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1)
            too_big |= __builtin_mul_overflow(*out, base, out);
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
            too_big = true; /* the square is multiplied in sooner or later */
    }
    return !too_big || jinja_fail(render, "a number does not fit in 64 bits");
}

/* Division rounds towards minus infinity, and the remainder has the divisor's sign. */
static bool int_divide(struct render *render, int op, int64_t a, int64_t b, int64_t *out) {
    if (a == INT64_MIN && b == -1)
        return op == TK_MOD ? (*out = 0, true)
                            : jinja_fail(render, "a number does not fit in 64 bits");
    int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    *out = op == TK_MOD ? rest : quotient;
    return true;
}

static bool int_binary(struct render *render, int op, int64_t a, int64_t b, int64_t *out) {
    bool too_big = false;
    switch (op) {
    case TK_ADD:
        too_big = __builtin_add_overflow(a, b, out);
        break;
    case TK_SUB:
        too_big = __builtin_sub_overflow(a, b, out);
        break;
    case TK_MUL:
        too_big = __builtin_mul_overflow(a, b, out);
        break;
    case TK_POW:
        return int_power(render, a, b, out);
    default:
        return int_divide(render, op, a, b, out);
    }
    return !too_big || jinja_fail(render, "a number does not fit in 64 bits");
}

static double float_mod(double a, double b) {
    double rest = fmod(a, b);
    if (rest != 0)
        return (rest < 0) != (b < 0) ? rest + b : rest;
    return copysign(0.0, b);
}

/* As Python does it: from the exact remainder, so that a == b * (a // b) + a % b nearly. */
static double float_floor_div(double a, double b) {
    double rest = fmod(a, b), quotient = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0))
        quotient -= 1.0;
    if (quotient == 0)
        return copysign(0.0, a / b);
    double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1.0 : whole;
}

static bool float_power(struct render *render, double a, double b, struct value *out) {
    if (a == 0 && b < 0)
        return jinja_fail(render, "0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && floor(b) != b)
        return jinja_fail(render, "a negative number to a broken power");
    *out = value_float(pow(a, b));
    if (isinf(out->real) && isfinite(a) && isfinite(b))
        return jinja_fail(render, "a number is too large for a float");
    return true;
}

static bool number_binary(struct render *render, int op, struct value a, struct value b,
                          struct value *out) {
    int64_t i, k, result;
    bool are_ints = jinja_is_int(a, &i) && jinja_is_int(b, &k);
    double x = jinja_number(a), y = jinja_number(b);
    if ((op == TK_DIV || op == TK_FLOORDIV || op == TK_MOD) && y == 0)
        return jinja_fail(render, "division by zero");
    if (are_ints && op != TK_DIV && (op != TK_POW || k >= 0)) {
        if (!int_binary(render, op, i, k, &result))
            return false;
        *out = value_int(result);
        return true;
    }
    if (!jinja_charge(render, op == TK_FLOORDIV || op == TK_MOD ? FMOD_UNITS : JINJA_STEP))
        return false;
    switch (op) {
    case TK_ADD:
        return *out = value_float(x + y), true;
    case TK_SUB:
        return *out = value_float(x - y), true;
    case TK_MUL:
        return *out = value_float(x * y), true;
    case TK_DIV:
        return *out = value_float(x / y), true;
    case TK_FLOORDIV:
        return *out = value_float(float_floor_div(x, y)), true;
    case TK_MOD:
        return *out = value_float(float_mod(x, y)), true;
    default:
        return float_power(render, x, y, out);
    }
}

static bool put_joined(struct render *render, struct value v, bool is_escaped) {
    return is_escaped && !v.string->is_markup ? jinja_put_escaped(render, v.string->text)
                                              : jinja_put(render, v.string->text);
}

static bool add_strings(struct render *render, struct value a, struct value b, struct value *out) {
    size_t mark = render->out->len;
    bool is_markup = a.string->is_markup || b.string->is_markup;
    if (!put_joined(render, a, is_markup) || !put_joined(render, b, is_markup) ||
        !jinja_take(render, mark, out))
        return false;
    ((struct string *)out->string)->is_markup = is_markup; /* just made, nobody else's yet */
    return true;
}

static bool add_seqs(struct render *render, const struct seq *a, const struct seq *b,
                     struct value *out) {
    if (!jinja_seq(render, a->kind, a->count + b->count, out))
        return false;
    if (a->count)
        memcpy(out->seq->items, a->items, a->count * sizeof *a->items);
    if (b->count)
        memcpy(out->seq->items + a->count, b->items, b->count * sizeof *b->items);
    return true;
}

static bool is_list_like(struct value v) {
    return v.type == VALUE_SEQ && v.seq->kind <= SEQ_TUPLE;
}

static bool repeat_string(struct render *render, struct str text, int64_t times,
                          struct value *out) {
    size_t mark = render->out->len;
    return jinja_put_times(render, text, times > 0 ? (uint64_t)times : 0) &&
           jinja_take(render, mark, out);
}

static bool repeat(struct render *render, struct value v, int64_t times, struct value *out) {
    if (v.type == VALUE_STRING)
        return repeat_string(render, v.string->text, times, out);
    size_t capacity = 0;
    if (!jinja_seq(render, v.seq->kind, 0, out))
        return false;
    for (; v.seq->count > 0 && times > 0; times--)
        for (size_t i = 0; i < v.seq->count; i++)
            if (!jinja_push(render, out->seq, &capacity, v.seq->items[i]))
                return false;
    return true;
}

bool jinja_binary(struct render *render, int op, struct value a, struct value b,
                  struct value *out) {
    int64_t times;
    if (op == TK_MOD && a.type == VALUE_STRING)
        return jinja_format(render, a.string->text, b, out);
    if (!jinja_defined(render, a) || !jinja_defined(render, b))
        return false;
    if (jinja_is_number(a) && jinja_is_number(b))
        return number_binary(render, op, a, b, out);
    if (op == TK_ADD && a.type == VALUE_STRING && b.type == VALUE_STRING)
        return add_strings(render, a, b, out);
    if (op == TK_ADD && is_list_like(a) && is_list_like(b) && a.seq->kind == b.seq->kind)
        return add_seqs(render, a.seq, b.seq, out);
    if (op == TK_MUL && (a.type == VALUE_STRING || is_list_like(a)) && jinja_is_int(b, &times))
        return repeat(render, a, times, out);
    if (op == TK_MUL && (b.type == VALUE_STRING || is_list_like(b)) && jinja_is_int(a, &times))
        return repeat(render, b, times, out);
    return jinja_fail(render, "unsupported operand types for %s: '%s' and '%s'", op_text(op),
                      jinja_type_name(a), jinja_type_name(b));
}

/* ---- items, attributes, slices ---- */

static bool is_indexed(struct value v) {
    return v.type == VALUE_STRING || (v.type == VALUE_SEQ && v.seq->kind <= SEQ_RANGE);
}

/* The item at an index; *found says whether there is one. */
static bool index_item(struct render *render, struct value a, int64_t index, bool *found,
                       struct value *out) {
    size_t count = a.type == VALUE_STRING ? a.string->chars : a.seq->count;
    if (index < 0)
        index += (int64_t)count;
    *found = index >= 0 && (uint64_t)index < count;
    if (!*found)
        return true;
    size_t i = (size_t)index;
    if (a.type == VALUE_STRING)
        return jinja_charge(render, a.string->chars == a.string->text.len ? 0 : 4 * i) &&
               jinja_string(render, jinja_cut(a.string, i, i + 1), out);
    *out = a.seq->items[i];
    return true;
}

/* a[key] alone. An unhashable key is just not found, as in Jinja2. */
static bool find_item(struct render *render, struct value a, struct value key, bool *found,
                      struct value *out) {
    int64_t index;
    *found = false;
    if (is_indexed(a) && jinja_is_int(key, &index))
        return index_item(render, a, index, found, out);
    bool is_key = key.type != VALUE_DICT && (key.type != VALUE_SEQ || key.seq->kind == SEQ_TUPLE);
    if (a.type == VALUE_DICT && is_key) {
        const struct value *value;
        if (!jinja_dict_get(render, a.dict, key, &value))
            return false;
        if (value)
            *out = *value;
        *found = value != NULL;
    }
    return true;
}

static bool find_range_attribute(const struct seq *seq, struct str name, struct value *out) {
    if (seq->kind != SEQ_RANGE)
        return false;
    int64_t value = str_is(name, "start")  ? seq->start
                    : str_is(name, "stop") ? seq->end
                                           : seq->step;
    *out = value_int(value);
    return str_is(name, "start") || str_is(name, "stop") || str_is(name, "step");
}

/* a.name alone. */
static bool find_attribute(struct render *render, struct value a, struct str name, bool *found,
                           struct value *out) {
    *found = true;
    if (a.type == VALUE_LOOP)
        return jinja_loop_attribute(render, a.loop, name, found, out);
    if (a.type == VALUE_SEQ && find_range_attribute(a.seq, name, out))
        return true;
    if (a.type == VALUE_MACRO && str_is(name, "name"))
        return jinja_string(render, a.macro->node->text, out);
    if (a.type == VALUE_NAMESPACE) {
        struct value key;
        const struct value *value;
        if (!jinja_string(render, name, &key) || !jinja_dict_get(render, a.dict, key, &value))
            return false;
        *found = value != NULL;
        if (value)
            *out = *value;
        return true;
    }
    const struct builtin *builtin = jinja_method_find(a, name);
    *found = builtin != NULL;
    if (!builtin)
        return true;
    if (!builtin->fn)
        return jinja_undefined(render, out, "access to attribute '%s' of '%s' object is unsafe.",
                               builtin->name, jinja_type_name(a));
    struct method *method = jinja_alloc(render, 1, sizeof *method);
    if (!method)
        return false;
    *method = (struct method){.self = a, .builtin = builtin};
    *out = (struct value){.type = VALUE_METHOD, .method = method};
    return true;
}

bool jinja_attribute(struct render *render, struct value a, struct str name, struct value *out) {
    bool found;
    struct value key;
    if (!jinja_defined(render, a) || !find_attribute(render, a, name, &found, out))
        return false;
    if (found)
        return true;
    if (a.type == VALUE_DICT) {
        if (!jinja_string(render, name, &key) || !find_item(render, a, key, &found, out))
            return false;
        if (found)
            return true;
    }
    return jinja_undefined(render, out, "'%s object' has no attribute '%.*s'", jinja_type_name(a),
                           STR_ARG(name));
}

bool jinja_item(struct render *render, struct value a, struct value key, struct value *out) {
    bool found;
    if (!jinja_defined(render, a) || !find_item(render, a, key, &found, out))
        return false;
    if (found)
        return true;
    if (key.type != VALUE_STRING)
        return jinja_undefined(render, out, "'%s object' has no such element", jinja_type_name(a));
    if (!find_attribute(render, a, key.string->text, &found, out))
        return false;
    return found || jinja_undefined(render, out, "'%s object' has no attribute '%.*s'",
                                    jinja_type_name(a), STR_ARG(key.string->text));
}

/* Python's slice.indices: resolves bounds that count from the end or are out of range. */
static int64_t clamp_bound(int64_t bound, int64_t count, int64_t step) {
    if (bound < 0)
        bound = bound < -count ? -1 : bound + count;
    if (bound < 0)
        return step < 0 ? -1 : 0;
    if (bound >= count)
        return step < 0 ? count - 1 : count;
    return bound;
}

static bool read_bound(struct render *render, struct value v, int64_t fallback, int64_t *out) {
    *out = fallback;
    if (v.type == VALUE_MISSING || v.type == VALUE_NONE || jinja_is_int(v, out))
        return true;
    return jinja_defined(render, v) && jinja_fail(render, "slice indices must be integers or None");
}

/* Items begin, begin + step ... before end. */
struct stride {
    int64_t begin, end, step;
    size_t count;
};

/* A slice of a range is a range; the numbers are for printing, and may wrap near the limits. */
static void slice_range(const struct seq *from, const struct stride *s, struct seq *to) {
    uint64_t start = (uint64_t)from->start, step = (uint64_t)from->step;
    to->start = (int64_t)(start + (uint64_t)s->begin * step);
    to->end = (int64_t)(start + (uint64_t)s->end * step);
    to->step = (int64_t)(step * (uint64_t)s->step);
}

/* What a stride takes, as a value of a's kind. */
static bool pick(struct render *render, struct value a, const struct stride *s, struct value *out) {
    size_t begin = (size_t)s->begin, n, mark = render->out->len;
    struct value *items;
    if (a.type == VALUE_STRING && s->step == 1)
        return jinja_charge(render, 2 * a.string->text.len) &&
               jinja_string(render, jinja_cut(a.string, begin, begin + s->count), out);
    if (a.type == VALUE_STRING) {
        if (!jinja_iterate(render, a, &items, &n))
            return false;
        for (size_t i = 0; i < s->count; i++)
            if (!jinja_put(render, items[s->begin + (int64_t)i * s->step].string->text))
                return false;
        return jinja_take(render, mark, out);
    }
    if (!jinja_seq(render, a.seq->kind, s->count, out))
        return false;
    if (!jinja_charge(render, JINJA_CHAR * s->count))
        return false;
    for (size_t i = 0; i < s->count; i++)
        out->seq->items[i] = a.seq->items[s->begin + (int64_t)i * s->step];
    if (a.seq->kind == SEQ_RANGE)
        slice_range(a.seq, s, out->seq);
    return true;
}

bool jinja_slice(struct render *render, struct value a, const struct value bounds[3],
                 struct value *out) {
    struct stride s = {0};
    if (!jinja_defined(render, a))
        return false;
    if (!is_indexed(a))
        return jinja_fail(render, "'%s' object cannot be sliced", jinja_type_name(a));
    if (!read_bound(render, bounds[2], 1, &s.step))
        return false;
    if (s.step == 0)
        return jinja_fail(render, "slice step cannot be zero");
    if (s.step == INT64_MIN)
        s.step++; /* no length is that large */
    if (!read_bound(render, bounds[0], s.step > 0 ? 0 : INT64_MAX, &s.begin) ||
        !read_bound(render, bounds[1], s.step > 0 ? INT64_MAX : INT64_MIN, &s.end))
        return false;
    int64_t count = (int64_t)(a.type == VALUE_STRING ? a.string->chars : a.seq->count);
    s.begin = clamp_bound(s.begin, count, s.step);
    s.end = clamp_bound(s.end, count, s.step);
    if (s.step > 0 && s.begin < s.end)
        s.count = (size_t)((s.end - s.begin - 1) / s.step + 1);
    if (s.step < 0 && s.end < s.begin)
        s.count = (size_t)((s.begin - s.end - 1) / -s.step + 1);
    if (s.count == 0 && a.type == VALUE_STRING)
        s.begin = 0;
    return pick(render, a, &s, out);
}
