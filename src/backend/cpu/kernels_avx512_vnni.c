/* kernels_avx512_vnni.c - products with AVX-512 VNNI, and with AMX for many rows.
 *
 * The int8 kernels are those of kernels_x86.h with sixteen weight rows a tile; a dot product of
 * four bytes is one vpdpbusd, whose activations come as a broadcast from memory.
 *
 * AMX multiplies sixteen activation rows with sixteen weight rows: the expanded weights of a group
 * are its B tile as they are, a group of sixteen activation rows its A tile. Only the integers come
 * from it; the f32 steps are the same and in the same order, so both kernels give the same bits. */
#include "backend/cpu/kernels_rows.h"

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")))
#define BYTE_BIAS_LOG2 7
#define BYTE_FLIP 0x80
#include "backend/cpu/kernels_avx512.h"

/* ---- int8 activations ------------------------------------------------------------------------ */

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

/* ---- the rows -------------------------------------------------------------------------------- */

#define VNNI (CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI)
#define INT8_ROW(TYPE, type)                                                                       \
    {#type " avx512_vnni", DT_##TYPE, false, VNNI, TILE, bytes_##type, pack_##type, project_##type},
#define AMX_ROW(TYPE, type)                                                                        \
    {#type " amx_int8", DT_##TYPE,         false, VNNI | CPU_AMX_INT8, TILE, bytes_##type,         \
     pack_##type,       project_amx_##type},

static const struct kernel rows[] = {
    /* clang-format off */
    FOR_EACH_FAST_TYPE(AMX_ROW)
    FOR_EACH_GRID_TYPE(AMX_ROW)
    FOR_EACH_FAST_TYPE(INT8_ROW)
    FOR_EACH_GRID_TYPE(INT8_ROW)
    /* clang-format on */
};

const struct kernel_rows kernels_avx512_vnni = {.at = rows, .count = sizeof rows / sizeof *rows};

#endif
