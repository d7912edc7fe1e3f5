/* embed.cu - EMBED, TAP, and the flag that ends a step. */
#include "backend/cuda/decode.cuh"
#include "backend/cuda/device.cuh"
#include "backend/cuda/embed.h"
#include "backend/cuda/tiles.cuh"

/* IO's front to the device, and the page table changed. By one block. */
static __device__ void bring_io(const struct embed_params &p) {
    uint4 *to = (uint4 *)p.io_copy;
    uint4 header = load_weights(p.host_io);
    for (uint32_t i = threadIdx.x; i < p.copy_bytes / 16; i += blockDim.x)
        to[i] = load_weights(p.host_io + 16 * i);
    /* No entry of the table is changed twice in a step. */
    for (uint32_t i = threadIdx.x; p.pages && i < header.w /* n_changes */; i += blockDim.x) {
        uint4 change = load_weights(p.host_io + p.changes_at + 16 * i);
        p.pages[(uint64_t)change.x * p.pages_per_slot + change.y] = (int32_t)change.z;
    }
}

/* The angle is taken in f64: at position 200000 an f32 angle is off by 0.01. */
static __device__ void fill_angles(const struct embed_params &p, uint32_t row, uint32_t position) {
    float *out = p.angles + (uint64_t)row * 2 * p.n_freqs;
    for (uint32_t i = threadIdx.x; i < p.n_freqs; i += blockDim.x) {
        double s, c;
        sincos(position * p.freqs[i], &s, &c);
        out[2 * i] = (float)c * p.rope_scale;
        out[2 * i + 1] = (float)s * p.rope_scale;
    }
}

/* Of a row, the last block makes the angles, the one before it brings IO (the first row's), the
 * others 512 values each. IO is read from the host's memory here, since its copy is only being
 * made: more than a microsecond a read, so each block reads once. */
extern "C" __global__ void embed(const __grid_constant__ struct embed_params p) {
    pdl_launch();
    pdl_wait(p.io);
    uint32_t row = blockIdx.y, n_parts = gridDim.x - 2;
    if (blockIdx.x == n_parts) {
        if (row == 0)
            bring_io(p);
        return;
    }
    uint4 header = load_weights(p.host_io), at = load_weights(p.host_io + p.rows_at + 16 * row);
    if (row >= header.x) /* n_rows */
        return;
    struct io_row r = {(int32_t)at.x, at.y, at.z, at.w};
    if (blockIdx.x > n_parts) {
        fill_angles(p, row, r.position);
        return;
    }
    float *x = p.x + (uint64_t)row * p.x_stride;
    uint32_t begin = blockIdx.x * 512, end = min(p.table.k, begin + 512);
    if (p.table.is_tiled) {
        for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x)
            x[i] = tile_value(&p.table, (uint32_t)r.token, i);
        return;
    }
    const uint8_t *from = p.table.data + (uint64_t)r.token * p.table.row_bytes;
    uint32_t step = decode_values(p.table.type);
    for (uint32_t i = begin + threadIdx.x * step; i < end; i += blockDim.x * step)
        decode_block(p.table.type, from, i / step, x + i, p.table.k - i);
}

extern "C" __global__ void tap(const __grid_constant__ struct tap_params p) {
    __shared__ float parts[8];
    pdl_launch();
    pdl_wait(p.io);
    uint32_t i = blockIdx.x;
    if (i >= p.io.header->n_outputs)
        return;
    const float *x = p.x + (uint64_t)p.io.outputs[i].row * p.x_stride;
    float *out = p.out + (uint64_t)i * p.out_stride, sum = 0, factor = 1;
    if (p.norm) {
        for (uint32_t c = threadIdx.x; c < p.width; c += blockDim.x)
            sum += x[c] * x[c];
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0)
            parts[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0;
        for (uint32_t w = 0; w < blockDim.x / 32; w++)
            sum += parts[w];
        factor = rsqrtf(sum / (float)p.width + p.eps);
    }
    for (uint32_t c = threadIdx.x; c < p.width; c += blockDim.x)
        out[c] = p.norm ? x[c] * factor * p.norm[c] : x[c];
}

/* Every sequence goes on from the token that was picked for it. */
extern "C" __global__ void advance(const __grid_constant__ struct advance_params p) {
    pdl_launch();
    pdl_wait(p.io);
    for (uint32_t i = threadIdx.x; i < p.io.header->n_outputs; i += blockDim.x) {
        int32_t token = p.io.outputs[i].token;
        struct io_row *row = &p.rows[p.io.outputs[i].row];
        p.burst[i * IO_BURST + p.step] = token;
        row->token = token;
        row->position++;
        p.segments[row->segment].first_position++;
    }
}

/* Behind everything: what the step wrote to the host's memory is there when the flag is. */
extern "C" __global__ void done(const __grid_constant__ struct done_params p) {
    pdl_wait(p.io);
    __threadfence_system();
    *(volatile uint64_t *)p.done = p.io.header->step;
}

extern "C" __global__ void __launch_bounds__(512)
    read_memory(const __grid_constant__ struct read_params p) {
    uint64_t n = p.bytes / 16, step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 v[4];
        for (int k = 0; k < 4; k++)
            v[k] = load_weights(p.from + (i + k * step) * 16);
        for (int k = 0; k < 4; k++)
            sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < n; i += step)
        sum += load_weights(p.from + i * 16).x;
    if (sum == 0x12345678) /* never: the memory is zero */
        *p.sink = 0;
}
