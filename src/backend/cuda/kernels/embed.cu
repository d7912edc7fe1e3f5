/* embed.cu - EMBED, TAP and the flag that ends a step.
 *
 * EMBED is the step's first kernel. Of its grid (column blocks, rows + 1), block (c, row)
 * dequantizes its columns of the row's embedding with 384 threads, and the others of (0, row)
 * compute the row's RoPE angles; block (0, n_rows) copies IO to the device and applies page table
 * changes. Where IO is on the device already (a burst's later steps, and a second EMBED of a step)
 * there is no such block, and rows are read from there. Reads of mapped host memory take more than
 * a microsecond and queue: each block has one read for its row, and the IO block issues all of its
 * reads at once. (EMBED and PICK of one row together: 8 us, H200.)
 *
 * TAP: a block an output, a copy of the residual to host memory, RMS-normed where it has a norm:
 * a thread sums every 256th square, then block_sum. */
#include "backend/cuda/formats/decode.cuh"
#include "backend/cuda/formats/tiles.cuh"
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/embed.h"

/* Copies IO up to the page table changes, and applies those. All reads are issued at once, also of
 * changes that may not be there: none waits for the header's count. */
static __device__ void copy_io(const struct embed_params &p) {
    __shared__ uint32_t n_changes;
    uint32_t n_copied = p.changes_at / 16, n = n_copied + (p.page_table ? p.max_changes : 0);
    for (uint32_t first = 0; first < n; first += EMBED_THREADS) {
        uint32_t i = first + threadIdx.x;
        uint4 v = i < n ? ld_no_allocate(p.host_io + 16 * i) : make_uint4(0, 0, 0, 0);
        if (i == 0)
            n_changes = v.w;
        __syncthreads();
        if (i < n_copied)
            ((uint4 *)p.io_copy)[i] = v;
        else if (i < n && i - n_copied < n_changes) /* a step changes no entry twice */
            p.page_table[(uint64_t)v.x * p.pages_per_slot + v.y] = (int32_t)v.z;
    }
}

/* In f64: at position 200000 an f32 angle is off by 0.01. */
static __device__ void store_angle(const struct embed_params &p, uint32_t row, uint32_t i,
                                   uint32_t position, double freq) {
    float *out = p.angles + ((uint64_t)row * p.n_freqs + i) * 2;
    double s, c;
    sincos(position * freq, &s, &c);
    out[0] = (float)c * p.rope_scale;
    out[1] = (float)s * p.rope_scale;
}

static __device__ __forceinline__ void put4(float *to, float4 v) {
    if ((uintptr_t)to % 16 == 0) {
        *(float4 *)to = v;
        return;
    }
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

/* A group of 32 values of a row as in the file. */
static __device__ __forceinline__ void put_group(const struct cuda_matrix &m, const uint8_t *row,
                                                 uint32_t g, float *x) {
    struct unpacked u;
    unpack_group(m.type, row, g, u);
#pragma unroll
    for (int i = 0; i < 32; i += 4)
        put4(x + 32 * g + i, make_float4(unpacked_value(&u, i), unpacked_value(&u, i + 1),
                                         unpacked_value(&u, i + 2), unpacked_value(&u, i + 3)));
}

template <uint32_t TYPE>
static __device__ __forceinline__ void copy_values(const struct cuda_matrix &m, const uint8_t *row,
                                                   uint32_t first, uint32_t step, float *x) {
#pragma unroll 4
    for (uint32_t i = first; i < m.k; i += step)
        x[i] = plain_value<TYPE>(row, i);
}

/* Thread `first` of `step` that share a row. */
static __device__ void fill_row(const struct cuda_matrix &m, uint32_t token, uint32_t first,
                                uint32_t step, float *x) {
    const uint8_t *row = m.data + (uint64_t)token * m.row_bytes;
    if (m.is_tiled) {
        for (uint32_t i = 4 * first; i < m.k; i += 4 * step)
            put4(x + i, tile_load4(&m, token, i));
        return;
    }
    switch (m.type) {
    case DT_F32:
        return copy_values<DT_F32>(m, row, first, step, x);
    case DT_F16:
        return copy_values<DT_F16>(m, row, first, step, x);
    case DT_BF16:
        return copy_values<DT_BF16>(m, row, first, step, x);
    default:
        for (uint32_t g = first; g < m.k / 32; g += step)
            put_group(m, row, g, x);
    }
}

/* Where IO is copied the row is read from the host's, since the device's is being written. All rows
 * of the bucket are computed, also those that the step does not use. */
extern "C" __global__ void __launch_bounds__(EMBED_THREADS, 2)
    embed(const __grid_constant__ struct embed_params p) {
    __shared__ uint4 shared_row;
    pdl_launch_dependents();
    uint32_t column_block = blockIdx.x, row = blockIdx.y;
    uint32_t angle = threadIdx.x - EMBED_ROW_THREADS;
    bool is_row_thread = threadIdx.x < EMBED_ROW_THREADS;
    double freq = !is_row_thread && angle < p.n_freqs ? p.freqs[angle] : 0;
    pdl_wait(p.io);
    if (row == p.n_rows) {
        if (column_block == 0)
            copy_io(p);
        return;
    }
    /* Where IO is copied, that zeroes it, too. */
    if (p.clears_argmax && (threadIdx.x | column_block | row) == 0)
        *(uint64_t *)p.io.header->reserved = 0;
    if (threadIdx.x == 0)
        shared_row = ld_no_allocate(p.host_io + p.rows_at + 16 * row);
    __syncthreads();
    uint32_t token = min(shared_row.x, p.table.n - 1), position = shared_row.y;
    if (is_row_thread) {
        fill_row(p.table, token, column_block * EMBED_ROW_THREADS + threadIdx.x,
                 gridDim.x * EMBED_ROW_THREADS, p.x + (uint64_t)row * p.x_stride);
        return;
    }
    for (; column_block == 0 && angle < p.n_freqs; angle += EMBED_THREADS - EMBED_ROW_THREADS) {
        store_angle(p, row, angle, position, freq);
        if (angle + EMBED_THREADS - EMBED_ROW_THREADS < p.n_freqs)
            freq = p.freqs[angle + EMBED_THREADS - EMBED_ROW_THREADS];
    }
}

extern "C" __global__ void tap(const __grid_constant__ struct tap_params p) {
    pdl_launch_dependents();
    pdl_wait(p.io);
    uint32_t i = blockIdx.x;
    if (i >= p.io.header->n_outputs)
        return;
    const float *x = p.x + (uint64_t)p.io.outputs[i].row * p.x_stride;
    float *out = p.out + (uint64_t)i * p.out_stride, sum = 0, factor = 1;
    if (p.norm) {
        for (uint32_t c = threadIdx.x; c < p.width; c += blockDim.x)
            sum += x[c] * x[c];
        factor = norm_factor(block_sum(sum), p.width, p.eps);
    }
    for (uint32_t c = threadIdx.x; c < p.width; c += blockDim.x)
        out[c] = p.norm ? x[c] * factor * p.norm[c] : x[c];
}

/* After all other kernels: what the step wrote to host memory is visible before the flag. */
extern "C" __global__ void step_done(const __grid_constant__ struct done_params p) {
    pdl_wait(p.io);
    __threadfence_system();
    *(volatile uint64_t *)p.done = p.io.header->step;
}
