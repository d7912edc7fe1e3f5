/* threads.h - threads of a program: sets of them, and what follows them.
 *
 * A thread is a position in the program (pc) and a node: nodes form a graph-structured stack. A
 * node says what follows when the rule or loop of that position has ended: one edge for each way to
 * continue, a position and the node after that. A rule that several callers call at the same byte
 * of the text is run once, with a node that has an edge for each caller; so is the body of a loop
 * that is entered after different numbers of rounds. So the number of threads is bounded by
 * positions and nodes, not by the ways to read the text, of which an ambiguous grammar may have
 * exponentially many.
 *
 * While a set is settled (its epsilon closure is computed) its new nodes are fresh, and edges are
 * added to them. thread_set_finish turns them into nodes, equal ones into the same node: so threads
 * are compared by two numbers.
 *
 * (1) The edges of a node lead to nodes with lower numbers.
 * (2) Edges are sorted. All of a node are calls, or all are rounds of one loop.
 * (3) Of one loop and one node below it, one edge at most has as many rounds as the loop needs:
 *     being at fewer of those allows all that being at more does.
 *
 * The cost of a set is limited by steps, threads and nodes; more is a fault. */
#ifndef GRAMMAR_THREADS_H
#define GRAMMAR_THREADS_H

#include "grammar/program.h"

enum {
    NODE_BASE = 0,          /* the end of everything */
    EDGE_CALL = UINT32_MAX, /* instead of a count: continue at pc */
    THREADS_MAX = 1 << 13,  /* in a set */
    NODES_MAX = 1 << 18,    /* of a matcher or a cache */
    NODES_MAX_EDGES = 1 << 21,
};

enum fault {
    FAULT_NONE,
    FAULT_MEMORY,
    FAULT_STEPS,   /* more than `max_steps` */
    FAULT_THREADS, /* more than THREADS_MAX */
    FAULT_NODES,   /* more than NODES_MAX, or than NODES_MAX_EDGES of their edges */
    FAULT_PACE,    /* of an answer: more steps than its tokens allow */
};

struct edge {
    uint32_t below;
    uint32_t pc;    /* where to go on, or the loop */
    uint32_t count; /* rounds of the loop before this one */
};

/* Nodes, and the work that was done with them. */
struct nodes {
    uint32_t *first; /* (n + 1) of node i: edges first[i] to first[i + 1] */
    struct edge *edges;
    uint32_t n, capacity, edge_capacity;
    uint32_t *slots; /* a hash table of numbers, 0: free */
    uint32_t n_slots;
    uint64_t steps, max_steps;
    enum fault fault; /* the first since nodes_allow */
};

struct thread {
    uint32_t pc, node;
};

struct fresh;
struct fresh_edge;
struct seen;

/* A set that is being made. `threads` are those that read a byte. */
struct thread_set {
    struct thread *threads;
    uint32_t n, capacity;
    bool may_exit; /* one has reached the end of the grammar */
    /* Of settling. */
    struct seen *seen; /* a hash table: slots of another stamp are free */
    uint32_t stamp, n_slots, n_seen;
    struct thread *todo; /* what is still to be visited */
    uint32_t n_todo, todo_capacity;
    struct fresh *fresh;
    uint32_t n_fresh, fresh_capacity;
    struct fresh_edge *edges; /* of the fresh ones */
    uint32_t n_edges, edge_capacity;
    struct edge *sorted; /* of one that is finished */
    uint32_t sorted_capacity;
};

/* False when memory ran out. Zeroed structs may be freed. */
bool nodes_begin(struct nodes *nodes);
void nodes_free(struct nodes *nodes);
/* Allows this many steps from here on. */
void nodes_allow(struct nodes *nodes, uint64_t steps);
/* Counts them; false: they are too many. */
bool nodes_work(struct nodes *nodes, uint64_t steps);
/* The number of the node with these edges, at least one, sorted; 0: a fault. */
uint32_t nodes_find(struct nodes *nodes, const struct edge *edges, uint32_t n);
/* Sorts edges, and leaves out what is there twice; returns how many are left. */
uint32_t edges_sort(struct edge *edges, uint32_t n);
/* Drops the nodes that no thread needs; threads and nodes keep their order. False when memory ran
 * out; nothing has changed then. */
bool nodes_collect(struct nodes *nodes, struct thread *threads, uint32_t n);

bool thread_set_begin(struct thread_set *s);
void thread_set_free(struct thread_set *s);

/* All of these are false after a fault. thread_set_clear begins a set; all that is added to it
 * belongs to one position of the text. */
void thread_set_clear(struct thread_set *s);
/* Adds all threads that read a byte and are reached from here without reading one. */
bool thread_set_add(struct thread_set *s, const struct program *p, struct nodes *nodes, uint32_t pc,
                    uint32_t node);
/* The same after the rule or round of the loop that the edge follows has ended. */
bool thread_set_return(struct thread_set *s, const struct program *p, struct nodes *nodes,
                       struct edge edge);
/* Adds the threads that a thread becomes after a byte. */
bool thread_set_step(struct thread_set *s, const struct program *p, struct nodes *nodes,
                     struct thread t, uint8_t byte);
/* Adds a thread that reads a byte, as it is. */
bool thread_set_put(struct thread_set *s, struct nodes *nodes, struct thread t);
/* Makes nodes of the fresh ones and sorts the threads by node, then pc: equal sets are equal
 * arrays. The set is complete then. */
bool thread_set_finish(struct thread_set *s, struct nodes *nodes);

#endif
