/* dfa.h - a deterministic automaton over bytes, built lazily from the threads of a program.
 *
 * A state is a set of threads of one rule or round of a loop, and whether that may end there. What
 * follows after the end is no part of it: the threads' nodes lead to NODE_BASE, so whatever calls a
 * rule shares its states. A transition is computed when it is first taken, for a whole class of
 * bytes: those that no instruction distinguishes.
 *
 * (1) Equal sets are the same state; they are found by their hash.
 * (2) States are only added, until dfa_reset drops all.
 * (3) A state that finds no room, and one after a fault, counts as dead. What was found since is
 *     incomplete then, and dfa_is_cut is true.
 *
 * Used by one thread at a time. */
#ifndef GRAMMAR_DFA_H
#define GRAMMAR_DFA_H

#include "grammar/program.h"
#include "grammar/threads.h"

/* A transition is the number of a state, with flags. */
enum {
    DFA_UNKNOWN = 0,         /* not computed yet; of a state that was asked for: no room, a fault */
    DFA_DEAD = 1,            /* no threads, and not the end */
    DFA_ENDS = 1 << 30,      /* the rule may end there */
    DFA_ONLY_ENDS = 1 << 29, /* and no thread reads on */
    DFA_STATE = (1 << 29) - 1, /* the bits of the number */
};

/* Where plain characters (texts.h) lead: DFA_DEAD, a state without flags, or one of these. */
enum {
    PLAIN_ENDS = DFA_ONLY_ENDS, /* all lead to the rule's end */
    PLAIN_DIFFERS,              /* they do not all lead to the same state */
};

struct dfa_state {
    struct thread *threads; /* (n) sorted */
    uint32_t n;
    uint32_t after_plain; /* where any plain character leads; DFA_UNKNOWN: not computed yet */
    uint32_t rounds_left; /* see dfa_plain.c; DFA_NOT_COUNTED: not computed yet */
    uint32_t part;        /* the part that begins here (mask_parts.h); 0: none yet */
    uint64_t hash;
    bool may_end;
};

enum { DFA_NOT_COUNTED = UINT32_MAX, DFA_UNIONS = 1024 };

/* The last union of two states with this hash. */
struct dfa_union {
    uint32_t a, b, both; /* both: DFA_UNKNOWN: none yet */
};

struct dfa {
    const struct program *p;
    struct arena arena;       /* the threads of states */
    struct nodes nodes;       /* theirs, and those between parts; counts steps, has the fault */
    struct thread_set set;    /* scratch: the set of threads that is being made */
    struct dfa_state *states; /* (capacity) from 2 on */
    uint32_t *next;           /* (capacity, 256) transitions */
    uint32_t n_states, capacity;
    uint32_t *slots; /* (n_slots) a hash table of states, 0: free */
    uint32_t n_slots;
    uint8_t classes[256]; /* of each byte */
    bool is_full;         /* a state found no room; the user clears it */
    struct dfa_union unions[DFA_UNIONS];
};

/* False when memory ran out; dfa_close in any case. The program is borrowed. */
bool dfa_open(struct dfa *d, const struct program *p);
void dfa_close(struct dfa *d);
/* Drops all states and nodes; the steps counted so far stay. False when memory ran out. */
bool dfa_reset(struct dfa *d);
bool dfa_is_large(const struct dfa *d); /* it should be reset before more is added */
size_t dfa_bytes(const struct dfa *d);

static inline bool dfa_is_cut(const struct dfa *d) {
    return d->is_full || d->nodes.fault;
}

/* ---- states; DFA_UNKNOWN: no room, or a fault ---- */

/* Of threads that share a node, which is left out. */
uint32_t dfa_state_of(struct dfa *d, const struct thread *threads, uint32_t n);
/* What the edges of a node continue with. */
uint32_t dfa_state_after(struct dfa *d, uint32_t node);

/* ---- transitions ---- */

uint32_t dfa_find_next(struct dfa *d, uint32_t state, uint8_t byte);

static inline uint32_t dfa_next(struct dfa *d, uint32_t state, uint8_t byte) {
    uint32_t next = d->next[256ul * state + byte];
    return next != DFA_UNKNOWN ? next : dfa_find_next(d, state, byte);
}

/* Where a transition leads together with a state: both their threads. */
uint32_t dfa_unite(struct dfa *d, uint32_t transition, uint32_t state);

/* ---- plain characters (dfa_plain.c) ---- */

/* Where any plain character leads. */
uint32_t dfa_after_plain(struct dfa *d, uint32_t state);
/* How many plain characters can be read from here, whichever they are, at most `max`; *end: where
 * one more leads, if fewer. Beyond TEXT_MAX_PLAIN they are counted only where each leads to the
 * same threads, or to the same but for a round of a loop. */
uint32_t dfa_count_plain(struct dfa *d, uint32_t state, uint32_t max, uint32_t *end);
/* Whether every text of this many plain characters can be read, and no rule ends on the way. */
bool dfa_reads_plain(struct dfa *d, uint32_t state, uint32_t n);

#endif
