/* stage.cu - what a stage of a step costs beside its bytes, and what would fusing two of them save?
 *
 * A stage stands for a product of one row: 132 blocks copy some K blocks of weights to shared
 * memory, wait for the stage before, read its vector (k floats), sync at a barrier, go through
 * their K blocks (loads and a few instructions, no product), and store their share of n results.
 *
 * Chains of stages, one kernel each, with programmatic edges: by launch shape, by what they do, and
 * by how the vector is handed on (the edge; a tag beside each value, which the next kernel,
 * resident already, polls; a counter a stage).
 *
 * Pairs of stages, a product and one that needs a part of its results (DELTA after mix in): two
 * kernels; one kernel whose blocks exchange tagged words; one kernel in clusters that exchange
 * through shared memory. */
#include "common.cuh"

enum { LAUNCHES = 160, KBLOCK = 2304, WARPS = 16, SHARED = 115456, SHARED_WIDE = 115968 };
enum { PLACE = 2816 }; /* of a K block in shared memory */
enum { MAX_VECTOR = 12672, PART = 288, STATE = 16384 };

enum way { EMPTY, READ, STAGE, TAGGED, COUNTED, PAIR_TAGGED, PAIR_CLUSTER };

struct params {
    const float *in;
    float *out, *out2;
    const uint2 *tagged_in;
    uint2 *tagged_out, *tagged_out2;
    const uint8_t *weights;
    float *state;
    uint32_t *launch, *counters;       /* counters: this stage's, and the one before at -1 */
    uint32_t k, n, n2, kblocks, bytes; /* K blocks a warp, and of how many bytes */
    uint32_t is_second;                /* reads PART floats from blockIdx on, and has a state */
};

static __device__ __forceinline__ void st_tagged(uint2 *to, float v, uint32_t tag) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(__float_as_uint(v)),
                 "r"(tag)
                 : "memory");
}

static __device__ __forceinline__ float2 poll_tagged(const uint2 *from, uint32_t tag) {
    uint4 w;
    do
        w = ld_relaxed_u32x4(from);
    while (w.y != tag || w.w != tag);
    return make_float2(__uint_as_float(w.x), __uint_as_float(w.z));
}

/* Eight columns a thread, as the engine's kernels read a row. */
template <int WAY>
static __device__ __forceinline__ float read_vector(const struct params &p, uint32_t k,
                                                    uint32_t tag) {
    float sum = 0;
    if (WAY == TAGGED) {
        for (uint32_t i = threadIdx.x * 2; i < k; i += blockDim.x * 2) {
            float2 v = poll_tagged(p.tagged_in + i, tag);
            sum += v.x + v.y;
        }
        return sum;
    }
    const float4 *x = (const float4 *)p.in;
    for (uint32_t i = threadIdx.x; i < k / 8; i += blockDim.x) {
        uint32_t at = i * 2 - i % 16;
        float4 a = __ldcg(x + at), b = __ldcg(x + at + 16);
        sum += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
    }
    return sum;
}

static __device__ __forceinline__ float block_sum(float v, float *red) {
    for (int i = 16; i > 0; i /= 2)
        v += __shfl_xor_sync(~0u, v, i);
    if (threadIdx.x % 32 == 0)
        red[threadIdx.x / 32] = v;
    __syncthreads();
    return red[threadIdx.x % 32 < blockDim.x / 32 ? threadIdx.x % 32 : 0];
}

template <int WAY>
static __global__ void __maxnreg__(56) run_stage(const __grid_constant__ struct params p) {
    extern __shared__ uint4 shared[];
    constexpr bool IS_PAIR = WAY == PAIR_TAGGED || WAY == PAIR_CLUSTER;
    __shared__ float red[2][32];
    __shared__ uint64_t mbars[WARPS][2];
    __shared__ uint2 part[PART];
    __shared__ uint64_t part_bar;
    pdl_launch_dependents();
    uint32_t tid = threadIdx.x, warp = tid / 32, lane = tid % 32, tag = 0;
    uint32_t stage = smem_addr(shared) + warp * 2 * PLACE, bar = smem_addr(&mbars[warp % WARPS][0]);
    if (WAY == EMPTY) {
        pdl_wait();
        return;
    }
    if (WAY == PAIR_CLUSTER) {
        if (tid == 0) {
            mbarrier_init(smem_addr(&part_bar), 1);
            mbarrier_init_fence();
            mbarrier_expect_tx(smem_addr(&part_bar), PART * 8);
        }
        __syncthreads();
        cluster_arrive();
    }
    if (WAY == TAGGED || WAY == PAIR_TAGGED)
        tag = ld_relaxed(p.launch);
    const uint8_t *from =
        p.weights + ((size_t)blockIdx.x * WARPS + warp % WARPS) * p.kblocks * p.bytes;
    float4 s[2] = {};
    float *state = p.state + (size_t)blockIdx.x * (STATE / 4) + tid * 8;
    bool has_state = p.state && (IS_PAIR || p.is_second);
    if (p.kblocks) {
        if (lane == 0) {
            mbarrier_init(bar, 1), mbarrier_init(bar + 8, 1);
            mbarrier_init_fence();
            for (uint32_t i = 0; i < 2 && i < p.kblocks; i++) {
                if (i)
                    mbarrier_wait(bar, 0);
                mbarrier_expect_tx(bar + i * 8, p.bytes);
                cp_async_bulk(stage + i * PLACE, from + i * p.bytes, p.bytes, bar + i * 8);
            }
        }
        __syncwarp();
    }
    if (has_state)
        s[0] = __ldcg((const float4 *)state), s[1] = __ldcg((const float4 *)state + 1);
    if (WAY != TAGGED && WAY != COUNTED)
        pdl_wait();
    if (WAY == COUNTED) {
        if (tid == 0)
            while (ld_acquire(p.counters - 1) % gridDim.x || !ld_acquire(p.counters - 1)) {
            }
        __syncthreads();
    }
    float v = 0;
    if (p.is_second) {
        if (tid < PART)
            v = __ldcg(p.in + (blockIdx.x * 96 + tid) % (p.k - PART));
    } else {
        v = read_vector < WAY == TAGGED ? TAGGED : READ > (p, p.k, tag);
    }
    v = block_sum(v, red[0]);
    uint32_t words = 0;
    for (uint32_t i = 0; i < p.kblocks; i++) {
        uint32_t at = stage + i % 2 * PLACE;
        mbarrier_wait(bar + i % 2 * 8, i / 2 & 1);
        for (uint32_t j = 0; j < 4; j++) {
            uint4 w =
                ld_shared_u32x4((const void *)__cvta_shared_to_generic(at + j * 512 + lane * 16));
#pragma unroll
            for (int r = 0; r < 8; r++)
                words = __dp4a(w.x + r, w.y, __dp4a(w.z, w.w + r, words));
        }
        bool none = __any_sync(~0u, words == 0x12345678);
        if (lane == 0 && i + 2 < p.kblocks && !none) {
            mbarrier_expect_tx(bar + i % 2 * 8, p.bytes);
            cp_async_bulk(at, from + (i + 2) * p.bytes, p.bytes, bar + i % 2 * 8);
        }
    }
    if (p.kblocks)
        v += words == 0x87654321 ? 1 : 0;
    v = block_sum(v * 1e-3f, red[1]);
    if (WAY == READ) {
        if (v == 12345.678f)
            p.out[0] = v;
        return;
    }
    if (has_state && !IS_PAIR) {
        for (int i = 0; i < 2; i++) {
            s[i].x += v, s[i].y += v, s[i].z += v, s[i].w += v;
            ((float4 *)state)[i] = s[i];
        }
    }
    uint32_t share = (p.n + gridDim.x - 1) / gridDim.x, own = blockIdx.x * share + tid;
    bool writes = tid < share && own < p.n;
    if (WAY == TAGGED || WAY == PAIR_TAGGED) {
        if (writes)
            st_tagged(p.tagged_out + own, v, tag);
    } else if (WAY != PAIR_CLUSTER) {
        if (writes)
            p.out[own] = v;
    }
    if (WAY == COUNTED) {
        __syncthreads();
        if (tid == 0)
            atomic_inc_acq_rel_gpu(p.counters);
    }
    if (WAY == TAGGED || WAY == COUNTED)
        pdl_wait();
    if (!IS_PAIR)
        return;
    float u = 0;
    if (WAY == PAIR_TAGGED) {
        if (tid < PART / 2)
            u = poll_tagged(p.tagged_out + (blockIdx.x * 96 / 2 + tid) % ((p.n - PART) / 2) * 2,
                            tag)
                    .x;
    } else {
#ifdef __CUDA_ARCH__ /* a value to each rank in turn; all blocks' mbarriers are initialised */
        uint32_t size, rank;
        asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
        asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        cluster_wait();
        if (tid < PART) {
            uint32_t to = tid % size;
            st_async(map_to_rank(smem_addr(part + rank * (PART / size) + tid / size), to),
                     make_uint2(__float_as_uint(v), 0), map_to_rank(smem_addr(&part_bar), to));
        }
        mbarrier_wait(smem_addr(&part_bar), 0);
        if (tid < PART)
            u = __uint_as_float(part[tid].x);
#endif
    }
    u = block_sum(u * 1e-3f, red[0]);
    if (has_state)
        for (int i = 0; i < 2; i++) {
            s[i].x += u, s[i].y += u, s[i].z += u, s[i].w += u;
            ((float4 *)state)[i] = s[i];
        }
    share = (p.n2 + gridDim.x - 1) / gridDim.x, own = blockIdx.x * share + tid;
    if (tid < share && own < p.n2)
        p.out2[own] = u;
}

static __global__ void next_launch(uint32_t *launch, uint32_t *counters, int n) {
    if (threadIdx.x == 0)
        ++*launch;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        counters[i] = i == 0 ? SM_COUNT : 0;
}

typedef void (*kernel_fn)(struct params);

/* shared: bytes with those that the kernel declares itself. */
static void launch(cudaStream_t stream, kernel_fn kernel, int grid, int threads, int shared,
                   int cluster, bool is_pdl, const struct params &p) {
    cudaLaunchAttribute attrs[2] = {};
    cudaLaunchConfig_t config = {};
    cudaFuncAttributes own;
    CU(cudaFuncGetAttributes(&own, (const void *)kernel));
    shared = shared > (int)own.sharedSizeBytes ? shared - (int)own.sharedSizeBytes : 0;
    CU(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            shared));
    CU(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                            100));
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = is_pdl;
    attrs[1].id = cudaLaunchAttributeClusterDimension;
    attrs[1].val.clusterDim.x = cluster, attrs[1].val.clusterDim.y = attrs[1].val.clusterDim.z = 1;
    config.gridDim = grid, config.blockDim = threads, config.dynamicSmemBytes = shared;
    config.stream = stream, config.attrs = attrs, config.numAttrs = cluster > 1 ? 2 : 1;
    CU(cudaLaunchKernelEx(&config, kernel, p));
}

struct memory {
    float *x;      /* (LAUNCHES + 2, MAX_VECTOR) */
    uint2 *tagged; /* likewise */
    uint8_t *weights;
    size_t weight_bytes;
    float *state; /* 48 of 2 MB and more */
    uint32_t *launch, *counters;
};

/* Microseconds a stage of a chain. */
static double chain(const struct memory &m, kernel_fn kernel, int threads, int shared, int k, int n,
                    int kblocks, bool alternates) {
    cudaStream_t stream;
    CU(cudaStreamCreate(&stream));
    size_t stage_bytes = (size_t)SM_COUNT * WARPS * kblocks * KBLOCK;
    cudaGraphExec_t exec = capture(stream, [&] {
        next_launch<<<1, 256, 0, stream>>>(m.launch, m.counters, LAUNCHES + 2);
        for (int i = 0; i < LAUNCHES; i++) {
            struct params p = {};
            p.in = m.x + (size_t)i * MAX_VECTOR, p.out = m.x + (size_t)(i + 1) * MAX_VECTOR;
            p.tagged_in = m.tagged + (size_t)i * MAX_VECTOR;
            p.tagged_out = m.tagged + (size_t)(i + 1) * MAX_VECTOR;
            if (stage_bytes)
                p.weights = m.weights + stage_bytes * (i % (m.weight_bytes / stage_bytes));
            p.launch = m.launch, p.counters = m.counters + 1 + i;
            p.k = k, p.n = n, p.kblocks = kblocks, p.bytes = KBLOCK;
            kernel_fn f = kernel;
            if (i == 0 && kernel == (kernel_fn)run_stage<TAGGED>) { /* nobody writes its words */
                p.k = 0;
            }
            launch(stream, f, SM_COUNT, threads, shared + (alternates && i % 2 ? 512 : 0), 1, i > 0,
                   p);
        }
    });
    struct timing t = time_launches(stream, 9, 3, [&] { CU(cudaGraphLaunch(exec, stream)); });
    CU(cudaGraphExecDestroy(exec));
    CU(cudaStreamDestroy(stream));
    return t.us / LAUNCHES;
}

/* Microseconds a pair, with a plain stage (mix out, of one K block a warp) after each. */
static double pairs(const struct memory &m, int way, int grid, int cluster, int k, int n, int n2,
                    double mb) {
    cudaStream_t stream;
    CU(cudaStreamCreate(&stream));
    int kblocks = (int)(mb * 1e6 / KBLOCK / WARPS / SM_COUNT + 0.5), after = 1;
    int bytes = (int)(mb * 1e6 / kblocks / WARPS / grid + 15) / 16 * 16;
    int shared = SHARED;
    size_t stage_bytes = (size_t)SM_COUNT * WARPS * (kblocks + after) * PLACE;
    CHECK(bytes <= PLACE);
    cudaGraphExec_t exec = capture(stream, [&] {
        next_launch<<<1, 256, 0, stream>>>(m.launch, m.counters, LAUNCHES + 2);
        for (int i = 0; i < LAUNCHES / 2; i++) {
            struct params p = {};
            float *x = m.x + (size_t)(i % 50) * 3 * MAX_VECTOR;
            uint8_t *weights = m.weights + stage_bytes * (i % (m.weight_bytes / stage_bytes));
            p.in = x, p.out = x + MAX_VECTOR, p.out2 = x + 2 * MAX_VECTOR;
            p.tagged_out = m.tagged + (size_t)i * MAX_VECTOR;
            p.weights = weights;
            p.launch = m.launch, p.state = m.state + (size_t)(i % 24) * SM_COUNT * (STATE / 4);
            p.k = k, p.n = n, p.n2 = n2, p.kblocks = kblocks, p.bytes = bytes;
            if (way == STAGE) {
                float *state = p.state;
                p.state = NULL;
                launch(stream, run_stage<STAGE>, SM_COUNT, 512, shared, 1, i > 0, p);
                p.state = state, p.is_second = 1, p.in = p.out, p.out = p.out2, p.k = n, p.n = n2;
                p.kblocks = 0;
                launch(stream, run_stage<STAGE>, 128, 512, 12000, 1, true, p);
            } else {
                kernel_fn f = way == PAIR_TAGGED ? run_stage<PAIR_TAGGED> : run_stage<PAIR_CLUSTER>;
                launch(stream, f, grid, 512, shared, cluster, i > 0, p);
            }
            struct params q = {};
            q.in = x + 2 * MAX_VECTOR, q.out = m.x + (size_t)((i + 1) % 50) * 3 * MAX_VECTOR;
            q.weights = weights + (size_t)SM_COUNT * WARPS * kblocks * PLACE;
            q.k = n2, q.n = k, q.kblocks = after, q.bytes = KBLOCK;
            launch(stream, run_stage<STAGE>, SM_COUNT, 512, SHARED_WIDE, 1, true, q);
        }
    });
    struct timing t = time_launches(stream, 9, 3, [&] { CU(cudaGraphLaunch(exec, stream)); });
    CU(cudaGraphExecDestroy(exec));
    CU(cudaStreamDestroy(stream));
    return t.us / (LAUNCHES / 2);
}

int main(void) {
    struct memory m;
    m.x = device_alloc<float>((size_t)(LAUNCHES + 2) * MAX_VECTOR);
    m.tagged = device_alloc<uint2>((size_t)(LAUNCHES + 2) * MAX_VECTOR);
    m.weight_bytes = (size_t)4 << 30;
    m.weights = device_alloc<uint8_t>(m.weight_bytes);
    m.state = device_alloc<float>((size_t)25 * SM_COUNT * (STATE / 4));
    m.launch = device_alloc<uint32_t>(1), m.counters = device_alloc<uint32_t>(LAUNCHES + 4);
    CU(cudaMemset(m.x, 0, (size_t)(LAUNCHES + 2) * MAX_VECTOR * 4));
    CU(cudaMemset(m.launch, 0, 4));
    fill_random<<<1024, 256>>>((uint32_t *)m.weights, m.weight_bytes / 4, 1);
    CU(cudaDeviceSynchronize());
    printf("read bandwidth %.0f GB/s\n", bandwidth_calibrate(m.weights, m.weight_bytes) / 1e3);
    const int full = SHARED;
    printf("us a stage\n");
    printf("empty: 32 threads, 0 KB %.3f; 128, 0 %.3f; 512, 0 %.3f; 512, 48 %.3f; 512, 111 %.3f; "
           "512, alternating %.3f; 640, 111 %.3f\n",
           chain(m, run_stage<EMPTY>, 32, 0, 0, 0, 0, false),
           chain(m, run_stage<EMPTY>, 128, 0, 0, 0, 0, false),
           chain(m, run_stage<EMPTY>, 512, 0, 0, 0, 0, false),
           chain(m, run_stage<EMPTY>, 512, 48000, 0, 0, 0, false),
           chain(m, run_stage<EMPTY>, 512, full, 0, 0, 0, false),
           chain(m, run_stage<EMPTY>, 512, full, 0, 0, 0, true),
           chain(m, run_stage<EMPTY>, 640, full, 0, 0, 0, false));
    for (int kblocks = 0; kblocks <= 4; kblocks += kblocks ? kblocks : 1)
        for (int k : {1024, 2560, 4096, 9216}) {
            printf("k %4d, %d K blocks a warp (%.1f MB): ", k, kblocks,
                   1e-6 * kblocks * KBLOCK * WARPS * SM_COUNT);
            fflush(stdout);
            printf("read %.3f", chain(m, run_stage<READ>, 512, full, k, k, kblocks, true));
            printf(", and store %.3f", chain(m, run_stage<STAGE>, 512, full, k, k, kblocks, true));
            printf(", counter %.3f", chain(m, run_stage<COUNTED>, 512, full, k, k, kblocks, true));
            fflush(stdout);
            printf(", tagged %.3f\n", chain(m, run_stage<TAGGED>, 512, full, k, k, kblocks, true));
            fflush(stdout);
        }
    struct {
        const char *name;
        int k, n, n2;
        double mb;
    } models[] = {{"0.8B", 1024, 8224, 2048, 5.2}, {"4B", 2560, 12352, 4096, 20.2}};
    for (auto &o : models) {
        printf("%s, mix in (%.1f MB), DELTA, mix out: ", o.name, o.mb);
        printf("three kernels %.3f", pairs(m, STAGE, SM_COUNT, 1, o.k, o.n, o.n2, o.mb));
        fflush(stdout);
        printf(", tagged %.3f", pairs(m, PAIR_TAGGED, SM_COUNT, 1, o.k, o.n, o.n2, o.mb));
        fflush(stdout);
        for (int cluster : {2, 4, 8})
            for (int grid : {(int)SM_COUNT, 128, 120})
                if (grid % cluster == 0) {
                    printf(", %d clusters of %d %.3f", grid / cluster, cluster,
                           pairs(m, PAIR_CLUSTER, grid, cluster, o.k, o.n, o.n2, o.mb));
                    fflush(stdout);
                }
        printf("\n");
    }
    return 0;
}
