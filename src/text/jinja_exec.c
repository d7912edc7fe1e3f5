/* jinja_exec.c - statements: scopes, assignment, loops, macros.
 *
 * A loop's body, a macro, a `with`, and a block whose text is taken have scopes of their own; an
 * `if` has not. What is set inside is not seen outside. */
#include "text/jinja_eval.h"

typedef enum flow exec_fn(struct render *render, const struct node *n);

static enum flow flow_of(bool ok) {
    return ok ? FLOW_ON : FLOW_FAILED;
}

/* ---- scopes ---- */

struct scope *jinja_scope(struct render *render, struct scope *parent) {
    struct scope *scope = jinja_alloc(render, 1, sizeof *scope);
    if (scope)
        scope->parent = parent;
    return scope;
}

bool jinja_bind(struct render *render, uint32_t name, struct value value) {
    struct binding *b = render->scope->bindings;
    uint64_t looked_at = 0;
    for (; b && b->name != name; b = b->next)
        looked_at++;
    if (!jinja_charge(render, 8 + 4 * looked_at))
        return false;
    if (!b) {
        if (!(b = jinja_alloc(render, 1, sizeof *b)))
            return false;
        *b = (struct binding){.next = render->scope->bindings, .name = name};
        render->scope->bindings = b;
    }
    b->value = value;
    return true;
}

/* Opens the scope of a node inside another. */
static bool open_scope(struct render *render, const struct node *n, struct scope *parent) {
    if (!(render->scope = jinja_scope(render, parent)))
        return false;
    for (uint32_t i = 0; i < n->n_hidden; i++)
        if (!jinja_bind(render, n->hidden[i], (struct value){0}))
            return false;
    return true;
}

static bool assign_attribute(struct render *render, const struct node *target, struct value value) {
    struct node name = {.kind = NODE_NAME, .line = target->line, .name = target->name};
    struct value holder, key;
    name.text = STR("the namespace");
    if (!jinja_eval(render, &name, &holder))
        return false;
    if (holder.type != VALUE_NAMESPACE)
        return jinja_fail(render, "cannot assign attribute on non-namespace object");
    return jinja_string(render, target->text, &key) &&
           jinja_dict_set(render, holder.dict, key, value);
}

/* Binds a target: a name, a tuple of targets, or a namespace's attribute. */
static bool assign(struct render *render, const struct node *target, struct value value);

static bool assign_tuple(struct render *render, const struct node *target, struct value value) {
    struct value *items;
    size_t count, expected = 0;
    for (const struct node *t = target->first; t; t = t->next)
        expected++;
    if (!jinja_defined(render, value) || !jinja_iterate(render, value, &items, &count))
        return false;
    if (count != expected)
        return jinja_fail(render, "%s values to unpack (expected %zu, found %zu)",
                          count < expected ? "not enough" : "too many", expected, count);
    size_t i = 0;
    for (const struct node *t = target->first; t; t = t->next)
        if (!assign(render, t, items[i++]))
            return false;
    return true;
}

static bool assign(struct render *render, const struct node *target, struct value value) {
    render->line = target->line;
    if (target->kind == NODE_NAME)
        return jinja_bind(render, target->name, value);
    if (target->kind == NODE_ATTR_TARGET)
        return assign_attribute(render, target, value);
    return assign_tuple(render, target, value);
}

/* ---- text ---- */

static enum flow exec_text(struct render *render, const struct node *n) {
    return flow_of(jinja_put(render, n->text));
}

static enum flow exec_print(struct render *render, const struct node *n) {
    struct value value;
    if (!jinja_eval(render, n->a, &value))
        return FLOW_FAILED;
    render->line = n->line;
    return flow_of(jinja_put_str(render, value));
}

/* Runs a node's statements in a scope of their own and takes what they print. After a break or
 * continue the text is lost. */
static enum flow capture(struct render *render, const struct node *n, struct value *out) {
    struct scope *outside = render->scope;
    size_t mark = render->out->len;
    if (!open_scope(render, n, outside))
        return FLOW_FAILED;
    enum flow flow = jinja_exec(render, n->first);
    render->scope = outside;
    if (flow == FLOW_ON)
        return flow_of(jinja_take(render, mark, out));
    render->out->len = mark;
    return flow;
}

static enum flow exec_set_block(struct render *render, const struct node *n) {
    struct value text;
    enum flow flow = capture(render, n, &text);
    if (flow != FLOW_ON)
        return flow;
    return flow_of((!n->b || jinja_eval_filters(render, n->b, text, &text)) &&
                   assign(render, n->a, text));
}

static enum flow exec_filter_block(struct render *render, const struct node *n) {
    struct value text;
    enum flow flow = capture(render, n, &text);
    if (flow != FLOW_ON)
        return flow;
    if (!jinja_eval_filters(render, n->b, text, &text))
        return FLOW_FAILED;
    if (text.type != VALUE_STRING)
        return flow_of(
            jinja_fail(render, "a filter block gives '%s', expected a str", jinja_type_name(text)));
    return flow_of(jinja_put(render, text.string->text));
}

static enum flow exec_set(struct render *render, const struct node *n) {
    struct value value;
    return flow_of(jinja_eval(render, n->b, &value) && assign(render, n->a, value));
}

static enum flow exec_if(struct render *render, const struct node *n) {
    for (;;) {
        struct value condition;
        if (!jinja_eval(render, n->a, &condition))
            return FLOW_FAILED;
        if (jinja_truth(condition))
            return jinja_exec(render, n->first);
        if (!n->other)
            return FLOW_ON;
        if (!n->other->is_elif)
            return jinja_exec(render, n->other);
        n = n->other;
    }
}

/* The values are evaluated outside of the scope that they are bound in. */
static enum flow exec_with(struct render *render, const struct node *n) {
    struct scope *outside = render->scope;
    bool ok = open_scope(render, n, outside);
    struct scope *inside = render->scope;
    render->scope = outside;
    for (const struct node *t = n->other; ok && t; t = t->next->next) {
        struct value value;
        ok = jinja_eval(render, t->next, &value);
        render->scope = inside;
        ok = ok && assign(render, t, value);
        render->scope = outside;
    }
    if (!ok)
        return FLOW_FAILED;
    render->scope = inside;
    enum flow flow = jinja_exec(render, n->first);
    render->scope = outside;
    return flow;
}

static enum flow exec_generation(struct render *render, const struct node *n) {
    struct value text;
    enum flow flow = capture(render, n, &text);
    return flow == FLOW_ON ? flow_of(jinja_put_str(render, text)) : flow;
}

static enum flow exec_jump(struct render *render, const struct node *n) {
    (void)render;
    return n->kind == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
}

/* ---- loops ---- */

/* The next item of the source that fulfils the loop's condition. */
static bool loop_pull(struct render *render, struct loop *loop, struct value *out) {
    struct seq *source = loop->source;
    *out = (struct value){0};
    while (source->next < source->count) {
        if (!jinja_work(render, 0))
            return false;
        struct value item = source->items[source->next++], condition = value_bool(true);
        if (loop->is_filtered) {
            struct scope *inside = render->scope;
            if (!(render->scope = jinja_scope(render, loop->scope)))
                return false;
            bool ok = assign(render, loop->node->a, item) &&
                      jinja_eval(render, loop->node->c, &condition);
            render->scope = inside;
            if (!ok)
                return false;
        }
        if (jinja_truth(condition))
            return *out = item, true;
    }
    return true;
}

/* The next item; *has_item is false at the end. */
static bool loop_next(struct render *render, struct loop *loop, bool *has_item) {
    struct value item = loop->ahead;
    loop->ahead = (struct value){0};
    if (item.type == VALUE_MISSING && !loop_pull(render, loop, &item))
        return false;
    *has_item = item.type != VALUE_MISSING;
    if (*has_item) {
        loop->index0++;
        loop->previous = loop->current;
        loop->current = item;
    }
    return true;
}

static bool loop_peek(struct render *render, struct loop *loop) {
    return loop->ahead.type != VALUE_MISSING || loop_pull(render, loop, &loop->ahead);
}

/* How many items there are in all. Evaluates the condition for the remaining ones, once. */
static bool loop_length(struct render *render, struct loop *loop, int64_t *out) {
    if (loop->is_filtered) {
        struct value list, item;
        size_t capacity = 0;
        if (!jinja_seq(render, SEQ_GENERATOR, 0, &list))
            return false;
        do {
            if (!loop_pull(render, loop, &item) ||
                (item.type != VALUE_MISSING && !jinja_push(render, list.seq, &capacity, item)))
                return false;
        } while (item.type != VALUE_MISSING);
        loop->source = list.seq;
        loop->is_filtered = false;
    }
    *out = (int64_t)(loop->index0 + 1 + (loop->ahead.type != VALUE_MISSING) +
                     (loop->source->count - loop->source->next));
    return true;
}

static bool loop_neighbour(struct render *render, struct value item, const char *which,
                           struct value *out) {
    *out = item;
    return item.type != VALUE_MISSING || jinja_undefined(render, out, "there is no %s item", which);
}

static bool loop_cycle(struct render *render, const struct call *call, struct value *out) {
    if (call->all->count == 0)
        return jinja_fail(render, "no items for cycling given");
    *out = call->all->at[call->self.loop->index0 % call->all->count];
    return true;
}

static bool loop_changed(struct render *render, const struct call *call, struct value *out) {
    struct value now;
    bool same = false;
    if (!jinja_seq(render, SEQ_TUPLE, call->all->count, &now))
        return false;
    if (call->all->count)
        memcpy(now.seq->items, call->all->at, call->all->count * sizeof *call->all->at);
    if (!jinja_equal(render, call->self.loop->changed, now, &same))
        return false;
    call->self.loop->changed = now;
    *out = value_bool(!same);
    return true;
}

static const struct builtin loop_methods[] = {{"cycle", "*", loop_cycle, PAYS_ITSELF},
                                              {"changed", "*", loop_changed, PAYS_ITSELF}};

static bool loop_method(struct render *render, struct loop *loop, struct str name, bool *found,
                        struct value *out) {
    *found = false;
    for (size_t i = 0; i < sizeof loop_methods / sizeof *loop_methods; i++)
        if (str_is(name, loop_methods[i].name)) {
            struct method *method = jinja_alloc(render, 1, sizeof *method);
            if (!method)
                return false;
            method->self = (struct value){.type = VALUE_LOOP, .loop = loop};
            method->builtin = &loop_methods[i];
            *out = (struct value){.type = VALUE_METHOD, .method = method};
            *found = true;
        }
    return true;
}

bool jinja_loop_attribute(struct render *render, struct loop *loop, struct str name, bool *found,
                          struct value *out) {
    int64_t index0 = (int64_t)loop->index0, length;
    *found = true;
    if (str_is(name, "index"))
        return *out = value_int(index0 + 1), true;
    if (str_is(name, "index0"))
        return *out = value_int(index0), true;
    if (str_is(name, "first"))
        return *out = value_bool(index0 == 0), true;
    if (str_is(name, "depth") || str_is(name, "depth0"))
        return *out = value_int(str_is(name, "depth")), true;
    if (str_is(name, "previtem"))
        return loop_neighbour(render, loop->previous, "previous", out);
    if (str_is(name, "nextitem"))
        return loop_peek(render, loop) && loop_neighbour(render, loop->ahead, "next", out);
    if (str_is(name, "last")) {
        if (!loop_peek(render, loop))
            return false;
        *out = value_bool(loop->ahead.type == VALUE_MISSING);
        return true;
    }
    bool is_rev = str_is(name, "revindex"), is_rev0 = str_is(name, "revindex0");
    if (!is_rev && !is_rev0 && !str_is(name, "length"))
        return loop_method(render, loop, name, found, out);
    if (!loop_length(render, loop, &length))
        return false;
    *out = value_int(is_rev ? length - index0 : is_rev0 ? length - index0 - 1 : length);
    return true;
}

/* A source of its own for the loop; a generator stays itself, so that others see it used up. */
static bool loop_source(struct render *render, struct value v, struct seq **out) {
    struct value *items, copy;
    size_t count;
    if (v.type == VALUE_SEQ && v.seq->kind == SEQ_GENERATOR)
        return *out = v.seq, true;
    if (!jinja_iterate(render, v, &items, &count) || !jinja_seq(render, SEQ_GENERATOR, 0, &copy))
        return false;
    copy.seq->items = items;
    copy.seq->count = count;
    *out = copy.seq;
    return true;
}

static enum flow exec_for_body(struct render *render, struct loop *loop, bool *has_finished) {
    struct value self = {.type = VALUE_LOOP, .loop = loop};
    enum flow flow = FLOW_ON;
    for (bool has_item; flow != FLOW_BREAK;) {
        render->line = loop->node->line;
        if (!loop_next(render, loop, &has_item))
            return FLOW_FAILED;
        if (!has_item)
            break;
        if (!open_scope(render, loop->node, loop->scope) || !jinja_bind(render, NAME_LOOP, self) ||
            !assign(render, loop->node->a, loop->current))
            return FLOW_FAILED;
        flow = jinja_exec(render, loop->node->first);
        if (flow == FLOW_FAILED)
            return flow;
        *has_finished |= flow == FLOW_ON;
    }
    return FLOW_ON;
}

static enum flow exec_for(struct render *render, const struct node *n) {
    struct value iterable;
    struct loop *loop = jinja_alloc(render, 1, sizeof *loop);
    if (!loop || !jinja_eval(render, n->b, &iterable))
        return FLOW_FAILED;
    *loop = (struct loop){
        .node = n, .scope = render->scope, .is_filtered = n->c != NULL, .index0 = SIZE_MAX};
    render->line = n->line;
    if (!loop_source(render, iterable, &loop->source))
        return FLOW_FAILED;
    bool has_finished = false;
    enum flow flow = exec_for_body(render, loop, &has_finished);
    render->scope = loop->scope;
    /* As in Jinja2, `else` runs if no round of the loop was completed. */
    return flow == FLOW_ON && !has_finished ? jinja_exec(render, n->other) : flow;
}

/* ---- macros ---- */

static bool make_macro(struct render *render, const struct node *n, struct value *out) {
    struct macro *macro = jinja_alloc(render, 1, sizeof *macro);
    if (!macro)
        return false;
    *macro = (struct macro){.node = n, .scope = render->scope};
    *out = (struct value){.type = VALUE_MACRO, .macro = macro};
    return true;
}

static enum flow exec_macro(struct render *render, const struct node *n) {
    struct value macro;
    return flow_of(make_macro(render, n, &macro) && jinja_bind(render, n->name, macro));
}

static enum flow exec_call_block(struct render *render, const struct node *n) {
    struct value callee, caller, text;
    struct args args;
    if (!make_macro(render, n, &caller) || !jinja_eval(render, n->a->a, &callee) ||
        !jinja_eval_args(render, n->a, &args))
        return FLOW_FAILED;
    struct named *named = jinja_alloc(render, args.n_named + 1, sizeof *named);
    if (!named)
        return FLOW_FAILED;
    if (args.n_named)
        memcpy(named, args.named, args.n_named * sizeof *named);
    named[args.n_named++] = (struct named){STR("caller"), caller};
    args.named = named;
    return flow_of(jinja_call(render, callee, &args, &text) && jinja_put_str(render, text));
}

/* The argument of that name, NULL in *out when there is none. */
static bool find_named(struct render *render, const struct args *args, struct str name,
                       const struct value **out) {
    *out = NULL;
    for (size_t i = 0; i < args->n_named && !*out; i++)
        if (str_equal(args->named[i].name, name))
            *out = &args->named[i].value;
    return jinja_charge(render, JINJA_CHAR * args->n_named);
}

/* Binds one parameter: given by place, by name, or its default, which sees those before it. */
static bool bind_parameter(struct render *render, const struct macro *macro, uint32_t i,
                           const struct args *args, size_t *used) {
    const struct parameter *p = &macro->node->parameters[i];
    const struct value *named;
    struct value value;
    if (!find_named(render, args, p->text, &named))
        return false;
    if (i < args->count) {
        if (named)
            return jinja_fail(render, "macro '%.*s' got multiple values for argument '%.*s'",
                              STR_ARG(macro->node->text), STR_ARG(p->text));
        value = args->at[i];
    } else if (named) {
        value = *named;
        ++*used;
    } else if (p->fallback) {
        if (!jinja_eval(render, p->fallback, &value))
            return false;
    } else if (!jinja_undefined(render, &value, "parameter '%.*s' was not provided",
                                STR_ARG(p->text))) {
        return false;
    }
    return jinja_bind(render, p->name, value);
}

static bool bind_caller(struct render *render, const struct macro *macro, const struct args *args,
                        size_t *used) {
    struct value value;
    const struct value *named;
    if (!find_named(render, args, STR("caller"), &named))
        return false;
    for (uint32_t i = 0; i < macro->node->n_parameters; i++)
        if (macro->node->parameters[i].name == NAME_CALLER)
            return true;
    if (!macro->node->takes_caller)
        return true;
    if (named)
        ++*used;
    else if (!jinja_undefined(render, &value, "No caller defined"))
        return false;
    return jinja_bind(render, NAME_CALLER, named ? *named : value);
}

/* What is left over goes to varargs and kwargs where the macro uses them. */
static bool bind_rest(struct render *render, const struct node *n, const struct args *args,
                      size_t used) {
    struct value rest, named;
    size_t taken = args->count < n->n_parameters ? args->count : n->n_parameters;
    if (!n->takes_rest && args->count > taken)
        return jinja_fail(render, "macro '%.*s' takes not more than %u argument(s)",
                          STR_ARG(n->text), n->n_parameters);
    if (!n->takes_named && args->n_named > used)
        return jinja_fail(render, "macro '%.*s' takes no keyword argument '%.*s'", STR_ARG(n->text),
                          STR_ARG(args->named[args->n_named - 1].name));
    if (n->takes_rest) {
        if (!jinja_seq(render, SEQ_TUPLE, args->count - taken, &rest))
            return false;
        for (size_t i = taken; i < args->count; i++)
            rest.seq->items[i - taken] = args->at[i];
        if (!jinja_bind(render, NAME_VARARGS, rest))
            return false;
    }
    if (!n->takes_named)
        return true;
    if (!jinja_dict(render, VALUE_DICT, &named))
        return false;
    for (size_t i = 0; i < args->n_named; i++) {
        bool is_parameter = n->takes_caller && str_is(args->named[i].name, "caller");
        for (uint32_t k = 0; k < n->n_parameters; k++)
            is_parameter |= str_equal(n->parameters[k].text, args->named[i].name);
        struct value key;
        if (!jinja_charge(render, JINJA_CHAR * n->n_parameters))
            return false;
        if (!is_parameter && (!jinja_string(render, args->named[i].name, &key) ||
                              !jinja_dict_set(render, named.dict, key, args->named[i].value)))
            return false;
    }
    return jinja_bind(render, NAME_KWARGS, named);
}

static bool call_in_scope(struct render *render, const struct macro *macro, const struct args *args,
                          struct value *out) {
    size_t used = 0, mark = render->out->len;
    for (uint32_t i = 0; i < macro->node->n_parameters; i++)
        if (!bind_parameter(render, macro, i, args, &used))
            return false;
    return bind_caller(render, macro, args, &used) && bind_rest(render, macro->node, args, used) &&
           jinja_exec(render, macro->node->first) == FLOW_ON && jinja_take(render, mark, out);
}

bool jinja_call_macro(struct render *render, const struct macro *macro, const struct args *args,
                      struct value *out) {
    struct scope *caller = render->scope;
    if (!jinja_enter(render))
        return false;
    bool ok =
        open_scope(render, macro->node, macro->scope) && call_in_scope(render, macro, args, out);
    render->scope = caller;
    jinja_leave(render);
    return ok;
}

/* ---- */

static exec_fn *const executors[] = {
    [NODE_TEXT] = exec_text,
    [NODE_PRINT] = exec_print,
    [NODE_FOR] = exec_for,
    [NODE_IF] = exec_if,
    [NODE_SET] = exec_set,
    [NODE_SET_BLOCK] = exec_set_block,
    [NODE_WITH] = exec_with,
    [NODE_MACRO] = exec_macro,
    [NODE_CALL_BLOCK] = exec_call_block,
    [NODE_GENERATION] = exec_generation,
    [NODE_FILTER_BLOCK] = exec_filter_block,
    [NODE_BREAK] = exec_jump,
    [NODE_CONTINUE] = exec_jump,
};

enum flow jinja_exec(struct render *render, const struct node *list) {
    enum flow flow = FLOW_ON;
    if (!jinja_enter(render))
        return FLOW_FAILED;
    for (const struct node *n = list; n && flow == FLOW_ON; n = n->next) {
        render->line = n->line;
        flow = jinja_work(render, 0) ? executors[n->kind](render, n) : FLOW_FAILED;
    }
    jinja_leave(render);
    return flow;
}
