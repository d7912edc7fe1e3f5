/* project_gemv.cuh - the product of tiled weights with R rows of activations.
 *
 * out[r][n] = epilogue(factor[r] * sum over k of w[n][k] * a[r][k])
 *
 * A warp has a pipeline of kblocks in shared memory, which is filled by asynchronous copies and
 * read 16 bytes at a time. The pipeline is filled before the wait for the step's earlier kernels:
 * so the memory is busy while this stage waits for its input and makes it ready. But a warp asks
 * for its second kblock only when the first is there: the stage before this one reads its
 * activations at that time, and they would queue behind all that was asked for. All weights are
 * read once for R rows.
 *
 * The order of a sum, which every kernel must keep, of a task (tile, K split). Types that meet int8
 * activations: kblock by kblock a lane has the sum v of its span, as eat_* below:
 *
 *   Q4_K, Q5_K  I += scale * dot, M += min * sum: integers, over its four pieces of 32 columns;
 *               t = d * I, t = fma(-dmin, M, t), v = as * t, as: the activations' scale
 *   Q6_K        I likewise, over runs of 16 columns; v = as * (d * I)
 *   Q8_0        v = (d * as) * dot of the first 32 columns, v = fma(d * as, dot, v) of the others
 *
 * (Beside K-quants Q8_0's two scales `as` are the same, that of 128 columns.) Then the lanes that
 * share the row are added, l with l ^ T, ^ 2 T, ... below 32, and that to the sum so far, from 0.
 *
 * Types that meet f32 activations: a lane adds its spans column by column, kblock by kblock; at the
 * end the lanes that share a row are added, neighbours first: l with l ^ 1, ^ 2, ^ 4, ...
 *
 * Then the splits, from the first on, beginning with 0. Then the factor, the bias, and what FINISH
 * says. */
#ifndef BACKEND_CUDA_KERNELS_PROJECT_GEMV_CUH
#define BACKEND_CUDA_KERNELS_PROJECT_GEMV_CUH

#include "backend/cuda/kernels/quantize.cuh"

/* ---- asynchronous copies ----------------------------------------------------------------------
 */

/* All but the latest stages - 1 groups are there. */
static __device__ __forceinline__ void cp_async_wait_stages(uint32_t stages) {
    if (stages == 2)
        cp_async_wait<1>();
    else if (stages == 3)
        cp_async_wait<2>();
    else if (stages == 4)
        cp_async_wait<3>();
    else
        cp_async_wait<5>();
}

/* K blocks by the copy engine: one request a K block, which leaves the lanes' own load units free
 * for the activations. An mbarrier a stage says when it is complete. */
static __device__ __forceinline__ void bulk_load(uint32_t to, const uint8_t *from, uint32_t bytes,
                                                 uint32_t barrier) {
    mbarrier_expect_tx(barrier, bytes);
    cp_async_bulk(to, from, bytes, barrier);
}

/* All that a barrier waits for is there; below 9.0, all that the lanes themselves have copied. */
static __device__ __forceinline__ void bulk_wait(uint32_t barrier, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
    mbarrier_wait(barrier, phase);
#else
    cp_async_wait_all();
    __syncwarp();
#endif
}

/* A warp's barriers, one a stage. */
static __device__ __forceinline__ void mbarrier_init_stages(uint32_t mbars, uint32_t stages) {
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
        for (uint32_t i = 0; i < stages; i++)
            mbarrier_init(mbars + i * 8, 1);
        mbarrier_init_fence();
    }
    __syncwarp();
}

/* ---- tasks ------------------------------------------------------------------------------------
 */

struct task {
    uint32_t segment, tile, split;
};

/* Task t of a block: tile by tile, a tile's splits side by side. */
static __device__ __forceinline__ bool find_task(const struct project_params &p, uint32_t t,
                                                 struct task &out) {
    uint32_t begin = p.bounds[blockIdx.x], end = p.bounds[blockIdx.x + 1];
#pragma unroll 1
    for (uint32_t i = 0; i < p.n_segments; i++) {
        const struct project_segment &s = p.segments[i];
        uint32_t first = max(begin, s.first_tile), last = min(end, s.first_tile + s.n_tiles);
        uint32_t n = last > first ? (last - first) * s.splits : 0;
        if (t < n) {
            uint32_t tile = t * s.split_fastdiv >> 16;
            out.segment = i;
            out.tile = first - s.first_tile + tile;
            out.split = t - tile * s.splits;
            return true;
        }
        t -= n;
    }
    return false;
}

/* Tasks of a block. */
static __device__ __forceinline__ uint32_t count_tasks(const struct project_params &p) {
    uint32_t begin = p.bounds[blockIdx.x], end = p.bounds[blockIdx.x + 1], n = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < p.n_segments; i++) {
        const struct project_segment &s = p.segments[i];
        uint32_t first = max(begin, s.first_tile), last = min(end, s.first_tile + s.n_tiles);
        n += last > first ? (last - first) * s.splits : 0;
    }
    return n;
}

static __device__ __forceinline__ uint32_t task_kblocks(const struct project_segment &s,
                                                        uint32_t split) {
    return s.split_kblocks + (split < s.split_extra);
}

static __device__ __forceinline__ uint32_t task_first(const struct project_segment &s,
                                                      uint32_t split) {
    return split * s.split_kblocks + min(split, (uint32_t)s.split_extra);
}

/* What a warp loads next. */
struct loader {
    const uint8_t *at; /* this lane's */
    uint32_t left;     /* kblocks of the task */
    uint32_t task;     /* the next one */
    uint32_t n_tasks;  /* of the block */
    uint32_t bytes;    /* of a kblock */
};

/* stage, barrier: addresses in shared memory. */
template <int SET, bool IS_BULK>
static __device__ __forceinline__ void load_kblock(const struct project_params &p, struct loader &l,
                                                   uint32_t stage, uint32_t barrier) {
    constexpr uint32_t BYTES = SET == IS_Q4_K   ? TILE_KBLOCK_Q4_K
                               : SET == IS_Q6_K ? TILE_KBLOCK_Q6_K
                               : SET == IS_Q8_0 ? TILE_KBLOCK_Q8_0
                               : SET & (IS_Q4_K | IS_Q5_K | IS_Q6_K | IS_Q8_0)
                                   ? 0 /* known only when it runs */
                                   : TILE_KBLOCK_FLOAT;
    struct task t;
    uint32_t lane = threadIdx.x % 32;
    if (l.left == 0 && l.task < l.n_tasks) {
        find_task(p, l.task, t);
        const struct project_segment &s = p.segments[t.segment];
        l.left = task_kblocks(s, t.split);
        l.bytes = s.kblock_bytes;
        l.at = s.data +
               ((uint64_t)t.tile * s.kblocks + task_first(s, t.split)) * (BYTES ? BYTES : l.bytes) +
               (IS_BULK ? 0 : lane * 16);
        l.task += p.task_warps;
    }
    uint32_t bytes = BYTES ? BYTES : l.bytes;
    if (IS_BULK) {
        if (l.left) {
            if (lane == 0)
                bulk_load(stage, l.at, bytes, barrier);
            l.at += bytes;
            l.left--;
        }
        return;
    }
    if (l.left) {
        stage += lane * 16;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            cp_async_16(stage + i * 512, l.at + i * 512);
#pragma unroll
        for (uint32_t i = 4; i < 7; i++)
            if ((!BYTES || i * 512 < BYTES) && lane * 16 + i * 512 < bytes)
                cp_async_16(stage + i * 512, l.at + i * 512);
        l.at += bytes;
        l.left--;
    }
    cp_async_commit();
}

/* The first kblocks of a warp. */
template <int SET, bool IS_BULK>
static __device__ __forceinline__ void
fill_pipeline(const struct project_params &p, struct loader &l, uint32_t pipeline, uint32_t mbars) {
    if (IS_BULK)
        mbarrier_init_stages(mbars, p.stages);
#pragma unroll 1
    for (uint32_t i = 0; i < p.stages; i++) {
        if (i && (l.left || l.task < l.n_tasks)) {
            if (IS_BULK)
                mbarrier_wait(mbars + i * 8 - 8, 0);
            else
                cp_async_wait<0>();
        }
        load_kblock<SET, IS_BULK>(p, l, pipeline + i * p.stage_bytes, mbars + i * 8);
    }
}

/* ---- kblocks against activations ----------------------------------------------------------------
 */

/* Activations in shared memory, as project.h has their qacts. */
struct acts {
    uint32_t qact;      /* an address in shared memory */
    uint32_t stride;    /* from row to row */
    uint32_t planes[5]; /* where they begin; the others are as far from the fifth */
    uint32_t sums_at;   /* of the numbers */
    const uint8_t *f32; /* the floats */
};

/* The compiler must not see that the planes are multiples of one number: it would then add that for
 * every piece that is read. */
static __device__ __forceinline__ struct acts acts_of(const struct project_input &in,
                                                      const uint8_t *qact, uint32_t stride) {
    struct acts a = {};
    a.qact = smem_addr(qact);
    a.stride = stride;
#pragma unroll
    for (int j = 1; j < 5; j++)
        a.planes[j] = opaque_add(a.planes[j - 1], project_plane(in.k) * 16);
    a.sums_at = project_sums_at(in.k);
    a.f32 = qact + (in.wants_int8 ? project_int8_bytes(in.k) : 0);
    return a;
}

template <class T> static __device__ __forceinline__ T read_shared(uint32_t at) {
    return *(const T *)__cvta_shared_to_generic(at);
}

/* Of 128 columns, whose first piece is at `at`: that of plane j; the numbers' sums; scale i. */
static __device__ __forceinline__ uint4 act_piece(const struct acts &a, uint32_t at, int j) {
    return read_shared<uint4>(at + j / 4 * a.planes[4] + a.planes[j % 4]);
}

static __device__ __forceinline__ uint4 act_sums(const struct acts &a, uint32_t at) {
    return read_shared<uint4>(at + a.sums_at);
}

template <class T = float>
static __device__ __forceinline__ T act_scale(const struct acts &a, uint32_t at, uint32_t i) {
    return read_shared<T>(at + a.planes[4] + a.planes[4] + 4 * i);
}

static __device__ __forceinline__ float4 act_floats(const struct acts &a, int r, uint32_t at) {
    return ((const float4 *)(a.f32 + r * a.stride))[at];
}

static __device__ __forceinline__ int dot4s(uint32_t w, uint32_t a, int c) {
    return __dp4a((int)w, (int)a, c);
}

static __device__ __forceinline__ uint32_t word(uint4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

static __device__ __forceinline__ float2 half2_to_float2(uint32_t v) {
    return __half22float2(*reinterpret_cast<__half2 *>(&v));
}

/* Where a lane is in the kblocks of its task. */
struct lane_place {
    uint32_t lanes; /* so many share a row */
    uint32_t place; /* among them */
    uint32_t d;     /* int8: where in a kblock's words d of its block of 256 columns is, in bytes */
    uint32_t acts;  /* int8: of 128 columns a lane, where the tile's first ones lie */
};

/* Whether a segment's type meets int8 activations: mostly the set says it. */
template <int SET> static __device__ __forceinline__ bool is_int8(uint32_t type) {
    return !(SET & ~IS_INT8) || (SET & IS_INT8 && type & IS_INT8);
}

template <int SET>
static __device__ __forceinline__ struct lane_place find_lane(const struct acts &a, uint32_t type,
                                                              uint32_t lane_shift) {
    uint32_t lane = threadIdx.x % 32, lanes = 1u << lane_shift, row_shift = 5 - lane_shift;
    if (!is_int8<SET>(type))
        return {lanes, lane & (lanes - 1), 0, 0};
    uint32_t place = lane >> row_shift, row = lane & ((1u << row_shift) - 1);
    return {lanes, place, (place / 2 << row_shift | row) * 4, a.qact + place * 16};
}

/* The lanes that share a row of an int8 type, added: those 4, 8 and 16 apart, or the last of it. */
static __device__ __forceinline__ float add_lanes(float v, uint32_t lanes) {
    v = add_if_above<4>(v, __shfl_xor_sync(~0u, v, 4), lanes);
    v = add_if_above<2>(v, __shfl_xor_sync(~0u, v, 8), lanes);
    return __fadd_rn(v, __shfl_xor_sync(~0u, v, 16));
}

/* Of int8 types acc[r][0] is the row's sum so far, and acc[r][1] the lane's of the latest kblock:
 * it is added while the next one's first numbers are on their way. */
template <int R>
static __device__ __forceinline__ void add_unit(const struct lane_place &at, float (&acc)[R][4]) {
#pragma unroll
    for (int r = 0; r < R; r++)
        acc[r][0] = __fadd_rn(acc[r][0], add_lanes(acc[r][1], at.lanes));
}

/* Sum of four products: the low halves of s, and bytes 0..63. */
static __device__ __forceinline__ int dot_sums(uint4 s, uint32_t min) {
    int low = __dp2a_lo((int)__byte_perm(s.x, s.y, 0x5410), (int)min, 0);
    return __dp2a_hi((int)__byte_perm(s.z, s.w, 0x5410), (int)min, low);
}

/* Q4_K and Q5_K: d * sum - dmin * least. */
static __device__ __forceinline__ float less_least(float2 d, int sum, int least) {
    return __fmaf_rn(-d.y, (float)least, __fmul_rn(d.x, (float)sum));
}

/* A kblock's lanes have columns 128 (x + place)... . */
template <int R, bool IS_5>
static __device__ __forceinline__ void dot_q4(const uint8_t *stage, const struct acts &a,
                                              const struct lane_place &at, uint32_t x,
                                              float (&acc)[R][4]) {
    uint32_t lane = threadIdx.x % 32, from = at.acts + x * 16;
    const uint8_t *scales = stage + (IS_5 ? TILE_Q5_SCALES : TILE_Q4_SCALES);
    uint32_t s = ((const uint32_t *)scales)[lane];
    uint32_t n = ((const uint16_t *)(scales + TILE_MINS))[lane];
    uint32_t dd = *(const uint32_t *)(scales + TILE_D + at.d);
    uint4 more = IS_5 ? ((const uint4 *)(stage + TILE_HIGH_BITS))[lane] : make_uint4(0, 0, 0, 0);
    uint32_t min = (n & 0x0f0fu) | (n << 12 & 0x0f0f0000u) | (s >> 2 & 0x30303030u);
    float2 d = half2_to_float2(dd);
    int sum[R] = {};
    add_unit<R>(at, acc);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 w = ((const uint4 *)stage)[i * 32 + lane];
        uint32_t lo[4], hi[4], h = word(more, i);
        int scale = (int)__byte_perm(s & 0x3f3f3f3fu, 0, 0x4440 + i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b = word(w, j);
            lo[j] = b & 0x0f0f0f0fu;
            hi[j] = b & 0xf0f0f0f0u;
            if (IS_5) {
                lo[j] |= (h >> j & 0x01010101u) << 4;
                hi[j] = (b >> 4 & 0x0f0f0f0fu) | (h >> (4 + j) & 0x01010101u) << 4;
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint32_t row = from + r * a.stride;
            uint4 y = act_piece(a, row, 2 * i), z = act_piece(a, row, 2 * i + 1);
            int low = 0, high = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                low = dp4a_us(lo[j], word(y, j), low);
                high = dp4a_us(hi[j], word(z, j), high);
            }
            sum[r] += scale * (low + (IS_5 ? high : high >> 4));
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint32_t row = from + r * a.stride;
        acc[r][1] =
            __fmul_rn(act_scale(a, row, 0), less_least(d, sum[r], dot_sums(act_sums(a, row), min)));
    }
}

/* Numbers are brought into a byte's upper 6 bits, so sums are four times what they should be. */
template <int R>
static __device__ __forceinline__ void dot_q6(const uint8_t *stage, const struct acts &a,
                                              const struct lane_place &at, uint32_t x,
                                              float (&acc)[R][4]) {
    uint32_t lane = threadIdx.x % 32, from = at.acts + x * 16;
    uint2 scales = ((const uint2 *)(stage + TILE_Q6_SCALES))[lane];
    float d = __half2float(*(const __half *)(stage + TILE_Q6_D + at.d / 2));
    int sum[R] = {};
    add_unit<R>(at, acc);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 w = ((const uint4 *)stage)[i * 32 + lane];
        uint2 h = ((const uint2 *)(stage + TILE_HIGH_BITS + i / 2 * 512))[lane * 2 + i % 2];
        uint32_t lo[4], hi[4], pair = (i / 2 ? scales.y : scales.x) >> (i % 2 * 16);
        int s0 = (int8_t)(pair & 255), s1 = (int8_t)(pair >> 8 & 255);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            lo[j] = (word(w, j) << 2 & 0x3c3c3c3cu) | (h.x << (6 - 2 * j) & 0xc0c0c0c0u);
            hi[j] = (word(w, j) >> 2 & 0x3c3c3c3cu) | (h.y << (6 - 2 * j) & 0xc0c0c0c0u);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint32_t row = from + r * a.stride;
            uint4 y = act_piece(a, row, 2 * i), z = act_piece(a, row, 2 * i + 1);
            int low = 0, high = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                low = dot4s(lo[j], word(y, j), low);
                high = dot4s(hi[j], word(z, j), high);
            }
            sum[r] += low * s0 + high * s1;
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        acc[r][1] =
            __fmul_rn(act_scale(a, from + r * a.stride, 0), __fmul_rn(d, (float)(sum[r] >> 2)));
}

/* 64 columns: the first four planes have one half of 128, the others the other. */
template <int R>
static __device__ __forceinline__ void dot_q8(const uint8_t *stage, const struct acts &a,
                                              const struct lane_place &at, uint32_t x,
                                              float (&acc)[R][4]) {
    uint32_t lane = threadIdx.x % 32, half = (x + at.place) % 2;
    uint32_t from = a.qact + (x + at.place) / 2 * 16;
    float2 d = half2_to_float2(((const uint32_t *)(stage + TILE_HIGH_BITS))[lane]);
    int dot[R][2] = {};
    add_unit<R>(at, acc);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 w = ((const uint4 *)stage)[i * 32 + lane];
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint4 y = act_piece(a, from + r * a.stride + half * a.planes[4], i);
#pragma unroll
            for (int j = 0; j < 4; j++)
                dot[r][i / 2] = dot4s(word(w, j), word(y, j), dot[r][i / 2]);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float2 as = act_scale<float2>(a, from + r * a.stride, 2 * half);
        float v = __fmul_rn(__fmul_rn(d.x, as.x), (float)dot[r][0]);
        acc[r][1] = __fmaf_rn(__fmul_rn(d.y, as.y), (float)dot[r][1], v);
    }
}

static __device__ __forceinline__ float dot_floats(float4 w, float4 x, float acc) {
    acc = __fmaf_rn(w.x, x.x, acc);
    acc = __fmaf_rn(w.y, x.y, acc);
    acc = __fmaf_rn(w.z, x.z, acc);
    return __fmaf_rn(w.w, x.w, acc);
}

template <bool IS_HALF> static __device__ __forceinline__ float4 four(uint32_t a, uint32_t b) {
    if (IS_HALF) {
        float2 x = half2_to_float2(a), y = half2_to_float2(b);
        return make_float4(x.x, x.y, y.x, y.y);
    }
    return make_float4(__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000u),
                       __uint_as_float(b << 16), __uint_as_float(b & 0xffff0000u));
}

/* Pieces of four columns c and c + lanes. */
template <int R, bool IS_HALF>
static __device__ __forceinline__ void dot_half(const uint8_t *stage, const struct acts &a,
                                                uint32_t c, uint32_t lanes, float (&acc)[R][4]) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int row = 0; row < 4; row++) {
        uint4 w = ((const uint4 *)stage)[row * 32 + lane];
        float4 lo = four<IS_HALF>(w.x, w.y), hi = four<IS_HALF>(w.z, w.w);
#pragma unroll
        for (int r = 0; r < R; r++) {
            acc[r][row] = dot_floats(lo, act_floats(a, r, c), acc[r][row]);
            acc[r][row] = dot_floats(hi, act_floats(a, r, c + lanes), acc[r][row]);
        }
    }
}

/* act: the lane's four columns of row r. */
template <int R, class ACT>
static __device__ __forceinline__ void eat_floats(const uint8_t *stage, ACT act,
                                                  float (&acc)[R][4]) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int row = 0; row < 4; row++) {
        float4 w = ((const float4 *)stage)[row * 32 + lane];
#pragma unroll
        for (int r = 0; r < R; r++)
            acc[r][row] = dot_floats(w, act(r), acc[r][row]);
    }
}

template <int R>
static __device__ __forceinline__ void dot_f32(const uint8_t *stage, const struct acts &a,
                                               uint32_t c, float (&acc)[R][4]) {
    eat_floats<R>(
        stage, [&](int r) { return act_floats(a, r, c); }, acc);
}

/* Activations of F32 segments that stand beside int8 ones: read where they lie. */
template <int R> struct plain_acts { float4 x[R], norm; };

template <int R>
static __device__ __forceinline__ void load_plain(const struct project_params &p,
                                                  uint32_t first_row, uint32_t c,
                                                  struct plain_acts<R> &a) {
#pragma unroll
    for (int r = 0; r < R; r++)
        a.x[r] = __ldcg((const float4 *)(p.in.x + (uint64_t)min(first_row + r, p.row_limit - 1) *
                                                      p.in.x_stride) +
                        c);
    if (p.in.kind == PROLOGUE_NORM)
        a.norm = __ldcg((const float4 *)p.in.norm + c);
}

static __device__ __forceinline__ float4 plain_act(const struct project_params &p, float4 x,
                                                   float4 norm) {
    return p.in.kind == PROLOGUE_NORM ? mul(x, norm) : x;
}

template <int R>
static __device__ __forceinline__ void
dot_plain(const struct project_params &p, const uint8_t *stage, const struct plain_acts<R> &a,
          float (&acc)[R][4]) {
    eat_floats<R>(
        stage, [&](int r) { return plain_act(p, a.x[r], a.norm); }, acc);
}

/* A kblock of a tile, x spans of a lane behind the tile's first. */
template <int SET, int R>
static __device__ __forceinline__ void dot_kblock(uint32_t type, const uint8_t *stage,
                                                  const struct acts &a, uint32_t x,
                                                  const struct lane_place &at, float (&acc)[R][4]) {
    if (SET == IS_Q4_K || (SET & IS_Q4_K && type == IS_Q4_K)) {
        dot_q4<R, false>(stage, a, at, x, acc);
    } else if (SET == IS_Q6_K || (SET & IS_Q6_K && type == IS_Q6_K)) {
        dot_q6<R>(stage, a, at, x, acc);
    } else if (SET == IS_F32 || (SET & IS_F32 && type == IS_F32)) {
        dot_f32<R>(stage, a, x + at.place, acc);
    } else if (SET == IS_Q8_0 || (SET & IS_Q8_0 && type == IS_Q8_0)) {
        dot_q8<R>(stage, a, at, x, acc);
    } else if (SET == IS_BF16 || (SET & IS_BF16 && type == IS_BF16)) {
        dot_half<R, false>(stage, a, 2 * x + at.place, at.lanes, acc);
    } else if (SET == IS_F16 || (SET & IS_F16 && type == IS_F16)) {
        dot_half<R, true>(stage, a, 2 * x + at.place, at.lanes, acc);
    } else if (SET & IS_Q5_K) {
        dot_q4<R, true>(stage, a, at, x, acc);
    }
}

/* ---- sums and results -------------------------------------------------------------------------
 */

/* Adds over the lanes of a group. Lane `place` of it then has row place % 2 * 2 + place / 2 % 2. */
static __device__ __forceinline__ float sum_lanes(const float (&v)[4], uint32_t lanes,
                                                  uint32_t lane) {
    bool one = lane & 1, two = lane & 2;
    float a = one ? v[2] : v[0], b = one ? v[3] : v[1];
    a = __fadd_rn(a, __shfl_xor_sync(~0u, one ? v[0] : v[2], 1));
    b = __fadd_rn(b, __shfl_xor_sync(~0u, one ? v[1] : v[3], 1));
    float s = __fadd_rn(two ? b : a, __shfl_xor_sync(~0u, two ? a : b, 2));
    s = __fadd_rn(s, __shfl_xor_sync(~0u, s, 4));
    if (lanes > 8)
        s = __fadd_rn(s, __shfl_xor_sync(~0u, s, 8));
    if (lanes > 16)
        s = __fadd_rn(s, __shfl_xor_sync(~0u, s, 16));
    return s;
}

/* The row of the tile whose sum a lane has at a task's end; ~0: another lane puts it somewhere. */
template <int SET>
static __device__ __forceinline__ uint32_t find_row(uint32_t type, uint32_t lane_shift) {
    uint32_t lane = threadIdx.x % 32;
    if (is_int8<SET>(type))
        return lane < 32u >> lane_shift ? lane : ~0u;
    uint32_t place = lane & ((1u << lane_shift) - 1);
    return place < 4 ? (lane >> lane_shift) * 4 + place % 2 * 2 + place / 2 % 2 : ~0u;
}

template <int SET>
static __device__ __forceinline__ float task_sum(uint32_t type, const struct lane_place &at,
                                                 const float (&acc)[4]) {
    if (is_int8<SET>(type))
        return __fadd_rn(acc[0], add_lanes(acc[1], at.lanes));
    return sum_lanes(acc, at.lanes, threadIdx.x % 32);
}

static __device__ __forceinline__ float biased(const struct project_segment &s, uint32_t n,
                                               float v) {
    return s.bias ? __fadd_rn(v, s.bias[n]) : v;
}

static __device__ __forceinline__ void put_result(const struct project_params &p,
                                                  const struct project_segment &s, uint32_t n,
                                                  uint32_t row, float v) {
    float *out = p.out + (uint64_t)row * p.out_stride + s.column + n;
    v = biased(s, n, v);
    *out = p.epilogue == EPILOGUE_ADD ? __fadd_rn(*out, v) : v;
}

/* What stages that are no heads do with a result besides storing it. Heads are kernels of their own
 * (project_head.cu), since every instruction more costs all stages time. */
struct no_head {
    static constexpr bool IS_HEAD = false;
    __device__ void note(const struct project_params &, bool, uint32_t, float,
                         const float *) const {
    }
};

/* All tasks of a warp. Where K is in splits, or gate and up must meet, sums go to shared memory. */
template <int SET, int R, class HEAD>
static __device__ __forceinline__ void
run_tasks(const struct project_params &p, struct loader &l, uint32_t warp, uint32_t pipeline,
          uint32_t mbars, struct task t, const struct acts &a, const float *factors, float *parts,
          uint32_t first_row, uint32_t n_rows, const HEAD &head) {
    extern __shared__ uint4 shared[];
    uint32_t stage = 0, stages = SET & DEEP_PIPELINE ? p.stages : 2;
    constexpr bool IS_BULK = HAS_CP_ASYNC_BULK && R == 1;
    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), i = warp, phase = 0;
    for (;;) {
        const struct project_segment &s = p.segments[t.segment];
        uint32_t x = task_first(s, t.split) << s.lane_shift, type = s.type;
        uint32_t last = x + (task_kblocks(s, t.split) << s.lane_shift);
        struct lane_place place = find_lane<SET>(a, type, s.lane_shift);
        bool is_plain = R > PROJECT_FUSED_ROWS && SET & IS_F32 && p.is_plain && type == IS_F32;
        float acc[R][4] = {};
#pragma unroll 1
        for (; x < last; x += place.lanes) {
            uint32_t at = pipeline + stage * p.stage_bytes;
            struct plain_acts<R> plain;
            if (is_plain)
                load_plain<R>(p, first_row, x + place.place, plain);
            if (IS_BULK) {
                mbarrier_wait(mbars + stage * 8, phase);
            } else {
                cp_async_wait_stages(stages);
                __syncwarp();
            }
            if (is_plain)
                dot_plain<R>(p, (const uint8_t *)shared + at, plain, acc);
            else
                dot_kblock<SET, R>(type, (const uint8_t *)shared + at, a, x, place, acc);
            __syncwarp();
            load_kblock<SET, IS_BULK>(p, l, base + at, mbars + stage * 8);
            stage = stage + 1 == stages ? 0 : stage + 1;
            phase ^= stage == 0;
        }
        uint32_t row = find_row<SET>(type, s.lane_shift), n = (t.tile << s.row_shift) + row;
        bool is_mine = row != ~0u;
#pragma unroll
        for (int r = 0; r < R; r++) {
            float v = task_sum<SET>(type, place, acc[r]);
            if (!p.is_direct) {
                if (is_mine)
                    parts[(r + i * R) * PROJECT_TASK_ROWS + row] = v;
            } else if (is_mine && n < s.n && first_row + r < n_rows) {
                put_result(p, s, n, first_row + r, __fmul_rn(v, factors[r]));
            }
            if (HEAD::IS_HEAD && p.is_direct)
                head.note(p, is_mine && n < s.n && n_rows > 0, n,
                          n < s.n ? biased(s, n, __fmul_rn(v, factors[0])) : 0, factors + 1);
        }
        i += p.task_warps;
        if (i >= l.n_tasks)
            return;
        find_task(p, i, t);
    }
}

/* Result e of a block where splits meet: its column, and where its parts are. */
struct result_place {
    uint32_t column; /* of the output row; NO_PLACE: none */
    uint32_t parts;  /* the first split's, in floats for one row of activations; of `up` above 16 */
    uint32_t how;    /* splits, those of `up` above 8, the segment above 16 */
};

enum : uint32_t { NO_PLACE = ~0u };

static __device__ __forceinline__ struct result_place find_result(const struct project_params &p,
                                                                  uint32_t e) {
    uint32_t begin = p.bounds[blockIdx.x], end = p.bounds[blockIdx.x + 1], task = 0;
    bool is_swiglu = p.epilogue == EPILOGUE_SWIGLU;
    struct result_place out = {NO_PLACE, 0, 0};
#pragma unroll 1
    for (uint32_t g = 0; g < (is_swiglu ? 1 : p.n_segments); g++) {
        const struct project_segment &s = p.segments[g], &up = p.segments[1];
        uint32_t first = max(begin, s.first_tile), last = min(end, s.first_tile + s.n_tiles);
        uint32_t tiles = last > first ? last - first : 0, tile = e >> s.row_shift;
        if (tile < tiles) {
            uint32_t n = ((first - s.first_tile) << s.row_shift) + e,
                     row = e - (tile << s.row_shift);
            out.column = n < s.n ? s.column + n : NO_PLACE;
            out.parts = (task + tile * s.splits) * PROJECT_TASK_ROWS + row;
            out.how = s.splits | g << 16;
            if (is_swiglu) {
                out.parts |= ((tiles * s.splits + tile * up.splits) * PROJECT_TASK_ROWS + row)
                             << 16;
                out.how |= up.splits << 8;
            }
            break;
        }
        e -= tiles << s.row_shift;
        task += tiles * s.splits;
    }
    return out;
}

/* The splits of a result, added. */
template <int R>
static __device__ __forceinline__ float add_splits(const float *parts, uint32_t part, uint32_t r,
                                                   uint32_t splits) {
    float v = 0;
    parts += part % PROJECT_TASK_ROWS + (r + part / PROJECT_TASK_ROWS * R) * PROJECT_TASK_ROWS;
#pragma unroll 1
    for (; splits; splits--, parts += R * PROJECT_TASK_ROWS)
        v = __fadd_rn(v, *parts);
    return v;
}

static __device__ __forceinline__ float add_bias_at(const struct project_params &p,
                                                    const struct result_place &at, uint32_t segment,
                                                    float v) {
    const struct project_segment &s = p.segments[segment];
    return biased(s, at.column - s.column, v);
}

/* was: what stands at a result that is added to. */
template <int R>
static __device__ __forceinline__ float
finish_result(const struct project_params &p, const struct result_place &at, const float *parts,
              uint32_t r, float factor, float was) {
    float v = __fmul_rn(add_splits<R>(parts, at.parts & 0xffff, r, at.how & 255), factor);
    if (p.has_bias)
        v = add_bias_at(p, at, at.how >> 16, v);
    if (p.epilogue == EPILOGUE_ADD)
        v = __fadd_rn(was, v);
    if (p.epilogue == EPILOGUE_SWIGLU) {
        float w = __fmul_rn(add_splits<R>(parts, at.parts >> 16, r, at.how >> 8 & 255), factor);
        if (p.has_bias)
            w = add_bias_at(p, at, 1, w);
        v = swiglu(v, w);
    }
    return v;
}

/* Prepared rows into shared memory, by one lane. */
template <int R>
static __device__ __forceinline__ void fetch_qacts(const struct project_params &p,
                                                   uint32_t first_row, const uint8_t *qacts,
                                                   const float *red, uint32_t barrier) {
    bool is_norm = p.in.kind == PROLOGUE_NORM;
    uint32_t chunks = p.in.k / PROJECT_GROUP, bytes = R * p.qact_bytes;
    uint32_t squares = is_norm ? R * chunks * 4 : 0;
    mbarrier_expect_tx(barrier, bytes + squares);
    cp_async_bulk(smem_addr(qacts), p.qacts + (uint64_t)first_row * p.qact_bytes, bytes, barrier);
    if (is_norm)
        cp_async_bulk(smem_addr(red), (const uint8_t *)(p.squares + first_row * chunks), squares,
                      barrier);
}

template <int R>
static __device__ __forceinline__ void store_factors(const struct project_params &p,
                                                     const float *red, float *factors) {
#pragma unroll(R > 4 ? 1 : R)
    for (uint32_t r = 0; r < R; r++)
        factors[r] = row_factor(p.in, red + r * (p.in.k / PROJECT_GROUP));
}

/* What is known before the wait is worked out before it: the first task, and the thread's result.
 * The factors are worked out by the last warp, which often has no task; before it eats, since it
 * has to wait for its kblocks anyhow. */
template <int SET, int R, class HEAD = struct no_head>
static __device__ __forceinline__ void project(const struct project_params &p,
                                               const HEAD &head = HEAD()) {
    extern __shared__ uint4 shared[];
    constexpr bool IS_FUSED = R <= PROJECT_FUSED_ROWS; /* else rows are prepared already */
    constexpr bool IS_BULK = HAS_CP_ASYNC_BULK && R == 1;
    pdl_launch_dependents();
    uint8_t *base = (uint8_t *)shared, *qacts = base + p.qact_at;
    float *parts = (float *)(base + p.partials_at), *red = (float *)(base + p.red_at);
    float *factors = red - PROJECT_ROWS;
    uint32_t warp = warp_uniform(threadIdx.x / 32), first_row = blockIdx.y * R, n_rows = 1;
    uint32_t pipeline = warp * p.stages * p.stage_bytes,
             from = (uint32_t)__cvta_generic_to_shared(shared);
    struct loader l = {NULL, 0, warp, count_tasks(p), 0};
    struct task t;
    bool has_task = warp < p.task_warps && warp < l.n_tasks;
    uint32_t mbars = from + p.mbars_at + warp * p.stages * 8;
    if (!IS_FUSED) {
        if (warp == 0)
            mbarrier_init_stages(mbars, 1);
        __syncthreads();
    }
    struct col8 weights = {};
    struct row_threads who = row_threads_of(p.in);
    if (IS_FUSED)
        load_norm_early(who, p.in, weights);
    if (has_task) {
        find_task(p, warp, t);
        fill_pipeline<SET, IS_BULK>(p, l, from + pipeline, mbars);
    }
    uint32_t group = blockDim.x / R, r = R == 1 ? 0 : threadIdx.x / group;
    uint32_t e = threadIdx.x - r * group;
    struct result_place at = {NO_PLACE, 0, 0};
    if (e < p.max_results)
        at = find_result(p, e);
    if (IS_FUSED) {
#pragma unroll 1
        for (uint32_t i = 0; i < R; i++) {
            struct row_source source = {first_row + i, p.row_limit, i == 0};
            quantize_row<SET>(who, p.io, p.in, source, weights, qacts + i * p.qact_bytes,
                              red + i * (p.in.k / PROJECT_GROUP));
        }
        if (p.row_limit > 1 || p.in.is_lm_head)
            n_rows = count_rows(p.io, p.in);
    } else {
        pdl_wait(p.io);
        if (threadIdx.x == 0)
            fetch_qacts<R>(p, first_row, qacts, red, from + p.mbars_at);
        n_rows = count_rows(p.io, p.in);
        bulk_wait(from + p.mbars_at, 0);
        if (first_row >= n_rows) {
            cp_async_wait<0>();
            return;
        }
    }
    float *out = p.out + (uint64_t)(first_row + r) * p.out_stride, was = 0;
    at.column = first_row + r < n_rows ? at.column : NO_PLACE;
    if (at.column != NO_PLACE && p.epilogue == EPILOGUE_ADD)
        was = __ldcg(out + at.column);
    __syncthreads();
    struct acts a = acts_of(p.in, qacts, p.qact_bytes);
    if (warp == blockDim.x / 32 - 1)
        store_factors<R>(p, red, factors);
    if (HEAD::IS_HEAD && threadIdx.x == 0)
        factors[1] = 0; /* the block's best logit: none yet */
    if (p.is_direct)
        __syncthreads();
    if (has_task)
        run_tasks<SET, R>(p, l, warp, pipeline, mbars, t, a, factors, parts, first_row, n_rows,
                          head);
    if (p.is_direct)
        return;
    __syncthreads();
    for (;;) {
        if (at.column != NO_PLACE) {
            float v = finish_result<R>(p, at, parts, r, factors[r], was);
            out[at.column] = v;
            head.note(p, true, at.column, v, factors + 1);
        }
        e += group;
        if (e >= p.max_results || first_row + r >= n_rows)
            return;
        at = find_result(p, e);
        if (at.column != NO_PLACE && p.epilogue == EPILOGUE_ADD)
            was = __ldcg(out + at.column);
    }
}

/* A kernel for some rows and a set of types: project_<rows>_<set>. */
#define PROJECT_KERNEL(ROWS, REGISTERS, SET_NAME, SET)                                             \
    extern "C" __global__ void __maxnreg__(REGISTERS)                                              \
        project_##ROWS##_##SET_NAME(const __grid_constant__ struct project_params p) {             \
        project<SET, ROWS>(p);                                                                     \
    }

/* Several rows of int8 activations are project_many's; what that leaves is one set. */
#define PROJECT_KERNELS_FEW(...)                                                                   \
    PROJECT_KERNEL(__VA_ARGS__, bf16, IS_BF16)                                                     \
    PROJECT_KERNEL(__VA_ARGS__, bf16_f32, IS_BF16 | IS_F32)                                        \
    PROJECT_KERNEL(__VA_ARGS__, f16, IS_F16)                                                       \
    PROJECT_KERNEL(__VA_ARGS__, all, 127)

#define PROJECT_KERNELS(...)                                                                       \
    PROJECT_KERNEL(__VA_ARGS__, q4, IS_Q4_K)                                                       \
    PROJECT_KERNEL(__VA_ARGS__, q6, IS_Q6_K)                                                       \
    PROJECT_KERNEL(__VA_ARGS__, q4_q6, IS_Q4_K | IS_Q6_K)                                          \
    PROJECT_KERNEL(__VA_ARGS__, q4_f32, IS_Q4_K | IS_F32)                                          \
    PROJECT_KERNEL(__VA_ARGS__, q4_q6_f32, IS_Q4_K | IS_Q6_K | IS_F32)                             \
    PROJECT_KERNEL(__VA_ARGS__, q8, IS_Q8_0)                                                       \
    PROJECT_KERNEL(__VA_ARGS__, q8_f32, IS_Q8_0 | IS_F32)                                          \
    PROJECT_KERNELS_FEW(__VA_ARGS__)

#endif
