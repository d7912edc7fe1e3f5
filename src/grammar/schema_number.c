/* schema_number.c - numbers between limits, digit by digit.
 *
 * Integers have at most 18 digits. A number with limits has no exponent: its integer part is in a
 * range of integers, and where that equals a limit's the fraction is compared with the limit's.
 * Fractions have few enough digits that reading them as f64 keeps the order. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/locale.h"
#include "base/size.h"
#include "grammar/schema.h"

enum { MAX_DIGITS = 18, MAX_LISTED = 1000, MAX_FRACTION = 17 };
#define MAX_WHOLE UINT64_C(999999999999999999)

/* ---- integers ----------------------------------------------------------------------------- */

static const struct expr *digits(struct builder *b, char first, char last) {
    return first > last
               ? expr_never(b)
               : expr_class(b, &(struct char_range){(uint8_t)first, (uint8_t)last}, 1, false);
}

static const struct expr *any_digits(struct builder *b, uint32_t min, uint32_t max) {
    return expr_repeat(b, digits(b, '0', '9'), min, max);
}

static bool is_all(const char *text, char digit) {
    while (*text == digit)
        text++;
    return !*text;
}

/* Numbers of n digits; low and high NULL: no limit on that side. */
static const struct expr *same_length(struct builder *b, const char *low, const char *high,
                                      uint32_t n) {
    if (low && is_all(low, '0'))
        low = NULL;
    if (high && is_all(high, '9'))
        high = NULL;
    if (n == 0 || (!low && !high))
        return any_digits(b, n, n);
    if ((!low || is_all(low + 1, '0')) && (!high || is_all(high + 1, '9')))
        return expr_pair(b, digits(b, low ? low[0] : '0', high ? high[0] : '9'),
                         any_digits(b, n - 1, n - 1));
    struct expr_list list = {0};
    char first = low ? low[0] : '0', last = high ? high[0] : '9';
    const char *after_low = low ? low + 1 : NULL, *after_high = high ? high + 1 : NULL;
    if (low && high && first == last)
        return expr_pair(b, digits(b, first, first), same_length(b, after_low, after_high, n - 1));
    if (low)
        expr_push(b, &list,
                  expr_pair(b, digits(b, first, first), same_length(b, after_low, NULL, n - 1)));
    expr_push(b, &list,
              expr_pair(b, digits(b, (char)(first + (low != NULL)), (char)(last - (high != NULL))),
                        any_digits(b, n - 1, n - 1)));
    if (high)
        expr_push(b, &list,
                  expr_pair(b, digits(b, last, last), same_length(b, NULL, after_high, n - 1)));
    return expr_choice(b, &list);
}

/* Those of `from` to `to` digits, none of them 0 at the beginning; from 2 on. */
static const struct expr *of_lengths(struct builder *b, uint32_t from, uint32_t to) {
    return to == 0 ? expr_never(b)
                   : expr_pair(b, digits(b, '1', '9'), any_digits(b, from - 1, to - 1));
}

/* low .. high, without zeros before them. */
static const struct expr *integers(struct builder *b, uint64_t low, uint64_t high) {
    struct expr_list list = {0};
    uint64_t first = 0;
    uint32_t shortest = 0, longest = 0; /* lengths of which all numbers are in range */
    for (uint32_t n = 1; n <= 20 && low <= high; n++) {
        uint64_t last = n == 20 ? UINT64_MAX : (n == 1 ? 9 : first * 10 - 1);
        if (n > 1 && low <= first && high >= last) {
            shortest = shortest ? shortest : n;
            longest = n;
        } else if (low <= last && high >= first) {
            char from[24], to[24];
            snprintf(from, sizeof from, "%" PRIu64, low > first ? low : first);
            snprintf(to, sizeof to, "%" PRIu64, high < last ? high : last);
            expr_push(b, &list, same_length(b, from, to, n));
        }
        first = n == 1 ? 10 : first * 10;
        if (n == 19 || high <= last)
            break;
    }
    expr_push(b, &list, of_lengths(b, shortest, longest));
    return expr_choice(b, &list);
}

/* ---- limits ------------------------------------------------------------------------------- */

/* A limit: magnitude and sign. */
struct decimal {
    bool is_negative, is_open, is_there;
    uint64_t whole;
    char fraction[MAX_FRACTION + 1]; /* without zeros at its end */
    uint32_t n_fraction;
};

void number_write(const json_t *value, char out[40]) {
    if (json_is_integer(value)) {
        snprintf(out, 40, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return;
    }
    for (int precision = 15; precision <= 17; precision++) {
        locale_print(out, 40, "%.*g", precision, json_real_value(value));
        if (locale_number(out) == json_real_value(value))
            return;
    }
}

/* False: it is too large or too small to be written in 18 and 17 digits. */
static bool read_decimal(const json_t *value, struct decimal *out) {
    char text[64], *point;
    double x = json_number_value(value);
    if (json_is_integer(value))
        number_write(value, text);
    else if (fabs(x) >= 1e15 || (x != 0 && fabs(x) < 1e-9))
        return false;
    else
        locale_print(text, sizeof text, "%.*f",
                     fabs(x) < 1 ? 17 : 15 - (int)ceil(log10(fabs(x) + 1)), x);
    for (int precision = 1; json_is_real(value) && precision < 17; precision++) {
        char shorter[64];
        locale_print(shorter, sizeof shorter, "%.*f", precision, x);
        if (locale_number(shorter) == x) {
            snprintf(text, sizeof text, "%s", shorter);
            break;
        }
    }
    *out = (struct decimal){.is_there = true, .is_negative = text[0] == '-'};
    out->whole = strtoull(text + out->is_negative, &point, 10);
    for (point += *point == '.'; *point && out->n_fraction < MAX_FRACTION; point++)
        out->fraction[out->n_fraction++] = *point;
    while (out->n_fraction && out->fraction[out->n_fraction - 1] == '0')
        out->n_fraction--;
    if (out->whole == 0 && out->n_fraction == 0)
        out->is_negative = false;
    return out->whole <= MAX_WHOLE;
}

static int compare_sizes(const struct decimal *a, const struct decimal *b) {
    if (a->whole != b->whole)
        return a->whole < b->whole ? -1 : 1;
    for (uint32_t i = 0; i < a->n_fraction || i < b->n_fraction; i++) {
        char x = i < a->n_fraction ? a->fraction[i] : '0';
        char y = i < b->n_fraction ? b->fraction[i] : '0';
        if (x != y)
            return x < y ? -1 : 1;
    }
    return 0;
}

static int compare(const struct decimal *a, const struct decimal *b) {
    if (a->is_negative != b->is_negative)
        return a->is_negative ? -1 : 1;
    return a->is_negative ? compare_sizes(b, a) : compare_sizes(a, b);
}

/* Takes over a limit if it is the stricter one. */
static bool read_limit(struct schema *s, const json_t *flat, const char *key, bool is_open,
                       bool is_low, struct decimal *out) {
    const json_t *value = json_object_get(flat, key);
    struct decimal d;
    if (!value || json_is_boolean(value))
        return true;
    if (!json_is_number(value) || !read_decimal(value, &d)) {
        schema_fail(s, json_is_number(value) ? SLUICE_ERR_UNSUPPORTED : SLUICE_ERR_FORMAT,
                    "%s is not a number of up to 18 digits", key);
        return false;
    }
    d.is_open = is_open;
    int order = out->is_there ? compare(&d, out) : 0;
    if (!out->is_there || (is_low ? order > 0 : order < 0) || (order == 0 && is_open))
        *out = d;
    return true;
}

/* ---- fractions ---------------------------------------------------------------------------- */

struct fractions {
    struct builder *b;
    const struct decimal *low, *high; /* NULL: no limit on that side */
    uint32_t max_digits;              /* digits */
};

/* After i digits that are those of the limits named. */
static bool may_stop(const struct fractions *f, uint32_t i, bool is_low, bool is_high) {
    if (is_low && (i < f->low->n_fraction || f->low->is_open))
        return false;
    return !is_high || i < f->high->n_fraction || !f->high->is_open;
}

static const struct expr *fraction_from(const struct fractions *f, uint32_t i, bool is_low,
                                        bool is_high, bool needs_one) {
    struct builder *b = f->b;
    struct expr_list list = {0};
    is_low = is_low && (i < f->low->n_fraction || f->low->is_open);
    if (!is_low && !is_high)
        return any_digits(b, needs_one, i < f->max_digits ? f->max_digits - i : 0);
    char first = is_low && i < f->low->n_fraction ? f->low->fraction[i] : '0';
    char last = !is_high ? '9' : i < f->high->n_fraction ? f->high->fraction[i] : '0';
    if (!needs_one && may_stop(f, i, is_low, is_high))
        expr_push(b, &list, expr_text(b, ""));
    for (char d = first; i < f->max_digits && d <= last; d++) {
        bool on_low = is_low && d == first, on_high = is_high && d == last;
        if (!on_low && !on_high) { /* and all digits up to the last but one, or it */
            char to = is_high ? (char)(last - 1) : last;
            expr_push(b, &list,
                      expr_pair(b, digits(b, d, to), any_digits(b, 0, f->max_digits - i - 1)));
            d = to;
            continue;
        }
        expr_push(b, &list,
                  expr_pair(b, digits(b, d, d), fraction_from(f, i + 1, on_low, on_high, false)));
    }
    return expr_choice(b, &list);
}

/* Nothing, or a point and digits. */
static const struct expr *fraction(const struct fractions *f) {
    struct builder *b = f->b;
    bool is_low = f->low, is_high = f->high;
    const struct expr *some =
        expr_pair(b, expr_text(b, "."), fraction_from(f, 0, is_low, is_high, true));
    return may_stop(f, 0, is_low, is_high) ? expr_either(b, expr_text(b, ""), some) : some;
}

static uint32_t digits_of(uint64_t n) {
    uint32_t count = 1;
    for (; n >= 10; n /= 10)
        count++;
    return count;
}

/* Magnitudes from low to high; both must be there. */
static const struct expr *sizes(struct builder *b, const struct decimal *low,
                                const struct decimal *high) {
    struct expr_list list = {0};
    /* Next to an open limit with many digits f64 distinguishes only a few more. */
    uint32_t digits = max_u32(low->is_open ? digits_of(low->whole) : 1,
                              high->is_open ? digits_of(high->whole) : 1);
    struct fractions f = {.b = b, .max_digits = digits >= 14 ? 1 : min_u32(15 - digits, 6)};
    f.max_digits = max_u32(f.max_digits, max_u32(low->n_fraction, high->n_fraction));
    int order = compare_sizes(low, high);
    if (order > 0 || (order == 0 && (low->is_open || high->is_open)))
        return expr_never(b);
    if (high->whole > low->whole + 1)
        expr_push(b, &list,
                  expr_pair(b, integers(b, low->whole + 1, high->whole - 1), fraction(&f)));
    f.low = low;
    f.high = low->whole == high->whole ? high : NULL;
    expr_push(b, &list, expr_pair(b, integers(b, low->whole, low->whole), fraction(&f)));
    if (low->whole < high->whole) {
        f.low = NULL;
        f.high = high;
        expr_push(b, &list, expr_pair(b, integers(b, high->whole, high->whole), fraction(&f)));
    }
    return expr_choice(b, &list);
}

/* ---- both signs --------------------------------------------------------------------------- */

/* The smallest and the largest integer of a side; false: there is none. */
static uint64_t min_whole(const struct decimal *d) {
    return d->whole + (d->n_fraction > 0 || d->is_open);
}

static bool max_whole(const struct decimal *d, uint64_t *out) {
    bool is_below = d->n_fraction == 0 && d->is_open;
    *out = d->whole - (is_below && d->whole > 0);
    return !is_below || d->whole > 0;
}

static const struct expr *one_sign(struct builder *b, const struct decimal *low,
                                   const struct decimal *high, bool is_integer) {
    uint64_t max;
    if (!is_integer)
        return sizes(b, low, high);
    if (!max_whole(high, &max) || min_whole(low) > max)
        return expr_never(b);
    return integers(b, min_whole(low), max);
}

/* From low to high; both must be there; by magnitude on each side of zero. */
static const struct expr *between(struct builder *b, const struct decimal *low,
                                  const struct decimal *high, bool is_integer) {
    const struct decimal zero = {.is_there = true},
                         above_zero = {.is_there = true, .is_open = true};
    struct expr_list list = {0};
    if (compare(low, high) > 0)
        return expr_never(b);
    if (low->is_negative)
        expr_push(b, &list,
                  expr_pair(b, expr_text(b, "-"),
                            one_sign(b, high->is_negative ? high : &above_zero, low, is_integer)));
    if (!high->is_negative)
        expr_push(b, &list, one_sign(b, low->is_negative ? &zero : low, high, is_integer));
    return expr_choice(b, &list);
}

/* ---- multiples ---------------------------------------------------------------------------- */

/* Of 10, 100 ... : zeros at the end; of 2 and 5: the last digit. */
static const struct expr *open_multiples(struct schema *s, json_int_t by) {
    struct builder *b = s->b;
    uint32_t zeros = 0;
    for (; by % 10 == 0; by /= 10)
        zeros++;
    if (by != 1 && (by != 2 || zeros) && (by != 5 || zeros))
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED,
                           "multipleOf without limits is supported for 2, 5 and powers of ten, or "
                           "with at most %d values between minimum and maximum",
                           MAX_LISTED);
    char end[MAX_DIGITS + 1] = {0};
    memset(end, '0', min_u32(zeros, MAX_DIGITS));
    static const struct char_range even[] = {
        {'0', '0'}, {'2', '2'}, {'4', '4'}, {'6', '6'}, {'8', '8'}};
    static const struct char_range fives[] = {{'0', '0'}, {'5', '5'}};
    const struct expr *last = by == 2   ? expr_class(b, even, 5, false)
                              : by == 5 ? expr_class(b, fives, 2, false)
                                        : expr_text(b, end);
    const struct expr *head = integers(b, 1, 999999);
    const struct expr *some = expr_pair(b, by == 1 ? head : expr_optional(b, head), last);
    if (by == 1)
        return expr_either(b, expr_text(b, "0"),
                           expr_pair(b, expr_optional(b, expr_text(b, "-")), some));
    return expr_either(b, some, expr_triple(b, expr_text(b, "-"), head, last));
}

/* Those of step * first to step * last that are within the limits. */
static const struct expr *listed_multiples(struct schema *s, json_int_t step, json_int_t first,
                                           json_int_t last, const struct decimal *low,
                                           const struct decimal *high) {
    struct expr_list list = {0};
    for (json_int_t i = first; i <= last; i++) {
        json_t *value = json_integer(i * step);
        struct decimal d;
        char text[40];
        if (!value)
            break;
        number_write(value, text);
        bool fits = read_decimal(value, &d) && compare(&d, low) >= low->is_open &&
                    compare(high, &d) >= high->is_open;
        if (fits)
            expr_push(s->b, &list, expr_text(s->b, text));
        json_decref(value);
    }
    return expr_choice(s->b, &list);
}

/* The multiples of `by` within the limits; NULL: all integers within them. */
static const struct expr *multiples(struct schema *s, const json_t *by, const struct decimal *low,
                                    const struct decimal *high) {
    double from, to;
    if (!json_is_integer(by) || json_integer_value(by) <= 0)
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED,
                           "multipleOf is supported for positive integers only");
    json_int_t step = json_integer_value(by);
    if (!low->is_there && !high->is_there)
        return step == 1 ? NULL : open_multiples(s, step);
    if (!low->is_there || !high->is_there || low->whole > MAX_WHOLE / 2 ||
        high->whole > MAX_WHOLE / 2)
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED,
                           "multipleOf with one limit, expected both minimum and maximum");
    from = (low->is_negative ? -1.0 : 1.0) * (double)low->whole - 1;
    to = (high->is_negative ? -1.0 : 1.0) * (double)high->whole + 1;
    json_int_t first = (json_int_t)floor(from / (double)step),
               last = (json_int_t)ceil(to / (double)step);
    if (last - first <= MAX_LISTED)
        return listed_multiples(s, step, first, last, low, high);
    return step == 1
               ? NULL
               : schema_fail(s, SLUICE_ERR_UNSUPPORTED,
                             "multipleOf with more than %d values between the limits", MAX_LISTED);
}

/* ---- numbers ------------------------------------------------------------------------------ */

static const struct expr *any_number(struct builder *b, bool is_integer) {
    const struct expr *sign = expr_optional(b, expr_text(b, "-"));
    const struct expr *whole = integers(b, 0, MAX_WHOLE);
    if (is_integer)
        return expr_either(b, expr_text(b, "0"), expr_pair(b, sign, integers(b, 1, MAX_WHOLE)));
    const struct char_range signs[] = {{'+', '+'}, {'-', '-'}}, e[] = {{'e', 'e'}, {'E', 'E'}};
    const struct expr *power =
        expr_triple(b, expr_class(b, e, 2, false), expr_optional(b, expr_class(b, signs, 2, false)),
                    any_digits(b, 1, 2));
    const struct expr *part = expr_pair(b, expr_text(b, "."), any_digits(b, 1, MAX_FRACTION));
    return expr_triple(b, sign, whole,
                       expr_pair(b, expr_optional(b, part), expr_optional(b, power)));
}

/* The same, once for all that have no limits. */
static const struct expr *any_rule(struct schema *s, bool is_integer) {
    uint32_t *rule = is_integer ? &s->integer : &s->number;
    struct builder *b = s->b;
    if (*rule == UINT32_MAX) {
        const struct expr *body = any_number(b, is_integer);
        uint32_t made = builder_rule(b, is_integer ? STR("an integer") : STR("a number"));
        if (b->is_out_of_memory)
            return expr_never(b);
        b->rules[made].body = body;
        *rule = made;
    }
    return expr_rule(b, *rule);
}

/* OpenAPI gives the size of an integer as its format. */
static bool read_format(struct schema *s, const json_t *flat, struct decimal *low,
                        struct decimal *high) {
    const char *format = json_string_value(json_object_get(flat, "format"));
    static const char *const known[] = {"int64", "float", "double", "uint32", "uint64", "int32"};
    if (!format)
        return true;
    for (int i = 0; i < 6; i++) {
        if (strcmp(format, known[i]) != 0)
            continue;
        json_t *limits =
            i == 5   ? json_pack("{s:i, s:i}", "minimum", INT32_MIN, "maximum", INT32_MAX)
            : i == 3 ? json_pack("{s:i, s:I}", "minimum", 0, "maximum", (json_int_t)UINT32_MAX)
            : i == 4 ? json_pack("{s:i}", "minimum", 0)
                     : json_object();
        bool is_ok = limits && read_limit(s, limits, "minimum", false, true, low) &&
                     read_limit(s, limits, "maximum", false, false, high);
        json_decref(limits);
        return is_ok;
    }
    schema_fail(s, SLUICE_ERR_UNSUPPORTED, "format %s of a number is not supported", format);
    return false;
}

const struct expr *number_of(struct schema *s, const json_t *flat, bool is_integer) {
    const struct decimal highest = {.is_there = true,
                                    .whole = is_integer ? MAX_WHOLE : MAX_WHOLE / 1000};
    struct decimal low = {0}, high = {0}, lowest = highest;
    const json_t *by = json_object_get(flat, "multipleOf");
    bool low_is_open = json_is_true(json_object_get(flat, "exclusiveMinimum"));
    bool high_is_open = json_is_true(json_object_get(flat, "exclusiveMaximum"));
    lowest.is_negative = true;
    if (!read_limit(s, flat, "minimum", low_is_open, true, &low) ||
        !read_limit(s, flat, "exclusiveMinimum", true, true, &low) ||
        !read_limit(s, flat, "maximum", high_is_open, false, &high) ||
        !read_limit(s, flat, "exclusiveMaximum", true, false, &high) ||
        !read_format(s, flat, &low, &high))
        return expr_never(s->b);
    if (by) {
        const struct expr *e = multiples(s, by, &low, &high);
        if (e)
            return e;
        is_integer = true; /* multiples of 1 */
    }
    if (!low.is_there && !high.is_there)
        return any_rule(s, is_integer);
    if (!is_integer && low.is_there && low.whole >= MAX_WHOLE / 1000)
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED, "minimum has more than 15 digits");
    return between(s->b, low.is_there ? &low : &lowest, high.is_there ? &high : &highest,
                   is_integer);
}
