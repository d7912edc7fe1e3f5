/* arch.c - the architectures that archs.def lists. */
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

static const struct arch *const archs[] = {
#define ARCH(name) &name,
#include "model/archs.def"
#undef ARCH
};

enum { N_ARCHS = sizeof archs / sizeof *archs };

const struct arch *arch_by_name(const char *name) {
    for (size_t i = 0; i < N_ARCHS; i++)
        if (strcmp(archs[i]->name, name) == 0)
            return archs[i];
    return NULL;
}

const struct arch *arch_by_model_type(const char *type) {
    for (size_t i = 0; i < N_ARCHS; i++)
        for (size_t k = 0; k < MAX_MODEL_TYPES && archs[i]->model_types[k]; k++)
            if (strcmp(archs[i]->model_types[k], type) == 0)
                return archs[i];
    return NULL;
}

static void add_to_list(char out[ARCH_LIST], size_t i, const char *name) {
    size_t used = strlen(out);
    snprintf(out + used, ARCH_LIST - used, "%s%s",
             i == 0             ? ""
             : i == N_ARCHS - 1 ? " or "
                                : ", ",
             name);
}

const char *arch_names(char out[ARCH_LIST]) {
    out[0] = 0;
    for (size_t i = 0; i < N_ARCHS; i++)
        add_to_list(out, i, archs[i]->name);
    return out;
}

const char *arch_model_types(char out[ARCH_LIST]) {
    out[0] = 0;
    for (size_t i = 0; i < N_ARCHS; i++)
        add_to_list(out, i, archs[i]->model_types[0]);
    return out;
}
