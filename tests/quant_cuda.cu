/* quant_cuda.cu - the type headers are CUDA too: includes each and instantiates its decode in a
 * kernel. Compiling without a warning is the whole test. */
#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/iq4_nl.h"
#include "quant/iq4_xs.h"
#include "quant/mxfp4.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

/* One thread decodes one block. */
#define BLOCK_KERNEL(type, values)                                                                 \
    extern "C" __global__ void decode_##type(const struct type *blocks, float *y, int n) {         \
        int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);                                      \
        if (i < n)                                                                                 \
            type##_decode_block(&blocks[i], y + (values)*i);                                       \
    }

BLOCK_KERNEL(q4_0, 32)
BLOCK_KERNEL(q4_1, 32)
BLOCK_KERNEL(q5_0, 32)
BLOCK_KERNEL(q5_1, 32)
BLOCK_KERNEL(q8_0, 32)
BLOCK_KERNEL(q2_k, 256)
BLOCK_KERNEL(q3_k, 256)
BLOCK_KERNEL(q4_k, 256)
BLOCK_KERNEL(q5_k, 256)
BLOCK_KERNEL(q6_k, 256)
BLOCK_KERNEL(iq4_nl, 32)
BLOCK_KERNEL(iq4_xs, 256)
BLOCK_KERNEL(mxfp4, 32)

extern "C" __global__ void convert(const uint16_t *x, float *y, uint16_t *back) {
    int i = (int)threadIdx.x;
    y[2 * i] = f16_to_f32(x[i]);
    y[2 * i + 1] = bf16_to_f32(x[i]);
    back[4 * i] = f16_from_f32(y[i]);
    back[4 * i + 1] = f16_from_f32_clamped(y[i]);
    back[4 * i + 2] = bf16_from_f32(y[i]);
    back[4 * i + 3] = bf16_from_f32_clamped(y[i]);
}
