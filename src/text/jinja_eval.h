/* jinja_eval.h - what evaluates a tree: scopes, expressions, statements, loops. */
#ifndef TEXT_JINJA_EVAL_H
#define TEXT_JINJA_EVAL_H

#include "text/jinja_ast.h"

struct binding {
    struct binding *next;
    uint32_t name;
    struct value value;
};

/* A scope inside the current one. Scopes are never freed alone: a macro may still hold them. */
struct scope *jinja_scope(struct render *render, struct scope *parent);
/* Binds a name in the current scope. */
bool jinja_bind(struct render *render, uint32_t name, struct value value);

bool jinja_eval(struct render *render, const struct node *n, struct value *out);
/* Evaluates filters around a text that is already there. */
bool jinja_eval_filters(struct render *render, const struct node *n, struct value text,
                        struct value *out);
bool jinja_eval_args(struct render *render, const struct node *n, struct args *out);

enum flow { FLOW_FAILED = -1, FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };
enum flow jinja_exec(struct render *render, const struct node *list);
bool jinja_call_macro(struct render *render, const struct macro *macro, const struct args *args,
                      struct value *out);

/* A loop's items are taken one by one, so that conditions see changes that earlier rounds made to a
 * namespace; `last`, `length` and the like look ahead. */
struct loop {
    const struct node *node; /* NODE_FOR */
    struct scope *scope;     /* the one around it */
    struct seq *source;      /* a generator, shared with others */
    bool is_filtered;        /* the condition must still be evaluated */
    size_t index0;
    struct value previous, current, ahead; /* VALUE_MISSING: none */
    struct value changed;                  /* the last value given to changed() */
};

bool jinja_loop_attribute(struct render *render, struct loop *loop, struct str name, bool *found,
                          struct value *out);

#endif
