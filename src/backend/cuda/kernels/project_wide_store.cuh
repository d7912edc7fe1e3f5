/* project_wide_store.cuh - which results of a wgmma tile a thread has, and storing them:
 * project_wide.cu and project_wide_bf16.cu. */
#ifndef BACKEND_CUDA_KERNELS_PROJECT_WIDE_STORE_CUH
#define BACKEND_CUDA_KERNELS_PROJECT_WIDE_STORE_CUH

#include "backend/cuda/kernels/project_gemv.cuh"
#include "backend/cuda/ops/project_wide.h"

#if __CUDA_ARCH_FEAT_SM90_ALL

/* A thread's rows of its warpgroup's 64 are `row` and the one 8 further; its rows of activations
 * are 2 j and 2 j + 1 of every 8 (of unpacked weights j is its block of 32 columns). Found again
 * where it is needed: registers are few. */
struct thread_place {
    uint32_t row, j;

    __device__ __forceinline__ thread_place(uint32_t thread) {
        row = thread / 32 * 16 + thread % 32 / 4;
        j = thread % 4;
    }
    __device__ __forceinline__ thread_place(void) : thread_place(volatile_thread()) {
    }
};

/* The norm's factor of a row, and where those of all rows are: NULL, there are none. A kernel that
 * computes them itself has its own. */
template <class PARAMS, class T>
static __device__ __forceinline__ T load_factor(const PARAMS &, const T *at) {
    return __ldcg(at);
}

template <class PARAMS>
static __device__ __forceinline__ const float *all_factors(const PARAMS &p) {
    return p.factors;
}

/* One value after the other. row: of the activations; n: weight row of the segment. */
template <int ROWS, class PARAMS>
static __device__ __forceinline__ void
store_part(const PARAMS &p, const struct project_segment &s, const float (&v)[ROWS / 2], float *out,
           const float *factors, uint32_t row, uint32_t n, uint32_t n_rows) {
    bool is_swiglu = p.epilogue == EPILOGUE_SWIGLU;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        uint32_t r = i / 4 * 8 + i % 2, column = i % 4 / 2 * 8;
        if (row + r >= n_rows || n + column >= s.n || (is_swiglu && column))
            continue;
        float *to = out + (uint64_t)p.out_stride * r + column,
              f = factors ? load_factor(p, factors + r) : 1;
        float a = add_bias(s, n + column, __fmul_rn(v[i], f));
        if (is_swiglu)
            a = swiglu(a, add_bias(p.segments[1], n, __fmul_rn(v[i ^ 2], f)));
        *to = p.epilogue == EPILOGUE_ADD ? __fadd_rn(__ldcg(to), a) : a;
    }
}

/* A thread's values of a tile all of which exists: those that EPILOGUE_ADD adds to, and the
 * results. */
template <int ROWS, class PARAMS>
static __device__ __forceinline__ void load_values(const PARAMS &p, const float *out,
                                                   float (&was)[ROWS / 2]) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        was[i] = __ldcg(out + (uint64_t)p.out_stride * (i / 4 * 8 + i % 2) + i % 4 / 2 * 8);
}

template <int ROWS, int EPILOGUE, class PARAMS>
static __device__ __forceinline__ void store_values(const PARAMS &p, const float (&v)[ROWS / 2],
                                                    float *out) {
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        float *next = out + p.out_stride;
        if (EPILOGUE == EPILOGUE_SWIGLU) {
            out[0] = swiglu(v[4 * i], v[4 * i + 2]);
            next[0] = swiglu(v[4 * i + 1], v[4 * i + 3]);
        } else {
            out[0] = v[4 * i], next[0] = v[4 * i + 1];
            out[8] = v[4 * i + 2], next[8] = v[4 * i + 3];
        }
        out += (uint64_t)p.out_stride * 8;
    }
}

/* Rows `first` ... of tile t. WHOLE stores one all of which exists, without biases: kernels have
 * their own, since one for both changes the machine code. */
template <int ROWS, class WHOLE, class PARAMS, class TILE>
static __device__ __forceinline__ void store_rows(const PARAMS &p, const TILE &t, uint32_t n_rows,
                                                  uint32_t first, const struct thread_place &own,
                                                  float (&v)[ROWS / 2]) {
    const struct project_segment &s = p.segments[t.segment];
    bool is_swiglu = p.epilogue == EPILOGUE_SWIGLU;
    uint32_t columns = is_swiglu ? WIDE_N / 2 : WIDE_N, row = first + 2 * own.j;
    uint32_t n = t.n_block * columns + (is_swiglu ? own.row / 16 * 8 + own.row % 8 : own.row);
    float *out = p.out + (uint64_t)row * p.out_stride + s.column + n;
    const float *factors = all_factors(p) ? all_factors(p) + row : NULL;
    if (first + ROWS > n_rows || (t.n_block + 1) * columns > s.n || p.has_bias)
        store_part<ROWS>(p, s, v, out, factors, row, n, n_rows);
    else if (is_swiglu)
        WHOLE::template store<ROWS, EPILOGUE_SWIGLU>(p, v, out, factors);
    else if (p.epilogue == EPILOGUE_ADD)
        WHOLE::template store<ROWS, EPILOGUE_ADD>(p, v, out, factors);
    else
        WHOLE::template store<ROWS, EPILOGUE_STORE>(p, v, out, factors);
}

template <int ROWS, class WHOLE, class PARAMS, class TILE>
static __device__ __forceinline__ void store_tile(const PARAMS &p, const TILE &t, uint32_t n_rows,
                                                  float (&v)[ROWS / 2]) {
    store_rows<ROWS, WHOLE>(p, t, n_rows, t.row_block * ROWS, thread_place(), v);
}

#endif

#endif
