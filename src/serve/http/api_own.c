/* api_own.c - Sluice's own paths: health, metrics, tokens. */
#include "serve/http/inside.h"

void own_health(struct exchange *x) {
    struct worker_state state;
    worker_state(x->server->worker, &state);
    bool is_good = !state.has_failed && !x->server->is_draining;
    exchange_reply(x, is_good ? 200 : 503,
                   json_pack("{s:s, s:s, s:i, s:i}", "status",
                             state.has_failed         ? "the device failed"
                             : x->server->is_draining ? "shutting down"
                                                      : "ok",
                             "model", x->server->model.name, "running", (int)state.sched.running,
                             "waiting", (int)state.sched.waiting));
}

void own_metrics(struct exchange *x) {
    struct worker_state state;
    struct sluice_memory memory;
    struct buffer text = {0};
    worker_state(x->server->worker, &state);
    sluice_engine_memory(x->server->options.engine, &memory); /* fixed since open */
    metrics_write(&x->server->metrics, &state, &memory, &text);
    if (text.has_failed)
        exchange_refuse(x, 500, NULL, "out of memory for metrics");
    else
        exchange_reply_text(x, 200, "text/plain; version=0.0.4", buffer_str(&text));
    buffer_free(&text);
}

/* ---- tokens -----------------------------------------------------------------------------------
 */

static json_t *ids_json(const struct job_prompt *p) {
    json_t *ids = json_array();
    for (size_t i = 0; i < p->n; i++)
        json_array_append_new(ids, json_integer(p->tokens[i]));
    return json_pack("{s:o, s:I}", "tokens", ids, "count", (json_int_t)p->n);
}

/* {"content": TEXT, "special": false, "bos": false}, or {"messages": [...]} as the model gets them.
 */
void own_tokenize(struct exchange *x) {
    const struct ask_model *m = &x->server->model;
    struct fields f;
    struct err err = {0};
    struct ask *ask = exchange_ask(x, &f);
    const json_t *messages = NULL, *content = NULL;
    bool has_special = false, has_bos = false;
    if (!ask)
        return;
    fields_array(&f, "messages", &messages);
    fields_bool(&f, "special", &has_special);
    fields_bool(&f, "bos", &has_bos);
    if (messages)
        ask_read_messages(ask, &f, messages);
    else if (!json_is_string(content = fields_any(&f, "content")))
        fields_refuse(&f, "content", "content is %s, expected a string", json_kind(content));
    unsigned flags = (has_special ? SLUICE_ENCODE_SPECIAL : 0) | (has_bos ? SLUICE_ENCODE_BOS : 0);
    int status =
        f.wrong ? SLUICE_OK
        : messages
            ? ask_encode(ask, m, NULL, &err)
            : ask_add_encoded(ask, m,
                              (struct str){json_string_value(content), json_string_length(content)},
                              flags, &err);
    if (f.wrong)
        exchange_refuse_field(x, &f);
    else if (status)
        exchange_refuse_status(x, status, &err);
    else
        exchange_reply(x, 200, ids_json(&ask->prompts[0]));
    ask_close(ask);
}

/* {"tokens": [...]} */
void own_detokenize(struct exchange *x) {
    const struct ask_model *m = &x->server->model;
    struct fields f;
    struct err err = {0};
    struct ask *ask = exchange_ask(x, &f);
    const json_t *tokens = NULL;
    struct buffer text = {0};
    if (!ask)
        return;
    fields_array(&f, "tokens", &tokens);
    if (!f.wrong && json_array_size(tokens) > 0 && ask_add_ids(ask, m, tokens, &err))
        fields_refuse(&f, "tokens", "%s", err.text);
    else if (!f.wrong && !tokens)
        fields_refuse(&f, "tokens", "tokens is not there, expected an array");
    if (f.wrong)
        exchange_refuse_field(x, &f);
    else {
        if (ask->n_prompts > 0)
            ask_decode(m, ask->prompts[0].tokens, ask->prompts[0].n, &text);
        exchange_reply(x, 200, json_pack("{s:o}", "content", json_of_text(buffer_str(&text))));
    }
    buffer_free(&text);
    ask_close(ask);
}
