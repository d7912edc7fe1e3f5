/* random_model.h - small models of any shape with random weights, as GGUF files, for tests.
 *
 * Weights are a function of the seed and of the tensor's number alone: two files of one model that
 * differ in layout have the same values. */
#ifndef TESTS_RANDOM_MODEL_H
#define TESTS_RANDOM_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "file/gguf_write.h"

struct random_model {
    uint64_t seed;
    const char
        *arch; /* "llama", "qwen2", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe" */
    uint32_t hidden, layers, heads, kv_heads, head_width, ffn, vocab;
    uint32_t key_heads, value_heads, key_width,
        value_width;                /* delta-net layers: all but the last */
    uint32_t experts, used, shared; /* `ffn` values in each, `shared` 0: none */
    int draft_block; /* 1: there is one; 2: with its own embedding and head, without their norm */
    bool is_fused;   /* qwen3next: q, k, v and z are one matrix, as in files of 2025 */
    enum dtype type; /* of all matrices whose rows allow it; DT_COUNT: any */
    uint32_t alignment;   /* of the file; 0: the usual one */
    uint32_t padding;     /* moves the tensors by this many bytes in a file aligned to 1 */
    const char *damaged;  /* a tensor that has a value of its own ... */
    uint32_t damaged_row; /* in the middle of this row */
    float damage;
};

/* As small as they come. */
struct random_model random_tiny(const char *arch);

/* A mixture of experts whose widths are no round numbers. */
struct random_model random_moe(uint64_t seed);

/* Writes the file. */
int random_model_write(const struct random_model *m, const char *path, struct err *err);

/* Its keys and the descriptions of its tensors alone. Numbers are written as they are, whether or
 * not there can be such a model. */
int random_model_describe(const struct random_model *m, struct gguf_writer *to, struct err *err);

#endif
