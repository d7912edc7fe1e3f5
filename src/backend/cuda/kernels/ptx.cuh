/* ptx.cuh - all inline assembly of the kernels: one function an instruction, named for it.
 *
 * Addresses in shared memory are 32-bit, as smem_addr gives them. Instructions that need compute
 * capability 9.0 do nothing below it; the kernels have another path there. */
#ifndef BACKEND_CUDA_KERNELS_PTX_CUH
#define BACKEND_CUDA_KERNELS_PTX_CUH

#include <stdint.h>

#if __CUDA_ARCH__ >= 900
#define HAS_CP_ASYNC_BULK true
#else
#define HAS_CP_ASYNC_BULK false
#endif

/* ---- programmatic dependent launch --------------------------------------------------------- */

/* Lets the next kernel of the step start. It says nothing about what this one has written: the
 * next kernel's griddepcontrol.wait does. */
static __device__ __forceinline__ void pdl_launch_dependents(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Below 9.0 a kernel starts when all before it are complete. */
#if __CUDA_ARCH__ >= 900
#define PDL_WAIT "griddepcontrol.wait;\n"
#else
#define PDL_WAIT ""
#endif

/* After this all earlier kernels of the step are complete, and their writes visible. */
static __device__ __forceinline__ void pdl_wait(void) {
    asm volatile(PDL_WAIT ::: "memory");
}

/* The same, and thread 0 stores the time: a step's times, op by op, as they are in the step. The
 * predicate and the address are computed before the wait. */
static __device__ __forceinline__ void pdl_wait_stamped(uint32_t thread, uint64_t *stamp) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .u64 now;\n"
                 "setp.eq.u32 p, %0, 0;\n" PDL_WAIT "@p mov.u64 now, %%globaltimer;\n"
                 "@p st.global.u64 [%1], now;\n"
                 "}" ::"r"(thread),
                 "l"(stamp)
                 : "memory");
}

/* The second half of that, for kernels that first start the loads that they wait for. */
static __device__ __forceinline__ void store_stamp(uint32_t thread, uint64_t *stamp) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .u64 now;\n"
                 "setp.eq.u32 p, %0, 0;\n"
                 "@p mov.u64 now, %%globaltimer;\n"
                 "@p st.global.u64 [%1], now;\n"
                 "}" ::"r"(thread),
                 "l"(stamp)
                 : "memory");
}

static __device__ __forceinline__ uint64_t globaltimer(void) {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/* ---- cp.async ------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t smem_addr(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void cp_async_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Zeros instead where it is not wanted; `from` must be an address all the same. */
static __device__ __forceinline__ void cp_async_16_or_zero(uint32_t to, const void *from,
                                                           bool is_wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(is_wanted ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void cp_async_8(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void cp_async_4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void cp_async_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All but the N youngest groups are complete. */
template <int N> static __device__ __forceinline__ void cp_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ void cp_async_wait_all(void) {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- mbarriers and bulk copies: from 9.0 on -------------------------------------------------- */

static __device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t count) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
#endif
}

/* Makes initialised mbarriers visible to the copy engine and the cluster. */
static __device__ __forceinline__ void mbarrier_init_fence(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

static __device__ __forceinline__ void fence_proxy_async(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Arrives, and the phase completes only when this many bytes have come, too. */
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

/* Arrives when this thread's cp.async so far are complete. */
static __device__ __forceinline__ void cp_async_arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

static __device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(phase)
                 : "memory");
#endif
}

/* One lane of a converged warp. The compiler knows that it is one; around a bulk copy of a lane
 * that it does not know to be alone it puts a loop. */
static __device__ __forceinline__ bool elect_lane(void) {
#if __CUDA_ARCH__ >= 900
    uint32_t is_elected;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(is_elected));
    return is_elected;
#else
    return threadIdx.x % 32 == 0;
#endif
}

/* Issued by one lane; below 9.0, which has no copy engine, that lane's own cp.async. */
static __device__ __forceinline__ void cp_async_bulk(uint32_t to, const uint8_t *from,
                                                     uint32_t bytes, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
#else
    for (uint32_t i = 0; i < bytes; i += 16)
        cp_async_16(to + i, from + i);
#endif
}

/* A multiple of 16 bytes into L2. */
static __device__ __forceinline__ void prefetch_l2(const uint8_t *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/* From shared memory, written before fence_proxy_async; of the thread's running group of stores. */
static __device__ __forceinline__ void bulk_store(float *to, uint32_t from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
#endif
}

static __device__ __forceinline__ void bulk_store_commit(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

/* All of the thread's stores have read shared memory; IS_DONE: and have written. */
template <bool IS_DONE> static __device__ __forceinline__ void bulk_store_wait(void) {
#if __CUDA_ARCH__ >= 900
    if (IS_DONE)
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    else
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

/* ---- clusters -------------------------------------------------------------------------------- */

/* Says that this block runs and its mbarriers are initialised; orders no other memory, which would
 * cost a fence of the whole device. */
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

/* Waits for all blocks; what they did before is done. */
static __device__ __forceinline__ void cluster_sync(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
/* The same shared address in the cluster's block of that rank. */
static __device__ __forceinline__ uint32_t map_to_rank(uint32_t at, uint32_t rank) {
    uint32_t to;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at), "r"(rank));
    return to;
}

/* Arrives at the mbarrier of the cluster's block of that rank. */
static __device__ __forceinline__ void mbarrier_arrive_rank(uint32_t barrier, uint32_t rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(map_to_rank(barrier, rank))
                 : "memory");
}

/* A bulk copy to the same address of several blocks of the cluster, a bit each, which completes
 * bytes of each one's mbarrier. */
static __device__ __forceinline__ void cp_async_bulk_multicast(uint32_t to, const uint8_t *from,
                                                               uint32_t bytes, uint32_t barrier,
                                                               uint32_t ranks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
                 "cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "h"((uint16_t)ranks)
                 : "memory");
}

/* Stores into a block of the cluster, which its mbarrier counts as bytes. */
static __device__ __forceinline__ void st_async(uint32_t to, float4 x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
                 "%4}, [%5];" ::"r"(to),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void st_async(uint32_t to, uint2 x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, "
                 "[%3];" ::"r"(to),
                 "r"(x.x), "r"(x.y), "r"(barrier)
                 : "memory");
}
#endif

/* ---- loads ----------------------------------------------------------------------------------- */

/* A load of 1, 2 or 4 words, issued where it stands. C: the asm constraint of a word. */
#define LOAD1(NAME, T, C, INSTRUCTION)                                                             \
    static __device__ __forceinline__ T NAME(const void *p) {                                      \
        T v;                                                                                       \
        asm volatile(INSTRUCTION " %0, [%1];" : "=" C(v) : "l"(p));                                \
        return v;                                                                                  \
    }
#define LOAD2(NAME, T, C, INSTRUCTION)                                                             \
    static __device__ __forceinline__ T NAME(const void *p) {                                      \
        T v;                                                                                       \
        asm volatile(INSTRUCTION " {%0, %1}, [%2];" : "=" C(v.x), "=" C(v.y) : "l"(p));            \
        return v;                                                                                  \
    }
#define LOAD4(NAME, T, C, INSTRUCTION)                                                             \
    static __device__ __forceinline__ T NAME(const void *p) {                                      \
        T v;                                                                                       \
        asm volatile(INSTRUCTION " {%0, %1, %2, %3}, [%4];"                                        \
                     : "=" C(v.x), "=" C(v.y), "=" C(v.z), "=" C(v.w)                              \
                     : "l"(p));                                                                    \
        return v;                                                                                  \
    }

/* Weights are read once a step: past L1, by plain loads, which the compiler leaves before a
 * pdl_wait where .nc loads would sink below it (and after one where .nc loads would rise above
 * it). */
LOAD4(ld_no_allocate, uint4, "r", "ld.global.L1::no_allocate.v4.u32")
LOAD2(ld_no_allocate_u32x2, uint2, "r", "ld.global.L1::no_allocate.v2.u32")
LOAD1(ld_no_allocate_u32, uint32_t, "r", "ld.global.L1::no_allocate.u32")
LOAD1(ld_no_allocate_f32, float, "f", "ld.global.L1::no_allocate.f32")
LOAD4(ld_no_allocate_f32x4, float4, "f", "ld.global.L1::no_allocate.v4.f32")
/* Through L1. */
LOAD1(ld_volatile_f32, float, "f", "ld.global.f32")
LOAD2(ld_volatile_u32x2, uint2, "r", "ld.global.v2.u32")
LOAD4(ld_volatile_u32x4, uint4, "r", "ld.global.v4.u32")
/* Past L1. */
LOAD2(ld_cg_f32x2, float2, "f", "ld.global.cg.v2.f32")
LOAD4(ld_cg_f32x4, float4, "f", "ld.global.cg.v4.f32")

/* Predicated, not branched: before a branch the compiler waits for every load in flight. */
static __device__ __forceinline__ void ld_cg_f32x4_if(bool is_wanted, const float4 *at, float4 &v) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.u32 p, %5, 0;\n"
                 "@p ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)
                 : "l"(at), "r"((uint32_t)is_wanted)
                 : "memory");
}

static __device__ __forceinline__ void ld_cg_f32_if(bool is_wanted, const float *at, float &v) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.u32 p, %2, 0;\n"
                 "@p ld.global.cg.f32 %0, [%1];\n"
                 "}"
                 : "+f"(v)
                 : "l"(at), "r"((uint32_t)is_wanted)
                 : "memory");
}

/* Relaxed: another kernel may write meanwhile. */
static __device__ __forceinline__ uint32_t ld_relaxed(const void *p) {
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

static __device__ __forceinline__ uint4 ld_relaxed_u32x4(const void *p) {
    uint4 x;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p)
                 : "memory");
    return x;
}

/* From shared memory into vector registers: the compiler would move what is the same for all lanes
 * to uniform registers, and wait for it at once. */
static __device__ __forceinline__ uint4 ld_shared_u32x4(const void *p) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(smem_addr(p)));
    return x;
}

/* Predicated, at an address of smem_addr. */
static __device__ __forceinline__ void ld_shared_u32x4_if(bool is_wanted, uint32_t at, uint4 &x) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.u32 p, %5, 0;\n"
                 "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "r"(at), "r"((uint32_t)is_wanted)
                 : "memory");
}

static __device__ __forceinline__ uint2 ld_shared_u32x2(const void *p) {
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(smem_addr(p)));
    return x;
}

static __device__ __forceinline__ void st_shared_u32x4(uint32_t at, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}

/* The same of floats, from addresses of smem_addr. Volatile: they stay where they are among
 * shuffles. */
static __device__ __forceinline__ float ld_shared_f32(uint32_t at) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
    return x;
}

static __device__ __forceinline__ float2 ld_shared_f32x2(uint32_t at) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
    return x;
}

static __device__ __forceinline__ void ld_shared_f32x4(uint32_t at, float *x) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(at));
}

/* ---- synchronisation ------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t atomic_inc_acq_rel_gpu(uint32_t *counter) {
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
}

static __device__ __forceinline__ uint32_t atomic_inc_acq_rel_cta(uint32_t *counter) {
    uint32_t before;
    asm volatile("atom.add.acq_rel.cta.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

/* Barrier 1, of the first `threads` threads of a block. */
static __device__ __forceinline__ void named_barrier_sync(uint32_t threads) {
    asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}

/* Announces what this thread has written to those that sync. */
static __device__ __forceinline__ void any_barrier_arrive(uint32_t barrier, uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Any barrier of a block, 1 to 15, of this many of its threads. */
static __device__ __forceinline__ void any_barrier_sync(uint32_t barrier, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

static __device__ __forceinline__ uint32_t ld_acquire(const uint32_t *p) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

static __device__ __forceinline__ void st_release(uint32_t *p, uint32_t x) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* One instruction, good to the last bit or two; the exact ones branch for special values. */
static __device__ __forceinline__ float rcp_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float rsqrt_approx(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float ex2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two bf16, rounded to nearest; the first in the lower half. */
static __device__ __forceinline__ uint32_t cvt_bf16x2(float first, float second) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
    return r;
}

/* c + dot product of four unsigned and four signed bytes. */
static __device__ __forceinline__ int dp4a_us(uint32_t unsigned4, uint32_t signed4, int c) {
    int r;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(unsigned4), "r"(signed4), "r"(c));
    return r;
}

/* Byte i of v, sign-extended. */
static __device__ __forceinline__ int signed_byte(uint32_t v, uint32_t i) {
    int r;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(v), "r"(0x8880 + 0x1111 * i));
    return r;
}

static __device__ __forceinline__ uint32_t ld_shared_u32(uint32_t at) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}

static __device__ __forceinline__ void st_shared_u32(uint32_t at, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

/* a + b that the compiler does not see through. */
static __device__ __forceinline__ uint32_t opaque_add(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("add.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* ---- values that are computed again rather than kept in registers ------------------------- */

static __device__ __forceinline__ uint32_t opaque(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

static __device__ __forceinline__ uint32_t volatile_lane(void) {
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

static __device__ __forceinline__ uint32_t volatile_thread(void) {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* Computed before this and read after it, whatever the compiler would like better: results of wgmma
 * are not there before its wait, and registers are few. */
static __device__ __forceinline__ void materialize(float &x) {
    asm volatile("" : "+f"(x));
}

static __device__ __forceinline__ void materialize(float &x, float &y) {
    asm volatile("" : "+f"(x), "+f"(y));
}

static __device__ __forceinline__ void materialize(uint32_t &x) {
    asm volatile("" : "+r"(x));
}

static __device__ __forceinline__ void materialize(int &x) {
    asm volatile("" : "+r"(x));
}

/* Computed once, not with every use. */
static __device__ __forceinline__ void compute_once(uint2 &x) {
    asm("" : "+r"(x.x), "+r"(x.y));
}

/* Loads before this stay before, loads after stay after: limits registers. */
static __device__ __forceinline__ void compiler_fence(void) {
    asm volatile("" ::: "memory");
}

/* ---- tensor cores ---------------------------------------------------------------------------- */

/* Four matrices of 8 rows by 16 bytes: a lane gives the address of row lane % 8 of matrix lane / 8,
 * and gets word lane % 4 of row lane / 4 of each. */
static __device__ __forceinline__ void ldmatrix_x4(uint32_t (&x)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

/* c = a * b + start. */
static __device__ __forceinline__ void mma_m16n8k32_s8(int (&c)[4], const uint32_t (&a)[4],
                                                       uint32_t b0, uint32_t b1, int start) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}

/* c = a * b. */
static __device__ __forceinline__ void mma_m16n8k16_s8(int (&c)[4], uint32_t a0, uint32_t a1,
                                                       uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %7, %7, %7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

/* c = a * b. */
static __device__ __forceinline__ void mma_m16n8k8_f16(float (&c)[4], uint32_t a0, uint32_t a1,
                                                       uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %7, %7, %7};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a0), "r"(a1), "r"(b), "f"(0.0f));
}

/* c += a * b. */
static __device__ __forceinline__ void mma_m16n8k16_f16(float (&c)[4], uint32_t a0, uint32_t a1,
                                                        uint32_t a2, uint32_t a3, uint32_t b0,
                                                        uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void mma_m16n8k16_bf16(float (&c)[4], uint32_t a0, uint32_t a1,
                                                         uint32_t a2, uint32_t a3, uint32_t b0,
                                                         uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* ---- wgmma and setmaxnreg: sm_90a alone ------------------------------------------------------ */

#if __CUDA_ARCH_FEAT_SM90_ALL
template <int N> static __device__ __forceinline__ void setmaxnreg_inc(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void setmaxnreg_dec(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* Before the first wgmma after other instructions wrote its registers. */
static __device__ __forceinline__ void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* All but the N youngest groups are complete. */
template <int N> static __device__ __forceinline__ void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#define WGMMA_R4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define WGMMA_R8(c, i) WGMMA_R4(c, i), WGMMA_R4(c, i + 4)
#define WGMMA_R16(c, i) WGMMA_R8(c, i), WGMMA_R8(c, i + 8)
#define WGMMA_R32(c, i) WGMMA_R16(c, i), WGMMA_R16(c, i + 16)

/* c = or += a * b^T: rows of 16 columns in shared memory, 64 of a, as many of b as c has columns.
 */
template <bool ADDS>
static __device__ __forceinline__ void wgmma_f16(float (&c)[8], uint64_t a, uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %10, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, "
                 "%8, %9, p, 1, 1, 0, 0;\n"
                 "}"
                 : WGMMA_R8(c, 0)
                 : "l"(a), "l"(b), "n"(ADDS));
}

template <bool ADDS>
static __device__ __forceinline__ void wgmma_f16(float (&c)[16], uint64_t a, uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "%16, %17, p, 1, 1, 0, 0;\n"
                 "}"
                 : WGMMA_R16(c, 0)
                 : "l"(a), "l"(b), "n"(ADDS));
}

template <bool ADDS>
static __device__ __forceinline__ void wgmma_f16(float (&c)[32], uint64_t a, uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0;\n"
                 "}"
                 : WGMMA_R32(c, 0)
                 : "l"(a), "l"(b), "n"(ADDS));
}

template <bool ADDS>
static __device__ __forceinline__ void wgmma_f16(float (&c)[64], uint64_t a, uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, 0;\n"
                 "}"
                 : WGMMA_R32(c, 0), WGMMA_R32(c, 32)
                 : "l"(a), "l"(b), "n"(ADDS));
}

/* c = or += a * b^T: a (64 x 16) in registers, b in shared memory, K-major (32, 64 or 128 rows of
 * 16 columns) or MN-major (16 rows of as many columns). */
template <bool ADDS, bool MN_MAJOR_B = false>
static __device__ __forceinline__ void wgmma_f16(float (&c)[16], const uint32_t (&a)[4],
                                                 uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, p, 1, 1, %22;\n"
                 "}"
                 : WGMMA_R16(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADDS), "n"(MN_MAJOR_B));
}

template <bool ADDS, bool MN_MAJOR_B = false>
static __device__ __forceinline__ void wgmma_f16(float (&c)[32], const uint32_t (&a)[4],
                                                 uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n"
                 "}"
                 : WGMMA_R32(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADDS), "n"(MN_MAJOR_B));
}

template <bool ADDS, bool MN_MAJOR_B = false>
static __device__ __forceinline__ void wgmma_f16(float (&c)[64], const uint32_t (&a)[4],
                                                 uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n"
                 "}"
                 : WGMMA_R32(c, 0), WGMMA_R32(c, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADDS), "n"(MN_MAJOR_B));
}

/* c = a * b^T, int8: rows of 32 columns in shared memory, 64 of a, 32 of b. */
static __device__ __forceinline__ void wgmma_s8(int (&c)[16], uint64_t a, uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "%16, %17, p;\n"
                 "}"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]), "+r"(c[4]), "+r"(c[5]),
                   "+r"(c[6]), "+r"(c[7]), "+r"(c[8]), "+r"(c[9]), "+r"(c[10]), "+r"(c[11]),
                   "+r"(c[12]), "+r"(c[13]), "+r"(c[14]), "+r"(c[15])
                 : "l"(a), "l"(b));
}

/* c += a * b^T, rows of 16 columns in shared memory, 64 of a, as many of b as c has columns. */
#define WGMMA_ADD(NAME, TYPE, REGISTERS, N, LIST, A, B, ...)                                       \
    static __device__ __forceinline__ void NAME(float(&c)[REGISTERS], uint64_t a, uint64_t b) {    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" LIST      \
                     "}, " A ", " B ", 1, 1, 1, 0, 0;"                                             \
                     : __VA_ARGS__                                                                 \
                     : "l"(a), "l"(b));                                                            \
    }

#define WGMMA_LIST8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_LIST16 WGMMA_LIST8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_LIST32                                                                               \
    WGMMA_LIST16 ", %16, %17, %18, %19, %20, %21, %22, %23"                                        \
                 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_LIST64                                                                               \
    WGMMA_LIST32 ", %32, %33, %34, %35, %36, %37, %38, %39"                                        \
                 ", %40, %41, %42, %43, %44, %45, %46, %47"                                        \
                 ", %48, %49, %50, %51, %52, %53, %54, %55"                                        \
                 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_LIST128                                                                              \
    WGMMA_LIST64 ", %64, %65, %66, %67, %68, %69, %70, %71"                                        \
                 ", %72, %73, %74, %75, %76, %77, %78, %79"                                        \
                 ", %80, %81, %82, %83, %84, %85, %86, %87"                                        \
                 ", %88, %89, %90, %91, %92, %93, %94, %95"                                        \
                 ", %96, %97, %98, %99, %100, %101, %102, %103"                                    \
                 ", %104, %105, %106, %107, %108, %109, %110, %111"                                \
                 ", %112, %113, %114, %115, %116, %117, %118, %119"                                \
                 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_ADD_ALL(NAME, TYPE)                                                                  \
    WGMMA_ADD(NAME, TYPE, 8, "16", WGMMA_LIST8, "%8", "%9", WGMMA_R8(c, 0))                        \
    WGMMA_ADD(NAME, TYPE, 16, "32", WGMMA_LIST16, "%16", "%17", WGMMA_R16(c, 0))                   \
    WGMMA_ADD(NAME, TYPE, 32, "64", WGMMA_LIST32, "%32", "%33", WGMMA_R32(c, 0))                   \
    WGMMA_ADD(NAME, TYPE, 64, "128", WGMMA_LIST64, "%64", "%65", WGMMA_R32(c, 0),                  \
              WGMMA_R32(c, 32))                                                                    \
    WGMMA_ADD(NAME, TYPE, 128, "256", WGMMA_LIST128, "%128", "%129", WGMMA_R32(c, 0),              \
              WGMMA_R32(c, 32), WGMMA_R32(c, 64), WGMMA_R32(c, 96))
WGMMA_ADD_ALL(wgmma_add_bf16, "bf16")
WGMMA_ADD_ALL(wgmma_add_f16, "f16")
#endif

#endif
