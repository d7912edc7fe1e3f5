/* kernels_avx512.c - products with AVX-512 VNNI, and with AMX for many rows.
 *
 * The int8 kernels are those of kernels_x86.h with sixteen weight rows a tile; a dot product of
 * four bytes is one vpdpbusd, whose activations come as a broadcast from memory.
 *
 * AMX multiplies sixteen activation rows with sixteen weight rows: the expanded weights of a group
 * are its B tile as they are, a group of sixteen activation rows its A tile. Only the integers come
 * from it; the f32 steps are the same and in the same order, so both kernels give the same bits. */
#include "backend/cpu/kernels_rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels_grid.h"
#include "backend/cpu/kernels_pack.h"
#include "base/cpu.h"
#include "quant/encode.h"
#include "quant/mxfp4.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum { TILE = 16 };
#define BYTE_BIAS_LOG2 7
#define BYTE_FLIP 0x80
#define VEC __m512
#define INTS __m512i
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_FNMA(a, b, c) _mm512_fnmadd_ps(a, b, c)
#define V_SET(x) _mm512_set1_ps(x)

/* ---- vectors --------------------------------------------------------------------------------- */

INLINE __m512i ints_load(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}

/* The bits of `mask` after a shift to the right: one instruction each, whatever g is. */
INLINE __m512i bits_at(__m512i v, int shift, int mask) {
    if (shift)
        v = _mm512_srlv_epi32(v, _mm512_set1_epi32(shift));
    return _mm512_and_si512(v, _mm512_set1_epi32(mask));
}

/* low | (v shifted left) & mask; a shift by less than zero goes right. Nothing that crosses from
 * byte to byte passes the mask, so a rotation will do. */
INLINE __m512i add_bits(__m512i low, __m512i v, int left, int mask) {
    __m512i rotated = _mm512_rolv_epi32(v, _mm512_set1_epi32(left & 31));
    return _mm512_ternarylogic_epi32(rotated, _mm512_set1_epi32(mask), low, 0xEA);
}

INLINE __m512i look_up(const uint8_t *values, __m512i nibbles) {
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values));
    return _mm512_shuffle_epi8(table, nibbles);
}

INLINE __m512i widen_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m512i widen_i8(const uint8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m512 half_load(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 f32_of(__m512i v) {
    return _mm512_cvtepi32_ps(v);
}

INLINE __m512i grid_4(const uint32_t *grid, __m512i index) {
    return _mm512_i32gather_epi32(index, grid, 4);
}

/* Eight rows' entries at a time: half the loads of two look-ups of four bytes. */
INLINE void grid_8(const uint64_t *grid, __m512i index, __m512i *w) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i a = _mm512_i32gather_epi64(_mm512_castsi512_si256(index), grid, 8);
    __m512i b = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(index, 1), grid, 8);
    w[0] = _mm512_permutex2var_epi32(a, even, b);
    w[1] = _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
}

/* Bytes with the bias of the grids; those whose bit of `signs`, 4 j .. 4 j + 3, is set are negated.
 */
INLINE __m512i negate(__m512i w, __m512i signs, int j) {
    const __m512i lane =
        _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
    __m512i bits = _mm512_set1_epi32(j % 2 ? (int)0x80402010 : 0x08040201);
    __m512i spread =
        _mm512_shuffle_epi8(signs, _mm512_add_epi8(lane, _mm512_set1_epi8((char)(j / 2))));
    return _mm512_mask_sub_epi8(w, _mm512_test_epi8_mask(spread, bits),
                                _mm512_set1_epi8((char)(2 * GRID_BIAS)), w);
}

/* Each byte less `by`. */
INLINE __m512i bytes_less(__m512i v, int by) {
    return _mm512_sub_epi8(v, _mm512_set1_epi8((char)by));
}

/* The largest of n values (a multiple of 32) without their signs, as bits. */
INLINE int32_t largest_bits(const float *x, uint32_t n) {
    const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
    __m512i max = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 16)
        max = _mm512_max_epi32(max, _mm512_and_si512(_mm512_loadu_si512(x + i), no_sign));
    return _mm512_reduce_max_epi32(max);
}

/* 32 values to int8; sum: of either half. */
INLINE void quantize_group(const float *x, float inverse, int8_t *q, int32_t *sum) {
    for (int h = 0; h < 2; h++) {
        __m512 y = _mm512_loadu_ps(x + 16 * h) * V_SET(inverse) + V_SET(ROUND_MAGIC);
        __m128i bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(y));
        _mm_storeu_si128((__m128i *)(q + 16 * h), bytes);
        __m128i four = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), bytes);
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        sum[h] = _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
    }
}

#define ACTS_INLINE INLINE
#define ACTS_TARGET TARGET
#include "backend/cpu/kernels_acts.h"

/* ---- int8 activations ------------------------------------------------------------------------ */

#include "backend/cpu/kernels_x86_expand.h"

/* A row's dot product is a chain of eight instructions that wait five cycles for each other, so
 * rows are multiplied side by side. */
enum { DOT_FEW = 4, DOT_MANY = 8 };

/* Adds to every lane four weights times the four activations at q. With `in_order`, in the order of
 * the source and by one instruction, where gcc 12 makes a broadcast and a product of it: a quarter
 * faster where nothing else is to be done meanwhile. */
INLINE __m512i add_four(__m512i dot, __m512i w, const int8_t *q, bool in_order) {
    int32_t four;
    if (in_order) {
        __asm__ volatile("vpdpbusd %2%{1to16%}, %1, %0"
                         : "+v"(dot)
                         : "v"(w), "m"(*(const int8_t(*)[4])q));
        return dot;
    }
    memcpy(&four, q, sizeof four);
    return _mm512_dpbusd_epi32(dot, w, _mm512_set1_epi32(four));
}

/* The dot products of run h of a group and n rows: the bias is taken off first. Of one row or two
 * each two products are a chain of their own. */
INLINE void dot_rows(const struct format *f, const struct expanded *w, const struct act_group *rows,
                     size_t stride, int n, int h, __m512i *dot) {
    const int quads = 8 / f->runs, chains = n > 2 ? 1 : quads / 2;
    __m512i part[DOT_MANY][4];
    UNROLL for (int r = 0; r < n; r++) {
        const struct act_group *a = rows + (size_t)r * stride;
        int32_t minus = f->runs == 1 ? a->minus_sum : a->minus_half[h];
        part[r][0] = f->bias_log2 ? _mm512_slli_epi32(_mm512_set1_epi32(minus), f->bias_log2)
                                  : _mm512_setzero_si512();
        UNROLL for (int c = 1; c < chains; c++) part[r][c] = _mm512_setzero_si512();
    }
    UNROLL for (int j = 0; j < quads; j++) UNROLL for (int r = 0; r < n; r++) part[r][j % chains] =
        add_four(part[r][j % chains], w->w[quads * h + j],
                 rows[(size_t)r * stride].q + 4 * (quads * h + j), n == DOT_MANY);
    UNROLL for (int r = 0; r < n; r++) {
        dot[r] = part[r][0];
        UNROLL for (int c = 1; c < chains; c++) dot[r] = _mm512_add_epi32(dot[r], part[r][c]);
    }
}

#include "backend/cpu/kernels_x86.h"

/* ---- AMX ------------------------------------------------------------------------------------- */

#define AMX                                                                                        \
    __attribute__((                                                                                \
        target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma,amx-tile,amx-int8")))
#define AMX_INLINE static inline __attribute__((always_inline)) AMX

enum {
    AMX_ROWS = 16,    /* activation rows of a product */
    AMX_PRODUCTS = 4, /* tile products under way at once */
};

/* What ldtilecfg reads: bytes a row, and rows, of each tile register. */
struct tile_config {
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "as the processor reads it");

/* Tile registers 0 to 3: sums. 4 and 5: activations. 6 and 7: weights. */
AMX_INLINE void set_tiles(const struct format *f) {
    struct tile_config c = {.palette = 1};
    uint8_t quads = (uint8_t)(8 / f->runs);
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = i == 4 || i == 5 ? (uint16_t)(4 * quads) : 64;
        c.rows[i] = i < 6 ? AMX_ROWS : quads;
    }
    /* gcc 12 believes that the instruction reads eight bytes of it, and may drop the others. */
    __asm__ volatile("" : : "m"(c));
    _tile_loadconfig(&c);
}

/* Sixteen activation rows and a tile: product p < n is of run p % runs of group p / runs. */
struct amx_round {
    const struct expanded *w; /* signed */
    const struct act_group *rows;
    const __m512 *from; /* sums so far, (AMX_ROWS), and where they go */
    __m512 *to;
    int n;
};

/* Products begin at the bits of 1.5 * 2^23, so that what comes out is a float, that and the dot
 * product, which is less than 2^22: a subtraction makes an f32 of it. While tiles are loaded,
 * multiplied or stored, one of two ports is closed to products and conversions of whole vectors,
 * but not to additions. */
#define MAGIC 12582912.0f
static const float amx_magic[TILE] __attribute__((aligned(64))) = {
    MAGIC, MAGIC, MAGIC, MAGIC, MAGIC, MAGIC, MAGIC, MAGIC,
    MAGIC, MAGIC, MAGIC, MAGIC, MAGIC, MAGIC, MAGIC, MAGIC,
};

#define AMX_START(p, A, B)                                                                         \
    do {                                                                                           \
        _tile_loadd(p, amx_magic, 0);                                                              \
        _tile_loadd(A, next->rows[(p) / f->runs].q + 16 * ((p) % f->runs), row_bytes);             \
        _tile_loadd(B, next->w[(p) / f->runs].w + 4 * ((p) % f->runs), 64);                        \
        _tile_dpbssd(p, A, B);                                                                     \
    } while (0)

/* The f32 part of product p of sixteen rows. */
AMX_INLINE void add_product(const struct format *f, const struct amx_round *round, int p,
                            size_t stride, const float (*dots)[TILE], __m512 *acc) {
    const struct expanded *w = round->w + p / f->runs;
    const int h = p % f->runs;
    UNROLL for (int r = 0; r < AMX_ROWS; r++) {
        const struct act_group *a = round->rows + (size_t)r * stride + p / f->runs;
        __m512 dot = _mm512_load_ps(dots[r]) + V_SET(-MAGIC);
        acc[r] = add_run(f, w->scale[h], w->min[h], a, h, dot, acc[r]);
    }
}

#define AMX_STEP(p, A, B)                                                                          \
    do {                                                                                           \
        if ((p) < last->n)                                                                         \
            _tile_stored(p, dots[p], 64);                                                          \
        if ((p) < next->n)                                                                         \
            AMX_START(p, A, B);                                                                    \
        if ((p) < last->n)                                                                         \
            add_product(f, last, p, stride, dots[p], acc);                                         \
    } while (0)

/* Ends the products of one round and starts those of the next, which take long from load to store:
 * each as soon as its tile register is free. */
AMX_INLINE void amx_next_round(const struct format *f, const struct amx_round *last,
                               const struct amx_round *next, size_t stride) {
    _Alignas(64) float dots[AMX_PRODUCTS][AMX_ROWS][TILE];
    const int row_bytes = (int)(stride * sizeof *next->rows);
    __m512 acc[AMX_ROWS];
    UNROLL for (int r = 0; r < AMX_ROWS; r++) acc[r] = last->from[r];
    AMX_STEP(0, 4, 6);
    AMX_STEP(1, 5, 7);
    AMX_STEP(2, 4, 6);
    AMX_STEP(3, 5, 7);
    UNROLL for (int r = 0; r < AMX_ROWS; r++) last->to[r] = acc[r];
}

/* Some tiles, of `columns` weight rows, against `batch` activation rows, a multiple of AMX_ROWS. A
 * few groups of the activations (16 KiB) stay in L1 while the tiles take their turns. */
AMX_INLINE void project_amx_tiles(const struct format *f, struct tiles tiles, uint32_t columns,
                                  const struct act_group *rows, size_t stride, uint32_t batch,
                                  float *out, size_t out_stride) {
    __m512 sums[MANY_TILES][MANY_ROWS];
    struct expanded w[2][MANY_GROUPS];
    const __m512 zeros[AMX_ROWS] = {0};
    struct amx_round last = {w[0], rows, zeros, sums[0], 0};
    const int step = AMX_PRODUCTS / f->runs;
    for (uint32_t at = 0, round = 0; at < tiles.groups; at += MANY_GROUPS) {
        int n = tiles.groups - at < MANY_GROUPS ? (int)(tiles.groups - at) : MANY_GROUPS;
        for (uint32_t t = 0; t < tiles.count; t++, round++) {
            const struct expanded *expanded = w[round % 2];
            expand_groups(f, tiles.at + t * tiles.bytes, at, n, true, w[round % 2]);
            for (uint32_t r = 0; r < batch; r += AMX_ROWS) {
                for (uint32_t i = r / AMX_ROWS; i < MANY_GROUPS; i += batch / AMX_ROWS)
                    fetch_group(f, &tiles, t, at + MANY_AHEAD + i);
                for (int i = 0; i < n; i += step) {
                    __m512 *to = sums[t] + r;
                    struct amx_round next = {expanded + i, rows + r * stride + at + i,
                                             at + (uint32_t)i ? to : zeros, to,
                                             (n - i < step ? n - i : step) * f->runs};
                    amx_next_round(f, &last, &next, stride);
                    last = next;
                }
            }
        }
    }
    amx_next_round(f, &last, &(struct amx_round){.n = 0}, stride);
    store_sums(sums[0], MANY_ROWS, batch, columns, out, out_stride);
}

/* Whole sixteens of rows with AMX, the rest with VNNI. */
AMX_INLINE void project_amx(const struct format *f, const void *weights, uint32_t first,
                            uint32_t count, const struct activations *acts, float *out,
                            size_t out_stride) {
    uint32_t many = acts->n_rows / AMX_ROWS * AMX_ROWS;
    if (many)
        set_tiles(f);
    project_rows(f, project_amx_tiles, many, weights, first, count, acts, out, out_stride);
    if (many)
        _tile_release();
}

#define PROJECT_AMX(TYPE, type, runs, bias_log2, has_min, max)                                     \
    static AMX void project_amx_##type(const void *weights, uint32_t first, uint32_t count,        \
                                       const struct activations *acts, float *out,                 \
                                       size_t out_stride) {                                        \
        project_amx(&format_##type, weights, first, count, acts, out, out_stride);                 \
    }
FORMATS(PROJECT_AMX)

/* ---- f32 activations ------------------------------------------------------------------------- */

INLINE __m512 bf16_load(const uint8_t *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* Sixteen signed bytes as f32. */
INLINE void widen_16(bytes16 q, __m512 *to) {
    to[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)q));
}

INLINE bytes16 look_up_16(const uint8_t *values, bytes16 nibbles) {
    return (bytes16)_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)values), (__m128i)nibbles);
}

INLINE float half_to_f32(uint16_t half) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

/* Halves, quarters and so on are added to each other: fixed, unlike _mm512_reduce_add_ps. */
INLINE float sum_lanes(__m512 v) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#define LANES 16
#define F32_ACTS 4
#define V_ZERO() _mm512_setzero_ps()
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps(p, v)
#define V_SUM(v) sum_lanes(v)
#include "backend/cpu/kernels_decode.h"

/* ---- attention ------------------------------------------------------------------------------- */

#define V_FUSED(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_MAX(a, b) _mm512_max_ps(a, b)
#define V_HALF(v) _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define V_FOUR(p) _mm512_broadcast_f32x4(_mm_loadu_ps(p))
#define V_PAIRS(a, b) (_mm512_shuffle_ps(a, b, 0x88) + _mm512_shuffle_ps(a, b, 0xdd))
#define V_WEIGHTS const float *
#define V_LOAD_WEIGHTS(p) (p)
#define V_WEIGHT(w, i) V_SET((w)[i])
#define V_INTERLEAVE(from, row, to) interleave(from, row, to)
#define ATTEND_ROWS 5
#define ATTEND_F16_ROWS 8

/* Caches of q8_0 and q4_0. A signed byte becomes an f32 in two instructions: a dot product of the
 * four bytes of a lane with a 1 and three zeros is added to the bits of 1.5 * 2^23, and
 *
 *   fma(1.5 * 2^23 + q, d, -1.5 * 2^23 d) = d q
 *
 * is exact for every finite d: d has 11 bits, so each product fits an f32. */
#define BYTE_ONE 12582912.0f

INLINE __m512 byte_of(__m512i bytes, int k) {
    __m512i one = _mm512_castps_si512(_mm512_set1_ps(BYTE_ONE));
    return _mm512_castsi512_ps(_mm512_dpbusd_epi32(one, _mm512_set1_epi32(1 << 8 * k), bytes));
}

struct key_scales {
    __m512 d, minus; /* each of four scales in four lanes; times -1.5 * 2^23 */
};

INLINE struct key_scales key_scales(const uint16_t *f16s) {
    const __m512i each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m128 four = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(const void *)f16s));
    __m512 d = _mm512_permutexvar_ps(each, _mm512_castps128_ps512(four));
    return (struct key_scales){d, d * V_SET(-BYTE_ONE)};
}

/* Four rows of four bytes to four columns, in each quarter of a vector. */
INLINE __m512i transpose_bytes(__m512i v) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(order));
}

INLINE __m512i four_rows(const uint8_t *p, size_t row) {
    const __m128i *a = (const __m128i *)p, *b = (const __m128i *)(p + row);
    const __m128i *c = (const __m128i *)(p + 2 * row), *d = (const __m128i *)(p + 3 * row);
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128(a));
    v = _mm512_inserti32x4(v, _mm_loadu_si128(b), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128(c), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128(d), 3);
}

/* Byte k of a lane: the key's value in four k, or four 4 + k. */
INLINE void interleave_block(const uint8_t *from, size_t row, bool is_q4, uint8_t *to) {
    const __m512i low = _mm512_set1_epi8(15), bias = _mm512_set1_epi8(8);
    __m512i a = transpose_bytes(four_rows(from + 2, row)), b;
    if (is_q4) {
        b = _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(a, 4), low), bias);
        a = _mm512_sub_epi8(_mm512_and_si512(a, low), bias);
    } else {
        b = transpose_bytes(four_rows(from + 18, row));
    }
    _mm512_storeu_si512(to, a);
    _mm512_storeu_si512(to + 64, b);
}

INLINE __m512 key_values(const uint8_t *bytes, int i, const struct key_scales *s) {
    return _mm512_fmadd_ps(byte_of(ints_load(bytes + i / 4 * 64), i % 4), s->d, s->minus);
}

/* With two vectors, what is used again stays in registers; a query alone has too few sums then. */
#define KEY_VECTORS(rows) ((rows) == 1 ? 4 : 2)

enum { VALUE_BLOCKS = 2 };
struct value_scales {
    float d[VALUE_BLOCKS][ATTEND_POSITIONS], minus[VALUE_BLOCKS][ATTEND_POSITIONS];
};

INLINE void put_scales(const uint16_t *f16s, uint32_t b, uint32_t p, struct value_scales *to) {
    __m512 d = half_load((const uint8_t *)f16s);
    _mm512_storeu_ps(to->d[b] + p, d);
    _mm512_storeu_ps(to->minus[b] + p, d * V_SET(-BYTE_ONE));
}

/* The 64 quants of two blocks, as signed bytes. */
INLINE __m512i two_blocks(const uint8_t *at, bool is_q4) {
    if (!is_q4) {
        __m512i v = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(at + 2)));
        return _mm512_inserti64x4(v, _mm256_loadu_si256((const __m256i *)(at + 36)), 1);
    }
    const __m512i shift = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(at + 2)));
    v = _mm512_mask_broadcast_i32x4(v, 0xff00, _mm_loadu_si128((const __m128i *)(at + 20)));
    v = _mm512_and_si512(_mm512_srlv_epi64(v, shift), _mm512_set1_epi8(15));
    return _mm512_sub_epi8(v, _mm512_set1_epi8(8));
}

/* Byte k of a lane is to be the lane's value in vector k. */
INLINE void block_values(const uint8_t *at, bool is_q4, const struct value_scales *s, uint32_t p,
                         __m512 *to) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i bytes = transpose_bytes(_mm512_permutexvar_epi32(order, two_blocks(at, is_q4)));
    UNROLL for (int k = 0; k < 4; k++) to[k] =
        _mm512_fmadd_ps(byte_of(bytes, k), V_SET(s->d[k / 2][p]), V_SET(s->minus[k / 2][p]));
}

/* Sixteen f16 of four rows: four of each row to a vector, vectors 128 bytes apart. */
INLINE void interleave(const uint8_t *from, size_t row, uint8_t *to) {
    const __m512i first = _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13);
    const __m512i last = _mm512_setr_epi64(2, 6, 10, 14, 3, 7, 11, 15);
    __m256i r[4];
    UNROLL for (int i = 0; i < 4; i++) r[i] =
        _mm256_loadu_si256((const __m256i *)(from + (size_t)i * row));
    __m512i a = _mm512_inserti64x4(_mm512_castsi256_si512(r[0]), r[1], 1);
    __m512i b = _mm512_inserti64x4(_mm512_castsi256_si512(r[2]), r[3], 1);
    __m512i low = _mm512_permutex2var_epi64(a, first, b);
    __m512i high = _mm512_permutex2var_epi64(a, last, b);
    _mm256_storeu_si256((__m256i *)to, _mm512_castsi512_si256(low));
    _mm256_storeu_si256((__m256i *)(to + 128), _mm512_extracti64x4_epi64(low, 1));
    _mm256_storeu_si256((__m256i *)(to + 256), _mm512_castsi512_si256(high));
    _mm256_storeu_si256((__m256i *)(to + 384), _mm512_extracti64x4_epi64(high, 1));
}

#include "backend/cpu/kernels_attend.h"

/* ---- the rows -------------------------------------------------------------------------------- */

#define VNNI (CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI)
#define INT8_ROW(TYPE, type)                                                                       \
    {#type " avx512_vnni", DT_##TYPE, false, VNNI, TILE, bytes_##type, pack_##type, project_##type},
#define AMX_ROW(TYPE, type)                                                                        \
    {#type " amx_int8", DT_##TYPE,         false, VNNI | CPU_AMX_INT8, TILE, bytes_##type,         \
     pack_##type,       project_amx_##type},
#define F32_ROW(TYPE, type) F32_KERNEL(TYPE, type, "avx512", VNNI),

static const struct kernel rows[] = {
    /* clang-format off */
    FOR_EACH_FAST_TYPE(AMX_ROW)
    FOR_EACH_GRID_TYPE(AMX_ROW)
    FOR_EACH_FAST_TYPE(INT8_ROW)
    FOR_EACH_GRID_TYPE(INT8_ROW)
    FOR_EACH_FAST_TYPE(F32_ROW)
    F32_ROW(F32, f32)
    F32_ROW(F16, f16)
    F32_ROW(BF16, bf16)
    /* clang-format on */
};

const struct kernel_rows kernels_avx512 = {
    rows, sizeof rows / sizeof *rows, {"attend avx512", VNNI, attend_split}, act_groups_vectors};

#endif
