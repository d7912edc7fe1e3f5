/* fallback.cuh - products of weight rows as in the file, of every type, with activation rows.
 *
 *   out[r][n] = sum over k of w[n][k] x[r][k]
 *
 * One code for all types: which one a launch has is a switch at run time (unpack_group). So these
 * kernels are slower than those on tiles; they run where there are none: rare types, odd widths,
 * --exact.
 *
 * A warp takes tasks, every n-th of a list: a weight row, or 2, 4 or 8 consecutive ones where K is
 * so short that a row needs only some of the lanes. The bytes of a task go through shared memory in
 * passes of 1024 values (F32, F16, BF16: 1024 bytes), each warp with a pipeline of its own. A lane
 * multiplies
 *
 *   block types    32 consecutive values (a group), unpacked into int8 quants, scales and minimums:
 *     int8 activations   sum += (scale * x.scale) * dot(q, x.q) - min * (x.scale * sum(x.q)), dot
 *                        exact, for each RUN of 16 or 32 values
 *     f32 activations    sum += (scale * q - min) * x
 *   F32, F16, BF16     every 32nd value, f32 activations
 *
 * Order of sums: pass by pass in each lane, then over the lanes by shuffles. It follows from K and
 * the type alone, and every f32 operation is spelt out, so that no instance is contracted in
 * another way: a row has the same bits alone and in a batch. */
#ifndef BACKEND_CUDA_KERNELS_FALLBACK_CUH
#define BACKEND_CUDA_KERNELS_FALLBACK_CUH

#include "backend/cuda/formats/decode.cuh"
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/project_fallback.h"

/* ---- one lane's part of a pass --------------------------------------------------------------- */

/* Activation rows [first, end) of a batch of R; those after the last repeat it. */
struct act_batch {
    struct fallback_acts acts;
    uint32_t first, end;

    __device__ __forceinline__ uint64_t row(uint32_t r) const {
        return min(first + r, end - 1);
    }
};

static __device__ __forceinline__ int dot16(const uint32_t *q, int4 x) {
    int sum = __dp4a((int)q[0], x.x, 0);
    sum = __dp4a((int)q[1], x.y, sum);
    sum = __dp4a((int)q[2], x.z, sum);
    return __dp4a((int)q[3], x.w, sum);
}

/* Group g of weight row w with values column ... column + 31 of R int8 rows. */
template <int R>
static __device__ __forceinline__ void dot_int8(const struct fallback_format &f, const uint8_t *w,
                                                uint32_t g, const act_batch &a, uint32_t column,
                                                float (&sum)[R]) {
    struct unpacked u;
    unpack_group(f.type, w, g, u);
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint64_t at = a.row(r) * a.acts.q_stride + column;
        const int4 *x = (const int4 *)(a.acts.q + at);
        float4 s = ((const float4 *)a.acts.scales)[at / 32];
        int low = dot16(u.q, x[0]), high = dot16(u.q + 4, x[1]);
        float scale = __fmul_rn(u.scale[0], s.x);
        if (f.run == 32) {
            sum[r] = __fmaf_rn(scale, (float)(low + high), sum[r]);
            sum[r] = __fmaf_rn(-u.min[0], s.w, sum[r]);
        } else {
            sum[r] = __fmaf_rn(scale, (float)low, sum[r]);
            sum[r] = __fmaf_rn(__fmul_rn(u.scale[1], s.x), (float)high, sum[r]);
            sum[r] = __fmaf_rn(-u.min[0], s.y, sum[r]);
            sum[r] = __fmaf_rn(-u.min[1], s.z, sum[r]);
        }
    }
}

/* The same with f32 rows, which begin at multiples of 16 bytes. */
template <int R>
static __device__ __forceinline__ void dot_f32(const struct fallback_format &f, const uint8_t *w,
                                               uint32_t g, const act_batch &a, uint32_t column,
                                               float (&sum)[R]) {
    struct unpacked u;
    unpack_group(f.type, w, g, u);
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
        float y0 = unpacked_value(&u, i), y1 = unpacked_value(&u, i + 1),
              y2 = unpacked_value(&u, i + 2), y3 = unpacked_value(&u, i + 3);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 x = *(const float4 *)(a.acts.x + a.row(r) * a.acts.x_stride + column + i);
            sum[r] = __fmaf_rn(y0, x.x, sum[r]);
            sum[r] = __fmaf_rn(y1, x.y, sum[r]);
            sum[r] = __fmaf_rn(y2, x.z, sum[r]);
            sum[r] = __fmaf_rn(y3, x.w, sum[r]);
        }
    }
}

/* n values from the beginning of w, every 32nd of them this lane's. */
template <uint32_t TYPE, int R>
static __device__ __forceinline__ void dot_plain(const uint8_t *w, uint32_t n, const act_batch &a,
                                                 uint32_t column, float (&sum)[R]) {
#pragma unroll 4
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32) {
        float y = plain_value<TYPE>(w, i);
#pragma unroll
        for (int r = 0; r < R; r++)
            sum[r] = __fmaf_rn(y, a.acts.x[a.row(r) * a.acts.x_stride + column + i], sum[r]);
    }
}

template <int R>
static __device__ __forceinline__ void dot_plain(uint32_t type, const uint8_t *w, uint32_t n,
                                                 const act_batch &a, uint32_t column,
                                                 float (&sum)[R]) {
    switch (type) {
    case DT_F32:
        return dot_plain<DT_F32>(w, n, a, column, sum);
    case DT_F16:
        return dot_plain<DT_F16>(w, n, a, column, sum);
    default:
        return dot_plain<DT_BF16>(w, n, a, column, sum);
    }
}

/* ---- the pipeline ---------------------------------------------------------------------------- */

/* Lanes that share a row. */
static __device__ __forceinline__ uint32_t lanes_of_row(const struct fallback_format &f,
                                                        uint32_t k) {
    return !f.run || k > 16 * 32 ? 32 : k > 8 * 32 ? 16 : k > 4 * 32 ? 8 : 4;
}

/* A task: consecutive weight rows, at most 32 / lanes_of_row. */
struct weight_rows {
    const uint8_t *at;
    uint32_t count;
    uint32_t tag[2]; /* the source's own, handed to the sink */
};

/* SOURCE has: format, k, row_bytes; the warp's tasks first, first + step, ... below end;
 * weight_rows rows(task), called by all lanes; act_column(tag[0]), the first activation of a task.
 *
 * A stage is a pass: 16 bytes (how far the first row is from a multiple of 16; the tags), then the
 * bytes from that multiple on, copied by 16, so that up to 15 bytes before and after the rows are
 * read with them. */
template <class SOURCE> struct weight_pipeline {
    const SOURCE &source;
    uint8_t *stages;
    uint32_t lane, row_lanes, n_passes;
    /* What is loaded next; passes loaded so far, empty ones too. */
    uint32_t task, pass, stage, loaded;
    struct weight_rows rows;

    /* `shared`: FALLBACK_PIPELINE_BYTES. */
    __device__ __forceinline__ weight_pipeline(const SOURCE &s, uint8_t *shared)
        : source(s), stages(shared + threadIdx.x / 32 * (FALLBACK_STAGES * FALLBACK_STAGE_BYTES)) {
        lane = threadIdx.x % 32;
        row_lanes = lanes_of_row(s.format, s.k);
        n_passes = (s.k + s.format.pass_values - 1) / s.format.pass_values;
        restart();
    }

    __device__ __forceinline__ void restart(void) {
        task = source.first;
        pass = stage = loaded = 0;
    }

    /* Starts copying the next pass; after the last an empty group, so that groups are counted on.
     */
    __device__ __forceinline__ void load(void) {
        if (task < source.end) {
            if (pass == 0)
                rows = source.rows(task);
            uint8_t *to = stages + stage * FALLBACK_STAGE_BYTES;
            uint32_t begin = pass * source.format.pass_bytes;
            const uint8_t *from = rows.at + begin;
            uint32_t skew = (uint32_t)(uintptr_t)from & 15;
            uint32_t bytes = skew + min(source.format.pass_bytes,
                                        (uint32_t)source.row_bytes * rows.count - begin);
            for (uint32_t i = 16 * lane; i < bytes; i += 512)
                cp_async_16(smem_addr(to + 16 + i), from - skew + i);
            if (lane == 0)
                *(uint4 *)to = make_uint4(skew, rows.tag[0], rows.tag[1], 0);
            if (++pass == n_passes) {
                pass = 0;
                task += source.step;
            }
        }
        stage = stage + 1 == FALLBACK_STAGES ? 0 : stage + 1;
        loaded++;
        cp_async_commit();
    }

    __device__ __forceinline__ void load_first(void) {
        while (loaded < FALLBACK_STAGES)
            load();
    }

    /* Runs all tasks. SINK is called by all lanes with the task's tags, the lane's index among
     * those of its row, the row's index in the task, and the sums of R activation rows. */
    template <bool IS_INT8, int R, class SINK>
    __device__ __forceinline__ void run(const act_batch &a, SINK sink) {
        load_first();
        const struct fallback_format &f = source.format;
        uint32_t at = 0, group = lane % row_lanes, row = lane / row_lanes;
        uint32_t row_begin = 16 + row * (uint32_t)source.row_bytes;
        for (uint32_t t = source.first; t < source.end; t += source.step) {
            float sum[R] = {};
            uint4 head;
            for (uint32_t p = 0; p < n_passes; p++) {
                cp_async_wait<FALLBACK_STAGES - 1>();
                __syncwarp();
                const uint8_t *from = stages + at * FALLBACK_STAGE_BYTES;
                head = *(const uint4 *)from;
                const uint8_t *w = from + row_begin + head.x;
                uint32_t done = p * f.pass_values, column = source.act_column(head.y) + done;
                if (!IS_INT8 && !f.run) {
                    dot_plain<R>(f.type, w, min(f.pass_values, source.k - done), a, column, sum);
                } else if (done + 32 * group < source.k) {
                    if constexpr (IS_INT8)
                        dot_int8<R>(f, w, group, a, column + 32 * group, sum);
                    else
                        dot_f32<R>(f, w, group, a, column + 32 * group, sum);
                }
                at = at + 1 == FALLBACK_STAGES ? 0 : at + 1;
                __syncwarp();
                load();
            }
            for (uint32_t i = row_lanes / 2; i > 0; i >>= 1)
#pragma unroll
                for (int r = 0; r < R; r++)
                    sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(0xffffffffu, sum[r], i));
            sink(head.y, head.z, group, row, sum);
        }
        cp_async_wait<0>();
    }
};

/* A result, after the epilogue, where it belongs. */
static __device__ __forceinline__ void fallback_store(uint32_t epilogue, float y, float *out) {
    if (epilogue == FALLBACK_ADD)
        y = *out + y;
    else if (epilogue == FALLBACK_GATED)
        y = silu(*out) * y;
    *out = y;
}

#endif
