/* mix.cuh - the stages between the two projections: DELTA, and a plain ATTEND for short contexts;
 * EMBED and PICK at the ends of a step. Written as bodies for a block of THREADS threads, with a
 * kernel around each. */
#pragma once
#include "project.cuh"

/* ---- DELTA: one token of the gated delta rule ----
 *
 *   y = silu(conv4(qkv)), q and k L2-normed, q / sqrt(128);  e = exp(a_log softplus(a + dt)),
 *   beta = sigmoid(b);  per column j of a head:  r = e k.S_j,  d = beta (v_j - r),
 *   o_j = e q.S_j + d (q.k),  S_j <- e S_j + d k          (S_j: 128 values, contiguous)
 *
 * Item = (row, value head, tile of 8 x COLS columns); the first eight warps work, a warp has COLS
 * columns, a lane four values of each. S, the conv ring and the constants are loaded before the
 * wait: they were last written a step ago. Conv channels of q and k are computed by every block
 * that needs them; the first to own them (head < hk, tile 0) writes the ring. Bytes: S read and
 * written once, 2 x 64 KB a head; the rest from L2. */
struct delta {
    int32_t rows, hk, hv, c; /* c = conv channels = 2 hk 128 + hv 128 */
    int32_t early, cols;     /* cols: columns a warp, 2 or 4 */
    const float *m;          /* (rows, ldm): qkv, then z, then a, then b */
    int32_t ldm, off_a, off_b, ldo;
    float *ring;             /* (rows, 4, c): column p % 4 holds position p */
    const float *conv;       /* (4, c) */
    const float *a_log, *dt; /* (hv): a_log holds -exp(A_log) */
    float *s;                /* (rows, hv, 128, 128) */
    float *o;                /* (rows, ldo) */
    const int32_t *pos;      /* (rows) */
};

struct delta_smem {
    float qk[2][128], v[32], red[8];
};

struct conv_taps {
    float w[4], x[3];
};

/* What is known before the stage before has ended. */
template <int COLS> struct delta_early {
    float4 st[COLS];
    struct conv_taps qk, v;
    float a_log, dt;
    int pos, tile, head, row;
};

template <int COLS> __device__ static inline int delta_items(const struct delta &d) {
    return d.rows * d.hv * (16 / COLS);
}

template <int COLS>
__device__ static inline float *delta_state(const struct delta &d,
                                            const struct delta_early<COLS> &e) {
    int col = (e.tile * 8 + threadIdx.x / 32) * COLS;
    return d.s + (((size_t)e.row * d.hv + e.head) * 128 + col) * 128 + threadIdx.x % 32 * 4;
}

/* This thread's conv channel of q (threads 0..127) or k, and of v (the first 8 x COLS). */
template <int COLS>
__device__ static inline int qk_channel(const struct delta &d, const struct delta_early<COLS> &e) {
    return ((threadIdx.x >> 7) * d.hk + e.head % d.hk) * 128 + threadIdx.x % 128;
}

template <int COLS>
__device__ static inline int v_channel(const struct delta &d, const struct delta_early<COLS> &e) {
    return (2 * d.hk + e.head) * 128 + e.tile * 8 * COLS + threadIdx.x;
}

__device__ static inline struct conv_taps taps_load(const struct delta &d, int row, int pos,
                                                    int ch) {
    struct conv_taps t;
    const float *ring = d.ring + (size_t)row * 4 * d.c + ch;
#pragma unroll
    for (int j = 0; j < 4; j++)
        t.w[j] = d.conv[j * d.c + ch];
#pragma unroll
    for (int j = 0; j < 3; j++)
        t.x[j] = __ldcg(ring + (size_t)((pos + 1 + j) & 3) * d.c);
    return t;
}

__device__ static inline float conv_silu(const struct conv_taps &t, float m) {
    float y = t.w[0] * t.x[0] + t.w[1] * t.x[1] + t.w[2] * t.x[2] + t.w[3] * m;
    return y * sigmoid(y);
}

template <int COLS>
__device__ static inline void delta_load(struct delta_early<COLS> &e, const struct delta &d,
                                         int item) {
    constexpr int TILES = 16 / COLS;
    e.tile = item % TILES, e.head = item / TILES % d.hv, e.row = item / TILES / d.hv;
    if (threadIdx.x >= 256)
        return;
    e.pos = __ldcg(d.pos + e.row);
    const float *S = delta_state<COLS>(d, e);
#pragma unroll
    for (int j = 0; j < COLS; j++)
        e.st[j] = ld4(S + j * 128);
    e.qk = taps_load(d, e.row, e.pos, qk_channel<COLS>(d, e));
    if (threadIdx.x < 8 * COLS)
        e.v = taps_load(d, e.row, e.pos, v_channel<COLS>(d, e));
    e.a_log = d.a_log[e.head], e.dt = d.dt[e.head];
}

/* Convolution, SiLU, L2 norm: q, k and the tile's v into shared memory. */
template <int COLS>
__device__ static inline void delta_conv(const struct delta &d, struct delta_smem *s,
                                         const struct delta_early<COLS> &e) {
    int tid = threadIdx.x, warp = tid / 32;
    const float *m = d.m + (size_t)e.row * d.ldm;
    float *ring = d.ring + ((size_t)e.row * 4 + (e.pos & 3)) * d.c;
    float y = 0;
    if (tid < 256) {
        int ch = qk_channel<COLS>(d, e);
        float x = __ldcg(m + ch);
        y = conv_silu(e.qk, x);
        float ss = warp_sum(y * y);
        if (tid % 32 == 0)
            s->red[warp] = ss;
        if (e.head < d.hk && e.tile == 0)
            ring[ch] = x;
    }
    if (tid < 8 * COLS) {
        int ch = v_channel<COLS>(d, e);
        float x = __ldcg(m + ch);
        s->v[tid] = conv_silu(e.v, x);
        ring[ch] = x;
    }
    block_sync();
    if (tid < 256) {
        const float *r = s->red + (warp & 4);
        float inv = rsqrtf(r[0] + r[1] + r[2] + r[3] + 1e-6f);
        s->qk[tid / 128][tid % 128] = y * inv * (tid < 128 ? 0.08838834764831845f : 1.0f);
    }
    block_sync();
}

__device__ static inline float dot4(float4 a, float4 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

template <int COLS>
__device__ static inline void delta_body(const struct delta &d, struct delta_smem *s,
                                         const struct delta_early<COLS> &e) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *m = d.m + (size_t)e.row * d.ldm;
    float x = __ldcg(m + d.off_a + e.head) + e.dt, beta = sigmoid(__ldcg(m + d.off_b + e.head));
    delta_conv<COLS>(d, s, e);
    if (warp >= 8)
        return;
    float4 q = *(const float4 *)&s->qk[0][lane * 4], k = *(const float4 *)&s->qk[1][lane * 4];
    float kq = warp_sum(dot4(q, k));
    float g = __expf(e.a_log * (x > 20 ? x : log1pf(__expf(x))));
    float sk[COLS], sq[COLS];
#pragma unroll
    for (int j = 0; j < COLS; j++)
        sk[j] = warp_sum(dot4(e.st[j], k)), sq[j] = warp_sum(dot4(e.st[j], q));
    float *S = delta_state<COLS>(d, e);
#pragma unroll
    for (int j = 0; j < COLS; j++) {
        float4 v = e.st[j];
        float dl = beta * (s->v[warp * COLS + j] - g * sk[j]);
        int col = (e.tile * 8 + warp) * COLS + j;
        if (lane == 0)
            d.o[(size_t)e.row * d.ldo + e.head * 128 + col] = g * sq[j] + dl * kq;
        v = make_float4(g * v.x + dl * k.x, g * v.y + dl * k.y, g * v.z + dl * k.z,
                        g * v.w + dl * k.w);
        *(float4 *)(S + j * 128) = v;
    }
}

template <int COLS>
__global__ static void __launch_bounds__(THREADS, 2)
    delta_step(const __grid_constant__ struct delta d) {
    __shared__ struct delta_smem s;
    struct delta_early<COLS> e;
    pdl_launch_next();
    if (!d.early)
        pdl_wait();
    delta_load<COLS>(e, d, blockIdx.x);
    if (d.early)
        pdl_wait();
    delta_body<COLS>(d, &s, e);
}

/* Four columns a warp, or two where that spreads the items better over the SMs. */
static int delta_columns(int rows, int hv) {
    int four = (rows * hv * 4 + SM_COUNT - 1) / SM_COUNT,
        two = (rows * hv * 8 + SM_COUNT - 1) / SM_COUNT;
    return 2 * four <= two ? 4 : 2;
}

static void delta_launch(cudaStream_t st, bool pdl, const struct delta *d) {
    if (d->cols == 4)
        launch(st, pdl, delta_step<4>, d->rows * d->hv * 4, THREADS, 0, *d);
    else
        launch(st, pdl, delta_step<2>, d->rows * d->hv * 8, THREADS, 0, *d);
}

/* ---- ATTEND, a stand-in: short contexts, no norm, no RoPE; right bytes, right shape ----
 * Item = (row, query head); cache positions are f16, the step's own k and v come from m. */
struct attend {
    int32_t rows, heads, kv_heads, dh, len; /* len cached positions, <= 256 */
    const float *m;                         /* (rows, ldm): q (head stride q_head), k, v */
    int32_t ldm, q_head, off_k, off_v, ldo;
    const __half *kc, *vc; /* (rows, kv_heads, len, dh) */
    float *o;
};

struct attend_smem {
    float q[256], sum[64], part[16 * 256];
};

/* Eight values of a cached key or value, or of this step's own. */
__device__ static inline struct float8 kv8(const __half *cached, const float *own) {
    if (own)
        return ld8(own);
    uint4 w = *(const uint4 *)cached;
    float2 a = halves(w.x), b = halves(w.y), c = halves(w.z), d = halves(w.w);
    return (struct float8){{a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y}};
}

/* Brings an item's keys and values into L2 while the stage before is still at work. */
__device__ static inline void attend_early(const struct attend &a, int item) {
    int h = item % a.heads, row = item / a.heads, kv = h / (a.heads / a.kv_heads);
    size_t at = ((size_t)row * a.kv_heads + kv) * a.len * a.dh;
    for (int i = threadIdx.x * 64; i < a.len * a.dh; i += THREADS * 64) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(a.kc + at + i));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(a.vc + at + i));
    }
}

/* dh / 8 lanes to a position, each warp its own positions; scores are small here, so no maximum is
 * taken; the parts of the positions are added up at the end. */
__device__ static inline void attend_body(const struct attend &a, struct attend_smem *s, int item) {
    int h = item % a.heads, row = item / a.heads, kv = h / (a.heads / a.kv_heads),
        tid = threadIdx.x;
    size_t base = ((size_t)row * a.kv_heads + kv) * a.len * a.dh;
    const float *m = a.m + (size_t)row * a.ldm + kv * a.dh;
    int lanes = a.dh / 8, group = tid / lanes, groups = THREADS / lanes, e = tid % lanes * 8;
    if (tid < a.dh)
        s->q[tid] = __ldcg(a.m + (size_t)row * a.ldm + h * a.q_head + tid) * rsqrtf((float)a.dh);
    block_sync();
    struct float8 acc = {};
    float sum = 0;
#pragma unroll 3
    for (int j = group; j - group <= a.len; j += groups) {
        bool own = j >= a.len;
        size_t at = base + (size_t)min(j, a.len - 1) * a.dh + e;
        struct float8 k = kv8(a.kc + at, own ? m + a.off_k + e : NULL);
        struct float8 v = kv8(a.vc + at, own ? m + a.off_v + e : NULL);
        float dot = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            dot = fmaf(k.v[i], s->q[e + i], dot);
        for (int d = 1; d < lanes; d <<= 1)
            dot += __shfl_xor_sync(~0u, dot, d);
        float w = j <= a.len ? __expf(dot) : 0;
        sum += w;
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc.v[i] = fmaf(w, v.v[i], acc.v[i]);
    }
    for (int i = 0; i < 8; i++)
        s->part[group * a.dh + e + i] = acc.v[i];
    if (e == 0)
        s->sum[group] = sum;
    block_sync();
    if (tid >= a.dh)
        return;
    float o = 0, z = 0;
#pragma unroll 4
    for (int i = 0; i < groups; i++)
        o += s->part[i * a.dh + tid], z += s->sum[i];
    a.o[(size_t)row * a.ldo + h * a.dh + tid] = o / z;
}

__global__ static void __launch_bounds__(THREADS, 2)
    attend_short(const __grid_constant__ struct attend a) {
    __shared__ struct attend_smem s;
    pdl_launch_next();
    attend_early(a, blockIdx.x);
    pdl_wait();
    attend_body(a, &s, blockIdx.x);
}

/* ---- EMBED (a stand-in reading f32) and PICK (argmax) ---- */

struct ends {
    int32_t rows, d, vocab;
    const float *table; /* (16, d) */
    const int32_t *token;
    float *x;            /* (rows, d) */
    const float *logits; /* (rows, vocab) */
    unsigned long long *best;
};

__device__ static inline void embed_body(const struct ends &a) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < a.rows)
        a.best[i] = 0;
    for (; i < a.rows * a.d; i += gridDim.x * THREADS)
        a.x[i] = a.table[(size_t)(a.token[i / a.d] & 15) * a.d + i % a.d];
}

/* The largest logit, the lowest index among equals: an integer maximum over (value, ~index). */
__device__ static inline void pick_body(const struct ends &a, unsigned long long *red) {
    for (int r = 0; r < a.rows; r++) {
        unsigned long long b = 0;
#pragma unroll 4
        for (int i = blockIdx.x * THREADS + threadIdx.x; i < a.vocab; i += gridDim.x * THREADS) {
            uint32_t u = __float_as_uint(__ldcg(a.logits + (size_t)r * a.vocab + i));
            u = u >> 31 ? ~u : u | 0x80000000u;
            unsigned long long key = (unsigned long long)u << 32 | (uint32_t)~i;
            b = key > b ? key : b;
        }
        for (int m = 16; m; m >>= 1) {
            unsigned long long o = __shfl_xor_sync(~0u, b, m);
            b = o > b ? o : b;
        }
        if (threadIdx.x % 32 == 0)
            red[threadIdx.x / 32] = b;
        block_sync();
        if (threadIdx.x == 0) {
            for (int w = 1; w < WARPS; w++)
                b = red[w] > b ? red[w] : b;
            atomicMax(a.best + r, b);
        }
        block_sync();
    }
}

__global__ static void embed(const struct ends a) {
    pdl_launch_next();
    pdl_wait();
    embed_body(a);
}

__global__ static void pick(const struct ends a) {
    __shared__ unsigned long long red[WARPS];
    pdl_launch_next();
    pdl_wait();
    pick_body(a, red);
}
