/* project_wide.cu - PROJECT for 64 rows and more, on wgmma (sm_90a), with the bits of one row.
 *
 *   out[row][n] = epilogue(factor[row] * sum over k of w[n][k] * a[row][k])
 *
 * Why fp16. A group is 128 columns that share an activation scale. Its integer sum, in the gemv
 * kernels sum of scale * sum(q * x) over its blocks, is also the sum of (scale * q) * x, and with
 * |x| <= 127 all of that is exact on fp16 tensor cores, where f32 sums below 2^24 are integers:
 *
 *   Q4_K   scale * q <= 945
 *   Q5_K   scale * (q - 16) <= 1008 in size, and 16 * (sum of scale * sum(x)) added by an fma,
 *          which rounds to the same float as converting the integer does
 *   Q6_K   q = 8 (2 r - 3) + (low - 8), r the upper two bits, low the nibble: scale * (2 r - 3) <=
 *          384 and scale * (low - 8) <= 1024 in two sums, which an fma adds
 *   Q8_0   q itself, a sum for every 32 columns; in tiles of 128 rows int8 (project_wide_q8.cuh)
 *
 * Minimums times sums of activations are a small mma, as in project_gemm_kblock.cuh. A quant in the
 * lowest bits of a half is a denormal, q * 2^-24: a mask and one multiplication (or fma) unpack two
 * of them; the powers of two that are left go into d, exactly.
 *
 * Order of sums, that of the gemv kernels (project_gemv.cuh): groups of a K block one by one, K
 * blocks of a split from 0 on, splits from 0 on.
 *
 * Who does what. A thread block, one an SM, takes tiles of 128 weight rows by 128 (64) rows of
 * activations; a stage of its pipeline has 128 columns of both. The last warpgroup copies: one bulk
 * copy (four) for the activations, and a thread a weight row gathers the row's bytes out of the
 * tiles. The other two have 64 weight rows each: a thread unpacks weights into the A registers of
 * wgmma, which columns a step of 16 has is chosen (qact_word) so that all of a thread's columns
 * are one block of 32 with one scale. 64 columns are unpacked while the 64 before are multiplied,
 * and the next group's first while its last are. Then the sums are scaled and added while the other
 * warpgroup multiplies.
 *
 * Bytes: of a tile 276 a row of activations and 72 to 136 a weight row for every 128 columns, out
 * of L2. H200, 4096 rows: see docs/lab/cuda.md. */
#include "backend/cuda/kernels/project_wide_q8.cuh"

#if __CUDA_ARCH_FEAT_SM90_ALL

/* ---- the pipeline in shared memory -------------------------------------------------------- */

static __device__ __forceinline__ uint32_t shared_base(void) {
    extern __shared__ __align__(1024) uint8_t wide_shared[];
    return smem_addr(wide_shared);
}

/* The stage that is filled, or multiplied, next. */
struct pipeline {
    uint32_t stage, phase;

    __device__ __forceinline__ uint32_t at(const struct wide_params &p) const {
        return shared_base() + WIDE_STAGES_AT + stage * p.stage_bytes;
    }
    __device__ __forceinline__ uint32_t full(void) const {
        return shared_base() + stage * 8;
    }
    __device__ __forceinline__ uint32_t empty(void) const {
        return shared_base() + 64 + stage * 8;
    }
    __device__ __forceinline__ void next(const struct wide_params &p) {
        stage = stage + 1 == p.stages ? 0 : stage + 1;
        phase ^= stage == 0;
    }
};

/* ---- tiles of the product ----------------------------------------------------------------- */

struct wide_tile {
    uint32_t segment, n_block, row_block; /* row_block: of the tile's rows */
    uint32_t first_kblock, end_kblock;    /* that this thread block multiplies */
    uint32_t shared;                      /* number among the tiles that are cut */
    uint32_t own_part, parts;             /* of the tile */
    uint32_t part, part_step; /* its first among all parts, and how far apart they are */
};

/* Tiles that n weight rows are; with SwiGLU a tile has half as many rows of each matrix. */
static __device__ __forceinline__ uint32_t count_tiles(const struct wide_params &p, uint32_t n) {
    uint32_t rows = p.epilogue == EPILOGUE_SWIGLU ? WIDE_N / 2 : WIDE_N;
    return (n + rows - 1) / rows;
}

static __device__ __forceinline__ uint32_t count_parts(const struct project_segment &s,
                                                       uint32_t cut) {
    return cut == WIDE_BY_KBLOCKS ? s.kblocks : cut == WIDE_BY_SPLITS ? s.splits : 1;
}

/* Groups of columns that the busiest thread block has after the whole rounds; to cut tiles costs as
 * much as a few more. UINT32_MAX: there is no room for the parts. */
static __device__ __forceinline__ uint32_t cut_cost(const struct wide_params &p,
                                                    uint32_t row_blocks, uint32_t whole,
                                                    uint32_t cut, uint32_t &parts) {
    uint32_t first = 0, groups = 0;
    parts = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < p.n_segments; i++) {
        const struct project_segment &s = p.segments[i];
        uint32_t n = count_parts(s, cut), end = first + row_blocks * count_tiles(p, s.n);
        parts += (end - min(max(first, whole), end)) * n;
        groups = max(groups, (s.kblocks + n - 1) / n * (32u >> s.row_shift));
        first = end;
    }
    uint32_t rounds = (parts + gridDim.x - 1) / gridDim.x;
    return cut == WIDE_UNCUT     ? rounds * groups
           : parts > p.max_parts ? UINT32_MAX
                                 : rounds * groups + WIDE_CUT_COST;
}

template <int ROWS>
static __device__ __forceinline__ struct wide_division divide_step(const struct wide_params &p,
                                                                   uint32_t n_rows) {
    uint32_t row_blocks = (n_rows + ROWS - 1) / ROWS, tiles = 0, best = UINT32_MAX;
    struct wide_division d = {.rows = n_rows};
    for (uint32_t i = 0; i < p.n_segments; i++)
        tiles += row_blocks * count_tiles(p, p.segments[i].n);
    d.whole = tiles - tiles % gridDim.x;
    for (uint32_t cut = WIDE_UNCUT; cut <= WIDE_BY_KBLOCKS; cut++) {
        uint32_t parts, cost = cut_cost(p, row_blocks, d.whole, cut, parts);
        if (cost < best)
            best = cost, d.cut = cut, d.parts = parts;
    }
    return d;
}

static __device__ __forceinline__ struct wide_division *division(void) {
    return (struct wide_division *)__cvta_shared_to_generic(shared_base() + WIDE_DIVISION);
}

/* As values that the compiler knows to be the same in all lanes: see multiply_tile. */
static __device__ __forceinline__ struct wide_division load_division(void) {
    return {warp_uniform(division()->rows), warp_uniform(division()->whole),
            warp_uniform(division()->cut), warp_uniform(division()->parts)};
}

/* The t-th task of the step; a thread block has number blockIdx.x and every gridDim.x-th after it.
 * Parts of tiles that are cut, then whole tiles: so all parts are there when thread blocks that
 * have no more to multiply add them. Row blocks first, so that thread blocks that run together
 * share weights. */
template <int ROWS>
static __device__ __forceinline__ bool find_tile(const struct wide_params &p, uint32_t t,
                                                 struct wide_tile &out) {
    struct wide_division d = load_division();
    bool is_part = t < d.parts;
    uint32_t row_blocks = (d.rows + ROWS - 1) / ROWS, first = 0;
    uint32_t whole = is_part ? d.whole : 0; /* tiles before the first that t counts */
    uint32_t cut = is_part ? d.cut : (uint32_t)WIDE_UNCUT;
    out.part = t;
    t = is_part ? t : t < d.parts + d.whole ? t - d.parts : UINT32_MAX;
#pragma unroll 1
    for (uint32_t i = 0; i < p.n_segments; i++) {
        const struct project_segment &s = p.segments[i];
        uint32_t end = first + row_blocks * count_tiles(p, s.n), begin = max(first, whole);
        uint32_t n = end - min(begin, end), parts = count_parts(s, cut);
        if (t < n * parts) {
            uint32_t part = t / n, tile = begin + t - part * n;
            out.segment = i;
            out.shared = tile - whole;
            out.n_block = (tile - first) / row_blocks;
            out.row_block = tile - first - out.n_block * row_blocks;
            out.parts = parts;
            out.part_step = n;
            out.first_kblock = cut == WIDE_BY_KBLOCKS ? part : task_first_kblock(s, part);
            out.end_kblock = cut == WIDE_UNCUT        ? s.kblocks
                             : cut == WIDE_BY_KBLOCKS ? part + 1
                                                      : task_first_kblock(s, part + 1);
            out.part -= part * n; /* the tile's first */
            out.own_part = part;
            return true;
        }
        t -= n * parts;
        first = end;
    }
    return false;
}

/* The tile that a warp works at is kept in shared memory: registers are few, and to find it again
 * takes as long as half a group. */
static __device__ __forceinline__ struct wide_tile *kept_tile(void) {
    uint32_t at =
        shared_base() + WIDE_TILES + threadIdx.x / 32 * (uint32_t)sizeof(struct wide_tile);
    return (struct wide_tile *)__cvta_shared_to_generic(at);
}

static __device__ __forceinline__ void keep_tile(const struct wide_tile &t) {
    static_assert(WIDE_TILES + WIDE_THREADS / 32 * sizeof(struct wide_tile) <= WIDE_STAGES_AT,
                  "before the stages");
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        *kept_tile() = t;
    __syncwarp();
}

/* The same in all lanes: if the compiler did not know, the loop over groups would have no addresses
 * in uniform registers, and be 10 % slower. */
static __device__ __forceinline__ struct wide_tile load_tile(void) {
    const struct wide_tile t = *kept_tile();
    return {warp_uniform(t.segment),      warp_uniform(t.n_block),    warp_uniform(t.row_block),
            warp_uniform(t.first_kblock), warp_uniform(t.end_kblock), warp_uniform(t.shared),
            warp_uniform(t.own_part),     warp_uniform(t.parts),      warp_uniform(t.part),
            warp_uniform(t.part_step)};
}

/* The t-th tile becomes the warp's, which keeps it if it multiplies it; of small buckets the first
 * is. (Of tiles of 128 rows it is found again: Q4_K would spill.) False: there is none. */
template <int ROWS, bool KEEPS = true>
static __device__ __forceinline__ bool take_tile(const struct wide_params &p, uint32_t t,
                                                 struct wide_tile &out) {
    if (ROWS == 64 && p.early_rows && t == blockIdx.x) {
        out = load_tile();
        return out.parts != 0;
    }
    if (!find_tile<ROWS>(p, t, out))
        return false;
    if (KEEPS)
        keep_tile(out);
    return true;
}

/* Groups of a K block. */
template <int TYPE>
static __device__ __forceinline__ uint32_t kblock_groups(const struct project_segment &s) {
    return 1u << ((TYPE == IS_Q8_0 ? 4 : 5) - s.row_shift);
}

/* ---- the copying warpgroup ---------------------------------------------------------------- */

/* A weight row in its tile. SwiGLU: rows 8 i ... of gate, then the same of up, in turns. */
struct weight_row {
    const uint8_t *tile;
    uint32_t row; /* of the tile */
};

static __device__ __forceinline__ struct weight_row
find_weight_row(const struct wide_params &p, const struct wide_tile &t, uint32_t r) {
    const struct project_segment &s = p.segments[t.segment];
    uint32_t n = t.n_block * WIDE_N + r;
    const uint8_t *data = s.data;
    if (p.epilogue == EPILOGUE_SWIGLU) {
        data = r / 8 % 2 ? p.segments[1].data : data;
        n = t.n_block * (WIDE_N / 2) + r / 16 * 8 + r % 8;
    }
    n = min(n, s.n - 1); /* rows after the last are not stored */
    uint32_t tile = n >> s.row_shift;
    return {data + (uint64_t)tile * s.kblocks * s.kblock_bytes, n - (tile << s.row_shift)};
}

/* Group `i` of a K block: row r of the stage's weights. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void copy_weights(uint32_t at, const uint8_t *kblock, uint32_t i,
                                                    uint32_t row, uint32_t row_shift, uint32_t r) {
    using L = stage_layout<TYPE, ROWS>;
    uint32_t lane = (i << row_shift) + row, d = (i / 2 << row_shift) + row;
    if constexpr (TYPE == IS_Q8_0) {
        lane = (2 * i << row_shift) + row;
#pragma unroll
        for (uint32_t c = 0; c < 8; c++)
            cp_async_16(at + L::QUANTS + c * WIDE_CHUNK + r * 16,
                        kblock + c % 4 * 512 + (lane + (c / 4 << row_shift)) * 16);
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
            cp_async_4(at + L::W_D + r * 8 + c * 4,
                       kblock + TILE_HIGH_BITS + (lane + (c << row_shift)) * 4);
    } else {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            cp_async_16(at + L::QUANTS + c * WIDE_CHUNK + r * 16, kblock + c * 512 + lane * 16);
    }
    if constexpr (TYPE == IS_Q6_K) {
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
            cp_async_16(at + L::HIGH_BITS + c * WIDE_CHUNK + r * 16,
                        kblock + TILE_HIGH_BITS + c * 512 + lane * 16);
        cp_async_8(at + L::W_SCALES + r * 8, kblock + TILE_Q6_SCALES + lane * 8);
        if (r % 2 == 0) /* the row's and the next one's */
            cp_async_4(at + L::W_D + r * 2, kblock + TILE_Q6_D + d / 2 * 4);
    } else if constexpr (TYPE != IS_Q8_0) {
        const uint8_t *scales = kblock + (TYPE == IS_Q5_K ? TILE_Q5_SCALES : TILE_Q4_SCALES);
        if (TYPE == IS_Q5_K)
            cp_async_16(at + L::HIGH_BITS + r * 16, kblock + TILE_HIGH_BITS + lane * 16);
        cp_async_4(at + L::W_SCALES + r * 4, scales + lane * 4);
        cp_async_4(at + L::W_D + r * 4, scales + TILE_D + d * 4);
        if (r % 2 == 0)
            cp_async_4(at + L::W_MINS + r * 2, scales + TILE_MINS + lane / 2 * 4);
    }
}

/* By one thread: rows `first` ... of a group's quantized activations. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void copy_qact(const struct wide_params &p, uint32_t at,
                                                 const uint8_t *group, uint32_t first,
                                                 uint32_t full) {
    using L = stage_layout<TYPE, ROWS>;
    const uint8_t *panel = group + first * 128, *scales = group + p.qact_rows * 256;
    mbarrier_expect_tx(full, L::SUMS + L::SUM_BYTES);
    cp_async_bulk(at, panel, L::PANEL, full);
    if (!IS_ALL_INT8<TYPE, ROWS>)
        cp_async_bulk(at + L::PANEL, panel + p.qact_rows * 128, L::PANEL, full);
    cp_async_bulk(at + L::SCALES, scales + first * (L::SCALE_BYTES / ROWS), L::SCALE_BYTES, full);
    if (L::SUM_BYTES)
        cp_async_bulk(at + L::SUMS, scales + p.qact_rows * 4 + first * 16, L::SUM_BYTES, full);
}

/* The groups of a tile. n_early: this many have their weights already, or get them now, before
 * pdl_wait, and nothing else (EARLY). */
template <int TYPE, int ROWS, bool EARLY>
static __device__ __forceinline__ void copy_tile(const struct wide_params &p,
                                                 const struct wide_tile &t, struct pipeline &pipe,
                                                 uint32_t n_early) {
    const struct project_segment &s = p.segments[t.segment];
    uint32_t r = threadIdx.x % 128, row_shift = s.row_shift, in_kblock = kblock_groups<TYPE>(s);
    uint32_t kblock_bytes = s.kblock_bytes, kblock = t.first_kblock;
    uint32_t left = t.end_kblock - kblock;
    struct weight_row own = find_weight_row(p, t, r);
    const uint8_t *group = p.qact + (uint64_t)kblock * in_kblock * p.group_bytes;
    own.tile += (uint64_t)kblock * kblock_bytes;
#pragma unroll 1
    for (; left; left--, own.tile += kblock_bytes)
#pragma unroll 1
        for (uint32_t i = 0; i < in_kblock; i++, group += p.group_bytes) {
            if (EARLY && n_early-- == 0)
                return;
            if (!EARLY)
                mbarrier_wait(pipe.empty(), pipe.phase ^ 1);
            if (!EARLY && r == 0)
                copy_qact<TYPE, ROWS>(p, pipe.at(p), group, t.row_block * ROWS, pipe.full());
            if (EARLY || n_early == 0) {
                copy_weights<TYPE, ROWS>(pipe.at(p), own.tile, i, own.row, row_shift, r);
                cp_async_arrive(pipe.full());
            } else {
                n_early--;
            }
            pipe.next(p);
        }
}

/* Of a kernel for one type, or for both of WIDE_PAIR. */
template <int TYPE, int ROWS, bool EARLY>
static __device__ __forceinline__ void copy_tile_of_type(const struct wide_params &p,
                                                         const struct wide_tile &t,
                                                         struct pipeline &pipe, uint32_t n_early) {
    if constexpr (TYPE != WIDE_PAIR)
        copy_tile<TYPE, ROWS, EARLY>(p, t, pipe, n_early);
    else if (p.segments[t.segment].type == IS_Q6_K)
        copy_tile<IS_Q6_K, ROWS, EARLY>(p, t, pipe, n_early);
    else
        copy_tile<IS_Q4_K, ROWS, EARLY>(p, t, pipe, n_early);
}

/* ---- multiplying -------------------------------------------------------------------------- */

/* Starts a part of a group; b: its activations. Q8_0: the half's two products. */
template <int TYPE, int ROWS, int PART>
static __device__ __forceinline__ void multiply_part(struct wide_sums<TYPE, ROWS> &s, uint64_t b) {
    constexpr int HALF = PART % 2, PRODUCT = TYPE == IS_Q6_K ? PART / 2 : 0;
    const fragments &f = s.f[PART % 2];
    b += HALF * (ROWS * 128 / 16);
    wgmma_fence();
    if constexpr (TYPE == IS_Q8_0) {
        wgmma_f16<false>(s.c[2 * HALF], f[0], b);
        wgmma_f16<true>(s.c[2 * HALF], f[1], b + 2);
        wgmma_f16<false>(s.c[2 * HALF + 1], f[2], b + 4);
        wgmma_f16<true>(s.c[2 * HALF + 1], f[3], b + 6);
    } else {
        wgmma_f16<HALF != 0>(s.c[PRODUCT], f[0], b);
        wgmma_f16<true>(s.c[PRODUCT], f[1], b + 2);
        wgmma_f16<true>(s.c[PRODUCT], f[2], b + 4);
        wgmma_f16<true>(s.c[PRODUCT], f[3], b + 6);
    }
    wgmma_commit();
}

/* ---- the pipeline ----------------------------------------------------------------------------
 *
 * At most two parts are in flight, the fragments of each in registers of its own; before a part is
 * unpacked the last but one is waited for. */

/* When the part's fragments are free. */
template <int TYPE, int ROWS, int PART>
static __device__ __forceinline__ void start_part(struct wide_sums<TYPE, ROWS> &s, uint32_t at) {
    wgmma_wait<1>();
    unpack_part<TYPE, ROWS, PART>(s.f[PART % 2], s.scales, at);
    multiply_part<TYPE, ROWS, PART>(s, describe_panel(at));
}

/* The next group's first part, if there is one. left: groups of the tile. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void unpack_next(const struct wide_params &p,
                                                   struct wide_sums<TYPE, ROWS> &s,
                                                   const struct pipeline &pipe, uint32_t left) {
    if (left) {
        mbarrier_wait(pipe.full(), pipe.phase);
        unpack_part<TYPE, ROWS, 0>(s.f[0], s.scales, pipe.at(p));
    }
}

/* The stage of `empty` is read. An arrival overtakes loads that wait in their queue, after the
 * copies of weights into other stages, and bulk copies, which do not go through that queue, then
 * bring the next group's scales before this one's are read. So it waits for sums that were made of
 * them: `used` has the bits of such sums. */
static __device__ __forceinline__ void release_stage(const struct wide_params &p, uint32_t empty,
                                                     uint32_t used) {
    empty += used & p.zero;
    __syncwarp();
    if (volatile_lane() == 0)
        mbarrier_arrive(empty);
}

/* Of every 16 bytes of scales and sums of activations, and of both weight rows' scales, one sum
 * that they are in. */
template <int N>
static __device__ __forceinline__ uint32_t bits_of_sums(const float (&kblock)[N], int first) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = first; i < N; i += 16)
        bits |= __float_as_uint(kblock[i]) | __float_as_uint(kblock[i + 10]);
    return bits;
}

/* A group, whose first part is unpacked. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void multiply_group(const struct wide_params &p,
                                                      struct wide_sums<TYPE, ROWS> &s,
                                                      struct pipeline &pipe, uint32_t &left) {
    uint32_t at = pipe.at(p), empty = pipe.empty();
    multiply_part<TYPE, ROWS, 0>(s, describe_panel(at));
    mbarrier_wait(pipe.full(), pipe.phase); /* is over: so that nothing is unpacked earlier */
    start_part<TYPE, ROWS, 1>(s, at);
    if constexpr (TYPE == IS_Q6_K) {
        start_part<TYPE, ROWS, 2>(s, at);
        start_part<TYPE, ROWS, 3>(s, at);
    }
    pipe.next(p);
    wgmma_wait<1>();
    unpack_next<TYPE, ROWS>(p, s, pipe, left -= 1);
    wgmma_wait<0>();
    scale_group<TYPE, ROWS>(s, at);
    release_stage(p, empty, bits_of_sums(s.kblock, 0));
}

/* ---- epilogue ----------------------------------------------------------------------------- */

/* Factors that the thread block has computed (write_factors) are in shared memory. */
template <class T>
static __device__ __forceinline__ T load_factor(const struct wide_params &p, const T *at) {
    return p.squares ? *at : __ldcg(at);
}

static __device__ __forceinline__ const float *all_factors(const struct wide_params &p) {
    return p.squares ? (const float *)__cvta_shared_to_generic(shared_base() + p.factors_at)
                     : p.factors;
}

/* store_tile's WHOLE. */
struct whole_tile {
    template <int ROWS, int EPILOGUE>
    static __device__ __forceinline__ void store(const struct wide_params &p, float (&v)[ROWS / 2],
                                                 float *out, const float *factors) {
        float2 f[ROWS / 8];
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++)
            f[i] = factors ? load_factor(p, (const float2 *)factors + 4 * i) : make_float2(1, 1);
        float was[ROWS / 2];
        if (EPILOGUE == EPILOGUE_ADD)
            load_values<ROWS>(p, out, was);
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++) {
            v[i] = __fmul_rn(v[i], i % 2 ? f[i / 4].y : f[i / 4].x);
            if (EPILOGUE == EPILOGUE_ADD)
                v[i] = __fadd_rn(was[i], v[i]);
        }
        store_values<ROWS, EPILOGUE>(p, v, out);
    }
};

/* ---- the multiplying warpgroups ----------------------------------------------------------- */

/* Adds the sum of the K splits before to v, and keeps it for the next one. */
template <int ROWS>
static __device__ __forceinline__ void add_splits_before(float (&v)[ROWS / 2], uint32_t at,
                                                         bool is_first, bool is_last) {
    at += threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        float4 *kept = (float4 *)__cvta_shared_to_generic(at + i * (WIDE_N * 2) * 16);
        float4 w = is_first ? make_float4(0, 0, 0, 0) : *kept;
        v[4 * i] = __fadd_rn(w.x, v[4 * i]);
        v[4 * i + 1] = __fadd_rn(w.y, v[4 * i + 1]);
        v[4 * i + 2] = __fadd_rn(w.z, v[4 * i + 2]);
        v[4 * i + 3] = __fadd_rn(w.w, v[4 * i + 3]);
        if (!is_last)
            *kept = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    }
}

/* A part's sums to the workspace, 16 bytes of 8 rows of activations at a time (an octet). */
template <int ROWS>
static __device__ __forceinline__ void
store_sums(const struct wide_params &p, const struct wide_tile &t, const float (&v)[ROWS / 2]) {
    constexpr uint32_t THREADS = WIDE_N * 2, PART = ROWS / 8 * THREADS;
    float4 *own = (float4 *)p.partials +
                  ((uint64_t)t.part + (uint64_t)t.own_part * t.part_step) * PART + threadIdx.x;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
        __stcg(own + i * THREADS, make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]));
    if (!p.arrivals)
        return;
    any_barrier_sync(1, THREADS);
    if (threadIdx.x == 0)
        atomic_inc_acq_rel_gpu(p.arrivals + t.shared);
}

/* Where a thread's values of an octet belong. */
template <int TYPE, int ROWS> struct octet_place {
    uint32_t row; /* first of the octet */
    struct thread_place own;

    __device__ __forceinline__ octet_place(const struct wide_tile &t, uint32_t octet)
        : own(volatile_thread()) {
        row = t.row_block * ROWS + octet * 8;
        if constexpr (IS_ALL_INT8<TYPE, ROWS>) { /* a warpgroup has half of the rows */
            uint32_t thread = volatile_thread(), upper = octet / (ROWS / 16);
            row += (thread / 128) * (ROWS / 2) - upper * (ROWS / 2);
            own = thread_place(thread % 128 + upper * 128);
        }
    }
};

/* The sums of a tile's parts in their order, K blocks of a split, then splits; v: of octets
 * `first`, first + octet_step, ... before `end`. */
template <int N, int ROWS>
static __device__ __forceinline__ void
add_parts(const struct wide_params &p, const struct wide_tile &t, uint32_t first, uint32_t end,
          uint32_t octet_step, float (&v)[N][4]) {
    constexpr uint32_t THREADS = WIDE_N * 2, PART = ROWS / 8 * THREADS;
    constexpr int AHEAD = ROWS == 64 ? 5 : 4;
    const struct project_segment &s = p.segments[t.segment];
    bool is_by_kblocks = t.parts != s.splits;
    uint32_t split = 0, left_of_split = is_by_kblocks ? task_kblocks(s, 0) : 1;
    const float4 *from = (const float4 *)p.partials + (uint64_t)t.part * PART + threadIdx.x;
    uint64_t step = (uint64_t)t.part_step * PART;
    float sum[N][4];
#pragma unroll
    for (int i = 0; i < 4 * N; i++)
        v[i / 4][i % 4] = sum[i / 4][i % 4] = 0;
#pragma unroll 1
    for (uint32_t part = 0; part < t.parts; part += AHEAD, from += AHEAD * step) {
        float4 w[AHEAD][N];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                uint32_t octet = first + i * octet_step;
                w[a][i] = make_float4(0, 0, 0, 0);
                if (part + a < t.parts && octet < end)
                    w[a][i] = __ldcg(from + a * step + octet * THREADS);
            }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (part + a >= t.parts)
                break;
#pragma unroll
            for (int i = 0; i < N; i++) {
                sum[i][0] = __fadd_rn(sum[i][0], w[a][i].x);
                sum[i][1] = __fadd_rn(sum[i][1], w[a][i].y);
                sum[i][2] = __fadd_rn(sum[i][2], w[a][i].z);
                sum[i][3] = __fadd_rn(sum[i][3], w[a][i].w);
            }
            if (--left_of_split)
                continue;
            left_of_split = is_by_kblocks ? task_kblocks(s, ++split) : 1;
#pragma unroll
            for (int i = 0; i < 4 * N; i++) {
                v[i / 4][i % 4] = __fadd_rn(v[i / 4][i % 4], sum[i / 4][i % 4]);
                sum[i / 4][i % 4] = 0;
            }
        }
    }
}

/* Octets `first`, first + step, ... before `end` of a cut tile. leavers: thread blocks that add
 * some of it. */
template <int TYPE, int ROWS, int N>
static __device__ __forceinline__ void
combine_tile(const struct wide_params &p, const struct wide_tile &t, uint32_t n_rows,
             uint32_t first, uint32_t end, uint32_t step, uint32_t leavers) {
    if (threadIdx.x == 0)
        while (ld_acquire(p.arrivals + t.shared) < t.parts)
            ;
    any_barrier_sync(1, WIDE_N * 2);
#pragma unroll 1
    for (; first < end; first += N * step) {
        float v[N][4];
        add_parts<N, ROWS>(p, t, first, end, step, v);
#pragma unroll 1
        for (int i = 0; i < N; i++) { /* one by one: less code, which comes from memory */
            uint32_t octet = first + i * step;
            const octet_place<TYPE, ROWS> at(t, octet);
            if (octet < end)
                store_rows<8, whole_tile>(p, t, n_rows, at.row, at.own, v[0]);
#pragma unroll
            for (int k = 0; k + 1 < N; k++)
#pragma unroll
                for (int x = 0; x < 4; x++)
                    v[k][x] = v[k + 1][x];
        }
    }
    /* The last to leave sets the counter back. */
    any_barrier_sync(1, WIDE_N * 2);
    if (threadIdx.x == 0 && atomic_inc_acq_rel_gpu(p.arrivals + t.shared) == t.parts + leavers - 1)
        p.arrivals[t.shared] = 0;
}

/* When a thread block has stored the sums of all its parts, nobody waits for one who waits: it adds
 * every `parts`-th octet of its tiles. With n_cut those do it who have a task less than others,
 * while these multiply their last tile: N octets each. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void combine_tiles(const struct wide_params &p, uint32_t n_rows) {
    constexpr uint32_t N = ROWS == 64 ? 2 : 4, OCTETS = ROWS / 8, UNITS = OCTETS / N;
    bool is_left = p.n_cut;
    uint32_t from = is_left ? p.combine_from : 0, parts = load_division().parts;
    struct wide_tile t;
    if (blockIdx.x < from)
        return;
#pragma unroll 1
    for (uint32_t i = blockIdx.x - from;; i += gridDim.x - from) {
        uint32_t unit = i % UNITS, tile = is_left ? i / UNITS : i;
        if (tile >= (is_left ? p.n_cut : parts) || !find_tile<ROWS>(p, tile, t))
            return;
        if (t.parts == 1)
            continue;
        combine_tile<TYPE, ROWS, N>(p, t, n_rows, is_left ? unit * N : t.own_part,
                                    is_left ? unit * N + N : OCTETS, is_left ? 1 : t.parts,
                                    is_left ? UNITS : t.parts);
    }
}

/* The sums of the warp's tile. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void finish_tile(const struct wide_params &p, uint32_t n_rows,
                                                   float (&v)[ROWS / 2]) {
    const struct wide_tile t = load_tile();
    if (warp_uniform(t.parts) > 1) {
        store_sums<ROWS>(p, t, v);
        return;
    }
    if constexpr (IS_ALL_INT8<TYPE, ROWS>) { /* a warpgroup has half of the rows */
        uint32_t thread = volatile_thread(), half = warp_uniform(thread / 128);
        uint32_t first = t.row_block * ROWS + half * (ROWS / 2);
        store_rows<ROWS / 2, whole_tile>(p, t, n_rows, first, thread_place(thread % 128),
                                         (float(&)[ROWS / 4]) v[0]);
        store_rows<ROWS / 2, whole_tile>(p, t, n_rows, first, thread_place(thread % 128 + 128),
                                         (float(&)[ROWS / 4]) v[ROWS / 4]);
    } else {
        store_tile<ROWS, whole_tile>(p, t, n_rows, v);
    }
}

/* ---- the sums of a K block and of a split ------------------------------------------------- */

/* Where in K a tile is. */
struct k_place {
    uint32_t groups;  /* left of the K block, */
    uint32_t kblocks; /* of the split */
    uint32_t split, splits;
};

template <int TYPE>
static __device__ __forceinline__ struct k_place first_k_place(const struct wide_tile &t,
                                                               const struct project_segment &s) {
    bool is_cut = t.parts > 1 || s.splits == 1;
    return {kblock_groups<TYPE>(s), is_cut ? t.end_kblock - t.first_kblock : task_kblocks(s, 0), 0,
            is_cut ? 1 : s.splits};
}

/* A group is in kblock: at the end of a K block, or of a split, all sums that are complete. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void
end_group(const struct wide_params &p, const struct project_segment &seg, float (&kblock)[ROWS / 2],
          float (&split)[ROWS / 2], struct k_place &k) {
    if (--k.groups)
        return;
    k.groups = kblock_groups<TYPE>(seg);
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        split[i] = __fadd_rn(split[i], kblock[i]);
        kblock[i] = 0;
    }
    if (--k.kblocks || k.splits == 1)
        return;
    bool is_last = k.split + 1 == k.splits;
    add_splits_before<ROWS>(split, shared_base() + p.splits_at, k.split == 0, is_last);
    if (is_last)
        return;
    k.kblocks = task_kblocks(seg, ++k.split);
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        split[i] = 0;
}

/* ---- Q8_0, both operands int8 ------------------------------------------------------------- */

/* When the stage is there. */
static __device__ __forceinline__ void start_q8_group(struct q8_sums &s,
                                                      const struct wide_params &p,
                                                      const struct pipeline &pipe, uint32_t group) {
    mbarrier_wait(pipe.full(), pipe.phase);
    fence_proxy_async(); /* cp.async wrote the weights */
    start_unit<0>(s, pipe.at(p), group);
}

/* A group, whose first unit is started; the next one likewise. */
template <bool IS_LAST>
static __device__ __forceinline__ void multiply_q8_group(struct q8_sums &s, struct q8_scales &by,
                                                         const struct wide_params &p,
                                                         struct pipeline &pipe, uint32_t group) {
    uint32_t at = pipe.at(p), empty = pipe.empty();
    float d[2][4];
    wgmma_wait<0>(); /* ptxas would serialize all if the first unit were waited for later */
    multiply_unit<0>(s, by, d, at, group);
    multiply_unit<1>(s, by, d, at, group);
    multiply_unit<2>(s, by, d, at, group);
    multiply_unit<3>(s, by, d, at, group);
    multiply_unit<4>(s, by, d, at, group);
    multiply_unit<5>(s, by, d, at, group);
    multiply_unit<6>(s, by, d, at, group);
    pipe.next(p);
    if (!IS_LAST) {
        start_q8_group(s, p, pipe, group);
        load_scales<0>(by, pipe.at(p), group);
        wgmma_wait<1>();
    } else {
        wgmma_wait<0>();
    }
    scale_unit<7>(s, by.as, d);
    release_stage(p, empty, bits_of_sums(s.kblock, 48)); /* the last that are loaded */
}

static __device__ __forceinline__ void multiply_q8_tile(const struct wide_params &p,
                                                        const struct wide_tile &t,
                                                        struct pipeline &pipe, float (&v)[64]) {
    const struct project_segment &seg = p.segments[t.segment];
    uint32_t left = (t.end_kblock - t.first_kblock) * kblock_groups<IS_Q8_0>(seg); /* groups */
    uint32_t group = warp_uniform(threadIdx.x / 128);
    struct k_place k = first_k_place<IS_Q8_0>(t, seg);
    struct q8_sums s;
    struct q8_scales by;
#pragma unroll
    for (int i = 0; i < 64; i++)
        s.split[i] = 0, s.kblock[i] = 0;
    start_q8_group(s, p, pipe, group);
    load_scales<0>(by, pipe.at(p), group);
#pragma unroll 1
    for (left--; left; left--) {
        multiply_q8_group<false>(s, by, p, pipe, group);
        end_group<IS_Q8_0, 128>(p, seg, s.kblock, s.split, k);
    }
    multiply_q8_group<true>(s, by, p, pipe, group);
    end_group<IS_Q8_0, 128>(p, seg, s.kblock, s.split, k);
#pragma unroll
    for (int i = 0; i < 64; i++)
        v[i] = s.split[i];
}

/* v: the sums of the tile, or of the part. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void multiply_tile(const struct wide_params &p,
                                                     const struct wide_tile &t,
                                                     struct pipeline &pipe, float (&v)[ROWS / 2]) {
    const struct project_segment &s = p.segments[t.segment];
    uint32_t left = (t.end_kblock - t.first_kblock) * kblock_groups<TYPE>(s); /* groups */
    uint32_t splits = t.parts > 1 ? 1 : s.splits;
    struct wide_sums<TYPE, ROWS> sums;
    unpack_next<TYPE, ROWS>(p, sums, pipe, left);
#pragma unroll 1
    for (uint32_t split = 0; split < splits; split++) {
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++)
            sums.split[i] = 0;
#pragma unroll 1
        for (uint32_t kblock = splits > 1 ? task_kblocks(s, split) : left / kblock_groups<TYPE>(s);
             kblock; kblock--) {
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++)
                sums.kblock[i] = -0.0f;
#pragma unroll 1
            for (uint32_t i = kblock_groups<TYPE>(s); i; i--)
                multiply_group<TYPE, ROWS>(p, sums, pipe, left);
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++)
                sums.split[i] = __fadd_rn(sums.split[i], sums.kblock[i]);
        }
        if (splits > 1)
            add_splits_before<ROWS>(sums.split, shared_base() + p.splits_at, split == 0,
                                    split + 1 == splits);
    }
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        v[i] = sums.split[i];
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void multiply_tiles(const struct wide_params &p) {
    struct pipeline pipe = {0, 0};
    struct wide_tile t;
    uint32_t n_rows = warp_uniform(count_rows(p.io, p.in)); /* now: later it would be waited for */
#pragma unroll 1
    for (uint32_t i = blockIdx.x; take_tile<ROWS>(p, i, t); i += gridDim.x) {
        float v[ROWS / 2];
        if constexpr (IS_ALL_INT8<TYPE, ROWS>)
            multiply_q8_tile(p, t, pipe, v);
        else if constexpr (TYPE != WIDE_PAIR)
            multiply_tile<TYPE, ROWS>(p, t, pipe, v);
        else if (warp_uniform(p.segments[t.segment].type) == IS_Q6_K)
            multiply_tile<IS_Q6_K, ROWS>(p, t, pipe, v);
        else
            multiply_tile<IS_Q4_K, ROWS>(p, t, pipe, v);
        finish_tile<TYPE, ROWS>(p, n_rows, v);
    }
    if (p.arrivals)
        combine_tiles<TYPE, ROWS>(p, n_rows);
}

/* Sums of v[i] over the warp, in warp_sum's order. A lane gets that of row % 8: bits 4, 3 and 2 of
 * its number. */
static __device__ __forceinline__ float sum_8_rows(float (&v)[8], uint32_t lane) {
#pragma unroll
    for (int n = 4; n; n /= 2) {
        bool is_upper = lane & (4 * n);
#pragma unroll
        for (int i = 0; i < n; i++)
            v[i] = __fadd_rn(is_upper ? v[i + n] : v[i],
                             __shfl_xor_sync(~0u, is_upper ? v[i] : v[i + n], 4 * n));
    }
    v[0] = __fadd_rn(v[0], __shfl_xor_sync(~0u, v[0], 2));
    return __fadd_rn(v[0], __shfl_xor_sync(~0u, v[0], 1));
}

/* Of all rows, by all thread blocks alike, each for itself; and for the kernel of F32 segments. A
 * warp has every eighth row. */
static __device__ __forceinline__ void write_factors(const struct wide_params &p) {
    constexpr int N = 8; /* rows at once */
    uint32_t lane = threadIdx.x % 32, groups = p.in.k / WIDE_GROUP;
    uint32_t rows = p.early_rows ? p.early_rows : p.qact_rows;
#pragma unroll 1
    for (uint32_t first = threadIdx.x / 32; first < rows; first += 8 * N) {
        float v[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t row = first + 8 * i;
            v[i] = 0;
            if (lane < groups && row < rows)
                v[i] = __ldcg(p.squares + row * groups + lane);
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = __fadd_rn(0, v[i]);
        uint32_t row = first + 8 * (lane / 16 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2);
        float factor = norm_factor(sum_8_rows(v, lane), p.in.k, p.in.eps);
        if (lane % 4 == 0 && row < rows) {
            ((float *)all_factors(p))[row] = factor;
            if (blockIdx.x == 0) /* writes of all to one line would take longer than all else */
                p.factors[row] = factor;
        }
    }
    any_barrier_sync(1, 256);
}

/* ---- F32 segments ----------------------------------------------------------------------------
 *
 * By thread blocks that have fewer tiles than others: project_wide_f32_4's order of sums. A block
 * has 8 rows of activations in shared memory and 4 tiles, a warp a K split of a tile. */

enum { F32_ROWS = 8, F32_TILES = 4, F32_AHEAD = 4 };

static __device__ __forceinline__ float4 *f32_columns(void) {
    return (float4 *)__cvta_shared_to_generic(shared_base() + WIDE_STAGES_AT);
}

static __device__ __forceinline__ void load_f32_rows(const struct wide_params &p,
                                                     uint32_t first_row, uint32_t n_rows) {
    uint32_t row = threadIdx.x / 32, quads = p.in.k / 4;
    const float4 *x =
        (const float4 *)(p.in.x + (uint64_t)min(first_row + row, n_rows - 1) * p.in.x_stride);
#pragma unroll 1
    for (uint32_t c = threadIdx.x % 32; c < quads; c += 32 * 5) {
        float4 v[5], w[5];
#pragma unroll
        for (int i = 0; i < 5; i++) {
            uint32_t at = min(c + i * 32, quads - 1);
            v[i] = __ldcg(x + at);
            w[i] = __ldg((const float4 *)p.in.norm + at);
        }
#pragma unroll
        for (int i = 0; i < 5; i++)
            if (c + i * 32 < quads)
                f32_columns()[row * quads + c + i * 32] = mul(v[i], w[i]);
    }
}

static __device__ __forceinline__ void multiply_f32_tiles(const struct wide_params &p, float *sums,
                                                          uint32_t tile) {
    uint32_t own = threadIdx.x / 32 % F32_TILES, lane = threadIdx.x % 32, quads = p.in.k / 4;
    uint32_t segment = p.n_segments;
    tile += own;
    if (tile >= p.n_f32_tiles)
        return;
    while (tile >= p.segments[segment].n_tiles)
        tile -= p.segments[segment++].n_tiles;
    const struct project_segment &s = p.segments[segment];
    const uint8_t *from = s.data + (uint64_t)tile * s.kblocks * s.kblock_bytes + lane * 16;
#pragma unroll 1
    for (uint32_t split = threadIdx.x / 32 / F32_TILES; split < s.splits; split += 2) {
        float acc[F32_ROWS][4] = {};
        uint32_t kblock = task_first_kblock(s, split), end = kblock + task_kblocks(s, split);
#pragma unroll 1
        for (; kblock < end; kblock += F32_AHEAD) {
            float4 w[F32_AHEAD][4];
#pragma unroll
            for (int i = 0; i < F32_AHEAD; i++)
#pragma unroll
                for (int r = 0; r < 4; r++)
                    w[i][r] =
                        __ldcg((const float4 *)(from + min(kblock + i, end - 1) * s.kblock_bytes +
                                                r * 512));
#pragma unroll
            for (int i = 0; i < F32_AHEAD; i++)
                if (kblock + i < end)
#pragma unroll
                    for (int row = 0; row < F32_ROWS; row++) {
                        float4 x = f32_columns()[row * quads + (kblock + i) * 32 + lane];
#pragma unroll
                        for (int r = 0; r < 4; r++)
                            acc[row][r] = dot_f32x4(w[i][r], x, acc[row][r]);
                    }
        }
#pragma unroll
        for (int row = 0; row < F32_ROWS; row++) {
            float v = reduce_f32_lanes(acc[row], 32, lane);
            if (lane < 4)
                sums[((split * F32_TILES + own) * F32_ROWS + row) * 4 + lane % 2 * 2 + lane / 2] =
                    v;
        }
    }
}

static __device__ __forceinline__ void store_f32_tiles(const struct wide_params &p,
                                                       const float *sums, uint32_t tile,
                                                       uint32_t first_row, uint32_t n_rows) {
    uint32_t n = threadIdx.x % 4, row = threadIdx.x / 4 % F32_ROWS,
             own = threadIdx.x / (4 * F32_ROWS), segment = p.n_segments;
    tile += own;
    if (own >= F32_TILES || tile >= p.n_f32_tiles || first_row + row >= n_rows)
        return;
    while (tile >= p.segments[segment].n_tiles)
        tile -= p.segments[segment++].n_tiles;
    const struct project_segment &s = p.segments[segment];
    uint32_t column = tile * WIDE_F32_TILE + n;
    if (column >= s.n)
        return;
    float v = 0;
    for (uint32_t i = 0; i < s.splits; i++)
        v = __fadd_rn(v, sums[((i * F32_TILES + own) * F32_ROWS + row) * 4 + n]);
    v = __fmul_rn(v, load_factor(p, all_factors(p) + first_row + row));
    p.out[(uint64_t)(first_row + row) * p.out_stride + s.column + column] = add_bias(s, column, v);
}

static __device__ __forceinline__ void multiply_f32(const struct wide_params &p) {
    uint32_t n_rows = p.io.header->n_rows, blocks = (p.n_f32_tiles + F32_TILES - 1) / F32_TILES;
    float *sums = (float *)(f32_columns() + F32_ROWS * (p.in.k / 4));
#pragma unroll 1
    for (uint32_t i = blockIdx.x - p.f32_from;; i += gridDim.x - p.f32_from) {
        uint32_t first_row = i / blocks * F32_ROWS, tile = i % blocks * F32_TILES;
        if (first_row >= n_rows)
            return;
        any_barrier_sync(1, 256);
        load_f32_rows(p, first_row, n_rows);
        any_barrier_sync(1, 256);
        multiply_f32_tiles(p, sums, tile);
        any_barrier_sync(1, 256);
        store_f32_tiles(p, sums, tile, first_row, n_rows);
    }
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void copy_tiles(const struct wide_params &p, uint32_t n_early) {
    struct pipeline pipe = {0, 0};
    struct wide_tile t;
#pragma unroll 1
    for (uint32_t i = blockIdx.x; take_tile<ROWS, false>(p, i, t); i += gridDim.x, n_early = 0)
        copy_tile_of_type<TYPE, ROWS, false>(p, t, pipe, n_early);
}

/* Of small buckets, which tile is a thread block's first is known before pdl_wait, and its first
 * weights are copied. Returns the groups. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ uint32_t copy_early(const struct wide_params &p) {
    struct pipeline pipe = {0, 0};
    struct wide_tile t;
    if (!p.early_rows || !take_tile<ROWS>(p, blockIdx.x, t))
        return 0;
    uint32_t groups = (t.end_kblock - t.first_kblock) * kblock_groups<TYPE>(p.segments[t.segment]);
    uint32_t n = min(min(groups, p.stages), (uint32_t)WIDE_EARLY_GROUPS);
    copy_tile_of_type<TYPE, ROWS, true>(p, t, pipe, n);
    return n;
}

template <int TYPE> constexpr bool TYPE_DOES_F32 = TYPE == IS_Q4_K || TYPE == WIDE_PAIR;

template <int TYPE, int ROWS>
static __device__ __forceinline__ void project_wide(const struct wide_params &p) {
    pdl_launch_dependents();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < p.stages; i++) {
            mbarrier_init(shared_base() + i * 8, 128 + 1); /* full: the copying threads, bytes */
            mbarrier_init(shared_base() + 64 + i * 8, 8);  /* empty: the multiplying warps */
        }
        mbarrier_init_fence();
        if (p.early_rows)
            *division() = p.division;
    }
    if (p.early_rows)
        __syncthreads();
    if (ROWS == 64 && p.early_rows) {
        struct wide_tile t = {};
        find_tile<ROWS>(p, blockIdx.x, t);
        keep_tile(t);
    }
    uint32_t n_early = threadIdx.x >= 256 ? copy_early<TYPE, ROWS>(p) : 0;
    pdl_wait(p.io);
    if (!p.early_rows) {
        if (threadIdx.x == 0)
            *division() = divide_step<ROWS>(p, count_rows(p.io, p.in));
        __syncthreads();
    }
    if (threadIdx.x >= 256) {
        setmaxnreg_dec<24>();
        copy_tiles<TYPE, ROWS>(p, n_early);
    } else {
        setmaxnreg_inc<240>();
        if (p.squares)
            write_factors(p);
        multiply_tiles<TYPE, ROWS>(p);
        if (TYPE_DOES_F32<TYPE> && p.n_f32_tiles && blockIdx.x >= p.f32_from)
            multiply_f32(p);
    }
}

#endif

#ifndef WIDE_PRODUCT_ALONE /* experts_wide.cu has the product, not these kernels */
/* project_wide_<type>_<rows of a tile>: a type each, since ptxas spills where one kernel has two.
 */
#if __CUDA_ARCH_FEAT_SM90_ALL
#define WIDE_KERNEL(NAME, TYPE, ROWS)                                                              \
    extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1)                                  \
        project_wide_##NAME##_##ROWS(const __grid_constant__ struct wide_params p) {               \
        project_wide<TYPE, ROWS>(p);                                                               \
    }
#else
#define WIDE_KERNEL(NAME, TYPE, ROWS)                                                              \
    extern "C" __global__ void project_wide_##NAME##_##ROWS(                                       \
        const __grid_constant__ struct wide_params) {                                              \
    }
#endif

WIDE_KERNEL(q4, IS_Q4_K, 64)
WIDE_KERNEL(q4, IS_Q4_K, 128)
WIDE_KERNEL(q4_q6, WIDE_PAIR, 64)
WIDE_KERNEL(q5, IS_Q5_K, 64)
WIDE_KERNEL(q5, IS_Q5_K, 128)
WIDE_KERNEL(q6, IS_Q6_K, 64)
WIDE_KERNEL(q8, IS_Q8_0, 64)
WIDE_KERNEL(q8, IS_Q8_0, 128)
#endif
