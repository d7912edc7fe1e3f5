/* build.h - writing plans: constructors that refuse what does not fit.
 *
 * A model adds ops one after the other; each is checked against its operands' shapes and types and
 * refused with a message naming op and operand. Scratch operands get their place in plan_finish:
 * two share memory if they are never alive at the same time.
 *
 * A plan is built by one thread. After plan_finish it is read-only and may be shared; it owns its
 * ops and is freed by plan_free. */
#ifndef PLAN_BUILD_H
#define PLAN_BUILD_H

#include "plan/plan.h"

struct plan_options {
    uint32_t max_rows, max_outputs;
    uint32_t n_slots;       /* sequences */
    uint32_t n_cells;       /* recurrent states: of sequences, and snapshots of them */
    uint32_t n_pages;       /* of KV cache, all sequences together */
    uint32_t pages_per_seq; /* the longest a sequence may get, in pages */
    enum dtype kv_type;
    uint32_t n_vocab;           /* as in struct plan */
    uint32_t n_taps, tap_width; /* copies of the residual to hand out, 0: none */
    bool has_draft_block;       /* steps keep the draft block's state */
    uint32_t burst_steps;       /* as in struct plan */
};

int plan_new(struct plan **out, const struct plan_options *options, struct err *err);
void plan_free(struct plan *plan); /* takes NULL */

/* Operands. The dims end at the first 0. */
struct operand operand_at(enum region region, enum dtype type, uint64_t offset,
                          const uint32_t dims[4]);
/* An impossible operand (rows of more than 2^32 - 1 values, bytes that overflow) sets the plan's
 * fault: the next plan_add or plan_finish returns it. */
/* (R, width) f32 in SCRATCH, without a place yet. */
struct operand plan_scratch(struct plan *plan, uint64_t width);
struct operand plan_scratch_of(struct plan *plan, enum dtype type, const uint32_t dims[4]);
/* The next piece of STATE, aligned to 256 bytes. The same order of calls gives the same offsets. */
struct operand plan_state(struct plan *plan, enum dtype type, const uint32_t dims[4]);
/* The page table as the next piece of STATE, once, before the first ATTEND: plan->pages. */
void plan_page_table(struct plan *plan, uint32_t pages_per_seq, uint32_t n_slots);
/* Columns [first, first + width) of an operand's rows. */
struct operand operand_columns(struct operand whole, uint32_t first, uint32_t width);
/* The first n rows of a matrix. */
struct operand operand_rows(struct operand whole, uint32_t n);
/* The tap of that number. */
struct operand plan_tap(const struct plan *plan, uint32_t number);
struct operand plan_logits(const struct plan *plan);

/* Adds a copy of `op`, whose operands fit together and are inside their regions. */
int plan_add(struct plan *plan, const struct op *op, struct err *err);

/* Lays scratch out and closes the plan. */
int plan_finish(struct plan *plan, struct err *err);

/* ---- looking at plans, for backends ------------------------------------------------------- */

/* What the largest of them needs of a region, and of the part of IO that is copied to the device:
 * everything before the page table changes. */
uint64_t plans_bytes(struct plan *const *plans, uint32_t n_plans, enum region region);
uint64_t plans_copied_io(struct plan *const *plans, uint32_t n_plans);
/* The PICK that reads the logits of op `head`, an LM head; NULL: none. */
const struct op *plan_pick_of(const struct plan *plan, uint32_t head);
/* Whether there are bursts of it: of decode plans, in which most rows may be outputs, and of those
 * of a draft block that drafts more than one token. */
bool plan_wants_burst(const struct plan *plan);
uint32_t plan_burst_steps(const struct plan *plan); /* at most IO_BURST */
/* "op 17 (mix in of layer 3)"; op n_ops is the step's end. */
const char *plan_op_text(const struct plan *plan, uint32_t op, char *text, size_t size);

/* ---- looking at ops, for layout, checks, explain and backends ------------------------------- */

enum { MAX_OPERANDS = 24 };

struct operand_ref {
    const char *name;
    struct operand *at;
    bool is_read, is_written;
};

/* The operands an op has (not the absent ones), in a fixed order; returns how many. */
uint32_t op_operands(struct op *op, struct operand_ref refs[MAX_OPERANDS]);

const char *op_name(enum op_kind kind);

/* Bytes of one row (dims[0]) and of the whole operand in memory. UINT64_MAX: overflow, or not a
 * whole number of the type's blocks; never for an operand of a plan. */
uint64_t operand_row_bytes(const struct operand *o);
uint64_t operand_bytes(const struct operand *o);

/* Bytes an op reads and writes for `rows` rows, weights counted once. */
struct op_traffic {
    uint64_t weights, state, scratch; /* by region, read and written */
    uint64_t read, written;           /* the same sum by direction */
};
/* A step, for counting what an op does in it. */
struct op_use {
    uint32_t rows, sequences; /* rows, and whose; each sequence's last row is an output */
    uint32_t context;         /* positions before the rows, plus one */
};
struct op_traffic op_traffic(const struct op *op, struct op_use use);
/* Multiplications and additions. */
double op_flops(const struct op *op, struct op_use use);

#endif
