/* engine.h - the structs of the handles of sluice.h, and what the files of this folder share.
 *
 * engine.c opens: options to plans, plans to a backend, all of it checked against the available
 * memory. batch.c runs a step, draft.c one of the model's draft block. state.c owns the memory of
 * sequences, resume.c takes over what is cached, payload.c moves it between tiers; pages.c and
 * cache.c track who uses which part of it, cache_evict.c who goes first; cache_tiers.c copies
 * cached state to the tiers below the device, which tiers.c opens. save.c writes and reads
 * sequences as files, sampler.c fills in how tokens are picked, text.c turns them into text;
 * api_model.c, api_engine.c and api_seq.c are the public interface.
 *
 * Threads. An engine and its sequences are used by one thread at a time; `cancel` may be set by
 * any. Several engines may share a model: its mutex guards loading.
 *
 * Memory. Tables come from the engine's arena, at open. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "engine/state.h"
#include "model/model.h"
#include "sluice.h"
#include "text/tokenizer.h"

struct sluice_model {
    struct model *model;
    struct tokenizer *tokenizer; /* NULL: none, err says why */
    struct err err;
    bool is_open;
    pthread_mutex_t loading; /* engines of several threads may want the weights at once */
    int32_t n_tokens;
    uint64_t weight_bytes; /* of the span as it will be mapped */
};

/* The options with every default filled in. */
struct setup {
    uint32_t context, pages_per_seq;
    uint32_t n_pages; /* of all sequences together */
    uint32_t n_seqs, batch, prefill;
    uint32_t outputs;      /* rows of a step that may go through the LM head, and ... */
    uint32_t drafts;       /* ... this many drafted ones besides */
    uint32_t block_drafts; /* tokens that the draft block drafts at most; 0: it is not loaded */
    uint32_t block_vocab;  /* the first tokens of the vocabulary, which it drafts from where the
                            * text has few others; 0: always from all */
    uint32_t n_snapshots, snapshot_every; /* cells for snapshots; tokens between regular ones */
    uint64_t host_bytes, disk_bytes;      /* of the tiers below the device */
    uint32_t n_host, n_disk;              /* objects that they can hold */
    enum dtype kv_type;
    bool exact;
    uint32_t n_taps; /* of a plan; its last one is the hidden state */
};

/* A handle. Closed ones are reused as late as possible, so that using one after close is detected.
 */
struct sluice_seq {
    struct sluice_engine *engine;
    bool is_open;
    uint64_t closed_at; /* count of handles closed; 0: never */
    uint32_t slot;      /* its number in state */
    unsigned wants;
    struct sluice_sampling sampling; /* its biases are those below */
    struct sluice_bias biases[SLUICE_MAX_BIASES];
    uint32_t n_pick; /* ids below this may be picked */
    bool has_mask;   /* only tokens that engine_mask of its slot allows */
    bool keeps_mask; /* the mask stays valid after the tokens of engine_keeps */
    int32_t token;   /* picked after the first picked_at tokens; -1: none */
    uint32_t picked_at;
    bool is_given; /* sluice_seq_next handed this token out */
    /* Of the engine's last step. */
    uint64_t logits_step;
    uint32_t first_output, n_logits, n_hidden;
};

/* A sequence's part of a step. */
struct part {
    uint32_t slot, rows, outputs;
    uint32_t drafted;      /* drafts, which are the last of its rows and outputs */
    uint32_t kept;         /* drafts that were right */
    uint32_t first_change; /* entries of its page table change from this one on */
};

enum { MAX_PLANS = 40, SPARE_HANDLES = 64 };

struct sluice_engine {
    struct sluice_model *model;
    struct arena arena;
    struct err err;
    struct setup setup;
    const struct backend_kind *kind;
    struct backend *backend;
    int device;
    struct plan *plans[MAX_PLANS];   /* by rows, ascending; after them those of the draft block, and
                                      * its own again, which pick from setup.block_vocab tokens */
    uint32_t n_plans, n_draft_plans; /* the latter: of the draft block, both kinds */
    struct backend_memory predicted;
    bool is_loaded;
    atomic_bool cancel; /* requested; cleared by the call that reports it */
    struct state state;
    struct host_tier host; /* the tiers below the device; zeroed and NULL: none */
    struct disk_tier *disk;
    struct disk_fetch *fetch;
    bool is_pinned;            /* the host tier's memory is */
    int32_t ends[IO_MAX_ENDS]; /* tokens that end an answer */
    uint32_t n_ends;
    struct sluice_seq *handles; /* (n_seqs + SPARE_HANDLES) */
    struct sluice_seq **seqs;   /* (n_seqs) the handle of an open slot */
    uint32_t *masks; /* (n_seqs, 2, mask_words): the mask; tokens after which it stays valid */
    uint32_t mask_words;
    uint64_t n_closed;
    /* The running or last step. */
    struct part *parts; /* (n_seqs) */
    uint32_t n_parts, last_plan;
    uint32_t n_starved;
    uint32_t first_slot; /* whose turn it is to be first; round robin */
    uint64_t n_steps, n_rows, n_drafted, n_kept, n_draft_steps;
    uint64_t n_resumed, n_hits, n_reused; /* see struct sluice_counters */
};

/* ---- engine.c ----------------------------------------------------------------------------- */

/* Plans, backend and the memory they will take; nothing is loaded. has_taps: every output row
 * hands out the residual after each layer. *out must be closed also on failure. */
int engine_prepare(struct sluice_engine **out, struct sluice_model *model,
                   const struct sluice_engine_options *options, bool has_taps, struct err *err);
/* Refuses what does not fit, naming the options that would; then loads. */
int engine_load(struct sluice_engine *e, const struct sluice_engine_options *options,
                struct err *err);
void engine_close(struct sluice_engine *e); /* takes NULL */

struct sluice_memory engine_memory_of(const struct sluice_engine *e,
                                      const struct backend_memory *m);
/* The plan that a step of this many rows and outputs runs; and one of the draft block, which picks
 * from all tokens or from setup.block_vocab. */
uint32_t engine_plan_for(const struct sluice_engine *e, uint32_t rows, uint32_t outputs);
uint32_t engine_draft_plan_for(const struct sluice_engine *e, uint32_t rows, bool from_all);

static inline uint32_t engine_n_plans(const struct sluice_engine *e) {
    return e->n_plans + e->n_draft_plans;
}

/* A place in IO as the host sees it. */
static inline void *engine_io(const struct sluice_engine *e, uint64_t offset) {
    return e->kind->io(e->backend) + offset;
}

/* The mask of a slot's sequence, where that has one. */
static inline uint32_t *engine_mask(const struct sluice_engine *e, uint32_t slot) {
    return e->masks + 2 * (size_t)slot * e->mask_words;
}

/* The tokens after which the mask stays valid, where known. */
static inline uint32_t *engine_keeps(const struct sluice_engine *e, uint32_t slot) {
    return engine_mask(e, slot) + e->mask_words;
}

/* ---- api_engine.c ------------------------------------------------------------------------- */

/* False for NULL, and for an engine that failed to open, whose error has its text already. */
bool api_is_loaded(const struct sluice_engine *e);
/* Refuses NULL for a pointer that must not be; `name` is the argument's. */
int api_check_pointer(struct sluice_engine *e, const void *pointer, const char *name);

/* ---- tiers.c ------------------------------------------------------------------------------ */

/* How large the tiers below the device are, for objects of these sizes. */
int tiers_plan(struct setup *s, const struct sluice_engine_options *options,
               const struct state_layout *layout, struct err *err);
/* The model is loaded. Also finds what an earlier run left in the folder. */
int tiers_open(struct sluice_engine *e, const struct sluice_engine_options *options,
               struct err *err);
/* Writes what is cached to the folder, if there is one. Takes engines that have no tiers. */
void tiers_close(struct sluice_engine *e);

/* ---- fit.c -------------------------------------------------------------------------------- */

/* Bytes that the engine may take on its device: what is free, or what the options allow. */
int fit_limit(const struct sluice_engine *e, const struct sluice_engine_options *options,
              uint64_t *bytes, struct err *err);
enum { FIT_ADVICE = 6 };
struct fit {
    uint64_t total;              /* what the engine takes on its device ... */
    uint64_t weights;            /* ... and of it for weights */
    uint64_t free;               /* of fit_limit; UINT64_MAX: unknown */
    uint64_t cache_free;         /* of host memory, for --cache-bytes */
    uint64_t disk, disk_free;    /* of weights_dir: what goes there, and what is free */
    bool fits, cache_fits;       /* all three: it can be loaded */
    bool has_room;               /* on that disk */
    char advice[FIT_ADVICE][40]; /* options of which each would make it fit by itself, "-c 4096" */
    uint32_t n_advice;
};
int fit_find(struct fit *out, const struct sluice_engine *e,
             const struct sluice_engine_options *options, struct err *err);
/* The advice as one line, "-c 4096, --kv q8_0". Returns out. */
const char *fit_advice(const struct fit *f, char *out, size_t size);
bool engine_fits(const struct sluice_engine *e, const struct sluice_engine_options *options);
/* It does not fit, or only with weights on disk that nobody asked to have there. */
bool fit_is_short(const struct sluice_engine *e, const struct sluice_engine_options *options);
/* Options for many sequences with which e's model fits, and leaves an eighth of what is free: fewer
 * pages of the KV cache, but all that one sequence can fill, and if `may_batch_less` fewer
 * sequences. Weights go to disk only where there are none without that; sequences and the cache
 * then take an eighth each at most, as far as may be. False: there are none. */
bool fit_shrink(const struct sluice_engine *e, struct sluice_engine_options *options,
                bool may_batch_less);
/* An error for what does not fit, with the advice. */
int fit_check(const struct sluice_engine *e, const struct sluice_engine_options *options,
              struct err *err);

/* ---- batch.c ------------------------------------------------------------------------------ */

/* One step; *rows as in sluice_engine_step. seconds (may be NULL): of every op of the plan run,
 * e->last_plan; then the step is timed op by op. */
int batch_step(struct sluice_engine *e, uint32_t *rows, double *seconds, struct err *err);
/* The two halves of a step, for a caller that runs e->last_plan itself: IO filled in, results
 * taken. No rows: nothing waits, and there is no step. */
int batch_begin(struct sluice_engine *e, uint32_t *rows, struct err *err);
int batch_end(struct sluice_engine *e, struct err *err);
/* Up to n steps as one submission: *steps says how many it was; 0: nothing waits. */
int batch_burst(struct sluice_engine *e, uint32_t n, uint32_t *steps, struct err *err);
/* SLUICE_ERR_CANCELLED when cancellation was requested, which is cleared. */
int batch_check_cancel(struct sluice_engine *e, struct err *err);
/* Tap `number` of the last output row of the last step. */
const float *batch_tap(const struct sluice_engine *e, const struct sluice_seq *seq,
                       uint32_t number);

/* ---- draft.c ------------------------------------------------------------------------------ */

/* The drafts of the next step: as many of these tokens as there is room for, up to the first that
 * ends an answer. tokens may be NULL when n is 0. */
void draft_set(struct sluice_seq *seq, const int32_t *tokens, size_t n);
/* Drafts n tokens, 1 to block_drafts, by the draft block, for those of the sequences that can. */
int draft_step(struct sluice_engine *e, struct sluice_seq *const *seqs, size_t n_seqs, uint32_t n,
               struct err *err);

/* ---- sampler.c ---------------------------------------------------------------------------- */

struct io_output;
struct io_bias;
void sampler_defaults(struct sluice_sampling *s, const struct model *m); /* m may be NULL */
int sampler_check(const struct sluice_sampling *s, int32_t n_tokens, struct err *err);
/* How the token of an output row is picked; returns how many biases it wrote. */
uint32_t sampler_fill(const struct sluice_seq *seq, struct io_output *out, struct io_bias *biases);

/* ---- save.c ------------------------------------------------------------------------------- */

/* Of the model: shapes and types of all weights in order of use, and the first bytes of each. The
 * weights must be loaded. */
uint64_t save_fingerprint(const struct sluice_engine *e);
int save_write(const struct sluice_seq *seq, const char *path, struct err *err);
/* What a file has besides the content of a slot. */
struct saved {
    uint32_t slot;
    int32_t token; /* picked after the last token, -1: none */
    bool is_given;
};
/* *out is set when it succeeds. */
int save_read(struct sluice_engine *e, const char *path, struct saved *out, struct err *err);

#endif
