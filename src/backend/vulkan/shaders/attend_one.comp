#version 450
// attend_one.comp - attention of the only row of a plan: queries, key and value are made here, and
// partial results go to memory; the last workgroup of a tile combines them (COMBINES), or
// attend_combine.comp does. The arithmetic is that of attend_store.comp, attend.comp and
// attend_combine.comp, in the same order.
//
// A workgroup has a tile, the query heads of one KV head, and every so many parts of the sequence
// (attend.glsl). The one that has the last part stores the row's key and value, and takes them from
// shared memory.
//
//   QK       sixteen lanes a position, a thread 512 / THREADS positions of a tile of 32
//   softmax  sixteen threads a query, two positions each
//   PV       128 threads a query: four columns and every GROUPS-th position each
//
// With 512 threads each has little to do, and the code is short: between two uses in a step other
// shaders run, so that it comes from L2 every time, and a kilobyte takes 0.1 to 0.4 us on an H200.
// Before the wait for the stage that makes the row (stage.glsl), all else is loaded: norms, angles, the
// first tile of an F16 cache.
//
// CACHE as in attend_head.glsl.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "io.glsl"
#include "attend.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint D = 128;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint KV_HEADS = 1;
layout(constant_id = 4) const uint QUERIES = 4;    // of a tile
layout(constant_id = 5) const uint THREADS = 128;  // 256 or 512: of the workgroup
layout(constant_id = 6) const uint KV_TILES = 1;   // tiles of a KV head
layout(constant_id = 7) const uint MAX_PARTS = 1;
layout(constant_id = 8) const uint PAGES = 1;
layout(constant_id = 9) const uint ROTARY = 0;
layout(constant_id = 10) const uint IS_NEIGHBOURS = 0;
layout(constant_id = 11) const uint HAS_Q_NORM = 0;
layout(constant_id = 12) const uint HAS_K_NORM = 0;
layout(constant_id = 13) const uint COMBINES = 0;

layout(push_constant) uniform Push {
    IO_AT;
    uint pages_first, out_first;
    uint in_first, q_stride, k_column, v_column;
    uint q_norm_first, k_norm_first, angles_first;
    float eps, scale;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly coherent buffer In { float x_in[]; };
layout(binding = 2) readonly buffer Pages { uint pages[]; };
layout(binding = 3) buffer KeyWords { uint key_words[]; };
layout(binding = 4) buffer ValueWords { uint value_words[]; };
#include "attend_cache.glsl"
layout(binding = 5) coherent buffer Parts { vec4 parts4[]; }; // (H, parts, d)
layout(binding = 5) coherent buffer PartsOne { float parts[]; };
layout(binding = 6) coherent buffer Sums { vec2 sums[]; }; // (H, parts): maximum and sum
layout(binding = 7) readonly buffer QNorm { float q_norm[]; };
layout(binding = 8) readonly buffer KNorm { float k_norm[]; };
layout(binding = 9) readonly buffer Angles { float angles[]; };
layout(binding = 10) writeonly coherent buffer Out { float result[]; };
layout(binding = 11) coherent buffer Counters { uint counters[]; }; // a tile: workgroups that are done; 0 between steps

const uint LANES = 16, D4 = D / 4;
const uint TEAMS = THREADS / ATTEND_THREADS; // of 128 threads
const uint GROUPS = ATTEND_THREADS / D4;
const uint POSITIONS = ATTEND_TILE * LANES / THREADS;
const uint OWN_QUERIES = (QUERIES + TEAMS - 1) / TEAMS;
const uint SLOTS = (QUERIES + TEAMS) / TEAMS; // heads that a team makes: the queries and the key
const uint SCORES = QUERIES * ATTEND_TILE * 5;        // of fours of lanes: 4 + 1
const uint OTHERS = 4 * TEAMS * D4 * (GROUPS - 1);    // PV of other groups than the first
const uint SQUARES_N = 136 * (QUERIES + 1);           // of attend_head.glsl
const uint LARGER = SCORES > OTHERS ? SCORES : OTHERS;
const uint SCRATCH = LARGER > SQUARES_N ? LARGER : SQUARES_N;

shared vec4 query[QUERIES * D4];
shared float scratch[SCRATCH]; // its uses follow each other
shared float per_thread[QUERIES * 16];
shared float weight[QUERIES * ATTEND_TILE];
shared float rescale[QUERIES];

#define HEADS_OF_X 2 // the key, then the value
#define SQUARES(i) scratch[i]
#include "attend_head.glsl"
#if CACHE == 1
shared uint new_words[D];
#endif

// ---- the cache --------------------------------------------------------------------------------

#if CACHE > 1
#define OWN_HALF(halves, h) halves[h]
FOUR_OF(four_own, halves, OWN_HALF)
#endif

// Of the row's own key (head 0) or value (1), as the cache has it.
vec4 own_four(uint head, uint c) {
#if CACHE == 0
    uint i = head * D + 4 * c;
    return vec4(x[i], x[i + 1], x[i + 2], x[i + 3]);
#elif CACHE == 1
    uint i = head * (D / 2) + 2 * c;
    return four_halves(uvec2(new_words[i], new_words[i + 1]));
#else
    return four_own(head, c);
#endif
}

uint page_row(uint slot, uint kv_head, uint position) {
    uint page = pages[p.pages_first + slot * PAGES + position / IO_PAGE_POSITIONS];
    return (page * KV_HEADS + kv_head) * IO_PAGE_POSITIONS + position % IO_PAGE_POSITIONS;
}

// ---- the row's own heads ----------------------------------------------------------------------

// What a thread loads of its team's heads, and of the value: all of it is in flight together.
const uint OF_HEAD = (D + ATTEND_THREADS - 1) / ATTEND_THREADS;
const uint OF_VALUE = (D + THREADS - 1) / THREADS;
const uint PAIRS = ROTARY > 1 ? ROTARY / 2 : 1;
const uint OF_ANGLES = ((QUERIES + 1) * PAIRS + THREADS - 1) / THREADS;
struct Raw {
    float head[SLOTS * OF_HEAD], norm[SLOTS * OF_HEAD], value[OF_VALUE];
    vec2 angle[OF_ANGLES];
};
Raw raw;

// What the stage before does not write.
void load_norms(uint t) {
    [[unroll]] for (uint s = 0; s < SLOTS; s++) {
        uint h = s * TEAMS + t / ATTEND_THREADS;
        [[unroll]] for (uint e = 0; e < OF_HEAD; e++) {
            uint i = min(e * ATTEND_THREADS + t % ATTEND_THREADS, D - 1);
            float w = 1;
            if (h < QUERIES && HAS_Q_NORM != 0)
                w = q_norm[p.q_norm_first + i];
            else if (h >= QUERIES && HAS_K_NORM != 0)
                w = k_norm[p.k_norm_first + i];
            raw.norm[s * OF_HEAD + e] = w;
        }
    }
    [[unroll]] for (uint e = 0; e < OF_ANGLES; e++)
        if (ROTARY > 0)
            raw.angle[e] = angle_at(0, (e * THREADS + t) % PAIRS);
}

void load_row(uint t, uint kv_head, uint first_head, uint n_heads) {
    [[unroll]] for (uint s = 0; s < SLOTS; s++) {
        uint h = s * TEAMS + t / ATTEND_THREADS;
        uint at = h < QUERIES ? (first_head + min(h, n_heads - 1)) * p.q_stride
                              : p.k_column + kv_head * D;
        [[unroll]] for (uint e = 0; e < OF_HEAD; e++) {
            uint i = min(e * ATTEND_THREADS + t % ATTEND_THREADS, D - 1);
            raw.head[s * OF_HEAD + e] = x_in[p.in_first + at + i];
        }
    }
    [[unroll]] for (uint e = 0; e < OF_VALUE; e++)
        raw.value[e] = x_in[p.in_first + p.v_column + kv_head * D + min(e * THREADS + t, D - 1)];
}

// The queries, and in x the key and the value, as attend_store.comp makes them. Others see them after a
// barrier.
void make_heads(uint t) {
    const uint EIGHTHS = (QUERIES + 1) * ATTEND_THREADS;
    uint team = t / ATTEND_THREADS, u = t % ATTEND_THREADS;
    if ((HAS_Q_NORM | HAS_K_NORM) != 0) {
        [[unroll]] for (uint s = 0; s < SLOTS; s++) {
            uint h = s * TEAMS + team;
            float sum = 0;
            [[unroll]] for (uint e = 0; e < OF_HEAD; e++)
                if (e * ATTEND_THREADS + u < D)
                    sum = square_of(raw.head[s * OF_HEAD + e], sum);
            if (h <= QUERIES)
                SQUARES(h * ATTEND_THREADS + u) = sum;
        }
        barrier();
        if (t < 8 * (QUERIES + 1))
            SQUARES(EIGHTHS + t) = eighth_of(t / 8 * ATTEND_THREADS, t % 8);
        barrier();
    }
    [[unroll]] for (uint s = 0; s < SLOTS; s++) {
        uint h = s * TEAMS + team;
        bool has_norm = h < QUERIES ? HAS_Q_NORM != 0 : HAS_K_NORM != 0;
        float factor = has_norm && h <= QUERIES ? factor_of(sum_of_eighths(EIGHTHS + 8 * h)) : 1;
        [[unroll]] for (uint e = 0; e < OF_HEAD; e++) {
            uint i = e * ATTEND_THREADS + u;
            float v = raw.head[s * OF_HEAD + e];
            if (has_norm)
                v = normed(v, factor, raw.norm[s * OF_HEAD + e]);
            if (i < D && h < QUERIES)
                query[h * D4 + i / 4][i % 4] = v;
            else if (i < D && h == QUERIES)
                x[i] = v;
        }
    }
    [[unroll]] for (uint e = 0; e < OF_VALUE; e++)
        if (e * THREADS + t < D)
            x[D + e * THREADS + t] = raw.value[e];
    barrier();
    if (ROTARY > 0) {
        [[unroll]] for (uint e = 0; e < OF_ANGLES; e++) {
            uint i = e * THREADS + t, q = i / PAIRS;
            uvec2 pair = pair_at(i % PAIRS), at = pair + q * D;
            if (q < QUERIES) {
                vec2 y = rotated(vec2(query[at.x / 4][at.x % 4], query[at.y / 4][at.y % 4]),
                                 raw.angle[e]);
                query[at.x / 4][at.x % 4] = y.x;
                query[at.y / 4][at.y % 4] = y.y;
            } else if (q == QUERIES) {
                vec2 y = rotated(vec2(x[pair.x], x[pair.y]), raw.angle[e]);
                x[pair.x] = y.x;
                x[pair.y] = y.y;
            }
        }
        barrier();
    }
    // One copy of the code; the barrier after it is main's.
    [[dont_unroll]] for (uint i = t; i < QUERIES * D; i += THREADS)
        query[i / 4][i % 4] = scaled_query(query[i / 4][i % 4]);
}

// The row's key and value into the cache, and into shared memory as they are there.
void store_row(uint t, uint row) {
#if CACHE == 0
    for (uint w = t; w < D; w += THREADS) {
        key_words[row * D + w] = word_of(w);
        value_words[row * D + w] = word_of(D + w);
    }
#elif CACHE == 1
    for (uint w = t; w < D; w += THREADS) {
        uint word = word_of(w);
        new_words[w] = word;
        if (w < D / 2)
            key_words[row * (D / 2) + w] = word;
        else
            value_words[row * (D / 2) + w - D / 2] = word;
    }
#else
    for (uint b = t; b < 2 * (D / 32); b += THREADS)
        encode_block(b);
    barrier();
    STORE_HALVES(key_words, row, 0, THREADS)
    STORE_HALVES(value_words, row, HALVES, THREADS)
#endif
}

// ---- a tile of positions ----------------------------------------------------------------------

vec4 pv[OWN_QUERIES];

#if CACHE == 1
#define LOADS_AHEAD
const uint OF_KEYS = (D4 + LANES - 1) / LANES;
const uint OF_VALUES = (ATTEND_TILE + GROUPS - 1) / GROUPS;
uvec2 key_ahead[POSITIONS * OF_KEYS], value_ahead[OF_VALUES];

// Threads and loads that there are too many of load something else again.
void load_keys(uint id, uint row) {
    uint at = (row + id / LANES * POSITIONS) * D4, lane = id % LANES;
    [[unroll]] for (uint e = 0; e < OF_KEYS; e++) {
        uint c = e * LANES + lane;
        if (D4 % LANES > 0)
            c = min(c, D4 - 1);
        [[unroll]] for (uint r = 0; r < POSITIONS; r++)
            key_ahead[POSITIONS * e + r] = keys[at + r * D4 + c];
    }
}

void load_values(uint u, uint row) {
    [[unroll]] for (uint e = 0; e < OF_VALUES; e++) {
        uint i = e * GROUPS + u / D4;
        if (ATTEND_THREADS % D4 > 0 || ATTEND_TILE % GROUPS > 0)
            i = min(i, ATTEND_TILE - 1);
        value_ahead[e] = values[(row + i) * D4 + u % D4];
    }
}
#define KEY_AT(row, c, e) four_halves(key_ahead[e])
#define VALUE_AT(row, c, e) four_halves(value_ahead[e])
#else
#define load_keys(id, row)
#define load_values(u, row)
#define KEY_AT(row, c, e) key_at(row, c)
#define VALUE_AT(row, c, e) value_at(row, c)
#endif

// The scores' sums of four lanes each for a tile of positions from `row` of the cache on.
void qk_tile(uint id, uint row, uint own_row) {
    uint lane = id % LANES, position = id / LANES * POSITIONS;
    precise float sum[POSITIONS * QUERIES];
    [[unroll]] for (uint q = 0; q < POSITIONS * QUERIES; q++)
        sum[q] = 0;
    [[unroll]] for (uint e = 0; e < (D4 + LANES - 1) / LANES; e++) {
        uint c = e * LANES + lane;
        if (c >= D4)
            continue;
        [[unroll]] for (uint r = 0; r < POSITIONS; r++) {
            vec4 k = KEY_AT(row + position + r, c, POSITIONS * e + r);
            if (row + position + r == own_row)
                k = own_four(0, c);
            [[unroll]] for (uint q = 0; q < QUERIES; q++) {
                vec4 y = query[q * D4 + c];
                sum[POSITIONS * q + r] =
                    fma(y.w, k.w, fma(y.z, k.z, fma(y.y, k.y, fma(y.x, k.x, sum[POSITIONS * q + r]))));
            }
        }
    }
    [[unroll]] for (uint q = 0; q < QUERIES; q++)
        [[unroll]] for (uint r = 0; r < POSITIONS; r++) {
            precise float two = sum[POSITIONS * q + r] + subgroupShuffleXor(sum[POSITIONS * q + r], 1);
            precise float four = two + subgroupShuffleXor(two, 2);
            uint at = (q * ATTEND_TILE + position + r) * 5 + lane / 4;
            if (lane % 4 == 0)
                scratch[at] = four;
        }
}

float qk_at(uint q, uint position, uint seen) {
    uint at = (q * ATTEND_TILE + position) * 5;
    precise float sum = (scratch[at] + scratch[at + 1]) + (scratch[at + 2] + scratch[at + 3]);
    return position < seen ? sum : ATTEND_NONE;
}

// is_in: a select is shorter than a branch around sixteen of these.
void pv_position(uint team, vec4 v, uint i, bool is_in) {
    [[unroll]] for (uint k = 0; k < OWN_QUERIES; k++) {
        uint q = min(k * TEAMS + team, QUERIES - 1);
        vec4 sum = fma(vec4(weight[q * ATTEND_TILE + i]), v, pv[k]);
        pv[k] = is_in ? sum : pv[k];
    }
}

// has_own: the last position is the row's own, whose value comes last, too.
void pv_tile(uint t, uint row, uint n, bool has_own) {
    uint team = t / ATTEND_THREADS, chunk = t % ATTEND_THREADS % D4, group = t % ATTEND_THREADS / D4;
    uint end = has_own ? n - 1 : n;
#ifdef LOADS_AHEAD
    [[unroll]] for (uint e = 0; e < OF_VALUES; e++)
        pv_position(team, VALUE_AT(row, chunk, e), min(e * GROUPS + group, ATTEND_TILE - 1),
                       e * GROUPS + group < end);
#else
    [[dont_unroll]] for (uint i = group; i < end; i += GROUPS)
        pv_position(team, VALUE_AT(row + i, chunk, 0), i, true);
#endif
    if (has_own && end % GROUPS == group)
        pv_position(team, own_four(1, chunk), end, true);
}

// ---- a part -----------------------------------------------------------------------------------

float run_max, run_sum; // of the softmax, as far as the part has come

void begin_part() {
    run_max = ATTEND_NONE;
    run_sum = 0;
    [[unroll]] for (uint k = 0; k < OWN_QUERIES; k++)
        pv[k] = vec4(0);
}

// From the scores of a tile's first n positions to weights, sixteen threads a query, two positions
// each.
void softmax_tile(uint t, uint n) {
    uint q = t / 16, at = t % 16;
    float a = 0, b = 0;
    if (q < QUERIES) {
        a = qk_at(q, at, n);
        b = qk_at(q, at + 16, n);
        per_thread[t] = max(a, b);
    }
    barrier();
    if (q >= QUERIES)
        return;
    float largest = run_max;
    [[unroll]] for (uint i = 0; i < 16; i++)
        largest = max(largest, per_thread[q * 16 + i]);
    float factor = exp2(run_max - largest);
    a = at < n ? softmax_weight(exp2(a - largest)) : 0;
    b = at + 16 < n ? softmax_weight(exp2(b - largest)) : 0;
    weight[q * ATTEND_TILE + at] = a;
    weight[q * ATTEND_TILE + at + 16] = b;
    precise float sum = fma(run_sum, factor, a + b);
    run_sum = sum;
    run_max = largest;
    if (at == 0)
        rescale[q] = factor;
}

// Adds the softmax's threads, and the groups, in order, and leaves the part's result.
void store_part(uint t, uint at, uint n_heads) {
    if (t / 16 < QUERIES)
        per_thread[t] = run_sum;
    barrier();
    if (t / 16 < n_heads && t % 16 == 0) {
        precise float sum = 0;
        for (uint i = 0; i < 16; i++)
            sum += per_thread[t + i];
        sums[at + t / 16 * MAX_PARTS] = vec2(run_max, sum);
    }
    uint team = t / ATTEND_THREADS, chunk = t % ATTEND_THREADS % D4, group = t % ATTEND_THREADS / D4;
    [[unroll]] for (uint k = 0; k < OWN_QUERIES; k++) {
        uint q = k * TEAMS + team;
        if (GROUPS > 1) {
            barrier();
            if (group > 0 && group < GROUPS)
                [[unroll]] for (uint c = 0; c < 4; c++)
                    scratch[(((group - 1) * TEAMS + team) * 4 + c) * D4 + chunk] = pv[k][c];
            barrier();
        }
        if (group == 0 && q < n_heads) {
            precise vec4 sum = pv[k];
            for (uint g = 1; g < GROUPS; g++)
                [[unroll]] for (uint c = 0; c < 4; c++)
                    sum[c] += scratch[(((g - 1) * TEAMS + team) * 4 + c) * D4 + chunk];
            parts4[(at + q * MAX_PARTS) * D4 + chunk] = sum;
        }
    }
}

// ---- all parts --------------------------------------------------------------------------------

#include "last.glsl"
#include "stage.glsl"

// As attend_combine.comp: a team a head, AT_ONCE parts in flight.
const uint AT_ONCE = 4;
void combine(uint t, uint first_head, uint n_heads, uint n) {
    uint u = t % ATTEND_THREADS;
    [[dont_unroll]] for (uint q = t / ATTEND_THREADS; q < n_heads; q += TEAMS)
        [[dont_unroll]] for (uint c = u; c < D; c += ATTEND_THREADS) {
            uint at = (first_head + q) * MAX_PARTS;
            float largest = ATTEND_NONE;
            precise float sum = 0, whole = 0;
            [[dont_unroll]] for (uint i = 0; i < n; i += AT_ONCE) {
                vec2 part[AT_ONCE];
                float value[AT_ONCE];
                [[unroll]] for (uint k = 0; k < AT_ONCE; k++) {
                    uint from = at + min(i + k, n - 1);
                    part[k] = sums[from];
                    value[k] = parts[from * D + c];
                }
                [[unroll]] for (uint k = 0; k < AT_ONCE; k++)
                    if (i + k < n) {
                        float before = largest;
                        largest = max(largest, part[k].x);
                        vec2 f = vec2(exp2(before - largest), exp2(part[k].x - largest));
                        sum = fma(sum, f.x, part[k].y * f.y);
                        whole = fma(whole, f.x, value[k] * f.y);
                    }
            }
            precise float y = whole * (1.0 / sum);
            result[p.out_first + (first_head + q) * D + c] = y;
        }
}

// Parts part, part + stride, ... of n_seen positions, `length` each; the first tile is being loaded,
// from `row` of the cache on. own_row: the row's own, where this workgroup has it.
void run_parts(uint t, uint id, uint slot, uint kv_head, uint first_head, uint n_heads, uint part,
               uint stride, uint length, uint n_seen, uint row, uint own_row) {
    uint at = part * length, end = min(at + length, n_seen);
    begin_part();
    while (at < n_seen) {
        uint n = min(end - at, ATTEND_TILE);
        bool is_end = at + ATTEND_TILE >= end; // of the part
        uint next = is_end ? (part + stride) * length : at + ATTEND_TILE, next_row = row + ATTEND_TILE;
        qk_tile(id, row, own_row);
        if (next < n_seen) {
            if (is_end || next % IO_PAGE_POSITIONS == 0)
                next_row = page_row(slot, kv_head, next);
            load_keys(id, next_row);
        }
        barrier();
        softmax_tile(t, n);
        barrier();
        [[unroll]] for (uint k = 0; k < OWN_QUERIES; k++)
            pv[k] *= rescale[min(k * TEAMS + t / ATTEND_THREADS, QUERIES - 1)];
        if (t % ATTEND_THREADS / D4 < GROUPS)
            pv_tile(t, row, n, own_row == row + n - 1);
        if (next < n_seen)
            load_values(t % ATTEND_THREADS, next_row);
        if (is_end) {
            store_part(t, first_head * MAX_PARTS + part, n_heads);
            barrier();
            begin_part();
            part += stride;
            end = min(next + length, n_seen);
        }
        at = next;
        row = next_row;
    }
}

void main() {
    const uint TILES = KV_HEADS * KV_TILES, GROUP = HEADS / KV_HEADS;
    uint t = gl_LocalInvocationIndex, id = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint tile = gl_WorkGroupID.x % TILES, part = gl_WorkGroupID.x / TILES;
    uint stride = gl_NumWorkGroups.x / TILES; // whole: all parts of a workgroup are of one tile
    uint kv_head = tile / KV_TILES, first = tile % KV_TILES * QUERIES;
    uint first_head = kv_head * GROUP + first, n_heads = min(QUERIES, GROUP - first);
    uint n_seen = io_row_position(0) + 1, slot = io_row_slot(0);
    uint length = attend_part(n_seen), n_parts = attend_parts(n_seen);
    if (io_n_rows() == 0 || part >= n_parts) {
        end_stage();
        return;
    }
    uint row = page_row(slot, kv_head, part * length), own_row = 0xffffffffu;
    load_norms(t);
    load_keys(id, row);
    load_values(t % ATTEND_THREADS, row);
    wait_for_stage();
    load_row(t, kv_head, first_head, n_heads);
    make_heads(t);
    if ((n_parts - 1 - part) % stride == 0) {
        own_row = page_row(slot, kv_head, n_seen - 1);
        store_row(t, own_row);
    }
    barrier();
    run_parts(t, id, slot, kv_head, first_head, n_heads, part, stride, length, n_seen, row, own_row);
    if (COMBINES != 0 && is_last(t, tile, min(n_parts, stride)))
        combine(t, first_head, n_heads, n_parts);
    end_stage();
}
