/* jinja_origin.c - who wrote what: the template itself, or the values it was given.
 *
 * A conversation's words must not become control tokens, the template's own must. Both are mixed in
 * the output, and templates cut, join and compare texts on the way. So every byte of a text has an
 * origin, found by its address: strings are never changed, and copied only by jinja_put and
 * jinja_string_copy, and a part of a string points into the whole.
 * (1) The template's source and literals are in jinja->text: its own.
 * (2) Text taken off the output is in `kept`, with its origins beside it.
 * (3) Anything else (the caller's JSON, numbers, what is made character by character) is a value.
 * A mistake here can only turn control tokens into plain text, never the other way round. */
#include <stdlib.h>

#include "text/jinja.h"
#include "text/jinja_ast.h"

/* A block of strings and their origins. Each is twice as large as the one before: they are few. */
struct kept {
    struct kept *next;
    size_t used, capacity;
    char *text, *origins;
};

enum { KEPT_FIRST = 1024 };

static const struct kept *find_kept(const struct render *render, const char *at) {
    const struct kept *k = render->kept;
    while (k && (uintptr_t)at - (uintptr_t)k->text >= k->used)
        k = k->next;
    return k;
}

static bool is_in_template(const struct render *render, const char *at) {
    return (uintptr_t)at - (uintptr_t)render->jinja->text < render->jinja->text_len;
}

/* text.len is not 0. */
static void origins_of(const struct render *render, struct str text, char *to) {
    const struct kept *k = find_kept(render, text.at);
    size_t in_out = (uintptr_t)text.at - (uintptr_t)render->out->at;
    if (k)
        memcpy(to, k->origins + (text.at - k->text), text.len);
    else if (in_out < render->n_origins)
        memcpy(to, render->origins + in_out, text.len);
    else
        memset(to, is_in_template(render, text.at) ? ORIGIN_OWN : ORIGIN_VALUE, text.len);
}

bool jinja_origins_put(struct render *render, struct str text) {
    if (render->n_origins < render->out->capacity) {
        char *grown = realloc(render->origins, render->out->capacity);
        if (!grown)
            return jinja_no_memory(render);
        render->origins = grown;
        render->n_origins = render->out->capacity;
    }
    if (text.len > 0)
        origins_of(render, text, render->origins + render->out->len);
    return true;
}

void jinja_origins_follow(struct render *render, size_t mark, struct str text) {
    if (!render->is_tracked || render->out->len == mark || text.len == 0)
        return;
    const struct kept *k = find_kept(render, text.at);
    bool is_own = k ? !memchr(k->origins + (text.at - k->text), ORIGIN_VALUE, text.len)
                    : is_in_template(render, text.at);
    memset(render->origins + mark, is_own ? ORIGIN_OWN : ORIGIN_VALUE, render->out->len - mark);
}

bool jinja_origins_give(struct render *render, size_t start, struct text_buffer *to) {
    size_t n = render->out->len - start;
    if (n == 0)
        return true;
    if (to->capacity - to->len < n) {
        char *grown = realloc(to->at, to->len + n);
        if (!grown)
            return jinja_no_memory(render);
        to->at = grown;
        to->capacity = to->len + n;
    }
    memcpy(to->at + to->len, render->origins + start, n);
    to->len += n;
    return true;
}

/* A block with space for a text of n bytes and a zero. */
static struct kept *new_kept(struct render *render, size_t n) {
    struct kept *k = render->kept;
    if (k && k->capacity - k->used > n)
        return k;
    size_t capacity = k ? 2 * k->capacity : KEPT_FIRST;
    while (capacity <= n)
        capacity *= 2;
    if (!(k = jinja_alloc(render, 1, sizeof *k)) || !(k->text = jinja_alloc(render, capacity, 2)))
        return NULL;
    k->origins = k->text + capacity;
    k->capacity = capacity;
    k->next = render->kept;
    render->kept = k;
    return k;
}

char *jinja_origins_keep(struct render *render, struct str text) {
    struct kept *k = new_kept(render, text.len);
    if (!k || !jinja_charge(render, 32 + text.len / 4))
        return NULL;
    char *copy = k->text + k->used;
    if (text.len > 0) {
        origins_of(render, text, k->origins + k->used);
        memcpy(copy, text.at, text.len);
    }
    k->used += text.len + 1; /* the zero: no two strings touch */
    return copy;
}

bool jinja_string_own(struct render *render, struct str text, struct value *out) {
    if (!render->is_tracked)
        return jinja_string(render, text, out);
    if (!jinja_string_copy(render, text, out))
        return false;
    if (text.len > 0)
        memset(render->kept->origins + (out->string->text.at - render->kept->text), ORIGIN_OWN,
               text.len);
    return true;
}
