/* load.c - weights onto the device: where each goes, and the upload.
 *
 * Matrices of PROJECT and of experts are repacked into tiles where tiles.h has a format for them,
 * everything else stays as in the file. Bytes go through two pinned buffers, so that reading the
 * file, the copy and the repacking (on the device, a chunk of rows at a time) overlap. Synthetic
 * weights are made on the device. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/formats/repack.h"
#include "backend/cuda/host/cuda.h"
#include "backend/cuda/ops/experts.h"
#include "backend/cuda/ops/synth.h"
#include "backend/weight_list.h"
#include "base/size.h"

enum { WEIGHT_ALIGN = 256, BUFFER_BYTES = 32 << 20, BUFFERS = 2, CHUNK_ROWS = 16 };

/* ---- the list of weights ------------------------------------------------------------------ */

const struct cuda_weight *cuda_find_weight(const struct backend *b, const struct operand *o) {
    return weight_list_find(b->weight_list, b->n_weights, sizeof *b->weight_list, o);
}

/* Whether a segment is expanded to F32 tiles: one with f32 activations, but where all are BF16
 * or all F16, whose activations are in two parts (kernels/project_bf16.cuh) and one kernel does
 * them all; and F16 beside other types than F32, since a row has parts of one kind. */
static enum tile_expansion expansion_of(const struct op_project *p, uint32_t segment) {
    uint32_t type = p->segments[segment].weight.type;
    bool are_alike = type == DT_BF16 || type == DT_F16, are_f16 = type == DT_F16;
    for (uint32_t s = 0; s < p->n_segments; s++) {
        uint32_t other = p->segments[s].weight.type;
        are_alike &= other == type;
        are_f16 &= other == DT_F16 || other == DT_F32 || p->segments[s].f32_act;
    }
    if (p->segments[segment].f32_act && !are_alike)
        return TILE_FEW_F32;
    return type == DT_F16 && !are_f16 ? TILE_F32 : TILE_AS_IS;
}

/* All of a PROJECT's matrices are tiled, or none: one kernel reads them. */
static bool can_tile(const struct backend *b, const struct op *op) {
    struct tile_format ignored;
    bool can = op->kind == OP_PROJECT && !b->exact;
    for (uint32_t s = 0; can && s < op->project.n_segments; s++)
        can = tile_choose(&op->project.segments[s].weight, expansion_of(&op->project, s), b->n_sms,
                          &ignored);
    return can;
}

/* Adds every weight of an op that is not among the first n_sorted of the list. */
static void add_weights(struct backend *b, struct op *op, uint32_t n_sorted) {
    struct operand_ref refs[MAX_OPERANDS];
    bool is_tiled = can_tile(b, op), are_experts_tiled = !b->exact && experts_can_tile(op);
    uint32_t n = op_operands(op, refs);
    for (uint32_t i = 0; i < n; i++) {
        const struct operand *o = refs[i].at;
        if (o->region != REGION_WEIGHTS ||
            weight_list_look_up(b->weight_list, n_sorted, sizeof *b->weight_list, o))
            continue;
        struct cuda_weight weight = {.operand = *o};
        CHECK(o->stride == o->dims[0]);
        for (uint32_t s = 0; is_tiled && s < op->project.n_segments; s++)
            if (o == &op->project.segments[s].weight)
                weight.is_tiled =
                    tile_choose(o, expansion_of(&op->project, s), b->n_sms, &weight.tiles);
        if (are_experts_tiled)
            weight.is_tiled = experts_tile_format(op, o, &weight.tiles);
        weight.bytes = weight.is_tiled
                           ? weight.tiles.bytes
                           : operand_row_bytes(o) * o->dims[1] * o->dims[2] * o->dims[3];
        b->weight_list[b->n_weights++] = weight;
    }
}

/* Adds the weights of a plan's products, or of its other ops. Of two for the same weight the first
 * stays. */
static void add_plan(struct backend *b, const struct plan *plan, bool is_products) {
    uint32_t n_sorted = b->n_weights;
    for (uint32_t i = 0; i < plan->n_ops; i++)
        if ((plan->ops[i].kind == OP_PROJECT) == is_products)
            add_weights(b, &plan->ops[i], n_sorted);
    if (b->n_weights > n_sorted)
        b->n_weights = weight_list_sort(b->weight_list, b->n_weights, sizeof *b->weight_list);
}

static void assign_addresses(struct backend *b) {
    for (uint32_t i = 0; i < b->n_weights; i++) {
        struct cuda_weight *p = &b->weight_list[i];
        p->at = b->weight_bytes;
        CHECK(size_add(b->weight_bytes, p->bytes, &b->weight_bytes) &&
              size_align(b->weight_bytes, WEIGHT_ALIGN, &b->weight_bytes));
    }
}

/* Plans share most weights: those of a draft block have some of their own. PROJECT first, in all of
 * them, so that an embedding table that is also an LM head gets its format. */
int cuda_place_weights(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                       struct err *err) {
    uint64_t n_ops = 0;
    for (uint32_t i = 0; i < n_plans; i++)
        n_ops += plans[i]->n_ops;
    free(b->weight_list);
    b->n_weights = 0;
    b->weight_bytes = 0;
    b->weight_list = calloc(n_ops * MAX_OPERANDS, sizeof *b->weight_list);
    if (!b->weight_list)
        return err_memory(err, "the table of weights");
    for (uint32_t i = 0; i < 2 * n_plans; i++)
        add_plan(b, plans[i % n_plans], i < n_plans);
    assign_addresses(b);
    CHECK(size_add(b->weight_bytes, WEIGHT_ALIGN, &b->weight_bytes)); /* reads may run 16 over */
    return SLUICE_OK;
}

/* ---- the upload --------------------------------------------------------------------------- */

struct upload {
    struct backend *b;
    struct backend_weights from;
    uint8_t *pinned[BUFFERS];
    CUdeviceptr raw[BUFFERS]; /* on the device: rows to be repacked */
    CUevent is_free[BUFFERS]; /* the copy and the repacking are complete */
    uint32_t next;
    uint64_t done, total;
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    struct err *err;
};

/* Rows [first, first + n) of plane `plane`, as in the file, to `to` on the device. */
static int upload_rows(struct upload *u, const struct cuda_weight *p, uint32_t plane,
                       uint32_t first, uint32_t n, CUdeviceptr to) {
    const struct operand *o = &p->operand;
    uint64_t row = operand_row_bytes(o), bytes = n * row;
    uint64_t at = o->offset + ((uint64_t)plane * o->plane + first) * row;
    u->done += bytes;
    if (o->offset < u->from.synthetic)
        return cuda_synthesize(u->b, o, to, at, bytes, u->err);
    CHECK(bytes <= BUFFER_BYTES && at + bytes <= u->from.bytes);
    int status = driver_check(driver.event_sync(u->is_free[u->next]), "uploading weights", u->err);
    if (status)
        return status;
    memcpy(u->pinned[u->next], u->from.base + at, bytes);
    return driver_check(driver.copy_in(to, u->pinned[u->next], bytes, u->b->stream),
                        "uploading weights", u->err);
}

static int repack_rows(struct upload *u, const struct cuda_weight *p, uint32_t plane,
                       uint32_t first, uint32_t n) {
    uint64_t plane_bytes = p->bytes / p->operand.dims[2];
    struct repack_params params = {
        .from = (const uint8_t *)(uintptr_t)u->raw[u->next],
        .to = (uint8_t *)(uintptr_t)(u->b->weights.at + p->at + plane * plane_bytes),
        .format = p->tiles,
        .from_type = p->operand.type,
        .k = p->operand.dims[0],
        .n = p->operand.dims[1],
        .first = first,
        .count = n,
        .row_bytes = operand_row_bytes(&p->operand),
    };
    struct cuda_node node = {.function = cuda_function(u->b, "repack"), .params = &params};
    repack_launch(&params, &node.launch);
    if (!node.function)
        return err_set(u->err, SLUICE_ERR_DEVICE, "no CUDA kernel repack in this program");
    return cuda_run_node(u->b, &node, false, u->err);
}

static int upload_chunk(struct upload *u, const struct cuda_weight *p, uint32_t plane,
                        uint32_t first, uint32_t n) {
    uint64_t row = operand_row_bytes(&p->operand);
    CUdeviceptr to = p->is_tiled ? u->raw[u->next]
                                 : u->b->weights.at + p->at +
                                       ((uint64_t)plane * p->operand.dims[1] + first) * row;
    int status = upload_rows(u, p, plane, first, n, to);
    if (!status && p->is_tiled)
        status = repack_rows(u, p, plane, first, n);
    if (!status)
        status = driver_check(driver.event_record(u->is_free[u->next], u->b->stream),
                              "uploading weights", u->err);
    u->next = (u->next + 1) % BUFFERS;
    if (!status && u->progress)
        u->progress(u->user, u->done, u->total);
    return status;
}

static int upload_weight(struct upload *u, const struct cuda_weight *p) {
    uint64_t row = operand_row_bytes(&p->operand);
    if (row > BUFFER_BYTES / CHUNK_ROWS)
        return err_set(u->err, SLUICE_ERR_UNSUPPORTED,
                       "a weight has rows of %llu bytes, expected at most %d",
                       (unsigned long long)row, BUFFER_BYTES / CHUNK_ROWS);
    uint32_t chunk = (uint32_t)(BUFFER_BYTES / row) / CHUNK_ROWS * CHUNK_ROWS,
             n = p->operand.dims[1];
    for (uint32_t plane = 0; plane < p->operand.dims[2] * p->operand.dims[3]; plane++)
        for (uint32_t first = 0; first < n; first += chunk) {
            int status = upload_chunk(u, p, plane, first, n - first < chunk ? n - first : chunk);
            if (status)
                return status;
        }
    return SLUICE_OK;
}

static int make_buffer(struct upload *u, int i) {
    void *pinned = NULL;
    int status = driver_check(driver.host_alloc(&pinned, BUFFER_BYTES, 0),
                              "pinned memory for the upload", u->err);
    if (status)
        return status;
    u->pinned[i] = pinned;
    if ((status = driver_check(driver.alloc(&u->raw[i], BUFFER_BYTES),
                               "device memory for the upload", u->err)))
        return status;
    return driver_check(driver.event_create(&u->is_free[i], CU_EVENT_DISABLE_TIMING), "an event",
                        u->err);
}

static int make_buffers(struct upload *u) {
    int status = SLUICE_OK;
    for (int i = 0; !status && i < BUFFERS; i++)
        status = make_buffer(u, i);
    return status;
}

static void free_buffers(struct upload *u) {
    for (int i = 0; i < BUFFERS; i++) {
        if (u->pinned[i])
            driver.host_free(u->pinned[i]);
        if (u->raw[i])
            driver.free(u->raw[i]);
        if (u->is_free[i])
            driver.event_destroy(u->is_free[i]);
    }
}

int cuda_upload(struct backend *b, struct backend_weights weights,
                void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                struct err *err) {
    struct upload u = {.b = b, .from = weights, .progress = progress, .user = user, .err = err};
    for (uint32_t i = 0; i < b->n_weights; i++)
        u.total += operand_row_bytes(&b->weight_list[i].operand) *
                   b->weight_list[i].operand.dims[1] * b->weight_list[i].operand.dims[2] *
                   b->weight_list[i].operand.dims[3];
    int status = make_buffers(&u);
    for (uint32_t i = 0; !status && i < b->n_weights; i++)
        status = upload_weight(&u, &b->weight_list[i]);
    if (!status)
        status = driver_check(driver.stream_sync(b->stream), "uploading weights", err);
    free_buffers(&u);
    return status;
}
