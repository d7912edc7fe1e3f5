/* masks.c - the walk of the trie, and the cache of its results.
 *
 * A state is a sorted set of threads without their nodes, and whether their rule may end here. Its
 * row of `next` is filled in as bytes occur. A chain of parts (masks.h) begins at a state and
 * continues by nodes.
 *
 * (1) State 0 stands for "not known yet" in `next`, state 1 for no threads and no end.
 * (2) Parts and states only grow, until all of it is emptied at once.
 * (3) A walk visits a node of the trie once, so it finds no token and no exit twice. */
#include "grammar/masks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/size.h"

enum {
    MAX_STATES = 1 << 15,
    MAX_BYTES = 48 << 20,       /* of parts; a cache that has more is emptied */
    MAX_STATE_BYTES = 16 << 20, /* of the threads of states */
    MAX_NODES = NODES_MAX / 2,
    FEW_TOKENS = 512, /* kept as a list beside a known mask */
    EXACT_ROUNDS = 8, /* rounds left, below which a loop's count is not rounded */
    N_UNIONS = 1024,
    N_SIZES = 5, /* classes of parts that lead to a node, by how many exits they have: 16, 256, 4096
                  * ... */
    VISITS_A_STEP = 2, /* nodes of the trie that cost as much as a step of settling */
    STATE_STEPS = 12,  /* cost of a byte that is new in a state, besides its threads */
    UNKNOWN = 0,
    DEAD = 1,
};

/* A number in `next`: the state, whether its rule may end there, and whether it can only end. */
enum { EXITS = 1 << 30, ENDS = 1 << 29, STATE = ENDS - 1 };

/* Instead of a state that plain characters lead to. LEAVES: all lead to the rule's end. MIXED: they
 * lead to different states. */
enum { LEAVES = ENDS, MIXED = ENDS + 1 };

struct state {
    struct thread *threads;
    uint32_t n;
    uint32_t part;  /* the chain that begins here; 0: none yet */
    uint32_t after; /* where any plain character leads; UNKNOWN, DEAD, LEAVES or MIXED */
    uint32_t left;  /* rounds_left; NOT_COUNTED: not known yet */
    uint64_t hash;
    bool may_exit;
};

struct part {
    uint32_t *bits;  /* (n_words), or NULL: the tokens are few */
    int32_t *tokens; /* (n_tokens) */
    uint32_t *exits; /* (n_exits) nodes of the trie */
    uint32_t n_tokens, n_exits;
    uint8_t plain;      /* it also has all texts of up to this many plain characters */
    bool is_char;       /* all plain characters are exits: char_nodes too */
    uint32_t from, via; /* the part whose exits it continues from, and by which node of the cache,
                         * or JOINED and the other part; 0: the first of a chain */
    uint32_t mask;      /* the last mask that it was added to */
    uint32_t same;      /* of two joined parts, the one that has all exits of both; 0: neither */
};

/* In place of the node that a part was made with: it has the exits of both, and no tokens. */
enum { JOINED = 1u << 31, NOT_COUNTED = UINT32_MAX };

/* The state of the threads of two. */
struct state_union {
    uint32_t a, b, both;
};

struct masks {
    const struct program *p;
    const struct token_texts *t;
    atomic_size_t bytes; /* of all that follows */
    pthread_mutex_t lock;
    struct arena state_arena, part_arena;
    struct nodes nodes;
    struct thread_set set;
    struct state *states;
    uint32_t *next;       /* (states, 256) */
    uint8_t classes[256]; /* of each byte; bytes of a class are alike to every instruction */
    uint32_t n_states, state_capacity;
    uint32_t *slots; /* a hash table of states, 0: free */
    uint32_t n_slots;
    struct part *parts;
    uint32_t n_parts, part_capacity;
    uint32_t *part_slots; /* (2 * part_capacity) a hash table by from and via, 0: free */
    uint32_t n_masks;     /* so far, to tell them apart */
    /* Of the walk that runs. */
    uint32_t *path;   /* (max_depth + 1) the state at each depth */
    int32_t *found;   /* (n_tokens) */
    uint32_t *exits;  /* (n_nodes) */
    uint32_t *starts; /* (n_nodes) where it begins, of more than one part */
    uint32_t n_found, n_exits;
    bool is_full; /* no more states fit: what was found is incomplete */
    struct state_union unions[N_UNIONS];
    /* Of the mask that is made. */
    uint32_t *pending; /* nodes of the matcher, as a heap: the highest first */
    uint32_t n_pending, pending_capacity;
    uint32_t *parts_at; /* (n_parts_at, N_SIZES) of its nodes: the parts whose exits lead there */
    uint32_t n_parts_at;
    struct edge *edges; /* of a node, in groups */
    uint32_t edge_capacity;
};

/* ---- classes of bytes --------------------------------------------------------------------- */

/* Splits byte classes into those inside and outside the set. */
static uint32_t split_classes(uint8_t classes[256], const struct byte_set *set) {
    int16_t to[256][2];
    uint32_t n = 0;
    memset(to, -1, sizeof to);
    for (uint32_t b = 0; b < 256; b++) {
        int16_t *c = &to[classes[b]][set->bits[b / 32] >> b % 32 & 1];
        if (*c < 0)
            *c = (int16_t)n++;
        classes[b] = (uint8_t)*c;
    }
    return n;
}

static void find_classes(const struct program *p, uint8_t classes[256]) {
    bool is_edge[257] = {false};
    for (uint32_t i = 0; i < p->n_insts; i++)
        if (p->insts[i].kind == INST_RANGE)
            is_edge[p->insts[i].low] = is_edge[p->insts[i].high + 1] = true;
    classes[0] = 0;
    for (uint32_t b = 1; b < 256; b++)
        classes[b] = (uint8_t)(classes[b - 1] + is_edge[b]);
    for (uint32_t i = 0, n = 0; i < p->n_sets && n < 256; i++)
        n = split_classes(classes, &p->sets[i]);
}

/* ---- open and close ----------------------------------------------------------------------- */

/* Bytes of the large tables. */
static void count_bytes(struct masks *m) {
    const struct token_texts *t = m->t;
    m->bytes = sizeof *m + m->state_arena.used + m->part_arena.used +
               m->state_capacity * (sizeof *m->states + 256 * sizeof *m->next) +
               m->part_capacity * (sizeof *m->parts + 2 * sizeof *m->part_slots) +
               m->n_slots * sizeof *m->slots + (size_t)t->n_tokens * sizeof *m->found +
               t->n_nodes * (sizeof *m->exits + sizeof *m->starts) +
               m->nodes.edge_capacity * sizeof *m->nodes.edges +
               (m->nodes.capacity + m->nodes.n_slots) * sizeof *m->nodes.slots;
}

size_t masks_bytes(const struct masks *m) {
    return m->bytes;
}

/* Drops everything that was computed. */
static bool begin(struct masks *m) {
    arena_free(&m->state_arena);
    arena_free(&m->part_arena);
    uint64_t steps = m->nodes.steps, max_steps = m->nodes.max_steps;
    nodes_free(&m->nodes);
    memset(m->slots, 0, m->n_slots * sizeof *m->slots);
    memset(m->part_slots, 0, 2ul * m->part_capacity * sizeof *m->part_slots);
    memset(m->unions, 0, sizeof m->unions);
    m->n_states = 2;
    m->n_parts = 1;
    bool is_ok = nodes_begin(&m->nodes);
    m->nodes.steps = steps;
    m->nodes.max_steps = max_steps;
    return is_ok;
}

static bool make_tables(struct masks *m) {
    const struct token_texts *t = m->t;
    m->state_capacity = 64;
    m->part_capacity = 64;
    m->n_slots = 2 * MAX_STATES;
    m->states = calloc(m->state_capacity, sizeof *m->states);
    m->next = calloc(m->state_capacity, 256 * sizeof *m->next);
    m->slots = calloc(m->n_slots, sizeof *m->slots);
    m->parts = calloc(m->part_capacity, sizeof *m->parts);
    m->part_slots = calloc(2ul * m->part_capacity, sizeof *m->part_slots);
    m->path = calloc(t->max_depth + 1ul, sizeof *m->path);
    m->found = calloc((size_t)t->n_tokens + 1, sizeof *m->found);
    m->exits = calloc(t->n_nodes + 1ul, sizeof *m->exits);
    m->starts = calloc(t->n_nodes + 1ul, sizeof *m->starts);
    m->pending_capacity = m->edge_capacity = 64;
    m->pending = calloc(m->pending_capacity, sizeof *m->pending);
    m->edges = calloc(m->edge_capacity, sizeof *m->edges);
    return m->states && m->next && m->slots && m->parts && m->part_slots && m->path && m->found &&
           m->exits && m->starts && m->pending && m->edges && thread_set_begin(&m->set) && begin(m);
}

int masks_open(struct masks **out, const struct program *p, const struct token_texts *t,
               struct err *err) {
    struct masks *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_memory(err, "the masks of a grammar");
    m->p = p;
    m->t = t;
    find_classes(p, m->classes);
    pthread_mutex_init(&m->lock, NULL);
    if (!make_tables(m)) {
        masks_close(m);
        return err_memory(err, "the masks of a grammar");
    }
    count_bytes(m);
    *out = m;
    return SLUICE_OK;
}

void masks_close(struct masks *m) {
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    arena_free(&m->state_arena);
    arena_free(&m->part_arena);
    nodes_free(&m->nodes);
    thread_set_free(&m->set);
    free(m->states);
    free(m->next);
    free(m->slots);
    free(m->parts);
    free(m->part_slots);
    free(m->path);
    free(m->found);
    free(m->exits);
    free(m->starts);
    free(m->pending);
    free(m->parts_at);
    free(m->edges);
    free(m);
}

/* ---- states ------------------------------------------------------------------------------- */

static bool grow_states(struct masks *m) {
    if (m->n_states < m->state_capacity)
        return true;
    struct state *states = realloc(m->states, 2ul * m->state_capacity * sizeof *states);
    if (!states)
        return false;
    m->states = states;
    uint32_t *next = realloc(m->next, 2ul * m->state_capacity * 256 * sizeof *next);
    if (!next)
        return false;
    m->next = next;
    m->state_capacity *= 2;
    return true;
}

/* The state of the set just made; UNKNOWN: no room for it, or a fault. */
static uint32_t intern(struct masks *m) {
    struct thread_set *s = &m->set;
    if (m->nodes.fault || !thread_set_finish(s, &m->nodes))
        return UNKNOWN;
    if (s->n == 0 && !s->may_exit)
        return DEAD;
    uint32_t n = s->n;
    size_t bytes = n * sizeof *s->threads;
    uint64_t hash = hash64_of(s->threads, bytes) ^ s->may_exit;
    uint32_t i = (uint32_t)hash & (m->n_slots - 1);
    for (; m->slots[i]; i = (i + 1) & (m->n_slots - 1)) {
        const struct state *old = &m->states[m->slots[i]];
        if (old->hash == hash && old->n == n && old->may_exit == s->may_exit &&
            (n == 0 || memcmp(old->threads, s->threads, bytes) == 0))
            return m->slots[i];
    }
    struct thread *copy = m->n_states < MAX_STATES && m->state_arena.used < MAX_STATE_BYTES
                              ? arena_alloc(&m->state_arena, bytes)
                              : NULL;
    if (!copy || !grow_states(m)) {
        m->is_full = true;
        return UNKNOWN;
    }
    if (n)
        memcpy(copy, s->threads, bytes);
    m->states[m->n_states] = (struct state){
        .threads = copy, .n = n, .left = NOT_COUNTED, .hash = hash, .may_exit = s->may_exit};
    memset(m->next + 256ul * m->n_states, 0, 256 * sizeof *m->next);
    m->slots[i] = m->n_states;
    return m->n_states++;
}

/* A number as in `next`. */
static uint32_t flagged(const struct masks *m, uint32_t state) {
    if (state <= DEAD || !m->states[state].may_exit)
        return state;
    return state | (m->states[state].n ? EXITS : EXITS | ENDS);
}

/* A state that finds no room counts as dead until the walk ends. */
static uint32_t find_next(struct masks *m, uint32_t state, uint8_t byte) {
    const struct state *s = &m->states[state];
    bool is_ok = nodes_work(&m->nodes, s->n / 8 + STATE_STEPS);
    thread_set_clear(&m->set);
    for (uint32_t i = 0; i < s->n && is_ok; i++)
        is_ok = thread_set_step(&m->set, m->p, &m->nodes, s->threads[i], byte);
    uint32_t next = flagged(m, intern(m));
    if (next == UNKNOWN)
        return DEAD;
    for (uint32_t b = 0; b < 256; b++)
        if (m->classes[b] == m->classes[byte])
            m->next[256ul * state + b] = next;
    return next;
}

static uint32_t next_of(struct masks *m, uint32_t state, uint8_t byte) {
    uint32_t next = m->next[256ul * state + byte];
    return next != UNKNOWN ? next : find_next(m, state, byte);
}

/* ---- plain characters --------------------------------------------------------------------- */

/* Of two places: the same, or MIXED. */
static uint32_t both(uint32_t a, uint32_t b) {
    return a == UNKNOWN || a == b ? b : MIXED;
}

/* Where all plain characters lead whose next byte is one of low .. high, and which have n bytes
 * left: as `after` of a state. */
static uint32_t after_bytes(struct masks *m, uint32_t state, uint8_t low, uint8_t high,
                            uint32_t n) {
    uint32_t all = UNKNOWN, last = UNKNOWN;
    for (uint32_t b = low; b <= high && all != MIXED; b++) {
        uint32_t next = next_of(m, state, (uint8_t)b);
        if (next == last) /* as nearly always */
            continue;
        last = next;
        if (next & EXITS)
            next = n == 1 && next & ENDS ? LEAVES : MIXED;
        else if (next != DEAD && n > 1)
            next = after_bytes(m, next, 0x80, 0xBF, n - 1);
        all = both(all, next);
    }
    return all;
}

static uint32_t after_plain(struct masks *m, uint32_t state) {
    uint32_t all = m->states[state].after;
    for (uint32_t b = 0x20; all != MIXED && !m->states[state].after && b < 0xF5; b++) {
        uint8_t low, high, byte = (uint8_t)b;
        uint32_t n = text_plain_begin(byte, &low, &high);
        if (n == 0)
            continue;
        uint32_t next = n == 1 ? UNKNOWN : next_of(m, state, byte);
        if (n == 1)
            next = after_bytes(m, state, byte, byte, 1);
        else if (next & EXITS)
            next = MIXED;
        else if (next != DEAD)
            next = after_bytes(m, next, low, high, n - 1);
        all = both(all, next);
    }
    if (!m->is_full && !m->nodes.fault)
        m->states[state].after = all;
    return all;
}

static bool is_state(uint32_t after) {
    return after > DEAD && after < LEAVES;
}

/* Whether a thread outside of loops could begin to read a plain character. */
static bool begins_plain(const struct masks *m, uint32_t pc) {
    for (uint32_t b = 0x20; b < 0xF5; b++) {
        uint8_t low, high;
        if (text_plain_begin((uint8_t)b, &low, &high) && program_reads(m->p, pc, (uint8_t)b))
            return true;
    }
    return false;
}

/* NULL: it has several. */
static const struct edge *only_edge(const struct nodes *nodes, uint32_t node) {
    uint32_t first = nodes->first[node];
    return nodes->first[node + 1] == first + 1 ? &nodes->edges[first] : NULL;
}

/* Where a plain character leads to the same threads one round later, and the loop has no minimum
 * left to reach, each of the rounds left reads one: a string with a maximum length. 0: otherwise.
 */
static uint32_t find_rounds_left(const struct masks *m, uint32_t state, uint32_t after) {
    const struct state *a = &m->states[state], *b = &m->states[after];
    struct edge loop = {0};
    if (a->n != b->n || a->n == 0 || a->may_exit || b->may_exit)
        return 0;
    for (uint32_t i = 0; i < a->n; i++) {
        bool is_base = a->threads[i].node == NODE_BASE;
        if (a->threads[i].pc != b->threads[i].pc || is_base != (b->threads[i].node == NODE_BASE) ||
            (is_base && begins_plain(m, a->threads[i].pc)))
            return 0;
        if (is_base)
            continue;
        const struct edge *e = only_edge(&m->nodes, a->threads[i].node);
        const struct edge *f = only_edge(&m->nodes, b->threads[i].node);
        if (!e || !f || e->count == EDGE_CALL || e->below != NODE_BASE || f->below != NODE_BASE ||
            e->pc != f->pc || f->count != e->count + 1 ||
            (loop.pc && (loop.pc != e->pc || loop.count != e->count)))
            return 0;
        loop = *e;
    }
    const struct loop *l = loop.pc ? &m->p->loops[m->p->insts[loop.pc].other] : NULL;
    bool is_even = l && !l->is_nullable && l->max != REPEAT_NO_LIMIT && loop.count >= l->min;
    return is_even ? l->max - loop.count : 0;
}

static uint32_t rounds_left(struct masks *m, uint32_t state, uint32_t after) {
    if (m->states[state].left == NOT_COUNTED)
        m->states[state].left = find_rounds_left(m, state, after);
    return m->states[state].left;
}

/* How many plain characters can be read from here, at most `max`; *end: where one more leads, if
 * fewer. Beyond TEXT_MAX_PLAIN they are counted only where each leads to the same threads, or to
 * the same but for a round of a loop. */
static uint32_t count_plain(struct masks *m, uint32_t state, uint32_t max, uint32_t *end) {
    for (uint32_t i = 0; i < max && i < TEXT_MAX_PLAIN; i++) {
        *end = after_plain(m, state);
        if (!is_state(*end))
            return i;
        if (*end == state)
            return max;
        uint32_t left = rounds_left(m, state, *end);
        if (left > 0) {
            *end = DEAD;
            return min_u32(left < max ? i + left : max, max);
        }
        state = *end;
    }
    return min_u32(max, TEXT_MAX_PLAIN);
}

/* Whether every text of this many plain characters can be read, and no rule ends on the way. */
static bool reads_plain(struct masks *m, uint32_t state, uint32_t n) {
    uint32_t end;
    return count_plain(m, state, n, &end) == n;
}

/* ---- the walk ----------------------------------------------------------------------------- */

static void find_tokens(struct masks *m, uint32_t from, uint32_t to) {
    memcpy(m->found + m->n_found, m->t->sorted + from, (to - from) * sizeof *m->found);
    m->n_found += to - from;
}

/* The union of a state reached at a place and one that begins there, as in `next`. */
static uint32_t unite(struct masks *m, uint32_t at, uint32_t state) {
    uint32_t a = at & STATE;
    bool is_ok = true;
    if (at == DEAD || a == state)
        return flagged(m, state);
    struct state_union *u = &m->unions[(a * 31 + state) % N_UNIONS];
    if (u->both != UNKNOWN && u->a == a && u->b == state)
        return flagged(m, u->both);
    thread_set_clear(&m->set);
    for (int k = 0; k < 2; k++) {
        const struct state *s = &m->states[k ? state : a];
        is_ok = is_ok && nodes_work(&m->nodes, s->n);
        for (uint32_t i = 0; i < s->n && is_ok; i++)
            is_ok = thread_set_put(&m->set, &m->nodes, s->threads[i]);
        m->set.may_exit |= s->may_exit;
    }
    uint32_t both = intern(m);
    if (both == UNKNOWN)
        return DEAD;
    *u = (struct state_union){a, state, both};
    return flagged(m, both);
}

/* What a walk begins with. */
struct walk {
    const uint32_t *starts; /* (n) nodes of the trie, from the lowest on */
    uint32_t n;
    uint32_t state; /* there */
    bool is_rest;   /* but not at nodes without has_other */
    uint32_t next;  /* the next of the starts */
};

/* Moves on to a node from one of this depth, skipping depths that no state has reached. */
static uint32_t jump_to(struct masks *m, uint32_t depth, uint32_t to) {
    for (; depth < m->t->nodes[to].depth; depth++)
        m->path[depth] = DEAD;
    return to;
}

/* After a node with nothing to find below it: the next start below it, or the node after its
 * subtree. */
static uint32_t skip_node(struct masks *m, const struct walk *w, uint32_t i) {
    const struct text_node *node = &m->t->nodes[i];
    bool is_below = w->next < w->n && w->starts[w->next] < node->skip;
    return is_below ? jump_to(m, node->depth, w->starts[w->next]) : node->skip;
}

/* Handles a node; returns the next. */
static uint32_t walk_node(struct masks *m, struct walk *w, uint32_t i) {
    const struct text_node *nodes = m->t->nodes, *node = &nodes[i];
    bool is_start = w->next < w->n && w->starts[w->next] == i;
    w->next += is_start;
    if (w->is_rest && !node->has_other)
        return node->skip;
    uint32_t at = node->depth ? next_of(m, m->path[node->depth - 1], node->byte) : DEAD;
    if (at != DEAD)
        find_tokens(m, node->first_token, nodes[i + 1].first_token);
    if (is_start)
        at = unite(m, at, w->state);
    if (at == DEAD)
        return skip_node(m, w, i);
    if (!(at & EXITS) && node->plain != TEXT_NOT_PLAIN && reads_plain(m, at, node->plain)) {
        find_tokens(m, nodes[i + 1].first_token, nodes[node->skip].first_token);
        return node->skip;
    }
    if (at & EXITS && node->skip > i + 1)
        m->exits[m->n_exits++] = i;
    if (at & ENDS)
        return skip_node(m, w, i);
    m->path[node->depth] = at & STATE;
    return i + 1;
}

/* Walks from nodes of the trie with a state: finds the tokens below them that fit, and the exits at
 * or below them. A start below another one joins the threads that come from there. */
static void walk(struct masks *m, struct walk w) {
    const struct text_node *nodes = m->t->nodes;
    uint32_t i = 0, end = 0, visits = 0;
    for (;; visits++) {
        while (w.next < w.n && w.starts[w.next] < i)
            w.next++;
        if (i >= end) {
            if (w.next == w.n)
                break;
            i = jump_to(m, 0, w.starts[w.next]);
            end = nodes[i].skip;
        }
        i = walk_node(m, &w, i);
        if (m->is_full || m->nodes.fault)
            break;
    }
    nodes_work(&m->nodes, visits / VISITS_A_STEP);
}

/* ---- parts -------------------------------------------------------------------------------- */

/* Where the part after another one is, or goes. */
static uint32_t *part_slot(const struct masks *m, uint32_t from, uint32_t via) {
    uint32_t last = 2 * m->part_capacity - 1;
    uint32_t i =
        (uint32_t)((from * UINT64_C(0x9E3779B97F4A7C15) ^ via) * UINT64_C(0xBF58476D1CE4E5B9) >>
                   32) &
        last;
    while (m->part_slots[i] &&
           (m->parts[m->part_slots[i]].from != from || m->parts[m->part_slots[i]].via != via))
        i = (i + 1) & last;
    return &m->part_slots[i];
}

static bool grow_parts(struct masks *m) {
    if (m->n_parts < m->part_capacity)
        return true;
    struct part *parts = realloc(m->parts, 2ul * m->part_capacity * sizeof *parts);
    if (!parts)
        return false;
    m->parts = parts;
    uint32_t *slots = calloc(4ul * m->part_capacity, sizeof *slots);
    if (!slots)
        return false;
    free(m->part_slots);
    m->part_slots = slots;
    m->part_capacity *= 2;
    for (uint32_t i = 1; i < m->n_parts; i++)
        if (m->parts[i].from)
            *part_slot(m, m->parts[i].from, m->parts[i].via) = i;
    return true;
}

static void *keep(struct masks *m, const void *from, size_t bytes) {
    void *copy = arena_alloc(&m->part_arena, bytes);
    if (copy && bytes)
        memcpy(copy, from, bytes);
    return copy;
}

/* Makes a part of what the walks found and of all texts of up to this many plain characters; 0 when
 * memory ran out. */
static uint32_t add_part(struct masks *m, uint32_t plain) {
    struct part part = {.n_tokens = m->n_found, .n_exits = m->n_exits};
    part.exits = keep(m, m->exits, m->n_exits * sizeof *m->exits);
    if (m->n_found < (plain ? FEW_TOKENS : m->t->n_words)) {
        part.tokens = keep(m, m->found, m->n_found * sizeof *m->found);
        part.plain = (uint8_t)plain;
    } else {
        part.bits = arena_array(&m->part_arena, m->t->n_words, sizeof *part.bits);
        if (part.bits)
            token_texts_add_plain(m->t, plain, part.bits);
        for (uint32_t i = 0; part.bits && i < m->n_found; i++)
            part.bits[m->found[i] / 32] |= 1u << m->found[i] % 32;
    }
    if (!part.exits || (!part.tokens && !part.bits) || !grow_parts(m))
        return 0;
    m->parts[m->n_parts] = part;
    return m->n_parts++;
}

/* Whether the walk was cut short. */
static bool is_cut(const struct masks *m) {
    return m->is_full || m->nodes.fault;
}

/* The part that a chain begins with; 0 when there is no room, or after a fault. */
static uint32_t first_part(struct masks *m, uint32_t state) {
    static const uint32_t root[] = {0};
    if (m->states[state].part)
        return m->states[state].part;
    uint32_t end = UNKNOWN, n = count_plain(m, state, TEXT_MAX_CHARS, &end);
    bool is_char = n == 0 && end == LEAVES, is_known = n >= TEXT_MAX_PLAIN || end == DEAD;
    m->n_found = m->n_exits = 0;
    if (!is_cut(m))
        walk(m, (struct walk){root, 1, state, is_char || is_known, 0});
    uint32_t part = is_cut(m) ? 0 : add_part(m, is_char ? 1 : is_known ? n : 0);
    m->states[state].part = part;
    if (part)
        m->parts[part].is_char = is_char;
    return part;
}

static bool has_exits(const struct masks *m, uint32_t part) {
    return m->parts[part].n_exits > 0 || (m->parts[part].is_char && m->t->n_char_nodes > 0);
}

/* Rounds the count of an edge whose loop has more rounds left than a token can use. */
static struct edge round_count(const struct program *p, struct edge e) {
    if (e.count == EDGE_CALL)
        return e;
    const struct loop *loop = &p->loops[p->insts[e.pc].other];
    uint32_t done = e.count + 1;
    if (loop->max == REPEAT_NO_LIMIT || done < loop->min || loop->max - done < EXACT_ROUNDS)
        return e;
    uint32_t left = EXACT_ROUNDS;
    while (left <= (loop->max - done) / 2 && left < 1024)
        left *= 2;
    e.count = loop->max - left - 1;
    return e;
}

/* The state that a node of the cache continues with; UNKNOWN: no room, or a fault. */
static uint32_t state_after(struct masks *m, uint32_t via) {
    bool is_ok = true;
    thread_set_clear(&m->set);
    for (uint32_t i = m->nodes.first[via]; i < m->nodes.first[via + 1] && is_ok; i++)
        is_ok = thread_set_return(&m->set, m->p, &m->nodes, m->nodes.edges[i]);
    return intern(m);
}

static void add_child(struct masks *m, uint32_t part, uint32_t child, uint32_t via) {
    m->parts[child].from = part;
    m->parts[child].via = via;
    *part_slot(m, part, via) = child;
}

/* Two sorted lists as one, without what is in both. */
static uint32_t merge_lists(const uint32_t *a, uint32_t n_a, const uint32_t *b, uint32_t n_b,
                            uint32_t *out) {
    uint32_t n = 0;
    for (uint32_t i = 0, k = 0; i < n_a || k < n_b;) {
        uint32_t x = i < n_a ? a[i] : UINT32_MAX, y = k < n_b ? b[k] : UINT32_MAX;
        out[n++] = min_u32(x, y);
        i += x <= y;
        k += y <= x;
    }
    return n;
}

/* The part after this one, by a node of the cache; 0 when there is no room, or after a fault. Where
 * the exits are plain characters, all texts of n more of them fit if the state after them reads n.
 */
static uint32_t next_part(struct masks *m, uint32_t part, uint32_t via) {
    uint32_t child = *part_slot(m, part, via);
    if (child)
        return child;
    uint32_t state = state_after(m, via), n = 0, end = UNKNOWN;
    const struct part *from = &m->parts[part];
    m->n_found = m->n_exits = 0;
    if (state > DEAD && from->is_char && !m->states[state].may_exit)
        n = count_plain(m, state, TEXT_MAX_CHARS - 1, &end);
    bool is_known = n >= TEXT_MAX_PLAIN - 1 || end == DEAD;
    struct walk w = {from->exits, from->n_exits, state, is_known, 0};
    if (from->is_char && !is_known) {
        w.starts = m->starts;
        w.n = merge_lists(from->exits, from->n_exits, m->t->char_nodes, m->t->n_char_nodes,
                          m->starts);
    }
    if (state > DEAD && !is_cut(m))
        walk(m, w);
    if (state == UNKNOWN || is_cut(m) || !(child = add_part(m, is_known ? n + 1 : 0)))
        return 0;
    add_child(m, part, child, via);
    return child;
}

/* A part with the exits of two, maybe one of them; 0 when there is no room, or after a fault. */
static uint32_t join_parts(struct masks *m, uint32_t a, uint32_t b) {
    uint32_t both = *part_slot(m, a, JOINED | b);
    if (a == b)
        return a;
    if (both)
        return m->parts[both].same ? m->parts[both].same : both;
    const struct part *x = &m->parts[a], *y = &m->parts[b];
    bool is_char = x->is_char || y->is_char;
    m->n_found = 0;
    m->n_exits = merge_lists(x->exits, x->n_exits, y->exits, y->n_exits, m->exits);
    bool is_a = m->n_exits == x->n_exits && is_char == x->is_char;
    bool is_b = m->n_exits == y->n_exits && is_char == y->is_char;
    if (!nodes_work(&m->nodes, m->n_exits / 8 + 1))
        return 0;
    if (is_a || is_b)
        m->n_exits = 0;
    both = add_part(m, 0);
    if (!both)
        return 0;
    m->parts[both].same = is_a ? a : is_b ? b : 0;
    m->parts[both].is_char = is_char;
    add_child(m, a, both, JOINED | b);
    return is_a ? a : is_b ? b : both;
}

/* ---- masks -------------------------------------------------------------------------------- */

static void add_to_mask(struct masks *m, struct part *part, uint32_t *mask) {
    if (part->mask == m->n_masks)
        return;
    part->mask = m->n_masks;
    nodes_work(&m->nodes, (part->bits || part->plain ? m->t->n_words : part->n_tokens) / 64);
    if (part->plain)
        token_texts_add_plain(m->t, part->plain, mask);
    for (uint32_t i = 0; part->bits && i < m->t->n_words; i++)
        mask[i] |= part->bits[i];
    for (uint32_t i = 0; !part->bits && i < part->n_tokens; i++)
        mask[part->tokens[i] / 32] |= 1u << part->tokens[i] % 32;
}

/* The state of threads that share a node; UNKNOWN: no room. */
static uint32_t state_of(struct masks *m, const struct thread *threads, uint32_t n) {
    bool is_ok = true;
    thread_set_clear(&m->set);
    for (uint32_t i = 0; i < n && is_ok; i++)
        is_ok = thread_set_put(&m->set, &m->nodes, (struct thread){threads[i].pc, NODE_BASE});
    return intern(m);
}

static bool push_pending(struct masks *m, uint32_t node) {
    if (m->n_pending == m->pending_capacity) {
        uint32_t *more = realloc(m->pending, 2ul * m->pending_capacity * sizeof *more);
        if (!more)
            return false;
        m->pending = more;
        m->pending_capacity *= 2;
    }
    uint32_t i = m->n_pending++;
    for (; i > 0 && m->pending[(i - 1) / 2] < node; i = (i - 1) / 2)
        m->pending[i] = m->pending[(i - 1) / 2];
    m->pending[i] = node;
    return true;
}

static uint32_t pop_pending(struct masks *m) {
    uint32_t highest = m->pending[0], last = m->pending[--m->n_pending], i = 0;
    for (uint32_t k = 1; k < m->n_pending; k = 2 * i + 1) {
        k += k + 1 < m->n_pending && m->pending[k + 1] > m->pending[k];
        if (m->pending[k] <= last)
            break;
        m->pending[i] = m->pending[k];
        i = k;
    }
    m->pending[i] = last;
    return highest;
}

static uint32_t size_class(const struct masks *m, uint32_t part) {
    const struct part *p = &m->parts[part];
    uint32_t class = 0, n = p->n_exits + (p->is_char ? m->t->n_char_nodes : 0);
    for (; n >= 16 && class < N_SIZES - 1; n /= 16)
        class ++;
    return class;
}

static bool is_empty(const uint32_t parts[N_SIZES]) {
    uint32_t any = 0;
    for (uint32_t i = 0; i < N_SIZES; i++)
        any |= parts[i];
    return any == 0;
}

/* Adds the part to the mask. What its exits lead to is handled later, once for all parts that lead
 * to the same node. Few exits are not joined with many: with the next few all would be walked
 * again. */
static bool add_and_pend(struct masks *m, uint32_t part, uint32_t node, uint32_t *mask) {
    if (part == 0)
        return false;
    add_to_mask(m, &m->parts[part], mask);
    if (node == NODE_BASE || !has_exits(m, part))
        return true;
    uint32_t *all = m->parts_at + (size_t)node * N_SIZES, *at = all + size_class(m, part);
    if (is_empty(all) &&
        !push_pending(m, node)) /* first: on failure add_all empties what is pending */
        return false;
    *at = *at ? join_parts(m, *at, part) : part;
    return *at;
}

/* The edges of a matcher's node that lead to one below it, as a node of the cache; 0: a fault. */
static uint32_t via_of(struct masks *m, const struct edge *edges, uint32_t n) {
    while (n > m->edge_capacity) {
        struct edge *more = realloc(m->edges, 2ul * m->edge_capacity * sizeof *more);
        if (!more)
            return 0;
        m->edges = more;
        m->edge_capacity *= 2;
    }
    for (uint32_t i = 0; i < n; i++) {
        m->edges[i] = round_count(m->p, edges[i]);
        m->edges[i].below = NODE_BASE;
    }
    return nodes_work(&m->nodes, n + 3) ? nodes_find(&m->nodes, m->edges, edges_sort(m->edges, n))
                                        : 0;
}

/* Continues from the exits that lead to the highest node: others may lead to nodes below it. */
static bool go_below(struct masks *m, const struct nodes *nodes, uint32_t *mask) {
    uint32_t node = pop_pending(m), end = nodes->first[node + 1], parts[N_SIZES];
    uint32_t *at = m->parts_at + (size_t)node * N_SIZES;
    bool is_ok = true;
    memcpy(parts, at, sizeof parts);
    memset(at, 0, sizeof parts);
    for (uint32_t i = nodes->first[node], same; i < end && is_ok; i = same) {
        const struct edge *edges = nodes->edges + i;
        for (same = i + 1; same < end && nodes->edges[same].below == edges->below;)
            same++;
        uint32_t via = via_of(m, edges, same - i);
        is_ok = via;
        for (uint32_t k = 0; k < N_SIZES && is_ok; k++)
            is_ok = !parts[k] || add_and_pend(m, next_part(m, parts[k], via), edges->below, mask);
    }
    return is_ok;
}

/* Grows the table of parts at each of the matcher's nodes. */
static bool grow_parts_at(struct masks *m, uint32_t n) {
    if (n <= m->n_parts_at)
        return true;
    free(m->parts_at);
    m->n_parts_at = 2 * n;
    m->parts_at = calloc(m->n_parts_at, N_SIZES * sizeof *m->parts_at);
    m->n_parts_at = m->parts_at ? m->n_parts_at : 0;
    return m->parts_at;
}

static bool add_all(struct masks *m, const struct thread *threads, uint32_t n,
                    const struct nodes *nodes, uint32_t *mask) {
    bool is_ok = grow_parts_at(m, nodes->n);
    m->n_pending = 0;
    m->n_masks++;
    m->is_full = false;
    for (uint32_t i = 0, same; i < n && is_ok; i = same) {
        for (same = i + 1; same < n && threads[same].node == threads[i].node;)
            same++;
        uint32_t state = state_of(m, threads + i, same - i);
        is_ok = state > DEAD && add_and_pend(m, first_part(m, state), threads[i].node, mask);
    }
    while (is_ok && m->n_pending)
        is_ok = go_below(m, nodes, mask);
    while (m->n_pending)
        memset(m->parts_at + (size_t)m->pending[--m->n_pending] * N_SIZES, 0,
               N_SIZES * sizeof *m->parts_at);
    return is_ok;
}

static bool is_too_large(const struct masks *m) {
    bool is_there = m->nodes.first && m->nodes.edges && m->nodes.slots;
    return !is_there || m->part_arena.used > MAX_BYTES || m->state_arena.used >= MAX_STATE_BYTES ||
           m->n_states > MAX_STATES / 2 || m->nodes.n > MAX_NODES ||
           m->nodes.first[m->nodes.n] > NODES_MAX_EDGES / 2;
}

enum fault masks_add(struct masks *m, const struct thread *threads, uint32_t n,
                     const struct nodes *nodes, uint32_t *mask, uint64_t *steps) {
    pthread_mutex_lock(&m->lock);
    nodes_allow(&m->nodes, *steps);
    bool is_ok = (!is_too_large(m) || begin(m)) && add_all(m, threads, n, nodes, mask);
    if (!is_ok && (m->is_full || m->nodes.fault == FAULT_NODES))
        is_ok = begin(m) && add_all(m, threads, n, nodes, mask); /* again, with an empty cache */
    enum fault fault = is_ok ? FAULT_NONE : m->nodes.fault ? m->nodes.fault : FAULT_MEMORY;
    *steps = m->nodes.steps;
    if (!is_ok)
        begin(m); /* nothing half done stays */
    count_bytes(m);
    pthread_mutex_unlock(&m->lock);
    return fault;
}

bool masks_are_steady(struct masks *m, const struct thread *threads, uint32_t n, uint64_t steps) {
    for (uint32_t i = 1; i < n; i++)
        if (threads[i].node != threads[0].node)
            return false;
    pthread_mutex_lock(&m->lock);
    nodes_allow(&m->nodes, steps);
    m->is_full = false;
    uint32_t state = n > 0 && !is_too_large(m) ? state_of(m, threads, n) : UNKNOWN;
    bool is_steady = state > DEAD && after_plain(m, state) == state && !is_cut(m);
    pthread_mutex_unlock(&m->lock);
    return is_steady;
}
