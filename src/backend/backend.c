/* backend.c - the table of backends. */
#include "backend/backend.h"

#include <string.h>

static const struct backend_kind *const kinds[] = {
#define BACKEND(kind) &kind,
#include "backend/backends.def"
#undef BACKEND
};

const struct backend_kind *backend_at(int i) {
    return i >= 0 && (size_t)i < sizeof kinds / sizeof *kinds ? kinds[i] : NULL;
}

const struct backend_kind *backend_find(const char *name) {
    for (int i = 0; backend_at(i); i++)
        if (strcmp(name, "auto") == 0 || strcmp(name, backend_at(i)->name) == 0)
            return backend_at(i);
    return NULL;
}
