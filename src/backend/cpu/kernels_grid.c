/* kernels_grid.c - fills the grids of kernels_grid.h. */
#include "backend/cpu/kernels_grid.h"

#include <pthread.h>

#include "base/cpu.h"
#include "quant/types.h"

struct kernel_grids kernel_grids;

/* Eight quants, each plus `bias`. */
static uint64_t eight(const uint32_t *q, uint32_t bias) {
    return (q[0] + bias * 0x01010101u) | (uint64_t)(q[1] + bias * 0x01010101u) << 32;
}

static uint64_t iq2(uint32_t code) {
    uint32_t q[2];
    iq2_values(code, 0, q);
    return eight(q, GRID_BIAS);
}

/* Quants of -7, 1 and 9 are made from levels, as bytes that carry nothing. */
static uint64_t iq1(uint32_t index) {
    uint64_t to = 0;
    uint32_t code = iq1_grid(index);
    for (int i = 0; i < 8; i++) {
        int quant = 8 * (int)(code >> 2 * i & 3) - 7;
        to |= (uint64_t)(uint8_t)(quant + GRID_IQ1_BIAS) << 8 * i;
    }
    return to;
}

#if !defined(__x86_64__)
static uint64_t minus_bytes(uint32_t signs) {
    uint64_t to = 0;
    for (int i = 0; i < 8; i++)
        to |= (signs >> i & 1 ? UINT64_C(255) : 0) << 8 * i;
    return to;
}
#endif

static void fill(void) {
    struct kernel_grids *to = &kernel_grids;
    for (uint32_t i = 0; i < 256; i++) {
        to->iq2_xxs[i] = iq2(iq2_xxs_grid(i));
        to->iq3_xxs[i] = iq3_xxs_values(i) + GRID_BIAS * 0x01010101u;
    }
    for (uint32_t i = 0; i < 512; i++) {
        to->iq2_xs[i] = iq2(iq2_xs_grid(i));
        to->iq3_s[i] = 0x01010101 + 2 * grid_spread_3(iq3_s_grid(i)) + GRID_BIAS * 0x01010101u;
    }
    for (uint32_t i = 0; i < 1024; i++)
        to->iq2_s[i] = iq2(iq2_s_grid(i));
    for (uint32_t i = 0; i < 2048; i++)
        to->iq1[i] = iq1(i);
#if defined(__x86_64__)
    to->is_gathered = cpu_features() & CPU_AVX_VNNI;
#else
    for (uint32_t i = 0; i < 256; i++)
        to->signs[i] = minus_bytes(i);
    for (uint32_t i = 0; i < 128; i++)
        to->even[i] = minus_bytes(grid_signs(i));
#endif
}

void kernel_grids_fill(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
}
