/* plan.c - the plan of a step: what each op reads, and how long it takes.
 *
 * GET /v1/plan returns what is known, POST /v1/plan has the step timed first: by the worker's
 * thread, when no answer runs or waits, so that answers are not slowed down. Requests that arrive
 * meanwhile get the figures of the same run. */
#include "base/clock.h"
#include "serve/http/internal.h"

/* Takes the plan; NULL: it failed, and the known one stays. */
static bool keep(struct server *s, json_t *plan) {
    struct buffer text = {0};
    bool is_good = plan && buffer_json(&text, plan);
    if (!is_good) {
        buffer_free(&text);
        return false;
    }
    pthread_mutex_lock(&s->plan_lock);
    buffer_free(&s->plan);
    s->plan = text;
    s->planned_at = seconds_now();
    pthread_mutex_unlock(&s->plan_lock);
    return true;
}

static void tell(struct exchange *x) {
    struct server *s = x->server;
    pthread_mutex_lock(&s->plan_lock);
    exchange_reply_body(x, 200, "application/json", buffer_str(&s->plan));
    pthread_mutex_unlock(&s->plan_lock);
}

void plan_open(struct server *s) {
    pthread_mutex_init(&s->plan_lock, NULL);
}

int plan_start(struct server *s, struct err *err) {
    const struct served *m = &s->served;
    return !m->plan || keep(s, m->plan(m->plan_user, false)) ? SLUICE_OK
                                                             : err_memory(err, "the plan");
}

void plan_close(struct server *s) {
    buffer_free(&s->plan);
    pthread_mutex_destroy(&s->plan_lock);
}

/* ---- handlers ----------------------------------------------------------------------------- */

void own_plan(struct exchange *x) {
    if (x->server->served.plan)
        tell(x);
    else
        exchange_refuse(x, 404, NULL, "there is no plan");
}

struct measure {
    struct worker_task task;
    struct exchange *x;
};

static void measure(struct worker_task *task, bool has_engine) {
    struct measure *m = (struct measure *)task;
    struct exchange *x = m->x;
    struct server *s = x->server;
    bool is_known = s->planned_at > x->arrived; /* only this thread sets it now */
    if (!has_engine)
        exchange_refuse(x, 503, NULL, "the server is shutting down or its device failed");
    else if (is_known || keep(s, s->served.plan(s->served.plan_user, true)))
        tell(x);
    else
        exchange_refuse(x, 500, NULL, "the step cannot be timed");
    exchange_release(x);
    free(m);
}

void own_measure(struct exchange *x) {
    struct measure *m = x->server->served.plan ? malloc(sizeof *m) : NULL;
    if (!x->server->served.plan)
        exchange_refuse(x, 404, NULL, "there is no plan");
    else if (!m)
        exchange_refuse(x, 500, NULL, "out of memory for a request");
    if (!m)
        return;
    *m = (struct measure){.task.run = measure, .x = x};
    x->refs++;
    worker_add_task(x->server->worker, &m->task);
}
