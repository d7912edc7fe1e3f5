/* jinja_lex.c - a template's source to tokens.
 *
 * In: UTF-8.  Out: an array of tokens, after whitespace control: a `-` in a tag takes all space on
 * its side; a block or comment at the start of its line takes the spaces before it (lstrip_blocks)
 * and the newline after it (trim_blocks); a `+` keeps them. */
#include <stdarg.h>

#include "base/locale.h"
#include "text/jinja_ast.h"

enum { MAX_OPEN = 512 }; /* brackets; the parser allows fewer, this is the lexer's own guard */

struct lexer {
    struct str source; /* newlines are \n, one at the very end is gone */
    size_t at;
    uint32_t line;
    size_t line_counted;   /* newlines before this byte are in `line` */
    bool is_line_starting; /* the last thing read ended in a newline, or nothing was read */
    struct jinja_token *tokens;
    size_t count, capacity;
    struct arena *arena;
    struct err *err;
};

int jinja_error(struct err *err, int code, uint32_t line, const char *format, ...) {
    char what[sizeof err->text];
    va_list args;
    va_start(args, format);
    locale_vprint(what, sizeof what, format, args);
    va_end(args);
    return err_set(err, code, "chat template, line %u: %s", line, what);
}

static bool fail(struct lexer *x, const char *what) {
    jinja_error(x->err, SLUICE_ERR_FORMAT, x->line, "%s", what);
    return false;
}

static void count_lines(struct lexer *x, size_t to) {
    for (; x->line_counted < to; x->line_counted++)
        x->line += x->source.at[x->line_counted] == '\n';
}

static bool emit(struct lexer *x, enum token_kind kind, size_t begin, size_t end) {
    count_lines(x, begin);
    if (x->count == x->capacity) {
        size_t capacity = x->capacity ? x->capacity * 2 : 256;
        struct jinja_token *grown = arena_array(x->arena, capacity, sizeof *grown);
        if (!grown)
            return err_memory(x->err, "the chat template"), false;
        if (x->count)
            memcpy(grown, x->tokens, x->count * sizeof *grown);
        x->tokens = grown;
        x->capacity = capacity;
    }
    x->tokens[x->count++] =
        (struct jinja_token){kind, x->line, {x->source.at + begin, end - begin}};
    return true;
}

static bool looking_at(const struct lexer *x, size_t at, const char *z) {
    return at <= x->source.len && str_starts(str_skip(x->source, at), z);
}

/* Where the white space that begins at `at` ends. */
static size_t skip_space(const struct lexer *x, size_t at) {
    for (size_t n; at < x->source.len; at += n) {
        uint32_t c;
        n = utf8_decode(str_skip(x->source, at), &c);
        if (!jinja_is_space(c))
            break;
    }
    return at;
}

/* Where text that begins at `begin` ends when a tag with this sign follows at `end`. */
static size_t trim_text(const struct lexer *x, size_t begin, size_t end, char sign, bool is_print) {
    struct str text = {x->source.at + begin, end - begin};
    if (sign == '-')
        return begin + jinja_trim(text, false, true).len;
    if (sign == '+' || is_print)
        return end;
    const char *newline = memrchr(text.at, '\n', text.len);
    if (!newline && !x->is_line_starting)
        return end;
    size_t line_begin = newline ? begin + (size_t)(newline + 1 - text.at) : begin;
    return skip_space(x, line_begin) >= end ? line_begin : end;
}

static bool emit_text(struct lexer *x, size_t begin, size_t end) {
    return begin == end || emit(x, TK_TEXT, begin, end);
}

/* Ends a tag whose closing mark (2 bytes, a sign before it maybe) begins at `at`: takes the space
 * or the newline after it that goes with it. */
static void close_tag(struct lexer *x, size_t at, bool eats_newline) {
    char sign = x->source.at[at];
    at += sign == '-' || sign == '+' ? 3 : 2;
    if (sign == '-')
        at = skip_space(x, at);
    else if (sign != '+' && eats_newline && looking_at(x, at, "\n"))
        at++;
    x->at = at;
    x->is_line_starting = x->source.at[at - 1] == '\n';
}

/* The sign of the tag that opens at `at`, or 0. */
static char sign_at(const struct lexer *x, size_t at) {
    char c = at + 2 < x->source.len ? x->source.at[at + 2] : 0;
    return c == '-' || c == '+' ? c : 0;
}

/* Whether a tag at `at` holds only this word; *end gets the place of its closing mark. */
static bool is_word_tag(const struct lexer *x, size_t at, const char *word, bool allows_plus,
                        size_t *end) {
    if (!looking_at(x, at, "{%"))
        return false;
    at = skip_space(x, at + 2 + (sign_at(x, at) != 0));
    if (!looking_at(x, at, word))
        return false;
    *end = at = skip_space(x, at + strlen(word));
    return looking_at(x, at, "%}") || looking_at(x, at, "-%}") ||
           (allows_plus && looking_at(x, at, "+%}"));
}

static bool lex_raw(struct lexer *x) {
    size_t begin = x->at, end;
    for (size_t at = begin; at < x->source.len; at++)
        if (is_word_tag(x, at, "endraw", true, &end)) {
            if (!emit_text(x, begin, trim_text(x, begin, at, sign_at(x, at), false)))
                return false;
            close_tag(x, end, true);
            return true;
        }
    count_lines(x, begin);
    return fail(x, "the raw block has no end");
}

static bool lex_comment(struct lexer *x, size_t begin) {
    const char *end = memmem(x->source.at + begin, x->source.len - begin, "#}", 2);
    if (!end) {
        count_lines(x, begin);
        return fail(x, "the comment has no end");
    }
    size_t at = (size_t)(end - x->source.at);
    if (at > begin && (end[-1] == '-' || end[-1] == '+'))
        at--;
    close_tag(x, at, true);
    return true;
}

/* ---- inside tags ---- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

static char byte_at(const struct lexer *x, size_t at) {
    return at < x->source.len ? x->source.at[at] : 0;
}

/* The end of digits with single underscores between them; `at` when there are none. */
static size_t skip_digits(const struct lexer *x, size_t at) {
    while (is_digit(byte_at(x, at))) {
        at++;
        if (byte_at(x, at) == '_' && is_digit(byte_at(x, at + 1)))
            at++;
    }
    return at;
}

static bool is_digit_of(char c, int base) {
    int v = is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
    return v < base;
}

static size_t skip_based(const struct lexer *x, size_t at, int base) {
    for (size_t next; next = at + (byte_at(x, at) == '_'), is_digit_of(byte_at(x, next), base);)
        at = next + 1;
    return at;
}

static size_t skip_int(const struct lexer *x, size_t at) {
    if (byte_at(x, at) != '0')
        return skip_digits(x, at);
    char kind = (char)(byte_at(x, at + 1) | 32);
    int base = kind == 'b' ? 2 : kind == 'o' ? 8 : kind == 'x' ? 16 : 0;
    size_t end = base ? skip_based(x, at + 2, base) : at + 2;
    return end > at + 2 ? end : skip_based(x, at, 1);
}

/* The end of a float; `at` when there is none: it has a fraction or an exponent, and no point
 * before it (x.1.2 is two subscripts). */
static size_t skip_float(const struct lexer *x, size_t at) {
    if (at > 0 && x->source.at[at - 1] == '.')
        return at;
    size_t whole = skip_digits(x, at), end = whole;
    if (byte_at(x, end) == '.' && is_digit(byte_at(x, end + 1)))
        end = skip_digits(x, end + 1);
    if ((byte_at(x, end) | 32) == 'e') {
        size_t digits = end + 1 + (byte_at(x, end + 1) == '+' || byte_at(x, end + 1) == '-');
        if (is_digit(byte_at(x, digits)))
            return skip_digits(x, digits);
    }
    return end > whole ? end : at;
}

static bool lex_number(struct lexer *x) {
    size_t end = skip_float(x, x->at);
    bool is_float = end > x->at;
    if (!is_float)
        end = skip_int(x, x->at);
    bool ok = emit(x, is_float ? TK_FLOAT : TK_INT, x->at, end);
    x->at = end;
    return ok;
}

static bool lex_string(struct lexer *x) {
    char quote = x->source.at[x->at];
    for (size_t at = x->at + 1; at < x->source.len; at++) {
        if (x->source.at[at] == '\\') {
            at++;
        } else if (x->source.at[at] == quote) {
            bool ok = emit(x, TK_STRING, x->at, at + 1);
            x->at = at + 1;
            return ok;
        }
    }
    return fail(x, "a string has no end");
}

/* clang-format off */
static const struct { const char *text; enum token_kind kind; } operators[] = { /* longest first */
    {"//", TK_FLOORDIV}, {"**", TK_POW}, {"==", TK_EQ}, {"!=", TK_NE}, {">=", TK_GE}, {"<=", TK_LE},
    {"+", TK_ADD}, {"-", TK_SUB}, {"*", TK_MUL}, {"/", TK_DIV}, {"%", TK_MOD}, {"~", TK_TILDE},
    {"[", TK_LBRACKET}, {"]", TK_RBRACKET}, {"(", TK_LPAREN}, {")", TK_RPAREN},
    {"{", TK_LBRACE}, {"}", TK_RBRACE}, {">", TK_GT}, {"<", TK_LT}, {"=", TK_ASSIGN},
    {".", TK_DOT}, {":", TK_COLON}, {"|", TK_PIPE}, {",", TK_COMMA}, {";", TK_SEMICOLON},
};
/* clang-format on */

/* Brackets that are open: a tag ends only outside of them. */
struct open {
    char closing[MAX_OPEN];
    size_t count;
};

static bool balance(struct lexer *x, struct open *open, char c) {
    char closing = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : 0;
    if (closing) {
        if (open->count == MAX_OPEN)
            return fail(x, "brackets are nested too deep");
        open->closing[open->count++] = closing;
    } else if (c == ')' || c == ']' || c == '}') {
        if (open->count == 0 || open->closing[--open->count] != c)
            return fail(x, "a bracket closes that was not opened");
    }
    return true;
}

static bool lex_operator(struct lexer *x, struct open *open) {
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (looking_at(x, x->at, operators[i].text)) {
            size_t n = strlen(operators[i].text);
            if (!balance(x, open, x->source.at[x->at]) ||
                !emit(x, operators[i].kind, x->at, x->at + n))
                return false;
            x->at += n;
            return true;
        }
    struct str rest = str_skip(x->source, x->at);
    rest.len = utf8_length(rest);
    jinja_error(x->err, SLUICE_ERR_FORMAT, x->line, "unexpected character '%.*s'", STR_ARG(rest));
    return false;
}

static bool lex_word(struct lexer *x) {
    size_t end = x->at;
    while (is_name_char(byte_at(x, end)))
        end++;
    bool ok = emit(x, TK_NAME, x->at, end);
    x->at = end;
    return ok;
}

/* Reads a tag up to its closing mark. The parser reports a missing one. */
static bool lex_tag(struct lexer *x, bool is_print) {
    struct open open = {.count = 0};
    const char *const marks[] = {is_print ? "}}" : "%}", is_print ? "-}}" : "-%}",
                                 is_print ? NULL : "+%}"};
    while (x->at < x->source.len) {
        count_lines(x, x->at);
        for (int i = 0; i < 3 && open.count == 0; i++)
            if (marks[i] && looking_at(x, x->at, marks[i])) {
                if (!emit(x, is_print ? TK_PRINT_END : TK_BLOCK_END, x->at, x->at))
                    return false;
                close_tag(x, x->at, !is_print);
                return true;
            }
        char c = x->source.at[x->at];
        size_t behind_space = skip_space(x, x->at);
        bool ok = true;
        if (behind_space > x->at)
            x->at = behind_space;
        else if (is_digit(c))
            ok = lex_number(x);
        else if (is_name_char(c))
            ok = lex_word(x);
        else if (c == '\'' || c == '"')
            ok = lex_string(x);
        else
            ok = lex_operator(x, &open);
        if (!ok)
            return false;
    }
    return true;
}

/* ---- outside of tags ---- */

static size_t find_tag(const struct lexer *x, size_t at) {
    for (; at + 1 < x->source.len; at++) {
        const char *brace = memchr(x->source.at + at, '{', x->source.len - at - 1);
        if (!brace)
            break;
        at = (size_t)(brace - x->source.at);
        if (brace[1] == '%' || brace[1] == '{' || brace[1] == '#')
            return at;
    }
    return x->source.len;
}

/* One text and the tag after it. */
static bool lex_piece(struct lexer *x) {
    size_t begin = x->at, tag = find_tag(x, begin), end;
    if (tag == x->source.len) {
        x->at = tag;
        return emit_text(x, begin, tag);
    }
    char kind = x->source.at[tag + 1], sign = sign_at(x, tag);
    if (!emit_text(x, begin, trim_text(x, begin, tag, sign, kind == '{')))
        return false;
    if (is_word_tag(x, tag, "raw", false, &end)) {
        close_tag(x, end, false); /* the newline after `raw` stays */
        return lex_raw(x);
    }
    size_t inside = tag + 2 + (sign != 0);
    if (kind == '#')
        return lex_comment(x, inside);
    if (!emit(x, kind == '{' ? TK_PRINT_BEGIN : TK_BLOCK_BEGIN, tag, tag + 2))
        return false;
    x->at = inside;
    return lex_tag(x, kind == '{');
}

/* Newlines of every kind become \n, and one at the end goes. */
static void normalize(struct lexer *x, struct str source, char *copy) {
    size_t n = 0;
    for (size_t i = 0; i < source.len; i++) {
        copy[n++] = source.at[i] == '\r' ? '\n' : source.at[i];
        if (source.at[i] == '\r' && i + 1 < source.len && source.at[i + 1] == '\n')
            i++;
    }
    x->source = (struct str){copy, n > 0 && copy[n - 1] == '\n' ? n - 1 : n};
}

int jinja_lex(struct str source, char *copy, struct arena *arena, struct jinja_token **out,
              size_t *count, struct err *err) {
    struct lexer x = {.line = 1, .is_line_starting = true, .arena = arena, .err = err};
    bool ok = true;
    normalize(&x, source, copy);
    while (ok && x.at < x.source.len)
        ok = lex_piece(&x);
    if (!ok || !emit(&x, TK_END, x.source.len, x.source.len))
        return err ? err->code : SLUICE_ERR_FORMAT;
    *out = x.tokens;
    *count = x.count;
    return SLUICE_OK;
}
