/* kernels_neon_pack.c - puts the rows of quantized matrices side by side; see kernels_neon_pack.h.
 */
#include "backend/cpu/kernels_neon_pack.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/kernels_grid.h"
#include "base/err.h"
#include "quant/types.h"

#define INLINE static inline __attribute__((always_inline))

/* One row of a group: 32 quants as the kernels expand them, and its bytes. */
struct group {
    uint32_t q[8];
    uint8_t bytes[2];
};

/* ---- reading a group ------------------------------------------------------------------------- */

/* The quants as the type's definition unpacks them: signed, or unsigned where there is a minimum.
 */
#define READ(type, first, second)                                                                  \
    INLINE void read_##type(const void *block, int g, struct group *out) {                         \
        const struct type *b = block;                                                              \
        struct unpacked u;                                                                         \
        type##_unpack(b, g, &u);                                                                   \
        memcpy(out->q, u.q, sizeof out->q);                                                        \
        out->bytes[0] = (uint8_t)(first);                                                          \
        out->bytes[1] = (uint8_t)(second);                                                         \
    }
READ(q4_0, 0, 0)
READ(q4_1, 0, 0)
READ(q5_0, 0, 0)
READ(q5_1, 0, 0)
READ(q8_0, 0, 0)
READ(q2_k, b->scales[2 * g], b->scales[2 * g + 1])
READ(q3_k, q3_k_scale(b->scales, 2 * g), q3_k_scale(b->scales, 2 * g + 1))
READ(q4_k, q4_k_scale(b->scales, g), q4_k_min(b->scales, g))
READ(q5_k, q4_k_scale(b->scales, g), q4_k_min(b->scales, g))
READ(q6_k, b->scales[2 * g], b->scales[2 * g + 1])

/* Types whose nibbles are looked up when they are used. */
#define READ_NIBBLES(type, qs, first)                                                              \
    INLINE void read_##type(const void *block, int g, struct group *out) {                         \
        const struct type *b = block;                                                              \
        struct unpacked u;                                                                         \
        (void)g;                                                                                   \
        unpack_nibbles(qs, &u);                                                                    \
        memcpy(out->q, u.q, sizeof out->q);                                                        \
        out->bytes[0] = (uint8_t)(first);                                                          \
    }
READ_NIBBLES(iq4_nl, b->qs, 0)
READ_NIBBLES(iq4_xs, b->qs + 16 * g, iq4_xs_scale(b, g))
READ_NIBBLES(mxfp4, b->qs, b->e)

/* ---- closing vectors ------------------------------------------------------------------------- */

INLINE uint8x16_t low_bits(uint8x16_t v, int n) {
    return vandq_u8(v, vdupq_n_u8((uint8_t)((1 << n) - 1)));
}

INLINE uint8x16_t up(uint8x16_t v, int by) {
    return vshlq_u8(v, vdupq_n_s8((int8_t)by));
}

/* Bits from `first` on, `n` of them, moved to `to`. */
INLINE uint8x16_t bits(uint8x16_t v, int first, int n, int to) {
    return up(low_bits(up(v, -first), n), to);
}

INLINE void close_2(const uint8x16_t *w, uint8x16_t *to) {
    for (int i = 0; i < 2; i++)
        to[i] = vorrq_u8(vorrq_u8(w[2 * i], up(w[2 * i + 4], 2)),
                         vorrq_u8(up(w[2 * i + 1], 4), up(w[2 * i + 5], 6)));
}

INLINE void close_3(const uint8x16_t *w, uint8x16_t *to) {
    for (int i = 0; i < 3; i++)
        to[i] = vorrq_u8(up(w[2 * i], 5), bits(w[2 * i + 1], 0, 3, 2));
    to[0] = vorrq_u8(to[0], bits(w[6], 1, 2, 0));
    to[1] = vorrq_u8(to[1], bits(w[7], 1, 2, 0));
    to[2] = vorrq_u8(to[2], vorrq_u8(bits(w[6], 0, 1, 0), bits(w[7], 0, 1, 1)));
}

INLINE void close_4(const uint8x16_t *w, uint8x16_t *to) {
    for (int i = 0; i < 4; i++)
        to[i] = vorrq_u8(low_bits(w[i], 4), up(w[i + 4], 4));
}

/* main: where w0..w4 begin; three: where the other three bits do; of these `pair` begins w % 4 and
 * `one` is w7's. */
INLINE void close_5(const uint8x16_t *w, int main, int three, int pair, int one, uint8x16_t *to) {
    for (int i = 0; i < 5; i++)
        to[i] = up(low_bits(w[i], 5), main);
    for (int i = 0; i < 3; i++)
        to[i] = vorrq_u8(to[i], bits(w[5 + i], 2, 3, three));
    for (int i = 0; i < 2; i++)
        to[3 + i] =
            vorrq_u8(to[3 + i], vorrq_u8(bits(w[5 + i], 0, 2, pair), bits(w[7], 1 - i, 1, one)));
}

INLINE void close_5_unsigned(const uint8x16_t *w, uint8x16_t *to) {
    close_5(w, 0, 5, 6, 5, to);
}

INLINE void close_5_signed(const uint8x16_t *w, uint8x16_t *to) {
    close_5(w, 3, 0, 0, 2, to);
}

INLINE void close_6(const uint8x16_t *w, uint8x16_t *to) {
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            to[3 * i + j] = vorrq_u8(up(w[4 * i + j], 2), bits(w[4 * i + 3], 4 - 2 * j, 2, 0));
}

INLINE void close_8(const uint8x16_t *w, uint8x16_t *to) {
    for (int i = 0; i < 8; i++)
        to[i] = w[i];
}

#define close_q4_0 close_4
#define close_q4_1 close_4
#define close_q5_0 close_5_signed
#define close_q5_1 close_5_unsigned
#define close_q8_0 close_8
#define close_q2_k close_2
#define close_q3_k close_3
#define close_q4_k close_4
#define close_q5_k close_5_unsigned
#define close_q6_k close_6
#define close_iq4_nl close_4
#define close_iq4_xs close_4
#define close_mxfp4 close_4

/* ---- tiles ----------------------------------------------------------------------------------- */

/* A type's row of NEON_TYPES, and where its f16s are in a block of the file. */
struct layout {
    enum dtype type;
    int groups, bits, bytes, f16s;
    uint32_t file_bytes;
    size_t f16_at[2];
    void (*read)(const void *block, int g, struct group *out);
    void (*close)(const uint8x16_t *w, uint8x16_t *to);
};

INLINE size_t size_of(const struct layout *l) {
    return (size_t)(NEON_TILE * (l->groups * (4 * l->bits + l->bytes) + 2 * l->f16s));
}

/* A group of eight rows as vectors: w[8 half + j]. */
union vectors {
    uint8x16_t w[16];
    uint8_t bytes[256];
};

INLINE void place(const uint32_t *q, uint32_t k_step, uint32_t row, union vectors *to) {
    uint8_t *half = to->bytes + row / 4 * 128;
    if (k_step == 4) {
        for (uint32_t j = 0; j < 8; j++)
            memcpy(half + 16 * j + row % 4 * 4, &q[j], 4);
    } else {
        for (uint32_t s = 0; s < 4; s++)
            memcpy(half + 16 * (2 * s + row % 4 / 2) + row % 2 * 8, &q[2 * s], 8);
    }
}

INLINE void pack_group(const struct layout *l, uint32_t k_step, uint8_t (*blocks)[256], int g,
                       uint8_t *quants, uint8_t *bytes) {
    union vectors v;
    for (uint32_t row = 0; row < NEON_TILE; row++) {
        struct group group;
        l->read(blocks[row], g, &group);
        place(group.q, k_step, row, &v);
        for (int i = 0; i < l->bytes; i++)
            bytes[NEON_TILE * i + (int)row] = group.bytes[i];
    }
    for (int half = 0; half < 2; half++) {
        uint8x16_t closed[8];
        l->close(v.w + 8 * half, closed);
        memcpy(quants + 16 * l->bits * half, closed, (size_t)(16 * l->bits));
    }
}

/* blocks: one of each row. */
INLINE void pack_block(const struct layout *l, uint32_t k_step, uint8_t (*blocks)[256],
                       uint8_t *to) {
    uint8_t *bytes = to + NEON_TILE * 4 * l->bits * l->groups;
    uint8_t *f16s = bytes + NEON_TILE * l->bytes * l->groups;
    for (int g = 0; g < l->groups; g++)
        pack_group(l, k_step, blocks, g, to + NEON_TILE * 4 * l->bits * g,
                   bytes + NEON_TILE * l->bytes * g);
    for (int i = 0; i < l->f16s; i++)
        for (int row = 0; row < NEON_TILE; row++)
            memcpy(f16s + 2 * (NEON_TILE * i + row), blocks[row] + l->f16_at[i], 2);
}

INLINE void pack_tiles(const struct layout *l, uint32_t k_step, const uint8_t *rows,
                       size_t row_bytes, uint32_t n, uint8_t *to) {
    for (uint32_t tile = 0; tile < n; tile += NEON_TILE, rows += NEON_TILE * row_bytes) {
        uint32_t present = n - tile < NEON_TILE ? n - tile : NEON_TILE;
        _Alignas(16) uint8_t blocks[NEON_TILE][256]; /* those of the file may be at odd addresses */
        memset(blocks, 0, sizeof blocks);
        for (size_t at = 0; at < row_bytes; at += l->file_bytes, to += size_of(l)) {
            for (uint32_t row = 0; row < present; row++)
                memcpy(blocks[row], rows + row * row_bytes + at, l->file_bytes);
            pack_block(l, k_step, blocks, to);
        }
    }
}

#define d_of(type) offsetof(struct type, d)
#define F16S_q4_0 d_of(q4_0)
#define F16S_q4_1 d_of(q4_1), offsetof(struct q4_1, m)
#define F16S_q5_0 d_of(q5_0)
#define F16S_q5_1 d_of(q5_1), offsetof(struct q5_1, m)
#define F16S_q8_0 d_of(q8_0)
#define F16S_q2_k d_of(q2_k), offsetof(struct q2_k, dmin)
#define F16S_q3_k d_of(q3_k)
#define F16S_q4_k d_of(q4_k), offsetof(struct q4_k, dmin)
#define F16S_q5_k d_of(q5_k), offsetof(struct q5_k, dmin)
#define F16S_q6_k d_of(q6_k)
#define F16S_iq4_nl d_of(iq4_nl)
#define F16S_iq4_xs d_of(iq4_xs)
#define F16S_mxfp4 0

#define LAYOUT(TYPE, type, values, bits, bytes, f16s)                                              \
    static const struct layout layout_##type = {DT_##TYPE,     (values) / 32, bits,                \
                                                bytes,         f16s,          sizeof(struct type), \
                                                {F16S_##type}, read_##type,   close_##type};       \
    static void pack_##type(uint32_t k_step, const uint8_t *rows, size_t row_bytes, uint32_t n,    \
                            uint8_t *to) {                                                         \
        if (k_step == 4)                                                                           \
            pack_tiles(&layout_##type, 4, rows, row_bytes, n, to);                                 \
        else                                                                                       \
            pack_tiles(&layout_##type, 8, rows, row_bytes, n, to);                                 \
    }
NEON_TYPES(LAYOUT)

/* ---- types with a grid ----------------------------------------------------------------------- */

/* A row of a group. */
struct grid_group {
    uint8_t bytes[16], scale;
};

#define GRID_READ(type, d)                                                                         \
    static uint16_t d_##type(const void *block) {                                                  \
        const struct type *b = block;                                                              \
        return d;                                                                                  \
    }                                                                                              \
    static void grid_read_##type(const void *block, int g, struct grid_group *to)
#define GRID_BLOCK(type) const struct type *b = block

GRID_READ(iq2_xxs, b->d) {
    GRID_BLOCK(iq2_xxs);
    memcpy(to->bytes, b->qs + 8 * g, 8);
}

GRID_READ(iq2_xs, b->d) {
    GRID_BLOCK(iq2_xs);
    memcpy(to->bytes, b->qs + 4 * g, 8);
    to->scale = b->scales[g];
}

GRID_READ(iq2_s, b->d) {
    GRID_BLOCK(iq2_s);
    memcpy(to->bytes, b->qs + 4 * g, 4);
    memcpy(to->bytes + 4, b->signs + 4 * g, 4);
    to->bytes[8] = b->qh[g];
    to->scale = b->scales[g];
}

GRID_READ(iq3_xxs, b->d) {
    GRID_BLOCK(iq3_xxs);
    memcpy(to->bytes, b->qs + 8 * g, 8);
    memcpy(to->bytes + 8, b->scales + 4 * g, 4);
}

GRID_READ(iq3_s, b->d) {
    GRID_BLOCK(iq3_s);
    memcpy(to->bytes, b->qs + 8 * g, 8);
    memcpy(to->bytes + 8, b->signs + 4 * g, 4);
    to->bytes[12] = b->qh[g];
    to->scale = (uint8_t)(2 * (b->scales[g / 2] >> 4 * (g % 2) & 15) + 1);
}

GRID_READ(iq1_s, b->d) {
    GRID_BLOCK(iq1_s);
    memcpy(to->bytes, b->qs + 4 * g, 4);
    memcpy(to->bytes + 4, &b->qh[g], 2);
}

GRID_READ(iq1_m, iq1_m_d(b)) {
    GRID_BLOCK(iq1_m);
    memcpy(to->bytes, b->qs + 4 * g, 4);
    memcpy(to->bytes + 4, b->qh + 2 * g, 2);
    int two = b->scales[g / 2] >> 6 * (g % 2);
    to->scale = (uint8_t)((2 * (two & 7) + 1) | (2 * (two >> 3 & 7) + 1) << 4);
}

static const struct grid_layout {
    enum dtype type;
    uint32_t group, bytes, file_bytes;
    uint16_t (*d)(const void *block);
    void (*read)(const void *block, int g, struct grid_group *to);
} grid_layouts[] = {
#define X(TYPE, type, group, bytes)                                                                \
    {DT_##TYPE, group, bytes, sizeof(struct type), d_##type, grid_read_##type},
    NEON_GRID_TYPES(X)
#undef X
};

static const struct grid_layout *grid_layout_of(enum dtype type) {
    for (size_t i = 0; i < sizeof grid_layouts / sizeof *grid_layouts; i++)
        if (grid_layouts[i].type == type)
            return &grid_layouts[i];
    return NULL;
}

static size_t grid_size_of(const struct grid_layout *l) {
    return NEON_TILE * (8 * (l->group + l->bytes) + 2);
}

static void pack_grid_row(const struct grid_layout *l, const void *block, uint32_t row,
                          uint8_t *to) {
    uint8_t *bytes = to + 8 * NEON_TILE * l->group, *f16s = bytes + 8 * NEON_TILE * l->bytes;
    for (uint32_t g = 0; g < 8; g++) {
        struct grid_group group;
        l->read(block, (int)g, &group);
        memcpy(to + (g * NEON_TILE + row) * l->group, group.bytes, l->group);
        if (l->bytes)
            bytes[g * NEON_TILE + row] = group.scale;
    }
    uint16_t d = l->d(block);
    memcpy(f16s + 2 * row, &d, 2);
}

static void pack_grid(const struct grid_layout *l, const uint8_t *rows, size_t row_bytes,
                      uint32_t n, uint8_t *to) {
    for (uint32_t tile = 0; tile < n; tile += NEON_TILE, rows += NEON_TILE * row_bytes) {
        uint32_t present = n - tile < NEON_TILE ? n - tile : NEON_TILE;
        for (size_t at = 0; at < row_bytes; at += l->file_bytes, to += grid_size_of(l)) {
            _Alignas(16) uint8_t block[256]; /* those of the file may be at odd addresses */
            memset(to, 0, grid_size_of(l));
            for (uint32_t row = 0; row < present; row++) {
                memcpy(block, rows + row * row_bytes + at, l->file_bytes);
                pack_grid_row(l, block, row, to);
            }
        }
    }
}

/* ---- matrices -------------------------------------------------------------------------------- */

static const struct packer {
    const struct layout *layout;
    void (*pack)(uint32_t k_step, const uint8_t *rows, size_t row_bytes, uint32_t n, uint8_t *to);
} packers[] = {
#define X(TYPE, type, values, bits, bytes, f16s) {&layout_##type, pack_##type},
    NEON_TYPES(X)
#undef X
};

static const struct packer *packer_of(enum dtype type) {
    for (size_t i = 0; i < sizeof packers / sizeof *packers; i++)
        if (packers[i].layout->type == type)
            return &packers[i];
    CHECK(!"a type with a packed order");
    return NULL;
}

uint64_t neon_packed_bytes(enum dtype type, uint32_t k, uint32_t n) {
    uint64_t tiles = ((uint64_t)n + NEON_TILE - 1) / NEON_TILE;
    const struct grid_layout *grid = grid_layout_of(type);
    if (grid)
        return tiles * (k / 256) * grid_size_of(grid);
    const struct layout *l = packer_of(type)->layout;
    return tiles * (k / 32 / (uint32_t)l->groups) * size_of(l);
}

void neon_pack(enum dtype type, uint32_t k_step, const void *rows, uint32_t k, uint32_t n,
               void *packed) {
    const struct grid_layout *grid = grid_layout_of(type);
    if (grid) {
        kernel_grids_fill();
        pack_grid(grid, rows, (size_t)(k / 256) * grid->file_bytes, n, packed);
        return;
    }
    const struct packer *p = packer_of(type);
    size_t blocks = k / 32 / (uint32_t)p->layout->groups;
    p->pack(k_step, rows, blocks * p->layout->file_bytes, n, packed);
}

#endif
