/* threads.h - threads of a program: sets of them, and their stacks.
 *
 * Stacks share their frames: a frame is the top of a stack and the number of the frame below it,
 * and equal ones are the same frame. So threads are compared by two numbers. */
#ifndef GRAMMAR_THREADS_H
#define GRAMMAR_THREADS_H

#include "grammar/program.h"

enum {
    FRAME_BASE = 0,               /* the empty stack */
    FRAME_CALL = UINT32_MAX,      /* instead of a count: go on at pc */
    THREADS_MAX_FRAMES = 1 << 22, /* of a matcher or a cache */
    THREADS_MAX = 1 << 15, /* in a set; more are dropped, which allows less and nothing wrong */
};

struct frame {
    uint32_t pc;    /* where to go on, or the loop */
    uint32_t count; /* rounds of the loop before this one */
    uint32_t below;
};

struct frames {
    struct frame *at;
    uint32_t n, capacity;
    uint32_t *slots; /* a hash table of numbers, 0: free */
    uint32_t n_slots;
};

struct thread {
    uint32_t pc, frame;
};

/* A set that is being made. `threads` are those that read a byte. */
struct thread_set {
    struct thread *threads;
    uint32_t n, capacity;
    bool may_exit; /* one has come to the end with an empty stack */
    /* Of settling: what was visited, and what is still to be. */
    struct thread *visited; /* a hash table: slots of another stamp are free */
    uint32_t *stamps;
    uint32_t stamp, n_slots, n_visited;
    struct thread *todo;
    uint32_t n_todo, todo_capacity;
};

/* False when memory ran out. Zeroed structs may be freed. */
bool frames_begin(struct frames *f);
void frames_free(struct frames *f);
bool thread_set_begin(struct thread_set *s);
void thread_set_free(struct thread_set *s);

void thread_set_clear(struct thread_set *s);

/* Adds all threads that read a byte and are reached from here without reading one. False when
 * memory ran out. */
bool thread_set_add(struct thread_set *s, const struct program *p, struct frames *f, uint32_t pc,
                    uint32_t frame);
/* The same after the rule or round of the loop that the frame stands above has ended. */
bool thread_set_return(struct thread_set *s, const struct program *p, struct frames *f,
                       struct frame top);
/* Adds what a byte makes of a thread. */
bool thread_set_step(struct thread_set *s, const struct program *p, struct frames *f,
                     struct thread t, uint8_t byte);
/* By frame, then pc: equal sets are equal arrays. */
void thread_set_sort(struct thread_set *s);

#endif
