/* matcher.c - grammars as a whole, and how far an answer has got in one.
 *
 * (1) `threads` are sorted, and all of them can come to the end of the grammar.
 * (2) A grammar keeps the masks of every vocabulary it was used with, to be found by its id. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "grammar/compile.h"
#include "grammar/masks.h"

enum { MAX_KEPT = 512 }; /* threads between two tokens; more are dropped, which allows less */

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
    struct frames frames;
    struct thread_set set;         /* where it is */
    struct thread_set to, between; /* where a token leads, and before its last byte */
    uint32_t *mask;
    bool has_mask; /* of where it is */
    bool has_ended;
};

/* ---- grammars ---------------------------------------------------------------------------------
 */

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

/* The lists of masks are a cache: to its users the grammar does not change. */
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

/* ---- matchers ---------------------------------------------------------------------------------
 */

int matcher_open(struct matcher **out, const struct grammar *g, const struct token_texts *t,
                 struct err *err) {
    struct matcher *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_memory(err, "a matcher");
    m->g = g;
    m->t = t;
    m->mask = calloc(t->n_words + 1ul, sizeof *m->mask);
    bool is_ok = m->mask && frames_begin(&m->frames) && thread_set_begin(&m->set) &&
                 thread_set_begin(&m->to) && thread_set_begin(&m->between) &&
                 thread_set_add(&m->set, &g->program, &m->frames, g->program.start, FRAME_BASE);
    int status = is_ok ? masks_for(g, t, &m->masks, err) : err_memory(err, "a matcher");
    if (status) {
        matcher_close(m);
        return status;
    }
    thread_set_sort(&m->set);
    *out = m;
    return SLUICE_OK;
}

void matcher_close(struct matcher *m) {
    if (!m)
        return;
    frames_free(&m->frames);
    thread_set_free(&m->set);
    thread_set_free(&m->to);
    thread_set_free(&m->between);
    free(m->mask);
    free(m);
}

bool matcher_may_end(const struct matcher *m) {
    return m->has_ended || m->set.may_exit;
}

bool matcher_must_end(const struct matcher *m) {
    return m->has_ended || (m->set.may_exit && m->set.n == 0);
}

const uint32_t *matcher_mask(struct matcher *m) {
    if (m->has_mask)
        return m->mask;
    memset(m->mask, 0, m->t->n_words * sizeof *m->mask);
    m->has_mask =
        m->has_ended || masks_add(m->masks, m->set.threads, m->set.n, &m->frames, m->mask);
    for (uint32_t i = 0; matcher_may_end(m) && i < m->t->n_ends; i++)
        m->mask[m->t->ends[i] / 32] |= 1u << m->t->ends[i] % 32;
    return m->mask;
}

const uint32_t *matcher_keeps(struct matcher *m) {
    bool is_steady =
        !m->has_ended && !m->set.may_exit && masks_are_steady(m->masks, m->set.threads, m->set.n);
    return is_steady ? m->t->plain + (size_t)TEXT_MAX_PLAIN * m->t->n_words : NULL;
}

static bool is_end(const struct token_texts *t, int32_t token) {
    for (uint32_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == token)
            return true;
    return false;
}

/* One byte from `from` to `to`; false: none can read it, or memory ran out. */
static bool step(struct matcher *m, const struct thread_set *from, struct thread_set *to,
                 uint8_t byte) {
    bool is_ok = true;
    thread_set_clear(to);
    for (uint32_t i = 0; i < from->n && is_ok; i++)
        is_ok = thread_set_step(to, &m->g->program, &m->frames, from->threads[i], byte);
    return is_ok && (to->n || to->may_exit);
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

bool matcher_accept(struct matcher *m, int32_t token) {
    if (token < 0 || token >= m->t->n_tokens || m->has_ended)
        return false;
    struct str text = m->t->texts[token];
    if (is_end(m->t, token)) {
        if (!m->set.may_exit)
            return false;
        m->has_ended = true;
    } else {
        if (text.len == 0 || !step_all(m, text))
            return false;
        swap(&m->set, &m->to);
        m->set.n = min_u32(m->set.n, MAX_KEPT);
        thread_set_sort(&m->set);
    }
    m->has_mask = false;
    return true;
}
