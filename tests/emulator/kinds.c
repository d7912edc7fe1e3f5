/* kinds.c - the rig's backends: the device is the emulated GPU (gpu.h). */
#include "rig.h"

const struct backend_kind *const rig_kinds[RIG_BACKENDS] = {&backend_cpu, &backend_cuda};

void rig_check_validation(void) {
}

bool rig_is_slow(void) {
    return true;
}
