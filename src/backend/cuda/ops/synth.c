/* synth.c - launches synth_fill, which generates random weights. */
#include "backend/cuda/ops/synth.h"

#include "quant/random.h"

int cuda_synthesize(struct backend *b, const struct operand *o, CUdeviceptr to, uint64_t at,
                    uint64_t bytes, struct err *err) {
    const struct dtype_info *info = dtype_info(o->type);
    const struct synth_params p = {
        .to = (uint8_t *)(uintptr_t)to,
        .first = at,
        .n = bytes / info->block_bytes,
        .type = o->type,
        .block_bytes = info->block_bytes,
    };
    CHECK(random_has(o->type) && bytes % info->block_bytes == 0);
    uint64_t blocks = (p.n + SYNTH_THREADS - 1) / SYNTH_THREADS;
    struct cuda_node node = {
        .function = cuda_function(b, "synth_fill"),
        .launch = {.kernel = "synth_fill",
                   .grid = {blocks < SYNTH_MAX_BLOCKS ? (uint32_t)blocks : SYNTH_MAX_BLOCKS, 1, 1},
                   .threads = SYNTH_THREADS},
        .params = (void *)&p,
    };
    if (!node.function)
        return err_set(err, SLUICE_ERR_DEVICE, "no CUDA kernel synth_fill in this program");
    return blocks ? cuda_run_node(b, &node, false, err) : SLUICE_OK;
}
