/* safetensors.h - safetensors files, single or sharded, read in place.
 *
 * Read-only once open, and may be shared by threads. Names and tensors are borrowed from it. */
#ifndef FILE_SAFETENSORS_H
#define FILE_SAFETENSORS_H

#include "base/arena.h"
#include "base/err.h"
#include "base/filemap.h"
#include "file/tensor.h"

struct safetensors {
    struct arena arena;
    struct tensor *tensors; /* of all shards; dims contiguous first, i.e. torch's order reversed */
    uint32_t n_tensors;
    struct strmap tensor_map; /* its names are JSON's, so without NUL; they are in the arena */
    struct filemap *shards;   /* none when made by safetensors_parse */
    uint32_t n_shards;
};

/* Opens a file, or a folder: its model.safetensors.index.json and all shards, or
 * model.safetensors. Each tensor of the index must be in the shard it says; shards that hold more
 * than the index knows are taken, with a warning in the log. Errors begin with the path. */
int safetensors_open(struct safetensors **out, const char *path, struct err *err);

/* One file's bytes, which must outlive the result. */
int safetensors_parse(struct safetensors **out, const void *bytes, size_t size, struct err *err);

void safetensors_close(struct safetensors *st); /* takes NULL */

const struct tensor *safetensors_find(const struct safetensors *st, struct str name);

#endif
