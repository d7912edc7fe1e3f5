/* recode.h - a tensor from one number format into another, streamed.
 *
 * Rows are read as f32, encoded by a team of threads and handed on in order, some megabytes at a
 * time. */
#ifndef MODEL_RECODE_H
#define MODEL_RECODE_H

#include "base/err.h"
#include "base/pool.h"
#include "quant/quant.h"

struct recode {
    const char *name; /* for messages */
    uint64_t width, rows;
    enum dtype to; /* a type that can encode, whose block divides width */
    /* How much errors count: (n_weights, width), each for rows / n_weights rows; NULL: all alike.
     */
    const float *weights;
    uint64_t n_weights;
    /* Rows [first, first + count) as f32; called from several threads. */
    void (*read)(const void *source, uint64_t first, uint64_t count, float *out);
    const void *source;
    /* Takes the encoded bytes, in order, from one thread. */
    int (*write)(void *sink, const void *bytes, uint64_t size, struct err *err);
    void *sink;
};

/* A value that is not finite, or that the type can't hold, is an error naming tensor and row. */
int recode_tensor(const struct recode *r, struct pool *pool, struct err *err);

#endif
