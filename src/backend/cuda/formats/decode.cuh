/* decode.cuh - rows as in the file, of every type of types.def, 32 values (a group) at a time. */
#ifndef BACKEND_CUDA_FORMATS_DECODE_CUH
#define BACKEND_CUDA_FORMATS_DECODE_CUH

#include "quant/types.h"

/* Group g of a row of a block type. */
static __device__ __forceinline__ void unpack_group(uint32_t type, const uint8_t *row, uint32_t g,
                                                    struct unpacked &out) {
    switch (type) {
#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode)                                     \
    case DT_##NAME:                                                                                \
        name##_unpack((const struct name *)row + g / ((values) / 32), (int)(g % ((values) / 32)),  \
                      &out);                                                                       \
        break;
#include "quant/types.def"
    }
}

/* Value i of a row of F32, F16 or BF16. */
template <uint32_t TYPE>
static __device__ __forceinline__ float plain_value(const uint8_t *row, uint32_t i) {
    if constexpr (TYPE == DT_F32)
        return ((const float *)row)[i];
    else if constexpr (TYPE == DT_F16)
        return f16_to_f32(((const uint16_t *)row)[i]);
    else
        return bf16_to_f32(((const uint16_t *)row)[i]);
}

template <uint32_t TYPE>
static __device__ __forceinline__ void decode_plain(const uint8_t *row, uint32_t i, uint32_t n,
                                                    float *y) {
    for (uint32_t k = 0; k < n; k++)
        y[k] = plain_value<TYPE>(row, i + k);
}

/* Group g of a row of any type to y; n: values from there to the row's end. */
static __device__ void decode_group(uint32_t type, const uint8_t *row, uint32_t g, uint32_t n,
                                    float *y) {
    n = n < 32 ? n : 32;
    switch (type) {
    case DT_F32:
        return decode_plain<DT_F32>(row, 32 * g, n, y);
    case DT_F16:
        return decode_plain<DT_F16>(row, 32 * g, n, y);
    case DT_BF16:
        return decode_plain<DT_BF16>(row, 32 * g, n, y);
    default:
        break;
    }
    struct unpacked u;
    unpack_group(type, row, g, u);
#pragma unroll
    for (int i = 0; i < 32; i++)
        y[i] = unpacked_value(&u, i);
}

#endif
