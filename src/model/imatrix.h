/* imatrix.h - importance matrices: how much each input of a matrix matters.
 *
 * An error e of a weight in column c adds e x[c] to an output, so its square counts with a factor
 * of x[c]^2: an importance matrix holds the sums of squared activations of each column, over some
 * text, as weights for quantizers. Experts are counted separately.
 *
 * Two kinds of files: GGUF (general.type "imatrix"; NAME.in_sum2 (n, width) and NAME.counts (n)),
 * which is read and written, and the older binary one, which is read.
 *
 * Read-only once open, and may be shared by threads. */
#ifndef MODEL_IMATRIX_H
#define MODEL_IMATRIX_H

#include "base/arena.h"
#include "base/err.h"
#include "file/tensor.h"

struct imatrix_entry {
    struct str name;   /* of the tensor */
    uint64_t n_sums;   /* width times matrices */
    uint32_t n_counts; /* matrices; 1 in the older files, whatever the tensor */
    float *sums;       /* of squares; not negative */
    float *counts;     /* rows that went into the sums; 0: nothing is known of that matrix */
};

struct imatrix {
    struct arena arena;
    struct imatrix_entry *entries;
    uint32_t n_entries;
    struct str dataset;            /* the text's name; may be empty */
    uint32_t n_chunks, chunk_size; /* of the text, in tokens; 0: not known */
};

/* Reads either kind. Errors are one line that begins with the path. */
int imatrix_open(struct imatrix **out, const char *path, struct err *err);
/* The same from memory. */
int imatrix_parse(struct imatrix **out, const void *bytes, size_t size, struct err *err);
void imatrix_close(struct imatrix *m); /* takes NULL */

/* Writes GGUF. */
int imatrix_write(const struct imatrix *m, const char *path, struct err *err);

/* Weights for quantizing a tensor: for each of its *n matrices (rows of the result) one for each
 * column, 1 on average and never 0; of a matrix that nothing is known of all are 1. *out is NULL
 * when there is no entry for the tensor; else free() it. An entry of another size is an error. */
int imatrix_weights(const struct imatrix *m, const struct tensor *t, float **out, uint64_t *n,
                    struct err *err);

#endif
