/* jinja_print.c - values as text: Python's str() and repr(), JSON, HTML escapes.
 *
 * All text is built at the end of the output buffer; jinja_take takes a finished piece off again.
 * So nothing but the output itself ever grows by reallocation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/locale.h"
#include "text/jinja_ast.h"

/* Reserves n more bytes. */
static bool reserve(struct render *render, uint64_t n) {
    struct text_buffer *b = render->out;
    if (n > render->max_output || b->len > render->max_output - n)
        return jinja_fail(render, "the text is longer than %zu bytes", render->max_output);
    if (b->capacity - b->len < n) {
        size_t capacity = (b->len + n) * 2 + 256;
        char *at = realloc(b->at, capacity);
        if (!at)
            return jinja_no_memory(render);
        b->at = at;
        b->capacity = capacity;
    }
    return true;
}

bool jinja_put(struct render *render, struct str text) {
    struct text_buffer *b = render->out;
    if (!jinja_charge(render, 16 + text.len / 2) || !reserve(render, text.len))
        return false;
    if (render->is_tracked && !jinja_origins_put(render, text))
        return false;
    if (text.len)
        memcpy(b->at + b->len, text.at, text.len);
    b->len += text.len;
    return true;
}

bool jinja_put_times(struct render *render, struct str text, uint64_t times) {
    size_t mark = render->out->len;
    if (text.len == 0 || times == 0)
        return true;
    /* More is refused by size. */
    uint64_t total = times > render->max_output ? render->max_output + 1 : times;
    if (__builtin_mul_overflow(total, text.len, &total))
        total = UINT64_MAX;
    if (!reserve(render, total) || !jinja_put(render, text))
        return false;
    /* Doubles what is there; it does not move. */
    for (uint64_t have; (have = render->out->len - mark) < total;)
        if (!jinja_put(render, (struct str){render->out->at + mark,
                                            have < total - have ? have : total - have}))
            return false;
    return true;
}

bool jinja_put_char(struct render *render, uint32_t character) {
    char bytes[4] = {0};
    size_t n = utf8_put(character, bytes);
    return jinja_put(render, (struct str){bytes, n});
}

bool jinja_take(struct render *render, size_t mark, struct value *out) {
    struct str text = {"", 0};
    if (render->out->len > mark) /* an empty buffer has no address to add to */
        text = (struct str){render->out->at + mark, render->out->len - mark};
    render->out->len = mark;
    return jinja_string_copy(render, text, out);
}

static bool put_z(struct render *render, const char *z) {
    return jinja_put(render, str_of(z));
}

/* ---- numbers ---- */

/* Writes real with the fewest digits that read back as the same number, as %e, and returns how many
 * follow the point. */
static int shortest_digits(double real, char out[32]) {
    /* A normal number that has a form of 15 digits or fewer is found with 15; a subnormal one may
     * need any number. */
    int precision = fpclassify(real) == FP_NORMAL ? 14 : 0;
    do
        locale_print(out, 32, "%.*e", precision, real);
    while (locale_number(out) != real && ++precision < 17);
    char *e = strchr(out, 'e'), *end = e;
    while (end[-1] == '0' && precision > 0) {
        end--;
        precision--;
    }
    if (end[-1] == '.')
        end--;
    memmove(end, e, strlen(e) + 1);
    return precision;
}

/* Laid out as Python's repr does: plain between 1e-4 and 1e16, with an exponent outside. */
static void format_float(double real, char out[40]) {
    char digits[32];
    int precision = shortest_digits(real, digits);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        char *e = strchr(digits, 'e');
        snprintf(out, 40, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+',
                 abs(exponent));
    } else {
        int decimals = precision - exponent;
        locale_print(out, 40, "%.*f", decimals > 1 ? decimals : 1, real);
    }
}

static bool put_float(struct render *render, double real) {
    char text[40];
    if (isnan(real))
        return put_z(render, "nan");
    if (isinf(real))
        return put_z(render, real < 0 ? "-inf" : "inf");
    if (!jinja_charge(render, fpclassify(real) == FP_SUBNORMAL ? 32 * 1024 : 4096))
        return false;
    format_float(real, text);
    return put_z(render, text);
}

static bool put_int(struct render *render, int64_t integer) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)integer);
    return jinja_work(render, 0) && put_z(render, text);
}

/* ---- repr ---- */

static bool is_printable(uint32_t c) {
    if (c < 0x7F)
        return c >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

/* A backslash and a letter; then `digits` hexadecimal ones of c. */
static bool put_escape(struct render *render, char letter, size_t digits, uint32_t c) {
    static const char hex[] = "0123456789abcdef";
    char text[10] = {'\\', letter};
    for (size_t i = 0; i < digits; i++)
        text[2 + i] = hex[c >> (4 * (digits - 1 - i)) & 15];
    return jinja_put(render, (struct str){text, 2 + digits});
}

static bool put_repr_char(struct render *render, uint32_t c, char quote) {
    if (c == '\n' || c == '\r' || c == '\t')
        return put_escape(render, c == '\n' ? 'n' : c == '\r' ? 'r' : 't', 0, 0);
    if (c == '\\' || c == (uint32_t)quote)
        return put_escape(render, (char)c, 0, 0);
    if (is_printable(c))
        return jinja_put_char(render, c);
    return c < 0x100     ? put_escape(render, 'x', 2, c)
           : c < 0x10000 ? put_escape(render, 'u', 4, c)
                         : put_escape(render, 'U', 8, c);
}

static bool put_repr_string(struct render *render, struct str text) {
    char quote = memchr(text.at, '\'', text.len) && !memchr(text.at, '"', text.len) ? '"' : '\'';
    struct str mark = {&quote, 1};
    if (!jinja_put(render, mark))
        return false;
    while (text.len > 0) {
        uint32_t c;
        if (!jinja_next_char(render, &text, &c) || !put_repr_char(render, c, quote))
            return false;
    }
    return jinja_put(render, mark);
}

static bool put_repr_items(struct render *render, const struct seq *seq) {
    for (size_t i = 0; i < seq->count; i++)
        if ((i > 0 && !put_z(render, ", ")) || !jinja_put_repr(render, seq->items[i]))
            return false;
    return true;
}

static bool put_repr_range(struct render *render, const struct seq *seq) {
    char text[96];
    int n =
        snprintf(text, sizeof text, "range(%lld, %lld", (long long)seq->start, (long long)seq->end);
    if (seq->step != 1)
        snprintf(text + n, sizeof text - (size_t)n, ", %lld", (long long)seq->step);
    return put_z(render, text) && put_z(render, ")");
}

static bool put_repr_seq(struct render *render, const struct seq *seq) {
    static const char *const around[][2] = {
        [SEQ_LIST] = {"[", "]"},
        [SEQ_TUPLE] = {"(", ")"},
        [SEQ_KEYS] = {"dict_keys([", "])"},
        [SEQ_VALUES] = {"dict_values([", "])"},
        [SEQ_ITEMS] = {"dict_items([", "])"},
    };
    if (seq->kind == SEQ_RANGE)
        return put_repr_range(render, seq);
    if (seq->kind == SEQ_GENERATOR)
        return put_z(render, "<generator object>");
    return put_z(render, around[seq->kind][0]) && put_repr_items(render, seq) &&
           (seq->kind != SEQ_TUPLE || seq->count != 1 || put_z(render, ",")) &&
           put_z(render, around[seq->kind][1]);
}

static bool put_repr_dict(struct render *render, const struct dict *dict) {
    if (!put_z(render, "{"))
        return false;
    for (size_t i = 0; i < dict->count; i++)
        if ((i > 0 && !put_z(render, ", ")) || !jinja_put_repr(render, dict->pairs[i].key) ||
            !put_z(render, ": ") || !jinja_put_repr(render, dict->pairs[i].value))
            return false;
    return put_z(render, "}");
}

static bool put_repr_any(struct render *render, struct value v) {
    switch (v.type) {
    case VALUE_UNDEFINED:
    case VALUE_MISSING:
        return put_z(render, "Undefined");
    case VALUE_NONE:
        return put_z(render, "None");
    case VALUE_BOOL:
        return put_z(render, v.truth ? "True" : "False");
    case VALUE_INT:
        return put_int(render, v.integer);
    case VALUE_FLOAT:
        return put_float(render, v.real);
    case VALUE_STRING:
        if (!v.string->is_markup)
            return put_repr_string(render, v.string->text);
        return put_z(render, "Markup(") && put_repr_string(render, v.string->text) &&
               put_z(render, ")");
    case VALUE_SEQ:
        return put_repr_seq(render, v.seq);
    case VALUE_DICT:
        return put_repr_dict(render, v.dict);
    case VALUE_NAMESPACE:
        return put_z(render, "<Namespace ") && put_repr_dict(render, v.dict) && put_z(render, ">");
    case VALUE_MACRO:
        return put_z(render, "<Macro ") && put_repr_string(render, v.macro->node->text) &&
               put_z(render, ">");
    case VALUE_LOOP:
        return put_z(render, "<LoopContext>");
    case VALUE_FUNCTION:
        return put_z(render, "<function>");
    case VALUE_METHOD:
        return put_z(render, "<built-in method>");
    }
    return true;
}

bool jinja_put_repr(struct render *render, struct value v) {
    if (!jinja_charge(render, 8) || !jinja_enter(render))
        return false;
    bool ok = put_repr_any(render, v);
    jinja_leave(render);
    return ok;
}

bool jinja_put_str(struct render *render, struct value v) {
    if (v.type == VALUE_STRING)
        return jinja_put(render, v.string->text);
    return v.type == VALUE_UNDEFINED || jinja_put_repr(render, v);
}

bool jinja_to_string(struct render *render, struct value v, struct value *out) {
    size_t mark = render->out->len;
    if (v.type == VALUE_STRING)
        return *out = v, true;
    return jinja_put_str(render, v) && jinja_take(render, mark, out);
}

bool jinja_put_escaped(struct render *render, struct str text) {
    static const struct {
        char c;
        const char *entity;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    if (!jinja_charge(render, JINJA_CHAR * text.len))
        return false;
    for (size_t i = 0; i < text.len; i++) {
        const char *entity = NULL;
        for (size_t k = 0; k < sizeof entities / sizeof *entities; k++)
            if (entities[k].c == text.at[i])
                entity = entities[k].entity;
        if (!jinja_put(render, entity ? str_of(entity) : (struct str){text.at + i, 1}))
            return false;
    }
    return true;
}

/* ---- JSON, as Python's json.dumps ---- */

static bool put_json_char(struct render *render, uint32_t c, bool is_ascii) {
    static const char named[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    const char *at = c && c < 0x80 ? strchr(named, (int)c) : NULL;
    if (at)
        return put_escape(render, letters[at - named], 0, 0);
    if (c >= 0x10000 && is_ascii)
        return put_escape(render, 'u', 4, 0xD800 + ((c - 0x10000) >> 10)) &&
               put_escape(render, 'u', 4, 0xDC00 + ((c - 0x10000) & 0x3FF));
    if (c < 0x20 || (c >= 0x7F && is_ascii && c != 0x7F))
        return put_escape(render, 'u', 4, c);
    return jinja_put_char(render, c);
}

static bool put_json_string(struct render *render, struct str text, bool is_ascii) {
    if (!put_z(render, "\""))
        return false;
    while (text.len > 0) {
        /* Most of a text needs no escape and goes in one piece. */
        size_t plain = 0;
        while (plain < text.len && (unsigned char)text.at[plain] >= 0x20 && text.at[plain] != '"' &&
               text.at[plain] != '\\' && !(is_ascii && (unsigned char)text.at[plain] >= 0x80))
            plain++;
        if (!jinja_charge(render, plain) || !jinja_put(render, (struct str){text.at, plain}))
            return false;
        text = str_skip(text, plain);
        uint32_t c;
        if (text.len > 0 &&
            (!jinja_next_char(render, &text, &c) || !put_json_char(render, c, is_ascii)))
            return false;
    }
    return put_z(render, "\"");
}

static bool put_json_float(struct render *render, double real) {
    if (isnan(real))
        return put_z(render, "NaN");
    if (isinf(real))
        return put_z(render, real < 0 ? "-Infinity" : "Infinity");
    return put_float(render, real);
}

static bool put_json_scalar(struct render *render, struct value v, const struct json_style *style) {
    switch (v.type) {
    case VALUE_NONE:
        return put_z(render, "null");
    case VALUE_BOOL:
        return put_z(render, v.truth ? "true" : "false");
    case VALUE_INT:
        return put_int(render, v.integer);
    case VALUE_FLOAT:
        return put_json_float(render, v.real);
    case VALUE_STRING:
        return put_json_string(render, v.string->text, style->is_ascii);
    default:
        return jinja_fail(render, "Object of type %s is not JSON serializable", jinja_type_name(v));
    }
}

static bool put_json_break(struct render *render, const struct json_style *style, unsigned level) {
    if (!style->has_indent)
        return true;
    if (!put_z(render, "\n"))
        return false;
    for (; level > 0; level--)
        if (!jinja_put(render, style->indent))
            return false;
    return true;
}

static bool put_json(struct render *render, struct value v, const struct json_style *style,
                     unsigned level);

static bool put_json_list(struct render *render, const struct seq *seq,
                          const struct json_style *style, unsigned level) {
    for (size_t i = 0; i < seq->count; i++)
        if ((i > 0 && !jinja_put(render, style->between)) ||
            !put_json_break(render, style, level + 1) ||
            !put_json(render, seq->items[i], style, level + 1))
            return false;
    return put_json_break(render, style, level);
}

/* Keys that are not strings are written as JSON in quotes. */
static bool put_json_key(struct render *render, struct value key, const struct json_style *style) {
    if (key.type == VALUE_STRING)
        return put_json_scalar(render, key, style);
    if (key.type != VALUE_NONE && !jinja_is_number(key))
        return jinja_fail(render, "keys must be str, int, float, bool or None, not %s",
                          jinja_type_name(key));
    return put_z(render, "\"") && put_json_scalar(render, key, style) && put_z(render, "\"");
}

/* A copy of the pairs in the order of their keys. */
static bool sort_pairs(struct render *render, const struct dict *dict, struct pair **out) {
    *out = jinja_alloc(render, dict->count, sizeof **out);
    if (!*out)
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        size_t at = i;
        for (; at > 0; at--) {
            bool less;
            if (!jinja_less(render, dict->pairs[i].key, (*out)[at - 1].key, TK_LT, &less))
                return false;
            if (!less)
                break;
            (*out)[at] = (*out)[at - 1];
        }
        (*out)[at] = dict->pairs[i];
    }
    return true;
}

static bool put_json_dict(struct render *render, const struct dict *dict,
                          const struct json_style *style, unsigned level) {
    struct pair *pairs = dict->pairs;
    if (style->is_sorted && !sort_pairs(render, dict, &pairs))
        return false;
    for (size_t i = 0; i < dict->count; i++)
        if ((i > 0 && !jinja_put(render, style->between)) ||
            !put_json_break(render, style, level + 1) ||
            !put_json_key(render, pairs[i].key, style) || !jinja_put(render, style->colon) ||
            !put_json(render, pairs[i].value, style, level + 1))
            return false;
    return put_json_break(render, style, level);
}

static bool put_json(struct render *render, struct value v, const struct json_style *style,
                     unsigned level) {
    bool is_list = v.type == VALUE_SEQ && v.seq->kind <= SEQ_TUPLE, is_dict = v.type == VALUE_DICT;
    if (!is_list && !is_dict)
        return put_json_scalar(render, v, style);
    if (is_list ? v.seq->count == 0 : v.dict->count == 0)
        return put_z(render, is_list ? "[]" : "{}");
    if (!jinja_enter(render))
        return false;
    bool ok = put_z(render, is_list ? "[" : "{") &&
              (is_list ? put_json_list(render, v.seq, style, level)
                       : put_json_dict(render, v.dict, style, level)) &&
              put_z(render, is_list ? "]" : "}");
    jinja_leave(render);
    return ok;
}

bool jinja_put_json(struct render *render, struct value v, const struct json_style *style) {
    return put_json(render, v, style, 0);
}
