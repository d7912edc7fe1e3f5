/* attend.c - ATTEND on the CPU: head norms, rotary embedding, cache, split attention.
 *
 * First every row's keys and values go into the cache, rounded to its type. Then queries of one KV
 * head and of up to ATTEND_QUERIES / group rows of a segment, a block, attend to the positions they
 * see, in splits of ATTEND_POSITIONS: a kernel (kernels.h) gives each query a maximum, a sum and a
 * PV of the split, and these are combined with the query's own in split order.
 *
 * Where there are blocks enough, threads share them out and combine as they go. Otherwise (one row,
 * a few) they share out the splits of all blocks. A thread that has all splits of a block combines
 * as it goes, too; of a block that several threads have, the result of each split is kept and
 * combined after a barrier. These are the same sums in the same order: a query's bits depend on its
 * sequence alone. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/vec.h"

static void rotate(float *x, const float *angles, uint32_t rotary, enum rope_pairing pairing) {
    for (uint32_t i = 0; i < rotary / 2; i++) {
        uint32_t a = pairing == ROPE_HALVES ? i : 2 * i,
                 b = pairing == ROPE_HALVES ? i + rotary / 2 : 2 * i + 1;
        float c = angles[2 * i], sine = angles[2 * i + 1], xa = x[a], xb = x[b];
        x[a] = xa * c - xb * sine;
        x[b] = xb * c + xa * sine;
    }
}

/* A head of a row, normed (where there is a norm) and rotated. */
static void head_of(struct cpu_step *s, const struct op_attend *a, uint32_t row, uint32_t column,
                    const struct operand *norm, float *out) {
    const float *x = row_of(s, &a->in, row) + column;
    if (norm->n_dims)
        cpu_norm(out, x, at(s, norm), a->eps, a->head_width);
    else
        memcpy(out, x, a->head_width * sizeof *out);
    if (a->rotary)
        rotate(out, (const float *)at(s, &a->angles) + (uint64_t)row * a->rotary, a->rotary,
               a->pairing);
}

/* ---- the cache ---------------------------------------------------------------------------- */

/* Where position p of a slot begins for a KV head; positions of a page follow each other. */
static uint8_t *cache_at(struct cpu_step *s, const struct op_attend *a, const struct operand *o,
                         uint32_t slot, uint32_t head, uint32_t position) {
    const int32_t *pages = (const int32_t *)at(s, &a->pages) + (uint64_t)slot * a->pages.dims[0];
    uint64_t page = (uint64_t)pages[position / IO_PAGE_POSITIONS];
    uint64_t row = (page * a->kv_heads + head) * IO_PAGE_POSITIONS + position % IO_PAGE_POSITIONS;
    return (uint8_t *)at(s, o) + row * operand_row_bytes(o);
}

/* A head of a row at its place in the cache. */
static void store_head(const struct op_attend *a, const float *x, uint8_t *to) {
    if (a->keys.type == DT_F16)
        row_to_f16((uint16_t *)to, x, a->head_width);
    else
        dtype_info(a->keys.type)->encode(x, to, a->head_width);
}

static void store_rows(struct cpu_step *s, const struct op_attend *a) {
    struct share share = share_of(s, s->io->n_rows * a->kv_heads, 1);
    float key[ATTEND_MAX_WIDTH];
    for (uint32_t i = share.begin; i < share.end; i++) {
        uint32_t row = i / a->kv_heads, head = i % a->kv_heads;
        const struct io_row *r = &s->rows[row];
        head_of(s, a, row, a->k_column + head * a->head_width, &a->k_norm, key);
        store_head(a, key, cache_at(s, a, &a->keys, r->slot, head, r->position));
        store_head(a, row_of(s, &a->in, row) + a->v_column + head * a->head_width,
                   cache_at(s, a, &a->values, r->slot, head, r->position));
    }
}

/* ---- blocks of queries -------------------------------------------------------------------- */

struct block {
    const struct io_segment *segment;
    uint32_t first, n_rows;    /* in the segment */
    uint32_t head;             /* KV head */
    uint32_t group, n_queries; /* query heads to it; times the rows */
    uint32_t n_splits;
    uint64_t at;   /* of its first split among those of all blocks */
    uint64_t part; /* of its first query and split among all that are kept */
};

/* All blocks of a step, one after the other. */
struct blocks {
    uint32_t rows; /* of a block, at most */
    struct block now;
    uint32_t next_segment, next_first, next_head;
};

static uint32_t splits_of(const struct io_segment *g, uint32_t rows) {
    return (g->first_position + rows - 1) / ATTEND_POSITIONS + 1;
}

/* The next block; false after the last. */
static bool next_block(struct cpu_step *s, const struct op_attend *a, struct blocks *b) {
    uint64_t at = b->now.at + b->now.n_splits;
    uint64_t part = b->now.part + (uint64_t)b->now.n_splits * b->now.n_queries;
    if (b->next_segment == s->io->n_segments)
        return false;
    const struct io_segment *g = &s->segments[b->next_segment];
    uint32_t left = g->n_rows - b->next_first, rows = left < b->rows ? left : b->rows;
    b->now = (struct block){.segment = g,
                            .first = b->next_first,
                            .n_rows = rows,
                            .head = b->next_head,
                            .group = a->heads / a->kv_heads,
                            .n_queries = rows * (a->heads / a->kv_heads),
                            .n_splits = splits_of(g, b->next_first + rows),
                            .at = at,
                            .part = part};
    if (++b->next_head < a->kv_heads)
        return true;
    b->next_head = 0;
    b->next_first += rows;
    if (b->next_first == g->n_rows)
        b->next_segment++, b->next_first = 0;
    return true;
}

/* Row and query head of query q. */
static uint32_t row_of_query(const struct block *k, uint32_t q) {
    return k->segment->first_row + k->first + q / k->group;
}

static uint32_t head_of_query(const struct block *k, uint32_t q) {
    return k->head * k->group + q % k->group;
}

static void load_queries(struct cpu_step *s, const struct op_attend *a, const struct block *k) {
    uint32_t stride = attend_stride(a->head_width);
    for (uint32_t q = 0; q < k->n_queries; q++) {
        float *query = s->scratch->query + (uint64_t)q * stride;
        head_of(s, a, row_of_query(k, q), head_of_query(k, q) * a->q_stride, &a->q_norm, query);
        row_times(query, query, a->scale, a->head_width);
        if (a->keys.type == DT_F16)
            row_round_f16(query, query, a->head_width);
        memset(query + a->head_width, 0, (stride - a->head_width) * sizeof *query);
    }
}

static void run_split(struct cpu_step *s, const struct op_attend *a, const struct block *k,
                      uint32_t split, struct softmax *sums, float *pv) {
    uint32_t begin = split * ATTEND_POSITIONS, seen[ATTEND_QUERIES];
    uint32_t slot = s->rows[k->segment->first_row].slot;
    for (uint32_t q = 0; q < k->n_queries; q++) {
        uint32_t end = k->segment->first_position + k->first + q / k->group + 1;
        uint32_t n = end > begin ? end - begin : 0;
        seen[q] = n < ATTEND_POSITIONS ? n : ATTEND_POSITIONS;
    }
    s->b->attend->run(&(struct attend_split){
        .type = (enum dtype)a->keys.type,
        .width = a->head_width,
        .keys = cache_at(s, a, &a->keys, slot, k->head, begin),
        .values = cache_at(s, a, &a->values, slot, k->head, begin),
        .queries = s->scratch->query,
        .seen = seen,
        .n_queries = k->n_queries,
        .sums = sums,
        .pv = pv,
        .tile = s->scratch->keys,
        .qk = s->scratch->qk,
        .next = split + 1 < k->n_splits
                    ? cache_at(s, a, &a->keys, slot, k->head, begin + ATTEND_POSITIONS)
                    : NULL,
    });
}

enum { FEW = 8 }; /* splits that are combined at once */

/* Combines the softmax and PV of n splits, FEW at most and `step` rows apart, with those of the
 * query, one after the other. All maxima are known, so that one vector has the exponentials of all
 * splits, and sums need not wait for them. Every query sees something of its first split. */
static void combine(struct softmax *f, float *pv, const struct softmax *sums, const float *parts,
                    uint32_t n, uint32_t step, uint32_t width) {
    uint32_t stride = attend_stride(width);
    float factors[2 * FEW] = {0};
    if (f->sum == 0) {
        *f = *sums;
        memcpy(pv, parts, width * sizeof *pv);
        sums += step;
        parts += (uint64_t)step * stride;
        n--;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct softmax split = sums[i * step];
        float max = split.sum != 0 && split.max > f->max ? split.max : f->max;
        factors[2 * i] = f->max - max;
        factors[2 * i + 1] = split.max - max;
        f->max = max;
    }
    row_exp_of(factors, factors, 1, 0, (2 * n + VEC_LANES - 1) / VEC_LANES * VEC_LANES);
    for (uint32_t i = 0; i < n; i++) {
        float sum = sums[i * step].sum, ours = factors[2 * i], theirs = factors[2 * i + 1];
        if (sum == 0)
            continue;
        row_mix(pv, ours, parts + (uint64_t)i * step * stride, theirs, width);
        f->sum = f->sum * ours + sum * theirs;
    }
}

static void store_query(struct cpu_step *s, const struct op_attend *a, const struct block *k,
                        uint32_t q, const float *pv, float sum) {
    float *out = row_of(s, &a->out, row_of_query(k, q));
    row_over(out + (uint64_t)head_of_query(k, q) * a->head_width, pv, sum, a->head_width);
}

/* ---- blocks shared out -------------------------------------------------------------------- */

static void run_block(struct cpu_step *s, const struct op_attend *a, const struct block *k) {
    struct softmax sums[ATTEND_QUERIES] = {0}, of_splits[ATTEND_QUERIES];
    uint32_t stride = attend_stride(a->head_width), few = ATTEND_QUERIES / k->n_queries;
    few = few < FEW ? few : FEW;
    load_queries(s, a, k);
    for (uint32_t split = 0; split < k->n_splits && !is_cancelled(s); split += few) {
        uint32_t left = k->n_splits - split, n = left < few ? left : few;
        for (uint32_t i = 0; i < n; i++)
            run_split(s, a, k, split + i, of_splits + i * k->n_queries,
                      s->scratch->part + (uint64_t)i * k->n_queries * stride);
        for (uint32_t q = 0; q < k->n_queries; q++)
            combine(&sums[q], s->scratch->pv + (uint64_t)q * stride, &of_splits[q],
                    s->scratch->part + (uint64_t)q * stride, n, k->n_queries, a->head_width);
    }
    for (uint32_t q = 0; q < k->n_queries; q++)
        store_query(s, a, k, q, s->scratch->pv + (uint64_t)q * stride, sums[q].sum);
}

/* Blocks are dealt out like cards: later rows see more and cost more. */
static void run_blocks(struct cpu_step *s, const struct op_attend *a, uint32_t rows) {
    struct blocks b = {.rows = rows};
    for (uint32_t dealt = 0; next_block(s, a, &b); dealt++)
        if (dealt % (uint32_t)s->threads == (uint32_t)s->thread)
            run_block(s, a, &b.now);
}

/* ---- splits shared out -------------------------------------------------------------------- */

/* The thread that has a split of all blocks' `total`: thread t has those from total * t / threads
 * on, rounded down. */
static uint64_t thread_of(const struct cpu_step *s, uint64_t split, uint64_t total) {
    return ((split + 1) * (uint64_t)s->threads - 1) / total;
}

static bool is_shared(const struct cpu_step *s, const struct block *k, uint64_t total) {
    return thread_of(s, k->at, total) != thread_of(s, k->at + k->n_splits - 1, total);
}

static void run_splits(struct cpu_step *s, const struct op_attend *a, uint32_t rows,
                       uint64_t total) {
    uint64_t begin = total * (uint64_t)s->thread / (uint64_t)s->threads;
    uint64_t end = total * (uint64_t)(s->thread + 1) / (uint64_t)s->threads;
    uint32_t stride = attend_stride(a->head_width);
    for (struct blocks b = {.rows = rows}; next_block(s, a, &b);) {
        const struct block *k = &b.now;
        if (k->at + k->n_splits <= begin || k->at >= end)
            continue;
        if (!is_shared(s, k, total)) {
            run_block(s, a, k);
            continue;
        }
        load_queries(s, a, k);
        for (uint32_t split = 0; split < k->n_splits && !is_cancelled(s); split++) {
            uint64_t part = k->part + (uint64_t)split * k->n_queries;
            if (k->at + split >= begin && k->at + split < end)
                run_split(s, a, k, split, s->b->part_sums + part, s->b->parts + part * stride);
        }
    }
}

/* A query's parts in the order of the splits. */
static void combine_query(struct cpu_step *s, const struct op_attend *a, const struct block *k,
                          uint32_t q) {
    uint32_t stride = attend_stride(a->head_width);
    struct softmax sum = {0};
    for (uint32_t split = 0; split < k->n_splits; split += FEW) {
        uint32_t left = k->n_splits - split, n = left < FEW ? left : FEW;
        uint64_t part = k->part + (uint64_t)split * k->n_queries + q;
        combine(&sum, s->scratch->pv, s->b->part_sums + part, s->b->parts + part * stride, n,
                k->n_queries, a->head_width);
    }
    store_query(s, a, k, q, s->scratch->pv, sum.sum);
}

static void combine_parts(struct cpu_step *s, const struct op_attend *a, uint32_t rows,
                          uint64_t total) {
    uint32_t dealt = 0;
    for (struct blocks b = {.rows = rows}; next_block(s, a, &b) && !is_cancelled(s);)
        for (uint32_t q = 0; is_shared(s, &b.now, total) && q < b.now.n_queries; q++)
            if (dealt++ % (uint32_t)s->threads == (uint32_t)s->thread)
                combine_query(s, a, &b.now, q);
}

/* ---- the op ------------------------------------------------------------------------------- */

void cpu_attend(struct cpu_step *s) {
    const struct op_attend *a = &s->op->op->attend;
    store_rows(s, a);
    if (a->heads == 0)
        return;
    uint32_t max_rows = ATTEND_QUERIES / (a->heads / a->kv_heads),
             enough = 4 * (uint32_t)s->threads;
    uint32_t n_blocks = 0;
    struct blocks b = {.rows = max_rows};
    while (next_block(s, a, &b))
        n_blocks++;
    uint64_t splits = b.now.at + b.now.n_splits;
    uint64_t parts = b.now.part + (uint64_t)b.now.n_splits * b.now.n_queries;
    barrier(s);
    if (s->threads > 1 && n_blocks < enough && parts <= s->b->n_parts) {
        run_splits(s, a, max_rows, splits);
        barrier(s);
        combine_parts(s, a, max_rows, splits);
        return;
    }
    uint32_t rows = s->io->n_rows * a->kv_heads / enough;
    rows = rows > max_rows ? max_rows : rows;
    run_blocks(s, a, rows ? rows : 1);
}
