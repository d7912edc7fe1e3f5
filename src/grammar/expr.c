/* expr.c - expressions, simplified as they are made. */
#include "grammar/expr.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 48 << 20, FIRST_SURROGATE = 0xD800, LAST_SURROGATE = 0xDFFF };
enum { LAST_CHARACTER = 0x10FFFF };

static const struct expr never = {.kind = EXPR_CHOICE};
static const struct expr nothing = {.kind = EXPR_SEQUENCE};

void builder_begin(struct builder *b) {
    *b = (struct builder){.arena = {.limit = MAX_BYTES}};
}

int builder_fail(const struct builder *b, struct err *err) {
    if (b->arena.used < MAX_BYTES / 2) /* lists double: none is larger than this */
        return err_memory(err, "a grammar");
    return err_set(err, SLUICE_ERR_UNSUPPORTED,
                   "the grammar is too large: its expressions take more than %d MB",
                   MAX_BYTES >> 20);
}

void builder_end(struct builder *b) {
    arena_free(&b->arena);
    *b = (struct builder){0};
}

static void *take(struct builder *b, uint64_t n, uint64_t size) {
    void *p = arena_array(&b->arena, n, size);
    b->is_out_of_memory |= !p;
    return p;
}

static struct expr *new_expr(struct builder *b, enum expr_kind kind) {
    struct expr *e = take(b, 1, sizeof *e);
    if (e)
        e->kind = kind;
    return e;
}

void expr_push(struct builder *b, struct expr_list *list, const struct expr *e) {
    if (list->n == list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity * 2 : 4;
        const struct expr **more = take(b, capacity, sizeof *more);
        if (!more)
            return;
        if (list->n)
            memcpy(more, list->at, list->n * sizeof *more);
        list->at = more;
        list->capacity = capacity;
    }
    list->at[list->n++] = e;
}

/* ---- leaves ------------------------------------------------------------------------------- */

const struct expr *expr_never(struct builder *b) {
    (void)b;
    return &never;
}

bool expr_is_never(const struct expr *e) {
    return (e->kind == EXPR_CHOICE || e->kind == EXPR_CLASS) && e->n == 0;
}

const struct expr *expr_bytes(struct builder *b, struct str bytes) {
    if (bytes.len == 0)
        return &nothing;
    struct expr *e = new_expr(b, EXPR_BYTES);
    char *copy = e ? arena_strdup(&b->arena, bytes) : NULL;
    if (!copy) {
        b->is_out_of_memory = true;
        return &never;
    }
    e->bytes = (struct str){copy, bytes.len};
    return e;
}

const struct expr *expr_text(struct builder *b, const char *z) {
    return expr_bytes(b, str_of(z));
}

const struct expr *expr_joined(struct builder *b, const struct expr *const *parts, uint32_t n) {
    size_t length = 0;
    for (uint32_t i = 0; i < n; i++)
        length += parts[i]->bytes.len;
    char *text = take(b, length + 1, 1), *at = text;
    if (!text)
        return &never;
    for (uint32_t i = 0; i < n; i++) {
        if (parts[i]->bytes.len)
            memcpy(at, parts[i]->bytes.at, parts[i]->bytes.len);
        at += parts[i]->bytes.len;
    }
    return expr_bytes(b, (struct str){text, length});
}

static int compare_ranges(const void *a, const void *b) {
    const struct char_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Sorts and joins; returns how many are left. */
static uint32_t join_ranges(struct char_range *r, uint32_t n) {
    uint32_t kept = 0;
    if (n)
        qsort(r, n, sizeof *r, compare_ranges);
    for (uint32_t i = 0; i < n; i++) {
        if (kept && r[i].first <= r[kept - 1].last + 1) {
            if (r[i].last > r[kept - 1].last)
                r[kept - 1].last = r[i].last;
        } else {
            r[kept++] = r[i];
        }
    }
    return kept;
}

/* What is not in the n sorted ranges; at most n + 1. */
static uint32_t other_ranges(const struct char_range *r, uint32_t n, struct char_range *out) {
    uint32_t kept = 0, from = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (r[i].first > from)
            out[kept++] = (struct char_range){from, r[i].first - 1};
        from = r[i].last + 1;
    }
    if (from <= LAST_CHARACTER)
        out[kept++] = (struct char_range){from, LAST_CHARACTER};
    return kept;
}

/* Surrogates are not characters. */
static uint32_t cut_surrogates(struct char_range *r, uint32_t n) {
    uint32_t kept = n;
    for (uint32_t i = 0; i < n; i++) {
        if (r[i].last < FIRST_SURROGATE || r[i].first > LAST_SURROGATE)
            continue;
        struct char_range after = {LAST_SURROGATE + 1, r[i].last};
        r[i].last = FIRST_SURROGATE - 1;
        if (after.first <= after.last)
            r[kept++] = after;
    }
    uint32_t left = 0;
    for (uint32_t i = 0; i < kept; i++)
        if (r[i].first <= r[i].last && r[i].first <= LAST_CHARACTER)
            r[left++] = r[i];
    return join_ranges(r, left);
}

const struct expr *expr_class(struct builder *b, const struct char_range *ranges, uint32_t n,
                              bool is_negated) {
    struct expr *e = new_expr(b, EXPR_CLASS);
    struct char_range *own = take(b, 2ull * n + 3, sizeof *own);
    struct char_range *all = take(b, 2ull * n + 3, sizeof *all);
    if (!e || !own || !all)
        return &never;
    if (n)
        memcpy(own, ranges, n * sizeof *own);
    n = join_ranges(own, n);
    if (is_negated) {
        n = other_ranges(own, n, all);
        own = all;
    }
    e->ranges = own;
    e->n = cut_surrogates(own, n);
    return e;
}

const struct expr *expr_rule(struct builder *b, uint32_t rule) {
    struct expr *e = new_expr(b, EXPR_RULE);
    if (!e)
        return &never;
    e->rule = rule;
    return e;
}

/* ---- what is made of others --------------------------------------------------------------- */

static const struct expr *of_parts(struct builder *b, enum expr_kind kind,
                                   const struct expr_list *list) {
    struct expr *e = new_expr(b, kind);
    if (!e)
        return &never;
    e->parts = list->at;
    e->n = list->n;
    return e;
}

const struct expr *expr_sequence(struct builder *b, const struct expr_list *list) {
    struct expr_list kept = {0};
    for (uint32_t i = 0; i < list->n; i++) {
        const struct expr *e = list->at[i];
        if (expr_is_never(e))
            return &never;
        if (e->kind == EXPR_SEQUENCE)
            for (uint32_t k = 0; k < e->n; k++)
                expr_push(b, &kept, e->parts[k]);
        else
            expr_push(b, &kept, e);
    }
    return kept.n == 0 ? &nothing : kept.n == 1 ? kept.at[0] : of_parts(b, EXPR_SEQUENCE, &kept);
}

const struct expr *expr_choice(struct builder *b, const struct expr_list *list) {
    struct expr_list kept = {0};
    for (uint32_t i = 0; i < list->n; i++) {
        const struct expr *e = list->at[i];
        if (expr_is_never(e))
            continue;
        if (e->kind == EXPR_CHOICE)
            for (uint32_t k = 0; k < e->n; k++)
                expr_push(b, &kept, e->parts[k]);
        else
            expr_push(b, &kept, e);
    }
    return kept.n == 0 ? &never : kept.n == 1 ? kept.at[0] : of_parts(b, EXPR_CHOICE, &kept);
}

const struct expr *expr_repeat(struct builder *b, const struct expr *e, uint32_t min,
                               uint32_t max) {
    bool is_empty = e->kind == EXPR_SEQUENCE && e->n == 0;
    if (min > max)
        return &never;
    if (expr_is_never(e))
        return min ? &never : &nothing;
    if (max == 0 || is_empty)
        return &nothing;
    if (min == 1 && max == 1)
        return e;
    struct expr *r = new_expr(b, EXPR_REPEAT);
    struct expr_list one = {0};
    expr_push(b, &one, e);
    if (!r || one.n == 0)
        return &never;
    r->parts = one.at;
    r->n = 1;
    r->min = min;
    r->max = max;
    return r;
}

const struct expr *expr_pair(struct builder *b, const struct expr *x, const struct expr *y) {
    return expr_sequence(b, &(struct expr_list){.at = (const struct expr *[]){x, y}, .n = 2});
}

const struct expr *expr_triple(struct builder *b, const struct expr *x, const struct expr *y,
                               const struct expr *z) {
    return expr_sequence(b, &(struct expr_list){.at = (const struct expr *[]){x, y, z}, .n = 3});
}

const struct expr *expr_either(struct builder *b, const struct expr *x, const struct expr *y) {
    return expr_choice(b, &(struct expr_list){.at = (const struct expr *[]){x, y}, .n = 2});
}

const struct expr *expr_optional(struct builder *b, const struct expr *e) {
    return expr_repeat(b, e, 0, 1);
}

/* ---- rules -------------------------------------------------------------------------------- */

uint32_t builder_rule(struct builder *b, struct str name) {
    if (b->n_rules == b->rule_capacity) {
        uint32_t capacity = b->rule_capacity ? b->rule_capacity * 2 : 32;
        struct rule *more = take(b, capacity, sizeof *more);
        if (!more)
            return 0;
        if (b->n_rules)
            memcpy(more, b->rules, b->n_rules * sizeof *more);
        b->rules = more;
        b->rule_capacity = capacity;
    }
    char *copy = arena_strdup(&b->arena, name);
    b->is_out_of_memory |= !copy;
    b->rules[b->n_rules] = (struct rule){.name = {copy ? copy : "", copy ? name.len : 0}};
    return b->n_rules++;
}
