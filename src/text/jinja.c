/* jinja.c - chat templates: compiling and rendering. The work is done by the lexer, the parser
 * and the evaluator; here are their limits and their memory. */
#include "text/jinja.h"

#include <stdlib.h>

#include "text/jinja_eval.h"

/* What conversations take with the real templates of tests/data/templates, in units of work and in
 * processor time on a Xeon of 2.5 GHz:
 *   500 messages, 1 MB                    8 to  13 M    8 to  14 ms
 *   2000 messages, 2 MB, 50 tools        21 to  35 M   16 to  31 ms
 *   10000 messages, 2 MB, 50 tools       42 to 122 M   39 to 108 ms
 * Templates that do one operation over and over take 0.3 to 2.4 ns per unit (test_jinja_cost.c), so
 * too much work hits the limit before the clock does, unless the machine is slow. */
enum {
    MAX_UNITS = 600 * 1000 * 1000,
    MAX_CPU_MS = 2000,
    MAX_OUTPUT = 64 << 20,
    MAX_MEMORY = 256 << 20,
    MAX_TREE = 256 << 20, /* bytes of a compiled template */
};

int jinja_compile(struct jinja **out, struct str source, struct err *err) {
    struct err local = {0};
    *out = NULL;
    err = err ? err : &local;
    if (source.len > JINJA_MAX_SOURCE)
        return err_set(err, SLUICE_ERR_FORMAT, "chat template: has %zu bytes, expected at most %d",
                       source.len, JINJA_MAX_SOURCE);
    if (!utf8_valid(source))
        return err_set(err, SLUICE_ERR_FORMAT, "chat template: is not valid UTF-8");
    struct jinja *jinja = calloc(1, sizeof *jinja);
    if (!jinja)
        return err_memory(err, "the chat template");
    jinja->arena.limit = MAX_TREE;
    struct jinja_token *tokens;
    size_t count;
    jinja->text_capacity = source.len * 5 + 1; /* see unquote */
    jinja->text_len = source.len;
    jinja->text = arena_alloc(&jinja->arena, jinja->text_capacity);
    int code = jinja->text ? jinja_lex(source, jinja->text, &jinja->arena, &tokens, &count, err)
                           : err_memory(err, "the chat template");
    if (!code)
        code = jinja_parse(jinja, tokens, count, err);
    if (code) {
        jinja_close(jinja);
        return code;
    }
    *out = jinja;
    return SLUICE_OK;
}

void jinja_close(struct jinja *jinja) {
    if (!jinja)
        return;
    arena_free(&jinja->arena);
    free(jinja);
}

/* Binds the variables that the template names. */
static bool bind_variables(struct render *render, const json_t *variables, bool is_own) {
    render->is_own = is_own;
    const char *name;
    size_t len;
    json_t *child;
    json_object_keylen_foreach((json_t *)variables, name, len, child) {
        uint32_t number;
        struct value value;
        if (strmap_get(&render->jinja->names, (struct str){name, len}, &number) &&
            (!jinja_from_json(render, child, &value) || !jinja_bind(render, number, value)))
            return false;
    }
    return true;
}

static void set_now(struct render *render, const struct jinja_options *options) {
    time_t now = time(NULL);
    if (options && options->now)
        render->now = *options->now;
    else
        localtime_r(&now, &render->now);
}

int jinja_render(const struct jinja *jinja, const json_t *variables,
                 const struct jinja_options *options, struct text_buffer *out, struct err *err) {
    struct err local = {0};
    struct jinja_options o = options ? *options : (struct jinja_options){0};
    struct render render = {.jinja = jinja, .err = err ? err : &local, .out = out, .line = 1};
    size_t start = out->len;
    render.is_tracked = o.origins != NULL;
    render.own_key = str_of(o.own_key ? o.own_key : "");
    render.arena.limit = o.max_memory ? o.max_memory : MAX_MEMORY;
    uint64_t units = o.max_units ? o.max_units : MAX_UNITS;
    jinja_budget(&render, units, o.max_cpu_ms ? o.max_cpu_ms : MAX_CPU_MS, o.cancel);
    render.max_output = start + (o.max_output ? o.max_output : MAX_OUTPUT);
    set_now(&render, options);
    bool ok = (render.scope = jinja_scope(&render, NULL)) &&
              bind_variables(&render, variables, false) &&
              (!o.own || bind_variables(&render, o.own, true)) &&
              jinja_exec(&render, jinja->root) == FLOW_ON;
    if (ok && render.is_tracked)
        ok = jinja_origins_give(&render, start, o.origins);
    if (o.used_units)
        *o.used_units = units - jinja_units_left(&render);
    free(render.origins);
    arena_free(&render.arena);
    if (ok)
        return SLUICE_OK;
    out->len = start;
    return render.err->code;
}
