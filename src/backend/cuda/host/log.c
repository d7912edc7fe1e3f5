/* log.c - keeps account of delta-net states that lack their last rows (ops/delta.h: the log).
 *
 * The device knows how many entries each log has; the host knows which cells may have some, and
 * settles them before anything but delta_log touches their states: a step of a plan without
 * logs, a prefill segment, a row that stores to them, and every read, write or copy of STATE. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/host/cuda.h"
#include "backend/cuda/ops/delta.h"
#include "base/size.h"

/* ---- where logs are ----------------------------------------------------------------------- */

static uint64_t count_bytes(const struct cuda_log *l) {
    uint64_t bytes = (uint64_t)l->tiles * l->cells * sizeof(uint32_t);
    CHECK(size_align(bytes, 256, &bytes));
    return bytes;
}

static uint64_t key_bytes(const struct cuda_log *l) {
    return (uint64_t)l->heads.key_heads * l->cells * DELTA_LOG_ENTRIES * DELTA_LOG_KEY *
           sizeof(float);
}

static uint64_t log_bytes(const struct cuda_log *l) {
    uint64_t entries = (uint64_t)l->tiles * l->cells * DELTA_LOG_ENTRIES, bytes;
    CHECK(size_align(entries * DELTA_LOG_FLOATS * sizeof(float), 256, &bytes));
    return count_bytes(l) + key_bytes(l) + bytes;
}

const struct cuda_log *recorder_log(struct recorder *r, const struct operand *state, uint32_t tiles,
                                    uint32_t cells, struct delta_log_heads heads) {
    struct cuda_logs *logs = &r->b->logs;
    for (uint32_t i = 0; i < logs->n; i++)
        if (logs->list[i].state == state->offset)
            return logs->list[i].tiles == tiles && logs->list[i].cells == cells ? &logs->list[i]
                                                                                : NULL;
    if (logs->n == CUDA_MAX_LOGS || !r->is_counting)
        return NULL;
    struct cuda_log *l = &logs->list[logs->n++];
    *l = (struct cuda_log){
        .state = state->offset,
        .cell_bytes = operand_bytes(state) / state->dims[3],
        .at = logs->bytes,
        .tiles = tiles,
        .cells = cells,
        .heads = heads,
    };
    logs->bytes += log_bytes(l);
    return l;
}

uint32_t *cuda_log_counts(const struct backend *b, const struct cuda_log *l) {
    return (uint32_t *)(uintptr_t)(b->log_memory.at + l->at);
}

float *cuda_log_keys(const struct backend *b, const struct cuda_log *l) {
    return (float *)(uintptr_t)(b->log_memory.at + l->at + count_bytes(l));
}

float *cuda_log_entries(const struct backend *b, const struct cuda_log *l) {
    return (float *)(uintptr_t)(b->log_memory.at + l->at + count_bytes(l) + key_bytes(l));
}

int cuda_open_logs(struct backend *b, struct err *err) {
    struct cuda_logs *logs = &b->logs;
    for (uint32_t i = 0; i < logs->n; i++)
        logs->n_cells = max_u32(logs->n_cells, logs->list[i].cells);
    if (logs->n_cells == 0)
        return SLUICE_OK;
    logs->is_open = arena_alloc(&b->arena, logs->n_cells);
    logs->settling = arena_alloc(&b->arena, logs->n_cells * sizeof *logs->settling);
    logs->settle = cuda_function(b, SETTLE_KERNEL);
    if (!logs->is_open || !logs->settling)
        return err_memory(err, "the logs' account");
    memset(logs->is_open, 0, logs->n_cells);
    return logs->settle ? SLUICE_OK
                        : err_set(err, SLUICE_ERR_DEVICE, "no CUDA kernel %s in this program",
                                  SETTLE_KERNEL);
}

/* ---- settling ----------------------------------------------------------------------------- */

static void add_cell(struct cuda_logs *logs, uint32_t cell) {
    if (cell < logs->n_cells && logs->is_open[cell]) {
        logs->is_open[cell] = 0;
        logs->n_open--;
        logs->settling[logs->n_settling++] = cell;
    }
}

/* Launches what settles the listed cells: the stream's next work sees it done. */
static int settle(struct backend *b, struct err *err) {
    struct cuda_logs *logs = &b->logs;
    int status = SLUICE_OK;
    for (uint32_t c = 0; !status && c < logs->n_settling; c += SETTLE_CELLS)
        for (uint32_t first = 0; !status && first < logs->n; first += SETTLE_LAYERS) {
            struct settle_params p = {0};
            uint32_t n_cells = min_u32(logs->n_settling - c, SETTLE_CELLS), tiles = 0;
            uint32_t n_layers = min_u32(logs->n - first, SETTLE_LAYERS);
            memcpy(p.cells, logs->settling + c, n_cells * sizeof *p.cells);
            for (uint32_t i = 0; i < n_layers; i++) {
                const struct cuda_log *l = &logs->list[first + i];
                p.layers[i] = (struct settle_layer){
                    .state = (float *)(uintptr_t)(b->state.at + l->state),
                    .counts = cuda_log_counts(b, l),
                    .log_keys = cuda_log_keys(b, l),
                    .log = cuda_log_entries(b, l),
                    .state_stride = l->cell_bytes / sizeof(float),
                    .tiles = l->tiles,
                    .cells = l->cells,
                    .heads = l->heads,
                };
                tiles = max_u32(tiles, l->tiles);
            }
            struct cuda_node node = {
                .params = &p,
                .function = logs->settle,
                .launch = {.kernel = SETTLE_KERNEL,
                           .grid = {tiles, n_layers, n_cells},
                           .threads = DELTA_WARPS * 32},
            };
            status = cuda_run_node(b, &node, false, err);
        }
    logs->n_settling = 0;
    return status;
}

static void add_range(struct cuda_logs *logs, uint64_t offset, uint64_t bytes) {
    for (uint32_t i = 0; bytes && i < logs->n; i++) {
        const struct cuda_log *l = &logs->list[i];
        uint64_t first = offset > l->state ? (offset - l->state) / l->cell_bytes : 0;
        uint64_t end = offset + bytes > l->state
                           ? (offset + bytes - l->state + l->cell_bytes - 1) / l->cell_bytes
                           : 0;
        for (uint64_t cell = first; cell < end && cell < l->cells; cell++)
            add_cell(logs, (uint32_t)cell);
    }
}

int cuda_settle_range(struct backend *b, uint64_t offset, uint64_t bytes, struct err *err) {
    if (b->logs.n_open == 0)
        return SLUICE_OK;
    add_range(&b->logs, offset, bytes);
    return settle(b, err);
}

int cuda_settle_copies(struct backend *b, const struct backend_copy *list, uint32_t n,
                       struct err *err) {
    if (b->logs.n_open == 0)
        return SLUICE_OK;
    for (uint32_t i = 0; i < n; i++) {
        add_range(&b->logs, list[i].to, list[i].bytes);
        if (list[i].from != BACKEND_ZEROS)
            add_range(&b->logs, list[i].from, list[i].bytes);
    }
    return settle(b, err);
}

int cuda_settle_moves(struct backend *b, const struct backend_move *list, uint32_t n,
                      struct err *err) {
    if (b->logs.n_open == 0)
        return SLUICE_OK;
    for (uint32_t i = 0; i < n; i++)
        add_range(&b->logs, list[i].offset, list[i].bytes);
    return settle(b, err);
}

int cuda_settle_all(struct backend *b, struct err *err) {
    for (uint32_t cell = 0; b->logs.n_open && cell < b->logs.n_cells; cell++)
        add_cell(&b->logs, cell);
    return settle(b, err);
}

/* ---- steps -------------------------------------------------------------------------------- */

bool cuda_has_few_open(const struct backend *b, const struct plan *plan) {
    enum { FEW = 8 };
    const struct io_header *header = (const struct io_header *)b->io;
    const struct io_segment *segments = (const void *)(b->io + plan->io.segments);
    uint32_t n_open = 0;
    for (uint32_t i = 0; i < header->n_segments; i++)
        n_open += segments[i].cell < b->logs.n_cells && b->logs.is_open[segments[i].cell];
    return n_open <= FEW;
}

static void open_log(struct cuda_logs *logs, uint32_t cell) {
    if (cell < logs->n_cells && !logs->is_open[cell]) {
        logs->is_open[cell] = 1;
        logs->n_open++;
    }
}

int cuda_settle_for_step(struct backend *b, const struct cuda_recording *r, bool is_burst,
                         struct err *err) {
    struct cuda_logs *logs = &b->logs;
    const struct io_header *header = (const struct io_header *)b->io;
    const struct io_segment *segments = (const void *)(b->io + r->plan->io.segments);
    const uint32_t *to = (const void *)(b->io + r->plan->io.to);
    for (uint32_t i = 0; logs->n_open && i < header->n_segments; i++) {
        const struct io_segment *g = &segments[i];
        if (g->n_rows == 1 && !r->reads_states)
            continue;
        add_cell(logs, g->cell);
        for (uint32_t k = 0; k < g->n_rows; k++)
            add_cell(logs, to[g->first_row + k]);
    }
    int status = settle(b, err);
    if (!r->has_logs)
        return status;
    for (uint32_t i = 0; i < header->n_segments; i++)
        if (segments[i].n_rows == 1)
            open_log(logs, segments[i].cell);
    if (is_burst)
        open_log(logs, header->spare_cell);
    return status;
}
