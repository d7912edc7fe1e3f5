/* wide.cu - the product of Q4_K weights with 128 to 4096 rows of activations on Hopper's wgmma,
 * with the bits of the engine's narrow kernels, from the tiles that those read.
 *
 * What the narrow kernels compute (src/backend/cuda/project.cuh), for weight row n, row m of int8
 * activations x with a scale `as` a group of 128 columns:
 *
 *   I = sum over the group's four blocks of 32 columns of scale * sum(q * x)     an integer
 *   M = sum over them of min * sum(x)                                            an integer
 *   v = as * fma(-dmin, M, d * I)                                                of a group
 *   out = the sum of v over the groups, in a certain order
 *
 * The order: 32 / T groups side by side are a unit (T = 4, 8, 16: rows of a tile). Its groups are
 * added as a tree, neighbours first; units one by one to a slice's sum, from 0; slices one by one,
 * from 0. TREE is how many groups a tree has: 32 / T is today's order; 2 (trees are pairs whatever
 * T is) is one that needs fewer sums at once.
 *
 * Why wgmma on halves. scale * q is at most 63 * 15 = 945, and a half holds integers up to 2048; x
 * is at most 127; |I| is at most 945 * 127 * 128 < 2^24. So all products and partial sums of a
 * group are integers that f32 has exactly, in whatever order they are added, and what is in the
 * accumulators after 128 columns is I itself as a float: no second product for the upper half of
 * scale * q, no shifts, no conversions. (By int8 it is two products, of the same cost together, and
 * 2 to 3 instructions more a value.) M comes from a small mma of halves, as in project_many.
 *
 * Who does what. A block's tile is 128 weight rows by NT rows of activations, a stage of its ring
 * 128 columns of both. 128 threads are producers: one bulk copy for the activations, which lie in
 * memory as wgmma wants them (of a pair of blocks each brings half to both), and a thread a weight
 * row gathers the row's raw bytes out of the tiles by cp.async. Two warpgroups are consumers, 64
 * weight rows each. A thread opens weights straight into the A registers of wgmma: which columns a
 * step of 16 takes is free, so a thread's are all of one block of 32 with one scale. 64 columns are
 * opened while the 64 before them are multiplied, and the next group's first while its last are.
 * Then 64 sums a thread are scaled and added while the other warpgroup multiplies.
 *
 * Bytes and operations of 128 x 128 x 128: 35 KB of activations and 9 KB of weights from L2, 1024
 * cycles of tensor cores, 64 x (4 floating-point instructions and 1/4 mma) + 90 for opening a
 * warp, that is 820 of 1024 cycles in which a scheduler can issue. */
#include <cuda_fp16.h>

#include "common.cuh"

/* ---- shapes ---------------------------------------------------------------------------------- */

enum {
    ROWS = 128,      /* weight rows of a block's tile: 64 a warpgroup */
    GROUP = 128,     /* columns that share an activation scale: a stage of the ring */
    CONSUMERS = 256, /* two warpgroups */
    THREADS = CONSUMERS + 128,
    SHARED_MOST = 227 << 10,
    PIECE_PITCH = ROWS * 16 + 32, /* of nibbles in shared memory; no two lanes in one bank */
};

/* Parts of a unit of Q4_K. */
enum {
    UNIT_Q4 = 2304,
    UNIT_SCALES = 2048,
    UNIT_MINS = UNIT_SCALES + 128,
    UNIT_D = UNIT_SCALES + 192
};

enum { FINISH_STORE, FINISH_ADD, FINISH_SWIGLU };

/* A stage: the image of NT rows of activations, 128 columns, then the raw weights. */
template <int NT> struct stage_of {
    enum {
        NUMBERS = 0, /* two halves of 64 columns, rows of 128 bytes, 16-byte pieces swizzled */
        SCALES = NT * 256,
        SUMS = SCALES + NT * 4,
        IMAGE = SUMS + NT * 16, /* bytes of the image: what a copy brings */
        NIBBLES = IMAGE,
        W_SCALES = NIBBLES + 4 * PIECE_PITCH,
        W_MINS = W_SCALES + ROWS * 4,
        W_D = W_MINS + ROWS * 2,
        BYTES = (W_D + ROWS * 4 + 1023) / 1024 * 1024,
    };
};

struct wide_params {
    const uint8_t *weights[2]; /* in tiles; the second: up of SwiGLU */
    const uint8_t *image;      /* (row block, group) */
    const float *factors;      /* (m) */
    float *out;
    uint32_t n, k, m, out_stride, finish;
    uint32_t row_shift; /* rows of a tile, as a power of two */
    uint32_t units;     /* of a tile */
    uint32_t slices, slice_units, slice_more;
    uint32_t m_blocks, n_blocks; /* tiles of the product */
    uint32_t stages;
};

/* ---- instructions ---------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_at(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void barrier_init(uint32_t at, uint32_t n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(n) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* In block `rank` of the cluster. */
__device__ __forceinline__ void barrier_arrive_at(uint32_t at, uint32_t rank) {
    asm volatile("{\n"
                 ".reg .b32 r;\n"
                 "mapa.shared::cluster.u32 r, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [r];\n"
                 "}" ::"r"(at),
                 "r"(rank)
                 : "memory");
}

__device__ __forceinline__ void bulk_copy(uint32_t to, const uint8_t *from, uint32_t bytes,
                                          uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void bulk_copy_all(uint32_t to, const uint8_t *from, uint32_t bytes,
                                              uint32_t barrier, uint16_t mask) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
                 "cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "h"(mask)
                 : "memory");
}

__device__ __forceinline__ void copy16(uint32_t to, const uint8_t *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy4(uint32_t to, const uint8_t *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/* The barrier hears of it when all copies of this thread are there. */
__device__ __forceinline__ void copies_arrive(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank(void) {
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ __forceinline__ void cluster_sync(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

__device__ __forceinline__ void mma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void mma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> __device__ __forceinline__ void mma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#define R4(a, i) "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3])
#define R16(a, i) R4(a, i), R4(a, i + 4), R4(a, i + 8), R4(a, i + 12)

/* c (64 weight rows x NT rows of activations) = or += a (64 x 16, in registers) * b. */
template <bool ADDS>
__device__ __forceinline__ void mma16(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, %69, 1, 1, 0;"
                 : R16(c, 0), R16(c, 16), R16(c, 32), R16(c, 48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADDS));
}

template <bool ADDS>
__device__ __forceinline__ void mma16(float (&c)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, %37, 1, 1, 0;"
                 : R16(c, 0), R16(c, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADDS));
}

/* Minimums (16 x 8 halves) times sums (8 x 8). */
__device__ __forceinline__ void mma_least(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %7, %7, %7};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a0), "r"(a1), "r"(b), "f"(0.0f));
}

template <class T> __device__ __forceinline__ T peek(uint32_t at) {
    return *(const T *)__cvta_shared_to_generic(at);
}

__device__ __forceinline__ uint32_t bits(__half2 h) {
    return *reinterpret_cast<uint32_t *>(&h);
}

__device__ __forceinline__ __half2 halves(uint32_t v) {
    return *reinterpret_cast<__half2 *>(&v);
}

/* ---- the producers --------------------------------------------------------------------------- */

/* Shared memory: barriers, the consumers' factors, the ring, planes of sums. */
enum { FACTORS_AT = 1024, RING_AT = FACTORS_AT + 4096 };

__device__ __forceinline__ uint32_t shared_base(void) {
    extern __shared__ __align__(1024) uint8_t shared[];
    return shared_at(shared);
}

template <int NT> struct ring {
    uint32_t stage, parity, stages;

    __device__ __forceinline__ uint32_t at(void) const {
        return shared_base() + RING_AT + stage * stage_of<NT>::BYTES;
    }
    __device__ __forceinline__ uint32_t full(void) const {
        return shared_base() + stage * 8;
    }
    __device__ __forceinline__ uint32_t empty(void) const {
        return shared_base() + 64 + stage * 8;
    }

    __device__ __forceinline__ void next(void) {
        stage = stage + 1 == stages ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

/* Where row r of a block's tile lies. */
__device__ __forceinline__ const uint8_t *find_row(const struct wide_params &p, uint32_t n_block,
                                                   uint32_t r, uint32_t &lane) {
    uint32_t n = n_block * ROWS + r, segment = 0;
    if (p.finish == FINISH_SWIGLU) {
        segment = r / 8 % 2;
        n = n_block * (ROWS / 2) + r / 16 * 8 + r % 8;
    }
    n = min(n, p.n - 1);
    lane = n & ((1u << p.row_shift) - 1);
    return p.weights[segment] + (uint64_t)(n >> p.row_shift) * p.units * UNIT_Q4;
}

template <int NT, int CL>
__device__ __forceinline__ void produce(const struct wide_params &p, struct ring<NT> ring,
                                        uint32_t rank) {
    using S = stage_of<NT>;
    uint32_t r = threadIdx.x % 128, groups = p.k / GROUP;
    uint32_t cluster = blockIdx.x / CL, clusters = gridDim.x / CL;
    uint32_t pairs = (p.n_blocks + CL - 1) / CL, shift = 5 - p.row_shift;
    for (uint32_t t = cluster; t < p.m_blocks * pairs; t += clusters) {
        uint32_t m_block = t % p.m_blocks, n_block = t / p.m_blocks * CL + rank, lane0;
        const uint8_t *row = find_row(p, n_block, r, lane0);
        const uint8_t *image = p.image + (uint64_t)m_block * groups * S::IMAGE;
#pragma unroll 1
        for (uint32_t g = 0; g < groups; g++) {
            uint32_t at = ring.at(), full = ring.full();
            uint32_t j = g & ((1u << shift) - 1), lane = (j << p.row_shift) + lane0;
            const uint8_t *unit = row + (g >> shift) * UNIT_Q4;
            barrier_wait(ring.empty(), ring.parity ^ 1);
            if (r == 0) {
                barrier_expect(full, S::IMAGE);
                if (CL == 1)
                    bulk_copy(at, image, S::IMAGE, full);
                else
                    bulk_copy_all(at + rank * (S::IMAGE / CL), image + rank * (S::IMAGE / CL),
                                  S::IMAGE / CL, full, (uint16_t)((1 << CL) - 1));
            }
            image += S::IMAGE;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                copy16(at + S::NIBBLES + i * PIECE_PITCH + r * 16, unit + i * 512 + lane * 16);
            copy4(at + S::W_SCALES + r * 4, unit + UNIT_SCALES + lane * 4);
            copy4(at + S::W_D + r * 4, unit + UNIT_D + ((j / 2 << p.row_shift) + lane0) * 4);
            if (r % 2 == 0) /* the row's and the next one's */
                copy4(at + S::W_MINS + r * 2, unit + UNIT_MINS + lane / 2 * 4);
            copies_arrive(full);
            ring.next();
        }
    }
}

/* ---- the consumers --------------------------------------------------------------------------- */

/* Descriptor of activations: rows of 128 bytes, swizzled, eight of them 1024 bytes. */
__device__ __forceinline__ uint64_t describe(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Half of a row's quants of 32 columns as halves: scale * q * 2^-14, exactly. A nibble in a half's
 * lowest bits is that many times 2^-24, one above it 2^-20: a mask and a multiplication open two.
 */
struct opener {
    __half2 low, high;

    __device__ __forceinline__ opener(uint32_t scale) {
        __half2 s = __hmul2(halves(scale * 0x00010001u), __float2half2_rn(32768.0f));
        high = __hmul2(s, __float2half2_rn(32768.0f));
        low = __hmul2(high, __float2half2_rn(16.0f));
    }

    __device__ __forceinline__ void open(uint32_t w, uint32_t &first, uint32_t &second) const {
        first = bits(__hmul2(halves(w & 0x000f000fu), low));
        second = bits(__hmul2(halves(w & 0x00f000f0u), high));
    }
};

/* d and dmin are multiplied by 2 to the power of these instead, exactly. */
enum { D_SHIFT = 14, DMIN_SHIFT = 24 };

/* The minimum of 32 columns, times 2^-24. */
__device__ __forceinline__ uint32_t min_pair(uint32_t scale, uint32_t mins, uint32_t j) {
    return ((mins >> ((j & 1) * 8 + (j >> 1) * 4) & 15) | (scale >> 2 & 0x30)) * 0x00010001u;
}

/* What a thread keeps from group to group: sums of rows g and g + 8 of its warp's 16, rows 8 i + 2
 * j and the next of the activations: c[4 i...]. */
template <int NT> struct sums {
    float c[NT / 2];   /* the product of 128 columns */
    float p[NT / 2];   /* groups of a tree */
    float acc[NT / 2]; /* trees of a slice */
};

/* The thread's row of the tile (and the one 8 further), and its place among the four that share it.
 * Found again where it is needed: registers are few. */
struct place {
    uint32_t row, j;

    __device__ __forceinline__ place(void) {
        uint32_t thread;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        row = thread / 32 * 16 + thread % 32 / 4;
        j = thread % 4;
    }
};

/* Weights of 64 columns, opened: those of four steps of 16. */
typedef uint32_t fragments[4][4];

/* half: of the group's 128 columns. */
template <int NT> __device__ __forceinline__ void open_half(fragments &f, uint32_t at, int half) {
    using S = stage_of<NT>;
    const place own;
    uint32_t row = own.row, j = own.j;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint2 raw = peek<uint2>(at + S::NIBBLES + j * PIECE_PITCH + (row + 8 * i) * 16 + half * 8);
        const opener o(peek<uint8_t>(at + S::W_SCALES + (row + 8 * i) * 4 + j) & 63);
        o.open(raw.x, f[0][i], f[0][i + 2]);
        o.open(raw.x >> 8, f[1][i], f[1][i + 2]);
        o.open(raw.y, f[2][i], f[2][i + 2]);
        o.open(raw.y >> 8, f[3][i], f[3][i + 2]);
    }
    /* Here, not earlier or later: registers are few. */
#pragma unroll
    for (int i = 0; i < 16; i++)
        asm volatile("" : "+r"(f[i / 4][i % 4]));
}

template <int NT, bool IS_FIRST>
__device__ __forceinline__ void multiply_half(float (&c)[NT / 2], const fragments &f, uint64_t b) {
    mma_fence();
    mma16<!IS_FIRST>(c, f[0], b);
    mma16<true>(c, f[1], b + 2);
    mma16<true>(c, f[2], b + 4);
    mma16<true>(c, f[3], b + 6);
    mma_commit();
}

/* The warp's own. */
__device__ __forceinline__ uint32_t factors_at(void) {
    return shared_base() + FACTORS_AT + threadIdx.x / 32 * 512;
}

/* Planes of sums in shared memory that trees need; one more is that of slices, where there are any.
 */
template <int TREE> constexpr int PLANES = TREE == 2 ? 0 : TREE == 4 ? 1 : 2;

/* A thread's part of one. */
template <int NT> __device__ __forceinline__ uint32_t plane_at(uint32_t planes, int i) {
    return planes + i * (NT * ROWS * 4) + threadIdx.x * 16;
}

__device__ __forceinline__ void put_four(uint32_t at, const float *v) {
    *(float4 *)__cvta_shared_to_generic(at) = make_float4(v[0], v[1], v[2], v[3]);
}

/* What was put away comes first. */
__device__ __forceinline__ void add_four(float *v, uint32_t at) {
    float4 w = peek<float4>(at);
    v[0] = __fadd_rn(w.x, v[0]);
    v[1] = __fadd_rn(w.y, v[1]);
    v[2] = __fadd_rn(w.z, v[2]);
    v[3] = __fadd_rn(w.w, v[3]);
}

/* Group number POS of a tree: scaled, and added up. */
template <int NT, int TREE, int POS>
__device__ __forceinline__ void scale(struct sums<NT> &s, uint32_t at, uint32_t planes) {
    using S = stage_of<NT>;
    const place own;
    uint32_t row = own.row, j = own.j, lane = row % 8 * 4 + j, pairs[2];
    float2 d[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t scale = peek<uint8_t>(at + S::W_SCALES + (row + 8 * i) * 4 + j);
        pairs[i] = min_pair(scale, peek<uint16_t>(at + S::W_MINS + (row + 8 * i) * 2), j);
        d[i] = __half22float2(halves(peek<uint32_t>(at + S::W_D + (row + 8 * i) * 4)));
        d[i].x *= 1 << D_SHIFT;
        d[i].y *= -(float)(1 << DMIN_SHIFT);
    }
#pragma unroll
    for (int four = 0; four < NT / 32; four++) {
        uint4 sum = peek<uint4>(at + S::SUMS + four * 512 + lane * 16);
        float4 as[2] = {peek<float4>(at + S::SCALES + four * 128 + j * 16),
                        peek<float4>(at + S::SCALES + four * 128 + 64 + j * 16)};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = four * 4 + e;
            float least[4];
            mma_least(least, pairs[0], pairs[1],
                      e == 0   ? sum.x
                      : e == 1 ? sum.y
                      : e == 2 ? sum.z
                               : sum.w);
#pragma unroll
            for (int x = 0; x < 4; x++) {
                float a = e % 2 ? (x % 2 ? as[e / 2].w : as[e / 2].z)
                                : (x % 2 ? as[e / 2].y : as[e / 2].x);
                float v = __fmul_rn(d[x / 2].x, s.c[i * 4 + x]);
                v = __fmul_rn(a, __fmaf_rn(d[x / 2].y, least[x], v));
                s.p[i * 4 + x] = POS % 2 ? __fadd_rn(s.p[i * 4 + x], v) : v;
            }
            if (POS % 4 == 3) {
                add_four(s.p + i * 4, plane_at<NT>(planes, 0) + i * CONSUMERS * 16);
            }
            if (POS % 8 == 7) {
                add_four(s.p + i * 4, plane_at<NT>(planes, 1) + i * CONSUMERS * 16);
            }
            if (POS == TREE - 1) {
#pragma unroll
                for (int x = 0; x < 4; x++)
                    s.acc[i * 4 + x] = __fadd_rn(s.acc[i * 4 + x], s.p[i * 4 + x]);
            } else if (POS % 2) {
                put_four(plane_at<NT>(planes, POS % 4 == 3) + i * CONSUMERS * 16, s.p + i * 4);
            }
        }
    }
}

/* A group, whose first half is opened; opens that of the next one, if there is one. */
template <int NT, int CL, int TREE, int POS>
__device__ __forceinline__ void eat(struct sums<NT> &s, fragments &f, struct ring<NT> &ring,
                                    uint32_t &left, uint32_t planes) {
    uint32_t at = ring.at(), empty = ring.empty();
    fragments second;
    uint64_t b = describe(at);
    multiply_half<NT, true>(s.c, f, b);
    barrier_wait(ring.full(),
                 ring.parity); /* is over: so that the compiler opens nothing earlier */
    open_half<NT>(second, at, 1);
    multiply_half<NT, false>(s.c, second, b + NT * 128 / 16);
    ring.next();
    mma_wait<1>();
    if (--left) {
        barrier_wait(ring.full(), ring.parity);
        open_half<NT>(f, ring.at(), 0);
    }
    mma_wait<0>();
    scale<NT, TREE, POS>(s, at, planes);
    /* Done here, not in the next group. */
#pragma unroll
    for (int i = 0; i < NT / 2; i++)
        asm volatile("" : "+f"(s.p[i]), "+f"(s.acc[i]));
    __syncwarp();
    if (CL == 1 && threadIdx.x % 32 == 0)
        barrier_arrive(empty);
    if (CL > 1 && threadIdx.x % 32 < CL)
        barrier_arrive_at(empty, threadIdx.x % 32);
    if constexpr (POS + 1 < TREE)
        eat<NT, CL, TREE, POS + 1>(s, f, ring, left, planes);
}

__device__ __forceinline__ float gated(float gate, float up) {
    float e, y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(__fmul_rn(gate, -1.44269504f)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fadd_rn(1.0f, e)));
    return __fmul_rn(__fmul_rn(gate, y), up);
}

/* A tile all of which there is. */
template <int NT, int FINISH>
__device__ __forceinline__ void put_whole(const struct wide_params &p, float (&v)[NT / 2],
                                          float *out, uint32_t factors) {
    float2 f[NT / 8];
#pragma unroll
    for (int i = 0; i < NT / 8; i++)
        f[i] = peek<float2>(factors + 32 * i);
    if (FINISH == FINISH_ADD) {
        float was[NT / 2];
#pragma unroll
        for (int i = 0; i < NT / 2; i++)
            was[i] = out[(uint64_t)p.out_stride * (i / 4 * 8 + i % 2) + i % 4 / 2 * 8];
#pragma unroll
        for (int i = 0; i < NT / 2; i++)
            v[i] = __fadd_rn(was[i], __fmul_rn(v[i], i % 2 ? f[i / 4].y : f[i / 4].x));
    } else {
#pragma unroll
        for (int i = 0; i < NT / 2; i++)
            v[i] = __fmul_rn(v[i], i % 2 ? f[i / 4].y : f[i / 4].x);
    }
#pragma unroll
    for (int i = 0; i < NT / 8; i++) {
        float *next = out + p.out_stride;
        if (FINISH == FINISH_SWIGLU) {
            out[0] = gated(v[4 * i], v[4 * i + 2]);
            next[0] = gated(v[4 * i + 1], v[4 * i + 3]);
        } else {
            out[0] = v[4 * i], next[0] = v[4 * i + 1];
            out[8] = v[4 * i + 2], next[8] = v[4 * i + 3];
        }
        out += (uint64_t)p.out_stride * 8;
    }
}

template <int NT>
__device__ __forceinline__ void put_part(const struct wide_params &p, const float (&v)[NT / 2],
                                         float *out, uint32_t factors, uint32_t m, uint32_t n) {
    bool is_swiglu = p.finish == FINISH_SWIGLU;
#pragma unroll
    for (int i = 0; i < NT / 2; i++) {
        uint32_t row = i / 4 * 8 + i % 2, column = i % 4 / 2 * 8;
        if (m + row >= p.m || n + column >= p.n || (is_swiglu && column))
            continue;
        float *to = out + (uint64_t)p.out_stride * row + column, f = peek<float>(factors + row * 4);
        float a = __fmul_rn(v[i], f);
        if (is_swiglu)
            a = gated(a, __fmul_rn(v[i ^ 2], f));
        *to = p.finish == FINISH_ADD ? __fadd_rn(*to, a) : a;
    }
}

template <int NT>
__device__ __forceinline__ void put(const struct wide_params &p, float (&v)[NT / 2],
                                    uint32_t m_block, uint32_t n_block) {
    const place own;
    uint32_t row = own.row, j = own.j;
    bool is_swiglu = p.finish == FINISH_SWIGLU;
    uint32_t rows = is_swiglu ? ROWS / 2 : ROWS, m = m_block * NT + 2 * j;
    uint32_t n = n_block * rows + (is_swiglu ? row / 16 * 8 + row % 8 : row);
    float *out = p.out + (uint64_t)m * p.out_stride + n;
    if ((m_block + 1) * NT > p.m || (n_block + 1) * rows > p.n)
        put_part<NT>(p, v, out, factors_at() + 8 * j, m, n);
    else if (is_swiglu)
        put_whole<NT, FINISH_SWIGLU>(p, v, out, factors_at() + 8 * j);
    else if (p.finish == FINISH_ADD)
        put_whole<NT, FINISH_ADD>(p, v, out, factors_at() + 8 * j);
    else
        put_whole<NT, FINISH_STORE>(p, v, out, factors_at() + 8 * j);
}

template <int NT, int CL, int TREE>
__device__ __forceinline__ void consume(const struct wide_params &p, struct ring<NT> ring,
                                        uint32_t rank) {
    uint32_t lane = threadIdx.x % 32;
    uint32_t planes = shared_base() + RING_AT + p.stages * stage_of<NT>::BYTES;
    uint32_t cluster = blockIdx.x / CL, clusters = gridDim.x / CL;
    uint32_t pairs = (p.n_blocks + CL - 1) / CL, trees = (32u >> p.row_shift) / TREE;
    uint32_t tiles = p.m_blocks * pairs,
             all = cluster < tiles ? ((tiles - cluster - 1) / clusters + 1) * (p.k / GROUP) : 0;
    fragments f;
    if (all) {
        barrier_wait(ring.full(), 0);
        open_half<NT>(f, ring.at(), 0);
    }
    for (uint32_t t = cluster; t < p.m_blocks * pairs; t += clusters) {
        uint32_t m_block = t % p.m_blocks, n_block = t / p.m_blocks * CL + rank;
        struct sums<NT> s;
#pragma unroll
        for (uint32_t i = 0; i < NT; i += 32)
            copy4(factors_at() + (i + lane) * 4,
                  (const uint8_t *)(p.factors + min(m_block * NT + i + lane, p.m - 1)));
#pragma unroll 1
        for (uint32_t slice = 0; slice < p.slices; slice++) {
            uint32_t left = (p.slice_units + (slice < p.slice_more)) * trees;
#pragma unroll
            for (int i = 0; i < NT / 2; i++)
                s.acc[i] = 0;
#pragma unroll 1
            for (; left; left--)
                eat<NT, CL, TREE, 0>(s, f, ring, all, planes);
            if (p.slices == 1)
                break;
#pragma unroll
            for (int i = 0; i < NT / 8; i++) {
                uint32_t at = plane_at<NT>(planes, PLANES<TREE>) + i * CONSUMERS * 16;
                if (slice)
                    add_four(s.acc + i * 4, at);
                if (slice + 1 < p.slices)
                    put_four(at, s.acc + i * 4);
            }
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();
        put<NT>(p, s.acc, m_block, n_block);
        __syncwarp();
    }
}

template <int NT, int CL, int TREE>
__global__ void __launch_bounds__(THREADS, 1)
    wide_q4(const __grid_constant__ struct wide_params p) {
    uint32_t rank = CL > 1 ? cluster_rank() : 0;
    struct ring<NT> ring = {
        0, 0, p.stages
    };
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < p.stages; i++) {
            barrier_init(shared_base() + i * 8, 128 + 1);
            barrier_init(shared_base() + 64 + i * 8, CONSUMERS / 32 * CL);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CL > 1)
        cluster_sync();
    else
        __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        produce<NT, CL>(p, ring, rank);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume<NT, CL, TREE>(p, ring, rank);
    }
    if (CL > 1)
        cluster_sync();
}

/* ---- data, and the plain product ------------------------------------------------------------- */

/* Unit by unit: random quants, scales and minimums, d and dmin of about 1 / 1000. is_hard: the
 * largest ones, of which sums come nearest to 2^24. */
__global__ void make_weights(uint8_t *to, uint64_t units, uint32_t seed, uint32_t is_hard) {
    for (uint64_t u = blockIdx.x; u < units; u += gridDim.x) {
        uint32_t *words = (uint32_t *)(to + u * UNIT_Q4);
        for (uint32_t i = threadIdx.x; i < UNIT_Q4 / 4; i += blockDim.x) {
            uint32_t r = hash32(hash32((uint32_t)u + seed) + i);
            if (is_hard && i * 4 < UNIT_D)
                r |= r >> 8 | 0xc0c0c0c0u | (hash32(r) % 4 ? ~0u : 0);
            if (i * 4 >= UNIT_D) {
                __half2 d =
                    __floats2half2_rn((1 + (r & 255)) * 1e-5f, (1 + (r >> 8 & 255)) * 1e-5f);
                r = *(uint32_t *)&d;
            }
            words[i] = r;
        }
    }
}

/* Runs of one sign where numbers are to be large: sums of some groups are as large as they can be.
 */
__global__ void make_acts(int8_t *q, float *scales, uint64_t n, uint64_t groups, uint32_t seed,
                          uint32_t is_hard) {
    uint64_t step = (uint64_t)gridDim.x * blockDim.x,
             first = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    for (uint64_t i = first; i < n; i += step) {
        uint32_t r = hash32((uint32_t)i * 2654435761u + seed);
        q[i] = (int8_t)((int)(r % 255) - 127);
        if (is_hard)
            q[i] = hash32((uint32_t)(i / 64) + seed) % 4 ? 127 : (int8_t)(r % 8 ? -127 : 126);
    }
    for (uint64_t i = first; i < groups; i += step)
        scales[i] = 0.001f + (hash32((uint32_t)i + seed + 77) & 0xffff) * 1e-6f;
}

/* Numbers of a row block's group, and their image; rows after the last repeat it. */
template <int NT>
__global__ void make_image(uint8_t *image, const int8_t *q, const float *scale, uint32_t m,
                           uint32_t k) {
    using S = stage_of<NT>;
    uint32_t groups = k / GROUP, block = blockIdx.x / groups, g = blockIdx.x % groups;
    uint8_t *to = image + (uint64_t)blockIdx.x * S::IMAGE;
    for (uint32_t r = threadIdx.x; r < NT; r += blockDim.x) {
        uint32_t row = min(block * NT + r, m - 1), i = r / 8;
        const int8_t *from = q + (uint64_t)row * k + g * GROUP;
        for (uint32_t j = 0; j < 4; j++) {
            int sum = 0;
            for (uint32_t c = 0; c < 32; c++) {
                uint32_t step = c % 16 / 4 * 2 + c % 2, at = c / 16 * 8 + 2 * j + c % 4 / 2;
                uint32_t byte = step % 4 * 32 + at * 2, piece = byte / 16 ^ (r % 8);
                *(__half *)(to + step / 4 * (NT * 128) + r * 128 + piece * 16 + byte % 16) =
                    __float2half((float)from[j * 32 + c]);
                sum += from[j * 32 + c];
            }
            *(__half2 *)(to + S::SUMS + i / 4 * 512 + (r % 8 * 4 + j) * 16 + i % 4 * 4) =
                __floats2half2_rn((float)(sum & ~1), (float)(sum & 1));
        }
        *(float *)(to + S::SCALES + i / 4 * 128 + i % 4 / 2 * 64 + r % 8 / 2 * 16 +
                   (i % 2 * 2 + r % 2) * 4) = scale[(uint64_t)row * groups + g];
    }
}

__host__ __device__ static inline float mul(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    volatile float r = a * b;
    return r;
#endif
}

__host__ __device__ static inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    volatile float r = a + b;
    return r;
#endif
}

/* What a lane of the narrow kernels makes of its 128 columns: group g of weight row n. */
__host__ __device__ static inline float group_q4(const struct wide_params &p,
                                                 const uint8_t *weights, uint32_t n, uint32_t g,
                                                 const int8_t *q, float scale) {
    uint32_t rows = 1u << p.row_shift, lanes = 32 / rows, j = g % lanes, lane = j * rows + n % rows;
    const uint8_t *unit = weights + ((uint64_t)(n / rows) * p.units + g / lanes) * UNIT_Q4;
    uint32_t mins = *(const uint16_t *)(unit + UNIT_MINS + lane * 2);
    int sum = 0, least = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint8_t *nibbles = unit + i * 512 + lane * 16;
        uint32_t s = unit[UNIT_SCALES + lane * 4 + i];
        int dot = 0, all = 0;
        for (uint32_t c = 0; c < 32; c++) {
            dot += (nibbles[c % 16] >> (c / 16 * 4) & 15) * q[i * 32 + c];
            all += q[i * 32 + c];
        }
        sum += (int)(s & 63) * dot;
        least += (int)((mins >> ((i & 1) * 8 + (i >> 1) * 4) & 15) | s >> 6 << 4) * all;
    }
    const __half *d = (const __half *)(unit + UNIT_D + (j / 2 * rows + n % rows) * 4);
    float t = mul(__half2float(d[0]), (float)sum);
    t = fmaf(-__half2float(d[1]), (float)least, t);
    return mul(scale, t);
}

/* A sum in the order of the narrow kernels: a tree over `tree` groups, trees one by one, slices. */
__host__ __device__ static inline float plain_sum(const struct wide_params &p,
                                                  const uint8_t *weights, uint32_t tree, uint32_t n,
                                                  const int8_t *q, const float *scales) {
    uint32_t g = 0, trees = (32u >> p.row_shift) / tree;
    float total = 0;
    for (uint32_t slice = 0; slice < p.slices; slice++) {
        float acc = 0;
        for (uint32_t left = (p.slice_units + (slice < p.slice_more)) * trees; left; left--) {
            float v[8];
            for (uint32_t i = 0; i < tree; i++, g++)
                v[i] = group_q4(p, weights, n, g, q + g * GROUP, scales[g]);
            for (uint32_t w = 1; w < tree; w *= 2)
                for (uint32_t i = 0; i < tree; i += 2 * w)
                    v[i] = add(v[i], v[i + w]);
            acc = add(acc, v[0]);
        }
        total = add(total, acc);
    }
    return total;
}

__global__ void plain_product(struct wide_params p, uint32_t tree, const int8_t *q,
                              const float *scales) {
    uint32_t n = blockIdx.x * blockDim.x + threadIdx.x, m = blockIdx.y;
    if (n >= p.n)
        return;
    const int8_t *row = q + (uint64_t)m * p.k;
    const float *s = scales + (uint64_t)m * (p.k / GROUP);
    float v = mul(plain_sum(p, p.weights[0], tree, n, row, s), p.factors[m]);
    float *to = p.out + (uint64_t)m * p.out_stride + n;
    if (p.finish == FINISH_SWIGLU)
        v = gated(v, mul(plain_sum(p, p.weights[1], tree, n, row, s), p.factors[m]));
    *to = p.finish == FINISH_ADD ? add(*to, v) : v;
}

/* ---- the peak -------------------------------------------------------------------------------- */

/* Nothing but products, activations from shared memory, weights from registers. */
__global__ void __launch_bounds__(CONSUMERS, 1) peak_halves(uint32_t n, float *sink) {
    extern __shared__ __align__(1024) uint8_t shared[];
    for (uint32_t i = threadIdx.x; i < 32768 / 2; i += blockDim.x)
        ((__half *)shared)[i] = __float2half((float)((int)(hash32(i) % 255) - 127));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float c[64] = {};
    uint32_t a[2][4];
    for (int i = 0; i < 8; i++)
        a[i / 4][i % 4] =
            bits(__floats2half2_rn((float)(hash32(threadIdx.x * 8 + i) % 945),
                                   (float)(hash32(threadIdx.x * 8 + i + 99999) % 945)));
    uint64_t b = describe(shared_at(shared));
    for (uint32_t i = 0; i < n; i++) {
        mma_fence();
#pragma unroll
        for (int s = 0; s < 8; s++)
            mma16<true>(c, a[s % 2], b + (s / 4 * 16384 + s % 4 * 32) / 16);
        mma_commit();
        mma_wait<0>();
    }
    float sum = 0;
    for (int i = 0; i < 64; i++)
        sum += c[i];
    if (sum == 12345.5f)
        *sink = sum;
}

/* The same of bytes. */
#define I4(a, i) "+r"(a[i]), "+r"(a[i + 1]), "+r"(a[i + 2]), "+r"(a[i + 3])
#define I16(a, i) I4(a, i), I4(a, i + 4), I4(a, i + 8), I4(a, i + 12)

__device__ __forceinline__ void mma32(int (&c)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, 1;"
                 : I16(c, 0), I16(c, 16), I16(c, 32), I16(c, 48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__global__ void __launch_bounds__(CONSUMERS, 1) peak_bytes(uint32_t n, int *sink) {
    extern __shared__ __align__(1024) uint8_t shared[];
    for (uint32_t i = threadIdx.x; i < 16384; i += blockDim.x)
        shared[i] = (uint8_t)hash32(i);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    int c[64] = {}, sum = 0;
    uint32_t a[2][4];
    for (int i = 0; i < 8; i++)
        a[i / 4][i % 4] = hash32(threadIdx.x * 8 + i);
    uint64_t b = describe(shared_at(shared));
    for (uint32_t i = 0; i < n; i++) {
        mma_fence();
#pragma unroll
        for (int s = 0; s < 8; s++)
            mma32(c, a[s % 2], b + s % 4 * 2);
        mma_commit();
        mma_wait<0>();
    }
    for (int i = 0; i < 64; i++)
        sum += c[i];
    if (sum == 12345)
        *sink = sum;
}

/* ---- cases ----------------------------------------------------------------------------------- */

typedef void wide_kernel(struct wide_params);

struct config {
    const char *name;
    int nt, cl, tree;
    wide_kernel *kernel;
};

#define CONFIG(NT, CL, TREE)                                                                       \
    { #NT "/" #CL "/" #TREE, NT, CL, TREE, (wide_kernel *)wide_q4 < NT, CL, TREE> }

/* Rows of activations, blocks that share them, groups of a tree. */
static const struct config configs[] = {
    CONFIG(128, 1, 2), CONFIG(128, 2, 2), CONFIG(64, 1, 2), CONFIG(64, 2, 2),
    CONFIG(128, 2, 4), CONFIG(64, 2, 4),  CONFIG(64, 2, 8),
};

struct shape {
    const char *name;
    uint32_t k, n, rows, slices, finish;
    uint32_t times; /* in a model */
};

static uint32_t stage_bytes(const struct config &c) {
    return c.nt == 128 ? (uint32_t)stage_of<128>::BYTES : (uint32_t)stage_of<64>::BYTES;
}

/* Whether the shape's units have as many groups as a tree. */
static bool is_possible(const struct config &c, const struct shape &s) {
    return (uint32_t)c.tree <= 32 / s.rows;
}

static struct wide_params params_of(const struct shape &s, uint32_t m, const struct config &c) {
    struct wide_params p = {};
    uint32_t lanes = 32 / s.rows, per_block = s.finish == FINISH_SWIGLU ? ROWS / 2 : ROWS;
    p.n = s.n, p.k = s.k, p.m = m, p.out_stride = s.n, p.finish = s.finish;
    p.row_shift = s.rows == 16 ? 4 : s.rows == 8 ? 3 : 2;
    p.units = s.k / (lanes * GROUP);
    p.slices = s.slices;
    p.slice_units = p.units / s.slices, p.slice_more = p.units % s.slices;
    p.m_blocks = (m + c.nt - 1) / c.nt, p.n_blocks = (s.n + per_block - 1) / per_block;
    return p;
}

static void launch(const struct config &c, struct wide_params p) {
    uint32_t planes = ((c.tree > 2) + (c.tree > 4) + (p.slices > 1)) * c.nt * ROWS * 4;
    p.stages = std::min<uint32_t>((SHARED_MOST - planes - RING_AT) / stage_bytes(c), 6);
    uint32_t shared = RING_AT + p.stages * stage_bytes(c) + planes;
    CU(cudaFuncSetAttribute((const void *)c.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            (int)shared));
    cudaLaunchAttribute a;
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = (unsigned)c.cl, a.val.clusterDim.y = a.val.clusterDim.z = 1;
    cudaLaunchConfig_t l = {};
    l.gridDim = dim3(SM_COUNT), l.blockDim = dim3(THREADS), l.dynamicSmemBytes = shared;
    l.attrs = &a, l.numAttrs = 1;
    void *args[] = {&p};
    CU(cudaLaunchKernelExC(&l, (const void *)c.kernel, args));
}

struct operands {
    std::vector<uint8_t *> weights[2]; /* copies, so that none is found in L2; gate and up */
    uint8_t *images[2];                /* of 128 and of 64 rows */
    int8_t *q;
    float *scales, *factors, *out;
    uint64_t matrix; /* bytes */
};

static struct operands make(const struct shape &s, uint32_t m, uint32_t copies, uint32_t is_hard,
                            uint32_t seed) {
    struct operands o;
    uint32_t groups = s.k / GROUP, tiles = (s.n + s.rows - 1) / s.rows;
    uint64_t units = (uint64_t)tiles * (s.k / (32 / s.rows * GROUP));
    o.matrix = units * UNIT_Q4;
    for (uint32_t c = 0; c < copies; c++)
        for (uint32_t i = 0; i < (s.finish == FINISH_SWIGLU ? 2u : 1u); i++) {
            o.weights[i].push_back(device_alloc<uint8_t>(o.matrix));
            make_weights<<<1024, 256>>>(o.weights[i].back(), units, seed + c * 1000 + i * 77,
                                        is_hard);
        }
    std::vector<float> f(m);
    for (uint32_t i = 0; i < m; i++)
        f[i] = 1 + 0.3f * hash_unit(i + seed);
    o.factors = device_copy(f);
    o.q = device_alloc<int8_t>((uint64_t)m * s.k);
    o.scales = device_alloc<float>((uint64_t)m * groups);
    o.out = device_alloc<float>((uint64_t)m * s.n);
    make_acts<<<1024, 256>>>(o.q, o.scales, (uint64_t)m * s.k, (uint64_t)m * groups, seed, is_hard);
    uint32_t wide = (m + 127) / 128 * groups, narrow = (m + 63) / 64 * groups;
    o.images[0] = device_alloc<uint8_t>((uint64_t)wide * stage_of<128>::IMAGE);
    o.images[1] = device_alloc<uint8_t>((uint64_t)narrow * stage_of<64>::IMAGE);
    make_image<128><<<wide, 128>>>(o.images[0], o.q, o.scales, m, s.k);
    make_image<64><<<narrow, 64>>>(o.images[1], o.q, o.scales, m, s.k);
    CU(cudaGetLastError());
    CU(cudaDeviceSynchronize());
    return o;
}

static void drop(struct operands &o) {
    for (int i = 0; i < 2; i++)
        for (uint8_t *w : o.weights[i])
            CU(cudaFree(w));
    void *rest[] = {o.images[0], o.images[1], o.q, o.scales, o.factors, o.out};
    for (void *p : rest)
        CU(cudaFree(p));
}

static void aim(struct wide_params &p, const struct operands &o, const struct config &c,
                uint32_t copy) {
    p.weights[0] = o.weights[0][copy];
    p.weights[1] = p.finish == FINISH_SWIGLU ? o.weights[1][copy] : p.weights[0];
    p.image = o.images[c.nt == 128 ? 0 : 1];
    p.factors = o.factors;
    p.out = o.out;
}

/* Some of the plain product's results once more, on the host. */
static void check_plain(const struct wide_params &p, const struct operands &o, uint32_t tree,
                        const std::vector<float> &got) {
    uint32_t groups = p.k / GROUP;
    std::vector<uint8_t> w = host_copy(p.weights[0], o.matrix);
    std::vector<int8_t> q = host_copy(o.q, (uint64_t)p.m * p.k);
    std::vector<float> scales = host_copy(o.scales, (uint64_t)p.m * groups),
                       f = host_copy(o.factors, p.m);
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t n = hash32(i) % p.n, m = hash32(i + 1000) % p.m;
        float v = mul(
            plain_sum(p, w.data(), tree, n, &q[(uint64_t)m * p.k], &scales[(uint64_t)m * groups]),
            f[m]);
        CHECK(memcmp(&v, &got[(uint64_t)m * p.n + n], 4) == 0);
    }
}

/* All configurations against the plain product, bit by bit; how many values differ. */
static uint64_t check(const struct shape &s, uint32_t m, uint32_t is_hard, uint32_t seed) {
    struct operands o = make(s, m, 1, is_hard, seed);
    uint64_t n = (uint64_t)m * s.n, all_bad = 0;
    std::vector<float> start(n), want;
    for (uint64_t i = 0; i < n; i++)
        start[i] = hash_unit((uint32_t)i + 5);
    int tree = 0;
    for (const struct config &c : configs) {
        if (!is_possible(c, s))
            continue;
        struct wide_params p = params_of(s, m, c);
        aim(p, o, c, 0);
        CU(cudaMemcpy(o.out, start.data(), n * 4, cudaMemcpyHostToDevice));
        if (tree != c.tree) {
            plain_product<<<dim3((s.n + 127) / 128, m), 128>>>(p, (uint32_t)c.tree, o.q, o.scales);
            want = host_copy(o.out, n);
            if (s.finish == FINISH_STORE)
                check_plain(p, o, (uint32_t)c.tree, want);
            tree = c.tree;
            CU(cudaMemcpy(o.out, start.data(), n * 4, cudaMemcpyHostToDevice));
        }
        launch(c, p);
        CU(cudaDeviceSynchronize());
        std::vector<float> got = host_copy(o.out, n);
        uint64_t bad = 0;
        for (uint64_t i = 0; i < n; i++)
            bad += memcmp(&got[i], &want[i], 4) != 0;
        if (bad)
            printf("  %s: %llu of %llu differ\n", c.name, (unsigned long long)bad,
                   (unsigned long long)n);
        all_bad += bad;
    }
    printf("check %-9s k %5u n %5u, tiles of %2u, %u slices, m %4u%s: %s\n", s.name, s.k, s.n,
           s.rows, s.slices, m, is_hard ? ", largest numbers" : "",
           all_bad ? "BAD" : "the same bits");
    drop(o);
    return all_bad;
}

/* TOP/s of kernels that do nothing but multiply. */
static double peak(bool is_bytes) {
    int *sink = device_alloc<int>(1);
    uint32_t n = 2000;
    struct timing t = time_launches(0, 5, 3, [&] {
        if (is_bytes)
            peak_bytes<<<SM_COUNT, CONSUMERS, 32768>>>(n, sink);
        else
            peak_halves<<<SM_COUNT, CONSUMERS, 32768>>>(n, (float *)sink);
    });
    CU(cudaFree(sink));
    return 2.0 * SM_COUNT * n * 128 * 128 * (is_bytes ? 256 : 128) / t.us * 1e-6;
}

/* us of a product by every configuration; the best one's in today's order, and in that of pairs. */
static void measure(const struct shape &s, uint32_t m, double top, double best[2]) {
    struct operands o = make(s, m, 4, 0, 9);
    double ops = 2.0 * m * s.n * s.k * (s.finish == FINISH_SWIGLU ? 2 : 1);
    best[0] = best[1] = 1e30;
    printf("%-7s %4u ", s.name, m);
    for (const struct config &c : configs) {
        if (!is_possible(c, s)) {
            printf("              -");
            continue;
        }
        struct wide_params p = params_of(s, m, c);
        uint32_t i = 0;
        struct timing t = time_launches(0, 5, m > 1024 ? 4 : 8, [&] {
            aim(p, o, c, i++ % 4);
            launch(c, p);
        });
        if ((uint32_t)c.tree == 32 / s.rows)
            best[0] = std::min(best[0], t.us);
        if (c.tree == 2)
            best[1] = std::min(best[1], t.us);
        printf(" %7.1f us %4.0f", t.us, ops / t.us * 1e-6);
    }
    printf("  best %3.0f %% of peak\n", ops / std::min(best[0], best[1]) * 1e-6 / top * 100);
    fflush(stdout);
    drop(o);
}

struct model {
    const char *name;
    struct shape shapes[5];
};

/* Tiles and slices as the engine chooses them on 132 multiprocessors; all of Q4_K here. */
static const struct model models[] = {
    {"qwen35-4b",
     {{"in", 2560, 12288, 8, 1, FINISH_STORE, 24},
      {"in attn", 2560, 10240, 8, 3, FINISH_STORE, 8},
      {"out", 4096, 2560, 4, 2, FINISH_ADD, 32},
      {"up", 2560, 9216, 8, 1, FINISH_SWIGLU, 32},
      {"down", 9216, 2560, 4, 3, FINISH_ADD, 32}}},
    {"qwen35-0.8b",
     {{"in", 1024, 8192, 8, 2, FINISH_STORE, 18},
      {"in attn", 1024, 5120, 8, 2, FINISH_STORE, 6},
      {"out", 2048, 1024, 8, 4, FINISH_ADD, 24},
      {"up", 1024, 3584, 4, 1, FINISH_SWIGLU, 24},
      {"down", 3584, 1024, 8, 7, FINISH_ADD, 24}}},
    {"qwen35-9b",
     {{"in", 4096, 12288, 8, 1, FINISH_STORE, 24},
      {"in attn", 4096, 10240, 8, 3, FINISH_STORE, 8},
      {"out", 4096, 4096, 8, 4, FINISH_ADD, 32},
      {"up", 4096, 12288, 8, 4, FINISH_SWIGLU, 32},
      {"down", 12288, 4096, 8, 4, FINISH_ADD, 32}}},
    {"qwen35-27b",
     {{"in", 5120, 16384, 8, 5, FINISH_STORE, 48},
      {"in attn", 5120, 14336, 8, 1, FINISH_STORE, 16},
      {"out", 6144, 5120, 8, 3, FINISH_ADD, 64},
      {"up", 5120, 17408, 8, 1, FINISH_SWIGLU, 64},
      {"down", 17408, 5120, 8, 3, FINISH_ADD, 64}}},
};

static void measure_model(const struct model &model, const std::vector<uint32_t> &ms, double top) {
    printf("%s   rows", model.name);
    for (const struct config &c : configs)
        printf("%15s", c.name);
    printf("\n");
    for (uint32_t m : ms) {
        double all[2] = {0, 0}, best[2];
        for (const struct shape &s : model.shapes) {
            measure(s, m, top, best);
            for (int i = 0; i < 2; i++)
                all[i] += best[i] * s.times;
        }
        printf("all products of %u rows: %.1f ms in today's order, %.1f in pairs: %.0f and %.0f "
               "rows/s\n",
               m, all[0] * 1e-3, all[1] * 1e-3, m / all[0] * 1e6, m / all[1] * 1e6);
    }
}

int main(int argc, char **argv) {
    static const struct shape checks[] = {
        {"in", 2560, 384, 8, 1, FINISH_STORE, 0}, {"in sliced", 2560, 256, 8, 3, FINISH_STORE, 0},
        {"out", 4096, 256, 4, 2, FINISH_ADD, 0},  {"up", 1024, 192, 4, 1, FINISH_SWIGLU, 0},
        {"down", 9216, 200, 4, 3, FINISH_ADD, 0}, {"tall", 768, 272, 16, 1, FINISH_STORE, 0},
    };
    uint64_t bad = 0;
    for (const struct shape &s : checks) {
        for (uint32_t m : {1u, 128u, 200u, 256u})
            bad += check(s, m, 0, m + s.k);
        bad += check(s, 128, 1, 3);
    }
    bad += check(models[0].shapes[0], 512, 0, 11);
    bad += check(models[0].shapes[3], 384, 0, 12);
    if (bad)
        return 1;
    double top = peak(false);
    printf("peak of halves %.0f TOP/s, of bytes %.0f\n", top, peak(true));
    measure_model(models[0], {128, 256, 512, 1024, 2048, 4096}, top);
    for (size_t i = 1; i < sizeof models / sizeof *models && argc > 1; i++)
        measure_model(models[i], {512, 4096}, top);
    return 0;
}
