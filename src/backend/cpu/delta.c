/* delta.c - DELTA on the CPU: convolution window, gates and the gated delta rule.
 *
 *   y      = silu(conv(window, qkv));  q, k, v = y;  q, k = l2 normed, q / sqrt(dk)
 *   e      = exp(a * softplus(alpha + dt)),  b = sigmoid(beta)
 *   d[j]   = b * (v[j] - e * (k . S[j]))
 *   o[j]   = e * (q . S[j]) + (q . k) * d[j]
 *   S[j]   = e * S[j] + d[j] * k            j over dv; S[j] is a row of dk values
 *
 * First each thread convolves its share of the channels for all rows and stores their windows; then
 * it takes its share of (segment, value head) and runs the rule over the segment's rows, a few rows
 * S[j] at a time so that they stay in L1. S is computed in the cell that the last row stores to;
 * other rows that store copy it from there. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/vec.h"

enum {
    STATE_TILE = 32,  /* rows of S, 16 KB at dk = 128 */
    STATE_ROWS = 4,   /* that are multiplied before they are updated */
    STATE_AHEAD = 16, /* this many rows later is what is fetched */
};

#define DELTA_INLINE static inline __attribute__((always_inline))

/* On x86 eight vectors are a row of 128: the loops over them are unrolled. */
#if defined(__x86_64__) && defined(__clang__)
#define EACH_OF_ROW _Pragma("unroll")
#elif defined(__x86_64__)
#define EACH_OF_ROW _Pragma("GCC unroll 8")
#else
#define EACH_OF_ROW
#endif

/* ---- convolution -------------------------------------------------------------------------- */

/* A cell's entry for a position: the raw values of all channels. */
static float *window_entry(struct cpu_step *s, const struct op_delta *d, uint32_t cell,
                           uint64_t position) {
    uint64_t entry = (uint64_t)cell * d->conv_width + position % d->conv_width;
    return (float *)at(s, &d->window) + entry * d->window.dims[0];
}

/* The raw values of a position for the channels from `first` on; NULL before the beginning. */
static const float *raw_values(struct cpu_step *s, const struct op_delta *d,
                               const struct io_segment *g, int64_t position, uint32_t first) {
    if (position < 0)
        return NULL;
    if (position >= g->first_position)
        return row_of(s, &d->in, g->first_row + (uint64_t)(position - g->first_position)) + first;
    return window_entry(s, d, g->cell, (uint64_t)position) + first;
}

/* y = silu(sum over taps) for n channels. A tap before the beginning is NULL. */
static CLONES void convolve_row(float *y, const float *const *x, const float *const *taps,
                                uint32_t width, uint32_t n) {
    uint32_t c = 0;
    for (uint32_t whole = n / LANES * LANES; c < whole; c += LANES) {
        vec sum[VECS] = {{0}};
        for (uint32_t t = 0; t < width; t++) {
            if (!x[t])
                continue;
            EACH_VEC(u) {
                uint32_t i = c + (uint32_t)u * VEC_LANES;
                sum[u] += vec_load(taps[t] + i) * vec_load(x[t] + i);
            }
        }
        EACH_VEC(u) sum[u] *= vec_sigmoid(sum[u]);
        EACH_VEC(u) vec_store(y + c + u * VEC_LANES, sum[u]);
    }
    for (; c < n; c++) {
        float sum = 0;
        for (uint32_t t = 0; t < width; t++)
            sum += x[t] ? taps[t][c] * x[t][c] : 0;
        y[c] = sum / (1 + expf(-sum));
    }
}

static void convolve(struct cpu_step *s, const struct op_delta *d, const struct io_segment *g,
                     uint32_t row, uint32_t first, uint32_t n, float *y) {
    const float *x[8], *taps[8];
    for (uint32_t t = 0; t < d->conv_width; t++) {
        int64_t position = (int64_t)g->first_position + row + t - (int64_t)(d->conv_width - 1);
        x[t] = raw_values(s, d, g, position, first);
        taps[t] = s->op->taps + (uint64_t)t * d->window.dims[0] + first;
    }
    convolve_row(y, x, taps, d->conv_width, n);
}

/* The cell's window holds the raw values up to the row of the segment. In place, what came before
 * the segment is there already. */
static void store_window(struct cpu_step *s, const struct op_delta *d, const struct io_segment *g,
                         uint32_t row, uint32_t cell, uint32_t first, uint32_t n) {
    int64_t last = (int64_t)g->first_position + row, oldest = last - d->conv_width + 1;
    if (cell == g->cell && oldest < g->first_position)
        oldest = g->first_position;
    for (int64_t position = oldest; position <= last; position++) {
        const float *x = raw_values(s, d, g, position, first);
        if (x)
            memcpy(window_entry(s, d, cell, (uint64_t)position) + first, x, n * sizeof *x);
    }
}

static void store_windows(struct cpu_step *s, const struct op_delta *d, const struct io_segment *g,
                          uint32_t first, uint32_t n) {
    for (uint32_t row = 0; row < g->n_rows; row++)
        if (s->to[g->first_row + row] != IO_NO_CELL)
            store_window(s, d, g, row, s->to[g->first_row + row], first, n);
}

static void convolve_share(struct cpu_step *s, const struct op_delta *d) {
    uint32_t channels = d->window.dims[0];
    struct share share = share_of(s, channels, LANES);
    uint32_t n = share.end - share.begin;
    for (uint32_t i = 0; n && i < s->io->n_segments; i++) {
        const struct io_segment *g = &s->segments[i];
        for (uint32_t row = 0; row < g->n_rows && !is_cancelled(s); row++)
            convolve(s, d, g, row, share.begin, n,
                     s->b->conv + (uint64_t)(g->first_row + row) * channels + share.begin);
        store_windows(s, d, g, share.begin, n);
    }
}

/* ---- the rule ----------------------------------------------------------------------------- */

/* One row's part of the rule for a value head. */
struct delta_row {
    const float *k, *q; /* (dk), normed */
    float decay, beta, qk;
};

static void l2_norm(float *y, const float *x, float scale, uint32_t n) {
    float f = scale / sqrtf(row_dot(x, x, n) + 1e-6f);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * f;
}

static float softplus(float x) {
    return x > 20 ? x : log1pf(expf(x));
}

/* kq: 2 * dk values for k and q. */
static struct delta_row prepare(struct cpu_step *s, const struct op_delta *d, uint32_t row,
                                uint32_t head, float *kq) {
    uint32_t group = d->value_heads / d->key_heads, dk = d->key_width;
    uint32_t key_head = d->head_map == HEADS_TILED ? head % d->key_heads : head / group;
    const float *y = s->b->conv + (uint64_t)row * d->window.dims[0];
    const float *in = row_of(s, &d->in, row);
    float *q = kq, *k = kq + dk;
    l2_norm(q, y + key_head * dk, 1 / sqrtf((float)dk), dk);
    l2_norm(k, y + (d->key_heads + key_head) * dk, 1, dk);
    float a = ((const float *)at(s, &d->a))[head], dt = ((const float *)at(s, &d->dt))[head];
    return (struct delta_row){
        .k = k,
        .q = q,
        .decay = expf(a * softplus(in[d->alpha_column + head] + dt)),
        .beta = 1 / (1 + expf(-in[d->beta_column + head])),
        .qk = row_dot(q, k, dk),
    };
}

/* k . S[j] and q . S[j] of two rows: k and q are loaded once for both. */
DELTA_INLINE void dot_rows(const float *state, const struct delta_row *t, uint32_t dk, float *ks,
                           float *qs) {
    vec k_sums[2][VECS] = {{{0}}}, q_sums[2][VECS] = {{{0}}};
    EACH_OF_ROW for (uint32_t i = 0; i < dk; i += LANES) {
        __builtin_prefetch(state + i + STATE_AHEAD * dk);
        __builtin_prefetch(state + i + (STATE_AHEAD + 1) * dk);
        EACH_VEC(u) {
            vec k = vec_load(t->k + i + u * VEC_LANES), q = vec_load(t->q + i + u * VEC_LANES);
            vec x = vec_load(state + i + u * VEC_LANES);
            vec y = vec_load(state + dk + i + u * VEC_LANES);
            k_sums[0][u] += x * k;
            q_sums[0][u] += x * q;
            k_sums[1][u] += y * k;
            q_sums[1][u] += y * q;
        }
    }
    UNROLL_FOUR for (int r = 0; r < 2; r++) ks[r] = vec_sum(k_sums[r]), qs[r] = vec_sum(q_sums[r]);
}

/* S[j] of two rows, with what they gain. */
DELTA_INLINE void update_rows(float *state, const struct delta_row *t, uint32_t dk,
                              const float *delta) {
    const float decay = t->decay;
    EACH_OF_ROW for (uint32_t i = 0; i < dk; i += LANES) EACH_VEC(u) {
        vec k = vec_load(t->k + i + u * VEC_LANES);
        float *x = state + i + u * VEC_LANES, *y = x + dk;
        vec_store(x, vec_load(x) * decay + k * delta[0]);
        vec_store(y, vec_load(y) * decay + k * delta[1]);
    }
}

/* Rows [0, n) of S, a multiple of STATE_ROWS, and their outputs for one token. While the sums of
 * some are added up, others are multiplied. */
DELTA_INLINE void step_some(float *state, const struct delta_row *t, const float *v, float *o,
                            uint32_t n, uint32_t dk) {
    for (uint32_t j = 0; j < n; j += STATE_ROWS, state += STATE_ROWS * dk) {
        float ks[STATE_ROWS], qs[STATE_ROWS], delta[STATE_ROWS];
        UNROLL_FOUR for (int r = 0; r < STATE_ROWS; r += 2)
            dot_rows(state + (uint32_t)r * dk, t, dk, ks + r, qs + r);
        UNROLL_FOUR for (int r = 0; r < STATE_ROWS; r++) {
            delta[r] = t->beta * (v[j + (uint32_t)r] - t->decay * ks[r]);
            o[j + (uint32_t)r] = t->decay * qs[r] + t->qk * delta[r];
        }
        UNROLL_FOUR for (int r = 0; r < STATE_ROWS; r += 2)
            update_rows(state + (uint32_t)r * dk, t, dk, delta + r);
    }
}

static CLONES void step_rows(float *state, const struct delta_row *t, const float *v, float *o,
                             uint32_t n, uint32_t dk) {
    step_some(state, t, v, o, n, dk);
}

/* A tenth faster. */
static CLONES void step_rows_128(float *state, const struct delta_row *t, const float *v, float *o,
                                 uint32_t n, uint32_t dk) {
    (void)dk;
    step_some(state, t, v, o, n, 128);
}

/* The same for any dk and number of rows. */
static void step_rows_any(float *state, const struct delta_row *t, const float *v, float *o,
                          uint32_t n, uint32_t dk) {
    for (uint32_t j = 0; j < n; j++, state += dk) {
        float ks = row_dot(state, t->k, dk), qs = row_dot(state, t->q, dk);
        float delta = t->beta * (v[j] - t->decay * ks);
        o[j] = t->decay * qs + t->qk * delta;
        row_mix(state, t->decay, t->k, delta, dk);
    }
}

typedef void step_fn(float *state, const struct delta_row *t, const float *v, float *o, uint32_t n,
                     uint32_t dk);

/* A cell's S of a value head. */
static float *state_of(struct cpu_step *s, const struct op_delta *d, uint32_t cell, uint32_t head) {
    return (float *)at(s, &d->state) +
           ((uint64_t)cell * d->value_heads + head) * d->value_width * (uint64_t)d->key_width;
}

static uint32_t last_cell(const struct cpu_step *s, const struct io_segment *g) {
    return s->to[g->first_row + g->n_rows - 1];
}

/* n rows of the segment from `first` on. */
static void run_rows(struct cpu_step *s, const struct op_delta *d, const struct io_segment *g,
                     uint32_t head, uint32_t first, uint32_t n) {
    uint32_t dk = d->key_width, dv = d->value_width, channels = d->window.dims[0];
    uint32_t cell = last_cell(s, g);
    float *state = state_of(s, d, cell, head);
    uint32_t v_at = 2 * d->key_heads * dk + head * dv, row = g->first_row + first;
    struct delta_row rows[DELTA_BLOCK_ROWS];
    for (uint32_t r = 0; r < n; r++)
        rows[r] = prepare(s, d, row + r, head, s->scratch->delta + (uint64_t)r * 2 * dk);
    for (uint32_t j = 0; j < dv; j += STATE_TILE) {
        uint32_t tile = dv - j < STATE_TILE ? dv - j : STATE_TILE;
        step_fn *step = dk % LANES || tile % STATE_ROWS ? step_rows_any
                        : dk == 128                     ? step_rows_128
                                                        : step_rows;
        for (uint32_t r = 0; r < n; r++) {
            const float *v = s->b->conv + (uint64_t)(row + r) * channels + v_at + j;
            float *o = row_of(s, &d->out, row + r) + head * dv + j;
            float *part = state + (uint64_t)j * dk;
            step(part, &rows[r], v, o, tile, dk);
            uint32_t to = s->to[row + r];
            if (to != IO_NO_CELL && to != cell)
                memcpy(state_of(s, d, to, head) + (uint64_t)j * dk, part,
                       (uint64_t)tile * dk * sizeof *part);
        }
    }
}

static void run_head(struct cpu_step *s, const struct op_delta *d, const struct io_segment *g,
                     uint32_t head) {
    uint32_t cell = last_cell(s, g);
    if (g->cell != cell)
        memcpy(state_of(s, d, cell, head), state_of(s, d, g->cell, head),
               (uint64_t)d->value_width * d->key_width * sizeof(float));
    for (uint32_t first = 0; first < g->n_rows && !is_cancelled(s); first += DELTA_BLOCK_ROWS) {
        uint32_t left = g->n_rows - first;
        run_rows(s, d, g, head, first, left < DELTA_BLOCK_ROWS ? left : DELTA_BLOCK_ROWS);
    }
}

void cpu_delta(struct cpu_step *s) {
    const struct op_delta *d = &s->op->op->delta;
    convolve_share(s, d);
    barrier(s);
    struct share share = share_of(s, s->io->n_segments * d->value_heads, 1);
    for (uint32_t i = share.begin; i < share.end; i++)
        run_head(s, d, &s->segments[i / d->value_heads], i % d->value_heads);
}
