/* jinja_parse.c - tokens to statements. Expressions are in jinja_expr.c. */
#include "text/jinja_parse.h"

#include <stdarg.h>

#include "base/locale.h"

bool parse_fail(struct parser *p, uint32_t line, const char *format, ...) {
    char what[sizeof p->err->text];
    va_list args;
    va_start(args, format);
    locale_vprint(what, sizeof what, format, args);
    va_end(args);
    p->code = jinja_error(p->err, SLUICE_ERR_FORMAT, line, "%s", what);
    return false;
}

bool parse_no_memory(struct parser *p) {
    p->code = err_memory(p->err, "the chat template");
    return false;
}

bool parse_unexpected(struct parser *p) {
    const struct jinja_token *t = parse_token(p);
    if (t->kind == TK_END)
        return parse_fail(p, t->line, "unexpected end of the template");
    if (t->kind == TK_PRINT_END || t->kind == TK_BLOCK_END)
        return parse_fail(p, t->line, "unexpected end of a tag");
    return parse_fail(p, t->line, "unexpected '%.*s'", STR_ARG(t->text));
}

const struct jinja_token *parse_token(const struct parser *p) {
    return &p->tokens[p->at];
}

const struct jinja_token *parse_peek(const struct parser *p) {
    return &p->tokens[p->at + 1 < p->count ? p->at + 1 : p->at];
}

const struct jinja_token *parse_next(struct parser *p) {
    const struct jinja_token *t = &p->tokens[p->at];
    p->at += p->at + 1 < p->count;
    return t;
}

bool token_is_name(const struct jinja_token *t, const char *name) {
    return t->kind == TK_NAME && str_is(t->text, name);
}

bool parse_skip(struct parser *p, enum token_kind kind) {
    if (parse_token(p)->kind != kind)
        return false;
    parse_next(p);
    return true;
}

bool parse_skip_name(struct parser *p, const char *name) {
    if (!token_is_name(parse_token(p), name))
        return false;
    parse_next(p);
    return true;
}

bool parse_expect(struct parser *p, enum token_kind kind) {
    return parse_skip(p, kind) || parse_unexpected(p);
}

struct node *parse_node(struct parser *p, enum node_kind kind, uint32_t line) {
    struct node *n = arena_alloc(&p->jinja->arena, sizeof *n);
    if (!n) {
        parse_no_memory(p);
        return NULL;
    }
    n->kind = kind;
    n->line = line;
    return n;
}

uint32_t parse_name_number(struct parser *p, struct str name) {
    uint32_t number = (uint32_t)p->jinja->names.count;
    if (!strmap_add(&p->jinja->names, name, number))
        strmap_get(&p->jinja->names, name, &number);
    return number;
}

bool parse_enter(struct parser *p) {
    if (p->depth >= JINJA_MAX_NESTING)
        return parse_fail(p, parse_token(p)->line, "nested deeper than %d levels",
                          JINJA_MAX_NESTING);
    p->depth++;
    return true;
}

/* ---- statements ---- */

typedef bool statement_fn(struct parser *p, struct node *n);

static bool parse_list(struct parser *p, const char *const *ends, struct node **out);

/* The rest of the opening tag, and statements up to one of `ends` (names, NULL last). The end's
 * name is the next token, or is skipped when there is just one it could be. */
static bool parse_body(struct parser *p, const char *const *ends, struct node **out) {
    parse_skip(p, TK_COLON);
    if (!parse_expect(p, TK_BLOCK_END) || !parse_list(p, ends, out))
        return false;
    if (parse_token(p)->kind == TK_END)
        return parse_fail(p, parse_token(p)->line, "unexpected end of the template, expected '%s'",
                          ends[0]);
    if (!ends[1])
        parse_next(p);
    return true;
}

#define ENDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static bool parse_if(struct parser *p, struct node *n) {
    for (;;) {
        if (!(n->a = parse_tuple(p, (struct tuple_style){.is_plain = true})) ||
            !parse_body(p, ENDS("endif", "elif", "else"), &n->first))
            return false;
        const struct jinja_token *t = parse_next(p);
        if (token_is_name(t, "else"))
            return parse_body(p, ENDS("endif"), &n->other);
        if (token_is_name(t, "endif"))
            return true;
        if (!(n->other = parse_node(p, NODE_IF, parse_token(p)->line)))
            return false;
        n = n->other;
        n->is_elif = true;
    }
}

static bool parse_for(struct parser *p, struct node *n) {
    n->a = parse_target(p, (struct tuple_style){.end = "in"});
    if (!n->a)
        return false;
    if (!parse_skip_name(p, "in"))
        return parse_unexpected(p);
    n->b = parse_tuple(p, (struct tuple_style){.is_plain = true, .end = "recursive"});
    if (!n->b)
        return false;
    if (parse_skip_name(p, "if") && !(n->c = parse_expression(p)))
        return false;
    if (token_is_name(parse_token(p), "recursive")) {
        parse_fail(p, n->line, "recursive loops are not supported");
        return false;
    }
    p->loops++;
    bool ok = parse_body(p, ENDS("endfor", "else"), &n->first);
    p->loops--;
    if (!ok)
        return false;
    const struct jinja_token *end = parse_next(p);
    if (token_is_name(end, "endfor"))
        return true;
    n->other = parse_node(p, NODE_WITH, end->line);
    return n->other && parse_body(p, ENDS("endfor"), &n->other->first);
}

static bool parse_set(struct parser *p, struct node *n) {
    n->a = parse_target(p, (struct tuple_style){.has_attributes = true});
    if (!n->a)
        return false;
    if (parse_skip(p, TK_ASSIGN))
        return (n->b = parse_tuple(p, (struct tuple_style){0})) != NULL;
    n->kind = NODE_SET_BLOCK;
    if (parse_token(p)->kind == TK_PIPE && !parse_filters(p, &n->b, false))
        return false;
    return parse_body(p, ENDS("endset"), &n->first);
}

static bool parse_with(struct parser *p, struct node *n) {
    struct node **tail = &n->other;
    while (parse_token(p)->kind != TK_BLOCK_END) {
        if (n->other && !parse_expect(p, TK_COMMA))
            return false;
        if (!(*tail = parse_target(p, (struct tuple_style){0})) || !parse_expect(p, TK_ASSIGN) ||
            !((*tail)->next = parse_expression(p)))
            return false;
        tail = &(*tail)->next->next;
    }
    return parse_body(p, ENDS("endwith"), &n->first);
}

/* Parses a function's body: loops outside of it cannot be left from inside. */
static bool parse_function_body(struct parser *p, const char *end, struct node *n) {
    unsigned loops = p->loops;
    struct node *function = p->function;
    n->other = p->function;
    p->loops = 0;
    p->function = n;
    bool ok = parse_body(p, ENDS(end), &n->first);
    p->loops = loops;
    p->function = function;
    return ok;
}

static bool parse_parameter(struct parser *p, struct node *n, size_t *capacity) {
    const struct jinja_token *t = parse_token(p);
    if (!parse_expect(p, TK_NAME))
        return false;
    if (n->n_parameters == JINJA_MAX_ARGUMENTS)
        return parse_fail(p, t->line, "a macro has more than %d parameters", JINJA_MAX_ARGUMENTS);
    struct parameter parameter = {.name = parse_name_number(p, t->text), .text = t->text};
    for (uint32_t i = 0; i < n->n_parameters; i++)
        if (n->parameters[i].name == parameter.name)
            return parse_fail(p, t->line, "duplicate parameter '%.*s'", STR_ARG(t->text));
    if (parse_skip(p, TK_ASSIGN)) {
        if (!(parameter.fallback = parse_expression(p)))
            return false;
    } else if (n->n_parameters > 0 && n->parameters[n->n_parameters - 1].fallback) {
        return parse_fail(p, t->line, "a parameter without default follows one with a default");
    }
    if (n->n_parameters == *capacity) {
        *capacity = *capacity ? *capacity * 2 : 4;
        struct parameter *grown = arena_array(&p->jinja->arena, *capacity, sizeof *grown);
        if (!grown)
            return parse_no_memory(p);
        if (n->n_parameters)
            memcpy(grown, n->parameters, n->n_parameters * sizeof *grown);
        n->parameters = grown;
    }
    n->parameters[n->n_parameters++] = parameter;
    return true;
}

static bool parse_parameters(struct parser *p, struct node *n) {
    size_t capacity = 0;
    if (!parse_expect(p, TK_LPAREN))
        return false;
    while (parse_token(p)->kind != TK_RPAREN)
        if ((n->n_parameters > 0 && !parse_expect(p, TK_COMMA)) ||
            !parse_parameter(p, n, &capacity))
            return false;
    return parse_expect(p, TK_RPAREN);
}

static bool parse_macro(struct parser *p, struct node *n) {
    n->text = parse_token(p)->text;
    if (!parse_expect(p, TK_NAME))
        return false;
    n->name = parse_name_number(p, n->text);
    return parse_parameters(p, n) && parse_function_body(p, "endmacro", n);
}

static bool parse_call_block(struct parser *p, struct node *n) {
    n->text = STR("caller");
    if (parse_token(p)->kind == TK_LPAREN && !parse_parameters(p, n))
        return false;
    if (!(n->a = parse_expression(p)))
        return false;
    if (n->a->kind != NODE_CALL)
        return parse_fail(p, n->line, "expected a call");
    return parse_function_body(p, "endcall", n);
}

static bool parse_generation(struct parser *p, struct node *n) {
    return parse_function_body(p, "endgeneration", n);
}

static bool parse_filter_block(struct parser *p, struct node *n) {
    return parse_filters(p, &n->b, true) && parse_body(p, ENDS("endfilter"), &n->first);
}

static bool parse_print(struct parser *p, struct node *n) {
    struct node **tail = &n->first;
    while (parse_token(p)->kind != TK_BLOCK_END) {
        if (n->first && !parse_expect(p, TK_COMMA))
            return false;
        if (!(*tail = parse_node(p, NODE_PRINT, n->line)) || !((*tail)->a = parse_expression(p)))
            return false;
        tail = &(*tail)->next;
    }
    return true;
}

static bool parse_jump(struct parser *p, struct node *n) {
    return p->loops > 0 || parse_fail(p, n->line, "'%s' outside of a loop",
                                      n->kind == NODE_BREAK ? "break" : "continue");
}

static bool parse_refused(struct parser *p, struct node *n) {
    const struct jinja_token *t = &p->tokens[p->at - 1];
    p->code = jinja_error(p->err, SLUICE_ERR_UNSUPPORTED, n->line, "'%.*s' is not supported",
                          STR_ARG(t->text));
    return false;
}

static const struct statement {
    const char *name;
    enum node_kind kind;
    statement_fn *parse;
} statements[] = {
    {"for", NODE_FOR, parse_for},
    {"if", NODE_IF, parse_if},
    {"set", NODE_SET, parse_set},
    {"with", NODE_WITH, parse_with},
    {"macro", NODE_MACRO, parse_macro},
    {"call", NODE_CALL_BLOCK, parse_call_block},
    {"filter", NODE_FILTER_BLOCK, parse_filter_block},
    {"generation", NODE_GENERATION, parse_generation},
    {"print", NODE_WITH, parse_print}, /* statements in a scope of their own */
    {"break", NODE_BREAK, parse_jump},
    {"continue", NODE_CONTINUE, parse_jump},
    {"include", NODE_TEXT, parse_refused},
    {"import", NODE_TEXT, parse_refused},
    {"from", NODE_TEXT, parse_refused},
    {"extends", NODE_TEXT, parse_refused},
    {"block", NODE_TEXT, parse_refused},
    {"autoescape", NODE_TEXT, parse_refused},
    {"do", NODE_TEXT, parse_refused},
};

static struct node *parse_statement(struct parser *p) {
    const struct jinja_token *t = parse_token(p);
    if (t->kind != TK_NAME) {
        parse_unexpected(p);
        return NULL;
    }
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (str_is(t->text, statements[i].name)) {
            struct node *n = parse_node(p, statements[i].kind, t->line);
            parse_next(p);
            if (!n || !parse_enter(p))
                return NULL;
            bool ok = statements[i].parse(p, n);
            p->depth--;
            return ok && parse_expect(p, TK_BLOCK_END) ? n : NULL;
        }
    parse_fail(p, t->line, "unknown tag '%.*s'", STR_ARG(t->text));
    return NULL;
}

static struct node *parse_text(struct parser *p) {
    const struct jinja_token *t = parse_next(p);
    struct node *n = parse_node(p, NODE_TEXT, t->line);
    if (n)
        n->text = t->text;
    return n;
}

static struct node *parse_print_tag(struct parser *p) {
    const struct jinja_token *t = parse_next(p);
    struct node *n = parse_node(p, NODE_PRINT, t->line);
    if (!n || !(n->a = parse_tuple(p, (struct tuple_style){0})) || !parse_expect(p, TK_PRINT_END))
        return NULL;
    return n;
}

static bool parse_list(struct parser *p, const char *const *ends, struct node **out) {
    for (struct node **tail = out;; tail = &(*tail)->next) {
        enum token_kind kind = parse_token(p)->kind;
        if (kind == TK_END)
            return true;
        if (kind == TK_BLOCK_BEGIN) {
            parse_next(p);
            for (size_t i = 0; ends && ends[i]; i++)
                if (token_is_name(parse_token(p), ends[i]))
                    return true;
        }
        *tail = kind == TK_TEXT          ? parse_text(p)
                : kind == TK_PRINT_BEGIN ? parse_print_tag(p)
                                         : parse_statement(p);
        if (!*tail)
            return false;
    }
}

int jinja_parse(struct jinja *jinja, const struct jinja_token *tokens, size_t count,
                struct err *err) {
    struct parser p = {.jinja = jinja, .tokens = tokens, .count = count, .err = err};
    size_t names = 4;
    for (size_t i = 0; i < count; i++)
        names += tokens[i].kind == TK_NAME;
    if (!strmap_init(&jinja->names, &jinja->arena, names))
        return err_memory(err, "the chat template");
    static const char *const fixed[] = {[NAME_LOOP] = "loop",
                                        [NAME_CALLER] = "caller",
                                        [NAME_VARARGS] = "varargs",
                                        [NAME_KWARGS] = "kwargs"};
    for (uint32_t i = 0; i < NAME_FIXED_COUNT; i++)
        strmap_add(&jinja->names, str_of(fixed[i]), i);
    bool ok = (jinja->root = parse_node(&p, NODE_WITH, 1)) &&
              parse_list(&p, NULL, &jinja->root->first) && parse_hidden(&p, jinja->root);
    return ok ? SLUICE_OK : p.code;
}
