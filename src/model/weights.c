/* weights.c - the WEIGHTS region: where every tensor is. */
#include "model/weights.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/locale.h"
#include "base/size.h"

int weights_new(struct weights **out, const struct filemap *files, uint32_t n_files,
                struct err *err) {
    *out = NULL;
    struct weights *w = calloc(1, sizeof *w);
    if (w)
        w->file_at = arena_array(&w->arena, n_files, sizeof *w->file_at);
    if (!w || !w->file_at) {
        weights_free(w);
        return err_memory(err, "the table of weights");
    }
    w->files = files;
    w->n_files = n_files;
    for (uint32_t i = 0; i < n_files; i++) {
        w->file_at[i] = w->bytes;
        CHECK(size_add(w->bytes, files[i].size, &w->bytes) &&
              size_align(w->bytes, WEIGHTS_PAGE, &w->bytes));
    }
    w->file_bytes = w->bytes;
    *out = w;
    return SLUICE_OK;
}

void weights_unmap(struct weights *w) {
    if (!w->base)
        return;
    for (uint32_t i = 0; i < w->n_files; i++)
        filemap_forget_at(&w->files[i]);
    munmap(w->base, w->bytes);
    w->base = NULL;
}

void weights_free(struct weights *w) {
    if (!w)
        return;
    weights_unmap(w);
    arena_free(&w->arena);
    free(w);
}

uint64_t weights_offset(const struct weights *w, const struct tensor *t) {
    for (uint32_t i = 0; i < w->n_files; i++) {
        const uint8_t *begin = w->files[i].data;
        if (t->data >= begin && t->data + t->bytes <= begin + w->files[i].size)
            return w->file_at[i] + (uint64_t)(t->data - begin);
    }
    CHECK(!"a tensor of another file");
    return 0;
}

uint64_t weights_read_offset(const struct weights *w, const struct tensor *t) {
    for (uint32_t i = 0; i < w->n_made; i++)
        if (w->made[i].from == t)
            return w->made[i].offset;
    return weights_offset(w, t);
}

struct made_weight *weights_make(struct weights *w, uint64_t bytes,
                                 void (*fill)(const struct made_weight *, void *)) {
    if (w->n_made == w->capacity) {
        uint32_t capacity = w->capacity ? w->capacity * 2 : 64;
        struct made_weight *more = arena_array(&w->arena, capacity, sizeof *more);
        if (!more)
            return NULL;
        if (w->n_made)
            memcpy(more, w->made, w->n_made * sizeof *more);
        w->made = more;
        w->capacity = capacity;
    }
    uint64_t end;
    if (!size_add(w->bytes, bytes, &end) || !size_align(end, WEIGHTS_PAGE, &end))
        return NULL;
    struct made_weight *made = &w->made[w->n_made++];
    *made = (struct made_weight){
        .offset = w->bytes, .bytes = bytes, .fill = fill, .is_draft = w->is_draft};
    w->bytes = size_aligned(w->bytes + bytes, 64);
    return made;
}

/* Puts a file in its place: mapped, or copied if it had to be read. */
static int place_file(struct weights *w, uint32_t i, struct err *err) {
    const struct filemap *file = &w->files[i];
    uint8_t *at = w->base + w->file_at[i];
    if (file->size == 0)
        return SLUICE_OK;
    if (filemap_map_at(file, at))
        return SLUICE_OK;
    if (mprotect(at, (file->size + WEIGHTS_PAGE - 1) / WEIGHTS_PAGE * WEIGHTS_PAGE,
                 PROT_READ | PROT_WRITE) != 0)
        return err_set(err, SLUICE_ERR_MEMORY, "out of memory for %zu bytes of weights",
                       file->size);
    w->is_copied = true;
    if (!w->synthetic) /* else there is nothing to copy */
        memcpy(at, file->data, file->size);
    return SLUICE_OK;
}

uint64_t weights_mapped(const struct weights *w) {
    bool is_mapped = !w->synthetic && !w->is_copied;
    for (uint32_t i = 0; i < w->n_files; i++)
        is_mapped &= w->files[i].is_mapped || w->files[i].size == 0;
    return is_mapped ? w->file_bytes : 0;
}

/* Of the draft block, or of all else. */
static int fill_tail(struct weights *w, bool is_draft, struct err *err) {
    uint64_t tail = w->bytes - w->file_bytes;
    if (tail && mprotect(w->base + w->file_bytes, tail, PROT_READ | PROT_WRITE) != 0)
        return err_set(err, SLUICE_ERR_MEMORY, "out of memory for %llu bytes of weights",
                       (unsigned long long)tail);
    for (uint32_t i = 0; i < w->n_made; i++)
        if (w->made[i].is_draft == is_draft)
            w->made[i].fill(&w->made[i], w->base + w->made[i].offset);
    if (tail)
        mprotect(w->base + w->file_bytes, tail, PROT_READ);
    return SLUICE_OK;
}

int weights_map(struct weights *w, struct err *err) {
    CHECK(!w->base);
    CHECK(size_align(w->bytes, WEIGHTS_PAGE, &w->bytes));
    void *base =
        mmap(NULL, w->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return err_set(err, SLUICE_ERR_MEMORY, "cannot reserve %llu bytes for the weights: %s",
                       (unsigned long long)w->bytes, locale_error(errno));
    w->base = base;
    for (uint32_t i = 0; i < w->n_files; i++) {
        int status = place_file(w, i, err);
        if (status)
            return status;
    }
    return fill_tail(w, false, err);
}

int weights_fill_draft(struct weights *w, struct err *err) {
    if (w->has_draft)
        return SLUICE_OK;
    w->has_draft = true;
    return fill_tail(w, true, err);
}
