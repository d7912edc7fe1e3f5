/* program.c - expressions to instructions.
 *
 * Facts about rules first (which are nullable, which are productive, which are left-recursive),
 * then instructions, from the end of a rule to its beginning: an expression is given the
 * instruction that follows it and returns the one that it begins with. */
#include "grammar/program.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/size.h"

enum {
    MAX_WORK = 20 * 1000 * 1000, /* expressions looked at for facts about rules */
    MAX_UNROLLED = 8,            /* rounds that are unrolled instead of a loop ... */
    MAX_UNROLLED_INSTS = 64,     /* ... and their instructions */
    MAX_INLINED = 12,            /* instructions of a rule that is copied where it is called */
    MAX_SETS_COMPARED = 64,
};

struct compiler {
    struct program *p;
    struct builder *b;
    bool *is_nullable, *is_productive; /* of rules */
    uint32_t *entries;                 /* of rules: a jump to their first instruction; 0: none */
    uint32_t *todo;                    /* rules that have an entry and no instructions yet */
    uint32_t n_todo;
    uint32_t inst_capacity, set_capacity, loop_capacity;
    uint64_t work;
    bool is_out_of_memory, is_too_large;
};

/* ---- facts about rules -------------------------------------------------------------------- */

static bool is_nullable(struct compiler *c, const struct expr *e) {
    c->work++;
    switch (e->kind) {
    case EXPR_BYTES:
    case EXPR_CLASS:
        return false;
    case EXPR_RULE:
        return c->is_nullable[e->rule];
    case EXPR_REPEAT:
        return e->min == 0 || is_nullable(c, e->parts[0]);
    default:
        for (uint32_t i = 0; i < e->n; i++)
            if (is_nullable(c, e->parts[i]) != (e->kind == EXPR_SEQUENCE))
                return e->kind == EXPR_CHOICE;
        return e->kind == EXPR_SEQUENCE;
    }
}

static bool is_productive(struct compiler *c, const struct expr *e) {
    c->work++;
    switch (e->kind) {
    case EXPR_BYTES:
        return true;
    case EXPR_CLASS:
        return e->n > 0;
    case EXPR_RULE:
        return c->is_productive[e->rule];
    case EXPR_REPEAT:
        return e->min == 0 || is_productive(c, e->parts[0]);
    default:
        for (uint32_t i = 0; i < e->n; i++)
            if (is_productive(c, e->parts[i]) != (e->kind == EXPR_SEQUENCE))
                return e->kind == EXPR_CHOICE;
        return e->kind == EXPR_SEQUENCE;
    }
}

/* Repeats until nothing changes, in alternating order: chains of rules in either order take two
 * rounds. */
static int find_facts(struct compiler *c, struct err *err) {
    const struct builder *b = c->b;
    bool has_changed = true;
    for (uint32_t round = 0; has_changed; round++) {
        has_changed = false;
        for (uint32_t k = 0; k < b->n_rules; k++) {
            uint32_t i = round % 2 ? k : b->n_rules - 1 - k;
            const struct expr *body = b->rules[i].body;
            bool null = c->is_nullable[i] || is_nullable(c, body);
            bool productive = c->is_productive[i] || is_productive(c, body);
            has_changed |= null != c->is_nullable[i] || productive != c->is_productive[i];
            c->is_nullable[i] = null;
            c->is_productive[i] = productive;
            if (c->work > MAX_WORK)
                return err_set(err, SLUICE_ERR_UNSUPPORTED,
                               "the grammar is too large: %u rules that depend on each other",
                               b->n_rules);
        }
    }
    return SLUICE_OK;
}

/* ---- left recursion ----------------------------------------------------------------------- */

/* A list of rules that each rule may call before it reads a byte. */
struct edges {
    uint32_t *at, n;
    size_t capacity;
    bool is_out_of_memory;
};

static void add_edge(struct edges *edges, uint32_t rule) {
    if (array_grow(&edges->at, edges->n, &edges->capacity, sizeof *edges->at))
        edges->at[edges->n++] = rule;
    else
        edges->is_out_of_memory = true;
}

static void find_left_calls(struct compiler *c, const struct expr *e, struct edges *edges) {
    switch (e->kind) {
    case EXPR_BYTES:
    case EXPR_CLASS:
        return;
    case EXPR_RULE:
        add_edge(edges, e->rule);
        return;
    case EXPR_SEQUENCE:
        for (uint32_t i = 0; i < e->n; i++) {
            find_left_calls(c, e->parts[i], edges);
            if (!is_nullable(c, e->parts[i]))
                return;
        }
        return;
    default:
        for (uint32_t i = 0; i < e->n; i++)
            find_left_calls(c, e->parts[i], edges);
    }
}

static int left_recursion(const struct rule *r, struct err *err) {
    if (r->line)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "rule %.*s (line %u) calls itself before it reads a character: left "
                       "recursion, expected it to the right",
                       STR_ARG(r->name), r->line);
    return err_set(err, SLUICE_ERR_UNSUPPORTED, "%.*s refers to itself without anything around it",
                   STR_ARG(r->name));
}

/* Depth first over all rules; state: 0 new, 1 on the way, 2 done. `next`: the edge to follow. */
static int walk_edges(struct compiler *c, const uint32_t *first, const struct edges *edges,
                      uint8_t *state, uint32_t *path, uint32_t *next, struct err *err) {
    for (uint32_t root = 0; root < c->b->n_rules; root++) {
        uint32_t depth = 0;
        if (state[root])
            continue;
        path[depth++] = root;
        state[root] = 1;
        while (depth) {
            uint32_t r = path[depth - 1];
            if (next[r] == first[r + 1]) {
                state[r] = 2;
                depth--;
                continue;
            }
            uint32_t to = edges->at[next[r]++];
            if (state[to] == 1)
                return left_recursion(&c->b->rules[to], err);
            if (state[to] == 0) {
                path[depth++] = to;
                state[to] = 1;
            }
        }
    }
    return SLUICE_OK;
}

static int refuse_left_recursion(struct compiler *c, struct err *err) {
    uint32_t n = c->b->n_rules;
    struct edges edges = {0};
    uint32_t *first = arena_array(&c->b->arena, n + 1ull, sizeof *first);
    uint32_t *path = arena_array(&c->b->arena, n, sizeof *path);
    uint32_t *next = arena_array(&c->b->arena, n, sizeof *next);
    uint8_t *state = arena_array(&c->b->arena, n, 1);
    int status = first && path && next && state ? SLUICE_OK : err_memory(err, "a grammar");
    for (uint32_t i = 0; !status && i < n; i++) {
        first[i] = next[i] = edges.n;
        find_left_calls(c, c->b->rules[i].body, &edges);
        first[i + 1] = edges.n;
        if (edges.is_out_of_memory)
            status = err_memory(err, "a grammar");
    }
    if (!status)
        status = walk_edges(c, first, &edges, state, path, next, err);
    free(edges.at);
    return status;
}

/* ---- instructions ------------------------------------------------------------------------- */

static void *grow(struct compiler *c, void *at, uint32_t n, uint32_t *capacity, size_t size) {
    if (n < *capacity)
        return at;
    uint32_t more = *capacity ? *capacity * 2 : 256;
    void *grown = arena_array(&c->p->arena, more, size);
    if (!grown) {
        c->is_out_of_memory = true;
        return NULL;
    }
    if (n)
        memcpy(grown, at, n * size);
    *capacity = more;
    return grown;
}

static uint32_t add_inst(struct compiler *c, struct inst inst) {
    struct program *p = c->p;
    if (p->n_insts == PROGRAM_MAX_INSTS) {
        c->is_too_large = true;
        return 0;
    }
    struct inst *insts = grow(c, p->insts, p->n_insts, &c->inst_capacity, sizeof *insts);
    if (!insts)
        return 0;
    p->insts = insts;
    p->insts[p->n_insts] = inst;
    return p->n_insts++;
}

static uint32_t add_range(struct compiler *c, uint8_t low, uint8_t high, uint32_t next) {
    return add_inst(c, (struct inst){.kind = INST_RANGE, .low = low, .high = high, .next = next});
}

static uint32_t add_split(struct compiler *c, uint32_t next, uint32_t other) {
    return add_inst(c, (struct inst){.kind = INST_SPLIT, .next = next, .other = other});
}

static uint32_t add_set(struct compiler *c, const struct byte_set *set, uint32_t next) {
    struct program *p = c->p;
    uint32_t i = p->n_sets > MAX_SETS_COMPARED ? p->n_sets - MAX_SETS_COMPARED : 0;
    while (i < p->n_sets && memcmp(&p->sets[i], set, sizeof *set) != 0)
        i++;
    if (i == p->n_sets) {
        struct byte_set *sets = grow(c, p->sets, p->n_sets, &c->set_capacity, sizeof *sets);
        if (!sets)
            return 0;
        p->sets = sets;
        p->sets[p->n_sets++] = *set;
    }
    return add_inst(c, (struct inst){.kind = INST_SET, .other = i, .next = next});
}

static uint32_t emit_bytes(struct compiler *c, struct str s, uint32_t next) {
    for (size_t i = s.len; i-- > 0;)
        next = add_range(c, (uint8_t)s.at[i], (uint8_t)s.at[i], next);
    return next;
}

/* ---- classes ------------------------------------------------------------------------------ */

/* Characters of one length whose bytes vary independently of each other. */
struct product {
    uint8_t n, low[4], high[4];
};

/* A class that is being written: its products in order, and the last few tails of theirs that were
 * written, which many share. */
struct class_writer {
    struct compiler *c;
    uint32_t end;   /* what follows the class */
    uint32_t entry; /* all of it so far; 0: none */
    struct product *products;
    uint32_t n_products, capacity;
    struct tail {
        uint32_t pc, next;
        uint8_t low, high;
    } tails[8];
    uint32_t n_tails;
};

static uint32_t write_tail(struct class_writer *w, uint8_t low, uint8_t high, uint32_t next) {
    for (uint32_t i = 0; i < 8; i++) {
        const struct tail *t = &w->tails[i];
        if (t->pc && t->low == low && t->high == high && t->next == next)
            return t->pc;
    }
    uint32_t pc = add_range(w->c, low, high, next);
    w->tails[w->n_tails++ % 8] = (struct tail){pc, next, low, high};
    return pc;
}

static void write_entry(struct class_writer *w, uint32_t pc) {
    w->entry = w->entry ? add_split(w->c, pc, w->entry) : pc;
}

static void add_product(struct class_writer *w, uint32_t first, uint32_t last) {
    struct compiler *c = w->c;
    struct product p = {0};
    if (w->n_products == w->capacity) {
        uint32_t capacity = w->capacity ? 2 * w->capacity : 16;
        struct product *more = arena_array(&c->b->arena, capacity, sizeof *more);
        if (!more) {
            c->is_out_of_memory = true;
            return;
        }
        if (w->n_products)
            memcpy(more, w->products, w->n_products * sizeof *more);
        w->products = more;
        w->capacity = capacity;
    }
    p.n = (uint8_t)utf8_put(first, (char *)p.low);
    utf8_put(last, (char *)p.high);
    w->products[w->n_products++] = p;
}

static bool begin_alike(const struct product *a, const struct product *b, uint32_t i) {
    return a->low[i] == b->low[i] && a->high[i] == b->high[i];
}

/* Writes products that are alike before byte `from`; their common beginning is read once. */
static uint32_t write_products(struct class_writer *w, const struct product *p, uint32_t n,
                               uint32_t from) {
    uint32_t entry = 0;
    for (uint32_t i = 0, same; i < n; i = same) {
        for (same = i + 1; same < n && begin_alike(&p[i], &p[same], from);)
            same++;
        uint32_t next = p[i].n == from + 1 ? w->end : write_products(w, p + i, same - i, from + 1);
        uint32_t pc = write_tail(w, p[i].low[from], p[i].high[from], next);
        entry = entry ? add_split(w->c, pc, entry) : pc;
    }
    return entry;
}

/* Cuts a range where the number of bytes changes, and where the last bytes do not run through all
 * of their values. */
static void write_range(struct class_writer *w, uint32_t first, uint32_t last) {
    static const uint32_t limits[] = {0x7F, 0x7FF, 0xFFFF};
    for (int i = 0; i < 3; i++)
        if (first <= limits[i] && last > limits[i]) {
            write_range(w, first, limits[i]);
            write_range(w, limits[i] + 1, last);
            return;
        }
    for (int i = 1; i < 4 && last > 0x7F; i++) {
        uint32_t m = (1u << 6 * i) - 1;
        if ((first & ~m) == (last & ~m))
            continue;
        if (first & m) {
            write_range(w, first, first | m);
            write_range(w, (first | m) + 1, last);
            return;
        }
        if ((last & m) != m) {
            write_range(w, first, (last & ~m) - 1);
            write_range(w, last & ~m, last);
            return;
        }
    }
    add_product(w, first, last);
}

static uint32_t emit_class(struct compiler *c, const struct expr *e, uint32_t next) {
    struct class_writer w = {.c = c, .end = next};
    struct byte_set set = {0};
    uint32_t n_ascii = 0;
    for (uint32_t i = 0; i < e->n; i++) {
        struct char_range r = e->ranges[i];
        for (uint32_t k = r.first; k <= r.last && k < 0x80; k++, n_ascii++)
            set.bits[k / 32] |= 1u << k % 32;
        if (r.last >= 0x80)
            write_range(&w, max_u32(r.first, 0x80), r.last);
    }
    w.entry = write_products(&w, w.products, w.n_products, 0);
    bool is_range = e->n > 0 && e->ranges[0].last - e->ranges[0].first + 1 == n_ascii;
    if (n_ascii && is_range)
        write_entry(&w,
                    add_range(c, (uint8_t)e->ranges[0].first, (uint8_t)e->ranges[0].last, next));
    else if (n_ascii)
        write_entry(&w, add_set(c, &set, next));
    return w.entry;
}

/* ---- choices ------------------------------------------------------------------------------ */

static int compare_texts(const void *a, const void *b) {
    const struct str *x = a, *y = b;
    int order = memcmp(x->at, y->at, min_u32((uint32_t)x->len, (uint32_t)y->len));
    return order ? order : x->len < y->len ? -1 : x->len > y->len;
}

/* Sorted literals as a tree: what they begin with in common is read once. All have `from` bytes in
 * common. */
static uint32_t emit_literals(struct compiler *c, const struct str *s, uint32_t n, size_t from,
                              uint32_t next) {
    size_t common = from;
    while (common < s[0].len && common < s[n - 1].len && s[0].at[common] == s[n - 1].at[common])
        common++;
    uint32_t i = 0, pc = 0;
    bool has_end = false;
    for (; i < n && s[i].len == common; i++)
        has_end = true;
    while (i < n) {
        uint32_t same = i + 1;
        while (same < n && s[same].at[common] == s[i].at[common])
            same++;
        /* A branch that shares its first byte shares it as its common beginning. */
        uint32_t branch = emit_literals(c, s + i, same - i, common, next);
        pc = pc ? add_split(c, branch, pc) : branch;
        i = same;
    }
    if (has_end)
        pc = pc ? add_split(c, pc, next) : next;
    return emit_bytes(c, (struct str){s[0].at + from, common - from}, pc);
}

static uint32_t emit(struct compiler *c, const struct expr *e, uint32_t next);

static uint32_t emit_choice(struct compiler *c, const struct expr *e, uint32_t next) {
    struct str *literals = arena_array(&c->b->arena, e->n, sizeof *literals);
    uint32_t n = 0, pc = 0;
    bool is_first = true;
    if (!literals) {
        c->is_out_of_memory = true;
        return 0;
    }
    for (uint32_t i = 0; i < e->n; i++)
        if (e->parts[i]->kind == EXPR_BYTES)
            literals[n++] = e->parts[i]->bytes;
    if (n) {
        qsort(literals, n, sizeof *literals, compare_texts);
        pc = emit_literals(c, literals, n, 0, next);
        is_first = false;
    }
    for (uint32_t i = e->n; i-- > 0;) {
        if (e->parts[i]->kind == EXPR_BYTES || !is_productive(c, e->parts[i]))
            continue;
        uint32_t part = emit(c, e->parts[i], next);
        pc = is_first ? part : add_split(c, part, pc);
        is_first = false;
    }
    return pc;
}

/* ---- repetitions -------------------------------------------------------------------------- */

/* Rounds to unroll: the maximum, or the minimum where there is no maximum. */
static uint32_t rounds_of(const struct expr *e) {
    return e->max == REPEAT_NO_LIMIT ? e->min : e->max;
}

/* About how many instructions, up to `max`. */
static uint32_t size_of(const struct expr *e, uint32_t max) {
    uint32_t n = 1;
    if (e->kind == EXPR_BYTES)
        n = e->bytes.len < max ? (uint32_t)e->bytes.len : max;
    else if (e->kind == EXPR_CLASS)
        n = e->n && e->ranges[e->n - 1].last >= 0x80 ? 4 * min_u32(e->n, max) : 1;
    else if (e->kind == EXPR_REPEAT)
        n = size_of(e->parts[0], max) * (rounds_of(e) <= MAX_UNROLLED ? rounds_of(e) + 1 : 1);
    else
        for (uint32_t i = 0; i < e->n && n < max; i++)
            n += size_of(e->parts[i], max);
    return min_u32(n, max);
}

/* Plus or star. */
static uint32_t emit_open(struct compiler *c, const struct expr *body, bool is_star,
                          uint32_t next) {
    uint32_t split = add_split(c, 0, next);
    uint32_t pc = emit(c, body, split);
    c->p->insts[split].next = pc;
    return is_star ? split : pc;
}

static uint32_t emit_loop(struct compiler *c, const struct expr *e, uint32_t next) {
    struct program *p = c->p;
    struct loop *loops = grow(c, p->loops, p->n_loops, &c->loop_capacity, sizeof *loops);
    if (!loops)
        return 0;
    p->loops = loops;
    uint32_t i = p->n_loops++;
    bool null = is_nullable(c, e->parts[0]);
    p->loops[i] = (struct loop){.min = null ? 0 : e->min, .max = e->max, .is_nullable = null};
    uint32_t pc = add_inst(c, (struct inst){.kind = INST_LOOP, .other = i, .next = next});
    uint32_t body = emit(c, e->parts[0], 0);
    p->loops[i].body = body;
    return pc;
}

static uint32_t emit_repeat(struct compiler *c, const struct expr *e, uint32_t next) {
    const struct expr *body = e->parts[0];
    bool is_open = e->max == REPEAT_NO_LIMIT;
    uint32_t rounds = rounds_of(e);
    if (!is_productive(c, body))
        return next; /* min is 0: what must be repeated was left out, or refused */
    bool is_small =
        rounds <= MAX_UNROLLED &&
        size_of(body, MAX_UNROLLED_INSTS + 1) * max_u32(rounds, 1) <= MAX_UNROLLED_INSTS;
    if (rounds > 1 && !is_small)
        return emit_loop(c, e, next);
    uint32_t pc = is_open ? emit_open(c, body, e->min == 0, next) : next;
    for (uint32_t i = is_open && rounds ? rounds - 1 : rounds; i-- > 0;) {
        pc = emit(c, body, pc);
        if (i >= e->min)
            pc = add_split(c, pc, next);
    }
    return pc;
}

/* ---- rules -------------------------------------------------------------------------------- */

static bool has_rules(const struct expr *e) {
    if (e->kind == EXPR_RULE)
        return true;
    if (e->kind == EXPR_BYTES || e->kind == EXPR_CLASS)
        return false;
    for (uint32_t i = 0; i < e->n; i++)
        if (has_rules(e->parts[i]))
            return true;
    return false;
}

static uint32_t entry_of(struct compiler *c, uint32_t rule) {
    if (!c->entries[rule]) {
        c->entries[rule] = add_inst(c, (struct inst){.kind = INST_JUMP});
        c->todo[c->n_todo++] = rule;
    }
    return c->entries[rule];
}

/* A call that nothing follows needs no node. */
static uint32_t emit_call(struct compiler *c, uint32_t rule, uint32_t next) {
    const struct expr *body = c->b->rules[rule].body;
    if (size_of(body, MAX_INLINED + 1) <= MAX_INLINED && !has_rules(body))
        return emit(c, body, next);
    uint32_t entry = entry_of(c, rule);
    if (next == 0)
        return entry;
    return add_inst(c, (struct inst){.kind = INST_CALL, .other = entry, .next = next});
}

/* The caller has checked that e can match. */
static uint32_t emit(struct compiler *c, const struct expr *e, uint32_t next) {
    if (c->is_out_of_memory || c->is_too_large)
        return 0;
    switch (e->kind) {
    case EXPR_BYTES:
        return emit_bytes(c, e->bytes, next);
    case EXPR_CLASS:
        return emit_class(c, e, next);
    case EXPR_SEQUENCE:
        for (uint32_t i = e->n; i-- > 0;)
            next = emit(c, e->parts[i], next);
        return next;
    case EXPR_CHOICE:
        return emit_choice(c, e, next);
    case EXPR_REPEAT:
        return emit_repeat(c, e, next);
    default:
        return emit_call(c, e->rule, next);
    }
}

static uint32_t target_of(const struct program *p, uint32_t pc) {
    while (p->insts[pc].kind == INST_JUMP)
        pc = p->insts[pc].next;
    return pc;
}

/* A call may be followed by a jump to the end: only known now. */
static void resolve_jumps(struct program *p) {
    for (uint32_t i = 0; i < p->n_insts; i++) {
        struct inst *inst = &p->insts[i];
        inst->next = target_of(p, inst->next);
        if (inst->kind == INST_SPLIT || inst->kind == INST_CALL)
            inst->other = target_of(p, inst->other);
    }
    for (uint32_t i = 0; i < p->n_loops; i++)
        p->loops[i].body = target_of(p, p->loops[i].body);
    p->start = target_of(p, p->start);
}

static void emit_rules(struct compiler *c, uint32_t root) {
    add_inst(c, (struct inst){.kind = INST_END});
    c->p->start = entry_of(c, root);
    while (c->n_todo && !c->is_out_of_memory && !c->is_too_large) {
        uint32_t rule = c->todo[--c->n_todo];
        uint32_t pc = emit(c, c->b->rules[rule].body, 0);
        c->p->insts[c->entries[rule]].next = pc;
    }
}

/* ---- compile ------------------------------------------------------------------------------ */

static int check_rules(const struct builder *b, struct err *err) {
    if (b->is_out_of_memory)
        return builder_fail(b, err);
    for (uint32_t i = 0; i < b->n_rules; i++)
        if (!b->rules[i].body)
            return err_set(err, SLUICE_ERR_FORMAT, "rule %.*s is used in line %u but not defined",
                           STR_ARG(b->rules[i].name), b->rules[i].line);
    return SLUICE_OK;
}

static bool make_tables(struct compiler *c) {
    uint32_t n = c->b->n_rules;
    struct arena *a = &c->b->arena;
    return (c->is_nullable = arena_array(a, n, sizeof(bool))) &&
           (c->is_productive = arena_array(a, n, sizeof(bool))) &&
           (c->entries = arena_array(a, n, sizeof(uint32_t))) &&
           (c->todo = arena_array(a, n, sizeof(uint32_t)));
}

static int compile(struct compiler *c, uint32_t root, struct err *err) {
    int status = check_rules(c->b, err);
    if (!status && !make_tables(c))
        status = builder_fail(c->b, err);
    if (!status)
        status = find_facts(c, err);
    if (!status)
        status = refuse_left_recursion(c, err);
    if (status)
        return status;
    if (!c->is_productive[root])
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "nothing follows the grammar: %.*s never ends",
                       STR_ARG(c->b->rules[root].name));
    emit_rules(c, root);
    if (c->is_too_large)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "the grammar is too large: more than %d instructions", PROGRAM_MAX_INSTS);
    if (c->is_out_of_memory)
        return builder_fail(c->b, err);
    resolve_jumps(c->p);
    return SLUICE_OK;
}

int program_compile(struct program *out, struct builder *b, uint32_t root, struct err *err) {
    struct compiler c = {.p = out, .b = b};
    *out = (struct program){0};
    int status = compile(&c, root, err);
    if (status)
        program_close(out);
    return status;
}

void program_close(struct program *p) {
    arena_free(&p->arena);
    *p = (struct program){0};
}
