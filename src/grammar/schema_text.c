/* schema_text.c - strings of JSON. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"

/* ---- characters --------------------------------------------------------------------------- */

static const struct char_range escaped[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};

static const struct expr *hex(struct builder *b, uint32_t n) {
    static const struct char_range ranges[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    return expr_repeat(b, expr_class(b, ranges, 3, false), n, n);
}

static const struct expr *one_of(struct builder *b, const char *characters) {
    struct char_range ranges[32];
    uint32_t n = 0;
    for (; characters[n]; n++)
        ranges[n] = (struct char_range){(uint8_t)characters[n], (uint8_t)characters[n]};
    return expr_class(b, ranges, n, false);
}

/* After \u: a character, or both surrogates of one. */
static const struct expr *code(struct builder *b) {
    const struct expr *d = expr_choice(
        b, &(struct expr_list){
               .n = 3,
               .at = (const struct expr *[]){
                   expr_pair(b, one_of(b, "0123456789abcefABCEF"), hex(b, 3)),
                   expr_triple(b, one_of(b, "dD"), one_of(b, "01234567"), hex(b, 2)),
                   expr_sequence(b, &(struct expr_list){
                                        .n = 6,
                                        .at = (const struct expr *[]){
                                            one_of(b, "dD"), one_of(b, "89abAB"), hex(b, 2),
                                            expr_text(b, "\\u"),
                                            expr_pair(b, one_of(b, "dD"), one_of(b, "cdefCDEF")),
                                            hex(b, 2)}})}});
    return expr_pair(b, expr_text(b, "u"), d);
}

const struct expr *text_character(struct schema *s) {
    struct builder *b = s->b;
    if (s->character == UINT32_MAX) {
        const struct expr *escape =
            expr_pair(b, expr_text(b, "\\"), expr_either(b, one_of(b, "\"\\/bfnrt"), code(b)));
        uint32_t rule = builder_rule(b, STR("a character"));
        if (b->is_out_of_memory)
            return expr_never(b);
        b->rules[rule].body = expr_either(b, expr_class(b, escaped, 3, true), escape);
        s->character = rule;
    }
    return expr_rule(b, s->character);
}

const struct expr *text_string(struct schema *s) {
    struct builder *b = s->b;
    if (s->string == UINT32_MAX) {
        const struct expr *quote = expr_text(b, "\""), *c = text_character(s);
        uint32_t rule = builder_rule(b, STR("a string"));
        if (b->is_out_of_memory)
            return expr_never(b);
        b->rules[rule].body = expr_triple(
            b, quote, expr_repeat(b, b->rules[c->rule].body, 0, REPEAT_NO_LIMIT), quote);
        s->string = rule;
    }
    return expr_rule(b, s->string);
}

/* A character as it must be escaped. */
static const struct expr *escape_of(struct builder *b, uint32_t c) {
    static const char letters[] = "bfnrt", values[] = "\b\f\n\r\t";
    const char *at = c ? strchr(values, (int)c) : NULL;
    char text[8];
    if (at)
        snprintf(text, sizeof text, "\\%c", letters[at - values]);
    else if (c < 0x20)
        snprintf(text, sizeof text, "\\u%04x", c);
    else
        snprintf(text, sizeof text, c == '"' || c == '\\' ? "\\%c" : "%c", (char)c);
    return expr_text(b, text);
}

static bool is_in(const struct expr *e, uint32_t c) {
    for (uint32_t i = 0; i < e->n; i++)
        if (c >= e->ranges[i].first && c <= e->ranges[i].last)
            return true;
    return false;
}

const struct expr *text_class(struct builder *b, const struct char_range *ranges, uint32_t n,
                              bool is_negated) {
    const struct expr *all = expr_class(b, ranges, n, is_negated);
    struct expr_list list = {0};
    struct char_range *plain = arena_array(&b->arena, all->n + 3ull, sizeof *plain);
    if (all->kind != EXPR_CLASS || !plain) {
        b->is_out_of_memory |= !plain;
        return expr_never(b);
    }
    for (uint32_t c = 0; c < 0x80; c++)
        if ((c < 0x20 || c == '"' || c == '\\') && is_in(all, c))
            expr_push(b, &list, escape_of(b, c));
    /* What is in it and need not be escaped: neither in its complement nor in `escaped`. */
    const struct expr *rest = expr_class(b, all->ranges, all->n, true);
    struct char_range *not_in = arena_array(&b->arena, rest->n + 3ull, sizeof *not_in);
    if (rest->kind != EXPR_CLASS || !not_in) {
        b->is_out_of_memory = true;
        return expr_never(b);
    }
    memcpy(not_in, escaped, sizeof escaped);
    if (rest->n)
        memcpy(not_in + 3, rest->ranges, rest->n * sizeof *not_in);
    expr_push(b, &list, expr_class(b, not_in, rest->n + 3, true));
    return expr_choice(b, &list);
}

const struct expr *text_literal(struct builder *b, struct str text) {
    struct expr_list list = {0};
    size_t from = 0;
    for (size_t i = 0; i <= text.len; i++) {
        uint8_t c = i < text.len ? (uint8_t)text.at[i] : 'x';
        bool is_plain = c >= 0x20 && c != '"' && c != '\\';
        if (is_plain && i < text.len)
            continue;
        expr_push(b, &list, expr_bytes(b, (struct str){text.at + from, i - from}));
        if (i < text.len)
            expr_push(b, &list, escape_of(b, c));
        from = i + 1;
    }
    return expr_joined(b, list.at, list.n);
}

/* ---- other keys --------------------------------------------------------------------------- */

static int compare_keys(const void *a, const void *b) {
    const struct str *x = a, *y = b;
    int order = memcmp(x->at, y->at, x->len < y->len ? x->len : y->len);
    return order ? order : x->len < y->len ? -1 : x->len > y->len;
}

/* Characters and the closing quote that form none of the sorted keys, whose first `from` bytes are
 * equal and already read. */
static const struct expr *other_from(struct schema *s, const struct str *keys, uint32_t n,
                                     size_t from) {
    struct builder *b = s->b;
    struct expr_list list = {0};
    struct char_range *taken = arena_array(&b->arena, n + 3ull, sizeof *taken);
    const struct expr *quote = expr_text(b, "\"");
    const struct expr *plain = expr_class(b, escaped, 3, true);
    uint32_t i = 0, n_taken = 3;
    if (!taken) {
        b->is_out_of_memory = true;
        return expr_never(b);
    }
    memcpy(taken, escaped, sizeof escaped);
    bool is_key = n && keys[0].len == from;
    while (i < n && keys[i].len == from)
        i++;
    while (i < n) {
        uint32_t same = i, c;
        size_t length = utf8_decode(str_skip(keys[i], from), &c);
        while (same < n && keys[same].len >= from + length &&
               memcmp(keys[same].at + from, keys[i].at + from, length) == 0)
            same++;
        struct str character = {keys[i].at + from, length};
        taken[n_taken++] = (struct char_range){c, c};
        if (c >= 0x20 && c != '"' && c != '\\')
            expr_push(b, &list,
                      expr_pair(b, expr_bytes(b, character),
                                other_from(s, keys + i, same - i, from + length)));
        i = same;
    }
    expr_push(b, &list,
              expr_triple(b, expr_class(b, taken, n_taken, true),
                          expr_repeat(b, plain, 0, REPEAT_NO_LIMIT), quote));
    if (!is_key)
        expr_push(b, &list, quote);
    return expr_choice(b, &list);
}

const struct expr *text_other_key(struct schema *s, const struct str *keys, uint32_t n) {
    struct str *sorted = arena_array(&s->b->arena, n, sizeof *sorted);
    size_t longest = 0;
    if (!sorted) {
        s->b->is_out_of_memory = true;
        return expr_never(s->b);
    }
    for (uint32_t i = 0; i < n; i++) {
        sorted[i] = keys[i];
        longest = keys[i].len > longest ? keys[i].len : longest;
    }
    if (longest > 256)
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED,
                           "additionalProperties beside a property name of more than 256 bytes");
    if (n)
        qsort(sorted, n, sizeof *sorted, compare_keys);
    return expr_pair(s->b, expr_text(s->b, "\""), other_from(s, sorted, n, 0));
}

/* ---- strings by their keywords ------------------------------------------------------------ */

bool pattern_read(struct schema *s, const char *regex, struct sized_expr *out) {
    struct err why = {0};
    const struct expr *anything = expr_repeat(s->b, text_character(s), 0, REPEAT_NO_LIMIT);
    if (regex_read(s->b, str_of(regex), anything, out, &why))
        return true;
    schema_fail(s, SLUICE_ERR_UNSUPPORTED, "pattern, %s", why.text);
    return false;
}

const struct expr *text_of(struct schema *s, const json_t *flat) {
    struct builder *b = s->b;
    const char *pattern = json_string_value(json_object_get(flat, "pattern"));
    const char *format = json_string_value(json_object_get(flat, "format"));
    uint32_t min = 0, max = REPEAT_NO_LIMIT;
    struct sized_expr body;
    if (!schema_count(s, flat, "minLength", &min) || !schema_count(s, flat, "maxLength", &max))
        return expr_never(b);
    if (pattern && format)
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED, "pattern and format together");
    const struct expr *quote = expr_text(b, "\"");
    if (!pattern && !format && min == 0 && max == REPEAT_NO_LIMIT)
        return text_string(s);
    if (!pattern && !format)
        return expr_triple(b, quote, expr_repeat(b, text_character(s), min, max), quote);
    if (pattern ? !pattern_read(s, pattern, &body) : !format_find(s, format, &body))
        return expr_never(b);
    if (body.min < min || (body.max > max && max != REPEAT_NO_LIMIT)) {
        const char *key = body.min < min ? "minLength" : "maxLength";
        return schema_fail(s, SLUICE_ERR_UNSUPPORTED, "%s beside a %s that does not imply it", key,
                           pattern ? "pattern" : "format");
    }
    return expr_triple(b, quote, body.e, quote);
}
