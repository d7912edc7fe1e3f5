/* driver.c - see driver.h. */
#include "backend/cuda/host/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

struct driver driver;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool is_open;

static const struct {
    const char *name;
    size_t at;
} functions[] = {
#define DRIVER(member, name) {#name, offsetof(struct driver, member)},
    DRIVER_FUNCTIONS
#undef DRIVER
};

static int open_library(struct err *err) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return err_set(err, SLUICE_ERR_DEVICE,
                       "no CUDA driver: libcuda.so.1 is not on this machine");
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *f = dlsym(library, functions[i].name);
        if (!f) {
            dlclose(library);
            return err_set(err, SLUICE_ERR_DEVICE,
                           "the CUDA driver has no %s, expected one of CUDA 12.3 or later",
                           functions[i].name);
        }
        memcpy((char *)&driver + functions[i].at, &f, sizeof f);
    }
    return driver_check(driver.init(0), "starting the CUDA driver", err);
}

int driver_open(struct err *err) {
    pthread_mutex_lock(&opening);
    int status = is_open ? SLUICE_OK : open_library(err);
    is_open = is_open || status == SLUICE_OK;
    pthread_mutex_unlock(&opening);
    return status;
}

int driver_check(CUresult status, const char *what, struct err *err) {
    if (status == CUDA_SUCCESS)
        return SLUICE_OK;
    const char *name = NULL, *text = NULL;
    if (driver.error_name)
        driver.error_name(status, &name);
    if (driver.error_string)
        driver.error_string(status, &text);
    enum sluice_status code =
        status == CUDA_ERROR_OUT_OF_MEMORY ? SLUICE_ERR_MEMORY : SLUICE_ERR_DEVICE;
    return err_set(err, code, "%s: %s (%s)", what, text ? text : "unknown CUDA error",
                   name ? name : "no name");
}
