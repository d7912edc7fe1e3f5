/* kernels_attend_x86.h - caches of q8_0 and q4_0 for few queries, on x86.
 *
 * Keys are put into the order of QK's vectors while they are bytes, a block's scale beside them;
 * values are decoded when they are multiplied. So a split is read once, and what is written of it
 * is a tile of bytes. A decoded value is the same product of scale and quant as elsewhere: the same
 * bits.
 *
 * Included by kernels_attend.h; kernels_avx2.c and kernels_avx512.c define
 *   struct key_scales                    the scales of a block of ATTEND_PARTS keys
 *   key_scales(f16s)                     the same of ATTEND_PARTS f16
 *   interleave_block(from, row, is_q4, to)
 *                                        a block of ATTEND_PARTS keys, `row` bytes apart, as signed
 *                                        bytes, 8 LANES, in an order that key_values knows
 *   key_values(bytes, i, scales)         values 4 i .. 4 i + 3 of these keys
 *   KEY_VECTORS(rows)                    vectors of keys that are multiplied with this many queries
 *                                        at once, 2 or 4
 *   VALUE_BLOCKS                         blocks that four vectors of values are
 *   struct value_scales                  the scales of these blocks of ATTEND_POSITIONS values
 *   put_scales(f16s, b, p, to)           the same of block b, LANES positions from p on
 *   block_values(at, is_q4, s, p, to)    the four vectors of position p */

static bool attend_has_blocks(const struct attend_split *s, uint32_t first) {
    return (s->type == DT_Q8_0 || s->type == DT_Q4_0) && s->width % (4 * LANES) == 0 &&
           s->n_queries - first <= ATTEND_DIRECT;
}

F32_INLINE size_t block_size(bool is_q4) {
    return is_q4 ? 18 : 34;
}

/* ---- QK -------------------------------------------------------------------------------------- */

/* A tile of keys, and its scales: [vector][block]. */
struct attend_bytes {
    uint8_t at[ATTEND_BLOCK * ATTEND_MAX_WIDTH];
    struct key_scales scales[ATTEND_MAX_WIDTH / 32 * 4];
    struct attend_ahead *ahead; /* fetched meanwhile */
    int lines;                  /* of it to a block of the keys, 8 at most */
};

/* The tile of keys from position p on. A scale that was stored alone can't be loaded with others
 * before the store is done: so they are converted last. */
F32_INLINE void attend_interleave_tile(const struct attend_split *s, bool is_q4, uint32_t p,
                                       struct attend_bytes *to) {
    const uint32_t blocks = s->width / 32;
    const size_t row = blocks * block_size(is_q4);
    uint16_t f16s[ATTEND_MAX_WIDTH / 32 * 4][ATTEND_PARTS];
    for (uint32_t v = 0, i = 0; v < 4; v++) {
        const uint8_t *from = (const uint8_t *)s->keys + (p + v) * row;
        for (uint32_t b = 0; b < blocks; b++, i++, from += block_size(is_q4)) {
            UNROLL for (size_t part = 0; part < ATTEND_PARTS; part++) {
                const uint8_t *block = from + part * 4 * row;
                if (b % 2 == 0) /* two blocks are about a line */
                    attend_soon(block + ATTEND_BLOCK * row);
                memcpy(&f16s[i][part], block, sizeof f16s[i][part]);
            }
            interleave_block(from, 4 * row, is_q4, to->at + (size_t)i * 8 * LANES);
        }
    }
    for (uint32_t i = 0; i < 4 * blocks; i++)
        to->scales[i] = key_scales(f16s[i]);
}

static TARGET void attend_interleave_q8_0(const struct attend_split *s, uint32_t p,
                                          struct attend_bytes *to) {
    attend_interleave_tile(s, false, p, to);
}

static TARGET void attend_interleave_q4_0(const struct attend_split *s, uint32_t p,
                                          struct attend_bytes *to) {
    attend_interleave_tile(s, true, p, to);
}

typedef void attend_bytes_fn(const struct attend_bytes *keys, uint32_t blocks, const float *query,
                             size_t stride, float *out);

/* The sums of some vectors of the tile from v on, in pairs. `vectors` and `rows` are constants
 * where this is inlined. */
F32_INLINE void attend_bytes_sums(const struct attend_bytes *keys, uint32_t blocks, size_t v,
                                  size_t vectors, const float *query, size_t stride, int rows,
                                  VEC pairs[][ATTEND_ROWS]) {
    const int lines = vectors == 4 ? keys->lines : (keys->lines + 1) / 2;
    const uint8_t *at = keys->at + v * blocks * 8 * LANES;
    const struct key_scales *scales = keys->scales + v * blocks;
    struct attend_ahead ahead = *keys->ahead;
    VEC acc[4][ATTEND_ROWS];
    UNROLL for (size_t u = 0; u < vectors; u++) UNROLL for (int q = 0; q < rows; q++) acc[u][q] =
        V_ZERO();
    for (uint32_t b = 0; b < blocks; b++, at += 8 * LANES, scales++) {
        UNROLL for (int i = 0; i < 8; i++, query += 4) {
            VEC key[4];
            if (i < lines)
                attend_fetch(&ahead);
            UNROLL for (size_t u = 0; u < vectors; u++) key[u] =
                key_values(at + u * blocks * 8 * LANES, i, scales + u * blocks);
            UNROLL for (int q = 0; q < rows; q++) {
                VEC x = V_FOUR(query + (size_t)q * stride);
                UNROLL for (size_t u = 0; u < vectors; u++) acc[u][q] =
                    V_FUSED(key[u], x, acc[u][q]);
            }
        }
    }
    *keys->ahead = ahead;
    UNROLL for (size_t u = 0; u < vectors; u += 2) UNROLL for (int q = 0; q < rows; q++)
        pairs[(v + u) / 2][q] = V_PAIRS(acc[u][q], acc[u + 1][q]);
}

/* `rows` is a constant where this is inlined. */
F32_INLINE void attend_bytes_tile(const struct attend_bytes *keys, uint32_t blocks,
                                  const float *query, size_t stride, int rows, float *out) {
    VEC pairs[2][ATTEND_ROWS];
    UNROLL for (size_t v = 0; v < 4; v += KEY_VECTORS(rows))
        attend_bytes_sums(keys, blocks, v, KEY_VECTORS(rows), query, stride, rows, pairs);
    UNROLL for (int q = 0; q < rows; q++) {
        VEC sum = V_PAIRS(pairs[0][q], pairs[1][q]);
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
        (s->type == DT_Q4_0 ? attend_interleave_q4_0 : attend_interleave_q8_0)(s, p, &keys);
        for (uint32_t q = first, rows; q < s->n_queries; q += rows) {
            keys.lines = q == first ? (int)lines : 0;
            rows = attend_rows(s->n_queries - q, ATTEND_ROWS);
            attend_bytes[rows](&keys, s->width / 32, s->queries + (size_t)q * stride, stride,
                               s->qk + (size_t)q * ATTEND_POSITIONS + p);
        }
    }
}

/* ---- PV -------------------------------------------------------------------------------------- */

/* The scales of n positions from v.at on: together, as a vector is converted in the time of one. */
F32_INLINE void attend_scales(const struct attend_values *v, bool is_q4, uint32_t n,
                              struct value_scales *to) {
    uint16_t f16s[VALUE_BLOCKS][ATTEND_POSITIONS];
    for (uint32_t b = 0; b < VALUE_BLOCKS; b++)
        for (uint32_t p = 0; p < n; p++)
            memcpy(&f16s[b][p], v->at + p * v->row + b * block_size(is_q4), 2);
    for (uint32_t b = 0; b < VALUE_BLOCKS; b++)
        for (uint32_t p = 0; p < n; p += LANES)
            put_scales(&f16s[b][p], b, p, to);
}

/* rows and is_q4 are constants where this is inlined. */
F32_INLINE void attend_blocks_tile(struct attend_values v, bool is_q4, uint32_t n,
                                   const float *weights, int rows, float *out, size_t stride) {
    VEC acc[ATTEND_ROWS][4];
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int c = 0; c < 4; c++) acc[q][c] =
        V_LOAD(out + (size_t)q * stride + c * LANES);
    struct attend_ahead ahead = *v.ahead;
    struct value_scales scales;
    attend_scales(&v, is_q4, n, &scales);
    for (uint32_t p = 0; p < n; p++, v.at += v.row, weights++) {
        VEC value[4];
        attend_soon(v.at + 4 * v.row);
        attend_fetch(&ahead);
        block_values(v.at, is_q4, &scales, p, value);
        UNROLL for (int q = 0; q < rows; q++) {
            VEC w = V_SET(weights[(size_t)q * ATTEND_POSITIONS]);
            UNROLL for (int c = 0; c < 4; c++) acc[q][c] = V_FUSED(value[c], w, acc[q][c]);
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
