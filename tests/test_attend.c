/* test_attend.c - attention over one split, for every kernel that this processor can run: against
 * sums in double, bit for bit against portable C, and what a result may not depend on.
 * SLUICE_CPU narrows the kernels down. */
#include "backend/cpu/kernels.h"
#include "base/cpu.h"
#include "quant/f16.h"
#include "test.h"

static uint32_t seed;

static float random_float(void) {
    seed = seed * 1664525 + 1013904223;
    return (float)(int32_t)(seed >> 12 & 0xffff) / 32768.0f - 1.0f;
}

/* A split of the cache with queries to it, and room for what comes of them. */
struct trial {
    uint32_t width, stride, n_queries, row_bytes;
    enum dtype type;
    uint8_t *keys, *values;
    float *queries, *pv, *tile, *qk, *decoded[2];
    uint32_t seen[ATTEND_QUERIES];
    struct softmax sums[ATTEND_QUERIES];
};

static float half_of(float x) {
    return f16_to_f32(f16_from_f32_clamped(x));
}

static uint8_t *random_cache(struct trial *t, float *decoded) {
    size_t n = (size_t)ATTEND_POSITIONS * t->width;
    uint8_t *cache = test_guarded((ATTEND_POSITIONS * (size_t)t->row_bytes + 63) / 64 * 64);
    for (size_t i = 0; i < n; i++)
        decoded[i] = random_float();
    for (uint32_t p = 0; p < ATTEND_POSITIONS; p++)
        dtype_info((uint32_t)t->type)
            ->encode(decoded + (size_t)p * t->width, cache + (size_t)p * t->row_bytes, t->width);
    dtype_info((uint32_t)t->type)->decode(cache, decoded, n);
    return cache;
}

/* Query q sees the positions up to first_seen + q / group. */
static struct trial trial_make(enum dtype type, uint32_t width, uint32_t n_queries, uint32_t group,
                               int first_seen) {
    const struct dtype_info *info = dtype_info((uint32_t)type);
    struct trial t = {.width = width,
                      .stride = attend_stride(width),
                      .n_queries = n_queries,
                      .type = type,
                      .row_bytes = width / info->block_values * info->block_bytes};
    seed = width * 7 + n_queries;
    for (int i = 0; i < 2; i++)
        t.decoded[i] = malloc((size_t)ATTEND_POSITIONS * width * sizeof(float));
    t.keys = random_cache(&t, t.decoded[0]);
    t.values = random_cache(&t, t.decoded[1]);
    t.queries = test_guarded((size_t)n_queries * t.stride * sizeof(float));
    t.pv = test_guarded((size_t)n_queries * t.stride * sizeof(float));
    t.tile = test_guarded((size_t)ATTEND_POSITIONS * t.stride * sizeof(float));
    t.qk = test_guarded((size_t)n_queries * ATTEND_POSITIONS * sizeof(float));
    for (uint32_t i = 0; i < n_queries * t.stride; i++) {
        t.queries[i] = i % t.stride < width ? random_float() : 0;
        t.queries[i] = type == DT_F16 ? half_of(t.queries[i]) : t.queries[i];
    }
    for (uint32_t q = 0; q < n_queries; q++) {
        int seen = first_seen + (int)(q / group);
        t.seen[q] = seen < 0 ? 0 : seen > ATTEND_POSITIONS ? ATTEND_POSITIONS : (uint32_t)seen;
    }
    return t;
}

static void trial_free(struct trial *t) {
    test_guarded_free(t->keys);
    test_guarded_free(t->values);
    test_guarded_free(t->queries);
    test_guarded_free(t->pv);
    test_guarded_free(t->tile);
    test_guarded_free(t->qk);
    free(t->decoded[0]);
    free(t->decoded[1]);
}

/* Queries [from, from + n). What was in the rooms before must not matter. */
static void run(const struct attend_kernel *k, struct trial *t, uint32_t from, uint32_t n) {
    memset(t->pv, 0xff, (size_t)t->n_queries * t->stride * sizeof(float));
    memset(t->tile, 0xff, (size_t)ATTEND_POSITIONS * t->stride * sizeof(float));
    memset(t->qk, 0xff, (size_t)t->n_queries * ATTEND_POSITIONS * sizeof(float));
    k->run(&(struct attend_split){.type = t->type,
                                  .width = t->width,
                                  .keys = t->keys,
                                  .values = t->values,
                                  .queries = t->queries + (size_t)from * t->stride,
                                  .seen = t->seen + from,
                                  .n_queries = n,
                                  .sums = t->sums + from,
                                  .pv = t->pv + (size_t)from * t->stride,
                                  .tile = t->tile,
                                  .qk = t->qk});
}

/* Over f16 weights are rounded to f16, and one that is near the middle of two may become either. */
static void check_near_double(const struct attend_kernel *k, const struct trial *t) {
    for (uint32_t q = 0; q < t->n_queries; q++) {
        double qk[ATTEND_POSITIONS], max = -INFINITY, sum = 0, either = 0;
        for (uint32_t p = 0; p < t->seen[q]; p++) {
            qk[p] = 0;
            for (uint32_t i = 0; i < t->width; i++)
                qk[p] += (double)t->queries[q * t->stride + i] * t->decoded[0][p * t->width + i];
            max = fmax(max, qk[p]);
        }
        for (uint32_t p = 0; p < t->seen[q]; p++) {
            qk[p] = exp(qk[p] - max);
            if (t->type == DT_F16) {
                double low = half_of((float)(qk[p] * (1 - 2e-5))),
                       high = half_of((float)(qk[p] * (1 + 2e-5)));
                either += high - low;
                qk[p] = half_of((float)qk[p]);
            }
            sum += qk[p];
        }
        double found = t->sums[q].sum * exp(t->sums[q].max - (t->seen[q] ? max : 0));
        if (!(fabs(found - sum) <= 1e-5 * sum + either))
            test_fail(__FILE__, __LINE__, "%s: sum %u is %.9g, expected %.9g", k->name, q, found,
                      sum);
        for (uint32_t i = 0; i < t->width; i++) {
            double pv = 0;
            for (uint32_t p = 0; p < t->seen[q]; p++)
                pv += qk[p] * t->decoded[1][p * t->width + i];
            if (!(fabs(t->pv[q * t->stride + i] - pv) <= 2e-5 * sum + either))
                test_fail(__FILE__, __LINE__, "%s, %s, width %u: pv[%u][%u] is %.9g, expected %.9g",
                          k->name, dtype_info((uint32_t)t->type)->name, t->width, q, i,
                          t->pv[q * t->stride + i], pv);
        }
    }
}

static bool can_run(const struct attend_kernel *k) {
    return (k->features & ~cpu_features()) == 0;
}

static const struct shape {
    enum dtype type;
    uint32_t width, n_queries, group;
    int first_seen;
} shapes[] = {
    {DT_F16, 64, 3, 3, 128},   {DT_F16, 64, 63, 3, 100},  {DT_F16, 64, 1, 1, 1},
    {DT_F16, 128, 8, 8, 77},   {DT_F16, 256, 24, 6, -2},  {DT_F16, 80, 2, 2, 31},
    {DT_F16, 20, 5, 5, 128},   {DT_F16, 6, 13, 1, 3},     {DT_F16, 7, 64, 4, 120},
    {DT_F32, 64, 4, 4, 128},   {DT_F32, 48, 33, 1, 99},   {DT_F32, 10, 1, 1, 17},
    {DT_Q8_0, 64, 3, 3, 128},  {DT_Q8_0, 128, 40, 5, 90}, {DT_Q4_0, 64, 9, 9, 50},
    {DT_Q4_0, 96, 64, 2, 126}, {DT_F16, 1024, 12, 12, 5}, {DT_F16, 64, 2, 1, 0},
    {DT_F16, 128, 4, 4, 2},    {DT_F16, 32, 7, 7, 126},   {DT_F16, 128, 6, 6, 64},
    {DT_F16, 16, 8, 8, 113},   {DT_F16, 256, 2, 2, 127},  {DT_F16, 48, 5, 5, 39},
    {DT_Q8_0, 32, 1, 1, 128},  {DT_Q8_0, 128, 4, 4, 127}, {DT_Q8_0, 256, 8, 8, 3},
    {DT_Q8_0, 96, 2, 2, 65},   {DT_Q4_0, 32, 7, 7, 126},  {DT_Q4_0, 128, 4, 4, 128},
    {DT_Q4_0, 64, 1, 1, 1},    {DT_Q4_0, 96, 3, 3, 4},    {DT_F16, 128, 16, 16, 128},
    {DT_F16, 32, 64, 4, 100},  {DT_F16, 128, 64, 8, 90},  {DT_F16, 48, 41, 1, 60},
};

#define FOR_EACH_SHAPE(t)                                                                          \
    for (size_t i_ = 0; i_ < sizeof shapes / sizeof *shapes; i_++)                                 \
        for (struct trial t = trial_make(shapes[i_].type, shapes[i_].width, shapes[i_].n_queries,  \
                                         shapes[i_].group, shapes[i_].first_seen);                 \
             t.keys; trial_free(&t), t.keys = NULL)

TEST(attend_near_double) {
    const struct attend_kernel *k;
    for (size_t i = 0; (k = attend_at(i)); i++)
        if (can_run(k))
            FOR_EACH_SHAPE(t) {
                run(k, &t, 0, t.n_queries);
                check_near_double(k, &t);
            }
}

/* Portable C is the last of the table. */
TEST(attend_same_bits_on_all_instruction_sets) {
    const struct attend_kernel *k, *portable = attend_find(0);
    FOR_EACH_SHAPE(t) {
        size_t n = (size_t)t.n_queries * t.stride;
        struct softmax sums[ATTEND_QUERIES];
        float *pv = malloc(n * sizeof *pv);
        run(portable, &t, 0, t.n_queries);
        memcpy(pv, t.pv, n * sizeof *pv);
        memcpy(sums, t.sums, sizeof sums);
        for (size_t i = 0; (k = attend_at(i)); i++) {
            if (!can_run(k))
                continue;
            run(k, &t, 0, t.n_queries);
            for (uint32_t q = 0; q < t.n_queries; q++)
                if (memcmp(&sums[q], &t.sums[q], sizeof *sums) != 0 ||
                    memcmp(pv + q * t.stride, t.pv + q * t.stride, t.width * sizeof *pv) != 0)
                    test_fail(__FILE__, __LINE__, "%s, width %u: query %u differs from portable C",
                              k->name, t.width, q);
        }
        free(pv);
    }
}

/* Blocks of any size, with scales that are not normal numbers among them, f16 from the least to
 * infinity, and queries up to the largest: every kernel has portable C's bits. */
TEST(attend_same_bits_at_any_scale) {
    static const float scales[] = {1e-30f, 1e-7f, 2e-6f, 1, 3e4f, 4e6f},
                       sizes[] = {1e-30f, 1, 1e31f}, halves[] = {3e-7f, 1, 1e31f};
    static const enum dtype types[] = {DT_Q4_0, DT_Q8_0, DT_F16};
    const struct attend_kernel *k, *portable = attend_find(0);
    for (size_t c = 0; c < 18; c++) {
        enum dtype type = types[c % 3];
        bool is_half = type == DT_F16;
        struct trial t = trial_make(type, 64, 3, 3, 23);
        float *pv = malloc(3 * 64 * sizeof *pv), row[64];
        for (uint32_t p = 0; p < ATTEND_POSITIONS; p++) {
            for (uint32_t i = 0; i < 64; i++)
                row[i] = random_float() * scales[(c / 3 + p + i / 32) % 6];
            if (is_half && c >= 9 && p == 20)
                row[c] = c == 17 ? -INFINITY : INFINITY;
            dtype_info((uint32_t)t.type)->encode(row, t.keys + p * t.row_bytes, 64);
            dtype_info((uint32_t)t.type)->encode(row, t.values + p * t.row_bytes, 64);
        }
        for (uint32_t i = 0; i < 3 * 64; i++) {
            t.queries[i] *= (is_half ? halves : sizes)[c / 3 % 3];
            t.queries[i] = is_half ? half_of(t.queries[i]) : t.queries[i];
        }
        run(portable, &t, 0, 3);
        memcpy(pv, t.pv, 3 * 64 * sizeof *pv);
        for (size_t i = 0; (k = attend_at(i)); i++) {
            if (!can_run(k))
                continue;
            run(k, &t, 0, 3);
            for (uint32_t q = 0; q < 3 * 64; q++)
                if (memcmp(&pv[q], &t.pv[q], sizeof *pv) != 0 && !(isnan(pv[q]) && isnan(t.pv[q])))
                    test_fail(__FILE__, __LINE__, "%s, case %zu: pv[%u] is %g, expected %g",
                              k->name, c, q, t.pv[q], pv[q]);
        }
        free(pv);
        trial_free(&t);
    }
}

/* A query alone, and after what came before it, is the same as among all. */
TEST(attend_independent_of_queries) {
    const struct attend_kernel *k;
    for (size_t i = 0; (k = attend_at(i)); i++) {
        if (!can_run(k))
            continue;
        FOR_EACH_SHAPE(t) {
            size_t n = (size_t)t.n_queries * t.stride;
            float *pv = malloc(n * sizeof *pv);
            run(k, &t, 0, t.n_queries);
            memcpy(pv, t.pv, n * sizeof *pv);
            for (uint32_t from = 0, count = 1; from < t.n_queries;
                 from += count, count = count % 7 + 1) {
                count = count < t.n_queries - from ? count : t.n_queries - from;
                run(k, &t, from, count);
                for (uint32_t q = from; q < from + count; q++)
                    if (memcmp(pv + q * t.stride, t.pv + q * t.stride, t.width * sizeof *pv) != 0)
                        test_fail(__FILE__, __LINE__, "%s, width %u: query %u differs among %u",
                                  k->name, t.width, q, count);
            }
            free(pv);
        }
    }
}

/* What is after the visible positions is not read; a visible NaN shows. */
TEST(attend_sees_what_it_may) {
    const struct attend_kernel *k;
    for (size_t i = 0; (k = attend_at(i)); i++) {
        if (!can_run(k))
            continue;
        struct trial t = trial_make(DT_F16, 64, 6, 3, 40);
        float pv[6 * 64];
        uint16_t nan = 0x7e00;
        run(k, &t, 0, 6);
        memcpy(pv, t.pv, sizeof pv);
        memset(t.keys + 41 * 128, 0x7e, 87 * 128);
        memset(t.values + 41 * 128, 0x7e, 87 * 128);
        run(k, &t, 0, 6);
        EXPECT(memcmp(pv, t.pv, sizeof pv) == 0);
        memcpy(t.values + 40 * 128, &nan, sizeof nan);
        run(k, &t, 0, 6);
        EXPECT(memcmp(pv, t.pv, 3 * 64 * sizeof *pv) == 0);
        EXPECT(isnan(t.pv[3 * 64]) && !isnan(t.pv[3 * 64 + 1]));
        memcpy(t.keys + 40 * 128, &nan, sizeof nan);
        run(k, &t, 0, 6);
        EXPECT(memcmp(pv, t.pv, 3 * 64 * sizeof *pv) == 0);
        EXPECT(isnan(t.pv[4 * 64 + 1]) && isnan(t.sums[5].sum));
        trial_free(&t);
    }
}
