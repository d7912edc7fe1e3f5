/* kernels_pack.c - puts the rows of quantized matrices side by side; see kernels_pack.h. */
#include "backend/cpu/kernels_pack.h"

#include "backend/cpu/kernels_grid.h"

#if defined(__x86_64__)
#include <string.h>

#include "base/err.h"
#include "quant/types.h"

/* One row's block, in the parts of a packed block. */
struct parts {
    uint8_t quants[192];
    uint32_t words[1];
    uint16_t f16s[2];
    uint8_t bytes[16];
};

/* ---- a block's parts ------------------------------------------------------------------------- */

static void parts_q4_0(const void *block, struct parts *p) {
    const struct q4_0 *b = block;
    p->f16s[0] = b->d;
    memcpy(p->quants, b->qs, 16);
}

static void parts_q4_1(const void *block, struct parts *p) {
    const struct q4_1 *b = block;
    p->f16s[0] = b->d;
    p->f16s[1] = b->m;
    memcpy(p->quants, b->qs, 16);
}

/* Bit i to bit 8 (i % 4) + i / 4: then four bytes' bits are found by one shift. */
static uint32_t spread_bits(const uint8_t *qh) {
    uint32_t bits, out = 0;
    memcpy(&bits, qh, sizeof bits);
    for (int i = 0; i < 32; i++)
        out |= (bits >> i & 1) << (8 * (i % 4) + i / 4);
    return out;
}

static void parts_q5_0(const void *block, struct parts *p) {
    const struct q5_0 *b = block;
    p->f16s[0] = b->d;
    p->words[0] = spread_bits(b->qh);
    memcpy(p->quants, b->qs, 16);
}

static void parts_q5_1(const void *block, struct parts *p) {
    const struct q5_1 *b = block;
    p->f16s[0] = b->d;
    p->f16s[1] = b->m;
    p->words[0] = spread_bits(b->qh);
    memcpy(p->quants, b->qs, 16);
}

static void parts_q8_0(const void *block, struct parts *p) {
    const struct q8_0 *b = block;
    p->f16s[0] = b->d;
    memcpy(p->quants, b->qs, 32);
}

static void parts_q2_k(const void *block, struct parts *p) {
    const struct q2_k *b = block;
    p->f16s[0] = b->d;
    p->f16s[1] = b->dmin;
    memcpy(p->bytes, b->scales, 16);
    memcpy(p->quants, b->qs, 64);
}

static void parts_q3_k(const void *block, struct parts *p) {
    const struct q3_k *b = block;
    p->f16s[0] = b->d;
    for (int k = 0; k < 16; k++)
        p->bytes[k] = (uint8_t)q3_k_scale(b->scales, k);
    memcpy(p->quants, b->qs, 64);
    memcpy(p->quants + 64, b->hmask, 32);
}

static void parts_k_scales(const uint8_t *scales, struct parts *p) {
    for (int s = 0; s < 8; s++) {
        p->bytes[s] = (uint8_t)q4_k_scale(scales, s);
        p->bytes[8 + s] = (uint8_t)q4_k_min(scales, s);
    }
}

static void parts_q4_k(const void *block, struct parts *p) {
    const struct q4_k *b = block;
    p->f16s[0] = b->d;
    p->f16s[1] = b->dmin;
    parts_k_scales(b->scales, p);
    memcpy(p->quants, b->qs, 128);
}

static void parts_q5_k(const void *block, struct parts *p) {
    const struct q5_k *b = block;
    p->f16s[0] = b->d;
    p->f16s[1] = b->dmin;
    parts_k_scales(b->scales, p);
    memcpy(p->quants, b->qs, 128);
    memcpy(p->quants + 128, b->qh, 32);
}

static void parts_q6_k(const void *block, struct parts *p) {
    const struct q6_k *b = block;
    p->f16s[0] = b->d;
    memcpy(p->bytes, b->scales, 16);
    memcpy(p->quants, b->ql, 128);
    memcpy(p->quants + 128, b->qh, 64);
}

static void parts_iq4_nl(const void *block, struct parts *p) {
    const struct iq4_nl *b = block;
    p->f16s[0] = b->d;
    memcpy(p->quants, b->qs, 16);
}

static void parts_iq4_xs(const void *block, struct parts *p) {
    const struct iq4_xs *b = block;
    p->f16s[0] = b->d;
    for (int s = 0; s < 8; s++)
        p->bytes[s] = (uint8_t)iq4_xs_scale(b, s);
    memcpy(p->quants, b->qs, 128);
}

static void parts_mxfp4(const void *block, struct parts *p) {
    const struct mxfp4 *b = block;
    p->bytes[0] = b->e;
    memcpy(p->quants, b->qs, 16);
}

static void parts_iq2_xxs(const void *block, struct parts *p) {
    const struct iq2_xxs *b = block;
    p->f16s[0] = b->d;
    memcpy(p->quants, b->qs, 64);
}

static void parts_iq2_xs(const void *block, struct parts *p) {
    const struct iq2_xs *b = block;
    p->f16s[0] = b->d;
    memcpy(p->quants, b->qs, 64);
    memcpy(p->bytes, b->scales, 8);
}

static void parts_iq2_s(const void *block, struct parts *p) {
    const struct iq2_s *b = block;
    p->f16s[0] = b->d;
    memcpy(p->quants, b->qs, 32);
    memcpy(p->quants + 32, b->signs, 32);
    memcpy(p->bytes, b->qh, 8);
    memcpy(p->bytes + 8, b->scales, 8);
}

static void parts_iq3_xxs(const void *block, struct parts *p) {
    const struct iq3_xxs *b = block;
    p->f16s[0] = b->d;
    memcpy(p->quants, b->qs, 64);
    memcpy(p->quants + 64, b->scales, 32);
}

static void parts_iq3_s(const void *block, struct parts *p) {
    const struct iq3_s *b = block;
    p->f16s[0] = b->d;
    memcpy(p->quants, b->qs, 64);
    memcpy(p->quants + 64, b->signs, 32);
    memcpy(p->bytes, b->qh, 8);
    memcpy(p->bytes + 8, b->scales, 4);
}

static void parts_iq1_s(const void *block, struct parts *p) {
    const struct iq1_s *b = block;
    p->f16s[0] = b->d;
    memcpy(p->quants, b->qs, 32);
    memcpy(p->quants + 32, b->qh, 16);
}

static void parts_iq1_m(const void *block, struct parts *p) {
    const struct iq1_m *b = block;
    p->f16s[0] = iq1_m_d(b);
    memcpy(p->quants, b->qs, 32);
    memcpy(p->quants + 32, b->qh, 16);
    memcpy(p->quants + 48, b->scales, 8);
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* What a row's block becomes. The functions below are inlined for each type and number of rows. */
struct layout {
    enum dtype type;
    uint32_t file_bytes, values, quants, words, f16s, bytes;
    void (*parts)(const void *block, struct parts *out);
};

#define PACK_INLINE static inline __attribute__((always_inline))

/* One row's parts into their places in a packed block. */
PACK_INLINE void place(const struct layout *l, uint32_t rows, uint32_t row,
                       const struct parts *from, uint8_t *to) {
    UNROLL for (uint32_t i = 0; i < l->quants; i += 4)
        memcpy(to + i * rows + row * 4, from->quants + i, 4);
    to += l->quants * rows;
    for (uint32_t i = 0; i < l->words; i++)
        memcpy(to + (i * rows + row) * 4, &from->words[i], 4);
    to += l->words * 4 * rows;
    for (uint32_t i = 0; i < l->f16s; i++)
        memcpy(to + (i * rows + row) * 2, &from->f16s[i], 2);
    to += l->f16s * 2 * rows;
    UNROLL for (uint32_t i = 0; i < l->bytes; i++) to[i * rows + row] = from->bytes[i];
}

/* The parts of a block, or zeros after the matrix's last row. */
PACK_INLINE void read_parts(const struct layout *l, uint8_t flip_q8_0, const uint8_t *block,
                            struct parts *parts) {
    if (!block) {
        memset(parts, 0, sizeof *parts);
    } else {
        _Alignas(8) uint8_t copy[256]; /* blocks may be at odd addresses */
        memcpy(copy, block, l->file_bytes);
        l->parts(copy, parts);
    }
    if (l->type == DT_Q8_0 && flip_q8_0)
        for (uint32_t i = 0; i < l->quants; i++)
            parts->quants[i] ^= flip_q8_0;
}

PACK_INLINE void pack_tiles(const struct layout *l, struct packing p, const uint8_t *from,
                            uint32_t k, uint32_t n, uint8_t *to) {
    const size_t blocks = k / l->values;
    const uint32_t block_bytes = l->quants + 4 * l->words + 2 * l->f16s + l->bytes;
    for (uint32_t tile = 0; tile < n; tile += p.rows) {
        for (size_t b = 0; b < blocks; b++, to += (size_t)block_bytes * p.rows) {
            for (uint32_t row = 0; row < p.rows; row++) {
                const uint8_t *block = from + ((tile + row) * blocks + b) * l->file_bytes;
                struct parts parts;
                read_parts(l, p.flip_q8_0, row < n - tile ? block : NULL, &parts);
                place(l, p.rows, row, &parts, to);
            }
        }
    }
}

/* ---- all types ------------------------------------------------------------------------------- */

#define X(TYPE, type, values, quants, words, f16s, bytes)                                          \
    static void pack_##type(struct packing p, const uint8_t *from, uint32_t k, uint32_t n,         \
                            uint8_t *to) {                                                         \
        const struct layout l = {DT_##TYPE, sizeof(struct type), values, quants, words, f16s,      \
                                 bytes,     parts_##type};                                         \
        if (p.rows == 16)                                                                          \
            pack_tiles(&l, (struct packing){16, p.flip_q8_0}, from, k, n, to);                     \
        else                                                                                       \
            pack_tiles(&l, p, from, k, n, to);                                                     \
    }
PACKED_TYPES(X)
#undef X

static const struct packed_type {
    enum dtype type;
    uint32_t values, row_bytes; /* of a block, and of what a row's block becomes */
    void (*pack)(struct packing p, const uint8_t *from, uint32_t k, uint32_t n, uint8_t *to);
} packed_types[] = {
#define X(TYPE, type, values, quants, words, f16s, bytes)                                          \
    {DT_##TYPE, values, PACK_SIZE_##type, pack_##type},
    PACKED_TYPES(X)
#undef X
};

static const struct packed_type *packed_type(enum dtype type) {
    for (size_t i = 0; i < sizeof packed_types / sizeof *packed_types; i++)
        if (packed_types[i].type == type)
            return &packed_types[i];
    CHECK(!"a type with a packed order");
    return NULL;
}

uint64_t packed_bytes(enum dtype type, struct packing p, uint32_t k, uint32_t n) {
    const struct packed_type *t = packed_type(type);
    uint64_t rows = ((uint64_t)n + p.rows - 1) / p.rows * p.rows;
    return rows * (k / t->values) * t->row_bytes;
}

void pack_rows(enum dtype type, struct packing p, const void *rows, uint32_t k, uint32_t n,
               void *packed) {
    kernel_grids_fill();
    packed_type(type)->pack(p, rows, k, n, packed);
}

#endif
