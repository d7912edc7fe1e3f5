/* latency.cu - what it costs to hand a vector from all SMs to all SMs inside one kernel.
 *
 * 132 blocks of 512 threads; each round every block writes its share of a vector of 2560 floats,
 * the round ends, and (but for the bare barriers) every block reads the whole vector. */
#include "common.cuh"

enum { N = 2560, SHARE = 20, THREADS = 512 };
enum way {
    BARE_FLAGS,
    BARE_COUNTER,
    READ,
    READ_4X,
    READ_ROTATED,
    READ_REPLICA,
    READ_BULK,
    TAGGED,
    TAGGED_REPLICA,
    WAYS
};
static const char *const NAMES[] = {
    "barrier, flag a block",       "barrier, one counter",
    "flags + read 10 KB",          "flags + read 40 KB",
    "flags + read 10 KB, rotated", "flags + read 10 KB, 4 replicas",
    "flags + bulk copy 10 KB",     "value and round in 8 bytes, 20 KB",
    "the same, 4 replicas"};

struct round_args {
    float *x;      /* (2, 4, N): two rounds, four replicas or parts */
    uint2 *tagged; /* (2, 4, N): value, round */
    uint32_t *flags, *counter, *base;
    float *sink;
    int rounds;
};

__device__ static void flags_arrive(uint32_t *flags, uint32_t at) {
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flags + blockIdx.x), "r"(at)
                     : "memory");
}

__device__ static uint32_t load_acquire(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ static void flags_wait(const uint32_t *flags, uint32_t at) {
    if (threadIdx.x < SM_COUNT)
        while ((int)(load_acquire(flags + threadIdx.x) - at) < 0) {
        }
    __syncthreads();
}

__device__ static void counter_pass(uint32_t *counter, uint32_t target) {
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
        while ((int)(load_acquire(counter) - target) < 0) {
        }
    }
    __syncthreads();
}

template <int WAY>
__global__ static void __launch_bounds__(THREADS, 1) rounds(const struct round_args a) {
    __shared__ __align__(128) float copy[N];
    __shared__ __align__(8) uint64_t bar;
    uint32_t base = *(volatile uint32_t *)a.base, phase = 0;
    int tid = threadIdx.x, own = blockIdx.x * SHARE + tid;
    float sum = 0;
    if (tid == 0)
        mbarrier_init(smem_addr(&bar), 1), mbarrier_init_fence();
    __syncthreads();
    for (int r = 0; r < a.rounds; r++) {
        uint32_t at = base + r + 1;
        float *x = a.x + (r & 1) * 4 * N;
        uint2 *t = a.tagged + (r & 1) * 4 * N;
        bool writes = tid < SHARE && own < N;
        float v = sum * 1e-20f + own;
        if (WAY >= TAGGED) {
            if (writes)
                for (int c = 0; c < (WAY == TAGGED ? 1 : 4); c++) {
                    uint2 w = make_uint2(__float_as_uint(v), at);
                    asm volatile(
                        "st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(t + c * N + own),
                        "r"(w.x), "r"(w.y)
                        : "memory");
                }
            const uint2 *src = t + (WAY == TAGGED ? 0 : blockIdx.x % 4 * N);
            for (int i = tid; i < N; i += THREADS) {
                uint2 w;
                do
                    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                                 : "=r"(w.x), "=r"(w.y)
                                 : "l"(src + i)
                                 : "memory");
                while (w.y != at);
                sum += __uint_as_float(w.x);
            }
            __syncthreads();
            continue;
        }
        if (writes)
            for (int c = 0; c < (WAY == READ_REPLICA || WAY == READ_4X ? 4 : 1); c++)
                x[c * N + own] = v;
        if (WAY == BARE_COUNTER) {
            counter_pass(a.counter, at * SM_COUNT);
            continue;
        }
        flags_arrive(a.flags, at);
        flags_wait(a.flags, at);
        if (WAY == BARE_FLAGS)
            continue;
        if (WAY == READ_BULK) {
            if (tid == 0) {
                mbarrier_expect_tx(smem_addr(&bar), sizeof copy);
                cp_async_bulk(smem_addr(copy), (const uint8_t *)x, sizeof copy, smem_addr(&bar));
            }
            mbarrier_wait(smem_addr(&bar), phase);
            phase ^= 1;
            sum += copy[tid];
            continue;
        }
        const float4 *src = (const float4 *)(x + (WAY == READ_REPLICA ? blockIdx.x % 4 * N : 0));
        int n = WAY == READ_4X ? N : N / 4,
            rot = WAY == READ_ROTATED ? blockIdx.x * (N / 4) / SM_COUNT : 0;
        for (int i = tid; i < n; i += THREADS) {
            int j = i + rot < n ? i + rot : i + rot - n;
            float4 f = __ldcg(src + j);
            sum += f.x + f.y + f.z + f.w;
        }
    }
    if (sum == 12345.678f)
        *a.sink = sum;
    if (WAY >= TAGGED)
        flags_arrive(a.flags, base + a.rounds);
    flags_arrive(a.flags, base + a.rounds);
    flags_wait(a.flags, base + a.rounds);
    if (blockIdx.x == 0 && tid == 0) {
        *a.base = base + a.rounds;
        *a.counter = (base + a.rounds) * SM_COUNT;
    }
}

typedef void (*rounds_fn)(const struct round_args);

int main(void) {
    static const rounds_fn fns[] = {rounds<0>, rounds<1>, rounds<2>, rounds<3>, rounds<4>,
                                    rounds<5>, rounds<6>, rounds<7>, rounds<8>};
    struct round_args a = {};
    a.x = device_alloc<float>(8 * N), a.tagged = device_alloc<uint2>(8 * N);
    a.flags = device_alloc<uint32_t>(SM_COUNT), a.counter = device_alloc<uint32_t>(1);
    a.base = device_alloc<uint32_t>(1), a.sink = device_alloc<float>(1), a.rounds = 400;
    CU(cudaMemset(a.flags, 0, SM_COUNT * 4));
    CU(cudaMemset(a.counter, 0, 4));
    CU(cudaMemset(a.base, 0, 4));
    CU(cudaMemset(a.tagged, 0, 8 * N * 8));
    for (int w = 0; w < WAYS; w++) {
        struct timing t = time_launches(0, 5, 4, [&] {
            void *args[] = {&a};
            CU(cudaLaunchCooperativeKernel((void *)fns[w], dim3(SM_COUNT), dim3(THREADS), args, 0,
                                           0));
        });
        CU(cudaDeviceSynchronize());
        printf("%-36s %.2f us a round\n", NAMES[w], t.us / a.rounds);
        fflush(stdout);
    }
    return 0;
}
