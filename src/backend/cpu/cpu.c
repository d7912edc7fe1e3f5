/* cpu.c - the CPU backend: regions, recordings, and the walk over the ops. */
#include "backend/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/vec.h"
#include "base/clock.h"
#include "base/cpu.h"

static cpu_op_fn *const functions[] = {
#define OP(kind, name, member) cpu_##member,
#include "plan/ops.def"
#undef OP
};

/* ---- opening ------------------------------------------------------------------------------ */

static const atomic_bool never;

static void cpu_close(struct backend *b);

static int cpu_open(struct backend **out, const struct backend_options *options, struct err *err) {
    *out = NULL;
    struct backend *b = calloc(1, sizeof *b);
    if (!b)
        return err_memory(err, "the CPU backend");
    b->threads = options->threads > 0 ? options->threads : cpu_count();
    b->exact = options->exact;
    b->mapped = options->mapped;
    b->weights_dir = options->weights_dir;
    b->memory = options->memory;
    b->weights_bytes = options->weights_bytes ? options->weights_bytes : UINT64_MAX;
    b->cancel = options->cancel ? options->cancel : &never;
    b->features = cpu_features();
    b->attend = attend_find(b->features);
    int status = pool_open(&b->pool, b->threads, err);
    if (status) {
        free(b);
        return status;
    }
    *out = b;
    return SLUICE_OK;
}

static void unmap(void *block, uint64_t bytes) {
    if (block)
        munmap(block, bytes);
}

static void cpu_close(struct backend *b) {
    if (!b)
        return;
    pool_close(b->pool);
    for (int r = REGION_STATE; r < REGION_COUNT; r++)
        unmap(b->region[r], b->bytes[r]);
    unmap(b->packed_block, b->packed_bytes);
    filemap_close(&b->disk);
    unmap(b->work_block, b->work_bytes);
    for (uint32_t i = 0; i < b->n_recordings; i++)
        free(b->recordings[i].ops);
    free(b->recordings);
    free(b->packed);
    free(b->scratch);
    free(b);
}

static int check_plans(struct plan *const *plans, uint32_t n_plans, struct err *err) {
    for (uint32_t p = 0; p < n_plans; p++)
        for (uint32_t i = 0; i < plans[p]->n_ops; i++) {
            const struct op *op = &plans[p]->ops[i];
            if (op->kind != OP_ATTEND)
                continue;
            uint32_t group = op->attend.heads / op->attend.kv_heads;
            if (group > ATTEND_QUERIES || op->attend.head_width > ATTEND_MAX_WIDTH)
                return err_set(err, SLUICE_ERR_UNSUPPORTED,
                               "attention has %u query heads of %u to a KV head, expected at most "
                               "%d of %d",
                               group, op->attend.head_width, ATTEND_QUERIES, ATTEND_MAX_WIDTH);
        }
    return SLUICE_OK;
}

static void region_needs(struct plan *const *plans, uint32_t n_plans,
                         uint64_t bytes[REGION_COUNT]) {
    memset(bytes, 0, REGION_COUNT * sizeof *bytes);
    for (uint32_t p = 0; p < n_plans; p++)
        for (int r = 0; r < REGION_COUNT; r++)
            bytes[r] = plans[p]->bytes[r] > bytes[r] ? plans[p]->bytes[r] : bytes[r];
}

/* Lists what is packed, and counts everything. */
static int plan_memory(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                       struct backend_memory *out, struct err *err) {
    struct cpu_needs needs = workspace_needs(plans, n_plans, b->threads);
    struct cpu_cutter count = {0};
    uint64_t bytes[REGION_COUNT];
    int status = check_plans(plans, n_plans, err);
    if (!status)
        status = packed_list(b, plans, n_plans, err);
    if (status)
        return status;
    workspace_lay_out(b, &count, &needs, NULL);
    workspace_cut(&count, needs.taps, sizeof(float));
    if (count.used == UINT64_MAX)
        return err_memory(err, "more than 2^64 bytes of workspace");
    region_needs(plans, n_plans, bytes);
    *out = (struct backend_memory){.weights = bytes[REGION_WEIGHTS],
                                   .state = bytes[REGION_STATE],
                                   .scratch = bytes[REGION_SCRATCH],
                                   .io = bytes[REGION_IO],
                                   .workspace = count.used};
    packed_place(b, out);
    return SLUICE_OK;
}

static int cpu_predict(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                       struct backend_memory *out, struct err *err) {
    struct backend probe = {.threads = b->threads,
                            .exact = b->exact,
                            .features = b->features,
                            .mapped = b->mapped,
                            .weights_dir = b->weights_dir,
                            .memory = b->memory,
                            .weights_bytes = b->weights_bytes};
    int status = plan_memory(&probe, plans, n_plans, out, err);
    free(probe.packed);
    return status;
}

/* ---- loading ------------------------------------------------------------------------------ */

static int map_block(struct backend *b, void *out, uint64_t bytes, const char *what,
                     struct err *err) {
    void *p = bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                    : NULL;
    if (p == MAP_FAILED)
        return err_set(err, SLUICE_ERR_MEMORY, "out of memory for %llu bytes of %s",
                       (unsigned long long)bytes, what);
    memcpy(out, &p, sizeof p);
    b->counters.allocations += p != NULL;
    return SLUICE_OK;
}

static void ask_huge(void *block, uint64_t bytes) {
    if (block)
        madvise(block, bytes, MADV_HUGEPAGE);
}

static int make_blocks(struct backend *b, const struct backend_memory *m, struct err *err) {
    b->bytes[REGION_STATE] = m->state;
    b->bytes[REGION_SCRATCH] = m->scratch;
    b->bytes[REGION_IO] = m->io;
    b->work_bytes = m->workspace;
    int status;
    if ((status = map_block(b, &b->region[REGION_STATE], m->state, "state", err)) ||
        (status = map_block(b, &b->region[REGION_SCRATCH], m->scratch, "scratch", err)) ||
        (status = map_block(b, &b->region[REGION_IO], m->io, "io", err)) ||
        (status = map_block(b, &b->work_block, m->workspace, "workspace", err)) ||
        (status = map_block(b, &b->packed_block, m->packed, "packed weights", err)))
        return status;
    /* Read from end to end in every step (of SCRATCH the logits): a fault and a TLB entry for 2 MiB
     * instead of 4 KiB. */
    ask_huge(b->packed_block, m->packed);
    ask_huge(b->region[REGION_STATE], m->state);
    ask_huge(b->region[REGION_SCRATCH], m->scratch);
    b->scratch = calloc((size_t)b->threads, sizeof *b->scratch);
    return b->scratch ? SLUICE_OK : err_memory(err, "the threads' scratch memory");
}

/* The convolution's weights by tap, so that channels are side by side. */
static const float *transpose_taps(const struct backend *b, const struct op_delta *d, float *to) {
    const float *from = (const float *)(b->region[d->conv.region] + d->conv.offset);
    uint32_t channels = d->window.dims[0];
    for (uint32_t c = 0; c < channels; c++)
        for (uint32_t t = 0; t < d->conv_width; t++)
            to[(uint64_t)t * channels + c] = from[(uint64_t)c * d->conv_width + t];
    return to;
}

/* Whether the op is an LM head that ranks its logits for the PICK after it. */
static bool ranks(const struct plan *plan, uint32_t i) {
    const struct op *op = &plan->ops[i];
    return op->kind == OP_PROJECT && op->project.is_lm_head && op->project.n_segments == 1 &&
           op->project.epilogue == EPILOGUE_STORE && plan_pick_of(plan, i);
}

/* The same, or a PICK of such logits. */
static bool is_ranked(const struct plan *plan, uint32_t i) {
    for (uint32_t k = 0; k < i && plan->ops[i].kind == OP_PICK; k++)
        if (ranks(plan, k) && plan_pick_of(plan, k) == &plan->ops[i])
            return true;
    return ranks(plan, i);
}

static int record(struct backend *b, uint32_t number, const struct plan *plan, float *taps,
                  struct err *err) {
    struct cpu_recording *r = &b->recordings[number];
    r->plan = plan;
    r->ops = calloc(plan->n_ops, sizeof *r->ops);
    if (!r->ops)
        return err_memory(err, "a recording");
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        struct cpu_op *c = &r->ops[i];
        c->op = &plan->ops[i];
        packed_find(b, c);
        c->is_ranked = is_ranked(plan, i);
        CHECK(!ranks(plan, i) || RANK_BLOCK % c->weights[0].kernel->tile_rows == 0);
        if (c->op->kind != OP_DELTA)
            continue;
        /* Plans of the trunk have the same ops, those of a draft block no DELTA: the first plan's
         * taps serve every one. */
        const struct op_delta *d = &c->op->delta;
        c->taps = number ? b->recordings[0].ops[i].taps : transpose_taps(b, d, taps);
        taps += workspace_taps(d);
    }
    return SLUICE_OK;
}

static int cpu_load(struct backend *b, struct backend_weights weights, struct plan *const *plans,
                    uint32_t n_plans, void (*progress)(void *user, uint64_t done, uint64_t total),
                    void *user, struct err *err) {
    struct backend_memory m;
    struct cpu_needs needs = workspace_needs(plans, n_plans, b->threads);
    b->mapped = weights.mapped;
    int status = plan_memory(b, plans, n_plans, &m, err);
    if (!status)
        status = make_blocks(b, &m, err);
    if (status)
        return status;
    b->region[REGION_WEIGHTS] = (uint8_t *)weights.base; /* never written */
    b->bytes[REGION_WEIGHTS] = weights.bytes;
    struct cpu_cutter cutter = {.block = b->work_block};
    workspace_lay_out(b, &cutter, &needs, b->scratch);
    float *taps = workspace_cut(&cutter, needs.taps, sizeof(float));
    if ((status = packed_make(b, progress, user, err)))
        return status;
    b->recordings = calloc(n_plans, sizeof *b->recordings);
    if (!b->recordings)
        return err_memory(err, "the recordings");
    for (; !status && b->n_recordings < n_plans; b->n_recordings++)
        status = record(b, b->n_recordings, plans[b->n_recordings], taps, err);
    return status;
}

/* ---- a step ------------------------------------------------------------------------------- */

static struct cpu_step step_of(struct backend *b, int thread, int threads) {
    const struct plan *plan = b->running->plan;
    uint8_t *io = b->region[REGION_IO];
    return (struct cpu_step){
        .b = b,
        .plan = plan,
        .io = (const struct io_header *)io,
        .rows = (const struct io_row *)(io + plan->io.rows),
        .segments = (const struct io_segment *)(io + plan->io.segments),
        .to = (const uint32_t *)(io + plan->io.to),
        .outputs = (struct io_output *)(io + plan->io.outputs),
        .thread = thread,
        .threads = threads,
        .scratch = &b->scratch[thread],
    };
}

static void walk(void *context, int thread, int threads) {
    struct backend *b = context;
    const struct plan *plan = b->running->plan;
    struct cpu_step s = step_of(b, thread, threads);
    double started = b->op_seconds ? seconds_now() : 0;
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        s.op = &b->running->ops[i];
        s.op_number = i;
        functions[s.op->op->kind](&s);
        is_cancelled(&s);
        barrier(&s);
        if (atomic_load_explicit(&b->is_cut[i % 2], memory_order_relaxed))
            return;
        if (b->op_seconds && thread == 0) {
            double now = seconds_now();
            b->op_seconds[i] = now - started;
            started = now;
        }
    }
}

/* Page tables are STATE; the step finds them changed. */
static void change_pages(struct backend *b, const struct plan *plan) {
    const uint8_t *io = b->region[REGION_IO];
    const struct io_header *header = (const struct io_header *)io;
    const struct io_change *changes = (const struct io_change *)(io + plan->io.changes);
    const struct operand *pages = &plan->pages;
    if (!pages->n_dims)
        return;
    int32_t *table = (int32_t *)(b->region[REGION_STATE] + pages->offset);
    for (uint32_t i = 0; i < header->n_changes; i++)
        table[(uint64_t)changes[i].slot * pages->dims[0] + changes[i].index] =
            (int32_t)changes[i].page;
}

static int cpu_submit(struct backend *b, uint32_t plan, struct err *err) {
    (void)err;
    CHECK(plan < b->n_recordings);
    b->running = &b->recordings[plan];
    const struct io_header *header = (const struct io_header *)b->region[REGION_IO];
    CHECK(header->n_rows <= b->running->plan->max_rows &&
          header->n_outputs <= b->running->plan->max_outputs);
    change_pages(b, b->running->plan);
    atomic_store(&b->is_cut[0], false);
    atomic_store(&b->is_cut[1], false);
    pool_run(b->pool, walk, b);
    b->counters.submissions++;
    return SLUICE_OK;
}

static int cpu_wait(struct backend *b, struct err *err) {
    b->counters.waits++; /* submit already ran the step on the caller's own thread */
    if (atomic_load(&b->is_cut[0]) || atomic_load(&b->is_cut[1]))
        return err_set(err, SLUICE_ERR_CANCELLED, "the step was cancelled");
    return SLUICE_OK;
}

static int cpu_time_ops(struct backend *b, uint32_t plan, double *op_seconds, struct err *err) {
    b->op_seconds = op_seconds;
    int status = cpu_submit(b, plan, err);
    b->op_seconds = NULL;
    return status ? status : cpu_wait(b, err);
}

static void walk_one(void *context, int thread, int threads) {
    struct backend *b = context;
    struct cpu_step s = step_of(b, thread, threads);
    struct cpu_op alone = b->running->ops[b->only_op];
    alone.is_ranked = false; /* its operands may have been written from outside */
    s.op = &alone;
    functions[s.op->op->kind](&s);
}

static int cpu_run_op(struct backend *b, uint32_t plan, uint32_t op, struct err *err) {
    (void)err;
    CHECK(plan < b->n_recordings && op < b->recordings[plan].plan->n_ops);
    b->running = &b->recordings[plan];
    b->only_op = op;
    if (op == 0)
        change_pages(b, b->running->plan);
    pool_run(b->pool, walk_one, b);
    return SLUICE_OK;
}

static int cpu_peek(struct backend *b, enum region region, uint64_t offset, uint64_t bytes,
                    void *to, struct err *err) {
    (void)err;
    CHECK(offset <= b->bytes[region] && bytes <= b->bytes[region] - offset);
    memcpy(to, b->region[region] + offset, bytes);
    return SLUICE_OK;
}

static int cpu_poke(struct backend *b, enum region region, uint64_t offset, uint64_t bytes,
                    const void *from, struct err *err) {
    (void)err;
    CHECK(region != REGION_WEIGHTS && offset <= b->bytes[region] &&
          bytes <= b->bytes[region] - offset);
    memcpy(b->region[region] + offset, from, bytes);
    return SLUICE_OK;
}

/* ---- the rest ----------------------------------------------------------------------------- */

static uint8_t *cpu_io(struct backend *b) {
    return b->region[REGION_IO];
}

static uint8_t *state_at(struct backend *b, uint64_t offset, uint64_t bytes) {
    CHECK(offset <= b->bytes[REGION_STATE] && bytes <= b->bytes[REGION_STATE] - offset);
    return b->region[REGION_STATE] + offset;
}

static void count_copy(struct backend *b, uint64_t bytes) {
    b->counters.host_copies++;
    b->counters.host_copy_bytes += bytes;
}

static int cpu_read_state(struct backend *b, uint64_t offset, uint64_t bytes, void *to,
                          struct err *err) {
    (void)err;
    memcpy(to, state_at(b, offset, bytes), bytes);
    count_copy(b, bytes);
    return SLUICE_OK;
}

static int cpu_write_state(struct backend *b, uint64_t offset, uint64_t bytes, const void *from,
                           struct err *err) {
    (void)err;
    memcpy(state_at(b, offset, bytes), from, bytes);
    count_copy(b, bytes);
    return SLUICE_OK;
}

static int cpu_move_state(struct backend *b, const struct backend_move *list, uint32_t n,
                          bool is_in, struct err *err) {
    uint64_t bytes = 0;
    (void)err;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *state = state_at(b, list[i].offset, list[i].bytes);
        memcpy(is_in ? state : list[i].host, is_in ? list[i].host : state, list[i].bytes);
        bytes += list[i].bytes;
    }
    count_copy(b, bytes);
    return SLUICE_OK;
}

static int cpu_copy_state(struct backend *b, const struct backend_copy *list, uint32_t n,
                          struct err *err) {
    (void)err;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *to = state_at(b, list[i].to, list[i].bytes);
        if (list[i].from == BACKEND_ZEROS)
            memset(to, 0, list[i].bytes);
        else
            memcpy(to, state_at(b, list[i].from, list[i].bytes), list[i].bytes);
    }
    return SLUICE_OK;
}

static void cpu_memory(const struct backend *b, struct backend_memory *out) {
    *out = (struct backend_memory){.weights = b->bytes[REGION_WEIGHTS] - b->released - b->paged,
                                   .released = b->released,
                                   .paged = b->paged,
                                   .disk = b->disk_bytes,
                                   .state = b->bytes[REGION_STATE],
                                   .scratch = b->bytes[REGION_SCRATCH],
                                   .io = b->bytes[REGION_IO],
                                   .packed = b->packed_bytes,
                                   .workspace = b->work_bytes};
}

static void cpu_counters(const struct backend *b, struct backend_counters *out) {
    *out = b->counters;
}

static bool cpu_device_line(int i, char *out, size_t size) {
    if (i > 0)
        return false;
    snprintf(out, size, "cpu: %d threads, %s", cpu_count(), cpu_feature_names());
    return true;
}

static void cpu_observe(struct backend *b, const struct backend_observer *observer) {
    b->observer = observer;
}

const struct backend_kind backend_cpu = {
    .name = "cpu",
    .numerics = 3, /* 2: Q8_0 has 128 activations a scale; 3: f16 queries over an f16 cache */
    .uses_host_weights = true,
    .prefill = 256,
    .open = cpu_open,
    .close = cpu_close,
    .predict = cpu_predict,
    .load = cpu_load,
    .io = cpu_io,
    .submit = cpu_submit,
    .wait = cpu_wait,
    .read_state = cpu_read_state,
    .write_state = cpu_write_state,
    .move_state = cpu_move_state,
    .copy_state = cpu_copy_state,
    .memory = cpu_memory,
    .counters = cpu_counters,
    .time_ops = cpu_time_ops,
    .run_op = cpu_run_op,
    .peek = cpu_peek,
    .poke = cpu_poke,
    .observe = cpu_observe,
    .device_line = cpu_device_line,
};
