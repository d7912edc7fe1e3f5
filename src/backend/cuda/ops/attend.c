/* attend.c - which kernels an ATTEND becomes, how positions are split, and the memory for partials.
 *
 *   fp16 cache, heads of 64, 128, 256   1 row          attend_decode_*       (sm_90 and later)
 *                                       up to 32       attend_batch_fused_*
 *                                       more           attend_rope_store, attend_batch_*,
 *                                                      attend_wide_*         (sm_90 alone)
 *   q8_0 and q4_0, these heads          1 row          attend_decode_*       (sm_90 and later)
 *   these and heads of 96, fp16 too     up to 15       attend_rope_store, attend_staged_*
 *                                       more           and attend_wide_*     (sm_90 alone)
 *   everything else                                    attend_rope_store, attend_fallback_*
 *   no heads                                           attend_rope_store */
#include "backend/cuda/ops/attend.h"

#include "backend/cuda/host/cuda.h"
#include "base/size.h"

/* Where every split would leave its own partial and these would be larger, a block takes whole
 * groups. */
static const uint64_t MAX_PARTIAL_BYTES = 64 << 20;

/* attend_wide reads an fp16 copy of a quantized cache up to this size (131072 positions of
 * qwen35-4b), and unpacks what it reads itself where the copy would be larger. */
static const uint64_t MAX_COPY_BYTES = 512 << 20;

static uint32_t rotation_of(const struct op_attend *a) {
    if (a->rotary == 0)
        return ROTATE_NONE;
    if (a->pairing == ROPE_NEIGHBOURS)
        return ROTATE_ADJACENT;
    if (a->rotary == 64)
        return ROTATE_SHUFFLE;
    return a->rotary == a->head_width && a->rotary % 128 == 0 ? ROTATE_IN_LANE : ROTATE_MEMORY;
}

static struct attend_params params_of(struct recorder *r, const struct op_attend *a) {
    uint32_t q_per_kv = a->heads / a->kv_heads;
    return (struct attend_params){
        .io = r->io,
        .in = recorder_at(r, &a->in),
        .q_norm = recorder_at(r, &a->q_norm),
        .k_norm = recorder_at(r, &a->k_norm),
        .angles = recorder_at(r, &a->angles),
        .keys = recorder_at(r, &a->keys),
        .values = recorder_at(r, &a->values),
        .page_table = recorder_at(r, &a->pages),
        .out = recorder_at(r, &a->out),
        .in_stride = a->in.stride,
        .out_stride = a->out.stride,
        .q_stride = a->q_stride,
        .k_column = a->k_column,
        .v_column = a->v_column,
        .heads = a->heads,
        .kv_heads = a->kv_heads,
        .head_width = a->head_width,
        .rotary = a->rotary,
        .rotation = rotation_of(a),
        .type = a->keys.type,
        .row_bytes = (uint32_t)operand_row_bytes(&a->keys),
        .q_per_kv = q_per_kv,
        .tiles_per_kv = div_up(q_per_kv, ATTEND_TILE_QUERIES),
        .tile_rows = 1,
        .pages_per_slot = a->pages.dims[0],
        .n_slots = a->pages.dims[1],
        .n_pages = a->keys.dims[3],
        .max_rows = r->plan->max_rows,
        .eps = a->eps,
        .scale = a->scale,
    };
}

/* Splits of the tensor-core kernels: the shortest fits one stage of decode's pipeline. Groups, so
 * clusters, are of 4 where there are many tiles, so that the device holds a cluster a tile. */
static void plan_tensor_splits(struct attend_params *p, bool has_short) {
    p->short_positions = has_short ? ATTEND_SHORT_POSITIONS(p->head_width) : 0;
    p->min_split_shift = p->head_width > 128 ? 5 : 6;
    p->max_split_shift = 7;
    p->group_splits =
        p->kv_heads * p->tiles_per_kv > 16 ? ATTEND_GROUP_SPLITS / 2 : ATTEND_GROUP_SPLITS;
}

/* Splits of the fallback: shorter where there are few tiles, so that a few thousand positions
 * give enough blocks. */
static void plan_fallback_splits(struct attend_params *p) {
    uint32_t tiles = p->kv_heads * p->tiles_per_kv;
    p->min_split_shift = 5;
    p->max_split_shift = tiles <= 4 ? 6 : tiles <= 8 ? 7 : 8;
    p->group_splits = ATTEND_GROUP_SPLITS;
}

/* The most splits that a row can have. */
static uint32_t max_splits(const struct attend_params *p) {
    uint32_t n = (p->pages_per_slot * IO_PAGE_POSITIONS) >> p->max_split_shift;
    return n > p->group_splits ? n : p->group_splits;
}

/* Memory for the partial results of splits and groups, which the last block to arrive combines;
 * and whether a block's chunk is a split or a group. */
static void plan_partials(struct recorder *r, struct attend_params *p) {
    uint32_t splits = max_splits(p), groups = div_up(splits, p->group_splits);
    uint32_t queries = p->tiles_per_kv > 1 ? ATTEND_TILE_QUERIES : p->q_per_kv * p->tile_rows;
    uint64_t rows = r->plan->max_rows, short_rows = (uint64_t)p->n_slots * (ATTEND_WIDE_ROWS - 1);
    if (p->wide_rows && rows > short_rows) /* longer segments leave no partials */
        rows = short_rows;
    uint64_t tiles = rows * p->kv_heads * p->tiles_per_kv;
    p->partial_floats = (queries * (p->head_width + 2) + 3) / 4 * 4;
    uint64_t bytes = tiles * (splits + groups) * p->partial_floats * sizeof(float);
    bool is_split_each =
        r->plan->max_rows == 1 || (r->plan->max_rows <= 8 && bytes <= MAX_PARTIAL_BYTES);
    p->chunk_splits = is_split_each ? 1 : p->group_splits;
    p->n_partials = is_split_each ? splits + groups : groups;
    p->counters_per_tile = 1 + groups;
    p->partials = recorder_work(r, tiles * p->n_partials * p->partial_floats * sizeof(float));
    p->counters = recorder_counters(r, tiles * p->counters_per_tile);
}

/* One row: a cluster computes a group of splits, a block each. Every block leaves its share of the
 * group's output, and for each query in it (max, sum). */
static int launch_decode(struct recorder *r, struct attend_params *p, const char *kernel) {
    uint32_t tiles = p->kv_heads * p->tiles_per_kv;
    p->n_partials = div_up(max_splits(p), p->group_splits);
    p->partial_floats =
        ATTEND_TILE_QUERIES * p->head_width + 2 * ATTEND_TILE_QUERIES * ATTEND_GROUP_SPLITS;
    p->counters_per_tile = p->group_splits;
    p->partials =
        recorder_work(r, (uint64_t)tiles * p->n_partials * p->partial_floats * sizeof(float));
    p->counters = recorder_counters(r, tiles * p->counters_per_tile);
    /* Two blocks an SM, as far as clusters can be placed (an H200 has room for 30 of 8; with 30 a
     * long context is slower than with 28). */
    uint32_t clusters = r->n_sms / p->group_splits * 7 / 4, needed = tiles * p->n_partials;
    clusters = needed < clusters ? needed : clusters ? clusters : 1;
    struct cuda_launch launch = {
        .kernel = kernel,
        .grid = {p->group_splits * clusters, 1, 1},
        .threads = (ATTEND_WARPS + 1) * 32,
        .shared = ATTEND_DECODE_SHARED(p->row_bytes, p->head_width),
    };
    return recorder_launch(r, &launch, p, sizeof *p);
}

/* Several rows: blocks loop over (tile, chunk). */
static int launch_batch(struct recorder *r, const struct attend_params *p, const char *kernel,
                        uint32_t shared) {
    struct cuda_launch launch = {
        .kernel = kernel,
        .grid = {2 * r->n_sms, 1, 1},
        .threads = ATTEND_WARPS * 32,
        .shared = shared,
    };
    return recorder_launch(r, &launch, p, sizeof *p);
}

/* A warp a head of a row. */
static int launch_rope_store(struct recorder *r, const struct attend_params *p) {
    uint32_t heads = r->plan->max_rows * (p->heads + 2 * p->kv_heads);
    uint32_t blocks = div_up(heads, ATTEND_WARPS);
    struct cuda_launch launch = {
        .kernel = "attend_rope_store",
        .grid = {blocks < 4 * r->n_sms ? blocks : 4 * r->n_sms, 1, 1},
        .threads = ATTEND_WARPS * 32,
    };
    return recorder_launch(r, &launch, p, sizeof *p);
}

/* A quantized cache as fp16: the whole pool, of one layer, its pages where they are in the cache.
 * False: it would be too large. */
static bool plan_copy(struct recorder *r, struct attend_params *p) {
    uint64_t positions = (uint64_t)p->n_pages * p->kv_heads * IO_PAGE_POSITIONS;
    uint64_t bytes = positions * p->head_width * sizeof(uint16_t);
    if (2 * bytes > MAX_COPY_BYTES)
        return false;
    p->half_keys = recorder_work(r, bytes);
    p->half_values = recorder_work(r, bytes);
    return true;
}

static int launch_unpack(struct recorder *r, struct attend_params *p) {
    struct cuda_launch launch = {
        .kernel = "attend_unpack",
        .grid = {4 * r->n_sms, 1, 1},
        .threads = ATTEND_WARPS * 32,
    };
    int status = recorder_launch(r, &launch, p, sizeof *p);
    p->keys = p->half_keys, p->values = p->half_values;
    return status;
}

/* Prompts: a block an SM. The tiles of a segment are one more than its rows fill for every length
 * of splits, of which there are up to four. */
static int launch_wide(struct recorder *r, const struct attend_params *p, const char *kernel) {
    struct cuda_launch launch = {
        .kernel = kernel,
        .grid = {r->n_sms, 1, 1},
        .threads = 3 * 128,
        .shared = ATTEND_WIDE_SHARED(p->head_width),
    };
    return recorder_launch(r, &launch, p, sizeof *p);
}

static void plan_wide(struct recorder *r, struct attend_params *p) {
    uint32_t rows = r->plan->max_rows;
    uint32_t tiles = div_up(rows, p->wide_rows) + 4 * div_up(rows, ATTEND_WIDE_ROWS);
    p->n_wide_work = 1 + 2 * tiles * p->kv_heads;
    p->wide_work = recorder_work(r, (uint64_t)p->n_wide_work * sizeof(uint32_t));
    p->wide_states = recorder_work(r, (uint64_t)rows * p->heads * 2 * sizeof(float));
}

/* Head widths and cache types that have tensor-core kernels. */
#define TENSOR_KERNELS(width)                                                                      \
    {                                                                                              \
        width, DT_F16, {"attend_decode_" #width "_4", "attend_decode_" #width "_8"},               \
            "attend_batch_fused_" #width, "attend_batch_" #width, "attend_wide_" #width, NULL      \
    }
#define STAGED_KERNELS(width, type, name)                                                          \
    {                                                                                              \
        width, type, {"attend_decode_" name "_4", "attend_decode_" name "_8"}, NULL,               \
            "attend_staged_" name, "attend_wide_" name, "attend_wide_" #width                      \
    }
#define STAGED_96(type, name)                                                                      \
    { 96, type, {NULL, NULL}, NULL, "attend_staged_" name, "attend_wide_" name, "attend_wide_96" }
static const struct tensor_kernels {
    uint32_t width;
    enum dtype type;
    const char *decode[2]; /* in clusters of 4, of 8; NULL: one row is as several */
    const char *fused;     /* NULL: up to 32 rows are as more, and batch is attend_staged */
    const char *batch, *wide;
    const char *wide_copy; /* attend_wide over an fp16 copy; NULL: the cache is fp16 */
} TENSOR[] = {
    TENSOR_KERNELS(64),
    TENSOR_KERNELS(128),
    TENSOR_KERNELS(256),
    {96, DT_F16, {NULL, NULL}, NULL, "attend_staged_96", "attend_wide_96", NULL},
    STAGED_KERNELS(64, DT_Q8_0, "q8_0_64"),
    STAGED_96(DT_Q8_0, "q8_0_96"),
    STAGED_KERNELS(128, DT_Q8_0, "q8_0_128"),
    STAGED_KERNELS(256, DT_Q8_0, "q8_0_256"),
    STAGED_KERNELS(64, DT_Q4_0, "q4_0_64"),
    STAGED_96(DT_Q4_0, "q4_0_96"),
    STAGED_KERNELS(128, DT_Q4_0, "q4_0_128"),
    STAGED_KERNELS(256, DT_Q4_0, "q4_0_256"),
};

static const struct {
    enum dtype type;
    const char *kernel;
} FALLBACK[] = {
    {DT_F32, "attend_fallback_f32"},
    {DT_F16, "attend_fallback_f16"},
    {DT_Q8_0, "attend_fallback_q8_0"},
    {DT_Q4_0, "attend_fallback_q4_0"},
};

/* NULL: none. */
static const struct tensor_kernels *tensor_kernels(const struct op_attend *a) {
    for (size_t i = 0; i < sizeof TENSOR / sizeof *TENSOR; i++)
        if (a->keys.type == TENSOR[i].type && a->head_width == TENSOR[i].width)
            return &TENSOR[i];
    return NULL;
}

/* NULL: the cache's type is not supported. */
static const char *fallback_kernel(const struct op_attend *a) {
    for (size_t i = 0; i < sizeof FALLBACK / sizeof *FALLBACK; i++)
        if (a->keys.type == FALLBACK[i].type)
            return FALLBACK[i].kernel;
    return NULL;
}

static int check_attend(struct recorder *r, const struct op_attend *a) {
    if (a->head_width > ATTEND_MAX_WIDTH || a->head_width % 2 || !fallback_kernel(a))
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "op %u, attend: heads %u wide over %s, the CUDA backend has even widths up "
                       "to %d over F32, F16, Q8_0 and Q4_0",
                       r->op, a->head_width, dtype_name(a->keys.type), ATTEND_MAX_WIDTH);
    if (r->plan->max_rows > ATTEND_MAX_ROWS)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "op %u, attend: %u rows a step, the CUDA backend has at most %d", r->op,
                       r->plan->max_rows, ATTEND_MAX_ROWS);
    return 0;
}

int record_attend(struct recorder *r, const struct op *op) {
    const struct op_attend *a = &op->attend;
    int status = check_attend(r, a);
    if (status)
        return status;
    const struct tensor_kernels *tensor = tensor_kernels(a);
    struct attend_params p = params_of(r, a);
    if (a->heads == 0)
        return launch_rope_store(r, &p);
    if (tensor)
        plan_tensor_splits(&p, tensor->fused);
    else
        plan_fallback_splits(&p);
    if (tensor && tensor->decode[0] && r->plan->max_rows == 1 && r->b->capability >= 90 &&
        ATTEND_DECODE_SHARED(p.row_bytes, p.head_width) <= r->b->max_shared)
        return launch_decode(r, &p, tensor->decode[p.group_splits == ATTEND_GROUP_SPLITS]);
    if (tensor && p.q_per_kv < ATTEND_TILE_QUERIES)
        p.tile_rows = ATTEND_TILE_QUERIES / p.q_per_kv;
    bool is_fused = tensor && tensor->fused && r->plan->max_rows <= ATTEND_FUSED_ROWS;
    if (tensor && !is_fused && r->plan->max_rows >= ATTEND_WIDE_ROWS && r->b->capability == 90 &&
        ATTEND_WIDE_SHARED(p.head_width) <= r->b->max_shared)
        p.wide_rows = ATTEND_WIDE_QUERIES / p.q_per_kv;
    plan_partials(r, &p);
    if (is_fused)
        return launch_batch(r, &p, tensor->fused, ATTEND_FUSED_SHARED(p.head_width));
    if (p.wide_rows)
        plan_wide(r, &p);
    bool is_copied = p.wide_rows && tensor->wide_copy && plan_copy(r, &p);
    uint64_t heads = (uint64_t)r->plan->max_rows * a->heads;
    p.queries =
        recorder_work(r, heads * a->head_width * (tensor ? sizeof(uint16_t) : sizeof(float)));
    if (tensor)
        p.query_factors = recorder_work(r, heads * sizeof(float));
    status = launch_rope_store(r, &p);
    uint32_t shared = ATTEND_ROW_TABLE(r->plan->max_rows);
    if (tensor && !tensor->fused)
        shared += ATTEND_STAGED_SHARED(p.row_bytes, p.head_width);
    if (!status)
        status =
            launch_batch(r, &p, tensor ? tensor->batch : fallback_kernel(a), tensor ? shared : 0);
    if (status || !p.wide_rows || r->is_decode)
        return status;
    if (is_copied)
        status = launch_unpack(r, &p);
    return status ? status : launch_wide(r, &p, is_copied ? tensor->wide_copy : tensor->wide);
}
