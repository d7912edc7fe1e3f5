/* pick.cu - PICK: a token for every output that wants one, and the step's end. See cpu/pick.c for
 * what a pick means.
 *
 * best    each row's best token, behind biases and penalties: for greedy rows that is the answer.
 * weigh   sampled rows: a histogram of the tokens' weights by their distance from the best.
 * draw    sampled rows: the tokens that can pass top-k, top-p and min-p into a list, of which the
 *         last block to finish draws one.
 *
 * Every row has a team of blocks, of which each takes a part of the vocabulary; with more rows than
 * blocks a team is one block and takes several rows. Teams of sampled rows wait for their slowest
 * block between the three. A weight is e^(x - max) as an integer of 40 binary places, so sums do
 * not depend on the order of adding, nor on the size of the team.
 *
 * The block that ends the last row ends the step: it counts the step's tokens and, in a burst,
 * moves IO on to the next step; behind the last step it tells the host.
 * Read: the logits once (greedy), three times (sampled). */
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/pick.h"

enum {
    WARPS = PICK_THREADS / 32,
    OWN_BINS = PICK_BINS / PICK_THREADS,
    BIAS_CHUNK = 256,
    SHORT = 256
};

/* ---- teams ------------------------------------------------------------------------------------
 */

struct team {
    uint32_t size, member;
    uint32_t first_row, step; /* rows first_row, first_row + step ... are the team's */
};

static __device__ struct team team_of(uint32_t outputs) {
    uint32_t teams = min(gridDim.x, max(outputs, 1u)), size = gridDim.x / teams;
    uint32_t team = blockIdx.x / size;
    /* Blocks that are left over have no rows. */
    return {size, blockIdx.x % size, team < teams ? team : outputs, teams};
}

/* A block's part of n values, in whole quads. */
struct part {
    uint32_t begin, end;
};

static __device__ struct part part_of(const struct team &team, uint32_t n) {
    uint32_t quads = (n + 3) / 4, each = (quads + team.size - 1) / team.size * 4;
    return {min(n, team.member * each), min(n, (team.member + 1) * each)};
}

/* A team meets: its blocks wait for each other, and then see what the others wrote. A grid has no
 * more blocks than there are multiprocessors, so all of them run at once, unless other work holds
 * the device. Who waits too long for that calls it off: then the last to come goes on alone. */
#ifndef PICK_PATIENCE
#define PICK_PATIENCE 1000000 /* ns */
#endif
enum meeting { TOGETHER, ALONE, OFF };
enum : uint32_t { CALLED_OFF = 1u << 31 };

static __device__ enum meeting await_team(uint32_t *counter, uint32_t size) {
    uint32_t seen = atomicAdd(counter, 1) + 1;
    if ((seen & ~CALLED_OFF) == size)
        return seen & CALLED_OFF ? ALONE : TOGETHER;
    for (uint64_t began = globaltimer();;) {
        seen = *(volatile uint32_t *)counter;
        if (seen & CALLED_OFF)
            return OFF;
        if (seen >= size)
            return TOGETHER;
        if (globaltimer() - began >= PICK_PATIENCE)
            atomicCAS(counter, seen, seen | CALLED_OFF);
    }
}

static __device__ enum meeting meet(uint32_t *counter, uint32_t size) {
    __shared__ enum meeting how;
    __syncthreads();
    if (size == 1)
        return TOGETHER;
    if (threadIdx.x == 0) {
        __threadfence();
        how = await_team(counter, size);
        __threadfence();
    }
    __syncthreads();
    return how;
}

/* Once more: all are there. */
static __device__ void meet_again(uint32_t *counter, uint32_t size) {
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

/* Whether this block is the last of so many to come here; it then sees what the others wrote. */
static __device__ bool is_last_of(uint32_t *counter, uint32_t size) {
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

/* ---- over a block -----------------------------------------------------------------------------
 */

struct fold_max {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
        return a > b ? a : b;
    }
};
struct fold_min {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
        return a < b ? a : b;
    }
};
struct fold_sum {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
        return a + b;
    }
};

/* Every thread has the result. */
template <class F> static __device__ uint64_t fold(uint64_t x, F f) {
    __shared__ uint64_t parts[WARPS];
    for (int i = 16; i > 0; i >>= 1)
        x = f(x, __shfl_xor_sync(0xffffffffu, x, i));
    __syncthreads(); /* the last fold's are read */
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
    for (int i = 1; i < WARPS; i++)
        x = f(x, parts[i]);
    return x;
}

/* Sums of 64 bits as two words: shared memory adds only words by itself. */
struct bins {
    uint32_t low[PICK_BINS], high[PICK_BINS];
};

static __device__ void clear(struct bins &b) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS)
        b.low[i] = b.high[i] = 0;
    __syncthreads();
}

static __device__ void add(struct bins &b, uint32_t bin, uint64_t weight) {
    uint32_t low = (uint32_t)weight, high = (uint32_t)(weight >> 32);
    if (low && atomicAdd(&b.low[bin], low) > ~low)
        high++;
    if (high)
        atomicAdd(&b.high[bin], high);
}

static __device__ void set(struct bins &b, uint32_t bin, uint64_t weight) {
    b.low[bin] = (uint32_t)weight;
    b.high[bin] = (uint32_t)(weight >> 32);
}

static __device__ uint64_t get(const struct bins &b, uint32_t bin) {
    return (uint64_t)b.high[bin] << 32 | b.low[bin];
}

static __device__ uint64_t sum_of(const struct bins &b) {
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS)
        sum += get(b, i);
    return fold(sum, fold_sum());
}

/* The first bin at which the running sum reaches the target, which is 1 or more and not above the
 * sum of all. */
struct reached {
    uint32_t bin;
    uint64_t before; /* the sum of the bins before it */
};

static __device__ struct reached reach(const struct bins &b, uint64_t target) {
    __shared__ uint64_t warp_sums[WARPS];
    __shared__ struct reached found;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t own = 0;
    __syncthreads();
    for (uint32_t i = 0; i < OWN_BINS; i++)
        own += get(b, threadIdx.x * OWN_BINS + i);
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
    for (uint32_t i = 0; i < OWN_BINS; i++) {
        uint32_t bin = threadIdx.x * OWN_BINS + i;
        uint64_t behind = before + get(b, bin);
        if (before < target && target <= behind)
            found = {bin, before};
        before = behind;
    }
    __syncthreads();
    return found;
}

/* ---- logits -----------------------------------------------------------------------------------
 */

static __device__ bool has_penalties(const struct io_output *o) {
    return (o->repeat_penalty != 1) | (o->presence_penalty != 0) | (o->frequency_penalty != 0);
}

static __device__ bool is_changed(const struct io_output *o) {
    return o->n_bias || has_penalties(o);
}

static __device__ bool is_sampled(const struct io_output *o) {
    return ((o->flags & IO_WANTS_TOKEN) != 0) & (o->temperature > 0);
}

static __device__ bool is_cut(const struct io_output *o) {
    return o->top_k > 0 || o->top_p < 1 || o->min_p > 0;
}

/* Four values at i; NaN for those behind the end. Past L1: another block may have changed them. */
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

/* Sorts like (logit, then lower index first). */
static __device__ uint64_t key_of(float x, uint32_t i) {
    uint32_t bits = __float_as_uint(x);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~i;
}

static __device__ float value_of(uint64_t key) {
    uint32_t bits = (uint32_t)(key >> 32);
    return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

static __device__ uint32_t index_of(uint64_t key) {
    return ~(uint32_t)key;
}

/* The same for the best: both zeros are equal, and NaN is below all, but for one that stands
 * first: that stays the best. */
static __device__ uint64_t best_key(float x, uint32_t i) {
    if (x == x)
        return key_of(x + 0.0f, i);
    return i ? (uint32_t)~i : ~0ull;
}

/* The biases in order; those of one token belong to the thread of its first. */
static __device__ void apply_biases(const struct pick_params &p, const struct io_output *o,
                                    struct part part, float *x) {
    __shared__ struct io_bias chunk[BIAS_CHUNK];
    for (uint32_t first = 0; first < o->n_bias; first += BIAS_CHUNK) {
        uint32_t n = min(o->n_bias - first, (uint32_t)BIAS_CHUNK), i = threadIdx.x;
        __syncthreads();
        if (i < n)
            chunk[i] = p.io.biases[o->first_bias + first + i];
        __syncthreads();
        if (i >= n || chunk[i].token < (int32_t)part.begin || chunk[i].token >= (int32_t)part.end)
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

/* The tokens of this step in the row's sequence that lie in the part: they count already, though
 * `counts` has them only behind the step. */
static __device__ uint32_t gather_tokens(const struct pick_params &p, uint32_t slot,
                                         struct part part, int32_t *tokens) {
    __shared__ uint32_t n;
    __syncthreads();
    if (threadIdx.x == 0)
        n = 0;
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < p.io.header->n_rows; r += PICK_THREADS) {
        const struct io_row row = p.io.rows[r];
        if (row.slot == slot && row.token >= (int32_t)part.begin && row.token < (int32_t)part.end)
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
                                       struct part part, float *x) {
    extern __shared__ int32_t tokens[];
    uint32_t slot = p.io.rows[o->row].slot, n = gather_tokens(p, slot, part, tokens);
    const uint16_t *counts = p.counts + (uint64_t)slot * p.counts_stride;
    for (uint32_t i = part.begin + threadIdx.x; i < part.end; i += PICK_THREADS) {
        uint32_t count = counts[i];
        for (uint32_t k = 0; k < n; k++)
            count += tokens[k] == (int32_t)i;
        if (count)
            x[i] = penalized(o, x[i], min(count, 65535u));
    }
    __syncthreads();
}

/* ---- the best ---------------------------------------------------------------------------------
 */

/* The best of a part, among the first n_vocab tokens. */
struct candidate {
    float x;
    uint32_t i;
};

/* A thread's tokens come in order, so of equals the first stays. NaN is larger than nothing. */
static __device__ __forceinline__ void take(struct candidate &best, float x, uint32_t i) {
    bool is_better = x > best.x;
    best.x = is_better ? x : best.x;
    best.i = is_better ? i : best.i;
}

/* The same for values of which none is larger than -infinity, and for a NaN that stands first. */
static __device__ uint64_t odd_best(const float *x, struct part part) {
    uint64_t best = 0;
    for (uint32_t i = part.begin + 4 * threadIdx.x; i < part.end; i += 4 * PICK_THREADS)
        for (uint32_t k = i; k < min(i + 4, part.end); k++)
            best = fold_max()(best, best_key(x[k], k));
    return best;
}

/* n_vocab: where the row's tokens end; it is looked at behind the first loads. */
static __device__ uint64_t best_of_part(const float *x, struct part part, const uint32_t *n_vocab) {
    enum { AHEAD = 4 };
    struct candidate best = {-__int_as_float(0x7f800000), ~0u};
    float first = 0;
    uint32_t end = 0;
    for (uint32_t i = part.begin + 4 * threadIdx.x; i < part.end; i += AHEAD * 4 * PICK_THREADS) {
        float4 v[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            v[a] = load4(x, i + a * 4 * PICK_THREADS, part.end);
        if (i == 0)
            first = v[0].x;
        end = min(part.end, *n_vocab);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            uint32_t at_v = i + a * 4 * PICK_THREADS;
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (at_v + k < end)
                    take(best, at(v[a], k), at_v + k);
        }
    }
    if (best.i == ~0u || first != first)
        return odd_best(x, {part.begin, end});
    return best_key(best.x, best.i);
}

/* A part of the logits to where they are asked for. */
static __device__ void copy_part(const float *x, struct part part, float *to) {
    for (uint32_t i = part.begin + 4 * threadIdx.x; i < part.end; i += 4 * PICK_THREADS)
        store4(to, i, part.end, load4(x, i, part.end));
}

/* Biases and penalties on a copy of the part's logits, and its best then. */
static __device__ uint64_t change(const struct pick_params &p, const struct io_output *o,
                                  struct part part, const float *logits, float *room) {
    copy_part(logits, part, room);
    __syncthreads();
    apply_biases(p, o, part, room);
    if (p.counts && has_penalties(o))
        apply_penalties(p, o, part, room);
    return best_of_part(room, part, &o->n_vocab);
}

static __device__ uint64_t best_of(const struct pick_params &p, uint32_t row) {
    return *(volatile uint64_t *)&p.states[row].best;
}

static __device__ void give(const struct pick_params &p, uint32_t row, uint32_t token) {
    if (threadIdx.x == 0)
        put_token(p.io, row, (int32_t)token);
}

/* The row's best, into its state: zero there is below every key. False: there is no such row, of n.
 */
static __device__ bool find_best(const struct pick_params &p, const struct team &team,
                                 const struct io_output *o, uint32_t row, uint32_t n) {
    const float *logits = p.logits + (uint64_t)row * p.logits_stride;
    struct part part = part_of(team, p.vocab);
    uint64_t best = best_of_part(logits, part, &o->n_vocab);
    if (row >= n)
        return false;
    if (p.wanted && o->flags & IO_WANTS_LOGITS)
        copy_part(logits, part, p.wanted + (uint64_t)row * p.wanted_stride);
    if (!(o->flags & IO_WANTS_TOKEN))
        return true;
    if (is_changed(o))
        best = change(p, o, {part.begin, min(part.end, o->n_vocab)}, logits,
                      p.room + (uint64_t)row * p.room_stride);
    best = fold(best, fold_max());
    if (threadIdx.x == 0)
        atomicMax((unsigned long long *)&p.states[row].best, (unsigned long long)best);
    return true;
}

/* ---- weights ----------------------------------------------------------------------------------
 */

/* What turns a logit into a weight. */
struct law {
    float scale, max; /* of scaled logits */
    bool counts;      /* in histograms every token weighs the same: top-k */
};

static __device__ struct law law_of(const struct io_output *o, uint64_t best) {
    float scale = 1 / o->temperature;
    return {scale, __fmul_rn(value_of(best), scale), o->top_k > 0 && o->top_k < o->n_vocab};
}

static __device__ float chance(const struct law &law, float x) {
    float scaled = __fmul_rn(x, law.scale);
    return scaled == law.max ? 1.0f : expf(scaled - law.max); /* infinities too */
}

static __device__ uint64_t mass_of(float chance) {
    return chance > 0 ? __float2ull_rn(chance * 0x1p40f) : 0; /* NaN is not */
}

static __device__ uint64_t mass(const struct law &law, float x) {
    return mass_of(chance(law, x));
}

/* The distance from the best, in 32nds of a power of e: never larger for a larger logit. */
static __device__ uint32_t bin_of(const struct law &law, float x) {
    float distance = law.max - __fmul_rn(x, law.scale);
    return min(__float2uint_rd(distance * 32), PICK_BINS - 1u);
}

/* Logits, changed if they are to be. */
static __device__ const float *logits_of(const struct pick_params &p, const struct io_output *o,
                                         uint32_t row) {
    return is_changed(o) ? p.room + (uint64_t)row * p.room_stride
                         : p.logits + (uint64_t)row * p.logits_stride;
}

static __device__ void weigh_row(const struct pick_params &p, const struct team &team, uint32_t row,
                                 struct bins &bins) {
    const struct io_output *o = &p.io.outputs[row];
    const float *x = logits_of(p, o, row);
    struct part part = part_of(team, o->n_vocab);
    uint32_t i = part.begin + 4 * threadIdx.x;
    float4 next = load4(x, i, part.end); /* on its way while the best is looked up */
    const struct law law = law_of(o, best_of(p, row));
    uint64_t *weights = p.weights + (uint64_t)row * PICK_BINS, sum = 0;
    bool has_bins = is_cut(o);
    clear(bins);
    while (i < part.end) {
        float4 v = next;
        next = load4(x, i += 4 * PICK_THREADS, part.end);
        for (int k = 0; k < 4; k++) {
            float each = at(v, k);
            if (each != each)
                continue;
            if (has_bins)
                add(bins, bin_of(law, each), law.counts ? 1 : mass(law, each));
            else
                sum += mass(law, each);
        }
    }
    if (!has_bins) {
        sum = fold(sum, fold_sum());
        if (threadIdx.x == 0)
            weights[team.member] = sum;
        return;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS)
        if (get(bins, i))
            atomicAdd((unsigned long long *)&weights[i], (unsigned long long)get(bins, i));
}

/* ---- the draw ---------------------------------------------------------------------------------
 */

/* A number in [0, 1) of 53 random bits. */
static __device__ double draw(uint64_t seed, uint32_t position) {
    uint64_t z = seed + 0x9E3779B97F4A7C15u * (position + 1ull);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* What a running sum has to reach: more than r times the whole. */
static __device__ uint64_t target_of(const struct pick_params &p, const struct io_output *o,
                                     uint64_t whole) {
    double r = draw(o->seed, p.io.rows[o->row].position);
    return min((uint64_t)(r * (double)whole) + 1, whole);
}

static __device__ void load_bins(const struct pick_params &p, uint32_t row, struct bins &bins,
                                 uint32_t n) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS)
        set(bins, i, i < n ? __ldcg(p.weights + (uint64_t)row * PICK_BINS + i) : 0);
    __syncthreads();
}

/* Among all, in the order of the vocabulary: the part that reaches the target finds the token,
 * in runs that get shorter. */
static __device__ void draw_any(const struct pick_params &p, const struct team &team, uint32_t row,
                                const struct law &law, struct bins &bins) {
    const struct io_output *o = &p.io.outputs[row];
    const float *x = logits_of(p, o, row);
    uint64_t target = target_of(p, o, sum_of(bins));
    struct reached found = reach(bins, target);
    if (found.bin != team.member)
        return;
    struct part part = part_of(team, o->n_vocab);
    while (part.end - part.begin > 1) {
        target -= found.before;
        uint32_t run = (part.end - part.begin + PICK_BINS - 1) / PICK_BINS;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS) {
            uint64_t sum = 0;
            for (uint32_t k = 0; k < run && part.begin + i * run + k < part.end; k++)
                sum += mass(law, __ldcg(x + part.begin + i * run + k));
            set(bins, i, sum);
        }
        found = reach(bins, target);
        part.begin += found.bin * run;
        part.end = min(part.end, part.begin + run);
    }
    give(p, row, part.begin);
}

/* What the running sum has to reach for top-p. */
static __device__ uint64_t top_share(const struct io_output *o, uint64_t total) {
    return fold_max()((uint64_t)ceil(o->top_p * (double)total), 1);
}

/* The last bin that can hold a token which passes. */
static __device__ uint32_t last_bin(const struct io_output *o, const struct law &law,
                                    const struct bins &bins, uint64_t total) {
    if (law.counts)
        return reach(bins, min((uint64_t)o->top_k, total)).bin;
    uint32_t last = PICK_BINS - 1;
    if (o->min_p > 0) /* one more, for rounding */
        last = min(last, __float2uint_rd(-logf(fminf(o->min_p, 1.0f)) * 32) + 1);
    if (o->top_p < 1)
        last = min(last, reach(bins, top_share(o, total)).bin);
    return last;
}

/* The part's tokens up to that bin into the row's list. */
static __device__ void gather(const float *x, struct part part, const struct law &law,
                              uint32_t last, uint64_t *list, uint32_t *length) {
    uint32_t lane = threadIdx.x % 32, i = part.begin + 4 * threadIdx.x;
    float4 next = load4(x, i, part.end);
    for (uint32_t first = part.begin; first < part.end; first += 4 * PICK_THREADS) {
        uint32_t masks[4], n = 0, base = 0, at_v = i;
        float4 v = next;
        next = load4(x, i += 4 * PICK_THREADS, part.end);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            bool is_in = at(v, k) == at(v, k) && bin_of(law, at(v, k)) <= last;
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

struct list {
    const uint64_t *keys;
    uint32_t n;
};

static __device__ uint64_t mass_from(const struct list &list, const struct law &law, uint64_t cut) {
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < list.n; i += PICK_THREADS)
        if (list.keys[i] >= cut)
            sum += mass(law, value_of(list.keys[i]));
    return fold(sum, fold_sum());
}

/* The lowest key whose chance is not below min_p. */
static __device__ uint64_t lowest_passing(const struct list &list, const struct law &law,
                                          float min_p) {
    uint64_t lowest = ~0ull;
    for (uint32_t i = threadIdx.x; i < list.n; i += PICK_THREADS)
        if (chance(law, value_of(list.keys[i])) >= fminf(min_p, 1.0f))
            lowest = fold_min()(lowest, list.keys[i]);
    return fold(lowest, fold_min());
}

/* The key at which the running weight, from the largest key on, reaches the target: by histograms
 * of a range of keys that gets narrower. */
static __device__ uint64_t select(const struct list &list, const struct law &law, bool counts,
                                  uint64_t target, struct bins &bins) {
    uint64_t low = 0, high = ~0ull;
    for (;;) {
        uint64_t least = high, most = low;
        for (uint32_t i = threadIdx.x; i < list.n; i += PICK_THREADS) {
            uint64_t key = list.keys[i];
            if (key >= low && key <= high) {
                least = fold_min()(least, key);
                most = fold_max()(most, key);
            }
        }
        low = fold(least, fold_min());
        high = fold(most, fold_max());
        if (low >= high)
            return high;
        int shift = max(0, 54 - __clzll((long long)(high - low)));
        clear(bins);
        for (uint32_t i = threadIdx.x; i < list.n; i += PICK_THREADS) {
            uint64_t key = list.keys[i];
            if (key >= low && key <= high)
                add(bins, (uint32_t)((high - key) >> shift), counts ? 1 : mass(law, value_of(key)));
        }
        struct reached found = reach(bins, target);
        target -= found.before;
        high -= (uint64_t)found.bin << shift;
        uint64_t width = (1ull << shift) - 1;
        low = high - low > width ? high - width : low;
    }
}

/* What passes top-k, top-p and min-p is a first part of the list, if it were sorted: one draw from
 * that. total: of all tokens' masses, where top-k does not cut. */
static __device__ void draw_listed(const struct pick_params &p, uint32_t row,
                                   const struct list &list, const struct law &law, uint64_t total,
                                   struct bins &bins) {
    const struct io_output *o = &p.io.outputs[row];
    uint64_t cut = law.counts ? select(list, law, true, min(o->top_k, list.n), bins) : 0;
    uint64_t listed = mass_from(list, law, cut);
    total = law.counts ? listed : total;
    if (o->top_p < 1 && top_share(o, total) <= listed) /* else min-p cut before */
        cut = fold_max()(cut, select(list, law, false, top_share(o, total), bins));
    if (o->min_p > 0)
        cut = fold_max()(cut, lowest_passing(list, law, o->min_p));
    uint64_t left = mass_from(list, law, cut);
    give(p, row, index_of(select(list, law, false, target_of(p, o, left), bins)));
}

/* The same for a list of at most SHORT: every thread has a key, its rank, and the mass from the
 * largest key up to its own. */
static __device__ void draw_short(const struct pick_params &p, uint32_t row,
                                  const struct list &list, const struct law &law, uint64_t total) {
    __shared__ uint64_t keys[SHORT], masses[SHORT];
    const struct io_output *o = &p.io.outputs[row];
    uint64_t key = 0, own = 0, upto = 0;
    uint32_t rank = 0;
    bool is_in = threadIdx.x < list.n;
    if (is_in) {
        keys[threadIdx.x] = key = list.keys[threadIdx.x];
        masses[threadIdx.x] = own = mass(law, value_of(key));
    }
    __syncthreads();
    for (uint32_t i = 0; is_in && i < list.n; i++) {
        bool is_before = keys[i] >= key;
        rank += is_before;
        upto += is_before ? masses[i] : 0;
    }
    if (law.counts) {
        is_in &= rank <= o->top_k;
        total = fold(is_in ? upto : 0, fold_max());
    }
    if (o->top_p < 1)
        is_in &= upto - own < top_share(o, total);
    if (o->min_p > 0)
        is_in &= chance(law, value_of(key)) >= fminf(o->min_p, 1.0f);
    uint64_t target = target_of(p, o, fold(is_in ? upto : 0, fold_max()));
    if (is_in && upto - own < target && target <= upto)
        put_token(p.io, row, (int32_t)index_of(key));
}

/* True: this block was the last, and the row has its token. */
static __device__ bool draw_row(const struct pick_params &p, const struct team &team, uint32_t row,
                                struct bins &bins) {
    const struct io_output *o = &p.io.outputs[row];
    struct pick_state *state = &p.states[row];
    uint64_t best = best_of(p, row);
    const struct law law = law_of(o, best);
    load_bins(p, row, bins, is_cut(o) ? (uint32_t)PICK_BINS : team.size);
    uint64_t total = sum_of(bins), *keys = p.order + (uint64_t)row * p.order_stride;
    bool has_numbers = law.max == law.max && total; /* to draw by */
    if (has_numbers && is_cut(o))
        gather(logits_of(p, o, row), part_of(team, o->n_vocab), law, last_bin(o, law, bins, total),
               keys, &state->length);
    else if (has_numbers)
        draw_any(p, team, row, law, bins);
    else if (team.member == 0)
        give(p, row, index_of(best));
    bool is_last = is_last_of(&state->arrived, team.size);
    if (!is_last || !has_numbers || !is_cut(o))
        return is_last;
    const struct list list = {keys, *(volatile uint32_t *)&state->length};
    if (list.n <= SHORT)
        draw_short(p, row, list, law, total);
    else
        draw_listed(p, row, list, law, total, bins);
    return true;
}

/* ---- rows, and the step's end -----------------------------------------------------------------
 */

static __device__ bool sample_row(const struct pick_params &p, struct team team, uint32_t row,
                                  struct bins &bins) {
    uint64_t *weights = p.weights + (uint64_t)row * PICK_BINS;
    for (uint32_t i = team.member * PICK_THREADS + threadIdx.x; i < PICK_BINS;
         i += team.size * PICK_THREADS)
        weights[i] = 0;
    struct pick_state *state = &p.states[row];
    uint32_t others = team.size - 1;
    enum meeting how = meet(&state->met, team.size);
    if (how == OFF) {
        if (threadIdx.x == 0)
            atomicAdd(&state->arrived, 1);
        return false;
    }
    if (how == ALONE)
        team.size = 1, team.member = 0;
    weigh_row(p, team, row, bins);
    meet_again(&state->met, team.size);
    bool is_last = draw_row(p, team, row, bins);
    while (how == ALONE && *(volatile uint32_t *)&state->arrived < others)
        ; /* all have seen that it is off: their state may be cleared */
    return is_last;
}

/* True: by this block the row has all that it asks for. n: rows that there are. */
static __device__ bool pick_row(const struct pick_params &p, const struct team &team, uint32_t row,
                                uint32_t n, struct bins &bins) {
    const struct io_output *o = &p.io.outputs[row];
    if (!find_best(p, team, o, row, n))
        return false;
    if (is_sampled(o)) {
        if (!sample_row(p, team, row, bins))
            return false;
        __syncthreads(); /* its state is read */
    } else {
        if (!is_last_of(&p.states[row].arrived, team.size))
            return false;
        if (threadIdx.x == 0 && o->flags & IO_WANTS_TOKEN)
            put_token(p.io, row, (int32_t)index_of(best_of(p, row)));
    }
    if (threadIdx.x == 0)
        p.states[row] = {0, 0, 0, 0, {0, 0, 0}};
    return true;
}

/* The step's tokens into the counts, which penalties looked at as they were before. Adding up to a
 * limit is the same in any order. */
static __device__ void count_tokens(const struct pick_params &p) {
    for (uint32_t r = threadIdx.x; p.counts && r < p.io.header->n_rows; r += PICK_THREADS) {
        const struct io_row row = p.io.rows[r];
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

/* Every sequence goes on from the token that was picked for it. */
static __device__ void advance(const struct pick_params &p) {
    for (uint32_t i = threadIdx.x; i < p.io.header->n_outputs; i += PICK_THREADS) {
        int32_t token = __ldcg(&p.io.outputs[i].token);
        struct io_row *row = (struct io_row *)&p.io.rows[p.io.outputs[i].row];
        p.burst[i * IO_BURST + p.step] = token;
        row->token = token;
        row->position++;
        ((struct io_segment *)&p.io.segments[row->segment])->first_position++;
    }
}

/* By one block, when all rows have what they ask for. What the step wrote to the host's memory is
 * there when the flag is. */
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

/* A greedy row whose best the head has found: nothing is left to do but to say so. */
static __device__ bool is_found(const struct pick_params &p) {
    const struct io_output *o = &p.io.outputs[0];
    uint64_t best = *(volatile const uint64_t *)p.head_best;
    bool is_plain = !is_sampled(o) & !is_changed(o) & ((o->flags & IO_WANTS_TOKEN) != 0);
    if (p.io.header->n_outputs == 0 || !is_plain || best >> 32 == ~0u || best == 0)
        return false;
    if (blockIdx.x == 0)
        give(p, 0, index_of(best));
    return true;
}

/* Where there is but one output, its logits are asked for before it is known that it is used. */
extern "C" __global__ void __launch_bounds__(PICK_THREADS, 2)
    pick(const __grid_constant__ struct pick_params p) {
    __shared__ struct bins bins;
    pdl_launch_dependents();
    pdl_wait(p.io);
    if (p.head_best && is_found(p)) {
        if (blockIdx.x == 0)
            end_step(p);
        return;
    }
    uint32_t n = p.io.header->n_outputs, n_asked = p.max_outputs == 1 ? 1 : n;
    const struct team team = team_of(n_asked);
    bool ends = false;
    for (uint32_t row = team.first_row; row < n_asked; row += team.step)
        if (pick_row(p, team, row, n, bins))
            ends = is_last_of(p.ended, n);
    if (ends || (n == 0 && blockIdx.x == 0))
        end_step(p);
}
