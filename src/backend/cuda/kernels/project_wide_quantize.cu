/* project_wide_quantize.cu - quantized activations in the form that project_wide.cu multiplies
 * (ops/project_wide.h), and the norm's factors. */
#include "backend/cuda/kernels/project_gemv.cuh"
#include "backend/cuda/ops/project_wide.h"

/* A row of the quantized activations: quantize.cuh's QACT. Index i counts four columns. */
struct wide_qact_row {
    uint8_t *data; /* of all rows */
    uint32_t row, rows, is_q8_0, is_int8;

    __device__ __forceinline__ uint8_t *group(uint32_t i) const {
        return data + (uint64_t)(i / 32) * rows * WIDE_ROW_BYTES;
    }
};

static __device__ __forceinline__ float4 *qact_floats(const struct wide_qact_row &,
                                                      const struct project_input &) {
    return NULL; /* there are none */
}

/* Where two fp16 go: 4 bytes of k step `step` (of 16 columns), of its lower or upper 8. */
static __device__ __forceinline__ uint32_t *qact_word(const struct wide_qact_row &to, uint32_t i,
                                                      uint32_t step, uint32_t upper, uint32_t j) {
    uint32_t chunk = (step % 4 * 2 + upper) ^ (to.row % 8);
    return (uint32_t *)(to.group(i) + (step / 4 * to.rows + to.row) * 128 + chunk * 16 + j * 4);
}

/* K-quants: steps 2 w and 2 w + 1 have columns 4 w, 4 w + 2 and 4 w + 1, 4 w + 3 of the halves of
 * all four blocks of 32 columns: so that thread j of wgmma has block j, its low nibbles in the
 * step's lower columns and its high ones in the upper. Q8_0: a step has 16 columns, thread j four
 * neighbours; as int8, columns are in order. */
static __device__ __forceinline__ void qact_store(const struct wide_qact_row &to, uint32_t,
                                                  uint32_t i, uint32_t q) {
    if (to.is_int8) {
        *(uint32_t *)(to.group(i) + to.row * 128 + (i / 4 % 8 ^ to.row % 8) * 16 + i % 4 * 4) = q;
        return;
    }
    const __half2 bias = __float2half2_rn(1152);
    uint32_t flipped = q ^ 0x80808080u, block = i / 8 % 4, w = i % 4, upper = i / 4 % 2;
    uint32_t a = __byte_perm(flipped, 0x64646464u, to.is_q8_0 ? 0x4140 : 0x4240),
             b = __byte_perm(flipped, 0x64646464u, to.is_q8_0 ? 0x4342 : 0x4341);
    __half2 first = __hsub2(*reinterpret_cast<__half2 *>(&a), bias),
            second = __hsub2(*reinterpret_cast<__half2 *>(&b), bias);
    uint32_t *at =
        to.is_q8_0 ? qact_word(to, i, i / 4 % 8, 0, w) : qact_word(to, i, 2 * w, upper, block);
    uint32_t *next =
        to.is_q8_0 ? qact_word(to, i, i / 4 % 8, 1, w) : qact_word(to, i, 2 * w + 1, upper, block);
    *at = *reinterpret_cast<uint32_t *>(&first);
    *next = *reinterpret_cast<uint32_t *>(&second);
}

static __device__ __forceinline__ void qact_group(const struct wide_qact_row &to, uint32_t,
                                                  uint32_t i, float scale, int sum) {
    uint8_t *at = to.group(i) + to.rows * 256;
    uint32_t row = to.row, n8 = row / 8, block = i / 8 % 4;
    *(float *)(at + n8 / 4 * 128 + n8 % 4 / 2 * 64 + row % 8 / 2 * 16 +
               (n8 % 2 * 2 + row % 2) * 4) = scale;
    if (!to.is_q8_0)
        *(__half2 *)(at + to.rows * 4 + n8 / 4 * 512 + (row % 8 * 4 + block) * 16 + n8 % 4 * 4) =
            __floats2half2_rn((float)(sum & ~1), (float)(sum & 1));
}

/* A block a row; without a norm of the row, several that divide its columns. Shared memory: sums
 * of squares of 128 columns, or a factor a head. */
extern "C" __global__ void __maxnreg__(56)
    project_wide_quantize(const __grid_constant__ struct wide_quantize_params p) {
    extern __shared__ float wide_red[];
    pdl_launch_dependents();
    struct wide_qact_row to = {p.qact, blockIdx.x, p.qact_rows, p.is_q8_0, p.is_int8};
    struct row_threads threads = row_threads_of(p.in);
    if (gridDim.y > 1) {
        uint32_t before = blockIdx.y * blockDim.x;
        threads = {before + threadIdx.x, gridDim.y * blockDim.x, before + threads.warp};
    }
    quantize_wide_row<IS_INT8>(threads, p, to, wide_red);
    uint32_t groups = p.in.k / WIDE_GROUP;
    if (p.squares && threadIdx.x < groups)
        p.squares[blockIdx.x * groups + threadIdx.x] = wide_red[threadIdx.x];
}

/* ---- after a product that leaves its parts ------------------------------------------------ */

/* A thread adds what a thread of project_wide has of 8 rows: finish_rows. */
extern "C" __global__ void __maxnreg__(96)
    project_wide_finish(const __grid_constant__ struct wide_finish_params p) {
    pdl_launch_dependents();
    uint32_t octet = blockIdx.y, per_tile = p.tile_rows / 8, block = octet / per_tile;
    uint64_t part = (uint64_t)per_tile * (WIDE_N * 2);
    const float4 *from = (const float4 *)p.partials + (blockIdx.x * p.row_blocks + block) * part +
                         (octet - block * per_tile) * (WIDE_N * 2) + threadIdx.x;
    finish_rows(
        p, [&] { return add_parts_in_order(from, p.tiles * part, p.parts, p.split_ends); },
        [&](uint32_t row, uint32_t at, const struct col8 &v, float square) {
            struct wide_qact_row to = {p.qact, row, p.qact_rows, 0, 0};
            store_col8<IS_INT8>(p.in, p.in.prologue, to, at, v, square,
                                p.squares + row * (p.in.k / WIDE_GROUP));
        });
}
