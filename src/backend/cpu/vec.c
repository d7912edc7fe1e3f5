/* vec.c - rows of floats, sixteen at a time. */
#include "backend/cpu/vec.h"

CLONES float row_dot(const float *a, const float *b, size_t n) {
    vec sum[VECS] = {{0}};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH_VEC(u) sum[u] += vec_load(a + i + u * VEC_LANES) * vec_load(b + i + u * VEC_LANES);
    if (i < n) {
        float x[LANES] = {0}, y[LANES] = {0};
        memcpy(x, a + i, (n - i) * sizeof *x);
        memcpy(y, b + i, (n - i) * sizeof *y);
        EACH_VEC(u) sum[u] += vec_load(x + u * VEC_LANES) * vec_load(y + u * VEC_LANES);
    }
    return vec_sum(sum);
}

CLONES float row_max(const float *x, size_t n) {
    vec best[VECS];
    EACH_VEC(u) best[u] = vec_all(x[0]);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH_VEC(u) best[u] = vec_max(vec_load(x + i + u * VEC_LANES), best[u]);
    float a[LANES];
    memcpy(a, best, sizeof a);
    for (; i < n; i++)
        a[0] = x[i] > a[0] ? x[i] : a[0];
    for (int k = 1; k < LANES; k++)
        a[0] = a[k] > a[0] ? a[k] : a[0];
    return a[0];
}

/* Applies an expression of vecs to whole rows: `v` is computed from loads at i. */
#define FOR_ROW(n, y, expression)                                                                  \
    do {                                                                                           \
        size_t i = 0;                                                                              \
        for (; i + VEC_LANES <= (n); i += VEC_LANES) {                                             \
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
    vec sum[VECS] = {{0}};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH_VEC(u) {
            vec v = vec_exp(vec_load(x + i + u * VEC_LANES) - shift);
            vec_store(x + i + u * VEC_LANES, v);
            sum[u] += v;
        }
    if (i < n) {
        float a[LANES] = {0};
        memcpy(a, x + i, (n - i) * sizeof *x);
        EACH_VEC(u) vec_store(a + u * VEC_LANES, vec_exp(vec_load(a + u * VEC_LANES) - shift));
        memset(a + (n - i), 0, (LANES - (n - i)) * sizeof *a);
        memcpy(x + i, a, (n - i) * sizeof *x);
        EACH_VEC(u) sum[u] += vec_load(a + u * VEC_LANES);
    }
    return vec_sum(sum);
}

CLONES float row_exp_sum(const float *x, float scale, float shift, size_t n) {
    vec sum[VECS] = {{0}};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH_VEC(u) sum[u] += vec_exp(vec_load(x + i + u * VEC_LANES) * scale - shift);
    if (i < n) {
        float a[LANES] = {0};
        memcpy(a, x + i, (n - i) * sizeof *x);
        EACH_VEC(u)
        vec_store(a + u * VEC_LANES, vec_exp(vec_load(a + u * VEC_LANES) * scale - shift));
        memset(a + (n - i), 0, (LANES - (n - i)) * sizeof *a);
        EACH_VEC(u) sum[u] += vec_load(a + u * VEC_LANES);
    }
    return vec_sum(sum);
}

CLONES void row_exp_of(float *y, const float *x, float scale, float shift, size_t n) {
#define EXP_OF(load) vec_exp(load(x + i) * scale - shift)
    FOR_ROW(n, y, EXP_OF);
}

#define FAR 0x7f800000 /* of infinity, and beyond it NaN */

/* Of n < RANK_BLOCK values. */
static bool rank_some(const float *x, int32_t *best, size_t n) {
    bool is_finite = true;
    *best = INT32_MIN;
    for (size_t i = 0; i < n; i++) {
        int32_t bits, rank = rank_of(x[i]);
        memcpy(&bits, x + i, sizeof bits);
        is_finite &= (bits & FAR) != FAR;
        *best = rank > *best ? rank : *best;
    }
    return is_finite;
}

typedef int32_t ivec8 __attribute__((vector_size(32))), ivec4 __attribute__((vector_size(16)));

/* The larger of each two lanes. */
#define ivec_max(a, b)                                                                             \
    ({                                                                                             \
        __typeof__(a) max_a_ = (a), max_b_ = (b), is_more_ = max_a_ > max_b_;                      \
        (is_more_ & max_a_) | (~is_more_ & max_b_);                                                \
    })

/* The largest of sixteen lanes comes down to four of them. */
#if defined(__aarch64__)
#define ivec_most(vecs)                                                                            \
    ({                                                                                             \
        const ivec *all_ = (vecs);                                                                 \
        ivec left_ = ivec_max(all_[0], all_[2]), right_ = ivec_max(all_[1], all_[3]);              \
        ivec_max(left_, right_);                                                                   \
    })
#else
#define ivec_most(vecs)                                                                            \
    ({                                                                                             \
        ivec8 eight_[2];                                                                           \
        ivec4 four_[2];                                                                            \
        memcpy(eight_, (vecs), sizeof eight_);                                                     \
        eight_[0] = ivec_max(eight_[0], eight_[1]);                                                \
        memcpy(four_, eight_, sizeof four_);                                                       \
        ivec_max(four_[0], four_[1]);                                                              \
    })
#endif

/* What is read next was written by another op, and is far. */
CLONES bool row_ranks(const float *x, int32_t *best, size_t n) {
    enum { AHEAD = 512 };
    ivec far = {0};
    size_t i = 0;
    for (; i + RANK_BLOCK <= n; i += RANK_BLOCK) {
        ivec most[VECS];
        EACH_VEC(u) most[u] = (ivec){0} + INT32_MIN;
        for (size_t k = i; k < i + RANK_BLOCK; k += LANES) {
            __builtin_prefetch(x + k + AHEAD);
            EACH_VEC(u) {
                ivec bits = (ivec)vec_load(x + k + u * VEC_LANES);
                ivec rank = bits ^ (bits >> 31 & INT32_MAX);
                far |= (bits & FAR) == FAR;
                most[u] = ivec_max(rank, most[u]);
            }
        }
        ivec4 four = ivec_most(most);
        int32_t a = four[0] > four[1] ? four[0] : four[1],
                b = four[2] > four[3] ? four[2] : four[3];
        best[i / RANK_BLOCK] = a > b ? a : b;
    }
    int32_t found = 0;
    for (int k = 0; k < VEC_LANES; k++)
        found |= far[k];
    return (i == n || rank_some(x + i, best + i / RANK_BLOCK, n - i)) && !found;
}
