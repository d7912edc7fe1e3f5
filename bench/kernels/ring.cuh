/* ring.cuh - bulk copies from global to shared memory, completing on mbarriers (sm_90). */
#pragma once
#include <stdint.h>

__device__ static inline uint32_t smem_addr(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ static inline void mbar_init(uint32_t bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
}

/* Makes initialised barriers visible to the copy engine. */
__device__ static inline void mbar_init_fence(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ static inline void mbar_wait(uint32_t bar, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

__device__ static inline bool mbar_test(uint32_t bar, uint32_t parity) {
    uint32_t ok;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(ok)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return ok;
}

__device__ static inline uint64_t evict_first_policy(void) {
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}

/* Starts a copy of `bytes` (a multiple of 16, both ends 16-aligned) and arms `bar` with it. */
__device__ static inline void bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar,
                                        uint64_t policy) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}

/* Programmatic dependent launch: let the next kernel start; wait for the previous one's writes. */
__device__ static inline void pdl_launch_next(void) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ static inline void pdl_wait(void) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* One word from global to shared memory, with no register in between. */
__device__ static inline void async_word(void *dst, const void *src) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_addr(dst)), "l"(src)
                 : "memory");
}

__device__ static inline void async_wait(void) {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
