/* kernels.c - the table of kernels, and activations in the form they read. */
#include "backend/cpu/kernels.h"

#include <string.h>

#include "backend/cpu/kernels_rows.h"
#include "base/cpu.h"

/* Best first. */
static const struct kernel_rows *const tables[] = {
#if defined(__x86_64__)
    &kernels_avx512_vnni,
    &kernels_avx512,
    &kernels_avx2,
#elif defined(__aarch64__)
    &kernels_neon_mmla, &kernels_neon_sdot, &kernels_neon_plain, &kernels_neon_fhm, &kernels_neon,
#endif
    &kernels_portable,
};

const struct kernel *kernel_at(size_t i) {
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        if (i < tables[t]->count)
            return &tables[t]->at[i];
        i -= tables[t]->count;
    }
    return NULL;
}

static bool always_f32(enum dtype type) {
    return type == DT_F32 || type == DT_F16 || type == DT_BF16;
}

const struct kernel *kernel_find(enum dtype type, bool exact, uint32_t features) {
    bool is_f32 = exact || always_f32(type);
    const struct kernel *k;
    for (size_t i = 0; (k = kernel_at(i)); i++)
        if (k->type == type && k->is_f32 == is_f32 && (k->features & ~features) == 0)
            return k;
    return NULL;
}

const struct attend_kernel *attend_at(size_t i) {
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        if (tables[t]->attend.run && i-- == 0)
            return &tables[t]->attend;
    return NULL;
}

const struct attend_kernel *attend_find(uint32_t features) {
    const struct attend_kernel *k;
    for (size_t i = 0; (k = attend_at(i)); i++)
        if ((k->features & ~features) == 0)
            return k;
    return NULL;
}

static void fill_group(struct act_group *a, const int8_t *q, float scale, int32_t sum) {
    int32_t low = 0;
    memcpy(a->q, q, sizeof a->q);
    for (int i = 0; i < 16; i++)
        low += q[i];
    a->scale = scale;
    a->offset = scale * (float)sum;
    a->minus_sum = -sum;
    a->minus_half[0] = -low;
    a->minus_half[1] = low - sum;
    for (int h = 0; h < 2; h++)
        a->half_offset[h] = scale * (float)-a->minus_half[h];
}

static void act_groups_portable(const float *x, uint32_t k, uint32_t group,
                                struct act_group *groups) {
    int8_t q[MAX_ACT_GROUP];
    float scale[MAX_ACT_GROUP / 32];
    int32_t sum[MAX_ACT_GROUP / 32];
    for (uint32_t first = 0; first < k; first += group) {
        uint32_t n = k - first < group ? k - first : group;
        act_quantize(x + first, n, group, q, scale, sum);
        for (uint32_t g = 0; g < n / 32; g++)
            fill_group(&groups[first / 32 + g], q + g * 32, scale[g], sum[g]);
    }
}

void act_groups(const float *x, uint32_t k, uint32_t group, struct act_group *groups) {
    uint32_t features = cpu_features();
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        if (tables[t]->act_groups && (tables[t]->attend.features & ~features) == 0) {
            tables[t]->act_groups(x, k, group, groups);
            return;
        }
    }
    act_groups_portable(x, k, group, groups);
}
