/* kernels_f32.h - f32 activations times weights of any type: the body, for one instruction set.
 *
 * Included once by each kernels_*.c, which first defines
 *   VEC, LANES                a vector of f32 and its length
 *   V_ZERO() V_LOAD(p) V_STORE(p, v) V_FMA(a, b, c) V_SUM(v)   the last adds in a fixed order
 *   F32_ACTS                  activation rows multiplied with four weight rows in registers
 *   TARGET                    the attribute that lets the compiler use the instructions
 *   half_load, bf16_load      a vector of such values from unaligned bytes
 * and gets project_f32_<type> for F32, F16 and BF16, and PROJECT_DECODED, which makes it for a
 * block type that has a decode_row_fn decode_<type> (those of kernels_decode.h, or dtype_info's).
 *
 *   out[r][n] = sum over lanes l of (fma chain over k = l, l + LANES, ... of w[n][k] x[r][k])
 *
 * Up to four activation rows are multiplied with F32, F16 and BF16 weights in place, four weight
 * rows at a time. Otherwise sixteen weight rows, 256 values of each, are first decoded to f32
 * (16 KiB, in L1) for up to 64 activation rows, a few by four, whose sums are on the stack
 * meanwhile: a weight is decoded once for 64 rows, an activation read from L2 once for sixteen.
 * The order of the loops changes no sum. */

enum { F32_ROWS = 4, F32_TILE = 16, F32_BATCH = 64, F32_BLOCK = 256 };

#define F32_INLINE static inline __attribute__((always_inline)) TARGET

/* n values, a multiple of the type's block, from any address. */
typedef void decode_row_fn(const uint8_t *from, float *to, uint32_t n);

/* A vector of weights from bytes, for types that a vector can be loaded of. */
typedef VEC f32_load_fn(const uint8_t *p);

/* Weights may be at any address: V_LOAD takes floats, which C wants aligned. */
F32_INLINE VEC f32_load(const uint8_t *p) {
    VEC v;
    memcpy(&v, p, sizeof v);
    return v;
}

struct f32_weights {
    const uint8_t *at; /* of the first row */
    size_t row_bytes, value_bytes;
    f32_load_fn *load;
};

/* A vector whose upper lanes are zero: K need not be a multiple of LANES. */
F32_INLINE VEC load_some(const float *p, uint32_t n) {
    float some[LANES] = {0};
    memcpy(some, p, n * sizeof *p);
    return V_LOAD(some);
}

/* acc[r][j] += w[j] x[r] of LANES values from i on, the first `some` of them. */
F32_INLINE void multiply_f32_step(const struct f32_weights *w, int rows, const float *x,
                                  size_t x_stride, int acts, uint32_t i, uint32_t some,
                                  VEC (*acc)[F32_ROWS]) {
    VEC wide[F32_ROWS];
    UNROLL for (int j = 0; j < rows; j++) wide[j] =
        w->load(w->at + (size_t)j * w->row_bytes + i * w->value_bytes);
    UNROLL for (int r = 0; r < acts; r++) {
        const float *at = x + (size_t)r * x_stride + i;
        VEC value = some < LANES ? load_some(at, some) : V_LOAD(at);
        UNROLL for (int j = 0; j < rows; j++) acc[r][j] = V_FMA(wide[j], value, acc[r][j]);
    }
}

/* sums[r][j] += w[j] x[r] over n values. rows and acts are constants where this is inlined. */
F32_INLINE void multiply_f32(struct f32_weights w, int rows, const float *x, size_t x_stride,
                             int acts, uint32_t n, VEC (*sums)[F32_TILE]) {
    VEC acc[F32_ACTS][F32_ROWS];
    UNROLL for (int r = 0; r < acts; r++) UNROLL for (int j = 0; j < rows; j++) acc[r][j] =
        sums[r][j];
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        multiply_f32_step(&w, rows, x, x_stride, acts, i, LANES, acc);
    if (i < n)
        multiply_f32_step(&w, rows, x, x_stride, acts, i, n - i, acc);
    UNROLL for (int r = 0; r < acts; r++) UNROLL for (int j = 0; j < rows; j++) sums[r][j] =
        acc[r][j];
}

/* Up to sixteen weight rows with `acts` activation rows: by fours where they are whole. */
F32_INLINE void multiply_f32_tile(struct f32_weights w, uint32_t rows, const float *x,
                                  size_t x_stride, int acts, uint32_t n, VEC (*sums)[F32_TILE]) {
    uint32_t j = 0;
    for (; j + F32_ROWS <= rows; j += F32_ROWS, w.at += F32_ROWS * w.row_bytes)
        multiply_f32(w, F32_ROWS, x, x_stride, acts, n, (VEC(*)[F32_TILE])(void *)&sums[0][j]);
    for (; j < rows; j++, w.at += w.row_bytes)
        multiply_f32(w, 1, x, x_stride, acts, n, (VEC(*)[F32_TILE])(void *)&sums[0][j]);
}

F32_INLINE void multiply_f32_all(struct f32_weights w, uint32_t rows, const float *x,
                                 size_t x_stride, uint32_t acts, uint32_t n,
                                 VEC (*sums)[F32_TILE]) {
    uint32_t r = 0;
    for (; r + F32_ACTS <= acts; r += F32_ACTS)
        multiply_f32_tile(w, rows, x + r * x_stride, x_stride, F32_ACTS, n, sums + r);
    for (; r < acts; r++)
        multiply_f32_tile(w, rows, x + r * x_stride, 0, 1, n, sums + r);
}

/* One copy for all types: weights that are decoded. */
static TARGET __attribute__((noinline)) void multiply_decoded(const float *decoded, uint32_t rows,
                                                              const float *x, size_t x_stride,
                                                              uint32_t acts, uint32_t n,
                                                              VEC (*sums)[F32_TILE]) {
    struct f32_weights w = {.at = (const uint8_t *)decoded,
                            .row_bytes = F32_BLOCK * sizeof *decoded,
                            .value_bytes = sizeof *decoded,
                            .load = f32_load};
    multiply_f32_all(w, rows, x, x_stride, acts, n, sums);
}

/* ---- rows that are decoded by loading them --------------------------------------------------- */

F32_INLINE void decode_loaded(enum dtype type, f32_load_fn *load, const uint8_t *from, float *to,
                              uint32_t n) {
    const struct dtype_info *info = dtype_info((uint32_t)type);
    uint32_t whole = n / LANES * LANES;
    for (uint32_t i = 0; i < whole; i += LANES) {
        VEC v = load(from + i * info->block_bytes);
        V_STORE(to + i, v);
    }
    info->decode(from + whole * info->block_bytes, to + whole, n - whole);
}

#define DECODE_LOADED(TYPE, type, load)                                                            \
    static TARGET void decode_##type(const uint8_t *from, float *to, uint32_t n) {                 \
        decode_loaded(DT_##TYPE, load, from, to, n);                                               \
    }

DECODE_LOADED(F32, f32, f32_load)
DECODE_LOADED(F16, f16, half_load)
DECODE_LOADED(BF16, bf16, bf16_load)

/* ---- a tile ---------------------------------------------------------------------------------- */

/* Asks for what comes two blocks later in every row: at a row's end, the begin of the row that will
 * take its place. */
F32_INLINE void fetch_f32_ahead(struct f32_weights w, uint32_t rows, size_t block_bytes,
                                bool is_end) {
    size_t ahead = 2 * block_bytes + (is_end ? (rows - 1) * w.row_bytes : 0);
    for (uint32_t j = 0; j < rows; j++)
        for (size_t i = 0; i < block_bytes; i += 64)
            __builtin_prefetch(w.at + j * w.row_bytes + ahead + i);
}

/* What a product is made of, beside the tile's place. */
struct f32_product {
    const struct dtype_info *info;
    decode_row_fn *decode;
    const struct activations *acts;
    float *out;
    size_t out_stride;
};

F32_INLINE void clear_f32_sums(uint32_t count, uint32_t rows, VEC (*sums)[F32_TILE]) {
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t j = 0; j < rows; j++)
            sums[r][j] = V_ZERO();
}

F32_INLINE void store_f32_sums(const struct f32_product *p, uint32_t begin, uint32_t count,
                               uint32_t n, uint32_t rows, VEC (*sums)[F32_TILE]) {
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t j = 0; j < rows; j++)
            p->out[(begin + r) * p->out_stride + n + j] = V_SUM(sums[r][j]);
}

/* Up to F32_TILE weight rows, whose results begin at column n, against activation rows begin ..
 * begin + count, count <= F32_BATCH. */
static TARGET __attribute__((noinline)) void project_f32_tile(const struct f32_product *p,
                                                              struct f32_weights w, uint32_t n,
                                                              uint32_t rows, uint32_t begin,
                                                              uint32_t count) {
    VEC sums[F32_BATCH][F32_TILE];
    _Alignas(64) float decoded[F32_TILE * F32_BLOCK]; /* loads that cross lines cost double */
    size_t block_bytes = (size_t)(F32_BLOCK / p->info->block_values) * p->info->block_bytes;
    uint32_t k = p->acts->k;
    clear_f32_sums(count, rows, sums);
    for (uint32_t at = 0; at < k; at += F32_BLOCK, w.at += block_bytes) {
        uint32_t values = k - at < F32_BLOCK ? k - at : F32_BLOCK;
        uint32_t padding = (LANES - values % LANES) % LANES;
        fetch_f32_ahead(w, rows, block_bytes, k - at <= 2 * F32_BLOCK);
        for (uint32_t j = 0; j < rows; j++) {
            p->decode(w.at + j * w.row_bytes, decoded + j * F32_BLOCK, values);
            memset(decoded + j * F32_BLOCK + values, 0, padding * sizeof *decoded);
        }
        multiply_decoded(decoded, rows, p->acts->x + begin * p->acts->x_stride + at,
                         p->acts->x_stride, count, values, sums);
    }
    store_f32_sums(p, begin, count, n, rows, sums);
}

/* Up to four of both, weights in place. K is a multiple of LANES. */
F32_INLINE void project_f32_direct(const struct f32_product *p, struct f32_weights w, uint32_t n,
                                   uint32_t rows) {
    VEC sums[F32_ROWS][F32_TILE];
    uint32_t k = p->acts->k, count = p->acts->n_rows;
    clear_f32_sums(count, rows, sums);
    for (uint32_t at = 0; at < k; at += F32_BLOCK, w.at += F32_BLOCK * w.value_bytes) {
        uint32_t values = k - at < F32_BLOCK ? k - at : F32_BLOCK;
        fetch_f32_ahead(w, rows, F32_BLOCK * w.value_bytes, k - at <= 2 * F32_BLOCK);
        multiply_f32_all(w, rows, p->acts->x + at, p->acts->x_stride, count, values, sums);
    }
    store_f32_sums(p, 0, count, n, rows, sums);
}

/* ---- matrices -------------------------------------------------------------------------------- */

static TARGET void project_f32_decoded(enum dtype type, decode_row_fn *decode, const void *weights,
                                       uint32_t first, uint32_t count,
                                       const struct activations *acts, float *out,
                                       size_t out_stride) {
    const struct dtype_info *info = dtype_info((uint32_t)type);
    struct f32_product p = {info, decode, acts, out, out_stride};
    struct f32_weights w = {
        .row_bytes = (size_t)(acts->k / info->block_values) * info->block_bytes,
    };
    w.at = (const uint8_t *)weights + first * w.row_bytes;
    for (uint32_t n = 0; n < count; n += F32_TILE, w.at += F32_TILE * w.row_bytes) {
        uint32_t rows = count - n < F32_TILE ? count - n : F32_TILE;
        for (uint32_t r = 0; r < acts->n_rows; r += F32_BATCH) {
            uint32_t batch = acts->n_rows - r < F32_BATCH ? acts->n_rows - r : F32_BATCH;
            project_f32_tile(&p, w, n, rows, r, batch);
        }
    }
}

/* project_f32_<type> from decode_<type>. */
#define PROJECT_DECODED(TYPE, type)                                                                \
    static void project_f32_##type(const void *weights, uint32_t first, uint32_t count,            \
                                   const struct activations *acts, float *out,                     \
                                   size_t out_stride) {                                            \
        project_f32_decoded(DT_##TYPE, decode_##type, weights, first, count, acts, out,            \
                            out_stride);                                                           \
    }

F32_INLINE void project_f32_loaded(enum dtype type, f32_load_fn *load, decode_row_fn *decode,
                                   const void *weights, uint32_t first, uint32_t count,
                                   const struct activations *acts, float *out, size_t out_stride) {
    if (acts->n_rows > F32_ROWS || acts->k % LANES != 0) {
        project_f32_decoded(type, decode, weights, first, count, acts, out, out_stride);
        return;
    }
    const struct dtype_info *info = dtype_info((uint32_t)type);
    struct f32_product p = {info, decode, acts, out, out_stride};
    struct f32_weights w = {.value_bytes = info->block_bytes, .load = load};
    w.row_bytes = acts->k * w.value_bytes;
    w.at = (const uint8_t *)weights + first * w.row_bytes;
    for (uint32_t n = 0; n < count; n += F32_ROWS, w.at += F32_ROWS * w.row_bytes)
        project_f32_direct(&p, w, n, count - n < F32_ROWS ? count - n : F32_ROWS);
}

#define PROJECT_LOADED(TYPE, type, load)                                                           \
    static TARGET void project_f32_##type(const void *weights, uint32_t first, uint32_t count,     \
                                          const struct activations *acts, float *out,              \
                                          size_t out_stride) {                                     \
        project_f32_loaded(DT_##TYPE, load, decode_##type, weights, first, count, acts, out,       \
                           out_stride);                                                            \
    }

PROJECT_LOADED(F32, f32, f32_load)
PROJECT_LOADED(F16, f16, half_load)
PROJECT_LOADED(BF16, bf16, bf16_load)

/* The table's rows for them. */
#define F32_KERNEL(TYPE, type, isa, needs)                                                         \
    { #type " f32 " isa, DT_##TYPE, true, needs, 1, NULL, NULL, project_f32_##type }
