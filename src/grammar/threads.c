/* threads.c - settling: from places that read nothing to those that read a byte.
 *
 * (1) In one round of settling, from thread_set_clear on, a place with a stack is visited once.
 * (2) A round of a loop that has read nothing is not counted: the loop's body may be empty then, it
 *     needs no rounds, and being at fewer rounds allows all that being at more does. */
#include "grammar/threads.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

/* ---- frames -----------------------------------------------------------------------------------
 */

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c) {
    uint64_t h = (a + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    h = (h ^ h >> 29 ^ b) * 0x94D049BB133111EBu;
    h = (h ^ h >> 31 ^ c) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32);
}

bool frames_begin(struct frames *f) {
    *f = (struct frames){.n = 1, .capacity = 64, .n_slots = 256};
    f->at = calloc(f->capacity, sizeof *f->at);
    f->slots = calloc(f->n_slots, sizeof *f->slots);
    return f->at && f->slots;
}

void frames_free(struct frames *f) {
    free(f->at);
    free(f->slots);
    *f = (struct frames){0};
}

static uint32_t *frame_slot(const struct frames *f, const struct frame *frame) {
    uint32_t i = mix(frame->pc, frame->count, frame->below) & (f->n_slots - 1);
    while (f->slots[i] && memcmp(&f->at[f->slots[i]], frame, sizeof *frame) != 0)
        i = (i + 1) & (f->n_slots - 1);
    return &f->slots[i];
}

static bool grow_frames(struct frames *f) {
    struct frame *at = realloc(f->at, 2ul * f->capacity * sizeof *at);
    if (!at)
        return false;
    f->at = at;
    f->capacity *= 2;
    uint32_t *slots = calloc(4ul * f->capacity, sizeof *slots);
    if (!slots)
        return false;
    free(f->slots);
    f->slots = slots;
    f->n_slots = 4 * f->capacity;
    for (uint32_t i = 1; i < f->n; i++)
        *frame_slot(f, &f->at[i]) = i;
    return true;
}

/* The number of a frame; 0 when there is no room for a new one. */
static uint32_t frame_of(struct frames *f, struct frame frame) {
    uint32_t known = *frame_slot(f, &frame);
    if (known)
        return known;
    if (f->n == THREADS_MAX_FRAMES || (f->n == f->capacity && !grow_frames(f)))
        return 0;
    f->at[f->n] = frame;
    *frame_slot(f, &frame) = f->n;
    return f->n++;
}

/* ---- sets -------------------------------------------------------------------------------------
 */

bool thread_set_begin(struct thread_set *s) {
    *s = (struct thread_set){.capacity = 64, .n_slots = 256, .todo_capacity = 64};
    s->threads = calloc(s->capacity, sizeof *s->threads);
    s->visited = calloc(s->n_slots, sizeof *s->visited);
    s->stamps = calloc(s->n_slots, sizeof *s->stamps);
    s->todo = calloc(s->todo_capacity, sizeof *s->todo);
    thread_set_clear(s);
    return s->threads && s->visited && s->stamps && s->todo;
}

void thread_set_free(struct thread_set *s) {
    free(s->threads);
    free(s->visited);
    free(s->stamps);
    free(s->todo);
    *s = (struct thread_set){0};
}

void thread_set_clear(struct thread_set *s) {
    s->n = s->n_todo = s->n_visited = 0;
    s->may_exit = false;
    if (++s->stamp == 0) {
        memset(s->stamps, 0, s->n_slots * sizeof *s->stamps);
        s->stamp = 1;
    }
}

/* Where it is, or where it goes. */
static uint32_t find_visited(const struct thread_set *s, struct thread t) {
    uint32_t i = mix(t.pc, t.frame, 0) & (s->n_slots - 1);
    while (s->stamps[i] == s->stamp && (s->visited[i].pc != t.pc || s->visited[i].frame != t.frame))
        i = (i + 1) & (s->n_slots - 1);
    return i;
}

static bool was_visited(const struct thread_set *s, struct thread t) {
    return s->stamps[find_visited(s, t)] == s->stamp;
}

static bool grow_visited(struct thread_set *s) {
    struct thread_set old = *s;
    s->n_slots *= 2;
    s->visited = calloc(s->n_slots, sizeof *s->visited);
    s->stamps = calloc(s->n_slots, sizeof *s->stamps);
    if (!s->visited || !s->stamps) {
        free(s->visited);
        free(s->stamps);
        *s = old;
        return false;
    }
    for (uint32_t i = 0; i < old.n_slots; i++) {
        if (old.stamps[i] != s->stamp)
            continue;
        uint32_t to = find_visited(s, old.visited[i]);
        s->visited[to] = old.visited[i];
        s->stamps[to] = s->stamp;
    }
    free(old.visited);
    free(old.stamps);
    return true;
}

static bool push(struct thread **at, uint32_t *n, uint32_t *capacity, struct thread t) {
    if (*n == *capacity) {
        struct thread *more = realloc(*at, 2ul * *capacity * sizeof *more);
        if (!more)
            return false;
        *at = more;
        *capacity *= 2;
    }
    (*at)[(*n)++] = t;
    return true;
}

/* Notes a place that is to be looked at, unless it was. */
static bool visit(struct thread_set *s, uint32_t pc, uint32_t frame) {
    struct thread t = {pc, frame};
    if (s->n_visited >= s->n_slots / 2 && !grow_visited(s))
        return false;
    uint32_t i = find_visited(s, t);
    if (s->stamps[i] == s->stamp || s->n_visited >= 4 * THREADS_MAX)
        return true;
    s->visited[i] = t;
    s->stamps[i] = s->stamp;
    s->n_visited++;
    return push(&s->todo, &s->n_todo, &s->todo_capacity, t);
}

/* ---- settling ---------------------------------------------------------------------------------
 */

static bool enter_loop(struct thread_set *s, const struct program *p, struct frames *f, uint32_t pc,
                       uint32_t count, uint32_t frame) {
    const struct loop *loop = &p->loops[p->insts[pc].other];
    bool is_ok = true;
    if (count >= loop->min)
        is_ok = visit(s, p->insts[pc].next, frame);
    if (count < loop->max && is_ok) {
        uint32_t above = frame_of(f, (struct frame){pc, count, frame});
        is_ok = above && visit(s, loop->body, above);
    }
    return is_ok;
}

static bool pop(struct thread_set *s, const struct program *p, struct frames *f, struct frame top) {
    if (top.count == FRAME_CALL)
        return visit(s, top.pc, top.below);
    const struct loop *loop = &p->loops[p->insts[top.pc].other];
    bool is_open = loop->max == REPEAT_NO_LIMIT;
    uint32_t count = is_open ? min_u32(top.count + 1, loop->min) : top.count + 1;
    return enter_loop(s, p, f, top.pc, count, top.below);
}

static bool end_rule(struct thread_set *s, const struct program *p, struct frames *f,
                     uint32_t frame) {
    if (frame == FRAME_BASE) {
        s->may_exit = true;
        return true;
    }
    struct frame top = f->at[frame];
    if (top.count != FRAME_CALL) {
        const struct loop *loop = &p->loops[p->insts[top.pc].other];
        if (loop->is_nullable && was_visited(s, (struct thread){loop->body, frame}))
            return true; /* (2) */
    }
    return pop(s, p, f, top);
}

static bool settle_one(struct thread_set *s, const struct program *p, struct frames *f,
                       struct thread t) {
    const struct inst *inst = &p->insts[t.pc];
    uint32_t above;
    switch (inst->kind) {
    case INST_END:
        return end_rule(s, p, f, t.frame);
    case INST_SPLIT:
        return visit(s, inst->next, t.frame) && visit(s, inst->other, t.frame);
    case INST_CALL:
        above = inst->next ? frame_of(f, (struct frame){inst->next, FRAME_CALL, t.frame}) : t.frame;
        return (above || !inst->next) && visit(s, inst->other, above);
    case INST_LOOP:
        return enter_loop(s, p, f, t.pc, 0, t.frame);
    default:
        return s->n >= THREADS_MAX || push(&s->threads, &s->n, &s->capacity, t);
    }
}

static bool settle(struct thread_set *s, const struct program *p, struct frames *f) {
    bool is_ok = true;
    while (s->n_todo && is_ok)
        is_ok = settle_one(s, p, f, s->todo[--s->n_todo]);
    return is_ok;
}

bool thread_set_add(struct thread_set *s, const struct program *p, struct frames *f, uint32_t pc,
                    uint32_t frame) {
    return visit(s, pc, frame) && settle(s, p, f);
}

bool thread_set_return(struct thread_set *s, const struct program *p, struct frames *f,
                       struct frame top) {
    return pop(s, p, f, top) && settle(s, p, f);
}

bool thread_set_step(struct thread_set *s, const struct program *p, struct frames *f,
                     struct thread t, uint8_t byte) {
    const struct inst *inst = &p->insts[t.pc];
    bool fits = inst->kind == INST_RANGE ? byte >= inst->low && byte <= inst->high
                                         : p->sets[inst->other].bits[byte / 32] >> byte % 32 & 1;
    return !fits || thread_set_add(s, p, f, inst->next, t.frame);
}

static int compare_threads(const void *a, const void *b) {
    const struct thread *x = a, *y = b;
    if (x->frame != y->frame)
        return x->frame < y->frame ? -1 : 1;
    return x->pc < y->pc ? -1 : x->pc > y->pc;
}

void thread_set_sort(struct thread_set *s) {
    if (s->n > 1)
        qsort(s->threads, s->n, sizeof *s->threads, compare_threads);
}
