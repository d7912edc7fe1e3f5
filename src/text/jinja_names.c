/* jinja_names.c - which names each scope hides from the start.
 *
 * In: a parsed template.  Out: node->hidden for every node that opens a scope. Jinja2 compiles a
 * scope's names to Python's local variables, and that is visible: if the first use of a name in a
 * scope sets it, not inside an `if`, and no outer scope has the name, then a loop, macro or block
 * inside finds it undefined until it is set, even if the template was given a variable of that
 * name.
 *
 * A scope is visited twice: first its own statements, to collect its names, then the scopes inside
 * it. */
#include "text/jinja_parse.h"

enum { MAX_EXPRESSION = 600 }; /* the evaluator goes no deeper */

/* A name of a scope. */
struct note {
    struct note *next;
    uint32_t name;
    bool is_hidden;
};

struct names {
    struct parser *parser;
    uint32_t *known_in; /* by name: the last scope that had it */
    uint32_t *outside;  /* by name: how many outer scopes have it */
    uint32_t scope;     /* the number of the current one */
    uint32_t n_scopes;
    unsigned depth;
    struct note *notes; /* of the current scope */
};

static bool add_note(struct names *c, uint32_t name, bool is_hidden) {
    struct note *note = arena_alloc(&c->parser->jinja->arena, sizeof *note);
    if (!note)
        return parse_no_memory(c->parser);
    *note = (struct note){.next = c->notes, .name = name, .is_hidden = is_hidden};
    c->notes = note;
    c->known_in[name] = c->scope;
    return true;
}

static bool note_load(struct names *c, uint32_t name) {
    return c->known_in[name] == c->scope || c->outside[name] > 0 || add_note(c, name, false);
}

static bool note_store(struct names *c, uint32_t name, bool in_if) {
    return c->known_in[name] == c->scope || add_note(c, name, !in_if && c->outside[name] == 0);
}

static bool note_parameter(struct names *c, uint32_t name) {
    return c->known_in[name] == c->scope || add_note(c, name, false);
}

static bool visit_expression(struct names *c, const struct node *n) {
    if (!n)
        return true;
    if (n->kind == NODE_NAME)
        return note_load(c, n->name);
    if (c->depth >= MAX_EXPRESSION)
        return parse_fail(c->parser, n->line, "an expression is nested deeper than %d levels",
                          MAX_EXPRESSION);
    c->depth++;
    bool ok = visit_expression(c, n->a) && visit_expression(c, n->b) && visit_expression(c, n->c);
    for (const struct node *item = n->first; ok && item; item = item->next)
        ok = visit_expression(c, item);
    for (uint32_t i = 0; ok && i < n->n_arguments; i++)
        ok = visit_expression(c, n->arguments[i].value);
    c->depth--;
    return ok;
}

static bool visit_target(struct names *c, const struct node *t, bool is_parameter, bool in_if) {
    if (t->kind == NODE_ATTR_TARGET)
        return note_load(c, t->name);
    if (t->kind == NODE_NAME)
        return is_parameter ? note_parameter(c, t->name) : note_store(c, t->name, in_if);
    bool ok = true;
    for (const struct node *item = t->first; ok && item; item = item->next)
        ok = visit_target(c, item, is_parameter, in_if);
    return ok;
}

static bool visit_statements(struct names *c, const struct node *list, bool in_if);

static bool visit_if(struct names *c, const struct node *n) {
    for (; n; n = n->other) {
        if (!visit_expression(c, n->a) || !visit_statements(c, n->first, true))
            return false;
        if (n->other && !n->other->is_elif)
            return visit_statements(c, n->other, true);
    }
    return true;
}

/* What a statement does in the scope it stands in; not what it does in its own. */
static bool visit_statement(struct names *c, const struct node *n, bool in_if) {
    bool ok = true;
    switch (n->kind) {
    case NODE_PRINT:
    case NODE_CALL_BLOCK:
        return visit_expression(c, n->a);
    case NODE_FOR:
    case NODE_FILTER_BLOCK:
        return visit_expression(c, n->b);
    case NODE_IF:
        return visit_if(c, n);
    case NODE_SET:
        return visit_expression(c, n->b) && visit_target(c, n->a, false, in_if);
    case NODE_SET_BLOCK:
        return visit_target(c, n->a, false, in_if);
    case NODE_WITH:
        for (const struct node *t = n->other; ok && t; t = t->next->next)
            ok = visit_expression(c, t->next);
        return ok;
    case NODE_MACRO:
        return note_store(c, n->name, in_if);
    default:
        return true;
    }
}

static bool visit_statements(struct names *c, const struct node *list, bool in_if) {
    for (const struct node *n = list; n; n = n->next)
        if (!visit_statement(c, n, in_if))
            return false;
    return true;
}

/* What a scope does itself: first its parameters, then its body. */
static bool visit_scope(struct names *c, const struct node *n) {
    bool ok = true;
    if (n->kind == NODE_FOR)
        ok = note_parameter(c, NAME_LOOP) && visit_target(c, n->a, true, false);
    for (const struct node *t = n->kind == NODE_WITH ? n->other : NULL; ok && t; t = t->next->next)
        ok = visit_target(c, t, true, false);
    for (uint32_t i = 0; ok && i < n->n_parameters; i++)
        ok = note_parameter(c, n->parameters[i].name);
    for (uint32_t i = 0; ok && i < n->n_parameters; i++)
        ok = visit_expression(c, n->parameters[i].fallback);
    if (ok && (n->kind == NODE_MACRO || n->kind == NODE_CALL_BLOCK))
        ok = note_parameter(c, NAME_CALLER) && note_parameter(c, NAME_VARARGS) &&
             note_parameter(c, NAME_KWARGS);
    return ok && visit_statements(c, n->first, false) &&
           (n->kind != NODE_FILTER_BLOCK || visit_expression(c, n->b));
}

static bool opens_scope(const struct node *n) {
    return n->kind == NODE_FOR || n->kind == NODE_WITH || n->kind == NODE_SET_BLOCK ||
           n->kind == NODE_FILTER_BLOCK || n->kind == NODE_MACRO || n->kind == NODE_CALL_BLOCK ||
           n->kind == NODE_GENERATION;
}

static bool find_hidden(struct names *c, struct node *n);

/* The scopes inside a list of statements. */
static bool find_inside(struct names *c, struct node *list) {
    bool ok = true;
    for (struct node *n = list; ok && n; n = n->next) {
        if (opens_scope(n))
            ok = find_hidden(c, n);
        if (ok && n->kind == NODE_FOR)
            ok = find_inside(c, n->other);
        for (struct node *branch = n; ok && branch && n->kind == NODE_IF;) {
            ok = find_inside(c, branch->first);
            struct node *other = branch->other;
            branch = other && other->is_elif ? other : NULL;
            if (ok && !branch)
                ok = find_inside(c, other);
        }
    }
    return ok;
}

static bool store_hidden(struct names *c, const struct note *notes, struct node *n) {
    uint32_t count = 0;
    for (const struct note *note = notes; note; note = note->next)
        count += note->is_hidden;
    if (count == 0)
        return true;
    n->hidden = arena_array(&c->parser->jinja->arena, count, sizeof *n->hidden);
    if (!n->hidden)
        return parse_no_memory(c->parser);
    for (const struct note *note = notes; note; note = note->next)
        if (note->is_hidden)
            n->hidden[n->n_hidden++] = note->name;
    return true;
}

static bool find_hidden(struct names *c, struct node *n) {
    struct note *outer_notes = c->notes;
    c->notes = NULL;
    c->scope = ++c->n_scopes;
    bool ok = visit_scope(c, n);
    struct note *notes = c->notes;
    ok = ok && store_hidden(c, notes, n);
    for (struct note *note = notes; ok && note; note = note->next)
        c->outside[note->name]++;
    ok = ok && find_inside(c, n->first);
    for (struct note *note = notes; ok && note; note = note->next)
        c->outside[note->name]--;
    c->notes = outer_notes;
    return ok;
}

bool parse_hidden(struct parser *p, struct node *root) {
    size_t count = p->jinja->names.count;
    struct names c = {.parser = p};
    c.known_in = arena_array(&p->jinja->arena, count, sizeof *c.known_in);
    c.outside = arena_array(&p->jinja->arena, count, sizeof *c.outside);
    if (!c.known_in || !c.outside)
        return parse_no_memory(p);
    return find_hidden(&c, root);
}
