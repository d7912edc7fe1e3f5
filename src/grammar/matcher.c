/* matcher.c - grammars as a whole, and the state of an answer in one.
 *
 * (1) The threads of a set are finished, and all of them can come to the end of the grammar.
 * (2) A grammar keeps the masks of every vocabulary it was used with, by the vocabulary's id.
 * (3) After a fault nothing is allowed: the set of threads may be incomplete. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "grammar/compile.h"
#include "grammar/masks.h"

/* Steps to take a token, and to find what may follow it: some 50 ms at most. A mask that walks all
 * of a vocabulary of 250,000 texts takes a third of them. A request is given some at its beginning,
 * when nothing is cached, and a few, 2 ms, with a token of each of its answers. */
enum { MAX_STEPS = 1 << 20, FIRST_STEPS = 4 * MAX_STEPS, TOKEN_STEPS = 1 << 16 };

struct masks_of {
    struct masks_of *next;
    uint64_t texts;
    struct masks *masks;
};

struct grammar {
    struct program program;
    pthread_mutex_t lock; /* of the list */
    struct masks_of *masks;
};

struct matcher {
    const struct grammar *g;
    const struct token_texts *t;
    struct masks *masks;
    struct nodes nodes;
    uint32_t collect_at,
        collect_at_edges;          /* counts of nodes and edges at which to collect garbage */
    struct thread_set set;         /* where it is */
    struct thread_set to, between; /* where a token leads, and before its last byte */
    uint32_t *mask;
    bool has_mask; /* of where it is */
    bool has_ended;
    enum fault fault;
    uint64_t steps; /* of the last mask or token */
    struct matcher_budget *budget, own;
};

/* ---- grammars ----------------------------------------------------------------------------- */

int grammar_compile(struct grammar **out, struct builder *b, uint32_t root, struct err *err) {
    struct grammar *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return err_memory(err, "a grammar");
    int status = program_compile(&g->program, b, root, err);
    if (status) {
        free(g);
        return status;
    }
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return SLUICE_OK;
}

void grammar_close(struct grammar *g) {
    if (!g)
        return;
    for (struct masks_of *m = g->masks, *next; m; m = next) {
        next = m->next;
        masks_close(m->masks);
        free(m);
    }
    pthread_mutex_destroy(&g->lock);
    program_close(&g->program);
    free(g);
}

size_t grammar_bytes(const struct grammar *shared) {
    struct grammar *g = (struct grammar *)shared;
    size_t bytes = sizeof *g + g->program.arena.used;
    pthread_mutex_lock(&g->lock);
    for (const struct masks_of *m = g->masks; m; m = m->next)
        bytes += masks_bytes(m->masks);
    pthread_mutex_unlock(&g->lock);
    return bytes;
}

static int add_masks(struct grammar *g, const struct token_texts *t, struct masks **out,
                     struct err *err) {
    struct masks_of *m = calloc(1, sizeof *m);
    int status = m ? masks_open(&m->masks, &g->program, t, err) : err_memory(err, "a grammar");
    if (status) {
        free(m);
        return status;
    }
    m->texts = t->id;
    m->next = g->masks;
    g->masks = m;
    *out = m->masks;
    return SLUICE_OK;
}

/* Casts const away: the masks are a cache, the grammar does not change for its users. */
static int masks_for(const struct grammar *shared, const struct token_texts *t, struct masks **out,
                     struct err *err) {
    struct grammar *g = (struct grammar *)shared;
    int status = SLUICE_OK;
    pthread_mutex_lock(&g->lock);
    struct masks_of *m = g->masks;
    while (m && m->texts != t->id)
        m = m->next;
    if (m)
        *out = m->masks;
    else
        status = add_masks(g, t, out, err);
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* ---- matchers ----------------------------------------------------------------------------- */

enum { FIRST_COLLECT = 4096 };

static int fail(enum fault fault, struct err *err) {
    switch (fault) {
    case FAULT_NONE:
        return SLUICE_OK;
    case FAULT_STEPS:
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "the grammar can be read in too many ways: what comes next takes more than "
                       "%d steps to find",
                       MAX_STEPS);
    case FAULT_THREADS:
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "the grammar can be read in too many ways: the answer may be at more than "
                       "%d places of it",
                       THREADS_MAX);
    case FAULT_PACE:
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "the grammar can be read in too many ways: the answers take more than %d "
                       "steps with a token of each and %d besides",
                       TOKEN_STEPS, FIRST_STEPS);
    case FAULT_NODES:
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "the answer nests too deep in the grammar: more than %d rules, or %d ways "
                       "to go on after them",
                       NODES_MAX, NODES_MAX_EDGES);
    default:
        return err_memory(err, "what an answer has to follow");
    }
}

int matcher_fault(const struct matcher *m, struct err *err) {
    return fail(m->fault, err);
}

uint64_t matcher_steps(const struct matcher *m) {
    return m->steps;
}

void matcher_budget_begin(struct matcher_budget *b, uint32_t answers) {
    *b = (struct matcher_budget){FIRST_STEPS, TOKEN_STEPS / answers};
}

static void earn(struct matcher_budget *b) {
    b->steps_left = b->steps_left + b->steps_per_token < FIRST_STEPS
                        ? b->steps_left + b->steps_per_token
                        : FIRST_STEPS;
}

static uint64_t allowed_steps(const struct matcher *m) {
    return m->budget->steps_left < MAX_STEPS ? m->budget->steps_left : MAX_STEPS;
}

/* Charges a mask or a token that took m->steps. */
static void pay(struct matcher *m, enum fault fault) {
    uint64_t left = m->budget->steps_left;
    bool is_short = fault == FAULT_STEPS && left < MAX_STEPS;
    m->fault = is_short ? FAULT_PACE : fault;
    m->budget->steps_left -= m->steps < left ? m->steps : left;
    if (fault)
        m->has_mask = false;
}

/* Starts at the beginning of the grammar. */
static int begin(struct matcher *m, struct err *err) {
    const struct program *p = &m->g->program;
    nodes_allow(&m->nodes, allowed_steps(m));
    bool is_ok = thread_set_add(&m->set, p, &m->nodes, p->start, NODE_BASE) &&
                 thread_set_finish(&m->set, &m->nodes);
    m->steps = m->nodes.steps;
    pay(m, m->nodes.fault);
    return is_ok ? SLUICE_OK : fail(m->fault, err);
}

int matcher_open(struct matcher **out, const struct grammar *g, const struct token_texts *t,
                 struct matcher_budget *budget, struct err *err) {
    struct matcher *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_memory(err, "a matcher");
    m->g = g;
    m->t = t;
    m->mask = calloc(t->n_words + 1ul, sizeof *m->mask);
    m->collect_at = m->collect_at_edges = FIRST_COLLECT;
    m->budget = budget ? budget : &m->own;
    matcher_budget_begin(&m->own, 1);
    bool is_ok = m->mask && nodes_begin(&m->nodes) && thread_set_begin(&m->set) &&
                 thread_set_begin(&m->to) && thread_set_begin(&m->between);
    int status = is_ok ? begin(m, err) : err_memory(err, "a matcher");
    if (!status)
        status = masks_for(g, t, &m->masks, err);
    if (status) {
        matcher_close(m);
        return status;
    }
    *out = m;
    return SLUICE_OK;
}

void matcher_close(struct matcher *m) {
    if (!m)
        return;
    nodes_free(&m->nodes);
    thread_set_free(&m->set);
    thread_set_free(&m->to);
    thread_set_free(&m->between);
    free(m->mask);
    free(m);
}

bool matcher_may_end(const struct matcher *m) {
    return m->has_ended || (m->set.may_exit && !m->fault);
}

bool matcher_must_end(const struct matcher *m) {
    return m->has_ended || (m->set.may_exit && m->set.n == 0 && !m->fault);
}

const uint32_t *matcher_mask(struct matcher *m) {
    if (m->has_mask)
        return m->mask;
    memset(m->mask, 0, m->t->n_words * sizeof *m->mask);
    if (!m->has_ended && !m->fault) {
        m->steps = allowed_steps(m);
        pay(m, masks_add(m->masks, m->set.threads, m->set.n, &m->nodes, m->mask, &m->steps));
    }
    if (m->fault)
        memset(m->mask, 0, m->t->n_words * sizeof *m->mask);
    m->has_mask = true;
    for (uint32_t i = 0; matcher_may_end(m) && i < m->t->n_ends; i++)
        m->mask[m->t->ends[i] / 32] |= 1u << m->t->ends[i] % 32;
    return m->mask;
}

const uint32_t *matcher_keeps(struct matcher *m) {
    bool is_steady = !m->has_ended && !m->set.may_exit && !m->fault &&
                     masks_are_steady(m->masks, m->set.threads, m->set.n, TOKEN_STEPS);
    return is_steady ? m->t->plain + (size_t)TEXT_MAX_PLAIN * m->t->n_words : NULL;
}

static bool is_end(const struct token_texts *t, int32_t token) {
    for (uint32_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == token)
            return true;
    return false;
}

/* One byte from `from` to `to`; false: none can read it, or a fault. */
static bool step(struct matcher *m, const struct thread_set *from, struct thread_set *to,
                 uint8_t byte) {
    bool is_ok = true;
    thread_set_clear(to);
    for (uint32_t i = 0; i < from->n && is_ok; i++)
        is_ok = thread_set_step(to, &m->g->program, &m->nodes, from->threads[i], byte);
    return is_ok && thread_set_finish(to, &m->nodes) && (to->n || to->may_exit);
}

static void swap(struct thread_set *a, struct thread_set *b) {
    struct thread_set t = *a;
    *a = *b;
    *b = t;
}

/* All bytes of a text; `to` has the result. */
static bool step_all(struct matcher *m, struct str text) {
    const struct thread_set *from = &m->set;
    for (size_t i = 0; i < text.len; i++) {
        if (!step(m, from, &m->to, (uint8_t)text.at[i]))
            return false;
        if (i + 1 < text.len) {
            swap(&m->to, &m->between);
            from = &m->between;
        }
    }
    return true;
}

/* Drops unreachable nodes when they are about as many as the others. */
static void collect(struct matcher *m) {
    const struct nodes *nodes = &m->nodes;
    if (nodes->n < m->collect_at && nodes->first[nodes->n] < m->collect_at_edges)
        return;
    nodes_collect(&m->nodes, m->set.threads, m->set.n);
    m->collect_at = 2 * nodes->n + FIRST_COLLECT;
    m->collect_at_edges = 2 * nodes->first[nodes->n] + FIRST_COLLECT;
}

bool matcher_accept(struct matcher *m, int32_t token) {
    if (token < 0 || token >= m->t->n_tokens || m->has_ended || m->fault)
        return false;
    struct str text = m->t->texts[token];
    if (is_end(m->t, token)) {
        if (!m->set.may_exit)
            return false;
        m->has_ended = true;
    } else {
        earn(m->budget);
        nodes_allow(&m->nodes, allowed_steps(m));
        bool is_ok = text.len > 0 && step_all(m, text);
        m->steps = m->nodes.steps;
        pay(m, m->nodes.fault);
        if (!is_ok)
            return false;
        swap(&m->set, &m->to);
        collect(m);
    }
    m->has_mask = false;
    return true;
}
