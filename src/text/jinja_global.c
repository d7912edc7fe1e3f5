/* jinja_global.c - the functions that every template has: one row each. */
#include "base/locale.h"
#include "text/jinja_eval.h"

static bool global_range(struct render *render, const struct call *call, struct value *out) {
    enum { MAX_RANGE = 100000 }; /* the sandbox's own */
    int64_t n[3] = {0, 0, 1};
    const struct args *args = call->all;
    if (args->n_named > 0 || args->count < 1 || args->count > 3)
        return jinja_fail(render, "range() takes 1 to 3 numbers");
    for (size_t i = 0; i < args->count; i++)
        if (!jinja_int_arg(render, args->at[i], 0, &n[args->count == 1 ? 1 : i]))
            return false;
    if (n[2] == 0)
        return jinja_fail(render, "range() arg 3 must not be zero");
    /* Unsigned, because the distance may be more than an int64 holds. */
    uint64_t distance =
        n[2] > 0 ? (uint64_t)n[1] - (uint64_t)n[0] : (uint64_t)n[0] - (uint64_t)n[1];
    uint64_t step = n[2] > 0 ? (uint64_t)n[2] : 0 - (uint64_t)n[2];
    bool is_empty = n[2] > 0 ? n[1] <= n[0] : n[1] >= n[0];
    uint64_t count = is_empty ? 0 : (distance - 1) / step + 1;
    if (count > MAX_RANGE)
        return jinja_fail(render, "Range too big. The sandbox blocks ranges larger than %d.",
                          MAX_RANGE);
    if (!jinja_seq(render, SEQ_RANGE, count, out))
        return false;
    out->seq->start = n[0];
    out->seq->end = n[1];
    out->seq->step = n[2];
    for (uint64_t i = 0; i < count; i++)
        out->seq->items[i] = value_int((int64_t)((uint64_t)n[0] + i * (uint64_t)n[2]));
    return true;
}

/* dict(pairs, name=value): what a mapping or a list of pairs holds, then the named ones. */
static bool fill_dict(struct render *render, const struct args *args, struct dict *dict) {
    struct value *pairs, *pair, view, key;
    size_t count, two;
    if (args->count > 1)
        return jinja_fail(render, "dict expected at most 1 argument, got %zu", args->count);
    if (args->count == 1) {
        view = args->at[0];
        if (view.type == VALUE_DICT && !jinja_dict_view(render, view.dict, SEQ_ITEMS, &view))
            return false;
        if (!jinja_iterate(render, view, &pairs, &count))
            return false;
        for (size_t i = 0; i < count; i++) {
            if (!jinja_iterate(render, pairs[i], &pair, &two))
                return false;
            if (two != 2)
                return jinja_fail(render, "an element has length %zu; 2 is required", two);
            if (!jinja_dict_set(render, dict, pair[0], pair[1]))
                return false;
        }
    }
    for (size_t i = 0; i < args->n_named; i++)
        if (!jinja_string(render, args->named[i].name, &key) ||
            !jinja_dict_set(render, dict, key, args->named[i].value))
            return false;
    return true;
}

static bool global_dict(struct render *render, const struct call *call, struct value *out) {
    return jinja_dict(render, VALUE_DICT, out) && fill_dict(render, call->all, out->dict);
}

static bool global_namespace(struct render *render, const struct call *call, struct value *out) {
    return jinja_dict(render, VALUE_NAMESPACE, out) && fill_dict(render, call->all, out->dict);
}

static bool global_raise(struct render *render, const struct call *call, struct value *out) {
    if (!jinja_to_string(render, call->args[0], out))
        return false;
    struct str s = out->string->text;
    jinja_error(render->err, SLUICE_ERR_ARGUMENT, render->line, "%.*s",
                (int)(s.len < 400 ? s.len : 400), s.at);
    return false;
}

/* Python's datetime has no zone here, and has microseconds: %Z, %z and %f are handled here. */
static bool put_date_format(struct render *render, struct str format) {
    for (size_t i = 0; i < format.len; i++) {
        size_t n = format.at[i] == '%' && i + 1 < format.len ? 2 : 1;
        char kind = n == 2 ? format.at[i + 1] : 0;
        struct str piece = {format.at + i, n};
        if (kind == 'f')
            piece = STR("000000");
        if (kind != 'z' && kind != 'Z' && !jinja_put(render, piece))
            return false;
        i += n - 1;
    }
    return true;
}

static bool global_strftime_now(struct render *render, const struct call *call, struct value *out) {
    struct str format;
    struct value clean;
    char text[1024];
    size_t mark = render->out->len;
    if (!jinja_text_arg(render, call->args[0], &format) || !put_date_format(render, format) ||
        !jinja_put(render, (struct str){"", 1}) || !jinja_take(render, mark, &clean))
        return false;
    if (format.len == 0)
        return jinja_string(render, STR(""), out);
    if (!jinja_charge(render, 4096 + 2 * JINJA_CHAR * format.len)) /* to write, and to read */
        return false;
    if (memchr(format.at, 0, format.len))
        return jinja_fail(render, "strftime_now: the format has a null character");
    /* A leading space distinguishes an empty result from one that is too long. */
    if (!jinja_put(render, STR(" ")) || !jinja_put(render, clean.string->text) ||
        !jinja_take(render, mark, &clean))
        return false;
    size_t n = locale_time(text, sizeof text, clean.string->text.at, &render->now);
    if (n == 0 || !utf8_valid((struct str){text, n}))
        return jinja_fail(render, "strftime_now: the format gives no text");
    return jinja_string_copy(render, (struct str){text + 1, n - 1}, out);
}

/* clang-format off */
static const struct builtin globals[] = {
    {"range", "*", global_range, PAYS_ITSELF}, {"dict", "*", global_dict, PAYS_ITSELF},
    {"namespace", "*", global_namespace, PAYS_ITSELF},
    {"raise_exception", "message", global_raise, PAYS_BY_SIZE},
    {"strftime_now", "format", global_strftime_now, PAYS_BY_SIZE}, {0},
};
/* clang-format on */

const struct builtin *jinja_global_find(struct str name) {
    for (const struct builtin *row = globals; row->name; row++)
        if (str_is(name, row->name))
            return row;
    return NULL;
}
