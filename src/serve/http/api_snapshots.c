/* api_snapshots.c - conversations kept under an id: /v1/snapshots, and the field `snapshot`.
 *
 *   {"messages": [...], "tools": [...], "tokens": [...], "variables": {...}, "covers": N,
 *    "vocabulary": HASH}
 *
 * The processed state of a conversation is kept by the engine, in memory and in --cache-dir, and
 * found by its tokens. So a snapshot is the conversation and the tokens of its first `covers`
 * messages as they were sampled, with the template's variables then: with these a later request,
 * even of a later process, reuses what the engine has cached of it, and processes the rest again.
 */
#include <stdio.h>

#include "serve/http/openai.h"
#include "serve/http/snapshot.h"

/* ---- what is kept ------------------------------------------------------------------------- */

/* Hash of all tokens' texts: ids only make sense with the same vocabulary. */
static json_t *vocabulary_json(const struct ask_model *m) {
    struct hash h;
    char text[17];
    hash_begin(&h);
    for (int32_t t = 0; t < m->facts.n_tokens; t++) {
        size_t n;
        const char *at = sluice_token_text(m->model, t, &n);
        hash_add(&h, &n, sizeof n);
        hash_add(&h, at, n);
    }
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash64_end(&h));
    return json_string(text);
}

static json_t *tokens_json(const int32_t *tokens, size_t n) {
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, json_integer(tokens[i]));
    return out;
}

static json_t *snapshot_of(const struct server *s, const struct ask *ask) {
    struct replayed kept;
    size_t n_messages = ask_kept(ask, s->replay, &kept);
    json_t *out = json_pack("{s:O, s:o, s:I, s:o}", "messages", ask->messages, "tokens",
                            tokens_json(kept.tokens, kept.n), "covers", (json_int_t)n_messages,
                            "vocabulary", vocabulary_json(&s->model));
    if (ask->tools)
        json_object_set(out, "tools", ask->tools);
    if (kept.variables)
        json_object_set(out, "variables", kept.variables);
    replayed_free(&kept);
    return out;
}

/* NULL: there is none, or its file is damaged. */
static json_t *find(const struct server *s, const char *id) {
    size_t n;
    char *text = snapshots_get(s->snapshots, id, &n);
    bool lacks_memory;
    json_t *found =
        text ? json_load_whole((struct str){text, n}, JSON_ALLOW_NUL, NULL, &lacks_memory) : NULL;
    free(text);
    if (json_is_array(json_object_get(found, "messages")))
        return found;
    json_decref(found);
    return NULL;
}

static int keep(const struct server *s, const char *id, const json_t *snapshot, struct err *err) {
    struct buffer text = {0};
    int status = buffer_json_all_digits(&text, json_incref((json_t *)snapshot))
                     ? snapshots_put(s->snapshots, id, buffer_str(&text), err)
                     : err_memory(err, "a snapshot");
    buffer_free(&text);
    return status;
}

/* ---- going on from one -------------------------------------------------------------------- */

/* Adds its tokens to the replay store: the conversation's beginning as it was sampled. */
static void replay(const struct server *s, const struct ask *ask, const json_t *snapshot) {
    const json_t *list = json_object_get(snapshot, "tokens");
    json_int_t covers = json_integer_value(json_object_get(snapshot, "covers"));
    size_t n = json_array_size(list);
    json_t *vocabulary = vocabulary_json(&s->model);
    json_t *variables = json_object_get(snapshot, "variables");
    int32_t *tokens = json_equal(vocabulary, json_object_get(snapshot, "vocabulary")) && n > 0
                          ? malloc(n * sizeof *tokens)
                          : NULL;
    bool is_good = tokens && covers > 0 && covers <= (json_int_t)json_array_size(ask->messages);
    for (size_t i = 0; is_good && i < n; i++) {
        json_int_t token = json_integer_value(json_array_get(list, i));
        is_good = token >= 0 && token < s->model.facts.n_tokens;
        tokens[i] = (int32_t)token;
    }
    if (is_good)
        ask_keep(ask, s->replay, (size_t)covers, &(struct replayed){tokens, n, variables});
    json_decref(vocabulary);
    free(tokens);
}

void snapshot_fill(const struct server *s, struct ask *ask, struct fields *f,
                   const json_t *snapshot, bool begins_so) {
    const json_t *tools = json_object_get(snapshot, "tools");
    if (!ask->tools && tools)
        ask_read_tools(ask, f, tools);
    if (!f->wrong && begins_so)
        replay(s, ask, snapshot);
}

/* Continues the snapshot's conversation with that of the ask. */
static void go_on(const struct server *s, struct ask *ask, struct fields *f,
                  const json_t *snapshot) {
    json_t *asked = ask->messages;
    ask->messages = NULL;
    ask_read_messages(ask, f, json_object_get(snapshot, "messages"));
    if (ask->messages)
        json_array_extend(ask->messages, asked);
    json_decref(asked);
    snapshot_fill(s, ask, f, snapshot, true);
}

json_t *snapshot_named(const struct server *s, struct fields *f) {
    const char *id = NULL;
    fields_string(f, "snapshot", &id);
    json_t *snapshot = id && snapshot_id_is_good(id) ? find(s, id) : NULL;
    if (id && !snapshot)
        fields_refuse(f, "snapshot", "there is no snapshot %.80s", id);
    return snapshot;
}

void snapshot_begin(const struct server *s, struct ask *ask, struct fields *f) {
    json_t *snapshot = snapshot_named(s, f);
    if (snapshot)
        go_on(s, ask, f, snapshot);
    json_decref(snapshot);
}

/* ---- routes ------------------------------------------------------------------------------- */

static void refuse_unknown(struct exchange *x) {
    exchange_refuse(x, 404, NULL, "there is no snapshot %s", x->name);
}

/* What a client gets: the numbers of messages and tokens, not the content. */
static json_t *summary(const char *id, const json_t *snapshot) {
    return json_pack("{s:s, s:s, s:I, s:I}", "id", id, "object", "snapshot", "messages",
                     (json_int_t)json_array_size(json_object_get(snapshot, "messages")), "tokens",
                     (json_int_t)json_array_size(json_object_get(snapshot, "tokens")));
}

void snapshot_list(struct exchange *x) {
    exchange_reply_json(
        x, 200,
        json_pack("{s:s, s:o}", "object", "list", "data", snapshots_list(x->server->snapshots)));
}

void snapshot_get(struct exchange *x) {
    json_t *snapshot = find(x->server, x->name);
    if (!snapshot) {
        refuse_unknown(x);
        return;
    }
    json_t *out = summary(x->name, snapshot);
    json_object_set(out, "messages", json_object_get(snapshot, "messages"));
    if (json_object_get(snapshot, "tools"))
        json_object_set(out, "tools", json_object_get(snapshot, "tools"));
    exchange_reply_json_all_digits(x, 200, out);
    json_decref(snapshot);
}

void snapshot_delete(struct exchange *x) {
    struct err err = {0};
    bool is_there;
    int status = snapshots_drop(x->server->snapshots, x->name, &is_there, &err);
    if (status)
        exchange_refuse_status(x, status, &err);
    else if (is_there)
        exchange_reply_json(
            x, 200,
            json_pack("{s:s, s:s, s:b}", "id", x->name, "object", "snapshot", "deleted", 1));
    else
        refuse_unknown(x);
}

/* The id that a request gives, or a new one. */
static void read_id(struct fields *f, char out[SNAPSHOT_MAX_ID + 1]) {
    const char *id = NULL;
    char made[32];
    fields_string(f, "id", &id);
    answer_make_id("snap_", made);
    if (id && !snapshot_id_is_good(id))
        fields_refuse(f, "id", "id is '%.80s', expected 1 to %d letters, digits, _ and -", id,
                      SNAPSHOT_MAX_ID);
    else
        snprintf(out, SNAPSHOT_MAX_ID + 1, "%s", id ? id : made);
}

/* A body is optional if all of its fields are. */
static struct ask *read_request(struct exchange *x, struct fields *f) {
    if (x->body.len == 0 && buffer_puts(&x->body, "{}"))
        x->server->body_bytes += x->body.len;
    return exchange_ask(x, f);
}

/* Takes the snapshot. */
static void save(struct exchange *x, const struct fields *f, const char *id, json_t *snapshot) {
    struct err err = {0};
    int status = f->wrong || !snapshot ? SLUICE_OK : keep(x->server, id, snapshot, &err);
    if (f->wrong)
        exchange_refuse_field(x, f);
    else if (status == SLUICE_ERR_MEMORY)
        exchange_refuse(x, 507, NULL, "%s", err.text);
    else if (status)
        exchange_refuse_status(x, status, &err);
    else
        exchange_reply_json(x, 200, summary(id, snapshot));
    json_decref(snapshot);
}

void snapshot_save(struct exchange *x) {
    struct fields f;
    char id[SNAPSHOT_MAX_ID + 1] = "";
    const json_t *messages = NULL, *tools = NULL;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    read_id(&f, id);
    fields_array(&f, "messages", &messages);
    ask_read_messages(ask, &f, messages);
    fields_array(&f, "tools", &tools);
    ask_read_tools(ask, &f, tools);
    openai_read_thinking(ask, &f, NULL);
    save(x, &f, id, f.wrong ? NULL : snapshot_of(x->server, ask));
    ask_close(ask);
}

void snapshot_fork(struct exchange *x) {
    struct fields f;
    char id[SNAPSHOT_MAX_ID + 1] = "";
    json_t *snapshot = find(x->server, x->name);
    struct ask *ask = snapshot ? read_request(x, &f) : NULL;
    if (!snapshot)
        refuse_unknown(x);
    if (ask) {
        read_id(&f, id);
        save(x, &f, id, json_incref(snapshot));
    }
    ask_close(ask);
    json_decref(snapshot);
}

static json_t *restored(struct exchange *x) {
    const struct sched_report *r = &x->answers[0].end->report;
    return json_pack("{s:s, s:s, s:I, s:I, s:{s:I, s:I, s:I}, s:f}", "id", x->name, "object",
                     "snapshot", "tokens", (json_int_t)r->n_prompt, "cached_tokens",
                     (json_int_t)r->reuse.tokens, "from", "device", (json_int_t)r->reuse.device,
                     "host", (json_int_t)r->reuse.host, "disk", (json_int_t)r->reuse.disk,
                     "seconds", r->seconds);
}

/* Processes it, so that the next turn finds it on the device. */
void snapshot_restore(struct exchange *x) {
    static const struct style style = {.whole = restored};
    struct fields f;
    json_t *snapshot = find(x->server, x->name);
    struct ask *ask = snapshot ? read_request(x, &f) : NULL;
    if (!snapshot)
        refuse_unknown(x);
    if (ask) {
        openai_read_thinking(ask, &f, NULL);
        ask->messages = json_array();
        ask->max_tokens = 1; /* its token is not used */
        go_on(x->server, ask, &f, snapshot);
        exchange_converse(x, ask, &f, &style);
    }
    json_decref(snapshot);
}
