/* load.c - weights onto the device: where each goes, and bringing it there.
 *
 * Matrices of a PROJECT, and of experts, are kept in tiles where tiles.h has a form for them,
 * everything else as it lies in the file. Bytes go through two pinned buffers, so that reading the
 * file, the copy and the repacking (on the device, a band of rows at a time) overlap. Weights that
 * no file holds are made on the device. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/formats/repack.h"
#include "backend/cuda/host/cuda.h"
#include "backend/cuda/ops/experts.h"
#include "backend/cuda/ops/synth.h"
#include "base/size.h"

enum { PLACE_ALIGN = 256, STAGE_BYTES = 32 << 20, STAGES = 2, BAND_ROWS = 16 };

/* ---- places -----------------------------------------------------------------------------------
 */

static bool is_same(const struct operand *a, const struct operand *b) {
    return a->offset == b->offset && memcmp(a->dims, b->dims, sizeof a->dims) == 0;
}

static int compare_places(const void *a, const void *b) {
    const struct operand *x = &((const struct cuda_place *)a)->operand,
                         *y = &((const struct cuda_place *)b)->operand;
    return x->offset != y->offset ? (x->offset < y->offset ? -1 : 1)
                                  : memcmp(x->dims, y->dims, sizeof x->dims);
}

const struct cuda_place *cuda_find_place(const struct backend *b, const struct operand *o) {
    struct cuda_place key = {.operand = *o};
    const struct cuda_place *found =
        bsearch(&key, b->places, b->n_places, sizeof *b->places, compare_places);
    CHECK(found);
    return found;
}

/* All of a PROJECT's matrices are tiled, or none: one kernel reads them. */
static bool can_tile(const struct backend *b, const struct op *op) {
    struct tile_format ignored;
    bool can = op->kind == OP_PROJECT && !b->exact;
    for (uint32_t s = 0; can && s < op->project.n_segments; s++)
        can = tile_choose(&op->project.segments[s].weight, op->project.segments[s].f32_act,
                          b->n_sms, &ignored);
    return can;
}

/* Adds every weight of an op. */
static void add_places(struct backend *b, struct op *op) {
    struct operand_ref refs[MAX_OPERANDS];
    bool is_tiled = can_tile(b, op), are_experts_tiled = !b->exact && experts_can_tile(op);
    uint32_t n = op_operands(op, refs);
    for (uint32_t i = 0; i < n; i++) {
        const struct operand *o = refs[i].at;
        if (o->region != REGION_WEIGHTS)
            continue;
        struct cuda_place place = {.operand = *o};
        CHECK(o->stride == o->dims[0]);
        for (uint32_t s = 0; is_tiled && s < op->project.n_segments; s++)
            if (o == &op->project.segments[s].weight)
                place.is_tiled =
                    tile_choose(o, op->project.segments[s].f32_act, b->n_sms, &place.tiles);
        if (are_experts_tiled)
            place.is_tiled = experts_tile(op, o, &place.tiles);
        place.bytes = place.is_tiled ? place.tiles.bytes
                                     : operand_row_bytes(o) * o->dims[1] * o->dims[2] * o->dims[3];
        b->places[b->n_places++] = place;
    }
}

/* Sorted by where they lie; of two for the same weight the first stays. */
static void settle_places(struct backend *b) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < b->n_places; i++) {
        uint32_t k = 0;
        while (k < kept && !is_same(&b->places[k].operand, &b->places[i].operand))
            k++;
        if (k == kept)
            b->places[kept++] = b->places[i];
    }
    b->n_places = kept;
    qsort(b->places, b->n_places, sizeof *b->places, compare_places);
    for (uint32_t i = 0; i < b->n_places; i++) {
        struct cuda_place *p = &b->places[i];
        p->at = b->weight_bytes;
        CHECK(size_add(b->weight_bytes, p->bytes, &b->weight_bytes) &&
              size_align(b->weight_bytes, PLACE_ALIGN, &b->weight_bytes));
    }
}

int cuda_place_weights(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                       struct err *err) {
    (void)n_plans; /* they share their weights */
    struct plan *plan = plans[0];
    free(b->places);
    b->n_places = 0;
    b->weight_bytes = 0;
    b->places = calloc((size_t)plan->n_ops * MAX_OPERANDS, sizeof *b->places);
    if (!b->places)
        return err_memory(err, "the table of weights");
    /* PROJECT's come first, so that a table which is also the head gets the head's form. */
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < plan->n_ops; i++)
            if ((plan->ops[i].kind == OP_PROJECT) == (pass == 0))
                add_places(b, &plan->ops[i]);
    settle_places(b);
    CHECK(size_add(b->weight_bytes, PLACE_ALIGN, &b->weight_bytes)); /* reads may run 16 over */
    return SLUICE_OK;
}

/* ---- bringing them there ----------------------------------------------------------------------
 */

struct upload {
    struct backend *b;
    struct backend_weights from;
    uint8_t *stage[STAGES];  /* pinned */
    CUdeviceptr raw[STAGES]; /* rows on their way into tiles */
    CUevent is_free[STAGES]; /* a stage's copy and repacking are over */
    uint32_t turn;
    uint64_t done, total;
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    struct err *err;
};

/* Rows [first, first + n) of plane `plane`, as they lie in the file, to `to` on the device. */
static int bring_rows(struct upload *u, const struct cuda_place *p, uint32_t plane, uint32_t first,
                      uint32_t n, CUdeviceptr to) {
    const struct operand *o = &p->operand;
    uint64_t row = operand_row_bytes(o), bytes = n * row;
    uint64_t at = o->offset + ((uint64_t)plane * o->plane + first) * row;
    u->done += bytes;
    if (o->offset < u->from.synthetic)
        return cuda_synthesize(u->b, o, to, at, bytes, u->err);
    CHECK(bytes <= STAGE_BYTES && at + bytes <= u->from.bytes);
    int status = driver_check(driver.event_sync(u->is_free[u->turn]), "uploading weights", u->err);
    if (status)
        return status;
    memcpy(u->stage[u->turn], u->from.base + at, bytes);
    return driver_check(driver.copy_in(to, u->stage[u->turn], bytes, u->b->stream),
                        "uploading weights", u->err);
}

static int repack_rows(struct upload *u, const struct cuda_place *p, uint32_t plane, uint32_t first,
                       uint32_t n) {
    uint64_t plane_bytes = p->bytes / p->operand.dims[2];
    struct repack_params params = {
        .from = (const uint8_t *)(uintptr_t)u->raw[u->turn],
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

static int bring_band(struct upload *u, const struct cuda_place *p, uint32_t plane, uint32_t first,
                      uint32_t n) {
    uint64_t row = operand_row_bytes(&p->operand);
    CUdeviceptr to = p->is_tiled ? u->raw[u->turn]
                                 : u->b->weights.at + p->at +
                                       ((uint64_t)plane * p->operand.dims[1] + first) * row;
    int status = bring_rows(u, p, plane, first, n, to);
    if (!status && p->is_tiled)
        status = repack_rows(u, p, plane, first, n);
    if (!status)
        status = driver_check(driver.event_record(u->is_free[u->turn], u->b->stream),
                              "uploading weights", u->err);
    u->turn = (u->turn + 1) % STAGES;
    if (!status && u->progress)
        u->progress(u->user, u->done, u->total);
    return status;
}

static int bring_place(struct upload *u, const struct cuda_place *p) {
    uint64_t row = operand_row_bytes(&p->operand);
    if (row > STAGE_BYTES / BAND_ROWS)
        return err_set(u->err, SLUICE_ERR_UNSUPPORTED,
                       "a weight has rows of %llu bytes, expected at most %d",
                       (unsigned long long)row, STAGE_BYTES / BAND_ROWS);
    uint32_t band = (uint32_t)(STAGE_BYTES / row) / BAND_ROWS * BAND_ROWS, n = p->operand.dims[1];
    for (uint32_t plane = 0; plane < p->operand.dims[2] * p->operand.dims[3]; plane++)
        for (uint32_t first = 0; first < n; first += band) {
            int status = bring_band(u, p, plane, first, n - first < band ? n - first : band);
            if (status)
                return status;
        }
    return SLUICE_OK;
}

static int make_stage(struct upload *u, int i) {
    void *pinned = NULL;
    int status = driver_check(driver.host_alloc(&pinned, STAGE_BYTES, 0),
                              "pinned memory for the upload", u->err);
    if (status)
        return status;
    u->stage[i] = pinned;
    if ((status = driver_check(driver.alloc(&u->raw[i], STAGE_BYTES),
                               "device memory for the upload", u->err)))
        return status;
    return driver_check(driver.event_create(&u->is_free[i], CU_EVENT_DISABLE_TIMING), "an event",
                        u->err);
}

static int make_stages(struct upload *u) {
    int status = SLUICE_OK;
    for (int i = 0; !status && i < STAGES; i++)
        status = make_stage(u, i);
    return status;
}

static void free_stages(struct upload *u) {
    for (int i = 0; i < STAGES; i++) {
        if (u->stage[i])
            driver.host_free(u->stage[i]);
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
    for (uint32_t i = 0; i < b->n_places; i++)
        u.total += operand_row_bytes(&b->places[i].operand) * b->places[i].operand.dims[1] *
                   b->places[i].operand.dims[2] * b->places[i].operand.dims[3];
    int status = make_stages(&u);
    for (uint32_t i = 0; !status && i < b->n_places; i++)
        status = bring_place(&u, &b->places[i]);
    if (!status)
        status = driver_check(driver.stream_sync(b->stream), "uploading weights", err);
    free_stages(&u);
    return status;
}
