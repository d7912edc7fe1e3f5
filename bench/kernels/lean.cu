/* lean.cu - a decode step of the 4B from small kernels: weights straight into registers.
 *
 * One activation row, all matrices Q4_K, shapes are template constants. Weights are repacked into
 * units of 4 row slots x 32 lanes x 32 columns (one sub-block a lane), UNIT bytes:
 *
 *   [4 slots][32 lanes] 16 B of nibbles (word i: columns 4i.. low, 16 + 4i.. high)
 *   [32 lanes] 4 scales, 4 minimums, a byte each
 *   [4 super-blocks] 4 x (d, dmin) as halves               2368 B, 2.8 % more than Q4_K's 2304
 *
 * A warp owns 4 rows x LANES = 32 (or 8 rows x LANES = 16: two half warps) and walks J units, one
 * run of bytes. The first D loads a lane are issued before the wait and stay in registers; slot i
 * is loaded again as soon as it has been used. dp4a against int8 activations in shared memory.
 * The norm is a factor of the whole row, so it is applied to the results: one barrier, no more.
 * KS warps share a row group where rows are few; their parts are added in shared memory.
 *
 * DELTA has no convolution and no head norm; otherwise its bytes and its arithmetic are real. */
#include <cuda_fp16.h>

#include "common.cuh"

enum {
    UNIT = 2368,
    LAYERS = 32,
    DIM = 2560,
    MIXED = 12352,
    INNER = 4096,
    FFN = 9216,
    VOCAB = 248320
};
enum kind { IN, MIX, OUT, UP, DOWN, HEAD };
static const char *const KIND_NAMES[] = {"in", "mix", "out", "up", "down", "head"};

struct stage {
    const uint8_t *w;  /* units */
    const float *x;    /* (K); DOWN: halves, written by UP */
    const float *norm; /* (K), or unused */
    float *y;          /* (rows); OUT and DOWN add to it */
    int32_t early;     /* load before the wait */
    uint32_t *trace;   /* (blocks, 8) */
};

struct delta {
    const float *m; /* (MIXED): q, k: 16 x 128; v, z: 32 x 128; a, b: 32 */
    float *s, *o;   /* (32, 128, 128); (INNER) */
    int32_t early;
    uint32_t *trace;
};

/* REGS: so many that two neighbouring stages fit an SM partition: 512 for all its warps of both. */
template <int KIND, int K, int ROWS, int LANES_, int KS_, int WARPS_, int BLOCKS_, int D_,
          int REGS_>
struct shape {
    static constexpr int kind = KIND, k = K, rows = ROWS, LANES = LANES_, KS = KS_, WARPS = WARPS_,
                         BLOCKS = BLOCKS_, D = D_, REGS = REGS_;
    static constexpr int UNIT_ROWS = 4 * (32 / LANES), RUNS = ROWS / UNIT_ROWS;
    static constexpr int J = K / 32 / LANES / KS, THREADS = WARPS * 32;
    static constexpr int V =
        KIND == DOWN ? K / 8 : K / 4; /* 16-byte pieces of x: halves or floats */
    static constexpr bool NORM = KIND == IN || KIND == UP || KIND == HEAD;
    static constexpr size_t BYTES = (size_t)RUNS * KS * J * UNIT;
    static_assert(RUNS * UNIT_ROWS == ROWS && J * KS * LANES * 32 == K, "shape");
    static_assert((RUNS + BLOCKS - 1) / BLOCKS * KS <= WARPS, "warps");
};

__device__ static inline void pdl_launch_next(void) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ static inline void pdl_wait(void) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ static inline uint4 stream4(const void *p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

__device__ static inline uint2 stream2(const void *p) {
    uint2 v;
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

__device__ static inline float4 floats(uint4 v) {
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                       __uint_as_float(v.w));
}

__device__ static inline float4 stream4f(const void *p) {
    return floats(stream4(p));
}

__device__ static inline void async4(void *dst, const void *src) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(dst)),
        "l"(src)
        : "memory");
}

__device__ static inline int dot4(uint32_t w, uint32_t a, int c) {
    int r;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(w), "r"(a), "r"(c));
    return r;
}

template <int N> __device__ static inline float lanes_sum(float v) {
#pragma unroll
    for (int m = N / 2; m; m >>= 1)
        v += __shfl_xor_sync(~0u, v, m);
    return v;
}

__device__ static inline float silu(float x) {
    return __fdividef(x, 1 + __expf(-x));
}

#ifdef TRACE
#define STAMP(a, i)                                                                                \
    do {                                                                                           \
        if (threadIdx.x == 0 && blockIdx.x < 264)                                                  \
            (a).trace[blockIdx.x * 8 + (i)] = clock();                                             \
    } while (0)
__device__ static inline uint32_t smid(void) {
    uint32_t v;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(v));
    return v;
}
#define STAMP_SM(a)                                                                                \
    do {                                                                                           \
        if (threadIdx.x == 0 && blockIdx.x < 264)                                                  \
            (a).trace[blockIdx.x * 8 + 7] = smid();                                                \
    } while (0)
#else
#define STAMP(a, i)                                                                                \
    do {                                                                                           \
    } while (0)
#define STAMP_SM(a)                                                                                \
    do {                                                                                           \
    } while (0)
#endif

/* A lane's D loads in flight, and the scales of the units they belong to. */
template <class S> struct queue {
    static constexpr int N = S::J * 4, SETS = (S::D + 3) / 4 + 1;
    uint4 w[S::D], d[SETS];
    uint2 sc[SETS];
    const uint8_t *at, *at_sc, *at_d; /* this lane's, so that all other terms are constants */

    __device__ inline void load(int i) {
        int j = i / 4, r = i % 4;
        if (r == 0) {
            sc[j % SETS] = stream2(at_sc + j * UNIT);
            d[j % SETS] = stream4(at_d + j * UNIT);
        }
        w[i % S::D] = stream4(at + j * UNIT + r * 512);
    }
};

__device__ static inline float2 halves(uint32_t v) {
    return __half22float2(*reinterpret_cast<__half2 *>(&v));
}

/* One sub-block of one row: as (d sc q.a - dmin mn sum(a)); `as` holds as and -as sum(a). */
__device__ static inline float chunk(uint4 w, uint4 lo, uint4 hi, uint32_t sc, uint32_t mn,
                                     uint32_t d, float2 as) {
    const uint32_t L = 0x0f0f0f0fu, H = 0xf0f0f0f0u;
    int a = dot4(w.x & L, lo.x, 0), b = dot4(w.x & H, hi.x, 0);
    a = dot4(w.y & L, lo.y, a), b = dot4(w.y & H, hi.y, b);
    a = dot4(w.z & L, lo.z, a), b = dot4(w.z & H, hi.z, b);
    a = dot4(w.w & L, lo.w, a), b = dot4(w.w & H, hi.w, b);
    float2 dd = halves(d);
    float s = (float)((a + (b >> 4)) * (int)sc), m = (float)mn;
    return fmaf(dd.x * as.x, s, dd.y * as.y * m);
}

template <class S> struct smem {
    static constexpr int C = S::k / 32;
    uint4 q[2][C + 4]; /* columns 0..15 and 16..31 of each sub-block; + 4: banks */
    float2 as[C];
    float red[(S::WARPS + 3) / 4 * 4];
    float part[S::KS][S::WARPS / S::KS * 4];
    float4 norm[S::NORM ? S::k / 4 : 1]; /* a thread reads what it copied itself */
};

/* Four values as bytes; v f within [-127, 127]. */
__device__ static inline uint32_t round4(float4 v, float f) {
    const float R = 12582912.0f; /* 1.5 x 2^23: the sum's low byte is the rounded value */
    uint32_t a = __float_as_uint(fmaf(v.x, f, R)), b = __float_as_uint(fmaf(v.y, f, R));
    uint32_t c = __float_as_uint(fmaf(v.z, f, R)), d = __float_as_uint(fmaf(v.w, f, R));
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

__device__ static inline float max4(float4 v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

template <class S>
__device__ static inline void scale_store(struct smem<S> *s, int c, float m, int sum) {
    s->as[c] = make_float2(m * (1 / 127.0f), (float)-sum * m * (1 / 127.0f));
}

/* Quantises 4 columns a thread; eight lanes share a sub-block. */
template <class S> __device__ static inline void quantise(struct smem<S> *s, int i, float4 v) {
    float m = max4(v);
#pragma unroll
    for (int d = 1; d < 8; d <<= 1)
        m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    uint32_t q = round4(v, m > 0 ? __fdividef(127.0f, m) : 0);
    int sum = __dp4a((int)q, 0x01010101, 0), w = i % 8;
#pragma unroll
    for (int d = 1; d < 8; d <<= 1)
        sum += __shfl_xor_sync(~0u, sum, d);
    ((uint32_t *)&s->q[w / 4][i / 8])[w % 4] = q;
    if (w == 0)
        scale_store<S>(s, i / 8, m, sum);
}

/* The same for 8 columns held as halves; four lanes share a sub-block. */
template <class S> __device__ static inline void quantise8(struct smem<S> *s, int i, uint4 h) {
    float2 a = halves(h.x), b = halves(h.y), c = halves(h.z), d = halves(h.w);
    float4 u = make_float4(a.x, a.y, b.x, b.y), v = make_float4(c.x, c.y, d.x, d.y);
    float m = fmaxf(max4(u), max4(v));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
    float f = m > 0 ? __fdividef(127.0f, m) : 0;
    uint2 q = make_uint2(round4(u, f), round4(v, f));
    int sum = __dp4a((int)q.x, 0x01010101, __dp4a((int)q.y, 0x01010101, 0)), w = i % 4;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    ((uint2 *)&s->q[w / 2][i / 4])[w % 2] = q;
    if (w == 0)
        scale_store<S>(s, i / 4, m, sum);
}

template <class S>
__device__ static inline void eat(struct queue<S> &q, struct smem<S> *s, int ks, float (&acc)[4]) {
    int lane = threadIdx.x % S::LANES;
#pragma unroll
    for (int j = 0; j < S::J; j++) {
        int c = (ks * S::J + j) * S::LANES + lane;
        uint4 lo = s->q[0][c], hi = s->q[1][c];
        float2 as = s->as[c];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int i = j * 4 + r, set = j % q.SETS;
            uint4 d = q.d[set];
            uint32_t dr = r == 0 ? d.x : r == 1 ? d.y : r == 2 ? d.z : d.w;
            acc[r] += chunk(q.w[i % S::D], lo, hi, q.sc[set].x >> (8 * r) & 255,
                            q.sc[set].y >> (8 * r) & 255, dr, as);
            if (i + S::D < q.N)
                q.load(i + S::D);
        }
    }
}

/* The 16 bytes of round t; past the end a warp does those of round 0 again. */
template <class S> __device__ static inline int column(int t) {
    int i = threadIdx.x + t * S::THREADS;
    return i < S::V ? i : threadIdx.x;
}

template <class S>
__global__ static void __maxnreg__(S::REGS) project(const __grid_constant__ struct stage a) {
    __shared__ struct smem<S> s;
    pdl_launch_next();
    STAMP(a, 0);
    STAMP_SM(a);
    constexpr int Q = S::RUNS / S::BLOCKS, REM = S::RUNS % S::BLOCKS, V = S::V,
                  ROUNDS = (V + S::THREADS - 1) / S::THREADS;
    int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, b = blockIdx.x;
    int first = b * Q + min(b, REM), n = Q + (b < REM), g = warp / S::KS, ks = warp % S::KS;
    bool active = g < n;
    struct queue<S> q;
    q.at = a.w + (uint32_t)(((first + g) * S::KS + ks) * (S::J * UNIT));
    q.at_sc = q.at + 2048 + lane * 8, q.at_d = q.at + 2304 + lane / 8 * 16, q.at += lane * 16;
    uint4 v[ROUNDS];
    if (!a.early)
        pdl_wait();
    if (active) {
#pragma unroll
        for (int i = 0; i < min(S::D, q.N); i++)
            q.load(i);
    }
    if (S::NORM) {
#pragma unroll
        for (int t = 0; t < ROUNDS; t++)
            if (tid + t * S::THREADS < V)
                async4(&s.norm[tid + t * S::THREADS], a.norm + (tid + t * S::THREADS) * 4);
    }
    STAMP(a, 1);
    if (a.early)
        pdl_wait();
    STAMP(a, 2);
    float res = 0, ss = 0;
#pragma unroll
    for (int t = 0; t < ROUNDS; t++)
        v[t] = stream4(a.x + column<S>(t) * 4);
    if (S::KS > 1 && tid < n * 4)
        res = __ldcg(a.y + first * 4 + tid);
    if (S::NORM)
        asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
    for (int t = 0; t < ROUNDS; t++) {
        if (S::kind == DOWN) {
            quantise8<S>(&s, column<S>(t), v[t]);
            continue;
        }
        float4 u = floats(v[t]);
        if (S::NORM) {
            float4 nw = s.norm[column<S>(t)];
            float sq = u.x * u.x + u.y * u.y + u.z * u.z + u.w * u.w;
            ss += tid + t * S::THREADS < V ? sq : 0;
            u.x *= nw.x, u.y *= nw.y, u.z *= nw.z, u.w *= nw.w;
        }
        quantise<S>(&s, column<S>(t), u);
    }
    if (S::NORM) {
        ss = lanes_sum<32>(ss);
        if (lane == 0)
            s.red[warp] = ss;
        if (tid >= S::WARPS && tid < (S::WARPS + 3) / 4 * 4)
            s.red[tid] = 0;
    }
    __syncthreads();
    STAMP(a, 3);
    float acc[4] = {};
    if (active)
        eat<S>(q, &s, ks, acc);
    STAMP(a, 4);
    float inv = 1;
    if (S::NORM) {
        float4 t = *(float4 *)s.red;
#pragma unroll
        for (int i = 1; i < (S::WARPS + 3) / 4; i++) {
            float4 u = *(float4 *)(s.red + 4 * i);
            t.x += u.x, t.y += u.y, t.z += u.z, t.w += u.w;
        }
        inv = rsqrtf((t.x + t.y + t.z + t.w) * (1.0f / S::k) + 1e-6f);
    }
    float4 o = make_float4(lanes_sum<S::LANES>(acc[0]), lanes_sum<S::LANES>(acc[1]),
                           lanes_sum<S::LANES>(acc[2]), lanes_sum<S::LANES>(acc[3]));
    o.x *= inv, o.y *= inv, o.z *= inv, o.w *= inv;
    if (S::KS > 1) {
        if (lane == 0)
            *(float4 *)&s.part[ks][g * 4] = o;
    } else if (S::kind == UP) {
        o.x = silu(o.x) * __shfl_down_sync(~0u, o.x, 16);
        o.y = silu(o.y) * __shfl_down_sync(~0u, o.y, 16);
        o.z = silu(o.z) * __shfl_down_sync(~0u, o.z, 16);
        o.w = silu(o.w) * __shfl_down_sync(~0u, o.w, 16);
        if (active && lane == 0) {
            __half2 *h = (__half2 *)a.y + (first + g) * 2;
            h[0] = __floats2half2_rn(o.x, o.y), h[1] = __floats2half2_rn(o.z, o.w);
        }
    } else if (active && lane % S::LANES == 0)
        *(float4 *)(a.y + (first + g) * S::UNIT_ROWS + lane / S::LANES * 4) = o;
    if (S::KS > 1) {
        __syncthreads();
        if (tid < n * 4) {
#pragma unroll
            for (int i = 0; i < S::KS; i++)
                res += s.part[i][tid];
            a.y[first * 4 + tid] = res;
        }
    }
    STAMP(a, 5);
}

/* Block = (head, quarter of its columns), a warp two columns, a lane four values of each; no
 * barrier: every warp norms q and k for itself. */
__global__ static void __launch_bounds__(512, 2) mix(const __grid_constant__ struct delta a) {
    pdl_launch_next();
    STAMP(a, 0);
    STAMP_SM(a);
    int lane = threadIdx.x % 32, col = blockIdx.x % 4 * 32 + threadIdx.x / 32 * 2,
        head = blockIdx.x / 4;
    float *S = a.s + ((size_t)head * 128 + col) * 128 + lane * 4;
    float4 st[2];
    if (!a.early)
        pdl_wait();
    if (head < 32)
        st[0] = stream4f(S), st[1] = stream4f(S + 128);
    STAMP(a, 1);
    if (a.early)
        pdl_wait();
    STAMP(a, 2);
    if (head >= 32)
        return; /* the SMs left over */
    const float *m = a.m + head * 128 + col;
    float4 q = stream4f(a.m + head / 2 * 128 + lane * 4),
           k = stream4f(a.m + 2048 + head / 2 * 128 + lane * 4);
    float2 v = *(const float2 *)(m + 4096), z = *(const float2 *)(m + 8192);
    float ga = a.m[12288 + head], gb = a.m[12320 + head];
    q = make_float4(silu(q.x), silu(q.y), silu(q.z), silu(q.w));
    k = make_float4(silu(k.x), silu(k.y), silu(k.z), silu(k.w));
    auto dot = [](float4 x, float4 y) { return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w; };
    float qq = lanes_sum<32>(dot(q, q)), kk = lanes_sum<32>(dot(k, k)),
          qk = lanes_sum<32>(dot(q, k));
    float qi = rsqrtf(qq + 1e-6f) * 0.08838834764831845f, ki = rsqrtf(kk + 1e-6f);
    float e = __expf(-__logf(1 + __expf(fminf(ga, 20.0f)))), beta = __fdividef(1, 1 + __expf(-gb));
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float sk = lanes_sum<32>(dot(st[j], k)) * ki, sq = lanes_sum<32>(dot(st[j], q)) * qi;
        float d = beta * (silu(j ? v.y : v.x) - e * sk), dk = d * ki;
        float o = (e * sq + d * qk * qi * ki) * silu(j ? z.y : z.x);
        st[j].x = e * st[j].x + dk * k.x, st[j].y = e * st[j].y + dk * k.y;
        st[j].z = e * st[j].z + dk * k.z, st[j].w = e * st[j].w + dk * k.w;
        *(float4 *)(S + j * 128) = st[j];
        if (lane == 0)
            a.o[head * 128 + col + j] = o;
    }
    STAMP(a, 5);
}

__global__ static void embed(const float *table, float *x) {
    pdl_launch_next();
    pdl_wait();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < DIM)
        x[i] = table[i];
}

__global__ static void fill_units(uint32_t *p, size_t words, uint32_t seed) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < words; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t r = hash32((uint32_t)i * 2654435761u + seed), o = i % (UNIT / 4);
        if (o >= 512)
            r &= 0x3f3f3f3fu;
        if (o >= 576) {
            __half2 h = __floats2half2_rn(1e-4f * (1 + (r & 63) / 64.0f),
                                          7.5e-4f * (1 + (r >> 8 & 63) / 64.0f));
            r = *reinterpret_cast<uint32_t *>(&h);
        }
        p[i] = r;
    }
}

/* ---- host ---- */

struct model {
    uint8_t *w[LAYERS][5], *head;
    float *norm, *table, *x, *m, *o, *h, *logits, *state;
    uint32_t *trace;
};

struct mode {
    const char *name;
    bool pdl;
    int early;
    bool pad; /* shared memory asked for so that two blocks of `up` do not fit an SM */
};

using project_in = shape<IN, DIM, MIXED, 16, 1, 12, 132, 7, 80>;
using project_out = shape<OUT, INNER, DIM, 32, 4, 20, 132, 4, 40>;
using project_up = shape<UP, DIM, 2 * FFN, 16, 1, 18, 132, 3, 56>;
using project_down = shape<DOWN, FFN, DIM, 32, 3, 15, 132, 4, 56>;
using project_head = shape<HEAD, DIM, VOCAB, 16, 1, 12, 2587, 7, 80>;

static size_t kind_bytes(int k) {
    switch (k) {
    case IN:
        return project_in::BYTES;
    case OUT:
        return project_out::BYTES;
    case UP:
        return project_up::BYTES;
    case DOWN:
        return project_down::BYTES;
    case HEAD:
        return project_head::BYTES;
    case MIX:
        return 2 * 32 * 128 * 128 * 4;
    }
    return 0;
}

template <class... F, class... A>
static void launch(cudaStream_t st, bool pdl, void (*fn)(F...), int grid, int block, size_t smem,
                   A... args) {
    cudaLaunchAttribute at = {};
    at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(grid), c.blockDim = dim3(block), c.dynamicSmemBytes = smem;
    c.stream = st, c.attrs = &at, c.numAttrs = pdl;
    CU(cudaFuncSetAttribute(fn, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    if (smem)
        CU(cudaFuncSetAttribute(fn, cudaFuncAttributeMaxDynamicSharedMemorySize, 160 << 10));
    CU(cudaLaunchKernelEx(&c, fn, F(args)...));
}

static const float *input(const struct model *m, int k) {
    return k == OUT ? m->o : k == DOWN ? m->h : m->x;
}
static float *output(const struct model *m, int k) {
    return k == IN ? m->m : k == UP ? m->h : k == HEAD ? m->logits : m->x;
}

template <class S>
static void launch_project(cudaStream_t st, const struct model *m, const struct mode *mo, int layer,
                           int at) {
    struct stage a = {};
    a.w = S::kind == HEAD ? m->head : m->w[layer][S::kind];
    a.x = input(m, S::kind), a.y = output(m, S::kind), a.norm = m->norm + layer * DIM;
    a.early = mo->early;
    a.trace = m->trace + (size_t)at * 264 * 8;
    size_t pad = !mo->pad || S::kind == HEAD ? 0 : (S::kind == UP ? 116 << 10 : 104 << 10);
    if (pad)
        pad -= sizeof(struct smem<S>);
    launch(st, mo->pdl, project<S>, S::BLOCKS, S::THREADS, pad, a);
}

static void launch_kind(cudaStream_t st, const struct model *m, const struct mode *mo, int kind,
                        int layer, int at) {
    switch (kind) {
    case IN:
        launch_project<project_in>(st, m, mo, layer, at);
        break;
    case OUT:
        launch_project<project_out>(st, m, mo, layer, at);
        break;
    case UP:
        launch_project<project_up>(st, m, mo, layer, at);
        break;
    case DOWN:
        launch_project<project_down>(st, m, mo, layer, at);
        break;
    case HEAD:
        launch_project<project_head>(st, m, mo, 0, at);
        break;
    case MIX: {
        struct delta d = {m->m, m->state + (size_t)layer * 32 * 128 * 128, m->o, mo->early,
                          m->trace + (size_t)at * 264 * 8};
        launch(st, mo->pdl, mix, SM_COUNT, 512, mo->pad ? 104 << 10 : 0, d);
        break;
    }
    }
}

/* kind < 0: the whole step; else `LAYERS` stages of that kind. */
static cudaGraphExec_t record(cudaStream_t st, const struct model *m, const struct mode *mo,
                              int kind) {
    cudaGraph_t g;
    cudaGraphExec_t e;
    int at = 0;
    CU(cudaStreamBeginCapture(st, cudaStreamCaptureModeGlobal));
    if (kind < 0)
        launch(st, mo->pdl, embed, DIM / 128, 128, 0, (const float *)m->table, m->x);
    for (int l = 0; l < LAYERS; l++)
        for (int k = IN; k <= DOWN; k++)
            if (kind < 0 || kind == k)
                launch_kind(st, m, mo, k, l, at++);
    if (kind < 0 || kind == HEAD)
        launch_kind(st, m, mo, HEAD, 0, at++);
    CU(cudaStreamEndCapture(st, &g));
    CU(cudaGraphInstantiate(&e, g, 0));
    CU(cudaGraphDestroy(g));
    CU(cudaGraphUpload(e, st));
    return e;
}

/* ---- the reference: the units decoded on the CPU, activations quantised the same way ---- */

template <class S> static bool check(cudaStream_t st, const struct model *m) {
    struct mode mo = {"", false, 1, false};
    std::vector<float> x(S::k), norm(S::k, 1.0f), res(S::rows, 0.0f);
    for (int i = 0; i < S::k; i++)
        x[i] = hash_unit(i + 77 * S::kind) * (1 + i % 7);
    if (S::NORM)
        norm = host_copy(m->norm + DIM, S::k);
    if (S::KS > 1) {
        for (int i = 0; i < S::rows; i++)
            res[i] = hash_unit(i + 5);
        CU(cudaMemcpy(output(m, S::kind), res.data(), S::rows * 4, cudaMemcpyHostToDevice));
    }
    std::vector<__half> half(S::k);
    for (int i = 0; i < S::k && S::kind == DOWN; i++)
        half[i] = __float2half(x[i]), x[i] = __half2float(half[i]);
    CU(cudaMemcpy((void *)input(m, S::kind), S::kind == DOWN ? (void *)half.data() : x.data(),
                  S::k * (S::kind == DOWN ? 2 : 4), cudaMemcpyHostToDevice));
    int rows = S::kind == HEAD ? 8 * 12 * 20 : S::rows; /* the head: its first rows */
    std::vector<uint8_t> w = host_copy(S::kind == HEAD ? m->head : m->w[1][S::kind],
                                       (size_t)rows / S::UNIT_ROWS * S::KS * S::J * UNIT);
    launch_project<S>(st, m, &mo, 1 - (S::kind == HEAD), 0);
    if (S::kind == HEAD && S::NORM)
        norm = host_copy(m->norm, S::k);
    CU(cudaStreamSynchronize(st));
    int outs = S::kind == UP ? rows / 2 : rows;
    std::vector<float> got = host_copy(output(m, S::kind), outs), want(rows), exact(rows);
    std::vector<float> as(S::k / 32), y(S::k);
    std::vector<__half> gh = host_copy((const __half *)output(m, S::kind), outs);
    for (int i = 0; i < outs && S::kind == UP; i++)
        got[i] = __half2float(gh[i]);
    std::vector<int> q(S::k);
    double ss = 0;
    for (float v : x)
        ss += (double)v * v;
    float inv = S::NORM ? (float)(1 / sqrt(ss / S::k + 1e-6)) : 1;
    for (int c = 0; c < S::k / 32; c++) {
        float mx = 0;
        for (int i = c * 32; i < c * 32 + 32; i++)
            y[i] = x[i] * norm[i], mx = fmaxf(mx, fabsf(y[i]));
        as[c] = mx / 127;
        for (int i = c * 32; i < c * 32 + 32; i++)
            q[i] = (int)rintf(y[i] * (127 / mx));
    }
    for (int row = 0; row < rows; row++) {
        int half = S::kind == UP ? row >= S::rows / 2 : S::LANES == 16 ? row / 4 % 2 : 0;
        int run = S::kind == UP ? row % (S::rows / 2) / 4 : row / S::UNIT_ROWS, r = row % 4;
        double sum = 0, full = 0;
        for (int c = 0; c < S::k / 32; c++) {
            const uint8_t *u = w.data() + ((size_t)run * S::KS * S::J + c / S::LANES) * UNIT;
            int lane = c % S::LANES + half * 16;
            const uint8_t *nib = u + r * 512 + lane * 16, *sc = u + 2048 + lane * 8;
            const __half *d = (const __half *)(u + 2304 + lane / 8 * 16 + r * 4);
            float dd = __half2float(d[0]) * sc[r], dm = __half2float(d[1]) * sc[4 + r];
            for (int i = 0; i < 32; i++) {
                int n = i < 16 ? nib[i] & 15 : nib[i - 16] >> 4;
                double wt = (double)dd * n - dm;
                sum += wt * q[c * 32 + i] * as[c], full += wt * y[c * 32 + i];
            }
        }
        want[row] = (float)(sum * inv), exact[row] = (float)(full * inv);
    }
    double e2 = 0, n2 = 0, f2 = 0, worst = 0;
    for (int i = 0; i < outs; i++) {
        double a = want[i], f = exact[i];
        if (S::kind == UP) {
            a = a / (1 + exp(-a)) * want[i + outs], f = f / (1 + exp(-f)) * exact[i + outs];
        } else
            a += res[i], f += res[i];
        e2 += (got[i] - a) * (got[i] - a), n2 += a * a, f2 += (f - a) * (f - a);
        worst = fmax(worst, fabs(got[i] - a));
        if (!(fabs(got[i]) < 1e30))
            worst = 1e30;
    }
    double rms = sqrt(n2 / outs);
    bool ok = worst < (S::kind == UP ? 1e-2 : 2e-3) * rms; /* UP writes halves */
    printf(
        "%s %-5s D %d, %d blocks x %d: rms %.3g, worst %.1e of it, rms error %.1e; against float "
        "activations %.1e\n",
        ok ? "ok  " : "FAIL", KIND_NAMES[S::kind], S::D, S::BLOCKS, S::THREADS, rms, worst / rms,
        sqrt(e2 / n2), sqrt(f2 / n2));
    return ok;
}

static bool check_mix(cudaStream_t st, const struct model *m) {
    const int N = 32 * 128 * 128;
    std::vector<float> s(N), in(MIXED);
    for (int i = 0; i < N; i++)
        s[i] = hash_unit(i + 9);
    for (int i = 0; i < MIXED; i++)
        in[i] = 2 * hash_unit(i + 3);
    CU(cudaMemcpy(m->state, s.data(), N * 4, cudaMemcpyHostToDevice));
    CU(cudaMemcpy(m->m, in.data(), MIXED * 4, cudaMemcpyHostToDevice));
    struct mode mo = {"", false, 1, false};
    launch_kind(st, m, &mo, MIX, 0, 0);
    CU(cudaStreamSynchronize(st));
    std::vector<float> gs = host_copy(m->state, N), go = host_copy(m->o, INNER);
    double worst = 0;
    auto si = [](double x) { return x / (1 + exp(-x)); };
    for (int h = 0; h < 32; h++) {
        double q[128], k[128], qq = 1e-6, kk = 1e-6, qk = 0;
        for (int i = 0; i < 128; i++) {
            q[i] = si(in[h / 2 * 128 + i]), k[i] = si(in[2048 + h / 2 * 128 + i]);
            qq += q[i] * q[i], kk += k[i] * k[i];
        }
        for (int i = 0; i < 128; i++)
            q[i] /= sqrt(qq) * sqrt(128.0), k[i] /= sqrt(kk), qk += q[i] * k[i];
        double e = 1 / (1 + exp(in[12288 + h])), beta = 1 / (1 + exp(-in[12320 + h]));
        for (int c = 0; c < 128; c++) {
            const float *S = &s[(h * 128 + c) * 128];
            double sk = 0, sq = 0;
            for (int i = 0; i < 128; i++)
                sk += S[i] * k[i], sq += S[i] * q[i];
            double d = beta * (si(in[4096 + h * 128 + c]) - e * sk);
            double o = (e * sq + d * qk) * si(in[8192 + h * 128 + c]);
            worst = fmax(worst, fabs(o - go[h * 128 + c]));
            for (int i = 0; i < 128; i++)
                worst = fmax(worst, fabs(e * S[i] + d * k[i] - gs[(h * 128 + c) * 128 + i]));
        }
    }
    printf("%s mix: worst %.1e\n", worst < 1e-4 ? "ok  " : "FAIL", worst);
    return worst < 1e-4;
}

/* ---- measuring ---- */

static double step_bytes(void) {
    double b = kind_bytes(HEAD);
    for (int k = IN; k <= DOWN; k++)
        b += (double)LAYERS * kind_bytes(k);
    return b;
}

#ifndef TRACE
static std::vector<float> reference_logits;

static void measure(cudaStream_t st, const struct model *m, const struct mode *mo, double bw,
                    bool kinds) {
    cudaGraphExec_t e = record(st, m, mo, -1);
    CU(cudaMemset(m->state, 0, (size_t)LAYERS * 32 * 128 * 128 * 4));
    CU(cudaDeviceSynchronize());
    for (int i = 0; i < 3; i++)
        CU(cudaGraphLaunch(e, st));
    CU(cudaStreamSynchronize(st));
    std::vector<float> l = host_copy(m->logits, VOCAB);
    if (reference_logits.empty())
        reference_logits = l;
    bool same = !memcmp(l.data(), reference_logits.data(), VOCAB * 4) && fabsf(l[0]) < 1e30f;
    struct timing t = time_launches(st, 7, 20, [&] { CU(cudaGraphLaunch(e, st)); });
    int stages = 2 + 5 * LAYERS;
    double ideal = step_bytes() / bw;
    printf("%-28s %7.1f us (spread %.1f) %5.0f steps/s, %4.1f %%, %.2f us a stage over bytes%s\n",
           mo->name, t.us, t.spread_us, 1e6 / t.us, 100 * ideal / t.us, (t.us - ideal) / stages,
           same ? "" : "  WRONG BITS");
    CU(cudaGraphExecDestroy(e));
    if (!kinds)
        return;
    printf("    alone:");
    for (int k = IN; k <= HEAD; k++) {
        e = record(st, m, mo, k);
        CU(cudaMemset(m->x, 0, DIM * 4));
        t = time_launches(st, 5, 20, [&] { CU(cudaGraphLaunch(e, st)); });
        double us = t.us / (k == HEAD ? 1 : LAYERS), id = kind_bytes(k) / bw;
        printf("  %s %.2f us (+%.2f, %.0f %%)", KIND_NAMES[k], us, us - id, 100 * id / us);
        CU(cudaGraphExecDestroy(e));
    }
    printf("\n");
}
#else
/* Medians over blocks and layers of the cycles between stamps; and how the blocks lay. */
static void trace(cudaStream_t st, const struct model *m, const struct mode *mo) {
    static const char *const PART[] = {"issue", "wait", "prologue", "eat", "finish"};
    size_t n = (size_t)(5 * LAYERS + 1) * 264 * 8;
    cudaGraphExec_t e = record(st, m, mo, -1);
    for (int i = 0; i < 5; i++)
        CU(cudaGraphLaunch(e, st));
    CU(cudaStreamSynchronize(st));
    std::vector<uint32_t> t = host_copy(m->trace, n);
    CU(cudaGraphExecDestroy(e));
    printf("%s: cycles, median over blocks and layers\n", mo->name);
    for (int k = IN; k <= DOWN; k++) {
        std::vector<int> part[5], gap, period;
        int doubled = 0, blocks = 0;
        for (int l = 1; l < LAYERS; l++) {
            const uint32_t *s = &t[(size_t)(l * 5 + k) * 264 * 8], *p = s - 264 * 8;
            int beside[SM_COUNT] = {}, end[SM_COUNT] = {}, go[SM_COUNT] = {};
            for (int b = 0; b < SM_COUNT; b++) {
                if (s[b * 8 + 7] < SM_COUNT)
                    beside[s[b * 8 + 7]]++;
                if (p[b * 8 + 7] < SM_COUNT)
                    end[p[b * 8 + 7]] = p[b * 8 + 5], go[p[b * 8 + 7]] = p[b * 8 + 2];
            }
            for (int b = 0; b < SM_COUNT; b++) {
                const uint32_t *c = s + b * 8;
                if (k == MIX && b >= 128)
                    continue;
                blocks++, doubled += beside[c[7]] > 1;
                for (int i = 0; i < 5; i++)
                    if (k != MIX || i < 2)
                        part[i].push_back(c[i + 1] - c[i]);
                if (k == MIX)
                    part[3].push_back(c[5] - c[2]);
                if (end[c[7]])
                    gap.push_back(c[2] - end[c[7]]), period.push_back(c[2] - go[c[7]]);
            }
        }
        auto med = [](std::vector<int> &v) {
            if (v.empty())
                return 0;
            std::sort(v.begin(), v.end());
            return v[v.size() / 2];
        };
        printf("  %-5s", KIND_NAMES[k]);
        for (int i = 0; i < 5; i++)
            printf(" %s %d", PART[i], med(part[i]));
        printf(
            "  | own end of stage before to release %d, release to release %d, doubled %.0f %%\n",
            med(gap), med(period), 100.0 * doubled / blocks);
    }
}
#endif

int main(void) {
    struct model m = {};
    cudaStream_t st;
    CU(cudaStreamCreate(&st));
    size_t bytes = kind_bytes(HEAD);
    for (int k : {IN, OUT, UP, DOWN})
        bytes += LAYERS * kind_bytes(k);
    uint8_t *w = device_alloc<uint8_t>(bytes);
    fill_units<<<SM_COUNT * 8, 256>>>((uint32_t *)w, bytes / 4, 1);
    for (int l = 0; l < LAYERS; l++)
        for (int k : {IN, OUT, UP, DOWN})
            m.w[l][k] = w, w += kind_bytes(k);
    m.head = w;
    std::vector<float> norm(LAYERS * DIM), table(DIM);
    for (size_t i = 0; i < norm.size(); i++)
        norm[i] = 1 + 0.5f * hash_unit(i + 11);
    for (int i = 0; i < DIM; i++)
        table[i] = hash_unit(i + 21);
    m.norm = device_copy(norm), m.table = device_copy(table);
    m.x = device_alloc<float>(DIM), m.m = device_alloc<float>(MIXED),
    m.o = device_alloc<float>(INNER);
    m.h = device_alloc<float>(FFN), m.logits = device_alloc<float>(VOCAB);
    m.state = device_alloc<float>((size_t)LAYERS * 32 * 128 * 128);
    m.trace = device_alloc<uint32_t>((size_t)(5 * LAYERS + 2) * 264 * 8);
    CU(cudaDeviceSynchronize());
    bool ok = check<project_in>(st, &m) & check<project_out>(st, &m) & check<project_up>(st, &m) &
              check<project_down>(st, &m) & check<project_head>(st, &m) & check_mix(st, &m);
    if (!ok)
        printf("CHECKS FAILED\n");
    double bw = bandwidth_calibrate(m.w[0][0], bytes / 65536 * 65536);
    printf("read bandwidth %.0f GB/s; a step is %.0f MB, %.1f us\n", bw / 1e3, step_bytes() / 1e6,
           step_bytes() / bw);
    static const struct mode MODES[] = {
        {"plain edges", false, 1, true},
        {"PDL, loads after the wait", true, 0, true},
        {"PDL, loads before the wait", true, 1, true},
        {"the same, not padded", true, 1, false},
    };
#ifdef TRACE
    trace(st, &m, &MODES[2]);
#else
    for (const struct mode &mo : MODES)
        measure(st, &m, &mo, bw, mo.pad);
#endif
    return !ok;
}
