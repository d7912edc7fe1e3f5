/* kernels_f32.h - f32 activations times weights of any type: the body, for one instruction set.
 *
 * Included once by each kernels_*.c, which first defines
 *   VEC, LANES                a vector of f32 and its length
 *   V_ZERO() V_LOAD(p) V_STORE(p, v) V_FMA(a, b, c) V_SUM(v)   the last adds in a fixed order
 *   TARGET                    the attribute that lets the compiler use the instructions
 *   half_load, bf16_load      a vector of such values from unaligned bytes
 * and gets project_f32_<type> for every type.
 *
 *   out[r][n] = sum over lanes l of (fma chain over k = l, l + LANES, ... of w[n][k] x[r][k])
 *
 * Four weight rows at a time, 256 values of each. Up to four activation rows meet F32, F16 and BF16
 * weights where they lie. Otherwise the 4 x 256 values are first decoded to f32 (4 KiB, in L1),
 * then meet up to 32 activation rows, four by four, whose sums rest on the stack meanwhile: a
 * weight is decoded once for 32 rows. */

enum { F32_ROWS = 4, F32_ACTS = 4, F32_BATCH = 32, F32_BLOCK = 256 };

#define F32_INLINE static inline __attribute__((always_inline)) TARGET

/* A vector of weights from bytes, for types that a vector can be loaded of. */
typedef VEC f32_load_fn(const uint8_t *p);

F32_INLINE VEC f32_load(const uint8_t *p) {
    return V_LOAD((const float *)(const void *)p);
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

/* sums[r][j] += w[j] x[r] over n values. rows and acts are constants where this is inlined. */
F32_INLINE void multiply_f32(struct f32_weights w, int rows, const float *x, size_t x_stride,
                             int acts, uint32_t n, VEC (*sums)[F32_ROWS]) {
    VEC acc[F32_ACTS][F32_ROWS];
    UNROLL for (int r = 0; r < acts; r++) UNROLL for (int j = 0; j < rows; j++) acc[r][j] =
        sums[r][j];
    for (uint32_t i = 0; i < n; i += LANES) {
        VEC wide[F32_ROWS];
        UNROLL for (int j = 0; j < rows; j++) wide[j] =
            w.load(w.at + (size_t)j * w.row_bytes + i * w.value_bytes);
        UNROLL for (int r = 0; r < acts; r++) {
            const float *at = x + (size_t)r * x_stride + i;
            VEC value = n - i < LANES ? load_some(at, n - i) : V_LOAD(at);
            UNROLL for (int j = 0; j < rows; j++) acc[r][j] = V_FMA(wide[j], value, acc[r][j]);
        }
    }
    UNROLL for (int r = 0; r < acts; r++) UNROLL for (int j = 0; j < rows; j++) sums[r][j] =
        acc[r][j];
}

/* The same with any number of both: four by four where they are whole, else one by one. */
F32_INLINE void multiply_f32_all(struct f32_weights w, int rows, const float *x, size_t x_stride,
                                 uint32_t acts, uint32_t n, VEC (*sums)[F32_ROWS]) {
    uint32_t r = 0;
    for (; rows == F32_ROWS && r + F32_ACTS <= acts; r += F32_ACTS)
        multiply_f32(w, F32_ROWS, x + r * x_stride, x_stride, F32_ACTS, n, sums + r);
    for (; rows == F32_ROWS && r < acts; r++)
        multiply_f32(w, F32_ROWS, x + r * x_stride, 0, 1, n, sums + r);
    for (; r < acts; r++) {
        for (int j = 0; j < rows; j++) {
            struct f32_weights one = w;
            one.at += (size_t)j * w.row_bytes;
            multiply_f32(one, 1, x + r * x_stride, 0, 1, n, (VEC(*)[F32_ROWS])(void *)&sums[r][j]);
        }
    }
}

/* The decoded values of one block of four rows, as weights; zeros behind them. */
F32_INLINE struct f32_weights decode_f32(const struct dtype_info *info, struct f32_weights from,
                                         int rows, uint32_t values, float *to) {
    for (int j = 0; j < rows; j++) {
        const uint8_t *at = from.at + (size_t)j * from.row_bytes;
        uint32_t whole = from.load ? values / LANES * LANES : 0;
        for (uint32_t i = 0; i < whole; i += LANES) {
            VEC v = from.load(at + i * from.value_bytes);
            V_STORE(to + j * F32_BLOCK + i, v);
        }
        info->decode(at + whole * from.value_bytes, to + j * F32_BLOCK + whole, values - whole);
        memset(to + j * F32_BLOCK + values, 0, (F32_BLOCK - values) * sizeof *to);
    }
    return (struct f32_weights){.at = (const uint8_t *)to,
                                .row_bytes = F32_BLOCK * sizeof *to,
                                .value_bytes = sizeof *to,
                                .load = f32_load};
}

/* Asks for what comes two blocks later in every row: at a row's end, the begin of the row that will
 * take its place. */
F32_INLINE void fetch_f32_ahead(struct f32_weights w, int rows, size_t block_bytes, bool is_end) {
    size_t ahead = 2 * block_bytes + (is_end ? (F32_ROWS - 1) * w.row_bytes : 0);
    for (int j = 0; j < rows; j++)
        for (size_t i = 0; i < block_bytes; i += 64)
            __builtin_prefetch(w.at + (size_t)j * w.row_bytes + ahead + i);
}

/* Up to four weight rows against activation rows begin .. begin + count, count <= F32_BATCH. */
F32_INLINE void project_f32_tile(const struct dtype_info *info, struct f32_weights w, int rows,
                                 const struct activations *acts, uint32_t begin, uint32_t count,
                                 float *out, size_t out_stride) {
    VEC sums[F32_BATCH][F32_ROWS];
    float decoded[F32_ROWS * F32_BLOCK];
    size_t block_bytes = (size_t)(F32_BLOCK / info->block_values) * info->block_bytes;
    for (uint32_t r = 0; r < count; r++)
        for (int j = 0; j < F32_ROWS; j++)
            sums[r][j] = V_ZERO();
    for (uint32_t k = 0; k < acts->k; k += F32_BLOCK, w.at += block_bytes) {
        uint32_t values = acts->k - k < F32_BLOCK ? acts->k - k : F32_BLOCK;
        const float *x = acts->x + begin * acts->x_stride + k;
        fetch_f32_ahead(w, rows, block_bytes, acts->k - k <= 2 * F32_BLOCK);
        if (w.load && count <= F32_ACTS && values % LANES == 0)
            multiply_f32_all(w, rows, x, acts->x_stride, count, values, sums);
        else
            multiply_f32_all(decode_f32(info, w, rows, values, decoded), rows, x, acts->x_stride,
                             count, values, sums);
    }
    for (uint32_t r = 0; r < count; r++)
        for (int j = 0; j < rows; j++)
            out[(begin + r) * out_stride + (size_t)j] = V_SUM(sums[r][j]);
}

F32_INLINE void project_f32(enum dtype type, f32_load_fn *load, const void *weights, uint32_t first,
                            uint32_t count, const struct activations *acts, float *out,
                            size_t out_stride) {
    const struct dtype_info *info = dtype_info((uint32_t)type);
    struct f32_weights w = {.load = load, .value_bytes = info->block_bytes};
    w.row_bytes = (size_t)(acts->k / info->block_values) * info->block_bytes;
    w.at = (const uint8_t *)weights + first * w.row_bytes;
    for (uint32_t n = 0; n < count; n += F32_ROWS, w.at += F32_ROWS * w.row_bytes) {
        int rows = count - n < F32_ROWS ? (int)(count - n) : F32_ROWS;
        for (uint32_t r = 0; r < acts->n_rows; r += F32_BATCH) {
            uint32_t batch = acts->n_rows - r < F32_BATCH ? acts->n_rows - r : F32_BATCH;
            project_f32_tile(info, w, rows, acts, r, batch, out + n, out_stride);
        }
    }
}

#define PROJECT_F32(TYPE, type, load)                                                              \
    static TARGET void project_f32_##type(const void *weights, uint32_t first, uint32_t count,     \
                                          const struct activations *acts, float *out,              \
                                          size_t out_stride) {                                     \
        project_f32(DT_##TYPE, load, weights, first, count, acts, out, out_stride);                \
    }

PROJECT_F32(F32, f32, f32_load)
PROJECT_F32(F16, f16, half_load)
PROJECT_F32(BF16, bf16, bf16_load)

/* One body for all the others. */
static TARGET void project_f32_decoded(enum dtype type, const void *weights, uint32_t first,
                                       uint32_t count, const struct activations *acts, float *out,
                                       size_t out_stride) {
    project_f32(type, NULL, weights, first, count, acts, out, out_stride);
}

#define PROJECT_DECODED(TYPE, type)                                                                \
    static void project_f32_##type(const void *weights, uint32_t first, uint32_t count,            \
                                   const struct activations *acts, float *out,                     \
                                   size_t out_stride) {                                            \
        project_f32_decoded(DT_##TYPE, weights, first, count, acts, out, out_stride);              \
    }
FOR_EACH_QUANT(PROJECT_DECODED)

/* The table's rows for them. */
#define F32_KERNEL(TYPE, type, isa, needs)                                                         \
    { #type " f32 " isa, DT_##TYPE, true, needs, 1, NULL, NULL, project_f32_##type }
