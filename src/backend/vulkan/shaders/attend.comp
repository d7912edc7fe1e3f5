#version 450
// attend.comp - attention of queries to parts of their sequence (attend.glsl).
//
// A workgroup has a query tile, QUERIES of one KV head, against a part (IS_WHOLE 0: jobs are all
// parts of all rows, partial results go to memory), or against all parts one after the other
// (IS_WHOLE 1: up to TILE_ROWS rows of a segment share a tile). It loops over jobs: their number
// follows from the rows' lengths, that of the workgroups is fixed.
//
//   QK       sixteen lanes a position, each every sixteenth four of its values; four positions a
//            thread; the lanes' sums are added as a tree, in fours by shuffles, then in memory
//   softmax  sixteen threads a query, two positions each; a maximum and a sum that run on
//   PV       a thread four columns, and every GROUPS-th position; the groups are added in order at
//            the part's end
//
// CACHE as in attend_head.glsl. FUSED, for plans of one row, does attend_store.comp's work, too: every
// workgroup makes its own queries, and the one that has the last part of a KV head stores the row's
// key and value, which it takes from shared memory.
#extension GL_GOOGLE_include_directive : require
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
layout(constant_id = 5) const uint TILE_HEADS = 1; // heads of a tile
layout(constant_id = 6) const uint KV_TILES = 1;   // tiles of a KV head
layout(constant_id = 7) const uint TILE_ROWS = 1;  // a power of two
layout(constant_id = 8) const uint IS_WHOLE = 0;
layout(constant_id = 9) const uint MAX_PARTS = 1;
layout(constant_id = 10) const uint PAGES = 1;

#ifdef FUSED
layout(constant_id = 11) const uint ROTARY = 0;
layout(constant_id = 12) const uint IS_NEIGHBOURS = 0;
layout(constant_id = 13) const uint HAS_Q_NORM = 0;
layout(constant_id = 14) const uint HAS_K_NORM = 0;
#endif

layout(push_constant) uniform Push {
    IO_AT;
    uint pages_first, out_first, out_stride;
#ifdef FUSED
    uint in_first, q_stride, k_column, v_column;
    uint q_norm_first, k_norm_first, angles_first;
    float eps, scale;
#endif
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
#ifdef FUSED
layout(binding = 1) readonly buffer In { float x_in[]; };
layout(binding = 3) buffer KeyWords { uint key_words[]; };
layout(binding = 4) buffer ValueWords { uint value_words[]; };
layout(binding = 7) readonly buffer QNorm { float q_norm[]; };
layout(binding = 8) readonly buffer KNorm { float k_norm[]; };
layout(binding = 9) readonly buffer Angles { float angles[]; };
#else
layout(binding = 1) readonly buffer Queries { vec4 queries[]; }; // (R, H, d)
#endif
layout(binding = 2) readonly buffer Pages { uint pages[]; };
#if CACHE == 0
layout(binding = 3) readonly buffer Keys { vec4 keys[]; };
layout(binding = 4) readonly buffer Values { vec4 values[]; };
#elif CACHE == 1
layout(binding = 3) readonly buffer Keys { uvec2 keys[]; };
layout(binding = 4) readonly buffer Values { uvec2 values[]; };
#else
layout(binding = 3) readonly buffer Keys { uint keys[]; };
layout(binding = 4) readonly buffer Values { uint values[]; };
#endif
layout(binding = 5) writeonly buffer Out { float result[]; };
layout(binding = 5) writeonly buffer Parts { vec4 result4[]; }; // (R, H, parts, d)
layout(binding = 6) writeonly buffer Sums { vec2 sums[]; };   // (R, H, parts): maximum and sum

const uint LANES = 16, D4 = D / 4;
const uint GROUPS = ATTEND_THREADS / D4;
const uint Q4 = (QUERIES + 3) / 4;
const uint AT_ONCE = GROUPS <= 2 ? QUERIES : (QUERIES + 1) / 2; // queries, adding groups
const uint SCORES = QUERIES * ATTEND_TILE * 5;                  // of fours of lanes: 4 + 1
const uint OTHERS = 4 * AT_ONCE * D4 * (GROUPS - 1);            // PV of other groups than the first
const uint SQUARES_N = 136 * (QUERIES + 1);                     // of attend_head.glsl
const uint MOST = SCORES > OTHERS ? SCORES : OTHERS;
const uint ROOM = MOST > SQUARES_N ? MOST : SQUARES_N;

shared vec4 query[QUERIES * D4];
shared vec4 room[(ROOM + 3) / 4]; // for one after the other
shared float most[QUERIES * 16];
shared vec4 weight[ATTEND_TILE * Q4]; // of four queries
shared float rescale[QUERIES], of_part[QUERIES];

#ifdef FUSED
#define SQUARES(i) room[(i) / 4][(i) % 4]
#include "attend_head.glsl"
shared vec4 new_key[D4], new_value[D4]; // of the row, as the cache has them
#endif

// ---- the cache --------------------------------------------------------------------------------

#if CACHE == 0
#define FOUR(cache, row, c) cache[(row) * D4 + (c)]
#elif CACHE == 1
#define FOUR(cache, row, c) four_halves(cache[(row) * D4 + (c)])
vec4 four_halves(uvec2 v) {
    return vec4(unpackHalf2x16(v.x), unpackHalf2x16(v.y));
}
#else
#ifndef BLOCK
#define BLOCK (CACHE == 2 ? 17 : 9) // half-words
#endif
#define HALF_AT(cache, h) (cache[(h) / 2] >> ((h) % 2 * 16) & 0xffffu)

vec4 scaled(uint d, uint bytes) {
#if CACHE == 2
    return unpackHalf2x16(d).x * vec4(int(bytes << 24) >> 24, int(bytes << 16) >> 24,
                                      int(bytes << 8) >> 24, int(bytes) >> 24);
#else
    return unpackHalf2x16(d).x * (vec4(bytes & 15u, bytes >> 8 & 15u, bytes >> 16 & 15u,
                                       bytes >> 24 & 15u) - 8.0);
#endif
}

// Value 4 c is in half-word `at` of its block, and the one after.
#if CACHE == 2
#define QUANTS_AT(c) (1 + (c) % 8 * 2)
#define SHIFT(c) 0
#else
#define QUANTS_AT(c) (1 + (c) % 4 * 2)
#define SHIFT(c) ((c) % 8 / 4 * 4)
#endif
#define FOUR_OF(name, cache)                                                                       \
    vec4 name(uint row, uint c) {                                                                  \
        uint block = (row * (D / 32) + c / 8) * BLOCK, at = block + QUANTS_AT(c);                  \
        uint bytes = HALF_AT(cache, at) | HALF_AT(cache, at + 1) << 16;                            \
        return scaled(HALF_AT(cache, block), bytes >> SHIFT(c));                                   \
    }
FOUR_OF(four_keys, keys)
FOUR_OF(four_values, values)
#endif

vec4 key_at(uint row, uint c) {
#if CACHE < 2
    return FOUR(keys, row, c);
#else
    return four_keys(row, c);
#endif
}

vec4 value_at(uint row, uint c) {
#if CACHE < 2
    return FOUR(values, row, c);
#else
    return four_values(row, c);
#endif
}

// ---- jobs -------------------------------------------------------------------------------------

struct Job {
    uint row, n_rows;     // of the tile
    uint kv_head, first_head, n_heads;
    uint first_part, end_part;
    uint position;        // of the first row
};

// False: there are no more. No rows: a row that is in the tile of one before it.
bool job_of(uint number, out Job j) {
    const uint TILES = KV_HEADS * KV_TILES;
    uint row = 0, tile = number % TILES, n_rows = io_n_rows();
    number /= TILES;
    j.first_part = 0;
    j.end_part = 0;
    j.n_rows = 1;
    if (IS_WHOLE != 0) {
        row = number;
    } else {
        for (; row < n_rows; row++) {
            uint parts = attend_parts(io_row_position(row) + 1);
            if (number < parts)
                break;
            number -= parts;
        }
        j.first_part = number;
        j.end_part = number + 1;
    }
    j.row = row;
    j.kv_head = tile / KV_TILES;
    uint first = tile % KV_TILES * TILE_HEADS, group = HEADS / KV_HEADS;
    j.first_head = j.kv_head * group + first;
    j.n_heads = min(TILE_HEADS, group - first);
    if (row >= n_rows)
        return false;
    j.position = io_row_position(row);
    if (IS_WHOLE != 0) {
        uint s = io_row_segment(row), end = io_segment_first_row(s) + io_segment_n_rows(s);
        uint in_tile = j.position % TILE_ROWS;
        j.n_rows = row > io_segment_first_row(s) && in_tile > 0 ? 0
                                                                : min(TILE_ROWS - in_tile, end - row);
        j.end_part = attend_parts(j.position + 1); // of all its rows: tiles begin at whole numbers
    }
    return true;
}

// ---- a part -----------------------------------------------------------------------------------

vec4 pv[QUERIES];

#ifdef FUSED
uint new_row; // of the cache: where the row's own key and value are
#define KEY_AT(row, c, e) (has_new && (row) == new_row ? new_key[c] : key_at(row, c))
#define VALUE_AT(row, c) (has_new && (row) == new_row ? new_value[c] : value_at(row, c))
#else
#define KEY_AT(row, c, e) key_at(row, c)
#define VALUE_AT(row, c) value_at(row, c)
#endif

#ifdef FUSED
#define HAS_NEW_TILE has_new
#else
#define HAS_NEW_TILE false
#endif

// Sums of four lanes: lane l of them keeps those of position 4 p + l of the thread's.
float four_lanes(float a, float b, float c, float d, uint lane) {
    bool is_odd = lane % 2 != 0, is_upper = lane % 4 >= 2;
    precise float first = (is_odd ? b : a) + subgroupShuffleXor(is_odd ? a : b, 1);
    precise float second = (is_odd ? d : c) + subgroupShuffleXor(is_odd ? c : d, 1);
    precise float sum =
        (is_upper ? second : first) + subgroupShuffleXor(is_upper ? first : second, 2);
    return sum;
}

// Of one row over an F16 cache the next tile's keys and values are in flight while this one is
// computed, and the first tile's while the row's heads are made.
#if defined(FUSED) && CACHE == 1
#define LOADS_AHEAD
const uint OF_KEYS = (D4 + LANES - 1) / LANES;
const uint OF_VALUES = (ATTEND_TILE + GROUPS - 1) / GROUPS;
uvec2 key_ahead[4 * OF_KEYS], value_ahead[OF_VALUES];

void load_keys(uint row) {
    uint id = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint lane = id % LANES, position = id / LANES * 4;
    [[unroll]] for (uint e = 0; e < OF_KEYS; e++) {
        uint c = min(e * LANES + lane, D4 - 1);
        [[unroll]] for (uint r = 0; r < 4; r++)
            key_ahead[4 * e + r] = keys[(row + position + r) * D4 + c];
    }
}

void load_values(uint t, uint row) {
    [[unroll]] for (uint e = 0; e < OF_VALUES; e++) {
        uint i = min(e * GROUPS + t / D4, ATTEND_TILE - 1);
        value_ahead[e] = values[(row + i) * D4 + t % D4];
    }
}
#undef KEY_AT
#define KEY_AT(row, c, e)                                                                          \
    (has_new && (row) == new_row ? new_key[c] : four_halves(key_ahead[e]))
#endif

// The scores' sums of four lanes each for a tile of positions from `row` of the cache on.
void multiply_keys(uint row, const bool has_new) {
    uint id = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint lane = id % LANES, position = id / LANES * 4;
    precise float sum[4 * QUERIES];
    [[unroll]] for (uint q = 0; q < 4 * QUERIES; q++)
        sum[q] = 0;
    [[unroll]] for (uint e = 0; e < (D4 + LANES - 1) / LANES; e++) {
        uint c = e * LANES + lane;
        if (c >= D4)
            continue;
        vec4 k[4];
        [[unroll]] for (uint r = 0; r < 4; r++)
            k[r] = KEY_AT(row + position + r, c, 4 * e + r);
        [[unroll]] for (uint q = 0; q < QUERIES; q++) {
            vec4 x = query[q * D4 + c];
            [[unroll]] for (uint r = 0; r < 4; r++)
                sum[4 * q + r] =
                    fma(x.w, k[r].w,
                        fma(x.z, k[r].z, fma(x.y, k[r].y, fma(x.x, k[r].x, sum[4 * q + r]))));
        }
    }
    [[unroll]] for (uint q = 0; q < QUERIES; q++) {
        uint at = (q * ATTEND_TILE + position + lane % 4) * 5 + lane / 4;
        float four = four_lanes(sum[4 * q], sum[4 * q + 1], sum[4 * q + 2], sum[4 * q + 3], lane);
        room[at / 4][at % 4] = four;
    }
}

float score_at(uint q, uint position, uint seen) {
    uint at = (q * ATTEND_TILE + position) * 5;
    precise float sum = (room[at / 4][at % 4] + room[(at + 1) / 4][(at + 1) % 4]) +
                        (room[(at + 2) / 4][(at + 2) % 4] + room[(at + 3) / 4][(at + 3) % 4]);
    return position < seen ? sum : ATTEND_NONE;
}

void multiply_value(vec4 v, uint i) {
    [[unroll]] for (uint f = 0; f < Q4; f++) {
        vec4 w = weight[i * Q4 + f];
        [[unroll]] for (uint k = 0; k < 4; k++)
            if (4 * f + k < QUERIES)
                pv[4 * f + k] = fma(vec4(w[k]), v, pv[4 * f + k]);
    }
}

void multiply_values(uint row, uint i, uint chunk, const bool has_new) {
    multiply_value(VALUE_AT(row + i, chunk), i);
}

#ifdef FUSED
// ---- the row's own head -----------------------------------------------------------------------

// What a thread loads of a tile's queries, and of its KV head's key and value: all of it is in flight
// before IO says anything.
const uint OF_HEAD = (D + ATTEND_THREADS - 1) / ATTEND_THREADS;
const uint PAIRS = ROTARY > 1 ? ROTARY / 2 : 1;
const uint OF_ANGLES = ((QUERIES + 1) * PAIRS + ATTEND_THREADS - 1) / ATTEND_THREADS;
struct Raw {
    float query[QUERIES * OF_HEAD], key[OF_HEAD], value[OF_HEAD];
    float q_norm[OF_HEAD], k_norm[OF_HEAD];
    vec2 angle[OF_ANGLES];
};
Raw raw;

void load_row(uint t, uint number) {
    uint tile = number % (KV_HEADS * KV_TILES), kv_head = tile / KV_TILES;
    uint first = tile % KV_TILES * TILE_HEADS, first_head = kv_head * (HEADS / KV_HEADS) + first;
    uint n_heads = min(TILE_HEADS, HEADS / KV_HEADS - first);
    [[unroll]] for (uint e = 0; e < OF_HEAD; e++) {
        uint i = min(e * ATTEND_THREADS + t, D - 1);
        [[unroll]] for (uint q = 0; q < QUERIES; q++)
            raw.query[q * OF_HEAD + e] =
                x_in[p.in_first + (first_head + min(q, n_heads - 1)) * p.q_stride + i];
        raw.key[e] = x_in[p.in_first + p.k_column + kv_head * D + i];
        raw.value[e] = x_in[p.in_first + p.v_column + kv_head * D + i];
        raw.q_norm[e] = HAS_Q_NORM != 0 ? q_norm[p.q_norm_first + i] : 1;
        raw.k_norm[e] = HAS_K_NORM != 0 ? k_norm[p.k_norm_first + i] : 1;
    }
    [[unroll]] for (uint e = 0; e < OF_ANGLES; e++)
        if (ROTARY > 0)
            raw.angle[e] = angle_at(0, (e * ATTEND_THREADS + t) % PAIRS);
}

// The queries, and in x the key, as attend_store.comp makes them.
void make_heads(uint t) {
    const uint EIGHTHS = (QUERIES + 1) * ATTEND_THREADS;
    if ((HAS_Q_NORM | HAS_K_NORM) != 0) {
        [[unroll]] for (uint q = 0; q <= QUERIES; q++) {
            float sum = 0;
            [[unroll]] for (uint e = 0; e < OF_HEAD; e++)
                if (e * ATTEND_THREADS + t < D)
                    sum = square_of(q < QUERIES ? raw.query[q * OF_HEAD + e] : raw.key[e], sum);
            SQUARES(q * ATTEND_THREADS + t) = sum;
        }
        barrier();
        if (t < 8 * (QUERIES + 1))
            SQUARES(EIGHTHS + t) = eighth_of(t / 8 * ATTEND_THREADS, t % 8);
        barrier();
    }
    [[unroll]] for (uint q = 0; q <= QUERIES; q++) {
        bool has_norm = q < QUERIES ? HAS_Q_NORM != 0 : HAS_K_NORM != 0;
        float factor = has_norm ? factor_of(sum_of_eighths(EIGHTHS + 8 * q)) : 1;
        [[unroll]] for (uint e = 0; e < OF_HEAD; e++) {
            uint i = e * ATTEND_THREADS + t;
            float v = q < QUERIES ? raw.query[q * OF_HEAD + e] : raw.key[e];
            if (has_norm)
                v = normed(v, factor, q < QUERIES ? raw.q_norm[e] : raw.k_norm[e]);
            if (i < D && q < QUERIES)
                query[q * D4 + i / 4][i % 4] = v;
            else if (i < D)
                x[i] = v;
        }
    }
    barrier();
    if (ROTARY > 0) {
        [[unroll]] for (uint e = 0; e < OF_ANGLES; e++) {
            uint i = e * ATTEND_THREADS + t, q = i / PAIRS;
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
    for (uint i = t; i < QUERIES * D4; i += ATTEND_THREADS) {
        precise vec4 y = query[i] * p.scale;
        query[i] = y;
    }
}

// Value i of x after it was stored.
float stored(uint i) {
#if CACHE == 0
    return x[i];
#elif CACHE == 1
    return unpackHalf2x16(half_of(x[i])).x;
#else
    uint block = i / 32 * BLOCK, at = i % 32;
    float d = unpackHalf2x16(halves[block]).x;
#if CACHE == 2
    uint code = halves[block + 1 + at / 2] >> (at % 2 * 8);
    return d * float(int(code << 24) >> 24);
#else
    uint code = halves[block + 1 + at % 16 / 2] >> (at % 2 * 8 + at / 16 * 4);
    return d * (float(code & 15u) - 8.0);
#endif
#endif
}

void store_row(uint t, Job j, uint slot) {
    uint page = pages[p.pages_first + slot * PAGES + j.position / IO_PAGE_POSITIONS];
    uint cache_row =
        (page * KV_HEADS + j.kv_head) * IO_PAGE_POSITIONS + j.position % IO_PAGE_POSITIONS;
    new_row = cache_row;
    {
        STORE(key_words)
    }
    for (uint i = t; i < D; i += ATTEND_THREADS)
        new_key[i / 4][i % 4] = stored(i);
    barrier();
    [[unroll]] for (uint e = 0; e < OF_HEAD; e++)
        if (e * ATTEND_THREADS + t < D)
            x[e * ATTEND_THREADS + t] = raw.value[e];
    barrier();
    {
        STORE(value_words)
    }
    for (uint i = t; i < D; i += ATTEND_THREADS)
        new_value[i / 4][i % 4] = stored(i);
}
#endif

void main() {
    uint t = gl_LocalInvocationIndex, chunk = t % D4, group = t / D4;
    uint own_q = t / 16, own_at = t % 16; // in the softmax
    Job j;
    for (uint number = gl_WorkGroupID.x;; number += gl_NumWorkGroups.x) {
#ifdef FUSED
        load_row(t, number);
#endif
        if (!job_of(number, j))
            break;
        if (j.n_rows == 0)
            continue;
        uint n_queries = j.n_rows * j.n_heads, length = attend_part(j.position + 1);
        uint slot = io_row_slot(j.row), n_seen = j.position + j.n_rows;
        uint own_seen = j.position + min(own_q / j.n_heads, j.n_rows - 1) + 1;
#ifdef LOADS_AHEAD
        uint ahead_at = j.first_part * length;
        uint page = pages[p.pages_first + slot * PAGES + ahead_at / IO_PAGE_POSITIONS];
        uint row = (page * KV_HEADS + j.kv_head) * IO_PAGE_POSITIONS + ahead_at % IO_PAGE_POSITIONS;
        load_keys(row);
        load_values(t, row);
#endif
        barrier();
#ifdef FUSED
        make_heads(t);
        new_row = 0xffffffffu;
        if (j.first_part + 1 == attend_parts(j.position + 1))
            store_row(t, j, slot);
#else
        for (uint i = t; i < QUERIES * D4; i += ATTEND_THREADS) {
            uint q = i / D4, row = j.row + q / j.n_heads, head = j.first_head + q % j.n_heads;
            query[i] = q < n_queries ? queries[(row * HEADS + head) * D4 + i % D4] : vec4(0);
        }
#endif
        barrier();
        precise vec4 whole[QUERIES]; // of the first group's threads
        [[unroll]] for (uint q = 0; q < QUERIES; q++)
            whole[q] = vec4(0);
        float whole_max = ATTEND_NONE;
        precise float whole_sum = 0;
        for (uint part = j.first_part; part < j.end_part; part++) {
            uint begin = part * length, end = min(begin + length, n_seen);
            float run_max = ATTEND_NONE;
            precise float run_sum = 0;
            [[unroll]] for (uint q = 0; q < QUERIES; q++)
                pv[q] = vec4(0);
            for (uint at = begin; at < end; at += ATTEND_TILE) {
#ifndef LOADS_AHEAD
                uint page = pages[p.pages_first + slot * PAGES + at / IO_PAGE_POSITIONS];
                uint row = (page * KV_HEADS + j.kv_head) * IO_PAGE_POSITIONS + at % IO_PAGE_POSITIONS;
#endif
                uint n = min(end - at, ATTEND_TILE), seen = own_seen > at ? own_seen - at : 0;
                float a = 0, b = 0;
#ifdef FUSED
                bool has_new = new_row >= row && new_row < row + ATTEND_TILE;
                if (has_new)
                    multiply_keys(row, true);
                else
#endif
                    multiply_keys(row, false);
#ifdef LOADS_AHEAD
                uint next = at + ATTEND_TILE, next_row = row + ATTEND_TILE;
                if (next < end) {
                    if (next % IO_PAGE_POSITIONS == 0) {
                        page = pages[p.pages_first + slot * PAGES + next / IO_PAGE_POSITIONS];
                        next_row = (page * KV_HEADS + j.kv_head) * IO_PAGE_POSITIONS;
                    }
                    load_keys(next_row);
                }
#endif
                barrier();
                if (own_q < QUERIES) {
                    a = score_at(own_q, own_at, seen);
                    b = score_at(own_q, own_at + 16, seen);
                    most[t] = max(a, b);
                }
                barrier();
                if (own_q < QUERIES) {
                    float largest = run_max;
                    [[unroll]] for (uint i = 0; i < 16; i++)
                        largest = max(largest, most[own_q * 16 + i]);
                    float factor = exp2(run_max - largest);
                    a = own_at < seen ? exp2(a - largest) : 0;
                    b = own_at + 16 < seen ? exp2(b - largest) : 0;
                    weight[own_at * Q4 + own_q / 4][own_q % 4] = a;
                    weight[(own_at + 16) * Q4 + own_q / 4][own_q % 4] = b;
                    run_sum = fma(run_sum, factor, a + b);
                    run_max = largest;
                    if (own_at == 0)
                        rescale[own_q] = factor;
                }
                barrier();
                [[unroll]] for (uint q = 0; q < QUERIES; q++)
                    pv[q] *= rescale[q];
#ifdef LOADS_AHEAD
                [[unroll]] for (uint e = 0; e < OF_VALUES; e++) {
                    uint i = e * GROUPS + group;
                    vec4 v = four_halves(value_ahead[e]);
                    if (has_new && row + i == new_row)
                        v = new_value[chunk];
                    if (group < GROUPS && i < n)
                        multiply_value(v, i);
                }
                if (next < end)
                    load_values(t, next_row);
                row = next_row;
#else
                if (group < GROUPS && n == ATTEND_TILE && !HAS_NEW_TILE) {
                    [[unroll]] for (uint i = 0; i < ATTEND_TILE / GROUPS; i++)
                        multiply_values(row, i * GROUPS + group, chunk, false);
                    if (ATTEND_TILE % GROUPS > group)
                        multiply_values(row, ATTEND_TILE / GROUPS * GROUPS + group, chunk, false);
                } else if (group < GROUPS) {
                    for (uint i = group; i < n; i += GROUPS)
                        multiply_values(row, i, chunk, true);
                }
#endif
            }
            // The part's maximum and sum, and how the row goes on with it.
            float part_sum = 0, after = 0;
            if (own_q < QUERIES)
                most[t] = run_sum;
            barrier();
            if (own_q < QUERIES) {
                precise float sum = 0;
                for (uint i = 0; i < 16; i++)
                    sum += most[own_q * 16 + i];
                part_sum = sum;
                if (IS_WHOLE != 0) {
                    float largest = max(whole_max, run_max);
                    float before = exp2(whole_max - largest);
                    after = exp2(run_max - largest);
                    whole_sum = fma(whole_sum, before, part_sum * after);
                    whole_max = largest;
                    if (own_at == 0) {
                        rescale[own_q] = before;
                        of_part[own_q] = after;
                    }
                } else if (own_at == 0 && own_q < n_queries) {
                    uint head = j.row * HEADS + j.first_head + own_q;
                    sums[head * MAX_PARTS + part] = vec2(run_max, part_sum);
                }
            }
            [[unroll]] for (uint first = 0; first < QUERIES; first += AT_ONCE) {
                barrier();
                [[unroll]] for (uint q = first; q < min(first + AT_ONCE, QUERIES); q++)
                    if (group > 0 && group < GROUPS)
                        room[((group - 1) * AT_ONCE + q - first) * D4 + chunk] = pv[q];
                barrier();
                [[unroll]] for (uint q = first; q < min(first + AT_ONCE, QUERIES); q++) {
                    if (group > 0)
                        break;
                    precise vec4 sum = pv[q];
                    for (uint g = 1; g < GROUPS; g++)
                        sum += room[((g - 1) * AT_ONCE + q - first) * D4 + chunk];
                    if (IS_WHOLE != 0) {
                        whole[q] = fma(whole[q], vec4(rescale[q]), sum * of_part[q]);
                    } else if (q < n_queries) {
                        uint head = j.row * HEADS + j.first_head + q;
                        result4[(head * MAX_PARTS + part) * D4 + chunk] = sum;
                    }
                }
            }
            barrier();
        }
        if (IS_WHOLE != 0) {
            if (own_q < QUERIES && own_at == 0)
                rescale[own_q] = 1.0 / whole_sum;
            barrier();
            [[unroll]] for (uint q = 0; q < QUERIES; q++) {
                if (group > 0 || q >= n_queries)
                    continue;
                uint row = j.row + q / j.n_heads, head = j.first_head + q % j.n_heads;
                precise vec4 y = whole[q] * rescale[q];
                [[unroll]] for (uint k = 0; k < 4; k++)
                    result[p.out_first + row * p.out_stride + head * D + 4 * chunk + k] = y[k];
            }
        }
    }
}
