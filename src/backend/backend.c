/* backend.c - the table of backends. */
#include "backend/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct backend_kind *const kinds[] = {
#define BACKEND(kind) &kind,
#include "backend/backends.def"
#undef BACKEND
};

const struct backend_kind *backend_at(int i) {
    return i >= 0 && (size_t)i < sizeof kinds / sizeof *kinds ? kinds[i] : NULL;
}

const char *backend_meant(const char *name) {
    const char *preset = getenv("SLUICE_BACKEND");
    return strcmp(name, "auto") == 0 && preset && *preset ? preset : name;
}

const struct backend_kind *backend_find(const char *name) {
    char line[256];
    name = backend_meant(name);
    for (int i = 0; backend_at(i); i++)
        if (strcmp(name, "auto") == 0 ? backend_at(i)->device_line(0, line, sizeof line)
                                      : strcmp(name, backend_at(i)->name) == 0)
            return backend_at(i);
    return NULL;
}

const char *backend_names(const char *found, char *out, size_t size) {
    size_t used = (size_t)snprintf(out, size, "auto");
    for (int i = 0; backend_at(i) && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", backend_at(i + 1) ? ", " : " or ",
                                 backend_at(i)->name);
#ifndef SLUICE_CUDA
    if (strcmp(found, "cuda") == 0 && used < size)
        snprintf(out + used, size - used,
                 ": this build has no CUDA (it was made without nvcc, or with CUDA=0)");
#else
    (void)found;
#endif
    return out;
}
