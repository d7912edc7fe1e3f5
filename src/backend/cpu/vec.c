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

/* Applies an expression of vecs to whole rows: `v` is computed from loads at i. Where there are
 * several to sixteen lanes, these go together: one waits less for another. */
#define FOR_ROW(n, y, expression)                                                                  \
    do {                                                                                           \
        size_t i = 0;                                                                              \
        for (; VECS > 1 && i + LANES <= (n);) {                                                    \
            vec some_[VECS];                                                                       \
            EACH_VEC(u_) {                                                                         \
                some_[u_] = expression(vec_load);                                                  \
                i += VEC_LANES;                                                                    \
            }                                                                                      \
            EACH_VEC(u_) vec_store((y) + i - LANES + u_ * VEC_LANES, some_[u_]);                   \
        }                                                                                          \
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

CLONES void row_times(float *y, const float *x, float a, size_t n) {
#define TIMES(load) load(x + i) * a
    FOR_ROW(n, y, TIMES);
}

CLONES void row_over(float *y, const float *x, float a, size_t n) {
#define OVER(load) load(x + i) / a
    FOR_ROW(n, y, OVER);
}

/* What f16_from_f32 does, with finite numbers kept finite. */
#define vec_to_f16(v)                                                                              \
    ({                                                                                             \
        ivec bits_ = (ivec)(v), size_ = bits_ & INT32_MAX, most_ = (ivec){0} + 0x477fe000;         \
        ivec near_ = ivec_choose(ivec_above(size_, most_), most_, size_);                          \
        ivec small_ = (ivec)((vec)near_ + 0.5f) - 0x3f000000;                                      \
        ivec half_ = (near_ - (112 << 23) + 0xfff + (near_ >> 13 & 1)) >> 13;                      \
        half_ = ivec_choose(ivec_above(near_, 0x387fffff), half_, small_);                         \
        half_ = ivec_choose(ivec_above(size_, 0x7f7fffff), (ivec){0} + 0x7c00, half_);             \
        half_ |= ivec_above(size_, 0x7f800000) & 0x200;                                            \
        __builtin_convertvector(half_ | (bits_ >> 16 & 0x8000), hvec);                             \
    })
typedef uint16_t hvec __attribute__((vector_size(2 * VEC_LANES)));

CLONES void row_to_f16(uint16_t *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        hvec half = vec_to_f16(vec_load(x + i));
        memcpy(y + i, &half, sizeof half);
    }
    if (i < n) {
        hvec half = vec_to_f16(vec_load_some(x + i, n - i, 0));
        memcpy(y + i, &half, (n - i) * sizeof *y);
    }
}

/* The value of vec_to_f16(v). */
#define vec_round_f16(v)                                                                           \
    ({                                                                                             \
        ivec bits_ = (ivec)(v), size_ = bits_ & INT32_MAX, most_ = (ivec){0} + 0x477fe000;         \
        ivec near_ = ivec_choose(ivec_above(size_, most_), most_, size_);                          \
        ivec small_ = (ivec)((vec)near_ + 0.5f - 0.5f);                                            \
        ivec half_ = (near_ + 0xfff + (near_ >> 13 & 1)) & ~0x1fff;                                \
        half_ = ivec_choose(ivec_above(near_, 0x387fffff), half_, small_);                         \
        half_ = ivec_choose(ivec_above(size_, 0x7f7fffff), size_, half_);                          \
        (vec)(half_ | (bits_ & INT32_MIN));                                                        \
    })

CLONES void row_round_f16(float *y, const float *x, size_t n) {
#define ROUNDED(load) vec_round_f16(load(x + i))
    FOR_ROW(n, y, ROUNDED);
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

/* Floats without their sign sort as their bits do. */
#define vec_buckets(y, per)                                                                        \
    ({                                                                                             \
        ivec far_ = (ivec)((y) * (per)) & INT32_MAX, last_ = (ivec)vec_all(ROW_BUCKETS - 1);       \
        far_ = ivec_choose(ivec_above(far_, last_), last_, far_);                                  \
        __builtin_convertvector(__builtin_convertvector((vec)far_, ivec), hvec);                   \
    })

CLONES void row_exp_buckets(float *y, uint16_t *bucket, const float *x, float scale, float shift,
                            float per, size_t n) {
    size_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        vec below = vec_load(x + i) * scale - shift;
        hvec b = vec_buckets(below, per);
        memcpy(bucket + i, &b, sizeof b);
        vec_store(y + i, vec_exp(below));
    }
    if (i < n) {
        vec below = vec_load_some(x + i, n - i, 0) * scale - shift;
        hvec b = vec_buckets(below, per);
        memcpy(bucket + i, &b, (n - i) * sizeof *bucket);
        vec_store_some(y + i, vec_exp(below), n - i);
    }
}

/* Of n < RANK_BLOCK values. */
static bool rank_some(const float *x, int32_t *best, size_t n) {
    bool is_finite = true;
    *best = INT32_MIN;
    for (size_t i = 0; i < n; i++) {
        int32_t rank = rank_of(x[i]);
        is_finite &= x[i] * 0 == 0;
        *best = rank > *best ? rank : *best;
    }
    return is_finite;
}

typedef int32_t ivec4 __attribute__((vector_size(16)));

#if defined(HAS_CLONES)
#define RANK_LANES 16
#define RANK_TARGET static __attribute__((target("avx512f")))
#define RANKS(name) name##_16
#include "backend/cpu/vec_ranks.h"

#define RANK_LANES 8
#define RANK_TARGET static __attribute__((target_clones("avx2", "default")))
#define RANKS(name) name##_8
#include "backend/cpu/vec_ranks.h"

/* Vectors that are compared must not be longer than registers (ivec_above). */
bool row_ranks(const float *x, int32_t *best, size_t n) {
    return __builtin_cpu_supports("avx512f") ? row_ranks_16(x, best, n) : row_ranks_8(x, best, n);
}
#else
#define RANK_LANES 4
#define RANK_TARGET
#define RANKS(name) name
#include "backend/cpu/vec_ranks.h"
#endif
