/* tiles.h - the order of repacked weights, and how file blocks get into it (host only).
 *
 * A matrix (N rows, K columns) is cut into row tiles of 16 rows and K slices (mostly one); a unit
 * is 16 rows x 256 columns (BF16: x 128). Order in memory: slice, row tile, unit: what one warp
 * reads is one run of bytes. Missing rows of the last tile are zeros. Lane l has g = l / 4, t = l
 * % 4.
 *
 * Fragment words of a 16 x 32 byte piece (mma.m16n8k32), in an order of k of our own, so that
 * activations can lie in their natural order:
 *   a0 = row g, k 8t..8t+3   a1 = row g+8, same k   a2 = row g, k 8t+4..   a3 = row g+8, k 8t+4..
 * Q6_K has scales per 16 columns and keeps the mma's order: k 4t.. in a0, a1 and k 16+4t.. in a2,
 * a3.
 *
 * Q4_K unit, 2304 B = 16 x 144
 *      0  four sub-block pairs p of 512 B: lane l's 16 bytes are words a0..a3, low nibbles of
 *         sub-block 2p, high nibbles of sub-block 2p + 1
 *   2048  lane words: byte i = sc | (mn >> 4) << 6 of row g + 8 (i / 2), sub-block 2t + i % 2
 *   2176  lane halves: nibble i = mn & 15 of the same
 *   2240  per g: d, dmin of row g, then of row g + 8 (halves)
 * Q6_K unit, 3360 B = 16 x 210
 *      0  six planes of 512 B, 24 words a lane; sub-block j is words 3j..3j+2. Its four
 *         fragment words X0..X3 of 6-bit values share them: W_i = X_i | bits << 6, byte by byte,
 *         where bits = X3 >> 4, X3 >> 2 & 3, X3 & 3 for i = 0, 1, 2
 *   3072  lane bytes 0..3: scales of row g, groups of 16 number 2t, 2t+1, 8+2t, 9+2t; 4..7: row g+8
 *   3328  per g: d of row g, d of row g + 8 (halves)
 * Q8_0 unit, 256 + n x 512 B for n <= 8 sub-blocks
 *      0  per lane four halves: d of row g sub-blocks 2t, 2t+1, then of row g + 8
 *    256  per sub-block 512 B: a0..a3 by lane
 * BF16 unit, n x 512 B: per 16 columns the four words of mma.m16n8k16 by lane:
 *   row g k 4t,4t+1; row g+8 same k; row g k 4t+2..; row g+8 k 4t+2.. */
#pragma once
#include <stdint.h>
#include <string.h>

enum weight_type { WT_Q4_K, WT_Q6_K, WT_Q8_0, WT_BF16, WT_COUNT };

struct type_info {
    const char *name;
    int block, block_bytes; /* in the file */
    int unit;               /* columns of a unit */
    int step, step_bytes;   /* pieces of a unit, and what it has besides */
    int fixed_bytes;
};

static const struct type_info TYPES[WT_COUNT] = {
    {"q4_k", 256, 144, 256, 256, 2304, 0},
    {"q6_k", 256, 210, 256, 256, 3360, 0},
    {"q8_0", 32, 34, 256, 32, 512, 256},
    {"bf16", 1, 2, 128, 16, 512, 0},
};

static inline int tiles_units(enum weight_type t, int k) {
    return (k + TYPES[t].unit - 1) / TYPES[t].unit;
}

/* Bytes of a unit of `cols` columns, cols <= TYPES[t].unit. */
static inline uint32_t unit_bytes(enum weight_type t, int cols) {
    return (cols + TYPES[t].step - 1) / TYPES[t].step * TYPES[t].step_bytes + TYPES[t].fixed_bytes;
}

/* Bytes of one row tile of 16 rows x k columns. */
static inline size_t tile_bytes(enum weight_type t, int k) {
    int whole = k / TYPES[t].unit, rest = k % TYPES[t].unit;
    return (size_t)whole * unit_bytes(t, TYPES[t].unit) + (rest ? unit_bytes(t, rest) : 0);
}

static inline int fragment_row(int lane, int word) {
    return lane / 4 + 8 * (word & 1);
}
static inline int fragment_col(int lane, int word) {
    return 8 * (lane % 4) + 4 * (word >> 1);
}
static inline int q6_k_col(int lane, int word) {
    return 4 * (lane % 4) + 16 * (word >> 1);
}

static inline uint8_t q4_k_scale(const uint8_t *b, int s) {
    return s < 4 ? b[4 + s] & 63 : (b[8 + s] & 15) | b[s] >> 6 << 4;
}

static inline uint8_t q4_k_min(const uint8_t *b, int s) {
    return s < 4 ? b[8 + s] & 63 : b[8 + s] >> 4 | b[4 + s] >> 6 << 4;
}

/* One unit of 16 file blocks; rows[r] is NULL for a missing row. */
static inline void pack_q4_k(uint8_t *out, const uint8_t *const rows[16]) {
    memset(out, 0, 2304);
    for (int lane = 0; lane < 32; lane++)
        for (int w = 0; w < 4; w++) {
            const uint8_t *b = rows[fragment_row(lane, w)];
            if (!b)
                continue;
            for (int p = 0; p < 4; p++) /* the file pairs the same sub-blocks in its bytes */
                memcpy(out + p * 512 + lane * 16 + w * 4, b + 16 + 32 * p + fragment_col(lane, w),
                       4);
        }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            const uint8_t *b = rows[lane / 4 + 8 * (i / 2)];
            if (!b)
                continue;
            uint8_t sc = q4_k_scale(b, 2 * (lane % 4) + i % 2),
                    mn = q4_k_min(b, 2 * (lane % 4) + i % 2);
            out[2048 + lane * 4 + i] = sc | (mn >> 4) << 6;
            out[2176 + lane * 2 + i / 2] |= (mn & 15) << 4 * (i % 2);
        }
    for (int r = 0; r < 16; r++)
        if (rows[r])
            memcpy(out + 2240 + r % 8 * 8 + r / 8 * 4, rows[r], 4);
}

static inline uint8_t q6_k_quant(const uint8_t *b, int i) {
    int h = i / 128, g = i % 128 / 32, l = i % 32;
    uint8_t lo = b[64 * h + 32 * (g & 1) + l];
    lo = g < 2 ? lo & 15 : lo >> 4;
    return lo | ((b[128 + 32 * h + l] >> 2 * g) & 3) << 4;
}

static inline void pack_q6_k(uint8_t *out, const uint8_t *const rows[16]) {
    memset(out, 0, 3360);
    for (int lane = 0; lane < 32; lane++)
        for (int j = 0; j < 8; j++)
            for (int byte = 0; byte < 4; byte++) {
                uint8_t x[4];
                for (int w = 0; w < 4; w++) {
                    const uint8_t *b = rows[fragment_row(lane, w)];
                    x[w] = b ? q6_k_quant(b, 32 * j + q6_k_col(lane, w) + byte) : 0;
                }
                for (int i = 0; i < 3; i++) {
                    int word = 3 * j + i;
                    out[word / 4 * 512 + lane * 16 + word % 4 * 4 + byte] =
                        x[i] | ((x[3] >> (4 - 2 * i)) & 3) << 6;
                }
            }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 8; i++) {
            const uint8_t *b = rows[lane / 4 + 8 * (i / 4)];
            if (b)
                out[3072 + lane * 8 + i] = b[192 + 2 * (lane % 4) + i % 2 + i / 2 % 2 * 8];
        }
    for (int r = 0; r < 16; r++)
        if (rows[r])
            memcpy(out + 3328 + r % 8 * 4 + r / 8 * 2, rows[r] + 208, 2);
}

/* n sub-blocks, neighbours in the file. */
static inline void pack_q8_0(uint8_t *out, const uint8_t *const rows[16], int n) {
    memset(out, 0, 256 + n * 512);
    for (int lane = 0; lane < 32; lane++)
        for (int s = 0; s < n; s++) {
            for (int w = 0; w < 4; w++) {
                const uint8_t *b = rows[fragment_row(lane, w)];
                if (b)
                    memcpy(out + 256 + s * 512 + lane * 16 + w * 4,
                           b + 34 * s + 2 + fragment_col(lane, w), 4);
            }
            for (int h = 0; h < 2 && s / 2 == lane % 4; h++) {
                const uint8_t *b = rows[lane / 4 + 8 * h];
                if (b)
                    memcpy(out + lane * 8 + h * 4 + s % 2 * 2, b + 34 * s, 2);
            }
        }
}

/* 16 columns of which `n` exist. */
static inline void pack_bf16(uint8_t *out, const uint8_t *const rows[16], int n) {
    memset(out, 0, 512);
    for (int lane = 0; lane < 32; lane++)
        for (int w = 0; w < 4; w++)
            for (int e = 0; e < 2; e++) {
                int k = 4 * (lane % 4) + 2 * (w >> 1) + e;
                const uint8_t *b = rows[fragment_row(lane, w)];
                if (b && k < n)
                    memcpy(out + lane * 16 + w * 4 + e * 2, b + 2 * k, 2);
            }
}

static inline void pack_unit(enum weight_type type, uint8_t *out, const uint8_t *const rows[16],
                             int cols) {
    if (type == WT_Q4_K)
        pack_q4_k(out, rows);
    if (type == WT_Q6_K)
        pack_q6_k(out, rows);
    if (type == WT_Q8_0)
        pack_q8_0(out, rows, cols / 32);
    for (int c = 0; type == WT_BF16 && c < cols; c += 16) {
        const uint8_t *at[16];
        for (int r = 0; r < 16; r++)
            at[r] = rows[r] ? rows[r] + 2 * c : NULL;
        pack_bf16(out + c / 16 * 512, at, cols - c < 16 ? cols - c : 16);
    }
}

/* The whole matrix: file rows of k columns to tiles, K slices of `slice` columns. `swiglu`: rows
 * 0..n-1 are gate rows, n..2n-1 up rows; a tile then holds 8 gate rows and their 8 up rows. */
static inline void tiles_pack(enum weight_type type, uint8_t *out, const uint8_t *file, int n,
                              int k, int slice, int swiglu) {
    const struct type_info *ti = &TYPES[type];
    size_t row_bytes = (size_t)(k / ti->block) * ti->block_bytes;
    int tiles = swiglu ? (n + 7) / 8 : (n + 15) / 16;
    for (int k0 = 0; k0 < k; k0 += slice)
        for (int t = 0; t < tiles; t++)
            for (int c = k0; c < k && c < k0 + slice; c += ti->unit) {
                const uint8_t *rows[16];
                int cols = k - c < ti->unit ? k - c : ti->unit;
                for (int r = 0; r < 16; r++) {
                    int row = swiglu ? t * 8 + r % 8 : t * 16 + r;
                    size_t src = row + (swiglu && r >= 8 ? n : 0);
                    rows[r] =
                        row < n ? file + src * row_bytes + (size_t)(c / ti->block) * ti->block_bytes
                                : NULL;
                }
                pack_unit(type, out, rows, cols);
                out += unit_bytes(type, cols);
            }
}
