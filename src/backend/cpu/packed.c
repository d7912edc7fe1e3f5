/* packed.c - weight matrices in the kernels' order, in memory or on disk.
 *
 * In: the plans, whose weights are where the model's files are mapped. Out: every matrix that has a
 * kernel with an order of its own, packed once.
 *
 * Packed weights are in anonymous memory, which cannot be dropped. With a folder for weights, what
 * does not fit is in a file there without a name, mapped: the kernel drops its pages and reads them
 * again, as it sees fit. A cache of the pages last used would keep nothing of weights that every
 * step reads from end to end; so as many of these as fit are in memory, spread evenly, that those
 * on disk are read while others are used. Stacks of experts, of which a step reads a few, are on
 * disk, and what memory is left is the kernel's to keep of them what it can. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "base/locale.h"
#include "base/size.h"

/* A multiple of every machine's page. */
enum { WEIGHTS_GRAIN = 64 << 10 };

/* ---- what is packed ----------------------------------------------------------------------- */

/* The weights of an op that go through a kernel, by their place in cpu_op.weights. */
static uint32_t kernel_weights(const struct op *op, const struct operand *out[MAX_WEIGHTS],
                               bool is_f32[MAX_WEIGHTS]) {
    uint32_t n = 0;
    memset(is_f32, 0, MAX_WEIGHTS * sizeof *is_f32);
    if (op->kind == OP_PROJECT)
        for (; n < op->project.n_segments; n++) {
            out[n] = &op->project.segments[n].weight;
            is_f32[n] = op->project.segments[n].f32_act;
        }
    if (op->kind == OP_EXPERTS_IN) {
        const struct op_experts_in *e = &op->experts_in;
        out[n++] = &e->gate;
        out[n++] = &e->up;
        out[n++] = &e->shared_gate;
        out[n++] = &e->shared_up;
    }
    if (op->kind == OP_EXPERTS_OUT) {
        out[n++] = &op->experts_out.down;
        out[n++] = &op->experts_out.shared_down;
    }
    return n;
}

static const struct kernel *kernel_for(const struct backend *b, const struct operand *o,
                                       bool is_f32) {
    return kernel_find((enum dtype)o->type, b->exact || is_f32 || o->dims[0] % 32 != 0,
                       b->features);
}

static const struct cpu_packed *find_packed(const struct backend *b, const struct operand *o,
                                            const struct kernel *kernel) {
    for (uint32_t i = 0; i < b->n_packed; i++)
        if (b->packed[i].offset == o->offset && b->packed[i].kernel == kernel)
            return &b->packed[i];
    return NULL;
}

/* From the first value of a weight to the last. */
static uint64_t span_of(const struct operand *o) {
    return ((uint64_t)o->plane * (o->dims[2] - 1) + o->dims[1]) * operand_row_bytes(o);
}

static bool is_mapped(const struct backend *b, const struct operand *o) {
    return o->offset + span_of(o) <= b->mapped;
}

/* A weight may be packed for two kernels; it is released once. */
static void count_released(struct backend *b, const struct operand *o) {
    for (uint32_t i = 0; i < b->n_packed; i++)
        if (b->packed[i].offset == o->offset)
            return;
    if (is_mapped(b, o))
        b->released += (uint64_t)o->dims[1] * o->dims[2] * operand_row_bytes(o);
}

/* Only EMBED (a few rows) and engines that are opened later read the file's bytes again: they are
 * read from the file then. A fault maps neighbouring pages too, even if they were released: so
 * these are released as well, as far as the file's pages reach. */
static void release_weight(struct backend *b, const struct operand *o) {
    const uint64_t page = WEIGHTS_GRAIN, around = 32 * page;
    uint64_t begin = o->offset > around ? (o->offset - around) / page * page : 0;
    uint64_t end = (o->offset + span_of(o) + around) / page * page;
    end = end < b->mapped ? end : b->mapped / page * page;
    if (is_mapped(b, o) && begin < end)
        madvise(b->region[REGION_WEIGHTS] + begin, end - begin, MADV_DONTNEED);
}

static bool is_stack(const struct operand *o) {
    return o->dims[2] > 1;
}

static void list_op(struct backend *b, const struct op *op) {
    const struct operand *weights[MAX_WEIGHTS];
    bool is_f32[MAX_WEIGHTS];
    uint32_t n = kernel_weights(op, weights, is_f32);
    for (uint32_t k = 0; k < n; k++) {
        const struct operand *o = weights[k];
        const struct kernel *kernel = o->n_dims ? kernel_for(b, o, is_f32[k]) : NULL;
        if (!kernel || !kernel->pack || find_packed(b, o, kernel))
            continue;
        uint64_t plane;
        count_released(b, o);
        CHECK(size_align(kernel->packed_bytes(o->dims[0], o->dims[1]), 64, &plane));
        b->packed[b->n_packed++] = (struct cpu_packed){.offset = o->offset,
                                                       .kernel = kernel,
                                                       .plane_bytes = plane,
                                                       .bytes = plane * o->dims[2],
                                                       .operand = o};
    }
}

/* The trunk's plans share all weights; those of a draft block have some of their own. */
int packed_list(struct backend *b, struct plan *const *plans, uint32_t n_plans, struct err *err) {
    uint64_t n_ops = 0;
    for (uint32_t i = 0; i < n_plans; i++)
        n_ops += plans[i]->n_ops;
    b->packed = calloc(n_ops * MAX_WEIGHTS + 1, sizeof *b->packed);
    if (!b->packed)
        return err_memory(err, "the list of packed weights");
    for (uint32_t p = 0; p < n_plans; p++)
        for (uint32_t i = 0; i < plans[p]->n_ops; i++)
            list_op(b, &plans[p]->ops[i]);
    return SLUICE_OK;
}

/* ---- where it is -------------------------------------------------------------------------- */

/* What load takes besides weights that may be on disk. */
static uint64_t rest_of(const struct backend *b, const struct backend_memory *m) {
    uint64_t made = m->weights > b->mapped ? m->weights - b->mapped : 0;
    return size_plus(size_plus(size_plus(m->state, m->scratch), size_plus(m->io, m->workspace)),
                     made);
}

/* Whether all weights can be in memory; `packed`: bytes of all that are packed. */
static bool fits(const struct backend *b, const struct backend_memory *m, uint64_t packed) {
    uint64_t mapped = m->weights < b->mapped ? m->weights : b->mapped;
    mapped -= mapped < b->released ? mapped : b->released;
    return size_plus(size_plus(rest_of(b, m), mapped), packed) <= b->memory &&
           packed <= b->weights_bytes;
}

/* Bytes of packed weights that may be in memory if not all can be. */
static uint64_t room_for(const struct backend *b, const struct backend_memory *m) {
    uint64_t usable = b->memory - b->memory / BACKEND_DISK_SHARE, rest = rest_of(b, m);
    return min_u64(usable - min_u64(usable, rest), b->weights_bytes);
}

/* Which matrices are on disk: their share of every so many bytes, so that they are spread, but for
 * some that fit into what that leaves of the room. */
static void share_out(struct backend *b, uint64_t room, uint64_t matrices) {
    double share = matrices ? (double)room / (double)matrices : 1;
    uint64_t seen = 0, kept = 0;
    for (uint32_t i = 0; i < b->n_packed; i++) {
        struct cpu_packed *p = &b->packed[i];
        seen += is_stack(p->operand) ? 0 : p->bytes;
        p->is_on_disk = is_stack(p->operand) || (double)(kept + p->bytes) > share * (double)seen;
        kept += p->is_on_disk ? 0 : p->bytes;
    }
    for (uint32_t i = b->n_packed; i-- > 0;) {
        struct cpu_packed *p = &b->packed[i];
        if (!p->is_on_disk || is_stack(p->operand) || p->bytes > room - kept)
            continue;
        p->is_on_disk = false;
        kept += p->bytes;
    }
}

/* Gives the matrices, or the stacks, their places. */
static void place(struct backend *b, struct backend_memory *m, bool stacks) {
    for (uint32_t i = 0; i < b->n_packed; i++) {
        struct cpu_packed *p = &b->packed[i];
        uint64_t *used = p->is_on_disk ? &m->disk : &m->packed;
        if (is_stack(p->operand) != stacks)
            continue;
        p->at = *used;
        *used += p->bytes;
    }
}

void packed_place(struct backend *b, struct backend_memory *m) {
    uint64_t matrices = 0, all = 0;
    for (uint32_t i = 0; i < b->n_packed; i++) {
        all += b->packed[i].bytes;
        matrices += is_stack(b->packed[i].operand) ? 0 : b->packed[i].bytes;
    }
    bool is_tight = b->weights_dir && !fits(b, m, all);
    if (is_tight)
        share_out(b, min_u64(room_for(b, m), matrices), matrices);
    place(b, m, false);
    b->stacks_at = m->disk = size_aligned(m->disk, WEIGHTS_GRAIN);
    place(b, m, true);
    m->released = b->released;
    /* Weights that are used where their file is mapped are on disk anyway. */
    m->paged = is_tight ? b->mapped - b->released : 0;
    b->packed_bytes = m->packed;
    b->disk_bytes = m->disk;
    b->paged = m->paged;
}

static int make_file(struct backend *b, struct err *err) {
    if (!b->disk_bytes)
        return SLUICE_OK;
    int status = filemap_make(&b->disk, b->weights_dir, BACKEND_DISK_WEIGHTS, b->disk_bytes, err);
    if (status)
        return status;
    /* Matrices are read from end to end: in pieces of 2 MiB, where the file system can. Of stacks
     * nothing is read but what packed_will_need asks for: the neighbours are other experts. */
    uint8_t *at = (uint8_t *)b->disk.data;
    madvise(at, b->stacks_at, MADV_HUGEPAGE);
    madvise(at + b->stacks_at, b->disk_bytes - b->stacks_at, MADV_RANDOM);
    return SLUICE_OK;
}

/* ---- packing ------------------------------------------------------------------------------ */

struct pack_job {
    struct backend *b;
    const struct cpu_packed *p;
    atomic_int error; /* an errno: the disk's */
};

static uint8_t *place_of(const struct backend *b, const struct cpu_packed *p) {
    return (p->is_on_disk ? (uint8_t *)b->disk.data : b->packed_block) + p->at;
}

/* Written, not stored through the mapping: a disk that fails is an error then, not a signal. */
static void pack_to_disk(struct pack_job *job, const uint8_t *from, uint32_t k, uint32_t n,
                         uint64_t at) {
    const struct kernel *kernel = job->p->kernel;
    uint64_t bytes = kernel->packed_bytes(k, n);
    uint8_t *packed = calloc(1, bytes);
    int error = packed ? 0 : ENOMEM;
    if (packed) {
        kernel->pack(from, k, n, packed);
        error = filemap_write(&job->b->disk, packed, bytes, at);
    }
    if (error)
        atomic_store(&job->error, error);
    free(packed);
}

/* Rows packed at once, so that threads can share one big matrix; a multiple of every tile. */
enum { CHUNK_ROWS = 256 };
static void pack_chunks(void *context, uint64_t begin, uint64_t end) {
    struct pack_job *job = context;
    const struct operand *o = job->p->operand;
    uint64_t row = operand_row_bytes(o), chunks = (o->dims[1] + CHUNK_ROWS - 1) / CHUNK_ROWS;
    for (uint64_t i = begin; i < end && !atomic_load(&job->error); i++) {
        uint64_t plane = i / chunks, first = i % chunks * CHUNK_ROWS;
        uint64_t n = o->dims[1] - first < CHUNK_ROWS ? o->dims[1] - first : CHUNK_ROWS;
        const uint8_t *from =
            job->b->region[REGION_WEIGHTS] + o->offset + (plane * o->plane + first) * row;
        uint64_t at = job->p->at + plane * job->p->plane_bytes +
                      job->p->kernel->packed_bytes(o->dims[0], (uint32_t)first);
        if (job->p->is_on_disk)
            pack_to_disk(job, from, o->dims[0], (uint32_t)n, at);
        else
            job->p->kernel->pack(from, o->dims[0], (uint32_t)n, job->b->packed_block + at);
    }
}

static int pack(struct backend *b, const struct cpu_packed *p, struct err *err) {
    const struct operand *o = p->operand;
    uint64_t chunks = ((uint64_t)o->dims[1] + CHUNK_ROWS - 1) / CHUNK_ROWS * o->dims[2];
    struct pack_job job = {.b = b, .p = p};
    pool_for(b->pool, chunks, 1, pack_chunks, &job);
    release_weight(b, o);
    int error = atomic_load(&job.error);
    if (!error && p->is_on_disk)
        error = filemap_settle(&b->disk, p->at, p->bytes);
    if (!error)
        return SLUICE_OK;
    return err_set(err, error == ENOMEM ? SLUICE_ERR_MEMORY : SLUICE_ERR_IO,
                   "%s: cannot write " BACKEND_DISK_WEIGHTS ": %s", b->weights_dir,
                   locale_error(error));
}

int packed_make(struct backend *b, void (*progress)(void *user, uint64_t done, uint64_t total),
                void *user, struct err *err) {
    uint64_t done = 0, total = b->packed_bytes + b->disk_bytes;
    int status = make_file(b, err);
    for (uint32_t i = 0; !status && i < b->n_packed; i++) {
        status = pack(b, &b->packed[i], err);
        done += b->packed[i].bytes;
        if (!status && progress)
            progress(user, done, total);
    }
    return status;
}

/* ---- use ---------------------------------------------------------------------------------- */

void packed_find(const struct backend *b, struct cpu_op *c) {
    const struct operand *weights[MAX_WEIGHTS];
    bool is_f32[MAX_WEIGHTS];
    uint32_t n = kernel_weights(c->op, weights, is_f32);
    c->act_group = op_act_group(c->op);
    for (uint32_t k = 0; k < n; k++) {
        const struct operand *o = weights[k];
        if (!o->n_dims)
            continue;
        const struct kernel *kernel = kernel_for(b, o, is_f32[k]);
        const struct cpu_packed *p = find_packed(b, o, kernel);
        c->weights[k] = (struct cpu_weight){
            .kernel = kernel,
            .data = p ? place_of(b, p) : b->region[REGION_WEIGHTS] + o->offset,
            .plane_bytes = p ? p->plane_bytes : (uint64_t)o->plane * operand_row_bytes(o),
            .is_on_disk = p && p->is_on_disk,
        };
        c->needs_int8 |= !kernel->is_f32;
        c->needs_f32 |= kernel->is_f32;
    }
}

void packed_will_need(const struct cpu_weight *w, uint32_t matrix) {
    enum { ENOUGH = 64 << 20 }; /* the kernel itself reads ahead from there */
    if (!w->is_on_disk)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t at = (uintptr_t)(w->data + matrix * w->plane_bytes), begin = at / page * page;
    uint64_t bytes = w->plane_bytes < ENOUGH ? w->plane_bytes : ENOUGH;
    madvise((void *)begin, at - begin + bytes, MADV_WILLNEED);
}
