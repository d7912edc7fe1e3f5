/* merge.c - joining pairs in order of rank.
 *
 * Short words, nearly all of them, are scanned for the lowest rank after each join. Long ones go
 * through a linked list and a heap of (rank, place): a word of a million letters must not take
 * quadratic time.
 *
 * (1) A heap entry is valid when the pair at its place has its rank now. It need not be the pair
 *     that it was made for: among equal ranks the leftmost joins first, whatever the symbols.
 * (2) A node that was merged into its left neighbour has rank RANK_NONE and is in no list. */
#include "text/merge.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/str.h"

enum { SHORT_WORD = 24 }; /* symbols; beyond it the heap is faster */
enum { ARITY = 4 };       /* children of a heap entry */

/* ---- the table ---- */

int pairs_reserve(struct pairs *pairs, size_t count, struct err *err) {
    size_t n = 16;
    while (n < count * 2)
        n *= 2;
    if (pairs->slots && n <= pairs->mask + 1)
        return SLUICE_OK;
    uint64_t bytes;
    struct pairs old = *pairs;
    struct pair_slot *slots = size_mul(n, sizeof *slots, &bytes) ? malloc(bytes) : NULL;
    if (!slots)
        return err_memory(err, "the table of merges");
    for (size_t i = 0; i < n; i++)
        slots[i].left = SYMBOL_NONE;
    *pairs = (struct pairs){.slots = slots, .mask = n - 1, .seed = str_hash(STR("pairs"))};
    for (size_t i = 0; old.slots && i <= old.mask; i++)
        if (old.slots[i].left != SYMBOL_NONE)
            pairs_add(pairs, old.slots[i].left, old.slots[i].right, old.slots[i].to);
    free(old.slots);
    return SLUICE_OK;
}

void pairs_add(struct pairs *pairs, uint32_t left, uint32_t right, struct joined to) {
    CHECK(left != SYMBOL_NONE && right != SYMBOL_NONE);
    size_t i = pair_home(pairs, left, right);
    for (; pairs->slots[i].left != SYMBOL_NONE; i = (i + 1) & pairs->mask)
        if (pairs->slots[i].left == left && pairs->slots[i].right == right)
            return;
    CHECK(pairs->count * 2 <= pairs->mask);
    pairs->slots[i] = (struct pair_slot){left, right, to};
    pairs->count++;
}

void pairs_free(struct pairs *pairs) {
    free(pairs->slots);
    *pairs = (struct pairs){0};
}

/* ---- memory ---- */

struct merge_node {
    uint32_t symbol, rank; /* the rank of joining it with the next one */
    uint32_t prev, next;   /* indices; NO_NODE at the ends */
};
#define NO_NODE UINT32_MAX

/* Reserves n elements; the old content is not kept. */
static int reserve(void **at, size_t *capacity, size_t n, size_t element, struct err *err) {
    if (n <= *capacity)
        return SLUICE_OK;
    uint64_t bytes;
    free(*at);
    *capacity = 0;
    *at = size_mul(n + 64, element, &bytes) ? malloc(bytes) : NULL;
    if (!*at)
        return err_memory(err, "merging a word");
    *capacity = n + 64;
    return SLUICE_OK;
}

int merger_reserve(struct merger *m, size_t n, struct err *err) {
    if (n >= NO_NODE / 2)
        return err_set(err, SLUICE_ERR_MEMORY, "a word of %zu bytes is too long to tokenize", n);
    return reserve((void **)&m->symbols, &m->symbol_capacity, n, sizeof *m->symbols, err);
}

void merger_free(struct merger *m) {
    free(m->symbols);
    free(m->nodes);
    free(m->heap);
    *m = (struct merger){0};
}

/* ---- short words ---- */

static void merge_short(struct merger *m, const struct pairs *pairs) {
    struct joined to[SHORT_WORD]; /* of symbol i with symbol i + 1 */
    uint32_t *s = m->symbols;
    size_t n = m->n_symbols;
    for (size_t i = 0; i + 1 < n; i++)
        to[i] = pairs_get(pairs, s[i], s[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (to[i].rank < to[best].rank)
                best = i;
        if (to[best].rank == RANK_NONE)
            break;
        s[best] = to[best].symbol;
        n--;
        memmove(s + best + 1, s + best + 2, (n - best - 1) * sizeof *s);
        memmove(to + best, to + best + 1, (n - best - 1) * sizeof *to);
        if (best > 0)
            to[best - 1] = pairs_get(pairs, s[best - 1], s[best]);
        if (best + 1 < n)
            to[best] = pairs_get(pairs, s[best], s[best + 1]);
    }
    m->n_symbols = n;
}

/* ---- long words ---- */

/* Puts `entry` into the hole at `i` and lets it sink to its place. The smallest of a full set of
 * children is found without branches, which would be mispredicted half the time. */
static void heap_sink(uint64_t *heap, size_t n, size_t i, uint64_t entry) {
    for (;;) {
        size_t child = i * ARITY + 1, smallest = child;
        if (child + ARITY <= n) {
            uint64_t low = heap[child];
            for (size_t c = child + 1; c < child + ARITY; c++) {
                smallest = heap[c] < low ? c : smallest;
                low = heap[c] < low ? heap[c] : low;
            }
        } else {
            for (size_t c = child + 1; c < n; c++)
                smallest = heap[c] < heap[smallest] ? c : smallest;
        }
        if (child >= n || heap[smallest] >= entry)
            break;
        heap[i] = heap[smallest];
        i = smallest;
    }
    heap[i] = entry;
}

static uint64_t heap_pop(struct merger *m) {
    uint64_t top = m->heap[0];
    uint64_t last = m->heap[--m->n_heap];
    if (m->n_heap > 0)
        heap_sink(m->heap, m->n_heap, 0, last);
    return top;
}

static void heap_push(struct merger *m, uint64_t entry) {
    size_t i = m->n_heap++;
    for (; i > 0 && m->heap[(i - 1) / ARITY] > entry; i = (i - 1) / ARITY)
        m->heap[i] = m->heap[(i - 1) / ARITY];
    m->heap[i] = entry;
}

/* Looks up what node i and the next join into, and adds it to the heap if they do. */
static void rate(struct merger *m, const struct pairs *pairs, uint32_t i) {
    struct merge_node *node = &m->nodes[i];
    node->rank = RANK_NONE;
    if (node->next == NO_NODE)
        return;
    node->rank = pairs_get(pairs, node->symbol, m->nodes[node->next].symbol).rank;
    if (node->rank != RANK_NONE)
        heap_push(m, (uint64_t)node->rank << 32 | i);
}

/* The list of nodes, and a heap of the pairs that join. */
static int list_symbols(struct merger *m, const struct pairs *pairs, struct err *err) {
    size_t n = m->n_symbols;
    int status = reserve((void **)&m->nodes, &m->node_capacity, n, sizeof *m->nodes, err);
    /* n - 1 entries at first; a join takes at least one out before it adds at most two. */
    if (status == SLUICE_OK)
        status = reserve((void **)&m->heap, &m->heap_capacity, 2 * n, sizeof *m->heap, err);
    if (status != SLUICE_OK)
        return status;
    m->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t rank =
            i + 1 < n ? pairs_get(pairs, m->symbols[i], m->symbols[i + 1]).rank : RANK_NONE;
        m->nodes[i] = (struct merge_node){
            .symbol = m->symbols[i],
            .rank = rank,
            .prev = i > 0 ? (uint32_t)i - 1 : NO_NODE,
            .next = i + 1 < n ? (uint32_t)i + 1 : NO_NODE,
        };
        if (rank != RANK_NONE)
            m->heap[m->n_heap++] = (uint64_t)rank << 32 | i;
    }
    for (size_t i = m->n_heap / ARITY + 1; i-- > 0;)
        if (i < m->n_heap)
            heap_sink(m->heap, m->n_heap, i, m->heap[i]);
    return SLUICE_OK;
}

static void join(struct merger *m, const struct pairs *pairs, uint32_t left) {
    struct merge_node *a = &m->nodes[left], *b = &m->nodes[a->next];
    a->symbol = pairs_get(pairs, a->symbol, b->symbol).symbol;
    b->rank = RANK_NONE;
    a->next = b->next;
    if (b->next != NO_NODE)
        m->nodes[b->next].prev = left;
    if (a->prev != NO_NODE)
        rate(m, pairs, a->prev);
    rate(m, pairs, left);
}

static int merge_long(struct merger *m, const struct pairs *pairs, struct err *err) {
    int status = list_symbols(m, pairs, err);
    if (status != SLUICE_OK)
        return status;
    while (m->n_heap > 0) {
        uint64_t top = heap_pop(m);
        uint32_t left = (uint32_t)top;
        if (m->nodes[left].rank == (uint32_t)(top >> 32))
            join(m, pairs, left);
    }
    size_t n = 0;
    for (uint32_t i = 0; i != NO_NODE; i = m->nodes[i].next)
        m->symbols[n++] = m->nodes[i].symbol;
    m->n_symbols = n;
    return SLUICE_OK;
}

int merge_run(struct merger *m, const struct pairs *pairs, struct err *err) {
    if (m->n_symbols > SHORT_WORD)
        return merge_long(m, pairs, err);
    merge_short(m, pairs);
    return SLUICE_OK;
}
