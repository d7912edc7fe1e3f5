/* weights.h - the WEIGHTS region: where every tensor is.
 *
 * One span of addresses: the model's files one after the other, then a tail for tensors in a form
 * that no file has (vectors as f32, gathered experts, rotary frequencies). Offsets are known before
 * anything is mapped and are the same in every run.
 * (1) Files begin at multiples of WEIGHTS_PAGE, the tail's tensors at multiples of 64.
 * (2) Nothing is written after weights_map, but for synthetic weights by model.c.
 *
 * Made and mapped by one thread; read by any after that. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "base/filemap.h"
#include "file/tensor.h"
#include "model/hub.h"
#include "plan/plan.h"

enum { WEIGHTS_PAGE = 64 << 10 };

/* A tensor made at load: `fill` writes it. */
struct made_weight {
    uint64_t offset, bytes;
    void (*fill)(const struct made_weight *w, void *out);
    const void *from, *more; /* what fill needs; outlive the weights */
    struct hub_tensor hub;
    bool is_draft; /* of the draft block, which is made only when it is wanted */
};

struct weights {
    struct arena arena;
    const struct filemap *files; /* borrowed from the model's file or folder */
    uint32_t n_files;
    uint64_t *file_at;
    struct made_weight *made;
    uint32_t n_made, capacity;
    bool is_draft;       /* what weights_make adds from here on is of the draft block */
    bool has_draft;      /* that part of the tail is filled */
    uint64_t file_bytes; /* where the tail begins */
    uint64_t synthetic;  /* this many bytes at the start are in no file: they are generated */
    uint64_t bytes;      /* of the whole region */
    uint8_t *base;       /* NULL until mapped */
    bool is_copied;      /* at least in part: the files' pages cannot be dropped and read again */
};

int weights_new(struct weights **out, const struct filemap *files, uint32_t n_files,
                struct err *err);
/* Reserves the span, maps the files into it and fills the tail but for the draft block's part. */
int weights_map(struct weights *w, struct err *err);
/* Fills the rest of the tail, once mapped; does nothing the second time. */
int weights_fill_draft(struct weights *w, struct err *err);
void weights_unmap(struct weights *w); /* what is mapped, if anything */
/* Bytes from the start whose pages may be dropped, since the files still have them; known before
 * they are mapped. 0 where files had to be read, or were made. */
uint64_t weights_mapped(const struct weights *w);
void weights_free(struct weights *w); /* takes NULL */

/* The offset of a tensor that is used as it is in its file. */
uint64_t weights_offset(const struct weights *w, const struct tensor *t);

/* Where ops read a tensor: there, or in the tail, where something was made from it. */
uint64_t weights_read_offset(const struct weights *w, const struct tensor *t);

/* Adds a tensor that `fill` makes to the tail. NULL: out of memory or address range. */
struct made_weight *weights_make(struct weights *w, uint64_t bytes,
                                 void (*fill)(const struct made_weight *, void *));

#endif
