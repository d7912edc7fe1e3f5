/* tiles.cuh - single values out of tiles: for EMBED, where the table is also the head. */
#ifndef BACKEND_CUDA_TILES_CUH
#define BACKEND_CUDA_TILES_CUH

#include "backend/cuda/shared.h"
#include "backend/cuda/tiles.h"
#include "quant/bf16.h"
#include "quant/f16.h"

/* Where a value lies in its unit: the lane that owns it, the row of that lane, the place in the
 * lane's span. */
struct tile_place {
    uint32_t lane, row, i;
};

static __device__ __forceinline__ struct tile_place tile_find(uint32_t type, uint32_t rows,
                                                              uint32_t row, uint32_t column) {
    uint32_t lanes = 128 / rows, span = tile_span(type);
    struct tile_place at = {row / 4 * lanes, row % 4, 0};
    if (span == 8) { /* two runs of four */
        at.lane += column % (4 * lanes) / 4;
        at.i = column / (4 * lanes) * 4 + column % 4;
    } else {
        at.lane += column / span;
        at.i = column % span;
    }
    return at;
}

static __device__ __forceinline__ float tile_half(const uint8_t *p) {
    return f16_to_f32(*(const uint16_t *)p);
}

static __device__ __forceinline__ float tile_q45(const uint8_t *scales, struct tile_place at,
                                                 int q) {
    uint32_t s = scales[at.lane * 4 + at.row];
    uint32_t mins = *(const uint16_t *)(scales + TILE_MINS + at.lane * 2);
    uint32_t shift = (at.row & 1) * 8 + (at.row >> 1) * 4;
    uint32_t min = (mins >> shift & 15) | s >> 6 << 4;
    const uint8_t *d = scales + TILE_D + at.lane / 8 * 16 + at.row * 4;
    return __fsub_rn(tile_half(d) * (float)(s & 63) * (float)q, tile_half(d + 2) * (float)min);
}

/* Value (row, column) of a tiled matrix, as its file has it. */
static __device__ inline float tile_value(const struct cuda_matrix *m, uint32_t row,
                                          uint32_t column) {
    uint32_t columns = tile_columns(m->type, m->tile_rows);
    const uint8_t *unit =
        m->data + ((uint64_t)(row / m->tile_rows) * (m->k / columns) + column / columns) *
                      tile_unit_bytes(m->type);
    struct tile_place at = tile_find(m->type, m->tile_rows, row % m->tile_rows, column % columns);
    const uint8_t *piece = unit + at.row * 512 + at.lane * 16;
    int q = piece[at.i % 16] >> (at.i / 16 * 4) & 15;
    switch (m->type) {
    case DT_F32:
        return ((const float *)piece)[at.i];
    case DT_F16:
        return tile_half(piece + at.i * 2);
    case DT_BF16:
        return bf16_to_f32(((const uint16_t *)piece)[at.i]);
    case DT_Q8_0:
        return tile_half(unit + TILE_MORE + at.lane / 2 * 8 + at.row * 2) *
               (float)((const int8_t *)piece)[at.i];
    case DT_Q4_K:
        return tile_q45(unit + TILE_Q4_SCALES, at, q);
    case DT_Q5_K:
        q |= (unit[TILE_MORE + at.lane * 16 + at.row * 4 + at.i % 4] >> at.i / 4 & 1) << 4;
        return tile_q45(unit + TILE_Q5_SCALES, at, q);
    default: {
        const uint8_t *pairs = unit + TILE_MORE + at.row / 2 * 512 + at.lane * 16;
        int pair = pairs[at.row % 2 * 8 + at.i / 16 * 4 + at.i % 4] >> (at.i % 16 / 4 * 2) & 3;
        const int8_t *scales = (const int8_t *)unit + TILE_Q6_SCALES + at.lane * 8;
        float d = tile_half(unit + TILE_Q6_D + at.lane / 8 * 8 + at.row * 2);
        return d * (float)scales[at.row * 2 + at.i / 16] * (float)((q | (pair ^ 2) << 4) - 32);
    }
    }
}

#endif
