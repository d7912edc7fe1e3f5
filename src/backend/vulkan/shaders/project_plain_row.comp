// project_plain_row.comp - products of one row and weights in F32, F16 and BF16; every workgroup
// prepares the row for itself (row.glsl).
//
//   out[n] = epilogue(sum over k of w[n][k] x[k])
//
// A team of LANES threads has one weight row at a time, without waiting for others where it is
// within a subgroup; of SwiGLU every second row of a team is one of up. A lane loads BATCH units at
// once: the first ones while the row is prepared, others while sums are added. Units and the order
// of sums are those of product.glsl. Up to four matrices of one type are one list of p.n rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define ROW
#include "half.glsl"
#include "product.glsl"

layout(constant_id = 9) const uint UNITS = 1;        // of a row
layout(constant_id = 10) const uint LANES = 1;       // that share it
layout(constant_id = 11) const uint HAS_VECTORS = 0; // as in prologue.glsl
layout(constant_id = 12) const uint SUBGROUP = 0;    // threads of a subgroup
layout(constant_id = 13) const uint BATCH = 1;       // at most MAX_BATCH vectors

#define F32
#define ROW_VECTORS (2 * UNITS)
#define ROW_PLACE(i) ((i) % 2 * UNITS + (i) / 2) // first halves of units, then second ones
#include "prologue.glsl"
#include "row.glsl"

#define DT_F32 0u
#define DT_F16 1u
#define MAX_BATCH 6 // ops/row.c

const uint TEAM = LANES > 16 ? 32 : LANES > 8 ? 16 : LANES > 4 ? 8 : 4;
const bool IS_ALONE = SUBGROUP >= TEAM; // a team is within a subgroup
const uint BATCHES = (UNITS + LANES * BATCH - 1) / (LANES * BATCH);
const bool IS_EVEN = UNITS == TEAM * BATCH * BATCHES;
const uint VECTORS = TYPE == DT_F32 ? 2 : 1; // of a unit

// ---- the row -----------------------------------------------------------------------------------

// It has ROUNDS of 4 T values each. Few of them are loaded at once, since one after the other each
// would wait for L2; the norm's weights, which no stage writes, before the stage before this one is
// done.
#define MAX_ROUNDS 4
const uint ROUNDS = (ROW_VECTORS + T - 1) / T;
const bool IS_AT_ONCE = ROUNDS <= MAX_ROUNDS;
Four rounds[MAX_ROUNDS];

uint first_of(uint round) {
    return 4 * (round * T + thread());
}

void load_norms() {
    if (!IS_AT_ONCE)
        load_row_norms();
    [[unroll]] for (uint i = 0; i < MAX_ROUNDS; i++)
        if (IS_AT_ONCE && i < ROUNDS && first_of(i) < p.k) // as in load_row_norms
            load_norm(first_of(i), rounds[i]);
}

void load_rounds() {
    row_at = p.in_first;
    gate_at = p.gate_first;
    if (!IS_AT_ONCE)
        load_row();
    [[unroll]] for (uint i = 0; i < MAX_ROUNDS; i++)
        if (IS_AT_ONCE && i < ROUNDS)
            load_values(first_of(i), rounds[i]);
}

void share_rounds() {
    if (!IS_AT_ONCE) {
        share_row();
        return;
    }
    [[unroll]] for (uint i = 0; i < MAX_ROUNDS; i++)
        if (i < ROUNDS)
            share_values(first_of(i), rounds[i]);
    end_row();
}

// The norm's factor goes into the row.
void scale_row() {
    if (PROLOGUE != PROLOGUE_NORM)
        return;
    for (uint i = thread(); i < ROW_VECTORS; i += T) {
        precise vec4 v = row_x[i] * row_factor;
        row_x[i] = v;
    }
    barrier();
}

// ---- rows ---------------------------------------------------------------------------------------

// A batch of the team: the output n, of SwiGLU which of its two rows, the batch.
struct Cursor {
    uint n, second, batch;
};

uint outputs() {
    return EPILOGUE == SWIGLU ? p.n / 2 : p.n;
}

uint row_of(Cursor c) {
    return p.weight_base[EPILOGUE == SWIGLU ? c.second : segment_of(c.n)] + c.n * p.row_bytes;
}

uint n_end; // of the workgroup's rows: neighbours, as many in each, or one more

Cursor first_batch() {
    uint each = outputs() / gl_NumWorkGroups.x, more = outputs() - each * gl_NumWorkGroups.x;
    uint first = gl_WorkGroupID.x * each + min(gl_WorkGroupID.x, more);
    n_end = first + each + (gl_WorkGroupID.x < more ? 1 : 0);
    return Cursor(first + thread() / TEAM, 0, 0);
}

void advance(inout Cursor c) {
    if (++c.batch < BATCHES)
        return;
    c.batch = 0;
    c.second = EPILOGUE == SWIGLU ? 1 - c.second : 0;
    if (c.second == 0)
        c.n += T / TEAM;
}

// Whether the team, or one before it that it has to wait with, has rows left. All threads of a
// subgroup agree.
bool goes_on(Cursor c) {
    return c.n - (IS_ALONE ? thread() % SUBGROUP : thread()) / TEAM < n_end;
}

// ---- weights ------------------------------------------------------------------------------------

struct Batch {
    uvec4 v[MAX_BATCH];
};

uint unit_of(Cursor c, uint i) {
    return (c.batch * BATCH + i) * LANES + thread() % TEAM;
}

// Word i of a row that may begin at any value.
uint load_word(uint row, uint i) {
    if (TYPE == DT_F32)
        return i < p.k ? w[row / 4 + i] : 0;
    uint word = 0;
    for (uint b = 0; b < 2; b++) {
        uint at = row / 2 + 2 * i + b;
        word |= 2 * i + b < p.k ? (w[at / 2] >> 16 * (at & 1) & 0xffff) << 16 * b : 0;
    }
    return word;
}

uvec4 load_vector(uint row, uint i) {
    if (IS_WIDE != 0)
        return w4[row / 16 + i];
    uvec4 v;
    for (uint k = 0; k < 4; k++)
        v[k] = load_word(row, 4 * i + k);
    return v;
}

void load_batch(Cursor c, inout Batch o) {
    if (c.n >= n_end)
        return;
    uint row = row_of(c);
    [[unroll]] for (uint i = 0; i < BATCH; i++) {
        uint u = IS_EVEN ? unit_of(c, i) : min(unit_of(c, i), UNITS - 1);
        [[unroll]] for (uint j = 0; j < VECTORS; j++)
            o.v[VECTORS * i + j] = load_vector(row, VECTORS * u + j);
    }
}

vec4 four_of(uint a, uint b) {
    if (TYPE == DT_F16)
        return vec4(unpack_halves(a), unpack_halves(b));
    return uintBitsToFloat(uvec4(a << 16, a & 0xffff0000u, b << 16, b & 0xffff0000u));
}

float multiply_unit(uvec4 first, uvec4 second, uint u, float sum) {
    vec4 x[2], y[2];
    x[0] = row_x[u];
    x[1] = row_x[UNITS + u];
    y[0] = TYPE == DT_F32 ? uintBitsToFloat(first) : four_of(first.x, first.y);
    y[1] = TYPE == DT_F32 ? uintBitsToFloat(second) : four_of(first.z, first.w);
    [[unroll]] for (uint k = 0; k < 8; k++)
        sum = fma(y[k / 4][k % 4], x[k / 4][k % 4], sum);
    return sum;
}

float multiply_batch(Batch o, Cursor c, float sum) {
    [[unroll]] for (uint i = 0; i < BATCH; i++) {
        uint u = unit_of(c, i);
        bool is_mine = IS_EVEN || u < UNITS;
        float more = multiply_unit(o.v[VECTORS * i], o.v[VECTORS * i + VECTORS - 1],
                                   is_mine ? u : 0, sum);
        sum = is_mine ? more : sum;
    }
    return sum;
}

// ---- sums ---------------------------------------------------------------------------------------

shared vec4 partial[T / 4];

void wait_for_team() {
    if (IS_ALONE) {
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    } else {
        barrier();
    }
}

// Of all lanes, in order.
float lanes_sum(float mine) {
    uint t = thread(), first = t / TEAM * (TEAM / 4);
    wait_for_team(); // the last sum's reads
    partial[t / 4][t % 4] = mine;
    wait_for_team();
    float sum = partial[first].x;
    [[unroll]] for (uint l = 1; l < LANES; l++)
        sum = sum + partial[first + l / 4][l % 4];
    return sum;
}

// ---- outputs ------------------------------------------------------------------------------------

uint place_of(uint n) {
    return p.out_base[EPILOGUE == SWIGLU ? 0 : segment_of(n)] + n;
}

// What a row's output is added to or multiplied with: comes while the row is multiplied.
float old_output(Cursor c) {
    return HAS_OLD && c.n < n_end ? to[place_of(c.n)] : 0;
}

void main() {
    // The plan has one row, and so has every step; but its head may have none.
    if (IS_HEAD != 0 && io_n_outputs() == 0) {
        end_stage();
        return;
    }
    Cursor c = first_batch();
    Batch batch;
    float sum = 0, first_sum = 0;
    load_norms();
    load_batch(c, batch);
    wait_for_stage();
    float old = old_output(c);
    load_rounds();
    share_rounds();
    scale_row();
    while (goes_on(c)) {
        Cursor of = c;
        sum = multiply_batch(batch, of, sum);
        advance(c);
        load_batch(c, batch);
        if (c.batch != 0)
            continue;
        float next_old = old_output(c), total = lanes_sum(sum);
        sum = 0;
        if (EPILOGUE == SWIGLU && of.second == 0)
            first_sum = total;
        else if (thread() % TEAM == 0 && of.n < n_end)
            to[place_of(of.n)] = result_of(of.n, EPILOGUE == SWIGLU ? first_sum : total, total, old);
        old = next_old;
    }
    end_stage();
}
