/* regex.c - regular expressions, read by recursive descent.
 *
 * Literals are put together as they are read, so that alternatives share their beginnings: an
 * expression may list thousands of words. */
#include "grammar/regex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "grammar/compile.h"
#include "grammar/schema.h"

enum { MAX_DEPTH = 64, MAX_REPEAT = 1 << 20, MAX_RANGES = 512, MAX_TEXT = 1 << 20 };
enum { ASCII = 0x7F, LAST = 0x10FFFF };

struct regex {
    struct builder *b;
    const struct expr *anything;
    const char *start, *at, *end; /* a zero byte follows the end */
    uint32_t depth;
    struct err *err;
    bool has_failed;
};

static struct sized_expr fail(struct regex *r, const char *what) {
    int n = 1;
    for (const char *c = r->start; c < r->at; c++)
        n += ((uint8_t)*c & 0xC0) != 0x80;
    if (!r->has_failed)
        err_set(r->err, SLUICE_ERR_UNSUPPORTED, "at character %d: %s", n, what);
    r->has_failed = true;
    return (struct sized_expr){.e = expr_never(r->b)};
}

static bool is_whole(const struct regex *r) {
    return !r->anything;
}

static bool skip_if(struct regex *r, char c) {
    if (*r->at != c || r->at == r->end)
        return false;
    r->at++;
    return true;
}

/* Any character. */
static uint32_t next_character(struct regex *r) {
    uint32_t c = 0;
    size_t n = utf8_decode((struct str){r->at, (size_t)(r->end - r->at)}, &c);
    r->at += n ? n : 1;
    return c;
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

static void begin_ranges(struct ranges *set) { /* without its 4 KB */
    set->n = 0;
    set->is_ascii = false;
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

/* Adds what is not in the sorted ranges, up to this character. */
static void add_rest(struct ranges *set, const struct char_range *ranges, uint32_t n,
                     uint32_t last) {
    uint32_t from = 0;
    for (uint32_t i = 0; i < n && from <= last; from = ranges[i++].last + 1)
        if (ranges[i].first > from)
            add_range(set, from, min_u32(ranges[i].first - 1, last));
    if (from <= last)
        add_range(set, from, last);
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
    case 'S':
        add_rest(set, will_be_negated ? space : all_space, will_be_negated ? 2 : 11, LAST);
        return true;
    case 'D': /* outside of ASCII it may mean any character */
        add_rest(set, digit, 1, will_be_negated ? LAST : ASCII);
        return true;
    case 'W':
        add_rest(set, word, 4, will_be_negated ? LAST : ASCII);
        return true;
    default:
        return false;
    }
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
        *out = next_character(r);
        return true;
    }
    char what[64];
    const char *kind = c >= '1' && c <= '9' ? ": it refers back" : "";
    snprintf(what, sizeof what, "\\%c is not supported%s", c ? c : ' ', kind);
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
    *out = next_character(r);
    return true;
}

static struct sized_expr one_character(const struct expr *e) {
    return (struct sized_expr){.e = e, .min = 1, .max = 1};
}

static struct sized_expr one_of(struct regex *r, struct ranges *set, bool is_negated) {
    if (set->is_ascii && is_negated)
        add_range(set, ASCII + 1, LAST);
    if (set->n == MAX_RANGES)
        return fail(r, "a class of more than 511 ranges");
    return one_character(is_whole(r) ? expr_class(r->b, set->at, set->n, is_negated)
                                     : text_class(r->b, set->at, set->n, is_negated));
}

static struct sized_expr read_class(struct regex *r) {
    struct ranges set;
    begin_ranges(&set);
    bool is_negated = skip_if(r, '^'), is_first = is_whole(r);
    if (*r->at == ']' && !is_first)
        return fail(r, "an empty class");
    for (; *r->at && (*r->at != ']' || is_first) && !r->has_failed; is_first = false) {
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

/* After "(?": the kind of a group. */
static bool read_group_kind(struct regex *r) {
    bool is_name = (r->at[0] == '<' || (r->at[0] == 'P' && r->at[1] == '<')) &&
                   (r->at[0] == 'P' || !r->at[1] || !strchr("=!", r->at[1]));
    const char *end = is_name ? strchr(r->at, '>') : NULL;
    if (skip_if(r, ':'))
        return true;
    if (end)
        r->at = end + 1;
    else if (*r->at && strchr("=!<", *r->at))
        fail(r, "groups that look ahead or behind are not supported");
    else if (r->at[0] == 'P' && r->at[1] == '=')
        fail(r, "groups that refer back are not supported");
    else
        fail(r, "a group begins with ( or (?: or (?P<name>, others are not supported");
    return end;
}

static struct sized_expr read_group(struct regex *r) {
    if (skip_if(r, '?') && !read_group_kind(r))
        return (struct sized_expr){.e = expr_never(r->b)};
    if (++r->depth > MAX_DEPTH)
        return fail(r, "groups in more than 64 groups");
    struct sized_expr p = read_choice(r, false);
    r->depth--;
    if (!skip_if(r, ')'))
        return fail(r, "a group without its end");
    return p;
}

/* \d and the like, at its letter. */
static struct sized_expr read_named(struct regex *r) {
    struct ranges set;
    begin_ranges(&set);
    add_named(&set, *r->at++, false);
    return one_of(r, &set, false);
}

static struct sized_expr read_literal(struct regex *r) {
    uint32_t c;
    char text[4];
    if (!skip_if(r, '\\'))
        c = next_character(r);
    else if (!read_escape(r, &c))
        return (struct sized_expr){.e = expr_never(r->b)};
    struct str bytes = {text, utf8_put(c, text)};
    return one_character(is_whole(r) ? expr_bytes(r->b, bytes) : text_literal(r->b, bytes));
}

static struct sized_expr read_anchor(struct regex *r) {
    if (!is_whole(r))
        return fail(r, "^ and $ are supported at the ends of the whole only");
    bool is_start = *r->at++ == '^';
    return (struct sized_expr){
        .e = expr_text(r->b, ""), .has_start = is_start, .has_end = !is_start};
}

/* Whether {n}, {n,}, {n,m}, {,m} or {,} follows. */
static bool has_counts(const struct regex *r) {
    static const char digits[] = "0123456789";
    if (*r->at != '{')
        return false;
    size_t n = strspn(r->at + 1, digits);
    const char *at = r->at + 1 + n;
    bool has_comma = *at == ',';
    if (has_comma)
        at += 1 + strspn(at + 1, digits);
    return *at == '}' && (n || has_comma);
}

static struct sized_expr read_atom(struct regex *r) {
    if (skip_if(r, '('))
        return read_group(r);
    if (skip_if(r, '['))
        return read_class(r);
    if (skip_if(r, '.'))
        return one_character(is_whole(r) ? expr_class(r->b, line_ends, 3, true)
                                         : text_class(r->b, line_ends, 3, true));
    if (*r->at == '^' || *r->at == '$')
        return read_anchor(r);
    if (strchr("*+?", *r->at) || (*r->at == '{' && (!is_whole(r) || has_counts(r))))
        return fail(r, "a repetition of nothing");
    if (r->at[0] == '\\' && r->at[1] && strchr("dwsDWS", r->at[1])) {
        r->at++;
        return read_named(r);
    }
    return read_literal(r);
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

/* {n}, {n,} or {n,m}, of Python {,m} and {,}. */
static bool read_counts(struct regex *r, uint32_t *min, uint32_t *max) {
    if (!read_number(r, min) && !(is_whole(r) && *r->at == ','))
        return false;
    *max = *min;
    if (skip_if(r, ',') && !read_number(r, max))
        *max = REPEAT_NO_LIMIT;
    return skip_if(r, '}') && *min <= MAX_REPEAT && *min <= *max &&
           (*max <= MAX_REPEAT || *max == REPEAT_NO_LIMIT);
}

/* What may stand beside an anchor. */
static bool is_empty(struct sized_expr p) {
    return p.max == 0;
}

static struct sized_expr misplaced(struct regex *r) {
    return fail(r, "^ and $ are supported where nothing can precede or follow them");
}

static struct sized_expr read_repeated(struct regex *r) {
    struct sized_expr p = read_atom(r);
    uint32_t min = 0, max = REPEAT_NO_LIMIT;
    if (skip_if(r, '+'))
        min = 1;
    else if (skip_if(r, '?'))
        max = 1;
    else if (*r->at == '{' && (!is_whole(r) || has_counts(r))) {
        r->at++;
        if (!read_counts(r, &min, &max))
            return fail(r, "a repetition that is not {n}, {n,} or {n,m}");
    } else if (!skip_if(r, '*')) {
        return p;
    }
    skip_if(r, '?'); /* lazy or greedy: the language is the same */
    if ((p.has_start || p.has_end) && max > 1 && !is_empty(p))
        return misplaced(r);
    p.e = expr_repeat(r->b, p.e, min, max);
    p.min = times(p.min, min);
    p.max = times(p.max, max);
    return p;
}

/* ---- sequences and choices ---------------------------------------------------------------- */

struct sequence {
    struct expr_list parts;
    struct sized_expr size; /* without its e */
};

static void append(struct regex *r, struct sequence *s, struct sized_expr p) {
    if ((p.has_start && !is_empty(s->size)) || (s->size.has_end && !is_empty(p)))
        misplaced(r);
    expr_push(r->b, &s->parts, p.e);
    s->size.min += p.min;
    s->size.max += p.max;
    s->size.has_start |= p.has_start;
    s->size.has_end |= p.has_end;
}

/* Any characters, where an expression that is searched is not anchored. */
static void append_anything(struct regex *r, struct sequence *s) {
    append(r, s, (struct sized_expr){.e = r->anything, .max = UINT32_MAX});
}

/* Its literals that follow each other become one. */
static struct sized_expr finish(struct regex *r, const struct sequence *s) {
    struct expr_list joined = {0};
    for (uint32_t i = 0, n; i < s->parts.n; i += n) {
        for (n = 0; i + n < s->parts.n && s->parts.at[i + n]->kind == EXPR_BYTES;)
            n++;
        expr_push(r->b, &joined, n > 1 ? expr_joined(r->b, s->parts.at + i, n) : s->parts.at[i]);
        n = n > 1 ? n : 1;
    }
    struct sized_expr whole = s->size;
    whole.e = expr_sequence(r->b, &joined);
    return whole;
}

static struct sized_expr read_sequence(struct regex *r, bool is_outside) {
    struct sequence s = {0};
    bool is_searched = is_outside && !is_whole(r), has_end = false;
    if (is_searched && !skip_if(r, '^'))
        append_anything(r, &s);
    while (*r->at && *r->at != '|' && *r->at != ')' && !r->has_failed && !has_end) {
        has_end = is_searched && r->at[0] == '$' && (r->at[1] == 0 || r->at[1] == '|');
        if (has_end)
            r->at++;
        else
            append(r, &s, read_repeated(r));
    }
    if (is_searched && !has_end)
        append_anything(r, &s);
    return finish(r, &s);
}

static struct sized_expr read_choice(struct regex *r, bool is_outside) {
    struct expr_list list = {0};
    struct sized_expr all = {.min = UINT64_MAX};
    do {
        struct sized_expr p = read_sequence(r, is_outside);
        expr_push(r->b, &list, p.e);
        all.min = p.min < all.min ? p.min : all.min;
        all.max = p.max > all.max ? p.max : all.max;
        all.has_start |= p.has_start;
        all.has_end |= p.has_end;
    } while (!r->has_failed && skip_if(r, '|'));
    all.e = expr_choice(r->b, &list);
    return all;
}

bool regex_read(struct builder *b, struct str regex, const struct expr *anything,
                struct sized_expr *out, struct err *err) {
    char *text = arena_strdup(&b->arena, regex);
    struct regex r = {.b = b,
                      .anything = anything,
                      .start = text,
                      .at = text,
                      .end = text + regex.len,
                      .err = err};
    if (!text) {
        builder_fail(b, err);
        return false;
    }
    if (memchr(text, 0, regex.len)) {
        err_set(err, SLUICE_ERR_UNSUPPORTED, "a zero byte, which is not supported");
        return false;
    }
    *out = read_choice(&r, true);
    if (!r.has_failed && *r.at)
        fail(&r, "a ) without its (");
    return !r.has_failed;
}

/* ---- grammars ----------------------------------------------------------------------------- */

int grammar_of_regex(struct grammar **out, const char *text, size_t length, struct err *err) {
    struct builder b;
    struct sized_expr whole;
    int status = SLUICE_OK;
    *out = NULL;
    if (length > MAX_TEXT)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "a regular expression of %zu bytes, expected at most %d", length, MAX_TEXT);
    builder_begin(&b);
    uint32_t root = builder_rule(&b, STR("the whole"));
    if (!regex_read(&b, (struct str){text, length}, NULL, &whole, err))
        status = SLUICE_ERR_UNSUPPORTED;
    else if (!b.is_out_of_memory)
        b.rules[root].body = whole.e;
    if (!status)
        status = grammar_compile(out, &b, root, err);
    if (status)
        err_prefix(err, "regular expression");
    builder_end(&b);
    return status;
}
