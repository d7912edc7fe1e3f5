/* update.cu - how fast can memory be updated in place, as DELTA updates its states, and what do
 * writes cost?
 *
 * Blocks of 512 threads, two an SM, take pieces of 32 KB in turn; of every `period` pieces one is
 * written back, the others are only read. 64 and 256 MB of 24 different ranges, one after the
 * other.
 *
 *   vectors   16 bytes a thread: four loads in flight, then four stores
 *   async     cp.async to shared memory, two pieces ahead, stores from registers
 *   bulk      one bulk copy a piece to shared memory, three stages; stores from registers
 *   bulk2     the same, and a bulk copy back */
#include "common.cuh"

enum { PIECE = 32 << 10, FLOATS = PIECE / 4, THREADS = 512, RANGES = 24 };

struct update {
    float *at;
    uint32_t pieces, period, turn;
};

static __device__ __forceinline__ bool is_written(const struct update &u, uint32_t i) {
    return u.period && (i / gridDim.x + u.turn) % u.period == 0;
}

static __device__ __forceinline__ float4 changed(float4 v) {
    return make_float4(v.x * 0.5f, v.y * 0.5f, v.z * 0.5f, v.w * 0.5f);
}

__global__ void __launch_bounds__(THREADS, 2) vectors(struct update u) {
    for (uint32_t i = blockIdx.x; i < u.pieces; i += gridDim.x) {
        float4 *at = (float4 *)(u.at + (size_t)i * FLOATS) + threadIdx.x, v[4];
        for (int k = 0; k < 4; k++)
            v[k] = __ldcs(at + k * THREADS);
        for (int k = 0; k < 4; k++)
            if (is_written(u, i) || v[k].x == 123.4f)
                __stcs(at + k * THREADS, changed(v[k]));
    }
}

__global__ void __launch_bounds__(THREADS, 2) async(struct update u) {
    extern __shared__ float4 stages[];
    auto copy = [&](uint32_t i, uint32_t n) {
        if (i < u.pieces)
            for (int k = 0; k < 4; k++)
                cp_async_16(smem_addr(stages + n % 2 * FLOATS / 4 + k * THREADS + threadIdx.x),
                            (float4 *)(u.at + (size_t)i * FLOATS) + k * THREADS + threadIdx.x);
        cp_async_commit();
    };
    uint32_t n = 0;
    copy(blockIdx.x, 0);
    copy(blockIdx.x + gridDim.x, 1);
    for (uint32_t i = blockIdx.x; i < u.pieces; i += gridDim.x, n++) {
        float4 *at = (float4 *)(u.at + (size_t)i * FLOATS) + threadIdx.x, v[4];
        cp_async_wait<1>();
        for (int k = 0; k < 4; k++)
            v[k] = stages[n % 2 * FLOATS / 4 + k * THREADS + threadIdx.x];
        copy(i + 2 * gridDim.x, n);
        for (int k = 0; k < 4; k++)
            if (is_written(u, i) || v[k].x == 123.4f)
                __stcs(at + k * THREADS, changed(v[k]));
    }
}

template <bool IS_BACK> static __device__ __forceinline__ void bulk_of(const struct update &u) {
    extern __shared__ float4 stages[];
    __shared__ uint64_t barriers[3];
    auto copy = [&](uint32_t i, uint32_t n) {
        if (i < u.pieces && threadIdx.x == 0) {
            mbarrier_expect_tx(smem_addr(&barriers[n % 3]), PIECE);
            cp_async_bulk(smem_addr(stages + n % 3 * FLOATS / 4),
                          (const uint8_t *)(u.at + (size_t)i * FLOATS), PIECE,
                          smem_addr(&barriers[n % 3]));
        }
    };
    if (threadIdx.x == 0) {
        for (int k = 0; k < 3; k++)
            mbarrier_init(smem_addr(&barriers[k]), 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    for (uint32_t n = 0; n < 2; n++)
        copy(blockIdx.x + n * gridDim.x, n);
    uint32_t n = 0;
    for (uint32_t i = blockIdx.x; i < u.pieces; i += gridDim.x, n++) {
        float4 *at = (float4 *)(u.at + (size_t)i * FLOATS) + threadIdx.x, v[4];
        float4 *stage = stages + n % 3 * FLOATS / 4 + threadIdx.x;
        bool writes = is_written(u, i);
        mbarrier_wait(smem_addr(&barriers[n % 3]), n / 3 % 2);
        for (int k = 0; k < 4; k++)
            v[k] = changed(stage[k * THREADS]);
        if (!IS_BACK)
            for (int k = 0; k < 4; k++)
                if (writes || v[k].x == 123.4f)
                    __stcs(at + k * THREADS, v[k]);
        if (IS_BACK && writes) {
            for (int k = 0; k < 4; k++)
                stage[k * THREADS] = v[k];
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        }
        if (IS_BACK && threadIdx.x == 0)
            bulk_store_wait<false>(); /* the stage before has been read */
        __syncthreads();
        if (IS_BACK && writes && threadIdx.x == 0) {
            bulk_store(u.at + (size_t)i * FLOATS, smem_addr(stages + n % 3 * FLOATS / 4), PIECE);
            bulk_store_commit();
        }
        copy(i + 2 * gridDim.x, n + 2);
    }
    if (IS_BACK && threadIdx.x == 0)
        bulk_store_wait<true>();
}

__global__ void __launch_bounds__(THREADS, 2) bulk(struct update u) {
    bulk_of<false>(u);
}

__global__ void __launch_bounds__(THREADS, 2) bulk2(struct update u) {
    bulk_of<true>(u);
}

int main(void) {
    static const struct {
        const char *name;
        void (*kernel)(struct update);
        uint32_t shared;
    } kinds[] = {{"vectors", vectors, 0},
                 {"async", async, 2 * PIECE},
                 {"bulk", bulk, 3 * PIECE},
                 {"bulk2", bulk2, 3 * PIECE}};
    static const uint32_t sizes[] = {64, 256}, periods[] = {0, 8, 4, 2, 1};
    float *memory = device_alloc<float>((size_t)RANGES * (256 << 20) / 4);
    CU(cudaMemset(memory, 0, (size_t)RANGES * (256 << 20)));
    cudaStream_t st;
    CU(cudaStreamCreate(&st));
    printf("us (GB/s) of an update; one of so many pieces written: none, 8, 4, 2, 1\n");
    for (auto &kind : kinds)
        for (uint32_t size : sizes) {
            CU(cudaFuncSetAttribute(kind.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)kind.shared));
            printf("%-8s %4u MB", kind.name, size);
            for (uint32_t period : periods) {
                uint32_t range = 0;
                struct timing t = time_launches(st, 5, RANGES, [&] {
                    struct update u = {memory + (size_t)(range++ % RANGES) * (256 << 20) / 4,
                                       (uint32_t)(((size_t)size << 20) / PIECE), period, range};
                    kind.kernel<<<2 * SM_COUNT, THREADS, kind.shared, st>>>(u);
                });
                double bytes = (double)((size_t)size << 20) * (1 + (period ? 1.0 / period : 0));
                printf("  %6.1f (%4.0f)", t.us, bytes / t.us * 1e-3);
            }
            printf("\n");
        }
    return 0;
}
