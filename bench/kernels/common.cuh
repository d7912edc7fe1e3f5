/* common.cuh - what the programs here share: error checks, random data, graphs, timing.
 * Instructions are those of the engine's ptx.cuh.
 *
 * Times are device times between two events around many launches; a figure is the median of
 * several such repeats. */
#pragma once
#include <algorithm>
#include <cuda_runtime.h>
#include <functional>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include "backend/cuda/kernels/ptx.cuh"

#define CU(call)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_)); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #cond);               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { SM_COUNT = 132 };

/* A small counter-based generator: the same on host and device, any index in any order. */
__host__ __device__ static inline uint32_t hash32(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

/* Uniform in [-1, 1). */
__host__ __device__ static inline float hash_unit(uint32_t x) {
    return (float)(int32_t)hash32(x) * (1.0f / 2147483648.0f);
}

template <class T> static T *device_alloc(size_t n) {
    void *p = NULL;
    CU(cudaMalloc(&p, n * sizeof(T)));
    CU(cudaMemset(p, 0xff, n * sizeof(T))); /* poison: f32 NaN */
    return (T *)p;
}

template <class T> static T *device_copy(const std::vector<T> &v) {
    T *p = device_alloc<T>(v.size() ? v.size() : 1);
    CU(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

template <class T> static std::vector<T> host_copy(const T *p, size_t n) {
    std::vector<T> v(n);
    CU(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

struct timing {
    double us, spread_us; /* median of the repeats; largest minus smallest */
};

/* Median over `repeats` of the device time of one `launch`, each repeat timing `n` of them. */
static struct timing time_launches(cudaStream_t st, int repeats, int n,
                                   const std::function<void()> &launch) {
    cudaEvent_t a, b;
    std::vector<double> us;
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    for (int i = 0; i < 3; i++)
        launch();
    for (int r = 0; r < repeats; r++) {
        float ms;
        CU(cudaEventRecord(a, st));
        for (int i = 0; i < n; i++)
            launch();
        CU(cudaEventRecord(b, st));
        CU(cudaEventSynchronize(b));
        CU(cudaEventElapsedTime(&ms, a, b));
        us.push_back(ms * 1e3 / n);
    }
    CU(cudaGetLastError());
    CU(cudaEventDestroy(a));
    CU(cudaEventDestroy(b));
    std::sort(us.begin(), us.end());
    return (struct timing){us[us.size() / 2], us.back() - us.front()};
}

/* While `stream` is being captured: a kernel of one block an SM that may start before the kernel
 * before it is complete (a programmatic edge). */
template <class PARAMS>
static void launch_pdl(cudaStream_t stream, int threads, size_t shared, void (*kernel)(PARAMS),
                       const PARAMS &p) {
    cudaLaunchAttribute pdl = {};
    cudaLaunchConfig_t config = {};
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = SM_COUNT;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &pdl;
    config.numAttrs = 1;
    CU(cudaLaunchKernelEx(&config, kernel, p));
}

/* What `record` launches on the stream, as a graph. */
static inline cudaGraphExec_t capture(cudaStream_t stream, const std::function<void()> &record) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    record();
    CU(cudaStreamEndCapture(stream, &graph));
    CU(cudaGraphInstantiate(&exec, graph, 0));
    CU(cudaGraphDestroy(graph));
    return exec;
}

__global__ static void fill_random(uint32_t *p, size_t words, uint32_t seed) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < words; i += (size_t)gridDim.x * blockDim.x)
        p[i] = hash32((uint32_t)i * 2654435761u + seed + (uint32_t)(i >> 32));
}

__global__ static void read_all(const uint4 *p, size_t n, uint32_t *sink) {
    uint32_t s = 0;
    size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 7 * stride < n; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __ldcs(p + i + j * stride);
#pragma unroll
        for (int j = 0; j < 8; j++)
            s ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (s == 0x12345678u)
        *sink = s;
}

/* Read bandwidth in bytes per microsecond (= MB/s): a streaming read of `bytes`. */
static inline double bandwidth_calibrate(const void *p, size_t bytes) {
    uint32_t *sink = device_alloc<uint32_t>(1);
    double best = 0;
    int per_sm[] = {2, 4, 8};
    for (int k : per_sm) {
        struct timing t = time_launches(
            0, 7, 5, [&] { read_all<<<SM_COUNT * k, 512>>>((const uint4 *)p, bytes / 16, sink); });
        best = fmax(best, (double)bytes / t.us);
    }
    CU(cudaFree(sink));
    return best;
}
