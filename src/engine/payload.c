/* payload.c - the contents of cache entries between STATE and the tiers below the device.
 *
 * The engine's thread moves them between steps; the host tier's thread copies them while steps run,
 * with a list of moves of its own. */
#include "engine/state_internal.h"

/* An entry's payload: the recurrent state of a cell, then the keys and values of a page; each only
 * where the entry has it. Of a partly filled page only the entry's positions are moved: a slot may
 * be writing after them. */
struct payload {
    const struct state *st;
    uint32_t cell, page; /* where it is or goes to on the device; NO_CELL, NO_PAGE: not needed */
    uint32_t positions;  /* of the page; 0: the entry has none */
    bool has_cell;
};

/* Turns stretches of a payload into a list of moves. */
struct move_list {
    uint64_t at, n; /* bytes [at, at + n) of the payload are in ... */
    uint8_t *host;  /* ... this memory */
    uint64_t begin; /* of the next stretch, in the payload */
    struct backend_move *moves;
    uint32_t n_moves;
};

/* Adds the payload's next stretch: this many bytes, of which the first `used` are moved to or from
 * this place in STATE. 0: it is skipped. */
static void add_stretch(struct move_list *l, uint64_t offset, uint64_t bytes, uint64_t used) {
    uint64_t from = l->at > l->begin ? l->at : l->begin, end = l->begin + used;
    uint64_t to = l->at + l->n < end ? l->at + l->n : end;
    if (from < to)
        l->moves[l->n_moves++] =
            (struct backend_move){offset + from - l->begin, to - from, l->host + (from - l->at)};
    l->begin += bytes;
}

static void add_page(struct move_list *l, const struct payload *p, struct state_array array) {
    bool is_whole = p->positions == PAGE;
    uint32_t n = is_whole ? 1 : array.n_heads;
    uint64_t bytes = array.bytes / n, used = is_whole ? bytes : bytes / PAGE * p->positions;
    for (uint32_t i = 0; i < n; i++)
        add_stretch(l, state_array_item(array, p->page) + i * bytes, bytes,
                    p->page == NO_PAGE ? 0 : used);
}

/* Lists every stretch of bytes [at, at + n) of the payload and where it is in host memory; returns
 * how many there are. */
static uint32_t list_moves(const struct payload *p, uint64_t at, uint64_t n, uint8_t *host,
                           struct backend_move *moves) {
    const struct state_layout *layout = &p->st->layout;
    struct move_list l = {.at = at, .n = n, .host = host, .moves = moves};
    for (uint32_t i = 0; p->has_cell && i < layout->n_recurrent; i++) {
        struct state_array array = layout->recurrent[i];
        add_stretch(&l, state_array_item(array, p->cell), array.bytes,
                    p->cell == NO_CELL ? 0 : array.bytes);
    }
    for (uint32_t i = 0; p->positions && i < layout->n_paged; i++)
        add_page(&l, p, layout->paged[i]);
    return l.n_moves;
}

/* Moves them all in one call. */
static int move_stretches(const struct payload *p, uint64_t at, uint64_t n, uint8_t *host,
                          bool is_in, struct err *err) {
    const struct state *st = p->st;
    uint32_t n_moves = list_moves(p, at, n, host, st->moves);
    return n_moves ? st->kind->move_state(st->backend, st->moves, n_moves, is_in, err) : SLUICE_OK;
}

static struct payload payload_of(const struct state *st, uint32_t e) {
    const struct cache_entry *at = cache_entry(&st->cache, e);
    return (struct payload){
        .st = st,
        .cell = at->cell,
        .page = at->page,
        .positions = at->n_tokens,
        .has_cell = at->kind == ENTRY_SNAPSHOT && state_is_recurrent(st),
    };
}

static int fill_payload(void *user, uint64_t at, uint64_t n, void *to, struct err *err) {
    const struct cache_payload *which = user;
    struct payload p = payload_of(which->user, which->entry);
    return move_stretches(&p, at, n, to, false, err);
}

static int take_payload(void *user, uint64_t at, uint64_t n, const void *from, struct err *err) {
    return move_stretches(user, at, n, (uint8_t *)from, true, err);
}

int state_load_entry(struct state *st, uint32_t e, uint32_t cell, uint32_t page, bool *is_found,
                     struct err *err) {
    struct payload p = payload_of(st, e);
    p.cell = cell;
    p.page = page;
    return cache_load(&st->cache, e, take_payload, &p, is_found, err);
}

_Static_assert((int)HOST_JOBS <= (int)BACKEND_FENCES, "a fence for every job");

/* The same on the host tier's thread, while steps run. */
static int fence(void *user, uint32_t job, struct err *err) {
    const struct state *st = user;
    return st->kind->fence ? st->kind->fence(st->backend, job, err) : SLUICE_OK;
}

static int fill_on_thread(void *user, uint32_t job, struct host_source from, uint64_t at,
                          uint64_t n, void *to, struct err *err) {
    struct state *st = user;
    const struct payload p = {st, from.cell, from.page, from.positions, from.cell != NO_CELL};
    uint32_t n_moves = list_moves(&p, at, n, to, st->thread_moves);
    if (st->kind->read_at_fence)
        return st->kind->read_at_fence(st->backend, job, st->thread_moves, n_moves, err);
    int status = SLUICE_OK;
    for (const struct backend_move *m = st->thread_moves; !status && n_moves-- > 0; m++)
        status = st->kind->peek(st->backend, REGION_STATE, m->offset, m->bytes, m->host, err);
    return status;
}

enum { MIN_FETCH_BYTES = 4 << 20 }; /* read in 2 ms or less */

int state_attach(struct state *st, struct host_tier *host, struct disk_tier *disk,
                 struct disk_fetch *fetch, struct err *err) {
    int status = host_tier_start(host, &(struct host_filler){st, fence, fill_on_thread}, err);
    if (!status)
        cache_attach(&st->cache,
                     &(struct cache_lower){host, disk, fetch, MIN_FETCH_BYTES, fill_payload, st});
    return status;
}

void state_copy_ahead(struct state *st) {
    cache_copy_ahead(&st->cache);
}

enum {
    MIN_JUDGED_BYTES = 4 << 20, /* bytes of a state; smaller ones are copied in no time */
    PROMPT_ROWS = 64,           /* steps with fewer rows tell at most what a prompt's token costs */
};

void state_note_step(struct state *st, uint32_t rows, double seconds) {
    struct cache *c = &st->cache;
    struct cache_rates *r = &c->rates;
    const double usual_disk = 0.5e-9; /* 2 GB/s, until one is measured */
    if (!c->lower.host || st->layout.recurrent_bytes < MIN_JUDGED_BYTES || rows == 0)
        return;
    struct sluice_moved out = host_tier_filled(c->lower.host), back = c->from_host;
    double now = seconds / rows, known = r->token_seconds;
    if (known == 0 || (rows < PROMPT_ROWS && now < known))
        r->token_seconds = now;
    else if (rows >= PROMPT_ROWS)
        r->token_seconds += (now - known) / 8;
    r->disk_byte_seconds =
        c->from_disk.bytes ? c->from_disk.seconds / (double)c->from_disk.bytes : usual_disk;
    r->byte_seconds = (out.bytes ? out.seconds / (double)out.bytes : 0) +
                      (back.bytes ? back.seconds / (double)back.bytes : 0);
}

void state_detach(struct state *st) {
    cache_detach(&st->cache);
}
