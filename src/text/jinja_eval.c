/* jinja_eval.c - expressions: one function for each kind of node. */
#include "text/jinja_eval.h"

typedef bool eval_fn(struct render *render, const struct node *n, struct value *out);

static bool eval_const(struct render *render, const struct node *n, struct value *out) {
    (void)render;
    *out = n->value;
    return true;
}

static bool eval_name(struct render *render, const struct node *n, struct value *out) {
    const struct binding *found = NULL;
    uint64_t looked_at = 0;
    for (const struct scope *s = render->scope; s && !found; s = s->parent, looked_at++)
        for (found = s->bindings; found && found->name != n->name; found = found->next)
            looked_at++;
    if (!jinja_charge(render, 4 * looked_at))
        return false;
    const struct builtin *global = found ? NULL : jinja_global_find(n->text);
    if (global)
        *out = (struct value){.type = VALUE_FUNCTION, .function = global};
    else if (found && found->value.type != VALUE_MISSING) /* missing: hidden */
        *out = found->value;
    else
        return jinja_undefined(render, out, "'%.*s' is undefined", STR_ARG(n->text));
    return true;
}

static bool eval_items(struct render *render, const struct node *n, struct value *out) {
    size_t capacity = 0;
    if (!jinja_seq(render, n->kind == NODE_LIST ? SEQ_LIST : SEQ_TUPLE, 0, out))
        return false;
    for (const struct node *item = n->first; item; item = item->next) {
        struct value value;
        if (!jinja_eval(render, item, &value) || !jinja_push(render, out->seq, &capacity, value))
            return false;
    }
    return true;
}

static bool eval_dict(struct render *render, const struct node *n, struct value *out) {
    if (!jinja_dict(render, VALUE_DICT, out))
        return false;
    for (const struct node *key = n->first; key; key = key->next->next) {
        struct value k, v;
        if (!jinja_eval(render, key, &k) || !jinja_eval(render, key->next, &v))
            return false;
        render->line = n->line;
        if (!jinja_dict_set(render, out->dict, k, v))
            return false;
    }
    return true;
}

static bool eval_cond(struct render *render, const struct node *n, struct value *out) {
    struct value condition;
    if (!jinja_eval(render, n->b, &condition))
        return false;
    if (jinja_truth(condition))
        return jinja_eval(render, n->a, out);
    if (n->c)
        return jinja_eval(render, n->c, out);
    return jinja_undefined(render, out,
                           "the inline if-expression on line %u evaluated to false and no else "
                           "section was defined.",
                           n->line);
}

static bool eval_or(struct render *render, const struct node *n, struct value *out) {
    return jinja_eval(render, n->a, out) && (jinja_truth(*out) || jinja_eval(render, n->b, out));
}

static bool eval_and(struct render *render, const struct node *n, struct value *out) {
    return jinja_eval(render, n->a, out) && (!jinja_truth(*out) || jinja_eval(render, n->b, out));
}

static bool eval_not(struct render *render, const struct node *n, struct value *out) {
    struct value operand;
    if (!jinja_eval(render, n->a, &operand))
        return false;
    *out = value_bool(!jinja_truth(operand));
    return true;
}

static bool eval_sign(struct render *render, const struct node *n, struct value *out) {
    struct value operand;
    int64_t integer;
    if (!jinja_eval(render, n->a, &operand))
        return false;
    render->line = n->line;
    if (!jinja_defined(render, operand))
        return false;
    if (!jinja_is_number(operand))
        return jinja_fail(render, "bad operand type for a sign: '%s'", jinja_type_name(operand));
    bool is_negative = n->kind == NODE_NEG;
    if (!jinja_is_int(operand, &integer))
        *out = value_float(is_negative ? -operand.real : operand.real);
    else if (is_negative && __builtin_sub_overflow(0, integer, &integer))
        return jinja_fail(render, "a number does not fit in 64 bits");
    else
        *out = value_int(integer);
    return true;
}

static bool eval_binary(struct render *render, const struct node *n, struct value *out) {
    struct value a, b;
    if (!jinja_eval(render, n->a, &a) || !jinja_eval(render, n->b, &b))
        return false;
    render->line = n->line;
    return jinja_binary(render, n->op, a, b, out);
}

static bool eval_concat(struct render *render, const struct node *n, struct value *out) {
    struct value parts, text;
    size_t capacity = 0, mark = render->out->len;
    if (!jinja_seq(render, SEQ_LIST, 0, &parts))
        return false;
    for (const struct node *part = n->first; part; part = part->next)
        if (!jinja_eval(render, part, &text) || !jinja_push(render, parts.seq, &capacity, text))
            return false;
    render->line = n->line;
    for (size_t i = 0; i < parts.seq->count; i++)
        if (!jinja_put_str(render, parts.seq->items[i]))
            return false;
    return jinja_take(render, mark, out);
}

static bool compare(struct render *render, enum token_kind op, struct value a, struct value b,
                    bool *out) {
    if (op == TK_IN || op == TK_NOT_IN) {
        if (!jinja_contains(render, a, b, out))
            return false;
        *out ^= op == TK_NOT_IN;
        return true;
    }
    if (op != TK_EQ && op != TK_NE)
        return jinja_less(render, a, b, op, out);
    if (!jinja_equal(render, a, b, out))
        return false;
    *out ^= op == TK_NE;
    return true;
}

static bool eval_compare(struct render *render, const struct node *n, struct value *out) {
    struct value left, right;
    bool holds = true;
    if (!jinja_eval(render, n->a, &left))
        return false;
    for (const struct node *o = n->first; o && holds; o = o->next) {
        if (!jinja_eval(render, o->a, &right))
            return false;
        render->line = n->line;
        if (!compare(render, o->op, left, right, &holds))
            return false;
        left = right;
    }
    *out = value_bool(holds);
    return true;
}

static bool eval_attr(struct render *render, const struct node *n, struct value *out) {
    struct value operand;
    if (!jinja_eval(render, n->a, &operand))
        return false;
    render->line = n->line;
    return jinja_attribute(render, operand, n->text, out);
}

static bool eval_item(struct render *render, const struct node *n, struct value *out) {
    struct value operand, key;
    if (!jinja_eval(render, n->a, &operand) || !jinja_eval(render, n->b, &key))
        return false;
    render->line = n->line;
    return jinja_item(render, operand, key, out);
}

static bool eval_slice(struct render *render, const struct node *n, struct value *out) {
    struct value operand, bounds[3] = {{0}};
    const struct node *const nodes[3] = {n->first, n->b, n->c};
    if (!jinja_eval(render, n->a, &operand))
        return false;
    for (int i = 0; i < 3; i++)
        if (nodes[i] && !jinja_eval(render, nodes[i], &bounds[i]))
            return false;
    render->line = n->line;
    return jinja_slice(render, operand, bounds, out);
}

/* ---- calls ---- */

static bool push_named(struct render *render, struct args *args, struct str name,
                       struct value value) {
    for (size_t i = 0; i < args->n_named; i++)
        if (str_equal(args->named[i].name, name))
            return jinja_fail(render, "multiple values for the argument '%.*s'", STR_ARG(name));
    struct named *grown = jinja_alloc(render, args->n_named + 1, sizeof *grown);
    if (!grown || !jinja_charge(render, JINJA_CHAR * args->n_named))
        return false;
    if (args->n_named)
        memcpy(grown, args->named, args->n_named * sizeof *grown);
    grown[args->n_named++] = (struct named){name, value};
    args->named = grown;
    return true;
}

static bool spread_dict(struct render *render, struct args *args, struct value value) {
    if (value.type != VALUE_DICT)
        return jinja_defined(render, value) &&
               jinja_fail(render, "the argument after ** must be a mapping, not %s",
                          jinja_type_name(value));
    for (size_t i = 0; i < value.dict->count; i++) {
        struct pair pair = value.dict->pairs[i];
        if (pair.key.type != VALUE_STRING)
            return jinja_fail(render, "keywords must be strings");
        if (!push_named(render, args, pair.key.string->text, pair.value))
            return false;
    }
    return true;
}

bool jinja_eval_args(struct render *render, const struct node *n, struct args *out) {
    struct value list;
    size_t capacity = 0;
    *out = (struct args){0};
    if (!jinja_seq(render, SEQ_LIST, 0, &list))
        return false;
    for (uint32_t i = 0; i < n->n_arguments; i++) {
        const struct argument *a = &n->arguments[i];
        struct value value, *items = &value;
        size_t count = 1;
        if (!jinja_eval(render, a->value, &value))
            return false;
        render->line = n->line;
        bool is_named = a->is_spread_dict || a->name.len > 0;
        if (is_named && !(a->is_spread_dict ? spread_dict(render, out, value)
                                            : push_named(render, out, a->name, value)))
            return false;
        if (a->is_spread && !jinja_iterate(render, value, &items, &count))
            return false;
        for (size_t k = 0; k < count && !is_named; k++)
            if (!jinja_push(render, list.seq, &capacity, items[k]))
                return false;
    }
    out->at = list.seq->items;
    out->count = list.seq->count;
    return true;
}

static bool eval_call(struct render *render, const struct node *n, struct value *out) {
    struct value callee;
    struct args args;
    if (!jinja_eval(render, n->a, &callee) || !jinja_eval_args(render, n, &args))
        return false;
    render->line = n->line;
    return jinja_call(render, callee, &args, out);
}

bool jinja_call(struct render *render, struct value callee, const struct args *args,
                struct value *out) {
    switch (callee.type) {
    case VALUE_MACRO:
        return jinja_call_macro(render, callee.macro, args, out);
    case VALUE_FUNCTION:
        return jinja_call_builtin(render, callee.function, (struct value){0}, args, out);
    case VALUE_METHOD:
        return jinja_call_builtin(render, callee.method->builtin, callee.method->self, args, out);
    default:
        return jinja_defined(render, callee) &&
               jinja_fail(render, "'%s' object is not callable", jinja_type_name(callee));
    }
}

static bool bad_argument(struct render *render, const struct builtin *b, const char *what,
                         struct str name) {
    return jinja_fail(render, "%s(): %s '%.*s'", b->name, what, STR_ARG(name));
}

/* Takes the next word of a parameter list; false at its end. Sees the '/' that begins those that
 * may be left out. */
static bool next_parameter(struct str *list, struct str *name, bool *is_optional) {
    for (; list->len > 0 && (list->at[0] == ' ' || list->at[0] == '/'); *list = str_skip(*list, 1))
        *is_optional |= list->at[0] == '/';
    const char *space = memchr(list->at, ' ', list->len);
    *name = (struct str){list->at, space ? (size_t)(space - list->at) : list->len};
    *list = str_skip(*list, name->len);
    return name->len > 0;
}

static bool bind_arguments(struct render *render, const struct builtin *b, const struct args *args,
                           struct call *call) {
    struct str list = str_of(b->parameters), name;
    size_t i = 0, named_used = 0;
    bool is_optional = false;
    for (; next_parameter(&list, &name, &is_optional); i++) {
        CHECK(i < MAX_PARAMETERS);
        if (i < args->count)
            call->args[i] = args->at[i];
        for (size_t k = 0; k < args->n_named; k++)
            if (str_equal(args->named[k].name, name)) {
                if (i < args->count)
                    return bad_argument(render, b, "multiple values for", name);
                call->args[i] = args->named[k].value;
                named_used++;
            }
        if (!is_optional && call->args[i].type == VALUE_MISSING)
            return bad_argument(render, b, "missing argument", name);
    }
    if (args->count > i)
        return jinja_fail(render, "%s() takes at most %zu arguments, %zu were given", b->name, i,
                          args->count);
    return named_used == args->n_named ||
           bad_argument(render, b, "unexpected argument among", args->named[0].name);
}

bool jinja_call_builtin(struct render *render, const struct builtin *b, struct value self,
                        const struct args *args, struct value *out) {
    struct call call = {.self = self, .all = args};
    if (!jinja_charge_call(render, b, self, args))
        return false;
    if (strcmp(b->parameters, "*") != 0 && !bind_arguments(render, b, args, &call))
        return false;
    if (!jinja_enter(render))
        return false;
    bool ok = b->fn(render, &call, out);
    jinja_leave(render);
    return ok;
}

bool jinja_text_arg(struct render *render, struct value v, struct str *out) {
    if (v.type != VALUE_STRING)
        return jinja_defined(render, v) &&
               jinja_fail(render, "an argument is '%s', expected a str", jinja_type_name(v));
    *out = v.string->text;
    return true;
}

bool jinja_int_arg(struct render *render, struct value v, int64_t fallback, int64_t *out) {
    *out = fallback;
    if (v.type == VALUE_MISSING || jinja_is_int(v, out))
        return true;
    return jinja_defined(render, v) &&
           jinja_fail(render, "an argument is '%s', expected an int", jinja_type_name(v));
}

static bool apply_filter(struct render *render, const struct node *n, struct value operand,
                         struct value *out) {
    struct args args;
    if (!jinja_eval_args(render, n, &args))
        return false;
    render->line = n->line;
    const struct builtin *filter = jinja_filter_find(n->text);
    if (!filter)
        return jinja_fail(render, "no filter named '%.*s'", STR_ARG(n->text));
    return jinja_call_builtin(render, filter, operand, &args, out);
}

static bool eval_filter(struct render *render, const struct node *n, struct value *out) {
    struct value operand;
    return jinja_eval(render, n->a, &operand) && apply_filter(render, n, operand, out);
}

bool jinja_eval_filters(struct render *render, const struct node *n, struct value text,
                        struct value *out) {
    struct value operand = text;
    if (!jinja_enter(render))
        return false;
    bool ok = (!n->a || jinja_eval_filters(render, n->a, text, &operand)) &&
              apply_filter(render, n, operand, out);
    jinja_leave(render);
    return ok;
}

static bool eval_test(struct render *render, const struct node *n, struct value *out) {
    struct value operand;
    struct args args;
    if (!jinja_eval(render, n->a, &operand) || !jinja_eval_args(render, n, &args))
        return false;
    render->line = n->line;
    const struct builtin *test = jinja_test_find(n->text);
    if (!test)
        return jinja_fail(render, "no test named '%.*s'", STR_ARG(n->text));
    return jinja_call_builtin(render, test, operand, &args, out);
}

static eval_fn *const evaluators[] = {
    [NODE_CONST] = eval_const,   [NODE_NAME] = eval_name,       [NODE_LIST] = eval_items,
    [NODE_TUPLE] = eval_items,   [NODE_DICT] = eval_dict,       [NODE_COND] = eval_cond,
    [NODE_OR] = eval_or,         [NODE_AND] = eval_and,         [NODE_NOT] = eval_not,
    [NODE_NEG] = eval_sign,      [NODE_POS] = eval_sign,        [NODE_BINARY] = eval_binary,
    [NODE_CONCAT] = eval_concat, [NODE_COMPARE] = eval_compare, [NODE_ATTR] = eval_attr,
    [NODE_ITEM] = eval_item,     [NODE_SLICE] = eval_slice,     [NODE_CALL] = eval_call,
    [NODE_FILTER] = eval_filter, [NODE_TEST] = eval_test,
};

bool jinja_eval(struct render *render, const struct node *n, struct value *out) {
    render->line = n->line;
    if (!jinja_work(render, 0) || !jinja_enter(render))
        return false;
    bool ok = evaluators[n->kind](render, n, out);
    jinja_leave(render);
    return ok;
}
