/* product.h - products of weight rows and activation rows: what PROJECT, ROUTE, EXPERTS_IN and
 * EXPERTS_OUT are made of. Two dispatches: quantize.comp prepares the activations, project.comp,
 * project_tile.comp or project_plain.comp multiplies; or one, of one row (row.c). */
#ifndef BACKEND_VULKAN_OPS_PRODUCT_H
#define BACKEND_VULKAN_OPS_PRODUCT_H

#include "backend/vulkan/host/vulkan.h"
#include "plan/build.h"

enum { VULKAN_RUN = 128, VULKAN_MAX_RUNS = 1024 }; /* prologue.glsl: squares are added in runs */

/* Where activation rows come from. */
struct vulkan_prologue {
    struct operand in, norm, gate;
    enum prologue prologue;
    uint32_t head_width, gate_stride;
    float eps;
    uint32_t rows;
    bool is_head; /* row i is that of output i */
    uint32_t act_group;
    bool needs_int8, needs_f32;
    bool is_plain;  /* for weights in F32, F16 and BF16 alone */
    bool has_pairs; /* no tiles where experts' pairs are not sorted */
};

/* Activation rows in workspace. */
struct vulkan_acts {
    struct vulkan_bind q, scales; /* int8, (rows, k); a pair of words for every 32 values */
    struct vulkan_bind x;         /* f32, (rows, x_stride) */
    uint32_t k, x_stride;
    bool is_tiled; /* IS_TILED of quantize.comp: for tiles alone */
};

static inline bool has_norm(const struct vulkan_prologue *p) {
    return p->prologue == PROLOGUE_NORM || p->prologue == PROLOGUE_GATED_NORM;
}

static inline bool has_gate(const struct vulkan_prologue *p) {
    return p->prologue == PROLOGUE_GATED_NORM || p->prologue == PROLOGUE_SIGMOID_GATE;
}

/* Whether rows, weights and gates all begin at multiples of four values. */
bool vulkan_has_vectors(const struct vulkan_prologue *p, uint32_t in_first, uint32_t norm_first,
                        uint32_t gate_first);

int vulkan_quantize(struct vulkan_recorder *r, const struct vulkan_prologue *p,
                    struct vulkan_acts *out);

/* Whether products of these activations can prepare them, each for itself: one row. That spares a
 * dispatch which all would wait for. */
bool vulkan_can_fuse(const struct vulkan_recorder *r, const struct vulkan_prologue *p);

/* Pairs of rows and places by expert, in tiles of this many (experts_sort.comp). */
struct vulkan_pairs {
    struct vulkan_bind tiles;
    uint32_t rows, n_tiles;
};

/* false: there are too few, or the device has no tiles. */
bool vulkan_can_sort(const struct vulkan_recorder *r, uint32_t places, uint32_t experts);
int vulkan_sort(struct vulkan_recorder *r, const struct operand *choice, uint32_t experts,
                struct vulkan_pairs *out);

enum product_epilogue { PRODUCT_STORE, PRODUCT_ADD, PRODUCT_SWIGLU, PRODUCT_GATED };

struct vulkan_product {
    const struct operand *weight, *bias;        /* bias may be NULL, or none */
    const struct operand *second, *second_bias; /* SwiGLU's up, read as `weight` is */
    const struct vulkan_acts *acts;
    bool is_f32;        /* the activations it is multiplied with */
    uint32_t act_group; /* of int8 */
    enum product_epilogue epilogue;
    uint32_t rows;
    bool is_head;
    struct vulkan_bind out; /* read too, where the epilogue wants that */
    uint32_t out_first, out_stride;
    /* A stack of experts: which one a place of a row has; NULL: no stack. act_place, out_place:
     * values from one place to the next. */
    const struct operand *choice;
    const struct vulkan_pairs *pairs; /* NULL, or f32: one after the other */
    uint32_t places, act_place, out_place;
};

int vulkan_multiply(struct vulkan_recorder *r, const struct vulkan_product *p);

/* Matrices of one type and a product of one row, which prepares it itself: one dispatch, if one
 * buffer can hold them. SwiGLU: gate and up. */
struct vulkan_part {
    const struct operand *weight, *bias;
    uint32_t column;
};

struct vulkan_row {
    const struct vulkan_part *parts;
    uint32_t n_parts;
    const struct vulkan_prologue *prologue;
    enum product_epilogue epilogue;
    bool is_f32, is_head;
    const struct operand *out;
};

int vulkan_multiply_row(struct vulkan_recorder *r, const struct vulkan_row *p);

/* Threads that share a weight row in blocks: they follow from K and the activations' type alone
 * (product.glsl). */
uint32_t vulkan_lanes(uint32_t k, bool is_f32);
uint32_t vulkan_plain_lanes(uint32_t k); /* the same of F32, F16 and BF16 */
int vulkan_err_too_large(struct vulkan_recorder *r, const struct operand *w);
bool vulkan_is_plain(const struct operand *w);

/* Whether a matrix is multiplied with f32 activations. */
bool vulkan_takes_f32(const struct vulkan_recorder *r, const struct operand *weight);
/* Whether two matrices can be gate and up of one product. */
bool vulkan_is_pair(struct vulkan_recorder *r, const struct operand *a, const struct operand *b);

#endif
