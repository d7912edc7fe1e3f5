/* experts.c - recording EXPERTS_IN and EXPERTS_OUT on tiled weights: tiles, thread blocks and
 * shared memory. */
#include "backend/cuda/ops/experts.h"

#include <stdio.h>
#include <string.h>

#include "backend/cuda/host/cuda.h"
#include "backend/cuda/ops/experts_wide.h"
#include "base/size.h"

enum {
    MAX_QACT = 48 << 10,    /* bytes of a quantized row: one stage a warp fits beside it */
    MAX_PARTIALS = 8 << 10, /* bytes of a thread block's sums */
    MAX_STAGES = 8,
};

/* ---- tiles -------------------------------------------------------------------------------- */

/* The matrices of an op; optional ones may have no dims. */
static uint32_t list_matrices(const struct op *op, const struct operand *out[4]) {
    if (op->kind == OP_EXPERTS_IN) {
        out[0] = &op->experts_in.gate, out[1] = &op->experts_in.up;
        out[2] = &op->experts_in.shared_gate, out[3] = &op->experts_in.shared_up;
        return 4;
    }
    if (op->kind == OP_EXPERTS_OUT) {
        out[0] = &op->experts_out.down, out[1] = &op->experts_out.shared_down;
        return 2;
    }
    return 0;
}

/* Rows of a tile, the same for all matrices of an op: as few as K allows, so that there are enough
 * tiles for all SMs. 0: K allows no tiles. */
static uint32_t tile_rows(const struct op *op) {
    const struct operand *w[4];
    uint32_t n = list_matrices(op, w), rows = n ? 4 : 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = w[i]->n_dims ? w[i]->dims[0] : 0;
        rows = k % 256 ? 0 : min_u32(rows, k % 512 ? 1 : k % 1024 ? 2 : 4);
    }
    return rows ? 16 / rows : 0;
}

static struct tile_format make_format(const struct operand *w, uint32_t rows) {
    struct tile_format f = {.type = w->type,
                            .rows = rows,
                            .columns = tile_columns(w->type, rows),
                            .kblock_bytes = tile_kblock_bytes(w->type)};
    f.bytes =
        (uint64_t)div_up(w->dims[1], rows) * (w->dims[0] / f.columns) * f.kblock_bytes * w->dims[2];
    return f;
}

static bool is_aligned(const struct operand *o) {
    return o->offset % 16 == 0 && o->stride % 4 == 0;
}

/* The activations that the op quantizes. */
static const struct operand *input_of(const struct op *op) {
    return op->kind == OP_EXPERTS_IN ? &op->experts_in.in : &op->experts_out.hidden;
}

bool experts_can_tile(const struct op *op) {
    const struct operand *w[4];
    uint32_t n = list_matrices(op, w), rows = tile_rows(op);
    if (!rows || !is_aligned(input_of(op)) || project_int8_bytes(input_of(op)->dims[0]) > MAX_QACT)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (w[i]->n_dims && (!tile_span(w[i]->type) || !tile_is_int8(w[i]->type)))
            return false;
    if (op->kind == OP_EXPERTS_IN)
        return true;
    /* The shared expert's part of hidden must begin at one of its K blocks. */
    uint32_t before = input_of(op)->dims[0] - (w[1]->n_dims ? w[1]->dims[0] : 0);
    return !w[1]->n_dims || before % tile_columns(w[1]->type, rows) == 0;
}

bool experts_tile_format(const struct op *op, const struct operand *weight,
                         struct tile_format *out) {
    const struct operand *w[4];
    uint32_t n = list_matrices(op, w);
    for (uint32_t i = 0; i < n; i++)
        if (w[i] == weight && weight->n_dims) {
            *out = make_format(weight, tile_rows(op));
            return true;
        }
    return false;
}

/* ---- recording ---------------------------------------------------------------------------- */

/* Adds its type to `set`, and makes a stage as large as its K blocks. */
static struct experts_matrix add_matrix(struct recorder *r, const struct operand *w,
                                        struct experts_smem *smem, uint32_t *set) {
    struct cuda_matrix m = recorder_matrix(r, w);
    if (!m.k)
        return (struct experts_matrix){0};
    struct experts_matrix out = {
        .data = m.data,
        .expert_bytes = m.plane_bytes,
        .type = project_type_bit(m.type),
        .kblocks = m.k / tile_columns(m.type, m.tile_rows),
        .kblock_bytes = tile_kblock_bytes(m.type),
        .lane_shift = shift_of(project_lanes(m.type, m.tile_rows)),
    };
    *set |= out.type;
    smem->stage_bytes = max_u32(smem->stage_bytes, out.kblock_bytes);
    return out;
}

/* What a thread block does. */
struct block_work {
    uint32_t k;       /* of its row of activations */
    uint32_t tasks;   /* at most, of ... */
    uint32_t kblocks; /* ... this many K blocks at most */
    uint32_t tile_rows;
    uint32_t n_floats; /* that floats_at has room for */
};

/* Lays out shared memory for a thread block of this many warps: as many stages as fit, up to all K
 * blocks of a warp. False: some of a warp's K blocks have no stage. */
static bool lay_out(struct experts_smem *smem, const struct block_work *work, uint32_t warps,
                    uint32_t max_shared) {
    uint32_t qact = project_int8_bytes(work->k) + 16, partials = work->tasks * work->tile_rows * 4;
    uint32_t floats = work->n_floats * 4;
    uint32_t rest = qact + partials + floats + 16 + warps * MAX_STAGES * 8;
    uint32_t warp_kblocks = div_up(work->tasks, warps) * work->kblocks;
    uint32_t room = min_u32(PROJECT_SHARED, max_shared);
    smem->warps = warps;
    smem->stages = room > rest ? (room - rest) / (warps * smem->stage_bytes) : 0;
    smem->stages = max_u32(min_u32(min_u32(smem->stages, warp_kblocks), MAX_STAGES), 1);
    smem->qact_at = warps * smem->stages * smem->stage_bytes;
    smem->partials_at = smem->qact_at + (qact + 15) / 16 * 16;
    smem->floats_at = smem->partials_at + partials;
    smem->mbars_at = (smem->floats_at + floats + 7) / 8 * 8;
    smem->bytes = smem->mbars_at + warps * smem->stages * 8;
    return smem->stages == warp_kblocks;
}

/* Whether the kernels of one row may be taken. */
static bool is_one_row(const struct recorder *r, uint32_t set) {
    return r->plan->max_rows == 1 && r->b->capability >= 90 &&
           strcmp(project_set_name(set), "all") != 0;
}

/* Thread blocks: one an SM, also where some have nothing to do (README, rule 4); more where the
 * sums of a thread block would not fit. */
static uint32_t count_blocks(const struct recorder *r, uint32_t tiles, uint32_t tile_sum_bytes) {
    uint32_t n = r->n_sms;
    while (n < tiles && (uint64_t)div_up(tiles, n) * tile_sum_bytes > MAX_PARTIALS)
        n += r->n_sms;
    return n;
}

/* one_row_shared: bytes of shared memory to ask for at least, in plans of one row. */
static int launch(struct recorder *r, const char *kind, uint32_t set, uint32_t blocks,
                  const struct experts_smem *smem, uint32_t one_row_shared, const void *p,
                  size_t bytes) {
    char name[48];
    snprintf(name, sizeof name, "experts_%s_%s", kind, project_set_name(set));
    struct cuda_launch l = {
        .kernel = name,
        .grid = {blocks, r->plan->max_rows, 1},
        .threads = 32 * smem->warps,
        .shared = max_u32(smem->bytes,
                          r->plan->max_rows == 1 ? min_u32(one_row_shared, r->b->max_shared) : 0)};
    return recorder_launch(r, &l, p, bytes);
}

static bool is_tiled(struct recorder *r, const struct op *op) {
    const struct operand *w[4];
    return list_matrices(op, w) && recorder_matrix(r, w[0]).is_tiled;
}

/* The kernel before this one calls launch_dependents only after its own wait: all kernels before
 * that one are then complete when this one starts. */
static bool follows_late_release(struct recorder *r, enum op_kind kind) {
    const struct op *before = recorder_neighbour(r, -1);
    return before && before->kind == kind &&
           (kind == OP_ROUTE || (is_tiled(r, before) && !experts_is_wide(r, before)));
}

struct project_input experts_input(struct recorder *r, const struct op *op) {
    const struct operand *in = input_of(op);
    struct project_input out = {.x = recorder_at(r, in),
                                .k = in->dims[0],
                                .x_stride = in->stride,
                                .prologue = PROLOGUE_NONE,
                                .head_width = in->dims[0],
                                .can_vec4 = 1,
                                .wants_int8 = 1};
    if (op->kind == OP_EXPERTS_IN) {
        out.prologue = PROLOGUE_NORM;
        out.norm = recorder_at(r, &op->experts_in.norm);
        out.eps = op->experts_in.eps;
    }
    return out;
}

bool record_experts_in_tiled(struct recorder *r, const struct op *op, int *status) {
    const struct op_experts_in *o = &op->experts_in;
    if (!is_tiled(r, op))
        return false;
    if (experts_is_wide(r, op)) {
        *status = record_experts_in_wide(r, op);
        return true;
    }
    uint32_t rows = tile_rows(op), set = 0;
    struct experts_in_gemv_params p = {
        .io = r->io,
        .in = experts_input(r, op),
        .choice = recorder_at(r, &o->choice),
        .hidden = recorder_at(r, &o->hidden),
        .choice_stride = o->choice.stride,
        .hidden_stride = o->hidden.stride,
        .routed_width = o->gate.dims[1],
        .shared_width = o->shared_gate.n_dims ? o->shared_gate.dims[1] : 0,
        .used = o->choice.dims[0] - 1,
        .row_shift = shift_of(rows),
        .can_read_early = follows_late_release(r, OP_ROUTE),
    };
    p.routed[0] = add_matrix(r, &o->gate, &p.smem, &set);
    p.routed[1] = add_matrix(r, &o->up, &p.smem, &set);
    p.shared[0] = add_matrix(r, &o->shared_gate, &p.smem, &set);
    p.shared[1] = add_matrix(r, &o->shared_up, &p.smem, &set);
    p.routed_tiles = div_up(p.routed_width, rows);
    p.routed_fastdiv = fastdiv_of(p.routed_tiles);
    p.shared_tiles = div_up(p.shared_width, rows);
    uint32_t tiles = p.shared_tiles + p.used * p.routed_tiles, kblocks = 0;
    for (uint32_t i = 0; i < 2; i++)
        kblocks = max_u32(kblocks, max_u32(p.routed[i].kblocks, p.shared[i].kblocks));
    uint32_t blocks = count_blocks(r, tiles, 2 * rows * 4);
    const struct block_work work = {.k = p.in.k,
                                    .tasks = 2 * div_up(tiles, blocks),
                                    .kblocks = kblocks,
                                    .tile_rows = rows,
                                    .n_floats = p.in.k / PROJECT_GROUP};
    lay_out(&p.smem, &work, EXPERTS_WARPS, r->b->max_shared);
    /* No two of these fit an SM: however thread blocks were placed before this kernel, they are one
     * an SM from here on. */
    *status = launch(r, is_one_row(r, set) ? "one_in" : "gemv_in", set, blocks, &p.smem,
                     PROJECT_SHARED_WIDE, &p, sizeof p);
    return true;
}

bool record_experts_out_tiled(struct recorder *r, const struct op *op, int *status) {
    const struct op_experts_out *o = &op->experts_out;
    if (!is_tiled(r, op))
        return false;
    if (experts_is_wide(r, op)) {
        *status = record_experts_out_wide(r, op);
        return true;
    }
    uint32_t rows = tile_rows(op), set = 0, k = o->hidden.dims[0];
    struct experts_out_gemv_params p = {
        .io = r->io,
        .in = experts_input(r, op),
        .choice = recorder_at(r, &o->choice),
        .weight = recorder_at(r, &o->weight),
        .x = recorder_at(r, &o->x),
        .choice_stride = o->choice.stride,
        .weight_stride = o->weight.stride,
        .x_stride = o->x.stride,
        .used = o->choice.dims[0] - 1,
        .width = o->x.dims[0],
        .tiles = div_up(o->x.dims[0], rows),
        .row_shift = shift_of(rows),
        .can_read_early = follows_late_release(r, OP_EXPERTS_IN),
    };
    p.routed = add_matrix(r, &o->down, &p.smem, &set);
    p.shared = add_matrix(r, &o->shared_down, &p.smem, &set);
    if (p.shared.kblocks)
        p.shared_first_kblock =
            p.shared.kblocks * (k - o->shared_down.dims[0]) / o->shared_down.dims[0];
    uint32_t experts = p.used + (p.shared.kblocks != 0);
    uint32_t blocks = count_blocks(r, p.tiles, experts * rows * 4);
    const struct block_work work = {.k = p.in.k,
                                    .tasks = experts * div_up(p.tiles, blocks),
                                    .kblocks = max_u32(p.routed.kblocks, p.shared.kblocks),
                                    .tile_rows = rows,
                                    .n_floats = p.used + 1};
    bool is_one =
        is_one_row(r, set) && lay_out(&p.smem, &work, EXPERTS_OUT_WARPS, r->b->max_shared);
    if (!is_one)
        lay_out(&p.smem, &work, EXPERTS_WARPS, r->b->max_shared);
    *status = launch(r, is_one ? "one_out" : "gemv_out", set, blocks, &p.smem, PROJECT_SHARED_LEAST,
                     &p, sizeof p);
    return true;
}
