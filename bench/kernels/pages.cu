/* pages.cu - does it matter how far apart the weights of a step are in memory?
 *
 * A chain of kernels in a graph, each reading some megabytes as PROJECT does: 132 blocks, a
 * contiguous range of bytes each, the first loads before griddepcontrol.wait. The ranges that the
 * chain reads spread over more and more memory; what differs is only the cost of address
 * translation.
 *
 *   linear    reads of 14 MB next to each other, as many as fill the footprint
 *   strided   128 reads of 14 MB (or 8 of 400 MB) spread over the footprint
 *   step      40 layers of a mixture of experts (14.2 and 4.8 MB of dense weights, 18 and 9
 *             matrices of experts chosen in every step) and an LM head, with the dense weights
 *             between the experts' or together, and an expert's matrices apart or together */
#include "common.cuh"

enum { THREADS = 512, WARPS = THREADS / 32, MB = 1 << 20 };
enum { LAYERS = 40, EXPERTS = 256, USED = 9 };
enum { DENSE_IN, DENSE_OUT, EXPERTS_IN, EXPERTS_OUT, HEAD, KINDS };

/* What one kernel reads: n matrices. */
struct read_params {
    const uint8_t *at; /* a dense one's beginning, or the first expert's */
    uint64_t bytes;    /* of a matrix, a multiple of 2048 */
    uint32_t n;        /* 1: dense, known before the wait */
    uint32_t layer;    /* with the step's number says which experts */
    uint64_t record;   /* bytes from one expert to the next */
    uint64_t matrix;   /* bytes from one matrix of experts to the next, of which USED are read */
    uint64_t *stamp;
    uint32_t *step, *sink;
    uint32_t is_first, kind;
};

static __device__ __forceinline__ const uint8_t *address_of(const struct read_params &s,
                                                            uint64_t byte, uint32_t step) {
    if (s.n == 1)
        return s.at + byte;
    uint32_t index = (uint32_t)byte / (uint32_t)s.bytes;
    uint32_t expert = hash32(step * 7919 + s.layer * 131 + index % USED) % EXPERTS;
    return s.at + index / USED * s.matrix + expert * s.record + (uint32_t)byte % (uint32_t)s.bytes;
}

struct chunk {
    uint4 v[4];
};

static __device__ __forceinline__ void get(const struct read_params &s, uint64_t i, uint64_t end,
                                           uint32_t step, struct chunk &c) {
    if (i < end) {
        const uint8_t *at = address_of(s, i * 2048, step) + threadIdx.x % 32 * 16;
#pragma unroll
        for (int j = 0; j < 4; j++)
            c.v[j] = ld_no_allocate(at + j * 512);
    }
}

static __device__ __forceinline__ uint32_t xor_of(const struct chunk &c) {
    uint32_t s = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        s ^= c.v[j].x ^ c.v[j].y ^ c.v[j].z ^ c.v[j].w;
    return s;
}

__global__ void __launch_bounds__(THREADS, 2)
    read_weights(const __grid_constant__ struct read_params s) {
    pdl_launch_dependents();
    uint64_t n = s.n * s.bytes / 2048, i = n * blockIdx.x / gridDim.x + threadIdx.x / 32,
             end = n * (blockIdx.x + 1) / gridDim.x;
    struct chunk a = {}, b = {};
    if (s.n == 1) {
        get(s, i, end, 0, a);
        get(s, i + WARPS, end, 0, b);
    }
    pdl_wait();
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        *s.stamp = globaltimer();
        if (s.is_first)
            ++*s.step;
    }
    uint32_t step = *(volatile uint32_t *)s.step, x = 0;
    if (s.n > 1) {
        get(s, i, end, step, a);
        get(s, i + WARPS, end, step, b);
    }
    for (; i < end; i += 2 * WARPS) {
        x ^= xor_of(a);
        get(s, i + 2 * WARPS, end, step, a);
        if (i + WARPS < end) {
            x ^= xor_of(b);
            get(s, i + 3 * WARPS, end, step, b);
        }
    }
    if (x == 0x12345678u)
        *s.sink = x;
}

static cudaStream_t stream;
static uint64_t *stamps;
static uint32_t *words;

static void run(std::vector<struct read_params> &reads, const char *name) {
    size_t n = reads.size();
    reads.push_back({reads[0].at, 2048, 1}); /* its stamp is the last one's end */
    cudaGraphExec_t exec = capture(stream, [&] {
        for (size_t i = 0; i <= n; i++) {
            struct read_params &s = reads[i];
            s.stamp = stamps + i;
            s.step = words;
            s.sink = words + 1;
            s.is_first = i == 0;
            launch_pdl(stream, THREADS, 0, read_weights, s);
        }
    });
    int repeats = n > 600 ? 4 : 8;
    std::vector<double> us[KINDS];
    double bytes[KINDS] = {};
    for (int r = 0; r < repeats + 2; r++) {
        CU(cudaGraphLaunch(exec, stream));
        CU(cudaStreamSynchronize(stream));
        std::vector<uint64_t> t = host_copy(stamps, n + 1);
        for (size_t i = 0; r >= 2 && i < n; i++) {
            us[reads[i].kind].push_back((double)(t[i + 1] - t[i]) * 1e-3);
            bytes[reads[i].kind] += (double)reads[i].bytes * reads[i].n;
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
    reads.clear();
}

static void linear(const uint8_t *base, uint64_t footprint) {
    std::vector<struct read_params> s;
    char name[64];
    for (uint64_t at = 0; at + 14 * MB <= footprint; at += 14 * MB)
        s.push_back({base + at, 14 * MB, 1});
    snprintf(name, sizeof name, "linear 14 MB in %llu GB", (unsigned long long)(footprint >> 30));
    run(s, name);
}

static void strided(const uint8_t *base, uint64_t footprint, uint64_t bytes, uint32_t n) {
    std::vector<struct read_params> s;
    char name[64];
    uint64_t stride = (footprint - bytes) / (n - 1) / 4096 * 4096;
    for (uint32_t i = 0; i < n; i++)
        s.push_back({base + i * stride, bytes, 1});
    snprintf(name, sizeof name, "strided %llu MB in %llu GB", (unsigned long long)(bytes >> 20),
             (unsigned long long)(footprint >> 30));
    run(s, name);
}

static struct read_params dense_read(const uint8_t *&at, uint64_t bytes, uint32_t kind) {
    struct read_params s = {at, bytes, 1};
    s.kind = kind;
    at += bytes;
    return s;
}

static struct read_params experts_read(const uint8_t *at, uint64_t bytes, uint32_t n,
                                       uint32_t layer, uint64_t record, uint32_t kind) {
    struct read_params s = {at, bytes, n, layer, record, EXPERTS * record};
    s.kind = kind;
    return s;
}

/* is_record: an expert's three matrices are next to each other. */
static void step(const uint8_t *base, bool is_together, bool is_record, const char *what) {
    const uint64_t in = 14213120 / 2048 * 2048, out = 4718592, gate = 589824, down = 860160,
                   head = 417177600 / 2048 * 2048, record = 2 * gate + down;
    std::vector<struct read_params> s;
    const uint8_t *dense = base, *far = base + (is_together ? LAYERS * (in + out) + head : 0);
    for (uint32_t i = 0; i < LAYERS; i++) {
        const uint8_t *&at = is_together ? dense : far;
        s.push_back(dense_read(at, in, DENSE_IN));
        s.push_back(dense_read(at, out, DENSE_OUT));
        if (is_record) {
            s.push_back(experts_read(far, 2 * gate, USED, i, record, EXPERTS_IN));
            s.push_back(experts_read(far + 2 * gate, down, USED, i, record, EXPERTS_OUT));
        } else {
            s.push_back(experts_read(far, gate, 2 * USED, i, gate, EXPERTS_IN));
            s.push_back(experts_read(far + 2 * EXPERTS * gate, down, USED, i, down, EXPERTS_OUT));
        }
        far += EXPERTS * record;
    }
    s.push_back(dense_read(is_together ? dense : far, head, HEAD));
    run(s, what);
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
    step(base, false, false, "step, dense between experts");
    step(base, true, false, "step, dense together");
    step(base, false, true, "step, dense between records");
    step(base, true, true, "step, together, records");
    return 0;
}
