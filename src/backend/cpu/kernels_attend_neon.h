/* kernels_attend_neon.h - attention of one row over a split, on NEON: up to eight queries of a KV
 * head that see the same positions read keys and values from the cache itself: f16 here, q8_0 and
 * q4_0 in kernels_attend_neon_blocks.h.
 *
 * Four products are one FMLA, which two pipes can do; the conversion of four f16 is two cycles of
 * one of the pipes (Neoverse N1, V0). So four values of one position and g queries are (2 + g) / 2
 * cycles at least, and a conversion has to be issued long before its products, among older ones:
 * otherwise products that wait for it fill the queue of the other pipe (measured: 72 to 77 % of
 * that limit where the compiler orders them, 92 to 100 % three steps ahead).
 *
 *   step     four values of ONE_TILE positions (QK), or one position of ONE_TILE vectors (PV)
 *   ring     converted values of four steps: while step i is multiplied, step i + 3 is converted
 *
 * Statements with one instruction each, volatile, keep this order; registers are the compiler's.
 * The sums are those of kernels.h. Included by kernels_attend.h. */

enum { ONE_QUERIES = 8, ONE_STEPS = 4 };

/* Positions, or vectors of values, of a tile: what fits the registers beside the sums. */
#define ONE_TILE(rows) ((rows) <= 3 ? 4 : 2)
enum { ONE_TILE_MOST = 4 };

#define FOR_EACH_ONE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)

typedef uint8_t one_halves[8];

/* Four f16, now. */
#define ONE_LOAD(v, p)                                                                             \
    __asm__ volatile("ldr %d0, %1\n\tfcvtl %0.4s, %0.4h"                                           \
                     : "=w"(v)                                                                     \
                     : "m"(*(const one_halves *)(const void *)(p)))
/* sum += a * b, or a * b[lane], now. */
#define ONE_FUSED(sum, a, b)                                                                       \
    __asm__ volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(a), "w"(b))
#define ONE_FUSED_LANE(sum, a, b, lane)                                                            \
    __asm__ volatile("fmla %0.4s, %1.4s, %2.s[" #lane "]" : "+w"(sum) : "w"(a), "w"(b))

/* What comes next, a part of it with each tile step: 32 bytes for every position or vector. */
INLINE const uint8_t *one_fetch(const uint8_t *at, int tile) {
    __builtin_prefetch(at);
    if (tile == 4)
        __builtin_prefetch(at + 64);
    return at + 32 * tile;
}

/* ---- QK -------------------------------------------------------------------------------------- */

/* A step: products of ring[now] with four values of each query, and the loads of ring[now + 3]. */
INLINE void one_qk_step(float32x4_t (*acc)[ONE_TILE_MOST], float32x4_t (*ring)[ONE_TILE_MOST],
                        int now, const float *fours, int rows, int tile, const uint8_t *ahead,
                        size_t row) {
    float32x4_t x[ONE_QUERIES];
    UNROLL for (int q = 0; q < rows; q++) x[q] = vld1q_f32(fours + 4 * q);
    UNROLL for (int p = 0; p < tile; p++) {
        UNROLL for (int q = 0; q < rows; q++) ONE_FUSED(acc[q][p], ring[now][p], x[q]);
        ONE_LOAD(ring[(now + 3) % ONE_STEPS][p], ahead + (size_t)p * row);
    }
}

INLINE void one_qk_store(float32x4_t (*acc)[ONE_TILE_MOST], int rows, int tile, float *out) {
    UNROLL for (int q = 0; q < rows; q++) {
        float32x4_t low = vpaddq_f32(acc[q][0], acc[q][1]);
        if (tile == 4)
            vst1q_f32(out + (size_t)q * ATTEND_POSITIONS,
                      vpaddq_f32(low, vpaddq_f32(acc[q][2], acc[q][3])));
        else
            vst1_f32(out + (size_t)q * ATTEND_POSITIONS, vget_low_f32(vpaddq_f32(low, low)));
    }
}

/* Four values of each query, then the next four: to split->tile. */
INLINE const float *one_fours(const struct attend_split *s, uint32_t first, int rows) {
    const size_t stride = attend_stride(s->width);
    float *to = s->tile;
    for (uint32_t i = 0; i < s->width; i += 4)
        UNROLL for (int q = 0; q < rows; q++, to += 4)
            vst1q_f32(to, vld1q_f32(s->queries + (first + (size_t)q) * stride + i));
    return s->tile;
}

/* qk of `rows` queries and n positions, rounded up to whole tiles. Asks for the values too. */
INLINE void one_qk(const struct attend_split *s, uint32_t first, uint32_t n, int rows) {
    const int tile = ONE_TILE(rows);
    const size_t row = 2 * (size_t)s->width;
    const uint8_t *at = s->keys, *fetch = s->values;
    const float *queries = one_fours(s, first, rows);
    float32x4_t acc[ONE_QUERIES][ONE_TILE_MOST], ring[ONE_STEPS][ONE_TILE_MOST];
    UNROLL for (int u = 0; u < ONE_STEPS - 1; u++) UNROLL for (int p = 0; p < tile; p++)
        ONE_LOAD(ring[u][p], at + (size_t)p * row + 8 * u);
    for (uint32_t p = 0; p < n; p += (uint32_t)tile) {
        const uint8_t *next = p + (uint32_t)tile < n ? at + (size_t)tile * row : at;
        const float *fours = queries;
        UNROLL for (int q = 0; q < rows; q++) UNROLL for (int t = 0; t < tile; t++) acc[q][t] =
            vdupq_n_f32(0);
        for (uint32_t i = 0; i < s->width; i += 16, at += 32, fours += 16 * rows) {
            const uint8_t *ahead = i + 16 < s->width ? at + 32 : next;
            fetch = one_fetch(fetch, tile);
            one_qk_step(acc, ring, 0, fours, rows, tile, at + 24, row);
            UNROLL for (int u = 1; u < ONE_STEPS; u++) one_qk_step(
                acc, ring, u, fours + 4 * u * rows, rows, tile, ahead + 8 * (u - 1), row);
        }
        at = next;
        one_qk_store(acc, rows, tile, s->qk + (size_t)first * ATTEND_POSITIONS + p);
    }
}

/* ---- PV -------------------------------------------------------------------------------------- */

/* A step: position `now` of four. */
#define ONE_PV_STEP(now)                                                                           \
    INLINE void one_pv_step_##now(float32x4_t(*acc)[ONE_TILE_MOST],                                \
                                  float32x4_t(*ring)[ONE_TILE_MOST], const float32x4_t *weights,   \
                                  int rows, int tile, const uint8_t *ahead) {                      \
        UNROLL for (int v = 0; v < tile; v++) {                                                    \
            UNROLL for (int q = 0; q < rows; q++)                                                  \
                ONE_FUSED_LANE(acc[q][v], ring[now][v], weights[q], now);                          \
            ONE_LOAD(ring[(now + 3) % ONE_STEPS][v], ahead + 8 * v);                               \
        }                                                                                          \
    }
ONE_PV_STEP(0)
ONE_PV_STEP(1)
ONE_PV_STEP(2)
ONE_PV_STEP(3)

/* One tile of vectors over n positions, a multiple of four. */
INLINE const uint8_t *one_pv_tile(const uint8_t *at, size_t row, const float *weights, uint32_t n,
                                  int rows, float *out, size_t stride, const uint8_t *fetch) {
    const int tile = ONE_TILE(rows);
    float32x4_t acc[ONE_QUERIES][ONE_TILE_MOST], ring[ONE_STEPS][ONE_TILE_MOST];
    UNROLL for (int u = 0; u < ONE_STEPS - 1; u++) UNROLL for (int v = 0; v < tile; v++)
        ONE_LOAD(ring[u][v], at + (size_t)u * row + 8 * v);
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int v = 0; v < tile; v++) acc[q][v] =
        vdupq_n_f32(0);
    for (uint32_t p = 0; p < n; p += 4, weights += 4) {
        const uint8_t *ahead = p + 4 < n ? at + 4 * row : at;
        float32x4_t four[ONE_QUERIES];
        UNROLL for (int q = 0; q < rows; q++) four[q] =
            vld1q_f32(weights + (size_t)q * ATTEND_POSITIONS);
        fetch = one_fetch(fetch, tile);
        one_pv_step_0(acc, ring, four, rows, tile, at + 3 * row);
        one_pv_step_1(acc, ring, four, rows, tile, ahead);
        one_pv_step_2(acc, ring, four, rows, tile, ahead + row);
        one_pv_step_3(acc, ring, four, rows, tile, ahead + 2 * row);
        at = ahead;
    }
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int v = 0; v < tile; v++)
        vst1q_f32(out + (size_t)q * stride + 4 * v, acc[q][v]);
    return fetch;
}

/* The first n positions, a multiple of four. Asks for the next split's keys too. */
INLINE void one_pv(const struct attend_split *s, uint32_t first, uint32_t n, int rows) {
    const uint32_t values = 4 * ONE_TILE(rows);
    const size_t stride = attend_stride(s->width);
    const float *weights = s->qk + (size_t)first * ATTEND_POSITIONS;
    const uint8_t *fetch = s->next ? s->next : s->keys;
    for (uint32_t i = 0; i < s->width; i += values)
        fetch = one_pv_tile((const uint8_t *)s->values + 2 * i, 2 * (size_t)s->width, weights, n,
                            rows, s->pv + first * stride + i, stride, fetch);
}

/* ---- a split --------------------------------------------------------------------------------- */

typedef void one_fn(const struct attend_split *s, uint32_t first, uint32_t n);

#define ONE_ROWS(rows)                                                                             \
    static void one_qk_##rows(const struct attend_split *s, uint32_t first, uint32_t n) {          \
        one_qk(s, first, n, rows);                                                                 \
    }                                                                                              \
    static void one_pv_##rows(const struct attend_split *s, uint32_t first, uint32_t n) {          \
        one_pv(s, first, n, rows);                                                                 \
    }
FOR_EACH_ONE_ROWS(ONE_ROWS)

/* [rows] */
#define ONE_ENTRY_QK(rows) one_qk_##rows,
#define ONE_ENTRY_PV(rows) one_pv_##rows,
static one_fn *const one_qk_rows[] = {NULL, FOR_EACH_ONE_ROWS(ONE_ENTRY_QK)};
static one_fn *const one_pv_rows[] = {NULL, FOR_EACH_ONE_ROWS(ONE_ENTRY_PV)};

#include "backend/cpu/kernels_attend_neon_blocks.h"

/* Whether the queries from `first` on are such a row. */
static bool attend_is_one(const struct attend_split *s, uint32_t first) {
    bool is_blocks = s->type == DT_Q8_0 || s->type == DT_Q4_0;
    return (is_blocks || (s->type == DT_F16 && s->width % 16 == 0)) &&
           s->n_queries - first <= ONE_QUERIES && s->seen[first] == s->seen[s->n_queries - 1];
}

/* False: not done. */
static bool attend_one_qk(const struct attend_split *s, uint32_t first, uint32_t n) {
    if (s->type != DT_F16)
        return blocks_run_keys(s, first, n);
    one_qk_rows[s->n_queries - first](s, first, n);
    return true;
}

/* Returns how many positions are done: a multiple of four. */
static uint32_t attend_one_pv(const struct attend_split *s, uint32_t first, uint32_t n) {
    if (s->type == DT_F16)
        one_pv_rows[s->n_queries - first](s, first, n / 4 * 4);
    else if (n >= 4)
        blocks_run_values(s, first, n / 4 * 4);
    return n / 4 * 4;
}

/* ---- tiles of many queries ------------------------------------------------------------------- */

/* The tiles of kernels_attend.h in a kept order: what is loaded comes right after the last product
 * with what was there before. 64 queries, width 64, with decoding: PV runs 88 % of two products a
 * cycle, and 69 % in the compiler's order; QK 79 and 77. */

/* v = load(p), not later than now. */
#define ONE_NEXT(v, load, p)                                                                       \
    do {                                                                                           \
        (v) = load(p);                                                                             \
        __asm__ volatile("" : "+w"(v));                                                            \
    } while (0)

/* `tiles` tiles (1 or 2) against `rows` queries: constants where this is inlined. */
F32_INLINE void attend_qk_tile(const struct attend_keys *keys, f32_load_fn *load, int tiles,
                               const float *query, size_t stride, int rows, uint32_t fours,
                               float *out) {
    float32x4_t acc[2][4][ATTEND_ROWS], key[2][4];
    const uint8_t *at = keys->at;
    UNROLL for (int t = 0; t < tiles; t++) UNROLL for (int v = 0; v < 4; v++) {
        key[t][v] = load(at + (size_t)t * keys->tile + (size_t)v * keys->vector);
        UNROLL for (int q = 0; q < rows; q++) acc[t][v][q] = vdupq_n_f32(0);
    }
    for (uint32_t i = 1; i <= fours; i++, query += 4) {
        float32x4_t x[ATTEND_ROWS];
        at += i < fours ? keys->four : 0; /* the last are loaded again */
        UNROLL for (int q = 0; q < rows; q++) x[q] = vld1q_f32(query + (size_t)q * stride);
        UNROLL for (int t = 0; t < tiles; t++) UNROLL for (int v = 0; v < 4; v++) {
            UNROLL for (int q = 0; q < rows; q++) ONE_FUSED(acc[t][v][q], key[t][v], x[q]);
            ONE_NEXT(key[t][v], load, at + (size_t)t * keys->tile + (size_t)v * keys->vector);
        }
    }
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int t = 0; t < tiles; t++) {
        float32x4_t low = vpaddq_f32(acc[t][0][q], acc[t][1][q]);
        float32x4_t high = vpaddq_f32(acc[t][2][q], acc[t][3][q]);
        vst1q_f32(out + (size_t)q * ATTEND_POSITIONS + t * ATTEND_BLOCK, vpaddq_f32(low, high));
    }
}

/* Position `now` of four, and the values of the one at `next`. */
#define ONE_VALUES_STEP(now)                                                                       \
    F32_INLINE void one_values_step_##now(float32x4_t(*acc)[4], float32x4_t *value,                \
                                          const float32x4_t *weights, int rows, int vectors,       \
                                          f32_load_fn *load, const uint8_t *next, size_t vector) { \
        UNROLL for (int c = 0; c < vectors; c++) {                                                 \
            UNROLL for (int q = 0; q < rows; q++)                                                  \
                ONE_FUSED_LANE(acc[q][c], value[c], weights[q], now);                              \
            ONE_NEXT(value[c], load, next + (size_t)c * vector);                                   \
        }                                                                                          \
    }
ONE_VALUES_STEP(0)
ONE_VALUES_STEP(1)
ONE_VALUES_STEP(2)
ONE_VALUES_STEP(3)

/* rows and vectors are constants where this is inlined. Nothing is fetched. */
F32_INLINE void attend_pv_tile(struct attend_values v, f32_load_fn *load, uint32_t n,
                               const float *weights, int rows, int vectors, int fetched, float *out,
                               size_t stride) {
    (void)fetched;
    float32x4_t acc[ATTEND_ROWS][4], value[4];
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int c = 0; c < vectors; c++) acc[q][c] =
        vld1q_f32(out + (size_t)q * stride + c * LANES);
    UNROLL for (int c = 0; c < vectors; c++) value[c] = load(v.at + (size_t)c * v.vector);
    uint32_t p = 0;
    for (; p + 4 <= n; p += 4, weights += 4, v.at += 4 * v.row) {
        const uint8_t *last = p + 8 <= n ? v.at + 4 * v.row : v.at; /* or loaded again */
        float32x4_t four[ATTEND_ROWS];
        UNROLL for (int q = 0; q < rows; q++) four[q] =
            vld1q_f32(weights + (size_t)q * ATTEND_POSITIONS);
        one_values_step_0(acc, value, four, rows, vectors, load, v.at + v.row, v.vector);
        one_values_step_1(acc, value, four, rows, vectors, load, v.at + 2 * v.row, v.vector);
        one_values_step_2(acc, value, four, rows, vectors, load, v.at + 3 * v.row, v.vector);
        one_values_step_3(acc, value, four, rows, vectors, load, last, v.vector);
    }
    for (; p < n; p++, v.at += v.row, weights++)
        UNROLL for (int c = 0; c < vectors; c++) {
            float32x4_t x = load(v.at + (size_t)c * v.vector);
            UNROLL for (int q = 0; q < rows; q++) acc[q][c] =
                vfmaq_n_f32(acc[q][c], x, weights[(size_t)q * ATTEND_POSITIONS]);
        }
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int c = 0; c < vectors; c++)
        vst1q_f32(out + (size_t)q * stride + c * LANES, acc[q][c]);
}
