/* save.c - a sequence as a file.
 *
 *   header | tokens (i32) | recurrent states, then attention pages | XXH3 of it all (u64)
 *
 * Little-endian, like everything here. The fingerprint is that of the model's constants and
 * tensors, a sample of their values included, so that a sequence is only loaded into its own model.
 * A file is checked whole before anything changes. */
#include <stdlib.h>
#include <string.h>

#include "base/filemap.h"
#include "base/hash.h"
#include "base/outfile.h"
#include "base/size.h"
#include "engine/engine.h"

enum { SAVE_VERSION = 3, CHUNK = 1 << 20 };

struct save_header {
    char magic[8];
    uint32_t version;
    uint32_t kv_type; /* enum dtype */
    uint64_t fingerprint;
    uint32_t is_exact;
    uint32_t length, n_tokens;
    int32_t token; /* the one picked last, -1: none */
    uint64_t state_bytes;
    uint32_t is_given; /* sluice_seq_next handed that token out */
    uint32_t reserved[3];
};
_Static_assert(sizeof(struct save_header) == 64, "save_header");

static const char magic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'S', 'Q'};

/* Small ones whole: a scaled rotary frequency is among the last. Of others some parts, as reading
 * gigabytes again would cost more than a prompt. */
static void add_tensor(struct hash *h, const uint8_t *at, uint64_t bytes) {
    enum { WHOLE = 1 << 16, PARTS = 4, PART = 64 };
    if (bytes <= WHOLE)
        hash_add(h, at, bytes);
    for (uint64_t i = 0; bytes > WHOLE && i < PARTS; i++)
        hash_add(h, at + (bytes - PART) / (PARTS - 1) * i, PART);
}

/* What the bits of a state depend on besides the tensors. */
static void add_constants(struct hash *h, const struct model *m) {
    const struct config *c = &m->config;
    const struct {
        float eps, rope_scale;
        uint32_t pairing, head_map, heads, kv_heads, key_heads, value_heads, experts_used;
    } facts = {
        .eps = c->eps,
        .rope_scale = m->rope_scale,
        .pairing = c->rope.pairing,
        .head_map = c->head_map,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .key_heads = c->key_heads,
        .value_heads = c->value_heads,
        .experts_used = c->experts_used,
    };
    hash_add(h, c->arch, strlen(c->arch));
    hash_add(h, &facts, sizeof facts);
}

uint64_t save_fingerprint(const struct sluice_engine *e) {
    struct hash h;
    struct plan *plan = e->plans[0];
    const struct model *m = e->model->model;
    hash_begin(&h);
    add_constants(&h, m);
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        struct operand_ref refs[MAX_OPERANDS];
        uint32_t n = op_operands(&plan->ops[i], refs);
        hash_add(&h, &plan->ops[i].kind, sizeof plan->ops[i].kind);
        for (uint32_t k = 0; k < n; k++) {
            const struct operand *o = refs[k].at;
            if (o->region != REGION_WEIGHTS)
                continue;
            hash_add(&h, &o->type, sizeof o->type);
            hash_add(&h, o->dims, sizeof o->dims);
            add_tensor(&h, m->weights->base + o->offset, operand_bytes(o));
        }
    }
    return hash64_end(&h);
}

/* ---- writing ------------------------------------------------------------------------------ */

struct save_writer {
    const struct state *state;
    struct outfile out;
    struct hash hash;
    uint8_t *chunk;
};

static int put(struct save_writer *w, const void *bytes, size_t n, struct err *err) {
    hash_add(&w->hash, bytes, n);
    return outfile_write(&w->out, bytes, n, err);
}

static int put_stretch(void *user, uint64_t offset, uint64_t bytes, struct err *err) {
    struct save_writer *w = user;
    const struct state *st = w->state;
    for (uint64_t done = 0; done < bytes; done += CHUNK) {
        uint64_t n = bytes - done < CHUNK ? bytes - done : CHUNK;
        int status = st->kind->read_state(st->backend, offset + done, n, w->chunk, err);
        if (!status)
            status = put(w, w->chunk, n, err);
        if (status)
            return status;
    }
    return SLUICE_OK;
}

static int put_all(struct save_writer *w, const struct save_header *h, uint32_t slot,
                   struct err *err) {
    int status = put(w, h, sizeof *h, err);
    if (!status)
        status = put(w, w->state->slots[slot].tokens, h->n_tokens * sizeof(int32_t), err);
    if (!status)
        status = state_each_stretch(w->state, slot, put_stretch, w, err);
    if (status)
        return status;
    uint64_t sum = hash64_end(&w->hash);
    return outfile_write(&w->out, &sum, sizeof sum, err);
}

static struct save_header header_of(const struct sluice_engine *e) {
    struct save_header h = {
        .version = SAVE_VERSION,
        .kv_type = e->setup.kv_type,
        .fingerprint = save_fingerprint(e),
        .is_exact = e->setup.exact,
    };
    memcpy(h.magic, magic, sizeof magic);
    return h;
}

int save_write(const struct sluice_seq *seq, const char *path, struct err *err) {
    const struct sluice_engine *e = seq->engine;
    const struct slot *s = &e->state.slots[seq->slot];
    struct save_header h = header_of(e);
    h.length = s->length;
    h.n_tokens = s->n_tokens;
    h.token = sluice_seq_token(seq);
    h.is_given = seq->is_given;
    h.state_bytes = state_stretch_bytes(&e->state, s->length);
    struct save_writer w = {.state = &e->state, .chunk = malloc(CHUNK), .out = {.fd = -1}};
    hash_begin(&w.hash);
    int status = w.chunk ? model_protect(e->model->model, path, err) : err_memory(err, path);
    if (!status)
        status = outfile_check_like(path, magic, sizeof magic, "a saved sequence", err);
    if (!status)
        status = outfile_open(&w.out, path, err);
    if (!status)
        status = put_all(&w, &h, seq->slot, err);
    if (!status)
        status = outfile_commit(&w.out, err);
    outfile_abort(&w.out);
    free(w.chunk);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------ */

static int damaged(const char *path, const char *how, struct err *err) {
    return err_set(err, SLUICE_ERR_FORMAT, "%s: the saved sequence %s", path, how);
}

/* The header fits this engine, and the file's size the header. */
static int check_header(const struct sluice_engine *e, const char *path, const struct filemap *map,
                        struct save_header *h, struct err *err) {
    struct save_header own = header_of(e);
    if (map->size < sizeof *h + sizeof(uint64_t) || memcmp(map->data, magic, sizeof magic) != 0)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: not a saved sequence", path);
    memcpy(h, map->data, sizeof *h);
    if (h->version != SAVE_VERSION)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "%s: the saved sequence has version %u, expected %d", path, h->version,
                       SAVE_VERSION);
    if (h->fingerprint != own.fingerprint)
        return damaged(path, "belongs to another model, or was made with another --mtp", err);
    if (h->kv_type != own.kv_type)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: the saved sequence has a KV cache (--kv) of %s, expected %s", path,
                       dtype_name(h->kv_type), dtype_name(own.kv_type));
    if (h->is_exact != own.is_exact)
        return damaged(path, own.is_exact ? "was not made with --exact" : "was made with --exact",
                       err);
    if (h->n_tokens > e->setup.context)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "%s: the saved sequence has %u tokens, expected at most %u (-c)", path,
                       h->n_tokens, e->setup.context);
    int32_t n_vocab = (int32_t)e->model->model->config.n_vocab;
    if (h->length > h->n_tokens || h->token < -1 || h->token >= n_vocab)
        return damaged(path, "is damaged: its header contradicts itself", err);
    uint64_t state = state_stretch_bytes(&e->state, h->length);
    uint64_t size = sizeof *h + h->n_tokens * sizeof(int32_t) + state + sizeof(uint64_t);
    if (h->state_bytes != state || map->size != size)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: the saved sequence has %zu bytes, expected %llu", path, map->size,
                       (unsigned long long)size);
    return SLUICE_OK;
}

static int check_content(const struct sluice_engine *e, const char *path, const struct filemap *map,
                         const struct save_header *h, struct err *err) {
    uint64_t sum, end = map->size - sizeof sum;
    memcpy(&sum, map->data + end, sizeof sum);
    if (hash64_of(map->data, end) != sum)
        return damaged(path, "is damaged: its checksum is wrong", err);
    const int32_t *tokens = (const int32_t *)(map->data + sizeof *h);
    for (uint32_t i = 0; i < h->n_tokens; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= e->model->model->config.n_vocab)
            return damaged(path, "is damaged: it has a token outside the vocabulary", err);
    return SLUICE_OK;
}

struct save_reader {
    const struct state *state;
    const uint8_t *at;
};

static int take_stretch(void *user, uint64_t offset, uint64_t bytes, struct err *err) {
    struct save_reader *r = user;
    const uint8_t *from = r->at;
    r->at += bytes;
    return r->state->kind->write_state(r->state->backend, offset, bytes, from, err);
}

static int fill_slot(struct sluice_engine *e, const uint8_t *data, const struct save_header *h,
                     uint32_t *slot, struct err *err) {
    int status = state_open(&e->state, slot, err);
    if (status)
        return status;
    struct slot *s = &e->state.slots[*slot];
    const uint8_t *tokens = data + sizeof *h;
    memcpy(s->tokens, tokens, h->n_tokens * sizeof *s->tokens);
    s->n_tokens = h->n_tokens;
    struct save_reader r = {&e->state, tokens + h->n_tokens * sizeof *s->tokens};
    status = state_adopt(&e->state, *slot, h->length, err);
    if (!status)
        status = state_each_stretch(&e->state, *slot, take_stretch, &r, err);
    if (status)
        state_close(&e->state, *slot, false);
    return status;
}

int save_read(struct sluice_engine *e, const char *path, struct saved *out, struct err *err) {
    struct filemap map = {.fd = -1};
    struct save_header h = {0};
    int status = filemap_open(&map, path, err);
    if (!status)
        status = check_header(e, path, &map, &h, err);
    if (!status)
        status = check_content(e, path, &map, &h, err);
    if (!status)
        status = fill_slot(e, map.data, &h, &out->slot, err);
    out->token = h.token;
    out->is_given = h.is_given;
    filemap_close(&map);
    return status;
}
