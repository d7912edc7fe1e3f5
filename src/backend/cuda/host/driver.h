/* driver.h - the CUDA driver, found at run time: one program with and without a GPU. */
#ifndef BACKEND_CUDA_HOST_DRIVER_H
#define BACKEND_CUDA_HOST_DRIVER_H

#include <cuda.h>
#include <stdbool.h>

#include "base/err.h"

/* Every function we use: DRIVER(its member in `driver`, its name in the library). The plain names
 * are the oldest ABI; these are the ones that cuda.h declares under the plain name. */
#define DRIVER_FUNCTIONS                                                                           \
    DRIVER(init, cuInit)                                                                           \
    DRIVER(driver_version, cuDriverGetVersion)                                                     \
    DRIVER(error_name, cuGetErrorName)                                                             \
    DRIVER(error_string, cuGetErrorString)                                                         \
    DRIVER(device_count, cuDeviceGetCount)                                                         \
    DRIVER(device_get, cuDeviceGet)                                                                \
    DRIVER(device_name, cuDeviceGetName)                                                           \
    DRIVER(device_attribute, cuDeviceGetAttribute)                                                 \
    DRIVER(device_memory, cuDeviceTotalMem_v2)                                                     \
    DRIVER(context_retain, cuDevicePrimaryCtxRetain)                                               \
    DRIVER(context_release, cuDevicePrimaryCtxRelease_v2)                                          \
    DRIVER(context_set, cuCtxSetCurrent)                                                           \
    DRIVER(context_sync, cuCtxSynchronize)                                                         \
    DRIVER(memory_info, cuMemGetInfo_v2)                                                           \
    DRIVER(alloc, cuMemAlloc_v2)                                                                   \
    DRIVER(free, cuMemFree_v2)                                                                     \
    DRIVER(host_alloc, cuMemHostAlloc)                                                             \
    DRIVER(host_free, cuMemFreeHost)                                                               \
    DRIVER(host_register, cuMemHostRegister_v2)                                                    \
    DRIVER(host_unregister, cuMemHostUnregister)                                                   \
    DRIVER(host_address, cuMemHostGetDevicePointer_v2)                                             \
    DRIVER(copy_in, cuMemcpyHtoDAsync_v2)                                                          \
    DRIVER(copy_out, cuMemcpyDtoHAsync_v2)                                                         \
    DRIVER(copy_within, cuMemcpyDtoDAsync_v2)                                                      \
    DRIVER(set_bytes, cuMemsetD8Async)                                                             \
    DRIVER(module_load, cuModuleLoadData)                                                          \
    DRIVER(module_unload, cuModuleUnload)                                                          \
    DRIVER(module_function, cuModuleGetFunction)                                                   \
    DRIVER(function_set, cuFuncSetAttribute)                                                       \
    DRIVER(function_get, cuFuncGetAttribute)                                                       \
    DRIVER(stream_create, cuStreamCreate)                                                          \
    DRIVER(stream_destroy, cuStreamDestroy_v2)                                                     \
    DRIVER(stream_sync, cuStreamSynchronize)                                                       \
    DRIVER(stream_query, cuStreamQuery)                                                            \
    DRIVER(stream_wait, cuStreamWaitEvent)                                                         \
    DRIVER(capture_begin, cuStreamBeginCapture_v2)                                                 \
    DRIVER(capture_end, cuStreamEndCapture)                                                        \
    DRIVER(launch, cuLaunchKernelEx)                                                               \
    DRIVER(graph_instantiate, cuGraphInstantiateWithFlags)                                         \
    DRIVER(graph_upload, cuGraphUpload)                                                            \
    DRIVER(graph_launch, cuGraphLaunch)                                                            \
    DRIVER(graph_destroy, cuGraphDestroy)                                                          \
    DRIVER(graph_exec_destroy, cuGraphExecDestroy)                                                 \
    DRIVER(event_create, cuEventCreate)                                                            \
    DRIVER(event_destroy, cuEventDestroy_v2)                                                       \
    DRIVER(event_record, cuEventRecord)                                                            \
    DRIVER(event_sync, cuEventSynchronize)                                                         \
    DRIVER(event_milliseconds, cuEventElapsedTime_v2)

/* The functions, by the types that cuda.h gives their names. */
struct driver {
#define DRIVER(member, name) __typeof__(name) *member;
    DRIVER_FUNCTIONS
#undef DRIVER
};
extern struct driver driver;

/* Loads the library, the first time. What is missing is said in one line. */
int driver_open(struct err *err);

/* An error with what was done, when `status` is one. */
int driver_check(CUresult status, const char *what, struct err *err);

#endif
