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

static bool is_for_auto(const struct backend_kind *kind) {
    char line[256];
    return kind->is_worth_taking ? kind->is_worth_taking()
                                 : kind->device_line(0, line, sizeof line);
}

const struct backend_kind *backend_find(const char *name) {
    name = backend_meant(name);
    for (int i = 0; backend_at(i); i++)
        if (strcmp(name, "auto") == 0 ? is_for_auto(backend_at(i))
                                      : strcmp(name, backend_at(i)->name) == 0)
            return backend_at(i);
    return NULL;
}

const char *backend_names(const char *found, char *out, size_t size) {
    size_t used = (size_t)snprintf(out, size, "auto");
    for (int i = 0; backend_at(i) && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", backend_at(i + 1) ? ", " : " or ",
                                 backend_at(i)->name);
    const char *missing = NULL;
#ifndef SLUICE_CUDA
    if (strcmp(found, "cuda") == 0)
        missing = "CUDA (it was made without nvcc, or with CUDA=0)";
#endif
#ifndef SLUICE_VULKAN
    if (strcmp(found, "vulkan") == 0)
        missing = "Vulkan (it was made without glslc or Vulkan's headers, or with VULKAN=0)";
#endif
    (void)found;
    if (missing && used < size)
        snprintf(out + used, size - used, ": this build has no %s", missing);
    return out;
}
