/* project_schedule.h - how the work of a PROJECT on tiled weights is divided: host only.
 *
 * In: a product's shape.  Out: its schedule, from which project.c makes the kernels' arguments.
 * (1) Tiles, K splits and so the order of sums depend on the matrices' shapes and the device alone:
 *     a row has the same bits in every bucket.
 * (2) Thread blocks, warps, pipeline stages and rows at once may differ from bucket to bucket.
 * (3) A schedule takes milliseconds to find and has no addresses: all layers with the same shape,
 *     and every walk over the plans, share it. */
#ifndef BACKEND_CUDA_OPS_PROJECT_SCHEDULE_H
#define BACKEND_CUDA_OPS_PROJECT_SCHEDULE_H

#include "backend/cuda/ops/project.h"

/* All that a schedule depends on: the cache's key. Compared by bytes, so it has no padding. */
struct project_shape {
    uint32_t k, head_width;
    uint32_t prologue, epilogue;
    uint32_t row_limit;  /* rows of the bucket */
    uint32_t max_shared; /* bytes that the device allows a thread block */
    uint32_t types;      /* set of the segments' */
    uint32_t is_lm_head;
    uint32_t f32_from_global; /* F32 segments' activations are not in the qact */
    uint32_t has_shares;      /* for a kernel of PROJECT_HAS_SHARES */
    uint32_t n_segments;
    struct {
        uint32_t dtype, n, tile_rows;
    } segments[PROJECT_SEGMENTS];
};

struct project_schedule {
    struct project_schedule *next;
    struct project_shape shape;
    struct project_segment segments[PROJECT_SEGMENTS]; /* without addresses and columns */
    uint32_t stage_bytes, qact_bytes;
    bool is_direct;
    uint32_t n_blocks, max_results;
    uint32_t rows; /* at once in a thread block; 0: its shared memory is too small for one */
    uint32_t task_warps, stages, extra_stages;
    uint32_t qact_at, partials_at, red_at, mbars_at, shared_bytes;
    uint16_t bounds[PROJECT_BOUNDS]; /* as in project_params */
};

/* Whether kernels of a set may have more than two stages: see DEEP_PIPELINE. */
bool project_has_deep_pipeline(uint32_t types);

/* Whether bounds have room for a range of every segment for a thread block an SM. */
bool project_can_share(const struct project_shape *shape, uint32_t n_sms);

/* From the backend's cache, or made; NULL: out of memory. */
const struct project_schedule *project_find_schedule(struct backend *b,
                                                     const struct project_shape *shape);

/* Divides the segments' tiles among thread blocks, so that the largest cost of one is least. A K
 * block costs its bytes plus kblock_cost. */
void project_divide_tiles(const struct project_segment *segments, uint32_t n_segments,
                          uint32_t n_blocks, uint32_t kblock_cost, uint16_t *bounds);

/* Tasks of the thread block that has most. */
uint32_t project_max_tasks(const struct project_segment *segments, uint32_t n_segments,
                           uint32_t n_blocks, const uint16_t *bounds);

#endif
