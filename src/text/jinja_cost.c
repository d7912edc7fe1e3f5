/* jinja_cost.c - the limits of a rendering: work, CPU time, memory, cancellation.
 *
 * Work is counted in units of about a nanosecond, so that a limit is hit on every machine and in
 * every run alike. The clock is for slower machines.
 * (1) Evaluating costs steps: jinja_eval, jinja_exec, rounds of loops.
 * (2) Creating values is charged where they are made: jinja_alloc, jinja_put and what is built on
 *     them. There is no other way to make a value.
 * (3) Reading values is charged by jinja_call_builtin before a filter, test, method or function
 *     begins, unless its row says PAYS_ITSELF, and by the primitives that others are built from:
 *     jinja_equal, jinja_less, jinja_find, jinja_strip, jinja_next_char, jinja_iterate. */
#include "base/size.h"
#include "text/jinja_eval.h"

/* A value's own size: bytes of a text, items of a list, pairs of a dict. */
static uint64_t size_of(struct value v) {
    switch (v.type) {
    case VALUE_STRING:
        return v.string->text.len;
    case VALUE_SEQ:
        return v.seq->count;
    case VALUE_DICT:
    case VALUE_NAMESPACE:
        return v.dict->count;
    default:
        return 0;
    }
}

bool jinja_charge_sizes(struct render *render, const struct value *values, size_t count) {
    uint64_t size = 0;
    for (size_t i = 0; i < count; i++)
        size += size_of(values[i]);
    return jinja_charge(render, 2 * count + JINJA_CHAR * size);
}

bool jinja_charge_call(struct render *render, const struct builtin *b, struct value self,
                       const struct args *args) {
    if (!jinja_work(render, 8 * args->n_named))
        return false;
    if (b->pays == PAYS_ITSELF)
        return true;
    for (size_t i = 0; i < args->n_named; i++)
        if (!jinja_charge_sizes(render, &args->named[i].value, 1))
            return false;
    return jinja_charge_sizes(render, &self, 1) &&
           jinja_charge_sizes(render, args->at, args->count);
}

/* Beyond the limit is the input's fault, and would be again; a machine without memory may have some
 * later. */
static void refuse_memory(struct render *render, uint64_t count, uint64_t size) {
    const struct arena *a = &render->arena;
    if (size_times(count, size) > a->limit - min_u64(a->used, a->limit))
        jinja_fail(render, "rendering takes too much memory");
    else
        jinja_no_memory(render);
}

void *jinja_alloc(struct render *render, uint64_t count, uint64_t size) {
    void *p = arena_array(&render->arena, count, size);
    if (!p)
        return refuse_memory(render, count, size), NULL;
    /* The product fits: there was memory for it. */
    return jinja_charge(render, 8 + count * size / 2) ? p : NULL;
}

static uint64_t processor_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void jinja_budget(struct render *render, uint64_t units, uint64_t cpu_ms,
                  const atomic_bool *cancel) {
    render->units_left = units;
    render->until_check = 0; /* the first charge looks at the flag */
    render->max_cpu_ms = cpu_ms;
    render->start_ms = processor_ms();
    render->cancel = cancel;
}

uint64_t jinja_units_left(const struct render *render) {
    return render->units_left + render->until_check;
}

bool jinja_check(struct render *render, uint64_t units) {
    /* A quarter of a millisecond: cancelling feels immediate, and the clock costs 0.1 %. */
    enum { SLICE = 1 << 18 };
    uint64_t left = jinja_units_left(render);
    render->units_left = left;
    render->until_check = 0;
    if (render->cancel && atomic_load_explicit(render->cancel, memory_order_relaxed))
        return jinja_error(render->err, SLUICE_ERR_CANCELLED, render->line,
                           "rendering was cancelled"),
               false;
    if (units > left)
        return jinja_fail(render, "rendering takes too many steps");
    if (processor_ms() - render->start_ms > render->max_cpu_ms)
        return jinja_fail(render, "rendering takes more than %llu ms of processor time",
                          (unsigned long long)render->max_cpu_ms);
    left -= units;
    render->until_check = left < SLICE ? left : SLICE;
    render->units_left = left - render->until_check;
    return true;
}
