/* jinja_text.c - Python's string operations: strip, slice, case, replace, numbers, formatting. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/locale.h"
#include "text/jinja_ast.h"

bool jinja_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static bool is_stripped(struct str character, struct str chars) {
    uint32_t c;
    if (!chars.at)
        return utf8_decode(character, &c) > 0 && jinja_is_space(c);
    /* UTF-8 is self-synchronizing: a whole character only matches at its start. */
    return memmem(chars.at, chars.len, character.at, character.len);
}

/* The last character of a text that is not empty. */
static struct str last_char(struct str text) {
    size_t n = 1;
    while (n < text.len && (text.at[text.len - n] & 0xC0) == 0x80)
        n++;
    return (struct str){text.at + text.len - n, n};
}

struct str jinja_trim(struct str text, bool left, bool right) {
    uint32_t c;
    for (size_t n; left && text.len > 0; text = str_skip(text, n))
        if (n = utf8_decode(text, &c), !jinja_is_space(c))
            break;
    for (struct str last; right && text.len > 0; text.len -= last.len)
        if (last = last_char(text), utf8_decode(last, &c), !jinja_is_space(c))
            break;
    return text;
}

bool jinja_strip(struct render *render, struct str text, struct str chars, bool left, bool right,
                 struct str *out) {
    for (bool at_left = left; at_left || right;) {
        if (!jinja_charge(render, 4 * JINJA_CHAR + 2 * chars.len))
            return false;
        struct str c = {text.at, utf8_length(text)};
        if (!at_left && text.len > 0)
            c = last_char(text);
        if (text.len > 0 && is_stripped(c, chars))
            text = at_left ? str_skip(text, c.len) : (struct str){text.at, text.len - c.len};
        else if (at_left)
            at_left = false;
        else
            right = false;
    }
    *out = text;
    return true;
}

/* ---- finding ---- */

/* memrchr for more than one byte. Comparing is charged: a hostile text can match for long at every
 * place. */
static bool find_last(struct render *render, struct str text, struct str what, const char **out) {
    for (size_t i = text.len - what.len + 1; i-- > 0;) {
        bool may_be = text.at[i] == what.at[0];
        if (!jinja_charge(render, 2 + (may_be ? 4 + what.len / 4 : 0)))
            return false;
        if (may_be && memcmp(text.at + i, what.at, what.len) == 0) {
            *out = text.at + i;
            break;
        }
    }
    return true;
}

/* memmem in windows, so that a long search can be cancelled. It may compare up to 256 bytes at each
 * place, and makes a table from `what` at each call. */
static bool find_first(struct render *render, struct str text, struct str what, const char **out) {
    enum { WINDOW = 16 << 10, COMPARED = 256 };
    size_t window = what.len > WINDOW / 4 ? what.len * 4 : WINDOW;
    uint64_t per_byte = 1 + (what.len < COMPARED ? what.len : COMPARED) / 16;
    for (; !*out && text.len >= what.len; text = str_skip(text, window)) {
        size_t size = text.len < window + what.len ? text.len : window + what.len - 1;
        *out = memmem(text.at, size, what.at, what.len);
        uint64_t looked_at = *out ? (size_t)(*out - text.at) + what.len : size;
        if (!jinja_charge(render, JINJA_STEP + 4 * what.len + looked_at * per_byte))
            return false;
        if (text.len < window)
            break;
    }
    return true;
}

bool jinja_find(struct render *render, struct str text, struct str what, bool from_right,
                const char **out) {
    *out = NULL;
    if (what.len > text.len)
        return true;
    if (what.len == 0)
        return *out = text.at + (from_right ? text.len : 0), true;
    return from_right ? find_last(render, text, what, out) : find_first(render, text, what, out);
}

/* ---- cutting ---- */

/* The byte where the character with this number begins, looking from byte `from`. */
static size_t skip_chars(struct str text, size_t from, size_t chars) {
    for (; chars > 0 && from < text.len; chars--)
        do
            from++;
        while (from < text.len && (text.at[from] & 0xC0) == 0x80);
    return from;
}

struct str jinja_cut(const struct string *s, size_t begin, size_t end) {
    if (s->chars == s->text.len)
        return (struct str){s->text.at + begin, end - begin};
    size_t from = skip_chars(s->text, 0, begin);
    return (struct str){s->text.at + from, skip_chars(s->text, from, end - begin) - from};
}

/* ---- numbers ---- */

static int digit_of(char c) {
    char low = (char)(c | 32);
    return c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'z' ? low - 'a' + 10 : 99;
}

/* The base of a prefix such as 0x, and the text without it. */
static struct str skip_prefix(struct str s, int64_t *base) {
    char kind = s.len > 1 && s.at[0] == '0' ? (char)(s.at[1] | 32) : 0;
    int64_t named = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (named && (*base == 0 || *base == named)) {
        *base = named;
        return str_skip(s, s.len > 2 && s.at[2] == '_' ? 3 : 2);
    }
    if (*base == 0)
        *base = 10;
    return s;
}

bool jinja_parse_int(struct str text, int64_t base, int64_t *out, bool *is_too_big) {
    struct str s = jinja_trim(text, true, true);
    *is_too_big = false;
    bool is_negative = s.len > 0 && s.at[0] == '-';
    if (s.len > 0 && (s.at[0] == '-' || s.at[0] == '+'))
        s = str_skip(s, 1);
    s = skip_prefix(s, &base);
    if (base < 2 || base > 36 || s.len == 0 || s.at[0] == '_')
        return false;
    int64_t value = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.at[i] == '_' && s.at[i - 1] != '_' && i + 1 < s.len)
            continue;
        int digit = digit_of(s.at[i]);
        if (digit >= base)
            return *is_too_big = false;
        /* Kept negative, so that INT64_MIN fits. */
        *is_too_big |= __builtin_mul_overflow(value, base, &value) ||
                       __builtin_sub_overflow(value, digit, &value);
    }
    *is_too_big |= !is_negative && value == INT64_MIN;
    *out = is_negative || *is_too_big ? value : -value;
    return !*is_too_big;
}

/* The length of digits with single underscores between them at the start of s. */
static size_t digits_length(const char *s) {
    size_t n = 0;
    while (s[n] >= '0' && s[n] <= '9') {
        n++;
        if (s[n] == '_' && s[n + 1] >= '0' && s[n + 1] <= '9')
            n++;
    }
    return n;
}

/* Whether s is a decimal number as Python writes them, without sign. */
static bool is_decimal(const char *s) {
    size_t whole = digits_length(s), part = 0;
    s += whole;
    if (*s == '.') {
        part = digits_length(s + 1);
        s += 1 + part;
    }
    if (whole + part == 0)
        return false;
    if (*s == 'e' || *s == 'E') {
        s += s[1] == '+' || s[1] == '-' ? 2 : 1;
        size_t digits = digits_length(s);
        s += digits;
        if (digits == 0)
            return false;
    }
    return *s == 0;
}

bool jinja_parse_float(struct str text, double *out) {
    char z[512], *to = z;
    struct str s = jinja_trim(text, true, true);
    if (s.len >= sizeof z || memchr(s.at, 0, s.len))
        return false;
    memcpy(z, s.at, s.len);
    z[s.len] = 0;
    const char *digits = z + (z[0] == '-' || z[0] == '+');
    static const char *const words[] = {"inf", "infinity", "nan"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (str_is_caseless(str_of(digits), words[i])) {
            double value = i < 2 ? (double)INFINITY : (double)NAN;
            *out = z[0] == '-' ? -value : value;
            return true;
        }
    if (!is_decimal(digits))
        return false;
    for (const char *from = z; *from; from++)
        if (*from != '_')
            *to++ = *from;
    *to = 0;
    *out = locale_number(z);
    return true;
}

/* ---- case ---- */

static bool is_cased(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* Characters that Python's case rules skip: marks, apostrophes and the like. */
static bool is_case_ignorable(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' ||
           c == ':' || c == 0xB7 || c == 0x2019;
}

/* A capital sigma at the end of a word has another lower case than elsewhere. */
static bool is_final_sigma(struct render *render, struct str before, struct str after, bool *out) {
    uint32_t c = 0;
    for (; before.len > 0; before.len -= last_char(before).len) {
        struct str last = last_char(before);
        if (!jinja_next_char(render, &last, &c))
            return false;
        if (!is_case_ignorable(c))
            break;
    }
    *out = before.len > 0 && is_cased(c);
    while (*out && after.len > 0) {
        if (!jinja_next_char(render, &after, &c))
            return false;
        if (!is_case_ignorable(c))
            return *out = !is_cased(c), true;
    }
    return true;
}

static bool put_lower(struct render *render, uint32_t c, struct str before, struct str after) {
    if (c == 0x130) /* the only one that becomes two */
        return jinja_put(render, STR("i\xCC\x87"));
    bool is_final;
    if (c == 0x3A3)
        return is_final_sigma(render, before, after, &is_final) &&
               jinja_put_char(render, is_final ? 0x3C2 : 0x3C3);
    return jinja_put_char(render, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

static bool put_upper(struct render *render, uint32_t c, bool is_title) {
    if (c == 0xDF)
        return jinja_put(render, is_title ? STR("Ss") : STR("SS"));
    utf8proc_int32_t i = (utf8proc_int32_t)c;
    return jinja_put_char(render, (uint32_t)(is_title ? utf8proc_totitle(i) : utf8proc_toupper(i)));
}

/* What separates words for the title filter; str.title differs. */
static bool is_word_break(uint32_t c) {
    return jinja_is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

bool jinja_change_case(struct render *render, struct str text, enum text_case to,
                       struct value *out) {
    size_t mark = render->out->len;
    bool in_word = false;
    struct str rest = text;
    while (rest.len > 0) {
        uint32_t c;
        struct str before = {text.at, (size_t)(rest.at - text.at)};
        bool is_first = to == CASE_CAPITALIZE ? before.len == 0 : !in_word;
        if (!jinja_next_char(render, &rest, &c) || !jinja_charge(render, JINJA_CHAR))
            return false;
        bool ok = to == CASE_UPPER || (to != CASE_LOWER && is_first)
                      ? put_upper(render, c, to == CASE_TITLE || to == CASE_CAPITALIZE)
                      : put_lower(render, c, before, rest);
        if (!ok)
            return false;
        in_word = to == CASE_WORDS ? !is_word_break(c) : is_cased(c);
    }
    jinja_origins_follow(render, mark, text);
    return jinja_take(render, mark, out);
}

/* ---- replacing and splitting ---- */

bool jinja_replace(struct render *render, struct str text, struct str old, struct str new,
                   int64_t count, struct value *out) {
    size_t mark = render->out->len;
    bool ok = true;
    while (ok && count != 0) {
        const char *found;
        if (!jinja_find(render, text, old, false, &found))
            return false;
        if (!found)
            break;
        struct str before = {text.at, (size_t)(found - text.at)};
        ok = jinja_put(render, before) && jinja_put(render, new);
        text = str_skip(text, before.len + old.len);
        count -= count > 0;
        if (old.len == 0) { /* between all characters, and at both ends */
            size_t n = utf8_length(text);
            if (n == 0)
                break;
            ok = ok && jinja_put(render, (struct str){text.at, n});
            text = str_skip(text, n);
        }
    }
    return ok && jinja_put(render, text) && jinja_take(render, mark, out);
}

static bool is_line_end(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool jinja_split_lines(struct render *render, struct str text, bool keep_ends, struct value *out) {
    size_t capacity = 0;
    if (!jinja_seq(render, SEQ_LIST, 0, out) || !jinja_charge(render, JINJA_CHAR * text.len))
        return false;
    while (text.len > 0) {
        size_t at = 0, n = 0;
        for (uint32_t c; at < text.len; at += n) {
            n = utf8_decode(str_skip(text, at), &c);
            if (is_line_end(c)) {
                n += c == '\r' && at + 1 < text.len && text.at[at + 1] == '\n';
                break;
            }
        }
        size_t end = at < text.len ? at + n : at;
        struct value line;
        if (!jinja_string(render, (struct str){text.at, keep_ends ? end : at}, &line) ||
            !jinja_push(render, out->seq, &capacity, line))
            return false;
        text = str_skip(text, end);
    }
    return true;
}

/* ---- "format" % arguments ---- */

enum { DIGITS_UNITS = 16 << 10 }; /* of work, for a number with hundreds of digits */

struct formatting {
    struct value args; /* a tuple, a dict, or one value */
    size_t used;       /* of a tuple, or of the one */
    bool is_keyed;
};

struct directive {
    bool is_left, has_zeros, has_plus, has_space, has_precision;
    int width, precision;
    char kind;
    struct value value;
};

static bool next_value(struct render *render, struct formatting *f, struct value *out) {
    bool is_tuple = f->args.type == VALUE_SEQ && f->args.seq->kind == SEQ_TUPLE;
    if (f->used >= (is_tuple ? f->args.seq->count : 1))
        return jinja_fail(render, "not enough arguments for format string");
    *out = is_tuple ? f->args.seq->items[f->used] : f->args;
    f->used++;
    return true;
}

static bool keyed_value(struct render *render, struct formatting *f, struct str key,
                        struct value *out) {
    const struct value *found;
    struct value name;
    if (f->args.type != VALUE_DICT)
        return jinja_fail(render, "format requires a mapping");
    if (!jinja_string(render, key, &name) || !jinja_dict_get(render, f->args.dict, name, &found))
        return false;
    if (!found)
        return jinja_fail(render, "the format's key '%.*s' is missing", STR_ARG(key));
    f->is_keyed = true;
    *out = *found;
    return true;
}

static char next_char(struct str *s) {
    char c = s->len > 0 ? s->at[0] : 0;
    *s = str_skip(*s, s->len > 0);
    return c;
}

static int read_width(struct str *s) {
    int width = 0;
    while (s->len > 0 && s->at[0] >= '0' && s->at[0] <= '9' && width < 100000)
        width = width * 10 + (next_char(s) - '0');
    return width;
}

/* Reads what is between the % and the letter, and the value it formats. */
static bool read_directive(struct render *render, struct formatting *f, struct str *s,
                           struct directive *d) {
    bool is_named = s->len > 0 && s->at[0] == '(';
    if (is_named) {
        const char *end = memchr(s->at, ')', s->len);
        if (!end)
            return jinja_fail(render, "incomplete format key");
        struct str key = {s->at + 1, (size_t)(end - s->at) - 1};
        *s = str_skip(*s, key.len + 2);
        if (!keyed_value(render, f, key, &d->value))
            return false;
    }
    for (; s->len > 0 && strchr("-0+ #", s->at[0]) && s->at[0]; next_char(s)) {
        d->is_left |= s->at[0] == '-';
        d->has_zeros |= s->at[0] == '0';
        d->has_plus |= s->at[0] == '+';
        d->has_space |= s->at[0] == ' ';
    }
    d->width = read_width(s);
    if (s->len > 0 && s->at[0] == '.') {
        next_char(s);
        d->has_precision = true;
        d->precision = read_width(s);
    }
    d->kind = next_char(s);
    if (d->kind == 0)
        return jinja_fail(render, "incomplete format");
    return d->kind == '%' || is_named || next_value(render, f, &d->value);
}

static bool put_padded(struct render *render, const struct directive *d, struct str text) {
    size_t have = jinja_count_chars(text), width = (size_t)d->width;
    uint64_t padding = width > have ? width - have : 0;
    return jinja_put_times(render, STR(" "), d->is_left ? 0 : padding) && jinja_put(render, text) &&
           jinja_put_times(render, STR(" "), d->is_left ? padding : 0);
}

static bool put_text_directive(struct render *render, const struct directive *d) {
    struct value text;
    size_t mark = render->out->len;
    bool ok = d->kind == 's' ? jinja_put_str(render, d->value) : jinja_put_repr(render, d->value);
    if (!ok || !jinja_take(render, mark, &text) || !jinja_charge(render, 4 * text.string->text.len))
        return false;
    size_t end = text.string->chars;
    if (d->has_precision && (size_t)d->precision < end)
        end = (size_t)d->precision;
    return put_padded(render, d, jinja_cut(text.string, 0, end));
}

static bool put_number_directive(struct render *render, const struct directive *d) {
    char format[16], digits[512];
    int64_t integer;
    bool is_real = strchr("feEgG", d->kind) && d->kind != 0;
    if (!jinja_is_number(d->value) || d->precision > 100 || d->width > 100000)
        return jinja_fail(render, "%%%c format: a number is required, not %s", d->kind,
                          jinja_type_name(d->value));
    if (!jinja_charge(render, DIGITS_UNITS))
        return false;
    if (!jinja_is_int(d->value, &integer)) {
        double real = d->value.real;
        if (!is_real && (strchr("xXo", d->kind) || !(fabs(real) < 9.2e18)))
            return jinja_fail(render, "%%%c format: an integer is required, not float", d->kind);
        integer = is_real ? 0 : (int64_t)real;
    }
    snprintf(format, sizeof format, "%%%s%s%s.*%s%c",
             d->has_plus    ? "+"
             : d->has_space ? " "
                            : "",
             d->has_zeros && !d->is_left ? "0" : "", "*", is_real ? "" : "ll",
             d->kind == 'i' || d->kind == 'u' ? 'd' : d->kind);
    int width = d->has_zeros && !d->is_left && d->width < 400 && !d->has_precision ? d->width : 0;
    if (is_real && d->has_zeros && !d->is_left && d->width < 400)
        width = d->width;
    int precision = d->has_precision ? d->precision : is_real ? 6 : -1;
    if (is_real)
        locale_print(digits, sizeof digits, format, width, precision, jinja_number(d->value));
    else
        locale_print(digits, sizeof digits, format, width, precision, (long long)integer);
    return put_padded(render, d, str_of(digits));
}

static bool put_directive(struct render *render, const struct directive *d) {
    switch (d->kind) {
    case '%':
        return jinja_put(render, STR("%"));
    case 's':
    case 'r':
        return put_text_directive(render, d);
    case 'd':
    case 'i':
    case 'u':
    case 'f':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
    case 'x':
    case 'X':
    case 'o':
        return put_number_directive(render, d);
    default:
        return jinja_fail(render, "unsupported format character '%c'", d->kind);
    }
}

bool jinja_format(struct render *render, struct str format, struct value args, struct value *out) {
    struct formatting f = {.args = args};
    size_t mark = render->out->len;
    if (!jinja_charge(render, JINJA_CHAR * format.len))
        return false;
    while (format.len > 0) {
        const char *percent = memchr(format.at, '%', format.len);
        struct str plain = {format.at, percent ? (size_t)(percent - format.at) : format.len};
        if (!jinja_put(render, plain))
            return false;
        format = str_skip(format, plain.len);
        if (!percent)
            break;
        struct directive d = {0};
        format = str_skip(format, 1);
        if (!read_directive(render, &f, &format, &d) || !put_directive(render, &d))
            return false;
    }
    bool is_tuple = args.type == VALUE_SEQ && args.seq->kind == SEQ_TUPLE;
    /* What has items may have been meant for keys that the format does not use. */
    bool takes_any =
        args.type == VALUE_DICT || args.type == VALUE_UNDEFINED || f.is_keyed ||
        (args.type == VALUE_SEQ && (args.seq->kind == SEQ_LIST || args.seq->kind == SEQ_RANGE));
    if (!takes_any && f.used < (is_tuple ? args.seq->count : 1))
        return jinja_fail(render, "not all arguments converted during string formatting");
    return jinja_take(render, mark, out);
}
