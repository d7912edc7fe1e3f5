/* attend.c - ATTEND on the CPU: head norms, rotary embedding, cache, split attention.
 *
 * First every row's keys and values go into the cache, rounded to its type. Then each thread takes
 * its share of (block of rows of a segment, KV head). Positions come in splits of
 * IO_PAGE_POSITIONS; a split gives each query a maximum, a sum and a PV, which are combined
 * with the query's own in split order. So a query's bits depend on its sequence alone. */
#include <math.h>

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

/* ---- the cache --------------------------------------------------------------------------------
 */

/* Where position p of a slot begins for a KV head; positions of a page follow each other. */
static uint8_t *cache_at(struct cpu_step *s, const struct op_attend *a, const struct operand *o,
                         uint32_t slot, uint32_t head, uint32_t position) {
    const int32_t *pages = (const int32_t *)at(s, &a->pages) + (uint64_t)slot * a->pages.dims[0];
    uint64_t page = (uint64_t)pages[position / IO_PAGE_POSITIONS];
    uint64_t row = (page * a->kv_heads + head) * IO_PAGE_POSITIONS + position % IO_PAGE_POSITIONS;
    return (uint8_t *)at(s, o) + row * operand_row_bytes(o);
}

static void store_rows(struct cpu_step *s, const struct op_attend *a) {
    dtype_encode_fn *encode = dtype_info(a->keys.type)->encode;
    struct share share = share_of(s, s->io->n_rows * a->kv_heads, 1);
    float key[1024];
    for (uint32_t i = share.begin; i < share.end; i++) {
        uint32_t row = i / a->kv_heads, head = i % a->kv_heads;
        const struct io_row *r = &s->rows[row];
        head_of(s, a, row, a->k_column + head * a->head_width, &a->k_norm, key);
        encode(key, cache_at(s, a, &a->keys, r->slot, head, r->position), a->head_width);
        encode(row_of(s, &a->in, row) + a->v_column + head * a->head_width,
               cache_at(s, a, &a->values, r->slot, head, r->position), a->head_width);
    }
}

/* n positions of a page as f32: in place, or decoded into the room. */
static const float *decode_tile(const struct op_attend *a, const uint8_t *from, uint32_t n,
                                float *room) {
    uint64_t values = (uint64_t)n * a->head_width;
    if (a->keys.type == DT_F32)
        return (const float *)from;
    if (a->keys.type == DT_F16)
        row_from_f16(room, (const uint16_t *)from, values);
    else
        dtype_info(a->keys.type)->decode(from, room, values);
    return room;
}

/* ---- one block of rows, one KV head -----------------------------------------------------------
 */

struct block {
    const struct io_segment *segment;
    uint32_t first, n_rows; /* in the segment */
    uint32_t head;          /* KV head */
    uint32_t group;         /* query heads to it */
};

/* How many positions of the split that begins at `begin` a row sees. */
static uint32_t seen_of(const struct block *k, uint32_t row, uint32_t begin) {
    uint32_t position = k->segment->first_position + k->first + row;
    uint32_t seen = position + 1 > begin ? position + 1 - begin : 0;
    return seen < IO_PAGE_POSITIONS ? seen : IO_PAGE_POSITIONS;
}

static CLONES void compute_qk(const float *query, const float *keys, uint32_t n, uint32_t width,
                              float scale, float *out) {
    for (uint32_t p = 0; p < n; p++, keys += width) {
        vec sum = {0};
        uint32_t i = 0;
        for (; i + LANES <= width; i += LANES)
            sum += vec_load(query + i) * vec_load(keys + i);
        float rest = 0;
        for (; i < width; i++)
            rest += query[i] * keys[i];
        out[p] = (vec_sum(sum) + rest) * scale;
    }
}

static CLONES void compute_pv(float *out, const float *weights, const float *values, uint32_t n,
                              uint32_t width) {
    uint32_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vec sum = {0};
        for (uint32_t p = 0; p < n; p++)
            sum += vec_load(values + (uint64_t)p * width + i) * weights[p];
        vec_store(out + i, sum);
    }
    for (; i < width; i++) {
        float sum = 0;
        for (uint32_t p = 0; p < n; p++)
            sum += values[(uint64_t)p * width + i] * weights[p];
        out[i] = sum;
    }
}

/* What a query has seen so far. */
struct softmax {
    float max, sum;
};

/* Combines the softmax and PV of a split with those of the query. */
static void combine(struct softmax *f, float *pv, struct softmax split, const float *part,
                    uint32_t width) {
    if (f->sum == 0) {
        *f = split;
        memcpy(pv, part, width * sizeof *pv);
        return;
    }
    float max = split.max > f->max ? split.max : f->max;
    float old = expf(f->max - max), now = expf(split.max - max);
    row_mix(pv, old, part, now, width);
    f->sum = f->sum * old + split.sum * now;
    f->max = max;
}

static void load_queries(struct cpu_step *s, const struct op_attend *a, const struct block *k) {
    for (uint32_t q = 0; q < k->n_rows * k->group; q++) {
        uint32_t row = k->segment->first_row + k->first + q / k->group;
        uint32_t head = k->head * k->group + q % k->group;
        head_of(s, a, row, head * a->q_stride, &a->q_norm,
                s->room->query + (uint64_t)q * a->head_width);
    }
}

static void run_split(struct cpu_step *s, const struct op_attend *a, const struct block *k,
                      uint32_t begin, struct softmax *sums) {
    struct cpu_room *room = s->room;
    uint32_t width = a->head_width, slot = s->rows[k->segment->first_row].slot;
    uint32_t n = seen_of(k, k->n_rows - 1, begin), queries = k->n_rows * k->group;
    struct softmax splits[ATTEND_BLOCK_ROWS * MAX_GROUP];
    const float *keys =
        decode_tile(a, cache_at(s, a, &a->keys, slot, k->head, begin), n, room->keys);
    for (uint32_t q = 0; q < queries; q++) {
        uint32_t seen = seen_of(k, q / k->group, begin);
        float *qk = room->qk + (uint64_t)q * IO_PAGE_POSITIONS;
        if (!seen)
            continue;
        compute_qk(room->query + (uint64_t)q * width, keys, seen, width, a->scale, qk);
        splits[q].max = row_max(qk, seen);
        splits[q].sum = row_exp(qk, splits[q].max, seen);
    }
    const float *values =
        decode_tile(a, cache_at(s, a, &a->values, slot, k->head, begin), n, room->keys);
    for (uint32_t q = 0; q < queries; q++) {
        uint32_t seen = seen_of(k, q / k->group, begin);
        if (!seen)
            continue;
        compute_pv(room->part, room->qk + (uint64_t)q * IO_PAGE_POSITIONS, values, seen, width);
        combine(&sums[q], room->pv + (uint64_t)q * width, splits[q], room->part, width);
    }
}

static void run_block(struct cpu_step *s, const struct op_attend *a, const struct block *k) {
    struct softmax sums[ATTEND_BLOCK_ROWS * MAX_GROUP] = {0};
    uint32_t last = k->segment->first_position + k->first + k->n_rows - 1;
    load_queries(s, a, k);
    for (uint32_t begin = 0; begin <= last && !is_cancelled(s); begin += IO_PAGE_POSITIONS)
        run_split(s, a, k, begin, sums);
    for (uint32_t q = 0; q < k->n_rows * k->group; q++) {
        uint32_t row = k->segment->first_row + k->first + q / k->group;
        uint32_t head = k->head * k->group + q % k->group;
        float *out = row_of(s, &a->out, row) + (uint64_t)head * a->head_width;
        const float *pv = s->room->pv + (uint64_t)q * a->head_width;
        for (uint32_t i = 0; i < a->head_width; i++)
            out[i] = pv[i] / sums[q].sum;
    }
}

/* Blocks are dealt out like cards: later rows see more and cost more. */
void cpu_attend(struct cpu_step *s) {
    const struct op_attend *a = &s->op->op->attend;
    store_rows(s, a);
    barrier(s);
    uint32_t dealt = 0;
    for (uint32_t i = 0; i < s->io->n_segments; i++) {
        const struct io_segment *g = &s->segments[i];
        for (uint32_t first = 0; first < g->n_rows; first += ATTEND_BLOCK_ROWS)
            for (uint32_t head = 0; head < a->kv_heads; head++) {
                if (dealt++ % (uint32_t)s->threads != (uint32_t)s->thread)
                    continue;
                uint32_t left = g->n_rows - first;
                run_block(s, a,
                          &(struct block){
                              .segment = g,
                              .first = first,
                              .n_rows = left < ATTEND_BLOCK_ROWS ? left : ATTEND_BLOCK_ROWS,
                              .head = head,
                              .group = a->heads / a->kv_heads,
                          });
            }
    }
}
