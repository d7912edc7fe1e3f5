/* repack.c - launching the repack kernel. */
#include "backend/cuda/formats/repack.h"

#include "backend/cuda/host/cuda.h"

/* Eight warps a block, one K block each. */
void repack_launch(const struct repack_params *p, struct cuda_launch *launch) {
    uint64_t tiles = (p->count + p->format.rows - 1) / p->format.rows;
    uint64_t blocks = (tiles * (p->k / p->format.columns) + 7) / 8;
    *launch = (struct cuda_launch){
        .kernel = "repack",
        .grid = {blocks < 65535 ? (uint32_t)blocks : 65535, 1, 1},
        .threads = 256,
    };
}
