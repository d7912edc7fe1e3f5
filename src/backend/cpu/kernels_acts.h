/* kernels_acts.h - activations as int8 groups, for one instruction set: the steps of act_quantize.
 *
 * The file that includes it defines ACTS_INLINE and ACTS_TARGET, and
 *   largest_bits(x, n)                     the largest magnitude of n values, as bits
 *   quantize_group(x, inverse, q, sum)     32 values to int8, and the sums of both halves
 * and gets act_groups_vectors. */
#include <float.h>
#include <string.h>

/* See scale_of in quant.c. */
ACTS_INLINE float act_scale(int32_t max) {
    float d;
    memcpy(&d, &max, sizeof d);
    d /= 127.0f;
    return d < FLT_MIN ? 0.0f : d;
}

ACTS_INLINE void put_act_group(struct act_group *a, float scale, int32_t low, int32_t high) {
    a->scale = scale;
    a->offset = scale * (float)(low + high);
    a->minus_sum = -(low + high);
    a->minus_half[0] = -low;
    a->minus_half[1] = -high;
    a->half_offset[0] = scale * (float)low;
    a->half_offset[1] = scale * (float)high;
}

static ACTS_TARGET void act_groups_vectors(const float *x, uint32_t k, uint32_t group,
                                           struct act_group *groups) {
    for (uint32_t first = 0; first < k; first += group) {
        uint32_t n = k - first < group ? k - first : group;
        float scale = act_scale(largest_bits(x + first, n));
        float inverse = scale > 0 && scale <= FLT_MAX ? 1.0f / scale : 0.0f;
        for (uint32_t i = first; i < first + n; i += 32) {
            int32_t sum[2];
            quantize_group(x + i, inverse, groups[i / 32].q, sum);
            put_act_group(&groups[i / 32], scale, sum[0], sum[1]);
        }
    }
}
