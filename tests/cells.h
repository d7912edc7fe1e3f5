/* cells.h - steps whose recurrent states stay where they are. */
#ifndef TESTS_CELLS_H
#define TESTS_CELLS_H

#include "plan/io.h"
#include "plan/plan.h"

/* Call it when header and segments are filled in. */
static inline void update_in_place(uint8_t *io, const struct plan *plan) {
    const struct io_header *header = (const struct io_header *)io;
    const struct io_segment *segments = (const struct io_segment *)(io + plan->io.segments);
    uint32_t *to = (uint32_t *)(io + plan->io.to);
    for (uint32_t i = 0; i < header->n_rows; i++)
        to[i] = IO_NO_CELL;
    for (uint32_t i = 0; i < header->n_segments; i++)
        to[segments[i].first_row + segments[i].n_rows - 1] = segments[i].cell;
}

#endif
