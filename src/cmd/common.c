/* common.c - what several verbs share. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "file/folder.h"
#include "file/gguf.h"

#define SHIPPED_MODEL "stories-27m-q4_k_m.gguf"

int fail(const struct err *err) {
    return complain(EXIT_WORLD, "%s", err->text);
}

/* From where the program lies: in the tree (build/sluice, build/FLAVOUR/sluice) or installed. */
static bool find_shipped(char *out, size_t size) {
    static const char *const places[] = {"../models/", "../../models/", "../share/sluice/models/"};
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n < 0)
        return false;
    exe[n] = 0;
    char *slash = strrchr(exe, '/');
    if (slash)
        slash[1] = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int len = snprintf(out, size, "%s%s%s", exe, places[i], SHIPPED_MODEL);
        if (len > 0 && (size_t)len < size && access(out, R_OK) == 0)
            return true;
    }
    return false;
}

const char *model_path(const char *path, struct err *err) {
    static char shipped[PATH_MAX + 64];
    if (path)
        return path;
    if (find_shipped(shipped, sizeof shipped))
        return shipped;
    err_set(err, SLUICE_ERR_IO,
            "no model given, and " SHIPPED_MODEL " is not beside the program; name one with -m");
    return NULL;
}

int tokenizer_of_model(struct tokenizer **out, const char *path, struct err *err) {
    if (folder_is(path)) {
        struct folder *f;
        int status = folder_open(&f, path, false, err);
        if (!status)
            status = tokenizer_from_folder(out, f, err);
        folder_close(f);
        return status;
    }
    struct gguf *g;
    int status = gguf_open(&g, path, err);
    if (!status && (status = tokenizer_from_gguf(out, g, err)))
        err_prefix(err, "%s", path);
    gguf_close(g);
    return status;
}

static char *ring(void) {
    static char text[8][32];
    static int next;
    return text[next++ & 7];
}

const char *human_bytes(uint64_t bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    char *out = ring();
    double v = (double)bytes;
    int unit = 0;
    for (; v >= 999.5 && unit < 4; unit++)
        v /= 1000;
    snprintf(out, 32, unit == 0 ? "%.0f %s" : v < 10 ? "%.2f %s" : "%.1f %s", v, units[unit]);
    return out;
}

const char *human_count(uint64_t n) {
    char digits[24], *out = ring();
    int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), at = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
