/* kernels_f32.h - f32 activations times weights of any type: the body, for one instruction set.
 *
 * Included once by each kernels_*.c, which first defines
 *   VEC, LANES             a vector of f32 and its length
 *   V_ZERO() V_LOAD(p) V_FMA(a, b, c) V_SUM(v)      V_SUM adds the lanes in a fixed order
 *   TARGET                 the attribute that lets the compiler use the instructions
 *   DECODE_F16 DECODE_BF16 dtype_decode_fn of those types
 * and gets project_f32_<type> for every type.
 *
 *   out[r][n] = sum over lanes l of (fma chain over k = l, l + LANES, ... of w[n][k] x[r][k])
 *
 * Four weight rows at a time: 256 values of each are decoded to f32 (4 KiB, in L1), then meet up to
 * 32 activation rows, four by four, whose sums rest on the stack meanwhile. So a weight is decoded
 * once for 32 rows, and read from memory once for all. */

enum { F32_ROWS = 4, F32_BATCH = 32, F32_BLOCK = 256 };

/* A vector whose upper lanes are zero: K need not be a multiple of LANES. */
static inline __attribute__((always_inline)) TARGET VEC load_some(const float *p, uint32_t n) {
    float some[LANES] = {0};
    memcpy(some, p, n * sizeof *p);
    return V_LOAD(some);
}

/* sums[r][j] += w[j] x[r] over n values. rows and acts are constants where this is inlined. */
static inline __attribute__((always_inline)) TARGET void
multiply_f32(const float *w, int rows, const float *x, size_t x_stride, int acts, uint32_t n,
             VEC (*sums)[F32_ROWS]) {
    VEC acc[4][F32_ROWS];
    UNROLL for (int r = 0; r < acts; r++) UNROLL for (int j = 0; j < rows; j++) acc[r][j] =
        sums[r][j];
    for (uint32_t i = 0; i < n; i += LANES) {
        VEC wide[F32_ROWS];
        UNROLL for (int j = 0; j < rows; j++) wide[j] = V_LOAD(w + (size_t)j * F32_BLOCK + i);
        UNROLL for (int r = 0; r < acts; r++) {
            const float *at = x + (size_t)r * x_stride + i;
            VEC value = n - i < LANES ? load_some(at, n - i) : V_LOAD(at);
            UNROLL for (int j = 0; j < rows; j++) acc[r][j] = V_FMA(wide[j], value, acc[r][j]);
        }
    }
    UNROLL for (int r = 0; r < acts; r++) UNROLL for (int j = 0; j < rows; j++) sums[r][j] =
        acc[r][j];
}

static TARGET void multiply_f32_rows(const float *w, int rows, const struct activations *acts,
                                     uint32_t begin, uint32_t count, uint32_t k, uint32_t n,
                                     VEC (*sums)[F32_ROWS]) {
    for (uint32_t r = 0; r < count;) {
        const float *x = acts->x + (size_t)(begin + r) * acts->x_stride + k;
        if (rows == F32_ROWS && count - r >= 4) {
            multiply_f32(w, F32_ROWS, x, acts->x_stride, 4, n, sums + r);
            r += 4;
        } else if (rows == F32_ROWS) {
            multiply_f32(w, F32_ROWS, x, 0, 1, n, sums + r);
            r += 1;
        } else {
            for (int j = 0; j < rows; j++)
                multiply_f32(w + j * F32_BLOCK, 1, x, 0, 1, n,
                             (VEC(*)[F32_ROWS])(void *)&sums[r][j]);
            r += 1;
        }
    }
}

struct f32_weights {
    const uint8_t *rows;
    size_t row_bytes;
    const struct dtype_info *info;
    dtype_decode_fn *decode;
};

/* Weight rows n .. n + rows against activation rows begin .. begin + count, count <= F32_BATCH. */
static TARGET void project_f32_tile(const struct f32_weights *m, uint32_t n, int rows,
                                    const struct activations *acts, uint32_t begin, uint32_t count,
                                    float *out, size_t out_stride) {
    VEC sums[F32_BATCH][F32_ROWS];
    float w[F32_ROWS * F32_BLOCK];
    for (uint32_t r = 0; r < count; r++)
        for (int j = 0; j < F32_ROWS; j++)
            sums[r][j] = V_ZERO();
    for (uint32_t k = 0; k < acts->k; k += F32_BLOCK) {
        uint32_t values = acts->k - k < F32_BLOCK ? acts->k - k : F32_BLOCK;
        size_t at = (size_t)(k / m->info->block_values) * m->info->block_bytes;
        for (int j = 0; j < rows; j++) {
            m->decode(m->rows + (n + (size_t)j) * m->row_bytes + at, w + j * F32_BLOCK, values);
            memset(w + j * F32_BLOCK + values, 0, (F32_BLOCK - values) * sizeof *w);
        }
        multiply_f32_rows(w, rows, acts, begin, count, k, values, sums);
    }
    for (uint32_t r = 0; r < count; r++)
        for (int j = 0; j < rows; j++)
            out[(begin + r) * out_stride + (size_t)j] = V_SUM(sums[r][j]);
}

static void project_f32(enum dtype type, dtype_decode_fn *decode, const void *weights,
                        uint32_t first, uint32_t count, const struct activations *acts, float *out,
                        size_t out_stride) {
    const struct dtype_info *info = dtype_info((uint32_t)type);
    struct f32_weights m = {
        .rows = weights,
        .row_bytes = (size_t)(acts->k / info->block_values) * info->block_bytes,
        .info = info,
        .decode = decode ? decode : info->decode,
    };
    for (uint32_t n = 0; n < count; n += F32_ROWS) {
        int rows = count - n < F32_ROWS ? (int)(count - n) : F32_ROWS;
        for (uint32_t r = 0; r < acts->n_rows; r += F32_BATCH) {
            uint32_t batch = acts->n_rows - r < F32_BATCH ? acts->n_rows - r : F32_BATCH;
            project_f32_tile(&m, first + n, rows, acts, r, batch, out + n, out_stride);
        }
    }
}

#define PROJECT_F32(TYPE, type, decode)                                                            \
    static void project_f32_##type(const void *weights, uint32_t first, uint32_t count,            \
                                   const struct activations *acts, float *out,                     \
                                   size_t out_stride) {                                            \
        project_f32(DT_##TYPE, decode, weights, first, count, acts, out, out_stride);              \
    }

PROJECT_F32(F16, f16, DECODE_F16)
PROJECT_F32(BF16, bf16, DECODE_BF16)
#define PROJECT_BY_TABLE(TYPE, type) PROJECT_F32(TYPE, type, NULL)
PROJECT_BY_TABLE(F32, f32)
FOR_EACH_QUANT(PROJECT_BY_TABLE)
#undef PROJECT_BY_TABLE
#undef PROJECT_F32

/* The table's rows for them. */
#define F32_KERNEL(TYPE, type, isa, needs)                                                         \
    { #type " f32 " isa, DT_##TYPE, true, needs, 1, NULL, NULL, project_f32_##type }
