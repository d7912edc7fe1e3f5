/* test_kernels.c - every kernel that this processor can run, against sums made the plain way.
 *
 * The reference decodes the weights and adds in double. Where all scales are powers of two and the
 * sums stay below 2^24, nothing is ever rounded, and the kernels must give the very same numbers:
 * that is the test of the integers. SLUICE_CPU narrows the kernels down. */
#include <float.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels_grid.h"
#include "backend/cpu/vec.h"
#include "base/cpu.h"
#include "formats.h"
#include "quant/bf16.h"
#include "quant/f16.h"
#include "test.h"

/* ---- random matrices ------------------------------------------------------------------------- */

static uint32_t seed;

static uint32_t random_bits(void) {
    seed = seed * 1664525 + 1013904223;
    return seed >> 8 ^ seed << 9;
}

static float random_float(void) {
    return (float)(int32_t)(random_bits() & 0xffff) / 32768.0f - 1.0f;
}

/* is_plain: all scales one, so that no product is rounded. */
static void random_block(const struct format *f, uint8_t *block, uint32_t bytes, bool is_plain) {
    for (uint32_t i = 0; i < bytes; i++)
        block[i] = (uint8_t)random_bits();
    float d = is_plain ? 1.0f : 0.01f * random_float(),
          m = is_plain ? 1.0f : 0.01f * random_float();
    format_put_scales(f, block, d, m);
}

static void random_scalars(enum dtype type, uint8_t *at, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float x = random_float();
        uint16_t bits = type == DT_F16 ? f16_from_f32(x) : bf16_from_f32(x);
        if (type == DT_F32)
            memcpy(at + 4 * i, &x, 4);
        else
            memcpy(at + 2 * i, &bits, 2);
    }
}

struct matrix {
    enum dtype type;
    uint32_t k, n;
    uint8_t *memory, *rows; /* rows end at a guard, or are two bytes off: no alignment to lean on */
    float *values;          /* decoded, (n, k) */
};

static struct matrix matrix_make(enum dtype type, uint32_t k, uint32_t n, bool is_plain) {
    const struct dtype_info *info = dtype_info((uint32_t)type);
    size_t blocks = (size_t)k * n / info->block_values, bytes = blocks * info->block_bytes;
    struct matrix m = {.type = type, .k = k, .n = n, .memory = test_guarded(bytes + 2)};
    m.rows = m.memory + (seed & 1 ? 2 : 0);
    m.values = malloc((size_t)k * n * sizeof *m.values);
    if (info->block_values == 1)
        random_scalars(type, m.rows, blocks);
    for (size_t b = 0; info->block_values > 1 && b < blocks; b++)
        random_block(format_of(type), m.rows + b * info->block_bytes, info->block_bytes, is_plain);
    info->decode(m.rows, m.values, (size_t)k * n);
    return m;
}

static void matrix_free(struct matrix *m) {
    test_guarded_free(m->memory);
    free(m->values);
}

/* ---- activations ----------------------------------------------------------------------------- */

/* The int8 form is left out where K is no multiple of 32. */
static struct activations acts_make(uint32_t n_rows, uint32_t k, bool is_plain) {
    size_t n = (size_t)n_rows * k;
    float *x = test_guarded(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = is_plain ? (float)(int)(random_bits() % 5) - 2.0f : random_float();
        if (is_plain && i % 32 == 7)
            x[i] = random_bits() & 1 ? 127.0f : -127.0f; /* the scale is 1 */
        if (!is_plain && i / 32 % 11 == 10)
            x[i] = 0; /* a group of zeros now and then */
    }
    struct activations acts = {.n_rows = n_rows, .k = k, .x = x, .x_stride = k};
    if (k % 32 == 0) {
        acts.group_stride = act_group_stride(k);
        struct act_group *groups = test_guarded(n_rows * acts.group_stride * sizeof *groups);
        for (uint32_t r = 0; r < n_rows; r++)
            act_groups(x + (size_t)r * k, k, 32, groups + r * acts.group_stride);
        acts.groups = groups;
    }
    return acts;
}

static void acts_free(struct activations *acts) {
    test_guarded_free(acts->x);
    test_guarded_free(acts->groups);
}

/* Row r's value k as a kernel of this mode sees it. */
static double act_value(const struct activations *acts, bool is_f32, uint32_t r, uint32_t k) {
    if (is_f32)
        return acts->x[r * acts->x_stride + k];
    size_t stride = acts->group_stride ? acts->group_stride : acts->k / 32;
    const struct act_group *g = &acts->groups[r * stride + k / 32];
    return (double)g->scale * g->q[k % 32];
}

/* ---- running a kernel ------------------------------------------------------------------------ */

static void *packed(const struct kernel *k, const struct matrix *m) {
    if (!k->pack)
        return NULL;
    size_t bytes = k->packed_bytes(m->k, m->n);
    uint8_t *memory = test_guarded((bytes + 63) / 64 * 64);
    k->pack(m->rows, m->k, m->n, memory);
    return memory;
}

/* The whole product in pieces of `step` weight rows (0: at once). test_guarded_free() the result.
 */
static float *product(const struct kernel *k, const struct matrix *m, const void *weights,
                      const struct activations *acts, uint32_t step) {
    float *out = test_guarded((size_t)acts->n_rows * m->n * sizeof *out);
    for (size_t i = 0; i < (size_t)acts->n_rows * m->n; i++)
        out[i] = NAN;
    step = step ? step : m->n;
    for (uint32_t first = 0; first < m->n; first += step) {
        uint32_t count = m->n - first < step ? m->n - first : step;
        k->run(weights ? weights : m->rows, first, count, acts, out + first, m->n);
    }
    return out;
}

static const struct kernel *next_kernel(size_t *i) {
    const struct kernel *k;
    while ((k = kernel_at((*i)++)))
        if ((k->features & ~cpu_features()) == 0)
            return k;
    return NULL;
}

#define FOR_EACH_KERNEL(k)                                                                         \
    for (size_t at_ = 0; at_ != SIZE_MAX; at_ = SIZE_MAX)                                          \
        for (const struct kernel *k; (k = next_kernel(&at_));)

/* ---- results --------------------------------------------------------------------------------- */

static void check_product(const struct kernel *k, const struct matrix *m,
                          const struct activations *acts, const float *out, bool is_plain) {
    for (uint32_t r = 0; r < acts->n_rows; r++) {
        for (uint32_t n = 0; n < m->n; n++) {
            double sum = 0, size = 0, most = 0;
            for (uint32_t i = 0; i < m->k; i++) {
                double w = m->values[(size_t)n * m->k + i], x = act_value(acts, k->is_f32, r, i);
                sum += w * x;
                size += fabs(x);
                most = fmax(most, fabs(w));
            }
            double found = out[(size_t)r * m->n + n];
            double bound = is_plain ? 0 : 4e-7 * most * size;
            if (!(fabs(found - sum) <= bound))
                test_fail(__FILE__, __LINE__, "%s, k %u n %u: [%u][%u] is %.9g, expected %.9g",
                          k->name, m->k, m->n, r, n, found, sum);
        }
    }
}

static void check_shape(const struct kernel *k, uint32_t in, uint32_t n, uint32_t n_rows,
                        bool is_plain) {
    if (in % dtype_info((uint32_t)k->type)->block_values != 0)
        return;
    seed = in * 31 + n;
    struct matrix m = matrix_make(k->type, in, n, is_plain);
    struct activations acts = acts_make(n_rows, in, is_plain);
    void *weights = packed(k, &m);
    float *out = product(k, &m, weights, &acts, 0);
    check_product(k, &m, &acts, out, is_plain);
    test_guarded_free(out);
    test_guarded_free(weights);
    acts_free(&acts);
    matrix_free(&m);
}

static const uint32_t lengths[] = {32, 64, 96, 256, 512, 1024, 4864};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

TEST(kernels_near_double) {
    FOR_EACH_KERNEL(k) {
        for (int i = 0; i < N_LENGTHS; i++)
            check_shape(k, lengths[i], lengths[i] > 1024 ? 17 : 37, 3, false);
        check_shape(k, 256, 1, 33, false);
        check_shape(k, 256, 16, 19, false);
    }
}

/* Nothing is rounded: equality. K = 512 keeps the largest type's sums below 2^24. */
TEST(kernels_integers_exact) {
    FOR_EACH_KERNEL(k) {
        if (!k->is_f32)
            for (int i = 0; lengths[i] <= 512; i++)
                check_shape(k, lengths[i], 19, 18, true);
    }
}

TEST(kernels_odd_lengths) {
    static const uint32_t odd[] = {1, 3, 15, 17, 100, 257, 300, 511};
    FOR_EACH_KERNEL(k) {
        if (dtype_info((uint32_t)k->type)->block_values == 1)
            for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
                check_shape(k, odd[i], 7, 5, false);
    }
}

/* One activation of 127 at a time: every weight, scale and minimum must be where it was. */
TEST(kernels_find_every_weight) {
    enum { K = 256, N = 21 };
    float *x = calloc(K * K, sizeof *x);
    struct act_group *groups = aligned_alloc(64, K * (K / 32) * sizeof *groups);
    for (uint32_t r = 0; r < K; r++) {
        x[r * K + r] = 127.0f;
        act_groups(x + r * K, K, 32, groups + r * (K / 32));
    }
    struct activations acts = {.n_rows = K, .k = K, .x = x, .x_stride = K, .groups = groups};
    FOR_EACH_KERNEL(k) {
        seed = 5;
        struct matrix m = matrix_make(k->type, K, N, true);
        void *weights = packed(k, &m);
        float *out = product(k, &m, weights, &acts, 0);
        check_product(k, &m, &acts, out, k->type != DT_F32);
        test_guarded_free(out);
        test_guarded_free(weights);
        matrix_free(&m);
    }
    free(groups);
    free(x);
}

/* ---- what a result may not depend on --------------------------------------------------------- */

static void check_same(const struct kernel *k, const struct matrix *m, const float *all,
                       const float *some, uint32_t from, uint32_t n_rows, const char *what) {
    if (memcmp(all + (size_t)from * m->n, some, (size_t)n_rows * m->n * sizeof *all) != 0)
        test_fail(__FILE__, __LINE__, "%s, k %u: %u rows from %u differ %s", k->name, m->k, n_rows,
                  from, what);
}

/* Of matrices whose rows are no whole number of 256 values, too. */
static void check_rows(const struct kernel *k, uint32_t in) {
    static const uint32_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 17, 32, 33, 48, 64};
    enum { ROWS = 64, N = 53 };
    struct matrix m = matrix_make(k->type, in, N, false);
    struct activations acts = acts_make(ROWS, in, false);
    void *weights = packed(k, &m);
    float *all = product(k, &m, weights, &acts, 0);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (uint32_t from = 0; from <= ROWS - counts[i]; from += 11) {
            struct activations some = acts;
            some.n_rows = counts[i];
            some.x += (size_t)from * in;
            some.groups += from * acts.group_stride;
            float *out = product(k, &m, weights, &some, 0);
            check_same(k, &m, all, out, from, counts[i], "from those among 64");
            test_guarded_free(out);
        }
    }
    for (uint32_t tiles = 1; tiles < 4; tiles++) {
        float *out = product(k, &m, weights, &acts, tiles * k->tile_rows);
        check_same(k, &m, all, out, 0, ROWS, "when the matrix is split");
        test_guarded_free(out);
    }
    test_guarded_free(all);
    test_guarded_free(weights);
    acts_free(&acts);
    matrix_free(&m);
}

TEST(kernels_independent_of_rows) {
    FOR_EACH_KERNEL(k) {
        seed = 77;
        check_rows(k, test_is_slow() ? 512 : 1280);
        if (dtype_info((uint32_t)k->type)->block_values <= 32)
            check_rows(k, 416);
    }
}

#if defined(__x86_64__)
/* Grids are looked up by gathers or by loads; this processor may do either better. */
TEST(kernels_look_up_grids_both_ways) {
    kernel_grids_fill();
    bool is_gathered = kernel_grids.is_gathered;
    for (int way = 0; way < 2; way++) {
        kernel_grids.is_gathered = way;
        FOR_EACH_KERNEL(k) {
            if (!k->is_f32)
                check_shape(k, 512, 37, 18, true);
        }
    }
    kernel_grids.is_gathered = is_gathered;
}
#endif

/* An exponent a row: powers of two from subnormal ones to all that leave the sums finite. */
TEST(kernels_mxfp4_has_every_exponent) {
    enum { K = 64, EXPONENTS = 240, BLOCK = 17 };
    FOR_EACH_KERNEL(k) {
        if (k->type != DT_MXFP4)
            continue;
        struct matrix m = matrix_make(k->type, K, EXPONENTS, true);
        struct activations acts = acts_make(1, K, true);
        for (uint32_t b = 0; b < EXPONENTS * (K / 32); b++)
            m.rows[b * BLOCK] = (uint8_t)(b / (K / 32));
        dtype_info(DT_MXFP4)->decode(m.rows, m.values, (size_t)K * EXPONENTS);
        void *weights = packed(k, &m);
        float *out = product(k, &m, weights, &acts, 0);
        check_product(k, &m, &acts, out, true);
        test_guarded_free(out);
        test_guarded_free(weights);
        acts_free(&acts);
        matrix_free(&m);
    }
}

/* Strides wider than the rows: what is between is not written. */
TEST(kernels_keep_to_their_columns) {
    enum { ROWS = 9, K = 256, N = 37, STRIDE = 64 };
    FOR_EACH_KERNEL(k) {
        struct matrix m = matrix_make(k->type, K, N, false);
        struct activations acts = acts_make(ROWS, K, false);
        void *weights = packed(k, &m);
        float out[ROWS * STRIDE];
        for (int i = 0; i < ROWS * STRIDE; i++)
            out[i] = 12345.0f;
        k->run(weights ? weights : m.rows, 0, N, &acts, out, STRIDE);
        for (int i = 0; i < ROWS * STRIDE; i++)
            EXPECT((out[i] == 12345.0f) == (i % STRIDE >= N));
        test_guarded_free(weights);
        acts_free(&acts);
        matrix_free(&m);
    }
}

/* An infinite or undefined activation shows in the result, whatever the kernel. */
TEST(kernels_pass_on_nan) {
    enum { K = 256, N = 5 };
    FOR_EACH_KERNEL(k) {
        struct matrix m = matrix_make(k->type, K, N, false);
        float x[K] = {1, 2, 3};
        x[100] = NAN;
        struct act_group groups[K / 32];
        act_groups(x, K, 32, groups);
        struct activations acts = {.n_rows = 1, .k = K, .x = x, .x_stride = K, .groups = groups};
        void *weights = packed(k, &m);
        float *out = product(k, &m, weights, &acts, 0);
        for (int n = 0; n < N; n++)
            EXPECT(isnan(out[n]));
        test_guarded_free(out);
        test_guarded_free(weights);
        matrix_free(&m);
    }
}

TEST(kernels_are_there_for_every_type) {
    for (size_t i = 0; i < FORMAT_TYPES; i++) {
        enum dtype type = format_types[i];
        for (int exact = 0; exact < 2; exact++) {
            const struct kernel *best = kernel_find(type, exact, cpu_features());
            const struct kernel *portable = kernel_find(type, exact, 0);
            EXPECT(best && portable && portable->features == 0);
            EXPECT(best && best->type == type && best->is_f32 == (exact || !format_of(type)));
        }
    }
    EXPECT(!kernel_find(DT_I32, true, cpu_features()));
    EXPECT(!kernel_at(100000));
}

/* The groups say what act_quantize says; of 128 values the last ones may be fewer. */
static bool same_number(float a, float b) {
    return a == b || (a != a && b != b);
}

TEST(kernels_act_groups_hold_what_act_quantize_gives) {
    enum { K = 224 };
    static const uint32_t widths[] = {96, 224}, shared[] = {32, 128};
    float x[K], scale[K / 32];
    int8_t q[K];
    int32_t sum[K / 32];
    struct act_group groups[K / 32 + 1];
    seed = 3;
    for (int c = 0; c < 20; c++) {
        uint32_t k = widths[c / 2 % 2], n = k / 32;
        static const float odd[] = {0, 1e-40f, INFINITY, NAN, -FLT_MAX};
        for (int i = 0; i < K; i++)
            x[i] = c < 4 ? random_float() : c < 8 ? 0 : odd[random_bits() % 5];
        memset(groups, 0x55, sizeof groups);
        act_quantize(x, k, shared[c % 2], q, scale, sum);
        act_groups(x, k, shared[c % 2], groups);
        for (uint32_t g = 0; g < n; g++) {
            int32_t low = 0;
            for (int i = 0; i < 16; i++)
                low += q[32 * g + i];
            EXPECT(memcmp(groups[g].q, q + 32 * g, 32) == 0);
            EXPECT(same_number(groups[g].scale, scale[g]));
            EXPECT_INT(groups[g].minus_sum, -sum[g]);
            EXPECT_INT(groups[g].minus_half[0], -low);
            EXPECT_INT(groups[g].minus_half[1], low - sum[g]);
            EXPECT(same_number(groups[g].offset, scale[g] * (float)sum[g]));
            EXPECT(same_number(groups[g].half_offset[0], scale[g] * (float)low));
            EXPECT(same_number(groups[g].half_offset[1], scale[g] * (float)(sum[g] - low)));
        }
        EXPECT_INT(groups[n].q[0], 0x55); /* nothing beyond */
        EXPECT(c >= 4 || (scale[0] == scale[1]) == (shared[c % 2] == 128));
    }
}

/* What a bias or a mask has ruled out weighs nothing; NaN is not hidden. */
TEST(kernels_exponentials_of_infinity) {
    float x[40];
    for (int i = 0; i < 40; i++)
        x[i] = i == 20 ? 3 : -INFINITY;
    EXPECT_NEAR(row_exp(x, 3, 40), 1, 1e-6);
    EXPECT_NEAR(x[0], 0, 1e-30);
    x[7] = NAN;
    EXPECT(isnan(row_exp(x, 1, 40)));
}

/* All exponents, and mantissas at and beside what is rounded. */
TEST(kernels_rows_to_f16) {
    static const uint32_t ends[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000, 0x3001};
    enum { N = 40 };
    float x[N];
    float values[N], rounded[N + 1];
    uint16_t expected[N], found[N + 1];
    for (uint32_t high = 0; high < 1 << 18; high += 3) {
        uint32_t n = 17 + high % 20;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t bits = (high << 14 | ends[i % 9]) ^ i / 9 << 20;
            memcpy(x + i, &bits, sizeof bits);
        }
        dtype_info(DT_F16)->encode(x, expected, n);
        found[n] = 0x5555;
        row_to_f16(found, x, n);
        if (memcmp(found, expected, n * sizeof *found) != 0 || found[n] != 0x5555)
            test_fail(__FILE__, __LINE__, "%u values from bits %x on differ", n, high << 14);
        rounded[n] = 5;
        row_round_f16(rounded, x, n);
        dtype_info(DT_F16)->decode(expected, values, n);
        for (uint32_t i = 0; i < n; i++)
            if (memcmp(rounded + i, values + i, sizeof *values) != 0 &&
                !(isnan(rounded[i]) && isnan(values[i])))
                test_fail(__FILE__, __LINE__, "%a rounded is %a, expected %a", x[i], rounded[i],
                          values[i]);
        EXPECT(rounded[n] == 5);
    }
}
