/* masks.c - the walk of the trie, and what is kept of it.
 *
 * A state is a set of threads above an empty stack, sorted, and whether its rule may end here. Its
 * row of `next` is filled in as bytes are met. A part (masks.h) begins a chain at a state and goes
 * on below it by frames.
 *
 * (1) State 0 stands for "not known yet" in `next`, state 1 for no threads and no end.
 * (2) Parts and states only grow, until all of it is emptied at once. */
#include "grammar/masks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/size.h"

enum {
    MAX_STATES = 1 << 15,
    MAX_BYTES = 48 << 20,       /* of parts; a cache that has more is emptied */
    MAX_STATE_BYTES = 16 << 20, /* of the threads of states */
    MAX_THREADS = 2048,         /* of a state; more are dropped */
    EXACT_ROUNDS = 8,           /* rounds left, below which a loop's count is not rounded */
    UNKNOWN = 0,
    DEAD = 1,
};

/* A number in `next`: the state, whether its rule may end there, and whether it can only end. */
enum { EXITS = 1 << 30, ENDS = 1 << 29, STATE = ENDS - 1 };

struct state {
    struct thread *threads;
    uint32_t n;
    uint32_t part; /* the chain that begins here; 0: none yet */
    uint64_t hash;
    bool may_exit;
};

struct part {
    uint32_t *bits;  /* (n_words), or NULL: the tokens are few */
    int32_t *tokens; /* (n_tokens) */
    uint32_t *exits; /* (n_exits) nodes of the trie */
    uint32_t n_tokens, n_exits;
    uint32_t pc, count;      /* the frame that it was made with; of the first in a chain: none */
    uint32_t child, sibling; /* parts that go on from its exits; 0: none */
};

struct masks {
    const struct program *p;
    const struct token_texts *t;
    pthread_mutex_t lock;
    struct arena state_arena, part_arena;
    struct frames frames;
    struct thread_set set;
    struct state *states;
    uint32_t *next; /* (states, 256) */
    uint32_t n_states, state_capacity;
    uint32_t *slots; /* a hash table of states, 0: free */
    uint32_t n_slots;
    struct part *parts;
    uint32_t n_parts, part_capacity;
    /* Of the walk that runs. */
    uint32_t *path;  /* (max_depth + 1) the state at each depth */
    int32_t *found;  /* (n_tokens) */
    uint32_t *exits; /* (n_nodes) */
    uint32_t n_found, n_exits;
};

/* ---- open and close ---------------------------------------------------------------------------
 */

/* Everything that was computed goes. */
static bool begin(struct masks *m) {
    arena_free(&m->state_arena);
    arena_free(&m->part_arena);
    frames_free(&m->frames);
    memset(m->slots, 0, m->n_slots * sizeof *m->slots);
    m->n_states = 2;
    m->n_parts = 1;
    return frames_begin(&m->frames);
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
    m->path = calloc(t->max_depth + 1ul, sizeof *m->path);
    m->found = calloc((size_t)t->n_tokens + 1, sizeof *m->found);
    m->exits = calloc(t->n_nodes + 1ul, sizeof *m->exits);
    return m->states && m->next && m->slots && m->parts && m->path && m->found && m->exits &&
           thread_set_begin(&m->set) && begin(m);
}

int masks_open(struct masks **out, const struct program *p, const struct token_texts *t,
               struct err *err) {
    struct masks *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_memory(err, "the masks of a grammar");
    m->p = p;
    m->t = t;
    pthread_mutex_init(&m->lock, NULL);
    if (!make_tables(m)) {
        masks_close(m);
        return err_memory(err, "the masks of a grammar");
    }
    *out = m;
    return SLUICE_OK;
}

void masks_close(struct masks *m) {
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    arena_free(&m->state_arena);
    arena_free(&m->part_arena);
    frames_free(&m->frames);
    thread_set_free(&m->set);
    free(m->states);
    free(m->next);
    free(m->slots);
    free(m->parts);
    free(m->path);
    free(m->found);
    free(m->exits);
    free(m);
}

/* ---- states -----------------------------------------------------------------------------------
 */

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

/* The state of the set that was made; UNKNOWN when there is no room for it. */
static uint32_t intern(struct masks *m) {
    struct thread_set *s = &m->set;
    if (s->n == 0 && !s->may_exit)
        return DEAD;
    thread_set_sort(s);
    uint32_t n = min_u32(s->n, MAX_THREADS);
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
    if (!copy || !grow_states(m))
        return UNKNOWN;
    if (n)
        memcpy(copy, s->threads, bytes);
    m->states[m->n_states] =
        (struct state){.threads = copy, .n = n, .hash = hash, .may_exit = s->may_exit};
    memset(m->next + 256ul * m->n_states, 0, 256 * sizeof *m->next);
    m->slots[i] = m->n_states;
    return m->n_states++;
}

/* Where there is no room for a state there is none: fewer tokens are allowed. */
static uint32_t find_next(struct masks *m, uint32_t state, uint8_t byte) {
    const struct state *s = &m->states[state];
    bool is_ok = true;
    thread_set_clear(&m->set);
    for (uint32_t i = 0; i < s->n && is_ok; i++)
        is_ok = thread_set_step(&m->set, m->p, &m->frames, s->threads[i], byte);
    uint32_t next = is_ok ? intern(m) : UNKNOWN;
    if (next <= DEAD)
        next = DEAD;
    else if (m->states[next].may_exit)
        next |= m->states[next].n ? EXITS : EXITS | ENDS;
    m->next[256ul * state + byte] = next;
    return next;
}

/* ---- the walk ---------------------------------------------------------------------------------
 */

/* From a node of the trie, with the state there: tokens below it that fit, and exits below it. */
static void walk(struct masks *m, uint32_t from, uint32_t state) {
    const struct token_texts *t = m->t;
    const struct text_node *nodes = t->nodes;
    uint32_t end = nodes[from].skip;
    m->path[nodes[from].depth] = state;
    for (uint32_t i = from + 1; i < end;) {
        const struct text_node *node = &nodes[i];
        uint32_t above = m->path[node->depth - 1];
        uint32_t at = m->next[256ul * above + node->byte];
        if (at == UNKNOWN)
            at = find_next(m, above, node->byte);
        if (at == DEAD) {
            i = node->skip;
            continue;
        }
        m->path[node->depth] = at & STATE;
        for (uint32_t k = node->first_token; k < nodes[i + 1].first_token; k++)
            m->found[m->n_found++] = t->sorted[k];
        if (at & EXITS && node->skip > i + 1)
            m->exits[m->n_exits++] = i;
        i = at & ENDS ? node->skip : i + 1;
    }
}

/* ---- parts ------------------------------------------------------------------------------------
 */

static bool grow_parts(struct masks *m) {
    if (m->n_parts < m->part_capacity)
        return true;
    struct part *parts = realloc(m->parts, 2ul * m->part_capacity * sizeof *parts);
    if (!parts)
        return false;
    m->parts = parts;
    m->part_capacity *= 2;
    return true;
}

static void *keep(struct masks *m, const void *from, size_t bytes) {
    void *copy = arena_alloc(&m->part_arena, bytes);
    if (copy && bytes)
        memcpy(copy, from, bytes);
    return copy;
}

/* What the walks found, as a part; 0 when memory ran out. */
static uint32_t add_part(struct masks *m) {
    struct part part = {.n_tokens = m->n_found, .n_exits = m->n_exits};
    part.exits = keep(m, m->exits, m->n_exits * sizeof *m->exits);
    if (m->n_found < m->t->n_words) {
        part.tokens = keep(m, m->found, m->n_found * sizeof *m->found);
    } else {
        part.bits = arena_array(&m->part_arena, m->t->n_words, sizeof *part.bits);
        for (uint32_t i = 0; part.bits && i < m->n_found; i++)
            part.bits[m->found[i] / 32] |= 1u << m->found[i] % 32;
    }
    if (!part.exits || (!part.tokens && !part.bits) || !grow_parts(m))
        return 0;
    m->parts[m->n_parts] = part;
    return m->n_parts++;
}

/* The part that a chain begins with; 0 when memory ran out. */
static uint32_t first_part(struct masks *m, uint32_t state) {
    if (!m->states[state].part) {
        m->n_found = m->n_exits = 0;
        walk(m, 0, state);
        m->states[state].part = add_part(m);
    }
    return m->states[state].part;
}

/* A frame whose loop has so many rounds left that a token cannot tell. */
static struct frame round_count(const struct program *p, struct frame f) {
    if (f.count == FRAME_CALL)
        return f;
    const struct loop *loop = &p->loops[p->insts[f.pc].other];
    uint32_t done = f.count + 1;
    if (loop->max == REPEAT_NO_LIMIT || done < loop->min || loop->max - done < EXACT_ROUNDS)
        return f;
    uint32_t left = EXACT_ROUNDS;
    while (left <= (loop->max - done) / 2 && left < 1024)
        left *= 2;
    f.count = loop->max - left - 1;
    return f;
}

/* The state with which the frame below goes on; UNKNOWN when there is no room. */
static uint32_t state_after(struct masks *m, struct frame frame) {
    frame.below = FRAME_BASE;
    thread_set_clear(&m->set);
    return thread_set_return(&m->set, m->p, &m->frames, frame) ? intern(m) : UNKNOWN;
}

static uint32_t find_child(const struct masks *m, uint32_t part, struct frame frame) {
    uint32_t i = m->parts[part].child;
    while (i && (m->parts[i].pc != frame.pc || m->parts[i].count != frame.count))
        i = m->parts[i].sibling;
    return i;
}

/* The part after this one, for this frame; 0 when memory ran out. */
static uint32_t next_part(struct masks *m, uint32_t part, struct frame frame) {
    frame = round_count(m->p, frame);
    uint32_t child = find_child(m, part, frame);
    if (child)
        return child;
    uint32_t state = state_after(m, frame);
    m->n_found = m->n_exits = 0;
    for (uint32_t i = 0; state > DEAD && i < m->parts[part].n_exits; i++) {
        uint32_t node = m->parts[part].exits[i];
        if (m->states[state].may_exit)
            m->exits[m->n_exits++] = node;
        walk(m, node, state);
    }
    if (state == UNKNOWN || !(child = add_part(m)))
        return 0;
    m->parts[child].pc = frame.pc;
    m->parts[child].count = frame.count;
    m->parts[child].sibling = m->parts[part].child;
    m->parts[part].child = child;
    return child;
}

/* ---- masks ------------------------------------------------------------------------------------
 */

static void add_to_mask(const struct masks *m, const struct part *part, uint32_t *mask) {
    for (uint32_t i = 0; part->bits && i < m->t->n_words; i++)
        mask[i] |= part->bits[i];
    for (uint32_t i = 0; !part->bits && i < part->n_tokens; i++)
        mask[part->tokens[i] / 32] |= 1u << part->tokens[i] % 32;
}

/* Of threads with the same stack. */
static bool add_group(struct masks *m, const struct thread *threads, uint32_t n,
                      const struct frames *frames, uint32_t *mask) {
    bool is_ok = true;
    thread_set_clear(&m->set);
    for (uint32_t i = 0; i < n && is_ok; i++)
        is_ok = thread_set_add(&m->set, m->p, &m->frames, threads[i].pc, FRAME_BASE);
    uint32_t state = is_ok ? intern(m) : UNKNOWN;
    uint32_t part = state > DEAD ? first_part(m, state) : 0;
    for (uint32_t frame = threads[0].frame; part;) {
        add_to_mask(m, &m->parts[part], mask);
        if (m->parts[part].n_exits == 0 || frame == FRAME_BASE)
            return true;
        part = next_part(m, part, frames->at[frame]);
        frame = frames->at[frame].below;
    }
    return false;
}

static bool is_too_large(const struct masks *m) {
    return m->part_arena.used > MAX_BYTES || m->state_arena.used >= MAX_STATE_BYTES ||
           m->n_states > MAX_STATES / 2 || m->frames.n > THREADS_MAX_FRAMES / 2;
}

bool masks_add(struct masks *m, const struct thread *threads, uint32_t n,
               const struct frames *frames, uint32_t *mask) {
    bool is_ok = true;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0, same; i < n && is_ok; i = same) {
        for (same = i + 1; same < n && threads[same].frame == threads[i].frame;)
            same++;
        is_ok = !is_too_large(m) || begin(m);
        is_ok = is_ok && add_group(m, threads + i, same - i, frames, mask);
    }
    pthread_mutex_unlock(&m->lock);
    return is_ok;
}
