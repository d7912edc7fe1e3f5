/* backend.h - what runs plans.
 *
 * A backend owns the four regions on its device and a recording of every plan it was given. It
 * never sees a model: no op is in these signatures. One thread at a time uses a backend.
 *
 *   open -> load (regions made, weights placed, plans recorded) -> write IO, submit, wait, read IO
 *
 * (1) After load nothing is allocated, and addresses never change.
 * (2) A step is one submit and one wait. Nothing of it can fail but the device, and it may be
 *     cancelled. */
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H

#include <stdatomic.h>

#include "base/err.h"
#include "built_with.h"
#include "plan/build.h"

/* Where weights are on disk, this part of memory stays free for their pages and for others. */
enum { BACKEND_DISK_SHARE = 8 };
/* What the file in weights_dir is for, in errors. */
#define BACKEND_DISK_WEIGHTS "weights (--weights-dir)"

struct backend_options {
    int device;  /* of `devices`, where there are several */
    int threads; /* of the CPU backend; 0: one per processor */
    bool exact;  /* f32 activations throughout: the oracle */
    /* A backend that can stop in the middle of a step polls it; once set it stays set until wait
     * has returned. NULL: no step is ever cancelled. */
    const atomic_bool *cancel;
    /* This many bytes at the start of WEIGHTS are mapped from files: a backend that packs weights
     * in host memory frees their pages once they are packed. 0: none are. */
    uint64_t mapped;
    /* A folder for weights that do not fit into memory, NULL: all are in memory. The CPU backend
     * only; it outlives load. */
    const char *weights_dir;
    uint64_t memory;        /* bytes that all of the backend may take; with weights_dir */
    uint64_t weights_bytes; /* of these, packed weights at most; 0: as many as there is room for */
};

/* Bytes of memory by use. `other` is the backend's own: packed weights, workspace. */
struct backend_memory {
    uint64_t weights, state, scratch, io, packed, workspace;
    uint64_t driver;   /* what the device's driver takes for itself, where that is known */
    uint64_t released; /* mapped weights that are released once they are packed; not in `weights` */
    uint64_t disk;     /* packed weights in a file of weights_dir; not in `packed` */
    uint64_t paged;    /* mapped weights that need not be in memory; not in `weights` */
    uint64_t imported; /* of `weights`: those that the device reads from the host's mapping */
};

/* Everything a backend did since it was opened. Host copies are read_state, write_state and
 * move_state, of the CPU too; allocations are the blocks that load makes. A step adds to neither.
 */
struct backend_counters {
    uint64_t submissions, waits, host_copies, allocations;
    uint64_t host_copy_bytes;
};

/* The host's copy of the weights; the plans' offsets are relative to it. */
struct backend_weights {
    const uint8_t *base;
    uint64_t bytes;
    uint64_t synthetic; /* this many bytes at the start are missing: random matrices, which a
                           backend with its own memory generates from their offsets; 0: none */
    uint64_t mapped;    /* as in the options, but what was really mapped: at most that */
};

/* A kernel that an op is made of, for explain. */
struct backend_kernel {
    const char *name; /* lives as long as the backend */
    uint32_t grid[3], threads;
    uint32_t shared; /* bytes of dynamic shared memory per block */
    int registers;   /* per thread */
    uint32_t code;   /* bytes of machine code; 0: not known */
};

/* A stretch of STATE that becomes a copy of another, or zeros. */
#define BACKEND_ZEROS UINT64_MAX
struct backend_copy {
    uint64_t to, from, bytes; /* from BACKEND_ZEROS: zeros */
};

/* A stretch of STATE and the host's memory that it goes to or comes from. */
struct backend_move {
    uint64_t offset, bytes;
    void *host;
};

enum { BACKEND_FENCES = 64 };

struct backend;

/* Sees the inputs of products. `weight` is a PROJECT's segment or a stack of experts, `matrix` the
 * index in the stack; x: (n, K) f32, after the prologue, before quantization. The LM head is left
 * out. Calls come from several threads at once, never for the same matrix. */
struct backend_observer {
    void (*rows)(void *user, const struct operand *weight, uint32_t matrix, const float *x,
                 uint32_t n);
    void *user;
};

struct backend_kind {
    const char *name;  /* "cpu" */
    uint32_t numerics; /* changes whenever the bits of any result do: saved states of other versions
                          are not used */
    bool uses_host_weights; /* reads weights from the host's mapping: they count once */
    uint32_t max_rows;      /* of a step; 0: any. Where there is a limit, every doubling up to it
                             * gets a recording, since narrow steps are bound by latency, not by
                             * arithmetic; and a prompt's steps are as wide as they can be, however
                             * often snapshots are wanted. */
    uint32_t prefill;       /* best rows per step for prompts, if memory allows */

    int (*open)(struct backend **out, const struct backend_options *options, struct err *err);
    void (*close)(struct backend *b); /* takes NULL */

    /* What load would take for these plans. */
    int (*predict)(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                   struct backend_memory *out, struct err *err);

    /* Bytes that load may take on the device. NULL: it takes the host's memory. */
    int (*available)(struct backend *b, uint64_t *bytes, struct err *err);

    /* Makes the regions, zeroes STATE, places the weights and records the plans, which share all
     * regions and must outlive the backend. `progress` (may be NULL) gets the weights' bytes.
     */
    int (*load)(struct backend *b, struct backend_weights weights, struct plan *const *plans,
                uint32_t n_plans, void (*progress)(void *user, uint64_t done, uint64_t total),
                void *user, struct err *err);

    /* The host's address of IO, in the layout of the plan that is submitted next. */
    uint8_t *(*io)(struct backend *b);

    /* wait returns SLUICE_ERR_CANCELLED for a step that stopped in the middle: what it should have
     * written, in STATE and IO, is then undefined. */
    int (*submit)(struct backend *b, uint32_t plan, struct err *err);
    int (*wait)(struct backend *b, struct err *err);

    /* plan_burst_steps steps as one submission: every output wants a token, is its segment's only
     * row, and feeds that token to the next step, which begins with the state of the cell that this
     * one stored to. The tokens picked are in IO's burst, (O, IO_BURST); the last one is in its
     * output. has_burst: whether a plan has such a recording. NULL: none has. */
    bool (*has_burst)(const struct backend *b, uint32_t plan);
    int (*submit_burst)(struct backend *b, uint32_t plan, struct err *err);

    /* Bytes of STATE to and from the host, and within STATE; between steps. */
    int (*read_state)(struct backend *b, uint64_t offset, uint64_t bytes, void *to,
                      struct err *err);
    int (*write_state)(struct backend *b, uint64_t offset, uint64_t bytes, const void *from,
                       struct err *err);
    /* Several at once, with little overhead. Copies do not overlap, and may still run when the call
     * returns; later calls and steps see them done. */
    int (*move_state)(struct backend *b, const struct backend_move *list, uint32_t n, bool is_in,
                      struct err *err);
    int (*copy_state)(struct backend *b, const struct backend_copy *list, uint32_t n,
                      struct err *err);

    /* Bytes of STATE to the host while steps run, called by one other thread: as they were when the
     * backend's own thread called `fence` with the same number, below BACKEND_FENCES. No step may
     * write them from then until read_at_fence has returned. Both NULL: transfers are done when a
     * call returns, and another thread may peek. */
    int (*fence)(struct backend *b, uint32_t number, struct err *err);
    int (*read_at_fence)(struct backend *b, uint32_t fence, const struct backend_move *list,
                         uint32_t n, struct err *err);

    /* Pins host memory that move_state will use often, which makes it faster. Unpin it before it is
     * freed. NULL: no difference. */
    int (*pin)(struct backend *b, void *memory, uint64_t bytes, struct err *err);
    void (*unpin)(struct backend *b, void *memory);

    void (*memory)(const struct backend *b, struct backend_memory *out); /* really allocated */
    void (*counters)(const struct backend *b, struct backend_counters *out);

    /* Runs the plan once with IO as it is and gives the seconds of every op; STATE changes as in
     * a step. */
    int (*time_ops)(struct backend *b, uint32_t plan, double *seconds, struct err *err);

    /* One op of the plan with IO as it is, for comparing backends; and bytes of SCRATCH or STATE,
     * as the op left them. */
    int (*run_op)(struct backend *b, uint32_t plan, uint32_t op, struct err *err);
    int (*peek)(struct backend *b, enum region region, uint64_t offset, uint64_t bytes, void *to,
                struct err *err);
    int (*poke)(struct backend *b, enum region region, uint64_t offset, uint64_t bytes,
                const void *from, struct err *err);

    /* Kernel i of an op of a plan, as recorded; false after the last. NULL: the backend has no
     * kernels. */
    bool (*op_kernel)(const struct backend *b, uint32_t plan, uint32_t op, uint32_t i,
                      struct backend_kernel *out);

    /* Bytes per second that the device reads from its memory, measured now. NULL: it uses the
     * host's memory. */
    int (*bandwidth)(struct backend *b, double *bytes_per_second, struct err *err);

    /* Floating-point operations per second of its fp16 tensor cores with f32 sums, measured now.
     * NULL: it has none. */
    int (*peak)(struct backend *b, double *flops_per_second, struct err *err);

    /* Sets the observer of the products of later steps, between steps; NULL: none. NULL: a backend
     * that cannot be observed. */
    void (*observe)(struct backend *b, const struct backend_observer *observer);

    /* One line about device i, false after the last. */
    bool (*device_line)(int i, char *out, size_t size);

    /* Whether "auto" may choose it: some drivers run on the CPU, which the CPU backend does better.
     * NULL: whenever it has a device. */
    bool (*is_worth_taking)(void);
};

#define BACKEND(kind) extern const struct backend_kind kind;
#include "backend/backends.def"
#undef BACKEND

/* Resolves "auto" to the name in SLUICE_BACKEND, if there is one. */
const char *backend_meant(const char *name);
/* By name; "auto" is the first that has a device and is worth taking. NULL: none of that name. */
const struct backend_kind *backend_find(const char *name);
const struct backend_kind *backend_at(int i); /* NULL after the last */
/* What is expected instead of a name that is not found: "auto, cuda, vulkan or cpu", in `out`,
 * which it returns. For a backend that this build was made without, it says so. */
const char *backend_names(const char *found, char *out, size_t size);

#endif
