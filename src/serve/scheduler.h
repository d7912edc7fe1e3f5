/* scheduler.h - many requests on one engine: requests in, tokens out through callbacks.
 *
 * A request is a prompt and one answer or several. Every answer is a sequence of the engine while
 * it runs; its tokens so far (prompt and new ones) are kept here too, so that its sequence can be
 * closed at any time and opened again later without loss.
 *
 * sched_step does one step or burst of the engine for all of them. Answers start in order of
 * arrival, when a sequence and pages of the KV cache for their prompt are free. When pages run out
 * the youngest is preempted: its sequence is closed and it waits again, in its old place. None is
 * lost and none starves: docs/design.md says why.
 *
 * Next tokens are drafted, and several come out of one step; they are the same as without. Where a
 * text repeats itself they come from the text (lookup.h), elsewhere from the model's own block for
 * drafts, if the engine has it.
 *
 * No token is processed twice: an answer reuses what the engine has cached of its tokens, and one
 * whose beginning an older one is still processing waits for that.
 *
 * The tokens of an answer depend on its prompt, sampling and seed alone, not on what runs at the
 * same time, nor on whether it was preempted.
 *
 * Threads. A scheduler, its engine and all sequences of that are used by one thread at a time, but
 * for sluice_engine_cancel: a step that it interrupts is repeated by the next sched_step. Nothing
 * else may open sequences in the engine.
 *
 * Memory. A request's own (its tokens) is allocated by sched_submit and freed when its last answer
 * has ended; all else by sched_open. A step allocates nothing. */
#ifndef SERVE_SCHEDULER_H
#define SERVE_SCHEDULER_H

#include "base/err.h"
#include "sluice.h"

struct sched;

/* ---- requests ----------------------------------------------------------------------------- */

struct sched_token {
    uint64_t request;    /* what sched_submit returned */
    uint32_t answer;     /* which of the request's, from 0 on */
    uint32_t index;      /* which of the answer's tokens, from 0 on */
    int32_t token;       /* never one that ends the answer */
    uint32_t n_reused;   /* tokens of the prompt found in the cache */
    const float *logits; /* that it was sampled from, where wanted, else NULL; valid during the call
                          */
};

enum sched_end {
    SCHED_END_TOKEN,      /* an end token was sampled; it is not handed out */
    SCHED_END_STOPPED,    /* on_token returned false */
    SCHED_END_MAX_TOKENS, /* it has as many tokens as were asked for */
    SCHED_END_FULL,       /* as many as the context, or all pages of the KV cache, hold */
    SCHED_END_CANCELLED,  /* sched_cancel or sched_close */
    SCHED_END_FAILED,     /* status and error say why */
};

/* What became of an answer. Seconds count from sched_submit on. */
struct sched_report {
    uint64_t request;
    uint32_t answer;
    uint64_t age;          /* its place among the others: smaller is older; never 0 */
    uint32_t answers_left; /* of the request; 0: the request is done and its number gone */
    enum sched_end end;
    int32_t end_token;         /* -1: none */
    int status;                /* SLUICE_OK unless it failed */
    const char *error;         /* one line, "" unless it failed; valid during the call */
    uint32_t n_prompt;         /* tokens of the prompt */
    uint32_t n_new;            /* tokens handed out */
    uint32_t n_processed;      /* tokens that the engine processed for it, repeated ones included */
    struct sluice_reuse reuse; /* at its first start: what was found in the cache, and why not more;
                                * of answers that share a prompt: what the first has processed */
    uint32_t n_drafted, n_kept; /* tokens that were drafted, and those of them that were right */
    uint32_t times_preempted;
    uint32_t steps;       /* of the engine, from its first start to its end */
    uint32_t submissions; /* to the device, after its first token */
    double start_seconds; /* until it got a sequence; 0: never */
    double first_seconds; /* until its first token; 0: there was none */
    double seconds;       /* until its end */
};

/* Callbacks may call sched_submit and sched_cancel, for their own request too, but no other
 * function of the scheduler. */
/* A token; false: the answer ends here (a stop string was found). */
typedef bool sched_token_fn(void *user, const struct sched_token *token);
/* The mask of the answer's next token, as sluice_seq_set_mask has it; NULL: any token may come. It
 * must depend only on the tokens of this answer handed out so far, and may be called more than once
 * after each. Must not call the scheduler. A mask that allows nothing fails the answer. */
typedef const uint32_t *sched_mask_fn(void *user, uint32_t answer);
/* Tokens after which that mask stays the same, as in sluice_seq_keep_mask; NULL: unknown. With it
 * answers with a mask can take part in bursts. */
typedef const uint32_t *sched_keeps_fn(void *user, uint32_t answer);
/* What a step computed for tokens of the prompt that the first answer has just processed. */
struct sched_rows {
    uint32_t first, n;   /* tokens [first, first + n) of the answer, also those after the prompt */
    const float *logits; /* (n, n_logits) after each; NULL where not wanted; valid in the call */
    const float *hidden; /* (n, width) */
};
/* Of all rows each is handed out once, in order, also if the answer is preempted meanwhile; that of
 * the prompt's last token alone maybe again. The request's other answers start after it. */
typedef void sched_rows_fn(void *user, const struct sched_rows *rows);
/* The end, exactly once for every answer of a request that was accepted. */
typedef void sched_end_fn(void *user, const struct sched_report *report);

enum { SCHED_MARKS = 4 };

/* Begin with {0}. All is copied; pointers may be NULL where their count is 0. */
struct sched_request {
    const int32_t *prompt; /* at least one token */
    size_t n_prompt;
    uint32_t max_tokens; /* new tokens of an answer, at least 1 */
    uint32_t answers;    /* of the prompt, which is processed once for all of them; 0 means 1 */
    uint64_t age;        /* 0: a new one. Else that of an answer that has ended and that this one
                          * continues: it keeps its place in the queue */
    struct sluice_sampling sampling; /* answer i is sampled with seed + i */
    const int32_t *ends;             /* tokens that end an answer; NULL: sluice_token_is_end */
    size_t n_ends;                   /* 0 and ends not NULL: none does */
    /* Tokens of the prompt, fewer than all, after which other requests may continue: snapshots are
     * kept there as at the ends of turns. */
    uint32_t marks[SCHED_MARKS], n_marks;
    bool wants_logits; /* with every token; then there are no bursts */
    unsigned reads;    /* what on_rows gets: SLUICE_WANT_HIDDEN, of the prompt's last token, or
                        * SLUICE_WANT_ALL_LOGITS, SLUICE_WANT_ALL_HIDDEN: of all, which are then
                        * processed even if cached; 0: nothing */
    sched_rows_fn *on_rows;
    sched_token_fn *on_token;
    sched_mask_fn *on_mask;   /* NULL: every token may come, always */
    sched_keeps_fn *on_keeps; /* called right after on_mask; NULL: never known */
    sched_end_fn *on_end;
    void *user;
};

/* ---- the scheduler ------------------------------------------------------------------------ */

struct sched_options {
    uint32_t queue;       /* answers that may wait when all sequences of the engine are taken */
    bool has_no_bursts;   /* one step per submission: a request that arrives waits less */
    double burst_seconds; /* bursts take no longer than this; 0: any time */
    bool has_no_lookup;   /* no tokens are drafted from the text itself */
    bool has_no_reuse;    /* nothing is reused from other requests, to measure what reuse gains */
};

/* Model and engine are borrowed. On failure *out is NULL. */
int sched_open(struct sched **out, const sluice_model *model, sluice_engine *engine,
               const struct sched_options *options, struct err *err);
/* Cancels all requests, which ends them, and closes their sequences. Takes NULL. */
void sched_close(struct sched *s);

/* Accepts a request: *id is its number, never 0. Or refuses it, and err says why:
 *   SLUICE_ERR_ARGUMENT   a value makes no sense, or the prompt could never fit
 *   SLUICE_ERR_MEMORY     the queue is full, or memory ran out: later it may be accepted
 *   SLUICE_ERR_DEVICE     the engine failed for good
 * Sampling parameters are checked when an answer starts: with invalid ones it ends with
 * SLUICE_ERR_ARGUMENT. */
int sched_submit(struct sched *s, const struct sched_request *request, uint64_t *id,
                 struct err *err);

/* Ends a request. No more tokens of it are handed out; its sequences and pages are free, and on_end
 * called, when the next sched_step begins. False: no such request (any more). */
bool sched_cancel(struct sched *s, uint64_t id);

/* One step or burst for all that run, after starting what may start. *worked (may be NULL): whether
 * anything was done; false: there are no requests. A failure of the engine ends the requests
 * concerned and is no failure of the step, but for SLUICE_ERR_DEVICE: all requests have ended then,
 * and further ones are refused. */
int sched_step(struct sched *s, bool *worked);

struct sched_counters {
    uint32_t waiting, running;           /* answers, now */
    uint64_t requests, refused, answers; /* accepted, refused; answers that ended */
    uint64_t tokens;                     /* handed out */
    uint64_t steps, submissions;         /* of the engine: a burst is several steps at once */
    uint64_t drafted, drafts_kept;       /* tokens, as in the reports */
    uint64_t preempted;                  /* preemptions */
    uint64_t reused; /* tokens that starting answers found in the cache, also after preemption; the
                      * sum of: */
    uint64_t device, host, disk; /* by where they were */
    double engine_seconds;       /* in the engine's steps */
    double own_seconds;          /* in sched_step outside the engine, callbacks included */
};
void sched_counters(const struct sched *s, struct sched_counters *out);

/* The first broken invariant in words, NULL when all hold. For tests. */
const char *sched_broken(const struct sched *s);

#endif
