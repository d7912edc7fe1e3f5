/* metrics.c - what is counted for /metrics, in Prometheus' text format. */
#include "serve/metrics.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "serve/worker.h"

static const double seconds_bounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                        1,     2.5,  5,     10,   30,  60,   300};
static const double interval_bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.035,
                                         0.05,   0.075, 0.1,    0.25,  0.5,  1,    5};
static const double row_bounds[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};

#define BOUNDS(list)                                                                               \
    { .bounds = list, .n_bounds = sizeof list / sizeof *list }

void metrics_begin(struct metrics *m) {
    *m = (struct metrics){
        .started = seconds_now(),
        .first_token = BOUNDS(seconds_bounds),
        .between_tokens = BOUNDS(interval_bounds),
        .whole = BOUNDS(seconds_bounds),
        .batch_rows = BOUNDS(row_bounds),
    };
}

void histogram_add(struct histogram *h, double value) {
    int i = 0;
    while (i < h->n_bounds && value > h->bounds[i])
        i++;
    atomic_fetch_add_explicit(&h->counts[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->micros, (uint_fast64_t)(value * 1e6), memory_order_relaxed);
}

/* ---- writing ------------------------------------------------------------------------------ */

static void write_histogram(const struct histogram *h, const char *name, const char *help,
                            struct buffer *out) {
    uint64_t sum = 0;
    buffer_printf(out, "# HELP sluice_%s %s\n# TYPE sluice_%s histogram\n", name, help, name);
    for (int i = 0; i < h->n_bounds; i++) {
        sum += h->counts[i];
        buffer_printf(out, "sluice_%s_bucket{le=\"%g\"} %llu\n", name, h->bounds[i],
                      (unsigned long long)sum);
    }
    sum += h->counts[h->n_bounds];
    buffer_printf(out, "sluice_%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)sum);
    buffer_printf(out, "sluice_%s_sum %.6f\nsluice_%s_count %llu\n", name, 1e-6 * (double)h->micros,
                  name, (unsigned long long)sum);
}

static void write_responses(const struct metrics *m, struct buffer *out) {
    buffer_puts(out, "# HELP sluice_responses_total HTTP responses by status\n"
                     "# TYPE sluice_responses_total counter\n");
    for (int code = 0; code < METRICS_CODES; code++)
        if (m->answers_by_code[code])
            buffer_printf(out, "sluice_responses_total{code=\"%d\"} %llu\n", code,
                          (unsigned long long)m->answers_by_code[code]);
}

/* A family with one value per label. */
struct family {
    const char *name, *type, *help, *label;
    struct {
        const char *of;
        uint64_t value;
    } rows[4];
};

static void write_family(const struct family *f, struct buffer *out) {
    buffer_printf(out, "# HELP sluice_%s %s\n# TYPE sluice_%s %s\n", f->name, f->help, f->name,
                  f->type);
    for (size_t i = 0; i < sizeof f->rows / sizeof *f->rows && f->rows[i].of; i++)
        buffer_printf(out, "sluice_%s{%s=\"%s\"} %llu\n", f->name, f->label, f->rows[i].of,
                      (unsigned long long)f->rows[i].value);
}

static void write_tiers(const struct metrics *m, const struct worker_state *s, struct buffer *out) {
    const struct sluice_counters *c = &s->engine;
    const struct family families[] = {
        {"cached_tokens_total",
         "counter",
         "prompt tokens that were known already, by where they were",
         "tier",
         {{"device", m->cached_device}, {"host", m->cached_host}, {"disk", m->cached_disk}}},
        {"cache_bytes",
         "gauge",
         "of conversations that run or are kept, by where they are",
         "tier",
         {{"device", s->kept.device}, {"host", s->kept.host}, {"disk", s->kept.disk}}},
        {"cache_moved_bytes_total",
         "counter",
         "of conversations, moved from tier to tier",
         "path",
         {{"to_host", c->to_host.bytes},
          {"from_host", c->from_host.bytes},
          {"to_disk", c->to_disk.bytes},
          {"from_disk", c->from_disk.bytes}}},
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        write_family(&families[i], out);
}

void metrics_write(const struct metrics *m, const struct worker_state *s,
                   const struct sluice_memory *memory, struct buffer *out) {
    struct memory_heap heap;
    bool has_heap = memory_heap(&heap);
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"up", "gauge", "1 while the engine works", !s->has_failed},
        {"uptime_seconds", "gauge", "since the server started", seconds_now() - m->started},
        {"connections", "gauge", "open connections", m->connections},
        {"requests_active", "gauge", "HTTP requests that are not answered yet", m->exchanges},
        {"requests_total", "counter", "requests the scheduler accepted", (double)s->sched.requests},
        {"answers_running", "gauge", "answers that have a sequence", s->sched.running},
        {"answers_waiting", "gauge", "answers in the queue", s->sched.waiting},
        {"answers_max", "gauge", "answers that may run or wait", s->max_answers},
        {"answers_total", "counter", "answers that ended", (double)s->sched.answers},
        {"answers_preempted_total", "counter", "answers that had to wait again for memory",
         (double)s->sched.preempted},
        {"clients_gone_total", "counter", "answers whose client went away", (double)m->gone},
        {"clients_slow_total", "counter", "answers cut off as the client read too slowly",
         (double)m->cut},
        {"prompt_tokens_total", "counter", "tokens of prompts, known ones included",
         (double)m->prompt_tokens},
        {"new_tokens_total", "counter", "tokens that were sampled", (double)s->sched.tokens},
        {"engine_steps_total", "counter", "steps of the engine", (double)s->engine.steps},
        {"engine_rows_total", "counter", "rows of all steps", (double)s->engine.rows},
        {"engine_submissions_total", "counter", "submissions to the device",
         (double)s->engine.submissions},
        {"engine_seconds_total", "counter", "time in the engine's steps", s->sched.engine_seconds},
        {"scheduler_seconds_total", "counter", "time of the scheduler besides",
         s->sched.own_seconds},
        {"cache_hits_total", "counter", "sequences that found a known beginning",
         (double)s->engine.resumed_hits},
        {"cache_lookups_total", "counter", "sequences that looked for one",
         (double)s->engine.resumed},
        {"cache_evicted_total", "counter", "blocks and snapshots that left the device",
         (double)s->engine.evicted},
        {"cache_spilled_total", "counter", "of these, those that went to memory or disk",
         (double)s->engine.spilled},
        {"cache_loaded_total", "counter", "and those read from there", (double)s->engine.loaded},
        {"kv_pages", "gauge", "pages of the KV cache", s->pages.total},
        {"kv_pages_free", "gauge", "of these, unused or kept for later only", s->pages.free},
        {"device_memory_bytes", "gauge", "all that is allocated", (double)memory->total},
        {"weights_bytes", "gauge", "of the weights", (double)(memory->weights + memory->packed)},
        {"state_bytes", "gauge", "of KV cache, recurrent state and snapshots",
         (double)memory->state},
        /* The last two only where malloc says. */
        {"heap_used_bytes", "gauge", "of malloc's memory, in use", heap.used},
        {"heap_held_bytes", "gauge", "of malloc's memory, in use or kept for later", heap.held},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows - (has_heap ? 0 : 2); i++)
        buffer_printf(out, "# HELP sluice_%s %s\n# TYPE sluice_%s %s\nsluice_%s %.15g\n",
                      rows[i].name, rows[i].help, rows[i].name, rows[i].type, rows[i].name,
                      rows[i].value);
    write_responses(m, out);
    write_tiers(m, s, out);
    write_histogram(&m->first_token, "first_token_seconds", "until an answer's first token", out);
    write_histogram(&m->between_tokens, "between_tokens_seconds", "from token to token", out);
    write_histogram(&m->whole, "answer_seconds", "until an answer's end", out);
    write_histogram(&m->batch_rows, "step_rows", "rows of a step", out);
}
