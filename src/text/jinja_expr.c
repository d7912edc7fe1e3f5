/* jinja_expr.c - tokens to expressions: one function for each level of precedence. */
#include "text/jinja_parse.h"

static struct node *parse_or(struct parser *p);
static struct node *parse_unary(struct parser *p, bool with_filters);

/* ---- literals and names ---- */

/* Expressions, separated by commas, up to a bracket; for dicts with a colon after every other. */
static struct node *parse_items(struct parser *p, enum node_kind kind, enum token_kind end) {
    struct node *n = parse_node(p, kind, parse_next(p)->line);
    if (!n)
        return NULL;
    for (struct node **tail = &n->first; parse_token(p)->kind != end; tail = &(*tail)->next) {
        if (n->first && !parse_expect(p, TK_COMMA))
            return NULL;
        if (parse_token(p)->kind == end)
            break;
        if (!(*tail = parse_expression(p)))
            return NULL;
        if (kind == NODE_DICT) {
            tail = &(*tail)->next;
            if (!parse_expect(p, TK_COLON) || !(*tail = parse_expression(p)))
                return NULL;
        }
    }
    return parse_expect(p, end) ? n : NULL;
}

/* Notes that a function uses varargs, kwargs or caller. */
static void note_special(struct parser *p, uint32_t name) {
    for (struct node *f = p->function; f && name < NAME_FIXED_COUNT; f = f->other) {
        f->takes_caller |= name == NAME_CALLER;
        f->takes_rest |= name == NAME_VARARGS;
        f->takes_named |= name == NAME_KWARGS;
    }
}

static struct node *parse_name(struct parser *p, bool is_target, bool has_attributes) {
    const struct jinja_token *t = parse_next(p);
    struct node *n = parse_node(p, NODE_CONST, t->line);
    if (!n)
        return NULL;
    if (str_is(t->text, "true") || str_is(t->text, "True")) {
        n->value = value_bool(true);
    } else if (str_is(t->text, "false") || str_is(t->text, "False")) {
        n->value = value_bool(false);
    } else if (str_is(t->text, "none") || str_is(t->text, "None")) {
        n->value = value_none();
    } else {
        n->kind = NODE_NAME;
        n->text = t->text;
        n->name = parse_name_number(p, t->text);
        if (!is_target)
            note_special(p, n->name);
        if (has_attributes && parse_skip(p, TK_DOT)) {
            n->kind = NODE_ATTR_TARGET;
            n->text = parse_token(p)->text;
            return parse_expect(p, TK_NAME) ? n : NULL;
        }
    }
    return n;
}

static struct node *parse_bracketed(struct parser *p) {
    parse_next(p);
    struct node *n = parse_tuple(p, (struct tuple_style){.is_bracketed = true});
    return n && parse_expect(p, TK_RPAREN) ? n : NULL;
}

static struct node *parse_primary(struct parser *p, bool is_target, bool has_attributes) {
    switch (parse_token(p)->kind) {
    case TK_NAME:
        return parse_name(p, is_target, has_attributes);
    case TK_STRING:
        return parse_string(p);
    case TK_INT:
    case TK_FLOAT:
        return parse_number(p);
    case TK_LPAREN:
        return parse_bracketed(p);
    case TK_LBRACKET:
        return parse_items(p, NODE_LIST, TK_RBRACKET);
    case TK_LBRACE:
        return parse_items(p, NODE_DICT, TK_RBRACE);
    default:
        parse_unexpected(p);
        return NULL;
    }
}

/* ---- calls, subscripts, filters, tests ---- */

static bool push_argument(struct parser *p, struct node *n, struct argument argument) {
    if (n->n_arguments == JINJA_MAX_ARGUMENTS)
        return parse_fail(p, n->line, "a call has more than %d arguments", JINJA_MAX_ARGUMENTS);
    for (uint32_t i = 0; argument.name.len > 0 && i < n->n_arguments; i++)
        if (str_equal(n->arguments[i].name, argument.name))
            return parse_fail(p, n->line, "the argument '%.*s' is given twice",
                              STR_ARG(argument.name));
    if ((n->n_arguments & (n->n_arguments - 1)) == 0) { /* capacity doubles at every power of two */
        size_t capacity = n->n_arguments ? 2 * (size_t)n->n_arguments : 1;
        struct argument *grown = arena_array(&p->jinja->arena, capacity, sizeof *grown);
        if (!grown)
            return parse_no_memory(p);
        if (n->n_arguments)
            memcpy(grown, n->arguments, n->n_arguments * sizeof *grown);
        n->arguments = grown;
    }
    n->arguments[n->n_arguments++] = argument;
    return true;
}

/* The arguments of a call, its opening bracket next. `*list` and `**dict` may come once each. */
static bool parse_arguments(struct parser *p, struct node *n) {
    bool has_spread = false, has_spread_dict = false, has_named = false, is_fine = true;
    parse_next(p);
    for (bool is_first = true; parse_token(p)->kind != TK_RPAREN; is_first = false) {
        if (!is_first && !parse_expect(p, TK_COMMA))
            return false;
        if (parse_token(p)->kind == TK_RPAREN)
            break;
        struct argument argument = {0};
        if (parse_skip(p, TK_MUL)) {
            is_fine = !has_spread && !has_spread_dict;
            argument.is_spread = has_spread = true;
        } else if (parse_skip(p, TK_POW)) {
            is_fine = !has_spread_dict;
            argument.is_spread_dict = has_spread_dict = true;
        } else if (parse_token(p)->kind == TK_NAME && parse_peek(p)->kind == TK_ASSIGN) {
            is_fine = !has_spread_dict;
            has_named = true;
            argument.name = parse_next(p)->text;
            parse_next(p);
        } else {
            is_fine = !has_spread && !has_spread_dict && !has_named;
        }
        if (!is_fine)
            return parse_fail(p, n->line, "the arguments of a call are in the wrong order");
        if (!(argument.value = parse_expression(p)) || !push_argument(p, n, argument))
            return false;
    }
    return parse_expect(p, TK_RPAREN);
}

static struct node *parse_call(struct parser *p, struct node *callee) {
    struct node *n = parse_node(p, NODE_CALL, parse_token(p)->line);
    if (!n || !parse_arguments(p, n))
        return NULL;
    n->a = callee;
    return n;
}

/* "name" or "name.name", as one name. */
static bool parse_dotted(struct parser *p, struct str *out) {
    *out = parse_token(p)->text;
    if (!parse_expect(p, TK_NAME))
        return false;
    while (parse_skip(p, TK_DOT)) {
        struct str part = parse_token(p)->text;
        if (!parse_expect(p, TK_NAME))
            return false;
        out->len = (size_t)(part.at + part.len - out->at);
    }
    return true;
}

bool parse_filters(struct parser *p, struct node **out, bool is_inline) {
    while (parse_token(p)->kind == TK_PIPE || is_inline) {
        if (!is_inline)
            parse_next(p);
        is_inline = false;
        struct node *n = parse_node(p, NODE_FILTER, parse_token(p)->line);
        if (!n || !parse_dotted(p, &n->text))
            return false;
        if (parse_token(p)->kind == TK_LPAREN && !parse_arguments(p, n))
            return false;
        n->a = *out;
        *out = n;
    }
    return true;
}

static struct node *parse_postfix(struct parser *p, struct node *n);

/* A test's single argument may have no brackets. */
static bool parse_bare_argument(struct parser *p, struct node *n) {
    const struct jinja_token *t = parse_token(p);
    bool begins = t->kind == TK_NAME || t->kind == TK_STRING || t->kind == TK_INT ||
                  t->kind == TK_FLOAT || t->kind == TK_LBRACKET || t->kind == TK_LBRACE;
    if (!begins || token_is_name(t, "else") || token_is_name(t, "or") || token_is_name(t, "and"))
        return true;
    if (token_is_name(t, "is"))
        return parse_fail(p, t->line, "tests cannot be chained with 'is'");
    struct node *value = parse_primary(p, false, false);
    if (!value || !(value = parse_postfix(p, value)))
        return false;
    return push_argument(p, n, (struct argument){.value = value});
}

static struct node *parse_test(struct parser *p, struct node *operand) {
    uint32_t line = parse_next(p)->line;
    bool is_negated = parse_skip_name(p, "not");
    struct node *n = parse_node(p, NODE_TEST, line);
    if (!n || !parse_dotted(p, &n->text))
        return NULL;
    n->a = operand;
    bool ok = parse_token(p)->kind == TK_LPAREN ? parse_arguments(p, n) : parse_bare_argument(p, n);
    if (!ok || !is_negated)
        return ok ? n : NULL;
    struct node *negated = parse_node(p, NODE_NOT, line);
    if (negated)
        negated->a = n;
    return negated;
}

/* One bound of a slice, NULL (in *out) when left out. */
static bool parse_bound(struct parser *p, struct node **out) {
    enum token_kind kind = parse_token(p)->kind;
    if (kind == TK_COLON || kind == TK_RBRACKET || kind == TK_COMMA)
        return true;
    return (*out = parse_expression(p)) != NULL;
}

/* a[key], a[first:b:c], a[key, key] */
static struct node *parse_subscript(struct parser *p, struct node *operand) {
    struct node *n = parse_node(p, NODE_ITEM, parse_next(p)->line), *key = NULL;
    if (!n || !parse_bound(p, &key))
        return NULL;
    n->a = operand;
    if (parse_skip(p, TK_COLON)) {
        n->kind = NODE_SLICE;
        n->first = key;
        if (!parse_bound(p, &n->b) || (parse_skip(p, TK_COLON) && !parse_bound(p, &n->c)))
            return NULL;
    } else if (parse_token(p)->kind == TK_COMMA) {
        struct node *tuple = parse_node(p, NODE_TUPLE, n->line);
        if (!tuple || !key)
            return key ? NULL : (parse_unexpected(p), NULL);
        struct node **tail = &tuple->first;
        *tail = key;
        while (parse_skip(p, TK_COMMA)) {
            tail = &(*tail)->next;
            if (!(*tail = parse_expression(p)))
                return NULL;
        }
        n->b = tuple;
    } else if (!(n->b = key ? key : parse_node(p, NODE_TUPLE, n->line))) { /* a[] is a[()] */
        return NULL;
    }
    return parse_expect(p, TK_RBRACKET) ? n : NULL;
}

/* a.name, and a.0 for a[0] */
static struct node *parse_attribute(struct parser *p, struct node *operand) {
    uint32_t line = parse_next(p)->line;
    const struct jinja_token *t = parse_token(p);
    if (t->kind != TK_NAME && t->kind != TK_INT) {
        parse_unexpected(p);
        return NULL;
    }
    struct node *n = parse_node(p, t->kind == TK_NAME ? NODE_ATTR : NODE_ITEM, line);
    if (!n)
        return NULL;
    n->a = operand;
    n->text = t->text;
    if (t->kind == TK_INT)
        return (n->b = parse_number(p)) ? n : NULL;
    parse_next(p);
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n) {
    while (n) {
        enum token_kind kind = parse_token(p)->kind;
        if (kind == TK_DOT)
            n = parse_attribute(p, n);
        else if (kind == TK_LBRACKET)
            n = parse_subscript(p, n);
        else if (kind == TK_LPAREN)
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* ---- operators, from the strongest to the weakest ---- */

static struct node *parse_filtered(struct parser *p, struct node *n) {
    while (n) {
        const struct jinja_token *t = parse_token(p);
        if (t->kind == TK_PIPE)
            n = parse_filters(p, &n, false) ? n : NULL;
        else if (token_is_name(t, "is"))
            n = parse_test(p, n);
        else if (t->kind == TK_LPAREN)
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

static struct node *parse_signed(struct parser *p) {
    const struct jinja_token *t = parse_next(p);
    struct node *n = parse_node(p, t->kind == TK_SUB ? NODE_NEG : NODE_POS, t->line);
    return n && (n->a = parse_unary(p, false)) ? n : NULL;
}

static struct node *parse_unary(struct parser *p, bool with_filters) {
    enum token_kind kind = parse_token(p)->kind;
    if (!parse_enter(p))
        return NULL;
    struct node *n =
        kind == TK_SUB || kind == TK_ADD ? parse_signed(p) : parse_primary(p, false, false);
    n = parse_postfix(p, n);
    if (n && with_filters)
        n = parse_filtered(p, n);
    p->depth--;
    return n;
}

/* Joins a and b, which the next function parses, into a node that takes a's place. */
static struct node *parse_right(struct parser *p, struct node *left, enum node_kind kind,
                                struct node *(*operand)(struct parser *)) {
    const struct jinja_token *t = parse_next(p);
    struct node *n = parse_node(p, kind, t->line);
    if (!n || !(n->b = operand(p)))
        return NULL;
    n->op = t->kind;
    n->a = left;
    return n;
}

static struct node *parse_operand(struct parser *p) {
    return parse_unary(p, true);
}

static struct node *parse_pow(struct parser *p) {
    struct node *n = parse_operand(p);
    while (n && parse_token(p)->kind == TK_POW)
        n = parse_right(p, n, NODE_BINARY, parse_operand);
    return n;
}

static struct node *parse_product(struct parser *p) {
    struct node *n = parse_pow(p);
    for (enum token_kind k; n && (k = parse_token(p)->kind, k >= TK_MUL && k <= TK_MOD);)
        n = parse_right(p, n, NODE_BINARY, parse_pow);
    return n;
}

static struct node *parse_concat(struct parser *p) {
    struct node *n = parse_product(p);
    if (!n || parse_token(p)->kind != TK_TILDE)
        return n;
    struct node *concat = parse_node(p, NODE_CONCAT, parse_token(p)->line);
    if (!concat)
        return NULL;
    struct node **tail = &concat->first;
    for (*tail = n; parse_skip(p, TK_TILDE);) {
        tail = &(*tail)->next;
        if (!(*tail = parse_product(p)))
            return NULL;
    }
    return concat;
}

static struct node *parse_sum(struct parser *p) {
    struct node *n = parse_concat(p);
    for (enum token_kind k; n && (k = parse_token(p)->kind, k == TK_ADD || k == TK_SUB);)
        n = parse_right(p, n, NODE_BINARY, parse_concat);
    return n;
}

/* Takes a comparison operator; TK_END when there is none. */
static enum token_kind parse_comparison(struct parser *p) {
    enum token_kind kind = parse_token(p)->kind;
    if (kind >= TK_EQ && kind <= TK_LE) {
        parse_next(p);
        return kind;
    }
    if (parse_skip_name(p, "in"))
        return TK_IN;
    if (!token_is_name(parse_token(p), "not") || !token_is_name(parse_peek(p), "in"))
        return TK_END;
    parse_next(p);
    parse_next(p);
    return TK_NOT_IN;
}

static struct node *parse_compare(struct parser *p) {
    uint32_t line = parse_token(p)->line;
    struct node *n = parse_sum(p), *compare = NULL, **tail = NULL;
    for (enum token_kind op; n && (op = parse_comparison(p)) != TK_END;) {
        if (!compare) {
            if (!(compare = parse_node(p, NODE_COMPARE, line)))
                return NULL;
            compare->a = n;
            tail = &compare->first;
        }
        /* A holder for the operator: the operand may have one of its own. */
        if (!(*tail = parse_node(p, NODE_COMPARE, line)) || !((*tail)->a = parse_sum(p)))
            return NULL;
        (*tail)->op = op;
        tail = &(*tail)->next;
    }
    return compare ? compare : n;
}

static struct node *parse_not(struct parser *p) {
    if (!token_is_name(parse_token(p), "not"))
        return parse_compare(p);
    struct node *n = parse_node(p, NODE_NOT, parse_next(p)->line);
    if (!n || !parse_enter(p))
        return NULL;
    n->a = parse_not(p);
    p->depth--;
    return n->a ? n : NULL;
}

static struct node *parse_and(struct parser *p) {
    struct node *n = parse_not(p);
    while (n && token_is_name(parse_token(p), "and"))
        n = parse_right(p, n, NODE_AND, parse_not);
    return n;
}

static struct node *parse_or(struct parser *p) {
    struct node *n = parse_and(p);
    while (n && token_is_name(parse_token(p), "or"))
        n = parse_right(p, n, NODE_OR, parse_and);
    return n;
}

struct node *parse_expression(struct parser *p) {
    if (!parse_enter(p))
        return NULL;
    struct node *n = parse_or(p);
    while (n && parse_skip_name(p, "if")) {
        struct node *cond = parse_node(p, NODE_COND, n->line);
        if (!cond || !(cond->b = parse_or(p)) ||
            (parse_skip_name(p, "else") && !(cond->c = parse_expression(p)))) {
            n = NULL;
            break;
        }
        cond->a = n;
        n = cond;
    }
    p->depth--;
    return n;
}

/* ---- tuples and targets ---- */

static bool ends_tuple(const struct parser *p, const char *end) {
    const struct jinja_token *t = parse_token(p);
    return t->kind == TK_PRINT_END || t->kind == TK_BLOCK_END || t->kind == TK_RPAREN ||
           (end && token_is_name(t, end));
}

struct node *parse_tuple(struct parser *p, struct tuple_style style) {
    struct node *first = NULL, **tail = &first;
    bool is_tuple = false;
    uint32_t line = parse_token(p)->line;
    if (!parse_enter(p))
        return NULL;
    while (!ends_tuple(p, style.end)) {
        *tail = style.is_target  ? parse_primary(p, true, style.has_attributes)
                : style.is_plain ? parse_or(p)
                                 : parse_expression(p);
        if (!*tail)
            return NULL;
        tail = &(*tail)->next;
        if (!parse_skip(p, TK_COMMA))
            break;
        is_tuple = true;
    }
    p->depth--;
    if (!is_tuple && first)
        return first;
    if (!is_tuple && !style.is_bracketed) {
        parse_unexpected(p);
        return NULL;
    }
    struct node *n = parse_node(p, NODE_TUPLE, line);
    if (n)
        n->first = first;
    return n;
}

/* Whether an expression can be assigned to. */
static bool is_target(const struct node *n) {
    if (n->kind == NODE_NAME || n->kind == NODE_ATTR_TARGET)
        return true;
    if (n->kind != NODE_TUPLE)
        return false;
    for (const struct node *item = n->first; item; item = item->next)
        if (!is_target(item))
            return false;
    return true;
}

struct node *parse_target(struct parser *p, struct tuple_style style) {
    style.is_target = true;
    struct node *n = parse_tuple(p, style);
    if (n && !is_target(n)) {
        parse_fail(p, n->line, "this cannot be assigned to");
        return NULL;
    }
    return n;
}
