/* kernels_neon_int8.h - products of packed rows with int8 activations, for SDOT and for SMMLA.
 *
 * kernels_neon_sdot.c and kernels_neon_mmla.c define K_STEP (4 or 8: the values of a row that the
 * instruction multiplies), TARGET, ISA and NEEDS, include this file and get `rows`, the kernels of
 * every type. Matrices are packed as kernels_neon_pack.h says: a group of 32 values of four weight
 * rows is expanded into eight vectors and multiplied with up to eight activation rows; for one or
 * two activation rows, all eight weight rows of a tile are expanded at once. For many, a tile is
 * expanded once for all of them.
 *
 * Sums of integers and scales become floats without a conversion (kernels_neon_scales.h), so in the
 * types of 256 values, with scales s and minimums m,
 *
 *   part = fma(s dot + s' dot', x.scale, part)
 *
 *   low = fma(m, x.scale * sum(x.q), low)
 *
 * for each group of a block, in q2_k for either half of it, and once a block
 *
 *   acc = fma(part, d, acc) - low * dmin
 *
 * |s dot + s' dot'| stays below 2^24: nothing is rounded before x.scale.
 *
 * Parts: kernels_neon_scales.h; the products of a group in kernels_neon_sdot.h or
 * kernels_neon_mmla.h; kernels_neon_many.h and, for SMMLA, kernels_neon_one.h for the numbers of
 * rows that it is worth to have code of their own. */
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/kernels_grid.h"
#include "backend/cpu/kernels_neon_pack.h"
#include "base/cpu.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    TILES = 16,   /* that activation rows are multiplied with at a time */
    MAX_ACTS = 8, /* rows at once */
    CHUNK = 8,    /* groups between visits to the sums: a block of 256 values */
    SEGMENT = 32, /* groups whose activations are interleaved, for all tiles */
    /* Rows that a tile stays expanded for: MANY at most, and not fewer than LEAST_MANY. */
    MANY = 64,
    LEAST_MANY = K_STEP == 8 ? 16 : 32,
};

#include "backend/cpu/kernels_neon_expand.h"

/* How a type is packed. A run is the values of a group that share a scale. */
struct format {
    enum dtype type;
    expand_fn *expand;
    int groups, runs;           /* of a block; scales in a group: 1 or 2 */
    int shift[2];               /* of a run's values: they are expanded times 2^shift */
    uint32_t half;              /* bytes of half a tile's group */
    uint32_t bytes, f16s, size; /* in a packed block: scales, d; and all */
    bool has_min;
    float d_factor; /* what d is multiplied with */
};

#include "backend/cpu/kernels_neon_scales.h"

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Activations of several rows are interleaved, once for all tiles. */
#if K_STEP == 8
/* A group of rows x and y as SMMLA takes it: eight values of x and eight of y in a vector. Its sums
 * are of two weight rows, a and b: [a.x a.y b.x b.y]. They stay in this order to the end, so scales
 * of activation rows are [x y x y]. */
struct interleaved {
    int8_t q[4][16];
    float scale[4], offset[4], half_offset[2][4];
    float unused[4]; /* pairs 128 bytes apart are in one bank of L1: one load a cycle (V1) */
};
_Static_assert(sizeof(struct interleaved) == 144, "LOAD_PAIR has its size");
enum { INTERLEAVED = 2 };
#else
/* A group of four rows, so that few instructions load them: either half of it row by row, and the
 * rows' scales as the lanes of a vector. */
struct interleaved {
    int8_t q[2][4][16];
    float scale[4], offset[4], half_offset[2][4];
};
enum { INTERLEAVED = 4 };
#endif

/* How many orders four weight rows come in: see of_weights. */
enum { ORDERS = K_STEP == 8 ? 2 : 1 };

INLINE bool are_interleaved(int acts) {
    return acts >= INTERLEAVED;
}

INLINE bool is_paired(int acts) {
    return K_STEP == 8 && are_interleaved(acts);
}

/* The rows of a call: groups of row r at `at + r * stride`; interleaved, those of all rows for each
 * group. */
struct rows {
    const struct act_group *at;
    size_t stride;
    const struct interleaved *interleaved;
    const struct twice *twice; /* of one row; see kernels_neon_one.h. NULL: not stored so */
};

INLINE const struct act_group *group_of(struct rows rows, int r, int g) {
    return rows.at + (size_t)r * rows.stride + g;
}

INLINE const struct interleaved *interleaved_of(struct rows rows, int r, int g, int acts) {
    return rows.interleaved + (size_t)g * (size_t)(acts / INTERLEAVED) + r / INTERLEAVED;
}

/* The factors for the vectors of row r, out of the four of interleaved rows: all of them, or the
 * row's lane. */
INLINE float32x4_t of_rows(const float *four, int r) {
    float32x4_t v = vld1q_f32(four);
    return K_STEP == 8 ? v : vdupq_n_f32(v[r % INTERLEAVED]);
}

INLINE float32x4_t scale_of_row(struct rows rows, int r, int g, int acts) {
    return are_interleaved(acts) ? of_rows(interleaved_of(rows, r, g, acts)->scale, r)
                                 : vdupq_n_f32(group_of(rows, r, g)->scale);
}

INLINE float32x4_t offset_of_row(struct rows rows, int r, int g, int acts) {
    return are_interleaved(acts) ? of_rows(interleaved_of(rows, r, g, acts)->offset, r)
                                 : vdupq_n_f32(group_of(rows, r, g)->offset);
}

INLINE float32x4_t half_offset_of_row(struct rows rows, int r, int g, int half, int acts) {
    return are_interleaved(acts) ? of_rows(interleaved_of(rows, r, g, acts)->half_offset[half], r)
                                 : vdupq_n_f32(group_of(rows, r, g)->half_offset[half]);
}

/* Values of four weight rows, for row r: in pairs, the even row's vectors have the first two weight
 * rows, and the odd one's the others. */
INLINE float32x4_t of_weights(float32x4_t v, int r, int acts) {
    if (!is_paired(acts))
        return v;
    return r % 2 ? vzip2q_f32(v, v) : vzip1q_f32(v, v);
}

/* Of each run. */
INLINE void in_order(const float32x4_t *v /* (2) */, int runs, int acts,
                     float32x4_t (*to)[ORDERS] /* (2) */) {
    UNROLL for (int run = 0; run < runs; run++) UNROLL for (int r = 0; r < ORDERS; r++) to[run][r] =
        of_weights(v[run], r, acts);
}

/* A group's sum for four weight rows, before the activations' scale. */
INLINE float32x4_t group_sum_of(const struct format *f, const int32x4_t *dot,
                                const float32x4_t (*s)[ORDERS], int r) {
    float32x4_t sum = sum_of(dot[0], f->shift[0]);
    if (f->groups > 1)
        sum = vmulq_f32(sum, s[0][r % ORDERS]);
    if (f->runs == 2)
        sum = vfmaq_f32(sum, sum_of(dot[1], f->shift[1]), s[1][r % ORDERS]);
    return sum;
}

#if K_STEP == 4
#include "backend/cpu/kernels_neon_sdot.h"
#else
#include "backend/cpu/kernels_neon_mmla.h"
#endif

/* Asks for what comes some bytes after a group of a tile: far ahead and into L2 on cores with
 * SMMLA (Neoverse V1: 27 GB/s where 1 KiB ahead into L1 gives 22, and 8 KiB ahead into L1 12), q8_0
 * into L3 (31 GB/s, 24 with L2); others keep what N1 is best with. */
INLINE void fetch_ahead(const uint8_t *at, uint32_t bytes) {
    UNROLL for (uint32_t i = 0; i < bytes; i += 64) {
        if (K_STEP == 8 && bytes > 256)
            __builtin_prefetch(at + 12 * 1024 + i, 0, 1);
        else if (K_STEP == 8)
            __builtin_prefetch(at + 12 * 1024 + i, 0, 2);
        else
            __builtin_prefetch(at + 1024 + i);
    }
}

/* The minimums of group g, for each run. */
INLINE void load_minimums(const struct format *f, struct half from, int g, int half,
                          float32x4_t *m /* (2) */) {
    const uint8_t *at = from.bytes + 2 * NEON_TILE * g;
    UNROLL for (int run = 0; run < f->runs; run++) m[run] =
        f->runs == 1 ? four_bytes(at + NEON_TILE, half)
                     : four_nibbles(at + NEON_TILE * run, half, 1);
}

/* What they take away, before dmin. */
INLINE void add_low(const struct format *f, const float32x4_t (*m)[ORDERS], struct rows rows, int g,
                    int acts, float32x4_t *low) {
    UNROLL for (int r = 0; r < acts; r++) {
        if (f->runs == 1) {
            low[r] = vfmaq_f32(low[r], m[0][r % ORDERS], offset_of_row(rows, r, g, acts));
        } else {
            low[r] = vfmaq_f32(low[r], m[0][r % ORDERS], half_offset_of_row(rows, r, g, 0, acts));
            low[r] = vfmaq_f32(low[r], m[1][r % ORDERS], half_offset_of_row(rows, r, g, 1, acts));
        }
    }
}

/* d of a block of 256 values and dmin, in order. */
struct block_scales {
    float32x4_t d[ORDERS], dmin[ORDERS];
};

INLINE struct block_scales scales_of_block(const struct format *f, struct half at, int half,
                                           int acts) {
    struct block_scales s;
    float32x4_t d = d_of(f, at, half);
    UNROLL for (int o = 0; o < ORDERS; o++) s.d[o] = of_weights(d, o, acts);
    if (f->has_min) {
        float32x4_t dmin = second_of(at, half);
        UNROLL for (int o = 0; o < ORDERS; o++) s.dmin[o] = of_weights(dmin, o, acts);
    }
    return s;
}

/* What a block of 256 values adds to the sums of half a tile. */
INLINE void add_scaled(const struct format *f, const struct block_scales *scales,
                       const float32x4_t *part, const float32x4_t *low, int acts,
                       float32x4_t *sums) {
    UNROLL for (int r = 0; r < acts; r++) {
        float32x4_t sum = vfmaq_f32(sums[r], part[r], scales->d[r % ORDERS]);
        if (f->has_min)
            sum = vfmsq_f32(sum, low[r], scales->dmin[r % ORDERS]);
        sums[r] = sum;
    }
}

INLINE void end_block(const struct format *f, struct half at, int half, const float32x4_t *part,
                      const float32x4_t *low, int acts, float32x4_t *sums) {
    struct block_scales scales = scales_of_block(f, at, half, acts);
    add_scaled(f, &scales, part, low, acts, sums);
}

/* A block of 256 values: `halves` half tiles from `first` on, for all rows.
 * Many rows have no registers to spare for their minimums: those are added up
 * before. */
INLINE TARGET void add_block(const struct format *f, const uint8_t *block, int first, int halves,
                             struct rows rows, int acts, float32x4_t (*sums)[MAX_ACTS]) {
    const bool is_apart = f->has_min && acts > 2;
    const uint32_t group_bytes = f->size / (uint32_t)f->groups;
    const struct half at = half_of(f, block, first);
    float32x4_t part[2][MAX_ACTS], low[2][MAX_ACTS];
    UNROLL for (int h = 0; h < halves; h++) UNROLL for (int r = 0; r < acts; r++) part[h][r] =
        low[h][r] = vdupq_n_f32(0);
    for (int g = 0; is_apart && g < f->groups; g++)
        UNROLL for (int h = 0; h < halves; h++) {
            float32x4_t loaded[2], m[2][ORDERS];
            load_minimums(f, at, g, h, loaded);
            in_order(loaded, f->runs, acts, m);
            add_low(f, m, rows, g, acts, low[h]);
        }
    for (int g = 0; g < f->groups; g++) {
        int8x16_t w[2][8];
        float32x4_t loaded[2], s[2][2][ORDERS], m[2][ORDERS], group_sums[2][MAX_ACTS];
        if (halves == 2)
            fetch_ahead(block + (uint32_t)g * group_bytes, group_bytes);
        UNROLL for (int h = 0; h < halves; h++) {
            f->expand(at.quants + (uint32_t)(2 * g + h) * f->half, w[h]);
            load_scales(f, at, g, h, loaded);
            in_order(loaded, f->runs, acts, s[h]);
        }
        multiply(f, w, s, rows, g, acts, group_sums);
        UNROLL for (int h = 0; h < halves; h++) {
            UNROLL for (int r = 0; r < acts; r++) part[h][r] =
                vfmaq_f32(part[h][r], group_sums[h][r], scale_of_row(rows, r, g, acts));
            if (f->has_min && !is_apart) {
                load_minimums(f, at, g, h, loaded);
                in_order(loaded, f->runs, acts, m);
                add_low(f, m, rows, g, acts, low[h]);
            }
        }
    }
    UNROLL for (int h = 0; h < halves; h++)
        end_block(f, at, h, part[h], low[h], acts, sums[first + h]);
}

/* What a block of 32 values adds to the sums of half a tile. d, m: in order. */
INLINE void add_group_sums(const struct format *f, const float32x4_t *group_sums,
                           const float32x4_t *d, const float32x4_t *m, struct rows rows, int g,
                           int acts, float32x4_t *sum) {
    UNROLL for (int r = 0; r < acts; r++) {
        float32x4_t scaled = vmulq_f32(group_sums[r], scale_of_row(rows, r, g, acts));
        sum[r] = vfmaq_f32(sum[r], scaled, d[r % ORDERS]);
        if (f->has_min)
            sum[r] = vfmaq_f32(sum[r], m[r % ORDERS], offset_of_row(rows, r, g, acts));
    }
}

/* `n` blocks of 32 values. */
INLINE TARGET void add_blocks(const struct format *f, const uint8_t *block, int n, int first,
                              int halves, struct rows rows, int acts,
                              float32x4_t (*sums)[MAX_ACTS]) {
    float32x4_t sum[2][MAX_ACTS];
    UNROLL for (int h = 0; h < halves; h++) UNROLL for (int r = 0; r < acts; r++) sum[h][r] =
        sums[first + h][r];
    for (int g = 0; g < n; g++, block += f->size) {
        int8x16_t w[2][8];
        const struct half at = half_of(f, block, first);
        if (halves == 2)
            fetch_ahead(block, f->size);
        float32x4_t none[2][2][ORDERS] = {{{vdupq_n_f32(0)}}}, group_sums[2][MAX_ACTS];
        UNROLL for (int h = 0; h < halves; h++) f->expand(at.quants + (uint32_t)h * f->half, w[h]);
        multiply(f, w, none, rows, g, acts, group_sums);
        UNROLL for (int h = 0; h < halves; h++) {
            float32x4_t loaded[2] = {d_of(f, at, h)}, ordered[2][ORDERS];
            if (f->has_min)
                loaded[1] = second_of(at, h);
            in_order(loaded, f->has_min ? 2 : 1, acts, ordered);
            add_group_sums(f, group_sums[h], ordered[0], ordered[1], rows, g, acts, sum[h]);
        }
    }
    UNROLL for (int h = 0; h < halves; h++) UNROLL for (int r = 0; r < acts; r++)
        sums[first + h][r] = sum[h][r];
}

struct tiles {
    const uint8_t *at;
    size_t bytes;           /* of one */
    uint32_t count, groups; /* groups: K / 32 */
};

INLINE const uint8_t *block_at(const struct format *f, struct tiles tiles, uint32_t tile,
                               uint32_t group) {
    return tiles.at + tile * tiles.bytes + group / (uint32_t)f->groups * f->size;
}

#include "backend/cpu/kernels_neon_many.h"
#if K_STEP == 8
#include "backend/cpu/kernels_neon_one.h"
#endif

/* ---- tiles ----------------------------------------------------------------------------------- */

/* `n` groups of one tile. */
INLINE TARGET void add_tile(const struct format *f, const uint8_t *at, uint32_t n, struct rows rows,
                            int acts, float32x4_t (*sums)[MAX_ACTS]) {
    const int halves = acts > 2 ? 1 : 2; /* more would not fit into the registers */
    const uint32_t step = f->groups > 1 || halves == 1 ? CHUNK : n;
    for (uint32_t g = 0; g < n; g += step) {
        struct rows from = {rows.at + g, rows.stride, NULL, NULL};
        if (are_interleaved(acts))
            from.interleaved = interleaved_of(rows, 0, (int)g, acts);
        int some = n - g < step ? (int)(n - g) : (int)step;
        uint32_t bytes = f->groups > 1 ? f->size : (uint32_t)some * f->size;
        for (int first = 0; first < 2; first += halves) {
            if (f->groups > 1)
                add_block(f, at, first, halves, from, acts, sums);
            else
                add_blocks(f, at, some, first, halves, from, acts, sums);
        }
        at += bytes;
    }
}

#if K_STEP == 8
/* One row: where it is not stored twice already, SEGMENT groups are, for all tiles. */
INLINE TARGET void add_tiles_of_one(const struct format *f, struct tiles tiles, struct rows rows,
                                    float32x4_t (*sums)[2][MAX_ACTS]) {
    struct twice some[SEGMENT];
    const uint32_t step = rows.twice ? tiles.groups : SEGMENT;
    for (uint32_t g = 0; g < tiles.groups; g += step) {
        uint32_t n = tiles.groups - g < step ? tiles.groups - g : step;
        const struct twice *x = rows.twice ? rows.twice : some;
        if (!rows.twice)
            store_twice(rows.at + g, n, some);
        for (uint32_t t = 0; t < tiles.count; t++)
            add_tile_of_one(f, block_at(f, tiles, t, g), n, x, sums[t]);
    }
}
#endif

/* One tile after the other, as memory has them: Neoverse cores read one stream at 19.6 GB/s a core
 * (N1) and eight side by side at 12.3. Rows are interleaved a segment at a time, for all tiles. */
INLINE TARGET void add_tiles(const struct format *f, struct tiles tiles, struct rows rows, int acts,
                             float32x4_t (*sums)[2][MAX_ACTS]) {
#if K_STEP == 8
    if (acts == 1) {
        add_tiles_of_one(f, tiles, rows, sums);
        return;
    }
#endif
    struct interleaved interleaved[SEGMENT * MAX_ACTS / INTERLEAVED];
    for (uint32_t g = 0; are_interleaved(acts) && g < tiles.groups; g += SEGMENT) {
        uint32_t n = tiles.groups - g < SEGMENT ? tiles.groups - g : SEGMENT;
        struct rows from = {rows.at + g, rows.stride, interleaved, NULL};
        const uint8_t *at = tiles.at + g / (uint32_t)f->groups * f->size;
        interleave(f, from, n, acts, interleaved);
        for (uint32_t t = 0; t < tiles.count; t++)
            add_tile(f, at + t * tiles.bytes, n, from, acts, sums[t]);
    }
    for (uint32_t t = 0; !are_interleaved(acts) && t < tiles.count; t++)
        add_tile(f, tiles.at + t * tiles.bytes, tiles.groups, rows, acts, sums[t]);
}

/* add_tiles for eight, four, two and one row: functions of their own, or
 * compiling takes long. */
typedef void add_fn(struct tiles tiles, struct rows rows, float32x4_t (*sums)[2][MAX_ACTS]);

/* Up to CHUNK groups of `acts` rows in eights, and of all tiles. */
typedef void add_many_fn(struct tiles tiles, uint32_t group, int n, struct rows rows, uint32_t acts,
                         float32x4_t (*sums)[TILES][2][MAX_ACTS]);

struct adders {
    add_fn *eight, *four, *two, *one;
    add_many_fn *many;
};

/* Some rows. Says how many. */
static uint32_t add_some(const struct adders *add, struct tiles tiles, struct rows rows,
                         uint32_t acts, float32x4_t (*sums)[2][MAX_ACTS]) {
    if (acts >= 8)
        return add->eight(tiles, rows, sums), 8;
    if (acts >= 4)
        return add->four(tiles, rows, sums), 4;
    if (acts >= 2)
        return add->two(tiles, rows, sums), 2;
    return add->one(tiles, rows, sums), 1;
}

static void store_sums(float32x4_t (*sums)[2][MAX_ACTS], uint32_t acts, uint32_t columns,
                       float *out, size_t out_stride) {
    for (uint32_t n = 0; n < columns; n += 4) {
        size_t lanes = columns - n < 4 ? columns - n : 4;
        for (uint32_t r = 0; r < acts; r++)
            memcpy(out + r * out_stride + n, &sums[n / 8][n / 4 % 2][r], lanes * sizeof *out);
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Whether that is less work than to expand a tile for each eight rows: with SMMLA always, as its
 * products of eight rows load what was expanded; with SDOT only where expanding takes long
 * (bench/cpu/mca.py).
 */
static bool stays_expanded(const struct format *f) {
    const bool has_grid = f->d_factor != 1 || f->type == DT_IQ3_S;
    return K_STEP == 8 ? true : f->runs == 2 || has_grid;
}

INLINE struct rows rows_from(const struct activations *acts, uint32_t r) {
    return (struct rows){acts->groups + r * stride_of(acts), stride_of(acts), NULL, NULL};
}

static void store_rows(float32x4_t (*sums)[2][MAX_ACTS], uint32_t tiles, uint32_t acts,
                       uint32_t columns, float *out, size_t out_stride) {
#if K_STEP == 8
    if (is_paired((int)acts))
        part_pairs(sums, tiles, acts);
#else
    (void)tiles;
#endif
    store_sums(sums, acts, columns, out, out_stride);
}

/* Rows from r on, in eights. Says how many. */
static uint32_t add_many(const struct adders *add, struct tiles tiles,
                         const struct activations *acts, uint32_t r, uint32_t columns, float *out,
                         size_t out_stride) {
    uint32_t rows = acts->n_rows - r < MANY ? (acts->n_rows - r) / MAX_ACTS * MAX_ACTS : MANY;
    float32x4_t sums[MANY / MAX_ACTS][TILES][2][MAX_ACTS];
    memset(sums, 0, rows / MAX_ACTS * sizeof *sums);
    for (uint32_t g = 0; g < tiles.groups; g += CHUNK) {
        int n = tiles.groups - g < CHUNK ? (int)(tiles.groups - g) : CHUNK;
        add->many(tiles, g, n, rows_from(acts, r), rows, sums);
    }
    for (uint32_t i = 0; i < rows; i += MAX_ACTS)
        store_rows(sums[i / MAX_ACTS], tiles.count, MAX_ACTS, columns, out + i * out_stride,
                   out_stride);
    return rows;
}

static void project(const struct format *f, const struct adders *add, const void *weights,
                    uint32_t first, uint32_t count, const struct activations *acts, float *out,
                    size_t out_stride) {
    struct tiles tiles = {.groups = acts->k / 32};
    tiles.bytes = (size_t)(tiles.groups / (uint32_t)f->groups) * f->size;
    tiles.at = (const uint8_t *)weights + first / NEON_TILE * tiles.bytes;
#if K_STEP == 8
    struct twice twice[MAX_TWICE];
    const bool is_stored = acts->n_rows % 2 && tiles.groups <= MAX_TWICE;
    if (is_stored) /* the last row has no other beside it */
        store_twice(rows_from(acts, acts->n_rows - 1).at, tiles.groups, twice);
#endif
    const uint32_t max = TILES * NEON_TILE;
    for (uint32_t n = 0; n < count; n += max, tiles.at += TILES * tiles.bytes) {
        uint32_t columns = count - n < max ? count - n : max;
        tiles.count = (columns + NEON_TILE - 1) / NEON_TILE;
        for (uint32_t r = 0, done; r < acts->n_rows; r += done) {
            float *to = out + r * out_stride + n;
            if (acts->n_rows - r >= LEAST_MANY && stays_expanded(f)) {
                done = add_many(add, tiles, acts, r, columns, to, out_stride);
                continue;
            }
            float32x4_t sums[TILES][2][MAX_ACTS];
            memset(sums, 0, sizeof sums);
            struct rows rows = rows_from(acts, r);
#if K_STEP == 8
            rows.twice = is_stored ? twice : NULL;
#endif
            done = add_some(add, tiles, rows, acts->n_rows - r, sums);
            store_rows(sums, tiles.count, done, columns, to, out_stride);
        }
    }
}

#define ADD(type, name, acts)                                                                      \
    static TARGET void add_##name##_##type(struct tiles tiles, struct rows rows,                   \
                                           float32x4_t(*sums)[2][MAX_ACTS]) {                      \
        add_tiles(&format_##type, tiles, rows, acts, sums);                                        \
    }

#define PROJECT_SCALED_D(TYPE, type, expand, runs, shift_0, shift_1, has_min, d_factor)            \
    static const struct format format_##type = {DT_##TYPE,                                         \
                                                expand,                                            \
                                                NEON_GROUPS_##type,                                \
                                                runs,                                              \
                                                {shift_0, shift_1},                                \
                                                NEON_HALF_##type,                                  \
                                                NEON_BYTES_##type,                                 \
                                                NEON_F16S_##type,                                  \
                                                NEON_SIZE_##type,                                  \
                                                has_min,                                           \
                                                d_factor};                                         \
    static uint64_t bytes_##type(uint32_t k, uint32_t n) {                                         \
        return neon_packed_bytes(DT_##TYPE, k, n);                                                 \
    }                                                                                              \
    static void pack_##type(const void *from, uint32_t k, uint32_t n, void *to) {                  \
        neon_pack(DT_##TYPE, K_STEP, from, k, n, to);                                              \
    }                                                                                              \
    ADD(type, eight, 8)                                                                            \
    ADD(type, four, 4)                                                                             \
    ADD(type, two, 2)                                                                              \
    ADD(type, one, 1)                                                                              \
    static TARGET void add_many_##type(struct tiles tiles, uint32_t group, int n,                  \
                                       struct rows rows, uint32_t acts,                            \
                                       float32x4_t(*sums)[TILES][2][MAX_ACTS]) {                   \
        add_many_tiles(&format_##type, tiles, group, n, rows, acts, sums);                         \
    }                                                                                              \
    static void project_##type(const void *weights, uint32_t first, uint32_t count,                \
                               const struct activations *acts, float *out, size_t out_stride) {    \
        static const struct adders add = {add_eight_##type, add_four_##type, add_two_##type,       \
                                          add_one_##type, add_many_##type};                        \
        project(&format_##type, &add, weights, first, count, acts, out, out_stride);               \
    }

#define PROJECT(TYPE, type, expand, runs, shift_0, shift_1, has_min)                               \
    PROJECT_SCALED_D(TYPE, type, expand, runs, shift_0, shift_1, has_min, 1)
PROJECT(Q4_0, q4_0, expand_4_signed, 1, 4, 4, false)
PROJECT(Q4_1, q4_1, expand_4, 1, 0, 0, true)
PROJECT(Q5_0, q5_0, expand_5_signed, 1, 3, 3, false)
PROJECT(Q5_1, q5_1, expand_5, 1, 0, 0, true)
PROJECT(Q8_0, q8_0, expand_8, 1, 0, 0, false)
PROJECT(Q2_K, q2_k, expand_2, 2, 0, 2, true)
PROJECT(Q3_K, q3_k, expand_3, 2, 5, 5, false)
PROJECT(Q4_K, q4_k, expand_4, 1, 0, 0, true)
PROJECT(Q5_K, q5_k, expand_5, 1, 0, 0, true)
PROJECT(Q6_K, q6_k, expand_6, 2, 2, 2, false)
PROJECT(IQ4_NL, iq4_nl, expand_iq4, 1, 0, 0, false)
PROJECT(IQ4_XS, iq4_xs, expand_iq4, 1, 0, 0, false)
PROJECT(MXFP4, mxfp4, expand_mxfp4, 1, 0, 0, false)
PROJECT_SCALED_D(IQ2_XXS, iq2_xxs, expand_iq2_xxs, 1, 0, 0, false, 0.125f)
PROJECT_SCALED_D(IQ2_XS, iq2_xs, expand_iq2_xs, 2, 0, 0, false, 0.125f)
PROJECT_SCALED_D(IQ2_S, iq2_s, expand_iq2_s, 2, 0, 0, false, 0.125f)
PROJECT_SCALED_D(IQ3_XXS, iq3_xxs, expand_iq3_xxs, 1, 0, 0, false, 0.25f)
PROJECT(IQ3_S, iq3_s, expand_iq3_s, 1, 0, 0, false)
PROJECT_SCALED_D(IQ1_S, iq1_s, expand_iq1_s, 1, 0, 0, false, 0.125f)
PROJECT_SCALED_D(IQ1_M, iq1_m, expand_iq1_m, 2, 0, 0, false, 0.125f)

#define INT8_ROW(TYPE, type)                                                                       \
    {#type " " ISA, DT_##TYPE, false, NEEDS, NEON_TILE, bytes_##type, pack_##type, project_##type},

static const struct kernel rows[] = {FOR_EACH_FAST_TYPE(INT8_ROW) FOR_EACH_GRID_TYPE(INT8_ROW)};
