/* prepare.cuh - a row of activations made ready for a product: norm or gate, then int8.
 *
 * A warp takes 128 columns at once, a lane four; all of it, or 8 lanes, share a scale. What a group
 * becomes depends on the row alone, not on how many warps work on it; so blocks of a product may
 * prepare their rows themselves or find them prepared. Where it goes is the image's matter: that of
 * project.h (a plain pointer), or another for which there are functions of the same names. The
 * norm's factor is one of the whole row, so it is left to the results: x * w is quantised at once,
 * and one barrier is enough.
 */
#ifndef BACKEND_CUDA_PREPARE_CUH
#define BACKEND_CUDA_PREPARE_CUH

#include "backend/cuda/device.cuh"
#include "backend/cuda/project.h"

enum { NORM_BATCH = 2 };

/* A number that all lanes have, and the compiler knows it: else it expects them to part at every
 * branch on it, and guards all that they do together. */
static __device__ __forceinline__ uint32_t uniform(uint32_t x) {
    return __reduce_max_sync(~0u, x);
}

/* Who prepares a row: SHARE blocks of a cluster, each for all of them. */
struct team {
    uint32_t first, step; /* this thread's first piece, and how many pieces all take in a round */
    uint32_t other;       /* from an address in this block's shared memory to the other block's */
    uint32_t signal;      /* the other block's barrier, which counts the bytes it is sent */
};

/* The piece of four columns that a thread takes in the round from `base`. Behind the end the warp
 * does the row's first 128 columns once more, since lanes that stand aside cost more. */
static __device__ __forceinline__ uint32_t piece_of(const struct team &who, uint32_t base,
                                                    uint32_t n) {
    uint32_t i = base + who.first;
    return i < n ? i : threadIdx.x % 32;
}

/* Stores for this block, and for the other one of its cluster. */
template <int SHARE>
static __device__ __forceinline__ void put_word(const struct team &who, bool is_own, void *to,
                                                uint32_t v) {
    *(uint32_t *)to = v;
#if __CUDA_ARCH__ >= 900
    if (SHARE > 1 && is_own)
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
                (uint32_t)__cvta_generic_to_shared(to) + who.other),
            "r"(v), "r"(who.signal)
            : "memory");
#endif
}

template <int SHARE>
static __device__ __forceinline__ void put_four(const struct team &who, bool is_own, void *to,
                                                float4 v) {
    *(float4 *)to = v;
#if __CUDA_ARCH__ >= 900
    if (SHARE > 1 && is_own)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, "
                     "%3, %4}, [%5];" ::"r"((uint32_t)__cvta_generic_to_shared(to) + who.other),
                     "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(who.signal)
                     : "memory");
#endif
}

static __device__ __forceinline__ float quick_sigmoid(float x) {
    return __fdividef(1.0f, __fadd_rn(1.0f, __expf(-x)));
}

/* SwiGLU. */
static __device__ __forceinline__ float gated(float gate, float up) {
    return __fmul_rn(__fmul_rn(gate, quick_sigmoid(gate)), up);
}

static __device__ __forceinline__ float4 times(float4 a, float4 b) {
    return make_float4(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z),
                       __fmul_rn(a.w, b.w));
}

static __device__ __forceinline__ float squares(float4 v) {
    float s = __fmul_rn(v.x, v.x);
    s = __fmaf_rn(v.y, v.y, s);
    s = __fmaf_rn(v.z, v.z, s);
    return __fmaf_rn(v.w, v.w, s);
}

/* Four values as bytes: 1.5 * 2^23 makes the rounded value the sum's low byte. */
static __device__ __forceinline__ uint32_t round4(float4 v, float f) {
    const float magic = 12582912.0f;
    uint32_t a = __float_as_uint(__fmaf_rn(v.x, f, magic)),
             b = __float_as_uint(__fmaf_rn(v.y, f, magic));
    uint32_t c = __float_as_uint(__fmaf_rn(v.z, f, magic)),
             d = __float_as_uint(__fmaf_rn(v.w, f, magic));
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

static __device__ __forceinline__ uint32_t size_bits(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}

static __device__ __forceinline__ void add_square(float &sum, int lane) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, lane));
}

/* ---- where things go in an image: of piece i of four columns ----------------------------------
 */

static __device__ __forceinline__ void *image_word(uint8_t *image, uint32_t k, uint32_t i) {
    uint32_t lane = threadIdx.x % 32; /* i % 32, which is known earlier */
    return image + (lane / 4 * project_plane(k) + i / 32) * 16 + lane % 4 * 4;
}

static __device__ __forceinline__ float4 *image_floats(uint8_t *image,
                                                       const struct project_input &in) {
    return (float4 *)(image + (in.wants_int8 ? project_int8_bytes(in.k) : 0));
}

/* The scale and the sum of 32 columns, by the first lane of 8. */
template <int SHARE>
static __device__ __forceinline__ void image_group(const struct team &who, bool is_own,
                                                   uint8_t *image, uint32_t k, uint32_t i,
                                                   float scale, int sum) {
    put_word<SHARE>(who, is_own, image + project_scales_at(k) + i / 8 * 4, __float_as_uint(scale));
    put_word<SHARE>(who, is_own, image + project_sums_at(k) + i / 8 * 4, (uint32_t)sum);
}

/* Whether 128 columns share a scale. GROUP: 32 or 128 where that is known, else 0. */
template <int GROUP>
static __device__ __forceinline__ bool is_wide(const struct project_input &in) {
    return GROUP ? GROUP == 128 : in.act_group == 128;
}

/* Pieces i[b] of four columns, as quant.h's act_quantize has them: sizes are compared as integers,
 * so that a NaN is the largest. All pieces take every step together: a step's latency is then that
 * of one. Squares are added over the warp on the way, from lanes far apart to neighbours. */
template <int BATCH, int SHARE, int GROUP, bool IS_NORM, class IMAGE>
static __device__ __forceinline__ void
put_int8(const struct team &who, const struct project_input &in, IMAGE image,
         const uint32_t (&i)[BATCH], const bool (&own)[BATCH], const float4 (&v)[BATCH],
         float (&square)[BATCH]) {
    uint32_t m[BATCH], q[BATCH];
    float d[BATCH];
    int sum[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; b++)
        m[b] = max(max(size_bits(v[b].x), size_bits(v[b].y)),
                   max(size_bits(v[b].z), size_bits(v[b].w)));
    if (is_wide<GROUP>(in)) {
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            m[b] = __reduce_max_sync(~0u, m[b]);
    } else {
#pragma unroll
        for (int lane = 1; lane < 8; lane *= 2)
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                m[b] = max(m[b], __shfl_xor_sync(~0u, m[b], lane));
    }
    if (IS_NORM) {
#pragma unroll
        for (int lane = 16; lane > 2; lane /= 2)
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                add_square(square[b], lane);
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        d[b] = __fmul_rn(__uint_as_float(m[b]), 1 / 127.0f);
        d[b] = d[b] < 1.17549435e-38f ? 0 : d[b];
        float f = m[b] < 0x7f800000u && d[b] > 0 ? __fdividef(1.0f, d[b]) : 0;
        q[b] = round4(v[b], f);
        sum[b] = __dp4a((int)q[b], 0x01010101, 0);
    }
#pragma unroll
    for (int lane = 1; lane < 8; lane *= 2)
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            sum[b] += __shfl_xor_sync(~0u, sum[b], lane);
            if (IS_NORM && lane < 4)
                add_square(square[b], 2 / lane);
        }
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        put_word<SHARE>(who, own[b], image_word(image, in.k, i[b]), q[b]);
        if (threadIdx.x % 8 == 0)
            image_group<SHARE>(who, own[b], image, in.k, i[b], d[b], sum[b]);
    }
}

/* The sums of the squares of a warp's 128 columns, of every piece. */
template <int BATCH> static __device__ __forceinline__ void add_squares(float (&sum)[BATCH]) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            add_square(sum[b], lane);
}

/* square: those of a lane's columns before the norm's weight, where there is one. */
template <int BATCH, int SHARE, int GROUP, bool IS_NORM, class IMAGE>
static __device__ __forceinline__ void
put_pieces(const struct team &who, const struct project_input &in, IMAGE image,
           const uint32_t (&i)[BATCH], const bool (&own)[BATCH], const float4 (&v)[BATCH],
           float (&square)[BATCH], float *red) {
    if (in.wants_f32) {
        float4 *to = image_floats(image, in);
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            put_four<SHARE>(who, own[b], to + i[b], v[b]);
    }
    if (in.wants_int8)
        put_int8<BATCH, SHARE, GROUP, IS_NORM>(who, in, image, i, own, v, square);
    else if (IS_NORM)
        add_squares<BATCH>(square);
    if (IS_NORM && threadIdx.x % 32 == 0)
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            put_word<SHARE>(who, own[b], red + i[b] / 32, __float_as_uint(square[b]));
}

/* A thread's pieces in the rounds from `base` on. */
template <int BATCH>
static __device__ __forceinline__ void find_pieces(const struct team &who, uint32_t base,
                                                   uint32_t n, uint32_t (&i)[BATCH],
                                                   bool (&own)[BATCH]) {
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        i[b] = piece_of(who, base + b * who.step, n);
        own[b] = base + b * who.step + who.first < n;
    }
}

/* ---- where a row comes from --------------------------------------------------------------------
 */

/* Row `i` of those that go through the product. Whatever can be known before the step's earlier
 * kernels are over is worked out before open_row: behind it the row is read at once. */
struct row_source {
    uint32_t i, limit; /* limit: rows of the bucket */
    bool is_first;     /* the wait is still to be done */
};

/* Rows that go through the product. */
static __device__ __forceinline__ uint32_t prepare_count(const struct cuda_io &io,
                                                         const struct project_input &in) {
    return in.is_head ? io.header->n_outputs : io.header->n_rows;
}

/* Waits, and says which row of the input is row `i`. One behind the last is some row: it is
 * computed, and not stored. */
static __device__ __forceinline__ uint32_t open_row(const struct cuda_io &io,
                                                    const struct project_input &in,
                                                    const struct row_source &from) {
    if (from.is_first)
        pdl_wait(io);
    if (!in.is_head)
        return min(from.i, from.limit - 1);
    return from.i < io.header->n_outputs ? io.outputs[from.i].row : 0;
}

/* ---- clusters ----------------------------------------------------------------------------------
 */

/* Bytes that the other block of the cluster sends. */
static __device__ __forceinline__ uint32_t sent_bytes(const struct project_input &in) {
    uint32_t n = in.k / 4, round = 2 * blockDim.x, whole = n / round, rest = n - whole * round;
    uint32_t before = blockIdx.x % 2 ? 0 : blockDim.x; /* of a round, before the other's */
    uint32_t pieces = whole * blockDim.x + (rest > before ? min(rest - before, blockDim.x) : 0);
    return pieces * ((in.wants_int8 ? 5 : 0) + (in.wants_f32 ? 16 : 0)) +
           (in.kind == PREPARE_NORM ? pieces / 32 * 4 : 0);
}

/* A barrier in shared memory which is passed once, when all bytes from the other block are there.
 */
static __device__ __forceinline__ void signal_init(uint32_t at, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                 "fence.mbarrier_init.release.cluster;\n"
                 "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at),
                 "r"(bytes)
                 : "memory");
#endif
}

template <int SHARE> static __device__ __forceinline__ struct team find_team(const void *signal) {
    struct team who = {threadIdx.x, blockDim.x, 0, 0};
#if __CUDA_ARCH__ >= 900
    if (SHARE > 1) {
        uint32_t at = (uint32_t)__cvta_generic_to_shared(signal), there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(there)
            : "r"(at), "r"(blockIdx.x % 2 ^ 1));
        who.first += blockIdx.x % 2 * blockDim.x;
        who.step *= 2;
        who.other = there - at;
        who.signal = there;
    }
#endif
    return who;
}

/* ---- the general way: heads of any width, any alignment ---------------------------------------
 */

static __device__ __forceinline__ void head_factors(const struct project_input &in, const float *x,
                                                    float *red) {
    uint32_t lane = threadIdx.x % 32, heads = in.k / in.width;
    for (uint32_t h = uniform(threadIdx.x / 32); h < heads; h += blockDim.x / 32) {
        float sum = 0;
        for (uint32_t c = lane; c < in.width; c += 32) {
            float v = __ldcg(x + h * in.width + c);
            sum = __fmaf_rn(v, v, sum);
        }
        sum = warp_sum(sum);
        if (lane == 0)
            red[h] = rsqrtf(__fadd_rn(__fdividef(sum, (float)in.width), in.eps));
    }
    __syncthreads();
}

static __device__ __forceinline__ float any_value(const struct project_input &in, const float *gate,
                                                  float v, uint32_t c, const float *red) {
    uint32_t h = c / in.width, at = c - h * in.width;
    if (in.kind == PREPARE_NONE)
        return v;
    if (in.kind == PREPARE_NORM)
        return __fmul_rn(v, __ldcg(in.norm + c));
    float g = __ldcg(gate + (uint64_t)h * in.head_stride + at);
    if (in.kind == PREPARE_SIGMOID_GATE)
        return __fmul_rn(v, quick_sigmoid(g));
    return __fmul_rn(__fmul_rn(__fmul_rn(v, red[h]), __ldcg(in.norm + at)),
                     __fmul_rn(g, quick_sigmoid(g)));
}

template <int GROUP, class IMAGE>
static __device__ __forceinline__ void
prepare_any(const struct cuda_io &io, const struct project_input &in, const struct row_source &from,
            IMAGE image, float *red) {
    struct team who = {threadIdx.x, blockDim.x, 0, 0}; /* every block for itself */
    uint32_t n = in.k / 4, row = open_row(io, in, from);
    const float *x = in.x + (uint64_t)row * in.x_stride;
    const float *gate = in.gate + (uint64_t)row * in.gate_row_stride;
    if (in.kind == PREPARE_GATED_NORM)
        head_factors(in, x, red);
#pragma unroll 1
    for (uint32_t base = 0; base < n; base += blockDim.x) {
        uint32_t i[1] = {piece_of(who, base, n)}, c = 4 * i[0];
        const bool own[1] = {false};
        float4 v[1] = {
            make_float4(__ldcg(x + c), __ldcg(x + c + 1), __ldcg(x + c + 2), __ldcg(x + c + 3))};
        float square[1] = {squares(v[0])};
        v[0].x = any_value(in, gate, v[0].x, c, red);
        v[0].y = any_value(in, gate, v[0].y, c + 1, red);
        v[0].z = any_value(in, gate, v[0].z, c + 2, red);
        v[0].w = any_value(in, gate, v[0].w, c + 3, red);
        if (in.kind == PREPARE_NORM)
            put_pieces<1, 1, GROUP, true>(who, in, image, i, own, v, square, red);
        else
            put_pieces<1, 1, GROUP, false>(who, in, image, i, own, v, square, red);
    }
    if (in.kind == PREPARE_GATED_NORM)
        __syncthreads(); /* before the next row's factors */
}

/* ---- the quick ways: 16 bytes at a time, BATCH pieces a thread at once -------------------------
 */

template <int BATCH, int SHARE, int GROUP = 0, class IMAGE = uint8_t *>
static __device__ __forceinline__ void
prepare_plain(const struct team &who, const struct cuda_io &io, const struct project_input &in,
              const struct row_source &from, IMAGE image) {
    uint32_t n = in.k / 4, i[BATCH];
    bool own[BATCH];
    find_pieces<BATCH>(who, 0, n, i, own);
    const float *x = in.x + (uint64_t)open_row(io, in, from) * in.x_stride;
#pragma unroll 1
    for (uint32_t base = 0; base < n;) {
        float4 v[BATCH];
        float none[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            v[b] = __ldcg((const float4 *)x + i[b]);
        put_pieces<BATCH, SHARE, GROUP, false>(who, in, image, i, own, v, none, NULL);
        base += BATCH * who.step;
        find_pieces<BATCH>(who, base, n, i, own);
    }
}

/* weight: those of the first batch, loaded before the wait. */
template <int BATCH, int SHARE, int GROUP = 0, class IMAGE = uint8_t *>
static __device__ __forceinline__ void
prepare_norm(const struct team &who, const struct cuda_io &io, const struct project_input &in,
             const struct row_source &from, const float4 (&weight)[NORM_BATCH], IMAGE image,
             float *red) {
    uint32_t n = in.k / 4, i[BATCH];
    bool own[BATCH];
    find_pieces<BATCH>(who, 0, n, i, own);
    const float *x = in.x + (uint64_t)open_row(io, in, from) * in.x_stride;
#pragma unroll 1
    for (uint32_t base = 0; base < n;) {
        float4 v[BATCH], w[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            v[b] = __ldcg((const float4 *)x + i[b]);
            w[b] = weight[b];
        }
        if (base) {
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                w[b] = __ldcg((const float4 *)in.norm + i[b]);
        }
        float square[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            square[b] = squares(v[b]);
            v[b] = times(v[b], w[b]);
        }
        put_pieces<BATCH, SHARE, GROUP, true>(who, in, image, i, own, v, square, red);
        base += BATCH * who.step;
        find_pieces<BATCH>(who, base, n, i, own);
    }
}

static __device__ __forceinline__ float4 sigmoids(float4 g) {
    return make_float4(quick_sigmoid(g.x), quick_sigmoid(g.y), quick_sigmoid(g.z),
                       quick_sigmoid(g.w));
}

/* Where the gates of pieces lie, in pieces. */
template <int BATCH, bool IS_NORM>
static __device__ __forceinline__ void
find_gates(const struct project_input &in, const uint32_t (&i)[BATCH], uint32_t (&j)[BATCH]) {
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        uint32_t h = IS_NORM ? i[b] / 32 : i[b] / (in.width / 4);
        j[b] = h * (in.head_stride / 4) + (i[b] - h * (in.width / 4));
    }
}

/* Heads of 128 columns, a warp a head; or gates alone. */
template <int BATCH, int SHARE, int GROUP, bool IS_NORM, class IMAGE>
static __device__ __forceinline__ void
prepare_gated(const struct team &who, const struct cuda_io &io, const struct project_input &in,
              const struct row_source &from, float4 weight, IMAGE image) {
    uint32_t n = in.k / 4, i[BATCH], j[BATCH];
    bool own[BATCH];
    find_pieces<BATCH>(who, 0, n, i, own);
    find_gates<BATCH, IS_NORM>(in, i, j);
    uint32_t row = open_row(io, in, from);
    const float *x = in.x + (uint64_t)row * in.x_stride;
    const float *gate = in.gate + (uint64_t)row * in.gate_row_stride;
#pragma unroll 1
    for (uint32_t base = 0; base < n;) {
        float4 v[BATCH], g[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            v[b] = __ldcg((const float4 *)x + i[b]);
            g[b] = __ldcg((const float4 *)gate + j[b]);
        }
        float sum[BATCH];
        if (IS_NORM) {
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                sum[b] = squares(v[b]);
            add_squares<BATCH>(sum);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            v[b] = times(v[b], sigmoids(g[b]));
            if (IS_NORM) {
                float f = rsqrtf(__fmaf_rn(sum[b], 1.0f / PROJECT_CHUNK, in.eps));
                v[b] = times(times(times(v[b], g[b]), weight), make_float4(f, f, f, f));
            }
        }
        put_pieces<BATCH, SHARE, GROUP, false>(who, in, image, i, own, v, sum, NULL);
        base += BATCH * who.step;
        find_pieces<BATCH>(who, base, n, i, own);
        find_gates<BATCH, IS_NORM>(in, i, j);
    }
}

/* Norm weights that may be loaded before the wait. */
static __device__ __forceinline__ void prepare_early(const struct team &who,
                                                     const struct project_input &in,
                                                     float4 (&weight)[NORM_BATCH]) {
    if (!project_is_quick(&in))
        return;
#pragma unroll
    for (int b = 0; b < NORM_BATCH; b++)
        if (in.kind == PREPARE_NORM)
            weight[b] = __ldcg((const float4 *)in.norm + piece_of(who, b * who.step, in.k / 4));
    if (in.kind == PREPARE_GATED_NORM)
        weight[0] = __ldcg((const float4 *)in.norm + threadIdx.x % 32);
}

/* A row to an image, by the whole block. red: room for k / 128 floats of this row, or for a factor
 * a head. */
template <int SHARE, int GROUP = 0, class IMAGE = uint8_t *>
static __device__ __forceinline__ void
prepare_row(const struct team &who, const struct cuda_io &io, const struct project_input &in,
            const struct row_source &from, const float4 (&weight)[NORM_BATCH], IMAGE image,
            float *red) {
    uint32_t n = in.k / 4;
    if (!project_is_quick(&in)) {
        prepare_any<GROUP>(io, in, from, image, red);
    } else if (in.kind == PREPARE_NONE) {
        if (n <= who.step)
            prepare_plain<1, SHARE, GROUP>(who, io, in, from, image);
        else if (n <= 2 * who.step)
            prepare_plain<2, SHARE, GROUP>(who, io, in, from, image);
        else if (SHARE > 1 || n <= 3 * who.step)
            prepare_plain<3, SHARE, GROUP>(who, io, in, from, image);
        else
            prepare_plain<5, SHARE, GROUP>(who, io, in, from, image);
    } else if (in.kind == PREPARE_NORM) {
        if (n <= who.step)
            prepare_norm<1, SHARE, GROUP>(who, io, in, from, weight, image, red);
        else
            prepare_norm<NORM_BATCH, SHARE, GROUP>(who, io, in, from, weight, image, red);
    } else if (in.kind == PREPARE_GATED_NORM) {
        if (n <= who.step)
            prepare_gated<1, SHARE, GROUP, true>(who, io, in, from, weight[0], image);
        else
            prepare_gated<2, SHARE, GROUP, true>(who, io, in, from, weight[0], image);
    } else {
        if (n <= who.step)
            prepare_gated<1, SHARE, GROUP, false>(who, io, in, from, weight[0], image);
        else
            prepare_gated<2, SHARE, GROUP, false>(who, io, in, from, weight[0], image);
    }
}

static __device__ __forceinline__ float norm_factor(const struct project_input &in, float squares) {
    return rsqrtf(__fadd_rn(__fdividef(squares, (float)in.k), in.eps));
}

/* What the results are to be multiplied with, behind a barrier; every warp has it. */
static __device__ __forceinline__ float prepare_factor(const struct project_input &in,
                                                       const float *red) {
    if (in.kind != PREPARE_NORM)
        return 1;
    float sum = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32; i < in.k / PROJECT_CHUNK; i += 32)
        sum = __fadd_rn(sum, red[i]);
    return norm_factor(in, warp_sum(sum));
}

#endif
