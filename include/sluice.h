/* sluice.h - the public interface of Sluice.
 *
 * The only header a program needs. Three handles:
 *
 *   sluice_model    a file or folder: weights, tokenizer, chat template. Read-only.
 *   sluice_engine   one model on one backend, with all the memory it needs.
 *   sluice_seq      a sequence of tokens (a conversation) in an engine.
 *
 * Open a model, an engine for it and a sequence in the engine; feed tokens, step, read the sampled
 * token or the logits, feed again. examples/generate.c does so in 25 lines.
 *
 * Status. Every call that can fail returns SLUICE_OK (0) or a negative code below. The text of the
 * last failure is kept with the handle: sluice_model_error, sluice_engine_error (for the engine and
 * its sequences). A call that fails changes nothing, except after SLUICE_ERR_DEVICE; for
 * SLUICE_ERR_CANCELLED see sluice_engine_cancel.
 *
 * Ownership. Whoever opens a handle closes it; every close takes NULL. A model must outlive its
 * engines and texts. Closing an engine closes its sequences. What is returned as a const pointer is
 * borrowed. Pointers must not be NULL unless a comment allows it: a call that gets NULL, or a
 * sequence that was closed, returns SLUICE_ERR_ARGUMENT (or nothing, zeros, -1 or false where it
 * returns no status). A handle whose engine was closed is gone; that is not detected, nor is a
 * closed sequence after 64 others were opened.
 *
 * Threads. Any number of threads may use a model at the same time, also to open engines. An engine
 * and its sequences are used by one thread at a time, but for sluice_engine_cancel; different
 * engines are independent of each other. A text belongs to one thread at a time.
 *
 * Memory. Nothing is allocated after sluice_engine_open by opening, feeding, stepping, resuming,
 * forking or rewinding sequences. */
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
    SLUICE_ERR_ARGUMENT = -1,    /* a value from the caller is invalid */
    SLUICE_ERR_IO = -2,          /* a file could not be opened, read or written */
    SLUICE_ERR_FORMAT = -3,      /* a file is damaged or is not what it claims to be */
    SLUICE_ERR_UNSUPPORTED = -4, /* well-formed, but not supported */
    SLUICE_ERR_MEMORY = -5,      /* memory ran out */
    SLUICE_ERR_DEVICE = -6,      /* an accelerator failed */
    SLUICE_ERR_CANCELLED = -7,   /* the caller asked to stop */
};

/* The version this library was built from, e.g. "0.1.0-12-gabc1234". Static; never NULL. */
const char *sluice_version(void);

/* What a status means, in two or three words. Static; never NULL. */
const char *sluice_status_text(int status);

/* ---- models ------------------------------------------------------------------------------- */

typedef struct sluice_model sluice_model;

/* Opens a GGUF file or a folder with safetensors and config.json. The weights are not read yet. On
 * failure *out is still a handle, for sluice_model_error and sluice_model_close only, or NULL when
 * memory ran out. */
int sluice_model_open(sluice_model **out, const char *path);
void sluice_model_close(sluice_model *model); /* takes NULL */

/* Why the model did not open, or why it has no tokenizer; "" when all is well, and for NULL. Never
 * NULL; lives as long as the model. */
const char *sluice_model_error(const sluice_model *model);

/* How the hidden states of a text become one vector, as its file says. */
enum sluice_pooling {
    SLUICE_POOL_MEAN = 1, /* their mean */
    SLUICE_POOL_FIRST = 2,
    SLUICE_POOL_LAST = 3, /* the last one: also where the file does not say */
    SLUICE_POOL_RANK = 4, /* by a classifier, which is not supported */
};

struct sluice_facts {
    const char *architecture; /* "qwen35"; lives as long as the model */
    uint32_t layers, width;
    uint32_t context;    /* positions it was trained for */
    int32_t n_logits;    /* values in a row of logits: the vocabulary and its padding */
    int32_t n_tokens;    /* ids that are tokens: 0 .. n_tokens - 1 */
    bool has_tokenizer;  /* false: there are only ids, no text */
    bool adds_bos;       /* SLUICE_ENCODE_BOS puts `bos` first */
    int32_t bos, eos;    /* -1: none */
    uint64_t parameters; /* of all tensors */
    uint64_t bytes;      /* of all tensors in their files */
    const char *type;    /* "Q4_K_M", "BF16"; static */
    enum sluice_pooling pooling;
    bool has_draft_block; /* for multi-token prediction: see sluice_engine_draft */
};
void sluice_model_facts(const sluice_model *model, struct sluice_facts *out);

/* Its chat template in Jinja: not terminated, possibly with NUL bytes. Length 0: it has none. Never
 * NULL; lives as long as the model. */
const char *sluice_model_template(const sluice_model *model, size_t *length);

/* True for tokens that end an answer (EOS, end of turn). */
bool sluice_token_is_end(const sluice_model *model, int32_t token);

/* The bytes of a token's text in an answer: possibly part of a character, possibly with NUL bytes;
 * not terminated. Length 0 for control tokens, for tokens that no text is encoded to, and for ids
 * outside the vocabulary. Never NULL; lives as long as the model. */
const char *sluice_token_text(const sluice_model *model, int32_t token, size_t *length);

enum sluice_encode_flags {
    SLUICE_ENCODE_SPECIAL = 1, /* control tokens written as text ("<|im_end|>") become their ids */
    SLUICE_ENCODE_BOS = 2,     /* adds BOS before and EOS after, where the model wants them */
};

/* Text (any bytes) to token ids. *n is their number, even if that exceeds `capacity`: then none are
 * written and SLUICE_ERR_ARGUMENT is returned. `text` may be NULL when length is 0, `tokens` when
 * capacity is 0. */
int sluice_encode(const sluice_model *model, const char *text, size_t length, unsigned flags,
                  int32_t *tokens, size_t capacity, size_t *n);

/* A conversation to token ids, by the model's own chat template. `request`: a JSON object with
 * "messages" (an array of objects with "role" and "content", as in the OpenAI API) and optionally
 * "tools" (an array), "add_generation_prompt" (default true: the ids end where the answer begins),
 * "enable_thinking" and "chat_template" (a Jinja template in place of the model's own); other
 * members are passed to the template as variables. The text of a message never becomes a control
 * token. *n and `capacity` as above. On failure `error` (may be NULL) holds one line that says why.
 * Templates are programs: one that takes more than about two seconds of processor time, or too much
 * memory, is SLUICE_ERR_FORMAT, so the call always ends; sluice_engine_cancel has no effect on it.
 * One that nests deeply takes up to 256 KB of the calling thread's stack. */
int sluice_encode_chat(const sluice_model *model, const char *request, int32_t *tokens,
                       size_t capacity, size_t *n, char *error, size_t error_size);

/* ---- text -------------------------------------------------------------------------------------
 *
 * Token ids back to text, one at a time, until a stop string. */

typedef struct sluice_text sluice_text;

/* stops: n_stops strings that end the text, none of them empty; copied. May be NULL when n_stops is
 * 0. */
int sluice_text_open(sluice_text **out, const sluice_model *model, const char *const *stops,
                     size_t n_stops);
void sluice_text_close(sluice_text *text); /* takes NULL */

/* Whether control tokens give the text that they are written as ("<|im_end|>"); at first they give
 * none. */
void sluice_text_show_control(sluice_text *text, bool is_shown); /* takes NULL */

enum { SLUICE_TEXT_END = -1 };

/* The text that this token completes: whole UTF-8 characters, and nothing that may still turn out
 * to be a stop string. SLUICE_TEXT_END returns what was held back and starts over. *at is valid
 * until the next call; it is not NUL-terminated. */
int sluice_text_push(sluice_text *text, int32_t token, const char **at, size_t *length);

/* True after a stop string, which is not part of the text, nor is what follows it. */
bool sluice_text_has_stopped(const sluice_text *text);

/* ---- engines ------------------------------------------------------------------------------ */

typedef struct sluice_engine sluice_engine;

/* Begin with sluice_engine_options_default. */
struct sluice_engine_options {
    const char *backend; /* "auto", "cpu", "cuda", "vulkan"; NULL: "auto", which SLUICE_BACKEND in
                          * the environment may set. */
    int device;          /* number of the device, where the backend has several */
    int threads;         /* of the CPU backend, at most 1024; 0: one per processor */
    bool exact;          /* f32 activations and f32 KV cache */
    const char *kv_type; /* KV cache: "f32", "f16", "q8_0", "q4_0"; NULL: "f16" */
    uint64_t kv_bytes;   /* memory for the KV cache, which sequences take page by page as they grow;
                          * 0: what all of them at full length need */
    int64_t context; /* maximum tokens in a sequence, up to 2^24; 0: the model's context; below 0:
                      * the model's, but at most 8192 */
    uint32_t sequences; /* maximum sequences open at the same time, 1 to 4096 */
    uint32_t batch;     /* maximum sequences that get a token in one step, 1 to 4096 */
    uint32_t prefill; /* maximum tokens in one step, 1 to 4096; 0: what is best for the backend and
                       * takes no more than an eighth of the memory that is free */
    uint32_t all_outputs; /* maximum rows of logits in one step: SLUICE_WANT_ALL_LOGITS; 0: batch */
    uint32_t drafts; /* maximum drafted tokens in one step, for sluice_seq_draft, 0 to 256: each
                      * takes a recurrent state and a row of logits; 0, the default: none */
    uint32_t block_drafts; /* maximum tokens that sluice_engine_draft drafts for a sequence, 0 to 8,
                            * where the model has a block for that; 0, the default: the block is not
                            * loaded. It needs `drafts`. */
    /* Where the texts have few other tokens the block drafts from this many, the vocabulary's first
     * ones, and reads less of the LM head. 0, the default: 98304 of at least twice as many. */
    uint32_t block_vocab;
    bool hidden; /* steps hand out hidden states, for SLUICE_WANT_HIDDEN; on GPUs there are no
                  * bursts then */
    uint64_t snapshot_bytes; /* memory for snapshots of recurrent state, which sluice_seq_resume and
                              * sluice_seq_rewind continue from; unused by plain transformers */
    uint32_t snapshot_every; /* tokens between two snapshots; 0: as many as take as much KV cache as
                              * a snapshot, at least 256 */
    uint64_t cache_bytes; /* host memory for state of earlier conversations that does not fit on the
                           * device; 0: none */
    const char *cache_dir;    /* folder for the same, which outlives the engine: created if need be,
                               * for the owner alone; safe to delete. NULL: none */
    uint64_t cache_dir_bytes; /* maximum bytes in it */
    uint64_t memory_limit;    /* maximum bytes to allocate; 0: what the machine has free */
    const char *weights_dir;  /* of the CPU backend: folder on a disk, for weights of a model that
                               * is larger than memory. They are in a file there without a name,
                               * and are read again when they are needed. NULL: none */
    uint64_t weights_bytes;   /* maximum bytes of weights that are in memory all the time, with
                               * weights_dir; 0: as many as fit */
    /* Called while weights are loaded, with the bytes done so far. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
};
struct sluice_engine_options sluice_engine_options_default(void);

/* Checks that everything fits into memory, then loads the model and prepares steps of every width.
 * On failure *out is still a handle, for sluice_engine_error and sluice_engine_close only, or NULL
 * when memory ran out. `options` NULL: the defaults. */
int sluice_engine_open(sluice_engine **out, sluice_model *model,
                       const struct sluice_engine_options *options);
void sluice_engine_close(sluice_engine *engine); /* takes NULL */

/* The last failure of the engine or one of its sequences; "" when there was none, and for NULL.
 * Never NULL; valid until the next failure. */
const char *sluice_engine_error(const sluice_engine *engine);

/* Runs the model once over waiting tokens of all sequences, as many as fit into `prefill` and
 * `batch`. *rows (may be NULL): how many tokens were processed, drafted ones included; 0: none
 * waited.
 * A sequence that finds no free page of the KV cache is left out and loses nothing (see
 * sluice_seq_is_starved); SLUICE_ERR_MEMORY when no other could run either. SLUICE_ERR_FORMAT:
 * logits are NaN or infinite, which means damaged weights. */
int sluice_engine_step(sluice_engine *engine, uint32_t *rows);

/* Up to n steps in one submission: each sequence feeds itself the tokens it samples. They are then
 * in sluice_seq_tokens, but for the last, which is in sluice_seq_token. *steps (may be NULL): how
 * many steps were made. That is 1, as in sluice_engine_step, unless the backend can do more and
 * every sequence with waiting tokens has exactly one, wants SLUICE_WANT_TOKEN alone and has room in
 * its context; 0 when no token waited. A sequence that samples an end token (sluice_token_is_end)
 * stops there: that token is in sluice_seq_token. */
int sluice_engine_burst(sluice_engine *engine, uint32_t n, uint32_t *steps);

/* Makes the running step, burst or sluice_seq_next return SLUICE_ERR_CANCELLED, or the next one
 * when none is running. May be called from any thread and from a signal handler; takes NULL. The
 * CPU backend stops in the middle of a step, within about 50 ms; GPUs finish their step or burst,
 * and the next call reports it. The call that reports a cancellation clears it.
 *
 * All tokens fed are still there afterwards, also one that sluice_seq_next had fed. Those of the
 * interrupted step wait again, and maybe some before them; the logits of the step before it are
 * gone. Continuing gives the same bits as if nothing had happened. */
void sluice_engine_cancel(sluice_engine *engine);

/* Bytes, exactly as allocated. */
struct sluice_memory {
    uint64_t weights;   /* as mapped, without those that are packed and whose pages are released */
    uint64_t state;     /* KV cache, recurrent state, token counts */
    uint64_t snapshots; /* the part of state that is snapshots */
    uint64_t scratch, io;
    uint64_t packed, workspace; /* of the backend: repacked weights, temporary buffers */
    uint64_t driver;            /* of the device's driver, where known; not in total */
    uint64_t disk; /* weights that are on disk (weights_dir) and need not be in memory; not in total
                    */
    uint64_t cache; /* of the host, for state that does not fit on the device (cache_bytes), or the
                     * buffer for files of cache_dir; not in total */
    uint64_t total;
};
void sluice_engine_memory(const sluice_engine *engine, struct sluice_memory *out);

/* Drops all cached state that no open sequence uses, in host memory and cache_dir too. */
int sluice_engine_forget(sluice_engine *engine);

/* Pages of the KV cache. */
struct sluice_pages {
    uint32_t total;
    uint32_t free;    /* unused, or only kept for later conversations */
    uint32_t tokens;  /* of a page */
    uint32_t starved; /* sequences that found none in the last step */
};
void sluice_engine_pages(const sluice_engine *engine, struct sluice_pages *out);

/* Bytes of KV pages and snapshots that hold something, of open sequences or kept for later ones. */
struct sluice_kept {
    uint64_t device, host, disk;
};
void sluice_engine_kept(sluice_engine *engine, struct sluice_kept *out);

/* KV pages and snapshots moved from one tier to another, and the time it took. */
struct sluice_moved {
    uint64_t bytes;
    double seconds;
};

/* Counted since open. A step is one submission and one wait, and so is a burst of several steps. */
struct sluice_counters {
    uint64_t steps, rows;
    uint64_t drafted, drafts_kept; /* of the rows, see sluice_seq_draft */
    uint64_t draft_steps;          /* of the steps, those of sluice_engine_draft */
    uint64_t submissions, waits;
    uint64_t host_copies, host_copy_bytes; /* of state to and from the host, between steps */
    uint64_t allocations;                  /* of the backend, all of them in open */
    uint64_t snapshots_taken, snapshots_used;
    uint64_t resumed;       /* calls of sluice_seq_resume ... */
    uint64_t resumed_hits;  /* ... that found something ... */
    uint64_t tokens_reused; /* ... and how much */
    uint64_t evicted;       /* blocks and snapshots that had to leave the device, */
    uint64_t spilled;       /* that went to host memory or disk, */
    uint64_t loaded;        /* and that were read from there */
    struct sluice_moved to_host, from_host, from_disk; /* their bytes, to and from the device */
    struct sluice_moved to_disk;                       /* from host memory, while steps run */
    double held_up_seconds;                            /* that calls had to wait for all this */
};
void sluice_engine_counters(const sluice_engine *engine, struct sluice_counters *out);

struct sluice_choice {
    const char *backend; /* static */
    char device[128];
    const char *kv_type; /* static */
    uint32_t context, sequences, batch, drafts, block_drafts;
    bool hidden;
};
/* What was chosen where the options left a choice, to show to the user. */
void sluice_engine_choice(const sluice_engine *engine, struct sluice_choice *out);

/* ---- sequences ---------------------------------------------------------------------------- */

typedef struct sluice_seq sluice_seq;

/* An empty sequence. SLUICE_ERR_ARGUMENT when the engine's `sequences` are all open. *out is NULL
 * on failure. */
int sluice_seq_open(sluice_seq **out, sluice_engine *engine);
/* What it processed stays cached for sluice_seq_resume, as long as there is room. Takes NULL. */
void sluice_seq_close(sluice_seq *seq);

/* Appends tokens; they wait for the next steps. All or none: SLUICE_ERR_ARGUMENT for a token
 * outside the vocabulary and for more than the context holds. `tokens` may be NULL when n is 0. */
int sluice_seq_feed(sluice_seq *seq, const int32_t *tokens, size_t n);

/* How much of a sequence was cached. */
struct sluice_reuse {
    uint32_t tokens;             /* that need no processing; the sum of: */
    uint32_t device, host, disk; /* by where they were */
    uint32_t matched; /* the longest beginning that any conversation had in common with it */
    char why[96];     /* why not all but the last: "no snapshot between 512 and 811" */
};
/* As sluice_seq_feed; then reuses what is cached of the sequence's beginning from all conversations
 * of the engine, open and closed: at most all but the last token, so that one can be sampled after
 * it; all of them when nothing is wanted (sluice_seq_want). The bits are those of processing it
 * all. Models with recurrent state continue from snapshots: see snapshot_every and sluice_seq_mark.
 * `reuse` may be NULL. */
int sluice_seq_resume(sluice_seq *seq, const int32_t *tokens, size_t n, struct sluice_reuse *reuse);

/* Starts to read what sluice_seq_resume would reuse of these n tokens from the files of cache_dir,
 * while steps run. *is_ready: no such read is in flight, and resuming will not wait for a file;
 * until then call again with the same tokens. Resuming before that is allowed, but steps of other
 * sequences then wait for the files. */
int sluice_engine_fetch(sluice_engine *engine, const int32_t *tokens, size_t n, bool *is_ready);

/* Requests a snapshot after the first n tokens: a place that later conversations will share (the
 * end of a system prompt, of a turn, of the prompt). n is at most the tokens fed and at least those
 * processed; SLUICE_ERR_ARGUMENT also for more than 16 pending ones. Models without recurrent state
 * need none and ignore it. */
int sluice_seq_mark(sluice_seq *seq, uint32_t n);

/* Marks, of the tokens fed that are not processed yet, the ends of turns that later conversations
 * are likely to share: after the first end token (of the system prompt) and after the last two. */
int sluice_seq_mark_turns(sluice_seq *seq);

/* The tokens fed so far, and how many at their end still wait. Each pointer may be NULL; *tokens is
 * valid until the next call with this sequence. */
void sluice_seq_tokens(const sluice_seq *seq, const int32_t **tokens, uint32_t *n,
                       uint32_t *waiting);

/* True when its tokens waited in the last step and no page of the KV cache was free for them. It
 * continues when there is one: other sequences must be closed or rewound. */
bool sluice_seq_is_starved(const sluice_seq *seq);

/* Guesses which tokens come after those fed, the last of which must still wait. The step that
 * samples after that one verifies them, all in one submission: it samples after each of them, too,
 * as if it had been fed, and keeps those that it would have sampled itself, up to the first that is
 * wrong. After it sluice_seq_tokens has the ones that were kept, and sluice_seq_token the one after
 * them; sluice_seq_logits has a row for each. So tokens and bits are those without any drafts, at
 * any temperature, and only the number of steps differs.
 *
 * A hint: as many as the engine has room for in that step (its `drafts`, the context, free pages)
 * are taken, up to the first that ends an answer, and the rest is ignored; so are all without
 * SLUICE_WANT_TOKEN, and those of a sequence with a mask. They are gone after that step, when more
 * tokens are fed, and after sluice_seq_rewind; n = 0 takes them back. A fork has none.
 * SLUICE_ERR_ARGUMENT for a token outside the vocabulary: nothing changes then. */
int sluice_seq_draft(sluice_seq *seq, const int32_t *tokens, size_t n);

/* Drafts n tokens for each of these sequences, as if by sluice_seq_draft, with the model's own
 * block for multi-token prediction: from the model's hidden states it predicts a token further
 * ahead, and from its own the tokens after that. Each sequence has one waiting token. Left without
 * drafts are those with a mask, without SLUICE_WANT_TOKEN, without free pages, with a last page
 * that another shares (until their next step), and the last ones of more than `batch` or `drafts`
 * of the engine. n is at most the engine's block_drafts; SLUICE_ERR_ARGUMENT where it has none. It
 * is a step of its own, a short one. */
int sluice_engine_draft(sluice_engine *engine, sluice_seq *const *seqs, size_t n_seqs, uint32_t n);

/* The tokens drafted for the next step. Each pointer may be NULL; *tokens is valid until the next
 * call with this sequence. */
void sluice_seq_drafts(const sluice_seq *seq, const int32_t **tokens, uint32_t *n);

enum sluice_want {
    SLUICE_WANT_TOKEN = 1,       /* sample a token after the last token fed (the default) */
    SLUICE_WANT_LOGITS = 2,      /* the logits after the last token fed */
    SLUICE_WANT_ALL_LOGITS = 4,  /* the logits after every token */
    SLUICE_WANT_HIDDEN = 8,      /* the hidden state after the last token fed */
    SLUICE_WANT_ALL_HIDDEN = 16, /* the hidden states after every token */
};
/* What the next steps compute: any of these or'ed together, or 0. SLUICE_ERR_ARGUMENT for hidden
 * states of an engine that was opened without them. */
int sluice_seq_want(sluice_seq *seq, unsigned wants);

/* The token sampled after the last one fed; -1 when there is none: tokens wait, none was fed, or
 * none was wanted. To continue, feed it (or another). */
int32_t sluice_seq_token(const sluice_seq *seq);

/* The next token, in one call: steps until one is sampled, after feeding the one that the last
 * sluice_seq_next gave, unless other tokens were fed instead. A token that a step for other
 * sequences already sampled is given first. SLUICE_ERR_ARGUMENT when there is nothing to continue
 * from, and without SLUICE_WANT_TOKEN. */
int sluice_seq_next(sluice_seq *seq, int32_t *token);

/* The logits of the last step: *rows rows of n_logits values, the last row after the newest token
 * processed; 0 rows when the sequence took no part or wanted none. *at is valid until the next
 * step. */
int sluice_seq_logits(const sluice_seq *seq, const float **at, uint32_t *rows);

/* The same for hidden states: rows of `width` values, the LM head's input, after the final norm. */
int sluice_seq_hidden(const sluice_seq *seq, const float **at, uint32_t *rows);

struct sluice_bias {
    int32_t token;
    float bias; /* added to its logit: -1e9 to 1e9, or -inf: never this token */
};

enum { SLUICE_MAX_BIASES = 256 };

/* Begin with sluice_sampling_default. Random numbers depend on seed and position alone. */
struct sluice_sampling {
    float temperature;                         /* 1e-6 to 100; 0: always the most likely token */
    uint32_t top_k;                            /* 0: all */
    float top_p, min_p;                        /* 0 to 1 */
    float repeat_penalty;                      /* 0.01 to 100; 1: none */
    float presence_penalty, frequency_penalty; /* -100 to 100 */
    uint64_t seed;
    const struct sluice_bias *biases; /* at most SLUICE_MAX_BIASES; copied; may be NULL when none */
    size_t n_biases;
};
/* What the model's files recommend, and temperature 0.8, top_p 0.95 where they do not. `model` may
 * be NULL. */
struct sluice_sampling sluice_sampling_default(const sluice_model *model);

/* How the next tokens are sampled. On SLUICE_ERR_ARGUMENT the text names the value. */
int sluice_seq_set_sampling(sluice_seq *seq, const struct sluice_sampling *sampling);

/* Only tokens of the mask are sampled next, until it is changed: bit t % 32 of word t / 32 allows
 * token t, for all n_tokens of the model. It is copied. NULL: all tokens, as at first. Biases and
 * penalties choose among what it allows, and cannot forbid all of it. SLUICE_ERR_ARGUMENT for one
 * that allows none. A sequence with a mask takes no part in bursts unless sluice_seq_keep_mask says
 * after which tokens it stays valid, and no drafts are taken for it. */
int sluice_seq_set_mask(sluice_seq *seq, const uint32_t *mask);

/* The mask stays the same after these tokens, as inside a string. In a burst the sequence stops
 * after any other: that token is in sluice_seq_token. It is copied, and forgotten by
 * sluice_seq_set_mask. NULL: unknown. SLUICE_ERR_ARGUMENT without a mask. */
int sluice_seq_keep_mask(sluice_seq *seq, const uint32_t *after);

/* A second sequence with the same tokens, wants, sampling, mask and sampled token. Full pages of
 * the KV cache are shared. *out is NULL on failure. */
int sluice_seq_fork(sluice_seq **out, const sluice_seq *seq);

/* Keeps the first n tokens: the sequence is as if no more had been fed, and the next token is the
 * one after the n-th. Some of the n may wait again and be processed a second time, with the same
 * bits; fewer of them when more tokens are fed first. */
int sluice_seq_rewind(sluice_seq *seq, uint32_t n);

/* Writes the whole sequence but its wants, sampling and mask to a file, which appears complete or
 * not at all. It may replace a saved sequence or an empty file; SLUICE_ERR_ARGUMENT for any other
 * file that exists. */
int sluice_seq_save(const sluice_seq *seq, const char *path);

/* A sequence from such a file, with default wants and sampling and no mask. SLUICE_ERR_FORMAT for a
 * damaged file and for one of another model or KV cache type. *out is NULL on failure. */
int sluice_seq_load(sluice_seq **out, sluice_engine *engine, const char *path);

#ifdef __cplusplus
}
#endif
#endif
