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
    FEW_TOKENS = 512,           /* that are kept as a list beside a known mask */
    EXACT_ROUNDS = 8,           /* rounds left, below which a loop's count is not rounded */
    UNKNOWN = 0,
    DEAD = 1,
};

/* A number in `next`: the state, whether its rule may end there, and whether it can only end. */
enum { EXITS = 1 << 30, ENDS = 1 << 29, STATE = ENDS - 1 };

/* In place of a state, where plain characters lead: all to the end of the rule; not all to one. */
enum { LEAVES = ENDS, MIXED = ENDS + 1 };

struct state {
    struct thread *threads;
    uint32_t n;
    uint32_t part;  /* the chain that begins here; 0: none yet */
    uint32_t after; /* where any plain character leads; UNKNOWN, DEAD, LEAVES or MIXED */
    uint64_t hash;
    bool may_exit;
};

struct part {
    uint32_t *bits;  /* (n_words), or NULL: the tokens are few */
    int32_t *tokens; /* (n_tokens) */
    uint32_t *exits; /* (n_exits) nodes of the trie */
    uint32_t n_tokens, n_exits;
    uint8_t plain;           /* texts of up to so many plain characters are in it too */
    bool is_char;            /* all plain characters are exits: char_nodes too */
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
    uint32_t *next;       /* (states, 256) */
    uint8_t classes[256]; /* of each byte; bytes of a class are alike to every instruction */
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

/* ---- classes of bytes -------------------------------------------------------------------------
 */

/* Tells bytes of the set apart from those outside. */
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
    find_classes(p, m->classes);
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
    for (uint32_t b = 0; b < 256; b++)
        if (m->classes[b] == m->classes[byte])
            m->next[256ul * state + b] = next;
    return next;
}

static uint32_t next_of(struct masks *m, uint32_t state, uint8_t byte) {
    uint32_t next = m->next[256ul * state + byte];
    return next != UNKNOWN ? next : find_next(m, state, byte);
}

/* ---- plain characters -------------------------------------------------------------------------
 */

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
    m->states[state].after = all;
    return all;
}

static bool is_state(uint32_t after) {
    return after > DEAD && after < LEAVES;
}

static bool reads_byte(const struct program *p, uint32_t pc, uint8_t byte) {
    const struct inst *inst = &p->insts[pc];
    return inst->kind == INST_RANGE ? byte >= inst->low && byte <= inst->high
                                    : p->sets[inst->other].bits[byte / 32] >> byte % 32 & 1;
}

/* Whether a thread that no loop holds could begin to read a plain character. */
static bool begins_plain(const struct masks *m, uint32_t pc) {
    for (uint32_t b = 0x20; b < 0xF5; b++) {
        uint8_t low, high;
        if (text_plain_begin((uint8_t)b, &low, &high) && reads_byte(m->p, pc, (uint8_t)b))
            return true;
    }
    return false;
}

/* Where a plain character leads to the same threads one round later, and the loop has no minimum
 * left to reach, each of the rounds left reads one: a string with a most length. 0: it is not so.
 */
static uint32_t rounds_left(const struct masks *m, uint32_t state, uint32_t after) {
    const struct state *a = &m->states[state], *b = &m->states[after];
    struct frame loop = {0};
    if (a->n != b->n || a->n == 0 || a->may_exit || b->may_exit)
        return 0;
    for (uint32_t i = 0; i < a->n; i++) {
        struct frame f = m->frames.at[a->threads[i].frame], g = m->frames.at[b->threads[i].frame];
        bool is_base = a->threads[i].frame == FRAME_BASE;
        if (a->threads[i].pc != b->threads[i].pc ||
            is_base != (b->threads[i].frame == FRAME_BASE) ||
            (is_base && begins_plain(m, a->threads[i].pc)))
            return 0;
        if (is_base)
            continue;
        if (f.count == FRAME_CALL || f.below != FRAME_BASE || g.below != FRAME_BASE ||
            f.pc != g.pc || g.count != f.count + 1 ||
            (loop.pc && (loop.pc != f.pc || loop.count != f.count)))
            return 0;
        loop = f;
    }
    const struct loop *l = loop.pc ? &m->p->loops[m->p->insts[loop.pc].other] : NULL;
    bool is_even = l && !l->is_nullable && l->max != REPEAT_NO_LIMIT && loop.count >= l->min;
    return is_even ? l->max - loop.count : 0;
}

/* How many plain characters can be read from here, at most `most`; *end: where one more leads, if
 * they are fewer. Beyond TEXT_MAX_PLAIN they are counted only where each leads to the same threads,
 * or to the same but for a round of a loop. */
static uint32_t count_plain(struct masks *m, uint32_t state, uint32_t most, uint32_t *end) {
    for (uint32_t i = 0; i < most && i < TEXT_MAX_PLAIN; i++) {
        *end = after_plain(m, state);
        if (!is_state(*end))
            return i;
        if (*end == state)
            return most;
        uint32_t left = rounds_left(m, state, *end);
        if (left > 0) {
            *end = DEAD;
            return min_u32(left < most ? i + left : most, most);
        }
        state = *end;
    }
    return min_u32(most, TEXT_MAX_PLAIN);
}

/* Whether every text of so many plain characters can be read, and no rule ends on the way. */
static bool reads_plain(struct masks *m, uint32_t state, uint32_t n) {
    uint32_t end;
    return count_plain(m, state, n, &end) == n;
}

/* ---- the walk ---------------------------------------------------------------------------------
 */

static void find_tokens(struct masks *m, uint32_t from, uint32_t to) {
    memcpy(m->found + m->n_found, m->t->sorted + from, (to - from) * sizeof *m->found);
    m->n_found += to - from;
}

/* From a node of the trie, with the state there: tokens below it that fit, and exits below it.
 * is_rest: but not at nodes without has_other. */
static void walk(struct masks *m, uint32_t from, uint32_t state, bool is_rest) {
    const struct token_texts *t = m->t;
    const struct text_node *nodes = t->nodes;
    uint32_t end = nodes[from].skip;
    if (is_rest && !nodes[from].has_other)
        return;
    if (nodes[from].plain != TEXT_NOT_PLAIN && reads_plain(m, state, nodes[from].plain)) {
        find_tokens(m, nodes[from + 1].first_token, nodes[end].first_token);
        return;
    }
    m->path[nodes[from].depth] = state;
    for (uint32_t i = from + 1; i < end;) {
        const struct text_node *node = &nodes[i];
        if (is_rest && !node->has_other) {
            i = node->skip;
            continue;
        }
        uint32_t above = m->path[node->depth - 1];
        uint32_t at = next_of(m, above, node->byte);
        if (at == DEAD) {
            i = node->skip;
            continue;
        }
        if (!(at & EXITS) && node->plain != TEXT_NOT_PLAIN && reads_plain(m, at, node->plain)) {
            find_tokens(m, node->first_token, nodes[node->skip].first_token);
            i = node->skip;
            continue;
        }
        m->path[node->depth] = at & STATE;
        find_tokens(m, node->first_token, nodes[i + 1].first_token);
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

/* What the walks found, and texts of up to so many plain characters, as a part; 0 when memory ran
 * out. */
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

/* The part that a chain begins with; 0 when memory ran out. */
static uint32_t first_part(struct masks *m, uint32_t state) {
    if (m->states[state].part)
        return m->states[state].part;
    uint32_t end = UNKNOWN, n = count_plain(m, state, TEXT_MOST_PLAIN, &end);
    bool is_char = n == 0 && end == LEAVES, is_known = n >= TEXT_MAX_PLAIN || end == DEAD;
    m->n_found = m->n_exits = 0;
    walk(m, 0, state, is_char || is_known);
    uint32_t part = add_part(m, is_char ? 1 : is_known ? n : 0);
    m->states[state].part = part;
    if (part)
        m->parts[part].is_char = is_char;
    return part;
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

static void go_on(struct masks *m, uint32_t node, uint32_t state, bool is_rest) {
    if (m->states[state].may_exit)
        m->exits[m->n_exits++] = node;
    walk(m, node, state, is_rest);
}

/* The part after this one, for this frame; 0 when memory ran out. Where plain characters are the
 * exits, texts of n more of them fit, one and all, if the state after them reads n. */
static uint32_t next_part(struct masks *m, uint32_t part, struct frame frame) {
    frame = round_count(m->p, frame);
    uint32_t child = find_child(m, part, frame);
    if (child)
        return child;
    uint32_t state = state_after(m, frame), n = 0, end = UNKNOWN;
    m->n_found = m->n_exits = 0;
    if (state > DEAD && m->parts[part].is_char && !m->states[state].may_exit)
        n = count_plain(m, state, TEXT_MOST_PLAIN - 1, &end);
    bool is_known = n >= TEXT_MAX_PLAIN - 1 || end == DEAD;
    for (uint32_t i = 0; state > DEAD && i < m->parts[part].n_exits; i++)
        go_on(m, m->parts[part].exits[i], state, is_known);
    for (uint32_t i = 0;
         m->parts[part].is_char && state > DEAD && !is_known && i < m->t->n_char_nodes; i++)
        go_on(m, m->t->char_nodes[i], state, false);
    if (state == UNKNOWN || !(child = add_part(m, is_known ? n + 1 : 0)))
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
    if (part->plain)
        token_texts_add_plain(m->t, part->plain, mask);
    for (uint32_t i = 0; part->bits && i < m->t->n_words; i++)
        mask[i] |= part->bits[i];
    for (uint32_t i = 0; !part->bits && i < part->n_tokens; i++)
        mask[part->tokens[i] / 32] |= 1u << part->tokens[i] % 32;
}

/* Of threads with the same stack, without it; UNKNOWN where there is no room. */
static uint32_t state_of(struct masks *m, const struct thread *threads, uint32_t n) {
    bool is_ok = true;
    thread_set_clear(&m->set);
    for (uint32_t i = 0; i < n && is_ok; i++)
        is_ok = thread_set_add(&m->set, m->p, &m->frames, threads[i].pc, FRAME_BASE);
    return is_ok ? intern(m) : UNKNOWN;
}

static bool add_group(struct masks *m, const struct thread *threads, uint32_t n,
                      const struct frames *frames, uint32_t *mask) {
    uint32_t state = state_of(m, threads, n);
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

bool masks_are_steady(struct masks *m, const struct thread *threads, uint32_t n) {
    for (uint32_t i = 1; i < n; i++)
        if (threads[i].frame != threads[0].frame)
            return false;
    pthread_mutex_lock(&m->lock);
    uint32_t state = n > 0 && !is_too_large(m) ? state_of(m, threads, n) : UNKNOWN;
    bool is_steady = state > DEAD && after_plain(m, state) == state;
    pthread_mutex_unlock(&m->lock);
    return is_steady;
}
