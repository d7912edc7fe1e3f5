/* fallback_stream.cuh - weight rows on their way through a warp: a ring in shared memory, filled
 * ahead.
 *
 * Each warp has a ring of its own and a list of tasks, every n-th of a range. A task is two sets of
 * weight rows (w[0] and w[1] of rows.cuh): a row each, or 2, 4 or 8 consecutive ones where K is so
 * short that a row fills only a part of a warp's lanes. A task is one pass or several, and a slot
 * of the ring holds a pass of both sets, copied in pieces of 16 bytes as they are aligned in
 * memory: up to 15 bytes before and behind the rows are read with them.
 *
 * How a row's sum is cut over lanes and passes follows from K and the type alone. */
#ifndef BACKEND_CUDA_KERNELS_FALLBACK_STREAM_CUH
#define BACKEND_CUDA_KERNELS_FALLBACK_STREAM_CUH

#include "backend/cuda/kernels/fallback.cuh"
#include "backend/cuda/ops/project_fallback.h"

/* Warps of a block; a file may ask for fewer, which then have more registers. */
#ifndef STREAM_WARPS
#define STREAM_WARPS 16
#endif

enum {
    STREAM_THREADS = 32 * STREAM_WARPS,
    /* A warp's ring. Two blocks' rings and some activations fit an SM, so that a kernel can start
     * beside the one before it. */
    RING_BYTES = STREAM_RING_BYTES / STREAM_WARPS / 16 * 16,
};

/* Lanes that share a row, when a lane takes so many values of a pass. */
static __device__ __forceinline__ uint32_t lanes_of(uint32_t lane_values, uint32_t k) {
    return !lane_values || k > 16 * lane_values ? 32
           : k > 8 * lane_values                ? 16
           : k > 4 * lane_values                ? 8
                                                : 4;
}

/* A task's two sets of consecutive rows: 32 / lanes each, fewer where the matrix ends. */
struct row_sets {
    const uint8_t *at[2];
    uint32_t count[2];
    uint32_t tag[2]; /* the source's own, handed to whoever gets the results */
};

/* Rows [row, row + 2 * set_rows) of a matrix with n rows, or rows [row, row + set_rows) of two. */
static __device__ __forceinline__ row_sets neighbours(const uint8_t *at, uint64_t row_bytes,
                                                      uint32_t row, uint32_t n, uint32_t set_rows) {
    row_sets s;
    s.at[0] = at + row * row_bytes;
    s.at[1] = s.at[0] + set_rows * row_bytes;
    s.count[0] = min(n - row, set_rows);
    s.count[1] = min(n - row - s.count[0], set_rows);
    return s;
}

static __device__ __forceinline__ row_sets twins(const uint8_t *a, const uint8_t *b,
                                                 uint64_t row_bytes, uint32_t row, uint32_t n,
                                                 uint32_t set_rows) {
    row_sets s;
    s.at[0] = a + row * row_bytes;
    s.at[1] = b + row * row_bytes;
    s.count[0] = s.count[1] = min(n - row, set_rows);
    return s;
}

/* SOURCE has: k and row_bytes; first, end and step, the warp's tasks; row_sets sets(task), which is
 * called by all lanes; act_rows acts(rows, tag[0]), the activations that a task meets. */
template <class PRODUCT, class SOURCE> struct stream {
    static constexpr int SET = (PRODUCT::BYTES + 15) / 16 * 16 + 32, SLOT = 16 + 2 * SET;
    static constexpr int SLOTS = RING_BYTES / SLOT < 8 ? RING_BYTES / SLOT : 8;
    static_assert(SLOTS >= 2, "a slot on the way while one is eaten");

    const SOURCE &source;
    uint8_t *ring;
    uint32_t row_bytes, n_passes, lane, lanes;
    /* What the ring is fed with next, and how many passes it was fed, empty ones too. */
    uint32_t task, pass, slot, filled;
    row_sets now;

    __device__ __forceinline__ stream(const SOURCE &s, uint8_t *rings)
        : source(s), ring(rings + threadIdx.x / 32 * RING_BYTES), row_bytes((uint32_t)s.row_bytes) {
        lane = threadIdx.x % 32;
        lanes = lanes_of(PRODUCT::LANE_VALUES, s.k);
        n_passes = (s.k + PRODUCT::VALUES - 1) / PRODUCT::VALUES;
        begin();
    }

    __device__ __forceinline__ void begin(void) {
        task = source.first;
        pass = slot = filled = 0;
    }

    /* The next pass into the next slot; behind the last an empty group, so that groups count on. A
     * slot's first 16 bytes: how far each set's bytes are from a multiple of 16, and the tags. */
    __device__ __forceinline__ void feed(void) {
        if (task < source.end) {
            if (pass == 0)
                now = source.sets(task);
            uint8_t *to = ring + slot * SLOT;
            uint32_t skip = pass * PRODUCT::BYTES, skew[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint8_t *from = now.at[i] + skip;
                uint32_t bytes = min((uint32_t)PRODUCT::BYTES, row_bytes * now.count[i] - skip);
                skew[i] = (uint32_t)(uintptr_t)from & 15;
                uint32_t behind = now.count[i] ? skew[i] + bytes : 0;
                from = from - skew[i] + 16 * lane;
                uint8_t *set = to + 16 + i * SET + 16 * lane;
#pragma unroll
                for (int j = 0; j < SET; j += 512)
                    if (16 * lane + j < behind)
                        cp_async_16(smem_addr(set + j), from + j);
            }
            if (lane == 0)
                *(uint4 *)to = make_uint4(skew[0], skew[1], now.tag[0], now.tag[1]);
            if (++pass == n_passes) {
                pass = 0;
                task += source.step;
            }
        }
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        filled++;
        cp_async_commit();
    }

    /* Fills the ring as far as tasks below `limit` go. */
    __device__ __forceinline__ void fill(uint32_t limit) {
        while (filled < SLOTS && task < min(limit, source.end))
            feed();
    }

    /* Eats all tasks, behind begin and perhaps fill. SINK is called by all lanes with the task's
     * tags, the lane's place among those of its row, the row's number in its set, and both sums for
     * R activation rows. */
    template <int R, class SINK> __device__ __forceinline__ void eat(const act_rows &a, SINK sink) {
        while (filled < SLOTS)
            feed();
        uint32_t at = 0, unit = lane % lanes, row = lane / lanes, skip = 16 + row * row_bytes;
        for (uint32_t t = source.first; t < source.end; t += source.step) {
            float sum[2][R];
            uint4 head;
#pragma unroll
            for (int r = 0; r < R; r++)
                sum[0][r] = sum[1][r] = 0;
            for (uint32_t p = 0; p < n_passes; p++) {
                cp_async_wait<SLOTS - 1>();
                __syncwarp();
                const uint8_t *from = ring + at * SLOT;
                head = *(const uint4 *)from;
                const uint8_t *w[2] = {from + skip + head.x, from + skip + SET + head.y};
                if ((p * 32 + unit) * PRODUCT::LANE_VALUES < source.k)
                    PRODUCT::template add<R>(w, p, unit, source.acts(a, head.z), sum);
                at = at + 1 == SLOTS ? 0 : at + 1;
                __syncwarp();
                feed();
            }
            if (lanes == 32)
                add_lanes<32>(sum);
            else if (lanes == 16)
                add_lanes<16>(sum);
            else if (lanes == 8)
                add_lanes<8>(sum);
            else
                add_lanes<4>(sum);
            sink(head.z, head.w, unit, row, sum);
        }
        cp_async_wait<0>();
    }

    template <int LANES, int R>
    static __device__ __forceinline__ void add_lanes(float (&sum)[2][R]) {
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int i = LANES / 2; i > 0; i >>= 1) {
                sum[0][r] += __shfl_xor_sync(0xffffffffu, sum[0][r], i);
                sum[1][r] += __shfl_xor_sync(0xffffffffu, sum[1][r], i);
            }
    }
};

#endif
