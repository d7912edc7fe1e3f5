/* code.cu - how much code does a multiprocessor have near, and what does other code cost?
 *
 * A chain of kernels with programmatic edges, whose blocks run straight through some kilobytes of
 * code before their wait and behind it, and do nothing else. One kernel again and again finds its
 * code where it has left it; several in turn do so as long as all of it fits. */
#include "common.cuh"

enum { STAGES = 240, THREADS = 512, SHARED = 115456, INSTRUCTIONS_KB = 64 };

struct params {
    float *words; /* 2 * SM_COUNT */
    float zero;
};

/* KB of multiply-adds, four of which wait for none of each other. */
template <int KB> static __device__ __forceinline__ void walk(float (&v)[4], float x) {
#pragma unroll
    for (int i = 0; i < KB * INSTRUCTIONS_KB; i++)
        asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(v[i % 4]) : "f"(x));
}

/* NUMBER makes it another kernel. (No two sums begin alike: the compiler would find them the same.)
 */
template <int NUMBER, int BEFORE, int BEHIND>
static __global__ void __maxnreg__(48) stage(const __grid_constant__ struct params p) {
    float v[4] = {NUMBER + 4, 1, 2, 3}, x = p.zero;
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    walk<BEFORE>(v, x);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (threadIdx.x == 0)
        x += __ldcg(p.words + (blockIdx.x + 1) % SM_COUNT);
    walk<BEHIND>(v, x);
    __syncthreads();
    if (threadIdx.x == 0)
        p.words[SM_COUNT + blockIdx.x] = v[0] + v[1] + v[2] + v[3];
}

typedef void (*stage_fn)(struct params);

/* Microseconds a stage of a chain that takes turns with n kernels. */
static double time_chain(const stage_fn *kernels, int n, struct params p) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t chain;
    CU(cudaStreamCreate(&stream));
    for (int i = 0; i < n; i++)
        CU(cudaFuncSetAttribute((const void *)kernels[i],
                                cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < STAGES; i++) {
        cudaLaunchAttribute early = {};
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config = {};
        config.gridDim = SM_COUNT;
        config.blockDim = THREADS;
        config.dynamicSmemBytes = SHARED;
        config.stream = stream;
        config.attrs = &early;
        config.numAttrs = 1;
        CU(cudaLaunchKernelEx(&config, kernels[i % n], p));
    }
    CU(cudaStreamEndCapture(stream, &graph));
    CU(cudaGraphInstantiate(&chain, graph, 0));
    struct timing t = time_launches(stream, 25, 1, [&] { CU(cudaGraphLaunch(chain, stream)); });
    CU(cudaGraphExecDestroy(chain));
    CU(cudaGraphDestroy(graph));
    CU(cudaStreamDestroy(stream));
    return t.us / STAGES;
}

template <int BEFORE, int BEHIND> static void measure(struct params p) {
    const stage_fn kernels[] = {stage<0, BEFORE, BEHIND>, stage<1, BEFORE, BEHIND>,
                                stage<2, BEFORE, BEHIND>, stage<3, BEFORE, BEHIND>};
    printf("%2d + %2d KB", BEFORE, BEHIND);
    for (int n = 1; n <= 4; n++)
        printf("  %6.3f", time_chain(kernels, n, p));
    printf("\n");
}

int main(void) {
    struct params p = {device_alloc<float>(2 * SM_COUNT), 0};
    CU(cudaMemset(p.words, 0, 2 * SM_COUNT * sizeof(float)));
    printf("us a stage, of 1, 2, 3 and 4 kernels in turn\n");
    measure<0, 0>(p);
    measure<4, 4>(p);
    measure<4, 12>(p);
    measure<16, 16>(p);
    return 0;
}
