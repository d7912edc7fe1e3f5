/* mixture.h - which number format each tensor of a file gets.
 *
 * A "file type" such as Q4_K_M is a base format and rules that give sensitive tensors more bits.
 * The rules match the files people publish. */
#ifndef MODEL_MIXTURE_H
#define MODEL_MIXTURE_H

#include "base/err.h"
#include "base/str.h"
#include "quant/quant.h"

struct mixture; /* a row of the table in mixture.c */

/* By name, upper or lower case: "q4_k_m"; "q4_k" is the same. NULL when there is none. */
const struct mixture *mixture_find(const char *name);

const char *mixture_name(const struct mixture *m);
/* The names of those that can be written, and of those that cannot, separated by spaces. Static. */
const char *mixture_names(void);
const char *mixture_read_names(void);
/* Whether its base type has a quantizer. */
bool mixture_is_written(const struct mixture *m);
/* What general.file_type says of such a file. */
uint32_t mixture_file_type(const struct mixture *m);
const struct mixture *mixture_of_file_type(uint32_t file_type); /* NULL: none of these */
/* Whether the type quantizes, i.e. is not F32, F16 or BF16. */
bool mixture_is_quantized(const struct mixture *m);

/* What the rules depend on. */
struct mixture_file {
    uint32_t n_layers; /* blocks, draft blocks counted in */
    bool has_output;   /* an output.weight, i.e. embeddings that are not tied */
    uint32_t n_values; /* tensors that count as attention values, see mixture_counts_as_value */
    uint32_t gqa;      /* query heads that share a KV head */
};

/* The tensor names that count as attention values: attn_v.weight and attn_qkv.weight. */
bool mixture_counts_as_value(struct str name);

/* True when the tensor keeps the type it has: vectors, norms, the convolution, routers, and
 * everything that is not a weight. */
bool mixture_keeps(struct str name, uint32_t n_dims, const uint64_t *dims);

/* The type of a tensor that is not kept. value_index: how many attention-value tensors come before
 * it in layer order. */
enum dtype mixture_type(const struct mixture *m, const struct mixture_file *file, struct str name,
                        uint64_t row_values, uint32_t value_index);

/* The block number in "blk.12.attn_q.weight"; false for names without one. */
bool block_index(struct str name, uint32_t *index);

#endif
