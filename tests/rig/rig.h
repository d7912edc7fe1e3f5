/* rig.h - one plan on two backends: the CPU, which defines what is right, and another.
 *
 * A test makes random weights and a plan (EMBED brings rows of a random table into scratch, TAP
 * takes results out), runs the same steps on both and compares what comes out, and STATE. */
#ifndef TESTS_RIG_RIG_H
#define TESTS_RIG_RIG_H

#include "backend/backend.h"
#include "plan/build.h"
#include "plan/io.h"
#include "test.h"

enum { RIG_CPU, RIG_DEVICE, RIG_BACKENDS };

struct rig {
    uint64_t random;
    uint8_t *weights;
    uint64_t used;
    struct plan *plan;
    struct plan_options options;
    struct backend *b[RIG_BACKENDS];
    uint32_t n_tokens;
    bool exact;
};

/* Each program of tests has its own. */
extern const struct backend_kind *const rig_kinds[RIG_BACKENDS];
/* Whether sizes of tests are for a driver that runs on the processor. */
bool rig_is_slow(void);
static inline const char *rig_name(void) {
    return rig_kinds[RIG_DEVICE]->name;
}
/* Called when a plan is done: fails the test if the validation layer has reported anything. */
void rig_check_validation(void);

void rig_begin(struct rig *r, uint64_t seed, const struct plan_options *options);
/* Closes the plan and opens both backends; false when one refused (the test has failed then). */
bool rig_open(struct rig *r);
void rig_end(struct rig *r);

uint64_t rig_bits(struct rig *r);
uint32_t rig_below(struct rig *r, uint32_t n);
float rig_uniform(struct rig *r); /* -1 to 1 */

/* A tensor of random values of about that size, in WEIGHTS. */
struct operand rig_tensor(struct rig *r, enum dtype type, const uint32_t dims[4], float size);
/* Scratch rows that EMBED fills from a random table: row r holds what token r names. */
struct operand rig_rows(struct rig *r, uint32_t width, float size);
int rig_add(struct rig *r, const struct op *op);
void rig_tap(struct rig *r, uint32_t number, struct operand x);

/* Rows of one sequence, whose state is in the cell of its slot's number: as an io_segment. */
struct rig_segment {
    uint32_t slot, first_position, n_rows;
};
/* The same step on one backend; every row is an output. Tokens are random but for a given step. */
void rig_step(struct rig *r, int backend, const struct rig_segment *segments, uint32_t n_segments,
              uint64_t token_seed);
/* A step of one segment, of which row i stores its state to cell to[i]. */
void rig_step_to(struct rig *r, int backend, const struct rig_segment *segment, const uint32_t *to,
                 uint64_t token_seed);
/* A step of several segments, of which segment i begins with the state of cells[i] and row k stores
 * its own to to[k]. */
void rig_step_cells(struct rig *r, int backend, const struct rig_segment *segments,
                    uint32_t n_segments, const uint32_t *cells, const uint32_t *to,
                    uint64_t token_seed);
const float *rig_output(struct rig *r, int backend, uint32_t tap, uint32_t row);

/* The largest difference of n values, in units of their root mean square (of the first). */
double rig_distance(const float *a, const float *b, size_t n);

#endif
