/* ptx.cuh - in place of the kernels' own: every instruction as a GPU of 8.0 or 9.0 does it. */
#ifndef BACKEND_CUDA_KERNELS_PTX_CUH
#define BACKEND_CUDA_KERNELS_PTX_CUH

#include <stdint.h>
#include <time.h>

#define HAS_CP_ASYNC_BULK (__CUDA_ARCH__ >= 900)

/* ---- programmatic dependent launch: there is none -------------------------------------------- */

static inline uint64_t globaltimer(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
static inline void pdl_launch_dependents(void) {
}
static inline void pdl_wait(void) {
}
static inline void store_stamp(uint32_t thread, uint64_t *stamp) {
    if (thread == 0)
        *stamp = globaltimer();
}
static inline void pdl_wait_stamped(uint32_t thread, uint64_t *stamp) {
    store_stamp(thread, stamp);
}

/* ---- cp.async ------------------------------------------------------------------------------- */

static inline uint32_t smem_addr(const void *p) {
    return __cvta_generic_to_shared(p);
}
template <class T = void> static inline T *shared_at(uint32_t at) {
    return (T *)__cvta_shared_to_generic(at);
}
/* Done now, or only when it is waited for. */
void gpu_copy_async(void *to, const void *from, uint32_t bytes);
void gpu_copy_commit(void);
void gpu_copy_wait(uint32_t youngest);

static inline void cp_async_16(uint32_t to, const void *from) {
    gpu_copy_async(shared_at(to), from, 16);
}
static inline void cp_async_16_or_zero(uint32_t to, const void *from, bool is_wanted) {
    static const uint64_t zeros[2] = {0, 0};
    gpu_copy_async(shared_at(to), is_wanted ? from : zeros, 16);
}
static inline void cp_async_8(uint32_t to, const void *from) {
    gpu_copy_async(shared_at(to), from, 8);
}
static inline void cp_async_4(uint32_t to, const void *from) {
    gpu_copy_async(shared_at(to), from, 4);
}
static inline void cp_async_commit(void) {
    gpu_copy_commit();
}
template <int N> static inline void cp_async_wait(void) {
    gpu_copy_wait(N);
}
static inline void cp_async_wait_all(void) {
    gpu_copy_commit();
    gpu_copy_wait(0);
}

/* ---- mbarriers and bulk copies: from 9.0 on, and nothing below it ---------------------------- */

#if __CUDA_ARCH__ >= 900
void gpu_mbarrier_init(uint32_t at, uint32_t count);
void gpu_mbarrier_arrive(uint32_t at, uint32_t bytes);
void gpu_mbarrier_wait(uint32_t at, uint32_t phase);
void gpu_copy_arrive(uint32_t at);
void gpu_bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t mbarrier);
void gpu_store_async(uint32_t to, const void *from, uint32_t bytes, uint32_t mbarrier);
void gpu_bulk_store(void *to, uint32_t from, uint32_t bytes);
void gpu_bulk_store_wait(void);
void gpu_cluster_arrive(void);
void gpu_cluster_wait(void);

static inline void mbarrier_init(uint32_t at, uint32_t count) {
    gpu_mbarrier_init(at, count);
}
static inline void mbarrier_expect_tx(uint32_t at, uint32_t bytes) {
    gpu_mbarrier_arrive(at, bytes);
}
static inline void mbarrier_arrive(uint32_t at) {
    gpu_mbarrier_arrive(at, 0);
}
static inline void cp_async_arrive(uint32_t at) {
    gpu_copy_arrive(at);
}
static inline void mbarrier_wait(uint32_t at, uint32_t phase) {
    gpu_mbarrier_wait(at, phase);
}
static inline void cp_async_bulk(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t at) {
    gpu_bulk_copy(to, from, bytes, at);
}
static inline void bulk_store(float *to, uint32_t from, uint32_t bytes) {
    gpu_bulk_store(to, from, bytes);
}
template <bool IS_DONE> static inline void bulk_store_wait(void) {
    gpu_bulk_store_wait();
}
static inline void cluster_arrive(void) {
    gpu_cluster_arrive();
}
static inline void cluster_wait(void) {
    gpu_cluster_wait();
}
static inline void cluster_sync(void) {
    gpu_cluster_arrive();
    gpu_cluster_wait();
}
static inline uint32_t map_to_rank(uint32_t at, uint32_t rank) {
    return at | (rank + 1) << GPU_RANK_SHIFT;
}
static inline void mbarrier_arrive_rank(uint32_t at, uint32_t rank) {
    gpu_mbarrier_arrive(map_to_rank(at, rank), 0);
}
static inline void cp_async_bulk_multicast(uint32_t to, const uint8_t *from, uint32_t bytes,
                                           uint32_t at, uint32_t ranks) {
    for (uint32_t rank = 0; ranks >> rank; rank++)
        if (ranks >> rank & 1)
            gpu_bulk_copy(map_to_rank(to, rank), from, bytes, map_to_rank(at, rank));
}
static inline void st_async(uint32_t to, float4 x, uint32_t at) {
    gpu_store_async(to, &x, sizeof x, at);
}
static inline void st_async(uint32_t to, uint2 x, uint32_t at) {
    gpu_store_async(to, &x, sizeof x, at);
}
#else
static inline void mbarrier_init(uint32_t, uint32_t) {
}
static inline void mbarrier_expect_tx(uint32_t, uint32_t) {
}
static inline void mbarrier_arrive(uint32_t) {
}
static inline void cp_async_arrive(uint32_t) {
}
static inline void mbarrier_wait(uint32_t, uint32_t) {
}
static inline void cp_async_bulk(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t) {
    for (uint32_t i = 0; i < bytes; i += 16)
        cp_async_16(to + i, from + i);
}
static inline void bulk_store(float *, uint32_t, uint32_t) {
}
template <bool IS_DONE> static inline void bulk_store_wait(void) {
}
static inline void cluster_arrive(void) {
}
static inline void cluster_wait(void) {
}
static inline void cluster_sync(void) {
}
#endif
static inline void mbarrier_init_fence(void) {
}
static inline void fence_proxy_async(void) {
}
static inline bool elect_lane(void) {
    __syncwarp(); /* elect.sync is of all lanes */
    return gpu_lane() == 0;
}
static inline void prefetch_l2(const uint8_t *, uint32_t) {
}
static inline void bulk_store_commit(void) {
}

/* ---- loads ----------------------------------------------------------------------------------- */

#define LOAD(NAME, T)                                                                              \
    static inline T NAME(const void *p) {                                                          \
        return *(const T *)p;                                                                      \
    }
LOAD(ld_no_allocate, uint4)
LOAD(ld_no_allocate_u32x2, uint2)
LOAD(ld_no_allocate_u32, uint32_t)
LOAD(ld_no_allocate_f32, float)
LOAD(ld_no_allocate_f32x4, float4)
LOAD(ld_volatile_f32, float)
LOAD(ld_volatile_u32x2, uint2)
LOAD(ld_volatile_u32x4, uint4)
LOAD(ld_cg_f32x2, float2)
LOAD(ld_cg_f32x4, float4)
LOAD(ld_shared_u32x4, uint4)
LOAD(ld_shared_u32x2, uint2)
#undef LOAD
static inline void ld_cg_f32x4_if(bool is_wanted, const float4 *at, float4 &v) {
    if (is_wanted)
        v = *at;
}
static inline void ld_cg_f32_if(bool is_wanted, const float *at, float &v) {
    if (is_wanted)
        v = *at;
}
static inline uint32_t ld_acquire(const uint32_t *p) {
    gpu_yield();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline uint32_t ld_relaxed(const void *p) {
    return ld_acquire((const uint32_t *)p);
}
static inline uint4 ld_relaxed_u32x4(const void *p) {
    gpu_yield();
    return *(const uint4 *)p;
}
static inline void ld_shared_u32x4_if(bool is_wanted, uint32_t at, uint4 &x) {
    if (is_wanted)
        x = *shared_at<uint4>(at);
}
static inline void st_shared_u32x4(uint32_t at, uint4 x) {
    *shared_at<uint4>(at) = x;
}
static inline float ld_shared_f32(uint32_t at) {
    return *shared_at<float>(at);
}
static inline float2 ld_shared_f32x2(uint32_t at) {
    return *shared_at<float2>(at);
}
static inline void ld_shared_f32x4(uint32_t at, float *x) {
    memcpy(x, shared_at(at), 16);
}
static inline uint32_t ld_shared_u32(uint32_t at) {
    return *shared_at<volatile uint32_t>(at);
}
static inline void st_shared_u32(uint32_t at, uint32_t v) {
    *shared_at<volatile uint32_t>(at) = v;
}

/* ---- synchronisation ------------------------------------------------------------------------- */

static inline uint32_t atomic_inc_acq_rel_gpu(uint32_t *counter) {
    return atomicAdd(counter, 1);
}
static inline uint32_t atomic_inc_acq_rel_cta(uint32_t *counter) {
    return atomicAdd(counter, 1);
}
static inline void named_barrier_sync(uint32_t threads) {
    gpu_barrier(1, threads, true);
}
static inline void any_barrier_arrive(uint32_t barrier, uint32_t threads) {
    gpu_barrier(barrier, threads, false);
}
static inline void any_barrier_sync(uint32_t barrier, uint32_t threads) {
    gpu_barrier(barrier, threads, true);
}
static inline void st_release(uint32_t *p, uint32_t x) {
    __atomic_store_n(p, x, __ATOMIC_RELEASE);
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static inline float rcp_approx(float x) {
    return 1 / x;
}
static inline float rsqrt_approx(float x) {
    return 1 / sqrtf(x);
}
static inline float ex2_approx(float x) {
    return exp2f(x);
}
static inline uint32_t bf16_bits(float x) {
    uint32_t bits = __float_as_uint(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline uint32_t cvt_bf16x2(float first, float second) {
    return bf16_bits(second) << 16 | bf16_bits(first);
}
static inline int dp4a_us(uint32_t unsigned4, uint32_t signed4, int c) {
    for (int i = 0; i < 32; i += 8)
        c += (uint8_t)(unsigned4 >> i) * (int8_t)(signed4 >> i);
    return c;
}
static inline int signed_byte(uint32_t v, uint32_t i) {
    return (int8_t)(v >> 8 * i);
}
static inline uint32_t opaque_add(uint32_t a, uint32_t b) {
    return a + b;
}
static inline uint32_t opaque(uint32_t x) {
    return x;
}
static inline uint32_t volatile_lane(void) {
    return gpu_lane();
}
static inline uint32_t volatile_thread(void) {
    return threadIdx.x;
}
template <class... T> static inline void materialize(T &...) {
}
static inline void compute_once(uint2 &) {
}
static inline void compiler_fence(void) {
}

/* ---- tensor cores ---------------------------------------------------------------------------- */

static inline void ldmatrix_x4(uint32_t (&x)[4], uint32_t at) {
    const uint64_t *all = gpu_exchange(~0u, at);
    for (uint32_t i = 0; i < 4; i++)
        x[i] = shared_at<const uint32_t>((uint32_t)all[8 * i + gpu_lane() / 4])[gpu_lane() % 4];
    __syncwarp(); /* rows are read before anybody writes them again */
}

/* Fragments of A (16 rows of K) and B (8 columns): a word holds values of K side by side, four
 * lanes a row; word 2 w + h of A is rows 8 h ... of the w-th part of K, which word w of B has, too.
 * Lane 0 multiplies for all. */
struct s8_format {
    typedef int sum;
    enum { PER_WORD = 4 };
    static int value(uint32_t word, int i) {
        return (int8_t)(word >> 8 * i);
    }
};
struct f16_format {
    typedef double sum; /* products are exact, and added before they are rounded */
    enum { PER_WORD = 2 };
    static double value(uint32_t word, int i) {
        return f16_to_f32((uint16_t)(word >> 16 * i));
    }
};
struct bf16_format {
    typedef double sum;
    enum { PER_WORD = 2 };
    static double value(uint32_t word, int i) {
        return __uint_as_float(i ? word & 0xffff0000u : word << 16);
    }
};

/* Rows of the words of 4 lanes each, as numbers. */
template <class F, int PARTS>
static inline void gpu_unpack(const uint32_t (*words)[32], int step, typename F::sum *to,
                              int rows) {
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < PARTS; part++)
            for (int k = 0; k < 4 * F::PER_WORD; k++)
                *to++ = F::value(words[step * part + row / 8][row % 8 * 4 + k / F::PER_WORD],
                                 k % F::PER_WORD);
}

template <class F, int PARTS, class C>
static inline void gpu_mma(C (&c)[4], const uint32_t (&a)[2 * PARTS], const uint32_t (&b)[PARTS]) {
    enum { K = PARTS * 4 * F::PER_WORD };
    struct gpu_area *area = gpu_warp_area();
    uint32_t lane = gpu_lane();
    for (int i = 0; i < 2 * PARTS; i++)
        area->in[i][lane] = a[i];
    for (int i = 0; i < PARTS; i++)
        area->in[2 * PARTS + i][lane] = b[i];
    __syncwarp();
    if (lane == 0) {
        typename F::sum rows[16][K], columns[8][K];
        gpu_unpack<F, PARTS>(area->in, 2, rows[0], 16);
        gpu_unpack<F, PARTS>(area->in + 2 * PARTS, 1, columns[0], 8);
        for (int row = 0; row < 16; row++)
            for (int n = 0; n < 8; n++) {
                typename F::sum sum = 0;
                for (int k = 0; k < K; k++)
                    sum += rows[row][k] * columns[n][k];
                area->out[row / 8 * 2 + n % 2][row % 8 * 4 + n / 2] = (double)sum;
            }
    }
    __syncwarp();
    for (int i = 0; i < 4; i++)
        c[i] = (C)(c[i] + area->out[i][lane]);
}

static inline void mma_m16n8k32_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                   int start) {
    const uint32_t b[2] = {b0, b1};
    c[0] = c[1] = c[2] = c[3] = start;
    gpu_mma<s8_format, 2>(c, a, b);
}
static inline void mma_m16n8k16_s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    const uint32_t a[2] = {a0, a1}, b[1] = {b0};
    c[0] = c[1] = c[2] = c[3] = 0;
    gpu_mma<s8_format, 1>(c, a, b);
}
static inline void mma_m16n8k8_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    const uint32_t a[2] = {a0, a1}, b[1] = {b0};
    c[0] = c[1] = c[2] = c[3] = 0;
    gpu_mma<f16_format, 1>(c, a, b);
}
static inline void mma_m16n8k16_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
    const uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    gpu_mma<f16_format, 2>(c, a, b);
}
static inline void mma_m16n8k16_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                     uint32_t a3, uint32_t b0, uint32_t b1) {
    const uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    gpu_mma<bf16_format, 2>(c, a, b);
}

/* ---- wgmma: 9.0 alone --------------------------------------------------------------------------
 */

#if __CUDA_ARCH__ >= 900
void gpu_wgmma(const struct gpu_product *p);
void gpu_wgmma_commit(void);
void gpu_wgmma_wait(uint32_t youngest);

template <int N> static inline void setmaxnreg_inc(void) {
}
template <int N> static inline void setmaxnreg_dec(void) {
}
/* All lanes of a warp together: the one that releases a stage has waited for the others. */
static inline void wgmma_fence(void) {
    __syncwarp();
}
static inline void wgmma_commit(void) {
    gpu_wgmma_commit();
}
template <int N> static inline void wgmma_wait(void) {
    gpu_wgmma_wait(N);
    __syncwarp();
}

template <class F> static inline double gpu_number(const void *at) {
    uint32_t word = 0;
    memcpy(&word, at, 4 / F::PER_WORD);
    return F::value(word, 0);
}
template <class C> static inline void gpu_add(void *c, double sum, bool adds) {
    *(C *)c = (C)(adds ? *(C *)c + sum : sum);
}
/* A product of 32 bytes a row, whose a may be in registers. */
template <class F, class C, int N>
static inline void gpu_wgmma_of(C (&c)[N], const uint32_t *a, uint64_t a_descriptor, uint64_t b,
                                bool adds, bool is_b_mn_major) {
    struct gpu_product p = {};
    p.c = c;
    p.n = N / 2;
    p.k = 8 * F::PER_WORD;
    p.bytes = 4 / F::PER_WORD;
    p.a = a_descriptor;
    p.b = b;
    p.is_a_here = a != NULL;
    p.is_b_mn_major = is_b_mn_major;
    p.adds = adds;
    p.number = gpu_number<F>;
    p.add = gpu_add<C>;
    for (uint32_t i = 0; a && i < 4; i++) { /* as mma's */
        const uint64_t *all = gpu_exchange(~0u, a[i]);
        for (uint32_t w = 0; w < 4; w++)
            p.a_rows[i % 2][i / 2 * 4 + w] = (uint32_t)all[gpu_lane() / 4 * 4 + w];
        __syncwarp();
    }
    gpu_wgmma(&p);
}

template <bool ADDS, int N> static inline void wgmma_f16(float (&c)[N], uint64_t a, uint64_t b) {
    gpu_wgmma_of<f16_format>(c, NULL, a, b, ADDS, false);
}
template <bool ADDS, bool MN_MAJOR_B = false, int N>
static inline void wgmma_f16(float (&c)[N], const uint32_t (&a)[4], uint64_t b) {
    gpu_wgmma_of<f16_format>(c, a, 0, b, ADDS, MN_MAJOR_B);
}
static inline void wgmma_s8(int (&c)[16], uint64_t a, uint64_t b) {
    gpu_wgmma_of<s8_format>(c, NULL, a, b, false, false);
}
template <int N> static inline void wgmma_add_f16(float (&c)[N], uint64_t a, uint64_t b) {
    gpu_wgmma_of<f16_format>(c, NULL, a, b, true, false);
}
template <int N> static inline void wgmma_add_bf16(float (&c)[N], uint64_t a, uint64_t b) {
    gpu_wgmma_of<bf16_format>(c, NULL, a, b, true, false);
}
#endif

#endif
