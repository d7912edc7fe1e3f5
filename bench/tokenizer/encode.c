/* encode.c - times the tokenizer on a text, and writes its ids for comparison.
 *
 * encode MODEL TEXT [IDS]: MODEL is a GGUF file or a folder. The text is encoded in documents of
 * at least 4 KiB that end with a line (where tokenizers is at its best), special tokens parsed;
 * with IDS their int32 ids go there, each document ended by -1. Prints the CPU seconds that
 * encoding took, without loading. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/filemap.h"
#include "file/folder.h"
#include "file/gguf.h"
#include "text/tokenizer.h"

enum { DOCUMENT_BYTES = 4 << 10 };

/* CPU seconds of this process: a busy machine does not change them much. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int open_tokenizer(struct tokenizer **t, const char *path, struct err *err) {
    struct folder *folder = NULL;
    struct gguf *gguf = NULL;
    int status;
    if (folder_is(path)) {
        status = folder_open(&folder, path, false, err);
        if (status == SLUICE_OK)
            status = tokenizer_from_folder(t, folder, err);
    } else {
        status = gguf_open(&gguf, path, err);
        if (status == SLUICE_OK)
            status = tokenizer_from_gguf(t, gguf, err);
    }
    folder_close(folder);
    gguf_close(gguf);
    return status;
}

static struct str next_document(struct str *rest) {
    struct str document = *rest;
    if (rest->len > DOCUMENT_BYTES) {
        const char *line = memchr(rest->at + DOCUMENT_BYTES, '\n', rest->len - DOCUMENT_BYTES);
        if (line)
            document.len = (size_t)(line + 1 - rest->at);
    }
    *rest = str_skip(*rest, document.len);
    return document;
}

static int encode_all(const struct tokenizer *t, struct str text, struct ids *ids,
                      struct err *err) {
    int status = SLUICE_OK;
    while (text.len > 0 && status == SLUICE_OK) {
        status = tokenizer_encode(t, next_document(&text), ENCODE_SPECIAL, ids, err);
        if (status == SLUICE_OK)
            status = ids_push(ids, -1, err);
    }
    return status;
}

int main(int argc, char **argv) {
    struct err err = {0};
    struct tokenizer *t = NULL;
    struct filemap map = {0};
    struct ids ids = {0};
    if (argc < 3)
        return fprintf(stderr, "usage: encode MODEL TEXT [IDS]\n"), 2;
    double begin = now();
    int status = open_tokenizer(&t, argv[1], &err);
    double loaded = now();
    if (status == SLUICE_OK)
        status = filemap_open(&map, argv[2], &err);
    struct str text = {(const char *)map.data, map.size};
    if (status == SLUICE_OK) /* once to warm up */
        status = encode_all(t, text, &ids, &err);
    ids.len = 0;
    double started = now();
    if (status == SLUICE_OK)
        status = encode_all(t, text, &ids, &err);
    if (status == SLUICE_OK)
        printf("%.6f\n", now() - started);
    else
        fprintf(stderr, "encode: %s\n", err.text);
    fprintf(stderr, "loaded in %.0f ms\n", (loaded - begin) * 1e3);
    FILE *out = argc > 3 && status == SLUICE_OK ? fopen(argv[3], "wb") : NULL;
    if (out) {
        fwrite(ids.at, sizeof *ids.at, ids.len, out);
        fclose(out);
    }
    ids_free(&ids);
    tokenizer_close(t);
    filemap_close(&map);
    return status == SLUICE_OK ? 0 : 1;
}
