/* jinja_literal.c - strings and numbers as Python writes them, to constants. */
#include "text/jinja_parse.h"

/* A string made at parse time, owned by the template. */
static bool set_string(struct parser *p, struct node *n, struct str text) {
    struct string *s = arena_alloc(&p->jinja->arena, sizeof *s);
    if (!s)
        return parse_no_memory(p);
    *s = (struct string){.text = text, .chars = jinja_count_chars(text)};
    n->value = (struct value){.type = VALUE_STRING, .string = s};
    return true;
}

/* Reads up to `max` digits of a base; returns how many there were. */
static size_t read_digits(struct str s, int base, size_t max, uint32_t *out) {
    size_t n = 0;
    for (*out = 0; n < max && n < s.len; n++) {
        char c = s.at[n], low = (char)(c | 32);
        int digit = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : 99;
        if (digit >= base)
            break;
        *out = *out * (uint32_t)base + (uint32_t)digit;
    }
    return n;
}

/* A backslash before a character that is not ASCII: Python writes the character as an escape
 * first, so that the backslash escapes that escape's own. */
static size_t unquote_odd(struct str s, char *out, size_t *n) {
    uint32_t c;
    size_t size = utf8_decode(s, &c);
    static const char hex[] = "0123456789abcdef";
    int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
    out[(*n)++] = '\\';
    out[(*n)++] = digits == 2 ? 'x' : digits == 4 ? 'u' : 'U';
    while (digits-- > 0)
        out[(*n)++] = hex[c >> (4 * digits) & 15];
    return size;
}

/* \x, \u and \U, then digits. */
static size_t unquote_hex(struct str s, size_t digits, char *out, size_t *n) {
    uint32_t c;
    if (read_digits(str_skip(s, 1), 16, digits, &c) != digits || c > 0x10FFFF ||
        (c >= 0xD800 && c < 0xE000))
        return 0;
    *n += utf8_put(c, out + *n);
    return 1 + digits;
}

/* What follows a backslash; returns its bytes, 0 when it is wrong. */
static size_t unquote_escape(struct str s, char *out, size_t *n) {
    static const char letters[] = "\\'\"abfnrtv", values[] = "\\'\"\a\b\f\n\r\t\v";
    unsigned char c = (unsigned char)s.at[0];
    const char *known = c ? strchr(letters, c) : NULL;
    uint32_t octal;
    if (known) {
        out[(*n)++] = values[known - letters];
        return 1;
    }
    if (c == 'x' || c == 'u' || c == 'U')
        return unquote_hex(s, c == 'x' ? 2 : c == 'u' ? 4 : 8, out, n);
    if (c == '\n')
        return 1;
    if (c == 'N')
        return 0;
    if (c >= 0x80)
        return unquote_odd(s, out, n);
    size_t digits = read_digits(s, 8, 3, &octal);
    if (digits > 0) {
        *n += utf8_put(octal, out + *n);
        return digits;
    }
    out[(*n)++] = '\\'; /* unknown: both stay */
    out[(*n)++] = (char)c;
    return 1;
}

/* Appends the string to the template's texts, which have room: an odd escape takes 10 bytes for 3,
 * and they hold four for each of the source. */
static bool unquote(const struct jinja_token *token, struct jinja *jinja, struct err *err) {
    struct str s = {token->text.at + 1, token->text.len - 2};
    size_t *n = &jinja->text_len;
    if (s.len > (jinja->text_capacity - *n) / 4)
        return err_memory(err, "the chat template"), false;
    while (s.len > 0) {
        size_t used = 1;
        if (s.at[0] != '\\')
            jinja->text[(*n)++] = s.at[0];
        else if ((used = unquote_escape(str_skip(s, 1), jinja->text, n)) == 0)
            return jinja_error(err, SLUICE_ERR_FORMAT, token->line, "a bad escape in a string"),
                   false;
        else
            used++;
        s = str_skip(s, used);
    }
    return true;
}

/* Strings that stand side by side are one. */
struct node *parse_string(struct parser *p) {
    struct node *n = parse_node(p, NODE_CONST, parse_token(p)->line);
    size_t begin = p->jinja->text_len;
    if (!n)
        return NULL;
    while (parse_token(p)->kind == TK_STRING) {
        if (!unquote(parse_next(p), p->jinja, p->err)) {
            p->code = p->err ? p->err->code : SLUICE_ERR_FORMAT;
            return NULL;
        }
    }
    struct str text = {p->jinja->text + begin, p->jinja->text_len - begin};
    return set_string(p, n, text) ? n : NULL;
}

struct node *parse_number(struct parser *p) {
    const struct jinja_token *t = parse_next(p);
    struct node *n = parse_node(p, NODE_CONST, t->line);
    int64_t integer = 0;
    double real = 0;
    bool is_too_big = false;
    if (!n)
        return NULL;
    bool ok = t->kind == TK_INT ? jinja_parse_int(t->text, 0, &integer, &is_too_big)
                                : jinja_parse_float(t->text, &real);
    if (!ok)
        return parse_fail(p, t->line, "the number %.*s does not fit in 64 bits", STR_ARG(t->text)),
               NULL;
    n->value = t->kind == TK_INT ? value_int(integer) : value_float(real);
    return n;
}
