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

static const struct layout {
    enum dtype type;
    uint32_t values, quants, words, f16s, bytes;
    void (*parts)(const void *block, struct parts *out);
} layouts[] = {
#define X(TYPE, type, values, quants, words, f16s, bytes)                                          \
    {DT_##TYPE, values, quants, words, f16s, bytes, parts_##type},
    PACKED_TYPES(X)
#undef X
};

static const struct layout *layout_of(enum dtype type) {
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (layouts[i].type == type)
            return &layouts[i];
    CHECK(!"a type with a packed order");
    return NULL;
}

static uint32_t row_block_bytes(const struct layout *l) {
    return l->quants + 4 * l->words + 2 * l->f16s + l->bytes;
}

uint64_t packed_bytes(enum dtype type, struct packing p, uint32_t k, uint32_t n) {
    const struct layout *l = layout_of(type);
    uint64_t rows = ((uint64_t)n + p.rows - 1) / p.rows * p.rows;
    return rows * (k / l->values) * row_block_bytes(l);
}

/* One row's parts into their places in a packed block. */
static void place(const struct layout *l, struct packing p, uint32_t row, const struct parts *from,
                  uint8_t *to) {
    for (uint32_t i = 0; i < l->quants; i += 4)
        memcpy(to + i * p.rows + row * 4, from->quants + i, 4);
    to += l->quants * p.rows;
    for (uint32_t i = 0; i < l->words; i++)
        memcpy(to + (i * p.rows + row) * 4, &from->words[i], 4);
    to += l->words * 4 * p.rows;
    for (uint32_t i = 0; i < l->f16s; i++)
        memcpy(to + (i * p.rows + row) * 2, &from->f16s[i], 2);
    to += l->f16s * 2 * p.rows;
    for (uint32_t i = 0; i < l->bytes; i++)
        to[i * p.rows + row] = from->bytes[i];
}

/* The parts of a block, or zeros after the matrix's last row. */
static void read_parts(const struct layout *l, struct packing p, const uint8_t *block,
                       uint32_t bytes, struct parts *parts) {
    if (!block) {
        memset(parts, 0, sizeof *parts);
    } else {
        _Alignas(8) uint8_t copy[256]; /* blocks may lie at odd addresses */
        memcpy(copy, block, bytes);
        l->parts(copy, parts);
    }
    if (l->type == DT_Q8_0 && p.flip_q8_0)
        for (uint32_t i = 0; i < l->quants; i++)
            parts->quants[i] ^= p.flip_q8_0;
}

void pack_rows(enum dtype type, struct packing p, const void *rows, uint32_t k, uint32_t n,
               void *packed) {
    const struct layout *l = layout_of(type);
    uint32_t file_bytes = dtype_info((uint32_t)type)->block_bytes;
    size_t blocks = k / l->values;
    uint8_t *to = packed;
    kernel_grids_fill();
    for (uint32_t tile = 0; tile < n; tile += p.rows) {
        for (size_t b = 0; b < blocks; b++, to += (size_t)row_block_bytes(l) * p.rows) {
            for (uint32_t row = 0; row < p.rows; row++) {
                const uint8_t *block =
                    (const uint8_t *)rows + ((tile + row) * blocks + b) * file_bytes;
                struct parts parts;
                read_parts(l, p, row < n - tile ? block : NULL, file_bytes, &parts);
                place(l, p, row, &parts, to);
            }
        }
    }
}

#endif
