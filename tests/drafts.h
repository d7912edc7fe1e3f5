/* drafts.h - a sequence whose tokens are drafted, rightly and wrongly, against one without drafts.
 *
 * Tokens, the logits that each was sampled from, recurrent state, token counts and full pages of
 * the KV cache have to be the same, bit for bit, whatever was drafted. Used on the CPU by
 * test_drafts.c and on a device by rig/test_device_conversations.c. */
#ifndef TESTS_DRAFTS_H
#define TESTS_DRAFTS_H

#include "base/size.h"
#include "engine/engine.h"
#include "sluice.h"
#include "test.h"

enum { DRAFT_PROMPT = 240, DRAFT_NEW = 90, DRAFT_MOST = 7, DRAFT_SEQS = 3 };

struct draft_rig {
    sluice_model *model;
    sluice_engine *plain, *drafting;
    struct sluice_facts facts;
    uint64_t random;
    int32_t tokens[DRAFT_PROMPT + DRAFT_NEW]; /* the prompt, and what follows without drafts ... */
    float *logits;                            /* ... (DRAFT_NEW, n_logits) sampled from these */
    uint64_t n_drafted, n_kept;
};

static uint32_t draft_draw(struct draft_rig *r, uint32_t n) {
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((r->random >> 33) % n);
}

static void draft_fail(const sluice_engine *e, int line) {
    test_fail(__FILE__, line, "%s", sluice_engine_error(e));
}
#define DRAFT_OK(e, call) ((call) == SLUICE_OK ? (void)0 : draft_fail(e, __LINE__))

static bool draft_open(struct draft_rig *r, const char *path, const char *backend, uint64_t seed) {
    struct sluice_engine_options o = sluice_engine_options_default();
    memset(r, 0, sizeof *r);
    r->random = seed;
    if (sluice_model_open(&r->model, path)) {
        test_fail(__FILE__, __LINE__, "%s", sluice_model_error(r->model));
        return false;
    }
    sluice_model_facts(r->model, &r->facts);
    r->logits = calloc((size_t)DRAFT_NEW * (size_t)r->facts.n_logits, sizeof *r->logits);
    o.backend = backend;
    o.context = 512;
    o.threads = 2;
    bool is_open = sluice_engine_open(&r->plain, r->model, &o) == SLUICE_OK;
    o.sequences = o.batch = DRAFT_SEQS;
    o.drafts = DRAFT_MOST;
    o.snapshot_every = 16;
    is_open = is_open && sluice_engine_open(&r->drafting, r->model, &o) == SLUICE_OK;
    if (!is_open)
        test_fail(__FILE__, __LINE__, "%s%s", sluice_engine_error(r->plain),
                  sluice_engine_error(r->drafting));
    return is_open;
}

static void draft_close(struct draft_rig *r) {
    sluice_engine_close(r->plain);
    sluice_engine_close(r->drafting);
    sluice_model_close(r->model);
    free(r->logits);
}

/* How tokens are sampled, in several ways. */
static sluice_seq *draft_seq(struct draft_rig *r, sluice_engine *e, uint32_t how) {
    static const struct sluice_bias biases[] = {{3, 1.5f}, {5, -2}, {3, -0.25f}};
    struct sluice_sampling s = {.temperature = how == 0 ? 0 : 1.5f,
                                .top_p = how == 2 ? 0.9f : 1,
                                .top_k = how == 2 ? 20 : 0,
                                .repeat_penalty = how == 3 ? 1.2f : 1,
                                .presence_penalty = how == 3 ? 0.3f : 0,
                                .frequency_penalty = how >= 2 ? 0.2f : 0,
                                .biases = biases,
                                .n_biases = how == 3 ? 3 : 0,
                                .seed = how};
    sluice_seq *seq = NULL;
    (void)r;
    DRAFT_OK(e, sluice_seq_open(&seq, e));
    DRAFT_OK(e, sluice_seq_set_sampling(seq, &s));
    return seq;
}

/* Few different tokens, so that penalties have something to count. */
static sluice_seq *draft_expect(struct draft_rig *r, uint32_t how) {
    sluice_seq *seq = draft_seq(r, r->plain, how);
    size_t n_logits = (size_t)r->facts.n_logits;
    for (int i = 0; i < DRAFT_PROMPT; i++)
        r->tokens[i] = (int32_t)draft_draw(r, 30);
    DRAFT_OK(r->plain, sluice_seq_want(seq, SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS));
    DRAFT_OK(r->plain, sluice_seq_feed(seq, r->tokens, DRAFT_PROMPT));
    for (int i = 0; i < DRAFT_NEW && !test_has_failed(); i++) {
        const float *logits = NULL;
        uint32_t rows = 0;
        DRAFT_OK(r->plain, sluice_seq_next(seq, &r->tokens[DRAFT_PROMPT + i]));
        DRAFT_OK(r->plain, sluice_seq_logits(seq, &logits, &rows));
        if (rows == 1)
            memcpy(r->logits + (size_t)i * n_logits, logits, n_logits * sizeof *logits);
    }
    return seq;
}

/* Drafts what will come, of which from some place on nothing is right; returns how many tokens the
 * step has to keep. */
static uint32_t draft_guess(struct draft_rig *r, sluice_seq *seq, uint32_t n) {
    int32_t guess[DRAFT_MOST + 3];
    uint32_t most = min_u32(draft_draw(r, DRAFT_MOST + 4), DRAFT_PROMPT + DRAFT_NEW - 1 - n);
    uint32_t right = draft_draw(r, 3) ? most : draft_draw(r, most + 1);
    for (uint32_t i = 0; i < most; i++) {
        uint32_t wrong = i < right ? 0 : 1 + draft_draw(r, 5);
        guess[i] = (r->tokens[n + i] + (int32_t)wrong) % r->facts.n_tokens;
        if (i < right && sluice_token_is_end(r->model, guess[i]))
            right = i;
    }
    DRAFT_OK(r->drafting, sluice_seq_draft(seq, guess, most));
    return min_u32(right, DRAFT_MOST);
}

static void draft_check_logits(struct draft_rig *r, const sluice_seq *seq, uint32_t first,
                               uint32_t expected) {
    size_t n_logits = (size_t)r->facts.n_logits;
    const float *logits = NULL;
    uint32_t rows = 0;
    DRAFT_OK(r->drafting, sluice_seq_logits(seq, &logits, &rows));
    EXPECT_INT(rows, expected);
    if (rows == expected && first + rows <= DRAFT_NEW &&
        memcmp(logits, r->logits + first * n_logits, rows * n_logits * sizeof *logits) != 0)
        test_fail(__FILE__, __LINE__, "other logits than without drafts, of tokens %u to %u", first,
                  first + rows - 1);
}

/* Takes back some tokens at times, so that snapshots taken among drafts are used. */
static uint32_t draft_rewind(struct draft_rig *r, sluice_seq *seq, uint32_t n) {
    if (draft_draw(r, 12) || n < DRAFT_PROMPT + 10)
        return n;
    n -= 1 + draft_draw(r, 9);
    DRAFT_OK(r->drafting, sluice_seq_rewind(seq, n));
    return n;
}

/* The whole answer with drafts; all tokens but the last are processed then. */
static sluice_seq *draft_repeat(struct draft_rig *r, uint32_t how) {
    sluice_seq *seq = draft_seq(r, r->drafting, how);
    uint32_t n = DRAFT_PROMPT - draft_draw(r, 3), waiting;
    bool has_logits = how % 2;
    if (has_logits)
        DRAFT_OK(r->drafting, sluice_seq_want(seq, SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS));
    DRAFT_OK(r->drafting, sluice_seq_feed(seq, r->tokens, n));
    while (n < DRAFT_PROMPT + DRAFT_NEW && !test_has_failed()) {
        const int32_t *tokens;
        bool is_prompt = n < DRAFT_PROMPT; /* there, what is fed need not be what was sampled */
        uint32_t kept = is_prompt ? 0 : draft_guess(r, seq, n), before = n;
        DRAFT_OK(r->drafting, sluice_engine_step(r->drafting, NULL));
        sluice_seq_tokens(seq, &tokens, &n, &waiting);
        int32_t token = sluice_seq_token(seq);
        EXPECT_INT(n, before + kept);
        EXPECT(waiting == 0 && token >= 0);
        if (is_prompt)
            token = r->tokens[n];
        EXPECT(memcmp(tokens, r->tokens, n * sizeof *tokens) == 0);
        if (n < DRAFT_PROMPT + DRAFT_NEW && token != r->tokens[n])
            test_fail(__FILE__, __LINE__, "token %u is %d, without drafts it is %d", n, token,
                      r->tokens[n]);
        if (has_logits && !is_prompt)
            draft_check_logits(r, seq, before - DRAFT_PROMPT, kept + 1);
        if (n < DRAFT_PROMPT + DRAFT_NEW - 1)
            n = draft_rewind(r, seq, n);
        else
            break;
        sluice_seq_tokens(seq, NULL, &n, &waiting);
        if (waiting == 0) {
            DRAFT_OK(r->drafting, sluice_seq_feed(seq, &r->tokens[n], 1));
            n++;
        }
    }
    return seq;
}

/* ---- memory ------------------------------------------------------------------------------- */

static void draft_compare(struct draft_rig *r, uint64_t a, uint64_t b, uint64_t bytes,
                          const char *what) {
    struct err err = {0};
    uint8_t *x = malloc(bytes), *y = malloc(bytes);
    const struct backend_kind *kind = r->plain->kind;
    if (kind->read_state(r->plain->backend, a, bytes, x, &err) ||
        kind->read_state(r->drafting->backend, b, bytes, y, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    else if (memcmp(x, y, bytes) != 0)
        test_fail(__FILE__, __LINE__, "other %s than without drafts", what);
    free(x);
    free(y);
}

static void draft_compare_state(struct draft_rig *r, const sluice_seq *a, const sluice_seq *b) {
    const struct state *s = &r->plain->state, *t = &r->drafting->state;
    const struct slot *x = &s->slots[a->slot], *y = &t->slots[b->slot];
    EXPECT_INT(x->length, y->length);
    if (x->length != y->length)
        return;
    for (uint32_t i = 0; i < s->layout.n_recurrent; i++) {
        struct state_array p = s->layout.recurrent[i], q = t->layout.recurrent[i];
        draft_compare(r, p.offset + x->cell * p.bytes, q.offset + y->cell * q.bytes, p.bytes,
                      "recurrent state");
    }
    for (uint32_t page = 0; page < x->length / PAGE; page++)
        for (uint32_t i = 0; i < s->layout.n_paged; i++) {
            struct state_array p = s->layout.paged[i], q = t->layout.paged[i];
            draft_compare(r, p.offset + x->pages[page] * p.bytes,
                          q.offset + y->pages[page] * q.bytes, p.bytes, "keys or values");
        }
    struct state_array p = s->layout.counts, q = t->layout.counts;
    if (p.bytes)
        draft_compare(r, p.offset + a->slot * p.bytes, q.offset + b->slot * q.bytes, p.bytes,
                      "token counts");
}

/* ---- a run -------------------------------------------------------------------------------- */

static void draft_run(const char *path, const char *backend, uint64_t seed) {
    struct draft_rig r;
    if (draft_open(&r, path, backend, seed))
        for (uint32_t how = 0; how < 4 && !test_has_failed(); how++) {
            sluice_seq *a = draft_expect(&r, how), *b = draft_repeat(&r, how);
            draft_compare_state(&r, a, b);
            EXPECT(state_broken(&r.drafting->state) == NULL);
            sluice_seq_close(a);
            sluice_seq_close(b);
        }
    struct sluice_counters c;
    sluice_engine_counters(r.drafting, &c);
    EXPECT(c.drafted > c.drafts_kept && c.drafts_kept > 0 && c.steps == c.submissions);
    test_note("%llu of %llu drafts kept, %llu steps of %llu rows",
              (unsigned long long)c.drafts_kept, (unsigned long long)c.drafted,
              (unsigned long long)c.steps, (unsigned long long)c.rows);
    draft_close(&r);
}

#endif
