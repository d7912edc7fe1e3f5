/* pattern.c - regular expressions of `pattern`: the part that describes a regular language.
 *
 *   choice   ::= sequence ("|" sequence)*
 *   sequence ::= (atom ("*" | "+" | "?" | "{n}" | "{n,}" | "{n,m}") "?"?)*
 *   atom     ::= character | "." | [class] | \d \w \s \D \W \S | "(" choice ")" | "(?:" choice ")"
 *
 * Outside groups a sequence may begin with ^ and end with $; where it does not, any characters may
 * stand there. Where dialects differ (which letters \w means, what . leaves out) only what all
 * agree on is generated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"

enum { MAX_DEPTH = 64, MAX_REPEAT = 1 << 20, MAX_RANGES = 512, ASCII = 0x7F };

struct regex {
    struct schema *s;
    const char *at;
    uint32_t depth;
};

static struct sized_expr fail(struct regex *r, const char *what) {
    schema_fail(r->s, SLUICE_ERR_UNSUPPORTED, "pattern: %s", what);
    return (struct sized_expr){.e = expr_never(r->s->b)};
}

static bool skip_if(struct regex *r, char c) {
    if (*r->at != c)
        return false;
    r->at++;
    return true;
}

/* ---- classes ------------------------------------------------------------------------------ */

struct ranges {
    struct char_range at[MAX_RANGES];
    uint32_t n;
    bool is_ascii; /* dialects agree on this class for ASCII alone */
};

static void add_range(struct ranges *set, uint32_t first, uint32_t last) {
    if (set->n < MAX_RANGES)
        set->at[set->n++] = (struct char_range){first, last};
}

static void add_all(struct ranges *set, const struct char_range *ranges, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        add_range(set, ranges[i].first, ranges[i].last);
}

static const struct char_range digit[] = {{'0', '9'}};
static const struct char_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct char_range space[] = {{'\t', '\r'}, {' ', ' '}};
static const struct char_range all_space[] = {{'\t', '\r'},     {0x1C, ' '},      {0x85, 0x85},
                                              {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                              {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                              {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
static const struct char_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

/* Adds all of ASCII that is not in the ranges. */
static void add_rest_of_ascii(struct ranges *set, const struct char_range *ranges, uint32_t n) {
    for (uint32_t c = 0; c <= ASCII; c++) {
        bool is_in = false;
        for (uint32_t i = 0; i < n; i++)
            is_in |= c >= ranges[i].first && c <= ranges[i].last;
        if (!is_in)
            add_range(set, c, c);
    }
}

/* \d and the like. False: the letter means no class. will_be_negated: inside [^...]. */
static bool add_named(struct ranges *set, char letter, bool will_be_negated) {
    switch (letter) {
    case 'd':
        add_all(set, digit, 1);
        set->is_ascii |= will_be_negated;
        return true;
    case 'w':
        add_all(set, word, 4);
        set->is_ascii |= will_be_negated;
        return true;
    case 's':
        add_all(set, will_be_negated ? all_space : space, will_be_negated ? 11 : 2);
        return true;
    case 'D':
        add_rest_of_ascii(set, digit, 1);
        break;
    case 'W':
        add_rest_of_ascii(set, word, 4);
        break;
    case 'S':
        add_rest_of_ascii(set, all_space, 11);
        break;
    default:
        return false;
    }
    if (will_be_negated) /* it may mean any character outside ASCII */
        add_range(set, ASCII + 1, 0x10FFFF);
    return true;
}

static bool read_hex(struct regex *r, int n, uint32_t *out) {
    char digits[5] = {0};
    char *end;
    for (int i = 0; i < n && r->at[i]; i++)
        digits[i] = r->at[i];
    *out = (uint32_t)strtoul(digits, &end, 16);
    if ((int)strlen(digits) != n || end != digits + n || digits[0] == '-' || digits[0] == '+' ||
        digits[0] == ' ')
        return false;
    r->at += n;
    return true;
}

/* A character after a backslash. */
static bool read_escape(struct regex *r, uint32_t *out) {
    static const char letters[] = "nrtfv0", values[] = "\n\r\t\f\v";
    char c = *r->at;
    const char *letter = c ? strchr(letters, c) : NULL;
    bool is_other =
        c && !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'));
    if (letter && !(c == '0' && r->at[1] >= '0' && r->at[1] <= '9')) {
        *out = (uint8_t)values[letter - letters];
        r->at++;
        return true;
    }
    if (c == 'x' || c == 'u') {
        r->at++;
        if (read_hex(r, c == 'x' ? 2 : 4, out) && (*out < 0xD800 || *out > 0xDFFF))
            return true;
        fail(r, "an escape that is not a character");
        return false;
    }
    if (is_other) {
        r->at += utf8_decode(str_of(r->at), out);
        return true;
    }
    char what[64];
    snprintf(what, sizeof what, "\\%c is not supported", c ? c : ' ');
    fail(r, c ? what : "a backslash at the end");
    return false;
}

/* A character, or a class by its name, inside brackets. False: not a single character. */
static bool read_member(struct regex *r, struct ranges *set, bool is_negated, uint32_t *out) {
    if (skip_if(r, '\\')) {
        if (add_named(set, *r->at, is_negated)) {
            r->at++;
            return false;
        }
        if (*r->at == 'b') {
            *out = '\b';
            r->at++;
            return true;
        }
        return read_escape(r, out);
    }
    size_t n = utf8_decode(str_of(r->at), out);
    r->at += n ? n : 1;
    return n > 0;
}

static struct sized_expr one_of(struct regex *r, const struct ranges *set, bool is_negated) {
    struct ranges whole = *set;
    if (set->is_ascii && is_negated)
        add_range(&whole, ASCII + 1, 0x10FFFF);
    if (whole.n == MAX_RANGES)
        return fail(r, "a class of more than 511 ranges");
    return (struct sized_expr){text_class(r->s->b, whole.at, whole.n, is_negated), 1, 1};
}

static struct sized_expr read_class(struct regex *r) {
    struct ranges set = {.n = 0};
    bool is_negated = skip_if(r, '^');
    if (*r->at == ']')
        return fail(r, "an empty class");
    while (*r->at && *r->at != ']' && !r->s->status) {
        uint32_t first, last;
        if (!read_member(r, &set, is_negated, &first))
            continue;
        last = first;
        if (r->at[0] == '-' && r->at[1] && r->at[1] != ']') {
            r->at++;
            if (!read_member(r, &set, is_negated, &last))
                return fail(r, "a range that ends in a class");
            if (last < first)
                return fail(r, "a range from a greater to a lesser character");
        }
        add_range(&set, first, last);
    }
    if (!skip_if(r, ']'))
        return fail(r, "a class without its end");
    return one_of(r, &set, is_negated);
}

/* ---- expressions -------------------------------------------------------------------------- */

static uint64_t times(uint64_t a, uint64_t b) {
    uint64_t product = a < UINT32_MAX && b < UINT32_MAX ? a * b : UINT32_MAX;
    return a == 0 || b == 0 ? 0 : product < UINT32_MAX ? product : UINT32_MAX;
}

static struct sized_expr read_choice(struct regex *r, bool is_outside);

static struct sized_expr read_group(struct regex *r) {
    if (skip_if(r, '?') && !skip_if(r, ':')) {
        bool is_name =
            (r->at[0] == '<' || (r->at[0] == 'P' && r->at[1] == '<')) && !strchr("=!", r->at[1]);
        const char *end = is_name ? strchr(r->at, '>') : NULL;
        if (!end)
            return fail(r, "groups that look ahead or behind are not supported");
        r->at = end + 1;
    }
    if (++r->depth > MAX_DEPTH)
        return fail(r, "groups in more than 64 groups");
    struct sized_expr p = read_choice(r, false);
    r->depth--;
    if (!skip_if(r, ')'))
        return fail(r, "a group without its end");
    return p;
}

static struct sized_expr read_atom(struct regex *r) {
    struct ranges set = {.n = 0};
    uint32_t c;
    if (skip_if(r, '('))
        return read_group(r);
    if (skip_if(r, '['))
        return read_class(r);
    if (skip_if(r, '.'))
        return (struct sized_expr){text_class(r->s->b, line_ends, 3, true), 1, 1};
    if (*r->at == '^' || *r->at == '$')
        return fail(r, "^ and $ are supported at the ends of the whole only");
    if (strchr("*+?{", *r->at))
        return fail(r, "a repetition of nothing");
    if (skip_if(r, '\\')) {
        if (add_named(&set, *r->at, false)) {
            r->at++;
            return one_of(r, &set, false);
        }
        if (!read_escape(r, &c))
            return (struct sized_expr){.e = expr_never(r->s->b)};
    } else {
        size_t n = utf8_decode(str_of(r->at), &c);
        r->at += n ? n : 1;
    }
    const struct char_range one = {c, c};
    return (struct sized_expr){text_class(r->s->b, &one, 1, false), 1, 1};
}

static bool read_number(struct regex *r, uint32_t *out) {
    char *end;
    if (*r->at < '0' || *r->at > '9')
        return false;
    unsigned long n = strtoul(r->at, &end, 10);
    *out = n > MAX_REPEAT ? MAX_REPEAT + 1 : (uint32_t)n;
    r->at = end;
    return true;
}

/* {n}, {n,} or {n,m}. */
static bool read_counts(struct regex *r, uint32_t *min, uint32_t *max) {
    if (!read_number(r, min))
        return false;
    *max = *min;
    if (skip_if(r, ',') && !read_number(r, max))
        *max = REPEAT_NO_LIMIT;
    return skip_if(r, '}') && *min <= MAX_REPEAT && *min <= *max &&
           (*max <= MAX_REPEAT || *max == REPEAT_NO_LIMIT);
}

static struct sized_expr read_repeated(struct regex *r) {
    struct sized_expr p = read_atom(r);
    uint32_t min = 0, max = REPEAT_NO_LIMIT;
    if (skip_if(r, '+'))
        min = 1;
    else if (skip_if(r, '?'))
        max = 1;
    else if (skip_if(r, '{')) {
        if (!read_counts(r, &min, &max))
            return fail(r, "a repetition that is not {n}, {n,} or {n,m}");
    } else if (!skip_if(r, '*')) {
        return p;
    }
    skip_if(r, '?'); /* lazy or greedy: the language is the same */
    return (struct sized_expr){expr_repeat(r->s->b, p.e, min, max), times(p.min, min),
                               times(p.max, max)};
}

static struct sized_expr joined(struct builder *b, struct sized_expr x, struct sized_expr y) {
    return (struct sized_expr){expr_pair(b, x.e, y.e), x.min + y.min, x.max + y.max};
}

/* Any characters, where the pattern is not anchored. */
static struct sized_expr anything(struct schema *s) {
    return (struct sized_expr){expr_repeat(s->b, text_character(s), 0, REPEAT_NO_LIMIT), 0,
                               UINT32_MAX};
}

static struct sized_expr read_sequence(struct regex *r, bool is_outside) {
    struct builder *b = r->s->b;
    struct sized_expr p = {.e = expr_text(b, "")};
    bool is_anchored = is_outside && skip_if(r, '^'), has_end = false;
    while (*r->at && *r->at != '|' && *r->at != ')' && !r->s->status && !has_end) {
        has_end = is_outside && r->at[0] == '$' && (r->at[1] == 0 || r->at[1] == '|');
        if (has_end)
            r->at++;
        else
            p = joined(b, p, read_repeated(r));
    }
    if (is_outside && !is_anchored)
        p = joined(b, anything(r->s), p);
    if (is_outside && !has_end)
        p = joined(b, p, anything(r->s));
    return p;
}

static struct sized_expr read_choice(struct regex *r, bool is_outside) {
    struct expr_list list = {0};
    struct sized_expr all = {.min = UINT64_MAX};
    do {
        struct sized_expr p = read_sequence(r, is_outside);
        expr_push(r->s->b, &list, p.e);
        all.min = p.min < all.min ? p.min : all.min;
        all.max = p.max > all.max ? p.max : all.max;
    } while (!r->s->status && skip_if(r, '|'));
    all.e = expr_choice(r->s->b, &list);
    return all;
}

bool pattern_read(struct schema *s, const char *regex, struct sized_expr *out) {
    struct regex r = {.s = s, .at = regex};
    *out = read_choice(&r, true);
    if (!s->status && *r.at)
        fail(&r, "a ) without its (");
    return !s->status;
}
