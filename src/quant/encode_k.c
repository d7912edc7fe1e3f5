/* encode_k.c - quantizers of the K types: a search for scales and minimums.
 *
 * A sub-block's values x become y = s q - m, with q whole and 0..15 or so (Q3_K, Q6_K: signed, no
 * m), and s and m themselves are small whole multiples of two fp16 values of the super-block. The
 * error is
 *
 *     E(s, m) = sum w (s q - m - x)^2,    w = (1 + |x| / rms of the sub-block) * the given weight
 *
 * and for given q a quadratic form in s and m, whose coefficients are six sums. So one pass over
 * the values ("measure": round, sum) lets us solve for the best s and m, and price any others,
 * without touching the values again. The search:
 *
 * (1) For each sub-block try some steps around (largest - smallest) / codes: measure, solve, keep
 *     the best; then measure and solve from there again, since with new s and m other q are best.
 * (2) For the super-block try some d, then some dmin, each sub-block taking the nearest multiple
 *     and the price coming from the sums.
 * (3) Measure with the scales as stored, refit d and dmin to the new q, and again; keep the best
 *     of these rounds, then try each 6-bit scale one up and one down.
 *
 * The q written are rounded against the scales written.
 *
 * Four sub-blocks are worked on side by side, one in each lane of a vector, and nothing is summed
 * across lanes but in a fixed order: the bits do not depend on the machine's vector width. */
#include <math.h>

#include "base/err.h"
#include "quant/encode.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_k.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"

/* ---- four lanes ------------------------------------------------------------------------------ */

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));

static inline f4 all(float x) {
    return (f4){x, x, x, x};
}

/* Per lane: a where the mask is set, b elsewhere. */
static inline f4 pick(i4 mask, f4 a, f4 b) {
    return (f4)((mask & (i4)a) | (~mask & (i4)b));
}

static inline f4 larger(f4 a, f4 b) {
    return pick(a > b, a, b);
}

static inline f4 smaller(f4 a, f4 b) {
    return pick(a < b, a, b);
}

static inline f4 size4(f4 x) {
    return (f4)((i4)x & 0x7fffffff);
}

/* Rounded half to even; |x| is below 2^22. */
static inline f4 round4(f4 x) {
    return (x + ROUND_MAGIC) - ROUND_MAGIC;
}

static inline f4 round_within(f4 x, float low, float high) {
    return round4(smaller(larger(x, all(low)), all(high)));
}

/* a / b, and 0 where b is not above zero. */
static inline f4 ratio(f4 a, f4 b) {
    i4 is_fine = b > 0.0f;
    return pick(is_fine, a / pick(is_fine, b, all(1)), all(0));
}

static float total(f4 x) {
    return (x[0] + x[1]) + (x[2] + x[3]);
}

static float max_of(f4 x) {
    float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
    return a > b ? a : b;
}

/* ---- sub-blocks ------------------------------------------------------------------------------ */

/* Four sub-blocks of n = 32 (Q4_K, Q5_K) or 16 (Q2_K, Q3_K, Q6_K) values. */
struct group {
    f4 x[32], w[32];
    f4 sw, sx, sxx; /* sums of w, w x, w x x */
    f4 low, high;   /* smallest value or 0, largest value */
};

/* Sums for one set of q: w q, w q q, w x q. */
struct sums {
    f4 q, qq, xq;
};

struct fit {
    f4 s, m; /* y = s q - m */
    f4 error;
    struct sums sums;
};

/* Values beyond +-limit are cut off there. weights may be NULL. */
static inline void group_load(struct group *g, const float *x, const float *weights, int n,
                              float limit) {
    f4 squares = all(0);
    g->low = all(0);
    for (int i = 0; i < n; i++) {
        f4 v = {x[i], x[n + i], x[2 * n + i], x[3 * n + i]};
        v = smaller(larger(v, all(-limit)), all(limit));
        g->x[i] = v;
        g->low = smaller(v, g->low);
        g->high = i ? larger(v, g->high) : v;
        squares += v * v;
    }
    f4 rms = squares / (float)n;
    for (int lane = 0; lane < 4; lane++)
        rms[lane] = sqrtf(rms[lane]);
    g->sw = g->sx = g->sxx = all(0);
    f4 inverse = ratio(all(1), rms);
    for (int i = 0; i < n; i++) {
        f4 x_i = g->x[i], w = 1.0f + size4(x_i) * inverse;
        if (weights)
            w *= (f4){weights[i], weights[n + i], weights[2 * n + i], weights[3 * n + i]};
        g->w[i] = w;
        g->sw += w;
        g->sx += w * x_i;
        g->sxx += w * x_i * x_i;
    }
}

/* Rounds (x + m) factor to the codes low..high and sums. */
static inline struct sums measure(const struct group *g, int n, f4 m, f4 factor, float low,
                                  float high) {
    struct sums t = {all(0), all(0), all(0)};
    for (int i = 0; i < n; i++) {
        f4 q = round_within((g->x[i] + m) * factor, low, high), wq = g->w[i] * q;
        t.q += wq;
        t.qq += wq * q;
        t.xq += wq * g->x[i];
    }
    return t;
}

/* E(s, m). The terms cancel to about 1e-6 of sxx: enough to tell candidates apart. */
static inline f4 price(const struct group *g, const struct sums *t, f4 s, f4 m) {
    return g->sxx + s * (s * t->qq - 2.0f * t->xq) + m * (m * g->sw + 2.0f * (g->sx - s * t->q));
}

/* The best m >= 0 for a given s. */
static inline f4 best_min(const struct group *g, const struct sums *t, f4 s) {
    return larger((s * t->q - g->sx) / g->sw, all(0));
}

/* The best s and m >= 0 for given q. */
static inline struct fit solve(const struct group *g, const struct sums *t) {
    struct fit f = {.sums = *t};
    f.s = ratio(t->xq * g->sw - g->sx * t->q, t->qq * g->sw - t->q * t->q);
    f.m = (f.s * t->q - g->sx) / g->sw;
    i4 is_negative = f.m < 0.0f;
    f.s = larger(pick(is_negative, ratio(t->xq, t->qq), f.s), all(0));
    f.m = best_min(g, t, f.s);
    f.error = price(g, t, f.s, f.m);
    return f;
}

/* Lane by lane. */
static inline void keep_better(struct fit *best, const struct fit *f) {
    i4 is_better = f->error < best->error;
    best->s = pick(is_better, f->s, best->s);
    best->m = pick(is_better, f->m, best->m);
    best->error = pick(is_better, f->error, best->error);
    best->sums.q = pick(is_better, f->sums.q, best->sums.q);
    best->sums.qq = pick(is_better, f->sums.qq, best->sums.qq);
    best->sums.xq = pick(is_better, f->sums.xq, best->sums.xq);
}

/* How far the search looks. More of each gains less than 0.3 % of the error. */
enum { STEPS = 12, D_STEPS = 16, ROUNDS = 3 };

/* How many codes a sub-block's span is mapped to at a step: more cuts the ends off, fewer leaves
 * some codes unused; both can pay. */
static inline f4 spread(float codes, int step) {
    return all(codes - 1.8f + 0.3f * (float)step);
}

/* With few codes it pays to cut off both ends: steps around the middle of the span, each followed
 * by a second round. */
static inline void search_centred(const struct group *g, int n, float codes, struct fit *best) {
    f4 span = g->high - g->low, middle = (g->high + g->low) * 0.5f;
    for (int step = 0; step < STEPS; step++) {
        f4 factor = ratio(spread(codes + 1.0f, step), span);
        f4 m = larger(0.5f * codes * ratio(all(1), factor) - middle, all(0));
        struct sums t = measure(g, n, m, factor, 0, codes);
        struct fit f = solve(g, &t);
        keep_better(best, &f);
        t = measure(g, n, f.m, ratio(all(1), f.s), 0, codes);
        f = solve(g, &t);
        keep_better(best, &f);
    }
}

/* Later steps start from the best minimum so far: so the search leaves the line it began on. */
static inline struct fit search(const struct group *g, int n, float codes) {
    f4 span = g->high - g->low;
    struct fit best = {.m = -g->low, .error = all(FLT_MAX)};
    for (int step = 0; step < STEPS; step++) {
        f4 factor = ratio(spread(codes, step), span);
        struct sums t = measure(g, n, best.m, factor, 0, codes);
        struct fit f = solve(g, &t);
        keep_better(&best, &f);
    }
    struct sums t = measure(g, n, best.m, ratio(all(1), best.s), 0, codes);
    struct fit f = solve(g, &t);
    keep_better(&best, &f);
    if (codes < 4)
        search_centred(g, n, codes, &best);
    return best;
}

/* ---- super-blocks with minimums: Q2_K, Q4_K, Q5_K -------------------------------------------- */

enum { MAX_GROUPS = 4 };

struct shape {
    int n, groups; /* values of a sub-block; groups of four sub-blocks */
    float codes;   /* quants are 0..codes */
    float top;     /* scales and minimums are 0..top */
};

/* A super-block as it will be stored, but for the quants. */
struct scales {
    uint16_t d, dmin;
    f4 sc[MAX_GROUPS], mn[MAX_GROUPS]; /* whole, 1..top and 0..top */
    float error;
};

static inline f4 step_of(uint16_t half) {
    return all(f16_to_f32(half));
}

/* Gives every sub-block the multiples of d and dmin nearest to its best, and prices that. A scale
 * of 0 would turn all values into one: 1 is never worse, since quants may still all be equal. */
static inline void snap(struct shape sh, const struct group *g, const struct fit *f,
                        struct scales *to) {
    f4 d = step_of(to->d), dmin = step_of(to->dmin), error = all(0);
    f4 per_d = ratio(all(1), d), per_dmin = ratio(all(1), dmin);
    for (int k = 0; k < sh.groups; k++) {
        to->sc[k] = round_within(f[k].s * per_d, 1, sh.top);
        f4 s = d * to->sc[k];
        to->mn[k] = round_within(best_min(&g[k], &f[k].sums, s) * per_dmin, 0, sh.top);
        error += price(&g[k], &f[k].sums, s, dmin * to->mn[k]);
    }
    to->error = total(error);
}

/* The fp16 value near largest / top with the smallest error: into d, or into dmin. */
static inline void search_step(struct shape sh, const struct group *g, const struct fit *f,
                               float largest, bool is_min, struct scales *best) {
    struct scales trial = *best;
    best->error = FLT_MAX;
    for (int step = 0; step < D_STEPS; step++) {
        uint16_t half = f16_from_scale(largest / (sh.top + 1.0f - 0.5f * (float)step));
        *(is_min ? &trial.dmin : &trial.d) = half;
        snap(sh, g, f, &trial);
        if (trial.error < best->error)
            *best = trial;
    }
}

/* The d and dmin that suit the multiples and the quants best: E is a quadratic form in them too. */
static inline void refit(struct shape sh, const struct group *g, const struct fit *f,
                         struct scales *to) {
    f4 dd4 = all(0), d4 = all(0), mm4 = all(0), m4 = all(0), dm4 = all(0);
    for (int k = 0; k < sh.groups; k++) {
        f4 sc = to->sc[k], mn = to->mn[k];
        dd4 += sc * sc * f[k].sums.qq;
        d4 += sc * f[k].sums.xq;
        mm4 += mn * mn * g[k].sw;
        m4 -= mn * g[k].sx;
        dm4 += sc * mn * f[k].sums.q;
    }
    float dd = total(dd4), d = total(d4), mm = total(mm4), m = total(m4), dm = total(dm4);
    float det = dd * mm - dm * dm, top = d * mm + m * dm;
    if (mm <= 0 && dd > 0 && d > 0) {
        to->d = f16_from_scale(d / dd);
    } else if (det > 0 && top > 0) {
        to->d = f16_from_scale(top / det);
        float dmin = (top / det * dm + m) / mm;
        if (dmin > 0)
            to->dmin = f16_from_scale(dmin);
    }
}

/* Rounds against the scales as stored; f gets them, the sums and the error. */
static inline void measure_stored(struct shape sh, const struct group *g, const struct scales *at,
                                  struct fit *f) {
    for (int k = 0; k < sh.groups; k++) {
        f[k].s = step_of(at->d) * at->sc[k];
        f[k].m = step_of(at->dmin) * at->mn[k];
        f[k].sums = measure(&g[k], sh.n, f[k].m, ratio(all(1), f[k].s), 0, sh.codes);
        f[k].error = price(&g[k], &f[k].sums, f[k].s, f[k].m);
    }
}

/* Moves each sub-block's scale by one where that helps: the price of a scale with the quants of
 * another misleads where scales are small numbers, as next to a sub-block of much larger values. */
static inline void nudge(struct shape sh, const struct group *g, float by, struct fit *f,
                         struct scales *at) {
    struct fit moved[MAX_GROUPS];
    struct scales trial = *at;
    f4 d = step_of(at->d), per_dmin = ratio(all(1), step_of(at->dmin));
    for (int k = 0; k < sh.groups; k++) {
        trial.sc[k] = round_within(at->sc[k] + by, 1, sh.top);
        f4 m = best_min(&g[k], &f[k].sums, d * trial.sc[k]);
        trial.mn[k] = round_within(m * per_dmin, 0, sh.top);
    }
    measure_stored(sh, g, &trial, moved);
    for (int k = 0; k < sh.groups; k++) {
        i4 helps = moved[k].error < f[k].error;
        at->sc[k] = pick(helps, trial.sc[k], at->sc[k]);
        at->mn[k] = pick(helps, trial.mn[k], at->mn[k]);
        keep_better(&f[k], &moved[k]);
    }
}

/* Finds the scales of 256 values. */
static inline struct scales search_scales(struct shape sh, const struct group *g) {
    struct fit f[MAX_GROUPS], best_fit[MAX_GROUPS];
    f4 s = all(0), m = all(0);
    for (int k = 0; k < sh.groups; k++) {
        f[k] = best_fit[k] = search(&g[k], sh.n, sh.codes);
        s = larger(s, f[k].s);
        m = larger(m, f[k].m);
    }
    struct scales trial = {.dmin = f16_from_scale(max_of(m) / sh.top)};
    search_step(sh, g, f, max_of(s), false, &trial);
    search_step(sh, g, f, max_of(m), true, &trial);

    struct scales best = {.error = FLT_MAX};
    for (int round = 0; round < ROUNDS; round++) {
        f4 error = all(0);
        measure_stored(sh, g, &trial, f);
        for (int k = 0; k < sh.groups; k++)
            error += f[k].error;
        trial.error = total(error);
        if (trial.error < best.error) {
            best = trial;
            memcpy(best_fit, f, sizeof best_fit);
        }
        refit(sh, g, f, &trial);
        for (int k = 0; k < sh.groups; k++)
            f[k] = solve(&g[k], &f[k].sums);
        snap(sh, g, f, &trial);
    }
    nudge(sh, g, 1, best_fit, &best);
    nudge(sh, g, -1, best_fit, &best);
    return best;
}

static void pack_scales(const struct scales *from, uint8_t *to) {
    for (int s = 0; s < 4; s++) {
        int sc = (int)from->sc[0][s], sc4 = (int)from->sc[1][s];
        int mn = (int)from->mn[0][s], mn4 = (int)from->mn[1][s];
        to[s] = (uint8_t)(sc | sc4 >> 4 << 6);
        to[s + 4] = (uint8_t)(mn | mn4 >> 4 << 6);
        to[s + 8] = (uint8_t)((sc4 & 15) | (mn4 & 15) << 4);
    }
}

/* The quants that go with the scales. */
static inline void round_quants(struct shape sh, const struct group *g, const struct scales *at,
                                uint8_t *q) {
    for (int k = 0; k < sh.groups; k++) {
        f4 factor = ratio(all(1), step_of(at->d) * at->sc[k]);
        f4 m = step_of(at->dmin) * at->mn[k];
        for (int i = 0; i < sh.n; i++) {
            f4 v = round_within((g[k].x[i] + m) * factor, 0, sh.codes);
            for (int lane = 0; lane < 4; lane++)
                q[sh.n * (4 * k + lane) + i] = (uint8_t)v[lane];
        }
    }
}

static void pack_nibbles(const uint8_t *q, uint8_t *qs) {
    for (int r = 0; r < 4; r++)
        for (int l = 0; l < 32; l++)
            qs[32 * r + l] = (uint8_t)((q[64 * r + l] & 15) | (q[64 * r + 32 + l] & 15) << 4);
}

/* Finds scales and quants of 256 values. What no scale can reach is cut off first, which also
 * keeps the sums finite. */
static inline struct scales quantize(struct shape sh, const float *x, const float *w, uint8_t *q) {
    struct group g[MAX_GROUPS];
    for (int k = 0; k < sh.groups; k++)
        group_load(&g[k], x + 4 * sh.n * k, w ? w + 4 * sh.n * k : NULL, sh.n,
                   F16_MAX * sh.top * sh.codes);
    struct scales best = search_scales(sh, g);
    round_quants(sh, g, &best, q);
    return best;
}

/* Two bits of each value: 2 x 32 bytes, four runs of 32 values in each. */
static void pack_pairs(const uint8_t *q, uint8_t *qs) {
    for (int h = 0; h < 2; h++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *v = q + 128 * h + l;
            qs[32 * h + l] =
                (uint8_t)((v[0] & 3) | (v[32] & 3) << 2 | (v[64] & 3) << 4 | (v[96] & 3) << 6);
        }
}

static void q2_k_encode_block(const float *x, const float *w, struct q2_k *b) {
    uint8_t q[256];
    struct scales best = quantize((struct shape){16, 4, 3, 15}, x, w, q);
    b->d = best.d;
    b->dmin = best.dmin;
    for (int k = 0; k < 16; k++)
        b->scales[k] = (uint8_t)((int)best.sc[k / 4][k % 4] | (int)best.mn[k / 4][k % 4] << 4);
    pack_pairs(q, b->qs);
}

static void q4_k_encode_block(const float *x, const float *w, struct q4_k *b) {
    uint8_t q[256];
    struct scales best = quantize((struct shape){32, 2, 15, 63}, x, w, q);
    b->d = best.d;
    b->dmin = best.dmin;
    pack_scales(&best, b->scales);
    pack_nibbles(q, b->qs);
}

static void q5_k_encode_block(const float *x, const float *w, struct q5_k *b) {
    uint8_t q[256];
    struct scales best = quantize((struct shape){32, 2, 31, 63}, x, w, q);
    b->d = best.d;
    b->dmin = best.dmin;
    pack_scales(&best, b->scales);
    pack_nibbles(q, b->qs);
    for (int l = 0; l < 32; l++) {
        int bits = 0;
        for (int s = 0; s < 8; s++)
            bits |= (q[32 * s + l] >> 4) << s;
        b->qh[l] = (uint8_t)bits;
    }
}

/* ---- super-blocks without: Q3_K, Q6_K -------------------------------------------------------- */

struct signed_shape {
    float codes; /* quants are -codes..codes - 1 */
    float top;   /* scales are -top..top - 1 */
};

struct signed_scales {
    uint16_t d;
    f4 sc[4]; /* whole, not 0 */
    float error;
};

/* 1 / x, and 0 for 0. */
static inline f4 inverse(f4 x) {
    f4 size = ratio(all(1), size4(x));
    return pick(x < 0.0f, -size, size);
}

/* Measures with the quants of a factor, and solves for s, of either sign. */
static inline struct fit measure_signed(struct signed_shape sh, const struct group *g, f4 factor) {
    struct fit f = {.sums = measure(g, 16, all(0), factor, -sh.codes, sh.codes - 1)};
    f.s = ratio(f.sums.xq, f.sums.qq);
    f.error = price(g, &f.sums, f.s, all(0));
    return f;
}

/* The extreme value takes the code -codes, of which there is no positive twin. */
static inline struct fit search_signed(struct signed_shape sh, const struct group *g) {
    f4 extreme = pick(-g->low > g->high, g->low, g->high);
    struct fit best = {.error = all(FLT_MAX)};
    for (int step = 0; step < STEPS; step++) {
        struct fit f = measure_signed(sh, g, -spread(sh.codes, step) * inverse(extreme));
        keep_better(&best, &f);
    }
    return best;
}

static inline void snap_signed(struct signed_shape sh, const struct group *g, const struct fit *f,
                               struct signed_scales *to) {
    f4 d = step_of(to->d), per_d = inverse(d), error = all(0);
    for (int k = 0; k < 4; k++) {
        f4 sc = round_within(f[k].s * per_d, -sh.top, sh.top - 1);
        to->sc[k] = pick(sc == 0.0f, all(1), sc);
        error += price(&g[k], &f[k].sums, d * to->sc[k], all(0));
    }
    to->error = total(error);
}

/* The d that suits the multiples and the quants best. */
static void refit_signed(const struct fit *f, struct signed_scales *to) {
    f4 dd = all(0), d = all(0);
    for (int k = 0; k < 4; k++) {
        dd += to->sc[k] * to->sc[k] * f[k].sums.qq;
        d += to->sc[k] * f[k].sums.xq;
    }
    if (total(dd) > 0 && total(d) != 0)
        to->d = f16_from_scale(total(d) / total(dd));
}

/* Rounds against the stored scales: returns the error; f gets the sums and their best fit. */
static inline float measure_stored_signed(struct signed_shape sh, const struct group *g,
                                          const struct signed_scales *at, struct fit *f) {
    f4 error = all(0);
    for (int k = 0; k < 4; k++) {
        f4 s = step_of(at->d) * at->sc[k];
        f[k] = measure_signed(sh, &g[k], inverse(s));
        error += price(&g[k], &f[k].sums, s, all(0));
    }
    return total(error);
}

/* The first d: the largest scale becomes about -top. */
static inline struct signed_scales search_step_signed(struct signed_shape sh, const struct group *g,
                                                      const struct fit *f) {
    float largest = 0;
    for (int k = 0; k < 4; k++)
        for (int lane = 0; lane < 4; lane++)
            largest = fabsf(f[k].s[lane]) > fabsf(largest) ? f[k].s[lane] : largest;
    struct signed_scales trial = {0}, best = {.error = FLT_MAX};
    for (int step = 0; step < D_STEPS; step++) {
        trial.d = f16_from_scale(largest / (0.5f * (float)step - (sh.top + 1.0f)));
        snap_signed(sh, g, f, &trial);
        if (trial.error < best.error)
            best = trial;
    }
    return best;
}

static inline struct signed_scales search_scales_signed(struct signed_shape sh,
                                                        const struct group *g) {
    struct fit f[4];
    for (int k = 0; k < 4; k++)
        f[k] = search_signed(sh, &g[k]);
    struct signed_scales trial = search_step_signed(sh, g, f), best = {.error = FLT_MAX};
    for (int round = 0; round < ROUNDS; round++) {
        trial.error = measure_stored_signed(sh, g, &trial, f);
        if (trial.error < best.error)
            best = trial;
        refit_signed(f, &trial);
        snap_signed(sh, g, f, &trial);
    }
    return best;
}

/* The quants, from 0 on, that go with the scales. */
static inline void round_quants_signed(struct signed_shape sh, const struct group *g,
                                       const struct signed_scales *at, uint8_t *q) {
    for (int k = 0; k < 4; k++) {
        f4 factor = inverse(step_of(at->d) * at->sc[k]);
        for (int i = 0; i < 16; i++) {
            f4 v = round_within(g[k].x[i] * factor, -sh.codes, sh.codes - 1) + sh.codes;
            for (int lane = 0; lane < 4; lane++)
                q[64 * k + 16 * lane + i] = (uint8_t)v[lane];
        }
    }
}

/* Finds scales and quants of 256 values. */
static inline struct signed_scales quantize_signed(struct signed_shape sh, const float *x,
                                                   const float *w, uint8_t *q) {
    struct group g[4];
    for (int k = 0; k < 4; k++)
        group_load(&g[k], x + 64 * k, w ? w + 64 * k : NULL, 16, F16_MAX * sh.top * sh.codes);
    struct signed_scales best = search_scales_signed(sh, g);
    round_quants_signed(sh, g, &best, q);
    return best;
}

static void q3_k_encode_block(const float *x, const float *w, struct q3_k *b) {
    uint8_t q[256];
    struct signed_scales best = quantize_signed((struct signed_shape){4, 32}, x, w, q);
    memset(b, 0, sizeof *b);
    b->d = best.d;
    pack_pairs(q, b->qs);
    for (int i = 0; i < 256; i++)
        b->hmask[i % 32] |= (uint8_t)(q[i] >> 2 << i / 32);
    for (int k = 0; k < 16; k++) {
        int scale = (int)best.sc[k / 4][k % 4] + 32;
        b->scales[k % 8] |= (uint8_t)((scale & 15) << 4 * (k / 8));
        b->scales[8 + k % 4] |= (uint8_t)(scale >> 4 << 2 * (k / 4));
    }
}

static void q6_k_encode_block(const float *x, const float *w, struct q6_k *b) {
    uint8_t q[256];
    struct signed_scales best = quantize_signed((struct signed_shape){32, 128}, x, w, q);
    b->d = best.d;
    for (int k = 0; k < 16; k++)
        b->scales[k] = (int8_t)best.sc[k / 4][k % 4];
    for (int h = 0; h < 2; h++) {
        for (int l = 0; l < 32; l++) {
            const uint8_t *v = q + 128 * h + l;
            b->ql[64 * h + l] = (uint8_t)((v[0] & 15) | (v[64] & 15) << 4);
            b->ql[64 * h + 32 + l] = (uint8_t)((v[32] & 15) | (v[96] & 15) << 4);
            b->qh[32 * h + l] =
                (uint8_t)(v[0] >> 4 | v[32] >> 4 << 2 | v[64] >> 4 << 4 | v[96] >> 4 << 6);
        }
    }
}

/* dst may have any address, the structs want an even one. */
#define BLOCK_ENCODE(type)                                                                         \
    void type##_encode_weighted(const float *src, const float *weights, void *dst, size_t n) {     \
        CHECK(n % 256 == 0);                                                                       \
        uint8_t *at = dst;                                                                         \
        for (size_t i = 0; i < n; i += 256, at += sizeof(struct type)) {                           \
            struct type block;                                                                     \
            type##_encode_block(src + i, weights ? weights + i : NULL, &block);                    \
            memcpy(at, &block, sizeof block);                                                      \
        }                                                                                          \
    }                                                                                              \
    void type##_encode(const float *src, void *dst, size_t n) {                                    \
        type##_encode_weighted(src, NULL, dst, n);                                                 \
    }

BLOCK_ENCODE(q2_k)
BLOCK_ENCODE(q3_k)
BLOCK_ENCODE(q4_k)
BLOCK_ENCODE(q5_k)
BLOCK_ENCODE(q6_k)
