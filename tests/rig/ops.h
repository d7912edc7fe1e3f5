/* ops.h - plans of one op, random, and checks of them against the CPU: what the tests of all
 * backends share.
 *
 * Both quantize activations to int8 alike, but a sum that rounds the other way can turn one quant
 * by one step: 1/127 of a group's largest value in one of K terms. Products of K terms then differ
 * by about 1e-3 of their own size now and then; without int8 only rounding is left. */
#ifndef TESTS_RIG_OPS_H
#define TESTS_RIG_OPS_H

#include "formats.h"
#include "rig.h"

#define INT8_BOUND 6e-3
#define F32_BOUND 2e-4

bool is_float(enum dtype t);

struct project_case {
    uint32_t k, rows;
    uint32_t n[MAX_SEGMENTS];
    enum dtype types[MAX_SEGMENTS];
    uint32_t n_segments;
    bool f32_last; /* the last segment is multiplied with f32 activations */
    bool has_bias;
    enum prologue prologue;
    enum epilogue epilogue;
    uint32_t head_width;
    bool is_lm_head, exact;
    float size; /* of the inputs; 0: 1 */
};

struct delta_case {
    uint32_t key_heads, value_heads, key_width, value_width, taps;
    enum head_map map;
    uint32_t rows;
};

struct attend_case {
    uint32_t heads, kv_heads, width, rotary, rows, context;
    enum dtype kv;
    enum rope_pairing pairing;
    bool has_norms;
};

/* Types and widths of every matrix on its own, as files mix them. */
struct experts_case {
    enum dtype gate, up, down, shared_in, shared_down;
    uint32_t width, inner, shared, experts, used;
    bool is_unnormed; /* weights of a softmax over all experts */
};

void build_project(struct rig *r, const struct project_case *c, uint64_t seed);
void check_project(const struct project_case *c, uint64_t seed);
/* Random products: n of them, of the first `widths` widths, with up to this many rows and results.
 */
struct project_shapes {
    uint32_t n, widths, rows, results;
    const enum dtype *types;
    uint32_t n_types;
};
void check_project_shapes(const struct project_shapes *all);
/* Widths without whole groups of 32, f32 throughout. */
void check_project_odd_widths(void);
/* Whether row `row` of the last step of `many` has other bits in a step of its own. */
bool differs_alone(struct rig *one, struct rig *many, struct rig_segment own, uint32_t row,
                   uint64_t token_seed);
/* A product of many rows: some of them, alone, have the same bits. */
void check_some_rows(const struct project_case *wide, uint64_t seed, uint32_t n_rows);
void build_delta(struct rig *r, const struct delta_case *c, uint32_t slots, uint64_t seed);
void step_both(struct rig *r, const struct rig_segment *segments, uint32_t n);
/* The first output of every row, against the CPU's. */
void check_rows(struct rig *r, size_t i, uint32_t step, uint32_t rows, double bound);
double state_distance(struct rig *r);
/* Steps of up to three sequences, each with a segment of its own length, and STATE after them. */
void check_delta(const struct delta_case *c, uint64_t seed);
void *read_state(struct rig *r);
/* Whether both devices' STATE, of one size, has the same bits. */
bool has_same_state(struct rig *a, struct rig *b);
/* A row's bits are its own: alone in a plan of one row, or among other sequences, as many as there
 * is room for or fewer; every third step the last of them has all rows that are left. Where there
 * is more room than sequences, every other one has several rows. */
void check_delta_rows(const struct delta_case *c, uint64_t seed);
/* n rows after `before` ones, of which all or every third store to a cell of their own: each cell
 * has the bits that a shorter run leaves in place, and the segment's own is as it was. */
void check_cells(const struct delta_case *c, uint32_t before, uint32_t n, uint64_t seed);
/* Many steps of single rows, by as many sequences as there is room for or fewer; now and then some
 * have several rows, or a state is copied away, or comes back from there: the rows and the states
 * have the bits of a plan of one row. A plan of at least 20 rows. */
void check_delta_logs(const struct delta_case *c, uint32_t steps, uint64_t seed);
struct operand build_attend(struct rig *r, const struct attend_case *c, uint32_t slots,
                            uint64_t seed);
/* Pages in an order of their own. */
void deal_pages(struct rig *r, const struct operand *pages);
/* Steps of up to three sequences until the first has its context. */
void check_attend(const struct attend_case *c, uint64_t seed);
/* A row's bits are its own: alone, or in any step among others. */
void check_attend_rows(const struct attend_case *c, uint64_t seed);
/* A plan whose caches hold other conversations' positions and this one's. */
bool open_far(struct rig *r, const struct attend_case *c, uint32_t slots, uint64_t seed);
/* Up to `most` rows that end before position `end` of a long context, alone and in a plan of
 * `rows`: the same bits, and what the CPU has. */
void check_attend_far(const struct attend_case *alone, uint32_t rows, uint32_t end, uint32_t most,
                      bool has_cpu, uint64_t seed);
/* Steps of single rows of many sequences: each has the bits that it has alone. */
void check_attend_many(const struct attend_case *c, uint32_t slots, uint64_t seed);
void build_experts(struct rig *r, const struct experts_case *c, uint32_t rows, uint64_t seed);
/* A step of n rows, in a plan for at least as many: a row alone has the bits that it has among
 * others; and up to 70 rows against the CPU. Of many rows every seventh, and the last. */
void check_experts(struct rig *many, struct rig *one, const struct experts_case *c, uint32_t n);
/* Segments of random lengths, rows that generate among them, as long as the first slot has room. */
uint32_t random_segments(struct rig *r, const struct attend_case *c, uint32_t at[3],
                         struct rig_segment *segments);

#endif
