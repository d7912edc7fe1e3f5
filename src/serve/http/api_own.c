/* api_own.c - Sluice's own paths: health and metrics. */
#include "serve/http/internal.h"

void own_health(struct exchange *x) {
    struct worker_state state;
    worker_state(x->server->worker, &state);
    bool is_good = !state.has_failed && !x->server->is_draining;
    exchange_reply_json(x, is_good ? 200 : 503,
                        json_pack("{s:s, s:s, s:i, s:i}", "status",
                                  state.has_failed         ? "the device failed"
                                  : x->server->is_draining ? "shutting down"
                                                           : "ok",
                                  "model", x->server->model.name, "running",
                                  (int)state.sched.running, "waiting", (int)state.sched.waiting));
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
        exchange_reply_body(x, 200, "text/plain; version=0.0.4", buffer_str(&text));
    buffer_free(&text);
}
