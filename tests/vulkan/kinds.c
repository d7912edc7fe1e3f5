/* kinds.c - the rig's backends, and messages of the validation layer as failures of the test that
 * runs. */
#include "backend/vulkan/host/driver.h"
#include "base/log.h"
#include "rig.h"

const struct backend_kind *const rig_kinds[RIG_BACKENDS] = {&backend_cpu, &backend_vulkan};

void rig_check_validation(void) {
    static uint32_t known;
    uint32_t n = vulkan_validation_messages();
    if (n > known)
        test_fail(__FILE__, __LINE__, "the validation layer complains %u times", n - known);
    known = n;
}

static void print_line(void *user, enum log_level level, const char *line) {
    (void)user;
    if (level == LOG_WARN)
        test_note("%s", line);
}

/* The device stays open: its pipelines, which take longer to make than most tests, are shared. */
__attribute__((constructor)) static void start(void) {
    static struct backend *kept;
    struct backend_options how = {0};
    struct err ignored;
    log_set(print_line, NULL);
    setenv("SLUICE_VULKAN_CACHE", "", 0); /* what a test compiles is of this program */
    backend_vulkan.open(&kept, &how, &ignored);
}

/* On a GPU: SLUICE_TEST_FULL=1. */
bool rig_is_slow(void) {
    const char *full = getenv("SLUICE_TEST_FULL");
    return !full || strcmp(full, "1") != 0;
}
