/* delta_scan.cu - DELTA of prefill segments in plans of more than 32 rows. The formula is in
 * delta.cuh. Two kernels: what a row needs of its own is computed for all rows at once, then the
 * rule runs over a segment's rows one after the other.
 *
 * delta_conv_KEY: convolution, SiLU, norms and gates of all rows of prefill segments, into
 * workspace.
 *   grid    (heads / 8, rows / 8)
 *   block   8 warps, 8 rows
 *   warp    a key head's q and k, or a value head's v; a lane has 4 channels of every 128, and
 *           keeps their weights and last 3 inputs in registers from row to row
 *
 * delta_scan_C_KEY: the rule, and then the window.
 *   grid    a block an SM; an item is (segment, head tile of 16 C columns)
 *   block   two groups of 4 warps, which take items of their own: with one segment only the first
 *           group has some, and every SM has one, however blocks were placed
 *   group   rows come 8 at a time through 4 stages in shared memory, one barrier a stage
 *   warp    4 C columns, a column in 8 lanes: lane i has the values that lanes i, i + 8, i + 16 and
 *           i + 24 have in decode, where a column has 32. Their sums are added here in the order in
 *           which they are added there, the first two levels in the lane, so the bits are the same
 *           with 3 shuffles a sum instead of 5, and none to hand the sum back.
 *
 * What a row costs: 4 instructions a value of the state in any case, 128 of a lane with C = 2; and
 * every lane has to get q and k from shared memory, 32 values, of which a cycle brings 32 to an SM
 * whether lanes read the same or not. So two columns of a lane are better than one where there are
 * tiles enough. The next row's q and k are loaded after this row's sums of k: loads before them
 * delay the shuffles that all wait for. us a layer of qwen35-4b on an H200, both kernels, one
 * prompt of 128, 1024 and 4096 rows: 52, 241, 896; delta_batch took 62, 438, 1718. */
#include "backend/cuda/kernels/delta.cuh"

enum {
    CONV_WARPS = DELTA_CONV_WARPS,
    ROWS = DELTA_SCAN_ROWS,
    GROUP_THREADS = 32 * DELTA_SCAN_WARPS
};

/* Prefill segments are those of several rows; all are where decode segments have no kernel of their
 * own. */
static __device__ __forceinline__ bool is_scanned(const struct delta_params &p, uint32_t n_rows) {
    return n_rows > 1 || p.scans_all;
}

/* ---- the convolution ------------------------------------------------------------------------- */

/* Where a row is, in registers of one lane. */
struct scan_row {
    uint32_t position, cell, before; /* before: rows of its segment before it */
    bool is_scanned;
};

static __device__ __forceinline__ struct scan_row scan_row_of(const struct delta_params &p,
                                                              uint32_t row, uint32_t n_rows) {
    struct scan_row at = {};
    if (row < n_rows) {
        struct io_row io = p.io.rows[row];
        struct io_segment g = p.io.segments[io.segment];
        at.position = io.position, at.cell = g.cell;
        at.before = io.position - g.first_position;
        at.is_scanned = is_scanned(p, g.n_rows);
    }
    return at;
}

static __device__ __forceinline__ struct scan_row from_lane(const struct scan_row &at, int lane) {
    return {__shfl_sync(0xffffffffu, at.position, lane), __shfl_sync(0xffffffffu, at.cell, lane),
            __shfl_sync(0xffffffffu, at.before, lane),
            __shfl_sync(0xffffffffu, at.is_scanned, lane) != 0};
}

/* The row `back` before a row; NULL: before position 0. */
static __device__ __forceinline__ const float *
input_before(const struct delta_params &p, const struct scan_row &at, uint32_t row, uint32_t back) {
    return back > at.position  ? NULL
           : back <= at.before ? p.in + (uint64_t)(row - back) * p.in_stride
                               : window_at(p, at.cell, at.position - back);
}

/* 4 channels of a lane, with a conv width of 4: weights, and the inputs of the last three rows,
 * zeros before position 0. */
struct channels4 {
    uint32_t channel;
    bool is_inside;
    float weights[4][4], x[3][4];

    __device__ __forceinline__ void begin(const struct delta_params &p, uint32_t c, uint32_t end) {
        channel = c, is_inside = c < end;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float4 w = make_float4(0, 0, 0, 0);
            if (is_inside)
                w = *(const float4 *)(p.conv_weights + (uint64_t)(c + i) * 4);
            unpack4(w, weights[i]);
        }
    }

    __device__ __forceinline__ void load_history(const struct delta_params &p,
                                                 const struct scan_row &at, uint32_t row) {
#pragma unroll
        for (int t = 0; t < 3; t++) {
            const float *from = input_before(p, at, row, 3 - t);
            float4 v = make_float4(0, 0, 0, 0);
            if (from && is_inside)
                v = *(const float4 *)(from + channel);
            unpack4(v, x[t]);
        }
    }

    __device__ __forceinline__ float4 load(const float *in) const {
        return is_inside ? *(const float4 *)(in + channel) : make_float4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void run(float4 input, float *y) {
        float now[4];
        unpack4(input, now);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum = 0;
#pragma unroll
            for (int t = 0; t < 3; t++)
                sum = fmaf(weights[i][t], x[t][i], sum);
            y[i] = silu_approx(fmaf(weights[i][3], now[i], sum));
            x[0][i] = x[1][i], x[1][i] = x[2][i], x[2][i] = now[i];
        }
    }
};

/* One channel of any conv width; 0 from `end` on. */
static __device__ __noinline__ float convolve_any(const struct delta_params &p,
                                                  const struct scan_row &at, uint32_t row,
                                                  uint32_t c, uint32_t end) {
    float sum = 0;
    if (c >= end)
        return 0;
    for (uint32_t back = p.conv_width; back-- > 0;) {
        const float *from = input_before(p, at, row, back);
        if (from)
            sum = fmaf(p.conv_weights[(uint64_t)c * p.conv_width + p.conv_width - 1 - back],
                       from[c], sum);
    }
    return silu_approx(sum);
}

/* Convolves N vectors of 4 channels of a lane for the warp's rows that are scanned, and calls
 * store(row, y) for each. IS_VEC4: by channels4, the next row's inputs loaded ahead. */
template <int N, bool IS_VEC4, class STORE>
static __device__ __forceinline__ void
convolve_rows(const struct delta_params &p, const uint32_t (&first)[N], const uint32_t (&end)[N],
              uint32_t first_row, const struct scan_row &rows, STORE store) {
    struct channels4 channels[IS_VEC4 ? N : 1];
    const float *in = p.in + (uint64_t)first_row * p.in_stride;
    float4 next[N];
    if (IS_VEC4)
#pragma unroll
        for (int n = 0; n < N; n++) {
            channels[n].begin(p, first[n], end[n]);
            next[n] = channels[n].load(in);
        }
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) {
        struct scan_row at = from_lane(rows, r);
        uint32_t row = first_row + r;
        float4 x[N];
        float y[4 * N];
        in += p.in_stride;
        if (IS_VEC4)
#pragma unroll
            for (int n = 0; n < N; n++) {
                x[n] = next[n];
                if (r + 1 < ROWS && row + 1 < p.max_rows)
                    next[n] = channels[n].load(in);
            }
        if (!at.is_scanned)
            continue;
        if constexpr (IS_VEC4) {
            if (r == 0 || at.before == 0)
#pragma unroll
                for (int n = 0; n < N; n++)
                    channels[n].load_history(p, at, row);
#pragma unroll
            for (int n = 0; n < N; n++)
                channels[n].run(x[n], y + 4 * n);
        } else {
#pragma unroll
            for (int i = 0; i < 4 * N; i++)
                y[i] = convolve_any(p, at, row, first[i / 4] + i % 4, end[i / 4]);
        }
        store(row, y);
    }
}

/* q and k of a key head, padded with zeros, and their norms. */
template <int M, bool IS_VEC4>
static __device__ __forceinline__ void convolve_qk(const struct delta_params &p, uint32_t head,
                                                   uint32_t first_row,
                                                   const struct scan_row &rows) {
    constexpr int N = M / 2; /* vectors: M / 4 of q, then of k */
    uint32_t first[N], end[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint32_t channel = ((n < N / 2 ? 0 : p.key_heads) + head) * p.key_width;
        first[n] = channel + value_index(n % (N / 2) * 4);
        end[n] = channel + p.key_width;
    }
    convolve_rows<N, IS_VEC4>(p, first, end, first_row, rows, [&](uint32_t row, const float *y) {
        uint64_t item = (uint64_t)head * p.max_rows + row;
        float *to = p.conv_qk + item * 2 * 32 * M, q[M], k[M];
#pragma unroll
        for (int m = 0; m < M; m++)
            q[m] = y[m], k[m] = y[M + m];
#pragma unroll
        for (int m = 0; m < M; m += 4) {
            *(float4 *)(to + value_index(m)) = make_float4(q[m], q[m + 1], q[m + 2], q[m + 3]);
            *(float4 *)(to + 32 * M + value_index(m)) =
                make_float4(k[m], k[m + 1], k[m + 2], k[m + 3]);
        }
        struct delta_norms norms = norms_of<M>(p, q, k);
        if (threadIdx.x % 32 == 0)
            p.norms[item] = norms;
    });
}

/* v of a value head, by head tiles, and its gates. */
template <bool IS_VEC4>
static __device__ __forceinline__ void convolve_v(const struct delta_params &p, uint32_t head,
                                                  uint32_t first_row, const struct scan_row &rows) {
    uint32_t lane = threadIdx.x % 32, tile = DELTA_WARPS * p.scan_tiling.columns;
    uint32_t channel = 2 * p.key_heads * p.key_width + head * p.value_width;
    if (lane < ROWS && rows.is_scanned) {
        const float *in = p.in + (uint64_t)(first_row + lane) * p.in_stride;
        p.gates[(uint64_t)head * p.max_rows + first_row + lane] =
            gate_of(in[p.alpha_column + head], in[p.beta_column + head], p.a[head], p.dt[head]);
    }
    for (uint32_t i = 0; i < p.padded_value; i += 128) {
        uint32_t column = i + 4 * lane;
        uint32_t first[1] = {channel + column}, end[1] = {channel + p.value_width};
        uint64_t at = (uint64_t)head * p.scan_tiling.tiles + column / tile;
        float *to = p.conv_v + at * p.max_rows * tile + column % tile;
        convolve_rows<1, IS_VEC4>(
            p, first, end, first_row, rows, [&](uint32_t row, const float *y) {
                if (column < p.padded_value)
                    *(float4 *)(to + (uint64_t)row * tile) = make_float4(y[0], y[1], y[2], y[3]);
            });
    }
}

template <int M> static __device__ __forceinline__ void delta_conv(const struct delta_params &p) {
    pdl_wait(p.io);
    uint32_t n_rows = p.io.header->n_rows, first_row = blockIdx.y * ROWS, lane = threadIdx.x % 32;
    uint32_t head = blockIdx.x * CONV_WARPS + threadIdx.x / 32;
    if (first_row >= n_rows || head >= p.key_heads + p.value_heads)
        return;
    struct scan_row rows = scan_row_of(p, lane < ROWS ? first_row + lane : n_rows, n_rows);
    if (!__any_sync(0xffffffffu, rows.is_scanned))
        return;
    bool is_vec4 = p.conv_width == 4 && p.is_conv_vec4 && p.value_width % 4 == 0;
    if (head >= p.key_heads) {
        if (is_vec4)
            convolve_v<true>(p, head - p.key_heads, first_row, rows);
        else
            convolve_v<false>(p, head - p.key_heads, first_row, rows);
    } else if (is_vec4) {
        convolve_qk<M, true>(p, head, first_row, rows);
    } else {
        convolve_qk<M, false>(p, head, first_row, rows);
    }
}

/* ---- the rule -------------------------------------------------------------------------------- */

/* A thread's number in its group. */
static __device__ __forceinline__ uint32_t group_thread(void) {
    return threadIdx.x % GROUP_THREADS;
}

static __device__ __forceinline__ void group_sync(void) {
    any_barrier_sync(1 + threadIdx.x / GROUP_THREADS, GROUP_THREADS);
}

/* Rows in shared memory. */
template <int C, int M> struct scan_stage {
    static constexpr int KEY = 32 * M, TILE = DELTA_WARPS * C;
    float qk[ROWS][2][KEY], v[ROWS][TILE];
    struct delta_norms norms[ROWS];
    struct delta_gate gates[ROWS];
};

/* A thread's part of the copies of a segment's rows, stage after stage: 16 bytes at a time, q and k
 * by all threads, then v, norms and gates by the first ones. */
template <int C, int M> struct stage_copy {
    using S = struct scan_stage<C, M>;
    static constexpr uint32_t QK_ROW = S::KEY / 2, V_ROW = S::TILE / 4, V = ROWS * V_ROW;
    static constexpr uint32_t QK_EACH = ROWS * QK_ROW / GROUP_THREADS;
    static_assert(GROUP_THREADS % QK_ROW == 0 || QK_ROW % GROUP_THREADS == 0, "stage_copy");
    static_assert(V + 2 * ROWS <= GROUP_THREADS, "stage_copy");
    const float4 *qk, *other;
    uint32_t other_to, other_row, other_step; /* step: from a stage to the next, in vectors */

    __device__ __forceinline__ stage_copy(const struct delta_params &p,
                                          const struct head_tile &tile, uint32_t row) {
        uint32_t t = group_thread();
        uint64_t key = (uint64_t)tile.key_head * p.max_rows + row;
        uint64_t value = (uint64_t)tile.head * p.max_rows + row;
        uint64_t of_tile = (uint64_t)tile.head * p.scan_tiling.tiles + tile.first_column / S::TILE;
        qk = (const float4 *)(p.conv_qk + key * 2 * S::KEY) + t;
        if (t < V) {
            other = (const float4 *)(p.conv_v + (of_tile * p.max_rows + row) * S::TILE) + t;
            other_to = (uint32_t)offsetof(S, v) + 16 * t;
            other_row = t / V_ROW, other_step = V;
        } else {
            bool is_norm = t < V + ROWS;
            other_row = (t - V) % ROWS, other_step = ROWS;
            other = is_norm ? (const float4 *)(p.norms + key) : (const float4 *)(p.gates + value);
            other += other_row;
            other_to =
                (uint32_t)(is_norm ? offsetof(S, norms) : offsetof(S, gates)) + 16 * other_row;
            other_row = t < V + 2 * ROWS ? other_row : ROWS; /* none */
        }
    }

    /* Starts the copies of a stage's n rows and goes on to the next. */
    __device__ __forceinline__ void next(S &to, uint32_t n) {
        uint32_t at = smem_addr(&to), t = group_thread();
#pragma unroll
        for (uint32_t i = 0; i < QK_EACH; i++)
            if ((i * GROUP_THREADS + t) / QK_ROW < n)
                cp_async_16(at + 16 * (i * GROUP_THREADS + t), qk + i * GROUP_THREADS);
        if (other_row < n)
            cp_async_16(at + other_to, other);
        qk += ROWS * QK_ROW, other += other_step;
    }
};

/* Which of a column's dk values is value m of a lane's part l: see the file's head. */
static __device__ __forceinline__ uint32_t part_index(int l, int m) {
    return m / 4 * 128 + (threadIdx.x % 8 + 8 * l) * 4 + m % 4;
}

/* What a lane adds to a column's dot product: its four parts, in the order in which warp_sum adds
 * those of lanes 16 and 8 apart. */
template <int M>
static __device__ __forceinline__ float lane_sum(const float (&s)[4][M], const float (&k)[4][M]) {
    float x[4] = {0, 0, 0, 0};
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int l = 0; l < 4; l++)
            x[l] = fmaf(s[l][m], k[l][m], x[l]);
    return (x[0] + x[2]) + (x[1] + x[3]);
}

/* What a lane needs of a row, in registers. */
template <int C, int M> struct row_values {
    float q[4][M], k[4][M], v[C];
    float k_factor;
    float2 gate; /* decay, beta */

    /* Volatile loads, which stay where they are. */
    __device__ __forceinline__ void load(const struct scan_stage<C, M> &stage, uint32_t r) {
        uint32_t column = group_thread() / 32 * 4 * C + threadIdx.x % 32 / 8;
        uint32_t qk = smem_addr(&stage.qk[r][0][threadIdx.x % 8 * 4]);
        uint32_t values = smem_addr(&stage.v[r][column]);
#pragma unroll
        for (int i = 0; i < 4 * M; i += 4)
            ld_shared_f32x4(qk + 4 * (32 * M + i % M / 4 * 128 + i / M * 32), &k[i / M][i % M]);
#pragma unroll
        for (int c = 0; c < C; c++)
            v[c] = ld_shared_f32(values + 16 * c);
        k_factor = ld_shared_f32(smem_addr(&stage.norms[r].k_factor));
        gate = ld_shared_f32x2(smem_addr(&stage.gates[r]));
#pragma unroll
        for (int i = 0; i < 4 * M; i += 4)
            ld_shared_f32x4(qk + 4 * (i % M / 4 * 128 + i / M * 32), &q[i / M][i % M]);
    }
};

template <int C, int M> struct column_states {
    float s[C][4][M];

    /* Column c of the first n is at c * 4 columns from `from`. */
    template <class MOVE> __device__ __forceinline__ void each(MOVE move) {
#pragma unroll
        for (int i = 0; i < C * 4 * M; i += 4)
            move(i / (4 * M), part_index(i / M % 4, i % M), &s[i / (4 * M)][i / M % 4][i % M]);
    }

    __device__ __forceinline__ void load(const float *from, uint32_t dk, int n, bool is_vec4) {
        each([&](int c, uint32_t at, float *x) {
            const float *column = from + (uint64_t)c * 4 * dk;
            x[0] = x[1] = x[2] = x[3] = 0;
            if (c >= n || at >= dk)
                return;
            if (is_vec4) {
                unpack4(ld_no_allocate_f32x4(column + at), x);
            } else {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (at + e < dk)
                        x[e] = ld_no_allocate_f32(column + at + e);
            }
        });
    }

    __device__ __forceinline__ void store(float *to, uint32_t dk, int n, bool is_vec4) {
        each([&](int c, uint32_t at, float *x) {
            float *column = to + (uint64_t)c * 4 * dk;
            if (c >= n || at >= dk)
                return;
            if (is_vec4) {
                __stcs((float4 *)(column + at), make_float4(x[0], x[1], x[2], x[3]));
            } else {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (at + e < dk)
                        __stcs(column + at + e, x[e]);
            }
        });
    }

    /* One row; q . S and d of the lane's columns, of which scan_rows makes the output. load_next()
     * loads the next row: after this one's sums of k, which loads before them would delay. */
    template <class LOAD>
    __device__ __forceinline__ void rule(const struct row_values<C, M> &row, float (&qs)[C],
                                         float (&d)[C], LOAD load_next) {
        float ks[C];
#pragma unroll
        for (int c = 0; c < C; c++)
            ks[c] = lane_sum<M>(s[c], row.k);
#pragma unroll
        for (int far = 4; far > 0; far /= 2)
#pragma unroll
            for (int c = 0; c < C; c++)
                ks[c] += __shfl_xor_sync(0xffffffffu, ks[c], far);
#pragma unroll
        for (int c = 0; c < C; c++)
            qs[c] = lane_sum<M>(s[c], row.q);
        load_next();
#pragma unroll
        for (int far = 4; far > 0; far /= 2)
#pragma unroll
            for (int c = 0; c < C; c++)
                qs[c] += __shfl_xor_sync(0xffffffffu, qs[c], far);
#pragma unroll
        for (int c = 0; c < C; c++) {
            float decay = row.gate.x, scaled = __fmul_rn(ks[c], row.k_factor);
            d[c] = __fmul_rn(row.gate.y, fmaf(-decay, scaled, row.v[c]));
            float dk = __fmul_rn(d[c], row.k_factor);
#pragma unroll
            for (int l = 0; l < 4; l++)
#pragma unroll
                for (int m = 0; m < M; m++)
                    s[c][l][m] = fmaf(dk, row.k[l][m], __fmul_rn(decay, s[c][l][m]));
        }
    }
};

/* A tile of a segment, in one lane: its columns of every cell's state, and of the first row's
 * output. */
template <int C> struct scan_item {
    struct head_tile tile;
    struct io_segment segment;
    float *state, *out;
    int n_columns; /* 4 apart */

    __device__ __forceinline__ scan_item(const struct delta_params &p, uint32_t i) {
        uint32_t tiles = p.value_heads * p.scan_tiling.tiles;
        segment = p.io.segments[i / tiles];
        tile = head_tile_of(p, p.scan_tiling, i % tiles);
        uint32_t column = tile.first_column + group_thread() / 32 * 4 * C + threadIdx.x % 32 / 8;
        n_columns = 0;
#pragma unroll
        for (int c = 0; c < C; c++)
            n_columns += column + 4 * c < p.value_width;
        uint64_t value = (uint64_t)tile.head * p.value_width + (n_columns ? column : 0);
        state = p.state + value * p.key_width;
        out = p.out + segment.first_row * p.out_stride + value;
    }

    /* Where the state after row `row` of the segment is stored. */
    __device__ __forceinline__ uint32_t cell_after(const struct delta_params &p,
                                                   uint32_t row) const {
        return row < segment.n_rows ? p.io.to[segment.first_row + row] : IO_NO_CELL;
    }
};

/* The rows of a stage, from `first` of the segment on; the first one's values are in rows[0], and
 * at the end those of the next stage's first one are. Lane i of a column keeps what row i of 8 has
 * given, and stores its output to `out` after the last; `to` is the cell that the state after row i
 * goes to. */
template <int C, int M>
static __device__ __forceinline__ void
scan_rows(const struct delta_params &p, const struct scan_item<C> &item,
          struct column_states<C, M> &states, struct row_values<C, M> (&rows)[2],
          const struct scan_stage<C, M> &stage, const struct scan_stage<C, M> &next_stage,
          uint32_t first, uint32_t to, float *out) {
    uint32_t own = threadIdx.x % 8, n = min((uint32_t)ROWS, item.segment.n_rows - first);
    float kept_qs[C] = {}, kept_d[C] = {};
    auto row = [&](uint32_t r, bool is_last, struct row_values<C, M> &now,
                   struct row_values<C, M> &next) {
        float qs[C], d[C];
        states.rule(now, qs, d, [&] {
            if (is_last)
                next.load(next_stage, 0);
            else
                next.load(stage, r + 1);
        });
#pragma unroll
        for (int c = 0; c < C; c++)
            kept_qs[c] = r == own ? qs[c] : kept_qs[c], kept_d[c] = r == own ? d[c] : kept_d[c];
    };
    if (n == ROWS && !__any_sync(0xffffffffu, to != IO_NO_CELL)) {
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++)
            row(r, r + 1 == ROWS, rows[r % 2], rows[(r + 1) % 2]);
    } else {
#pragma unroll 1
        for (uint32_t r = 0; r < n; r++) {
            row(r, r + 1 == n, rows[0], rows[1]);
            rows[0] = rows[1];
            uint32_t cell = __shfl_sync(0xffffffffu, to, r);
            if (cell == IO_NO_CELL)
                continue;
            states.store(item.state + cell * p.state_stride, p.key_width, item.n_columns,
                         p.is_state_vec4);
            store_window(p, item.tile, item.segment, first + r, cell, DELTA_WARPS * C,
                         group_thread(), GROUP_THREADS);
        }
    }
    float4 norms;
    ld_shared_f32x4(smem_addr(&stage.norms[own]), &norms.x);
    float decay = ld_shared_f32(smem_addr(&stage.gates[own].decay));
#pragma unroll
    for (int c = 0; c < C; c++)
        if (own < n && c < item.n_columns)
            out[4 * c] = fmaf(decay, __fmul_rn(kept_qs[c], norms.x), __fmul_rn(norms.z, kept_d[c]));
}

/* A stage is there one stage before its turn, since its first row is loaded ahead. */
template <int C, int M>
static __device__ __forceinline__ void scan_segment(const struct delta_params &p,
                                                    const struct scan_item<C> &item,
                                                    struct scan_stage<C, M> *stages) {
    constexpr uint32_t STAGES = DELTA_SCAN_STAGES;
    uint32_t n_rows = item.segment.n_rows, own = threadIdx.x % 8;
    struct stage_copy<C, M> copies(p, item.tile, item.segment.first_row);
    auto copy = [&](uint32_t i) {
        if (i * ROWS < n_rows)
            copies.next(stages[i % STAGES], min((uint32_t)ROWS, n_rows - i * ROWS));
        cp_async_commit();
    };
    for (uint32_t i = 0; i < STAGES - 1; i++)
        copy(i);
    struct column_states<C, M> states;
    states.load(item.state + item.segment.cell * p.state_stride, p.key_width, item.n_columns,
                p.is_state_vec4);
    uint32_t next_to = item.cell_after(p, own);
    float *out = item.out + own * p.out_stride;
    struct row_values<C, M> rows[2];
    cp_async_wait<STAGES - 2>();
    group_sync();
    rows[0].load(stages[0], 0);
    for (uint32_t i = 0; i * ROWS < n_rows; i++, out += ROWS * p.out_stride) {
        uint32_t to = next_to;
        next_to = item.cell_after(p, (i + 1) * ROWS + own);
        cp_async_wait<STAGES - 3>();
        group_sync(); /* stage i + 1 is there, and all are done with the one before i */
        copy(i + STAGES - 1);
        scan_rows<C, M>(p, item, states, rows, stages[i % STAGES], stages[(i + 1) % STAGES],
                        i * ROWS, to, out);
    }
    cp_async_wait<0>();
    group_sync(); /* the next item overwrites the stages */
}

template <int C, int M>
static __device__ __forceinline__ void delta_scan(const struct delta_params &p) {
    extern __shared__ float4 dynamic[];
    pdl_wait(p.io);
    uint32_t n_segments = p.io.header->n_segments, tiles = p.value_heads * p.scan_tiling.tiles;
    if (p.io.header->n_rows == n_segments && !p.scans_all)
        return;
    uint32_t group = threadIdx.x / GROUP_THREADS;
    struct scan_stage<C, M> *stages =
        (struct scan_stage<C, M> *)dynamic + group * DELTA_SCAN_STAGES;
    for (uint32_t i = blockIdx.x + group * gridDim.x; i < n_segments * tiles;
         i += blockDim.x / GROUP_THREADS * gridDim.x) {
        struct scan_item<C> item(p, i);
        if (is_scanned(p, item.segment.n_rows))
            scan_segment<C, M>(p, item, stages);
    }
}

#define CONV_KERNEL(KEY)                                                                           \
    extern "C" __global__ void __launch_bounds__(32 * CONV_WARPS)                                  \
        delta_conv_##KEY(const __grid_constant__ struct delta_params p) {                          \
        pdl_launch_dependents();                                                                   \
        delta_conv<KEY / 32>(p);                                                                   \
    }
CONV_KERNEL(128)
CONV_KERNEL(256)

#define SCAN_KERNEL(C, KEY)                                                                        \
    extern "C" __global__ void __launch_bounds__(DELTA_SCAN_GROUPS *GROUP_THREADS, 1)              \
        delta_scan_##C##_##KEY(const __grid_constant__ struct delta_params p) {                    \
        static_assert(sizeof(struct scan_stage<C, KEY / 32>) == DELTA_SCAN_STAGE_BYTES(C, KEY),    \
                      "scan_stage");                                                               \
        pdl_launch_dependents();                                                                   \
        delta_scan<C, KEY / 32>(p);                                                                \
    }
SCAN_KERNEL(1, 128)
SCAN_KERNEL(2, 128)
SCAN_KERNEL(1, 256)
