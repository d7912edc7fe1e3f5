/* project.cuh - PROJECT: y = W . f(x) for 1 to 8 rows, W repacked in the order of tiles.h.
 *
 *   y[n] = sum over sub-blocks s of 32:  as_s (d sc_s . sum_i q_i a_i  -  dmin mn_s . sum_i a_i)
 *
 * with f(x) quantised to int8 per 32 columns (scale as_s). BF16 weights meet bf16 activations.
 *
 * Who does what. One block an SM. A block owns a run of row tiles of each segment (a piece) and one
 * slice of K; the units of a piece are dealt out to the 15 warps in contiguous runs. Each
 * warp has a private ring in shared memory; one more warp feeds the rings by bulk copies, and
 * runs ahead of the dependency: weights arrive while the stage before is still at work.
 * Then the block norms and quantises its activations (the prologue) and every warp eats its
 * units (units.cuh). Row tiles that several warps share are added up in shared memory in warp
 * order. Sums depend on shapes only: a row's bits do not depend on how many rows share the call.
 *
 * Bytes per call: the weights once; per block the activations of its K slice (from L2). */
#pragma once
#include "ring.cuh"
#include "units.cuh"

enum { MAX_SEGMENTS = 2, WARPS = 15, THREADS = WARPS * 32, MAX_ROWS = 8, MAX_PARTS = 4 };
enum { BLOCK = THREADS + 32 }; /* the warps that eat, and one that feeds */

/* A barrier of the eating warps alone. */
__device__ static inline void block_sync(void) {
    asm volatile("bar.sync 1, %0;" ::"r"((int)THREADS) : "memory");
}

enum prologue { PRO_PLAIN, PRO_NORM, PRO_GATED_NORM, PRO_SIGMOID_GATE };
enum epilogue { EPI_STORE, EPI_PARTS, EPI_SWIGLU };

struct segment {
    const uint8_t *w;
    float *out; /* (rows, ldo) */
    int32_t type, n, ldo, tiles;
};

struct project {
    int32_t rows, k; /* activation rows; columns of W */
    int32_t splits;  /* K slices; block b has slice b % splits, group b / splits */
    int32_t slice;   /* columns of a slice, a multiple of the unit */
    int32_t pro, epi;
    const float *x;     /* (parts, rows, ldx): the input is the sum of the parts */
    int32_t ldx, parts; /* parts > 1 only with PRO_NORM */
    const float *gate;  /* (rows, ldg): z or the attention gate; head h at gate_head * h */
    int32_t ldg, gate_head, head, resid_parts;
    const float *norm;                /* (k), or (head) for PRO_GATED_NORM */
    const float *resid;               /* EPI_PARTS: (resid_parts, rows, ldo), added by slice 0 */
    int32_t n_segments, early;        /* early: fill the ring before the wait */
    struct segment seg[MAX_SEGMENTS]; /* EPI_PARTS writes out as (splits, rows, ldo) */
};

/* What one block has of a segment: row tiles tile0.., stored one after the other from src. */
struct piece {
    const uint8_t *src;
    uint32_t unit_bytes, last_bytes; /* of a unit; of a row tile's last unit */
    uint32_t tile0;
    uint16_t tiles, tile_units;
    uint32_t inv_tile, inv_units; /* ceil(2^20 / tile_units), ceil(2^27 / units): no divisions */
};

/* Row tile of unit u; the first warp that has units of unit u's tile or later ones. */
__device__ static inline int tile_of(const struct piece &p, int u) {
    return u * p.inv_tile >> 20;
}
__device__ static inline int warp_of(const struct piece &p, int u) {
    return ((u + 1) * WARPS - 1) * p.inv_units >> 27;
}

/* ---- shared memory ---- */

enum { BARS = 8 }; /* units a warp can have in flight */

struct block_smem {
    uint8_t *ring;  /* (WARPS, cap) */
    uint64_t *bars; /* (WARPS, BARS) */
    struct acts a;
    float *partial;                  /* (MAX_SEGMENTS, 2 WARPS, 16, RP) */
    float *red;                      /* (WARPS) */
    volatile uint32_t *tail, *eaten; /* (WARPS): bytes and units each warp is done with */
};

/* The widest K slice a block can hold the activations of. */
__host__ __device__ constexpr int MAX_SLICE(int rp, bool bf16) {
    return rp > 1 && bf16 ? 4608 : 9216;
}

/* All places are compile-time constants: addresses in the kernels cost no registers. */
template <int RP, bool BF16> struct smem_map {
    static_assert(WARPS <= 16, "room");
    static constexpr int ROWS = RP, SUB = MAX_SLICE(RP, BF16) / 32;
    static constexpr int STRIDE =
        SUB * 32 * (BF16 ? 2 : 1) + 32; /* 32 mod 128: no bank conflicts */
    static constexpr size_t BAR_AT = 0, TAIL = BAR_AT + 8 * 16 * BARS, EATEN = TAIL + 64,
                            RED = EATEN + 64, PARTIAL = RED + 64, /* room for 16 warps */
        SCALE = PARTIAL + 4 * MAX_SEGMENTS * 2 * WARPS * 16 * RP, SUM = SCALE + 4 * SUB * RP,
                            BIAS = SUM + 4 * SUB * RP, ACT = BIAS + 8 * SUB * RP,
                            RING = (ACT + (size_t)ROWS * STRIDE + 127) / 128 * 128;
    __host__ __device__ static constexpr uint32_t cap(size_t total) {
        return (total - RING) / WARPS / 128 * 128;
    }
};

template <int RP, bool BF16>
__device__ static inline struct block_smem block_smem_make(uint8_t *b) {
    using M = smem_map<RP, BF16>;
    struct block_smem s;
    s.ring = b + M::RING, s.bars = (uint64_t *)(b + M::BAR_AT);
    s.tail = (uint32_t *)(b + M::TAIL), s.eaten = (uint32_t *)(b + M::EATEN);
    s.red = (float *)(b + M::RED), s.partial = (float *)(b + M::PARTIAL);
    s.a.scale = (float *)(b + M::SCALE), s.a.sum = (float *)(b + M::SUM);
    s.a.bias16 = (int32_t *)(b + M::BIAS), s.a.q = b + M::ACT, s.a.stride = M::STRIDE;
    return s;
}

/* ---- the feed: lane w of the last warp keeps the ring of warp w full ----
 *
 * In flight per warp: at most `flight` units. More only makes queues in the memory system, and
 * every other load (activations, flags, state) waits in them: with all of a 200 KB ring in flight a
 * load took 3.7 us. The ring itself may be deep: what has arrived waits there for its stage. */

/* Each eating warp prepares its own end: one warp preparing all rings took 2 us. */
__device__ static inline void feed_init(const struct block_smem &s) {
    int w = threadIdx.x / 32;
    if (w >= WARPS || threadIdx.x % 32)
        return;
    s.tail[w] = s.eaten[w] = 0;
#pragma unroll
    for (int i = 0; i < BARS; i++)
        mbar_init(smem_addr(s.bars) + (w * BARS + i) * 8);
    mbar_init_fence();
}

struct feed {
    const uint8_t *src;
    int left, u, tile_units;
    uint32_t unit_bytes, last_bytes;
};

/* The share of warp w in a piece. */
__device__ static inline void feed_enter(struct feed &f, const struct piece &p, int w) {
    int units = p.tiles * p.tile_units, u0 = units * w / WARPS;
    f.left = units * (w + 1) / WARPS - u0;
    if (!f.left)
        return;
    int tile = tile_of(p, u0);
    f.u = u0 - tile * p.tile_units;
    f.tile_units = p.tile_units;
    f.unit_bytes = p.unit_bytes, f.last_bytes = p.last_bytes;
    f.src = p.src + (size_t)tile * ((p.tile_units - 1) * p.unit_bytes + p.last_bytes) +
            (size_t)f.u * p.unit_bytes;
}

/* Runs until all units of the `n` pieces are under way. pieces(i): the block's i-th. */
template <class P>
__device__ static inline void feed_run(const struct block_smem &s, uint32_t cap, P pieces, int n,
                                       uint32_t flight, uint64_t policy) {
    int w = threadIdx.x % 32, next = 0;
    if (w >= WARPS)
        return;
    uint32_t ring = smem_addr(s.ring) + w * cap, bars = smem_addr(s.bars) + w * BARS * 8;
    uint32_t head = 0, pos = 0, issued = 0;
    struct feed f = {};
    struct piece ahead = pieces(0);
    for (;;) {
        while (!f.left && next < n) {
            feed_enter(f, ahead, w);
            if (++next < n)
                ahead = pieces(next);
        }
        if (!__any_sync((1u << WARPS) - 1, f.left))
            return;
        uint32_t bytes = f.u + 1 == f.tile_units ? f.last_bytes : f.unit_bytes,
                 old = issued - flight;
        bool wrap = pos + bytes > cap;
        uint32_t waste = wrap ? cap - pos : 0;
        uint32_t used = head - s.tail[w]; /* an empty ring takes any unit: the waste is nobody's */
        bool go = f.left && (!used || used + waste + bytes <= cap) && issued - s.eaten[w] < BARS;
        if (go && issued >= flight)
            go = mbar_test(bars + old % BARS * 8, old / BARS & 1);
        if (go) {
            if (wrap)
                pos = 0;
            bulk_load(ring + pos, f.src, bytes, bars + issued % BARS * 8, policy);
            f.src += bytes, pos += bytes, head += waste + bytes, issued++, f.left--;
            if (++f.u == f.tile_units)
                f.u = 0;
        }
        if (!__any_sync((1u << WARPS) - 1, go))
            __nanosleep(20);
    }
}

/* An eating warp's end of its ring. */
struct reader {
    const uint8_t *ring;
    uint32_t bars, cap, pos, tail, eaten;
};

__device__ static inline struct reader reader_open(const struct block_smem &s, uint32_t cap) {
    int w = threadIdx.x / 32;
    struct reader r = {s.ring + w * cap, smem_addr(s.bars) + w * BARS * 8, cap, 0, 0, 0};
    return r;
}

/* Waits for the next unit. */
__device__ static inline const uint8_t *reader_next(struct reader &r, uint32_t bytes) {
    if (r.pos + bytes > r.cap)
        r.tail += r.cap - r.pos, r.pos = 0;
    mbar_wait(r.bars + r.eaten % BARS * 8, r.eaten / BARS & 1);
    return r.ring + r.pos;
}

__device__ static inline void reader_done(struct reader &r, const struct block_smem &s,
                                          uint32_t bytes) {
    r.pos += bytes, r.tail += bytes, r.eaten++;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        s.eaten[threadIdx.x / 32] = r.eaten;
        s.tail[threadIdx.x / 32] = r.tail;
    }
}

/* ---- where the time goes: cycle stamps of one thread, in builds with -DTRACE ---- */

enum { STAMPS = 9 }; /* the last one: cycles spent waiting for units */

__device__ static inline void stamp(long long *trace, int i) {
#ifdef TRACE
    if (trace)
        trace[i] = clock64();
#endif
}

/* ---- prologue: activations into shared memory ---- */

__device__ static inline float warp_sum(float v) {
#pragma unroll
    for (int m = 16; m; m >>= 1)
        v += __shfl_xor_sync(~0u, v, m);
    return v;
}

__device__ static inline float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

/* Activations are written by other SMs in the same launch: never from L1. */
__device__ static inline float4 ld4(const float *p) {
    return __ldcg((const float4 *)p);
}

struct float8 {
    float v[8];
};

__device__ static inline struct float8 ld8(const float *p) {
    float4 a = ld4(p), b = ld4(p + 4);
    return (struct float8){{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

/* Four floats that hold MAGIC + q to four bytes q. */
__device__ static inline uint32_t pack4(const float *f) {
    uint32_t lo = __byte_perm(__float_as_uint(f[0]), __float_as_uint(f[1]), 0x0040);
    uint32_t hi = __byte_perm(__float_as_uint(f[2]), __float_as_uint(f[3]), 0x0040);
    return __byte_perm(lo, hi, 0x5410);
}

/* Columns 8i..8i+7 of the slice; four neighbouring lanes hold one sub-block of 32. */
template <int RP>
__device__ static inline void put_int8(const struct acts &a, int row, int i, struct float8 x,
                                       bool valid) {
    float m = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
        m = fmaxf(m, fabsf(x.v[j]));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
    float id = m > 0 ? __frcp_rn(m) * 127.0f : 0.0f, d = m * (1.0f / 127.0f);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x.v[j] = fmaf(x.v[j], id, MAGIC); /* rounds to an integer */
    uint2 q = make_uint2(pack4(x.v), pack4(x.v + 4));
    int sum = __dp4a((int)q.x, 0x01010101, __dp4a((int)q.y, 0x01010101, 0));
    sum += __shfl_xor_sync(~0u, sum, 1);
    int sum32 = sum + __shfl_xor_sync(~0u, sum, 2);
    if (!valid)
        return;
    *(uint2 *)(a.q + row * a.stride + i * 8) = q;
    if ((i & 1) == 0)
        a.bias16[(i >> 1) * RP + row] = MAGIC_BITS - 32 * sum;
    if ((i & 3) == 0) {
        a.scale[(i >> 2) * RP + row] = d;
        a.sum[(i >> 2) * RP + row] = d * (float)sum32;
    }
}

__device__ static inline void put_bf16(const struct acts &a, int row, int i,
                                       const struct float8 &x) {
    __nv_bfloat162 b[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        b[j] = __floats2bfloat162_rn(x.v[2 * j], x.v[2 * j + 1]);
    *(uint4 *)(a.q + row * a.stride + i * 16) = *(const uint4 *)b;
}

template <int RP, bool BF16>
__device__ static inline void put(const struct acts &a, int row, int i, const struct float8 &x,
                                  bool valid) {
    if (!BF16)
        put_int8<RP>(a, row, i, x, valid);
    if (BF16 && valid)
        put_bf16(a, row, i, x);
}

/* Sum over the block, warps in order: the same bits in every thread. */
__device__ static inline float block_sum(float v, float *red) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0)
        red[threadIdx.x / 32] = v;
    block_sync();
    v = red[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++)
        v += red[w];
    return v;
}

enum { NORM_GROUPS = 2 }; /* groups of eight columns a thread: k up to 8192 */

/* Brings the norm's weights into L2 while the stage before is still at work. */
__device__ static inline void norm_early(const struct project &p) {
    int i = threadIdx.x * 32;
    if (p.pro == PRO_NORM && i < p.k)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p.norm + i));
}

/* The residual: the sum of its parts. */
__device__ static inline struct float8 norm_input(const struct project &p, int row, int i) {
    struct float8 x = ld8(p.x + (size_t)row * p.ldx + 8 * i);
#pragma unroll
    for (int q = 1; q < MAX_PARTS; q++) {
        if (q >= p.parts)
            break;
        struct float8 a = ld8(p.x + ((size_t)q * p.rows + row) * p.ldx + 8 * i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x.v[j] += a.v[j];
    }
    return x;
}

template <int RP, bool BF16>
__device__ static inline void pro_norm(const struct project &p, const struct block_smem &s) {
#pragma unroll 1
    for (int r = 0; r < p.rows; r++) {
        struct float8 x[NORM_GROUPS] = {}, w[NORM_GROUPS];
        float ss = 0;
#pragma unroll
        for (int g = 0; g < NORM_GROUPS; g++) {
            int i = threadIdx.x + g * THREADS;
            if (i * 8 < p.k)
                x[g] = norm_input(p, r, i), w[g] = ld8(p.norm + 8 * i);
        }
#pragma unroll
        for (int g = 0; g < NORM_GROUPS; g++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                ss = fmaf(x[g].v[j], x[g].v[j], ss);
        float inv = rsqrtf(__fdividef(block_sum(ss, s.red), (float)p.k) + 1e-6f);
#pragma unroll
        for (int g = 0; g < NORM_GROUPS; g++) {
            int i = threadIdx.x + g * THREADS;
            if ((i & ~31) * 8 >= p.k)
                break; /* whole warps: put shuffles */
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[g].v[j] *= inv * w[g].v[j];
            put<RP, BF16>(s.a, r, i, x[g], i * 8 < p.k);
        }
        if (p.rows > 1)
            block_sync(); /* red is used again */
    }
}

/* f(x) of columns c..c+7: gated norm (16 lanes hold one head of 128) or sigmoid gate. */
__device__ static inline struct float8 gated(const struct project &p, struct float8 x, int row,
                                             int c) {
    int h = p.head == 128 ? c >> 7 : c / p.head, e = c - h * p.head;
    struct float8 g = ld8(p.gate + (size_t)row * p.ldg + (size_t)h * p.gate_head + e);
    if (p.pro == PRO_GATED_NORM) {
        struct float8 w = ld8(p.norm + e);
        float ss = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            ss = fmaf(x.v[j], x.v[j], ss);
#pragma unroll
        for (int m = 1; m < 16; m <<= 1)
            ss += __shfl_xor_sync(~0u, ss, m);
        float inv = rsqrtf(ss * (1.0f / 128) + 1e-6f);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x.v[j] *= inv * w.v[j] * g.v[j];
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        x.v[j] *= sigmoid(g.v[j]);
    return x;
}

template <int RP, bool BF16>
__device__ static inline void pro_elementwise(const struct project &p, const struct block_smem &s,
                                              int slice_index) {
    int k0 = slice_index * p.slice, n = min(p.k - k0, p.slice) / 8;
#pragma unroll 1
    for (int r = 0; r < p.rows; r++)
#pragma unroll 2
        for (int i = threadIdx.x; (i & ~31) < n; i += THREADS) {
            struct float8 x = {};
            if (i < n)
                x = ld8(p.x + (size_t)r * p.ldx + k0 + 8 * i);
            if (p.pro != PRO_PLAIN)
                x = gated(p, x, r, min(k0 + 8 * i, p.k - 8));
            put<RP, BF16>(s.a, r, i, x, i < n);
        }
}

/* The last unit of a slice may reach past K: its missing sub-blocks must not hold NaN scales. */
template <int RP>
__device__ static inline void pad_scales(const struct project &p, const struct acts &a,
                                         int slice_index) {
    int cols = min(p.k - slice_index * p.slice, p.slice), sub = cols / 32;
    for (int i = sub * RP + threadIdx.x; i < (sub + 7) / 8 * 8 * RP; i += THREADS)
        a.scale[i] = 0;
}

template <int RP, bool BF16>
__device__ static inline void prologue(const struct project &p, const struct block_smem &s,
                                       int slice_index) {
    if (p.pro == PRO_NORM)
        pro_norm<RP, BF16>(p, s);
    else
        pro_elementwise<RP, BF16>(p, s, slice_index);
    if (!BF16)
        pad_scales<RP>(p, s.a, slice_index);
}

/* ---- epilogue ---- */

/* What slice 0 adds to rows n and n + 8. */
__device__ static inline float2 residual(const struct project &p, const struct segment &s, int n,
                                         int r) {
    float2 v = {0, 0};
    const float *at = p.resid + (size_t)r * s.ldo + n;
    size_t plane = (size_t)p.rows * s.ldo;
#pragma unroll 1
    for (int q = 0; q < p.resid_parts; q++, at += plane) {
        if (n < s.n)
            v.x += __ldcg(at);
        if (n + 8 < s.n)
            v.y += __ldcg(at + 8);
    }
    return v;
}

/* lo and hi: the sums of tile rows g and g + 8 for activation row r. */
__device__ static inline void emit(const struct project &p, const struct segment &s, int tile,
                                   int g, int r, float lo, float hi, int slice_index, float2 res) {
    if (p.epi == EPI_SWIGLU) {
        int n = tile * 8 + g;
        if (n < s.n)
            s.out[(size_t)r * s.ldo + n] = lo * sigmoid(lo) * hi;
        return;
    }
    int n = tile * 16 + g;
    float *at = s.out + ((size_t)slice_index * p.rows + r) * s.ldo + n;
    if (n < s.n)
        at[0] = lo + res.x;
    if (n + 8 < s.n)
        at[8] = hi + res.y;
}

/* A warp leaves a row tile: alone with it, it writes the result; otherwise it leaves its part. */
template <int RP, bool BF16>
__device__ static inline void flush(const struct project &p, const struct block_smem &s, int seg,
                                    int tile, bool whole, int slot, const struct lane_acc<RP> &acc,
                                    int slice_index) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float lo[2], hi[2];
    lane_result<RP, BF16>(acc, lo, hi);
#pragma unroll
    for (int j = 0; j < (RP == 1 ? 1 : 2); j++) {
        int r = 2 * t + j;
        if (r >= p.rows)
            continue;
        if (whole) {
            float2 res = {0, 0};
            if (p.epi == EPI_PARTS && slice_index == 0)
                res = residual(p, p.seg[seg], tile * 16 + g, r);
            emit(p, p.seg[seg], tile, g, r, lo[j], hi[j], slice_index, res);
        } else {
            float *dst = s.partial + ((seg * 2 * WARPS + slot) * 16 + g) * RP + r;
            dst[0] = lo[j];
            dst[8 * RP] = hi[j];
        }
    }
}

/* One output of a row tile that warps share: where its parts are and where it goes. Computed before
 * the dependency is met: the arithmetic is a long chain, the rest of the epilogue a short one. */
struct outlet {
    float *at; /* row g; row g + 8 is at[8] */
    int first; /* index of the first part; an outlet without output has ok = 0 */
    int slot;  /* first slot of the warp after it, then every second one */
    int more;  /* how many */
    int ok;    /* bit 0: row g exists; bit 1: row g + 8 exists */
    int resid; /* index into a plane of the residual */
};

/* Output o of segment seg: (activation row, row tile, g), g fastest. */
template <int RP>
__device__ static inline struct outlet outlet_make(const struct project &p, const struct piece &pc,
                                                   int seg, int slice_index, int o) {
    struct outlet t = {};
    int per_row = pc.tiles * 8, units = pc.tiles * pc.tile_units;
    if (o >= per_row * p.rows)
        return t;
    int r = RP == 1 ? 0 : o / per_row, i = o - r * per_row, g = i % 8, tile = i / 8;
    int a = tile * pc.tile_units, z = a + pc.tile_units, w = warp_of(pc, a), u0 = units * w / WARPS;
    if (units * (w + 1) / WARPS >= z)
        return t; /* one warp has it all, and wrote it */
    t.first = ((seg * 2 * WARPS + 2 * w + (u0 < a)) * 16 + g) * RP + r;
    t.slot = ((seg * 2 * WARPS + 2 * w + 2) * 16 + g) * RP + r;
    t.more = warp_of(pc, z - 1) - w;
    const struct segment &s = p.seg[seg];
    bool swiglu = p.epi == EPI_SWIGLU;
    int n = (pc.tile0 + tile) * (swiglu ? 8 : 16) + g;
    t.at = s.out + ((size_t)slice_index * p.rows + r) * s.ldo + n;
    t.ok = (n < s.n) | (n + 8 < s.n) << 1;
    t.resid = r * s.ldo + n;
    return t;
}

/* The residual of an outlet: fetched early, used late. */
__device__ static inline float2 outlet_residual(const struct project &p, const struct outlet &t,
                                                int slice_index) {
    float2 v = {0, 0};
    if (p.epi != EPI_PARTS || slice_index || !t.ok)
        return v;
    const float *at = p.resid + t.resid;
    size_t plane = (size_t)p.rows * p.seg[0].ldo;
#pragma unroll 1
    for (int q = 0; q < p.resid_parts; q++, at += plane) {
        v.x += __ldcg(at);
        if (t.ok & 2)
            v.y += __ldcg(at + 8);
    }
    return v;
}

/* Adds up the parts, warps in order, and writes. */
template <int RP>
__device__ static inline void outlet_finish(const struct project &p, const struct block_smem &s,
                                            const struct outlet &t, float2 res) {
    if (!t.ok)
        return;
    const float *part = s.partial + t.first;
    float lo = part[0], hi = part[8 * RP];
    part = s.partial + t.slot;
#pragma unroll 2
    for (int i = 0; i < t.more; i++, part += 2 * 16 * RP)
        lo += part[0], hi += part[8 * RP];
    if (p.epi == EPI_SWIGLU) {
        *t.at = lo * sigmoid(lo) * hi;
        return;
    }
    t.at[0] = lo + res.x;
    if (t.ok & 2)
        t.at[8] = hi + res.y;
}

/* Outputs beyond the first a thread has of each segment: many rows, or many row tiles. */
template <int RP, class O>
__device__ static inline void finish_rest(const struct project &p, const struct block_smem &s,
                                          O own, int slice_index) {
#pragma unroll 1
    for (int seg = 0; seg < p.n_segments; seg++) {
        const struct piece &pc = own(seg);
#pragma unroll 1
        for (int o = threadIdx.x + THREADS; o < pc.tiles * 8 * p.rows; o += THREADS) {
            struct outlet t = outlet_make<RP>(p, pc, seg, slice_index, o);
            outlet_finish<RP>(p, s, t, outlet_residual(p, t, slice_index));
        }
    }
}

/* ---- eating ---- */

template <int RP, int TYPE>
__device__ static inline void eat(struct lane_acc<RP> &acc, const uint8_t *u, const struct acts &a,
                                  const struct lane_view &l, int unit, int cols) {
    if constexpr (TYPE == WT_Q4_K)
        unit_q4_k(acc, u, a, l, unit);
    if constexpr (TYPE == WT_Q6_K)
        unit_q6_k(acc, u, a, l, unit);
    if constexpr (TYPE == WT_Q8_0)
        unit_q8_0(acc, u, a, l, unit, (cols + 31) / 32);
    if constexpr (TYPE == WT_BF16)
        unit_bf16<RP>(acc, u, l, unit, (cols + 15) / 16);
}

/* This warp's units of segment `seg`. */
template <int RP, int TYPE>
__device__ static inline void eat_segment(const struct project &p, const struct block_smem &s,
                                          struct reader &rd, const struct piece &pc, int seg,
                                          const struct lane_view &l, int slice_index,
                                          long long *trace) {
    constexpr int UNIT = TYPE == WT_BF16 ? 128 : 256;
    int warp = threadIdx.x / 32, units = pc.tiles * pc.tile_units;
    int i = units * warp / WARPS, end = units * (warp + 1) / WARPS;
    if (i == end) { /* fewer units than warps: this one's part is nothing */
        flush<RP, TYPE == WT_BF16>(p, s, seg, 0, false, 2 * warp, (struct lane_acc<RP>){},
                                   slice_index);
        return;
    }
    int tile = tile_of(pc, i), u = i - tile * pc.tile_units, first = tile, start = u;
    int cols = min(p.slice, p.k - slice_index * p.slice);
    struct lane_acc<RP> acc = {};
#pragma unroll 1
    for (; i < end; i++) {
        uint32_t bytes = u + 1 == pc.tile_units ? pc.last_bytes : pc.unit_bytes;
#ifdef TRACE
        long long before = clock64();
#endif
        const uint8_t *at = reader_next(rd, bytes);
#ifdef TRACE
        if (trace)
            trace[STAMPS - 1] += clock64() - before;
#endif
        eat<RP, TYPE>(acc, at, s.a, l, u, min(UNIT, cols - u * UNIT));
        reader_done(rd, s, bytes);
        if (++u == pc.tile_units || i + 1 == end) {
            flush<RP, TYPE == WT_BF16>(p, s, seg, pc.tile0 + tile, u == pc.tile_units && start == 0,
                                       2 * warp + (tile != first), acc, slice_index);
            acc = (struct lane_acc<RP>){};
            u = start = 0;
            tile++;
        }
    }
}

template <int RP>
__device__ static inline struct lane_view lane_view_make(const struct block_smem &s, int rows) {
    struct lane_view l;
    l.lane = threadIdx.x % 32, l.g = l.lane / 4, l.t = l.lane % 4;
    l.q = RP == 1 ? s.a.q + l.t * 8 : l.g < rows ? s.a.q + l.g * s.a.stride + l.t * 8 : NULL;
#pragma unroll
    for (int i = 0; i < 8; i++)
        l.mask[i] = l.g == i ? ~0u : 0;
    return l;
}

/* The whole stage after its dependency is met. own: this stage's pieces, by segment.
 * MASK: bit t for every weight type t it may meet. */
template <int RP, int MASK, class O>
__device__ static inline void project_body(const struct project &p, const struct block_smem &s,
                                           struct reader &rd, O own, const struct outlet *out,
                                           int slice_index, long long *trace) {
    constexpr bool BF16 = MASK == 1 << WT_BF16;
    float2 res = outlet_residual(p, out[0], slice_index);
    prologue<RP, BF16>(p, s, slice_index);
    stamp(trace, 2);
    block_sync();
    stamp(trace, 3);
    struct lane_view l = lane_view_make<RP>(s, p.rows);
#pragma unroll 1
    for (int seg = 0; seg < p.n_segments; seg++) {
        int type = p.seg[seg].type;
        const struct piece &pc = own(seg);
        if ((MASK & 1 << WT_Q4_K) && type == WT_Q4_K)
            eat_segment<RP, WT_Q4_K>(p, s, rd, pc, seg, l, slice_index, trace);
        if ((MASK & 1 << WT_Q6_K) && type == WT_Q6_K)
            eat_segment<RP, WT_Q6_K>(p, s, rd, pc, seg, l, slice_index, trace);
        if ((MASK & 1 << WT_Q8_0) && type == WT_Q8_0)
            eat_segment<RP, WT_Q8_0>(p, s, rd, pc, seg, l, slice_index, trace);
        if ((MASK & 1 << WT_BF16) && type == WT_BF16)
            eat_segment<RP, WT_BF16>(p, s, rd, pc, seg, l, slice_index, trace);
    }
    stamp(trace, 4);
    block_sync();
    stamp(trace, 5);
    outlet_finish<RP>(p, s, out[0], res);
    if (p.n_segments > 1)
        outlet_finish<RP>(p, s, out[1], make_float2(0, 0));
    finish_rest<RP>(p, s, own, slice_index);
    stamp(trace, 6);
}

/* ---- as a kernel of its own, for a graph with programmatic edges ---- */

struct project_args {
    struct project p;
    uint32_t flight;
    uint8_t *where; /* NULL, or a byte a block: the SM it ran on */
    uint32_t unit_bytes[MAX_SEGMENTS], last_bytes[MAX_SEGMENTS];
    uint16_t first[MAX_SEGMENTS][SM_COUNT + 1]; /* group g has row tiles first[g]..first[g+1]-1 */
};

/* The piece of group g, slice s: slices are stored one after the other. All slices before the last
 * are whole units, so that slice s starts at s x slice columns of every tile. */
__host__ __device__ static inline struct piece piece_of(const struct project_args &a, int seg,
                                                        int group, int slice_index) {
    const struct segment &s = a.p.seg[seg];
    struct piece pc;
    int unit = s.type == WT_BF16 ? 128 : 256;
    int cols = a.p.k - slice_index * a.p.slice;
    cols = cols < a.p.slice ? cols : a.p.slice;
    pc.tile_units = (cols + unit - 1) / unit;
    pc.unit_bytes = a.unit_bytes[seg];
    pc.last_bytes = cols % unit ? a.last_bytes[seg] : pc.unit_bytes;
    pc.tile0 = a.first[seg][group];
    pc.tiles = a.first[seg][group + 1] - pc.tile0;
    size_t before = (size_t)slice_index * (a.p.slice / unit) * pc.unit_bytes * s.tiles;
    size_t tile = (size_t)(pc.tile_units - 1) * pc.unit_bytes + pc.last_bytes;
    pc.src = s.w + before + pc.tile0 * tile;
    uint32_t units = pc.tiles * pc.tile_units;
    pc.inv_tile = ((1u << 20) + pc.tile_units - 1) / pc.tile_units;
    pc.inv_units = units ? ((1u << 27) + units - 1) / units : 0;
    return pc;
}

/* A block's shared memory. One row: two neighbouring stages share an SM. */
__host__ __device__ constexpr size_t PROJECT_SMEM(int rp) {
    return (rp == 1 ? 105 : 216) << 10;
}

template <int RP, int MASK>
__global__ static void __launch_bounds__(BLOCK, RP == 1 ? 2 : 1)
    project_kernel(const __grid_constant__ struct project_args a) {
    extern __shared__ __align__(128) uint8_t smem[];
    constexpr bool BF16 = MASK == 1 << WT_BF16;
    constexpr uint32_t CAP = smem_map<RP, BF16>::cap(PROJECT_SMEM(RP));
    struct block_smem s = block_smem_make<RP, BF16>(smem);
    const struct project &p = a.p;
    int group = blockIdx.x / p.splits, slice_index = blockIdx.x % p.splits;
    auto pieces = [&](int i) { return piece_of(a, i, group, slice_index); };

    pdl_launch_next();
    if (a.where && threadIdx.x == 0) {
        uint32_t sm;
        asm("mov.u32 %0, %%smid;" : "=r"(sm));
        a.where[blockIdx.x] = sm;
    }
    feed_init(s);
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        if (!p.early)
            pdl_wait();
        feed_run(s, CAP, pieces, p.n_segments, a.flight, evict_first_policy());
        return;
    }
    norm_early(p);
    struct reader rd = reader_open(s, CAP);
    struct outlet out[MAX_SEGMENTS] = {};
    out[0] = outlet_make<RP>(p, pieces(0), 0, slice_index, threadIdx.x);
    if (p.n_segments > 1)
        out[1] = outlet_make<RP>(p, pieces(1), 1, slice_index, threadIdx.x);
    pdl_wait();
    project_body<RP, MASK>(p, s, rd, pieces, out, slice_index, NULL);
}

/* ---- host ---- */

static int project_groups(const struct project *p) {
    return SM_COUNT / p->splits;
}

/* Deals the row tiles of every segment out to the groups so that each gets about the same bytes:
 * heaviest first, each tile to the lightest group that has not its fair number yet.
 * `load`: bytes of each group so far (carried over stages, or zeros). */
static void project_deal(struct project_args *a, std::vector<double> &load) {
    struct project *p = &a->p;
    int groups = project_groups(p);
    std::vector<int> order;
    for (int i = 0; i < p->n_segments; i++)
        order.push_back(i);
    std::sort(order.begin(), order.end(),
              [&](int x, int y) { return a->unit_bytes[x] > a->unit_bytes[y]; });
    for (int i : order) {
        int tiles = p->seg[i].tiles, most = (tiles + groups - 1) / groups + (i != order[0]);
        double bytes = tile_bytes((enum weight_type)p->seg[i].type, p->k);
        std::vector<int> count(groups, 0);
        for (int t = 0; t < tiles; t++) {
            int g = -1;
            for (int j = 0; j < groups; j++)
                if (count[j] < most && (g < 0 || load[j] < load[g]))
                    g = j;
            count[g]++;
            load[g] += bytes;
        }
        a->first[i][0] = 0;
        for (int g = 0; g < groups; g++)
            a->first[i][g + 1] = a->first[i][g] + count[g];
    }
}

/* Columns of a K slice for `splits` slices (fewer where K is short): *splits is corrected. */
static int slice_columns(int k, int unit, int *splits) {
    int units = (k + unit - 1) / unit;
    if (*splits < 1)
        *splits = 1;
    while ((units + *splits - 1) / *splits * (*splits - 1) >= units)
        --*splits;
    return (units + *splits - 1) / *splits * unit;
}

/* Fills in what follows from the shapes. Segments need w, out, type, n, ldo. */
static void project_plan(struct project_args *a, std::vector<double> *load) {
    struct project *p = &a->p;
    int unit = p->seg[0].type == WT_BF16 ? 128 : 256;
    p->slice = slice_columns(p->k, unit, &p->splits);
    for (int i = 0; i < p->n_segments; i++) {
        struct segment *s = &p->seg[i];
        enum weight_type t = (enum weight_type)s->type;
        s->tiles = p->epi == EPI_SWIGLU ? (s->n + 7) / 8 : (s->n + 15) / 16;
        a->unit_bytes[i] = unit_bytes(t, unit);
        a->last_bytes[i] = p->k % unit ? unit_bytes(t, p->k % unit) : a->unit_bytes[i];
    }
    std::vector<double> none(project_groups(p), 0);
    if (load && p->splits == 1)
        project_deal(a, *load);
    else
        project_deal(a, none);
    CHECK(p->pro != PRO_NORM || p->k <= NORM_GROUPS * 8 * THREADS);
    CHECK(p->k % (unit == 128 ? 16 : 32) == 0 && (p->pro != PRO_GATED_NORM || p->head == 128));
}

static size_t project_bytes(const struct project *p) {
    size_t b = 0;
    for (int i = 0; i < p->n_segments; i++)
        b += p->seg[i].tiles * tile_bytes((enum weight_type)p->seg[i].type, p->k);
    return b;
}

typedef void (*project_fn)(const struct project_args);

static int project_mask(const struct project *p) {
    int m = 0;
    for (int i = 0; i < p->n_segments; i++)
        m |= 1 << p->seg[i].type;
    return m;
}

enum {
    MASK_Q4_K = 1 << WT_Q4_K,
    MASK_Q6_K = 1 << WT_Q6_K,
    MASK_Q8_0 = 1 << WT_Q8_0,
    MASK_BF16 = 1 << WT_BF16
};

template <int RP> static project_fn project_pick(int mask) {
    switch (mask) {
    case MASK_Q4_K:
        return project_kernel<RP, MASK_Q4_K>;
    case MASK_Q6_K:
        return project_kernel<RP, MASK_Q6_K>;
    case MASK_Q4_K | MASK_Q6_K:
        return project_kernel<RP, MASK_Q4_K | MASK_Q6_K>;
    case MASK_Q8_0:
        return project_kernel<RP, MASK_Q8_0>;
    case MASK_BF16:
        return project_kernel<RP, MASK_BF16>;
    }
    CHECK(!"types");
    return NULL;
}

/* Launches a kernel on `st`, with a programmatic edge from the one before if `pdl`. */
template <class... F, class... A>
static void launch(cudaStream_t st, bool pdl, void (*fn)(F...), int grid, int block, size_t smem,
                   A... args) {
    cudaLaunchAttribute at = {};
    at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(grid);
    c.blockDim = dim3(block);
    c.dynamicSmemBytes = smem;
    c.stream = st;
    c.attrs = &at;
    c.numAttrs = pdl;
    CU(cudaLaunchKernelEx(&c, fn, F(args)...));
}

/* `smem`: what the block asks for, at least PROJECT_SMEM; more keeps other blocks away. */
static void project_launch(cudaStream_t st, bool pdl, struct project_args *a, size_t smem) {
    struct project *p = &a->p;
    int rp = p->rows == 1 ? 1 : 8, bf16 = p->seg[0].type == WT_BF16;
    project_fn fn = rp == 1 ? project_pick<1>(project_mask(p)) : project_pick<8>(project_mask(p));
    CHECK(p->slice <= MAX_SLICE(rp, bf16));
    if (!a->flight)
        a->flight = 2;
    CU(cudaFuncSetAttribute(fn, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10));
    CU(cudaFuncSetAttribute(fn, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    launch(st, pdl, fn, project_groups(p) * p->splits, BLOCK, std::max(smem, PROJECT_SMEM(rp)), *a);
}
