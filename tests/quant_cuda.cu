/* quant_cuda.cu - the type headers are CUDA too: every type of types.def is unpacked in a kernel.
 * Compiling without a warning is the whole test. */
#include "quant/types.h"

/* One thread, 32 values. */
#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode)                                     \
    extern "C" __global__ void unpack_##name(const struct name *blocks, float *y, int n) {         \
        int g = (int)(blockIdx.x * blockDim.x + threadIdx.x);                                      \
        struct unpacked u;                                                                         \
        if (g >= n)                                                                                \
            return;                                                                                \
        name##_unpack(blocks + g / ((values) / 32), g % ((values) / 32), &u);                      \
        for (int i = 0; i < 32; i++)                                                               \
            y[32 * g + i] = unpacked_value(&u, i);                                                 \
    }
#include "quant/types.def"

extern "C" __global__ void convert(const uint16_t *x, float *y, uint16_t *back) {
    int i = (int)threadIdx.x;
    y[2 * i] = f16_to_f32(x[i]);
    y[2 * i + 1] = bf16_to_f32(x[i]);
    back[4 * i] = f16_from_f32(y[i]);
    back[4 * i + 1] = f16_from_f32_clamped(y[i]);
    back[4 * i + 2] = bf16_from_f32(y[i]);
    back[4 * i + 3] = bf16_from_f32_clamped(y[i]);
}
