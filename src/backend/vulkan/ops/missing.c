/* missing.c - ops that have no shader yet are refused. Whoever adds one deletes its line. */
#include "backend/vulkan/host/vulkan.h"

#define MISSING(member, NAME)                                                                      \
    int vulkan_record_##member(struct vulkan_recorder *r, const struct op *op) {                   \
        (void)op;                                                                                  \
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED, "vulkan: no " NAME " yet");                 \
    }

MISSING(project, "PROJECT")
MISSING(route, "ROUTE")
MISSING(experts_in, "EXPERTS_IN")
MISSING(experts_out, "EXPERTS_OUT")
