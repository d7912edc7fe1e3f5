/* dfa.c - states, found by their threads, and transitions, computed on first use. */
#include "grammar/dfa.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum {
    MAX_STATES = 1 << 15,
    MAX_STATE_BYTES = 16 << 20, /* of the threads of states */
    MAX_NODES = NODES_MAX / 2,
    STATE_STEPS = 12, /* cost of a new transition, besides its threads */
};

/* ---- classes of bytes --------------------------------------------------------------------- */

/* Splits each class into the bytes inside and outside the set; returns how many there are. */
static uint32_t split_classes(uint8_t classes[256], const struct byte_set *set) {
    int16_t to[256][2];
    uint32_t n = 0;
    memset(to, -1, sizeof to);
    for (uint32_t b = 0; b < 256; b++) {
        int16_t *class = &to[classes[b]][set->bits[b / 32] >> b % 32 & 1];
        if (*class < 0)
            *class = (int16_t)n++;
        classes[b] = (uint8_t) * class;
    }
    return n;
}

static void find_classes(const struct program *p, uint8_t classes[256]) {
    bool is_boundary[257] = {false};
    for (uint32_t i = 0; i < p->n_insts; i++)
        if (p->insts[i].kind == INST_RANGE)
            is_boundary[p->insts[i].low] = is_boundary[p->insts[i].high + 1] = true;
    classes[0] = 0;
    for (uint32_t b = 1; b < 256; b++)
        classes[b] = (uint8_t)(classes[b - 1] + is_boundary[b]);
    for (uint32_t i = 0, n = 0; i < p->n_sets && n < 256; i++)
        n = split_classes(classes, &p->sets[i]);
}

/* ---- open and close ----------------------------------------------------------------------- */

bool dfa_open(struct dfa *d, const struct program *p) {
    *d = (struct dfa){.p = p, .capacity = 64, .n_slots = 2 * MAX_STATES};
    find_classes(p, d->classes);
    d->states = calloc(d->capacity, sizeof *d->states);
    d->next = calloc(d->capacity, 256 * sizeof *d->next);
    d->slots = calloc(d->n_slots, sizeof *d->slots);
    return d->states && d->next && d->slots && thread_set_begin(&d->set) && dfa_reset(d);
}

void dfa_close(struct dfa *d) {
    arena_free(&d->arena);
    nodes_free(&d->nodes);
    thread_set_free(&d->set);
    free(d->states);
    free(d->next);
    free(d->slots);
}

bool dfa_reset(struct dfa *d) {
    uint64_t steps = d->nodes.steps, max_steps = d->nodes.max_steps;
    arena_free(&d->arena);
    nodes_free(&d->nodes);
    memset(d->slots, 0, d->n_slots * sizeof *d->slots);
    memset(d->unions, 0, sizeof d->unions);
    d->n_states = DFA_DEAD + 1;
    bool is_ok = nodes_begin(&d->nodes);
    d->nodes.steps = steps;
    d->nodes.max_steps = max_steps;
    return is_ok;
}

bool dfa_is_large(const struct dfa *d) {
    const struct nodes *nodes = &d->nodes;
    bool is_there = nodes->first && nodes->edges && nodes->slots; /* dfa_reset did not fail */
    return !is_there || d->arena.used >= MAX_STATE_BYTES || d->n_states > MAX_STATES / 2 ||
           nodes->n > MAX_NODES || nodes->first[nodes->n] > NODES_MAX_EDGES / 2;
}

size_t dfa_bytes(const struct dfa *d) {
    return d->arena.used + d->capacity * (sizeof *d->states + 256 * sizeof *d->next) +
           d->n_slots * sizeof *d->slots + d->nodes.edge_capacity * sizeof *d->nodes.edges +
           (d->nodes.capacity + d->nodes.n_slots) * sizeof *d->nodes.slots;
}

/* ---- states ------------------------------------------------------------------------------- */

static bool grow_states(struct dfa *d) {
    if (d->n_states < d->capacity)
        return true;
    struct dfa_state *states = realloc(d->states, 2ul * d->capacity * sizeof *states);
    if (!states)
        return false;
    d->states = states;
    uint32_t *next = realloc(d->next, 2ul * d->capacity * 256 * sizeof *next);
    if (!next)
        return false;
    d->next = next;
    d->capacity *= 2;
    return true;
}

/* Where the state of the set just made is in the hash table, or goes. */
static uint32_t *slot_of(const struct dfa *d, uint64_t hash) {
    const struct thread_set *s = &d->set;
    uint32_t i = (uint32_t)hash & (d->n_slots - 1);
    for (; d->slots[i]; i = (i + 1) & (d->n_slots - 1)) {
        const struct dfa_state *old = &d->states[d->slots[i]];
        if (old->hash == hash && old->n == s->n && old->may_end == s->may_exit &&
            (s->n == 0 || memcmp(old->threads, s->threads, s->n * sizeof *s->threads) == 0))
            break;
    }
    return &d->slots[i];
}

/* DFA_UNKNOWN: no room. */
static uint32_t add_state(struct dfa *d, uint64_t hash) {
    const struct thread_set *s = &d->set;
    bool has_room = d->n_states < MAX_STATES && d->arena.used < MAX_STATE_BYTES;
    struct thread *copy = has_room ? arena_alloc(&d->arena, s->n * sizeof *copy) : NULL;
    if (!copy || !grow_states(d)) {
        d->is_full = true;
        return DFA_UNKNOWN;
    }
    if (s->n)
        memcpy(copy, s->threads, s->n * sizeof *copy);
    d->states[d->n_states] = (struct dfa_state){.threads = copy,
                                                .n = s->n,
                                                .rounds_left = DFA_NOT_COUNTED,
                                                .hash = hash,
                                                .may_end = s->may_exit};
    memset(d->next + 256ul * d->n_states, 0, 256 * sizeof *d->next);
    return d->n_states++;
}

/* The state of the set just made. */
static uint32_t intern(struct dfa *d) {
    const struct thread_set *s = &d->set;
    if (d->nodes.fault || !thread_set_finish(&d->set, &d->nodes))
        return DFA_UNKNOWN;
    if (s->n == 0 && !s->may_exit)
        return DFA_DEAD;
    uint64_t hash = hash64_of(s->threads, s->n * sizeof *s->threads) ^ s->may_exit;
    uint32_t *slot = slot_of(d, hash);
    if (*slot == 0)
        *slot = add_state(d, hash);
    return *slot;
}

uint32_t dfa_state_of(struct dfa *d, const struct thread *threads, uint32_t n) {
    bool is_ok = true;
    thread_set_clear(&d->set);
    for (uint32_t i = 0; i < n && is_ok; i++)
        is_ok = thread_set_put(&d->set, &d->nodes, (struct thread){threads[i].pc, NODE_BASE});
    return intern(d);
}

uint32_t dfa_state_after(struct dfa *d, uint32_t node) {
    bool is_ok = true;
    thread_set_clear(&d->set);
    for (uint32_t i = d->nodes.first[node]; i < d->nodes.first[node + 1] && is_ok; i++)
        is_ok = thread_set_return(&d->set, d->p, &d->nodes, d->nodes.edges[i]);
    return intern(d);
}

/* ---- transitions -------------------------------------------------------------------------- */

static uint32_t transition_to(const struct dfa *d, uint32_t state) {
    if (state <= DFA_DEAD || !d->states[state].may_end)
        return state;
    return state | (d->states[state].n ? DFA_ENDS : DFA_ENDS | DFA_ONLY_ENDS);
}

uint32_t dfa_find_next(struct dfa *d, uint32_t state, uint8_t byte) {
    const struct dfa_state *s = &d->states[state];
    bool is_ok = nodes_work(&d->nodes, s->n / 8 + STATE_STEPS);
    thread_set_clear(&d->set);
    for (uint32_t i = 0; i < s->n && is_ok; i++)
        is_ok = thread_set_step(&d->set, d->p, &d->nodes, s->threads[i], byte);
    uint32_t next = transition_to(d, intern(d));
    if (next == DFA_UNKNOWN)
        return DFA_DEAD; /* (3) */
    for (uint32_t b = 0; b < 256; b++)
        if (d->classes[b] == d->classes[byte])
            d->next[256ul * state + b] = next;
    return next;
}

static bool put_state(struct dfa *d, uint32_t state) {
    const struct dfa_state *s = &d->states[state];
    bool is_ok = nodes_work(&d->nodes, s->n);
    for (uint32_t i = 0; i < s->n && is_ok; i++)
        is_ok = thread_set_put(&d->set, &d->nodes, s->threads[i]);
    d->set.may_exit |= s->may_end;
    return is_ok;
}

uint32_t dfa_unite(struct dfa *d, uint32_t transition, uint32_t state) {
    uint32_t a = transition & DFA_STATE;
    if (transition == DFA_DEAD || a == state)
        return transition_to(d, state);
    struct dfa_union *u = &d->unions[(a * 31 + state) % DFA_UNIONS];
    if (u->both != DFA_UNKNOWN && u->a == a && u->b == state)
        return transition_to(d, u->both);
    thread_set_clear(&d->set);
    if (put_state(d, a))
        put_state(d, state); /* after a fault intern finds no state */
    uint32_t both = intern(d);
    if (both == DFA_UNKNOWN)
        return DFA_DEAD; /* (3) */
    *u = (struct dfa_union){a, state, both};
    return transition_to(d, both);
}
