/* tiles.cuh - single values out of tiles: for EMBED, where the token table is also the LM head. */
#ifndef BACKEND_CUDA_FORMATS_TILES_CUH
#define BACKEND_CUDA_FORMATS_TILES_CUH

#include "backend/cuda/formats/tiles.h"
#include "backend/cuda/shared.h"
#include "quant/bf16.h"
#include "quant/f16.h"

/* Position of a value in its K block. */
struct tile_position {
    uint32_t lane;  /* that owns it */
    uint32_t chunk; /* of the lane's four (rows, of types with f32 activations) */
    uint32_t i;     /* value of the chunk */
    uint32_t d;     /* K-quants: index of d */
};

static __device__ __forceinline__ struct tile_position tile_locate(uint32_t type, uint32_t rows,
                                                                   uint32_t row, uint32_t column) {
    uint32_t lanes = 128 / rows, span = tile_span(type);
    struct tile_position at = {row / 4 * lanes, row % 4, 0, 0};
    if (tile_is_int8(type)) {
        at.lane = column / span * rows + row;
        at.chunk = column % span / (span / 4);
        at.i = column % (span / 4);
        at.d = at.lane / (2 * rows) * rows + row;
    } else {
        at.lane += column / span;
        at.i = column % span;
    }
    return at;
}

static __device__ __forceinline__ float tile_f16(const uint8_t *p) {
    return f16_to_f32(*(const uint16_t *)p);
}

/* Four values of Q4_K or Q5_K from their quants, a byte each. */
static __device__ __forceinline__ float4 tile_q4_q5(const uint8_t *scales, struct tile_position at,
                                                    uint32_t q) {
    uint32_t s = scales[at.lane * 4 + at.chunk];
    uint32_t mins = *(const uint16_t *)(scales + TILE_MINS + at.lane * 2);
    uint32_t shift = (at.chunk & 1) * 8 + (at.chunk >> 1) * 4;
    uint32_t min = (mins >> shift & 15) | s >> 6 << 4;
    const uint8_t *d = scales + TILE_D + at.d * 4;
    float scale = tile_f16(d) * (float)(s & 63), offset = tile_f16(d + 2) * (float)min;
    return make_float4(__fsub_rn(__fmul_rn(scale, (float)(q & 255)), offset),
                       __fsub_rn(__fmul_rn(scale, (float)(q >> 8 & 255)), offset),
                       __fsub_rn(__fmul_rn(scale, (float)(q >> 16 & 255)), offset),
                       __fsub_rn(__fmul_rn(scale, (float)(q >> 24)), offset));
}

/* Four signed quants, scaled. */
static __device__ __forceinline__ float4 tile_bytes(float scale, uint32_t q) {
    return make_float4(scale * (float)(int8_t)(q & 255), scale * (float)(int8_t)(q >> 8 & 255),
                       scale * (float)(int8_t)(q >> 16 & 255), scale * (float)(int8_t)(q >> 24));
}

static __device__ __forceinline__ uint32_t tile_word(const uint8_t *p) {
    return *(const uint32_t *)p;
}

/* BF16, F16. column: of the K block. */
static __device__ __forceinline__ float4 tile_panel(uint32_t type, const uint8_t *kblock,
                                                    uint32_t rows, uint32_t row, uint32_t column) {
    const uint8_t *panel = kblock + column / 64 * rows * 128 + column % 16;
    uint32_t step = column % 64 / 16;
    uint32_t a = tile_word(panel + tile_bf16_chunk(rows, row, 2 * step)),
             b = tile_word(panel + tile_bf16_chunk(rows, row, 2 * step + 1));
    if (type == DT_F16)
        return make_float4(f16_to_f32((uint16_t)a), f16_to_f32((uint16_t)(a >> 16)),
                           f16_to_f32((uint16_t)b), f16_to_f32((uint16_t)(b >> 16)));
    return make_float4(bf16_to_f32((uint16_t)a), bf16_to_f32((uint16_t)(a >> 16)),
                       bf16_to_f32((uint16_t)b), bf16_to_f32((uint16_t)(b >> 16)));
}

/* Values (row, column ... column + 3) of a tiled matrix; column is a multiple of 4. */
static __device__ inline float4 tile_load4(const struct cuda_matrix *m, uint32_t row,
                                           uint32_t column) {
    uint32_t columns = tile_columns(m->type, m->tile_rows);
    const uint8_t *kblock =
        m->data + ((uint64_t)(row / m->tile_rows) * (m->k / columns) + column / columns) *
                      tile_kblock_bytes(m->type);
    if (tile_has_panels(m->type))
        return tile_panel(m->type, kblock, m->tile_rows, row, column % columns);
    struct tile_position at =
        tile_locate(m->type, m->tile_rows, row % m->tile_rows, column % columns);
    const uint8_t *chunk = kblock + at.chunk * 512 + at.lane * 16;
    switch (m->type) {
    case DT_F32:
        return *(const float4 *)chunk;
    case DT_Q8_0:
        return tile_bytes(tile_f16(kblock + TILE_HIGH_BITS + at.lane * 4 + at.chunk / 2 * 2),
                          tile_word(chunk + at.i));
    default:
        break;
    }
    uint32_t q = tile_word(chunk + at.i % 16) >> (at.i / 16 * 4) & 0x0f0f0f0fu;
    if (m->type == DT_Q4_K)
        return tile_q4_q5(kblock + TILE_Q4_SCALES, at, q);
    if (m->type == DT_Q5_K) {
        uint32_t high = tile_word(kblock + TILE_HIGH_BITS + at.lane * 16 + at.chunk * 4);
        return tile_q4_q5(kblock + TILE_Q5_SCALES, at, q | (high >> at.i / 4 & 0x01010101u) << 4);
    }
    const uint8_t *high_bits =
        kblock + TILE_HIGH_BITS + at.chunk / 2 * 512 + at.lane * 16 + at.chunk % 2 * 8;
    uint32_t high = tile_word(high_bits + at.i / 16 * 4) >> (at.i % 16 / 4 * 2) & 0x03030303u;
    const int8_t *scales = (const int8_t *)kblock + TILE_Q6_SCALES + at.lane * 8;
    float d = tile_f16(kblock + TILE_Q6_D + at.d * 2);
    /* Six bits of two's complement: sign-extended in each byte. */
    uint32_t six = q | high << 4;
    return tile_bytes(d * (float)scales[at.chunk * 2 + at.i / 16],
                      six | (six & 0x20202020u) << 1 | (six & 0x20202020u) << 2);
}

#endif
