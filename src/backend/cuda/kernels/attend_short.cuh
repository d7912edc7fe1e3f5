/* attend_short.cuh - ATTEND of a unit of narrow heads that sees few positions: splits of 16.
 *
 * A warp takes its split from scores to mixed values without waiting for another; then the block
 * folds the splits. Scores of a lane (g, t) are those of positions g and g + 8 and of queries 2 t
 * and 2 t + 1. The bits are those that splits of 16 get elsewhere. */
#ifndef BACKEND_CUDA_KERNELS_ATTEND_SHORT_CUH
#define BACKEND_CUDA_KERNELS_ATTEND_SHORT_CUH

#include "backend/cuda/kernels/attend.cuh"

struct short_shared {
    static constexpr int SPLITS = ATTEND_SHORT(64) / 16;
    static_assert(SPLITS <= ATTEND_WARPS, "a warp each");
    alignas(16) struct seen seen[SPLITS][ATTEND_TILE];
    /* Of 16 positions: of every second pair of queries the later 8 come first, for the banks. */
    alignas(16) float weights[SPLITS][ATTEND_TILE][16];
    alignas(16) float mixed[SPLITS][ATTEND_TILE * 64];
};

/* Room for it where it is needed. */
template <int D> struct short_room {};
template <> struct short_room<64> { struct short_shared s; };

/* Where a lane finds its positions: g and g + 8 of the keys, from column 8 t on, and 4 t to 4 t + 3
 * of the values, from column 8 g on. Positions that are not seen may be any that are. */
struct short_rows {
    const uint8_t *key[2], *value[4];
};

static __device__ __forceinline__ float over_positions(float x, bool is_max) {
#pragma unroll
    for (int i = 16; i >= 4; i >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, x, i);
        x = is_max ? fmaxf(x, other) : x + other;
    }
    return x;
}

/* Scores become weights; returns those of query g at positions 4 t to 4 t + 3. `limit` is how many
 * positions queries 2 t and 2 t + 1 see. */
static __device__ __forceinline__ float4 short_weigh(struct short_shared &s,
                                                     const float (&score)[4], const float *factors,
                                                     uint32_t split, const uint32_t (&limit)[2]) {
    float(*weights)[16] = s.weights[split];
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float2 factor = *(const float2 *)&factors[2 * t];
    float x[4];
    struct seen part[2];
#pragma unroll
    for (int k = 0; k < 4; k++)
        x[k] = g + k / 2 * 8 < limit[k % 2] ? __fmul_rn(score[k], k % 2 ? factor.y : factor.x)
                                            : -INFINITY;
#pragma unroll
    for (int q = 0; q < 2; q++)
        part[q].max = ceilf(over_positions(fmaxf(x[q], x[q + 2]), true));
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float weight = exp2f(__fsub_rn(x[k], part[k % 2].max));
        x[k] = g + k / 2 * 8 < limit[k % 2] ? weight : 0.0f;
        weights[2 * t + k % 2][(g + k / 2 * 8) ^ (t % 2 * 8)] = x[k];
    }
#pragma unroll
    for (int q = 0; q < 2; q++)
        part[q].sum = over_positions(x[q] + x[q + 2], false);
    if (g == 0)
        *(float4 *)&s.seen[split][2 * t] =
            make_float4(part[0].max, part[0].sum, part[1].max, part[1].sum);
    __syncwarp();
    return *(const float4 *)&weights[g][(4 * t) ^ (g / 2 % 2 * 8)];
}

/* A warp's split: scores, weights, mixed values. `wait` is called before values are read. */
template <class Wait>
static __device__ __forceinline__ void
short_split(struct short_shared &s, const struct short_rows &from, const uint4 (*query)[32],
            const float *factors, uint32_t n_queries, const uint32_t (&limit)[2], Wait wait) {
    uint32_t lane = threadIdx.x % 32, split = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float scores[4][4] = {}, c[8][4] = {}, score[4];
#pragma unroll
    for (int b = 0; b < 2; b++)
        score_step(scores, *(const uint4 *)(from.key[0] + b * 64),
                   *(const uint4 *)(from.key[1] + b * 64), query[2 * b][lane],
                   query[2 * b + 1][lane]);
#pragma unroll
    for (int k = 0; k < 4; k++)
        score[k] = score_of(scores, k);
    wait();
    uint4 v[4];
#pragma unroll
    for (int r = 0; r < 4; r++)
        v[r] = *(const uint4 *)from.value[r];
    mix_step(c, v, short_weigh(s, score, factors, split, limit));
    if (g < n_queries)
        store_mixed(c, (float4 *)&s.mixed[split][g * 64 + t * 16]);
}

/* Values e to e + 3 of the result, of all splits. */
static __device__ __forceinline__ float4 short_fold(const struct short_shared &s, uint32_t e,
                                                    uint32_t splits) {
    struct seen all = seen_none();
    float4 x = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (uint32_t i = 0; i < splits; i++) {
        float4 part = *(const float4 *)&s.mixed[i][e];
        struct factors f = fold(&all, s.seen[i][e / 64]);
        x.x = fold_value(x.x, part.x, f), x.y = fold_value(x.y, part.y, f);
        x.z = fold_value(x.z, part.z, f), x.w = fold_value(x.w, part.w, f);
    }
    float inverse = rcp_approx(all.sum);
    return make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
}

#endif
