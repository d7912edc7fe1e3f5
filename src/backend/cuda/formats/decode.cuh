/* decode.cuh - quantized blocks, laid out as in the file, to f32. */
#ifndef BACKEND_CUDA_FORMATS_DECODE_CUH
#define BACKEND_CUDA_FORMATS_DECODE_CUH

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
#include "quant/quant.h"

/* Values of a block; types without blocks are decoded 32 values at a time. */
static __device__ __forceinline__ uint32_t decode_values(uint32_t type) {
    switch (type) {
    case DT_Q2_K:
    case DT_Q3_K:
    case DT_Q4_K:
    case DT_Q5_K:
    case DT_Q6_K:
    case DT_IQ4_XS:
        return 256;
    default:
        return 32;
    }
}

/* Decodes block i of a row to y; n: values from there to the row's end. */
static __device__ void decode_block(uint32_t type, const uint8_t *row, uint32_t i, float *y,
                                    uint32_t n) {
    n = n < 32 ? n : 32;
    switch (type) {
    case DT_F32:
        for (uint32_t k = 0; k < n; k++)
            y[k] = ((const float *)row)[i * 32 + k];
        break;
    case DT_F16:
        for (uint32_t k = 0; k < n; k++)
            y[k] = f16_to_f32(((const uint16_t *)row)[i * 32 + k]);
        break;
    case DT_BF16:
        for (uint32_t k = 0; k < n; k++)
            y[k] = bf16_to_f32(((const uint16_t *)row)[i * 32 + k]);
        break;
#define DECODE(TYPE, type)                                                                         \
    case DT_##TYPE:                                                                                \
        type##_decode_block((const struct type *)row + i, y);                                      \
        break;
        FOR_EACH_BLOCK_TYPE(DECODE)
#undef DECODE
    }
}

#endif
