/* tensor.h - a named tensor in a file, whatever the container. */
#ifndef FILE_TENSOR_H
#define FILE_TENSOR_H

#include "base/str.h"
#include "quant/quant.h"

enum { TENSOR_MAX_DIMS = 8 }; /* GGUF has at most 4; vision towers in safetensors use 5 */

struct tensor {
    struct str name;       /* borrowed from the file */
    int32_t type;          /* an enum dtype, or -1: a type we do not support */
    const char *type_name; /* as the container calls it, for messages; static */
    uint32_t n_dims;
    uint64_t dims[TENSOR_MAX_DIMS]; /* contiguous dimension first, those beyond n_dims are 1 */
    uint64_t n_values;              /* the product of dims */
    const uint8_t *data;            /* in the mapping; may be unaligned */
    uint64_t bytes;
};

#endif
