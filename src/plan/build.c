/* build.c - plans: operands, adding ops, laying scratch out.
 *
 * (1) Until plan_finish a scratch operand's offset is a buffer's number (the upper bits) and an
 *     offset inside it (the lower ones).
 * (2) A buffer lives from the first op that names it to the last. Two that live at the same time
 *     never share a byte.
 * (3) STATE is handed out in the order of calls, so that the plans of all row buckets of a model
 *     agree on it. */
#include "plan/build.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "plan/check.h"
#include "plan/io.h"

enum { INSIDE_BITS = 40, SCRATCH_ALIGN = 64, STATE_ALIGN = 256, IO_ALIGN = 64 };
enum { MAX_ROWS = 1 << 20, BIASES_PER_OUTPUT = 256 };

struct plan_buffer {
    uint64_t bytes, offset;
    uint32_t first, last; /* ops */
    bool is_used;
};

struct plan_builder {
    struct plan_buffer *buffers;
    uint32_t n_buffers, capacity;
    uint64_t state_bytes;
};

/* ---- operands ----------------------------------------------------------------------------- */

struct operand operand_at(enum region region, enum dtype type, uint64_t offset,
                          const uint32_t dims[4]) {
    struct operand o = {.region = (uint8_t)region, .type = (uint8_t)type, .offset = offset};
    for (int i = 0; i < 4; i++) {
        o.dims[i] = dims[i] ? dims[i] : 1;
        o.n_dims = (uint16_t)(dims[i] ? i + 1 : o.n_dims);
    }
    o.stride = o.dims[0];
    o.plane = o.dims[1];
    return o;
}

/* Where the next piece of a region begins. On overflow *at is UINT64_MAX. */
static uint64_t grow_by(uint64_t *at, uint64_t bytes, uint64_t align) {
    uint64_t begin = size_aligned(*at, align);
    *at = size_plus(begin, bytes);
    return begin;
}

/* The first fault stays. */
static void note_fault(struct plan *plan, const char *what) {
    if (!plan->fault.code)
        err_memory(&plan->fault, what);
}

static int fault_of(const struct plan *plan, struct err *err) {
    return plan->fault.code ? err_set(err, plan->fault.code, "%s", plan->fault.text) : SLUICE_OK;
}

static const char *region_text(enum region region) {
    static const char *const text[] = {
        "weights of more than 2^64 bytes", "sequences whose state is more than 2^64 bytes",
        "more than 2^64 bytes of scratch", "more than 2^64 bytes of input and output"};
    return text[region];
}

static bool add_buffer(struct plan *plan, uint64_t bytes) {
    struct plan_builder *b = plan->builder;
    if (b->n_buffers == b->capacity) {
        uint32_t capacity = b->capacity ? b->capacity * 2 : 64;
        struct plan_buffer *more = arena_array(&plan->arena, capacity, sizeof *more);
        if (!more)
            return false;
        if (b->n_buffers)
            memcpy(more, b->buffers, b->n_buffers * sizeof *more);
        b->buffers = more;
        b->capacity = capacity;
    }
    b->buffers[b->n_buffers++] = (struct plan_buffer){.bytes = bytes};
    return true;
}

struct operand plan_scratch_of(struct plan *plan, enum dtype type, const uint32_t dims[4]) {
    struct operand o = operand_at(REGION_SCRATCH, type, 0, dims);
    o.offset = (uint64_t)plan->builder->n_buffers << INSIDE_BITS;
    if (operand_bytes(&o) == UINT64_MAX)
        note_fault(plan, region_text(REGION_SCRATCH));
    if (!add_buffer(plan, operand_bytes(&o)))
        note_fault(plan, "a plan");
    return o;
}

struct operand plan_scratch(struct plan *plan, uint64_t width) {
    if (width > UINT32_MAX)
        note_fault(plan, "rows of more than 2^32 - 1 values");
    return plan_scratch_of(plan, DT_F32, (uint32_t[4]){(uint32_t)width, plan->max_rows});
}

struct operand plan_state(struct plan *plan, enum dtype type, const uint32_t dims[4]) {
    struct operand o = operand_at(REGION_STATE, type, 0, dims);
    o.offset = grow_by(&plan->builder->state_bytes, operand_bytes(&o), STATE_ALIGN);
    if (plan->builder->state_bytes == UINT64_MAX)
        note_fault(plan, region_text(REGION_STATE));
    return o;
}

void plan_page_table(struct plan *plan, uint32_t pages_per_seq, uint32_t n_slots) {
    CHECK(!plan->pages.n_dims);
    plan->pages = plan_state(plan, DT_I32, (uint32_t[4]){pages_per_seq, n_slots});
}

struct operand operand_columns(struct operand whole, uint32_t first, uint32_t width) {
    CHECK(first <= whole.dims[0] && width <= whole.dims[0] - first &&
          dtype_info(whole.type)->block_values == 1);
    whole.offset += (uint64_t)first * dtype_info(whole.type)->block_bytes;
    whole.dims[0] = width;
    return whole;
}

struct operand operand_rows(struct operand whole, uint32_t n) {
    CHECK(whole.n_dims == 2 && n > 0 && n <= whole.dims[1]);
    whole.dims[1] = whole.plane = n;
    return whole;
}

struct operand plan_tap(const struct plan *plan, uint32_t number) {
    CHECK(number < plan->n_taps);
    struct operand o = operand_at(REGION_IO, DT_F32, plan->io.taps,
                                  (uint32_t[4]){plan->tap_width, plan->max_outputs});
    o.offset = size_plus(o.offset, size_times(number, operand_bytes(&o)));
    return o;
}

struct operand plan_logits(const struct plan *plan) {
    return operand_at(REGION_IO, DT_F32, plan->io.logits,
                      (uint32_t[4]){plan->n_vocab, plan->max_outputs});
}

/* ---- plans -------------------------------------------------------------------------------- */

/* A step needs at most one page change per row; some biases for every output. */
static void lay_io_out(struct plan *plan) {
    struct io_layout *io = &plan->io;
    uint64_t at = sizeof(struct io_header), rows = plan->max_rows, outputs = plan->max_outputs;
    uint64_t taps = size_times(outputs * plan->n_taps, plan->tap_width);
    uint64_t masks = size_times(outputs * IO_MASK_WORDS((uint64_t)plan->n_vocab), sizeof(uint32_t));
    io->max_changes = plan->max_rows;
    io->max_biases = BIASES_PER_OUTPUT * plan->max_outputs;
    io->rows = grow_by(&at, rows * sizeof(struct io_row), IO_ALIGN);
    io->segments = grow_by(&at, rows * sizeof(struct io_segment), IO_ALIGN);
    io->to = grow_by(&at, rows * sizeof(uint32_t), IO_ALIGN);
    io->outputs = grow_by(&at, outputs * sizeof(struct io_output), IO_ALIGN);
    io->changes = grow_by(&at, io->max_changes * sizeof(struct io_change), IO_ALIGN);
    io->biases = grow_by(&at, io->max_biases * sizeof(struct io_bias), IO_ALIGN);
    io->masks = grow_by(&at, masks, IO_ALIGN);
    io->keeps = grow_by(&at, masks, IO_ALIGN);
    io->burst = grow_by(&at, outputs * IO_BURST * sizeof(int32_t), IO_ALIGN);
    io->taps = grow_by(&at, size_times(taps, sizeof(float)), IO_ALIGN);
    io->logits = grow_by(&at, size_times(outputs * plan->n_vocab, sizeof(float)), IO_ALIGN);
    io->bytes = plan->bytes[REGION_IO] = size_aligned(at, IO_ALIGN);
    if (io->bytes == UINT64_MAX)
        note_fault(plan, region_text(REGION_IO));
}

int plan_new(struct plan **out, const struct plan_options *options, struct err *err) {
    *out = NULL;
    CHECK(options->max_rows >= 1 && options->max_rows <= MAX_ROWS && options->max_outputs >= 1 &&
          options->max_outputs <= options->max_rows && options->burst_steps <= IO_BURST);
    struct plan *plan = calloc(1, sizeof *plan);
    if (plan)
        plan->builder = arena_alloc(&plan->arena, sizeof *plan->builder);
    if (!plan || !plan->builder) {
        plan_free(plan);
        return err_memory(err, "a plan");
    }
    plan->max_rows = options->max_rows;
    plan->max_outputs = options->max_outputs;
    plan->n_vocab = options->n_vocab;
    plan->n_taps = options->n_taps;
    plan->tap_width = options->tap_width;
    plan->burst_steps = options->burst_steps;
    lay_io_out(plan);
    *out = plan;
    return SLUICE_OK;
}

void plan_free(struct plan *plan) {
    if (!plan)
        return;
    arena_free(&plan->arena);
    free(plan);
}

static bool reserve_op(struct plan *plan) {
    if (plan->n_ops < plan->capacity)
        return true;
    uint32_t capacity = plan->capacity ? plan->capacity * 2 : 64;
    struct op *more = arena_array(&plan->arena, capacity, sizeof *more);
    if (!more)
        return false;
    if (plan->n_ops)
        memcpy(more, plan->ops, plan->n_ops * sizeof *more);
    plan->ops = more;
    plan->capacity = capacity;
    return true;
}

/* Copies into zeroed memory no more than the op's own union member: plans are compared as bytes. */
static void copy_op(struct op *to, const struct op *from) {
    static const size_t sizes[] = {
#define OP(kind, name, member) sizeof(struct op_##member),
#include "plan/ops.def"
#undef OP
    };
    memcpy(to, from, offsetof(struct op, embed) + sizes[from->kind]);
}

/* How many bytes an operand's region or buffer has from its offset on; 0: it is outside. Only the
 * model knows where WEIGHTS end. */
static uint64_t bytes_left(const struct plan *plan, const struct operand *o) {
    const struct plan_builder *b = plan->builder;
    uint64_t inside = o->offset & ((1ull << INSIDE_BITS) - 1), number = o->offset >> INSIDE_BITS;
    uint64_t begin = o->region == REGION_SCRATCH ? inside : o->offset, end = 0;
    if (o->region == REGION_WEIGHTS)
        end = UINT64_MAX;
    else if (o->region == REGION_STATE)
        end = b->state_bytes;
    else if (o->region == REGION_IO)
        end = plan->bytes[REGION_IO];
    else if (o->region == REGION_SCRATCH && number < b->n_buffers)
        end = b->buffers[number].bytes;
    return begin < end ? end - begin : 0;
}

static int check_extents(const struct plan *plan, struct op *op, struct err *err) {
    struct operand_ref refs[MAX_OPERANDS];
    uint32_t n = op_operands(op, refs);
    for (uint32_t i = 0; i < n; i++) {
        const struct operand *o = refs[i].at;
        bool is_apart = o->stride >= o->dims[0] && (o->plane >= o->dims[1] || o->n_dims < 3);
        uint64_t bytes = operand_bytes(o), left = bytes_left(plan, o);
        if (!is_apart || bytes > left)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "op %u, %s: %s has %llu bytes, and there is room for %llu", plan->n_ops,
                           op_name(op->kind), refs[i].name, (unsigned long long)bytes,
                           (unsigned long long)left);
    }
    return SLUICE_OK;
}

int plan_add(struct plan *plan, const struct op *op, struct err *err) {
    int status = fault_of(plan, err);
    if (!status)
        status = op_check(plan, op, err);
    if (status)
        return status;
    if (!reserve_op(plan))
        return err_memory(err, "a plan");
    struct op *own = &plan->ops[plan->n_ops];
    copy_op(own, op);
    if ((status = check_extents(plan, own, err))) {
        memset(own, 0, sizeof *own);
        return status;
    }
    struct operand_ref refs[MAX_OPERANDS];
    uint32_t n = op_operands(own, refs);
    for (uint32_t i = 0; i < n; i++) {
        if (refs[i].at->region != REGION_SCRATCH)
            continue;
        struct plan_buffer *buffer = &plan->builder->buffers[refs[i].at->offset >> INSIDE_BITS];
        buffer->first = buffer->is_used ? buffer->first : plan->n_ops;
        buffer->last = plan->n_ops;
        buffer->is_used = true;
    }
    plan->n_ops++;
    return SLUICE_OK;
}

/* ---- scratch ------------------------------------------------------------------------------ */

/* The lowest offset where buffer n does not overlap an earlier buffer that is alive at the same
 * time. */
static uint64_t find_place(const struct plan_buffer *buffers, uint32_t n) {
    uint64_t at = 0;
    for (bool has_moved = true; has_moved;) {
        has_moved = false;
        for (uint32_t i = 0; i < n; i++) {
            const struct plan_buffer *b = &buffers[i];
            bool lives = b->is_used && b->first <= buffers[n].last && buffers[n].first <= b->last;
            bool overlaps =
                b->offset < size_plus(at, buffers[n].bytes) && at < size_plus(b->offset, b->bytes);
            if (!lives || !overlaps)
                continue;
            at = size_aligned(size_plus(b->offset, b->bytes), SCRATCH_ALIGN);
            has_moved = at != UINT64_MAX;
        }
    }
    return at;
}

int plan_finish(struct plan *plan, struct err *err) {
    struct plan_builder *b = plan->builder;
    uint64_t bytes = 0;
    int status = fault_of(plan, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < b->n_buffers; i++) {
        if (!b->buffers[i].is_used)
            continue;
        b->buffers[i].offset = find_place(b->buffers, i);
        uint64_t end = size_plus(b->buffers[i].offset, b->buffers[i].bytes);
        bytes = end > bytes ? end : bytes;
    }
    plan->bytes[REGION_SCRATCH] = size_aligned(bytes, SCRATCH_ALIGN);
    plan->bytes[REGION_STATE] = size_aligned(b->state_bytes, STATE_ALIGN);
    for (int r = REGION_STATE; r <= REGION_SCRATCH; r++)
        if (plan->bytes[r] == UINT64_MAX)
            note_fault(plan, region_text((enum region)r));
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        struct operand_ref refs[MAX_OPERANDS];
        uint32_t n = op_operands(&plan->ops[i], refs);
        for (uint32_t k = 0; k < n; k++) {
            struct operand *o = refs[k].at;
            if (o->region == REGION_SCRATCH)
                o->offset = b->buffers[o->offset >> INSIDE_BITS].offset +
                            (o->offset & ((1ull << INSIDE_BITS) - 1));
            uint64_t end = size_plus(o->offset, operand_bytes(o));
            if (o->region == REGION_WEIGHTS && end > plan->bytes[REGION_WEIGHTS])
                plan->bytes[REGION_WEIGHTS] = end;
        }
    }
    return fault_of(plan, err);
}
