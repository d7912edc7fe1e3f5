/* gbnf.c - GBNF, llama.cpp's notation for grammars, read into expressions.
 *
 *   rule     ::= name "::=" choice
 *   choice   ::= sequence ("|" sequence)*
 *   sequence ::= (part ("*" | "+" | "?" | "{n}" | "{n,}" | "{,m}" | "{n,m}")*)*
 *   part     ::= "literal" | [class] | [^class] | "." | name | "(" choice ")"
 *
 * A rule may span lines, until the next name before "::=". Comments run from # to the end of the
 * line. Names are letters, digits, - and _. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "grammar/compile.h"

enum { MAX_DEPTH = 128, MAX_RULES = 1 << 14, MAX_TEXT = 1 << 20 };

struct parser {
    struct builder *b;
    const char *at, *end;
    uint32_t line, depth;
    char *text; /* of the literal that is read */
    size_t n_text, text_capacity;
    uint32_t *slots; /* a hash table of rules by name: number + 1, 0: free */
    struct err *err;
    int status;
};

static const struct expr *fail(struct parser *p, const char *found, const char *expected) {
    if (!p->status)
        p->status = err_set(p->err, SLUICE_ERR_FORMAT, "grammar, line %u: %s, expected %s", p->line,
                            found, expected);
    return expr_never(p->b);
}

/* What is here, in words. Static. */
static const char *found_here(const struct parser *p) {
    static _Thread_local char text[32];
    if (p->at >= p->end)
        return "the end";
    struct str rest = {p->at, (size_t)(p->end - p->at)};
    size_t n = utf8_length(rest);
    snprintf(text, sizeof text, "'%.*s'", (int)(n ? n : 1), n ? p->at : "?");
    return text;
}

/* ---- blanks and names --------------------------------------------------------------------- */

static bool is_at(const struct parser *p, char c) {
    return p->at < p->end && *p->at == c;
}

static bool skip_if(struct parser *p, char c) {
    if (!is_at(p, c))
        return false;
    p->at++;
    return true;
}

static void skip_blanks(struct parser *p) {
    for (; p->at < p->end; p->at++) {
        if (*p->at == '#') {
            const char *end = memchr(p->at, '\n', (size_t)(p->end - p->at));
            p->at = end ? end : p->end;
            if (p->at == p->end)
                return;
        }
        if (*p->at == '\n')
            p->line++;
        else if (*p->at != ' ' && *p->at != '\t' && *p->at != '\r')
            return;
    }
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static struct str read_name(struct parser *p) {
    const char *first = p->at;
    while (p->at < p->end && is_name(*p->at))
        p->at++;
    return (struct str){first, (size_t)(p->at - first)};
}

/* Whether a rule begins here. */
static bool is_rule(const struct parser *p) {
    struct parser look = *p;
    if (read_name(&look).len == 0)
        return false;
    skip_blanks(&look);
    return look.end - look.at >= 3 && memcmp(look.at, "::=", 3) == 0;
}

static uint32_t find_rule(struct parser *p, struct str name) {
    uint32_t i = (uint32_t)str_hash(name) % (2 * MAX_RULES);
    for (; p->slots[i]; i = (i + 1) % (2 * MAX_RULES))
        if (str_equal(p->b->rules[p->slots[i] - 1].name, name))
            return p->slots[i] - 1;
    if (p->b->n_rules == MAX_RULES) {
        fail(p, "one more rule", "at most 16384");
        return 0;
    }
    uint32_t rule = builder_rule(p->b, name);
    if (p->b->is_out_of_memory)
        return 0;
    p->b->rules[rule].line = p->line;
    p->slots[i] = rule + 1;
    return rule;
}

/* ---- characters --------------------------------------------------------------------------- */

static bool read_hex(struct parser *p, int n, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < n; i++) {
        char c = p->at < p->end ? *p->at : 0;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) {
            fail(p, found_here(p), "a hexadecimal digit");
            return false;
        }
        *out = *out * 16 + (uint32_t)digit;
        p->at++;
    }
    if (*out <= 0x10FFFF && (*out < 0xD800 || *out > 0xDFFF))
        return true;
    fail(p, "an escape that is not a character", "one up to 10FFFF, not a surrogate");
    return false;
}

static bool read_escape(struct parser *p, uint32_t *out) {
    static const char letters[] = "nrt\\\"[]^-", values[] = "\n\r\t\\\"[]^-";
    const char *letter = p->at < p->end && *p->at ? strchr(letters, *p->at) : NULL;
    if (letter) {
        *out = (uint8_t)values[letter - letters];
        p->at++;
        return true;
    }
    if (skip_if(p, 'x'))
        return read_hex(p, 2, out);
    if (skip_if(p, 'u'))
        return read_hex(p, 4, out);
    if (skip_if(p, 'U'))
        return read_hex(p, 8, out);
    fail(p, found_here(p), "an escape: \\n \\r \\t \\\\ \\\" \\[ \\] \\x41 \\u0041 \\U00000041");
    return false;
}

/* A character of a literal or a class, escaped or not. */
static bool read_character(struct parser *p, uint32_t *out) {
    if (skip_if(p, '\\'))
        return read_escape(p, out);
    size_t n = utf8_decode((struct str){p->at, (size_t)(p->end - p->at)}, out);
    if (n == 0) {
        fail(p, p->at < p->end ? "bytes that are not UTF-8" : "the end", "a character");
        return false;
    }
    p->line += *out == '\n';
    p->at += n;
    return true;
}

static bool put_character(struct parser *p, uint32_t character) {
    if (!array_grow(&p->text, p->n_text + 3, &p->text_capacity, 1)) { /* for up to 4 bytes */
        fail(p, "a literal too long for memory", "less");
        return false;
    }
    p->n_text += utf8_put(character, p->text + p->n_text);
    return true;
}

static const struct expr *read_literal(struct parser *p) {
    uint32_t character;
    p->n_text = 0;
    while (!is_at(p, '"'))
        if (!read_character(p, &character) || !put_character(p, character))
            return expr_never(p->b);
    p->at++;
    return expr_bytes(p->b, (struct str){p->text, p->n_text});
}

static const struct expr *read_class(struct parser *p) {
    struct char_range *ranges = NULL;
    uint32_t n = 0;
    size_t capacity = 0;
    bool is_negated = skip_if(p, '^');
    while (!p->status && !is_at(p, ']')) {
        struct char_range r;
        if (!array_grow(&ranges, n, &capacity, sizeof *ranges)) {
            fail(p, "a class too long for memory", "less");
            break;
        }
        if (!read_character(p, &r.first))
            break;
        r.last = r.first;
        bool is_range = is_at(p, '-') && p->at + 1 < p->end && p->at[1] != ']';
        if (is_range && skip_if(p, '-') && read_character(p, &r.last) && r.last < r.first)
            fail(p, "a range from a greater to a lesser character", "them in order");
        ranges[n++] = r;
    }
    p->at += !p->status;
    const struct expr *e = p->status ? expr_never(p->b) : expr_class(p->b, ranges, n, is_negated);
    free(ranges);
    return e;
}

/* ---- expressions -------------------------------------------------------------------------- */

static const struct expr *read_choice(struct parser *p);

static bool read_number(struct parser *p, uint32_t *out) {
    uint32_t n = 0;
    if (p->at >= p->end || *p->at < '0' || *p->at > '9')
        return false;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
        n = n * 10 + (uint32_t)(*p->at - '0');
        if (n > 1 << 24) {
            fail(p, "a repetition of more than 16777216", "at most so many");
            return false;
        }
    }
    *out = n;
    return true;
}

/* After the brace. */
static const struct expr *read_counts(struct parser *p, const struct expr *e) {
    uint32_t min = 0, max;
    skip_blanks(p);
    bool has_min = read_number(p, &min);
    skip_blanks(p);
    max = min;
    if (skip_if(p, ',')) {
        skip_blanks(p);
        if (!read_number(p, &max))
            max = REPEAT_NO_LIMIT;
        skip_blanks(p);
    } else if (!has_min) {
        return fail(p, found_here(p), "a number of repetitions");
    }
    if (!p->status && !skip_if(p, '}'))
        return fail(p, found_here(p), "} after a number of repetitions");
    if (min > max)
        return fail(p, "a repetition whose minimum is above its maximum", "them in order");
    return expr_repeat(p->b, e, min, max);
}

static const struct expr *read_repetitions(struct parser *p, const struct expr *e) {
    for (uint32_t n = 0; !p->status; n++) {
        skip_blanks(p);
        if (n == MAX_DEPTH)
            return fail(p, "repetitions of repetitions without end", "fewer");
        if (skip_if(p, '*'))
            e = expr_repeat(p->b, e, 0, REPEAT_NO_LIMIT);
        else if (skip_if(p, '+'))
            e = expr_repeat(p->b, e, 1, REPEAT_NO_LIMIT);
        else if (skip_if(p, '?'))
            e = expr_repeat(p->b, e, 0, 1);
        else if (skip_if(p, '{'))
            e = read_counts(p, e);
        else
            return e;
    }
    return e;
}

static const struct expr *read_group(struct parser *p) {
    if (++p->depth > MAX_DEPTH)
        return fail(p, "groups in more than 128 groups", "fewer");
    const struct expr *e = read_choice(p);
    p->depth--;
    if (!p->status && !skip_if(p, ')'))
        return fail(p, found_here(p), ") or more of the group");
    return e;
}

/* NULL: none begins here. */
static const struct expr *read_part(struct parser *p) {
    if (skip_if(p, '"'))
        return read_literal(p);
    if (skip_if(p, '['))
        return read_class(p);
    if (skip_if(p, '.'))
        return expr_class(p->b, NULL, 0, true);
    if (skip_if(p, '('))
        return read_group(p);
    if (p->at < p->end && is_name(*p->at) && !is_rule(p))
        return expr_rule(p->b, find_rule(p, read_name(p)));
    return NULL;
}

static const struct expr *read_sequence(struct parser *p) {
    struct expr_list parts = {0};
    for (;;) {
        skip_blanks(p);
        const struct expr *part = p->status ? NULL : read_part(p);
        if (!part)
            return expr_sequence(p->b, &parts);
        expr_push(p->b, &parts, read_repetitions(p, part));
    }
}

static const struct expr *read_choice(struct parser *p) {
    struct expr_list choices = {0};
    do
        expr_push(p->b, &choices, read_sequence(p));
    while (!p->status && skip_if(p, '|'));
    return expr_choice(p->b, &choices);
}

/* ---- rules -------------------------------------------------------------------------------- */

static void read_rule(struct parser *p) {
    if (!is_rule(p)) {
        fail(p, found_here(p), "a rule: name ::= ...");
        return;
    }
    struct str name = read_name(p);
    uint32_t rule = find_rule(p, name);
    skip_blanks(p);
    p->at += 3;
    if (!p->status && !p->b->is_out_of_memory && p->b->rules[rule].body) {
        p->status =
            err_set(p->err, SLUICE_ERR_FORMAT,
                    "grammar, line %u: rule %.*s is defined a second time", p->line, STR_ARG(name));
        return;
    }
    const struct expr *body = read_choice(p);
    if (!p->b->is_out_of_memory)
        p->b->rules[rule].body = body;
    skip_blanks(p);
}

static int read_rules(struct parser *p, uint32_t *root) {
    skip_blanks(p);
    *root = find_rule(p, STR("root"));
    while (!p->status && p->at < p->end && !p->b->is_out_of_memory)
        read_rule(p);
    if (!p->status && !p->b->is_out_of_memory && !p->b->rules[*root].body)
        p->status = err_set(p->err, SLUICE_ERR_FORMAT, "grammar: there is no rule root");
    return p->status;
}

int grammar_of_gbnf(struct grammar **out, const char *text, size_t length, struct err *err) {
    struct builder b;
    uint32_t root = 0;
    *out = NULL;
    if (length > MAX_TEXT)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "a grammar of %zu bytes, expected at most %d",
                       length, MAX_TEXT);
    builder_begin(&b);
    struct parser p = {.b = &b, .at = text, .end = text + length, .line = 1, .err = err};
    p.slots = arena_array(&b.arena, 2 * MAX_RULES, sizeof *p.slots);
    int status = p.slots ? read_rules(&p, &root) : err_memory(err, "a grammar");
    if (!status) {
        status = grammar_compile(out, &b, root, err);
        if (status)
            err_prefix(err, "grammar");
    }
    free(p.text);
    builder_end(&b);
    return status;
}
