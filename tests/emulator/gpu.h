/* gpu.h - a GPU on the processor: what nvcc gives the kernels, for g++. GPU_ARCH is its compute
 * capability, 800 or 900.
 *
 * Included before a .cu file, which is then plain C++. A thread block is a thread of the machine,
 * its CUDA threads are fibers of it, which take turns wherever they wait (gpu.cpp). All shared
 * memory is thread-local. The instructions of ptx.cuh have a file of their own,
 * backend/cuda/kernels/ptx.cuh beside this one. driver.cpp is the driver in front of it.
 *
 * What it finds and a GPU may not: reads past the end of an allocation or of a block's shared
 * memory, values that were never written (memory is filled with NaN), barriers and mbarriers that
 * not all reach, copies, stores and products (cp.async, cp.async.bulk, wgmma) that are not waited
 * for or come too early, threads that rely on running in lockstep, stores to a block of the cluster
 * that does not run yet or any more. What it can't tell: races between kernels that overlap, since
 * here each ends before the next begins, and missing fences, since all threads see what any of them
 * wrote. */
#ifndef TESTS_EMULATOR_GPU_H
#define TESTS_EMULATOR_GPU_H

#include <cuda_fp16.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

#include "quant/f16.h" /* as the processor does it: the same bits */

#define __CUDACC__
#define __CUDA_ARCH__ GPU_ARCH
#define __CUDA_ARCH_FEAT_SM90_ALL (GPU_ARCH == 900)

/* ---- keywords ------------------------------------------------------------------------------ */

#undef __host__
#undef __device__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __align__
#undef __grid_constant__
#undef __launch_bounds__
#undef __cluster_dims__
#undef __maxnreg__
#undef __noinline__
#define __host__
#define __device__
#ifndef GPU_GLOBAL /* kernels.sh finds kernels by it */
#define GPU_GLOBAL
#endif
#define __global__ GPU_GLOBAL
#define __shared__ thread_local
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#ifndef GPU_CLUSTER /* as GPU_GLOBAL */
#define GPU_CLUSTER(x)
#endif
#define __cluster_dims__(x, y, z) GPU_CLUSTER(x)

/* ---- threads ------------------------------------------------------------------------------- */

struct gpu_dim {
    uint32_t x, y, z;
};
extern thread_local struct gpu_dim threadIdx, blockIdx, blockDim, gridDim;

enum {
    GPU_SHARED = (GPU_ARCH == 900 ? 228 : 164)
                 << 10, /* bytes of an SM; 1 KB a block is the system's */
    GPU_MAX_SHARED = GPU_SHARED - 1024,
};

/* Another thread of the block runs; `progress`: this one did something meanwhile. */
void gpu_yield(void);
/* A barrier of the block with this many threads; 0: all that still run. */
void gpu_barrier(uint32_t number, uint32_t threads, bool waits);
/* A barrier for the lanes of `mask`, at which each leaves a value; returns those of all lanes. */
const uint64_t *gpu_exchange(uint32_t mask, uint64_t value);
/* Where lanes of the running warp leave words for each other. */
struct gpu_area {
    uint32_t in[8][32];
    double out[4][32];
};
struct gpu_area *gpu_warp_area(void);
static inline uint32_t gpu_lane(void) {
    return threadIdx.x % 32;
}

/* One thread's share of a wgmma, until it is waited for. */
struct gpu_product {
    void *c;       /* 4 registers for 8 columns */
    uint32_t n, k; /* columns that have values in this thread's registers, and of a row of a or b */
    uint32_t bytes;        /* of an element */
    uint64_t a, b;         /* descriptors */
    uint32_t a_rows[2][8]; /* a, where it is in registers */
    bool is_a_here, is_b_mn_major, adds;
    double (*number)(const void *element);
    void (*add)(void *c, double sum, bool adds);
};

/* A kernel that the driver finds by name. */
struct gpu_kernel {
    const char *name;
    uint32_t cluster; /* blocks of one */
    void (*run)(const void *params);
    size_t bytes; /* of params */
    struct gpu_kernel *next;
    gpu_kernel(const char *name, uint32_t cluster, void (*run)(const void *), size_t bytes);
};
template <auto KERNEL> struct gpu_entry;
template <class T, void (*KERNEL)(T)> struct gpu_entry<KERNEL> {
    static constexpr size_t BYTES = sizeof(T);
    static void run(const void *params) {
        KERNEL(*(const T *)params);
    }
};
#define GPU_KERNEL(NAME, CLUSTER)                                                                  \
    static struct gpu_kernel registered_##NAME(#NAME, CLUSTER, gpu_entry<NAME>::run,               \
                                               gpu_entry<NAME>::BYTES);

/* ---- values between the lanes of a warp ------------------------------------------------------ */

template <class T> static inline uint64_t gpu_word(T v) {
    static_assert(sizeof v <= 8, "one word a lane");
    uint64_t word = 0;
    memcpy(&word, &v, sizeof v);
    return word;
}
template <class T> static inline T gpu_value(uint64_t word) {
    T v;
    memcpy(&v, &word, sizeof v);
    return v;
}
template <class T> static inline T __shfl_sync(uint32_t mask, T v, int lane) {
    return gpu_value<T>(gpu_exchange(mask, gpu_word(v))[lane & 31]);
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T v, int lanes) {
    return gpu_value<T>(gpu_exchange(mask, gpu_word(v))[gpu_lane() ^ (uint32_t)lanes]);
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T v, uint32_t lanes) {
    uint32_t from = gpu_lane() < lanes ? gpu_lane() : gpu_lane() - lanes;
    return gpu_value<T>(gpu_exchange(mask, gpu_word(v))[from]);
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T v, uint32_t lanes) {
    uint32_t from = gpu_lane() + lanes > 31 ? gpu_lane() : gpu_lane() + lanes;
    return gpu_value<T>(gpu_exchange(mask, gpu_word(v))[from]);
}
template <class T, class OP> static inline T gpu_reduce(uint32_t mask, T v, OP op) {
    const uint64_t *all = gpu_exchange(mask, gpu_word(v));
    bool is_first = true;
    T sum = v;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) {
            T x = gpu_value<T>(all[i]);
            sum = is_first ? x : op(sum, x);
            is_first = false;
        }
    return sum;
}
template <class T> static inline T __reduce_max_sync(uint32_t mask, T v) {
    return gpu_reduce(mask, v, [](T a, T b) { return a > b ? a : b; });
}
template <class T> static inline T __reduce_min_sync(uint32_t mask, T v) {
    return gpu_reduce(mask, v, [](T a, T b) { return a < b ? a : b; });
}
template <class T> static inline T __reduce_add_sync(uint32_t mask, T v) {
    return gpu_reduce(mask, v, [](T a, T b) { return (T)(a + b); });
}
static inline uint32_t __ballot_sync(uint32_t mask, bool v) {
    const uint64_t *all = gpu_exchange(mask, v);
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++)
        bits |= (mask >> i & 1 && all[i] ? 1u : 0u) << i;
    return bits;
}
static inline bool __any_sync(uint32_t mask, bool v) {
    return __ballot_sync(mask, v) != 0;
}
static inline bool __all_sync(uint32_t mask, bool v) {
    return __ballot_sync(mask, v) == mask;
}
template <class T> static inline uint32_t __match_any_sync(uint32_t mask, T v) {
    const uint64_t *all = gpu_exchange(mask, gpu_word(v));
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++)
        bits |= (mask >> i & 1 && all[i] == gpu_word(v) ? 1u : 0u) << i;
    return bits;
}
/* Any set of lanes that run together would do. */
static inline uint32_t __activemask(void) {
    return 1u << gpu_lane();
}
static inline void __syncwarp(uint32_t mask = ~0u) {
    gpu_exchange(mask, 0);
}
static inline void __syncthreads(void) {
    gpu_barrier(0, 0, true);
}
static inline void __threadfence(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_system(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* ---- memory -------------------------------------------------------------------------------- */

template <class T> static inline T __ldcg(const T *p) {
    return *p;
}
template <class T> static inline T __ldg(const T *p) {
    return *p;
}
template <class T> static inline T __ldcs(const T *p) {
    return *p;
}
template <class T> static inline void __stcs(T *p, T v) {
    *p = v;
}
template <class T> static inline void __stcg(T *p, T v) {
    *p = v;
}
/* They yield, since other blocks may be waited for in a loop of them. */
template <class T, class V> static inline T atomicAdd(T *p, V v) {
    gpu_yield();
    return __atomic_fetch_add(p, (T)v, __ATOMIC_SEQ_CST);
}
template <class T, class V> static inline T atomicMax(T *p, V v) {
    T before = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (before < (T)v && !__atomic_compare_exchange_n(p, &before, (T)v, false, __ATOMIC_SEQ_CST,
                                                         __ATOMIC_SEQ_CST)) {
    }
    return before;
}
template <class T> static inline T atomicCAS(T *p, T expected, T v) {
    gpu_yield();
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}
static inline uint32_t atomicInc(uint32_t *p, uint32_t most) {
    gpu_yield();
    uint32_t before = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(p, &before, before >= most ? 0 : before + 1, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return before;
}

/* Shared addresses are 32 bits: of the thread's own memory GPU_DYNAMIC_AT and what is beside it, of
 * another block of the cluster with its rank + 1 in the upper bits. */
enum { GPU_DYNAMIC_AT = 16 << 20, GPU_RANK_SHIFT = 27 };
extern "C" {
extern thread_local char gpu_dynamic_shared[]; /* shared.c: all names that kernels have for it */
}
char *gpu_base_of_rank(uint32_t rank);
/* The asm keeps the compiler from adding it up, which is beyond what the linker can do. */
static inline char *gpu_shared_base(void) {
    char *p = gpu_dynamic_shared;
    __asm__("" : "+r"(p));
    return p - GPU_DYNAMIC_AT;
}
static inline uint32_t __cvta_generic_to_shared(const void *p) {
    return (uint32_t)((const char *)p - gpu_shared_base());
}
static inline void *__cvta_shared_to_generic(size_t at) {
    uint32_t rank = (uint32_t)at >> GPU_RANK_SHIFT;
    return (rank ? gpu_base_of_rank(rank - 1) : gpu_shared_base()) +
           (at & ((1u << GPU_RANK_SHIFT) - 1));
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

template <class A, class B> static inline typename std::common_type<A, B>::type min(A a, B b) {
    typedef typename std::common_type<A, B>::type T;
    return (T)a < (T)b ? (T)a : (T)b;
}
template <class A, class B> static inline typename std::common_type<A, B>::type max(A a, B b) {
    typedef typename std::common_type<A, B>::type T;
    return (T)a > (T)b ? (T)a : (T)b;
}

static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fsub_rn(float a, float b) {
    return a - b;
}
static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline float __fdiv_rn(float a, float b) {
    return a / b;
}
static inline float __frcp_rn(float a) {
    return 1 / a;
}
static inline float __fmaf_rn(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
static inline float __fdividef(float a, float b) {
    return a / b;
}
static inline float gpu_expf(float x) {
    return expf(x);
}
#define __expf gpu_expf
static inline float rsqrtf(float x) {
    return 1 / sqrtf(x);
}
static inline uint32_t __float_as_uint(float x) {
    return gpu_value<uint32_t>(gpu_word(x));
}
static inline int __float_as_int(float x) {
    return gpu_value<int>(gpu_word(x));
}
static inline float __uint_as_float(uint32_t x) {
    return gpu_value<float>(x);
}
static inline float __int_as_float(int x) {
    return gpu_value<float>((uint32_t)x);
}
static inline float __int2float_rn(int x) {
    return (float)x;
}
static inline uint32_t __float2uint_rd(float x) {
    return x <= 0 ? 0 : (uint32_t)floorf(x);
}
static inline unsigned long long __float2ull_rn(float x) {
    return x <= 0 ? 0 : (unsigned long long)rintf(x);
}
static inline int __popc(uint32_t x) {
    return __builtin_popcount(x);
}
static inline int __ffs(uint32_t x) {
    return __builtin_ffs((int)x);
}
static inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t bits) {
    return (uint32_t)(((uint64_t)high << 32 | low) >> (bits & 31));
}
static inline uint32_t __umulhi(uint32_t a, uint32_t b) {
    return (uint32_t)((uint64_t)a * b >> 32);
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
    return r;
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8)
        c += (int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
}
/* Two 16-bit values by the lower or upper two bytes. */
static inline int __dp2a_lo(int a, int b, int c) {
    return c + (int16_t)a * (int8_t)b + (int16_t)(a >> 16) * (int8_t)(b >> 8);
}
static inline int __dp2a_hi(int a, int b, int c) {
    return __dp2a_lo(a, b >> 16, c);
}

/* ---- half precision ---------------------------------------------------------------------------
 */

static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    float2 x = __half22float2(a), y = __half22float2(b), z = __half22float2(c);
    return __halves2half2(__double2half((double)x.x * y.x + z.x),
                          __double2half((double)x.y * y.y + z.y));
}

#endif
