/* open.h - the options that verbs with an engine share, and opening a model and an engine with
 * them. */
#ifndef CMD_OPEN_H
#define CMD_OPEN_H

#include <limits.h>

#include "base/err.h"
#include "cmd/opts.h"
#include "cmd/progress.h"
#include "sluice.h"

struct ids; /* text/tokenizer.h */

/* Filled by opts_parse; begin with common_default. */
struct common {
    const char *model, *backend, *kv;
    const char *device; /* a number, or part of a name; NULL: the first */
    int threads, context, batch, draft, mtp;
    bool exact, as_json;
    /* Caches of conversations. UINT64_MAX: not given. */
    const char *cache_dir;
    uint64_t kv_bytes, snapshot_bytes, cache_bytes, cache_dir_bytes;
    /* Weights on disk; as above. */
    const char *weights_dir;
    uint64_t weights_bytes;
    /* NaN and -1: not given. */
    float temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int top_k;
    int64_t seed;
    bool ignore_eos;
    struct opt_list stops, logit_biases;
    /* The biases and --ignore-eos, resolved for the model by common_open_model. */
    struct sluice_bias biases[SLUICE_MAX_BIASES];
    size_t n_biases;
};

struct common common_default(void);
/* What verbs that generate text set --draft to; what --mtp means if it is not given, and its
 * maximum. */
enum { USUAL_DRAFT = 7, MTP_NOT_GIVEN = INT_MIN, USUAL_MTP = 3, MAX_MTP = 8 };

enum option_group {
    WITH_CPU = 1,       /* -m -t --kv --exact --weights-dir --weights-bytes */
    WITH_DEVICE = 64,   /* --backend --device */
    WITH_CONTEXT = 128, /* -c */
    WITH_ENGINE = WITH_CPU | WITH_DEVICE | WITH_CONTEXT,
    WITH_SAMPLING = 2, /* --temp ... --seed, --logit-bias, --ignore-eos */
    WITH_STOP = 4,
    WITH_JSON = 8,
    WITH_DRAFT = 32, /* --draft --mtp */
    WITH_CACHE = 16, /* --kv-bytes --snapshot-bytes --cache-bytes --cache-dir --cache-dir-bytes */
};
enum { MAX_COMMON_OPTS = 32 };

/* Appends the rows of the groups to a table that has n; returns how many it has then. */
int common_opts(struct opt *table, int n, struct common *c, unsigned groups);

/* Checks the values; OPTS_GO_ON, or the exit status after one line. With --json there are no lines
 * for people from now on, unless -v asked for them. */
int common_check(const struct common *c, const char *verb);

/* The engine's options from the command line's. Snapshots of recurrent state are on by default if
 * there is a cache in host memory or on disk. */
struct sluice_engine_options common_engine(const struct common *c);
/* The model's own sampling parameters, overridden by the command line. Without a seed a random one
 * is drawn. The biases are those of *c. */
struct sluice_sampling common_sampling(const struct common *c, const sluice_model *model);

/* Creates the folder of --cache-dir if need be; the exit status when it cannot be used. */
int common_make_cache_dir(const struct common *c);
/* Open a model; and an engine, with a progress bar. On failure the result is NULL, one line is on
 * stderr, and the exit status is returned; 0: success. `taps`: see engine_prepare. */
int common_open_model(struct common *c, sluice_model **model);
int common_open_engine(sluice_model *model, const struct sluice_engine_options *options, bool taps,
                       sluice_engine **engine);
/* The same, with less than the options say where that does not fit (fit_shrink). */
enum shrink { SHRINK_NOTHING, SHRINK_PAGES, SHRINK_PAGES_AND_BATCH };
int common_open_engine_shrunk(sluice_model *model, const struct sluice_engine_options *options,
                              bool taps, enum shrink shrink, sluice_engine **engine);

/* Checks --threads of a verb that opens no engine, says where they are more than the processors
 * that this process may use, and makes 0 one for each of them. OPTS_GO_ON, or the exit status. */
int threads_check(const char *verb, int *threads);

/* A whole text as tokens, without BOS; "-" is standard input. Fewer than a window of them are an
 * error. */
int common_encode_file(const sluice_model *model, const char *path, size_t window, struct ids *out);
/* Checks --window, --windows and --context, which means the window, too: verbs that read a text in
 * windows have no other use for a context. WINDOW_NOT_GIVEN stands for an option that was not
 * given; *window is set to what is meant. OPTS_GO_ON, or the exit status after one line. */
enum { WINDOW_NOT_GIVEN = INT_MIN };
int common_check_windows(const char *verb, int *window, int max, int context);
/* Windows of a text, at most `max`; 0: all. An incomplete one at the end is dropped. */
size_t common_count_windows(const struct ids *ids, int window, int max);
/* Calls `on` with each of them, under a bar of that label; ends with the first exit status that is
 * not 0, and returns it. */
int common_each_window(const struct ids *ids, int window, int max, const char *label,
                       int (*on)(void *user, const int32_t *tokens, uint32_t n), void *user);

/* How many rows may hand out logits in one step, for the verbs that want all of them: as many as
 * `useful` and a reasonable amount of memory allow. */
uint32_t common_outputs(const sluice_model *model, uint32_t useful);

/* One short line on stderr: model, device, context; with -v a second one: backend, kv, memory. */
void common_announce(const struct common *c, const sluice_model *model,
                     const sluice_engine *engine);

/* sluice_engine_burst; a request to stop that is older than the last interrupt_reset does not
 * count. */
int common_burst(sluice_engine *engine, uint32_t n, uint32_t *steps);

/* Steps until nothing waits, with a progress bar (`what` NULL: without). EXIT_INTERRUPTED after a
 * request to stop; then tokens may still wait. */
int common_work_off(sluice_engine *engine, const char *what, uint64_t tokens);

/* Bytes of weights and state that a step of this many rows touches at that depth. */
uint64_t common_step_bytes(const sluice_engine *engine, uint32_t rows, uint32_t depth);

/* GB/s that the engine's device reads from its memory, measured now: the limit of its steps. The
 * CPU reads with this many threads, 0: one per processor. Returns 0 when memory ran out. */
double common_limit(const sluice_engine *engine, int threads);
/* TFLOP/s of its fp16 tensor cores, measured now; 0: it has none. */
double common_peak(const sluice_engine *engine);

/* Reports why a call on the engine failed; returns the exit status. */
int fail_engine(const sluice_engine *engine);

#endif
