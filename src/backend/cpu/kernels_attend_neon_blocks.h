/* kernels_attend_neon_blocks.h - attention of one row over a split of a q8_0 or q4_0 cache, on
 * NEON: the rest of kernels_attend_neon.h.
 *
 * A block's value d q is an f32 without rounding (11 and 8 bits), so it may be made in any way:
 *
 *   bits   |q| and the sign of q put into bits 16 to 23, and 31, of a lane by a table look-up: the
 *          f32 q 2^-133, as the numbers below 2^-125 are evenly spaced
 *   value  bits times d 2^111, which is d q 2^-22
 *
 * and queries or weights are taken times 2^22, so that the products are what they were. That is 2.5
 * instructions of either pipe for four values, where a conversion from integers is 3.5 and waits
 * for one pipe. Scales are converted for the whole split first. Queries of 2^100 and more, and NaN,
 * are left to the others. */

enum { BLOCK_ROWS = 4, BLOCK_VALUES = 32 };

#define BLOCK_UP 0x1p22f    /* of queries and weights */
#define BLOCK_DOWN 0x1p111f /* of scales */
#define BLOCK_MOST 0x1p100f /* queries are less */

struct blocks_pair {
    uint8x16_t val[2];
};

typedef struct blocks_pair blocks_fn(const uint8_t *block, int half);

/* Sixteen values of a block: |q|, and 128 where q < 0. */
INLINE struct blocks_pair blocks_signed(int8x16_t q) {
    uint8x16_t bytes = vreinterpretq_u8_s8(q);
    return (struct blocks_pair){
        {vreinterpretq_u8_s8(vabsq_s8(q)), vandq_u8(bytes, vdupq_n_u8(0x80))}};
}

INLINE struct blocks_pair blocks_q8_0(const uint8_t *block, int half) {
    return blocks_signed(vreinterpretq_s8_u8(vld1q_u8(block + 2 + 16 * half)));
}

INLINE struct blocks_pair blocks_q4_0(const uint8_t *block, int half) {
    uint8x16_t v = vld1q_u8(block + 2);
    v = half ? vshrq_n_u8(v, 4) : vandq_u8(v, vdupq_n_u8(15));
    return blocks_signed(vsubq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8(8)));
}

/* The bytes that make four lanes of values 4 u on, from |q| and signs. */
static const uint8_t blocks_index[4][16] __attribute__((aligned(16))) = {
    {255, 255, 0, 16, 255, 255, 1, 17, 255, 255, 2, 18, 255, 255, 3, 19},
    {255, 255, 4, 20, 255, 255, 5, 21, 255, 255, 6, 22, 255, 255, 7, 23},
    {255, 255, 8, 24, 255, 255, 9, 25, 255, 255, 10, 26, 255, 255, 11, 27},
    {255, 255, 12, 28, 255, 255, 13, 29, 255, 255, 14, 30, 255, 255, 15, 31},
};

/* to = values 4 u on, times a lane of the scales: now. The table is two registers that follow each
 * other, by name; its index is loaded, into the result. */
#define BLOCKS_LOAD(to, pair, low, high, u, scales, lane)                                          \
    do {                                                                                           \
        register uint8x16_t low_ __asm__(low) = (pair).val[0];                                     \
        register uint8x16_t high_ __asm__(high) = (pair).val[1];                                   \
        __asm__ volatile("ldr %q0, %3\n\t"                                                         \
                         "tbl %0.16b, {" low ".16b, " high ".16b}, %0.16b\n\t"                     \
                         "fmul %0.4s, %0.4s, %4.s[" #lane "]"                                      \
                         : "=&w"(to)                                                               \
                         : "w"(low_), "w"(high_), "m"(blocks_index[u]), "w"(scales));              \
    } while (0)

/* ---- scratch --------------------------------------------------------------------------------- */

/* In split->tile: queries times BLOCK_UP, then (blocks, ATTEND_POSITIONS) scales times BLOCK_DOWN,
 * and the same as f16. */
static float *blocks_scales(const struct attend_split *s) {
    return s->tile + ONE_QUERIES * attend_stride(s->width);
}

/* The scales of n rows, and of as many more as make a four: those are not used. */
static void blocks_read_scales(const struct attend_split *s, const uint8_t *from, uint32_t n) {
    uint32_t blocks = s->width / BLOCK_VALUES;
    size_t bytes = s->type == DT_Q8_0 ? sizeof(struct q8_0) : sizeof(struct q4_0);
    float *scales = blocks_scales(s);
    uint16_t *halves = (uint16_t *)(void *)(scales + blocks * ATTEND_POSITIONS);
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t b = 0; b < blocks; b++, from += bytes)
            memcpy(halves + b * ATTEND_POSITIONS + p, from, sizeof *halves);
    for (uint32_t b = 0; b < blocks; b++)
        for (uint32_t p = 0; p < n; p += 4) {
            uint32_t at = b * ATTEND_POSITIONS + p;
            float32x4_t d = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + at)));
            vst1q_f32(scales + at, vmulq_n_f32(d, BLOCK_DOWN));
        }
}

/* y = x * by for n values, a multiple of four; the largest of |x|, or NaN. */
static float blocks_scale(float *y, const float *x, float by, uint32_t n) {
    float32x4_t max = vdupq_n_f32(0);
    for (uint32_t i = 0; i < n; i += 4) {
        float32x4_t v = vld1q_f32(x + i);
        max = vmaxq_f32(max, vabsq_f32(v));
        vst1q_f32(y + i, vmulq_n_f32(v, by));
    }
    return vmaxvq_f32(max);
}

/* ---- QK -------------------------------------------------------------------------------------- */

/* Scales of two positions. */
INLINE float32x4_t blocks_two(const float *d) {
    return vcombine_f32(vld1_f32(d), vdup_n_f32(0));
}

/* Steps of half a block: products of step u, and the values of step u + 3. */
INLINE void blocks_qk_step(float32x4_t (*acc)[2], float32x4_t (*ring)[2], int now,
                           const float *query, size_t stride, int rows,
                           const struct blocks_pair *pairs, float32x4_t both) {
    float32x4_t x[BLOCK_ROWS];
    UNROLL for (int q = 0; q < rows; q++) x[q] = vld1q_f32(query + (size_t)q * stride);
    UNROLL for (int q = 0; q < rows; q++) ONE_FUSED(acc[q][0], ring[now][0], x[q]);
    BLOCKS_LOAD(ring[(now + 3) % 4][0], pairs[0], "v28", "v29", (now + 3) % 4, both, 0);
    UNROLL for (int q = 0; q < rows; q++) ONE_FUSED(acc[q][1], ring[now][1], x[q]);
    BLOCKS_LOAD(ring[(now + 3) % 4][1], pairs[1], "v30", "v31", (now + 3) % 4, both, 1);
}

/* Half a block of two positions: pairs and scales are its own, and then those of the next half. */
INLINE void blocks_qk_half(float32x4_t (*acc)[2], float32x4_t (*ring)[2], const float *query,
                           size_t stride, int rows, struct blocks_pair *pairs, float32x4_t *scales,
                           const uint8_t *next, size_t row, int next_half, float32x4_t next_scales,
                           blocks_fn *load) {
    blocks_qk_step(acc, ring, 0, query, stride, rows, pairs, *scales);
    pairs[0] = load(next, next_half);
    pairs[1] = load(next + row, next_half);
    *scales = next_scales;
    UNROLL for (int u = 1; u < 4; u++)
        blocks_qk_step(acc, ring, u, query + 4 * u, stride, rows, pairs, *scales);
}

/* qk of `rows` queries, times BLOCK_UP, and n positions, rounded up to an even number. */
INLINE void blocks_qk(const struct attend_split *s, const float *queries, uint32_t n, int rows,
                      float *out, blocks_fn *load, size_t bytes) {
    const size_t row = s->width / BLOCK_VALUES * bytes, stride = attend_stride(s->width);
    const uint8_t *at = s->keys;
    const float *d = blocks_scales(s);
    float32x4_t ring[4][2];
    float32x4_t scales = blocks_two(d);
    struct blocks_pair pairs[2] = {load(at, 0), load(at + row, 0)};
    UNROLL for (int u = 0; u < 3; u++) {
        BLOCKS_LOAD(ring[u][0], pairs[0], "v28", "v29", u, scales, 0);
        BLOCKS_LOAD(ring[u][1], pairs[1], "v30", "v31", u, scales, 1);
    }
    for (uint32_t p = 0; p < n; p += 2) {
        const uint8_t *next = p + 2 < n ? at + 2 * row : at;
        float32x4_t acc[BLOCK_ROWS][2];
        UNROLL for (int q = 0; q < rows; q++) acc[q][0] = acc[q][1] = vdupq_n_f32(0);
        for (uint32_t i = 0; i < s->width; i += BLOCK_VALUES, at += bytes) {
            bool is_last = i + BLOCK_VALUES == s->width;
            const float *after = is_last ? d + (p + 2 < n ? p + 2 : p)
                                         : d + (i / BLOCK_VALUES + 1) * ATTEND_POSITIONS + p;
            __builtin_prefetch((const uint8_t *)s->values + (at - (const uint8_t *)s->keys));
            __builtin_prefetch((const uint8_t *)s->values + (at - (const uint8_t *)s->keys) + row);
            blocks_qk_half(acc, ring, queries + i, stride, rows, pairs, &scales, at, row, 1, scales,
                           load);
            blocks_qk_half(acc, ring, queries + i + 16, stride, rows, pairs, &scales,
                           is_last ? next : at + bytes, row, 0, blocks_two(after), load);
        }
        at = next;
        UNROLL for (int q = 0; q < rows; q++) {
            float32x4_t sums = vpaddq_f32(acc[q][0], acc[q][1]);
            vst1_f32(out + (size_t)q * ATTEND_POSITIONS + p, vget_low_f32(vpaddq_f32(sums, sums)));
        }
    }
}

/* ---- PV -------------------------------------------------------------------------------------- */

/* Position `now` of four, and the values of the next one, whose scale is lane `then`. */
#define BLOCKS_PV_STEP(now, then)                                                                  \
    INLINE void blocks_pv_step_##now(float32x4_t(*acc)[4], float32x4_t *values,                    \
                                     const float32x4_t *weights, int rows,                         \
                                     struct blocks_pair pair, float32x4_t scales) {                \
        UNROLL for (int v = 0; v < 4; v++) {                                                       \
            UNROLL for (int q = 0; q < rows; q++)                                                  \
                ONE_FUSED_LANE(acc[q][v], values[v], weights[q], now);                             \
            BLOCKS_LOAD(values[v], pair, "v30", "v31", v, scales, then);                           \
        }                                                                                          \
    }
BLOCKS_PV_STEP(0, 1)
BLOCKS_PV_STEP(1, 2)
BLOCKS_PV_STEP(2, 3)
BLOCKS_PV_STEP(3, 0)

/* Half a block of values over n positions, a multiple of four. */
INLINE void blocks_pv_half(const uint8_t *at, size_t row, int half, const float *d,
                           const float *weights, uint32_t n, int rows, float *out, size_t stride,
                           blocks_fn *load) {
    float32x4_t acc[BLOCK_ROWS][4], values[4], scales = vld1q_f32(d);
    struct blocks_pair pair = load(at, half);
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int v = 0; v < 4; v++) acc[q][v] =
        vdupq_n_f32(0);
    UNROLL for (int v = 0; v < 4; v++) BLOCKS_LOAD(values[v], pair, "v30", "v31", v, scales, 0);
    for (uint32_t p = 0; p < n; p += 4, weights += 4) {
        const uint8_t *next = p + 4 < n ? at + 4 * row : at;
        float32x4_t four[BLOCK_ROWS];
        UNROLL for (int q = 0; q < rows; q++) four[q] =
            vld1q_f32(weights + (size_t)q * ATTEND_POSITIONS);
        blocks_pv_step_0(acc, values, four, rows, load(at + row, half), scales);
        blocks_pv_step_1(acc, values, four, rows, load(at + 2 * row, half), scales);
        blocks_pv_step_2(acc, values, four, rows, load(at + 3 * row, half), scales);
        scales = vld1q_f32(d + (p + 4 < n ? p + 4 : p));
        blocks_pv_step_3(acc, values, four, rows, load(next, half), scales);
        at = next;
    }
    UNROLL for (int q = 0; q < rows; q++) UNROLL for (int v = 0; v < 4; v++)
        vst1q_f32(out + (size_t)q * stride + 4 * v, acc[q][v]);
}

/* ---- the types ------------------------------------------------------------------------------- */

typedef void blocks_qk_fn(const struct attend_split *s, const float *queries, uint32_t n,
                          float *out);
typedef void blocks_pv_fn(const struct attend_split *s, const float *weights, uint32_t n,
                          float *out);

#define BLOCKS_ROWS(type, rows)                                                                    \
    static void blocks_qk_##type##_##rows(const struct attend_split *s, const float *queries,      \
                                          uint32_t n, float *out) {                                \
        blocks_qk(s, queries, n, rows, out, blocks_##type, sizeof(struct type));                   \
    }                                                                                              \
    static void blocks_pv_##type##_##rows(const struct attend_split *s, const float *weights,      \
                                          uint32_t n, float *out) {                                \
        size_t row = s->width / BLOCK_VALUES * sizeof(struct type);                                \
        for (uint32_t b = 0; b < s->width / BLOCK_VALUES; b++) {                                   \
            const uint8_t *at = (const uint8_t *)s->values + b * sizeof(struct type);              \
            const float *d = blocks_scales(s) + b * ATTEND_POSITIONS;                              \
            float *to = out + b * BLOCK_VALUES;                                                    \
            size_t stride = attend_stride(s->width);                                               \
            blocks_pv_half(at, row, 0, d, weights, n, rows, to, stride, blocks_##type);            \
            blocks_pv_half(at, row, 1, d, weights, n, rows, to + 16, stride, blocks_##type);       \
        }                                                                                          \
    }
#define BLOCKS_TYPE(type)                                                                          \
    BLOCKS_ROWS(type, 1) BLOCKS_ROWS(type, 2) BLOCKS_ROWS(type, 3) BLOCKS_ROWS(type, 4)
BLOCKS_TYPE(q8_0)
BLOCKS_TYPE(q4_0)

#define BLOCKS_ENTRIES(what, type)                                                                 \
    { NULL, what##_##type##_1, what##_##type##_2, what##_##type##_3, what##_##type##_4 }
/* [is q4_0][rows] */
static blocks_qk_fn *const blocks_qk_rows[2][BLOCK_ROWS + 1] = {BLOCKS_ENTRIES(blocks_qk, q8_0),
                                                                BLOCKS_ENTRIES(blocks_qk, q4_0)};
static blocks_pv_fn *const blocks_pv_rows[2][BLOCK_ROWS + 1] = {BLOCKS_ENTRIES(blocks_pv, q8_0),
                                                                BLOCKS_ENTRIES(blocks_pv, q4_0)};

/* How many of n queries are taken next: such that all passes have about as many. */
static uint32_t blocks_next_rows(uint32_t n) {
    uint32_t passes = (n + BLOCK_ROWS - 1) / BLOCK_ROWS;
    return (n + passes - 1) / passes;
}

/* False: queries are too large. */
static bool blocks_run_keys(const struct attend_split *s, uint32_t first, uint32_t n) {
    size_t stride = attend_stride(s->width);
    for (uint32_t q = first; q < s->n_queries; q++)
        if (!(blocks_scale(s->tile + (q - first) * stride, s->queries + q * stride, BLOCK_UP,
                           s->width) < BLOCK_MOST))
            return false;
    blocks_read_scales(s, s->keys, (n + 1) / 2 * 2);
    for (uint32_t q = first, rows; q < s->n_queries; q += rows) {
        rows = blocks_next_rows(s->n_queries - q);
        blocks_qk_rows[s->type == DT_Q4_0][rows](s, s->tile + (q - first) * stride, n,
                                                 s->qk + (size_t)q * ATTEND_POSITIONS);
    }
    return true;
}

/* The first n positions, a multiple of four. */
static void blocks_run_values(const struct attend_split *s, uint32_t first, uint32_t n) {
    blocks_read_scales(s, s->values, n);
    for (uint32_t q = first, rows; q < s->n_queries; q += rows) {
        float *weights = s->qk + (size_t)q * ATTEND_POSITIONS;
        rows = blocks_next_rows(s->n_queries - q);
        for (uint32_t r = 0; r < rows; r++)
            blocks_scale(weights + r * ATTEND_POSITIONS, weights + r * ATTEND_POSITIONS, BLOCK_UP,
                         n);
        blocks_pv_rows[s->type == DT_Q4_0][rows](s, weights, n,
                                                 s->pv + q * (size_t)attend_stride(s->width));
    }
}
