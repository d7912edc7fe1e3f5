/* code.cu - how much code fits an SM's instruction cache, and what does a miss cost?
 *
 * A chain of kernels with programmatic edges, whose blocks run straight through some kilobytes of
 * code before griddepcontrol.wait and after it, and do nothing else. One kernel launched again and
 * again finds its code cached; several in turn do so as long as all of it fits. */
#include "common.cuh"

enum { LAUNCHES = 240, THREADS = 512, SHARED = 115456, INSTRUCTIONS_KB = 64 };

struct params {
    float *words; /* 2 * SM_COUNT */
    float zero;
};

/* KB of multiply-adds in four independent chains. */
template <int KB> static __device__ __forceinline__ void walk(float (&v)[4], float x) {
#pragma unroll
    for (int i = 0; i < KB * INSTRUCTIONS_KB; i++)
        asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(v[i % 4]) : "f"(x));
}

/* NUMBER makes it another kernel. (No two chains begin alike: the compiler would join them.) */
template <int NUMBER, int BEFORE, int AFTER>
static __global__ void __maxnreg__(48) walk_code(const __grid_constant__ struct params p) {
    float v[4] = {NUMBER + 4, 1, 2, 3}, x = p.zero;
    pdl_launch_dependents();
    walk<BEFORE>(v, x);
    pdl_wait();
    if (threadIdx.x == 0)
        x += __ldcg(p.words + (blockIdx.x + 1) % SM_COUNT);
    walk<AFTER>(v, x);
    __syncthreads();
    if (threadIdx.x == 0)
        p.words[SM_COUNT + blockIdx.x] = v[0] + v[1] + v[2] + v[3];
}

typedef void (*kernel_fn)(struct params);

/* Microseconds a kernel of a chain in which n of them take turns. */
static double time_chain(const kernel_fn *kernels, int n, struct params p) {
    cudaStream_t stream;
    CU(cudaStreamCreate(&stream));
    for (int i = 0; i < n; i++)
        CU(cudaFuncSetAttribute((const void *)kernels[i],
                                cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    cudaGraphExec_t chain = capture(stream, [&] {
        for (int i = 0; i < LAUNCHES; i++)
            launch_pdl(stream, THREADS, SHARED, kernels[i % n], p);
    });
    struct timing t = time_launches(stream, 25, 1, [&] { CU(cudaGraphLaunch(chain, stream)); });
    CU(cudaGraphExecDestroy(chain));
    CU(cudaStreamDestroy(stream));
    return t.us / LAUNCHES;
}

template <int BEFORE, int AFTER> static void measure(struct params p) {
    const kernel_fn kernels[] = {walk_code<0, BEFORE, AFTER>, walk_code<1, BEFORE, AFTER>,
                                 walk_code<2, BEFORE, AFTER>, walk_code<3, BEFORE, AFTER>};
    printf("%2d + %2d KB", BEFORE, AFTER);
    for (int n = 1; n <= 4; n++)
        printf("  %6.3f", time_chain(kernels, n, p));
    printf("\n");
}

int main(void) {
    struct params p = {device_alloc<float>(2 * SM_COUNT), 0};
    CU(cudaMemset(p.words, 0, 2 * SM_COUNT * sizeof(float)));
    printf("us a kernel, of 1, 2, 3 and 4 kernels in turn\n");
    measure<0, 0>(p);
    measure<4, 4>(p);
    measure<4, 12>(p);
    measure<16, 16>(p);
    return 0;
}
