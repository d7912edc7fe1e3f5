/* delta_batch.cu - DELTA of several rows: single rows of many sequences, and runs of rows of one.
 *
 * The blocks stay for the whole step. A segment of one row is done at once, as in delta.cu, by
 * tiles of value heads' columns; a block has a share of all segments' tiles, neighbours, and while
 * one is computed the next ones' states are on their way into shared memory and the next one's
 * window into registers. 32 KB in and out for 64 columns of 128 values. The window's entry that is
 * written is read by nobody.
 *
 * In plans of few rows (delta_few) a block's tile follows from its number instead: what belongs to
 * the tile comes before the wait, and behind it two rows' windows and states are asked for at once.
 *
 * Rows of runs are convolved first, a warp a head of a row, into work memory; when all are, a tile
 * walks its run's rows and moves the window on, which nobody reads by then. Pieces of the
 * convolution are taken by counter, so whoever waits for one waits for a block that runs. */
#include "backend/cuda/kernels/delta.cuh"

enum { THREADS = DELTA_WARPS * 32 };

/* ---- runs: the convolution ------------------------------------------------------------------ */

/* Where W is 4 that is the convolution's width, where it is 8 the widest. */
template <int W> static __device__ __forceinline__ uint32_t width_of(const struct delta_params &p) {
    return W == 4 ? 4 : p.conv_width;
}

/* Where the raw values of a row and of those before it lie, oldest first; NULL before the
 * beginning. */
template <int W> struct raw_rows {
    uint32_t row;
    const float *at[W];
};

template <int W>
static __device__ __forceinline__ struct raw_rows<W> raw_rows_of(const struct delta_params &p,
                                                                 uint32_t row) {
    struct io_row io = p.io.rows[row];
    uint32_t own = io.position - p.io.segments[io.segment].first_position;
    struct raw_rows<W> r;
    r.row = row;
#pragma unroll
    for (int t = 0; t < W; t++) {
        uint32_t back = width_of<W>(p) - 1 - t; /* t beyond the width: beyond all positions */
        r.at[t] = back > io.position ? NULL
                  : back <= own      ? p.in + (uint64_t)(row - back) * p.in_stride
                                     : window_at(p, io.slot, io.position - back);
    }
    return r;
}

static __device__ __forceinline__ void
take4(const float *from, float (&to)[4]) {
    float4 v = *(const float4 *)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/* N channels, STEP apart, those below `end`: all loads before the first sum. Four neighbours of
 * four taps are pieces of 16 bytes. */
template <int W, int N, int STEP>
static __device__ __forceinline__ void conv_channels(const struct delta_params &p,
                                                     const struct raw_rows<W> &r, uint32_t c,
                                                     uint32_t end, float (&y)[N]) {
    float raw[W][N] = {}, taps[N][W] = {};
    if constexpr (W == 4 && N == 4 && STEP == 1) {
        if (c < end)
#pragma unroll
            for (int t = 0; t < 4; t++) {
                if (r.at[t])
                    take4(r.at[t] + c, raw[t]);
                take4(p.conv + (uint64_t)(c + t) * 4, taps[t]);
            }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int t = 0; t < W; t++)
                if (r.at[t] && c + STEP * i < end) {
                    raw[t][i] = r.at[t][c + STEP * i];
                    taps[i][t] = p.conv[(uint64_t)(c + STEP * i) * width_of<W>(p) + t];
                }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        float sum = 0;
#pragma unroll
        for (int t = 0; t < W; t++)
            sum = r.at[t] ? fmaf(taps[i][t], raw[t][i], sum) : sum;
        y[i] = c + STEP * i < end ? conv_result(sum) : 0;
    }
}

/* N channels of a lane at a time: as many as there are registers for. */
template <int W, int N, int M>
static __device__ __forceinline__ void conv_keys(const struct delta_params &p,
                                                 const struct raw_rows<W> &r, uint32_t head) {
    uint32_t dk = p.key_width;
    uint64_t item = (uint64_t)r.row * p.key_heads + head;
    float *to = p.qk + item * 2 * 32 * M, q[M], k[M];
#pragma unroll
    for (int m = 0; m < M; m += N) {
        uint32_t first = head * dk, second = (p.key_heads + head) * dk, i = value_of(m);
        float y[N];
        conv_channels<W, N, 1>(p, r, first + i, first + dk, y);
#pragma unroll
        for (int n = 0; n < N; n++)
            q[m + n] = y[n];
        conv_channels<W, N, 1>(p, r, second + i, second + dk, y);
#pragma unroll
        for (int n = 0; n < N; n++) {
            k[m + n] = y[n];
            to[i + n] = q[m + n], to[32 * M + i + n] = k[m + n];
        }
    }
    struct delta_key key = key_of<M>(p, q, k);
    if (threadIdx.x % 32 == 0)
        p.keys[item] = key;
}

template <int W, int N>
static __device__ __forceinline__ void conv_values(const struct delta_params &p,
                                                   const struct raw_rows<W> &r, uint32_t head) {
    uint32_t lane = threadIdx.x % 32, dv = p.value_width;
    uint64_t item = (uint64_t)r.row * p.value_heads + head;
    uint32_t first = 2 * p.key_heads * p.key_width + head * dv;
    const float *in = p.in + r.row * p.in_stride;
    for (uint32_t i = lane; i < p.padded_value; i += 32 * N) {
        float y[N];
        conv_channels<W, N, 32>(p, r, first + i, first + dv, y);
#pragma unroll
        for (int n = 0; n < N; n++)
            if (i + 32 * n < p.padded_value)
                p.v[item * p.padded_value + i + 32 * n] = y[n];
    }
    if (lane == 0)
        p.gates[item] =
            gate_of(in[p.alpha_column + head], in[p.beta_column + head], p.a[head], p.dt[head]);
}

template <int W, int N, int M>
static __device__ __forceinline__ void conv_head(const struct delta_params &p, uint32_t row,
                                                 uint32_t head) {
    struct raw_rows<W> r = raw_rows_of<W>(p, row);
    if (head < p.key_heads)
        conv_keys<W, N, M>(p, r, head);
    else
        conv_values<W, N>(p, r, head - p.key_heads);
}

/* ---- runs: pieces of the convolution by counter --------------------------------------------- */

/* A warp takes a key head or a value head of a row. IS_FEW: in delta_few, which has four taps and
 * registers for fewer channels at a time. */
template <int M, bool IS_FEW>
static __device__ __forceinline__ void conv_item(const struct delta_params &p, uint32_t i) {
    uint32_t heads = p.key_heads + p.value_heads, row = i / heads, head = i % heads;
    if (row >= p.io.header->n_rows || p.io.segments[p.io.rows[row].segment].n_rows == 1)
        return;
    if (IS_FEW)
        conv_head<4, 2, M>(p, row, head);
    else if (p.conv_width == 4 && p.is_aligned)
        conv_head<4, 4, M>(p, row, head);
    else
        conv_head<8, 1, M>(p, row, head);
}

static __device__ __forceinline__ uint32_t conv_pieces(const struct delta_params &p) {
    uint32_t items = p.io.header->n_rows * (p.key_heads + p.value_heads);
    return (items + DELTA_WARPS - 1) / DELTA_WARPS;
}

/* Thread 0 asks for the next piece before the block does this one. */
template <int M, bool IS_FEW>
static __device__ __forceinline__ void convolve_runs(const struct delta_params &p) {
    __shared__ uint32_t shared_piece;
    uint32_t pieces = conv_pieces(p), next = 0, n_done = 0;
    if (threadIdx.x == 0)
        next = atomicAdd(&p.counters->taken, 1);
    for (;; n_done++) {
        if (threadIdx.x == 0)
            shared_piece = next;
        __syncthreads();
        uint32_t piece = shared_piece;
        if (piece >= pieces)
            break;
        if (threadIdx.x == 0)
            next = atomicAdd(&p.counters->taken, 1);
        conv_item<M, IS_FEW>(p, piece * DELTA_WARPS + threadIdx.x / 32);
        __syncthreads(); /* all have read the piece's number, and written its values */
    }
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&p.counters->done, n_done);
    }
}

/* All rows of runs are convolved, and seen. */
static __device__ __forceinline__ void wait_for_runs(const struct delta_params &p) {
    if (threadIdx.x == 0) {
        uint32_t pieces = conv_pieces(p);
        while (*(volatile uint32_t *)&p.counters->done < pieces)
            ;
        __threadfence();
    }
    __syncthreads();
}

/* The last block leaves the counters as it found them. */
static __device__ __forceinline__ void leave_counters(const struct delta_params &p) {
    if (threadIdx.x == 0 && atomicAdd(&p.counters->left, 1) == gridDim.x - 1)
        *p.counters = (struct delta_counters){0, 0, 0};
}

/* ---- runs: the rule ------------------------------------------------------------------------- */

/* Of a row in shared memory: q, k, the tile's v, key and gate. */
template <int J, int M> struct row_layout {
    static constexpr int KEY = 32 * M, TILE = DELTA_WARPS * J, VALUES = 2 * KEY + TILE + 8;
};

/* Copies of n rows from `row` on; 16 bytes a thread and turn. */
template <int J, int M>
static __device__ __forceinline__ void fetch_rows(const struct delta_params &p,
                                                  const struct place &at, float *to, uint32_t row,
                                                  uint32_t n) {
    using L = row_layout<J, M>;
    constexpr uint32_t QK = 2 * L::KEY / 4, V = L::TILE / 4, ALL = QK + V + 2;
    for (uint32_t i = threadIdx.x; i < n * ALL; i += DELTA_WARPS * 32) {
        uint64_t r = row + i / ALL, piece = i % ALL;
        uint64_t key = r * p.key_heads + at.key_head, value = r * p.value_heads + at.head;
        const void *from;
        if (piece < QK)
            from = p.qk + key * 2 * L::KEY + piece * 4;
        else if (piece < QK + V)
            from = p.v + value * p.padded_value + at.first_column + (piece - QK) * 4;
        else
            from = piece == QK + V ? (const void *)(p.keys + key) : (const void *)(p.gates + value);
        cp_async_16(smem_addr(to + i / ALL * L::VALUES + piece * 4), from);
    }
    cp_async_commit();
}

template <int J, int M>
static __device__ __forceinline__ void run_row(float (&s)[J][M], const float *from, float *out,
                                               int n_columns) {
    using L = row_layout<J, M>;
    float q[M], k[M], v[J];
    take_row<J, M, true>(from, L::KEY, q, k, v);
    struct delta_key key = *(const struct delta_key *)(from + 2 * L::KEY + L::TILE);
    struct delta_gate gate = *(const struct delta_gate *)(from + 2 * L::KEY + L::TILE + 4);
    rule<J, M>(s, q, k, v, key, gate, out, n_columns);
}

/* The ring holds the segment's last raw values afterwards. */
static __device__ __forceinline__ void move_window(const struct delta_params &p,
                                                   const struct place &at,
                                                   const struct io_segment &g, uint32_t tile) {
    uint32_t kept = min(g.n_rows, p.conv_width), n = 2 * p.key_width + tile;
    for (uint32_t i = threadIdx.x; i < n * kept; i += DELTA_WARPS * 32) {
        uint32_t row = g.n_rows - kept + i / n;
        int c = channel_of(p, at, i % n);
        if (c >= 0 && (i % n >= 2 * p.key_width || at.has_keys))
            window_at(p, g.slot, g.first_position + row)[c] =
                p.in[(uint64_t)(g.first_row + row) * p.in_stride + c];
    }
}

template <int J, int M>
static __device__ __forceinline__ void
run_segment(const struct delta_params &p, const struct place &at, const struct io_segment &g,
            float *shared, bool &is_convolved) {
    using L = row_layout<J, M>;
    constexpr uint32_t STAGE = DELTA_STAGE_ROWS;
    float s[J][M];
    int n_columns;
    uint32_t column = at.first_column + threadIdx.x / 32 * J;
    float *state = p.state + g.slot * p.state_stride + state_at<J>(p, at, column, &n_columns);
    float *out = p.out + g.first_row * p.out_stride + at.head * p.value_width + column;
    load_state<J, M>(s, state, p.key_width, n_columns, p.is_even);
    if (!is_convolved)
        wait_for_runs(p);
    is_convolved = true;
    fetch_rows<J, M>(p, at, shared, g.first_row, min(STAGE, g.n_rows));
    for (uint32_t first = 0, side = 0; first < g.n_rows; first += STAGE, side ^= 1) {
        uint32_t n = min(STAGE, g.n_rows - first), next = first + STAGE;
        if (next < g.n_rows) {
            fetch_rows<J, M>(p, at, shared + (side ^ 1) * STAGE * L::VALUES, g.first_row + next,
                             min(STAGE, g.n_rows - next));
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        for (uint32_t r = 0; r < n; r++, out += p.out_stride)
            run_row<J, M>(s, shared + (side * STAGE + r) * L::VALUES, out, n_columns);
        __syncthreads(); /* the next turn copies over what was just read */
    }
    store_state<J, M>(s, state, p.key_width, n_columns, p.is_even);
    move_window(p, at, g, L::TILE);
}

template <int J, int M>
static __device__ __forceinline__ void do_runs(const struct delta_params &p, float *shared) {
    uint32_t tiles = p.value_heads * p.run_cut.tiles, n = p.io.header->n_segments * tiles;
    bool is_convolved = false;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        struct io_segment g = p.io.segments[i / tiles];
        if (g.n_rows > 1)
            run_segment<J, M>(p, place_of(p, p.run_cut, i % tiles), g, shared, is_convolved);
    }
}

/* ---- single rows ---------------------------------------------------------------------------- */

enum { NO_ROW = 0xffffffff };

/* An item: a tile of a single row. In shared memory, made once for all turns of a block. */
struct single {
    uint64_t state;      /* where the tile lies in it */
    uint32_t entries;    /* the slot's first in the window */
    uint32_t row;        /* NO_ROW: of a run, and not done here */
    uint32_t ring;       /* the row's own entry among the slot's */
    uint32_t before;     /* rows before it that the convolution reaches */
    float decay, beta;   /* the gate */
    uint32_t columns;    /* from the tile's first to the head's last */
    uint32_t nothing[3]; /* 16 bytes are read at a time */
};

static_assert(sizeof(struct single) == DELTA_ITEM_BYTES, "single");

/* A block's share: neighbours in (value heads' tiles, segments), so that it stays with a tile. */
struct share {
    uint32_t first, n, n_segments;
};

static __device__ __forceinline__ struct share share_of(const struct delta_params &p,
                                                        uint32_t n_segments) {
    uint32_t items = n_segments * p.value_heads * p.cut.tiles;
    uint32_t each = items / gridDim.x, more = items - each * gridDim.x;
    return {blockIdx.x * each + min(blockIdx.x, more), each + (blockIdx.x < more), n_segments};
}

/* From the last thread on: the first ones have the most to convolve. */
template <int J>
static __device__ __forceinline__ void
make_items(const struct delta_params &p, const struct share &share,
           const struct io_segment *segments, struct single *items) {
    for (uint32_t i = THREADS - 1 - threadIdx.x; i < share.n; i += THREADS) {
        uint32_t tile = (share.first + i) / share.n_segments, head = tile / p.cut.tiles;
        uint32_t column = (tile - head * p.cut.tiles) * DELTA_WARPS * J;
        struct io_segment g = segments[share.first + i - tile * share.n_segments];
        struct single x = {};
        x.state = g.slot * p.state_stride + (uint64_t)(head * p.value_width + column) * p.key_width;
        x.entries = g.slot * p.conv_width;
        x.row = g.n_rows == 1 ? g.first_row : (uint32_t)NO_ROW;
        x.ring = ring_place(p, g.first_position);
        x.before = min(g.first_position, p.conv_width - 1);
        x.columns = p.value_width - column;
        items[i] = x;
    }
}

/* Their chain of sums is too long for every turn. */
static __device__ __forceinline__ void make_gates(const struct delta_params &p,
                                                  const struct share &share, struct single *items) {
    for (uint32_t i = THREADS - 1 - threadIdx.x; i < share.n; i += THREADS) {
        uint32_t head = (share.first + i) / share.n_segments / p.cut.tiles, row = items[i].row;
        if (row == NO_ROW)
            continue;
        const float *in = p.in + row * p.in_stride + head;
        struct delta_gate gate =
            gate_of(in[p.alpha_column], in[p.beta_column], p.a[head], p.dt[head]);
        items[i].decay = gate.decay, items[i].beta = gate.beta;
    }
}

/* What a thread convolves: C channels of a tile, with their taps. */
template <int C, int W> struct lines {
    int channels[C]; /* -1: none */
    bool is_kept[C]; /* this block moves the window on */
    float taps[C][W];
};

/* Of one row: where it and those before it lie. */
struct reach {
    uint32_t entries; /* the slot's first in the window */
    uint32_t row, ring, before;
};

/* And their values in a thread's channels, the oldest first. */
template <int C, int W> struct raw {
    float at[C][W];
    uint32_t before;
    float *entry; /* of the window, for the row itself */
};

template <int C, int W>
static __device__ __forceinline__ void
load_taps(const struct delta_params &p, const struct place &at, uint32_t n, struct lines<C, W> &l) {
#pragma unroll
    for (int i = 0; i < C; i++) {
        uint32_t channel = threadIdx.x + i * THREADS;
        l.channels[i] = channel < n ? channel_of(p, at, channel) : -1;
        l.is_kept[i] = l.channels[i] >= 0 && (channel >= 2 * p.key_width || at.has_keys);
        const float *taps = p.conv + (uint64_t)(uint32_t)l.channels[i] * width_of<W>(p);
#pragma unroll
        for (int t = 0; t < W; t++)
            if (l.channels[i] >= 0 && (W == 4 || t < p.conv_width))
                l.taps[i][t] = ld_no_allocate_f32(taps + t);
    }
}

/* How far before the row the t-th tap is; beyond all rows where there is no such tap. */
template <int W>
static __device__ __forceinline__ uint32_t back_of(const struct delta_params &p, int t) {
    return width_of<W>(p) - 1 - t;
}

template <int C, int W>
static __device__ __forceinline__ void load_raw(const struct delta_params &p, const struct reach &x,
                                                const struct lines<C, W> &l, struct raw<C, W> &r) {
    r.before = x.before;
    r.entry = p.window + (uint64_t)(x.entries + x.ring) * p.channels;
#pragma unroll
    for (int t = 0; t < W; t++) {
        uint32_t back = back_of<W>(p, t);
        if (back > x.before)
            continue;
        uint32_t entry = x.entries + x.ring - back + (x.ring < back ? width_of<W>(p) : 0);
        const float *from =
            back ? p.window + (uint64_t)entry * p.channels : p.in + (uint64_t)x.row * p.in_stride;
#pragma unroll
        for (int i = 0; i < C; i++)
            if (l.channels[i] >= 0)
                r.at[i][t] = ld_no_allocate_f32(from + l.channels[i]);
    }
}

template <int C, int W>
static __device__ __forceinline__ void load_raw(const struct delta_params &p,
                                                const struct single *x, const struct lines<C, W> &l,
                                                struct raw<C, W> &r) {
    uint4 first = ld_shared_u32x4(x);
    uint2 second = ld_shared_u32x2(&x->ring); /* the gate behind them is only being made */
    if (first.w != NO_ROW)
        load_raw<C, W>(p, {first.z, first.w, second.x, second.y}, l, r);
}

/* y of the block's channels, and the window's next entry. */
template <int C, int W>
static __device__ __forceinline__ void conv_single(const struct delta_params &p, uint32_t n,
                                                   const struct lines<C, W> &l,
                                                   const struct raw<C, W> &r, float *y) {
#pragma unroll
    for (int i = 0; i < C; i++) {
        float sum = 0, last = 0;
#pragma unroll
        for (int t = 0; t < W; t++)
            if (back_of<W>(p, t) <= r.before) {
                sum = fmaf(l.taps[i][t], r.at[i][t], sum);
                last = r.at[i][t];
            }
        if (threadIdx.x + i * THREADS < n)
            y[threadIdx.x + i * THREADS] = l.channels[i] >= 0 ? conv_result(sum) : 0;
        if (l.is_kept[i])
            r.entry[l.channels[i]] = last;
    }
}

/* IS_FULL: keys of 32 M values, and as many columns as there is room for. */
template <int J, int M, bool IS_FULL>
static __device__ __forceinline__ int columns_of(const struct single *x) {
    return IS_FULL ? J : min(max((int)x->columns - (int)threadIdx.x / 32 * J, 0), J);
}

/* A warp brings its own columns: J of 32 M values. */
template <int J, int M>
static __device__ __forceinline__ void copy_state(const float *from, float *to) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < J * M / 4; i++)
        cp_async_16(smem_addr(to + lane * 4 + 128 * i), from + lane * 4 + 128 * i);
}

/* Or as many as there are. */
template <int J, int M, bool IS_FULL>
static __device__ __forceinline__ void fetch_state(const struct delta_params &p,
                                                   const struct single *x, float *to) {
    uint4 first = ld_shared_u32x4(x);
    if (first.w == NO_ROW)
        return;
    uint32_t lane = threadIdx.x % 32, dk = IS_FULL ? 32 * M : p.key_width;
    const float *from = p.state + ((uint64_t)first.y << 32 | first.x) + threadIdx.x / 32 * J * dk;
    uint32_t n = columns_of<J, M, IS_FULL>(x) * dk;
    if (IS_FULL) {
        copy_state<J, M>(from, to);
    } else if (p.is_even) {
#pragma unroll 1
        for (uint32_t i = lane * 4; i < n; i += 128)
            cp_async_16(smem_addr(to + i), from + i);
    } else {
#pragma unroll 1
        for (uint32_t i = lane; i < n; i += 32)
            cp_async_4(smem_addr(to + i), from + i);
    }
}

/* From shared memory; columns beyond a head's are rubbish that goes nowhere. */
template <int J, int M, bool IS_FULL>
static __device__ __forceinline__ void take_state(float (&s)[J][M], const float *from,
                                                  uint32_t key_width) {
    uint32_t dk = IS_FULL ? 32 * M : key_width;
#pragma unroll
    for (int j = 0; j < J; j++)
        take_values<M, IS_FULL>(s[j], from + j * dk, dk);
}

/* The rule for a warp's columns, and the state back to its place. `out` is the row's at the tile's
 * first column. */
template <int J, int M, bool IS_FULL>
static __device__ __forceinline__ void rule_single(const struct delta_params &p,
                                                   const struct single *x, float (&s)[J][M],
                                                   const float *y, float *out) {
    uint32_t warp = threadIdx.x / 32, dk = IS_FULL ? 32 * M : p.key_width;
    float q[M], k[M], v[J];
    take_row<J, M, IS_FULL>(y, dk, q, k, v);
    uint4 first = ld_shared_u32x4(x), second = ld_shared_u32x4(&x->ring);
    struct delta_key key = key_of<M>(p, q, k);
    struct delta_gate gate = {__uint_as_float(second.z), __uint_as_float(second.w), {0, 0}};
    int n = columns_of<J, M, IS_FULL>(x);
    rule<J, M>(s, q, k, v, key, gate, out + warp * J, n);
    float *state = p.state + ((uint64_t)first.y << 32 | first.x) + warp * J * dk;
    store_state<J, M>(s, state, dk, n, IS_FULL || p.is_even);
}

/* Dynamic shared memory: of each stage the warps' states (J, dk); y twice; the items; segments. */
template <int J> struct room {
    float *states, *y;
    uint32_t stage_values, y_values;
    struct single *items;
    struct io_segment *segments;
    __device__ __forceinline__ room(const struct delta_params &p, uint32_t dk, float *shared) {
        stage_values = DELTA_WARPS * J * dk;
        y_values = (2 * dk + DELTA_WARPS * J + 3) / 4 * 4;
        states = shared + threadIdx.x / 32 * J * dk;
        y = shared + DELTA_STAGES * stage_values;
        items = (struct single *)(y + 2 * y_values);
        segments = (struct io_segment *)(items + p.most_items);
    }
    __device__ __forceinline__ float *state(uint32_t i) const {
        return states + i % DELTA_STAGES * stage_values;
    }
};

/* Turn by turn; while one is computed the next ones' states and the next one's raw values are on
 * their way. A state is its warp's own business, y the block's: it is there twice, so that one
 * barrier a turn is enough. */
template <int J, int M, int W, bool IS_FULL>
static __device__ __forceinline__ void do_singles(const struct delta_params &p, float *shared,
                                                  uint32_t n_segments) {
    constexpr int C = M == 8 ? 2 : 1;
    uint32_t dk = IS_FULL ? 32 * M : p.key_width, n = 2 * dk + DELTA_WARPS * J;
    const struct room<J> room(p, dk, shared);
    const struct share share = share_of(p, n_segments);
    if (share.n == 0)
        return;
    make_items<J>(p, share, room.segments, room.items);
    uint32_t tile = share.first / n_segments, left = n_segments - share.first % n_segments;
    struct place place = place_of(p, p.cut, tile);
    struct lines<C, W> lines;
    struct raw<C, W> raw;
    float s[J][M];
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = 0; i < DELTA_STAGES; i++) {
        if (i < share.n)
            fetch_state<J, M, IS_FULL>(p, room.items + i, room.state(i));
        cp_async_commit();
    }
    load_taps<C, W>(p, place, n, lines);
    load_raw<C, W>(p, room.items, lines, raw);
    make_gates(p, share, room.items);
#pragma unroll 1
    for (uint32_t i = 0; i < share.n; i++) {
        const struct single *x = room.items + i;
        float *y = room.y + i % 2 * room.y_values;
        bool is_single = x->row != NO_ROW;
        float *out = p.out + (uint64_t)x->row * p.out_stride + place.head * p.value_width +
                     place.first_column;
        if (is_single)
            conv_single<C, W>(p, n, lines, raw, y);
        __syncthreads();
        if (i + 1 < share.n) {
            if (--left == 0) {
                left = n_segments;
                place = place_of(p, p.cut, ++tile);
                load_taps<C, W>(p, place, n, lines);
            }
            load_raw<C, W>(p, x + 1, lines, raw);
        }
        cp_async_wait<DELTA_STAGES - 1>();
        __syncwarp();
        take_state<J, M, IS_FULL>(s, room.state(i), dk);
        __syncwarp();
        if (i + DELTA_STAGES < share.n)
            fetch_state<J, M, IS_FULL>(p, x + DELTA_STAGES, room.state(i));
        cp_async_commit();
        if (is_single)
            rule_single<J, M, IS_FULL>(p, x, s, y, out);
    }
    cp_async_wait<0>();
    __syncthreads();
}

/* All that there may be, so that the header's number is not waited for. */
template <int J, int M>
static __device__ __forceinline__ void bring_segments(const struct delta_params &p, float *shared) {
    const struct room<J> room(p, p.key_width, shared);
    for (uint32_t i = threadIdx.x; i < p.rows; i += THREADS)
        room.segments[i] = p.io.segments[i];
}

/* ---- single rows of few sequences ----------------------------------------------------------- */

/* A block has one tile, which follows from its number, and every so many-th segment: a turn each.
 * Of a turn: its segment, which may be a run and is then not done here, and the gate. */
struct turn {
    struct io_segment segment;
    struct delta_gate gate;
};

static_assert(sizeof(struct turn) == DELTA_TURN_BYTES, "turn");
static_assert(DELTA_FEW_ROWS <= 32, "a lane makes the gate of one");

/* In one piece, and where they stand: the compiler would have one wait for the other. */
static __device__ __forceinline__ struct io_segment load_segment(const struct io_segment *from) {
    uint4 g = ld_volatile_u32x4(from);
    return {g.x, g.y, g.z, g.w};
}

static __device__ __forceinline__ uint2 load_counts(const struct io_header *header) {
    return ld_volatile_u32x2(&header->n_rows);
}

static __device__ __forceinline__ struct io_segment look_at_segment(const struct turn *x) {
    uint4 g = ld_shared_u32x4(&x->segment);
    return {g.x, g.y, g.z, g.w};
}

template <int W>
static __device__ __forceinline__ struct reach reach_of(const struct io_segment &g) {
    return {g.slot * W, g.first_row, g.first_position % W, min(g.first_position, W - 1)};
}

/* Keys of 32 M values, full tiles, four taps. Before the wait: what the tile alone decides. */
template <int J, int M> struct few {
    static constexpr uint32_t W = 4, DK = 32 * M, N = 2 * DK + DELTA_WARPS * J;
    static constexpr uint32_t STATES = DELTA_WARPS * J * DK; /* values of a stage */
    static_assert(N <= THREADS && DELTA_STAGES == 2, "few");

    struct lines<1, W> lines;
    uint32_t first, step; /* segments of this block */
    float *own, *y;       /* shared memory: the warp's part of the first stage; y, three times */
    struct turn *turns;
    float *state, *out;        /* of slot 0, and of row 0, at the warp's first column */
    const float *alpha, *beta; /* of row 0 */
    float a, dt;
    bool is_last; /* the warp that has nothing to convolve makes the gates */

    __device__ __forceinline__ few(const struct delta_params &p, float *shared) {
        uint32_t tiles = p.value_heads * p.cut.tiles, lane = blockIdx.x / tiles;
        uint32_t warp = threadIdx.x / 32;
        struct place at = place_of(p, p.cut, blockIdx.x - lane * tiles);
        uint32_t column = at.first_column + warp * J, value = at.head * p.value_width + column;
        load_taps<1, W>(p, at, N, lines);
        is_last = warp == DELTA_WARPS - 1;
        a = is_last ? ld_no_allocate_f32(p.a + at.head) : 0;
        dt = is_last ? ld_no_allocate_f32(p.dt + at.head) : 0;
        step = p.lanes;
        first = lane < step ? lane : p.rows; /* a block without a tile is here for runs */
        own = shared + warp * J * DK;
        y = shared + DELTA_STAGES * STATES;
        turns = (struct turn *)(y + 3 * N);
        state = p.state + (uint64_t)value * DK;
        out = p.out + value;
        alpha = p.in + p.alpha_column + at.head, beta = p.in + p.beta_column + at.head;
    }

    __device__ __forceinline__ const struct io_segment *segment(const struct delta_params &p,
                                                                uint32_t i) const {
        return p.io.segments + min(first + i * step, p.rows - 1);
    }

    __device__ __forceinline__ bool has(uint32_t i, uint32_t n_segments) const {
        return first + i * step < n_segments;
    }

    /* The first two turns: all that is asked for goes out before anything is waited for; windows
     * first, they are little. Then y of both, and the gates of all turns, one a lane: their chain
     * of sums is too long for every turn. The counts of rows and segments. */
    __device__ __forceinline__ uint2 begin(const struct delta_params &p) {
        uint32_t lane = threadIdx.x % 32;
        struct io_segment g[2] = {load_segment(segment(p, 0)), load_segment(segment(p, 1))};
        struct turn mine = {};
        if (is_last)
            mine.segment = load_segment(segment(p, lane));
        uint2 n = load_counts(p.io.header);
        struct raw<1, W> raw[2];
        bool is_single[2], has_gate = is_last && has(lane, n.y) && mine.segment.n_rows == 1;
        float x = 0, b = 0;
        if (has_gate)
            x = ld_no_allocate_f32(alpha + mine.segment.first_row * p.in_stride),
            b = ld_no_allocate_f32(beta + mine.segment.first_row * p.in_stride);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            is_single[i] = has(i, n.y) && g[i].n_rows == 1;
            if (is_single[i])
                load_raw<1, W>(p, reach_of<W>(g[i]), lines, raw[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            if (is_single[i])
                copy_state<J, M>(state + g[i].slot * p.state_stride, own + i * STATES);
            cp_async_commit();
        }
        if (has_gate)
            mine.gate = gate_of(x, b, a, dt);
        if (is_last && has(lane, n.y))
            turns[lane] = mine;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            if (is_single[i])
                conv_single<1, W>(p, N, lines, raw[i], y + i * N);
        __syncthreads();
        return n;
    }

    /* A turn's y is there before its state. The row two turns on is asked for before the state is
     * waited for, and convolved behind the rule: into the y that nobody has read since the last
     * barrier. */
    __device__ __forceinline__ void run(const struct delta_params &p, uint32_t n_segments) {
        uint32_t now = 0; /* y of this turn */
#pragma unroll 1
        for (uint32_t i = 0; has(i, n_segments); i++) {
            struct io_segment g = look_at_segment(turns + i);
            bool is_single = g.n_rows == 1, has_next = has(i + 2, n_segments), has_raw = false;
            struct io_segment next = {};
            struct raw<1, W> raw;
            float q[M], k[M], v[J], s[J][M];
            if (has_next) {
                next = look_at_segment(turns + i + 2);
                has_raw = next.n_rows == 1;
                if (has_raw)
                    load_raw<1, W>(p, reach_of<W>(next), lines, raw);
            }
            take_row<J, M, true>(y + now, DK, q, k, v);
            struct delta_key key = key_of<M>(p, q, k);
            uint2 gate = ld_shared_u32x2(&turns[i].gate);
            float *stage = own + i % 2 * STATES;
            cp_async_wait<1>();
            __syncwarp();
            take_state<J, M, true>(s, stage, DK);
            __syncwarp();
            if (has_raw)
                copy_state<J, M>(state + next.slot * p.state_stride, stage);
            cp_async_commit();
            if (is_single) {
                rule<J, M>(s, q, k, v, key,
                           {__uint_as_float(gate.x), __uint_as_float(gate.y), {0, 0}},
                           out + g.first_row * p.out_stride, J);
                store_state<J, M>(s, state + g.slot * p.state_stride, DK, J, true);
            }
            if (has_next) {
                if (has_raw)
                    conv_single<1, W>(p, N, lines, raw, y + (now ? now - N : 2 * N));
                __syncthreads();
            }
            now = now == 2 * N ? 0 : now + N;
        }
    }
};

/* ---- the kernels ---------------------------------------------------------------------------- */

template <int J, int M>
static __device__ __forceinline__ void delta_many(const struct delta_params &p) {
    extern __shared__ float4 aligned[];
    float *shared = (float *)aligned;
    pdl_wait(p.io);
    bring_segments<J, M>(p, shared);
    uint32_t n_rows = p.io.header->n_rows, n_segments = p.io.header->n_segments;
    __syncthreads();
    bool has_runs = n_rows != n_segments;
    if (has_runs)
        convolve_runs<M, false>(p);
    if (p.is_full && p.conv_width == 4)
        do_singles<J, M, 4, true>(p, shared, n_segments);
    else
        do_singles<J, M, 8, false>(p, shared, n_segments);
    if (!has_runs)
        return;
    if (p.run_cut.columns == 1)
        do_runs<1, M>(p, shared);
    else if (p.run_cut.columns == 2)
        do_runs<2, M>(p, shared);
    else
        do_runs<4, M>(p, shared);
    leave_counters(p);
}

template <int J, int M>
static __device__ __forceinline__ void delta_few(const struct delta_params &p) {
    extern __shared__ float4 aligned[];
    float *shared = (float *)aligned;
    struct few<J, M> few(p, shared);
    pdl_wait(p.io);
    uint2 n = few.begin(p);
    few.run(p, n.y);
    if (n.x == n.y)
        return;
    convolve_runs<M, true>(p); /* behind its barriers nobody reads y any more */
    do_runs<DELTA_FEW_RUN, M>(p, shared);
    leave_counters(p);
}

/* For J columns a warp of single rows. */
#define KERNELS(WAY, J, KEY)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        delta_##WAY##_##J##_##KEY(const __grid_constant__ struct delta_params p) {                 \
        pdl_launch_dependents();                                                                   \
        delta_##WAY<J, KEY / 32>(p);                                                               \
    }
KERNELS(many, 2, 128)
KERNELS(many, 4, 128)
KERNELS(many, 1, 256)
KERNELS(many, 2, 256)
KERNELS(few, 2, 128)
KERNELS(few, 4, 128)
