/* load.c - weights onto the device: where each goes, and the upload.
 *
 * They are stored as in the file, except Q6_K that is not imported (vulkan_weight_type). On memory
 * that the host shares, the mapping of the file itself is imported where the driver allows; what
 * cannot be is uploaded once, through a staging buffer. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/vulkan/host/host.h"
#include "backend/weight_list.h"
#include "base/size.h"
#include "quant/random.h"
#include "quant/types.h"

enum { WEIGHT_ALIGN = 256, PIECE_BYTES = 1 << 30 };

/* ---- the list of weights ------------------------------------------------------------------ */

const struct vulkan_weight *vulkan_find_weight(const struct backend *b, const struct operand *o) {
    return weight_list_find(b->weight_list, b->n_weights, sizeof *b->weight_list, o);
}

static bool can_import(const struct backend *b, const struct vulkan_weight *p, uint64_t synthetic,
                       uint64_t mapped) {
    return b->has_import && p->operand.offset % b->offset_align == 0 &&
           p->operand.offset >= synthetic &&
           p->operand.offset + operand_bytes(&p->operand) <= mapped;
}

static struct vulkan_weight weight_of(const struct backend *b, const struct operand *o) {
    struct vulkan_weight p = {.operand = *o, .row_bytes = operand_row_bytes(o)};
    p.has_planes = o->type == DT_Q6_K && !can_import(b, &p, 0, b->mapped);
    if (p.has_planes)
        p.row_bytes = size_aligned(p.row_bytes, 16);
    p.bytes = size_aligned(vulkan_all_rows(o) * p.row_bytes, WEIGHT_ALIGN);
    return p;
}

/* Fails for a weight of op i whose type no shader reads. Frequencies are for the host: it makes
 * tables of them. */
static int check_type(const struct plan *plan, uint32_t i, const struct operand *o,
                      struct err *err) {
    char text[96], types[256];
    size_t n = 0;
    const struct op *op = &plan->ops[i];
    bool is_freqs = op->kind == OP_EMBED && o == &op->embed.freqs;
    if (is_freqs || (o->type < DT_COUNT && vulkan_has_type[o->type]))
        return SLUICE_OK;
    for (uint32_t t = 0; t < DT_COUNT && n < sizeof types; t++)
        if (vulkan_has_type[t])
            n += (size_t)snprintf(types + n, sizeof types - n, " %s", dtype_name(t));
    return err_set(err, SLUICE_ERR_UNSUPPORTED,
                   "%s: weights in %s, the Vulkan backend has shaders for%s",
                   plan_op_text(plan, i, text, sizeof text), dtype_name(o->type), types);
}

/* Those weights of op i that are not among the first n_sorted of the list. */
static int add_weights(struct backend *b, struct plan *plan, uint32_t i, uint32_t n_sorted,
                       struct err *err) {
    struct operand_ref refs[MAX_OPERANDS];
    uint32_t n = op_operands(&plan->ops[i], refs);
    for (uint32_t k = 0; k < n; k++) {
        const struct operand *o = refs[k].at;
        if (o->region != REGION_WEIGHTS ||
            weight_list_look_up(b->weight_list, n_sorted, sizeof *b->weight_list, o))
            continue;
        int status = check_type(plan, i, o, err);
        if (status)
            return status;
        CHECK(o->stride == o->dims[0]);
        b->weight_list[b->n_weights++] = weight_of(b, o);
    }
    return SLUICE_OK;
}

static int add_plan(struct backend *b, struct plan *plan, struct err *err) {
    uint32_t n_sorted = b->n_weights;
    size_t most = n_sorted + (size_t)plan->n_ops * MAX_OPERANDS + 1;
    struct vulkan_weight *more = realloc(b->weight_list, most * sizeof *more);
    if (!more)
        return err_memory(err, "the table of weights");
    b->weight_list = more;
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        int status = add_weights(b, plan, i, n_sorted, err);
        if (status)
            return status;
    }
    if (b->n_weights > n_sorted)
        b->n_weights = weight_list_sort(b->weight_list, b->n_weights, sizeof *b->weight_list);
    return SLUICE_OK;
}

/* Plans share their weights, but a draft plan may have some of its own. */
int vulkan_place_weights(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                         struct err *err) {
    int status = SLUICE_OK;
    b->n_weights = 0;
    for (uint32_t i = 0; !status && i < n_plans; i++)
        status = add_plan(b, plans[i], err);
    return status;
}

/* ---- buffers ------------------------------------------------------------------------------ */

static uint64_t page_bytes(const struct backend *b) {
    return b->import_align > 4096 ? b->import_align : 4096;
}

/* Drivers may refuse pages that cannot be written, or that are a file's: one of this program's own
 * tells. SLUICE_VULKAN_IMPORT=0: weights are always uploaded. */
bool vulkan_can_import(struct backend *b) {
    const char *wish = getenv("SLUICE_VULKAN_IMPORT");
    if (!b->has_import || !b->can.is_unified || (wish && strcmp(wish, "0") == 0))
        return false;
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, page_bytes(b), PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    if (page == MAP_FAILED)
        return false;
    struct vulkan_buffer buffer;
    struct err ignored;
    bool can = (uintptr_t)page % page_bytes(b) == 0 &&
               vulkan_import_buffer(b, &buffer, page, page_bytes(b), &ignored) == SLUICE_OK;
    if (can)
        vulkan_free_buffer(b, &buffer);
    munmap(page, page_bytes(b));
    return can;
}

uint64_t vulkan_importable(const struct backend *b) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < b->n_weights; i++)
        bytes += can_import(b, &b->weight_list[i], 0, b->mapped) ? b->weight_list[i].bytes : 0;
    return bytes;
}

/* Weights [first, end) as a piece of the mapping, in whole pages. Pages after the file's last are
 * not there. */
static int import_run(struct backend *b, struct backend_weights w, uint32_t first, uint32_t end,
                      struct err *err) {
    struct vulkan_region *r = &b->regions[VULKAN_WEIGHTS];
    uint64_t align = page_bytes(b), to;
    uint64_t from = b->weight_list[first].operand.offset / align * align;
    const struct operand *last = &b->weight_list[end - 1].operand;
    CHECK(size_align(last->offset + operand_bytes(last), align, &to));
    struct vulkan_buffer buffer;
    int status = vulkan_import_buffer(b, &buffer, w.base + from, to - from, err);
    if (status)
        return status;
    buffer.start = size_aligned(r->bytes, align);
    if ((status = vulkan_region_add(r, &buffer, err))) {
        vulkan_free_buffer(b, &buffer);
        return status;
    }
    for (uint32_t i = first; i < end; i++) {
        b->weight_list[i].at = buffer.start + b->weight_list[i].operand.offset - from;
        b->weight_list[i].is_imported = true;
        b->imported += b->weight_list[i].bytes;
    }
    return SLUICE_OK;
}

/* Runs of weights up to a piece's size. The first that the driver refuses ends it. */
static void import_weights(struct backend *b, struct backend_weights w) {
    struct err ignored;
    if ((uintptr_t)w.base % page_bytes(b))
        return;
    for (uint32_t i = 0, end; i < b->n_weights; i = end) {
        end = i + 1;
        if (!can_import(b, &b->weight_list[i], w.synthetic, w.mapped))
            continue;
        while (end < b->n_weights && can_import(b, &b->weight_list[end], w.synthetic, w.mapped) &&
               b->weight_list[end].operand.offset + b->weight_list[end].bytes -
                       b->weight_list[i].operand.offset <=
                   PIECE_BYTES)
            end++;
        if (import_run(b, w, i, end, &ignored))
            return;
    }
}

static int make_piece(struct backend *b, uint64_t bytes, struct err *err) {
    struct vulkan_region *r = &b->regions[VULKAN_WEIGHTS];
    struct vulkan_buffer buffer;
    int status = vulkan_make_buffer(b, &buffer, bytes, VULKAN_ON_DEVICE, "weights", err);
    if (status)
        return status;
    buffer.start = size_aligned(r->bytes, WEIGHT_ALIGN);
    if ((status = vulkan_region_add(r, &buffer, err)))
        vulkan_free_buffer(b, &buffer);
    return status;
}

int vulkan_make_weights(struct backend *b, struct backend_weights weights, struct err *err) {
    import_weights(b, weights);
    int status = SLUICE_OK;
    for (uint32_t i = 0, end; !status && i < b->n_weights; i = end) {
        uint64_t bytes = 0, at = size_aligned(b->regions[VULKAN_WEIGHTS].bytes, WEIGHT_ALIGN);
        for (end = i; end < b->n_weights; end++) {
            struct vulkan_weight *p = &b->weight_list[end];
            if (p->is_imported)
                continue;
            if (bytes && bytes + p->bytes > PIECE_BYTES)
                break;
            p->at = at + bytes;
            bytes += p->bytes;
        }
        if (bytes)
            status = make_piece(b, bytes, err);
    }
    return status;
}

/* ---- the upload --------------------------------------------------------------------------- */

/* A row of Q6_K: what its blocks have of each part, one after the other. */
static void split_row(const uint8_t *row, uint32_t n_blocks, uint8_t *to) {
    static const struct {
        uint32_t at, bytes;
    } parts[] = {{0, 128}, {128, 64}, {192, 16}, {208, 2}};
    for (int i = 0; i < 4; i++)
        for (uint32_t k = 0; k < n_blocks; k++, to += parts[i].bytes)
            memcpy(to, row + 210 * k + parts[i].at, parts[i].bytes);
}

/* As many rows at a time as `buffer` holds; `row` holds one of random blocks. */
static int upload_planes(struct backend *b, struct backend_weights w, const struct vulkan_weight *p,
                         uint8_t *row, uint8_t *buffer, uint64_t buffer_rows, struct err *err) {
    uint64_t bytes = operand_row_bytes(&p->operand), rows = vulkan_all_rows(&p->operand);
    uint32_t n_blocks = p->operand.dims[0] / 256;
    int status = SLUICE_OK;
    for (uint64_t first = 0; !status && first < rows; first += buffer_rows) {
        uint64_t n = rows - first < buffer_rows ? rows - first : buffer_rows;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = p->operand.offset + (first + i) * bytes;
            for (uint32_t k = 0; at < w.synthetic && k < n_blocks; k++)
                random_block(p->operand.type, at + 210 * k, row + 210 * k);
            split_row(at < w.synthetic ? row : w.base + at, n_blocks, buffer + i * p->row_bytes);
        }
        struct backend_move move = {p->at + first * p->row_bytes, n * p->row_bytes, buffer};
        status = vulkan_transfer(b, &b->steps, &b->regions[VULKAN_WEIGHTS], &move, 1, true, err);
    }
    return status;
}

static int upload_q6_k(struct backend *b, struct backend_weights w, const struct vulkan_weight *p,
                       struct err *err) {
    uint64_t buffer_rows = STAGING_BYTES > p->row_bytes ? STAGING_BYTES / p->row_bytes : 1;
    uint8_t *row = malloc(p->row_bytes), *buffer = calloc(buffer_rows, p->row_bytes);
    int status = row && buffer ? upload_planes(b, w, p, row, buffer, buffer_rows, err)
                               : err_memory(err, "rows of Q6_K");
    free(row);
    free(buffer);
    return status;
}

/* Random blocks, a piece of whole ones at a time. */
static int upload_random(struct backend *b, const struct vulkan_weight *p, uint8_t *buffer,
                         uint64_t buffer_bytes, struct err *err) {
    const struct dtype_info *info = dtype_info(p->operand.type);
    uint64_t bytes = operand_bytes(&p->operand),
             chunk = buffer_bytes / info->block_bytes * info->block_bytes;
    int status = SLUICE_OK;
    for (uint64_t at = 0; !status && at < bytes; at += chunk) {
        uint64_t n = bytes - at < chunk ? bytes - at : chunk;
        for (uint64_t i = 0; i < n; i += info->block_bytes)
            random_block(p->operand.type, p->operand.offset + at + i, buffer + i);
        struct backend_move move = {p->at + at, n, buffer};
        status = vulkan_transfer(b, &b->steps, &b->regions[VULKAN_WEIGHTS], &move, 1, true, err);
    }
    return status;
}

static int upload_weight(struct backend *b, struct backend_weights w, const struct vulkan_weight *p,
                         struct err *err) {
    uint64_t bytes = operand_bytes(&p->operand), offset = p->operand.offset;
    struct backend_move move = {p->at, bytes, (void *)(uintptr_t)(w.base + offset)};
    CHECK(offset < w.synthetic || offset + bytes <= w.bytes);
    if (p->has_planes)
        return upload_q6_k(b, w, p, err);
    if (offset >= w.synthetic)
        return vulkan_transfer(b, &b->steps, &b->regions[VULKAN_WEIGHTS], &move, 1, true, err);
    uint8_t *buffer = malloc(STAGING_BYTES);
    int status = buffer ? upload_random(b, p, buffer, STAGING_BYTES, err)
                        : err_memory(err, "random weights");
    free(buffer);
    return status;
}

int vulkan_upload(struct backend *b, struct backend_weights weights,
                  void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                  struct err *err) {
    uint64_t total = 0, done = 0;
    int status = SLUICE_OK;
    for (uint32_t i = 0; i < b->n_weights; i++)
        total += b->weight_list[i].bytes;
    for (uint32_t i = 0; !status && i < b->n_weights; i++) {
        if (!b->weight_list[i].is_imported)
            status = upload_weight(b, weights, &b->weight_list[i], err);
        done += b->weight_list[i].bytes;
        if (progress)
            progress(user, done, total);
    }
    b->count.host_copies = b->count.host_copy_bytes = 0;
    return status;
}

/* ---- angles ------------------------------------------------------------------------------- */

static void fill_angles(float *out, const double *freqs, uint32_t n, uint32_t n_positions,
                        uint32_t step) {
    const double two_pi = 6.28318530717958647692;
    for (uint64_t p = 0; p < n_positions; p++)
        for (uint32_t i = 0; i < n; i++) {
            double angle = fmod((double)(p * step) * freqs[i], two_pi);
            *out++ = (float)cos(angle);
            *out++ = (float)sin(angle);
        }
}

static int fill_grids(struct backend *b, struct err *err) {
    static const struct {
        uint32_t (*entry)(uint32_t i);
        uint32_t n;
    } grids[] = {{iq1_grid, 2048},  {iq2_s_grid, 1024},  {iq2_xs_grid, 512},
                 {iq3_s_grid, 512}, {iq2_xxs_grid, 256}, {iq3_xxs_grid, 256}};
    uint16_t values[VULKAN_GRID_ENTRIES], *to = values;
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++)
        for (uint32_t i = 0; i < grids[g].n; i++)
            *to++ = (uint16_t)grids[g].entry(i);
    struct backend_move move = {0, sizeof values, values};
    return vulkan_transfer(b, &b->steps, &b->regions[VULKAN_TABLES], &move, 1, true, err);
}

int vulkan_fill_tables(struct backend *b, struct backend_weights weights, struct err *err) {
    int status = fill_grids(b, err);
    for (uint32_t i = 0; !status && i < b->n_tables; i++) {
        const struct vulkan_table *t = &b->tables[i];
        uint32_t n = t->freqs.dims[0];
        uint64_t low = (uint64_t)VULKAN_LOW_POSITIONS * n * 2, high = (uint64_t)t->n_high * n * 2;
        CHECK(t->freqs.offset >= weights.synthetic);
        float *values = malloc((low + high) * sizeof *values);
        double *freqs = malloc(n * sizeof *freqs);
        if (values && freqs) {
            memcpy(freqs, weights.base + t->freqs.offset, n * sizeof *freqs);
            fill_angles(values, freqs, n, VULKAN_LOW_POSITIONS, 1);
            fill_angles(values + low, freqs, n, t->n_high, VULKAN_LOW_POSITIONS);
            struct backend_move move = {t->at, (low + high) * sizeof *values, values};
            status = vulkan_transfer(b, &b->steps, &b->regions[VULKAN_TABLES], &move, 1, true, err);
        } else {
            status = err_memory(err, "the tables of angles");
        }
        free(values);
        free(freqs);
    }
    return status;
}
