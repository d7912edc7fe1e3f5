/* io.h - the IO block: everything that differs between two steps.
 *
 * The host writes it between steps, a step reads it from memory and writes the picked tokens (and
 * logits where wanted) back. Fixed layout, shared by C and CUDA: header, then rows, segments, cells
 * to store to, outputs and page changes at the offsets that the plan gives.
 *
 * A cell is the memory of one recurrent state: the delta-net states and conv windows of all layers.
 * A segment begins with the state of its cell; `to`, one cell number per row, says where the state
 * after that row is stored, IO_NO_CELL: nowhere. The last row of a segment always stores. It may
 * store to the cell that its segment began with (a state that is updated in place, as in most
 * steps) or to another, which leaves the first one as it was: a snapshot. A segment of one row is
 * in place, except in a draft block's plans (JOIN without x), where HIDDEN alone stores state. Rows
 * before the last store to cells that nothing else uses in this step.
 *
 * The last rows of a segment may hold drafts: guesses of the tokens that come next. They and the
 * row before them are all outputs that want a token. A drafted row is kept if the row before it is
 * kept and its token was picked for that one: the result is as if it had been fed in a later step.
 * The host ignores what the other drafted rows wrote. */
#ifndef PLAN_IO_H
#define PLAN_IO_H

#include <stdint.h>

enum {
    IO_PAGE_POSITIONS = 256, /* positions of a page of the KV cache */
    IO_BURST = 8,            /* most steps of a burst; sequences go on from their own tokens */
    IO_MAX_ENDS = 5,         /* tokens that end an answer */
};

enum io_row_flag {
    IO_WANTS_LOGITS = 1, /* its logits are copied out */
    IO_WANTS_TOKEN = 2,  /* a token is picked for it */
    IO_DRAFTED = 4,      /* its row holds a draft; the output before it is that of the row before */
    IO_HAS_MASK = 8,     /* one that its row of the masks allows */
    IO_KEEPS_MASK = 16,  /* in a burst: it is over after a token that is not in its row of keeps */
};

enum { IO_NO_CELL = 0xffffffffu };

/* The token of an output whose logits are not all finite, whatever it wanted. */
enum { IO_NOT_FINITE = -2 };

struct io_header {
    uint32_t n_rows;      /* rows of this step, at most the plan's */
    uint32_t n_segments;  /* runs of rows of one sequence */
    uint32_t n_outputs;   /* rows that go through the head, at most the plan's */
    uint32_t n_changes;   /* page-table changes to apply before the step */
    uint64_t step;        /* counts up; a completion flag for backends that need one */
    uint32_t reserved[2]; /* for backends */
    /* Of a burst: an output for which one of these tokens is picked is over, and so is one whose
     * mask no longer holds after its token (IO_KEEPS_MASK). Its sequence's state stays as it was
     * before that token; the remaining steps store to the spare cell. */
    uint32_t n_ends, spare_cell;
    int32_t ends[IO_MAX_ENDS];
    uint32_t n_drafts; /* outputs that are IO_DRAFTED */
};

/* One row: a token at a position of a sequence. */
struct io_row {
    int32_t token;
    uint32_t position;
    uint32_t slot;
    uint32_t segment; /* index into the segments */
};

/* Rows [first_row, first_row + n_rows) belong to one sequence and are consecutive positions. */
struct io_segment {
    uint32_t cell; /* holds the state before its first position */
    uint32_t first_row, n_rows;
    uint32_t first_position; /* = positions that the sequence's memory already holds */
};

/* A row that goes through the head, and how its token is picked. */
struct io_output {
    uint32_t row;
    uint32_t flags;    /* enum io_row_flag */
    float temperature; /* 0: the best token */
    float top_p, min_p;
    uint32_t top_k; /* 0: all */
    float repeat_penalty, presence_penalty, frequency_penalty;
    uint32_t n_bias, first_bias; /* logit biases, in the list of biases */
    uint32_t n_vocab;            /* tokens that may be picked: padding rows are after them */
    uint64_t seed;
    int32_t token;    /* out: the token picked, or IO_NOT_FINITE */
    uint32_t is_over; /* 0; on the device, in a burst: see ends */
};

/* Page `index` of a slot's table becomes `page`. */
struct io_change {
    uint32_t slot, index, page, reserved;
};

struct io_bias {
    int32_t token;
    float bias;
};

/* Words of a row of masks, and of keeps: bit t % 32 of word t / 32 allows token t. At least one of
 * the output's first n_vocab tokens is allowed. */
#define IO_MASK_WORDS(n_vocab) (((n_vocab) + 127) / 128 * 4)

/* Below all meaningful logits: an allowed token's logit is raised to this, whatever its biases, so
 * that no other is ever picked in its place. */
#define IO_LEAST_ALLOWED (-1e30f)

#ifdef __cplusplus
#define IO_ASSERT static_assert
#else
#define IO_ASSERT _Static_assert
#endif
IO_ASSERT(sizeof(struct io_header) == 64, "io_header");
IO_ASSERT(sizeof(struct io_row) == 16, "io_row");
IO_ASSERT(sizeof(struct io_segment) == 16, "io_segment");
IO_ASSERT(sizeof(struct io_output) == 64, "io_output");
IO_ASSERT(sizeof(struct io_change) == 16, "io_change");
IO_ASSERT(sizeof(struct io_bias) == 8, "io_bias");

#endif
