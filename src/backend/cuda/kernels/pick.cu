/* pick.cu - PICK: a token for every output that wants one, and the end of the step. What is sampled
 * from is defined in cpu/pick.c.
 *
 * One grid of at most a block an SM. The blocks are divided into groups, one group a row; a block
 * takes its range of the row's vocabulary. With more rows than blocks a group is one block and
 * takes several rows.
 *
 *   argmax     the row's largest key (logit, then lower index), after biases, penalties and mask: a
 *              greedy row is done by the last block of its group. A logit that is NaN or infinite
 *              before them makes the largest key of all, and the token IO_NOT_FINITE.
 *   -- barrier of the group --
 *   histogram  weight by distance from the maximum, 32 bins a power of e
 *   -- barrier of the group --
 *   candidates the tokens of the bins that may pass top-k, top-p and min-p, to a list; the last
 *              block of the group finds the exact cut by radix select over the keys (up to 256
 *              candidates: by rank) and draws. Without cuts: a search for the token at which the
 *              running sum reaches the draw, in the order of the vocabulary.
 *
 * Weights are e^((x - max) / temperature) as fixed point of 40 binary places: sums are exact and so
 * do not depend on the order of adding or the size of a group.
 *
 * The block that finishes the last row ends the step: it adds the step's tokens to the counts and,
 * in a burst, moves IO on to the next step; after the last step it sets the host's completion flag.
 *
 * Reads the logits once (greedy) or three times (sampled); a single row that is greedy or wants
 * logits alone, whose argmax the LM head has found, reads none. H200, greedy, one row: 1.6 us, 12
 * as three kernels. */
#include <float.h>

#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/pick.h"

enum {
    WARPS = PICK_THREADS / 32,
    BINS_PER_THREAD = PICK_BINS / PICK_THREADS,
    BIAS_CHUNK = 256,
    MAX_BY_RANK = 256 /* candidates */
};

/* ---- groups of blocks ------------------------------------------------------------------------ */

struct block_group {
    uint32_t size, rank;
    uint32_t first_row, row_step; /* rows first_row, first_row + row_step ... are the group's */
};

static __device__ struct block_group block_group_of(uint32_t outputs) {
    uint32_t groups = min(gridDim.x, max(outputs, 1u)), size = gridDim.x / groups;
    uint32_t group = blockIdx.x / size;
    /* Blocks that are left over have no rows. */
    return {size, blockIdx.x % size, group < groups ? group : outputs, groups};
}

/* A block's range of n values, a multiple of four but for the last. */
struct range {
    uint32_t begin, end;
};

static __device__ struct range range_of(const struct block_group &group, uint32_t n) {
    uint32_t quads = (n + 3) / 4, each = (quads + group.size - 1) / group.size * 4;
    return {min(n, group.rank * each), min(n, (group.rank + 1) * each)};
}

/* The group's barrier: blocks wait for each other and then see what the others wrote. A grid has no
 * more blocks than SMs, so all of them are resident, unless other work holds the device. If a block
 * waits longer than this for the others it cancels the barrier: then all leave but the last to
 * come, which does the row alone. (A build with 0 tests that path.) */
#ifndef PICK_BARRIER_TIMEOUT
#define PICK_BARRIER_TIMEOUT 1000000 /* ns */
#endif
enum barrier_result { PASSED, ALONE, CANCELLED };
enum : uint32_t { CANCEL_BIT = 1u << 31 };

static __device__ enum barrier_result barrier_wait(uint32_t *counter, uint32_t size) {
    uint32_t seen = atomicAdd(counter, 1) + 1;
    if ((seen & ~CANCEL_BIT) == size)
        return seen & CANCEL_BIT ? ALONE : PASSED;
    for (uint64_t began = globaltimer();;) {
        seen = *(volatile uint32_t *)counter;
        if (seen & CANCEL_BIT)
            return CANCELLED;
        if (seen >= size)
            return PASSED;
        if (globaltimer() - began >= PICK_BARRIER_TIMEOUT)
            atomicCAS(counter, seen, seen | CANCEL_BIT);
    }
}

static __device__ enum barrier_result group_barrier(uint32_t *counter, uint32_t size) {
    __shared__ enum barrier_result result;
    __syncthreads();
    if (size == 1)
        return PASSED;
    if (threadIdx.x == 0) {
        __threadfence();
        result = barrier_wait(counter, size);
        __threadfence();
    }
    __syncthreads();
    return result;
}

/* The second time: all blocks are known to be resident. */
static __device__ void group_barrier_again(uint32_t *counter, uint32_t size) {
    __syncthreads();
    if (threadIdx.x == 0 && size > 1) {
        __threadfence();
        atomicAdd(counter, 1);
        while (*(volatile uint32_t *)counter < 2 * size)
            ;
        __threadfence();
    }
    __syncthreads();
}

/* True in the last of `size` blocks to call it, which sees what the others wrote. */
static __device__ bool is_last_block(uint32_t *counter, uint32_t size) {
    __shared__ bool is_last;
    __syncthreads();
    if (size == 1)
        return true;
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(counter, size - 1) == size - 1; /* and is zero again */
        __threadfence();
    }
    __syncthreads();
    return is_last;
}

/* ---- reductions and histograms of a block ---------------------------------------------------- */

struct max_op {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
        return a > b ? a : b;
    }
};
struct min_op {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
        return a < b ? a : b;
    }
};
struct sum_op {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
        return a + b;
    }
};

/* Every thread has the result. */
template <class F> static __device__ uint64_t block_reduce(uint64_t x, F f) {
    __shared__ uint64_t of_warp[WARPS];
    for (int i = 16; i > 0; i >>= 1)
        x = f(x, __shfl_xor_sync(0xffffffffu, x, i));
    __syncthreads(); /* the last call's are read */
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warp[0];
    for (int i = 1; i < WARPS; i++)
        x = f(x, of_warp[i]);
    return x;
}

/* 64-bit sums as two words: shared memory has no fast 64-bit atomicAdd. */
struct histogram {
    uint32_t low[PICK_BINS], high[PICK_BINS];
};

static __device__ void clear(struct histogram &b) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS)
        b.low[i] = b.high[i] = 0;
    __syncthreads();
}

static __device__ void add(struct histogram &b, uint32_t bin, uint64_t weight) {
    uint32_t low = (uint32_t)weight, high = (uint32_t)(weight >> 32);
    if (low && atomicAdd(&b.low[bin], low) > ~low)
        high++;
    if (high)
        atomicAdd(&b.high[bin], high);
}

static __device__ void set(struct histogram &b, uint32_t bin, uint64_t weight) {
    b.low[bin] = (uint32_t)weight;
    b.high[bin] = (uint32_t)(weight >> 32);
}

static __device__ uint64_t get(const struct histogram &b, uint32_t bin) {
    return (uint64_t)b.high[bin] << 32 | b.low[bin];
}

static __device__ uint64_t total_of(const struct histogram &b) {
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS)
        sum += get(b, i);
    return block_reduce(sum, sum_op());
}

/* The first bin at which the running sum reaches the target, from 1 to the sum of all. */
struct bin_hit {
    uint32_t bin;
    uint64_t before; /* sum of the bins before it */
};

static __device__ struct bin_hit find_bin(const struct histogram &b, uint64_t target) {
    __shared__ uint64_t warp_sums[WARPS];
    __shared__ struct bin_hit found;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t own = 0;
    __syncthreads();
    for (uint32_t i = 0; i < BINS_PER_THREAD; i++)
        own += get(b, threadIdx.x * BINS_PER_THREAD + i);
    uint64_t running = own;
    for (uint32_t i = 1; i < 32; i *= 2) {
        uint64_t other = __shfl_up_sync(0xffffffffu, running, i);
        running += lane >= i ? other : 0;
    }
    if (lane == 31)
        warp_sums[warp] = running;
    if (threadIdx.x == 0)
        found = {0, 0};
    __syncthreads();
    uint64_t before = running - own;
    for (uint32_t i = 0; i < warp; i++)
        before += warp_sums[i];
    for (uint32_t i = 0; i < BINS_PER_THREAD; i++) {
        uint32_t bin = threadIdx.x * BINS_PER_THREAD + i;
        uint64_t after = before + get(b, bin);
        if (before < target && target <= after)
            found = {bin, before};
        before = after;
    }
    __syncthreads();
    return found;
}

/* ---- logits and their keys ------------------------------------------------------------------- */

static __device__ bool has_penalties(const struct io_output *o) {
    return (o->repeat_penalty != 1) | (o->presence_penalty != 0) | (o->frequency_penalty != 0);
}

/* By biases, penalties or a mask. */
static __device__ bool is_adjusted(const struct io_output *o) {
    return o->n_bias || has_penalties(o) || (o->flags & IO_HAS_MASK) != 0;
}

static __device__ bool is_sampled(const struct io_output *o) {
    return ((o->flags & IO_WANTS_TOKEN) != 0) & (o->temperature > 0);
}

/* By top-k, top-p or min-p. */
static __device__ bool is_cut(const struct io_output *o) {
    return o->top_k > 0 || o->top_p < 1 || o->min_p > 0;
}

/* Four values at i, NaN from `end` on. Past L1: another block may have written them. */
static __device__ float4 load4(const float *x, uint32_t i, uint32_t end) {
    if (i + 4 <= end && (uintptr_t)(x + i) % 16 == 0)
        return __ldcg((const float4 *)(x + i));
    float nan = __int_as_float(0x7fffffff);
    return make_float4(i < end ? __ldcg(x + i) : nan, i + 1 < end ? __ldcg(x + i + 1) : nan,
                       i + 2 < end ? __ldcg(x + i + 2) : nan,
                       i + 3 < end ? __ldcg(x + i + 3) : nan);
}

static __device__ float at(const float4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

static __device__ void store4(float *x, uint32_t i, uint32_t end, const float4 &v) {
    if (i + 4 <= end && (uintptr_t)(x + i) % 16 == 0)
        *(float4 *)(x + i) = v;
    else
        for (int k = 0; k < 4; k++)
            if (i + k < end)
                x[i + k] = at(v, k);
}

/* Keys order as (logit, then lower token first). */
static __device__ uint64_t key_of(float x, uint32_t i) {
    return (uint64_t)order_bits(x) << 32 | (uint32_t)~i;
}

static __device__ float logit_of(uint64_t key) {
    return from_order_bits((uint32_t)(key >> 32));
}

/* Above every logit's, as the LM head's with ones in the upper word: one of them is NaN or
 * infinite. */
enum : uint64_t { KEY_NOT_FINITE = ~0ull };

static __device__ int32_t token_of(uint64_t key) {
    return key >> 32 == ~0u ? (int32_t)IO_NOT_FINITE : (int32_t) ~(uint32_t)key;
}

/* For argmax both zeros are equal and NaN, which a bias may have made, is below all; but if the
 * first logit is NaN token 0 wins. */
static __device__ uint64_t argmax_key(float x, uint32_t i) {
    if (x == x)
        return key_of(x + 0.0f, i);
    return i ? (uint32_t)~i : 0xfffffffeffffffff;
}

/* In order: a token's biases are all added by the thread of its first. */
static __device__ void apply_biases(const struct pick_params &p, const struct io_output *o,
                                    struct range range, float *x) {
    __shared__ struct io_bias chunk[BIAS_CHUNK];
    for (uint32_t first = 0; first < o->n_bias; first += BIAS_CHUNK) {
        uint32_t n = min(o->n_bias - first, (uint32_t)BIAS_CHUNK), i = threadIdx.x;
        __syncthreads();
        if (i < n)
            chunk[i] = p.io.biases[o->first_bias + first + i];
        __syncthreads();
        if (i >= n || chunk[i].token < (int32_t)range.begin || chunk[i].token >= (int32_t)range.end)
            continue;
        bool is_first = true;
        for (uint32_t k = 0; k < i; k++)
            is_first &= chunk[k].token != chunk[i].token;
        for (uint32_t k = i; is_first && k < n; k++)
            if (chunk[k].token == chunk[i].token)
                x[chunk[i].token] += chunk[k].bias;
    }
    __syncthreads();
}

/* This step's tokens of the sequence up to a row that are in the range: penalties count them,
 * though `counts` has them only after the step. */
static __device__ uint32_t gather_tokens(const struct pick_params &p, uint32_t slot,
                                         uint32_t last_row, struct range range, int32_t *tokens) {
    __shared__ uint32_t n;
    __syncthreads();
    if (threadIdx.x == 0)
        n = 0;
    __syncthreads();
    for (uint32_t r = threadIdx.x; r <= last_row; r += PICK_THREADS) {
        const struct io_row row = p.io.rows[r];
        if (row.slot == slot && row.token >= (int32_t)range.begin && row.token < (int32_t)range.end)
            tokens[atomicAdd(&n, 1)] = row.token;
    }
    __syncthreads();
    return n;
}

static __device__ float penalized(const struct io_output *o, float x, uint32_t count) {
    x = x > 0 ? x / o->repeat_penalty : __fmul_rn(x, o->repeat_penalty);
    return x - __fadd_rn(o->presence_penalty, __fmul_rn(o->frequency_penalty, (float)count));
}

static __device__ void apply_penalties(const struct pick_params &p, const struct io_output *o,
                                       struct range range, float *x) {
    extern __shared__ int32_t tokens[];
    uint32_t slot = p.io.rows[o->row].slot, n = gather_tokens(p, slot, o->row, range, tokens);
    const uint16_t *counts = p.counts + (uint64_t)slot * p.counts_stride;
    for (uint32_t i = range.begin + threadIdx.x; i < range.end; i += PICK_THREADS) {
        uint32_t count = counts[i];
        for (uint32_t k = 0; k < n; k++)
            count += tokens[k] == (int32_t)i;
        if (count)
            x[i] = penalized(o, x[i], min(count, 65535u));
    }
    __syncthreads();
}

/* A mask's words come from the host's memory: each block reads those of its range once. */
static __device__ void apply_mask(const struct pick_params &p, uint32_t row, struct range range,
                                  float *x) {
    const uint32_t *mask = p.io.masks + (uint64_t)row * IO_MASK_WORDS(p.vocab);
    for (uint32_t i = range.begin + 4 * threadIdx.x; i < range.end; i += 4 * PICK_THREADS) {
        uint32_t bits = mask[i / 32] >> i % 32;
        for (uint32_t k = 0; k < 4 && i + k < range.end; k++)
            x[i + k] =
                bits >> k & 1 ? fmaxf(x[i + k], IO_LEAST_ALLOWED) : -__int_as_float(0x7f800000);
    }
    __syncthreads();
}

/* ---- argmax ---------------------------------------------------------------------------------- */

struct best {
    float x;
    uint32_t i;
};

/* A thread's tokens come in order, so of equal ones the first stays; NaN never wins. */
static __device__ __forceinline__ void keep_larger(struct best &best, float x, uint32_t i) {
    bool is_better = x > best.x;
    best.x = is_better ? x : best.x;
    best.i = is_better ? i : best.i;
}

/* Where no logit is above -infinity, or the first is NaN. */
static __device__ uint64_t argmax_special(const float *x, struct range range) {
    uint64_t best = 0;
    for (uint32_t i = range.begin + 4 * threadIdx.x; i < range.end; i += 4 * PICK_THREADS)
        for (uint32_t k = i; k < min(i + 4, range.end); k++)
            best = max_op()(best, argmax_key(x[k], k));
    return best;
}

/* The largest key of the range's tokens below *n_vocab, which is read after the first loads.
 * IS_RAW: KEY_NOT_FINITE where one is not; the adjusted may be, by their biases. */
template <bool IS_RAW>
static __device__ uint64_t argmax_range(const float *x, struct range range,
                                        const uint32_t *n_vocab) {
    enum { AHEAD = 4 };
    struct best best = {-__int_as_float(0x7f800000), ~0u};
    float first = 0, zero = 0; /* zero: 0 * x of all logits, NaN where one is not finite */
    uint32_t end = 0;
    for (uint32_t i = range.begin + 4 * threadIdx.x; i < range.end; i += AHEAD * 4 * PICK_THREADS) {
        float4 v[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            v[a] = load4(x, i + a * 4 * PICK_THREADS, range.end);
        if (i == 0)
            first = v[0].x;
        end = min(range.end, *n_vocab);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            uint32_t at_v = i + a * 4 * PICK_THREADS;
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (at_v + k < end) {
                    keep_larger(best, at(v[a], k), at_v + k);
                    zero = __fmaf_rn(at(v[a], k), 0.0f, zero);
                }
        }
    }
    if (IS_RAW && zero != zero)
        return KEY_NOT_FINITE;
    if (best.i == ~0u || first != first)
        return argmax_special(x, {range.begin, end});
    return argmax_key(best.x, best.i);
}

static __device__ void copy_range(const float *x, struct range range, float *to) {
    for (uint32_t i = range.begin + 4 * threadIdx.x; i < range.end; i += 4 * PICK_THREADS)
        store4(to, i, range.end, load4(x, i, range.end));
}

/* Biases, penalties and mask on a copy of the range's logits, and its largest key then. */
static __device__ uint64_t adjust(const struct pick_params &p, const struct io_output *o,
                                  struct range range, const float *logits, float *adjusted) {
    copy_range(logits, range, adjusted);
    __syncthreads();
    apply_biases(p, o, range, adjusted);
    if (p.counts && has_penalties(o))
        apply_penalties(p, o, range, adjusted);
    if (o->flags & IO_HAS_MASK)
        apply_mask(p, (uint32_t)(o - p.io.outputs), range, adjusted);
    return argmax_range<false>(adjusted, range, &o->n_vocab);
}

static __device__ uint64_t row_best(const struct pick_params &p, uint32_t row) {
    return *(volatile uint64_t *)&p.states[row].best;
}

static __device__ void set_token(const struct pick_params &p, uint32_t row, int32_t token) {
    if (threadIdx.x == 0)
        put_token(p.io, row, token);
}

/* The argmax is the row's token where it wants one; that there is none is told to all. */
static __device__ void set_best(const struct pick_params &p, uint32_t row, uint64_t best) {
    int32_t token = token_of(best);
    if (p.io.outputs[row].flags & IO_WANTS_TOKEN || token == IO_NOT_FINITE)
        set_token(p, row, token);
}

/* The largest key into the row's state, where zero is below every key. False: no such row, of n. */
static __device__ bool argmax_row(const struct pick_params &p, const struct block_group &group,
                                  const struct io_output *o, uint32_t row, uint32_t n) {
    const float *logits = p.logits + (uint64_t)row * p.logits_stride;
    struct range range = range_of(group, p.vocab);
    uint64_t best = argmax_range<true>(logits, range, &o->n_vocab);
    if (row >= n)
        return false;
    if (p.wanted && o->flags & IO_WANTS_LOGITS)
        copy_range(logits, range, p.wanted + (uint64_t)row * p.wanted_stride);
    if (o->flags & IO_WANTS_TOKEN && is_adjusted(o)) {
        uint64_t adjusted = adjust(p, o, {range.begin, min(range.end, o->n_vocab)}, logits,
                                   p.adjusted + (uint64_t)row * p.adjusted_stride);
        best = best == KEY_NOT_FINITE ? best : adjusted;
    }
    best = block_reduce(best, max_op());
    if (threadIdx.x == 0)
        atomicMax((unsigned long long *)&p.states[row].best, (unsigned long long)best);
    return true;
}

/* ---- weights and their histogram ------------------------------------------------------------- */

/* From a logit to its weight. */
struct softmax {
    float inv_temperature, max; /* max: of logits over temperature */
    bool is_top_k;              /* top-k cuts: the histogram counts tokens instead of weights */
};

static __device__ struct softmax softmax_of(const struct io_output *o, uint64_t best) {
    float inverse = 1 / o->temperature;
    return {inverse, __fmul_rn(logit_of(best), inverse), o->top_k > 0 && o->top_k < o->n_vocab};
}

/* In [0, 1]: the probability over the largest one. */
static __device__ float relative_prob(const struct softmax &m, float x) {
    float scaled = __fmul_rn(x, m.inv_temperature);
    return scaled == m.max ? 1.0f : expf(scaled - m.max); /* infinities too */
}

/* Fixed point, 40 binary places. */
static __device__ uint64_t weight_of(const struct softmax &m, float x) {
    float prob = relative_prob(m, x);
    return prob > 0 ? __float2ull_rn(prob * 0x1p40f) : 0; /* 0 for NaN */
}

/* The distance from the maximum in 32nds of a power of e: a larger logit is never in a later bin.
 */
static __device__ uint32_t bin_of(const struct softmax &m, float x) {
    float distance = m.max - __fmul_rn(x, m.inv_temperature);
    return min(__float2uint_rd(distance * 32), PICK_BINS - 1u);
}

/* With biases and penalties, where there are any. */
static __device__ const float *logits_of(const struct pick_params &p, const struct io_output *o,
                                         uint32_t row) {
    return is_adjusted(o) ? p.adjusted + (uint64_t)row * p.adjusted_stride
                          : p.logits + (uint64_t)row * p.logits_stride;
}

/* Of the block's range, added to the row's; without cuts only the range's total. */
static __device__ void histogram_row(const struct pick_params &p, const struct block_group &group,
                                     uint32_t row, struct histogram &bins) {
    const struct io_output *o = &p.io.outputs[row];
    const float *x = logits_of(p, o, row);
    struct range range = range_of(group, o->n_vocab);
    uint32_t i = range.begin + 4 * threadIdx.x;
    float4 next = load4(x, i, range.end); /* in flight while the maximum is read */
    const struct softmax m = softmax_of(o, row_best(p, row));
    uint64_t *sums = p.histograms + (uint64_t)row * PICK_BINS, sum = 0;
    bool has_bins = is_cut(o);
    clear(bins);
    while (i < range.end) {
        float4 v = next;
        next = load4(x, i += 4 * PICK_THREADS, range.end);
        for (int k = 0; k < 4; k++) {
            float each = at(v, k);
            if (each != each)
                continue;
            if (has_bins)
                add(bins, bin_of(m, each), m.is_top_k ? 1 : weight_of(m, each));
            else
                sum += weight_of(m, each);
        }
    }
    if (!has_bins) {
        sum = block_reduce(sum, sum_op());
        if (threadIdx.x == 0)
            sums[group.rank] = sum;
        return;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS)
        if (get(bins, i))
            atomicAdd((unsigned long long *)&sums[i], (unsigned long long)get(bins, i));
}

/* ---- the draw -------------------------------------------------------------------------------- */

/* In [0, 1), of 53 random bits: a function of seed and position alone (splitmix64). */
static __device__ double uniform(uint64_t seed, uint32_t position) {
    uint64_t z = seed + 0x9E3779B97F4A7C15u * (position + 1ull);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* What the running sum of weights has to reach, from 1 to `whole`. */
static __device__ uint64_t draw_target(const struct pick_params &p, const struct io_output *o,
                                       uint64_t whole) {
    double r = uniform(o->seed, p.io.rows[o->row].position);
    return min((uint64_t)(r * (double)whole) + 1, whole);
}

static __device__ void load_histogram(const struct pick_params &p, uint32_t row,
                                      struct histogram &bins, uint32_t n) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS)
        set(bins, i, i < n ? __ldcg(p.histograms + (uint64_t)row * PICK_BINS + i) : 0);
    __syncthreads();
}

/* From all tokens, in the order of the vocabulary: the block in whose range the running sum reaches
 * the target narrows that down, each time to one of PICK_BINS runs. */
static __device__ void draw_uncut(const struct pick_params &p, const struct block_group &group,
                                  uint32_t row, const struct softmax &m, struct histogram &bins) {
    const struct io_output *o = &p.io.outputs[row];
    const float *x = logits_of(p, o, row);
    uint64_t target = draw_target(p, o, total_of(bins));
    struct bin_hit found = find_bin(bins, target);
    if (found.bin != group.rank)
        return;
    struct range range = range_of(group, o->n_vocab);
    while (range.end - range.begin > 1) {
        target -= found.before;
        uint32_t run = (range.end - range.begin + PICK_BINS - 1) / PICK_BINS;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS) {
            uint64_t sum = 0;
            for (uint32_t k = 0; k < run && range.begin + i * run + k < range.end; k++)
                sum += weight_of(m, __ldcg(x + range.begin + i * run + k));
            set(bins, i, sum);
        }
        found = find_bin(bins, target);
        range.begin += found.bin * run;
        range.end = min(range.end, range.begin + run);
    }
    set_token(p, row, (int32_t)range.begin);
}

/* What the running sum has to reach for top-p, of all tokens' weight. */
static __device__ uint64_t top_p_target(const struct io_output *o, uint64_t total) {
    return max_op()((uint64_t)ceil(o->top_p * (double)total), 1);
}

/* The last bin that can hold a token which passes. */
static __device__ uint32_t last_bin(const struct io_output *o, const struct softmax &m,
                                    const struct histogram &bins, uint64_t total) {
    if (m.is_top_k)
        return find_bin(bins, min((uint64_t)o->top_k, total)).bin;
    uint32_t last = PICK_BINS - 1;
    if (o->min_p > 0) /* one more, for rounding */
        last = min(last, __float2uint_rd(-logf(fminf(o->min_p, 1.0f)) * 32) + 1);
    if (o->top_p < 1)
        last = min(last, find_bin(bins, top_p_target(o, total)).bin);
    return last;
}

/* The range's tokens up to that bin, but for those at -infinity if there are others, appended to
 * the row's list: one atomicAdd a warp. */
static __device__ void gather_candidates(const float *x, struct range range,
                                         const struct softmax &m, uint32_t last, uint64_t *list,
                                         uint32_t *length) {
    const float infinity = __int_as_float(0x7f800000),
                least = m.max > -infinity ? -FLT_MAX : -infinity;
    uint32_t lane = threadIdx.x % 32, i = range.begin + 4 * threadIdx.x;
    float4 next = load4(x, i, range.end);
    for (uint32_t first = range.begin; first < range.end; first += 4 * PICK_THREADS) {
        uint32_t masks[4], n = 0, base = 0, at_v = i;
        float4 v = next;
        next = load4(x, i += 4 * PICK_THREADS, range.end);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            bool is_in = at(v, k) >= least && bin_of(m, at(v, k)) <= last;
            masks[k] = __ballot_sync(0xffffffffu, is_in);
            n += __popc(masks[k]);
        }
        if (!n)
            continue;
        if (lane == 0)
            base = atomicAdd(length, n);
        base = __shfl_sync(0xffffffffu, base, 0);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (masks[k] >> lane & 1)
                list[base + __popc(masks[k] & ((1u << lane) - 1))] = key_of(at(v, k), at_v + k);
            base += __popc(masks[k]);
        }
    }
}

struct candidates {
    const uint64_t *keys;
    uint32_t n;
};

/* Of all keys from `cut` on. */
static __device__ uint64_t weight_from(const struct candidates &list, const struct softmax &m,
                                       uint64_t cut) {
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < list.n; i += PICK_THREADS)
        if (list.keys[i] >= cut)
            sum += weight_of(m, logit_of(list.keys[i]));
    return block_reduce(sum, sum_op());
}

/* The lowest key that passes min-p. */
static __device__ uint64_t min_p_cut(const struct candidates &list, const struct softmax &m,
                                     float min_p) {
    uint64_t lowest = ~0ull;
    for (uint32_t i = threadIdx.x; i < list.n; i += PICK_THREADS)
        if (relative_prob(m, logit_of(list.keys[i])) >= fminf(min_p, 1.0f))
            lowest = min_op()(lowest, list.keys[i]);
    return block_reduce(lowest, min_op());
}

/* Radix select: the key at which the running weight (or count), from the largest key down, reaches
 * the target. Each pass makes a histogram of the keys in [low, high], 10 bits at a time, and goes
 * on with the bin that reaches the target. */
static __device__ uint64_t radix_select(const struct candidates &list, const struct softmax &m,
                                        bool is_count, uint64_t target, struct histogram &bins) {
    uint64_t low = 0, high = ~0ull;
    for (;;) {
        uint64_t least = high, most = low;
        for (uint32_t i = threadIdx.x; i < list.n; i += PICK_THREADS) {
            uint64_t key = list.keys[i];
            if (key >= low && key <= high) {
                least = min_op()(least, key);
                most = max_op()(most, key);
            }
        }
        low = block_reduce(least, min_op());
        high = block_reduce(most, max_op());
        if (low >= high)
            return high;
        int shift = max(0, 54 - __clzll((long long)(high - low)));
        clear(bins);
        for (uint32_t i = threadIdx.x; i < list.n; i += PICK_THREADS) {
            uint64_t key = list.keys[i];
            if (key >= low && key <= high)
                add(bins, (uint32_t)((high - key) >> shift),
                    is_count ? 1 : weight_of(m, logit_of(key)));
        }
        struct bin_hit found = find_bin(bins, target);
        target -= found.before;
        high -= (uint64_t)found.bin << shift;
        uint64_t width = (1ull << shift) - 1;
        low = high - low > width ? high - width : low;
    }
}

/* What passes top-k, top-p and min-p are the keys from `cut` on: one draw from these. total: the
 * weight of all tokens, where top-k does not cut. */
static __device__ void draw_candidates(const struct pick_params &p, uint32_t row,
                                       const struct candidates &list, const struct softmax &m,
                                       uint64_t total, struct histogram &bins) {
    const struct io_output *o = &p.io.outputs[row];
    uint64_t cut = m.is_top_k ? radix_select(list, m, true, min(o->top_k, list.n), bins) : 0;
    uint64_t listed = weight_from(list, m, cut);
    total = m.is_top_k ? listed : total;
    if (o->top_p < 1 && top_p_target(o, total) <= listed) /* else min-p cut before */
        cut = max_op()(cut, radix_select(list, m, false, top_p_target(o, total), bins));
    if (o->min_p > 0)
        cut = max_op()(cut, min_p_cut(list, m, o->min_p));
    uint64_t left = weight_from(list, m, cut);
    set_token(p, row, token_of(radix_select(list, m, false, draw_target(p, o, left), bins)));
}

/* The same for at most MAX_BY_RANK candidates, without passes: a thread has a key, its rank, and
 * the running weight from the largest key down to its own. The gain is not measured. */
static __device__ void draw_by_rank(const struct pick_params &p, uint32_t row,
                                    const struct candidates &list, const struct softmax &m,
                                    uint64_t total) {
    __shared__ uint64_t keys[MAX_BY_RANK], weights[MAX_BY_RANK];
    const struct io_output *o = &p.io.outputs[row];
    uint64_t key = 0, own = 0, running_sum = 0;
    uint32_t rank = 0;
    bool is_in = threadIdx.x < list.n;
    if (is_in) {
        keys[threadIdx.x] = key = list.keys[threadIdx.x];
        weights[threadIdx.x] = own = weight_of(m, logit_of(key));
    }
    __syncthreads();
    for (uint32_t i = 0; is_in && i < list.n; i++) {
        bool is_before = keys[i] >= key;
        rank += is_before;
        running_sum += is_before ? weights[i] : 0;
    }
    if (m.is_top_k) {
        is_in &= rank <= o->top_k;
        total = block_reduce(is_in ? running_sum : 0, max_op());
    }
    if (o->top_p < 1)
        is_in &= running_sum - own < top_p_target(o, total);
    if (o->min_p > 0)
        is_in &= relative_prob(m, logit_of(key)) >= fminf(o->min_p, 1.0f);
    uint64_t target = draw_target(p, o, block_reduce(is_in ? running_sum : 0, max_op()));
    if (is_in && running_sum - own < target && target <= running_sum)
        put_token(p.io, row, token_of(key));
}

/* True: this block was the last of the group, and the row has its token. */
static __device__ bool draw_row(const struct pick_params &p, const struct block_group &group,
                                uint32_t row, struct histogram &bins) {
    const struct io_output *o = &p.io.outputs[row];
    struct pick_state *state = &p.states[row];
    uint64_t best = row_best(p, row);
    const struct softmax m = softmax_of(o, best);
    load_histogram(p, row, bins, is_cut(o) ? (uint32_t)PICK_BINS : group.size);
    uint64_t total = total_of(bins), *keys = p.candidates + (uint64_t)row * p.candidates_stride;
    bool has_weights = m.max == m.max && total; /* else: all NaN, or KEY_NOT_FINITE */
    if (has_weights && is_cut(o))
        gather_candidates(logits_of(p, o, row), range_of(group, o->n_vocab), m,
                          last_bin(o, m, bins, total), keys, &state->n_candidates);
    else if (has_weights)
        draw_uncut(p, group, row, m, bins);
    else if (group.rank == 0)
        set_token(p, row, token_of(best));
    bool is_last = is_last_block(&state->arrived, group.size);
    if (!is_last || !has_weights || !is_cut(o))
        return is_last;
    const struct candidates list = {keys, *(volatile uint32_t *)&state->n_candidates};
    if (list.n <= MAX_BY_RANK)
        draw_by_rank(p, row, list, m, total);
    else
        draw_candidates(p, row, list, m, total, bins);
    return true;
}

/* ---- rows, and the end of the step ----------------------------------------------------------- */

static __device__ bool sample_row(const struct pick_params &p, struct block_group group,
                                  uint32_t row, struct histogram &bins) {
    uint64_t *sums = p.histograms + (uint64_t)row * PICK_BINS;
    for (uint32_t i = group.rank * PICK_THREADS + threadIdx.x; i < PICK_BINS;
         i += group.size * PICK_THREADS)
        sums[i] = 0;
    struct pick_state *state = &p.states[row];
    uint32_t others = group.size - 1;
    enum barrier_result result = group_barrier(&state->at_barrier, group.size);
    if (result == CANCELLED) {
        if (threadIdx.x == 0)
            atomicAdd(&state->arrived, 1);
        return false;
    }
    if (result == ALONE)
        group.size = 1, group.rank = 0;
    histogram_row(p, group, row, bins);
    group_barrier_again(&state->at_barrier, group.size);
    bool is_last = draw_row(p, group, row, bins);
    while (result == ALONE && *(volatile uint32_t *)&state->arrived < others)
        ; /* the others have seen the cancelled barrier: their state may be cleared */
    return is_last;
}

/* True: this block has finished the row. n: rows that there are. */
static __device__ bool pick_row(const struct pick_params &p, const struct block_group &group,
                                uint32_t row, uint32_t n, struct histogram &bins) {
    const struct io_output *o = &p.io.outputs[row];
    if (!argmax_row(p, group, o, row, n))
        return false;
    if (is_sampled(o)) {
        if (!sample_row(p, group, row, bins))
            return false;
        __syncthreads(); /* its state is read */
    } else {
        if (!is_last_block(&p.states[row].arrived, group.size))
            return false;
        set_best(p, row, row_best(p, row));
    }
    if (threadIdx.x == 0)
        p.states[row] = {0, 0, 0, 0, {0, 0, 0}};
    return true;
}

/* Whether output i's row is kept: it holds no draft, or all drafts up to it are right. */
static __device__ bool is_kept(const struct pick_params &p, uint32_t i) {
    for (; p.io.outputs[i].flags & IO_DRAFTED; i--)
        if (p.io.rows[p.io.outputs[i].row].token != __ldcg(&p.io.outputs[i - 1].token))
            return false;
    return true;
}

/* Which of the step's rows are in vain, in the block's shared memory. */
static __device__ const int32_t *find_rows_in_vain(const struct pick_params &p) {
    extern __shared__ int32_t is_in_vain[];
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < p.io.header->n_rows; r += PICK_THREADS)
        is_in_vain[r] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < p.io.header->n_outputs; i += PICK_THREADS)
        is_in_vain[p.io.outputs[i].row] = !is_kept(p, i);
    __syncthreads();
    return is_in_vain;
}

/* The step's tokens into the counts, which saturate: the same in any order. */
static __device__ void count_tokens(const struct pick_params &p) {
    const int32_t *is_in_vain = p.io.header->n_drafts ? find_rows_in_vain(p) : NULL;
    for (uint32_t r = threadIdx.x; p.counts && r < p.io.header->n_rows; r += PICK_THREADS) {
        if (is_in_vain && is_in_vain[r])
            continue;
        const struct io_row row = p.io.rows[r];
        if (p.step > 0 && p.io.outputs[r].is_over) /* in a burst row r is output r */
            continue;
        unsigned short *count = p.counts + (uint64_t)row.slot * p.counts_stride + row.token;
        unsigned short seen = *(volatile unsigned short *)count, was;
        do {
            was = seen;
            if (was == 65535)
                break;
            seen = atomicCAS(count, was, (unsigned short)(was + 1));
        } while (seen != was);
    }
}

/* Whether the sequence of output i goes no further in this burst. */
static __device__ bool is_last(const struct pick_params &p, uint32_t i, int32_t token) {
    const uint32_t *keeps = p.io.keeps + (uint64_t)i * IO_MASK_WORDS(p.vocab);
    bool is_one = (p.io.outputs[i].flags & IO_KEEPS_MASK) && token >= 0 &&
                  !(keeps[token / 32] >> token % 32 & 1);
    for (uint32_t k = 0; k < p.io.header->n_ends; k++)
        is_one |= token == p.io.header->ends[k];
    return is_one;
}

/* In a burst every sequence goes on from the token that was picked for it, and from the cell that
 * this step stored to: its own, but in plans of a draft block. Where no token was picked it goes on
 * from any: the host drops the burst. After a token that ends an answer, or its mask, its recurrent
 * state stays as it is, and all that follows is dropped. */
static __device__ void advance(const struct pick_params &p) {
    for (uint32_t i = threadIdx.x; i < p.io.header->n_outputs; i += PICK_THREADS) {
        int32_t token = __ldcg(&p.io.outputs[i].token);
        uint32_t at = p.io.outputs[i].row, spare = p.io.header->spare_cell;
        struct io_row *row = (struct io_row *)&p.io.rows[at];
        struct io_segment *segment = (struct io_segment *)&p.io.segments[row->segment];
        p.burst[i * IO_BURST + p.step] = token;
        row->token = max(token, 0);
        row->position++;
        segment->first_position++;
        segment->cell = p.io.to[at];
        if (!is_last(p, i, token))
            continue;
        ((struct io_output *)p.io.outputs)[i].is_over = 1;
        if (spare != IO_NO_CELL)
            segment->cell = ((uint32_t *)p.io.to)[at] = spare;
    }
}

/* By one block, when all rows are finished. What the step wrote to the host's memory is visible to
 * it when the flag is. */
static __device__ void end_step(const struct pick_params &p) {
    if (p.done && threadIdx.x == 0) {
        __threadfence_system();
        *(volatile uint64_t *)p.done = p.io.header->step;
        *p.end_stamp = globaltimer();
    }
    count_tokens(p);
    __syncthreads();
    if (p.burst)
        advance(p);
}

/* True: a single row that is greedy or wants logits alone, of which the LM head has found the
 * argmax, and its token is set. */
static __device__ bool use_lm_head_best(const struct pick_params &p) {
    const struct io_output *o = &p.io.outputs[0];
    uint64_t best = *(volatile const uint64_t *)p.lm_head_best;
    bool wants_token = o->flags & IO_WANTS_TOKEN;
    bool is_plain = !wants_token | (!is_sampled(o) & !is_adjusted(o));
    if (p.io.header->n_outputs == 0 || !is_plain || best == 0)
        return false;
    if (blockIdx.x == 0)
        set_best(p, 0, best);
    return true;
}

/* A plan of one output loads its logits before n_outputs is known. */
extern "C" __global__ void __launch_bounds__(PICK_THREADS, 2)
    pick(const __grid_constant__ struct pick_params p) {
    __shared__ struct histogram bins;
    pdl_launch_dependents();
    pdl_wait(p.io);
    if (p.lm_head_best && use_lm_head_best(p)) {
        if (blockIdx.x == 0)
            end_step(p);
        return;
    }
    uint32_t n = p.io.header->n_outputs, n_asked = p.max_outputs == 1 ? 1 : n;
    const struct block_group group = block_group_of(n_asked);
    bool is_end = false;
    for (uint32_t row = group.first_row; row < n_asked; row += group.row_step)
        if (pick_row(p, group, row, n, bins))
            is_end = is_last_block(p.rows_done, n);
    if (is_end || (n == 0 && blockIdx.x == 0))
        end_step(p);
}
