/* pick.c - PICK: pick_best alone where outputs take the best token. Else pick_rank over chunks
 * of all rows, then pick, in which the last workgroup to be done picks and ends the step; where
 * none can be told to be the last, pick_weigh before it and, of several outputs, pick_step_end
 * after it. */
#include "backend/vulkan/host/vulkan.h"
#include "base/size.h"
#include "plan/io.h"

enum {
    RANK_THREADS = 128,
    CHUNKS = 128, /* of a row in pick_rank, at most: no more than pick.comp has threads */
    MIN_CHUNK = 1024,
    BEST_THREADS = 256,
    BEST_EACH = 8,      /* logits of a thread in pick_best */
    MAX_THREADS = 1024, /* of pick.comp: one for each bin; */
    MAX_WEIGHING = 512, /* where it also weighs */
};

struct end_push {
    uint32_t counts_first, counts_stride, burst, step;
};

static uint32_t chunk_of(uint32_t vocab) {
    uint32_t chunk = div_up(div_up(vocab, CHUNKS), 128) * 128;
    return chunk < MIN_CHUNK ? MIN_CHUNK : chunk;
}

/* Whether a dispatch can have a last workgroup, which does what comes after. */
static bool can_count(const struct vulkan_recorder *r) {
    return r->can->has_device_scope && r->plan->max_outputs < VULKAN_COUNTERS;
}

static uint32_t threads_of(const struct vulkan_recorder *r, uint32_t limit) {
    uint32_t threads = 128;
    limit = r->can->shared_bytes > 16384 ? limit : min_u32(limit, MAX_THREADS / 2);
    while (2 * threads <= r->can->max_threads && threads < limit)
        threads *= 2;
    return threads;
}

static int add_rank(struct vulkan_recorder *r, const struct op_pick *o, struct vulkan_bind best,
                    struct vulkan_bind sums) {
    struct {
        uint32_t logits_first, logits_stride, wanted_first, wanted_stride;
        uint32_t counts_first, counts_stride, adjusted_first, adjusted_stride;
    } push = {.logits_stride = o->logits.stride,
              .wanted_stride = o->wanted.stride,
              .counts_stride = o->counts.stride,
              .adjusted_stride = o->adjusted.stride};
    uint32_t vocab = o->logits.dims[0], chunk = chunk_of(vocab);
    uint32_t threads = threads_of(r, BEST_THREADS);
    struct vulkan_dispatch d = {
        .shader = "pick_rank",
        .groups = {div_up(vocab, chunk), r->plan->max_outputs, 1},
        .constants = {threads, vocab, chunk, o->counts.n_dims != 0, threads},
        .n_constants = 5,
        .n_binds = 8,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_io_host(r, VULKAN_READ);
    d.binds[2] = vulkan_operand(r, &o->logits, VULKAN_READ, &push.logits_first);
    d.binds[3] = vulkan_operand(r, &o->wanted, VULKAN_WRITE, &push.wanted_first);
    d.binds[4] = vulkan_operand_or(r, &o->counts, &o->logits, VULKAN_READ, &push.counts_first);
    d.binds[5] = vulkan_operand(r, &o->adjusted, VULKAN_READ | VULKAN_WRITE, &push.adjusted_first);
    d.binds[6] = vulkan_as(best, VULKAN_WRITE);
    d.binds[7] = vulkan_as(sums, VULKAN_WRITE);
    return vulkan_add(r, &d);
}

static int add_weigh(struct vulkan_recorder *r, const struct op_pick *o, struct vulkan_bind best,
                     struct vulkan_bind sums) {
    struct {
        uint32_t logits_first, logits_stride, adjusted_first, adjusted_stride, order_first,
            order_stride;
    } push = {.logits_stride = o->logits.stride,
              .adjusted_stride = o->adjusted.stride,
              .order_stride = o->order.stride};
    uint32_t vocab = o->logits.dims[0], chunk = chunk_of(vocab);
    struct vulkan_dispatch d = {
        .shader = "pick_weigh",
        .groups = {div_up(vocab, chunk), r->plan->max_outputs, 1},
        .constants = {RANK_THREADS, chunk},
        .n_constants = 2,
        .needs_full_subgroups = true,
        .n_binds = 6,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_operand(r, &o->logits, VULKAN_READ, &push.logits_first);
    d.binds[2] = vulkan_operand(r, &o->adjusted, VULKAN_READ, &push.adjusted_first);
    d.binds[3] = vulkan_operand(r, &o->order, VULKAN_WRITE, &push.order_first);
    d.binds[4] = vulkan_as(best, VULKAN_READ);
    d.binds[5] = vulkan_as(sums, VULKAN_READ | VULKAN_WRITE);
    return vulkan_add(r, &d);
}

/* In a burst every step but the last moves IO on to the next. */
static struct end_push end_of(const struct vulkan_recorder *r, const struct op_pick *o) {
    bool goes_on = r->step + 1 < r->n_steps && r->op + 1 == r->plan->n_ops;
    return (struct end_push){.counts_stride = o->counts.stride,
                             .burst = goes_on ? (uint32_t)(r->plan->io.burst / 4) : 0,
                             .step = r->step};
}

/* The first binds of what ends outputs. */
static void bind_end(struct vulkan_recorder *r, const struct op_pick *o, enum vulkan_access counts,
                     struct vulkan_dispatch *d, struct end_push *end) {
    enum vulkan_access both = VULKAN_READ | VULKAN_WRITE;
    d->binds[0] = vulkan_io_copy(r, both);
    d->binds[1] = vulkan_io_host(r, both);
    d->binds[2] = vulkan_operand_or(r, &o->counts, &o->order, counts, &end->counts_first);
}

static int add_pick(struct vulkan_recorder *r, const struct op_pick *o, struct vulkan_bind best,
                    struct vulkan_bind sums) {
    struct {
        struct end_push end;
        uint32_t logits_first, logits_stride, adjusted_first, adjusted_stride, order_first,
            order_stride;
    } push = {.end = end_of(r, o),
              .logits_stride = o->logits.stride,
              .adjusted_stride = o->adjusted.stride,
              .order_stride = o->order.stride};
    bool has_counts = o->counts.n_dims, weighs = can_count(r);
    bool is_end = weighs || r->plan->max_outputs == 1;
    uint32_t vocab = o->logits.dims[0], chunks = div_up(vocab, chunk_of(vocab));
    uint32_t threads = threads_of(r, weighs ? MAX_WEIGHING : MAX_THREADS);
    struct vulkan_dispatch d = {
        .shader = "pick",
        .groups = {r->plan->max_outputs, weighs ? chunks : 1, 1},
        .constants = {threads, vocab, has_counts, threads, chunks, is_end, chunk_of(vocab), weighs},
        .n_constants = 8,
        .needs_full_subgroups = true,
        .n_binds = 9,
        .push = &push,
        .push_bytes = sizeof push,
    };
    enum vulkan_access both = VULKAN_READ | VULKAN_WRITE;
    bind_end(r, o, is_end ? both : VULKAN_READ, &d, &push.end);
    d.binds[3] = vulkan_operand(r, &o->logits, VULKAN_READ, &push.logits_first);
    d.binds[4] = vulkan_operand(r, &o->adjusted, VULKAN_READ, &push.adjusted_first);
    d.binds[5] = vulkan_operand(r, &o->order, both, &push.order_first);
    d.binds[6] = vulkan_as(best, VULKAN_READ);
    d.binds[7] = vulkan_as(sums, both);
    d.binds[8] = vulkan_counter_words(r);
    return vulkan_add(r, &d);
}

static int add_end(struct vulkan_recorder *r, const struct op_pick *o) {
    struct end_push push = end_of(r, o);
    struct vulkan_dispatch d = {
        .shader = "pick_step_end",
        .groups = {1, 1, 1},
        .constants = {RANK_THREADS, o->logits.dims[0], o->counts.n_dims != 0},
        .n_constants = 3,
        .n_binds = 3,
        .push = &push,
        .push_bytes = sizeof push,
    };
    bind_end(r, o, VULKAN_READ | VULKAN_WRITE, &d, &push);
    return vulkan_add(r, &d);
}

/* All of it in one dispatch, where outputs take the best token of their logits. */
static int add_best(struct vulkan_recorder *r, const struct op_pick *o) {
    struct {
        struct end_push end;
        uint32_t logits_first, logits_stride, wanted_first, wanted_stride;
    } push = {
        .end = end_of(r, o), .logits_stride = o->logits.stride, .wanted_stride = o->wanted.stride};
    uint32_t vocab = o->logits.dims[0], threads = threads_of(r, BEST_THREADS);
    uint32_t chunks = div_up(vocab, threads * BEST_EACH);
    struct vulkan_dispatch d = {
        .shader = "pick_best",
        .groups = {chunks, r->plan->max_outputs, 1},
        .constants = {threads, vocab, o->counts.n_dims != 0, threads, BEST_EACH},
        .n_constants = 5,
        .n_binds = 7,
        .push = &push,
        .push_bytes = sizeof push,
    };
    bind_end(r, o, VULKAN_READ | VULKAN_WRITE, &d, &push.end);
    d.binds[3] = vulkan_operand(r, &o->logits, VULKAN_READ, &push.logits_first);
    d.binds[4] = vulkan_operand(r, &o->wanted, VULKAN_WRITE, &push.wanted_first);
    d.binds[5] = vulkan_work(r, (uint64_t)r->plan->max_outputs * chunks * sizeof(uint64_t));
    d.binds[6] = vulkan_counter_words(r);
    return vulkan_add(r, &d);
}

int vulkan_record_pick(struct vulkan_recorder *r, const struct op *op) {
    const struct op_pick *o = &op->pick;
    if (r->is_greedy)
        return add_best(r, o);
    uint64_t chunks = div_up(o->logits.dims[0], chunk_of(o->logits.dims[0]));
    uint64_t outputs = r->plan->max_outputs, each = sizeof(uint64_t);
    struct vulkan_bind best = vulkan_work(r, outputs * chunks * each),
                       sums = vulkan_work(r, outputs * (chunks + 1) * each);
    int status = add_rank(r, o, best, sums);
    if (!status && !can_count(r))
        status = add_weigh(r, o, best, sums);
    if (!status)
        status = add_pick(r, o, best, sums);
    if (!status && r->plan->max_outputs > 1 && !can_count(r))
        status = add_end(r, o);
    return status;
}
