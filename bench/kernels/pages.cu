/* pages.cu - does it matter how far apart the weights of a step lie?
 *
 * A chain of kernels in a graph, each reading some megabytes as PROJECT does: 132 blocks, a run of
 * bytes each, the first loads before the wait. The places that the chain reads walk through more
 * and more memory; what differs is only what translating addresses costs.
 *
 *   linear    stages of 14 MB side by side, as many as fill the footprint
 *   strided   128 stages of 14 MB (or 8 of 400 MB) spread over the footprint
 *   step      40 layers of a mixture of experts (14.2 and 4.8 MB of dense weights, 18 and 9 pieces
 *             of experts chosen anew in every step) and a head, with the dense weights between the
 *             experts' or together, and with pages touched some stages ahead */
#include <cuda.h>

#include "common.cuh"

enum { THREADS = 512, WARPS = THREADS / 32, MB = 1 << 20 };
enum { LAYERS = 40, EXPERTS = 256, USED = 9 };
enum { DENSE_IN, DENSE_OUT, EXPERTS_IN, EXPERTS_OUT, HEAD, KINDS };

struct stage {
    const uint8_t *at;    /* of a dense stage; of a layer's experts: the first one's */
    uint64_t bytes;       /* of a piece, a multiple of 2048 */
    uint32_t n_pieces;    /* 1: dense, known before the wait */
    uint32_t layer;       /* and the step say which experts the pieces are of */
    uint64_t record;      /* from one expert to the next */
    uint64_t matrix;      /* from one matrix of experts to the next: nine pieces of each */
    const uint8_t *touch; /* of a later stage: its pages are touched behind the wait */
    uint64_t touch_bytes;
    uint64_t *stamp;
    uint32_t *step, *sink;
    uint32_t number, is_first, kind, touch_all; /* touch_all: by every block, else by one */
};

static __device__ __forceinline__ uint4 load(const void *p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

static __device__ __forceinline__ const uint8_t *place_of(const struct stage &s, uint64_t byte,
                                                          uint32_t step) {
    if (s.n_pieces == 1)
        return s.at + byte;
    uint32_t piece = (uint32_t)byte / (uint32_t)s.bytes;
    uint32_t expert = hash32(step * 7919 + s.layer * 131 + piece % USED) % EXPERTS;
    return s.at + piece / USED * s.matrix + expert * s.record + (uint32_t)byte % (uint32_t)s.bytes;
}

struct chunk {
    uint4 v[4];
};

static __device__ __forceinline__ void get(const struct stage &s, uint64_t i, uint64_t end,
                                           uint32_t step, struct chunk &c) {
    if (i < end) {
        const uint8_t *at = place_of(s, i * 2048, step) + threadIdx.x % 32 * 16;
#pragma unroll
        for (int j = 0; j < 4; j++)
            c.v[j] = load(at + j * 512);
    }
}

static __device__ __forceinline__ uint32_t fold(const struct chunk &c) {
    uint32_t s = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        s ^= c.v[j].x ^ c.v[j].y ^ c.v[j].z ^ c.v[j].w;
    return s;
}

__global__ void __launch_bounds__(THREADS, 2) read_stage(const __grid_constant__ struct stage s) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    uint64_t n = s.n_pieces * s.bytes / 2048, i = n * blockIdx.x / gridDim.x + threadIdx.x / 32,
             end = n * (blockIdx.x + 1) / gridDim.x;
    struct chunk a = {}, b = {};
    if (s.n_pieces == 1) {
        get(s, i, end, 0, a);
        get(s, i + WARPS, end, 0, b);
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(*s.stamp));
        if (s.is_first)
            ++*s.step;
    }
    uint32_t step = *(volatile uint32_t *)s.step, x = 0;
    if (s.touch && (s.touch_all || blockIdx.x == s.number % gridDim.x))
        for (uint64_t t = threadIdx.x * 2ull * MB; t < s.touch_bytes; t += THREADS * 2ull * MB)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(s.touch + t));
    if (s.n_pieces > 1) {
        get(s, i, end, step, a);
        get(s, i + WARPS, end, step, b);
    }
    for (; i < end; i += 2 * WARPS) {
        x ^= fold(a);
        get(s, i + 2 * WARPS, end, step, a);
        if (i + WARPS < end) {
            x ^= fold(b);
            get(s, i + 3 * WARPS, end, step, b);
        }
    }
    if (x == 0x12345678u)
        *s.sink = x;
}

static cudaStream_t stream;
static uint64_t *stamps;
static uint32_t *words;

static void run(std::vector<struct stage> &stages, const char *name) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t n = stages.size();
    struct stage last = {stages[0].at, 2048, 1};
    stages.push_back(last); /* takes the last one's end */
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (size_t i = 0; i <= n; i++) {
        struct stage &s = stages[i];
        s.stamp = stamps + i;
        s.step = words;
        s.sink = words + 1;
        s.number = (uint32_t)i;
        s.is_first = i == 0;
        cudaLaunchAttribute pdl = {};
        pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        pdl.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t c = {};
        c.gridDim = dim3(SM_COUNT);
        c.blockDim = dim3(THREADS);
        c.stream = stream;
        c.attrs = &pdl;
        c.numAttrs = 1;
        CU(cudaLaunchKernelEx(&c, read_stage, s));
    }
    CU(cudaStreamEndCapture(stream, &graph));
    CU(cudaGraphInstantiate(&exec, graph, 0));
    int repeats = n > 600 ? 4 : 8;
    std::vector<double> us[KINDS];
    double bytes[KINDS] = {};
    for (int r = 0; r < repeats + 2; r++) {
        CU(cudaGraphLaunch(exec, stream));
        CU(cudaStreamSynchronize(stream));
        std::vector<uint64_t> t = host_copy(stamps, n + 1);
        for (size_t i = 0; r >= 2 && i < n; i++) {
            us[stages[i].kind].push_back((double)(t[i + 1] - t[i]) * 1e-3);
            bytes[stages[i].kind] += (double)stages[i].bytes * stages[i].n_pieces;
        }
    }
    printf("%-34s", name);
    double sum = 0, all = 0;
    for (int k = 0; k < KINDS; k++) {
        double t = 0;
        for (double u : us[k])
            t += u;
        if (!us[k].empty())
            printf("  %6.2f us %4.0f GB/s", t / us[k].size(), bytes[k] / t * 1e-3);
        sum += t / repeats;
        all += bytes[k] / repeats;
    }
    printf("  all %.0f us %.0f GB/s\n", sum, all / sum * 1e-3);
    fflush(stdout);
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(graph));
    stages.clear();
}

static void linear(const uint8_t *base, uint64_t footprint) {
    std::vector<struct stage> s;
    char name[64];
    for (uint64_t at = 0; at + 14 * MB <= footprint; at += 14 * MB)
        s.push_back({base + at, 14 * MB, 1});
    snprintf(name, sizeof name, "linear 14 MB in %llu GB", (unsigned long long)(footprint >> 30));
    run(s, name);
}

static void strided(const uint8_t *base, uint64_t footprint, uint64_t bytes, uint32_t n) {
    std::vector<struct stage> s;
    char name[64];
    uint64_t stride = (footprint - bytes) / (n - 1) / 4096 * 4096;
    for (uint32_t i = 0; i < n; i++)
        s.push_back({base + i * stride, bytes, 1});
    snprintf(name, sizeof name, "strided %llu MB in %llu GB", (unsigned long long)(bytes >> 20),
             (unsigned long long)(footprint >> 30));
    run(s, name);
}

static struct stage dense_stage(const uint8_t *&at, uint64_t bytes, uint32_t kind) {
    struct stage s = {at, bytes, 1};
    s.kind = kind;
    at += bytes;
    return s;
}

static struct stage experts_stage(const uint8_t *at, uint64_t bytes, uint32_t n, uint32_t layer,
                                  uint64_t record, uint32_t kind) {
    struct stage s = {at, bytes, n, layer, record, EXPERTS * record};
    s.kind = kind;
    return s;
}

/* is_record: an expert's three matrices lie side by side. ahead: a dense stage's pages are touched
 * so many stages before it; 0: not. */
static void step(const uint8_t *base, bool is_together, bool is_record, uint32_t ahead, bool by_all,
                 const char *what) {
    const uint64_t in = 14213120 / 2048 * 2048, out = 4718592, gate = 589824, down = 860160,
                   head = 417177600 / 2048 * 2048, record = 2 * gate + down;
    std::vector<struct stage> s;
    const uint8_t *dense = base, *far = base + (is_together ? LAYERS * (in + out) + head : 0);
    for (uint32_t i = 0; i < LAYERS; i++) {
        const uint8_t *&at = is_together ? dense : far;
        s.push_back(dense_stage(at, in, DENSE_IN));
        s.push_back(dense_stage(at, out, DENSE_OUT));
        if (is_record) {
            s.push_back(experts_stage(far, 2 * gate, USED, i, record, EXPERTS_IN));
            s.push_back(experts_stage(far + 2 * gate, down, USED, i, record, EXPERTS_OUT));
        } else {
            s.push_back(experts_stage(far, gate, 2 * USED, i, gate, EXPERTS_IN));
            s.push_back(experts_stage(far + 2 * EXPERTS * gate, down, USED, i, down, EXPERTS_OUT));
        }
        far += EXPERTS * record;
    }
    s.push_back(dense_stage(is_together ? dense : far, head, HEAD));
    for (size_t i = 0; ahead && i + ahead < s.size(); i++)
        if (s[i + ahead].n_pieces == 1) {
            s[i].touch = s[i + ahead].at;
            s[i].touch_bytes = s[i + ahead].bytes;
            s[i].touch_all = by_all;
        }
    run(s, what);
}

static uint8_t *map_aligned(uint64_t bytes, uint64_t align) {
    CUmemAllocationProp prop = {};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = 0;
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    size_t least = 0, best = 0;
    cuMemGetAllocationGranularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    cuMemGetAllocationGranularity(&best, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    printf("granularity %zu, recommended %zu\n", least, best);
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (cuMemCreate(&handle, bytes, &prop, 0) || cuMemAddressReserve(&at, bytes, align, 0, 0) ||
        cuMemMap(at, bytes, 0, handle, 0) || cuMemSetAccess(at, bytes, &access, 1))
        return NULL;
    return (uint8_t *)at;
}

int main(void) {
    const uint64_t gb = 1ull << 30, all = 64 * gb;
    uint8_t *base;
    CU(cudaStreamCreate(&stream));
    CU(cudaMalloc(&base, all));
    CU(cudaMalloc(&stamps, 8192 * sizeof *stamps));
    CU(cudaMalloc(&words, 64));
    CU(cudaMemset(base, 1, all));
    CU(cudaMemset(words, 0, 64));
    for (uint64_t f : {2, 4, 8, 16, 20, 24, 32, 64})
        linear(base, f * gb);
    for (uint64_t f : {4, 8, 16, 24, 32, 64})
        strided(base, f * gb, 14 * MB, 128);
    for (uint64_t f : {4, 8, 16, 24, 32, 64})
        strided(base, f * gb, 400 * MB, 8);
    step(base, false, false, 0, false, "step, dense between experts");
    step(base, true, false, 0, false, "step, dense together");
    step(base, false, true, 0, false, "step, dense between records");
    step(base, true, true, 0, false, "step, together, records");
    for (uint32_t ahead : {1, 2, 4})
        for (int by_all = 0; by_all < 2; by_all++) {
            char name[64];
            snprintf(name, sizeof name, "between, touched %u ahead by %s", ahead,
                     by_all ? "all" : "one");
            step(base, false, false, ahead, by_all, name);
        }
    step(base, true, true, 2, false, "together, records, 2 ahead by one");
    step(base, true, true, 2, true, "together, records, 2 ahead by all");
    CU(cudaFree(base));
    if (!(base = map_aligned(32 * gb, 512ull << 20)))
        return puts("mapping failed"), 1;
    CU(cudaMemset(base, 1, 32 * gb));
    linear(base, 16 * gb);
    step(base, false, false, 0, false, "mapped: step, dense between");
    step(base, true, true, 0, false, "mapped: step, together, records");
    return 0;
}
