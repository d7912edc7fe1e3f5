/* attend_short.cuh - ATTEND of a query tile in a short context (heads of 64, up to 128 positions):
 * splits of 16, a warp each.
 *
 * A warp takes its split from QK to PV without a block barrier; then the block combines the splits.
 * Two barriers instead of four: on an H200 ATTEND of smollm2-1.7b takes 3.85 us instead of 5.0, 24
 * times a step.
 *
 * Lane (g, t) has the scores of positions g and g + 8 for queries 2 t and 2 t + 1. */
#ifndef BACKEND_CUDA_KERNELS_ATTEND_SHORT_CUH
#define BACKEND_CUDA_KERNELS_ATTEND_SHORT_CUH

#include "backend/cuda/kernels/attend.cuh"

struct short_shared {
    static constexpr int SPLITS = ATTEND_SHORT_POSITIONS(64) / 16;
    static_assert(SPLITS <= ATTEND_WARPS, "a warp each");
    alignas(16) struct max_sum state[SPLITS][ATTEND_TILE_QUERIES];
    alignas(16) __half weights[SPLITS][ATTEND_TILE_QUERIES][16];
    alignas(16) float pv[SPLITS][ATTEND_TILE_QUERIES * 64];
};

/* Takes no shared memory in kernels of other widths. */
template <int D> struct short_shared_if {};
template <> struct short_shared_if<64> { struct short_shared s; };

/* A lane's addresses: keys of positions g and g + 8, from column 4 t on; values of positions 4 t to
 * 4 t + 3, from column 8 g on. Masked positions may point at any that is visible. */
struct short_kv {
    const uint8_t *key[2], *value[4];
};

/* Maximum or sum over the lanes with the same t. */
static __device__ __forceinline__ float over_positions(float x, bool is_max) {
#pragma unroll
    for (int i = 16; i >= 4; i >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, x, i);
        x = is_max ? fmaxf(x, other) : x + other;
    }
    return x;
}

/* Scores become weights; returns those of query g at positions 4 t to 4 t + 3. Queries 2 t and
 * 2 t + 1 see `visible` positions of the split. */
static __device__ __forceinline__ uint2 short_softmax(struct short_shared &s,
                                                      const float (&score)[4], const float *factors,
                                                      uint32_t split,
                                                      const uint32_t (&visible)[2]) {
    __half(*weights)[16] = s.weights[split];
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float2 factor = *(const float2 *)&factors[2 * t];
    float x[4];
    struct max_sum part[2];
#pragma unroll
    for (int k = 0; k < 4; k++)
        x[k] = g + k / 2 * 8 < visible[k % 2] ? score[k] : -INFINITY;
#pragma unroll
    for (int q = 0; q < 2; q++)
        part[q].max =
            rounded_max(over_positions(fmaxf(x[q], x[q + 2]), true), q ? factor.y : factor.x);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        x[k] = softmax_weight(x[k], k % 2 ? factor.y : factor.x, part[k % 2].max);
        weights[2 * t + k % 2][g + k / 2 * 8] = __float2half_rn(x[k]);
    }
#pragma unroll
    for (int q = 0; q < 2; q++)
        part[q].sum = over_positions(x[q] + x[q + 2], false);
    if (g == 0)
        *(float4 *)&s.state[split][2 * t] =
            make_float4(part[0].max, part[0].sum, part[1].max, part[1].sum);
    __syncwarp();
    return *(const uint2 *)&weights[g][4 * t];
}

/* QK, softmax and PV of this warp's split. `wait_values` is called before values are read. */
template <class Wait>
static __device__ __forceinline__ void
short_split(struct short_shared &s, const struct short_kv &from, const uint2 (*query)[32],
            const float *factors, uint32_t n_queries, const uint32_t (&visible)[2],
            Wait wait_values) {
    uint32_t lane = threadIdx.x % 32, split = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float score[4] = {}, pv[8][4] = {};
#pragma unroll
    for (int b = 0; b < 4; b++)
        qk_mma(score, *(const uint2 *)(from.key[0] + b * 32),
               *(const uint2 *)(from.key[1] + b * 32), query[b][lane]);
    wait_values();
    struct v_columns<8> v[4];
#pragma unroll
    for (int r = 0; r < 4; r++)
        v[r] = load_v_columns<8>(from.value[r]);
    pv_mma<8>(pv, v, short_softmax(s, score, factors, split, visible));
    if (g < n_queries)
        store_pv<8>(pv, &s.pv[split][g * 64 + t * 16]);
}

/* Values e to e + 3 of the tile's output: all splits combined, divided by the sum. */
static __device__ __forceinline__ float4 short_combine(const struct short_shared &s, uint32_t e,
                                                       uint32_t splits) {
    struct max_sum all = max_sum_empty(), next_state = s.state[0][e / 64];
    float4 x = make_float4(0, 0, 0, 0), next = *(const float4 *)&s.pv[0][e];
#pragma unroll 1
    for (uint32_t i = 0; i < splits; i++) {
        float4 part = next;
        struct max_sum state = next_state;
        uint32_t k = min(i + 1, splits - 1); /* is loaded meanwhile */
        next = *(const float4 *)&s.pv[k][e], next_state = s.state[k][e / 64];
        struct rescale f = combine(&all, state);
        x.x = combine_value(x.x, part.x, f), x.y = combine_value(x.y, part.y, f);
        x.z = combine_value(x.z, part.z, f), x.w = combine_value(x.w, part.w, f);
    }
    float inverse = rcp_approx(all.sum);
    return make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
}

#endif
