/* test_state.c - the memory of sequences against a simple model of it.
 *
 * A backend of plain memory stands in for a device. What a step would write is a function of the
 * tokens before it: the key of a position and the recurrent state are hashes of them. So whatever
 * was shared, copied, restored or taken from others can be told from what should be there. */
#include "base/size.h"
#include "engine/state.h"
#include "test.h"

enum {
    N_SLOTS = 6,
    CONTEXT = 1400,
    PER_SEQ = (CONTEXT + PAGE - 1) / PAGE,
    N_PAGES = 13, /* far fewer than all at full length need */
    N_SNAPSHOTS = 5,
    N_SPARE = 4,
    EVERY = 192,
    N_KNOWN = 5,
    N_LOWER = 40,
};

/* ---- a backend of plain memory ------------------------------------------------------------ */

struct backend {
    uint8_t *bytes;
    uint64_t n_copied; /* bytes, within it */
};

static int plain_write(struct backend *b, uint64_t offset, uint64_t bytes, const void *from,
                       struct err *err) {
    (void)err;
    memcpy(b->bytes + offset, from, bytes);
    return SLUICE_OK;
}

static int plain_move(struct backend *b, const struct backend_move *list, uint32_t n, bool is_in,
                      struct err *err) {
    (void)err;
    for (const struct backend_move *m = list; m < list + n; m++)
        memcpy(is_in ? b->bytes + m->offset : m->host, is_in ? m->host : b->bytes + m->offset,
               m->bytes);
    return SLUICE_OK;
}

static int plain_copy(struct backend *b, const struct backend_copy *list, uint32_t n,
                      struct err *err) {
    (void)err;
    for (const struct backend_copy *c = list; c < list + n; c++)
        if (c->from == BACKEND_ZEROS)
            memset(b->bytes + c->to, 0, c->bytes);
        else
            memcpy(b->bytes + c->to, b->bytes + c->from, c->bytes);
    for (const struct backend_copy *c = list; c < list + n; c++)
        b->n_copied += c->from == BACKEND_ZEROS ? 0 : c->bytes;
    return SLUICE_OK;
}

/* By the thread of the host tier. */
static int plain_peek(struct backend *b, enum region region, uint64_t offset, uint64_t bytes,
                      void *to, struct err *err) {
    (void)region, (void)err;
    memcpy(to, b->bytes + offset, bytes);
    return SLUICE_OK;
}

static const struct backend_kind plain = {
    .name = "plain",
    .write_state = plain_write,
    .move_state = plain_move,
    .copy_state = plain_copy,
    .peek = plain_peek,
};

/* ---- the world ---------------------------------------------------------------------------- */

struct world {
    struct state st;
    struct backend backend;
    struct arena arena;
    struct state_array recurrent, keys;
    int32_t (*tokens)[CONTEXT];      /* (N_SLOTS) what each slot was given ... */
    uint64_t (*hashes)[CONTEXT + 1]; /* ... and the hash of its first i tokens */
    uint32_t n[N_SLOTS];
    bool is_open[N_SLOTS];
    uint64_t random;
    int32_t (*known)[CONTEXT]; /* (N_KNOWN) what closed slots had */
    uint32_t n_known[N_KNOWN];
    uint64_t n_starved, n_cut, n_kept, n_resumed, n_reused, n_from_host;
    struct host_tier host;
};

static uint32_t draw(struct world *w, uint32_t n) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->random >> 33) % n;
}

static uint64_t hash_after(uint64_t before, int32_t token) {
    uint64_t x = (before ^ (uint64_t)(uint32_t)token) * 0x9E3779B97F4A7C15u;
    return (x ^ x >> 29) + 1;
}

static bool world_open(struct world *w, uint64_t seed, bool is_recurrent, bool has_host) {
    memset(w, 0, sizeof *w);
    w->random = seed;
    const struct state_options options = {
        .n_slots = N_SLOTS,
        .n_snapshots = is_recurrent ? N_SNAPSHOTS : 0,
        .n_spare = is_recurrent ? N_SPARE : 0,
        .snapshot_every = EVERY,
        .context = CONTEXT,
        .pages_per_seq = PER_SEQ,
        .n_pages = N_PAGES,
        .n_vocab = 4,
        .n_lower = has_host ? N_LOWER : 0,
    };
    const uint64_t n_items = N_SLOTS + N_SPARE + N_SNAPSHOTS;
    struct state_layout *l = &w->st.layout;
    w->recurrent = (struct state_array){0, sizeof(uint64_t), 1};
    l->table = (struct state_array){w->recurrent.bytes * n_items, PER_SEQ * sizeof(uint32_t), 1};
    w->keys = (struct state_array){l->table.offset + l->table.bytes * n_items,
                                   PAGE * sizeof(uint64_t), 1};
    l->recurrent = &w->recurrent;
    l->n_recurrent = is_recurrent;
    l->paged = &w->keys;
    l->n_paged = l->n_heads = 1;
    l->recurrent_bytes = is_recurrent ? w->recurrent.bytes : 0;
    l->page_bytes = w->keys.bytes;
    w->backend.bytes = calloc(1, w->keys.offset + w->keys.bytes * N_PAGES);
    w->tokens = calloc(N_SLOTS, sizeof *w->tokens);
    w->hashes = calloc(N_SLOTS, sizeof *w->hashes);
    w->known = calloc(N_KNOWN, sizeof *w->known);
    w->st.kind = &plain;
    w->st.backend = &w->backend;
    struct err err;
    int status = state_init(&w->st, &options, &w->arena, &err);
    if (!status && has_host)
        status = host_tier_open(&w->host, N_LOWER * 2100 / 2, 700, &err);
    if (!status && has_host)
        status = state_attach(&w->st, &w->host, NULL, NULL, &err);
    EXPECT_INT(status, SLUICE_OK);
    return status == SLUICE_OK;
}

static void world_close(struct world *w) {
    state_detach(&w->st);
    host_tier_close(&w->host);
    free(w->backend.bytes);
    free(w->tokens);
    free(w->hashes);
    free(w->known);
    arena_free(&w->arena);
}

static uint64_t *key_at(struct world *w, uint32_t slot, uint32_t position) {
    const struct state_array *t = &w->st.layout.table;
    const uint32_t *table =
        (const uint32_t *)(w->backend.bytes + t->offset + slot * t->bytes); /* as a step sees it */
    uint32_t page = table[position / PAGE];
    if (page >= N_PAGES)
        page = 0;
    return (uint64_t *)(w->backend.bytes + w->keys.offset + page * w->keys.bytes) + position % PAGE;
}

static uint64_t *recurrent_at(struct world *w, uint32_t cell) {
    return (uint64_t *)w->backend.bytes + cell;
}

/* ---- what is there ------------------------------------------------------------------------ */

static bool is_right(struct world *w, uint32_t slot) {
    const struct slot *s = &w->st.slots[slot];
    if (s->is_open != w->is_open[slot] || s->n_tokens != w->n[slot] ||
        memcmp(s->tokens, w->tokens[slot], s->n_tokens * sizeof *s->tokens) != 0)
        return false;
    for (uint32_t i = 0; i < s->length; i++)
        if (*key_at(w, slot, i) != w->hashes[slot][i + 1])
            return false;
    return !w->st.layout.n_recurrent || !s->is_open ||
           *recurrent_at(w, s->cell) == w->hashes[slot][s->length];
}

static uint32_t pages_held(const struct world *w) {
    bool is_held[N_PAGES] = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_SLOTS; i++)
        for (uint32_t k = 0; k < w->st.slots[i].n_pages; k++)
            is_held[w->st.slots[i].pages[k]] = true;
    for (uint32_t i = 0; i < N_PAGES; i++)
        n += is_held[i];
    return n;
}

static bool world_check(struct world *w, uint64_t i) {
    const char *broken = state_broken(&w->st);
    for (uint32_t slot = 0; !broken && slot < N_SLOTS; slot++)
        if (!is_right(w, slot))
            broken = "a slot holds something else than its tokens make";
    if (!broken && pages_held(w) + pages_available(&w->st.pages) != N_PAGES)
        broken = "pages are lost";
    if (broken)
        test_fail(__FILE__, __LINE__, "after %llu operations: %s", (unsigned long long)i, broken);
    return !broken;
}

/* ---- operations --------------------------------------------------------------------------- */

static void hash_from(struct world *w, uint32_t slot, uint32_t first) {
    for (uint32_t i = first; i < w->n[slot]; i++)
        w->hashes[slot][i + 1] = hash_after(w->hashes[slot][i], w->tokens[slot][i]);
}

/* Few different tokens, so that beginnings are often the same. */
static void op_feed(struct world *w, uint32_t slot) {
    struct slot *s = &w->st.slots[slot];
    uint32_t n = min_u32(1 + draw(w, draw(w, 2) ? 400 : 3), CONTEXT - s->n_tokens);
    int32_t kind = (int32_t)draw(w, 3);
    for (uint32_t i = 0; i < n; i++)
        s->tokens[s->n_tokens + i] = w->tokens[slot][w->n[slot] + i] = kind;
    s->n_tokens += n;
    s->n_drafts = 0;
    w->n[slot] += n;
    hash_from(w, slot, w->n[slot] - n);
}

/* Guesses of what comes after the slot's tokens, and their hashes. */
static void draft(struct world *w, uint32_t slot) {
    struct slot *s = &w->st.slots[slot];
    s->n_drafts = min_u32(draw(w, draw(w, 4) ? 6 : 300), CONTEXT - s->n_tokens);
    for (uint32_t i = w->n[slot]; i < w->n[slot] + s->n_drafts; i++) {
        s->tokens[i] = w->tokens[slot][i] = (int32_t)draw(w, 3);
        w->hashes[slot][i + 1] = hash_after(w->hashes[slot][i], w->tokens[slot][i]);
    }
}

/* What a step of this many rows writes, the drafted ones included; cut off: junk. */
static void write_rows(struct world *w, uint32_t slot, uint32_t rows, bool is_cut) {
    const struct slot *s = &w->st.slots[slot];
    uint32_t end = s->length + rows;
    for (uint32_t i = s->length; i < end; i++)
        *key_at(w, slot, i) = is_cut ? 77 : w->hashes[slot][i + 1];
    if (!w->st.layout.n_recurrent)
        return;
    *recurrent_at(w, s->cell) = is_cut ? 77 : w->hashes[slot][end];
    for (uint32_t i = 0; i < s->n_drafted; i++)
        *recurrent_at(w, w->st.spare[s->first_spare + i]) =
            is_cut ? 77 : w->hashes[slot][end - s->n_drafted + i];
    for (uint32_t i = 0; i < s->n_planned; i++) {
        const struct planned *p = &w->st.planned[s->first_planned + i];
        EXPECT(p->position > s->length && p->position < end - s->n_drafted);
        *recurrent_at(w, p->cell) = is_cut ? 77 : w->hashes[slot][p->position];
    }
}

/* A step with one sequence; it may be cut off, and then what it wrote is junk. */
static void op_step(struct world *w, uint32_t slot) {
    struct slot *s = &w->st.slots[slot];
    struct err err;
    uint32_t all = s->n_tokens - s->length, pages = state_page_rows(&w->st, slot), drafted = 0;
    uint32_t rows = min_u32(min_u32(all, 1 + draw(w, draw(w, 2) ? 500 : 4)), pages), first;
    w->n_starved += all > 0 && rows == 0;
    if (rows == 0)
        return;
    state_begin_step(&w->st);
    if (rows == all && draw(w, 2)) {
        draft(w, slot);
        drafted = state_plan_drafts(&w->st, slot, min_u32(s->n_drafts, pages - rows));
    }
    EXPECT_INT(state_reserve(&w->st, slot, rows + drafted, &first, &err), SLUICE_OK);
    state_plan_snapshots(&w->st, slot, rows);
    const struct state_array *t = &w->st.layout.table;
    uint32_t *table = (uint32_t *)(w->backend.bytes + t->offset + slot * t->bytes);
    for (uint32_t i = first; i < s->n_pages; i++)
        table[i] = s->pages[i];
    bool is_cut = draw(w, 10) == 0;
    state_copy_ahead(&w->st); /* beside the step */
    write_rows(w, slot, rows + drafted, is_cut);
    w->n_cut += is_cut;
    uint32_t kept = drafted ? draw(w, drafted + 1) : 0;
    w->n_kept += is_cut ? 0 : kept;
    w->n[slot] += is_cut ? 0 : kept;
    EXPECT_INT(is_cut ? state_undo(&w->st, slot, &err)
                      : state_advance(&w->st, slot, rows, kept, &err),
               SLUICE_OK);
}

static void op_open(struct world *w) {
    struct err err;
    uint32_t slot;
    if (state_open(&w->st, &slot, &err) == SLUICE_OK) {
        w->is_open[slot] = true;
        w->n[slot] = 0;
    }
}

static void op_fork(struct world *w, uint32_t from) {
    struct err err;
    uint32_t to;
    if (state_fork(&w->st, from, &to, &err) != SLUICE_OK)
        return;
    w->is_open[to] = true;
    w->n[to] = w->n[from];
    memcpy(w->tokens[to], w->tokens[from], sizeof *w->tokens);
    memcpy(w->hashes[to], w->hashes[from], sizeof *w->hashes);
}

static void op_rewind(struct world *w, uint32_t slot) {
    struct err err;
    uint32_t n = w->n[slot] - draw(w, draw(w, 2) ? w->n[slot] + 1 : min_u32(w->n[slot], 40) + 1);
    EXPECT_INT(state_rewind(&w->st, slot, n, n - (n > 0 && draw(w, 2)), &err), SLUICE_OK);
    w->n[slot] = n;
}

static void op_mark(struct world *w, uint32_t slot) {
    const struct slot *s = &w->st.slots[slot];
    struct err err;
    int status = state_mark(&w->st, slot, s->length + draw(w, s->n_tokens - s->length + 1), &err);
    EXPECT(status == SLUICE_OK || s->n_marks == MAX_MARKS);
}

/* The beginning of a slot that was closed, and something else after it. */
static void op_resume(struct world *w) {
    struct err err;
    uint32_t slot, from = draw(w, N_KNOWN), n = draw(w, w->n_known[from] + 1);
    struct state_found found;
    if (state_open(&w->st, &slot, &err) != SLUICE_OK)
        return;
    struct slot *s = &w->st.slots[slot];
    w->is_open[slot] = true;
    w->n[slot] = s->n_tokens = n;
    memcpy(w->tokens[slot], w->known[from], n * sizeof *s->tokens);
    memcpy(s->tokens, w->known[from], n * sizeof *s->tokens);
    hash_from(w, slot, 0);
    if (draw(w, 2))
        op_feed(w, slot);
    uint32_t max = s->n_tokens - min_u32(s->n_tokens, draw(w, 2));
    EXPECT_INT(state_resume(&w->st, slot, max, &found, &err), SLUICE_OK);
    EXPECT(found.held == s->length && found.matched <= s->n_tokens);
    EXPECT(s->length <= max);
    if (!w->st.layout.n_recurrent && !found.lacks_pages)
        EXPECT_INT(found.held, min_u32(found.matched, max));
    w->n_resumed++;
    w->n_reused += found.held;
    w->n_from_host += found.from[TIER_HOST];
    EXPECT_INT(found.from[TIER_DEVICE] + found.from[TIER_HOST], found.held);
}

static void op_close(struct world *w, uint32_t slot) {
    uint32_t to = draw(w, N_KNOWN);
    memcpy(w->known[to], w->tokens[slot], w->n[slot] * sizeof **w->known);
    w->n_known[to] = w->n[slot];
    state_close(&w->st, slot, draw(w, 4) > 0);
    w->is_open[slot] = false;
    w->n[slot] = 0;
}

/* What load does: tokens in place, then pages, then their contents. */
static void op_adopt(struct world *w) {
    struct err err;
    uint32_t slot;
    if (state_open(&w->st, &slot, &err) != SLUICE_OK)
        return;
    w->is_open[slot] = true;
    w->n[slot] = 0;
    op_feed(w, slot);
    uint32_t length = draw(w, w->n[slot] + 1);
    if (state_adopt(&w->st, slot, length, &err) != SLUICE_OK) {
        op_close(w, slot);
        return;
    }
    for (uint32_t i = 0; i < length; i++)
        *key_at(w, slot, i) = w->hashes[slot][i + 1];
    *recurrent_at(w, w->st.slots[slot].cell) = w->hashes[slot][length];
}

static void operate(struct world *w) {
    uint32_t slot = draw(w, N_SLOTS), what = draw(w, 32);
    if (!w->is_open[slot]) {
        if (what < 4)
            op_adopt(w);
        else if (what < 24)
            op_resume(w);
        else
            op_open(w);
    } else if (what < 10) {
        op_feed(w, slot);
    } else if (what < 11) {
        op_mark(w, slot);
    } else if (what < 27) {
        op_step(w, slot);
    } else if (what < 29) {
        op_fork(w, slot);
    } else if (what < 31) {
        op_rewind(w, slot);
    } else {
        op_close(w, slot);
    }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { N_OPERATIONS = 60000 };
#else
enum { N_OPERATIONS = 1000000 };
#endif

TEST(engine_state_a_million_operations) {
    for (uint32_t kind = 0; kind < 4; kind++) {
        struct world w;
        uint64_t i = 0;
        if (!world_open(&w, 1 + kind, kind & 1, kind & 2))
            return;
        for (; i < N_OPERATIONS / 4; i++) {
            operate(&w);
            if (i % (i < 2000 ? 1 : 97) == 0 && !world_check(&w, i))
                break;
        }
        for (uint32_t slot = 0; slot < N_SLOTS; slot++)
            if (w.is_open[slot])
                op_close(&w, slot);
        world_check(&w, i);
        EXPECT_INT(pages_available(&w.st.pages), N_PAGES);
        EXPECT(w.n_reused > 0 && w.n_starved > 0 && w.n_cut > 0 && w.n_kept > 0);
        test_note("%llu operations: %llu steps without a page, %llu cut off; %llu slots resumed, "
                  "%llu tokens each, %llu from the host; %llu evicted",
                  (unsigned long long)i, (unsigned long long)w.n_starved,
                  (unsigned long long)w.n_cut, (unsigned long long)w.n_resumed,
                  (unsigned long long)(w.n_reused / (w.n_resumed ? w.n_resumed : 1)),
                  (unsigned long long)(w.n_from_host / (w.n_resumed ? w.n_resumed : 1)),
                  (unsigned long long)w.st.cache.n_evicted);
        EXPECT((w.n_from_host > 0) == (kind >= 2));
        if (kind >= 2) {
            uint64_t beside = host_tier_filled(&w.host).bytes;
            EXPECT(host_tier_broken(&w.host) == NULL);
            EXPECT(beside > 0);
            test_note("%llu bytes were copied to the host beside steps, %llu held one up",
                      (unsigned long long)beside, (unsigned long long)w.st.cache.to_host.bytes);
        }
        world_close(&w);
    }
}

/* A slot whose blocks found no room in the cache: another one shares the beginning of its first
 * page alone, as a whole page is a block's. */
TEST(engine_state_shares_pages_that_the_cache_has_no_entry_for) {
    struct world w;
    struct state_found found;
    struct err err;
    uint32_t from, to;
    if (!world_open(&w, 5, false, false))
        return;
    w.st.cache.options.n_entries = 0;
    EXPECT_INT(state_open(&w.st, &from, &err), SLUICE_OK);
    w.is_open[from] = true;
    while (w.st.slots[from].length < PAGE + 40) {
        op_feed(&w, from);
        op_step(&w, from);
    }
    EXPECT_INT(state_open(&w.st, &to, &err), SLUICE_OK);
    struct slot *s = &w.st.slots[to];
    w.is_open[to] = true;
    w.n[to] = s->n_tokens = w.n[from];
    memcpy(w.tokens[to], w.tokens[from], w.n[to] * sizeof *s->tokens);
    memcpy(s->tokens, w.tokens[from], w.n[to] * sizeof *s->tokens);
    hash_from(&w, to, 0);
    EXPECT_INT(state_resume(&w.st, to, w.n[to] - 1, &found, &err), SLUICE_OK);
    EXPECT_INT(found.held, PAGE - 1);
    world_check(&w, 0);
    world_close(&w);
}

/* Snapshots that are read again sooner than they are copied stay out of host memory. The furthest
 * from another has at most CONTEXT tokens to be read. */
TEST(engine_state_copies_what_is_dear_to_read_again) {
    const struct {
        struct cache_rates rates;
        bool copies_snapshots;
    } cases[] = {
        {{0, 0, 0}, true},     /* not known */
        {{1, 1e-9, 0}, true},  /* a slow model */
        {{1e-9, 1, 0}, false}, /* a slow bus */
        {{1e-6, CONTEXT, 0}, false},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct world w;
        uint32_t n_snapshots = 0;
        if (!world_open(&w, 77, true, true))
            return;
        w.st.cache.rates = cases[i].rates;
        for (uint32_t k = 0; k < 4000; k++) {
            operate(&w);
            for (uint32_t e = 1; e < w.st.cache.n_fresh; e++)
                n_snapshots += cache_entry(&w.st.cache, e)->kind == ENTRY_SNAPSHOT &&
                               cache_is_in(&w.st.cache, e, TIER_HOST);
        }
        EXPECT((n_snapshots > 0) == cases[i].copies_snapshots);
        EXPECT(w.st.cache.n_evicted > 0);
        world_check(&w, i);
        world_close(&w);
    }
}

/* ---- what a fork costs -------------------------------------------------------------------- */

enum { LONG = 32 * 1024, LONG_PAGES = LONG / PAGE + 3, CELL_BYTES = 4096, LONG_CELLS = 2 + 40 };

static void step_long(struct state *st, uint32_t slot, uint32_t rows) {
    struct err err;
    uint32_t first;
    state_begin_step(st);
    EXPECT_INT(state_reserve(st, slot, rows, &first, &err), SLUICE_OK);
    state_plan_snapshots(st, slot, rows);
    EXPECT_INT(state_advance(st, slot, rows, 0, &err), SLUICE_OK);
}

/* A fork of 32k tokens copies the recurrent state and no page; the step after it copies the page
 * that is begun. Going back to a snapshot copies that. */
TEST(engine_state_fork_of_32k_shares_its_pages) {
    struct state_array recurrent = {0, CELL_BYTES, 1};
    struct state_array table = {LONG_CELLS * CELL_BYTES, LONG_PAGES * sizeof(uint32_t), 1};
    struct state_array keys = {table.offset + 2 * table.bytes, PAGE * 16, 1};
    struct backend backend = {calloc(1, keys.offset + LONG_PAGES * keys.bytes), 0};
    struct arena arena = {0};
    struct state st = {
        .kind = &plain,
        .backend = &backend,
        .layout = {.recurrent = &recurrent,
                   .n_recurrent = 1,
                   .paged = &keys,
                   .n_paged = 1,
                   .n_heads = 1,
                   .table = table,
                   .recurrent_bytes = CELL_BYTES,
                   .page_bytes = keys.bytes},
    };
    const struct state_options options = {.n_slots = 2,
                                          .n_snapshots = LONG_CELLS - 2,
                                          .snapshot_every = 1024,
                                          .context = LONG_PAGES * PAGE,
                                          .pages_per_seq = LONG_PAGES,
                                          .n_pages = LONG_PAGES,
                                          .n_vocab = 4};
    uint32_t slot, other, n = LONG - 100;
    struct err err;
    EXPECT(backend.bytes != NULL);
    EXPECT_INT(state_init(&st, &options, &arena, &err), SLUICE_OK);
    EXPECT_INT(state_open(&st, &slot, &err), SLUICE_OK);
    for (uint32_t i = 0; i < n; i++)
        st.slots[slot].tokens[i] = (int32_t)(i * 7919 >> 8 & 3);
    st.slots[slot].n_tokens = n;
    for (uint32_t i = 0; i < n; i += 4096)
        step_long(&st, slot, min_u32(4096, n - i));
    uint32_t n_free = pages_available(&st.pages);
    backend.n_copied = 0;
    EXPECT_INT(state_fork(&st, slot, &other, &err), SLUICE_OK);
    EXPECT_INT(backend.n_copied, CELL_BYTES);
    EXPECT_INT(pages_available(&st.pages), n_free);
    EXPECT_INT(st.slots[other].length, n);
    EXPECT(memcmp(st.slots[slot].pages, st.slots[other].pages, LONG / PAGE * sizeof(uint32_t)) ==
           0);
    st.slots[other].tokens[n] = 1;
    st.slots[other].n_tokens++;
    step_long(&st, other, 1);
    EXPECT_INT(backend.n_copied, CELL_BYTES + keys.bytes);
    EXPECT_INT(pages_available(&st.pages), n_free - 1);
    EXPECT_INT(state_rewind(&st, other, LONG / 2, LONG / 2, &err), SLUICE_OK);
    EXPECT_INT(st.slots[other].length, LONG / 2); /* nothing is to be read again */
    EXPECT_INT(backend.n_copied, 2 * CELL_BYTES + keys.bytes);
    EXPECT(state_broken(&st) == NULL);
    state_close(&st, other, true);
    state_close(&st, slot, true);
    EXPECT_INT(pages_available(&st.pages), LONG_PAGES);
    free(backend.bytes);
    arena_free(&arena);
}
