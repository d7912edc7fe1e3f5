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

// Neighbouring rows are those of neighbouring workgroups, so that all have as many.
Cursor first_batch() {
    return Cursor(thread() / TEAM * gl_NumWorkGroups.x + gl_WorkGroupID.x, 0, 0);
}

void advance(inout Cursor c) {
    if (++c.batch < BATCHES)
        return;
    c.batch = 0;
    c.second = EPILOGUE == SWIGLU ? 1 - c.second : 0;
    if (c.second == 0)
        c.n += T / TEAM * gl_NumWorkGroups.x;
}

// Whether the team, or one before it that it has to wait with, has rows left. All threads of a
// subgroup agree.
bool goes_on(Cursor c) {
    uint before = (IS_ALONE ? thread() % SUBGROUP : thread()) / TEAM;
    return c.n - before * gl_NumWorkGroups.x < outputs();
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
    if (c.n >= outputs())
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
        return vec4(unpackHalf2x16(a), unpackHalf2x16(b));
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

void main() {
    // The plan has one row, and so has every step; but its head may have none.
    if (IS_HEAD != 0 && io_n_outputs() == 0) {
        end_stage();
        return;
    }
    Cursor c = first_batch();
    Batch batch;
    float sum = 0, first_sum = 0;
    load_batch(c, batch);
    wait_for_stage();
    load_row();
    share_row();
    scale_row();
    while (goes_on(c)) {
        Cursor of = c;
        sum = multiply_batch(batch, of, sum);
        advance(c);
        load_batch(c, batch);
        if (c.batch != 0)
            continue;
        float total = lanes_sum(sum);
        sum = 0;
        if (EPILOGUE == SWIGLU && of.second == 0)
            first_sum = total;
        else if (thread() % TEAM == 0 && of.n < outputs())
            store(of.n, 0, EPILOGUE == SWIGLU ? first_sum : total, total);
    }
    end_stage();
}
