/* common.cuh - what kernels of all ops share. */
#ifndef BACKEND_CUDA_KERNELS_COMMON_CUH
#define BACKEND_CUDA_KERNELS_COMMON_CUH

#include <cuda_fp16.h>
#include <stdint.h>

#include "backend/cuda/shared.h"

/* Lets the next kernel of the step begin; first thing in every kernel. It says nothing about what
 * this one has written: the next kernel's pdl_wait does. */
static __device__ __forceinline__ void pdl_launch_dependents(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Below 9.0 a kernel begins when all before it are complete. */
#if __CUDA_ARCH__ >= 900
#define PDL_WAIT "griddepcontrol.wait;\n"
#else
#define PDL_WAIT ""
#endif

/* All earlier kernels of the step are complete behind this, and their writes are seen. */
static __device__ __forceinline__ void pdl_wait(void) {
    asm volatile(PDL_WAIT ::: "memory");
}

/* The same, and one thread notes when that was: a step's times, op by op, as they are in the step.
 * Who that is, and where it goes, is known before the wait. */
static __device__ __forceinline__ void pdl_wait(const struct cuda_io &io) {
    uint32_t who = threadIdx.x | blockIdx.x | blockIdx.y | blockIdx.z;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .u64 now;\n"
                 "setp.eq.u32 p, %0, 0;\n" PDL_WAIT "@p mov.u64 now, %%globaltimer;\n"
                 "@p st.global.u64 [%1], now;\n"
                 "}" ::"r"(who),
                 "l"(io.stamp)
                 : "memory");
}

/* ---- asynchronous copies into shared memory ----------------------------------------------------
 */

static __device__ __forceinline__ uint32_t smem_addr(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* to: an address in shared memory, as smem_addr gives it. */
static __device__ __forceinline__ void cp_async_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void cp_async_4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/* The copies since the last time are a group. */
static __device__ __forceinline__ void cp_async_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All but the N youngest groups are there. */
template <int N> static __device__ __forceinline__ void cp_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- barriers in shared memory, by their addresses: from 9.0 on -------------------------------
 */

/* A barrier is passed when so many bytes are there. */
static __device__ __forceinline__ void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
#endif
}

static __device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

static __device__ __forceinline__ void mbarrier_wait(uint32_t at, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(at),
                 "r"(phase)
                 : "memory");
#endif
}

/* Says that this block is there, and its barrier ready; orders no other memory, which would cost a
 * fence of the whole device. */
static __device__ __forceinline__ void cluster_arrive(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ void cluster_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* ---- the rest ----------------------------------------------------------------------------------
 */

/* A picked token, to the host and to the device's copy of IO, where a burst goes on from it. */
static __device__ __forceinline__ void put_token(const struct cuda_io &io, uint32_t output,
                                                 int32_t token) {
    io.host_outputs[output].token = token;
    ((struct io_output *)io.outputs)[output].token = token;
}

/* A sum, or maximum, over a warp that every lane has: the same bits in all of them. */
static __device__ __forceinline__ float warp_sum(float x) {
    for (int i = 16; i > 0; i >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

static __device__ __forceinline__ float warp_max(float x) {
    for (int i = 16; i > 0; i >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

static __device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + __expf(-x));
}

static __device__ __forceinline__ float silu(float x) {
    return x / (1.0f + __expf(-x));
}

/* Weights are read once a step: past L1, by plain loads, which stay before a pdl_wait where .nc
 * loads would sink below it (and behind one where .nc loads would rise above it). */
static __device__ __forceinline__ uint4 load_weights(const void *p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

#endif
