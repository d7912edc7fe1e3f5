/* kernels.c - the table of kernels, and activations in the form they read. */
#include "backend/cpu/kernels.h"

#include "backend/cpu/kernels_rows.h"

/* Best first. */
static const struct kernel_rows *const tables[] = {
#if defined(__x86_64__)
    &kernels_avx512,
    &kernels_avx2,
#elif defined(__aarch64__)
    &kernels_neon,
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

void act_groups(const float *x, uint32_t k, struct act_group *groups) {
    for (uint32_t g = 0; g < k / 32; g++) {
        struct act_group *a = &groups[g];
        int32_t sum, low = 0;
        act_quantize(x + (size_t)g * 32, 32, a->q, &a->scale, &sum);
        for (int i = 0; i < 16; i++)
            low += a->q[i];
        a->offset = a->scale * (float)sum;
        a->minus_sum = -sum;
        a->minus_half[0] = -low;
        a->minus_half[1] = low - sum;
    }
}
