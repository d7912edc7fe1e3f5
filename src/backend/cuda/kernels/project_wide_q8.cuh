/* project_wide_q8.cuh - Q8_0 times 128 rows: both operands int8, from shared memory.
 *
 * A sum of 32 columns is scaled by itself: ten instructions for 128 columns of an output, more than
 * tensor cores need for them. So all else is kept small. int8 weights need no unpacking, and wgmma
 * reads them as cp.async wrote them; one conversion a sum costs what unpacking did. A warpgroup has
 * all 128 weight rows and half of the tile's rows of activations, a thread four weight rows: with
 * 64 and all it would load twice as many scales.
 *
 * A group of 128 columns is eight units: 64 weight rows by 16 rows by 128 columns, four sums of 32
 * columns each. A unit is multiplied while the one before is scaled. */
#ifndef BACKEND_CUDA_KERNELS_PROJECT_WIDE_Q8_CUH
#define BACKEND_CUDA_KERNELS_PROJECT_WIDE_Q8_CUH

#include "backend/cuda/kernels/project_wide_types.cuh"

#if __CUDA_ARCH_FEAT_SM90_ALL

/* Sums [32 m + 16 n ...]: half m of the weight rows, half n of the warpgroup's rows. */
struct q8_sums {
    int c[2][2][16]; /* of two units, by 32 columns */
    float v[16];     /* of the first of them, scaled */
    float kblock[64];
    float split[64];
};

/* Unit u of a group: weight rows 64 m ..., rows 32 n ..., columns 64 half ...: the upper ones
 * first.
 */
template <int U> struct q8_unit {
    enum : int { M = U / 4, N = U / 2 % 2, HALF = 1 - U % 2 };
};

/* ---- multiplying -------------------------------------------------------------------------- */

/* Descriptor of weights: 16 bytes of 8 rows are 128 bytes, the next 16 bytes WIDE_CHUNK further. */
static __device__ __forceinline__ uint64_t describe_weights(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(WIDE_CHUNK >> 4) << 16 |
           (uint64_t)(128 >> 4) << 32;
}

/* Of the stage at `at`; group: of the two warpgroups. */
template <int U>
static __device__ __forceinline__ void start_unit(struct q8_sums &s, uint32_t at, uint32_t group) {
    using unit = q8_unit<U>;
    uint64_t a = describe_weights(at + stage_layout<IS_Q8_0, 128>::QUANTS) +
                 (unit::HALF * 4 * WIDE_CHUNK + unit::M * 64 * 16) / 16;
    uint64_t b =
        describe_panel(at + group * (64 * 128)) + (unit::HALF * 64 + unit::N * 32 * 128) / 16;
    wgmma_fence();
    wgmma_s8(s.c[U % 2][0], a, b);
    wgmma_s8(s.c[U % 2][1], a + 2 * WIDE_CHUNK / 16, b + 2);
    wgmma_commit();
}

/* ---- scaling ------------------------------------------------------------------------------ */

/* What units are scaled with, loaded while the one before is scaled. */
struct q8_scales {
    act_scales as;
    uint2 d[2]; /* of the weights */
};

template <int U>
static __device__ __forceinline__ void load_scales(struct q8_scales &by, uint32_t at,
                                                   uint32_t group) {
    using L = stage_layout<IS_Q8_0, 128>;
    using unit = q8_unit<U>;
    const thread_place own(volatile_thread() % 128);
    if (!unit::HALF)
        by.as = act_scales(at + L::SCALES + group * 256 + unit::N * 128 + own.j * 16);
    if (U % 4 == 0) {
        uint32_t from = at + L::W_D + (own.row + unit::M * 64) * 8;
        by.d[0] = peek<uint2>(from);
        by.d[1] = peek<uint2>(from + 64);
    }
}

template <int U>
static __device__ __forceinline__ void scale_unit(struct q8_sums &s, const act_scales &as,
                                                  const float (&d)[2][4]) {
    using unit = q8_unit<U>;
#pragma unroll
    for (int i = 0; i < 32; i++) /* nothing is read before the wait */
        materialize(s.c[U % 2][i / 16][i % 16]);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float &sum = s.kblock[32 * unit::M + 16 * unit::N + i];
        const float(&dd)[4] = d[i % 4 / 2];
        float x0 = __int2float_rn(s.c[U % 2][0][i]), x1 = __int2float_rn(s.c[U % 2][1][i]);
        if (unit::HALF) {
            s.v[i] = __fmaf_rn(dd[3], x1, __fmul_rn(dd[2], x0));
        } else {
            float v = __fmaf_rn(dd[1], x1, __fmaf_rn(dd[0], x0, s.v[i]));
            sum = __fadd_rn(sum, __fmul_rn(as.get(i / 4, i % 4), v));
        }
    }
}

static __device__ __forceinline__ void open_factors(float (&d)[2][4], const struct q8_scales &by) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float2 low = half2_to_float2(by.d[i].x), high = half2_to_float2(by.d[i].y);
        d[i][0] = low.x, d[i][1] = low.y, d[i][2] = high.x, d[i][3] = high.y;
    }
}

/* ---- a group ------------------------------------------------------------------------------ */

/* Unit U, which is started; U + 1 is at the end. by: its scales, and then the next one's. */
template <int U>
static __device__ __forceinline__ void multiply_unit(struct q8_sums &s, struct q8_scales &by,
                                                     float (&d)[2][4], uint32_t at,
                                                     uint32_t group) {
    if (U % 4 == 0)
        open_factors(d, by);
    start_unit<U + 1>(s, at, group);
    if (U % 2 == 0)
        load_scales<U + 1>(by, at, group);
    else if (U == 3)
        load_scales<4>(by, at, group);
    wgmma_wait<1>();
    scale_unit<U>(s, by.as, d);
}

#endif

#endif
