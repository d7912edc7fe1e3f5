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
// CACHE as in attend_head.glsl. Plans of one row have attend_one.comp.
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

layout(push_constant) uniform Push {
    IO_AT;
    uint pages_first, out_first, out_stride;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Queries { vec4 queries[]; }; // (R, H, d)
layout(binding = 2) readonly buffer Pages { uint pages[]; };
#include "attend_cache.glsl"
layout(binding = 5) writeonly buffer Out { float result[]; };
layout(binding = 5) writeonly buffer Parts { vec4 result4[]; }; // (R, H, parts, d)
layout(binding = 6) writeonly buffer Sums { vec2 sums[]; };   // (R, H, parts): maximum and sum

const uint LANES = 16, D4 = D / 4;
const uint GROUPS = ATTEND_THREADS / D4;
const uint Q4 = (QUERIES + 3) / 4;
const uint AT_ONCE = GROUPS <= 2 ? QUERIES : (QUERIES + 1) / 2; // queries, adding groups
const uint SCORES = QUERIES * ATTEND_TILE * 5;                  // of fours of lanes: 4 + 1
const uint OTHERS = 4 * AT_ONCE * D4 * (GROUPS - 1);            // PV of other groups than the first
const uint SCRATCH = SCORES > OTHERS ? SCORES : OTHERS;

shared vec4 query[QUERIES * D4];
shared vec4 scratch[(SCRATCH + 3) / 4]; // its uses follow each other
shared float per_thread[QUERIES * 16];
shared vec4 weight[ATTEND_TILE * Q4]; // of four queries
shared float rescale[QUERIES], part_factor[QUERIES];

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

// Sums of four lanes: lane l of them keeps those of position 4 p + l of the thread's.
float four_lanes(float a, float b, float c, float d, uint lane) {
    bool is_odd = lane % 2 != 0, is_upper = lane % 4 >= 2;
    precise float first = (is_odd ? b : a) + subgroupShuffleXor(is_odd ? a : b, 1);
    precise float second = (is_odd ? d : c) + subgroupShuffleXor(is_odd ? c : d, 1);
    precise float sum =
        (is_upper ? second : first) + subgroupShuffleXor(is_upper ? first : second, 2);
    return sum;
}

// The scores' sums of four lanes each for a tile of positions from `row` of the cache on.
void qk_tile(uint row) {
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
            k[r] = key_at(row + position + r, c);
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
        scratch[at / 4][at % 4] = four;
    }
}

float qk_at(uint q, uint position, uint seen) {
    uint at = (q * ATTEND_TILE + position) * 5;
    precise float sum = (scratch[at / 4][at % 4] + scratch[(at + 1) / 4][(at + 1) % 4]) +
                        (scratch[(at + 2) / 4][(at + 2) % 4] + scratch[(at + 3) / 4][(at + 3) % 4]);
    return position < seen ? sum : ATTEND_NONE;
}

void pv_position(vec4 v, uint i) {
    [[unroll]] for (uint f = 0; f < Q4; f++) {
        vec4 w = weight[i * Q4 + f];
        [[unroll]] for (uint k = 0; k < 4; k++)
            if (4 * f + k < QUERIES)
                pv[4 * f + k] = fma(vec4(w[k]), v, pv[4 * f + k]);
    }
}

void pv_at(uint row, uint i, uint chunk) {
    pv_position(value_at(row + i, chunk), i);
}

// Of the softmax, for the thread's query: as far as the part has come, and all parts before it.
float run_max, whole_max;
float run_sum, whole_sum;
vec4 whole[QUERIES]; // the first group's threads have it

void load_queries(uint t, Job j) {
    uint n_queries = j.n_rows * j.n_heads;
    for (uint i = t; i < QUERIES * D4; i += ATTEND_THREADS) {
        uint q = i / D4, row = j.row + q / j.n_heads, head = j.first_head + q % j.n_heads;
        query[i] = q < n_queries ? queries[(row * HEADS + head) * D4 + i % D4] : vec4(0);
    }
}

// From the scores of a tile's positions to weights; the thread's query sees this many of them.
void softmax_tile(uint t, uint seen) {
    uint q = t / 16, at = t % 16;
    float a = 0, b = 0;
    if (q < QUERIES) {
        a = qk_at(q, at, seen);
        b = qk_at(q, at + 16, seen);
        per_thread[t] = max(a, b);
    }
    barrier();
    if (q >= QUERIES)
        return;
    float largest = run_max;
    [[unroll]] for (uint i = 0; i < 16; i++)
        largest = max(largest, per_thread[q * 16 + i]);
    float factor = exp2(run_max - largest);
    a = at < seen ? softmax_weight(exp2(a - largest)) : 0;
    b = at + 16 < seen ? softmax_weight(exp2(b - largest)) : 0;
    weight[at * Q4 + q / 4][q % 4] = a;
    weight[(at + 16) * Q4 + q / 4][q % 4] = b;
    precise float sum = fma(run_sum, factor, a + b);
    run_sum = sum;
    run_max = largest;
    if (at == 0)
        rescale[q] = factor;
}

void pv_tile(uint row, uint n, uint chunk, uint group) {
    [[unroll]] for (uint q = 0; q < QUERIES; q++)
        pv[q] *= rescale[q];
    if (group < GROUPS && n == ATTEND_TILE) {
        [[unroll]] for (uint i = 0; i < ATTEND_TILE / GROUPS; i++)
            pv_at(row, i * GROUPS + group, chunk);
        if (ATTEND_TILE % GROUPS > group)
            pv_at(row, ATTEND_TILE / GROUPS * GROUPS + group, chunk);
    } else if (group < GROUPS) {
        for (uint i = group; i < n; i += GROUPS)
            pv_at(row, i, chunk);
    }
}

// The part's maximum and sum, and how the row goes on with it.
void end_softmax(uint t, Job j, uint part) {
    uint q = t / 16;
    bool is_first = t % 16 == 0;
    if (q < QUERIES)
        per_thread[t] = run_sum;
    barrier();
    if (q >= QUERIES)
        return;
    precise float sum = 0;
    for (uint i = 0; i < 16; i++)
        sum += per_thread[q * 16 + i];
    if (IS_WHOLE != 0) {
        float largest = max(whole_max, run_max);
        float before = exp2(whole_max - largest), after = exp2(run_max - largest);
        precise float all = fma(whole_sum, before, sum * after);
        whole_sum = all;
        whole_max = largest;
        if (is_first) {
            rescale[q] = before;
            part_factor[q] = after;
        }
    } else if (is_first && q < j.n_rows * j.n_heads) {
        uint head = j.row * HEADS + j.first_head + q;
        sums[head * MAX_PARTS + part] = vec2(run_max, sum);
    }
}

// Adds the groups, in order; the part's result goes to memory, or into the row's.
void end_part(Job j, uint part, uint chunk, uint group) {
    uint n_queries = j.n_rows * j.n_heads;
    [[unroll]] for (uint first = 0; first < QUERIES; first += AT_ONCE) {
        barrier();
        [[unroll]] for (uint q = first; q < min(first + AT_ONCE, QUERIES); q++)
            if (group > 0 && group < GROUPS)
                scratch[((group - 1) * AT_ONCE + q - first) * D4 + chunk] = pv[q];
        barrier();
        [[unroll]] for (uint q = first; q < min(first + AT_ONCE, QUERIES); q++) {
            if (group > 0)
                break;
            precise vec4 sum = pv[q];
            for (uint g = 1; g < GROUPS; g++)
                sum += scratch[((g - 1) * AT_ONCE + q - first) * D4 + chunk];
            if (IS_WHOLE != 0) {
                precise vec4 all = fma(whole[q], vec4(rescale[q]), sum * part_factor[q]);
                whole[q] = all;
            } else if (q < n_queries) {
                uint head = j.row * HEADS + j.first_head + q;
                result4[(head * MAX_PARTS + part) * D4 + chunk] = sum;
            }
        }
    }
    barrier();
}

void run_part(uint t, Job j, uint part, uint slot, uint length) {
    uint chunk = t % D4, group = t / D4, n_seen = j.position + j.n_rows;
    uint own_seen = j.position + min(t / 16 / j.n_heads, j.n_rows - 1) + 1; // by the thread's query
    uint begin = part * length, end = min(begin + length, n_seen);
    run_max = ATTEND_NONE;
    run_sum = 0;
    [[unroll]] for (uint q = 0; q < QUERIES; q++)
        pv[q] = vec4(0);
    for (uint at = begin; at < end; at += ATTEND_TILE) {
        uint page = pages[p.pages_first + slot * PAGES + at / IO_PAGE_POSITIONS];
        uint row = (page * KV_HEADS + j.kv_head) * IO_PAGE_POSITIONS + at % IO_PAGE_POSITIONS;
        qk_tile(row);
        barrier();
        softmax_tile(t, own_seen > at ? own_seen - at : 0);
        barrier();
        pv_tile(row, min(end - at, ATTEND_TILE), chunk, group);
    }
    end_softmax(t, j, part);
    end_part(j, part, chunk, group);
}

void store_whole(uint t, Job j) {
    uint chunk = t % D4, group = t / D4;
    if (t / 16 < QUERIES && t % 16 == 0)
        rescale[t / 16] = 1.0 / whole_sum;
    barrier();
    [[unroll]] for (uint q = 0; q < QUERIES; q++) {
        if (group > 0 || q >= j.n_rows * j.n_heads)
            continue;
        uint row = j.row + q / j.n_heads, head = j.first_head + q % j.n_heads;
        precise vec4 y = whole[q] * rescale[q];
        [[unroll]] for (uint k = 0; k < 4; k++)
            result[p.out_first + row * p.out_stride + head * D + 4 * chunk + k] = y[k];
    }
}

void run_job(uint t, Job j) {
    uint slot = io_row_slot(j.row), length = attend_part(j.position + 1);
    barrier(); // the last job's
    load_queries(t, j);
    barrier();
    whole_max = ATTEND_NONE;
    whole_sum = 0;
    [[unroll]] for (uint q = 0; q < QUERIES; q++)
        whole[q] = vec4(0);
    for (uint part = j.first_part; part < j.end_part; part++)
        run_part(t, j, part, slot, length);
    if (IS_WHOLE != 0)
        store_whole(t, j);
}

void main() {
    Job j;
    for (uint number = gl_WorkGroupID.x; job_of(number, j); number += gl_NumWorkGroups.x)
        if (j.n_rows > 0)
            run_job(gl_LocalInvocationIndex, j);
}
