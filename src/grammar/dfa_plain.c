/* dfa_plain.c - states that do not tell plain characters (texts.h) apart, as inside of strings.
 *
 * Where every plain character leads from a state to one and the same state, and from there again,
 * all texts of so many plain characters can be read: they need not be walked one by one. A string
 * with a maximum length is a counted loop, and its states differ by the rounds done; where nothing
 * else differs the rounds left are the answer, and the states between are never made. */
#include "base/size.h"
#include "grammar/dfa.h"
#include "grammar/texts.h"

enum { FIRST_PLAIN = 0x20, PLAIN_END = 0xF5 }; /* bytes that begin a plain character are between */

/* ---- one plain character ------------------------------------------------------------------ */

/* Where characters that lead to `a` and to `b` lead; DFA_UNKNOWN: there are none of these. */
static uint32_t same_state(uint32_t a, uint32_t b) {
    return a == DFA_UNKNOWN || a == b ? b : PLAIN_DIFFERS;
}

/* Where all plain characters lead whose next byte is one of low .. high, and which have n bytes
 * left. */
static uint32_t after_bytes(struct dfa *d, uint32_t state, uint8_t low, uint8_t high, uint32_t n) {
    uint32_t all = DFA_UNKNOWN, last = DFA_UNKNOWN;
    for (uint32_t b = low; b <= high && all != PLAIN_DIFFERS; b++) {
        uint32_t next = dfa_next(d, state, (uint8_t)b);
        if (next == last) /* as nearly always */
            continue;
        last = next;
        if (next & DFA_ENDS)
            next = n == 1 && next & DFA_ONLY_ENDS ? PLAIN_ENDS : PLAIN_DIFFERS;
        else if (next != DFA_DEAD && n > 1)
            next = after_bytes(d, next, 0x80, 0xBF, n - 1);
        all = same_state(all, next);
    }
    return all;
}

/* The same of those that begin with this byte; DFA_UNKNOWN: none does. */
static uint32_t after_first_byte(struct dfa *d, uint32_t state, uint8_t byte) {
    uint8_t low, high;
    uint32_t n = text_plain_begin(byte, &low, &high);
    if (n == 0)
        return DFA_UNKNOWN;
    if (n == 1)
        return after_bytes(d, state, byte, byte, 1);
    uint32_t next = dfa_next(d, state, byte);
    return next & DFA_ENDS    ? PLAIN_DIFFERS
           : next == DFA_DEAD ? DFA_DEAD
                              : after_bytes(d, next, low, high, n - 1);
}

uint32_t dfa_after_plain(struct dfa *d, uint32_t state) {
    uint32_t all = d->states[state].after_plain;
    if (all != DFA_UNKNOWN)
        return all;
    for (uint32_t b = FIRST_PLAIN; b < PLAIN_END && all != PLAIN_DIFFERS; b++) {
        uint32_t next = after_first_byte(d, state, (uint8_t)b);
        if (next != DFA_UNKNOWN)
            all = same_state(all, next);
    }
    if (!dfa_is_cut(d))
        d->states[state].after_plain = all;
    return all;
}

static bool is_state(uint32_t after) {
    return after > DFA_DEAD && after < PLAIN_ENDS;
}

/* ---- rounds of a loop --------------------------------------------------------------------- */

/* Whether a thread could begin to read a plain character. */
static bool begins_plain(const struct dfa *d, uint32_t pc) {
    for (uint32_t b = FIRST_PLAIN; b < PLAIN_END; b++) {
        uint8_t low, high;
        if (text_plain_begin((uint8_t)b, &low, &high) && program_reads(d->p, pc, (uint8_t)b))
            return true;
    }
    return false;
}

/* NULL: it has several. */
static const struct edge *only_edge(const struct nodes *nodes, uint32_t node) {
    uint32_t first = nodes->first[node];
    return nodes->first[node + 1] == first + 1 ? &nodes->edges[first] : NULL;
}

/* Whether two threads at the same pc, in loops, differ by one round alone: a's edge is *loop. */
static bool is_next_round(const struct nodes *nodes, struct thread a, struct thread b,
                          struct edge *loop) {
    const struct edge *e = only_edge(nodes, a.node), *f = only_edge(nodes, b.node);
    if (!e || !f || e->count == EDGE_CALL || e->below != NODE_BASE || f->below != NODE_BASE ||
        e->pc != f->pc || f->count != e->count + 1)
        return false;
    *loop = *e;
    return true;
}

/* Whether `after` has the threads of `state`, all that read plain characters one round of the same
 * loop later. That loop's edge from `state` is *loop, with pc 0 if there is none. */
static bool is_same_but_for_a_round(const struct dfa *d, const struct dfa_state *state,
                                    const struct dfa_state *after, struct edge *loop) {
    *loop = (struct edge){0};
    if (state->n != after->n || state->n == 0 || state->may_end || after->may_end)
        return false;
    for (uint32_t i = 0; i < state->n; i++) {
        struct thread a = state->threads[i], b = after->threads[i];
        struct edge own = {0};
        bool is_outside = a.node == NODE_BASE;
        if (a.pc != b.pc || is_outside != (b.node == NODE_BASE))
            return false;
        if (is_outside && begins_plain(d, a.pc))
            return false;
        if (is_outside)
            continue;
        if (!is_next_round(&d->nodes, a, b, &own) ||
            (loop->pc && (loop->pc != own.pc || loop->count != own.count)))
            return false;
        *loop = own;
    }
    return true;
}

/* Where a plain character leads to the same threads one round later, and the loop has no minimum
 * left to reach, each of the rounds left reads one. 0: otherwise. */
static uint32_t find_rounds_left(const struct dfa *d, uint32_t state, uint32_t after) {
    struct edge at;
    if (!is_same_but_for_a_round(d, &d->states[state], &d->states[after], &at) || at.pc == 0)
        return 0;
    const struct loop *loop = &d->p->loops[d->p->insts[at.pc].other];
    bool is_counted = loop->max != REPEAT_NO_LIMIT && !loop->is_nullable;
    return is_counted && at.count >= loop->min ? loop->max - at.count : 0;
}

static uint32_t rounds_left(struct dfa *d, uint32_t state, uint32_t after) {
    uint32_t *left = &d->states[state].rounds_left;
    if (*left == DFA_NOT_COUNTED)
        *left = find_rounds_left(d, state, after);
    return *left;
}

/* ---- many plain characters ---------------------------------------------------------------- */

uint32_t dfa_count_plain(struct dfa *d, uint32_t state, uint32_t max, uint32_t *end) {
    for (uint32_t i = 0; i < max && i < TEXT_MAX_PLAIN; i++) {
        *end = dfa_after_plain(d, state);
        if (!is_state(*end))
            return i;
        if (*end == state)
            return max;
        uint32_t left = rounds_left(d, state, *end);
        if (left > 0) {
            *end = DFA_DEAD;
            return min_u32(left < max ? i + left : max, max);
        }
        state = *end;
    }
    return min_u32(max, TEXT_MAX_PLAIN);
}

bool dfa_reads_plain(struct dfa *d, uint32_t state, uint32_t n) {
    uint32_t end;
    return dfa_count_plain(d, state, n, &end) == n;
}
