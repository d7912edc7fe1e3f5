/* masks.c - a mask put together from parts, from the top of a matcher's stack down.
 *
 * Threads that share a node begin with the same first part. Its exits wait at the node; they
 * continue with the node's edges, in one part for each node that edges lead to, whose exits wait
 * there. Nodes are taken from the highest on: edges lead to lower ones, so by then all parts whose
 * exits wait at a node are known. They are joined, but only those with about as many exits: so a
 * mask has only a few parts per edge, and a few new exits do not cause a walk from all. */
#include "grammar/masks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "grammar/mask_parts.h"

/* Parts that wait at a node, joined if their numbers of exits are of one class: below 16, 256, 4096
 * and 65536, and more. */
enum { N_CLASSES = 5 };
struct waiting {
    uint32_t parts[N_CLASSES]; /* 0: none */
};

struct masks {
    atomic_size_t bytes; /* of all that follows */
    pthread_mutex_t lock;
    struct dfa dfa;
    struct mask_parts parts;
    uint32_t n_masks; /* so far, to tell them apart */
    /* Of the mask that is made. */
    struct waiting *waiting; /* (n_waiting) of each node of the matcher; all 0 between masks */
    uint32_t n_waiting;
    uint32_t *queue; /* (n_queue) nodes at which parts wait, as a heap: the highest first */
    uint32_t n_queue;
    size_t queue_capacity;
};

/* ---- open and close ----------------------------------------------------------------------- */

/* Of the large tables. */
static void count_bytes(struct masks *m) {
    m->bytes = sizeof *m + dfa_bytes(&m->dfa) + mask_parts_bytes(&m->parts);
}

size_t masks_bytes(const struct masks *m) {
    return m->bytes;
}

/* Drops everything that was computed. */
static bool reset(struct masks *m) {
    mask_parts_reset(&m->parts);
    return dfa_reset(&m->dfa);
}

int masks_open(struct masks **out, const struct program *p, const struct token_texts *t,
               struct err *err) {
    struct masks *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_memory(err, "the masks of a grammar");
    pthread_mutex_init(&m->lock, NULL);
    if (!dfa_open(&m->dfa, p) || !mask_parts_open(&m->parts, &m->dfa, t)) {
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
    dfa_close(&m->dfa);
    mask_parts_close(&m->parts);
    free(m->waiting);
    free(m->queue);
    free(m);
}

/* ---- nodes at which parts wait ------------------------------------------------------------ */

static bool push_node(struct masks *m, uint32_t node) {
    if (!array_grow(&m->queue, m->n_queue, &m->queue_capacity, sizeof *m->queue))
        return false;
    uint32_t i = m->n_queue++;
    for (; i > 0 && m->queue[(i - 1) / 2] < node; i = (i - 1) / 2)
        m->queue[i] = m->queue[(i - 1) / 2];
    m->queue[i] = node;
    return true;
}

static uint32_t pop_node(struct masks *m) {
    uint32_t highest = m->queue[0], last = m->queue[--m->n_queue], i = 0;
    for (uint32_t k = 1; k < m->n_queue; k = 2 * i + 1) {
        k += k + 1 < m->n_queue && m->queue[k + 1] > m->queue[k];
        if (m->queue[k] <= last)
            break;
        m->queue[i] = m->queue[k];
        i = k;
    }
    m->queue[i] = last;
    return highest;
}

/* Makes room for all of the matcher's nodes. */
static bool grow_waiting(struct masks *m, uint32_t n) {
    if (n <= m->n_waiting)
        return true;
    free(m->waiting);
    m->waiting = calloc(2ul * n, sizeof *m->waiting);
    m->n_waiting = m->waiting ? 2 * n : 0;
    return m->waiting;
}

static bool is_empty(const struct waiting *w) {
    uint32_t any = 0;
    for (uint32_t i = 0; i < N_CLASSES; i++)
        any |= w->parts[i];
    return any == 0;
}

static uint32_t class_of(uint32_t n_exits) {
    uint32_t k = 0;
    for (; n_exits >= 16 && k < N_CLASSES - 1; n_exits /= 16)
        k++;
    return k;
}

/* ---- masks -------------------------------------------------------------------------------- */

/* Adds a part to the mask; its exits wait at the node. False: there was no room, or a fault. */
static bool add_part(struct masks *m, uint32_t part, uint32_t node, uint32_t *mask) {
    if (part == 0)
        return false;
    if (m->parts.parts[part].last_mask != m->n_masks)
        mask_parts_add_tokens(&m->parts, part, mask);
    m->parts.parts[part].last_mask = m->n_masks;
    uint32_t n_exits = mask_parts_count_exits(&m->parts, part);
    if (node == NODE_BASE || n_exits == 0)
        return true;
    struct waiting *w = &m->waiting[node];
    uint32_t *at = &w->parts[class_of(n_exits)];
    if (is_empty(w) && !push_node(m, node)) /* first: on failure add_all clears what is queued */
        return false;
    *at = *at ? mask_parts_join(&m->parts, *at, part) : part;
    return *at;
}

/* Continues from the exits that wait at the highest node. */
static bool continue_below(struct masks *m, const struct nodes *nodes, uint32_t *mask) {
    uint32_t node = pop_node(m), end = nodes->first[node + 1];
    struct waiting w = m->waiting[node];
    bool is_ok = true;
    m->waiting[node] = (struct waiting){0};
    for (uint32_t i = nodes->first[node], same; i < end && is_ok; i = same) {
        const struct edge *first = nodes->edges + i;
        for (same = i + 1; same < end && nodes->edges[same].below == first->below;)
            same++;
        uint32_t edges = mask_parts_edges(&m->parts, first, same - i);
        is_ok = edges;
        for (uint32_t k = 0; k < N_CLASSES && is_ok; k++)
            is_ok = !w.parts[k] ||
                    add_part(m, mask_parts_next(&m->parts, w.parts[k], edges), first->below, mask);
    }
    return is_ok;
}

static bool add_all(struct masks *m, const struct thread *threads, uint32_t n,
                    const struct nodes *nodes, uint32_t *mask) {
    bool is_ok = grow_waiting(m, nodes->n);
    m->n_queue = 0;
    m->n_masks++;
    m->dfa.is_full = false;
    for (uint32_t i = 0, same; i < n && is_ok; i = same) {
        for (same = i + 1; same < n && threads[same].node == threads[i].node;)
            same++;
        uint32_t state = dfa_state_of(&m->dfa, threads + i, same - i);
        is_ok = state > DFA_DEAD &&
                add_part(m, mask_parts_first(&m->parts, state), threads[i].node, mask);
    }
    while (is_ok && m->n_queue)
        is_ok = continue_below(m, nodes, mask);
    while (m->n_queue)
        m->waiting[m->queue[--m->n_queue]] = (struct waiting){0};
    return is_ok;
}

static bool is_large(const struct masks *m) {
    return dfa_is_large(&m->dfa) || mask_parts_are_large(&m->parts);
}

enum fault masks_add(struct masks *m, const struct thread *threads, uint32_t n,
                     const struct nodes *nodes, uint32_t *mask, uint64_t *steps) {
    struct nodes *own = &m->dfa.nodes;
    pthread_mutex_lock(&m->lock);
    nodes_allow(own, *steps);
    bool is_ok = (!is_large(m) || reset(m)) && add_all(m, threads, n, nodes, mask);
    if (!is_ok && (m->dfa.is_full || own->fault == FAULT_NODES))
        is_ok = reset(m) && add_all(m, threads, n, nodes, mask); /* again, with an empty cache */
    enum fault fault = is_ok ? FAULT_NONE : own->fault ? own->fault : FAULT_MEMORY;
    *steps = own->steps;
    if (!is_ok)
        reset(m); /* nothing half done stays */
    count_bytes(m);
    pthread_mutex_unlock(&m->lock);
    return fault;
}

bool masks_are_steady(struct masks *m, const struct thread *threads, uint32_t n, uint64_t steps) {
    for (uint32_t i = 1; i < n; i++)
        if (threads[i].node != threads[0].node)
            return false;
    pthread_mutex_lock(&m->lock);
    nodes_allow(&m->dfa.nodes, steps);
    m->dfa.is_full = false;
    uint32_t state = n > 0 && !is_large(m) ? dfa_state_of(&m->dfa, threads, n) : DFA_UNKNOWN;
    bool is_steady =
        state > DFA_DEAD && dfa_after_plain(&m->dfa, state) == state && !dfa_is_cut(&m->dfa);
    pthread_mutex_unlock(&m->lock);
    return is_steady;
}
