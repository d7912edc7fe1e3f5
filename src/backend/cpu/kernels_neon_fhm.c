/* kernels_neon_fhm.c - attention over an f16 cache with FMLAL (FEAT_FHM): f16 products, which f32
 * holds exactly, added to f32 and rounded once.
 *
 * FMLAL takes the lower four of eight f16 and FMLAL2 the upper, each as fast as an FMLA that takes
 * four f32. So nothing is converted where kernels_attend_neon.h converts every key and value, which
 * takes two cycles of one pipe for four of them: queries and weights become f16 once a split.
 *
 *   QK   a tile is up to eight queries and two to eight positions, sixteen values at a time
 *   PV   a block is up to four queries and 16 or 32 values, eight positions at a time
 *
 * The sums are those of kernels.h, the bits those of all others. Other types, and heads that are no
 * multiple of sixteen wide, are left to kernels_neon.c. */
#include "backend/cpu/kernels_rows.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/kernels_neon_fhm.h"
#include "base/cpu.h"

#define F32_INLINE INLINE

#include "backend/cpu/kernels_neon_vec.h"

/* sum += a * b of the lower or the upper four; b a vector, or one f16 of it, which has to be in one
 * of the first sixteen registers. In this order. */
#define FUSED_LOW(sum, a, b)                                                                       \
    __asm__ volatile("fmlal %0.4s, %1.4h, %2.4h" : "+w"(sum) : "w"(a), "w"(b))
#define FUSED_HIGH(sum, a, b)                                                                      \
    __asm__ volatile("fmlal2 %0.4s, %1.4h, %2.4h" : "+w"(sum) : "w"(a), "w"(b))
#define FUSED_LOW_LANE(sum, a, b, lane)                                                            \
    __asm__ volatile("fmlal %0.4s, %1.4h, %2.h[" #lane "]" : "+w"(sum) : "w"(a), "x"(b))
#define FUSED_HIGH_LANE(sum, a, b, lane)                                                           \
    __asm__ volatile("fmlal2 %0.4s, %1.4h, %2.h[" #lane "]" : "+w"(sum) : "w"(a), "x"(b))

/* Sixteen weights as f16 to where their QK were, and to the chains: times one is exact. */
INLINE void store_weights(float *qk, uint32_t p, const float32x4_t *y, bool is_half,
                          float32x4_t *sum) {
    uint16_t *to = (uint16_t *)(void *)qk + p;
    const uint16x8_t one = vdupq_n_u16(0x3c00);
    uint16x8_t half[2];
    (void)is_half;
    UNROLL for (int i = 0; i < 2; i++) half[i] =
        vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(y[2 * i]), y[2 * i + 1]));
    UNROLL for (int i = 0; i < 2; i++) vst1q_u16(to + 8 * i, half[i]);
    UNROLL for (int i = 0; i < 2; i++) {
        FUSED_LOW(sum[2 * i], half[i], one);
        FUSED_HIGH(sum[2 * i + 1], half[i], one);
    }
}
#define ATTEND_STORE_WEIGHTS store_weights
#include "backend/cpu/kernels_softmax.h"

enum {
    MOST_ROWS = 8,        /* queries of a tile of QK */
    MOST_VALUES_ROWS = 4, /* of a block of PV: with more, one vector of values is all that fits */
    MOST_TILE = 8,
    MOST_EIGHTS = 4,
    VALUES_BYTES = 32 << 10, /* of values that blocks of PV go through at a time: half of V1's L1 */
};

/* Positions of a tile of QK, and eights of values of a block of PV: sums enough that none waits for
 * the one before, in 16 to 20 registers. */
#define TILE(rows) ((rows) <= 2 ? 8 : (rows) <= 5 ? 4 : 2)
#define EIGHTS(rows) ((rows) <= 2 ? 4 : 2)

#define FOR_EACH_VALUES_ROWS(X) X(1) X(2) X(3) X(4)
#define FOR_EACH_ROWS(X) FOR_EACH_VALUES_ROWS(X) X(5) X(6) X(7) X(8)

/* Eight f16. */
INLINE uint16x8_t load_8(const void *p) {
    return vreinterpretq_u16_u8(vld1q_u8(p));
}

INLINE void store_8(uint16_t *to, const float *from) {
    float16x4_t low = vcvt_f16_f32(vld1q_f32(from));
    vst1q_u16(to, vreinterpretq_u16_f16(vcvt_high_f16_f32(low, vld1q_f32(from + 4))));
}

/* What comes next, values or the next split's keys: a line is prefetched with every 64 bytes that
 * are multiplied now. It goes to L2, as prefetches into L1 that wait for memory hold up its loads;
 * for one query, which is bound by memory, to L3: more of them can be in flight there. What is
 * multiplied right after goes to L1 (fetch_near). */
struct ahead {
    const uint8_t *at;
    size_t line; /* 64; 0: nothing new */
};

INLINE void fetch(struct ahead *a, int lines, int rows) {
    UNROLL for (int i = 0; i < lines; i++, a->at += a->line) {
        if (rows == 1)
            __builtin_prefetch(a->at, 0, 1);
        else
            __builtin_prefetch(a->at, 0, 2);
    }
}

INLINE void fetch_near(const uint8_t *at, size_t row, int n) {
    UNROLL for (int i = 0; i < n; i++) __builtin_prefetch(at + (size_t)i * row);
}

/* How many of n queries are taken next, `most` or fewer: such that all passes have about as many.
 */
static uint32_t rows_of(uint32_t n, uint32_t most) {
    uint32_t passes = (n + most - 1) / most;
    return (n + passes - 1) / passes;
}

/* ---- QK -------------------------------------------------------------------------------------- */

typedef void qk_fn(const struct attend_split *s, const uint16_t *queries, uint32_t n,
                   struct ahead ahead, float *out);

INLINE void qk_store(float32x4_t (*acc)[MOST_TILE], int rows, int tile, float *out) {
    UNROLL for (int q = 0; q < rows; q++, out += ATTEND_POSITIONS) {
        float32x4_t sums[MOST_TILE / 2];
        UNROLL for (int p = 0; p < tile; p += 2) sums[p / 2] = vpaddq_f32(acc[q][p], acc[q][p + 1]);
        if (tile == 2)
            vst1_f32(out, vget_low_f32(vpaddq_f32(sums[0], sums[0])));
        UNROLL for (int p = 0; p + 4 <= tile; p += 4)
            vst1q_f32(out + p, vpaddq_f32(sums[p / 2], sums[p / 2 + 1]));
    }
}

/* qk of `rows` queries, eight values of each and then the next eight, and n positions, rounded up
 * to whole tiles. */
INLINE void qk(const struct attend_split *s, const uint16_t *queries, uint32_t n,
               struct ahead ahead, int rows, float *out) {
    const int tile = TILE(rows);
    const size_t row = 2 * (size_t)s->width;
    for (uint32_t first = 0; first < n; first += (uint32_t)tile) {
        const uint8_t *at = (const uint8_t *)s->keys + first * row;
        const uint16_t *query = queries;
        float32x4_t acc[MOST_ROWS][MOST_TILE];
        UNROLL for (int q = 0; q < rows; q++) UNROLL for (int p = 0; p < tile; p++) acc[q][p] =
            vdupq_n_f32(0);
        for (uint32_t i = 0; i < s->width; i += 16) {
            fetch(&ahead, tile / 2, rows);
            if (i % 32 == 0 && ahead.line)
                fetch_near(at + (size_t)tile * row, row, tile);
            UNROLL for (int half = 0; half < 2; half++, at += 16, query += 8 * rows) {
                uint16x8_t x[MOST_ROWS], key[MOST_TILE];
                UNROLL for (int q = 0; q < rows; q++) x[q] = load_8(query + 8 * q);
                UNROLL for (int p = 0; p < tile; p++) key[p] = load_8(at + (size_t)p * row);
                UNROLL for (int p = 0; p < tile; p++) UNROLL for (int q = 0; q < rows; q++)
                    FUSED_LOW(acc[q][p], key[p], x[q]);
                UNROLL for (int p = 0; p < tile; p++) UNROLL for (int q = 0; q < rows; q++)
                    FUSED_HIGH(acc[q][p], key[p], x[q]);
            }
        }
        qk_store(acc, rows, tile, out + first);
    }
}

/* Some queries to f16 in that order. */
static TARGET void put_queries(const struct attend_split *s, uint32_t first, uint32_t rows,
                               uint16_t *to) {
    const size_t stride = attend_stride(s->width);
    const float *from = s->queries + first * stride;
    for (uint32_t i = 0; i < s->width; i += 8)
        for (uint32_t q = 0; q < rows; q++, to += 8)
            store_8(to, from + q * stride + i);
}

/* ---- PV -------------------------------------------------------------------------------------- */

/* A block of values over n positions: out += weights x values. */
typedef struct ahead pv_fn(const uint8_t *at, size_t row, const uint16_t *weights, uint32_t n,
                           struct ahead ahead, float *out, size_t stride);

/* From the weights of a query to those of the next: they are where its QK were. */
enum { WEIGHT_STRIDE = ATTEND_POSITIONS * sizeof(float) / sizeof(uint16_t) };

/* Position `now` of eight. */
#define PV_STEP(now)                                                                               \
    INLINE void pv_step_##now(float32x4_t(*acc)[2 * MOST_EIGHTS], const uint16x8_t *weights,       \
                              int rows, int eights, const uint8_t *at) {                           \
        UNROLL for (int v = 0; v < eights; v++) {                                                  \
            uint16x8_t value = load_8(at + 16 * v);                                                \
            UNROLL for (int q = 0; q < rows; q++)                                                  \
                FUSED_LOW_LANE(acc[q][2 * v], value, weights[q], now);                             \
            UNROLL for (int q = 0; q < rows; q++)                                                  \
                FUSED_HIGH_LANE(acc[q][2 * v + 1], value, weights[q], now);                        \
        }                                                                                          \
    }
PV_STEP(0)
PV_STEP(1)
PV_STEP(2)
PV_STEP(3)
PV_STEP(4)
PV_STEP(5)
PV_STEP(6)
PV_STEP(7)

INLINE struct ahead pv(const uint8_t *at, size_t row, const uint16_t *weights, uint32_t n,
                       struct ahead ahead, int rows, int eights, float *out, size_t stride) {
    const bool is_line = (uintptr_t)at % 64 == 0; /* otherwise the block before had its lines */
    float32x4_t acc[MOST_VALUES_ROWS][2 * MOST_EIGHTS];
    uint32_t p = 0;
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int v = 0; v < 2 * eights; v++) acc[q][v] =
        vld1q_f32(out + (size_t)q * stride + 4 * v);
    for (; p + 8 <= n; p += 8, at += 8 * row, weights += 8) {
        uint16x8_t w[MOST_VALUES_ROWS];
        UNROLL for (int q = 0; q < rows; q++) w[q] = load_8(weights + q * WEIGHT_STRIDE);
        fetch(&ahead, 2 * eights, rows);
        if (is_line && ahead.line)
            fetch_near(at + 8 * row, row, 8);
        pv_step_0(acc, w, rows, eights, at);
        pv_step_1(acc, w, rows, eights, at + row);
        pv_step_2(acc, w, rows, eights, at + 2 * row);
        pv_step_3(acc, w, rows, eights, at + 3 * row);
        pv_step_4(acc, w, rows, eights, at + 4 * row);
        pv_step_5(acc, w, rows, eights, at + 5 * row);
        pv_step_6(acc, w, rows, eights, at + 6 * row);
        pv_step_7(acc, w, rows, eights, at + 7 * row);
    }
    for (; p < n; p++, at += row, weights++)
        UNROLL for (int v = 0; v < eights; v++) {
            uint16x8_t value = load_8(at + 16 * v);
            UNROLL for (int q = 0; q < rows; q++) {
                uint16x8_t w = vld1q_dup_u16(weights + q * WEIGHT_STRIDE);
                FUSED_LOW(acc[q][2 * v], value, w);
                FUSED_HIGH(acc[q][2 * v + 1], value, w);
            }
        }
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int v = 0; v < 2 * eights; v++)
        vst1q_f32(out + (size_t)q * stride + 4 * v, acc[q][v]);
    return ahead;
}

/* ---- a split --------------------------------------------------------------------------------- */

#define QK_ROWS(rows)                                                                              \
    static TARGET void qk_##rows(const struct attend_split *s, const uint16_t *queries,            \
                                 uint32_t n, struct ahead ahead, float *out) {                     \
        qk(s, queries, n, ahead, rows, out);                                                       \
    }
FOR_EACH_ROWS(QK_ROWS)
#define PV_ROWS(rows)                                                                              \
    static TARGET struct ahead pv_##rows(const uint8_t *at, size_t row, const uint16_t *weights,   \
                                         uint32_t n, struct ahead ahead, float *out,               \
                                         size_t stride) {                                          \
        return pv(at, row, weights, n, ahead, rows, EIGHTS(rows), out, stride);                    \
    }                                                                                              \
    static TARGET struct ahead pv_rest_##rows(const uint8_t *at, size_t row,                       \
                                              const uint16_t *weights, uint32_t n,                 \
                                              struct ahead ahead, float *out, size_t stride) {     \
        return pv(at, row, weights, n, ahead, rows, 1, out, stride);                               \
    }
FOR_EACH_VALUES_ROWS(PV_ROWS)

/* [rows]; of PV: a block, and eight values where the head ends before one does */
#define ENTRY_QK(rows) qk_##rows,
#define ENTRY_PV(rows) {pv_##rows, pv_rest_##rows},
static qk_fn *const qk_rows[] = {NULL, FOR_EACH_ROWS(ENTRY_QK)};
static pv_fn *const pv_rows[][2] = {{NULL, NULL}, FOR_EACH_VALUES_ROWS(ENTRY_PV)};

/* Queries [q, q + rows) and positions [begin, end). */
static TARGET struct ahead pv_width(const struct attend_split *s, uint32_t q, uint32_t rows,
                                    uint32_t begin, uint32_t end, struct ahead ahead) {
    const size_t row = 2 * (size_t)s->width, stride = attend_stride(s->width);
    const uint8_t *at = (const uint8_t *)s->values + begin * row;
    const uint16_t *weights = (const uint16_t *)(void *)s->qk + q * WEIGHT_STRIDE + begin;
    float *out = s->pv + q * stride;
    uint32_t i = 0, block = 8 * EIGHTS(rows);
    for (; i + block <= s->width; i += block)
        ahead = pv_rows[rows][0](at + 2 * i, row, weights, end - begin, ahead, out + i, stride);
    for (; i < s->width; i += 8)
        ahead = pv_rows[rows][1](at + 2 * i, row, weights, end - begin, ahead, out + i, stride);
    return ahead;
}

static TARGET void run_keys(const struct attend_split *s, uint32_t first, uint32_t n) {
    uint16_t *queries = (uint16_t *)(void *)s->tile;
    struct ahead ahead = {s->values, 64};
    for (uint32_t q = first, rows; q < s->n_queries; q += rows, ahead.line = 0) {
        rows = rows_of(s->n_queries - q, MOST_ROWS);
        put_queries(s, q, rows, queries);
        qk_rows[rows](s, queries, n, ahead, s->qk + (size_t)q * ATTEND_POSITIONS);
    }
}

/* Positions [begin, end), as far as they are seen, and all queries. Queries that go together go
 * through what all of them see, then each goes on alone. */
static TARGET struct ahead pv_some(const struct attend_split *s, uint32_t first, uint32_t begin,
                                   uint32_t end, struct ahead ahead) {
    struct ahead none = {s->values, 0};
    for (uint32_t q = first, rows; q < s->n_queries; q += rows) {
        rows = rows_of(s->n_queries - q, MOST_VALUES_ROWS);
        uint32_t common = s->seen[q] < end ? s->seen[q] : end;
        if (common > begin) {
            struct ahead after = pv_width(s, q, rows, begin, common, q == first ? ahead : none);
            ahead = q == first ? after : ahead;
        }
        for (uint32_t r = 1; r < rows; r++) {
            uint32_t from = common > begin ? common : begin;
            uint32_t to = s->seen[q + r] < end ? s->seen[q + r] : end;
            if (to > from)
                pv_width(s, q + r, 1, from, to, none);
        }
    }
    return ahead;
}

/* Blocks go through so many positions at a time that their values stay in L1. */
static TARGET void run_values(const struct attend_split *s, uint32_t first, uint32_t n) {
    struct ahead ahead = {s->next ? s->next : s->values, s->next ? 64 : 0};
    uint32_t positions = VALUES_BYTES / (2 * s->width) / 8 * 8;
    positions = positions < 8 ? 8 : positions;
    for (uint32_t p = 0; p < n; p += positions)
        ahead = pv_some(s, first, p, p + positions < n ? p + positions : n, ahead);
}

static TARGET void attend_split(const struct attend_split *s) {
    uint32_t first = 0;
    if (s->type != DT_F16 || s->width % 16 != 0) {
        kernels_neon.attend.run(s);
        return;
    }
    memset(s->pv, 0, (size_t)s->n_queries * attend_stride(s->width) * sizeof *s->pv);
    for (; first < s->n_queries && s->seen[first] == 0; first++)
        s->sums[first] = (struct softmax){0};
    if (first == s->n_queries)
        return;
    run_keys(s, first, s->seen[s->n_queries - 1]);
    attend_softmax(s, first);
    run_values(s, first, s->seen[s->n_queries - 1]);
}

const struct kernel_rows kernels_neon_fhm = {
    NULL, 0, {"attend fhm", CPU_NEON | CPU_FHM, attend_split}, NULL};

#endif
