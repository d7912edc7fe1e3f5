/* cuda.h - the CUDA backend's host side: a step is one graph of kernels over memory that never
 * moves.
 *
 * At load every op of a plan lists its kernels (record_*, one file of ops/ each), the list is
 * captured into a graph, and from then on the graph is only launched.
 * (1) Kernels follow each other by programmatic dependent launch: a kernel may start while the one
 *     before it runs. It may read weights at once, and STATE that no earlier kernel of the step
 *     writes; all other reads, and every write, come after pdl_wait(). Every kernel waits.
 * (2) A result's bits depend on its own row alone: never on the rows beside it, on the bucket, or
 *     on which block was first. No float atomics.
 * (3) Nothing is allocated after load. */
#ifndef BACKEND_CUDA_HOST_CUDA_H
#define BACKEND_CUDA_HOST_CUDA_H

#include "backend/backend.h"
#include "backend/cuda/formats/tiles.h"
#include "backend/cuda/host/driver.h"
#include "backend/cuda/ops/delta.h"
#include "backend/cuda/shared.h"

struct cuda_launch {
    const char *kernel; /* its name in the modules */
    uint32_t grid[3];
    uint32_t threads;
    uint32_t shared; /* dynamic shared memory, bytes; may be beyond 48 KB */
    bool is_barrier; /* begins when all before it are complete, whatever they allowed */
    bool is_alone;   /* only where its op runs alone: in a step an op before has done its work */
};

/* The weight types of all products of a plan but its LM head. A draft block may have other types
 * than the trunk. */
struct plan_products {
    uint32_t set, draft_set; /* of types, see project.h: of the trunk's, and of the block's */
    uint32_t draft_from;     /* the block's first op, JOIN; n_ops: it has none */
    bool has_experts;
    uint64_t handed_bytes; /* the largest input of a product that the one before it may quantize */
};

/* What a record function reads and adds to. Each runs twice: once to count memory (all addresses
 * NULL), once to record. */
struct recorder {
    const struct plan *plan;
    struct plan_products products;
    struct cuda_io io;
    uint32_t n_sms;
    bool exact; /* f32 activations throughout */
    struct backend *b;
    struct err *err;
    bool is_counting;
    /* Every segment of the step has one row: kernels for longer ones are left out. */
    bool is_decode;
    bool is_few;   /* the recording for steps that delta_few is for, though the plan has logs */
    uint32_t step; /* of a burst; later steps find their IO on the device */
    uint32_t n_steps;
    bool has_wanted;     /* the LM head writes the logits that the host asks for, */
    uint64_t *head_best; /* and the argmax of a single row here */
    struct cuda_recording *into;
    uint64_t work_most, counters_most; /* bytes of the ops so far */
    uint32_t handed_op; /* the op whose input the one before it quantizes; 0: none so far, */
    uint32_t handed_to; /* and to which of the two places, see recorder_handed */
    /* Of the running op. */
    uint32_t op;
    uint64_t work_used, counters_used;
};

/* An operand's address on the device; NULL for one that is not there. */
void *recorder_at(struct recorder *r, const struct operand *o);
struct cuda_matrix recorder_matrix(struct recorder *r, const struct operand *weight);
/* Workspace of the running op alone (256-aligned): the next op's kernels overwrite it. */
void *recorder_work(struct recorder *r, uint64_t bytes);
/* One of two places of products.handed_bytes at the workspace's beginning, which no op's own part
 * overlaps: what an op hands to the next one. */
void *recorder_handed(struct recorder *r, uint32_t place);
/* Words that are zero when the op's kernels start, and that they must leave zero. */
uint32_t *recorder_counters(struct recorder *r, uint64_t n);
/* The log of a DELTA's states, the same for all plans: this many head tiles and cells. NULL: there
 * is no room for it, or there is one of another shape. */
struct cuda_log;
const struct cuda_log *recorder_log(struct recorder *r, const struct operand *state, uint32_t tiles,
                                    uint32_t cells, struct delta_log_heads heads);
/* Adds a kernel to the step; `params` begins with a struct cuda_io and is copied. */
int recorder_launch(struct recorder *r, const struct cuda_launch *launch, const void *params,
                    size_t bytes);

/* The op `offset` ops after the running one (before: negative); NULL: none. All that an op knows of
 * its neighbours it knows from here: the LM head of PICK, the experts of what comes before them. */
const struct op *recorder_neighbour(const struct recorder *r, int offset);

/* Where the kernel that is recorded next stores the time when the step ended, if it ends it. */
uint64_t *recorder_end_stamp(struct recorder *r);

/* Finds the weight types of the plan's products. */
void project_survey(struct recorder *r);
/* Those of the part of the plan, trunk or draft block, that the running op is in. */
uint32_t project_all_types(const struct recorder *r);

/* One function an op. What the kernels cannot do is refused here, with the reason. */
typedef int cuda_record_fn(struct recorder *r, const struct op *op);
#define OP(kind, name, member) cuda_record_fn record_##member;
#include "plan/ops.def"
#undef OP

/* ---- between the files of host/ ----------------------------------------------------------- */

/* A weight, and where it is on the device. */
struct cuda_weight {
    struct operand operand;   /* in WEIGHTS; the first member: weight_list.h */
    bool is_tiled;            /* else rows as in the file */
    struct tile_format tiles; /* where it is */
    uint64_t at, bytes;       /* on the device; a plane is bytes / dims[2] */
};

/* A kernel of a recording. */
struct cuda_node {
    CUfunction function;
    struct cuda_launch launch;
    bool is_dependent; /* follows by programmatic launch */
    uint32_t op;
    void *params; /* owned by the backend's arena */
};

struct cuda_recording {
    const struct plan *plan;
    struct cuda_node *nodes;
    uint32_t n_nodes;
    size_t capacity;
    CUgraphExec graph;
    CUgraphExec burst;             /* the steps of a burst; NULL: not for this plan */
    struct cuda_recording *decode; /* for steps whose segments all have one row; NULL: none */
    struct cuda_recording *few;    /* for the others that have few open logs; NULL: none */
    bool has_few;                  /* a DELTA has a kernel for segments of a few rows, */
    bool wants_few;                /* or would have one but for the log */
    bool has_logs;                 /* a DELTA leaves rows to the log, see log.c; */
    bool reads_states;        /* a DELTA knows no log, and wants decode segments settled, too */
    double expected;          /* seconds a step usually takes; 0: not known yet */
    double expected_of_burst; /* and a burst */
};

struct cuda_buffer {
    CUdeviceptr at;
    uint64_t bytes;
};

/* Where the log of a DELTA's states is; ops/delta.h says what it is. */
struct cuda_log {
    uint64_t state;      /* offset in STATE */
    uint64_t cell_bytes; /* of a cell's state */
    uint64_t at;         /* in the backend's memory of logs */
    uint32_t tiles, cells;
    struct delta_log_heads heads;
};

enum { CUDA_MAX_LOGS = 256 };

struct cuda_logs {
    struct cuda_log list[CUDA_MAX_LOGS];
    uint32_t n;
    uint64_t bytes;
    CUfunction settle;
    uint32_t n_cells, n_open;
    uint8_t *is_open;   /* (n_cells) the cell's logs may have entries */
    uint32_t *settling; /* (n_cells) cells that are settled next */
    uint32_t n_settling;
};

enum { MAX_MODULES = 64, MAX_STAMPS = 8192, STAMP_BYTES = MAX_STAMPS * sizeof(uint64_t) };

struct backend {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUmodule modules[MAX_MODULES]; /* as cuda_fatbins; NULL: for newer devices */
    uint32_t n_modules, n_sms;
    CUfunction copy;                    /* of cuda_copy_state */
    struct project_schedule *schedules; /* of project_schedule.c, in the arena */
    int capability;                     /* 90: 9.0 */
    uint32_t max_shared;                /* bytes of shared memory that a block may ask for */
    bool exact;
    struct arena arena;
    struct cuda_weight *weight_list;
    uint32_t n_weights;
    uint64_t weight_bytes;
    struct cuda_buffer weights, state, scratch, work, counters, io_copy, stamps, log_memory;
    struct cuda_logs logs;
    uint64_t *trace; /* where the stamps are mapped host memory: the host's address */
    uint8_t *io;     /* mapped: the host's address */
    CUdeviceptr io_device;
    uint64_t io_bytes;
    volatile uint64_t *done; /* mapped: the step that is complete */
    CUdeviceptr done_device;
    struct cuda_recording *recordings;
    uint32_t n_recordings;
    struct backend_counters count;
    uint64_t driver_bytes;          /* what the driver took for context, code and graphs */
    struct cuda_recording *running; /* that was submitted last, */
    bool is_burst;                  /* as a burst */
    double submitted_at;
    double late; /* seconds that the host usually oversleeps */
    CUstream wake_stream;
    CUgraphExec empty_graph;        /* launched there by cuda_wait; does nothing */
    CUstream copy_stream;           /* of cuda_read_at_fence, and what it waits for */
    CUevent fences[BACKEND_FENCES]; /* before it begins, */
    CUevent copied;                 /* and when it is done */
    atomic_bool is_broken;          /* the context is lost: every call fails */
};

/* open.c */

/* First in every call: makes the context current, since the caller may be another thread than last
 * time, and fails once the device has. */
int cuda_enter(struct backend *b, struct err *err);
int cuda_available(struct backend *b, uint64_t *bytes, struct err *err);

/* step.c and state.c: as backend.h has them. */
int cuda_submit(struct backend *b, uint32_t plan, struct err *err);
bool cuda_has_burst(const struct backend *b, uint32_t plan);
int cuda_submit_burst(struct backend *b, uint32_t plan, struct err *err);
int cuda_wait(struct backend *b, struct err *err);
int cuda_time_ops(struct backend *b, uint32_t plan, double *op_seconds, struct err *err);
int cuda_run_op(struct backend *b, uint32_t plan, uint32_t op, struct err *err);
bool cuda_op_kernel(const struct backend *b, uint32_t plan, uint32_t op, uint32_t i,
                    struct backend_kernel *out);
int cuda_read_state(struct backend *b, uint64_t offset, uint64_t bytes, void *to, struct err *err);
int cuda_write_state(struct backend *b, uint64_t offset, uint64_t bytes, const void *from,
                     struct err *err);
int cuda_move_state(struct backend *b, const struct backend_move *list, uint32_t n, bool is_in,
                    struct err *err);
int cuda_copy_state(struct backend *b, const struct backend_copy *list, uint32_t n,
                    struct err *err);
int cuda_fence(struct backend *b, uint32_t number, struct err *err);
int cuda_read_at_fence(struct backend *b, uint32_t fence, const struct backend_move *list,
                       uint32_t n, struct err *err);
int cuda_pin(struct backend *b, void *memory, uint64_t bytes, struct err *err);
void cuda_unpin(struct backend *b, void *memory);
int cuda_peek(struct backend *b, enum region region, uint64_t offset, uint64_t bytes, void *to,
              struct err *err);
int cuda_poke(struct backend *b, enum region region, uint64_t offset, uint64_t bytes,
              const void *from, struct err *err);

/* log.c: states are settled before they are read or written by anything but delta_log. */
uint32_t *cuda_log_counts(const struct backend *b, const struct cuda_log *l);
float *cuda_log_keys(const struct backend *b, const struct cuda_log *l);
float *cuda_log_entries(const struct backend *b, const struct cuda_log *l);
int cuda_open_logs(struct backend *b, struct err *err);
int cuda_settle_range(struct backend *b, uint64_t offset, uint64_t bytes, struct err *err);
int cuda_settle_copies(struct backend *b, const struct backend_copy *list, uint32_t n,
                       struct err *err);
int cuda_settle_moves(struct backend *b, const struct backend_move *list, uint32_t n,
                      struct err *err);
int cuda_settle_all(struct backend *b, struct err *err);
/* Whether settling all states of the step in IO costs less than what it saves to leave out the log
 * (a few microseconds for each cell that has entries). */
bool cuda_has_few_open(const struct backend *b, const struct plan *plan);
/* Before a step with IO as it is; notes which cells have entries after it. */
int cuda_settle_for_step(struct backend *b, const struct cuda_recording *r, bool is_burst,
                         struct err *err);

/* limits.c: what the device can do, measured now. */
int cuda_bandwidth(struct backend *b, double *bytes_per_second, struct err *err);
int cuda_peak(struct backend *b, double *flops_per_second, struct err *err);

/* load.c: gives every weight of the plans its address; and the upload. */
int cuda_place_weights(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                       struct err *err);
const struct cuda_weight *cuda_find_weight(const struct backend *b, const struct operand *o);
int cuda_upload(struct backend *b, struct backend_weights weights,
                void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                struct err *err);

/* record.c: kernels by name, plans to lists of kernels, lists to graphs. */
int cuda_load_modules(struct backend *b, struct err *err);
CUfunction cuda_function(const struct backend *b, const char *name);
/* The kernel of that name among the embedded ones; NULL: none. */
const struct cuda_kernel *cuda_find_kernel(const char *name);
/* Walks the plans without recording: what they need of work memory and counters. */
int cuda_count(struct backend *b, struct plan *const *plans, uint32_t n_plans, uint64_t *work,
               uint64_t *counters, struct err *err);
int cuda_record(struct backend *b, struct plan *const *plans, uint32_t n_plans, struct err *err);
int cuda_run_node(struct backend *b, const struct cuda_node *node, bool is_dependent,
                  struct err *err);

#endif
