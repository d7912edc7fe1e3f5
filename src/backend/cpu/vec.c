/* vec.c - rows of floats, sixteen at a time. */
#include "backend/cpu/vec.h"

CLONES float row_dot(const float *a, const float *b, size_t n) {
    vec sum = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sum += vec_load(a + i) * vec_load(b + i);
    if (i < n)
        sum += vec_load_some(a + i, n - i, 0) * vec_load_some(b + i, n - i, 0);
    return vec_sum(sum);
}

CLONES float row_max(const float *x, size_t n) {
    vec best = vec_all(x[0]);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        best = vec_max(vec_load(x + i), best);
    if (i < n)
        best = vec_max(vec_load_some(x + i, n - i, x[0]), best);
    float a[LANES];
    vec_store(a, best);
    for (int k = 1; k < LANES; k++)
        a[0] = a[k] > a[0] ? a[k] : a[0];
    return a[0];
}

/* Applies an expression of vecs to whole rows: `v` is computed from loads at i. */
#define FOR_ROW(n, y, expression)                                                                  \
    do {                                                                                           \
        size_t i = 0;                                                                              \
        for (; i + LANES <= (n); i += LANES) {                                                     \
            vec v = expression(vec_load);                                                          \
            vec_store((y) + i, v);                                                                 \
        }                                                                                          \
        if (i < (n)) {                                                                             \
            size_t rest = (n)-i;                                                                   \
            vec v = expression(LOAD_REST);                                                         \
            vec_store_some((y) + i, v, rest);                                                      \
        }                                                                                          \
    } while (0)
#define LOAD_REST(p) vec_load_some(p, rest, 0)

CLONES void row_scale_by(float *y, const float *x, float scale, const float *w, size_t n) {
#define SCALED(load) load(x + i) * scale *load(w + i)
    FOR_ROW(n, y, SCALED);
}

CLONES void row_times_silu(float *y, const float *g, size_t n) {
#define TIMES_SILU(load) load(y + i) * (load(g + i) * vec_sigmoid(load(g + i)))
    FOR_ROW(n, y, TIMES_SILU);
}

CLONES void row_times_sigmoid(float *y, const float *g, size_t n) {
#define TIMES_SIGMOID(load) load(y + i) * vec_sigmoid(load(g + i))
    FOR_ROW(n, y, TIMES_SIGMOID);
}

CLONES void row_swiglu(float *y, const float *g, const float *u, size_t n) {
#define SWIGLU(load) load(g + i) * vec_sigmoid(load(g + i)) * load(u + i)
    FOR_ROW(n, y, SWIGLU);
}

CLONES void row_add(float *y, const float *x, size_t n) {
#define SUM(load) load(y + i) + load(x + i)
    FOR_ROW(n, y, SUM);
}

CLONES void row_mix(float *y, float a, const float *x, float b, size_t n) {
#define MIX(load) load(y + i) * a + load(x + i) * b
    FOR_ROW(n, y, MIX);
}

CLONES float row_exp(float *x, float shift, size_t n) {
    vec sum = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec v = vec_exp(vec_load(x + i) - shift);
        vec_store(x + i, v);
        sum += v;
    }
    if (i < n) {
        float a[LANES] = {0};
        vec_store_some(a, vec_exp(vec_load_some(x + i, n - i, 0) - shift), n - i);
        memcpy(x + i, a, (n - i) * sizeof *x);
        sum += vec_load(a);
    }
    return vec_sum(sum);
}
