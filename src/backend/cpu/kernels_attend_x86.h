/* kernels_attend_x86.h - caches of q8_0 and q4_0 for few queries, on x86.
 *
 * Keys are put into the order of QK's vectors while they are bytes, a block's scale beside them;
 * values are decoded as they are met. So a split is read once, and what is written of it is a tile
 * of bytes. A decoded value is the same product of scale and quant as elsewhere: the same bits.
 *
 * Included by kernels_attend.h; kernels_avx2.c and kernels_avx512.c define
 *   V_BYTES(p)           LANES signed bytes as f32
 *   V_TURN_BYTES(r, to)  sixteen bytes of ATTEND_PARTS keys, four bytes of each side by side
 *   V_SPREAD(f16s)       ATTEND_PARTS f16 as f32, each in four lanes */

enum {
    BLOCKS_OF_FOUR = 4 * LANES / 32, /* blocks that four vectors of values are */
    BLOCK_VECTORS = 32 / LANES,
};

static bool attend_has_blocks(const struct attend_split *s, uint32_t first) {
    return (s->type == DT_Q8_0 || s->type == DT_Q4_0) && s->width % (4 * LANES) == 0 &&
           s->n_queries - first <= ATTEND_DIRECT;
}

/* The 32 quants of a block. */
F32_INLINE void block_bytes(const uint8_t *block, bool is_q4, __m128i *to /* (2) */) {
    const __m128i *qs = (const __m128i *)(const void *)(block + 2);
    to[0] = _mm_loadu_si128(qs);
    if (!is_q4) {
        to[1] = _mm_loadu_si128(qs + 1);
        return;
    }
    const __m128i low = _mm_set1_epi8(15), bias = _mm_set1_epi8(8);
    to[1] = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(to[0], 4), low), bias);
    to[0] = _mm_sub_epi8(_mm_and_si128(to[0], low), bias);
}

F32_INLINE size_t block_size(bool is_q4) {
    return is_q4 ? 18 : 34;
}

/* ---- QK -------------------------------------------------------------------------------------- */

/* A tile of keys: [vector][four values][part] bytes, and [vector][block] scales. */
struct attend_bytes {
    uint8_t at[ATTEND_BLOCK * ATTEND_MAX_WIDTH];
    float scales[ATTEND_MAX_WIDTH / 32 * 4 * LANES];
    struct attend_ahead *ahead; /* fetched meanwhile */
    int lines;                  /* of it to a block of the keys, 8 at most */
};

/* Vector v of the tile of keys from position p on. */
F32_INLINE void attend_turn_vector(const struct attend_split *s, bool is_q4, uint32_t p, uint32_t v,
                                   struct attend_bytes *to) {
    const uint32_t blocks = s->width / 32;
    const size_t row = blocks * block_size(is_q4);
    const uint8_t *from = (const uint8_t *)s->keys + (p + v) * row;
    for (uint32_t b = 0; b < blocks; b++, from += block_size(is_q4)) {
        __m128i low[ATTEND_PARTS], high[ATTEND_PARTS];
        uint16_t d[ATTEND_PARTS];
        UNROLL for (size_t part = 0; part < ATTEND_PARTS; part++) {
            const uint8_t *block = from + part * 4 * row;
            __m128i two[2];
            attend_soon(block + ATTEND_BLOCK * row);
            block_bytes(block, is_q4, two);
            low[part] = two[0];
            high[part] = two[1];
            memcpy(&d[part], block, sizeof d[part]);
        }
        uint8_t *bytes = to->at + (size_t)(v * blocks + b) * 8 * LANES;
        V_TURN_BYTES(low, bytes);
        V_TURN_BYTES(high, bytes + 4 * LANES);
        V_STORE(to->scales + (size_t)(v * blocks + b) * LANES, V_SPREAD(d));
    }
}

static TARGET void attend_turn_q8_0(const struct attend_split *s, uint32_t p,
                                    struct attend_bytes *to) {
    for (uint32_t v = 0; v < 4; v++)
        attend_turn_vector(s, false, p, v, to);
}

static TARGET void attend_turn_q4_0(const struct attend_split *s, uint32_t p,
                                    struct attend_bytes *to) {
    for (uint32_t v = 0; v < 4; v++)
        attend_turn_vector(s, true, p, v, to);
}

typedef void attend_bytes_fn(const struct attend_bytes *keys, uint32_t blocks, const float *query,
                             size_t stride, float *out);

/* `rows` is a constant where this is inlined. */
F32_INLINE void attend_bytes_tile(const struct attend_bytes *keys, uint32_t blocks,
                                  const float *query, size_t stride, int rows, float *out) {
    struct attend_ahead ahead = *keys->ahead;
    VEC acc[4][ATTEND_ROWS];
    UNROLL for (int v = 0; v < 4; v++) UNROLL for (int q = 0; q < rows; q++) acc[v][q] = V_ZERO();
    for (uint32_t b = 0; b < blocks; b++) {
        const float *scales = keys->scales + (size_t)b * LANES;
        const uint8_t *at = keys->at + (size_t)b * 8 * LANES;
        for (int i = 0; i < 8; i++, at += LANES, query += 4) {
            VEC key[4];
            if (i < keys->lines)
                attend_fetch(&ahead);
            UNROLL for (size_t v = 0; v < 4; v++) key[v] =
                V_BYTES(at + v * blocks * 8 * LANES) * V_LOAD(scales + v * blocks * LANES);
            UNROLL for (int q = 0; q < rows; q++) {
                VEC x = V_FOUR(query + (size_t)q * stride);
                UNROLL for (int v = 0; v < 4; v++) acc[v][q] = V_FUSED(key[v], x, acc[v][q]);
            }
        }
    }
    *keys->ahead = ahead;
    UNROLL for (int q = 0; q < rows; q++) {
        VEC low = V_PAIRS(acc[0][q], acc[1][q]), high = V_PAIRS(acc[2][q], acc[3][q]);
        VEC sum = V_PAIRS(low, high);
        V_STORE(out + (size_t)q * ATTEND_POSITIONS, sum);
    }
}

#define ATTEND_BYTES(rows)                                                                         \
    static TARGET void attend_bytes_##rows(const struct attend_bytes *keys, uint32_t blocks,       \
                                           const float *query, size_t stride, float *out) {        \
        attend_bytes_tile(keys, blocks, query, stride, rows, out);                                 \
    }
FOR_EACH_ATTEND_ROWS(ATTEND_BYTES)
#define ATTEND_ENTRY_BYTES(rows) attend_bytes_##rows,
static attend_bytes_fn *const attend_bytes[] = {NULL, FOR_EACH_ATTEND_ROWS(ATTEND_ENTRY_BYTES)};

static TARGET void attend_blocks_keys(const struct attend_split *s, uint32_t first, uint32_t n) {
    uint32_t stride = attend_stride(s->width);
    const size_t row = attend_row_bytes(s);
    _Alignas(64) struct attend_bytes keys;
    struct attend_ahead values = attend_ahead(s->values, n * row);
    const size_t lines = (ATTEND_BLOCK * block_size(s->type == DT_Q4_0) + 63) / 64;
    keys.ahead = &values;
    for (uint32_t p = 0; p < n; p += ATTEND_BLOCK) {
        (s->type == DT_Q4_0 ? attend_turn_q4_0 : attend_turn_q8_0)(s, p, &keys);
        for (uint32_t q = first, rows; q < s->n_queries; q += rows) {
            keys.lines = q == first ? (int)lines : 0;
            rows = attend_rows(s->n_queries - q, ATTEND_ROWS);
            attend_bytes[rows](&keys, s->width / 32, s->queries + (size_t)q * stride, stride,
                               s->qk + (size_t)q * ATTEND_POSITIONS + p);
        }
    }
}

/* ---- PV -------------------------------------------------------------------------------------- */

/* rows and is_q4 are constants where this is inlined. */
F32_INLINE void attend_blocks_tile(struct attend_values v, bool is_q4, uint32_t n,
                                   const float *weights, int rows, float *out, size_t stride) {
    VEC acc[ATTEND_ROWS][4];
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int c = 0; c < 4; c++) acc[q][c] =
        V_LOAD(out + (size_t)q * stride + c * LANES);
    struct attend_ahead ahead = *v.ahead;
    for (uint32_t p = 0; p < n; p++, v.at += v.row, weights++) {
        VEC w[ATTEND_ROWS];
        attend_soon(v.at + 4 * v.row);
        attend_fetch(&ahead);
        UNROLL for (int q = 0; q < rows; q++) w[q] = V_SET(weights[(size_t)q * ATTEND_POSITIONS]);
        UNROLL for (int b = 0; b < BLOCKS_OF_FOUR; b++) {
            const uint8_t *block = v.at + (size_t)b * block_size(is_q4);
            VEC wide[BLOCK_VECTORS];
            __m128i two[2];
            uint16_t d;
            memcpy(&d, block, sizeof d);
            VEC scale = V_SET(half_to_f32(d));
            block_bytes(block, is_q4, two);
            UNROLL for (int h = 0; h < 2; h++) widen_16((bytes16)two[h], wide + h * 16 / LANES);
            UNROLL for (int c = 0; c < BLOCK_VECTORS; c++) {
                VEC value = wide[c] * scale;
                UNROLL for (int q = 0; q < rows; q++) acc[q][b * BLOCK_VECTORS + c] =
                    V_FUSED(value, w[q], acc[q][b * BLOCK_VECTORS + c]);
            }
        }
    }
    *v.ahead = ahead;
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int c = 0; c < 4; c++)
        V_STORE(out + (size_t)q * stride + c * LANES, acc[q][c]);
}

#define ATTEND_BLOCKS_PV(type, is_q4, rows)                                                        \
    static TARGET void attend_pv_##type##_##rows(                                                  \
        struct attend_values v, uint32_t n, const float *weights, float *out, size_t stride) {     \
        attend_blocks_tile(v, is_q4, n, weights, rows, out, stride);                               \
    }
#define ATTEND_BLOCKS_ROWS(rows)                                                                   \
    ATTEND_BLOCKS_PV(q8_0, false, rows) ATTEND_BLOCKS_PV(q4_0, true, rows)
FOR_EACH_ATTEND_ROWS(ATTEND_BLOCKS_ROWS)
#define ATTEND_ENTRY_Q8_0(rows) {NULL, attend_pv_q8_0_##rows},
#define ATTEND_ENTRY_Q4_0(rows) {NULL, attend_pv_q4_0_##rows},
static const attend_pv_table attend_pv_q8_0[] = {{NULL, NULL},
                                                 FOR_EACH_ATTEND_ROWS(ATTEND_ENTRY_Q8_0)};
static const attend_pv_table attend_pv_q4_0[] = {{NULL, NULL},
                                                 FOR_EACH_ATTEND_ROWS(ATTEND_ENTRY_Q4_0)};
