/* scheduler_internal.h - what the files of scheduler.h share: the tables of requests and answers.
 *
 * scheduler.c does the step and ends answers; scheduler_requests.c takes requests and cancels them;
 * scheduler_start.c decides which answers start; scheduler_draft.c drafts for those that run. */
#ifndef SERVE_SCHEDULER_INTERNAL_H
#define SERVE_SCHEDULER_INTERNAL_H

#include "serve/lookup.h"
#include "serve/pace.h"
#include "serve/scheduler.h"

struct request {
    uint64_t id;                /* 0: free */
    struct sched_request asked; /* its pointers point into `memory` */
    void *memory;               /* hashes, biases, ends, tokens, lookups */
    uint64_t *hashes;           /* (answers, pages of tokens) */
    int32_t *tokens;            /* (answers, n_prompt + max_tokens) */
    char *lookups;       /* (answers) each of lookup_bytes; NULL: its tokens are not drafted */
    uint32_t max_tokens; /* new tokens that fit, and are wanted */
    uint32_t live;
    bool is_cancelled;
    double submitted;
};

struct sched_answer {
    struct request *request;          /* NULL: free */
    struct sched_answer *prev, *next; /* in its list; next also in the list of free ones */
    uint64_t age;                     /* smaller is older */
    int32_t *tokens;                  /* (n_prompt + max_tokens) */
    uint32_t n;
    uint64_t *hashes; /* of each full page of tokens and all before it */
    sluice_seq *seq;  /* NULL: it waits */
    uint32_t n_fed;
    uint32_t n_masked;    /* tokens it had when its sequence got its mask; 0: it has none */
    bool has_mask;        /* it got a mask, not the permission for any token */
    struct lookup lookup; /* where its request has them */
    uint32_t n_drafted;   /* tokens for the next step ... */
    bool is_by_block;     /* ... by the model's draft block */
    uint32_t n_found;     /* tokens that its sequence had, processed, when it was opened */
    uint32_t n_read;      /* of one that reads all rows: those that were handed out */
    bool is_stem;    /* it processes the prompt but for the last token, then others fork from it */
    bool is_cold;    /* it starts without what the engine has cached */
    bool is_fetched; /* it has waited for the disk, and starts whether that helped or not */
    bool is_suspect; /* took part in a failed step; runs alone until it gets a token */
    uint64_t started_at; /* count of steps */
    uint64_t first_at;   /* count of submissions at its first token */
    struct sched_report report;
};

enum { BLOCK_DRAFTS = 8 }; /* most tokens that the model's draft block drafts for an answer */

struct answer_list {
    struct sched_answer *first, *last;
    uint32_t n;
};

struct sched {
    const sluice_model *model;
    sluice_engine *engine;
    struct sluice_facts facts;
    uint32_t context; /* maximum tokens of a sequence: all pages may be fewer than the engine's */
    uint32_t page;    /* tokens of a page */
    uint32_t n_sequences; /* that may run */
    uint32_t n_answers;   /* in the table below: also the number of requests */
    bool has_no_bursts, has_no_reuse;
    double burst_seconds; /* at most; 0: any */
    struct sched_answer *answers;
    struct request *requests;
    struct sched_answer *free_answers;
    uint32_t n_used; /* answers */
    struct answer_list waiting, running;
    uint32_t n_cancelled; /* requests that are marked */
    uint32_t n_suspects;
    uint64_t next_age, next_serial;
    uint32_t drafts;       /* maximum per step; 0: none */
    uint32_t block_drafts; /* maximum for one answer by the model's own block; 0: it is not used */
    bool has_lookup;       /* drafts come from the text, too */
    sluice_seq **seqs;     /* (n_sequences) scratch */
    struct guess_record block; /* how often its drafts were right, in all answers */
    double draft_seconds;      /* that the block took for the next step's drafts */
    struct pace pace;
    struct pace_step step; /* the next one */
    bool is_paced;         /* it has no rows of prompts */
    struct err failure;    /* why the engine will never run again; code 0: it will */
    struct sched_counters counters;
};

/* ---- of an answer ------------------------------------------------------------------------- */

static inline uint32_t sched_n_processed(const struct sched_answer *a) {
    uint32_t n, waiting;
    sluice_seq_tokens(a->seq, NULL, &n, &waiting);
    return n - waiting;
}

/* How many of its tokens wait. */
static inline uint32_t sched_n_waiting(const struct sched_answer *a) {
    uint32_t waiting;
    sluice_seq_tokens(a->seq, NULL, NULL, &waiting);
    return waiting;
}

/* Of several answers the first processes the prompt for all. */
static inline unsigned sched_reads_of(const struct sched_answer *a) {
    return a->report.answer == 0 ? a->request->asked.reads : 0;
}

static inline bool sched_reads_all(const struct sched_answer *a) {
    return sched_reads_of(a) & (SLUICE_WANT_ALL_LOGITS | SLUICE_WANT_ALL_HIDDEN);
}

/* ---- scheduler.c -------------------------------------------------------------------------- */

/* Adds to a list, or removes; lists are in order of age, the oldest first. */
void sched_list_insert(struct answer_list *list, struct sched_answer *a);
void sched_list_remove(struct answer_list *list, struct sched_answer *a);
/* Closes the answer's sequence; it waits again, in its old place. */
void sched_preempt(struct sched *s, struct sched_answer *a);
/* Takes the answer out of the tables, and its request with its last answer, then calls on_end,
 * which may submit and cancel. err (may be NULL): why it failed. */
void sched_end_answer(struct sched *s, struct sched_answer *a, enum sched_end why,
                      const struct err *err);
/* The same after a call of the engine that failed with this status. */
void sched_fail_answer(struct sched *s, struct sched_answer *a, int status);
/* The first suspect of a list; NULL: none. */
struct sched_answer *sched_find_suspect(const struct answer_list *list);

/* ---- scheduler_requests.c ----------------------------------------------------------------- */

/* Sets the hash of the answer's full page i, whose tokens are there. */
void sched_hash_page(const struct sched *s, struct sched_answer *a, uint32_t i);
/* Ends the answers of requests that were cancelled; whether there were any. */
bool sched_sweep(struct sched *s);

/* ---- scheduler_start.c -------------------------------------------------------------------- */

/* Starts the answers that may start now. */
void sched_admit(struct sched *s);
/* A stem has processed the prompt but for its last token: other answers to it fork from here. */
int sched_branch(struct sched *s, struct sched_answer *stem);

/* ---- scheduler_draft.c -------------------------------------------------------------------- */

/* Drafts for the step that comes next, whose tokens are fed; sets s->step. */
void sched_draft(struct sched *s);
/* Counts the answer's drafts, if it had any, after a step that kept n_fed of them. */
void sched_count_drafts(struct sched *s, struct sched_answer *a, uint32_t n_fed);

#endif
