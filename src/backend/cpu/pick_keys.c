/* pick_keys.c - PICK: the best candidates of a row, listed and sorted. */
#include "backend/cpu/pick_row.h"

void pick_select(uint64_t *keys, uint32_t n, uint32_t m) {
    uint32_t low = 0, high = n;
    while (high - low > 1) {
        uint64_t a = keys[low], b = keys[low + (high - low) / 2], c = keys[high - 1];
        uint64_t pivot = a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b);
        uint32_t i = low, j = high - 1;
        for (;; i++, j--) { /* keys differ, so both stop at the pivot */
            while (keys[i] > pivot)
                i++;
            while (keys[j] < pivot)
                j--;
            if (i >= j)
                break;
            uint64_t t = keys[i];
            keys[i] = keys[j];
            keys[j] = t;
        }
        uint32_t middle = j + 1;
        if (middle >= high) /* the pivot was the smallest */
            middle = high - 1;
        if (m <= middle)
            high = middle;
        else
            low = middle;
        if (m == middle)
            return;
    }
}

/* Of a heap sort: in place, and never slow. */
static void sift(uint64_t *keys, uint32_t root, uint32_t n) {
    for (uint32_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && keys[child + 1] < keys[child])
            child++;
        if (keys[root] <= keys[child])
            return;
        uint64_t t = keys[root];
        keys[root] = keys[child];
        keys[child] = t;
    }
}

void pick_sort(uint64_t *keys, uint32_t n) {
    for (uint32_t i = n / 2; i-- > 0;)
        sift(keys, i, n);
    for (uint32_t i = n; i-- > 1;) {
        uint64_t t = keys[0];
        keys[0] = keys[i];
        keys[i] = t;
        sift(keys, 0, i);
    }
}

uint32_t pick_list_all(const struct pick_row *r, uint64_t *keys) {
    for (uint32_t i = 0; i < r->n; i++)
        keys[i] = key_of(rank_of(r->x[i]), i);
    return r->n;
}

uint32_t pick_list_best(const struct pick_row *r, uint64_t *keys, uint32_t m) {
    uint32_t count = 0, max = r->n / 2 - r->n_blocks;
    for (uint32_t b = 0; b < r->n_blocks; b++)
        keys[b] = key_of(r->best[b], b);
    pick_select(keys, r->n_blocks, m);
    int32_t least = INT32_MAX;
    for (uint32_t i = 0; i < m; i++)
        least = rank_in(keys[i]) < least ? rank_in(keys[i]) : least;
    for (uint32_t b = 0; b < r->n_blocks; b++) {
        if (r->best[b] < least)
            continue;
        uint32_t begin = b * RANK_BLOCK,
                 end = r->n - begin < RANK_BLOCK ? r->n : begin + RANK_BLOCK;
        if (max - count < RANK_BLOCK)
            return 0;
        for (uint32_t i = begin; i < end; i++) {
            int32_t rank = rank_of(r->x[i]);
            keys[count] = key_of(rank, i);
            count += rank >= least;
        }
    }
    return count;
}

int32_t pick_best_of(const int32_t *ranks, uint32_t n) {
    enum { CHAINS = 4 }; /* one would wait for itself */
    int32_t best[CHAINS];
    for (uint32_t i = 0; i < CHAINS; i++)
        best[i] = ranks[0];
    uint32_t b = 0;
    for (; b + CHAINS <= n; b += CHAINS)
        for (uint32_t i = 0; i < CHAINS; i++)
            best[i] = ranks[b + i] > best[i] ? ranks[b + i] : best[i];
    for (; b < n; b++)
        best[0] = ranks[b] > best[0] ? ranks[b] : best[0];
    for (uint32_t i = 1; i < CHAINS; i++)
        best[0] = best[i] > best[0] ? best[i] : best[0];
    return best[0];
}
