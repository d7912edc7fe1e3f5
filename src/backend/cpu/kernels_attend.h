/* kernels_attend.h - attention of some queries over one split of positions: the body, for one
 * instruction set. The contract, and the order of the sums, are in kernels.h.
 *
 *   QK       a tile is four vectors of positions and up to ATTEND_ROWS queries. A vector holds four
 *            values of each of its positions; they are multiplied with the same four values of a
 *            query. At the end pairs of lanes are added, which leaves the results in the order of
 *            the positions: so position 4g + v is part g of vector v.
 *   softmax  max, e^(QK - max), sum, in one vector after the other
 *   PV       a tile is four vectors of values and up to ATTEND_ROWS queries, over all positions
 *
 * Few queries (one row of a step) read f16 and f32 from the cache itself, so that a split is read
 * once and nothing is written. For more, or other types, keys and then values are decoded into
 * split->tile, keys in the order of the vectors. Where vectors hold several positions, f16 keys are
 * put into that order as they are (V_INTERLEAVE), and converted again for every few queries,
 * however many there are.
 *
 * Included by each kernels_<set>.c after kernels_f32.h or kernels_decode.h, which first defines
 * what kernels_softmax.h wants, and
 *   V_FOUR(p)             four floats, repeated
 *   V_PAIRS(a, b)         per four lanes: a0 + a1, a2 + a3, b0 + b1, b2 + b3
 *   V_SET(x)
 *   V_WEIGHTS             four weights of a query; V_LOAD_WEIGHTS(p), and V_WEIGHT(w, i), a vector
 *                         of one of them
 *   ATTEND_ROWS           queries whose sums stay in registers: 3 or 5
 *   ATTEND_F16_ROWS       optional, 6 or 8: this many are multiplied with f16 of the cache at once,
 *                         two vectors at a time, so that it is converted once and the prefetches
 *                         are spread over all of the work
 *   V_INTERLEAVE(from, row, to)
 *                         optional, where LANES > 4: LANES f16 values of ATTEND_PARTS keys, `row`
 *                         bytes apart, to LANES / 4 vectors of QK's order, 8 LANES bytes apart
 *   ATTEND_ONE            optional: a header with its own tiles, and code for queries of one row
 * and gets attend_split. */

enum {
    ATTEND_PARTS = LANES / 4,        /* positions of a vector */
    ATTEND_BLOCK = 4 * ATTEND_PARTS, /* positions of a tile of QK */
#ifdef V_INTERLEAVE
    /* This many queries are multiplied with the cache itself; of f16 all, as to convert it again
     * costs less than to store and load it. */
    ATTEND_DIRECT = 4 * ATTEND_ROWS,
    ATTEND_F16_DIRECT = ATTEND_QUERIES,
#else
    ATTEND_DIRECT = ATTEND_ROWS,
    ATTEND_F16_DIRECT = ATTEND_ROWS,
#endif
};

#ifndef ATTEND_F16_ROWS
#define ATTEND_F16_ROWS ATTEND_ROWS
#endif

#if ATTEND_ROWS > 3
#define FOR_EACH_ATTEND_ROWS(X) X(1) X(2) X(3) X(4) X(5)
#else
#define FOR_EACH_ATTEND_ROWS(X) X(1) X(2) X(3)
#endif
#if ATTEND_F16_ROWS == ATTEND_ROWS
#define FOR_EACH_ATTEND_MORE(X)
#elif ATTEND_F16_ROWS == 6
#define FOR_EACH_ATTEND_MORE(X) X(4) X(5) X(6)
#else
#define FOR_EACH_ATTEND_MORE(X) X(6) X(7) X(8)
#endif

/* What is fetched into L2 meanwhile: a line of every page, then the next line of every page. Beside
 * other work, lines of one page after the other come a fifth slower. */
struct attend_ahead {
    const uint8_t *at;     /* the next line */
    const uint8_t *column; /* the line of the first page that goes with it */
    const uint8_t *end;
    size_t step; /* to the next page; 0: the same line again, which costs nothing */
};

/* f16 keys of a tile that are interleaved line by line: 32 values of the first positions of all
 * parts, then of the second ones. */
struct attend_interleaved {
    const uint8_t *at; /* NULL: none */
    uint8_t *to;
    uint32_t vector;
};

/* Keys of whole tiles: how far it is from a vector of positions to the next, from four values to
 * the next four, and from a tile to the next. */
struct attend_keys {
    const uint8_t *at;
    size_t vector, four, tile;
    struct attend_ahead *ahead;     /* as many lines as f16 keys have are fetched; NULL: none */
    struct attend_interleaved next; /* interleaved meanwhile; widths that are multiples of 32 */
};

/* Values of positions. */
struct attend_values {
    const uint8_t *at;
    size_t row, vector; /* bytes to the next position, and to the next vector of values */
    size_t four;        /* to the next four vectors */
    struct attend_ahead *ahead;
};

#ifdef ATTEND_ONE
#include ATTEND_ONE
#else
#define attend_is_one(s, first) ((void)(s), (void)(first), false)
#define attend_one_qk(s, first, n) false
#define attend_one_pv(s, first, n) 0
#endif

/* ---- reading the cache ----------------------------------------------------------------------- */

/* n whole rows of the cache, of one width, to f32. */
static TARGET void attend_decode(const struct attend_split *s, const uint8_t *from, uint32_t n,
                                 float *to) {
    if (s->type == DT_F16)
        decode_f16(from, to, n);
    else if (s->type == DT_F32)
        decode_f32(from, to, n);
    else if (s->type == DT_Q8_0)
        decode_q8_0(from, to, n);
    else if (s->type == DT_Q4_0)
        decode_q4_0(from, to, n);
    else
        dtype_info((uint32_t)s->type)->decode(from, to, n);
}

/* Positions that are decoded, and used by all queries while they are in L1: 32 KiB of f32. */
static uint32_t attend_run(const struct attend_split *s) {
    uint32_t run = 8192 / attend_stride(s->width) / 32 * 32;
    return run < 32 ? 32 : run > ATTEND_POSITIONS ? ATTEND_POSITIONS : run;
}

static size_t attend_row_bytes(const struct attend_split *s) {
    const struct dtype_info *info = dtype_info((uint32_t)s->type);
    return (size_t)(s->width / info->block_values) * info->block_bytes;
}

/* n positions into the tile, row by row, zeros up to the stride. */
static TARGET void attend_decode_rows(const struct attend_split *s, const uint8_t *from,
                                      uint32_t n) {
    uint32_t stride = attend_stride(s->width);
    if (s->width == stride) {
        attend_decode(s, from, n * s->width, s->tile);
        return;
    }
    for (uint32_t p = 0; p < n; p++, from += attend_row_bytes(s)) {
        float *to = s->tile + (size_t)p * stride;
        attend_decode(s, from, s->width, to);
        memset(to + s->width, 0, (stride - s->width) * sizeof *to);
    }
}

/* n keys into the tile in the order of QK's vectors: [block][i / 4][vector][part][i % 4]. */
static TARGET void attend_decode_keys(const struct attend_split *s, const uint8_t *from,
                                      uint32_t n) {
    _Alignas(64) float row[ATTEND_MAX_WIDTH];
    uint32_t fours = (s->width + 3) / 4;
    memset(row + s->width, 0, (4 * fours - s->width) * sizeof *row);
    for (uint32_t p = 0; p < n; p++, from += attend_row_bytes(s)) {
        uint32_t in_block = p % ATTEND_BLOCK;
        float *to = s->tile + (size_t)(p / ATTEND_BLOCK * fours) * 4 * LANES;
        to += in_block % 4 * LANES + in_block / 4 * 4;
        attend_decode(s, from, s->width, row);
        for (uint32_t i = 0; i < fours; i++, to += 4 * LANES)
            memcpy(to, row + 4 * i, 4 * sizeof *to);
    }
}

#ifdef V_INTERLEAVE
/* A line comes into L1. */
F32_INLINE void attend_soon(const uint8_t *p) {
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

/* The next line comes into L2. */
F32_INLINE void attend_fetch(struct attend_ahead *a) {
    _mm_prefetch((const char *)a->at, _MM_HINT_T1);
    a->at += a->step;
    if (a->at >= a->end)
        a->at = a->column += 64;
}

/* f16 keys from position `begin` to `end`, rounded up to whole blocks, into the tile in the order
 * of QK's vectors. */
static TARGET void attend_interleave_keys(const struct attend_split *s, uint32_t begin,
                                          uint32_t end) {
    const size_t row = 2 * s->width, four = 4 * 2 * LANES;
    uint8_t *to = (uint8_t *)s->tile;
    for (uint32_t p = begin; p < end; p += ATTEND_BLOCK, to += s->width / 4 * four) {
        for (uint32_t v = 0; v < 4; v++) {
            const uint8_t *from = (const uint8_t *)s->keys + (p + v) * row;
            for (uint32_t i = 0; i < s->width; i += LANES) {
                const uint8_t *at = from + 2 * i;
                if (i % 32 == 0)
                    UNROLL for (size_t part = 0; part < ATTEND_PARTS; part++)
                        attend_soon(at + (part * 4 + ATTEND_BLOCK) * row);
                V_INTERLEAVE(at, 4 * row, to + i / 4 * four + v * 2 * LANES);
            }
        }
    }
}

/* Interleaves the next line of the next tile: 32 values of a vector's positions. row: bytes of a
 * key. */
F32_INLINE void attend_interleave_line(struct attend_interleaved *t, size_t row) {
    UNROLL for (size_t part = 0; part < ATTEND_PARTS; part++)
        attend_soon(t->at + (part * 4 + ATTEND_BLOCK) * row);
    UNROLL for (size_t j = 0; j < 32; j += LANES)
        V_INTERLEAVE(t->at + 2 * j, 4 * row, t->to + j * 2 * LANES);
    t->at += row;
    t->to += 2 * LANES;
    if (++t->vector == 4) {
        t->vector = 0;
        t->at += 2 * 32 - 4 * row;
        t->to += (32 - 4) * 2 * LANES;
    }
}
#else
#define attend_soon(p) ((void)(p))
#define attend_fetch(a) ((void)(a))
#define attend_interleave_line(t, row) ((void)(t), (void)(row))
#endif

static inline struct attend_ahead attend_ahead(const void *from, size_t bytes) {
    return (struct attend_ahead){from, from, (const uint8_t *)from + bytes, 4096};
}

/* As many lines as hold four f16 values of n positions come into L2. */
F32_INLINE void attend_fetch_lines(struct attend_ahead *a, size_t n) {
    UNROLL for (size_t i = 0; i < 8 * n; i += 64) attend_fetch(a);
}

/* ---- QK -------------------------------------------------------------------------------------- */

/* The qk of some queries and of a tile, or two. More than ATTEND_ROWS queries are stored four
 * values by four values. */
typedef void attend_qk_fn(const struct attend_keys *keys, const float *query, size_t stride,
                          uint32_t fours, float *out);

#ifndef ATTEND_ONE
/* `tiles` tiles (1 or 2) against `rows` queries: constants where this is inlined. */
F32_INLINE void attend_qk_tile(const struct attend_keys *keys, f32_load_fn *load, int tiles,
                               const float *query, size_t stride, int rows, uint32_t fours,
                               float *out) {
    VEC acc[2][4][ATTEND_F16_ROWS];
    const uint8_t *at = keys->at;
    struct attend_ahead ahead = keys->ahead ? *keys->ahead : (struct attend_ahead){0};
    struct attend_interleaved next = keys->next;
    const size_t positions = (size_t)tiles * ATTEND_BLOCK;
    UNROLL for (int t = 0; t < tiles; t++) UNROLL for (int v = 0; v < 4; v++)
        UNROLL for (int q = 0; q < rows; q++) acc[t][v][q] = V_ZERO();
    for (uint32_t i = 0; i < fours; i++, at += keys->four, query += 4) {
        if (keys->ahead)
            attend_fetch_lines(&ahead, positions);
        if (next.at && i % 2 == 0)
            attend_interleave_line(&next, 8 * (size_t)fours);
        VEC key[2][4];
        UNROLL for (int t = 0; t < tiles; t++) UNROLL for (int v = 0; v < 4; v++) key[t][v] =
            load(at + (size_t)t * keys->tile + (size_t)v * keys->vector);
        UNROLL for (int q = 0; q < rows; q++) {
            VEC x = V_FOUR(query + (size_t)q * stride);
            UNROLL for (int t = 0; t < tiles; t++) UNROLL for (int v = 0; v < 4; v++) acc[t][v][q] =
                V_FUSED(key[t][v], x, acc[t][v][q]);
        }
    }
    if (keys->ahead)
        *keys->ahead = ahead;
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int t = 0; t < tiles; t++) {
        VEC low = V_PAIRS(acc[t][0][q], acc[t][1][q]), high = V_PAIRS(acc[t][2][q], acc[t][3][q]);
        VEC sum = V_PAIRS(low, high);
        V_STORE(out + (size_t)q * ATTEND_POSITIONS + t * ATTEND_BLOCK, sum);
    }
}

/* A tile against more queries, which are stored four values by four values: two vectors, then the
 * other two. Each time 16 of their values are multiplied, a line of the next tile is interleaved.
 */
F32_INLINE void attend_qk_halves(const struct attend_keys *keys, f32_load_fn *load,
                                 const float *queries, int rows, uint32_t fours, float *out) {
    VEC pairs[2][ATTEND_F16_ROWS];
    struct attend_ahead ahead = keys->ahead ? *keys->ahead : (struct attend_ahead){0};
    struct attend_interleaved next = keys->next;
    UNROLL for (int half = 0; half < 2; half++) {
        VEC acc[2][ATTEND_F16_ROWS];
        const uint8_t *at = keys->at + (size_t)(2 * half) * keys->vector;
        const float *query = queries;
        UNROLL for (int q = 0; q < rows; q++) acc[0][q] = acc[1][q] = V_ZERO();
        for (uint32_t i = 0; i < fours; i += 4) {
            if (next.at)
                attend_interleave_line(&next, 8 * (size_t)fours);
            if (keys->ahead)
                attend_fetch_lines(&ahead, 2 * ATTEND_BLOCK);
            UNROLL for (int j = 0; j < 4; j++, at += 4 * 2 * LANES) {
                VEC low = load(at), high = load(at + 2 * LANES);
                UNROLL for (int q = 0; q < rows; q++, query += 4) {
                    VEC x = V_FOUR(query);
                    acc[0][q] = V_FUSED(low, x, acc[0][q]);
                    acc[1][q] = V_FUSED(high, x, acc[1][q]);
                }
            }
        }
        UNROLL for (int q = 0; q < rows; q++) pairs[half][q] = V_PAIRS(acc[0][q], acc[1][q]);
    }
    if (keys->ahead)
        *keys->ahead = ahead;
    UNROLL for (int q = 0; q < rows; q++) {
        VEC sum = V_PAIRS(pairs[0][q], pairs[1][q]);
        V_STORE(out + (size_t)q * ATTEND_POSITIONS, sum);
    }
}
#endif

/* A query alone takes two tiles: a chain needs others beside it. */
enum { ATTEND_ALONE = 2 };
#define ATTEND_QK(type, load, rows)                                                                \
    static TARGET void attend_qk_##type##_##rows(const struct attend_keys *keys,                   \
                                                 const float *query, size_t stride,                \
                                                 uint32_t fours, float *out) {                     \
        attend_qk_tile(keys, load, rows == 1 ? ATTEND_ALONE : 1, query, stride, rows, fours, out); \
    }
#define ATTEND_QK_ROWS(rows) ATTEND_QK(f16, half_load, rows) ATTEND_QK(f32, f32_load, rows)
FOR_EACH_ATTEND_ROWS(ATTEND_QK_ROWS)
#define ATTEND_QK_MORE(rows)                                                                       \
    static TARGET void attend_qk_f16_##rows(const struct attend_keys *keys, const float *query,    \
                                            size_t stride, uint32_t fours, float *out) {           \
        (void)stride;                                                                              \
        attend_qk_halves(keys, half_load, query, rows, fours, out);                                \
    }
FOR_EACH_ATTEND_MORE(ATTEND_QK_MORE)

#define ATTEND_ENTRY_QK_F16(rows) attend_qk_f16_##rows,
#define ATTEND_ENTRY_QK_F32(rows) attend_qk_f32_##rows,
static attend_qk_fn *const attend_qk_f16[] = {NULL, FOR_EACH_ATTEND_ROWS(ATTEND_ENTRY_QK_F16)
                                                        FOR_EACH_ATTEND_MORE(ATTEND_ENTRY_QK_F16)};
static attend_qk_fn *const attend_qk_f32[] = {NULL, FOR_EACH_ATTEND_ROWS(ATTEND_ENTRY_QK_F32)};

/* How many of n queries are taken next, `max` or fewer: such that all passes have about as many. */
static inline uint32_t attend_rows(uint32_t n, uint32_t max) {
    uint32_t passes = (n + max - 1) / max;
    return (n + passes - 1) / passes;
}

/* qk of queries [first, n_queries) and positions [begin, end), rounded up to whole tiles, or pairs
 * of them. keys.at is of the first of them. */
static TARGET void attend_qk(const struct attend_split *s, attend_qk_fn *const *tiles,
                             struct attend_keys keys, uint32_t first, uint32_t begin,
                             uint32_t end) {
    uint32_t stride = attend_stride(s->width), fours = (s->width + 3) / 4;
    for (uint32_t q = first, rows; q < s->n_queries; q += rows) {
        rows = attend_rows(s->n_queries - q, ATTEND_ROWS);
        uint32_t n_tiles = rows == 1 ? ATTEND_ALONE : 1;
        struct attend_keys at = keys;
        at.ahead = q == first ? keys.ahead : NULL;
        for (uint32_t p = begin; p < end; p += n_tiles * ATTEND_BLOCK, at.at += n_tiles * keys.tile)
            tiles[rows](&at, s->queries + (size_t)q * stride, stride, fours,
                        s->qk + (size_t)q * ATTEND_POSITIONS + p);
    }
}

#ifdef V_INTERLEAVE
/* Some queries, four values of each by four values. */
static void attend_put_fours(const struct attend_split *s, uint32_t first, uint32_t rows,
                             float *to) {
    const float *from = s->queries + (size_t)first * attend_stride(s->width);
    for (uint32_t i = 0; i < s->width; i += 4)
        for (uint32_t q = 0; q < rows; q++, to += 4)
            memcpy(to, from + (size_t)q * attend_stride(s->width) + i, 4 * sizeof *to);
}

/* Software pipelining: a tile is multiplied with all queries, and during the first of them the next
 * tile is interleaved. split->tile holds two tiles, and queries in the order of attend_put_fours.
 */
static TARGET void attend_qk_pipelined(const struct attend_split *s, uint32_t first, uint32_t n) {
    const uint32_t stride = attend_stride(s->width), fours = s->width / 4;
    const size_t row = 2 * s->width, tile = ATTEND_BLOCK * row;
    struct attend_keys keys = {.vector = 2 * LANES, .four = 4 * 2 * LANES, .tile = tile};
    struct attend_ahead values = attend_ahead(s->values, n * row);
    float *ordered = s->tile + 2 * tile / sizeof(float);
    for (uint32_t q = first, rows; q < s->n_queries; q += rows) {
        rows = attend_rows(s->n_queries - q, ATTEND_F16_ROWS);
        if (rows > ATTEND_ROWS)
            attend_put_fours(s, q, rows, ordered + (size_t)(q - first) * s->width);
    }
    attend_interleave_keys(s, 0, ATTEND_BLOCK);
    for (uint32_t p = 0; p < n; p += ATTEND_BLOCK) {
        uint8_t *both = (uint8_t *)s->tile;
        bool is_odd = p / ATTEND_BLOCK % 2;
        keys.at = both + is_odd * tile;
        keys.ahead = &values;
        if (p + ATTEND_BLOCK < n)
            keys.next = (struct attend_interleaved){
                .at = (const uint8_t *)s->keys + (p + ATTEND_BLOCK) * row,
                .to = both + !is_odd * tile,
            };
        for (uint32_t q = first, rows; q < s->n_queries; q += rows) {
            rows = attend_rows(s->n_queries - q, ATTEND_F16_ROWS);
            const float *query = rows > ATTEND_ROWS ? ordered + (size_t)(q - first) * s->width
                                                    : s->queries + (size_t)q * stride;
            attend_qk_f16[rows](&keys, query, stride, fours,
                                s->qk + (size_t)q * ATTEND_POSITIONS + p);
            keys.ahead = NULL;
            keys.next.at = NULL;
        }
    }
}

/* A query alone takes two tiles at once: attend_qk_interleaved. */
static bool attend_can_pipeline(const struct attend_split *s, uint32_t first) {
    return s->width % 32 == 0 && s->n_queries - first > 1;
}

/* Keys are interleaved run by run, each before it is multiplied. */
static TARGET void attend_qk_interleaved(const struct attend_split *s, uint32_t first, uint32_t n) {
    struct attend_ahead values = attend_ahead(s->values, n * attend_row_bytes(s));
    struct attend_keys keys = {.at = (const uint8_t *)s->tile,
                               .vector = 2 * LANES,
                               .four = 4 * 2 * LANES,
                               .tile = s->width / 4 * 4 * 2 * LANES,
                               .ahead = &values};
    for (uint32_t p = 0, run = attend_run(s); p < n; p += run) {
        uint32_t end = p + run < n ? p + run : n;
        attend_interleave_keys(s, p, end);
        attend_qk(s, attend_qk_f16, keys, first, p, end);
    }
}
#endif

/* A vector of one position is part of a row of the cache. */
static bool attend_is_direct(const struct attend_split *s, uint32_t first, uint32_t align) {
    uint32_t max = s->type == DT_F16 ? ATTEND_F16_DIRECT : ATTEND_DIRECT;
    return (s->type == DT_F16 || s->type == DT_F32) && s->width % align == 0 &&
           s->n_queries - first <= max;
}

static TARGET void attend_qk_decoded(const struct attend_split *s, uint32_t first, uint32_t n) {
    size_t row = attend_row_bytes(s), stride = attend_stride(s->width) * sizeof(float);
    bool is_one = ATTEND_PARTS == 1; /* position of a vector: keys are rows */
    struct attend_keys keys = {.at = (const uint8_t *)s->tile,
                               .vector = is_one ? stride : LANES * sizeof(float),
                               .four = is_one ? 16 : 4 * LANES * sizeof(float)};
    keys.tile = is_one ? 4 * stride : (s->width + 3) / 4 * keys.four;
    for (uint32_t p = 0, run = attend_run(s); p < n; p += run) {
        uint32_t end = p + run < n ? p + run : n;
        const uint8_t *from = (const uint8_t *)s->keys + p * row;
        (is_one ? attend_decode_rows : attend_decode_keys)(s, from, end - p);
        attend_qk(s, attend_qk_f32, keys, first, p, end);
    }
}

static TARGET void attend_run_keys(const struct attend_split *s, uint32_t first, uint32_t n) {
    if (attend_is_one(s, first) && attend_one_qk(s, first, n))
        return;
    if (ATTEND_PARTS == 1 && attend_is_direct(s, first, 4)) {
        size_t row = attend_row_bytes(s);
        struct attend_keys keys = {
            .at = s->keys, .vector = row, .four = s->type == DT_F16 ? 8 : 16, .tile = 4 * row};
        attend_qk(s, s->type == DT_F16 ? attend_qk_f16 : attend_qk_f32, keys, first, 0, n);
        return;
    }
#ifdef V_INTERLEAVE
    if (s->type == DT_F16 && attend_is_direct(s, first, LANES)) {
        (attend_can_pipeline(s, first) ? attend_qk_pipelined : attend_qk_interleaved)(s, first, n);
        return;
    }
#endif
    attend_qk_decoded(s, first, n);
}

#include "backend/cpu/kernels_softmax.h"

/* ---- PV -------------------------------------------------------------------------------------- */

/* out += weights x values over n positions, for one or four vectors and some queries. */
typedef void attend_pv_fn(struct attend_values v, uint32_t n, const float *weights, float *out,
                          size_t stride);

#ifndef ATTEND_ONE
/* rows, vectors and fetched, the vectors that are fetched, are constants where this is inlined. Few
 * vectors stay in registers while the weights pass by; of many, one does, and the weights stay. */
F32_INLINE void attend_pv_tile(struct attend_values v, f32_load_fn *load, uint32_t n,
                               const float *weights, int rows, int vectors, int fetched, float *out,
                               size_t stride) {
    const size_t vector = load == half_load ? 2 * LANES : 4 * LANES; /* v.vector, a constant */
    struct attend_ahead ahead = *v.ahead;
    VEC acc[ATTEND_F16_ROWS][4];
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int c = 0; c < vectors; c++) acc[q][c] =
        V_LOAD(out + (size_t)q * stride + c * LANES);
    uint32_t p = 0;
    for (; p + 4 <= n; p += 4, weights += 4) {
        V_WEIGHTS four[ATTEND_F16_ROWS];
        UNROLL for (int q = 0; q < rows; q++) four[q] =
            V_LOAD_WEIGHTS(weights + (size_t)q * ATTEND_POSITIONS);
        UNROLL for (int i = 0; i < 4; i++, v.at += v.row) {
            UNROLL for (size_t line = 0; line < (size_t)fetched * vector; line += 64) {
                attend_soon(v.at + line + 4 * v.row);
                attend_fetch(&ahead);
            }
            VEC value[4];
            UNROLL for (int c = 0; c < vectors; c++) {
                value[c] = load(v.at + (size_t)c * vector);
                UNROLL for (int q = 0; q < rows && vectors > 2; q++) acc[q][c] =
                    V_FUSED(value[c], V_WEIGHT(four[q], i), acc[q][c]);
            }
            UNROLL for (int q = 0; q < rows && vectors <= 2; q++) {
                VEC weight = V_WEIGHT(four[q], i);
                UNROLL for (int c = 0; c < vectors; c++) acc[q][c] =
                    V_FUSED(value[c], weight, acc[q][c]);
            }
        }
    }
    for (; p < n; p++, v.at += v.row, weights++) {
        UNROLL for (int c = 0; c < vectors; c++) {
            VEC value = load(v.at + (size_t)c * vector);
            UNROLL for (int q = 0; q < rows; q++) acc[q][c] =
                V_FUSED(value, V_SET(weights[(size_t)q * ATTEND_POSITIONS]), acc[q][c]);
        }
    }
    *v.ahead = ahead;
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int c = 0; c < vectors; c++)
        V_STORE(out + (size_t)q * stride + c * LANES, acc[q][c]);
}
#endif

#define ATTEND_PV(type, load, rows, vectors)                                                       \
    static TARGET void attend_pv_##type##_##rows##_##vectors(                                      \
        struct attend_values v, uint32_t n, const float *weights, float *out, size_t stride) {     \
        attend_pv_tile(v, load, n, weights, rows, vectors, vectors, out, stride);                  \
    }
#define ATTEND_PV_ROWS(rows)                                                                       \
    ATTEND_PV(f16, half_load, rows, 1)                                                             \
    ATTEND_PV(f16, half_load, rows, 4)                                                             \
    ATTEND_PV(f32, f32_load, rows, 1)                                                              \
    ATTEND_PV(f32, f32_load, rows, 4)
FOR_EACH_ATTEND_ROWS(ATTEND_PV_ROWS)
/* Two vectors and the next two: the first two fetch whole lines. */
enum { ATTEND_FETCHED = LANES == 8 ? 4 : 2 };
#define ATTEND_PV_MORE(rows)                                                                       \
    ATTEND_PV(f16, half_load, rows, 1)                                                             \
    static TARGET void attend_pv_f16_##rows##_4(struct attend_values v, uint32_t n,                \
                                                const float *weights, float *out, size_t stride) { \
        attend_pv_tile(v, half_load, n, weights, rows, 2, ATTEND_FETCHED, out, stride);            \
        v.at += 2 * v.vector;                                                                      \
        attend_pv_tile(v, half_load, n, weights, rows, 2, 4 - ATTEND_FETCHED, out + 2 * LANES,     \
                       stride);                                                                    \
    }
FOR_EACH_ATTEND_MORE(ATTEND_PV_MORE)

/* [rows][four vectors instead of one] */
typedef attend_pv_fn *const attend_pv_table[2];
#define ATTEND_ENTRY_PV_F16(rows) {attend_pv_f16_##rows##_1, attend_pv_f16_##rows##_4},
#define ATTEND_ENTRY_PV_F32(rows) {attend_pv_f32_##rows##_1, attend_pv_f32_##rows##_4},
static const attend_pv_table attend_pv_f16[] = {{NULL, NULL},
                                                FOR_EACH_ATTEND_ROWS(ATTEND_ENTRY_PV_F16)
                                                    FOR_EACH_ATTEND_MORE(ATTEND_ENTRY_PV_F16)};
static const attend_pv_table attend_pv_f32[] = {{NULL, NULL},
                                                FOR_EACH_ATTEND_ROWS(ATTEND_ENTRY_PV_F32)};

/* All values of the head, four vectors at a time while there are that many. */
static TARGET void attend_pv_width(attend_pv_fn *const *tiles, struct attend_values v, uint32_t n,
                                   const float *weights, uint32_t vectors, float *out,
                                   size_t stride) {
    for (; vectors >= 4; vectors -= 4, v.at += v.four, out += 4 * LANES)
        tiles[1](v, n, weights, out, stride);
    for (; vectors > 0; vectors--, v.at += v.vector, out += LANES)
        tiles[0](v, n, weights, out, stride);
}

/* Positions [begin, end) that a query sees. */
F32_INLINE uint32_t attend_seen(const struct attend_split *s, uint32_t q, uint32_t begin,
                                uint32_t end) {
    uint32_t seen = s->seen[q] < end ? s->seen[q] : end;
    return seen > begin ? seen - begin : 0;
}

/* Queries [q, q + rows) and positions [begin, end), of which v.at is the first: together over those
 * that all of them see, then each goes on alone. */
static TARGET void attend_pv_some(const struct attend_split *s, const attend_pv_table *tiles,
                                  struct attend_values v, uint32_t q, uint32_t rows, uint32_t begin,
                                  uint32_t end) {
    uint32_t stride = attend_stride(s->width), vectors = (s->width + LANES - 1) / LANES;
    uint32_t common = attend_seen(s, q, begin, end);
    const float *weights = s->qk + (size_t)q * ATTEND_POSITIONS + begin;
    float *out = s->pv + (size_t)q * stride;
    attend_pv_width(tiles[rows], v, common, weights, vectors, out, stride);
    v.at += common * v.row;
    for (uint32_t r = 1; r < rows; r++) {
        uint32_t more = attend_seen(s, q + r, begin, end) - common;
        if (more)
            attend_pv_width(tiles[1], v, more, weights + (size_t)r * ATTEND_POSITIONS + common,
                            vectors, out + (size_t)r * stride, stride);
    }
}

#ifdef V_INTERLEAVE
#include "backend/cpu/kernels_attend_x86.h"
#else
#define attend_has_blocks(s, first) ((void)(s), (void)(first), false)
#define attend_blocks_keys(s, first, n) ((void)(n))
#define attend_pv_q8_0 attend_pv_f32
#define attend_pv_q4_0 attend_pv_f32
#endif

/* The code for values of the cache itself, or decoded; and the bytes from vector to vector. */
static const attend_pv_table *attend_pv_of(const struct attend_split *s, bool is_direct,
                                           struct attend_values *v) {
    bool is_f16 = is_direct && s->type == DT_F16;
    v->vector = is_f16 ? 2 * LANES : 4 * LANES;
    v->four = 4 * v->vector;
    if (!is_direct || s->type == DT_F32)
        return attend_pv_f32;
    if (is_f16)
        return attend_pv_f16;
    v->four = attend_row_bytes(s) / (s->width / (4 * LANES));
    return s->type == DT_Q8_0 ? attend_pv_q8_0 : attend_pv_q4_0;
}

/* Positions from `begin` on: a few are used by all queries while they are in L1. */
static TARGET void attend_pv(const struct attend_split *s, bool is_direct, uint32_t first,
                             uint32_t begin, uint32_t n) {
    size_t row = attend_row_bytes(s);
    struct attend_ahead none = {s->values, s->values, (const uint8_t *)s->values + 1, 0};
    struct attend_ahead ahead =
        is_direct && s->next ? attend_ahead(s->next, ATTEND_POSITIONS * row) : none;
    struct attend_values v = {.row = row};
    const attend_pv_table *tiles = attend_pv_of(s, is_direct, &v);
    uint32_t max = tiles == attend_pv_f16 ? ATTEND_F16_ROWS : ATTEND_ROWS;
    if (!is_direct)
        v.row = attend_stride(s->width) * sizeof(float);
    /* Queries that go together use a value once: nothing is gained by L1. */
    bool is_once = is_direct && s->n_queries - first <= max;
    for (uint32_t p = begin, run = is_once ? n : attend_run(s); p < n; p += run) {
        uint32_t end = p + run < n ? p + run : n;
        const uint8_t *from = (const uint8_t *)s->values + p * row;
        if (!is_direct)
            attend_decode_rows(s, from, end - p);
        v.at = is_direct ? from : (const uint8_t *)s->tile;
        for (uint32_t q = first, rows; q < s->n_queries; q += rows) {
            rows = attend_rows(s->n_queries - q, max);
            v.ahead = q == first ? &ahead : &none;
            attend_pv_some(s, tiles, v, q, rows, p, end);
        }
    }
}

static TARGET void attend_run_values(const struct attend_split *s, uint32_t first, uint32_t n) {
    bool is_one = attend_is_one(s, first);
    uint32_t begin = is_one ? attend_one_pv(s, first, n) : 0;
    bool is_loaded = s->type == DT_F16 || s->type == DT_F32;
    bool is_direct = attend_is_direct(s, first, LANES) || attend_has_blocks(s, first);
    attend_pv(s, (is_one && is_loaded) || is_direct, first, begin, n);
}

/* ---- a split --------------------------------------------------------------------------------- */

static TARGET void attend_split(const struct attend_split *s) {
    uint32_t first = 0, n = s->seen[s->n_queries - 1];
    memset(s->pv, 0, (size_t)s->n_queries * attend_stride(s->width) * sizeof *s->pv);
    for (; first < s->n_queries && s->seen[first] == 0; first++)
        s->sums[first] = (struct softmax){0};
    if (first == s->n_queries)
        return;
    if (attend_has_blocks(s, first))
        attend_blocks_keys(s, first, n);
    else
        attend_run_keys(s, first, n);
    attend_softmax(s, first);
    attend_run_values(s, first, n);
}
