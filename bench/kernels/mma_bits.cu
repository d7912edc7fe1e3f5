/* mma_bits.cu - do mma.sync and wgmma give the same bits for a chain of fp16 products with f32
 * sums?
 *
 * 64 x 16 sums over 1024 columns, a thread block each: by wgmma m64n16k16 out of shared memory, and
 * by mma.sync m16n8k16, with the columns of a step in order and as project_f16's tiles have them
 * (a lane's four are neighbours). Kinds of values: normal, any finite bits, denormals, large ones
 * whose products cancel, and with an infinity or NaN here and there. */
#include <cuda_fp16.h>

#include "backend/cuda/kernels/ptx.cuh"
#include "common.cuh"

enum { M = 64, N = 16, K = 1024, PANEL = 64, BLOCKS = 264, ROUNDS = 4, KINDS = 5 };

struct inputs {
    uint16_t a[M][K], b[N][K];
};

struct sums {
    float wgmma[M][N], mma[2][M][N];
};

static __device__ uint64_t describe_rows(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Rows of 128 bytes, chunks swizzled. */
static __device__ void copy_panel(uint8_t *to, const uint16_t (*from)[K], uint32_t rows,
                                  uint32_t column) {
    for (uint32_t i = threadIdx.x; i < rows * 8; i += blockDim.x)
        *(uint4 *)(to + i / 8 * 128 + (i % 8 ^ i / 8 % 8) * 16) =
            *(const uint4 *)&from[i / 8][column + i % 8 * 8];
}

static __device__ uint32_t pair(const uint16_t *row, uint32_t column) {
    return *(const uint32_t *)(row + column);
}

extern "C" __global__ void multiply(const struct inputs *in, struct sums *out) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t panel[];
    const struct inputs &x = in[blockIdx.x];
    struct sums &y = out[blockIdx.x];
    uint32_t at = smem_addr(panel), warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4,
             j = threadIdx.x % 4;
    float c[8] = {};
    for (uint32_t column = 0; column < K; column += PANEL) {
        copy_panel(panel, x.a, M, column);
        copy_panel(panel + M * 128, x.b, N, column);
        fence_proxy_async();
        __syncthreads();
        wgmma_fence();
        for (int step = 0; step < 4; step++)
            wgmma_f16<true>(c, describe_rows(at) + step * 2,
                            describe_rows(at + M * 128) + step * 2);
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();
    }
    for (int i = 0; i < 8; i++)
        y.wgmma[warp * 16 + g + i % 4 / 2 * 8][i / 4 * 8 + 2 * j + i % 2] = c[i];
    for (int order = 0; order < 2; order++)
        for (uint32_t n = 0; n < N; n += 8) {
            float d[4] = {};
            const uint16_t *a = x.a[warp * 16 + g], *low = x.a[warp * 16 + g + 8], *b = x.b[n + g];
            for (uint32_t column = 0; column < K; column += 16) {
                uint32_t first = column + (order ? 4 * j : 2 * j), second = first + (order ? 2 : 8);
                mma_m16n8k16_f16(d, pair(a, first), pair(low, first), pair(a, second),
                                 pair(low, second), pair(b, first), pair(b, second));
            }
            for (int i = 0; i < 4; i++)
                y.mma[order][warp * 16 + g + i / 2 * 8][n + 2 * j + i % 2] = d[i];
        }
#endif
}

static uint16_t random_half(uint32_t kind, uint32_t *state) {
    uint32_t r = hash32((*state)++), bits = r & 0xffff;
    if (kind == 0) /* 2^-8 ... 2^7 */
        return (uint16_t)((bits & 0x83ff) | (7 + (r >> 16 & 15)) << 10);
    if (kind == 2) /* denormals, and some small normal values */
        return (uint16_t)(bits & (r >> 16 & 7 ? 0x83ff : 0x87ff));
    if (kind == 3) /* 2^13 ... 2^15, and one in 8 near 2^-14 */
        return (uint16_t)((bits & 0x83ff) | (r >> 16 & 7 ? 28 + (r >> 20 & 1) : 1) << 10);
    if (kind == 4 && (r >> 16) % 2048 == 0)
        return (uint16_t)(0x7c00 | (r & 0x8000) | (r >> 30 & 1));
    return (bits & 0x7c00) == 0x7c00 ? (uint16_t)(bits & 0x83ff) : bits;
}

static bool is_same(float a, float b) {
    return (a != a && b != b) || memcmp(&a, &b, 4) == 0;
}

/* Of the exact sum, as a part of the sum of the terms' sizes. */
static double error_of(const struct inputs *x, uint32_t m, uint32_t n, float got) {
    double sum = 0, size = 0;
    for (uint32_t k = 0; k < K; k++) {
        __half_raw a = {x->a[m][k]}, b = {x->b[n][k]};
        double term = (double)__half2float(a) * (double)__half2float(b);
        sum += term, size += fabs(term);
    }
    return size > 0 ? fabs(got - sum) / size : 0;
}

int main(void) {
    static const char *names[KINDS] = {"normal", "any", "denormal", "large", "infinite"};
    struct inputs *in, *host = (struct inputs *)malloc(BLOCKS * sizeof *host);
    struct sums *out, *got = (struct sums *)malloc(BLOCKS * sizeof *got);
    uint32_t state = 1;
    CU(cudaMalloc(&in, BLOCKS * sizeof *in));
    CU(cudaMalloc(&out, BLOCKS * sizeof *out));
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        uint64_t n = 0, differ[2] = {0, 0}, nans = 0;
        double worst = 0;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            uint16_t *v = (uint16_t *)host;
            for (size_t i = 0; i < BLOCKS * sizeof *host / 2; i++)
                v[i] = random_half(kind, &state);
            CU(cudaMemcpy(in, host, BLOCKS * sizeof *host, cudaMemcpyHostToDevice));
            multiply<<<BLOCKS, 128, (M + N) * 128>>>(in, out);
            CU(cudaMemcpy(got, out, BLOCKS * sizeof *got, cudaMemcpyDeviceToHost));
            for (uint32_t i = 0; i < BLOCKS * M * N; i++, n++) {
                const struct sums *s = &got[i / (M * N)];
                uint32_t m = i / N % M, column = i % N;
                float w = s->wgmma[m][column];
                nans += w != w;
                for (int o = 0; o < 2; o++)
                    differ[o] += !is_same(w, s->mma[o][m][column]);
                if (kind < 4 && i % 4096 == 0) {
                    double e = error_of(&host[i / (M * N)], m, column, w);
                    worst = e > worst ? e : worst;
                }
            }
        }
        printf("%-9s %llu sums: %llu and %llu (permuted) differ; %llu NaN; worst error %.2g\n",
               names[kind], (unsigned long long)n, (unsigned long long)differ[0],
               (unsigned long long)differ[1], (unsigned long long)nans, worst);
    }
}
