/* api_own.c - Sluice's own paths: health, metrics, tokens. */
#include "serve/http/openai.h"

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
    sluice_engine_memory(x->server->served.engine, &memory); /* constant after open */
    metrics_write(&x->server->metrics, &state, &memory, &text);
    if (text.has_failed)
        exchange_refuse(x, 500, NULL, "out of memory for metrics");
    else
        exchange_reply_text(x, 200, "text/plain; version=0.0.4", buffer_str(&text));
    buffer_free(&text);
}

/* ---- tokens -----------------------------------------------------------------------------------
 */

/* Written as text, not built as JSON: there may be millions. */
static void reply_tokens(struct exchange *x, const int32_t *tokens, size_t n) {
    struct buffer text = {0};
    buffer_puts(&text, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++)
        buffer_printf(&text, i ? ",%d" : "%d", tokens[i]);
    buffer_printf(&text, "],\"count\":%zu}", n);
    if (text.has_failed)
        exchange_refuse(x, 500, NULL, "out of memory for tokens");
    else
        exchange_reply_text(x, 200, "application/json", buffer_str(&text));
    buffer_free(&text);
}

static void tokenize_content(struct exchange *x, struct fields *f) {
    const json_t *content = fields_any(f, "content");
    const sluice_model *model = x->server->model.model;
    bool has_special = false, has_bos = false;
    size_t n = 0;
    fields_bool(f, "special", &has_special);
    fields_bool(f, "bos", &has_bos);
    if (!json_is_string(content))
        fields_refuse(f, "content", "content is %s, expected a string", json_kind(content));
    if (f->wrong) {
        exchange_refuse_field(x, f);
        return;
    }
    unsigned flags = (has_special ? SLUICE_ENCODE_SPECIAL : 0) | (has_bos ? SLUICE_ENCODE_BOS : 0);
    const char *text = json_string_value(content);
    size_t length = json_string_length(content);
    sluice_encode(model, text, length, flags, NULL, 0, &n);
    size_t capacity = n;
    int32_t *tokens = calloc(capacity + 1, sizeof *tokens);
    int status = tokens ? sluice_encode(model, text, length, flags, tokens, capacity, &n)
                        : SLUICE_ERR_MEMORY;
    if (status)
        exchange_refuse(x, 500, NULL, "content: %s", sluice_status_text(status));
    else
        reply_tokens(x, tokens, n);
    free(tokens);
}

/* {"content": TEXT, "special": false, "bos": false}, or {"messages": [...]} and the other fields of
 * a chat completion that are part of the prompt. */
void own_tokenize(struct exchange *x) {
    struct fields f;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    if (fields_any(&f, "messages")) {
        openai_read_conversation(ask, &f);
        if (exchange_encode(x, ask, &f))
            reply_tokens(x, ask->prompts[0].tokens, ask->prompts[0].n);
    } else {
        tokenize_content(x, &f);
    }
    ask_close(ask);
}

/* {"tokens": [...]} */
void own_detokenize(struct exchange *x) {
    const struct ask_model *m = &x->server->model;
    struct fields f;
    struct err err = {0};
    struct ask *ask = exchange_ask(x, &f);
    const json_t *list = NULL;
    int32_t *tokens = NULL;
    struct buffer text = {0};
    if (!ask)
        return;
    fields_array(&f, "tokens", &list);
    if (!f.wrong && !list)
        fields_refuse(&f, "tokens", "tokens is missing, expected an array");
    if (!f.wrong && ask_read_ids(m, "tokens", list, &tokens, &err))
        fields_refuse(&f, "tokens", "%s", err.text);
    if (f.wrong) {
        exchange_refuse_field(x, &f);
    } else {
        ask_decode(m, tokens, json_array_size(list), &text);
        exchange_reply(x, 200, json_pack("{s:o}", "content", json_of_text(buffer_str(&text))));
    }
    buffer_free(&text);
    free(tokens);
    ask_close(ask);
}
