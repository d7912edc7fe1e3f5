/* kernels_x86.h - int8 products on x86: the body, for one instruction set.
 *
 * T weight rows are the T lanes of a vector; four values of a row are the bytes of its lane
 * (kernels_pack.h). For each group of 32 along K the quants are expanded into eight vectors,
 * which stay in registers while up to eight activation rows pass by, or, for sixteen rows and more,
 * are stored for up to 64 of them:
 *
 *   dot = -bias * sum(x.q) + w[0] x.q[0..3] + ... + w[7] x.q[28..31]      exact
 *   acc = fma(f32(dot), w.scale * x.scale, acc)
 *   acc = fma(-w.min, x.scale * sum(x.q), acc)                            types with a minimum
 *
 * The instructions multiply unsigned by signed bytes, so weights are kept with a bias. Types with a
 * scale for 16 values make two dots of four. Bytes read per call: the packed tiles once for every
 * eight activation rows, or 64, from memory the first time, then from L2.
 *
 * Included by kernels_avx2.c, kernels_avx512.c and kernels_avx512_vnni.c after
 * kernels_x86_expand.h. They first define TARGET, V_FMA(a, b, c), V_FNMA(a, b, c) (c - a b)
 *   dot_rows                        the integer part, of DOT_FEW rows, or of DOT_MANY where a tile
 *                                   was expanded before
 * and get project_<type> for every type. */

enum { TILES = 8, MAX_ACTS = 8 };

/* ---- products -------------------------------------------------------------------------------- */

/* The f32 part of run h. */
INLINE VEC add_run(const struct format *f, VEC scale, VEC min, const struct act_group *a, int h,
                   VEC dot, VEC acc) {
    acc = V_FMA(dot, scale * V_SET(a->scale), acc);
    if (!f->has_min)
        return acc;
    return V_FNMA(min, V_SET(f->runs == 1 ? a->offset : a->half_offset[h]), acc);
}

/* A group of n rows, `together` of them at a time. */
INLINE void add_rows(const struct format *f, const struct expanded *w, const struct act_group *rows,
                     size_t stride, int n, int together, VEC *sums) {
    UNROLL for (int r = 0; r < n; r += together, rows += (size_t)together * stride) {
        const int some = n - r < together ? n - r : together;
        UNROLL for (int h = 0; h < f->runs; h++) {
            INTS dot[MAX_ACTS];
            dot_rows(f, w, rows, stride, some, h, dot);
            UNROLL for (int i = 0; i < some; i++) sums[r + i] =
                add_run(f, w->scale[h], w->min[h], rows + (size_t)i * stride, h, f32_of(dot[i]),
                        sums[r + i]);
        }
    }
}

/* Asks for this group's share of the block that the tile, or the one in its place among the next
 * tiles, comes to later: 19 KiB of q4_k at T = 16 wait in L1 while the other tiles have their turn.
 */
INLINE void fetch_ahead(const struct format *f, const uint8_t *later, int g) {
    const uint32_t share = f->block_bytes / f->groups;
    const uint8_t *at = later + (uint32_t)g * share;
    UNROLL for (uint32_t i = 0; i < share; i += 64) _mm_prefetch((const char *)at + i, _MM_HINT_T0);
}

/* One group of a tile and `acts` rows, a constant where this is inlined. */
INLINE void add_group(const struct format *f, const uint8_t *block, const uint8_t *later, int g,
                      const struct act_group *rows, size_t stride, int acts, VEC *sums) {
    struct expanded w;
    fetch_ahead(f, later, g);
    f->expand(block, g, &w);
    add_rows(f, &w, rows, stride, acts, DOT_FEW, sums);
}

struct tiles {
    const uint8_t *at;
    size_t bytes;           /* of one */
    size_t to_next;         /* bytes to the tiles after these; in the last columns, of a tile */
    uint32_t count, groups; /* groups: K / 32 */
};

/* Some tiles and `acts` rows. Tiles take turns group by group, so memory is read in as many
 * streams: a core of Sapphire Rapids reads 8 GB/s in one stream, 18 in eight. Measured for q4_k
 * with AVX-512: one tile at a time 7.1 GB/s, eight by turns 7.4, and with fetch_ahead 18.5. */
INLINE void add_tiles(const struct format *f, struct tiles tiles, const struct act_group *rows,
                      size_t stride, int acts, VEC (*sums)[MAX_ACTS]) {
    const uint32_t ahead = f->groups == 1 ? 2 : 1; /* blocks; the short ones come up too soon */
    for (uint32_t at = 0; at < tiles.groups; tiles.at += f->block_bytes) {
        bool is_end = at + ahead * f->groups >= tiles.groups;
        size_t later = ahead * f->block_bytes + (is_end ? tiles.to_next - tiles.bytes : 0);
        for (uint32_t g = 0; g < f->groups; g++, at++)
            for (uint32_t t = 0; t < tiles.count; t++) {
                const uint8_t *block = tiles.at + t * tiles.bytes;
                add_group(f, block, block + later, (int)g, rows + at, stride, acts, sums[t]);
            }
    }
}

/* The same with up to eight rows; says with how many. */
INLINE uint32_t add_some(const struct format *f, struct tiles tiles, const struct act_group *rows,
                         size_t stride, uint32_t acts, VEC (*sums)[MAX_ACTS]) {
    if (acts >= 8)
        return add_tiles(f, tiles, rows, stride, 8, sums), 8;
    if (acts >= 6)
        return add_tiles(f, tiles, rows, stride, 6, sums), 6;
    if (acts >= 4)
        return add_tiles(f, tiles, rows, stride, 4, sums), 4;
    if (acts >= 3)
        return add_tiles(f, tiles, rows, stride, 3, sums), 3;
    if (acts >= 2)
        return add_tiles(f, tiles, rows, stride, 2, sums), 2;
    return add_tiles(f, tiles, rows, stride, 1, sums), 1;
}

/* A whole vector but for the matrix's last rows. */
INLINE void store_lanes(float *out, const VEC *sum, size_t lanes) {
    if (lanes == TILE)
        memcpy(out, sum, sizeof *sum);
    else
        memcpy(out, sum, lanes * sizeof *out);
}

/* Of some tiles' sums, (tiles, of_tile), the first `rows` of each. */
static TARGET void store_sums(const VEC *sums, uint32_t of_tile, uint32_t rows, uint32_t columns,
                              float *out, size_t out_stride) {
    for (uint32_t t = 0; t * TILE < columns; t++, sums += of_tile) {
        size_t lanes = columns - t * TILE < TILE ? columns - t * TILE : TILE;
        for (uint32_t r = 0; r < rows; r++)
            store_lanes(out + r * out_stride + t * TILE, &sums[r], lanes);
    }
}

/* Up to TILES tiles and all rows, from row `from` on. */
INLINE void project_tiles(const struct format *f, struct tiles tiles, uint32_t columns,
                          uint32_t from, const struct activations *acts, float *out,
                          size_t out_stride) {
    for (uint32_t r = from, done; r < acts->n_rows; r += done) {
        VEC sums[TILES][MAX_ACTS];
        memset(sums, 0, sizeof sums);
        const struct act_group *rows = acts->groups + r * stride_of(acts);
        done = add_some(f, tiles, rows, stride_of(acts), acts->n_rows - r, sums);
        store_sums(sums[0], MAX_ACTS, done, columns, out + r * out_stride, out_stride);
    }
}

/* ---- many rows ------------------------------------------------------------------------------ */

enum {
    MANY_LEAST = 16, /* rows that are worth expanding a tile into memory */
    MANY_ROWS = 64,  /* rows at most that a group is expanded for */
    MANY_GROUPS = 4, /* groups that are expanded in one go: 16 KiB of activations stay in L1 */
    MANY_TILES = 4,  /* tiles that take turns */
    MANY_AHEAD = 8,  /* groups from what is expanded to what is fetched */
};

/* Groups [at, at + n) of a tile, without the weights' bias if they are to be signed. */
INLINE void expand_groups(const struct format *f, const uint8_t *tile, uint32_t at, int n,
                          bool is_signed, struct expanded *to) {
    const uint8_t *block = tile + at / f->groups * f->block_bytes;
    for (int i = 0; i < n; i++, to++) {
        struct expanded w;
        int g = (int)((at + (uint32_t)i) % f->groups);
        f->expand(block, g, &w);
        UNROLL for (int j = 0; j < 8; j++) to->w[j] =
            is_signed && f->bias_log2 ? bytes_less(w.w[j], 1 << f->bias_log2) : w.w[j];
        UNROLL for (int h = 0; h < f->runs; h++) {
            to->scale[h] = w.scale[h];
            if (f->has_min)
                to->min[h] = w.min[h];
        }
        block += g + 1 == (int)f->groups ? f->block_bytes : 0;
    }
}

/* Asks for a group of a tile, or, past its end, of the one in its place among the next tiles. */
INLINE void fetch_group(const struct format *f, const struct tiles *tiles, uint32_t t,
                        uint32_t group) {
    const uint8_t *tile = tiles->at + t * tiles->bytes;
    if (group >= tiles->groups) {
        group -= tiles->groups;
        tile += tiles->to_next;
    }
    fetch_ahead(f, tile + group / f->groups * f->block_bytes, (int)(group % f->groups));
}

/* n expanded groups and eight rows. */
INLINE void add_expanded(const struct format *f, const struct expanded *expanded, int n,
                         const struct act_group *rows, size_t stride, VEC *sums) {
    VEC acc[MAX_ACTS];
    UNROLL for (int r = 0; r < MAX_ACTS; r++) acc[r] = sums[r];
    for (int i = 0; i < n; i++)
        add_rows(f, expanded + i, rows + i, stride, MAX_ACTS, DOT_MANY, acc);
    UNROLL for (int r = 0; r < MAX_ACTS; r++) sums[r] = acc[r];
}

/* Some tiles and `batch` rows, a multiple of MAX_ACTS: each group is expanded once for all of them.
 */
INLINE void project_expanded(const struct format *f, struct tiles tiles, uint32_t columns,
                             const struct act_group *rows, size_t stride, uint32_t batch,
                             float *out, size_t out_stride) {
    VEC sums[MANY_TILES][MANY_ROWS];
    struct expanded expanded[MANY_GROUPS];
    memset(sums, 0, sizeof sums);
    for (uint32_t at = 0; at < tiles.groups; at += MANY_GROUPS) {
        int n = tiles.groups - at < MANY_GROUPS ? (int)(tiles.groups - at) : MANY_GROUPS;
        for (uint32_t t = 0; t < tiles.count; t++) {
            expand_groups(f, tiles.at + t * tiles.bytes, at, n, false, expanded);
            for (uint32_t i = 0; i < MANY_GROUPS; i++)
                fetch_group(f, &tiles, t, at + MANY_AHEAD + i);
            for (uint32_t r = 0; r < batch; r += MAX_ACTS)
                add_expanded(f, expanded, n, rows + r * stride + at, stride, sums[t] + r);
        }
    }
    store_sums(sums[0], MANY_ROWS, batch, columns, out, out_stride);
}

INLINE struct tiles tiles_from(const struct format *f, const void *weights, uint32_t first,
                               uint32_t k) {
    struct tiles tiles = {.bytes = (size_t)(k / 32 / f->groups) * f->block_bytes, .groups = k / 32};
    tiles.at = (const uint8_t *)weights + first / TILE * tiles.bytes;
    return tiles;
}

typedef void project_many_fn(const struct format *f, struct tiles tiles, uint32_t columns,
                             const struct act_group *rows, size_t stride, uint32_t batch,
                             float *out, size_t out_stride);

/* The first `many` rows by a function for many, MANY_ROWS at a time, the others eight by eight. */
INLINE void project_rows(const struct format *f, project_many_fn *project_many, uint32_t many,
                         const void *weights, uint32_t first, uint32_t count,
                         const struct activations *acts, float *out, size_t out_stride) {
    struct tiles tiles = tiles_from(f, weights, first, acts->k);
    const size_t stride = stride_of(acts);
    const uint32_t step = (many ? MANY_TILES : TILES) * TILE;
    for (uint32_t n = 0; n < count; n += step, tiles.at += step / TILE * tiles.bytes) {
        uint32_t columns = count - n < step ? count - n : step;
        tiles.count = (columns + TILE - 1) / TILE;
        tiles.to_next = columns < count - n ? step / TILE * tiles.bytes : tiles.bytes;
        for (uint32_t r = 0; r < many; r += MANY_ROWS)
            project_many(f, tiles, columns, acts->groups + r * stride, stride,
                         many - r < MANY_ROWS ? many - r : MANY_ROWS, out + r * out_stride + n,
                         out_stride);
        project_tiles(f, tiles, columns, many, acts, out + n, out_stride);
    }
}

INLINE void project(const struct format *f, const void *weights, uint32_t first, uint32_t count,
                    const struct activations *acts, float *out, size_t out_stride) {
    uint32_t many = acts->n_rows < MANY_LEAST ? 0 : acts->n_rows / MAX_ACTS * MAX_ACTS;
    project_rows(f, project_expanded, many, weights, first, count, acts, out, out_stride);
}

/* X(TYPE, type, runs, bias_log2, has_min, max): max is the largest stored weight. */
/* clang-format off */
#define FORMATS(X)                                                                                 \
    X(Q4_0,   q4_0,   1, 3, false, 15)                                                             \
    X(Q4_1,   q4_1,   1, 0, true,  15)                                                             \
    X(Q5_0,   q5_0,   1, 4, false, 31)                                                             \
    X(Q5_1,   q5_1,   1, 0, true,  31)                                                             \
    X(Q8_0,   q8_0,   1, BYTE_BIAS_LOG2, false, 255)                                              \
    X(Q2_K,   q2_k,   2, 0, true,  3)                                                              \
    X(Q3_K,   q3_k,   2, 2, false, 7)                                                              \
    X(Q4_K,   q4_k,   1, 0, true,  15)                                                             \
    X(Q5_K,   q5_k,   1, 0, true,  31)                                                             \
    X(Q6_K,   q6_k,   2, 5, false, 63)                                                             \
    X(IQ4_NL, iq4_nl, 1, BYTE_BIAS_LOG2, false, 255)                                              \
    X(IQ4_XS, iq4_xs, 1, BYTE_BIAS_LOG2, false, 255)                                              \
    X(MXFP4,  mxfp4,  1, 4, false, 28)                                                             \
    X(IQ2_XXS, iq2_xxs, 1, 6, false, 107)                                                          \
    X(IQ2_XS,  iq2_xs,  2, 6, false, 107)                                                          \
    X(IQ2_S,   iq2_s,   2, 6, false, 107)                                                          \
    X(IQ3_XXS, iq3_xxs, 1, 6, false, 126)                                                          \
    X(IQ3_S,   iq3_s,   1, 6, false, 79)                                                           \
    X(IQ1_S,   iq1_s,   1, 4, false, 25)                                                           \
    X(IQ1_M,   iq1_m,   2, 4, false, 25)
/* clang-format on */

#define PROJECT(TYPE, type, runs, bias_log2, has_min, max)                                         \
    static const struct format format_##type = {expand_##type,                                     \
                                                PACK_GROUPS_##type,                                \
                                                TILE * PACK_SIZE_##type,                           \
                                                runs,                                              \
                                                bias_log2,                                         \
                                                has_min,                                           \
                                                max};                                              \
    static uint64_t bytes_##type(uint32_t k, uint32_t n) {                                         \
        return packed_bytes(DT_##TYPE, (struct packing){TILE, BYTE_FLIP}, k, n);                   \
    }                                                                                              \
    static void pack_##type(const void *from, uint32_t k, uint32_t n, void *to) {                  \
        pack_rows(DT_##TYPE, (struct packing){TILE, BYTE_FLIP}, from, k, n, to);                   \
    }                                                                                              \
    static TARGET void project_##type(const void *weights, uint32_t first, uint32_t count,         \
                                      const struct activations *acts, float *out,                  \
                                      size_t out_stride) {                                         \
        project(&format_##type, weights, first, count, acts, out, out_stride);                     \
    }
FORMATS(PROJECT)
#undef PROJECT
