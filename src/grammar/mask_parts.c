/* mask_parts.c - parts of masks, found by where they continue from, and made by a walk.
 *
 * Two things keep parts few and walks short. The counts of loops are rounded where many rounds are
 * left, so that counts that differ share a part. And where a state reads plain texts of a known
 * length, these are taken from the vocabulary's masks of plain texts, and only the others are
 * walked. */
#include "grammar/mask_parts.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/size.h"

enum {
    MAX_BYTES = 48 << 20, /* of the arena */
    FEW_TOKENS = 512,     /* kept as a list, beside a known mask */
    EXACT_ROUNDS = 8,     /* rounds left, below which a loop's count is not rounded */
    MOST_ROUNDS = 1024,   /* more than a token has characters */
    JOINED = 1u << 31,    /* beside a part's number in `edges`: a join with that part */
};

/* ---- open and close ----------------------------------------------------------------------- */

bool mask_parts_open(struct mask_parts *parts, struct dfa *dfa, const struct token_texts *texts) {
    *parts = (struct mask_parts){.dfa = dfa, .texts = texts, .capacity = 64};
    parts->parts = calloc(parts->capacity, sizeof *parts->parts);
    parts->slots = calloc(2ul * parts->capacity, sizeof *parts->slots);
    parts->starts = calloc(texts->n_nodes + 1ul, sizeof *parts->starts);
    if (!parts->parts || !parts->slots || !parts->starts)
        return false;
    mask_parts_reset(parts);
    return trie_walk_open(&parts->walk, dfa, texts);
}

void mask_parts_close(struct mask_parts *parts) {
    trie_walk_close(&parts->walk);
    arena_free(&parts->arena);
    free(parts->parts);
    free(parts->slots);
    free(parts->starts);
    free(parts->rounded);
}

void mask_parts_reset(struct mask_parts *parts) {
    arena_free(&parts->arena);
    memset(parts->slots, 0, 2ul * parts->capacity * sizeof *parts->slots);
    parts->n = 1;
}

bool mask_parts_are_large(const struct mask_parts *parts) {
    return parts->arena.used > MAX_BYTES;
}

size_t mask_parts_bytes(const struct mask_parts *parts) {
    const struct trie_walk *w = &parts->walk;
    return parts->arena.used + parts->capacity * (sizeof *parts->parts + 2 * sizeof *parts->slots) +
           (size_t)parts->texts->n_tokens * sizeof *w->tokens +
           parts->texts->n_nodes * (sizeof *w->exits + sizeof *parts->starts);
}

/* ---- the table ---------------------------------------------------------------------------- */

/* Where the part with these edges after another is, or goes. */
static uint32_t *slot_of(const struct mask_parts *parts, uint32_t from, uint32_t edges) {
    uint32_t last = 2 * parts->capacity - 1;
    uint64_t hash = (from * UINT64_C(0x9E3779B97F4A7C15) ^ edges) * UINT64_C(0xBF58476D1CE4E5B9);
    uint32_t i = (uint32_t)(hash >> 32) & last;
    for (; parts->slots[i]; i = (i + 1) & last) {
        const struct mask_part *p = &parts->parts[parts->slots[i]];
        if (p->from == from && p->edges == edges)
            break;
    }
    return &parts->slots[i];
}

static bool grow(struct mask_parts *parts) {
    if (parts->n < parts->capacity)
        return true;
    struct mask_part *more = realloc(parts->parts, 2ul * parts->capacity * sizeof *more);
    if (!more)
        return false;
    parts->parts = more;
    uint32_t *slots = calloc(4ul * parts->capacity, sizeof *slots);
    if (!slots)
        return false;
    free(parts->slots);
    parts->slots = slots;
    parts->capacity *= 2;
    for (uint32_t i = 1; i < parts->n; i++)
        if (parts->parts[i].from)
            *slot_of(parts, parts->parts[i].from, parts->parts[i].edges) = i;
    return true;
}

static void *copy(struct mask_parts *parts, const void *from, size_t bytes) {
    void *to = arena_alloc(&parts->arena, bytes);
    if (to && bytes)
        memcpy(to, from, bytes);
    return to;
}

/* A mask of what the walks found and of the texts of up to n_plain plain characters. */
static uint32_t *make_bits(struct mask_parts *parts, uint32_t n_plain) {
    const struct trie_walk *w = &parts->walk;
    uint32_t *bits = arena_array(&parts->arena, parts->texts->n_words, sizeof *bits);
    if (bits)
        token_texts_add_plain(parts->texts, n_plain, bits);
    for (uint32_t i = 0; bits && i < w->n_found; i++)
        bits[w->tokens[i] / 32] |= 1u << w->tokens[i] % 32;
    return bits;
}

/* Makes a part of what the walks found and of all texts of up to n_plain plain characters; 0 when
 * memory ran out. */
static uint32_t add_part(struct mask_parts *parts, uint32_t n_plain) {
    const struct trie_walk *w = &parts->walk;
    struct mask_part part = {.n_tokens = w->n_found, .n_exits = w->n_exits};
    part.exits = copy(parts, w->exits, w->n_exits * sizeof *w->exits);
    if (w->n_found < (n_plain ? FEW_TOKENS : parts->texts->n_words)) {
        part.tokens = copy(parts, w->tokens, w->n_found * sizeof *w->tokens);
        part.n_plain = (uint8_t)n_plain;
    } else {
        part.bits = make_bits(parts, n_plain);
    }
    if (!part.exits || (!part.tokens && !part.bits) || !grow(parts))
        return 0;
    parts->parts[parts->n] = part;
    return parts->n++;
}

/* The same after another part. */
static uint32_t add_child(struct mask_parts *parts, uint32_t from, uint32_t edges,
                          uint32_t n_plain) {
    uint32_t child = add_part(parts, n_plain);
    if (!child)
        return 0;
    parts->parts[child].from = from;
    parts->parts[child].edges = edges;
    *slot_of(parts, from, edges) = child;
    return child;
}

/* ---- edges -------------------------------------------------------------------------------- */

/* Rounds the count of an edge whose loop has more rounds left than a token may use: to so many left
 * as a power of two, never to more than there are. */
static struct edge round_count(const struct program *p, struct edge e) {
    if (e.count == EDGE_CALL)
        return e;
    const struct loop *loop = &p->loops[p->insts[e.pc].other];
    uint32_t done = e.count + 1;
    if (loop->max == REPEAT_NO_LIMIT || done < loop->min || loop->max - done < EXACT_ROUNDS)
        return e;
    uint32_t left = EXACT_ROUNDS;
    while (left <= (loop->max - done) / 2 && left < MOST_ROUNDS)
        left *= 2;
    e.count = loop->max - left - 1;
    return e;
}

uint32_t mask_parts_edges(struct mask_parts *parts, const struct edge *edges, uint32_t n) {
    struct nodes *nodes = &parts->dfa->nodes;
    if (!array_grow(&parts->rounded, n, &parts->rounded_capacity, sizeof *parts->rounded))
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        parts->rounded[i] = round_count(parts->dfa->p, edges[i]);
        parts->rounded[i].below = NODE_BASE;
    }
    if (!nodes_work(nodes, n + 3))
        return 0;
    return nodes_find(nodes, parts->rounded, edges_sort(parts->rounded, n));
}

/* ---- making parts ------------------------------------------------------------------------- */

uint32_t mask_parts_first(struct mask_parts *parts, uint32_t state) {
    static const uint32_t root[] = {0};
    struct dfa *d = parts->dfa;
    if (d->states[state].part)
        return d->states[state].part;
    uint32_t end = DFA_UNKNOWN, n = dfa_count_plain(d, state, TEXT_MAX_CHARS, &end);
    bool is_one_char = n == 0 && end == PLAIN_ENDS;
    bool is_counted = n >= TEXT_MAX_PLAIN || end == DFA_DEAD;
    trie_walk_clear(&parts->walk);
    if (!dfa_is_cut(d))
        trie_walk_run(&parts->walk,
                      &(struct trie_start){root, 1, state, is_one_char || is_counted});
    uint32_t part = dfa_is_cut(d) ? 0 : add_part(parts, is_one_char ? 1 : is_counted ? n : 0);
    d->states[state].part = part;
    if (part)
        parts->parts[part].has_char_exits = is_one_char;
    return part;
}

/* Two ascending lists as one, without what is in both. */
static uint32_t merge_lists(const uint32_t *a, uint32_t n_a, const uint32_t *b, uint32_t n_b,
                            uint32_t *out) {
    uint32_t n = 0;
    for (uint32_t i = 0, k = 0; i < n_a || k < n_b;) {
        uint32_t x = i < n_a ? a[i] : UINT32_MAX, y = k < n_b ? b[k] : UINT32_MAX;
        out[n++] = min_u32(x, y);
        i += x <= y;
        k += y <= x;
    }
    return n;
}

/* Where every plain character is an exit and the state after the edges reads n more, the texts of
 * up to n + 1 fit, and are not walked. */
uint32_t mask_parts_next(struct mask_parts *parts, uint32_t part, uint32_t edges) {
    struct dfa *d = parts->dfa;
    const struct token_texts *t = parts->texts;
    uint32_t child = *slot_of(parts, part, edges);
    if (child)
        return child;
    uint32_t state = dfa_state_after(d, edges), n = 0, end = DFA_UNKNOWN;
    const struct mask_part *from = &parts->parts[part];
    if (state > DFA_DEAD && from->has_char_exits && !d->states[state].may_end)
        n = dfa_count_plain(d, state, TEXT_MAX_CHARS - 1, &end);
    bool is_counted = n >= TEXT_MAX_PLAIN - 1 || end == DFA_DEAD;
    struct trie_start start = {from->exits, from->n_exits, state, is_counted};
    if (from->has_char_exits && !is_counted) {
        start.nodes = parts->starts;
        start.n =
            merge_lists(from->exits, from->n_exits, t->char_nodes, t->n_char_nodes, parts->starts);
    }
    trie_walk_clear(&parts->walk);
    if (state > DFA_DEAD && !dfa_is_cut(d))
        trie_walk_run(&parts->walk, &start);
    if (state == DFA_UNKNOWN || dfa_is_cut(d))
        return 0;
    return add_child(parts, part, edges, is_counted ? n + 1 : 0);
}

uint32_t mask_parts_join(struct mask_parts *parts, uint32_t a, uint32_t b) {
    struct trie_walk *w = &parts->walk;
    if (a == b)
        return a;
    uint32_t both = *slot_of(parts, a, JOINED | b);
    if (both)
        return parts->parts[both].same ? parts->parts[both].same : both;
    const struct mask_part *x = &parts->parts[a], *y = &parts->parts[b];
    bool has_char_exits = x->has_char_exits || y->has_char_exits;
    trie_walk_clear(w);
    w->n_exits = merge_lists(x->exits, x->n_exits, y->exits, y->n_exits, w->exits);
    bool is_a = w->n_exits == x->n_exits && has_char_exits == x->has_char_exits;
    bool is_b = w->n_exits == y->n_exits && has_char_exits == y->has_char_exits;
    if (!nodes_work(&parts->dfa->nodes, w->n_exits / 8 + 1))
        return 0;
    if (is_a || is_b)
        w->n_exits = 0;
    both = add_child(parts, a, JOINED | b, 0);
    if (!both)
        return 0;
    parts->parts[both].same = is_a ? a : is_b ? b : 0;
    parts->parts[both].has_char_exits = has_char_exits;
    return is_a ? a : is_b ? b : both;
}

/* ---- using them --------------------------------------------------------------------------- */

uint32_t mask_parts_count_exits(const struct mask_parts *parts, uint32_t part) {
    const struct mask_part *p = &parts->parts[part];
    return p->n_exits + (p->has_char_exits ? parts->texts->n_char_nodes : 0);
}

void mask_parts_add_tokens(const struct mask_parts *parts, uint32_t part, uint32_t *mask) {
    const struct mask_part *p = &parts->parts[part];
    const struct token_texts *t = parts->texts;
    nodes_work(&parts->dfa->nodes, (p->bits || p->n_plain ? t->n_words : p->n_tokens) / 64);
    if (p->n_plain)
        token_texts_add_plain(t, p->n_plain, mask);
    for (uint32_t i = 0; p->bits && i < t->n_words; i++)
        mask[i] |= p->bits[i];
    for (uint32_t i = 0; !p->bits && i < p->n_tokens; i++)
        mask[p->tokens[i] / 32] |= 1u << p->tokens[i] % 32;
}
