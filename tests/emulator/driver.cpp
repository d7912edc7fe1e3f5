/* driver.cpp - the CUDA driver of the emulated GPU. The tests' program is linked with --wrap=dlopen
 * and --wrap=dlsym, so src/backend/cuda finds it in libcuda.so.1's place. All that it is asked for
 * is done before the call returns. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "gpu.h"
#include "launch.h"

enum { N_SMS = 4 };
static const size_t MEMORY = (size_t)16 << 30;

struct node {
    struct launch launch;
    std::string params;
};
typedef std::vector<node> graph;
/* What handles point to. */
struct stream {
    graph *capturing;
};
struct event {
    struct timespec at;
};

static graph *graph_of(void *handle) {
    return (graph *)handle;
}

/* ---- device and context ------------------------------------------------------------------------
 */

static CUresult emu_init(unsigned) {
    return CUDA_SUCCESS;
}
static CUresult emu_driver_version(int *version) {
    *version = 13000;
    return CUDA_SUCCESS;
}
static CUresult emu_error_name(CUresult, const char **name) {
    *name = "CUDA_ERROR";
    return CUDA_SUCCESS;
}
static CUresult emu_error_string(CUresult status, const char **text) {
    *text = status == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "the emulated GPU refuses it";
    return CUDA_SUCCESS;
}
static CUresult emu_device_count(int *n) {
    *n = 1;
    return CUDA_SUCCESS;
}
static CUresult emu_device_get(CUdevice *device, int) {
    *device = 0;
    return CUDA_SUCCESS;
}
static CUresult emu_device_name(char *name, int bytes, CUdevice) {
    snprintf(name, (size_t)bytes, "emulated GPU");
    return CUDA_SUCCESS;
}
static CUresult emu_device_attribute(int *value, CUdevice_attribute what, CUdevice) {
    *value = what == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT                ? N_SMS
             : what == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? GPU_MAX_SHARED
             : what == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR          ? GPU_ARCH / 100
                                                                             : 0;
    return CUDA_SUCCESS;
}
static CUresult emu_device_memory(size_t *bytes, CUdevice) {
    *bytes = MEMORY;
    return CUDA_SUCCESS;
}
static CUresult emu_context_retain(CUcontext *context, CUdevice) {
    *context = (CUcontext)context;
    return CUDA_SUCCESS;
}
static CUresult emu_device_done(CUdevice) {
    return CUDA_SUCCESS;
}
static CUresult emu_context_set(CUcontext) {
    return CUDA_SUCCESS;
}
static CUresult emu_context_sync(void) {
    return CUDA_SUCCESS;
}

/* ---- memory ------------------------------------------------------------------------------------
 */

static size_t page_bytes(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static CUresult emu_memory_info(size_t *available, size_t *total) {
    *available = *total = MEMORY;
    return CUDA_SUCCESS;
}
/* It ends, but for alignment, where a page begins that nobody may touch; its size is before it. */
static CUresult emu_alloc(CUdeviceptr *at, size_t bytes) {
    size_t page = page_bytes(1), room = page_bytes(bytes + 256);
    char *p = (char *)mmap(NULL, page + room + page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || bytes > MEMORY)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(p, &room, sizeof room);
    mprotect(p, page, PROT_READ);
    mprotect(p + page + room, page, PROT_NONE);
    char *from = p + page + room - (bytes + 255) / 256 * 256;
    if (bytes < (size_t)64 << 20) /* NaN */
        memset(from, 0xff, bytes);
    *at = (CUdeviceptr)from;
    return CUDA_SUCCESS;
}
static CUresult emu_free(CUdeviceptr) {
    return CUDA_SUCCESS; /* kept: who uses it again reads what was there */
}
static CUresult emu_host_alloc(void **at, size_t bytes, unsigned) {
    *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult emu_host_free(void *at) {
    free(at);
    return CUDA_SUCCESS;
}
static CUresult emu_host_register(void *, size_t, unsigned) {
    return CUDA_SUCCESS;
}
static CUresult emu_host_unregister(void *) {
    return CUDA_SUCCESS;
}
static CUresult emu_host_address(CUdeviceptr *at, void *host, unsigned) {
    *at = (CUdeviceptr)host;
    return CUDA_SUCCESS;
}
static CUresult emu_copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream) {
    memcpy((void *)to, from, bytes);
    return CUDA_SUCCESS;
}
static CUresult emu_copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream) {
    memcpy(to, (const void *)from, bytes);
    return CUDA_SUCCESS;
}
static CUresult emu_copy_within(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
    memmove((void *)to, (const void *)from, bytes);
    return CUDA_SUCCESS;
}
static CUresult emu_set_bytes(CUdeviceptr at, unsigned char value, size_t bytes, CUstream) {
    memset((void *)at, value, bytes);
    return CUDA_SUCCESS;
}

/* ---- kernels -----------------------------------------------------------------------------------
 */

static CUresult emu_module_load(CUmodule *module, const void *image) {
    *module = (CUmodule)image;
    return CUDA_SUCCESS;
}
static CUresult emu_module_unload(CUmodule) {
    return CUDA_SUCCESS;
}
static CUresult emu_module_function(CUfunction *function, CUmodule, const char *name) {
    const struct gpu_kernel *kernel = gpu_find_kernel(name);
    *function = (CUfunction)kernel;
    return kernel ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
static CUresult emu_function_set(CUfunction, CUfunction_attribute what, int value) {
    return what == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value > GPU_MAX_SHARED
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}
static CUresult emu_function_get(int *value, CUfunction_attribute what, CUfunction) {
    *value = what == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? GPU_MAX_SHARED : 0;
    return CUDA_SUCCESS;
}
static CUresult emu_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                           void **) {
    const struct gpu_kernel *kernel = (const struct gpu_kernel *)function;
    struct stream *stream = (struct stream *)config->hStream;
    struct launch l = {kernel,
                       params[0],
                       {config->gridDimX, config->gridDimY, config->gridDimZ},
                       config->blockDimX,
                       config->sharedMemBytes,
                       0};
    if (!stream->capturing)
        return gpu_run(&l) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    stream->capturing->push_back({l, std::string((const char *)params[0], kernel->bytes)});
    return CUDA_SUCCESS;
}

/* ---- streams, graphs, events --------------------------------------------------------------- */

static CUresult emu_stream_create(CUstream *stream, unsigned) {
    *stream = (CUstream) new struct stream();
    return CUDA_SUCCESS;
}
static CUresult emu_stream_destroy(CUstream stream) {
    delete (struct stream *)stream;
    return CUDA_SUCCESS;
}
static CUresult emu_stream_done(CUstream) {
    return CUDA_SUCCESS;
}
static CUresult emu_stream_wait(CUstream, CUevent, unsigned) {
    return CUDA_SUCCESS;
}
static CUresult emu_capture_begin(CUstream stream, CUstreamCaptureMode) {
    ((struct stream *)stream)->capturing = new graph();
    return CUDA_SUCCESS;
}
static CUresult emu_capture_end(CUstream stream, CUgraph *out) {
    *out = (CUgraph)((struct stream *)stream)->capturing;
    ((struct stream *)stream)->capturing = NULL;
    return CUDA_SUCCESS;
}
static CUresult emu_graph_instantiate(CUgraphExec *out, CUgraph from, unsigned long long) {
    *out = (CUgraphExec) new graph(*graph_of(from));
    return CUDA_SUCCESS;
}
static CUresult emu_graph_upload(CUgraphExec, CUstream) {
    return CUDA_SUCCESS;
}
static CUresult emu_graph_launch(CUgraphExec exec, CUstream) {
    for (node &n : *graph_of(exec)) {
        struct launch l = n.launch;
        l.params = n.params.data();
        if (!gpu_run(&l))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
static CUresult emu_graph_destroy(CUgraph handle) {
    delete graph_of(handle);
    return CUDA_SUCCESS;
}
static CUresult emu_graph_exec_destroy(CUgraphExec handle) {
    delete graph_of(handle);
    return CUDA_SUCCESS;
}
static CUresult emu_event_create(CUevent *event, unsigned) {
    *event = (CUevent) new struct event();
    return CUDA_SUCCESS;
}
static CUresult emu_event_destroy(CUevent event) {
    delete (struct event *)event;
    return CUDA_SUCCESS;
}
static CUresult emu_event_record(CUevent event, CUstream) {
    clock_gettime(CLOCK_MONOTONIC, &((struct event *)event)->at);
    return CUDA_SUCCESS;
}
static CUresult emu_event_sync(CUevent) {
    return CUDA_SUCCESS;
}
static CUresult emu_event_milliseconds(float *ms, CUevent from, CUevent to) {
    struct timespec a = ((struct event *)from)->at, b = ((struct event *)to)->at;
    *ms = (float)((double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6);
    return CUDA_SUCCESS;
}

/* ---- in the library's place ---------------------------------------------------------------- */

#define FUNCTION(name, function)                                                                   \
    static_assert(std::is_same<decltype(&function), decltype(&name)>::value, #name);
#define NAMED(name, function) {#name, (void *)function},
#define FUNCTIONS(F)                                                                               \
    F(cuInit, emu_init)                                                                            \
    F(cuDriverGetVersion, emu_driver_version)                                                      \
    F(cuGetErrorName, emu_error_name)                                                              \
    F(cuGetErrorString, emu_error_string)                                                          \
    F(cuDeviceGetCount, emu_device_count)                                                          \
    F(cuDeviceGet, emu_device_get)                                                                 \
    F(cuDeviceGetName, emu_device_name)                                                            \
    F(cuDeviceGetAttribute, emu_device_attribute)                                                  \
    F(cuDeviceTotalMem_v2, emu_device_memory)                                                      \
    F(cuDevicePrimaryCtxRetain, emu_context_retain)                                                \
    F(cuDevicePrimaryCtxRelease_v2, emu_device_done)                                               \
    F(cuCtxSetCurrent, emu_context_set)                                                            \
    F(cuCtxSynchronize, emu_context_sync)                                                          \
    F(cuMemGetInfo_v2, emu_memory_info)                                                            \
    F(cuMemAlloc_v2, emu_alloc)                                                                    \
    F(cuMemFree_v2, emu_free)                                                                      \
    F(cuMemHostAlloc, emu_host_alloc)                                                              \
    F(cuMemFreeHost, emu_host_free)                                                                \
    F(cuMemHostRegister_v2, emu_host_register)                                                     \
    F(cuMemHostUnregister, emu_host_unregister)                                                    \
    F(cuMemHostGetDevicePointer_v2, emu_host_address)                                              \
    F(cuMemcpyHtoDAsync_v2, emu_copy_in)                                                           \
    F(cuMemcpyDtoHAsync_v2, emu_copy_out)                                                          \
    F(cuMemcpyDtoDAsync_v2, emu_copy_within)                                                       \
    F(cuMemsetD8Async, emu_set_bytes)                                                              \
    F(cuModuleLoadData, emu_module_load)                                                           \
    F(cuModuleUnload, emu_module_unload)                                                           \
    F(cuModuleGetFunction, emu_module_function)                                                    \
    F(cuFuncSetAttribute, emu_function_set)                                                        \
    F(cuFuncGetAttribute, emu_function_get)                                                        \
    F(cuStreamCreate, emu_stream_create)                                                           \
    F(cuStreamDestroy_v2, emu_stream_destroy)                                                      \
    F(cuStreamSynchronize, emu_stream_done)                                                        \
    F(cuStreamQuery, emu_stream_done)                                                              \
    F(cuStreamWaitEvent, emu_stream_wait)                                                          \
    F(cuStreamBeginCapture_v2, emu_capture_begin)                                                  \
    F(cuStreamEndCapture, emu_capture_end)                                                         \
    F(cuLaunchKernelEx, emu_launch)                                                                \
    F(cuGraphInstantiateWithFlags, emu_graph_instantiate)                                          \
    F(cuGraphUpload, emu_graph_upload)                                                             \
    F(cuGraphLaunch, emu_graph_launch)                                                             \
    F(cuGraphDestroy, emu_graph_destroy)                                                           \
    F(cuGraphExecDestroy, emu_graph_exec_destroy)                                                  \
    F(cuEventCreate, emu_event_create)                                                             \
    F(cuEventDestroy_v2, emu_event_destroy)                                                        \
    F(cuEventRecord, emu_event_record)                                                             \
    F(cuEventSynchronize, emu_event_sync)                                                          \
    F(cuEventElapsedTime_v2, emu_event_milliseconds)
FUNCTIONS(FUNCTION)

static const struct {
    const char *name;
    void *function;
} functions[] = {FUNCTIONS(NAMED)};

extern "C" {
void *__real_dlopen(const char *name, int flags);
void *__real_dlsym(void *library, const char *name);

void *__wrap_dlopen(const char *name, int flags) {
    return name && strcmp(name, "libcuda.so.1") == 0 ? (void *)functions
                                                     : __real_dlopen(name, flags);
}

void *__wrap_dlsym(void *library, const char *name) {
    if (library != (void *)functions)
        return __real_dlsym(library, name);
    for (auto &f : functions)
        if (strcmp(f.name, name) == 0)
            return f.function;
    return NULL;
}
}
