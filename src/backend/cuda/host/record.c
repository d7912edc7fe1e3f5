/* record.c - plans to lists of kernels, lists to graphs.
 *
 * An op's record function lists its kernels; the list is captured once into a graph whose edges are
 * programmatic: a kernel starts while the one before it ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/host/cuda.h"
#include "backend/cuda/host/fatbins.h"
#include "backend/cuda/ops/embed.h"
#include "backend/cuda/ops/limits.h"
#include "base/array.h"
#include "base/size.h"

static cuda_record_fn *const functions[] = {
#define OP(kind, name, member) record_##member,
#include "plan/ops.def"
#undef OP
};

enum { WORK_ALIGN = 256 };

/* ---- kernels by name ---------------------------------------------------------------------- */

int cuda_load_modules(struct backend *b, struct err *err) {
    bool has_any = false;
    for (; cuda_fatbins[b->n_modules].name; b->n_modules++) {
        const struct cuda_fatbin *fatbin = &cuda_fatbins[b->n_modules];
        CHECK(b->n_modules < MAX_MODULES);
        CUmodule module = NULL;
        CUresult result = driver.module_load(&module, fatbin->bytes);
        if (result == CUDA_ERROR_NO_BINARY_FOR_GPU)
            continue; /* kernels for newer devices */
        int status = driver_check(result, fatbin->name, err);
        if (status) {
            err_prefix(err, "loading the CUDA kernels for a device of capability %d.%d",
                       b->capability / 10, b->capability % 10);
            return status;
        }
        b->modules[b->n_modules] = module;
        has_any = true;
    }
    return has_any ? SLUICE_OK
                   : err_set(err, SLUICE_ERR_UNSUPPORTED,
                             "no CUDA kernels for a device of capability %d.%d in this program",
                             b->capability / 10, b->capability % 10);
}

static int compare_kernels(const void *name, const void *kernel) {
    return strcmp(name, ((const struct cuda_kernel *)kernel)->name);
}

const struct cuda_kernel *cuda_find_kernel(const char *name) {
    size_t n = 0;
    while (cuda_kernels[n].name)
        n++;
    return bsearch(name, cuda_kernels, n, sizeof *cuda_kernels, compare_kernels);
}

CUfunction cuda_function(const struct backend *b, const char *name) {
    const struct cuda_kernel *kernel = cuda_find_kernel(name);
    CUmodule module = kernel ? b->modules[kernel->fatbin] : NULL;
    CUfunction f;
    return module && driver.module_function(&f, module, name) == CUDA_SUCCESS ? f : NULL;
}

/* Only code with griddepcontrol.wait may be launched early; PTX for older devices has none. */
static bool can_depend(const struct backend *b, CUfunction f) {
    int ptx = 0;
    return b->capability >= 90 &&
           driver.function_get(&ptx, CU_FUNC_ATTRIBUTE_PTX_VERSION, f) == CUDA_SUCCESS && ptx >= 90;
}

/* ---- what record functions ask for -------------------------------------------------------- */

static void *device_at(CUdeviceptr base, uint64_t offset) {
    return (void *)(uintptr_t)(base + offset);
}

void *recorder_at(struct recorder *r, const struct operand *o) {
    const struct backend *b = r->b;
    if (o->n_dims == 0 || r->is_counting)
        return NULL;
    switch ((enum region)o->region) {
    case REGION_WEIGHTS:
        return device_at(b->weights.at, cuda_find_weight(b, o)->at);
    case REGION_STATE:
        return device_at(b->state.at, o->offset);
    case REGION_SCRATCH:
        return device_at(b->scratch.at, o->offset);
    default:
        return device_at(b->io_device, o->offset);
    }
}

struct cuda_matrix recorder_matrix(struct recorder *r, const struct operand *o) {
    if (o->n_dims == 0)
        return (struct cuda_matrix){0};
    const struct cuda_weight *p = cuda_find_weight(r->b, o);
    return (struct cuda_matrix){
        .data = r->is_counting ? NULL : device_at(r->b->weights.at, p->at),
        .plane_bytes = p->bytes / o->dims[2],
        .type = p->is_tiled ? p->tiles.type : o->type,
        .is_tiled = p->is_tiled,
        .k = o->dims[0],
        .n = o->dims[1],
        .row_bytes = operand_row_bytes(o),
        .tile_rows = p->is_tiled ? p->tiles.rows : 0,
    };
}

static void *cut(struct recorder *r, uint64_t bytes, uint64_t *used, uint64_t *most,
                 CUdeviceptr base) {
    uint64_t at = *used;
    CHECK(size_align(bytes, WORK_ALIGN, &bytes) && size_add(at, bytes, used));
    *most = *used > *most ? *used : *most;
    return r->is_counting ? NULL : device_at(base, at);
}

const struct op *recorder_neighbour(const struct recorder *r, int offset) {
    int64_t i = (int64_t)r->op + offset;
    return i >= 0 && i < (int64_t)r->plan->n_ops ? &r->plan->ops[i] : NULL;
}

void *recorder_work(struct recorder *r, uint64_t bytes) {
    return cut(r, bytes, &r->work_used, &r->work_most, r->b->work.at);
}

void *recorder_handed(struct recorder *r, uint32_t place) {
    return r->is_counting ? NULL : device_at(r->b->work.at, place * r->products.handed_bytes);
}

uint32_t *recorder_counters(struct recorder *r, uint64_t n) {
    return cut(r, n * sizeof(uint32_t), &r->counters_used, &r->counters_most, r->b->counters.at);
}

/* ---- nodes -------------------------------------------------------------------------------- */

static int grow_nodes(struct recorder *r) {
    struct cuda_recording *into = r->into;
    bool has_room = array_grow(&into->nodes, into->n_nodes, &into->capacity, sizeof *into->nodes);
    return has_room ? SLUICE_OK : err_memory(r->err, "a recording");
}

static const char *op_text(const struct recorder *r, char *text, size_t size) {
    return plan_op_text(r->plan, r->op, text, size);
}

/* More than 48 KB of dynamic shared memory must be asked for; a kernel that is launched several
 * times in a step gets its largest. */
static int set_shared(CUfunction f, uint32_t bytes, struct err *err) {
    int now = 0;
    int status = driver_check(
        driver.function_set(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),
        "choosing shared memory", err);
    if (!status)
        status = driver_check(
            driver.function_get(&now, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f),
            "asking for shared memory", err);
    if (!status && bytes > (uint32_t)now)
        status = driver_check(
            driver.function_set(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes),
            "asking for shared memory", err);
    return status;
}

int recorder_launch(struct recorder *r, const struct cuda_launch *launch, const void *params,
                    size_t bytes) {
    char text[96];
    CHECK(launch->grid[0] && launch->grid[1] && launch->grid[2] && launch->threads <= 1024);
    if (launch->shared > r->b->max_shared)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "%s, kernel %s: a block needs %u bytes of shared memory, the device has %u",
                       op_text(r, text, sizeof text), launch->kernel, launch->shared,
                       r->b->max_shared);
    if (!cuda_find_kernel(launch->kernel))
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED, "%s: no CUDA kernel %s in this program",
                       op_text(r, text, sizeof text), launch->kernel);
    if (r->is_counting)
        return SLUICE_OK;
    CUfunction f = cuda_function(r->b, launch->kernel);
    if (!f)
        return err_set(r->err, SLUICE_ERR_DEVICE, "%s: the device has no kernel %s",
                       op_text(r, text, sizeof text), launch->kernel);
    int status = set_shared(f, launch->shared, r->err);
    if (!status)
        status = grow_nodes(r);
    void *copy = status ? NULL : arena_alloc(&r->b->arena, bytes);
    if (status || !copy)
        return status ? err_prefix(r->err, "%s, kernel %s", op_text(r, text, sizeof text),
                                   launch->kernel)
                      : err_memory(r->err, "a kernel's parameters");
    memcpy(copy, params, bytes);
    CHECK(r->into->n_nodes + 1 < MAX_STAMPS);
    ((struct cuda_io *)copy)->stamp =
        device_at(r->b->stamps.at, r->into->n_nodes * sizeof(uint64_t));
    struct cuda_launch kept = *launch;
    kept.kernel = arena_strdup(&r->b->arena, str_of(launch->kernel));
    r->into->nodes[r->into->n_nodes++] =
        (struct cuda_node){.function = f,
                           .launch = kept,
                           .is_dependent = can_depend(r->b, f) && !launch->is_barrier,
                           .op = r->op,
                           .params = copy};
    return SLUICE_OK;
}

uint64_t *recorder_end_stamp(struct recorder *r) {
    return device_at(r->b->stamps.at, (r->into->n_nodes + 1) * sizeof(uint64_t));
}

int cuda_run_node(struct backend *b, const struct cuda_node *node, bool is_dependent,
                  struct err *err) {
    CUlaunchAttribute programmatic = {
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value.programmaticStreamSerializationAllowed = 1,
    };
    CUlaunchConfig config = {
        .gridDimX = node->launch.grid[0],
        .gridDimY = node->launch.grid[1],
        .gridDimZ = node->launch.grid[2],
        .blockDimX = node->launch.threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = node->launch.shared,
        .hStream = b->stream,
        .attrs = &programmatic,
        .numAttrs = is_dependent && node->is_dependent,
    };
    void *params[] = {node->params};
    return driver_check(driver.launch(&config, node->function, params, NULL), node->launch.kernel,
                        err);
}

/* ---- plans -------------------------------------------------------------------------------- */

/* The flag that tells the host that the step is complete; PICK sets it itself. */
static int record_done(struct recorder *r) {
    if (r->plan->n_ops > 0 && r->plan->ops[r->plan->n_ops - 1].kind == OP_PICK)
        return SLUICE_OK;
    struct done_params p = {.io = r->io, .done = device_at(r->b->done_device, 0)};
    struct cuda_launch launch = {.kernel = "step_done", .grid = {1, 1, 1}, .threads = 1};
    r->op = r->plan->n_ops;
    return recorder_launch(r, &launch, &p, sizeof p);
}

static void find_io(struct recorder *r) {
    const struct plan *plan = r->plan;
    const struct backend *b = r->b;
    if (!r->is_counting)
        r->io = (struct cuda_io){
            .header = device_at(b->io_copy.at, 0),
            .rows = device_at(b->io_copy.at, plan->io.rows),
            .segments = device_at(b->io_copy.at, plan->io.segments),
            .to = device_at(b->io_copy.at, plan->io.to),
            .outputs = device_at(b->io_copy.at, plan->io.outputs),
            .host_outputs = device_at(b->io_device, plan->io.outputs),
            .biases = device_at(b->io_device, plan->io.biases),
            .masks = device_at(b->io_device, plan->io.masks),
            .keeps = device_at(b->io_device, plan->io.keeps),
        };
}

static int walk_ops(struct recorder *r) {
    const struct plan *plan = r->plan;
    r->has_wanted = false;
    r->head_best = NULL;
    r->handed_op = r->handed_to = 0;
    for (r->op = 0; r->op < plan->n_ops; r->op++) {
        r->work_used = 2 * r->products.handed_bytes;
        r->work_most = r->work_used > r->work_most ? r->work_used : r->work_most;
        r->counters_used = 0;
        int status = functions[plan->ops[r->op].kind](r, &plan->ops[r->op]);
        if (status)
            return status;
    }
    return SLUICE_OK;
}

/* The kernels of this many steps. */
static int walk(struct recorder *r, uint32_t n_steps) {
    find_io(r);
    project_survey(r);
    int status = SLUICE_OK;
    r->n_steps = n_steps;
    for (r->step = 0; !status && r->step < n_steps; r->step++)
        status = walk_ops(r);
    return status ? status : record_done(r);
}

int cuda_count(struct backend *b, struct plan *const *plans, uint32_t n_plans, uint64_t *work,
               uint64_t *counters, struct err *err) {
    struct recorder r = {
        .b = b, .n_sms = b->n_sms, .exact = b->exact, .err = err, .is_counting = true};
    b->logs.n = 0, b->logs.bytes = 0;
    for (uint32_t i = 0; i < n_plans; i++) {
        r.plan = plans[i];
        int status = walk(&r, 1);
        if (status)
            return status;
    }
    *work = r.work_most;
    *counters = r.counters_most;
    return SLUICE_OK;
}

static int capture(struct backend *b, struct cuda_recording *into, CUgraphExec *out,
                   struct err *err) {
    CUgraph graph = NULL;
    int status = driver_check(driver.capture_begin(b->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                              "capturing a step", err);
    for (uint32_t i = 0; !status && i < into->n_nodes; i++)
        if (!into->nodes[i].launch.is_alone)
            status = cuda_run_node(b, &into->nodes[i], true, err);
    if (status) {
        driver.capture_end(b->stream, &graph);
        if (graph)
            driver.graph_destroy(graph);
        return status;
    }
    if ((status = driver_check(driver.capture_end(b->stream, &graph), "ending a capture", err)))
        return status;
    status = driver_check(driver.graph_instantiate(out, graph, 0), "making a graph", err);
    driver.graph_destroy(graph);
    if (!status)
        status = driver_check(driver.graph_upload(*out, b->stream), "uploading a graph", err);
    return status;
}

/* The burst's node list is only needed until it is captured. */
static int record_burst(struct backend *b, struct cuda_recording *into, struct err *err) {
    struct cuda_recording burst = {.plan = into->plan};
    struct recorder r = {.plan = into->plan,
                         .b = b,
                         .n_sms = b->n_sms,
                         .exact = b->exact,
                         .err = err,
                         .is_decode = true,
                         .into = &burst};
    int status = walk(&r, plan_burst_steps(into->plan));
    if (!status)
        status = capture(b, &burst, &into->burst, err);
    free(burst.nodes);
    return status;
}

/* Whether kernels for prefill segments can be left out where a step has none: those of ATTEND and
 * DELTA in plans that have such kernels, and that may be filled with sequences. */
static bool wants_decode(const struct cuda_recording *r) {
    enum { MOST_FUSED = 32 };
    const struct plan *plan = r->plan;
    return (plan->max_rows > MOST_FUSED || r->has_logs || r->has_few) && plan->pages.n_dims &&
           2 * plan->pages.dims[1] > plan->max_rows;
}

/* Another recording of the plan, for the steps that `as` says. */
static int record_variant(struct recorder as, struct cuda_recording **out) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return err_memory(as.err, "a recording");
    (*out)->plan = as.plan;
    as.into = *out;
    int status = walk(&as, 1);
    return status ? status : capture(as.b, *out, &(*out)->graph, as.err);
}

static int record_plan(struct backend *b, const struct plan *plan, struct cuda_recording *into,
                       struct err *err) {
    struct recorder start = {
        .plan = into->plan = plan, .b = b, .n_sms = b->n_sms, .exact = b->exact, .err = err};
    struct recorder all = start, decode = start, few = start;
    all.into = into;
    decode.is_decode = true;
    few.is_few = true;
    int status = walk(&all, 1);
    CHECK(status || (all.work_most <= b->work.bytes && all.counters_most <= b->counters.bytes));
    if (!status)
        status = capture(b, into, &into->graph, err);
    if (!status && wants_decode(into))
        status = record_variant(decode, &into->decode);
    if (!status && into->wants_few)
        status = record_variant(few, &into->few);
    if (!status && plan_wants_burst(plan) && plan_burst_steps(plan) * into->n_nodes < MAX_STAMPS)
        status = record_burst(b, into, err);
    return status;
}

static int record_empty_graph(struct backend *b, struct err *err) {
    struct read_params nothing = {0};
    struct cuda_node node = {
        .function = cuda_function(b, "read_memory"),
        .launch = {.kernel = "read_memory", .grid = {1, 1, 1}, .threads = 32},
        .params = &nothing,
    };
    struct cuda_recording one = {.nodes = &node, .n_nodes = 1};
    return capture(b, &one, &b->empty_graph, err);
}

int cuda_record(struct backend *b, struct plan *const *plans, uint32_t n_plans, struct err *err) {
    b->recordings = calloc(n_plans, sizeof *b->recordings);
    if (!b->recordings)
        return err_memory(err, "the recordings");
    int status = SLUICE_OK;
    for (; !status && b->n_recordings < n_plans; b->n_recordings++)
        status = record_plan(b, plans[b->n_recordings], &b->recordings[b->n_recordings], err);
    if (!status)
        status = record_empty_graph(b, err);
    return status ? status : driver_check(driver.stream_sync(b->stream), "recording", err);
}
