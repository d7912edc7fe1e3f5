/* vec.h - rows of floats in vectors, on every processor alike.
 *
 * Plain vector extensions of gcc and clang. Sums run in sixteen lanes, VECS vectors, that are added
 * in a fixed order at the end, and nothing is fused, so results are the same bits on every machine.
 * On aarch64 a vec is a register: gcc 12 keeps longer ones in memory. On x86-64 it is an AVX-512
 * register, two AVX or four SSE ones. CLONES compiles a function for several instruction sets and
 * picks one at load. */
#ifndef BACKEND_CPU_VEC_H
#define BACKEND_CPU_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VEC_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define VEC_SANITIZED 1
#endif
#endif

/* The choice at load runs before the sanitizers are ready, and clang names such functions in a way
 * that other files can't call them (clang 14): these builds take what every processor has. */
#if defined(__x86_64__) && !defined(VEC_SANITIZED) && !defined(__clang__)
#define HAS_CLONES 1
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

#if defined(__aarch64__)
enum { VEC_LANES = 4 };
#else
enum { VEC_LANES = 16 };
#endif
enum { LANES = 16, VECS = LANES / VEC_LANES };

typedef float vec __attribute__((vector_size(4 * VEC_LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * VEC_LANES)));
typedef float vec8 __attribute__((vector_size(32))), vec4 __attribute__((vector_size(16)));

#ifdef __clang__
#define UNROLL_FOUR _Pragma("unroll")
#else
#define UNROLL_FOUR _Pragma("GCC unroll 4")
#endif
#define EACH_VEC(u) UNROLL_FOUR for (int u = 0; u < VECS; u++)

/* Macros, as a function that takes or returns a vec has another calling convention on every
 * instruction set, inlined or not. */
#define vec_load(p)                                                                                \
    ({                                                                                             \
        vec load_;                                                                                 \
        memcpy(&load_, (p), sizeof load_);                                                         \
        load_;                                                                                     \
    })
#define vec_store(p, v)                                                                            \
    ({                                                                                             \
        vec store_ = (v);                                                                          \
        memcpy((p), &store_, sizeof store_);                                                       \
    })
#define vec_all(x) ((vec){0} + (float)(x))
/* Masks from signs: gcc 12 takes comparisons of vectors that are longer than registers (AVX2, SSE)
 * apart, lane by lane. size and limit are not negative. */
#define ivec_above(size, limit) (((limit) - (size)) >> 31)
#define ivec_choose(mask, yes, no) (((mask) & (yes)) | (~(mask) & (no)))
#define vec_choose(mask, yes, no) ((vec)(((mask) & (ivec)(yes)) | (~(mask) & (ivec)(no))))
#define vec_max(a, b)                                                                              \
    ({                                                                                             \
        vec max_a_ = (a), max_b_ = (b);                                                            \
        vec_choose(max_a_ > max_b_, max_a_, max_b_);                                               \
    })
#define vec_min(a, b)                                                                              \
    ({                                                                                             \
        vec min_a_ = (a), min_b_ = (b);                                                            \
        vec_choose(min_a_ < min_b_, min_a_, min_b_);                                               \
    })

/* The sixteen lanes of VECS vectors added as a tree: i and i + 8, then i + 4 ... */
#if defined(__aarch64__)
#define vec_sum(vecs)                                                                              \
    ({                                                                                             \
        const vec *sum_v_ = (vecs), sum_ = (sum_v_[0] + sum_v_[2]) + (sum_v_[1] + sum_v_[3]);      \
        (sum_[0] + sum_[2]) + (sum_[1] + sum_[3]);                                                 \
    })
#elif defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
#define vec_sum(vecs)                                                                              \
    ({                                                                                             \
        vec all_ = *(vecs);                                                                        \
        vec8 eight_ = __builtin_shufflevector(all_, all_, 0, 1, 2, 3, 4, 5, 6, 7) +                \
                      __builtin_shufflevector(all_, all_, 8, 9, 10, 11, 12, 13, 14, 15);           \
        vec4 four_ = __builtin_shufflevector(eight_, eight_, 0, 1, 2, 3) +                         \
                     __builtin_shufflevector(eight_, eight_, 4, 5, 6, 7);                          \
        (four_[0] + four_[2]) + (four_[1] + four_[3]);                                             \
    })
#else
#define vec_sum(vecs)                                                                              \
    ({                                                                                             \
        float sum_[LANES];                                                                         \
        memcpy(sum_, (vecs), sizeof sum_);                                                         \
        for (int half_ = LANES / 2; half_ > 0; half_ /= 2)                                         \
            for (int i_ = 0; i_ < half_; i_++)                                                     \
                sum_[i_] += sum_[i_ + half_];                                                      \
        sum_[0];                                                                                   \
    })
#endif

/* +-87 where x is beyond it or NaN; NaN where x is, and 0 elsewhere. */
#if defined(__aarch64__)
#define vec_within_87(x) vec_max(vec_min((x), vec_all(87.0f)), vec_all(-87.0f))
#define vec_nan(x) ((vec)((x) != (x)))
#else
#define vec_within_87(x)                                                                           \
    ({                                                                                             \
        ivec bits_ = (ivec)(x), size_ = bits_ & INT32_MAX, most_ = (ivec){0} + 0x42ae0000;         \
        (vec)(ivec_choose(ivec_above(size_, most_), most_, size_) | (bits_ & INT32_MIN));          \
    })
#define vec_nan(x) ((vec)ivec_above((ivec)(x)&INT32_MAX, 0x7f800000))
#endif

/* e^x to about 1e-7 of itself: 2^n times a polynomial in what is left of the exponent. Arguments
 * beyond +-87 give the value there. NaN stays NaN. Adding 1.5 * 2^23 rounds to an integer, n, which
 * then is in the low bits; ln 2 is subtracted in two parts. */
#define vec_exp(argument)                                                                          \
    ({                                                                                             \
        vec argument_ = (argument), nan_ = vec_nan(argument_), x_ = vec_within_87(argument_);      \
        vec shifted_ = x_ * 1.44269504f + 12582912.0f, n_ = shifted_ - 12582912.0f;                \
        vec r_ = x_ - n_ * 0.693359375f - n_ * -2.12194440e-4f;                                    \
        vec p_ = vec_all(1.9875691500e-4f);                                                        \
        p_ = p_ * r_ + 1.3981999507e-3f;                                                           \
        p_ = p_ * r_ + 8.3334519073e-3f;                                                           \
        p_ = p_ * r_ + 4.1665795894e-2f;                                                           \
        p_ = p_ * r_ + 1.6666665459e-1f;                                                           \
        p_ = p_ * r_ + 5.0000001201e-1f;                                                           \
        p_ = p_ * (r_ * r_) + r_ + 1.0f;                                                           \
        p_ *(vec)(((ivec)shifted_ << 23) + 0x3F800000) + nan_;                                     \
    })

#define vec_sigmoid(x) (1.0f / (1.0f + vec_exp(-(x))))

/* The first n < VEC_LANES values; the others as given. */
#define vec_load_some(p, n, fill)                                                                  \
    ({                                                                                             \
        float some_[VEC_LANES];                                                                    \
        for (size_t k_ = 0; k_ < VEC_LANES; k_++)                                                  \
            some_[k_] = k_ < (n) ? (p)[k_] : (fill);                                               \
        vec_load(some_);                                                                           \
    })
#define vec_store_some(p, v, n)                                                                    \
    ({                                                                                             \
        float part_[VEC_LANES];                                                                    \
        vec_store(part_, v);                                                                       \
        memcpy((p), part_, (n) * sizeof(float));                                                   \
    })

/* ---- whole rows; n is any number ------------------------------------------------------------ */

float row_dot(const float *a, const float *b, size_t n);
float row_max(const float *x, size_t n); /* n at least 1 */
/* y = x * scale * w */
void row_scale_by(float *y, const float *x, float scale, const float *w, size_t n);
/* y *= silu(g), y *= sigmoid(g) */
void row_times_silu(float *y, const float *g, size_t n);
void row_times_sigmoid(float *y, const float *g, size_t n);
/* y = silu(g) * u */
void row_swiglu(float *y, const float *g, const float *u, size_t n);
/* y += x; y = y * a + x * b */
void row_add(float *y, const float *x, size_t n);
void row_mix(float *y, float a, const float *x, float b, size_t n);
/* y = x * a; y = x / a */
void row_times(float *y, const float *x, float a, size_t n);
void row_over(float *y, const float *x, float a, size_t n);
/* The bits of f16_encode. */
void row_to_f16(uint16_t *y, const float *x, size_t n);
/* The same, as f32. */
void row_round_f16(float *y, const float *x, size_t n);
/* x = e^(x - shift); returns their sum */
float row_exp(float *x, float shift, size_t n);
/* y = e^(x * scale - shift), and their sum alone */
void row_exp_of(float *y, const float *x, float scale, float shift, size_t n);
/* The same, and bucket = (shift - x * scale) * per, or the last one. x * scale is not over shift.
 */
enum { ROW_BUCKETS = 4096 };
void row_exp_buckets(float *y, uint16_t *bucket, const float *x, float scale, float shift,
                     float per, size_t n);
float row_exp_sum(const float *x, float scale, float shift, size_t n);

/* An integer that sorts like a float: -0 before 0, NaN at the ends by its sign. */
static inline int32_t rank_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits ^ (bits >> 31 & INT32_MAX);
}

static inline float float_of(int32_t rank) {
    int32_t bits = rank ^ (rank >> 31 & INT32_MAX);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The best rank of every RANK_BLOCK values; returns whether all values are finite. */
enum { RANK_BLOCK = 128 };
static inline uint32_t rank_blocks(uint32_t n) {
    return (n + RANK_BLOCK - 1) / RANK_BLOCK;
}
bool row_ranks(const float *x, int32_t *best, size_t n);

#endif
