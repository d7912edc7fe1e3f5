/* sluice.h - the public interface of Sluice.
 *
 * The only header a program needs. Three handles:
 *
 *   sluice_model    a file or folder: weights, tokenizer, template. Read-only.
 *   sluice_engine   a backend with its memory and its recordings, for one model.
 *   sluice_seq      one conversation in an engine.
 *
 * Open a model, an engine on it, a sequence in that; feed tokens, step, read the token picked or
 * the logits, feed again. examples/generate.c does so in 25 lines.
 *
 * Status. Every call that can fail returns SLUICE_OK (0) or a negative code below. The text of the
 * last failure belongs to the handle: sluice_model_error, sluice_engine_error (of the engine and
 * its sequences). A call that fails changes nothing, but for SLUICE_ERR_DEVICE.
 *
 * Ownership. Whoever opens, closes; every close takes NULL. A model outlives its engines and
 * texts. Closing an engine closes its sequences. What is handed out as const is borrowed. No other
 * pointer may be NULL unless its comment says so.
 *
 * Threads. Any number of threads may use a model at the same time, for opening engines too. An
 * engine and its sequences are used by one thread at a time; different engines are independent of
 * each other. A text belongs to one thread at a time.
 *
 * Memory. Nothing is allocated after sluice_engine_open by opening, feeding, stepping, forking or
 * rewinding sequences. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sluice_status {
    SLUICE_OK = 0,
    SLUICE_ERR_ARGUMENT = -1,    /* a value the caller gave makes no sense */
    SLUICE_ERR_IO = -2,          /* a file could not be opened, read or written */
    SLUICE_ERR_FORMAT = -3,      /* a file is damaged or is not what it claims to be */
    SLUICE_ERR_UNSUPPORTED = -4, /* well-formed, but nothing here can run it */
    SLUICE_ERR_MEMORY = -5,      /* memory ran out */
    SLUICE_ERR_DEVICE = -6,      /* an accelerator failed */
    SLUICE_ERR_CANCELLED = -7,   /* the caller asked to stop */
};

/* The version this library was built from, e.g. "0.1.0-12-gabc1234". Static; never NULL. */
const char *sluice_version(void);

/* What a status means, in two or three words. Static; never NULL. */
const char *sluice_status_text(int status);

/* ---- models -----------------------------------------------------------------------------------
 */

typedef struct sluice_model sluice_model;

/* Opens a GGUF file or a folder with safetensors and config.json. The weights are not touched yet.
 * On failure *out is still a handle, good for sluice_model_error and sluice_model_close, or NULL
 * when memory ran out. */
int sluice_model_open(sluice_model **out, const char *path);
void sluice_model_close(sluice_model *model); /* takes NULL */

/* Why the model did not open, or why it has no tokenizer; "" when all is well, and for NULL. Never
 * NULL; lives as long as the model. */
const char *sluice_model_error(const sluice_model *model);

struct sluice_facts {
    const char *architecture; /* "qwen35"; lives as long as the model */
    uint32_t layers, width;
    uint32_t context;    /* positions it was made for */
    int32_t n_logits;    /* values of a row of logits: the vocabulary and its padding */
    int32_t n_tokens;    /* ids that are tokens: 0 .. n_tokens - 1 */
    bool has_tokenizer;  /* false: only ids can be fed and read */
    bool adds_bos;       /* SLUICE_ENCODE_BOS puts `bos` first */
    int32_t bos, eos;    /* -1: none */
    uint64_t parameters; /* of the tensors in use */
};
void sluice_model_facts(const sluice_model *model, struct sluice_facts *out);

/* True when the model says that its answer ends with this token. */
bool sluice_token_is_end(const sluice_model *model, int32_t token);

enum sluice_encode_flags {
    SLUICE_ENCODE_SPECIAL = 1, /* control tokens written out in the text become their ids */
    SLUICE_ENCODE_BOS = 2,     /* BOS before and EOS behind, where the model wants them */
};

/* The ids of a text of any bytes. *n is how many they are, also when `capacity` is below that:
 * then nothing is written and SLUICE_ERR_ARGUMENT returned. tokens may be NULL when capacity is 0.
 */
int sluice_encode(const sluice_model *model, const char *text, size_t length, unsigned flags,
                  int32_t *tokens, size_t capacity, size_t *n);

/* The ids of a conversation, by the model's own template. `request`: a JSON object with "messages"
 * (an array of objects with "role" and "content", as in the OpenAI API), and, if wanted, "tools"
 * (an array), "add_generation_prompt" (true unless given: the ids end where the answer begins) and
 * "enable_thinking"; its other members are variables of the template. What messages say never
 * becomes a control token. *n and `capacity` as above. On failure `error` (may be NULL) holds one
 * line that says why. */
int sluice_encode_chat(const sluice_model *model, const char *request, int32_t *tokens,
                       size_t capacity, size_t *n, char *error, size_t error_size);

/* ---- text -------------------------------------------------------------------------------------
 *
 * Tokens back to text, as they come, and an eye on stop strings. */

typedef struct sluice_text sluice_text;

/* stops: n_stops strings, none of them empty, that end the text; copied. NULL when there are none.
 */
int sluice_text_open(sluice_text **out, const sluice_model *model, const char *const *stops,
                     size_t n_stops);
void sluice_text_close(sluice_text *text); /* takes NULL */

enum { SLUICE_TEXT_END = -1 };

/* The text that this token completes: whole characters, valid UTF-8, nothing that may turn out to
 * be a stop string. SLUICE_TEXT_END gives what was held back, and begins anew. *at lives until the
 * next call; it is not terminated. Control tokens give no text. */
int sluice_text_push(sluice_text *text, int32_t token, const char **at, size_t *length);

/* True once a stop string was complete. It, and what followed it, is not handed out. */
bool sluice_text_has_stopped(const sluice_text *text);

/* ---- engines ----------------------------------------------------------------------------------
 */

typedef struct sluice_engine sluice_engine;

/* Begin with sluice_engine_options_default. */
struct sluice_engine_options {
    const char *backend;  /* "auto", "cpu" ... */
    int device;           /* which, where the backend has several */
    int threads;          /* of the CPU backend; 0: one a processor */
    bool exact;           /* f32 activations throughout, and f32 attention memory */
    const char *kv_type;  /* attention memory: "f32", "f16", "q8_0", "q4_0" */
    int64_t context;      /* positions a sequence may have; 0: the file's; below 0: the file's, at
                           * most 8192 */
    uint32_t sequences;   /* open at the same time */
    uint32_t batch;       /* sequences that a step may answer */
    uint32_t prefill;     /* rows of the widest step */
    uint32_t all_outputs; /* rows that may hand out logits in one step, for SLUICE_WANT_ALL_LOGITS;
                           * 0: no more than batch */
    uint64_t snapshot_bytes; /* for going back without starting over */
    uint32_t snapshot_every; /* positions between two of them */
    uint64_t memory_limit;   /* bytes that may be taken; 0: what the machine has free */
    /* Hears of the weights' bytes while they are placed. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
};
struct sluice_engine_options sluice_engine_options_default(void);

/* Makes the plans and recordings of every width, checks that all of it fits into memory, loads.
 * On failure *out is as in sluice_model_open. `options` NULL: the defaults. */
int sluice_engine_open(sluice_engine **out, sluice_model *model,
                       const struct sluice_engine_options *options);
void sluice_engine_close(sluice_engine *engine); /* takes NULL */

/* What failed last in the engine or one of its sequences; "" when nothing did, and for NULL. Never
 * NULL; lives until the next failure. */
const char *sluice_engine_error(const sluice_engine *engine);

/* One step: one submission, one wait. All sequences with tokens that wait take part, as far as
 * there is room. *rows (may be NULL): tokens worked off; 0: none waited, and nothing was done. */
int sluice_engine_step(sluice_engine *engine, uint32_t *rows);

/* Several steps without the host between them: sequences that generate go on from their own tokens,
 * which then stand in sluice_seq_tokens, the last one in sluice_seq_token. *steps (may be NULL):
 * how many it was, at most n: several only where the backend can, every sequence that takes part
 * has just one token waiting and wants nothing but the next, and has room; otherwise 1, as
 * sluice_engine_step; 0 when nothing waited. Who finds that he wanted fewer goes back with
 * sluice_seq_rewind. */
int sluice_engine_burst(sluice_engine *engine, uint32_t n, uint32_t *steps);

/* Asks the engine to stop: the step, burst or sluice_seq_next that is running returns
 * SLUICE_ERR_CANCELLED, or the next one when none is running. May be called from any thread and
 * from a signal handler; takes NULL. The CPU backend stops in the middle of a step, within about 50
 * ms; CUDA finishes the step or burst it is in. What was fed stays fed: tokens of a step that was
 * cut off wait again, maybe more of them than before it, and going on gives the same bits as if
 * nothing had happened. The call that reports it clears it. */
void sluice_engine_cancel(sluice_engine *engine);

/* Bytes, exactly as allocated. */
struct sluice_memory {
    uint64_t weights;   /* as mapped */
    uint64_t state;     /* attention pages, delta-net states, counts */
    uint64_t snapshots; /* of state, for snapshots */
    uint64_t scratch, io;
    uint64_t packed, workspace; /* the backend's own: weights in another order, room to work */
    uint64_t driver;            /* of the device's driver, where that is known; not in total */
    uint64_t total;
};
void sluice_engine_memory(const sluice_engine *engine, struct sluice_memory *out);

/* Everything since open. submissions and waits are equal, and as many as steps; a burst is one. */
struct sluice_counters {
    uint64_t steps, rows;
    uint64_t submissions, waits;
    uint64_t host_copies, host_copy_bytes; /* of state, to and from the host, between steps */
    uint64_t allocations;                  /* blocks of memory the backend made, all in open */
    uint64_t snapshots_taken, snapshots_used;
};
void sluice_engine_counters(const sluice_engine *engine, struct sluice_counters *out);

struct sluice_choice {
    const char *backend; /* static */
    char device[128];
    const char *kv_type; /* static */
    uint32_t context, sequences, batch;
};
/* What was chosen, for a line to the user. */
void sluice_engine_choice(const sluice_engine *engine, struct sluice_choice *out);

/* ---- sequences --------------------------------------------------------------------------------
 */

typedef struct sluice_seq sluice_seq;

/* An empty sequence. SLUICE_ERR_ARGUMENT when all `sequences` of the engine are open. *out is NULL
 * on failure. */
int sluice_seq_open(sluice_seq **out, sluice_engine *engine);
void sluice_seq_close(sluice_seq *seq); /* takes NULL */

/* Appends tokens, which wait for the next steps. All of them or none: SLUICE_ERR_ARGUMENT for a
 * token outside the vocabulary and for more than the context holds. */
int sluice_seq_feed(sluice_seq *seq, const int32_t *tokens, size_t n);

/* The tokens fed so far, and how many of them wait. Pointers may be NULL; *tokens lives until the
 * next call with this sequence. */
void sluice_seq_tokens(const sluice_seq *seq, const int32_t **tokens, uint32_t *n,
                       uint32_t *waiting);

enum sluice_want {
    SLUICE_WANT_TOKEN = 1,      /* a token is picked behind the last token fed (the default) */
    SLUICE_WANT_LOGITS = 2,     /* the logits behind the last token fed */
    SLUICE_WANT_ALL_LOGITS = 4, /* the logits behind every token */
};
/* What steps give from now on. */
int sluice_seq_want(sluice_seq *seq, unsigned wants);

/* The token picked behind the last one fed; -1 when there is none: tokens wait, none was fed, or
 * none was wanted. To go on, feed it (or another). */
int32_t sluice_seq_token(const sluice_seq *seq);

/* The short way: feeds the token picked last, if there is one, steps until the next is picked, and
 * gives it. SLUICE_ERR_ARGUMENT when there is nothing to go on from. */
int sluice_seq_next(sluice_seq *seq, int32_t *token);

/* The logits of the last step: *rows of n_logits values, the last of them behind the newest token
 * worked off; 0 when the sequence took no part or wanted none. *at lives until the next step. */
int sluice_seq_logits(const sluice_seq *seq, const float **at, uint32_t *rows);

struct sluice_bias {
    int32_t token;
    float bias; /* added to its logit */
};

enum { SLUICE_MAX_BIASES = 256 };

/* Begin with sluice_sampling_default. The random numbers depend on seed and position alone. */
struct sluice_sampling {
    float temperature; /* 0: the best token */
    uint32_t top_k;    /* 0: all */
    float top_p, min_p;
    float repeat_penalty; /* 1: none */
    float presence_penalty, frequency_penalty;
    uint64_t seed;
    const struct sluice_bias *biases; /* at most SLUICE_MAX_BIASES; copied; NULL when none */
    size_t n_biases;
};
/* What the model's file recommends, and temperature 0.8, top_p 0.95 where it is silent. */
struct sluice_sampling sluice_sampling_default(const sluice_model *model);

/* How tokens are picked from now on. SLUICE_ERR_ARGUMENT names a value that makes no sense. */
int sluice_seq_set_sampling(sluice_seq *seq, const struct sluice_sampling *sampling);

/* A second sequence with the same history, sampling and token. Attention memory is shared. */
int sluice_seq_fork(sluice_seq **out, const sluice_seq *seq);

/* Keeps the first n tokens: the sequence is as if no more had been fed. Some of them may wait
 * again, to be worked off a second time, with the same bits. */
int sluice_seq_rewind(sluice_seq *seq, uint32_t n);

/* The whole sequence as a file, which appears complete or not at all. */
int sluice_seq_save(const sluice_seq *seq, const char *path);

/* A sequence from such a file, with default sampling. SLUICE_ERR_FORMAT for a damaged file, one of
 * another model or of other attention memory; then nothing changes and *out is NULL. */
int sluice_seq_load(sluice_seq **out, sluice_engine *engine, const char *path);

#ifdef __cplusplus
}
#endif
#endif
