/* attend.c - ATTEND: three dispatches; one or two in plans of one row, two in those of many.
 *
 *   attend_store_TYPE  queries to workspace, keys and values into the cache
 *   attend_TYPE        few rows: all parts of all rows, side by side, to workspace
 *                      many: a workgroup combines the parts of its queries itself
 *   attend_one_TYPE    one row: the first two, and mostly the third
 *   attend_combine     few rows: each query's parts, in order */
#include "backend/vulkan/host/vulkan.h"
#include "base/size.h"
#include "plan/io.h"

enum {
    THREADS = 128,
    ONE_THREADS = 512,         /* of attend_one: the more, the shorter its code; */
    ONE_THREADS_OF_MANY = 256, /* with many parts more of them run at once */
    GROUPS_PER_CORE = 8,
    PROCESSOR_GROUPS = 4096,
    PART = 32, /* positions of the shortest part: ATTEND_TILE in attend.glsl */
    MAX_PARTS = 256,
    MAX_PARTS_COMBINED = 64,
    MAX_WIDTH = 512,
    FEW_ROWS = 32,
    MANY_QUERIES_SHARED = 24 << 10, /* bytes that tiles of eight queries may need */
};

/* Parts of more rows than fit this are not kept side by side. */
static const uint64_t MAX_PARTS_BYTES = 64 << 20;

static const struct {
    enum dtype type;
    const char *store, *attend, *one;
} TYPES[] = {
    {DT_F32, "attend_store_f32", "attend_f32", "attend_one_f32"},
    {DT_F16, "attend_store_f16", "attend_f16", "attend_one_f16"},
    {DT_Q8_0, "attend_store_q8_0", "attend_q8_0", "attend_one_q8_0"},
    {DT_Q4_0, "attend_store_q4_0", "attend_q4_0", "attend_one_q4_0"},
};
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

/* How heads are divided into tiles, and positions into parts. */
struct tiling {
    uint32_t heads, kv_tiles; /* heads of a tile; tiles of a KV head */
    uint32_t rows;            /* of a tile */
    uint32_t max_parts;
    bool is_whole;
};

static uint32_t type_of(const struct op_attend *a) {
    uint32_t i = 0;
    while (i < N_TYPES && TYPES[i].type != a->keys.type)
        i++;
    return i;
}

static int check(struct vulkan_recorder *r, const struct op_attend *a) {
    if (type_of(a) == N_TYPES || a->head_width > MAX_WIDTH || a->head_width % 4)
        return err_set(
            r->err, SLUICE_ERR_UNSUPPORTED,
            "op %u, attend: heads %u wide over %s, the Vulkan backend has multiples of 4 "
            "up to %d over F32, F16, Q8_0 and Q4_0",
            r->op, a->head_width, dtype_name(a->keys.type), MAX_WIDTH);
    if (operand_bytes(&a->keys) > r->can->max_range)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "op %u, attend: %llu MiB of keys a layer, the device has buffers of at most "
                       "%llu MiB: a shorter context or fewer sequences would fit",
                       r->op, (unsigned long long)(operand_bytes(&a->keys) >> 20),
                       (unsigned long long)(r->can->max_range >> 20));
    return 0;
}

/* The most parts of any row that sees up to n positions, as attend_parts() in attend.glsl. */
static uint32_t max_parts(uint64_t n) {
    uint64_t max = 0;
    for (uint64_t length = PART;; length *= 2) {
        uint64_t limit = length < MAX_PARTS ? length * length : length * MAX_PARTS;
        uint64_t parts = ((n < limit ? n : limit) + length - 1) / length;
        max = parts > max ? parts : max;
        if (n <= limit)
            return (uint32_t)max;
    }
}

static uint64_t parts_bytes(const struct vulkan_recorder *r, const struct op_attend *a,
                            const struct tiling *t) {
    return (uint64_t)r->plan->max_rows * a->heads * t->max_parts * a->head_width * sizeof(float);
}

static struct tiling tiling_of(const struct vulkan_recorder *r, const struct op_attend *a) {
    uint32_t group = a->heads / a->kv_heads, rows = 1;
    bool has_much_shared = r->can->shared_bytes >= MANY_QUERIES_SHARED;
    uint32_t max_queries = a->head_width > 256 ? (has_much_shared ? 4 : 2)
                           : has_much_shared   ? 8
                                               : 4;
    struct tiling t = {.kv_tiles = div_up(group, max_queries),
                       .max_parts = max_parts((uint64_t)a->pages.dims[0] * IO_PAGE_POSITIONS)};
    t.heads = div_up(group, t.kv_tiles);
    uint64_t limit = r->can->max_range < MAX_PARTS_BYTES ? r->can->max_range : MAX_PARTS_BYTES;
    t.is_whole = r->plan->max_rows > FEW_ROWS || parts_bytes(r, a, &t) > limit;
    while (t.is_whole && t.kv_tiles == 1 && 2 * rows * group <= max_queries)
        rows *= 2;
    t.rows = rows;
    return t;
}

static int add_store(struct vulkan_recorder *r, const struct op_attend *a,
                     struct vulkan_bind queries) {
    struct {
        uint32_t in_first, in_stride, q_stride, k_column, v_column;
        uint32_t q_norm_first, k_norm_first, angles_first, pages_first;
        float eps, scale;
    } push = {.in_stride = a->in.stride,
              .q_stride = a->q_stride,
              .k_column = a->k_column,
              .v_column = a->v_column,
              .eps = a->eps,
              .scale = a->scale};
    bool has_q = a->q_norm.n_dims, has_k = a->k_norm.n_dims;
    uint32_t zero;
    struct vulkan_dispatch d = {
        .shader = TYPES[type_of(a)].store,
        .groups = {a->heads + 2 * a->kv_heads, r->plan->max_rows, 1},
        .constants = {THREADS, a->head_width, a->heads, a->kv_heads, a->rotary,
                      a->pairing == ROPE_NEIGHBOURS, has_q, has_k, a->pages.dims[0]},
        .n_constants = 9,
        .n_binds = 9,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_operand(r, &a->in, VULKAN_READ, &push.in_first);
    d.binds[2] = vulkan_operand_or(r, &a->q_norm, &a->in, VULKAN_READ, &push.q_norm_first);
    d.binds[3] = vulkan_operand_or(r, &a->k_norm, &a->in, VULKAN_READ, &push.k_norm_first);
    d.binds[4] =
        vulkan_operand(r, a->rotary ? &a->angles : &a->in, VULKAN_READ, &push.angles_first);
    d.binds[5] = vulkan_operand(r, &a->pages, VULKAN_READ, &push.pages_first);
    d.binds[6] = vulkan_operand(r, &a->keys, VULKAN_READ | VULKAN_WRITE, &zero);
    d.binds[7] = vulkan_operand(r, &a->values, VULKAN_READ | VULKAN_WRITE, &zero);
    d.binds[8] = vulkan_as(queries, VULKAN_WRITE);
    return vulkan_add(r, &d);
}

/* A workgroup loops over jobs. Mesa's CPU drivers end all loops of a thread after 65535 iterations
 * together, whatever is left to do: there workgroups are many. */
static uint32_t groups_of(const struct vulkan_recorder *r, uint64_t jobs) {
    uint64_t limit =
        r->can->is_processor ? PROCESSOR_GROUPS : GROUPS_PER_CORE * (uint64_t)r->can->n_cores;
    return (uint32_t)(jobs < limit ? jobs : limit);
}

/* queries: of add_store. parts and sums: of a tiling that is not whole. */
static int add_attend(struct vulkan_recorder *r, const struct op_attend *a, const struct tiling *t,
                      struct vulkan_bind queries, struct vulkan_bind parts,
                      struct vulkan_bind sums) {
    struct {
        uint32_t pages_first, out_first, out_stride;
    } push = {.out_stride = a->out.stride};
    uint32_t zero;
    uint64_t jobs = (uint64_t)r->plan->max_rows * a->kv_heads * t->kv_tiles;
    if (!t->is_whole)
        jobs *= t->max_parts;
    struct vulkan_dispatch d = {
        .shader = TYPES[type_of(a)].attend,
        .groups = {groups_of(r, jobs), 1, 1},
        .constants = {THREADS, a->head_width, a->heads, a->kv_heads, t->rows * t->heads, t->heads,
                      t->kv_tiles, t->rows, t->is_whole, t->max_parts, a->pages.dims[0]},
        .n_constants = 11,
        .needs_full_subgroups = true,
        .n_binds = 7,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_as(queries, VULKAN_READ);
    d.binds[2] = vulkan_operand(r, &a->pages, VULKAN_READ, &push.pages_first);
    d.binds[3] = vulkan_operand(r, &a->keys, VULKAN_READ, &zero);
    d.binds[4] = vulkan_operand(r, &a->values, VULKAN_READ, &zero);
    d.binds[5] = t->is_whole ? vulkan_operand(r, &a->out, VULKAN_WRITE, &push.out_first) : parts;
    d.binds[6] = t->is_whole ? d.binds[5] : sums;
    return vulkan_add(r, &d);
}

/* Whether attend_one combines its parts itself. With many the dispatch of its own is faster. */
static bool combines(const struct vulkan_recorder *r, const struct op_attend *a,
                     const struct tiling *t) {
    return r->can->has_device_scope && t->max_parts <= MAX_PARTS_COMBINED &&
           a->kv_heads * t->kv_tiles <= VULKAN_COUNTERS;
}

/* All parts that a workgroup takes are of one tile, so that it makes its queries once. */
static int add_one(struct vulkan_recorder *r, const struct op_attend *a, const struct tiling *t,
                   struct vulkan_bind parts, struct vulkan_bind sums) {
    struct {
        uint32_t pages_first, out_first, in_first, q_stride, k_column, v_column;
        uint32_t q_norm_first, k_norm_first, angles_first;
        float eps, scale;
    } push = {.q_stride = a->q_stride,
              .k_column = a->k_column,
              .v_column = a->v_column,
              .eps = a->eps,
              .scale = a->scale};
    bool has_q = a->q_norm.n_dims, has_k = a->k_norm.n_dims;
    uint32_t threads = t->max_parts > MAX_PARTS_COMBINED ? ONE_THREADS_OF_MANY : ONE_THREADS;
    while (threads > r->can->max_threads)
        threads /= 2;
    uint32_t zero, tiles = a->kv_heads * t->kv_tiles;
    uint32_t groups = groups_of(r, (uint64_t)tiles * t->max_parts) / tiles; /* of a tile */
    struct vulkan_dispatch d = {
        .shader = TYPES[type_of(a)].one,
        .has_stage = true,
        .groups = {tiles * (groups ? groups : 1), 1, 1},
        .constants = {threads, a->head_width, a->heads, a->kv_heads, t->heads, threads, t->kv_tiles,
                      t->max_parts, a->pages.dims[0], a->rotary, a->pairing == ROPE_NEIGHBOURS,
                      has_q, has_k, combines(r, a, t)},
        .n_constants = 14,
        .needs_full_subgroups = true,
        .n_binds = 12,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_operand(r, &a->in, VULKAN_READ, &push.in_first);
    d.binds[2] = vulkan_operand(r, &a->pages, VULKAN_READ, &push.pages_first);
    d.binds[3] = vulkan_operand(r, &a->keys, VULKAN_READ | VULKAN_WRITE, &zero);
    d.binds[4] = vulkan_operand(r, &a->values, VULKAN_READ | VULKAN_WRITE, &zero);
    d.binds[5] = vulkan_as(parts, VULKAN_READ | VULKAN_WRITE);
    d.binds[6] = vulkan_as(sums, VULKAN_READ | VULKAN_WRITE);
    d.binds[7] = vulkan_operand_or(r, &a->q_norm, &a->in, VULKAN_READ, &push.q_norm_first);
    d.binds[8] = vulkan_operand_or(r, &a->k_norm, &a->in, VULKAN_READ, &push.k_norm_first);
    d.binds[9] =
        vulkan_operand(r, a->rotary ? &a->angles : &a->in, VULKAN_READ, &push.angles_first);
    d.binds[10] = vulkan_operand(r, &a->out, VULKAN_WRITE, &push.out_first);
    d.binds[11] = vulkan_counter_words(r);
    return vulkan_add(r, &d);
}

static int add_combine(struct vulkan_recorder *r, const struct op_attend *a, const struct tiling *t,
                       struct vulkan_bind parts, struct vulkan_bind sums) {
    struct {
        uint32_t out_first, out_stride;
    } push = {.out_stride = a->out.stride};
    struct vulkan_dispatch d = {
        .shader = "attend_combine",
        .groups = {a->heads, r->plan->max_rows, div_up(a->head_width, THREADS)},
        .constants = {THREADS, a->head_width, a->heads, t->max_parts},
        .n_constants = 4,
        .n_binds = 4,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_as(parts, VULKAN_READ);
    d.binds[2] = vulkan_as(sums, VULKAN_READ);
    d.binds[3] = vulkan_operand(r, &a->out, VULKAN_WRITE, &push.out_first);
    return vulkan_add(r, &d);
}

int vulkan_record_attend(struct vulkan_recorder *r, const struct op *op) {
    const struct op_attend *a = &op->attend;
    int status = check(r, a);
    if (status)
        return status;
    if (a->heads == 0) /* the queries are none, but the shader has a buffer for them */
        return add_store(r, a, vulkan_work(r, sizeof(float)));
    struct tiling t = tiling_of(r, a);
    uint64_t heads = (uint64_t)r->plan->max_rows * a->heads;
    bool is_one = r->plan->max_rows == 1 && !t.is_whole;
    struct vulkan_bind queries = {0}, parts = {0}, sums = {0};
    if (!t.is_whole) {
        parts = vulkan_as(vulkan_work(r, parts_bytes(r, a, &t)), VULKAN_WRITE);
        sums = vulkan_as(vulkan_work(r, heads * t.max_parts * 2 * sizeof(float)), VULKAN_WRITE);
    }
    if (is_one) {
        status = add_one(r, a, &t, parts, sums);
    } else {
        queries = vulkan_work(r, heads * a->head_width * sizeof(float));
        status = add_store(r, a, queries);
        if (!status)
            status = add_attend(r, a, &t, queries, parts, sums);
    }
    if (!status && !t.is_whole && !(is_one && combines(r, a, &t)))
        status = add_combine(r, a, &t, parts, sums);
    return status;
}
