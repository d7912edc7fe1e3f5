/* quantize.cuh - a row of activations through PROJECT's prologue and into its qact.
 *
 *   NONE          a = x
 *   NORM          a = x * w              the row's factor rsqrt(mean(x^2) + eps) scales the results
 *   GATED_NORM    a = x * w * silu(g)    a head's factor rsqrt(mean(x^2) + eps) scales its scales
 *   SIGMOID_GATE  a = x * sigmoid(g)
 *
 *   q = round(a / d), d = max|a| / 127 over a group of 32 or 128 columns; sum(q) over 32 columns
 *
 * The norm's factor needs the whole row, so it is left to the product's results: x * w is quantized
 * at once, and the row needs no second pass.
 *
 * A thread takes 8 columns (struct col8), half a warp 128, so that groups of 32 and 128 are reduced
 * by shuffles. What a group becomes depends on the row alone, not on how many warps share it: the
 * thread blocks of a product may each quantize their rows, or read rows that another kernel has
 * quantized. Where values go is decided by the type QACT: uint8_t * is project.h's layout; another
 * type brings its own qact_word (or qact_store), qact_floats and qact_group.
 *
 * Bytes: 4 a column of x, of g and of w, each read once by every thread block that quantizes. */
#ifndef BACKEND_CUDA_KERNELS_QUANTIZE_CUH
#define BACKEND_CUDA_KERNELS_QUANTIZE_CUH

#include "backend/cuda/formats/tiles.h"
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/project_bf16.cuh"
#include "backend/cuda/ops/project.h"

/* x is the same in all lanes; after this the compiler knows it, and does not expect the lanes to
 * diverge at branches on it. */
static __device__ __forceinline__ uint32_t warp_uniform(uint32_t x) {
    return __reduce_max_sync(~0u, x);
}

static __device__ __forceinline__ float sigmoid_approx(float x) {
    return rcp_approx(__fadd_rn(1.0f, ex2_approx(__fmul_rn(x, -1.44269504f))));
}

static __device__ __forceinline__ float swiglu(float gate, float up) {
    return __fmul_rn(__fmul_rn(gate, sigmoid_approx(gate)), up);
}

static __device__ __forceinline__ float4 mul(float4 a, float4 b) {
    return make_float4(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z),
                       __fmul_rn(a.w, b.w));
}

static __device__ __forceinline__ float4 add4(float4 a, float4 b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                       __fadd_rn(a.w, b.w));
}

static __device__ __forceinline__ float sum_squares(float4 v) {
    float s = __fmul_rn(v.x, v.x);
    s = __fmaf_rn(v.y, v.y, s);
    s = __fmaf_rn(v.z, v.z, s);
    return __fmaf_rn(v.w, v.w, s);
}

/* round(v * f) as four bytes: adding 1.5 * 2^23 leaves the rounded value in the low bits. */
static __device__ __forceinline__ uint32_t round4(float4 v, float f) {
    const float shift = 12582912.0f;
    uint32_t a = __float_as_uint(__fmaf_rn(v.x, f, shift)),
             b = __float_as_uint(__fmaf_rn(v.y, f, shift));
    uint32_t c = __float_as_uint(__fmaf_rn(v.z, f, shift)),
             d = __float_as_uint(__fmaf_rn(v.w, f, shift));
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

/* |x| as an integer that compares alike; a NaN is the largest. */
static __device__ __forceinline__ uint32_t abs_bits(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}

/* ---- 8 columns a thread ------------------------------------------------------------------- */

enum {
    GROUP_THREADS = PROJECT_GROUP / PROJECT_COLS, /* of 128 columns */
    COL8_STEP = GROUP_THREADS,                    /* float4s between a thread's two */
};

/* Columns 4 l ... and 64 + 4 l ... of 128, l = thread % 16: both loads are coalesced. */
struct col8 {
    float4 quad[2];
};

/* The threads that quantize a row, a col8 each a round. */
struct row_threads {
    uint32_t first, step; /* this thread's first col8, and col8s a round */
    uint32_t warp;        /* its warp's first col8 */
};

/* Threads of one block: as many as there are col8s, at most all. */
static __device__ __forceinline__ struct row_threads
row_threads_of(const struct project_input &in) {
    uint32_t threads = min(blockDim.x, (in.k / PROJECT_COLS + 31) / 32 * 32);
    return {threadIdx.x, threads, warp_uniform(threadIdx.x / 32) * 32};
}

/* First float4 of the thread's col8 in the round that begins with col8 `base`; n: col8s of the row.
 * After the row's end half a warp repeats the first 128 columns, which is cheaper than diverging.
 */
static __device__ __forceinline__ uint32_t col8_at(const struct row_threads &threads, uint32_t base,
                                                   uint32_t n) {
    uint32_t i = base + threads.first, lane = threadIdx.x % GROUP_THREADS;
    return i < n ? i * 2 - lane : lane;
}

static __device__ __forceinline__ struct col8 load_col8(const float4 *at) {
    return {{__ldcg(at), __ldcg(at + COL8_STEP)}};
}

/* Through L1: all blocks of an SM, and with heads all warps, read the same. */
static __device__ __forceinline__ struct col8 load_norm_weights(const float4 *at) {
    return {{__ldg(at), __ldg(at + COL8_STEP)}};
}

static __device__ __forceinline__ void load_col8_if(bool is_wanted, const float4 *at,
                                                    struct col8 &v) {
    ld_cg_f32x4_if(is_wanted, at, v.quad[0]);
    ld_cg_f32x4_if(is_wanted, at + COL8_STEP, v.quad[1]);
}

static __device__ __forceinline__ struct col8 mul(const struct col8 &a, const struct col8 &b) {
    return {{mul(a.quad[0], b.quad[0]), mul(a.quad[1], b.quad[1])}};
}

/* ---- stores to project.h's qact, for columns 4 i ... -------------------------------------- */

static __device__ __forceinline__ void *qact_word(uint8_t *qact, uint32_t k, uint32_t i) {
    return qact + (i % 32 / 4 * project_plane(k) + i / 32) * 16 + i % 4 * 4;
}

static __device__ __forceinline__ float4 *qact_floats(uint8_t *qact,
                                                      const struct project_input &in) {
    return (float4 *)(qact + (in.wants_int8 ? project_int8_bytes(in.k) : 0));
}

/* Stores the int8 values of columns 4 i ...; a layout whose values are not bytes has its own. */
template <class QACT>
static __device__ __forceinline__ void qact_store(const QACT &qact, uint32_t k, uint32_t i,
                                                  uint32_t q) {
    *(uint32_t *)qact_word(qact, k, i) = q;
}

/* Stores the float values of columns 4 i ...; beside BF16 weights, as parts. */
template <class QACT>
static __device__ __forceinline__ void
qact_store_floats(const QACT &qact, const struct project_input &in, bool, uint32_t i, float4 v) {
    qact_floats(qact, in)[i] = v;
}

static __device__ __forceinline__ void qact_store_floats(uint8_t *qact,
                                                         const struct project_input &in,
                                                         bool is_split, uint32_t i, float4 v) {
    float4 *to = qact_floats(qact, in);
    if (is_split)
        store_bf16_parts((uint8_t *)to, i, split_bf16(v));
    else
        to[i] = v;
}

/* Stores the scale and the sum of quants of 32 columns. */
static __device__ __forceinline__ void qact_group(uint8_t *qact, uint32_t k, uint32_t i,
                                                  float scale, int sum) {
    *(float *)(qact + project_scales_at(k) + i / 8 * 4) = scale;
    *(int *)(qact + project_sums_at(k) + i / 8 * 4) = sum;
}

/* ---- a row becomes F16 parts --------------------------------------------------------------------
 *
 * The row's scale needs its largest value: values wait in shared memory as f32. */

struct f16_row {
    float4 *values;
    uint32_t *max; /* bits of the thread's largest |a| */
};

static __device__ __forceinline__ void qact_store_floats(const struct f16_row &to,
                                                         const struct project_input &, bool,
                                                         uint32_t i, float4 v) {
    to.values[i] = v;
    *to.max =
        max(max(max(abs_bits(v.x), abs_bits(v.y)), max(abs_bits(v.z), abs_bits(v.w))), *to.max);
}

static __device__ __forceinline__ void *qact_word(const struct f16_row &, uint32_t, uint32_t) {
    return NULL; /* there are no int8 values */
}

static __device__ __forceinline__ void qact_group(const struct f16_row &, uint32_t, uint32_t, float,
                                                  int) {
}

/* Where a qact of F16 alone has its row's 1 / s. */
template <class T> static __device__ __forceinline__ auto f16_down(T *qact, uint32_t k) {
    return (float *)(qact + k * 4);
}

/* maxima: a word a warp. */
static __device__ __forceinline__ void store_warp_max(uint32_t max_bits, uint32_t *maxima) {
    max_bits = __reduce_max_sync(~0u, max_bits);
    if (threadIdx.x % 32 == 0)
        maxima[threadIdx.x / 32] = max_bits;
}

/* After a barrier. */
static __device__ __forceinline__ struct f16_scale find_row_scale(const uint32_t *maxima) {
    uint32_t lane = threadIdx.x % 32;
    return f16_scale_of(__reduce_max_sync(~0u, lane < blockDim.x / 32 ? maxima[lane] : 0));
}

/* By the thread block, after the barrier: store(i, parts of columns 4 i ..., of 64 + 4 i ...).
 * Returns the row's 1 / s. A half warp reads 128 columns before it stores them, so parts may take
 * the place of values.
 */
template <class STORE>
static __device__ __forceinline__ float split_f16_row(uint32_t k, const float4 *values,
                                                      const uint32_t *maxima, STORE store) {
    uint32_t n = k / PROJECT_COLS, c = threadIdx.x, i = c * 2 - c % GROUP_THREADS;
    float4 a = {}, b = {};
    if (c < n)
        a = values[i], b = values[i + COL8_STEP];
    struct f16_scale scale = find_row_scale(maxima);
    float4 up = make_float4(scale.up, scale.up, scale.up, scale.up);
#pragma unroll 1
    while (c < n) {
        __syncwarp();
        store(i, split_f16(mul(a, up)), split_f16(mul(b, up)));
        c += blockDim.x, i += 2 * blockDim.x;
        if (c < n)
            a = values[i], b = values[i + COL8_STEP];
    }
    return scale.down;
}

/* ---- what the kernel's set of weight types decides at compile time, as far as it does ----- */

template <int SET>
static __device__ __forceinline__ bool wants_int8(const struct project_input &in) {
    return SET & IS_INT8 && (!(SET & ~IS_INT8) || in.wants_int8);
}

template <int SET>
static __device__ __forceinline__ bool wants_f32(const struct project_input &in) {
    return SET & ~IS_INT8 && (!(SET & IS_INT8) || in.wants_f32);
}

/* Whether float values are in two parts: the op has BF16 weights. Kernels of BF16 and at most F32
 * are for such ops alone. */
template <int SET> static __device__ __forceinline__ bool is_split(bool is_split_op) {
    return SET & IS_BF16 && (!(SET & ~(IS_BF16 | IS_F32)) || is_split_op);
}

static __device__ __forceinline__ bool wants_squares(uint32_t prologue) {
    return prologue == PROLOGUE_NORM || prologue == PROLOGUE_GATED_NORM;
}

/* ---- quantizing --------------------------------------------------------------------------- */

/* norm_factor of a head of 128 columns: one instruction less, the same bits. */
static __device__ __forceinline__ float head_factor(const struct project_input &in, float square) {
    return rsqrtf(__fmaf_rn(square, 1.0f / PROJECT_GROUP, in.eps));
}

/* One level of the sum over 16 lanes, which goes from lanes 8 apart to neighbours. */
static __device__ __forceinline__ void add_shfl_xor(float &sum, int lane) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, lane));
}

struct quant_scale {
    float d, inverse; /* inverse: 0 where d is, or the group has an infinity or NaN */
};

static __device__ __forceinline__ struct quant_scale quant_scale_of(uint32_t max_bits) {
    float d = __fmul_rn(__uint_as_float(max_bits), 1 / 127.0f);
    d = d < 1.17549435e-38f ? 0 : d;
    return {d, max_bits < 0x7f800000u && d > 0 ? rcp_approx(d) : 0};
}

/* Quantizes and stores columns 4 i ... and 4 (i + COL8_STEP) ... with the results of quant.h's
 * act_quantize. `square` becomes the sum of 128 columns: its shuffles fill the latency of those for
 * the maximum. The sums of quants of both quads are one int, the second 16 bits up. */
template <int SET, class QACT>
static __device__ __forceinline__ void store_int8(const struct project_input &in, uint32_t prologue,
                                                  QACT qact, uint32_t i, const struct col8 &v,
                                                  float &square) {
    uint32_t m[2], q[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        m[h] = max(max(abs_bits(v.quad[h].x), abs_bits(v.quad[h].y)),
                   max(abs_bits(v.quad[h].z), abs_bits(v.quad[h].w)));
    m[0] = max(m[0], m[1]);
#pragma unroll
    for (int lane = GROUP_THREADS / 2; lane > 0; lane /= 2) {
        m[0] = max(m[0], __shfl_xor_sync(~0u, m[0], lane));
        add_shfl_xor(square, lane);
    }
    const struct quant_scale scale = quant_scale_of(m[0]);
#pragma unroll
    for (int h = 0; h < 2; h++)
        q[h] = round4(v.quad[h], scale.inverse);
    int sum = __dp4a((int)q[0], 0x01010101, 0) + (__dp4a((int)q[1], 0x01010101, 0) << 16);
    float f = prologue == PROLOGUE_GATED_NORM ? head_factor(in, square) : 1;
#pragma unroll
    for (int lane = 1; lane < 8; lane *= 2)
        sum += __shfl_xor_sync(~0u, sum, lane);
#pragma unroll
    for (int h = 0; h < 2; h++)
        qact_store(qact, in.k, i + h * COL8_STEP, q[h]);
    uint32_t h = threadIdx.x % 8; /* lanes 0 and 1 of eight store the two groups' scale and sum */
    if (h < 2) {
        int low = (int16_t)sum;
        qact_group(qact, in.k, i + h * COL8_STEP, __fmul_rn(scale.d, f),
                   h ? (sum - low) >> 16 : low);
    }
}

static __device__ __forceinline__ float reduce_squares(float square) {
#pragma unroll
    for (int lane = GROUP_THREADS / 2; lane > 0; lane /= 2)
        add_shfl_xor(square, lane);
    return square;
}

/* Stores a col8 in the forms that the qact has. square: of the thread's columns before the norm's
 * weight; NORM stores the sums of 128 columns to squares. */
template <int SET, class QACT>
static __device__ __forceinline__ void store_col8(const struct project_input &in, uint32_t prologue,
                                                  QACT qact, uint32_t i, struct col8 v,
                                                  float square, float *squares) {
    if (wants_f32<SET>(in)) {
        if (prologue == PROLOGUE_GATED_NORM) {
            float f = head_factor(in, reduce_squares(square));
            struct col8 factor = {{make_float4(f, f, f, f), make_float4(f, f, f, f)}};
            v = mul(v, factor);
            prologue = PROLOGUE_NONE;
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            qact_store_floats(qact, in, is_split<SET>(in.is_split), i + h * COL8_STEP, v.quad[h]);
    }
    if (wants_int8<SET>(in))
        store_int8<SET>(in, prologue, qact, i, v, square);
    else if (prologue == PROLOGUE_NORM)
        square = reduce_squares(square);
    if (prologue == PROLOGUE_NORM && threadIdx.x % GROUP_THREADS == 0)
        squares[i / 32] = square;
}

/* ---- which row ---------------------------------------------------------------------------- */

/* Row `i` of those that go through the product. */
struct row_source {
    uint32_t i, limit; /* limit: rows of the bucket */
    bool needs_wait;   /* pdl_wait is still to be called */
};

/* Rows that go through the product in this step. After pdl_wait. */
static __device__ __forceinline__ uint32_t count_rows(const struct cuda_io &io,
                                                      const struct project_input &in) {
    return in.is_lm_head ? io.header->n_outputs : io.header->n_rows;
}

struct row_pointers {
    const float *x, *gate;
};

static __device__ __forceinline__ struct row_pointers row_at(const struct project_input &in,
                                                             uint32_t row) {
    return {in.x + (uint64_t)row * in.x_stride, in.gate + (uint64_t)row * in.gate_row_stride};
}

/* Known before pdl_wait; not for the LM head. Rows after the last are computed as some other row,
 * and not stored. */
static __device__ __forceinline__ struct row_pointers fixed_row(const struct project_input &in,
                                                                const struct row_source &from) {
    return row_at(in, min(from.i, from.limit - 1));
}

/* The LM head's row is named in IO: after pdl_wait. warp_uniform waits for that load here; else its
 * scoreboard is waited for with all later loads. */
static __device__ __forceinline__ struct row_pointers lm_head_row(const struct cuda_io &io,
                                                                  const struct project_input &in,
                                                                  const struct row_source &from) {
    return row_at(in, warp_uniform(from.i < io.header->n_outputs ? io.outputs[from.i].row : 0));
}

static __device__ __forceinline__ struct row_pointers wait_for_row(const struct cuda_io &io,
                                                                   const struct project_input &in,
                                                                   const struct row_source &from) {
    if (from.needs_wait)
        pdl_wait(io);
    return in.is_lm_head ? lm_head_row(io, in, from) : fixed_row(in, from);
}

/* ---- generic path: heads of any width, any alignment -------------------------------------- */

/* GATED_NORM: a factor a head, a warp each. */
static __device__ __forceinline__ void store_head_factors(const struct project_input &in,
                                                          const float *x, float *factors) {
    uint32_t lane = threadIdx.x % 32, heads = in.k / in.head_width;
    for (uint32_t h = warp_uniform(threadIdx.x / 32); h < heads; h += blockDim.x / 32) {
        float sum = 0;
        for (uint32_t c = lane; c < in.head_width; c += 32) {
            float v = __ldcg(x + h * in.head_width + c);
            sum = __fmaf_rn(v, v, sum);
        }
        sum = warp_sum(sum);
        if (lane == 0)
            factors[h] = norm_factor(sum, in.head_width, in.eps);
    }
    __syncthreads();
}

/* The prologue of value v of column c. */
static __device__ __forceinline__ float prologue_value(const struct project_input &in,
                                                       const float *gate, float v, uint32_t c,
                                                       const float *factors) {
    uint32_t h = c / in.head_width, at = c - h * in.head_width;
    if (in.prologue == PROLOGUE_NONE)
        return v;
    if (in.prologue == PROLOGUE_NORM)
        return __fmul_rn(v, __ldcg(in.norm + c));
    float g = __ldcg(gate + (uint64_t)h * in.gate_head_stride + at);
    if (in.prologue == PROLOGUE_SIGMOID_GATE)
        return __fmul_rn(v, sigmoid_approx(g));
    return __fmul_rn(__fmul_rn(__fmul_rn(v, factors[h]), __ldcg(in.norm + at)),
                     __fmul_rn(g, sigmoid_approx(g)));
}

static __device__ __forceinline__ float4 prologue_values4(const struct project_input &in,
                                                          const struct row_pointers &row, float4 v,
                                                          uint32_t c, const float *factors) {
    return make_float4(prologue_value(in, row.gate, v.x, c, factors),
                       prologue_value(in, row.gate, v.y, c + 1, factors),
                       prologue_value(in, row.gate, v.z, c + 2, factors),
                       prologue_value(in, row.gate, v.w, c + 3, factors));
}

/* Every block quantizes the whole row. */
template <int SET, class QACT>
static __device__ __forceinline__ void
quantize_row_generic(const struct cuda_io &io, const struct project_input &in,
                     const struct row_source &from, QACT qact, float *red) {
    struct row_threads threads = {threadIdx.x, blockDim.x, 0};
    struct row_pointers row = wait_for_row(io, in, from);
    uint32_t n = in.k / PROJECT_COLS,
             prologue = in.prologue == PROLOGUE_NORM ? PROLOGUE_NORM : PROLOGUE_NONE;
    if (in.prologue == PROLOGUE_GATED_NORM)
        store_head_factors(in, row.x, red);
#pragma unroll 1
    for (uint32_t base = 0; base < n; base += blockDim.x) {
        uint32_t i = col8_at(threads, base, n);
        struct col8 v;
        float square = 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t c = 4 * (i + h * COL8_STEP);
            const float *x = row.x + c;
            float4 u = make_float4(__ldcg(x), __ldcg(x + 1), __ldcg(x + 2), __ldcg(x + 3));
            square = __fadd_rn(square, sum_squares(u));
            v.quad[h] = prologue_values4(in, row, u, c, red);
        }
        store_col8<SET>(in, prologue, qact, i, v, square, red);
    }
    if (in.prologue == PROLOGUE_GATED_NORM)
        __syncthreads(); /* before the next row's factors overwrite these */
}

/* ---- fast path: 16-byte loads, heads of 128 columns (or multiples, with SIGMOID_GATE) ----- */

static __device__ __forceinline__ float4 sigmoid4(float4 g) {
    return make_float4(sigmoid_approx(g.x), sigmoid_approx(g.y), sigmoid_approx(g.z),
                       sigmoid_approx(g.w));
}

/* The float4 of gates for float4 i of the row; i itself where there are no gates. */
static __device__ __forceinline__ uint32_t gate_at(const struct project_input &in, uint32_t i) {
    return i + (i / 32 * in.head_fastdiv >> 16) * in.gate_gap;
}

/* Norm weights of the first round: no kernel writes them, so they are loaded before pdl_wait. All
 * heads of GATED_NORM have the same. */
template <bool ALL_VEC4 = false>
static __device__ __forceinline__ void load_first_norm_weights(const struct row_threads &threads,
                                                               const struct project_input &in,
                                                               struct col8 &weights) {
    if ((!ALL_VEC4 && !project_is_vec4(&in)) || !wants_squares(in.prologue))
        return;
    uint32_t i = col8_at(threads, 0, in.k / PROJECT_COLS);
    weights = load_norm_weights((const float4 *)in.norm +
                                (in.prologue == PROLOGUE_NORM ? i : threadIdx.x % GROUP_THREADS));
}

/* What else is loaded with the row: the value that a thread's result is added to, which later would
 * be on the way to the barrier. Kernels without registers for it have no_early_load. */
struct early_load {
    static constexpr bool IS_ONE = true, MAY_BE_LM_HEAD = false;
    const float *at;
    bool is_wanted;
    uint32_t known; /* an even number to be computed before the wait */
    float value;

    __device__ __forceinline__ void load(void) {
        ld_cg_f32_if(is_wanted, at, value);
    }
};

template <bool IS_LAYER = false> struct no_early_load {
    static constexpr bool IS_ONE = false, MAY_BE_LM_HEAD = !IS_LAYER;
    const float *at;
    uint32_t known;

    __device__ __forceinline__ void load(void) {
    }
};

/* The second load of a round: the gates of its columns; with NONE, the next round's columns. */
struct second_load {
    bool is_wanted;
    const float4 *at;
};

static __device__ __forceinline__ struct second_load
find_second_load(const struct row_threads &threads, const struct project_input &in,
                 const struct row_pointers &row, uint32_t i, uint32_t next) {
    bool is_gated = in.prologue >= PROLOGUE_GATED_NORM;
    uint32_t n = in.k / PROJECT_COLS, then = col8_at(threads, next, n);
    const float4 *from = (const float4 *)(is_gated ? row.gate : row.x);
    return {is_gated || (in.prologue == PROLOGUE_NONE && next + threads.warp < n),
            from + gate_at(in, is_gated ? i : then)};
}

/* pdl_wait, with the addresses computed before it: the compiler would otherwise move that work
 * after the wait. Multiples of 16 never have bit 0, but only we know. */
static __device__ __forceinline__ void pdl_wait_after(const struct cuda_io &io, const float4 *a,
                                                      const float4 *b) {
    if (!__any_sync(~0u, ((uintptr_t)a | (uintptr_t)b) & 1))
        pdl_wait(io);
}

/* The same without the stamp. */
static __device__ __forceinline__ void pdl_wait_after(const float4 *a, const float4 *b,
                                                      const float *c, uint32_t d) {
    if (!__any_sync(~0u, ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | d) & 1))
        pdl_wait();
}

/* One code path for all prologues keeps the instruction cache warm from kernel to kernel. weights:
 * from load_first_norm_weights. All loads of a round are issued before any of them is used; whether
 * that holds can only be seen in the SASS. */
template <int SET, class QACT, class EARLY>
static __device__ __forceinline__ void
quantize_row_vec4(const struct row_threads &threads, const struct cuda_io &io,
                  const struct project_input &in, const struct row_source &from,
                  const struct col8 &weights, QACT qact, float *squares, EARLY &early) {
    if (threads.warp >= threads.step) {
        if (from.needs_wait)
            pdl_wait(io);
        early.load();
        return;
    }
    uint32_t n = in.k / PROJECT_COLS, next = threads.step, i = col8_at(threads, 0, n);
    struct row_pointers row = fixed_row(in, from);
    struct second_load second = find_second_load(threads, in, row, i, next);
    const float4 *x = (const float4 *)row.x, *at = x + i;
    if (EARLY::IS_ONE)
        pdl_wait_after(at, second.at, early.at, early.known);
    else if (from.needs_wait)
        pdl_wait_after(io, at, second.at);
    if (EARLY::MAY_BE_LM_HEAD && in.is_lm_head) {
        x = (const float4 *)lm_head_row(io, in, from).x;
        at = x + i;
    }
    struct col8 v = load_col8(at), w = weights, u = {};
    load_col8_if(second.is_wanted, second.at, u);
    early.load();
    if (EARLY::IS_ONE)
        store_stamp(threadIdx.x | blockIdx.x | blockIdx.y, io.stamp);
#pragma unroll 1
    for (;;) {
        float square = 0;
        if (wants_squares(in.prologue)) {
            square = __fadd_rn(sum_squares(v.quad[0]), sum_squares(v.quad[1]));
            v = mul(v, w);
        }
        if (in.prologue >= PROLOGUE_GATED_NORM) {
#pragma unroll
            for (int h = 0; h < 2; h++)
                v.quad[h] = mul(v.quad[h], sigmoid4(u.quad[h]));
            if (in.prologue == PROLOGUE_GATED_NORM)
                v = mul(v, u);
        }
        store_col8<SET>(in, in.prologue, qact, i, v, square, squares);
        if (next + threads.warp >= n)
            break;
        i = col8_at(threads, next, n);
        next += threads.step;
        if (in.prologue == PROLOGUE_NONE)
            v = u;
        else
            v = load_col8(x + i);
        if (in.prologue == PROLOGUE_NORM)
            w = load_norm_weights((const float4 *)in.norm + i);
        second = find_second_load(threads, in, row, i, next);
        load_col8_if(second.is_wanted, second.at, u);
    }
}

template <int SET, class QACT>
static __device__ __forceinline__ void
quantize_row_vec4(const struct row_threads &threads, const struct cuda_io &io,
                  const struct project_input &in, const struct row_source &from,
                  const struct col8 &weights, QACT qact, float *squares) {
    struct no_early_load<> none = {};
    quantize_row_vec4<SET>(threads, io, in, from, weights, qact, squares, none);
}

/* ---- the whole row ------------------------------------------------------------------------ */

/* Quantizes a row by the whole thread block. red: k / 128 sums of squares (NORM), or a factor a
 * head (GATED_NORM on the generic path). ALL_VEC4: there is no generic path. */
template <int SET = IS_ANY, bool ALL_VEC4 = false, class QACT, class EARLY>
static __device__ __forceinline__ void
quantize_row(const struct row_threads &threads, const struct cuda_io &io,
             const struct project_input &in, const struct row_source &from,
             const struct col8 &weights, QACT qact, float *red, EARLY &early) {
    if (!ALL_VEC4 && !project_is_vec4(&in)) {
        quantize_row_generic<SET>(io, in, from, qact, red);
        early.load();
    } else {
        quantize_row_vec4<SET>(threads, io, in, from, weights, qact, red, early);
    }
}

template <int SET = IS_ANY, bool ALL_VEC4 = false, class QACT>
static __device__ __forceinline__ void
quantize_row(const struct row_threads &threads, const struct cuda_io &io,
             const struct project_input &in, const struct row_source &from,
             const struct col8 &weights, QACT qact, float *red) {
    struct no_early_load<> none = {};
    quantize_row<SET, ALL_VEC4>(threads, io, in, from, weights, qact, red, none);
}

/* A kernel that does only this: thread blocks (i, 0 ... gridDim.y - 1) divide the row's columns. */
template <class QACT>
static __device__ __forceinline__ void
quantize_row_grid(const struct cuda_io &io, const struct project_input &in,
                  const struct row_source &from, QACT qact, float *red) {
    uint32_t before = blockIdx.y * blockDim.x;
    struct row_threads threads = {before + threadIdx.x, gridDim.y * blockDim.x,
                                  before + warp_uniform(threadIdx.x / 32) * 32};
    struct col8 weights = {};
    load_first_norm_weights(threads, in, weights);
    quantize_row(threads, io, in, from, weights, qact, red);
}

/* The factor of a row's results, in all lanes of the calling warp: lane l adds squares[l],
 * squares[l + 32] ..., then the lanes are added. Call after a barrier. */
static __device__ __forceinline__ float row_factor(const struct project_input &in,
                                                   const float *squares) {
    if (in.prologue != PROLOGUE_NORM)
        return 1;
    float sum = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32; i < in.k / PROJECT_GROUP; i += 32)
        sum = __fadd_rn(sum, squares[i]);
    return norm_factor(warp_sum(sum), in.k, in.eps);
}

enum { ALL_ROWS_UP_TO = 128 }; /* buckets whose rows are quantized all */

/* Quantizes row blockIdx.x for wgmma, by `threads`. False: it is after the step's last, and left as
 * it is, since no other row's results depend on it. In small buckets such rows are quantized, too:
 * to know that they are not there would take a trip to L2 before the row is loaded. red: as of
 * quantize_row. */
template <int SET, class PARAMS, class QACT>
static __device__ __forceinline__ bool quantize_wide_values(const struct row_threads &threads,
                                                            const PARAMS &p, const QACT &to,
                                                            float *red) {
    uint32_t row = blockIdx.x;
    struct col8 weights = {};
    load_first_norm_weights(threads, p.in, weights);
    struct row_source source = {row, p.row_limit, p.row_limit <= ALL_ROWS_UP_TO};
    if (!source.needs_wait) {
        pdl_wait(p.io);
        if (row >= count_rows(p.io, p.in))
            return false;
    }
    quantize_row<SET>(threads, p.io, p.in, source, weights, to, red);
    return true;
}

/* A kernel that does this, and stores the row's norm factor. */
template <int SET, class PARAMS, class QACT>
static __device__ __forceinline__ void
quantize_wide_row(const struct row_threads &threads, const PARAMS &p, const QACT &to, float *red) {
    if (!quantize_wide_values<SET>(threads, p, to, red) || p.in.prologue != PROLOGUE_NORM)
        return;
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    float factor = row_factor(p.in, red);
    if (threadIdx.x == 0)
        p.factors[blockIdx.x] = factor;
}

/* ---- after a product that leaves its parts ------------------------------------------------ */

enum { FINISH_PITCH = PROJECT_GROUP + 4 };

/* A thread's sums of a tile's parts, `step` apart, in their order: those of a K split, then splits.
 * ends: bit i, a split ends with part i. */
static __device__ __forceinline__ float4 add_parts_in_order(const float4 *from, uint64_t step,
                                                            uint32_t parts, uint64_t ends) {
    constexpr uint32_t BATCH = 9; /* loads in flight: ffn out of a 4B has nine parts */
    float4 all = make_float4(0, 0, 0, 0), sum = all;
#pragma unroll 1
    for (uint32_t first = 0; first < parts; first += BATCH, ends >>= BATCH) {
        float4 v[BATCH];
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++, from += step)
            if (first + i < parts)
                v[i] = __ldcg(from);
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            if (first + i < parts)
                sum = add4(sum, v[i]);
            if (first + i < parts && (uint32_t)ends >> i & 1) {
                all = add4(all, sum);
                sum = make_float4(0, 0, 0, 0);
            }
        }
    }
    return all;
}

/* A kernel that adds a product to the residual, p.out, and quantizes it for the next op. Grid:
 * (groups of 128 columns, rows / 8), 8 warps. add(): the thread's sums of 2 rows by 2 columns, as
 * an m16n8 tile has them. Then half a warp has a row: store(row, at, v, square). */
template <class PARAMS, class ADD, class STORE>
static __device__ __forceinline__ void finish_rows(const PARAMS &p, const ADD &add,
                                                   const STORE &store) {
    __shared__ float sums[8][FINISH_PITCH]; /* (row, column): lanes store to different banks */
    const struct project_input &in = p.in;
    uint32_t lane = threadIdx.x % 32, warp = warp_uniform(threadIdx.x / 32);
    uint32_t row = blockIdx.y * 8 + threadIdx.x / 16, at = blockIdx.x * 32 + lane % 16;
    float4 *out = (float4 *)(p.out + (uint64_t)min(row, p.row_limit - 1) * p.out_stride) + at;
    bool has_row = warp < 4, is_norm = in.prologue == PROLOGUE_NORM;
    struct col8 v = {}, w = {};
    if (has_row && is_norm)
        w = load_norm_weights((const float4 *)in.norm + at);
    pdl_wait(p.io);
    if (has_row)
        v = load_col8(out);
    uint32_t n_rows = p.io.header->n_rows;
    float4 sum = add();
    uint32_t r = lane % 4 * 2, c = warp * 16 + lane / 4;
    sums[r][c] = sum.x;
    sums[r + 1][c] = sum.y;
    sums[r][c + 8] = sum.z;
    sums[r + 1][c + 8] = sum.w;
    __syncthreads();
    if (!has_row)
        return;
    float square = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float4 *of = (const float4 *)sums[threadIdx.x / 16] + lane % 16 + h * COL8_STEP;
        v.quad[h] = add4(v.quad[h], *of);
        if (row < n_rows)
            out[h * COL8_STEP] = v.quad[h];
    }
    if (is_norm) {
        square = __fadd_rn(sum_squares(v.quad[0]), sum_squares(v.quad[1]));
        v = mul(v, w);
    }
    store(row, at, v, square);
}

#endif
