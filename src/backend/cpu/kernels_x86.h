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
 * Included by kernels_avx2.c and kernels_avx512.c, which first define
 *   TILE, TARGET, VEC, V_FMA(a, b, c), V_FNMA(a, b, c) (c - a b), V_SET(x)
 *   INTS                            a vector of integers, T lanes of four bytes
 *   ints_load, bits_at, add_bits, look_up, widen_u8, widen_i8, half_load, f32_of
 *   grid_4, grid_8, negate          look-ups in kernels_grid.h, and signs
 *   dot_rows                        the integer part, of DOT_FEW rows, or of DOT_MANY where a tile
 *                                   was expanded before; it uses kernels_x86_format.h
 *   BYTE_BIAS_LOG2, BYTE_FLIP       the bias of types whose quants are whole bytes, and the same as
 *                                   a bit to flip
 * and gets project_<type> for every type. */

enum { TILES = 8, MAX_ACTS = 8 };

/* ---- expanding a group -------------------------------------------------------------------- */

#define QUANTS(block, i) ints_load((block) + 4 * TILE * (i))
#define HALF(type, block, i) half_load((block) + TILE * (PACK_HALVES_##type + 2 * (i)))
#define BYTES(type, block, i) ((block) + TILE * (PACK_BYTES_##type + (i)))

/* The 16 bytes of the 32-value types: low nibbles, then high ones. */
INLINE void expand_nibbles(const uint8_t *quants, INTS *w) {
    UNROLL for (int j = 0; j < 4; j++) {
        w[j] = bits_at(QUANTS(quants, j), 0, 0x0f0f0f0f);
        w[j + 4] = bits_at(QUANTS(quants, j), 4, 0x0f0f0f0f);
    }
}

INLINE void add_fifth_bits(const uint8_t *words, INTS *w) {
    INTS bits = ints_load(words);
    UNROLL for (int j = 0; j < 8; j++) w[j] = add_bits(w[j], bits, 4 - j, 0x10101010);
}

INLINE void look_up_all(const uint8_t *values, INTS *w) {
    UNROLL for (int j = 0; j < 8; j++) w[j] = look_up(values, w[j]);
}

INLINE void expand_q4_0(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    expand_nibbles(block, out->w);
    out->scale[0] = HALF(q4_0, block, 0);
}

INLINE void expand_q4_1(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    expand_nibbles(block, out->w);
    out->scale[0] = HALF(q4_1, block, 0);
    out->min[0] = -HALF(q4_1, block, 1);
}

INLINE void expand_q5_0(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    expand_nibbles(block, out->w);
    add_fifth_bits(block + TILE * PACK_WORDS_q5_0, out->w);
    out->scale[0] = HALF(q5_0, block, 0);
}

INLINE void expand_q5_1(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    expand_nibbles(block, out->w);
    add_fifth_bits(block + TILE * PACK_WORDS_q5_1, out->w);
    out->scale[0] = HALF(q5_1, block, 0);
    out->min[0] = -HALF(q5_1, block, 1);
}

INLINE void expand_q8_0(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    UNROLL for (int j = 0; j < 8; j++) out->w[j] = QUANTS(block, j);
    out->scale[0] = HALF(q8_0, block, 0);
}

/* The value of every iq4 nibble, with the bias. */
#define IQ4(x) (uint8_t)((x) ^ BYTE_FLIP)
static const uint8_t iq4_values[16] = {IQ4(-127), IQ4(-104), IQ4(-83), IQ4(-65), IQ4(-49), IQ4(-35),
                                       IQ4(-22),  IQ4(-10),  IQ4(1),   IQ4(13),  IQ4(25),  IQ4(38),
                                       IQ4(53),   IQ4(69),   IQ4(89),  IQ4(113)};
#undef IQ4

INLINE void expand_iq4_nl(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    expand_nibbles(block, out->w);
    look_up_all(iq4_values, out->w);
    out->scale[0] = HALF(iq4_nl, block, 0);
}

INLINE void expand_iq4_xs(const uint8_t *block, int g, struct expanded *out) {
    expand_nibbles(block + 16 * TILE * g, out->w);
    look_up_all(iq4_values, out->w);
    out->scale[0] = HALF(iq4_xs, block, 0) * f32_of(widen_i8(BYTES(iq4_xs, block, g)));
}

INLINE void expand_mxfp4(const uint8_t *block, int g, struct expanded *out) {
    static const uint8_t values[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                       16, 15, 14, 13, 12, 10, 8,  4}; /* twice the value, + 16 */
    float scale[TILE];
    (void)g;
    expand_nibbles(block, out->w);
    look_up_all(values, out->w);
    for (int row = 0; row < TILE; row++)
        scale[row] = mxfp4_scale(BYTES(mxfp4, block, 0)[row]);
    memcpy(&out->scale[0], scale, sizeof scale);
}

INLINE void expand_q2_k(const uint8_t *block, int g, struct expanded *out) {
    UNROLL for (int j = 0; j < 8; j++) out->w[j] =
        bits_at(QUANTS(block, 8 * (g / 4) + j), 2 * (g % 4), 0x03030303);
    UNROLL for (int h = 0; h < 2; h++) {
        INTS both = widen_u8(BYTES(q2_k, block, 2 * g + h));
        out->scale[h] = HALF(q2_k, block, 0) * f32_of(bits_at(both, 0, 15));
        out->min[h] = HALF(q2_k, block, 1) * f32_of(bits_at(both, 4, 15));
    }
}

INLINE void expand_q3_k(const uint8_t *block, int g, struct expanded *out) {
    UNROLL for (int j = 0; j < 8; j++) {
        INTS low = bits_at(QUANTS(block, 8 * (g / 4) + j), 2 * (g % 4), 0x03030303);
        out->w[j] = add_bits(low, QUANTS(block, 16 + j), 2 - g, 0x04040404);
    }
    UNROLL for (int h = 0; h < 2; h++) out->scale[h] =
        HALF(q3_k, block, 0) * f32_of(widen_i8(BYTES(q3_k, block, 2 * g + h)));
}

INLINE void expand_q4_k(const uint8_t *block, int g, struct expanded *out) {
    UNROLL for (int j = 0; j < 8; j++) out->w[j] =
        bits_at(QUANTS(block, 8 * (g / 2) + j), 4 * (g % 2), 0x0f0f0f0f);
    out->scale[0] = HALF(q4_k, block, 0) * f32_of(widen_u8(BYTES(q4_k, block, g)));
    out->min[0] = HALF(q4_k, block, 1) * f32_of(widen_u8(BYTES(q4_k, block, 8 + g)));
}

INLINE void expand_q5_k(const uint8_t *block, int g, struct expanded *out) {
    UNROLL for (int j = 0; j < 8; j++) {
        INTS low = bits_at(QUANTS(block, 8 * (g / 2) + j), 4 * (g % 2), 0x0f0f0f0f);
        out->w[j] = add_bits(low, QUANTS(block, 32 + j), 4 - g, 0x10101010);
    }
    out->scale[0] = HALF(q5_k, block, 0) * f32_of(widen_u8(BYTES(q5_k, block, g)));
    out->min[0] = HALF(q5_k, block, 1) * f32_of(widen_u8(BYTES(q5_k, block, 8 + g)));
}

INLINE void expand_q6_k(const uint8_t *block, int g, struct expanded *out) {
    int half = g / 4, run = g % 4;
    UNROLL for (int j = 0; j < 8; j++) {
        INTS low = QUANTS(block, 16 * half + 8 * (run % 2) + j);
        low = bits_at(low, 4 * (run / 2), 0x0f0f0f0f);
        out->w[j] = add_bits(low, QUANTS(block, 32 + 8 * half + j), 4 - 2 * run, 0x30303030);
    }
    UNROLL for (int h = 0; h < 2; h++) out->scale[h] =
        HALF(q6_k, block, 0) * f32_of(widen_i8(BYTES(q6_k, block, 2 * g + h)));
}

/* Types with a grid. Four indices of eight values, or eight of four; a bit a sign. */

INLINE void negate_all(INTS *w, INTS signs) {
    UNROLL for (int j = 0; j < 8; j++) w[j] = negate(w[j], signs, j);
}

/* Sevens of sign bits, a byte each, and the eighths that make the number of minus signs even. */
INLINE INTS even_signs(INTS sevens) {
    static const uint8_t odd[16] = {0, 128, 128, 0, 128, 0, 0, 128, 128, 0, 0, 128, 0, 128, 128, 0};
    INTS nibbles = bits_at(sevens ^ bits_at(sevens, 4, 0x0f0f0f0f), 0, 0x0f0f0f0f);
    return sevens | look_up(odd, nibbles);
}

/* Those of iq2_xxs and iq3_xxs: the sevens stand side by side. */
INLINE INTS side_by_side(INTS rest) {
    INTS sevens = bits_at(rest, 0, 0x7f);
    UNROLL for (int i = 1; i < 4; i++) sevens = add_bits(sevens, rest, i, 0x7f << 8 * i);
    return even_signs(sevens);
}

INLINE void expand_iq2_xxs(const uint8_t *block, int g, struct expanded *out) {
    INTS indices = QUANTS(block, 2 * g), rest = QUANTS(block, 2 * g + 1);
    UNROLL for (int i = 0; i < 4; i++)
        grid_8(kernel_grids.iq2_xxs, bits_at(indices, 8 * i, 255), out->w + 2 * i);
    negate_all(out->w, side_by_side(rest));
    out->scale[0] = HALF(iq2_xxs, block, 0) * (V_SET(0.5f) + f32_of(bits_at(rest, 28, 15)));
    out->scale[0] = out->scale[0] * V_SET(0.25f);
}

/* The scales of iq2_xs and iq2_s: two in a byte. */
INLINE void scales_iq2(VEC d, INTS both, struct expanded *out) {
    UNROLL for (int h = 0; h < 2; h++) out->scale[h] =
        d * (V_SET(0.5f) + f32_of(bits_at(both, 4 * h, 15))) * V_SET(0.25f);
}

INLINE void expand_iq2_xs(const uint8_t *block, int g, struct expanded *out) {
    INTS two[2] = {QUANTS(block, 2 * g), QUANTS(block, 2 * g + 1)};
    UNROLL for (int i = 0; i < 4; i++)
        grid_8(kernel_grids.iq2_xs, bits_at(two[i / 2], 16 * (i % 2), 511), out->w + 2 * i);
    INTS sevens = add_bits(bits_at(two[0], 9, 0x7f), two[0], -17, 0x7f00);
    sevens = add_bits(add_bits(sevens, two[1], 7, 0x7f0000), two[1], -1, 0x7f000000);
    negate_all(out->w, even_signs(sevens));
    scales_iq2(HALF(iq2_xs, block, 0), widen_u8(BYTES(iq2_xs, block, g)), out);
}

INLINE void expand_iq2_s(const uint8_t *block, int g, struct expanded *out) {
    INTS low = QUANTS(block, g), high = widen_u8(BYTES(iq2_s, block, g));
    UNROLL for (int i = 0; i < 4; i++) {
        INTS index = add_bits(bits_at(low, 8 * i, 255), high, 8 - 2 * i, 0x300);
        grid_8(kernel_grids.iq2_s, index, out->w + 2 * i);
    }
    negate_all(out->w, QUANTS(block, 8 + g));
    scales_iq2(HALF(iq2_s, block, 0), widen_u8(BYTES(iq2_s, block, 8 + g)), out);
}

INLINE void expand_iq3_xxs(const uint8_t *block, int g, struct expanded *out) {
    INTS rest = QUANTS(block, 16 + g);
    UNROLL for (int j = 0; j < 8; j++) out->w[j] =
        grid_4(kernel_grids.iq3_xxs, bits_at(QUANTS(block, 2 * g + j / 4), 8 * (j % 4), 255));
    negate_all(out->w, side_by_side(rest));
    out->scale[0] = HALF(iq3_xxs, block, 0) * (V_SET(0.5f) + f32_of(bits_at(rest, 28, 15)));
    out->scale[0] = out->scale[0] * V_SET(0.5f);
}

/* 2 v + 1, a whole number. */
INLINE VEC twice_and_one(INTS v) {
    VEC x = f32_of(v);
    return x + x + V_SET(1.0f);
}

INLINE void expand_iq3_s(const uint8_t *block, int g, struct expanded *out) {
    INTS high = widen_u8(BYTES(iq3_s, block, g));
    UNROLL for (int j = 0; j < 8; j++) {
        INTS low = bits_at(QUANTS(block, 2 * g + j / 4), 8 * (j % 4), 255);
        out->w[j] = grid_4(kernel_grids.iq3_s, add_bits(low, high, 8 - j, 0x100));
    }
    negate_all(out->w, QUANTS(block, 16 + g));
    INTS scale = bits_at(widen_u8(BYTES(iq3_s, block, 8 + g / 2)), 4 * (g % 2), 15);
    out->scale[0] = HALF(iq3_s, block, 0) * twice_and_one(scale);
}

/* The eight values of an index of IQ1; bit `down` of `high` moves them. No byte borrows. */
INLINE void expand_iq1(INTS index, INTS high, int down, INTS *w) {
    INTS two = high ^ high; /* zero */
    UNROLL for (int i = 0; i < 4; i++) two = add_bits(two, high, 8 * i + 1 - down, 2 << 8 * i);
    grid_8(kernel_grids.iq1, index, w);
    w[0] = w[0] - two;
    w[1] = w[1] - two;
}

INLINE void expand_iq1_s(const uint8_t *block, int g, struct expanded *out) {
    INTS low = QUANTS(block, g);
    INTS high = bits_at(QUANTS(block, 8 + g / 2), 16 * (g % 2), 0xffff);
    UNROLL for (int i = 0; i < 4; i++) expand_iq1(
        add_bits(bits_at(low, 8 * i, 255), high, 8 - 3 * i, 0x700), high, 15, out->w + 2 * i);
    out->scale[0] = HALF(iq1_s, block, 0) * twice_and_one(bits_at(high, 12, 7)) * V_SET(0.125f);
}

INLINE void expand_iq1_m(const uint8_t *block, int g, struct expanded *out) {
    INTS low = QUANTS(block, g), scales = QUANTS(block, 12 + g / 4);
    INTS high = bits_at(QUANTS(block, 8 + g / 2), 16 * (g % 2), 0xffff);
    UNROLL for (int i = 0; i < 4; i++)
        expand_iq1(add_bits(bits_at(low, 8 * i, 255), high, 8 - 4 * i, 0x700), high, 4 * i + 3,
                   out->w + 2 * i);
    UNROLL for (int h = 0; h < 2; h++) {
        INTS scale = bits_at(scales, 16 * (g / 2 % 2) + 6 * (g % 2) + 3 * h, 7);
        out->scale[h] = HALF(iq1_m, block, 0) * twice_and_one(scale) * V_SET(0.125f);
    }
}

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
