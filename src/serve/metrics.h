/* metrics.h - what is counted for /metrics, in Prometheus' text format.
 *
 * Any thread adds; each number is read atomically, but not all at one moment.
 */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

#include "serve/buffer.h"
#include "sluice.h"

enum { METRICS_MAX_BOUNDS = 14, METRICS_CODES = 600 };

/* How often a value was at most each bound. */
struct histogram {
    const double *bounds; /* rising */
    int n_bounds;
    atomic_uint_fast64_t counts[METRICS_MAX_BOUNDS + 1];
    atomic_uint_fast64_t micros; /* the sum, in millionths */
};
void histogram_add(struct histogram *h, double value);

struct metrics {
    double started;
    atomic_uint_fast64_t answers_by_code[METRICS_CODES]; /* responses by status */
    atomic_uint_fast64_t prompt_tokens;
    atomic_uint_fast64_t cached_device, cached_host, cached_disk; /* of these, known ones by tier */
    atomic_uint_fast64_t gone, cut; /* answers whose client went away, or read too slowly */
    atomic_int connections, exchanges;
    struct histogram first_token, between_tokens, whole, batch_rows;
};
void metrics_begin(struct metrics *m);

struct worker_state;
/* All of them. */
void metrics_write(const struct metrics *m, const struct worker_state *state,
                   const struct sluice_memory *memory, struct buffer *out);

#endif
