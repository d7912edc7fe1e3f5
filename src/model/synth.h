/* synth.h - models without a file: "synth:MODEL:TYPE" has the keys, tensors and sizes of a real
 * model and random weights, for benchmarks.
 *
 * It looks like a GGUF file that has only its header. The matrices come first: the first `made`
 * bytes of the file are a function of their offset alone (quant/random.h), so a device may generate
 * them itself. Vectors, whose values matter, come after them. */
#ifndef MODEL_SYNTH_H
#define MODEL_SYNTH_H

#include "base/filemap.h"
#include "file/gguf.h"

struct synth {
    struct gguf *file;
    struct filemap map; /* the file's addresses; zero after the header */
    uint64_t made;
    struct arena arena;
    float *fills; /* for each tensor: the value of all its elements, NAN: random */
};

/* Whether a model's path names a synthetic model. */
bool synth_is(const char *path);

/* Errors begin with the path, and list the names there are. */
int synth_open(struct synth **out, const char *path, struct err *err);
void synth_close(struct synth *s); /* takes NULL */

/* Writes the matrices, or the vectors, to the file's place in memory. */
void synth_fill_matrices(const struct synth *s, uint8_t *file);
void synth_fill_vectors(const struct synth *s, uint8_t *file);

#endif
