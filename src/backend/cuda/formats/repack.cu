/* repack.cu - repacks rows as in the file into tiles.
 *
 * A warp writes K blocks, grid-stride; a lane the four 16-byte chunks that it owns in it (tiles.h):
 * four parts of a row's columns, or four rows. Runs once a weight at load, so it is kept simple:
 * bytes are read one by one, since blocks in the file are not aligned. */
#include "backend/cuda/formats/decode.cuh"
#include "backend/cuda/formats/repack.h"
#include "backend/cuda/kernels/common.cuh"

/* The quants of columns c ... c + 31 (c a multiple of 32), a byte each. */
static __device__ void quants_q4_k(const uint8_t *row, uint32_t c, uint8_t *q) {
    const struct q4_k *b = (const struct q4_k *)row + c / 256;
    uint32_t s = c % 256 / 32;
    for (uint32_t i = 0; i < 32; i++)
        q[i] = b->qs[32 * (s / 2) + i] >> (4 * (s % 2)) & 15;
}

static __device__ void quants_q5_k(const uint8_t *row, uint32_t c, uint8_t *q) {
    const struct q5_k *b = (const struct q5_k *)row + c / 256;
    uint32_t s = c % 256 / 32;
    for (uint32_t i = 0; i < 32; i++)
        q[i] = (b->qs[32 * (s / 2) + i] >> (4 * (s % 2)) & 15) | (b->qh[i] >> s & 1) << 4;
}

static __device__ void quants_q6_k(const uint8_t *row, uint32_t c, uint8_t *q) {
    const struct q6_k *b = (const struct q6_k *)row + c / 256;
    uint32_t half = c % 256 / 128, g = c % 128 / 32;
    for (uint32_t i = 0; i < 32; i++)
        q[i] = (b->ql[64 * half + 32 * (g % 2) + i] >> (4 * (g / 2)) & 15) |
               (b->qh[32 * half + i] >> (2 * g) & 3) << 4;
}

static __device__ void put_nibbles(uint8_t *to, const uint8_t *q) {
    for (uint32_t i = 0; i < 16; i++)
        to[i] = (uint8_t)((q[i] & 15) | (q[16 + i] & 15) << 4);
}

/* 16 bytes of a tile, and where their values come from. */
struct chunk {
    uint8_t *kblock;
    uint32_t tile_rows, lane;
    uint32_t i;         /* of the lane's four */
    const uint8_t *row; /* in the file's layout */
    uint32_t column;    /* first of the chunk; F32: of the lane; BF16, F16: of the panel */
};

static __device__ uint8_t *chunk_at(const struct chunk *p) {
    return p->kblock + p->i * 512 + p->lane * 16;
}

/* One chunk of 256 columns stores their d; and the index of that d. */
static __device__ bool stores_d(const struct chunk *p) {
    return p->i == 0 && p->lane / p->tile_rows % 2 == 0;
}

static __device__ uint32_t d_index(const struct chunk *p) {
    return p->lane / (2 * p->tile_rows) * p->tile_rows + p->lane % p->tile_rows;
}

/* Scale and min of Q4_K and Q5_K. The lane's four chunks share the 16 bits of mins. */
static __device__ void put_scales(const struct chunk *p, uint8_t *scales, const uint8_t *packed,
                                  uint16_t d, uint16_t dmin) {
    int s = (int)(p->column % 256 / 32);
    uint32_t scale = (uint32_t)q4_k_scale(packed, s), min = (uint32_t)q4_k_min(packed, s);
    scales[p->lane * 4 + p->i] = (uint8_t)(scale | min >> 4 << 6);
    uint16_t *mins = (uint16_t *)(scales + TILE_MINS + p->lane * 2);
    *mins |= (uint16_t)((min & 15) << ((p->i & 1) * 8 + (p->i >> 1) * 4));
    if (stores_d(p)) {
        uint16_t *to = (uint16_t *)(scales + TILE_D + d_index(p) * 4);
        to[0] = d, to[1] = dmin;
    }
}

static __device__ void put_q4_k(const struct chunk *p) {
    uint8_t q[32];
    const struct q4_k *b = (const struct q4_k *)p->row + p->column / 256;
    quants_q4_k(p->row, p->column, q);
    put_nibbles(chunk_at(p), q);
    put_scales(p, p->kblock + TILE_Q4_SCALES, b->scales, b->d, b->dmin);
}

static __device__ void put_q5_k(const struct chunk *p) {
    uint8_t q[32];
    const struct q5_k *b = (const struct q5_k *)p->row + p->column / 256;
    quants_q5_k(p->row, p->column, q);
    put_nibbles(chunk_at(p), q);
    uint8_t *high = p->kblock + TILE_HIGH_BITS + p->lane * 16 + p->i * 4;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t bits = 0;
        for (uint32_t j = 0; j < 8; j++)
            bits |= (uint32_t)(q[4 * j + i] >> 4) << j;
        high[i] = (uint8_t)bits;
    }
    put_scales(p, p->kblock + TILE_Q5_SCALES, b->scales, b->d, b->dmin);
}

static __device__ void put_q6_k(const struct chunk *p) {
    uint8_t q[32];
    const struct q6_k *b = (const struct q6_k *)p->row + p->column / 256;
    quants_q6_k(p->row, p->column, q);
    put_nibbles(chunk_at(p), q);
    uint8_t *high = p->kblock + TILE_HIGH_BITS + p->i / 2 * 512 + p->lane * 16 + p->i % 2 * 8;
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t bits = 0;
        for (uint32_t j = 0; j < 4; j++)
            bits |= ((q[i / 4 * 16 + 4 * j + i % 4] >> 4) ^ 2u) << (2 * j);
        high[i] = (uint8_t)bits;
    }
    for (uint32_t h = 0; h < 2; h++)
        p->kblock[TILE_Q6_SCALES + p->lane * 8 + p->i * 2 + h] =
            (uint8_t)b->scales[p->column % 256 / 16 + h];
    if (stores_d(p))
        *(uint16_t *)(p->kblock + TILE_Q6_D + d_index(p) * 2) = b->d;
}

static __device__ void put_q8_0(const struct chunk *p) {
    const struct q8_0 *b = (const struct q8_0 *)p->row + p->column / 32;
    uint8_t *to = chunk_at(p);
    for (uint32_t i = 0; i < 16; i++)
        to[i] = (uint8_t)b->qs[p->column % 32 + i];
    if (p->i % 2 == 0)
        *(uint16_t *)(p->kblock + TILE_HIGH_BITS + p->lane * 4 + p->i) = b->d;
}

/* BF16, F16. n: row of the matrix. */
static __device__ void put_panel(const struct chunk *p, uint32_t n) {
    uint16_t *to = (uint16_t *)chunk_at(p);
    uint32_t c = p->lane % 8 ^ n % 8;
    const uint16_t *from = (const uint16_t *)p->row + p->column + c / 2 * 16 + c % 2 * 2;
    for (uint32_t i = 0; i < 8; i++)
        to[i] = from[i / 2 * 4 + i % 2];
}

static __device__ void put_f32(const struct chunk *p, uint32_t from_type) {
    float *to = (float *)chunk_at(p), y[32];
    decode_group(from_type, p->row, p->column / 32, 32, y);
    for (uint32_t i = 0; i < 4; i++)
        to[i] = y[p->column % 32 + i];
}

/* Chunk i of a lane in the first K block of tile 0; *row: its row of the tile. */
static __device__ struct chunk find_chunk(uint32_t type, uint32_t rows, uint32_t lane, uint32_t i,
                                          uint32_t *row) {
    uint32_t span = tile_span(type), lanes = 128 / rows;
    struct chunk p = {NULL, rows, lane, i, NULL, 0};
    *row = tile_is_int8(type) ? lane % rows : lane / lanes * 4 + i;
    p.column = tile_is_int8(type) ? lane / rows * span + i * (span / 4) : lane % lanes * span;
    if (tile_has_panels(type)) { /* eight chunks a row of a panel */
        *row = (i * 4 + lane / 8) % rows;
        p.column = (i * 4 + lane / 8) / rows * 64;
    }
    return p;
}

extern "C" __global__ void repack(const __grid_constant__ struct repack_params p) {
    uint32_t rows = p.format.rows, columns = p.format.columns;
    uint32_t kblocks = p.k / columns, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint64_t n = (uint64_t)((p.count + rows - 1) / rows) * kblocks;
    for (uint64_t i = blockIdx.x * 8 + warp; i < n; i += (uint64_t)gridDim.x * 8) {
        uint32_t tile = (uint32_t)(i / kblocks), kblock = (uint32_t)(i % kblocks);
        uint8_t *to =
            p.to + ((p.first / rows + tile) * (uint64_t)kblocks + kblock) * p.format.kblock_bytes;
        for (uint32_t b = lane; b < p.format.kblock_bytes / 16; b += 32)
            ((uint4 *)to)[b] = make_uint4(0, 0, 0, 0);
        __syncwarp();
        for (uint32_t c = 0; c < 4; c++) {
            uint32_t row;
            struct chunk chunk = find_chunk(p.format.type, rows, lane, c, &row);
            row += tile * rows;
            if (row >= p.count)
                continue;
            chunk.kblock = to;
            chunk.row = p.from + row * p.row_bytes;
            chunk.column += kblock * columns;
            switch (p.format.type) {
            case DT_Q4_K:
                put_q4_k(&chunk);
                break;
            case DT_Q5_K:
                put_q5_k(&chunk);
                break;
            case DT_Q6_K:
                put_q6_k(&chunk);
                break;
            case DT_Q8_0:
                put_q8_0(&chunk);
                break;
            case DT_F32:
                put_f32(&chunk, p.from_type);
                break;
            default:
                put_panel(&chunk, (uint32_t)p.first + row);
            }
        }
    }
}
