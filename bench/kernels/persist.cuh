/* persist.cuh - a whole step as one kernel: 132 blocks, one an SM, walk the list of stages.
 *
 * The stage bodies are those of the graph. Between stages there is a grid barrier. What does not
 * depend on the stage before is fetched before the barrier: weights through the ring, which runs on
 * over stage ends, norm weights, delta-net state, and the description of the next stage. */
#pragma once
#include "mix.cuh"

enum stage_kind { ST_EMBED, ST_IN, ST_MIX, ST_OUT, ST_UP, ST_DOWN, ST_HEAD, ST_PICK, ST_KINDS };

struct stage_desc {
    int32_t kind, is_delta;
    int32_t next_piece, pad; /* the first piece of the next stage */
    union {
        struct project p;
        struct delta d;
        struct attend a;
        struct ends e;
    };
};

enum { PERSIST_SMEM = 206 * 1024 }; /* beside some 19 KB of static shared memory */

struct program {
    const struct stage_desc *stages;
    const struct piece *pieces; /* (n_pieces, SM_COUNT) */
    uint32_t *counter;          /* blocks that have reached a barrier, since the beginning */
    uint32_t *epoch;            /* barriers passed by earlier launches */
    int32_t n_stages, n_pieces;
    uint32_t flight;
    long long *trace; /* NULL, or (n_stages, STAMPS) stamps of one thread of block 5 */
};

/* One counter for all: 1.0 us a barrier, against 1.7 with a flag for every block. */
__device__ static inline void barrier_arrive(uint32_t *counter) {
    block_sync();
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

__device__ static inline void barrier_wait(const uint32_t *counter, uint32_t round) {
    if (threadIdx.x == 0) {
        uint32_t v;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
        while ((int32_t)(v - round * SM_COUNT) < 0);
    }
    block_sync();
}

enum { DESC_WORDS = sizeof(struct stage_desc) / 4 };

union mix_smem {
    struct delta_smem d;
    struct attend_smem a;
    unsigned long long red[WARPS];
};

/* The stages are functions of their own: so each has all registers to itself. */

template <int COLS>
__device__ static __noinline__ void persist_delta(const struct delta *d, struct delta_smem *s,
                                                  const uint32_t *counter, uint32_t at) {
    struct delta_early<COLS> e;
    int item = blockIdx.x, items = delta_items<COLS>(*d);
    if (item < items)
        delta_load<COLS>(e, *d, item);
    barrier_wait(counter, at);
#pragma unroll 1
    while (item < items) {
        delta_body<COLS>(*d, s, e);
        item += SM_COUNT;
        if (item >= items)
            break;
        delta_load<COLS>(e, *d, item);
        block_sync();
    }
}

__device__ static __noinline__ void persist_attend(const struct attend *a, struct attend_smem *s,
                                                   const uint32_t *counter, uint32_t at) {
    int items = a->rows * a->heads;
    if (blockIdx.x < items)
        attend_early(*a, blockIdx.x);
    barrier_wait(counter, at);
    for (int i = blockIdx.x; i < items; i += SM_COUNT) {
        attend_body(*a, s, i);
        block_sync();
    }
}

__device__ static __noinline__ void persist_ends(const struct ends *e, bool first,
                                                 unsigned long long *red, const uint32_t *counter,
                                                 uint32_t at) {
    barrier_wait(counter, at);
    if (first)
        embed_body(*e);
    else
        pick_body(*e, red);
}

struct place { /* where a warp is in its ring */
    uint32_t pos, tail, eaten;
};

template <int RP, int MASK>
__device__ static inline struct place
persist_project(const struct project *p, const struct piece *own, struct place pl,
                const uint32_t *counter, uint32_t at, long long *trace) {
    extern __shared__ __align__(128) uint8_t smem[];
    constexpr uint32_t CAP = smem_map<RP, MASK == MASK_BF16>::cap(PERSIST_SMEM);
    struct block_smem s = block_smem_make<RP, MASK == MASK_BF16>(smem);
    struct reader rd = reader_open(s, CAP);
    rd.pos = pl.pos, rd.tail = pl.tail, rd.eaten = pl.eaten;
    norm_early(*p);
    int slice_index = blockIdx.x % p->splits;
    struct outlet out[MAX_SEGMENTS] = {};
    out[0] = outlet_make<RP>(*p, own[0], 0, slice_index, threadIdx.x);
    if (p->n_segments > 1)
        out[1] = outlet_make<RP>(*p, own[1], 1, slice_index, threadIdx.x);
    barrier_wait(counter, at);
    stamp(trace, 1);
    project_body<RP, MASK>(
        *p, s, rd, [&](int j) -> const struct piece & { return own[j]; }, out, slice_index, trace);
    return (struct place){rd.pos, rd.tail, rd.eaten};
}

/* Starts bringing a stage's description and the block's pieces of it into shared memory. */
__device__ static inline void fetch_desc(const struct program &g, int stage, int piece,
                                         uint32_t *desc, struct piece *own) {
    int i = threadIdx.x, words = sizeof(struct piece) / 4;
    if (i < DESC_WORDS)
        async_word(desc + i, (const uint32_t *)(g.stages + stage) + i);
    i -= THREADS / 2;
    if (i < 0 || i >= MAX_SEGMENTS * words)
        return;
    int seg = i / words, word = i % words;
    if (piece + seg >= g.n_pieces)
        return;
    const struct piece *p = g.pieces + (size_t)(piece + seg) * SM_COUNT + blockIdx.x;
    async_word((uint32_t *)(own + seg) + word, (const uint32_t *)p + word);
}

template <int RP, int MASK>
__global__ static void __launch_bounds__(BLOCK, 1)
    persist_kernel(const __grid_constant__ struct program g) {
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ union mix_smem mix;
    __shared__ __align__(16) uint32_t desc[2][DESC_WORDS];
    __shared__ struct piece own[2][MAX_SEGMENTS];
    constexpr uint32_t CAP = smem_map<RP, MASK == MASK_BF16>::cap(PERSIST_SMEM);
    struct block_smem s = block_smem_make<RP, MASK == MASK_BF16>(smem);
    auto pieces = [&](int i) { return g.pieces[(size_t)i * SM_COUNT + blockIdx.x]; };
    feed_init(s);
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        feed_run(s, CAP, pieces, g.n_pieces, g.flight, evict_first_policy());
        return;
    }
    uint32_t epoch = *(volatile uint32_t *)g.epoch;
    struct place pl = {0, 0, 0};
    fetch_desc(g, 0, 0, desc[0], own[0]);
    async_wait();
    block_sync();
#pragma unroll 1
    for (int i = 0; i < g.n_stages; i++) {
        const struct stage_desc *st = (const struct stage_desc *)desc[i & 1];
        long long *trace = NULL;
#ifdef TRACE
        if (g.trace && blockIdx.x == 5 && threadIdx.x == 0)
            trace = g.trace + STAMPS * i;
        if (trace)
            trace[STAMPS - 1] = 0;
#endif
        stamp(trace, 0);
        if (i + 1 < g.n_stages)
            fetch_desc(g, i + 1, st->next_piece, desc[(i + 1) & 1], own[(i + 1) & 1]);
        if (st->kind == ST_MIX && st->is_delta) {
            if (st->d.cols == 4)
                persist_delta<4>(&st->d, &mix.d, g.counter, epoch + i);
            else
                persist_delta<2>(&st->d, &mix.d, g.counter, epoch + i);
        } else if (st->kind == ST_MIX) {
            persist_attend(&st->a, &mix.a, g.counter, epoch + i);
        } else if (st->kind == ST_EMBED || st->kind == ST_PICK) {
            persist_ends(&st->e, st->kind == ST_EMBED, mix.red, g.counter, epoch + i);
        } else {
            pl = persist_project<RP, MASK>(&st->p, own[i & 1], pl, g.counter, epoch + i, trace);
        }
        async_wait();
        barrier_arrive(g.counter);
        stamp(trace, 7);
    }
    barrier_wait(g.counter, epoch + g.n_stages);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *g.epoch = epoch + g.n_stages;
}

typedef void (*persist_fn)(const struct program);

/* The kernel for a step's mix of weight types. */
template <int RP> static persist_fn persist_pick(int mask) {
    if (mask == MASK_Q8_0)
        return persist_kernel<RP, MASK_Q8_0>;
    if (mask == MASK_BF16)
        return persist_kernel<RP, MASK_BF16>;
    return persist_kernel<RP, MASK_Q4_K | MASK_Q6_K>;
}

static persist_fn persist_prepare(int rows, int mask) {
    persist_fn fn = rows == 1 ? persist_pick<1>(mask) : persist_pick<8>(mask);
    CU(cudaFuncSetAttribute(fn, cudaFuncAttributeMaxDynamicSharedMemorySize, PERSIST_SMEM));
    return fn;
}
