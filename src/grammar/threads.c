/* threads.c - settling (epsilon closure): from positions that read nothing to those that read a
 * byte.
 *
 * (1) In one round of settling, from thread_set_clear on, a position with a node is visited once.
 * (2) A round of a loop that has read nothing is not counted: the loop's body may be empty then, it
 *     needs no rounds, and being at fewer rounds allows all that being at more does. The loop's
 *     node is fresh in such a round, and in no other.
 * (3) Fresh nodes lead to others without a circle: no rule calls itself before it reads a byte. */
#include "grammar/threads.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { FRESH = 1u << 31 }; /* in place of a node: the number of a fresh one */
#define NONE UINT32_MAX

struct fresh {
    uint32_t last;      /* of its edges, in a list; NONE: there is none */
    uint32_t looked_at; /* of them, while it is finished; NONE: all */
    uint32_t node;      /* 0: not finished */
    bool was_left;      /* its rule was empty, and its edges were followed */
};

struct fresh_edge {
    struct edge edge;
    uint32_t previous;
};

/* What was seen in this round: a position with a node (pc, node, NONE, 0), the fresh node of a rule
 * or a loop (pc of it, is_loop, NONE, 1), or a loop's edge (pc, below, fresh node, rounds). */
struct seen {
    uint32_t key[4];
    uint32_t value, stamp;
};

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    uint64_t h = ((uint64_t)a << 32 | b) + UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ h >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 31 ^ ((uint64_t)c << 32 | d)) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)(h >> 32);
}

static bool fail(struct nodes *nodes, enum fault fault) {
    if (!nodes->fault)
        nodes->fault = fault;
    return false;
}

/* Grows an array of n by one; `at` is the address of its pointer. */
static bool grow(struct nodes *nodes, void *at, uint32_t n, uint32_t *capacity, size_t size) {
    void *old, *more;
    if (n < *capacity)
        return true;
    memcpy(&old, at, sizeof old);
    more = realloc(old, 2ul * *capacity * size);
    if (!more)
        return fail(nodes, FAULT_MEMORY);
    memcpy(at, &more, sizeof more);
    *capacity *= 2;
    /* cppcheck-suppress memleak ; *at has it */
    return true;
}

/* ---- nodes -------------------------------------------------------------------------------- */

bool nodes_begin(struct nodes *nodes) {
    *nodes = (struct nodes){.n = 1, .capacity = 64, .edge_capacity = 64, .n_slots = 256};
    nodes->max_steps = UINT64_MAX;
    nodes->first = calloc(nodes->capacity, sizeof *nodes->first);
    nodes->edges = calloc(nodes->edge_capacity, sizeof *nodes->edges);
    nodes->slots = calloc(nodes->n_slots, sizeof *nodes->slots);
    return nodes->first && nodes->edges && nodes->slots;
}

void nodes_free(struct nodes *nodes) {
    free(nodes->first);
    free(nodes->edges);
    free(nodes->slots);
    *nodes = (struct nodes){0};
}

void nodes_allow(struct nodes *nodes, uint64_t steps) {
    nodes->steps = 0;
    nodes->max_steps = steps;
    nodes->fault = FAULT_NONE;
}

bool nodes_work(struct nodes *nodes, uint64_t steps) {
    nodes->steps += steps;
    return nodes->steps <= nodes->max_steps || fail(nodes, FAULT_STEPS);
}

static uint32_t hash_edges(const struct edge *edges, uint32_t n) {
    uint32_t h = n;
    for (uint32_t i = 0; i < n; i++)
        h = mix(edges[i].below, edges[i].pc, edges[i].count, h);
    return h;
}

static uint32_t *node_slot(const struct nodes *nodes, const struct edge *edges, uint32_t n) {
    uint32_t i = hash_edges(edges, n) & (nodes->n_slots - 1);
    for (; nodes->slots[i]; i = (i + 1) & (nodes->n_slots - 1)) {
        uint32_t first = nodes->first[nodes->slots[i]];
        if (nodes->first[nodes->slots[i] + 1] - first == n &&
            memcmp(nodes->edges + first, edges, n * sizeof *edges) == 0)
            break;
    }
    return &nodes->slots[i];
}

static void fill_slots(struct nodes *nodes) {
    for (uint32_t i = 1; i < nodes->n; i++) {
        uint32_t first = nodes->first[i];
        *node_slot(nodes, nodes->edges + first, nodes->first[i + 1] - first) = i;
    }
}

static bool grow_nodes(struct nodes *nodes, uint32_t n_edges) {
    uint32_t end = nodes->first[nodes->n];
    if (nodes->n == NODES_MAX || end + n_edges > NODES_MAX_EDGES)
        return fail(nodes, FAULT_NODES);
    while (end + n_edges > nodes->edge_capacity)
        if (!grow(nodes, &nodes->edges, nodes->edge_capacity, &nodes->edge_capacity,
                  sizeof *nodes->edges))
            return false;
    if (!grow(nodes, &nodes->first, nodes->n + 1, &nodes->capacity, sizeof *nodes->first))
        return false;
    if (2 * nodes->n < nodes->n_slots)
        return true;
    uint32_t *slots = calloc(4ul * nodes->n_slots, sizeof *slots);
    if (!slots)
        return fail(nodes, FAULT_MEMORY);
    free(nodes->slots);
    nodes->slots = slots;
    nodes->n_slots *= 4;
    fill_slots(nodes);
    return true;
}

uint32_t nodes_find(struct nodes *nodes, const struct edge *edges, uint32_t n) {
    uint32_t known = *node_slot(nodes, edges, n);
    if (known || !grow_nodes(nodes, n))
        return known;
    uint32_t first = nodes->first[nodes->n];
    memcpy(nodes->edges + first, edges, n * sizeof *edges);
    *node_slot(nodes, edges, n) = nodes->n;
    nodes->first[nodes->n + 1] = first + n;
    return nodes->n++;
}

static int compare_edges(const void *a, const void *b) {
    const struct edge *x = a, *y = b;
    if (x->below != y->below)
        return x->below < y->below ? -1 : 1;
    if (x->pc != y->pc)
        return x->pc < y->pc ? -1 : 1;
    return x->count < y->count ? -1 : x->count > y->count;
}

uint32_t edges_sort(struct edge *edges, uint32_t n) {
    uint32_t kept = 0;
    if (n > 1)
        qsort(edges, n, sizeof *edges, compare_edges);
    for (uint32_t i = 0; i < n; i++)
        if (kept == 0 || compare_edges(&edges[kept - 1], &edges[i]) != 0)
            edges[kept++] = edges[i];
    return kept;
}

/* Marks what the threads need in `to`; then gives it new numbers, from the lowest on. */
static void compact(struct nodes *nodes, uint32_t *to) {
    uint32_t kept = 1, end = 0;
    for (uint32_t i = nodes->n; i-- > 1;)
        for (uint32_t k = nodes->first[i]; to[i] && k < nodes->first[i + 1]; k++)
            to[nodes->edges[k].below] = 1;
    to[NODE_BASE] = NODE_BASE;
    for (uint32_t i = 1; i < nodes->n; i++) {
        uint32_t from = nodes->first[i], until = nodes->first[i + 1];
        if (!to[i])
            continue;
        nodes->first[kept] = end;
        for (uint32_t k = from; k < until; k++, end++) {
            nodes->edges[end] = nodes->edges[k];
            nodes->edges[end].below = to[nodes->edges[k].below];
        }
        to[i] = kept++;
    }
    nodes->first[kept] = end;
    nodes->n = kept;
    memset(nodes->slots, 0, nodes->n_slots * sizeof *nodes->slots);
    fill_slots(nodes);
}

bool nodes_collect(struct nodes *nodes, struct thread *threads, uint32_t n) {
    uint32_t *to = calloc(nodes->n, sizeof *to);
    if (!to)
        return false;
    for (uint32_t i = 0; i < n; i++)
        to[threads[i].node] = 1;
    compact(nodes, to);
    for (uint32_t i = 0; i < n; i++)
        threads[i].node = to[threads[i].node];
    free(to);
    return true;
}

/* ---- sets --------------------------------------------------------------------------------- */

bool thread_set_begin(struct thread_set *s) {
    *s = (struct thread_set){.capacity = 64,
                             .n_slots = 256,
                             .todo_capacity = 64,
                             .fresh_capacity = 16,
                             .edge_capacity = 16,
                             .sorted_capacity = 16};
    s->threads = calloc(s->capacity, sizeof *s->threads);
    s->seen = calloc(s->n_slots, sizeof *s->seen);
    s->todo = calloc(s->todo_capacity, sizeof *s->todo);
    s->fresh = calloc(s->fresh_capacity, sizeof *s->fresh);
    s->edges = calloc(s->edge_capacity, sizeof *s->edges);
    s->sorted = calloc(s->sorted_capacity, sizeof *s->sorted);
    thread_set_clear(s);
    return s->threads && s->seen && s->todo && s->fresh && s->edges && s->sorted;
}

void thread_set_free(struct thread_set *s) {
    free(s->threads);
    free(s->seen);
    free(s->todo);
    free(s->fresh);
    free(s->edges);
    free(s->sorted);
    *s = (struct thread_set){0};
}

void thread_set_clear(struct thread_set *s) {
    s->n = s->n_todo = s->n_seen = s->n_fresh = s->n_edges = 0;
    s->may_exit = false;
    if (++s->stamp == 0 && s->seen) {
        memset(s->seen, 0, s->n_slots * sizeof *s->seen);
        s->stamp = 1;
    }
}

static struct seen *seen_slot(const struct thread_set *s, const uint32_t key[4]) {
    uint32_t i = mix(key[0], key[1], key[2], key[3]) & (s->n_slots - 1);
    while (s->seen[i].stamp == s->stamp && memcmp(s->seen[i].key, key, sizeof s->seen[i].key) != 0)
        i = (i + 1) & (s->n_slots - 1);
    return &s->seen[i];
}

static bool grow_seen(struct thread_set *s, struct nodes *nodes) {
    struct thread_set old = *s;
    if (s->n_seen < s->n_slots / 2)
        return true;
    s->seen = calloc(2ul * s->n_slots, sizeof *s->seen);
    if (!s->seen) {
        s->seen = old.seen;
        return fail(nodes, FAULT_MEMORY);
    }
    s->n_slots *= 2;
    for (uint32_t i = 0; i < old.n_slots; i++)
        if (old.seen[i].stamp == s->stamp)
            *seen_slot(s, old.seen[i].key) = old.seen[i];
    free(old.seen);
    return true;
}

/* Finds or adds a key; NULL: a fault. */
static struct seen *see(struct thread_set *s, struct nodes *nodes, const uint32_t key[4],
                        bool *is_new) {
    if (!grow_seen(s, nodes))
        return NULL;
    struct seen *slot = seen_slot(s, key);
    *is_new = slot->stamp != s->stamp;
    if (*is_new) {
        memcpy(slot->key, key, sizeof slot->key);
        slot->stamp = s->stamp;
        slot->value = 0;
        s->n_seen++;
    }
    return slot;
}

/* Queues a position with its node, unless it was visited. */
static bool visit(struct thread_set *s, struct nodes *nodes, uint32_t pc, uint32_t node) {
    bool is_new;
    if (!see(s, nodes, (uint32_t[]){pc, node, NONE, 0}, &is_new))
        return false;
    if (!is_new)
        return true;
    if (!nodes_work(nodes, 1) ||
        !grow(nodes, &s->todo, s->n_todo, &s->todo_capacity, sizeof *s->todo))
        return false;
    s->todo[s->n_todo++] = (struct thread){pc, node};
    return true;
}

/* ---- fresh nodes -------------------------------------------------------------------------- */

/* The fresh node of a rule (by its first instruction) or of a loop (by its own); NONE: a fault. */
static uint32_t fresh_of(struct thread_set *s, struct nodes *nodes, uint32_t pc, bool is_loop) {
    bool is_new;
    struct seen *slot = see(s, nodes, (uint32_t[]){pc, is_loop, NONE, 1}, &is_new);
    if (!slot)
        return NONE;
    if (is_new) {
        if (!grow(nodes, &s->fresh, s->n_fresh, &s->fresh_capacity, sizeof *s->fresh))
            return NONE;
        slot->value = s->n_fresh;
        s->fresh[s->n_fresh++] = (struct fresh){.last = NONE};
    }
    return slot->value;
}

static bool add_edge(struct thread_set *s, struct nodes *nodes, uint32_t fresh, struct edge edge) {
    if (!nodes_work(nodes, 1) ||
        !grow(nodes, &s->edges, s->n_edges, &s->edge_capacity, sizeof *s->edges))
        return false;
    s->edges[s->n_edges] = (struct fresh_edge){edge, s->fresh[fresh].last};
    s->fresh[fresh].last = s->n_edges++;
    return true;
}

/* ---- settling ----------------------------------------------------------------------------- */

/* A caller of a rule already found to be empty continues at once. */
static bool enter_rule(struct thread_set *s, struct nodes *nodes, const struct inst *call,
                       uint32_t node) {
    if (call->next == 0)
        return visit(s, nodes, call->other, node);
    uint32_t fresh = fresh_of(s, nodes, call->other, false);
    if (fresh == NONE || !add_edge(s, nodes, fresh, (struct edge){node, call->next, EDGE_CALL}))
        return false;
    return visit(s, nodes, call->other, FRESH | fresh) &&
           (!s->fresh[fresh].was_left || visit(s, nodes, call->next, node));
}

/* Enters a loop after this many rounds. Beyond the loop's minimum only the lowest count is kept. */
static bool enter_loop(struct thread_set *s, const struct program *p, struct nodes *nodes,
                       uint32_t pc, uint32_t count, uint32_t node) {
    const struct loop *loop = &p->loops[p->insts[pc].other];
    bool is_new;
    if (count >= loop->min && !visit(s, nodes, p->insts[pc].next, node))
        return false;
    if (count >= loop->max)
        return true;
    uint32_t fresh = fresh_of(s, nodes, pc, true);
    struct seen *slot =
        fresh == NONE
            ? NULL
            : see(s, nodes, (uint32_t[]){pc, node, fresh, min_u32(count, loop->min)}, &is_new);
    if (!slot)
        return false;
    if (!is_new) {
        struct edge *known = &s->edges[slot->value].edge;
        known->count = min_u32(known->count, count);
        return true;
    }
    slot->value = s->n_edges;
    return add_edge(s, nodes, fresh, (struct edge){node, pc, count}) &&
           visit(s, nodes, loop->body, FRESH | fresh);
}

static bool leave(struct thread_set *s, const struct program *p, struct nodes *nodes,
                  struct edge edge) {
    if (edge.count == EDGE_CALL)
        return visit(s, nodes, edge.pc, edge.below);
    const struct loop *loop = &p->loops[p->insts[edge.pc].other];
    bool is_open = loop->max == REPEAT_NO_LIMIT;
    uint32_t count = is_open ? min_u32(edge.count + 1, loop->min) : edge.count + 1;
    return enter_loop(s, p, nodes, edge.pc, count, edge.below);
}

static bool leave_fresh(struct thread_set *s, struct nodes *nodes, uint32_t fresh) {
    bool is_ok = true;
    s->fresh[fresh].was_left = true;
    for (uint32_t i = s->fresh[fresh].last; i != NONE && is_ok; i = s->edges[i].previous) {
        struct edge edge = s->edges[i].edge;
        if (edge.count != EDGE_CALL)
            return true; /* (2) */
        is_ok = nodes_work(nodes, 1) && visit(s, nodes, edge.pc, edge.below);
    }
    return is_ok;
}

static bool end_rule(struct thread_set *s, const struct program *p, struct nodes *nodes,
                     uint32_t node) {
    bool is_ok = true;
    if (node & FRESH)
        return leave_fresh(s, nodes, node & ~FRESH);
    s->may_exit |= node == NODE_BASE;
    for (uint32_t i = nodes->first[node]; i < nodes->first[node + 1] && is_ok; i++)
        is_ok = nodes_work(nodes, 1) && leave(s, p, nodes, nodes->edges[i]);
    return is_ok;
}

bool thread_set_put(struct thread_set *s, struct nodes *nodes, struct thread t) {
    if (s->n >= THREADS_MAX)
        return fail(nodes, FAULT_THREADS);
    if (!grow(nodes, &s->threads, s->n, &s->capacity, sizeof *s->threads))
        return false;
    s->threads[s->n++] = t;
    return true;
}

static bool settle_one(struct thread_set *s, const struct program *p, struct nodes *nodes,
                       struct thread t) {
    const struct inst *inst = &p->insts[t.pc];
    switch (inst->kind) {
    case INST_END:
        return end_rule(s, p, nodes, t.node);
    case INST_SPLIT:
        return visit(s, nodes, inst->next, t.node) && visit(s, nodes, inst->other, t.node);
    case INST_CALL:
        return enter_rule(s, nodes, inst, t.node);
    case INST_LOOP:
        return enter_loop(s, p, nodes, t.pc, 0, t.node);
    default:
        return thread_set_put(s, nodes, t);
    }
}

static bool settle(struct thread_set *s, const struct program *p, struct nodes *nodes) {
    bool is_ok = true;
    while (s->n_todo && is_ok)
        is_ok = settle_one(s, p, nodes, s->todo[--s->n_todo]);
    return is_ok;
}

bool thread_set_add(struct thread_set *s, const struct program *p, struct nodes *nodes, uint32_t pc,
                    uint32_t node) {
    return visit(s, nodes, pc, node) && settle(s, p, nodes);
}

bool thread_set_return(struct thread_set *s, const struct program *p, struct nodes *nodes,
                       struct edge edge) {
    return leave(s, p, nodes, edge) && settle(s, p, nodes);
}

bool thread_set_step(struct thread_set *s, const struct program *p, struct nodes *nodes,
                     struct thread t, uint8_t byte) {
    return !program_reads(p, t.pc, byte) ||
           thread_set_add(s, p, nodes, p->insts[t.pc].next, t.node);
}

/* ---- finishing ---------------------------------------------------------------------------- */

/* Of a fresh one whose edges lead to nodes. */
static bool finish_fresh(struct thread_set *s, struct nodes *nodes, struct fresh *fresh) {
    uint32_t n = 0;
    for (uint32_t i = fresh->last; i != NONE; i = s->edges[i].previous, n++) {
        struct edge edge = s->edges[i].edge;
        if (!grow(nodes, &s->sorted, n, &s->sorted_capacity, sizeof *s->sorted))
            return false;
        if (edge.below & FRESH)
            edge.below = s->fresh[edge.below & ~FRESH].node;
        s->sorted[n] = edge;
    }
    n = edges_sort(s->sorted, n);
    fresh->node = nodes_find(nodes, s->sorted, n);
    return nodes_work(nodes, n) && fresh->node;
}

/* The next edge that leads to a fresh one that is not finished; NONE: there is none. */
static uint32_t next_below(const struct thread_set *s, struct fresh *fresh) {
    for (; fresh->looked_at != NONE; fresh->looked_at = s->edges[fresh->looked_at].previous) {
        uint32_t below = s->edges[fresh->looked_at].edge.below;
        if (below & FRESH && !s->fresh[below & ~FRESH].node)
            return below & ~FRESH;
    }
    return NONE;
}

/* Finishes those below first; the path is kept in `todo`. */
static bool finish_from(struct thread_set *s, struct nodes *nodes, uint32_t from) {
    bool is_ok = true;
    s->n_todo = 0;
    for (uint32_t at = from; is_ok;) {
        struct fresh *fresh = &s->fresh[at];
        uint32_t below = next_below(s, fresh);
        if (below != NONE) {
            is_ok = grow(nodes, &s->todo, s->n_todo, &s->todo_capacity, sizeof *s->todo);
            if (is_ok)
                s->todo[s->n_todo++].pc = at;
            at = below;
            s->fresh[at].looked_at = s->fresh[at].last;
            continue;
        }
        is_ok = finish_fresh(s, nodes, fresh);
        if (s->n_todo == 0)
            break;
        at = s->todo[--s->n_todo].pc;
    }
    s->n_todo = 0;
    return is_ok;
}

static int compare_threads(const void *a, const void *b) {
    const struct thread *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return x->pc < y->pc ? -1 : x->pc > y->pc;
}

bool thread_set_finish(struct thread_set *s, struct nodes *nodes) {
    for (uint32_t i = 0; i < s->n; i++) {
        struct thread *t = &s->threads[i];
        if (!(t->node & FRESH))
            continue;
        struct fresh *fresh = &s->fresh[t->node & ~FRESH];
        fresh->looked_at = fresh->last;
        if (!fresh->node && !finish_from(s, nodes, t->node & ~FRESH))
            return false;
        t->node = fresh->node;
    }
    if (s->n > 1)
        qsort(s->threads, s->n, sizeof *s->threads, compare_threads);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (kept == 0 || compare_threads(&s->threads[kept - 1], &s->threads[i]) != 0)
            s->threads[kept++] = s->threads[i];
    s->n = kept;
    return true;
}
