/* row_parts.h - matrices whose rows are grouped: Qwen3-Next keeps the inputs of the delta rule by
 * key head, each head's rows of q, k, v and z (or of beta and alpha) one after the other.
 *
 * A part is the same rows of every group, group after group; a matrix of ours is some of them. */
#ifndef MODEL_ROW_PARTS_H
#define MODEL_ROW_PARTS_H

#include <stdint.h>

struct row_parts {
    uint32_t groups, group_rows;
    uint32_t n_parts; /* 0: rows are in their order */
    struct {
        uint32_t first, count; /* in each group */
    } parts[3];
};

/* Head sizes, from which all parts follow. */
struct delta_heads {
    uint32_t key_heads, value_heads, key_width, value_width;
};

/* Of the matrix of q, k, v and z: q, k and v, or z; of that of beta and alpha: one of them. */
struct row_parts row_parts_qkv(const struct delta_heads *h);
struct row_parts row_parts_z(const struct delta_heads *h);
struct row_parts row_parts_beta(const struct delta_heads *h);
struct row_parts row_parts_alpha(const struct delta_heads *h);

/* How many rows ours has, and theirs; which of theirs is our row `at`. */
uint64_t row_parts_count(const struct row_parts *p);
uint64_t row_parts_of(const struct row_parts *p);
uint64_t row_parts_source(const struct row_parts *p, uint64_t at);

#endif
