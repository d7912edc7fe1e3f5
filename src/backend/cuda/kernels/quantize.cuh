/* quantize.cuh - a row of activations made ready for a product: norm or gate, then int8.
 *
 * A thread takes eight columns at once, 16 threads 128; all of those, or 32 columns each, share a
 * scale. What a group becomes depends on the row alone, not on how many warps work on it; so blocks
 * of a product may prepare their rows themselves or find them prepared. Where it goes is the
 * qact's matter: that of project.h (a plain pointer), or another for which there are functions of
 * the same names. The norm's factor is one of the whole row, so it is left to the results: x * w is
 * quantised at once, and one barrier is enough. A head's factor is left to its scales, likewise.
 */
#ifndef BACKEND_CUDA_KERNELS_QUANTIZE_CUH
#define BACKEND_CUDA_KERNELS_QUANTIZE_CUH

#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/project.h"

/* A number that all lanes have, and the compiler knows it: else it expects them to part at every
 * branch on it, and guards all that they do together. */
static __device__ __forceinline__ uint32_t warp_uniform(uint32_t x) {
    return __reduce_max_sync(~0u, x);
}

static __device__ __forceinline__ float sigmoid_approx(float x) {
    return rcp_approx(__fadd_rn(1.0f, ex2_approx(__fmul_rn(x, -1.44269504f))));
}

/* SwiGLU. */
static __device__ __forceinline__ float swiglu(float gate, float up) {
    return __fmul_rn(__fmul_rn(gate, sigmoid_approx(gate)), up);
}

static __device__ __forceinline__ float4 mul(float4 a, float4 b) {
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

/* ---- pieces of a row --------------------------------------------------------------------------
 */

enum {
    GROUP_THREADS = PROJECT_GROUP / PROJECT_COLS,
    NEXT_HALF = GROUP_THREADS
}; /* of 128 columns */

/* Eight columns: four, and the four that are 64 behind them; of 128, neighbours of 16 lanes. */
struct col8 {
    float4 half[2];
};

/* Who prepares a row. */
struct row_threads {
    uint32_t first, step; /* this thread's first piece, and how many pieces all take in a round */
    uint32_t warp;        /* its warp's first */
};

/* Threads of a block: as few as take a piece each, or all. */
static __device__ __forceinline__ struct row_threads
row_threads_of(const struct project_input &in) {
    uint32_t threads = min(blockDim.x, (in.k / PROJECT_COLS + 31) / 32 * 32);
    return {threadIdx.x, threads, warp_uniform(threadIdx.x / 32) * 32};
}

/* Where the piece that a thread takes in the round from `base` begins, in fours of columns. Behind
 * the end half a warp does the row's first 128 columns once more, since lanes that stand aside cost
 * more. */
static __device__ __forceinline__ uint32_t col8_at(const struct row_threads &who, uint32_t base,
                                                   uint32_t n) {
    uint32_t i = base + who.first, lane = threadIdx.x % GROUP_THREADS;
    return i < n ? i * 2 - lane : lane;
}

static __device__ __forceinline__ struct col8 load_col8(const float4 *at) {
    return {{__ldcg(at), __ldcg(at + NEXT_HALF)}};
}

/* Weights are the same for all blocks, and a head's for all warps: the L1 cache has them then. */
static __device__ __forceinline__ struct col8 load_norm_weights(const float4 *at) {
    return {{__ldg(at), __ldg(at + NEXT_HALF)}};
}

static __device__ __forceinline__ void load_col8_if(bool is_wanted, const float4 *at,
                                                    struct col8 &v) {
    ld_cg_f32x4_if(is_wanted, at, v.half[0]);
    ld_cg_f32x4_if(is_wanted, at + NEXT_HALF, v.half[1]);
}

static __device__ __forceinline__ struct col8 mul(const struct col8 &a, const struct col8 &b) {
    return {{mul(a.half[0], b.half[0]), mul(a.half[1], b.half[1])}};
}

/* ---- where things go in an qact: of columns 4 i ... ------------------------------------------
 */

static __device__ __forceinline__ void *qact_word(uint8_t *qact, uint32_t k, uint32_t i) {
    return qact + (i % 32 / 4 * project_plane(k) + i / 32) * 16 + i % 4 * 4;
}

static __device__ __forceinline__ float4 *qact_floats(uint8_t *qact,
                                                      const struct project_input &in) {
    return (float4 *)(qact + (in.wants_int8 ? project_int8_bytes(in.k) : 0));
}

/* The scale and the sum of the 32 columns. */
static __device__ __forceinline__ void qact_group(uint8_t *qact, uint32_t k, uint32_t i,
                                                  float scale, int sum) {
    *(float *)(qact + project_scales_at(k) + i / 8 * 4) = scale;
    *(int *)(qact + project_sums_at(k) + i / 8 * 4) = sum;
}

/* What the types of a kernel's weights say, as far as they do. Whether 128 columns share a scale;
 * whether there are int8 activations; whether there are floats. */
template <int SET> static __device__ __forceinline__ bool is_wide(const struct project_input &in) {
    return SET & IS_K_QUANT && SET & IS_Q8_0 ? in.act_group == 128 : (SET & IS_K_QUANT) != 0;
}

template <int SET>
static __device__ __forceinline__ bool wants_int8(const struct project_input &in) {
    return SET & IS_INT8 && (!(SET & ~IS_INT8) || in.wants_int8);
}

template <int SET>
static __device__ __forceinline__ bool wants_f32(const struct project_input &in) {
    return SET & ~IS_INT8 && (!(SET & IS_INT8) || in.wants_f32);
}

/* Whether the squares of a row's columns are wanted, by 128. */
static __device__ __forceinline__ bool wants_squares(uint32_t kind) {
    return kind == PROLOGUE_NORM || kind == PROLOGUE_GATED_NORM;
}

/* Of a head of 128 columns. */
static __device__ __forceinline__ float head_factor(const struct project_input &in, float square) {
    return rsqrtf(__fmaf_rn(square, 1.0f / PROJECT_GROUP, in.eps));
}

/* The squares of 128 columns are added from lanes far apart to neighbours. */
static __device__ __forceinline__ void add_square(float &sum, int lane) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, lane));
}

/* What a size is a scale of, and what makes a value a number of it. */
struct scale {
    float d, inverse;
};

static __device__ __forceinline__ struct scale find_scale(uint32_t size) {
    float d = __fmul_rn(__uint_as_float(size), 1 / 127.0f);
    d = d < 1.17549435e-38f ? 0 : d;
    return {d, size < 0x7f800000u && d > 0 ? rcp_approx(d) : 0};
}

/* The piece at `i`, as quant.h's act_quantize has it: sizes are compared as integers, so that a NaN
 * is the largest. Squares are added on the way, which takes no time. The sums of the two halves'
 * numbers are added as one number, 16 bits apart. */
template <int SET, class QACT>
static __device__ __forceinline__ void store_int8(const struct project_input &in, uint32_t kind,
                                                  QACT qact, uint32_t i, const struct col8 &v,
                                                  float &square) {
    uint32_t m[2], q[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        m[h] = max(max(size_bits(v.half[h].x), size_bits(v.half[h].y)),
                   max(size_bits(v.half[h].z), size_bits(v.half[h].w)));
    m[0] = is_wide<SET>(in) ? max(m[0], m[1]) : m[0];
#pragma unroll
    for (int lane = GROUP_THREADS / 2; lane > 0; lane /= 2) {
        if (is_wide<SET>(in) || lane < 8)
            m[0] = max(m[0], __shfl_xor_sync(~0u, m[0], lane));
        if (!is_wide<SET>(in) && lane < 8)
            m[1] = max(m[1], __shfl_xor_sync(~0u, m[1], lane));
        add_square(square, lane);
    }
    struct scale scale[2];
    scale[0] = find_scale(m[0]);
    scale[1] = is_wide<SET>(in) ? scale[0] : find_scale(m[1]);
#pragma unroll
    for (int h = 0; h < 2; h++)
        q[h] = round4(v.half[h], scale[h].inverse);
    int sum = __dp4a((int)q[0], 0x01010101, 0) + (__dp4a((int)q[1], 0x01010101, 0) << 16);
    float f = kind == PROLOGUE_GATED_NORM ? head_factor(in, square) : 1;
#pragma unroll
    for (int lane = 1; lane < 8; lane *= 2)
        sum += __shfl_xor_sync(~0u, sum, lane);
#pragma unroll
    for (int h = 0; h < 2; h++)
        *(uint32_t *)qact_word(qact, in.k, i + h * NEXT_HALF) = q[h];
    uint32_t h = threadIdx.x % 8; /* a lane of eight for each half */
    if (h < 2) {
        int low = (int16_t)sum;
        qact_group(qact, in.k, i + h * NEXT_HALF, __fmul_rn(h ? scale[1].d : scale[0].d, f),
                   h ? (sum - low) >> 16 : low);
    }
}

static __device__ __forceinline__ float add_squares(float square) {
#pragma unroll
    for (int lane = GROUP_THREADS / 2; lane > 0; lane /= 2)
        add_square(square, lane);
    return square;
}

/* square: that of a lane's columns before the norm's weight, where it is wanted. */
template <int SET, class QACT>
static __device__ __forceinline__ void store_col8(const struct project_input &in, uint32_t kind,
                                                  QACT qact, uint32_t i, struct col8 v,
                                                  float square, float *red) {
    if (wants_f32<SET>(in)) {
        float4 *to = qact_floats(qact, in) + i;
        if (kind == PROLOGUE_GATED_NORM) {
            float f = head_factor(in, add_squares(square));
            struct col8 factor = {{make_float4(f, f, f, f), make_float4(f, f, f, f)}};
            v = mul(v, factor);
            kind = PROLOGUE_NONE;
        }
        to[0] = v.half[0];
        to[NEXT_HALF] = v.half[1];
    }
    if (wants_int8<SET>(in))
        store_int8<SET>(in, kind, qact, i, v, square);
    else if (kind == PROLOGUE_NORM)
        square = add_squares(square);
    if (kind == PROLOGUE_NORM && threadIdx.x % GROUP_THREADS == 0)
        red[i / 32] = square;
}

/* ---- where a row comes from --------------------------------------------------------------------
 */

/* Row `i` of those that go through the product. */
struct row_source {
    uint32_t i, limit; /* limit: rows of the bucket */
    bool is_first;     /* the wait is still to be done */
};

/* Rows that go through the product. */
static __device__ __forceinline__ uint32_t count_rows(const struct cuda_io &io,
                                                      const struct project_input &in) {
    return in.is_lm_head ? io.header->n_outputs : io.header->n_rows;
}

/* Where a row begins, and its gates. */
struct row_place {
    const float *x, *gate;
};

static __device__ __forceinline__ struct row_place row_at(const struct project_input &in,
                                                          uint32_t row) {
    return {in.x + (uint64_t)row * in.x_stride, in.gate + (uint64_t)row * in.gate_row_stride};
}

/* Known before the wait, but for a head. One behind the last is some row: it is computed, and not
 * stored. */
static __device__ __forceinline__ struct row_place early_row(const struct project_input &in,
                                                             const struct row_source &from) {
    return row_at(in, min(from.i, from.limit - 1));
}

/* Behind the wait. It is made uniform so that its load is waited for right here, and not by all
 * others. */
static __device__ __forceinline__ struct row_place
head_row(const struct cuda_io &io, const struct project_input &in, const struct row_source &from) {
    return row_at(in, warp_uniform(from.i < io.header->n_outputs ? io.outputs[from.i].row : 0));
}

static __device__ __forceinline__ struct row_place
open_row(const struct cuda_io &io, const struct project_input &in, const struct row_source &from) {
    if (from.is_first)
        pdl_wait(io);
    return in.is_lm_head ? head_row(io, in, from) : early_row(in, from);
}

/* ---- the general way: heads of any width, any alignment ---------------------------------------
 */

static __device__ __forceinline__ void head_factors(const struct project_input &in, const float *x,
                                                    float *red) {
    uint32_t lane = threadIdx.x % 32, heads = in.k / in.width;
    for (uint32_t h = warp_uniform(threadIdx.x / 32); h < heads; h += blockDim.x / 32) {
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
    if (in.kind == PROLOGUE_NONE)
        return v;
    if (in.kind == PROLOGUE_NORM)
        return __fmul_rn(v, __ldcg(in.norm + c));
    float g = __ldcg(gate + (uint64_t)h * in.head_stride + at);
    if (in.kind == PROLOGUE_SIGMOID_GATE)
        return __fmul_rn(v, sigmoid_approx(g));
    return __fmul_rn(__fmul_rn(__fmul_rn(v, red[h]), __ldcg(in.norm + at)),
                     __fmul_rn(g, sigmoid_approx(g)));
}

static __device__ __forceinline__ float4 any_four(const struct project_input &in,
                                                  const struct row_place &row, float4 v, uint32_t c,
                                                  const float *red) {
    return make_float4(
        any_value(in, row.gate, v.x, c, red), any_value(in, row.gate, v.y, c + 1, red),
        any_value(in, row.gate, v.z, c + 2, red), any_value(in, row.gate, v.w, c + 3, red));
}

template <int SET, class QACT>
static __device__ __forceinline__ void
quantize_row_generic(const struct cuda_io &io, const struct project_input &in,
                     const struct row_source &from, QACT qact, float *red) {
    struct row_threads who = {threadIdx.x, blockDim.x, 0}; /* every block for itself */
    struct row_place row = open_row(io, in, from);
    uint32_t n = in.k / PROJECT_COLS,
             kind = in.kind == PROLOGUE_NORM ? PROLOGUE_NORM : PROLOGUE_NONE;
    if (in.kind == PROLOGUE_GATED_NORM)
        head_factors(in, row.x, red);
#pragma unroll 1
    for (uint32_t base = 0; base < n; base += blockDim.x) {
        uint32_t i = col8_at(who, base, n);
        struct col8 v;
        float square = 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t c = 4 * (i + h * NEXT_HALF);
            const float *x = row.x + c;
            float4 u = make_float4(__ldcg(x), __ldcg(x + 1), __ldcg(x + 2), __ldcg(x + 3));
            square = __fadd_rn(square, squares(u));
            v.half[h] = any_four(in, row, u, c, red);
        }
        store_col8<SET>(in, kind, qact, i, v, square, red);
    }
    if (in.kind == PROLOGUE_GATED_NORM)
        __syncthreads(); /* before the next row's factors */
}

/* ---- the quick way: 16 bytes at a time --------------------------------------------------------
 */

static __device__ __forceinline__ float4 sigmoids(float4 g) {
    return make_float4(sigmoid_approx(g.x), sigmoid_approx(g.y), sigmoid_approx(g.z),
                       sigmoid_approx(g.w));
}

/* Where the gates of columns 4 i ... lie: heads are multiples of 128 columns. Without gates it is
 * i. */
static __device__ __forceinline__ uint32_t gate_at(const struct project_input &in, uint32_t i) {
    return i + (i / 32 * in.head_fastdiv >> 16) * in.head_gap;
}

/* Norm weights of the first round, which may be loaded before the wait; those of a head are the
 * same for all. */
static __device__ __forceinline__ void load_norm_early(const struct row_threads &who,
                                                       const struct project_input &in,
                                                       struct col8 &weights) {
    if (!project_is_vec4(&in) || !wants_squares(in.kind))
        return;
    uint32_t i = col8_at(who, 0, in.k / PROJECT_COLS);
    weights = load_norm_weights((const float4 *)in.norm +
                                (in.kind == PROLOGUE_NORM ? i : threadIdx.x % GROUP_THREADS));
}

/* What is read with a piece: its gates; or, of a row that is just quantized, the next round's
 * piece; else nothing. */
struct other {
    bool is_wanted;
    const float4 *at;
};

static __device__ __forceinline__ struct other find_other(const struct row_threads &who,
                                                          const struct project_input &in,
                                                          const struct row_place &row, uint32_t i,
                                                          uint32_t next) {
    bool is_gated = in.kind >= PROLOGUE_GATED_NORM;
    uint32_t n = in.k / PROJECT_COLS, then = col8_at(who, next, n);
    const float4 *from = (const float4 *)(is_gated ? row.gate : row.x);
    return {is_gated || (in.kind == PROLOGUE_NONE && next + who.warp < n),
            from + gate_at(in, is_gated ? i : then)};
}

/* Waits when all addresses are known. That something is known is not enough for the compiler, which
 * moves it behind the wait; but what a vote decides is decided. They are all multiples of 16. */
static __device__ __forceinline__ void pdl_wait_after(const struct cuda_io &io, const float4 *x,
                                                      const float4 *other) {
    if (!__any_sync(~0u, ((uintptr_t)x | (uintptr_t)other) & 1))
        pdl_wait(io);
}

/* All kinds of rows take one way, so that a stage finds its code where the stage before has left
 * it. weights: the norm's, of the first round, from load_norm_early. All that a round reads is
 * asked for before any of it is used; that this is so can only be seen in the machine code. */
template <int SET, class QACT>
static __device__ __forceinline__ void
quantize_row_vec4(const struct row_threads &who, const struct cuda_io &io,
                  const struct project_input &in, const struct row_source &from,
                  const struct col8 &weights, QACT qact, float *red) {
    if (who.warp >= who.step) {
        if (from.is_first)
            pdl_wait(io);
        return;
    }
    uint32_t n = in.k / PROJECT_COLS, next = who.step, i = col8_at(who, 0, n);
    struct row_place row = early_row(in, from);
    struct other other = find_other(who, in, row, i, next);
    const float4 *x = (const float4 *)row.x, *at = x + i;
    if (from.is_first)
        pdl_wait_after(io, at, other.at);
    if (in.is_lm_head) {
        x = (const float4 *)head_row(io, in, from).x;
        at = x + i;
    }
    struct col8 v = load_col8(at), w = weights, more = {};
    load_col8_if(other.is_wanted, other.at, more);
#pragma unroll 1
    for (;;) {
        float square = 0;
        if (wants_squares(in.kind)) {
            square = __fadd_rn(squares(v.half[0]), squares(v.half[1]));
            v = mul(v, w);
        }
        if (in.kind >= PROLOGUE_GATED_NORM) {
#pragma unroll
            for (int h = 0; h < 2; h++)
                v.half[h] = mul(v.half[h], sigmoids(more.half[h]));
            if (in.kind == PROLOGUE_GATED_NORM)
                v = mul(v, more);
        }
        store_col8<SET>(in, in.kind, qact, i, v, square, red);
        if (next + who.warp >= n)
            break;
        i = col8_at(who, next, n);
        next += who.step;
        if (in.kind == PROLOGUE_NONE)
            v = more;
        else
            v = load_col8(x + i);
        if (in.kind == PROLOGUE_NORM)
            w = load_norm_weights((const float4 *)in.norm + i);
        other = find_other(who, in, row, i, next);
        load_col8_if(other.is_wanted, other.at, more);
    }
}

/* A row to an qact, by the whole block. red: room for k / 128 floats of this row, or for a factor
 * a head. */
template <int SET = 127, class QACT>
static __device__ __forceinline__ void
quantize_row(const struct row_threads &who, const struct cuda_io &io,
             const struct project_input &in, const struct row_source &from,
             const struct col8 &weights, QACT qact, float *red) {
    if (!project_is_vec4(&in))
        quantize_row_generic<SET>(io, in, from, qact, red);
    else
        quantize_row_vec4<SET>(who, io, in, from, weights, qact, red);
}

/* The same as a kernel's only work, by all blocks of a row together. */
template <class QACT>
static __device__ __forceinline__ void
quantize_row_grid(const struct cuda_io &io, const struct project_input &in,
                  const struct row_source &from, QACT qact, float *red) {
    uint32_t before = blockIdx.y * blockDim.x;
    struct row_threads who = {before + threadIdx.x, gridDim.y * blockDim.x,
                              before + warp_uniform(threadIdx.x / 32) * 32};
    struct col8 weights = {};
    load_norm_early(who, in, weights);
    quantize_row(who, io, in, from, weights, qact, red);
}

static __device__ __forceinline__ float norm_factor(const struct project_input &in, float squares) {
    return rsqrtf(__fadd_rn(__fdividef(squares, (float)in.k), in.eps));
}

/* What the results are to be multiplied with, behind a barrier; every warp has it. */
static __device__ __forceinline__ float row_factor(const struct project_input &in,
                                                   const float *red) {
    if (in.kind != PROLOGUE_NORM)
        return 1;
    float sum = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32; i < in.k / PROJECT_GROUP; i += 32)
        sum = __fadd_rn(sum, red[i]);
    return norm_factor(in, warp_sum(sum));
}

#endif
